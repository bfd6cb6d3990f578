"""Lesson 14, sequence parallel: bytes of a layer, bytes of its norms' inputs, gradients that are partial sums."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from ... import nn
from ...base.seeds import set_seed
from ...base.settings.current import default_settings
from ...cost.time import sent_bytes
from ...graph.compiler import compile_network
from ...graph.instr import Instr
from ...graph.plan import Plan
from ...nn.models.gpt import GPT, LanguageModelLoss
from ...nn.models.strategies import tensor_parallel
from ...train.session import Session
from ..shared.mistakes import with_mistake
from .book import Exercise
from .ideas import MISCONCEPTIONS, Cases, Idea, by_cases, earlier_question, slip
from .reading import another_form, reading
from .running import listed
from .verdict import Note, Part, Wrong, judged

SIZES, RANKS, RATE = (2, 8, 16, 4), 4, 0.1  # samples, tokens, hidden numbers and ranks of the lesson's GPT
BLOCK = "blocks.0."  # what the names of its only block begin with
FORMS = {"tensor": {}, "sequence": {"sequence": True}, "gathered again": {"sequence": True, "gather_again": True}}


@dataclass(frozen=True)
class Trained:
    """What a run has found.  slices: of each parameter, by rank."""

    losses: tuple[float, ...]
    gradients: dict[str, np.ndarray]
    slices: dict[str, list[np.ndarray]]


def job(form: str) -> tuple[Plan, GPT, nn.Optimizer, tuple[np.ndarray, np.ndarray]]:
    """Plan, network, optimizer and batch of a GPT of one block, on four ranks in one of FORMS or on "one device"."""
    with default_settings():
        set_seed(1)
        net = GPT(24, hidden=16, layers=1, heads=4, seq_length=8)
        optimizer = nn.SGD(net.trainable_params(), RATE)
        if form in FORMS:
            tensor_parallel(net, 1, RANKS, **FORMS[form])
        drawn = np.random.default_rng(0).integers(0, 24, (2, 9)).astype(np.int32)
        how = {"device_num": RANKS if form in FORMS else 1, "dataset_strategy": "full_batch"}
        batch = drawn[:, :-1], drawn[:, 1:]
        return compile_network(net, *batch, loss=LanguageModelLoss(), optimizer=optimizer, **how), net, optimizer, batch


def layer_messages(form: str) -> list[tuple[str, str, int]]:
    """(phase, kind, bytes sent by a rank) of each message of the block's activations."""
    plan, around = job(form)[0], f"{BLOCK}add2.for.norm"  # what follows the block gathers its result
    found = [(p, i) for p, i in plan.instructions() if i.message and i.attr("parameter") is None]
    own = [(p, i) for p, i in found if i.outs[0].startswith(BLOCK) and not i.outs[0].startswith(around)]
    return [(phase, instr.kind, round(sent_bytes(plan, instr))) for phase, instr in own]


def trained(
    form: str, mistake: Callable[[Instr], Instr] = lambda instr: instr, executor: str = "simulator", steps: int = 1
) -> Trained:
    """Train in a form, or on "one device"."""
    plan, net, optimizer, batch = job(form)
    with Session(with_mistake(plan, mistake), net, optimizer, executor=executor) as session:
        losses = session.train([batch], 1)
        gradients = session.gradients()
        losses += session.train([batch], steps - 1) if steps > 1 else []
        slices = {p.name: session.slices(p.name) for p in net.trainable_params()}
    return Trained(tuple(map(float, losses)), gradients, slices)


def summed_parameters() -> set[str]:
    """Names of the parameters whose gradients ranks add up in the form "sequence"; not in Trained, which is shown."""
    return {str(i.attr("parameter")) for _, i in job("sequence")[0].instructions() if i.attr("parameter")}


# ---- 14.1 and 14.2: bytes ----


def norm_inputs(b: int, s: int, h: int, t: int, e: int) -> float:
    """Bytes of the inputs of a block's two norms on one of t ranks."""
    return 2 * b * s * h * e / t


