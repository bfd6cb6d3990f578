"""Ranks that train copies on their own rows: datasets, messages, how they begin, what is a rank's own."""

from __future__ import annotations

import warnings
from itertools import pairwise

import numpy as np

from parallel_lab import nn, ops, value_and_grad
from parallel_lab.base import seeds
from parallel_lab.base.hooks import current_world
from parallel_lab.base.settings import context
from parallel_lab.base.settings.run_checks import reset_run_checks, set_run_checks
from parallel_lab.nn.tensor.parameter import Parameter
from parallel_lab.nn.tensor.tensor import Tensor
from parallel_lab.train import LambdaCallback, Model
from parallel_lab.train.auto_parallel import AutoParallel
from parallel_lab.train.dataset import GeneratorDataset, NumpySlicesDataset
from parallel_lab.train.engine import make_train_step
from parallel_lab.train.run_cell import jit
from tests.train.cases.forms import LOOPS, WAYS, Meeting, Setting, messages_counted
from tests.train.cases.nets import DATA, Net, SquareLoss, batch, numbers, tensors
from tests.train.worlds import case, parameters, refused

SIZES = (2, 4, 8)
GLOBAL_BATCH = 16


# ---- Model.train on the shards of one dataset ----


def wrapped(rows, size):
    """Numbers of the rows that all shards together read: the first ones again where `size` does not divide them."""
    return np.arange(-(-rows // size) * size) % rows


def shards(here, rows):
    """Batches of a dataset's shard; alone those of all shards together. The last may be smaller."""
    x, y = numbers(11, rows, 12), numbers(12, rows, 16)
    if here.alone:
        order = wrapped(rows, here.size)
        return NumpySlicesDataset((x[order], y[order]), ["data", "label"], shuffle=False).batch(GLOBAL_BATCH)
    shard = {"num_shards": here.size, "shard_id": here.rank}
    return NumpySlicesDataset((x, y), ["data", "label"], shuffle=False, **shard).batch(GLOBAL_BATCH // here.size)


def losses_go_to(losses, here):
    return LambdaCallback(on_train_step_end=lambda run: losses.append(here.mean(run.original_args().net_outputs)))


def model_trains(mode, mean, rows):
    """Summed gradients are `size` times those of one device: with plain SGD, as if its rate were."""

    def run(here):
        here.settings(parallel_mode=mode, gradients_mean=mean)
        net, losses = Net(), []
        rate = 0.02 * (here.size if here.alone and not mean else 1)
        model = Model(net, SquareLoss(), nn.SGD(net.trainable_params(), rate))
        model.train(2, shards(here, rows), callbacks=losses_go_to(losses, here), dataset_sink_mode=False)
        return {"losses": losses, **parameters(here, net)}, {}

    return case(*SIZES)(run)


CASES = {
    f"Model.train, {mode}, {'means' if mean else 'sums'}, {rows} rows": model_trains(mode, mean, rows)
    for mode, mean, rows in (
        ("data_parallel", True, 32),
        ("hybrid_parallel", False, 32),
        ("data_parallel", True, 42),  # the last global batch: 10 rows, and as many of the first as make it even
    )
}


@case(2, 4)
def ranks_with_unequal_rows(here):
    """A generator of each rank's own: rank r brings 2 + r rows. Every rank's mean counts alike, and not every row."""
    rows = [2 + rank for rank in range(here.size)]
    x, y = batch(sum(rows))
    starts = np.cumsum([0, *rows])
    parts = [(x[a:b], y[a:b]) for a, b in pairwise(starts)]
    net = Net()
    optimizer = nn.SGD(net.trainable_params(), 0.1)
    if here.alone:
        gradient = value_and_grad(nn.WithLossCell(net, SquareLoss()), None, optimizer.parameters)
        grads = [gradient(*tensors(*part))[1] for part in parts]
        optimizer([Tensor(sum(g.asnumpy() for g in each) / here.size) for each in zip(*grads, strict=True)])
        return parameters(here, net), {}
    here.settings(**DATA)
    Model(net, SquareLoss(), optimizer).train(1, GeneratorDataset(lambda: iter([parts[here.rank]]), ["data", "label"]))
    return parameters(here, net), {}


# ---- fusion: settings x (compiled, at once) ----


def allreduce(mode, config=None):
    return {"comm_fusion": {"allreduce": {"mode": mode, "config": config}}}


class Wide(nn.Cell):
    """(n, 12) -> (n, 16), float32. Bytes of the gradients, in order: w 786432, b 65536, v 1048576, u 1024."""

    def __init__(self):
        super().__init__()
        self.w = Parameter((numbers(3, 12, 16384) / 8).astype(np.float32), name="w")
        self.b = Parameter(numbers(4, 16384).astype(np.float32), name="b")
        self.v = Parameter((numbers(7, 16384, 16) / 128).astype(np.float32), name="v")
        self.u = Parameter((numbers(8, 16, 16) / 4).astype(np.float32), name="u")

    def construct(self, x):
        return ops.matmul(ops.tanh(ops.matmul(ops.tanh(ops.matmul(x, self.w) + self.b), self.v)), self.u)


# name: (settings, ids of the parameters, who travels together)
FUSIONS = {
    "auto": (allreduce("auto"), None, ["wbvu"]),
    # w and b are below 1 MB; v, with which they exceed it, is their last
    "size 1": (allreduce("size", 1), None, ["wbv", "u"]),
    "size 0": (allreduce("size", 0), None, ["w", "b", "v", "u"]),
    "index": (allreduce("index", [0, 2]), None, ["w", "bv", "u"]),
    "index, the seeds' wording": ({**allreduce("index", [1, 3]), "fusion_index": "first_n"}, None, ["w", "bv", "u"]),
    "all_reduce_fusion_config": ({"all_reduce_fusion_config": [1]}, None, ["wb", "vu"]),
    "ids": ({}, {"w": 0, "b": 4, "v": 9, "u": 4}, ["w", "bu", "v"]),
    "ids and size": (allreduce("size", 1), {"w": 4, "b": 3, "v": 4, "u": 4}, ["wv", "b", "u"]),
    "closed": ({"comm_fusion": {"openstate": False}}, None, ["w", "b", "v", "u"]),
}
BYTES = {"w": 12 * 16384 * 4, "b": 16384 * 4, "v": 16384 * 16 * 4, "u": 16 * 16 * 4}


def trained_with(here, how, settings, ids):
    """(loss and parameters of the second step, its messages, buckets of the plan) with these settings."""
    context.reset_auto_parallel_context()
    here.settings(parallel_mode="data_parallel", gradients_mean=True, **settings)
    net = Wide()
    for name, number in (ids or {}).items():
        getattr(net, name).comm_fusion = number
    optimizer = nn.Momentum(net.trainable_params(), 0.05, 0.9)
    rows = tuple(a.astype(np.float32) for a in here.rows(*batch()))
    step = WAYS[how](Setting(settings, own=True), net, SquareLoss(), optimizer)
    step(*tensors(*rows))  # compiled ranks compare their programs now
    with messages_counted() as messages:
        loss = step(*tensors(*rows))
    plan = getattr(step, "plan", None)
    listed = [] if plan is None else plan.to_dict(rank=here.rank)["buckets"]
    buckets = [(b["kind"], b["members"], b["bytes"]) for b in listed]
    return here.mean(loss), parameters(here, net), [m for m in messages if m[0] == "all_reduce"], buckets


def fusions(how):
    """The results without fusion; of the settings, whether they are the same to the bit."""

    def run(here):
        loss, found, *_ = trained_with(here, how, {}, None)
        notes = {}
        if not here.alone:
            for name, (settings, ids, _) in FUSIONS.items():
                _, others, messages, buckets = trained_with(here, how, settings, ids)
                same = all(np.array_equal(others[key], value) for key, value in found.items())
                notes[name] = {"same": same, "messages": messages, "buckets": buckets}
        return {"loss": loss, **found}, notes

    return case(*SIZES)(run)


CASES |= {f"fusion, {how}": fusions(how) for how in ("engine", "function")}


class Talking(nn.Cell):
    """A network whose ranks look at each other's activations: three collectives, two of which may share a message."""

    def __init__(self, here, number):
        super().__init__()
        self.net, self.alone, self.size, self.rank = Net(), here.alone, here.size, here.rank
        self.first, self.second = (ops.AllReduce().add_prim_attr("fusion", number) for _ in range(2))
        self.gather = ops.AllGather().add_prim_attr("fusion", number)

    def construct(self, x):
        out = self.net(x)
        mean, square = ops.reduce_mean(out, 0, keep_dims=True), ops.reduce_mean(ops.square(out), 0, keep_dims=True)
        if self.alone:
            return (out - mean) / ops.sqrt(square + 1.0) + ops.reduce_mean(out, keep_dims=True)
        mean, square, everybody = self.first(mean), self.second(square), self.gather(out)
        deviation = (out - mean / self.size) / ops.sqrt(square / self.size + 1.0)
        return deviation + ops.reduce_mean(everybody, keep_dims=True)


@case(*SIZES)
def collectives_of_a_network_share_a_message(here):
    here.settings(**DATA, **allreduce("auto"))
    found = {}
    for number in (0, 1):
        net = Talking(here, number)
        step = make_train_step(net, SquareLoss(), nn.SGD(net.trainable_params(), 0.1))
        losses = [step(*tensors(*here.rows(*batch()))) for _ in range(2)]
        with messages_counted() as messages:
            losses.append(step(*tensors(*here.rows(*batch()))))
        found[number] = [here.mean(one) for one in losses], parameters(here, net), messages
    same = all(np.array_equal(found[0][1][key], found[1][1][key]) for key in found[0][1])
    return {"losses": found[1][0], **found[1][1]}, {"same": same, "apart": found[0][2], "together": found[1][2]}


# ---- how ranks begin ----


def begins_differently(how):
    """Every rank has drawn weights of its own; all train on with those of rank 0, which one device has too."""

    def run(here):
        here.settings(**DATA, parameter_broadcast=True)
        seeds.set_seed(1 + (0 if here.alone else here.rank))
        net = nn.Dense(12, 16)
        own = net.weight.asnumpy().copy()
        optimizer = nn.Momentum(net.trainable_params(), 0.1, 0.9)
        losses = []
        rows = tuple(a.astype(np.float32) for a in here.rows(*batch()))
        if how == "Model":
            data = GeneratorDataset(lambda: iter([rows]), ["data", "label"])
            Model(net, SquareLoss(), optimizer).train(2, data, callbacks=losses_go_to(losses, here))
        else:
            step = make_train_step(Meeting(net) if how == "at once" else net, SquareLoss(), optimizer)
            losses = [here.mean(step(*tensors(*rows))) for _ in range(2)]
        return {"losses": losses, "w": net.weight.asnumpy(), "b": net.bias.asnumpy()}, {"drawn": own}

    return case(2, 4)(run)


CASES |= {f"parameter_broadcast, {how}": begins_differently(how) for how in ("Model", "a step", "at once")}


@case(2)
def without_a_broadcast_copies_differ(here):
    """What parameter_broadcast is for: gradients are the same, what they are subtracted from is not."""
    here.settings(**DATA)
    seeds.set_seed(1 + here.rank)
    net = nn.Dense(12, 16)
    before = net.weight.asnumpy().copy()
    step = make_train_step(net, SquareLoss(), nn.SGD(net.trainable_params(), 0.1))
    rows, refusal = tuple(Tensor(a.astype(np.float32)) for a in here.rows(*batch())), ()
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        if not here.alone:
            refusal = refused(step, *rows)
            set_run_checks(replicas="warning")
            make_train_step(net, SquareLoss(), nn.SGD(net.trainable_params(), 0.1))(*rows)
            reset_run_checks()
    told = [str(w.message) for w in warned]
    return {}, {"before": before, "after": net.weight.asnumpy().copy(), "warned": told, "refused": refusal}


# ---- parameters that every rank has for itself ----


def own_parameters(way):
    """layerwise_parallel: the shared ones learn from all rows, averaged, the own one from this rank's rows."""

    def run(here):
        settings = {**DATA, "parallel_mode": "hybrid_parallel", **allreduce("auto")}
        here.settings(**settings)
        x, y = batch()

        def step_of(net):
            return WAYS[way](Setting(settings, own=True), net, SquareLoss(), nn.SGD(net.trainable_params(), 0.5))

        if here.alone:
            both, own = Net(), Net()
            for net, rows in ((both, (x, y)), (own, (here.own_rows(x), here.own_rows(y)))):
                step_of(net)(*tensors(*rows))
            return {"w": both.w.asnumpy(), "bias": both.b.asnumpy(), "v": own.v.asnumpy()}, {}
        net = Net()
        net.v.layerwise_parallel = True
        step = step_of(net)
        with messages_counted() as messages:
            step(*tensors(*here.rows(x, y)))
        return {"w": net.w.asnumpy(), "bias": net.b.asnumpy(), "v": net.v.asnumpy()}, {"messages": messages}

    return case(2, 4, own=True)(run)


CASES |= {f"layerwise_parallel, by {way}": own_parameters(way) for way in (*LOOPS, "engine")}


class CutByHand(nn.Cell):
    """hybrid_parallel as it is meant: rank r has columns r of a weight, and joins the pieces of the result itself."""

    def __init__(self, here):
        super().__init__()
        first, second = numbers(3, 12, 8), numbers(4, 8, 16)
        self.alone, self.size = here.alone, here.size
        self.w = Parameter(here.part(first, (1, here.size)).copy(), name="w", layerwise_parallel=True)
        self.v = Parameter(second, name="v")
        self.gather = ops.AllGather()

    def construct(self, x):
        hidden = ops.tanh(ops.matmul(x, self.w))
        if not self.alone:
            hidden = ops.transpose(self.gather(ops.transpose(hidden, (1, 0))), (1, 0))
        return ops.matmul(hidden, self.v)


@case(2, 4)
def a_network_cut_by_hand(here):
    """All ranks are fed the same rows: equal losses; the own weight's gradient is `size` times as much."""
    here.settings(parallel_mode="hybrid_parallel", gradients_mean=True)
    net = CutByHand(here)
    own, shared = [net.w], [net.v]
    optimizer = nn.SGD(
        [{"params": own, "lr": 0.2 if here.alone else 0.2 / here.size}, {"params": shared, "lr": 0.2}], 0.2
    )
    step = make_train_step(net, SquareLoss(), optimizer)
    losses = [here.mean(step(*tensors(*batch()))) for _ in range(3)]
    w = net.w.asnumpy()
    if not here.alone:
        w = np.moveaxis(current_world().comm.all_gather(w.T.copy(), tag="columns of w"), 0, 1)
    return {"losses": losses, "w": np.ascontiguousarray(w), "v": net.v.asnumpy()}, {"held": net.w.shape}


# ---- AutoParallel's own form of the settings, and what is refused ----


@case(2, compared=False)
def what_is_refused(here):
    found = {}
    here.settings(**DATA)
    net = Net()
    step = make_train_step(net, SquareLoss(), nn.SGD(net.trainable_params(), 0.1))

    def with_full_batch():
        here.settings(full_batch=True)
        make_train_step(net, SquareLoss(), nn.SGD(net.trainable_params(), 0.1))

    found["full_batch"] = refused(with_full_batch)
    context.reset_auto_parallel_context()
    here.settings(**DATA)
    if here.rank == 1:
        here.settings(comm_fusion={"allreduce": {"mode": "index", "config": [0]}})
    found["compiled"] = refused(step, *tensors(*here.rows(*batch())))
    found["AutoParallel"] = refused(lambda: AutoParallel(Net(), parallel_mode="data_parallel"))
    return {}, found


@case(2, 4)
def gradients_are_applied_with_every_second_step(here):
    """They are added up by hand; an `if` on the count of steps sends and applies them."""
    here.settings(**DATA)
    net, loss_fn = Net(), SquareLoss()
    optimizer = nn.Adam(net.trainable_params(), 0.05)
    total = optimizer.parameters.clone("total", init="zeros")
    count = Parameter(Tensor(0), name="count", requires_grad=False)
    gradient = value_and_grad(lambda x, y: loss_fn(net(x), y), None, optimizer.parameters)
    reducer = nn.DistributedGradReducer(optimizer.parameters)

    @jit
    def step(x, y):
        loss, grads = gradient(x, y)
        for part, g in zip(total, grads, strict=True):
            ops.assign_add(part, g / 2)
        ops.assign_add(count, 1)
        if count % 2 == 0:
            optimizer(reducer(total))
            for part in total:
                ops.assign(part, ops.zeros_like(part))
        return loss

    found = [here.mean(step(*tensors(*here.rows(*batch(16))))) for _ in range(5)]
    return {"found": found, **parameters(here, net)}, {}
