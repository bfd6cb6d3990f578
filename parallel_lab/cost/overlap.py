"""Backward computation above, gradient messages below: what a grouping of messages makes of a step, in pure numbers.

    backward  |g0|g1|g2|g3|                     compute_s each; a gradient is ready when its box ends
    messages        |--0 1--|    |--2 3--|      a bucket is sent when its last gradient is ready and the line is free
                                 '------' exposed: nothing is left to compute

A message of m bytes takes alpha_s + beta_s_per_byte * m (`Link`: alpha is the start, beta the time per byte;
MindSpore's text has the names the other way round). One message travels at a time, in the order in which buckets get
ready. The step ends when backward and the last message have.

`Packing` adds what buckets cost a rank that has to lay gradients side by side: copies before a message, views after it.

`best_grouping` finds the contiguous grouping with the shortest step, exactly: a line that is free earlier never makes a
later message end later, so the best grouping of the first j gradients is the best one of the first i and one message
with the rest. With packing, what is kept of the first j is every way that no other one beats in all respects.
`equal_buckets_step_s` and `best_bucket_count` are the closed forms for equal layers.

    >>> golf = tuple(Gradient(f"g{n}", mb * 10**6, 1e-3) for n, mb in enumerate((8, 1, 1, 4, 2, 8, 16, 8, 16, 4)))
    >>> link = Link(alpha_s=1e-3, beta_s_per_byte=0.25e-9)
    >>> groupings = range(10), [0] * 10, best_grouping(golf, link)
    >>> [round(1e3 * predict_overlap(golf, groups, link).step_s, 2) for groups in groupings]
    [28.0, 28.0, 22.0]
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np

from ..base.checks import checked, integer, number
from ..base.cluster import Link
from ..base.errors import ArgumentError, shorten
from ..base.settings.fusion_rules import Groups, buckets_of
from ..ops.collectives.definitions import MESSAGES
from .clock import Clock, Task

AMOUNT = number(0)


@dataclass(frozen=True)
class Gradient:
    """One gradient, in backward's order: bytes, seconds of backward before it, of work on it after its message."""

    name: str
    size_bytes: float
    compute_s: float
    after_s: float = 0.0

    def __post_init__(self) -> None:
        for field in ("size_bytes", "compute_s", "after_s"):
            AMOUNT(f"Gradient {shorten(self.name)}", field, getattr(self, field))


@dataclass(frozen=True)
class Packing:
    """What a bucket of two or more gradients costs its rank: packing in backward, unpacking per gradient after it."""

    pack: Link
    unpack_s: float = 0.0

    def pack_s(self, size_bytes: float, members: int) -> float:
        return self.pack.time_s(size_bytes) if members > 1 else 0.0

    def unpack_all_s(self, members: Sequence[Gradient]) -> float:
        """Unpacking, and the members' own work."""
        return (self.unpack_s * len(members) if len(members) > 1 else 0.0) + sum(g.after_s for g in members)


_FREE = Packing(Link(0.0, 0.0))


@dataclass(frozen=True)
class BucketTime:
    """One message on the line.

    members    positions of its gradients, in the order of backward
    ready_s    when the last of them is ready;  start_s, end_s: when it travels, later if the line is busy
    hidden_s   seconds of travelling during backward computation
    exposed_s  seconds of travelling after it
    unpack_s   seconds of the rank, once the message is complete: unpacking, and the gradients' own work
    """

    members: tuple[int, ...]
    size_bytes: float
    ready_s: float
    start_s: float
    end_s: float
    hidden_s: float
    exposed_s: float
    unpack_s: float = 0.0

    @property
    def waited_s(self) -> float:
        """Seconds it lay ready while the line was busy."""
        return self.start_s - self.ready_s


