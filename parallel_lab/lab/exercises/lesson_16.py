"""Lesson 16, expert parallel: capacity, splits, the divisor of experts' gradients, copies of experts, letters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np

from ...base.units import bytes_text
from ...cost.expert_placement import place_experts
from ...cost.planner.clusters import get_machine
from ...cost.planner.decoder_point import LEAST_TOKENS
from ...cost.planner.degrees import Degrees, GradientRule
from ...cost.planner.outer import Found, search_plans
from ...cost.planner.predict import Prediction, predict_point
from ...ops.expert_capacity import capacity
from ...ops.expert_rows import exchange_splits
from .book import Exercise
from .ideas import MISCONCEPTIONS, Cases, Idea, by_cases, earlier_question, slip
from .reading import another_form, read_dict, reading, whole_numbers
from .running import listed
from .verdict import Part, reached

# ---- 16.1: capacity ----

TOKENS_ALONE = "a capacity factor counts tokens"
ROOMS = (
    Idea(TOKENS_ALONE, MISCONCEPTIONS[TOKENS_ALONE], lambda t, e, k, f: max(int(t * f / e), 0)),
    slip("Rounded up, but without k: a token makes k choices.", lambda t, e, k, f: int(np.ceil(t * f / e))),
    slip(
        "That is Tutel's: it rounds the slots of one choice, and multiplies by k.", lambda *of: capacity(*of, "tutel")
    ),
    slip("Rounded down: a slot is missing where it does not divide.", lambda t, e, k, f: int(t * k / e * f)),
)
FACTORS = [(8, 8, 2, 1.0), (8, 8, 2, 1.25), (32, 8, 1, 1.1), (100, 16, 4, 1.5)]


def _factors(rng: np.random.Generator) -> list[tuple[int, int, int, float]]:
    return [(int(rng.integers(8, 99)), 8, int(rng.integers(2, 5)), float(rng.integers(5, 9)) / 4) for _ in range(4)]


# ---- 16.2: splits ----


def row_splits(rank: int, counts: np.ndarray, owners: np.ndarray) -> tuple[list[int], list[int]]:
    """Rows that a rank gives each, and gets of each.  counts: (ranks, experts), rows of each rank for each expert;
    owners: (experts,), the rank of each."""
    sent = np.stack([counts[:, owners == r].sum(axis=1) for r in range(len(counts))], axis=1)
    return sent[rank].tolist(), sent[:, rank].tolist()


def _in_order(rank: int, counts: np.ndarray, owners: Any = None) -> tuple[list[int], list[int]]:
    sent, received = exchange_splits(np.asarray(counts))
    return sent[rank].tolist(), received[rank].tolist()


def _without_own(rank: int, *of: np.ndarray) -> tuple[list[int], ...]:
    return tuple([n * (r != rank) for r, n in enumerate(each)] for each in row_splits(rank, *of))


SPLITS = (
    slip("The two are exchanged: input_splits are the rows that this rank gives.", lambda *of: row_splits(*of)[::-1]),
    slip("A rank gives a row of the table, and gets a column.", lambda *of: (row_splits(*of)[0],) * 2),
    slip("Rows for a rank's own experts are in the exchange, too: they go to itself.", _without_own),
    slip("As if the experts lay next to each other, as many on each rank: owners says where they lie.", _in_order),
    slip(
        "A rank has several experts: add up the columns that are its own.",
        lambda rank, counts, owners: (counts[rank].tolist(), counts[:, rank].tolist()),
    ),
)


def _counted(rng: np.random.Generator, ranks: int, empty: bool = False) -> list[tuple[int, np.ndarray, np.ndarray]]:
    """Each rank's call; empty: nobody's tokens choose an expert of the last rank."""
    counts, owners = (
        rng.integers(0, 5, (ranks, 2 * ranks)),
        rng.permutation([*range(ranks), *rng.integers(0, ranks, ranks)]),
    )
    counts[:, owners == ranks - 1] *= not empty
    return [(rank, counts, owners) for rank in range(ranks)]


def _ordered(rng: np.random.Generator, ranks: int) -> list[tuple[int, np.ndarray]]:
    """As an earlier edition of 16.2 called."""
    return [(rank, counts) for rank, counts, _ in _counted(rng, ranks)]


ROWS = "rows for the experts of each rank; rows from each"


def _splits(name: str, points: int, ideas: tuple[Idea, ...], draw: Any, *how: Any) -> Cases:
    return Cases(name, points, draw(np.random.default_rng(4), *how), ROWS, ideas, lambda rng: draw(rng, *how))


# ---- 16.3: the divisor ----


def _rule(tp: int, cp: int, dp: int, ep: int, experts: int) -> GradientRule:
    return Degrees(tp * cp * dp, tensor=tp, context=cp, expert=ep).gradients


def divisor(*degrees: int) -> int:
    """What an expert's gradient is divided by, summed over its copies."""
    return _rule(*degrees).divisor


