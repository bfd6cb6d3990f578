"""MindSpore's paths hold this package's objects, in MindSpore's forms. What is missing: `test_missing_names.py`."""

from __future__ import annotations

import builtins
import importlib
import math
import subprocess
import sys

import numpy as np
import pytest

import parallel_lab
import parallel_lab.mindspore as ms
from parallel_lab import Parameter, Tensor
from parallel_lab.base import seeds
from parallel_lab.base.errors import ParallelLabError
from parallel_lab.base.settings import context
from parallel_lab.mindspore._tables import PAGES
from tests.crossed import each_of
from tests.mindspore.imports import DTYPES, FACADE, MODULES, SAMPLES, SEEDS, page, target
from tests.ops.compiled import results


@pytest.fixture(autouse=True)
def plain_settings():
    seed = seeds.get_seed()
    yield
    context.reset_auto_parallel_context()
    context.reset_context()
    seeds.set_seed(seed)
    seeds.set_dataset_seed(None)


# ---- names ----


@pytest.mark.quick(60)
@pytest.mark.parametrize(("path", "name"), [*SEEDS, *SAMPLES], ids=lambda part: part or "mindspore")
def test_a_name_of_the_tutorials_is_our_object(path, name):
    found, ours = getattr(page(path), name), target({**SEEDS, **SAMPLES}[path, name])
    assert found is ours or found.__wrapped__ is ours  # a function, whose arguments are first counted


@pytest.mark.parametrize("path", MODULES)
def test_a_module_of_the_tutorials_is_there(path):
    module = page(path)
    assert module.__doc__ and module.__name__ == (f"{FACADE}.{path}" if path else FACADE)
    assert dir(module)


@pytest.mark.quick(40)
@pytest.mark.parametrize("path", PAGES)
def test_every_name_of_the_tables_leads_somewhere(path):
    module = page(path)
    for name in PAGES[path].names:
        assert getattr(module, name) is not None, name


@pytest.mark.quick(57)
@pytest.mark.parametrize("path", PAGES)
def test_a_star_import_takes_names_and_no_modules(path):
    taken: dict = {}
    names = page(path).__all__
    for name in names:
        taken[name] = getattr(page(path), name)
    assert sorted(taken) == sorted(set(names))
    assert not set(names) & set(dir(builtins)), "sum() and range() stay Python's"
    assert not any(f"{path}.{name}".lstrip(".") in PAGES and name not in PAGES[path].names for name in names)


def test_every_page_has_its_parents():
    for path in PAGES:
        parent = path.rpartition(".")[0]
        assert parent in PAGES, path


def test_submodules_are_attributes_of_their_parents():
    assert ms.nn.optim.momentum.Momentum is parallel_lab.nn.Momentum
    assert ms.dataset.vision.c_transforms.Resize is parallel_lab.dataset.vision.Resize
    assert ms.dtype is page("common.dtype")


def test_a_function_is_not_hidden_by_the_module_of_its_name():
    """mindspore.parallel.shard is a function, and mindspore/parallel/shard.py a module."""
    layout = importlib.import_module(f"{FACADE}.parallel.shard").Layout
    assert layout is parallel_lab.Layout
    assert ms.parallel.shard is page("parallel.shard").shard
    assert callable(ms.parallel.shard)


# ---- dtypes and tensors ----


@pytest.mark.parametrize("name", DTYPES)
def test_a_dtype_is_numpys_and_works_wherever_one_is_asked_for(name):
    dtype = getattr(ms, name)
    assert dtype == np.dtype(name.rstrip("_")) and dtype is getattr(page("common.dtype"), name)
    x = Tensor(np.zeros((2, 2)), dtype)
    assert x.dtype == dtype
    assert ms.ops.Cast()(Tensor([1.0, 2.0]), dtype).dtype == dtype
    assert ms.ops.zeros((2,), dtype).dtype == dtype
    assert ms.dataset.transforms.TypeCast(dtype)(np.ones(3)).dtype == dtype
    assert ms.common.initializer.initializer("ones", [2, 2], dtype).dtype == dtype
    assert ms.dtype_to_nptype(dtype) is dtype.type


def test_python_types_and_dtypes():
    assert [ms.dtype_to_pytype(dtype) for dtype in (ms.float16, ms.uint8, ms.bool_)] == [float, int, bool]
    assert [ms.pytype_to_dtype(kind) for kind in (int, float, bool)] == [ms.int64, ms.float64, ms.bool_]