def _messages(of: Callable[[int, int], float], share: bool = True) -> Callable[..., float]:
    """So many messages of (t - 1) / t M bytes, of M without the share, as a function of inputs and results."""
    return lambda b, s, h, t, e, *block: of(*block) * b * s * h * e * ((t - 1) / t if share else 1)


def _all(of: Callable[..., float]) -> Callable[..., float]:
    """A number of M = b s h e, as a function of the sizes."""
    return lambda b, s, h, t, e: of(b * s * h * e, t)


block_bytes = _messages(lambda inputs, results: 3 * inputs + 2 * results)
GATHERED_ONCE = "gathered once is enough"
SENT = (
    Idea(GATHERED_ONCE, MISCONCEPTIONS[GATHERED_ONCE], _messages(lambda i, r: 2 * i + 2 * r)),
    slip("The forward pass alone: backward sends more than as much again.", _messages(lambda i, r: i + r)),
    slip("Each rank keeps its own part: of M it sends (t - 1) / t.", _messages(lambda i, r: 3 * i + 2 * r, False)),
    slip("An all_gather counted as an all_reduce, which sends twice as much.", _messages(lambda i, r: 5 * i + 3 * r)),
    slip("Those are the ten messages of the lesson's block, whatever the block.", _messages(lambda i, r: 10)),
    slip("The results are exchanged with the inputs: which is gathered again?", _messages(lambda i, r: 2 * i + 3 * r)),
)
HELD = (
    slip("Not split: the sequence of what a norm gets lies on all ranks.", _all(lambda m, t: 2 * m)),
    slip(
        "Split twice: the hidden numbers of a token stay together, or the norm could not be computed.",
        _all(lambda m, t: 2 * m / t**2),
    ),
    slip("There are two norms in a block.", _all(lambda m, t: m / t)),
)


def _sizes(rng: np.random.Generator) -> list[tuple[int, ...]]:
    t = 2 ** int(rng.integers(1, 5))
    return [(int(rng.integers(1, 9)), t * int(rng.integers(1, 99)), 16 * int(rng.integers(1, 9)), t, 2)]


def _blocks(rng: np.random.Generator) -> list[tuple[int, ...]]:
    return [(*sizes, int(rng.integers(3, 6)), int(rng.integers(1, 3))) for sizes in _sizes(rng)]


CASES = [(2, 8, 16, 4, 4), (1, 4096, 4096, 8, 2), (3, 12, 8, 2, 4)]
BLOCKS = [(*sizes, *block) for sizes, block in zip(CASES, [(2, 2), (1, 1), (4, 3)], strict=True)]

# ---- 14.3: gradients that are partial sums ----

REPLICATED = "replicated value, replicated gradient"
NAMES_FORM = 'A list of names of the block, such as ["norm1.gamma", "mlp.fc1.weight"]'


def unsummed(instr: Instr) -> Instr:
    """A mistake: no rank adds up a gradient with others."""
    return replace(instr, axes=()) if instr.attr("parameter") else instr


@lru_cache(maxsize=1)
def _parts() -> tuple[dict[str, list[np.ndarray]], set[str]]:
    """By name in the block each rank's own part of its gradient, and which of them are added up."""
    start = {p.name: p.asnumpy() for p in job("one device")[1].trainable_params()}
    run = trained("sequence", unsummed)
    return {
        name.removeprefix(BLOCK): [(x - y) / RATE for x, y in zip(_cut(start[name], after), after, strict=True)]
        for name, after in run.slices.items()
        if name.startswith(BLOCK)
    }, {name.removeprefix(BLOCK) for name in summed_parameters() if name.startswith(BLOCK)}


