"""MindSpore 1.0's CIFAR-10 script on real processes, in the DATA_PARALLEL form it describes: launchers, rank tables,
printed losses, checkpoints.

With `sync=True` batch norm sees the samples of all ranks, and the run equals one device on what the ranks fed together.
The pictures have 32 pixels a side; with 224, as printed, the network is compiled and costed for 8 devices, and takes a
step at batch 1.
"""

from __future__ import annotations

import gzip
import json
import re
import types

import numpy as np
import pytest

import parallel_lab
import parallel_lab.mindspore._vision as vision
from parallel_lab import nn, value_and_grad
from parallel_lab.cost import get_cluster, predict_memory, step_time_s
from parallel_lab.nn.tensor.tensor import Tensor
from parallel_lab.train import dataset as ds
from parallel_lab.train.checkpoint import load_checkpoint
from parallel_lab.train.dataset import transforms
from tests.mindspore.runs import DATA, MONITORED, NEEDS_BASH, SCRIPTS, WAYS, by_launcher, by_shell, copied, losses

PROGRAM = ("resnet50_distributed_training.py", "resnet.py")
BOUND = 1e-4  # relative: float32 through 53 layers and at most 4 steps
RECORD = 1 + 3 * 32 * 32  # bytes of a record of CIFAR-10's files


def few_pictures(folder, count):
    """A folder of CIFAR-10's files with `count` pictures in all: the first of each file in data/digits_cifar."""
    names = [*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin"]
    folder.mkdir()
    for index, name in enumerate(names):
        mine = count // len(names) + (index < count % len(names))
        content = gzip.decompress((DATA / "digits_cifar" / f"{name}.gz").read_bytes())
        (folder / name).write_bytes(content[: mine * RECORD])
    return folder


def resnet():
    """The script's resnet.py, with `mindspore` replaced in its imports."""
    module = types.ModuleType("resnet")
    source = (SCRIPTS / "resnet.py").read_text().replace("import mindspore.", "import parallel_lab.mindspore.")
    exec(compile(source, "resnet.py", "exec"), module.__dict__)
    return module


def shard(folder, rank, ranks, batch, size=32):
    """What rank `rank` reads."""
    data = ds.Cifar10Dataset(str(folder), num_shards=ranks, shard_id=rank)
    data = data.map(operations=transforms.TypeCast(np.int32), input_columns="label")
    pictures = [vision.RandomCrop((32, 32), (4, 4, 4, 4)), vision.RandomHorizontalFlip(), vision.Resize((size, size))]
    normalize = vision.Normalize((0.4465, 0.4822, 0.4914), (0.2010, 0.1994, 0.2023))
    pictures += [vision.Rescale(1.0 / 255.0, 0.0), normalize, vision.HWC2CHW()]
    data = data.map(operations=pictures, input_columns="image").shuffle(buffer_size=10)
    return data.batch(batch_size=batch, drop_remainder=True)


def one_device(folder, ranks, batch, epochs):
    """(loss of each epoch's last step, network) of one device on the batches of all ranks, one after the other."""
    net, loss_fn = resnet().resnet50(batch * ranks, 10), nn.CrossEntropyLoss()
    optimizer = nn.Momentum(net.trainable_params(), 0.01, 0.9)
    step = value_and_grad(lambda x, y: loss_fn(net(x), y), None, net.trainable_params())
    net.set_train()
    shards = [shard(folder, rank, ranks, batch) for rank in range(ranks)]
    found = []
    for _ in range(epochs):
        for parts in zip(*shards, strict=True):
            columns = [np.concatenate([np.asarray(part[i]) for part in parts]) for i in range(2)]
            loss, grads = step(*(Tensor(column) for column in columns))
            optimizer(grads)
        found.append(float(loss.asnumpy()))
    return found, net


def printed_means(per_rank, epochs, steps):
    """The mean over ranks of what they printed: one line per epoch, in sink mode, with the number of its last step."""
    found = [losses(lines, MONITORED) for lines in per_rank]
    assert all([one[:2] for one in lines] == [(epoch, steps) for epoch in range(1, epochs + 1)] for lines in found), (
        per_rank
    )
    return np.mean([[loss for _, _, loss in lines] for lines in found], axis=0)


@pytest.mark.exhaustive
def test_losses_and_weights_of_two_ranks_equal_one_device(tmp_path):
    """16 pictures per step: with fewer, the last stage's batch norm (one pixel) divides by nearly 0."""
    ranks, batch, steps = 2, 8, 3
    data = few_pictures(tmp_path / "data", ranks * batch * steps)
    copied(tmp_path, *PROGRAM)
    per_rank = by_launcher(tmp_path, ranks, PROGRAM[0], DATA_PATH=str(data), SYNC="1", BATCH=str(batch), EPOCHS="1")
    expected, net = one_device(data, ranks, batch, 1)
    np.testing.assert_allclose(printed_means(per_rank, 1, steps), expected, rtol=BOUND)
    for rank in range(ranks):
        saved = load_checkpoint(str(tmp_path / f"rank_{rank}_ckpt/data_parallel-1_{steps}.ckpt"))
        for parameter in net.get_parameters():
            one, mine = parameter.asnumpy(), saved[parameter.name].asnumpy()
            assert np.abs(mine - one).max() <= BOUND * max(1.0, np.abs(one).max()), parameter.name


@pytest.mark.exhaustive
@pytest.mark.timeout(300)
@pytest.mark.parametrize("way", WAYS)
def test_losses_of_eight_ranks_fall_and_equal_one_device(tmp_path, way):
    """64 pictures, 8 steps of all of them; later steps are not compared: each magnifies the rounding before it."""
    steps = 8
    data = few_pictures(tmp_path / "data", 64)
    # 94 MB per rank each time
    given = {"DATA_PATH": str(data), "SYNC": "1", "BATCH": "8", "EPOCHS": str(steps), "SAVE": str(steps)}
    per_rank = way(copied(tmp_path / "run", *PROGRAM), 8, PROGRAM[0], **given)
    means = printed_means(per_rank, steps, 1)
    np.testing.assert_allclose(means[:4], one_device(data, 8, 8, 4)[0], rtol=BOUND)
    assert means[-1] < 0.93 * means[0], means


# ---- its shell script: processes that find each other by a rank table ----


@NEEDS_BASH
@pytest.mark.exhaustive
@pytest.mark.timeout(300)
@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_its_shell_script_starts_pytest_once_per_device(tmp_path, ranks):
    data = few_pictures(tmp_path / "data", 4 * ranks)
    output = by_shell(tmp_path, "run_rank_table.sh", str(data), str(ranks), BATCH="2", EPOCHS="1")
    expected = [f"start training for device {rank}" for rank in range(ranks)]
    assert sorted(line for line in output.splitlines() if line.startswith("start")) == expected
    assert output.splitlines()[-1] == "training success"
    for rank in range(ranks):
        folder = tmp_path / f"device{rank}"
        kept = dict(line.split("=", 1) for line in (folder / f"env{rank}.log").read_text().splitlines() if "=" in line)
        assert (kept["DEVICE_ID"], kept["RANK_ID"], kept["RANK_SIZE"]) == (str(rank), str(rank), str(ranks))
        assert kept["RANK_TABLE_FILE"].endswith(f"rank_table_{ranks}pcs.json")
        log = (folder / f"train.log{rank}").read_text()
        assert len(re.findall(r"^(?:.* )?epoch: 1 step: 2, loss is \d+\.\d+$", log, re.MULTILINE)) == 1, log
        assert re.search(r"^=+ 1 passed in ", log, re.MULTILINE), log
        assert (folder / f"rank_{rank}_ckpt/data_parallel-1_2.ckpt").is_file()


@NEEDS_BASH
@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("devices", "reason"),
    [((3, 4), "[3, 4], straddle the two sides of the server"), ((0, 1, 2), "3 cards of one server")],
)
def test_a_table_that_the_real_machine_refuses_ends_the_script_with_the_reason(tmp_path, devices, reason):
    cards = []
    for rank, device in enumerate(devices):
        cards.append({"device_id": str(device), "device_ip": f"192.0.2.{device + 1}", "rank_id": str(rank)})
    server = {"server_id": "198.51.100.1", "device": cards, "host_nic_ip": "reserve"}
    table = {"version": "1.0", "server_count": "1", "server_list": [server], "status": "completed"}
    (tmp_path / "table.json").write_text(json.dumps(table))
    data = few_pictures(tmp_path / "data", 12)
    output = by_shell(
        tmp_path,
        "run_rank_table.sh",
        str(data),
        str(len(devices)),
        code=2,
        RANK_TABLE_FILE=str(tmp_path / "table.json"),
    )
    assert "training failed; device0/train.log0 says why" in output
    for rank in range(len(devices)):
        log = (tmp_path / f"device{rank}/train.log{rank}").read_text()
        assert "WorldArgumentError" in log and reason in log