MADE = {
    "ones": (lambda ops: ops.ones((2, 3)), np.ones((2, 3), np.float32)),
    "zeros": (lambda ops: ops.zeros(2, dtype=None), np.zeros(2, np.float32)),
    "full": (lambda ops: ops.full((2,), 7), np.full((2,), 7)),
    "arange": (lambda ops: ops.arange(2, 8, 3), np.array([2, 5])),
    "linspace": (lambda ops: ops.linspace(0, 1, 5), np.linspace(0, 1, 5, dtype=np.float32)),
    "eye": (lambda ops: ops.eye(2, 3), np.eye(2, 3, dtype=np.float32)),
    "ones_like": (lambda ops: ops.ones_like(Tensor([[1, 2]])), np.ones((1, 2), np.int64)),
    "zeros_like": (lambda ops: ops.zeros_like(Tensor([1.5])), np.zeros(1, np.float32)),
    "full_like": (lambda ops: ops.full_like(Tensor([1.5]), 2), np.full(1, 2, np.float32)),
    "fill": (lambda ops: ops.fill(np.int32, (2, 1), 3), np.full((2, 1), 3, np.int32)),
    "Fill": (lambda ops: ops.Fill()(np.float32, (2,), 1.0), np.ones(2, np.float32)),
    "ZerosLike": (lambda ops: ops.ZerosLike()(Tensor([1.5, 2])), np.zeros(2, np.float32)),
    "OnesLike": (lambda ops: ops.OnesLike()(Tensor([1.5, 2])), np.ones(2, np.float32)),
    "FillV2": (lambda ops: ops.FillV2()((2,), Tensor(3, np.int32)), np.full(2, 3, np.int32)),
    "LinSpaceExt": (lambda ops: ops.LinSpaceExt()(0, 1, 3, "float16"), np.linspace(0, 1, 3, dtype=np.float16)),
    "LinSpace": (lambda ops: ops.LinSpace()(Tensor(0.0), Tensor(1.0), 3), np.linspace(0, 1, 3, dtype=np.float32)),
    "Range": (lambda ops: ops.Range()(Tensor(1, np.int32), Tensor(8, np.int32), 3), np.array([1, 4, 7], np.int32)),
    "range": (lambda ops: ops.range(5, 0, -2), np.array([5, 3, 1])),
    "Eye": (lambda ops: ops.Eye()(2, 2, np.float32), np.eye(2, dtype=np.float32)),
    "tuple_to_array": (lambda ops: ops.tuple_to_array((1.5, 2.0)), np.array([1.5, 2], np.float32)),
    "TupleToArray": (lambda ops: ops.TupleToArray()((1, 2, 3)), np.array([1, 2, 3])),
    "ScalarToTensor": (lambda ops: ops.ScalarToTensor()(2.0, np.float32), np.float32(2)),
}


@each_of(("wrong", "kind"), ([1], TypeError), ((1, 2.0), TypeError), ((), ValueError), ((True,), TypeError))
def test_a_tuple_of_mixed_kinds_is_not_a_tensor(wrong, kind):
    with pytest.raises(kind, match="tuple_to_array: input_x="):
        ms.ops.tuple_to_array(wrong)


@pytest.mark.parametrize("name", MADE)
def test_what_makes_arrays_here_makes_tensors_there(name):
    make, expected = MADE[name]
    made = make(ms.ops)
    assert type(made) is Tensor
    np.testing.assert_array_equal(made.asnumpy(), expected)
    assert made.dtype == np.asarray(expected).dtype


