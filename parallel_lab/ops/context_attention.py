"""Self-attention of a long sequence whose tokens are split over ranks (context parallelism).

    out, lse = context_attention(q, k, v, causal=True)

    q: (b, s, g, r, d), k, v: (b, s, g, d) -> out: (b, s, g, r, d), lse: (b, s, g, r)
    b samples, s tokens, g key heads, each read by r query heads, d elements of a head

The strategy says how. Heads are independent: split them, and the re-layouts around the operator are DeepSpeed-Ulysses
(all_to_all of heads against tokens, and back; Jacobs et al. 2023). Tokens split P ways are one of

    method="ring"     every rank keeps its queries, and keys go round: P - 1 passes, each behind the computation with
                      the keys that are there. Backward they pass again, their gradients behind them, in float32, until
                      they are home (Liu et al. 2023)
    method="gather"   queries stay split, keys are gathered as any operand that has to be whole (Llama 3, section 3.3.2)

Both splits together are the hybrid (Fang and Zhao 2024). Under a causal mask a rank that holds late tokens works more:
`placement` says in which order the tokens were given (`layout/placements.py`), so that ranks may hold early and late
ones. Layouts know nothing of it: tokens and labels are permuted once, at the input, by `models.placed`.

The forward node and its gradient are operators like others until layouts are known; then the pass `unfold` asks
`_ring` and `_ring_back`, below, for messages and blocks. They are rank programs, and run on arrays as well
(`run/rank_programs.py`).
"""

from __future__ import annotations

import functools
import inspect
import math

import numpy as np

from ..base.checks import choice, flag, integer, number
from ..base.dtypes import promoted
from ..base.errors import LayoutError
from ..layout.placements import TOKEN_ORDERS, Placement, VisibleKeys, attention_work
from ..layout.route import MIRROR
from .dropout import KEY, kept_at
from .elementwise import cast
from .join import concat, split_parts
from .kernels.attention_blocks import View, attend, attend_back
from .machine.operand_checks import floats
from .machine.registry import case, op
from .machine.unfolding import Start, Unfolding, Wait, around_the_ring
from .reduce import reduce_sum
from .rotary import placed_tokens
from .shape import reshape

METHODS = ("ring", "gather")
NEXT = "ring attention: keys and values for the next rank, while this one works on them"
BEHIND = "ring attention: the gradients so far follow their keys and values to the next rank"
HOME = "ring attention: the gradients of keys and values go home"
TAIL = "flash attention load balance: second halves are exchanged with the rank that mirrors this one"


# ---- who sees whom ----


@functools.lru_cache(maxsize=64, typed=True)
def _bounds(tokens, causal, window, documents):
    return VisibleKeys(causal, window, documents).bounds(tokens)


@functools.lru_cache(maxsize=64, typed=True)
def _last_step(tokens, parts, placement, ranks, causal, window, documents):
    """The last step of a ring of `parts` ranks in which any of them sees a key."""
    ranks = parts if placement == "contiguous" else ranks
    if ranks != parts or not (window or documents):
        return parts - 1
    held, visible = placed_tokens(placement, tokens, ranks, documents), VisibleKeys(causal, window, documents)
    longest = attention_work(held, visible, gathered=False).longest_per_step
    return max(step for step, pairs in enumerate(longest) if pairs or not step)


def _view(q, k, step, turn, *, causal, window, documents, placement, ranks, p, key, compute_all, parts, offset, **own):
    """What the queries of this rank see of the keys of the rank `turn` places before it; None: of all keys."""
    place = offset if isinstance(offset, tuple) else (0, 0, 0, 0)
    b, s, g, r = q.shape[:4]
    total, at = s * parts[1], place[1]
    order = placed_tokens(placement, total, ranks, documents).order
    places = Placement("head_tail", total, parts[1]).order if own.get("head_tail") and parts[1] > 1 else order
    queries = places[at * s : (at + 1) * s]
    owner = 0 if turn is None else (at - turn) % parts[1]
    keys = order[owner * s :][: k.shape[1]]
    first, stop = (each[queries] for each in _bounds(total, causal, window, documents))
    drop = None
    if p:
        heads = (place[2] * g + np.arange(g))[:, None] * (r * parts[3]) + place[3] * r + np.arange(r)
        samples = (place[0] * b + np.arange(b))[:, None, None]
        rows = ((samples * (g * parts[2] * r * parts[3]) + heads)[..., None] * total + queries) * total

        def drop(weights, of_rows, of_columns):
            places = (rows[..., of_rows, None] + keys[of_columns]).astype(np.uint32)  # modulo 2^32
            return np.where(kept_at(places, step, p, key), weights * weights.dtype.type(1 / (1 - p)), 0)

    return View(first, stop, keys, queries, compute_all, drop)


