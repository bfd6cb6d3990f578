"""`AutoParallel` of a Cell and of a function, called and given to `Model`."""

from __future__ import annotations

import numpy as np

from parallel_lab import Layout, nn, ops, value_and_grad
from parallel_lab.base import seeds
from parallel_lab.nn.tensor.tensor import Tensor
from parallel_lab.nn.wrap import TrainOneStepCell
from parallel_lab.train import LambdaCallback, Model
from parallel_lab.train.auto_parallel import AutoParallel
from parallel_lab.train.dataset import GeneratorDataset
from tests.train.cases.compiled_steps import made_step, tensors
from tests.train.cases.engine_training import states, times_ranks
from tests.train.cases.nets import Net, SquareLoss, batch, cuts
from tests.train.worlds import case, parameters, refused


def parallel(here, network, mode="semi_auto", data="full_batch", **methods):
    """The network itself when alone."""
    if here.alone:
        return network
    wrapped = AutoParallel(network, parallel_mode=mode)
    if data is not None:
        wrapped.dataset_strategy(data)
    for name in methods:
        getattr(wrapped, name)()
    return wrapped


def function(mode, strategies, data, feed):
    def run(here):
        # settings of the context are others' business
        here.settings(parallel_mode="data_parallel", gradients_mean=True)
        net = Net(strategies(here.size))
        optimizer = nn.Momentum(net.trainable_params(), nn.PolynomialDecayLR(0.2, 0.01, 10, 2.0), 0.9)
        step = parallel(here, made_step(net, optimizer), mode, data(here.size) if callable(data) else data)
        found = []
        for rows in (16, 32, 16):
            loss, logits = step(*tensors(*(feed(here, *batch(rows)))))
            found += [here.full(loss), here.full(logits)]
        note = {} if here.alone else {"plan": step.plan.config.parallel_mode, "held": net.w.asnumpy().shape}
        return {"found": found, **parameters(here, net), **states(here, optimizer, net)}, note

    return case(2, 4)(run)


def all_rows(here, *arrays):
    return arrays


def own_rows(here, *arrays):
    return here.rows(*arrays)


def in_tuple(here, x, y):
    return here.part(x, (1, here.size)), here.part(y, (here.size, 1))


