"""A declaration makes all names of an operator: functions, methods of Tensors and traced values, numpy's, mint's."""

import subprocess
import sys

import pytest

from parallel_lab import ops
from parallel_lab.base.errors import ArgumentError
from parallel_lab.ops.machine.registry import OPS, op

DECLARED = '''
import numpy as np
import parallel_lab
from parallel_lab import Tensor, ops
from parallel_lab.graph.trace import trace_network
from parallel_lab.ops.machine.registry import case, op
from parallel_lab.ops.spellings import function

@op("...,...->...", name="Triangle TriangleSide", also="long_side", method="triangle(legs)", operator="__matmul__",
    ufunc="logaddexp", numpy="pad", mint="triangle functional.triangle", example=case((4, 2), (4, 2)))
def triangle(x, y):
    """Root of x^2 + y^2.  x, y: (...) -> (...)."""
    return np.hypot(x, y)

@function(also="far", method="distance", mint="distance")
def distance(x, y, scale=1.0):
    """scale * triangle.  x, y: (...) -> (...)."""
    return ops.mul(triangle(x, y), scale)

import parallel_lab.mindspore as ms
x, y = Tensor([3.0, 5.0]), Tensor([4.0, 12.0])
calls = [
    lambda x, y: ops.triangle(x, y), lambda x, y: ops.long_side(x, y), lambda x, y: ops.Triangle()(x, y),
    lambda x, y: ops.TriangleSide()(x, y), lambda x, y: x.triangle(y), lambda x, y: x.triangle(legs=y),
    lambda x, y: x @ y,
    lambda x, y: ms.mint.triangle(x, y), lambda x, y: ms.mint.nn.functional.triangle(x, y),
    lambda x, y: ms.ops.triangle(x, y),
    lambda x, y: distance(x, y), lambda x, y: ops.far(x, y), lambda x, y: x.distance(y, scale=1),
    lambda x, y: ms.mint.distance(x, y),
]
for number, call in enumerate(calls):
    assert call(x, y).asnumpy().tolist() == [5.0, 13.0], number
    graph = trace_network(call, [("x", (2,), "float32"), ("y", (2,), "float32")]).graph
    assert graph.nodes[0].op_class in ("Triangle", "TriangleSide"), number
assert type(np.logaddexp(x, y)) is Tensor and np.logaddexp(x, y).asnumpy().tolist() == [5.0, 13.0]
assert ([3.0, 5.0] @ y).asnumpy().tolist() == [5.0, 13.0]
try:
    np.pad(parallel_lab.Parameter(x), 1)
except TypeError as error:
    assert "Use ops.triangle" in str(error), error
else:
    raise AssertionError("np.pad has lost a gradient")
'''


@pytest.mark.exhaustive
def test_one_declaration_makes_every_name():
    """In a process of its own: the registry of this one stays as it is."""
    run = subprocess.run([sys.executable, "-c", DECLARED], capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr


@pytest.mark.parametrize("example", [((8, 16), (24, 16)), (8, 16), [(8,)], "cases"], ids=str)
def test_examples_that_are_not_cases_are_refused_where_the_operator_is_declared(example):
    with pytest.raises(ArgumentError, match=r"@op unmade: example=.*`case\(\.\.\.\)`.*Write example=case\("):

        @op("mk,nk->mn", name="Unmade", example=example)
        def unmade(a, b):
            """Never declared.  a: (m, k), b: (n, k) -> (m, n)."""

    assert "unmade" not in OPS and not hasattr(ops, "Unmade")


def test_a_name_is_declared_once():
    with pytest.raises(ArgumentError, match="@op product: the class MatMul is declared already"):

        @op("ab->ab", name="MatMul")
        def product(x):
            """x: (a, b) -> (a, b)."""

    assert "product" not in OPS and ops.MatMul.op.name == "matmul"
    with pytest.raises(ArgumentError, match="@op matmul: this name is declared already"):

        @op("mk,nk->mn", name="Unmade")
        def matmul(a, b):
            """Another one.  a: (m, k), b: (n, k) -> (m, n)."""
