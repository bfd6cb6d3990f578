"""Looking up and adding up rows by number: what split tables send, what is refused, sums in a fixed order."""

import numpy as np
import pytest

from parallel_lab import ShapeError, StrategyError, Tensor, compile, nn, ops
from parallel_lab.graph.passes import PASSES
from parallel_lab.nn.tensor.autograd import gradients
from parallel_lab.nn.tensor.tensor import Parameter
from parallel_lab.ops.gather import add_rows
from parallel_lab.ops.machine.registry import OPS
from parallel_lab.ops.machine.sharding import sharding_rule
from parallel_lab.run.simulator import Simulator
from tests.crossed import each_of
from tests.ops.compiled import results

TABLE = np.random.default_rng(0).normal(size=(16, 4))


class Lookup(nn.Cell):
    """sum of weight * rows of a table."""

    def __init__(self, strategy, prim=None):
        super().__init__()
        self.table = Parameter(Tensor(TABLE), name="table")
        self.prim = (prim or ops.Gather()).shard(strategy)

    def construct(self, indices, weight):
        return ops.reduce_sum(ops.mul(self.prim(self.table, indices, 0), weight))


def run(strategy, indices, prim=None):
    """Loss, gradient of the table and forward messages on 8 ranks."""
    weight = np.random.default_rng(1).normal(size=(*indices.shape, 4))
    plan = compile(Lookup(strategy, prim), indices, weight, device_num=8, dataset_strategy="full_batch", passes=PASSES)
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
    (got,) = results(Lookup(((8, 1), (1, 1))), np.array([[9], [3]]), np.ones((2, 1, 4)), table=table)
    assert float(got) == pytest.approx(TABLE[[9, 3]].sum())


FIRST = {"axis": 0}
PLAIN = ((16, 4), (8,))
REFUSED = {
    "rows and indices": (PLAIN, FIRST, ((2, 1), (4,)), r"rows that are looked up\) 2 ways, and the indices too"),
    "rows of 3-D tables": (((16, 4, 2), (8,)), FIRST, ((2, 1, 1), (1,)), "the table has 3 dims"),
    "another axis": (((4, 16), (8,)), {"axis": 1}, ((1, 2), (1,)), r"dim 1 of input 0 \('b', .*but axis is 1"),
    "one index": (((16, 4), ()), FIRST, ((2, 1), ()), "the index is one number"),
    "rows, indices and columns": (((16, 4), (8, 2)), FIRST, ((2, 2), (2, 1)), "the indices too"),
}


@pytest.mark.parametrize("how", REFUSED)
def test_cut_rows_have_their_conditions(how):
    shapes, attrs, strategy, words = REFUSED[how]
    with pytest.raises(StrategyError, match=words):
        sharding_rule(OPS["gather"], shapes, attrs, strategy, 8)


@each_of(("bad", "words"), ([0, 16], "an index is 16. Indices from 0 to 15"), ([3, -1], "an index is -1"))
def test_an_index_outside_the_table_is_refused(bad, words):
    with pytest.raises(ShapeError, match=f"Gather: {words}"):
        ops.gather(Tensor(TABLE), np.array(bad))
    with pytest.raises(ShapeError, match="GatherD: an index is"):
        ops.gather_elements(Tensor(TABLE), 0, np.array(bad)[:, None].repeat(4, 1))


def test_embedding_lookup_gives_zeros_outside_its_rows():
    got = np.asarray(ops.embedding_lookup(Tensor(TABLE), np.array([3, 4, 19, 20, -1]), 4))
    np.testing.assert_array_equal(got, [np.zeros(4), TABLE[0], TABLE[15], np.zeros(4), np.zeros(4)])


def test_embedding_is_a_row_of_its_weight():
    np.testing.assert_array_equal(np.asarray(ops.embedding(np.array([[1], [2]]), Tensor(TABLE))), TABLE[[[1], [2]]])


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


def test_strided_slice_follows_python():
    got = ops.StridedSlice()(Tensor(TABLE), (2, 0), (-1, 3), (3, 1))
    np.testing.assert_array_equal(got.asnumpy(), TABLE[2:-1:3, 0:3])


def test_a_sliced_dim_is_not_cut():
    attrs = {"begin": (0, 1), "end": (16, 3), "strides": None}
    assert sharding_rule(OPS["strided_slice"], ((16, 4),), attrs, ((8, 1),), 8).out.splits == (8, 1)
    words = r"splits dim 1 of input 0 2 ways, but StridedSlice works along that dim.*Try \(\(4, 1\),\)"
    with pytest.raises(StrategyError, match=words):
        sharding_rule(OPS["strided_slice"], ((16, 4),), attrs, ((4, 2),), 8)


GIVEN = np.ones((4, 3), np.float32)
WRONG = {
    "gather floats": (lambda: ops.gather(GIVEN, GIVEN), "Gather: the indices are float32"),
    "gather axis": (lambda: ops.gather(GIVEN, [0], 2), "Gather: axis=2"),
    "slice length": (lambda: ops.strided_slice(GIVEN, (0, 0, 0), (1, 1, 1)), "At most one int per dim"),
    "slice step": (lambda: ops.strided_slice(GIVEN, (0,), (1,), (0,)), "Steps other than 0"),
    "slice text": (lambda: ops.strided_slice(GIVEN, (0,), "a"), "end='a'"),
    "elements dims": (lambda: ops.gather_elements(GIVEN, 0, [0]), r"index has shape \(1,\)"),
    "segments count": (lambda: ops.unsorted_segment_sum(GIVEN, [0, 0, 0, 0], 0), "num_segments=0"),
    "segments shape": (lambda: ops.unsorted_segment_sum(GIVEN, [0, 0, 0], 2), "The first dims of x"),
    "lookup dims": (lambda: ops.embedding_lookup(np.ones((2, 2, 2)), [0]), "a table with 1 or 2 dims"),
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
