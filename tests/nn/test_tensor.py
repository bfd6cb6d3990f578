"""Tensor and Parameter: data, arithmetic, lazily drawn values, texts."""

import copy
import pickle

import numpy as np
import pytest

from parallel_lab import ops
from parallel_lab.base.errors import ArgumentError, ParallelLabError, ShapeError, message
from parallel_lab.base.seeds import get_seed, set_seed
from parallel_lab.base.settings import context
from parallel_lab.base.settings.tables import PYNATIVE_MODE
from parallel_lab.graph.trace import trace_network
from parallel_lab.nn.initializer import Normal, initializer
from parallel_lab.nn.tensor.autograd import gradients
from parallel_lab.nn.tensor.parameter import Parameter, ParameterTuple
from parallel_lab.nn.tensor.tensor import Tensor
from tests.crossed import each_of

A = np.array([[1.5, -2.0, 3.0], [0.5, 4.0, -1.0]], np.float32)
B = np.array([2.0, 4.0, 8.0], np.float32)


@pytest.fixture
def seed():
    before = get_seed()
    yield set_seed
    set_seed(before)


PYTHON = (([1.0, 2.0], "float32"), (1.0, "float32"), ([1, 2], "int64"), (True, "bool"))


@each_of("given, dtype", *PYTHON, (np.zeros(2), "float64"), (Tensor([1.0]), "float32"))
def test_dtype_of_the_data_is_kept_and_python_floats_become_float32(given, dtype):
    assert str(Tensor(given).dtype) == dtype


def test_a_given_dtype_wins():
    assert Tensor([1, 2], np.float32).dtype == np.float32


@each_of(
    "data, dtype", ([[1, 2], [3]], None), ("text", None), (["a"], "float32"), ([1j], None), (None, None), ({}, None)
)
def test_data_that_is_not_an_array_of_numbers_is_refused(data, dtype):
    with pytest.raises(ShapeError, match="Numbers in a rectangular shape"):
        Tensor(data, dtype)


@each_of(
    "compute",
    lambda a, b: a + b,
    lambda a, b: b - a,
    lambda a, b: a * b,
    lambda a, b: a / b,
    lambda a, b: b**2.0,
    lambda a, b: -a,
    lambda a, b: 2.0 + a,
    lambda a, b: 2 - a,
    lambda a, b: 3.0 * a,
    lambda a, b: 1 / b,
    lambda a, b: a @ a.T,
    lambda a, b: a.reshape(3, -1),
    lambda a, b: a.reshape((6,)),
    lambda a, b: a.transpose(1, 0),
    lambda a, b: a.sum(),
    lambda a, b: a.mean(0),
    lambda a, b: a.max(-1),
    lambda a, b: a.min(1),
    lambda a, b: a.astype("float64"),
)
def test_arithmetic_is_numpys(compute):
    ours, numpys = compute(Tensor(A), Tensor(B)), compute(A, B)
    assert isinstance(ours, Tensor)
    np.testing.assert_allclose(ours.asnumpy(), numpys, rtol=1e-7)
    assert ours.dtype == numpys.dtype


def test_an_array_on_the_left_leaves_the_work_to_the_tensor():
    result = A + Tensor(B)
    assert isinstance(result, Tensor)
    np.testing.assert_array_equal(result.asnumpy(), A + B)


@each_of("compute", ops.div, ops.power, ops.maximum, ops.add, ids=["div", "power", "maximum", "add"])
def test_operators_take_a_number_with_an_array(compute):
    result = compute(B, 2.0)
    assert result.dtype == np.float32
    np.testing.assert_array_equal(result, compute(B, np.float32(2.0)))


def test_scalars_convert_and_vectors_have_a_length():
    assert (float(Tensor(2.5)), int(Tensor(3)), bool(Tensor(0.0)), len(Tensor(A))) == (2.5, 3, False, 2)
    with pytest.raises(ShapeError, match="no length"):
        len(Tensor(1.0))


def test_shapes_that_do_not_fit_are_refused_with_operator_and_sizes():
    with pytest.raises(ShapeError, match=r"MatMul: operand 1 has 2 elements in dim 0 \('k'\), but 'k' is already 3"):
        Tensor(A) @ Tensor(A)


# ---- Parameter ----


