"""`shard` in PyNative mode: a call that runs on all ranks together, in a program that otherwise runs at once."""

from __future__ import annotations

import numpy as np

from parallel_lab import Layout, nn, ops, value_and_grad
from parallel_lab.base.settings import context
from parallel_lab.base.settings.tables import PYNATIVE_MODE
from parallel_lab.nn.sharded_cell import shard
from parallel_lab.nn.tensor.autograd import grad
from parallel_lab.nn.tensor.parameter import Parameter
from parallel_lab.nn.tensor.tensor import Tensor
from tests.train.cases.nets import Net, SquareLoss, batch, numbers
from tests.train.worlds import case, parameters, refused


def begin(here):
    if not here.alone:
        context.set_context(mode=PYNATIVE_MODE)
    here.settings(parallel_mode="auto_parallel", search_mode="sharding_propagation", dataset_strategy="full_batch")


def placed(here, fn, in_strategy, **more):
    """`fn` sharded, and as it is when alone."""
    return fn if here.alone else shard(fn, in_strategy, **more)


def rows(here, ndim=2):
    return (here.size, *(1,) * (ndim - 1))


class Around(nn.Cell):
    """A sharded block between layers that run at once."""

    def __init__(self, here, in_strategy, **more):
        super().__init__()
        self.before = Parameter(numbers(1, 10, 12), name="before")
        self.block = Net()
        self.after = Parameter(numbers(2, 16, 3), name="after")
        self.__dict__["placed"] = placed(here, self.block, in_strategy, **more)

    def construct(self, x):
        return ops.matmul(self.placed(ops.tanh(ops.matmul(x, self.before))), self.after)


def learns(here, net, optimizer, x, y, steps=3):
    grad_fn = value_and_grad(lambda x, y: ops.reduce_mean(ops.square(net(x) - y)), 0, optimizer.parameters)
    losses, inputs = [], []
    for _ in range(steps):
        loss, (by_input, grads) = grad_fn(Tensor(x), Tensor(y))
        optimizer(grads)
        losses.append(np.array(loss.asnumpy()))
        inputs.append(by_input.asnumpy())
    return {"losses": losses, "gradients of inputs": inputs, **parameters(here, net)}


def block(strategy, **more):
    def run(here):
        begin(here)
        net = Around(here, (strategy(here),), **more)
        optimizer = nn.Adam(net.trainable_params(), 0.05)
        found = learns(here, net, optimizer, numbers(8, 16, 10), numbers(9, 16, 3))
        return found, {"whole": [p.layout is None for p in net.get_parameters()]}

    return case(2, 4)(run)


