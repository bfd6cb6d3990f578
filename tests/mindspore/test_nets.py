"""A script with the nets recorded in MindSpore 2.10 runs as it is, and trains as recorded and as under our names."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import parallel_lab
from parallel_lab import nn, value_and_grad
from parallel_lab.nn.tensor.tensor import Tensor
from tests.recorded import nets

RECORDED = Path(__file__).parents[1] / "recorded"
FOLDER = Path(parallel_lab.__file__).parent / "mindspore" / "_path"
ROOT = Path(parallel_lab.__file__).parents[1]

pytestmark = pytest.mark.timeout(120)

# what a script written for MindSpore 2.x has at its top, and the loops of its tutorials
HEAD = """
import json, sys
import numpy as np
import mindspore as ms
from mindspore import nn, ops, Parameter, ParameterTuple, Tensor
from mindspore.common.initializer import initializer
"""
TRAINING = """
recorded = dict(np.load(sys.argv[1]))
net, loss_fn = Quick(32, 16, 16), nn.MSELoss()
param_dict = {name: Parameter(Tensor(recorded["init_" + name]), name) for name in ("w", "w2")}
for name, parameter in net.parameters_dict().items():
    parameter.set_data(param_dict[name])
optimizer = nn.Momentum(filter(lambda x: x.requires_grad, net.get_parameters()), 0.2, 0.1)

def forward_fn(data, label):
    logits = net(data)
    loss = loss_fn(logits, label)
    return loss, logits

grad_fn = ms.value_and_grad(forward_fn, None, net.trainable_params(), has_aux=True)

losses = []
for step in range(20):
    (loss_value, _), grads = grad_fn(Tensor(recorded["x"]), Tensor(recorded["y"]))
    optimizer(grads)
    losses.append(loss_value.asnumpy())
    if step % 10 == 0:
        print("step: %s, loss is %s" % (step, loss_value))
weights = {"w": net.weight.asnumpy().tolist(), "w2": net.weight2.asnumpy().tolist()}
print(json.dumps({"loss": [float(l) for l in losses], **weights}))
"""
WRAPPED = """
net = Quick(32, 16, 16)
for name, parameter in net.parameters_dict().items():
    parameter.set_data(Tensor(dict(np.load(sys.argv[1]))["init_" + name]))
step = nn.TrainOneStepCell(nn.WithLossCell(net, nn.MSELoss()), nn.Momentum(net.trainable_params(), 0.2, 0.1))
step.set_train()
recorded = dict(np.load(sys.argv[1]))
losses = [step(Tensor(recorded["x"]), Tensor(recorded["y"])).asnumpy() for _ in range(20)]
weights = {"w": net.weight.asnumpy().tolist(), "w2": net.weight2.asnumpy().tolist()}
print(json.dumps({"loss": [float(l) for l in losses], **weights}))
"""
BUILDING = """
S = ((2, 4), (4, 1))
makers = [
    (lambda: Quick(32, 16, 16, S, ((2, 4),), S), (16, 32)), (lambda: OpPar(True), (32, 1, 28, 28)),
    (lambda: Chain([64, 32, 16], [((8, 1), (1, 1)), None]), (8, 64)), (lambda: Mlp(12, 8, 4), (6, 12)),
    (lambda: MegatronMlp(64, 256, 2, 4), (16, 64)),
    (lambda: SharedWeight(16, ((1, 8), (8, 1)), ((8, 1), (1, 1))), (8, 16)),
    (lambda: Layers(4, 16, ((4, 1), (1, 1)), stages=[0, 0, 1, 1], fusion=[0, 0, 1, 1], recompute=True), (8, 16)),
]
ms.set_seed(3)
found = {}
for make, shape in makers:
    net = make()
    x = Tensor(np.random.RandomState(0).rand(*shape), ms.float32)
    found[type(net).__name__] = [net(x).asnumpy().tolist(), [p.name for p in net.trainable_params()]]
