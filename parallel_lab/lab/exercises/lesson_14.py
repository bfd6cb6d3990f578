"""Lesson 14, sequence parallel: bytes of a layer, bytes of its norms' inputs, gradients that are partial sums."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
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
from ...nn.models.strategies import SCATTERED, tensor_parallel
from ...nn.tensor.parameter import Parameter
from ...ops.elementwise import add, mul
from ...train.session import Session
from ..shared.mistakes import with_mistake
from .book import Exercise
from .ideas import MISCONCEPTIONS, Cases, Idea, by_cases, earlier_question, slip
from .more_ways import OF_LESSON_14
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


Job = tuple[Plan, nn.Cell, nn.Optimizer, tuple[np.ndarray, np.ndarray]]


def job(form: str) -> Job:
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
    form: str,
    mistake: Callable[[Instr], Instr] = lambda instr: instr,
    executor: str = "simulator",
    steps: int = 1,
    made: Callable[[str], Job] = job,
) -> Trained:
    """Train what `made` makes in a form, or on "one device"."""
    plan, net, optimizer, batch = made(form)
    how: dict[str, Any] = {"executor": executor, "unchecked": None}  # types would name a missing sum
    with Session(with_mistake(plan, mistake), net, optimizer, **how) as session:
        losses = session.train([batch], 1)
        gradients = session.gradients()
        losses += session.train([batch], steps - 1) if steps > 1 else []
        slices = {p.name: session.slices(p.name) for p in net.trainable_params()}
    return Trained(tuple(map(float, losses)), gradients, slices)


def summed_parameters(made: Callable[[str], Job] = job) -> set[str]:
    """Names of the parameters whose gradients ranks add up in the form "sequence"; not in Trained, which is shown."""
    return {str(i.attr("parameter")) for _, i in made("sequence")[0].instructions() if i.attr("parameter")}


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
BEHIND = "behind products"  # biases and scales
NAMES_FORM = 'A list of names of the block, such as ["norm1.gamma", "mlp.fc1.weight"]'


class Layer(nn.Cell):
    """A norm, two products and a scale of what one of them gives; the sequence is split outside of the products."""

    def __init__(self, first_bias: bool, second_bias: bool, behind: int) -> None:
        super().__init__()
        self.behind, self.norm, self.mul, self.add = behind, nn.LayerNorm((16,)), mul.primitive(), add.primitive()
        self.fc1, self.fc2 = nn.Dense(16, 64, has_bias=first_bias), nn.Dense(64, 16, has_bias=second_bias)
        self.scale = Parameter(np.linspace(0.5, 1.5, 64 if behind == 1 else 16, dtype=np.float32))

    def construct(self, x: Any) -> Any:
        y = self.fc1(self.norm(x))
        y = self.fc2(self.mul(y, self.scale) if self.behind == 1 else y)
        return self.add(x, y if self.behind == 1 else self.mul(y, self.scale))

    def split(self) -> None:
        """Strategies of four ranks."""
        tokens = (1, RANKS, 1)
        self.norm.layer_norm.shard((tokens, (1,), (1,)))
        self.add.shard((tokens, tokens))
        self.mul.shard(((1, 1, RANKS), (RANKS,)) if self.behind == 1 else (tokens, (1,)))
        self.fc1.matmul.shard(((1, 1), (RANKS, 1)))
        self.fc2.matmul.shard(((1, RANKS), (1, RANKS))).add_prim_attr(SCATTERED, True)
        if self.fc1.has_bias:
            self.fc1.bias_add.shard(((1, RANKS), (RANKS,)))
        if self.fc2.has_bias:
            self.fc2.bias_add.shard((tokens, (1,)))


@dataclass(frozen=True)
class Layers:
    """A learner's own network.  layers: of each whether fc1 and fc2 have biases, and behind which one its scale is"""

    layers: tuple[tuple[bool, bool, int], ...]

    def job(self, form: str) -> Job:
        """As `job`: on four ranks, or on "one device"."""
        with default_settings():
            set_seed(1)
            net = nn.SequentialCell(*(Layer(*layer) for layer in self.layers))
            optimizer = nn.SGD(net.trainable_params(), RATE)
            x, y = np.random.default_rng(0).normal(size=(2, 2, 8, 16)).astype(np.float32)
            for layer in net if form in FORMS else ():
                layer.split()
            how = {"device_num": RANKS if form in FORMS else 1, "dataset_strategy": "full_batch"}
            return compile_network(net, x, y, loss=nn.MSELoss(), optimizer=optimizer, **how), net, optimizer, (x, y)

    def given(self) -> str:
        """The network in words."""
        biases = [f"{n}.fc{at}" for n, layer in enumerate(self.layers) for at in (1, 2) if layer[at - 1]]
        scales = [f"{n}.fc{layer[2]}" for n, layer in enumerate(self.layers)]
        return f"""\
biases of {", ".join(biases)}; scales behind {", ".join(scales)}
Layers 0, 1 and 2 are x + fc2(fc1(norm(x))); what fc1 or fc2 gives is multiplied by a weight called scale.
fc1 is split by columns, fc2 by rows, and elsewhere the sequence. Names: 0.norm.gamma, 0.fc1.weight, 0.scale, ..."""


def unsummed(instr: Instr) -> Instr:
    """A mistake: no rank adds up a gradient with others."""
    return replace(instr, axes=()) if instr.attr("parameter") else instr


def _own_name(name: str) -> str:
    return name.removeprefix(BLOCK)


