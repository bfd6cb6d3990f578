"""Lesson 08, optimizer parallel: bytes of every stage, a ZeRO-1 step, the largest model under the cap."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import numpy as np

from ...base.errors import shorten
from ...base.units import bytes_text
from ...cost.zero import STAGES, zero_memory
from ...graph.plan import Plan
from ...train.session import initial_values
from ..memory.count import Count, predicted_ranks, simulated_ranks
from ..memory.puzzle import Par, choices, find_par
from ..memory.subjects import LEVELS, WIDTHS, Job, Settings, get_subject
from ..shared.jobs import STACK_LAYERS
from .book import Exercise
from .ideas import Idea, compare_number, slip
from .more_ways import OF_LESSON_08
from .reading import read_dict, refusals
from .running import ask, read_number
from .verdict import Note, Part, Wrong, judged
from .zero_step import MORE, STEP_PARTS, reduced_first, step_parts

# ---- 08.1: bytes of every stage ----

# (parameters, ranks, bytes of a parameter, of its gradient, of its optimizer states): the paper's model with Adam in
# mixed precision, float32 with # Adam, float32 with momentum, float16 with SGD, a single rank
MODELS = (
    (7_500_000_000, 64, 2, 2, 12),
    (524_288, 8, 4, 4, 8),
    (1_000_000, 4, 4, 4, 4),
    (3_000_000, 16, 2, 2, 0),
    (10_000, 1, 4, 4, 8),
)
# what the stages are in this house: (stage, settings of the stack); level1 to level3 keep the same, and differ in what
# they gather
COUNTED = (
    (0, Settings(level="off", optimizer="Adam")),
    (1, Settings(parallel_mode="data_parallel", level="grouping", optimizer="AdamWeightDecay")),
    (3, Settings(level="level1", optimizer="Adam", threshold_kb=0)),
    (3, Settings(level="level3", optimizer="Adam", threshold_kb=0)),
)
COUNTED_WIDTH = 64


def _stage(answer: Any, stage: int) -> str:
    rule = f"{STAGES[stage]}{' sharded over the ranks' if stage else ''}"
    for parameters, ranks, *each in MODELS:
        want = _model_bytes(stage, parameters, ranks, each)
        _check_bytes(answer, "", stage, parameters, ranks, each, want, rule)
    paper = _model_bytes(stage, *MODELS[0][:2], MODELS[0][2:]) / 1e9
    return f"{paper:.4g} GB for 7.5 billion parameters on 64 ranks, as in the paper's table; {len(MODELS)} models"


def _model_bytes(stage: int, parameters: int, ranks: int, each: Sequence[int]) -> float:
    sizes = dict(zip(("param_bytes", "grad_bytes", "optimizer_bytes"), each, strict=True))
    return zero_memory(parameters, ranks, stage, **sizes).total_bytes


def _check_bytes(
    answer: Any, what: str, stage: int, parameters: int, ranks: int, each: Sequence[int], want: float, rule: str
) -> None:
    """Raises Wrong if the answer is not `want` for this model; what: how its description begins."""
    what += f"{parameters:,} parameters on {ranks} rank{'s' if ranks > 1 else ''}, "
    what += f"{' + '.join(map(str, each))} bytes each"
    compare_number(
        answer,
        (parameters, ranks, stage, *each),
        want,
        BYTES_IDEAS,
        rule,
        expected=f"{_plain(want)} bytes: {rule}",
        place=what,
        text=lambda number: f"{_plain(number)} bytes",
    )


def _plain(number: float) -> str:
    return f"{number:,.0f}" if number == round(number) else f"{number:,.6g}"


def _other_stage(number: int) -> Callable[..., float | None]:
    return lambda n, ranks, stage, *each: _model_bytes(number, n, ranks, each) if number != stage else None


BYTES_IDEAS = (  # of n parameters: bytes of each (p), of its gradient (g), of its optimizer states (s)
    *(slip(f"That is stage {number}: {STAGES[number]}.", _other_stage(number)) for number in STAGES),
    slip(
        "All ranks together: the question is what one of them holds.",
        lambda n, ranks, stage, *each: ranks * _model_bytes(stage, n, ranks, each),
    ),
    slip(
        "The parameters alone; gradients and optimizer states take memory too.",
        lambda n, ranks, stage, p, g, s: n * p / (ranks if stage == 3 else 1),
    ),
    slip(
        "The gradients are missing: they exist when the optimizer starts.",
        lambda n, ranks, stage, p, g, s: _model_bytes(stage, n, ranks, (p, 0, s)),
    ),
    slip(
        "The optimizer states are missing.", lambda n, ranks, stage, p, g, s: _model_bytes(stage, n, ranks, (p, g, 0))
    ),
    slip(
        "The optimizer states are sharded here, not whole on every rank.",
        lambda n, ranks, stage, p, g, s: n * p + n * g / (ranks if stage > 1 else 1) + n * s if stage else None,
    ),
    slip(
        "That is in GB: the answer is in bytes.",
        lambda n, ranks, stage, *each: _model_bytes(stage, n, ranks, each) / 1e9,
    ),
    slip("Those are elements, not bytes.", lambda n, ranks, stage, *each: n),
)


@lru_cache(maxsize=1)
def _counted_states() -> tuple[tuple[int, int, Settings, int], ...]:
    """(stage, parameters, settings, most bytes on a simulated rank, single numbers left out) of COUNTED."""
    job = get_subject("stack").job(COUNTED_WIDTH)
    states = []
    for stage, settings in COUNTED:
        plan = job.compile(settings)
        values = [plan.value(s.name) for s in plan.states]
        numbers = sum(value.slice_bytes for value in values if not value.shape)
        counts = _simulated(job, settings, plan)
        states.append((stage, job.parameter_count, settings, max(map(_states_bytes, counts)) - numbers))
    return tuple(states)


def _simulated(job: Job, settings: Settings, plan: Plan) -> tuple[Count, ...]:
    return simulated_ranks(plan, initial_values(plan, job.net, job.optimizer(settings.optimizer)), job.batches[0])


def _states_bytes(count: Count) -> int:
    stays = count.at("resident")
    return stays["params"] + stays["optimizer"] + max(point.by_kind["grads"] for point in count.timeline)


def _bytes_of_stages(answer: Any) -> Iterator[Part]:
    ask("Bytes that one rank holds", answer, 8, 2, 0, 4, 4, 8)
    for stage in STAGES:
        yield judged(f"stage {stage}", _stage, answer, stage)
    yield judged("counted", _counted, answer)


def _drawn_model(stage: int, answer: Any, rng: np.random.Generator) -> None:
    parameters, ranks = int(rng.integers(1, 10**6)) * 64, int(2 ** rng.integers(1, 7))
    each = [int(size) for size in rng.integers(1, 17, 3)]
    want = _model_bytes(stage, parameters, ranks, each)
    _check_bytes(answer, "", stage, parameters, ranks, each, want, STAGES[stage])


def _counted(answer: Any) -> str:
    texts = []
    for stage, parameters, settings, counted in _counted_states():
        level = {"off": "no optimizer parallel", "grouping": "weight grouping"}.get(settings.level, settings.level)
        rule = f"{level} on {settings.devices} simulated ranks, float32 with {settings.optimizer}: "
        rule += f"counted in their arrays (stage {stage})"
        _check_bytes(answer, f"stage {stage}, ", stage, parameters, settings.devices, (4, 4, 8), float(counted), rule)
        texts.append(f"{level}: {bytes_text(counted)}")
    return f"on {COUNTED[0][1].devices} simulated ranks, {'; '.join(texts)}"


# ---- 08.3: the largest model under the cap ----

CAPACITY_BYTES = 4 * 1024 * 1024
GIVEN = Settings(devices=8, optimizer="Adam")
# In bytes, from which each learner gets one: 2.5 to 6 MiB
OWN_CAPACITIES = range(5 << 19, (6 << 20) + 1, 1 << 17)
# By the wrong model in which a level divides all that a rank holds by the ranks: the widest stack whose peak without
# any level is at most 8 times CAPACITY_BYTES (counted anew in a test)
WIDEST_IF_ALL_WERE_CUT = 496


def _all_cut(width: int) -> Note:
    text = f"Your {width} is what would fit if a level cut all memory to an eighth. Optimizer states, gradients and "
    text += "parameters are cut; activations, working memory and the weights gathered for the moment are not."
    return Note(text, "ZeRO cuts all memory")


# of Settings, what an answer may choose
FREE = ("level", "parallel_mode", "threshold_kb", "shard_size", "accumulation", "accumulation_shard")


def _read_model(answer: Any) -> tuple[int, Settings]:
    """(width, settings) of an answer. Raises Wrong."""
    rule = f'{{"width": ..., "level": ...}}, and if you like {", ".join(FREE[1:])}'
    read_dict(answer, rule, "no model yet")
    unknown = [key for key in answer if key not in ("width", *FREE)]
    if unknown:
        raise Wrong(f"{shorten(unknown[0])} is not a setting of this puzzle", form=rule)
    width = read_number(answer.get("width"))
    if width is None or width not in WIDTHS:
        allowed = f"A multiple of {WIDTHS.step} from {WIDTHS.start} to {WIDTHS[-1]}"
        raise Wrong(f"width {shorten(answer.get('width'))}", form=allowed)
    settings = replace(GIVEN, **{key: answer[key] for key in FREE if key in answer})
    mode, level = settings.parallel_mode, settings.level
    if not isinstance(mode, str) or mode not in LEVELS:
        raise Wrong(f"parallel_mode {shorten(mode)}", form=f"One of {', '.join(LEVELS)}")
    if not isinstance(level, str) or level not in LEVELS[mode]:
        raise Wrong(f"level {shorten(level)}", form=f"In {mode} one of {', '.join(LEVELS[mode])}")
    return int(width), settings


@lru_cache(maxsize=8)
def _par(capacity_bytes: int = CAPACITY_BYTES) -> Par:
    par = find_par(GIVEN, capacity_bytes)
    assert par is not None, "the narrowest stack fits under the cap"
    return par


@lru_cache(maxsize=8)
def _best_without(capacity_bytes: int = CAPACITY_BYTES) -> tuple[int, int]:
    """(width, parameters) of the widest stack that fits where every rank holds everything, however it accumulates."""
    best = -1
    for settings in choices(GIVEN):
        best = _widest(settings, capacity_bytes, best) if settings.level == "off" else best
    return WIDTHS[best], STACK_LAYERS * WIDTHS[best] ** 2


@lru_cache(maxsize=8)
def _width_if_all_were_cut(capacity_bytes: int) -> int:
    return WIDTHS[_widest(replace(GIVEN, level="off"), GIVEN.devices * capacity_bytes)]


def _widest(settings: Settings, most_bytes: int, low: int = -1) -> int:
    """The place in WIDTHS of the widest stack that fits with these settings; `low` where none is wider than that."""
    high = len(WIDTHS)
    while high - low > 1:
        middle = (low + high) // 2
        job = get_subject("stack").job(WIDTHS[middle])
        fits = predicted_ranks(job.compile(settings))[0].peak_bytes <= most_bytes
        low, high = (middle, high) if fits else (low, middle)
    return low


def _largest(capacity_bytes: int, answer: Any, /) -> Iterator[Part]:
    width, settings = _read_model(answer)
    job = get_subject("stack").job(width)
    with refusals(form="Settings that go together"):
        counts = _simulated(job, settings, job.compile(settings))
    parameters = job.parameter_count
    text = f"{STACK_LAYERS} layers of {width} x {width}: {parameters:,} parameters, {settings.level}"
    yield Part("a model", True, text)
    full = max(counts, key=lambda c: c.peak_bytes)
    fits = judged("fits", _fits, full, len(counts), capacity_bytes)
    if not fits.passed and width == _width_if_all_were_cut(capacity_bytes):
        fits = replace(fits, note=_all_cut(width))
    yield fits
    if not fits.passed:
        return
    without, most = _best_without(capacity_bytes)
    text = f"{parameters:,} parameters"
    note = "Nothing is sharded: every rank holds parameters, gradients and Adam's states of the whole model."
    better, rule = parameters > most, f"more than {most:,}, the most that fit (width {without}) while every rank holds"
    yield Part("beats level off", better, text, f"{rule} everything", note if settings.level == "off" else "")
    par = _par(capacity_bytes)
    at_par, note = parameters >= par.parameters, ""
    if not at_par:
        note = _room_note(full, settings, capacity_bytes)
    elif settings.level == "level3":
        note = "Level3 frees gathered weights after each use: even at the fullest moment, in the backward pass, "
        note += "the rank holds one layer's weight in full and only slices of the others."
    rule = f"the largest of all levels, shard sizes and ways to accumulate ({par.tried} plans tried)"
    yield Part("par", at_par, f"{text}: {parameters / par.parameters:.3f} x par", f"{par.parameters:,}: {rule}", note)


def _shown_model(capacity_bytes: int) -> str:
    par = _par(capacity_bytes)
    chosen = {name: getattr(par.settings, name) for name in FREE}
    changed = {name: value for name, value in chosen.items() if value != getattr(GIVEN, name)}
    return f"model = {dict(width=par.width, **changed)}"


def _numbers_of(capacity_bytes: int) -> str:
    return f"a device has {bytes_text(capacity_bytes)}"


def _own_capacity(rng: np.random.Generator) -> dict[str, Any]:
    capacity = int(rng.choice(OWN_CAPACITIES))
    numbers = f"{_numbers_of(capacity)}\nin the Memory Lab: lab.set_capacity({capacity})"
    grader, par = partial(_largest, capacity), partial(_shown_model, capacity)
    # no ideas: the grader finds the width that is one
    return {"numbers": numbers, "grader": grader, "par": par, "ideas": ()}


def _fits(full: Count, ranks: int, capacity_bytes: int) -> str:
    """full: of the fullest rank"""
    peak = bytes_text(full.peak_bytes)
    text = f"the fullest rank holds {peak} ({full.peak_bytes:,} bytes), counted on {ranks} simulated ranks"
    if full.peak_bytes > capacity_bytes:
        point, cap = full.point("peak"), bytes_text(capacity_bytes)
        place = f"{point.phase}: {point.name}" if point is not None else ""
        raise Wrong(text, f"at most {cap} at every moment of the step", _full_note(full), full.rank, place)
    return text


def _full_note(full: Count) -> str:
    """What takes most of the memory at the fullest moment."""
    kind, size = max(full.at("peak").items(), key=lambda item: item[1])
    words = {
        "optimizer": "Adam's two states per parameter, whole on this rank.",
        "grads": "gradients.",
        "gathered": "gathered weights: this level keeps every layer's from forward to backward.",
        "activations": "activations: no level of optimizer parallel shards those.",
        "workspace": "working memory: operands and sums on their way.",
        "params": "the parameters themselves.",
    }
    return f"Most of it is {words[kind]} ({bytes_text(size)} of {bytes_text(full.peak_bytes)})" if kind in words else ""


def _room_note(full: Count, settings: Settings, capacity_bytes: int) -> str:
    left = bytes_text(capacity_bytes - full.peak_bytes)
    gathered = full.at("peak")["gathered"]
    if settings.level in ("level1", "level2") and gathered:
        return (
            f"{left} are free. At the peak {bytes_text(gathered)} are gathered weights: which level does not keep them?"
        )
    return f"{left} are free at the fullest moment: would a wider model still fit?"


EXERCISES = (
    Exercise(
        "08.1",
        "bytes of every stage",
        (*((f"stage {stage}", 1) for stage in STAGES), ("counted", 1)),
        (
            "Which three things does a rank keep for every parameter, and how many bytes of each?",
            "Read the paper's table in the Memory Lab: what is left of each column from 1 to 1024 ranks?",
            "Each stage shards one more thing: first the optimizer states, then the gradients, then the parameters.",
            "Parameters take param_bytes each, divided by the ranks in stage 3 only. Gradients take grad_bytes each, "
            "divided from stage 2 on. Optimizer states take state_bytes each, divided from stage 1 on. Add the three "
            "up and multiply by the number of parameters.",
        ),
        _bytes_of_stages,
        drawn={f"stage {stage}": partial(_drawn_model, stage) for stage in STAGES},
        start="""\
