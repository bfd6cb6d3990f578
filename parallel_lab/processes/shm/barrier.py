"""The one wait loop of a worker, and the errors that end a wait.

Waiting is adaptive. While the machine is quiet a rank looks, lets others run (sched_yield: another rank on the same
core may be the one that is missing) and looks again; a barrier of 8 ranks on 2 cores then takes about 15 us. After
LOOKS of that it sleeps until it is woken (a futex, where there is one). Where other programs want the cores, a yield
gives away a whole time slice of several milliseconds: a rank that loses much of its time so sleeps at once in all waits
for a while, and after that time tries again; each time it finds the cores still taken the while doubles, up to
MAX_CALM_S, and else it is halved. What goes to ranks of the same world that compute is not lost. A sleeping rank that
is woken runs before a busy program. A look reads the abort word, so no wait outlives a fault.

A barrier takes as long as the core with most ranks. The system starts a process on the core of the one that woke it,
and moves those that yield only after tens of milliseconds; so at the beginning of a run each rank goes to a core by its
number, and is free to be moved from there.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

from ...base.errors import ParallelLabError, message
from ...base.system import SYSTEM, processors
from ..faults import FAULT_ERRORS, SAME_CALLS, difference
from ..flight import FlightEntry
from ..one_caller import OneCaller
from . import futex
from .arena import ABORT, FINISHED, LANE, MOVING, PID, PROGRAM, QUIET_NS, RUN, Arena, Wait
from .shared_memory import NEEDS_FENCE, fence

# how often a rank yields and looks before it sleeps: a core that falls idle takes over ranks that wait for the other
LOOKS = 40
STOLEN_S = 5e-4  # a yield that takes longer than this has given its core to another program, or to a rank that computes
# judged once so much was lost: at the beginning of a run the first ranks wait once or twice for those still starting
MIN_LOST_S = 4e-3
# a rank that has lost more of its time does not yield for FIRST_CALM_S, and if that happens again for longer
MAX_LOST = 0.3
FIRST_CALM_S, MAX_CALM_S = 0.01, 1.0
# how long a rank's finding holds that time was lost to ranks of the same world: a look takes half a millisecond
TRUST_S = 0.05
LOOKS_AT_OTHERS = 2
# sleeps at the beginning of a run after which a rank goes to its core again: it may have been woken on another
SETTLING = 8
PUBLISH_S = 2e-3  # waits longer than this are shown to the watch (watch.py)
SHORTEST_SLEEP_S, BUSY_SLEEP_S, MAX_SLEEP_S, LONG_WAIT_S, MAX_LONG_SLEEP_S = 2e-5, 2e-4, 1e-3, 1.0, 5e-3

yield_core = getattr(os, "sched_yield", lambda: time.sleep(0))

Bell = tuple[int, int, int]  # word to sleep on, word that asks for being woken, value to put there
# (peer, word, value it must reach, whether the peer brings it about among its started collectives)
Missing = tuple[int, int, int, bool]


class Condition:
    """Something a rank can wait for.  bell: None: nobody rings for this"""

    bell: Bell | None = None

    def test(self) -> bool:
        """Whether it has come."""
        raise NotImplementedError

    def examine(self) -> None:
        """Raise what makes it impossible."""

    def missing(self) -> Missing | None:
        """Who has to do what next; None when it has come."""
        raise NotImplementedError


class WordReached(Condition):
    """Waiting until words[index] >= value, brought about by `peer`; `edge`: what to publish instead (see channels);
    `asked`: word by which the peer knows that somebody sleeps until then (0: it does not look).
    """

    def __init__(
        self, words: memoryview, index: int, value: int, peer: int, edge: tuple[int, int] | None = None, asked: int = 0
    ) -> None:
        self.words, self.index, self.value, self.peer = words, index, value, peer
        self.edge = edge or (index, value)
        self.bell = (index, asked, value) if asked else None

    def test(self) -> bool:
        return self.words[self.index] >= self.value

    def missing(self) -> Missing | None:
        return None if self.test() else (self.peer, *self.edge, False)


class WaitLoop(OneCaller):
    """One rank's side of all waits of a run. `progress`: called in waits, moves something, returns whether there is
    more (None: nothing to move); `fault_raised`: this rank's program knows of the fault; `behind`: (who has what to do
    for the oldest started collective, its index + 1) or None; `entry`: the coming wait's index + 1 (0: newest).
    """

    def __init__(self, arena: Arena, rank: int) -> None:
        self.arena, self.rank, self.words = arena, rank, arena.words
        slot = arena.map.slot(rank)
        self._program, self._lane = slot + PROGRAM, slot + LANE  # words of their stamps
        self._stamp = MOVING
        self.progress: Callable[[], bool] | None = None
        self.behind: Callable[[], tuple[Missing | None, int] | None] = lambda: None
        self.warn: Callable[[str], object] = lambda text: None
        self.fault_raised = False
        self.entry = 0
        self.futex = futex.find(arena)
        self._told_behind: Missing | None = None
        self._behind_stamp = MOVING
        self.calm_until = 0.0
        self._settling = 0
        self._calm_s = FIRST_CALM_S
        self._yielding_since, self._lost_s = time.perf_counter(), 0.0
        self.watch_forks()

    def begin_run(self) -> None:
        self.entry, self.progress, self._told_behind = 0, None, None
        self._settling = SETTLING
        self.anybody_may_call()
        self._go_to_core()

    def _go_to_core(self) -> None:
        """Where each core has a rank: go to the core of this rank's number, and leave the system free to move it."""
        if not SYSTEM.affinity:
            return
        try:
            mine = processors()
            if 1 < len(mine) <= self.arena.map.world_size:
                try:
                    # each round begins one core further, so that those of one part, the even ranks say, are on all
                    os.sched_setaffinity(0, {mine[(self.rank + self.rank // len(mine)) % len(mine)]})
                finally:
                    os.sched_setaffinity(0, set(mine))
        except OSError:  # a system that does not allow it
            self._settling = 0

    def check_abort(self) -> None:
        """Raise the error of the fault that stopped the run, if there is one."""
        if self.words[ABORT]:
            raise self.fault_error()

    def wait(self, wait: Condition, start: float = 0.0) -> None:
        """Wait until `wait` has come; `start`: a recent perf_counter(). Raises what stopped the run or prevents it."""
        test, clock = wait.test, time.perf_counter
        if not start:
            start = clock()
        if start >= self.calm_until:
            words, progress, last, looks = self.words, self.progress, start, LOOKS
            while True:
                yield_core()
                come = test()
                now = clock()
                if now - last > STOLEN_S:
                    self.lost_time(now, now - last)
                    if not come and now < self.calm_until:
                        break
                if come:
                    return
                if words[ABORT]:
                    raise self.fault_error()
                looks -= 1
                if not looks:
                    break
                if progress is None:
                    last = now
                else:
                    progress()
                    last = clock()
        self._sleep(wait, start)
        if self._settling:
            self._settling -= 1
            self._go_to_core()

    def let_others_run(self) -> None:
        """In the middle of long work: let ranks of this core come as far, unless other programs want the cores."""
        if time.perf_counter() >= self.calm_until:
            yield_core()

    def lost_time(self, now: float, lost_s: float) -> None:
        """A yield gave the core away for `lost_s`. Once that adds up, and is much of the time since yielding began, and
        goes to other programs, sleep in waits for a while, each time for longer; where it happens now and then,
        yielding is still the faster way.
        """
        if now < self._yielding_since:
            return
        self._lost_s += lost_s
        if self._lost_s < MIN_LOST_S:
            return
        much = self._lost_s > MAX_LOST * (now - self._yielding_since)
        since = self._trusted_until(now) if much else now
        if since:
            self._yielding_since = since
            self._calm_s = max(self._calm_s / 2, FIRST_CALM_S)
        else:
            self._yielding_since = self.calm_until = now + self._calm_s
            self._calm_s = min(2 * self._calm_s, MAX_CALM_S)
        self._lost_s = 0.0

    def _trusted_until(self, now: float) -> float:
        """Until when what is lost counts as gone to ranks of this world; 0.0: it goes to other programs."""
        seen = self.words[QUIET_NS] / 1e9
        if not 0 <= now - seen < TRUST_S:
            if self._others_compute():
                return 0.0
            self.words[QUIET_NS], seen = int(now * 1e9), now
        return seen + TRUST_S

    def _others_compute(self) -> bool:
        """Whether more processes want a core than this world's ranks; True where the system does not tell."""
        if not SYSTEM.states:
            return True
        try:
            for _ in range(LOOKS_AT_OTHERS):
                before = self._running_ranks()
                with open("/proc/loadavg", "rb") as file:
                    running = int(file.read().split()[3].partition(b"/")[0])
                if running < 1:  # this process runs, so the file says nothing here
                    return True
                if running <= max(before, self._running_ranks()):  # ranks fall asleep and wake while one looks
                    return False
        except (OSError, ValueError, IndexError):
            pass
        return True

    def _running_ranks(self) -> int:
        arena, running = self.arena, 0
        for rank in range(arena.map.world_size):
            with (
                suppress(FileNotFoundError, ProcessLookupError),
                open(f"/proc/{self.words[arena.map.slot(rank) + PID]}/stat", "rb") as file,
            ):
                running += file.read().rpartition(b")")[2].split()[0] == b"R"
        return running

    def _sleep(self, wait: Condition, start: float) -> None:
        """Sleep until the others ring, or look now and then. After a moment the wait is published (`watch.py`)."""
        words, clock = self.words, time.perf_counter
        published: Missing | None = None
        more, slept = self.progress is not None, False
        try:
            while True:
                bell = wait.bell
                if bell is not None:  # all who ask at this word are at one barrier: those of the next have another
                    word, asked, value = bell
                    seen = words[word]
                    words[asked] = value
                    if NEEDS_FENCE:
                        fence()
                if wait.test():
                    if bell is not None:  # two that came at once may have missed each other: then nobody else rings
                        self.ring(bell)
                    return
                if words[ABORT]:
                    raise self.fault_error()
                waited = clock() - start
                if slept:
                    wait.examine()
                    if published is not None and self.progress is not None and words[self._lane]:
                        words[self._lane] = MOVING
                    more = self.progress is not None and self.progress()
                    waited = clock() - start
                    if waited > PUBLISH_S:
                        published = self._publish(wait.missing(), published, waited)
                        self._publish_behind()
                        if published is not None:
                            self.check_left(published)
                # nobody rings for a fault, nor for things that this rank has to do for others meanwhile
                if bell is None or self.futex is None:
                    longest_s = MAX_SLEEP_S if waited < LONG_WAIT_S else MAX_LONG_SLEEP_S
                    time.sleep(min(max(waited / 8, SHORTEST_SLEEP_S), longest_s))
                else:
                    shortest_s = BUSY_SLEEP_S if more else MAX_SLEEP_S
                    self.futex.wait(word, seen, min(max(waited / 8, shortest_s), MAX_LONG_SLEEP_S))
                if wait.test():
                    return
                slept = True
        finally:
            if published is not None:
                words[self._program] = words[self._lane] = 0

    def _publish(self, missing: Missing | None, published: Missing | None, waited_s: float) -> Missing | None:
        if missing is None or missing == published:
            return published
        self._tell(PROGRAM, missing, self.entry, time.monotonic_ns() - int(waited_s * 1e9))
        return missing

    def _publish_behind(self) -> None:
        """Publish what the oldest started collective waits for, with which this rank goes on meanwhile."""
        missing, entry = self.behind() or (None, 0)
        if missing is None:
            stamp = MOVING if entry else 0
        else:
            if missing != self._told_behind:
                self._behind_stamp = self._tell(LANE, missing, entry)
                self._told_behind = missing
            stamp = self._behind_stamp
        self.words[self._lane] = stamp

    def _tell(self, where: int, missing: Missing, entry: int, since_ns: int = 0) -> int:
        self._stamp += 1
        self.arena.write_wait(self.rank, where, Wait(self._stamp, *missing, entry, since_ns))
        return self._stamp

    def check_left(self, missing: Missing) -> None:
        """Raise if the rank that is waited for has returned: it will not come any more."""
        peer, index, value, _ = missing
        words = self.words
        if words[self.arena.map.slot(peer) + FINISHED] == words[RUN]:
            fence()
            if words[index] < value:
                self._left_early(peer)

    def ring(self, bell: Bell) -> None:
        """What `bell` is for has come: wake all who sleep for it."""
        word, asked, value = bell
        words = self.words
        if words[word] >= value:
            return  # it has rung
        words[word] = value
        fence()
        if words[asked] >= value and self.futex is not None:
            self.futex.wake(word)

    # errors

    def fault_error(self) -> BaseException:
        """The error to raise here for the fault that stopped the run, with what this rank was doing."""
        self.fault_raised = True
        author, note = self.arena.read_fault()
        text = note["text"]
        entry = self.arena.waiting_entry(self.rank)
        stopped = ""
        if author != self.rank and entry is not None:
            stopped = f"stopped {'in' if entry.end_s is None else 'after'} {entry}"
            text = f"{text} Rank {self.rank} was {stopped}."
        error = FAULT_ERRORS.get(note["kind"], ParallelLabError)(text)
        error.stopped = stopped  # for a console that shows the reason once
        error.secondary = author != self.rank  # the parent folds these into one line
        return error

    def raise_fault(self, kind: str, text: str, **attributes: object) -> NoReturn:
        """Write the fault note, so that every rank stops, and raise it here."""
        self.arena.write_fault(self.rank, kind, text, **attributes)
        raise self.fault_error()

    def mismatch(self, text: str, one: int, other: int) -> None:
        """Raise CollectiveMismatch on every rank.  one, other: the two that disagree"""
        self.raise_fault("CollectiveMismatch", text, ranks=sorted((one, other)))

    def differ(self, one: FlightEntry | None, other: FlightEntry | None, first: int, second: int) -> None:
        """Raise, on every rank, that the ranks `first` and `second` met in different calls, these two."""
        if one is None or other is None:
            what = f"rank {first} called {one or 'something'} and rank {second} {other or 'something else'}"
            self.mismatch(message(what, allowed=SAME_CALLS), first, second)
        self.mismatch(difference(one, other), first, second)

    def _left_early(self, peer: int) -> None:
        mine, theirs = self.arena.waiting_entry(self.rank), self.arena.last_entry(peer)
        last = f"its last call was {theirs}" if theirs else "it made no call"
        what = f"rank {peer} has returned while rank {self.rank} waits for it in {mine}; {last}"
        self.mismatch(message(what, allowed=SAME_CALLS), self.rank, peer)
