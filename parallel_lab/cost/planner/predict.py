"""The prediction of a plan point (`point.py`): seconds of its parts, the clock over them, bytes of its ranks.

    predict_point("gpt3_175b", PlanPoint(8, 8, 16, 1, 64), get_machine("dgx_a100", 1024)).step_s

What levels change, S being the bytes of a gradient, of n copies:

    0   all_reduce(S) behind the last backward
    1   reduce_scatter(S) there, all_gather(S / n) of new parameters; each copy updates 1 / n
    2   reduce_scatter(S) behind every backward, as only 1 / n of the sum is kept; all_gather(S / n) once
    3   as 2, and all_gather(S / n) before every forward and every backward instead
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np

from ...base.checks import choice, instance
from ...base.cluster import Cluster, Link
from ...base.errors import ArgumentError
from ...graph.actions import Action
from ...ops.collectives.definitions import MESSAGES
from ..overlap import Gradient, predict_overlap
from ..schedules.clock import run_clock
from ..schedules.schedule import Schedule
from ..time import message_time_s
from ..zero import ZeroMemory, zero_memory
from .block import FLOAT_BYTES, Message, Part, Terms, Work, parts_of
from .clusters import Machine, get_machine
from .decoder_point import DecoderPoint
from .decoder_pricing import DecoderPricing
from .decoders import DECODERS, Decoder
from .models import TRANSFORMERS, Transformer
from .point import MEMORY_PARTS, PRECISIONS, Places, PlanPoint, Prediction, misfit, schedule_of

T = TypeVar("T")
Often = tuple[tuple[float, Message], ...]  # how often a message is sent


class Seconds(NamedTuple):
    """Seconds of some work: local instructions, messages among the ranks of a layer, messages that reach all copies."""

    compute: float
    tensor: float
    copies: float

    @property
    def total(self) -> float:
        return self.compute + self.tensor + self.copies


def _sum(terms: Iterable[tuple[float, Seconds]]) -> Seconds:
    columns = zip(*((k * s.compute, k * s.tensor, k * s.copies) for k, s in terms), strict=True)
    return Seconds(*map(math.fsum, columns))


@dataclass(frozen=True)
class _Rates:
    """Seconds and bytes of work: what of a point they depend on, as many points (with other schedules, chunks or
    micro-batches) have the same.  scale: bytes of a number, in those of the compiled network
    """

    cluster: Cluster
    scale: float
    data: int
    level: int
    layer_spans: bool  # more than one node, as `Places` says
    copies_span: bool

    def spans(self, message: Message) -> bool:
        return self.copies_span if message.copies else self.layer_spans and message.tensor > 1

    def members(self, message: Message) -> int:
        return message.tensor * (self.data if message.copies else 1)

    def message_s(self, message: Message) -> float:
        link, gamma = self.cluster.link_over(spans=self.spans(message)), self.cluster.device.gamma_s_per_byte
        return message_time_s(message.kind, message.size_bytes * self.scale, self.members(message), link, gamma)

    def messages(self, messages: Sequence[Message]) -> Seconds:
        within = math.fsum(self.message_s(m) for m in messages if not (m.copies or m.hidden))
        return Seconds(0.0, within, math.fsum(self.message_s(m) for m in messages if m.copies))

    def of(self, work: Work, scale: float | None = None) -> Seconds:
        """scale: other than the point's, for its local instructions."""
        device, scale = self.cluster.device, self.scale if scale is None else scale
        touched_s = work.touched_bytes * (scale / device.memory_bandwidth_bytes_per_s)
        local = np.maximum(work.flops / device.flops_per_s, touched_s)
        return self.messages(work.messages)._replace(compute=math.fsum(local) + len(local) * device.overhead_s)

    def sent_bytes(self, message: Message) -> float:
        size = int(message.size_bytes * self.scale)
        return MESSAGES[message.kind].payload_bytes(size, self.members(message))


