"""`FlashAttentionScore`: attention in MindSpore's fused form, with its layouts, masks, windows and dropout.

    attention_out = dropout(softmax(hide(scale_value * query key^T + real_shift))) value

B samples, N query heads, S queries, T keys, D elements of a head. Samples, query heads and queries may be split with no
message; keys stay whole. So a rank knows by its place which rows it has (for the windows of `sparse_mode`), and which
elements of the whole are dropped. Where there are fewer key heads than query heads, a rank has all of them.

One sample at a time is worked on; backward computes the weights again. Layouts, modes and the strategy's form:
MindSpore, ops.flash_attention_score and flash_attention_score_info.
"""

from __future__ import annotations

import inspect

import numpy as np

from ...base.checks import SHAPE_ERRORS, choice, integer, number
from ...base.dtypes import promoted
from ...base.errors import NotBuiltYet, ShapeError
from ...base.origin import caller
from ...base.seeds import get_seed
from ...layout.named_layout import Layout
from ...ops.context_attention import with_settings
from ...ops.dropout import dropout_key, dropped
from ...ops.machine.operand_checks import floats
from ...ops.machine.registry import PRIMITIVES, case, form, op
from ...ops.machine.state import training_step
from ...ops.shape import reshape
from ...ops.spellings import function, tensor_operand
from .flash_attention_rings import COLUMNS, RINGS, balances, primitive_for, ring_of

# with heads apart: labels of query, and of key and value. b samples, n heads, s queries, t keys, d elements of a head
LAYOUTS = {"BNSD": ("bnsd", "bntd"), "BSND": ("bsnd", "btnd"), "SBND": ("sbnd", "tbnd")}
FLAT = {"BSH": "BSND", "SBH": "SBND"}  # heads lie next to each other in one dim
MODES = (0, 1, 2, 3, 4)
MOST = 2147483647
STEP = "step"  # of `given`: the number of the step, for dropout


def _heads_first(x, layout):
    """(b, n, s, d), a view; of the result of this for that layout, the reverse."""
    return x if layout == "BNSD" else x.transpose(0, 2, 1, 3) if layout == "BSND" else x.transpose(1, 2, 0, 3)


def _as_query(x, layout):
    """Reverse of `_heads_first`, in C order."""
    order = {"BNSD": (0, 1, 2, 3), "BSND": (0, 2, 1, 3), "SBND": (2, 0, 1, 3)}[layout]
    return np.ascontiguousarray(x.transpose(order))


# ---- labels ----


def _labels(shapes, *, given, input_layout, sparse_mode, grouped, **_):
    query, key = LAYOUTS[input_layout]
    sizes = dict(zip(query, shapes[0], strict=True)) | {"t": shapes[1][key.index("t")]}
    if grouped:  # a single head is every rank's, whatever heads of the query it has
        key = key.replace("n", "1" if shapes[1][key.index("n")] == 1 else "g")
    ins = [query, key, key]
    for name, shape in zip(given, shapes[3:], strict=True):
        names = "bnst"[4 - len(shape) :]
        if name == STEP:
            ins.append("")
        elif name == "drop_mask":
            ins.append("bnsp")
        elif name == "attn_mask" and sparse_mode >= 2:
            ins.append("vwxyz"[: len(shape)])  # a triangle of a fixed size: it says nothing that the mode does not say
        else:
            ins.append("".join("1" if n == 1 != sizes[c] else c for c, n in zip(names, shape, strict=True)))
    return f"{','.join(ins)}->bnse,bnse,1,{query}"


def _strategy_labels(signature):
    """One tuple per tensor, none for the step; heads of keys are split as those of the query, or all on each rank."""
    return tuple(labels.replace("g", "n") for labels in signature.ins if labels)


def _own(shape, layout):
    """Extents of one rank's part of samples, queries and heads."""
    return tuple(shape[LAYOUTS[layout][0].index(c)] for c in "bsn")


# ---- what is refused ----


