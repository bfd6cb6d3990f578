"""A network with one hidden layer, split among the ranks by sharding propagation, as MindSpore's quickstart for
automatic parallelism trains it.

`bash run_with_mpi.sh` runs it on 8 ranks. What differs from the printed program, and why:
- `get_dataset` has its parameters in the order in which the printed call gives them; the page defines (batch_size,
  in_dim, out_dim, step_per_epoch)
- the imports, which the page leaves out
"""

import numpy as np

import mindspore as ms
import mindspore.dataset as ds
from mindspore import Parameter, ops
from mindspore.common.initializer import initializer
from mindspore.communication import get_rank, init
from mindspore.nn import Cell, Momentum, MSELoss
from mindspore.train import LossMonitor, Model, ModelCheckpoint


def get_dataset(batch_size, step_per_epoch, in_dim, out_dim):
    np.random.seed(1)
    inputs = np.random.rand(batch_size, in_dim).astype(np.float32)
    labels = np.random.rand(batch_size, out_dim).astype(np.float32)

    def generate():
        for _ in range(step_per_epoch):
            yield inputs, labels

    return generate


class Net(Cell):
    """One hidden layer without biases."""

    def __init__(self, in_dim, hidden_dim, out_dim):
        super().__init__()
        self.weight = Parameter(initializer("normal", [in_dim, hidden_dim]), "w")
        self.weight2 = Parameter(initializer("normal", [hidden_dim, out_dim]), "w2")
        # rows of the batch in 2 parts, its columns and the rows of the weight in 4; the other operators take what
        # follows from this
        self.matmul = ops.MatMul().shard(((2, 4), (4, 1)))
        self.relu = ops.ReLU()
        self.matmul2 = ops.MatMul()

    def construct(self, x):
        out = self.matmul(x, self.weight)
        out = self.relu(out)
        return self.matmul2(out, self.weight2)


step_per_epoch, batch_size, in_dim, hidden_dim, out_dim = 4, 2, 32, 16, 16

ms.set_context(mode=ms.GRAPH_MODE, device_target="GPU", save_graphs=2, save_graphs_path="../saved_graph")
ms.set_auto_parallel_context(
    parallel_mode=ms.ParallelMode.AUTO_PARALLEL, search_mode="sharding_propagation", dataset_strategy="data_parallel"
)
init("nccl")
rank_id = get_rank()

dataset = ds.GeneratorDataset(get_dataset(batch_size, step_per_epoch, in_dim, out_dim), ["input", "label"])
net = Net(in_dim, hidden_dim, out_dim)
opt = Momentum(net.trainable_params(), 0.2, 0.1)
model = Model(net, loss_fn=MSELoss(), optimizer=opt)
model.train(
    5, dataset, callbacks=[LossMonitor(), ModelCheckpoint(directory="{}".format(rank_id))], dataset_sink_mode=False
)
