"""Functions and Cells that run compiled: jit, AutoParallel of a function, called Cells, Parameters afterwards."""

from __future__ import annotations

import numpy as np

from parallel_lab import Layout, nn, ops, value_and_grad
from parallel_lab.base.settings import context
from parallel_lab.base.settings.tables import GRAPH_MODE, PYNATIVE_MODE
from parallel_lab.nn.tensor.parameter import Parameter
from parallel_lab.nn.tensor.tensor import Tensor
from parallel_lab.nn.wrap import TrainOneStepCell
from parallel_lab.train.auto_parallel import AutoParallel
from parallel_lab.train.run_cell import jit
from tests.train.cases.nets import ROWS, SEMI, Net, SquareLoss, batch, cuts, made_step, numbers, states, tensors
from tests.train.worlds import case, parameters, refused

# ---- functions ----


class Halved(nn.Cell):
    """Weight decay that is halved from step to step."""

    def construct(self, global_step):
        return 0.1 * 0.5**global_step


def two_optimizers(settings, feed_rows):
    """Each part of a network has an optimizer and a loss, as in Wide & Deep; an average is kept of a new weight."""

    def run(here):
        here.settings(**settings)
        net, loss_fn = Net(cuts(here.size)), SquareLoss()
        mean = Parameter(net.w.asnumpy() * 0.0, name="mean", requires_grad=False)
        wide, deep = (
            nn.FTRL([net.w], 0.5, 0.1, l1=1e-3),
            nn.Adam([net.v, net.b], [0.1, 0.02, 0.3, 0.1], weight_decay=Halved()),
        )
        first = value_and_grad(lambda x, y: loss_fn(net(x), y), None, wide.parameters)
        second = value_and_grad(lambda x, y: ops.reduce_mean(ops.abs(net(x) - y)), None, deep.parameters)

        @jit
        def step(x, y):
            (one, grads), (other, more) = first(x, y), second(x, y)
            wide(grads)
            deep(more)
            ops.assign(mean, mean * 0.5 + net.w)
            return one, other

        found = []
        for rows in (16, 16, 32, 16):
            given = batch(rows)
            found += map(here.full, step(*tensors(*(here.rows(*given) if feed_rows else given))))
        of_states = {**states(wide), **states(deep)}
        steps = wide.global_step, deep.global_step
        return {"found": found, "mean": here.full(mean), "steps": steps, **parameters(here, net), **of_states}, {}

    return case(2, 4)(run)


CASES = {"two optimizers, split": two_optimizers(SEMI, False), "two optimizers, rows": two_optimizers(ROWS, True)}


class Trainer:
    """A method as the step."""

    def __init__(self, net, optimizer):
        self.net, self.optimizer = net, optimizer
        self.grad_fn = value_and_grad(lambda x, y: SquareLoss()(net(x), y), None, net.trainable_params())

    @jit
    def step(self, x, y, scale=1.0, *, quiet=True):
        loss, grads = self.grad_fn(x, y)
        self.optimizer([g * scale for g in grads])
        return loss

    @jit
    def predict(self, x, twice=False):
        out = self.net(x)
        return out * 2.0 if twice else out


@case(2, 4)
def jitted_methods(here):
    here.settings(**SEMI)
    found = []
    nets = (Net(cuts(here.size)), 0.1), (Net(), 0.3)
    trainers = [Trainer(net, nn.Momentum(net.trainable_params(), rate, 0.9)) for net, rate in nets]
    for _ in range(2):
        for trainer in trainers:  # each with its own programs
            found.append(here.full(trainer.step(*tensors(*batch()))))
            found.append(here.full(trainer.predict(Tensor(batch()[0]))))
            found.append(here.full(trainer.predict(Tensor(batch()[0]), True)))
            found.append(here.full(trainer.predict(twice=True, x=Tensor(batch()[0]))))
    found.append(here.full(trainers[0].step(y=Tensor(batch()[1]), x=Tensor(batch()[0]), scale=0.5)))
    second = [here.full(p) for p in trainers[1].net.get_parameters()]
    return {"found": found, **parameters(here, trainers[0].net), "second": second}, {}


