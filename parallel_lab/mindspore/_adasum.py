"""AdaSum: gradients of the ranks, or the changes that they would make, added so that agreement counts once.

    a . b = 0    a + b    different directions: their sum
    a = b        a        the same: it counts once
    else         (1 - a.b / 2 a.a) a + (1 - a.b / 2 b.b) b

Parameter by parameter; ranks in pairs, then pairs in pairs, so that their number is a power of two (Maleki et al.
2020, Scaling Distributed Training with Adaptive Summation). An optimizer in such a Cell is called with a rank's own
gradients, before any reduction, in a step that is written by hand.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import ops
from ..base.checks import instance
from ..base.errors import ArgumentError, ArgumentTypeError
from ..nn.cell import Cell
from ..nn.optim.optimizer import Optimizer
from ..nn.tensor.tensor import Tensor
from ..train.communication import get_group_size

__all__ = ["AdaSumByDeltaWeightWrapCell", "AdaSumByGradWrapCell"]


class _AdaSum(Cell):
    """optimizer: the one that takes the step"""

    def __init__(self, optimizer: Optimizer) -> None:
        name = type(self).__name__
        instance(Optimizer, "An optimizer of mindspore.nn")(name, "optimizer", optimizer)
        super().__init__(auto_prefix=False)
        ranks = get_group_size()
        if ranks & (ranks - 1):
            raise ArgumentError(f"{ranks} ranks", where=name, allowed="A power of two: they are added in pairs")
        self.optimizer = optimizer

    def _added(self, values: Sequence[Any]) -> tuple[Tensor, ...]:
        """The AdaSum of each value over all ranks: the same bits on all of them, in the value's dtype."""
        return tuple(self._of_all(value) for value in values)

    def _of_all(self, value: Any) -> Tensor:
        shape, ranks = tuple(value.shape), get_group_size()
        rows = np.asarray(ops.AllGather()(value.reshape((1, -1))).asnumpy()) if ranks > 1 else value.asnumpy()
        return Tensor(_tree(rows.reshape(ranks, -1)).reshape(shape).astype(rows.dtype))


def _tree(rows: np.ndarray) -> np.ndarray:
    """The AdaSum of the rows, which are a power of two, in float64 where they are narrower."""
    parts = [row.astype(np.float64) for row in rows]
    while len(parts) > 1:
        parts = [_pair(a, b) for a, b in zip(parts[::2], parts[1::2], strict=True)]
    return parts[0]


def _pair(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    both, of_a, of_b = (float(np.dot(x, y)) for x, y in ((a, b), (a, a), (b, b)))
    if not of_a or not of_b:  # zero adds nothing
        return a + b
    return (1 - both / (2 * of_a)) * a + (1 - both / (2 * of_b)) * b


class AdaSumByGradWrapCell(_AdaSum):
    """An optimizer that takes its step with the AdaSum of all ranks' gradients.

        step = nn.AdaSumByGradWrapCell(nn.Momentum(net.trainable_params(), 0.1, 0.9))
        step(grads)                     one Tensor per parameter, this rank's own

    Raises WorldError before `init`, ArgumentError for three ranks and the like, ArgumentTypeError unless an optimizer
    of nn is given.
    """

    def construct(self, grads: Sequence[Any]) -> Any:
        return self.optimizer(self._added(_of(self, grads)))


class AdaSumByDeltaWeightWrapCell(_AdaSum):
    """An optimizer that takes its step with this rank's gradients; then every parameter changes by the AdaSum of the
    changes of all ranks. Raises as `AdaSumByGradWrapCell`.
    """

    def construct(self, grads: Sequence[Any]) -> Any:
        parameters = self.optimizer.parameters
        before = [p.asnumpy().copy() for p in parameters]
        done = self.optimizer(_of(self, grads))
        changes = [Tensor(p.asnumpy() - old) for p, old in zip(parameters, before, strict=True)]
        for parameter, old, change in zip(parameters, before, self._added(changes), strict=True):
            parameter.set_data(Tensor(old + change.asnumpy()))
        return done


def _of(cell: _AdaSum, grads: Any) -> tuple[Any, ...]:
    if not isinstance(grads, (list, tuple)):
        where, allowed = type(cell).__name__, "A tuple of gradients, one per parameter"
        raise ArgumentTypeError(f"grads is {type(grads).__name__}", where=where, allowed=allowed)
    return tuple(grads)
