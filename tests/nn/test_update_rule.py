"""`@update_rule`: what follows from the declaration of an optimizer."""

import inspect

import numpy as np
import pytest

from parallel_lab import Simulator, Tensor, compile, nn, ops
from parallel_lab.base import checks
from parallel_lab.nn import Parameter, ParameterTuple
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


HALF = np.array([1.0, -0.5, 3.0, 0.25], np.float16)
SLOPE = np.array([0.0, 1e-3, -2e-4, 2.0], np.float16)  # squares of the small ones are 0 in float16, as is Adam's eps


@pytest.mark.parametrize("name", ["SGD", "Momentum", "Adam", "AdamWeightDecay", "Lamb", "Adagrad", "RMSProp"])
def test_parameters_in_float16_are_updated_in_float32_and_rounded_once(name):
    """Elements without a gradient became NaN: 0 / (0 + 1e-8), which is 0 / 0 in float16."""
    found = []
    for dtype in (np.float16, np.float32):
        parameter = Parameter(Tensor(HALF.astype(dtype)), "p")
        getattr(nn, name)([parameter], 0.01, *([0.9] if name == "Momentum" else []))((Tensor(SLOPE.astype(dtype)),))
        found.append(parameter.asnumpy())
    np.testing.assert_array_equal(found[0], found[1].astype(np.float16))


def test_states_that_a_script_puts_in_place_keep_their_dtype():
    """PanGu-alpha's optimizer: moments in float32 of parameters in float16, where squares of small gradients are 0."""

    class WideStates(nn.AdamWeightDecay):
        def __init__(self, params):
            super().__init__(params, 0.5)
            wide = [Tensor(np.zeros(p.shape, np.float32)) for p in self.parameters]
            self.moments2 = ParameterTuple([Parameter(zeros, f"v.{i}") for i, zeros in enumerate(wide)])

    w, x = Parameter(Tensor(HALF[:2]), "w"), SLOPE[:2]
    optimizer = WideStates([w])
    squares = np.float32(0.001) * x.astype(np.float32) ** 2
    optimizer((Tensor(x),))
    np.testing.assert_allclose(optimizer.moments2[0].asnumpy(), squares, rtol=1e-4)
    plan = compile(nn.TrainOneStepCell(weighted(w), optimizer), x, device_num=2, dataset_strategy="full_batch")
    assert {plan.value(f"adam_{kind}.w").dtype for kind in "mv"} == {"float16", "float32"}
    with pytest.raises(TypeError, match=r"WideStates.moments2: 2 Parameters in float32.*1 of one dtype"):
        optimizer.moments2 = ParameterTuple([Parameter(Tensor([0.0]), "a"), Parameter(Tensor([0.0]), "b")])


def test_a_loss_scale_beyond_float16_leaves_gradients_in_float16():
    """65536 is infinite in float16: gradients were divided by that, and became 0."""
    w = Parameter(Tensor(HALF), "w")
    net = cell(lambda net, x: (ops.cast(net.w, "float32") * x).sum(), w=w)
    step = nn.TrainOneStepWithLossScaleCell(net, nn.SGD([w], 1.0), Tensor(np.float32(65536)))
    step(Tensor(np.array([0.5, 0.25, 0.0, 0.125], np.float32)))
    np.testing.assert_array_equal(w.asnumpy(), [0.5, -0.75, 3.0, 0.125])
