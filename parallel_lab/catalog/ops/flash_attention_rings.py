"""MindSpore's FlashAttentionScore over a split sequence: a ring, and halves of queries that ranks exchange.

    attention.add_prim_attr("enable_ring_attention", True)                         flash_sp.cc, as of about 2.4
    attention.add_prim_attr("enable_flash_sp", True)                               early ranks help the late ones
    {"enable_flash_attention_load_balance": true}          in the file that parallel_speed_up_json_path names

The second is `flash_attention_balanced.py`; the others are forms of `ops.context_attention`, which has their messages.
"""

from __future__ import annotations

import numpy as np

from ...base.checks import flag
from ...base.errors import ArgumentError, ShapeError, StrategyError, shorten
from ...base.plain_json import read_json
from ...base.settings.current import get_context
from ...layout.named_layout import Layout
from ...ops.context_attention import context_attention
from ...ops.elementwise import mul
from ...ops.machine.primitive import Primitive
from ...ops.shape import reshape, transpose
from ...ops.spellings import tensor_operand
from .flash_attention_balanced import COLUMNS, balanced_attention

RING, BALANCED = RINGS = ("enable_ring_attention", "enable_flash_sp")  # attributes of the primitive
LOAD_BALANCE = "enable_flash_attention_load_balance"  # key of the file that parallel_speed_up_json_path names


def primitive_for(primitive, of):
    """A Primitive of another operator, with the name, the strategy and the attributes of `primitive`."""
    inner = type(primitive.name, (Primitive,), {"op": of})()
    for name in ("instance_name", "in_strategy", "out_strategy", "strategy_origin", "prim_attrs"):
        setattr(inner, name, getattr(primitive, name))
    return inner


def _speeds_up(key):
    """Whether the file that set_context(ascend_config={"parallel_speed_up_json_path": ...}) names sets a key."""
    path = get_context("ascend_config").get("parallel_speed_up_json_path")
    if not path:
        return False
    where = f"parallel_speed_up_json_path {path}"
    found = read_json(path, ArgumentError, where=where, hint=f"JSON, such as {{{key!r}: true}}", max_bytes=1 << 20)
    if not isinstance(found, dict):
        raise ArgumentError(f"{path} holds {shorten(found)}", where=where, allowed="An object")
    return flag(where, key, found.get(key, False))


def balances(primitive, tensors, settings):
    """Whether queries are split, keys are not, and early ones see less: then halves of queries are exchanged."""
    layout, strategy = settings["input_layout"], primitive.in_strategy
    at = {"BSH": 1, "BNSD": 2}.get(layout)
    if at is None or strategy is None or any(isinstance(each, Layout) for each in strategy):
        return False
    plain = settings["sparse_mode"] == 0 and settings["next_tokens"] == 0 and settings["keep_prob"] == 1
    split = strategy[0][at] > 1 == strategy[1][at]
    return plain and split and not any(x is not None for x in tensors[3:]) and _speeds_up(LOAD_BALANCE)


def _who_sees_whom(settings, tensors, strategy, where, name):
    """(causal, window) of a ring of this name. Raises ShapeError and StrategyError where a ring is not possible."""
    (query, key, _, *others), layout = tensors, settings["input_layout"]
    mode, keep = settings["sparse_mode"], settings["keep_prob"]
    if layout not in ("BSH", "BNSD") or mode != 0 or keep != 1 or any(x is not None for x in others):
        masks = "with masks" if any(x is not None for x in others) else "without masks"
        given = f"{name} with input_layout={layout!r}, sparse_mode={mode}, keep_prob={keep}, {masks}"
        allowed = "BSH or BNSD, sparse_mode 0, keep_prob 1.0, no masks: pre_tokens and next_tokens say who sees whom"
        raise ShapeError(given, where=where, allowed=allowed)
    if strategy is not None and len({tuple(each) for each in strategy}) > 1:
        what, allowed = f"{name} with strategy {strategy}", "Query, key and value split alike, the sequence, too"
        raise StrategyError(what, where=where, allowed=allowed)
    if {len(x.shape) for x in tensors[:3]} != {len(layout)}:
        shapes = ", ".join(str(tuple(x.shape)) for x in tensors[:3])
        raise ShapeError(
            f"query, key and value of shapes {shapes}", where=where, allowed=f"{len(layout)} dims, {layout}"
        )
    tokens, keys = (x.shape[1 if layout == "BSH" else 2] for x in (query, key))
    before, after = settings["pre_tokens"], settings["next_tokens"]
    longest = tokens - 1
    if tokens != keys or not 0 <= after <= before or (after and after < longest and after != before):
        what = f"{name} with pre_tokens={before}, next_tokens={after} for {tokens} queries and {keys} keys"
        allowed = "As many keys as queries; next_tokens 0 (causal), as many as pre_tokens, or the whole sequence"
        raise ShapeError(what, where=where, allowed=allowed)
    return after == 0, None if before >= longest else before + 1


