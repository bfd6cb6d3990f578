"""What `compile` refuses before anything is traced, each with what was given and what is allowed."""

import numpy as np
import pytest

from parallel_lab import Parameter, ShapeError, TraceError, compile, nn, ops
from tests.crossed import each_of

X, Y = np.ones((16, 8), np.float32), np.ones((16, 4), np.float32)


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.w = Parameter(np.ones((8, 4), np.float32), name="w")
        self.matmul = ops.MatMul()

    def construct(self, x):
        return self.matmul(x, self.w)


@each_of(
    ("network", "inputs", "options", "text"),
    (Net, (X, Y), {"loss": nn.MSELoss()}, r"network is .*Net.*Make an object of it: Net\(\)"),
    (None, (X,), {}, "network is None"),
    (3, (X,), {}, "network is 3"),
    (Net(), (X, Y), {"loss": nn.MSELoss}, r"loss is .*MSELoss.*Make an object of it: MSELoss\(\)"),
    (Net(), (X, Y), {"loss": nn.MSELoss(), "optimizer": nn.Adam}, "optimizer is .*An nn.Optimizer"),
    (Net(), (X, Y), {"loss": nn.MSELoss(), "optimizer": "adam"}, "optimizer is 'adam'"),
    (Net(), (X,), {"optimizer": nn.SGD(Net().trainable_params(), 0.1)}, "an optimizer is given without a loss"),
)
def test_wrong_objects_are_refused_with_what_to_give(network, inputs, options, text):
    with pytest.raises(TraceError, match=text):
        compile(network, *inputs, device_num=8, **options)


@each_of(
    ("inputs", "options", "text"),
    ((X, Y), {}, r"2 inputs for construct\(x\)"),
    ((X,), {"loss": nn.MSELoss()}, r"0 inputs for construct\(x\).*labels last because a loss is given"),
    ((X, Y, Y), {"loss": nn.MSELoss()}, r"2 inputs for construct\(x\)"),
    (("abc",), {}, "input 0 is 'abc'"),
    ((np.array([["a"] * 8] * 16),), {}, "input 'x' has dtype"),
    ((X, Y), {"loss": nn.MSELoss(reduction="none")}, r"returns a tensor of shape \(16, 4\).*reduction='mean'"),
)
def test_wrong_inputs_are_refused_with_both_counts_and_shapes(inputs, options, text):
    with pytest.raises(ShapeError, match=text):
        compile(Net(), *inputs, device_num=8, dataset_strategy="full_batch", **options)


def test_global_shapes_are_shown_only_where_operands_have_them():
    net, settings = Net(), {"device_num": 8, "dataset_strategy": "full_batch"}
    optimizer = nn.Momentum(net.trainable_params(), 0.1, 0.9)
    plan = compile(net, X, Y, loss=nn.MSELoss(), optimizer=optimizer, **settings)
    shown = [line for line in plan.text().splitlines() if "# global:" in line]
    assert shown
    for _, instr in plan.instructions():
        layouts = [plan.value(n).layout for n in instr.ins if plan.value(n).shape]
        made = plan.value(instr.out)
        if None not in layouts and instr.kind == "compute" and made.layout is not None:
            assert any(str(made.shape) in line for line in shown)
    assert not any("(2, 4), (16, 4)" in line or "(16, 4), (2, 4)" in line for line in shown)


@pytest.mark.parametrize("phases", ["forward", ("foo",), ("forward", "fwd")])
def test_unknown_phases_of_a_text_are_refused(phases):
    with pytest.raises(ValueError, match=r"Plan.text: phases .*forward.*backward.*update"):
        compile(Net(), X, device_num=8, dataset_strategy="full_batch").text(phases=phases)


def test_a_rank_beyond_the_devices_is_refused():
    """MindSpore 2.10, recorded: global_rank=8 with device_num=8 is a RuntimeError where the network is compiled."""
    with pytest.raises(RuntimeError, match=r"compile: global_rank=8\. Below device_num, 8"):
        compile(lambda x: ops.relu(x), np.ones((8, 4)), device_num=8, global_rank=8)
