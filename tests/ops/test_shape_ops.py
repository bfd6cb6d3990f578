"""Shapes, joins, splits, padding, triangles, constants: forms, values against numpy, refusals. Strategies: battery."""

import numpy as np
import pytest

from parallel_lab import ShapeError, Tensor, ops
from parallel_lab.ops.machine.registry import OPS
from parallel_lab.ops.machine.sharding import sharding_rule
from tests.ops.compiled import behind, results, simulated

X = np.arange(24.0).reshape(2, 3, 4)


def same(got, expected):
    got = np.asarray(got)
    assert got.dtype == np.asarray(expected).dtype
    np.testing.assert_array_equal(got, expected)


# ---- argument forms ----


def test_attributes_may_be_given_by_position_to_the_function_and_by_name_to_the_class():
    same(ops.squeeze(X[:, None], 1), X)
    same(ops.Squeeze(1)(X[:, None]), X)
    same(ops.expand_dims(X, -1), X[..., None])
    same(ops.ExpandDims()(X, 0), X[None])
    same(ops.softmax(X, 0), ops.softmax(X, axis=0))


def test_concat_takes_a_list_or_tensors_one_by_one():
    expected = np.concatenate([X, X[:, :1]], axis=1)
    same(ops.concat([X, X[:, :1]], 1), expected)
    same(ops.concat(X, X[:, :1], axis=1), expected)
    same(ops.Concat(axis=1)((X, X[:, :1])), expected)
    same(ops.cat((X, X[:, :1]), axis=-2), expected)


def test_split_takes_a_size_or_sizes():
    for got, expected in zip(ops.split(X, 3, axis=2), (X[..., :3], X[..., 3:]), strict=True):
        same(got, expected)
    for got, expected in zip(ops.split(X, [1, 0, 2], 1), (X[:, :1], X[:, :0], X[:, 1:]), strict=True):
        same(got, expected)
    for got, expected in zip(ops.Split(axis=2, output_num=2)(X), (X[..., :2], X[..., 2:]), strict=True):
        same(got, expected)
    assert [p.shape for p in ops.chunk(X, 3, 2)] == [(2, 3, 2), (2, 3, 2)], "4 elements in parts of ceil(4 / 3)"


