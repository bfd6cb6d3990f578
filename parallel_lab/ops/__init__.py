"""Operators: functions (`ops.matmul(a, b)`) and classes (`ops.MatMul().shard(...)`), each declared once in the family files."""

from .elementwise import *  # noqa: F403
from .linalg import *  # noqa: F403
from .loss import *  # noqa: F403
from .reduce import *  # noqa: F403
from .registry import OPS, PRIMITIVES, Primitive
from .shape import *  # noqa: F403
from .state import assign, training_step


def shape(x):
    """The shape of x as a tuple of ints; in a trace the global shape."""
    return tuple(x.shape)


def scalar_to_array(value):
    """A Python number as a 0-d operand (MindSpore's scalar_to_array); it takes the dtype of the tensors beside it."""
    return value


globals().update(PRIMITIVES)

# made from the registry, so that a new operator needs no second edit
__all__ = ["OPS", "PRIMITIVES", "Primitive", "assign", "scalar_to_array", "shape", "training_step"]
__all__ += [name for name, o in OPS.items() if not o.internal]
__all__ += list(PRIMITIVES)


def __getattr__(name):
    raise AttributeError(f"parallel_lab.ops has no operator {name!r}; operators: {', '.join(sorted(PRIMITIVES))}")