def test_a_parameter_copies_its_data():
    data = A.copy()
    parameter = Parameter(Tensor(data), name="w")
    data[:] = 0
    np.testing.assert_array_equal(parameter.asnumpy(), A)


def test_values_depend_on_seed_and_name_alone(seed):
    seed(3)
    first = Parameter(initializer("normal", [4, 5]), "w").asnumpy()
    Parameter(initializer("normal", [4, 5]), "other").asnumpy()
    again = Parameter(initializer("normal", [4, 5]), "w").asnumpy()
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - Parameter(initializer("normal", [4, 5]), "v").asnumpy()).min() > 0
    seed(4)
    assert np.abs(first - Parameter(initializer("normal", [4, 5]), "w").asnumpy()).min() > 0


def test_shape_and_dtype_are_known_before_values_are_drawn():
    parameter = Parameter(initializer("ones", [4, 5], np.float64), "w")
    parameter.name = "renamed"
    assert (parameter.shape, parameter.dtype, "renamed" in repr(parameter)) == ((4, 5), np.float64, True)
    np.testing.assert_array_equal(parameter.asnumpy(), np.ones((4, 5)))


def test_set_data_keeps_dtype_and_shape():
    parameter = Parameter(Tensor(A), name="w")
    parameter.set_data(np.ones((2, 3)))
    assert parameter.dtype == np.float32
    with pytest.raises(ShapeError, match=r"'w': data of shape \(3, 2\)\. Shape \(2, 3\)"):
        parameter.set_data(np.ones((3, 2)))


def test_set_data_takes_initial_values():
    parameter = Parameter(Tensor(np.zeros((300, 200), np.float32)), name="w")
    parameter.set_data(initializer(Normal(0.5), [300, 200], np.float64))
    assert parameter.dtype == np.float32
    assert parameter.asnumpy().std() == pytest.approx(0.5, rel=0.02)  # 60000 draws: deviation of the estimate 0.3 %
    with pytest.raises(ShapeError, match="data of shape"):
        parameter.set_data(initializer("ones", [2, 2]))


@pytest.mark.parametrize("name", ["", 3, ["w"]])
def test_names_that_are_not_text_are_refused(name):
    with pytest.raises(ParallelLabError, match="A non-empty str"):
        Parameter(Tensor(A), name=name)


def test_a_parameter_tuple_holds_parameters_only():
    with pytest.raises(ShapeError, match="Parameters only"):
        ParameterTuple([Parameter(Tensor(A), "w"), Tensor(A)])


# ---- equality, indexing, numpy's functions ----


def test_equality_is_element_by_element_and_gives_tensors():
    a = Tensor([1.0, 2.0, 3.0])
    for ours, want in [
        (a == 2, [0, 1, 0]),
        (a != 2, [1, 0, 1]),
        (a == Tensor([1.0, 0.0, 3.0]), [1, 0, 1]),
        (np.array([1.0, 1, 1]) == a, [1, 0, 0]),
    ]:
        assert isinstance(ours, Tensor) and ours.dtype == bool
        np.testing.assert_array_equal(ours.asnumpy(), np.array(want, bool))
    assert (a == "text") is False and (a != "text") is True  # what cannot be compared is not equal


def test_tensors_are_known_by_identity_in_dicts_and_sets():
    a, b = Tensor([1.0, 2.0]), Tensor([1.0, 2.0])
    assert {a: 1, b: 2}[b] == 2 and len({a, b, a}) == 2


def test_a_truth_test_needs_one_element():
    assert bool(Tensor([[3]]))
    with pytest.raises(ShapeError, match=r"a truth test .* of a tensor of shape \(2,\)"):
        if Tensor([1, 2]):
            pass
    with pytest.raises(ShapeError, match=r"float\(\) of a tensor of shape \(2, 3\)"):
        float(Tensor(A))


@pytest.mark.parametrize("index", [0, -1, (0, 1), (slice(None), slice(1, 3)), ..., None, [1, 0]], ids=str)
def test_indexing_is_numpys(index):
    ours = Tensor(A)[index]
    assert isinstance(ours, Tensor)
    np.testing.assert_array_equal(ours.asnumpy(), A[index])


