"""Meeting the other members of a group: arrivals compared as they come, and the one wait loop of a worker.

Ranks meet in pairs. Each ordered pair of ranks has one arrival word, `sequence << 32 | check`, where the sequence counts the steps the two have made
together, in whatever groups, and the check is a 32-bit digest of what is being asked for. Two ranks that ask for different things at the same
sequence (another kind, shape, dtype, group, or the same calls in another order) see different words and both know at once; nothing waits for
a time limit. A group meets when each member has seen every other member's word reach the sequence.

    step k:   write (k, check) to each member's row  ->  wait until my own row shows k for each member  ->  data of step k may be read
    end:      write (k + 1, 0), which nobody waits for: "I have read all I need", so that the buffers behind it may be used again

Waiting is adaptive: a few looks with sched_yield (another rank on the same core may be the one that is missing), then sleeps that grow with the
time already waited, 1/8 of it and at most 1 ms (5 ms after the first second). Yielding for longer would take the core from the rank that computes.
Each look reads the abort word, so no wait outlives a fault.
"""

from __future__ import annotations

import os
import time
import zlib
from collections.abc import Callable

from ...errors import CollectiveMismatch, CollectiveTimeout, DeadlockError, ParallelLabError, RankDied, RankRaised, message
from ..calls import TWO_LINES
from .arena import ABORT, FINISHED, LOOSE_ORIGIN, LOOSE_SHAPE, RUN, WAIT_INDEX, WAIT_PEER, WAIT_SINCE_NS, WAIT_STAMP, WAIT_VALUE, Arena, fence

__all__ = ["FAULT_ERRORS", "Meeting", "RunInterrupted", "digest"]

LOOKS = 16  # sched_yield calls before the clock is read for the first time
SPIN_S = 300e-6  # how long a rank keeps yielding: a few turns of 8 ranks on 2 cores (100 us slept too early there, 1 ms was no better)
MAX_SLEEP_S, LONG_WAIT_S, MAX_LONG_SLEEP_S = 1e-3, 1.0, 5e-3

_yield = getattr(os, "sched_yield", lambda: time.sleep(0))


class RunInterrupted(KeyboardInterrupt):
    """The run was interrupted from the notebook. A KeyboardInterrupt, so that `except Exception` in user code does not swallow it."""


FAULT_ERRORS: dict[str, type[BaseException]] = {
    "RankDied": RankDied,
    "RankRaised": RankRaised,
    "CollectiveMismatch": CollectiveMismatch,
    "CollectiveTimeout": CollectiveTimeout,
    "DeadlockError": DeadlockError,
    "Interrupted": RunInterrupted,
}


def digest(*parts: object) -> int:
    """32 bits that are equal in every process for equal parts; never 0, which means "nothing to compare"."""
    return zlib.crc32(repr(parts).encode()) or 1


