"""MindSpore's lesson on fusion on 8 processes: fusion ids, printed losses and log files, against one device."""

from __future__ import annotations

import numpy as np
import pytest

from parallel_lab import nn, value_and_grad
from parallel_lab.nn.tensor.tensor import Tensor
from parallel_lab.train import dataset as ds
from tests.mindspore.runs import COUNTED, DATA, NEEDS_BASH, NEEDS_MPI, WAYS, by_shell, copied, losses

RANKS, BATCH = 8, 32
LAYERS = [f"layer{number}.{part}_mapping" for number in (1, 2, 3) for part in ("input", "output")]
IDS = [
    f"The parameter {layer}.{kind}'s fusion id is {number}"
    for layer, number in [("head", 0), *((layer, int(layer[5])) for layer in LAYERS)]
    for kind in ("weight", "bias")
]
BOUND = 1e-4  # of losses from 1 to 2.4: float32, up to 300 steps


class DenseLayer(nn.Cell):
    def __init__(self):
        super().__init__()
        self.input_mapping, self.output_mapping = nn.Dense(10, 32), nn.Dense(32, 10)

    def construct(self, x):
        return self.output_mapping(self.input_mapping(x))


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.flatten, self.head = nn.Flatten(), nn.Dense(28 * 28, 10)
        self.layer1, self.layer2, self.layer3 = DenseLayer(), DenseLayer(), DenseLayer()

    def construct(self, x):
        return self.layer3(self.layer2(self.layer1(self.head(self.flatten(x)))))


def one_device(steps):
    """(epoch, step, loss) of every tenth step, on all ranks' rows: one seed shuffles every rank's data the same way."""
    net, loss_fn = Net(), nn.CrossEntropyLoss()
    optimizer = nn.SGD(net.trainable_params(), 1e-2)
    data = ds.MnistDataset(str(DATA / "digits"))
    normalize = ds.vision.Normalize(mean=(0.1307,), std=(0.3081,))
    data = data.map([ds.vision.Rescale(1.0 / 255.0, 0), normalize, ds.vision.HWC2CHW()], "image")
    data = data.map(ds.transforms.TypeCast(np.int32), "label").batch(BATCH)
    step = value_and_grad(lambda x, y: loss_fn(net(x), y), None, net.trainable_params())
    found = []
    size = data.get_dataset_size()
    for epoch in range(-(-steps // size)):
        for i, columns in enumerate(data):
            if epoch * size + i >= steps:
                break
            loss, grads = step(*(Tensor(np.concatenate([np.asarray(column)] * RANKS)) for column in columns))
            optimizer(grads)
            if i % 10 == 0:
                found.append((epoch, i, float(loss.asnumpy())))
    return found


def check_lines(per_rank, steps):
    expected = one_device(steps)
    for lines in per_rank:
        assert lines[: len(IDS)] == IDS
        assert lines == per_rank[0]
        printed = losses(lines[len(IDS) :], COUNTED)
        assert len(lines) == len(IDS) + len(printed)
        assert [one[:2] for one in printed] == [one[:2] for one in expected]
        found = [loss for _, _, loss in printed]
        np.testing.assert_allclose(found, [loss for _, _, loss in expected], rtol=0, atol=BOUND)
    return [loss for _, _, loss in expected]


@pytest.mark.exhaustive
@pytest.mark.timeout(300)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("steps", [11, pytest.param(300, marks=pytest.mark.exhaustive)])
def test_ids_and_losses_of_eight_ranks(tmp_path, steps, way):
    settings = {"DATA_PATH": str(DATA / "digits"), "STEPS": str(steps)}
    expected = check_lines(way(copied(tmp_path, "comm_fusion.py"), RANKS, "comm_fusion.py", **settings), steps)
    assert steps < 300 or expected[-1] < 0.9 * expected[0]


@NEEDS_BASH
@NEEDS_MPI
@pytest.mark.exhaustive
@pytest.mark.timeout(300)
def test_its_shell_script_writes_the_log_of_every_rank(tmp_path):
    by_shell(tmp_path, "run.sh", DATA_PATH=str(DATA / "digits"), STEPS="21")
    check_lines([(tmp_path / f"log_output/1/rank.{rank}/stdout").read_text().splitlines() for rank in range(RANKS)], 21)


@NEEDS_BASH
def test_its_shell_script_wants_to_know_where_the_data_are(tmp_path):
    assert "DATA_PATH: is the folder with the files of MNIST" in by_shell(tmp_path, "run.sh", code=1)
