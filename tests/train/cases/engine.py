"""Training, evaluation and prediction steps as `Model` takes them, in every parallel mode."""

from __future__ import annotations

import contextlib
import io

import numpy as np

from parallel_lab import nn, ops
from parallel_lab.base import seeds
from parallel_lab.base.settings import context
from parallel_lab.nn.tensor.parameter import Parameter
from parallel_lab.nn.tensor.tensor import Tensor
from parallel_lab.train.communication import get_rank
from parallel_lab.train.engine import make_eval_step, make_predict_step, make_train_step
from tests.train.cases import engine_training
from tests.train.cases.engine_training import MODES, SEMI, both_cut, no_strategies, rows_of_each, states, trained, whole
from tests.train.cases.nets import DATA, Net, SquareLoss, batch, numbers
from tests.train.worlds import case, parameters, refused

PARTS = (engine_training,)

# ---- networks that are a step themselves, or give the loss ----


def whole_steps(settings, strategies, feed):
    """A network that gives the loss with an optimizer; a TrainOneStepCell with an optimizer next to it, and alone."""

    def run(here):
        here.settings(**settings)
        local = settings["parallel_mode"] == "data_parallel"
        found = {}
        for how in ("loss", "cell and optimizer", "cell"):
            net = Net(strategies(here))
            with_loss, optimizer = nn.WithLossCell(net, SquareLoss()), nn.Momentum(net.trainable_params(), 0.1, 0.9)
            network = with_loss if how == "loss" else nn.TrainOneStepCell(with_loss, optimizer)
            step = make_train_step(network, None, None if how == "cell" else optimizer)
            losses = [step(*feed(here)) for _ in range(2)]
            losses = [here.mean(one) if local else here.full(one) for one in losses]
            found[how] = losses, parameters(here, net), optimizer.global_step
        return found, {}

    return case(2, 4)(run)


CASES = {
    "whole steps, data_parallel": whole_steps(DATA, no_strategies, rows_of_each),
    "whole steps, semi_auto, split": whole_steps(SEMI, both_cut, whole),
    "whole steps, stand_alone": whole_steps({"parallel_mode": "stand_alone"}, no_strategies, whole),
}


# ---- networks ----


class Dropping(nn.Cell):
    def __init__(self, cut=(None, None)):
        super().__init__()
        self.net = Net(cut)
        self.drop, self.again = nn.Dropout(p=0.4), nn.Dropout(p=0.2)

    def construct(self, x):
        return self.again(self.net(self.drop(x)))


def dropping(settings, strategies, feed):
    def run(here):
        here.settings(**settings)
        net = Dropping(strategies(here))
        net.set_train()
        step = make_train_step(net, SquareLoss(), nn.Momentum(net.trainable_params(), 0.1, 0.9))
        losses = [here.full(step(*feed(here))) for _ in range(3)]
        x, y = batch(32)  # another batch size, and the masks of the steps that follow
        more = (x, y) if here.alone or settings.get("dataset_strategy") == "full_batch" else here.rows(x, y)
        losses.append(here.mean(step(*more)))
        losses.append(here.mean(step(*feed(here))))
        return {"losses": losses, **parameters(here, net)}, {}

    return case(4)(run)


CASES |= {
    "dropout, semi_auto, split": dropping(SEMI, both_cut, whole),
    "dropout, semi_auto, rows": dropping({"parallel_mode": "semi_auto_parallel"}, no_strategies, rows_of_each),
}


class Normal(nn.Cell):
    """float32: running statistics are float32."""

    def __init__(self, sync=False, cut=None):
        super().__init__()
        self.w = Parameter(numbers(3, 12, 8).astype(np.float32), name="w")
        self.product, self.norm = ops.MatMul(), nn.BatchNorm1d(8, sync=sync)
        if cut:
            self.product.shard(cut)
        self.v = Parameter(numbers(7, 8, 16).astype(np.float32), name="v")

    def construct(self, x):
        return ops.matmul(ops.tanh(self.norm(self.product(x, self.w))), self.v)