@dataclass(frozen=True)
class Overlap:
    """Backward and its messages, in seconds from its start: gradients ready, buckets as they travel, its end."""

    gradients: tuple[Gradient, ...]
    ready_s: tuple[float, ...]
    buckets: tuple[BucketTime, ...]
    backward_s: float

    @property
    def step_s(self) -> float:
        """When both have ended and every bucket is dealt with, one after the other."""
        end = self.backward_s
        for bucket in self.buckets:
            end = max(end, bucket.end_s) + bucket.unpack_s
        return end

    @property
    def communication_s(self) -> float:
        return math.fsum(b.hidden_s + b.exposed_s for b in self.buckets)

    @property
    def hidden_s(self) -> float:
        return math.fsum(b.hidden_s for b in self.buckets)

    @property
    def exposed_s(self) -> float:
        """max(0, end of the last message - end of backward): what the messages add to the step."""
        return max(0.0, self.buckets[-1].end_s - self.backward_s) if self.buckets else 0.0

    @property
    def groups(self) -> Groups:
        """The number of its message, per gradient."""
        number = {position: n for n, bucket in enumerate(self.buckets) for position in bucket.members}
        return tuple(number[position] for position in range(len(self.gradients)))


@checked(rest_s=AMOUNT)
def predict_overlap(
    gradients: Sequence[Gradient],
    groups: Sequence[int],
    link: Link,
    *,
    rest_s: float = 0.0,
    after_backward: bool = False,
    packing: Packing | None = None,
) -> Overlap:
    """What the grouping makes of the step.

    groups          per gradient its group, equal numbers share a message (`base/settings/fusion_rules.py`)
    link            of one message as a whole: for a collective `all_reduce_line`
    rest_s          seconds of backward after the last gradient
    after_backward  every message waits for the whole of backward: no overlap
    packing         what buckets cost the rank; None: nothing

    Raises ArgumentError for lists of different lengths or a negative time.
    """
    if len(gradients) != len(groups):
        what = f"{len(groups)} group numbers for {len(gradients)} gradients"
        raise ArgumentError(what, where="predict_overlap", allowed="One per gradient")
    cost = packing or _FREE
    buckets = sorted(buckets_of(groups), key=lambda bucket: bucket[-1])  # as they get ready
    sizes = [sum([gradients[position].size_bytes for position in bucket]) for bucket in buckets]
    packs = [0.0] * len(gradients)  # seconds of packing behind each gradient
    unpacks = [0.0] * len(buckets)
    if packing is not None or any(gradient.after_s for gradient in gradients):
        for n, bucket in enumerate(buckets):
            packs[bucket[-1]] = cost.pack_s(sizes[n], len(bucket))
            unpacks[n] = cost.unpack_all_s([gradients[position] for position in bucket])
    ready: list[float] = []
    backward_s = 0.0
    for gradient, pack_s in zip(gradients, packs, strict=True):
        ready.append(backward_s + gradient.compute_s)
        backward_s = ready[-1] + pack_s
    backward_s += rest_s
    clock = Clock([[Task(link.time_s(size), ((n, 0.0),)) for n, size in enumerate(sizes)]])  # the line
    for n, bucket in enumerate(buckets):
        clock.there[n] = backward_s if after_backward else ready[bucket[-1]] + packs[bucket[-1]]
    times: list[BucketTime] = []

    def done(_lane: int, _task: Task, _came_s: float, start_s: float, end_s: float) -> None:
        n = len(times)
        hidden_s = min(max(backward_s - start_s, 0.0), end_s - start_s)
        exposed_s = end_s - start_s - hidden_s
        times.append(BucketTime(buckets[n], sizes[n], clock.there[n], start_s, end_s, hidden_s, exposed_s, unpacks[n]))

    clock.run(done)
    return Overlap(tuple(gradients), tuple(ready), tuple(times), backward_s)


@checked(group_size=integer(1))
def all_reduce_line(group_size: int, link: Link, gamma_s_per_byte: float = 0.0) -> Link:
    """One ring all_reduce as a line: 2(n-1) alpha to start, 2(n-1)/n beta + (n-1)/n gamma per byte of the operand.

    >>> all_reduce_line(2, Link(alpha_s=1e-6, beta_s_per_byte=1e-9))
    Link(alpha_s=2e-06, beta_s_per_byte=1e-09)

    Raises ArgumentError for a group without ranks.
    """
    ring, n = MESSAGES["all_reduce"], group_size
    return Link(ring.time_s(0, n, link), ring.time_s(n, n, Link(0.0, link.beta_s_per_byte), gamma_s_per_byte) / n)


# ---- search ----


