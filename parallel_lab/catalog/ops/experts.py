"""Layers of experts: rows are sorted by expert, each expert works on its own rows, and the results go back.

    MoeGatingTopKSoftmax    the k best experts of each row, and their weights
    MoeInitRouting, V2      rows in the order of their experts;   MoeComputeExpertTokens: where each expert's end
    FFN, GroupedMatmul      what experts compute on rows that lie behind each other
    MoeFinalizeRouting      the weighted sum of what the k experts of a row gave
    moe_token_permute       tokens sorted by expert, and back (moe_token_unpermute), in training

Which expert has a row depends on all rows: where they are counted nothing may be split (MindSpore's rules). Inside an
expert the hidden dim may be, which leaves sums. Forms and formulas: mindspore.ops.auto_generate, f_f_n_info,
grouped_matmul_info, moe_finalize_routing_info; CANN's aclnnMoeInitRouting.
"""

from __future__ import annotations

import itertools

import numpy as np

from ...base.checks import SHAPE_ERRORS, choice, flag, integer
from ...base.errors import ShapeError, StrategyError, shorten
from ...ops.expert_rows import combine_rows, dispatch_rows, permutation
from ...ops.logic import less, select
from ...ops.machine.operand_checks import floats, ints
from ...ops.machine.registry import case, form, op
from ...ops.shape import as_array, reshape
from ...ops.spellings import function, tensor_operand
from .cumulative import cumsum
from .flash_attention import optional_form, primitive_for, refuse_given, refuse_gradient

# ---- what experts compute ----

_ACTIVATIONS = {
    "fastgelu": lambda x: x / (1 + np.exp(-1.702 * x)),
    "gelu": lambda x: 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
    "relu": lambda x: np.maximum(x, 0),
    "silu": lambda x: x / (1 + np.exp(-x)),
}


def _groups(ends, first, count):
    """The rows of each group among `count` rows from `first` on, where groups end at `ends`; without ends one group."""
    if ends is None:
        return [slice(None)]
    bounds = np.clip(np.maximum.accumulate([0, *ends]) - first, 0, count)
    return list(itertools.starmap(slice, itertools.pairwise(bounds)))


def _product(x, weight, bias, groups, share=1):
    """Rows times the weight of their group, plus its bias / share; else 0.  x: (..., k), weight: ((e,) k, n)."""
    made = np.zeros((*x.shape[:-1], weight.shape[-1]), np.result_type(x, weight))
    for i, rows in enumerate(groups):
        own = (weight, bias) if rows == slice(None) else (weight[i], None if bias is None else bias[i])
        made[rows] = x[rows] @ own[0] + (0 if own[1] is None else own[1] / share)
    return made


def _check_rows(operands, *, given, **_):
    dims = len(operands[0].shape)
    if not 2 <= dims <= (2 if "ends" in given else 6):
        return f"x of shape {operands[0].shape}", "(..., m, k), of groups (m, k)"
    return ints(operands[given.index("ends") - len(given)], "rows of groups") if "ends" in given else None


def _labels_of(shapes, given, weights, further, out):
    e, rows = "e" if "ends" in given else "", "abcdm"[6 - len(shapes[0]) :]
    ins = [rows + weights[0][0], *(e + each for each in weights)]
    return f"{','.join([*ins, *('e' if name == 'ends' else e + further[name] for name in given)])}->{rows}{out}"


_ROWS = {"dtype": 0, "part_size": lambda shapes, attrs: shapes[0][-2]}
_GROUPED = {"check": _check_rows, "axes": "abcdmkfhne", **_ROWS}