def normalizing(settings, feed_rows, sync=False, cut=None):
    def run(here):
        here.settings(**settings)
        net = Normal(sync, cut)
        net.set_train()
        given = tuple(a.astype(np.float32) for a in batch())
        given = here.rows(*given) if feed_rows else given
        step = make_train_step(net, SquareLoss(), nn.Momentum(net.trainable_params(), 0.1, 0.9))
        for _ in range(3):
            step(*given)
        net.set_train(False)
        loss, _, _ = make_eval_step(net, SquareLoss())(*given)
        net.set_train(True)
        step(*given)
        return {"loss": here.mean(loss), **parameters(here, net)}, {}

    return case(2, 4)(run)


CASES |= {
    "batch norm, data_parallel, sync": normalizing(DATA, True, sync=True),
    "batch norm, semi_auto, rows": normalizing({"parallel_mode": "semi_auto_parallel"}, True),
    "batch norm, semi_auto, split": normalizing(SEMI, False, cut=((1, 2), (2, 1))),
}


class Tied(nn.Cell):
    """One table for words and classes; a parameter without effect on the loss, and one that only prediction uses."""

    def __init__(self, cut=None):
        super().__init__()
        self.table = Parameter(numbers(3, 24, 8), name="table")
        self.unused = Parameter(numbers(4, 5), name="unused")
        self.apart = Parameter(numbers(4, 24), name="apart")
        self.gather, self.product = ops.Gather(), ops.MatMul(transpose_b=True)
        if cut:
            self.gather.shard(cut[0])
            self.product.shard(cut[1])

    def construct(self, words):
        found = self.gather(self.table, words, 0)
        return self.product(ops.tanh(found), self.table), ops.reduce_sum(self.apart)


class WordLoss(nn.Cell):
    def construct(self, out, label):
        return ops.reduce_mean(ops.square(ops.log_softmax(out[0]))) + ops.reduce_mean(ops.cast(label, "float64")) * 0.5


def tied(settings, feed_rows, strategies=None):
    def run(here):
        here.settings(**settings)
        net = Tied(strategies)
        words, label = np.arange(16) * 7 % 24, np.arange(16) % 5
        step = make_train_step(net, WordLoss(), nn.Adam(net.trainable_params(), 0.1, weight_decay=0.1))
        losses = [here.mean(step(*(here.rows(words, label) if feed_rows else (words, label)))) for _ in range(3)]
        return {"losses": losses, **parameters(here, net)}, {}

    return case(2, 4)(run)


CASES |= {
    "tied and unused, data_parallel": tied(DATA, True),
    "tied and unused, semi_auto, rows": tied({"parallel_mode": "semi_auto_parallel"}, True),
    "tied and unused, semi_auto, table split": tied(SEMI, False, (((2, 1), (1,)), ((1, 1), (2, 1)))),
}


# ---- one set of parameters, several programs ----


def steps_of(net, optimizer):
    """Steps of training, evaluation and prediction."""
    return make_train_step(net, SquareLoss(), optimizer), make_eval_step(net, SquareLoss()), make_predict_step(net)


def several_programs(settings, strategies, feed_rows):
    """Training, evaluation, prediction, another batch size, training again: as one device with these interruptions."""

    def run(here):
        here.settings(**settings)
        net = Dropping(strategies(here))
        data_parallel = settings["parallel_mode"] == "data_parallel"
        optimizer, found = nn.Adam(net.trainable_params(), 0.05), []
        step, evaluate, predict = steps_of(net, optimizer)
        for rows in (16, 16, 32, 16):
            x, y = batch(rows)
            given = here.rows(x, y) if feed_rows else (x, y)
            net.set_train(True)
            loss = step(*given)
            found.append(here.mean(loss))
            net.set_train(False)
            loss, outputs, label = evaluate(*given)
            found.append(here.mean(loss))
            out = predict(given[0])
            if not data_parallel:
                found += [here.full(outputs[0]), here.full(label), here.full(out)]
        return {"found": found, **parameters(here, net), **states(here, optimizer, net)}, {}

    return case(2, 4)(run)


CASES |= {
    "several programs, semi_auto, split": several_programs(SEMI, both_cut, False),
    "several programs, semi_auto, rows": several_programs({"parallel_mode": "semi_auto_parallel"}, no_strategies, True),
}