# ---- declarations that all operators here share ----


def with_settings(**settings):
    """A decorator for operators of any number of operands: their attributes, with these defaults, and the offset."""
    kind = inspect.Parameter
    settings["offset"] = 0
    named = [kind(name, kind.KEYWORD_ONLY, default=value) for name, value in settings.items()]

    def declare(fn):
        @functools.wraps(fn)
        def call(*operands, **given):
            return fn(*operands, **{**settings, **given})

        call.__signature__ = inspect.Signature([kind("operands", kind.VAR_POSITIONAL), *named])
        return call

    return declare


SETTINGS = {"scale": None, "causal": True, "window": None, "documents": (), "placement": "contiguous", "ranks": 1}
SETTINGS |= {"p": 0.0, "key": 0, "compute_all": False, "method": "ring", "parts": (1, 1, 1, 1)}
SETTINGS["head_tail"] = False


def _scale(q, scale):
    return 1 / math.sqrt(q.shape[-1]) if scale is None else scale


def _wide(dtypes):
    return promoted((*dtypes, "float32"))


def _work(factor):
    return lambda s: factor * s.b * s.s * s.g * s.r * s.d * getattr(s, "t", s.s)


def _check(operands, *, placement, ranks, documents, p, **more):
    q, k, v, *step = operands
    for name, x, dims in (("q", q, 5), ("k", k, 4), ("v", v, 4)):
        if len(x.shape) != dims or floats(x, name):
            return f"{name} is {x.dtype} of shape {x.shape}", "Floats: q (b, s, g, r, d), k and v (b, s, g, d)"
    (b, s, g, _, d), same = q.shape, k.shape == v.shape
    if not same or k.shape != (b, s, g, d):
        return f"k {k.shape} and v {v.shape} for q {q.shape}", f"({b}, {s}, {g}, {d}), both"
    if len(step) != (p > 0):
        return f"{len(operands)} operands with p={p}", "q, k, v, and with dropout the number of the step"
    if more["head_tail"] and (more["method"], placement) != ("gather", "contiguous"):
        return f"head_tail with method={more['method']!r}, placement={placement!r}", "'gather' and 'contiguous'"
    try:
        placed_tokens(placement, s, ranks, documents)
        _bounds(s, True, None, documents)
    except LayoutError as error:
        return str(error), "Tokens that divide as the placement needs"


def _labels(shapes, *, method, p, **_):
    keys = "bsgd" if method == "ring" else "btgd"
    return f"bsgrd,{keys},{keys}{',' if p else ''}->bsgrd,bsgr"


_SHARED = {
    "offset": "bsgr",
    # an offset is the place of a rank along each label, not of its first element: keys may lie elsewhere
    "part_size": lambda shapes, attrs: (1, 1, 1, 1),
}


# ---- the ring, as a rank program ----


def sent(parts, shift, reason, *values, wrapped=None):
    """Start handing these values on, every rank to the one `shift` places after it.  wrapped: see `around_the_ring`"""
    handles = []
    for x in values:
        route = around_the_ring(tuple(x.shape), parts, shift, wrapped)
        handles.append((yield Start("exchange", x, {"route": route}, reason, "NeighborExchange")))
    return handles


def arrived(handles):
    """Wait for what `sent` has started."""
    values = []
    for handle in handles:
        values.append((yield Wait(handle)))
    return values


def last_turn(held, attrs):
    """The last turn of a ring in which any rank sees a key.  held: queries of a rank; attrs: those of a block"""
    names = ("placement", "ranks", "causal", "window", "documents")
    parts = attrs["parts"][1]
    return parts - 1 if attrs["compute_all"] else _last_step(held * parts, parts, *(attrs[n] for n in names))


