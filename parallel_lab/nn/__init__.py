"""Networks: Cell, layers, losses, initial values and optimizers, with MindSpore's names."""

import difflib

from .. import ops as _ops
from ..tensor import Parameter, ParameterTuple
from . import initializer, utils
from .activation import (
    ACTIVATIONS,
    ELU,
    GELU,
    HSigmoid,
    HSwish,
    LeakyReLU,
    LogSigmoid,
    LogSoftmax,
    PReLU,
    ReLU,
    ReLU6,
    Sigmoid,
    SiLU,
    Softmax,
    Softplus,
    Tanh,
    get_activation,
)
from .amp import (
    DynamicLossScaleManager,
    DynamicLossScaler,
    DynamicLossScaleUpdateCell,
    FixedLossScaleManager,
    FixedLossScaleUpdateCell,
    LossScaler,
    StaticLossScaler,
    all_finite,
)
from .cell import Cell
from .class_losses import CrossEntropyLoss, NLLLoss, SoftmaxCrossEntropyExpand, SoftmaxCrossEntropyWithLogits
from .clip import GradientClip, clip_by_global_norm, clip_by_norm, clip_by_value
from .conv import AdaptiveAvgPool2d, AdaptiveMaxPool2d, AvgPool2d, Conv2d, MaxPool2d
from .dropping import Dropout, Dropout1d, Dropout2d, Dropout3d
from .grad_reducer import DistributedGradReducer, PipelineGradReducer
from .layers import CellList, Dense, Flatten, Identity, SequentialCell
from .loss import BCELoss, BCEWithLogitsLoss, L1Loss, LossBase, MAELoss, MSELoss, SmoothL1Loss, WithLossCell
from .normalization import BatchNorm1d, BatchNorm2d, BatchNorm3d, GroupNorm, LayerNorm, RMSNorm
from .optim import Optimizer
from .optim_adaptive import Adagrad, Adam, AdamWeightDecay, RMSProp
from .optim_layerwise import LARS, Lamb
from .optim_momentum import SGD, Momentum
from .schedule import (
    CosineDecayLR,
    ExponentialDecayLR,
    InverseDecayLR,
    LearningRateSchedule,
    NaturalExpDecayLR,
    PolynomialDecayLR,
    WarmUpLR,
    cosine_decay_lr,
    exponential_decay_lr,
    inverse_decay_lr,
    natural_exp_decay_lr,
    piecewise_constant_lr,
    polynomial_decay_lr,
    warmup_lr,
)
from .sharded import ShardedCell, shard
from .tables import Embedding, EmbeddingLookup
from .transformer import MultiheadAttention, TransformerEncoder, TransformerEncoderLayer
from .wrap import (
    ForwardValueAndGrad,
    GradAccumulation,
    GradAccumulationCell,
    MicroBatchInterleaved,
    ParameterUpdate,
    Pipeline,
    PipelineCell,
    TrainOneStepCell,
    TrainOneStepWithLossScaleCell,
    WithEvalCell,
    WithGradCell,
)

__all__ = [
    "ACTIVATIONS",
    "Adagrad",
    "Adam",
    "AdamWeightDecay",
    "AdaptiveAvgPool2d",
    "AdaptiveMaxPool2d",
    "AvgPool2d",
    "BCELoss",
    "BCEWithLogitsLoss",
    "BatchNorm1d",
    "BatchNorm2d",
    "BatchNorm3d",
    "Cell",
    "CellList",
    "Conv2d",
    "CosineDecayLR",
    "CrossEntropyLoss",
    "Dense",
    "DistributedGradReducer",
    "Dropout",
    "Dropout1d",
    "Dropout2d",
    "Dropout3d",
    "DynamicLossScaleManager",
    "DynamicLossScaleUpdateCell",
    "DynamicLossScaler",
    "ELU",
    "Embedding",
    "EmbeddingLookup",
    "ExponentialDecayLR",
    "FixedLossScaleManager",
    "FixedLossScaleUpdateCell",
    "Flatten",
    "ForwardValueAndGrad",
    "GELU",
    "GradAccumulation",
    "GradAccumulationCell",
    "GradientClip",
    "GroupNorm",
    "HSigmoid",
    "HSwish",
    "Identity",
    "InverseDecayLR",
    "L1Loss",
    "LARS",
    "Lamb",
    "LayerNorm",
    "LeakyReLU",
    "LearningRateSchedule",
    "LogSigmoid",
    "LogSoftmax",
    "LossBase",
    "LossScaler",
    "MAELoss",
    "MSELoss",
    "MaxPool2d",
    "MicroBatchInterleaved",
    "Momentum",
    "MultiheadAttention",
    "NLLLoss",
    "NaturalExpDecayLR",
    "Optimizer",
    "PReLU",
    "Parameter",
    "ParameterTuple",
    "ParameterUpdate",
    "Pipeline",
    "PipelineCell",
    "PipelineGradReducer",
    "PolynomialDecayLR",
    "RMSNorm",
    "RMSProp",
    "ReLU",
    "ReLU6",
    "SGD",
    "SequentialCell",
    "SiLU",
    "ShardedCell",
    "Sigmoid",
    "SmoothL1Loss",
    "Softmax",
    "SoftmaxCrossEntropyExpand",
    "SoftmaxCrossEntropyWithLogits",
    "Softplus",
    "StaticLossScaler",
    "Tanh",
    "TrainOneStepCell",
    "TrainOneStepWithLossScaleCell",
    "TransformerEncoder",
    "TransformerEncoderLayer",
    "WarmUpLR",
    "WithEvalCell",
    "WithGradCell",
    "WithLossCell",
    "all_finite",
    "clip_by_global_norm",
    "clip_by_norm",
    "clip_by_value",
    "cosine_decay_lr",
    "exponential_decay_lr",
    "get_activation",
    "initializer",
    "inverse_decay_lr",
    "natural_exp_decay_lr",
    "piecewise_constant_lr",
    "polynomial_decay_lr",
    "shard",
    "utils",
    "warmup_lr",
]

# PyTorch's names for what is here under MindSpore's
_OTHER_NAMES = {
    "Hardsigmoid": "HSigmoid",
    "Hardswish": "HSwish",
    "Linear": "Dense",
    "Module": "Cell",
    "ModuleList": "CellList",
    "ParameterList": "ParameterTuple",
    "Sequential": "SequentialCell",
}


def __getattr__(name):
    if name in _OTHER_NAMES:
        hint = f"In MindSpore, and here, it is nn.{_OTHER_NAMES[name]}"
    elif name == "AdamW":
        hint = "nn.AdamWeightDecay is near, but does not correct the bias of the moments"
    elif not name.startswith("_") and callable(vars(_ops).get(name)):
        hint = f"Use ops.{name}"
    else:
        near = [n for n in __all__ if n.lower() == name.lower()] or difflib.get_close_matches(name, __all__, 3, 0.6)
        hint = f"Did you mean {' or '.join(map(repr, near))}?" if near else "dir(parallel_lab.nn) lists all there is"
    raise AttributeError(f"parallel_lab.nn has no {name!r}. {hint}", name=name)
