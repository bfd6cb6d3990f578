"""Backward computation above, gradient messages below: what a grouping of the messages makes of a step. Pure numbers, no plan, no arrays of data.

    backward  |g0|g1|g2|g3|                     compute_s each; a gradient is there when its box ends
    messages        |--0 1--|    |--2 3--|      a bucket is sent when its last gradient is there and the line is free
                                 '------' exposed: nothing is left to compute

A message of m bytes takes alpha_s + beta_s_per_byte * m (`Link`: alpha is the start, beta the time per byte; MindSpore's text has the names the other
way round). One message travels at a time, in the order in which buckets get ready. The step ends when backward and the last message have.

`best_grouping` finds the contiguous grouping with the shortest step, exactly: a line that is free earlier never makes a later message end later, so
the best grouping of the first j gradients is the best one of the first i and one message with the rest. `equal_buckets_step_s` and
`best_bucket_count` are the closed forms for equal layers.

    >>> golf = tuple(Gradient(f"g{n}", mb * 10**6, 1e-3) for n, mb in enumerate((8, 1, 1, 4, 2, 8, 16, 8, 16, 4)))
    >>> link = Link(alpha_s=1e-3, beta_s_per_byte=0.25e-9)
    >>> [round(1e3 * predict_overlap(golf, groups, link).step_s, 2) for groups in (range(10), [0] * 10, best_grouping(golf, link))]
    [28.0, 28.0, 22.0]
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from ..cluster import Link
from ..errors import ArgumentError, message, shorten
from ..fusion import Groups, buckets_of

__all__ = [
    "BucketTime",
    "Gradient",
    "Overlap",
    "all_reduce_line",
    "best_bucket_count",
    "best_grouping",
    "best_threshold",
    "equal_buckets_step_s",
    "predict_overlap",
]


@dataclass(frozen=True)
class Gradient:
    """One gradient, in the order in which backward makes them.

    size_bytes  bytes one rank hands over
    compute_s   seconds of backward between the gradient before and this one
    """

    name: str
    size_bytes: int
    compute_s: float

    def __post_init__(self) -> None:
        for field, value in (("size_bytes", self.size_bytes), ("compute_s", self.compute_s)):
            if not 0 <= value < math.inf:
                raise ArgumentError(message(f"{field}={shorten(value)}", where=f"Gradient {shorten(self.name)}", allowed="At least 0, finite"))


@dataclass(frozen=True)
class BucketTime:
    """One message on the line.

    members    positions of its gradients, in the order of backward
    ready_s    when the last of them is there;  start_s, end_s: when it travels, start_s later than ready_s where the line was busy
    hidden_s   seconds of travelling beside backward computation
    exposed_s  seconds of travelling after it
    """

    members: tuple[int, ...]
    size_bytes: int
    ready_s: float
    start_s: float
    end_s: float
    hidden_s: float
    exposed_s: float

    @property
    def waited_s(self) -> float:
        """Seconds it lay ready while the line was busy."""
        return self.start_s - self.ready_s


@dataclass(frozen=True)
class Overlap:
    """Backward and its messages. Times count from the start of backward.

    ready_s     per gradient, when it is there
    buckets     messages in the order they travel
    backward_s  when the computation has ended
    """

    gradients: tuple[Gradient, ...]
    ready_s: tuple[float, ...]
    buckets: tuple[BucketTime, ...]
    backward_s: float

    @property
    def step_s(self) -> float:
        """When both have ended."""
        return max(self.backward_s, self.buckets[-1].end_s if self.buckets else 0.0)

    @property
    def communication_s(self) -> float:
        return math.fsum(b.hidden_s + b.exposed_s for b in self.buckets)

    @property
    def hidden_s(self) -> float:
        return math.fsum(b.hidden_s for b in self.buckets)

    @property
    def exposed_s(self) -> float:
        """max(0, end of the last message - end of backward): what the messages add to the step."""
        return self.step_s - self.backward_s

    @property
    def groups(self) -> Groups:
        """The number of its message, per gradient."""
        number = {position: n for n, bucket in enumerate(self.buckets) for position in bucket.members}
        return tuple(number[position] for position in range(len(self.gradients)))


def predict_overlap(
    gradients: Sequence[Gradient], groups: Sequence[int], link: Link, *, rest_s: float = 0.0, after_backward: bool = False
) -> Overlap:
    """What the grouping makes of the step.

    groups          per gradient its group, equal numbers share a message (see `parallel_lab/fusion.py`)
    link            of one message as a whole: for a collective `all_reduce_line`
    rest_s          seconds of backward after the last gradient
    after_backward  every message waits for the whole of backward: no overlap

    Raises ArgumentError for lists of different lengths or a negative time.
    """
    if len(gradients) != len(groups):
        what = f"{len(groups)} group numbers for {len(gradients)} gradients"
        raise ArgumentError(message(what, where="predict_overlap", allowed="One per gradient"))
    if not 0 <= rest_s < math.inf:
        raise ArgumentError(message(f"rest_s={shorten(rest_s)}", where="predict_overlap", allowed="At least 0, finite"))
    ready = tuple(accumulate(g.compute_s for g in gradients))
    backward_s = (ready[-1] if ready else 0.0) + rest_s
    buckets = buckets_of(groups)
    when = [backward_s if after_backward else ready[bucket[-1]] for bucket in buckets]
    line: list[BucketTime] = []
    free = 0.0
    for number in sorted(range(len(buckets)), key=lambda n: (when[n], buckets[n][-1])):
        size = sum(gradients[position].size_bytes for position in buckets[number])
        start = max(free, when[number])
        free = start + link.time_s(size)
        hidden = min(max(backward_s - start, 0.0), free - start)
        line.append(BucketTime(buckets[number], size, when[number], start, free, hidden, free - start - hidden))
    return Overlap(tuple(gradients), ready, tuple(line), backward_s)


def all_reduce_line(group_size: int, link: Link, gamma_s_per_byte: float = 0.0) -> Link:
    """One ring all_reduce as a line: 2(n-1) alpha to start, 2(n-1)/n beta + (n-1)/n gamma per byte of the operand (`cost/time.py`).

    >>> line = all_reduce_line(4, Link(alpha_s=1e-6, beta_s_per_byte=2e-9))
    >>> line.alpha_s, line.beta_s_per_byte
    (6e-06, 3e-09)

    Raises ArgumentError for a group without ranks.
    """
    if group_size < 1:
        raise ArgumentError(message(f"group_size={shorten(group_size)}", where="all_reduce_line", allowed="At least 1"))
    others = group_size - 1
    return Link(2 * others * link.alpha_s, (2 * others * link.beta_s_per_byte + others * gamma_s_per_byte) / group_size)


# ---- search ----


def best_grouping(gradients: Sequence[Gradient], link: Link, max_messages: int | None = None) -> Groups:
    """The contiguous grouping whose last message ends first; of several one with the fewest messages.

    max_messages   use at most so many

    O(m n^2) for n gradients and m messages in the answer, over all 2^(n-1) groupings. Raises ArgumentError for max_messages below 1.
    """
    count = len(gradients)
    limit = count if max_messages is None else min(max_messages, count)
    if max_messages is not None and max_messages < 1:
        raise ArgumentError(message(f"max_messages={shorten(max_messages)}", where="best_grouping", allowed="At least 1"))
    if not count:
        return ()
    ready = list(accumulate(g.compute_s for g in gradients))
    total = list(accumulate((g.size_bytes for g in gradients), initial=0))
    before = np.array(total[:-1], dtype=float)

    def next_ends(ends: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """With one message more: per j the earliest end of the line once the first j gradients are sent, and where its last message begins."""
        found, cuts = np.full(count + 1, np.inf), np.zeros(count + 1, dtype=int)
        for j in range(1, count + 1):
            line = np.maximum(ends[:j], ready[j - 1]) + (link.alpha_s + link.beta_s_per_byte * (total[j] - before[:j]))
            cuts[j] = int(np.argmin(line))
            found[j] = line[cuts[j]]
        return found, cuts

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


def best_threshold(
    gradients: Sequence[Gradient], link: Link, grouping: Callable[[int], Sequence[int]], thresholds_mb: Sequence[int]
) -> tuple[int, Overlap]:
    """The best of the thresholds, the smallest of equal ones, and what it makes of the step.

    grouping   group number per gradient for a threshold in MB: one of the rules by size, with its sizes

    Raises ArgumentError if there is no threshold to try.
    """
    tried: dict[tuple[int, ...], None] = {}
    best: tuple[int, Overlap] | None = None
    for threshold in sorted(thresholds_mb):
        groups = tuple(grouping(threshold))
        if groups in tried:
            continue
        tried[groups] = None
        found = predict_overlap(gradients, groups, link)
        if best is None or found.step_s < best[1].step_s:
            best = threshold, found
    if best is None:
        raise ArgumentError(message("no threshold to try", where="best_threshold", allowed="At least one"))
    return best


# ---- closed forms, for gradients that are all alike ----


def equal_buckets_step_s(backward_s: float, total_bytes: float, buckets: int, link: Link) -> float:
    """Seconds of backward and its messages when both are cut into `buckets` equal parts: a pipeline of two stages.

        T(k) = Tb/k + (k - 1) max(Tb/k, alpha + beta M/k) + alpha + beta M/k

    What the messages add, the exposed tail, is T(k) - Tb. (Two-machine flow shop of equal jobs, Johnson 1954.)

    >>> equal_buckets_step_s(8.0, 4.0, 4, Link(alpha_s=1.0, beta_s_per_byte=1.0))  # 2 to compute, 2 to send, per part
    10.0
    """
    if buckets < 1:
        raise ArgumentError(message(f"buckets={shorten(buckets)}", where="equal_buckets_step_s", allowed="At least 1"))
    part_s, message_s = backward_s / buckets, link.time_s(total_bytes / buckets)
    return part_s + (buckets - 1) * max(part_s, message_s) + message_s


def best_bucket_count(backward_s: float, total_bytes: float, link: Link) -> float:
    """The number of equal buckets, not rounded, for which `equal_buckets_step_s` is smallest.

    While the messages hide behind the computation (Tb/k above alpha + beta M/k, so k below (Tb - beta M) / alpha) more buckets shorten the tail;
    beyond, T(k) = Tb/k + k alpha + beta M, smallest at sqrt(Tb / alpha). The answer is the larger of the two, at least 1; with alpha 0 infinity.

    >>> best_bucket_count(1000.0, 10.0, Link(alpha_s=1.0, beta_s_per_byte=200.0))  # the messages need more than the computation
    31.622776601683793
    >>> best_bucket_count(1000.0, 500.0, Link(alpha_s=1.0, beta_s_per_byte=1.0))
    500.0
    """
    if link.alpha_s == 0:
        return math.inf
    hides = (backward_s - link.beta_s_per_byte * total_bytes) / link.alpha_s
    return max(1.0, hides, math.sqrt(backward_s / link.alpha_s))