def _with_strategy(primitive, of, *strategy):
    inner = primitive_for(primitive, of)
    inner.in_strategy, inner.out_strategy = (strategy if primitive.in_strategy is not None else None), None
    return inner


def ring_of(primitive, tensors, settings, *, gathered=False):
    """The results of FlashAttentionScore with one of RINGS: contiguous; of the first every block is computed.

    gathered  keys are there, and ranks exchange halves of queries (`balances`)
    """
    where, alike = primitive.name, None if gathered else primitive.in_strategy
    three = [tensor_operand(where, name, x) for name, x in zip(("query", "key", "value"), tensors, strict=False)]
    name = LOAD_BALANCE if gathered else next(ring for ring in RINGS if primitive.prim_attrs.get(ring))
    causal, window = _who_sees_whom(settings, [*three, *tensors[3:]], alike, where, name)
    if name == BALANCED and not causal:
        what = f"{name} with next_tokens={settings['next_tokens']}"
        raise ShapeError(what, where=where, allowed="next_tokens=0: without a causal mask all ranks have as much to do")
    heads, in_heads = settings["head_num"], settings["input_layout"] == "BNSD"
    query, key, value = three
    given = tuple((primitive.in_strategy or ((1, 1, 1, 1),))[0])
    if in_heads:
        whole = (given[0], given[1], 1, given[3]) if gathered else given
        turns = [_with_strategy(primitive, transpose, cut) for cut in (given, whole, whole)]
        pairs = zip((query, key, value), turns, strict=True)
        query, key, value = (transpose.call((x, (0, 2, 1, 3)), {}, turn) for x, turn in pairs)
    (b, s), d = query.shape[:2], query.shape[-1] // (1 if in_heads else heads)
    groups = key.shape[2] // (1 if in_heads else d)
    cuts = (given[0], given[2], given[1]) if in_heads else given[:3]  # samples, tokens, heads
    cut = (cuts[0], 1 if gathered else cuts[1], cuts[2], 1)
    of = balanced_attention if name == BALANCED else context_attention
    inner = _with_strategy(primitive, of, (*cuts, 1, 1), cut, cut)
    how = {"method": "gather", "head_tail": True} if gathered else {"compute_all": True}
    seen = {"scale": settings["scale_value"], "window": window}
    seen |= {} if name == BALANCED else {"causal": causal, **how}
    of_keys = (b, s, groups, d)
    operands = reshape(query, (*of_keys[:3], heads // groups, d)), reshape(key, of_keys), reshape(value, of_keys)
    made, lse = of.call(operands, seen, inner)
    back = _with_strategy(primitive, transpose, (*cuts, 1))
    made = reshape(made, (b, s, heads, d) if in_heads else (b, s, heads * d))
    made = transpose.call((made, (0, 2, 1, 3)), {}, back) if in_heads else made
    largest = transpose.call((reshape(lse, (b, s, heads, 1)), (0, 2, 1, 3)), {}, back)
    largest = mul(largest, np.ones(COLUMNS, str(lse.dtype)))  # e^lse = e^largest * sums, with sums 1
    return largest, mul(largest, 0.0) + 1.0, np.zeros(1, str(made.dtype)), made
