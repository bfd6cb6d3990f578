"""What ranks keep of every step that they take: loss, checksums and sizes of parameters, times of all that they ran.

    recorder = Recorder(session)
    session.train(batches, 100)
    recorder.take()                  a RankSteps of each rank, of the steps since it was last asked

The labs make a `Recording` of it. On processes each rank's `Program` is replaced by one that is watched, in the
simulator the simulator: the session itself knows nothing of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..base.cluster import cluster_for, get_cluster
from ..base.events import Event
from ..cost.simulated_clock import Ran, virtual_clock
from ..graph.kinds import Env
from ..graph.plan import Plan
from ..run.simulator import Simulator
from .program import Program
from .rank_steps import Record, ran_events
from .replicas import checksum
from .session import Session


class Recorder:
    """Keeps every step of a session from now on; after a switch to another plan, once `watch` is called again."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.watch()

    def watch(self) -> None:
        """Begin anew, with the session's present plan."""
        session = self._session
        if session.executor == "simulator":
            session._simulator = _WatchedSimulator(session)
        else:
            session._pool.run(_watch, session._key)

    def take(self) -> list[RankSteps]:
        """What the ranks have kept, which they then forget. Not while a run goes on."""
        session = self._session
        if session.executor == "simulator":
            return [kept.taken() for kept in session._simulator.kept]
        return session._pool.run(_take, session._key)


def trained(plan: Plan) -> tuple[str, ...]:
    """The parameters that a plan trains."""
    return tuple(p.name for p in plan.parameters if p.trainable)


def size_of_values(array: np.ndarray) -> float:
    """The root of their mean square, in float64; 0 of none."""
    return math.sqrt(np.mean(np.square(array, dtype=np.float64))) if array.size else 0.0


@dataclass(frozen=True, eq=False)
class RankSteps:
    """S steps of one rank, of a plan that trains T parameters and has E instructions on it.

    what     the instructions as events of the first step
    steps    (S,) numbers from 0;  losses: (S,) float64
    sums     (S, T) uint32, of the bits of its slice after the step; 0 without one
    sizes    (S, T) float64, root mean square of that slice
    held     (S,) bytes of all that it holds after the step;  sent: (S,) bytes handed over to messages
    times    (S, E, 3): start and end, in seconds on the source's clock, and of a wait when its message had come; NaN
             in a step that ran other instructions than the first
    """

    what: tuple[Event, ...]
    steps: np.ndarray
    losses: np.ndarray
    sums: np.ndarray
    sizes: np.ndarray
    held: np.ndarray
    sent: np.ndarray
    times: np.ndarray


class _Kept:
    """The steps of a rank as they come."""

    def __init__(self, plan: Plan, rank: int) -> None:
        self._plan, self._rank, self._rows = plan, rank, []
        self._names = [name if plan.held_by(name, rank) else None for name in trained(plan)]
        self._ran: list[Any] = []
        self._what: tuple[Event, ...] = ()

    def step(self, number: int, env: Env, ran: list[Ran], source: str) -> None:
        """A step has ended.  ran: a `Ran` of each instruction, in order"""
        order = [one[:2] for one in ran]
        if not self._ran:
            self._ran, self._what = order, tuple(ran_events(self._rank, number, ran, source))
        same = order == self._ran
        times = [(one[2], one[3], math.nan if one[5] is None else one[5]) for one in ran] if same else None
        slices = [np.zeros(0) if name is None else env[name] for name in self._names]
        loss = float(env[self._plan.outputs[0]].reshape(-1)[0])
        sums, sizes = [checksum(a) for a in slices], [size_of_values(a) for a in slices]
        held = sum(value.nbytes for value in env.values() if isinstance(value, np.ndarray))
        sent = sum(size for _, _, _, _, size, _ in ran)
        self._rows.append((number, loss, sums, sizes, held, sent, times))

    def taken(self) -> RankSteps:
        """All of it, and none is left."""
        steps, count, none = len(self._rows), len(self._what), np.full((len(self._what), 3), math.nan)
        columns, self._rows = list(zip(*self._rows, strict=True)) or [[]] * 7, []
        numbers, losses, sums, sizes, held, sent = (np.asarray(column) for column in columns[:6])
        times = np.array([none if one is None else one for one in columns[6]], np.float64).reshape(steps, count, 3)
        shape = steps, len(self._names)
        sums, sizes = sums.astype(np.uint32).reshape(shape), sizes.astype(np.float64).reshape(shape)
        whole = [a.astype(np.int64) for a in (numbers, held, sent)]
        return RankSteps(self._what, whole[0], losses.astype(np.float64), sums, sizes, *whole[1:], times)


class _WatchedSimulator(Simulator):
    """A session's simulator, whose steps are kept."""

    def __init__(self, session: Session) -> None:
        vars(self).update(vars(session._simulator))
        self.kept = [_Kept(self.plan, rank) for rank in self.ranks]
        self._machine = cluster_for(self.plan.device_num) if session.cluster is None else get_cluster(session.cluster)
        self._cores = session.cores

    def run_step(self, *inputs: Any, observe: Callable[..., None] | None = None, **how: Any) -> np.ndarray:
        if how.get("plan") is not None:  # no step of the training
            return super().run_step(*inputs, observe=observe, **how)
        number = self.steps if how.get("step") is None else how["step"]
        seen = Record(self.plan.device_num)

        def both(*what: Any) -> None:
            seen.of(*what)
            if observe is not None:
                observe(*what)

        loss = super().run_step(*inputs, observe=both, **how)
        for rank, ran in enumerate(virtual_clock(seen.on_cores(), self._machine, self._cores)):
            self.kept[rank].step(number, self.envs[rank], ran, "simulated")
        return loss


class _WatchedProgram(Program):
    """A rank's program, whose steps are kept."""

    kept: _Kept

    def step(self, number: int, *, observe: Record | None = None, **how: Any) -> None:
        seen = Record() if observe is None else observe
        super().step(number, observe=seen, **how)
        self.kept.step(number, self.env, seen.ran[0], "measured")
        self.comm.barrier()  # ranks that share cores are done with this one after the other: no part of the next step


def _watch(comm: Any, key: str) -> None:
    known = comm.state[key]
    program = comm.state[key] = _WatchedProgram(known.plan, comm, known.env, taken=known.left[0])
    program.copies, program.kept = known.copies, _Kept(known.plan, comm.rank)


def _take(comm: Any, key: str) -> RankSteps:
    return comm.state[key].kept.taken()
