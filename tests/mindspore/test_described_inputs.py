"""Inputs whose sizes are not known yet: Tensor(shape=[None, ...]), Symbol, set_inputs, compiled for sizes that fit."""

import numpy as np
import pytest
from parallel_lab.mindspore.ops import operations as P

import parallel_lab as pl
import parallel_lab.mindspore as ms
from parallel_lab.base.errors import ParallelLabError, ShapeError, TraceError
from parallel_lab.mindspore import Symbol, Tensor, nn, ops
from parallel_lab.run.simulator import Simulator
from tests.crossed import each_of
from tests.refusals import refused


@pytest.fixture(autouse=True)
def eight_ranks():
    ms.set_auto_parallel_context(device_num=8, parallel_mode="semi_auto_parallel", dataset_strategy="full_batch")
    yield
    ms.reset_auto_parallel_context()


class Net(nn.Cell):
    def __init__(self, strategy=((1, 1), (1, 8))):
        super().__init__()
        self.w = ms.Parameter(Tensor(np.ones((3, 8)), ms.float32), "w")
        self.matmul = P.MatMul().shard(strategy)

    def construct(self, x):
        return self.matmul(x, self.w)


def described(*shape):
    return Tensor(shape=list(shape), dtype=ms.float32)


def ones(*shape, dtype=np.float32):
    return Tensor(np.ones(shape, dtype))


def compiled_for(net):
    return net.compiled.plan.data_inputs[0].shape


def test_each_real_shape_is_compiled_anew():
    net = Net()
    net.set_inputs(described(None, 3))
    for rows in (8, 16):
        net.compile(ones(rows, 3))
        assert compiled_for(net) == (rows, 3)
    assert [v.slice_shape for n, v in net.compiled.plan.values if n == "w"] == [(3, 1)]


# the least size above 1 with no more factors in common with 8 devices than the Symbol says
@each_of(
    ("dims", "shape"),
    ((None, 3), (3, 3)),
    ((-1, 3), (3, 3)),
    ((Symbol(divisor=3), 3), (3, 3)),
    ((Symbol(min=9, max=15, divisor=2), 3), (10, 3)),
    ((Symbol(min=9, max=4), 3), (9, 3)),  # a max that is not above min bounds nothing
    ((Symbol(divisor=8), 3), (8, 3)),
    ((Symbol(divisor=8, remainder=4), 3), (4, 3)),
)
def test_without_sizes_a_network_is_compiled_for_some_that_fit(dims, shape):
    net = Net()
    net.set_inputs(described(*dims))
    net.compile()
    assert compiled_for(net) == shape
    shown = [n if isinstance(n, int) and n > 0 else -1 for n in dims]
    assert f"unknown sizes: {shown} as {list(shape)}; another size compiles again" in net.compiled.plan.text()
    assert pl.compile(Net(), described(*dims)).data_inputs[0].shape == shape


@each_of(
    ("fed", "dims", "rows", "known"),
    ("full_batch", None, 2, False),
    ("full_batch", Symbol(divisor=2), 2, True),
    ("full_batch", Symbol(divisor=8, remainder=2), 4, False),
    ("full_batch", Symbol(divisor=8, remainder=4), 4, True),
    ("data_parallel", None, 8, True),
    (((2, 1),), None, 2, True),
    (((2, 1),), None, 4, False),
    (((2, 1),), Symbol(divisor=2), 4, True),
)
def test_an_unknown_dim_may_be_split_by_what_divides_its_symbol(fed, dims, rows, known):
    """MindSpore: gcd(divisor, remainder), times the parts that the ranks feed (GetRealDivisorSymbols, ToFullShape).
    A size was made up that all devices may split.
    """
    ms.set_auto_parallel_context(dataset_strategy=fed)
    net = Net(((rows, 1), (1, 1)))
    net.set_inputs(described(dims, 3))
    if known:
        net.compile()
    else:
        with pytest.raises(RuntimeError, match=r"unknown sizes: .*Symbol\(divisor=n\)"):
            net.compile()


class Sum(nn.Cell):
    """x + y, or x + w with w: (16, 8), and a shape that it is given."""

    def __init__(self, strategy=None, shape=None):
        super().__init__()
        self.w, self.add, self.shape = ms.Parameter(Tensor(np.ones((16, 8)), ms.float32), "w"), P.Add(), shape
        if strategy:
            self.add.shard(strategy)

    def construct(self, x, y=None):
        out = self.add(x, self.w if y is None else y)
        return out if self.shape is None else P.Reshape()(out, self.shape)


