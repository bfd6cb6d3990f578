"""The prediction of a decoder's plan, in closed forms: seconds of its stages, bytes of its ranks.

    predict_point("llama3_8b", DecoderPoint(131_072, context=8, recompute="full", level=3), get_machine("dgx_h100", 8))

    compute      operations of `Decoder` over the device's rate, 3 bytes moved for each byte that is kept
    attention    a ring's step lasts max(pairs of the longest rank, its keys on the link); backward has 10 products for
                 forward's 4, and gradients of keys follow in float32. Gathered keys and exchanged heads hide nothing
    tensor       all_gather and reduce_scatter twice each way in a dense layer, once with experts; what Megatron gathers
                 again is hidden
    experts      rows there and back, each way; the busiest rank has `load` times the mean, and all wait for it
    stages       1F1B: (m - 1) times the slowest stage, then each of them once, and 2 (p - 1) borders
    copies       what the backward pass does not hide, at least the last layer's share

`run_messages` has the bytes, `Degrees` the groups and states. A group lies in a node if its ranks do; otherwise all its
messages have the pace of the link between nodes. All numbers are predicted.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, ClassVar, NamedTuple

from ...base.checks import choice, number
from ...base.cluster import Cluster, Link
from ...base.errors import ArgumentError
from ...base.units import bytes_text, time_text
from ..time import message_time_s
from .clusters import Machine
from .decoder_point import DecoderPoint, decoder_misfit
from .decoders import BFLOAT16, FLOAT32, Decoder
from .degrees import ADAM_BYTES, GRADIENT_BYTES, WEIGHT_BYTES, Degrees
from .point import Prediction
from .run_messages import context_shapes, run_messages
from .sequence_messages import AttentionMessages

FORWARD_PRODUCTS, BACKWARD_PRODUCTS = 4, 10  # operations of attention for each pair, head and element (2 a product)
MOVES = 3  # a kept number is written once, and read in forward and backward
_TERMS = ("compute_s", "tensor_s", "context_s", "expert_s", "copies_s", "update_s", "waiting_s")
# a point's way, as `run_messages` calls it
_BYTES_OF = {"ring": "ring", "zigzag": "ring", "gathered": "gathered", "ulysses": "exchanged", "hybrid": "ring"}


class LayerSeconds(NamedTuple):
    """Seconds of a layer and micro-batch, both passes and what runs again."""

    compute: float
    tensor: float
    context: float
    expert: float


class Layer(NamedTuple):
    """A layer and micro-batch on a rank: bytes kept, bytes besides while it runs again, keys and gradients held."""

    seconds: LayerSeconds
    kept_bytes: float
    again_bytes: float
    held_bytes: float


@dataclass(frozen=True)
class DecoderPrediction(Prediction):
    """As Prediction; context_s and expert_s are exposed seconds of rings and exchanges.

    load  of the busiest rank of experts, over the mean
    """

    context_s: float = 0.0
    expert_s: float = 0.0
    load: float = 1.0

    terms: ClassVar[tuple[str, ...]] = ("step_s", *_TERMS)
    model: Any
    point: Any

    @property
    def tokens_per_s(self) -> float:
        """Tokens per second, of all devices."""
        return self.point.batch * self.point.seq_length / self.step_s

    def rows(self) -> list[tuple[str, str, str]]:
        """(what, number with its unit, formula); parts of a number follow it, indented."""
        p, group, peak = self.point, self.point.degrees.gradients, self.machine.peak_flops_per_s
        told = (
            "operations / rate + 3 * kept bytes / memory bandwidth",
            f"messages of {p.tensor} ranks of a layer",
            f"{p.way} of {p.context} ranks of a sequence: what computing does not hide",
            f"rows of {p.expert} ranks of experts, there and back; the busiest: {self.load:g} of the mean",
            f"gradients among {group.dense_group} replicas, of experts {group.expert_group}, not hidden",
            "Adam: a rank's states read and written",
            f"{self.bubble:.1%} of the step: other stages",
        )
        rows = [("step", time_text(self.step_s), "predicted: (m - 1) of the slowest stage, then each once, copies")]
        rows += [(f"  {n[:-2]}", time_text(getattr(self, n)), how) for n, how in zip(_TERMS, told, strict=True)]
        rows += [("MFU", f"{self.mfu:.1%}", f"{self.step_flops:.4g} / (step * {p.devices} * {peak:.4g}), causal")]
        rows += [("tokens per s", f"{self.tokens_per_s:,.0f}", f"{p.batch} * {p.seq_length} / step")]
        room = bytes_text(self.machine.cluster.device.memory_bytes)
        rows += [("memory", bytes_text(self.memory_bytes), f"stage {self.worst_stage}, of {room}")]
        rows += [(f"  {kind}", bytes_text(size), _PARTS[kind]) for kind, size in self.memory.items()]
        return rows + [(f"sent {at}", bytes_text(n), "by a rank per step") for at, n in self.sent_bytes.items()]


_PARTS = {
    "params": f"{WEIGHT_BYTES} bytes each",
    "grads": f"{GRADIENT_BYTES} bytes each",
    "optimizer": f"{ADAM_BYTES} bytes each",
    "activations": "per micro-batch on its way, of all layers of the stage",
    "workspace": "keys on their way, scores of the vocabulary, a layer that is computed again or gathered",
}


@lru_cache(maxsize=8192)
def _layer(decoder: Decoder, cluster: Cluster, experts: bool, load: float, devices: int, *of: Any) -> Layer:
    """of  what a layer depends on (`DecoderPricing._busy`): many points share it."""
    seq_length, t, c, expert, expert_tensor, b, *rest = of
    point = DecoderPoint(seq_length, devices // (t * c), t, c, 1, expert, expert_tensor, b, 1, *rest)
    d, h, device, size = decoder, decoder.hidden, cluster.device, _extents(point)
    tokens, forwards = b * seq_length // c, 1 + (point.recompute == "full")
    own = tokens / t

    def sent(kind: str, operand: float, members: int, axis: str) -> float:
        link = _link(cluster, point.devices, size[axis])
        return message_time_s(kind, operand, members, link, device.gamma_s_per_byte) if members > 1 else 0.0

    dense = d.parts["attention"] / d.layers
    dense += 3 * h * (d.shared_experts * d.expert_width if experts else d.mlp_width)
    matrices = dense * tokens / t + (own * (h * d.experts + load * d.chosen * 3 * h * d.expert_width) if experts else 0)
    how = {"dense": not experts, "sequence_parallel": point.sequence_parallel, "rows_per_token": load * d.chosen}
    whole_rows = own * load * d.chosen * h * BFLOAT16 * (point.expert_tensor - 1) * experts  # of split experts
    kept, again = (
        d.layer_activation_bytes(b, seq_length, t, c, recompute=kind, **how) + whole_rows * (kind != "full")
        for kind in ("none", point.recompute)
    )
    moved = MOVES * kept + 2 * (kept - again)  # what is kept no more is read and written once more
    compute = 2 * (2 + forwards) * matrices / device.flops_per_s + moved / device.memory_bandwidth_bytes_per_s
    whole, kinds = tokens * h * BFLOAT16, 1 if experts else 2  # blocks of a layer that lie among ranks of tp
    if point.sequence_parallel:
        one = sent("all_gather", whole / t, t, "tp") + sent("reduce_scatter", whole, t, "tp")
    else:
        one = sent("all_reduce", whole, t, "tp")
    tensor = kinds * one * (1 + forwards)
    links = [_link(cluster, point.devices, size[axis]) for axis in ("exchange", "cp")]
    shapes = context_shapes(d, point.degrees, b, seq_length, point.exchanged)
    outer = shapes[1]
    attention, exposed = _attention(shapes, point, links, device.flops_per_s)
    held = ((outer.gathered() if point.way == "gathered" else outer.ring()).held_bytes) if outer.ranks > 1 else 0
    rows = own * d.chosen * load * h * BFLOAT16 if experts else 0.0
    expert = 2 * sent("all_to_all", rows, point.expert, "ep")
    parts = point.expert_tensor
    expert += sent("all_gather", rows, parts, "etp") + sent("reduce_scatter", rows * parts, parts, "etp")
    seconds = LayerSeconds(compute + attention, tensor, exposed, expert * (1 + forwards))
    return Layer(seconds, again, kept - again, held * (1 + FLOAT32 / BFLOAT16))


def _extents(point: DecoderPoint) -> dict[str, int]:
    """{axis: ranks next to each other that hold one of its groups}, of the two grids of `Degrees`."""
    t, c, et = point.tensor, point.context, point.expert_tensor
    return {
        "tp": t,
        "exchange": t * point.exchanged,
        "cp": t * c,
        "etp": et,
        "ep": point.expert * et,
        "dp": t * c * point.data,
    }


def _spans(cluster: Cluster, devices: int, extent: int) -> bool:
    return devices > cluster.devices_per_node and cluster.devices_per_node % extent > 0


def _link(cluster: Cluster, devices: int, extent: int) -> Link:
    return cluster.link_over(spans=_spans(cluster, devices, extent))


_Shapes = tuple[AttentionMessages, AttentionMessages]


def _attention(shapes: _Shapes, point: DecoderPoint, links: list[Link], flops_per_s: float) -> tuple[float, float]:
    """Seconds of the products of attention, and of messages that they do not hide; a causal mask."""
    (inner, outer), (exchange, ring) = shapes, links
    ranks, c, again = outer.ranks, outer.rank_tokens, point.recompute == "full"
    pair = outer.samples * outer.heads * outer.head_size / flops_per_s
    triangle = c * (c + 1) / 2
    late = c * c if point.way == "ring" else c * c / 2  # pairs of the longest rank in a step behind the first
    steps = [triangle] + [late] * (ranks - 1)
    products = FORWARD_PRODUCTS * (1 + again) + BACKWARD_PRODUCTS
    compute, messages = products * pair * sum(steps), 0.0
    if ranks > 1:
        sent = outer.gathered() if point.way == "gathered" else outer.ring()
        passes = ranks - 1
        forward_s = ring.alpha_s + ring.beta_s_per_byte * sent.forward_bytes / passes
        if point.way == "gathered":
            messages = passes * (forward_s * (1 + again) + 2 * ring.alpha_s)
            messages += ring.beta_s_per_byte * sent.backward_bytes
        else:
            home_s = 2 * ring.alpha_s + ring.beta_s_per_byte * (sent.backward_bytes - sent.forward_bytes) / ranks
            for n in steps[:-1]:
                messages += (1 + again) * max(0.0, forward_s - FORWARD_PRODUCTS * pair * n)
                messages += max(0.0, forward_s + home_s - BACKWARD_PRODUCTS * pair * n)
            messages += home_s  # nothing is left to hide the last gradients
    if inner.ranks > 1:
        each = inner.exchanged().forward_bytes * exchange.beta_s_per_byte + 4 * (inner.ranks - 1) * exchange.alpha_s
        messages += each * (2 + again)
    return compute, messages


class _Stage(NamedTuple):
    """Alike stages: the first, how many, layers without and with experts, whether table and head are there."""

    first: int
    count: int
    dense: int
    experts: int
    table: bool
    head: bool


@lru_cache(maxsize=512)
def _stages(decoder: Decoder, stages: int) -> tuple[_Stage, ...]:
    """Layers in order, as many in each stage as possible, one more in some."""
    found: dict[tuple[int, int, bool, bool], list[int]] = {}
    plain = decoder.layers - decoder.expert_layers
    for stage in range(stages):
        start, stop = (i * decoder.layers // stages for i in (stage, stage + 1))
        dense = max(0, min(stop, plain) - start)
        kind = (dense, stop - start - dense, stage == 0, stage == stages - 1)
        found.setdefault(kind, []).append(stage)
    return tuple(_Stage(those[0], len(those), *kind) for kind, those in found.items())


@lru_cache(maxsize=8192)
def _own(decoder: Decoder, run: Degrees) -> dict[_Stage, tuple[float, float]]:
    """Parameters of a rank of each stage: outside of experts, and of experts."""
    d, parts, found = decoder, decoder.parts, {}
    for stage in _stages(d, run.stages):
        of_experts = stage.experts / max(1, d.expert_layers)
        dense = (stage.dense + stage.experts) * (parts["attention"] + parts["norms"]) / d.layers
        dense += stage.dense * 3 * d.hidden * d.mlp_width + of_experts * (parts["router"] + parts["shared_experts"])
        tables = stage.table + (stage.head and not (d.tied and stage.table))  # tied over stages: both hold it
        dense += tables * parts["embedding"]
        found[stage] = dense / run.tensor, of_experts * parts["experts"] / (run.expert * run.expert_tensor)
    return found


class DecoderPricing:
    """A point taken apart, as `Pricing` does for a compiled block.  load: rows of the busiest rank of experts over the
    mean.
    """

    misfit = staticmethod(decoder_misfit)

    def __init__(
        self, model: Decoder, point: DecoderPoint, machine: Machine, precision: str = "mixed", load: float = 1.0
    ) -> None:
        where = f"plan of {model.name}"
        choice("mixed")(where, "precision", precision)
        self.load = number(1)(where, "load", load)
        if fault := decoder_misfit(model, point, machine.cluster):
            raise ArgumentError(point.text(), where="plan point", allowed=fault)
        self.model, self.point, self.machine = model, point, machine
        self.run, self.own = point.degrees, _own(model, point.degrees)
        self.stages = {stage: self._layers(stage) for stage in self.own}

    @staticmethod
    def states_bytes(model: Decoder, point: DecoderPoint, precision: str) -> float:
        """States of a rank of the fullest stage: what `memory` has at least."""
        run = point.degrees
        return max(sum(run.state_bytes(*own, point.level)) for own in _own(model, run).values())

    # ---- time ----

    def _layers(self, stage: _Stage) -> list[tuple[int, Layer]]:
        """How many of each kind a stage has."""
        p, shared = self.point, (self.model, self.machine.cluster)
        of = (p.devices, p.seq_length, p.tensor, p.context, p.expert, p.expert_tensor, p.micro_batch, p.way, p.exchange)
        kinds = ((stage.dense, False), (stage.experts, True))
        again = (0, p.recompute, p.sequence_parallel)
        return [(n, _layer(*shared, experts, self.load, *of, *again)) for n, experts in kinds if n]

    def _busy(self, stage: _Stage) -> LayerSeconds:
        """Seconds of a micro-batch in a stage."""
        d, p, each = self.model, self.point, self.stages[stage]
        total = LayerSeconds(*(sum(n * layer.seconds[i] for n, layer in each) for i in range(4)))
        rate = self.machine.cluster.device.flops_per_s
        head = stage.head * 6 * self._tokens * d.vocab_size * d.hidden / p.tensor / rate
        return total._replace(compute=total.compute + head)

    @property
    def _tokens(self) -> int:
        """Tokens of a micro-batch on a rank."""
        return self.point.micro_batch * self.point.seq_length // self.point.context

    @cached_property
    def seconds(self) -> tuple[dict[str, float], _Stage]:
        """Seconds of a step, by kind, and the slowest stage."""
        p, d, cluster = self.point, self.model, self.machine.cluster
        works = {stage: self._busy(stage) for stage in self.stages}
        slowest = max(works, key=lambda stage: sum(works[stage]))
        longest = sum(works[slowest])
        border = self._tokens * d.hidden * BFLOAT16 / (p.tensor if p.sequence_parallel else 1)
        link = _link(cluster, p.devices, 2 * _extents(p)["dp"])
        borders_s = 2 * (p.stages - 1) * message_time_s("send", border, 2, link)
        states = sum(self.run.state_bytes(*self.own[slowest], p.level))
        parts = dict(zip(_TERMS, (p.micro_batches * s for s in works[slowest]), strict=False))
        parts["copies_s"] = self._copies_s(slowest, longest)
        parts["update_s"] = 2 * states / cluster.device.memory_bandwidth_bytes_per_s
        parts["waiting_s"] = sum(stage.count * sum(work) for stage, work in works.items()) - longest + borders_s
        return parts, slowest

    def _copies_s(self, stage: _Stage, busy_s: float) -> float:
        """Seconds of gradients and weights among replicas that the work of a micro-batch does not hide."""
        p, run, cluster = self.point, self.run, self.machine.cluster
        link, gamma = _link(cluster, p.devices, _extents(p)["dp"]), cluster.device.gamma_s_per_byte
        reduce_s = gather_s = 0.0
        for count, n in zip(self.own[stage], run.gradients.replicas, strict=True):
            kind = "reduce_scatter" if p.level else "all_reduce"
            reduce_s += message_time_s(kind, count * GRADIENT_BYTES, n, link, gamma)
            gather_s += message_time_s("all_gather", count * WEIGHT_BYTES / n, n, link, gamma) if p.level else 0.0
        often, each_s = 1, reduce_s + gather_s
        if p.level >= 2:  # gradients of every micro-batch; level 3: weights before each pass of it, too
            often, each_s = p.micro_batches, reduce_s + (2 * gather_s if p.level == 3 else gather_s / p.micro_batches)
        return often * max(each_s / (stage.dense + stage.experts), each_s - busy_s)

    @property
    def least_s(self) -> float:
        """Seconds of a step: closed forms are exact bounds of themselves."""
        return sum(self.seconds[0].values())

    def borders(self) -> dict[tuple[int, int], float]:
        """In `seconds` already."""
        return {}

    def clock(self, borders: dict[tuple[int, int], float]) -> tuple[float, int]:
        """Seconds of a step, and the slowest stage."""
        return self.least_s, self.seconds[1].first

    # ---- memory ----

    @cached_property
    def memory(self) -> tuple[dict[str, float], int]:
        """Bytes by kind of the rank that holds most, and its stage."""
        found = [(self._memory(stage), stage.first) for stage in self.stages]
        return max(found, key=lambda one: sum(one[0].values()))

    @property
    def memory_bytes(self) -> float:
        return sum(self.memory[0].values())

    def _memory(self, stage: _Stage) -> dict[str, float]:
        p, d, each = self.point, self.model, self.stages[stage]
        kept = sum(n * layer.kept_bytes for n, layer in each)
        workspace = max(layer.held_bytes + layer.again_bytes for _, layer in each)
        workspace += stage.head * FLOAT32 * self._tokens * d.vocab_size / p.tensor
        if p.level == 3:  # a layer's weights and gradients are whole
            own = sum(self.own[stage]) / (stage.dense + stage.experts)
            workspace += (WEIGHT_BYTES + GRADIENT_BYTES) * own
        flying = kept * min(p.micro_batches, p.stages - stage.first)
        return dict(zip(_PARTS, (*self.run.state_bytes(*self.own[stage], p.level), flying, workspace), strict=True))

    # ---- together ----

    def predict(self, *, clocked: tuple[float, int] | None = None) -> DecoderPrediction:
        """clocked: as `clock` gives it, known already."""
        p, d = self.point, self.model
        (seconds, slowest), (memory, worst) = self.seconds, self.memory
        flops = float(p.batch * p.seq_length * d.flops_per_token(p.seq_length))
        return DecoderPrediction(
            d, p, self.machine, "mixed", self.least_s, **seconds, border_s=None, memory=memory, worst_stage=worst,
            sent_bytes=self._sent(slowest), step_flops=flops, load=self.load,
        )  # fmt: skip

    def _sent(self, stage: _Stage) -> dict[str, float]:
        """Bytes that a rank of a stage sends in a step, the formulas of `run_messages`; balanced experts."""
        p, size = self.point, _extents(self.point)
        how = {"way": _BYTES_OF[p.way], "exchange": p.exchange, "sequence_parallel": p.sequence_parallel}
        bytes_of = dict.fromkeys(size, 0.0)
        for n, dense in ((stage.dense, True), (stage.experts, False)):
            if n:
                each = run_messages(self.model, self.run, p.micro_batch, p.seq_length, dense=dense, **how)
                found = (each.tensor_bytes, each.context_bytes, each.expert_bytes, each.expert_tensor_bytes)
                for axis, count in zip(("tp", "cp", "ep", "etp"), found, strict=True):
                    bytes_of[axis] += n * p.micro_batches * count
        for count, n in zip(self.own[stage], self.run.gradients.replicas, strict=True):
            bytes_of["dp"] += 2 * (n - 1) / n * count * GRADIENT_BYTES
        spans = {axis for axis in size if _spans(self.machine.cluster, p.devices, size[axis])}
        between = sum(count for axis, count in bytes_of.items() if axis in spans)
        return {"in node": sum(bytes_of.values()) - between, "between nodes": between}