def test_indexing_by_a_tensor_and_iteration():
    np.testing.assert_array_equal(Tensor(A)[Tensor(A) > 0].asnumpy(), A[A > 0])
    rows = list(Tensor(A))
    assert len(rows) == len(A) and all(isinstance(r, Tensor) for r in rows)
    np.testing.assert_array_equal(rows[1].asnumpy(), A[1])


def test_an_index_outside_is_an_index_error_and_one_of_ours():
    for error in (IndexError, ShapeError):
        with pytest.raises(error, match=r"index 7 of a tensor of shape \(2, 3\) is outside"):
            Tensor(A)[7]


def test_what_would_lose_a_gradient_is_refused():
    p = Parameter(Tensor(A), name="w")
    for call, what in [
        (lambda: np.cbrt(p), "np.cbrt of parameter 'w'"),
        (lambda: np.cbrt(p * 2.0), "np.cbrt of a tensor made from parameters"),
        (lambda: np.sum(p), "np.sum of parameter 'w'.*ops.reduce_sum"),
    ]:
        with pytest.raises(TypeError, match=f"test_tensor.py.*{what}"):
            call()


def test_indexing_iteration_and_remainders_have_gradients():
    p = Parameter(Tensor(A), name="w")
    want = np.zeros_like(A)
    want[0, 1:] += 1
    np.testing.assert_array_equal(gradients(ops.reduce_sum(p[0, 1:]), [p])[0], want)
    first, second = p
    found = gradients(ops.reduce_sum(second * 2.0 + first), [p])[0]
    np.testing.assert_array_equal(found, np.stack([np.ones(3), 2 * np.ones(3)]))
    np.testing.assert_array_equal(gradients(ops.reduce_sum(p % 2), [p])[0], np.ones_like(A))


def test_bits_of_truth_values_are_logical_operators():
    a, b = Tensor(A) > 0, Tensor(A) > 1
    for ours, want in (
        (a & b, (A > 0) & (A > 1)),
        (a | ~b, (A > 0) | ~(A > 1)),
        (a ^ b, (A > 0) ^ (A > 1)),
        (Tensor([6, 3]) & 2, [2, 2]),
    ):
        np.testing.assert_array_equal(ours.asnumpy(), want)


def test_numpy_functions_work_on_tensors():
    for ours, want in [
        (np.exp(Tensor(A)), np.exp(A)),
        (np.sin(Tensor(A)), np.sin(A)),
        (np.sum(Tensor(A)), A.sum()),
        (Tensor(A) % 2, A % 2),
    ]:
        np.testing.assert_allclose(np.asarray(ours), want, rtol=1e-6)
    assert np.allclose(Parameter(Tensor(A)), A) and np.shape(Tensor(A)) == A.shape
    assert f"{Tensor(2.5):.2f}" == "2.50"


def test_a_numpy_function_with_an_operator_keeps_the_gradient():
    p = Parameter(Tensor(A), name="w")
    np.testing.assert_allclose(gradients(ops.reduce_sum(np.exp(p)), [p])[0], np.exp(A), rtol=1e-6)


def test_three_dots_stay_at_the_end_of_a_part_of_a_message():
    assert message("3 ways", allowed="Counts: 1, 2, 4, ...", hint="Try 4.") == "3 ways. Counts: 1, 2, 4, ... Try 4."


# ---- methods ----