def test_what_is_made_of_nothing_takes_a_strategy():
    """A constant; each rank takes its slice of it: no messages besides those of the operator that reads it."""
    strategy = ((4,),)

    class Net(ms.nn.Cell):
        def __init__(self, made, sharded, given):
            super().__init__()
            self.made, self.mul = made.shard(sharded), ms.ops.Mul().shard(((2, 4), (4,)))
            self.given = given

        def construct(self, x):
            return self.mul(x, self.made(*self.given))

    x = np.ones((2, 8), np.float32)
    for parts in (
        (ms.ops.LinSpace(), strategy, (0, 7, 8)),
        (ms.ops.Range(), ((), (), ()), (0, 8, 1)),
        (ms.ops.OnesLike(), strategy, (np.ones(8, np.float32),)),
    ):
        plan = parallel_lab.compile(Net(*parts), x, device_num=8, dataset_strategy="full_batch")
        assert [i.kind for i in plan.stages[0].program("forward") if i.message] == []
    with pytest.raises(parallel_lab.StrategyError, match=r"LinSpace: strategy \(4,\) for a tensor of shape \(6,\)"):
        ms.ops.LinSpace().shard(strategy)(0, 1, 6)
    with pytest.raises(TypeError, match="Zeros shard: strategy"):
        ms.ops.Zeros().shard([4])
    with pytest.raises(parallel_lab.ShapeError, match=r"range: end has shape \(2,\)"):
        ms.ops.range(0, Tensor([1, 2]))


def test_facts_about_a_tensor():
    x = Tensor(np.zeros((2, 3), np.float32))
    assert (ms.ops.Shape()(x), ms.ops.DType()(x), ms.ops.Rank()(x), ms.ops.Size()(x)) == ((2, 3), ms.float32, 2, 6)
    assert (ms.ops.dtype(x), ms.ops.rank(x), ms.ops.size(x)) == (ms.float32, 2, 6)


def test_assignments_are_operators_of_classes_too():
    p = Parameter(Tensor([1.0, 2.0]), "p", requires_grad=False)
    ms.ops.AssignAdd()(p, Tensor([1.0, 1.0]))
    np.testing.assert_array_equal(p.asnumpy(), [2.0, 3.0])
    ms.ops.AssignSub()(p, Tensor([0.5, 0.5]))
    ms.ops.Assign()(p, p * 2.0)
    np.testing.assert_array_equal(p.asnumpy(), [3.0, 5.0])


def test_a_tensor_is_printed_as_its_numbers():
    """Seeds 003 and 004 print losses with %s and print()."""
    loss = Tensor(np.float32(2.3243194))
    assert f"{loss}" == str(loss) == "%s" % loss == "2.3243194"  # noqa: UP031 - the seeds' own form
    assert str(Tensor([[1.0, 2.0]])) == "[[1. 2.]]"
    assert repr(Tensor([1, 2])).startswith("Tensor(shape=[2], dtype=int64")
    assert str(Parameter(Tensor([1.0]), "w")) == repr(Parameter(Tensor([1.0]), "w"))


def test_print_shows_texts_and_tensors(capsys):
    out = Tensor([1.0, 2.0])
    assert ms.ops.Print()("out is:", out) is out
    assert capsys.readouterr().out == f"out is:\n{out!r}\n"


def test_gradients_are_clipped_by_functions_of_ops():
    """ops.clip_by_global_norm: 3 and 4 have the norm 5."""
    small = ms.ops.clip_by_global_norm([ms.Tensor([3.0]), ms.Tensor([4.0])], 1.0)
    np.testing.assert_allclose([float(g.asnumpy()[0]) for g in small], [0.6, 0.8], rtol=1e-6)


def test_mint_has_pytorchs_spelling():
    x = Tensor(np.arange(24.0).reshape(2, 3, 4))
    assert ms.mint.flatten(x, start_dim=1, end_dim=2).shape == (2, 12)
    assert ms.mint.sum(x, dim=1, keepdim=True).shape == (2, 1, 4)
    assert ms.mint.transpose(x, 0, 2).shape == (4, 3, 2)
    np.testing.assert_array_equal(ms.mint.add(x, x, alpha=2).asnumpy(), 3 * x.asnumpy())
    np.testing.assert_array_equal(ms.mint.sub(x, x, alpha=2).asnumpy(), -x.asnumpy())


