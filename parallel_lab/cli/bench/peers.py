"""The ranks of other libraries, and of the plain things that ours is measured against. `RankGroup` starts them.

    python -m parallel_lab.cli.bench.peers gloo --rank 0 --ranks 8        torch.distributed on gloo
    python -m parallel_lab.cli.bench.peers mpi --ranks 8                  MPI by mpi4py, under mpirun
    python -m parallel_lab.cli.bench.peers futex --rank 0 --ranks 8       the C library's barrier between processes,
    which sleeps in a futex
    python -m parallel_lab.cli.bench.peers copy --rank 0 --ranks 2        memory: every process copies between two
    arrays of its own

What is asked is {"op": ..., "bytes": S}: S is the full tensor of each rank, float32. all_reduce, all_to_all, broadcast:
S in and out; all_gather: S/p in, S out; reduce_scatter: S in, S/p out. Results are looked at once per case, on values
that tell the ranks apart, before anything is timed.
"""

from __future__ import annotations

import argparse
import ctypes
import mmap
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from .cases import Case, check_results, given
from .groups import connect_rank, serve_rank

BARRIER_BYTES = 4096  # a pthread barrier takes 32; a page of its own
PTHREAD_PROCESS_SHARED = 1


def _calls(
    case: Case, rank: int, collectives: Callable[[np.ndarray, np.ndarray], Mapping[str, Callable[[], object]]]
) -> Callable[[], object]:
    """The call of a case on arrays that were made before, checked once.

    collectives   from the array that is given and the one for the result to the library's calls by op; all_reduce and
                  broadcast may be in place, then the first is the result as well
    """
    x, out = given(case, rank), np.zeros(case.result_elements, np.float32)
    out.fill(0)  # real pages before the clock runs
    call = collectives(x, out)[case.op]
    told = call()
    check_results(case, rank, told if isinstance(told, np.ndarray) else out)
    x.fill(0)  # sums in place would grow from call to call
    return lambda: (call(), None)[1]


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

    def make(order: Mapping[str, Any]) -> Callable[[], object]:
        if order["op"] == "barrier":
            return distributed.barrier
        return _calls(Case(order["op"], order["bytes"], ranks), rank, collectives)

    distributed.barrier()
    serve_rank(pipe, make, distributed.barrier)


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

    def make(order: Mapping[str, Any]) -> Callable[[], object]:
        return (
            world.Barrier
            if order["op"] == "barrier"
            else _calls(Case(order["op"], order["bytes"], ranks), rank, collectives)
        )

    serve_rank(pipe, make, world.Barrier)


def _futex(rank: int, ranks: int) -> None:
    """glibc's pthread barrier in shared memory: whoever is not the last sleeps in a futex at once, the last wakes all
    with one call.
    """
    pipe, folder = connect_rank(rank)
    meet = _shared_barrier(folder, rank, ranks)

    def make(order: Mapping[str, Any]) -> Callable[[], object]:
        if order["op"] != "barrier":
            raise ValueError(f"a barrier has no {order['op']}")
        return meet

    serve_rank(pipe, make, meet)


def _shared_barrier(folder: Path, rank: int, ranks: int) -> Callable[[], object]:
    libc = ctypes.CDLL(None, use_errno=True)
    wait = libc.pthread_barrier_wait  # AttributeError where the system has none (macOS)
    path = folder / "barrier"
    if rank == 0:
        part = path.with_suffix(".part")
        part.write_bytes(bytes(BARRIER_BYTES))
        with open(part, "r+b") as file:
            block = mmap.mmap(file.fileno(), BARRIER_BYTES)
        at = ctypes.addressof(ctypes.c_char.from_buffer(block))
        attributes = (ctypes.c_char * 64)()
        libc.pthread_barrierattr_init(attributes)
        libc.pthread_barrierattr_setpshared(attributes, PTHREAD_PROCESS_SHARED)
        if libc.pthread_barrier_init(ctypes.c_void_p(at), attributes, ctypes.c_uint(ranks)):
            raise OSError("pthread_barrier_init refused a barrier between processes")
        os.replace(part, path)  # no reader sees a part of it
    else:
        import time

        while not path.exists():
            time.sleep(1e-3)
        with open(path, "r+b") as file:
            block = mmap.mmap(file.fileno(), BARRIER_BYTES)
        at = ctypes.addressof(ctypes.c_char.from_buffer(block))
    pointer = ctypes.c_void_p(at)
    return lambda keep=block: wait(pointer)  # the mapping lives as long as the call


def _copy(rank: int, ranks: int) -> None:
    """Each process copies `bytes` from one array of its own to another, all at the same time."""
    pipe, folder = connect_rank(rank)
    meet = _shared_barrier(folder, rank, ranks)

    def make(order: Mapping[str, Any]) -> Callable[[], object]:
        source, target = (np.zeros(order["bytes"] // 4, np.float32) for _ in range(2))
        source.fill(1)
        target.fill(0)

        def copy() -> None:
            np.copyto(target, source)

        return copy

    serve_rank(pipe, make, meet)


def main() -> None:
    """Run one rank."""
    parser = argparse.ArgumentParser()
    parser.add_argument("who", choices=("gloo", "mpi", "futex", "copy"))
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--ranks", type=int, required=True)
    args = parser.parse_args()
    {"gloo": _gloo, "mpi": _mpi, "futex": _futex, "copy": _copy}[args.who](args.rank, args.ranks)


if __name__ == "__main__":
    main()