@op(
    lambda shapes, *, given, **_: _labels_of(shapes, given, ("hf", "fh"), {"bias1": "f", "bias2": "h"}, "h"),
    name="FeedForward",
    attrs={"activation": choice(*_ACTIVATIONS)},
    whole="eabcdmh",
    localize=lambda attrs, cuts: {**attrs, "parts": cuts["f"]},
    flops=lambda s: 4 * s.m * s.h * s.f,
    example=(
        case((6, 4), (4, 8), (8, 4), (8,), (4,), given=("bias1", "bias2"), activation="gelu"),
        case(*((9, 4), (3, 4, 8), (3, 8, 4), (3,), (3, 8), (3, 4)), ints={3: 4}, given=("ends", "bias1", "bias2")),
        case((2, 3, 4), (4, 8), (8, 4)),
    ),
    **{**_GROUPED, "part_size": None},
)
def feed_forward(*operands, given=(), activation="fastgelu", parts=1):
    """activation(x weight1 + bias1) weight2 + bias2; operands: x, weight1, weight2 and those that `given` names.

    x: (..., h), weight1: (h, f), weight2: (f, h), bias1: (f,), bias2: (h,) -> (..., h); or each with a dim e of experts
    in front, and ends: (e,) ints, how many rows each has, the first ones the first expert

    parts  over how many ranks f is split: each adds its share of bias2; set by the compiler
    """
    x, first, second, *_ = operands
    named = dict(zip(given, operands[3:], strict=True))
    groups = _groups(np.cumsum(named["ends"]) if "ends" in named else None, 0, len(x))
    inner = _ACTIVATIONS[activation](_product(x, first, named.get("bias1"), groups))
    return _product(inner, second, named.get("bias2"), groups, parts).astype(x.dtype, copy=False)


@optional_form(
    feed_forward,
    "FFN FFNExt",
    "x weight1 weight2 expertTokens? bias1? bias2? scale? offset? deqScale1? deqScale2? antiquant_scale1? "
    "antiquant_scale2? antiquant_offset1? antiquant_offset2?",
    **{"activation": "fastgelu", "inner_precise": 0},
)
def _(self, given):
    """Two layers, of experts or not.  x: (..., h), weights: ((e,) h, f), ((e,) f, h) -> (..., h). See `feed_forward`.

    activation: fastgelu, gelu, relu or silu. f may be split; quantized weights: NotBuiltYet.
    """
    refuse_given(self.name, given, "x weight1 weight2 expertTokens bias1 bias2 activation inner_precise", _FLOATS)
    further = {"ends": given["expertTokens"], "bias1": given["bias1"], "bias2": given["bias2"]}
    further = {name: x for name, x in further.items() if x is not None}
    tensors = (given["x"], given["weight1"], given["weight2"], *further.values())
    return self.run(*tensors, given=tuple(further), activation=given["activation"])


@op(
    lambda shapes, *, given, **_: _labels_of(shapes, given, ("kn",), {"bias": "n"}, "n"),
    name="GroupedProduct",
    whole="e",
    offset="m",
    localize=lambda attrs, cuts: {**attrs, "parts": cuts["k"]},
    flops=lambda s: 2 * s.m * s.k * s.n,
    example=(
        case((8, 4), (3, 4, 2), (3,), ints={2: 9}, given=("ends",)),
        case((8, 4), (2, 4, 2), (2, 2), (2,), ints={3: 9}, given=("bias", "ends")),
        case((2, 4, 4), (4, 6), (6,), given=("bias",)),
    ),
    **_GROUPED,
)
def grouped_product(*operands, given=(), parts=1, offset=0):
    """Every row times the matrix of its group, plus its bias; operands: x, weight and those that `given` names.

    x: (..., m, k), weight: (k, n), bias: (n,) -> (..., m, n); or x: (m, k), weight: (e, k, n), ends: (e,) ints, where
    the rows of a group end, bias: (e, n) -> (m, n), 0 behind the last group
    """
    x, weight, *_ = operands
    named = dict(zip(given, operands[2:], strict=True))
    return _product(x, weight, named.get("bias"), _groups(named.get("ends"), offset, len(x)), parts).astype(x.dtype)


@op(result_shape=lambda shapes, **_: (*shapes[0][:-1], shapes[1][-2]), **_ROWS)
def grouped_product_grad(*operands, offset=0):
    """Gradient for x.  g: (..., n), weight: ((e,) k, n), ends: (e,) -> (..., k)."""
    g, weight, *ends = operands
    return _product(g, np.swapaxes(weight, -1, -2), None, _groups(*ends or [None], offset, len(g)))


