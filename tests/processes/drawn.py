"""Requests of all kinds, groups, dtypes, sizes; replies are `communicator.answer`'s bits. No pytest (mpirun)."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np

from parallel_lab.base.dtypes import load_bfloat16
from parallel_lab.layout.route import Route
from parallel_lab.ops.collectives.block_exchange import EXCHANGES, rows_route
from parallel_lab.ops.collectives.definitions import COLLECTIVES
from parallel_lab.ops.collectives.halo import HALOS
from parallel_lab.run.communicator import Request, answer
from tests.layout.drawn_layouts import drawn_pair
from tests.run.halos import draw_windows

SEED = 20261121
load_bfloat16()
DTYPES = ("float16", "bfloat16", "float32", "float64", "int8", "int32", "uint64", "bool", "complex64")


def draw(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Values whose sums depend on their order (floats of very different size) or overflow (ints)."""
    kind = np.dtype(dtype).kind
    if kind == "b":
        return np.asarray(rng.random(shape) < 0.3)
    if kind in "iu":
        info = np.iinfo(dtype)
        return np.asarray(rng.integers(info.min, info.max, shape, dtype=dtype, endpoint=True))
    scale = 10.0 ** rng.integers(-3, 4, shape)
    return np.asarray(rng.standard_normal(shape) * scale).astype(dtype)


def placed(comm: Any, x: np.ndarray, near: bool) -> np.ndarray:
    """A copy of x on a rank: in memory that the others can read too, or in its own."""
    value = (comm.empty if near else np.empty)(x.shape, x.dtype)
    value[...] = x
    return value


def groups_of(world: int) -> list[tuple[int, ...]]:
    groups = [tuple(range(world)), (world - 1,)]
    if world > 2:
        groups += [tuple(range(0, world, 2)), (0, world - 1), tuple(range(1, world))]
    return groups


def fields_and_shape(kind: str, n: int, root: int, big: bool) -> list[tuple[dict, tuple[int, ...]]]:
    """Per case: fields of the Request, shape of each member's value. n: group size."""
    if kind == "barrier":
        return [({}, ())]
    if kind in ("all_reduce", "reduce"):
        shapes = [(), (0,), (3, 5), (1031, 3) if big else (7,)]
        extra = {"root": root} if kind == "reduce" else {}
        return [({"reduce": r, **extra}, s) for r, s in itertools.product(("sum", "max", "min"), shapes)]
    if kind == "broadcast":
        return [({"root": root}, s) for s in ((), (0, 4), (3, 5), (1031, 3) if big else (7,))]
    rows = 171 if big else 3
    if kind in HALOS:
        made = []
        for window, dim in zip(draw_windows(np.random.default_rng([SEED, n]), n, 6), (0, 1, -1) * 2, strict=True):
            size = window[3] if kind == "halo_exchange" else window[2]
            made.append(({"dim": dim, "window": window}, {0: (size, rows), 1: (rows, size, 2), -1: (rows, size)}[dim]))
        return [*made, ({"dim": 1, "window": window}, (0, size, 2))]
    if kind == "all_to_all_v":
        made = []
        for seed, (before, width) in enumerate((((), 3), ((2,), rows), ((), 1))):
            rng = np.random.default_rng([SEED, n, seed])
            splits = rng.integers(0, 4, (n, n)) * rng.integers(0, 2, (n, n))  # many give nothing
            room = int(splits.sum(axis=1).max()) + seed, int(splits.sum(axis=0).max()) + 1
            made += [({"route": rows_route(*room, splits, back)}, (*before, room[0], width)) for back in (False, True)]
        return made
    if kind in EXCHANGES:
        made = []
        for seed in range(6):
            src, dst, shape = drawn_pair(np.random.default_rng([SEED, n, seed]), n, most=9 if big else 3)
            one, other = (layout.slice_shape(shape) for layout in (src, dst))
            made.append(({"route": Route(src, dst, shape).attr}, one if kind == "exchange" else other))
        return made
    shapes = [(2 * n, 3 * n, rows), (0, n, n)]
    if kind == "all_to_all":
        return [({"split_dim": a, "concat_dim": b}, s) for s in shapes for a in (0, 1) for b in (0, 1, 2)]
    extra = {"root": root} if kind in ("gather", "scatter") else {}
    return [({"dim": d, **extra}, s) for s in shapes for d in (0, 1, -2)]


def off_root(request: Request) -> Request:
    """The request of a member that has no value: it says what will arrive."""
    shape = request.value.shape
    if request.kind == "scatter":
        d = request.dim % len(shape)
        shape = (*shape[:d], shape[d] // len(request.group), *shape[d + 1 :])
    return Request(
        request.kind, request.group, root=request.root, dim=request.dim, shape=shape, dtype=str(request.value.dtype)
    )


def cases(kind: str, world: int, dtypes, big: bool) -> list[dict[int, Request]]:
    rng = np.random.default_rng([SEED, world, COLLECTIVES.index(kind)])
    made = []
    for group, dtype in itertools.product(groups_of(world), dtypes):
        for fields, shape in fields_and_shape(kind, len(group), group[-1], big):
            requests = {}
            for rank in group:
                value = None if kind == "barrier" else draw(rng, shape, dtype)
                request = Request(kind, group, value, **fields)
                requests[rank] = (
                    off_root(request) if kind in ("broadcast", "scatter") and rank != request.root else request
                )
            made.append(requests)
    return made


def normal_dims(request: Request) -> Request:
    """`answer` reads dims counted from the front when it compares shapes of scatter parts."""
    if request.kind == "scatter" and request.dim < 0 and request.value is not None:
        return replace(request, dim=request.dim % request.value.ndim)
    if request.kind == "scatter" and request.dim < 0:
        return replace(request, dim=request.dim % len(request.shape))
    return request


def answer_all(comm, requests):
    return [None if r is None else comm.answer(r) for r in requests]


def assert_same(got: np.ndarray | None, want: np.ndarray | None, label: object = "") -> None:
    """A reply is None, or has dtype, shape and bits, as it should."""
    assert (got is None) == (want is None), label
    if want is not None:
        assert (got.dtype, got.shape) == (want.dtype, want.shape), label
        assert got.tobytes() == want.tobytes(), label


def assert_same_bits(pool: Any, made: list[dict[int, Request]]) -> None:
    per_rank = [([case.get(rank) for case in made],) for rank in range(pool.world_size)]
    replies = pool.run_each(answer_all, per_rank)
    for index, case in enumerate(made):
        group = next(iter(case.values())).group
        expected = answer([normal_dims(case[rank]) for rank in group])
        for rank, want in zip(group, expected, strict=True):
            got = replies[rank][index]
            label = (
                f"rank {rank}, case {index}: {case[rank].kind} group {group} "
                f"{None if want is None else (want.dtype, want.shape)}"
            )
            assert_same(got, want, label)
            assert got is None or (got.flags.c_contiguous and got.flags.writeable), label
