"""Networks: Cell, layers, losses, initial values and optimizers, with MindSpore's names."""

from ..tensor import Parameter, ParameterTuple
from . import initializer
from .cell import Cell
from .layers import ACTIVATIONS, GELU, CellList, Dense, Flatten, ReLU, SequentialCell, Sigmoid, Softmax, Tanh, get_activation
from .loss import CrossEntropyLoss, LossBase, MSELoss, SoftmaxCrossEntropyExpand, SoftmaxCrossEntropyWithLogits, WithLossCell
from .optim import SGD, Adam, AdamWeightDecay, Momentum, Optimizer

__all__ = [
    "ACTIVATIONS",
    "GELU",
    "SGD",
    "Adam",
    "AdamWeightDecay",
    "Cell",
    "CellList",
    "CrossEntropyLoss",
    "Dense",
    "Flatten",
    "LossBase",
    "MSELoss",
    "Momentum",
    "Optimizer",
    "Parameter",
    "ParameterTuple",
    "ReLU",
    "SequentialCell",
    "Sigmoid",
    "Softmax",
    "SoftmaxCrossEntropyExpand",
    "SoftmaxCrossEntropyWithLogits",
    "Tanh",
    "WithLossCell",
    "get_activation",
    "initializer",
]
