"""Lesson 06, chains and redistribution: from rows to columns, a chain with one message, the chain that sends least."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from operator import index as whole
from typing import Any

import numpy as np

from ...base.errors import ParallelLabError, shorten
from .book import Exercise
from .ideas import Idea
from .running import ProgramRun, run_programs
from .two_products import MANNERS, OPERATORS, SHAPE, Chain, least
from .verdict import Note, Part, Wrong, judged

# ---- 06.1: from rows to columns ----

CASES = ((8, (64, 64)), (4, (8, 24)), (2, (6, 4)), (3, (12, 9)))  # (ranks, shape of the whole tensor)
ELEMENT = np.dtype(np.float32).itemsize


def _tensor(shape: tuple[int, int]) -> np.ndarray:
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


def _moved(answer: Any, ranks: int, tensor: np.ndarray) -> ProgramRun:
    """A run that ended with the right columns of the tensor on every rank. Raises Wrong."""
    shape = tensor.shape
    run = run_programs(answer, ranks, [np.array(rows) for rows in np.split(tensor, ranks)])
    what = f"each rank's columns of a tensor {shape} on {ranks} ranks"
    if run.fault is not None:
        raise run.fault.wrong(what)
    for rank, (found, right) in enumerate(zip(run.results, np.split(tensor, ranks, axis=1), strict=True)):
        try:
            same = np.array_equal(found, right)
        except Exception as error:  # whatever a learner's object does
            raise Wrong(shorten(found), what, "", rank) from error
        if not same:
            text = f"an array {found.shape}" if isinstance(found, np.ndarray) else shorten(found)
            raise Wrong(text, what, _columns_note(found, right, tensor, ranks), rank)
    return run


def _columns_note(found: Any, right: np.ndarray, tensor: np.ndarray, ranks: int) -> str:
    if not isinstance(found, np.ndarray):
        return ""
    if np.array_equal(found, tensor):
        return "That is the whole tensor: keep this rank's columns of it."
    if found.shape == right.T.shape and np.array_equal(found, right.T):
        return "Transposed: the rows of the answer are the rows of the tensor."
    if found.shape[:1] == (tensor.shape[0] // ranks,):
        return "Those are the rows that the rank had at the start, or a part of them."
    if found.shape == right.shape:
        return "The right shape, but the wrong elements: look at the order in which the pieces are joined."
    return ""


def _rows_to_columns(answer: Any) -> Iterator[Part]:
    if not callable(answer):
        raise Wrong(shorten(answer), form="a function: row_to_column(rank, ranks, rows)")
    runs = [(ranks, shape, _moved(answer, ranks, _tensor(shape))) for ranks, shape in CASES]
    told = ", ".join(f"{shape} on {ranks}" for ranks, shape in CASES)
    yield Part("columns", True, f"right on every rank: {told}")
    yield judged("received", _received, runs)
    yield judged("held at once", _held, runs)


def _drawn_tensor(answer: Any, rng: np.random.Generator) -> None:
    """Numbers that a rank cannot know: those of `check` are 0, 1, 2, ..."""
    ranks = int(rng.integers(2, 7))
    rows, columns = (ranks * int(n) for n in rng.integers(1, 5, 2))
    _moved(answer, ranks, rng.normal(size=(rows, columns)).astype(np.float32))


def _received(runs: list[tuple[int, tuple[int, int], ProgramRun]]) -> str:
    """What arrives in all is what is sent in all; each rank lacks (p - 1)/p of its columns."""
    told = []
    for ranks, shape, run in runs:
        sent = sum(run.sent_bytes(rank) for rank in range(ranks)) // ELEMENT // ranks
        par = int(np.prod(shape)) // ranks * (ranks - 1) // ranks
        found = f"{shape} on {ranks} ranks: {sent:,} elements arrive at a rank, {sent / par:.2f} x par"
        if sent > par:
            kinds = {asked.kind for asked in run.asked}
            note = "An all_gather brings every rank the whole tensor, and it needs only its columns."
            rule = f"{par:,}: of its columns a rank lacks all but its own rows"
            raise Wrong(found, rule, note if "all_gather" in kinds else "Some elements arrive that nobody needs.")
        told.append(found)
    return told[0]


def _held(runs: list[tuple[int, tuple[int, int], ProgramRun]]) -> str:
    ranks, shape, run = runs[0]
    own = int(np.prod(shape)) // ranks
    held = max([2 * own, *(asked.held_bytes // ELEMENT for asked in run.asked)])
    if held > 2 * own:
        rule = f"{2 * own:,}: the rows that it had, and the columns that it gets"
        raise Wrong(f"{held:,} elements on a rank in one message", rule, "Hand over pieces, and get pieces back.")
    return f"{held:,} elements at most: the rows, and the columns"


# ---- 06.2 and 06.3: two products ----

FORM = '{"matmul": ((2, 4), (4, 1)), "relu": ((2, 4),), "matmul2": ((2, 4), (4, 1))}'
MOST = 4  # entries of a strategy


def _read_chain(answer: Any) -> Chain:
    if not isinstance(answer, Mapping):
        raise Wrong("no strategies yet" if answer is None else shorten(answer), form=f"a dict such as {FORM}")
    given = dict(islice(answer.items(), len(OPERATORS) + 2))
    manner = given.pop("redistribution", "gather")
    if not isinstance(manner, str) or manner not in MANNERS:
        raise Wrong(f"redistribution={shorten(manner)}", form=f"one of {', '.join(MANNERS)}")
    unknown = [name for name in given if name not in OPERATORS]
    if unknown or not given:
        raise Wrong(f"operator {shorten(unknown[0])}" if unknown else "no operator", form=f"a dict such as {FORM}")
    try:
        strategies = {
            name: tuple(tuple(whole(n) for n in islice(each, MOST)) for each in islice(strategy, MOST))
            for name, strategy in given.items()
        }
        chain = Chain(strategies, manner)
        _ = chain.plan
    except ParallelLabError as error:
        raise Wrong(str(error), "strategies that compile") from error
    except Exception as error:  # whatever a learner's object does
        raise Wrong(shorten(answer), form=f"a dict such as {FORM}") from error
    return chain


def _told(chain: Chain, phase: str | None = None) -> str:
    kinds = [instr.kind for instr in chain.messages(phase)]
    return ", ".join(f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds)) or "nothing"


def _one_message(answer: Any) -> Iterator[Part]:
    chain = _read_chain(answer)
    yield Part("compiles", True, f"forward: {_told(chain, 'forward')}")
    small = judged("slices of the weights", _small_weights, chain)
    yield small
    if small.passed:
        yield judged("one message", _single, chain)
    yield judged("same numbers", _same_losses, chain)


def _small_weights(chain: Chain) -> str:
    _, wide, hidden, out = SHAPE
    most = {"w": wide * hidden // 4, "w2": hidden * out // 4}
    held = chain.weight_elements()
    for name, size in held.items():
        if size > most[name]:
            note = Note(
                "Whole weights on every rank: that is data parallel. A network that is too large must have them split.",
                "weights whole everywhere",
            )
            whole_one = size == 4 * most[name]
            raise Wrong(
                f"{name}: {size} elements on a rank", f"at most a quarter, {most[name]}", note if whole_one else ""
            )
    return ", ".join(f"{name}: {size} elements" for name, size in held.items())


def _single(chain: Chain) -> str:
    messages = chain.messages("forward")
    if len(messages) > 1:
        note = f"Why the first one is there: {messages[0].reason}."
        raise Wrong(f"forward: {_told(chain, 'forward')}", "one all_reduce, at the end", note)
    return f"forward: {_told(chain, 'forward')}"


def _same_losses(chain: Chain) -> str:
    split, alone = chain.losses(3)
    if not np.allclose(split, alone, rtol=1e-5):
        raise Wrong(f"losses {split}", f"{alone}, one device's")
    return "three steps on 8 simulated ranks: the losses of one device, to rounding"


def _least_sent(answer: Any) -> Iterator[Part]:
    chain = _read_chain(answer)
    yield Part("compiles", True, _told(chain))
    yield judged("better than the quickstart", _below, chain, 767, "fewer than 768, the quickstart's")
    yield judged("better than columns, then rows", _below, chain, 383, "fewer than 384: column-wise, then row-wise")
    if chain.sent_elements < 384:
        par = least().sent_elements
        yield judged("par", _below, chain, par, f"{par}: no strategies send less, by exact search")


DATA_PARALLEL = {"matmul": ((8, 1), (1, 1)), "relu": ((8, 1),), "matmul2": ((8, 1), (1, 1))}
PURE = "Pure data parallel: every rank holds all weights, so the gradients of all of w and w2 are all-reduced."


def _below(chain: Chain, most: int, rule: str) -> str:
    sent = chain.sent_elements
    found = f"{sent:,} elements sent by a rank in a step, counted from the plan: {_told(chain)}"
    if sent <= most:
        return found
    note: str = ""
    if chain.weight_elements() == {"w": SHAPE[1] * SHAPE[2], "w2": SHAPE[2] * SHAPE[3]}:
        note = Note(PURE, "weights whole everywhere")
    elif sent == 768:
        note = "That is the quickstart's choice: both products split k, and both sums are added up."
    elif sent == 384:
        note = (
            "Column-wise, then row-wise: one all_reduce forward. The rest is the all_reduce of the weights' gradients."
        )
    raise Wrong(found, rule, note)


def _par_text() -> str:
    chain = least()
    found = {**chain.strategies, "redistribution": chain.redistribution}
    return f"{found}: {chain.sent_elements} elements"


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
        ideas=(Idea("weights whole everywhere", "that is data parallel", DATA_PARALLEL, "slices of the weights"),),
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
        ideas=(Idea("weights whole everywhere", PURE, DATA_PARALLEL, "better than the quickstart"),),
        start="""\
chain = {"matmul": ((2, 4), (4, 1)), "relu": ((2, 4),), "matmul2": ((2, 4), (4, 1)), "redistribution": "gather"}

check("06.3", chain)
""",
    ),
)
