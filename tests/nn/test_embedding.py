"""Tables: rows picked, first values, slice modes, training with split tables."""

import numpy as np
import pytest

from parallel_lab import ShapeError, nn, ops
from parallel_lab.nn.tensor.tensor import Tensor
from tests.crossed import each_of
from tests.nn.one_device import check_equals_one_device, messages
from tests.refusals import refused

IDS = np.random.default_rng(1).integers(0, 16, (8, 2)).astype(np.int32)
TARGET = np.random.default_rng(2).normal(size=(8, 2, 8))


def test_the_padding_row_begins_as_zeros_and_the_others_do_not():
    table = nn.Embedding(16, 8, padding_idx=3).embedding_table.asnumpy()
    assert (table == 0).all(1).nonzero()[0].tolist() == [3]
    assert 0.005 < np.delete(table, 3, 0).std() < 0.02  # "normal": 0.01


class Lookup(nn.Cell):
    """A table, scaled."""

    def __init__(self, make):
        super().__init__()
        self.table, self.mul = make(), ops.Mul()

    def construct(self, ids):
        return self.mul(self.table(ids), 2.0)


@pytest.mark.quick(7)
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
        lambda: Lookup(lambda: nn.Embedding(16, 8, one_hot, dtype=np.float64)), nn.MSELoss(), (IDS, TARGET), shard
    )
    assert {i.kind for i in messages(plan) if i.name.startswith("table")} - {"all_gather", "all_to_all"} == kinds


@pytest.mark.parametrize("target", ["CPU", "DEVICE"])
@each_of(("mode", "slices"), ("batch_slice", (16, 8)), ("table_row_slice", (2, 8)), ("table_column_slice", (16, 1)))
def test_slice_modes_cut_the_table_by_rule(target, mode, slices):
    def make():
        return nn.EmbeddingLookup(16, 8, target=target, slice_mode=mode, slices=8, dtype=np.float64)

    plan = check_equals_one_device(lambda: Lookup(make), nn.MSELoss(), (IDS, TARGET), lambda net: None)
    assert plan.value("table.embedding_table").slice_shape == slices


def test_a_strategy_of_ones_own_goes_before_the_slice_mode():
    layer = nn.EmbeddingLookup(16, 8, slice_mode="table_row_slice", slices=8)
    layer.lookup.shard(((1, 4), (1, 1)))
    layer(Tensor(IDS))
    assert layer.lookup.in_strategy == ((1, 4), (1, 1))


test_what_tables_refuse = refused(
    (lambda: nn.Embedding(0, 4), ValueError, "vocab_size=0"),
    (lambda: nn.Embedding(4, 4, padding_idx=4), ValueError, "padding_idx=4.*from 0 to 3"),
    (lambda: nn.Embedding(4, 4, use_one_hot=1), TypeError, "use_one_hot=1"),
    (lambda: nn.Embedding(4, 4)(Tensor(TARGET)), ShapeError, "the ids are float64.*must be ints"),
    (lambda: nn.Embedding(4, 4)(Tensor(IDS + 4)), ShapeError, "an index is"),
    (lambda: nn.EmbeddingLookup(4, 4, slice_mode="rows"), ValueError, "slice_mode='rows'. One of 'batch_slice'"),
    (lambda: nn.EmbeddingLookup(4, 4, target="GPU"), ValueError, "target='GPU'"),
    (lambda: nn.EmbeddingLookup(4, 4, slices=0), ValueError, "slices=0"),
)
