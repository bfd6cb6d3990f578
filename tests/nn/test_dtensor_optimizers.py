"""Optimizers and clipping of DTensor parameters: equal to whole Parameters, at once and compiled; messages say why."""

import numpy as np
import pytest

import parallel_lab as pl
from parallel_lab import nn, ops
from parallel_lab.base.errors import ArgumentTypeError, NotBuiltYet
from parallel_lab.layout.mesh_layout import MeshLayout, Partial, Replicate, Shard
from parallel_lab.nn.parallel_styles import ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module
from parallel_lab.nn.tensor.autograd import value_and_grad
from parallel_lab.nn.tensor.dtensor import DTensor, distribute_tensor, dtensor_messages
from parallel_lab.nn.tensor.dtensor_parameter import DTensorParameter, cut_parameter
from parallel_lab.nn.tensor.tensor import Tensor
from parallel_lab.train.dtensor_runs import DTensorFunction
from tests.graph.test_dtensor_programs import LINE, MESH, sent_at_once, sent_by
from tests.recorded.ask_rosetta import drawn

OPTIMIZERS = {
    "SGD": lambda p: nn.SGD(p, 0.1, weight_decay=0.01),
    "SGD with dampening": lambda p: nn.SGD(p, 0.1, momentum=0.9, dampening=0.1),
    "Momentum": lambda p: nn.Momentum(p, 0.1, 0.9, use_nesterov=True),
    "Adam, clipped": lambda p: nn.Adam(p, 0.01, clip=nn.GradientClip("global_norm", 0.05)),
    "Adam, scheduled": lambda p: nn.Adam(p, nn.ExponentialDecayLR(0.01, 0.5, 1)),
    "AdamWeightDecay": lambda p: nn.AdamWeightDecay(p, 0.01),
    "Lamb": lambda p: nn.Lamb(p, 0.01),
    "centralized": lambda p: nn.SGD([{"params": p, "grad_centralization": True}], 0.1),
    "norms clipped": lambda p: nn.Adagrad(p, learning_rate=0.1, clip=nn.GradientClip("norm", 0.1)),
}


def network(split):
    pl.set_seed(1)
    net = nn.SequentialCell(nn.LayerNorm((16,)), nn.Dense(16, 32), nn.ReLU(), nn.Dense(32, 8))
    plan = {"0": SequenceParallel(), "1": ColwiseParallel(input_layouts=Shard(1)), "3": RowwiseParallel()}
    return parallelize_module(net, LINE, plan) if split else net


def step_of(net, optimizer):
    def step(x):
        x = distribute_tensor(x, LINE, [Shard(1)]) if isinstance(optimizer.parameters[0], DTensorParameter) else x
        loss, grads = value_and_grad(lambda x: ops.square(net(x)).mean(), None, optimizer.parameters)(x)
        optimizer(grads)
        return loss

    return step


@pytest.mark.quick(4)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_steps_equal_those_of_whole_parameters_at_once_and_compiled(name):
    nets = network(False), network(True), network(True)
    optimizers = [OPTIMIZERS[name](net.trainable_params()) for net in nets]
    whole, at_once, compiled = (step_of(*pair) for pair in zip(nets, optimizers, strict=True))
    compiled, random = DTensorFunction(compiled), np.random.default_rng(0)
    for _ in range(3):
        x = Tensor(random.standard_normal((2, 8, 16)).astype(np.float32))
        whole(x)
        with dtensor_messages() as messages:
            at_once(x)
        compiled(x)
        assert sent_by(compiled.plan) == sent_at_once(messages, LINE)
    reads = [m.reason for m in messages if "reads the gradient" in m.reason]
    kind = type(optimizers[0]).__name__
    assert f"{kind} reads the gradient of 0.gamma: P -> R" in reads  # SequenceParallel leaves it pending
    assert [optimizer.steps_taken for optimizer in optimizers] == [3, 3, 3]
    for p, one, other in zip(*(net.trainable_params() for net in nets), strict=True):
        np.testing.assert_allclose(one.asnumpy(), p.asnumpy(), rtol=1e-4, atol=1e-4)
        for rank in LINE.ranks:
            np.testing.assert_array_equal(one.local(rank), other.local(rank))


def test_a_rate_that_is_assigned_makes_another_program():
    w = cut_parameter(np.ones(8), LINE, [Shard(0)], "w", True)
    optimizer = nn.SGD([w], 0.5)
    step = DTensorFunction(lambda g: optimizer([g]) or g)
    g = distribute_tensor(np.ones(8), LINE, [Shard(0)])
    step(g)
    optimizer.learning_rate = 0.25
    step(g)
    step(g)
    np.testing.assert_array_equal(w.asnumpy(), np.zeros(8))
    assert sum(map(len, step.programs.values())) == 2


def test_a_norm_is_that_of_the_whole_and_a_pending_gradient_is_reduced_for_it():
    random = np.random.default_rng(0)
    grads = [drawn((8, 4), MeshLayout.coded(MESH, code), random) for code in ("S0 S1", "P R", "R P")]
    wholes = [g.asnumpy() for g in grads]
    norm = np.sqrt(sum((g.astype(np.float64) ** 2).sum() for g in wholes))
    with dtensor_messages() as messages:
        clipped = nn.clip_by_global_norm(grads, 0.5)
    for have, whole in zip(clipped, wholes, strict=True):
        np.testing.assert_allclose(have.asnumpy(), whole * 0.5 / norm, rtol=1e-5)
    assert [m.reason for m in messages][:2] == [
        "clip_by_global_norm reads tensor 1: P -> R",
        "clip_by_global_norm reads tensor 2: P -> R",
    ]


def test_a_step_with_an_overflow_changes_nothing():
    w = cut_parameter(np.ones(8, np.float32), LINE, [Shard(0)], "w", True)
    optimizer = nn.SGD([w], 0.5, loss_scaler=nn.DynamicLossScaler(4.0, 2, 1000))
    bad = DTensor.from_local(lambda rank: np.full(2, np.inf if rank == 3 else 1.0, np.float32), LINE, [Shard(0)])
    optimizer([bad])
    assert w.asnumpy().tolist() == [1.0] * 8
    optimizer([DTensor.from_local(lambda rank: np.full(8, 1.0, np.float32), LINE, [Partial()])])
    assert w.asnumpy().tolist() == [0.0] * 8  # 1 - 0.5 * 4 / 2: the scale was halved


def test_what_is_refused():
    w = cut_parameter(np.ones((4, 4)), LINE, [Replicate()], "w", True)
    with pytest.raises(ArgumentTypeError, match="an optimizer for each"):
        optimizer = nn.SGD([w, pl.Parameter(Tensor(np.ones(4)), name="b")], 0.1)
        optimizer([np.ones((4, 4)), np.ones(4)])
    with pytest.raises(NotBuiltYet, match="another shape"):
        nn.AdaFactor([w], learning_rate=0.1, scale_parameter=False, relative_step=False)([np.ones((4, 4))])
