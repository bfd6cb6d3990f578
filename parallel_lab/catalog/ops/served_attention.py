"""Attention of language models that answer: new queries look at keys and values that are kept, the cache.

    PromptFlashAttention, IncreFlashAttention, FusedInferAttentionScore    keys of a sample lie behind each other
    PagedAttention, PagedAttentionMask                                     in blocks, which a table numbers
    ReshapeAndCache, KVCacheScatterUpdate, KVCacheMgr                      new ones are written into the cache
    PromptKVCache, DecoderKVCache                                          the same, of a whole prompt, of one position

Samples and key heads may be split, with the query heads that belong to them; of a prompt the queries, too. No message.
Values are those of `flash_attention.py`. Nothing here has a gradient: MindSpore runs these where nothing is trained.
Forms and rules: MindSpore, *_flash_attention_info, fused_infer_attention_score_info, paged_attention_info,
reshape_and_cache_info, kv_cache_scatter_update_info, prompt_k_v_cache_info, decoder_k_v_cache_info.
"""

from __future__ import annotations

import inspect
import math

import numpy as np

from ...base.checks import SHAPE_ERRORS, choice, flag, integer, number
from ...base.errors import NotBuiltYet, ShapeError, StrategyError, shorten
from ...nn.tensor.tensor import Tensor
from ...ops.machine.operand_checks import floats, ints
from ...ops.machine.registry import case, form, op
from ...ops.shape import reshape
from ...ops.spellings import tensor_operand
from .flash_attention import (
    MOST,
    flash_attention,
    optional_form,
    primitive_for,
    refuse_given,
    refuse_gradient,
    with_heads,
    with_settings,
)

# labels of query, and of key and value. b samples, n key heads, s queries, t keys, d elements of a key head, e those
# of all query heads that belong to one key head
_LAYOUTS = {"BSND": ("bsne", "btnd"), "BNSD": ("bnsd", "bntd")}
_NEEDED = inspect.Parameter.empty


def _labels(shapes, *, given, layout, sparse_mode, **_):
    query, key = _LAYOUTS[layout]
    sizes, ins = dict(zip(query, shapes[0], strict=True)), [query, key, key]
    for name, shape in zip(given, shapes[3:], strict=True):
        if name == "attn_mask" and sparse_mode >= 2:
            names = "vwxyz"  # a triangle of a fixed size: it says nothing that the mode does not say
        elif name == "attn_mask":
            names = {2: "bt" if sizes["s"] == 1 else "st", 3: "bst", 4: "b1st"}[len(shape)]
        else:
            names = "bnst" if name == "pse_shift" else "b"
        ins.append("".join("1" if n == 1 != sizes.get(c) else c for c, n in zip(names, shape, strict=False)))
    return f"{','.join(ins)}->{query}"


def _check(operands, *, given, **_):
    query, key, value, *others = operands
    alike = len(query.shape) == len(key.shape) == 4 and key.shape == value.shape
    if not alike or not key.shape[-1] or query.shape[-1] % key.shape[-1]:
        return f"query {query.shape}, key {key.shape}, value {value.shape}", "Key and value alike, heads of one size"
    for name, x in zip(given, others, strict=True):
        if name == "attn_mask" and not 2 <= len(x.shape) <= 4 or name == "pse_shift" and len(x.shape) != 4:
            return f"{name} of shape {x.shape}", "Samples, heads (of a mask 1 or none), queries and keys"
        if name in ("queries", "keys") and (fault := ints(x, "lengths")):
            return fault
    return floats(query, "query") or floats(key, "key")