@op(result_shape=lambda shapes, **_: (*(shapes[2] if shapes[2:] else ()), shapes[1][-1], shapes[0][-1]), **_ROWS)
def grouped_product_weight_grad(*operands, offset=0):
    """Gradient for weight.  g: (..., n), x: (..., k), ends: (e,) -> ((e,) k, n)."""
    g, x, *ends = operands
    made = [
        x[rows].reshape(-1, x.shape[-1]).T @ g[rows].reshape(-1, g.shape[-1])
        for rows in _groups(*ends or [None], offset, len(g))
    ]
    return np.stack(made) if ends else made[0]


@op(result_shape=lambda shapes, **_: (*(shapes[1] if shapes[1:] else ()), shapes[0][-1]), **_ROWS)
def grouped_product_bias_grad(*operands, parts, offset=0):
    """Gradient for the share of bias that each of `parts` ranks adds.  g: (..., n), ends: (e,) -> ((e,) n)."""
    g, *ends = operands
    made = [g[rows].reshape(-1, g.shape[-1]).sum(axis=0) / parts for rows in _groups(*ends or [None], offset, len(g))]
    return np.stack(made) if ends else made[0]


@grouped_product.vjp
def _(g, out, x, weight, *further, given, parts):
    ends = [value for name, value in zip(given, further, strict=True) if name == "ends"]
    grads = [grouped_product_grad(g, weight, *ends), grouped_product_weight_grad(g, x, *ends)]
    return (*grads, *(None if name == "ends" else grouped_product_bias_grad(g, *ends, parts=parts) for name in given))


_FLOATS = "Give tensors of floats, of shapes (m, k) and (k, n)"


def _multiplied(self, given, ends):
    """Products of lists, or of the rows of groups that end at `ends`.  given: what was given, by name."""
    ends = [] if ends is None else [ends]
    lists = [x for x in (given["x"], given["weight"], given["bias"]) if x is not None]
    alike = all(isinstance(x, (list, tuple)) and len(x) == len(lists[0]) > 0 for x in lists)
    if not alike or (given["split_item"], given["group_type"]) != ((3, 0) if ends else (0, -1)):
        what = f"split_item={shorten(given['split_item'])}, group_type={shorten(given['group_type'])}"
        allowed = "0 and -1, or with group_list 3 and 0; lists x, weight and bias of one length"
        raise ShapeError(what, where=self.name, allowed=allowed)
    made, count = [], len(lists[0])
    for i in range(count):
        inner = primitive_for(self, grouped_product)
        inner.in_strategy = self.in_strategy if ends or self.in_strategy is None else self.in_strategy[i::count]
        tensors = [tensor_operand(self.name, "x, weight, bias", x[i]) for x in lists]
        attrs = {"given": (("bias",) if len(lists) > 2 else ()) + (("ends",) if ends else ())}
        made.append(grouped_product.call((*tensors, *ends), attrs, inner))
    return tuple(made)


@optional_form(
    grouped_product,
    "GroupedMatmul",
    "x weight bias? scale? offset? antiquant_scale? antiquant_offset? group_list?",
    **{"split_item": 0, "group_type": -1, "transpose_a": False, "transpose_b": False},
)
def _(self, given):
    """Products of lists of tensors, each with its weight, or of rows in groups.  -> tuple of tensors.

    split_item=0, group_type=-1: x: n tensors (..., m, k), weight: n tensors (k, n), bias: n tensors (n,)
    split_item=3, group_type=0: x: one tensor (m, k), weight: one (e, k, n), group_list: (e,) ints, where the rows of a
    group end, bias: one (e, n)

    Strategy: a tuple of tuples for each list. Transposed and quantized forms: NotBuiltYet.
    """
    refuse_given(self.name, given, "x weight bias group_list split_item group_type", _FLOATS)
    return _multiplied(self, given, given["group_list"])


