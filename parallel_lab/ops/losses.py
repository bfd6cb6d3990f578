"""Losses that compare element with element: squared difference, and binary cross-entropy from logits.

The operators reduce nothing, and any dim may be split; what is broadcast (weights) is split as the elements it meets.
A formula (`..._of`), which a function of `ops` and a Cell of `nn` share, is written with the operators and settings of
the loss it receives: those of a Cell, which carry strategies, or plain ones (`FormulaParts`). The catalogue has others.
"""

from __future__ import annotations

import warnings
from types import SimpleNamespace

import numpy as np

from ..base.checks import Errors, choice
from ..base.errors import ArgumentError, message
from .elementwise import float_result
from .machine.operand_checks import floats
from .machine.registry import case, form, gradient, op
from .machine.signature import but_numbers
from .reduce import reduce_mean, reduce_sum
from .spellings import tensor_operand


def _check(operands, **_):
    return floats(operands[0], "the prediction")


RESHAPE = "Reshape one of them: x.reshape(-1) removes a dim of 1, x.reshape(-1, 1) adds it"


def _shapes(*operands):
    return [tuple(getattr(x, "shape", ())) for x in operands]


def _unlike(prediction, target):
    """The fault of shapes that are broadcast where each element of one belongs to an element of the other."""
    first, second = _shapes(prediction, target)
    if first == second:
        return None
    return f"predictions of shape {first} with labels of shape {second}", "Equal shapes", RESHAPE


def _check_pairs(operands, **_):
    return _check(operands) or _unlike(*operands[:2])


def _softplus_of_minus(x):
    """log(1 + exp(-x)) without overflow."""
    return np.log1p(np.exp(-np.abs(x))) + np.maximum(-x, 0)


def _sigmoid_of_minus(x):
    raised = np.exp(-np.abs(x))
    return np.where(x >= 0, raised, 1) / (1 + raised)


@op(
    "...,...,...,...->...",
    name="BCEWithLogitsLoss",
    numbers="weight pos_weight",
    strategy_labels=but_numbers,
    check=_check_pairs,
    dtype=float_result,
    flops=12,
    example=(case((16, 8), (16, 8), (16, 8), (8,)), case((8, 4, 2), (8, 4, 2), (4, 1), (2,))),
)
def bce_with_logits_values(logits, label, weight, pos_weight):
    """Cross-entropy of a sigmoid: weight * ((1 - y) x + (1 + (pos_weight - 1) y) log(1 + exp(-x))), no overflow.

    logits: (...) x, label: (...) y, weight, pos_weight: broadcast to (...) -> (...). Nothing is reduced.
    """
    return weight * ((1 - label) * logits + (1 + (pos_weight - 1) * label) * _softplus_of_minus(logits))


@gradient(bce_with_logits_values)
def bce_with_logits_grad(g, logits, label, weight, pos_weight):
    """Gradient for the logits.  g: (...), the others: broadcast to (...) -> (...)."""
    return g * weight * (1 - label - (1 + (pos_weight - 1) * label) * _sigmoid_of_minus(logits))


@gradient(bce_with_logits_values, "label")
def bce_with_logits_label_grad(g, logits, weight, pos_weight):
    """Gradient for the labels.  g: (...), the others: broadcast to (...) -> (...)."""
    return g * weight * ((pos_weight - 1) * _softplus_of_minus(logits) - logits)


@gradient(bce_with_logits_values, "weight")
def bce_with_logits_weight_grad(g, logits, label, pos_weight):
    """Gradient for the weight.  g: (...), the others: broadcast to (...) -> (...)."""
    return g * ((1 - label) * logits + (1 + (pos_weight - 1) * label) * _softplus_of_minus(logits))


@gradient(bce_with_logits_values, "pos_weight")
def bce_with_logits_pos_weight_grad(g, logits, label, weight):
    """Gradient for pos_weight.  g: (...), the others: broadcast to (...) -> (...)."""
    return g * weight * label * _softplus_of_minus(logits)


# ---- reductions ----


def check_reduction(where, reduction):
    """The reduction; ArgumentError unless it is one of the three."""
    return choice("mean", "sum", "none")(where, "reduction", reduction, Errors(ArgumentError, ArgumentError))


# ---- formulas ----


def reduced(loss, values):
    """Mean or sum over all dims, or the values themselves.  values: (...) -> () or (...)."""
    if loss.reduction == "mean":
        return loss.reduce_mean(values)
    return loss.reduce_sum(values) if loss.reduction == "sum" else values


def _reduced(prim, reduction, values):
    """The values of an operator's class, reduced as it says, split as its first operand is."""
    if check_reduction(prim.name, reduction) == "none":
        return values
    return prim.before(reduce_mean if reduction == "mean" else reduce_sum, values)


@form(bce_with_logits_values, "BCEWithLogitsLoss")
def _(self, logits, label, weight, pos_weight, *, reduction="mean"):
    """Cross-entropy of a sigmoid.  logits, label: (...), weights: broadcast to (...) -> (), or (...) for "none"."""
    return _reduced(self, reduction, self.run(logits, label, weight, pos_weight))


# ---- functions ----


class FormulaParts(SimpleNamespace):
    """Settings, and operators without strategies: what a formula takes instead of a loss Cell."""

    def __init__(self, where, reduction, **settings):
        reduction = check_reduction(where, reduction)
        super().__init__(reduction=reduction, reduce_mean=reduce_mean, reduce_sum=reduce_sum, **settings)

    def get_loss(self, values):
        return reduced(self, values)


def float_operand(value):
    """A list of numbers as a float32 array; anything else as it is."""
    return tensor_operand("loss", "a list", value).astype(np.float32) if isinstance(value, (list, tuple)) else value


def with_broadcast_warning(where, values, prediction, target):
    """`values`, with a warning where (n, 1) and (n,) gave (n, n): every sample compared with the labels of all."""
    shape, first, second = _shapes(values, prediction, target)
    if shape not in (first, second):
        what = f"a prediction of shape {first} and labels of shape {second} are broadcast to {shape}"
        warnings.warn(message(what, where=where, allowed="Equal shapes", hint=RESHAPE), RuntimeWarning, stacklevel=2)
    return values


def mse_of(loss, x, y):
    """Squared difference.  x, y: (...) broadcast -> () or (...)."""
    return loss.get_loss(loss.square(with_broadcast_warning("mse_loss", loss.sub(x, y), x, y)))


def binary_logits_of(loss, x, y):
    """Binary cross-entropy of a sigmoid.  x, y: (...) -> () or (...)."""
    return loss.get_loss(loss.bce_with_logits(x, y, loss.weight, loss.pos_weight))