@each_of(
    ("inputs", "shapes"),
    (((None, 8),), [(16, 8)]),  # as w
    (((None, None),), [(16, 8)]),
    (((None, None, None), (5, None, 8)), [(5, 3, 8), (5, 3, 8)]),
    (((None, 8), (5, 8)), [(5, 8), (5, 8)]),
    (((None, 8), (None, 8)), [(3, 8), (3, 8)]),
    (((Symbol(divisor=8), 8), (None, 8)), [(8, 8), (8, 8)]),
)
def test_sizes_that_are_made_up_fit_the_known_ones(inputs, shapes):
    net = Sum()
    net.set_inputs(*(described(*one) for one in inputs))
    net.compile()
    assert [i.shape for i in net.compiled.plan.data_inputs] == shapes


def test_a_size_that_is_found_does_not_allow_a_split():
    """(16, 8) could be split 8 ways, but nothing is known about the rows of x."""
    net = Sum(((8, 1), (8, 1)))
    net.set_inputs(described(None, 8))
    with pytest.raises(RuntimeError, match=r"splits dim 0 of input 0, whose size is unknown.*Symbol\(divisor=8\)"):
        net.compile()
    net = Sum(shape=(2, 4, 8))
    net.set_inputs(described(None, 8), described(None, 8))
    net.compile()
    assert [i.shape for i in net.compiled.plan.data_inputs] == [(8, 8), (8, 8)]


@each_of(
    ("op", "more", "shape"),
    (P.Reshape(), ((-1, 32),), (32, 3)),  # a multiple of 32 elements
    (P.Split(1, 2), (), (3, 6)),  # two equal parts
    (P.Tile().shard(((2, 4),)), ((2, 4),), (3, 3)),  # copies are split, not the unknown dims
)
def test_a_dim_that_an_operator_leaves_open_fits_it(op, more, shape):
    """All three compile in 2.10 (recorded)."""

    class One(nn.Cell):
        def construct(self, x):
            return op(x, *more)

    net = One()
    net.set_inputs(described(None, None))
    net.compile()
    assert [i.shape for i in net.compiled.plan.data_inputs] == [shape]


def test_what_does_not_fit_set_inputs_is_refused():
    """From the documentation of mindspore.Symbol: sizes 8 n + 1, and two that are equal."""
    net = nn.ReLU()
    some, same = Symbol(divisor=8, remainder=1), Symbol(max=32, unique=True)
    net.set_inputs(described(None, some, some, same, same))
    net.compile(ones(1, 9, 17, 32, 32))
    for shape in ((1, 8, 17, 32, 32), (1, 9, 17, 32, 16), (1, 9, 17, 64, 64), (1, 9, 17, 32)):
        with pytest.raises(ShapeError, match=r"ReLU: an input of shape .*that set_inputs was given"):
            net.compile(ones(*shape))
    with pytest.raises(TypeError, match="dtype float16"):
        net.compile(ones(1, 9, 17, 32, 32, dtype=np.float16))


def test_inputs_of_a_call_that_runs_at_once_are_checked_too():
    """A call with inputs that set_inputs excludes ran, where MindSpore refuses it."""
    ms.reset_auto_parallel_context()
    net = nn.ReLU()
    net.set_inputs(described(None, 3))
    assert net(ones(5, 3)).shape == (5, 3)
    for given, kind, said in (
        ((ones(5, 4),), ValueError, r"ReLU: an input of shape \(5, 4\). The shape that set_inputs was given: "),
        ((ones(5, 3, dtype=np.float16),), TypeError, "dtype float16. That of set_inputs: float32"),
        ((2.0,), TypeError, "the input 2.0. A Tensor, as set_inputs was given"),
        ((ones(5, 3), ones(5, 3)), ValueError, "2 inputs. As many as set_inputs was given: 1"),
    ):
        with pytest.raises(kind, match=said) as found:
            net(*given)
        assert isinstance(found.value, ParallelLabError)


def test_some_inputs_may_be_given_by_name():
    class Sum(nn.Cell):
        def construct(self, x, y, z):
            return x + y * z

    ms.reset_auto_parallel_context()
    net = Sum().set_inputs(z=described(None))
    assert net(ones(2, 3), ones(3), ones(3)).shape == (2, 3)
    with pytest.raises(ShapeError, match=r"an input of shape \(2, 3\)"):
        net(ones(2, 3), ones(3), z=ones(2, 3))
    with pytest.raises(ValueError, match=r"input 'w'\. Those of construct: x, y, z"):
        net.set_inputs(w=described(None))


