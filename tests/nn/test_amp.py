"""Loss scaling and `to_float`: rules told plainly, by hand and inside the optimizer; what float16 loses without."""

import numpy as np
import pytest

from parallel_lab import Parameter, Tensor, nn, ops, value_and_grad
from tests.crossed import each_of
from tests.refusals import refused

RNG = np.random.default_rng(21)
X, Y = RNG.normal(size=(8, 6)).astype(np.float32), RNG.normal(size=(8, 4)).astype(np.float32)
BIG = float(2**127)  # doubled, it is infinite in float32


# ---- the dynamic rule ----


def retold(scale, factor, window, finite):
    """The scales after each step, as the rule's description says it."""
    good, scales = 0, []
    for ok in finite:
        good = good + 1 if ok else 0
        if not ok:
            scale = max(scale / factor, 1.0)
        elif good == window:
            scale, good = scale * factor if np.isfinite(np.float32(min(scale * factor, 2.0**128))) else scale, 0
        scales.append(scale)
    return scales


@pytest.mark.quick(1)
@each_of("start, factor, window", (2.0**10, 2, 3), (8.0, 4, 1), (1.0, 2, 2), (BIG, 2, 1), (BIG, 2, 3), (2.0**10, 1, 2))
def test_the_dynamic_scale_follows_its_rule(start, factor, window):
    finite = RNG.random(60) < 0.75
    scaler, found = nn.DynamicLossScaler(start, factor, window), []
    with np.errstate(over="ignore"):
        expected = retold(start, factor, window, finite)
    for ok in finite:
        assert scaler.adjust(ok) is True
        found.append(scaler.scale_value)
    assert found == expected
    assert not finite.all()


def test_the_static_scale_stays():
    scaler = nn.StaticLossScaler(1024)
    assert scaler.adjust(False) is False
    assert scaler.scale_value == 1024


def test_scale_and_unscale():
    scaler = nn.StaticLossScaler(2**10)
    assert scaler.scale(Tensor([1.0], np.float32)).asnumpy() == [1024.0]
    grads = Tensor([1.5, 1.0], np.float16), Tensor([1.2], np.float16)
    found = scaler.unscale(grads)
    assert [g.dtype for g in found] == [np.float16, np.float16]
    # MindSpore's example: 1.4648e-03, 9.7656e-04
    np.testing.assert_allclose(found[0].asnumpy(), [1.5 / 1024, 1 / 1024], rtol=1e-3)
    # a scale beyond float16 must not become infinite on the way
    np.testing.assert_allclose(
        nn.StaticLossScaler(2**20).unscale(Tensor([6e4], np.float16)).asnumpy(), [6e4 / 2**20], rtol=1e-3
    )


@pytest.mark.parametrize(
    ("arrays", "expected"),
    [([[1.0, 2.0]], True), ([[1.0, np.inf]], False), ([[1.0], [np.nan, 0.0]], False), ([[-np.inf]], False)],
)
def test_all_finite(arrays, expected):
    assert nn.all_finite([Tensor(np.array(a)) for a in arrays]) is expected


def test_managers_have_mindspores_defaults_and_methods():
    fixed, dynamic = nn.FixedLossScaleManager(), nn.DynamicLossScaleManager()
    assert (fixed.get_loss_scale(), fixed.get_drop_overflow_update()) == (128.0, True)
    assert (dynamic.get_loss_scale(), dynamic.scale_factor, dynamic.scale_window) == (2**24, 2, 2000)
    assert dynamic.get_drop_overflow_update() is True
    fixed.update_loss_scale(True)
    dynamic.update_loss_scale(True)
    assert (fixed.get_loss_scale(), dynamic.get_loss_scale()) == (128.0, 2**23)
    assert nn.FixedLossScaleManager(8.0, False).get_update_cell() is None
    assert isinstance(fixed.get_update_cell(), nn.FixedLossScaleUpdateCell)
    cell = dynamic.get_update_cell()
    assert (cell.get_loss_scale(), cell(Tensor(2.0**12), True), cell.get_loss_scale()) == (2**23, True, 2**11)


test_what_cannot_be_is_refused = refused(
    (lambda: nn.StaticLossScaler(0.5), ValueError, "scale_value=0.5.*at least 1"),
    (lambda: nn.StaticLossScaler("8"), TypeError, "scale_value='8'"),
    (lambda: nn.FixedLossScaleManager(0), ValueError, "loss_scale=0"),
    (lambda: nn.DynamicLossScaleManager(np.inf), ValueError, "init_loss_scale=inf"),
    (lambda: nn.Dense(2, 2).to_float("int32"), ValueError, "dst_type='int32'.*float16, float32 or float64"),
    (lambda: nn.Dense(2, 2).to_float("half-full"), ValueError, "dst_type='half-full'"),
    (lambda: nn.Dense(2, 2).to_float(None), ValueError, "dst_type=None"),
)


