"""Lesson 09, pipelines: the bubble's formula, 1F1B under a cap by hand, backward in two halves."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np

from ...base.errors import ArgumentError, shorten
from ...cost.schedules import Found, Schedule, Work, best_schedule, make_schedule, schedule_names
from ...cost.schedules.naming import find
from ...cost.schedules.order import loop
from ..pipeline.model import PipelineLab
from ..pipeline.puzzles import Puzzle, puzzles_of, recognised
from ..pipeline.settings import delays
from .book import Exercise
from .ideas import compare_number, slip
from .reading import read_dict
from .running import ask
from .schedules_by_hand import read_schedule, train_alone, train_by
from .verdict import Part, Wrong, judged, reached

# ---- 09.1: the bubble ----

RUNS = ((4, 4), (4, 8), (4, 12))  # the three of the notebook: stages, micro-batches
SIZES = tuple((p, m) for p in (1, 2, 3, 5, 8) for m in (1, 2, 7, 16, 40))
CHUNKED = ((2, 4, 2), (4, 8, 2), (4, 8, 4), (3, 6, 3), (8, 16, 2))  # with chunks
TIMES = ((1, 1), (1, 2), (3, 5))  # forward and whole backward of a part

FRACTION = "A number from 0 to 1"


BUBBLE_IDEAS = (  # of p stages, m micro-batches, v parts on each stage
    slip(
        "That is idle time over work. The question is its fraction of the whole step, work and idle time together.",
        lambda p, m, v: (p - 1) / (v * m),
    ),
    slip("That is in per cent.", lambda p, m, v: 100 * (p - 1) / (v * m + p - 1)),
    slip("That is the fraction in which the rank works.", lambda p, m, v: 1 - (p - 1) / (v * m + p - 1)),
    slip(
        "With one part on each stage that is right. With several, a rank waits for smaller parts.",
        lambda p, m, v: (p - 1) / (m + p - 1),
    ),
    slip("The first stage waits for p - 1 others, not for p.", lambda p, m, v: p / (v * m + p)),
    slip(
        "The step is one unit shorter than that: after the first micro-batch there are m - 1 more.",
        lambda p, m, v: (p - 1) / (v * m + p),
    ),
    slip(
        "Only the wait at the beginning; there is one at the end, too: count the work of both directions.",
        lambda p, m, v: (p - 1) / (2 * v * m + p - 1),
    ),
    slip("That is the idle time itself. Divide it by the length of the step.", lambda p, m, v: 2 * (p - 1)),
    slip(
        "The wait is counted in F and B here, the step in pairs of them: count both alike.",
        lambda p, m, v: 2 * (p - 1) / (v * m + p - 1),
    ),
    *(
        slip(f"With more parts a rank waits {how}: what it waits for is a part, 1/v as long as a stage.", answer)
        for how, answer in (
            ("not longer, but shorter", lambda p, m, v: v * (p - 1) / (m + v * (p - 1))),
            ("for as many others as before", lambda p, m, v: (p * v - 1) / (m + p * v - 1)),
        )
    ),
)
BUBBLE_PARTS = (  # name, schedule, (stages, micro-batches, parts on each stage), times, what a right answer shows
    ("three runs", "gpipe", [(*run, 1) for run in RUNS], TIMES[:1], "GPipe on 4 stages with {idle}"),
    (
        "other sizes",
        "gpipe",
        [(*size, 1) for size in SIZES],
        TIMES,
        "{count} sizes, each with backward as long as forward, twice and 5/3 as long: the same fraction",
    ),
    ("1F1B", "1f1b", [(*size, 1) for size in SIZES], TIMES[1:2], "{count} sizes: 1F1B waits exactly as long as GPipe"),
    ("chunks", "interleaved", CHUNKED, TIMES[1:2], "{count} sizes with 2, 3 and 4 parts on each stage"),
)


def _bubble(answer: Any) -> Iterator[Part]:
    ask(FRACTION, answer, 2, 2, 1)
    for name, *part in BUBBLE_PARTS:
        yield judged(name, _bubbles, answer, *part)


def _bubbles(answer: Any, schedule: str, sizes: Any, times: Any, passed: str) -> str:
    runs = []
    for p, m, v in sizes:
        for forward, backward in times:
            timing = make_schedule(schedule, p, m, v).clock(forward, backward, 0)
            chunks = f", {v} parts on each" if v > 1 else ""
            what = f"{schedule}: {p} stage{'s' if p > 1 else ''}{chunks}, {m} micro-batch{'es' if m > 1 else ''}"
            right, rule = timing.rate(), "the idle fraction of a rank's step, from 0 to 1"
            expected = f"{right:.6g}: the clock counts {timing.bubble:g} idle of {timing.makespan:g}"
            how = {"expected": expected, "place": what, "form": FRACTION, "close": 1e-6, "near": 1e-9}
            compare_number(answer, (p, m, v), right, BUBBLE_IDEAS, rule, **how)
            runs.append(f"{m} micro-batches: {right:.3f}")
    return passed.format(count=len(sizes), idle=", ".join(runs))


def _drawn_sizes(name: str, answer: Any, rng: np.random.Generator) -> None:
    """Stages, micro-batches and chunks of the kind that a part is about."""
    p, m, v = (int(n) for n in rng.integers((2, 2, 2), (7, 12, 5)))
    schedule = {"1F1B": "1f1b", "chunks": "interleaved"}.get(name, "gpipe")
    m, v = (p * (1 + m % 3), v) if name == "chunks" else (m, 1)  # in rounds of as many micro-batches as stages
    _bubbles(answer, schedule, [(p, m, v)], TIMES[1:2], "")


# ---- 09.2 and 09.3: schedules by hand ----

FUSED = (1, 1, 0)  # forward, backward with its weight gradients: of two parts on each rank
BONUS = "two parts on each rank (bonus)"
TRAINED_STEPS = 2


@dataclass(frozen=True)
class Sizes:
    """What the puzzles are about: ranks, and micro-batches. The rest is in the tables of `pipeline/puzzles.py`."""

    stages: int
    micro_batches: int

    def puzzles(self, number: str) -> tuple[Puzzle, ...]:
        """That of 09.2, or both of 09.3, the one with less memory first."""
        return puzzles_of(number, self.stages, self.micro_batches)

    @property
    def two_parts(self) -> Sizes:
        """Sizes of the schedule with two parts on each rank: it goes in rounds of as many micro-batches as ranks."""
        return Sizes(self.stages, 2 * self.stages)

    @property
    def two_parts_cap(self) -> int:
        """Interleaved 1F1B's own peak on its first rank."""
        return max(make_schedule("interleaved", self.stages, self.two_parts.micro_batches, 2).peaks)


