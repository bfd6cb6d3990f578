"""Operators under other classes, with a call of their own (`registry.form`), and strategies that leave something out:
values against numpy, at once and compiled with a strategy; refusals.
"""

import numpy as np
import pytest

from parallel_lab import Layout, ShapeError, StrategyError, Tensor, compile, ops
from parallel_lab.layout.named_layout import LayoutStrategy
from tests.crossed import each_of
from tests.nets import cell
from tests.ops.compiled import results, simulated

X = np.arange(96.0).reshape(8, 4, 3) % 7 - 3
W = np.arange(6.0).reshape(2, 3)
MEAN, VARIANCE = X.mean(-1, keepdims=True), X.var(-1, keepdims=True)
ROWS, LAST = ((8, 1, 1),), ((2, 4, 1),)

FORMS = {
    "Slice": (ops.Slice(), ((0, 1, 0), (8, -1, 2)), ROWS, [X[:, 1:, :2]]),
    "SliceExt": (ops.SliceExt(), (1, 1, 4, 2), ROWS, [X[:, 1:4:2]]),
    "SplitV": (ops.SplitV([1, -1], 2, 2), (), LAST, [X[..., :1], X[..., 1:]]),
    "SplitWithSize": (ops.SplitWithSize(), ((3, 1), 1), ROWS, [X[:, :3], X[:, 3:]]),
    "SplitTensor": (ops.SplitTensor(), (2, -1), LAST, [X[..., :2], X[..., 2:]]),
    "PadV3": (ops.PadV3(), (Tensor([1, 2]), 5.0), LAST, [np.pad(X, ((0, 0), (0, 0), (1, 2)), constant_values=5)]),
    "PadV3 apart": (
        ops.PadV3(paddings_contiguous=False),
        ((1, 0, 0, 2), None),
        ROWS,
        [np.pad(X, ((0, 0), (0, 2), (1, 0)))],
    ),
    "MirrorPad": (ops.MirrorPad(), (((0, 0), (1, 0), (0, 0)),), ROWS, [np.pad(X, ((0, 0), (1, 0), (0, 0)), "reflect")]),
    "SumExt": (ops.SumExt(), ((0, -1), True), LAST, [X.sum((0, 2), keepdims=True)]),
    "SumExt of all": (ops.SumExt(), (), LAST, [X.sum()]),
    "MeanExt": (ops.MeanExt(), (1,), LAST, [X.mean(1)]),
    "ProdExt": (ops.ProdExt(), (2,), ROWS, [X.prod(2)]),
    "Max": (ops.Max(), (), LAST, [X.max()]),
    "Min": (ops.Min(), (), LAST, [X.min()]),
    "MaxDim": (ops.MaxDim(), (2, True), LAST, [X.max(2, keepdims=True), X.argmax(2)[..., None]]),
    "MinDim": (ops.MinDim(), (1,), ROWS, [X.min(1), X.argmin(1)]),
    "ArgMaxExt": (ops.ArgMaxExt(), (1,), ROWS, [X.argmax(1)]),
    "SortExt": (ops.SortExt(), (1, True), ROWS, [-np.sort(-X, 1), np.argsort(-X, 1, "stable")]),
    "TopkExt": (ops.TopkExt(), (2,), LAST, [-np.sort(-X, 2)[..., :2], np.argsort(-X, 2, "stable")[..., :2]]),
    "CumsumExt": (ops.CumsumExt(), (1,), ROWS, [X.cumsum(1)]),
    "CumProd": (ops.CumProd(), (1,), ROWS, [X.cumprod(1)]),
    "Cummax": (ops.Cummax(1), (), ROWS, [np.maximum.accumulate(X, 1), None]),
    "Tile": (ops.Tile(), ((1, 4, 2),), ((2, 4, 1),), [np.tile(X, (1, 4, 2))]),
    "Tile in front": (ops.Tile(), ((4, 1, 1, 2),), ((2, 2, 1, 2),), [np.tile(X, (4, 1, 1, 2))]),
    "masks": (
        ops.StridedSlice(begin_mask=1, end_mask=2, new_axis_mask=4, shrink_axis_mask=8),
        ((5, 1, 0, 2), (8, 2, 0, 3), (1, 2, 1, 1)),
        ROWS,
        [X[:, 1::2, None, 2]],
    ),
    "Copy": (ops.Copy(), (), LAST, [X]),
    "Dense": (ops.Dense(), (Tensor(W), Tensor(W[:, 0])), ((2, 2, 1), (2, 1)), [X @ W.T + W[:, 0]]),
    "LayerNormExt": (
        ops.LayerNormExt(),
        ((3,),),
        (*LAST, (1,), (1,)),
        [(X - MEAN) / np.sqrt(VARIANCE + 1e-5), MEAN, 1 / np.sqrt(VARIANCE + 1e-5)],
    ),
    "L2Loss": (ops.L2Loss(), (), LAST, [(X * X).sum() / 2]),
}


