"""Every operator's own examples, run at once: result against inference, gradient against finite differences."""

from collections import defaultdict

import numpy as np
import pytest

from parallel_lab import ShapeError, nn, ops
from parallel_lab.catalog.nn.custom import PrimitiveWithInfer, bprop_getters, prim_attr_register
from parallel_lab.nn.tensor.autograd import gradients
from parallel_lab.nn.tensor.own_gradient import OwnGradient
from parallel_lab.nn.tensor.parameter import Parameter
from parallel_lab.nn.tensor.tensor import Tensor
from parallel_lab.ops import OPS, elementwise
from parallel_lab.ops.machine.opdef import OpDef, Results
from parallel_lab.ops.machine.registry import case
from tests.crossed import each_of
from tests.ops.test_battery import has_rule

# Attributes of optimizers' update rules.
ROOTS = {"low": 0.5, "eps": 1e-3}
UPDATES = {
    "descend": (case((4, 6), (4, 6), ()),),
    "moving_mean": (case((4, 6), (4, 6), keep=0.9, add=0.1),),
    "moving_square": (case((4, 6), (4, 6), keep=0.9, add=0.1),),
    "moving_root_mean": (case((4, 6), (4, 6), (4, 6), (), keep=0.9, **ROOTS),),
    "moving_deviation_mean": (case((4, 6), (4, 6), (4, 6), (4, 6), (), keep=0.9, **ROOTS),),
    "descend_ahead": (case((4, 6), (4, 6), (4, 6), (), keep=0.9, add=0.1),),
    "descend_by_root": (case((4, 6), (4, 6), (4, 6), (), **ROOTS),),
    "descend_decayed": (case((4, 6), (4, 6), (4, 6), (), decay=0.1, **ROOTS),),
}


class Twice(PrimitiveWithInfer):
    """An operator of the user's own, in float64 whatever it is given."""

    @prim_attr_register
    def __init__(self):
        pass

    def infer_shape(self, x):
        return x

    def infer_dtype(self, x):
        return np.dtype("float64")

    def __call__(self, x):
        return ops.cast(x, "float64") * 2.0


@bprop_getters.register(Twice)
def gradient_of_twice(self):
    return lambda x, out, dout: (dout * 2.0,)


TWICE, SAME = Twice(), OwnGradient("Same", lambda values, gradients: list(gradients))
# Operators whose declaration has no example, because no strategy applies to them, and that no gradient rule below uses.
SPLIT = {"low": 0.5, "ints": {3: 6}, "classes": 6}
EXTRA = defaultdict(
    tuple,
    reshape=(case((16, 8), shape=(4, -1)), case((4, 6), shape=(2, 3, 4))),
    divide_by=(case((4, 6), count=8),),
    strided_slice_grad=(case((4, 6), shape=(16, 6), dim=0),),
    count_nonfinite=(case((4, 6)),),
    choose=(case((), (4, 6), (4, 6), bools={0}),),
    norm_ratio=(case((), ()),),
    first_place=(case((4, 6), (4,), axis=1, keep_dims=False, output_type="int32"),),
    **UPDATES,
    exp_sums=(case((4, 6), (4,)),),
    split_losses=(case((4, 6), (4,), (4,), (4,), **SPLIT),),
    exp_and_weight_sums=(
        case((4, 6, 2), (4, 2), (4, 2), (6,), ints={2: 6}, classes=6, ignore_index=1, label_smoothing=0.1),
    ),
    split_weighted_losses=(
        case((4, 6, 2), (4, 2), (2, 4, 2), (4, 2), (6,), **SPLIT, ignore_index=1, label_smoothing=0.1),
    ),
    moving_statistic=(case((4, 3, 2), (2, 3), (3,), low=0.5, count=8, variance=False, share=0.1, factor=1.0),),
    custom=(case((4, 6), called="Twice", number=TWICE.number, results=((4, 6),), dtypes=("float64",), several=False),),
    own_gradient=(case((4, 6), called="Same", number=SAME.number, count=1, several=False),),
    fill=(case(shape=(3, 4), value=2.5, dtype="float32"), case(shape=(), value=1, dtype="int64")),
)


def has_gradient(op):
    """By a rule of its own, or through the operators it is made of; not numbers of elements, nor what is written."""
    counts = "output_type" in op.options
    return has_rule(op) and (not op.writes if op.expand is None else not counts)


