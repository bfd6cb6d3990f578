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
from tests.nets import cell
from tests.train.cases.forms import LOOPS, SETTINGS, WAYS, Setting, by_rows, messages_counted, sharded_by, whole
from tests.train.cases.nets import DATA, ROWS, SEMI, Net, SquareLoss, batch, cuts, none_cut, numbers, states, tensors
from tests.train.worlds import case, parameters, refused

# ---- how gradients are added up (mindspore.md 10.3) ----


def factors(settings, factor_of, cut=none_cut, way="engine"):
    """One step of SGD; one device's rates are multiplied by the factor expected in the ranks' gradients."""

    def run(here):
        here.settings(**settings)
        how = Setting(settings, cut, by_rows if cut is none_cut else whole, own=cut is none_cut)
        net = Net(how.cut(here.size))
        rates = {p.name: 0.1 * (factor_of(here.size)[p.name] if here.alone else 1.0) for p in net.trainable_params()}
        optimizer = nn.SGD([{"params": [p], "lr": rates[p.name]} for p in net.trainable_params()], 0.1)
        WAYS[way](how, net, SquareLoss(), optimizer)(*tensors(*how.feed(here, *batch())))
        return parameters(here, net), {}

    return case(2, 4)(run)


def as_one_device(size):
    return dict.fromkeys(("w", "bias", "v"), 1.0)


def times_ranks(size):
    return dict.fromkeys(("w", "bias", "v"), float(size))


def by_copies(size):
    # fc1 ((half, 2), (2, 1)): half of the ranks hold the same rows of w. The bias follows the rows of its sum: all
    # ranks hold it. fc2 ((1, 2), # (2, half)) splits v into as many parts as there are ranks
    return {"w": 1 / (size // 2), "bias": 1 / size, "v": 1.0}


CASES = {
    "semi_auto sums": factors({**SEMI, "gradients_mean": False}, as_one_device, cuts),
    "semi_auto means": factors({**SEMI, "gradients_mean": True}, by_copies, cuts),
    "semi_auto without loss_repeated_mean": factors({**SEMI, "loss_repeated_mean": False}, times_ranks, cuts),
}
CASES |= {
    f"data_parallel {'means' if mean else 'sums'}, {way}": factors(
        {**DATA, "gradients_mean": mean}, as_one_device if mean else times_ranks, way=way
    )
    for way in (*LOOPS, "engine", "model")
    for mean in (True, False)
}


# ---- one set of parameters, several programs ----


def steps_of(net, optimizer):
    """Steps of training, evaluation and prediction."""
    return make_train_step(net, SquareLoss(), optimizer), make_eval_step(net, SquareLoss()), make_predict_step(net)


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
    return {"found": found, **parameters(here, net), **states(optimizer)}, {"held": held}


# ---- how ranks begin ----


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


def gathering(alone, size):
    """A network: its own rows' deviation from the mean over all ranks' rows."""

    def construct(net, x):
        out = ops.tanh(ops.matmul(x, net.w))
        mean = ops.reduce_mean(out, 0, keep_dims=True)
        return out - (mean if alone else net.total(mean) / size)

    return cell(construct, w=Parameter(numbers(3, 12, 16), name="w"), total=ops.AllReduce())


@case(2, 4, quick=(2, 4))
def collectives_in_construct_are_compiled_in_data_parallel(here):
    here.settings(**DATA)
    net = gathering(here.alone, here.size)
    optimizer = nn.Momentum(net.trainable_params(), 0.1, 0.9)
    step = make_train_step(net, SquareLoss(), optimizer)
    losses = [here.mean(step(*here.rows(*batch()))) for _ in range(3)]
    return {"losses": losses, **parameters(here, net)}, {"plan": step.plan is not None}


@case(2, compared=False)
def collectives_in_construct_are_refused_in_semi_auto(here):
    here.settings(**SEMI)
    net = gathering(False, here.size)
    step = make_train_step(net, SquareLoss(), nn.SGD(net.trainable_params(), 0.1))
    return {}, {"refused": refused(step, *batch())}


# ---- settings ----


def half():
    """A network in float16, where many small addends are lost in a large sum; its bias is float32."""
    w = np.linspace(0.5, 1.5, 8, dtype=np.float16)[:, None] * np.ones((1, 16), np.float16)
    bias = Parameter(np.zeros(16, np.float32), name="b")
    return cell(lambda net, x: ops.cast(ops.matmul(x, net.w), "float32") + net.b, w=Parameter(w, name="w"), b=bias)


def half_precision(way, settings, wide):
    """The gradients of a sum in float16, and the messages: gradient_fp32_sync on or off, compiled or at once."""

    def run(here):
        here.settings(**settings, gradient_fp32_sync=wide)
        net = half()
        x = (np.arange(16 * 8).reshape(16, 8) % 7 / 64 + (np.arange(16) < 2)[:, None] * 256).astype(np.float16)
        before, dtype = net.w.asnumpy().copy(), np.float32 if wide else np.float16
        if here.alone:
            # each rank's addend as float16 makes it, then the sum in the dtype of the message, in rank order
            rows, total = 16 // here.size, np.zeros((8, 16), dtype)
            for rank in range(here.size):
                part = x[rank * rows : (rank + 1) * rows].T @ np.ones((rows, 16), np.float16)
                total = total + part.astype(dtype)
            return {"w": before - total.astype(np.float16)}, {}
        step = WAYS[way](Setting(settings, own=way == "function"), net, summed, nn.SGD(net.trainable_params(), 1.0))
        with messages_counted() as messages:
            step(*tensors(*here.rows(x, np.zeros((16, 16), np.float32))))
        return {"w": np.array(here.full(net.w))}, [m for m in messages if m[0] == "all_reduce"]

    return case(2, 4)(run)


def summed(out, label):
    return ops.reduce_sum(out - label)


CASES |= {
    f"half precision, {way}, {'in single' if wide else 'as it is'}": half_precision(way, settings, wide)
    for way, settings in (("engine", ROWS), ("function", {**DATA, "gradients_mean": False}))
    for wide in (True, False)
}


def printed(net, x):
    out = net.product(x, net.w)
    print("seen", out)
    return out


def printing(settings, feed_rows, cut):
    def run(here):
        here.settings(**settings)
        net = cell(printed, w=Parameter(numbers(3, 12, 16), name="w"), product=sharded_by(ops.MatMul(), cut))
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


def wrong(net, words):
    return ops.gather(net.table, words, 0)  # the line that the error names


@case(2, compared=False)
def errors_in_a_step(here):
    here.settings(**SEMI)
    net = cell(wrong, table=Parameter(numbers(3, 24, 8), name="table"))
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


def per_sample(setting):
    """MindSpore differentiates the elements' sum; data_parallel's rank mean: one device's sum over a rank's rows."""

    def run(here):
        how = SETTINGS[setting](here.size)
        here.settings(**how.context)
        net = Net(how.cut(here.size))
        rate = 0.01 / here.size if here.alone and how.own else 0.01
        step = make_train_step(net, PerSample(), nn.Momentum(net.trainable_params(), rate, 0.9))
        losses = [here.full(step(*how.feed(here, *batch()))) for _ in range(3)]
        return parameters(here, net) if how.own else {"losses": losses, **parameters(here, net)}, {}

    return case(4)(run)


CASES |= {f"a loss per sample, {name}": per_sample(name) for name in ("data_parallel", "split, rows", "auto")}
