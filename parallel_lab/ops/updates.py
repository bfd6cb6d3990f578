"""What update rules compute besides a moving mean: on one rank's slice, without gradient and strategy (`update_op`)."""

import numpy as np

from .elementwise import update_op
from .machine.registry import op


@update_op
def descend(parameter, step, rate):
    """parameter - step * rate.  parameter, step: (...), rate: () -> (...)."""
    return parameter - np.multiply(step, rate, dtype=parameter.dtype)


@update_op
def descend_ahead(parameter, mean, x, rate, *, keep, add):
    """parameter - (mean * keep + x * add) * rate.  parameter, mean, x: (...), rate: () -> (...)."""
    return parameter - np.multiply(mean * keep + x * add, rate, dtype=parameter.dtype)


@update_op
def moving_square(mean, x, *, keep, add):
    """mean * keep + x^2 * add.  mean, x: (...) -> (...)."""
    return mean * keep + x * x * add


@update_op
def descend_by_root(parameter, step, square, rate, *, eps):
    """parameter - step * rate / (sqrt(square) + eps).  parameter, step, square: (...), rate: () -> (...)."""
    return parameter - step * rate / (np.sqrt(square) + eps)


@update_op
def descend_decayed(parameter, step, square, rate, *, eps, decay):
    """parameter - (step / (sqrt(square) + eps) + decay * parameter) * rate.  All (...), rate: () -> (...)."""
    down = step / (np.sqrt(square) + eps)
    if decay:
        down += parameter * decay
    return parameter - np.multiply(down, rate, dtype=parameter.dtype)


@op(result_shape=0)
def norm_ratio(top, bottom):
    """top / bottom where both norms are above 0, else 1.  top, bottom: () -> ()."""
    return np.divide(top, bottom) if top > 0 and bottom > 0 else np.ones((), top.dtype)