CASES = {
    "rows": block(rows),
    "none": block(lambda here: None),
    "columns": block(lambda here: (1, here.size)),
    "rows and columns": block(lambda here: (here.size // 2, 2)),
    "layout": block(lambda here: Layout((2, here.size // 2), ("a", "b"))(("b", "a"), "None")),
    "parameter_plan": block(lambda here: (1, 1), parameter_plan={"w": (2, 1), "self.v": (1, 2)}),
    "out_strategy": block(lambda here: (2, 1), out_strategy=((1, 2),)),
}


class Several(nn.Cell):
    """Two results, one of which is used twice."""

    def __init__(self):
        super().__init__()
        self.w, self.v = Parameter(numbers(3, 12, 8), name="w"), Parameter(numbers(4, 12, 8), name="v")

    def construct(self, x, y):
        return ops.matmul(x, self.w), ops.tanh(ops.matmul(y, self.v)) * ops.reduce_sum(x)


@case(2, 4)
def several_results_and_inputs(here):
    begin(here)
    net = Several()
    both = placed(here, net, (rows(here), (1, 2)))

    def loss(x, y):
        a, b = both(x * 2.0, y)
        return ops.reduce_sum(a * b) + ops.reduce_mean(ops.square(b))

    value, (by_input, by_weight) = value_and_grad(loss, (0, 1), net.trainable_params())(
        Tensor(numbers(5, 16, 12)), Tensor(numbers(6, 16, 12))
    )
    # gradients of one result alone, so that the other gets no gradient
    only = grad(lambda x, y: ops.reduce_sum(ops.square(both(x, y)[0])), 0, net.trainable_params())(
        Tensor(numbers(5, 16, 12)), Tensor(numbers(6, 16, 12))
    )
    found = {"inputs": here.full(by_input), "weights": here.full(by_weight), "only": here.full(only)}
    return {"loss": value.asnumpy(), **found}, {}


@case(2, 4)
def one_region_called_twice(here):
    begin(here)
    net = nn.SequentialCell(Net())
    back = Parameter(numbers(2, 16, 12), name="back")
    region = placed(here, net, (rows(here),))

    def loss(x):
        return ops.reduce_mean(ops.square(region(ops.tanh(ops.matmul(region(x), back)))))

    x = Tensor(batch()[0])
    found = [here.full(value_and_grad(loss, 0, [*net.trainable_params(), back])(x)) for _ in range(2)]
    return {"found": found}, {}


@case(2, 4)
def nested_cells_and_other_shapes(here):
    begin(here)
    net = nn.SequentialCell(nn.SequentialCell(Net(), nn.Tanh()), nn.Flatten())
    region = placed(here, net, (rows(here),))
    found = []
    for n in (16, 8, 16):
        gradient = value_and_grad(lambda x: ops.reduce_sum(ops.square(region(x))), 0, net.trainable_params())
        found.append(here.full(gradient(Tensor(batch(n)[0]))))
    return {"found": found}, {}


@case(2, 4)
def a_function(here):
    begin(here)
    w = Tensor(numbers(3, 12, 8))

    def product(x, w):
        return ops.relu(ops.matmul(x, w))

    fn = placed(here, product, ((1, here.size), (here.size, 1)))
    value, found = value_and_grad(lambda x, w: ops.reduce_mean(ops.square(fn(x, w))), (0, 1))(Tensor(batch()[0]), w)
    again = fn(w=w, x=Tensor(batch()[0]))
    return {"value": value.asnumpy(), "gradients": here.full(found), "again": again.asnumpy()}, {}


@case(2)
def integer_inputs_and_numbers(here):
    begin(here)
    table = nn.Embedding(24, 8, embedding_table=Tensor(numbers(3, 24, 8)), dtype=np.float64)

    class Words(nn.Cell):
        def __init__(self):
            super().__init__()
            self.table = table

        def construct(self, words, scale, factor=2.0):
            return self.table(words) * scale * factor

    net = Words()
    region = placed(here, net, ((2,), (2, 1)))
    words, scale = np.arange(16) * 5 % 24, numbers(4, 16, 8)
    loss = lambda scale: ops.reduce_sum(ops.square(region(Tensor(words), scale)))  # noqa: E731
    found = here.full(value_and_grad(loss, 0, net.trainable_params())(Tensor(scale)))
    return {"found": found, "plain": here.full(region(Tensor(words), Tensor(scale)))}, {}


@case(2, 4)
def running_statistics(here):
    """Kept by the forward call, once, and whole; not changed by the gradient."""
    begin(here)
    net = nn.SequentialCell(nn.BatchNorm1d(12), nn.Dense(12, 4))
    net.set_train()
    region = placed(here, net, ((1, 2),))
    x = Tensor(batch()[0].astype(np.float32))
    found = []
    for _ in range(3):
        found.append(
            here.full(value_and_grad(lambda x: ops.reduce_sum(ops.square(region(x))), 0, net.trainable_params())(x))
        )
    region(x)
    return {"found": found, **parameters(here, net)}, {"whole": [p.layout is None for p in net.get_parameters()]}


@case(2, 4)
def dropout_inside(here):
    """Every call has its own mask, and its gradient the mask of its call."""
    begin(here)
    net = nn.SequentialCell(Net(), nn.Dropout(p=0.5))
    net.set_train()
    region = placed(here, net, (rows(here),))
    back = Parameter(numbers(2, 16, 12), name="back")

    def loss(x):
        return ops.reduce_sum(ops.square(region(ops.matmul(region(x), back))))

    found = [here.full(value_and_grad(loss, 0, [*net.trainable_params(), back])(Tensor(batch()[0]))) for _ in range(2)]
    return {"found": found, "plain": here.full(region(Tensor(batch(8)[0])))}, {}


@case(2)
def parameters_changed_outside(here):
    """The optimizer outside changes them at once; the region sees it, in training and without gradients."""
    begin(here)
    net = Net()
    region = placed(here, net, ((2, 1),))
    found = [here.full(region(Tensor(batch()[0])))]
    net.w.set_data(net.w.asnumpy() * 2)
    found.append(here.full(region(Tensor(batch()[0]))))
    found.append(
        here.full(value_and_grad(lambda x: ops.reduce_sum(region(x)), 0, net.trainable_params())(Tensor(batch()[0])))
    )
    net.v.requires_grad = False
    found.append(
        here.full(value_and_grad(lambda x: ops.reduce_sum(region(x)), 0, net.trainable_params())(Tensor(batch()[0])))
    )
    return {"found": found}, {}


@case(2, compared=False)
def what_is_refused(here):
    begin(here)
    found = {}
    net = Net()
    region = shard(net, ((2, 1),))
    found["inputs"] = refused(lambda: region(Tensor(batch()[0] + here.rank)))
    found["count"] = refused(lambda: region(Tensor(batch()[0]), Tensor(batch()[0])))
    found["odd"] = refused(lambda: region(Tensor(batch(15)[0])))
    changed = Net()
    changed.w.set_data(numbers(3, 12, 8) + here.rank)
    found["parameters"] = refused(lambda: shard(changed, ((2, 1),))(Tensor(batch()[0])))
    good = region(Tensor(batch()[0]))
    found["goes on"] = float(np.abs(good.asnumpy() - net(Tensor(batch()[0])).asnumpy()).max())
    return {}, found


@case(2)
def inside_a_compiled_network(here):
    """In graph mode a sharded Cell is part of the program around it."""
    here.settings(parallel_mode="auto_parallel", search_mode="sharding_propagation", dataset_strategy="full_batch")
    net = Around(here, ((2, 1),), parameter_plan={"w": (1, 2)})
    step = nn.TrainOneStepCell(nn.WithLossCell(net, SquareLoss()), nn.SGD(net.trainable_params(), 0.1))
    losses = [here.full(step(Tensor(numbers(8, 16, 10)), Tensor(numbers(9, 16, 3)))) for _ in range(2)]
    return {"losses": losses, **parameters(here, net)}, {"held": net.block.w.asnumpy().shape}