def one(prim, given, strategy):
    """One operator, sharded."""
    return cell(lambda net, x: net.prim(x, *given), prim=prim.shard(strategy))


@pytest.mark.quick(9)
@pytest.mark.parametrize("name", FORMS)
def test_a_form_gives_numpys_values_at_once_and_split(name):
    prim, given, strategy, expected = FORMS[name]
    out = prim(X, *given)
    for found in (out if isinstance(out, tuple) else (out,), results(one(prim, given, strategy), X)):
        for ours, want in zip(found, expected, strict=True):
            if want is not None:
                np.testing.assert_allclose(ours, want, atol=1e-14, err_msg=name)


def test_the_plan_has_the_class_that_was_called_and_its_strategy():
    plan, _ = simulated(one(ops.SumExt(), (1,), LAST), X)
    (node,) = plan.graph.nodes
    assert (node.op_class, node.op, node.strategy) == ("SumExt", "reduce_sum", LAST)


def test_another_dtype_is_made_where_the_operand_lies():
    """Wrong would be a Cast with a strategy of its own, and messages between the two."""
    plan, sim = simulated(one(ops.SumExt(), (0, False, "float64"), ((1, 4, 1),)), X.astype(np.float32))
    assert [(n.op_class, n.strategy) for n in plan.graph.nodes] == [("Cast", ((1, 4, 1),)), ("SumExt", ((1, 4, 1),))]
    assert sim.full(plan.outputs[0]).dtype == np.float64


def test_only_slices_of_rows_are_taken_of_a_ranks_own():
    """skip_redistribution on any other operator was a KeyError: 'strides'."""
    prim = ops.SplitTensor().add_prim_attr("skip_redistribution", True)
    np.testing.assert_array_equal(results(one(prim, (2, 1), ROWS), X)[1], X[:, 2:])


def test_each_rank_holds_whole_copies_of_what_is_tiled():
    """4 copies of (4, 2) among 2 ranks: 2 copies each; a copy itself is never split."""
    net = one(ops.Tile(), ((4, 1),), ((2, 4),))
    x = np.arange(8.0).reshape(2, 4)
    plan, sim = simulated(net, x)
    assert sim.value(plan.outputs[0], 0).tolist() == np.tile(x, (2, 1))[:, :1].tolist()
    with pytest.raises(StrategyError, match=r"splits position 0 of input 0 8 ways, but its multiple is 4"):
        compile(one(ops.Tile(), ((4, 1),), ((8, 1),)), x, device_num=8, dataset_strategy="full_batch")
    with pytest.raises(StrategyError, match=r"has 2 counts for input 0, which has 3"):
        compile(one(ops.Tile(), ((4, 1, 1),), ((1, 4),)), x, device_num=8, dataset_strategy="full_batch")


# ---- strategies that leave something out ----


def two(prim, *numbers):
    """An operator of the input, its double, and a number."""
    return cell(lambda net, x: net.prim(x, x > 0 if prim.name == "MaskedFill" else x * 2.0, *numbers), prim=prim)


ROW = ((8, 1, 1), (8, 1, 1))
LAYOUT = Layout((8,), ("dp",))("dp", "None", "None")


