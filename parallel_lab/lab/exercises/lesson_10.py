"""Lesson 10, memory for time: a budget for recomputing, and the bandwidth from which on copying is cheaper."""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import numpy as np

from ...base.cluster import Link, get_cluster
from ...base.errors import shorten
from ...base.units import bytes_text, time_text
from ...cost.recompute import Choice, choose_recompute, predict_choice
from ...cost.time import step_time_s
from ...run.communicator import Request
from ..recompute.chain import LAYERS, compiled, count
from .book import Exercise
from .ideas import Idea, recognised, slip
from .reading import read_dict, reading, whole_numbers
from .running import ask, read_number, run_programs
from .verdict import Part, Wrong, judged, reached

# ---- 10.1: a budget for recomputing ----

Caps = tuple[int, int, int]
CAPS: Caps = (30, 40, 50)
PARS = ("par, tight", "par, middle", "par, wide")
OWN_CAPS = ((24, 28, 32), (36, 40, 44, 48), (52, 56, 60))  # each learner has one from each tuple


@lru_cache(maxsize=64)
def par_of(cap: int) -> Choice:
    """The least work done twice under the cap: exact, by dynamic programming over the layers."""
    return choose_recompute(LAYERS, cap)


def _read_layers(numbers: Any, cap: int) -> tuple[bool, ...]:
    form = f"for the cap {cap}, the numbers of the layers that are recomputed, such as [0, 3]: from 0 to "
    form += f"{len(LAYERS) - 1}"
    with reading(numbers, form, "nothing"):
        layers = whole_numbers(numbers, flags=False)
    outside = [n for n in layers if not 0 <= n < len(LAYERS)]
    if outside:
        raise Wrong(f"layer {outside[0]}", form=form)
    return tuple(n in layers for n in range(len(LAYERS)))


def _budget(caps: Caps, answer: Any, /) -> Iterator[Part]:
    form = f"{{{', '.join(f'{cap}: [...]' for cap in caps)}}}: the layers that are recomputed, for every cap"
    read_dict(answer, form, "no layers yet")
    choices = {cap: _read_layers(answer.get(cap), cap) for cap in caps}
    texts = [f"{cap}: {sum(again)} of {len(LAYERS)} layers" for cap, again in choices.items()]
    yield Part("layers", True, "; ".join(texts))
    fits = judged("fits", _fits, choices)
    yield fits
    same = judged("same bits", _same_bits, choices)
    yield same
    for name, (cap, again) in zip(PARS, choices.items(), strict=True):
        if same.passed and count(again).peak <= cap:
            yield judged(name, _at_par, cap, again)


def _fits(choices: Mapping[int, tuple[bool, ...]]) -> str:
    peaks = []
    for cap, again in choices.items():
        peak = count(again).peak
        if peak > cap:
            note = "Nothing is recomputed yet." if not any(again) else _full_note(again)
            raise Wrong(f"{peak} results at the fullest moment, counted on a simulated rank", f"at most {cap}", note)
        peaks.append(f"{peak} of {cap}")
    return f"results at the fullest moment, counted on a simulated rank: {', '.join(peaks)}"


def _full_note(again: Sequence[bool]) -> str:
    """Where the fullest moment is."""
    live = [layer.input_bytes if on else layer.inside_bytes for layer, on in zip(LAYERS, again, strict=True)]
    full = [sum(live[:n]) + LAYERS[n].inside_bytes for n in range(len(LAYERS))]
    at = max(range(len(LAYERS)), key=full.__getitem__)
    text = f"The fullest moment is the backward of layer {at}: {LAYERS[at].inside_bytes} results inside it, and "
    return text + f"{sum(live[:at])} of the layers before it."


def _same_bits(choices: Mapping[int, tuple[bool, ...]]) -> str:
    wrong = [cap for cap, again in choices.items() if not count(again).equal]
    if wrong:
        raise Wrong(f"other numbers with the choice for {wrong[0]}", "the bits of a training that keeps everything")
    return "losses and parameters of each, bit for bit those of a training that keeps everything"


