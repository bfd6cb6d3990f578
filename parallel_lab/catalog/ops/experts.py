"""Layers of experts: rows are sorted by expert, each expert works on its own rows, and the results go back.

    MoeGatingTopKSoftmax    the k best experts of each row, and their weights
    MoeInitRouting          rows in the order of their experts;   MoeComputeExpertTokens: where each expert's end
    FFN, GroupedMatmul      what experts compute on rows that lie behind each other
    MoeFinalizeRouting      the weighted sum of what the k experts of a row gave

Which expert has a row depends on all rows: where they are counted nothing may be split (MindSpore's rules). Inside an
expert the hidden dim may be, which leaves sums. Forms and formulas: mindspore.ops.auto_generate, f_f_n_info,
grouped_matmul_info, moe_finalize_routing_info; CANN's aclnnMoeInitRouting.
"""

from __future__ import annotations

import numpy as np

from ...base.checks import choice, flag, integer
from ...base.errors import NotBuiltYet, ShapeError, shorten
from ...ops.machine.operand_checks import floats, ints
from ...ops.machine.registry import case, form, op
from ...ops.spellings import tensor_operand
from .flash_attention import optional_form, primitive_for

# ---- what experts compute ----

_ACTIVATIONS = {
    "fastgelu": lambda x: x / (1 + np.exp(-1.702 * x)),
    "gelu": lambda x: 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
    "relu": lambda x: np.maximum(x, 0),
    "silu": lambda x: x / (1 + np.exp(-x)),
}


def _ffn_labels(shapes, *, given, **_):
    e = "e" if "tokens" in given else ""
    rows = "abc"[: len(shapes[0]) - 1]
    further = {"tokens": "e", "bias1": f"{e}f", "bias2": f"{e}h"}
    return f"{','.join([rows + 'h', f'{e}hf', f'{e}fh', *(further[name] for name in given)])}->{rows}h"


def _check_ffn(operands, *, given, **_):
    if len(operands[0].shape) not in (2, 3, 4):
        return f"x of shape {operands[0].shape}", "(rows, h), with more dims in front"
    return floats(operands[0]) or (ints(operands[3], "expert tokens") if "tokens" in given else None)


def _expert_of(ends, first, count):
    """The expert of each row from `first` on, where experts' rows end at `ends`; -1 behind the last."""
    places = np.arange(first, first + count)
    expert = np.searchsorted(ends, places, side="right")
    return np.where(expert < len(ends), expert, -1)


def _of_experts(rows, experts, weight):
    """rows times the weight of their expert, 0 without one.  rows: (m, k), experts: (m,), weight: (e, k, n)."""
    made = np.zeros((len(rows), weight.shape[-1]), np.result_type(rows, weight))
    for expert in np.unique(experts[experts >= 0]):
        own = experts == expert
        made[own] = rows[own] @ weight[expert]
    return made


def _rows_of(values, experts):
    return np.where(experts[:, None] >= 0, values[experts], np.zeros((), values.dtype))


@op(
    _ffn_labels,
    name="FeedForward",
    attrs={"activation": choice(*_ACTIVATIONS)},
    check=_check_ffn,
    dtype=0,
    axes="eabchf",
    whole="eabch",
    localize=lambda attrs, cuts: {**attrs, "parts": cuts["f"]},
    flops=lambda s: 4 * s.a * getattr(s, "b", 1) * getattr(s, "c", 1) * s.h * s.f,
    example=(
        case((6, 4), (4, 8), (8, 4), (8,), (4,), given=("bias1", "bias2"), activation="gelu"),
        case(*((9, 4), (3, 4, 8), (3, 8, 4), (3,), (3, 8), (3, 4)), ints={3: 4}, given=("tokens", "bias1", "bias2")),
        case((2, 3, 4), (4, 8), (8, 4)),
    ),
)
def feed_forward(*operands, given=(), activation="fastgelu", parts=1):
    """activation(x weight1 + bias1) weight2 + bias2; operands: x, weight1, weight2 and those that `given` names.

    x: (..., h), weight1: (h, f), weight2: (f, h), bias1: (f,), bias2: (h,) -> (..., h); or each with a dim e of experts
    in front, and tokens: (e,) ints, how many rows each has, the first ones the first expert

    parts  over how many ranks f is split: each adds its share of bias2; set by the compiler
    """
    x, first, second, *_ = operands
    named = dict(zip(given, operands[3:], strict=True))
    rows = x.reshape(-1, x.shape[-1])
    if "tokens" in named:
        experts = _expert_of(np.cumsum(named["tokens"]), 0, len(rows))
    else:
        experts, first, second = np.zeros(len(rows), np.int64), first[None], second[None]
    bias = {n: _rows_of(v if "tokens" in named else v[None], experts) for n, v in named.items() if n != "tokens"}
    inner = _ACTIVATIONS[activation](_of_experts(rows, experts, first) + bias.get("bias1", 0))
    made = _of_experts(inner, experts, second) + bias.get("bias2", np.zeros((), x.dtype)) / parts
    return made.reshape(x.shape).astype(x.dtype, copy=False)


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
    further = {"tokens": given["expertTokens"], "bias1": given["bias1"], "bias2": given["bias2"]}
    further = {name: x for name, x in further.items() if x is not None}
    known = {"x", "weight1", "weight2", "expertTokens", "bias1", "bias2", "activation", "inner_precise"}
    if fault := [name for name, x in given.items() if x is not None and name not in known]:
        raise NotBuiltYet(f"{fault[0]} is not available", where=self.name, hint="Give weights of floats")
    tensors = (given["x"], given["weight1"], given["weight2"], *further.values())
    return self.run(*tensors, given=tuple(further), activation=given["activation"])