@each_of(
    ("prim", "strategy", "numbers", "expected"),
    (ops.MaskedFill, ROW, (2.0,), np.where(X > 0, 2, X)),
    (ops.MaskedFill, (*ROW, ()), (2.0,), np.where(X > 0, 2, X)),
    (ops.MaskedFill, (LAYOUT, LAYOUT), (2.0,), np.where(X > 0, 2, X)),
    (ops.Lerp, ROW, (0.5,), 1.5 * X),
    (ops.Lerp, (*ROW, (8, 1, 1)), (Tensor(np.full(X.shape, 0.5)),), 1.5 * X),
    (lambda: ops.Concat(1), (ROW,), (), np.concatenate([X, 2 * X], 1)),
    (lambda: ops.Stack(1), ((LAYOUT, LAYOUT),), (), np.stack([X, 2 * X], 1)),
    ids=[*("masked", "masked 3", "masked layouts", "lerp", "lerp 3"), *("concat nested", "stack nested")],
)
def test_numbers_need_no_tuple_and_those_of_a_list_may_be_in_one(prim, strategy, numbers, expected):
    net = two(prim().shard(strategy), *numbers)
    plan, sim = simulated(net, X)
    np.testing.assert_array_equal(sim.full(plan.outputs[0]), expected)
    node = plan.graph.nodes[-1]
    per_input = node.strategy.counts if isinstance(node.strategy, LayoutStrategy) else node.strategy
    assert node.strategy_source == "user" and set(per_input) == {(8, 1, 1)}


@pytest.mark.parametrize("strategy", [((8, 1, 1),), (LAYOUT,)], ids=["counts", "layout"])
def test_a_list_has_a_tuple_for_each_of_its_tensors(strategy):
    """MindSpore: as many tuples as tensors. One for the whole list was taken."""
    with pytest.raises(StrategyError, match=r"has 1 .* but Concat has 2 inputs"):
        compile(two(ops.Concat(1).shard(strategy)), X, device_num=8, dataset_strategy="full_batch")


def test_a_tuple_of_a_tensor_that_broadcasts_is_still_asked_for():
    net = two(ops.Lerp().shard(ROW), Tensor(np.full(3, 0.5)))
    with pytest.raises(StrategyError, match="has 2 tuples, but Lerp has 3 inputs"):
        compile(net, X, device_num=8, dataset_strategy="full_batch")


# ---- losses and distances ----

P = np.random.default_rng(0).uniform(0.1, 0.9, (4, 6))
Q = np.log(np.random.default_rng(1).uniform(0.1, 0.9, (4, 6)))


def test_a_label_of_zero_has_no_divergence():
    assert ops.kl_div(np.zeros((1, 2)), np.array([[0.0, 1.0]]), "none").tolist() == [[0, 0]]


def test_cross_entropy_of_sigmoids_does_not_overflow():
    x, y = np.array([-800.0, 0.3, 800.0]), np.array([1.0, 0.25, 1.0])
    s = 1 / (1 + np.exp(-0.3))
    expected = [800, -0.25 * np.log(s) - 0.75 * np.log(1 - s), 0]
    np.testing.assert_allclose(ops.SigmoidCrossEntropyWithLogits()(x, y), expected)


def test_running_extremes_and_counted_differences():
    values, places = ops.cummax(np.array([1.0, 3.0, 3.0, 2.0]), 0)  # the last of equal elements
    assert (values.tolist(), places.tolist()) == ([1, 3, 3, 3], [0, 1, 2, 2])
    a, b = X[:5, 0], X[2:, 1]
    np.testing.assert_array_equal(ops.cdist(a, b, p=0.0), (a[:, None] != b).sum(-1))
    assert ops.Argmax(1, np.dtype("int64"))(X).dtype == ops.Argmax(1, "int64")(X).dtype == np.int64


def test_running_sums_in_another_dtype():
    found = ops.cumsum(X.astype(np.float32), 1, "float64", reverse=True)
    np.testing.assert_array_equal(found, X[:, ::-1].cumsum(1)[:, ::-1])
    assert found.dtype == np.float64


