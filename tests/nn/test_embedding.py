"""Tables: rows picked, first values, slice modes, training with split tables."""

import numpy as np
import pytest

from parallel_lab import ShapeError, nn, ops
from parallel_lab.base.errors import NotBuiltYet
from parallel_lab.mindspore import mint
from parallel_lab.nn.tensor.autograd import gradients
from parallel_lab.nn.tensor.tensor import Tensor
from tests.crossed import each_of
from tests.nets import cell
from tests.nn.one_device import check_equals_one_device, messages
from tests.refusals import refused

IDS = np.random.default_rng(1).integers(0, 16, (8, 2)).astype(np.int32)
TARGET = np.random.default_rng(2).normal(size=(8, 2, 8))


def test_the_padding_row_begins_as_zeros_and_the_others_do_not():
    table = nn.Embedding(16, 8, padding_idx=3).embedding_table.asnumpy()
    assert (table == 0).all(1).nonzero()[0].tolist() == [3]
    assert 0.005 < np.delete(table, 3, 0).std() < 0.02  # "normal": 0.01


def looking_up(make):
    """A table, scaled."""
    return cell(lambda net, ids: net.mul(net.table(ids), 2.0), table=make(), mul=ops.Mul())


@pytest.mark.quick(1)
@each_of(
    ("cuts", "kinds"),
    (((8, 1), (1, 1)), {"all_reduce"}),
    (((1, 8), (1, 1)), set()),
    (((1, 1), (8, 1)), set()),
    (((1, 4), (2, 1)), set()),
    ids=["rows", "columns", "ids", "ids and columns"],
)
@pytest.mark.parametrize("one_hot", [False, True], ids=["gather", "one-hot"])
def test_a_cut_table_trains_as_a_whole_one(cuts, kinds, one_hot):
    def shard(net):
        if one_hot:
            (rows, columns), (ids, _) = cuts
            net.table.one_hot.shard(((ids, rows), (), ()))
            net.table.matmul.shard(((ids, rows), (rows, columns)))
        else:
            net.table.gather.shard(cuts)

    plan = check_equals_one_device(
        lambda: looking_up(lambda: nn.Embedding(16, 8, one_hot, dtype=np.float64)), nn.MSELoss(), (IDS, TARGET), shard
    )
    assert {i.kind for i in messages(plan) if i.name.startswith("table")} - {"all_gather", "all_to_all"} == kinds


@pytest.mark.quick(2)
@pytest.mark.parametrize("target", ["CPU", "DEVICE"])
@each_of(("mode", "slices"), ("batch_slice", (16, 8)), ("table_row_slice", (2, 8)), ("table_column_slice", (16, 1)))
def test_slice_modes_cut_the_table_by_rule(target, mode, slices):
    def make():
        return nn.EmbeddingLookup(16, 8, target=target, slice_mode=mode, slices=8, dtype=np.float64)

    plan = check_equals_one_device(lambda: looking_up(make), nn.MSELoss(), (IDS, TARGET), lambda net: None)
    assert plan.value("table.embedding_table").slice_shape == slices


@pytest.mark.quick(1)
@pytest.mark.parametrize("target", ["CPU", "DEVICE"])
def test_fields_are_looked_up_where_their_rows_are(target):
    parts = (3, 1, 2, 10, 4, 4, 4, 4)
    starts = np.cumsum((0, *parts[:-1]))
    ids = np.random.default_rng(3).integers(0, parts, (8, 8)) + starts

    def make():
        return nn.EmbeddingLookup(
            32, 8, "normal", target, nn.EmbeddingLookup.FIELD_SLICE, manual_shapes=parts, slices=8, dtype=np.float64
        )

    target_rows = np.random.default_rng(4).normal(size=(8, 8, 8))
    plan = check_equals_one_device(lambda: looking_up(make), nn.MSELoss(), (ids, target_rows), lambda net: None)
    layout = plan.value("table.embedding_table").layout
    assert (layout.rows, layout.slice_index((32, 8), 3)[0]) == (parts, slice(6, 16))
    assert not [i for i in messages(plan) if i.name.startswith("table.lookup")]


class Fields(nn.Cell):
    """x: (batch, 2, seq), ids and fields.  -> what fields of 8 samples combine."""

    def __init__(self, mode, operator, slices=8):
        super().__init__()
        how = {"slice_mode": mode, "operator": operator, "slices": slices, "dtype": np.float64}
        self.table = nn.MultiFieldEmbeddingLookup(16, 8, 3, nn.initializer.Normal(1.0), **how)

    def construct(self, ids, values, fields):
        return self.table(ids, values, fields)


