"""`AutoParallel` of a Cell and of a function, called and given to `Model`."""

from __future__ import annotations

import numpy as np

from parallel_lab import Layout, nn, ops, value_and_grad
from parallel_lab.base import seeds
from parallel_lab.nn.tensor.tensor import Tensor
from parallel_lab.train import LambdaCallback, Model
from parallel_lab.train.auto_parallel import AutoParallel
from parallel_lab.train.dataset import GeneratorDataset
from tests.train.cases.engine import by_copies, times_ranks
from tests.train.cases.nets import Net, SquareLoss, batch, cuts, made_step, states, tensors
from tests.train.worlds import case, parameters, refused


def parallel(here, network, *methods):
    """The network itself when alone."""
    if here.alone:
        return network
    wrapped = AutoParallel(network, parallel_mode="semi_auto")
    wrapped.dataset_strategy("full_batch")
    for name in methods:
        getattr(wrapped, name)()
    return wrapped


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
    return {**found, **parameters(here, net), **states(optimizer)}, {"held": net.w.asnumpy().shape}


@case(2, 4)
def network_called(here):
    net = Net(cuts(here.size))
    wrapped = parallel(here, net)
    out = wrapped(Tensor(batch()[0]))
    again = wrapped(x=Tensor(batch(8)[0]))
    names = [p.name for p in wrapped.get_parameters()]
    return {"out": here.full(out), "again": here.full(again), **parameters(here, net)}, {"names": names}


def factor(method, times):
    def run(here):
        net = Net(cuts(here.size))
        rates = {p.name: 0.1 * (times(here.size)[p.name] if here.alone else 1.0) for p in net.trainable_params()}
        optimizer = nn.SGD([{"params": [p], "lr": rates[p.name]} for p in net.trainable_params()], 0.1)
        step = parallel(here, made_step(net, optimizer), method)
        step(*tensors(*batch()))
        return parameters(here, net), {}

    return case(2, 4)(run)


CASES = {
    # ranks that hold the same slice: `engine.by_copies`
    "gradients_mean": factor("enable_gradients_mean", by_copies),
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