class TwoWays(nn.Cell):
    """Other strategies in training than in evaluation, so that the same parameters are laid out differently."""

    def __init__(self, here):
        super().__init__()
        self.w, self.v = Parameter(numbers(3, 12, 8), name="w"), Parameter(numbers(7, 8, 16), name="v")
        inner, outer = ((1, here.size), (here.size, 1)), ((1, 1), (1, here.size))
        self.a, self.b = ops.MatMul().shard(inner), ops.MatMul().shard(outer)
        self.c, self.d = ops.MatMul().shard(outer), ops.MatMul().shard(inner)

    def construct(self, x):
        first, second = (self.a, self.b) if self.training else (self.c, self.d)
        return second(ops.tanh(first(x, self.w)), self.v)


@case(2, 4)
def layouts_that_change_between_training_and_evaluation(here):
    here.settings(**SEMI)
    net = TwoWays(here)
    optimizer = nn.Momentum(net.trainable_params(), 0.05, 0.9)
    step, evaluate, predict = steps_of(net, optimizer)
    found, held = [], []
    for _ in range(3):
        net.set_train(True)
        found.append(here.full(step(*batch())))
        held.append((net.w.asnumpy().shape, net.v.asnumpy().shape))
        net.set_train(False)
        found.append(here.full(evaluate(*batch())[0]))
        held.append((net.w.asnumpy().shape, net.v.asnumpy().shape))
        found.append(here.full(predict(batch()[0])))
    return {"found": found, **parameters(here, net), **states(here, optimizer, net)}, {"held": held}


# ---- how ranks begin ----


@case(2, 4)
def rank_0_s_parameters_are_broadcast(here):
    here.settings(parallel_mode="data_parallel", gradients_mean=True, parameter_broadcast=True)
    seeds.set_seed(1 + here.rank)
    net = nn.Dense(12, 16)
    step = make_train_step(net, SquareLoss(), nn.SGD(net.trainable_params(), 0.1))
    loss = step(*here.rows(*(a.astype(np.float32) for a in batch())))
    return {"loss": here.mean(loss), **parameters(here, net)}, {}


@case(2, 4)
def rank_0_s_parameters_are_broadcast_in_semi_auto(here):
    here.settings(**SEMI, parameter_broadcast=True)
    seeds.set_seed(1 + here.rank)
    net = nn.Dense(12, 16)
    net.matmul.shard(((1, 2), (1, 2)))
    step = make_train_step(net, SquareLoss(), nn.SGD(net.trainable_params(), 0.1))
    loss = step(*(a.astype(np.float32) for a in batch()))
    return {"loss": here.mean(loss), **parameters(here, net)}, {}


@case(2, compared=False)
def different_beginnings(here):
    found = {}
    for mode in ("semi_auto_parallel", "auto_parallel"):
        here.settings(**{**SEMI, "parallel_mode": mode, "search_mode": "sharding_propagation"})
        seeds.set_seed(1 + here.rank)
        net = nn.SequentialCell(nn.Dense(12, 16))
        net[0].matmul.shard(((1, 1), (2, 1)))
        net[0].bias.set_data(np.zeros(16))  # the same everywhere: only the weight is at fault
        step = make_train_step(net, SquareLoss(), nn.SGD(net.trainable_params(), 0.1))
        found[mode] = [refused(step, *(a.astype(np.float32) for a in batch())) for _ in range(2)]
        seeds.set_seed(1)
    seeds.set_seed(1 + here.rank)
    here.settings(**SEMI)
    net = nn.Dense(12, 16)
    found["a Cell that is called"] = [refused(net, batch()[0].astype(np.float32))]
    return {}, found


# ---- programs that differ ----


class Unequal(nn.Cell):
    """What depends on the rank: an operator, a number, a constant, or what is returned."""

    def __init__(self, how, rank):
        super().__init__()
        self.w, self.how, self.rank = Parameter(numbers(3, 12, 16), name="w"), how, rank
        self.product = ops.MatMul()
        if how == "strategy":
            self.product.shard(((2, 1), (1, 1)) if rank == 0 else ((1, 1), (1, 2)))

    def construct(self, x):
        out = self.product(x, self.w)
        if self.how == "if":
            out = ops.relu(out) if self.rank == 0 else ops.tanh(out)
        if self.how == "number":
            out = out * (1.0 + self.rank)
        if self.how == "constant":
            out = out + Tensor(np.full(16, float(self.rank)))
        if self.how == "message" and self.rank == 0:
            out = out + ops.reduce_sum(out, 1, keep_dims=True)
        return out


