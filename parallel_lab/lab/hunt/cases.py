"""Bugs to hunt: drawn for a training, each with its answer to every look.

    case = new_case("gpt", 8, "quiet", seed=3)
    case.suspects[case.culprit].mutant       the bug;  case.tests(): every look, with the answer of each suspect

Suspects are bugs of `mutants.py`, each proved to change a gradient. What a look answers is computed by running
every suspect, so that par is exact (`par.py`). The loss is shown from the start, per step as it should be or not:
suspects whose loss says otherwise are out before the first look (`Case.start`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import combinations, product
from typing import Any

import numpy as np

from ... import nn
from ...base.errors import ArgumentError
from ...base.seeds import set_seed
from ...base.settings.current import default_settings
from ...graph.compiler import compile_network
from ...graph.plan import Plan
from ...nn.layers.losses import MSELoss
from ...run.simulator import Simulator
from ..exercises.lesson_14 import job
from ..experts.net import Shape, compiled as with_experts, tokens
from .mutants import KINDS, Mutant, drawn, mutant, sites
from .par import Solver, Test
from .planted import Planted, Training, proved

PROBE, COMPARE, STEPS = 1, 2, 2
LEVELS = {
    "loud": "mostly a bug that the loss shows",
    "quiet": "mostly one that it shows less",
    "silent": "mostly one that it shows least",
    "alike": "same loss and copies",
}
ALIKE = "alike"
ON_ALL_RANKS = ("doubled", "mean for sum", "stale", "divisor")  # kinds that leave copies equal
ODDS = (4, 2, 1)  # of a bug of the level's own third, the next one, the one after: a level excludes nobody
AS_IT_SHOULD_BE, DIFFERS = "as it should be", "differs"
Array = np.ndarray
Look = tuple[Any, ...]
Answers = tuple[str, ...]  # to each look
Held = dict[tuple[int, int], tuple[tuple[str, str], ...]]


def _mlp() -> Training:
    """Rows over two ranks, columns and then rows of the products over two."""
    with default_settings():
        set_seed(1)
        first, relu, second = nn.Dense(8, 12), nn.ReLU(), nn.Dense(12, 4)
        net = nn.SequentialCell([first, relu, second])
        first.matmul.shard(((2, 1), (2, 1)))
        second.matmul.shard(((2, 2), (1, 2)))
        optimizer, rng = nn.SGD(net.trainable_params(), 0.1), np.random.default_rng(0)
        batch = rng.normal(size=(8, 8)).astype(np.float32), rng.normal(size=(8, 4)).astype(np.float32)
        how: dict[str, Any] = {"loss": MSELoss(), "optimizer": optimizer, "dataset_strategy": "full_batch"}
        return Training.of(compile_network(net, *batch, device_num=4, **how), net, optimizer, batch, STEPS)


def _gpt(form: str) -> Training:
    plan, net, optimizer, batch = job(form)
    return Training.of(plan, net, optimizer, batch, STEPS)


def _experts() -> Training:
    plan, net, optimizer = with_experts(Shape(), 4)
    return Training.of(plan, net, optimizer, tokens(1), STEPS)


NETS: dict[str, tuple[str, Callable[[], Training]]] = {
    "mlp": ("two products, 2 x 2 ranks", _mlp),
    "tensor": ("GPT block, tensor parallel", lambda: _gpt("tensor")),
    "gpt": ("GPT block, sequence parallel", lambda: _gpt("sequence")),
    "experts": ("experts on four ranks", _experts),
}


@lru_cache(maxsize=len(NETS))
def training_of(net: str) -> Training:
    """The right training of a network."""
    return NETS[net][1]()


@lru_cache(maxsize=len(NETS))
def right_run(net: str) -> Found:
    """What it makes."""
    training = training_of(net)
    found = Found(tensors_of(training.plan))
    training.run(training.plan, found.watch)
    return found


class Found:
    """What a run makes: {(value, rank, step): array} of its operators' results and of gradients.

    names  of the values to keep;  training.run(plan, found.watch) fills it
    """

    def __init__(self, names: Collection[str]) -> None:
        self.arrays: dict[tuple[str, int, int], Array] = {}
        self.names = names

    def watch(self, simulator: Simulator, step: int) -> Callable[..., None]:
        """What to call after every instruction of a step."""

        def note(rank: int, action: Any, instr: Any, *more: Any) -> None:
            for name in instr.kept:
                if name in self.names and name in simulator.envs[rank]:
                    self.arrays[name, rank, step] = np.array(simulator.envs[rank][name])

        return note


def tensors_of(plan: Plan) -> frozenset[str]:
    """What can be probed: results of operators that are laid out, and gradients of parameters."""
    forward = [n for phase, i in plan.instructions("forward") for n in i.kept if i.kind == "compute" or i.message]
    return frozenset((*forward, *(gradient for _, gradient in plan.gradients)))


def answer(right: Array | None, wrong: Array | None) -> str:
    """A value next to the right one, in words: equal, so many times as large, or other numbers."""
    if right is None or wrong is None:
        return "not there"
    if right.shape != wrong.shape or not np.isfinite(wrong).all():
        return "other shape" if right.shape != wrong.shape else "not finite"
    a, b = right.astype(float).ravel(), wrong.astype(float).ravel()
    size, square = float(np.abs(a - b).max(initial=0)), float(a @ a)
    if size <= 1e-6 * max(float(np.abs(a).max(initial=0)), 1e-30):
        return "equal"
    times = float(a @ b) / square if square else 0.0
    along = square and float(np.abs(b - times * a).max()) <= 1e-4 * float(np.abs(b).max(initial=0) or 1)
    return f"{times:.3g} times" if along else "other numbers"


def copies(held: Held, found: Found, one: int, other: int) -> str:
    """Which gradients of what two ranks hold copies of differ between them."""
    apart = []
    for name, gradient in held[one, other]:
        a, b = (found.arrays.get((gradient, rank, 0)) for rank in (one, other))
        if a is not None and b is not None and not np.array_equal(a, b, equal_nan=True):
            apart.append(name)
    return f"differ: {', '.join(apart[:3])}{' ...' if len(apart) > 3 else ''}" if apart else "copies are equal"


def held_alike(plan: Plan) -> Held:
    """{two ranks: (parameter, gradient) of what they hold copies of}."""
    layouts = {name: (plan.value(name).layout, plan.value(name).shape) for name, _ in plan.gradients}
    index = {
        n: [lay.slice_index(shape, r) for r in range(plan.device_num)] for n, (lay, shape) in layouts.items() if lay
    }
    return {
        (one, other): tuple((n, g) for n, g in plan.gradients if n in index and index[n][one] == index[n][other])
        for one, other in combinations(range(plan.device_num), 2)
    }


@dataclass(frozen=True)
class Case:
    """A bug to hunt, and those that it is hidden among.

    suspects  planted bugs;  looks: all there are;  answers: of each suspect to each look;  culprit: number of the bug
    """

    training: Training
    suspects: tuple[Planted, ...]
    looks: tuple[Look, ...]
    answers: tuple[tuple[str, ...], ...]
    culprit: int

    @cached_property
    def solver(self) -> Solver:
        """What finds par, of those who fit the loss."""
        return Solver(len(self.suspects), self.tests(), self.start)

    @cached_property
    def start(self) -> frozenset[int]:
        """Numbers of the suspects whose loss says what is shown."""
        rows = [loss_row(one) for one in self.suspects]
        return frozenset(n for n, row in enumerate(rows) if row == rows[self.culprit])

    def tests(self) -> Iterator[Test]:
        """Every look and every name, with the answer that each suspect would give."""
        for look, *said in zip(self.looks, *self.answers, strict=True):
            yield Test(look, PROBE if look[0] == "probe" else COMPARE, tuple(said))
        operators, kinds = map(sorted, map(set, zip(*map(label_of, self.suspects), strict=True)))
        # kind and mend say the same: to name two kinds asks more than to name one twice
        for operator, (kind, other) in product(operators, list(combinations(kinds, 2)) or [(kinds[0], kinds[0])]):
            name = operator, kind, KINDS[other].mend
            yield Test(("name", *name), COMPARE, tuple(self.named(n, *name) for n in range(len(self.suspects))))

    def named(self, suspect: int, operator: str, kind: str, mend: str) -> tuple[bool, bool, bool]:
        """Which parts of a name are right where this suspect is the bug."""
        bug = self.suspects[suspect]
        right = *label_of(bug), bug.mutant.mend
        return operator == right[0], kind == right[1], mend == right[2]

    def answer(self, look: Look) -> str:
        """What the bug makes a look say."""
        return self.answers[self.culprit][self.looks.index(look)]


def loss_row(planted: Planted) -> tuple[str, ...]:
    """What the loss of each step says, to six digits."""
    pairs = zip(planted.losses, planted.wrong_losses, strict=True)
    return tuple(AS_IT_SHOULD_BE if f"{a:.6g}" == f"{b:.6g}" else DIFFERS for a, b in pairs)


def loudness(planted: Planted) -> float:
    """The largest share by which a loss of the first steps is off."""
    pairs = zip(planted.losses, planted.wrong_losses, strict=True)
    return max(abs(a - b) / max(abs(a), 1e-12) if np.isfinite(b) else np.inf for a, b in pairs)


def new_case(net: str, count: int, level: str, seed: int) -> Case:
    """Suspects of a seed, and one of them as the bug (`culprit_of`). Raises ArgumentError."""
    suspects, looks, answers = suspects_of(net, count, seed, alike=level == ALIKE)
    return Case(training_of(net), suspects, looks, answers, culprit_of(suspects, level, seed))


@lru_cache(maxsize=8)
def suspects_of(
    net: str, count: int, seed: int, alike: bool = False
) -> tuple[tuple[Planted, ...], tuple[Look, ...], tuple[tuple[str, ...], ...]]:
    """Bugs, drawn until so many differ by some look; all looks; what each bug answers to each.

    alike  whether those are taken whose losses and comparisons say the same, and par is the logarithm of their number,
           or the most that the network has

    Raises ArgumentError.
    """
    training, right = training_of(net), right_run(net)
    plan, held = training.plan, held_alike(training.plan)
    looks: list[Look] = [*(("probe", *where) for where in right.arrays), *(("compare", *pair) for pair in held)]
    groups: dict[Any, dict[tuple[str, ...], Planted]] = {}  # by symptom: {answers: bug}
    known: set[tuple[str, str]] = set()
    for bug in (_alike_bugs if alike else _any_bugs)(plan, seed, 25 * count):
        if bug is None or label(bug) in known:
            continue
        found = Found(right.names)
        planted = proved(bug, training, found.watch)
        if planted is None:
            continue
        said = tuple(_answer(held, right, found, look) for look in looks)
        symptom = (loss_row(planted), said[-len(held) :]) if alike else None
        group = groups.setdefault(symptom, {})
        if said in group:
            continue
        group[said] = planted
        known.add(label(bug))
        if len(group) < count:
            continue
        case = _case(training, group, looks, (*list(group)[: count - 1], said))
        if not alike or 2**case.solver.par >= count:
            return case.suspects, case.looks, case.answers
    for group in groups.values():
        if alike and len(group) >= count:  # all that there are
            case = _hardest(training, group, looks, count)
            return case.suspects, case.looks, case.answers
    raise ArgumentError(f"seed {seed}", where="Hunt", allowed=f"A seed with {count} bugs that differ by some look")


def _case(
    training: Training, group: Mapping[Answers, Planted], looks: Sequence[Look], chosen: Iterable[Answers]
) -> Case:
    """The case of those who answer so."""
    chosen = tuple(chosen)
    return Case(training, tuple(group[one] for one in chosen), tuple(looks), chosen, 0)


def _hardest(training: Training, group: Mapping[Answers, Planted], looks: Sequence[Look], count: int) -> Case:
    """So many of a group with the par of all, as far as leaving out one after the other finds them."""
    case = _case(training, group, looks, group)
    for one in group:
        less = _case(training, group, looks, (said for said in case.answers if said != one))
        if len(case.suspects) > count and less.solver.par == case.solver.par:
            case = less
    return _case(training, group, looks, case.answers[:count])


def _any_bugs(plan: Plan, seed: int, most: int) -> Iterator[Mutant | None]:
    rng = np.random.default_rng(seed)
    for number in range(most):
        yield drawn(plan, ("reduction", "value")[int(rng.integers(2))], 1000 * seed + number)


def _alike_bugs(plan: Plan, seed: int, most: int) -> Iterator[Mutant | None]:
    """At sites after the forward pass: of kinds that make all ranks wrong alike, then of the others."""
    rng = np.random.default_rng(seed)
    for kinds in (ON_ALL_RANKS, [kind for kind in KINDS if kind not in ON_ALL_RANKS]):
        where = [(kind, site) for kind in kinds for site in sites(plan, kind) if site.phase != "forward"]
        for number in rng.permutation(len(where))[:most]:
            yield mutant(plan, *where[number], seed)


def culprit_of(suspects: Sequence[Planted], level: str, seed: int) -> int:
    """Draw the bug, mostly of the level's third by loudness. Nobody whom the loss alone betrays, unless it does all."""
    rows, which = [loss_row(one) for one in suspects], list(LEVELS).index(level)
    if level == ALIKE:
        return int(np.random.default_rng([seed, which, len(rows)]).integers(len(rows)))
    may = [n for n, row in enumerate(rows) if rows.count(row) > 1] or list(range(len(rows)))
    may.sort(key=lambda n: -loudness(suspects[n]))
    odds = np.array([ODDS[abs(place * len(ODDS) // len(may) - which)] for place in range(len(may))], float)
    # a drawing of its own, so that one level tells nothing of another one
    return int(np.random.default_rng([seed, which, len(rows)]).choice(may, p=odds / odds.sum()))


def label(bug: Mutant) -> tuple[str, str]:
    """(operator, kind): the value and the program that makes it, as no other place is called; one of KINDS."""
    return f"%{bug.instr.out} ({bug.site.phase})", bug.kind


def label_of(planted: Planted) -> tuple[str, str]:
    """(operator, kind): what is to be named."""
    return label(planted.mutant)


def _answer(held: Held, right: Found, found: Found, look: Look) -> str:
    kind, *where = look
    if kind == "compare":
        return copies(held, found, *where)
    return answer(right.arrays.get(tuple(where)), found.arrays.get(tuple(where)))
