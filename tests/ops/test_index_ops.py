"""Looking up and adding up rows by number: what split tables send, what is refused, sums in a fixed order."""

import numpy as np
import pytest

from parallel_lab import ShapeError, StrategyError, Tensor, compile, nn, ops, set_compat
from parallel_lab.graph.passes import PASSES
from parallel_lab.mindspore import mint
from parallel_lab.nn.tensor.autograd import gradients
from parallel_lab.nn.tensor.parameter import Parameter
from parallel_lab.ops.gather import add_rows
from parallel_lab.ops.machine.legal_strategies import legal_strategies
from parallel_lab.ops.machine.registry import OPS, PRIMITIVES
from parallel_lab.ops.machine.result_layouts import result_layouts
from parallel_lab.ops.machine.sharding import default_strategy, sharding_rule
from parallel_lab.run.simulator import Simulator
from tests.crossed import each_of
from tests.nets import cell
from tests.ops.compiled import results, simulated

TABLE = np.random.default_rng(0).normal(size=(16, 4))


def looking_up(strategy, prim=None):
    """sum of weight * rows of a table."""
    table, prim = Parameter(Tensor(TABLE), name="table"), (prim or ops.Gather()).shard(strategy)
    return cell(lambda net, i, weight: ops.reduce_sum(net.prim(net.table, i, 0) * weight), table=table, prim=prim)


def run(strategy, indices, prim=None):
    """Loss, gradient of the table and forward messages on 8 ranks."""
    weight = np.random.default_rng(1).normal(size=(*indices.shape, 4))
    plan = compile(
        looking_up(strategy, prim), indices, weight, device_num=8, dataset_strategy="full_batch", passes=PASSES
    )
    sim = Simulator(plan, {"table": TABLE})
    loss = float(sim.run_step(indices, weight))
    gradient = np.zeros_like(TABLE)
    np.add.at(gradient, indices, weight)
    messages = [i for i in plan.stages[0].program("forward") if i.is_communication and i.name == "prim"]
    return loss, (TABLE[indices] * weight).sum(), sim.full(dict(plan.gradients)["table"]), gradient, messages


# every rank's rows are asked for, some twice, some not at all
INDICES = np.array([[0, 15], [3, 3], [8, 7], [9, 0]])


@pytest.mark.parametrize("strategy", [((8, 1), (1, 1)), ((2, 1), (1, 1)), ((2, 4), (1, 1)), ((4, 1), (2, 1))])
def test_a_table_with_cut_rows_is_looked_up_by_one_all_reduce(strategy):
    loss, expected, gradient, expected_gradient, messages = run(strategy, INDICES)
    assert loss == pytest.approx(expected, rel=1e-12)
    np.testing.assert_allclose(gradient, expected_gradient, rtol=1e-12, atol=1e-15)
    assert [(m.kind, m.attr("reduce"), m.group_size) for m in messages] == [("all_reduce", "sum", strategy[0][0])]


@pytest.mark.parametrize("strategy", [((1, 4), (2, 1)), ((1, 1), (4, 2)), ((1, 4), (1, 1))])
def test_a_table_with_whole_rows_is_looked_up_without_messages(strategy):
    loss, expected, gradient, expected_gradient, messages = run(strategy, INDICES)
    assert loss == pytest.approx(expected, rel=1e-12)
    np.testing.assert_allclose(gradient, expected_gradient, rtol=1e-12, atol=1e-15)
    assert not messages


def test_an_infinite_row_does_not_reach_the_rows_of_other_ranks():
    table = TABLE.copy()
    table[0] = np.inf
    (got,) = results(looking_up(((8, 1), (1, 1))), np.array([[9], [3]]), np.ones((2, 1, 4)), table=table)
    assert float(got) == pytest.approx(TABLE[[9, 3]].sum())


