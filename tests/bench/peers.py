"""The ranks of other libraries, and of the plain things that ours is measured against. `RankGroup` starts them.

    python -m tests.bench.peers gloo --rank 0 --ranks 8        torch.distributed on gloo
    python -m tests.bench.peers mpi --ranks 8                  MPI by mpi4py, under mpirun
    python -m tests.bench.peers futex --rank 0 --ranks 8       the C library's barrier between processes,
    which sleeps in a futex
    python -m tests.bench.peers copy --rank 0 --ranks 2        memory: copies between two own arrays

What is asked is {"op": ..., "bytes": S, "ranks": p}: S is the full tensor of each rank, float32. all_reduce,
all_to_all, broadcast: S in and out; all_gather: S/p in, S out; reduce_scatter: S in, S/p out; ping_pong, stream: S from
rank to rank. Results are looked at once per case, on values that tell the ranks apart, before anything is timed.
"""

from __future__ import annotations

import ctypes
import itertools
import mmap
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from parallel_lab.cli.results import installed_version
from tests.bench.cases import POINT_TO_POINT, Case, check_results, given, partner
from tests.bench.groups import Make, connect_rank, rank_arguments, serve_rank

BARRIER_BYTES = 4096  # a pthread barrier takes 32; a page of its own
PTHREAD_PROCESS_SHARED = 1


Collectives = Callable[[np.ndarray, np.ndarray], Mapping[str, Callable[[], object]]]


Messages = Callable[[np.ndarray, np.ndarray], tuple[Callable[[int], object], Callable[[int], object]]]


def paired_call(
    case: Case,
    rank: int,
    x: np.ndarray,
    out: np.ndarray | None,
    send: Callable[[int], object],
    recv: Callable[[int], object],
) -> Callable[[], object]:
    """One message with the partner, there, or there and back; returns what has come, of who only sends `x`.

    send, recv  called with the partner: hands x over; gives what came, if that is not in `out`
    """
    other = partner(case, rank)
    if other is None:
        return lambda: x

    def taken() -> object:
        came = recv(other)
        return came if isinstance(came, np.ndarray) else out

    if rank > other:
        return taken if case.op == "stream" else lambda: (taken(), send(other))[0]
    return (lambda: (send(other), x)[1]) if case.op == "stream" else lambda: (send(other), taken())[1]


def _maker(rank: int, ranks: int, collectives: Collectives, messages: Messages, barrier: Callable[[], object]) -> Make:
    """What a library's rank serves: the call of a case, on arrays made before, checked once. `collectives`: (given,
    result) -> calls by op; in-place all_reduce and broadcast return the first. `messages`: (given, result) -> (send to
    a rank, receive from one).
    """

    def make(order: Mapping[str, Any]) -> Callable[[], object]:
        if order["op"] == "barrier":
            return barrier
        case = Case(order["op"], order["bytes"], ranks)
        x, out = given(case, rank), np.empty(case.result_elements, np.float32)
        out.fill(0)  # real pages before the clock runs
        if case.op in POINT_TO_POINT:
            call = paired_call(case, rank, x, out, *messages(x, out))
        else:
            call = collectives(x, out)[case.op]
        told = call()
        check_results(case, rank, told if isinstance(told, np.ndarray) else out)
        x.fill(0)  # sums in place would grow from call to call
        return call

    return make


def _gloo(rank: int, ranks: int) -> None:
    pipe, folder = connect_rank(rank)
    import torch
    from torch import distributed

    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{folder}/gloo", rank=rank, world_size=ranks)

    def collectives(x: np.ndarray, out: np.ndarray) -> Mapping[str, Callable[[], object]]:
        tx, to = torch.from_numpy(x), torch.from_numpy(out)
        return {
            "all_reduce": lambda: (distributed.all_reduce(tx), x)[1],
            "broadcast": lambda: (distributed.broadcast(tx, 0), x)[1],
            "all_gather": lambda: distributed.all_gather_into_tensor(to, tx),
            "reduce_scatter": lambda: distributed.reduce_scatter_tensor(to, tx),
            "all_to_all": lambda: distributed.all_to_all_single(to, tx),
        }

    distributed.barrier()

    def messages(x: np.ndarray, out: np.ndarray) -> tuple[Callable[[int], object], Callable[[int], object]]:
        tx, to = torch.from_numpy(x), torch.from_numpy(out)
        return lambda other: distributed.send(tx, other), lambda other: distributed.recv(to, other)

    serve_rank(pipe, _maker(rank, ranks, collectives, messages, distributed.barrier), distributed.barrier)


