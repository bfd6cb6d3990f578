"""Attention of 1024 positions in blocks of 64 (Child et al. 2019, "fixed"): MindSpore's nn.transformer, 1.5 to 2.0.

A query sees its block up to itself, and 16 keys of each earlier block: at most 304 scores a query for 1024.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .. import ops
from ..base.checks import checked, choice
from ..nn.cell import Cell
from ..nn.tensor.tensor import Tensor
from ._transformer_configs import DP_MP, default_dpmp_config
from ._transformer_layers import SIZE, check_divides, check_shape

_BLOCK, _TILE, _HIDDEN = 64, 16, -10000.0


class FixedSparseAttention(Cell):
    """Attention to one's block and to 16 keys of each earlier one, tile 3 - h % 4 for head h.

    q, k, v: (batch_size, seq_length, num_heads size_per_head) float16; attention_mask: (batch_size, seq_length,
    seq_length), where the last row counts, 0 for padding -> as q

    size_per_head  64 or 128; block_size, seq_length, num_different_global_patterns  64, 1024 and 4, as in MindSpore
    parallel_config  its data_parallel parts the batch and its model_parallel the heads, without a message
    """

    @checked(
        **{"batch_size": SIZE, "num_heads": SIZE, "size_per_head": choice(64, 128), "block_size": choice(_BLOCK)},
        **{"seq_length": choice(1024), "num_different_global_patterns": choice(4), "parallel_config": DP_MP},
    )
    def __init__(
        self,
        batch_size: int,
        num_heads: int,
        size_per_head: int,
        block_size: int,
        seq_length: int = 1024,
        num_different_global_patterns: int = 4,
        parallel_config: Any = default_dpmp_config,
    ) -> None:
        super().__init__()
        dp, mp = parallel_config.data_parallel, parallel_config.model_parallel
        check_divides("FixedSparseAttention", mp, num_heads=num_heads)
        check_divides("FixedSparseAttention", dp, batch_size=batch_size)
        self.batch_size, self.num_heads, self.size_per_head = batch_size, num_heads, size_per_head
        self.seq_length, self.scale = seq_length, math.sqrt(size_per_head)
        tiles = seq_length // _TILE
        later = np.arange(tiles)[:, None] < (np.arange(tiles // 4) + 1) * 4  # (query tile, tile that all blocks see)
        hidden = np.broadcast_to(
            np.where(later.T, np.float32(_HIDDEN), 0)[None, ..., None, None], (batch_size, *later.T.shape, _TILE, _TILE)
        )
        self.global_mask = Tensor(hidden.reshape(-1, tiles, _TILE, _TILE))
        self.lower_triangle = Tensor(np.tril(np.ones((1, _BLOCK, _BLOCK), np.float32)))
        whole = (dp, 1, 1, 1)
        self.to_tiles = ops.Transpose().shard(((dp, 1, mp, 1),))
        self.div = ops.RealDiv().shard(((mp, dp, 1, 1), ()))
        self.last_row = ops.StridedSlice().shard(((dp, 1, 1),))
        self.both, self.below = ops.BatchMatMul().shard((whole, whole)), ops.Mul().shard((whole, (1, 1, 1)))
        self.sub, self.mul = ops.Sub().shard(((1,), whole)), ops.Mul().shard((whole, (1,)))
        self.by_rows, self.mask_tiles = ops.Transpose().shard((whole,)), ops.Transpose().shard((whole,))
        self.one, self.hidden = Tensor(np.ones(1, np.float32)), Tensor(np.full(1, _HIDDEN, np.float32))
        self.matmul_dds = ops.MatmulDDS(batch_size, num_heads).shard(
            ((mp, dp, 1, 1), (mp, dp, 1, 1), (1, dp, 1, 1), (dp, 1, 1, 1))
        )
        blocks = (dp, mp, 1, 1, 1, 1, 1)
        self.matmul_dsd = ops.DSDMatmul().shard((blocks, blocks, (dp, mp, 1, 1)))
        self.from_tiles = ops.Transpose().shard(((dp, mp, 1, 1, 1, 1),))
        self.heads_last = ops.Transpose().shard(((dp, mp, 1, 1),))

    def _local_mask(self, attention_mask: Any) -> Any:
        """0 where a query of a block may look at a key of it, else -10000: (s / 16, 4 b, 16, 16)."""
        b, s, blocks = self.batch_size, self.seq_length, self.seq_length // _BLOCK
        row = self.last_row(attention_mask, (0, s - 1, 0), (b, s, s), (1, 1, 1))
        left, right = (ops.reshape(row, (b, blocks, *shape)) for shape in ((_BLOCK, 1), (1, _BLOCK)))
        seen = self.below(self.both(left, right), self.lower_triangle)
        hidden = self.mul(self.sub(self.one, ops.cast(seen, "float32")), self.hidden)
        rows = ops.reshape(self.by_rows(hidden, (0, 2, 1, 3)), (b * _BLOCK // _TILE, _TILE, s // _TILE, _TILE))
        return self.mask_tiles(rows, (2, 0, 1, 3))

    def construct(self, q: Any, k: Any, v: Any, attention_mask: Any) -> Any:
        width = self.num_heads * self.size_per_head
        for name, x in (("q", q), ("k", k), ("v", v)):
            check_shape(self, name, x, (self.batch_size, self.seq_length, width), dtype="float16")
        check_shape(self, "attention_mask", attention_mask, (self.batch_size, self.seq_length, self.seq_length))
        q, k, v = (ops.reshape(x, (-1, _TILE, width // _TILE, _TILE)) for x in (q, k, v))
        q, k = (self.div(self.to_tiles(x, (2, 0, 1, 3)), self.scale) for x in (q, k))
        near, far = self.matmul_dds(q, k, self._local_mask(attention_mask), self.global_mask)
        made = self.matmul_dsd(near, far, self.to_tiles(v, (0, 2, 3, 1)))
        made = ops.reshape(
            self.from_tiles(made, (0, 1, 3, 4, 2, 5)), (-1, self.num_heads, self.seq_length, self.size_per_head)
        )
        return ops.reshape(self.heads_last(made, (0, 2, 1, 3)), (-1, self.seq_length, width))
