"""What MindSpore's tutorials do beyond the seeds: data split by columns, sharded functions, gradients at once."""

from __future__ import annotations

import numpy as np
from parallel_lab.mindspore.dataset import NumpySlicesDataset, vision
from parallel_lab.mindspore.parallel.auto_parallel import AutoParallel

import parallel_lab.mindspore as ms
from parallel_lab.mindspore import mint, nn, ops
from tests.train.cases.nets import numbers
from tests.train.worlds import case, parameters, refused

ROWS = 8


def pictures():
    """(images, labels): (ROWS, 1, 6, 16) and (ROWS,)."""
    return numbers(1, ROWS, 1, 6, 16).astype(np.float32), (np.arange(ROWS) % 3).astype(np.int32)


class Pictures(nn.Cell):
    def __init__(self):
        super().__init__()
        self.flatten, self.relu = nn.Flatten(), nn.ReLU()
        self.layer1, self.layer2 = nn.Dense(6 * 16, 24), nn.Dense(24, 3)

    def construct(self, x):
        return self.layer2(self.relu(self.layer1(self.flatten(x))))


@case(2, 4)
def pictures_cut_by_columns(here):
    """Every rank reads the same rows and keeps a vertical stripe of each picture; gradients, then the optimizer."""
    images, labels = pictures()
    data = NumpySlicesDataset((images[:, 0, :, :, None], labels), ["image", "label"], shuffle=False)
    mine = "image"
    if not here.alone:
        here.settings(parallel_mode="semi_auto_parallel", dataset_strategy=((1, 1, 1, here.size), (1,)))
        stripes = [f"stripe{number}" for number in range(here.size)]
        data = data.map(operations=vision.SlicePatches(1, here.size), input_columns="image", output_columns=stripes)
        mine = stripes[here.rank]
        data = data.project([mine, "label"])
    data = data.map(vision.HWC2CHW(), mine).batch(ROWS // 2)
    net, loss_fn = Pictures(), nn.CrossEntropyLoss()
    optimizer = nn.SGD(net.trainable_params(), 0.1)
    grad_fn = ms.value_and_grad(lambda x, y: loss_fn(net(x), y), None, net.trainable_params())
    losses, shapes = [], set()
    for _ in range(2):
        for image, label in data:
            shapes.add(tuple(image.shape))
            loss, grads = grad_fn(image, label)
            optimizer(grads)
            losses.append(here.full(loss))
    return {"losses": losses, **parameters(here, net)}, {"shapes": shapes}


class Mint(nn.Cell):
    """Functions with strategies, made before anybody says that the network is split."""

    def __init__(self, size):
        super().__init__()
        self.w, self.v = (
            ms.Parameter(numbers(seed, *shape), name=name)
            for seed, shape, name in ((2, (16, 24), "w"), (3, (24, 8), "v"))
        )
        self.matmul1 = ms.parallel.shard(mint.matmul, in_strategy=((size // 2, 2), (2, 1)))
        self.relu = ms.parallel.shard(mint.nn.functional.relu, in_strategy=((size, 1),))
        self.matmul2 = mint.matmul

    def construct(self, x):
        return self.matmul2(self.relu(self.matmul1(mint.flatten(x, start_dim=1, end_dim=2), self.w)), self.v)


@case(2, 4)
def sharded_functions_in_a_network_that_auto_parallel_cuts(here):
    net, x = Mint(here.size), numbers(4, ROWS, 4, 4)
    if here.alone:
        net.matmul1, net.relu = mint.matmul, mint.nn.functional.relu
        return {"out": net(ms.Tensor(x)).asnumpy()}, {}
    parallel = AutoParallel(net, parallel_mode="semi_auto")
    parallel.dataset_strategy("full_batch")
    return {"out": here.full(parallel(ms.Tensor(x)))}, {"alone": refused(lambda: net(ms.Tensor(x)))}


@case(2)
def recomputing(here):
    """It changes nothing, on one device and on ranks."""
    if not here.alone:
        here.settings(parallel_mode="data_parallel", gradients_mean=True)

    def gradients(mark):
        net = Pictures()
        net.relu2 = ops.ReLU()
        mark(net)
        grad_fn = ms.value_and_grad(lambda x, y: ops.reduce_mean(net.relu2(net(x))), None, net.trainable_params())
        return grad_fn(*(ms.Tensor(part) for part in pictures()))[0]

    plain = gradients(lambda net: None).asnumpy()
    recomputed = [gradients(lambda net: net.layer1.recompute()), gradients(lambda net: net.relu2.recompute())]
    return {"loss": plain, "recomputed": [one.asnumpy() for one in recomputed]}, {}


MARKS = {
    "kept": lambda net: None,
    "recomputed": lambda net: net.relu.recompute(),
    "on the host": lambda net: (net.layer1.matmul.set_device("CPU"), net.layer1.bias_add.set_device("CPU")),
}


@case(2, 4)
def steps_by_hand_where_operators_are_recomputed_or_on_the_host(here):
    """Each rank trains on its own rows, as the tutorials' scripts do; marks change no bit."""
    if not here.alone:
        here.settings(parallel_mode="data_parallel", gradients_mean=True)
    found = {}
    for name, mark in MARKS.items():
        ms.set_seed(5)
        net = Pictures()
        net.relu = ops.ReLU()
        mark(net)
        optimizer, loss_fn = nn.SGD(net.trainable_params(), 1e-2), nn.CrossEntropyLoss()

        def forward_fn(x, y, net=net, loss_fn=loss_fn):
            logits = net(x)
            return loss_fn(logits, y), logits

        grad_fn = ms.value_and_grad(forward_fn, None, net.trainable_params(), has_aux=True)
        reducer = nn.DistributedGradReducer(optimizer.parameters)
        images, labels = pictures()
        mine = slice(None) if here.alone else slice(here.rank * ROWS // here.size, (here.rank + 1) * ROWS // here.size)
        for _ in range(3):
            (_, _), grads = grad_fn(ms.Tensor(images[mine]), ms.Tensor(labels[mine]))
            optimizer(grads if here.alone else reducer(grads))
        found.update({f"{name} {p.name}": p.asnumpy() for p in net.trainable_params()})
    plain = {n.removeprefix("kept "): v for n, v in found.items() if n.startswith("kept ")}
    for name, value in plain.items():
        for mark in MARKS:
            np.testing.assert_array_equal(found[f"{mark} {name}"], value)
    return {**plain}, {}


class NetWithLoss(nn.Cell):
    """A loss around a network that an optimizer knows already: its parameters are called "network...." from now on."""

    def __init__(self, network):
        super().__init__()
        self.network, self.loss = network, nn.CrossEntropyLoss()

    def construct(self, x, y):
        return self.loss(self.network(x), y)


class OwnMomentum(nn.Optimizer):
    """nn.Momentum written as MindSpore's optimizers are: a construct that assigns to Parameters of its own."""

    def __init__(self, params, learning_rate, momentum):
        super().__init__(learning_rate, params)
        self.moments, self.momentum = self.parameters.clone(prefix="moments", init="zeros"), momentum

    def construct(self, gradients):
        for p, m, g in zip(self.parameters, self.moments, gradients, strict=True):
            velocity = m * self.momentum + g
            ops.assign(m, velocity)
            ops.assign(p, p - velocity * self.get_lr())
        return True


@case(2, 4)
def optimizers_made_before_their_network_is_wrapped(here):
    """By hand, as a step, through Model; and an optimizer with a construct of its own, which must equal nn.Momentum."""
    if not here.alone:
        here.settings(parallel_mode="semi_auto_parallel", full_batch=True)
    images, labels = (ms.Tensor(part) for part in pictures())
    found, names = {}, set()
    for name, make in (("momentum", nn.Momentum), ("own", OwnMomentum)):
        ms.set_seed(5)
        net = Pictures()
        optimizer = make(net.trainable_params(), 0.1, 0.9)
        step = nn.TrainOneStepCell(NetWithLoss(net), optimizer)
        found[f"{name} losses"] = [here.full(step(images, labels)) for _ in range(3)]
        names |= {p.name for p in net.get_parameters()}
        if name == "momentum":
            grad_fn = ms.value_and_grad(step.network, None, optimizer.parameters)
            loss, grads = grad_fn(images, labels)
            optimizer(grads)
            found["by hand"] = [here.full(loss), here.full(grad_fn(images, labels)[0])]
        ms.set_seed(5)
        net = Pictures()
        model = ms.Model(net, nn.CrossEntropyLoss(), make(net.trainable_params(), 0.1, 0.9))
        data = NumpySlicesDataset(pictures(), ["image", "label"], shuffle=False).batch(ROWS)
        model.train(2, data, dataset_sink_mode=False)
        found.update({f"{name} {key}": value for key, value in parameters(here, net).items()})
    return found, {"names": names}
