"""New values for Parameters, inside `construct` or outside: `ops.assign(self.count, x)`, `ops.AssignAdd().shard(...)`.

    y = x * self.w               the value before
    self.assign(self.w, y)
    return y + self.w            the value after: reads and writes count in the order in which they are written

In a compiled network the Parameter takes its last value at the end of the forward program (of the update program, if
the value is made from gradients). As outside of one, what is read afterwards is the Parameter: gradients of those reads
are the Parameter's, and nothing flows to the value. A trained Parameter is then updated from its new value.
"""

from __future__ import annotations

import numpy as np

from .machine.registry import case, op

SHAPES = ((16, 8), (16, 8))
WRITES = {"dtype": 0, "writes": True}


def write_fault(operands, **attrs):
    """The fault of a value that is neither of the shape of the variable nor a number, or None."""
    variable, value = operands
    if value.shape in ((), variable.shape):
        return None
    what = f"a value of shape {value.shape} for a variable of shape {variable.shape}"
    return what, "The variable's shape, or a number"


@op("...,...->...", name="Assign", check=write_fault, flops=0, example=case(*SHAPES), **WRITES)
def assign(variable, value):
    """The Parameter takes `value`.  variable: (...), value: (...) or a number -> (...), in the variable's dtype."""
    return np.array(np.broadcast_to(value, variable.shape), variable.dtype, order="C")
