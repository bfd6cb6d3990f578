"""Some steps of a longer training: loads where it should begin, saves where it ends, prints the losses (rank 0) as
JSON.

resume.py FIRST COUNT STRATEGY INTEGRATED LOAD SAVE      STRATEGY: a Python tuple of two, or "alone"; LOAD, SAVE:
folders, or "-"
"""

import ast
import json
import sys
from pathlib import Path

import numpy as np

from parallel_lab import Parameter, Tensor, nn, ops
from parallel_lab.base.settings import context
from parallel_lab.train import Model, checkpoint
from parallel_lab.train.communication import get_rank, init
from parallel_lab.train.engine import make_train_step


class Net(nn.Cell):
    """Two products with dropout, a norm and running statistics between them."""

    def __init__(self, first, second):
        super().__init__()
        rng = np.random.default_rng(1)
        self.w = Parameter(Tensor(rng.normal(size=(16, 32)) / 4), name="w")
        self.v = Parameter(Tensor(rng.normal(size=(32, 8)) / 4), name="v")
        self.seen = Parameter(Tensor(np.zeros(32)), name="seen", requires_grad=False)
        self.fc1, self.fc2, self.tanh, self.dropout = ops.MatMul(), ops.MatMul(), ops.Tanh(), nn.Dropout(p=0.25)
        if first is not None:
            self.fc1.shard(first)
            self.fc2.shard(second)

    def construct(self, x):
        hidden = self.dropout(self.tanh(self.fc1(x, self.w)))
        ops.assign(self.seen, 0.9 * self.seen + 0.1 * ops.reduce_mean(hidden, 0))
        return self.fc2(hidden, self.v)


def batch(number):
    rng = np.random.default_rng([7, number])
    return rng.normal(size=(16, 16)), rng.normal(size=(16, 8))


def main(first, count, strategy, integrated, load, save):
    alone = strategy == "alone"
    if not alone:
        context.set_auto_parallel_context(parallel_mode="semi_auto_parallel", dataset_strategy="full_batch")
        init()
    net = Net(*((None, None) if alone else ast.literal_eval(strategy)))
    net.set_train()
    rate = nn.CosineDecayLR(1e-3, 1e-2, 40)
    optimizer = nn.Adam(net.trainable_params(), rate)
    step, model = make_train_step(net, nn.MSELoss(), optimizer), Model(net, nn.MSELoss(), optimizer)
    rank = 0 if alone else get_rank()
    if load != "-":
        files = sorted(Path(load).glob("rank_*/part.ckpt"), key=lambda path: int(path.parent.name[5:]))
        if len(files) == 1 or integrated == "True":
            checkpoint.load_param_into_net(
                model.train_network, checkpoint.load_checkpoint(files[min(rank, len(files) - 1)]), strict_load=True
            )
        else:
            checkpoint.load_distributed_checkpoint(model.train_network, files)
    losses = [float(step(*batch(number))) for number in range(first, first + count)]
    if save != "-":
        target = Path(save) / f"rank_{rank}"
        target.mkdir(parents=True)
        checkpoint.save_checkpoint(model.train_network, target / "part.ckpt", integrated_save=integrated == "True")
    if rank == 0:
        print(json.dumps({"losses": losses, "seen": net.seen.full().asnumpy().tolist() if alone else None}))


if __name__ == "__main__":
    _, first, count, *rest = sys.argv
    main(int(first), int(count), *rest)
