"""Losses that compare element with element: binary cross-entropy, from probabilities and from logits, and the smooth absolute difference.

Nothing is reduced, any dim may be cut; what is broadcast (weights) is cut as the elements it meets.
"""

from __future__ import annotations

import math

import numpy as np

from ..errors import ShapeError, message, shorten
from .elementwise import first_dtype, float_result, unbroadcast
from .registry import case, op

__all__ = ["binary_cross_entropy_values", "bce_with_logits_values", "smooth_l1_values"]

LEAST_LOG = -100.0  # logarithms of probabilities are not let below: a loss of 0 * infinity would be no number (PyTorch, BCELoss)
LEAST_SPREAD = 1e-12  # and neither is x (1 - x), by which the gradient is divided (PyTorch and MindSpore, BCELoss)
_INSIDE = {"low": 0.1, "high": 0.9}


def _check_floats(where, operands, **_):
    if operands[0].dtype.kind != "f":
        raise ShapeError(message(f"the predictions are {operands[0].dtype}", where=where, allowed="Floats"))


def _first_like(dtypes, **_):
    return float_result(dtypes)


def _log(x):
    """Logarithm, not below LEAST_LOG."""
    least, none = x.dtype.type(LEAST_LOG), x <= 0
    return np.where(none, least, np.maximum(np.log(np.where(none, x.dtype.type(1), x)), least))


@op(
    "...,...,...->...",
    name="BinaryCrossEntropy",
    check=_check_floats,
    dtype=_first_like,
    flops=lambda s: 10 * math.prod(vars(s).values()),
    example=(case((16, 8), (16, 8), (16, 8), **_INSIDE), case((8, 4, 2), (8, 4, 2), (4, 1), **_INSIDE)),
)
def binary_cross_entropy_values(logits, labels, weight):
    """-weight * (y log x + (1 - y) log(1 - x)).  logits: (...) probabilities x, labels: (...) y, weight: broadcast to (...) -> (...).

    Logarithms are not let below -100.
    """
    one = logits.dtype.type(1)
    return -weight * (labels * _log(logits) + (one - labels) * _log(one - logits))


@op(infer_fn=lambda shapes: shapes[0], dtype=first_dtype)
def binary_cross_entropy_grad(g, logits, labels, weight):
    """Gradient for the probabilities, before broadcasting is undone.  g, logits, labels: (...), weight: broadcast to (...) -> (...)."""
    least = max(LEAST_SPREAD, np.finfo(logits.dtype).tiny)
    return g * weight * (logits - labels) / np.maximum(logits * (1 - logits), least)


@op(infer_fn=lambda shapes: shapes[0], dtype=first_dtype)
def binary_cross_entropy_label_grad(g, logits, weight):
    """Gradient for the labels.  g, logits: (...), weight: broadcast to (...) -> (...)."""
    return g * weight * (_log(1 - logits) - _log(logits))


@op(infer_fn=lambda shapes: shapes[0], dtype=first_dtype)
def binary_cross_entropy_weight_grad(g, logits, labels):
    """Gradient for the weight, before broadcasting is undone.  g, logits, labels: (...) -> (...)."""
    return -g * (labels * _log(logits) + (1 - labels) * _log(1 - logits))


@binary_cross_entropy_values.vjp
def _(g, out, logits, labels, weight, *, needs):
    return (
        unbroadcast(binary_cross_entropy_grad(g, logits, labels, weight), logits),
        unbroadcast(binary_cross_entropy_label_grad(g, logits, weight), labels) if needs[1] else None,
        unbroadcast(binary_cross_entropy_weight_grad(g, logits, labels), weight) if needs[2] else None,
    )


def _softplus_of_minus(x):
    """log(1 + exp(-x)) without overflow."""
    return np.log1p(np.exp(-np.abs(x))) + np.maximum(-x, 0)


def _sigmoid_of_minus(x):
    raised = np.exp(-np.abs(x))
    return np.where(x >= 0, raised, 1) / (1 + raised)