OWN_GROUP = "an expert is averaged over its copies"
DIVISORS = (
    Idea(
        OWN_GROUP,
        lambda *of: (
            f"{MISCONCEPTIONS[OWN_GROUP]} {_rule(*of).expert_factor_if_divided_by_own_group:g} x one device's gradient."
        ),
        lambda *of: _rule(*of).expert_group,
    ),
    slip("Those are copies. How many ranks' tokens reach one copy?", lambda tp, cp, dp, ep, _: cp * dp // ep),
    slip(
        lambda *of: f"By the experts: {divisor(*of) / of[4]:g} x one device's gradient. They do not make the mean.",
        lambda *of: of[4],
    ),
    slip(
        "Ranks of tp have the same tokens, and the same loss: only those of dp and cp differ.",
        lambda *of: of[0] * of[1] * of[2],
    ),
    slip("Ranks of cp have tokens of their own, too, and a mean of their own.", lambda *of: of[2]),
)
DEGREES = [(1, 1, 4, 4, 8), (2, 1, 4, 4, 8), (1, 2, 4, 8, 16), (2, 2, 2, 4, 32)]


def _degrees(rng: np.random.Generator) -> list[tuple[int, ...]]:
    tp, cp, dp, ep = (2 ** int(n) for n in rng.integers((0, 1, 1, 1), (3, 3, 4, 3)))
    return [(tp, cp, dp, ep, 4 * ep)]


# ---- 16.4: copies of experts ----

DEVICES, ROOM = 4, 3  # experts that a device has room for
# {rows of each expert: rows of the busiest device, the least there is}; a test tries every number of copies and every
# packing. Chosen from random lists: EPLB is at least 3 % above par, and par above the mean
LOADS = {
    (35, 35, 31, 31, 28, 13, 2, 2): 44.5,
    (33, 31, 23, 22, 22, 18, 15, 5): 42.5,
    (35, 34, 25, 19, 13, 4, 2, 2): 34,
    (38, 38, 35, 23, 17, 17, 13, 2): 46,
    (38, 35, 31, 30, 17, 16, 11, 7): 46.5,
    (37, 33, 26, 25, 16, 5, 4, 2): 37.5,
    (37, 30, 26, 22, 15, 10, 6, 4): 38,
    (39, 35, 34, 29, 25, 23, 15, 7): 52,
    (39, 39, 32, 30, 25, 21, 9, 9): 51.5,
    (36, 26, 26, 21, 12, 4, 2, 2): 32.5,
    (36, 35, 32, 27, 26, 20, 8, 2): 47,
    (33, 33, 32, 29, 21, 19, 12, 2): 45.5,
    (36, 31, 27, 15, 11, 7, 5, 2): 34,
    (39, 37, 26, 19, 14, 14, 9, 8): 42,
}
PLACED_FORM = "A list of 4 lists of 3 experts, 0 to 7, each expert in it once at least: [[0, 1, 2], ...]"


def busiest_rows(devices: Any, load: Sequence[int]) -> float:
    """Rows of the busiest device: the copies of an expert share its rows."""
    copies = [sum(device.count(expert) for device in devices) for expert in range(len(load))]
    return max(sum(load[expert] / copies[expert] for expert in device) for device in devices)


def eplb_rows(load: Sequence[int]) -> float:
    """The same of EPLB's placement."""
    return busiest_rows(place_experts(load, DEVICES * ROOM, DEVICES).devices, load)


def _placed(load: tuple[int, ...], answer: Any, /) -> Iterator[Part]:
    with reading(answer, PLACED_FORM, "no list yet"):
        devices = [list(whole_numbers(device, ROOM + 1, flags=False)) for device in listed(answer)]
    if list(map(len, devices)) != [ROOM] * DEVICES or {e for device in devices for e in device} != {*range(len(load))}:
        raise another_form(answer, PLACED_FORM)
    rows, greedy, least = busiest_rows(devices, load), eplb_rows(load), LOADS[load]
    text = f"the busiest device gets {rows:.4g} rows: {rows / least:.3f} x par"
    yield Part("places", True, f"the busiest device gets {rows:.4g} rows")
    note = "EPLB gives copies to the largest load per copy, then packs. A copy more of a smaller one may pack better."
    yield reached("beats EPLB", rows < greedy - 1e-9, text, f"less than EPLB's {greedy:.4g}", note)
    yield reached("par", rows < least + 1e-9, text, f"{least}: no placement has less, by exact search", note)


def _of_load(load: tuple[int, ...]) -> dict[str, Any]:
    """What 16.4 is for these rows."""
    mean, listed_rows = sum(load) / DEVICES, ", ".join(map(str, load))
    return {
        "numbers": f"experts with {listed_rows} rows\nEPLB comes to {eplb_rows(load):.4g} rows, the mean is {mean:g}",
        "grader": partial(_placed, load),
        "par": lambda: f"{LOADS[load]} rows on the busiest device, by exact search over copies and packings",
        "hints": (
            "What does a second copy of an expert do to the rows of the device that has the first?",
            "How many rows should each device get, and which experts have nearly as many alone?",
            "Four places are spare. Give copies to experts so that the parts can be packed into four equal sums.",
            f"Try numbers of copies, and pack each by hand or by a loop: three to a device, sums next to {mean:g}.",
        ),
    }


# ---- 16.5: which letter first ----

MODEL, LETTERS = "mixtral_8x7b", ("tensor", "context", "stages", "expert")
WEIGHTS = "context parallel shares out the weights"


@dataclass(frozen=True)
class Budgets:
    """The puzzle for so many devices, tokens of a sequence, sequences of a step, 1e9 bytes held at once and sent."""

    ranks: int
    tokens: int
    batch: int
    held: int
    sent: int

    @property
    def form(self) -> str:
        """The form of an answer."""
        return f"A dict with {', '.join(LETTERS)}: powers of two whose product, without expert, divides {self.ranks}"

    @property
    def context_alone(self) -> Idea:
        """The sequence on as many ranks as there may be, and nothing else."""
        alone = dict(zip(LETTERS, (1, min(self.ranks, self.tokens // LEAST_TOKENS), 1, 1), strict=True))
        return Idea(WEIGHTS, MISCONCEPTIONS[WEIGHTS], alone, "fits")

    def fits(self, run: Prediction) -> bool:
        """Whether it sends no more than it may."""
        return sent_bytes(run) <= 1e9 * self.sent

    @property
    def _best(self) -> Prediction:
        """The fastest run within both budgets."""
        return next(run for run in _priced(self).values() if self.fits(run))


COMMON = Budgets(64, 32_768, 64, 78, 190)
# chosen by pricing all runs for many budgets: at least two runs that fit into the memory are faster and send too much,
# four or more are within both budgets, and the next one is at least 0.4 % slower than par; a test prices them again
OWN_BUDGETS = (
    *(Budgets(64, 16_384, 128, *gigabytes) for gigabytes in ((51, 120), (60, 135), (64, 115))),
    *(Budgets(64, 32_768, 128, *gigabytes) for gigabytes in ((70, 330), (78, 350))),
    *(Budgets(128, 32_768, 128, *gigabytes) for gigabytes in ((50, 165), (72, 145), (76, 190), (78, 145))),
    *(Budgets(128, 65_536, 32, *gigabytes) for gigabytes in ((44, 175), (48, 135), (52, 135))),
    *(Budgets(128, 65_536, 64, *gigabytes) for gigabytes in ((74, 220), (76, 205), (76, 220))),
)


@lru_cache(maxsize=32)
def found(budgets: Budgets) -> Found:
    """Every run, held against the memory by the planner."""
    space = {"ways": ("zigzag",), "recompute": ("none",), "micro_batch": (1,), "levels": (1,)}
    how = {"seq_length": budgets.tokens, "memory_bytes": 1e9 * budgets.held, **space}
    return search_plans(MODEL, get_machine("dgx_h100", budgets.ranks), budgets.batch, **how)


@lru_cache(maxsize=32)
def _priced(budgets: Budgets) -> dict[tuple[int, ...], Prediction]:
    """The runs that have room, by their letters, the fastest first."""
    runs, machine = found(budgets).verdicts, found(budgets).machine
    kept = [predict_point(MODEL, v.point, machine) for v in runs if v.kind not in ("misfit", "states", "memory")]
    return {letters_of(run.point): run for run in sorted(kept, key=lambda run: run.step_s)}


def letters_of(point: Any) -> tuple[int, ...]:
    """Degrees of a plan's point, in the order of LETTERS."""
    return tuple(getattr(point, name) for name in LETTERS)


def sent_bytes(run: Prediction) -> float:
    """What a rank sends in a step, inside its node and out of it."""
    return sum(run.sent_bytes.values())


def _letters(budgets: Budgets, answer: Any, /) -> Iterator[Part]:
    with reading(answer, budgets.form, "no run yet"):
        chosen = whole_numbers([read_dict(answer, budgets.form)[name] for name in LETTERS], flags=False)
    verdicts = {letters_of(v.point): v for v in found(budgets).verdicts}
    if set(answer) != set(LETTERS) or chosen not in verdicts:
        raise another_form(answer, budgets.form)
    verdict, run, best = verdicts[chosen], _priced(budgets).get(chosen), budgets._best
    yield Part("a run", True, verdict.point.text())
    over = budgets.context_alone.told if chosen[1] > 1 and {*chosen} == {1, chosen[1]} else ""
    limits = f"at most {bytes_text(1e9 * budgets.held)} on every rank, {bytes_text(1e9 * budgets.sent)} sent by it"
    sends = (
        f"it needs {bytes_text(run.memory_bytes)}, and sends {bytes_text(sent_bytes(run))}" if run else verdict.reason
    )
    fits = run is not None and budgets.fits(run)
    yield reached("fits", fits, sends, limits, over)
    if run and fits:
        text = f"a step of {run.step_s:.3f} s, predicted: {run.step_s / best.step_s:.3f} x par"
        most = max(run.terms[1:], key=lambda name: getattr(run, name) - getattr(best, name)).removesuffix("_s")
        note, least = f"What it loses most by: {most}.", best.step_s
        yield reached("near par", run.step_s <= 1.02 * least, text, f"{1.02 * least:.3f} s", note)
        par_text = f"{least:.3f} s: the planner has priced all runs"
        yield reached("par", run.step_s <= least * (1 + 1e-9), text, par_text, note)


def _of_budgets(budgets: Budgets, last_hint: str = "") -> dict[str, Any]:
    """What 16.5 is for these budgets.  last_hint: instead of the one that follows from the best run"""
    limits = [f"{count} GB ({bytes_text(1e9 * count)})" for count in (budgets.held, budgets.sent)]
    job = f"{budgets.ranks} H100, {budgets.batch} sequences of {budgets.tokens:,} tokens"

    def par() -> str:
        count = len(found(budgets).verdicts)
        return f"a step of {budgets._best.step_s:.3f} s, the fastest within both budgets of {count} runs"

    if not last_hint:
        tensor, context, stages, expert = letters_of(budgets._best.point)
        last_hint = f"{expert} ranks share out the experts, {tensor} a product, {context} a sequence; stages: {stages}."
    return {
        "numbers": f"{job}, at most {limits[0]} held and {limits[1]} sent",
        "grader": partial(_letters, budgets),
        "par": par,
        "ideas": (budgets.context_alone,),
        "hints": (
            "Which letters make a rank's weights fewer, and which its activations?",
            "No letter fits alone: try several, with check. A verdict on a run that fits names what it loses most by.",
            "Experts are nine tenths of the weights: begin there, then activations. Each letter has a price.",
            last_hint,
        ),
    }


EXERCISES = (
    Exercise(
        "16.1",
        "capacity",
        hints=(
            "How many choices do the tokens make, and how many would each expert get if all got the same?",
            "Set a capacity factor in the Expert Lab, and look at the line: where is it for factors of 1 and 1.25?",
            "Megatron and MindSpore count choices, k of each token, and round up.",
            "Tokens times k over experts, times the factor, rounded up to a whole number.",
        ),
        **by_cases(
            lambda *of: capacity(*of, "megatron"),
            Cases("slots", 3, FACTORS, "choices over experts, times the factor, rounded up", ROOMS, _factors),
        ),
        start="""\
def room(tokens, experts, k, factor):
    return int(tokens * factor / experts)


check("16.1", room)
""",
    ),
    Exercise(
        "16.2",
        "splits",
        hints=(
            "Which numbers of the counts, added up, are what this rank gives to rank 2?",
            "Look at the exchange in the Expert Lab: a row of it is what a rank gives, a column what it gets.",
            "Make a table of ranks by ranks: its column r is the sum of the columns of those experts that rank r has.",
            "Add up the experts of each rank. In that table input_splits is this rank's row, output_splits its column.",
        ),
        **by_cases(
            row_splits,
            _splits("4 ranks", 2, SPLITS, _counted, 4),
            _splits("a rank gets nothing", 1, (), _counted, 4, True),
            _splits("other ranks", 1, (), _counted, 3),
        ),
        start="""\
def row_splits(rank, counts, owners):
    input_splits = [0] * len(counts)
    output_splits = [0] * len(counts)
    return input_splits, output_splits


check("16.2", row_splits)
""",
        earlier=earlier_question(
            "splits",
            _in_order,
            *(_splits(*each, (), _ordered, ranks) for *each, ranks in (("4 ranks", 2, 4), ("other ranks", 2, 3))),
        ),
    ),
    Exercise(
        "16.3",
        "the divisor of an expert",
        hints=(
            "How many means are there, of how many different groups of tokens?",
            "Run the broken training below: which parameters are divided by something else than the others?",
            "The loss is a mean over all tokens. How many there are does not depend on where experts lie.",
            "The same as for every other parameter: dp times cp.",
        ),
        **by_cases(divisor, Cases("divisor", 3, DEGREES, "dp x cp, as for dense parameters", DIVISORS, _degrees)),
        start='def divisor(tp, cp, dp, ep, experts):\n    return tp * cp * dp // ep\n\n\ncheck("16.3", divisor)\n',
    ),
    Exercise(
        "16.4",
        "copies of experts",
        (("places", 1), ("beats EPLB", 1), ("par", 2)),
        attempt="beats EPLB",
        own=lambda rng: _of_load(list(LOADS)[int(rng.integers(len(LOADS)))]),
        **_of_load(next(iter(LOADS))),
        start='devices = [[0, 0, 1], [1, 2, 3], [4, 5, 6], [7, 2, 3]]\n\ncheck("16.4", devices)\n',
    ),
    Exercise(
        "16.5",
        "which letter first",
        (("a run", 1), ("fits", 1), ("near par", 1), ("par", 2)),
        attempt="near par",
        own=lambda rng: _of_budgets(OWN_BUDGETS[int(rng.integers(len(OWN_BUDGETS)))]),
        **_of_budgets(
            COMMON, "All eight experts apart, two ranks to a product, then a few each for the sequence and the stages."
        ),
        start="""\
run = {"tensor": 1, "context": 1, "stages": 1, "expert": 1}

check("16.5", run)
""",
    ),
)
