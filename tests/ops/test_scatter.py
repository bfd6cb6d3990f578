"""Rows put where numbers say: elements along a dim, what may be split, Parameters that take the result; `in_numpy.py`
has what each operator computes.
"""

import numpy as np
import pytest

from parallel_lab import ShapeError, StrategyError, Tensor, ops
from parallel_lab.mindspore import mint
from parallel_lab.nn.tensor.parameter import Parameter
from parallel_lab.ops.machine.legal_strategies import legal_strategies
from parallel_lab.ops.machine.registry import PRIMITIVES
from parallel_lab.ops.machine.sharding import default_strategy, sharding_rule
from tests.crossed import each_of
from tests.nets import cell
from tests.ops.compiled import behind, simulated
from tests.ops.in_numpy import WAYS, put

# every number stands for several rows, or for none
NUMBERS = np.array([3, 0, 3, 5, 0, 3])


def drawn(*shapes):
    rng = np.random.default_rng(11)
    return [rng.uniform(0.5, 2.0, shape) for shape in shapes]


@each_of(
    ("scatter", "way"),
    (lambda x, i, rows: ops.TensorScatterElements(1)(x, i, rows), "update"),
    (lambda x, i, rows: ops.TensorScatterElements(axis=-1, reduction="add")(x, i, rows), "add"),
    (lambda x, i, rows: ops.tensor_scatter_elements(x, i, rows, 1, "add"), "add"),
    (lambda x, i, rows: ops.scatter(x, 1, i, rows), "update"),
    (lambda x, i, rows: x.scatter(1, i, rows), "update"),
    (lambda x, i, rows: x.scatter_add(1, i, rows), "add"),
    (lambda x, i, rows: mint.scatter(x, dim=1, index=i, src=rows), "update"),
    (lambda x, i, rows: mint.scatter_add(x, 1, i, rows), "add"),
)
def test_elements_are_put_where_numbers_along_a_dim_say(scatter, way):
    """The indices may be fewer than the data's elements in the other dims too."""
    x, rows = drawn((6, 4), (5, 3))
    numbers = np.array([[3, 0, 3], [1, 1, 1], [0, 2, 0], [2, 3, 3], [-1, 0, 1]])
    places = [(i, number) for i, row in enumerate(numbers) for number in row]
    expected = put(x, places, rows.reshape(-1), WAYS[way])
    np.testing.assert_allclose(scatter(Tensor(x), Tensor(numbers), Tensor(rows)).asnumpy(), expected, rtol=1e-14)


def test_a_number_or_a_larger_source_is_scattered():
    x, index = Tensor(np.zeros((2, 3))), Tensor(np.array([[2], [0]]))
    assert ops.scatter(x, 1, index, 5.0).asnumpy().tolist() == [[0, 0, 5], [5, 0, 0]]
    source = Tensor(np.arange(6.0).reshape(2, 3))
    assert mint.scatter_add(x, 1, index, source).asnumpy().tolist() == [[0, 0, 0], [3, 0, 0]]


@each_of(
    ("shapes", "numbers", "allowed"),
    (((4, 3), (4,)), [0, 1, 2, 0], "The same number of dims"),
    (((4, 3), (5, 3)), np.zeros((5, 3), int), "no more elements"),
    (((4, 3), (4, 2)), np.zeros((4, 3), int), "One for each of the indices"),
    (((4, 3), (4, 1)), np.full((4, 1), 3), "Indices from -3 to 2"),
)
def test_invalid_numbers_of_elements_are_refused(shapes, numbers, allowed):
    x, rows = drawn(*shapes)
    with pytest.raises(ShapeError, match=allowed):
        ops.TensorScatterElements(1)(Tensor(x), Tensor(np.array(numbers)), Tensor(rows))


def test_whole_numbers_are_divided_towards_zero():
    kept = Parameter(Tensor(np.array([7, -7, 9], np.int32)), name="kept")
    ops.scatter_div(kept, Tensor([0, 1, 0]), Tensor(np.array([2, 2, 2], np.int32)))
    assert kept.asnumpy().tolist() == [1, -3, 9]


@each_of(
    ("method", "how"),
    ("tensor_scatter_update", "update"),
    *((f"scatter_{how}", how) for how in WAYS if how != "update"),
)
def test_methods_of_a_tensor_scatter_by_coordinates(method, how):
    x, rows = drawn((6, 4), (6, 4))
    made = getattr(Tensor(x), method)(Tensor(NUMBERS[:, None]), Tensor(rows))
    np.testing.assert_allclose(np.asarray(made), put(x, NUMBERS, rows, WAYS[how]), rtol=1e-14)


