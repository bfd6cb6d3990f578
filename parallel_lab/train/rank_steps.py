"""What a rank of a `Session` does: functions that its pool runs, on the values that it keeps between them."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from ..base.errors import PlanError
from ..base.events import Event, to_dicts
from ..graph.kinds import Env
from ..graph.plan import Plan
from ..run.computing import computing
from ..run.full_values import held_slices
from .plan_switch import RankMoves, move_on_rank, size_of
from .program import Program, drive
from .replicas import of_plan

if TYPE_CHECKING:
    from ..cost.simulated_clock import Ran

REPORT_INTERVAL_S = 1 / 60  # a display cannot show more; reporting every tiny step would cost more than the step


class Record:
    """What ranks run in this thread: `observe` of `rank_step`, for one of them.

    ran     per rank, what it was called with
    busy_s  per rank, for each instruction the seconds on a processor since the call before, at most all of its own
            time: others may have had the processor for a part of that
    """

    def __init__(self, ranks: int = 1) -> None:
        self.ran: list[list[Ran]] = [[] for _ in range(ranks)]
        self.busy_s: list[list[float]] = [[] for _ in range(ranks)]
        self._last_s = time.thread_time()

    def of(self, rank: int, *what: Any) -> None:
        """One instruction of a rank has ended.  what: a `Ran`"""
        now_s, ran = time.thread_time(), cast("Ran", what)
        _, _, start_s, end_s, _, _ = ran
        self.ran[rank].append(ran)
        self.busy_s[rank].append(min(now_s - self._last_s, end_s - start_s))
        self._last_s = now_s

    def __call__(self, *what: Any) -> None:
        self.of(0, *what)

    def on_cores(self) -> list[list[Ran]]:
        """What ran, as if nobody else had had the processor meanwhile."""
        both = (zip(*rank, strict=True) for rank in zip(self.ran, self.busy_s, strict=True))
        return [[(a, i, start_s, start_s + on_s, *rest) for (a, i, start_s, _, *rest), on_s in one] for one in both]


def ran_events(
    rank: int, step: int, ran: Sequence[Ran], source: str, busy_s: Sequence[float | None] = ()
) -> list[Event]:
    """What one rank ran as events. A started message lasts until it is complete, overlapped with other work."""
    waits = ((action, instr, arrived_s) for action, instr, _, _, _, arrived_s in ran if arrived_s is not None)
    arrivals = {(action, instr.ins[0]): arrived_s for action, instr, arrived_s in waits}
    events = []
    for (action, instr, start_s, end_s, handed_over, _), on_core_s in zip_longest(ran, busy_s):
        kind = "communication" if instr.is_communication else "wait" if instr.kind == "wait" else "compute"
        name = instr.ins[0] if kind == "wait" else instr.out
        op = instr.op_class or instr.message or instr.attr("message") or instr.kind
        overlapped = instr.kind == "start"
        end_s = max(start_s, arrivals.get((action, instr.out), end_s)) if overlapped else end_s
        group = () if kind == "compute" else instr.group(rank)
        facts = {"bytes": handed_over, "source": source, "overlapped": overlapped}
        facts["micro_batch"] = action.micro_batch
        if kind == "compute" and on_core_s is not None:
            facts["busy_s"] = on_core_s
        events.append(Event(rank, step, action.program, kind, name, op, start_s, end_s, group, **facts))
    return events


def load_values(comm: Any, key: str, plan: Plan, values: Env) -> None:
    """Keep a program, with this rank's slices of parameters and states, under `key`."""
    _keep(comm, key, plan, held_slices(plan, comm.rank, values), 0)


def load_slices(comm: Any, key: str, plan: Plan, env: Env, step: int) -> None:
    """Keep a program, with copies of what are this rank's slices already, under `key`, after so many steps."""
    _keep(comm, key, plan, {name: np.array(part, order="C") for name, part in env.items()}, step)