@case(2, compared=False)
def keyword_only_arguments(here):
    here.settings(**SEMI)
    net = Net()
    trainer = Trainer(net, nn.SGD(net.trainable_params(), 0.1))
    return {}, {"refused": refused(lambda: trainer.step(*tensors(*batch()), quiet=False))}


@case(2)
def other_arguments_of_a_program(here):
    """Strings, None, numbers and shapes are part of the program; dicts and named results come back as they are."""
    here.settings(**SEMI)

    @jit
    def fn(x, how, factor=2.0, extra=None):
        out = ops.tanh(x) if how == "tanh" else ops.relu(x)
        return {"out": out * factor, "how": how, "nothing": extra, "list": [out, (1, "two")]}

    x = Tensor(batch()[0])
    found = here.full([fn(x, "tanh"), fn(x, "relu", 3.0), fn(x, how="tanh", extra=5), fn(x, "tanh")])
    return {"found": found}, {}


# ---- Cells that are called ----


class Several(nn.Cell):
    """Results in all forms: (8, 4), a dict with a number, a tuple with a reshaped one, an input, a Parameter."""

    def __init__(self, size):
        super().__init__()
        self.w, self.v = Parameter(numbers(3, 12, 4), name="w"), Parameter(numbers(4, 4, 4), name="v")
        self.rows, self.columns = ops.MatMul().shard(((size, 1), (1, 1))), ops.MatMul().shard(((1, 1), (1, size)))

    def construct(self, x):
        y = self.rows(x, self.w)
        z = self.columns(y, self.v)
        return y, {"z": z, "sum": z.sum()}, (z.reshape(-1), z[:3]), x, self.v


def shapes_of(here, strategy, training=False, call=lambda net: net):
    """What a call returns on this rank, and whether slices are what the whole results have there."""
    here.settings(**ROWS, dataset_strategy=strategy)
    net, x = Several(here.size), numbers(5, 8, 12)
    net.set_train(training)
    y, more, (flat, few), same, v = call(net)(Tensor(x if strategy == "full_batch" else here.own_rows(x)))
    found = [y, more["z"], more["sum"], flat, few, same, v]
    first = x @ numbers(3, 12, 4)
    product = first @ numbers(4, 4, 4)
    wanted = [first, product, product.sum(), product.reshape(-1), product[:3], x, numbers(4, 4, 4)]
    pairs = zip(found, wanted, strict=True)
    exact = [np.allclose(f.asnumpy(), w[f.layout.slice_index(w.shape, here.rank)]) for f, w in pairs]
    return [f.asnumpy().shape for f in found], all(exact)


@case(2, 4, compared=False)
def what_a_call_returns(here):
    fed = "data_parallel", ((here.size, 1),), "full_batch"
    notes = {str(strategy): shapes_of(here, strategy) for strategy in fed}
    notes |= {
        f"{way}": shapes_of(here, "full_batch", call=call) for way, call in (("jit", jit), ("AutoParallel", whole))
    }
    return {}, {**notes, "training": shapes_of(here, "full_batch", training=True)}


def whole(net):
    net = AutoParallel(net)
    net.dataset_strategy("full_batch")
    return net


@case(2, 4)
def a_cell_that_is_called(here):
    here.settings(**SEMI)
    net, loss_fn = Net(cuts(here.size)), SquareLoss()
    x, y = batch()
    logits = net(Tensor(x))
    loss = loss_fn(logits, Tensor(y))  # on the result of another call
    more = net(x=Tensor(batch(8)[0]))
    found = {"logits": here.full(logits), "loss": here.full(loss), "more": here.full(more)}
    return {**found, **parameters(here, net)}, {"kind": type(logits).__name__, "held": net.w.asnumpy().shape}