CUBE = np.random.default_rng(3).normal(size=(2, 3, 4)).astype(np.float32)
IN_PYTORCHS_WORDS = {
    "cat": (lambda x: ms.mint.cat([x, x], dim=1), np.concatenate([CUBE, CUBE], 1)),
    "stack": (lambda x: ms.mint.stack((x, x), dim=-1), np.stack([CUBE, CUBE], -1)),
    "split": (lambda x: ms.mint.split(x, 3, dim=2)[1], CUBE[..., 3:]),
    "chunk": (lambda x: ms.mint.chunk(x, 2, dim=-1)[0], CUBE[..., :2]),
    "squeeze": (lambda x: ms.mint.squeeze(x[:1], dim=0), CUBE[0]),
    "flip": (lambda x: ms.mint.flip(x, dims=(0, 2)), np.flip(CUBE, (0, 2))),
    "roll": (lambda x: ms.mint.roll(x, shifts=1, dims=2), np.roll(CUBE, 1, 2)),
    "tile": (lambda x: ms.mint.tile(x, dims=(1, 2, 1)), np.tile(CUBE, (1, 2, 1))),
    "repeat_interleave": (lambda x: ms.mint.repeat_interleave(x, 2, dim=1), np.repeat(CUBE, 2, 1)),
    "cumsum": (lambda x: ms.mint.cumsum(x, dim=1, dtype=ms.float64), CUBE.astype(np.float64).cumsum(1)),
    "softmax": (lambda x: ms.mint.softmax(x, dim=0), np.exp(CUBE) / np.exp(CUBE).sum(0)),
    "log_softmax": (lambda x: ms.mint.nn.functional.log_softmax(x, dim=0), np.log(np.exp(CUBE) / np.exp(CUBE).sum(0))),
    "logsumexp": (lambda x: ms.mint.logsumexp(x, 1, keepdim=True), np.log(np.exp(CUBE).sum(1, keepdims=True))),
    "std": (lambda x: ms.mint.std(x, 1), CUBE.std(1, ddof=1)),
    "std_mean": (lambda x: ms.mint.std_mean(x, 1)[0], CUBE.std(1, ddof=1)),
    "var": (lambda x: ms.mint.var(x, 0, correction=0, keepdim=True), CUBE.var(0, keepdims=True)),
    "max": (lambda x: ms.mint.max(x), CUBE.max()),
    "max along": (lambda x: ms.mint.max(x, 2)[0], CUBE.max(2)),
    "place of max": (lambda x: ms.mint.max(x, dim=1, keepdim=True)[1], CUBE.argmax(1)[:, None].astype(np.int32)),
    "max of two": (lambda x: ms.mint.max(x, -x), abs(CUBE)),
    "min": (lambda x: ms.mint.min(x, 0)[0], CUBE.min(0)),
    "argmax": (lambda x: ms.mint.argmax(x), CUBE.argmax()),
    "argmin": (lambda x: ms.mint.argmin(x, dim=1, keepdim=True), CUBE.argmin(1)[:, None]),
    "sort": (lambda x: ms.mint.sort(x, dim=1, descending=True)[0], -np.sort(-CUBE, 1)),
    "argsort": (lambda x: ms.mint.argsort(x, dim=0), np.argsort(CUBE, 0).astype(np.int32)),
    "cummax": (lambda x: ms.mint.cummax(x, dim=1)[0], np.maximum.accumulate(CUBE, 1)),
    "norm": (lambda x: ms.mint.norm(x, p=2, dim=2), np.linalg.norm(CUBE, axis=2)),
    "sum": (lambda x: ms.mint.sum(x, dim=1, dtype=ms.float64), CUBE.astype(np.float64).sum(1)),
    "glu": (lambda x: ms.mint.nn.GLU(dim=2)(x), CUBE[..., :2] / (1 + np.exp(-CUBE[..., 2:]))),
    "Softmax": (lambda x: ms.mint.nn.Softmax(dim=0)(x), np.exp(CUBE) / np.exp(CUBE).sum(0)),
    "hardshrink": (lambda x: ms.mint.nn.functional.hardshrink(x), CUBE * (abs(CUBE) > 0.5)),
    "gelu": (
        lambda x: ms.mint.nn.functional.gelu(x),
        CUBE * (1 + np.vectorize(math.erf)(CUBE / math.sqrt(2))).astype(np.float32) / 2,
    ),
    "GELU": (
        lambda x: ms.mint.nn.GELU("tanh")(x),
        CUBE / 2 * (1 + np.tanh(np.float32(math.sqrt(2 / math.pi)) * (CUBE + np.float32(0.044715) * CUBE**3))),
    ),
    "LeakyReLU": (lambda x: ms.mint.nn.LeakyReLU()(x), np.where(CUBE > 0, CUBE, np.float32(0.01) * CUBE)),
    "one_hot": (lambda x: ms.mint.nn.functional.one_hot(ms.mint.argmax(x, 2), 4), np.eye(4, dtype=int)[CUBE.argmax(2)]),
    "smooth_l1_loss": (
        lambda x: ms.mint.nn.functional.smooth_l1_loss(x, 0 * x),
        np.where(abs(CUBE) < 1, CUBE**2 / 2, abs(CUBE) - np.float32(0.5)).mean(),
    ),
    "SmoothL1Loss": (
        lambda x: ms.mint.nn.SmoothL1Loss("sum")(x, 0 * x),
        np.where(abs(CUBE) < 1, CUBE**2 / 2, abs(CUBE) - np.float32(0.5)).sum(),
    ),
    "kl_div": (lambda x: ms.mint.nn.functional.kl_div(x, x - 1, "sum", log_target=True), -np.exp(CUBE - 1).sum()),
    "logits": (lambda x: ms.mint.nn.BCEWithLogitsLoss(None, "none")(x, 0 * x), np.log1p(np.exp(CUBE))),
    "diff": (lambda x: ms.mint.diff(x, dim=1), np.diff(CUBE, axis=1)),
}


