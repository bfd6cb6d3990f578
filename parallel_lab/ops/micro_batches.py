"""What a compiled network needs besides the operators that its author wrote.

The borders of micro-batches: the rows of one, and sums over all. The program is written down once and run for each
micro-batch, so the number of the one that runs is an operand. Where the two sides of an `if` on a tensor meet, and
where a `while` on one goes on or ends.
"""

import numpy as np

from .machine.registry import gradient, op
from .machine.signature import letters
from .shape import changed_labels


def _labels(shapes, *, count):
    names = letters(len(shapes[0]))
    return f"{names},->Z{names[1:]}"


@op(_labels, sizes=lambda shapes, *, count: {"Z": shapes[0][0] // count}, whole=changed_labels, dtype=0, flops=0)
def micro_batch_rows(x, number, *, count):
    """The rows of micro-batch `number` of `count` equal ones.  x: (n, ...), number: () int -> (n / count, ...)."""
    rows = len(x) // count
    return np.array(x[int(number) * rows : (int(number) + 1) * rows], order="C")


@gradient(micro_batch_rows)
def micro_batch_rows_grad(g, number, *, shape, count):
    """Zeros, with g where its rows came from.  g: (n / count, ...), number: () int -> (n, ...)."""
    grad = np.zeros(shape, g.dtype)
    grad[int(number) * len(g) : (int(number) + 1) * len(g)] = g
    return grad


@op("...->...", flops=0)
def accumulate(x):
    """The sum of what all micro-batches give; of one of them, what it adds.  x: (...) -> (...)."""
    return x


@accumulate.vjp
def _(g, out, x):
    return (g,)


@op("...,...,...->...", dtype=1, flops=0)
def branch(condition, then, other):
    """`then` if the condition holds, else `other`.  condition: () bool, then, other: (...) -> (...)."""
    return then if condition else other


@op("...,...,...->...", dtype=1, flops=0)
def loop(condition, now, following, *, of):
    """At the end of a turn of a `while`, for one variable: what it holds `now` if the condition does not hold; if it
    does, the next turn finds `following`.  condition: () bool, now, following: (...) -> (...); of: name of the loop.
    """
    return now