@each_of(
    ("name", "fold", "empty"),
    ("sum", np.sum, 0),
    ("prod", np.prod, 1),
    ("max", np.max, np.iinfo(np.int32).min),
    ("min", np.min, np.iinfo(np.int32).max),
)
def test_segments_of_whole_numbers_leave_out_what_belongs_to_none(name, fold, empty):
    x = np.arange(1, 25, dtype=np.int32).reshape(6, 4)
    ids = np.array([2, 0, 2, -1, 4, 9])  # -1 and 9 are of no segment, 1 and 3 have no part
    expected = [fold(x[ids == i], axis=0) if (ids == i).any() else np.full(4, empty) for i in range(5)]
    found = np.asarray(getattr(ops, f"unsorted_segment_{name}")(Tensor(x), Tensor(ids), 5))
    assert found.dtype == np.int32
    np.testing.assert_array_equal(found, expected)


# ---- what may be split ----

ROWS, ND = ((8, 4), (6,), (6, 4)), ((8, 4, 2), (6, 2), (6, 2))
REFUSED = {
    "rows of an update": ("ScatterUpdate", ROWS, {}, ((2, 1), (1,), (1, 1)), "dim 0 of input 0"),
    "rows of a maximum": ("ScatterMax", ROWS, {}, ((2, 1), (1,), (1, 1)), "dim 0 of input 0"),
    "the indices": ("ScatterAdd", ROWS, {}, ((1, 1), (2,), (1, 1)), "dim 0 of input 1"),
    "the updates' first dim": ("ScatterAdd", ROWS, {}, ((1, 1), (1,), (2, 1)), "dim 0 of input 2"),
    "columns of one input": ("ScatterAdd", ROWS, {}, ((1, 2), (1,), (1, 1)), "All inputs must split it equally"),
    "a numbered dim of an update": ("TensorScatterUpdate", ND, {}, ((1, 2, 1), (1, 1), (1, 1)), "dim 1 of input 0"),
    "a numbered dim of a minimum": ("TensorScatterMin", ND, {}, ((2, 1, 1), (1, 1), (1, 1)), "dim 0 of input 0"),
    "coordinates": ("ScatterNdAdd", ND, {}, ((1, 1, 1), (1, 2), (1, 1)), "dim 1 of input 1"),
    "rows of an Inplace": ("InplaceAdd", ((8, 4), (1, 4)), {"indices": 3}, ((2, 1), (1, 1)), "dim 0 of input 0"),
    "what a GatherNd gathers from": ("GatherNd", ((8, 4), (6, 1)), {}, ((1, 2), (1, 1)), "dim 1 of input 0"),
}


@pytest.mark.parametrize("how", REFUSED)
def test_dims_that_must_stay_whole_are_refused_by_their_number(how):
    name, shapes, attrs, strategy, words = REFUSED[how]
    op = PRIMITIVES[name].op
    with pytest.raises(StrategyError, match=words):
        sharding_rule(op, shapes, {**op.default_attrs, **attrs}, strategy, 8)


@each_of(
    ("name", "shapes", "parts"),
    ("ScatterAdd", ROWS, {(8, 1), (4, 2), (1, 1)}),
    ("ScatterDiv", ROWS, {(8, 1), (4, 2), (1, 1)}),
    ("ScatterNdSub", ND, {(8, 1, 1), (2, 4, 1), (2, 2, 2)}),
    ("TensorScatterMul", ND, {(8, 1, 1), (2, 4, 1), (2, 2, 2)}),
)
def test_numbered_dims_are_split_where_a_rank_needs_no_other(name, shapes, parts):
    op = PRIMITIVES[name].op
    attrs = op.default_attrs
    assert parts <= {strategy[0] for strategy in legal_strategies(op, shapes, attrs, 8)}
    assert all(n == 1 for cuts in default_strategy(op, shapes, attrs, 8) for n in cuts)
    rule = sharding_rule(op, shapes, attrs, next(s for s in legal_strategies(op, shapes, attrs, 8) if s[0][0] > 1), 8)
    assert not rule.out.is_partial