@form(grouped_product, "GroupedMatmulV4")
def _(
    self,
    x,
    weight,
    bias=None,
    scale=None,
    offset=None,
    antiquant_scale=None,
    antiquant_offset=None,
    pre_token_scale=None,
    group_list=None,
    activation_input=None,
    activation_quant_scale=None,
    activation_quant_offset=None,
    split_item=0,
    group_type=-1,
    group_list_type=0,
    act_type=0,
    output_dtype=None,
):
    """`GroupedMatmul` with all given at the call.  group_list_type=1: group_list: (e,) ints, how many rows each group
    has, 0: where they end. Quantized forms, act_type and output_dtype: NotBuiltYet.
    """
    quantized = (scale, offset, antiquant_scale, antiquant_offset, pre_token_scale)
    further = (activation_input, activation_quant_scale, activation_quant_offset, act_type or None, output_dtype)
    names = "scale offset antiquant_scale antiquant_offset pre_token_scale activation_input activation_quant_scale "
    names += "activation_quant_offset act_type output_dtype"
    refuse_given(self.name, dict(zip(names.split(), (*quantized, *further), strict=True)), "", _FLOATS)
    if choice(0, 1)(self.name, "group_list_type", group_list_type, SHAPE_ERRORS) and group_list is not None:
        group_list = cumsum(tensor_operand(self.name, "group_list", group_list), 0)
    given = {"x": x, "weight": weight, "bias": bias, "split_item": split_item, "group_type": group_type}
    return _multiplied(self, given, group_list)


# ---- which rows go where ----


@op(
    "rh,rk,rk->xh,y,y",
    name="MoeInitRouting",
    static=("active_num",),
    check=lambda operands, *, active_num: ints(operands[1], "row_idx") or ints(operands[2], "expert_idx"),
    attrs={"active_num": integer(0)},
    dtype=lambda dtypes, **_: (dtypes[0], "int32", "int32"),
    sizes=lambda shapes, *, active_num: {
        "x": min(shapes[0][0], active_num) * shapes[2][1],
        "y": shapes[2][0] * shapes[2][1],
    },
    whole="rkxy",
    reduce="same",
    flops=0,
    example=case((4, 4), (4, 2), (4, 2), ints={1: 8, 2: 3}, active_num=4),
)
def moe_init_routing(x, row_idx, expert_idx, active_num):
    """Rows in the order of their experts.  x: (r, h), row_idx, expert_idx: (r, k) ints -> (min(r, active_num) k, h),
    (r k,), where the copy of a row that row_idx numbers stands among them, (r k,), their experts. Only h may be split.
    """
    order = np.argsort(expert_idx.reshape(-1), kind="stable")
    source = row_idx.reshape(-1)[order]
    places = np.zeros(len(order), np.int32)
    places[source] = np.arange(len(order))
    count = min(len(x), active_num) * expert_idx.shape[1]
    return x[source[:count] % len(x)], places, expert_idx.reshape(-1)[order].astype(np.int32)


def _copies(shapes, attrs):
    """How many rows there are of x: of each expert where all have room for as many, else of all."""
    copies = shapes[1][0] * shapes[1][1]
    return min(attrs["active_num"] or copies, copies)


