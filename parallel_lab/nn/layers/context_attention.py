"""Attention and dense layers for sequences whose tokens are split over ranks.

    attention = nn.ContextParallelAttention(256, 8, kv_heads=2, placement="zigzag", ranks=4, rotary=10000.0)

Samples and tokens stay two dims in every operator, so that each can be split by axes of its own: what stands between
attentions then sends nothing. `models.context_parallel` sets the strategies.
"""

from __future__ import annotations

from typing import Any

from ...base.checks import checked, choice, flag, integer, kept, number, probability
from ...base.errors import ArgumentError, ShapeError
from ...base.seeds import get_seed
from ...layout.placements import TOKEN_ORDERS
from ...ops.context_attention import METHODS, context_attention, repeat_heads
from ...ops.dropout import dropout_key
from ...ops.elementwise import add
from ...ops.machine.state import StepCalls
from ...ops.rotary import rotary_positions
from ...ops.shape import reshape, shape as shape_of
from ..cell import Cell
from .basic import Dense


class TokenDense(Dense):
    """Dense whose operators keep samples and tokens apart.  x: (n, s, in_channels) -> (n, s, out_channels).

    Operators: `matmul` ((n, s, in), (out, in)) and `add` ((n, s, out), (out,)).
    """

    def __init__(self, in_channels: int, out_channels: int, **options: Any) -> None:
        super().__init__(in_channels, out_channels, **options)
        self.add = add.primitive()

    def construct(self, x: Any) -> Any:
        x = self.matmul(x, self.weight)
        if self.has_bias:
            x = self.add(x, self.bias)
        return x if self.activation is None else self.activation(x)


class ContextParallelAttention(Cell):
    """Self-attention, in one operator whose tokens may be split.  x: (n, s, hidden) -> (n, s, hidden).

    heads, kv_heads    of queries; of keys and values, a divisor (default: as many)
    method             what happens where tokens are split: "ring" or "gather" (`ops.context_attention`)
    placement, ranks   the order in which the tokens are given, and for how many ranks: see `models.placed`
    causal, window, documents   which keys a query sees (`VisibleKeys` of `layout/placements.py`)
    rotary             base of rotary positions of queries and keys; None: none
    dropout            of the attention weights, in training: a function of the positions, however tokens are split
    compute_all        blocks that are hidden are computed, too: to see what it costs

    Parts: `query`, `key`, `value`, `out` (TokenDense), `rotary_query`, `rotary_key`, `repeat_key`, `repeat_value`,
    `attention`, whose operands are (n, s, g, r, d) and twice (n, s, g, d): g key heads, each read by r query heads.
    `models.context_parallel` may ask for key heads to be repeated, for as many ranks: then g is larger, and r less.
    """

    @checked(method=choice(*METHODS), placement=choice(*TOKEN_ORDERS), ranks=integer(1), causal=flag)
    @checked(window=integer(1) | None, rotary=number(0, above=True) | None, compute_all=flag)
    @kept(hidden=integer(1), heads=integer(1), kv_heads=integer(1) | None, dropout=probability)
    def __init__(
        self,
        hidden: int,
        heads: int,
        kv_heads: int | None = None,
        *,
        method: str = "ring",
        placement: str = "contiguous",
        ranks: int = 1,
        causal: bool = True,
        window: int | None = None,
        documents: tuple[int, ...] = (),
        rotary: float | None = None,
        dropout: float = 0.0,
        compute_all: bool = False,
        **dense: Any,
    ) -> None:
        super().__init__()
        groups = self.groups = heads if kv_heads is None else kv_heads
        if hidden % heads or heads % groups:
            given = f"hidden={hidden}, heads={heads}, kv_heads={groups}"
            allowed = "heads divides hidden, kv_heads divides heads"
            raise ArgumentError(given, where=type(self).__name__, allowed=allowed)
        size = hidden // heads
        self.query, self.out = TokenDense(hidden, hidden, **dense), TokenDense(hidden, hidden, **dense)
        self.key, self.value = (TokenDense(hidden, groups * size, **dense) for _ in range(2))
        self.split_query, self.split_key, self.split_value, self.join_heads = (reshape.primitive() for _ in range(4))
        where = {"placement": placement, "ranks": ranks, "documents": tuple(documents)}
        self.rotary_query = self.rotary_key = None
        if rotary is not None:
            self.rotary_query, self.rotary_key = (rotary_positions.primitive(base=rotary, **where) for _ in range(2))
        seen = {"causal": causal, "window": window, "compute_all": compute_all}
        self.repeat_key, self.repeat_value = (repeat_heads.primitive(repeats=1) for _ in range(2))
        self.attention = context_attention.primitive(method=method, **where, **seen)
        self._calls = StepCalls()

    def construct(self, x: Any) -> Any:
        n, s, hidden = self._shape(x)
        size, of_key = hidden // self.heads, (n, s, self.groups, hidden // self.heads)
        of_query = (n, s, groups := self.groups * self.repeat_key.given["repeats"], self.heads // groups, size)
        q = self.split_query(self.query(x), of_query)
        k, v = self.split_key(self.key(x), of_key), self.split_value(self.value(x), of_key)
        if self.rotary_query is not None:
            q, k = self.rotary_query(q), self.rotary_key(k)
        if groups > self.groups:
            k, v = self.repeat_key(k), self.repeat_value(v)
        step = ()
        self.attention.given["p"] = self.dropout if self.training else 0.0
        if self.training and self.dropout:
            number, again = self._calls.next()
            self.attention.given["key"] = dropout_key(get_seed(), self.__dict__["_prefix"], again)
            step = (number,)
        return self.out(self.join_heads(self.attention(q, k, v, *step)[0], (n, s, hidden)))

    def _shape(self, x: Any) -> tuple[int, int, int]:
        shape = shape_of(x)
        if len(shape) != 3 or shape[2] != self.hidden:
            allowed = f"(samples, tokens, {self.hidden})"
            raise ShapeError(f"an input of shape {shape}", where=self._where(), allowed=allowed)
        return shape
