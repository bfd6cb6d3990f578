"""Fusion ids per layer, and a training step that is split among the ranks as a whole, as MindSpore's lesson on
communication fusion has it.

What differs from the printed program, and why:
- the import of AutoParallel, which the page leaves out
- forward_fn is defined before grad_fn uses it, and returns (loss, logits): has_aux=True promises a second value
- `init` is called once, at the start
- the number of steps can be limited (STEPS in the environment), so that a test does not take an hour
"""

import os

import mindspore as ms
import mindspore.dataset as ds
from mindspore import nn
from mindspore.communication import init
from mindspore.nn.utils import no_init_parameters
from mindspore.parallel.auto_parallel import AutoParallel

STEPS = int(os.environ.get("STEPS", "0"))

ms.set_context(mode=ms.GRAPH_MODE)
init()


class DenseLayer(nn.Cell):
    def __init__(self):
        super().__init__()
        self.input_mapping = nn.Dense(10, 32)
        self.output_mapping = nn.Dense(32, 10)

    def construct(self, x):
        return self.output_mapping(self.input_mapping(x))


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.flatten = nn.Flatten()
        self.head = nn.Dense(28 * 28, 10)
        self.layer1 = DenseLayer()
        self.layer2 = DenseLayer()
        self.layer3 = DenseLayer()

    def construct(self, x):
        x = self.head(self.flatten(x))
        return self.layer3(self.layer2(self.layer1(x)))


with no_init_parameters():
    net = Net()
    optimizer = nn.SGD(net.trainable_params(), 1e-2)

net.head.set_comm_fusion(0)
net.layer1.set_comm_fusion(1)
net.layer2.set_comm_fusion(2)
net.layer3.set_comm_fusion(3)
for item in net.trainable_params():
    print(f"The parameter {item.name}'s fusion id is {item.comm_fusion}")


def create_dataset(batch_size):
    dataset = ds.MnistDataset(os.getenv("DATA_PATH"))
    image_transforms = [
        ds.vision.Rescale(1.0 / 255.0, 0),
        ds.vision.Normalize(mean=(0.1307,), std=(0.3081,)),
        ds.vision.HWC2CHW(),
    ]
    dataset = dataset.map(image_transforms, "image")
    dataset = dataset.map(ds.transforms.TypeCast(ms.int32), "label")
    return dataset.batch(batch_size)


data_set = create_dataset(32)
loss_fn = nn.CrossEntropyLoss()


def forward_fn(data, target):
    logits = net(data)
    return loss_fn(logits, target), logits


grad_fn = ms.value_and_grad(forward_fn, None, net.trainable_params(), has_aux=True)


def train_step(inputs, targets):
    (loss_value, _), grads = grad_fn(inputs, targets)
    optimizer(grads)
    return loss_value


parallel_net = AutoParallel(train_step, parallel_mode="semi_auto")

for epoch in range(10):
    i = 0
    for image, label in data_set:
        if STEPS and epoch * data_set.get_dataset_size() + i >= STEPS:
            break
        loss_output = parallel_net(image, label)
        if i % 10 == 0:
            print("epoch: %s, step: %s, loss is %s" % (epoch, i, loss_output))
        i += 1
