"""Operators on the examples of their declarations against numpy: results, dtypes, gradients, in both precisions."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest

from parallel_lab.nn.tensor.autograd import gradients
from parallel_lab.nn.tensor.parameter import Parameter
from parallel_lab.nn.tensor.tensor import Tensor
from parallel_lab.ops import OPS, PRIMITIVES
from tests.ops.in_numpy import BY_HAND, NUMPY
from tests.ops.test_eager import has_gradient, watched
from tests.ops.test_recorded_torch import call_class, call_operator
from tests.recorded import torch_elements, torch_layered, torch_shapes

SMOOTH = [(name, number) for name in NUMPY if has_gradient(OPS[name]) for number in range(len(OPS[name].cases))]
BOUND = {"float64": 1e-12, "float32": 1e-5}  # of the largest element; float32: several roundings of sums


def several(result):
    return result if isinstance(result, tuple) else (result,)


def called(op, case, operands, call=call_operator):
    if op.writes:
        operands = [Parameter(Tensor(np.array(operands[0]))), *operands[1:]]
    return several(call(SimpleNamespace(name=op.name, attrs=dict(case.attrs)), operands))


@pytest.mark.parametrize("name", NUMPY)
def test_results_are_numpys(name, rng):
    op = OPS[name]
    for case, (dtype, bound) in itertools.product(op.cases, BOUND.items()):
        arrays = case.arrays(rng)
        given = [a.astype(dtype) if a.dtype.kind == "f" else a for a in arrays]
        expected = several(NUMPY[name](*given, **dict(case.attrs)))
        found = called(op, case, given)
        if dtype == "float64" and op.class_name in PRIMITIVES:
            found, expected = (*found, *called(op, case, given, call_class)), expected * 2
        for ours, want in zip(found, expected, strict=True):
            ours, want = np.asarray(ours), np.asarray(want)
            assert ours.shape == want.shape and (want.dtype.kind != "f" or ours.dtype == dtype)
            assert ours.dtype.kind == want.dtype.kind or name == "population_count"  # unsigned in MindSpore
            np.testing.assert_allclose(ours, want, rtol=bound, atol=bound * np.abs(want).max())


@pytest.mark.quick(60)
@pytest.mark.parametrize(("name", "number"), SMOOTH)
def test_gradients_are_the_slopes_of_numpy(name, number, rng):
    """Along a random direction, of all float results together: central differences of the formula, not of ours."""
    op, case = OPS[name], OPS[name].cases[number]
    arrays = case.arrays(rng)
    ways = [rng.normal(size=a.shape) if a.dtype.kind == "f" else np.zeros(a.shape, a.dtype) for a in arrays]

    def floats(results):
        return [out for out in results if out.dtype.kind == "f"]

    def formula(step):
        moved = [a + (step * way).astype(a.dtype) for a, way in zip(arrays, ways, strict=True)]
        return floats(several(NUMPY[name](*moved, **dict(case.attrs))))

    tensors = watched(arrays)
    outs = floats(called(op, case, tensors))
    seeds = [rng.normal(size=out.shape) for out in outs]
    slopes = [s * (up - down) / 2e-5 for s, up, down in zip(seeds, formula(1e-5), formula(-1e-5), strict=True)]
    found = [gradients(out, tensors, seed) for out, seed in zip(outs, seeds, strict=True)]
    along = sum((g * way).sum() for each in found for g, way in zip(each, ways, strict=True))
    assert along == pytest.approx(sum(s.sum() for s in slopes), abs=1e-8 * (1 + sum(np.abs(s).sum() for s in slopes)))


def test_every_operator_with_an_example_is_in_one_of_the_columns():
    recorded = {row.name for row in torch_elements.ROWS + torch_shapes.ROWS + torch_layered.ROWS}
    drawn = {op.name for op in OPS.values() if "key" in op.options or "key" in op.defaults}  # test_random_numbers.py
    known = {*NUMPY, *BY_HAND, *recorded, *drawn}
    assert {op.name for op in OPS.values() if op.cases} - known == set()
    assert not {*NUMPY} & {*BY_HAND} and {*NUMPY, *BY_HAND} <= {*OPS}