# ---- eager steps ----


def net_and_step(optimizer_of, dtype=None):
    net = nn.SequentialCell(nn.Dense(6, 5, activation="relu"), nn.Dense(5, 4))
    for i, p in enumerate(net.trainable_params()):
        p.set_data(np.random.default_rng(i).normal(size=p.shape).astype(np.float32))
    if dtype is not None:
        net.to_float(dtype)
    optimizer = optimizer_of(net.trainable_params())
    scaler = optimizer.loss_scaler
    loss = nn.MSELoss()

    def scaled(x, y):
        value = loss(net(x), y)
        return scaler.scale(value) if scaler else value

    return net, optimizer, value_and_grad(scaled, None, optimizer.parameters)


def values(net):
    return [p.asnumpy().copy() for p in net.trainable_params()]


def test_a_power_of_two_changes_no_bit_of_the_step():
    plain, opt, step = net_and_step(lambda p: nn.Momentum(p, 0.1, 0.9))
    scaled, scaled_opt, scaled_step = net_and_step(
        lambda p: nn.Momentum(p, 0.1, 0.9, loss_scaler=nn.StaticLossScaler(1024))
    )
    for _ in range(4):
        opt(step(Tensor(X), Tensor(Y))[1])
        scaled_opt(scaled_step(Tensor(X), Tensor(Y))[1])
    for a, b in zip(values(plain), values(scaled), strict=True):
        np.testing.assert_array_equal(a, b)


def poisoned(grads, position):
    arrays = [np.array(g.asnumpy()) for g in grads]
    arrays[position].flat[-1] = np.inf if position % 2 else np.nan
    return arrays


@pytest.mark.parametrize("position", range(4))
def test_an_overflow_in_any_gradient_skips_the_step(position):
    net, optimizer, step = net_and_step(lambda p: nn.Adam(p, 0.1, loss_scaler=nn.DynamicLossScaler(256, 2, 2)))
    optimizer(step(Tensor(X), Tensor(Y))[1])
    before, states, scalars = values(net), optimizer.states, optimizer.scalars
    optimizer(poisoned(step(Tensor(X), Tensor(Y))[1], position))
    assert optimizer.loss_scaler.scale_value == 128
    assert optimizer.scalars == scalars
    assert optimizer.global_step == 2
    for a, b in zip(before, values(net), strict=True):
        np.testing.assert_array_equal(a, b)
    for name, state in optimizer.states.items():
        for kind, array in state.items():
            np.testing.assert_array_equal(array, states[name][kind])
    for _ in range(2):
        optimizer(step(Tensor(X), Tensor(Y))[1])
    assert optimizer.loss_scaler.scale_value == 256
    assert all((a != b).any() for a, b in zip(before, values(net), strict=True))


def test_without_drop_overflow_update_the_step_is_taken():
    net, optimizer, step = net_and_step(
        lambda p: nn.SGD(p, 0.1, loss_scaler=nn.FixedLossScaleManager(4.0, drop_overflow_update=False))
    )
    optimizer(poisoned(step(Tensor(X), Tensor(Y))[1], 1))
    assert not np.isfinite(values(net)[1]).all()


def test_the_loop_written_by_hand_is_the_optimizers():
    inside, optimizer, step = net_and_step(
        lambda p: nn.Momentum(p, 0.1, 0.9, loss_scaler=nn.DynamicLossScaler(64, 2, 2))
    )
    by_hand, plain, _ = net_and_step(lambda p: nn.Momentum(p, 0.1, 0.9))
    scaler = nn.DynamicLossScaler(64, 2, 2)
    hand_step = value_and_grad(lambda x, y: scaler.scale(nn.MSELoss()(by_hand(x), y)), None, plain.parameters)
    for i in range(7):
        grads, hand_grads = step(Tensor(X), Tensor(Y))[1], hand_step(Tensor(X), Tensor(Y))[1]
        if i in (2, 3):
            grads, hand_grads = poisoned(grads, 0), [Tensor(g) for g in poisoned(hand_grads, 0)]
        optimizer(grads)
        finite = nn.all_finite(hand_grads)
        if finite:
            plain(scaler.unscale(hand_grads))
        scaler.adjust(finite)
        assert scaler.scale_value == optimizer.loss_scaler.scale_value
    for a, b in zip(values(inside), values(by_hand), strict=True):
        np.testing.assert_array_equal(a, b)
    # a good pair doubles, two overflows quarter, the first two of three good steps double
    assert scaler.scale_value == 64


