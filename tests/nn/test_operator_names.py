"""Operators inside layers by the names that scripts for MindSpore shard them by, and what a Cell says of all of its
operators at once."""

import numpy as np
import pytest

from parallel_lab import Tensor, compile, nn, ops
from parallel_lab.graph.trace import trace_network
from tests.crossed import each_of
from tests.nn.one_device import check_equals_one_device

F, I = "float32", "int32"
ROWS, PICTURES, CLASSES, IDS = ((8, 4), F), ((8, 4, 8, 8), F), ((8,), I), ((8, 3), I)
PER_CHANNEL = ((8, 1, 1, 1), (1,), (1,), (1,), (1,))
# layer, name in it, strategy, inputs, class of the operator that obeys
NAMED = (
    (lambda: nn.Dense(4, 8), "matmul", ((4, 1), (2, 1)), [ROWS], "MatMul"),
    (lambda: nn.Dense(4, 8), "bias_add", ((4, 2), (2,)), [ROWS], "BiasAdd"),
    (lambda: nn.Dense(4, 8, activation="relu").activation, "relu", ((2, 4),), [ROWS], "ReLU"),
    (lambda: nn.Conv2d(4, 8, 3, has_bias=True), "conv2d", ((4, 1, 2, 1), (1, 1, 1, 1)), [PICTURES], "Conv2D"),
    (lambda: nn.Conv2d(4, 8, 3, has_bias=True), "bias_add", ((4, 2, 1, 1), (2,)), [PICTURES], "BiasAdd"),
    (lambda: nn.BatchNorm2d(4).set_train(), "bn_train", PER_CHANNEL, [PICTURES], "BatchNorm"),
    (lambda: nn.BatchNorm2d(4), "bn_infer", PER_CHANNEL, [PICTURES], "BatchNorm"),
    (lambda: nn.LayerNorm((4,)), "layer_norm", ((8, 1), (1,), (1,)), [ROWS], "LayerNorm"),
    (lambda: nn.Dropout(p=0.5).set_train(), "dropout_do_mask", ((4, 2),), [ROWS], "Dropout"),
    (lambda: nn.Embedding(16, 8), "gather", ((1, 4), (2, 1)), [IDS], "Gather"),
    (lambda: nn.Embedding(16, 8), "gather", ((8, 1), (1,)), [IDS], "Gather"),
    (lambda: nn.Embedding(16, 8, use_one_hot=True), "one_hot", ((4, 2), (), ()), [IDS], "OneHot"),
    (lambda: nn.Embedding(16, 8, use_one_hot=True), "array_mul", ((4, 1), (1, 2)), [IDS], "MatMul"),
    (lambda: nn.EmbeddingLookup(16, 8), "embeddinglookup", ((1, 8), (1, 1)), [IDS], "EmbeddingLookup"),
    (lambda: nn.EmbeddingLookup(16, 8, target="DEVICE"), "gatherv2", ((1, 8), (1, 1)), [IDS], "Gather"),
    (lambda: nn.Flatten(), "flatten", ((8, 1, 1, 1),), [PICTURES], "Flatten"),
    (lambda: nn.MaxPool2d(2, 2), "max_pool", ((4, 2, 1, 1),), [PICTURES], "MaxPool"),
    (nn.SmoothL1Loss, "smooth_l1_loss", ((4, 2), (4, 2)), [ROWS, ROWS], "SmoothL1Loss"),
    (nn.BCEWithLogitsLoss, "bce_with_logits_loss", ((4, 2), (4, 2), (), ()), [ROWS, ROWS], "BCEWithLogitsLoss"),
    (nn.MSELoss, "reduce_mean", ((4, 2),), [ROWS, ROWS], "ReduceMean"),
)


@each_of("make, name, strategy, inputs, operator", *NAMED)
def test_a_strategy_by_name_is_the_operators(make, name, strategy, inputs, operator):
    layer = make()
    getattr(layer, name).shard(strategy)
    values = [np.zeros(shape, dtype) for shape, dtype in inputs]
    plan = compile(layer, *values, device_num=8, dataset_strategy="full_batch")
    (node,) = (n for n in plan.graph.nodes if n.op_class == operator)
    assert node.strategy_source == "user"
    assert node.strategy[0] == strategy[0]


SHARDED = {"sparse_softmax_cross_entropy": ((8, 1), (8,)), "one_hot": ((8, 1), (), ())}
SHARDED |= {"softmax_cross_entropy": ((8, 1), (8, 1))}


@each_of(
    "sparse, reduction, label, runs",
    (True, "mean", CLASSES, ["sparse_softmax_cross_entropy"]),
    (True, "none", CLASSES, ["one_hot", "softmax_cross_entropy"]),
    (False, "none", ROWS, ["softmax_cross_entropy"]),
)
def test_a_cross_entropy_has_all_its_operators_and_runs_those_that_its_settings_need(sparse, reduction, label, runs):
    loss = nn.SoftmaxCrossEntropyWithLogits(sparse=sparse, reduction=reduction)
    for name, strategy in SHARDED.items():
        getattr(loss, name).shard(strategy)
    graph = trace_network(loss, [("x", *ROWS), ("y", *label)]).graph
    assert [n.strategy for n in graph.nodes if n.strategy] == [SHARDED[name] for name in runs]


