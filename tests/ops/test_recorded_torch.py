"""Operators against PyTorch's results and gradients, recorded in float64 (`tests/recorded/README.md`)."""

import dataclasses
import math

import numpy as np
import pytest

from parallel_lab import ops
from parallel_lab.ops import OPS, PRIMITIVES
from tests.ops.test_eager import has_gradient
from tests.recorded import torch_elements, torch_layered, torch_shapes
from tests.recorded.public_operators import NOT_IN_PYTORCH, public_operators
from tests.recorded.replay import BOUNDS, check_close, check_row, check_table
from tests.recorded.torch_table import Recording

ROWS = torch_elements.ROWS + torch_shapes.ROWS + torch_layered.ROWS
RECORDED = Recording("torch_operators.npz")


def call_operator(row, tensors):
    """The declared operator, by keyword, as the row's attributes say."""
    op = OPS[row.name]
    return op(*tensors, **row.attrs) if op.variadic else op(**dict(zip(op.tensors, tensors, strict=True)), **row.attrs)


def call_class(row, tensors):
    """The same through its class: `ops.MatMul(transpose_b=True)(a, b)`."""
    op = OPS[row.name]
    kind, given = PRIMITIVES[op.class_name], {k: v for k, v in row.attrs.items() if k in op.options}
    # the class of a loss takes the mean of what the operator gives, unless told otherwise
    primitive = kind(**given, **({"reduction": "none"} if "reduction" in getattr(kind, "settings", ()) else {}))
    if op.variadic:
        return primitive(*tensors)
    named = {**op.defaults, **row.attrs, **dict(zip(op.tensors, tensors, strict=True))}
    return primitive(*(named[n] for n in op.positional))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.key)
def test_results_and_gradients_equal_the_recorded_ones(row):
    if row.ours is not None:
        check_row(row, RECORDED[row.key], lambda tensors: row.ours(*tensors))
    else:
        check_row(row, RECORDED[row.key], lambda tensors: call_operator(row, tensors))
        check_row(row, RECORDED[row.key], lambda tensors: call_class(row, tensors))


def test_every_public_operator_and_function_is_compared_or_said_not_to_be_in_pytorch():
    """Only those that were there when the file was recorded; recording it again refuses to leave out newer ones."""
    public, rows = set(RECORDED.recipe["operators"].split()), {row.name for row in ROWS}
    assert len(public) > 150
    assert public - rows - set(NOT_IN_PYTORCH) == set()
    assert rows & set(NOT_IN_PYTORCH) == set()
    assert public <= public_operators()


def test_every_differentiable_operator_has_a_row_whose_gradient_is_not_zero():
    moved = {row.name for row in ROWS if any(np.any(g) for g in RECORDED[row.key]["grad"])}
    known = set(RECORDED.recipe["operators"].split())
    differentiable = {n for n, op in OPS.items() if n in known and has_gradient(op)}
    assert differentiable - moved == set(NOT_IN_PYTORCH) & differentiable


def test_the_file_holds_the_rows_of_the_table_and_nothing_else():
    check_table(ROWS, RECORDED)


def test_a_wrong_result_would_be_seen():
    with pytest.raises(AssertionError, match="output 0"):
        check_close("output 0", np.array([1.0, 2.0]), np.array([1.0, 2.0 + 1e-11]), BOUNDS["float64"])
    with pytest.raises(AssertionError, match="shape"):
        check_close("output 0", np.zeros((1,)), np.zeros(()), BOUNDS["float64"])
    with pytest.raises(AssertionError):
        check_close("output 0", np.array([math.nan]), np.array([1.0]), BOUNDS["float64"])


def test_a_wrong_gradient_would_be_seen():
    row = next(r for r in ROWS if r.key == "mul")
    check_row(row, RECORDED["mul"], lambda tensors: ops.mul(*tensors))
    with pytest.raises(AssertionError, match="gradient 1"):
        check_row(row, RECORDED["mul"], lambda tensors: ops.mul(tensors[0], ops.stop_gradient(tensors[1])))
    with pytest.raises(AssertionError, match="2 outputs"):
        check_row(
            dataclasses.replace(row, name="add"),
            RECORDED["mul"],
            lambda tensors: (ops.mul(*tensors), ops.add(*tensors)),
        )
