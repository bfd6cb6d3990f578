"""Reference answers of large messages: in parts, with a turn for others before each; each rank has its own memory."""

import itertools
import math

import numpy as np
import pytest

from parallel_lab import Request
from parallel_lab.base import hooks
from parallel_lab.base.hooks import PART_BYTES, in_parts
from parallel_lab.run.communicator import answer

LARGE = (3, 5 << 17)  # float32: 7.5 MiB, in parts along the second dim


def large(rank: int) -> np.ndarray:
    """A value that does not lie in C order."""
    return np.asfortranarray(np.random.default_rng(rank).standard_normal(LARGE, np.float32))


@pytest.fixture
def breaths(monkeypatch):
    """One element per turn that others could have had."""
    taken: list[int] = []
    monkeypatch.setitem(hooks._from_above, "turns", lambda: taken.append(1))
    return taken


@pytest.mark.parametrize("reduce", ["sum", "mean", "max"])
def test_a_large_sum_in_parts_has_the_bits_of_the_whole(reduce):
    values = [large(rank) for rank in range(3)]
    first, second, third = values
    whole = np.maximum(np.maximum(first, second), third) if reduce == "max" else (first + second) + third
    expected = whole / np.float32(3) if reduce == "mean" else whole
    for total in answer([Request("all_reduce", (0, 1, 2), value, reduce=reduce) for value in values]):
        np.testing.assert_array_equal(total, expected)


@pytest.mark.parametrize("in_place", [True, False])
def test_others_have_a_turn_with_every_part_of_a_large_sum(breaths, in_place):
    values = [np.ascontiguousarray(large(rank)) for rank in range(4)]
    parts = math.ceil(values[0].nbytes / PART_BYTES)
    answer([Request("all_reduce", (0, 1, 2, 3), value, out=value if in_place else None) for value in values])
    # the sum, and a copy for each that has no array yet: one has the sum itself
    assert parts * (1 + 4 - (not in_place)) <= len(breaths) <= 2 * parts * 5


@pytest.mark.parametrize("shape", [(), (0,), (4,), (7, 3), (3, 400_000), (1, 2, 300_000, 1), (900_001,)])
def test_parts_are_each_element_once_and_small(breaths, shape):
    array, other = np.zeros(shape), np.ones(shape)
    sizes = []
    for part, same in in_parts(array, other):
        part += same
        sizes.append(part.nbytes)
    assert (array == 1).all() and sum(sizes) == array.nbytes and max(sizes) <= PART_BYTES
    assert len(breaths) == len(sizes)


@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "broadcast", "reduce_scatter", "all_to_all"])
@pytest.mark.parametrize("given", [(), (0,), (1, 2)])
def test_no_two_ranks_get_the_same_memory(kind, given):
    values = [np.arange(6.0) + rank for rank in range(3)]
    sent = [value if kind != "broadcast" or rank == 1 else None for rank, value in enumerate(values)]
    alone = answer([Request(kind, (0, 1, 2), value, root=1, reduce="sum", dim=0) for value in sent])
    outs = [np.empty_like(reply) if rank in given else None for rank, reply in enumerate(alone)]
    replies = answer(
        [Request(kind, (0, 1, 2), v, root=1, reduce="sum", dim=0, out=o) for v, o in zip(sent, outs, strict=True)]
    )
    assert all(replies[rank] is outs[rank] for rank in given)
    for one, other in itertools.combinations([*replies, *values], 2):
        assert not np.shares_memory(one, other)
    for reply, expected in zip(replies, alone, strict=True):
        np.testing.assert_array_equal(reply, expected)