def switch_values(comm: Any, key: str, plan: Plan, moves: RankMoves, step: int) -> tuple[int, int, int]:
    """Bring what is kept under `key` into the slices of another plan: (bytes sent, messages sent, bytes held now)."""
    env, sent, messages = drive(move_on_rank(moves, comm.rank, comm.state[key].env), comm)
    comm.barrier(tag="all ranks have their new slices")  # until then all have the old ones, if something fails
    _keep(comm, key, plan, env, step)
    return sent, messages, size_of([env])


def _keep(comm: Any, key: str, plan: Plan, env: Env, taken: int) -> None:
    program = comm.state[key] = Program(plan, comm, env, taken=taken)
    program.copies = of_plan(plan, comm)


def run_forward(comm: Any, key: str, plan: Plan, inputs: Env, step: int) -> None:
    """Run a plan that trains nothing, on full inputs of its own and the values kept under `key`."""
    forward = Program(plan, comm, comm.state[key].env)
    forward.env.update(held_slices(plan, comm.rank, inputs | plan.constant_arrays))
    with computing(plan):
        forward.step(step, show=comm.report)


def left_behind(comm: Any, key: str) -> tuple[int, list[str]]:
    """How many steps this rank has ended, and what has its new value of the step after them."""
    return comm.state[key].left


def drop_values(comm: Any, key: str) -> None:
    """Forget everything kept under `key`."""
    comm.state.pop(key, None)


def collect(comm: Any, key: str, names: list[str]) -> dict[str, np.ndarray]:
    """This rank's values of these names; those it does not hold are missing."""
    env, plan = comm.state[key].env, comm.state[key].plan
    names = [n for n in names if plan.held_by(n, comm.rank)]
    missing = [n for n in names if n not in env]
    if missing:
        raise PlanError(f"rank {comm.rank} does not hold {missing[0]!r} now", where="Session", hint="Take a step first")
    return {n: env[n] for n in names}


def rates_of_step(rates: dict[str, np.ndarray], number: int) -> Env:
    """The learning rates of one of the steps."""
    return {name: np.asarray(per_step[min(number, len(per_step) - 1)]) for name, per_step in rates.items()}


def train_rank(
    comm: Any,
    key: str,
    batches: list[Env],
    first: int,
    steps: int,
    record: int,
    phases: Sequence[str] | None,
    rates: dict[str, np.ndarray],
    finite: bool = False,
) -> tuple[list[float], list[dict]]:
    """One rank's training loop; every rank takes the same number of steps, also when stopped.

    finite   whether NaN and infinities are an error
    batches  full inputs of the steps, gone round, from step `first` on: all ranks of a machine read the same memory,
             and a rank copies its slices of one batch at a time
    """
    program: Program = comm.state[key]
    plan, env = program.plan, program.env
    constants = held_slices(plan, comm.rank, plan.constant_arrays)
    losses: list[float] = []
    reported, last_report = 0, time.perf_counter()
    recorded: deque[tuple[int, Record]] = deque(maxlen=record)
    program.left = first, []
    with computing(plan):
        for step in range(first, first + steps):
            if not comm.agree_to_continue(step):
                break
            env.update(held_slices(plan, comm.rank, batches[(step - first) % len(batches)]))
            env.update(constants)
            env.update(rates_of_step(rates, step - first))
            seen = Record() if record else None
            program.step(step, finite=finite, phases=phases, observe=seen, show=comm.report)
            losses.append(float(env[plan.outputs[0]].reshape(-1)[0]))
            if seen is not None:
                recorded.append((step, seen))
            now = time.perf_counter()
            if comm.rank == 0 and now - last_report >= REPORT_INTERVAL_S:
                comm.report(losses[reported:])
                reported, last_report = len(losses), now
    if record:  # a rank that is through would take, for its report, the core of one that is in the recorded step
        comm.barrier(tag="all ranks have ended the recorded steps")
    if comm.rank == 0 and reported < len(losses):
        comm.report(losses[reported:])
    steps_seen = ((step, seen.ran[0], "measured", seen.busy_s[0]) for step, seen in recorded)
    return losses, to_dicts(event for one in steps_seen for event in ran_events(comm.rank, *one))