@case(2, 4)
def results_of_one_call_are_inputs_of_the_next_in_data_parallel_slices(here):
    here.settings(**ROWS)
    net, loss_fn = Net(cuts(here.size)), SquareLoss()
    x, y = here.rows(*batch())
    logits = net(Tensor(x))
    loss = loss_fn(logits, Tensor(y))
    return {"logits": here.full(logits), "loss": here.full(loss)}, {"slice": logits.asnumpy().shape}


@case(4)
def results_are_brought_to_what_a_tuple_says(here):
    """A result split along columns goes into calls that want rows, or both; all have slices of one shape."""
    here.settings(parallel_mode="semi_auto_parallel", dataset_strategy=((1, 1),))
    product = Columns(here.size)
    out = product(Tensor(numbers(1, 8, 8)))
    here.settings(dataset_strategy=((4, 1),))
    rows = Doubled()(out)
    here.settings(dataset_strategy=(Layout((2, 2), ("a", "b"))("a", "b"),))
    both = Doubled()(out)
    here.settings(dataset_strategy="data_parallel")
    again = Doubled()(both)
    return {"rows": here.full(rows), "both": here.full(both), "again": here.full(again), "out": here.full(out)}, {}


class Columns(nn.Cell):
    def __init__(self, size):
        super().__init__()
        self.w = Parameter(numbers(2, 8, 8), name="w")
        self.product = ops.MatMul().shard(((1, 1), (1, size)))

    def construct(self, x):
        return self.product(x, self.w)


class Doubled(nn.Cell):
    def construct(self, x):
        return x * 2.0 + 1.0


@case(2, 4)
def a_cut_parameter_as_an_input(here):
    here.settings(**SEMI)
    net = Columns(here.size)
    net(Tensor(numbers(1, 8, 8)))
    return {"w": here.full(Doubled()(net.w))}, {"held": net.w.asnumpy().shape}


class Masked(nn.Cell):
    def __init__(self, cut):
        super().__init__()
        self.net, self.drop = Net(cut), nn.Dropout(p=0.5)

    def construct(self, x):
        return self.drop(self.net(x))


@case(2, 4)
def set_train_makes_another_program(here):
    here.settings(**SEMI)
    net = Masked(cuts(here.size))
    step = jit(made_step(net, nn.SGD(net.trainable_params(), 0.1)))
    predict = jit(lambda x: net(x))
    found = []
    for _ in range(2):
        net.set_train(True)
        found.append(here.full(step(*tensors(*batch()))[1]))
        net.set_train(False)
        found.append(here.full(predict(Tensor(batch()[0]))))
        found.append(here.full(net(Tensor(batch()[0]))))
    assert [bool((f == 0).any()) for f in found] == [True, False, False] * 2
    return {"found": found}, {}


@case(2)
def a_frozen_parameter_makes_another_program(here):
    here.settings(**SEMI)
    net = Net(cuts(here.size))
    optimizer = nn.SGD(net.trainable_params(), 0.1)
    step = TrainOneStepCell(nn.WithLossCell(net, SquareLoss()), optimizer)
    losses = [here.full(step(*tensors(*batch())))]
    net.v.requires_grad = False
    losses += [here.full(step(*tensors(*batch()))) for _ in range(2)]
    frozen = np.array(here.full(net.v))
    net.v.requires_grad = True
    losses.append(here.full(step(*tensors(*batch()))))
    return {"losses": losses, "frozen": frozen, **parameters(here, net)}, {}


@case(2)
def other_messages_make_another_program(here):
    here.settings(**ROWS)
    net = Net()
    optimizer = nn.SGD(net.trainable_params(), 0.1)
    step = TrainOneStepCell(nn.WithLossCell(net, SquareLoss()), optimizer)
    losses, sent = [], []

    def train():
        losses.append(here.full(step(*tensors(*here.rows(*batch())))))
        plan = None if here.alone else step.__dict__["_compiled"].plan
        messages = () if plan is None else [i for _, i in plan.instructions() if i.is_communication and i.carried]
        sent.append([len(i.attr("members") or (1,)) for i in messages])

    train()
    net.set_comm_fusion(2)
    train()
    net.set_comm_fusion(0)
    train()
    return {"losses": losses, **parameters(here, net)}, {"sent": sent}


