"""`@update_rule`: what follows from the declaration of an optimizer."""

import inspect

import numpy as np
import pytest

from parallel_lab import Simulator, Tensor, compile, nn, ops
from parallel_lab.base import checks
from parallel_lab.nn import Parameter
from parallel_lab.nn.optim.update_rule import WEIGHT_DECAY, Argument, update_rule
from tests.nets import cell


def weighted(w):
    return cell(lambda net, x: (net.w * x).sum(), w=w)


def compiled_step(w, optimizer):
    """The parameter after one compiled step on 2 ranks; the gradient is x."""
    x = np.array([1.0, -1.0], np.float32)
    net = nn.TrainOneStepCell(weighted(w), optimizer)
    plan = compile(net, x, device_num=2, dataset_strategy="full_batch")
    given = {"w": w.asnumpy(), "steps.w": np.ones(2, np.float32), "learning_rate:float32": np.float32(0.5)}
    sim = Simulator(plan, given)
    sim.run_step(x)
    return sim.full("w")


def test_a_rule_becomes_an_optimizer_with_its_arguments_states_and_text():
    """Signs of gradients, counted: p = p - rate * strength * sign(g), at once and in a compiled step."""
    strength = Argument("strength", "float", 2.0, checks.number(0))

    @update_rule(Argument("learning_rate", "Rate", 0.5), strength, WEIGHT_DECAY, states={"steps": 1.0})
    def Signs(h, p, g, steps):
        """Down by signs."""
        return p - ops.sign(g) * h.strength * h.rate, steps + 1.0

    assert issubclass(Signs, nn.Optimizer) and (Signs.__name__, Signs.__doc__) == ("Signs", "Down by signs.")
    expected = [*("params", "learning_rate", "strength", "weight_decay", "clip", "loss_scaler")]
    assert [*inspect.signature(Signs).parameters] == expected
    parameter = Parameter(Tensor([1.0, -1.0]), "p")
    optimizer = Signs([parameter], strength=1)
    assert optimizer.rule == "Signs(strength=1.0, weight_decay=0.0, loss_scale=1.0)"
    optimizer([Tensor([3.0, -0.5])])
    np.testing.assert_array_equal(parameter.asnumpy(), [0.5, -0.5])
    np.testing.assert_array_equal(optimizer.states["p"]["steps"], [2.0, 2.0])
    w = Parameter(Tensor([1.0, -1.0]), "w")
    np.testing.assert_array_equal(compiled_step(w, Signs([w])), [0.0, 0.0])
    with pytest.raises(ValueError, match="Signs: strength=-1"):
        Signs([parameter], strength=-1)
    with pytest.raises(TypeError, match="Signs: unexpected argument 'loss_scale'"):
        Signs([parameter], loss_scale=2.0)
