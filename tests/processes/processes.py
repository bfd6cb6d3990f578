"""What tests of real processes ask about them."""

import os
import signal
import time
from pathlib import Path

PROMISE_BOUND_S = 5.0  # for promises within a second: other work on the machine must not fail a test


def state_of(pid: int) -> str:
    """The letter of /proc, "Z" also for a process that is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"


def stop(pid: int) -> None:
    """Stop a process by a signal; it has stopped then. Where no signal tells it of its parent's end, the system
    continues it at that end if it has stopped before, and not if it stops later.
    """
    os.kill(pid, signal.SIGSTOP)
    while state_of(pid) not in "TZ":
        time.sleep(1e-3)


def gone(pids, limit_s: float) -> float | None:
    """Seconds until none of `pids` lives; None when some still do after limit_s."""
    start = time.monotonic()
    while any(state_of(pid) != "Z" for pid in pids):
        if time.monotonic() - start > limit_s:
            return None
        time.sleep(0.002)
    return time.monotonic() - start


def descendants(pid: int) -> list[int]:
    """Children of a process, and theirs."""
    found, waiting = [], [pid]
    while waiting:
        for path in Path(f"/proc/{waiting.pop()}/task").glob("*/children"):
            try:
                children = [int(w) for w in path.read_text().split()]
            except OSError:
                continue
            found += children
            waiting += children
    return found
