"""Weight decay that depends on the step: a Cell, as MindSpore's optimizers take it, eager and compiled."""

import numpy as np
import pytest

from parallel_lab import Session, compile, nn, ops
from parallel_lab.base.errors import ArgumentError, ArgumentTypeError
from parallel_lab.nn.tensor.parameter import Parameter
from parallel_lab.nn.tensor.tensor import Tensor
from parallel_lab.train.checkpoint.values import load_optimizer_values, optimizer_values
from tests.nets import cell

FACTORS = (0.1, 0.02, 0.3, 0.0)


def decay(times=1.0):
    return cell(lambda net, global_step: Tensor(np.float32(net.times * FACTORS[int(global_step)])), times=times)


def lars(params, weight_decay):
    return nn.LARS(nn.Momentum(params, 0.05, 0.9, weight_decay=weight_decay))


RULES = {
    "SGD": lambda p, d: nn.SGD(p, 0.05, momentum=0.5, weight_decay=d),
    "Momentum": lambda p, d: nn.Momentum(p, 0.05, 0.9, weight_decay=d),
    "Adam": lambda p, d: nn.Adam(p, 0.05, weight_decay=d),
    "AdamWeightDecay": lambda p, d: nn.AdamWeightDecay(p, 0.05, weight_decay=d),
    "Lamb": lambda p, d: nn.Lamb(p, 0.05, weight_decay=d),
    "LARS": lars,
    "AdaFactor": lambda p, d: nn.AdaFactor(p, weight_decay=d),
    "FTRL": lambda p, d: nn.FTRL(p, weight_decay=d),
    **{
        name: lambda p, d, name=name: getattr(nn, name)(p, 0.05, weight_decay=d)
        for name in ("RMSProp", "AdaMax", "ASGD", "Rprop", "LazyAdam")
    },
    **{name: lambda p, d, name=name: getattr(nn, name)(p, weight_decay=d) for name in ("Adagrad", "ProximalAdagrad")},
}


def numbers(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape)


def pair():
    return [Parameter(Tensor(numbers(1, 4, 6)), name="w"), Parameter(Tensor(numbers(2, 6)), name="norm.gamma")]


@pytest.mark.quick(4)
@pytest.mark.parametrize("rule", RULES)
def test_each_step_has_its_own_factor(rule):
    """Compared with optimizers whose factor is a number, which hand their states from step to step."""
    held, params = pair(), pair()
    dynamic, before = RULES[rule](params, decay()), None
    assert dynamic.dynamic_weight_decay and not dynamic.dynamic_lr
    for step, factor in enumerate(FACTORS):
        factor = float(np.float32(factor))
        assert dynamic.get_weight_decay() == pytest.approx(factor)
        fixed = RULES[rule](held, factor)
        if before is not None:
            load_optimizer_values(fixed, optimizer_values(before))
        gradients = [Tensor(numbers(10 + step, *p.shape)) for p in held]
        fixed(gradients)
        dynamic(gradients)
        before = fixed
        for want, found in zip(held, params, strict=True):
            np.testing.assert_allclose(found.asnumpy(), want.asnumpy(), rtol=1e-12, err_msg=f"{step} {want.name}")


def new_net():
    parts = {"first": ops.MatMul().shard(((2, 2), (2, 2))), "second": ops.MatMul().shard(((4, 1), (1, 2)))}
    weights = {name: Parameter(Tensor(numbers(*drawn)), name) for name, drawn in (("w", (3, 8, 16)), ("v", (4, 16, 8)))}
    return cell(lambda net, x: net.second(ops.tanh(net.first(x, net.w)), net.v), **parts, **weights)


def in_groups(net):
    """Two of one Cell, a number, and another Cell."""
    one = decay()
    groups = [{"params": [net.w], "weight_decay": one, "lr": 0.1}, {"params": [net.v], "weight_decay": decay(2.0)}]
    return nn.Momentum(groups, 0.05, 0.9, weight_decay=one)


@pytest.mark.quick(1)
@pytest.mark.parametrize("sharded", [False, True])
@pytest.mark.parametrize("rule", ["in groups", *RULES])
def test_ranks_equal_one_device(rule, sharded):
    x, y, net = numbers(5, 8, 8), numbers(6, 8, 8), new_net()
    make = in_groups if rule == "in groups" else lambda net: RULES[rule](net.trainable_params(), decay())
    optimizer = make(net)
    how = {"loss": nn.MSELoss(), "optimizer": optimizer, "dataset_strategy": "full_batch", "device_num": 8}
    plan = compile(net, x, y, enable_parallel_optimizer=sharded, parallel_optimizer_threshold=0, **how)
    with Session(plan, net, optimizer) as session:
        losses = session.train([(x, y)], 2) + session.train([(x, y)], 2)
        parameters = session.parameters()
    eager = new_net()
    optimizer = make(eager)
    gradient = nn.ForwardValueAndGrad(nn.WithLossCell(eager, nn.MSELoss()), optimizer.parameters, get_by_list=True)
    for loss in losses:
        expected, gradients = gradient(Tensor(x), Tensor(y))
        assert loss == pytest.approx(float(expected.asnumpy()), rel=1e-9)
        optimizer(gradients)
    for p in eager.trainable_params():
        np.testing.assert_allclose(parameters[p.name], p.asnumpy(), rtol=1e-9, atol=1e-12)


def test_a_plan_does_not_depend_on_the_factors():
    x, plans = numbers(5, 8, 8), []
    for times in (1.0, 3.0):
        net = new_net()
        optimizer = nn.Adam(net.trainable_params(), 0.1, weight_decay=decay(times))
        plans.append(
            compile(net, x, x, loss=nn.MSELoss(), optimizer=optimizer, device_num=8, dataset_strategy="full_batch")
        )
    assert plans[0] == plans[1] and [s.kind for s in plans[0].states if s.kind == "weight_decay"]


@pytest.mark.parametrize(
    ("value", "error"), [("0.1", ArgumentTypeError), (-0.1, ArgumentError), (len, ArgumentTypeError)]
)
def test_anything_but_a_factor_is_refused(value, error):
    with pytest.raises(error, match=r"weight_decay.*or a Cell"):
        nn.SGD(pair(), 0.1, weight_decay=value)
    with pytest.raises(error, match="weight_decay"):
        nn.SGD([{"params": pair(), "weight_decay": value}], 0.1)


def test_a_factor_below_0_is_refused_in_its_step():
    optimizer = nn.SGD(pair(), 0.1, weight_decay=decay(-1.0))
    with pytest.raises(ArgumentError, match="weight decay of step 0"):
        optimizer([Tensor(numbers(1, *p.shape)) for p in optimizer.parameters])