def _at_par(cap: int, again: tuple[bool, ...]) -> str:
    extra, par = count(again).extra, par_of(cap)
    text = f"{extra} products recomputed, counted: {extra / par.extra_s:.3f} x par"
    if extra > par.extra_s:
        left = cap - count(again).peak
        note = f"{left} results are free at the fullest moment." if left else _swap_note(again, cap)
        raise Wrong(text, f"{par.extra_s:g}: no choice under {cap} makes fewer, by exact search", note)
    return text


def _swap_note(again: tuple[bool, ...], cap: int) -> str:
    """One layer for another that saves work, where there is such a pair."""
    on, off = ([n for n, is_on in enumerate(again) if is_on == want] for want in (True, False))
    for out in on:
        for other in (*off, -1):
            changed = tuple((a and n != out) or n == other for n, a in enumerate(again))
            choice = predict_choice(LAYERS, changed)
            if choice.peak_bytes <= cap and choice.extra_s < predict_choice(LAYERS, again).extra_s:
                text = "One exchange is enough to save work: a layer late in the chain needs less room than an early "
                return text + "one."
    return "No exchange of a single layer saves work: several must change together."


def _pars(caps: Caps) -> str:
    rows = []
    for cap in caps:
        layers = [n for n, on in enumerate(par_of(cap).recompute) if on]
        rows.append(f"{cap}: {layers}, {par_of(cap).extra_s:g} products")
    return "\n".join(rows)


def _numbers_of(caps: Caps) -> str:
    return f"caps of {caps[0]}, {caps[1]} and {caps[2]} results"


def _own_caps(rng: np.random.Generator) -> dict[str, Any]:
    tight, middle, wide = (int(rng.choice(each)) for each in OWN_CAPS)
    caps = tight, middle, wide
    grader, par = partial(_budget, caps), partial(_pars, caps)
    return {"numbers": _numbers_of(caps), "grader": grader, "par": par, "hints": (*BUDGET_HINTS, LAST_HINT)}


# The first three hints of 10.1, and a last one for any caps
BUDGET_HINTS = (
    "When a layer runs backward, which results of the layers before it and of those after it are in memory?",
    "Recompute everything in the Recompute Lab, then keep the first layer, or the last: which one costs more "
    "at the fullest moment?",
    "A layer keeps its results from its forward to its backward, so those of an early layer take room for most of "
    "the step. A late layer needs all its room when its backward comes, recomputed or not.",
)
LAST_HINT = (
    "Small layers free most for each product, and early ones take room for longest: recompute those first, "
    "from layer 0 on. When the next one would be more than is needed, try 8, 9 and 10 in its place."
)


# ---- 10.2: where copying breaks even ----

CASES = (((64_000_000,), 10e-6, 5e-3), ((1 << 20,), 0.0, 1e-3), ((250_000,), 50e-6, 300e-6))
SEVERAL = (
    ((64_000_000, 64_000_000), 10e-6, 10e-3),
    ((1_000, 20_000, 300_000), 5e-6, 100e-6),
    ((1 << 22,) * 24, 10e-6, 20e-3),
)
NEVER = (((1_000,), 1e-3, 1e-3), ((8, 8, 8), 10e-6, 25e-6), ((1 << 30,) * 2, 2e-3, 3e-3))
CLOSE = 1e-9


def _breaks_even(sizes: Sequence[int], alpha_s: float, time_s: float) -> float | None:
    left = time_s - len(sizes) * alpha_s
    return sum(sizes) / left if left > 0 else None


