"""Ways to compute one attention whose sequence lies on several ranks: who computes which pairs, what each rank sends.

    way = way_of("zigzag", ranks=4, tokens=32, mask="causal", kv_heads=4)
    way.work.per_rank, way.forward_bytes        ((132, 132, 132, 132), 3072)

A way is `groups` of ranks: keys travel among groups, heads are exchanged inside them. A ring has groups of one rank,
Ulysses has one group of all, U x R groups of two. Numbers are `layout.placements`' and `cost.planner`'s.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache, partial

from ...base.cluster import Link
from ...base.units import plural
from ...cost.planner.sequence_messages import AttentionMessages
from ...layout.placements import AttentionWork, Placement, VisibleKeys, attention_work

WAYS = {
    "contiguous": "contiguous ring",
    "zigzag": "zigzag ring",
    "striped": "striped ring",
    "gathered": "gathered keys",
    "ulysses": "Ulysses",
    "hybrid": "U x R",
}
MASKS = {"causal": "causal", "full": "full", "window": "window s / 4", "documents": "documents s / 4, 3 s / 4"}
TOGETHER = 2  # ranks that exchange heads in U x R
TOKENS, HEADS, HEAD_SIZE, FLOAT = 32, 8, 4, 4  # of the attention that is drawn and run, in float32


def visible_of(mask: str, tokens: int) -> VisibleKeys:
    """What a query sees, of a sequence of any length: windows and documents grow with it."""
    quarter = tokens // 4
    known = {"window": VisibleKeys(window=quarter), "documents": VisibleKeys(documents=(quarter, tokens - quarter))}
    return known.get(mask) or VisibleKeys(causal=mask == "causal")


@dataclass(frozen=True)
class Way:
    """One of WAYS for one mask and number of ranks.

    together   ranks that hold the same tokens and different heads;  groups: of such ranks
    placement  of the sequence over the groups
    work       pairs of each group, for every head; a rank of it does 1 / together of the heads
    forward_bytes, backward_bytes, held_bytes   that a rank sends, and holds of keys and values at once
    passes     messages on the way to all keys: passes of a ring, exchanges, a gather (kept for backward)
    """

    name: str
    ranks: int
    together: int
    placement: Placement
    work: AttentionWork
    forward_bytes: int
    backward_bytes: int
    held_bytes: int
    passes: str
    shape: AttentionMessages

    @property
    def groups(self) -> int:
        """Groups of ranks that pass keys on."""
        return self.ranks // self.together

    @property
    def names(self) -> list[str]:
        """The ranks of each group: "2", or "2-3"."""
        t = self.together
        return [str(g) if t == 1 else f"{g * t}-{(g + 1) * t - 1}" for g in range(self.groups)]

    @property
    def steps(self) -> int:
        """Steps of the ring; 1 where all keys are there at once."""
        return len(self.work.longest_per_step)

    def seconds(self, flops_per_s: float, bytes_per_s: float) -> tuple[float, float, float]:
        """Computing, sending, and what of sending shows; forward, predicted. Only the passes of a ring hide behind its
        steps; no pair can be computed before a gather or an exchange has ended.
        """
        each = 4 * self.shape.samples * self.shape.heads * self.shape.head_size / self.together / flops_per_s
        longest = [each * pairs for pairs in self.work.longest_per_step]
        sends = self.forward_bytes / bytes_per_s
        if self.work.gathered or self.groups == 1:
            return sum(longest), sends, sends
        if self.together == 1:
            steps = self.shape.ring_steps(self.work, flops_per_s, Link(0.0, 1 / bytes_per_s))
            return sum(longest), sends, sum(step.exposed_s for step in steps)
        split = self.shape.hybrid(self.together)
        one = split.ring_bytes / (self.groups - 1) / bytes_per_s
        late = sum(max(0.0, one - step) for step in longest[:-1])
        return sum(longest), sends, split.exchange_bytes / bytes_per_s + late


@lru_cache(maxsize=512)
def pairs_of(kind: str, tokens: int, groups: int, mask: str, gathered: bool) -> AttentionWork:
    """`attention_work`, counted once."""
    return attention_work(Placement(kind, tokens, groups), visible_of(mask, tokens), gathered=gathered)


def way_of(
    name: str,
    ranks: int,
    tokens: int,
    mask: str,
    kv_heads: int,
    heads: int = HEADS,
    head_size: int = HEAD_SIZE,
    size: int = FLOAT,
) -> Way:
    """One of WAYS.  heads, head_size: of the queries;  size: bytes of a number. Gradients of keys travel in float32."""
    together = {"ulysses": ranks, "hybrid": TOGETHER}.get(name, 1)
    kind = {"gathered": "contiguous", "ulysses": "contiguous", "hybrid": "zigzag"}.get(name, name)
    groups, gathered = ranks // together, name in ("gathered", "ulysses")
    shape = AttentionMessages(1, tokens, heads, head_size, ranks, kv_heads, size)
    work = pairs_of(kind, tokens, groups, mask, gathered)
    placement = Placement(kind, tokens, groups)
    if name == "hybrid":
        split = shape.hybrid(together)
        passes = "4 exchanges" + (f", {plural(groups - 1, 'pass', 'es')}" if groups > 1 else "")
        counts = split.sum_bytes, split.backward_bytes, split.held_bytes
        return Way(name, ranks, together, placement, work, *counts, passes, shape)
    makers = {"gathered": partial(shape.gathered, kept=True), "ulysses": shape.exchanged}
    sent = makers.get(name, shape.ring)()
    passes = {"gathered": "1 gather", "ulysses": "4 exchanges"}.get(name, plural(sent.forward, "pass", "es"))
    counts = sent.forward_bytes, sent.backward_bytes, sent.held_bytes
    return Way(name, ranks, together, placement, work, *counts, passes, shape)