def test_class_numbers_have_the_loss_of_their_one_hot_rows_whatever_is_reduced(rng):
    x, y = Tensor(rng.normal(size=(8, 4))), np.arange(8, dtype=np.int32) % 4
    each = np.log(np.exp(x.asnumpy()).sum(1)) - x.asnumpy()[np.arange(8), y]
    for reduction, expected in (("none", each), ("sum", each.sum()), ("mean", each.mean())):
        loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction=reduction)
        np.testing.assert_allclose(loss(x, Tensor(y)).asnumpy(), expected, rtol=1e-12)


def test_ids_of_two_dims_are_looked_up_flat_where_the_strategy_says_so():
    class Net(nn.Cell):
        def __init__(self):
            super().__init__()
            self.table, self.mean = nn.Embedding(16, 8, dtype=np.float64), ops.ReduceMean()

        def construct(self, ids):
            return self.mean(self.table(ids), 1)

    batch = np.arange(24, dtype=np.int32).reshape(8, 3) % 16, np.ones((8, 8))
    check_equals_one_device(Net, nn.MSELoss(), batch, lambda net: net.table.gather.shard(((8, 1), (1,))))


def test_operators_that_only_mindspores_layer_runs_can_be_sharded_without_effect():
    layer = nn.Embedding(16, 8)
    layer.expand.shard(((8, 1), ()))
    assert layer.expand is layer.expand and layer.expand.in_strategy == ((8, 1), ())
    assert not hasattr(layer, "expnad")
    graph = trace_network(layer, [("ids", (8,), "int32")]).graph
    assert [n.op_class for n in graph.nodes] == ["Gather"]


def test_losses_are_weighted_before_they_are_reduced():
    assert nn.MSELoss().get_loss(Tensor([1.0, 4.0]), Tensor([1.0, 0.5])).item() == 1.5
    assert nn.MSELoss(reduction="sum").get_loss(Tensor([1.0, 4.0]), 2.0).item() == 10


# ---- a Cell and all its operators ----


@pytest.mark.parametrize("by_batch", [False, True])
def test_set_data_parallel_splits_the_batch_of_operators_without_a_strategy_where_a_search_would_choose(by_batch):
    net = nn.SequentialCell(nn.Dense(8, 16, has_bias=False), nn.SequentialCell(nn.Dense(16, 8, has_bias=False)))
    net[0].matmul.shard(((1, 4), (2, 4)))
    if by_batch:
        assert net[1].set_data_parallel() is None
    settings = {"parallel_mode": "auto_parallel", "search_mode": "sharding_propagation", "device_num": 8}
    plan = compile(net, np.zeros((16, 8), np.float32), dataset_strategy="full_batch", **settings)
    given, other = (n.strategy for n in plan.graph.nodes)
    assert given == ((1, 4), (2, 4))
    assert (other == ((8, 1), (1, 1))) == by_batch


def test_flags_become_attributes_here_or_below_too():
    net = nn.SequentialCell(nn.ReLU())
    assert net.add_flags(a=1) is net and net.add_flags_recursive(fp16=True, b=2) is net
    assert (net.get_flags(), net[0].get_flags()) == ({"a": 1, "fp16": True, "b": 2}, {"fp16": True, "b": 2})
    assert (net.a, net[0].b) == (1, 2)


def test_settings_of_mindspores_compiler_are_accepted_and_change_nothing():
    net = nn.SequentialCell(nn.Dense(2, 3), nn.ReLU())
    settings = ("set_jit_config", "set_boost", "set_acc", "set_inputs", "set_auto_parallel", "flatten_weights")
    assert all(getattr(net, name)(None) is net for name in settings)
    net[0].bias.layerwise_parallel = True
    assert list(net.parameters_broadcast_dict()) == ["0.weight"]
    seen = []
    assert net.apply(seen.append) is net
    assert seen == [net[1], net[0], net]


def test_an_empty_text_means_no_device():
    relu = ops.ReLU().set_device("CPU").set_device("")
    assert relu(np.array([-1.0, 2.0])).tolist() == [0.0, 2.0]


def test_a_cell_says_its_phase_and_draws_its_parameters_when_asked():
    net = nn.Dense(2, 3)
    assert (net.current_phase, net.set_train().phase, net.set_train(False).phase) == ("predict", "train", "predict")
    net.phase = "prefill"
    assert net.current_phase == "prefill"
    replaced = net.init_parameters_data()
    assert list(replaced) == list(replaced.values()) == net.trainable_params()
    with pytest.raises(TypeError, match="phase=3"):
        net.phase = 3
