"""All ranks in this process, in lock step.

`simulate(programs)` drives any rank programs (generators that yield `Request`s, from a plan or written by hand); a wait
that can never end is a `DeadlockError` at once, not a hang. `Simulator` runs a plan step by step:

    sim = Simulator(plan, values)
    sim.begin(x, label)
    while (tick := sim.next_instruction()) is not None:
        print(tick.instr.out, sim.value(tick.instr.out, rank=5))
"""

from __future__ import annotations

import dataclasses
import time
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from ..base.checks import INTS, checked, fitting, fitting_class, instance, is_int
from ..base.errors import ArgumentTypeError, CollectiveMismatch, DeadlockError, PlanError, shorten
from ..graph.plan import Plan
from .communicator import Handle, Request, Start, Wait, answer, check_request, delivered, describe, not_waited_for
from .computing import computing
from .full_values import gather_value, held_slices, step_inputs
from .interpreter import Env, Tick, half_done, rank_step
from .mail import Mail, received

RankProgram = Generator[Any, Any, Any]


class _Started(Handle):
    """What a simulated rank has started."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.reply: np.ndarray | None = None

    def done(self) -> bool:
        return self.end_s is not None

    def end(self, reply: np.ndarray | None) -> None:
        self.reply, self.end_s = reply, time.perf_counter()


def _waiting_for(request: Any) -> str:
    if isinstance(request, _Started):
        return f"for the {describe(request.request)} it has started, with {request.request.group}"
    return f"{describe(request)}, with {request.group}"


class _Engine:
    """Drives rank programs; answers a collective when all members have asked, a send at once, a recv at its message.
    A started collective is answered apart, when it is the oldest that all its members have started.
    """

    def __init__(self, programs: Mapping[int, RankProgram]) -> None:
        self.programs = dict(programs)
        for rank, program in self.programs.items():
            if not isinstance(program, Generator):
                what = f"the program of rank {rank} is {shorten(program)}"
                hint = "Call the function: simulate([program(rank) for rank in range(4)]), where program has a yield"
                raise ArgumentTypeError(what, where="simulate", allowed="A generator", hint=hint)
        self.waiting: dict[int, Request | _Started] = {}
        self.results: dict[int, Any] = {}
        self.counts: dict[int, int] = dict.fromkeys(self.programs, 0)
        self.numbers: dict[tuple[int, tuple[int, ...]], int] = {}
        # sends by ((source, destination), sr_tag); and how many were sent, by pair
        self.mail = Mail()
        self.sent: dict[tuple[int, ...], int] = {}
        # per rank: what it has started and nobody has answered, oldest first; and what it has not waited for
        self.started: dict[int, deque[_Started]] = {rank: deque() for rank in self.programs}
        self.unclaimed: dict[int, list[_Started]] = {rank: [] for rank in self.programs}

    def advance(self, rank: int, reply: Any = None) -> Tick | None:
        """Run one rank until it asks for something it must wait for, ticks or ends. Its sends are taken on the way."""
        while True:
            try:
                request = self.programs[rank].send(reply)
            except StopIteration as end:
                self.results[rank] = end.value
                return None
            if isinstance(request, Tick):
                return request
            self.counts[rank] += 1
            if isinstance(request, Start):
                reply = self.begin(rank, request.request)
                continue
            if isinstance(request, Wait):
                handle = self.claimed(rank, request.handle)
                if handle.end_s is None:
                    self.waiting[rank] = handle
                    return None
                reply = handle.reply
                continue
            check_request(request, rank, self.programs)
            request = self.counted(request, (rank, request.group))
            if request.kind != "send":
                self.waiting[rank] = request
                return None
            reply = self.send(request)

    def send(self, request: Request) -> None:
        """Hand a copy over: the sender may change its array from now on."""
        kept = dataclasses.replace(request, value=np.array(request.value, order="C"))
        self.sent[request.group] = self.sent.get(request.group, 0) + 1
        self.mail.put((request.group, request.sr_tag), kept)

    def counted(self, request: Request, key: tuple[Any, ...]) -> Request:
        """The request with its number among those of this key."""
        if request.number is not None:
            return request
        number = self.numbers.get(key, 0)
        self.numbers[key] = number + 1
        return request.numbered(number)

    # what is started and waited for

    def begin(self, rank: int, request: Any) -> _Started:
        """Take what a rank starts. A send is done at once; a recv takes the next message, now or when it is sent."""
        check_request(request, rank, self.programs)
        handle = _Started(self.counted(request, (rank, request.group, "started")))
        self.unclaimed[rank].append(handle)
        if request.kind == "send":
            handle.end(self.send(handle.request))
        elif request.kind == "recv":
            recv = handle.request
            self.mail.ask((recv.group, recv.sr_tag), lambda sent: handle.end(delivered(received(recv, sent), recv)))
        else:
            self.started[rank].append(handle)
            self.answer_started()
        return handle

    def claimed(self, rank: int, handle: Any) -> _Started:
        """The handle that a rank waits for, which it must have got from a start, and not have waited for."""
        if not any(handle is mine for mine in self.unclaimed[rank]):
            what = f"rank {rank} waits for {shorten(handle)}"
            raise PlanError(what, where="Wait", allowed="What a Start gave to this rank, once")
        self.unclaimed[rank] = [mine for mine in self.unclaimed[rank] if mine is not handle]
        return handle

    def answer_started(self) -> None:
        """Answer what is the oldest of all its members. Raises CollectiveMismatch."""
        moved = True
        while moved:
            moved = False
            for queue in self.started.values():
                if not queue:
                    continue
                group = queue[0].request.group
                heads = [self.started[r][0] for r in group if self.started[r]]
                if len(heads) < len(group) or any(h.request.group != group for h in heads):
                    continue
                for rank, handle, reply in zip(group, heads, answer([h.request for h in heads]), strict=True):
                    handle.end(reply)
                    self.started[rank].popleft()
                moved = True

    def answers(self) -> dict[int, Any]:
        """Replies to every request that is complete now. Raises CollectiveMismatch, and DeadlockError if none is."""
        replies: dict[int, Any] = {}
        for rank in sorted(self.waiting):
            if rank in replies:
                continue
            request = self.waiting[rank]
            if isinstance(request, _Started):
                if request.end_s is not None:
                    replies[rank] = request.reply
                continue
            if request.kind == "recv":
                sent = self.mail.take((request.group, request.sr_tag))
                if sent is not None:
                    replies[rank] = delivered(received(request, sent), request)
                continue
            calls = [self.waiting.get(r) for r in request.group]
            members = [call for call in calls if isinstance(call, Request) and call.group == request.group]
            if len(members) == len(calls) and all(member.kind != "recv" for member in members):
                replies.update(zip(request.group, answer(members), strict=True))
        if not replies:
            raise self.deadlock()
        for rank in replies:
            del self.waiting[rank]
        return replies

    def deadlock(self) -> DeadlockError:
        """The error that says which rank waits for which, with a hint for each kind of wait."""
        waits = sorted(self.waiting.items())
        lines = [f"rank {r} waits in its call {self.counts[r]}, {_waiting_for(requests)}" for r, requests in waits]
        ended, hints = sorted(self.results), []
        rest = f"; ranks {ended} have ended" if ended else ""
        requests = [q.request if isinstance(q, _Started) else q for q in self.waiting.values()]
        pairs = sorted({q.group for q in requests if q.kind == "recv"})
        if pairs:
            listed = ", ".join(f"rank {a} to rank {b}" for a, b in pairs)
            hints.append(f"A recv waits for its sender, and the sender never sends: {listed}")
        if any(q.kind != "recv" for q in requests):
            hints.append("All members of a group must make the same calls in the same order")
        return DeadlockError("; ".join(lines) + rest, where="deadlock", hint=". ".join(hints))

    def check_mail(self) -> None:
        """Raise CollectiveMismatch if a message was not received, or a started collective not waited for."""
        for rank, left in self.unclaimed.items():
            if left:
                raise CollectiveMismatch(not_waited_for(rank, left[0].request))
        for pair, count in sorted(self.sent.items()):
            left = [message for key, queue in self.mail.kept.items() if key[0] == pair for message in queue]
            if left:
                source, target = pair
                sent = f"{count} message{'s' if count != 1 else ''} to rank {target}"
                what = f"rank {source} sent {sent}, which received {count - len(left)}"
                first = f"The first without a recv is {describe(left[0])}"
                raise CollectiveMismatch(what, allowed="Every send needs its recv", hint=first)


@fitting
def simulate(programs: Sequence[RankProgram] | Mapping[int, RankProgram]) -> list[Any]:
    """Run rank programs to their ends; returns what each returned, in rank order.

    Raises DeadlockError when ranks wait for ever; CollectiveMismatch when members disagree, a request cannot be, or a
    message is not received; ShapeError for a value that cannot be sent; ArgumentTypeError for no generators.
    """
    if not isinstance(programs, (Mapping, Sequence)):
        allowed = "A list of generators, one per rank, or {rank: generator}"
        raise ArgumentTypeError(f"programs is {shorten(programs)}", where="simulate", allowed=allowed)
    engine = _Engine(programs if isinstance(programs, Mapping) else dict(enumerate(programs)))
    for rank in list(engine.programs):
        while engine.advance(rank) is not None:
            pass
    while len(engine.results) < len(engine.programs):
        for rank, reply in engine.answers().items():
            while engine.advance(rank, reply) is not None:
                reply = None
    engine.check_mail()
    return [engine.results[r] for r in sorted(engine.programs)]


@fitting_class
class Simulator:
    """A plan on simulated ranks.

    plan    what to run
    values  full tensors by name: parameters and optimizer states (`Session` prepares them); every rank gets its slices.
            Learning rates stay as they are given here; it is `Session.train` that follows a schedule

    `envs[rank]` are the arrays of a rank. The update runs in place: of a step that fails before it, nothing has
    changed; after a step that fails in it, `half_done` says what has changed, and no other step is taken. Computation
    uses one BLAS thread, as the processes do: results are equal bit for bit.
    """

    @checked(plan=instance(Plan, "A plan: compile(...) makes one"), values=instance(Mapping, "{name: array}"))
    def __init__(self, plan: Plan, values: Mapping[str, np.ndarray]) -> None:
        self.plan = plan
        self.ranks = range(plan.device_num)
        self._need([i.name for i in plan.parameters], values)
        full = {n: v for n, v in values.items() if n in plan.value_table}
        self.envs: list[Env] = [held_slices(plan, rank, full) for rank in self.ranks]
        self.steps, self.half_done = 0, ""
        self._engine: _Engine | None = None

    @staticmethod
    def _need(names: Sequence[str], values: Mapping[str, np.ndarray]) -> None:
        missing = ", ".join(repr(n) for n in names if n not in values)
        if missing:
            give = "Give {p.name: p.asnumpy() for p in net.get_parameters()}"
            hint = f"{give}, or use Session, which prepares states"
            allowed = "One array per parameter and optimizer state"
            raise PlanError(f"no value for {missing}", where="Simulator", allowed=allowed, hint=hint)

    def _need_states(self) -> None:
        if self.half_done:
            raise PlanError(f"it {self.half_done}", where="Simulator", hint="Make a new one")
        for rank, env in enumerate(self.envs):
            self._need([s.name for s in self.plan.states if self.plan.held_by(s.name, rank)], env)

    def run_step(
        self,
        *inputs: Any,
        phases: Sequence[str] | None = None,
        step: int | None = None,
        observe: Callable[..., None] | None = None,
        plan: Plan | None = None,
    ) -> np.ndarray:
        """One whole step on the global batch `inputs`; returns the first output in full (the loss).

        step     number of the step, for random masks; default: how many whole steps were taken
        plan     another one, on the values of this one: a run of it is not a step
        observe  called with (rank, action, instruction, start, end) after every instruction

        A step that was begun and not stepped to its end is given up.
        """
        whole, plan = phases is None and plan is None, plan or self.plan
        if self.half_done or whole or "update" in (phases or ()):
            self._need_states()
        self._engine = None  # the arrays of a step that was being stepped through are overwritten: it cannot go on
        number, replaced = self.steps if step is None else step, []
        with computing(plan):
            programs = []
            for rank in self.ranks:
                self.envs[rank].update(step_inputs(plan, rank, inputs))
                seen = None if observe is None else partial(observe, rank)
                options = {"phases": phases, "step": number, "observe": seen, "replaced": replaced}
                programs.append(rank_step(plan, rank, self.envs[rank], **options))
            try:
                simulate(programs)
            except BaseException:
                self.half_done = half_done(number, replaced)
                raise
        if whole:
            self.steps = number + 1
        return self.full(self.plan.outputs[0])

    def go_on(self, plan: Plan, envs: list[Env]) -> None:
        """Take the next steps with another plan, on these arrays of its ranks."""
        self.plan, self.ranks, self.envs, self._engine = plan, range(plan.device_num), envs, None

    # ---- stepping ----

    def begin(self, *inputs: Any) -> None:
        """Start a step that `next_instruction` walks through. Values are kept until the next `begin`."""
        self._need_states()
        plan, programs = self.plan, {}
        keep = {i.name for i in plan.graph.inputs} | {s.name for s in plan.states}
        for rank in self.ranks:
            env = {n: v for n, v in self.envs[rank].items() if n in keep}
            self.envs[rank] = env | step_inputs(plan, rank, inputs)
            programs[rank] = rank_step(plan, rank, self.envs[rank], step=self.steps, ticks=True)
        self._engine = _Engine(programs)

    def next_instruction(self) -> Tick | None:
        """Let every rank run one instruction; returns which, or None at the end of the step."""
        if self._engine is None:
            raise PlanError("no step was begun", where="Simulator.next_instruction", hint="Call begin(*inputs) first")
        engine = self._engine
        with computing(self.plan):
            ticks = {rank: engine.advance(rank) for rank in self.ranks}
            while engine.waiting:
                ticks |= {rank: engine.advance(rank, reply) for rank, reply in engine.answers().items()}
        if all(tick is None for tick in ticks.values()):
            self._engine = None
            self.steps += 1
        return ticks[0]

    # ---- looking ----

    def value(self, name: str, rank: int) -> np.ndarray:
        """The array called `name` on `rank` now. Raises PlanError if the rank does not hold it (yet, or any more)."""
        if not is_int(rank, kinds=INTS) or rank not in self.ranks:
            allowed = f"Ranks run from 0 to {len(self.ranks) - 1}"
            raise PlanError(f"rank {rank!r} does not exist", where="Simulator", allowed=allowed)
        if name not in self.envs[rank]:
            self.plan.value(name)
            hint = "Values live from the instruction that makes them"
            raise PlanError(f"rank {rank} does not hold {name!r} now", where="Simulator", hint=hint)
        return self.envs[rank][name]

    def full(self, name: str) -> np.ndarray:
        """The full tensor, gathered from the ranks' slices."""
        held = [self.value(name, rank) if self.plan.held_by(name, rank) else None for rank in self.ranks]
        return gather_value(self.plan, name, held)