@checked(max_messages=integer(1) | None)
def best_grouping(
    gradients: Sequence[Gradient],
    link: Link,
    max_messages: int | None = None,
    *,
    packing: Packing | None = None,
    rest_s: float = 0.0,
) -> Groups:
    """The contiguous grouping with which the step ends first; at a tie, one with the fewest messages.

    max_messages     use at most so many
    packing, rest_s  as for `predict_overlap`; rest_s only matters with packing or after_s

    Exact over all 2^(n-1) groupings. Without these O(m n^2) for n gradients and m messages in the answer; with it as
    many times more as there are ways that no other one beats. Raises ArgumentError for max_messages below 1.
    """
    count = len(gradients)
    limit = count if max_messages is None else min(max_messages, count)
    if not count:
        return ()
    if packing is not None or any(g.after_s for g in gradients):
        return _best_packed(gradients, link, limit, packing or _FREE, rest_s)
    ready = list(accumulate(g.compute_s for g in gradients))
    total = list(accumulate((g.size_bytes for g in gradients), initial=0))
    before = np.array(total[:-1], dtype=float)

    def next_ends(ends: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """With one message more: per j, when the first j gradients are sent at best, and its last message's begin."""
        best_ends, cuts = np.full(count + 1, np.inf), np.zeros(count + 1, dtype=int)
        for j in range(1, count + 1):
            line = np.maximum(ends[:j], ready[j - 1]) + (link.alpha_s + link.beta_s_per_byte * (total[j] - before[:j]))
            cuts[j] = int(np.argmin(line))
            best_ends[j] = line[cuts[j]]
        return best_ends, cuts

    ends = np.full(count + 1, np.inf)
    ends[0] = 0.0
    rows: list[np.ndarray] = []
    best, best_messages = math.inf, 0
    for messages in range(1, limit + 1):
        ends, cuts = next_ends(ends)
        rows.append(cuts)
        if ends[count] < best:
            best, best_messages = float(ends[count]), messages
        # k messages cost k alpha and every byte once: more of them cannot win any more
        if ready[0] + (messages + 1) * link.alpha_s + link.beta_s_per_byte * total[-1] >= best:
            break
    borders = [count]
    for cuts in reversed(rows[:best_messages]):
        borders.append(int(cuts[borders[-1]]))
    starts = set(borders[1:-1])
    return tuple(accumulate(int(position in starts) for position in range(count)))


@dataclass(frozen=True)
class _Way:
    """A way to send the first gradients. All numbers are better when smaller, whatever follows.

    late_s    how much packing delays backward;  line_s: when the line is free;  starts: when its messages begin
    unpack_s  unpacking so far;  done_s: when it would have ended, had backward ended before
    """

    late_s: float
    line_s: float
    unpack_s: float
    done_s: float
    starts: tuple[int, ...]

    @property
    def numbers(self) -> tuple[float, ...]:
        return self.late_s, self.line_s, self.unpack_s, self.done_s, len(self.starts)


def _best_packed(gradients: Sequence[Gradient], link: Link, limit: int, packing: Packing, rest_s: float) -> Groups:
    """The grouping of at most `limit` messages that ends first, what packing costs included."""
    count = len(gradients)
    ready = list(accumulate(g.compute_s for g in gradients))
    total = list(accumulate((g.size_bytes for g in gradients), initial=0))
    # after_s of what is not sent yet
    behind = list(accumulate((g.after_s for g in reversed(gradients)), initial=0.0))[::-1]

    def no_sooner(way: _Way, sent: int) -> float:
        """The step cannot end before this, whatever follows."""
        left = count - sent
        line_s = way.line_s + (link.time_s(total[-1] - total[sent]) if left else 0.0)
        own_s = way.late_s + way.unpack_s + behind[sent]
        return max(ready[-1] + rest_s + own_s, way.done_s + behind[sent], line_s)

    simple = [tuple(range(count))] if limit >= count else []
    simple += [(0,) * count, best_grouping([replace(g, after_s=0.0) for g in gradients], link, limit)]
    steps = [predict_overlap(gradients, groups, link, rest_s=rest_s, packing=packing).step_s for groups in simple]
    known_s = min(steps) * (1 + 1e-9)
    ways: list[list[_Way]] = [[_Way(0.0, 0.0, 0.0, 0.0, ())]]
    for stop in range(1, count + 1):
        longer: list[_Way] = []
        for start in range(stop):
            size = total[stop] - total[start]
            pack_s, unpack_s = packing.pack_s(size, stop - start), packing.unpack_all_s(gradients[start:stop])
            message_s = link.time_s(size)
            for way in ways[start]:
                if len(way.starts) < limit:
                    late_s = way.late_s + pack_s
                    line_s = max(way.line_s, ready[stop - 1] + late_s) + message_s
                    done_s = max(way.done_s, line_s) + unpack_s
                    longer.append(_Way(late_s, line_s, way.unpack_s + unpack_s, done_s, (*way.starts, start)))
        ways.append(_unbeaten([way for way in longer if no_sooner(way, stop) <= known_s]))
    best = min(ways[count], key=lambda w: (max(ready[-1] + rest_s + w.late_s + w.unpack_s, w.done_s), len(w.starts)))
    return tuple(accumulate(int(position in best.starts[1:]) for position in range(count)))


def _unbeaten(ways: list[_Way]) -> list[_Way]:
    """Those that no other one is at least as good as in every number; one of equal ones."""
    ways = sorted(ways, key=lambda w: w.numbers)  # so that only an earlier one can beat another
    numbers = np.array([way.numbers for way in ways])
    kept: list[int] = []
    rows = np.empty_like(numbers)
    for n in range(len(ways)):
        if not (rows[: len(kept)] <= numbers[n]).all(axis=1).any():
            rows[len(kept)] = numbers[n]
            kept.append(n)
    return [ways[n] for n in kept]


def best_threshold(
    gradients: Sequence[Gradient],
    link: Link,
    grouping: Callable[[int], Sequence[int]],
    thresholds_mb: Sequence[int],
    *,
    packing: Packing | None = None,
    rest_s: float = 0.0,
) -> tuple[int, Overlap]:
    """The smallest of the best thresholds, and what it makes of the step. Raises ArgumentError if none is given.

    grouping   group number per gradient for a threshold in MB: one of the rules by size, with its sizes
    """
    smallest: dict[tuple[int, ...], int] = {}
    for threshold in sorted(thresholds_mb):
        smallest.setdefault(tuple(grouping(threshold)), threshold)
    if not smallest:
        raise ArgumentError("no threshold to try", where="best_threshold", allowed="At least one")
    overlaps = {t: predict_overlap(gradients, g, link, rest_s=rest_s, packing=packing) for g, t in smallest.items()}
    return min(overlaps.items(), key=lambda one: one[1].step_s)


# ---- closed forms, for gradients that are all alike ----


@checked(buckets=number(1))
def equal_buckets_step_s(backward_s: float, total_bytes: float, buckets: int, link: Link) -> float:
    """Seconds of backward and its messages when both are split into `buckets` equal parts: a pipeline of two stages.

        T(k) = Tb/k + (k - 1) max(Tb/k, alpha + beta M/k) + alpha + beta M/k

    What the messages add, the exposed tail, is T(k) - Tb. (Two-machine flow shop of equal jobs, Johnson 1954.)

    >>> equal_buckets_step_s(8.0, 4.0, 4, Link(alpha_s=1.0, beta_s_per_byte=1.0))  # 2 to compute, 2 to send, per part
    10.0
    """
    part_s, message_s = backward_s / buckets, link.time_s(total_bytes / buckets)
    return part_s + (buckets - 1) * max(part_s, message_s) + message_s


def best_bucket_count(backward_s: float, total_bytes: float, link: Link) -> float:
    """The number of equal buckets, not rounded, for which `equal_buckets_step_s` is smallest.

    While the messages hide behind the computation (Tb/k above alpha + beta M/k, so k below (Tb - beta M) / alpha) more
    buckets shorten the tail; beyond, T(k) = Tb/k + k alpha + beta M, smallest at sqrt(Tb / alpha). The answer is the
    larger of the two, at least 1; with alpha 0 infinity.

    >>> best_bucket_count(1000.0, 10.0, Link(alpha_s=1.0, beta_s_per_byte=200.0))  # messages take longer than computing
    31.622776601683793
    >>> best_bucket_count(1000.0, 500.0, Link(alpha_s=1.0, beta_s_per_byte=1.0))
    500.0
    """
    if link.alpha_s == 0:
        return math.inf
    hides = (backward_s - link.beta_s_per_byte * total_bytes) / link.alpha_s
    return max(1.0, hides, math.sqrt(backward_s / link.alpha_s))