@op(
    _labels,
    name="InferAttention",
    attrs={
        "scale_value": number(),
        "pre_tokens": integer(-MOST, MOST),
        "next_tokens": integer(-MOST, MOST),
        "layout": choice(*_LAYOUTS),
        "sparse_mode": choice(0, 1, 2, 3, 4),
    },
    check=_check,
    dtype=0,
    axes="bsntdevwxyz",
    whole="tdevwxyz",
    offset="s",
    part_size=lambda shapes, attrs: shapes[0][_LAYOUTS[attrs["layout"]][0].index("s")],
    localize=lambda attrs, cuts: {**attrs, "parts": cuts["s"]},
    flops=lambda s: 4 * s.b * s.n * s.s * s.t * getattr(s, "e", s.d),
    example=(
        case((2, 4, 2, 6), (2, 5, 2, 3), (2, 5, 2, 3), (2,), ints={3: 5}, given=("keys",), scale_value=0.5),
        case(
            *((2, 4, 1, 3), (2, 4, 6, 3), (2, 4, 6, 3), (2, 1, 1, 6), (1, 4, 1, 6)),
            **{"bools": {3}, "given": ("attn_mask", "pse_shift"), "layout": "BNSD"},
        ),
        case(
            *((2, 4, 2, 3), (2, 4, 2, 3), (2, 4, 2, 3), (4, 4), (2,)),
            **{"bools": {3}, "ints": {4: 4}, "given": ("attn_mask", "queries"), "next_tokens": 1},
        ),
        case((2, 8, 2, 3), (2, 8, 2, 3), (2, 8, 2, 3), (8, 8), bools={3}, given=("attn_mask",), sparse_mode=3),
    ),
)
@with_settings(
    **{"given": (), "layout": "BSND", "scale_value": 1.0, "pre_tokens": MOST, "next_tokens": MOST, "sparse_mode": 0},
    parts=1,
)
def infer_attention(*operands, given, layout, sparse_mode, parts, offset, **window):
    """Attention of queries to keys that are kept; operands: query, key, value and those that `given` names.

    query: BSND (b, s, n, e), e / d query heads for each of n key heads, or BNSD (b, n, s, d); key, value: (b, t, n, d)
    or (b, n, t, d); attn_mask: (b or s, t), (b, s, t) or (b, 1, s, t), not 0 where a query must not look; pse_shift: (b
    or 1, heads, s, t), added to scores; queries, keys: (b,) ints, how many there are of a sample: keys beyond are not
    seen, queries beyond give 0 -> as query

    parts  in how many parts the queries of the whole are split; set by the compiler
    """
    named = dict(zip(given, operands[3:], strict=True))
    query, key, value = (np.swapaxes(x, 1, 2) if layout == "BSND" else x for x in operands[:3])
    b, n, s, e = query.shape
    t, d = key.shape[2:]
    query = np.swapaxes(query.reshape(b, n, s, -1, d), 2, 3).reshape(b, -1, s, d)  # query heads apart
    hidden = np.arange(t) >= named.get("keys", np.full(1, t)).reshape(-1, 1, 1, 1)
    if "attn_mask" in named and sparse_mode < 2:
        mask = named["attn_mask"] != 0
        hidden = hidden | mask.reshape(-1, 1, *((1, t) if mask.ndim == 2 and s * parts == 1 else mask.shape[-2:]))
    if "keys" in named and sparse_mode >= 2:
        raise NotBuiltYet("lengths of keys with a window", where="InferAttention", hint="Hide them by attn_mask")
    further = {"real_shift": named["pse_shift"]} if "pse_shift" in named else {}
    further |= {"attn_mask": hidden} if sparse_mode < 2 else {}
    *_, made = flash_attention.fn(
        *(query, key, value, *further.values()),
        **{"head_num": query.shape[1], "given": tuple(further), "input_layout": "BNSD", "sparse_mode": sparse_mode},
        **{"grouped": e != d, "parts": (1, parts), "offset": (0, offset, 0), **window},
    )
    if "queries" in named:
        beyond = np.arange(offset, offset + s)[:, None] >= named["queries"].reshape(-1, 1, 1, 1)
        made = np.where(beyond, np.zeros((), made.dtype), made)
    made = np.swapaxes(made.reshape(b, n, -1, s, d), 2, 3).reshape(b, n, s, e)
    return np.ascontiguousarray(np.swapaxes(made, 1, 2) if layout == "BSND" else made)