print(json.dumps(found))
"""


def script(tail):
    """The recorded nets as a MindSpore script: their own text under MindSpore's imports."""
    body = Path(nets.__file__).read_text(encoding="utf-8")
    lines = [line for line in body.splitlines() if not line.startswith("from parallel_lab")]
    assert "parallel_lab" not in "\n".join(lines)
    return HEAD + "\n".join(lines) + tail


def output(tail, tmp_path, *arguments):
    file = tmp_path / "script.py"
    file.write_text(script(tail))
    path = os.pathsep.join([str(FOLDER), str(ROOT)])
    command = [sys.executable, str(file), *map(str, arguments)]
    found = subprocess.run(command, capture_output=True, text=True, timeout=100, env={**os.environ, "PYTHONPATH": path})
    assert found.returncode == 0, found.stderr
    assert found.stderr == ""
    return found.stdout.splitlines()


@pytest.fixture(scope="module")
def under_our_names():
    """The same training with parallel_lab's names: (losses, w, w2)."""
    with np.load(RECORDED / "train_quick_momentum.npz") as file:
        recorded = dict(file)
    net, loss = nets.Quick(32, 16, 16), nn.MSELoss()
    for name, parameter in net.parameters_dict().items():
        parameter.set_data(recorded[f"init_{name}"])
    optimizer = nn.Momentum(net.trainable_params(), 0.2, 0.1)
    step = value_and_grad(nn.WithLossCell(net, loss), None, optimizer.parameters)
    losses = []
    for _ in range(20):
        value, grads = step(Tensor(recorded["x"]), Tensor(recorded["y"]))
        optimizer(grads)
        losses.append(value.item())
    return recorded, losses, net.weight.asnumpy(), net.weight2.asnumpy()


@pytest.mark.quick(1)
@pytest.mark.parametrize("tail", [TRAINING, WRAPPED], ids=["functions", "TrainOneStepCell"])
def test_a_mindspore_script_trains_as_recorded_and_as_ours(tail, under_our_names, tmp_path):
    *printed, last = output(tail, tmp_path, RECORDED / "train_quick_momentum.npz")
    got = json.loads(last)
    recorded, losses, w, w2 = under_our_names
    assert got["loss"] == losses
    np.testing.assert_array_equal(got["w"], w)
    np.testing.assert_array_equal(got["w2"], w2)
    np.testing.assert_allclose(got["loss"], recorded["loss"], rtol=2e-6)
    if tail is TRAINING:
        assert printed == [f"step: {step}, loss is {np.float32(losses[step])!s}" for step in (0, 10)]


def test_every_recorded_net_builds_and_computes_the_same(tmp_path):
    found = json.loads(output(BUILDING, tmp_path)[-1])
    seed = parallel_lab.get_seed()
    parallel_lab.set_seed(3)
    try:
        s = ((2, 4), (4, 1))
        makers = {
            "Quick": (nets.Quick(32, 16, 16, s, ((2, 4),), s), (16, 32)),
            "OpPar": (nets.OpPar(True), (32, 1, 28, 28)),
            "Chain": (nets.Chain([64, 32, 16], [((8, 1), (1, 1)), None]), (8, 64)),
            "Mlp": (nets.Mlp(12, 8, 4), (6, 12)),
            "MegatronMlp": (nets.MegatronMlp(64, 256, 2, 4), (16, 64)),
            "SharedWeight": (nets.SharedWeight(16, ((1, 8), (8, 1)), ((8, 1), (1, 1))), (8, 16)),
            "Layers": (
                nets.Layers(4, 16, ((4, 1), (1, 1)), stages=[0, 0, 1, 1], fusion=[0, 0, 1, 1], recompute=True),
                (8, 16),
            ),
        }
        assert set(found) == set(makers)
        for name, (net, shape) in makers.items():
            x = Tensor(np.random.RandomState(0).rand(*shape), "float32")
            values, names = found[name]
            assert names == [p.name for p in net.trainable_params()]
            # another process may use another number of BLAS threads, which moves the last bits
            expected = net(x).asnumpy()
            np.testing.assert_allclose(
                np.asarray(values, np.float32), expected, rtol=0, atol=1e-5 * np.abs(expected).max()
            )
    finally:
        parallel_lab.set_seed(seed)