CASES = [
    pytest.param(op, c, id=f"{op.name}-{i}") for op in OPS.values() for i, c in enumerate([*op.cases, *EXTRA[op.name]])
]
WITH_GRADIENT = [p for p in CASES if has_gradient(p.values[0])]
# their gradient for the logits is that through the sums of their exponentials too, which are operands here; of the
# results of flash_attention the last has one (test_flash_attention.py), of alignment_loss the first (test_functions.py)
THROUGH_OTHERS = ("split_losses", "split_weighted_losses", "flash_attention", "alignment_loss")


def run(op, values, case_):
    """The operator's result; of several, all of them in one row, so that every test sees one array."""
    attrs = dict(case_.attrs)
    if op.writes:  # a Parameter, which takes the result
        values = [Parameter(Tensor(np.array(values[0]))), *values[1:]]
    out = op(*values, **attrs) if op.variadic else op(**dict(zip(op.tensors, values, strict=True)), **attrs)
    if not isinstance(out, tuple):
        return out
    floats = [o for o in out if np.asarray(o).dtype.kind == "f"] or list(out)
    return ops.concat([ops.reshape(o, (-1,)) for o in floats], axis=0)


def watched(arrays):
    """Float arrays as Parameters, integers as Tensors."""
    return [Parameter(Tensor(a)) if a.dtype.kind == "f" else Tensor(a) for a in arrays]


@pytest.fixture
def computed(monkeypatch):
    """Names of the operators that ran; each result is compared with what inference says about it."""
    seen = set()
    compute = OpDef.compute

    def checked(self, *arrays, **attrs):
        out = compute(self, *arrays, **attrs)
        made = out if isinstance(out, tuple) else (out,)
        arrays = [np.asarray(a, made[0].dtype if isinstance(a, float) else None) for a in arrays]
        found = self.infer(tuple(a.shape for a in arrays), tuple(str(a.dtype) for a in arrays), attrs)
        given = Results(tuple(o.shape for o in made), tuple(str(o.dtype) for o in made), isinstance(out, tuple))
        assert given == found, f"{self.name} of {[(a.shape, a.dtype) for a in arrays]}"
        seen.add(self.name)
        return out

    monkeypatch.setattr(OpDef, "compute", checked)
    return seen


@pytest.mark.quick(20)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("op", "case_"), CASES)
def test_result_has_the_inferred_shape_and_dtype(op, case_, dtype, rng, computed):
    arrays = case_.arrays(rng, dtype)
    out = run(op, [Tensor(a) for a in arrays], case_) if arrays else run(op, arrays, case_)
    if op.expand is not None:  # its parts were looked at as they ran
        attrs, dtypes = {**op.default_attrs, **dict(case_.attrs)}, tuple(str(a.dtype) for a in arrays)
        found = op.infer(case_.shapes, dtypes, attrs)
        results = op(*arrays, **dict(case_.attrs)) if found.several else (out,)
        assert found[:2] == (tuple(r.shape for r in results), tuple(str(r.dtype) for r in results))
    else:
        assert op.name in computed
    assert np.asarray(out).size > 0


@pytest.mark.quick(20)
@pytest.mark.parametrize(("op", "case_"), CASES)
def test_arrays_and_tensors_give_the_same_result(op, case_, rng):
    arrays = case_.arrays(rng, np.float32)
    on_arrays = run(op, arrays, case_)
    on_tensors = run(op, [Tensor(a) for a in arrays], case_)
    np.testing.assert_array_equal(on_arrays, np.asarray(on_tensors))


@pytest.mark.quick(30)
@pytest.mark.parametrize(("op", "case_"), [p for p in WITH_GRADIENT if p.values[0].name not in THROUGH_OTHERS])
def test_gradient_equals_the_finite_difference_along_a_random_direction(op, case_, rng):
    arrays = case_.arrays(rng)
    tensors = watched(arrays)
    out = run(op, tensors, case_)
    seed = rng.normal(size=out.shape)
    directions = [rng.normal(size=a.shape) if a.dtype.kind == "f" else np.zeros(a.shape, a.dtype) for a in arrays]
    step = 1e-5  # central difference: error about step^2 from the third derivative, 1e-16 / step from rounding
    up = run(op, [a + step * d if a.dtype.kind == "f" else a for a, d in zip(arrays, directions, strict=True)], case_)
    down = run(op, [a - step * d if a.dtype.kind == "f" else a for a, d in zip(arrays, directions, strict=True)], case_)
    slopes = seed * (up - down) / (2 * step)
    along = [g * d for g, d in zip(gradients(out, tensors, seed), directions, strict=True)]
    assert sum(a.sum() for a in along) == pytest.approx(slopes.sum(), abs=1e-8 * (1 + np.abs(slopes).sum()))
    assert np.abs(slopes).sum() > 0


