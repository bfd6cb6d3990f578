"""Rows for losses and optimizers: ours and PyTorch's. See `layer_rows.py`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from parallel_lab import nn
from parallel_lab.nn.tensor.parameter import Parameter
from tests.recorded.layer_rows import fitted
from tests.recorded.torch_table import Row, Spec, floats, given, inside, row

# ---- losses ----


def loss_rows(key: str, *inputs: Spec, torch: str = "", **options: Any) -> tuple[Row, ...]:
    """One row per reduction.  torch: PyTorch's class, if its name is another; options: of both, arrays as float64"""
    name = key.partition("-")[0]

    def rows_of(reduction: str) -> Row:
        def theirs(t, x, y):
            given = {k: t.tensor(v, dtype=t.float64) if isinstance(v, np.ndarray) else v for k, v in options.items()}
            given.pop("sparse", None)
            loss = getattr(t.nn, torch or name)(**given, reduction=reduction)
            return loss(x, y.long() if y.dtype == t.int32 else y)

        def ours(x, y):
            return getattr(nn, name)(**options, reduction=reduction)(x, y)

        return row(f"{key}-{reduction}", theirs, *inputs, ours=ours)

    return tuple(map(rows_of, ("mean", "sum", "none")))


PAIR = (floats(4, 6), floats(4, 6))
SHARES = (inside(4, 6), inside(4, 6))
CLASSES = (floats(6, 4), given(0, 3, 1, 2, 1, 0))
CLASS_SHARES = (floats(6, 4), inside(6, 4))
MAPS = (floats(2, 3, 2, 2), given(((0, 1), (2, 1)), ((1, 2), (0, 0))))
W = np.array((0.5, 1.5, 0.25, 2.0))
SOFTMAX = "SoftmaxCrossEntropyWithLogits"


def _expanded(t, x, y):
    return t.nn.functional.cross_entropy(x, y.long() if y.dtype == t.int32 else y)


def _dense_loss(x, w, y):
    return nn.WithLossCell(fitted(nn.Dense(4, 3, has_bias=False), ["weight"], [w]), nn.MSELoss())(x, y)


LOSSES: tuple[Row, ...] = (
    *loss_rows("MSELoss", *PAIR),
    *loss_rows("L1Loss", *PAIR),
    *loss_rows("SmoothL1Loss", *PAIR, beta=0.7),
    *loss_rows("HuberLoss", *PAIR, delta=0.7),
    *loss_rows("KLDivLoss", *SHARES),
    *loss_rows("BCELoss", *SHARES),
    *loss_rows("BCELoss-weight", *SHARES, weight=np.tile(W, 2)[:6]),
    *loss_rows("BCEWithLogitsLoss", PAIR[0], SHARES[1]),
    *loss_rows("BCEWithLogitsLoss-weights", *CLASS_SHARES, weight=W, pos_weight=W[::-1].copy()),
    *loss_rows("CrossEntropyLoss", *CLASSES),
    *loss_rows("CrossEntropyLoss-all-options", *CLASSES, weight=W, ignore_index=1, label_smoothing=0.1),
    *loss_rows("CrossEntropyLoss-maps", *MAPS, weight=W[:3]),
    *loss_rows("CrossEntropyLoss-shares", *CLASS_SHARES, weight=W, label_smoothing=0.2),
    *loss_rows("NLLLoss", *CLASSES),
    *loss_rows("NLLLoss-maps", *MAPS, weight=W[:3], ignore_index=2),
    *loss_rows(SOFTMAX, *CLASS_SHARES, torch="CrossEntropyLoss"),
    *loss_rows(f"{SOFTMAX}-sparse", *CLASSES, torch="CrossEntropyLoss", sparse=True),
    row("SoftmaxCrossEntropyExpand", _expanded, *CLASS_SHARES, ours=lambda *xy: nn.SoftmaxCrossEntropyExpand()(*xy)),
    row(
        *("SoftmaxCrossEntropyExpand-sparse", _expanded, *CLASSES),
        ours=lambda *xy: nn.SoftmaxCrossEntropyExpand(sparse=True)(*xy),
    ),
    row(
        *("WithLossCell", lambda t, x, w, y: t.nn.functional.mse_loss(x @ w.T, y)),
        *(floats(5, 4), floats(3, 4), floats(5, 3)),
        ours=_dense_loss,
    ),
)


# ---- optimizers: five steps with given gradients; results are the parameter after each ----


def optimizer_row(
    key: str, mine: Callable, make: Callable, state: Callable | None = None, bound: float | None = None
) -> Row:
    """mine(params), make(torch.optim, params): optimizers; state(torch, parameter): torch's before step 1."""

    def run(p, gradients):
        parameter = Parameter(np.array(p.asnumpy()), name="weight")
        optimizer, after = mine([parameter]), []
        for gradient in gradients.asnumpy():
            optimizer([gradient])
            after.append(np.array(parameter.asnumpy()))
        return tuple(after)

    def other(t, p, gradients):
        parameter = p.clone().requires_grad_()
        optimizer, after = make(t.optim, [parameter]), []
        if state is not None:
            optimizer.state[parameter] = state(t, parameter)
        for gradient in gradients:
            parameter.grad = gradient.clone()
            optimizer.step()
            after.append(parameter.detach().clone())
        return tuple(after)

    made = row(key, other, floats(3, 4, fixed=True), floats(5, 3, 4, fixed=True), ours=run)
    return replace(made, bound=bound)