FIRST = {"axis": 0}
PLAIN = ((16, 4), (8,))
REFUSED = {
    "rows and indices": (PLAIN, FIRST, ((2, 1), (4,)), r"rows that are looked up\) 2 ways, and the indices too"),
    "rows of 3-D tables": (((16, 4, 2), (8,)), FIRST, ((2, 1, 1), (1,)), "the table has 3 dims"),
    "columns of 3-D tables": (((4, 16, 2), (8,)), {"axis": 1}, ((1, 2, 1), (1,)), "the table has 3 dims"),
    "columns and indices": (((4, 16), (8,)), {"axis": 1}, ((1, 2), (2,)), r"dim 1 of input 0 \('b', .*indices too"),
    "columns that do not scatter": (((4, 16), (8,)), {"axis": 1}, ((2, 4), (1,)), "dim 0, which has 4 elements, 2"),
    "rows of batches": (((4, 8), (4, 2)), {"axis": 1, "batch_dims": 1}, ((1, 2), (1, 1)), "batch_dims is 1"),
    "one side of a batch": (((4, 8), (4, 2)), {"axis": 1, "batch_dims": 1}, ((2, 1), (1, 1)), "split it equally"),
    "both and columns": (((16, 4), (8, 2)), FIRST, ((2, 2), (2, 2)), "the indices too"),
    "the second dim of the indices": (((16, 4), (8, 2)), FIRST, ((4, 1), (1, 2)), "the indices too"),
    "one index": (((16, 4), ()), FIRST, ((2, 1), ()), "the index is one number"),
    "rows, indices and columns": (((16, 4), (8, 2)), FIRST, ((2, 2), (2, 1)), "the indices too"),
}


@pytest.mark.parametrize("how", REFUSED)
def test_cut_rows_have_their_conditions(how):
    shapes, attrs, strategy, words = REFUSED[how]
    with pytest.raises(StrategyError, match=words):
        sharding_rule(OPS["gather"], shapes, attrs, strategy, 8)


# shapes, attributes, strategy, the result's splits by the seeds' rule and by 2.10's (MindSpore, Gather: GetGatherMode;
# the second one recorded: a table of (64, 32) split (8, 1), indices (16, 4))
MODES = {
    "NORMAL": (((64, 32), (16, 4)), {}, ((1, 2), (4, 1)), (4, 1, 2), (4, 1, 2)),
    "ROWS": (((64, 32), (16, 4)), {}, ((8, 1), (1, 1)), (1, 1, 1), (8, 1, 1)),
    "ROWS that do not scatter": (((64, 32), (6, 4)), {}, ((8, 1), (1, 1)), (1, 1, 1), (1, 1, 1)),
    "ROWS of a part of the devices": (((64, 32), (16, 4)), {}, ((2, 1), (1, 1)), (1, 1, 1), (2, 1, 1)),
    "ROWS and columns": (((64, 32), (16, 4)), {}, ((2, 4), (1, 1)), (1, 1, 4), (2, 1, 4)),
    "COLUMNS": (((64, 32), (16, 4)), {"axis": 1}, ((2, 4), (1, 1)), (2, 1, 1), (8, 1, 1)),
    "BATCH": (((8, 32, 6), (8, 4)), {"axis": 1, "batch_dims": 1}, ((4, 1, 2), (4, 1)), (4, 1, 2), (4, 1, 2)),
    "BATCH_AND_AXIS": (((64, 32), (16, 4)), {}, ((4, 1), (2, 1)), (2, 1, 1), (2, 1, 1)),
    "BATCH_AXIS_SP": (((64, 32), (16, 4)), {}, ((2, 1), (2, 2)), (2, 2, 1), (2, 2, 1)),
}


@pytest.mark.parametrize("compat", ["seeds", "2.10"])
@pytest.mark.parametrize("mode", MODES)
def test_sums_of_split_rows_are_scattered_as_compat_says(mode, compat):
    shapes, attrs, strategy, *splits = MODES[mode]
    op, given = OPS["gather"], {**OPS["gather"].default_attrs, **attrs}
    rule, found = sharding_rule(op, shapes, given, strategy, 8), op.infer(shapes, ("float32", "int32"), given)
    set_compat(compat)
    try:
        assert result_layouts(op, rule, found.shapes, None)[0].splits == splits[compat == "2.10"]
    finally:
        set_compat("seeds")


def test_by_2_10_a_table_with_split_rows_is_looked_up_by_a_reduce_scatter():
    set_compat("2.10")
    try:
        loss, expected, gradient, expected_gradient, messages = run(((4, 1), (1, 1)), INDICES)
    finally:
        set_compat("seeds")
    assert loss == pytest.approx(expected, rel=1e-12)
    np.testing.assert_allclose(gradient, expected_gradient, rtol=1e-12, atol=1e-15)
    assert [(m.kind, m.group_size) for m in messages] == [("reduce_scatter", 4)]