def _check_bandwidth(answer: Any, sizes: Sequence[int], alpha_s: float, time_s: float, rule: str) -> float:
    """What the answer gives. Raises Wrong where that is another bandwidth than the one that breaks even."""
    right = _breaks_even(sizes, alpha_s, time_s)
    case = f"{len(sizes)} cop{'y' if len(sizes) == 1 else 'ies'} of {bytes_text(sum(sizes))} in all, alpha "
    case += f"{time_text(alpha_s)}, in {time_text(time_s)}"
    value = ask(rule, answer, list(sizes), alpha_s, time_s)
    number = read_number(value)
    if right is None:
        if value is None or (number is not None and math.isinf(number)):
            return math.inf
        raise Wrong(shorten(value), f"None: {rule}", "The start-ups alone use up all of the time.", None, case)
    expected = f"{right:.6g} bytes per second: {rule}"
    if number is None:
        raise Wrong(shorten(value), expected, "A function returns nothing without a return.", None, case)
    if not math.isclose(number, right, rel_tol=CLOSE):
        note = recognised([number], [(sizes, alpha_s, time_s)], BANDWIDTH_IDEAS)
        raise Wrong(f"{number:.6g} bytes per second", expected, note, None, case)
    return number


def _over(size_bytes: float, time_s: float) -> float | None:
    return size_bytes / time_s if time_s > 0 else None


BANDWIDTH_IDEAS = (
    slip(
        "That is beta, the seconds per byte: the bandwidth is one over it.",
        lambda sizes, alpha, time: 1 / _breaks_even(sizes, alpha, time),
    ),
    slip("The start-ups are missing: every copy pays alpha.", lambda sizes, alpha, time: _over(sum(sizes), time)),
    slip(
        "Alpha is paid once for every copy, not once for all.",
        lambda sizes, alpha, time: _over(sum(sizes), time - alpha),
    ),
    slip(
        "Only the first copy: all of them have to go over the line.",
        lambda sizes, alpha, time: _over(sizes[0], time - alpha),
    ),
    slip(
        "Alpha uses up time: subtract it, do not add it.",
        lambda sizes, alpha, time: _over(sum(sizes), time + len(sizes) * alpha),
    ),
    slip(
        "Those are bits: a byte has eight.", lambda sizes, alpha, time: _over(8 * sum(sizes), time - len(sizes) * alpha)
    ),
)


OVER_WHAT_IS_LEFT = "the bytes, over the time that the start-ups leave"
COPIES = (
    ("one copy", CASES, OVER_WHAT_IS_LEFT),
    ("several copies", SEVERAL, OVER_WHAT_IS_LEFT),
    ("too little time", NEVER, "no bandwidth is enough where the start-ups take all of the time"),
)


def _bandwidth(answer: Any) -> Iterator[Part]:
    ask(OVER_WHAT_IS_LEFT, answer, [1_000], 0.0, 1.0)
    for name, cases, rule in COPIES:
        yield judged(name, _by_formula, answer, cases, rule)
    yield judged("a training step", _in_a_step, answer)


def _drawn_copies(name: str, answer: Any, rng: np.random.Generator) -> None:
    count = 1 if name == "one copy" else int(rng.integers(2, 9))
    sizes, alpha_s = [int(size) for size in rng.integers(10**3, 10**8, count)], int(rng.integers(1, 60)) * 1e-6
    factor = rng.uniform(0.2, 0.9) if name == "too little time" else rng.uniform(2, 500)
    rule = "the bytes, over what the start-ups leave"
    _check_bandwidth(answer, sizes, alpha_s, float(count * alpha_s * factor), rule)


def _by_formula(answer: Any, cases: Sequence[tuple[tuple[int, ...], float, float]], rule: str) -> str:
    for case in cases:
        _check_bandwidth(answer, *case, rule)
    return f"{len(cases)} cases: as by formula"


def _in_a_step(answer: Any) -> str:
    """At the answer's bandwidth a step that copies takes as long as one that recomputes, on the engine's clock."""
    sizes, cluster, extra_s = _offloaded()
    alpha_s = cluster.known_host.link.alpha_s
    bandwidth = _check_bandwidth(answer, sizes, alpha_s, extra_s, "what copies and recomputing cost")
    link = Link(alpha_s, 1 / bandwidth)
    there = replace(cluster, host=replace(cluster.known_host, link=link))
    copying = step_time_s(compiled((False,) * len(LAYERS), memory_offload=True)[0], there)
    again = step_time_s(compiled((True,) * len(LAYERS))[0], there)
    if not math.isclose(copying.total_s, again.total_s, rel_tol=1e-6):
        raise Wrong(f"a step of {time_text(copying.total_s)}", f"{time_text(again.total_s)}, that of recomputing")
    return f"{len(sizes)} copies at {bandwidth / 1e9:.3g} GB/s: {time_text(copying.total_s)}, as long as recomputing"


