"""Parameters bring their names: calls from one line in a loop, in another order on one rank, are told apart by them."""

from __future__ import annotations

import numpy as np
import pytest

from parallel_lab import Parameter, Tensor
from parallel_lab.base.errors import CollectiveMismatch
from tests.processes.pools import BACKENDS, assert_usable, noted

pytestmark = pytest.mark.timeout(60)
RANKS = 3
KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce", "gather")


@pytest.fixture(scope="module", params=BACKENDS)
def pool(request):
    with request.param(RANKS, timeout_s=20) as pool:
        yield noted(pool)


def parameters(names):
    return [Parameter(Tensor(np.full((3, 3), i + 1.0, np.float32)), name=name) for i, name in enumerate(names)]


def in_a_loop(comm, kind, way, names, order, odd):
    """The same line for all parameters; the odd rank takes them in another order."""
    given = parameters(names)
    got = []
    for turn in range(3):
        for i in order if comm.rank == odd and turn == 2 else range(len(given)):
            if way == "started":
                fields = {"root": 0} if kind in ("broadcast", "reduce", "gather") else {}
                got.append(comm.start(kind, given[i], **fields).wait())
            else:
                got.append(getattr(comm, kind)(given[i]))
    return len(got)


@pytest.mark.quick(4)
@pytest.mark.parametrize("odd", range(RANKS))
@pytest.mark.parametrize("way", ["called", "started"])
@pytest.mark.parametrize("kind", KINDS)
def test_another_order_of_parameters_is_told(pool, kind, way, odd):
    with pytest.raises(CollectiveMismatch, match=r"(first|second|third) at .*(first|second|third) at "):
        pool.run(in_a_loop, kind, way, ("first", "second", "third"), (0, 2, 1), odd)
    assert_usable(pool)


@pytest.mark.quick(4)
@pytest.mark.parametrize("way", ["called", "started"])
@pytest.mark.parametrize("kind", KINDS)
def test_one_order_is_no_fault(pool, kind, way):
    assert pool.run(in_a_loop, kind, way, ("first", "second"), (0, 1), -1) == [6] * RANKS


def some_arrays(comm):
    """Ranks without a Parameter there, and a tag, have nothing to compare."""
    (p,) = parameters(["w"])
    got = [comm.all_reduce(p if comm.rank == 0 else np.ones((3, 3), np.float32))[0, 0] for _ in range(3)]
    got.append(comm.broadcast(p if comm.rank == 0 else None)[0, 0])
    unnamed = Parameter(Tensor(np.ones((3, 3), np.float32)))
    got.append(comm.all_reduce(p if comm.rank == 0 else unnamed)[0, 0])
    got.append(comm.all_reduce(p if comm.rank == 0 else parameters(["v"])[0], tag="w or v")[0, 0])
    return [float(x) for x in got]


def test_arrays_unnamed_parameters_and_tags_have_no_name_to_compare(pool):
    assert pool.run(some_arrays) == [[3.0, 3.0, 3.0, 1.0, 3.0, 3.0]] * RANKS
