"""Losses: forms that must agree, limits, refusals. Values, gradients against PyTorch's: `test_recorded_layers.py`."""

import numpy as np
import pytest

from parallel_lab import compile, nn
from parallel_lab.base.errors import ShapeError
from parallel_lab.nn.tensor.autograd import grad
from parallel_lab.nn.tensor.tensor import Tensor
from tests.crossed import each_of
from tests.recorded import nets

RNG = np.random.default_rng(11)
LOGITS = RNG.normal(size=(6, 5)) * 3
WEIGHTS = RNG.dirichlet(np.ones(5), size=6)
CLASSES = np.array([0, 4, 2, 2, 1, 3], np.int32)
LOG_SOFTMAX = LOGITS - np.log(np.exp(LOGITS).sum(1, keepdims=True))
ONE_HOT = np.eye(5)[CLASSES]


def test_mean_squared_error_is_made_of_three_operators_that_can_be_sharded():
    loss = nn.MSELoss()
    loss.sub.shard(((2, 4), (2, 4)))
    loss.square.shard(((2, 4),))
    loss.reduce_mean.shard(((2, 4),))
    assert [p.name for p in (loss.sub, loss.square, loss.reduce_mean)] == ["Sub", "Square", "ReduceMean"]
    assert loss.reduce_mean.instance_name == "reduce_mean"


def test_softmax_cross_entropy_reduces_nothing_by_default():
    assert nn.SoftmaxCrossEntropyWithLogits()(Tensor(LOGITS), Tensor(WEIGHTS)).shape == (6,)


@pytest.mark.parametrize(("sparse", "labels"), [(True, CLASSES), (False, WEIGHTS)], ids=["classes", "weights"])
def test_expanded_cross_entropy_equals_the_fused_one_with_its_gradient(sparse, labels):
    expanded, fused = nn.SoftmaxCrossEntropyExpand(sparse=sparse), nn.CrossEntropyLoss()
    x, y = Tensor(LOGITS), Tensor(labels)
    assert expanded(x, y).item() == pytest.approx(fused(x, y).item(), rel=1e-12)
    of_expanded, of_fused = (grad(lambda x, loss=loss: loss(x, y))(x).asnumpy() for loss in (expanded, fused))
    np.testing.assert_allclose(of_expanded, of_fused, atol=1e-15)


def test_expanded_cross_entropy_of_equal_largest_logits_has_the_same_gradient():
    x, y = Tensor(np.array([[2.0, 2.0, 0.0], [1.0, 1.0, 1.0]])), Tensor(np.array([0, 2]))
    of_expanded, of_fused = (
        grad(lambda x, loss=loss: loss(x, y))(x).asnumpy()
        for loss in (nn.SoftmaxCrossEntropyExpand(True), nn.CrossEntropyLoss())
    )
    np.testing.assert_allclose(of_expanded, of_fused, atol=1e-15)


def test_expanded_cross_entropy_is_float32_on_float32():
    loss = nn.SoftmaxCrossEntropyExpand(sparse=True)(Tensor(LOGITS.astype(np.float32)), Tensor(CLASSES))
    assert (loss.dtype, loss.shape) == (np.float32, ())
    assert loss.item() == pytest.approx(-(ONE_HOT * LOG_SOFTMAX).sum(1).mean(), rel=1e-5)


def test_large_logits_do_not_overflow():
    loss = nn.CrossEntropyLoss()(Tensor(np.array([[1e4, -1e4], [-1e4, 1e4]])), Tensor(np.array([0, 0])))
    assert loss.item() == pytest.approx(1e4)


@each_of(
    ("logits", "labels"),
    ((6, 5), np.zeros((6, 5), np.int32)),
    ((6, 5), np.zeros(6)),
    ((6, 5), np.zeros(4, np.int32)),
    ((5,), np.int32(2)),
    ((6, 5), np.zeros((4, 5))),
    ids=["int matrix", "float vector", "other count", "one sample", "other rows"],
)
def test_cross_entropy_refuses_labels_that_do_not_fit(logits, labels):
    with pytest.raises(ShapeError, match=r"Logits \(a, c\) with int labels \(a,\), or with float labels \(a, c\)"):
        nn.CrossEntropyLoss()(Tensor(np.zeros(logits)), Tensor(labels))


@pytest.mark.parametrize("label", [-1, 5])
def test_class_numbers_out_of_range_are_refused(label):
    with pytest.raises(ValueError, match=f"a label is {label}.*from 0 to 4"):
        nn.CrossEntropyLoss()(Tensor(LOGITS), Tensor(np.full(6, label)))


@pytest.mark.parametrize("loss_fn", [nn.MSELoss(), lambda a, b: ((a - b) ** 2.0).mean()], ids=["cell", "function"])
def test_with_loss_cell_joins_network_and_loss(loss_fn):
    net = nets.Quick(5, 4, 3)
    joined = nn.WithLossCell(net, loss_fn)
    x, y = Tensor(LOGITS.astype(np.float32)), Tensor(np.ones((6, 3), np.float32))
    assert joined.backbone_network is net
    assert net.cell_name == "_backbone"
    assert joined(x, y).item() == pytest.approx(((net(x).asnumpy() - 1) ** 2).mean(), rel=1e-6)


ALL_WITH_ALL = ((8, 1), (8,)), ((8,), (8, 1)), ((1, 4), (3, 1)), ((2, 1, 5), (3, 1))


@pytest.mark.quick(3)
@pytest.mark.parametrize("shapes", ALL_WITH_ALL)
@pytest.mark.parametrize("loss", [nn.MSELoss, nn.L1Loss, nn.HuberLoss])
def test_a_loss_that_would_compare_every_sample_with_the_labels_of_all_others_is_reported(loss, shapes):
    """(8, 1) with (8,) was broadcast to (8, 8) without a word: the net learns the mean of all labels."""
    x, y = (Tensor(np.full(shape, 0.5, "f")) for shape in shapes)
    with pytest.warns(RuntimeWarning, match="are broadcast to .*Equal shapes.*reshape"):
        loss()(x, y)


@pytest.mark.quick(3)
@pytest.mark.parametrize("shapes", [*ALL_WITH_ALL, ((8, 4), (4,)), ((8, 4), (8, 1)), ((8,), ())])
@pytest.mark.parametrize("loss", [nn.SmoothL1Loss, nn.BCELoss, nn.BCEWithLogitsLoss])
def test_losses_of_pairs_take_equal_shapes_alone(loss, shapes):
    """As in MindSpore, and for the binary ones in PyTorch."""
    x, y = (Tensor(np.full(shape, 0.5, "f")) for shape in shapes)
    with pytest.raises(ShapeError, match=r"with labels of shape .* Equal shapes"):
        loss()(x, y)


def test_labels_that_all_samples_share_are_broadcast_as_in_mindspore():
    x, y = np.arange(8.0).reshape(4, 2).astype("f"), np.array([1.0, 2.0], "f")
    assert nn.MSELoss()(Tensor(x), Tensor(y)).asnumpy() == np.mean((x - y) ** 2)


def test_a_label_of_another_shape_is_reported_when_a_network_is_compiled():
    """Told before anything runs, in a network of slices too."""
    net = nn.Dense(4, 1)
    how = {"device_num": 4, "dataset_strategy": "full_batch", "optimizer": nn.SGD(net.trainable_params(), 0.1)}
    with pytest.warns(RuntimeWarning, match=r"prediction of shape \(8, 1\) and labels of shape \(8,\)"):
        compile(net, np.ones((8, 4), "f"), np.ones(8, "f"), loss=nn.MSELoss(), **how)