@op(
    "...,...,...,...->...",
    name="BCEWithLogitsLoss",
    check=_check_floats,
    dtype=_first_like,
    flops=lambda s: 12 * math.prod(vars(s).values()),
    example=(case((16, 8), (16, 8), (16, 8), (8,)), case((8, 4, 2), (8, 4, 2), (4, 1), (2,))),
)
def bce_with_logits_values(logits, label, weight, pos_weight):
    """Binary cross-entropy of a sigmoid: weight * ((1 - y) x + (1 + (pos_weight - 1) y) log(1 + exp(-x))).

    logits: (...) x, label: (...) y, weight, pos_weight: broadcast to (...) -> (...). Nothing is reduced, and no x overflows.
    """
    return weight * ((1 - label) * logits + (1 + (pos_weight - 1) * label) * _softplus_of_minus(logits))


@op(infer_fn=lambda shapes: shapes[0], dtype=first_dtype)
def bce_with_logits_grad(g, logits, label, weight, pos_weight):
    """Gradient for the logits, before broadcasting is undone.  g: (...), the others: broadcast to (...) -> (...)."""
    return g * weight * (1 - label - (1 + (pos_weight - 1) * label) * _sigmoid_of_minus(logits))


@op(infer_fn=lambda shapes: shapes[0], dtype=first_dtype)
def bce_with_logits_label_grad(g, logits, weight, pos_weight):
    """Gradient for the labels, before broadcasting is undone.  g: (...), the others: broadcast to (...) -> (...)."""
    return g * weight * ((pos_weight - 1) * _softplus_of_minus(logits) - logits)


@op(infer_fn=lambda shapes: shapes[0], dtype=first_dtype)
def bce_with_logits_weight_grad(g, logits, label, pos_weight):
    """Gradient for the weight, before broadcasting is undone.  g: (...), the others: broadcast to (...) -> (...)."""
    return g * ((1 - label) * logits + (1 + (pos_weight - 1) * label) * _softplus_of_minus(logits))


@op(infer_fn=lambda shapes: shapes[0], dtype=first_dtype)
def bce_with_logits_pos_weight_grad(g, logits, label, weight):
    """Gradient for pos_weight, before broadcasting is undone.  g: (...), the others: broadcast to (...) -> (...)."""
    return g * weight * label * _softplus_of_minus(logits)


@bce_with_logits_values.vjp
def _(g, out, logits, label, weight, pos_weight, *, needs):
    return (
        unbroadcast(bce_with_logits_grad(g, logits, label, weight, pos_weight), logits),
        unbroadcast(bce_with_logits_label_grad(g, logits, weight, pos_weight), label) if needs[1] else None,
        unbroadcast(bce_with_logits_weight_grad(g, logits, label, pos_weight), weight) if needs[2] else None,
        unbroadcast(bce_with_logits_pos_weight_grad(g, logits, label, weight), pos_weight) if needs[3] else None,
    )


def _check_smooth(where, operands, *, beta):
    _check_floats(where, operands)
    if isinstance(beta, bool) or not isinstance(beta, (int, float)) or not 0 < beta < math.inf:
        raise ShapeError(message(f"beta={shorten(beta)}", where=where, allowed="A number above 0"))


@op("...,...->...", name="SmoothL1Loss", check=_check_smooth, dtype=_first_like, example=case((16, 8), (16, 8), beta=0.7))
def smooth_l1_values(prediction, target, *, beta=1.0):
    """0.5 d^2 / beta where |d| < beta, |d| - 0.5 beta elsewhere, with d = prediction - target.  prediction, target: (...) -> (...)."""
    size = np.abs(prediction - target)
    return np.where(size < beta, size * size * (0.5 / beta), size - 0.5 * beta).astype(size.dtype, copy=False)


@op(infer_fn=lambda shapes, **_: shapes[0], dtype=first_dtype)
def smooth_l1_grad(g, prediction, target, *, beta):
    """Gradient for the prediction.  g: (...), prediction, target: broadcast to (...) -> (...)."""
    return g * np.clip((prediction - target) / beta, -1, 1)


@smooth_l1_values.vjp
def _(g, out, prediction, target, *, beta):
    grad = smooth_l1_grad(g, prediction, target, beta=beta)
    return unbroadcast(grad, prediction), unbroadcast(-grad, target)
