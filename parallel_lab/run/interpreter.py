"""One interpreter: a rank's program as a generator.

`rank_step(plan, rank, env)` does the local work of one training step and yields a `Request` wherever the plan has a
message, `Start` and `Wait` where it has one that travels while the rank computes; the driver of the generator answers.
The simulator drives all ranks in one process, a worker drives its own and answers through shared memory.

`env` maps value names to this rank's arrays: parameters, optimizer states, inputs, and what the step makes; what one
micro-batch makes is `env[name, number]`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable
from typing import Any

import numpy as np

from ..graph.ir import Instr
from ..graph.kinds import KINDS, Env, OnRank, class_name
from ..graph.plan import Plan
from ..ops.collectives.definitions import MESSAGES
from .communicator import Request, Start, Wait
from .micro_batches import MicroBatch


class Tick:
    """Yielded after an instruction when the driver asked to step: which one has just run."""

    __slots__ = ("instr", "phase", "position")

    def __init__(self, phase: str, position: int, instr: Instr) -> None:
        self.phase, self.position, self.instr = phase, position, instr

    def __repr__(self) -> str:
        """Phase, position and line of the plan: `forward 3: matmul = AllReduce(matmul.partial)`."""
        name = class_name(self.instr)
        return f"{self.phase} {self.position}: {self.instr.out} = {name}({', '.join(self.instr.ins)})"


MOST_NAMES = 8  # that an error lists
MOST_MICRO_BATCHES = 2**20


def rank_step(
    plan: Plan,
    rank: int,
    env: Env,
    *,
    phases: Iterable[str] | None = None,
    step: int = 0,
    ticks: bool = False,
    observe: Callable[..., None] | None = None,
    show: Callable[[str], None] = print,
    empty: Callable[[tuple[int, ...], Any], np.ndarray] = np.empty,
    progress: Callable[[], None] | None = None,
    replaced: list[str] | None = None,
) -> Generator[Request | Start | Wait | Tick, Any, Env]:
    """Run one step's programs on `rank`, in the order of its stage's actions; returns `env`, changed in place.

    phases   run only these programs
    step     how many steps were taken before: what random masks depend on
    show     receives the text of what `construct` prints
    ticks    also yield a Tick after every instruction (answered with None); all values stay, and the new ones of
             parameters and states take their names at the end
    empty    gives the memory of buckets: a communicator's, where other ranks can read them without a copy
    progress called after every local instruction while a message is on its way
    observe  called after every instruction with (action, instruction, start, end, bytes, arrived): perf_counter
             seconds; the bytes of the array handed over to a message (0 for local work); of a wait when its message was
             complete, None of all others
    replaced receives names of parameters and states with new values: what a failed step has changed

    Values that nothing reads any more are dropped at once, so memory follows the plan.
    """
    stage = plan.stage_of(rank)
    env.update((name, value) for name, value in plan.scalars.items() if name not in env)
    env.update((i.name, np.asarray(step, i.dtype)) for i in plan.graph.inputs if i.role == "step")
    if phases is None or "backward" in phases:
        for _, gradient in plan.gradients:
            env.pop(gradient, None)  # that of the step before
    on = OnRank(plan, rank, env, show, empty)
    replaced, new = [] if replaced is None else replaced, {}
    actions = [a for a in stage.actions if phases is None or a.program in phases]
    early = [a for a in actions if not a.of_step]
    micro: dict[int, MicroBatch] = {}
    travelling, last_uses, replacements = 0, plan.last_uses(rank), plan.replacements(rank)
    for action in actions:
        phase, number = action.program, action.micro_batch
        own: Any = env
        if plan.micro_batches > 1 and not action.of_step:
            if number not in micro:
                micro[number] = MicroBatch(plan, env, number, step)
            own = micro[number]
        on.env, on.micro_batch = own, number
        dead, ends = last_uses[action], stage.ends(action)
        for position, instr in stage.part(action):
            start, handed_over, handle, runs = time.perf_counter(), 0, None, instr.runs_on(rank)
            if runs:
                kind = KINDS[instr.kind]
                if not kind.asks:
                    made = kind.run(on, instr)
                elif kind.asks == "wait":
                    handle = own[instr.ins[0]]
                    made = yield Wait(handle)
                    travelling -= 1
                else:
                    request = request_of(instr, rank, own, number)
                    handed_over = 0 if request.value is None else request.value.nbytes
                    travelling += kind.asks == "start"
                    made = yield Start(request) if kind.asks == "start" else request
                    if made is None and kind.message is not None and kind.message.receiver == "root":
                        value = plan.value(instr.out)  # off the root: no gradient, or a value without meaning
                        made = np.zeros(value.slice_shape, value.dtype)
                for place in (env,) if instr.of_step else (own, env) if ticks else (own,):
                    if type(made) is tuple:
                        place.update((name, array) for name, array in zip(instr.outs, made, strict=True) if name)
                    else:
                        place[instr.out] = made
            if travelling and progress is not None:
                progress()
            if observe is not None and runs:
                end = time.perf_counter()
                arrived = None if handle is None else end if handle.end_s is None else handle.end_s
                observe(action, instr, start, end, handed_over, arrived)
            pairs = replacements.get(position, ()) if phase == "update" else ()
            new.update((target, env[source]) for target, source in pairs if plan.held_by(target, rank))
            if ticks:
                yield Tick(phase, position, instr)
                continue
            for name in dead.get(position, ()):
                if own.pop(name, None) is None:
                    env.pop(name, None)
            env.update(new)
            replaced += new
            new.clear()
        # backward reads what forward had read; of micro-batches each has kept it, and the next one reads what is new
        if plan.forward_assignments and (phase == "forward" if own is not env else bool(early) and action is early[-1]):
            made_now = [(t, s) for t, s in plan.forward_assignments if s in own or (ends and plan.held_by(s, rank))]
            env.update({target: own[source] for target, source in made_now})
            replaced += dict(made_now)
        if own is not env and stage.ends_micro_batch(action):
            own.end()
    env.update(new)
    return env


def half_done(step: int, replaced: Iterable[str]) -> str:
    """What is wrong after a step that failed when some parameters and states had their new values; "" if none had."""
    names = list(dict.fromkeys(replaced))
    some = ", ".join(map(repr, names[:MOST_NAMES])) + (
        f" and {len(names) - MOST_NAMES} more" * (len(names) > MOST_NAMES)
    )
    return f"failed in the middle of step {step}, when {some} had new values already" if names else ""


def request_of(instr: Instr, rank: int, env: Env, micro_batch: int = 0) -> Request:
    """The request of one communication instruction. A bucket's sum takes the bucket's memory: nothing else reads it.

    Between stages every value has a queue of its own per micro-batch, as two ranks may have other orders.
    """
    definition = MESSAGES[instr.message]
    fields = {name: value for name, value in instr.attrs if name in definition.attributes and value is not None}
    if instr.attr("shift") is not None:
        fields["sr_tag"] = instr.attr("sr_tag") * MOST_MICRO_BATCHES + (0 if instr.once else micro_batch + 1)
    place, value = instr.origin.place, env[instr.ins[0]] if definition.gives(rank, fields.get("root")) else None
    # ranks that trace for themselves may name their values in their own ways
    origin = (class_name(instr) if instr.by_hand else instr.out) + (f" ({place})" if place else "")
    out = value if instr.in_place else None
    return Request(instr.message, instr.group(rank), value, origin=origin, out=out, **fields)
