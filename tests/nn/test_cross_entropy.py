"""Weighted, ignoring cross-entropies and element-wise losses: formulas per sample; the mean under a split batch."""

import numpy as np
import pytest

from parallel_lab import Session, ShapeError, compile, nn, ops
from parallel_lab.nn.tensor.autograd import gradients
from parallel_lab.nn.tensor.parameter import Parameter
from parallel_lab.nn.tensor.tensor import Tensor
from tests.crossed import each_of
from tests.nets import cell
from tests.nn.one_device import check_equals_one_device, messages
from tests.refusals import refused

RNG = np.random.default_rng(21)
C = 5
LOGITS = RNG.normal(size=(8, C)) * 2
LABELS = np.array([0, 3, -1, 2, -1, 4, 1, 3], np.int32)
WEIGHT = np.array([1.0, 0.2, 3.0, 0.0, 0.5])
PICTURE = RNG.normal(size=(3, C, 2, 4))
PROBABILITIES = RNG.dirichlet(np.ones(C), 8)


def scores():
    return nn.Dense(4, C, dtype=np.float64)


@pytest.mark.quick(1)
@each_of(
    "make",
    lambda: nn.CrossEntropyLoss(WEIGHT, ignore_index=-1, label_smoothing=0.1),
    lambda: nn.CrossEntropyLoss(ignore_index=-1),
)
def test_a_cut_batch_with_unequal_weights_trains_as_on_one_device(make):
    """Ranks hold samples of different weight, some of none: a mean of the ranks' means would be another number."""
    x = RNG.normal(size=(8, 4))
    plan = check_equals_one_device(scores, make(), (x, LABELS), lambda net: net.matmul.shard(((8, 1), (1, 1))))
    assert [i.kind for i in messages(plan)] == ["all_reduce"] * 2


@pytest.mark.exhaustive
def test_every_loss_trains_as_on_one_device_under_a_cut_batch_and_columns():
    x, y = RNG.normal(size=(8, 8)), RNG.uniform(size=(8, 8))
    losses = {
        "l1": (nn.L1Loss(), lambda p: [p.sub.shard(((4, 2), (4, 2))), p.reduce_mean.shard(((4, 2),))]),
        "smooth": (nn.SmoothL1Loss(0.3, "mean"), lambda p: p.smooth_l1.shard(((2, 4), (2, 4)))),
        "logits": (
            nn.BCEWithLogitsLoss(weight=np.arange(8.0), pos_weight=np.full(8, 2.0)),
            lambda p: p.bce_with_logits.shard(((4, 2), (4, 2), (2,), (2,))),
        ),
        "probabilities": (nn.BCELoss(), lambda p: p.binary_cross_entropy.shard(((8, 1), (8, 1), ()))),
    }

    class Net(nn.Cell):
        def __init__(self):
            super().__init__()
            self.dense, self.sigmoid = nn.Dense(8, 8, dtype=np.float64), nn.Sigmoid()

        def construct(self, x):
            return self.sigmoid(self.dense(x))

    for loss, shard in losses.values():
        shard(loss)
        check_equals_one_device(Net, loss, (x, y), lambda net: None)


# ---- element by element ----

X, Y = RNG.normal(size=(4, 3)) * 2, RNG.uniform(size=(4, 3))


def test_sure_probabilities_have_a_finite_loss_and_large_logits_do_not_overflow():
    sure, wrong = Tensor(np.array([1.0, 0.0])), Tensor(np.array([0.0, 1.0]))
    np.testing.assert_allclose(nn.BCELoss(reduction="none")(sure, wrong).asnumpy(), [100, 100])
    large = Tensor(np.array([800.0, -800.0]))
    np.testing.assert_allclose(nn.BCEWithLogitsLoss("none")(large, wrong).asnumpy(), [800, 800])


def test_losses_of_float32_are_float32():
    for loss in (nn.BCEWithLogitsLoss(pos_weight=Tensor([1.0, 2.0, 3.0])), nn.SmoothL1Loss(), nn.L1Loss()):
        assert loss(Tensor(X.astype(np.float32)), Tensor(Y.astype(np.float32))).dtype == np.float32
    loss = nn.CrossEntropyLoss(WEIGHT, ignore_index=-1)
    assert loss(Tensor(LOGITS.astype(np.float32)), Tensor(LABELS)).dtype == np.float32


