"""Lesson 03, data parallel: the same as one device, weights for uneven rows, when summed gradients blow up."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any

import numpy as np

from ... import nn
from ...base.errors import shorten
from ...run.communicator import Request
from ...run.simulator import simulate
from .book import Exercise
from .descent import Line, Trained, TwoLayers, mixed_rows, prove, steady_rows, train
from .ideas import Idea, recognised, slip
from .ranks_agree import OF_LESSON_03
from .reading import read_dict, refusals
from .running import ask, listed, read_number
from .verdict import Part, Wrong, judged

RANKS, STEPS = 4, 20
CLOSE, CLOSE_FLOAT32 = 1e-9, 1e-6  # relative: rounding of some ten additions is 1e-15; of float32 weights, 6e-8

# ---- 03.1: the same as one device ----

# by name: the optimizer from (parameters, learning rate), and the learning rate of the one device
OPTIMIZERS: dict[str, tuple[Callable[[Any, float], Any], float]] = {
    "sgd": (lambda p, rate: nn.SGD(p, rate), 0.1),
    "momentum": (lambda p, rate: nn.Momentum(p, rate, 0.9, weight_decay=0.1), 0.1),
    "adam": (lambda p, rate: nn.Adam(p, rate), 0.01),
}
SUMMED = ("sgd", "adam")  # the exercise wants these with gradients_mean=False


@lru_cache(maxsize=32)
def _trained(name: str, ranks: int, gradients_mean: bool, rate: float) -> Trained:
    make = OPTIMIZERS[name][0]
    return train(
        TwoLayers, lambda p: make(p, rate), mixed_rows(), ranks=ranks, gradients_mean=gradients_mean, steps=STEPS
    )


def _same_as_one_device(answer: Any) -> Iterator[Part]:
    example = '{"sgd": {"gradients_mean": False, "learning_rate": ...}, ...}'
    read_dict(answer, f"A dict with the settings of each optimizer, such as {example}")
    for name in OPTIMIZERS:
        yield judged(name, _compared, name, answer.get(name))


def _compared(name: str, settings: Any) -> str:
    one_rate = OPTIMIZERS[name][1]
    rule = f"after {STEPS} steps all parameters equal those of one device with rate {one_rate}"
    settings = settings if isinstance(settings, Mapping) else {}
    mean, rate = settings.get("gradients_mean"), read_number(settings.get("learning_rate"))
    if not isinstance(mean, bool):
        raise Wrong(f"gradients_mean={shorten(mean)}", rule, form="True or False")
    if rate is None:
        raise Wrong(f"learning_rate={shorten(settings.get('learning_rate'))}", rule, form="A number")
    if mean and name in SUMMED:
        raise Wrong("gradients_mean=True", form="gradients_mean=False: this row is about summed gradients")
    if not 0 <= rate <= 100:
        raise Wrong(f"learning_rate={rate:g}", rule, form="From 0 to 100")
    # a training that blows up is an answer too
    with np.errstate(all="ignore"), refusals(rule):
        proof = prove(_trained(name, RANKS, mean, rate), _trained(name, 1, False, one_rate), gradients=False)
    settings_text, count = f"gradients_mean={mean}, learning_rate={rate:g}", len(proof.rows)
    if not proof.equal:
        first = next(row for row in proof.rows if not row.equal)
        text = f"{first.tensor} differs by {first.largest_difference:.3g}, rounding allows {first.bound:.1e}"
        note = recognised([(mean, rate)], [(name, one_rate)], SETTINGS_IDEAS, 1e-6)
        raise Wrong(f"{settings_text}: {text}", rule, note, None, first.tensor)
    return f"{settings_text}: {count} of {count} tensors equal, largest difference {proof.worst.largest_difference:.1e}"


SETTINGS_IDEAS = (  # gradients_mean and learning_rate, of an optimizer and the rate of the one device
    slip(
        "Adam divides a gradient by the root of its mean square: a factor common to all gradients cancels out.",
        lambda name, rate: (False, rate / RANKS) if name == "adam" else None,
    ),
    slip(
        "Rate x gradient is right, but weight decay adds 0.1 w after the sum: at this rate, a quarter of it.",
        lambda name, rate: (False, rate / RANKS) if name == "momentum" else None,
    ),
    Idea(
        "all_reduce averages",
        f"An all_reduce does not average: the sum of {RANKS} means is {RANKS} times the gradient of one device.",
        lambda name, rate: (False, rate),
    ),
    slip(
        f"Divided twice: the mean is already one device's gradient, and the rate is divided by {RANKS} as well.",
        lambda name, rate: (True, rate / RANKS),
    ),
    *(
        slip(
            f"A rate {RANKS} times as large goes with a batch {RANKS} times as large; here the batch is the same.",
            lambda name, rate, mean=mean: (mean, rate * RANKS),
        )
        for mean in (False, True)
    ),
)


# ---- 03.2: uneven rows ----

BATCHES = {  # rows of each rank
    "equal rows": (4, 4, 4, 4),
    "a short last rank": (4, 4, 4, 2),
    "three ranks": (5, 3, 1),
    "a rank without rows": (4, 4, 0, 2),
}


def _gradient(x: np.ndarray, y: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Gradient of mean((x w - y)^2) over these rows; zeros without rows."""
    return 2 * x.T @ (x @ w - y) / len(x) if len(x) else np.zeros_like(w)


