"""Lesson 06, chains and redistribution: from rows to columns, a chain with one message, the chain that sends least."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np

from ...base.errors import shorten
from .book import Exercise
from .ideas import Idea, recognised, slip
from .reading import another_form, read_dict, reading, refusals, whole_numbers
from .running import ProgramRun, ask_programs
from .two_products import MANNERS, OPERATORS, SHAPE, Chain, least
from .verdict import Part, Wrong, judged

# ---- 06.1: from rows to columns ----

CASES = ((8, (64, 64)), (4, (8, 24)), (2, (6, 4)), (3, (12, 9)))  # (ranks, shape of the whole tensor)
ELEMENT = np.dtype(np.float32).itemsize


def _tensor(shape: tuple[int, int]) -> np.ndarray:
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


def _moved(answer: Any, ranks: int, tensor: np.ndarray) -> ProgramRun:
    """A run that ended with the right columns of the tensor on every rank. Raises Wrong."""
    rule = f"each rank's columns of a tensor {tensor.shape} on {ranks} ranks"
    run = ask_programs(rule, answer, ranks, [np.array(rows) for rows in np.split(tensor, ranks)])
    for rank, (value, right) in enumerate(zip(run.results, np.split(tensor, ranks, axis=1), strict=True)):
        with reading(value, "", "None", rule, "", rank):
            same = np.array_equal(value, right)
        if not same and isinstance(value, np.ndarray):
            raise Wrong(f"an array {value.shape}", rule, _columns_note(value, tensor, ranks, right), rank)
        if not same:
            raise Wrong(shorten(value), rule, "", rank)
    return run


def _columns_note(columns: np.ndarray, tensor: np.ndarray, ranks: int, right: np.ndarray) -> str:
    if note := recognised([columns], [(tensor, right)], COLUMN_IDEAS):
        return note
    if columns.shape[:1] == (tensor.shape[0] // ranks,):
        return "Those are the rows that the rank had at the start, or a part of them."
    if columns.shape == right.shape:
        return "The right shape, but the wrong elements: look at the order in which the pieces are joined."
    return ""


COLUMN_IDEAS = (  # of the whole tensor, and the columns of a rank
    slip("That is the whole tensor: keep this rank's columns of it.", lambda tensor, right: tensor),
    slip("Transposed: the rows of the answer are the rows of the tensor.", lambda tensor, right: right.T),
)


def _rows_to_columns(answer: Any) -> Iterator[Part]:
    if not callable(answer):
        raise another_form(answer, "a function: row_to_column(rank, ranks, rows)")
    runs = [(ranks, shape, _moved(answer, ranks, _tensor(shape))) for ranks, shape in CASES]
    cases = ", ".join(f"{shape} on {ranks}" for ranks, shape in CASES)
    yield Part("columns", True, f"right on every rank: {cases}")
    yield judged("received", _received, runs)
    yield judged("held at once", _held, runs)


def _drawn_tensor(answer: Any, rng: np.random.Generator) -> None:
    """Numbers that a rank cannot know: those of `check` are 0, 1, 2, ..."""
    ranks = int(rng.integers(2, 7))
    rows, columns = (ranks * int(n) for n in rng.integers(1, 5, 2))
    _moved(answer, ranks, rng.normal(size=(rows, columns)).astype(np.float32))


def _received(runs: list[tuple[int, tuple[int, int], ProgramRun]]) -> str:
    """What arrives in all is what is sent in all; each rank lacks (p - 1)/p of its columns."""
    texts = []
    for ranks, shape, run in runs:
        sent = sum(run.sent_bytes(rank) for rank in range(ranks)) // ELEMENT // ranks
        par = int(np.prod(shape)) // ranks * (ranks - 1) // ranks
        texts.append(f"{shape} on {ranks} ranks: {sent:,} elements arrive at a rank, {sent / par:.2f} x par")
        if sent > par:
            kinds = {request.kind for request in run.asked}
            note = "An all_gather brings every rank the whole tensor, and it needs only its columns."
            rule = f"{par:,}: of its columns a rank lacks all but its own rows"
            raise Wrong(texts[-1], rule, note if "all_gather" in kinds else "Some elements arrive that nobody needs.")
    return texts[0]


def _held(runs: list[tuple[int, tuple[int, int], ProgramRun]]) -> str:
    ranks, shape, run = runs[0]
    own = int(np.prod(shape)) // ranks
    held = max([2 * own, *(request.held_bytes // ELEMENT for request in run.asked)])
    if held > 2 * own:
        rule = f"{2 * own:,}: the rows that it had, and the columns that it gets"
        raise Wrong(f"{held:,} elements on a rank in one message", rule, "Hand over pieces, and get pieces back.")
    return f"{held:,} elements at most: the rows, and the columns"


# ---- 06.2 and 06.3: two products ----

FORM = 'a dict such as {"matmul": ((2, 4), (4, 1)), "relu": ((2, 4),), "matmul2": ((2, 4), (4, 1))}'
MOST = 4  # entries of a strategy


def _read_chain(answer: Any) -> Chain:
    entries = dict(islice(read_dict(answer, FORM, "no strategies yet").items(), len(OPERATORS) + 2))
    manner = entries.pop("redistribution", "gather")
    if not isinstance(manner, str) or manner not in MANNERS:
        raise Wrong(f"redistribution={shorten(manner)}", form=f"one of {', '.join(MANNERS)}")
    unknown = [name for name in entries if name not in OPERATORS]
    if unknown or not entries:
        raise Wrong(f"operator {shorten(unknown[0])}" if unknown else "no operator", form=FORM)
    with reading(answer, FORM), refusals("strategies that compile"):
        strategies = {
            name: tuple(whole_numbers(each, MOST) for each in islice(strategy, MOST))
            for name, strategy in entries.items()
        }
        chain = Chain(strategies, manner)
        _ = chain.plan
    return chain


def _kinds(chain: Chain, phase: str | None = None) -> str:
    kinds = [instr.kind for instr in chain.messages(phase)]
    return ", ".join(f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds)) or "nothing"


WEIGHTS = {"w": SHAPE[1] * SHAPE[2], "w2": SHAPE[2] * SHAPE[3]}  # their elements
DATA_PARALLEL = {"matmul": ((8, 1), (1, 1)), "relu": ((8, 1),), "matmul2": ((8, 1), (1, 1))}
WHOLE = Idea(
    "weights whole everywhere",
    "Whole weights on every rank: that is data parallel. A network that is too large must have them split.",
    DATA_PARALLEL,
    "slices of the weights",
)
PURE = Idea(
    "weights whole everywhere",
    "Pure data parallel: every rank holds all weights, so the gradients of all of w and w2 are all-reduced.",
    DATA_PARALLEL,
    "better than the quickstart",
)
KNOWN = {  # elements that known chains send
    768: "That is the quickstart's choice: both products split k, and both sums are added up.",
    384: "Column-wise, then row-wise: one all_reduce forward. The rest is the all_reduce of the weights' gradients.",
}


def _one_message(answer: Any) -> Iterator[Part]:
    chain = _read_chain(answer)
    yield Part("compiles", True, f"forward: {_kinds(chain, 'forward')}")
    small = judged("slices of the weights", _small_weights, chain)
    yield small
    if small.passed:
        yield judged("one message", _single, chain)
    yield judged("same numbers", _same_losses, chain)


def _small_weights(chain: Chain) -> str:
    held = chain.weight_elements()
    for name, size in held.items():
        quarter = WEIGHTS[name] // 4
        if size > quarter:
            note = WHOLE.told if size == WEIGHTS[name] else ""
            raise Wrong(f"{name}: {size} elements on a rank", f"at most a quarter, {quarter}", note)
    return ", ".join(f"{name}: {size} elements" for name, size in held.items())


def _single(chain: Chain) -> str:
    messages = chain.messages("forward")
    text = f"forward: {_kinds(chain, 'forward')}"
    if len(messages) > 1:
        raise Wrong(text, "one all_reduce, at the end", f"Why the first one is there: {messages[0].reason}.")
    return text


def _same_losses(chain: Chain) -> str:
    split, alone = chain.losses(3)
    if not np.allclose(split, alone, rtol=1e-5):
        raise Wrong(f"losses {split}", f"{alone}, one device's")
    return "three steps on 8 simulated ranks: the losses of one device, to rounding"


def _least_sent(answer: Any) -> Iterator[Part]:
    chain = _read_chain(answer)
    yield Part("compiles", True, _kinds(chain))
    yield judged("better than the quickstart", _below, chain, 767, "fewer than 768, the quickstart's")
    yield judged("better than columns, then rows", _below, chain, 383, "fewer than 384: column-wise, then row-wise")
    if chain.sent_elements < 384:
        par = least().sent_elements
        yield judged("par", _below, chain, par, f"{par}: no strategies send less, by exact search")


def _below(chain: Chain, most: int, rule: str) -> str:
    sent = chain.sent_elements
    text = f"{sent:,} elements sent by a rank in a step, counted from the plan: {_kinds(chain)}"
    if sent > most:
        raise Wrong(text, rule, PURE.told if chain.weight_elements() == WEIGHTS else KNOWN.get(sent, ""))
    return text


def _par_text() -> str:
    chain = least()
    answer = {**chain.strategies, "redistribution": chain.redistribution}
    return f"{answer}: {chain.sent_elements} elements"


EXERCISES = (
    Exercise(
        "06.1",
        "from rows to columns",
        (("columns", 1), ("received", 2), ("held at once", 1)),
        (
            "Which part of the columns that a rank needs does every other rank have?",
            "Draw the tensor as ranks x ranks blocks. Which block goes from rank 2 to rank 5?",
            "Every rank has a block for every other: that is an all_to_all. Along which dim are its rows cut, and "
            "along which dim are the arriving blocks joined?",
            "One all_to_all among all ranks: the rows are cut along dim 1, what arrives is joined along dim 0.",
        ),
        _rows_to_columns,
        drawn=dict.fromkeys(("columns", "received", "held at once"), _drawn_tensor),
        start='''\
def row_to_column(rank, ranks, rows):
    """rows: this rank's rows of the tensor. Returns its columns, from top to bottom."""
    whole = yield Request("all_gather", tuple(range(ranks)), rows, dim=0)
    return whole