@pytest.mark.quick(20)
@pytest.mark.parametrize(("op", "case_"), WITH_GRADIENT)
def test_gradients_have_shape_and_dtype_of_their_operands(op, case_, rng, computed):
    tensors = watched(case_.arrays(rng, np.float32))
    out = run(op, tensors, case_)
    found = gradients(out, tensors, np.ones(out.shape, out.dtype))
    assert [(g.shape, g.dtype) for g in found] == [(t.shape, t.dtype) for t in tensors]


def test_every_operator_is_reached_by_an_example_or_by_a_gradient_rule(rng, computed):
    for op, case_ in (p.values for p in CASES):
        tensors = watched(case_.arrays(rng))
        out = run(op, tensors, case_)
        if has_gradient(op):
            gradients(out, tensors)
    # only plans have them: tests/graph, tests/ops/test_context_attention.py
    compiled = {"accumulate", "branch", "loop", "micro_batch_rows", "micro_batch_rows_grad"}
    compiled |= {"attention_block", "attention_block_grad", "added_to"}
    compiled |= {"pair_block", "pair_block_grad", "pair_merge", "added_there"}
    assert computed == {name for name, op in OPS.items() if op.expand is None} - compiled, (
        "give the operator an example, here or in its declaration"
    )


@pytest.mark.parametrize("name", UPDATES)
def test_update_operators_give_in_pieces_the_bits_of_the_whole(name, rng, monkeypatch):
    """Pieces of 5 elements, scattered operands: an update beyond the cache must not depend on where its slices end."""
    (given,) = UPDATES[name]
    arrays, attrs = given.arrays(rng, np.float32), dict(given.attrs)
    whole = OPS[name].compute(*arrays, **attrs)
    monkeypatch.setattr(elementwise, "PIECE", 5)
    np.testing.assert_array_equal(OPS[name].compute(*arrays, **attrs), whole, strict=True)
    turned = [np.asarray(a, order="F") for a in arrays]
    np.testing.assert_array_equal(OPS[name].compute(*turned, **attrs), whole, strict=True)


GIVEN = np.ones((4, 3), np.float32)
GIVEN_TEXT, EMPTY_TEXT = r"a tensor of shape \(4, 3\)", r"a tensor of shape \(0, 3\)"
SPARSE, EXPANDED = nn.SoftmaxCrossEntropyWithLogits(sparse=True), nn.SoftmaxCrossEntropyExpand(sparse=True)


def one_hot(indices, depth):
    return ops.one_hot(indices, depth, 1.0, 0.0)


def conv(x):
    return ops.conv2d(x, np.ones((1, 1, 0, 1)))


def layer_norm(x, gamma):
    return ops.layer_norm(x, 0, gamma, gamma)