FIELDS = (
    np.random.default_rng(5).integers(0, 16, (8, 6)),
    np.random.default_rng(6).normal(size=(8, 6)) * (np.arange(6) < 4),
    np.random.default_rng(7).integers(0, 3, (8, 6)),
)


def combined(operator, table, ids, values, fields):
    """By the words of the rule, sample by sample."""
    found = np.zeros((8, 3, table.shape[1]))
    for b, f in np.ndindex(8, 3):
        mine = (fields[b] == f) & (values[b] != 0)
        rows, weights = table[ids[b, mine]] * values[b, mine, None], np.abs(values[b, mine]).sum()
        if mine.any():
            found[b, f] = {"SUM": rows.sum(0), "MEAN": rows.sum(0) / weights, "MAX": rows.max(0)}[operator]
    return found


@pytest.mark.quick(1)
@pytest.mark.parametrize("operator", ["SUM", "MEAN", "MAX"])
@each_of(("mode", "slices"), ("batch_slice", (16, 8)), ("table_row_slice", (2, 8)), ("table_column_slice", (16, 1)))
def test_fields_are_combined_under_every_slice_mode(mode, slices, operator):
    net = Fields(mode, operator)
    want = combined(operator, net.table.embedding_table.asnumpy(), *FIELDS)
    np.testing.assert_allclose(Fields.construct(net, *map(Tensor, FIELDS)).asnumpy(), want, rtol=1e-12, atol=1e-12)
    target = np.random.default_rng(8).normal(size=(8, 3, 8))
    plan = check_equals_one_device(lambda: Fields(mode, operator), nn.MSELoss(), (*FIELDS, target), lambda net: None)
    assert plan.value("table.embedding_table").slice_shape == slices


def test_rows_are_at_most_max_norm_long():
    layer = nn.EmbeddingLookup(16, 8, nn.initializer.Normal(1.0), max_norm=3.0)
    rows, table = layer(Tensor(IDS)).asnumpy(), layer.embedding_table.asnumpy()
    lengths = np.linalg.norm(table, axis=1)
    assert 0 < (lengths[IDS] > 3).sum() < IDS.size
    np.testing.assert_allclose(rows, (table * np.minimum(1, 3 / lengths)[:, None])[IDS], rtol=1e-6)


def test_mint_s_table_trains_all_rows_but_the_padding():
    layer = mint.nn.Embedding(16, 8, padding_idx=-13)
    assert layer.weight.name == "weight"
    table = layer.weight.asnumpy()
    assert (table == 0).all(1).nonzero()[0].tolist() == [3]
    assert 0.8 < np.delete(table, 3, 0).std() < 1.2
    loss = ops.reduce_sum(layer(Tensor(np.array([[3, 5], [5, 0]]))))
    (gradient,) = gradients(loss, [layer.weight])
    assert [gradient[i].sum() for i in (0, 3, 5)] == [8, 0, 16]
    assert not mint.nn.Embedding(16, 8, _freeze=True).weight.requires_grad
    given = np.arange(8, dtype=np.float32).reshape(4, 2)
    np.testing.assert_array_equal(mint.nn.Embedding(4, 2, _weight=Tensor(given)).weight.asnumpy(), given)


def test_a_strategy_of_ones_own_goes_before_the_slice_mode():
    layer = nn.EmbeddingLookup(16, 8, slice_mode="table_row_slice", slices=8)
    layer.lookup.shard(((1, 4), (1, 1)))
    layer(Tensor(IDS))
    assert layer.lookup.in_strategy == ((1, 4), (1, 1))


test_what_tables_refuse = refused(
    (lambda: nn.Embedding(4, 4, padding_idx=4), ValueError, "padding_idx=4.*from 0 to 3"),
    (lambda: nn.Embedding(4, 4)(Tensor(TARGET)), ShapeError, "the ids are float64.*must be ints"),
    (lambda: nn.Embedding(4, 4)(Tensor(IDS + 4)), ShapeError, "an index is"),
    (lambda: nn.EmbeddingLookup(4, 4, sparse=False), ValueError, "sparse=False. True for target"),
    (lambda: nn.EmbeddingLookup(4, 4, slice_mode="field_slice"), ValueError, "manual_shapes=None.*vocab_size, 4"),
    (lambda: nn.MultiFieldEmbeddingLookup(4, 4, 2, slice_mode="field_slice"), ValueError, "'field_slice'.*'batch_sl"),
    (lambda: nn.EmbeddingLookup(4, 4, vocab_cache_size=2), NotBuiltYet, "Leave it at 0"),
    (lambda: mint.nn.Embedding(4, 4, padding_idx=4), ValueError, "padding_idx=4"),
    (lambda: mint.nn.Embedding(4, 4, max_norm=1.0)(Tensor(IDS % 4)), ShapeError, "max_norm=1.0.*None, 2.0 and False"),
)