def _product_labels(shapes, *, given, **_):
    e, rows = "e" if "ends" in given else "", "abcdm"[6 - len(shapes[0]) :]
    further = {"ends": "e", "bias": f"{e}n"}
    return f"{','.join([rows + 'k', f'{e}kn', *(further[name] for name in given)])}->{rows}n"


def _check_product(operands, *, given, **_):
    x, weight = operands[:2]
    if len(x.shape) < 2 or len(x.shape) > 6 or ("ends" in given) != (len(weight.shape) == 3):
        return f"x of shape {x.shape}, weight of shape {weight.shape}", "(m, k) and (k, n), with group_list (e, k, n)"
    return ints(operands[2], "group_list") if "ends" in given else None


@op(
    _product_labels,
    name="GroupedProduct",
    check=_check_product,
    dtype=0,
    axes="abcdmkne",
    whole="e",
    offset="m",
    part_size=lambda shapes, attrs: shapes[0][-2],
    localize=lambda attrs, cuts: {**attrs, "parts": cuts["k"]},
    flops=lambda s: 2 * s.m * s.k * s.n,
    example=(
        case((8, 4), (3, 4, 2), (3,), ints={2: 9}, given=("ends",)),
        case((8, 4), (2, 4, 2), (2,), (2, 2), ints={2: 9}, given=("ends", "bias")),
        case((2, 4, 4), (4, 6), (6,), given=("bias",)),
    ),
)
def grouped_product(*operands, given=(), parts=1, offset=0):
    """Every row times the matrix of its group, plus its bias; operands: x, weight and those that `given` names.

    x: (..., m, k), weight: (k, n), bias: (n,) -> (..., m, n); or x: (m, k), weight: (e, k, n), ends: (e,) ints, where
    the rows of a group end, bias: (e, n) -> (m, n), 0 behind the last group
    """
    x, weight, *_ = operands
    named = dict(zip(given, operands[2:], strict=True))
    if "ends" not in named:
        return x @ weight + named.get("bias", np.zeros((), x.dtype)) / parts
    experts = _expert_of(named["ends"], offset, len(x))
    made = _of_experts(x, experts, weight)
    return made + _rows_of(named["bias"], experts) / parts if "bias" in named else made


_ROWS = {"dtype": 0, "part_size": lambda shapes, attrs: shapes[0][-2]}


@op(result_shape=lambda shapes, **_: (*shapes[0][:-1], shapes[1][-2]), **_ROWS)
def grouped_product_grad(*operands, offset=0):
    """Gradient for x.  g: (..., n), weight: ((e,) k, n), ends: (e,) -> (..., k)."""
    g, weight, *ends = operands
    turned = np.swapaxes(weight, -1, -2)
    return _of_experts(g, _expert_of(ends[0], offset, len(g)), turned) if ends else g @ turned


@op(result_shape=lambda shapes, **_: (*(shapes[2] if len(shapes) > 2 else ()), shapes[1][-1], shapes[0][-1]), **_ROWS)
def grouped_product_weight_grad(*operands, offset=0):
    """Gradient for weight.  g: (..., n), x: (..., k), ends: (e,) -> ((e,) k, n)."""
    g, x, *ends = operands
    if not ends:
        return x.reshape(-1, x.shape[-1]).T @ g.reshape(-1, g.shape[-1])
    experts = _expert_of(ends[0], offset, len(g))
    return np.stack([x[experts == e].T @ g[experts == e] for e in range(len(ends[0]))])


@op(result_shape=lambda shapes, **_: (*(shapes[1] if len(shapes) > 1 else ()), shapes[0][-1]), **_ROWS)
def grouped_product_bias_grad(*operands, parts, offset=0):
    """Gradient for the share of bias that each of `parts` ranks adds.  g: (..., n), ends: (e,) -> ((e,) n)."""
    g, *ends = operands
    rows = g.reshape(-1, g.shape[-1]) / parts
    experts = _expert_of(ends[0], offset, len(rows)) if ends else None
    return np.stack([rows[experts == e].sum(axis=0) for e in range(len(ends[0]))]) if ends else rows.sum(axis=0)