@case(2, 4)
def pynative_mode_runs_at_once(here):
    here.settings(parallel_mode="data_parallel", gradients_mean=True)
    context.set_context(mode=PYNATIVE_MODE)
    net = Net()
    optimizer = nn.SGD(net.trainable_params(), 0.1)
    reducer = nn.DistributedGradReducer(optimizer.parameters)
    step = jit(made_step(net, optimizer, change=reducer))
    losses = [here.mean(step(*tensors(*here.rows(*batch())))[0]) for _ in range(3)]
    context.set_context(mode=GRAPH_MODE)
    return {"losses": losses, **parameters(here, net)}, {}


# ---- what a program writes on ----


@case(2, 4)
def gradients_that_are_changed_before_the_update(here):
    here.settings(**SEMI)
    net = Net(cuts(here.size))
    optimizer = nn.Momentum(net.trainable_params(), 0.1, 0.9)
    shapes = {f"sum.{p.name}": p.full_shape for p in net.trainable_params()}
    sums = [Parameter(np.zeros(shape), name=name, requires_grad=False) for name, shape in shapes.items()]

    def change(grads):
        norm = ops.sqrt(sum_of([ops.reduce_sum(ops.square(g)) for g in grads]))
        grads = [g / ops.maximum(norm, 0.5) for g in grads]
        for total, g in zip(sums, grads, strict=True):
            ops.assign(total, total * 0.5 + g)
        w, b, v = grads
        w, v = ops.reshape(ops.reshape(w, (-1,)), (12, 8)), ops.transpose(ops.transpose(v, (1, 0)) * 2.0, (1, 0))
        return w, b - ops.reduce_mean(b), v

    step = jit(made_step(net, optimizer, change=change))
    losses = [here.full(step(*tensors(*batch()))[0]) for _ in range(3)]
    held = [s.asnumpy().shape for s in sums]
    return {"losses": losses, **parameters(here, net), "sums": [here.full(s) for s in sums]}, {"held": held}


def sum_of(values):
    total = values[0]
    for value in values[1:]:
        total = total + value
    return total


@case(2, 4, compared=False)
def what_a_cut_parameter_is(here):
    """Its slice, its whole, both kinds of new values, and what cannot be done with it at once."""
    here.settings(**SEMI)
    net = Net(cuts(here.size))
    optimizer = nn.Momentum(net.trainable_params(), 0.1, 0.9)
    step = TrainOneStepCell(nn.WithLossCell(net, SquareLoss()), optimizer)
    step(*tensors(*batch()))
    w = net.w
    index = w.layout.slice_index(w.full_shape, here.rank)
    full = w.full().asnumpy()
    found = {"slice": np.array_equal(full[index], w.asnumpy()), "shapes": (w.shape, w.full_shape, w.asnumpy().shape)}
    found["at once"] = [
        refused(lambda: ops.square(w)),
        refused(lambda: w + 1.0),
        refused(lambda: ops.matmul(Tensor(batch()[0]), w)),
        refused(lambda: optimizer([np.zeros(p.full_shape) for p in optimizer.parameters])),
    ]
    moments = optimizer.states["w"]["moments"]
    found["states"] = moments.shape
    # the whole tensor, with other numbers
    w.set_data(full * 2)
    found["whole"] = (w.layout is None, np.array_equal(w.full().asnumpy(), full * 2))
    step(*tensors(*batch()))
    found["split again"] = w.asnumpy().shape
    # a slice
    mine = w.asnumpy() * 3
    before = w.full().asnumpy()
    w.set_data(mine)
    found["own slice"] = np.array_equal(w.full().asnumpy(), before * 3)
    found["wrong shape"] = refused(lambda: w.set_data(np.zeros((5, 8))))
    everywhere = w.full().asnumpy()
    from parallel_lab.base.hooks import current_world

    gathered = current_world().comm.all_gather(everywhere[None], dim=0, tag="compare")
    found["equal"] = all(np.array_equal(g, everywhere) for g in gathered)
    return {}, found