def named(size):
    """Rows split by the inner axis, so that rank order and slice order differ."""
    layout = Layout((2, size // 2), ("outer", "inner"))
    return layout(("inner", "outer"), "None"), layout("outer", "None")


def in_layouts(here, x, y):
    if here.alone:
        return x, y
    layouts = [layout.tensor_layout() for layout in named(here.size)]
    return tuple(a[one.slice_index(a.shape, here.rank)] for a, one in zip((x, y), layouts, strict=True))


def one_cut(size):
    return cuts(size)[0], None


CASES = {
    "function, full_batch": function("semi_auto", cuts, "full_batch", all_rows),
    "function, rows": function("semi_auto", cuts, None, own_rows),
    "function, tuple": function("semi_auto", one_cut, lambda size: ((1, size), (size, 1)), in_tuple),
    "function, layouts": function("semi_auto", one_cut, named, in_layouts),
    "function, sharding_propagation": function("sharding_propagation", one_cut, "full_batch", all_rows),
    "function, recursive_programming": function("recursive_programming", one_cut, "full_batch", all_rows),
}


@case(2, 4)
def network_with_model(here):
    net = Net(cuts(here.size))
    optimizer = nn.Adam(net.trainable_params(), 0.05)
    model = Model(parallel(here, net), SquareLoss(), optimizer)
    losses = []
    x, y = batch()
    data = GeneratorDataset(lambda: ((x, y) for _ in range(3)), ["data", "label"])
    watch = LambdaCallback(
        on_train_step_end=lambda c: losses.append(np.array(here.full(c.original_args().net_outputs)))
    )
    model.train(2, data, callbacks=watch)
    found = {"losses": losses, "out": here.full(model.predict(Tensor(x)))}
    return {**found, **parameters(here, net), **states(here, optimizer, net)}, {"held": net.w.asnumpy().shape}


@case(2, 4)
def network_called(here):
    net = Net(cuts(here.size))
    wrapped = parallel(here, net)
    out = wrapped(Tensor(batch()[0]))
    again = wrapped(x=Tensor(batch(8)[0]))
    names = [p.name for p in wrapped.get_parameters()]
    return {"out": here.full(out), "again": here.full(again), **parameters(here, net)}, {"names": names}


@case(2, 4)
def training_cell(here):
    net = Net(cuts(here.size))
    optimizer = nn.Lamb(net.trainable_params(), 0.1)
    step = parallel(here, TrainOneStepCell(nn.WithLossCell(net, SquareLoss()), optimizer))
    losses = [here.full(step(*tensors(*batch()))) for _ in range(3)]
    return {"losses": losses, **parameters(here, net), **states(here, optimizer, net)}, {}


def factor(method, times):
    def run(here):
        net = Net(cuts(here.size))
        rates = {p.name: 0.1 * (times(here.size)[p.name] if here.alone else 1.0) for p in net.trainable_params()}
        optimizer = nn.SGD([{"params": [p], "lr": rates[p.name]} for p in net.trainable_params()], 0.1)
        step = parallel(here, made_step(net, optimizer), **{method: True})
        step(*tensors(*batch()))
        return parameters(here, net), {}

    return case(2, 4)(run)


CASES |= {
    # ranks that hold the same slice: `cases.engine.by_copies`
    "gradients_mean": factor("enable_gradients_mean", lambda size: {"w": 1 / (size // 2), "bias": 1 / size, "v": 1.0}),
    "no loss_repeated_mean": factor("disable_loss_repeated_mean", times_ranks),
}


@case(2, compared=False)
def what_is_refused(here):
    net = Net()
    step = made_step(net, nn.SGD(net.trainable_params(), 0.1))
    found = {}

    def asked(name, prepare, mode="semi_auto"):
        wrapped = AutoParallel(step, parallel_mode=mode)
        prepare(wrapped)
        found[name] = refused(lambda: wrapped(*tensors(*here.rows(*batch()))))

    asked("pipeline", lambda w: w.pipeline(2))
    asked("hsdp", lambda w: w.hsdp(shard_size=4))
    asked("tuple", lambda w: w.dataset_strategy(((2, 1),)))
    asked("cuts", lambda w: w.dataset_strategy(((2, 1, 1), (2, 1))))
    asked("devices", lambda w: w.dataset_strategy(((8, 1), (8, 1))))
    layout = Layout((4, 2), ("a", "b"))
    asked("layout", lambda w: w.dataset_strategy((layout("a", "b"), layout("a", "b"))))
    loss = AutoParallel(lambda x, y: ops.reduce_mean(net(x) - y))
    found["tape"] = refused(lambda: value_and_grad(loss, None, net.trainable_params())(*tensors(*batch())))
    seeds.set_seed(here.rank + 5)
    drawn = nn.Dense(12, 16, dtype=np.float64)
    other = AutoParallel(made_step(drawn, nn.SGD(drawn.trainable_params(), 0.1)))
    found["beginning"] = refused(lambda: other(*tensors(*here.rows(*batch()))))
    return {}, found


@case(2)
def a_setting_that_changes_makes_another_program(here):
    net = Net(cuts(2))
    optimizer = nn.SGD(net.trainable_params(), 0.1)
    step = parallel(here, made_step(net, optimizer))
    losses = [here.full(step(*tensors(*batch()))[0])]
    if not here.alone:
        step.dataset_strategy("data_parallel")
    losses.append(here.full(step(*tensors(*here.rows(*batch())))[0]))
    losses.append(here.full(step(*tensors(*here.rows(*batch(32))))[0]))
    if not here.alone:
        step.dataset_strategy("full_batch")
    losses.append(here.full(step(*tensors(*batch()))[0]))
    return {"losses": losses, **parameters(here, net)}, {}
