"""Mixed precision by lists of Cells and operators: what computes in half precision, and what a step is made of."""

from __future__ import annotations

import numpy as np
import pytest

from parallel_lab import nn, ops
from parallel_lab.graph.compiler import compile_program
from parallel_lab.mindspore import amp as mixed
from parallel_lab.nn import DynamicLossScaleManager, FixedLossScaleManager
from parallel_lab.nn.tensor.parameter import Parameter
from parallel_lab.nn.tensor.tensor import Tensor
from tests.crossed import each_of

RNG = np.random.default_rng(11)
X, Y = (RNG.normal(size=shape).astype(np.float32) for shape in ((8, 6), (8, 4)))


class Net(nn.Cell):
    """Dense, LayerNorm, and a product and an addition by operators."""

    def __init__(self):
        super().__init__()
        draw = np.random.default_rng(3)
        self.dense = nn.Dense(6, 5, Tensor(draw.normal(size=(5, 6)).astype(np.float32)))
        self.norm = nn.LayerNorm((5,))
        self.w = Parameter(Tensor(draw.normal(size=(5, 4)).astype(np.float32)), "w")
        self.matmul, self.add = ops.MatMul(), ops.Add()

    def construct(self, x):
        h = self.norm(self.dense(x))
        return self.add(self.matmul(h, self.w), 0.5)


def dtypes(net, **options):
    """{operator: dtype of its result} in the compiled network, casts left out."""
    graph = compile_program(net, X, device_num=2, parallel_mode="semi_auto_parallel", **options).traced
    return {n.op_class: n.dtypes[0] for n in graph.nodes if n.op_class != "Cast"}


HALF, SINGLE = "float16", "float32"


@each_of(
    ("level", "expected"),
    ("O0", {"MatMul": SINGLE, "LayerNorm": SINGLE, "Add": SINGLE}),
    ("O1", {"MatMul": HALF, "LayerNorm": SINGLE, "Add": SINGLE}),
    ("O2", {"MatMul": HALF, "LayerNorm": SINGLE, "Add": HALF}),
    ("O3", {"MatMul": HALF, "LayerNorm": HALF, "Add": HALF}),
    ("auto", {"MatMul": SINGLE, "LayerNorm": SINGLE, "Add": SINGLE}),
)
def test_a_level_says_which_operators_compute_in_half_precision(level, expected):
    found = dtypes(mixed.auto_mixed_precision(Net(), level))
    assert {name: str(found[name]) for name in expected} == expected


@each_of("level", "O1", "O2", "O3")
@pytest.mark.quick(1)
def test_results_are_float32_near_those_of_the_network_as_it_is(level):
    expected = Net()(Tensor(X)).asnumpy()
    found = mixed.auto_mixed_precision(Net(), level)(Tensor(X))
    assert found.dtype == np.float32 and 0 < abs(found.asnumpy() - expected).max() < 0.02  # float16 keeps 11 bits


def test_own_lists_of_cells_and_operators():
    found = dtypes(mixed.custom_mixed_precision(Net(), white_list=[nn.LayerNorm, ops.Add]))
    assert [str(found[n]) for n in ("MatMul", "LayerNorm", "Add")] == [SINGLE, HALF, HALF]
    found = dtypes(mixed.custom_mixed_precision(Net(), black_list=[ops.Add]))
    assert [str(found[n]) for n in ("MatMul", "LayerNorm", "Add")] == [HALF, HALF, SINGLE]
    assert mixed.get_black_list() == [nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.LayerNorm]


def test_an_operator_of_a_list_keeps_its_name_and_takes_a_strategy():
    net = mixed.auto_mixed_precision(Net(), "O1")
    net.matmul.shard(((2, 1), (1, 1)))
    made = compile_program(net, X, device_num=2, parallel_mode="semi_auto_parallel", dataset_strategy="full_batch")
    assert [n.strategy for n in made.plan.graph.nodes if n.name == "matmul"] == [((2, 1), (1, 1))]


@each_of(
    ("call", "kind"),
    (lambda: mixed.auto_mixed_precision(Net(), "O5"), ValueError),
    (lambda: mixed.auto_mixed_precision(Net(), "O1", np.int32), ValueError),
    (lambda: mixed.auto_mixed_precision(len, "O1"), TypeError),
    (lambda: mixed.custom_mixed_precision(Net()), ValueError),
    (lambda: mixed.custom_mixed_precision(Net(), white_list=[nn.Dense], black_list=[nn.Dense]), ValueError),
    (lambda: mixed.custom_mixed_precision(Net(), white_list=[int]), TypeError),
    (lambda: mixed.custom_mixed_precision(Net(), white_list=nn.Dense), TypeError),
    (lambda: mixed.build_train_network(Net(), nn.SGD(Net().trainable_params()), level="O8"), ValueError),
    (lambda: mixed.build_train_network(Net(), nn.SGD(Net().trainable_params()), scale=3), ValueError),
    (lambda: mixed.build_train_network(Net(), len), TypeError),
)
@pytest.mark.quick(4)
def test_wrong_levels_lists_and_keywords_are_refused(call, kind):
    with pytest.raises(kind):
        call()


@each_of(
    ("level", "given", "kind", "casts"),
    ("O0", {}, nn.TrainOneStepCell, None),
    ("O1", {"loss_scale_manager": DynamicLossScaleManager()}, nn.TrainOneStepWithLossScaleCell, None),
    ("O2", {}, nn.TrainOneStepWithLossScaleCell, HALF),
    ("O2", {"loss_scale_manager": None}, nn.TrainOneStepCell, HALF),
    ("O3", {"loss_scale_manager": FixedLossScaleManager(64.0, False)}, nn.TrainOneStepCell, HALF),
    ("O3", {"cast_model_type": np.float32}, nn.TrainOneStepCell, None),
)
@pytest.mark.quick(2)
def test_a_step_has_the_networks_precision_and_the_loss_scale_that_was_asked_for(level, given, kind, casts):
    net = Net()
    optimizer = nn.SGD(
        net.trainable_params(), 0.1, loss_scale=64.0 if level == "O3" and "loss_scale_manager" in given else 1.0
    )
    step = mixed.build_train_network(net, optimizer, nn.MSELoss(), level, **given)
    assert type(step) is kind and step.training and net.compute_dtype == casts
    before, single = net.w.asnumpy().copy(), Net()
    step(Tensor(X), Tensor(Y))
    nn.TrainOneStepCell(nn.WithLossCell(single, nn.MSELoss()), nn.SGD(single.trainable_params(), 0.1))(
        Tensor(X), Tensor(Y)
    )
    if kind is nn.TrainOneStepCell:  # 2^24, where the dynamic scale begins, may be too large for float16
        np.testing.assert_allclose(net.w.asnumpy() - before, single.w.asnumpy() - before, atol=2e-3)
