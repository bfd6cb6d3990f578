"""One step of an update rule as an operator that assigns, for optimizers written by hand:

    adam(var, m, v, beta1_power, beta2_power, lr, beta1, beta2, epsilon, gradient)   # var, m, v have new values

The first operands are Parameters (or what a compiled step has made of them); gradients and states are (...) as `var`,
rates and the like numbers or () tensors. Parameters in half precision are worked out in float32. Keyword-only arguments
are those of the operator's class; what is returned is what MindSpore's operator returns: the Parameters, or `var`.

Sparse forms take rows of the gradient and their indices: rows that come twice are added up first. Rules: MindSpore 2.6,
classes of ops.operations, and the formulas of their documentation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ... import ops
from ...nn.optim.global_norm import wide
from ...nn.tensor.tensor import Tensor


def _given(targets: tuple[Any, ...], *values: Any) -> tuple[Any, ...]:
    """The targets after each was given its value, in its own dtype."""
    return tuple(ops.assign(t, ops.cast(value, str(t.dtype))) for t, value in zip(targets, values, strict=True))


def _shrunk(x: Any, by: Any) -> Any:
    """x, nearer to 0 by so much, at most to 0."""
    return ops.sign(x) * ops.maximum(ops.abs(x) - by, 0.0)


# ---- new values from old ones ----


def _adam(var, m, v, beta1_power, beta2_power, lr, beta1, beta2, epsilon, gradient, *, use_nesterov=False):
    g, rate = wide(gradient), lr * (1 - beta2_power) ** 0.5 / (1 - beta1_power)
    m, v = wide(m) * beta1 + g * (1 - beta1), wide(v) * beta2 + g * g * (1 - beta2)
    step = m * beta1 + g * (1 - beta1) if use_nesterov else m
    return wide(var) - step * rate / (ops.sqrt(v) + epsilon), m, v


def _adagrad(var, accum, lr, grad, *, epsilon=0.0, update_slots=True):
    g = wide(grad)
    total = wide(accum) + g * g if update_slots else wide(accum)
    return wide(var) - g * lr / (ops.sqrt(total) + epsilon), total


def _ftrl(var, accum, linear, grad, lr, l1, l2, lr_power):
    g, old = wide(grad), wide(accum)
    new = old + g * g
    root, before = new ** (-lr_power), old ** (-lr_power)
    linear = wide(linear) + g - (root - before) / lr * wide(var)
    return -_shrunk(linear, l1) / (root / lr + 2 * l2), new, linear


def _proximal_adagrad(var, accum, lr, l1, l2, grad):
    g = wide(grad)
    total = wide(accum) + g * g
    return _shrunk(wide(var) - g * lr / ops.sqrt(total), lr * l1) / (1 + lr * l2), total


def _of_rows(rule: Callable, count: int, operands: tuple[Any, ...], gradient: Any, indices: Any, lazy: bool) -> Any:
    """The new values of the first `count` operands for rows of a gradient; lazy: of those rows alone."""
    targets, like = operands[:count], ops.zeros_like(wide(operands[0]))
    dense = ops.tensor_scatter_add(like, ops.expand_dims(indices, 1), wide(gradient))
    new = rule(*operands, dense)
    if lazy:
        ones = ops.ones_like(ops.cast(indices, "float32"))
        hits = ops.tensor_scatter_add(ops.sum(like, tuple(range(1, like.ndim))) * 0, ops.expand_dims(indices, 1), ones)
        met = ops.reshape(hits, (-1, *(1,) * (like.ndim - 1))) > 0
        new = tuple(ops.where(met, after, wide(before)) for after, before in zip(new, targets, strict=True))
    return _given(targets, *new)


# ---- the operators ----


def adam(
    var, m, v, beta1_power, beta2_power, lr, beta1, beta2, epsilon, gradient, *, use_locking=False, use_nesterov=False
):
    """m = beta1 m + (1 - beta1) g, v = beta2 v + (1 - beta2) g^2,
    var -= lr sqrt(1 - beta2_power) / (1 - beta1_power) m / (sqrt(v) + epsilon). Returns (var, m, v).
    """
    numbers = (beta1_power, beta2_power, lr, beta1, beta2, epsilon)
    return _given((var, m, v), *_adam(var, m, v, *numbers, gradient, use_nesterov=use_nesterov))


def adam_no_update_param(
    m, v, beta1_power, beta2_power, lr, beta1, beta2, epsilon, gradient, *, use_locking=False, use_nesterov=False
):
    """`adam` without var: m and v have new values; returns what is to be added to it."""
    zero, numbers = ops.zeros_like(wide(gradient)), (beta1_power, beta2_power, lr, beta1, beta2, epsilon)
    change, *new = _adam(zero, m, v, *numbers, gradient, use_nesterov=use_nesterov)
    _given((m, v), *new)
    return ops.cast(change, str(gradient.dtype))


def adam_weight_decay(var, m, v, lr, beta1, beta2, epsilon, decay, gradient, *, use_locking=False):
    """As `adam` without correction, var -= lr (m / (sqrt(v) + epsilon) + decay var). Returns (var, m, v)."""
    g = wide(gradient)
    new_m, new_v = wide(m) * beta1 + g * (1 - beta1), wide(v) * beta2 + g * g * (1 - beta2)
    down = new_m / (ops.sqrt(new_v) + epsilon) + wide(var) * decay
    return _given((var, m, v), wide(var) - down * lr, new_m, new_v)


def apply_adam_with_amsgrad(
    var, m, v, vhat, beta1_power, beta2_power, lr, grad, *, beta1=0.9, beta2=0.999, epsilon=1e-8, use_locking=False
):
    """`adam` that divides by the root of the largest v so far, vhat. Returns (var, m, v, vhat)."""
    return apply_adam_with_amsgrad_v2(var, m, v, vhat, beta1_power, beta2_power, lr, beta1, beta2, epsilon, grad)


def apply_adam_with_amsgrad_v2(
    var, m, v, vhat, beta1_power, beta2_power, lr, beta1, beta2, epsilon, grad, *, use_locking=False
):
    """`apply_adam_with_amsgrad` with beta1, beta2 and epsilon as operands."""
    g, rate = wide(grad), lr * (1 - beta2_power) ** 0.5 / (1 - beta1_power)
    new_m, new_v = wide(m) * beta1 + g * (1 - beta1), wide(v) * beta2 + g * g * (1 - beta2)
    top = ops.maximum(wide(vhat), new_v)
    return _given((var, m, v, vhat), wide(var) - new_m * rate / (ops.sqrt(top) + epsilon), new_m, new_v, top)


def apply_momentum(
    variable,
    accumulation,
    learning_rate,
    gradient,
    momentum,
    *,
    use_nesterov=False,
    use_locking=False,
    gradient_scale=1.0,
):
    """accumulation = momentum accumulation + g, variable -= learning_rate accumulation; with use_nesterov -=
    learning_rate (g + momentum accumulation). Returns variable.
    """
    g = wide(gradient) * gradient_scale
    total = wide(accumulation) * momentum + g
    step = g + total * momentum if use_nesterov else total
    return _given((variable, accumulation), wide(variable) - step * learning_rate, total)[0]


def fused_weight_scale_apply_momentum(
    weight_decay, loss_scale, variable, accumulation, learning_rate, gradient, momentum
):
    """`apply_momentum` of loss_scale gradient + weight_decay variable. Returns variable."""
    g = wide(gradient) * loss_scale + wide(variable) * weight_decay
    return apply_momentum(variable, accumulation, learning_rate, g, momentum)


def apply_keras_momentum(var, accum, lr, grad, momentum, *, use_locking=False, use_nesterov=False):
    """accum = momentum accum - lr g, var += accum; with use_nesterov += momentum accum - lr g. Returns (var, accum)."""
    g = wide(grad) * lr
    total = wide(accum) * momentum - g
    return _given((var, accum), wide(var) + (total * momentum - g if use_nesterov else total), total)


def sgd(parameters, gradient, learning_rate, accum, momentum, stat, *, dampening=0.0, weight_decay=0.0, nesterov=False):
    """g += weight_decay parameters; with momentum accum = momentum accum + (1 - dampening) g, or g where stat is above
    0, as in the first step, after which it is 0; parameters -= learning_rate accum. Returns parameters.
    """
    g = wide(gradient) + wide(parameters) * weight_decay
    moves = wide(accum) * 0 + momentum > 0
    total = ops.where(wide(stat) > 0, g, wide(accum) * momentum + g * (1 - dampening))
    step = ops.where(moves, g + total * momentum if nesterov else total, g)
    values = wide(parameters) - step * learning_rate, ops.where(moves, total, wide(accum))
    return _given((parameters, accum, stat), *values, ops.where(moves, wide(stat) * 0, wide(stat)))[0]


def lars_update(
    weight,
    gradient,
    norm_weight,
    norm_gradient,
    weight_decay,
    learning_rate,
    *,
    epsilon=1e-5,
    hyperpara=0.001,
    use_clip=False,
):
    """gradient + weight_decay weight, times hyperpara |w| / (|g| + weight_decay |w| + epsilon); use_clip: at most
    learning_rate, divided by it. norm_weight, norm_gradient: sums of squares, () -> (...) of the gradient.
    """
    size, slope = norm_weight**0.5, norm_gradient**0.5
    trust = size * hyperpara / (slope + size * weight_decay + epsilon)
    trust = ops.clamp(trust / learning_rate, 0.0, 1.0) if use_clip else trust
    return (gradient + weight * weight_decay) * trust


def apply_adagrad(var, accum, lr, grad, *, update_slots=True):
    """accum += g^2, var -= lr g / sqrt(accum). Returns (var, accum)."""
    return _given((var, accum), *_adagrad(var, accum, lr, grad, update_slots=update_slots))


def apply_adagrad_v2(var, accum, lr, grad, *, epsilon, update_slots=True):
    """accum += g^2, var -= lr g / (sqrt(accum) + epsilon). Returns (var, accum)."""
    return _given((var, accum), *_adagrad(var, accum, lr, grad, epsilon=epsilon, update_slots=update_slots))


def apply_adagrad_da(
    var, gradient_accumulator, gradient_squared_accumulator, grad, lr, l1, l2, global_step, *, use_locking=False
):
    """Sums of g and g^2; var = -lr (sum, nearer to 0 by l1 global_step) / (l2 global_step lr + sqrt(sum of squares)).
    Returns (var, gradient_accumulator, gradient_squared_accumulator).
    """
    g = wide(grad)
    total, squares = wide(gradient_accumulator) + g, wide(gradient_squared_accumulator) + g * g
    new = -_shrunk(total, l1 * global_step) * lr / (ops.sqrt(squares) + l2 * global_step * lr)
    return _given((var, gradient_accumulator, gradient_squared_accumulator), new, total, squares)


def apply_adadelta(var, accum, accum_update, lr, rho, epsilon, grad):
    """accum = rho accum + (1 - rho) g^2, u = sqrt(accum_update + epsilon) / sqrt(accum + epsilon) g, accum_update = rho
    accum_update + (1 - rho) u^2, var -= lr u. Returns (var, accum, accum_update).
    """
    g = wide(grad)
    squares = wide(accum) * rho + g * g * (1 - rho)
    step = ops.sqrt(wide(accum_update) + epsilon) / ops.sqrt(squares + epsilon) * g
    return _given(
        (var, accum, accum_update), wide(var) - step * lr, squares, wide(accum_update) * rho + step * step * (1 - rho)
    )


def apply_ada_max(var, m, v, beta1_power, lr, beta1, beta2, epsilon, grad):
    """m as in `adam`, v = max(beta2 v, |g|), var -= lr / (1 - beta1_power) m / (v + epsilon). Returns (var, m, v)."""
    g = wide(grad)
    mean, top = wide(m) * beta1 + g * (1 - beta1), ops.maximum(wide(v) * beta2, ops.abs(g))
    return _given((var, m, v), wide(var) - mean * (lr / (1 - beta1_power)) / (top + epsilon), mean, top)


def apply_add_sign(var, m, lr, alpha, sign_decay, beta, grad):
    """m = beta m + (1 - beta) g, var -= lr (alpha + sign_decay sign(g) sign(m)) g. Returns (var, m)."""
    g = wide(grad)
    mean = wide(m) * beta + g * (1 - beta)
    return _given((var, m), wide(var) - (ops.sign(g) * ops.sign(mean) * sign_decay + alpha) * g * lr, mean)


def apply_power_sign(var, m, lr, logbase, sign_decay, beta, grad):
    """m = beta m + (1 - beta) g, var -= lr exp(logbase sign_decay sign(g) sign(m)) g. Returns (var, m)."""
    g = wide(grad)
    mean = wide(m) * beta + g * (1 - beta)
    return _given((var, m), wide(var) - ops.exp(ops.sign(g) * ops.sign(mean) * (logbase * sign_decay)) * g * lr, mean)


def apply_gradient_descent(var, alpha, delta):
    """var -= alpha delta. Returns var."""
    return _given((var,), wide(var) - wide(delta) * alpha)[0]


def apply_proximal_gradient_descent(var, alpha, l1, l2, delta):
    """var - alpha delta, nearer to 0 by alpha l1, divided by 1 + alpha l2. Returns var."""
    return _given((var,), _shrunk(wide(var) - wide(delta) * alpha, alpha * l1) / (1 + alpha * l2))[0]


def apply_proximal_adagrad(var, accum, lr, l1, l2, grad, *, use_locking=False):
    """accum += g^2; var - lr g / sqrt(accum), nearer to 0 by lr l1, divided by 1 + lr l2. Returns (var, accum)."""
    return _given((var, accum), *_proximal_adagrad(var, accum, lr, l1, l2, grad))


def apply_rms_prop(var, mean_square, moment, learning_rate, grad, decay, momentum, epsilon, *, use_locking=False):
    """mean_square = decay mean_square + (1 - decay) g^2, moment = momentum moment + learning_rate g /
    sqrt(mean_square + epsilon), var -= moment. Returns var.
    """
    g = wide(grad)
    squares = wide(mean_square) * decay + g * g * (1 - decay)
    step = wide(moment) * momentum + g * learning_rate / ops.sqrt(squares + epsilon)
    return _given((var, mean_square, moment), wide(var) - step, squares, step)[0]


def apply_centered_rms_prop(
    var, mean_gradient, mean_square, moment, grad, learning_rate, decay, momentum, epsilon, *, use_locking=False
):
    """`apply_rms_prop` with mean_square - mean_gradient^2 below the root. Returns var."""
    g = wide(grad)
    mean, squares = (wide(old) * decay + x * (1 - decay) for old, x in ((mean_gradient, g), (mean_square, g * g)))
    step = wide(moment) * momentum + g * learning_rate / ops.sqrt(squares - mean * mean + epsilon)
    return _given((var, mean_gradient, mean_square, moment), wide(var) - step, mean, squares, step)[0]


def apply_ftrl(var, accum, linear, grad, lr, l1, l2, lr_power, *, use_locking=False):
    """Follow the regularized leader: see nn.FTRL. Returns var."""
    return _given((var, accum, linear), *_ftrl(var, accum, linear, grad, lr, l1, l2, lr_power))[0]


# ---- of rows ----


def _without_values(count: int) -> tuple[Tensor, ...]:
    """What the fused sparse operators return: one number each, without meaning."""
    return (Tensor(np.zeros(1, np.float32)),) * count


def _fused_sparse_adam(name: str, text: str, lazy: bool) -> Callable[..., tuple[Tensor, ...]]:
    def fused(
        var,
        m,
        v,
        beta1_power,
        beta2_power,
        lr,
        beta1,
        beta2,
        epsilon,
        gradient,
        indices,
        *,
        use_locking=False,
        use_nesterov=False,
    ):
        operands = (var, m, v, beta1_power, beta2_power, lr, beta1, beta2, epsilon)
        _of_rows(lambda *all_: _adam(*all_, use_nesterov=use_nesterov), 3, operands, gradient, indices, lazy=lazy)
        return _without_values(3)

    fused.__name__, fused.__doc__ = name, f"{text} gradient: (n, ...), indices: (n,)."
    return fused


fused_sparse_adam = _fused_sparse_adam("fused_sparse_adam", "`adam`; all moments decay.", lazy=False)
fused_sparse_lazy_adam = _fused_sparse_adam("fused_sparse_lazy_adam", "`adam` of these rows alone.", lazy=True)


def sparse_apply_ftrl(var, accum, linear, grad, indices, *, lr, l1, l2, lr_power, use_locking=False):
    """`apply_ftrl` of these rows alone. grad: (n, ...), indices: (n,). Returns (var, accum, linear)."""

    def rule(var, accum, linear, grad):
        return _ftrl(var, accum, linear, grad, lr, l1, l2, lr_power)

    return _of_rows(rule, 3, (var, accum, linear), grad, indices, lazy=True)


def fused_sparse_ftrl(var, accum, linear, grad, indices, *, lr, l1, l2, lr_power, use_locking=False):
    """`sparse_apply_ftrl`, which returns numbers without meaning."""
    sparse_apply_ftrl(var, accum, linear, grad, indices, lr=lr, l1=l1, l2=l2, lr_power=lr_power)
    return _without_values(3)


def sparse_apply_proximal_adagrad(var, accum, lr, l1, l2, grad, indices, *, use_locking=False):
    """`apply_proximal_adagrad` of these rows alone. grad: (n, ...), indices: (n,). Returns (var, accum)."""
    return _of_rows(_proximal_adagrad, 2, (var, accum, lr, l1, l2), grad, indices, lazy=True)


def fused_sparse_proximal_adagrad(var, accum, lr, l1, l2, grad, indices, *, use_locking=False):
    """`sparse_apply_proximal_adagrad`, which returns numbers without meaning."""
    sparse_apply_proximal_adagrad(var, accum, lr, l1, l2, grad, indices)
    return _without_values(2)


def sparse_apply_adagrad(var, accum, grad, indices, *, lr, update_slots=True, use_locking=False):
    """`apply_adagrad` of these rows alone. grad: (n, ...), indices: (n,). Returns (var, accum)."""
    return sparse_apply_adagrad_v2(var, accum, grad, indices, lr=lr, epsilon=0.0, update_slots=update_slots)


def sparse_apply_adagrad_v2(var, accum, grad, indices, *, lr, epsilon, use_locking=False, update_slots=True):
    """`apply_adagrad_v2` of these rows alone. grad: (n, ...), indices: (n,). Returns (var, accum)."""

    def rule(var, accum, grad):
        return _adagrad(var, accum, lr, grad, epsilon=epsilon, update_slots=update_slots)

    return _of_rows(rule, 2, (var, accum), grad, indices, lazy=True)
