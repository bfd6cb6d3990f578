"""A network with one hidden layer, cut among the ranks by sharding propagation, as MindSpore's quickstart for automatic parallelism trains it.

What differs from the printed program, and why:
- `make_data(batch, steps, in_dim, out_dim)`: the printed definition names its parameters in another order than the printed call gives them
- imports, which the page leaves out
"""

import numpy as np

import mindspore as ms
import mindspore.dataset as ds
from mindspore import Parameter, ops
from mindspore.common.initializer import initializer
from mindspore.communication import get_rank, init
from mindspore.nn import Cell, Momentum, MSELoss
from mindspore.train import LossMonitor, Model, ModelCheckpoint

BATCH, STEPS, IN, HIDDEN, OUT, EPOCHS = 2, 4, 32, 16, 16, 5


def make_data(batch, steps, in_dim, out_dim):
    np.random.seed(1)
    inputs = np.random.rand(batch, in_dim).astype(np.float32)
    labels = np.random.rand(batch, out_dim).astype(np.float32)

    def batches():
        for _ in range(steps):
            yield inputs, labels

    return batches


class Net(Cell):
    def __init__(self, in_dim, hidden_dim, out_dim):
        super().__init__()
        self.weight = Parameter(initializer("normal", [in_dim, hidden_dim]), "w")
        self.weight2 = Parameter(initializer("normal", [hidden_dim, out_dim]), "w2")
        self.matmul = ops.MatMul().shard(((2, 4), (4, 1)))
        self.relu = ops.ReLU()
        self.matmul2 = ops.MatMul()

    def construct(self, x):
        out = self.matmul(x, self.weight)
        out = self.relu(out)
        return self.matmul2(out, self.weight2)


ms.set_context(mode=ms.GRAPH_MODE, device_target="GPU", save_graphs=2, save_graphs_path="saved_graph")
ms.set_auto_parallel_context(parallel_mode=ms.ParallelMode.AUTO_PARALLEL, search_mode="sharding_propagation", dataset_strategy="data_parallel")
init("nccl")
rank_id = get_rank()

dataset = ds.GeneratorDataset(make_data(BATCH, STEPS, IN, OUT), ["input", "label"])
net = Net(IN, HIDDEN, OUT)
opt = Momentum(net.trainable_params(), 0.2, 0.1)
model = Model(net, loss_fn=MSELoss(), optimizer=opt)
model.train(EPOCHS, dataset, callbacks=[LossMonitor(), ModelCheckpoint(directory=f"{rank_id}")], dataset_sink_mode=False)