def test_products_in_pytorchs_words():
    a, b, v = P[:, :3], P[:3], P[0]
    np.testing.assert_allclose(ops.addmm(Q[:, :6], a, b, beta=2, alpha=0.5), 2 * Q + a @ b / 2)
    np.testing.assert_allclose(ops.addmv(Q[:, 0], P, v), Q[:, 0] + P @ v)
    np.testing.assert_allclose(ops.baddbmm(Q[None], a[None], b[None]), (Q + a @ b)[None])
    np.testing.assert_allclose(ops.linear(P, Q, v[:4]), P @ Q.T + v[:4])
    np.testing.assert_allclose(ops.Outer()(v, v[:2]), np.outer(v, v[:2]))
    assert ops.dot(v, Q[0]).item() == pytest.approx(v @ Q[0])


WRONG = {
    "size": (lambda: ops.Slice()(X, (0, 0, 0), (9, 1, 1)), r"Slice: begin \(0, 0, 0\) and size \(9, 1, 1\)"),
    "sizes": (lambda: ops.slice(X, (0, 0), (1, 1)), "slice: .*One int per dim in both"),
    "dim": (lambda: ops.SliceExt()(X, 3, 0, 1), "SliceExt: dim=3"),
    "narrow": (lambda: ops.narrow(X, 1, 3, 2), "narrow: start=3, length=2 for dim 1"),
    "num_split": (lambda: ops.SplitV([1, 2], 2, 3)(X), r"SplitV: size_splits=\(1, 2\) and num_split=3"),
    "split": (lambda: ops.SplitV([1, 3], 2, 2)(X), "Split.*Sizes that add up to 3"),
    "missing": (lambda: ops.SplitV([1, 2]), "SplitV: missing attribute 'split_dim'"),
    "two ellipses": (lambda: ops.StridedSlice(ellipsis_mask=3)(X, (0, 0), (1, 1), (1, 1)), "One bit at most"),
    "shrunk": (lambda: ops.StridedSlice(shrink_axis_mask=1)(X, (8,), (9,), (1,)), "from -8 to 7 for dim 0"),
    "too many": (lambda: ops.StridedSlice()(X, (0,) * 4, (1,) * 4, (1,) * 4), "At most one int per dim"),
    "p": (lambda: ops.cdist(P, P, p=-1.0), "Cdist: p=-1.0"),
    "rows": (lambda: ops.cdist(P, P[0]), r"Cdist: shapes \(4, 6\) and \(6,\)"),
    "arguments": (lambda: ops.SumExt()(), r"SumExt: got 0 arguments. SumExt\(\)\(input, dim, keepdim, dtype\)"),
    "vectors": (lambda: ops.dot(P, P), "dot: shapes"),
}


@pytest.mark.parametrize("how", WRONG)
def test_what_a_form_cannot_take_is_refused(how):
    call, words = WRONG[how]
    with pytest.raises(ShapeError, match=words):
        call()


def test_an_ellipsis_mask_is_refused_in_parallel_modes():
    """MindSpore, strided_slice_info: whatever the strategy. On one device it is Python's x[...]."""
    prim, given = ops.StridedSlice(ellipsis_mask=1), ((0, 2), (0, 0), (1, -1))
    np.testing.assert_array_equal(prim(X, *given), X[..., 2:0:-1])
    with pytest.raises(StrategyError, match="ellipsis_mask=1, which parallel modes do not take"):
        compile(one(prim, given, ROWS), X, device_num=8, dataset_strategy="full_batch")


@each_of(
    ("prim", "others", "expected"),
    (lambda: ops.BinaryCrossEntropy(), (), np.mean),
    (lambda: ops.BinaryCrossEntropy("sum"), (np.full((4, 6), 2.0),), lambda values: 2 * values.sum()),
    (lambda: ops.BinaryCrossEntropy(reduction="none"), (), np.array),
)
def test_the_class_of_a_loss_reduces_as_asked(prim, others, expected):
    """MindSpore: the mean by default. The class had no reduction, and asked for weights."""
    x = 1 / (1 + np.exp(-Q))
    values = -(P * np.log(x) + (1 - P) * np.log(1 - x))
    np.testing.assert_allclose(prim()(x, P, *others), expected(values))
    cut = prim().shard(((2, 2), (2, 2), *((2, 2) for _ in others)))
    made = results(losses(cut, P, *others), x)
    np.testing.assert_allclose(made[0], expected(values))