def _ring(operands, attrs):
    """(out, lse): queries stay, keys and values go round; None if tokens are not split."""
    if attrs["parts"][1] == 1 or not (attrs["method"] == "ring" or attrs["head_tail"]):
        return None
    if attrs.pop("method") != "ring":
        return _exchanged(operands, attrs)
    return ring(attention_block, operands, attrs)


def ring(block, operands, attrs):
    """The rank program of the forward pass.  block: what computes; operands: q, k, v, and perhaps step."""
    q, k, v, *step = operands
    parts, last, state = attrs["parts"][1], last_turn(q.shape[1], attrs), ()
    for turn in range(last + 1):
        coming = []
        if turn < last:
            coming = yield from sent(parts, 1, NEXT, k, v)
        state = block(q, k, v, *state, *step, turn=turn, over=(3, 4) if state else (), **attrs)
        if coming:
            k, v = yield from arrived(coming)
    return finished((q, k, v), *state)


def finished(operands, out, lse):
    """(out, lse) of the last block in the dtypes of the whole operator's results.  operands: q, k, v"""
    given = [str(x.dtype) for x in operands]
    pairs = ((out, promoted(given)), (lse, _wide(given)))
    return tuple(x if str(x.dtype) == dtype else cast(x, dtype=dtype) for x, dtype in pairs)


def _ring_back(operands, attrs):
    if attrs["parts"][1] == 1 or not (attrs["method"] == "ring" or attrs["head_tail"]):
        return None
    if attrs.pop("method") != "ring":
        return _exchanged_back(operands, attrs)
    return ring_back(attention_block_grad, operands, attrs)


def ring_back(block, operands, attrs):
    """The rank program of the backward pass.  operands: g, inner, lse, q, k, v, and perhaps step -> dq, dk, dv.

    In each step the block's part of (dk, dv) is computed while those of the rank before arrive, which are added to it.
    """
    g, inner, lse, q, k, v, *step = operands
    parts, last = attrs["parts"][1], last_turn(q.shape[1], attrs)
    of_q, behind, dtypes = (), [], [str(x.dtype) for x in (q, k, v)]
    for turn in range(last + 1):
        coming = []
        if turn < last:
            coming = yield from sent(parts, 1, NEXT, k, v)
        *of_q, to_k, to_v = block(g, inner, lse, q, k, v, *of_q, *step, turn=turn, over=(6,) if of_q else (), **attrs)
        mine = [to_k, to_v]
        for at, handle in enumerate(behind):
            mine[at] = added_to((yield Wait(handle)), mine[at], over=(1,))
        if last:
            behind = yield from sent(parts, *((1, BEHIND) if turn < last else (parts - last, HOME)), *mine)
        if coming:
            k, v = yield from arrived(coming)
    home = (yield from arrived(behind)) if last else mine
    made = zip((*of_q, *home), dtypes, strict=True)
    return tuple(x if str(x.dtype) == own else cast(x, dtype=own) for x, own in made)


# ---- head and tail: gathered keys, and a half of the queries is worked on by the rank that mirrors their own ----


def _swapped(parts, *values):
    """Values with their second halves exchanged; once more, and they are as they were."""
    halves = [split_parts(x, axis=1, output_num=2) for x in values]
    tails = yield from arrived((yield from sent(parts, MIRROR, TAIL, *(tail for _, tail in halves))))
    return [concat(head, tail, axis=1) for (head, _), tail in zip(halves, tails, strict=True)]


def _exchanged(operands, attrs):
    parts = attrs["parts"][1]
    Placement("head_tail", operands[0].shape[1] * parts, parts)  # refuses tokens that do not make 2 P halves
    (q,) = yield from _swapped(parts, operands[0])
    made = attention_block(q, *operands[1:], turn=None, **attrs)
    return tuple((yield from _swapped(parts, *finished(operands[:3], *made))))


def _exchanged_back(operands, attrs):
    own = yield from _swapped(attrs["parts"][1], *operands[:4])
    of_q, *made = attention_block_grad(*own, *operands[4:], turn=None, **attrs)
    made = (*(yield from _swapped(attrs["parts"][1], of_q)), *made)
    pairs = zip(made, operands[3:6], strict=True)
    return tuple(x if x.dtype == like.dtype else cast(x, dtype=str(like.dtype)) for x, like in pairs)


# ---- operators ----


