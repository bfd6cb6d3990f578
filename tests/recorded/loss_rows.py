"""Rows for losses and optimizers: ours and PyTorch's. See `layer_rows.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from parallel_lab import nn
from parallel_lab.nn.tensor.tensor import Parameter
from tests.recorded.layer_rows import INSIDE, fitted
from tests.recorded.torch_table import Row, Spec, floats, given, row

# ---- losses ----


def loss_rows(
    name: str, mine: Callable, make: Callable, *inputs: Spec, label: str = "", whole: bool = False
) -> tuple[Row, ...]:
    """One row per reduction. mine(reduction) and make(torch, reduction) give the losses; whole: the labels are class
    numbers.
    """
    rows = []
    for reduction in ("mean", "sum", "none"):
        rows.append(
            row(
                *(name, lambda t, x, y, r=reduction: make(t, r)(x, y.long() if whole else y), *inputs),
                label=f"{label}-{reduction}".strip("-"),
                ours=lambda x, y, r=reduction: mine(r)(x, y),
            )
        )
    return tuple(rows)


PAIR = (floats(4, 6), floats(4, 6))
SHARES = (floats(4, 6, **INSIDE), floats(4, 6, **INSIDE))
CLASSES = (floats(6, 4), given(0, 3, 1, 2, 1, 0))
MAPS = (floats(2, 3, 2, 2), given(((0, 1), (2, 1)), ((1, 2), (0, 0))))
W = (0.5, 1.5, 0.25, 2.0)


def _weight(t: Any) -> Any:
    return t.tensor(W, dtype=t.float64)


LOSSES: tuple[Row, ...] = (
    *loss_rows("MSELoss", lambda r: nn.MSELoss(r), lambda t, r: t.nn.MSELoss(reduction=r), *PAIR),
    *loss_rows("L1Loss", lambda r: nn.L1Loss(r), lambda t, r: t.nn.L1Loss(reduction=r), *PAIR),
    *loss_rows(
        "SmoothL1Loss", lambda r: nn.SmoothL1Loss(0.7, r), lambda t, r: t.nn.SmoothL1Loss(reduction=r, beta=0.7), *PAIR
    ),
    *loss_rows("BCELoss", lambda r: nn.BCELoss(None, r), lambda t, r: t.nn.BCELoss(reduction=r), *SHARES),
    *loss_rows(
        *(
            "BCELoss",
            lambda r: nn.BCELoss(np.array(W * 2)[:6], r),
            lambda t, r: t.nn.BCELoss(t.tensor((W * 2)[:6], dtype=t.float64), reduction=r),
        ),
        *SHARES,
        label="weight",
    ),
    *loss_rows(
        "BCEWithLogitsLoss",
        lambda r: nn.BCEWithLogitsLoss(r),
        lambda t, r: t.nn.BCEWithLogitsLoss(reduction=r),
        PAIR[0],
        SHARES[1],
    ),
    *loss_rows(
        "BCEWithLogitsLoss",
        lambda r: nn.BCEWithLogitsLoss(r, np.array(W), np.array(W[::-1])),
        lambda t, r: t.nn.BCEWithLogitsLoss(_weight(t), reduction=r, pos_weight=_weight(t).flip(0)),
        *(floats(6, 4), floats(6, 4, **INSIDE)),
        label="weights",
    ),
    *loss_rows(
        "CrossEntropyLoss",
        lambda r: nn.CrossEntropyLoss(None, None, r),
        lambda t, r: t.nn.CrossEntropyLoss(reduction=r),
        *CLASSES,
        whole=True,
    ),
    *loss_rows(
        "CrossEntropyLoss",
        lambda r: nn.CrossEntropyLoss(np.array(W), 1, r, 0.1),
        lambda t, r: t.nn.CrossEntropyLoss(_weight(t), ignore_index=1, reduction=r, label_smoothing=0.1),
        *CLASSES,
        label="all-options",
        whole=True,
    ),
    *loss_rows(
        "CrossEntropyLoss",
        lambda r: nn.CrossEntropyLoss(np.array(W[:3]), None, r),
        lambda t, r: t.nn.CrossEntropyLoss(_weight(t)[:3], reduction=r),
        *MAPS,
        label="maps",
        whole=True,
    ),
    *loss_rows(
        "CrossEntropyLoss",
        lambda r: nn.CrossEntropyLoss(np.array(W), None, r, 0.2),
        lambda t, r: t.nn.CrossEntropyLoss(_weight(t), reduction=r, label_smoothing=0.2),
        *(floats(6, 4), floats(6, 4, **INSIDE)),
        label="shares",
    ),
    *loss_rows(
        "NLLLoss", lambda r: nn.NLLLoss(None, None, r), lambda t, r: t.nn.NLLLoss(reduction=r), *CLASSES, whole=True
    ),
    *loss_rows(
        "NLLLoss",
        lambda r: nn.NLLLoss(np.array(W[:3]), 2, r),
        lambda t, r: t.nn.NLLLoss(_weight(t)[:3], ignore_index=2, reduction=r),
        *MAPS,
        label="maps",
        whole=True,
    ),
    *loss_rows(
        *("SoftmaxCrossEntropyWithLogits", lambda r: nn.SoftmaxCrossEntropyWithLogits(reduction=r)),
        *(lambda t, r: t.nn.CrossEntropyLoss(reduction=r), floats(6, 4), floats(6, 4, **INSIDE)),
    ),
    *loss_rows(
        *(
            "SoftmaxCrossEntropyWithLogits",
            lambda r: nn.SoftmaxCrossEntropyWithLogits(True, r),
            lambda t, r: t.nn.CrossEntropyLoss(reduction=r),
        ),
        *CLASSES,
        label="sparse",
        whole=True,
    ),
    row(
        *(
            "SoftmaxCrossEntropyExpand",
            lambda t, x, y: t.nn.functional.cross_entropy(x, y),
            floats(6, 4),
            floats(6, 4, **INSIDE),
        ),
        ours=lambda x, y: nn.SoftmaxCrossEntropyExpand()(x, y),
    ),
    row(
        *("SoftmaxCrossEntropyExpand", lambda t, x, y: t.nn.functional.cross_entropy(x, y.long()), *CLASSES),
        label="sparse",
        ours=lambda x, y: nn.SoftmaxCrossEntropyExpand(sparse=True)(x, y),
    ),
    row(
        *(
            "WithLossCell",
            lambda t, x, w, y: t.nn.functional.mse_loss(x @ w.T, y),
            floats(5, 4),
            floats(3, 4),
            floats(5, 3),
        ),
        ours=lambda x, w, y: nn.WithLossCell(fitted(nn.Dense(4, 3, has_bias=False), ["weight"], [w]), nn.MSELoss())(
            x, y
        ),
    ),
)


# ---- optimizers: five steps with given gradients; results are the parameter after each ----


def optimizer_row(name: str, mine: Callable, make: Callable, label: str = "", state: Callable | None = None) -> Row:
    """mine(params) and make(torch.optim, params) give the optimizers; state(torch, parameter): torch's state before the
    first step.
    """

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

    return row(name, other, floats(3, 4, fixed=True), floats(5, 3, 4, fixed=True), label=label, ours=run)


def from_ones(t: Any, parameter: Any) -> dict[str, Any]:
    """RMSProp's mean square begins at 1 in MindSpore, at 0 in PyTorch."""
    zeros = t.zeros_like(parameter.detach())
    return {"step": t.tensor(0.0), "square_avg": zeros + 1, "momentum_buffer": zeros.clone(), "grad_avg": zeros.clone()}