test_what_losses_refuse = refused(
    (lambda: nn.CrossEntropyLoss()(Tensor(LOGITS), Tensor(LABELS)), ShapeError, "a label is -1.*give ignore_index=-1"),
    (
        lambda: nn.CrossEntropyLoss(ignore_index=0)(Tensor(LOGITS), Tensor(LABELS)),
        ShapeError,
        "a label is -1.*from 0 to 4",
    ),
    (
        lambda: nn.CrossEntropyLoss(WEIGHT[:3])(Tensor(LOGITS), Tensor(LABELS)),
        ShapeError,
        "weight has 3 numbers. One per class: 5",
    ),
    (lambda: nn.CrossEntropyLoss([1.0]), TypeError, "A Tensor of one number per class"),
    (lambda: nn.CrossEntropyLoss(Tensor([[1.0]])), TypeError, "one number per class"),
    (lambda: nn.CrossEntropyLoss(Tensor([-1.0, 2.0])), ValueError, "at least 0"),
    (lambda: nn.CrossEntropyLoss()(Tensor(PICTURE), Tensor(LABELS)), ShapeError, "with .a, d1"),
    (lambda: nn.NLLLoss()(Tensor(LOGITS), Tensor(PROBABILITIES)), ShapeError, "the labels are float64"),
    (lambda: nn.BCELoss("a"), TypeError, "weight='a'"),
    (lambda: nn.BCEWithLogitsLoss(pos_weight=True), TypeError, "pos_weight=True"),
)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_binary_cross_entropy_of_a_certain_mistake_is_100_in_every_dtype(dtype):
    """log(0) counts as -100 (PyTorch, BCELoss). In float32 it was -87.3, the logarithm of the least normal number."""
    out = nn.BCELoss(reduction="none")(Tensor(np.array([0, 1, 0, 1], dtype)), Tensor(np.array([1, 0, 0, 1], dtype)))
    np.testing.assert_array_equal(out.asnumpy(), np.array([100, 100, 0, 0], dtype))


def test_gradient_of_binary_cross_entropy_at_a_certain_mistake_is_bounded():
    """(x - y) / max(x (1 - x), 1e-12): it was 1e308 in float64."""
    x = Parameter(Tensor(np.array([0.0, 1.0])))
    loss = nn.BCELoss(reduction="sum")(x, Tensor(np.array([1.0, 0.0])))
    np.testing.assert_allclose(gradients(loss, [x])[0], [-1e12, 1e12])


def test_gradient_with_label_smoothing_has_the_digits_of_the_logits():
    """The smoothed share was rounded to float32, 1e-8 off."""
    labels, e = np.array([0, 3, 1, 2, 4, 4, 1, 3], np.int32), 0.1
    x = Parameter(Tensor(LOGITS))
    target = (1 - e) * np.eye(C)[labels] + e / C
    softmax = np.exp(LOGITS) / np.exp(LOGITS).sum(axis=1, keepdims=True)
    got = gradients(nn.CrossEntropyLoss(label_smoothing=e)(x, Tensor(labels)), [x])[0]
    np.testing.assert_allclose(got, (softmax - target) / len(labels), rtol=1e-13, atol=1e-15)


# ---- split classes ----

ROWS, VOCABULARY, F64 = 8, 64, 8


def vocabulary():
    """A product that leaves the logits split by rows and classes."""
    return nn.Dense(4, VOCABULARY, dtype=np.float64, has_bias=False)


OPTIONS = {"weight": np.linspace(0.1, 2.0, VOCABULARY), "ignore_index": 3, "label_smoothing": 0.1}