SIZES_BY_HAND = Sizes(4, 8)
# each learner has one of these: stages, and their numbers of micro-batches. Those that once were others (5 of them)
# stand twice, so that everybody else keeps theirs (6 ranks in 09.3: no proof)
OWN_BY_HAND = {3: (6, 6, 7, 8, 10, 12, 14), 4: (6, 6, 7, 10, 12, 14), 6: (7, 8, 10, 12)}
OWN_DIVIDED = {3: (6, 6, 7, 8, 10, 12), 4: (7, 10, 12, 14, 12, 14)}


@lru_cache(maxsize=8)
def _two_parts_par(sizes: Sizes) -> Found:
    """The best schedule with two parts on each rank, by exact search, which proves that none is shorter."""
    work = Work.on(sizes.stages, 2 * sizes.stages, sizes.two_parts_cap, chunks=2, times=FUSED, split=False)
    return best_schedule(work)


def _with_a_name(puzzle: Puzzle) -> dict[str, float]:
    """The steps of the schedules with a name that can be made here, and fit."""
    steps = {}
    for name in schedule_names():
        if find(name).chunks in (None, 1) and not find(name).allowed(puzzle.stages, puzzle.micro_batches, 1):
            known = make_schedule(name, puzzle.stages, puzzle.micro_batches)
            fits = known.splits_backward == puzzle.divided and known.holds == loop(puzzle.stages, 1)
            if fits and not known.check(puzzle.cap):
                steps[name] = puzzle.length(known)
    return steps


def _legal(sizes: Sizes, answer: Any, chunks: int, split: bool) -> tuple[Schedule, str]:
    """The schedule of an answer, and a line on it. Raises Wrong with the checker's reason."""
    stages, micro_batches = sizes.stages, sizes.micro_batches
    rule = f"{stages} ranks, {micro_batches} micro-batches: every F and B" + (" and W" if split else "")
    drawn = read_schedule(answer, stages, stages * chunks, micro_batches, rule)
    kinds = {a.kind for lane in drawn.ranks for a in lane}
    if drawn.splits_backward != split:
        note = "Here B makes the gradients of the inputs only: W, those of the weights, is an action of its own."
        other = "Here B is the whole backward: there is no W."
        raise Wrong(
            f"actions of the kinds {', '.join(sorted(kinds)) or 'none'}", rule, note if split else other, form=rule
        )
    faults = drawn.check()
    if faults:
        more = f" ({len(faults)} faults in all)" if len(faults) > 1 else ""
        rank = faults[0].rank if faults[0].rank >= 0 else None
        raise Wrong(f"{faults[0].text}{more}", rule, _legal_note(faults[0].kind), rank, faults[0].action)
    count = sum(map(len, drawn.ranks))
    return drawn, f"{count} actions in an order that can run"


