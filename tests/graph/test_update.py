"""Pass `update`: which parameters, names of states, two dtypes. Compared with eager training on one device."""

import numpy as np
import pytest

from parallel_lab import Parameter, Session, Tensor, TraceError, compile, nn, ops, value_and_grad
from tests.crossed import each_of
from tests.nets import cell

RNG = np.random.default_rng(70)
X, Y = RNG.normal(size=(8, 4)), RNG.normal(size=(8, 4))
OPTIMIZERS = {
    "momentum": lambda p: nn.Momentum(p, 0.1, 0.9),
    "adam": lambda p: nn.Adam(p, 0.1),
    "lamb": lambda p: nn.Lamb(
        [{"params": p[:1], "lr": [0.1, 0.2, 0.1, 0.05]}, {"params": p[1:]}],
        0.1,
        clip=nn.GradientClip("global_norm", 0.5),
    ),
}


def two(names=("a", "b"), dtypes=("float64", "float64")):
    """(x a) * b"""
    return cell(
        lambda net, x: ops.matmul(x, net.a) * net.b,
        a=Parameter(np.ones((4, 4), dtypes[0]), name=names[0]),
        b=Parameter(np.full((4, 4), 2.0, dtypes[1])[0], name=names[1]),
    )


def trained(net, optimizer, steps=4):
    plan = compile(net, X, Y, loss=nn.MSELoss(), optimizer=optimizer, device_num=4, dataset_strategy="full_batch")
    with Session(plan, net, optimizer) as session:
        return plan, session.train([(X, Y)], steps), session.parameters()


def eager(net, optimizer, steps=4):
    step = value_and_grad(nn.WithLossCell(net, nn.MSELoss()), None, optimizer.parameters)
    losses = []
    for _ in range(steps):
        loss, grads = step(Tensor(X), Tensor(Y))
        losses.append(float(loss))
        optimizer(grads)
    return losses, {n: p.asnumpy() for n, p in net.parameters_dict().items()}


def check(make_net, make_optimizer, rtol=1e-10):
    net = make_net()
    plan, losses, values = trained(net, make_optimizer(net))
    alone = make_net()
    want_losses, want = eager(alone, make_optimizer(alone))
    np.testing.assert_allclose(losses, want_losses, rtol=rtol)
    for name, value in want.items():
        np.testing.assert_allclose(values[name], value, rtol=rtol, err_msg=name)
        assert values[name].dtype == value.dtype
    return plan


@pytest.mark.quick(2)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@each_of(
    "names",
    ("a", "moments.a"),
    *((a, "b") for a in ("moments.b", "moment1.b", "learning_rate:float64", "b.grad", "b.update")),
)
def test_a_parameter_may_be_called_like_a_state(names, optimizer):
    """The state used to take the parameter's entry in the value table: one array for both."""
    check(lambda: two(names), lambda net: OPTIMIZERS[optimizer](net.trainable_params()))


@pytest.mark.quick(3)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("dtypes", [("float32", "float64"), ("float64", "float32"), ("float32", "float32")])
def test_parameters_of_two_dtypes_keep_their_own(dtypes, optimizer):
    """float32 parameters on float64 data used to end in a PlanError: the gradient came out in float64."""
    plan = check(lambda: two(dtypes=dtypes), lambda net: OPTIMIZERS[optimizer](net.trainable_params()), rtol=1e-5)
    assert [plan.value(g).dtype for _, g in plan.gradients] == [plan.value(p).dtype for p, _ in plan.gradients]


def test_only_the_optimizers_parameters_are_updated():
    """All used to be, whichever parameters the optimizer was made for."""
    plan = check(two, lambda net: nn.Momentum([net.b], 0.1, 0.9))
    assert [t for t, _ in plan.assignments] == ["b", "moments.b"]
    assert [n for n, _ in plan.gradients] == ["b", "a"]


def test_an_optimizer_of_another_network_is_refused():
    stranger = Parameter(np.ones(3), name="stranger")
    with pytest.raises(TraceError, match=r"the optimizer has stranger. The network's parameters: b, a"):
        trained(two(), nn.SGD([stranger], 0.1))


def test_learning_rate_is_a_value_that_can_change_without_compiling():
    net = two()
    rule = nn.SGD(net.trainable_params(), 0.1)
    plan, losses, _ = trained(net, rule)
    rule.learning_rate = 0.0
    with Session(plan, net, rule) as session:
        still = session.train([(X, Y)], 4)
    assert len(set(still)) == 1 < len(set(losses))


def test_an_optimizer_of_a_network_with_the_same_names_is_refused():
    """Its parameters, of the same names, would have trained in the plan while the eager network stayed as it is."""
    x = np.zeros((8, 4), np.float32)
    net, other = nn.Dense(4, 4), nn.Dense(4, 4)
    optimizer, settings = nn.SGD(other.trainable_params(), 0.1), {"device_num": 2, "dataset_strategy": "full_batch"}
    words = r"the optimizer's 'weight' is another Parameter of that name than the network's.*net.trainable_params\(\)"
    with pytest.raises(TraceError, match=words):
        compile(net, x, x, loss=nn.MSELoss(), optimizer=optimizer, **settings)