_HINT = "Give tensors of floats, with what is hidden in attn_mask, and keys in blocks to PagedAttention"
_KNOWN = "num_heads scale_value pre_tokens next_tokens input_layout num_key_value_heads sparse_mode inner_precise"


def _served(name, tensors, queries="", keys="", **settings):
    """A class whose call is `infer_attention`. queries, keys: its arguments with the lengths of samples."""

    def arrange(self, given):
        refuse_given(name, given, f"{_KNOWN} query key value attn_mask pse_shift block_size {queries} {keys}", _HINT)
        given = {"pre_tokens": MOST, "next_tokens": MOST, "sparse_mode": 0, "": None, **given}
        layout, heads = given["input_layout"], integer(1)(name, "num_heads", given["num_heads"], SHAPE_ERRORS)
        choice("BSH", *_LAYOUTS)(name, "input_layout", layout, SHAPE_ERRORS)
        groups = integer(0)(name, "num_key_value_heads", given["num_key_value_heads"], SHAPE_ERRORS) or heads
        three = [given[each] for each in ("query", "key", "value")]
        three = [x[0] if isinstance(x, (list, tuple)) and len(x) == 1 else x for x in three]
        three = [tensor_operand(name, each, x) for each, x in zip(("query", "key", "value"), three, strict=True)]
        shape = tuple(three[0].shape)
        if any(len(x.shape) != len(layout) for x in three) or heads % groups or layout == "BSH" and shape[2] % heads:
            what = f"num_heads={heads}, num_key_value_heads={groups} for {[tuple(x.shape) for x in three]}"
            raise ShapeError(what, where=name, allowed=f"{len(layout)} dims, {layout}, of heads of one size")
        if heads != groups and (layout == "BNSD" or given["pse_shift"] is not None):
            what = f"num_key_value_heads={groups} with input_layout={layout!r} or pse_shift"
            raise NotBuiltYet(what, where=name, hint="Repeat the key heads, or use the layout BSH")
        inner = primitive_for(self, infer_attention)
        if layout == "BSH":
            three = [reshape(x, (*x.shape[:2], groups, x.shape[2] // groups)) for x in three]
            inner.in_strategy = inner.in_strategy and (*map(with_heads, inner.in_strategy[:3]), *inner.in_strategy[3:])
        elif heads != groups:
            three[0] = reshape(three[0], (*shape[:2], groups, heads // groups * shape[3]))
        further = {"attn_mask": "attn_mask", "pse_shift": "pse_shift", "queries": queries, "keys": keys}
        further = {k: given[v] for k, v in further.items() if given[v] is not None}
        further = {k: np.asarray(x, np.int64) if isinstance(x, (list, tuple)) else x for k, x in further.items()}
        attrs = {each: given[each] for each in ("scale_value", "pre_tokens", "next_tokens", "sparse_mode")}
        if "attn_mask" not in further and attrs["sparse_mode"] == 0:
            attrs |= {"pre_tokens": MOST, "next_tokens": MOST}
        attrs |= {"given": tuple(further), "layout": "BSND" if layout == "BSH" else layout}
        made = infer_attention.call((*three, *further.values()), attrs, inner)
        made = reshape(made, shape) if tuple(made.shape) != shape else made
        return (made, Tensor(np.zeros(1, np.float32))) if "softmax_lse_flag" in given else made

    optional = " ".join(f"{each}?" for each in tensors.split())
    arrange.__doc__ = """Attention to keys that are kept.  query: BSH (b, s, h), BNSD or BSND, key, value: with t keys
    -> as query; FusedInferAttentionScore: and (1,) zeros, the place of softmax_lse.

    attn_mask: (s, t), (b, s, t) or (b, 1, s, t), with one query (b, t), True where a query must not look; without one
    sparse_mode 0 hides nothing. pse_shift: (b or 1, n, s, t), added to scores. Lengths: (b,) ints. Other arguments:
    `infer_attention`. Quantized forms, keys in blocks, softmax_lse: NotBuiltYet.
    """
    optional_form(infer_attention, name, f"query key value {optional}", **settings)(arrange)


_PRECISE = {"sparse_mode": 0, "inner_precise": 1}
_QUANT = "dequant_scale1 quant_scale1 dequant_scale2 quant_scale2 quant_offset2"
_served(
    "PromptFlashAttention",
    f"attn_mask actual_seq_lengths actual_seq_lengths_kv pse_shift {_QUANT.replace('dequant', 'deq')}",
    *("actual_seq_lengths", "actual_seq_lengths_kv"),
    **{"num_heads": 1, "scale_value": 1.0, "pre_tokens": MOST, "next_tokens": 0, "input_layout": "BSH"},
    **{"num_key_value_heads": 0, **_PRECISE},
)
_served(
    "IncreFlashAttention",
    f"attn_mask actual_seq_lengths pse_shift {_QUANT} antiquant_scale antiquant_offset block_table kv_padding_size",
    keys="actual_seq_lengths",
    **{"num_heads": 1, "input_layout": "BSH", "scale_value": 1.0, "num_key_value_heads": 0, "block_size": 0},
    inner_precise=1,
)
_served(
    "FusedInferAttentionScore",
    f"pse_shift attn_mask actual_seq_lengths actual_seq_lengths_kv {_QUANT} antiquant_scale antiquant_offset "
    "block_table query_padding_size kv_padding_size key_antiquant_scale key_antiquant_offset value_antiquant_scale "
    "value_antiquant_offset key_shared_prefix value_shared_prefix actual_shared_prefix_len",
    *("actual_seq_lengths", "actual_seq_lengths_kv"),
    **{"num_heads": 1, "scale_value": 1.0, "pre_tokens": MOST, "next_tokens": MOST, "input_layout": "BSH"},
    **{"num_key_value_heads": 0, **_PRECISE, "block_size": 0, "antiquant_mode": 0, "softmax_lse_flag": False},
    **{"key_antiquant_mode": 0, "value_antiquant_mode": 0},
)


# ---- keys and values in blocks ----


def _check_paged(operands, **_):
    query, key, value, table, lengths, *_ = operands
    if len(key.shape) == 4 and (key.shape != value.shape or not key.shape[3] or query.shape[-1] % key.shape[3]):
        return f"query {query.shape}, caches {key.shape} and {value.shape}", "Caches alike, with equal heads"
    return floats(query, "query") or ints(table, "block_tables") or ints(lengths, "context_lens")


@op(
    lambda shapes, **_: "bne,pqnd,pqnd,bm,b" + (",bn1l" if len(shapes) > 5 else "") + "->bne",
    name="BlockAttention",
    attrs={"scale_value": number()},
    check=_check_paged,
    dtype=0,
    axes="bnepqdml",
    whole="epqdml",
    flops=lambda s: 4 * s.b * s.n * s.e * s.m * s.q,
    example=(
        case((4, 2, 6), (5, 2, 2, 3), (5, 2, 2, 3), (4, 3), (4,), ints={3: 5, 4: 7}),
        case((2, 4, 3), (3, 2, 4, 3), (3, 2, 4, 3), (2, 2), (2,), (2, 4, 1, 4), ints={3: 3, 4: 5}),
    ),
)
def block_attention(*operands, scale_value=1.0):
    """Attention of one query per sample to keys in blocks, the first of those that block_tables names.

    query: (b, n, e), e / d query heads for each of n key heads; key_cache, value_cache: (p blocks, q, n, d);
    block_tables: (b, m) ints; context_lens: (b,) ints; alibi_mask: (b, n, 1, m q), added to the scores -> (b, n, e)
    """
    query, key, value, table, lengths, *shift = operands
    kept = [x[table].reshape(len(query), -1, *x.shape[2:]) for x in (key, value)]
    names = ("keys", *["pse_shift"] * len(shift))
    return infer_attention.fn(query[:, None], *kept, lengths, *shift, given=names, scale_value=scale_value)[:, 0]


def _rows_with_heads(prim, x, heads, cuts):
    """(..., h) as (samples, heads, h / heads), and its strategy; dims between the first and the last are whole."""
    if cuts is not None:
        if not isinstance(cuts, tuple) or len(cuts) != len(x.shape) or any(n != 1 for n in cuts[1:-1]):
            allowed = "Counts, with 1 between the first and the last"
            raise StrategyError(f"strategy {shorten(cuts)}", where=prim.name, allowed=allowed)
        cuts = (cuts[0], cuts[-1], 1)
    return reshape(x, (math.prod(x.shape[:-1]), heads, x.shape[-1] // heads)), cuts


def _paged(self, given):
    """Attention of one new query per sample to keys in blocks.

    query: (b, 1, h), (b, h) or (b, n, d), of head_num heads; key_cache, value_cache: (blocks, block size, kv_head_num,
    d); block_tables: (b, m) ints, the blocks of a sample; context_lens: (b,) ints, how many keys it has; alibi_mask:
    (b, n, 1, keys), added to scores -> as query. Quantized caches, attn_mask, q_seq_lens and mla_v_dim: NotBuiltYet.
    """
    names = ("query", "key_cache", "value_cache", "block_tables", "context_lens")
    known = f"{' '.join(names)} alibi_mask head_num scale_value kv_head_num kv_cache_quant_mode mask_mode"
    refuse_given(self.name, given, known, _HINT)
    query, *tensors = (tensor_operand(self.name, name, given[name]) for name in names)
    shape = tuple(query.shape)
    heads, groups = (integer(1)(self.name, name, given[name], SHAPE_ERRORS) for name in ("head_num", "kv_head_num"))
    apart = len(shape) == 3 and shape[1] == heads > 1
    if heads % groups or not apart and (shape[1:-1] not in ((), (1,)) or shape[-1] % heads):
        what = f"query of shape {shape} with head_num={heads}, kv_head_num={groups}"
        raise ShapeError(what, where=self.name, allowed="(b, 1, h), (b, h) or (b, n, d): one query per sample")
    if given["alibi_mask"] is not None:
        tensors.append(given["alibi_mask"])
        if heads != groups or math.prod(tensors[-1].shape[-1:]) != tensors[2].shape[1] * tensors[0].shape[1]:
            what = f"alibi_mask of shape {tuple(tensors[-1].shape)} with kv_head_num={groups}"
            raise NotBuiltYet(
                what, where=self.name, hint="One column per key in block_tables' blocks, one head per key head"
            )
    inner = primitive_for(self, block_attention)
    if apart:
        rows = reshape(query, (shape[0], groups, heads // groups * shape[2]))
    else:
        strategy = inner.in_strategy
        rows, cuts = _rows_with_heads(self, query, groups, strategy and strategy[0])
        inner.in_strategy = strategy and (cuts, *strategy[1:])
    return reshape(block_attention.call((rows, *tensors), {"scale_value": given["scale_value"]}, inner), shape)


_BLOCKS = "query key_cache value_cache? block_tables? context_lens? antiquant_scale? antiquant_offset?"
_HEADS = dict.fromkeys(("head_num", "scale_value", "kv_head_num"), _NEEDED) | {"kv_cache_quant_mode": "DEFAULT"}
optional_form(
    *(block_attention, "PagedAttention", f"{_BLOCKS} attn_mask? q_seq_lens? alibi_mask?"),
    **{**_HEADS, "mask_mode": "MASK_DEFAULT", "mla_v_dim": 0},
)(_paged)
optional_form(block_attention, "PagedAttentionMask", f"{_BLOCKS} alibi_mask?", **_HEADS)(_paged)


refuse_gradient(infer_attention, block_attention, hint="For training use ops.FlashAttentionScore")


# ---- new keys and values ----


@op(
    "pqnd,tnd,t->pqnd",
    name="BlockWrite",
    check=lambda operands: ints(operands[2], "slots"),
    whole="pqdt",
    writes=True,
    flops=0,
    example=case((3, 2, 8, 2), (4, 8, 2), (4,), ints={2: 6}),
)
def block_write(cache, rows, slots):
    """Rows written to the slots of blocks; the Parameter cache takes the result. A negative slot is skipped.

    cache: (p blocks, q, n, d), rows: (t, n, d), slots: (t,) ints, block * q + place -> (p, q, n, d)
    """
    made = cache.reshape(-1, *cache.shape[2:]).copy()
    if slots.size and slots.max() >= len(made):
        raise ShapeError(f"slot {slots.max()}", where="ReshapeAndCache", allowed=f"Below {len(made)}: blocks * size")
    made[slots[slots >= 0]] = rows[slots >= 0]
    return made.reshape(cache.shape)


@optional_form(block_write, "ReshapeAndCache", "key value? key_cache? value_cache? slot_mapping?")
def _(self, given):
    """Keys and values written into their caches; returns key.

    key, value: (b, s, h) or (tokens, h); key_cache, value_cache: Parameters (blocks, block size, n, h / n);
    slot_mapping: (b s,) ints, the slot of each token: block * block size + place, negative: not kept -> as key

    Heads may be split: ((1, 1, n), (1, 1, n), (1, 1, n, 1), (1, 1, n, 1), (1,)).
    """
    key, value, key_cache, value_cache, slots = (tensor_operand(self.name, n, x) for n, x in given.items())
    strategy = self.in_strategy or (None,) * 5
    if len(strategy) != 5:
        raise StrategyError(f"strategy {shorten(strategy)}", where=self.name, allowed="A tuple for each of 5 inputs")
    for i, (rows, cache) in enumerate(((key, key_cache), (value, value_cache))):
        if len(cache.shape) != 4 or rows.shape[-1] != cache.shape[2] * cache.shape[3]:
            what = f"rows of shape {tuple(rows.shape)} for a cache of shape {tuple(cache.shape)}"
            raise ShapeError(what, where=self.name, allowed="(..., n d) for (blocks, block size, n, d)")
        inner = primitive_for(self, block_write)
        flat, cuts = _rows_with_heads(self, rows, cache.shape[2], strategy[i])
        inner.in_strategy = self.in_strategy and (strategy[2 + i], cuts, strategy[4])
        block_write.call((cache, flat, slots), {}, inner)
    return key


def _check_cache(operands, **_):
    var, _, places = operands
    if len(var.shape) == 4 and len(places.shape) == 1 and places.shape[0] != var.shape[0]:
        return f"indices of shape {places.shape} for {var.shape}", "One index per sample"
    return ints(places, "indices")


@op(
    lambda shapes, *, axis, shared: f"bnsd,bn{'ud' if axis == -2 else 'su'},{'i' if shared else 'b'}->bnsd",
    name="CacheWrite",
    attrs={"axis": choice(-1, -2)},
    check=_check_cache,
    whole=lambda signature, *, axis, **_: "iu" + ("s" if axis == -2 else "d"),
    axes="bnsd",
    offset=lambda signature: "b" if signature.ins[2] == "i" else "",
    writes=True,
    flops=0,
    example=(
        case((4, 2, 5, 2), (4, 2, 1, 2), (4,), ints={2: 5}, axis=-2, shared=False),
        case((4, 2, 2, 5), (4, 2, 2, 2), (4,), ints={2: 4}, axis=-1, shared=True),
    ),
)
def cache_write(var, updates, places, *, axis=-2, shared=False, offset=0):
    """Elements from each sample's index on, along `axis`, are replaced; the Parameter var takes the result.

    var: (b, n, s, d), updates: with u elements along axis, places: (b,) ints -> (b, n, s, d)
    shared  every rank has the indices of all samples
    """
    made, count, own = var.copy(), updates.shape[axis], places[offset : offset + len(var)]
    if own.size and (own.min() < 0 or own.max() + count > var.shape[axis]):
        what = f"{count} elements from {own.min()} to {own.max()} on, along a dim of {var.shape[axis]}"
        raise ShapeError(what, where="CacheWrite", allowed="Places within the dim")
    for sample, place, row in zip(made, own, updates, strict=True):
        np.moveaxis(sample, axis, 0)[place : place + count] = np.moveaxis(row, axis, 0)
    return made


def _write(self, var, updates, places, strategy, **attrs):
    inner = primitive_for(self, cache_write)
    inner.in_strategy = strategy
    return cache_write.call((var, updates, places), attrs, inner)


@form(cache_write, "KVCacheScatterUpdate")
def _(self, var, indices, updates, axis, reduce="none"):
    """updates put into the Parameter var from each sample's index on, along `axis` (-1 or -2).

    var: (b, n, s, d), indices: (b,) ints, which stay whole, updates: as var, shorter along axis -> (b, n, s, d)
    """
    choice("none", "update")(self.name, "reduce", reduce, SHAPE_ERRORS)
    cuts = self.in_strategy
    cuts = tuple(cuts[i] for i in (0, 2, 1)) if cuts and len(cuts) == 3 else cuts
    return _write(self, var, updates, indices, cuts, axis=axis, shared=True)


@form(cache_write, "KVCacheMgr")
def _(self, past, cur, index):
    """cur put into the Parameter past at each sample's index.  past: (b, n, s, d), cur: (b, n, 1, d), index: (b,) ints
    -> (b, n, s, d). The first tuple of a strategy counts; the others follow.
    """
    cuts = self.in_strategy
    if cuts and isinstance(first := cuts[0], tuple) and len(first) == 4:
        cuts = (first, (*first[:2], 1, first[3]), first[:1])
    return _write(self, past, cur, index, cuts, axis=-2, shared=False)


# ---- caches of whole samples ----


def _sample_labels(shapes, *, prompt, **_):
    rows = "bnsd" if len(shapes[0]) == 4 else "bsd"
    own = "u" if prompt and shapes[1][0] != shapes[0][0] else "b"
    return f"{rows},{own}{rows[1:].replace('s', 't')},{own},i->{rows}"


def _check_samples(operands, *, prompt):
    cache, update, lengths, samples = operands
    own, new = cache.shape, update.shape
    if len(own) not in (3, 4) or len(new) != len(own) or own[1:-2] != new[1:-2] or new[-2] > own[-2]:
        return f"update {new} for cache {own}", "(b, n, t, d) for (b, n, s, d), or (b, t, d) for (b, s, d), t at most s"
    if prompt and samples.shape != new[:1]:
        return f"batch_index of shape {samples.shape} for {new[0]} samples", f"({new[0]},), the place of each"
    return ints(lengths, "valid_seq_len") or ints(samples, "batch_index")


_CACHED = {
    **{"signature": _sample_labels, "attrs": {"prompt": flag}, "check": _check_samples, "dtype": 0, "flops": 0},
    "axes": "bnd",
    "offset": "b",
    "whole": lambda signature, *, prompt: "stiu" + ("b" if "u" in signature.ins[1] else ""),
}
_PROMPT_AND_STEP = (
    case((4, 2, 6, 4), (4, 2, 1, 4), (4,), (1,), ints={2: 6, 3: 1}, prompt=False),
    case((4, 6, 8), (4, 2, 8), (4,), (1,), ints={2: 5, 3: 1}, prompt=False),
    case((4, 2, 6, 4), (2, 2, 3, 4), (2,), (2,), ints={2: 3, 3: 4}, prompt=True),
)


def _with_samples(cache, update, lengths, samples, prompt, offset):
    made, count = cache.copy(), update.shape[-2]
    for i, rows in enumerate(update):
        place = int(lengths[i]) if not prompt else int(samples[offset + i])
        if place < 0:
            continue
        if not prompt and place + count > cache.shape[-2]:
            what = f"valid_seq_len {place} with {count} new positions"
            raise ShapeError(what, where="DecoderKVCache", allowed=f"At most {cache.shape[-2]}, the cache's length")
        if prompt and not 0 <= (place := place - offset) < len(cache):
            what = f"batch_index {place + offset} for the cache's samples from {offset} to {offset + len(cache) - 1}"
            raise ShapeError(what, where="PromptKVCache", allowed="A sample of this rank's slice of the cache")
        made[i if not prompt else place, ..., 0 if prompt else place :, :][..., :count, :] = rows
        if prompt:
            made[place, ..., count:, :] = 0
    return made


@op(name="SampleCache", example=_PROMPT_AND_STEP, **_CACHED)
def sample_cache(cache, update, lengths, samples, *, prompt=False, offset=0):
    """The cache with new positions.  cache: (b, n, s, d) or (b, s, d), update: with t positions -> as cache.

    prompt  True: samples, (u,) ints, are the cache's places of the u samples of update, which begin at 0, zeros behind
            them; otherwise lengths, (b,) ints, are the position of each sample's new ones. Negative: not kept
    """
    return _with_samples(cache, update, lengths, samples, prompt, offset)


@op(name="SampleCacheWrite", writes=True, example=_PROMPT_AND_STEP, **_CACHED)
def sample_cache_write(cache, update, lengths, samples, *, prompt=False, offset=0):
    """`sample_cache`, where cache is a Parameter that takes the result.

    cache: (b, n, s, d) or (b, s, d), update: with t positions -> as cache
    """
    return _with_samples(cache, update, lengths, samples, prompt, offset)


def _keep(self, cache, update, lengths, samples, prompt):
    of = sample_cache_write if hasattr(cache, "set_data") else sample_cache
    inner, cuts = primitive_for(self, of), self.in_strategy
    if cuts is not None and (len(cuts) < 4 or any(n != 1 for c in cuts[3:] for n in c)):
        allowed = "Tuples for cache, update and valid_seq_len, and (1,) for each of the others"
        raise StrategyError(f"strategy {shorten(cuts)}", where=self.name, allowed=allowed)
    inner.in_strategy = cuts and cuts[:4]
    return of.call((cache, update, lengths, samples), {"prompt": prompt}, inner)


@form(sample_cache, "DecoderKVCache")
def _(self, cache, update, valid_seq_len, batch_index, seq_len_axis, new_max_seq_len, cur_max_seq_len):
    """The cache with each sample's new positions from valid_seq_len on; a Parameter cache takes them.

    cache: (b, n, s, d) or (b, s, d), update: (b, n, t, d) or (b, t, d), valid_seq_len: (b,) ints, negative: not kept ->
    as cache. The last four are not read. All dims but the positions may be split.
    """
    return _keep(self, cache, update, valid_seq_len, np.zeros(1, np.int64), False)


@form(sample_cache, "PromptKVCache")
def _(
    self,
    cache,
    update,
    valid_seq_len,
    batch_index,
    seq_len_axis,
    new_max_seq_len,
    cur_max_seq_len,
    *,
    align_mode="left",
):
    """The cache with the prompts of some samples, zeros behind them; a Parameter cache takes them.

    cache: (b, n, s, d) or (b, s, d), update: (u, n, t, d) or (u, t, d), batch_index: (u,) ints, the samples in the
    cache, negative: not kept -> as cache. The last three, valid_seq_len and align_mode are not read. All dims but the
    positions may be split, the samples where u is b: each then stays on its rank.
    """
    return _keep(self, cache, update, valid_seq_len, batch_index, True)