def _legal_note(kind: str) -> str:
    return {
        "input": "F of a stage comes before its B, and B before W, for every micro-batch.",
        "deadlock": "Every rank in the circle waits for another one: what could one of them do first?",
        "never": "",
        "memory": "",
    }.get(kind, "")


def _fits(drawn: Schedule, cap: int) -> str:
    faults = drawn.check(cap)
    if faults:
        frees = "W" if drawn.splits_backward else "B"
        note = f"From its F to its {frees} a micro-batch's activations are kept."
        raise Wrong(faults[0].text, f"at most {cap} on every rank", note, faults[0].rank, faults[0].action)
    return (
        f"activations of at most {', '.join(map(str, drawn.peaks))} micro-batches on ranks 0 to {len(drawn.ranks) - 1}"
    )


def _same_bits(drawn: Schedule) -> str:
    """Train by the schedule on simulated ranks, and on one device."""
    losses, parameters = train_by(drawn, TRAINED_STEPS)
    right, alone = train_alone(drawn.parts, drawn.micro_batches, TRAINED_STEPS)
    wrong = [name for name, value in alone.items() if parameters[name].tobytes() != value.tobytes()]
    if losses != right or wrong:
        text = f"losses {losses}" if losses != right else f"{wrong[0]} is different"
        raise Wrong(text, f"losses {right} and the parameters of one device, bit for bit")
    text = f"losses and {len(alone)} parameters as on one device, bit for bit"
    return f"trained for {TRAINED_STEPS} steps on {len(drawn.ranks)} simulated ranks: {text}"


def _at_par(drawn: Schedule, puzzle: Puzzle) -> str:
    length = puzzle.length(drawn)
    text = f"a step of {length:g}, recomputed: {length / puzzle.par:.3f} x par"
    rule = f"{puzzle.par:g}: none is shorter under the cap, proved by exact search"
    if length > puzzle.par * (1 + 1e-9):
        note = f"{recognised(drawn)} {_slow_note(drawn, puzzle)}".strip()
        raise Wrong(text, rule, note)
    return text


def _slow_note(drawn: Schedule, puzzle: Puzzle | None = None) -> str:
    """The longest gap in a lane; without a puzzle, of two parts on each rank."""
    timing = puzzle.timing(drawn) if puzzle else drawn.clock(*FUSED)
    gaps = []
    for rank, (starts, ends) in enumerate(zip(timing.starts, timing.ends, strict=True)):
        for at in range(1, len(starts)):
            gaps.append((starts[at] - ends[at - 1], -rank, at))
    longest, rank, at = max(gaps, default=(0.0, 0, 0))
    if longest <= 0:
        return "No rank waits once it has begun: begin earlier, or do the last actions sooner."
    rank = -rank
    action = drawn.ranks[rank][at]
    needs = [f"{k}{kind}{n}" for k, kind, n in drawn.needs(action) if drawn.where[k, kind, n] != rank]
    waits = f"; it waits for {needs[0]} of rank {drawn.where[drawn.needs(action)[0]]}" if needs else ""
    return f"The longest gap: rank {rank} does nothing for {longest:g} before {action}{waits}."


def _runs(drawn: Schedule, text: str, cap: int) -> Generator[Part, None, bool]:
    """Parts on a legal schedule: whether it keeps to the cap and trains as one device does; and whether both hold."""
    yield Part("legal", True, text)
    fits = judged("fits", _fits, drawn, cap)
    yield fits
    same = judged("same bits", _same_bits, drawn)
    yield same
    return fits.passed is True and same.passed is True


def _by_hand(sizes: Sizes, answer: Any, /, *, two_parts: Any = None) -> Iterator[Part]:
    (puzzle,) = sizes.puzzles("09.2")
    drawn, text = _legal(sizes, answer, 1, split=False)
    if (yield from _runs(drawn, text, puzzle.cap)):
        length, (begin, names) = puzzle.length(drawn), (puzzle.length(puzzle.settings.schedule), _with_a_name(puzzle))
        found, best = f"a step of {length:g}, recomputed", min(names.values())
        note = "Another micro-batch can be on its way while a rank waits for this one."
        rule = f"below {begin:g}, that of one micro-batch after the other"
        yield reached("shorter than one by one", length < begin, found, rule, note)
        rule = f"below {best:g}: {', '.join(f'{name} {step:g}' for name, step in names.items())}"
        note = f"{recognised(drawn)} {_slow_note(drawn, puzzle)}".strip()
        yield reached("shorter than all with a name", length < best * (1 - 1e-9), found, rule, note)
        yield judged("par", _at_par, drawn, puzzle)
    if two_parts is not None:
        yield judged(BONUS, _chunked, sizes, two_parts)