WRONG = {
    "reshape size": (lambda x: ops.reshape(x, (5, 2)), r"Reshape: shape \(5, 2\).*12 elements"),
    "cast": (lambda x: ops.cast(x, "number"), "Cast: dtype='number'"),
    "one-hot axis": (lambda x: ops.OneHot(axis=4)(np.arange(3), 3, 1.0, 0.0), "OneHot: axis=4.*-2 to 1"),
    "one-hot depth": (lambda x: one_hot(np.arange(3), 2.5), "OneHot: depth=2.5"),
    "one-hot floats": (lambda x: one_hot(x, 3), r"OneHot: the indices \(labels\) are float32.*must be ints"),
    "tensor as attribute": (lambda x: ops.reduce_sum(x, Tensor(1.0)), "ReduceSum: attribute axis is a tensor"),
    "sparse labels": (lambda x: SPARSE(x, x[:, 0]), "labels.* are float32.*must be ints"),
    "sparse labels, expanded": (lambda x: EXPANDED(x, x[:, 0]), "are float32.*must be ints"),
    # numpy's ValueError, or its broadcasting, came through for plain arrays
    "sum of shapes": (lambda x: ops.addn(x, x[:1]), r"AddN: operand 1 has 1 elements in dim 0"),
    "bias": (lambda x: ops.bias_add(x, x[:, 0]), r"BiasAdd: operand 1 has 4 elements"),
    # numpy's TypeError for bools
    # ValueError and ZeroDivisionError of reductions without an element
    "softmax of nothing": (lambda x: ops.softmax(x[:0], axis=0), "Softmax: axis=0.*A dim with elements"),
    "log-softmax of nothing": (lambda x: ops.log_softmax(x[:0], axis=0), "LogSoftmax: axis=0"),
    "layer norm of nothing": (lambda x: layer_norm(x[:, :0], x[0, :0]), r"LayerNorm: x has shape \(4, 0\)"),
    "convolution with nothing": (
        lambda x: conv(ops.reshape(x, (1, 1, 4, 3))),
        r"Conv2D: a weight of shape \(1, 1, 0, 1\)",
    ),
    # numpy's None is float64, and its words for text are its own
    "cast to None": (lambda x: ops.cast(x, None), "Cast: dtype=None"),
    "slope": (lambda x: ops.leaky_relu(x, negative_slope="a"), "LeakyReLU: negative_slope='a'. A finite number"),
    "alpha": (lambda x: ops.elu(x, alpha=None), "Elu: alpha=None. A finite number"),
    "pad value": (lambda x: ops.pad(x, (1, 1), value="a"), "Pad: value='a'. A number"),
    "pad int": (lambda x: ops.pad(x, 1), r"pad: padding 1. Pairs of ints"),
    "squeeze twice": (lambda x: ops.squeeze(x[:1], axis=(0, -2)), "Squeeze: .*names a dim twice"),
    # an operator that declares no check of its attributes: numpy's words do not say which one is wrong
    "attribute": (
        lambda x: OPS["reduce_sum"].attempt([np.asarray(x)], {"axis": None, "keep_dims": "x"}),
        "ReduceSum: it cannot be computed .* with .*'keep_dims': 'x'",
    ),
    "integer power": (
        lambda x: ops.power(np.ones(3, np.int64), np.asarray(-1)),
        "Pow: it cannot be computed for int64 .*negative integer powers",
    ),
}


@pytest.mark.parametrize("wrap", [Tensor, np.asarray], ids=["tensor", "array"])
@pytest.mark.parametrize("how", WRONG)
def test_what_an_operator_cannot_take_is_refused_with_its_name(how, wrap):
    call, words = WRONG[how]
    with pytest.raises(ShapeError, match=words):
        call(wrap(GIVEN))


@pytest.mark.parametrize("given", [[1, -1], (1.0,), -2.0, 3, True, [[1], [2, 3]]], ids=repr)
def test_a_list_or_number_is_not_a_tensor(given):
    """MindSpore: TypeError. An array is one: this package computes with numpy."""
    with pytest.raises(
        TypeError, match=r"ReLU: operand 0 \(x\) is .*A Tensor or an array of numbers.*Tensor\(\.\.\.\)"
    ):
        ops.relu(given)


def test_a_number_is_combined_with_a_tensor_where_they_broadcast():
    np.testing.assert_array_equal(ops.add(np.float32([1, 2]), 1), [2, 3])
    assert ops.add(1, 2) == 3 and ops.maximum(0, np.float32(2)) == 2
    with pytest.raises(
        ShapeError, match=r"Add: operand 1 \(y\) is \[1\]\. A Tensor or an array of numbers, or a number"
    ):
        ops.add(np.float32([1, 2]), [1])


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint8", "float16"])
@each_of(
    "call",
    lambda x: ("softmax", (x,), {"axis": -1}),
    lambda x: ("softmax_expand", (x,), {"axis": 0}),
    lambda x: ("softmax_cross_entropy", (x, x), {}),
    lambda x: ("sparse_softmax_cross_entropy", (x, np.zeros(4, np.int32)), {}),
    ids=["softmax", "expanded", "cross-entropy", "sparse"],
)
def test_softmaxes_of_integers_are_float32_as_inference_says(call, dtype):
    """They were float64 (float16 for uint8) where a plan said int32."""
    name, operands, attrs = call(np.ones((4, 3), dtype))
    out = OPS[name](*operands, **attrs)
    inferred = OPS[name].infer(
        tuple(x.shape for x in operands), tuple(str(x.dtype) for x in operands), {**OPS[name].default_attrs, **attrs}
    )
    outs = out if inferred.several else (out,)
    assert (tuple(o.shape for o in outs), tuple(str(o.dtype) for o in outs)) == inferred[:2]
    assert {o.dtype for o in outs} == {np.dtype("float16" if dtype == "float16" else "float32")}


def test_one_hot_takes_the_dtype_of_both_values():
    """Inference said float32, that of the first, where numpy gave float64."""
    expected = Results(((2, 3),), ("float64",))
    assert OPS["one_hot"].infer(((2,), (), ()), ("int32", "float32", "float64"), {"depth": 3, "axis": -1}) == expected
