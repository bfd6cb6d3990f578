"""Parameter groups: rates, weight decay, order, refusals; which parameters decay without groups."""

import numpy as np
import pytest

from parallel_lab import Parameter, Session, Tensor, compile, nn, ops
from tests.nets import cell
from tests.recorded import nets
from tests.refusals import refused

START = np.array([1.0, -2.0, 3.0])
GRAD = np.array([0.5, 0.25, -1.0])


def named(*names):
    return [Parameter(Tensor(START), name) for name in names]


def after_a_step(parameters, optimizer):
    optimizer([GRAD] * len(optimizer.parameters))
    return [p.asnumpy() for p in parameters]


def stepped(rate, decay):
    """SGD: p - rate * (g + decay * p)."""
    return START - rate * (GRAD + decay * START)


def test_each_group_has_its_rate_and_decay_and_takes_the_rest_from_the_optimizer():
    a, b, c, d = named("a", "b", "c", "d")
    groups = [{"params": [a], "lr": 0.5}, {"params": [b, c], "weight_decay": 0.25}]
    groups += [{"params": [d], "lr": 0.125, "weight_decay": 0}]
    found = after_a_step((a, b, c, d), nn.SGD(groups, 0.1, weight_decay=0.4))
    for value, expected in zip(
        found, (stepped(0.5, 0.4), stepped(0.1, 0.25), stepped(0.1, 0.25), stepped(0.125, 0)), strict=True
    ):
        np.testing.assert_allclose(value, expected, rtol=1e-14)


@pytest.mark.parametrize("make", [nn.SGD, lambda p, rate, **k: nn.Momentum(p, rate, 0.0, **k)], ids=["sgd", "momentum"])
def test_without_groups_beta_and_gamma_do_not_decay(make):
    parameters = named("bn.gamma", "bn.beta", "conv.weight", "alphabeta2")
    found = after_a_step(parameters, make(parameters, 0.1, weight_decay=0.4))
    decays = (0, 0, 0.4, 0)
    for value, decay in zip(found, decays, strict=True):
        np.testing.assert_allclose(value, stepped(0.1, decay), rtol=1e-14)


def test_in_a_group_beta_and_gamma_decay_as_the_group_says():
    gamma, beta = named("bn.gamma", "bn.beta")
    groups = [{"params": [gamma]}, {"params": [beta], "weight_decay": 0.1}]
    found = after_a_step((gamma, beta), nn.SGD(groups, 0.1, weight_decay=0.4))
    np.testing.assert_allclose(found[0], stepped(0.1, 0.4), rtol=1e-14)
    np.testing.assert_allclose(found[1], stepped(0.1, 0.1), rtol=1e-14)


def test_lars_filter_and_decay_per_parameter():
    weight, bias = named("w", "d.bias")
    inner = nn.SGD([{"params": [weight], "weight_decay": 0.2}, {"params": [bias], "weight_decay": 0.3, "lr": 0.5}], 0.1)
    found = after_a_step((weight, bias), nn.LARS(inner, epsilon=0.0, coefficient=0.5))
    norms = np.linalg.norm(START), np.linalg.norm(GRAD)
    rate = 0.5 * norms[0] / (norms[1] + 0.2 * norms[0])
    np.testing.assert_allclose(found[0], START - 0.1 * rate * (GRAD + 0.2 * START), rtol=1e-14)
    np.testing.assert_allclose(found[1], START - 0.5 * GRAD, rtol=1e-14)  # left out: its gradient as it is, no decay


def test_order_params_is_the_order_of_the_gradients():
    a, b, c = named("a", "b", "c")
    optimizer = nn.SGD([{"params": [c]}, {"params": [b], "lr": 1.0}, {"params": [a]}, {"order_params": [a, b, c]}], 0.5)
    assert list(optimizer.parameters) == [a, b, c]
    optimizer([GRAD, 2 * GRAD, 3 * GRAD])
    for p, expected in ((a, START - 0.5 * GRAD), (b, START - 2 * GRAD), (c, START - 1.5 * GRAD)):
        np.testing.assert_allclose(p.asnumpy(), expected, rtol=1e-14)


