"""Cases of training steps that are compiled, and of the same run at once. They run with those of `compiled.py`."""

from __future__ import annotations

from parallel_lab import nn, ops, value_and_grad
from parallel_lab.nn.optim.clip import GradientClip
from parallel_lab.nn.tensor.parameter import Parameter
from parallel_lab.nn.tensor.tensor import Tensor
from parallel_lab.train.run_cell import jit
from tests.train.cases.engine_training import states
from tests.train.cases.nets import Net, SquareLoss, batch, cuts
from tests.train.worlds import case, parameters, refused

SEMI = {"parallel_mode": "semi_auto_parallel", "dataset_strategy": "full_batch"}
ROWS = {"parallel_mode": "semi_auto_parallel"}
AUTO = {"parallel_mode": "auto_parallel", "search_mode": "sharding_propagation", "dataset_strategy": "full_batch"}


def tensors(*arrays):
    return tuple(Tensor(a) for a in arrays)


def made_step(net, optimizer, *, change=lambda grads: grads):
    """A functional training step as tutorials write it."""
    loss_fn = SquareLoss()

    def forward(x, y):
        logits = net(x)
        return loss_fn(logits, y), logits

    grad_fn = value_and_grad(forward, None, net.trainable_params(), has_aux=True)

    def step(x, y):
        (loss, logits), grads = grad_fn(x, y)
        optimizer(change(grads))
        return loss, logits

    return step


def functional(settings, cut, feed_rows):
    def run(here):
        here.settings(**settings)
        net = Net(cut(here.size))
        optimizer = nn.Adam(net.trainable_params(), [0.1, 0.02, 0.3, 0.1, 0.1], weight_decay=0.01)
        step = jit(made_step(net, optimizer))
        found = []
        for rows in (16, 16, 32, 16):
            given = batch(rows)
            loss, logits = step(*tensors(*(here.rows(*given) if feed_rows else given)))
            found += [here.full(loss), here.full(logits)]
        same = {**parameters(here, net), **states(here, optimizer, net), "steps": optimizer.global_step}
        return {"found": found, **same}, {}

    return case(2, 4)(run)


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
        of_states = {**states(here, wide, net), **states(here, deep, net)}
        steps = wide.global_step, deep.global_step
        return {"found": found, "mean": here.full(mean), "steps": steps, **parameters(here, net), **of_states}, {}

    return case(2, 4)(run)


def at_once(settings, cut, feed_rows):
    """The same step, called as it is: gradients run compiled, and the optimizer updates this rank's slices."""

    def run(here):
        here.settings(**settings)
        net = Net(cut(here.size))
        optimizer = nn.Adam(net.trainable_params(), [0.1, 0.02, 0.3, 0.1, 0.1], weight_decay=0.01)
        clipped = nn.Momentum(net.trainable_params(), 0.1, 0.9, clip=GradientClip("global_norm", 0.5))
        steps = [made_step(net, optimizer), made_step(net, clipped)]
        found = []
        for number, rows in enumerate((16, 16, 32, 16)):
            given = batch(rows)
            loss, logits = steps[number % 2](*tensors(*(here.rows(*given) if feed_rows else given)))
            found += [here.full(loss), here.full(logits)]
        return {"found": found, **parameters(here, net), **states(here, optimizer, net)}, {}

    return case(2, 4)(run)


def none_cut(size):
    return (None, None)


def first_cut(size):
    return cuts(size)[0], None


CASES = {
    "jit, split": functional(SEMI, cuts, False),
    "jit, rows": functional(ROWS, none_cut, True),
    "jit, rows, split": functional(ROWS, cuts, True),
    "jit, auto_parallel": functional(AUTO, first_cut, False),
    "two optimizers, split": two_optimizers(SEMI, False),
    "two optimizers, rows": two_optimizers(ROWS, True),
    "at once, split": at_once(SEMI, cuts, False),
    "at once, rows": at_once(ROWS, none_cut, True),
    "at once, rows, split": at_once(ROWS, cuts, True),
}


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