def test_float16_loses_small_gradients_and_the_scale_keeps_them():
    """dloss/dw of about 1e-9 is 0 in float16; scaled by 2^15 it survives."""
    x, y = np.full((4, 6), 1e-3, np.float32), np.zeros((4, 4), np.float32)

    def gradient(dtype, scale):
        dense = nn.Dense(6, 4, has_bias=False)
        dense.weight.set_data(np.full((4, 6), 1e-3, np.float32))
        dense.to_float(dtype)
        step = value_and_grad(
            lambda a, b: nn.StaticLossScaler(scale).scale(nn.MSELoss()(dense(a), b)), None, [dense.weight]
        )
        return step(Tensor(x), Tensor(y))[1][0].asnumpy() / np.float32(scale)

    exact = gradient(np.float64, 1)
    assert 1e-10 < exact.min() <= exact.max() < 1e-8
    assert not gradient(np.float16, 1).any()
    np.testing.assert_allclose(gradient(np.float16, 2**15), exact, rtol=0.01)


# ---- to_float ----


class Spy(nn.Cell):
    """Remembers the dtypes that construct sees."""

    def __init__(self):
        super().__init__()
        self.w = Parameter(np.ones(3, np.float32), name="w")
        self.table = Parameter(np.arange(3, dtype=np.int32), name="table", requires_grad=False)
        self.moving_mean = Parameter(np.zeros(3, np.float32), name="moving_mean", requires_grad=False)

    def construct(self, x, pair=None, number=2.0):
        self.seen = [str(v.dtype) for v in (x, self.w, self.table, self.moving_mean)]
        self.same = self.w is self.w
        if pair is not None:
            self.seen += [str(p.dtype) for p in pair]
        return x * self.w * number


def test_to_float_casts_inputs_and_parameters_and_leaves_integers_and_running_statistics():
    spy = Spy()
    assert spy.to_float(np.float16) is spy
    out = spy(Tensor(np.ones(3, np.float32)), pair=(Tensor(np.ones(2)), Tensor(np.ones(2, np.int64))))
    assert spy.seen == ["float16", "float16", "int32", "float32", "float16", "int64"]
    assert spy.same  # cast once per call
    assert (out.dtype, spy.w.dtype) == (np.float16, np.float32)
    assert isinstance(spy.w, Parameter)
    assert [p.name for p in spy.get_parameters()] == ["w", "table", "moving_mean"]


def test_to_float_reaches_the_cells_below_and_can_be_taken_back_for_one():
    net = nn.SequentialCell(nn.Dense(6, 5), nn.ReLU(), nn.Dense(5, 4)).to_float(np.float16)
    assert net(Tensor(X)).dtype == np.float16
    net[2].to_float(np.float32)
    assert net(Tensor(X)).dtype == np.float32


def test_parameters_gradients_and_updates_stay_float32():
    net, optimizer, step = net_and_step(lambda p: nn.Momentum(p, 0.1, 0.9), np.float16)
    _, grads = step(Tensor(X), Tensor(Y))
    assert {str(g.dtype) for g in grads} == {"float32"}
    optimizer(grads)
    assert {str(v.dtype) for v in values(net)} == {"float32"}
    _, _, exact = net_and_step(lambda p: nn.Momentum(p, 0.1, 0.9))
    for g, e in zip(grads, exact(Tensor(X), Tensor(Y))[1], strict=True):
        # float16 has 11 bits: 5e-4, summed over a few terms
        np.testing.assert_allclose(g.asnumpy(), e.asnumpy(), atol=0.01 * np.abs(e.asnumpy()).max())


def test_an_error_inside_leaves_the_parameters_in_place():
    class Broken(Spy):
        def construct(self, x):
            raise ValueError(f"seen {self.w.dtype}")

    broken = Broken().to_float(np.float16)
    with pytest.raises(ValueError, match="seen float16"):
        broken(Tensor(np.ones(3)))
    assert isinstance(broken.w, Parameter)


def test_a_cell_that_calls_itself():
    class Twice(nn.Cell):
        def __init__(self):
            super().__init__()
            self.w = Parameter(np.full(2, 3.0, np.float32), name="w")

        def construct(self, x, depth=1):
            x = ops.mul(x, self.w)
            x = self(x, depth - 1) if depth else x
            return ops.mul(x, self.w)

    net = Twice().to_float(np.float16)
    out = net(Tensor(np.ones(2, np.float32)))
    np.testing.assert_array_equal(out.asnumpy(), np.full(2, 81, np.float16))
    assert isinstance(net.w, Parameter)