def test_without_order_params_the_order_is_that_of_the_groups():
    a, b, c = named("a", "b", "c")
    assert nn.SGD([{"params": [c, a]}, {"params": [b]}]).parameters == (c, a, b)


def test_parameters_that_are_not_trained_are_left_out_of_their_group():
    a, b = named("a", "b")
    b.requires_grad = False
    optimizer = nn.SGD([{"params": [a, b], "lr": 0.5}, {"order_params": [b, a]}], 0.1)
    assert list(optimizer.parameters) == [a]


def test_the_rate_can_be_read_per_parameter():
    a, b = named("a", "b")
    optimizer = nn.SGD([{"params": [a]}, {"params": [b], "lr": [0.5, 0.25]}], 0.1)
    assert optimizer.get_lr() == (0.1, 0.5)
    optimizer([GRAD, GRAD])
    assert optimizer.get_lr() == (0.1, 0.25)
    assert nn.SGD([a], 0.3).get_lr() == 0.3


def test_the_optimizers_own_rate_can_change_and_the_groups_keep_theirs():
    a, b = named("a", "b")
    optimizer = nn.SGD([{"params": [a]}, {"params": [b], "lr": 0.5}], 0.1)
    optimizer.learning_rate = 0.2
    found = after_a_step((a, b), optimizer)
    np.testing.assert_allclose(found[0], START - 0.2 * GRAD)
    np.testing.assert_allclose(found[1], START - 0.5 * GRAD)


def rule(*groups, **settings):
    """The rule of groups given as ("name name", settings)."""
    return nn.SGD([{"params": named(*names.split()), **more} for names, more in groups], **settings).rule


def test_the_rule_tells_settings_apart_that_make_other_plans():
    different = [
        nn.SGD(named("a", "b")).rule,
        rule(("a", {}), ("b", {})),
        rule(("a b", {})),
        rule(("a", {"lr": 0.1}), ("b", {})),
        rule(("a", {}), ("b", {"lr": 0.1})),
        rule(("a", {"weight_decay": 0.1}), ("b", {})),
        nn.SGD(named("a", "b"), clip=nn.GradientClip("norm", 1)).rule,
        nn.SGD(named("a", "b"), clip=nn.GradientClip("global_norm", 1)).rule,
        nn.SGD(named("a", "b"), loss_scaler=nn.StaticLossScaler(8)).rule,
        nn.LARS(nn.SGD(named("a", "b"))).rule,
        nn.LARS(nn.SGD(named("a", "b")), lars_filter=lambda p: p.name == "a").rule,
    ]
    assert len(set(different)) == len(different)


def test_the_rule_leaves_out_what_is_a_value_of_the_program():
    assert rule(("a", {"lr": 0.1}), learning_rate=0.2) == rule(("a", {"lr": nn.WarmUpLR(0.3, 4)}), learning_rate=[0.1])
    scaled = [nn.SGD(named("a"), loss_scaler=nn.StaticLossScaler(scale)).rule for scale in (8, 16)]
    assert scaled[0] == scaled[1]


SAME = named("a")[0]


test_unfit_groups_are_refused = refused(
    ([{"params": [SAME]}, SAME], TypeError, r"params\[1\] is Parameter.*Groups only, or Parameters only"),
    ([{"params": [SAME]}, {"params": [SAME]}], ValueError, "'a' is given twice"),
    ([{"params": [SAME]}, {"params": named("a")}], ValueError, "'a' is the name of two parameters"),
    ([{"params": []}], ValueError, "group 0 has no parameters"),
    ([{"lr": 0.1}], ValueError, "group 0 has no 'params'"),
    ([{"params": SAME}], TypeError, "group 0 has params="),
    ([{"params": [SAME], "rate": 0.1}], ValueError, "the key 'rate'.*Keys: params, lr, weight_decay"),
    ([{"params": [SAME], "lr": -1}], ValueError, "lr=-1"),
    ([{"params": [SAME], "weight_decay": -1}], ValueError, "weight_decay=-1"),
    ([{"params": [SAME], "grad_centralization": 1}], TypeError, "grad_centralization=1"),
    ([{"params": [SAME]}, {"order_params": []}], ValueError, "order_params and the groups differ in a"),
    ([{"params": [SAME]}, {"order_params": [SAME, SAME]}], ValueError, "order_params and the groups differ in a"),
    ([{"params": [SAME]}, {"order_params": [SAME, *named("b")]}], ValueError, "differ in b"),
    ({"params": [SAME]}, TypeError, "A list of Parameters"),
    by=nn.SGD,
)