def losses(prim, *others):
    """A loss with known labels."""
    others = [Tensor(other) for other in others]
    return cell(lambda net, x: net.prim(x, *others), prim=prim)


def test_several_dims_of_indices_split_their_first_one_only():
    """MindSpore, onehot_info: (2, 4, 1) was taken."""
    numbers = (16, Tensor(1.0), Tensor(0.0))
    ids = np.arange(16).reshape(4, 4)
    np.testing.assert_array_equal(results(one(ops.OneHot(), numbers, ((4, 1, 1), (), ())), ids)[0], np.eye(16)[ids])
    with pytest.raises(StrategyError, match="splits dim 1 of the result 4 ways, but the indices have 2 dims"):
        compile(one(ops.OneHot(), numbers, ((1, 4, 1), (), ())), ids, device_num=8, dataset_strategy="full_batch")


def own_parts(prim, strategy):
    return prim.add_prim_attr("skip_redistribution", True).shard(strategy)


@each_of(
    ("prim", "given", "strategy"),
    (lambda: ops.Split(1, 2), (), ((2, 2, 1),)),
    (lambda: ops.Split(-2, 2), (), ((2, 2, 1),)),
    (ops.SplitTensor, (2, 1), ((2, 2, 1),)),
    (ops.SplitWithSize, ((2, 2), 1), ((2, 2, 1),)),
    (lambda: ops.SplitV((2, -1), 1, 2), (), ((1, 2, 1),)),
)
def test_each_rank_splits_its_own_part(prim, given, strategy):
    """MindSpore, skip_redistribution: the split dim may be split, and its elements lie in another order."""
    made = results(one(own_parts(prim(), strategy), given, strategy), X[:, :4])
    np.testing.assert_array_equal(made[0], X[:, [0, 2]])
    np.testing.assert_array_equal(made[1], X[:, [1, 3]])


def test_each_rank_joins_its_own_parts():
    prim = own_parts(ops.Concat(1), ((1, 2, 1),) * 2)
    both = np.concatenate([X[:, :4], 2 * X[:, :4]], 1)
    np.testing.assert_array_equal(results(two(prim), X[:, :4])[0], both[:, [0, 1, 4, 5, 2, 3, 6, 7]])


@each_of(
    ("begin", "end", "strategy", "kept"),
    ((0, 0), (8, 2), ((1, 2, 1),), [0, 2]),
    ((0, 2), (8, 4), ((2, 2, 1),), [1, 3]),
    ((0, -2), (8, 99), ((4, 2, 1),), [1, 3]),
)
def test_each_rank_slices_its_own_part(begin, end, strategy, kept):
    """MindSpore, strided_slice_info: begin and end are divided by the parts of the dim."""
    prim = own_parts(ops.StridedSlice(), strategy)
    np.testing.assert_array_equal(results(one(prim, (begin, end, (1, 1)), strategy), X)[0], X[:, kept])


@each_of(("begin", "stride", "why"), (0, 2, "0 to 4 are taken with stride 2"), (1, 1, "1 to 3 are taken"))
def test_a_rank_slices_whole_elements_with_stride_1(begin, stride, why):
    prim, bounds = ops.StridedSlice().add_prim_attr("skip_redistribution", True), ((0, begin), (8, 4 - begin))
    with pytest.raises(StrategyError, match=why):
        compile(one(prim, (*bounds, (1, stride)), ((1, 2, 1),)), X, device_num=8, dataset_strategy="full_batch")


def test_unequal_parts_of_a_split_dim_are_refused():
    prim = ops.SplitWithSize().add_prim_attr("skip_redistribution", True)
    with pytest.raises(StrategyError, match="works along that dim"):
        compile(one(prim, ((1, 3), 1), ((1, 2, 1),)), X[:, :4], device_num=8, dataset_strategy="full_batch")