@lru_cache(maxsize=16)
def _parts(own: Layers | None = None) -> tuple[dict[str, list[np.ndarray]], set[str]]:
    """By name in the block each rank's own part of its gradient, and which of them are added up."""
    made, within = (job, BLOCK) if own is None else (own.job, "")
    start = {p.name: p.asnumpy() for p in made("one device")[1].trainable_params()}
    run = trained("sequence", unsummed, made=made)
    return {
        _own_name(name): [(x - y) / RATE for x, y in zip(_cut(start[name], after), after, strict=True)]
        for name, after in run.slices.items()
        if name.startswith(within)
    }, {_own_name(name) for name in summed_parameters(made) if name.startswith(within)}


def _cut(whole: np.ndarray, slices: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The parts of an array that ranks hold: along the dim in which they are shorter, or all of it."""
    short = [dim for dim, size in enumerate(slices[0].shape) if size < whole.shape[dim]]
    return np.split(whole, RANKS, short[0]) if short else [whole] * RANKS


def _summed(own: Layers | None, answer: Any, /) -> Iterator[Part]:
    form = NAMES_FORM if own is None else 'A list of names, such as ["0.norm.gamma", "1.fc1.weight"]'
    with reading(answer, form, "no list yet"):
        names = [_own_name(str.__str__(name)) for name in listed(answer)]  # TypeError for no text
    parts, right = _parts(own)
    if isinstance(answer, str) or (strange := [name for name in names if name not in parts]):
        raise another_form(answer if isinstance(answer, str) else strange[0], form)
    if more := sorted({*names} - right):  # not a part of its own: all names would be right in the others
        text = f"{more[0]}: slices of different columns or rows, added up: off by {_off(parts[more[0]]):.0%}"
        raise Wrong(text, "each rank has its slice of the weights, and the gradient of all tokens for it")
    norms = {name for name in right if "norm" in name}
    yield judged("norms", _judged, parts, norms, {*names}, Note(MISCONCEPTIONS[REPLICATED], REPLICATED))
    note = "It works on what the reduce_scatter leaves, a slice of the tokens: behind the product, not inside."
    yield judged(BEHIND, _judged, parts, right - norms, {*names}, note)


def _off(parts: list[np.ndarray]) -> float:
    """How far a rank's own part is from the sum of all, as a share of its largest element."""
    total = sum(parts)
    return max(float(np.abs(part - total).max()) for part in parts) / float(np.abs(total).max())


def _judged(parts: Mapping[str, list[np.ndarray]], mine: set[str], names: set[str], note: str) -> str:
    if missing := sorted(mine - names):
        off = _off(parts[missing[0]])
        text = f"{missing[0]} is not added up: a rank's gradient is off by {off:.0%} of the largest element"
        raise Wrong(text, "every parameter that works on a slice of the tokens", note, None, missing[0])
    return f"{len(mine)} of {len(mine)} parameters"


def _without_norms(names: list[str]) -> tuple[Idea, ...]:
    return (Idea(REPLICATED, MISCONCEPTIONS[REPLICATED], names, "norms"),)


def _own_layers(rng: np.random.Generator) -> dict[str, Any]:
    """Three layers, in each at least a bias of fc2 or a scale behind it."""
    ends = [((True, 1), (False, 2), (True, 2))[int(n)] for n in rng.integers(0, 3, 3)]
    own = Layers(tuple((bool(first), *end) for first, end in zip(rng.integers(0, 2, 3), ends, strict=True)))
    behind = [
        f"{n}.{name}"
        for n, (_, bias, at) in enumerate(own.layers)
        for name in (["fc2.bias"] * bias + ["scale"] * (at == 2))
    ]
    return {
        "numbers": own.given(),
        "grader": partial(_summed, own),
        "ideas": _without_norms(behind),
        "hints": (
            *PARTIAL_HINTS,
            "Both parameters of every norm, and the biases and scales behind fc2; those behind fc1 are split.",
        ),
    }


PARTIAL_HINTS = (
    "Which parameters meet only a slice of the tokens on each rank?",
    "Look at the messages: what stands between a reduce_scatter and the next all_gather?",
    "Norms work on slices of the sequence. Products work on the gathered sequence, with slices of the weights.",
)


EXERCISES = (
    Exercise(
        "14.1",
        "bytes of a layer",
        hints=(
            "What does the backward pass send where the forward pass gathers, and what where it scatters?",
            "Print layer_messages of the form gathered again: which of its messages belong to which input or result?",
            "All are of M bytes and equally long: a rank sends all of them but its own part.",
            "Three messages for an input, with the second gather, and two for a result, each of M times t - 1 over t.",
        ),
        **by_cases(block_bytes, Cases("bytes", 3, BLOCKS, "(t - 1)/t M for 3 inputs + 2 results", SENT, _blocks)),
        start="""\
def sent_bytes(b, s, h, t, e, inputs, results):
    return 2 * (inputs + results) * b * s * h * e


check("14.1", sent_bytes)
""",
        earlier=earlier_question(
            "sent",
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
        (("norms", 2), (BEHIND, 2)),
        (
            *PARTIAL_HINTS,
            "Both parameters of both norms, and the biases that are added after a reduce_scatter: of out and of fc2.",
        ),
        partial(_summed, None),
        ideas=_without_norms(["attention.out.bias", "mlp.fc2.bias"]),
        own=_own_layers,
        start='summed = []\n\ncheck("14.3", summed)\n',
    ),
    *OF_LESSON_14,
)
