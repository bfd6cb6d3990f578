"""TensorLayout: MindSpore's tables (matrix, tensor map, unify shape); refinement; canonical form by brute force."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from parallel_lab.base.errors import LayoutError, ParallelLabError
from parallel_lab.layout.refinement import common_factors, expand_factors, flat_placement, join_axes, on_device_matrix
from parallel_lab.layout.tensor_layout import TensorLayout, ranks_along, slice_text
from tests.crossed import each_of

# ---- slices ----


@each_of(
    ("layout", "shape", "expected"),
    (TensorLayout((8, 4), (1, -1)), (512, 1024), (64, 1024)),  # MindSpore, tensor_layout_test
    (TensorLayout((2, 4), (1, 0)), (16, 32), (8, 8)),
    (TensorLayout((2, 4), ((0, 1), None)), (16, 32), (2, 32)),
    (TensorLayout((2, 4), (-1, ())), (16, 32), (16, 32)),
    (TensorLayout((8,), ()), (), ()),
)
def test_slice_shape_is_the_shape_over_the_cuts(layout, shape, expected):
    assert layout.slice_shape(shape) == expected


@pytest.mark.parametrize("rank", range(8))
def test_slices_of_a_matmul_lie_where_the_documents_draw_them(rank):
    """MatMul ((2, 1), (1, 4)) on 8 devices: X0 on ranks 0-3, X1 on 4-7; W_j on ranks j and j + 4."""
    x, w = TensorLayout((2, 1, 4), (2, 1)), TensorLayout((2, 1, 4), (1, 0))
    assert x.slice_index((6, 5), rank) == (slice(3 * (rank // 4), 3 * (rank // 4) + 3), slice(0, 5))
    assert w.slice_index((5, 12), rank) == (slice(0, 5), slice(3 * (rank % 4), 3 * (rank % 4) + 3))


@each_of(
    "axes, number", ((1, 0), lambda outer, inner: outer * 4 + inner), ((0, 1), lambda outer, inner: inner * 2 + outer)
)
@pytest.mark.parametrize("rank", range(8))
def test_first_axis_of_a_tuple_is_the_outer_cut(axes, number, rank):
    layout = TensorLayout((2, 4), (axes,))
    assert layout.slice_numbers(rank) == (number(rank // 4, rank % 4),)


@each_of(
    "layout",
    *(TensorLayout((2, 4), (1, 0)), TensorLayout((2, 4), ((0, 1), -1))),
    *(TensorLayout((2, 2, 2), (0, -1)), TensorLayout((3, 4), (0, 1))),
)
def test_every_element_is_held_by_as_many_ranks_as_there_are_replicas(layout):
    count = np.zeros((24, 12), int)
    for rank in range(layout.device_num):
        count[layout.slice_index((24, 12), rank)] += 1
    assert (count == layout.replica_count).all()


def test_from_strategy_puts_spare_ranks_on_the_right():
    layout = TensorLayout.from_strategy((2, 1), 8)
    assert [layout.slice_numbers(rank)[0] for rank in range(8)] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert layout.splits == (2, 1)
    assert layout.replicas(5) == (4, 5, 6, 7)


# ---- groups (MindSpore, device_matrix_test) ----


@each_of(
    ("device_matrix", "rank", "groups"),
    ((2, 3), 0, [(0, 3), (0, 1, 2)]),
    ((2, 2, 3), 5, [(5, 11), (2, 5), (3, 4, 5)]),
    ((2, 1, 4, 2), 5, [(5, 13), (5,), (1, 3, 5, 7), (4, 5)]),
    ((3, 4, 2, 3, 2), 5, [(5, 53, 101), (5, 17, 29, 41), (5, 11), (1, 3, 5), (4, 5)]),
)
def test_groups_along_each_axis(device_matrix, rank, groups):
    last = len(device_matrix) - 1
    assert [ranks_along(device_matrix, (last - i,), rank) for i in range(len(device_matrix))] == groups


@each_of(
    ("devices", "tensor_map", "position", "expected"),
    ([10, 3, 2, 9, 11, 100, 1, 0], (-1, 0), 7, [3, 9, 100, 0]),
    ([10, 3, 2, 9, 11, 100, 1, 0], (1, 0), 7, [0]),
    (list(range(8)), (-1, 0), 6, [0, 2, 4, 6]),
)
def test_replicas_by_tensor_map(devices, tensor_map, position, expected):
    assert [devices[rank] for rank in TensorLayout((4, 2), tensor_map).replicas(position)] == expected


def test_partial_group_is_not_a_replica_group():
    layout = TensorLayout((2, 2, 2), (2, -1), partial=(1,))
    assert layout.partial_group(5) == (5, 7)
    assert layout.replicas(5) == (4, 5)


# ---- refusals ----

GRID = TensorLayout((2, 4), (1, 0))


@each_of(
    ("make", "text"),
    (lambda: TensorLayout((2, 4), (2, 0)), "axis 2 does not exist"),
    (lambda: TensorLayout((2, 4), (1.5,)), "axis 1.5 does not exist"),
    (lambda: TensorLayout((2, 4), 1), "as tuples"),
    (lambda: TensorLayout(8, (0,)), "as tuples"),
    (lambda: TensorLayout((2, 4), (1, 1)), "axis 1 is used 2 times"),
    (lambda: TensorLayout((2, 4), (1, -1), partial=(1,)), "axis 1 is used 2 times"),
    (lambda: TensorLayout((2, 0), (1, -1)), "device-matrix entry 0"),
    (lambda: TensorLayout((2, 4), (1,), partial=(0,), reduce="mean"), "reduce='mean'"),
    (lambda: GRID.slice_shape((16, 30)), "dim 1 of shape (16, 30) has 30 elements and cannot be split 4 ways"),
    (lambda: GRID.slice_shape((16,)), "has 2 entries"),
    (lambda: TensorLayout((2, 2, 2), (1, 0)).slice_index((8, 8), 8), "rank 8 does not exist"),
    (lambda: TensorLayout.from_strategy((3, 1), 8), "makes 3 slices on 8 devices"),
    (lambda: on_device_matrix(GRID, (4, 2)), "cannot be written over device_matrix (4, 2)"),
    (lambda: on_device_matrix(TensorLayout((8,), (0,)), (4,)), "cannot be written over"),
    (lambda: common_factors((2, 4), (3, 3)), "has 8 elements"),
)
def test_anything_but_a_layout_is_refused_with_the_reason(make, text):
    with pytest.raises(LayoutError) as caught:
        make()
    assert text in str(caught.value)
    assert isinstance(caught.value, (ParallelLabError, ValueError))


def test_slice_text_shows_whole_dims_as_colons():
    assert slice_text((slice(8, 16), slice(0, 32)), (16, 32)) == "[8:16, :]"


# ---- normal forms (MindSpore, tensor_layout_test and shape_util_test) ----


@pytest.mark.parametrize(
    ("one", "two", "expected"),
    [((2, 4), (4, 2), (2, 2, 2)), ((8, 4), (2, 16), (2, 4, 4)), ((2, 3), (3, 2), None), ((1, 6), (6,), (6,))],
)
def test_common_factors(one, two, expected):
    assert common_factors(one, two) == expected


@pytest.mark.parametrize(("other", "expected"), [((16, 4, 8), (2, 8, 4, 8)), ((2, 4, 8), (2, 4, 2, 4, 8))])
def test_expand_factors(other, expected):
    assert expand_factors((2, 8, 32), other) == expected


@each_of(
    ("pieces", "expected"),
    ([(2, (1,), 2), (8, (0,), 4)], (1, 0)),
    ([(2, (1,), 2), (8, (), 1)], (1,)),
    ([(4, (1,), 2), (8, (0,), 4)], None),  # the outer dim keeps two rows, so the part of a rank would be two blocks
    ([], ()),
)
def test_dims_join_only_if_each_part_stays_one_block(pieces, expected):
    assert join_axes(pieces) == expected


# ---- brute force ----


def _device_matrices(ranks: int) -> list[tuple[int, ...]]:
    return [(ranks,), *((n, *rest) for n in range(2, ranks) if ranks % n == 0 for rest in _device_matrices(ranks // n))]


def _all_layouts(ranks: int, ndim: int, partial: bool) -> list[TensorLayout]:
    """Every assignment of every axis to a dim (in every order), to `partial`, or to nothing."""
    found = []
    for device_matrix in _device_matrices(ranks):
        count = len(device_matrix)
        for roles in itertools.product(range(-1, ndim + partial), repeat=count):
            dims = [[a for a in range(count) if roles[a] == dim] for dim in range(ndim)]
            pending = tuple(a for a in range(count) if roles[a] == ndim)
            found += [
                TensorLayout(device_matrix, orders, pending)
                for orders in itertools.product(*(itertools.permutations(axes) for axes in dims))
            ]
    return found


@pytest.mark.parametrize("partial", [False, True], ids=["values", "addends"])
@pytest.mark.parametrize("ndim", [1, 2])
@pytest.mark.parametrize("ranks", [8, 12])
def test_canonical_forms_are_equal_exactly_if_all_slices_are(ranks, ndim, partial):
    shape = (ranks, 2 * ranks)[:ndim]
    layouts = _all_layouts(ranks, ndim, partial)
    by_form: dict = {}
    by_slices: dict = {}
    for layout in layouts:
        held = tuple(
            (tuple((s.start, s.stop) for s in layout.slice_index(shape, r)), layout.partial_group(r))
            for r in range(ranks)
        )
        by_form.setdefault(layout.canonical(), set()).add(held)
        by_slices.setdefault(held, set()).add(layout.canonical())
    assert len(by_slices) < len(layouts)  # there is something to identify
    assert all(len(held) == 1 for held in by_form.values())
    assert all(len(forms) == 1 for forms in by_slices.values())


@pytest.mark.parametrize("shapes", [((8,), (4, 2)), ((4, 4), (2, 8)), ((8, 2), (16,)), ((4, 6), (6, 4))], ids=str)
def test_flat_placement_is_equal_exactly_if_the_flat_elements_are(shapes):
    """The claim of `flat_placement`, for every pair of layouts of 4 ranks on two shapes of one tensor."""
    forms: dict = {}
    elements: dict = {}
    for shape in shapes:
        flat = np.arange(math.prod(shape)).reshape(shape)
        for layout in _all_layouts(4, len(shape), False):
            if any(n % cut for n, cut in zip(shape, layout.splits, strict=True)):
                continue
            held = tuple(tuple(flat[layout.slice_index(shape, rank)].ravel()) for rank in range(4))
            forms.setdefault(flat_placement(layout, shape), set()).add(held)
            elements.setdefault(held, set()).add(flat_placement(layout, shape))
    assert all(len(held) == 1 for held in forms.values())
    assert all(len(found) == 1 for found in elements.values())


@pytest.mark.parametrize(
    "layout",
    [TensorLayout((8,), (0, -1)), TensorLayout((2, 4), ((0, 1), -1)), TensorLayout((4, 2), (-1, 0), partial=(1,))],
    ids=str,
)
def test_on_a_finer_device_matrix_no_rank_moves(layout):
    fine = on_device_matrix(layout, (2, 2, 2))
    assert fine.device_matrix == (2, 2, 2)
    assert [fine.slice_index((8, 16), r) for r in range(8)] == [layout.slice_index((8, 16), r) for r in range(8)]
    assert [fine.partial_group(r) for r in range(8)] == [layout.partial_group(r) for r in range(8)]