def from_ones(t: Any, parameter: Any) -> dict[str, Any]:
    """RMSProp's mean square begins at 1 in MindSpore, at 0 in PyTorch."""
    zeros = t.zeros_like(parameter.detach())
    return {"step": t.tensor(0.0), "square_avg": zeros + 1, "momentum_buffer": zeros.clone(), "grad_avg": zeros.clone()}


# an epsilon that no rounding sees: PyTorch adds it in another place, to the corrected root (Adam) and outside the
# root (RMSProp)
TINY = 1e-30

DECAYED, NESTEROV = {"weight_decay": 0.2}, {"nesterov": True}


def _sgd(*args: Any, **options: Any) -> Callable:
    return lambda o, p: o.SGD(p, *args, **options)


OPTIMIZERS: tuple[Row, ...] = (
    optimizer_row("SGD", lambda p: nn.SGD(p, 0.1), _sgd(0.1)),
    optimizer_row("SGD-momentum", lambda p: nn.SGD(p, 0.1, 0.9, **DECAYED), _sgd(0.1, 0.9, **DECAYED)),
    optimizer_row("SGD-dampening", lambda p: nn.SGD(p, 0.1, 0.9, 0.3), _sgd(0.1, 0.9, 0.3)),
    optimizer_row("SGD-nesterov", lambda p: nn.SGD(p, 0.1, 0.9, **NESTEROV), _sgd(0.1, 0.9, **NESTEROV)),
    optimizer_row("Momentum", lambda p: nn.Momentum(p, 0.1, 0.9, 0.2), _sgd(0.1, 0.9, **DECAYED)),
    optimizer_row(
        "Momentum-nesterov", lambda p: nn.Momentum(p, 0.1, 0.9, use_nesterov=True), _sgd(0.1, 0.9, **NESTEROV)
    ),
    optimizer_row("Adam", lambda p: nn.Adam(p, 0.05, eps=TINY), lambda o, p: o.Adam(p, 0.05, eps=TINY)),
    optimizer_row(
        *("Adam-weight-decay", lambda p: nn.Adam(p, 0.05, 0.8, 0.9, TINY, **DECAYED)),
        lambda o, p: o.Adam(p, 0.05, (0.8, 0.9), TINY, 0.2),
    ),
    optimizer_row(
        *("RMSProp-momentum", lambda p: nn.RMSProp(p, 0.1, 0.8, 0.5, TINY)),
        *(lambda o, p: o.RMSprop(p, 0.1, 0.8, TINY, momentum=0.5), from_ones),
    ),
    optimizer_row(
        *("RMSProp-centered", lambda p: nn.RMSProp(p, 0.1, 0.8, 0.5, TINY, centered=True, **DECAYED)),
        *(lambda o, p: o.RMSprop(p, 0.1, 0.8, TINY, 0.2, 0.5, True), from_ones),
    ),
    optimizer_row(
        "Adagrad", lambda p: nn.Adagrad(p, 0.1, 0.05), lambda o, p: o.Adagrad(p, 0.05, initial_accumulator_value=0.1)
    ),
    optimizer_row(
        *("Adagrad-weight-decay", lambda p: nn.Adagrad(p, 0.1, 0.05, **DECAYED)),
        lambda o, p: o.Adagrad(p, 0.05, 0, 0.2, 0.1),
    ),
    optimizer_row(
        *("AdaMax", lambda p: nn.AdaMax(p, 0.05, 0.8, 0.9, TINY, **DECAYED)),
        lambda o, p: o.Adamax(p, 0.05, (0.8, 0.9), TINY, 0.2),
    ),
    # the mean of the parameters is a state of both, and does not change the parameter; PyTorch keeps eta in float32
    optimizer_row(
        *("ASGD", lambda p: nn.ASGD(p, 0.1, 0.5, 0.6, 2.0, **DECAYED)),
        *(lambda o, p: o.ASGD(p, 0.1, 0.5, 0.6, 2.0, 0.2), None, 2e-8),
    ),
    optimizer_row(
        *("Rprop", lambda p: nn.Rprop(p, 0.1, (0.4, 1.3), (0.05, 0.12))),
        lambda o, p: o.Rprop(p, 0.1, (0.4, 1.3), (0.05, 0.12)),
    ),
    # PyTorch's has no mean of the steps (beta1), and multiplies weight decay by the rate without the parameter's size
    optimizer_row(*("AdaFactor", lambda p: nn.AdaFactor(p, beta1=0.0)), lambda o, p: o.Adafactor(p)),
    optimizer_row(
        *("AdaFactor-decay", lambda p: nn.AdaFactor(p, clip_threshold=1.2, decay_rate=0.6, beta1=0.0)),
        lambda o, p: o.Adafactor(p, beta2_decay=-0.6, d=1.2),
    ),
)

ROWS = LOSSES + OPTIMIZERS
