"""One way to train a decoder on a cluster, with the letters of today: SP, CP and EP next to DP, TP and PP.

    point = DecoderPoint(8192, data=64, tensor=8, stages=16, micro_batches=32, level=1)
    point = DecoderPoint(131_072, tensor=8, context=8, way="zigzag", stages=4, micro_batches=8)
    point = DecoderPoint(4096, data=64, expert=64, stages=4, micro_batches=16)          64 ranks share the experts

What a sequence's ranks do for attention, `way`:

    ring       keys and values pass on, tokens lie in order: late ranks work longest
    zigzag     the same, each rank holds an early and a late chunk
    striped    the same, token i lies on rank i mod P
    gathered   all keys and values are gathered first, chunks as in zigzag (Llama 3)
    ulysses    heads are exchanged for tokens
    hybrid     heads are exchanged among `exchange` neighbours, a zigzag ring runs among the others

`Columns` holds many points as arrays: one number per point and field, names as their place in a list.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache, reduce
from typing import Any

import numpy as np

from ...base.checks import choice, flag, integer
from ...base.cluster import Cluster
from ...base.errors import ArgumentError
from .decoders import KEPT, Decoder
from .degrees import Degrees

_degrees = lru_cache(maxsize=8192)(Degrees)  # many points have the same
LEAST_TOKENS = 1024  # of a rank, where a search may divide a sequence
WAYS = ("ring", "zigzag", "striped", "gathered", "ulysses", "hybrid")
SCHEDULES = (
    *("1f1b", "interleaved", "gpipe", "breadth_first", "eager_1f1b"),
    *("zb_h1", "zb_h2", "zero_bubble_v", "v_half", "v_min", "dualpipe"),
)
CHUNKED = ("interleaved", "breadth_first")
TWO_CHUNKS = ("zero_bubble_v", "v_half", "v_min")  # two parts a stage, in the shape of a V
NUMBERS = ("bf16", "fp8")
STATES = {  # bytes of a parameter: weights, gradients, optimizer
    "mixed": (2, 4, 12),  # bfloat16; float32 gradients, copy and both moments of Adam
    "bf16_gradients": (2, 2, 12),  # gradients are summed in the two bytes of the weights
    "float32": (4, 4, 8),  # the copy is the parameter, as in torchtitan; products read bfloat16 ones
    "bf16_moments": (2, 4, 8),  # moments in two bytes (DeepSeek-V3)
}
OFFLOADS = ("none", "optimizer", "activations")
GRADIENT_SIZES = (4, 2)
_COUNT = integer(1, 10**9)
_SIZES = ("seq_length", "data", "tensor", "context", "stages", "expert", "expert_tensor", "micro_batch")
_NAMED: dict[str, Sequence[Any]] = {
    "way": WAYS,
    "recompute": tuple(KEPT),
    "schedule": SCHEDULES,
    "numbers": NUMBERS,
    "states": tuple(STATES),
    "offload": OFFLOADS,
}
_FLAGS = ("sequence_parallel", "flash", "fused", "fused_loss", "overlap", "tensor_overlap", "one_copy", "kept_messages")


@dataclass(frozen=True)
class DecoderPoint:
    """data x context x tensor x stages devices; every copy runs `micro_batches` of `micro_batch` sequences per step.

    seq_length              tokens of a sequence
    expert, expert_tensor   ranks of a stage with different experts, and that split one: they add no ranks
    way, exchange           of context parallelism: one of WAYS; of "hybrid", ranks that exchange heads
    level                   ZeRO among data x context replicas, of experts among theirs (`Degrees.states`)
    recompute               one of `decoders.KEPT`
    sequence_parallel       with tensor > 1: norms and sums are divided among the ranks of a layer
    chunks, schedule        parts of the network on a rank; one of SCHEDULES
    replicas                groups among which nothing is divided: each holds all that `level` divides (HSDP)
    numbers                 of products: one of NUMBERS; attention, head and messages stay in bfloat16
    states, gradient_bytes  one of STATES; bytes of a gradient in its message: 4 or 2
    flash, fused            scores are never stored; elementwise operators run as one kernel
    fused_loss              those of the loss, too
    overlap                 messages of gradients and weights travel while products run
    tensor_overlap          those within a layer, too, in pieces (asynchronous tensor parallelism)
    one_copy, node_limit    a token is sent once to each node that has experts of it (DeepEP), not once for each expert;
                            nodes that its experts may lie on, 0: any
    offload                 to the host: one of OFFLOADS
    kept_messages           what arrives stays: gathered rows until backward, a pipeline's buffers for all micro-batches
                            and the logits of all (PyTorch: autograd, `torch/distributed/pipelining/stage.py`);
                            otherwise rows are gathered again (Megatron-LM, `tensor_parallel/layers.py`), buffers freed
    """

    seq_length: int
    data: int = 1
    tensor: int = 1
    context: int = 1
    stages: int = 1
    expert: int = 1
    expert_tensor: int = 1
    micro_batch: int = 1
    micro_batches: int = 1
    way: str = "zigzag"
    exchange: int = 1
    level: int = 1
    recompute: str = "none"
    sequence_parallel: bool = True
    chunks: int = 1
    schedule: str = "1f1b"
    replicas: int = 1
    numbers: str = "bf16"
    states: str = "mixed"
    gradient_bytes: int = 4
    flash: bool = True
    fused: bool = True
    fused_loss: bool = True
    overlap: bool = True
    tensor_overlap: bool = False
    one_copy: bool = False
    node_limit: int = 0
    offload: str = "none"
    kept_messages: bool = False

    def __post_init__(self) -> None:
        for name in (*_SIZES, "micro_batches", "exchange", "chunks", "replicas"):
            _COUNT("DecoderPoint", name, getattr(self, name))
        for name, known in (*_NAMED.items(), ("gradient_bytes", GRADIENT_SIZES)):
            choice(*known)("DecoderPoint", name, getattr(self, name))
        integer(0, 3)("DecoderPoint", "level", self.level)
        integer(0)("DecoderPoint", "node_limit", self.node_limit)
        for name in _FLAGS:
            flag("DecoderPoint", name, getattr(self, name))
        if self.exchange > 1 and self.way != "hybrid":
            what = f"exchange={self.exchange} with way={self.way!r}"
            raise ArgumentError(what, where="DecoderPoint", allowed="exchange with way='hybrid' only")
        if self.chunks > 1 and self.schedule not in CHUNKED:
            what = f"chunks={self.chunks} with schedule={self.schedule!r}"
            raise ArgumentError(what, where="DecoderPoint", allowed=f"chunks with {', '.join(CHUNKED)}")
        _ = self.degrees  # refuses experts that do not fit the ranks of a stage

    @property
    def devices(self) -> int:
        """Devices that the plan uses."""
        return self.data * self.tensor * self.context * self.stages

    @property
    def batch(self) -> int:
        """Sequences of a step."""
        return self.data * self.micro_batch * self.micro_batches

    @property
    def degrees(self) -> Degrees:
        """The same as `Degrees`: groups, and over whom gradients are summed."""
        return _degrees(self.devices, self.tensor, self.context, self.stages, self.expert, self.expert_tensor)

    @property
    def exchanged(self) -> int:
        """Ranks of a sequence that exchange heads; the others form rings, or gather."""
        return {"ulysses": self.context, "hybrid": self.exchange}.get(self.way, 1)

    def text(self) -> str:
        """d8 t8 c8 p4 b1 m8 zigzag zero1, and what is not the default."""
        words = [f"d{self.data} t{self.tensor} c{self.context} p{self.stages}"]
        words += [f"e{self.expert}"] if self.expert > 1 else []
        words += [f"et{self.expert_tensor}"] if self.expert_tensor > 1 else []
        words += [f"b{self.micro_batch} m{self.micro_batches}"]
        words += [f"v{self.chunks}"] if self.chunks > 1 else []
        words += [self.schedule] if self.schedule != "1f1b" and self.stages > 1 else []
        words += [self.way + (f" u{self.exchange}" if self.exchange > 1 else "")] if self.context > 1 else []
        words += [f"zero{self.level}"] if self.level else []
        words += [f"in {self.replicas} groups"] if self.replicas > 1 else []
        words += [f"recompute {self.recompute}"] if self.recompute != "none" else []
        words += [f"offload {self.offload}"] if self.offload != "none" else []
        words += [f"states {self.states}"] if self.states != "mixed" else []
        words += [self.numbers] if self.numbers != "bf16" else []
        names = {"flash": "no flash attention", "fused": "not fused", "overlap": "no overlap"}
        words += [text for name, text in names.items() if not getattr(self, name)]
        words += ["asynchronous"] if self.tensor_overlap and self.tensor > 1 else []
        words += ["one copy a node"] if self.one_copy and self.expert > 1 else []
        return " ".join([*words, *(["sequence"] if self.sequence_parallel and self.tensor > 1 else [])])

    in_words = text


class Columns(Sequence[DecoderPoint]):
    """Points as arrays, one for each field of DecoderPoint: `columns.tensor` is their tensor degrees. A point is made
    when it is asked for.
    """

    seq_length: np.ndarray
    data: np.ndarray
    tensor: np.ndarray
    context: np.ndarray
    stages: np.ndarray
    expert: np.ndarray
    expert_tensor: np.ndarray
    micro_batch: np.ndarray
    micro_batches: np.ndarray
    exchange: np.ndarray
    level: np.ndarray
    recompute: np.ndarray
    sequence_parallel: np.ndarray
    chunks: np.ndarray
    schedule: np.ndarray
    replicas: np.ndarray
    states: np.ndarray
    gradient_bytes: np.ndarray
    flash: np.ndarray
    fused: np.ndarray
    fused_loss: np.ndarray
    overlap: np.ndarray
    tensor_overlap: np.ndarray
    one_copy: np.ndarray
    node_limit: np.ndarray
    kept_messages: np.ndarray

    def __init__(self, of: dict[str, np.ndarray]) -> None:
        self.of = of
        vars(self).update(of)
        self.size = len(next(iter(of.values())))

    @classmethod
    def of_points(cls, points: Iterable[DecoderPoint]) -> Columns:
        """The columns of points that are there already."""
        if isinstance(points, Columns):
            return points
        listed, of = list(points), {}
        for field in fields(DecoderPoint):
            known = _NAMED.get(field.name)
            values = [getattr(point, field.name) for point in listed]
            of[field.name] = np.array([known.index(v) for v in values] if known else values, dtype=np.int64)
        return cls(of)

    @classmethod
    def of_rows(cls, rows: Iterable[tuple[Any, ...]], names: Sequence[str]) -> Columns:
        """The columns of rows of numbers, in the order of names; other fields have their defaults."""
        table = np.array(list(rows), dtype=np.int64).reshape(-1, len(names))
        given = {name: table[:, at] for at, name in enumerate(names)}
        plain = {f.name: f.default for f in fields(DecoderPoint) if f.name not in given}
        codes = {name: _NAMED[name].index(value) if name in _NAMED else value for name, value in plain.items()}
        return cls(given | {name: np.full(len(table), value, dtype=np.int64) for name, value in codes.items()})

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, slice):
            return Columns({name: column[at] for name, column in self.of.items()})
        row: dict[str, Any] = {name: int(column[at]) for name, column in self.of.items()}
        row |= {name: known[row[name]] for name, known in _NAMED.items()}
        return DecoderPoint(**row | {name: bool(row[name]) for name in _FLAGS})

    def named(self, name: str, *values: Any) -> np.ndarray:
        """Whether a field has one of these names."""
        return np.array([known in values for known in _NAMED[name]])[self.of[name]]

    def name_of(self, name: str, code: int) -> Any:
        """What a code of a named field stands for."""
        return _NAMED[name][code]

    def where(self, kept: np.ndarray) -> Columns:
        """Those of a mask, or of places."""
        return Columns({name: column[kept] for name, column in self.of.items()})

    @property
    def devices(self) -> np.ndarray:
        """Devices that each plan uses."""
        return self.data * self.tensor * self.context * self.stages

    @property
    def batch(self) -> np.ndarray:
        """Sequences of a step."""
        return self.data * self.micro_batch * self.micro_batches

    @property
    def parts(self) -> np.ndarray:
        """Parts of the network: stages, times chunks."""
        return self.stages * np.where(self.named("schedule", *TWO_CHUNKS), 2, self.chunks)

    @property
    def exchanged(self) -> np.ndarray:
        """As of DecoderPoint."""
        hybrid = np.where(self.named("way", "hybrid"), self.exchange, 1)
        return np.where(self.named("way", "ulysses"), self.context, hybrid)


Rule = tuple[Any, Any]  # whether it holds, text made of a point


def rules(d: Decoder, x: Any, cluster: Cluster) -> Iterator[Rule]:
    """What a point must fulfil, of one point or of Columns, and what is said of one that does not."""
    t, c, u, p, e = x.tensor, x.context, x.exchanged, x.stages, x.expert * x.expert_tensor
    many = isinstance(x, Columns)

    def named(field: str, *values: str) -> Any:
        return x.named(field, *values) if many else getattr(x, field) in values

    def either(*of: Any) -> Any:
        return reduce(np.logical_or, of)

    heads = np.maximum(d.heads // t, 1)
    keys = heads if d.latent else np.maximum(1, d.kv_heads // t)
    halves = 1 + 1 * (named("way", "zigzag", "gathered", "hybrid") & (c > u))  # chunks of a rank of a ring
    pieces = halves * c * np.where(x.sequence_parallel, t, 1)
    parts = p * np.where(named("schedule", *TWO_CHUNKS), 2, x.chunks)
    yield x.devices <= cluster.device_num, lambda z: f"{z.devices} devices of {cluster.device_num}"
    yield p <= x.micro_batches, lambda z: f"{z.micro_batches} micro-batches on {z.stages} stages: at least as many"
    yield (e == 1) | (d.experts > 0), lambda z: f"expert={z.expert}: {d.name} has no experts to divide"
    yield d.heads % t == 0, lambda z: f"{d.heads} heads on {z.tensor} ranks"
    grouped = either(d.kv_heads % t == 0, t % d.kv_heads == 0, d.latent is not None)
    yield grouped, lambda z: f"{d.kv_heads} heads of keys on {z.tensor} ranks"
    whole = either(x.seq_length % (c * t) == 0, (c == 1) & (x.sequence_parallel == 0))
    yield (
        whole,
        lambda z: f"{z.seq_length} tokens in {z.context * z.tensor} pieces ({'cp tp' if z.context > 1 else 'tp'})",
    )
    yield parts <= d.layers + 2, lambda z: f"{d.layers} layers on {z.stages} stages of {z.chunks} chunks"
    some = max(1, d.experts)
    yield either(x.expert == 1, some % x.expert == 0), lambda z: f"{d.experts} experts on {z.expert} ranks"
    split = "experts with {t} ranks of tp: sequence_parallel=True"
    yield either(d.experts == 0, t == 1, x.sequence_parallel == 1), lambda z: split.format(t=z.tensor)
    of_one = "experts of {f} on {n} ranks"
    yield d.expert_width % x.expert_tensor == 0, lambda z: of_one.format(f=d.expert_width, n=z.expert_tensor)
    yield c % u == 0, lambda z: f"heads exchanged among {z.exchanged} of {z.context} ranks of a sequence: a divisor"
    exchange = "{n} heads exchanged among {u} ranks: a divisor of the heads"
    yield heads % u == 0, lambda z: exchange.format(n=d.heads // z.tensor, u=z.exchanged)
    of_keys = "{n} heads of keys among {u} ranks: one divides the other"
    own = d.heads if d.latent else d.kv_heads
    yield either(keys % u == 0, u % keys == 0), lambda z: of_keys.format(n=max(1, own // z.tensor), u=z.exchanged)
    yield x.seq_length % pieces == 0, lambda z: f"{z.seq_length} tokens in {_pieces(z)} pieces (2 cp tp)"
    copies = x.data * c
    yield copies % x.replicas == 0, lambda z: f"{z.data * z.context} copies in {z.replicas} groups: a divisor"
    even = either(p % 2 == 0, ~np.asarray(named("schedule", "dualpipe")))
    yield even, lambda z: f"dualpipe on {z.stages} stages: an even number"
    turns = either(x.micro_batches % p == 0, x.chunks == 1)
    yield turns, lambda z: f"{z.micro_batches} micro-batches, {z.chunks} chunks: a multiple of {z.stages} stages"


def _pieces(z: DecoderPoint) -> int:
    halves = 2 if z.way in ("zigzag", "gathered", "hybrid") and z.context > z.exchanged else 1
    return halves * z.context * (z.tensor if z.sequence_parallel else 1)


def decoder_misfit(decoder: Decoder, point: DecoderPoint, cluster: Cluster) -> str:
    """Why a point cannot be: "" if it can."""
    return next((text(point) for holds, text in rules(decoder, point, cluster) if not np.all(holds)), "")


def misfits(decoder: Decoder, columns: Columns, cluster: Cluster) -> np.ndarray:
    """The same for many points: which of them cannot be."""
    found = np.zeros(len(columns), dtype=bool)
    for holds, _ in rules(decoder, columns, cluster):
        found |= ~np.broadcast_to(holds, found.shape)
    return found


def decoder_space(
    decoder: Decoder,
    devices: int,
    batch: int,
    *,
    seq_length: int,
    tensor: Sequence[int],
    context: Sequence[int] | None = None,
    expert: Sequence[int] | None = None,
    expert_tensor: Sequence[int] = (1,),
    ways: Sequence[str] = ("zigzag", "gathered", "ulysses", "hybrid"),
    node: int = 8,
    micro_batch: Sequence[int] = (1, 2),
    levels: Sequence[int] = (1, 2, 3),
    recompute: Sequence[str] = ("none", "norms_and_product", "full"),
    sequence_parallel: Sequence[bool] = (True,),
    chunks: Sequence[int] = (1,),
    schedules: Sequence[str] = ("1f1b",),
    replicas: Sequence[int] = (1,),
    offload: Sequence[str] = ("none",),
    **fixed: Any,
) -> Columns:
    """All points with exactly so many devices and sequences, and degrees that are powers of two unless they are given.

    context   None: as long as a rank has LEAST_TOKENS
    levels    0 holds more than 1 and sends more: weights in two bytes come back for gradients in four
    node      devices of a node: a hybrid exchanges heads among as many of its ranks as possible, the ring leaves it
    chunks    more than one: of an interleaved schedule
    replicas  of HSDP, for levels above 0
    fixed     fields that all points have: numbers, states, ...
    """
    powers = [1 << n for n in range(11)]
    wanted = [n for n in powers if decoder.experts and decoder.experts % n == 0] or [1]
    if context is None:
        context = [n for n in powers if n == 1 or n * LEAST_TOKENS <= seq_length]
    code = {name: {value: at for at, value in enumerate(known)} for name, known in _NAMED.items()}
    orders = [(v, code["schedule"]["interleaved"]) for v in chunks if v > 1]
    orders += [(1, code["schedule"][name]) for name in schedules if name not in CHUNKED] * (1 in chunks)
    alone = [(1, code["schedule"]["1f1b"])]
    again, offloads = (
        [code[name][value] for value in values] for name, values in (("recompute", recompute), ("offload", offload))
    )
    names = (*_SIZES, "micro_batches", "way", "exchange", "level", "recompute", "sequence_parallel")
    names = (*names, "chunks", "schedule", "replicas", "offload", *fixed)
    more = tuple(code[name][value] if name in code else value for name, value in fixed.items())
    rows: list[tuple[Any, ...]] = []
    for t, c in itertools.product(tensor, context):
        if devices % (t * c) or seq_length % (t * c):
            continue
        inside = max((u for u in powers if t * u <= node and u < c and decoder.heads // t % u == 0), default=1)
        how = [(code["way"][way], inside if way == "hybrid" else 1) for way in ways if way != "hybrid" or inside > 1]
        how = how if c > 1 else [(code["way"]["zigzag"], 1)]
        most = min(decoder.layers, devices // (t * c))
        for p, b in itertools.product((p for p in range(1, most + 1) if devices // (t * c) % p == 0), micro_batch):
            data = devices // (t * c * p)
            if batch % (data * b) or batch // (data * b) < p:
                continue
            for e, et in itertools.product(wanted if expert is None else expert, expert_tensor):
                if data * t * c % (e * et):
                    continue
                copies = [n for n in replicas if data * c % n == 0 and n < data * c] or [1]
                of_ranks = [(level, n) for level in levels for n in (copies if level else (1,))]
                rest = (how, of_ranks if data * c > 1 else ((0, 1),), again, sequence_parallel if t > 1 else (True,))
                shape = (seq_length, data, t, c, p, e, et, b, batch // (data * b))
                rows += [
                    (*shape, way, u, level, kept, sp, v, order, n, off, *more)
                    for (way, u), (level, n), kept, sp, (v, order), off in itertools.product(
                        *rest, orders if p > 1 else alone, offloads
                    )
                ]
    return Columns.of_rows(rows, names)
