"""Networks: Cell, layers, losses, initial values and optimizers, with MindSpore's names."""

# ruff: noqa: F401 - imported for others: this is a public face

import difflib
from types import ModuleType as _ModuleType

from ..base.hooks import open_catalog as _open_catalog
from ..ops.collectives.point_to_point import __all__ as _POINT_TO_POINT
from ..ops.collectives.primitives import __all__ as _COLLECTIVES
from ..ops.machine.registry import PRIMITIVES as _PRIMITIVES
from ..ops.spellings import NAMES as _NAMES
from . import initializer, utils
from .cell import Cell
from .feeding import GradAccumulation, PipelineCell, WithLossCell
from .layers.activation import ACTIVATIONS, GELU, ReLU, Tanh, get_activation
from .layers.basic import CellList, Dense, Flatten, Identity, SequentialCell
from .layers.class_losses import CrossEntropyLoss
from .layers.context_attention import ContextParallelAttention, TokenDense
from .layers.conv import Conv2d, MaxPool2d
from .layers.dropout import Dropout
from .layers.losses import BCEWithLogitsLoss, LossBase, MSELoss
from .layers.moe import MoE
from .layers.normalization import BatchNorm1d, BatchNorm2d, LayerNorm
from .layers.transformer import MultiheadAttention, TransformerEncoder, TransformerEncoderLayer
from .optim.amp import DynamicLossScaleManager, DynamicLossScaler, DynamicLossScaleUpdateCell, LossScaler
from .optim.clip import GradientClip
from .optim.grad_reducer import DistributedGradReducer
from .optim.lr_schedule import LearningRateSchedule
from .optim.optimizer import Optimizer
from .optim.rules import SGD, Adam, AdamWeightDecay, Lamb, Momentum
from .sharded_cell import ShardedCell, shard
from .tensor.parameter import Parameter, ParameterTuple
from .wrap import TrainOneStepCell

# everything imported above, but not the modules that the imports leave here
_public = ["initializer", "utils"]
_public += [n for n, value in globals().items() if not n.startswith("_") and not isinstance(value, _ModuleType)]


def publish(layers):
    """Make the catalogue's classes and functions public here: {name: class or function}."""
    globals().update(layers)
    _public.extend(layers)


# PyTorch's names of classes that have MindSpore's here
_OTHER_NAMES = {
    "Hardshrink": "HShrink",
    "Hardsigmoid": "HSigmoid",
    "Hardswish": "HSwish",
    "Linear": "Dense",
    "Module": "Cell",
    "ModuleList": "CellList",
    "ParameterList": "ParameterTuple",
    "SELU": "SeLU",
    "Sequential": "SequentialCell",
    "Softshrink": "SoftShrink",
}


def __dir__():
    _open_catalog()
    return sorted(globals())


def __getattr__(name):
    if name.startswith("_") and name != "__all__":  # Python and its tools ask for these of everything they meet
        raise AttributeError(f"parallel_lab.nn has no {name!r}", name=name)
    _open_catalog()
    if name == "__all__":
        return _public
    if name in globals():
        return globals()[name]
    if name in _OTHER_NAMES:
        hint = f"In MindSpore, and here, it is nn.{_OTHER_NAMES[name]}"
    elif name == "AdamW":
        hint = "nn.AdamWeightDecay is near, but does not correct the bias of the moments"
    elif name in _NAMES or name in _PRIMITIVES or name in (*_COLLECTIVES, *_POINT_TO_POINT, "Primitive", "Print"):
        hint = f"Use ops.{name}"
    else:
        near = [n for n in _public if n.lower() == name.lower()] or difflib.get_close_matches(name, _public, 3, 0.6)
        hint = f"Did you mean {' or '.join(map(repr, near))}?" if near else "dir(parallel_lab.nn) lists them all"
    raise AttributeError(f"parallel_lab.nn has no {name!r}. {hint}", name=name)