def _summed(rank: int, ranks: int, gradient: np.ndarray) -> Generator[Request, Any, np.ndarray]:
    return (yield Request("all_reduce", tuple(range(ranks)), gradient))


def _summed_on_ranks(rows: Sequence[int], weights: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    """(gradient of one device, all_reduced sum over simulated ranks of weight x gradient of its own rows)."""
    rng, total = np.random.default_rng(5), sum(rows)
    x, y, w = rng.normal(size=(total, 5)), rng.normal(size=(total, 1)), rng.normal(size=(5, 1))
    ends = np.cumsum(rows)[:-1]
    parts = zip(np.split(x, ends), np.split(y, ends), weights, strict=True)
    own = [weight * _gradient(mine, label, w) for mine, label, weight in parts]
    return _gradient(x, y, w), simulate([_summed(r, len(rows), g) for r, g in enumerate(own)])[0]


def _uneven(answer: Any) -> Iterator[Part]:
    for name, rows in BATCHES.items():
        all_rows = sum(rows)
        rule = f"the gradient of one device with all {all_rows} rows: each row counts 1/{all_rows}, on every rank"
        yield judged(name, _weighted, ask(rule, answer, rows), rows, rule)


def _drawn_rows(name: str, answer: Any, rng: np.random.Generator) -> str:
    """Rows of the kind that a part is about: one kind for each of BATCHES."""
    each, ranks = int(rng.integers(2, 9)), int(rng.integers(3, 7))
    rows = {
        "equal rows": (each,) * ranks,
        "a short last rank": (*(each,) * (ranks - 1), int(rng.integers(1, each))),
        "three ranks": tuple(int(n) for n in rng.integers(1, 12, 3)),
        "a rank without rows": (each, 0, each + 1, *(each,) * (ranks - 3)),
    }[name]
    return _weighted(ask("a weight per rank", answer, rows), rows, f"each row counts 1/{sum(rows)}, on every rank")


def _weighted(value: Any, rows: Sequence[int], rule: str) -> str:
    try:
        weights = [float(w) for w in listed(value)]
    except Exception:  # whatever a learner's object does
        weights = []
    if len(weights) != len(rows) or not all(map(math.isfinite, weights)):
        raise Wrong(f"rows {rows}: {shorten(value)}", form=f"{len(rows)} numbers, one per rank")
    right, summed = _summed_on_ranks(rows, weights)
    off = float(np.abs(summed - right).max() / np.abs(right).max())
    close = CLOSE_FLOAT32 if np.asarray(value).dtype == np.float32 else CLOSE
    text = f"rows {rows}, weights {', '.join(f'{w:.4g}' for w in weights)}: the summed gradient is"
    if off < close:
        return f"{text} one device's"
    same = [math.isclose(w, n / sum(rows), rel_tol=close) for w, n in zip(weights, rows, strict=True)]
    size = f"{off:.3%} of" if off < 1 else f"{off:.3g} times"
    note = recognised([np.array(weights)], [(rows,)], WEIGHT_IDEAS, 1e-6)
    rank = None if all(same) else same.index(False)
    raise Wrong(f"{text} {size} its largest element away from one device's", rule, note, rank)


def _mean_of_means(rows: Sequence[int]) -> str:
    most, least = max(rows), min(r for r in rows if r)
    text = f"The mean of means: each rank counts the same, so each row of a rank with {least} rows counts "
    return text + f"{most / least:.3g} times as much as one of a rank with {most}."


WEIGHT_IDEAS = (
    Idea("the mean of means is the mean", _mean_of_means, lambda rows: np.full(len(rows), 1 / len(rows))),
    slip(
        "The mean over the ranks that have rows: each rank still counts the same, instead of each row.",
        lambda rows: np.array([(r > 0) / sum(r > 0 for r in rows) for r in rows]),
    ),
    slip(
        lambda rows: f"No weights: that is the sum of the means, {len(rows)} times their mean.",
        lambda rows: np.ones(len(rows)),
    ),
    slip(
        lambda rows: f"The sum over all rows, not their mean: {sum(rows)} times too large.", lambda rows: np.array(rows)
    ),
    slip(
        "Weights relative to the rank with the most rows: they do not add up to 1.",
        lambda rows: np.array(rows) / max(rows),
    ),
    slip(
        lambda rows: (
            f"Right if the sum is divided by {len(rows)} afterwards (gradients_mean=True); here it is not divided."
        ),
        lambda rows: len(rows) * np.array(rows) / sum(rows),
    ),
)


# ---- 03.3: when does it blow up? ----

MILLION = 1e6
LOOKED_AT = 60  # steps
CASES = {  # (learning rate, ranks)
    "4 ranks at 0.6": ((0.6, 4),),
    "8 ranks at 0.3": ((0.3, 8),),
    "8 ranks at 0.6": ((0.6, 8),),
    "never": ((0.6, 2), (0.1, 4), (0.6, 1)),
}


@lru_cache(maxsize=32)
def _losses(rate: float, ranks: int) -> tuple[float, ...]:
    with np.errstate(all="ignore"):
        return train(
            Line, lambda p: nn.SGD(p, rate), steady_rows(), ranks=ranks, gradients_mean=False, steps=LOOKED_AT
        ).losses


def _counted(rate: float, ranks: int) -> int | None:
    """The first step, counted from 1, whose loss is above a million times that of step 1; None for never."""
    losses = _losses(rate, ranks)
    return next((step for step, loss in enumerate(losses, 1) if not loss <= MILLION * losses[0]), None)


def _first_above(growth: float) -> int | None:
    """The first step whose loss is above a million times the first, if each step multiplies it by `growth`."""
    return None if growth <= 1 else 2 + math.floor(math.log(MILLION) / math.log(growth))


def _blow_up(answer: Any) -> Iterator[Part]:
    for name, cases in CASES.items():
        steps = [ask("A step, or None for never", answer, *case) for case in cases]
        yield judged(name, _counted_steps, steps, cases)


def _drawn_rate(name: str, answer: Any, rng: np.random.Generator) -> str:
    """A rate of the kind that a part is about, with as many ranks."""
    ranks = CASES[name][0][1]
    low, high = (0.2, 0.9) if name == "never" else (2.2, 3.9)  # summed: with a rate of 2 / ranks an error stays
    rate = round(float(rng.uniform(low, high)) / ranks, 3)
    return _counted_steps([ask("A step, or None for never", answer, rate, ranks)], [(rate, ranks)])


def _counted_steps(steps: Sequence[Any], cases: Sequence[tuple[float, int]]) -> str:
    counts = []
    for step, (rate, ranks) in zip(steps, cases, strict=True):
        counted, number, plural = _counted(rate, ranks), read_number(step), "s" if ranks > 1 else ""
        case = f"rate {rate:g}, {ranks} rank{plural}"
        if number != counted if counted is not None else step is not None:
            expected = f"What a training of {LOOKED_AT} steps on {ranks} simulated rank{plural} shows: a step, or None "
            note = recognised([step if number is None else number], [(rate, ranks)], BLOW_UP_IDEAS)
            raise Wrong(f"{case}: {shorten(step)}", f"{expected}for never", note)
        counts.append(f"{case}: {counted or 'never'}")
    return f"{'; '.join(counts)}, as counted"


def _off_by(steps: int) -> Callable[[float, int], int | None]:
    """The right step and so many more; no step at all if none is right."""

    def step(rate: float, ranks: int) -> int | None:
        right = _first_above((1 - ranks * rate) ** 2)
        return None if right is None else right + steps

    return step


BLOW_UP_IDEAS = (
    slip(
        "That is the growth of the error, |1 - N rate|; the loss is quadratic and grows by the square.",
        lambda rate, ranks: _first_above(abs(1 - ranks * rate)),
    ),
    Idea(
        "all_reduce averages",
        lambda rate, ranks: (
            f"As if all_reduce averaged: the sum of {ranks} means is {ranks} times one device's gradient."
        ),
        lambda rate, ranks: _first_above((1 - rate) ** 2),
    ),
    slip("A sign is wrong: 1 - N rate, not 1 + N rate.", lambda rate, ranks: _first_above((1 + ranks * rate) ** 2)),
    slip("One step early: step 1 has the loss before any update.", _off_by(-1)),
    slip("One step late: step 1 has the loss before any update.", _off_by(1)),
)


EXERCISES = (
    Exercise(
        "03.1",
        "the same as one device",
        tuple((name, 1) for name in OPTIMIZERS),
        (
            "Each rank's gradient is a mean over 4 rows. What is the sum of four of them, in terms of the mean "
            "over 16 rows?",
            "Look at the table of factors: SGD subtracts rate x gradient. What becomes of the factor in Adam's rule, "
            "and what is weight decay added to?",
            "For SGD only rate x gradient counts. In Adam's rule a common factor cancels out. Weight decay is added "
            "after the all_reduce, so it has no such factor.",
            "SGD with summed gradients: a quarter of the rate. Adam with summed gradients: the rate of one device. "
            "With weight decay no rate makes up for the sum: take the mean, and the rate of one device.",
        ),
        _same_as_one_device,
        ideas=(
            Idea(
                "all_reduce averages",
                "An all_reduce does not average",
                {"sgd": {"gradients_mean": False, "learning_rate": OPTIMIZERS["sgd"][1]}},
                "sgd",
            ),
        ),
        start="""\
settings = {
    "sgd": {"gradients_mean": False, "learning_rate": 0.1},
    "momentum": {"gradients_mean": False, "learning_rate": 0.1},
    "adam": {"gradients_mean": False, "learning_rate": None},
}

check("03.1", settings)
""",
    ),
    Exercise(
        "03.2",
        "weights for uneven rows",
        tuple((name, 1) for name in BATCHES),
        (
            "How much should one row count, on whichever rank it is?",
            "Write the mean over all rows as a sum over ranks. How do you get a rank's sum over its rows from its "
            "mean?",
            "A rank's mean times its number of rows is the sum over its rows.",
            "The weight of a rank is its number of rows divided by the number of rows of all ranks.",
        ),
        _uneven,
        drawn={name: partial(_drawn_rows, name) for name in BATCHES},
        ideas=(
            Idea(
                "the mean of means is the mean",
                "each rank counts the same",
                lambda rows: np.full(len(rows), 1 / len(rows)),
                "a short last rank",
            ),
        ),
        start="""\
def weights_for(rows):
    return [0 for _ in rows]


check("03.2", weights_for)
""",
    ),
    Exercise(
        "03.3",
        "the step at which summed gradients blow up",
        tuple((name, 1) for name in CASES),
        (
            "By what does one step multiply the distance from the minimum when the gradient is N times too large?",
            "The curvature is 1: the gradient of one device is the distance itself. Write down w - w* after one step "
            "with rate x N x gradient.",
            "The distance is multiplied by 1 - N rate, the loss by its square. Step 1 has the loss before any update.",
            "If (1 - N rate)^2 is at most 1, the answer is None. Otherwise it is the first step t at which that square "
            "to the power t - 1 is above a million: t - 1 is more than log(1e6) / log of the square.",
        ),
        _blow_up,
        drawn={name: partial(_drawn_rate, name) for name in CASES},
        ideas=(
            Idea(
                "all_reduce averages",
                "As if all_reduce averaged",
                lambda rate, ranks: _first_above((1 - rate) ** 2),
                "8 ranks at 0.6",
            ),
        ),
        start="""\
def blow_up_step(rate, ranks):
    return None


check("03.3", blow_up_step)
""",
    ),
    *OF_LESSON_03,
)
