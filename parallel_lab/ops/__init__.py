"""Operators: functions (`ops.matmul(a, b)`) and classes (`ops.MatMul().shard(...)`), each declared once in the family files."""

import builtins
import difflib
from inspect import isfunction

from . import collectives, messages, printing
from .activation import *  # noqa: F403
from .attention import *  # noqa: F403
from .bands import *  # noqa: F403
from .batch_norm import *  # noqa: F403
from .class_loss import *  # noqa: F403
from .collectives import *  # noqa: F403
from .conv import *  # noqa: F403
from .dropout import *  # noqa: F403
from .elementwise import *  # noqa: F403
from .functions import *  # noqa: F403
from .index import *  # noqa: F403
from .indexing import *  # noqa: F403
from .join import *  # noqa: F403
from .linalg import *  # noqa: F403
from .logic import *  # noqa: F403
from .loss import *  # noqa: F403
from .losses import *  # noqa: F403
from .messages import *  # noqa: F403
from .names import *  # noqa: F403
from .normalization import *  # noqa: F403
from .order import *  # noqa: F403
from .padding import *  # noqa: F403
from .pair_loss import *  # noqa: F403
from .placing import *  # noqa: F403
from .pool import *  # noqa: F403
from .printing import *  # noqa: F403
from .reduce import *  # noqa: F403
from .registry import OPS, PRIMITIVES, OpDef, Primitive
from .shape import *  # noqa: F403
from .state import StepCalls, assign, training_step
from .statistics import *  # noqa: F403


def shape(x):
    """The shape of x as a tuple of ints; in a trace the global shape."""
    return tuple(x.shape)


def scalar_to_array(value):
    """A Python number as a 0-d operand (MindSpore's scalar_to_array); it takes the dtype of the tensors beside it."""
    return value


globals().update(PRIMITIVES)

# made from the registry, so that a new operator needs no second edit
__all__ = ["OPS", "PRIMITIVES", "Primitive", "StepCalls", "assign", "scalar_to_array", "shape", "training_step"]
__all__ += [name for name, o in OPS.items() if not o.internal]
__all__ += list(PRIMITIVES)
__all__ += collectives.__all__
__all__ += messages.__all__
__all__ += printing.__all__
# functions made of operators (norm, split, pad, getitem, zeros, ...) and second names; not Python's own: a star import must not replace sum()
_own = [name for name, value in globals().items() if isfunction(value) and value.__module__.startswith(__name__) or value.__class__ is OpDef]
__all__ += [name for name in _own if not name.startswith("_") and name not in __all__ and not hasattr(builtins, name)]


def __getattr__(name):
    plain = name.replace("_", "").lower()
    names = [n for n in dict.fromkeys([*__all__, *_own]) if not n.startswith("_")]
    near = [n for n in names if n.replace("_", "").lower() == plain] or difflib.get_close_matches(name, names, 3, 0.6)
    hint = f"Did you mean {' or '.join(map(repr, near))}?" if near else "dir(parallel_lab.ops) lists them all"
    raise AttributeError(f"parallel_lab.ops has no operator {name!r}. {hint}", name=name)