check("06.1", row_to_column)
''',
    ),
    Exercise(
        "06.2",
        "a chain with one message",
        (("compiles", 1), ("slices of the weights", 1), ("one message", 2), ("same numbers", 1)),
        (
            "Which dims of the first product may be split without a partial sum?",
            "What the first product leaves is what the second one reads. Which dim of the first is the second's k?",
            "Split the columns of w in the first product. Its result is then split in columns, and the ReLU works "
            "element by element: keep that split.",
            "First product: rows of x in 2, columns of w in 4. ReLU: 2 and 4. Second: rows of x in 2, k in 4.",
        ),
        _one_message,
        ideas=(WHOLE,),
        start="""\
strategies = {"matmul": ((2, 4), (4, 1)), "relu": ((2, 4),), "matmul2": ((2, 4), (4, 1))}

check("06.2", strategies)
""",
    ),
    Exercise(
        "06.3",
        "beat the quickstart",
        (("compiles", 1), ("better than the quickstart", 1), ("better than columns, then rows", 1), ("par", 2)),
        (
            "Column-wise, then row-wise sends 384. Which messages are left, and for which of the three dims?",
            "The gradient of a weight is added up over the ranks with other rows. What if no rows are split?",
            "The first weight is the larger one. Split its columns 8 ways: then nothing is sent for it at all.",
            "First product: columns of w in 8. Second: rows whole, k in 2, columns of w2 in 4. What the ReLU hands on "
            "is gathered in small groups.",
        ),
        _least_sent,
        _par_text,
        "better than the quickstart",
        ideas=(PURE,),
        start="""\
chain = {"matmul": ((2, 4), (4, 1)), "relu": ((2, 4),), "matmul2": ((2, 4), (4, 1)), "redistribution": "gather"}

check("06.3", chain)
""",
    ),
)
