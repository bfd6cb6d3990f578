"""One form of training, of all that there are: ranks train as one device does.

A form is a setting (how operators, batches and optimizer are split) x a way to take a step x an optimizer x a network x
batches of so many rows, between which the network may be evaluated. `SEEDS` are those that other tests look at, and
those that belong to a rule of their own; the others are drawn.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

import numpy as np

from parallel_lab import Layout, nn, ops
from parallel_lab.base.hooks import current_world
from parallel_lab.nn.tensor.parameter import Parameter
from parallel_lab.train import LambdaCallback, Model, jit
from parallel_lab.train.auto_parallel import AutoParallel
from parallel_lab.train.dataset import GeneratorDataset
from parallel_lab.train.engine import layouts, make_eval_step, make_predict_step, make_train_step
from tests.nets import cell
from tests.train.cases.nets import (
    AUTO,
    DATA,
    ROWS,
    SEMI,
    SHARDED,
    Net,
    SquareLoss,
    batch,
    cuts,
    first_cut,
    held,
    made_step,
    none_cut,
    numbers,
    states,
    tensors,
)
from tests.train.worlds import case, parameters

# ---- settings ----


def whole(here, x, y):
    return x, y


@dataclasses.dataclass(frozen=True)
class Setting:
    """context: the settings. cut: size -> strategies of two products. own: a rank's loss is of its own rows."""

    context: dict[str, Any]
    cut: Callable[[int], tuple] = none_cut
    feed: Callable = whole
    own: bool = False


def by_rows(here, x, y):
    return here.rows(x, y)


def by_columns(here, x, y):
    return here.part(x, (1, here.size)), here.part(y, (here.size, 1))


