"""Every operator on distributed tensors that lie anyhow: results and gradients are one device's, or it is refused."""

import math

import numpy as np
import pytest

import parallel_lab as pl
from parallel_lab import ops
from parallel_lab.base.errors import ParallelLabError
from parallel_lab.layout.mesh_layout import MeshLayout, Partial, Replicate, Shard
from parallel_lab.nn.tensor.autograd import gradients
from parallel_lab.nn.tensor.dtensor import DTensor
from parallel_lab.ops.machine.registry import OPS
from tests.ops.test_battery import has_rule, results
from tests.recorded.ask_rosetta import addend

MESHES = [pl.DeviceMesh((2,), ("a",)), pl.DeviceMesh((4,), ("a",)), pl.DeviceMesh((2, 2), ("a", "b"))]
DRAWS = 10
# windows, messages and statistics of its own first: these are the ones of a quick run
CASES = sorted(
    ((name, i) for name, op in OPS.items() for i, _ in enumerate(op.cases)),
    key=lambda each: (not (OPS[each[0]].window or OPS[each[0]].unfold or "norm" in each[0]), each),
)


def drawn_layout(mesh, array, rng):
    """A layout in which ranks hold equal parts of an array; addends of floats, too."""
    while True:
        kinds = [Replicate(), *(Shard(dim) for dim in range(array.ndim) for _ in range(2))]
        kinds += [Partial()] * (array.dtype.kind == "f")
        layout = MeshLayout(mesh, tuple(kinds[i] for i in rng.integers(len(kinds), size=mesh.ndim)))
        cuts = [math.prod(mesh.shape[mesh.axis(name)] for name in names) for names in layout.dims(array.ndim)]
        if all(size % cut == 0 for size, cut in zip(array.shape, cuts, strict=True)):
            return layout


def distributed(array, layout):
    """An array in a layout. Addends differ by rank, so that one left out shows."""

    def part(rank):
        mine = array[np.ix_(*layout.indices(array.shape, rank))] if array.shape else array
        for axis, placement in enumerate(layout.placements):
            if isinstance(placement, Partial):
                mine = addend(mine, "sum", layout.mesh.coordinates(rank)[axis], layout.mesh.shape[axis])
        return np.array(mine)

    whole = DTensor.from_local(part, layout.mesh, layout.placements, shape=array.shape)
    return whole.requires_grad_(array.dtype.kind == "f")


def weighted(outs, weights):
    """sum(results * weights), a number to which every element contributes differently."""
    return sum((out * weight).sum() for out, weight in zip(outs, weights, strict=True))


@pytest.mark.quick(40)
@pytest.mark.parametrize(("name", "number"), CASES, ids=[f"{name}-{i}" for name, i in CASES])
def test_operators_equal_one_device_in_drawn_layouts(name, number):
    op = OPS[name]
    case, rng = op.cases[number], np.random.default_rng([number, *name.encode()])
    attrs, arrays = {**op.default_attrs, **dict(case.attrs)}, case.arrays(np.random.default_rng(0))
    expected, refused = results(op, case, arrays), 0
    alone = [pl.Parameter(a, name=f"x{i}") if a.dtype.kind == "f" else pl.Tensor(a) for i, a in enumerate(arrays)]
    for _ in range(DRAWS):
        mesh = MESHES[rng.integers(len(MESHES))]
        layouts = [drawn_layout(mesh, a, rng) for a in arrays]
        lies, operands = (
            ", ".join(map(str, layouts)),
            [distributed(*each) for each in zip(arrays, layouts, strict=True)],
        )
        try:
            made = op.call(operands, attrs)
        except ParallelLabError:
            refused += 1
            continue
        outs = made if isinstance(made, tuple) else (made,)
        for out, want in zip(outs, expected, strict=True):
            np.testing.assert_allclose(out.asnumpy(), want, rtol=1e-9, atol=1e-9, err_msg=lies)
        wanted = [i for i, out in enumerate(outs) if out.dtype.kind == "f" and out.requires_grad]
        if not wanted or not has_rule(op):
            continue
        weights = [np.random.default_rng(i).uniform(0.5, 1.5, outs[i].shape) for i in wanted]
        whole = op.call(alone, attrs)
        whole = whole if isinstance(whole, tuple) else (whole,)
        parameters = [x for x in alone if isinstance(x, pl.Parameter)]
        grads = gradients(weighted([whole[i] for i in wanted], map(pl.Tensor, weights)), parameters)
        copies = [pl.distribute_tensor(w, mesh, [Replicate()] * mesh.ndim) for w in weights]
        weighted([outs[i] for i in wanted], copies).backward()
        for operand, want in zip((x for x in operands if x.dtype.kind == "f"), grads, strict=True):
            got = np.zeros_like(want) if operand.grad is None else operand.grad.asnumpy()
            np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-9, err_msg=lies)
    assert refused in (0, DRAWS)  # whether an operator is there does not depend on where its operands lie


BROADCAST = {
    "0 / y": lambda x, y: 0.0 / y,
    "2 / y": lambda x, y: 2.0 / y,
    "x / y": lambda x, y: x / y,
    "y / x": lambda x, y: y / x,
    "x y": lambda x, y: x * y,
    "x ** y": lambda x, y: x**y,
    "y ** x": lambda x, y: y**x,
    "x ** 0": lambda x, y: x**0 * y,
    "larger": lambda x, y: ops.maximum(x, y) + ops.maximum(1.5, y),
    "smaller": lambda x, y: ops.minimum(y, x) + ops.minimum(y, 1.5),
}


@pytest.mark.parametrize("name", BROADCAST)
@pytest.mark.parametrize("wanted", [(True, True), (True, False), (False, True)], ids=["both", "first", "second"])
def test_formulas_of_gradients_hold_for_numbers_and_for_dims_that_spread(name, wanted):
    """x: (2, 2), y: (2,); elements are equal, and numbers are 0."""
    x, y = np.array([[1.0, 2.0], [1.5, 0.5]]), np.array([2.0, 1.5])
    alone = [pl.Parameter(x, name="x"), pl.Parameter(y, name="y")]
    grads = gradients(BROADCAST[name](*alone).sum(), alone)
    for layout in ([Replicate()], [Shard(0)], [Partial()]):
        operands = [distributed(a, MeshLayout(MESHES[0], tuple(layout))) for a in (x, y)]
        operands = [operand.requires_grad_(asked) for operand, asked in zip(operands, wanted, strict=True)]
        result = BROADCAST[name](*operands).sum()
        if result.requires_grad:
            result.backward()
        for operand, asked, want in zip(operands, wanted, grads, strict=True):
            got = np.zeros_like(want) if operand.grad is None else operand.grad.asnumpy()
            np.testing.assert_allclose(got, want * asked, rtol=1e-12, err_msg=str(layout))