SPACED = np.array([[[0.5], [2.0]], [[1.5], [0.25]], [[4.0], [3.0]]], np.float32)
METHODS = {
    "argmax": (lambda x: x.argmax(1), lambda a: a.argmax(1)),
    "argmax of all": (lambda x: x.argmax(), lambda a: a.argmax()),
    "argmin kept": (lambda x: x.argmin(keepdims=True), lambda a: a.argmin(keepdims=True)),
    "argmin dim": (lambda x: x.argmin(dim=0, keepdim=True), lambda a: a.argmin(0, keepdims=True)),
    "sum": (lambda x: x.sum(dim=1, keepdim=True), lambda a: a.sum(1, keepdims=True)),
    "mean": (lambda x: x.mean((0, 1), keepdims=True), lambda a: a.mean((0, 1), keepdims=True)),
    "max": (lambda x: x.max(axis=1), lambda a: a.max(1)),
    "max with numbers": (lambda x: x.max(axis=0, return_indices=True)[1], lambda a: a.argmax(0)),
    "min": (lambda x: x.min(), lambda a: a.min()),
    "var": (lambda x: x.var(0), lambda a: a.var(0)),
    "var ddof": (lambda x: x.var(0, 1), lambda a: a.var(0, ddof=1)),
    "std": (lambda x: x.std(axis=1, keepdims=True), lambda a: a.std(1, keepdims=True)),
    "norm": (lambda x: x.norm(), lambda a: np.sqrt((a * a).sum())),
    "norm of rows": (lambda x: x.norm(1, 1), lambda a: np.abs(a).sum(1)),
    "cumsum": (lambda x: x.cumsum(0), lambda a: a.cumsum(0)),
    "cumsum of all": (lambda x: x.cumsum(), lambda a: a.cumsum()),
    "topk": (lambda x: x.topk(2, dim=0)[0], lambda a: np.flip(np.sort(a, 0), 0)[:2]),
    "argsort": (lambda x: x.argsort(0), lambda a: a.argsort(0)),
    "abs": (lambda x: (-x).abs(), lambda a: a),
    "exp": (lambda x: x.exp(), np.exp),
    "log": (lambda x: x.log(), np.log),
    "sqrt": (lambda x: x.sqrt(), np.sqrt),
    "square": (lambda x: x.square(), np.square),
    "pow": (lambda x: x.pow(3), lambda a: a**3),
    "neg": (lambda x: x.neg(), lambda a: -a),
    "arithmetic": (lambda x: x.add(1).sub(0.5).mul(x).div(2), lambda a: (a + 0.5) * a / 2),
    "matmul": (lambda x: x.matmul(x.swapaxes(1, 2)), lambda a: a @ a.swapaxes(1, 2)),
    "clip": (lambda x: x.clip(0.5, 2), lambda a: a.clip(0.5, 2)),
    "clamp": (lambda x: x.clamp(min=1.0), lambda a: np.maximum(a, 1)),
    "select": (lambda x: x.select(x > 1, 0.0), lambda a: np.where(a > 1, a, 0)),
    "where": (lambda x: x.where(x > 1, -x), lambda a: np.where(a > 1, a, -a)),
    "masked_fill": (lambda x: x.masked_fill(x > 1, 7.0), lambda a: np.where(a > 1, 7, a)),
    "squeeze": (lambda x: x.squeeze(), lambda a: a.squeeze()),
    "squeeze one": (lambda x: x.squeeze(-1), lambda a: a.squeeze(-1)),
    "expand_dims": (lambda x: x.expand_dims(1), lambda a: np.expand_dims(a, 1)),
    "unsqueeze": (lambda x: x.unsqueeze(-1), lambda a: a[..., None]),
    "swapaxes": (lambda x: x.swapaxes(0, 2), lambda a: a.swapaxes(0, 2)),
    "permute": (lambda x: x.permute(2, 0, 1), lambda a: a.transpose(2, 0, 1)),
    "view": (lambda x: x.view(2, -1), lambda a: a.reshape(2, -1)),
    "view of a tuple": (lambda x: x.view((6,)), lambda a: a.reshape(6)),
    "flatten": (lambda x: x.flatten(), lambda a: a.reshape(6)),
    "flatten samples": (lambda x: x.flatten(1), lambda a: a.reshape(3, 2)),
    "flatten front": (lambda x: x.flatten(0, 1), lambda a: a.reshape(6, 1)),
    "flatten one": (lambda x: x.flatten(1, 1), lambda a: a),
    "broadcast_to": (lambda x: x.broadcast_to((3, 2, 4)), lambda a: np.broadcast_to(a, (3, 2, 4))),
    "broadcast_to ints": (lambda x: x.broadcast_to(-1, 2, 4), lambda a: np.broadcast_to(a, (3, 2, 4))),
    "tile": (lambda x: x.tile((1, 2, 3)), lambda a: np.tile(a, (1, 2, 3))),
    "tile ints": (lambda x: x.tile(2, 1, 1), lambda a: np.tile(a, (2, 1, 1))),
    "repeat": (lambda x: x.repeat(2, 1), lambda a: a.repeat(2, 1)),
    "repeat all": (lambda x: x.repeat(3), lambda a: a.repeat(3)),
    "split": (lambda x: x.split(2)[1], lambda a: a[2:]),
    "chunk": (lambda x: x.chunk(2, 1)[1], lambda a: a[:, 1:]),
    "take": (lambda x: x.take([2, 0], 0), lambda a: a.take([2, 0], 0)),
    "copy": (lambda x: x.copy(), lambda a: a),
    "bool": (lambda x: (x - 0.5).bool(), lambda a: (a - 0.5).astype(bool)),
    "int": (lambda x: x.int(), lambda a: a.astype(np.int32)),
    "long": (lambda x: x.long(), lambda a: a.astype(np.int64)),
    "half": (lambda x: x.half(), lambda a: a.astype(np.float16)),
    "float": (lambda x: x.int().float(), lambda a: np.trunc(a)),
    "double": (lambda x: x.double(), lambda a: a.astype(np.float64)),
    "to": (lambda x: x.to(np.float16), lambda a: a.astype(np.float16)),
    "in place": (lambda x: (-x).add_(1).mul_(2).clamp_(-4, 1), lambda a: ((1 - a) * 2).clip(-4, 1)),
    "in place, filled": (lambda x: (x * 1).zero_() + (x * 1).fill_(3) * (-x).copy_(x), lambda a: 3 * a),
    "adjoint": (lambda x: x.mT + x.adjoint(), lambda a: 2 * a.swapaxes(1, 2)),
    "new_full": (lambda x: x * x.new_full((2, 1), 3) + x.new_ones((2, 1)) + x.new_zeros((1,)), lambda a: 3 * a + 1),
}
NUMBERS = ("argsort", "max with")  # int32 as in MindSpore, int64 in numpy; argmax and argmin are int64 in both


