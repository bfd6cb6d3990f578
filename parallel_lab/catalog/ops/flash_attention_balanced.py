"""`enable_flash_sp` of MindSpore's FlashAttentionScore: a causal ring whose early ranks help the late ones.

    attention.add_prim_attr("enable_flash_sp", True)                               flash_sp.cc, as of about 2.4

Rank i has chunk i of the sequence, and its queries see the keys of chunks j <= i. The distance i - j says who computes
that pair of chunks:

    less than P / 2    rank i. Keys and values of chunk j come to it, in two halves
    P / 2              rank i with the first half of the keys, rank j with the second
    more               rank j. The queries of chunk i come to it, and their results go home

So d places round the ring travel keys or, where the ring begins anew, queries. On four ranks:

    1 place      keys of 0 to 1, 1 to 2, 2 to 3    queries of 3 to 0
    2 places     keys of 0 to 2, 1 to 3            queries of 2 to 0, 3 to 1

Every rank computes its own triangle and P - 1 blocks of c x c / 2, together c^2 P / 2 + c / 2 pairs (as in
DistFlashAttention, Li et al. 2024). Results travel as MindSpore sends them, in float32 with 8 equal columns of the
maximum and 8 of the sum; backward, queries bring what their gradient needs, and gradients go home.
`AttentionMessages.balanced_ring` counts what is sent.
"""

from __future__ import annotations

import numpy as np

from ...base.checks import integer, number
from ...base.dtypes import promoted
from ...ops.context_attention import (
    _bounds,
    _scale,
    _wide,
    _work,
    arrived,
    attention_block,
    attention_block_grad,
    finished,
    sent,
    slopes,
)
from ...ops.elementwise import add, cast
from ...ops.join import concat, split_parts
from ...ops.kernels.attention_blocks import View, attend, attend_back, merge
from ...ops.machine.operand_checks import floats
from ...ops.machine.registry import case, op
from ...ops.machine.unfolding import Unfolding

COLUMNS = 8  # of a maximum and of a sum, all alike
KEYS = "balanced attention: half of the keys and values for a later rank"
QUERIES = "balanced attention: queries for an earlier rank, which has less to do"
RESULTS = "balanced attention: the result of another rank's queries goes home"
GRADIENTS = "balanced attention: the gradients of another rank's chunk go home"


# ---- rank programs ----