def _chunked(sizes: Sizes, answer: Any) -> str:
    drawn, _ = _legal(sizes.two_parts, answer, 2, split=False)
    _fits(drawn, sizes.two_parts_cap)
    _same_bits(drawn)
    length, par = drawn.clock(*FUSED).makespan, _two_parts_par(sizes).makespan
    if length > par:
        raise Wrong(f"a step of {length:g}, recomputed: {length / par:.3f} x par", f"{par:g}", _slow_note(drawn))
    return f"a step of {length:g}, recomputed: par"


def _divided(sizes: Sizes, answer: Any, /) -> Iterator[Part]:
    lean, wide = sizes.puzzles("09.3")
    rule = f"{{{lean.cap}: one schedule, {wide.cap}: another one}}: a schedule for each cap"
    mine = read_dict(answer, rule, "no schedules yet").get(lean.cap)
    if mine is None:
        raise Wrong(f"no schedule for the cap {lean.cap}", form=rule)
    drawn, text = _legal(sizes, mine, 1, split=True)
    if (yield from _runs(drawn, text, lean.cap)):
        length = lean.length(drawn)
        fused = make_schedule("1f1b", sizes.stages, sizes.micro_batches)
        step = fused.clock(1, 2, 0, latency=delays(lean.borders)).makespan
        shorter, rule = length < step * (1 - 1e-9), f"below {step:g}, that of 1F1B whose backward is one action of 2"
        note = "A W that nobody waits for can fill a gap: which of them are where there is no gap?"
        yield reached("shorter than fused", shorter, f"a step of {length:g}, recomputed", rule, note)
        yield judged("par", _at_par, drawn, lean)
    yield judged("par with more memory", _wide, sizes, wide, answer.get(wide.cap))


def _wide(sizes: Sizes, puzzle: Puzzle, answer: Any) -> str:
    if answer is None:
        raise Wrong(f"no schedule for the cap {puzzle.cap}", form=f"a schedule for the cap {puzzle.cap}")
    drawn, _ = _legal(sizes, answer, 1, split=True)
    _fits(drawn, puzzle.cap)
    _same_bits(drawn)
    return _at_par(drawn, puzzle)


def _par_text(puzzle: Puzzle) -> str:
    """What par is next to the schedules with a name; asked for by one who has reached it."""
    names = ", ".join(f"{name} {step:g}" for name, step in _with_a_name(puzzle).items())
    return f"cap {puzzle.cap}: a step of {puzzle.par:g}, proved by exact search; with a name: {names}"


def _pars_by_hand(sizes: Sizes) -> str:
    par, (puzzle,) = _two_parts_par(sizes), sizes.puzzles("09.2")
    more = f"two parts on each rank, cap {sizes.two_parts_cap}: a step of {par.makespan:g}"
    return f"{_par_text(puzzle)}\n\n{more}\n{par.schedule.text()}"


def _of_sizes(sizes: Sizes) -> dict[str, Any]:
    """What 09.2 is for these sizes."""
    (puzzle,) = sizes.puzzles("09.2")
    slow = puzzle.slowest
    more = f"a bonus, two parts on each rank: {2 * sizes.stages} micro-batches, memory for {sizes.two_parts_cap}, "
    return {
        "numbers": f"{puzzle.rules}\n{more}part k on rank k % {sizes.stages}, messages take no time",
        "grader": partial(_by_hand, sizes),
        "par": partial(_pars_by_hand, sizes),
        "lab": partial(_lab, (puzzle,)),
        "hints": (
            "Draw 1F1B first: which rank waits, and for which message?",
            f"A gradient comes back to rank {slow} over the slow border, which its activations have crossed too. What "
            f"could rank {slow} do until then, that 1F1B does not let it do?",
            "1F1B takes F and B in turns, so a rank waits for a B even when it has room for another F. In front of a "
            "slow border a rank should begin with as many F as it has memory for; behind it two B, or two F, may "
            "follow each other.",
            "Go through time, unit by unit, and draw all ranks at once. Each rank does what it can do at once: a "
            "backward if one is ready, else a forward if it has memory for one more. It waits only if it can do "
            "neither.",
        ),
    }