# ---- as printed: pictures of 224 ----


PARAMETERS = 25_557_032 - 990 * 2049  # ResNet-50 with 1000 classes (torchvision's resnet50), and 10 classes instead
MULTIPLY_ADDS = (
    4.089e9  # of a picture of 224 with the stride in the 3x3 convolution (torchvision's resnet50, which counts them so)
)


@pytest.mark.exhaustive
def test_as_printed_it_is_compiled_and_costed_for_eight_devices():
    net, batch = resnet().resnet50(32, 10), 32
    optimizer = nn.Momentum(net.trainable_params(), 0.01, 0.9)
    settings = {"parallel_mode": "data_parallel", "gradients_mean": True, "device_num": 8}
    images, labels = np.zeros((batch, 3, 224, 224), np.float32), np.zeros(batch, np.int32)
    plan = parallel_lab.compile(
        net, Tensor(images), Tensor(labels), loss=nn.CrossEntropyLoss(), optimizer=optimizer, **settings
    )
    cluster = get_cluster("laptop")
    cost, memory = step_time_s(plan, cluster), predict_memory(plan)
    forward, backward = (
        next(phase for phase in cost.phases if phase.phase == name) for name in ("forward", "backward")
    )
    # besides the products there are norms and ReLUs, below 2 %; the backward pass has two products for each of the
    # forward's but the first
    assert 2 * MULTIPLY_ADDS * batch == pytest.approx(forward.flops, rel=0.02)
    assert 2 * forward.flops == pytest.approx(backward.flops, rel=0.06)
    assert cost.total_s > cost.flops / cluster.device.flops_per_s
    gradients = [instr for phase, instr in plan.instructions() if phase == "backward" and instr.kind == "all_reduce"]
    assert sum(plan.value(instr.ins[0]).slice_bytes for instr in gradients) == 4 * PARAMETERS
    assert {memory.grads_bytes, memory.parts["optimizer"] // 4 * 4} >= {4 * PARAMETERS}


@pytest.mark.exhaustive
@pytest.mark.timeout(300)
def test_as_printed_it_takes_a_step_at_batch_1(tmp_path):
    data = few_pictures(tmp_path / "data", 8)
    per_rank = by_launcher(
        copied(tmp_path / "run", *PROGRAM), 8, PROGRAM[0], DATA_PATH=str(data), PICTURE="224", BATCH="1", EPOCHS="1"
    )
    assert np.isfinite(printed_means(per_rank, 1, 1)).all()