def _steps(parts):
    """(distance, half of the keys that travels): P - 1 of them, then None."""
    steps = [(distance, half) for distance in range(1, parts // 2 + 1) for half in range(1 + (2 * distance < parts))]
    return [*steps, None]


def _halved(*values):
    """[first halves of all values, second halves]."""
    return [list(halves) for halves in zip(*(split_parts(x, axis=1, output_num=2) for x in values), strict=True)]


def _asked(parts, step, halves, queries):
    """Start what this step needs elsewhere: a half of the keys and values, and before the first half the queries."""
    if step is None:
        return []
    distance, half = step
    keys = yield from sent(parts, distance, KEYS, *halves[half], wrapped=False)
    return keys + (yield from sent(parts, distance, QUERIES, *(() if half else queries), wrapped=True))


def _forward(operands, attrs):
    """(out, lse): of the own chunk, then of pairs of chunks, while what the next step needs travels."""
    q, parts, halves = operands[0], attrs["parts"][1], _halved(*operands[1:])
    (first, *steps), guests, made, behind = _steps(parts), [], (), []
    coming = yield from _asked(parts, first, halves, (q,))
    state = attention_block(*operands, **attrs)
    for (distance, half), following in zip((first, *steps), steps, strict=False):
        came = yield from arrived(coming)
        keys, guests = came[:2], came[2:] or guests
        coming = yield from _asked(parts, following, halves, (q,))
        own = half if 2 * distance < parts else 1
        made = (pair_block(q, *guests, *halves[own], *keys, *made, distance=distance, half=half, **attrs),)
        if own:  # both halves are done
            state = pair_merge(*state, *made, distance=distance)
            for result in (yield from arrived(behind)):
                state = pair_merge(*state, result)
            behind, made = (yield from sent(parts, parts - distance, RESULTS, *made, wrapped=False)), ()
    for result in (yield from arrived(behind)):
        state = pair_merge(*state, result)
    return finished(operands, *state)


def _backward(operands, attrs):
    """(dq, dk, dv), by the same ways: queries bring g, inner and lse, and what is added up for others goes home."""
    parts, queries, halves = attrs["parts"][1], (operands[3], *operands[:3]), _halved(*operands[4:])
    (first, *steps), guests, lent, behind = _steps(parts), [], [], []
    coming = yield from _asked(parts, first, halves, queries)
    of_q, *of_keys = attention_block_grad(*operands, **attrs)
    mine = [[of_q], *_halved(*of_keys)]

    def come_home():
        for at, handles in behind:  # zeros where nothing was on its way
            mine[at] = [add(*pair) for pair in zip(mine[at], (yield from arrived(handles)), strict=True)]

    for (distance, half), following in zip((first, *steps), steps, strict=False):
        came = yield from arrived(coming)
        keys, guests = came[:2], came[2:] or guests
        coming = yield from _asked(parts, following, halves, queries)
        own = half if 2 * distance < parts else 1
        to_q, *to_keys = pair_block_grad(*queries, *guests, *halves[own], *keys, distance=distance, half=half, **attrs)
        for at, found in ((0, [to_q]), (1 + own, to_keys)):
            pairs = zip(mine[at], found, strict=True)
            mine[at] = [added_there(*pair, distance=distance, helping=at > 0) for pair in pairs]
        yield from come_home()
        behind = [(1 + half, (yield from sent(parts, parts - distance, GRADIENTS, *to_keys, wrapped=True)))]
        lent = [add(*lent, to_q) if lent else to_q]
        if own:
            behind.append((0, (yield from sent(parts, parts - distance, GRADIENTS, *lent, wrapped=False))))
            lent = []
    yield from come_home()
    made = (*mine[0], *(concat(*halves, axis=1) for halves in zip(*mine[1:], strict=True)))
    pairs = zip(made, operands[3:], strict=True)
    return tuple(x if x.dtype == like.dtype else cast(x, dtype=str(like.dtype)) for x, like in pairs)


# ---- operators ----

_PLACE = {"offset": "bsgr", "part_size": lambda shapes, attrs: (1, 1, 1, 1)}  # of a rank, not of its first element


def _view(q, k, window, parts=1, queries=0, keys=0, half=0):
    """What queries of one chunk see of another's keys, or of one half of them."""
    c, n = q.shape[1], k.shape[1]
    of_queries, of_keys = np.arange(queries * c, (queries + 1) * c), np.arange(n) + keys * c + half * n
    first, stop = (each[of_queries] for each in _bounds(c * parts, True, window, ()))
    return View(first, stop, of_keys, of_queries)


def _here(of_queries, of_guests, own, come, *, distance, half, parts, offset, window):
    """(queries and what belongs to them, keys, values, view) of the pair of chunks that this rank computes."""
    parts, place = parts[1], offset[1]
    helps = place < distance
    rows, keys = (of_guests, own) if helps else (of_queries, come)
    chunks = (place - distance + parts, place) if helps else (place, place - distance)
    half = 1 if helps and 2 * distance == parts else half
    return rows, keys, _view(rows[0], keys[0], window, parts, *chunks, half)


def _check(operands, **_):
    q, k, v = operands
    for name, x, dims in (("q", q, 5), ("k", k, 4), ("v", v, 4)):
        if len(x.shape) != dims or floats(x, name):
            return f"{name} is {x.dtype} of shape {x.shape}", "Floats: q (b, s, g, r, d), k and v (b, s, g, d)"


def _restrict(signature, cuts, sizes, **_):
    parts, tokens = cuts.get("s", 1), sizes["s"]
    if parts > 1 and (parts % 2 or tokens % (2 * parts)):
        return f"{tokens} tokens are split {parts} ways", "An even number P of ranks, and tokens that divide by 2 P"


@op(
    "bsgrd,bsgd,bsgd->bsgrd,bsgr",
    name="BalancedAttention",
    axes="bsgr",
    attrs={"scale": number() | None, "window": integer(1) | None},
    check=_check,
    dtype=lambda dtypes, **_: (promoted(dtypes), _wide(dtypes)),
    whole="d",
    restrict=_restrict,
    localize=lambda attrs, cuts: {**attrs, "parts": tuple(cuts.get(c, 1) for c in "bsgr")},
    unfold=Unfolding(1, lambda operands, attrs: _forward(operands, attrs) if attrs["parts"][1] > 1 else None),
    flops=lambda s: 4 * s.b * s.s * s.s * s.g * s.r * s.d,
    example=(
        case((2, 16, 2, 2, 3), (2, 16, 2, 3), (2, 16, 2, 3)),
        case((1, 16, 4, 1, 2), (1, 16, 4, 2), (1, 16, 4, 2), window=5, scale=0.5),
    ),
    **_PLACE,
)
def balanced_attention(q, k, v, *, scale=None, window=None, parts=(1, 1, 1, 1), offset=0):
    """softmax(scale q k^T) v under a causal mask, and the log-sum-exp; ranks that share the tokens work alike.

    q: (b, s, g, r, d), k, v: (b, s, g, d) -> out: (b, s, g, r, d), lse: (b, s, g, r), float32 at least

    scale   None: 1 / sqrt(d);  window: how many keys a query sees, itself included
    parts   how often b, s, g, r of the whole are split; set by the compiler

    The ranks that share tokens must be even in number, P, and 2 P divide the tokens.
    """
    out, lse = attend(q, k, v, _view(q, k, window), _scale(q, scale))
    return out.astype(np.result_type(q, k, v), copy=False), lse.astype(out.dtype, copy=False)


@op(
    "bsgre,bsgr,bsgr,bsgrd,bsgd,bsgd->bsgrd,bsgd,bsgd",
    shown="BalancedAttentionGrad",
    dtype=lambda dtypes, **_: tuple(dtypes[3:]),
    unfold=Unfolding(1, lambda operands, attrs: _backward(operands, attrs) if attrs["parts"][1] > 1 else None),
    flops=lambda s: 10 * s.b * s.s * s.s * s.g * s.r * s.d,
    **_PLACE,
)
def balanced_attention_grad(g, inner, lse, q, k, v, *, scale, window, parts, offset=0):
    """Gradients.  g: (b, s, g, r, d), inner, lse: (b, s, g, r), q, k, v -> like q, k, v."""
    made = attend_back(g, inner, lse, q, k, v, _view(q, k, window), _scale(q, scale))
    return tuple(x.astype(like.dtype, copy=False) for x, like in zip(made, (q, k, v), strict=True))


balanced_attention.vjp(slopes(balanced_attention_grad))

# ---- of pairs of chunks: this rank's queries with keys that came, or queries that came with this rank's keys ----


@op(
    lambda shapes, **_: "bsgrd,bsgrd,btgd,btgd,btgd,btgd" + (",bsgre" if len(shapes) > 6 else "") + "->bsgre",
    dtype=lambda dtypes, **_: _wide(dtypes),
    sizes=lambda shapes, **_: {"e": shapes[0][4] + 2 * COLUMNS},
    flops=_work(4),
    **_PLACE,
)
def pair_block(*operands, distance, half, scale, window, parts, offset=0):
    """The result for one half of the keys, with that of the other half if it is there.

    q, guest: (b, s, g, r, d), k, v, k and v that came: (b, s / 2, g, d), perhaps a result -> (b, s, g, r, d + 16),
    float32 at least: out, 8 columns of the maximum, 8 of the sum
    """
    q, guest, k, v, k_in, v_in, *made = operands
    where = {"distance": distance, "half": half, "parts": parts, "offset": offset, "window": window}
    (queries,), keys, view = _here((q,), (guest,), (k, v), (k_in, v_in), **where)
    out, lse = attend(queries, *keys, view, _scale(q, scale), _unpacked(*made) if made else None)
    sees = lse > -np.inf
    columns = [x.astype(out.dtype)[..., None] for x in (np.where(sees, lse, 0), sees)]
    return np.concatenate([out, *(np.repeat(x, COLUMNS, -1) for x in columns)], -1)


def _unpacked(packed):
    """(out, lse) of a result; lse is -inf where the sum is 0: where no key was seen, and where nothing has arrived."""
    with np.errstate(divide="ignore"):
        lse = packed[..., -2 * COLUMNS] + np.log(packed[..., -1])
    return packed[..., : -2 * COLUMNS], lse


@op("bsgrd,bsgr,bsgre->bsgrd,bsgr", dtype=(0, 1), **_PLACE)
def pair_merge(out, lse, packed, *, distance=0, offset=0):
    """A result merged with what there was; not by the ranks that helped at this distance: they lend theirs.

    out: (b, s, g, r, d), lse: (b, s, g, r), packed: (b, s, g, r, d + 16) -> like out, like lse
    """
    if offset[1] < distance:
        return out.copy(), lse.copy()
    other, its = _unpacked(packed)
    both, share = merge(lse, its)
    return out + (other - out) * share.astype(out.dtype)[..., None], both


@op(
    "bsgrd,bsgre,bsgr,bsgr,bsgrd,bsgre,bsgr,bsgr,btgd,btgd,btgd,btgd->bsgrd,btgd,btgd",
    dtype=lambda dtypes, **_: (_wide((dtypes[0], *dtypes[8:])),) * 3,
    flops=_work(10),
    **_PLACE,
)
def pair_block_grad(*operands, distance, half, scale, window, parts, offset=0):
    """The gradients of `pair_block`, of whichever queries and keys this rank computed.

    q, g: (b, s, g, r, d), inner, lse: (b, s, g, r), the same of guests, k, v, k and v that came: (b, s / 2, g, d) ->
    like q, k, v, float32 at least
    """
    where = {"distance": distance, "half": half, "parts": parts, "offset": offset, "window": window}
    (q, *rest), keys, view = _here(operands[:4], operands[4:8], operands[8:10], operands[10:], **where)
    return attend_back(*rest, q, *keys, view, _scale(q, scale))


@op(result_shape=0, dtype=0, part_size=lambda shapes, attrs: (1, 1, 1, 1))
def added_there(total, part, *, distance, helping, offset=0):
    """total + part on the ranks that helped at this distance, or on the others.  Alike, (b, s, ...) -> the same."""
    return total + part if (offset[1] < distance) == helping else total.copy()