@pytest.mark.quick(40)
@pytest.mark.parametrize("name", METHODS)
def test_methods_give_what_numpy_gives_and_are_recorded_while_a_network_is_traced(name):
    method, expected = METHODS[name]
    ours, want = method(Tensor(SPACED)).asnumpy(), np.asarray(expected(SPACED))
    dtype = "int32" if name.startswith(NUMBERS) else str(want.dtype)
    np.testing.assert_allclose(ours, want, rtol=1e-6)
    assert (ours.shape, ours.dtype) == (want.shape, dtype)
    traced = (lambda x: method(x) * 1) if name == "copy" else method
    graph = trace_network(traced, [("x", SPACED.shape, "float32")]).graph
    assert (graph.shapes()[graph.outputs[0]], graph.dtypes()[graph.outputs[0]]) == (want.shape, dtype)


def test_flattening_samples_is_the_operator_that_can_be_cut():
    graph = trace_network(lambda x: x.flatten(1), [("x", (4, 2, 3), "float32")]).graph
    assert [n.op_class for n in graph.nodes] == ["Flatten"]


def test_a_copy_is_another_array_through_which_gradients_flow():
    p = Parameter(Tensor(A), name="w")
    copied = p.copy()
    assert not np.shares_memory(copied.asnumpy(), p.asnumpy())
    np.testing.assert_array_equal(gradients(ops.reduce_sum(copied * 3.0), [p])[0], np.full(A.shape, 3.0))
    assert Tensor(2.5).copy().item() == 2.5


def test_a_change_in_place_counts_from_then_on_and_keeps_gradient_and_dtype():
    p, before = Parameter(Tensor(A), name="w"), Tensor(A)
    doubled = p * 2.0
    squared = doubled * doubled
    assert doubled.mul_(p) is doubled  # 2 w^2 from now on; squared is still 4 w^2
    np.testing.assert_array_equal(gradients(ops.reduce_sum(doubled + squared), [p])[0], 12 * A)
    assert before.half().add_(Tensor(B)).dtype == np.float16
    with pytest.raises(ShapeError, match=r"div_: float32 elements for a tensor of int64.*Write x = x\.div"):
        Tensor([1, 2]).div_(2)
    with pytest.raises(ShapeError):
        Tensor([1.0]).add_(Tensor(B))  # three elements do not fit into one


def test_what_a_tensor_says_of_its_form():
    x = Tensor(SPACED)
    assert x.stride() == (2, 1, 1) and x.stride(-3) == 2 and x.is_contiguous() and not x.is_complex()
    kinds = [(x.to(d).is_floating_point(), x.to(d).is_signed()) for d in ("float16", "int8", "uint8", "bool")]
    assert kinds == [(True, True), (False, True), (False, False), (False, False)]