@case(2, 4)
def two_networks_share_parameters_in_two_layouts(here):
    here.settings(**SEMI)
    first, second = Net(cuts(here.size)), Net((((1, 1), (1, here.size)), ((here.size, 1), (1, 1))))
    second.w, second.b, second.v = first.w, first.b, first.v
    a = TrainOneStepCell(nn.WithLossCell(first, SquareLoss()), nn.Momentum(first.trainable_params(), 0.1, 0.9))
    b = TrainOneStepCell(nn.WithLossCell(second, SquareLoss()), nn.Adam(second.trainable_params(), 0.05))
    losses, held = [], []
    for _ in range(2):
        losses.append(here.full(a(*tensors(*batch()))))
        held.append(first.w.asnumpy().shape)
        losses.append(here.full(b(*tensors(*batch()))))
        held.append(first.w.asnumpy().shape)
    return {"losses": losses, **parameters(here, first)}, {"held": held}


@case(2, 4)
def eager_steps_before_compiled_ones(here):
    """An optimizer that has taken steps at once goes on compiled: states are split then."""
    net = Net(cuts(here.size))
    optimizer = nn.Adam(net.trainable_params(), 0.1)
    step = made_step(net, optimizer)
    losses = [here.full(step(*tensors(*batch()))[0])]
    here.settings(**SEMI)
    compiled = jit(step)
    losses += [here.full(compiled(*tensors(*batch()))[0]) for _ in range(2)]
    return {"losses": losses, **parameters(here, net), **states(optimizer)}, {}


@case(2)
def gradients_that_code_outside_asks_for(here):
    here.settings(**SEMI)
    net, given = Net(), tensors(*batch())

    def loss(x, y):
        return ops.reduce_mean(ops.square(net(x) - y))

    same = {"through jit": here.full(value_and_grad(jit(loss), None, net.trainable_params())(*given))}
    same["of an input"] = here.full(value_and_grad(loss, 0)(*given))
    if here.alone:
        return same, {}
    optimizer = nn.SGD(net.trainable_params(), 0.1)
    twice = jit(lambda x, y: (optimizer([p * 1.0 for p in net.trainable_params()]), net(x))[1])
    found = {"twice": refused(lambda: twice(*given))}
    context.set_auto_parallel_context(parallel_mode="stand_alone")
    parallel = AutoParallel(net)
    parallel.dataset_strategy("full_batch")
    squares = value_and_grad(lambda x, y: ops.reduce_mean(ops.square(parallel(x).full() - y)), None, [net.w])
    found["AutoParallel"] = refused(lambda: squares(*given))
    return same, found


# ---- loss scales and clipping by hand ----


def small_batch():
    return tuple(a.astype(np.float32) for a in batch())


def scaled(optimizer_has_it, make_loop):
    """Steps in float32 that begin with a scale whose gradients overflow: the first are skipped on every rank."""

    def run(here):
        here.settings(**SEMI)
        net = Net(cuts(here.size), dtype=np.float32)
        scaler = nn.DynamicLossScaler(2.0**126, 2**8, 2)
        optimizer = nn.Momentum(net.trainable_params(), 0.0005, 0.9, loss_scaler=scaler if optimizer_has_it else None)
        step = make_loop(net, optimizer, scaler)
        losses, scales = [], []
        for _ in range(5):
            with np.errstate(over="ignore", invalid="ignore"):
                losses.append(here.full(step(*tensors(*small_batch()))))
            scales.append(scaler.scale_value)
        return {"losses": losses, "scales": scales, **parameters(here, net)}, {"scales": scales}

    return case(2, 4)(run)


class SumLoss(nn.Cell):
    def construct(self, out, label):
        return ops.reduce_sum(ops.square(out - label))


def scaled_forward(net, scaler):
    loss_fn = SumLoss()
    return value_and_grad(lambda x, y: scaler.scale(loss_fn(net(x), y)), None, net.trainable_params())


def jitted_loop(net, optimizer, scaler):
    grad_fn = scaled_forward(net, scaler)

    @jit
    def step(x, y):
        loss, grads = grad_fn(x, y)
        optimizer(grads)
        return scaler.unscale(loss)

    return step


