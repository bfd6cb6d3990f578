"""Losses of margins, pairs, triples and distributions: formulas, gradients by differences, split batches."""

import math

import numpy as np
import pytest

from parallel_lab import ShapeError, nn, ops
from parallel_lab.nn.tensor.autograd import gradients
from parallel_lab.nn.tensor.parameter import Parameter
from parallel_lab.nn.tensor.tensor import Tensor
from tests.nets import cell
from tests.ops.compiled import results
from tests.refusals import refused

RNG = np.random.default_rng(4)
A, B, C = RNG.normal(size=(3, 8, 3))
SIGNS, ROW_SIGNS = RNG.choice([-1.0, 1.0], (8, 3)), np.array([1.0, -1, 1, -1, -1, 1, 1, -1])
ONES, COUNTS, SPREAD = (SIGNS > 0) * 1.0, RNG.integers(0, 6, (8, 3)) * 1.0, RNG.uniform(0.2, 2, (8, 3))
WEIGHT = np.array([0.5, 1.0, 3.0])
COS = (A * B).sum(1) / np.sqrt((A * A).sum(1) * (B * B).sum(1))
STIRLING = np.where(
    COUNTS > 1, COUNTS * np.log(np.maximum(COUNTS, 1)) - COUNTS + np.log(2 * np.pi * np.maximum(COUNTS, 1)) / 2, 0
)
SIGMOID = 1 / (1 + np.exp(-A))


def distance(a, b, p):
    return (np.abs(a - b + 1e-6) ** p).sum(1) ** (1 / p)


NEAR, FAR, ACROSS = distance(A, B, 2), distance(A, C, 2), distance(B, C, 2)
CROSS = -(ONES * np.log(SIGMOID) + (1 - ONES) * np.log(1 - SIGMOID))
# layer with reduction="none", inputs, the values
CASES = {
    "cosine": (
        lambda r: nn.CosineEmbeddingLoss(0.2, r),
        (A, B, ROW_SIGNS),
        np.where(ROW_SIGNS == 1, 1 - COS, np.maximum(0, COS - 0.2)),
    ),
    "ranking": (lambda r: nn.MarginRankingLoss(0.3, r), (A, B, SIGNS), np.maximum(0, 0.3 - SIGNS * (A - B))),
    "soft": (lambda r: nn.SoftMarginLoss(r), (A, SIGNS), np.log(1 + np.exp(-SIGNS * A))),
    "hinge": (lambda r: nn.HingeEmbeddingLoss(0.7, r), (A, SIGNS), np.where(SIGNS == 1, A, np.maximum(0, 0.7 - A))),
    "triplet": (lambda r: nn.TripletMarginLoss(reduction=r), (A, B, C), np.maximum(0, 1 + NEAR - FAR)),
    "triplet, swapped": (
        lambda r: nn.TripletMarginLoss(swap=True, reduction=r, margin=2.0),
        (A, B, C),
        np.maximum(0, 2 + NEAR - np.minimum(FAR, ACROSS)),
    ),
    "triplet of cubes": (
        lambda r: nn.TripletMarginLoss(3, reduction=r),
        (A, B, C),
        np.maximum(0, 1 + distance(A, B, 3) - distance(A, C, 3)),
    ),
    "gaussian": (
        lambda r: nn.GaussianNLLLoss(full=True, reduction=r),
        (A, B, SPREAD),
        (np.log(SPREAD) + (A - B) ** 2 / SPREAD + math.log(2 * math.pi)) / 2,
    ),
    "poisson": (lambda r: nn.PoissonNLLLoss(reduction=r), (A, COUNTS), np.exp(A) - COUNTS * A),
    "poisson, full": (
        lambda r: nn.PoissonNLLLoss(False, True, reduction=r),
        (SPREAD, COUNTS),
        SPREAD - COUNTS * np.log(SPREAD + 1e-8) + STIRLING,
    ),
    "labels": (lambda r: nn.MultiLabelSoftMarginLoss(reduction=r), (A, ONES), CROSS.mean(1)),
    "weighted labels": (lambda r: nn.MultiLabelSoftMarginLoss(Tensor(WEIGHT), r), (A, ONES), (CROSS * WEIGHT).mean(1)),
}


def behind(loss):
    """A loss behind an operator whose rows are split."""
    return cell(lambda net, x, *others: net.loss(net.neg(x), *others), loss=loss, neg=ops.Neg().shard(((8, 1),)))


@pytest.mark.parametrize("name", CASES)
def test_losses_are_their_formulas(name):
    make, given, values = CASES[name]
    for reduction, expected in (("none", values), ("mean", values.mean()), ("sum", values.sum())):
        found = make(reduction)(*map(Tensor, given)).asnumpy()
        np.testing.assert_allclose(found, expected, rtol=1e-9)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", CASES)
def test_losses_of_split_rows_are_those_of_one_device(name):
    make, (x, *others), values = CASES[name]
    for found in results(behind(make("mean")), -x, *others, device_num=8):
        np.testing.assert_allclose(found, values.mean(), rtol=1e-9)


@pytest.mark.parametrize("name", CASES)
def test_gradients_are_differences(name):
    make, (x, *others), _ = CASES[name]
    loss, parameter, rest = make("sum"), Parameter(Tensor(x), name="x"), tuple(map(Tensor, others))
    (grad,) = gradients(loss(parameter, *rest), [parameter])
    step = 1e-6 * RNG.normal(size=x.shape)
    up, down = (loss(Tensor(x + sign * step), *rest).item() for sign in (1, -1))
    assert (grad * step).sum() == pytest.approx((up - down) / 2, rel=1e-5, abs=1e-13)


def test_the_root_of_the_mean_square_and_the_dice_loss():
    assert nn.RMSELoss()(Tensor(A), Tensor(B)).item() == pytest.approx(math.sqrt(((A - B) ** 2).mean()), rel=1e-12)
    x, y = Tensor(np.array([[0.2, 0.5], [0.3, 0.1], [0.9, 0.6]])), Tensor(np.array([[0.0, 1], [1, 0], [0, 1]]))
    assert nn.DiceLoss()(x, y).item() == pytest.approx(1 - 2 * 1.4 / (1.56 + 3 + 1e-5), rel=1e-12)


test_what_does_not_fit_is_refused = refused(
    (lambda: nn.CosineEmbeddingLoss()(Tensor(A), Tensor(B), Tensor(SIGNS)), ShapeError, r"target of shape \(8, 3\)"),
    (lambda: nn.MarginRankingLoss()(Tensor(A), Tensor(B), Tensor(ROW_SIGNS)), ShapeError, "margin_ranking_loss.*One"),
    (lambda: nn.TripletMarginLoss()(*[Tensor(ROW_SIGNS)] * 3), ShapeError, r"\(n, d\)"),
    (lambda: ops.gaussian_nll_loss(Tensor(A), Tensor(B), Tensor(A), eps=0.0), ValueError, "eps=0.0"),
)
