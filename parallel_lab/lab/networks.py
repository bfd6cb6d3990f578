"""The small networks and problems that the labs and the quickstart train.

    problem = get_problem("digits")
    label, make, preset = NETWORKS["quickstart"]
    net = make(problem)
    apply_strategies(net, preset(8))                       # {"matmul": ((2, 4), (4, 1)), ...}
    plan = parallel_lab.compile(net, *problem.batches[0], loss=problem.loss(), optimizer=problem.optimizer(net.trainable_params()), ...)

A strategy belongs to an operator, and an operator is found by the name it has in the plan: "matmul", "dense1.matmul", "loss_fn.sub".
Initial values are keyed by (global seed, parameter name), so every copy of a network starts from the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from .. import nn, ops
from ..dataset.digits import load_digits
from ..dataset.seed import seed_batch
from ..errors import ArgumentError, StrategyError, StrategyTypeError, message, shorten
from ..nn.initializer import HeUniform, initializer
from ..ops.registry import Primitive, Strategy, check_strategy_value
from ..tensor import Parameter
from .picture import LOSS

__all__ = [
    "NETWORKS",
    "PROBLEMS",
    "DenseNet",
    "MegatronMlp",
    "Network",
    "Problem",
    "QuickNet",
    "apply_strategies",
    "get_problem",
    "operator_primitives",
]

BATCH_SIZE = 32  # digits: 45 batches of the 1440 images; every power of two up to it cuts a batch evenly


# ---- problems ----


@dataclass(frozen=True, eq=False)
class Problem:
    """Data, loss and optimizer, and the sizes a network needs.

    label      its name for people, short enough for a menu
    batches    global inputs of one step each: (x (rows, in_dim) float32, label), gone round and round
    loss       makes the loss Cell;  optimizer: makes the optimizer for a list of Parameters
    weight     rule of initial weights, as `initializer` takes it
    steps_per_epoch   steps that count as one epoch in a training log
    """

    name: str
    label: str
    batches: tuple[tuple[np.ndarray, np.ndarray], ...]
    loss: Callable[[], nn.Cell]
    optimizer: Callable[[list[Parameter]], nn.Optimizer]
    in_dim: int
    hidden_dim: int
    out_dim: int
    weight: Any
    steps_per_epoch: int
    note: str


def _momentum(learning_rate: float, momentum: float) -> Callable[[list[Parameter]], nn.Optimizer]:
    return lambda parameters: nn.Momentum(parameters, learning_rate, momentum)


def _seed() -> Problem:
    return Problem(
        name="seed",
        label="fixed batch",
        batches=(_read_only(*seed_batch(16, 32, 16)),),
        loss=nn.MSELoss,
        optimizer=_momentum(0.2, 0.1),
        in_dim=32,
        hidden_dim=16,
        out_dim=16,
        weight="normal",
        steps_per_epoch=4,
        note="one random batch: the data, sizes and settings of MindSpore's automatic-parallel quickstart; an epoch is 4 steps on the same batch",
    )


def _digits() -> Problem:
    images, labels = load_digits()  # the files hold the classes well mixed, so batches are taken in their order
    batches = tuple(_read_only(images[i : i + BATCH_SIZE], labels[i : i + BATCH_SIZE]) for i in range(0, len(images) - BATCH_SIZE + 1, BATCH_SIZE))
    return Problem(
        name="digits",
        label="digits",
        batches=batches,
        loss=nn.CrossEntropyLoss,
        optimizer=_momentum(0.1, 0.5),
        in_dim=images.shape[1],
        hidden_dim=64,
        out_dim=10,
        weight=HeUniform(mode="fan_out", nonlinearity="relu"),  # weights are stored (in, out) here, so their fan_in is what the rule calls fan_out
        steps_per_epoch=len(batches),
        note=f"{len(images)} handwritten digits of 28 x 28, {len(batches)} batches of {BATCH_SIZE}; 10 classes can be cut in 1 or 2 slices only",
    )


def _read_only(*arrays: np.ndarray) -> tuple[np.ndarray, ...]:
    """The arrays, closed for writing: a problem is shared by everyone who asks for it."""
    for array in arrays:
        array.flags.writeable = False
    return arrays


PROBLEMS: dict[str, Callable[[], Problem]] = {"seed": _seed, "digits": _digits}


@cache
def get_problem(name: str) -> Problem:
    """The problem called "seed" or "digits"; the same object on every call. Raises ArgumentError for another name.

    >>> problem = get_problem("seed")
    >>> [array.shape for array in problem.batches[0]], problem.in_dim, problem.hidden_dim, problem.out_dim
    ([(16, 32), (16, 16)], 32, 16, 16)
    """
    if name not in PROBLEMS:
        raise ArgumentError(message(f"problem {shorten(name)} is not known", allowed=f"One of {', '.join(PROBLEMS)}"))
    return PROBLEMS[name]()


# ---- networks ----


class QuickNet(nn.Cell):
    """x @ w, relu, @ w2: the network of the automatic-parallel quickstart.  x: (rows, in_dim) -> (rows, out_dim)."""

    def __init__(self, in_dim: int, hidden_dim: int, out_dim: int, weight: Any = "normal") -> None:
        super().__init__()
        self.weight = Parameter(initializer(weight, [in_dim, hidden_dim]), "w")
        self.weight2 = Parameter(initializer(weight, [hidden_dim, out_dim]), "w2")
        self.matmul = ops.MatMul()
        self.relu = ops.ReLU()
        self.matmul2 = ops.MatMul()

    def construct(self, x: Any) -> Any:
        out = self.matmul(x, self.weight)
        out = self.relu(out)
        return self.matmul2(out, self.weight2)


class MegatronMlp(nn.Cell):
    """Two linear layers with bias and GeLU between them, made to be cut by columns first and by rows then.  x: (rows, in_dim) -> (rows, out_dim).

    The columns of w1 give the columns of the hidden layer, which are just what the rows of w2 need: one all_reduce at the end is all that moves in
    forward (Shoeybi et al. 2019, section 3).
    """

    def __init__(self, in_dim: int, hidden_dim: int, out_dim: int, weight: Any = "normal") -> None:
        super().__init__()
        self.w1 = Parameter(initializer(weight, [in_dim, hidden_dim]), "w1")
        self.b1 = Parameter(initializer("zeros", [hidden_dim]), "b1")
        self.w2 = Parameter(initializer(weight, [hidden_dim, out_dim]), "w2")
        self.b2 = Parameter(initializer("zeros", [out_dim]), "b2")
        self.mm1, self.add1, self.gelu = ops.MatMul(), ops.Add(), ops.GeLU()
        self.mm2, self.add2 = ops.MatMul(), ops.Add()

    def construct(self, x: Any) -> Any:
        out = self.mm1(x, self.w1)
        out = self.add1(out, self.b1)
        out = self.gelu(out)
        out = self.mm2(out, self.w2)
        return self.add2(out, self.b2)


class DenseNet(nn.Cell):
    """Two Dense layers with ReLU between them, as most scripts write it; weights are stored (out, in).  x: (rows, in_dim) -> (rows, out_dim)."""

    def __init__(self, in_dim: int, hidden_dim: int, out_dim: int) -> None:
        super().__init__()
        self.dense1 = nn.Dense(in_dim, hidden_dim)
        self.relu = ops.ReLU()
        self.dense2 = nn.Dense(hidden_dim, out_dim)

    def construct(self, x: Any) -> Any:
        return self.dense2(self.relu(self.dense1(x)))


# ---- presets ----


def _cuts(devices: int) -> tuple[int, int]:
    """(slices of the batch, slices of the hidden layer) of the presets: 8 devices are 2 x 4, as in the quickstart."""
    rows = min(2, devices)
    return rows, devices // rows


def _quickstart_preset(devices: int) -> dict[str, Strategy]:
    dp, mp = _cuts(devices)
    return {"matmul": ((dp, mp), (mp, 1)), "relu": ((dp, mp),), "matmul2": ((dp, mp), (mp, 1))}


def _megatron_preset(devices: int) -> dict[str, Strategy]:
    dp, mp = _cuts(devices)
    return {
        "mm1": ((dp, 1), (1, mp)),
        "add1": ((dp, mp), (mp,)),
        "gelu": ((dp, mp),),
        "mm2": ((dp, mp), (mp, 1)),
        "add2": ((dp, 1), (1,)),
    }


def _dense_preset(devices: int) -> dict[str, Strategy]:
    return {}


class Network(NamedTuple):
    """A network of the labs.

    label     its name for people, short enough for a menu
    factory   makes it for the sizes of a Problem
    preset    devices -> {operator: strategy} to begin with; operators that are not in it get the library's default (the batch is cut)
    """

    label: str
    factory: Callable[[Problem], nn.Cell]
    preset: Callable[[int], dict[str, Strategy]]


NETWORKS: dict[str, Network] = {
    "quickstart": Network("quickstart", lambda p: QuickNet(p.in_dim, p.hidden_dim, p.out_dim, p.weight), _quickstart_preset),
    "megatron": Network("Megatron MLP", lambda p: MegatronMlp(p.in_dim, p.hidden_dim, p.out_dim, p.weight), _megatron_preset),
    "dense": Network("Dense layers", lambda p: DenseNet(p.in_dim, p.hidden_dim, p.out_dim), _dense_preset),
}


# ---- strategies by operator name ----


def operator_primitives(net: nn.Cell) -> dict[str, Primitive]:
    """{operator name in the plan: Primitive} of every operator of `net` that takes a strategy, in order of assignment.

    >>> list(operator_primitives(DenseNet(32, 16, 16)))
    ['relu', 'dense1.matmul', 'dense1.bias_add', 'dense2.matmul', 'dense2.bias_add']
    """
    found: dict[str, Primitive] = {}
    for path, cell in net.cells_and_names():
        for name, primitive in vars(cell).items():
            if isinstance(primitive, Primitive) and not primitive.op.view:  # a reshape passes on its producer's layout
                found[f"{path}.{name}" if path else name] = primitive
    return found


def apply_strategies(
    net: nn.Cell, strategies: Mapping[str, Strategy | None], *, loss: nn.Cell | None = None, examples: Mapping[str, Strategy] | None = None
) -> nn.Cell:
    """Give operators of `net` their strategies; None takes one back, operators that are not named keep theirs. Returns `net`.

    loss       the loss Cell that `net` will be compiled with; its operators are called "loss_fn.sub" and so on, as in the plan
    examples   {operator: a strategy it takes} of the operators that run, for the texts of refusals; without it, all that the Cells have are named

    Raises StrategyError for a name that is not an operator's, with the names there are, and for a strategy that no operator can take; nothing has
    changed then. What depends on shapes and devices is checked when the network is compiled.
    """
    primitives = operator_primitives(net)
    if loss is not None:
        primitives |= {f"{LOSS}{name}": primitive for name, primitive in operator_primitives(loss).items()}
    if examples is not None:
        primitives = {name: primitives[name] for name in examples if name in primitives}
    for name, strategy in strategies.items():
        if name not in primitives:
            raise StrategyError(message(f"there is no operator {name!r}", where=type(net).__name__, allowed=f"Operators: {', '.join(primitives)}"))
        if strategy is not None:
            _check_form(primitives[name], name, strategy, (examples or {}).get(name))
    for name, strategy in strategies.items():
        primitives[name].shard(strategy)
        # a later refusal should name the operator's own line in the network, not this one
        primitives[name].strategy_origin = None
    return net


def _check_form(primitive: Primitive, name: str, strategy: Any, example: Strategy | None) -> None:
    """Refuse what `shard` would refuse, in the operator's name and with an example for as many inputs as it has."""
    where, inputs = f"{primitive.name} {name!r}", primitive.op.tensors
    if isinstance(strategy, tuple) and all(isinstance(cuts, tuple) for cuts in strategy):
        check_strategy_value(strategy, where)
        return
    if not isinstance(strategy, tuple):
        fault = f"strategy {shorten(strategy)} is {_a_type(strategy)}"
    else:
        position, cuts = next((i, cuts) for i, cuts in enumerate(strategy) if not isinstance(cuts, tuple))
        fault = f"strategy {shorten(strategy)} has {_a_type(cuts)} at input {position}"
    hint = f"For example {example}" if example is not None else ""
    if len(inputs) == 1:
        allowed = "One tuple in a tuple, one int per dim of the input; mind the comma in ((2, 4),)"
        if isinstance(strategy, tuple) and strategy and all(isinstance(cuts, int) for cuts in strategy):
            hint = f"Try ({shorten(strategy)},)"
    else:
        allowed = f"A tuple with one tuple per input, {len(inputs)} of them ({', '.join(inputs)}), one int per dim"
    raise StrategyTypeError(message(fault, where=where, allowed=allowed, hint=hint))


def _a_type(value: object) -> str:
    """ "an int", "a list"."""
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"