class Meeting:
    """One rank's side of all meetings of a run.

    progress       called in long waits: pushes messages that did not fit their channel
    fault_raised   whether this rank's program has heard of the fault that stopped the run
    """

    def __init__(self, arena: Arena, rank: int) -> None:
        self.arena, self.rank = arena, rank
        self.words = arena.words
        self.slot = arena.map.slot(rank)
        self.stamp = 0
        self.progress: Callable[[], object] | None = None
        self.fault_raised = False
        self.sequence = [0] * arena.map.world_size
        self.inbox = [arena.map.arrival(rank, peer) for peer in range(arena.map.world_size)]
        self.outbox = [arena.map.arrival(peer, rank) for peer in range(arena.map.world_size)]

    def begin_run(self) -> None:
        self.sequence = [0] * self.arena.map.world_size

    def meet(self, peers: list[int], check: int, loose: tuple[int, int] | None = None) -> None:
        """Arrive and wait for all `peers`.

        check   digest of what this rank asks for; peers with another one raise CollectiveMismatch, as this rank does
        loose   (origin, shape) digests compared only with peers that give them too (0: not given)
        """
        words, sequence, inbox, outbox = self.words, self.sequence, self.inbox, self.outbox
        if loose is not None:
            words[self.slot + LOOSE_ORIGIN], words[self.slot + LOOSE_SHAPE] = loose
        fence()
        for peer in peers:
            sequence[peer] += 1
            words[outbox[peer]] = (sequence[peer] << 32) | check
        for peer in peers:
            expected = (sequence[peer] << 32) | check
            here = inbox[peer]
            got = words[here]
            if got < expected and (got >> 32) < sequence[peer]:
                self.wait(here, sequence[peer] << 32, peer)
                got = words[here]
            if got != expected and (got >> 32) == sequence[peer]:
                self._differ(peer)
            if loose is not None:
                fence()
                slot = self.arena.map.slot(peer)
                other = words[slot + LOOSE_ORIGIN], words[slot + LOOSE_SHAPE]
                # a peer that went on has compared itself with us and was content; its words now belong to a later call
                if words[here] == expected and any(a and b and a != b for a, b in zip(loose, other, strict=True)):
                    self._differ(peer)
        fence()

    def release(self, peers: list[int]) -> None:
        """This rank has read all it needs from the peers' buffers."""
        fence()
        words, sequence, outbox = self.words, self.sequence, self.outbox
        for peer in peers:
            sequence[peer] += 1
            words[outbox[peer]] = sequence[peer] << 32

    def wait_released(self, marks: list[tuple[int, int]]) -> None:
        """Wait until each (peer, sequence) has been reached: before a buffer is written that those peers may still read."""
        words, inbox = self.words, self.inbox
        for peer, sequence in marks:
            if (words[inbox[peer]] >> 32) < sequence:
                self.wait(inbox[peer], sequence << 32, peer)

    def check_abort(self) -> None:
        """Raise the error of the fault that stopped the run, if there is one."""
        if self.words[ABORT]:
            raise self.fault_error()

    def wait(self, index: int, value: int, peer: int, *, edge: tuple[int, int] | None = None) -> None:
        """Wait until words[index] >= value, which `peer` will bring about.

        edge    (index, value) to publish instead, where what blocks this rank is another word (see channels)

        After the spinning phase the wait is published in this rank's slot: from there the parent reads who waits for whom.
        """
        words = self.words
        for _ in range(LOOKS):
            if words[index] >= value:
                return
            if words[ABORT]:
                raise self.fault_error()
            _yield()
        clock = time.monotonic
        start = clock()
        while clock() - start < SPIN_S:
            for _ in range(4):
                if words[index] >= value:
                    return
                _yield()
            if words[ABORT]:
                raise self.fault_error()
        slot, run = self.slot, words[RUN]
        words[slot + WAIT_PEER] = peer
        words[slot + WAIT_INDEX], words[slot + WAIT_VALUE] = edge or (index, value)
        words[slot + WAIT_SINCE_NS] = int(start * 1e9)
        self.stamp += 1
        fence()
        words[slot + WAIT_STAMP] = self.stamp
        finished = self.arena.map.slot(peer) + FINISHED
        try:
            while words[index] < value:
                if words[ABORT]:
                    raise self.fault_error()
                if self.progress is not None:
                    self.progress()
                if words[finished] == run:
                    fence()
                    if words[index] < value:
                        self._left_early(peer)
                    break
                waited = clock() - start
                time.sleep(min(waited / 8, MAX_SLEEP_S if waited < LONG_WAIT_S else MAX_LONG_SLEEP_S))
        finally:
            words[slot + WAIT_STAMP] = 0

    # errors

    def fault_error(self) -> BaseException:
        """The error to raise here for the fault that stopped the run, with what this rank was doing."""
        self.fault_raised = True
        author, note = self.arena.read_fault()
        text = note["text"]
        entry = self.arena.last_entry(self.rank)
        stopped = ""
        if author != self.rank and entry is not None:
            stopped = f"stopped {'in' if entry.end_s is None else 'after'} {entry}"
            text = f"{text} Rank {self.rank} was {stopped}."
        error = FAULT_ERRORS.get(note["kind"], ParallelLabError)(text)
        error.stopped = stopped  # for a console that shows the reason once
        error.secondary = author != self.rank  # the parent folds these into one line
        return error

    def raise_fault(self, kind: str, text: str, **attributes: object) -> None:
        """Write the fault note, so that every rank stops, and raise it here."""
        self.arena.write_fault(self.rank, kind, text, **attributes)
        raise self.fault_error()

    def _differ(self, peer: int) -> None:
        mine, theirs = self.arena.last_entry(self.rank), self.arena.last_entry(peer)
        first, second = sorted((mine, theirs), key=lambda e: e.rank) if theirs else (mine, None)
        if second is None:
            what = f"rank {self.rank} called {mine} and rank {peer} something else"
        else:
            names = ("kind", "group", "number", "dtype", "shape", "detail", "origin")
            differing = [n for n in names if getattr(first, n) != getattr(second, n)]
            if first.kind == second.kind and "number" in differing and len(differing) > 1:
                differing.remove("number")
            different = ", ".join(differing) or "the number of calls"
            what = f"rank {first.rank} called {first} and rank {second.rank} called {second}; they differ in {different}"
        allowed = "All members of a group must make the same calls in the same order"
        hint = TWO_LINES if what.endswith("differ in origin") else ""
        self.raise_fault("CollectiveMismatch", message(what, allowed=allowed, hint=hint), ranks=sorted((self.rank, peer)))

    def _left_early(self, peer: int) -> None:
        mine, theirs = self.arena.last_entry(self.rank), self.arena.last_entry(peer)
        last = f"its last call was {theirs}" if theirs else "it made no call"
        what = f"rank {peer} has returned while rank {self.rank} waits for it in {mine}; {last}"
        self.raise_fault(
            "CollectiveMismatch",
            message(what, allowed="All members of a group must make the same calls in the same order"),
            ranks=sorted((self.rank, peer)),
        )
