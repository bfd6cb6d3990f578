"""Losses as functions, made of operators: of margins, of pairs and triples, of distributions.

    ops.margin_ranking_loss(x1, x2, target, margin=0.5)      mean of max(0, margin - target * (x1 - x2))

Each is a formula of elements or of rows, then reduced; any dim may be split. Forms and defaults: MindSpore, ops.
"""

from __future__ import annotations

import math

from ...base.checks import SHAPE_ERRORS, number
from ...base.errors import ShapeError
from ...ops.activation import relu
from ...ops.elementwise import add, div, maximum, minimum, mul, neg, sub
from ...ops.logic import equal, greater, select
from ...ops.losses import FormulaParts
from ...ops.reduce import reduce_mean
from ...ops.shape import expand_dims
from ...ops.spellings import function, tensor_operand
from ...ops.unary import square
from .activations import log_sigmoid, softplus
from .elementary_functions import exp, log
from .norms import cosine_similarity, lp_norm


def _tensors(where, **given):
    """The values as tensors of one shape. Raises ShapeError."""
    found = {name: tensor_operand(where, name, value) for name, value in given.items()}
    shapes = {name: tuple(x.shape) for name, x in found.items()}
    if len(set(shapes.values())) > 1:
        what = ", ".join(f"{name} of shape {shape}" for name, shape in shapes.items())
        raise ShapeError(what, where=where, allowed="One shape")
    return found.values()


def _reduced(where, reduction, values):
    return FormulaParts(where, reduction).get_loss(values)


def _margin(where, margin, *, least=-math.inf, most=math.inf):
    return number(least, most)(where, "margin", margin, SHAPE_ERRORS)


@function()
def cosine_embedding_loss(input1, input2, target, margin=0.0, reduction="mean"):
    """1 - cos where target is 1, else max(0, cos - margin).  input1, input2: (n, d), target: (n,) -> () or (n,)."""
    where, margin = "cosine_embedding_loss", _margin("cosine_embedding_loss", margin, least=-1, most=1)
    input1, input2 = _tensors(where, input1=input1, input2=input2)
    if len(input1.shape) != 2 or tuple(target.shape) != tuple(input1.shape[:1]):
        what = f"inputs of shape {tuple(input1.shape)} with target of shape {tuple(target.shape)}"
        raise ShapeError(what, where=where, allowed="Inputs (n, d), target (n,)")
    cosine = cosine_similarity(input1, input2, 1, 1e-6)
    return _reduced(where, reduction, select(equal(target, 1), sub(1.0, cosine), relu(sub(cosine, margin))))


@function()
def margin_ranking_loss(input1, input2, target, margin=0.0, reduction="mean"):
    """max(0, margin - target * (input1 - input2)), target 1 or -1.  All: (...) -> () or (...)."""
    where, margin = "margin_ranking_loss", _margin("margin_ranking_loss", margin)
    input1, input2, target = _tensors(where, input1=input1, input2=input2, target=target)
    return _reduced(where, reduction, relu(sub(margin, mul(target, sub(input1, input2)))))


@function()
def soft_margin_loss(input, target, reduction="mean"):
    """log(1 + exp(-target * input)), target 1 or -1.  input, target: (...) -> () or (...)."""
    input, target = _tensors("soft_margin_loss", input=input, target=target)
    return _reduced("soft_margin_loss", reduction, softplus(neg(mul(target, input))))


@function()
def hinge_embedding_loss(inputs, targets, margin=1.0, reduction="mean"):
    """x where target is 1, max(0, margin - x) where it is -1, else 0.  inputs, targets: (...) -> () or (...)."""
    where, margin = "hinge_embedding_loss", _margin("hinge_embedding_loss", margin)
    inputs, targets = _tensors(where, inputs=inputs, targets=targets)
    none = mul(inputs, 0.0)
    far = select(equal(targets, -1), relu(sub(margin, inputs)), none)
    return _reduced(where, reduction, add(select(equal(targets, 1), inputs, none), far))


@function()
def triplet_margin_loss(anchor, positive, negative, margin=1.0, p=2, eps=1e-6, swap=False, reduction="mean"):
    """max(0, margin + d(anchor, positive) - d(anchor, negative)), d(a, b) the p-norm of a - b + eps.

    anchor, positive, negative: (n, d) -> () or (n,)

    swap  the smaller of d(anchor, negative) and d(positive, negative) (Balntas et al. 2016)
    """
    where, margin = "triplet_margin_loss", _margin("triplet_margin_loss", margin)
    eps = number(0)(where, "eps", eps, SHAPE_ERRORS)
    anchor, positive, negative = _tensors(where, anchor=anchor, positive=positive, negative=negative)
    if len(anchor.shape) < 2:
        raise ShapeError(f"tensors of shape {tuple(anchor.shape)}", where=where, allowed="(n, d)")

    def distance(a, b):
        return lp_norm(add(sub(a, b), eps), axis=-1, p=p)

    far = distance(anchor, negative)
    far = minimum(far, distance(positive, negative)) if swap else far
    return _reduced(where, reduction, relu(add(sub(distance(anchor, positive), far), margin)))


@function()
def gaussian_nll_loss(x, target, var, full=False, eps=1e-6, reduction="mean"):
    """(log v + (x - target)^2 / v) / 2 with v = max(var, eps); full: plus log(2 pi) / 2.  All: (...) -> () or (...)."""
    where = "gaussian_nll_loss"
    least = number(0, above=True)(where, "eps", eps, SHAPE_ERRORS)
    x, target = _tensors(where, x=x, target=target)
    var = tensor_operand(where, "var", var)
    if tuple(var.shape) == tuple(x.shape[:-1]) and len(x.shape) > 0:
        var = expand_dims(var, -1)
    var = maximum(var, least)
    values = mul(add(log(var), div(square(sub(x, target)), var)), 0.5)
    return _reduced(where, reduction, add(values, 0.5 * math.log(2 * math.pi)) if full else values)


@function()
def poisson_nll_loss(input, target, log_input=True, full=False, eps=1e-8, reduction="mean"):
    """exp(x) - target * x, or x - target * log(x + eps) without log_input.  input x, target: (...) -> () or (...).

    full  plus t log t - t + log(2 pi t) / 2 for targets t above 1
    """
    where = "poisson_nll_loss"
    least = number(0, above=True)(where, "eps", eps, SHAPE_ERRORS)
    input, target = _tensors(where, input=input, target=target)
    values = sub(exp(input), mul(target, input)) if log_input else sub(input, mul(target, log(add(input, least))))
    if full:
        count = maximum(target, 1.0)  # the logarithm of what is not used stays a number
        more = add(sub(mul(count, log(count)), count), mul(log(mul(count, 2 * math.pi)), 0.5))
        values = add(values, select(greater(target, 1.0), more, mul(more, 0.0)))
    return _reduced(where, reduction, values)


@function()
def multilabel_soft_margin_loss(input, target, weight=None, reduction="mean"):
    """Mean over the classes of binary cross-entropies.  input, target: (n, c), weight: (c,) -> () or (n,)."""
    where = "multilabel_soft_margin_loss"
    input, target = _tensors(where, input=input, target=target)
    values = add(mul(target, log_sigmoid(input)), mul(sub(1.0, target), log_sigmoid(neg(input))))
    values = values if weight is None else mul(values, weight)
    return _reduced(where, reduction, neg(reduce_mean(values, -1)))
