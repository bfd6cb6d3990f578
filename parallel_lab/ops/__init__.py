"""Operators: functions (`ops.matmul(a, b)`) and classes (`ops.MatMul().shard(...)`), declared in the family files."""

import builtins
import difflib
import functools

from ..base.hooks import open_catalog as _open_catalog

# the families: importing one registers its operators
from . import (  # noqa: F401
    activation,
    attention,
    batch_norm,
    class_losses,
    context_attention,
    conv,
    dropout,
    elementwise,
    expert_balance,
    expert_rows,
    gather,
    indexing,
    join,
    linalg,
    logic,
    losses,
    micro_batches,
    normalization,
    own_gradient,
    pool,
    quotients,
    reduce,
    rotary,
    routing,
    scattering,
    shape,
    slicing,
    unary,
    updates,
    writes,
)
from .collectives import point_to_point, primitives
from .collectives.point_to_point import *  # noqa: F403
from .collectives.primitives import *  # noqa: F403
from .indexing import TensorIndexError  # noqa: F401
from .machine.primitive import Primitive, Print  # noqa: F401
from .machine.registry import OPS, PRIMITIVES  # noqa: F401
from .machine.state import StepCalls, training_step  # noqa: F401
from .spellings import NAMES


def publish():
    """Make what is declared public here: at the end of this file, and when the catalogue has added its operators."""
    globals().update(NAMES, **PRIMITIVES)


publish()


@functools.cache
def _public(_named, _declared):
    """What a star import takes: not Python's own names, because sum() must stay sum(). Made again when one is added:
    the facade looks into it for each name that it is asked for.
    """
    own = ["OPS", "PRIMITIVES", "Primitive", "Print", "StepCalls", "training_step"]
    pythons = vars(builtins)
    names = [name for name in NAMES if name not in pythons]
    return (*own, *primitives.__all__, *point_to_point.__all__, *PRIMITIVES, *names)


def __dir__():
    _open_catalog()
    return sorted(globals())


def __getattr__(name):
    if name == "__all__":
        return _public(len(NAMES), len(PRIMITIVES))
    if name.startswith("_"):  # Python and its tools ask for these of everything they meet
        raise AttributeError(f"parallel_lab.ops has no {name!r}", name=name)
    if name in NAMES or name in PRIMITIVES:  # of the catalogue, or declared since then
        return NAMES.get(name) or PRIMITIVES[name]
    plain = name.replace("_", "").lower()
    names = list(dict.fromkeys([*__getattr__("__all__"), *NAMES]))
    near = [n for n in names if n.replace("_", "").lower() == plain] or difflib.get_close_matches(name, names, 3, 0.6)
    hint = f"Did you mean {' or '.join(map(repr, near))}?" if near else "dir(parallel_lab.ops) lists them all"
    raise AttributeError(f"parallel_lab.ops has no operator {name!r}. {hint}", name=name)
