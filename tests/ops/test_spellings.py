"""A declaration makes all names of an operator: functions, methods of Tensors and traced values, numpy's, mint's."""

import subprocess
import sys

DECLARED = '''
import numpy as np
import parallel_lab
from parallel_lab import Tensor, ops
from parallel_lab.graph.trace import trace_network
from parallel_lab.ops.machine.registry import case, op
from parallel_lab.ops.spellings import function

@op("...,...->...", name="Hypot TriangleSide", also="hypotenuse", method="hypot(legs)", operator="__matmul__",
    ufunc="hypot", numpy="pad", mint="hypot functional.hypot", example=case((4, 2), (4, 2)))
def hypot(x, y):
    """Root of x^2 + y^2.  x, y: (...) -> (...)."""
    return np.hypot(x, y)

@function(also="far", method="distance", mint="distance")
def distance(x, y, scale=1.0):
    """scale * hypot.  x, y: (...) -> (...)."""
    return ops.mul(hypot(x, y), scale)

import parallel_lab.mindspore as ms
x, y = Tensor([3.0, 5.0]), Tensor([4.0, 12.0])
calls = [
    lambda x, y: ops.hypot(x, y), lambda x, y: ops.hypotenuse(x, y), lambda x, y: ops.Hypot()(x, y),
    lambda x, y: ops.TriangleSide()(x, y), lambda x, y: x.hypot(y), lambda x, y: x.hypot(legs=y), lambda x, y: x @ y,
    lambda x, y: ms.mint.hypot(x, y), lambda x, y: ms.mint.nn.functional.hypot(x, y), lambda x, y: ms.ops.hypot(x, y),
    lambda x, y: distance(x, y), lambda x, y: ops.far(x, y), lambda x, y: x.distance(y, scale=1),
    lambda x, y: ms.mint.distance(x, y),
]
for number, call in enumerate(calls):
    assert call(x, y).asnumpy().tolist() == [5.0, 13.0], number
    graph = trace_network(call, [("x", (2,), "float32"), ("y", (2,), "float32")]).graph
    assert graph.nodes[0].op_class in ("Hypot", "TriangleSide"), number
assert type(np.hypot(x, y)) is Tensor and np.hypot(x, y).asnumpy().tolist() == [5.0, 13.0]
assert ([3.0, 5.0] @ y).asnumpy().tolist() == [5.0, 13.0]
try:
    np.pad(parallel_lab.Parameter(x), 1)
except TypeError as error:
    assert "Use ops.hypot" in str(error), error
else:
    raise AssertionError("np.pad has lost a gradient")
'''


def test_one_declaration_makes_every_name():
    """In a process of its own: the registry of this one stays as it is."""
    run = subprocess.run([sys.executable, "-c", DECLARED], capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