def loop_at_once(net, optimizer, scaler):
    grad_fn = scaled_forward(net, scaler)

    def step(x, y):
        loss, grads = grad_fn(x, y)
        finite = nn.all_finite(grads)
        if finite:
            optimizer(scaler.unscale(grads))
        loss = scaler.unscale(loss)
        scaler.adjust(finite)
        return loss

    return step


def gradients_compiled_update_at_once(net, optimizer, scaler):
    grad_fn = jit(scaled_forward(net, scaler))

    def step(x, y):
        loss, grads = grad_fn(x, y)
        optimizer(grads)
        return loss

    return step


CASES |= {
    "scaled by hand, jit": scaled(True, jitted_loop),
    "scaled by hand, at once": scaled(False, loop_at_once),
    "scaled by hand, update at once": scaled(True, gradients_compiled_update_at_once),
    "scaled by the training cell": scaled(
        True, lambda net, optimizer, scaler: TrainOneStepCell(nn.WithLossCell(net, SumLoss()), optimizer)
    ),
}


@case(2, 4)
def gradients_clipped_by_hand(here):
    """Slices that a compiled call has returned are clipped by the norm of the whole."""
    here.settings(**SEMI)
    net = Net(cuts(here.size))
    optimizer = nn.SGD(net.trainable_params(), 0.5)
    grad_fn = value_and_grad(lambda x, y: ops.reduce_mean(ops.square(net(x) - y)), None, net.trainable_params())
    for limit in (0.3, 0.1):
        _, grads = grad_fn(*tensors(*batch()))
        grads = nn.clip_by_global_norm(grads, limit)
        norms = zip(grads, (2.0, 3.0, np.inf), strict=True)
        optimizer([nn.clip_by_norm(g, limit / 8, norm_type) for g, norm_type in norms])
    return {"finite": nn.all_finite(grads), **parameters(here, net)}, {}


@case(4)
def one_rank_s_slice_is_not_finite(here):
    here.settings(**SEMI)
    net = Columns(here.size)
    grad_fn = value_and_grad(lambda x: ops.reduce_sum(ops.sqrt(net(x))), None, net.trainable_params())
    # the root at 0 has no finite slope: in the last rank's columns
    net.w.set_data(np.where(np.arange(8) == 7, 0.0, 1.0) * np.ones((8, 8)))
    with np.errstate(divide="ignore", invalid="ignore"):
        _, grads = grad_fn(Tensor(np.ones((4, 8))))
    return {"finite": nn.all_finite(grads)}, {}


@case(2, 4)
def cross_batch_leaves_each_rank_its_own_mean(here):
    """The loss is that of the rank's own rows, as in data_parallel; gradients are those of the whole batch."""
    here.settings(**ROWS)
    net = AcrossRows(here.alone)
    step = TrainOneStepCell(net, nn.SGD(net.trainable_params(), 0.1))
    own, losses = [], []
    for _ in range(2):
        own.append(float(step(*tensors(*here.rows(*batch()))).asnumpy()))
        losses.append(here.mean(own[-1]))
    return {"losses": losses, **parameters(here, net)}, {"own": own}


class AcrossRows(nn.Cell):
    def __init__(self, alone):
        super().__init__()
        self.w = Parameter(numbers(3, 12, 16), name="w")
        self.mean = ops.ReduceMean()
        if not alone:
            self.mean.add_prim_attr("cross_batch", True)

    def construct(self, x, y):
        return self.mean(ops.square(ops.matmul(x, self.w) - y))


@case(2)
def a_strategy_that_changes_between_calls(here):
    here.settings(**SEMI)
    net = Net()
    x, _ = batch(16)
    found, held = [], []
    for cut in (((here.size, 1), (1, 1)), ((1, here.size), (here.size, 1))):
        net.fc1.shard(cut)
        found.append(here.full(net(Tensor(x))))
        held.append(net.w.shape)
    return {"found": found}, {"held": held}