# an epsilon that no rounding sees: PyTorch adds it in another place, beside the corrected root (Adam) and outside the
# root (RMSProp)
TINY = 1e-30

OPTIMIZERS: tuple[Row, ...] = (
    optimizer_row("SGD", lambda p: nn.SGD(p, 0.1), lambda o, p: o.SGD(p, 0.1)),
    optimizer_row(
        "SGD",
        lambda p: nn.SGD(p, 0.1, 0.9, weight_decay=0.2),
        lambda o, p: o.SGD(p, 0.1, 0.9, weight_decay=0.2),
        "momentum",
    ),
    optimizer_row("SGD", lambda p: nn.SGD(p, 0.1, 0.9, 0.3), lambda o, p: o.SGD(p, 0.1, 0.9, 0.3), "dampening"),
    optimizer_row(
        "SGD", lambda p: nn.SGD(p, 0.1, 0.9, nesterov=True), lambda o, p: o.SGD(p, 0.1, 0.9, nesterov=True), "nesterov"
    ),
    optimizer_row(
        "Momentum", lambda p: nn.Momentum(p, 0.1, 0.9, 0.2), lambda o, p: o.SGD(p, 0.1, 0.9, weight_decay=0.2)
    ),
    optimizer_row(
        "Momentum",
        lambda p: nn.Momentum(p, 0.1, 0.9, use_nesterov=True),
        lambda o, p: o.SGD(p, 0.1, 0.9, nesterov=True),
        "nesterov",
    ),
    optimizer_row("Adam", lambda p: nn.Adam(p, 0.05, eps=TINY), lambda o, p: o.Adam(p, 0.05, eps=TINY)),
    optimizer_row(
        *(
            "Adam",
            lambda p: nn.Adam(p, 0.05, 0.8, 0.9, TINY, weight_decay=0.2),
            lambda o, p: o.Adam(p, 0.05, (0.8, 0.9), TINY, 0.2),
            "weight-decay",
        ),
    ),
    optimizer_row(
        "RMSProp",
        lambda p: nn.RMSProp(p, 0.1, 0.8, 0.5, TINY),
        lambda o, p: o.RMSprop(p, 0.1, 0.8, TINY, momentum=0.5),
        "momentum",
        from_ones,
    ),
    optimizer_row(
        *("RMSProp", lambda p: nn.RMSProp(p, 0.1, 0.8, 0.5, TINY, centered=True, weight_decay=0.2)),
        *(lambda o, p: o.RMSprop(p, 0.1, 0.8, TINY, 0.2, 0.5, True), "centered", from_ones),
    ),
    optimizer_row(
        "Adagrad", lambda p: nn.Adagrad(p, 0.1, 0.05), lambda o, p: o.Adagrad(p, 0.05, initial_accumulator_value=0.1)
    ),
    optimizer_row(
        *(
            "Adagrad",
            lambda p: nn.Adagrad(p, 0.1, 0.05, weight_decay=0.2),
            lambda o, p: o.Adagrad(p, 0.05, 0, 0.2, 0.1),
            "weight-decay",
        ),
    ),
)

ROWS = LOSSES + OPTIMIZERS