@op(
    _labels,
    name="ContextAttention",
    axes="bsgr",
    attrs={
        "scale": number() | None,
        "causal": flag,
        "window": integer(1) | None,
        "placement": choice(*TOKEN_ORDERS),
        "ranks": integer(1),
        "p": number(0, 1),
        "key": KEY,
        "compute_all": flag,
        "method": choice(*METHODS),
        "head_tail": flag,
    },
    check=_check,
    dtype=lambda dtypes, **_: (promoted(dtypes[:3]), _wide(dtypes[:3])),
    whole="td",
    strategy_labels=lambda signature: signature.ins[:3],
    localize=lambda attrs, cuts: {**attrs, "parts": tuple(cuts.get(c, 1) for c in "bsgr")},
    unfold=Unfolding(1, _ring),
    flops=_work(4),
    example=(
        case((2, 8, 2, 2, 3), (2, 8, 2, 3), (2, 8, 2, 3)),
        case((2, 8, 2, 1, 2), (2, 8, 2, 2), (2, 8, 2, 2), placement="zigzag", ranks=2, window=5),
        case(
            (1, 16, 1, 2, 2), (1, 16, 1, 2), (1, 16, 1, 2), (), ints={3: 9}, p=0.4, key=3, placement="striped", ranks=4
        ),
        case((2, 8, 2, 2, 2), (2, 8, 2, 2), (2, 8, 2, 2), causal=False, method="gather", documents=(3, 5)),
    ),
    **_SHARED,
)
@with_settings(**SETTINGS)
def context_attention(*operands, **attrs):
    """softmax(scale q k^T) v, and the log-sum-exp of the scores.

    q: (b, s, g, r, d), k, v: (b, s, g, d) -> out: (b, s, g, r, d), lse: (b, s, g, r), float32 at least. With dropout a
    fourth operand, step: () int. A token that sees no other has out 0 and lse -inf.

    scale          None: 1 / sqrt(d)
    causal, window, documents   who sees whom: `VisibleKeys` of `layout/placements.py`
    placement, ranks   how the sequence was permuted, and for how many ranks: `Placement`
    p, key         dropout of the weights: a function of (key, step, sample, head, both positions), on whichever rank
    method         of split tokens: "ring", or "gather": the strategy splits those of q, and k and v are gathered
    head_tail      with method="gather" and a contiguous placement: ranks exchange second halves of queries, and results
    compute_all    hidden blocks are computed, too, and thrown away
    parts          how often b, s, g, r of the whole are split; set by the compiler
    """
    q, k, v, *step = operands
    if k.shape[1] != q.shape[1] * (1 if attrs["method"] == "ring" else attrs["parts"][1]) or (
        attrs["method"] == "ring" and attrs["parts"][1] > 1
    ):
        raise ValueError("tokens are split, and the pass `unfold` has not run")
    out, lse = attend(q, k, v, _view(q, k, *(step or (0,)), None, **attrs), _scale(q, attrs["scale"]))
    return out.astype(np.result_type(q, k, v), copy=False), lse.astype(out.dtype, copy=False)


@op(
    lambda shapes, *, method, p, **_: (
        f"bsgre,bsgr,bsgr,{_labels(shapes, method=method, p=p).split('->')[0]}->"
        + ("bsgrd,bsgd,bsgd" if method == "ring" else "bsgrd,btgd,btgd")
    ),
    shown="ContextAttentionGrad",
    dtype=lambda dtypes, **_: tuple(dtypes[3:6]),
    unfold=Unfolding(1, _ring_back),
    flops=_work(10),
    **_SHARED,
)
@with_settings(**SETTINGS)
def context_attention_grad(*operands, **attrs):
    """Gradients.  g: (b, s, g, r, d), inner, lse: (b, s, g, r), q, k, v, perhaps step -> like q, k, v."""
    g, inner, lse, q, k, v, *step = operands
    view = _view(q, k, *(step or (0,)), None, **attrs)
    made = attend_back(g, inner, lse, q, k, v, view, _scale(q, attrs["scale"]))
    return tuple(x.astype(like.dtype, copy=False) for x, like in zip(made, (q, k, v), strict=True))


@op("bsgrd,bsgrd->bsgr", dtype=lambda dtypes, **_: _wide(dtypes), flops=2)
def output_product(g, out):
    """Sum over d of g * out.  g, out: (b, s, g, r, d) -> (b, s, g, r), float32 at least."""
    return np.vecdot(g.astype(np.result_type(g, np.float32)), out.astype(np.result_type(out, np.float32)))