@lru_cache(maxsize=1)
def _offloaded() -> tuple[tuple[int, ...], Any, float]:
    """The chain's copies both ways, a cluster, and the seconds that recomputing every layer takes there."""
    cluster = get_cluster("gpu_node")
    slow = replace(cluster.known_host, link=Link(1e-7, cluster.known_host.link.beta_s_per_byte))
    cluster = replace(cluster, host=slow)
    plain, away = (compiled((False,) * len(LAYERS), memory_offload=on)[0] for on in (False, True))
    sizes = tuple(copy["bytes"] for copy in away.to_dict(rank=0)["copies"])
    extra_s = step_time_s(compiled((True,) * len(LAYERS))[0], cluster).total_s - step_time_s(plain, cluster).total_s
    return sizes, cluster, extra_s


# ---- 10.3: from four devices to eight ----

OLD, NEW = 4, 8  # devices that hold the tensor before and after
ROWS_OF_SLICE, COLUMNS = 2, 3  # of a new slice


def held_by(device: int) -> tuple[int, ...]:
    """The new slices whose rows a device has already: the first four devices hold two each, the others none."""
    each = NEW // OLD
    return tuple(range(each * device, each * (device + 1))) if device < OLD else ()


def fewest_moved() -> tuple[int, tuple[int, ...]]:
    """(slices that must move, which slice each device takes), exact: the best over all ways to hand out the slices, by
    the set of those that the devices so far have taken.
    """
    best: dict[int, tuple[int, tuple[int, ...]]] = {0: (0, ())}
    for device in range(NEW):
        further: dict[int, tuple[int, tuple[int, ...]]] = {}
        for taken, (moved, labels) in best.items():
            for part in range(NEW):
                if not taken >> part & 1:
                    way = moved + (part not in held_by(device)), (*labels, part)
                    further[taken | 1 << part] = min(way, further.get(taken | 1 << part, way))
        best = further
    return best[(1 << NEW) - 1]


def _hand_over(rank: int, labels: tuple[int, ...], rows: Any) -> Generator[Request, Any, Any]:
    """A device sends what others take of its rows, slice by slice, and receives what it takes itself."""
    mine = {part: rows[n * ROWS_OF_SLICE :][:ROWS_OF_SLICE] for n, part in enumerate(held_by(rank))}
    for part, value in mine.items():
        taker = labels.index(part)
        if taker != rank:
            yield Request("send", (rank, taker), value)
    holder = labels[rank] // (NEW // OLD)
    if holder != rank:
        return (yield Request("recv", (holder, rank)))
    return mine[labels[rank]]


def _read_labels(answer: Any) -> tuple[int, ...]:
    form = f"{NEW} different numbers from 0 to {NEW - 1}: the slice that each device takes, device 0 first"
    with reading(answer, form, "no list yet"):
        labels = whole_numbers(answer, NEW + 1, flags=False)
    if sorted(labels) != list(range(NEW)):
        twice = next((n for n in labels if labels.count(n) > 1), None)
        raise Wrong(f"{labels}" + (f": two devices take slice {twice}" if twice is not None else ""), form=form)
    return labels


