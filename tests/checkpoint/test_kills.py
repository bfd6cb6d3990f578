"""A save killed at any moment leaves the old checkpoint or the new one, whole; the next save clears up."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from parallel_lab.train.checkpoint import load_distributed, read_checkpoint
from tests.checkpoint import saver
from tests.checkpoint.drawn import names
from tests.checkpoint.saver import CRASHED

ROOT = Path(__file__).resolve().parents[2]
REPLY_S = 60.0


class Savers:
    """The process of saver.py and its clones."""

    def __init__(self) -> None:
        env = {**os.environ, "PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "tests.checkpoint.saver"]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self.process = subprocess.Popen(command, cwd=ROOT, env=env, **pipes, text=True, bufsize=1)
        self.group = 0  # of the saver that is at work
        os.set_blocking(self.process.stdout.fileno(), False)
        self._rest = ""
        assert self.line() == "ready"

    def line(self, timeout_s: float = REPLY_S) -> str:
        """The next line; "" if none comes in time."""
        end = time.monotonic() + timeout_s
        while "\n" not in self._rest:
            with contextlib.suppress(BlockingIOError):
                self._rest += os.read(self.process.stdout.fileno(), 1 << 16).decode()
                continue
            if time.monotonic() > end:
                return ""
            time.sleep(0.0005)
        line, _, self._rest = self._rest.partition("\n")
        return line

    def order(self, *words: object) -> list[int]:
        """Give an order; the process ids of those who carry it out, the group's leader first."""
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        word, *pids = self.line().split()
        assert word == "pids", (word, pids)
        self.group = int(pids[0])
        return [int(pid) for pid in pids]

    def ended(self) -> tuple[int, int]:
        """(the last number whose save has returned, exit code) of a saver that has ended."""
        last = 0
        while True:
            word, *more = self.line().split() or ["nothing"]
            if word == "ended":
                self.group = 0  # the system may give the number to somebody else
                return last, int(more[0])
            assert word.isdigit(), (word, more)
            last = int(word)

    def close(self) -> None:
        if self.group:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.group, signal.SIGKILL)
        self.process.stdin.close()
        self.process.kill()
        self.process.wait(timeout=30)
        self.process.stdout.close()


@pytest.fixture(scope="module")
def savers():
    made = Savers()
    try:
        yield made
    finally:
        made.close()


def found_in(folder: Path, ranks: int) -> int:
    """The number in the checkpoint; the whole of it must hold that number."""
    tensors = read_checkpoint(folder / "x.ckpt").tensors if ranks == 1 else load_distributed(folder)
    number = int(tensors["number"].array)
    assert np.array_equal(tensors["w"].array, np.full(saver.ELEMENTS, float(number)))
    return number


def killed_once(savers: Savers, folder: Path, ranks: int, rng) -> tuple[int, int]:
    """Kill a saver at a random moment: (last save that had returned, the one found)."""
    pids = savers.order("save", folder, ranks)
    first = savers.line()
    assert first == "1"
    try:
        time.sleep(float(rng.uniform(0, 0.03)))
        victim = int(rng.integers(-1, ranks))
        if victim >= 0 and ranks > 1:
            os.kill(pids[victim], signal.SIGKILL)  # one rank; the others come to the barrier and stay there
            time.sleep(float(rng.uniform(0, 0.02)))
    finally:
        os.killpg(pids[0], signal.SIGKILL)
    last, _ = savers.ended()
    return max(last, 1), found_in(folder, ranks)


def kill_many(savers: Savers, folder: Path, ranks: int, rng, count: int) -> None:
    wrong, between = [], 0
    for i in range(count):
        place = folder / str(i)
        place.mkdir()
        returned, found = killed_once(savers, place, ranks, rng)
        between += found != returned
        # the clones of the killed group may live a moment longer, with the lock of the part they were writing
        if found not in (returned, returned + 1):
            wrong.append((i, returned, found))
        if ranks == 1:
            saver.save_one(place, 0)
            left = [name for name in names(place) if name != "x.ckpt"]
            assert left == [] or _gone_soon(place), left
    print(f"{count} kills, {between} between commit and return")
    assert wrong == []


def _gone_soon(place: Path) -> bool:
    end = time.monotonic() + 5
    while time.monotonic() < end:
        saver.save_one(place, 0)
        if names(place) == ["x.ckpt"]:
            return True
        time.sleep(0.02)
    return False


@pytest.mark.quick(0)
@pytest.mark.faults("saves", cases=1)
@pytest.mark.parametrize("ranks", [1, 4])
@pytest.mark.parametrize("count", [12, pytest.param(100, marks=pytest.mark.exhaustive)])
def test_killed_at_a_random_moment_many_times(savers, tmp_path, rng, count, ranks):
    kill_many(savers, tmp_path, ranks, rng, count)


@pytest.mark.quick(1)
@pytest.mark.faults("saves", cases=2)
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("kind", ["file", "folder"])
def test_ended_at_every_call_to_the_system_once(savers, tmp_path, kind, when):
    ranks, seen, at = 1 if kind == "file" else 0, [], 0
    while True:
        at += 1
        place = tmp_path / str(at)
        place.mkdir()
        savers.order("crash", place, kind, at, when)
        _, code = savers.ended()
        assert code in (0, CRASHED)
        seen.append(found_in(place, ranks))
        if kind == "file":
            saver.save_one(place, 3)
            assert names(place) == ["x.ckpt"]
        else:
            saver.save_distributed(place, saver.part(3, 0, 1))
            assert len(names(place)) == 2 and found_in(place, ranks) == 3
        if code == 0:
            break
    print(f"{kind}, {when}: {at - 1} calls, commit at {seen.index(2) + 1}")
    assert at > 8  # open, write, fsync, replace, ... were counted
    assert seen == sorted(seen) and seen[0] == 1 and seen[-1] == 2  # one commit, in one step


def test_the_check_sees_a_save_that_is_not_atomic(savers, tmp_path, monkeypatch):
    """The tooth: the obvious way, open and write, leaves neither after the first call."""
    saver.save_one(tmp_path, 1)
    data = (tmp_path / "x.ckpt").read_bytes()
    (tmp_path / "x.ckpt").write_bytes(data[: len(data) // 2])
    with pytest.raises(ValueError, match="by its header"):
        found_in(tmp_path, 1)
