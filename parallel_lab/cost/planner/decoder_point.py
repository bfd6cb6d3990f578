"""One way to train a decoder on a cluster, with the letters of today: SP, CP and EP next to DP, TP and PP.

    point = DecoderPoint(8192, data=64, tensor=8, stages=16, micro_batches=32, level=1)
    point = DecoderPoint(131_072, tensor=8, context=8, way="zigzag", stages=4, micro_batches=8)
    point = DecoderPoint(4096, data=64, expert=64, stages=4, micro_batches=16)          64 ranks share the experts

What a sequence's ranks do for attention, `way`:

    ring       keys and values pass on, tokens lie in order: late ranks work longest
    zigzag     the same, each rank holds an early and a late chunk
    gathered   all keys and values are gathered first, chunks as in zigzag (Llama 3)
    ulysses    heads are exchanged for tokens
    hybrid     heads are exchanged among `exchange` neighbours, a zigzag ring runs among the others
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from ...base.checks import choice, flag, integer
from ...base.cluster import Cluster
from ...base.errors import ArgumentError
from .decoders import KEPT, Decoder
from .degrees import Degrees

_degrees = lru_cache(maxsize=8192)(Degrees)  # many points have the same
LEAST_TOKENS = 1024  # of a rank, where a search may divide a sequence
WAYS = ("ring", "zigzag", "gathered", "ulysses", "hybrid")
_COUNT = integer(1, 10**9)
_SIZES = ("seq_length", "data", "tensor", "context", "stages", "expert", "expert_tensor", "micro_batch")


@dataclass(frozen=True)
class DecoderPoint:
    """data x context x tensor x stages devices; every copy runs `micro_batches` of `micro_batch` sequences per step.

    seq_length              tokens of a sequence
    expert, expert_tensor   ranks of a stage with different experts, and that split one: they add no ranks
    way, exchange           of context parallelism: one of WAYS; of "hybrid", ranks that exchange heads
    level                   ZeRO among data x context replicas, of experts among theirs (`Degrees.states`)
    recompute               one of `decoders.KEPT`
    sequence_parallel       with tensor > 1: norms and sums are divided among the ranks of a layer

    Stages run 1F1B. Messages of gradients travel while backward runs.
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

    def __post_init__(self) -> None:
        for name in (*_SIZES, "micro_batches", "exchange"):
            _COUNT("DecoderPoint", name, getattr(self, name))
        choice(*WAYS)("DecoderPoint", "way", self.way)
        choice(*KEPT)("DecoderPoint", "recompute", self.recompute)
        integer(0, 3)("DecoderPoint", "level", self.level)
        flag("DecoderPoint", "sequence_parallel", self.sequence_parallel)
        if self.exchange > 1 and self.way != "hybrid":
            what = f"exchange={self.exchange} with way={self.way!r}"
            raise ArgumentError(what, where="DecoderPoint", allowed="exchange with way='hybrid' only")
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
        words += [self.way + (f" u{self.exchange}" if self.exchange > 1 else "")] if self.context > 1 else []
        words += [f"zero{self.level}"] if self.level else []
        words += [f"recompute {self.recompute}"] if self.recompute != "none" else []
        return " ".join([*words, *(["sequence"] if self.sequence_parallel and self.tensor > 1 else [])])

    in_words = text


def decoder_misfit(decoder: Decoder, point: DecoderPoint, cluster: Cluster) -> str:
    """Why a point cannot be: "" if it can."""
    if point.devices > cluster.device_num:
        return f"{point.devices} devices of {cluster.device_num}"
    if point.stages > max(1, point.micro_batches):
        return f"{point.micro_batches} micro-batches on {point.stages} stages: at least as many"
    return _misfit(decoder, point.degrees, point.seq_length, point.way, point.exchanged, point.sequence_parallel)


@lru_cache(maxsize=8192)
def _misfit(decoder: Decoder, run: Degrees, tokens: int, way: str, exchange: int, sequence_parallel: bool) -> str:
    t, c, u = run.tensor, run.context, exchange
    if run.expert * run.expert_tensor > 1 and not decoder.experts:
        return f"expert={run.expert}: {decoder.name} has no experts to divide"
    if fault := run.misfit(decoder, tokens):
        return fault
    heads, keys = decoder.heads // t, decoder.heads // t if decoder.latent else max(1, decoder.kv_heads // t)
    halves = 2 if way in ("zigzag", "gathered", "hybrid") and c > u else 1  # chunks of a rank of a ring
    pieces = halves * c * (t if sequence_parallel else 1)
    rules = (
        (not decoder.experts or t == 1 or sequence_parallel, f"experts with {t} ranks of tp: sequence_parallel=True"),
        (
            decoder.expert_width % run.expert_tensor == 0,
            f"experts of {decoder.expert_width} on {run.expert_tensor} ranks",
        ),
        (c % u == 0, f"heads exchanged among {u} of {c} ranks of a sequence: a divisor"),
        (heads % u == 0, f"{heads} heads exchanged among {u} ranks: a divisor of the heads"),
        (keys % u == 0 or u % keys == 0, f"{keys} heads of keys among {u} ranks: one divides the other"),
        (tokens % pieces == 0, f"{tokens} tokens in {pieces} pieces ({'2 ' * (halves - 1)}cp tp)"),
    )
    return next((text for holds, text in rules if not holds), "")


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
    recompute: Sequence[str] = tuple(KEPT),
    sequence_parallel: Sequence[bool] = (True,),
) -> Iterator[DecoderPoint]:
    """All points with exactly so many devices and sequences, and degrees that are powers of two unless they are given.

    context  None: as long as a rank has LEAST_TOKENS
    levels   0 holds more than 1 and sends more: weights in two bytes come back for gradients in four
    node     devices of a node: a hybrid exchanges heads among as many of its ranks as possible, the ring leaves it
    """
    powers = [1 << n for n in range(11)]
    wanted = [n for n in powers if decoder.experts and decoder.experts % n == 0] or [1]
    if context is None:
        context = [n for n in powers if n == 1 or n * LEAST_TOKENS <= seq_length]
    for t, c in itertools.product(tensor, context):
        if devices % (t * c) or seq_length % (t * c):
            continue
        inside = max((u for u in powers if t * u <= node and u < c and decoder.heads // t % u == 0), default=1)
        how = [("hybrid", inside) if way == "hybrid" else (way, 1) for way in ways if way != "hybrid" or inside > 1]
        most = min(decoder.layers, devices // (t * c))
        for p, b in itertools.product((p for p in range(1, most + 1) if devices // (t * c) % p == 0), micro_batch):
            data = devices // (t * c * p)
            if batch % (data * b) or batch // (data * b) < p:
                continue
            for e, et in itertools.product(wanted if expert is None else expert, expert_tensor):
                if data * t * c % (e * et):
                    continue
                of_ranks = (how if c > 1 else (("zigzag", 1),), levels if data * c > 1 else (0,))
                for (way, u), level, again, sp in itertools.product(
                    *of_ranks, recompute, sequence_parallel if t > 1 else (True,)
                ):
                    shape = (seq_length, data, t, c, p, e, et, b, batch // (data * b))
                    yield DecoderPoint(*shape, way, u, level, again, sp)
