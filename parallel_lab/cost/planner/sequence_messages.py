"""Bytes that a rank sends where a sequence is divided: sequence parallelism, ring, gathered keys, exchanged heads.

    >>> llama = AttentionMessages(samples=1, tokens=8192, heads=32, kv_heads=8, head_size=128, ranks=8)
    >>> llama.ring().forward_bytes, llama.gathered().forward_bytes, llama.exchanged().forward_bytes
    (29360128, 29360128, 18350080)

b samples, s tokens, P ranks with c = s / P tokens each, h_q = n_q d and h_kv = n_kv d numbers of queries and of keys, e
bytes of a number. Forward:

    ring         2 (P - 1) b c h_kv e                       P - 1 passes of keys and values; two chunks of them held
    gathered     2 (P - 1) b c h_kv e                       the same bytes, all of them held
    exchanged    (2 h_q + 2 h_kv) b c e (P - 1) / P         Ulysses: q, k, v there, the result back; falls as 1 / P
    hybrid       exchange among U, ring among R = P / U     degrees multiply

The exchange sends less than the ring if P > 1 + h_q / h_kv (where there are kv heads for all ranks; otherwise they are
repeated to P). Backward the ring sends keys again, and their gradients, in float32, P passes: they must come home.

A ring's step hides its message if computing a block takes longer: 4 b c^2 h_q / F >= 2 b c h_kv e / B for F operations
and B bytes per second, so from c = (e / 2) (h_kv / h_q) F / B on (Liu et al. 2023, section 3). Zigzag halves the work
of a step, backward has 10 c^2 operations a head and number and moves gradients, too: `least_hidden_tokens`.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...base.checks import checked, choice, flag, integer, number
from ...base.cluster import Link
from ...base.errors import ArgumentError
from ...layout.placements import AttentionWork, Placement

_COUNT = integer(1, 10**9)
_RATE = number(0, above=True)
DIRECTIONS = {  # operations of a step over c^2 h_q, whether gradients of the keys travel, too
    "forward": (4, False),
    "forward_zigzag": (2, False),
    "backward": (10, True),
    "backward_zigzag": (5, True),
}
FLOAT32 = 4  # bytes of a number
SOFTMAX_COLUMNS = 16  # of a flash_sp result, per head: 8 equal columns of the maximum, 8 of the sum (flash_sp.cc)


# ---- sequence parallelism inside a group of tensor parallelism ----


@dataclass(frozen=True)
class LayerCollectives:
    """Collectives of one transformer layer, forward and backward, and bytes that a rank sends for them (ring).

    tensor_parallel_bytes  the same of tensor parallelism alone: four all_reduces
    """

    all_gather: int
    reduce_scatter: int
    all_reduce: int
    sent_bytes: int
    tensor_parallel_bytes: int


@checked(samples=_COUNT, tokens=_COUNT, hidden=_COUNT, tensor=_COUNT, number_bytes=_COUNT, gathered_again=flag)
def sequence_parallel_messages(
    samples: int, tokens: int, hidden: int, tensor: int, number_bytes: int = 2, *, gathered_again: bool = True
) -> LayerCollectives:
    """Sequence parallelism of one layer, M = b s h e (Korthikanti et al. 2022, section 4.2.2).

        forward    all_gather before qkv and fc1, reduce_scatter after attention's product and fc2
        backward   each the other way round; where only the slice of a column layer's input is kept, it is gathered
                   again: two more all_gathers (Megatron hides them behind a product)

    gathered_again  as Megatron does it: 10 (t - 1) / t M, 5/4 of tensor parallelism's bytes; otherwise the same 8

    Raises ArgumentError if t does not divide the tokens.
    """
    if tokens % tensor:
        what = f"{tokens} tokens on {tensor} ranks"
        raise ArgumentError(what, where="sequence_parallel_messages", allowed="tensor divides tokens")
    one = samples * (tokens // tensor) * hidden * number_bytes * (tensor - 1)  # (t - 1) / t M: one gather, or scatter
    gathers, scatters = 6 if gathered_again else 4, 4
    return LayerCollectives(gathers, scatters, 0, (gathers + scatters) * one, 4 * 2 * one)


# ---- attention over a divided sequence ----


@dataclass(frozen=True)
class Sent:
    """Bytes that a rank sends for one attention, and in how many messages or passes.

    forward, backward   passes or exchanges;  backward: of gradients, for a ring
    held_bytes          of keys and values at once, own and foreign
    kv_heads            heads of keys that travel, repeated ones counted
    """

    forward_bytes: int
    backward_bytes: int
    forward: int
    backward: int
    held_bytes: int
    kv_heads: int


@dataclass(frozen=True)
class Hybrid:
    """Bytes that a rank sends forward, in the exchange and in the ring; backward in all; held of keys and values."""

    exchange_bytes: int
    ring_bytes: int
    backward_bytes: int
    held_bytes: int

    @property
    def sum_bytes(self) -> int:
        """Forward, both."""
        return self.exchange_bytes + self.ring_bytes


@dataclass(frozen=True)
class BalancedRing:
    """What a rank sends under `enable_flash_sp` in a forward pass: messages of each kind, bytes, blocks computed.

    half_blocks  computed blocks of c x c / 2, without the start and end block that each rank has, too
    """

    kv_halves: int
    queries: int
    results: int
    sent_bytes: int
    half_blocks: int


@dataclass(frozen=True)
class RingStep:
    """Seconds of one step of a ring: the longest rank computes while keys and values travel."""

    compute_s: float
    transfer_s: float

    @property
    def exposed_s(self) -> float:
        """Seconds of the transfer that computing does not hide."""
        return max(0.0, self.transfer_s - self.compute_s)


@dataclass(frozen=True)
class AttentionMessages:
    """One attention whose sequence lies on several ranks; each method is a way to do it.

    samples, tokens   b, s: the whole sequence
    heads, head_size  n_q, d;  kv_heads: n_kv, 0 for as many
    ranks             P
    number_bytes      e of a number

    Raises ArgumentError if P does not divide the tokens, or n_kv the heads.
    """

    samples: int
    tokens: int
    heads: int
    head_size: int
    ranks: int
    kv_heads: int = 0
    number_bytes: int = 2

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            (integer(0) if name == "kv_heads" else _COUNT)("AttentionMessages", name, value)
        object.__setattr__(self, "kv_heads", self.kv_heads or self.heads)
        rules = {
            f"{self.tokens} tokens on {self.ranks} ranks": (self.tokens % self.ranks, "ranks divides tokens"),
            f"{self.heads} heads with {self.kv_heads} of keys": (self.heads % self.kv_heads, "kv_heads divides heads"),
        }
        for given, (rest, allowed) in rules.items():
            if rest:
                raise ArgumentError(given, where="AttentionMessages", allowed=allowed)

    @classmethod
    def of_rank_tokens(cls, samples: int, rank_tokens: int, ranks: int, **heads: int) -> AttentionMessages:
        """By the tokens of each rank.  heads: heads, head_size, kv_heads, number_bytes."""
        c, p = _COUNT("AttentionMessages", "rank_tokens", rank_tokens), _COUNT("AttentionMessages", "ranks", ranks)
        return cls(samples=samples, tokens=c * p, ranks=p, **heads)

    @classmethod
    def of_degrees(cls, samples: int, tokens: int, ulysses: int, ring: int, **heads: int) -> AttentionMessages:
        """On ulysses x ring ranks, for `hybrid(ulysses)`.  heads: as above."""
        degrees = {"ulysses": ulysses, "ring": ring}
        u, r = (_COUNT("AttentionMessages", name, degree) for name, degree in degrees.items())
        return cls(samples=samples, tokens=tokens, ranks=u * r, **heads)

    @property
    def rank_tokens(self) -> int:
        """c."""
        return self.tokens // self.ranks

    @property
    def _chunk(self) -> int:
        """Numbers of the keys of one rank, and as many of the values."""
        return self.samples * self.rank_tokens * self.kv_heads * self.head_size

    @checked("AttentionMessages.ring", gradient_bytes=_COUNT, start_at_home=flag)
    def ring(self, *, gradient_bytes: int = FLOAT32, start_at_home: bool = True) -> Sent:
        """Keys and values pass from rank to rank: P - 1 passes, none after the last step.

        gradient_bytes  of a number of dk and dv, which are added up on the way
        start_at_home   dk and dv travel with their keys and need P passes to come home (zhuzilin/ring-flash-attention);
                        otherwise the next rank starts them, and home adds its own part last: P - 1
        """
        passes = self.ranks - 1
        of_gradients = passes + (start_at_home and self.ranks > 1)
        sent = 2 * passes * self._chunk * self.number_bytes
        back = sent + 2 * of_gradients * self._chunk * gradient_bytes
        held = 2 * min(2, self.ranks) * self._chunk * self.number_bytes
        return Sent(sent, back, passes, of_gradients, held, self.kv_heads)

    @checked("AttentionMessages.gathered", gradient_bytes=_COUNT | None, kept=flag)
    def gathered(self, *, gradient_bytes: int | None = None, kept: bool = False) -> Sent:
        """All keys and values are gathered first (Llama 3, MindFormers' colossalai_cp).

        kept            from forward to backward; otherwise gathered again
        gradient_bytes  of a number in the reduce_scatter of dk and dv; None: as the keys

        Backward: a reduce_scatter of dk and dv, before it the second all_gather.
        """
        passes = self.ranks - 1
        sent = 2 * passes * self._chunk * self.number_bytes
        scattered = 2 * passes * self._chunk * (gradient_bytes or self.number_bytes)
        held = 2 * self.ranks * self._chunk * self.number_bytes
        return Sent(sent, scattered + (0 if kept else sent), 1, 1 if kept else 2, held, self.kv_heads)

    @checked("AttentionMessages.exchanged", repeated=flag)
    def exchanged(self, *, repeated: bool = True) -> Sent:
        """Every rank gets all tokens of its share of the heads (DeepSpeed-Ulysses): four all_to_alls each way.

        repeated  kv heads that are fewer than ranks are repeated to one per rank; otherwise they are counted once

        Raises ArgumentError if P does not divide the heads, or kv heads and P do not divide each other.
        """
        travel = self._exchanged_kv_heads(self.ranks, repeated)
        numbers = 2 * self.samples * self.rank_tokens * (self.heads + travel) * self.head_size
        sent = numbers * self.number_bytes * (self.ranks - 1) // self.ranks
        held = 2 * self.samples * self.tokens * max(1, travel // self.ranks) * self.head_size * self.number_bytes
        return Sent(sent, sent, 4, 4, held, travel)

    @checked("AttentionMessages.hybrid", ulysses=_COUNT, gradient_bytes=_COUNT)
    def hybrid(self, ulysses: int, *, gradient_bytes: int = FLOAT32) -> Hybrid:
        """Exchange among `ulysses` neighbours, ring among the P / ulysses groups (Fang and Zhao 2024, USP).

        gradient_bytes  of a number of dk and dv in the ring, where they start at home (see `ring`)
        """
        if self.ranks % ulysses:
            what = f"ulysses={ulysses} of {self.ranks} ranks"
            raise ArgumentError(what, where="AttentionMessages.hybrid", allowed="A divisor of the ranks")
        travel = self._exchanged_kv_heads(ulysses, True)
        rings = self.ranks // ulysses
        numbers = 2 * self.samples * self.rank_tokens * (self.heads + travel) * self.head_size
        exchange = numbers * self.number_bytes * (ulysses - 1) // ulysses
        inside = AttentionMessages(
            samples=self.samples,
            tokens=self.tokens,
            heads=self.heads // ulysses,
            head_size=self.head_size,
            ranks=rings,
            kv_heads=travel // ulysses,
            number_bytes=self.number_bytes,
        ).ring(gradient_bytes=gradient_bytes)
        return Hybrid(exchange, inside.forward_bytes, exchange + inside.backward_bytes, inside.held_bytes)

    @checked("AttentionMessages.head_tail_bytes", rank=integer(0))
    def head_tail_bytes(self, rank: int) -> int:
        """Bytes for exchanging second halves of queries with rank P - 1 - r, and of results back: b c h_q e; backward
        as much. The middle one of an odd number of ranks is its own mirror and sends nothing.
        """
        r = self._rank("head_tail_bytes", rank)
        Placement("head_tail", self.tokens, self.ranks)  # refuses what does not divide
        own = r == self.ranks - 1 - r
        return 0 if own else self.samples * self.rank_tokens * self.heads * self.head_size * self.number_bytes

    @checked("AttentionMessages.balanced_ring", rank=integer(0))
    def balanced_ring(self, rank: int) -> BalancedRing:
        """MindSpore's `enable_flash_sp` (flash_sp.cc): chunks lie in order, and who has less to do helps out.

        The distance i - j of query chunk i and key chunk j decides: below P / 2 rank i computes, and gets the two
        halves of the keys; above it rank j, which gets the queries and sends result, maximum and sum back in float32;
        at P / 2 each one half of the keys. That makes P - 1 half blocks on every rank.
        """
        r, half = self._rank("balanced_ring", rank), self.ranks // 2
        if self.ranks % 2 or self.rank_tokens % 2:
            what = f"{self.tokens} tokens on {self.ranks} ranks"
            allowed = "An even number of ranks, an even number of tokens on each"
            raise ArgumentError(what, where="AttentionMessages.balanced_ring", allowed=allowed)
        near = min(half - 1, self.ranks - 1 - r)  # ranks that get both halves of this rank's keys
        far = r + half < self.ranks  # the rank at P / 2 gets one half, and lends its queries for the other
        kv_halves, queries, results = 2 * near + far, max(0, r - half + 1), max(0, self.ranks - r - half)
        row = self.samples * self.rank_tokens * self.heads
        sent = kv_halves * self._chunk * self.number_bytes  # half the keys and half the values
        sent += queries * row * self.head_size * self.number_bytes
        sent += results * row * (self.head_size + SOFTMAX_COLUMNS) * FLOAT32
        return BalancedRing(kv_halves, queries, results, sent, self.ranks - 1)

    @checked("AttentionMessages.ring_steps", flops_per_s=_RATE)
    def ring_steps(self, work: AttentionWork, flops_per_s: float, link: Link) -> tuple[RingStep, ...]:
        """Forward, step by step: the longest rank of a placement computes while keys and values pass on.

        work  pairs of the placement (`layout.placements.attention_work`), of these tokens and ranks

        A pair takes 4 d operations for each head. The last step sends nothing. Predicted, not measured.
        """
        if (work.ranks, work.rank_tokens) != (self.ranks, self.rank_tokens):
            what = f"pairs of {work.rank_tokens} tokens on each of {work.ranks} ranks"
            allowed = f"{self.rank_tokens} tokens on each of {self.ranks}"
            raise ArgumentError(what, where="AttentionMessages.ring_steps", allowed=allowed)
        each = 4 * self.samples * self.heads * self.head_size / flops_per_s
        message = link.alpha_s + link.beta_s_per_byte * 2 * self._chunk * self.number_bytes
        last = len(work.longest_per_step) - 1
        return tuple(RingStep(each * n, message if i < last else 0.0) for i, n in enumerate(work.longest_per_step))

    def _rank(self, where: str, rank: int) -> int:
        return integer(0, self.ranks - 1)(f"AttentionMessages.{where}", "rank", rank)

    def _exchanged_kv_heads(self, ranks: int, repeated: bool) -> int:
        where = "AttentionMessages.exchanged"
        if self.heads % ranks:
            what = f"{self.heads} heads on {ranks} ranks"
            raise ArgumentError(what, where=where, allowed="A divisor of the heads", hint="Use a ring among the rest")
        if self.kv_heads % ranks and ranks % self.kv_heads:
            what = f"{self.kv_heads} heads of keys on {ranks} ranks"
            raise ArgumentError(what, where=where, allowed="One of the two divides the other")
        return max(self.kv_heads, ranks) if repeated else self.kv_heads


@checked(flops_per_s=_RATE, bytes_per_s=_RATE, heads=_COUNT, kv_heads=_COUNT, number_bytes=number(0, above=True))
@checked(direction=choice(*DIRECTIONS), gradient_bytes=number(0, above=True))
def least_hidden_tokens(
    flops_per_s: float,
    bytes_per_s: float,
    heads: int,
    kv_heads: int,
    number_bytes: float = 2,
    *,
    direction: str = "forward",
    gradient_bytes: float = FLOAT32,
) -> float:
    """Tokens c per rank from which on a ring's step hides its transfer.

    direction       one of DIRECTIONS: the longest step of zigzag has half of a block's pairs
    gradient_bytes  of a number of dk and dv, which travel backward with the keys

    Operations over F against bytes over B, without the time that a message takes to start. An A100 with 300 GB/s, as
    many kv heads as heads, and with a quarter of them in zigzag:

    >>> least_hidden_tokens(312e12, 300e9, 32, 32)
    1040.0
    >>> least_hidden_tokens(312e12, 300e9, 32, 8, direction="forward_zigzag")
    520.0
    """
    operations, with_gradients = DIRECTIONS[direction]
    moved = 2 * (number_bytes + (gradient_bytes if with_gradients else 0))  # bytes over c h_kv: k and v
    return moved / operations * (kv_heads / heads) * flops_per_s / bytes_per_s
