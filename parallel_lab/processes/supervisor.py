"""Looking after ranks: one state machine for pools, launchers and hubs.

    starting --all ready--> idle --job--> running --fault, death, interrupt--> stopping
                             ^               |                                    |
                             +---------------+---- all have reported or are gone -+        closed: nothing any more

    idle for a while: what the last job has used is given back; for long: ranks that keep nothing are released

`Supervisor.tick(now, facts)` receives what a transport sees and returns what it has to do. It reads no clock and holds
neither processes nor memory, so a test walks through every transition on a virtual clock. The transports are thin: the
pools (job_pool.py with shm/pool.py and mpi/pool.py), the launcher (launch/processes.py) and the hub (world/hub.py).

A run that has to stop gets time for it: ranks in a collective raise at once, the others at their next call. Those that
have not reported when the time is over are killed.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from numbers import Real

from ..base.errors import ArgumentError, ArgumentTypeError, shorten

LOOK_S = 0.05  # how often a transport calls `tick` while a run is under way
LATE = "CollectiveTimeout"


@dataclass(frozen=True)
class Limits:
    """Seconds that a supervisor grants; math.inf: no limit.

    timeout_s, warn_after_s   to a rank that keeps others waiting: then the run stops, and before that a warning comes
    start_s, start_warn_s     the same until all ranks are ready
    fault_s       to the ranks that have not reported, after a fault
    loading_s     the same while one of them still loads its function: it sees the fault before it starts
    culprit_s     the same while the rank at fault has not ended: its traceback is what everybody wants to read
    death_s       the same after the death of a rank
    interrupt_s   the same after an interrupt;  polite_s: of these, until every collective raises; before, ranks leave
                  the run where they agree to
    ask_s         before a rank is killed it is asked to end, so much earlier; 0: it is not asked
    trim_s, idle_s   ranks without a job give freed memory back after the first time, and end after the second
    """

    timeout_s: float
    warn_after_s: float
    start_s: float
    start_warn_s: float = math.inf
    fault_s: float = math.inf
    loading_s: float = 0.0
    culprit_s: float = 0.0
    death_s: float = math.inf
    interrupt_s: float = math.inf
    polite_s: float = 0.0
    ask_s: float = 0.0
    trim_s: float = math.inf
    idle_s: float = math.inf


def check_seconds(where: str, **limits: float) -> None:
    """Raise ArgumentError unless all are seconds above 0 (math.inf: no limit)."""
    for name, value in limits.items():
        if not isinstance(value, Real) or isinstance(value, bool):
            raise ArgumentTypeError(f"{name}={shorten(value)}", where=where, allowed="Seconds above 0")
        if not value > 0:
            raise ArgumentError(f"{name}={value!r}", where=where, allowed="Seconds above 0")


@dataclass(frozen=True)
class Stall:
    """Ranks that keep others waiting: who for whom (`text`), the longest wait (`waited_s`), `kind`: LATE, a fault once
    it lasts too long, or another error's name, a fault at once, such as a deadlock.
    """

    ranks: tuple[int, ...]
    text: str
    waited_s: float
    kind: str = LATE


@dataclass(frozen=True)
class Facts:
    """What a transport sees: ranks that have started (`ready`), are done with the run (`reported`: returned, raised,
    left) or have ended otherwise (`dead`, the first one first); whether a job is `queued`, whether the run has a
    `fault`, and its `culprit` (None: no single rank); ranks `loading` their function, ranks `halted` by a signal, which
    cannot report; the `stall` (None while a pause is asked for); whether idle ranks have `kept` values for jobs to
    come.
    """

    ready: Collection[int] = ()
    queued: bool = False
    reported: Collection[int] = ()
    dead: Collection[int] = ()
    fault: bool = False
    culprit: int | None = None
    loading: Collection[int] = ()
    halted: Collection[int] = ()
    stall: Stall | None = None
    kept: bool = False


@dataclass(frozen=True)
class StartJob:
    """Hand the next job to the ranks, then call `begin_run`."""


@dataclass(frozen=True)
class RefuseJobs:
    """A rank has died while idle: the jobs that wait fail."""


@dataclass(frozen=True)
class Warn:
    """Tell the user."""

    text: str


@dataclass(frozen=True)
class RecordDeath:
    """Tell every rank that this one has died."""

    rank: int


@dataclass(frozen=True)
class StopRun:
    """Let every collective raise the error `kind`."""

    kind: str
    text: str
    ranks: tuple[int, ...] = ()


@dataclass(frozen=True)
class AskToEnd:
    """Ask these ranks to end (SIGTERM)."""

    ranks: tuple[int, ...]


@dataclass(frozen=True)
class Kill:
    """End these ranks by force.  reason: what they did not do"""

    ranks: tuple[int, ...]
    reason: str


@dataclass(frozen=True)
class Settle:
    """All ranks have reported or are gone: say what became of the run."""


@dataclass(frozen=True)
class Trim:
    """Let everybody give back the memory that the last job has used."""


@dataclass(frozen=True)
class Release:
    """End the ranks: nobody has needed them for long."""


Action = StartJob | RefuseJobs | Warn | RecordDeath | StopRun | AskToEnd | Kill | Settle | Trim | Release


class Supervisor:
    """The `state` of one world's ranks: "starting", "idle", "running", "stopping" or "closed". `takes_jobs`: ready
    ranks wait for jobs (False: they run one program from the start); `asked`, `killed`: ranks of this run asked to end,
    ended by force; `counting_since_s`: no wait counts from before the run began or went on after a pause.
    """

    def __init__(self, world_size: int, limits: Limits, *, takes_jobs: bool) -> None:
        self.world, self.limits, self.takes_jobs = frozenset(range(world_size)), limits, takes_jobs
        self._recorded: set[int] = set()
        self.begin_run(0.0)
        self.rest(0.0)
        self.state = "starting"

    # news from outside

    def begin_run(self, now: float) -> None:
        """The ranks have received a job."""
        self.state = "running"
        self.asked: tuple[int, ...] = ()
        self.killed: tuple[int, ...] = ()
        self.counting_since_s = now
        self._causes: dict[str, float] = {}  # why the run stops, and since when
        self._raising = False
        self._warned: set[tuple[int, ...]] = set()

    def resume(self, now: float) -> None:
        """The run goes on after a pause."""
        self.counting_since_s = now

    def interrupt(self, now: float) -> None:
        """The user wants the run to end."""
        if self.state in ("starting", "running", "stopping"):
            self._stop("interrupt", now)

    def rest(self, now: float) -> None:
        """The ranks are idle since now, or somebody has just asked for them."""
        self._idle_since_s, self._rested_s = now, -math.inf

    def close(self) -> None:
        """Look after nothing any more."""
        self.state = "closed"

    # what follows from what is seen

    def tick(self, now: float, facts: Facts) -> list[Action]:
        """What to do now.  now: seconds of a clock that does not go back. Each action comes once."""
        if self.state == "closed":
            return []
        deaths = [rank for rank in facts.dead if rank not in self._recorded]
        self._recorded.update(deaths)
        if self.state == "idle":
            if not facts.queued:
                return self._resting(now, facts)
            return [RefuseJobs() if self._recorded else StartJob()]
        actions: list[Action] = []
        if "interrupt" not in self._causes:  # which ends the run anyway
            actions += [RecordDeath(rank) for rank in deaths if rank not in (*self.asked, *self.killed)]
        if self.world <= {*facts.reported, *facts.dead}:
            self.state = "idle"
            self.rest(now)
            return [*actions, Settle()]
        if actions:
            self._stop("death", now)
        elif facts.fault:
            self._stop("fault", now)
        if self.state == "starting" and self.world <= {*facts.ready, *facts.reported}:
            self.state = "idle" if self.takes_jobs else "running"
            self.counting_since_s = now
            self.rest(now)
        elif self.state == "stopping":
            actions += self._stopping(now, facts)
        elif facts.stall is not None:
            actions += self._stalled(now, facts.stall)
        return actions

    def look_within_s(self, now: float) -> float | None:
        """Seconds until `tick` has to be called again, if nothing happens; None: it need not be."""
        if self.state != "idle":
            return LOOK_S / 2 if self.state == "stopping" else LOOK_S
        due = [self._idle_since_s + limit for limit in (self.limits.trim_s, self.limits.idle_s)]
        left = [at - now for at in due if at > self._rested_s and at < math.inf]
        return max(0.0, min(left)) if left else None

    def _resting(self, now: float, facts: Facts) -> list[Action]:
        seen, self._rested_s = self._rested_s, now
        trim_at, release_at = self._idle_since_s + self.limits.trim_s, self._idle_since_s + self.limits.idle_s
        if now >= release_at > seen and not facts.kept:
            return [Release()]
        return [Trim()] if now >= trim_at > seen else []

    def _stop(self, cause: str, now: float) -> None:
        self._causes.setdefault(cause, now)
        self.state = "stopping"

    def _stopping(self, now: float, facts: Facts) -> list[Action]:
        actions: list[Action] = []
        since_s = self._causes.get("interrupt", math.inf)
        if now - since_s >= self.limits.polite_s and not self._raising:
            self._raising = True
            actions.append(StopRun("Interrupted", "The run was interrupted."))
        missing = tuple(sorted(self.world - {*facts.reported, *facts.dead, *self.killed}))
        halted = tuple(rank for rank in missing if rank in facts.halted and "fault" in self._causes)
        if halted:  # to wait for them is in vain
            self.killed += halted
            actions.append(Kill(halted, "is stopped by a signal"))
            missing = tuple(rank for rank in missing if rank not in halted)
        if not missing:
            return actions
        graces = {cause: self._grace_s(cause, missing, facts) for cause in self._causes}
        cause = min(graces, key=lambda c: self._causes[c] + graces[c])
        left_s = self._causes[cause] + graces[cause] - now
        if left_s <= 0:
            self.killed += missing
            within = "" if cause == "interrupt" else f" within {graces[cause]:g} s"
            actions.append(Kill(missing, f"did not stop{within}"))
        elif left_s <= self.limits.ask_s and not self.asked:
            self.asked = missing
            actions.append(AskToEnd(missing))
        return actions

    def _grace_s(self, cause: str, missing: tuple[int, ...], facts: Facts) -> float:
        """How long the missing ranks have after `cause`."""
        limits = self.limits
        if cause == "interrupt":
            return limits.interrupt_s
        grace_s = limits.death_s if cause == "death" else limits.fault_s
        if facts.culprit in missing:
            return max(grace_s, limits.culprit_s)
        loading = cause == "fault" and set(facts.loading) & set(missing)
        return max(grace_s, limits.loading_s) if loading else grace_s

    def _stalled(self, now: float, stall: Stall) -> list[Action]:
        limits, starting = self.limits, self.state == "starting"
        if stall.kind != LATE:
            self._stop("fault", now)
            return [StopRun(stall.kind, stall.text, stall.ranks)]
        limit_s, warn_s = (limits.start_s, limits.start_warn_s) if starting else (limits.timeout_s, limits.warn_after_s)
        if stall.waited_s >= limit_s:
            self._stop("fault", now)
            name = "" if starting else "timeout_s = "
            return [StopRun(LATE, f"{stall.text} for more than {name}{limit_s:g} s.", stall.ranks)]
        key = () if starting else stall.ranks  # a late start is reported once, though others come meanwhile
        if stall.waited_s < min(warn_s, limit_s) or key in self._warned:
            return []
        self._warned.add(key)
        return [Warn(f"{stall.text} for {stall.waited_s:.1f} s; {LATE} follows at {limit_s:g} s.")]