@op(
    lambda shapes, *, pad, **_: f"rh,rk->{'ec' if pad else 'x'}h,y,e,e",
    name="RoutedRows",
    static=("active_num", "capacity", "count"),
    check=lambda operands, **_: ints(operands[1], "expert_idx"),
    attrs={
        "active_num": integer(0),
        "capacity": integer(0),
        "count": integer(0),
        "pad": flag,
        "asked": choice(0, 1, 2),
    },
    dtype=lambda dtypes, **_: (dtypes[0], "int32", "int32", "int32"),
    sizes=lambda shapes, **attrs: {
        "x": _copies(shapes, attrs),
        "y": shapes[1][0] * shapes[1][1],
        "c": attrs["capacity"],
        "e": attrs["count"],
    },
    whole="rkxyec",
    reduce="same",
    flops=0,
    example=(
        case((4, 8), (4, 2), ints={1: 3}, active_num=5, capacity=0, count=3, asked=1),
        case((4, 8), (4, 2), ints={1: 3}, active_num=0, capacity=2, count=3, asked=2, pad=True),
    ),
)
def routed_rows(x, expert_idx, active_num, capacity, count, *, pad=False, asked=0):
    """Rows in the order of their experts, where each copy lies, and the rows of each expert.

    x: (r, h), expert_idx: (r, k) ints -> (min(r k, active_num), h), with pad (count, capacity, h), zeros behind an
    expert's rows; (r k,), of a copy without room -1; (count,) twice, how many chose each expert, asked=1: added up;
    zeros where not asked for, the first with pad, the second without
    """
    flat = expert_idx.reshape(-1)
    order = np.argsort(flat, kind="stable")
    load = np.bincount(flat, minlength=count)[:count]
    places = np.empty(len(flat), np.int64)
    places[order] = np.arange(len(flat))
    if pad:
        places -= (np.cumsum(load) - load)[flat]  # among the copies of its expert
        places = np.where(places < capacity, flat * capacity + places, -1)
        made = np.zeros((count * capacity, x.shape[1]), x.dtype)
        made[places[places >= 0]] = x[np.flatnonzero(places >= 0) // expert_idx.shape[1]]
        made = made.reshape(count, capacity, -1)
    else:
        made = x[order[: min(active_num or len(flat), len(flat))] // expert_idx.shape[1]]
    counted = load if asked == 2 else np.cumsum(load) if asked else load * 0
    counts = [x.astype(np.int32) for x in ((load * 0, counted) if pad else (counted, load * 0))]
    return made, places.astype(np.int32), *counts


@form(routed_rows, "MoeInitRoutingV2")
def _(
    self,
    x,
    expert_idx,
    active_num=0,
    expert_capacity=0,
    expert_num=0,
    drop_pad_mode=0,
    expert_tokens_count_or_cumsum_flag=0,
    expert_tokens_before_capacity_flag=False,
):
    """Rows in the order of their experts.  x: (r, h), expert_idx: (r, k) ints -> four tensors.

    drop_pad_mode  0: (min(r k, active_num), h), all for active_num=0; 1: (expert_num, expert_capacity, h), further
                   rows of an expert dropped
    Then where each copy lies, (r k,) int32, -1 if dropped; the rows of the experts, (expert_num,) int32, twice: with
    drop_pad_mode 0 if expert_tokens_count_or_cumsum_flag is 2, or added up if 1; with 1 if
    expert_tokens_before_capacity_flag. Zeros where not asked for. Only h may be split.
    """
    pad = choice(0, 1)(self.name, "drop_pad_mode", drop_pad_mode, SHAPE_ERRORS) == 1
    asked = choice(0, 1, 2)(
        self.name, "expert_tokens_count_or_cumsum_flag", expert_tokens_count_or_cumsum_flag, SHAPE_ERRORS
    )
    before = flag(self.name, "expert_tokens_before_capacity_flag", expert_tokens_before_capacity_flag)
    if pad and not (expert_num and 0 < expert_capacity <= x.shape[0]):
        what = f"drop_pad_mode=1 with expert_num={shorten(expert_num)}, expert_capacity={shorten(expert_capacity)}"
        raise ShapeError(what, where=self.name, allowed=f"Both above 0, expert_capacity at most the {x.shape[0]} rows")
    counted = (2 if before else 0) if pad else asked
    return self.run(x, expert_idx, active_num, expert_capacity, expert_num, pad=pad, asked=counted)


@op(
    "r->e",
    name="MoeComputeExpertTokens",
    static=("num_expert",),
    check=lambda operands, **_: ints(operands[0], "experts"),
    attrs={"num_expert": integer(1)},
    dtype=0,
    sizes=lambda shapes, *, num_expert: {"e": num_expert},
    whole="re",
    flops=1,
    example=case((8,), ints={0: 3}, num_expert=3),
)
def moe_compute_expert_tokens(sorted_experts, num_expert):
    """Where the rows of every expert end.  sorted_experts: (r,) ints in order -> (num_expert,)."""
    return np.searchsorted(sorted_experts, np.arange(num_expert), side="right").astype(sorted_experts.dtype)


@op(
    lambda shapes, **_: "{0}e,{0}->{0}k,{0}k,{0}k".format("abc"[: len(shapes[1])]),
    name="GatingTopK",
    check=lambda operands, **_: floats(operands[0]),
    attrs={"k": integer(1)},
    dtype=lambda dtypes, **_: (dtypes[0], "int32", "int32"),
    sizes=lambda shapes, *, k: {"k": k},
    whole="abcek",
    strategy_labels=lambda signature: signature.ins[:1],
    flops=4,
    example=(case((6, 4), (6,), bools={1}, k=2), case((2, 3, 4), (2, 3), bools={1}, k=3)),
)
def moe_gating_top_k_softmax(x, finished, *, k=1):
    """The k largest of every row's softmax.  x: (..., e), finished: (...) bool -> (..., k), (..., k) int32, which they
    are, e of a finished row; (..., k) int32, the number of the copy: of row i and place j, j rows + i
    """
    raised = np.exp(x - x.max(axis=-1, keepdims=True))
    scores = raised / raised.sum(axis=-1, keepdims=True)
    best = np.argsort(-scores, axis=-1, kind="stable")[..., :k]
    experts = np.where(finished[..., None], x.shape[-1], best)
    rows = np.arange(finished.size).reshape(*finished.shape, 1) + np.arange(k) * finished.size
    return np.take_along_axis(scores, best, axis=-1), experts.astype(np.int32), rows.astype(np.int32)


@form(moe_gating_top_k_softmax, "MoeGatingTopKSoftmax", read=1)
def _(self, x, finished=None, k=1):
    """The k largest of every row's softmax.  x: (..., e), finished: (...) bool -> (..., k), (..., k), (..., k) int32.

    See `moe_gating_top_k_softmax`. Nothing may be split.
    """
    return self.run(x, np.zeros(x.shape[:-1], bool) if finished is None else finished, k=k)


@op(
    lambda shapes, *, skip: "xh,rh" + (",rh" if skip else "") + ",eh,rk,x,rk->rh",
    name="FinalizeRouting",
    check=lambda operands, **_: ints(operands[-2], "expanded_row_idx") or ints(operands[-1], "expanded_expert_idx"),
    attrs={"skip": flag},
    dtype=0,
    whole="xhrek",
    flops=lambda s: 3 * s.x * s.h,
    example=(
        case((8, 3), (4, 3), (2, 3), (4, 2), (8,), (4, 2), ints={4: 8, 5: 2}),
        case((8, 3), (4, 3), (4, 3), (2, 3), (4, 2), (8,), (4, 2), ints={5: 8, 6: 2}, skip=True),
    ),
)
def moe_finalize_routing(*operands, skip=False):
    """x1 + x2 + sum over j of scales (expanded_x[expanded_row_idx[i + j r]] + bias[expert]) for every row i.

    expanded_x: (r k, h), x1: (r, h), with skip x2: (r, h), bias: (e, h), scales: (r, k), expanded_row_idx: (r k,) ints,
    expanded_expert_idx: (r, k) ints -> (r, h)
    """
    expanded, *rows, bias, scales, places, experts = operands
    each = expanded[places.reshape(scales.shape[1], -1).T] + bias[experts]
    return (sum(rows) + (scales[..., None] * each).sum(axis=1)).astype(expanded.dtype)


@optional_form(
    moe_finalize_routing, "MoeFinalizeRouting", "expanded_x x1 x2? bias? scales? expanded_row_idx? expanded_expert_idx?"
)
def _(self, given):
    """What the k experts of each row gave, added up.  expanded_x: (r k, h), x1: (r, h) -> (r, h). Nothing may be split.

    See `moe_finalize_routing`.
    """
    skip = given["x2"] is not None
    return self.run(*(x for name, x in given.items() if name != "x2" or skip), skip=skip)


# ---- tokens sorted by expert, and back, with gradients ----


@op(
    "tk->tk",
    name="TokenPlaces",
    check=lambda operands: ints(operands[0], "indices"),
    dtype="int32",
    whole="tk",
    flops=4,
    example=case((6, 2), ints={0: 3}),
)
def token_places(indices):
    """Where each copy comes to lie, sorted by expert, equal ones in order.  indices: (t, k) -> (t, k) int32."""
    return permutation(indices)[2].reshape(indices.shape).astype(np.int32)


@form(token_places, "MoeTokenPermute")
def _(self, tokens, indices, num_out_tokens=None, padded_mode=False):
    """`moe_token_permute`.  tokens: (t, h), indices: (t, k) or (t,) ints -> (r, h), (t k,). Nothing may be split."""
    _all_whole(self)
    return moe_token_permute(tokens, indices, num_out_tokens, padded_mode)


@form(token_places, "MoeTokenUnpermute")
def _(self, permuted_tokens, sorted_indices, probs=None, padded_mode=False, restore_shape=None):
    """`moe_token_unpermute`.  permuted_tokens: (r, h), sorted_indices: (t k,), probs: (t, k) -> (t, h). No split."""
    _all_whole(self)
    return moe_token_unpermute(permuted_tokens, sorted_indices, probs, padded_mode, restore_shape)


def _all_whole(self):
    if any(n != 1 for cuts in self.in_strategy or () for n in (cuts if isinstance(cuts, tuple) else ())):
        allowed = "1 for every dim: which rows an expert has depends on all of them"
        raise StrategyError(f"strategy {shorten(self.in_strategy)}", where=self.name, allowed=allowed)


def _not_padded(where, padded_mode):
    if flag(where, "padded_mode", padded_mode):
        raise ShapeError("padded_mode=True", where=where, allowed="False: rows of equal experts lie without gaps")


def _within(places, rows):
    """Places among so many rows; -1 for those behind them."""
    return select(less(places, rows), places, -1)


@function(mint="")
def moe_token_permute(tokens, indices, num_out_tokens=None, padded_mode=False):
    """Copies of tokens sorted by expert, and the row of each (token, choice), int32.

    tokens: (t, h), indices: (t, k) or (t,) ints -> (r, h), (t k,).  num_out_tokens: only so many rows, r; None: t k

    Nothing may be split. MindSpore, ops.moe_token_permute; equal experts stay in order.
    """
    where, tokens, indices = "moe_token_permute", as_array(tokens), as_array(indices)
    _not_padded(where, padded_mode)
    if len(tokens.shape) != 2 or len(indices.shape) not in (1, 2) or tokens.shape[0] != indices.shape[0]:
        what = f"tokens of shape {tuple(tokens.shape)} and indices of shape {tuple(indices.shape)}"
        raise ShapeError(what, where=where, allowed="(t, h), and (t, k) or (t,)")
    places = token_places(reshape(indices, (indices.shape[0], -1)))
    copies = int(np.prod(places.shape))
    rows = copies if num_out_tokens is None else min(integer(1)(where, "num_out_tokens", num_out_tokens), copies)
    return dispatch_rows(tokens, _within(places, rows), rows=rows), reshape(places, (copies,))


@function(mint="")
def moe_token_unpermute(permuted_tokens, sorted_indices, probs=None, padded_mode=False, restore_shape=None):
    """Tokens from their copies, each times its probability, added.

    permuted_tokens: (r, h), sorted_indices: (t k,) ints, probs: (t, k) -> (t, h); without probs k is 1.
    A copy that num_out_tokens has cut off gives nothing. MindSpore, ops.moe_token_unpermute.
    """
    where, rows, places = "moe_token_unpermute", as_array(permuted_tokens), as_array(sorted_indices)
    _not_padded(where, padded_mode)
    if restore_shape is not None:
        raise ShapeError(f"restore_shape={shorten(restore_shape)}", where=where, allowed="None without padded_mode")
    if probs is None:
        probs = np.ones((places.shape[0], 1), rows.dtype)
    probs = as_array(probs)
    if len(probs.shape) != 2 or len(rows.shape) != 2 or tuple(places.shape) != (int(np.prod(probs.shape)),):
        shapes = ", ".join(
            f"{name} {tuple(x.shape)}" for name, x in (("rows", rows), ("indices", places), ("probs", probs))
        )
        raise ShapeError(shapes, where=where, allowed="(r, h), (t k,) and (t, k)")
    return combine_rows(rows, probs, _within(reshape(places, tuple(probs.shape)), rows.shape[0]))


refuse_gradient(feed_forward, moe_init_routing, routed_rows, moe_gating_top_k_softmax, moe_finalize_routing)