@pytest.mark.quick(4)
@pytest.mark.parametrize("padding", [(1, 2), (0, 1, 2, 0), (1, 1, 0, 2, 1, 0)])
@pytest.mark.parametrize(
    ("mode", "numpy_mode"),
    [("constant", "constant"), ("reflect", "reflect"), ("replicate", "edge"), ("circular", "wrap")],
)
def test_pad_counts_pairs_from_the_last_dim(padding, mode, numpy_mode):
    widths = [(0, 0)] * 3
    for i in range(len(padding) // 2):
        widths[2 - i] = padding[2 * i : 2 * i + 2]
    same(ops.pad(X, padding, mode), np.pad(X, widths, numpy_mode))


def test_pad_with_a_value_keeps_the_dtype():
    same(
        ops.pad(X.astype(np.int32), (1, 0), value=7),
        np.pad(X.astype(np.int32), ((0, 0), (0, 0), (1, 0)), constant_values=7),
    )


# ---- slices that are not like the whole ----


def test_squeeze_of_all_dims_leaves_a_dim_that_only_a_slice_has_one_element_of():
    """Wrong would be: each rank drops dim 0 too, because its slice (1, 1, 4) has one row."""
    x = np.arange(32.0).reshape(8, 1, 4)
    plan, sim = simulated(behind(ops.Squeeze(), ((8, 1, 1),)), x)
    same(sim.full(plan.outputs[0]), x[:, 0])
    assert {sim.value(plan.outputs[0], r).shape for r in range(8)} == {(1, 4)}


@pytest.mark.parametrize("strategy", [((8, 1),), ((1, 8),), ((2, 4),), ((4, 2),)])
def test_a_cut_triangle_starts_where_the_slice_lies(strategy):
    x = np.arange(1.0, 129.0).reshape(8, 16)
    same(*results(behind(ops.Tril(diagonal=1), strategy), x), np.tril(x, 1))


@pytest.mark.parametrize("cuts", [(4, 1), (1, 8)])
def test_a_slice_of_size_1_keeps_its_dim_where_nothing_is_squeezed(cuts):
    """Squeeze() of (4, 8) lost the dim that was split to slices of size 1: PlanError, (8,) for (1, 8)."""
    x = np.arange(32.0).reshape(4, 8)
    same(*results(behind(ops.Squeeze(), (cuts,)), x), x)


def test_concat_of_equal_tensors_has_a_device_matrix_as_long_as_its_strategy():
    rule = sharding_rule(OPS["concat"], ((8, 4), (8, 4)), {"axis": 1}, ((4, 1), (4, 1)), 8)
    assert rule.out.device_matrix == (4, 1, 2) and rule.out.splits == (4, 1)


# ---- constants ----


def test_constants():
    same(ops.zeros((2, 3)), np.zeros((2, 3), np.float32))
    same(ops.ones(3, "int32"), np.ones(3, np.int32))
    same(ops.full((2,), 2.5), np.full(2, 2.5, np.float32))
    same(ops.full((2,), 7), np.full(2, 7))
    same(ops.eye(2, 3), np.eye(2, 3, dtype=np.float32))
    same(ops.arange(4), np.arange(4))
    same(ops.arange(1, 2, 0.25), np.array([1, 1.25, 1.5, 1.75], np.float32))
    same(ops.arange(5, 1, -2), np.array([5, 3]))
    same(ops.linspace(0, 1, 3), np.array([0, 0.5, 1], np.float32))
    same(ops.zeros_like(Tensor(X)), np.zeros_like(X))
    same(ops.ones_like(Tensor(X), "bool"), np.ones(X.shape, bool))
    same(ops.full_like(X, 3), np.full_like(X, 3))


def test_constants_made_while_tracing_belong_to_the_plan():
    def masked(x):
        return ops.add(ops.mul(x, ops.tril(ops.ones_like(x))), ops.eye(8))

    x = np.arange(64, dtype=np.float32).reshape(8, 8)
    same(*results(masked, x, device_num=4), np.tril(x) + np.eye(8, dtype=np.float32))


WRONG = {
    "squeeze": (
        lambda: ops.squeeze(X, 1),
        r"Squeeze: axis=1 for a tensor of shape \(2, 3, 4\)\. Dims of size 1; dim 1 has 3",
    ),
    "tile few": (lambda: ops.tile(X, (2, 2)), "At least one count per dim"),
    "broadcast size": (lambda: ops.broadcast_to(X, (2, 3, 5)), r"BroadcastTo: shape \(2, 3, 5\)"),
    "broadcast new -1": (lambda: ops.broadcast_to(X, (-1, 2, 3, 4)), "BroadcastTo: shape"),
    "broadcast missing": (lambda: ops.BroadcastTo()(X), "broadcast_to: missing argument 'shape'"),
    "concat shapes": (lambda: ops.concat(X, X[:, :, :1]), r"tensor 1 has shape \(2, 3, 1\), the first \(2, 3, 4\)"),
    "concat none": (lambda: ops.concat([]), "concat: got no tensors"),
    "stack shapes": (lambda: ops.stack(X, X[:1]), "tensor 1 has shape"),
    "split sum": (lambda: ops.split(X, [1, 1], 1), "Sizes that add up to 3"),
    "split uneven": (lambda: ops.Split(axis=1, output_num=2)(X), "A count that divides 3"),
    "split size": (lambda: ops.split(X, 0), "split_size_or_sections=0"),
    "unstack num": (lambda: ops.Unstack(axis=1, num=2)(X), "num=2 for dim 1"),
    "pad odd": (lambda: ops.pad(X, (1,)), "Pairs of ints"),
    "pad reflect": (lambda: ops.pad(X, (4, 0), "reflect"), "at most 3 on each side of dim 2"),
    "roll count": (lambda: ops.roll(X, (1, 2), 0), "as many ints as axis names"),
    "tril dims": (lambda: ops.tril(X[0, 0]), "At least 2 dims"),
    "zeros size": (lambda: ops.zeros((2, -1)), r"zeros: size=\(2, -1\)"),
    "zeros dtype": (lambda: ops.zeros(2, "words"), "zeros: dtype='words'"),
    "arange step": (lambda: ops.arange(0, 3, 0), "the step not 0"),
}


@pytest.mark.parametrize("how", WRONG)
def test_what_cannot_be_done_is_refused(how):
    call, words = WRONG[how]
    with pytest.raises(ShapeError, match=words):
        call()