def _halves(messages: Sequence[Message], data: int) -> tuple[tuple[Message, ...], tuple[Message, ...]]:
    """Messages of gradients as reduce_scatters, and the all_gathers that bring the whole back."""
    cut = [replace(m, kind="reduce_scatter") for m in messages if m.kind == "all_reduce" and m.copies]
    others = [m for m in messages if m.kind != "all_reduce" or not m.copies]
    back = tuple(replace(m, kind="all_gather", size_bytes=m.size_bytes / (m.tensor * data)) for m in cut)
    return (*cut, *others), back


@dataclass(frozen=True)
class PartTime:
    """Seconds of a part of the network (fields as of `block.Part`), the bytes of its border, and its messages: of every
    micro-batch, and once. terms: what was compiled.
    """

    terms: Terms
    ahead: Seconds
    forward: Seconds
    backward: Seconds
    behind: Seconds
    last: Seconds
    update: Seconds
    border_bytes: float
    each: Often
    once: Often

    @cached_property
    def busy(self) -> Seconds:
        """Seconds of a micro-batch."""
        return _sum([(1, self.forward), (1, self.backward), (1, self.behind)])

    @cached_property
    def _amounts(self) -> dict[str, float]:
        return {}

    def amount(self, name: str) -> float:
        """A number of the part, such as its parameters: asked for by every stage that has it."""
        if name not in self._amounts:
            self._amounts[name] = math.fsum(k * getattr(part, name) for k, part in self.terms)
        return self._amounts[name]

    @cached_property
    def update_bytes(self) -> float:
        """The most that an update needs in addition to what is kept."""
        return max(float(part.update_bytes.max()) for _, part in self.terms)

    def spare_bytes(self, sums: bool) -> float:
        """The most in addition to what is kept. Gradients are added to sums (if there are any) at the end of a
        backward: then those of all blocks are there, and nothing is kept any more of that micro-batch.
        """
        part = self.terms[0][1] if self.terms[0][0] > 0 else self.terms[-1][1]
        gradients = FLOAT_BYTES * (self.amount("parameters") - part.parameters)
        more = gradients - (self.amount("kept_bytes") - part.kept_bytes)
        return float(part.spare_bytes.max()) + (max(0.0, more) if sums else 0.0)


def _part_time(terms: Terms, rates: _Rates, blocks: int, overlap: bool) -> PartTime:
    rows = [(k, _seconds(part, rates)) for k, part in terms]
    names = ("ahead", "forward", "backward", "behind", "last", "update")
    seconds = {name: _sum([(k, one[name]) for k, (one, _, _) in rows]) for name in names}
    each = tuple((k, m) for k, (_, messages, _) in rows for m in messages)
    once = tuple((k, m) for k, (_, _, messages) in rows for m in messages)
    if overlap and rates.data > 1:
        seconds["last"] = _overlapped(seconds, once, rates, blocks)
    border = max(part.border_bytes for _, part in terms) * rates.scale
    return PartTime(terms, **seconds, border_bytes=border, each=each, once=once)


@lru_cache(maxsize=4096)
def _seconds(part: Part, rates: _Rates) -> tuple[dict[str, Seconds], tuple[Message, ...], tuple[Message, ...]]:
    """Seconds of one part as it was compiled, its messages per micro-batch, and those sent once."""
    level, data = rates.level, rates.data
    works = {name: getattr(part, name) for name in ("forward", "backward", "behind")}
    last, after = part.last.messages, ()
    if level >= 1:
        last, after = _halves(last, data)
    if level >= 2:
        works["behind"], last = _with(part.behind, last), ()
    if level == 3:
        works |= {name: _with(works[name], after) for name in ("forward", "backward")}
        after = ()
    seconds = {name: rates.of(work) for name, work in works.items()}
    seconds["ahead"] = rates.of(part.ahead)
    seconds["last"] = rates.of(replace(part.last, messages=last))
    mine = 1 / data if level else 1.0  # of every parameter
    numbers = {name: getattr(part.update, name) * mine for name in ("flops", "touched_bytes")}
    update = rates.of(replace(part.update, **numbers), 1.0)  # states are float32
    seconds["update"] = _sum([(1, update), (1, rates.messages(after))])
    each = tuple(m for work in works.values() for m in work.messages)
    return seconds, each, (*last, *after)