@case(2, compared=False)
def unequal_programs(here):
    found = {}
    here.settings(**SEMI)
    for how in ("if", "strategy", "number", "constant", "message"):
        net = Unequal(how, get_rank())
        step = make_train_step(net, SquareLoss(), nn.SGD(net.trainable_params(), 0.1))
        before = net.w.asnumpy().copy()
        found[how] = (*refused(step, *batch()), np.array_equal(before, net.w.asnumpy()))
    net = Unequal("output", get_rank())
    predict = make_predict_step(lambda x: net(x) if get_rank() == 0 else (net(x), net(x) * 2.0))
    found["output"] = refused(predict, batch()[0])
    net = Unequal("optimizer", get_rank())
    step = make_train_step(net, SquareLoss(), nn.SGD(net.trainable_params(), 0.1, weight_decay=0.1 * get_rank()))
    found["optimizer"] = refused(step, *batch())
    # in data_parallel each rank computes for itself: only messages must be the same
    context.reset_auto_parallel_context()
    here.settings(parallel_mode="data_parallel", gradients_mean=True)
    net = Unequal("if", get_rank())
    step = make_train_step(net, SquareLoss(), nn.SGD(net.trainable_params(), 0.1))
    found["local"] = refused(step, *here.rows(*batch()))
    net = Unequal("if", get_rank())
    if get_rank() == 1:
        net.insert_param_to_cell("more", Parameter(numbers(4, 16), name="more"))
        net.construct = lambda x: net.product(x, net.w) + net.more
    step = make_train_step(net, SquareLoss(), nn.SGD(net.trainable_params(), 0.1))
    found["local messages"] = refused(step, *here.rows(*batch()))
    return {}, found


# ---- collectives of the learner's own ----


class Gathering(nn.Cell):
    """Its own rows' deviation from the mean over all ranks' rows."""

    def __init__(self, alone, size):
        super().__init__()
        self.w = Parameter(numbers(3, 12, 16), name="w")
        self.alone, self.size = alone, size
        self.total = ops.AllReduce()

    def construct(self, x):
        out = ops.tanh(ops.matmul(x, self.w))
        mean = ops.reduce_mean(out, 0, keep_dims=True)
        return out - (mean if self.alone else self.total(mean) / self.size)


@case(2, 4, quick=(2, 4))
def collectives_in_construct_are_compiled_in_data_parallel(here):
    here.settings(**DATA)
    net = Gathering(here.alone, here.size)
    optimizer = nn.Momentum(net.trainable_params(), 0.1, 0.9)
    step, losses = trained(here, net, optimizer, here.rows(*batch()), own_losses=True)
    return {"losses": losses, **parameters(here, net)}, {"plan": step.plan is not None}


@case(2, compared=False)
def collectives_in_construct_are_refused_in_semi_auto(here):
    here.settings(**SEMI)
    net = Gathering(False, here.size)
    step = make_train_step(net, SquareLoss(), nn.SGD(net.trainable_params(), 0.1))
    return {}, {"refused": refused(step, *batch())}


# ---- settings ----


class Half(nn.Cell):
    """Computes in float16, where many small addends are lost in a large sum."""

    def __init__(self):
        super().__init__()
        self.w = Parameter(np.linspace(0.5, 1.5, 8, dtype=np.float16)[:, None] * np.ones((1, 16), np.float16), name="w")

    def construct(self, x):
        return ops.matmul(x, self.w)


