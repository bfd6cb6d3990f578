"""A process that saves checkpoints until it is killed. Started once, it clones itself for every order that it reads
from its input:

    save <folder> 1           one rank saves <folder>/x.ckpt with 1, 2, 3, ... in every element
    save <folder> 4           four ranks save the distributed checkpoint <folder>
    crash <folder> <kind> <k> <when>    one save of 1, then one of 2 that ends by os._exit before or after its k-th call
                                        to the system

Answers: "pids <group leader> ...", then every number whose save has returned, then "ended <exit code>".
"""

from __future__ import annotations

import mmap
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from parallel_lab.layout.tensor_layout import TensorLayout
from parallel_lab.train.checkpoint import TensorRecord, save_distributed, write_checkpoint

ELEMENTS = 1 << 16  # 512 KiB: long enough to be hit while it is written
DEADLINE_S = 30.0  # a saver that nobody kills ends by itself
CRASHED = 9


def say(*words: object) -> None:
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def whole(number: int) -> dict[str, TensorRecord]:
    return {"w": TensorRecord(np.full(ELEMENTS, float(number))), "number": TensorRecord(np.int64(number))}


def part(number: int, rank: int, ranks: int) -> dict[str, TensorRecord]:
    array = np.full(ELEMENTS // ranks, float(number))
    return {
        "w": TensorRecord(array, (ELEMENTS,), TensorLayout((ranks,), (0,)), rank),
        "number": TensorRecord(np.int64(number)),
    }


def save_one(folder: Path, number: int) -> None:
    write_checkpoint(folder / "x.ckpt", whole(number))


def shared_barrier(ranks: int) -> Callable[[int], Callable[[], None]]:
    """A barrier of forked processes: each counts its arrivals in shared memory and waits for the others'."""
    counts = np.frombuffer(mmap.mmap(-1, 8 * ranks), np.int64)

    def of_rank(rank: int) -> Callable[[], None]:
        def wait() -> None:
            counts[rank] += 1
            end = time.monotonic() + DEADLINE_S
            while counts.min() < counts[rank]:
                if time.monotonic() > end:
                    os._exit(3)
                time.sleep(0.0002)

        return wait

    return of_rank


def save_for_ever(folder: Path, ranks: int) -> None:
    barrier, rank, pids = shared_barrier(ranks), 0, [os.getpid()]
    for other in range(1, ranks):
        pid = os.fork()
        if not pid:
            rank = other
            break
        pids.append(pid)
    if rank == 0:
        say("pids", *pids)
    end, number = time.monotonic() + DEADLINE_S, 0
    while time.monotonic() < end:
        number += 1
        if ranks == 1:
            save_one(folder, number)
        else:
            save_distributed(folder, part(number, rank, ranks), rank=rank, world_size=ranks, barrier=barrier(rank))
        if rank == 0:
            say(number)


def crash(folder: Path, kind: str, at: int, when: str) -> None:
    """Count what a save asks of the system, and end at the `at`-th call."""

    def save(number: int) -> object:
        return save_one(folder, number) if kind == "file" else save_distributed(folder, part(number, 0, 1))

    save(1)
    calls = 0

    def counted(call: Callable) -> Callable:
        def run(*args, **kwargs):
            nonlocal calls
            calls += 1
            if calls == at and when == "before":
                os._exit(CRASHED)
            mine = calls
            try:
                return call(*args, **kwargs)
            finally:
                if mine == at:
                    os._exit(CRASHED)

        return run

    opened = os.fdopen

    def fdopen(*args, **kwargs):
        file = opened(*args, **{**kwargs, "buffering": 0})  # each piece is its own call
        return _Counted(file, counted)

    for name in (
        "open",
        "close",
        "fsync",
        "replace",
        "rename",
        "chmod",
        "unlink",
        "scandir",
        "listdir",
        "mkdir",
        "stat",
    ):
        setattr(os, name, counted(getattr(os, name)))
    os.fdopen = fdopen
    save(2)


class _Counted:
    """A file whose writes count."""

    def __init__(self, file, counted: Callable) -> None:
        self._file, self.write, self.flush = file, counted(file.write), file.flush

    def __enter__(self):
        return self

    def __exit__(self, *error) -> None:
        self._file.close()


def main() -> None:
    say("ready")
    for line in sys.stdin:
        kind, folder, *rest = line.split()
        pid = os.fork()
        if not pid:
            os.setsid()
            try:
                if kind == "save":
                    save_for_ever(Path(folder), int(rest[0]))
                else:
                    say("pids", os.getpid())
                    crash(Path(folder), rest[0], int(rest[1]), rest[2])
            except BaseException as error:
                say("raised", repr(error))
                os._exit(1)
            os._exit(0)
        _, status = os.waitpid(pid, 0)
        say("ended", os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    main()