def _divided_of_sizes(sizes: Sizes) -> dict[str, Any]:
    """What 09.3 is for these sizes."""
    lean, wide = sizes.puzzles("09.3")
    return {
        "numbers": f"{lean.rules}\nand again with memory for {wide.cap}: {{{lean.cap}: ..., {wide.cap}: ...}}",
        "grader": partial(_divided, sizes),
        "par": lambda: f"{_par_text(lean)}\n{_par_text(wide)}",
        "lab": partial(_lab, (lean, wide)),
        "hints": (
            "Which of the three kinds of action does another rank wait for, and which does nobody wait for?",
            "Take your schedule of 09.2, put a W after every B, and look where its ranks wait: at the beginning, at "
            "the end, or for a message over the slow border?",
            "A W may wait as long as there is memory for its micro-batch. Put it where the rank would have to wait, "
            f"and in front of the next forward where memory is full: under the cap of {lean.cap} that is often.",
            "Go through time, unit by unit. Each rank does what it can do at once: a backward first, else a forward if "
            "there is memory for one, else a W. Where the result is a unit or two above par, look at the last rank and "
            "at those next to the slow border: a W that is done a little earlier lets a forward, and so a backward, "
            "begin earlier.",
        ),
    }


def _lab(puzzles: tuple[Puzzle, ...], cap: int | None = None) -> PipelineLab:
    """The lab of one of these puzzles, by its cap. Raises ArgumentError for a cap that none has."""
    known = {puzzle.cap: puzzle for puzzle in puzzles}
    if cap is not None and cap not in known:
        raise ArgumentError(f"cap {shorten(cap)}", where="puzzle_lab", allowed=f"One of {', '.join(map(str, known))}")
    return PipelineLab(puzzle=known.get(cap, puzzles[0]).name)


def _drawn_from(ways: Mapping[int, tuple[int, ...]], rng: np.random.Generator) -> Sizes:
    pairs = [(stages, count) for stages, counts in ways.items() for count in counts]
    return Sizes(*pairs[int(rng.integers(len(pairs)))])


EXERCISES = (
    Exercise(
        "09.1",
        "the bubble's formula",
        tuple((name, 2 if name == "chunks" else 1) for name, *_ in BUBBLE_PARTS),
        (
            "How long does the last stage wait before its first action, and the first one between its last F and its "
            "first B?",
            "Write the three runs as fractions: idle time over the length of the step. What do the numerators have in "
            "common, and by how much do the denominators grow?",
            "Every stage waits equally long in total: for p - 1 forwards and p - 1 backwards. It works for m of each. "
            "The idle fraction is the wait divided by wait and work together. A rank with v parts has v times as many "
            "actions, each 1/v as long.",
            "Count in units of one forward and one backward of one part: the wait is p - 1, the work is v times m. The "
            "answer is p - 1 divided by the sum of v m and p - 1.",
        ),
        _bubble,
        drawn={name: partial(_drawn_sizes, name) for name, *_ in BUBBLE_PARTS},
        start="""\
def bubble(stages, micro_batches, chunks=1):
    return 1 / micro_batches


check("09.1", bubble)
""",
    ),
    Exercise(
        "09.2",
        "a slow border under a cap",
        (
            ("legal", 1),
            ("fits", 1),
            ("same bits", 1),
            ("shorter than one by one", 1),
            ("shorter than all with a name", 1),
            ("par", 3),
            (BONUS, 0),
        ),
        attempt="par",
        own=lambda rng: _of_sizes(_drawn_from(OWN_BY_HAND, rng)),
        **_of_sizes(SIZES_BY_HAND),
        start="""\
schedule = [[f"{rank}{kind}{n}" for n in range(8) for kind in "FB"] for rank in range(4)]
two_parts = None

check("09.2", schedule, two_parts=two_parts)
""",
    ),
    Exercise(
        "09.3",
        "backward in two halves",
        (
            ("legal", 1),
            ("fits", 1),
            ("same bits", 1),
            ("shorter than fused", 1),
            ("par", 2),
            ("par with more memory", 2),
        ),
        attempt="par",
        own=lambda rng: _divided_of_sizes(_drawn_from(OWN_DIVIDED, rng)),
        **_divided_of_sizes(SIZES_BY_HAND),
        start="""\
fused = [[f"{rank}{kind}{n}" for n in range(8) for kind in "FBW"] for rank in range(4)]
divided = {4: fused, 8: None}

check("09.3", divided)
""",
    ),
)
