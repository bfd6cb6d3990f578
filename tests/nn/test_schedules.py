"""Schedules and lists of rates against their formulas; eager optimizers and sessions that follow them."""

import itertools
import math

import numpy as np
import pytest

from parallel_lab import Parameter, Session, Tensor, compile, nn, ops
from parallel_lab.base.errors import ArgumentError
from parallel_lab.nn.optim.lr_schedule import MOST_RATES, rate_at
from tests.crossed import each_of
from tests.nets import cell
from tests.refusals import refused

STEPS = range(11)


@each_of(
    ("schedule", "formula"),
    (nn.ExponentialDecayLR(0.1, 0.9, 4), lambda t: 0.1 * 0.9 ** (t / 4)),
    (nn.ExponentialDecayLR(0.1, 0.9, 4, is_stair=True), lambda t: 0.1 * 0.9 ** math.floor(t / 4)),
    (nn.NaturalExpDecayLR(0.1, 0.9, 4), lambda t: 0.1 * math.e ** (-0.9 * t / 4)),
    (nn.NaturalExpDecayLR(0.1, 0.9, 4, True), lambda t: 0.1 * math.e ** (-0.9 * math.floor(t / 4))),
    (nn.InverseDecayLR(0.1, 0.9, 4), lambda t: 0.1 / (1 + 0.9 * t / 4)),
    (nn.InverseDecayLR(0.1, 0.9, 4, is_stair=True), lambda t: 0.1 / (1 + 0.9 * math.floor(t / 4))),
    (nn.CosineDecayLR(0.01, 0.1, 4), lambda t: 0.01 + 0.5 * 0.09 * (1 + math.cos(min(t, 4) / 4 * math.pi))),
    (nn.PolynomialDecayLR(0.1, 0.01, 4, 0.5), lambda t: 0.09 * (1 - min(t, 4) / 4) ** 0.5 + 0.01),
    (
        nn.PolynomialDecayLR(0.1, 0.01, 4, 2.0, update_decay_steps=True),
        lambda t: 0.09 * (1 - t / (4 * max(math.ceil(t / 4), 1))) ** 2 + 0.01,
    ),
    (nn.WarmUpLR(0.1, 4), lambda t: 0.1 * min(t, 4) / 4),
    ids=lambda value: repr(value) if isinstance(value, nn.Cell) else "",
)
def test_schedules_follow_their_formula(schedule, formula):
    assert [schedule(t) for t in STEPS] == pytest.approx([formula(t) for t in STEPS], rel=1e-14, abs=1e-17)
    assert schedule(Tensor(3)) == schedule(3)


# examples of MindSpore's documentation of these functions
@each_of(
    ("rates", "expected"),
    (
        nn.piecewise_constant_lr([2, 5, 10], [0.1, 0.05, 0.01]),
        [0.1, 0.1, 0.05, 0.05, 0.05, 0.01, 0.01, 0.01, 0.01, 0.01],
    ),
    (nn.exponential_decay_lr(0.1, 0.9, 6, 2, 1), [0.1, 0.1, 0.09, 0.09, 0.081, 0.081]),
    (
        nn.natural_exp_decay_lr(0.1, 0.9, 6, 2, 2, True),
        [0.1, 0.1, 0.1, 0.1, 0.016529888822158657, 0.016529888822158657],
    ),
    (
        nn.inverse_decay_lr(0.1, 0.5, 6, 1, 1, True),
        [0.1, 0.06666666666666667, 0.05, 0.04, 0.03333333333333333, 0.028571428571428574],
    ),
    (nn.cosine_decay_lr(0.01, 0.1, 6, 2, 2), [0.1, 0.1, 0.055, 0.055, 0.01, 0.01]),
    (nn.polynomial_decay_lr(0.1, 0.01, 6, 2, 2, 0.5), [0.1, 0.1, 0.07363961030678928, 0.07363961030678928, 0.01, 0.01]),
    (nn.warmup_lr(0.1, 6, 2, 2), [0.0, 0.0, 0.05, 0.05, 0.1, 0.1]),
    ids=["piecewise", "exponential", "natural", "inverse", "cosine", "polynomial", "warmup"],
)
def test_lists_are_those_of_the_documentation(rates, expected):
    assert rates == pytest.approx(expected, rel=1e-12)