def _reshard(answer: Any) -> Iterator[Part]:
    labels = _read_labels(answer)
    yield Part("every slice once", True, f"devices 0 to {NEW - 1} take {', '.join(map(str, labels))}")
    tensor = np.arange(NEW * ROWS_OF_SLICE * COLUMNS, dtype=np.float32).reshape(-1, COLUMNS)
    held = [*np.split(tensor, OLD), *[None] * (NEW - OLD)]
    run = run_programs(lambda rank, ranks, rows: _hand_over(rank, labels, rows), NEW, held)
    assert run.fault is None, run.fault
    slices = np.split(tensor, NEW)
    same = all(np.array_equal(rows, slices[part]) for rows, part in zip(run.results, labels, strict=True))
    yield Part("same tensor", same, f"{NEW} slices after {len(run.messages)} messages, compared with the whole tensor")
    moved = sum(run.sent_bytes(rank) for rank in range(NEW)) / tensor.nbytes
    in_place, least = 1 - 1 / NEW, fewest_moved()[0] / NEW
    text = f"{moved:g} of the tensor's bytes moved, counted in {len(run.messages)} messages"
    note = _moved_note(labels)
    yield reached("fewer bytes", moved < in_place, text, f"below {in_place:g}", note)
    rule = f"{least:g}: no other way to hand the slices out moves less, by exact search"
    yield reached("par", moved <= least, f"{text}: {moved / least:.3f} x par", rule, note)


IN_ORDER = Idea(
    "rank i holds block i",
    "Your 0.875 is slice i on device i: only device 0 keeps what it has. Nothing says that device i must hold slice i; "
    "the order of the devices is yours to choose.",
    list(range(NEW)),
    "par",
)


def _moved_note(labels: tuple[int, ...]) -> str:
    if list(labels) == IN_ORDER.answer:
        return IN_ORDER.told
    idle = [d for d in range(OLD) if labels[d] not in held_by(d)]
    if not idle:
        return ""
    return f"Device {idle[0]} has the rows of slices {' and '.join(map(str, held_by(idle[0])))}, but takes another one."


def _par_labels() -> str:
    moved, labels = fewest_moved()
    return f"{list(labels)}: {moved / NEW:g} of the bytes moved"


EXERCISES = (
    Exercise(
        "10.1",
        "a budget for recomputing",
        (("layers", 1), ("fits", 1), ("same bits", 1), (PARS[0], 2), (PARS[1], 1), (PARS[2], 1)),
        (
            *BUDGET_HINTS,
            "Small layers free most for each product, and early ones take room for longest: recompute "
            "those first. Under 50 recompute the first four layers, and 8 and 10. Under 40 the first five, and 8 and "
            "9. Under 30 all but 6, 7 and 11.",
        ),
        partial(_budget, CAPS),
        partial(_pars, CAPS),
        "fits",
        numbers=_numbers_of(CAPS),
        own=_own_caps,
        start="""\
layers = {30: [], 40: [], 50: []}

check("10.1", layers)
""",
    ),
    Exercise(
        "10.2",
        "where copying breaks even",
        (("one copy", 1), ("several copies", 1), ("too little time", 1), ("a training step", 2)),
        (
            "What does the time of one copy consist of, and which part of it depends on the bandwidth?",
            "Write down the time of all copies, one after the other, and set it equal to the time available.",
            "The copies take alpha once each, and all their bytes over the bandwidth. Solve for the bandwidth.",
            "Subtract alpha times the number of copies from the time. If nothing is left, no bandwidth is enough: "
            "return None. Otherwise divide the sum of the sizes by what is left.",
        ),
        _bandwidth,
        drawn={name: partial(_drawn_copies, name) for name, *_ in COPIES},
        start="""\
def bandwidth(sizes_bytes, alpha_s, time_s):
    return sum(sizes_bytes) / time_s


check("10.2", bandwidth)
""",
    ),
    Exercise(
        "10.3",
        "from four devices to eight",
        (("every slice once", 1), ("same tensor", 1), ("fewer bytes", 1), ("par", 2)),
        (
            "Which devices hold something of the tensor already, and which slice could each of them keep?",
            "Write down the two slices whose rows each of the first four devices has.",
            "A device that keeps one of its two slices sends the other one away. Four slices must go to devices that "
            "hold nothing.",
            "Let the first four devices keep the even slices, 0, 2, 4 and 6, and the other four take the odd ones, in "
            "any order: half of the bytes stay where they are.",
        ),
        _reshard,
        _par_labels,
        "fewer bytes",
        start="""\
labels = None

check("10.3", labels)
""",
        ideas=(IN_ORDER,),
    ),
)