def half_step(here, wide):
    """The gradients of a sum in float16, and the dtype of the message."""
    here.settings(parallel_mode="semi_auto_parallel", gradient_fp32_sync=wide)
    net = Half()
    x = (np.arange(16 * 8).reshape(16, 8) % 7 / 64 + (np.arange(16) // 4 == 0)[:, None] * 64).astype(np.float16)
    y = np.zeros((16, 16), np.float16)
    optimizer = nn.SGD(net.trainable_params(), 1.0)
    step = make_train_step(net, lambda out, label: ops.reduce_sum(ops.cast(out - label, "float32")), optimizer)
    before = net.w.asnumpy().copy()
    if here.alone:
        # each rank's addend as float16 makes it, then the sum in the dtype of the message, in rank order
        rows = 16 // here.size
        parts = [x[r * rows : (r + 1) * rows].T @ np.ones((rows, 16), np.float16) for r in range(here.size)]
        total = np.zeros((8, 16), np.float32 if wide else np.float16)
        for part in parts:
            total = total + part.astype(total.dtype)
        return {"w": before - total.astype(np.float16)}, {}
    step(*here.rows(x, y))
    messages = [i for _, i in step.plan.instructions() if i.is_communication and i.name == "w"]
    sent = [step.plan.value(i.ins[0]).dtype for i in messages]
    return {"w": np.array(net.w.full().asnumpy())}, {"sent": sent}


@case(2, 4)
def half_precision_gradients_are_added_in_single(here):
    return half_step(here, True)


@case(2, 4)
def half_precision_gradients_are_added_as_they_are(here):
    return half_step(here, False)


class Printing(nn.Cell):
    def __init__(self, cut=None):
        super().__init__()
        self.w = Parameter(numbers(3, 12, 16), name="w")
        self.product = ops.MatMul()
        if cut:
            self.product.shard(cut)

    def construct(self, x):
        out = self.product(x, self.w)
        print("seen", out)
        return out


def printing(settings, feed_rows, cut):
    def run(here):
        here.settings(**settings)
        net = Printing(cut)
        step = make_train_step(net, SquareLoss(), nn.SGD(net.trainable_params(), 0.0))
        given = here.rows(*batch()) if feed_rows else batch()
        shown = io.StringIO()
        with contextlib.redirect_stdout(shown):
            step(*given)
            step(*given)
        want = batch()[0] @ numbers(3, 12, 16)
        part = here.own_rows(want) if feed_rows else here.part(want, cut[0][:1] + cut[1][1:])
        return {}, {"shown": shown.getvalue(), "part": str(part)}

    return case(2, compared=False)(run)


CASES |= {
    "print, semi_auto": printing(SEMI, False, ((1, 1), (1, 2))),
    "print, data_parallel": printing(DATA, True, None),
}


class Wrong(nn.Cell):
    """An index that is in no row of the table: known only when numbers are there."""

    def __init__(self):
        super().__init__()
        self.table = Parameter(numbers(3, 24, 8), name="table")

    def construct(self, words):
        return ops.gather(self.table, words, 0)  # the line that the error names


@case(2, compared=False)
def errors_in_a_step(here):
    here.settings(**SEMI)
    net = Wrong()
    step = make_train_step(net, lambda out, label: ops.reduce_mean(out), nn.SGD(net.trainable_params(), 0.1))
    bad = np.array([1, 99, 99, 3])  # every rank has one: what fails on one rank alone ends the others too
    found = {"index": refused(make_predict_step(net), bad)}
    net = Net()
    step = make_train_step(net, SquareLoss(), nn.SGD(net.trainable_params(), 0.1))
    found["shape"] = refused(step, batch()[0][:, :5], batch()[1])
    found["dtype"] = refused(step, batch()[0].astype(complex), batch()[1])
    context.reset_auto_parallel_context()
    here.settings(**SEMI, device_num=8)
    found["devices"] = refused(step, *batch())
    return {}, found


# ---- a loss per sample ----


class PerSample(nn.Cell):
    """One number per row, as `nn.SoftmaxCrossEntropyWithLogits()` gives it without a reduction."""

    def construct(self, out, label):
        return ops.reduce_sum(ops.square(out - label), 1)


def per_sample(mode):
    """MindSpore differentiates the elements' sum; data_parallel's rank mean: one device's sum over a rank's rows."""
    settings, strategies, feed, own = MODES[mode]

    def run(here):
        here.settings(**settings)
        net = Net(strategies(here))
        rate = 0.01 / here.size if here.alone and own else 0.01
        optimizer, fed = nn.Momentum(net.trainable_params(), rate, 0.9), batch() if here.alone else feed(here)
        _, losses = trained(here, net, optimizer, fed, loss=PerSample())
        return parameters(here, net) if own else {"losses": losses, **parameters(here, net)}, {}

    return case(4)(run)


CASES |= {
    f"a loss per sample, {mode}": per_sample(mode)
    for mode in ("data_parallel", "semi_auto, split, rows", "auto_parallel")
}
