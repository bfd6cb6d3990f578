"""Cells around a network: one training step. Micro-batches are in `feeding.py`, a scaled loss in `catalog/nn/wrap.py`.

    step = nn.TrainOneStepCell(nn.WithLossCell(net, loss), optimizer)
    loss = step(x, label)                     # forward, backward, all ranks' gradients (data_parallel), update

They run at once, and inside a function or network that is compiled. Parameters keep the names they have in the network.
Names, arguments and checks: MindSpore, nn.wrap and parallel.nn; the reducer of gradients is in `optim/grad_reducer.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from typing import Any

import numpy as np

from ..base.checks import checked, flag, instance
from ..base.errors import ArgumentTypeError, shorten
from ..base.settings.checks import LOCAL_MODES
from ..base.settings.current import get_auto_parallel_context
from .cell import Cell
from .feeding import NETWORK
from .layers.basic import Identity
from .optim.amp import LossScaler
from .optim.grad_reducer import DistributedGradReducer
from .optim.optimizer import Optimizer
from .tensor.autograd import value_and_grad, weighted_sum
from .tensor.functional import GradOperation
from .tensor.parameter import Parameter, ParameterTuple
from .tensor.tensor import Tensor

# ---- one step ----


class TrainOneStepCell(Cell):
    """One training step: (inputs of the network) -> its loss, after the optimizer has changed the parameters.

    network      gives the loss: `WithLossCell(net, loss)`, or a Cell that computes it itself
    optimizer    its parameters are differentiated for
    sens         the gradient of the loss itself, 1 by default: gradients are multiplied by it (undo: an optimizer's
                 loss_scale)
    return_grad  return (loss, {parameter name: gradient}) instead

    In data_parallel and hybrid_parallel mode the gradients are added up over the ranks before the update
    (`grad_reducer`). The Cell has `network`, `optimizer`, `weights`, `grad` and `grad_reducer` for subclasses that
    write their own `construct`.
    """

    @checked(network=NETWORK, optimizer=instance(Optimizer, "An optimizer, such as nn.Momentum(...)"), return_grad=flag)
    def __init__(
        self, network: Cell, optimizer: Optimizer, sens: float | None = None, return_grad: bool = False
    ) -> None:
        super().__init__(auto_prefix=False)
        sens = 1.0 if sens is None else sens
        if isinstance(sens, bool) or not isinstance(sens, (int, float, Tensor)):
            raise ArgumentTypeError(f"sens={shorten(sens)}", where=type(self).__name__, allowed="A number")
        self.network, self.optimizer, self.sens = network, optimizer, sens
        self.return_grad = return_grad
        # not registered a second time under the optimizer's order: the network has them
        self.__dict__["weights"] = ParameterTuple(optimizer.parameters)
        self.weights.optimizer = optimizer
        self.grad = GradOperation(get_by_list=True, sens_param=True)
        reduces = get_auto_parallel_context("parallel_mode") in LOCAL_MODES
        self.reducer_flag = reduces
        self.grad_reducer = DistributedGradReducer(optimizer.parameters) if reduces else Identity()

    def construct(self, *inputs: Any) -> Any:
        scaler = self.optimizer.loss_scaler
        # with a loss scale an overflow is what the scaler looks for, not a surprise
        with nullcontext() if scaler is None else np.errstate(over="ignore", invalid="ignore"):
            loss, grads = loss_and_gradients(self.network, self.weights, inputs, self.sens, scaler)
            grads = self.grad_reducer(grads)
        self.optimizer(grads)
        if not self.return_grad:
            return loss
        return loss, {p.name: g for p, g in zip(self.weights, grads, strict=True)}


def loss_and_gradients(
    network: Callable, weights: Iterable[Parameter], inputs: Iterable[Any], sens: Any, scaler: LossScaler | None = None
) -> tuple[Any, tuple[Any, ...]]:
    """(result, gradients of sens times the loss for the weights), all results counted. scaler: scales the loss."""

    def weighted(*args: Any) -> tuple[Any, Any]:
        result = network(*args)
        total = weighted_sum(result, sens)
        return (total if scaler is None else scaler.scale(total)), result

    (_, result), grads = value_and_grad(weighted, None, list(weights), has_aux=True)(*inputs)
    return result, grads