def _with(work: Work, messages: Sequence[Message]) -> Work:
    return replace(work, messages=(*work.messages, *messages))


def _overlapped(seconds: dict[str, Seconds], once: Often, rates: _Rates, blocks: int) -> Seconds:
    """What is left of the messages between copies where one per block travels during the last backward."""
    gradients = [(k, m) for k, m in once if m.kind in ("all_reduce", "reduce_scatter") and m.copies]
    size = math.fsum(k * m.size_bytes for k, m in gradients)
    if not size:
        return seconds["last"]
    kind = gradients[0][1].kind
    start_s, whole_s = (rates.message_s(Message(kind, s, 1, True)) for s in (0.0, size))
    line = Link(start_s, (whole_s - start_s) / size)
    backward_s = seconds["backward"].total + seconds["behind"].total
    each = [Gradient(f"block {at}", size / blocks, backward_s / blocks) for at in range(blocks)]
    exposed_s = predict_overlap(each, range(blocks), line).step_s - backward_s
    return seconds["last"]._replace(copies=min(max(exposed_s, 0.0), seconds["last"].copies))


class Pricing:
    """A point taken apart: seconds of its parts, its memory, a bound on its time, and its clock, which costs most."""

    misfit = staticmethod(misfit)

    def __init__(self, model: Transformer, point: PlanPoint, machine: Machine, precision: str = "mixed") -> None:
        if fault := misfit(model, point, machine.cluster):
            raise ArgumentError(point.text(), where="plan point", allowed=fault)
        self.model, self.point, self.machine, self.precision = model, point, machine, precision
        bytes_each, self.state_bytes = PRECISIONS[precision]
        self.scale = bytes_each / FLOAT_BYTES
        self.places = places = Places(point, machine.cluster)
        spans = {"layer_spans": places.layer_spans, "copies_span": places.copies_span}
        self.rates = _Rates(machine.cluster, self.scale, point.data, point.level, **spans)
        self.schedule = cast(Schedule, schedule_of(point))  # not why there is none: `misfit` has asked
        count = point.stages * point.chunks
        self.blocks = model.layers // count
        parts = parts_of(model, point, self.blocks)
        times = {n: _part_time(terms, self.rates, self.blocks, point.overlap) for n, terms in parts.items()}
        many = [times["first"], *[times["middle"]] * (count - 2), times["last"]] if count > 1 else []
        self.parts = many or [times["only"]]
        self.scalars_s = self.rates.of(self.parts[0].terms[0][1].scalars, 1.0).compute

    @staticmethod
    def states_bytes(model: Transformer, point: PlanPoint, precision: str) -> float:
        """Every rank holds at least the states of its blocks' matrices."""
        weights = model.layers // point.stages * 12 * model.hidden**2 / point.tensor
        return zero_memory(weights, point.data, point.level, **PRECISIONS[precision][1]).total_bytes

    def held(self, stage: int) -> list[PartTime]:
        """The parts on a stage's ranks."""
        return self.parts[stage :: self.point.stages]

    def _of_stages(self, of: Callable[[list[PartTime]], T]) -> list[T]:
        """What follows from the parts on its ranks, of every stage: those between the ends hold the same ones."""
        ends = [of(self.held(stage)) for stage in sorted({0, min(1, self.point.stages - 1), self.point.stages - 1})]
        return [*ends[:-1], *ends[1:2] * (self.point.stages - len(ends)), ends[-1]]

    @cached_property
    def updates(self) -> list[Seconds]:
        """Seconds of the update, stage by stage."""
        scalars = (1, Seconds(self.scalars_s, 0.0, 0.0))
        return self._of_stages(lambda parts: _sum([*((1, part.update) for part in parts), scalars]))

    @cached_property
    def busy(self) -> list[Seconds]:
        """What a rank of every stage works in a step, without the update."""
        often = self.point.micro_batches
        return self._of_stages(lambda parts: _sum([*((often, p.busy) for p in parts), *((1, p.last) for p in parts)]))

    # ---- time ----

    @cached_property
    def least_s(self) -> float:
        """No schedule is faster: a stage works, but before its first and after its last micro-batch has run through the
        stages before it.
        """
        before = least = 0.0
        for stage in range(self.point.stages):
            part, follower = self.parts[stage], self.parts[(stage + 1) % len(self.parts)]
            least = max(least, before + self.busy[stage].total - part.last.total - part.behind.total)
            before += part.forward.total + part.backward.total - follower.ahead.total - part.ahead.total
        return max(least, self.busy[0].total + self.updates[0].total)

    def borders(self) -> dict[tuple[int, int], float]:
        """Seconds of a message between two stages, the same in both directions."""
        point, cluster, seconds = self.point, self.machine.cluster, {}
        size = max(part.border_bytes for part in self.parts)
        for k in range(len(self.parts) - 1):
            a, b = k % point.stages, (k + 1) % point.stages
            link = cluster.link_over(spans=self.places.border_spans(a, b))
            seconds[a, b] = seconds[b, a] = message_time_s("send", size, 2, link)
        return seconds

    def clock(self, borders: dict[tuple[int, int], float]) -> tuple[float, int]:
        """Seconds of a step, and the stage that is done last."""
        final = {action.stage: action for lane in self.schedule for action in lane if action.kind == "B"}
        ahead = [part.ahead.total for part in self.parts]
        behind, last = ([getattr(p, name).total for p in self.parts] for name in ("behind", "last"))

        def after(action: Action) -> float:
            if action.kind != "B":
                return 0.0
            return behind[action.stage] + (last[action.stage] if final[action.stage] is action else 0.0)

        forward, backward = ([getattr(p, name).total for p in self.parts] for name in ("forward", "backward"))

        def before(action: Action) -> float:
            return ahead[action.stage] if action.kind == "F" else 0.0

        early = before if any(ahead) else None
        timing = run_clock(self.schedule, forward, backward, 0.0, borders, ahead=early, after=after)
        ends = [lane[-1] + update.total for lane, update in zip(timing.ends, self.updates, strict=True)]
        return max((end, stage) for stage, end in enumerate(ends))

    # ---- memory ----

    @cached_property
    def memory(self) -> tuple[dict[str, float], int]:
        """Bytes by kind of the rank that holds most, and its stage."""
        sizes = zip(self._of_stages(self._sizes), self.schedule.peaks, strict=True)
        by_stage = [(self._memory(*size, peak), stage) for stage, (size, peak) in enumerate(sizes)]
        return max(by_stage, key=lambda one: sum(one[0].values()))

    @property
    def memory_bytes(self) -> float:
        return math.fsum(self.memory[0].values())

    def _sizes(self, parts: list[PartTime]) -> tuple[ZeroMemory, float, float, float, float]:
        """States, inputs, what a micro-batch keeps; what a rank needs in addition before the update, and in it."""
        point = self.point
        parameters = math.fsum(p.amount("parameters") for p in parts)
        states = zero_memory(parameters, point.data, point.level, **self.state_bytes)
        kept = max(p.amount("kept_bytes") for p in parts)
        spare = max(p.spare_bytes(point.micro_batches > 1) for p in parts) * self.scale
        if point.level == 3:  # a block's parameters at a time
            spare += self.state_bytes["param_bytes"] * parameters / (self.blocks * point.chunks)
        update = max(p.update_bytes for p in parts)
        update /= point.data if point.level else 1
        inputs = math.fsum(p.amount("input_bytes") for p in parts) * point.micro_batches * point.data
        return states, inputs, kept, spare, update

    def _memory(
        self, states: ZeroMemory, inputs: float, kept: float, spare: float, update: float, peak: int
    ) -> dict[str, float]:
        """Bytes by kind.  peak: micro-batches and parts on their way"""
        held = kept * self.scale * peak
        if update > held + spare:
            held, spare = 0.0, update
        sizes = (states.params_bytes, states.grads_bytes, states.optimizer_bytes, inputs, held, spare)
        return dict(zip(MEMORY_PARTS, sizes, strict=True))

    # ---- together ----

    def predict(self, *, whole: bool = True, clocked: tuple[float, int] | None = None) -> Prediction:
        """whole: with the clock run a second time, for the cost of borders;  clocked: what the first run gave."""
        point, borders = self.point, self.borders()
        step_s, stage = clocked or self.clock(borders)
        busy, update = self.busy[stage], self.updates[stage]
        free_s = self.clock({})[0] if whole and borders else step_s
        waiting_s = step_s - busy.total - update.total
        memory, worst = self.memory
        return Prediction(
            self.model,
            point,
            self.machine,
            self.precision,
            step_s=step_s,
            compute_s=busy.compute,
            tensor_s=busy.tensor + update.tensor,
            copies_s=busy.copies + update.copies,
            update_s=update.compute,
            waiting_s=waiting_s if waiting_s > 1e-9 * step_s else 0.0,  # less is rounding
            border_s=step_s - free_s if whole or not borders else None,
            memory=memory,
            worst_stage=worst,
            sent_bytes=self._sent(point.stages // 2),
            step_flops=self.model.step_flops(point.batch),
        )

    def _sent(self, stage: int) -> dict[str, float]:
        """Bytes that a rank of a stage sends in a step."""
        stages, repeats, places = self.point.stages, self.point.micro_batches, self.places
        sent = {False: 0.0, True: 0.0}
        for part in self.held(stage):
            for often, messages in ((repeats, part.each), (1, part.once)):
                for k, message in messages:
                    sent[self.rates.spans(message)] += often * k * self.rates.sent_bytes(message)
        size = max(part.border_bytes for part in self.parts)
        for k in range(stage, len(self.parts), stages):
            for other in (k - 1, k + 1):
                if 0 <= other < len(self.parts):
                    sent[places.border_spans(stage, other % stages)] += size * repeats
        return {"in node": sent[False], "between nodes": sent[True]}


def pricing_of(model: Transformer | Decoder) -> Any:
    """The class that prices a plan of a model: Pricing, or DecoderPricing, which has the same methods."""
    return DecoderPricing if isinstance(model, Decoder) else Pricing


def get_model(name: str | Transformer | Decoder) -> Transformer | Decoder:
    """The model of a name: of TRANSFORMERS or of DECODERS. Raises ArgumentError, with the nearest name, otherwise."""
    if isinstance(name, Transformer | Decoder):
        return name
    by_name = {model.name: model for model in (*TRANSFORMERS, *DECODERS)}
    return by_name[choice(*by_name)("get_model", "name", name)]


def predict_point(
    model: Transformer | Decoder | str,
    point: PlanPoint | DecoderPoint,
    machine: Machine | Cluster | str,
    *,
    precision: str = "mixed",
    load: float | None = None,
) -> Prediction:
    """The prediction of one way to train a model, for any number of devices; no plan of all of them is compiled.

    point      a PlanPoint of a Transformer, a DecoderPoint of a Decoder
    precision  "mixed": 2 bytes a number, 12 more a parameter for the update;  "float32": as the compiled plan
    load       of a Decoder: rows of the busiest rank of experts over the mean; None: 1

    Raises ArgumentError: a point that does not fit the model or the cluster, unknown names.
    """
    where = "predict_point"
    choice(*PRECISIONS)(where, "precision", precision)
    model, machine = get_model(model), get_machine(machine)
    needed = DecoderPoint if isinstance(model, Decoder) else PlanPoint
    instance(needed, f"A {needed.__name__}: {model.name} is a {type(model).__name__}")(where, "point", point)
    more = {} if load is None else {"load": load}
    if more and needed is PlanPoint:
        raise ArgumentError(f"load={load}", where=where, allowed=f"None: {model.name} has no experts")
    return pricing_of(model)(model, point, machine, precision, **more).predict()