@pytest.mark.parametrize("name", IN_PYTORCHS_WORDS)
def test_mint_takes_pytorchs_arguments(name):
    call, expected = IN_PYTORCHS_WORDS[name]
    found = call(Tensor(CUBE))
    np.testing.assert_allclose(found.asnumpy(), expected, rtol=1e-5, atol=1e-6)
    assert found.dtype == np.asarray(expected).dtype


def test_a_linear_layer_of_mint_is_a_dense_one():
    layer = ms.mint.nn.Linear(in_features=3, out_features=2, bias=False)
    assert isinstance(layer, ms.nn.Dense) and layer.weight.shape == (2, 3) and not layer.has_bias
    assert layer(Tensor(CUBE[:, :, :3])).shape == (2, 3, 2)
    assert ms.mint.nn.Dropout(p=0.25).p == 0.25


# ---- settings ----


def test_set_seed_also_seeds_numpys_global_numbers():
    """Seed-dependent data of a script must be the same on every rank."""
    draws = []
    for _ in range(2):
        ms.set_seed(5)
        draws.append(np.random.rand())  # noqa: NPY002 - the global numbers are what is tested
    assert draws[0] == draws[1] == np.random.RandomState(5).rand()
    assert seeds.get_seed() == 5 == ms.get_seed()


def test_datasets_have_a_seed_of_their_own():
    source = ms.dataset.NumpySlicesDataset(np.arange(50), shuffle=True)

    def order():
        source.set_epoch(0)
        return [int(row[0].asnumpy()) for row in source]

    ms.set_seed(1)
    by_global = order()
    ms.dataset.config.set_seed(1000)
    own = order()
    ms.set_seed(2)
    assert (order(), ms.dataset.config.get_seed()) == (own, 1000)
    assert own != by_global
    seeds.set_dataset_seed(None)
    ms.set_seed(1)
    assert order() == by_global


@each_of(("seed", "kind"), ("1", TypeError), (True, TypeError), (1.0, TypeError), (-1, ValueError), (2**32, ValueError))
def test_a_wrong_dataset_seed_is_refused(seed, kind):
    with pytest.raises(kind, match="An int from 0"):
        ms.dataset.config.set_seed(seed)


def test_streams_and_events_stand_where_everything_has_finished():
    runtime, first, last = ms.runtime, ms.runtime.Event(enable_timing=True), ms.runtime.Event(enable_timing=True)
    first.record()
    with runtime.StreamCtx(runtime.Stream()):
        made = Tensor([1.0]) + 1
    runtime.communication_stream().record_event(last)
    assert float(made[0]) == 2 and first.elapsed_time(last) >= 0 and runtime.current_stream().query()
    runtime.current_stream().wait_event(last)
    runtime.synchronize()
    runtime.empty_cache()
    assert first.elapsed_time(last) == -last.elapsed_time(first)
    with pytest.raises(ValueError, match="enable_timing=True"):
        first.elapsed_time(runtime.current_stream().record_event())
    with pytest.raises(TypeError, match="A Stream"):
        runtime.set_cur_stream(1)