def along(dim, strategy):
    """GatherD along a dim that the strategy may split."""
    return cell(lambda net, x, index: net.prim(x, dim, index), prim=ops.GatherD().shard(strategy))


@each_of(
    ("dim", "strategy"), (0, ((4, 1), (1, 1))), (0, ((2, 4), (1, 4))), (1, ((1, 8), (1, 1))), (1, ((2, 2), (2, 1)))
)
def test_elements_along_a_split_dim_are_found_where_they_are(dim, strategy):
    rng = np.random.default_rng(3)
    x, index = rng.normal(size=(8, 8)), rng.integers(0, 8, (8, 8))
    plan, sim = simulated(along(dim, strategy), x, index)
    np.testing.assert_array_equal(sim.full(plan.outputs[0]), np.take_along_axis(x, index, dim))
    messages = [i for i in plan.stages[0].program("forward") if i.is_communication]
    assert [(m.kind, m.group_size) for m in messages] == [("all_reduce", strategy[0][dim])]


def test_no_search_splits_the_dim_that_elements_are_gathered_along():
    shapes, attrs = ((8, 8), (8, 8)), {"dim": 1}
    op = OPS["gather_elements"]
    assert any(x[1] > 1 for x, _ in legal_strategies(op, shapes, attrs, 8))
    assert all(x[1] == 1 for x, _ in legal_strategies(op, shapes, attrs, 8, searched=True))
    assert default_strategy(op, shapes, {"dim": 0}, 8) == ((1, 1), (1, 1))
    assert default_strategy(op, shapes, {"dim": 1}, 8) == ((8, 1), (8, 1))


PICKED = {
    "gather of batches": (
        lambda x, i: ops.gather(x, i % 3, 1, 1),
        lambda x, i: np.stack([x[b][i[b] % 3] for b in range(4)]),
    ),
    "gather_nd": (lambda x, i: ops.gather_nd(x, i % 2), lambda x, i: x[tuple(np.moveaxis(i % 2, -1, 0))]),
    "index_select": (lambda x, i: ops.index_select(x, 2, i[:, 0]), lambda x, i: x[:, :, i[:, 0]]),
    "index_select of a Tensor": (lambda x, i: x.index_select(1, i[0] % 3), lambda x, i: x[:, i[0] % 3]),
    "gather of mint": (lambda x, i: mint.gather(x[:, 0], 1, i), lambda x, i: np.take_along_axis(x[:, 0], i, 1)),
    "Embedding": (lambda x, i: PRIMITIVES["Embedding"]()(i, x[0]), lambda x, i: x[0][i]),
}


@pytest.mark.parametrize("how", PICKED)
def test_what_is_picked_is_what_numpy_picks(how):
    x, i = np.random.default_rng(5).normal(size=(4, 3, 5)), np.array([[0, 2], [1, 1], [0, 0], [2, 1]])
    fn, expected = PICKED[how]
    x = x.swapaxes(0, 1) if how == "Embedding" else x  # a table of 4 rows
    np.testing.assert_array_equal(np.asarray(fn(Tensor(x), Tensor(i))), expected(x, i))


@each_of(("bad", "words"), ([0, 16], "an index is 16. Indices from 0 to 15"), ([3, -1], "an index is -1"))
def test_an_index_outside_the_table_is_refused(bad, words):
    with pytest.raises(ShapeError, match=f"Gather: {words}"):
        ops.gather(Tensor(TABLE), np.array(bad))
    with pytest.raises(ShapeError, match="GatherD: an index is"):
        ops.gather_elements(Tensor(TABLE), 0, np.array(bad)[:, None].repeat(4, 1))


@pytest.mark.parametrize("count", [1, 7, 40, 2000], ids="{} rows".format)
@pytest.mark.parametrize("numbers", [1, 3, 500])
def test_rows_are_added_in_their_order(count, numbers):
    """Up to 32 rows of a number: bit for bit the loop `total[i] += row`; of more, the same sum to rounding."""
    rng = np.random.default_rng([count, numbers])
    rows, indices = rng.normal(size=(count, 3)).astype(np.float32), rng.integers(0, numbers, count)
    expected = np.zeros((numbers, 3), np.float32)
    for i, row in zip(indices, rows, strict=True):
        expected[i] += row
    got, few = add_rows(rows, indices, numbers), np.bincount(indices, minlength=numbers) <= 32
    np.testing.assert_array_equal(got[few], expected[few])
    np.testing.assert_allclose(got, expected, atol=np.finfo(np.float32).eps * count * np.abs(rows).max())


