"""ResNet-50 on CIFAR-10, data parallel, one process per device, as MindSpore 1.0's page for Ascend trains it:
`pytest -s` runs it.

What differs from the printed program, and why:
- parallel_mode is DATA_PARALLEL, the form that the page describes; its automatic form needs a strategy search that is
  an issue of its own
- pictures are resized to PICTURE (32 by default, 224 on the page): a laptop would take hours
- epochs, batch, after how many steps a checkpoint is saved and whether batch norm is synchronised come from the
  environment, so that tests can be short and compare with one device
- imports that the page spreads over several blocks stand at the top
"""

import os

import mindspore.common.dtype as mstype
import mindspore.dataset as ds
import mindspore.dataset.transforms.c_transforms as C
import mindspore.dataset.vision.c_transforms as vision
import mindspore.nn as nn
import mindspore.ops as ops
from mindspore import Tensor, context
from mindspore.communication.management import get_group_size, get_rank, init
from mindspore.context import ParallelMode
from mindspore.nn.optim.momentum import Momentum
from mindspore.train.callback import CheckpointConfig, LossMonitor, ModelCheckpoint
from mindspore.train.model import Model
from resnet import resnet50

data_path = os.environ["DATA_PATH"]
DEFAULTS = {"PICTURE": "32", "BATCH": "32", "EPOCHS": "10", "SAVE": "1"}
PICTURE, BATCH, EPOCHS, SAVE = (int(os.environ.get(name, default)) for name, default in DEFAULTS.items())
SYNC = {"": None, "0": False, "1": True}[os.environ.get("SYNC", "")]

context.set_context(mode=context.GRAPH_MODE, device_target="Ascend")
context.set_context(device_id=int(os.getenv("DEVICE_ID", "0")))
init()


def create_dataset(data_path, repeat_num=1, batch_size=32):
    rank_id, rank_size = get_rank(), get_group_size()
    data_set = ds.Cifar10Dataset(data_path, num_shards=rank_size, shard_id=rank_id)
    on_images = [
        vision.RandomCrop((32, 32), (4, 4, 4, 4)),
        vision.RandomHorizontalFlip(),
        vision.Resize((PICTURE, PICTURE)),
        vision.Rescale(1.0 / 255.0, 0.0),
        vision.Normalize((0.4465, 0.4822, 0.4914), (0.2010, 0.1994, 0.2023)),
        vision.HWC2CHW(),
    ]
    data_set = data_set.map(operations=C.TypeCast(mstype.int32), input_columns="label")
    data_set = data_set.map(operations=on_images, input_columns="image")
    data_set = data_set.shuffle(buffer_size=10)
    data_set = data_set.batch(batch_size=batch_size, drop_remainder=True)
    return data_set.repeat(repeat_num)


class SoftmaxCrossEntropyExpand(nn.Cell):
    """Softmax cross-entropy in small operators; a search could split each of them."""

    def __init__(self, sparse=False):
        super().__init__()
        self.exp, self.log, self.div, self.sub = ops.Exp(), ops.Log(), ops.Div(), ops.Sub()
        self.sum, self.max = ops.ReduceSum(keep_dims=True), ops.ReduceMax(keep_dims=True)
        self.onehot = ops.OneHot()
        self.on_value, self.off_value = Tensor(1.0, mstype.float32), Tensor(0.0, mstype.float32)
        self.sum_cross_entropy = ops.ReduceSum(keep_dims=False)
        self.mul, self.mul2 = ops.Mul(), ops.Mul()
        self.mean = ops.ReduceMean(keep_dims=False)
        self.sparse = sparse

    def construct(self, logit, label):
        exp = self.exp(self.sub(logit, self.max(logit, -1)))
        softmax_result = self.div(exp, self.sum(exp, -1))
        if self.sparse:
            label = self.onehot(label, ops.shape(logit)[1], self.on_value, self.off_value)
        loss = self.sum_cross_entropy(self.mul(self.log(softmax_result), label), -1)
        loss = self.mul2(ops.scalar_to_array(-1.0), loss)
        return self.mean(loss, -1)


def test_train_cifar(epoch_size=EPOCHS):
    context.set_auto_parallel_context(parallel_mode=ParallelMode.DATA_PARALLEL, gradients_mean=True)
    dataset = create_dataset(data_path, batch_size=BATCH)
    net = resnet50(BATCH, 10, SYNC)
    loss = SoftmaxCrossEntropyExpand(sparse=True)
    opt = Momentum(filter(lambda x: x.requires_grad, net.get_parameters()), 0.01, 0.9)
    ckpt_config = CheckpointConfig(save_checkpoint_steps=SAVE, keep_checkpoint_max=1)
    ckpt_callback = ModelCheckpoint(prefix="data_parallel", directory=f"./rank_{get_rank()}_ckpt", config=ckpt_config)
    model = Model(net, loss_fn=loss, optimizer=opt)
    model.train(epoch_size, dataset, callbacks=[LossMonitor(), ckpt_callback], dataset_sink_mode=True)


if __name__ == "__main__":
    test_train_cifar()