def bytes_per_rank(parameters, ranks, stage, param_bytes, grad_bytes, state_bytes):
    return parameters * (param_bytes + grad_bytes + state_bytes)


check("08.1", bytes_per_rank)
""",
    ),
    Exercise(
        "08.2",
        "a ZeRO-1 step",
        STEP_PARTS,
        (
            "Which part of the mean gradient does a rank need, if it updates only its own slice?",
            "Lesson 02: an all_reduce is two collectives, one after the other. What could be done between them?",
            "Scatter the mean gradient, update velocity and weights of your slice, and gather the new slices.",
            "Yield a reduce_scatter of the gradient that takes the mean: it gives your slice. The new velocity is "
            "decay times the old one plus that slice. Take your slice of the weights, which begins at rank times the "
            "length of a slice, and subtract rate times the new velocity. Yield an all_gather of it, which gives "
            "all weights in order. Return them and the new velocity.",
        ),
        step_parts,
        ideas=(Idea("ZeRO-1 sends more", str(MORE), reduced_first, "bytes"),),
        start="""\
def zero1_step(rank, ranks, weights, gradient, velocity):
    everybody = tuple(range(ranks))
    gradient = yield Request("all_reduce", everybody, gradient, reduce="mean")
    return weights - 0.1 * gradient, velocity


check("08.2", zero1_step)
""",
    ),
    Exercise(
        "08.3",
        "the largest model under the cap",
        (("a model", 1), ("fits", 1), ("beats level off", 1), ("par", 2)),
        (
            "What takes the most memory at the fullest moment? Can it be sharded over the ranks?",
            "Set the capacity line in the Memory Lab to what a device has: in which level does a rank have most room?",
            "Between steps all three levels keep the same; they differ in how long gathered weights stay. No "
            "level shards activations.",
            "Take level3, which has only one layer's gathered weights at a time. Then widen the layers until the "
            "fullest moment touches the line: "
            "halve the interval between a width that fits and one that does not, in steps of 16.",
        ),
        partial(_largest, CAPACITY_BYTES),
        partial(_shown_model, CAPACITY_BYTES),
        "beats level off",
        numbers=_numbers_of(CAPACITY_BYTES),
        own=_own_capacity,
        ideas=(
            Idea(
                "ZeRO cuts all memory",
                "if a level cut all memory to an eighth",
                {"width": WIDEST_IF_ALL_WERE_CUT, "level": "level3"},
                "fits",
            ),
        ),
        start="""\
model = {"width": 256, "level": "off"}

check("08.3", model)
""",
    ),
    *OF_LESSON_08,
)