def test_settings_of_devices_are_checked():
    ms.set_device("Ascend", 3)
    assert (ms.get_context("device_target"), ms.get_context("device_id")) == ("Ascend", 3)
    ms.runtime.set_memory(max_size="28GB")
    ms.runtime.launch_blocking()
    for call, kind in (
        (lambda: ms.set_device("TPU"), RuntimeError),
        (lambda: ms.set_device(3), TypeError),
        (lambda: ms.runtime.set_memory(max_size=28), TypeError),
        (lambda: ms.runtime.set_memory(max_size="28"), ValueError),
        (lambda: ms.runtime.set_memory(max_size="0GB"), ValueError),
        (lambda: ms.runtime.set_memory(optimize_level="O9"), ValueError),
        (lambda: ms.runtime.dispatch_threads_num(0), ValueError),
        (lambda: ms.set_deterministic(1), TypeError),
    ):
        with pytest.raises(kind) as caught:
            call()
        assert isinstance(caught.value, ParallelLabError)


def test_decorators_of_the_graph_compiler_leave_things_as_they_are():
    class Block(parallel_lab.nn.Cell):
        @ms.lazy_inline
        def __init__(self):
            super().__init__()

    assert isinstance(Block(), parallel_lab.nn.Cell)
    assert ms.jit_class(Block) is Block
    assert ms.mutable((1, 2)) == (1, 2)


def test_no_init_parameters_leaves_initial_values_undrawn():
    with ms.nn.utils.no_init_parameters():
        net = parallel_lab.nn.Dense(3, 2)
        optimizer = parallel_lab.nn.SGD(net.trainable_params(), 1e-2)
    assert net.weight._data is None and optimizer.parameters[0] is net.weight
    assert net.weight.asnumpy().shape == (2, 3)


def test_operators_keep_their_device_and_run_all_the_same():
    """MindSpore's EmbeddingLookup asks for "CPU" in parallel modes, and was refused with it."""
    matmul = ms.ops.MatMul().set_device("CPU")
    assert matmul.prim_attrs["primitive_target"] == "CPU" and "CPU" in repr(matmul)
    assert matmul(Tensor(np.ones((2, 2))), Tensor(np.ones((2, 2)))).asnumpy().tolist() == [[2, 2], [2, 2]]
    lookup = ms.ops.EmbeddingLookup().add_prim_attr("primitive_target", "CPU").shard(((8, 1), (1, 1)))
    table, ids = np.arange(32.0).reshape(16, 2), np.array([[3, 15], [0, 7]])
    made = results(lambda table, ids: lookup(table, ids, 0), table, ids)
    np.testing.assert_array_equal(made[0], table[ids])


@pytest.mark.parametrize("name", ["Adam", "AdamWeightDecay", "LazyAdam", "FTRL", "ProximalAdagrad"])
def test_optimizers_with_an_update_on_the_host_take_a_target_and_keep_it(name):
    made = []
    for place in (None, "CPU"):
        p = Parameter(Tensor([1.0]), "p")
        optimizer = getattr(ms.nn, name)([p], learning_rate=0.1)
        assert optimizer.target is None
        if place:
            optimizer.target = place
        optimizer([Tensor([1.0])])
        made.append((optimizer.target, p.asnumpy().tolist()))
    assert [place for place, _ in made] == [None, "CPU"] and made[0][1] == made[1][1] != [1.0]
    with pytest.raises(ValueError, match="stays there"):
        optimizer.target = "Ascend"


@pytest.mark.parametrize("name", ["SGD", "Momentum", "Lamb"])
def test_optimizers_without_an_update_on_the_host_refuse_a_target(name):
    """As 2.10's nn.SGD does."""
    optimizer = getattr(ms.nn, name)(
        [Parameter(Tensor([1.0]), "p")], 0.1, **({"momentum": 0.9} if name == "Momentum" else {})
    )
    with pytest.raises(NotImplementedError, match=rf"{name}\.target"):
        optimizer.target = "CPU"
    assert optimizer.target is None


@each_of(("target_", "kind"), ("NPU", RuntimeError), ("cpu", ValueError), (1, TypeError), (None, TypeError))
def test_an_unknown_device_is_refused(target_, kind):
    with pytest.raises(kind, match="'CPU', 'GPU', 'Ascend'"):
        ms.ops.MatMul().set_device(target_)
    optimizer = ms.nn.SGD([Parameter(Tensor([1.0]), "p")], 0.1)
    with pytest.raises(kind, match="'CPU', 'GPU', 'Ascend'"):
        optimizer.target = target_


