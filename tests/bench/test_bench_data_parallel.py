"""`parallel-lab bench training --parallel`: the same numbers before their speed. No test asserts a speed."""

import json

import numpy as np
import pytest

from parallel_lab import Tensor, nn, value_and_grad
from parallel_lab.base.errors import ArgumentError
from parallel_lab.cli import main as cli
from parallel_lab.cli.results import installed_version
from parallel_lab.processes.shm import WorkerPool
from tests.bench import data_parallel
from tests.bench.training import network

TENSORS = {"loss", *(f"{layer}.{kind}" for layer in (0, 2, 4) for kind in ("weight", "bias"))}


@pytest.mark.quick(1)
@pytest.mark.parametrize("name", [data_parallel.OURS, data_parallel.FUSED])
def test_two_ranks_compute_the_loss_and_gradients_of_one_device_on_the_whole_batch(name):
    rows = 32
    net, loss, x, labels = network("mlp")
    params = net.trainable_params()
    value, grads = value_and_grad(nn.WithLossCell(net, loss), None, params)(Tensor(x[:rows]), Tensor(labels[:rows]))
    with WorkerPool(2) as pool:
        ours = data_parallel.OwnTraining(pool, name, rows)
        found_loss, found = ours.first_step()
        assert 0 < ours.batch({"op": "step"}, 2) < 60
        ours.close()
    assert found_loss == pytest.approx(float(value), rel=1e-5)
    for parameter, gradient in zip(params, grads, strict=True):
        wanted = gradient.asnumpy()
        # float32 sums of 32 rows in two parts; a product's elements are sums of up to 1024 terms
        assert np.abs(found[parameter.name] - wanted).max() <= 1e-5 * np.abs(wanted).max()


def test_alone_everything_is_measured_but_what_needs_pytorch():
    (found,) = data_parallel.measure_data_parallel((2,), 1, rows=16, batch_s=0.001, peers=False)
    assert found["failed"] == {}
    assert found["missing"] == {data_parallel.DDP: "not asked for"}
    assert found["differences"] == {}
    assert set(found["median_s"]) == {data_parallel.OURS, data_parallel.FUSED}
    assert all(0 < s < 60 for s in found["median_s"].values())
    assert found["fusion_changes_nothing"] is True
    (goal,) = data_parallel.data_parallel_goals([found])
    assert goal.met is None and "not measured" in data_parallel.data_parallel_text([found])


@pytest.mark.exhaustive
def test_the_command_compares_every_tensor_with_ddp_where_pytorch_is(tmp_path, capsys):
    file = tmp_path / "speed.json"
    assert cli.main(["bench", "training", "--parallel", "--quick", "--json", str(file)]) == 0
    (found,) = json.loads(file.read_text())["data_parallel"]
    shown = capsys.readouterr().out
    if installed_version("torch") is None:
        assert "PyTorch is not installed" in shown and found["differences"] == {}
        return
    assert found["missing"] == {} and set(found["differences"][data_parallel.OURS]) == TENSORS
    assert all(d < 1e-5 for d in found["differences"][data_parallel.OURS].values()), found["differences"]
    assert found["median_s"][data_parallel.DDP] > 0 and "largest difference of the first step" in shown


RESULT = {
    "ranks": 4,
    "rows": 256,
    "rounds": 1,
    "cores": 2,
    "load": [1.0, 2.0],
    "seconds": {data_parallel.OURS: [0.05], data_parallel.FUSED: [0.03], data_parallel.DDP: [0.06]},
    "median_s": {data_parallel.OURS: 0.05, data_parallel.FUSED: 0.03, data_parallel.DDP: 0.06},
    "failed": {},
    "missing": {},
    "differences": {data_parallel.OURS: {"loss": 1e-7}},
    "fusion_changes_nothing": True,
    "limit": 0.7,
}


def test_the_goal_is_judged_on_the_fused_step():
    (goal,) = data_parallel.data_parallel_goals([RESULT])
    assert goal.reached == pytest.approx(0.5) and goal.beside == pytest.approx(5 / 6) and goal.met
    line = data_parallel.data_parallel_text([RESULT]).splitlines()[1].split()
    assert line == ["4", "50", "ms", "30", "ms", "60", "ms", "0.83x", "0.50x", "0.70x", "met"]


def test_bits_that_differ_with_fusion_are_reported():
    one = (1.0, {"w": np.ones(3)})
    assert data_parallel._bit_equal(one, (1.0, {"w": np.ones(3)}))
    assert not data_parallel._bit_equal(one, (1.0, {"w": np.nextafter(np.ones(3), 2)}))
    assert "DIFFERENT" in data_parallel.data_parallel_text([{**RESULT, "fusion_changes_nothing": False}])


@pytest.mark.parametrize("ranks, rounds", [((1,), 1), ((3,), 1), ((), 1), ((2,), 0)])
def test_ranks_that_cannot_share_the_batch_are_refused(ranks, rounds):
    with pytest.raises(ArgumentError, match="bench training"):
        data_parallel.measure_data_parallel(ranks, rounds, rows=16)