def test_grad_centralization_switched_off_is_accepted():
    assert nn.SGD([{"params": [SAME], "grad_centralization": False}]).parameters == (SAME,)


# ---- made before the network was wrapped ----


def line():
    """x @ w with w: (4, 2), split over 2 x 2 ranks where it is compiled."""
    w = Parameter(Tensor(np.linspace(-1, 1, 8).reshape(4, 2)), "w")
    return cell(lambda net, x: net.matmul(x, net.w), w=w, matmul=ops.MatMul().shard(((2, 2), (2, 1))))


def make_wrapped(network):
    """A loss around a network, whose parameters it renames: "network.w"."""
    return cell(lambda net, x, y: net.loss(net.network(x), y), network=network, loss=nn.MSELoss())


BEFORE = {
    "adam": lambda p: nn.Adam(p, 0.1),
    "groups": lambda p: nn.Momentum([{"params": p, "lr": 0.2, "weight_decay": 0.1}], 0.1, 0.9),
    "lars": lambda p: nn.LARS(nn.Momentum(p, 0.1, 0.9), coefficient=0.5, lars_filter=lambda w: w.name == "w"),
}


@pytest.mark.parametrize("name", BEFORE)
def test_an_optimizer_made_before_its_network_is_wrapped_trains_as_one_made_after(name):
    """KeyError 'network.w' before: the optimizer knew its parameters by their old names."""
    x, y = Tensor(np.arange(32.0).reshape(8, 4) / 32), Tensor(np.ones((8, 2)))

    def steps(optimizer, loss, count):
        train = nn.TrainOneStepCell(loss, optimizer)
        return [train(x, y).item() for _ in range(count)]

    plain = line()
    expected = steps(BEFORE[name](plain.trainable_params()), nn.WithLossCell(plain, nn.MSELoss()), 4)
    net = line()
    optimizer = BEFORE[name](net.trainable_params())
    found = steps(optimizer, nn.WithLossCell(net, nn.MSELoss()), 2)
    wrapped = make_wrapped(net)  # between two steps: what the optimizer has kept goes on
    assert found + steps(optimizer, wrapped, 1) == expected[:3]
    assert list(optimizer.states) == [net.w.name] == ["network.w"]
    how = {"loss": nn.MSELoss(), "optimizer": optimizer, "device_num": 4, "dataset_strategy": "full_batch"}
    with Session(compile(net, x, y, **how), net, optimizer) as session:
        np.testing.assert_allclose(session.train([(x, y)], 1), expected[3:], rtol=1e-12)


# ---- which parameters ----


def test_frozen_parameters_are_left_out_and_left_alone():
    net = nets.Quick(4, 6, 2)
    net.weight2.requires_grad = False
    optimizer = nn.SGD(net.get_parameters(), 0.1, weight_decay=0.5)
    assert [p.name for p in optimizer.parameters] == ["w"]
    net.weight.requires_grad = False
    before = net.weight.asnumpy().copy()
    optimizer([np.ones((4, 6))])
    np.testing.assert_array_equal(net.weight.asnumpy(), before)


def test_parameters_may_come_from_a_filter():
    net = nets.Mlp(4, 6, 2)
    optimizer = nn.Momentum(filter(lambda p: p.requires_grad, net.get_parameters()), 0.01, 0.9)
    assert list(optimizer.parameters) == net.trainable_params()


def test_gradients_are_accumulated_in_clones_of_the_parameters():
    """As tutorials that accumulate by hand make their buffers: optimizer.parameters.clone(...)."""
    net = nets.Mlp(4, 6, 2)
    sums = nn.SGD(net.trainable_params(), 0.1).parameters.clone(prefix="accumulate", init="zeros")
    assert [(p.name, p.shape) for p in sums] == [(f"accumulate.{p.name}", p.shape) for p in net.trainable_params()]
    assert not any(p.asnumpy().any() for p in sums)