@each_of(
    ("rates", "formula"),
    (nn.exponential_decay_lr(0.1, 0.9, 11, 2, 3), lambda e: 0.1 * 0.9 ** (e / 3)),
    (nn.exponential_decay_lr(0.1, 0.9, 11, 2, 3, True), lambda e: 0.1 * 0.9 ** math.floor(e / 3)),
    (nn.natural_exp_decay_lr(0.1, 0.9, 11, 2, 3), lambda e: 0.1 * math.exp(-0.9 * e)),
    (nn.inverse_decay_lr(0.1, 0.9, 11, 2, 3), lambda e: 0.1 / (1 + 0.9 * e / 3)),
    (
        nn.polynomial_decay_lr(0.1, 0.01, 11, 2, 3, 2.0, True),
        lambda e: 0.09 * (1 - e / (3 * max(math.ceil(e / 3), 1))) ** 2 + 0.01,
    ),
)
def test_lists_follow_the_epochs(rates, formula):
    assert rates == pytest.approx([formula(t // 2) for t in STEPS], rel=1e-14)


class Sawtooth(nn.LearningRateSchedule):
    """A learner's own schedule, written with operators."""

    def construct(self, global_step):
        return ops.mul(0.1, ops.add(global_step, 1.0))


def weights(learning_rate, steps=4):
    """One parameter after each SGD step with the gradient 1: the rates, summed."""
    w = Parameter(Tensor(np.zeros(2)), "w")
    optimizer = nn.SGD([w], learning_rate)
    found = []
    for _ in range(steps):
        optimizer([np.ones(2)])
        found.append(-w.asnumpy()[0])
    assert optimizer.global_step == steps
    return found


RATES = [0.5, 0.25, 0.125, 1.0]


@pytest.mark.parametrize(
    "given",
    [RATES, tuple(RATES), np.array(RATES), Tensor(RATES, np.float64), (r for r in RATES), lambda step: RATES[step]],
    ids=["list", "tuple", "array", "tensor", "generator", "function"],
)
def test_the_ith_step_takes_the_ith_rate(given):
    assert weights(given) == pytest.approx(np.cumsum(RATES), rel=1e-14)


def test_eager_steps_follow_a_schedule():
    assert weights(nn.WarmUpLR(0.3, 3), 5) == pytest.approx(np.cumsum([0, 0.1, 0.2, 0.3, 0.3]), rel=1e-14)
    assert weights(Sawtooth()) == pytest.approx(np.cumsum([0.1, 0.2, 0.3, 0.4]), rel=1e-6)


def test_a_list_that_is_too_short_says_so():
    with pytest.raises(ArgumentError, match=r"step 2 of a list with 2 rates.*Give a longer list, or train fewer steps"):
        weights([0.5, 0.25], 3)


test_what_is_no_rate_is_refused = refused(
    ([], ValueError, "learning_rate with no rates"),
    ([0.1, -0.2], ValueError, r"learning_rate\[1\]=-0.2"),
    ([0.1, "0.2"], TypeError, r"learning_rate\[1\]='0.2'"),
    (Tensor(np.ones((2, 2))), ValueError, r"learning_rate of shape \(2, 2\)"),
    ({0: 0.1}, TypeError, "learning_rate="),
    (nn.WarmUpLR, TypeError, "learning_rate="),
    by=lambda rates: nn.SGD([Parameter(Tensor(np.zeros(2)), "w")], rates),
)


def test_an_endless_iterator_is_refused(monkeypatch):
    monkeypatch.setattr("parallel_lab.nn.optim.lr_schedule.MOST_RATES", 100)
    assert MOST_RATES > 100
    with pytest.raises(ArgumentError, match=r"more than 100 rates.*For endless rates use a schedule"):
        nn.SGD([Parameter(Tensor(np.zeros(2)), "w")], itertools.repeat(0.1))


@each_of(("found", "error"), (-1.0, ValueError), (math.nan, ValueError), ("fast", TypeError), (None, TypeError))
def test_a_schedule_that_gives_no_rate_is_caught_with_its_step(found, error):
    with pytest.raises(error, match="SGD: the learning rate of step 7="):
        rate_at(lambda step: found, 7, "SGD")


test_unfit_settings_are_refused = refused(
    (lambda: nn.CosineDecayLR(0.1, 0.1, 4), ValueError, "max_lr above min_lr"),
    (lambda: nn.piecewise_constant_lr([2, 1], [0.1, 0.2]), ValueError, r"milestone\[1\]=1 after 2"),
    (lambda: nn.piecewise_constant_lr([2], [0.1, 0.2]), ValueError, "1 milestones and 2 learning rates"),
    (lambda: nn.piecewise_constant_lr(2, [0.1]), TypeError, "milestone=2"),
    (lambda: nn.cosine_decay_lr(0.2, 0.1, 1, 1, 1), ValueError, "max_lr above min_lr"),
)


# ---- in a plan ----

RNG = np.random.default_rng(8)
X, Y = RNG.normal(size=(8, 4)), RNG.normal(size=(8, 4))


def two():
    """(x a) * b"""
    a, b = Parameter(np.ones((4, 4)), name="a"), Parameter(np.full(4, 2.0), name="b")
    return cell(lambda net, x: ops.matmul(x, net.a) * net.b, a=a, b=b)


def planned(optimizer, net, devices=4):
    return compile(net, X, Y, loss=nn.MSELoss(), optimizer=optimizer, device_num=devices, dataset_strategy="full_batch")


def by_hand(rates_a, rates_b):
    """Losses and parameters of gradient descent in numpy: loss = mean((x a * b - y)^2)."""
    a, b, losses = np.ones((4, 4)), np.full(4, 2.0), []
    for ra, rb in zip(rates_a, rates_b, strict=True):
        out = X @ a
        losses.append(np.mean((out * b - Y) ** 2))
        slope = 2 * (out * b - Y) / Y.size
        a, b = a - ra * (X.T @ (slope * b)), b - rb * (slope * out).sum(0)
    return losses, a, b


def test_a_session_feeds_the_rate_of_every_step():
    net = two()
    optimizer = nn.SGD(net.trainable_params(), nn.CosineDecayLR(0.01, 0.4, 5))
    rates = [0.01 + 0.5 * 0.39 * (1 + math.cos(math.pi * min(t, 5) / 5)) for t in range(8)]
    losses, a, b = by_hand(rates, rates)
    with Session(planned(optimizer, net), net, optimizer) as session:
        found = session.train([(X, Y)], 3) + session.train([(X, Y)], 5)  # in pieces: the count goes on
        np.testing.assert_allclose(found, losses, rtol=1e-12)
        np.testing.assert_allclose(session.parameters()["a"], a, rtol=1e-12)
        np.testing.assert_allclose(session.parameters()["b"], b, rtol=1e-12)
        assert session.scalars()["learning_rate"] == pytest.approx(rates[-1])


def test_groups_with_rates_of_their_own_in_a_plan():
    net = two()
    optimizer = nn.SGD([{"params": [net.b], "lr": nn.WarmUpLR(0.3, 3)}, {"params": [net.a]}], 0.1)
    losses, a, b = by_hand([0.1] * 5, [0, 0.1, 0.2, 0.3, 0.3])
    with Session(planned(optimizer, net), net, optimizer) as session:
        np.testing.assert_allclose(session.train([(X, Y)], 5), losses, rtol=1e-12)
        np.testing.assert_allclose(session.parameters()["a"], a, rtol=1e-12)
        np.testing.assert_allclose(session.parameters()["b"], b, rtol=1e-12)


def test_another_schedule_needs_no_other_plan():
    net = two()
    plan = planned(nn.SGD(net.trainable_params(), 0.1), net)
    scheduled = nn.SGD(net.trainable_params(), [0.1, 0.0, 0.3])
    with Session(plan, net, scheduled) as session:
        np.testing.assert_allclose(session.train([(X, Y)], 3), by_hand([0.1, 0.0, 0.3], [0.1, 0.0, 0.3])[0], rtol=1e-12)


def test_a_number_changed_between_trainings_counts_from_then_on():
    net = two()
    optimizer = nn.SGD(net.trainable_params(), 0.1)
    with Session(planned(optimizer, net), net, optimizer) as session:
        found = session.train([(X, Y)], 2)
        optimizer.learning_rate = 0.02
        found += session.train([(X, Y)], 2)
    rates = [0.1, 0.1, 0.02, 0.02]
    np.testing.assert_allclose(found, by_hand(rates, rates)[0], rtol=1e-12)


def test_a_short_list_is_refused_before_anything_runs():
    net = two()
    optimizer = nn.SGD(net.trainable_params(), [0.1, 0.2])
    with Session(planned(optimizer, net), net, optimizer) as session:
        with pytest.raises(ArgumentError, match="step 2 of a list with 2 rates"):
            session.train([(X, Y)], 3)
        assert session.step == 0
        assert len(session.train([(X, Y)], 2)) == 2


@each_of("is_stair", False, True)
def test_a_rate_that_outgrows_floats_is_infinite_and_an_optimizer_refuses_it(is_stair):
    """It was Python's own OverflowError, out of the formula."""
    schedule = nn.ExponentialDecayLR(0.1, 2.0, 1, is_stair)
    assert schedule(1000) == 0.1 * 2.0**1000 and schedule(2000) == math.inf
    assert nn.exponential_decay_lr(0.1, 2.0, 2000, 1, 1)[-1] == math.inf
    with pytest.raises(ArgumentError, match=r"SGD: the learning rate of step 2000=inf\. A finite number"):
        rate_at(schedule, 2000, "SGD")
