"""Tables that are looked up by number.

embedding = nn.Embedding(1000, 64)
embedding.gather.shard(((8, 1), (1, 1)))      # rows split: each rank looks up what it has, and ranks are summed
embedding.gather.shard(((1, 8), (1, 1)))      # columns split: no message
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from ... import ops
from ...base.checks import checked, choice, flag, integer, kept, number, sequence_of, text
from ...base.errors import ArgumentError, NotBuiltYet, ShapeError
from ...base.settings.current import get_auto_parallel_context
from ...nn.cell import Cell
from ...nn.initializer import initializer
from ...nn.tensor.parameter import Parameter
from ...nn.tensor.tensor import Initial, Tensor
from ...ops.elementwise import div
from ...ops.machine.primitive import Strategy
from ...ops.spellings import tensor_operand


def _table(rule: Any, shape: tuple[int, int], dtype: Any, zero_row: int | None = None) -> Initial:
    """Initial values of a table, with zeros in one row."""
    made = initializer(rule, shape, dtype)
    if zero_row is None:
        return made

    def draw(generator: np.random.Generator, dims: tuple[int, ...]) -> np.ndarray:
        values = np.array(made.draw(generator, dims))
        values[zero_row] = 0
        return values

    return Initial(draw, shape, dtype)


def _check_ids(ids: Any, where: str) -> None:
    if np.dtype(str(tensor_operand(where, "ids", ids).dtype)).kind not in "iu":
        hint = "Convert them: ids.astype('int32')"
        raise ShapeError(f"the ids are {ids.dtype}", where=where, allowed="Ids must be ints: row numbers", hint=hint)


class Embedding(Cell):
    """Rows of a trained table.  ids: (...) int from 0 to vocab_size - 1 -> (..., embedding_size).

    use_one_hot      multiply one-hot rows with the table instead of picking rows (operators `one_hot` and `matmul`)
    embedding_table  initial values: what `initializer` takes
    padding_idx      number of a row that begins as zeros (it is trained like any other, as in MindSpore)

    Operator: `gather` (Gather), strategy ((rows, columns), (one count per dim of ids)), or with one count for ids of
    several dims, which are then looked up in one row, as MindSpore does. Defaults: MindSpore.
    """

    other_names: ClassVar = {"array_mul": "matmul", "reshape_flat": "reshape_ids", "expand": ops.ExpandDims}
    other_names |= {"gather": ops.Gather, "one_hot": ops.OneHot, "matmul": ops.MatMul}

    @kept(vocab_size=integer(1), embedding_size=integer(1), use_one_hot=flag, padding_idx=integer(0) | None)
    def __init__(
        self,
        vocab_size: int,
        embedding_size: int,
        use_one_hot: bool = False,
        embedding_table: Any = "normal",
        dtype: Any = np.float32,
        padding_idx: int | None = None,
    ) -> None:
        super().__init__()
        if padding_idx is not None and padding_idx >= vocab_size:
            allowed = f"A row number from 0 to {vocab_size - 1}"
            raise ArgumentError(f"padding_idx={padding_idx}", where="Embedding", allowed=allowed)
        table = _table(embedding_table, (vocab_size, embedding_size), dtype, padding_idx)
        self.embedding_table = Parameter(table, name="embedding_table")
        self.reshape_ids, self.reshape = ops.Reshape(), ops.Reshape()
        if use_one_hot:
            self.one_hot, self.matmul = ops.OneHot(), ops.MatMul()
            self.on_value, self.off_value = Tensor(1.0, dtype), Tensor(0.0, dtype)
        else:
            self.gather = ops.Gather()

    def construct(self, ids: Any) -> Any:
        _check_ids(ids, self._where())
        shape = ops.shape(ids)
        if not self.use_one_hot and not self._looks_up_flat(len(shape)):
            return self.gather(self.embedding_table, ids, 0)
        ids = self.reshape_ids(ids, (-1,))
        if self.use_one_hot:
            hot = self.one_hot(ids, self.vocab_size, self.on_value, self.off_value)
            rows = self.matmul(hot, self.embedding_table)
        else:
            rows = self.gather(self.embedding_table, ids, 0)
        return self.reshape(rows, (*shape, self.embedding_size))

    def _looks_up_flat(self, dims: int) -> bool:
        """Whether the strategy is one for ids of one dim, and these have `dims`."""
        given = self.gather.in_strategy
        return given is not None and len(given) == 2 and dims != 1 and len(getattr(given[1], "axes", given[1])) == 1


class EmbeddingLookup(Cell):
    """Rows of a trained table that is split by rule in compiled networks.  ids: (...) int -> (..., embedding_size).

    param_init     initial values: what `initializer` takes
    target         "CPU": operator EmbeddingLookup, on the host, whose memory then holds the table; "DEVICE": Gather.
                   Both compute the same
    slice_mode     BATCH_SLICE: the ids are split in dim 0; TABLE_ROW_SLICE: the rows (a sum over the ranks follows);
                   TABLE_COLUMN_SLICE: the columns; FIELD_SLICE: the rows as `manual_shapes` says, and the last dim of
                   the ids, which names rows of its own rank only (no message follows)
    manual_shapes  of FIELD_SLICE: rows per rank, a tuple of ints whose sum is vocab_size
    max_norm       rows of the result with a larger L2 norm are scaled down to it
    sparse         kept; gradients are dense here, with zeros for rows that were not looked up. True for target "CPU"
    vocab_cache_size   0: the whole table is on the device
    slices         how many parts; default: the parallel context's devices of a stage. `lookup.shard(...)` goes before

    Operator: `lookup`. Names: MindSpore, nn.EmbeddingLookup.
    """

    other_names: ClassVar = {"embeddinglookup": "lookup", "gatherv2": "lookup"}
    BATCH_SLICE, FIELD_SLICE = "batch_slice", "field_slice"
    TABLE_ROW_SLICE, TABLE_COLUMN_SLICE = "table_row_slice", "table_column_slice"

    @checked(slices=integer(1) | None, vocab_cache_size=integer(0))
    @kept(
        vocab_size=integer(1),
        embedding_size=integer(1),
        target=choice("CPU", "DEVICE"),
        slice_mode=choice(BATCH_SLICE, FIELD_SLICE, TABLE_ROW_SLICE, TABLE_COLUMN_SLICE),
        manual_shapes=sequence_of(integer(1), "A tuple of ints: rows per rank") | None,
        max_norm=number(0, above=True) | None,
        sparse=flag,
    )
    def __init__(
        self,
        vocab_size: int,
        embedding_size: int,
        param_init: Any = "normal",
        target: str = "CPU",
        slice_mode: str = "batch_slice",
        manual_shapes: tuple[int, ...] | None = None,
        max_norm: float | None = None,
        sparse: bool = True,
        dtype: Any = np.float32,
        vocab_cache_size: int = 0,
        *,
        slices: int | None = None,
    ) -> None:
        super().__init__()
        if target == "CPU" and not sparse:
            raise ArgumentError("sparse=False", where="EmbeddingLookup", allowed='True for target "CPU"')
        if vocab_cache_size:
            what = f"vocab_cache_size={vocab_cache_size}: a table on the host with a cache is not available yet"
            raise NotBuiltYet(what, where="EmbeddingLookup", hint="Leave it at 0: results are the same")
        parts = self.manual_shapes
        if slice_mode == self.FIELD_SLICE and (parts is None or sum(parts) != vocab_size):
            allowed = f"With slice_mode='field_slice' rows per rank, whose sum is vocab_size, {vocab_size}"
            raise ArgumentError(f"manual_shapes={parts}", where="EmbeddingLookup", allowed=allowed)
        devices = get_auto_parallel_context("device_num") // get_auto_parallel_context("pipeline_stages")
        self.slices = max(1, devices) if slices is None else slices
        table = initializer(param_init, (vocab_size, embedding_size), dtype)
        self.embedding_table = Parameter(table, name="embedding_table")
        self.lookup = ops.EmbeddingLookup().set_device("CPU") if target == "CPU" else ops.Gather()
        if text("MultiFieldEmbeddingLookup", "slice_mode", slice_mode) == self.FIELD_SLICE:
            self.lookup.add_prim_attr("manual_split", parts)
        if max_norm is not None:
            self.square = ops.Square()
            self.reduce_sum = ops.ReduceSum(keep_dims=True)
            self.sqrt = ops.Sqrt()
            self.maximum, self.mul, self.div = ops.Maximum(), ops.Mul(), div.primitive()

    def strategy(self, dims: int) -> Strategy:
        """The strategy of `slice_mode` for ids of so many dims."""
        modes = (self.TABLE_ROW_SLICE, self.TABLE_COLUMN_SLICE, self.BATCH_SLICE)
        rows, columns, first = (self.slices if self.slice_mode == mode else 1 for mode in modes)
        if self.slice_mode == self.FIELD_SLICE:
            return (self.slices, 1), (1,) * (dims - 1) + (self.slices,)
        return (rows, columns), (first,) + (1,) * (dims - 1) if dims else ()

    def construct(self, ids: Any) -> Any:
        _check_ids(ids, self._where())
        if self.lookup.in_strategy is None and self.slices > 1:
            self.lookup.shard(self.strategy(len(ops.shape(ids))))
        rows = self.lookup(self.embedding_table, ids, 0)
        if self.max_norm is None:
            return rows
        norm = self.sqrt(self.reduce_sum(self.square(rows), -1))
        return self.div(self.mul(rows, self.max_norm), self.maximum(norm, self.max_norm))


class MultiFieldEmbeddingLookup(EmbeddingLookup):
    """Rows of a table, weighted and combined per field.

    ids, fields: (batch, seq) int, values: (batch, seq) -> (batch, field_size, embedding_size)

    field_size        how many fields; fields has numbers from 0 to field_size - 1
    operator          "SUM": of rows * values; "MEAN": divided by the sum of |values|; "MAX": the largest per column.
                      Elements whose value is 0 do not count; a field without others is 0
    feature_num_list  kept; without effect, as in MindSpore
    slice_mode        one of `EmbeddingLookup` but FIELD_SLICE

    Other arguments: `EmbeddingLookup`. Operators: `lookup`, `weigh`, `merge_op`. Names: MindSpore.
    """

    @kept(
        field_size=integer(1),
        feature_num_list=sequence_of(integer(1), "A tuple of ints, each at least 1") | None,
        operator=choice("SUM", "MEAN", "MAX"),
    )
    def __init__(
        self,
        vocab_size: int,
        embedding_size: int,
        field_size: int,
        param_init: Any = "normal",
        target: str = "CPU",
        slice_mode: str = "batch_slice",
        feature_num_list: tuple[int, ...] | None = None,
        max_norm: float | None = None,
        sparse: bool = True,
        operator: str = "SUM",
        dtype: Any = np.float32,
        *,
        slices: int | None = None,
    ) -> None:
        if slice_mode == self.FIELD_SLICE:
            allowed = f"{self.BATCH_SLICE!r}, {self.TABLE_ROW_SLICE!r} or {self.TABLE_COLUMN_SLICE!r}"
            raise ArgumentError(f"slice_mode={slice_mode!r}", where="MultiFieldEmbeddingLookup", allowed=allowed)
        how = {"max_norm": max_norm, "sparse": sparse, "dtype": dtype, "slices": slices}
        super().__init__(vocab_size, embedding_size, param_init, target, slice_mode, **how)
        self.weigh, self.div_no_nan = ops.Mul(), ops.DivNoNan()
        self.merge_op = ops.UnsortedSegmentMax() if operator == "MAX" else ops.UnsortedSegmentSum()
        if self.slices > 1:
            n, columns = self.slices, slice_mode == self.TABLE_COLUMN_SLICE
            self.weigh.shard(((1, 1, n), (1, 1, 1)) if columns else ((n, 1, 1), (n, 1, 1)))
            self.merge_op.shard(((1, n), (1,)) if columns else ((n, 1), (n,)))

    def construct(self, ids: Any, values: Any, fields: Any) -> Any:
        _check_ids(fields, self._where())
        batch, seq = ops.shape(ids)
        segments = batch * self.field_size
        # a segment for each field of each sample
        first = np.arange(0, segments, self.field_size, dtype=str(fields.dtype)).reshape(batch, 1)
        places = ops.reshape(ops.add(fields, Tensor(first)), (-1,))
        weights = ops.reshape(values, (batch, seq, 1))
        rows = self.weigh(super().construct(ids), weights)
        total = ops.unsorted_segment_sum(ops.abs(ops.reshape(values, (-1,))), places, segments)
        total = ops.reshape(total, (segments, 1))
        if self.operator == "MAX":
            rows = ops.masked_fill(rows, ops.equal(weights, 0), float(np.finfo(self.embedding_table.dtype).min))
        merged = self.merge_op(ops.reshape(rows, (-1, self.embedding_size)), places, segments)
        if self.operator == "MAX":
            merged = ops.masked_fill(merged, ops.equal(total, 0), 0.0)
        elif self.operator == "MEAN":
            merged = self.div_no_nan(merged, total)
        return ops.reshape(merged, (batch, self.field_size, self.embedding_size))