def test_recomputing_an_operator_is_a_switch_that_the_graph_keeps():
    net = parallel_lab.nn.SequentialCell(parallel_lab.nn.Dense(4, 4))
    assert net[0].matmul.recompute() is net[0].matmul
    with pytest.raises(TypeError, match="mode=1"):
        net[0].matmul.recompute(1)
    assert parallel_lab.compile(net, Tensor(np.ones((4, 4), np.float32))).graph.nodes[0].recompute
    net[0].matmul.recompute(False)
    assert not parallel_lab.compile(net, Tensor(np.ones((4, 4), np.float32))).graph.nodes[0].recompute


# ---- loading, and dropout's form ----


def test_importing_the_package_does_not_load_the_facade():
    code = """
import sys, parallel_lab
assert "parallel_lab.mindspore" not in sys.modules, "the package loads the facade"
before = set(sys.modules)
import parallel_lab.mindspore as ms
from parallel_lab.mindspore import nn, ops
loaded = {name for name in set(sys.modules) - before if name.startswith("parallel_lab.")}
print(*sorted(loaded))
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert found.returncode == 0, found.stderr
    names = found.stdout.split()
    assert [n for n in names if not n.startswith(FACADE)] == []


def test_the_operator_dropout_has_mindspores_form():
    """ops.Dropout(keep_prob)(x) gives two values; every call and every operator has a mask of its own."""
    x, keep = ms.Tensor(np.ones(4000, np.float32)), 0.8
    drop, other = ms.ops.Dropout(keep_prob=keep), ms.ops.Dropout(keep_prob=keep)
    masks = [drop(x)[0].asnumpy(), drop(x)[0].asnumpy(), other(x)[0].asnumpy()]
    for found in masks:
        np.testing.assert_allclose(found[found != 0], 1 / keep, rtol=1e-6)
        assert abs((found != 0).mean() - keep) < 5 * np.sqrt(keep * (1 - keep) / x.size)
    assert not any((a == b).all() for i, a in enumerate(masks) for b in masks[:i])
    ms.set_seed(1)
    again = ms.ops.Dropout(keep_prob=keep)(x)[0].asnumpy()
    ms.set_seed(1)
    np.testing.assert_array_equal(ms.ops.Dropout(keep_prob=keep)(x)[0].asnumpy(), again)


def test_the_operator_dropout_is_cut_like_any_other_and_drops_the_same():
    class Net(ms.nn.Cell):
        def __init__(self, strategy):
            super().__init__()
            self.dropout = ms.ops.Dropout(0.5).shard(strategy)

        def construct(self, x):
            out, _ = self.dropout(x)
            return out

    x, found = np.ones((8, 16), np.float32), []
    for strategy in (((1, 1),), ((4, 2),)):
        ms.set_seed(3)
        plan = parallel_lab.compile(Net(strategy), x, device_num=8, dataset_strategy="full_batch")
        found.append(parallel_lab.Simulator(plan, {}).run_step(x))
    assert 0 < np.count_nonzero(found[0]) < x.size
    np.testing.assert_array_equal(found[0], found[1])


@pytest.mark.parametrize(("keep_prob", "kind"), [(0, ValueError), (1.5, ValueError), ("a", TypeError)])
def test_a_share_that_dropout_cannot_keep_is_refused(keep_prob, kind):
    with pytest.raises(kind, match="Dropout: keep_prob="):
        ms.ops.Dropout(keep_prob)


def test_the_function_dropout_needs_no_step():
    x = ms.Tensor(np.ones(400, np.float32))
    first, second = ms.ops.dropout(x, 0.5).asnumpy(), ms.ops.dropout(x, 0.5).asnumpy()
    assert set(first) == {0.0, 2.0} and not (first == second).all()
    assert ms.ops.dropout(x, 0.5, training=False) is x


def test_overflow_is_seen_in_values_and_not_in_a_register():
    status = ms.ops.NPUAllocFloatStatus()()
    assert status.shape == (8,) and not ms.ops.NPUGetFloatStatus()(status).asnumpy().any()
    assert ms.ops.FloatStatus()(ms.Tensor([1.0, np.inf])).asnumpy().tolist() == [1]
    assert ms.ops.FloatStatus()(ms.Tensor([1.0, 2.0])).asnumpy().tolist() == [0]
