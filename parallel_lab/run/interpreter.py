"""One interpreter: a rank's program as a generator.

`rank_step(plan, rank, env)` does the local work of one training step and yields a `Request` wherever the plan has a
message, `Start` and `Wait` where it has one that travels while the rank computes; the driver of the generator answers.
The simulator drives all ranks in one process, a worker drives its own and answers through shared memory.

`env` maps value names to this rank's arrays: parameters, optimizer states, inputs, and what the step makes; what one
micro-batch makes is `env[name, number]`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Generator, Iterable
from typing import Any

import numpy as np

from ..graph.instr import Instr
from ..graph.kinds import KINDS, Env, class_name
from ..graph.plan import Plan
from ..ops.collectives.definitions import MESSAGES
from .communicator import Request, Start, Wait, unchecked
from .frame import Frame


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
PLAIN = vars(Request("barrier", ()))  # a request's fields as they are where nothing is given


def rank_step(
    plan: Plan,
    rank: int,
    env: Env,
    *,
    phases: Collection[str] | None = None,
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
             seconds; the bytes of the array handed over to a message, of its pieces or rows those for others (0 for
             local work); of a wait when its message was complete, None of all others
    replaced receives names of parameters and states with new values: what a failed step has changed

    Values that nothing reads any more are dropped at once, so memory follows the plan.
    """
    frame = Frame(plan, rank, env, phases=phases, step=step, keep_all=ticks, replaced=replaced, show=show, empty=empty)
    travelling = 0
    for action in frame.actions:
        frame.begin(action)
        part, at = frame.stage.part(action), 0
        while at < len(part):
            position, instr = part[at]
            at += 1
            start_s, request, handle, runs, goes_on = time.perf_counter(), None, None, frame.runs(instr), False
            if runs:
                kind = KINDS[instr.kind]
                if kind.run is not None:
                    result = kind.run(frame, instr)
                elif kind.asks == "wait":
                    handle = frame.env[instr.ins[0]]
                    result = yield Wait(handle)
                    travelling -= 1
                elif kind.asks == "start":
                    request = request_of(instr, rank, frame.env, action.micro_batch)
                    travelling += 1
                    result = yield Start(request)
                else:
                    request = request_of(instr, rank, frame.env, action.micro_batch)
                    result = yield request
                    if result is None and MESSAGES[request.kind].receiver == "root":
                        nothing = plan.value(instr.out)  # no gradient came there, or a value that means nothing
                        result = np.zeros(nothing.slice_shape, nothing.dtype)
                goes_on = result is None and bool(instr.loop)
                if not goes_on:
                    frame.put(instr, result)
            if travelling and progress is not None:
                progress()
            if observe is not None and runs:
                observe(action, instr, start_s, *_ended(request, handle, rank))
            if goes_on:
                at = frame.next_turn(part, at)
            else:
                frame.drop(position)
            if ticks:
                yield Tick(action.program, position, instr)
        frame.end(action)
    return frame.close()


def _ended(request: Request | None, handle: Any, rank: int) -> tuple[float, int, float | None]:
    """(when an instruction ended, bytes that it handed over, when the message arrived that it has waited for)."""
    end_s = time.perf_counter()
    handed_over = 0 if request is None or request.value is None else request.value.nbytes
    if handed_over and request is not None and (definition := MESSAGES[request.kind]).piecewise:
        how, members = request.window or request.route, request.group
        handed_over = definition.payload_bytes(handed_over, len(members), how, members.index(rank))
    return end_s, handed_over, None if handle is None else end_s if handle.end_s is None else handle.end_s


def half_done(step: int, replaced: Iterable[str]) -> str:
    """What is wrong after a step that failed when some parameters and states had their new values; "" if none had."""
    names = list(dict.fromkeys(replaced))
    more = f" and {len(names) - MOST_NAMES} more" * (len(names) > MOST_NAMES)
    some = ", ".join(map(repr, names[:MOST_NAMES])) + more
    return f"failed in the middle of step {step}, when {some} had new values already" if names else ""


def request_of(instr: Instr, rank: int, env: Env, micro_batch: int = 0) -> Request:
    """The request of one communication instruction. A bucket's sum takes the bucket's memory: nothing else reads it.

    Between stages every value has a queue of its own per micro-batch, as two ranks may have other orders.
    """
    definition = MESSAGES[instr.message]
    fields = {name: value for name, value in instr.attrs if name in definition.attributes and value is not None}
    if instr.attr("shift") is not None:
        fields["sr_tag"] = instr.attr("sr_tag") * MOST_MICRO_BATCHES + (0 if instr.once else micro_batch + 1)
    fields |= {"route": definition.counted(fields["route"], env[instr.ins[1]])} if len(instr.ins) > 1 else {}
    place, value = instr.origin.place, env[instr.ins[0]] if definition.gives(rank, fields.get("root")) else None
    # ranks that trace for themselves may name their values in their own ways
    origin = (class_name(instr) if instr.by_hand else instr.out) + (f" ({place})" if place else "")
    fields |= {"value": value, "origin": origin, "out": value if instr.in_place else None}
    if instr.by_hand or not (value is None or type(value) is np.ndarray):
        return Request(instr.message, instr.group(rank), **fields)
    # what the compiler wrote has the form that checks give
    return unchecked(Request, **{**PLAIN, "kind": instr.message, "group": instr.group(rank), **fields})
