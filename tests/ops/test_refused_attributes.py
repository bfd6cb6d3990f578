"""Junk drawn from the check of every attribute of every operator is refused, with operator, value and what is allowed.

Only refusals that depend on several values at once, or whose text is the point, stand in the operators' own tests.
"""

from __future__ import annotations

import numpy as np
import pytest

from parallel_lab import ShapeError
from parallel_lab.base.checks import Check
from parallel_lab.base.errors import shorten
from parallel_lab.nn.tensor.parameter import Parameter
from parallel_lab.nn.tensor.tensor import Tensor
from parallel_lab.ops import OPS, PRIMITIVES
from parallel_lab.ops.machine.operand_checks import any_dims, filled_dim, new_dim, one_dim, some_dims
from tests.junk import Loud, outside
from tests.ops.test_eager import EXTRA

DIMS = {one_dim: 0, filled_dim: 0, new_dim: 1, some_dims: 0, any_dims: 0}  # check: dims more than the operand has
TAKEN = {(name, "ddof", repr(switch)) for name in ("var", "std") for switch in (True, False)}  # as in MindSpore
TAKEN |= {("squeeze", "axis", "None")}
OTHER_WORDS = {("avg_pool_3d", "ceil_mode")}  # None, which max_pool_3d takes, is for the class alone

PLAIN = (int, float, str, bool, type(None), Loud)  # a call reads lists and numpy's numbers before the check sees them


def examples(op):
    return [*op.cases, *EXTRA[op.name]]


def words_of(check, case):
    """What a check says that it takes."""
    if check in DIMS:
        dims = len(case.shapes[0]) + DIMS[check]
        return f"An int from {-dims} to {dims - 1}"
    return getattr(check, "allowed", "")


def unfit(op, case):
    """(attribute, value, what stands in the refusal) for all attributes that have a check."""
    found = []
    for name, check in op.attrs.items():
        words = words_of(check, case)
        values = [value for value in outside(Check(words, None)) if type(value) in PLAIN]
        found += [(name, value, words) for value in values if not (check is any_dims and value is None)]
        if check in (some_dims, any_dims):
            found.append((name, (0, -len(case.shapes[0])), "names a dim twice"))
    return [each for each in found if (op.name, each[0], repr(each[1])) not in TAKEN]


def called(op, case, by_class=False, **attrs):
    """The operator on an example, as a function or through its class, which may refuse before it has any operand."""
    arrays = case.arrays(np.random.default_rng(0))
    if op.writes:
        arrays[0] = Parameter(Tensor(arrays[0]))
    attrs = {**dict(case.attrs), **attrs}
    if by_class:
        primitive = PRIMITIVES[op.class_name](**{n: attrs[n] for n in op.options if n in attrs})
        named = {**op.defaults, **attrs, **dict(zip(op.tensors, arrays, strict=not op.variadic))}
        return primitive(*arrays) if op.variadic else primitive(*(named[n] for n in op.positional))
    return op(*arrays, **attrs) if op.variadic else op(**dict(zip(op.tensors, arrays, strict=True)), **attrs)


@pytest.mark.parametrize("operator", [op.name for op in OPS.values() if op.attrs and examples(op)])
def test_an_attribute_that_its_check_does_not_take_is_refused_by_function_and_class(operator):
    op = OPS[operator]
    case = examples(op)[0]
    for name, value, words in unfit(op, case):
        for by_class in (False, True)[: 1 + (name in op.options and op.class_name in PRIMITIVES)]:
            with pytest.raises(ShapeError) as caught:
                called(op, case, by_class, **{name: value})
            text = str(caught.value)
            assert text.startswith(f"{op.class_name}: {name}") and shorten(value) in text, text
            assert words in text or by_class or (operator, name) in OTHER_WORDS, text
            if op.attrs[name] in (one_dim, filled_dim, some_dims, any_dims) and not by_class:
                assert f"for a tensor of shape {case.shapes[0]}" in text