def crossed(size):
    """Rows split by the inner axis, so that rank order and slice order differ."""
    layout = Layout((2, size // 2), ("outer", "inner"))
    return layout(("inner", "outer"), "None"), layout("outer", "None")


def by_layouts(here, x, y):
    if here.alone:
        return x, y
    given = [layout.tensor_layout() for layout in crossed(here.size)]
    return tuple(a[one.slice_index(a.shape, here.rank)] for a, one in zip((x, y), given, strict=True))


def rows_and_half(size):
    """Rows split among all, so that every rank would hold all of w; v's columns split in 2."""
    return ((size, 1), (1, 1)), ((size // 2, 1), (1, 2))


def sharded(**config):
    config = {**SHARDED["parallel_optimizer_config"], **config}
    return Setting({**SEMI, **SHARDED, "parallel_optimizer_config": config}, rows_and_half)


FUSED = {"comm_fusion": {"allreduce": {"mode": "auto", "config": None}}}
SETTINGS: dict[str, Callable[[int], Setting]] = {
    "data_parallel": lambda size: Setting(DATA, feed=by_rows, own=True),
    "hybrid_parallel": lambda size: Setting({**DATA, "parallel_mode": "hybrid_parallel"}, feed=by_rows, own=True),
    "fused": lambda size: Setting({**DATA, **FUSED}, feed=by_rows, own=True),
    "fused, hybrid": lambda size: Setting(
        {**DATA, **FUSED, "parallel_mode": "hybrid_parallel"}, feed=by_rows, own=True
    ),
    "rows": lambda size: Setting(ROWS, feed=by_rows),
    "split": lambda size: Setting(SEMI, cuts),
    "split, rows": lambda size: Setting(ROWS, cuts, by_rows),
    "split, tuple": lambda size: Setting({**ROWS, "dataset_strategy": ((1, size), (size, 1))}, first_cut, by_columns),
    "split, layouts": lambda size: Setting({**ROWS, "dataset_strategy": crossed(size)}, first_cut, by_layouts),
    "auto": lambda size: Setting(AUTO, first_cut),
    "auto, recursive": lambda size: Setting({**AUTO, "search_mode": "recursive_programming"}, first_cut),
    "stand_alone": lambda size: Setting({"parallel_mode": "stand_alone"}),
    "level1": lambda size: sharded(),
    "level2": lambda size: sharded(optimizer_level="level2"),
    "level3": lambda size: sharded(optimizer_level="level3"),
    "level3 in twos": lambda size: sharded(optimizer_level="level3", optimizer_weight_shard_size=2),
    "in twos": lambda size: sharded(optimizer_weight_shard_size=2),
    "grouped": lambda size: Setting({**DATA, "enable_parallel_optimizer": True}, feed=by_rows, own=True),
}
EACH_FOR_ITSELF = ("data_parallel", "hybrid_parallel", "fused", "fused, hybrid", "grouped")
PLACED = ("split, tuple", "split, layouts")
LEVELS = ("level1", "level2", "level3", "level3 in twos", "in twos")


# ---- optimizers ----


def in_groups(params):
    """The second with a rate of its own, the others with weight decay."""
    first, second, *others = params
    groups = [{"params": [second], "lr": 0.3}, {"params": [first, *others], "weight_decay": 0.1}]
    return nn.Momentum(groups, nn.ExponentialDecayLR(0.1, 0.5, 1), 0.9)


OPTIMIZERS: dict[str, Callable] = {
    "sgd": lambda params: nn.SGD(params, 0.05, momentum=0.8, weight_decay=0.01, nesterov=True),
    "momentum": lambda params: nn.Momentum(params, nn.PolynomialDecayLR(0.2, 0.01, 10, 2.0), 0.9),
    "momentum in groups": in_groups,
    "adam": lambda params: nn.Adam(params, [0.1, 0.02, 0.3, 0.1, 0.1, 0.1], weight_decay=0.01),
    "lamb": lambda params: nn.Lamb(params, 0.05, weight_decay=0.02),
    "lamb, clipped": lambda params: nn.Lamb(params, 0.02, weight_decay=0.01, clip=nn.GradientClip("global_norm", 0.2)),
    "lars": lambda params: nn.LARS(nn.Momentum(params, 0.5, 0.9, weight_decay=0.01), coefficient=0.05),
    "adafactor": lambda params: nn.AdaFactor(params, weight_decay=0.01),
    "adam with weight decay": lambda params: nn.AdamWeightDecay(params, 0.02, weight_decay=0.01),
    "clipped": lambda params: nn.Adam(params, 0.05, clip=nn.GradientClip("global_norm", 0.3)),
    "clipped each": lambda params: nn.SGD(params, 0.5, clip=nn.GradientClip("norm", 0.1)),
    # the scale grows after every second step
    "scaled": lambda params: nn.Momentum(params, 0.1, 0.9, loss_scaler=nn.DynamicLossScaler(2.0**10, 4, 2)),
}
BY_OWNERS = ("lamb", "lamb, clipped", "adam with weight decay")  # those that know weight grouping


# ---- networks: of the strategies of two products, and whether ranks compute for themselves ----


def sharded_by(operator, strategy):
    return operator.shard(strategy) if strategy else operator


def dropping(cut, own):
    return nn.SequentialCell(nn.Dropout(p=0.4), Net(cut), nn.Dropout(p=0.2))


def normal(cut, own):
    """float32: running statistics are float32."""
    return cell(
        lambda net, x: ops.matmul(ops.tanh(net.norm(net.product(x, net.w))), net.v),
        w=Parameter(numbers(3, 12, 8).astype(np.float32), name="w"),
        product=sharded_by(ops.MatMul(), cut[0]),
        norm=nn.BatchNorm1d(8, sync=own),
        v=Parameter(numbers(7, 8, 16).astype(np.float32), name="v"),
    )


def tied(cut, own):
    """One table for words and classes; a parameter without effect on the loss, and one that only prediction uses."""

    def construct(net, words):
        found = net.gather(net.table, words, 0)
        return net.product(ops.tanh(found), net.table), ops.reduce_sum(net.apart)

    return cell(
        construct,
        table=Parameter(numbers(3, 24, 8), name="table"),
        unused=Parameter(numbers(4, 5), name="unused"),
        apart=Parameter(numbers(4, 24), name="apart"),
        gather=sharded_by(ops.Gather(), cut[0] and ((2, 1), (1,))),
        product=sharded_by(ops.MatMul(transpose_b=True), cut[0] and ((1, 1), (2, 1))),
    )


def reads_shapes(cut, own):
    """Layers and lines of its own that look at the shapes of parameters while they are traced. BatchNorm once compared
    its channels with the rows of a slice.
    """

    def construct(net, x):
        x = net.norm(net.first(x)) * ops.reshape(net.scale, (1, net.scale.shape[0]))
        padded = ops.concat((x, x[:, : net.second.w.shape[0] - net.scale.shape[0]]), 1)
        return net.second(padded) / len(net.scale)

    return cell(
        construct,
        first=nn.Dense(12, 8, dtype=np.float64),
        norm=nn.BatchNorm1d(8, dtype=np.float64),
        second=Net(),
        scale=Parameter(numbers(8, 8), name="scale"),
    )


class WordLoss(nn.Cell):
    def construct(self, out, label):
        return ops.reduce_mean(ops.square(ops.log_softmax(out[0]))) + ops.reduce_mean(ops.cast(label, "float64")) * 0.5


class Meeting(nn.Cell):
    """A network whose ranks meet at a barrier."""

    def __init__(self, net):
        super().__init__(auto_prefix=False)
        self.net, self.barrier = net, ops.Barrier()

    def construct(self, x):
        if current_world() is not None:
            self.barrier()
        return self.net(x)


def words(rows):
    return np.arange(rows) * 7 % 24, np.arange(rows) % 5


@dataclasses.dataclass(frozen=True)
class Network:
    """optimizers, settings: those that it goes together with, () for all."""

    make: Callable
    batch: Callable = batch
    loss: type = SquareLoss
    optimizers: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()


TRACED = ("rows", "split", "split, rows", "auto", *PLACED)
NETWORKS = {
    "plain": Network(lambda cut, own: Net(cut)),
    "dropout": Network(dropping, settings=TRACED),
    "batch norm": Network(
        normal,
        lambda rows: tuple(a.astype(np.float32) for a in batch(rows)),
        optimizers=("sgd", "momentum"),
        settings=("data_parallel", "rows", "split", "split, rows"),
    ),
    "tied": Network(tied, words, WordLoss, ("adam",), ("data_parallel", "rows", "split")),
    "reads shapes": Network(reads_shapes, settings=LEVELS, optimizers=("adam", "momentum")),
}


# ---- ways to take a step: (setting, network, its loss, optimizer) -> a function of (x, y) that gives the loss ----


def by_engine(setting, net, loss_fn, optimizer):
    return make_train_step(net, loss_fn, optimizer)


def by_engine_with_loss(setting, net, loss_fn, optimizer):
    return make_train_step(nn.WithLossCell(net, loss_fn), None, optimizer)


def by_engine_of_cell(setting, net, loss_fn, optimizer):
    return make_train_step(by_cell(setting, net, loss_fn, optimizer), None, None)


def by_engine_of_cell_and_optimizer(setting, net, loss_fn, optimizer):
    return make_train_step(by_cell(setting, net, loss_fn, optimizer), None, optimizer)


def by_cell(setting, net, loss_fn, optimizer):
    step = nn.TrainOneStepCell(nn.WithLossCell(net, loss_fn), optimizer)
    step.set_train()
    return step


def by_model(setting, net, loss_fn, optimizer):
    model = Model(net, loss_fn, optimizer)

    def step(x, y):
        losses = []
        watch = LambdaCallback(on_train_step_end=lambda run: losses.append(run.original_args().net_outputs))
        data = GeneratorDataset(lambda: iter([(x.asnumpy(), y.asnumpy())]), ["data", "label"])
        model.train(1, data, callbacks=watch, dataset_sink_mode=False)
        return losses[0]

    return step


def by_function(setting, net, loss_fn, optimizer):
    """At once, but that calls of networks which are split run compiled; the reducer adds up the others' gradients."""
    change = nn.DistributedGradReducer(optimizer.parameters) if setting.own else lambda grads: grads
    step = made_step(net, optimizer, loss_fn=loss_fn, change=change)
    return lambda x, y: step(x, y)[0]


def by_jit(setting, net, loss_fn, optimizer):
    return jit(by_function(setting, net, loss_fn, optimizer))


def by_network_that_communicates(setting, net, loss_fn, optimizer):
    return make_train_step(Meeting(net), loss_fn, optimizer)


def in_auto_parallel(part, setting):
    """Wrapped, with the setting in it; the settings of the context are others' business. The part itself when alone."""
    if current_world() is None:
        return part
    context = setting.context
    wrapped = AutoParallel(part, parallel_mode=context.get("search_mode", "semi_auto"))
    if "dataset_strategy" in context:
        wrapped.dataset_strategy(context["dataset_strategy"])
    if "enable_parallel_optimizer" in context:
        short = {"optimizer_weight_shard_size": "shard_size", "parallel_optimizer_threshold": "threshold"}
        wrapped.hsdp(**{short.get(key, key): value for key, value in context["parallel_optimizer_config"].items()})
    return wrapped


def by_auto_parallel_of_function(setting, net, loss_fn, optimizer):
    return in_auto_parallel(by_function(setting, net, loss_fn, optimizer), setting)


def by_auto_parallel_of_cell(setting, net, loss_fn, optimizer):
    return in_auto_parallel(by_cell(setting, net, loss_fn, optimizer), setting)


def by_auto_parallel_of_network(setting, net, loss_fn, optimizer):
    return make_train_step(in_auto_parallel(net, setting), loss_fn, optimizer)


WAYS = {
    function.__name__.removeprefix("by_").replace("_", " "): function
    for function in (
        *(by_engine, by_engine_with_loss, by_engine_of_cell, by_engine_of_cell_and_optimizer, by_cell, by_model),
        *(by_function, by_jit, by_network_that_communicates),
        *(by_auto_parallel_of_function, by_auto_parallel_of_cell, by_auto_parallel_of_network),
    )
}
BY_HAND = ("function", "jit", "auto parallel of function")  # nothing scales the loss there
LOOPS = ("function", "cell", "network that communicates")


# ---- forms ----


@dataclasses.dataclass(frozen=True)
class Form:
    """Training in one form. looks: the network is evaluated, and predicts, after each step."""

    setting: str
    way: str = "engine"
    optimizer: str = "momentum"
    network: str = "plain"
    rows: tuple[int, ...] = (16, 16, 16)
    looks: bool = False

    @property
    def name(self) -> str:
        looks = ", evaluated" if self.looks else ""
        return f"{self.setting}: {self.way}, {self.optimizer}, {self.network}, {self.rows}{looks}"

    @property
    def legal(self) -> bool:
        network, owners = NETWORKS[self.network], self.setting in EACH_FOR_ITSELF
        return (
            (not network.settings or self.setting in network.settings)
            and (not network.optimizers or self.optimizer in network.optimizers)
            and (self.setting != "grouped" or self.optimizer in BY_OWNERS)
            and not (self.setting == "grouped" and self.way == "jit")
            and not (self.setting in LEVELS and self.optimizer in ("lars", "clipped each"))
            and not (self.optimizer == "scaled" and self.way in BY_HAND)
            and not ("auto parallel" in self.way and (owners or self.setting == "stand_alone"))
            and not (self.way == "network that communicates" and not owners)
            and not (self.looks and (owners or self.way == "model" or self.setting in PLACED))  # which says two inputs
        )


@contextmanager
def messages_counted():
    """A list that gets (kind, bytes sent) of this rank's messages; empty on one device."""
    found: list = []
    world = current_world()
    if world is None:
        yield found
        return
    before, world.comm.recording = world.comm.recording, True
    start = len(world.comm.records)
    yield found
    found += [(m.kind, m.size_bytes) for m in world.comm.records[start:]]
    world.comm.recording = before


def trains(here, form):
    """(what must equal one device: losses, results, values at the end; what else a rank notes)."""
    setting, network = SETTINGS[form.setting](here.size), NETWORKS[form.network]
    here.settings(**(DATA if "auto parallel" in form.way else setting.context))
    net = network.make((None, None) if here.alone else setting.cut(here.size), setting.own)
    net.set_train()
    optimizer, loss_fn = OPTIMIZERS[form.optimizer](net.trainable_params()), network.loss()
    step = WAYS[form.way](setting, net, loss_fn, optimizer)
    seen = in_auto_parallel(net, setting) if "auto parallel" in form.way else net
    evaluate, predict = make_eval_step(seen, loss_fn), make_predict_step(seen)
    found, messages = [], []
    for rows in form.rows:
        given = tensors(*setting.feed(here, *network.batch(rows)))
        net.set_train(True)
        with messages_counted() as sent:
            loss = step(*given)
        messages.append(sent)
        found.append(here.mean(loss) if setting.own else here.full(loss))
        if form.looks:
            net.set_train(False)
            loss, outputs, label = evaluate(*given)
            found += [here.full(one) for one in (loss, list(outputs), label, predict(given[0]))]
    rates = optimizer.get_lr() if form.optimizer != "adam" else 0  # which goes through a list
    same = {"found": found, **parameters(here, net), **states(optimizer), "steps": optimizer.global_step}
    plan = getattr(step, "plan", None)
    notes = {"held": held(net, optimizer), "messages": messages, "plan": None if plan is None else plan.config}
    if form.way == "engine":
        notes["layouts"] = layouts(step).keys()
    return {**same, "rates": rates}, notes


SEEDS = [
    Form("data_parallel", optimizer="sgd"),
    Form("data_parallel", optimizer="adam"),
    Form("hybrid_parallel", optimizer="momentum in groups"),
    Form("rows", optimizer="adam"),
    Form("split", optimizer="lamb"),
    Form("split", optimizer="adam"),
    Form("split, rows", optimizer="lars"),
    Form("split, tuple", optimizer="clipped"),
    Form("auto", optimizer="clipped each"),
    Form("stand_alone", optimizer="scaled"),
    Form("stand_alone", optimizer="adam"),
    *(
        Form(setting, f"engine {way}")
        for setting in ("data_parallel", "split", "stand_alone")
        for way in ("with loss", "of cell", "of cell and optimizer")
    ),
    # the masks of the steps that follow another batch size
    *(Form(setting, network="dropout", rows=(16, 16, 16, 32, 16)) for setting in ("split", "rows")),
    *(Form(setting, optimizer="adam", network="dropout", looks=True) for setting in ("split", "rows")),
    *(Form(setting, network="batch norm") for setting in ("data_parallel", "rows", "split")),
    *(Form(setting, optimizer="adam", network="tied") for setting in ("data_parallel", "rows", "split")),
    # a way by hand: compiled, and at once on slices
    *(
        Form(setting, way, "adam", rows=(16, 16, 32, 16))
        for setting in ("split", "rows", "split, rows", "auto")
        for way in ("jit", "function")
    ),
    *(Form(setting, "function", "clipped", rows=(16, 32)) for setting in ("split", "rows", "split, rows")),
    *(Form(setting, "cell", rows=(16, 32, 16)) for setting in ("split", "auto")),
    *(
        Form(setting, "auto parallel of function", rows=(16, 32, 16))
        for setting in ("split", "rows", "split, tuple", "split, layouts", "auto", "auto, recursive", "level3 in twos")
    ),
    Form("split", "auto parallel of cell", "lamb"),
    Form("level1", "auto parallel of network", "adam", looks=True),
    *(Form("level1", optimizer=name) for name in ("adam", "lamb, clipped", "adafactor", "scaled")),
    *(Form("in twos", optimizer=name) for name in ("adam", "lamb, clipped", "adafactor", "scaled")),
    Form("level1", optimizer="adam", network="reads shapes", rows=(16, 32), looks=True),
    *(Form("grouped", optimizer=name) for name in ("lamb, clipped", "adam with weight decay")),
    Form("grouped", "cell", "adam with weight decay"),
    *(Form(setting, way, "adam") for way in LOOPS for setting in ("fused", "fused, hybrid")),
    *(Form(setting, "model", "sgd") for setting in ("data_parallel", "hybrid_parallel")),
]


def drawn(count: int) -> list[Form]:
    """So many legal forms."""
    rng, found = np.random.default_rng(30), []
    rows = [(16, 16, 16), (16, 32, 16), (32, 8, 8, 32)]
    tables = [list(table) for table in (SETTINGS, WAYS, OPTIMIZERS, NETWORKS, rows, (False, True))]
    while len(found) < count:
        form = Form(*(table[rng.integers(len(table))] for table in tables))
        if form.legal:
            found.append(form)
    return found


def as_case(form: Form, *sizes: int) -> Callable:
    return case(*sizes, quick=[size for size in sizes[:1] if size < 8])(lambda here: trains(here, form))


# three parameters have two owners at most; 12 columns cannot be split 8 ways
SIZES = {"grouped": (2,), "split, tuple": (2, 4), "split, layouts": (2, 4)}
CASES = {form.name: as_case(form, *SIZES.get(form.setting, (2, 4))) for form in SEEDS}
for at, one in enumerate(drawn(120)):
    sizes = SIZES.get(one.setting, (2, 4, 8))
    CASES.setdefault(one.name, as_case(one, sizes[at % len(sizes)]))