@grouped_product.vjp
def _(g, out, x, weight, *further, given, parts):
    ends = [value for name, value in zip(given, further, strict=True) if name == "ends"]
    grads = [grouped_product_grad(g, weight, *ends), grouped_product_weight_grad(g, x, *ends)]
    return (*grads, *(None if name == "ends" else grouped_product_bias_grad(g, *ends, parts=parts) for name in given))


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
    where = self.name
    names = ("scale", "offset", "antiquant_scale", "antiquant_offset", "transpose_a", "transpose_b")
    for name in names:
        if given[name] is not None and given[name] is not False:
            raise NotBuiltYet(
                f"{name} is not available", where=where, hint="Give x (m, k) and weights of floats (k, n)"
            )
    kind = given["split_item"], given["group_type"]
    lists = [given["x"], given["weight"], *([] if given["bias"] is None else [given["bias"]])]
    if kind not in ((0, -1), (3, 0)) or any(not isinstance(x, (list, tuple)) for x in lists):
        what = f"split_item={shorten(kind[0])}, group_type={shorten(kind[1])}"
        raise ShapeError(what, where=where, allowed="0 and -1, or 3 and 0, with lists of tensors x, weight, bias")
    if len({len(x) for x in lists}) > 1 or (kind[0] == 3) != (given["group_list"] is not None) or not lists[0]:
        what = f"lists of {', '.join(str(len(x)) for x in lists)} tensors"
        raise ShapeError(what, where=where, allowed="Lists of one length; group_list with split_item=3")
    count, made = len(lists[0]), []
    for i in range(count):
        inner = primitive_for(self, grouped_product)
        tensors = [tensor_operand(where, name, x[i]) for name, x in zip(("x", "weight", "bias"), lists, strict=False)]
        if kind[0] == 3:
            tensors.insert(2, tensor_operand(where, "group_list", given["group_list"]))
        if inner.in_strategy is not None:
            cuts = list(inner.in_strategy[i::count] if kind[0] == 0 else inner.in_strategy)
            inner.in_strategy = tuple(cuts if kind[0] == 0 or len(cuts) < 4 else [*cuts[:2], cuts[3], cuts[2]])
        attrs = {
            "given": tuple(n for n, x in (("ends", given["group_list"]), ("bias", given["bias"])) if x is not None)
        }
        made.append(grouped_product.call(tensors, attrs, inner))
    return tuple(made)


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
    lambda shapes, *, finished, **_: (
        f"{'abc'[: len(shapes[0]) - 1]}e"
        + (f",{'abc'[: len(shapes[0]) - 1]}" if finished else "")
        + "->"
        + ",".join([f"{'abc'[: len(shapes[0]) - 1]}k"] * 3)
    ),
    name="GatingTopK",
    check=lambda operands, **_: floats(operands[0]),
    attrs={"k": integer(1)},
    dtype=lambda dtypes, **_: (dtypes[0], "int32", "int32"),
    sizes=lambda shapes, *, k, **_: {"k": k},
    whole="abcek",
    flops=4,
    example=(case((6, 4), k=2), case((2, 3, 4), (2, 3), bools={1}, k=3, finished=True)),
)
def moe_gating_top_k_softmax(*operands, k=1, finished=False):
    """The k largest of every row's softmax.  x: (..., e), finished: (...) bool -> (..., k), (..., k) int32, which they
    are, e of a finished row; (..., k) int32, the number of the copy: of row i and place j, j rows + i
    """
    x, *done = operands
    raised = np.exp(x - x.max(axis=-1, keepdims=True))
    scores = raised / raised.sum(axis=-1, keepdims=True)
    best = np.argsort(-scores, axis=-1, kind="stable")[..., :k]
    experts = np.where(done[0][..., None], x.shape[-1], best) if done else best
    rows = np.arange(best[..., 0].size).reshape(best[..., :1].shape) + np.arange(k) * best[..., 0].size
    return np.take_along_axis(scores, best, axis=-1), experts.astype(np.int32), rows.astype(np.int32)


@form(moe_gating_top_k_softmax, "MoeGatingTopKSoftmax")
def _(self, x, finished=None, k=1):
    """The k largest of every row's softmax.  x: (..., e), finished: (...) bool -> (..., k), (..., k), (..., k) int32.

    See `moe_gating_top_k_softmax`. Nothing may be split.
    """
    return self.run(*(t for t in (x, finished) if t is not None), k=k, finished=finished is not None)


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
    return sum(rows) + (scales[..., None] * each).sum(axis=1)


@optional_form(
    moe_finalize_routing, "MoeFinalizeRouting", "expanded_x x1 x2? bias? scales? expanded_row_idx? expanded_expert_idx?"
)
def _(self, given):
    """What the k experts of each row gave, added up.  expanded_x: (r k, h), x1: (r, h) -> (r, h). Nothing may be split.

    See `moe_finalize_routing`.
    """
    skip = given["x2"] is not None
    return self.run(*(x for name, x in given.items() if name != "x2" or skip), skip=skip)