def writing(prim, table, indices, updates):
    """A trained table that an operator writes, read before and after."""
    indices, updates, table = Tensor(indices), Tensor(updates), Parameter(Tensor(table), name="table")
    return cell(lambda net, x: ops.relu(net.prim(net.table, indices, updates) + x), prim=prim, table=table)


@each_of(
    ("how", "strategy"),
    ("Add", ((8, 1), (1,), (1, 1))),
    ("Update", ((1, 4), (1,), (1, 4))),
    ("Mul", ((2, 2), (1,), (1, 2))),
    ("Max", None),
)
def test_a_compiled_network_keeps_what_was_scattered_into_its_parameter(how, strategy):
    table, rows, x = drawn((8, 4), (6, 4), (8, 4))
    prim = PRIMITIVES[f"Scatter{how}"]()
    net = writing(prim if strategy is None else prim.shard(strategy), table, NUMBERS, rows)
    plan, sim = simulated(net, x, table=table)
    once = put(table, NUMBERS, rows, WAYS[how.lower()])
    np.testing.assert_allclose(sim.full(plan.outputs[0]), once + x, rtol=1e-14)
    sim.run_step(x)
    twice = put(once, NUMBERS, rows, WAYS[how.lower()])
    np.testing.assert_allclose(sim.full(plan.outputs[0]), twice + x, rtol=1e-14)
    assert not [i for i in plan.stages[0].program("forward") if i.is_communication and i.name == "prim"]


# ---- indices outside ----

WRONG = {
    "a number outside": (
        lambda x, r: ops.scatter_add(x, Tensor([9]), r),
        ShapeError,
        "an index is 9. Indices from 0 to 7",
    ),
    "a negative one": (lambda x, r: ops.tensor_scatter_add(x, Tensor([[-1]]), r), ShapeError, "an index is -1"),
    "too many coordinates": (
        lambda x, r: ops.tensor_scatter_add(x, Tensor([[1, 2, 3]]), r),
        ShapeError,
        "A last dim of 1 to 2 coordinates",
    ),
    "fractions": (lambda x, r: ops.gather_nd(x, Tensor([[1.0]])), ShapeError, "must be ints"),
    "rows of another length": (lambda x, r: ops.scatter_add(x, Tensor([0, 1]), r), ShapeError, "ScatterAdd: operand 2"),
    "a Tensor": (lambda x, r: ops.scatter_add(Tensor(x.asnumpy()), Tensor([0]), r), TypeError, "A Parameter"),
    "a number as a table": (
        lambda x, r: ops.embedding_lookup(np.float32(1), np.array([0])),
        ShapeError,
        "Look-ups need a table with 1 or",
    ),
    "indices of Inplace": (lambda x, r: ops.inplace_add(x, r, indices=(8,)), ShapeError, "from 0 to 7"),
    "rows of Inplace": (lambda x, r: ops.inplace_add(x, r, indices=(1, 2)), ShapeError, r"v has shape \(1, 4\)"),
}


@pytest.mark.parametrize("how", WRONG)
def test_what_cannot_be_scattered_is_refused_in_words(how):
    call, error, words = WRONG[how]
    x, row = drawn((8, 4), (1, 4))
    with pytest.raises(error, match=words):
        call(Parameter(Tensor(x), name="x"), Tensor(row))


# ---- an extreme and its number, along a split dim ----


@each_of("keep_dims", False, True)
@pytest.mark.parametrize("name", ["ArgMaxWithValue", "ArgMinWithValue"])
def test_an_extreme_of_a_split_dim_has_the_number_that_one_device_finds(name, keep_dims):
    # equal extremes on several ranks: the first counts; the last row's is not a number, as numpy's is then
    x = np.array([[1, 5, 5, 2, 5, 0, 0, 1], [0] * 8, [3, 1, 1, 3, 1, 3, 3, 1], [2, 1, np.nan, 7, 0, np.nan, 8, 1]])
    plan, sim = simulated(behind(PRIMITIVES[name](axis=1, keep_dims=keep_dims), ((2, 4),)), x)
    numbers, values = (sim.full(out) for out in plan.outputs)
    place, extreme = (np.argmax, np.max) if "Max" in name else (np.argmin, np.min)
    np.testing.assert_array_equal(numbers, place(x, axis=1, keepdims=keep_dims))
    np.testing.assert_array_equal(values, extreme(x, axis=1, keepdims=keep_dims))
    assert numbers.dtype == np.int32
