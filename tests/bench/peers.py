"""The ranks of other libraries, and of the plain things that ours is measured against. `RankGroup` starts them.

    python -m tests.bench.peers gloo --rank 0 --ranks 8        torch.distributed on gloo
    python -m tests.bench.peers mpi --ranks 8                  MPI by mpi4py, under mpirun
    python -m tests.bench.peers futex --rank 0 --ranks 8       the C library's barrier between processes,
    which sleeps in a futex
    python -m tests.bench.peers copy --rank 0 --ranks 2        memory: copies between two own arrays
    python -m tests.bench.peers bare --rank 0 --ranks 8        the least that messages take in Python

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
# bare messages: bytes of a piece, pieces that a ring holds, bytes of a head, bytes between words of two ranks
PIECE_BYTES, DEPTH, HEAD_BYTES, LINE_BYTES = 128 << 10, 8, 64, 64
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


def _shared_block(path: Path, rank: int, size_bytes: int) -> mmap.mmap:
    """Zeros, in a file that rank 0 makes, and names once it has prepared the contents."""
    part = path.with_suffix(".part")
    if rank == 0:
        part.touch()
        os.truncate(part, size_bytes)
    while rank and not path.exists():
        time.sleep(1e-3)
    with open(path if rank else part, "r+b") as file:
        return mmap.mmap(file.fileno(), size_bytes)


def _shared_barrier(folder: Path, rank: int, ranks: int) -> Callable[[], object]:
    libc = ctypes.CDLL(None, use_errno=True)
    wait = libc.pthread_barrier_wait
    path = folder / "barrier"
    block = _shared_block(path, rank, BARRIER_BYTES)
    pointer = ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(block)))
    if rank == 0:
        attributes = (ctypes.c_char * 64)()
        libc.pthread_barrierattr_init(attributes)
        libc.pthread_barrierattr_setpshared(attributes, PTHREAD_PROCESS_SHARED)
        if libc.pthread_barrier_init(pointer, attributes, ctypes.c_uint(ranks)):
            raise OSError("pthread_barrier_init refused a barrier between processes")
        os.replace(path.with_suffix(".part"), path)  # no reader sees a part of it
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


def _bare(rank: int, ranks: int) -> None:
    """Messages and broadcasts as they would be without flight records, faults, tags and time limits: a sender copies a
    head and a piece to its block and says so, receivers compare the head, copy the piece out and say so; a rank that
    waits yields its core. No checked message in Python can take less. (It has no fences, and so
    relies on a processor that keeps the order of writes, as x86 does.)
    """
    pipe, folder = connect_rank(rank)
    meet = _shared_barrier(folder, rank, ranks)
    step_bytes, words_bytes = HEAD_BYTES + PIECE_BYTES, (ranks + 1) * LINE_BYTES
    whole = words_bytes + DEPTH * step_bytes
    path = folder / "bare"
    block = memoryview(_shared_block(path, rank, (ranks + 1) * whole))  # a ring of each rank, one of broadcasts
    if rank == 0:
        os.replace(path.with_suffix(".part"), path)
    words, line, yield_core = block.cast("q"), LINE_BYTES // 8, os.sched_yield

    def parts_of(x: np.ndarray, ring: int) -> tuple[bytes, int, int, list[tuple[int, int]]]:
        """(head, the word that counts what is written, where pieces lie, pieces) of such a message."""
        head = f"{x.dtype.str} {x.shape}".encode().ljust(HEAD_BYTES)
        pieces = [(at, min(PIECE_BYTES, x.nbytes - at)) for at in range(0, x.nbytes, PIECE_BYTES)]
        return head, ring * whole // 8, ring * whole + words_bytes, pieces

    def sender(x: np.ndarray, ring: int, readers: list[int]) -> Callable[..., object]:
        head, written, first, pieces = parts_of(x, ring)
        value, read = x.data.cast("B"), [written + (1 + r) * line for r in readers]

        def send(*_: Any) -> None:
            sent = words[written]
            for at, count in pieces:
                for word in read:
                    while sent - words[word] >= DEPTH:
                        yield_core()
                start = first + sent % DEPTH * step_bytes
                block[start : start + HEAD_BYTES] = head
                block[start + HEAD_BYTES : start + HEAD_BYTES + count] = value[at : at + count]
                sent += 1
                words[written] = sent

        return send

    def receiver(out: np.ndarray, ring: int) -> Callable[..., object]:
        head, written, first, pieces = parts_of(out, ring)
        value, read = out.data.cast("B"), written + (1 + rank) * line

        def recv(*_: Any) -> None:
            taken = words[read]
            for at, count in pieces:
                while words[written] <= taken:
                    yield_core()
                start = first + taken % DEPTH * step_bytes
                if block[start : start + HEAD_BYTES] != head:
                    raise ValueError("another message than asked for")
                value[at : at + count] = block[start + HEAD_BYTES : start + HEAD_BYTES + count]
                taken += 1
                words[read] = taken

        return recv

    def collectives(x: np.ndarray, out: np.ndarray) -> Mapping[str, Callable[[], object]]:
        move = receiver(x, ranks) if rank else sender(x, ranks, list(range(1, ranks)))
        return {"broadcast": lambda: (move(), x)[1]}

    def messages(x: np.ndarray, out: np.ndarray) -> tuple[Callable[[int], object], Callable[[int], object]]:
        return sender(x, rank, [rank ^ 1]), receiver(out, rank ^ 1)

    serve_rank(pipe, _maker(rank, ranks, collectives, messages, meet), meet)


def main() -> None:
    """Run one rank."""
    kinds = {"gloo": _gloo, "mpi": _mpi, "futex": _futex, "copy": _copy, "bare": _bare}
    args = rank_arguments(*kinds)
    kinds[args.who](args.rank, args.ranks)


if __name__ == "__main__":
    main()


def without_torch() -> str:
    """Why PyTorch is not compared with; "" where it is installed."""
    return "PyTorch is not installed: pip install torch" if installed_version("torch") is None else ""
