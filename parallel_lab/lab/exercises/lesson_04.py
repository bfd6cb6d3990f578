"""Lesson 04, fusion and overlap: buckets by size, fusion golf, the part of the sending that cannot hide."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from itertools import pairwise
from operator import index
from typing import Any

import numpy as np

from ... import nn
from ...base.cluster import Cluster, Link, cluster_for
from ...base.settings.checks import check_fusion_indices
from ...base.settings.fusion_rules import buckets_of, index_groups, size_groups_by_bytes, size_groups_by_elements
from ...base.units import time_text
from ...cost.overlap import all_reduce_line, best_threshold, equal_buckets_step_s, predict_overlap
from ...train.session import Session
from ..fusion import case as golf
from ..fusion.subjects import GOLF, GOLF_LINE, MB, Job
from ..shared.jobs import ChainNet
from .book import Exercise
from .ideas import Idea, compare_number, recognised, slip
from .reading import reading, refusals, whole_numbers
from .running import ask, listed
from .verdict import Note, Part, Wrong, judged, reached

# ---- 04.1: buckets by size ----

Buckets = list[list[int]]
Case = tuple[list[int], int]  # sizes in bytes, threshold in MB
EDGES: tuple[Case, ...] = (
    ([600_000, 420_000, 10_000, 500_000], 1),  # above a million, and not above a MB
    ([600_000, 600_000, MB // 2, MB // 2, MB // 2], 1),  # above a MB, then at it
    ([MB, 1, MB - 1, 1, MB], 1),
    ([3 * MB, 2 * MB, MB, MB, MB], 2),
    ([4 * MB], 8),
    ([5 * MB, MB // 2, MB // 2, 9 * MB, 10], 4),
)
RANDOM_LISTS = 200
# A network of these widths has weights of 4, 2, 0.25, 1, 4, 0.5 MB; thresholds in MB with which its gradients are sent
WIDTHS, THRESHOLDS = (1024, 1024, 512, 128, 2048, 512, 256), (1, 3, 5)


def _random_cases(rng: np.random.Generator, count: int = RANDOM_LISTS) -> Iterator[Case]:
    """Sizes from a few bytes to several MB, some of them exact multiples of the threshold."""
    for _ in range(count):
        threshold_mb = int(rng.integers(1, 9))
        sizes = [int(2 ** rng.uniform(2, 23)) for _ in range(int(rng.integers(1, 30)))]
        exact = rng.random(len(sizes)) < 0.3
        fits = [threshold_mb * MB // int(rng.integers(1, 4)) if e else s for s, e in zip(sizes, exact, strict=True)]
        yield fits, threshold_mb


def _rule(sizes_bytes: Sequence[int], threshold_mb: int) -> Buckets:
    return _lists(size_groups_by_bytes(sizes_bytes, threshold_mb))


def _lists(groups: Sequence[int]) -> Buckets:
    return [list(bucket) for bucket in buckets_of(groups)]


def _wrong_rule(
    sizes: Sequence[int], limit: float, *, before: bool = False, equal: bool = False, forget: bool = True
) -> Buckets:
    """Buckets that end before their sum gets above the limit, or at the limit already, or with a sum that goes on."""
    buckets: Buckets = [[]]
    total = 0.0
    for position, size in enumerate(sizes):
        if before and buckets[-1] and total + size > limit:
            buckets.append([])
            total = 0
        buckets[-1].append(position)
        total += size
        if not before and (total >= limit if equal else total > limit):
            buckets.append([])
            total = 0 if forget else total
    return [bucket for bucket in buckets if bucket]


def _size_note(sizes: Sequence[int], threshold_mb: int, buckets: Buckets) -> str:
    """The wrong rule that gives these buckets."""
    members = [position for bucket in buckets for position in bucket]
    if sorted(members) == sorted(sizes) != list(range(len(sizes))):
        return "A bucket holds the numbers of its gradients, 0 for the first, and not their sizes."
    if sorted(members) != list(range(len(sizes))):
        lost, twice = sorted(set(range(len(sizes))) - set(members)), len(members) > len(set(members))
        if not lost:
            return "A gradient is in two buckets." if twice else "There are no gradients with these numbers."
        note = f"Gradients {', '.join(map(str, lost[:4]))} are in no bucket."
        note += " One is in two places." if twice else ""
        last = buckets and buckets == _rule(sizes, threshold_mb)[:-1]
        return f"{note} The last bucket, which never got full, is missing." if last else note
    if any(not bucket for bucket in buckets):
        return "An empty bucket is not a message."
    return recognised([buckets], [(sizes, threshold_mb)], BUCKET_IDEAS)


BUCKET_IDEAS = (
    slip("Every gradient alone: that is what threshold 0 means.", lambda sizes, mb: [[n] for n in range(len(sizes))]),
    slip("All in one bucket, whatever the threshold.", lambda sizes, mb: [list(range(len(sizes)))]),
    slip(
        "The list is split before the gradient with which the sum gets above the threshold. The rule splits after it: "
        "that gradient is still in.",
        lambda sizes, mb: _wrong_rule(sizes, mb * MB, before=True),
    ),
    slip(
        "A sum equal to the threshold does not end a bucket: only one above it does.",
        lambda sizes, mb: _wrong_rule(sizes, mb * MB, equal=True),
    ),
    slip("The sum is not reset to 0 for the next bucket.", lambda sizes, mb: _wrong_rule(sizes, mb * MB, forget=False)),
    slip("A MB has 1024 * 1024 bytes here, not a million.", lambda sizes, mb: _wrong_rule(sizes, mb * 10**6)),
    slip("The threshold is in MB, the sizes are in bytes.", _wrong_rule),
    slip(
        "A quarter of the threshold: MindSpore's code does that, its documentation says otherwise.",
        lambda sizes, mb: _wrong_rule(sizes, mb * MB / 4),
    ),
    slip(
        "That is the rule where operators are split (semi_auto_parallel): there the size of the gradient that opens a "
        "bucket is not counted.",
        lambda sizes, mb: _lists(size_groups_by_elements([-(-size // 4) for size in sizes], mb)) if mb else None,
    ),
)


def _check_buckets(answer: Any, cases: Sequence[tuple[list[int], int, Buckets]], rule: str) -> None:
    """Raises Wrong for the first (sizes, threshold, buckets) for which the answer makes other buckets."""
    for sizes, threshold_mb, right in cases:
        value, op = ask(rule, answer, list(sizes), threshold_mb), _list_text(sizes, threshold_mb)
        form = "Lists of positions, one list per bucket, such as [[0, 1], [2]]"
        with reading(value, form, "None", "", "", None, op):
            buckets = [list(whole_numbers(bucket)) for bucket in listed(value)]
        if buckets != right:
            note = "The buckets are right, but in the wrong order: the first gradient's bucket comes first."
            if sorted(buckets) != sorted(right):
                note = _size_note(sizes, threshold_mb, buckets)
            raise Wrong(_short(buckets), f"{_short(right)}: {rule}", note, None, op)


def _list_text(sizes: Sequence[int], threshold_mb: int) -> str:
    shown = ", ".join(f"{s / MB:.4g} MB" if s >= MB // 10 else f"{s} B" for s in sizes[:8])
    return f"sizes {shown}{', ...' if len(sizes) > 8 else ''} with {threshold_mb} MB"


def _short(buckets: Buckets) -> str:
    text = str(buckets)
    return text if len(text) <= 160 else f"{text[:150]} ... ({len(buckets)} buckets)"


@lru_cache(maxsize=1)
def _sent_by_a_network() -> tuple[tuple[list[int], int, Buckets], ...]:
    """(sizes, threshold, buckets) that a compiled network sends, counted in a step on 2 simulated ranks."""
    job = _chain(WIDTHS, rows=4, seed=5)
    names = [p.name for p in job.net.trainable_params()]
    sizes = [math.prod(p.shape) * 4 for p in job.net.trainable_params()]
    cases = []
    for threshold_mb in THRESHOLDS:
        setting = {"allreduce": {"mode": "size", "config": threshold_mb}}
        plan = job.compile(devices=2, parallel_mode="data_parallel", comm_fusion=setting)
        carries = {i.out: i.carried for _, i in plan.instructions("backward") if i.kind == "start"}
        with Session(plan, job.net, job.optimizer, check_finite=False) as session:
            session.train(job.batches, 1, record=1)
            sent = [e.name for e in session.events if e.rank == 0 and e.overlapped]
        cases.append((sizes, threshold_mb, sorted(sorted(names.index(m) for m in carries[name]) for name in sent)))
    return tuple(cases)


def _chain(widths: Sequence[int], rows: int, seed: int) -> Job:
    """A network of these widths and a batch for it."""
    rng = np.random.default_rng(seed)
    x, y = (rng.normal(size=(rows, width)).astype(np.float32) for width in (widths[0], widths[-1]))
    net = ChainNet(widths)
    return Job(net, nn.MSELoss(), ((x, y),), lambda parameters: nn.SGD(parameters, 0.01))


def _buckets_by_size(answer: Any) -> Iterator[Part]:
    ask("Lists of positions, one list per bucket", answer, [MB], 1)
    for name, cases, rule in BUCKET_PARTS:
        yield judged(name, _by_the_rule, answer, cases, rule)
    yield judged("a network", _as_sent, answer)


RANDOM, SAME_RULE = f"{RANDOM_LISTS} random lists", "the same rule for every list"
BUCKET_PARTS: tuple[tuple[str, Sequence[Case], str], ...] = (
    (
        "the example",
        (([2 * MB, 3 * MB, MB, 6 * MB, MB], 4), ([3 * MB, 3 * MB, 3 * MB, 2 * MB, 1 * MB], 5)),
        "a bucket ends with the gradient that brings its sum above the threshold",
    ),
    ("threshold 0", (([MB // 4, MB // 4, MB], 0), ([7], 0)), "0 means no fusion: every gradient travels alone"),
    ("around the threshold", EDGES, "above the threshold, not at it; the last bucket may stay small"),
    (RANDOM, tuple(_random_cases(np.random.default_rng(44))), SAME_RULE),
)


def _drawn_lists(name: str, answer: Any, rng: np.random.Generator) -> None:
    cases = [(sizes, 0 if name == "threshold 0" else mb) for sizes, mb in _random_cases(rng, 20)]
    _by_the_rule(answer, cases, SAME_RULE)


def _by_the_rule(answer: Any, cases: Sequence[Case], rule: str) -> str:
    _check_buckets(answer, [(sizes, mb, _rule(sizes, mb)) for sizes, mb in cases], rule)
    return f"all buckets as the rule has them, in {len(cases)} lists"


def _as_sent(answer: Any) -> str:
    cases = _sent_by_a_network()
    _check_buckets(answer, cases, "what its compiled plan sends, counted on 2 simulated ranks")
    counts = ", ".join(f"{len(buckets)} with {threshold_mb} MB" for _, threshold_mb, buckets in cases)
    return f"messages counted on 2 simulated ranks: {counts}; yours are the same"


# ---- 04.2: fusion golf ----

EXTREME = "fuse everything, or nothing"  # of MISCONCEPTIONS
ALL_IN_ONE, EACH_ALONE = "All in one message", "Each alone"


# Each learner gets one of these lines: ms to start, ms per MB
OWN_STARTS_MS, OWN_MS_PER_MB = (0.6, 0.8, 1.2, 1.4, 1.6, 1.8), (0.12, 0.15, 0.2, 0.22, 0.28, 0.3)


def _golf(line: Link, answer: Any, /) -> Iterator[Part]:
    indices = _read_indices(answer)
    case, count = golf.paper_case(line), len(GOLF)
    groups = index_groups(count, indices)
    overlap = case.overlap(groups)
    sent = ", ".join(f"{b[0]}" if len(b) == 1 else f"{b[0]} to {b[-1]}" for b in buckets_of(groups))
    idle = [i for i in indices if i >= count - 1]
    note = f"Position {idle[0]} splits nothing: the last gradient ends the last message anyway." if idle else ""
    text = f"{indices}: {_messages(len(overlap.buckets))} with gradients {sent}"
    yield Part("an index list", True, text, note=note)

    step_s = overlap.step_s
    alone_s, one_s = case.overlap(range(count)).step_s, case.overlap([0] * count).step_s
    sizes_bytes = [g.size_bytes for g in GOLF]
    thresholds_mb = range(sum(sizes_bytes) // MB + 1)
    size_mb, by_size = best_threshold(GOLF, line, lambda mb: size_groups_by_bytes(sizes_bytes, mb), thresholds_mb)
    par_s = case.overlap(case.best_groups()).step_s
    note = _golf_note(case, indices, step_s, par_s)
    what = f"a step of {time_text(step_s)}, recomputed"
    one, alone, best = time_text(one_s), time_text(alone_s), time_text(by_size.step_s)
    rule = f"below {one}, the time of one message with everything, and {alone}, that of each alone"
    yield reached("beats one message", step_s < min(one_s, alone_s) * (1 - 1e-9), what, rule, note)
    rule = f"below {best}, the best that size can do (threshold {size_mb} MB)"
    yield reached("beats every threshold", step_s < by_size.step_s * (1 - 1e-9), what, rule, note)
    rule = f"{time_text(par_s)}: the best of all {2 ** (count - 1)} ways to split the list, found by exact search"
    yield reached("par", step_s <= par_s * (1 + 1e-9), f"{what}: {step_s / par_s:.3f} x par", rule, note)


def _shown_golf(line: Link) -> str:
    best = golf.paper_case(line).best_groups()
    return f"indices = {[bucket[-1] for bucket in buckets_of(best)[:-1]]}"


def _numbers_of(line: Link) -> str:
    return f"a message takes {1e3 * line.alpha_s:g} ms + {1e3 * MB * line.beta_s_per_byte:g} ms per MB"


def _own_line(rng: np.random.Generator) -> dict[str, Any]:
    line = Link(float(rng.choice(OWN_STARTS_MS)) * 1e-3, float(rng.choice(OWN_MS_PER_MB)) * 1e-3 / MB)
    numbers = f"{_numbers_of(line)}\nin the Fusion Lab: golf.set_line({line.alpha_s:g}, {line.beta_s_per_byte!r})"
    hints = (*GOLF_HINTS, "Follow the rule of the third hint from gradient 0 on, then try one gradient more or less.")
    return {"numbers": numbers, "grader": partial(_golf, line), "par": partial(_shown_golf, line), "hints": hints}


def _read_indices(answer: Any) -> tuple[int, ...]:
    with reading(answer, "Positions at which messages end, such as [2, 5]", "no list yet"):
        positions = [position if isinstance(position, bool) else index(position) for position in listed(answer)]
    with refusals(form="What comm_fusion takes: rising ints, none negative"):
        return check_fusion_indices("comm_fusion", "config", positions)


GOLF_HINTS = (
    "When does the link start to send, and from then on, is it ever idle?",
    "Drag a bracket in the Fusion Lab and watch the first message's start, and gaps in the lower lane.",
    "The first message should start once a gradient is ready. Each following one should take all "
    "gradients that became ready while the link was busy, so that no start-up is paid needlessly.",
)


def _messages(count: int) -> str:
    return f"{count} message{'' if count == 1 else 's'}"


def _golf_note(case: golf.Case, indices: Sequence[int], step_s: float, par_s: float) -> str:
    """What these positions are, where that is known."""
    count = len(GOLF)
    groups = index_groups(count, indices)
    if len(set(groups)) == 1:
        return Note(
            f"{ALL_IN_ONE}: it saves nine starts, and waits until backward has ended. Nothing overlaps.", EXTREME
        )
    if len(set(groups)) == count:
        text = f"{EACH_ALONE}: the link starts early, and pays ten start-ups. It soon falls behind: it is never idle."
        return Note(text, EXTREME)
    if case.overlap(index_groups(count, indices, "first_n")).step_s <= par_s * (1 + 1e-9) < step_s:
        return "Counted as 'the first n'. Here an index is the last gradient of its message, from 0: one less."
    buckets = case.overlap(groups).buckets
    if buckets[0].ready_s > GOLF[0].compute_s * 2:
        return f"The link is idle until {time_text(buckets[0].ready_s)}: a smaller first message starts earlier."
    idle = [a for a, b in pairwise(buckets) if b.start_s > a.end_s + 1e-12]
    if idle:
        return f"The link is idle after {time_text(idle[0].end_s)}, while gradients wait for the rest of their bucket."
    text = f"The link is never idle after its first message, and pays {len(buckets)} starts: which of them "
    return text + "could be saved?"


# ---- 04.3: what cannot hide ----

ALPHA_S, BETA_S_PER_BYTE = 1e-3, 0.25e-3 / MB
CLOSE = 1e-6  # relative: sums of floats in another order

# ready_s, sizes_bytes, backward_s, what one message takes
Sending = tuple[tuple[float, ...], tuple[int, ...], float, Link]


def _equal(backward_s: float, total_bytes: int, buckets: int) -> tuple[Sending, float]:
    """Equal parts of backward with equal messages, and the closed form of the time after it."""
    link = Link(ALPHA_S, BETA_S_PER_BYTE)
    ready = tuple(backward_s * (n + 1) / buckets for n in range(buckets))
    exposed_s = equal_buckets_step_s(backward_s, total_bytes, buckets, link) - backward_s
    return (ready, (total_bytes // buckets,) * buckets, backward_s, link), exposed_s


def _of_golf(indices: Sequence[int]) -> tuple[Sending, float]:
    overlap = predict_overlap(GOLF, index_groups(len(GOLF), indices), GOLF_LINE)
    ready, sizes = tuple(b.ready_s for b in overlap.buckets), tuple(b.size_bytes for b in overlap.buckets)
    return (ready, sizes, overlap.backward_s, GOLF_LINE), overlap.exposed_s


# (alpha in s, beta in s per byte) of a hop between 4 ranks: messages about as long as the backward of `_training_step`,
# and much longer
HOPS = ((2e-5, 1e-9), (1e-3, 2e-8))


@lru_cache(maxsize=1)
def _training_steps() -> tuple[tuple[Sending, float], ...]:
    """Steps on 4 simulated ranks, from their events: when messages were ready, how long they took after backward."""
    job = _chain((192, 128, 256, 96, 192, 64), rows=64, seed=9)
    fusion = {"allreduce": {"mode": "index", "config": [1, 3]}}
    plan = job.compile(devices=4, parallel_mode="data_parallel", comm_fusion=fusion)
    steps = []
    for alpha_s, beta_s_per_byte in HOPS:
        base = cluster_for(4)
        cluster = Cluster("exercise", base.device, Link(alpha_s, beta_s_per_byte), devices_per_node=4)
        with Session(plan, job.net, job.optimizer, cluster=cluster, check_finite=False) as session:
            session.train(job.batches, 1)  # the first step touches memory for the first time
            session.train(job.batches, 1, record=1)
            events = [e for e in session.events if e.phase == "backward"]
        began = min(e.start_s for e in events)
        sent = [e for e in events if e.rank == 0 and e.overlapped]
        # a message travels once the last rank has handed it over
        ready = tuple(max(e.start_s for e in events if e.overlapped and e.name == mine.name) - began for mine in sent)
        waits = [min(e.start_s for e in events if e.rank == rank and e.kind == "wait") for rank in range(4)]
        computed = max(e.end_s for e in events if e.kind == "compute" and e.end_s <= waits[e.rank]) - began
        backward_s = max(computed, *ready)  # over when the last rank has handed over its last gradient
        counted_s = sent[-1].end_s - began - backward_s
        line = all_reduce_line(4, cluster.link, cluster.device.gamma_s_per_byte)
        steps.append(((ready, tuple(e.bytes for e in sent), backward_s, line), max(0.0, counted_s)))
    return tuple(steps)


def _exposed(answer: Any) -> Iterator[Part]:
    ask("Seconds", answer, [1.0], [1], 1.0, ALPHA_S, BETA_S_PER_BYTE)
    for name, cases, rule in SENDING_PARTS:
        yield judged(name, _exposed_times, answer, cases(), rule)


# its last message ends at 21.25 ms
ALL_HIDDEN: Sending = ((0.002, 0.008, 0.02), (MB, 2 * MB, MB), 0.03, Link(ALPHA_S, BETA_S_PER_BYTE))
EQUAL = ((24, 6), (24, 3), (24, 2), (6, 3), (48, 12))  # MB in all, messages
INDICES = (range(9), [9], [4], [0, 3, 5], [0, 1, 2, 8])
SENDING_PARTS: tuple[tuple[str, Callable[[], Sequence[tuple[Sending, float]]], str], ...] = (
    ("one message", lambda: [_equal(12e-3, 24 * MB, 1)], "alpha + beta M: it is ready when backward ends"),
    ("equal messages", lambda: [_equal(12e-3, m * MB, k) for m, k in EQUAL], "T(k) - Tb by the closed form"),
    ("all hidden", lambda: [(ALL_HIDDEN, 0.0)], "0: the last message arrives before backward ends"),
    ("fusion golf", lambda: list(map(_of_golf, INDICES)), "counted message by message on golf's link"),
    ("a training step", _training_steps, "counted in the event log of a step on 4 simulated ranks"),
)


def _drawn_sending(name: str, answer: Any, rng: np.random.Generator) -> str:
    """Messages of the kind that a part is about."""
    count = 1 if name == "one message" else int(rng.integers(2, 9))
    if name == "fusion golf":
        ends = rng.permutation(len(GOLF) - 1)[:count]
        return _exposed_times(answer, [_of_golf(sorted(int(end) for end in ends))], "counted message by message")
    total_bytes = count * int(rng.integers(1, 9)) * MB
    return _exposed_times(answer, [_equal(float(rng.integers(5, 25)) * 1e-3, total_bytes, count)], "by the closed form")


def _exposed_times(answer: Any, cases: Sequence[tuple[Sending, float]], rule: str) -> str:
    for sending, want in cases:
        ready, sizes, backward_s, link = sending
        compare_number(
            answer,
            (list(ready), list(sizes), backward_s, link.alpha_s, link.beta_s_per_byte),
            want,
            EXPOSED_IDEAS,
            rule,
            ideas_case=(sending, want),
            expected=f"{time_text(want)}: {rule}",
            place=f"{_messages(len(sizes))}, backward {time_text(backward_s)}",
            form="Seconds",
            close=CLOSE,
            near=CLOSE * backward_s,
            text=lambda seconds: f"{'-' * (seconds < 0)}{time_text(abs(seconds))}",
        )

    return f"{', '.join(time_text(want) for _, want in cases)}: {rule}"


def _times(sending: Sending) -> list[float]:
    return [sending[3].time_s(size) for size in sending[1]]


def _last_end(sending: Sending, times: Sequence[float]) -> float:
    """When the last message ends, if they take these times, one after the other."""
    end = 0.0
    for ready, time_s in zip(sending[0], times, strict=True):
        end = max(end, ready) + time_s
    return end


def _sending_alone(sending: Sending, want: float) -> float | None:
    # where ranks hand over late a message may end long after all the sending would have taken
    all_s = math.fsum(_times(sending))
    return all_s if want <= all_s else None


def _own_lines(sending: Sending, want: float) -> float:
    ends = (ready + time_s for ready, time_s in zip(sending[0], _times(sending), strict=True))
    return max(0.0, *ends, sending[2]) - sending[2]


def _no_start(sending: Sending, want: float) -> float:
    times = [sending[3].beta_s_per_byte * size for size in sending[1]]
    return max(0.0, _last_end(sending, times) - sending[2])


EXPOSED_IDEAS = (  # of what is sent, and the seconds that are exposed
    slip(
        "Negative: backward continues after the last message. Then nothing is exposed: 0.",
        lambda sending, want: _last_end(sending, _times(sending)) - sending[2] if want == 0 else None,
    ),
    slip("That is all the sending. What is sent while backward computes is hidden.", _sending_alone),
    slip(
        "That is when the last message ends; exposed is only what comes after backward.",
        lambda sending, want: _last_end(sending, _times(sending)),
    ),
    slip(
        "All the sending less all of backward: but a message cannot start before its gradients are ready.",
        lambda sending, want: max(0.0, math.fsum(_times(sending)) - sending[2]),
    ),
    slip("As if every message had its own link: one is sent at a time, and the next one waits.", _own_lines),
    slip(
        "Only the last message: others may still be on the link when it is ready.",
        lambda sending, want: _times(sending)[-1],
    ),
    slip("The start-ups are missing: alpha is paid for every message.", _no_start),
    slip("That is what is hidden; exposed is the rest.", lambda sending, want: math.fsum(_times(sending)) - want),
)


EXERCISES = (
    Exercise(
        "04.1",
        "buckets by size",
        (("the example", 1), ("threshold 0", 1), ("around the threshold", 1), (RANDOM, 2), ("a network", 1)),
        (
            "When do you know that a bucket is full: before you put a gradient in, or afterwards?",
            "Go through 2, 3, 1, 6 and 1 MB with threshold 4 by hand: what is the sum after each gradient?",
            "Put the gradient in, add its size, then compare. If the sum is above the threshold, the bucket ends and "
            "the sum begins at 0 again.",
            "With threshold 0 return one list per position. Otherwise go through the sizes with a current bucket and "
            "its sum: append the position, add the size, and if the sum is now above threshold times 1024 * 1024, "
            "store the bucket and begin an empty one with sum 0. At the end store the last bucket, unless it is empty.",
        ),
        _buckets_by_size,
        drawn={
            name: partial(_drawn_lists, name) for name in ("threshold 0", "around the threshold", RANDOM, "a network")
        },
        start='''\
def buckets_by_size(sizes_bytes, threshold_mb):
    """Returns the positions of each bucket, such as [[0, 1], [2]]."""
    return [[position] for position in range(len(sizes_bytes))]


check("04.1", buckets_by_size)
''',
    ),
    Exercise(
        "04.2",
        "fusion golf",
        (("an index list", 1), ("beats one message", 1), ("beats every threshold", 1), ("par", 2)),
        (
            *GOLF_HINTS,
            "Send gradient 0 alone. While it travels, 1 to 3 become ready: send them together. Then 4 and 5, and the "
            "rest in one message. An index is the last gradient of its message.",
        ),
        partial(_golf, GOLF_LINE),
        partial(_shown_golf, GOLF_LINE),
        "beats one message",
        numbers=_numbers_of(GOLF_LINE),
        own=_own_line,
        ideas=(
            Idea(EXTREME, ALL_IN_ONE, [len(GOLF) - 1], "par"),
            Idea(EXTREME, EACH_ALONE, list(range(len(GOLF) - 1)), "par"),
        ),
        start="""\
indices = [8]

check("04.2", indices)
""",
    ),
    Exercise(
        "04.3",
        "what cannot be hidden",
        tuple((name, 1) for name, *_ in SENDING_PARTS),
        (
            "A message is ready. What else must be true before it can travel?",
            "Draw the two lanes of three messages on paper: which two times decide when a message starts?",
            "A message starts when it is ready and the link is free (the later of both). It ends alpha + beta m later.",
            "Keep one number, the time at which the link is free again, 0 at first. For each message take the later of "
            "it and the message's ready time, and add alpha + beta times its size. The answer is that number at the "
            "end minus the end of backward, or 0 if that is negative.",
        ),
        _exposed,
        drawn={name: partial(_drawn_sending, name) for name in ("one message", "equal messages", "fusion golf")},
        start="""\
def exposed_s(ready_s, sizes_bytes, backward_s, alpha_s, beta_s_per_byte):
    return sum(alpha_s + beta_s_per_byte * size for size in sizes_bytes)


check("04.3", exposed_s)
""",
    ),
)