def slopes(grad):
    """The rule of an attention with results (out, lse), from the operator that computes its gradients."""

    def rule(g, out, *operands, **attrs):
        to_out, to_lse = g
        to_out = out[0] * 0.0 if to_out is None else to_out
        inner = output_product(to_out, out[0])
        inner = inner if to_lse is None else inner - to_lse  # d lse / d score is the weight, too
        found = grad(to_out, inner, out[1], *operands, **attrs)
        return (*found, *(None,) * (len(operands) - 3))

    return rule


context_attention.vjp(slopes(context_attention_grad))


@op(
    "bsgd->bsgd",
    name="RepeatHeads",
    axes="bsgd",
    attrs={"repeats": integer(1)},
    out_sizes=lambda shapes, *, repeats: {"g": shapes[0][2] * repeats},
    flops=0,
    example=case((2, 4, 8, 3), repeats=2),
)
def repeat_heads(x, *, repeats=1):
    """Each key head `repeats` times, its copies side by side.  x: (b, s, g, d) -> (b, s, g repeats, d)."""
    return np.repeat(x, repeats, 2)


@repeat_heads.vjp
def _(g, out, x, *, repeats):
    b, s, heads, d = x.shape
    return (reduce_sum(reshape(g, (b, s, heads, repeats, d)), 3),)


# ---- blocks of a ring ----

# over: numbers of the operands whose memory the first results take; what was there is gone, and nothing reads it again
_BLOCK = {key: value for key, value in SETTINGS.items() if key != "method"} | {"turn": 0, "over": ()}


def _block_labels(shapes, *, p, **_):
    state = ",bsgrd,bsgr" if len(shapes) > 4 else ""
    return f"bsgrd,btgd,btgd{state}{',' if p else ''}->bsgrd,bsgr"


@op(
    _block_labels,
    shown="AttentionBlock",
    dtype=lambda dtypes, **_: (_wide(dtypes[:3]), "float64"),
    flops=_work(4),
    **_SHARED,
)
@with_settings(**_BLOCK)
def attention_block(*operands, turn, over, **attrs):
    """Attention to the keys of the rank `turn` places before, merged with what there was.

    q: (b, s, g, r, d), k, v: (b, t, g, d), perhaps out and lse so far, perhaps step -> out: (b, s, g, r, d),
    float32 at least, lse: (b, s, g, r), float64
    """
    q, k, v, *others = operands
    state, step = (tuple(others[:2]) or None, others[2:]) if len(others) > 1 else (None, others)
    view = _view(q, k, *(step or (0,)), turn, **attrs)
    return attend(q, k, v, view, _scale(q, attrs["scale"]), state, over=bool(over))


def _block_grad_labels(shapes, *, p, **_):
    sum_ = ",bsgrd" if len(shapes) - (p > 0) > 6 else ""
    return f"bsgre,bsgr,bsgr,bsgrd,btgd,btgd{sum_}{',' if p else ''}->bsgrd,btgd,btgd"


@op(
    _block_grad_labels,
    shown="AttentionBlockGrad",
    dtype=lambda dtypes, **_: (_wide(dtypes[3:6]),) * 3,
    flops=_work(10),
    **_SHARED,
)
@with_settings(**_BLOCK)
def attention_block_grad(*operands, turn, over, **attrs):
    """Gradients from one block, that of q added to those of blocks before.

    g: (b, s, g, r, d), inner, lse: (b, s, g, r), q, k, v: (b, t, g, d), perhaps the sum so far, perhaps step -> like q,
    k, v, float32 at least
    """
    g, inner, lse, q, k, v, *others = operands
    step = others[-1] if attrs["p"] else 0
    of_q = others[0] if len(others) > (attrs["p"] > 0) else None
    view = _view(q, k, step, turn, **attrs)
    return attend_back(g, inner, lse, q, k, v, view, _scale(q, attrs["scale"]), of_q, over=bool(over))


@op("btgd,btgd->btgd", flops=1)
def added_to(arrived, mine, *, over=()):
    """arrived + mine, in the memory of `mine` where `over` says so.  Both (b, t, g, d) -> (b, t, g, d)."""
    return np.add(arrived, mine, out=mine if over else None)
