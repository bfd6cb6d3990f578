"""The small networks that the labs and the quickstart train, and the strategies to begin with. What they train on is in
`problems.py`.

    problem, network = get_problem("digits"), NETWORKS["quickstart"]
    net = network.factory(problem)
    apply_strategies(net, network.preset(8))               # {"matmul": ((2, 4), (4, 1)), ...}
    optimizer = problem.optimizer(net.trainable_params())
    plan = parallel_lab.compile(net, *problem.batches[0], loss=problem.loss(), optimizer=optimizer, ...)

A strategy belongs to an operator, and an operator is found by the name it has in the plan: "matmul", "dense1.matmul",
"loss_fn.sub". Initial values are keyed by (global seed, parameter name), so every copy of a network starts from the
same numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from ... import nn
from ...base.errors import StrategyError, StrategyTypeError, shorten
from ...nn.initializer import initializer
from ...nn.models import GPT, WideDeep, split_embeddings, tensor_parallel
from ...nn.models.strategies import SCATTERED
from ...nn.tensor.parameter import Parameter
from ...ops.activation import gelu, relu
from ...ops.elementwise import add
from ...ops.linalg import matmul
from ...ops.machine.primitive import Primitive, Strategy, check_strategy_value
from ..pictures.picture import LOSS
from .problems import Problem, get_problem

# ---- networks ----


class QuickNet(nn.Cell):
    """x @ w, relu, @ w2: the network of the automatic-parallel quickstart.  x: (rows, in_dim) -> (rows, out_dim)."""

    def __init__(self, in_dim: int, hidden_dim: int, out_dim: int, weight: Any = "normal") -> None:
        super().__init__()
        self.weight = Parameter(initializer(weight, [in_dim, hidden_dim]), "w")
        self.weight2 = Parameter(initializer(weight, [hidden_dim, out_dim]), "w2")
        self.matmul = matmul.primitive()
        self.relu = relu.primitive()
        self.matmul2 = matmul.primitive()

    def construct(self, x: Any) -> Any:
        out = self.matmul(x, self.weight)
        out = self.relu(out)
        return self.matmul2(out, self.weight2)


class MegatronMlp(nn.Cell):
    """Two linear layers with bias, GeLU between, split by columns, then by rows.  x: (rows, in_dim) -> (rows, out_dim).
    The columns of w1 give just what the rows of w2 need: forward moves one all_reduce (Shoeybi et al. 2019, section 3).
    """

    def __init__(self, in_dim: int, hidden_dim: int, out_dim: int, weight: Any = "normal") -> None:
        super().__init__()
        self.w1 = Parameter(initializer(weight, [in_dim, hidden_dim]), "w1")
        self.b1 = Parameter(initializer("zeros", [hidden_dim]), "b1")
        self.w2 = Parameter(initializer(weight, [hidden_dim, out_dim]), "w2")
        self.b2 = Parameter(initializer("zeros", [out_dim]), "b2")
        self.mm1, self.add1, self.gelu = matmul.primitive(), add.primitive(), gelu.primitive()
        self.mm2, self.add2 = matmul.primitive(), add.primitive()

    def construct(self, x: Any) -> Any:
        out = self.mm1(x, self.w1)
        out = self.add1(out, self.b1)
        out = self.gelu(out)
        out = self.mm2(out, self.w2)
        return self.add2(out, self.b2)


class DenseNet(nn.Cell):
    """Two Dense layers, ReLU between; weights are stored (out, in).  x: (rows, in_dim) -> (rows, out_dim)."""

    def __init__(self, in_dim: int, hidden_dim: int, out_dim: int) -> None:
        super().__init__()
        self.dense1 = nn.Dense(in_dim, hidden_dim)
        self.relu = relu.primitive()
        self.dense2 = nn.Dense(hidden_dim, out_dim)

    def construct(self, x: Any) -> Any:
        return self.dense2(self.relu(self.dense1(x)))


class ConvNet(nn.Cell):
    """Two convolutions (the first with batch norm), ReLU, max pooling, a dense layer.  x: (n, channels, side, side) ->
    (n, classes);  side: a multiple of 4; `width`: channels of the first convolution, the second makes twice as many
    """

    def __init__(self, channels: int, side: int, width: int, classes: int, weight: Any = "he_normal") -> None:
        super().__init__()
        same = {"pad_mode": "pad", "padding": 1, "weight_init": weight}
        self.conv1 = nn.Conv2d(channels, width, 3, **same)
        self.bn1, self.relu1, self.pool1 = nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(2, 2)
        self.conv2 = nn.Conv2d(width, 2 * width, 3, **same)
        self.relu2, self.pool2 = nn.ReLU(), nn.MaxPool2d(2, 2)
        self.flatten = nn.Flatten()
        self.fc = nn.Dense(2 * width * (side // 4) ** 2, classes)

    def construct(self, x: Any) -> Any:
        x = self.pool1(self.relu1(self.bn1(self.conv1(x))))
        x = self.pool2(self.relu2(self.conv2(x)))
        return self.fc(self.flatten(x))


# ---- presets ----


def _cuts(devices: int) -> tuple[int, int]:
    """(slices of the batch, slices of the hidden layer) of the presets: 8 devices are 2 x 4, as in the quickstart."""
    rows = min(2, devices)
    return rows, devices // rows


def _inner_splits(devices: int) -> tuple[int, int]:
    """As `_cuts`, where the inner split is what one wants to see: it is there on 2 devices too."""
    inner = min(4, devices)
    return devices // inner, inner


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


def _data_parallel(devices: int) -> dict[str, Strategy]:
    return {}


def _dense_columns_rows(devices: int) -> dict[str, Strategy]:
    dp, mp = _inner_splits(devices)
    return {
        "dense1.matmul": ((dp, 1), (mp, 1)),
        "dense1.bias_add": ((dp, mp), (mp,)),
        "relu": ((dp, mp),),
        "dense2.matmul": ((dp, mp), (1, mp)),
        "dense2.bias_add": ((dp, 1), (1,)),
    }


def _conv(dp: int, channels: int, height: int) -> dict[str, Strategy]:
    """The convolutional part of ConvNet; batch, channels and picture height are split. The second layer sums over
    the channels that a rank has: addends are left (an all_reduce), and its result has all channels.
    """
    inner, outer = (dp, channels, height, 1), (dp, 1, height, 1)
    return {
        "conv1.conv2d": ((dp, 1, height, 1), (channels, 1, 1, 1)),
        "bn1.batch_norm": (inner, *((channels,),) * 4),
        "relu1.relu": (inner,),
        "pool1.max_pool": (inner,),
        "conv2.conv2d": (inner, (1, channels, 1, 1)),
        "relu2.relu": (outer,),
        "pool2.max_pool": (outer,),
    }


def _of_cells(make: Callable[[], nn.Cell]) -> dict[str, Strategy]:
    """The strategies that the operators of a network carry."""
    strategies = {name: primitive.in_strategy for name, primitive in operator_primitives(make()).items()}
    return {name: strategy for name, strategy in strategies.items() if strategy is not None}


def _gpt(p: Problem) -> GPT:
    sequence = p.batches[0][0].shape[1]
    net = GPT(p.in_dim, hidden=p.hidden_dim, layers=1, heads=4, seq_length=sequence, inner=2 * p.hidden_dim)
    for block in net.blocks:
        for dense in (block.attention.out, block.mlp.fc2):  # a preset has strategies only; without a split sequence
            dense.matmul.add_prim_attr(SCATTERED, True)  # this has no effect
    return net


def _gpt_preset(*, sequence: bool = False) -> Callable[[int], dict[str, Strategy]]:
    def preset(devices: int) -> dict[str, Strategy]:
        net = _gpt(get_problem("text"))
        return _of_cells(lambda: tensor_parallel(net, *_inner_splits(devices), sequence=sequence))

    return preset


def _wide_deep(p: Problem) -> WideDeep:
    return WideDeep(p.in_dim, p.batches[0][0].shape[1], embedding_size=16, layers=(p.hidden_dim,))


def _split_table(how: str) -> Callable[[int], dict[str, Strategy]]:
    return lambda devices: _of_cells(lambda: split_embeddings(_wide_deep(get_problem("clicks")), how, devices))


class Network(NamedTuple):
    """A network of the labs.

    label     its name for people, short enough for a menu
    factory   makes it for the sizes of a Problem
    presets   {name for people: devices -> {operator: strategy}}, the one to begin with first; operators that are not in
              it get the library's default (the batch is split)
    kind      of the Problems it takes
    look      the tensor it is there to show, to look at first; "": what its strategies make worth a look
    """

    label: str
    factory: Callable[[Problem], nn.Cell]
    presets: dict[str, Callable[[int], dict[str, Strategy]]]
    kind: str = "rows"
    look: str = ""

    def preset(self, devices: int) -> dict[str, Strategy]:
        """The strategies to begin with."""
        return next(iter(self.presets.values()))(devices)


NETWORKS: dict[str, Network] = {
    "quickstart": Network(
        "quickstart",
        lambda p: QuickNet(p.in_dim, p.hidden_dim, p.out_dim, p.weight),
        {"batch and inner dim": _quickstart_preset, "data parallel": _data_parallel},
    ),
    "megatron": Network(
        "Megatron MLP",
        lambda p: MegatronMlp(p.in_dim, p.hidden_dim, p.out_dim, p.weight),
        {"tensor parallel": _megatron_preset, "data parallel": _data_parallel},
    ),
    "dense": Network(
        "Dense layers",
        lambda p: DenseNet(p.in_dim, p.hidden_dim, p.out_dim),
        {"data parallel": _data_parallel, "tensor parallel": _dense_columns_rows},
    ),
    "convnet": Network(
        "convolutions",
        lambda p: ConvNet(p.in_dim, p.batches[0][0].shape[-1], p.hidden_dim, p.out_dim, p.weight).set_train(),
        {
            "batch and height": lambda n: _conv(_inner_splits(n)[0], 1, _inner_splits(n)[1]),
            "batch and channels": lambda n: _conv(*_inner_splits(n), 1),
            "data parallel": _data_parallel,
        },
        "pictures",
    ),
    "transformer": Network(
        "GPT, one block",
        _gpt,
        {
            "tensor parallel": _gpt_preset(),
            "sequence parallel": _gpt_preset(sequence=True),
            "data parallel": _data_parallel,
        },
        "text",
    ),
    "embedding": Network(
        "Wide & Deep",
        _wide_deep,
        {
            "tables by rows": _split_table("row"),
            "tables by columns": _split_table("column"),
            "data parallel": _data_parallel,
        },
        "clicks",
        "deep_table",
    ),
}


# ---- strategies by operator name ----


LAYERS = (
    "parallel_lab.nn.layers.",
    "parallel_lab.catalog.nn.",
)  # where Cells of the library are; those of models and labs are networks
CONTAINERS = (nn.CellList, nn.SequentialCell)


def operator_primitives(net: nn.Cell) -> dict[str, Primitive]:
    """{operator name in the plan: Primitive} of every operator of `net` that takes a strategy, in order of assignment.

    >>> list(operator_primitives(DenseNet(32, 16, 16)))
    ['relu', 'dense1.matmul', 'dense1.bias_add', 'dense2.matmul', 'dense2.bias_add']
    """
    primitives: dict[str, Primitive] = {}
    for path, cell in net.cells_and_names():
        for name, primitive in vars(cell).items():
            if isinstance(primitive, Primitive) and primitive.takes_strategy:
                primitives[f"{path}.{name}" if path else name] = primitive
    return primitives


def operator_layers(net: nn.Cell) -> dict[str, str]:
    """{operator: name of its layer}: the outermost library layer around it, or the operator itself.

    >>> operator_layers(DenseNet(32, 16, 16))["dense1.bias_add"], operator_layers(DenseNet(32, 16, 16))["relu"]
    ('dense1', 'relu')
    """
    cells = [(path, cell) for path, cell in net.cells_and_names() if path and not isinstance(cell, CONTAINERS)]
    layers = {path for path, cell in cells if type(cell).__module__.startswith(LAYERS)}
    layer_of = {}
    for name in operator_primitives(net):
        parts = name.split(".")
        layer_of[name] = next(
            (".".join(parts[:i]) for i in range(1, len(parts)) if ".".join(parts[:i]) in layers), name
        )
    return layer_of


def apply_strategies(
    net: nn.Cell,
    strategies: Mapping[str, Strategy | None],
    *,
    loss: nn.Cell | None = None,
    examples: Mapping[str, Strategy] | None = None,
) -> nn.Cell:
    """Give operators of `net` their strategies; None takes one back, operators that are not named keep theirs. Returns
    `net`.

    loss       the loss Cell that `net` will be compiled with; its operators are called "loss_fn.sub" and so on, as in
               the plan
    examples   {operator: a strategy it takes} of the operators that run, for the texts of refusals; without it, all
               that the Cells have are named

    Raises StrategyError for a name that is not an operator's, with the names there are, and for a strategy that no
    operator can take; nothing has changed then. What depends on shapes and devices is checked when the network is
    compiled.
    """
    primitives = operator_primitives(net)
    if loss is not None:
        primitives |= {f"{LOSS}{name}": primitive for name, primitive in operator_primitives(loss).items()}
    if examples is not None:
        primitives = {name: primitives[name] for name in examples if name in primitives}
    for name, strategy in strategies.items():
        if name not in primitives:
            what = f"there is no operator {name!r}"
            raise StrategyError(what, where=type(net).__name__, allowed=f"Operators: {', '.join(primitives)}")
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
    raise StrategyTypeError(fault, where=where, allowed=allowed, hint=hint)


def _a_type(value: object) -> str:
    """ "an int", "a list"."""
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"
