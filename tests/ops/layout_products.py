"""A product that is split by layouts, trained on simulated ranks."""

import numpy as np

from parallel_lab import Parameter, Session, Tensor, compile, nn, ops


class Product(nn.Cell):
    """A product and an operator behind it, each with a strategy of its own."""

    def __init__(self, strategy, out=None, then=None, nd_tp=False, shape=(16, 8), **options):
        super().__init__()
        self.w = Parameter(Tensor(np.random.default_rng(0).normal(size=shape)), name="w")
        self.matmul = ops.MatMul(**options).shard(strategy, out)
        if nd_tp:
            self.matmul.add_prim_attr("enable_nd_tp", True)
        self.tanh = ops.Tanh()
        if then is not None:
            self.tanh.shard(then)

    def construct(self, x):
        return self.tanh(self.matmul(x, self.w))


def train(net, batch, device_num):
    optimizer = nn.SGD(net.trainable_params(), 0.1)
    plan = compile(
        net, *batch, loss=nn.MSELoss(), optimizer=optimizer, device_num=device_num, dataset_strategy="full_batch"
    )
    with Session(plan, net, optimizer) as session:
        return session.train([batch], 3), session.parameters()["w"], plan


def kinds(plan, name="matmul", phase="forward"):
    """Messages of one operator: (kind, axes, dim)."""
    return [
        (i.kind, i.axes, i.attr("dim")) for _, i in plan.instructions(phase) if i.name == name and i.is_communication
    ]