def test_elements_as_python_numbers():
    assert Tensor([[1, 2], [3, 4]]).tolist() == [[1, 2], [3, 4]]


@each_of(
    ("call", "words"),
    (lambda x: x.repeat((2, 1)), "repeats=.*ops.tile"),
    (lambda x: x.flatten(2), "flatten: start_dim=2"),
    (lambda x: x.flatten(1, 0), "start_dim=1 is after end_dim=0"),
    (lambda x: x.var(axes=0), "var: unknown argument 'axes'"),
    (lambda x: x.argmax(0, dim=1), "argmax: axis and dim"),
    (lambda x: x.stride(2), "stride: dim=2"),
    (lambda x: x.copy_(3), "copy_: src=3"),
)
def test_methods_refuse_in_words(call, words):
    with pytest.raises(ShapeError, match=words):
        call(Tensor(A))


@each_of(("value", "kind"), (-1, ValueError), (1.0, TypeError), ("1", TypeError), (True, TypeError), (None, TypeError))
def test_an_invalid_fusion_id_is_refused_and_the_old_one_stays(value, kind):
    p = Parameter(Tensor(A), name="w")
    assert p.comm_fusion == 1
    p.comm_fusion = 2
    with pytest.raises(kind, match=r"Parameter 'w': comm_fusion=.*An int, at least 0"):
        p.comm_fusion = value
    assert p.comm_fusion == 2


@pytest.fixture
def settings():
    yield
    context.reset_auto_parallel_context()
    context.reset_context()


def test_a_fusion_id_in_pynative_auto_parallel_is_refused(settings):
    """MindSpore, Parameter.comm_fusion: RuntimeError."""
    p = Parameter(Tensor(A), name="w")
    context.set_context(mode=PYNATIVE_MODE)
    context.set_auto_parallel_context(parallel_mode="auto_parallel")
    with pytest.raises(RuntimeError, match="PyNative mode with parallel_mode='auto_parallel'"):
        p.comm_fusion = 2


@pytest.mark.parametrize("flag", ["requires_grad", "layerwise_parallel", "parallel_optimizer"])
def test_flags_of_a_parameter_are_bools(flag):
    with pytest.raises(TypeError, match=f"{flag}=1. True or False"):
        Parameter(Tensor(A), name="w", **{flag: 1})


def test_a_clone_is_a_parameter_of_its_own():
    p = Parameter(Tensor(A), name="w", requires_grad=False, layerwise_parallel=True)
    p.comm_fusion = 3
    same, zeros = p.clone(), p.clone("zeros")
    p.set_data(2 * A)
    np.testing.assert_array_equal(same.asnumpy(), A)
    np.testing.assert_array_equal(zeros.asnumpy(), np.zeros_like(A))
    for copied in (same, zeros):
        assert (copied.name, copied.requires_grad) == ("w", False)
        assert (copied.layerwise_parallel, copied.comm_fusion) == (True, 3)


def test_a_value_is_that_of_the_moment():
    p = Parameter(Tensor(A), name="w")
    value = p.value()
    p.set_data(2 * A)
    np.testing.assert_array_equal(value.asnumpy(), A)


def test_initial_values_can_be_drawn_at_once():
    p = Parameter(initializer("normal", [2, 3]), name="w")
    assert p.init_data() is p
    drawn = initializer(Normal(1.0), [2, 3]).init_data()
    assert isinstance(drawn, Tensor) and drawn.shape == (2, 3) and np.unique(drawn.asnumpy()).size == 6


def test_a_parameter_keeps_what_a_script_notes_at_it():
    """As in MindSpore; it was an AttributeError."""
    w = Parameter(np.ones(2, np.float32), "w")
    assert not w.unique
    w.unique = w.of_experts = True
    assert copy.deepcopy(w).of_experts and pickle.loads(pickle.dumps(w)).unique
    slips = {"paralel_optimizer": "parallel_optimizer", "require_grad": "requires_grad", "comm_fusoin": "comm_fusion"}
    for slip, meant in slips.items():
        with pytest.raises(ArgumentError, match=f"Parameter 'w'.*'{slip}'.*'{meant}'"):
            setattr(w, slip, False)