def _cut(whole: np.ndarray, slices: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The parts of an array that ranks hold: along the dim in which they are shorter, or all of it."""
    short = [dim for dim, size in enumerate(slices[0].shape) if size < whole.shape[dim]]
    return np.split(whole, RANKS, short[0]) if short else [whole] * RANKS


def _summed(answer: Any) -> Iterator[Part]:
    with reading(answer, NAMES_FORM, "no list yet"):
        names = [str.__str__(name).removeprefix(BLOCK) for name in listed(answer)]  # TypeError for no text
    parts, right = _parts()
    if isinstance(answer, str) or (strange := [name for name in names if name not in parts]):
        raise another_form(answer if isinstance(answer, str) else strange[0], NAMES_FORM)
    if more := sorted({*names} - right):  # not a part of its own: all names would be right in the others
        text = f"{more[0]}: slices of different columns or rows, added up: off by {_off(parts[more[0]]):.0%}"
        raise Wrong(text, "each rank has its slice of the weights, and the gradient of all tokens for it")
    norms = {name for name in right if name.startswith("norm")}
    yield judged("norms", _judged, norms, {*names}, Note(MISCONCEPTIONS[REPLICATED], REPLICATED))
    yield judged("biases", _judged, right - norms, {*names}, "It is added after the reduce_scatter, to a slice.")


def _off(parts: list[np.ndarray]) -> float:
    """How far a rank's own part is from the sum of all, as a share of its largest element."""
    total = sum(parts)
    return max(float(np.abs(part - total).max()) for part in parts) / float(np.abs(total).max())


def _judged(mine: set[str], names: set[str], note: str) -> str:
    if missing := sorted(mine - names):
        off = _off(_parts()[0][missing[0]])
        text = f"{missing[0]} is not added up: a rank's gradient is off by {off:.0%} of the largest element"
        raise Wrong(text, "every parameter that works on a slice of the tokens", note, None, missing[0])
    return f"{len(mine)} of {len(mine)} parameters"


EXERCISES = (
    Exercise(
        "14.1",
        "bytes of a layer",
        hints=(
            "What does the backward pass send where the forward pass gathers, and what where it scatters?",
            "Print layer_messages of the form gathered again: which of its messages belong to which input or result?",
            "All are equally long: of M bytes in all, each rank sends the part that is not its own.",
            "Three messages for an input, with the second gather, and two for a result, each of M times t - 1 over t.",
        ),
        **by_cases(block_bytes, Cases("bytes", 3, BLOCKS, "(t - 1)/t M for 3 inputs + 2 results", SENT, _blocks)),
        start="""\
def sent_bytes(b, s, h, t, e, inputs, results):
    return 2 * (inputs + results) * b * s * h * e


check("14.1", sent_bytes)
""",
        earlier=earlier_question(
            'def sent(b, s, h, t, e):\n    return 4 * 2 * b * s * h * e\n\n\ncheck("14.1", sent)\n',
            lambda *sizes: block_bytes(*sizes, 2, 2),
            Cases("bytes", 3, CASES, "6 all_gathers and 4 reduce_scatters of (t - 1)/t M", (), _sizes),
        ),
    ),
    Exercise(
        "14.2",
        "inputs of norms",
        hints=(
            "Which dim of the input of a norm may be split, and which may not?",
            "Compare the slice shape of a norm's input in both forms: what has become shorter?",
            "A norm needs all hidden numbers of a token, and nothing of other tokens.",
            "Two inputs of b times s times h numbers, of e bytes each, divided by the ranks.",
        ),
        **by_cases(norm_inputs, Cases("bytes", 2, CASES, "two inputs, their sequence split: 2 M / t", HELD, _sizes)),
        start='def norm_inputs(b, s, h, t, e):\n    return 2 * b * s * h * e\n\n\ncheck("14.2", norm_inputs)\n',
    ),
    Exercise(
        "14.3",
        "which gradients are partial sums",
        (("norms", 2), ("biases", 2)),
        (
            "Which parameters meet only a slice of the tokens on each rank?",
            "Look at the messages: what stands between a reduce_scatter and the next all_gather?",
            "Norms work on slices of the sequence. Products work on the gathered sequence, with slices of the weights.",
            "Both parameters of both norms, and the biases that are added after a reduce_scatter: of out and of fc2.",
        ),
        _summed,
        ideas=(Idea(REPLICATED, MISCONCEPTIONS[REPLICATED], ["attention.out.bias", "mlp.fc2.bias"], "norms"),),
        start='summed = []\n\ncheck("14.3", summed)\n',
    ),
)