def _check(operands, *, head_num, given, input_layout, sparse_mode, grouped, keep_prob, **_):
    query, key, value, *others = operands
    for name, x in (("query", query), ("key", key), ("value", value)):
        if len(x.shape) != 4 or floats(x, name):
            return f"{name} is {x.dtype} of shape {x.shape}", "Floats, in the dims of input_layout"
    if key.shape != value.shape:
        return f"key of shape {key.shape} and value of shape {value.shape}", "One shape"
    at = LAYOUTS[input_layout][0].index
    b, n, s, d = (query.shape[at(c)] for c in "bnsd")
    heads, t = key.shape[at("n")], key.shape[at("s")]
    if n != head_num:
        return f"head_num={head_num} for a query with {n} heads", "How many heads the query has"
    if (key.shape[at("b")], key.shape[3]) != (b, d) or not heads or n % heads or (heads != n) != grouped:
        allowed = f"{b} samples, and heads of {d} elements, as many as the query's {n} or a divisor of that"
        return f"key of shape {key.shape} for a query of shape {query.shape}", allowed
    full, bits = (b, n, s, t), (b, n, s, -(-t // 8))
    for name, x in zip(given, others, strict=True):
        if name == "real_shift" and (fault := floats(x, name)):
            return fault
        if name == "attn_mask" and x.dtype.kind not in "bu":
            return f"attn_mask is {x.dtype}", "bool or uint8: True where a query must not look at a key"
        if name == "drop_mask" and (x.dtype.kind not in "iu" or x.shape != bits):
            return f"drop_mask is {x.dtype} of shape {x.shape}", f"uint8 of shape {bits}: a bit for each weight"
        if name in (STEP, "drop_mask") or (name == "attn_mask" and sparse_mode >= 2 and len(x.shape) == 2):
            continue
        known = full[4 - len(x.shape) :] if len(x.shape) in ((2, 4) if name == "attn_mask" else (4,)) else ()
        if not known or x.shape[-1] != t or any(m not in (1, f) for m, f in zip(x.shape, known, strict=True)):
            allowed = f"Shape {full}, or 1 in its dims but the last"
            return f"{name} of shape {x.shape}", allowed + (f"; or {full[2:]}" if name == "attn_mask" else "")
    if sparse_mode == 1 and "attn_mask" not in given:
        return "sparse_mode=1 without attn_mask", "The whole mask"
    if keep_prob < 1 and not {STEP, "drop_mask"} & set(given):
        return f"keep_prob={keep_prob} without a step", "The number of the step as the last operand, or a drop_mask"


# ---- the computation ----


class _Attention:
    """One call on arrays: heads-first views, in a dtype to compute in, and weights sample by sample."""

    def __init__(self, operands, *, given, input_layout, sparse_mode, parts, offset, **attrs):
        query, key, value, *others = operands
        self.attrs, self.parts = attrs, parts
        self.dtype = np.result_type(query, np.float32)
        self.query, self.key, self.value = (_heads_first(x, input_layout) for x in (query, key, value))
        # indices of the first sample, query and head of this rank
        self.first = offset if isinstance(offset, tuple) else (offset,) * 3
        heads = self.query.shape[1]
        self.of = None
        if attrs["grouped"]:  # the key head that each query head belongs to
            own = np.arange(self.first[2], self.first[2] + heads)
            self.of = own * self.key.shape[1] // (heads * parts[0])
        named = dict(zip(given, others, strict=True))
        self.step, self.shift, self.mask = int(named.get(STEP, 0)), named.get("real_shift"), None
        self.kept = named.get("drop_mask")
        if "attn_mask" in named and sparse_mode < 2:
            mask = named["attn_mask"]
            self.mask = mask.reshape((1,) * (4 - mask.ndim) + mask.shape)
        self.hidden = self._window(sparse_mode)

    def _window(self, mode):
        """Which keys the mode hides from which queries, (s, t), or None."""
        s, t = self.query.shape[2], self.key.shape[2]
        rows = s * self.parts[1]
        before, after = (MOST, 0) if mode in (2, 3) else (self.attrs["pre_tokens"], self.attrs["next_tokens"])
        if mode == 1 or min(before, after) >= rows + t:
            return None
        # the window lies around the diagonal from the upper left corner, or (3, 4) to the lower right
        diagonal = np.arange(self.first[1], self.first[1] + s)[:, None] + (t - rows if mode in (3, 4) else 0)
        beyond = np.arange(t) - diagonal
        return (beyond > after) | (beyond < -before)

    def sample(self, i):
        """Query, key, value, largest scores, sums and weights of sample i.  -> (n, s, d), ..., (n, s, 1), (n, s, t)."""
        query, key, value = (x[i].astype(self.dtype, copy=False) for x in (self.query, self.key, self.value))
        if self.of is not None:
            key, value = key[self.of], value[self.of]
        scores = np.matmul(query, key.swapaxes(-1, -2))
        scores *= self.dtype.type(self.attrs["scale_value"])
        if self.shift is not None:
            scores += self.shift[i % len(self.shift)]
        for hidden in (None if self.mask is None else self.mask[i % len(self.mask)] != 0, self.hidden):
            if hidden is not None:
                np.copyto(scores, -np.inf, where=hidden)
        largest = scores.max(axis=-1, keepdims=True)
        np.copyto(largest, 0, where=np.isneginf(largest))  # a query that sees no key: its weights are 0
        np.exp(np.subtract(scores, largest, out=scores), out=scores)
        sums = scores.sum(axis=-1, keepdims=True)
        scores /= np.where(sums == 0, 1, sums)
        return query, key, value, largest, sums, scores

    def dropped(self, weights, i):
        """Weights, or their gradients, with some of them dropped and the others scaled.  (n, s, t) -> (n, s, t)."""
        keep = self.attrs["keep_prob"]
        if keep == 1:
            return weights
        if self.kept is not None:
            bits = np.unpackbits(self.kept[i].astype(np.uint8), axis=-1, bitorder="little")
            return weights * bits[..., : weights.shape[-1]] * self.dtype.type(1 / keep)
        place = (self.first[0] + i, self.first[2], self.first[1], 0)
        return dropped(weights[None], self.step, 1 - keep, self.attrs["key"], None, (1, *self.parts, 1), place)[0]


def _floats(count):
    """The dtypes of softmax_max and softmax_sum, and of results like the query."""
    return lambda dtypes, **_: (*(promoted((dtypes[0], "float32")),) * 2, *(dtypes[0],) * count)


_SETTINGS = with_settings(
    **{"head_num": inspect.Parameter.empty, "given": (), "keep_prob": 1.0, "scale_value": 1.0, "pre_tokens": MOST},
    **{"next_tokens": MOST, "input_layout": "BSND", "sparse_mode": 0, "grouped": False, "key": 0, "parts": (1, 1)},
)


@op(
    _labels,
    name="FlashAttention",
    shown="FlashAttentionScore",
    attrs={
        "head_num": integer(1),
        "keep_prob": number(0, 1, above=True),
        "scale_value": number(),
        "pre_tokens": integer(-MOST, MOST),
        "next_tokens": integer(-MOST, MOST),
        "input_layout": choice(*LAYOUTS),
        "sparse_mode": choice(*MODES),
    },
    check=_check,
    dtype=_floats(2),
    sizes=lambda shapes, **_: {"e": COLUMNS},
    whole="tdgepvwxyz",
    batch="b",
    strategy_labels=_strategy_labels,
    offset="bsn",
    part_size=lambda shapes, attrs: _own(shapes[0], attrs["input_layout"]),
    localize=lambda attrs, cuts: {**attrs, "parts": (cuts.get("n", 1), cuts.get("s", 1))},
    flops=lambda s: 4 * s.b * s.s * s.t * s.n * s.d,
    example=(
        case(*((2, 8, 4, 2), (2, 4, 4, 2), (2, 4, 4, 2)), head_num=4, scale_value=0.5, sparse_mode=3),
        case(
            *((2, 4, 8, 3), (2, 2, 6, 3), (2, 2, 6, 3), (1, 4, 8, 6), (2, 1, 8, 6)),
            **{"bools": {4}, "head_num": 4, "given": ("real_shift", "attn_mask"), "input_layout": "BNSD"},
            grouped=True,
        ),
        case(
            *((8, 2, 2, 4), (8, 2, 2, 4), (8, 2, 2, 4), (8, 8), ()),
            **{"bools": {3}, "ints": {4: 9}, "head_num": 2, "given": ("attn_mask", STEP), "input_layout": "SBND"},
            **{"sparse_mode": 2, "keep_prob": 0.7, "key": 5},
        ),
        case(
            *((2, 8, 2, 3), (2, 6, 2, 3), (2, 6, 2, 3), (2, 2, 8, 6)),
            **{"bools": {3}, "head_num": 2, "given": ("attn_mask",), "pre_tokens": 5, "next_tokens": 2},
        ),
        case(
            *((2, 4, 4, 2), (2, 4, 4, 2), (2, 4, 4, 2), (2, 4, 4, 4), (2, 4, 1, 4), ()),
            **{"bools": {4}, "ints": {5: 9}, "head_num": 4, "given": ("real_shift", "attn_mask", STEP)},
            **{"keep_prob": 0.6, "sparse_mode": 1},
        ),
        case(
            *((2, 2, 4, 3), (2, 2, 9, 3), (2, 2, 9, 3), (2, 2, 4, 2)),
            **{"ints": {3: 256}, "head_num": 2, "given": ("drop_mask",), "keep_prob": 0.5, "input_layout": "BNSD"},
        ),
    ),
)
@_SETTINGS
def flash_attention(*operands, **settings):
    """Attention as `FlashAttentionScore` says; operands: query, key, value and those that `given` names, in this order.

    query: BNSD (b, n, s, d), BSND (b, s, n, d) or SBND (s, b, n, d); key, value: the same with t keys; real_shift: (b
    or 1, n, s or 1, t), drop_mask: (b, n, s, t / 8), attn_mask: as real_shift or (s or 1, t), step: () int ->
    softmax_max, softmax_sum: (b, n, s, 8), softmax_out: (1,), not used, attention_out: as query

    grouped  there are fewer key heads than query heads;  key: names the dropout (`dropout_key`)
    parts    in how many parts heads and queries of the whole are split; set by the compiler
    """
    one = _Attention(operands, **settings)
    made = np.empty(one.query.shape, one.dtype)
    largest, sums = (np.empty((*one.query.shape[:3], COLUMNS), one.dtype) for _ in range(2))
    for i in range(len(made)):
        _, _, value, largest[i], sums[i], weights = one.sample(i)
        made[i] = np.matmul(one.dropped(weights, i), value)
    dtype = operands[0].dtype
    return largest, sums, np.zeros(1, dtype), _as_query(made, settings["input_layout"]).astype(dtype, copy=False)


@op(
    result_shape=lambda shapes, *, given, **_: tuple(shapes[1 : 4 + ("real_shift" in given)]),
    dtype=lambda dtypes, *, given, **_: tuple(dtypes[1 : 4 + ("real_shift" in given)]),
    part_size=lambda shapes, attrs: _own(shapes[1], attrs["input_layout"]),
    shown="FlashAttentionScoreGrad",
)
@_SETTINGS
def flash_attention_grad(*operands, **settings):
    """Gradients for query, key, value and real_shift.  g: as query, then the operands of `flash_attention` -> like
    query (b, s, n, d), key, value, real_shift.
    """
    one, layout = _Attention(operands[1:], **settings), settings["input_layout"]
    g, shift = _heads_first(operands[0], layout).astype(one.dtype, copy=False), one.shift
    of_query, of_key, of_value = (np.zeros(x.shape, one.dtype) for x in (one.query, one.key, one.value))
    of_shift = None if shift is None else np.zeros(shift.shape, one.dtype)
    scale, heads = one.dtype.type(settings["scale_value"]), slice(None) if one.of is None else one.of
    for i in range(len(g)):
        queries, keys, values, _, _, weights = one.sample(i)
        to_value = np.matmul(one.dropped(weights, i).swapaxes(-1, -2), g[i])
        grad = one.dropped(np.matmul(g[i], values.swapaxes(-1, -2)), i)
        grad -= (grad * weights).sum(axis=-1, keepdims=True)
        grad *= weights
        if shift is not None:
            one_row = shift.shape[2] == 1
            of_shift[i % len(shift)] += grad.sum(axis=1, keepdims=True) if one_row else grad
        of_query[i] = np.matmul(grad, keys) * scale
        np.add.at(of_key[i], heads, np.matmul(grad.swapaxes(-1, -2), queries) * scale)
        np.add.at(of_value[i], heads, to_value)
    made = [_as_query(x, layout) for x in (of_query, of_key, of_value)] + ([] if shift is None else [of_shift])
    return tuple(x.astype(like.dtype, copy=False) for x, like in zip(made, operands[1:], strict=False))


@flash_attention.vjp
def _(g, out, *operands, **attrs):
    if g[3] is None:  # the other results are what the forward pass keeps for the backward one
        return (None,) * len(operands)
    found = flash_attention_grad(g[3], *operands, **attrs)
    return (*found, *(None,) * (len(operands) - len(found)))


# ---- MindSpore's forms ----

_PAD = "Pad to one length, in the layout BSND, and hide padding by attn_mask"
_INSTEAD = {
    "padding_mask": "Hide padding by attn_mask",
    "prefix": "Hide keys by attn_mask, with sparse_mode=0",
    "actual_seq_qlen": _PAD,
    "actual_seq_kvlen": _PAD,
    " and ".join(RINGS): "Give one of the two: they share the work in different ways",
    "enable_ring_attention_cp": "It is in no version of MindSpore: add_prim_attr('enable_ring_attention', True)",
}


def optional_form(of, name, tensors, read=None, **settings):
    """`form` for operators with many tensors that may be missing, and attributes that are only passed on.

        @optional_form(ffn, "FFN", "x weight1 weight2 bias1? bias2?", activation="gelu")
        def _(self, given):
            ...

    tensors  names in the order of a call, those that may be missing with a question mark
    given    what a call and the class were given, by name; None: not given
    """

    def declare(fn):
        kind = inspect.Parameter
        names = {each.rstrip("?"): None if each.endswith("?") else kind.empty for each in tensors.split()}
        inputs = [kind(each, kind.POSITIONAL_OR_KEYWORD, default=value) for each, value in names.items()]
        switches = [kind(each, kind.KEYWORD_ONLY, default=value) for each, value in settings.items()]

        def arrange(self, **given):
            return fn(self, {**dict.fromkeys(names), **given})

        arrange.__doc__ = fn.__doc__
        arrange.__signature__ = inspect.Signature([kind("self", kind.POSITIONAL_OR_KEYWORD), *inputs, *switches])
        return form(of, name, read=read)(arrange)

    return declare


def refuse_given(where, given, known, hint):
    """NotBuiltYet for arguments that are not among the known ones, and not left out."""
    for name, value in given.items():
        if name not in known.split() and value is not None and not (isinstance(value, int) and value == 0):
            raise NotBuiltYet(f"{name} is not available", where=where, hint=hint)


def refuse_gradient(*operators, hint="Use it where nothing is trained, or ops.stop_gradient(x) before it"):
    """Declare that operators have no gradient, as in MindSpore: a request for one raises NotBuiltYet."""
    for of in operators:

        def rule(g, out, *operands, where=of.class_name, **attrs):
            raise NotBuiltYet("it has no gradient, as in MindSpore", where=where, hint=hint)

        rule.refuses = True
        of.vjp(rule)


def with_heads(axes_or_counts):
    """The strategy of a flat tensor for one with heads apart: their elements stay whole."""
    if isinstance(axes_or_counts, Layout):
        return axes_or_counts.named((*axes_or_counts.axes, ()))
    return (*axes_or_counts, 1)


def _attend(primitive, tensors, settings, refused):
    """The results of `flash_attention`, called as `primitive`.

    tensors   query, key, value, real_shift, drop_mask, attn_mask;  settings: its attributes, in MindSpore's words
    refused   {argument: what was given} of what this operator does not have
    """
    where = primitive.name
    for name, value in refused.items():
        if value is not None and value is not False:
            raise NotBuiltYet(f"{name} is not available", where=where, hint=_INSTEAD[name])
    layout, head_num = settings["input_layout"], settings["head_num"]
    if layout in ("TND", "TH"):
        raise NotBuiltYet(f"input_layout={layout!r} is not available", where=where, hint=_PAD)
    if settings["sparse_mode"] in (5, 6, 7, 8):
        hint = "Give the whole attn_mask with sparse_mode=1"
        raise NotBuiltYet(f"sparse_mode={settings['sparse_mode']} is not available", where=where, hint=hint)
    choice("BSH", "SBH", "BNSD", "BSND")(where, "input_layout", layout, SHAPE_ERRORS)
    head_num = integer(1)(where, "head_num", head_num, SHAPE_ERRORS)
    *heads, real_shift, drop_mask, attn_mask = tensors
    heads = [tensor_operand(where, name, x) for name, x in zip(("query", "key", "value"), heads, strict=True)]
    shape = tuple(heads[0].shape)
    if any(len(x.shape) != (3 if layout in FLAT else 4) for x in heads):
        what = f"query, key and value of shapes {', '.join(str(tuple(x.shape)) for x in heads)}"
        raise ShapeError(what, where=where, allowed=f"{3 if layout in FLAT else 4} dims each, {layout}")
    if layout in FLAT:
        size = shape[2] // head_num
        if not size or shape[2] % head_num or any(x.shape[2] % size for x in heads):
            what = f"head_num={head_num} for shapes {', '.join(str(tuple(x.shape)) for x in heads)}"
            raise ShapeError(what, where=where, allowed="Heads of one size next to each other in the last dim")
        heads = [reshape(x, (*x.shape[:2], x.shape[2] // size, size)) for x in heads]
    attrs = {**settings, "head_num": head_num, "input_layout": FLAT.get(layout, layout)}
    at = LAYOUTS[attrs["input_layout"]][0].index("n")
    attrs["grouped"] = heads[0].shape[at] != heads[1].shape[at]
    further = {"real_shift": real_shift, "drop_mask": drop_mask, "attn_mask": attn_mask}
    if attrs["keep_prob"] != 1 and drop_mask is None:
        further[STEP] = training_step()
        if further[STEP] is None:
            what = f"keep_prob={attrs['keep_prob']} outside a compiled network, where no step is counted"
            raise ShapeError(what, where=where, allowed="keep_prob=1.0")
        attrs["key"] = dropout_key(get_seed(), primitive.instance_name or caller().place)
    further = {name: x for name, x in further.items() if x is not None}
    inner = primitive_for(primitive, flash_attention)
    if layout in FLAT and inner.in_strategy is not None:
        given = inner.in_strategy
        inner.in_strategy = (*map(with_heads, given[:3]), *given[3:])
    *kept, made = flash_attention.call((*heads, *further.values()), {**attrs, "given": tuple(further)}, inner)
    return (*kept, reshape(made, shape) if layout in FLAT else made)


# ---- FlashAttentionScore ----


@optional_form(
    *(flash_attention, "FlashAttentionScore"),
    "query key value real_shift? drop_mask? padding_mask? attn_mask? prefix? actual_seq_qlen? actual_seq_kvlen?",
    **{"head_num": inspect.Parameter.empty, "keep_prob": 1.0, "scale_value": 1.0, "pre_tokens": MOST},
    **{"next_tokens": MOST, "inner_precise": 0, "input_layout": "BSH", "sparse_mode": 0},
)
def _(self, given):
    """Attention: dropout(softmax(hide(scale_value * query key^T + real_shift))) value.

    query: BSH (b, s, h), SBH (s, b, h), BNSD (b, n, s, d) or BSND (b, s, n, d); key, value: the same with t keys and as
    many heads, or a divisor; real_shift: (b or 1, n, s or 1, t); attn_mask: bool or uint8, (b or 1, n or 1, s or 1, t)
    or (s or 1, t), True where a query must not look -> softmax_max, softmax_sum: (b, n, s, 8) without gradient,
    softmax_out: (1,), unused, attention_out: as query. A query that sees no key has 0.

    head_num       heads of the query
    keep_prob      share of the weights that is kept, divided by it; the others are 0. Which ones is a function of
                   (seed, operator, step, place), the same however the ranks split; or those whose bit in drop_mask,
                   uint8 (b, n, s, t / 8), the lowest bit first, is 1
    pre_tokens, next_tokens   sparse_mode 0 and 4: how many keys before and after the diagonal a query sees
    inner_precise  accepted, without effect
    sparse_mode    0 window from the upper left corner, and attn_mask; 1 attn_mask alone; 2 causal; 3 causal from the
                   lower right corner; 4 window from there. In 2, 3, 4 a 2-D attn_mask says nothing more

    Strategy: a tuple for each tensor that is given. Samples, heads and queries may be split, keys not, and heads of
    keys and masks as those of the query. padding_mask, prefix, actual_seq_qlen, actual_seq_kvlen, the
    layouts TND and TH, modes 5 to 8: NotBuiltYet, with what to use instead.

    add_prim_attr("enable_ring_attention", True): the sequence of query, key and value is split alike, and keys go round
    a ring; every block is computed, hidden or not (BSH or BNSD, sparse_mode 0, keep_prob 1, no masks). softmax_max is
    the log of the sum of exponentials then, softmax_sum 1. add_prim_attr("enable_flash_sp", True): the same with
    next_tokens=0 on an even number of ranks, where early ranks help late ones, and all compute as many pairs.

    {"enable_flash_attention_load_balance": true} in the file that parallel_speed_up_json_path names: where the strategy
    splits the queries of BSH or BNSD, with next_tokens=0 and no masks, rank r exchanges the second half of its queries
    with rank P - 1 - r, and the results back. All ranks compute as many pairs then; softmax_max and _sum as in a ring.
    """
    refused = {name: given[name] for name in ("padding_mask", "prefix", "actual_seq_qlen", "actual_seq_kvlen")}
    refused["enable_ring_attention_cp"] = self.prim_attrs.get("enable_ring_attention_cp")
    refused[" and ".join(RINGS)] = all(map(self.prim_attrs.get, RINGS))
    settings = {name: given[name] for name in self.settings if name != "inner_precise"}
    tensors = [given[name] for name in ("query", "key", "value", "real_shift", "drop_mask", "attn_mask")]
    ring = any(map(self.prim_attrs.get, RINGS)) and not any(v for v in refused.values() if isinstance(v, bool))
    if not ring and balances(self, tensors, settings):
        return ring_of(self, tensors, settings, gathered=True)
    return ring_of(self, tensors, settings) if ring else _attend(self, tensors, settings, refused)


@function()
def flash_attention_score(
    query,
    key,
    value,
    head_num,
    real_shift=None,
    drop_mask=None,
    padding_mask=None,
    attn_mask=None,
    prefix=None,
    actual_seq_qlen=None,
    actual_seq_kvlen=None,
    keep_prob=1.0,
    scalar_value=1.0,
    pre_tokens=MOST,
    next_tokens=MOST,
    inner_precise=0,
    input_layout="BSH",
    sparse_mode=0,
):
    """`FlashAttentionScore`'s attention_out.  query: (b, s, h) or as `input_layout` says, key, value: with t keys ->
    as query. Arguments: there; scalar_value is its scale_value. Form: mindspore.ops.flash_attention_score.
    """
    tensors = (query, key, value, real_shift, drop_mask, padding_mask, attn_mask, prefix)
    window = (pre_tokens, next_tokens, inner_precise, input_layout, sparse_mode)
    attention = PRIMITIVES["FlashAttentionScore"](head_num, keep_prob, scalar_value, *window)
    return attention(*tensors, actual_seq_qlen, actual_seq_kvlen)[3]