@each_of("largest", True, False)
def test_the_largest_along_any_dim_are_one_operator(largest):
    """TopkExt along other dims was Sort and two slices, without the strategy it was given."""
    net = one(ops.TopkExt(), (2, 1, largest), ((8, 1, 1),))
    plan, sim = simulated(net, X)
    assert [(n.op_class, n.strategy) for n in plan.graph.nodes] == [("TopkExt", ((8, 1, 1),))]
    ordered = -np.sort(-X, 1) if largest else np.sort(X, 1)
    np.testing.assert_array_equal(sim.full(plan.outputs[0]), ordered[:, :2])


def test_a_sum_over_no_dims_is_skipped():
    """MindSpore, ReduceSum(skip_mode=True): axis (), the default, leaves x as it is; None is all dims as ever."""
    net = one(ops.ReduceSum(skip_mode=True), ((),), ROWS)
    np.testing.assert_array_equal(results(net, X)[0], X)
    assert ops.ReduceSum(skip_mode=True)(X, None).shape == ops.ReduceSum()(X, ()).shape == ()
    assert ops.ReduceSum(True, True)(X, 1).shape == (8, 1, 3)


def test_a_norm_is_at_least_epsilon():
    """MindSpore, LpNorm(epsilon=): the lower bound of the result."""
    x = np.array([[0.0, 0.0], [3.0, 4.0]], "float32")
    np.testing.assert_array_equal(ops.LpNorm(1, epsilon=0.5)(x), np.array([0.5, 5.0], "float32"))


def test_channels_last_take_a_bias():
    """MindSpore, BiasAdd(data_format="NHWC"): the keyword was unknown."""
    b = np.arange(3.0)
    np.testing.assert_array_equal(ops.BiasAdd("NHWC")(X, b), X + b)
    np.testing.assert_array_equal(ops.BiasAdd(data_format="NCHW")(X, np.arange(4.0)), X + np.arange(4.0)[:, None])


def test_numbers_stand_in_for_nan_and_infinity():
    x = np.array([1.0, np.nan, np.inf, -np.inf], "float32")
    np.testing.assert_array_equal(ops.NanToNum(0.5, 2.0, -3.0)(x), np.array([1.0, 0.5, 2.0, -3.0], "float32"))
    largest = np.finfo("float16").max
    np.testing.assert_array_equal(ops.NanToNum()(x.astype("float16")), np.array([1, 0, largest, -largest], "float16"))


def test_a_huber_loss_is_linear_beyond_delta():
    d = np.abs(X)
    expected = np.where(d <= 1.5, 0.5 * d**2, 1.5 * (d - 0.75))
    np.testing.assert_allclose(ops.huber_loss(X, 0 * X, "none", 1.5), expected)
    np.testing.assert_allclose(ops.huber_loss(X, 0 * X, delta=1.5), expected.mean())


def test_arguments_of_an_operator_may_be_named():
    """ops.Add()(x=..., y=...) was a bare TypeError of Python."""
    np.testing.assert_array_equal(ops.Sub()(X, y=1.0), X - 1)
    np.testing.assert_array_equal(ops.Sub()(y=X, x=1.0), 1 - X)
    np.testing.assert_array_equal(ops.Add()(input=X, other=1.0), X + 1)  # MindSpore's names of newer versions
    np.testing.assert_array_equal(ops.ReduceSum()(X, axis=1), X.sum(1))
    np.testing.assert_array_equal(ops.SumExt()(X, dim=1, keepdim=True), X.sum(1, keepdims=True))


@each_of(("named", "why"), ({"z": 1.0}, "'z' is given by name"), ({"x": 1.0}, "'x' is given by name"))
def test_names_that_an_operator_does_not_take_are_refused(named, why):
    with pytest.raises(ShapeError, match=f"{why}.*Sub\\(\\.\\.\\.\\)\\(x, y\\)"):
        ops.Sub()(X, **named)
    with pytest.raises(ShapeError, match="'x' is missing"):
        ops.Sub()(y=X)