def _mpi(rank: int, ranks: int) -> None:
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    rank = world.rank
    pipe, _ = connect_rank(rank)

    def collectives(x: np.ndarray, out: np.ndarray) -> Mapping[str, Callable[[], object]]:
        return {
            "all_reduce": lambda: world.Allreduce(x, out),
            "broadcast": lambda: (world.Bcast(x, 0), x)[1],
            "all_gather": lambda: world.Allgather(x, out),
            "reduce_scatter": lambda: world.Reduce_scatter_block(x, out),
            "all_to_all": lambda: world.Alltoall(x, out),
        }

    def messages(x: np.ndarray, out: np.ndarray) -> tuple[Callable[[int], object], Callable[[int], object]]:
        return lambda other: world.Send(x, other), lambda other: world.Recv(out, other)

    serve_rank(pipe, _maker(rank, ranks, collectives, messages, world.Barrier), world.Barrier)


def _futex(rank: int, ranks: int) -> None:
    """glibc's pthread barrier in shared memory: waiting ranks sleep in a futex, the last wakes all at once."""
    pipe, folder = connect_rank(rank)
    meet = _shared_barrier(folder, rank, ranks)

    def make(order: Mapping[str, Any]) -> Callable[[], object]:
        if order["op"] != "barrier":
            raise ValueError(f"a barrier has no {order['op']}")
        return meet

    serve_rank(pipe, make, meet)


def _shared_barrier(folder: Path, rank: int, ranks: int) -> Callable[[], object]:
    libc = ctypes.CDLL(None, use_errno=True)
    wait = libc.pthread_barrier_wait
    path, part = folder / "barrier", folder / "barrier.part"
    if rank == 0:
        part.write_bytes(bytes(BARRIER_BYTES))
    while rank and not path.exists():
        time.sleep(1e-3)
    with open(path if rank else part, "r+b") as file:
        block = mmap.mmap(file.fileno(), BARRIER_BYTES)
    pointer = ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(block)))
    if rank == 0:
        attributes = (ctypes.c_char * 64)()
        libc.pthread_barrierattr_init(attributes)
        libc.pthread_barrierattr_setpshared(attributes, PTHREAD_PROCESS_SHARED)
        if libc.pthread_barrier_init(pointer, attributes, ctypes.c_uint(ranks)):
            raise OSError("pthread_barrier_init refused a barrier between processes")
        os.replace(part, path)  # no reader sees a part of it
    return lambda keep=block: wait(pointer)  # the mapping lives as long as the call


def _copy(rank: int, ranks: int) -> None:
    """Each process copies `bytes` from one array of its own to another, all at the same time, instead of messages in
    turn between as many as the ranks of one core have, as what was copied last is still in the caches.
    """
    pipe, folder = connect_rank(rank)
    meet = _shared_barrier(folder, rank, ranks)

    def make(order: Mapping[str, Any]) -> Callable[[], object]:
        messages = {"ping_pong": order["ranks"] // 2, "stream": order["ranks"] // 4}.get(order["op"], 1)
        arrays = [
            [np.full(order["bytes"] // 4, value, np.float32) for value in (0, 1)] for _ in range(max(messages, 1))
        ]
        turns = itertools.cycle(arrays)
        return lambda: np.copyto(*next(turns))

    serve_rank(pipe, make, meet)


def main() -> None:
    """Run one rank."""
    kinds = {"gloo": _gloo, "mpi": _mpi, "futex": _futex, "copy": _copy}
    args = rank_arguments(*kinds)
    kinds[args.who](args.rank, args.ranks)


if __name__ == "__main__":
    main()


def without_torch() -> str:
    """Why PyTorch is not compared with; "" where it is installed."""
    return "PyTorch is not installed: pip install torch" if installed_version("torch") is None else ""