@each_of(("mode",), ("stand_alone",), ("semi_auto_parallel",))
def test_the_signature_of_a_compiled_function_is_kept(mode):
    """From the documentation of mindspore.jit: other shapes and dtypes are a TypeError, arguments by name too."""
    ms.set_auto_parallel_context(parallel_mode=mode)
    for signature in ((described(None, 3), ones(3)), [described(-1, 3), ones(3)], {"y": ones(3)}):
        add = ms.jit(lambda x, y: x + y, input_signature=signature)
        for given, said in (
            ((ones(2, 3), ones(1)), r"shape \(1,\). The shape that input_signature was given: \[3\]"),
            ((ones(2, 3), ones(3, dtype=np.float64)), "dtype float64. That of input_signature: float32"),
        ):
            with pytest.raises(TypeError, match=said):
                add(*given)
        with pytest.raises(TypeError, match="arguments by name: y"):
            add(ones(2, 3), y=ones(3))
    ms.set_auto_parallel_context(parallel_mode="stand_alone")
    assert add(ones(2, 3), ones(3)).shape == (2, 3)


def test_the_signature_of_a_method_is_that_of_its_arguments():
    ms.reset_auto_parallel_context()

    class Scale:
        @ms.jit(input_signature=described(None))
        def double(self, x):
            return x + x

    assert Scale().double(ones(3)).shape == (3,)
    with pytest.raises(TypeError, match=r"double: an input of shape \(3, 1\)"):
        Scale().double(ones(3, 1))
    with pytest.raises(TypeError, match="input_signature with 3"):
        ms.jit(lambda x: x, input_signature=3)


def test_a_description_has_a_shape_and_a_dtype_and_no_values():
    x = described(None, 3)
    assert (x.shape, str(x.dtype)) == ((-1, 3), "float32")
    assert str(x) == repr(x) == "Tensor((-1, 3), 'float32')"
    for read in (x.asnumpy, lambda: x + 1, lambda: ops.relu(x), lambda: Net()(x)):
        with pytest.raises((TraceError, ShapeError), match=r"\(-1, 3\)"):
            read()


test_what_describes_nothing_is_refused = refused(
    (lambda: Tensor(shape=[None, 3]), TypeError, "dtype=None"),
    (lambda: Tensor(shape=None, dtype=ms.float32), TypeError, "shape=None"),
    (lambda: Tensor(shape="ab", dtype=ms.float32), TypeError, "shape='ab'"),
    (lambda: described(-2, 3), ValueError, "shape=-2"),
    (lambda: described(2.5, 3), TypeError, "shape=2.5"),
    (lambda: Tensor(np.ones(3), shape=(3,), dtype=ms.float32), TypeError, "no input_data"),
    (lambda: Symbol(min=0), ValueError, "min=0"),
    (lambda: Symbol(divisor=0), ValueError, "divisor=0"),
    (lambda: Symbol(divisor=4, remainder=4), ValueError, "Below the divisor, 4"),
    (lambda: Symbol(max=1.5), TypeError, "max=1.5"),
    (lambda: Symbol(unique=1), TypeError, "unique=1"),
)


# ---- operators of inputs ----


def test_linspace_between_inputs_of_the_network():
    """It was refused: the ends' values were asked for while the network is compiled."""

    class Between(nn.Cell):
        def __init__(self):
            super().__init__()
            self.linspace = P.LinSpace()

        def construct(self, first, last):
            return self.linspace(first, last, 5)

    ends = Tensor(1.0, ms.float32), Tensor(3.0, ms.float32)
    plan = pl.compile(Between(), *ends)
    sim = Simulator(plan, {})
    sim.run_step(*(x.asnumpy() for x in ends))
    np.testing.assert_allclose(sim.full(plan.outputs[0]), np.linspace(1, 3, 5), rtol=1e-6)


def test_log_sigmoid_is_an_operator_that_takes_a_strategy():
    x = np.linspace(-100, 100, 32, dtype=np.float32).reshape(8, 4)
    np.testing.assert_allclose(P.LogSigmoid()(Tensor(x)).asnumpy(), -np.logaddexp(0, -x), rtol=1e-6)
    plan = pl.compile(lambda x: P.LogSigmoid().shard(((4, 2),))(x), x)
    assert [(n.op_class, n.strategy) for n in plan.graph.nodes] == [("LogSigmoid", ((4, 2),))]
    with pytest.raises(ParallelLabError, match="LogSigmoid"):
        P.LogSigmoid()("x")
