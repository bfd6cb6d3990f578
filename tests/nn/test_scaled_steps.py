"""Steps with a scaled loss: what overflows is skipped, at once and compiled; sums of gradients that Parameters hold."""

from __future__ import annotations

import numpy as np
import pytest

from parallel_lab import Parameter, Session, Tensor, nn, ops
from parallel_lab.graph.compiler import compile_program
from tests.crossed import each_of
from tests.nn.test_wrap import B, W, X, Y, mean_square, new_net, sgd_step, with_loss


def test_a_scaled_step_skips_what_overflows_and_lowers_the_scale():
    net = new_net()
    optimizer = nn.SGD(net.trainable_params(), 0.1)
    step = nn.TrainOneStepWithLossScaleCell(with_loss(net), optimizer, nn.DynamicLossScaleUpdateCell(1024.0, 2, 1))
    loss, overflow, scale = step(Tensor(X), Tensor(Y))
    assert (overflow, scale.item()) == (False, 1024.0)
    assert loss.item() == pytest.approx(mean_square(X, Y)[0])
    np.testing.assert_allclose(net.weight.asnumpy(), sgd_step(0.1)[0], rtol=1e-12)
    assert step.scale_sense.item() == 2048.0
    kept = net.weight.asnumpy().copy()
    _, overflow, scale = step(Tensor(X * np.inf), Tensor(Y))
    assert (overflow, scale.item(), step.scale_sense.item()) == (True, 2048.0, 1024.0)
    np.testing.assert_array_equal(net.weight.asnumpy(), kept)


def test_a_fixed_scale_is_a_tensor_of_one_number():
    net = new_net()
    optimizer = nn.SGD(net.trainable_params(), 0.1)
    step = nn.TrainOneStepWithLossScaleCell(with_loss(net), optimizer, Tensor([4.0]))
    assert step(Tensor(X), Tensor(Y))[2].item() == 4.0
    np.testing.assert_allclose(net.weight.asnumpy(), sgd_step(0.1)[0], rtol=1e-12)
    for wrong, kind in ((4.0, TypeError), (Tensor([1.0, 2.0]), ValueError)):
        with pytest.raises(kind, match="scale_sense"):
            nn.TrainOneStepWithLossScaleCell(with_loss(net), optimizer, wrong)


class OwnScaledStep(nn.TrainOneStepWithLossScaleCell):
    """A construct of the user's own, as MindSpore's examples write it."""

    def construct(self, *inputs):
        loss, scale = self.network(*inputs), self.scale_sense
        status, scale = self.start_overflow_check(loss, scale)
        grads = self.grad(self.network, self.weights)(*inputs, ops.cast(scale, str(loss.dtype)))
        grads = self.hyper_map(lambda g: ops.div(g, scale), self.grad_reducer(grads))
        cond = self.get_overflow_status(status, grads)
        overflow = self.process_loss_scale(cond)
        if not overflow:
            loss = ops.stop_gradient(loss)
            self.optimizer(grads)
        return loss, cond, scale


@pytest.mark.quick(1)
@each_of("mode", "semi_auto_parallel", "data_parallel", "stand_alone")
@each_of("cell", nn.TrainOneStepWithLossScaleCell, OwnScaledStep)
def test_compiled_scaled_steps_skip_what_overflows_as_at_once(cell, mode):
    """They were refused. Rows of the third batch overflow: no parameter changes, and the scale is halved."""
    batches = [(X, Y), (X, Y), (X * np.inf, Y), (X, Y)]
    ran = {}
    for compiled in (False, True):
        net = new_net()
        step = cell(
            with_loss(net), nn.Momentum(net.trainable_params(), 0.1, 0.9), nn.DynamicLossScaleUpdateCell(64, 2, 2)
        )
        found = ran[compiled] = []
        if not compiled:
            for x, y in batches:
                with np.errstate(all="ignore"):
                    loss, overflow, scale = step(Tensor(x), Tensor(y))
                found.append((loss.item(), bool(overflow), scale.item(), step.scale_sense.item(), net.weight.asnumpy()))
            continue
        options = {"parallel_mode": mode, "device_num": 4, "dataset_strategy": "full_batch"}
        made = compile_program(step, X, Y, **options, gradients_mean=mode == "data_parallel")
        values = {name: p.asnumpy() for name, p in made.parameters.items()}
        session = Session(made.plan, values, made.optimizer)
        for batch in batches:
            with np.errstate(all="ignore"):
                session.train([batch], steps=1)
            results, after = session.values(made.plan.outputs), session.parameters()
            found.append((*(results[n].item() for n in made.plan.outputs), after["scale_sense"].item(), after["w"]))
    assert [one[1:4] for one in ran[True]] == [one[1:4] for one in ran[False]]
    assert [one[2] for one in ran[True]] == [64, 64, 128, 64] and [one[1] for one in ran[True]] == [0, 0, 1, 0]
    np.testing.assert_allclose([one[0] for one in ran[True]], [one[0] for one in ran[False]])
    for one, other in zip(ran[True], ran[False], strict=True):
        np.testing.assert_allclose(one[-1], other[-1], rtol=1e-6)


def test_an_update_cell_adjusts_the_parameter_that_it_is_given():
    """MindSpore's: the scale is a Parameter of the training Cell. It kept its first value."""
    scale = Parameter(Tensor(np.float32(8)), "scale")
    manager = nn.DynamicLossScaleUpdateCell(8, 2, 1)
    assert manager(scale, False) is False and scale.item() == 16
    assert manager(scale, True) is True and scale.item() == 8


def test_a_step_with_gradients_that_were_added_up_before_can_be_compiled():
    """The optimizer is called with Parameters, and nothing is differentiated: it was refused."""
    totals = {name: value * 0.5 for name, value in (("w", W), ("b", B))}

    class Step(nn.Cell):
        def __init__(self, net):
            super().__init__(auto_prefix=False)
            self.net, self.optimizer = net, nn.SGD(net.trainable_params(), 0.1)
            self.totals = nn.ParameterTuple([Parameter(Tensor(v), f"total.{n}") for n, v in totals.items()])

        def construct(self, x):
            self.optimizer(self.totals)
            for total in self.totals:
                ops.assign(total, ops.zeros_like(total))
            return ops.reduce_sum(x)

    step = Step(new_net())
    made = compile_program(step, X, device_num=4, dataset_strategy="full_batch")
    session = Session(made.plan, {name: p.asnumpy() for name, p in made.parameters.items()}, made.optimizer)
    session.train([(X,)], steps=1)
    after = session.parameters()
    np.testing.assert_allclose(after["w"], W - 0.1 * totals["w"])
    np.testing.assert_allclose(after["b"], B - 0.1 * totals["b"])
    assert not after["total.w"].any() and not after["total.b"].any()


def test_a_step_without_a_forward_part_needs_no_strategy_to_spread():
    """It was refused in auto_parallel mode: of 0 operators none is configured."""
    net = new_net()
    optimizer, total = nn.SGD(net.trainable_params(), 0.1), [Parameter(Tensor(v), f"total.{v.ndim}") for v in (W, B)]
    how = {"parallel_mode": "auto_parallel", "search_mode": "sharding_propagation"}
    made = compile_program(lambda x: optimizer(total), X, device_num=4, **how)
    assert [phase for phase, program in made.plan.stages[0].programs if program] == ["update"]
