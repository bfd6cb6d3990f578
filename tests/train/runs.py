"""What tests of the training loop train: small networks, recorded data, callbacks that note what they receive."""

from pathlib import Path

import numpy as np

from parallel_lab import nn
from parallel_lab.train import Callback, Model
from parallel_lab.train.dataset import GeneratorDataset, NumpySlicesDataset
from tests.recorded import nets

RECORDED = Path(__file__).parents[1] / "recorded" / "train_quick_momentum.npz"


def recorded():
    """The training of tests/recorded/train_quick_momentum.npz as dict of arrays."""
    with np.load(RECORDED) as file:
        return dict(file)


def quick_net(run):
    """The recorded net with its recorded initial values."""
    net = nets.Quick(32, 16, 16)
    for name, parameter in net.parameters_dict().items():
        parameter.set_data(run[f"init_{name}"])
    return net


def quick_model(run, **more):
    net = quick_net(run)
    return Model(net, loss_fn=nn.MSELoss(), optimizer=nn.Momentum(net.trainable_params(), 0.2, 0.1), **more)


def quick_data(run, steps=4):
    """The recorded batch `steps` times per epoch, as seed 003's generator gives its rows."""
    return GeneratorDataset(lambda: ((run["x"], run["y"]) for _ in range(steps)), ["data", "label"])


class Affine(nn.Cell):
    """One weight and no bias: y = x @ w, whose losses can be worked out by hand."""

    def __init__(self, features=3, outputs=1):
        super().__init__()
        self.dense = nn.Dense(features, outputs, weight_init="zeros", has_bias=False)

    def construct(self, x):
        return self.dense(x)


def affine_model(**more):
    net = Affine()
    return Model(net, nn.MSELoss(), nn.SGD(net.trainable_params(), 0.1), **more)


def numbers(rows=12, features=3, seed=0):
    """(x, y) of float32: y is a fixed linear function of x."""
    x = np.random.default_rng(seed).normal(size=(rows, features)).astype(np.float32)
    return x, (x @ np.arange(1, features + 1, dtype=np.float32)[:, None]).astype(np.float32)


def batches(rows=12, batch=3):
    return NumpySlicesDataset(numbers(rows), ["data", "label"], shuffle=False).batch(batch)


class Log(Callback):
    """Writes down every call: (name, epoch, step since the start)."""

    def __init__(self):
        self.calls = []

    def note(self, name, run_context):
        params = run_context.original_args()
        self.calls.append((name, params.get("cur_epoch_num"), params.cur_step_num))

    def begin(self, run_context):
        self.note("begin", run_context)

    def epoch_begin(self, run_context):
        self.note("epoch_begin", run_context)

    def step_begin(self, run_context):
        self.note("step_begin", run_context)

    def step_end(self, run_context):
        self.note("step_end", run_context)

    def epoch_end(self, run_context):
        self.note("epoch_end", run_context)

    def end(self, run_context):
        self.note("end", run_context)
