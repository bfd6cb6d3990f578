"""From one layout to another: random layouts and numbers of ranks, bit for bit what slicing the whole gives."""

import itertools

import numpy as np
import pytest

from parallel_lab.base.errors import CheckpointError, LayoutError
from parallel_lab.layout.tensor_layout import TensorLayout
from parallel_lab.train.checkpoint import TensorRecord, needed_ranks, reslice, whole_array
from parallel_lab.train.checkpoint.reslice import holder
from tests.checkpoint.drawn import DTYPES, draw_array, draw_layout, draw_shape, parts_of, same_bits


@pytest.mark.quick(16)
@pytest.mark.parametrize("case", range(200))
def test_any_layout_is_cut_anew_for_any_other(rng, case):
    """200 random (source layout, target layout) pairs, M -> N ranks; expected: numpy's own index into the original."""
    ndim = int(rng.integers(1, 4))
    src = draw_layout(rng, ndim)
    dst = draw_layout(rng, ndim)
    full = draw_array(rng, draw_shape(rng, src, dst), str(rng.choice(DTYPES)))
    parts = {record.rank: np.ascontiguousarray(record.array) for record in parts_of(full, src, 0)}
    for rank in range(dst.device_num):
        needed = needed_ranks(src, dst, full.shape, rank)
        made = reslice({source: parts[source] for source in needed}, src, dst, full.shape, rank)
        assert same_bits(made, np.ascontiguousarray(full[dst.slice_index(full.shape, rank)])), (src, dst, rank)
        assert made.flags.c_contiguous and made.flags.owndata
    assert same_bits(whole_array([TensorRecord(part, full.shape, src, rank) for rank, part in parts.items()]), full)


@pytest.mark.quick(16)
@pytest.mark.parametrize("case", range(50))
def test_no_rank_is_read_that_is_not_needed(rng, case):
    """Each needed rank's part has elements in common with the target's, and a replica is read once."""
    ndim = int(rng.integers(1, 4))
    src, dst = draw_layout(rng, ndim), draw_layout(rng, ndim)
    shape = draw_shape(rng, src, dst)
    for rank in range(dst.device_num):
        needed = needed_ranks(src, dst, shape, rank)
        target = dst.slice_index(shape, rank)
        for source in needed:
            part = src.slice_index(shape, source)
            assert all(max(a.start, b.start) < min(a.stop, b.stop) for a, b in zip(part, target, strict=True))
        assert len({src.slice_numbers(source) for source in needed}) == len(needed)


@pytest.mark.quick(10)
@pytest.mark.parametrize("case", range(30))
def test_an_unchanged_layout_needs_its_own_part_only(rng, case):
    layout = draw_layout(rng, int(rng.integers(1, 4)))
    shape = draw_shape(rng, layout)
    assert [needed_ranks(layout, layout, shape, rank) for rank in range(layout.device_num)] == [
        (rank,) for rank in range(layout.device_num)
    ]


@pytest.mark.parametrize("case", range(20))
def test_a_holder_holds_the_slice_and_every_slice_has_one(rng, case):
    layout = draw_layout(rng, 2)
    for numbers, prefer in itertools.product(layout.distinct_slices(), range(layout.device_num)):
        found = holder(layout, numbers, prefer)
        assert layout.slice_numbers(found) == numbers
        assert found == prefer or layout.slice_numbers(prefer) != numbers


def test_whole_tensors_on_either_side(rng):
    layout, full = TensorLayout((2, 3), (0, 1)), draw_array(rng, (6, 4))
    parts = {r.rank: r.array for r in parts_of(full, layout, 0)}
    assert same_bits(reslice(parts, layout, None, full.shape, 0), full)
    assert same_bits(reslice(parts, layout, None, full.shape, 77), full)  # any rank may have the whole
    assert same_bits(
        reslice({0: full}, None, layout, full.shape, 4), np.ascontiguousarray(full[layout.slice_index(full.shape, 4)])
    )
    assert needed_ranks(None, layout, full.shape, 4) == (0,)


@pytest.mark.parametrize("shape", [(0, 6), (4, 0), (0, 0)])
def test_empty_tensors_are_cut_too(shape):
    src, dst = TensorLayout((2, 2), (0, 1)), TensorLayout((2,), (-1, 0))
    for rank in range(2):
        needed = needed_ranks(src, dst, shape, rank)
        assert len(needed) == 1
        found = reslice({needed[0]: np.zeros(src.slice_shape(shape))}, src, dst, shape, rank).shape
        assert found == dst.slice_shape(shape)


def test_scalars_are_whole_on_every_rank():
    layout = TensorLayout((4,), ())
    assert needed_ranks(layout, TensorLayout((2,), ()), (), 1) == (1,)
    assert reslice({1: np.float32(3)}, layout, None, (), 1) == 3


# ---- what does not fit ----


def test_a_missing_part_is_named():
    src, dst = TensorLayout((4,), (0,)), TensorLayout((2,), (0,))
    with pytest.raises(CheckpointError, match=r"the part of rank 3 is missing.*ranks \[0, 1, 2\]"):
        reslice({rank: np.zeros(2) for rank in range(3)}, src, dst, (8,), 1)


def test_parts_of_another_shape_or_dtype_are_refused():
    layout = TensorLayout((2,), (0,))
    with pytest.raises(CheckpointError, match=r"rank 1 has shape \(3,\)"):
        reslice({0: np.zeros(2), 1: np.zeros(3)}, layout, None, (4,), 0)
    with pytest.raises(CheckpointError, match="float32, float64"):
        reslice({0: np.zeros(2), 1: np.zeros(2, np.float32)}, layout, None, (4,), 0)


def test_a_layout_that_does_not_divide_is_refused():
    with pytest.raises(LayoutError, match="cannot be split 3 ways"):
        reslice({0: np.zeros(8)}, None, TensorLayout((3,), (0,)), (8,), 0)


def test_a_rank_that_does_not_exist_is_refused():
    with pytest.raises(LayoutError, match="rank 2 does not exist"):
        needed_ranks(None, TensorLayout((2,), (0,)), (8,), 2)


def test_assembling_needs_every_slice_and_takes_no_memory_before():
    layout = TensorLayout((1 << 20,), (0,))
    record = TensorRecord(np.zeros(1 << 20), (1 << 40,), layout, 3)  # the whole would have 8 TiB
    with pytest.raises(CheckpointError, match="1048575 of 1048576 slices are missing, for instance that of rank 0"):
        whole_array([record])
    with pytest.raises(CheckpointError, match="no parts"):
        whole_array([])


def test_assembling_refuses_parts_of_different_tensors():
    layout = TensorLayout((2,), (0,))
    first = TensorRecord(np.zeros(2), (4,), layout, 0)
    for other in (
        TensorRecord(np.zeros(2, np.float32), (4,), layout, 1),
        TensorRecord(np.zeros(3), (6,), layout, 1),
        TensorRecord(np.zeros(2), (4,), TensorLayout((2, 2), (0,)), 1),
        TensorRecord(np.zeros(4)),
    ):
        with pytest.raises(CheckpointError, match="Parts of one tensor"):
            whole_array([first, other])


def test_the_last_of_equal_slices_counts():
    layout = TensorLayout((2, 2), (1,))  # ranks 0, 1 hold slice 0; 2, 3 slice 1
    records = [TensorRecord(np.full(2, float(rank)), (4,), layout, rank) for rank in range(4)]
    assert whole_array(records).tolist() == [1, 1, 3, 3]
    assert whole_array(records[::-1]).tolist() == [0, 0, 2, 2]
