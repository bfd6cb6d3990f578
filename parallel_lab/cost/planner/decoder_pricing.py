"""The prediction of decoders' plans, in closed forms over arrays: many plans cost little more than one.

    predict_point("llama3_8b", DecoderPoint(131_072, context=8, recompute="full", level=3), get_machine("dgx_h100", 8))
    price(get_decoder("llama3_8b"), get_machine("dgx_h100", 64), columns).seconds["tensor_s"]

    compute      operations of products over the rate that the chip reaches, or their weights over the memory's
    attention    a ring's step lasts max(pairs of the longest rank, its keys on the link); backward has 10 products for
                 forward's 4, and gradients of keys follow in float32. Gathered keys and exchanged heads hide nothing
    moved        what elementwise operators read and write, and starts of kernels
    tensor       all_gather and reduce_scatter twice each way in a dense layer, once with experts; what Megatron gathers
                 again is hidden
    experts      rows there and back, each way; the busiest rank has `load` times the mean, and all wait for it
    waiting      the schedule's bubble (`BUBBLES`) and messages between stages
    copies       what products do not hide, at least the last layer's share, and what messages behind them slow them

A group's messages have the pace of its slowest piece (`links.py`). `run_messages` has the bytes, `Degrees` the groups
and states. All numbers are predicted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import numpy as np

from ...base.checks import choice, number
from ...base.errors import ArgumentError
from ...base.units import bytes_text, time_text
from .clusters import Machine
from .decoder_memory import Stage, memory_of, own_parameters, stages_of
from .decoder_point import STATES, Columns, DecoderPoint, decoder_misfit
from .decoders import BFLOAT16, FLOAT32, Decoder
from .expert_messages import different_places
from .links import groups_of
from .point import Prediction
from .run_messages import run_messages

FORWARD_PRODUCTS, BACKWARD_PRODUCTS = 4, 10  # operations of attention for each pair, head and element (2 a product)
# what elementwise operators move for a kept byte. Fused: it is read or written once each way. One kernel an operator:
# norms in float32 read and write 34 bytes for two kept ones forward, and twice that backward; gates and products 10 and
# 28 for six (counted in torch's eager mode)
MOVES_FUSED, MOVES_EAGER = 2, 10
QUANTIZED = 4  # bytes of a product's input, or of its result's gradient, in fp8: read, cast, cast transposed
SCORE_MOVES, SCORE_MOVES_AGAIN = 26, 11  # bytes of a score that is stored: both passes with dropout; forward again
WEIGHT_MOVES = 12  # bytes of a weight in a micro-batch: read forward and backward, its gradient read and written
LOGIT_MOVES_FUSED, LOGIT_MOVES_EAGER = 12, 26  # bytes of a logit: two-byte result, float32 softmax, gradient
MERGED = 20  # bytes of a number of attention's result in a further step of a ring: read, added in float32, written
KERNELS, KERNELS_OF_EXPERTS, KERNELS_OF_AN_EXPERT = 60, 100, 12  # that a layer starts in both passes
LATE_START = 2  # times as long as others the kernels of experts take to start: the host waits for the counts of rows
BUSY_CORES = 0.15  # of a chip's cores that a message behind products takes (NCCL: 16 to 20 of 108 to 132)
REACHED_OF_MEMORY = 0.8  # of its bandwidth, by kernels that move whole tensors
_TERMS = (
    *("compute_s", "attention_s", "moved_s", "tensor_s", "context_s", "expert_s"),
    *("copies_s", "offload_s", "update_s", "waiting_s"),
)
# a point's way, as `run_messages` calls it
_BYTES_OF = {
    "ring": "ring",
    "zigzag": "ring",
    "striped": "ring",
    "gathered": "gathered",
    "ulysses": "exchanged",
    "hybrid": "ring",
}
# the bubble of a schedule in stages' micro-batches: p stages, v chunks; F = B = W = 1/3 where backward is split
BUBBLES: dict[str, Callable[[Any, Any], Any]] = {
    **dict.fromkeys(("1f1b", "gpipe", "eager_1f1b"), lambda p, v: p - 1),
    **dict.fromkeys(("interleaved", "breadth_first"), lambda p, v: (p - 1) / v),
    "zb_h1": lambda p, v: (p - 1) / 3,
    "zb_h2": lambda p, v: 0 * p,
    "zero_bubble_v": lambda p, v: (p - 1) / 6,
    "v_half": lambda p, v: (p - 1) / 2,
    "v_min": lambda p, v: (p - 1) * 2 / 3,
    "dualpipe": lambda p, v: np.maximum(0, (p / 2 - 1) * 2 / 3),
}


@dataclass(frozen=True)
class DecoderPrediction(Prediction):
    """As Prediction; attention_s: its products; moved_s: elementwise operators; context_s and expert_s: exposed seconds
    of rings and exchanges; offload_s: exposed, to the host.

    load  of the busiest rank of experts, over the mean
    """

    attention_s: float = 0.0
    moved_s: float = 0.0
    context_s: float = 0.0
    expert_s: float = 0.0
    offload_s: float = 0.0
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
        p, device, peak = self.point, self.machine.cluster.device, self.machine.peak_flops_per_s
        weights, gradients, optimizer = STATES[p.states]
        texts = {
            "compute_s": "operations of products / rate",
            "attention_s": "pairs of tokens / rate of attention",
            "moved_s": "bytes of elementwise operators / memory bandwidth, starts of kernels",
            "tensor_s": f"messages of {p.tensor} ranks",
            "context_s": f"{p.context} ranks of a sequence, {p.way}: what attention does not hide",
            "expert_s": f"rows to {p.expert} ranks and back, {self.load:g} times the mean on the busiest",
            "copies_s": f"gradients and weights of {p.data * p.context} copies, what products do not hide",
            "offload_s": f"to the host: {p.offload}, what products do not hide",
            "update_s": "Adam: states read and written",
            "waiting_s": f"{p.schedule}, {p.stages} stages: {self.bubble:.1%} of the step",
        }
        rows = [("step", time_text(self.step_s), "all that follows, of the slowest stage")]
        rows += [(f"  {name.removesuffix('_s')}", time_text(getattr(self, name)), texts[name]) for name in _TERMS]
        mfu = f"{self.step_flops:.4g} / (step * {p.devices} * {peak:.4g}); half of the scores count"
        rows += [("MFU", f"{self.mfu:.1%}", mfu)]
        rows += [("tokens per s", f"{self.tokens_per_s:,.0f}", f"{p.batch} * {p.seq_length} / step")]
        limit = f"stage {self.worst_stage}, of {bytes_text(device.memory_bytes)}"
        rows += [("memory", bytes_text(self.memory_bytes), limit)]
        kinds = {
            "params": f"{weights} bytes each{' / copies' if p.level == 3 else ''}",
            "grads": f"{gradients} bytes each{' / copies' if p.level >= 2 else ''}",
            "optimizer": f"{optimizer} bytes each{' / copies' if p.level else ''}",
            "activations": f"of micro-batches on their way; recompute: {p.recompute}",
            "workspace": "keys and messages held, a layer that runs again, logits, whole weights of a layer, tables",
        }
        rows += [(f"  {kind}", bytes_text(self.memory[kind]), text) for kind, text in kinds.items()]
        rows += [(f"sent {where}", bytes_text(size), "by a rank per step") for where, size in self.sent_bytes.items()]
        return rows


class Layer(NamedTuple):
    """A layer and micro-batch on a rank, both passes and what runs again: seconds by term (the first six of _TERMS);
    bytes kept; bytes that are there besides while it runs again; keys and gradients held.
    """

    seconds: tuple[np.ndarray, ...]
    kept_bytes: np.ndarray
    again_bytes: np.ndarray
    held_bytes: np.ndarray


class Costs:
    """Columns with what several prices need: sizes of a rank, groups, links.  load: as of `price`; backward: whether
    there is a backward pass
    """

    def __init__(self, d: Decoder, machine: Machine, x: Columns, load: float = 1.0, *, backward: bool = True) -> None:
        self.d, self.machine, self.x, self.load, self.backward = d, machine, x, load, backward
        self.tokens = x.micro_batch * x.seq_length / x.context  # of a micro-batch on the ranks of tp together
        self.own = self.tokens / x.tensor
        self.again = 1 * x.named("recompute", "full")
        self.forwards = 1 + self.again  # of attention and of messages
        self.passes = 2 + self.forwards + x.named("recompute", "alternate") / 2  # of products
        device = machine.cluster.device
        self.bytes_per_s = REACHED_OF_MEMORY * device.memory_bandwidth_bytes_per_s
        self.fp8 = x.named("numbers", "fp8")
        self.rate = np.where(self.fp8, machine.rate("fp8"), machine.rate("bf16"))
        self.plain_rate, self.attention_rate = machine.rate("bf16"), machine.rate("attention")
        self.groups = groups_of(machine.cluster, x)

    def layer(self, experts: bool) -> Layer:
        """A layer with or without experts."""
        d, x, h = self.d, self.x, self.d.hidden
        rows = float(self.load * d.chosen)
        kinds = d.kept_of_token(experts, rows)
        names, share = list(kinds), self.tokens / x.tensor
        table = np.array([kinds[name] for name in names])
        place = x.recompute  # codes of the columns are places in KEPT, whose order `kinds` has
        kept, norms = table[place, 0], table[place, 1]
        stored = (5 if d.dropout else 2) * d.heads * x.seq_length * (1 - x.flash)
        whole = (1 - x.sequence_parallel) * (x.tensor - 1)
        gathered = self.own * rows * h * BFLOAT16 * (x.expert_tensor - 1) * experts
        scores = stored * x.named("recompute", "none", "norms_and_product")
        kept_bytes = share * (kept + whole * norms + scores) + gathered * (1 - self.again)
        none_bytes = share * (table[0, 0] + whole * table[0, 1]) + gathered
        seconds = self._products(experts, rows)
        attention_s, context_s, held, score_s = self.attention()
        moves = np.where(x.fused == 1, MOVES_FUSED, MOVES_EAGER)
        moved = moves * none_bytes + np.maximum(0, moves / 2 * (none_bytes - kept_bytes))
        # operands and results of products: what ranks of a layer share lies whole on each of them
        width = (rows + d.shared_experts) * d.expert_width if experts else d.mlp_width
        split = 2 * d.score_width + 2 * d.kv_width + d.products * width + (2 * rows * h if experts else 0)
        read = (2 if experts else 4) * h * x.tensor + split
        moved = moved + self.passes * np.where(self.fp8, 1, BFLOAT16) * share * read
        moved = moved + self.fp8 * QUANTIZED * share * (4 * h + 2 * split)
        kernels = (
            KERNELS if not experts else LATE_START * (KERNELS_OF_EXPERTS + KERNELS_OF_AN_EXPERT * d.experts / x.expert)
        )
        starts_s = kernels * (1 + self.again / 3) * self.machine.cluster.device.overhead_s
        moved_s = moved / self.bytes_per_s + score_s + starts_s
        tensor_s = self._tensor(1 if experts else 2, seconds)
        expert_s = self._experts(rows) if experts else np.zeros(len(x))
        # what two directions of micro-batches hide behind each other
        behind = np.minimum(expert_s, seconds + attention_s + moved_s)
        expert_s = expert_s - (1 - BUSY_CORES) * behind * x.named("schedule", "dualpipe")
        each = (seconds, attention_s, moved_s, tensor_s, context_s, expert_s)
        workspace = none_bytes + stored * share - kept_bytes
        # a block's input is gathered, its gradient is whole before it is summed and cut
        whole_rows, blocks = BFLOAT16 * h * (self.tokens - share) * x.sequence_parallel, 1 if experts else 2
        stay = blocks * whole_rows * x.kept_messages
        workspace = np.maximum(0, workspace) + np.where(x.kept_messages, 1, 2) * whole_rows + stay * self.again
        return Layer(each, kept_bytes + stay * (1 - self.again), workspace, held)

    def _products(self, experts: bool, rows: float) -> np.ndarray:
        """Seconds of the products of matrices: operations, or weights that come from memory where that takes longer."""
        d, x, h = self.d, self.x, self.d.hidden
        passes = 2 * self.passes  # operations of a token and element
        shared = d.shared_experts * d.products * h * d.expert_width if experts else d.mlp_parameters
        dense = d.attention_parameters + shared
        seconds = passes * dense * self.tokens / x.tensor / self.rate
        if experts:
            of_rank = d.products * h * d.expert_width * d.experts / (x.expert * x.expert_tensor)
            busy = passes * self.own * rows * d.products * h * d.expert_width / self.rate
            seconds = seconds + np.maximum(busy, WEIGHT_MOVES * of_rank / self.bytes_per_s)
            seconds = seconds + passes * self.own * h * d.experts / self.plain_rate
        return seconds

    def _tensor(self, blocks: int, products_s: np.ndarray) -> np.ndarray:
        """Messages among the ranks of a layer: forward, backward, and forward again."""
        x, group = self.x, self.groups["tp"]
        whole = self.tokens * self.d.hidden * BFLOAT16
        one = np.where(
            x.sequence_parallel == 1, group.all_gather(whole) + group.reduce_scatter(whole), group.all_reduce(whole)
        )
        seconds = blocks * one * (1 + self.forwards)
        pieces = np.maximum(seconds - products_s, seconds / x.tensor)  # the first piece has nothing to hide behind
        return np.where(x.tensor_overlap == 1, pieces, seconds)

    def _experts(self, rows: float) -> np.ndarray:
        """Rows to the ranks that hold their experts, and back, each way."""
        d, x, ep, parts = self.d, self.x, self.groups["ep"], self.groups["etp"]
        size = self.own * rows * d.hidden * BFLOAT16
        places = np.full(len(x), float(d.chosen))
        for n in np.unique(ep.nodes):
            if n > 1 and d.experts % n == 0:
                places = np.where(ep.nodes == n, different_places(d.experts, d.chosen, int(n)), places)
        places = np.where(x.node_limit > 0, np.minimum(places, x.node_limit), places)
        copies = np.where(x.one_copy == 1, np.minimum(1, places / d.chosen), 1)
        seconds = 2 * ep.all_to_all(size, copies)
        split = x.expert_tensor
        seconds = seconds + parts.all_gather(size * split) + parts.reduce_scatter(size * split)
        return seconds * (1 + self.forwards)

    def attention(self) -> tuple[np.ndarray, ...]:
        """Seconds of attention's products; of messages that they do not hide; bytes of keys held; seconds that stored
        scores take; a causal mask.
        """
        d, x = self.d, self.x
        u, again = x.exchanged, self.again
        ranks = x.context // u
        heads = d.heads / x.tensor / u
        keys = heads * u if d.latent else np.maximum(1, d.kv_heads // x.tensor)
        size, b = (d.score_width + d.value_width) / (2 * d.heads), x.micro_batch
        c = x.seq_length / ranks
        pair_s = b * heads * size / self.attention_rate
        late = np.where(
            x.named("way", "ring"), c * c, c * c / 2
        )  # pairs of the longest rank in a step behind the first
        triangle, passes = c * (c + 1) / 2, ranks - 1
        each = FORWARD_PRODUCTS * (1 + again) + BACKWARD_PRODUCTS * self.backward
        flash_s = each * pair_s * (triangle + passes * late)
        flash_s = flash_s + (1 + self.backward + again) * passes * b * c * heads * size * MERGED / self.bytes_per_s
        repeats = again + x.named("recompute", "attention")
        pairs = b * heads * x.seq_length * c  # that are stored
        stored_s = (FORWARD_PRODUCTS * (1 + repeats) + 8) * pairs * size / self.plain_rate
        score_s = (1 - x.flash) * pairs * (SCORE_MOVES + SCORE_MOVES_AGAIN * repeats) / self.bytes_per_s
        products_s = np.where(x.flash == 1, flash_s, stored_s)
        # messages: the ring, or the gather, among `ranks`; the exchange among u
        ring, exchange = self.groups["cp"], self.groups["exchange"]
        chunk = b * c * np.maximum(keys, u) / u * size
        gathered = x.named("way", "gathered")
        step_s = ring.alpha_s + ring.beta_s * 2 * chunk * BFLOAT16
        home_s = 2 * ring.alpha_s + ring.beta_s * 2 * chunk * FLOAT32
        messages = passes * (step_s * (2 + again) + 2 * ring.alpha_s + ring.beta_s * 2 * chunk * BFLOAT16)
        steps = np.maximum(0, passes - 1)

        def exposed(transfer_s: np.ndarray, products: int) -> np.ndarray:
            first, others = (np.maximum(0, transfer_s - products * pair_s * n) for n in (triangle, late))
            return (passes > 0) * (first + steps * others)

        rings = (1 + again) * exposed(step_s, FORWARD_PRODUCTS)
        back = exposed(step_s + home_s, BACKWARD_PRODUCTS) + (passes > 0) * home_s
        messages = np.where(gathered, messages, rings + self.backward * back)
        whole = 2 * b * (x.seq_length / x.context) * (heads * u + np.maximum(keys, u)) * size * BFLOAT16
        each = exchange.beta_s * whole * (u - 1) / u + 4 * (u - 1) * exchange.alpha_s
        messages = messages + np.where(u > 1, each * (2 + again), 0)
        held = 2 * chunk * BFLOAT16 * np.where(gathered, ranks, np.minimum(2, ranks)) * (ranks > 1)
        return products_s, messages, held * (1 + FLOAT32 / BFLOAT16), score_s

    def head(self) -> tuple[np.ndarray, np.ndarray]:
        """Seconds of the head of a micro-batch: its product, and what its logits move."""
        d, x = self.d, self.x
        heads, more = 1 + d.extra_tokens, d.extra_tokens * 2 * d.hidden**2
        logits = self.tokens * d.vocab_size / x.tensor
        moves = np.where(x.fused * x.fused_loss == 1, LOGIT_MOVES_FUSED, LOGIT_MOVES_EAGER)
        product = 6 * self.tokens / x.tensor * (heads * d.vocab_size * d.hidden + more) / self.plain_rate
        return product, heads * logits * moves / self.bytes_per_s


@dataclass(frozen=True)
class Priced:
    """Many points: seconds by term, bytes by kind of the fullest rank, and which stages these are."""

    seconds: dict[str, np.ndarray]
    memory: dict[str, np.ndarray]
    worst_stage: np.ndarray
    slowest: np.ndarray

    @cached_property
    def step_s(self) -> np.ndarray:
        return np.sum(list(self.seconds.values()), axis=0)

    @cached_property
    def memory_bytes(self) -> np.ndarray:
        return np.sum(list(self.memory.values()), axis=0)


def price(decoder: Decoder, machine: Machine, columns: Columns, load: float = 1.0) -> Priced:
    """Points that fit the decoder and the machine (`misfits`), priced together.

    load  rows of the busiest rank of experts over the mean
    """
    out = {name: np.zeros(len(columns)) for name in _TERMS}
    memory: dict[str, np.ndarray] = {}
    stages = np.zeros((2, len(columns)), dtype=np.int64)
    for key in np.unique(np.stack([columns.stages, columns.parts]), axis=1).T:
        chosen = np.flatnonzero((columns.stages == key[0]) & (columns.parts == key[1]))
        costs = Costs(decoder, machine, columns.where(chosen), load)
        seconds, kinds, slowest, fullest = _priced(costs, stages_of(decoder, int(key[0]), int(key[1])))
        for name, values in seconds.items():
            out[name][chosen] = values
        for name, values in kinds.items():
            memory.setdefault(name, np.zeros(len(columns)))[chosen] = values
        stages[:, chosen] = slowest, fullest
    return Priced(out, memory, stages[1], stages[0])


def _priced(costs: Costs, stages: tuple[Stage, ...]) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray], Any, Any]:
    """Points with the same stages.  stages: alike ones together"""
    x, n = costs.x, len(costs.x)
    kinds = {experts: costs.layer(experts) for experts in (False, True) if any(s.layers[experts] for s in stages)}
    head_s, logits_s = costs.head()
    works = np.zeros((len(stages), 6, n))
    for at, stage in enumerate(stages):
        for experts, layer in kinds.items():
            for term, values in enumerate(layer.seconds):
                works[at, term] += stage.layers[experts] * values
        works[at, 0] += stage.head * head_s
        works[at, 2] += stage.head * logits_s
    totals = works.sum(axis=1)
    slowest = totals.argmax(axis=0)
    every = np.arange(n)
    busy = works[slowest, :, every].T
    longest = totals[slowest, every]
    seconds = {name: x.micro_batches * busy[at] for at, name in enumerate(_TERMS[:6])}
    own = [own_parameters(costs.d, stage, x) for stage in stages]
    dense, of_experts = (np.array([pair[i] for pair in own])[slowest, every] for i in (0, 1))
    depth = np.array([sum(stage.layers) for stage in stages])[slowest]
    copies_s, update_s = _copies(costs, dense, of_experts, depth, longest)
    kept = np.array([sum(s.layers[e] * layer.kept_bytes for e, layer in kinds.items()) for s in stages])[slowest, every]
    offload_s, more_s = _offloaded(costs, dense + of_experts, kept, longest)
    # each of the stages once, as in 1F1B, and less of it by what the schedule saves
    counts = np.array([stage.count for stage in stages])
    whole = (counts[:, None] * totals).sum(axis=0) - longest
    share = np.zeros(n)
    for code in np.unique(x.schedule):
        chosen, name = x.schedule == code, x.name_of("schedule", int(code))
        share = np.where(chosen, BUBBLES[name](x.stages, x.chunks) / np.maximum(1, x.stages - 1), share)
    border = costs.tokens * costs.d.hidden * BFLOAT16 / np.where(x.sequence_parallel == 1, x.tensor, 1)
    hops = 2 * (x.stages - 1) * x.chunks + np.where(x.overlap == 1, 0, 2 * x.micro_batches * x.chunks * (x.stages > 1))
    waiting = share * whole + hops * costs.groups["pp"].send(border)
    seconds |= {"copies_s": copies_s, "offload_s": offload_s, "update_s": update_s + more_s, "waiting_s": waiting}
    memory, fullest = memory_of(costs.d, x, stages, own, kinds, costs.tokens)
    firsts = np.array([stage.first for stage in stages])
    return seconds, memory, firsts[slowest], firsts[fullest]


def _copies(costs: Costs, dense: Any, experts: Any, depth: Any, busy_s: Any) -> tuple[Any, Any]:
    """Seconds of gradients and weights among replicas that the work of a micro-batch does not hide; of the update."""
    x, n = costs.x, len(costs.x)
    reduce_s, gather_s = np.zeros(n), np.zeros(n)
    states = np.zeros(n)
    table = np.array([STATES[name] for name in STATES])[x.states]
    for count, axis in ((dense, "dp"), (experts, "edp")):
        inside, outside = costs.groups[axis], costs.groups[f"{axis} replicas"]
        whole = costs.groups[f"{axis} whole"]
        gradients = count * x.gradient_bytes
        divided = inside.reduce_scatter(gradients) + outside.all_reduce(gradients / inside.size)
        reduce_s += np.where(x.level > 0, divided, whole.all_reduce(gradients))
        gather_s += np.where(x.level > 0, inside.all_gather(count * BFLOAT16), 0)
        states += count * np.where(x.level > 0, 1 / inside.size, 1)
    often = np.where(x.level >= 2, x.micro_batches, 1)
    gathers = np.select([x.level == 3, x.level == 2], [1 + costs.forwards, 1 / x.micro_batches], 1)
    each_s = reduce_s + gathers * gather_s
    # of a stage with the head alone nothing is ready before the end
    exposed = np.maximum(each_s / np.maximum(1, depth), each_s - busy_s)
    hidden = exposed + BUSY_CORES * (each_s - exposed)
    update_s = 2 * states * table.sum(axis=1) / costs.bytes_per_s
    return often * np.where(x.overlap == 1, hidden, each_s), update_s


def _offloaded(costs: Costs, parameters: Any, kept: Any, busy_s: Any) -> tuple[Any, Any]:
    """Seconds to and from the host: of activations, what products do not hide; gradients down and weights up."""
    x, pace = costs.x, costs.machine.host_bytes_per_s
    activations = x.micro_batches * np.maximum(0, 2 * kept / pace - busy_s) * x.named("offload", "activations")
    share = np.where(x.level > 0, x.data * x.context / x.replicas, 1)
    update = parameters / share * (FLOAT32 + BFLOAT16) / pace * x.named("offload", "optimizer")
    return activations, update


def attention_alone(decoder: Decoder, machine: Machine, point: DecoderPoint, *, backward: bool) -> tuple[float, float]:
    """Seconds of one layer's attention on the ranks of a sequence, and the share of the kernel's speed on one device
    that they reach: the same pairs, without waiting, merging and messages.
    """
    costs = Costs(decoder, machine, Columns.of_points([point]), backward=backward)
    products_s, messages_s, _, _ = (float(values[0]) for values in costs.attention())
    pairs = point.micro_batch * point.seq_length * (point.seq_length + 1) / 2 * decoder.value_width / point.tensor
    each = FORWARD_PRODUCTS + BACKWARD_PRODUCTS * backward
    alone_s = each * pairs / point.context / costs.attention_rate
    return products_s + messages_s, alone_s / (products_s + messages_s)


class DecoderPricing:
    """One point, as `Pricing` for a compiled block.  load: rows of the busiest rank of experts over the mean."""

    misfit = staticmethod(decoder_misfit)

    def __init__(
        self, model: Decoder, point: DecoderPoint, machine: Machine, precision: str = "mixed", load: float = 1.0
    ) -> None:
        where = f"plan of {model.name}"
        choice("mixed")(where, "precision", precision)
        self.load = number(1)(where, "load", load)
        if fault := decoder_misfit(model, point, machine.cluster):
            raise ArgumentError(point.text(), where="plan point", allowed=fault)
        if point.numbers == "fp8" and not machine.fp8_flops_per_s:
            raise ArgumentError("numbers='fp8'", where=where, allowed=f"bf16: {machine.cluster.name} has no fp8")
        self.model, self.point, self.machine = model, point, machine
        self.columns = Columns.of_points([point])
        self.priced = price(model, machine, self.columns, self.load)

    def predict(self) -> DecoderPrediction:
        """Seconds and bytes of the point."""
        p, d, found = self.point, self.model, self.priced
        seconds = {name: float(values[0]) for name, values in found.seconds.items()}
        memory = {name: float(values[0]) for name, values in found.memory.items()}
        flops = float(p.batch * p.seq_length * d.flops_per_token(p.seq_length))
        return DecoderPrediction(
            d, p, self.machine, "mixed", float(found.step_s[0]), **seconds, border_s=None, memory=memory,
            worst_stage=int(found.worst_stage[0]), sent_bytes=self._sent(int(found.slowest[0])), step_flops=flops,
            load=self.load,
        )  # fmt: skip

    def _sent(self, first: int) -> dict[str, float]:
        """Bytes that a rank of a stage sends in a step, the formulas of `run_messages`; balanced experts."""
        p, groups = self.point, groups_of(self.machine.cluster, self.columns)
        stage = next(s for s in stages_of(self.model, p.stages, int(self.columns.parts[0])) if s.first == first)
        how = {"way": _BYTES_OF[p.way], "exchange": p.exchange, "sequence_parallel": p.sequence_parallel}
        bytes_of = dict.fromkeys(("tp", "cp", "ep", "etp", "dp"), 0.0)
        for dense, n in zip((True, False), stage.layers, strict=True):
            if n:
                each = run_messages(self.model, p.degrees, p.micro_batch, p.seq_length, dense=dense, **how)
                found = (each.tensor_bytes, each.context_bytes, each.expert_bytes, each.expert_tensor_bytes)
                for axis, count in zip(("tp", "cp", "ep", "etp"), found, strict=True):
                    bytes_of[axis] += n * p.micro_batches * count
        own = own_parameters(self.model, stage, self.columns)
        for count, n in zip(own, p.degrees.gradients.replicas, strict=True):
            bytes_of["dp"] += 2 * (n - 1) / n * float(count[0]) * p.gradient_bytes
        between = sum(count for axis, count in bytes_of.items() if groups[axis].nodes[0] > 1)
        return {"in node": sum(bytes_of.values()) - between, "between nodes": between}