def test_a_sum_does_not_depend_on_rows_of_other_numbers():
    rng = np.random.default_rng(5)
    rows, indices = rng.normal(size=(600, 3)).astype(np.float32), rng.choice([0, 1, 2, 2, 2, 2, 2, 2], 600)
    together = add_rows(rows, indices, 3)
    for i in range(3):
        alone = add_rows(rows[indices == i], indices[indices == i], 3)
        np.testing.assert_array_equal(together[i], alone[i])


def test_no_rows_add_to_nothing():
    np.testing.assert_array_equal(add_rows(np.zeros((0, 2)), np.zeros(0, int), 3), np.zeros((3, 2)))


def test_segments_outside_are_left_out_and_get_no_gradient():
    x = Parameter(Tensor(TABLE[:5]))
    ids = np.array([0, -1, 2, 0, 3])
    out = ops.unsorted_segment_sum(x, ids, 3)
    np.testing.assert_array_equal(np.asarray(out), [TABLE[0] + TABLE[3], np.zeros(4), TABLE[2]])
    seed = np.arange(12.0).reshape(3, 4)
    np.testing.assert_array_equal(gradients(out, [x], seed)[0], [seed[0], np.zeros(4), seed[2], seed[0], np.zeros(4)])


def test_a_sliced_dim_is_not_cut():
    attrs = {"begin": (0, 1), "end": (16, 3), "strides": None}
    assert sharding_rule(OPS["strided_slice"], ((16, 4),), attrs, ((8, 1),), 8).out.splits == (8, 1)
    words = r"splits dim 1 of input 0 2 ways, but StridedSlice works along that dim.*Try \(\(4, 1\),\)"
    with pytest.raises(StrategyError, match=words):
        sharding_rule(OPS["strided_slice"], ((16, 4),), attrs, ((4, 2),), 8)


GIVEN = np.ones((4, 3), np.float32)
WRONG = {
    "gather floats": (lambda: ops.gather(GIVEN, GIVEN), "Gather: the indices are float32"),
    "slice length": (lambda: ops.strided_slice(GIVEN, (0, 0, 0), (1, 1, 1)), "At most one int per dim"),
    "slice step": (lambda: ops.strided_slice(GIVEN, (0,), (1,), (0,)), "Steps other than 0"),
    "elements dims": (lambda: ops.gather_elements(GIVEN, 0, np.array([0])), r"index has shape \(1,\)"),
    "segments shape": (lambda: ops.unsorted_segment_sum(GIVEN, np.zeros(3, int), 2), "The first dims of x"),
    "lookup dims": (lambda: ops.embedding_lookup(np.ones((2, 2, 2)), np.array([0])), "a table with 1 or 2 dims"),
}


@pytest.mark.parametrize("how", WRONG)
def test_what_cannot_be_looked_up_is_refused(how):
    call, words = WRONG[how]
    with pytest.raises(ShapeError, match=words):
        call()


@pytest.mark.parametrize(("index", "expected"), [(2, 1.0), (5, 0.0)])
def test_one_number_looked_up_in_a_vector(index, expected):
    """TypeError: numpy made a number of it, which takes no assignment."""
    out = ops.embedding_lookup(np.array([0.0, 1.0, 2.0]), np.asarray(index), 1)
    assert out.shape == () and out == expected


def test_what_data_make_impossible_is_said_with_rank_and_line():
    """A plan that ran into a bad index told neither; numpy's own errors came through as they were."""

    class Net(nn.Cell):
        def construct(self, x, i):
            return ops.power(i, ops.gather(i, i, 0)) + ops.cast(ops.reduce_sum(x), "int64")

    x, i = np.ones((4, 3)), np.array([1, 0, 1, 0])
    plan = compile(Net(), x, i, device_num=2, dataset_strategy="full_batch")
    with pytest.raises(ShapeError, match=r"'gather' on rank 0 \(test_index_ops.py:\d+\): Gather: an index is 9"):
        Simulator(plan, {}).run_step(x, np.array([9, 0, 0, 0]))
    plan = compile(lambda i: ops.power(i, i), i, device_num=2, dataset_strategy="full_batch")
    with pytest.raises(ShapeError, match=r"'pow' on rank 0 .*negative integer powers"):
        Simulator(plan, {}).run_step(-1 - i)