@pytest.mark.quick(1)
@each_of(("options", "numbers"), ({}, [1, 1, 1]), (OPTIONS, [1, 2, 1]), ids=["equal", "weighted"])
@pytest.mark.parametrize(("rows", "ways"), [(1, 8), (2, 4)])
def test_logits_that_are_split_by_classes_are_never_gathered(options, numbers, rows, ways):
    """Forward a number or two per row are sent, three times, and backward one; besides what any training sends."""
    rng = np.random.default_rng(3)
    x, labels = rng.normal(size=(ROWS, 4)), rng.integers(0, VOCABULARY, ROWS).astype(np.int32)
    labels[0] = 3
    loss = nn.CrossEntropyLoss(**options)
    if options:
        loss.class_cross_entropy.shard(((rows, ways), (rows,), (ways,)))
    else:
        loss.sparse_cross_entropy.shard(((rows, ways), (rows,)))
    split = ((rows, 1), (ways, 1))  # the weight of a Dense is (out, in)
    plan = check_equals_one_device(vocabulary, loss, (x, labels), lambda net: net.matmul.shard(split))
    sent = [i for i in messages(plan) if plan.value(i.out).slice_shape]
    assert [(i.kind, i.attr("reduce"), i.group_size) for i in sent] == [
        ("all_reduce", how, ways) for how in ("max", "sum", "sum")
    ]
    assert [plan.value(i.out).slice_bytes for i in sent] == [n * ROWS // rows * F64 for n in numbers]
    # the adjoint of the last sum, and where rows are split the sum of the weight's gradients
    backward = {(i.kind, plan.value(i.out).slice_shape) for i in messages(plan, "backward")} - {("all_reduce", ())}
    of_weight = {("all_reduce", (VOCABULARY // ways, 4))}
    assert backward == {("all_reduce", (ROWS // rows,))} | (of_weight if rows > 1 else set())


def test_a_strategy_that_the_fused_loss_refuses_names_the_one_that_takes_it():
    sharded = ops.SparseSoftmaxCrossEntropyWithLogits().shard(((1, 8), (1,)))
    with pytest.raises(ValueError, match="SparseCrossEntropy may split it"):
        compile(cell(lambda net, x, y: sharded(x, y)), np.ones((8, 8)), LABELS, device_num=8)


@each_of("dtype", np.float16, np.float32)
def test_sums_over_split_classes_are_made_in_float32(dtype):
    """Of 8 times 4096 equal logits: in float16, adding ones stops at 2048."""
    loss = ops.SparseCrossEntropy().shard(((1, 8), (1,)))
    logits, labels = np.zeros((2, 8 * 4096), dtype), np.array([5, 30000], np.int32)
    net = cell(lambda net, x, y: loss(x, y))
    plan = compile(net, logits, labels, device_num=8, dataset_strategy="full_batch")
    with Session(plan, net) as session:
        found = session.outputs(logits, labels)[0]
    assert found.dtype == dtype
    np.testing.assert_allclose(found, np.log(8 * 4096), rtol=1e-3)


# ---- as primitives ----

TWO_ROWS = np.array([[2, 3, 1, 4, 5], [2, 1, 2, 4, 3]], np.float32)


def test_the_sparse_loss_as_a_primitive_is_the_mean_or_its_gradient():
    """The example of MindSpore's documentation; a loss per sample made gradients N times too large."""
    labels = np.array([0, 1], np.int32)
    assert ops.SparseSoftmaxCrossEntropyWithLogits()(TWO_ROWS, labels) == pytest.approx(3.4878292, abs=1e-6)
    slope = ops.SparseSoftmaxCrossEntropyWithLogits(is_grad=True)(TWO_ROWS, labels)
    shares = np.exp(TWO_ROWS) / np.exp(TWO_ROWS).sum(1, keepdims=True)
    np.testing.assert_allclose(slope, (shares - np.eye(5)[labels]) / 2, atol=1e-6)
    x = Parameter(Tensor(TWO_ROWS), name="x")
    np.testing.assert_allclose(
        gradients(ops.SparseSoftmaxCrossEntropyWithLogits()(x, labels), [x])[0], slope, atol=1e-6
    )


def test_the_dense_loss_as_a_primitive_gives_softmax_less_labels_too(rng):
    x, shares = rng.normal(size=(4, 3)), rng.uniform(size=(4, 3))
    loss, slope = ops.SoftmaxCrossEntropyWithLogits()(x, shares)
    softmax = np.exp(x) / np.exp(x).sum(1, keepdims=True)
    np.testing.assert_allclose(loss, -(shares * np.log(softmax)).sum(1), rtol=1e-12)
    np.testing.assert_allclose(slope, softmax - shares, rtol=1e-9)


@each_of("reduction", "mean", "sum", "none")
def test_the_negative_log_likelihood_as_a_primitive_gives_the_total_weight_too(reduction, rng):
    x, labels, weight = rng.normal(size=(6, 3)), np.array([0, 2, -100, 1, 2, 0], np.int32), np.array([0.5, 2.0, 3.0])
    known = np.maximum(labels, 0)
    counted = weight[known] * (labels >= 0)
    rows = -x[np.arange(6), known] * counted
    loss, total = ops.NLLLoss(reduction=reduction)(x, labels, weight)
    expected = {"mean": rows.sum() / counted.sum(), "sum": rows.sum(), "none": rows}[reduction]
    np.testing.assert_allclose(loss, expected, rtol=1e-12)
    assert total == pytest.approx(counted.sum(), rel=1e-12)


@pytest.mark.parametrize("is_grad", [False, True])
def test_the_sparse_mean_is_split_by_all_devices_or_none(is_grad):
    """MindSpore: batch_parallel_info. Four ways on 8 devices was compiled."""

    class Net(nn.Cell):
        def __init__(self, strategy):
            super().__init__()
            self.loss = ops.SparseSoftmaxCrossEntropyWithLogits(is_grad=is_grad).shard(strategy)

        def construct(self, logits, labels):
            return self.loss(logits, labels)

    given, how = (np.zeros((16, 8), np.float32), np.zeros(16, np.int32)), {"dataset_strategy": "full_batch"}
    with pytest.raises(ValueError, match=r"splits the samples 4 ways, with 8 devices.*8 ways, or whole.*Try"):
        compile(Net(((4, 1), (4,))), *given, device_num=8, **how)
    for strategy, devices in ((((8, 1), (8,)), 8), (((1, 1), (1,)), 8), (((4, 1), (4,)), 4)):
        assert compile(Net(strategy), *given, device_num=devices, **how).device_num == devices
