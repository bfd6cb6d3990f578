"""Random choices: of classes by weight, of places in a mask, of candidates for a sampled softmax, and of an order.

    multinomial(weights (rows, n), num_samples) -> (rows, num_samples)       randperm(n) -> (n,)
    random_choice_with_mask(mask, count=4) -> (count, dims), (count,) bool

Draws are functions of their place, as in `random_numbers.py`. Rules: MindSpore, UniformCandidateSampler (the true
classes may be split, the samples are whole on every rank), RandomChoiceWithMask (whole).
"""

from __future__ import annotations

import numpy as np

from ...base.checks import SHAPE_ERRORS, flag, integer
from ...base.errors import ShapeError
from ...ops.dropout import KEY, hashed
from ...ops.elementwise import a_dtype, cast
from ...ops.gather import gather
from ...ops.machine.operand_checks import ints
from ...ops.machine.registry import case, op
from ...ops.machine.signature import letters
from ...ops.spellings import function, tensor_operand
from .elementary_functions import log
from .random_numbers import Words, moment, uniform_real
from .sorting import topk

# ---- classes by weight ----


def _check_weights(operands, *, num_samples, **_):
    shape = operands[1].shape
    if len(shape) not in (1, 2) or not shape[-1]:
        return f"weights of shape {shape}", "(n,) or (rows, n), with classes"
    return None


@op(
    lambda shapes, **_: ",bn->bs" if len(shapes[1]) == 2 else ",n->s",
    name="Multinomial",
    attrs={"num_samples": integer(1), "key": KEY},
    check=_check_weights,
    axes="bs",
    sizes=lambda shapes, *, num_samples, **_: {"s": num_samples},
    strategy_labels=lambda signature: (signature.ins[1],),
    whole="ns",
    offset=lambda signature: signature.out,
    part_size=lambda shapes, attrs: (*shapes[1][:-1], attrs["num_samples"]),
    localize=lambda attrs, parts: {**attrs, "parts": tuple(parts[c] for c in "bs" if c in parts)},
    dtype="int32",
    flops=40,
    example=(
        case((), (16, 4), low=0.1, ints={0: 50}, num_samples=6, key=5),
        case((), (8, 8), low=0.1, ints={0: 50}, num_samples=3, key=6),
    ),
)
def multinomial_at(step, input, *, num_samples, key=0, parts=None, offset=0):
    """Class numbers, each as likely as its weight.  step: () int, input: (rows, n) weights or (n,) -> (rows,
    num_samples) int32 or (num_samples,). Rows may be split. The same class may be drawn several times.
    """
    drawn = Words((*input.shape[:-1], num_samples), parts, offset, key, step)()
    sums = np.cumsum(np.asarray(input, np.float64), axis=-1)
    reached = sums[..., None, :] <= (drawn * sums[..., -1:])[..., None]
    # weights of 0 at the end are never reached, whatever rounding did to the sum
    last = input.shape[-1] - 1 - np.argmax(np.asarray(input)[..., ::-1] > 0, axis=-1)
    return np.minimum(reached.sum(axis=-1), last[..., None]).astype(np.int32)


@function()
def multinomial(input, num_samples, replacement=True, seed=None):
    """Class numbers, each as likely as its weight.  input: (rows, n) or (n,) -> (rows, num_samples) int32.

    replacement  whether a class can be drawn again; if not, num_samples is at most the number of classes

    Form: mindspore.ops.multinomial.
    """
    step, key = moment("multinomial", seed)
    if flag("multinomial", "replacement", replacement):
        return multinomial_at(step, input, num_samples=num_samples, key=key)
    shape, num_samples = tuple(input.shape), integer(1)("multinomial", "num_samples", num_samples, SHAPE_ERRORS)
    if not shape or num_samples > shape[-1]:
        allowed = "At most as many samples as there are classes"
        raise ShapeError(f"num_samples={num_samples} of weights of shape {shape}", where="multinomial", allowed=allowed)
    # the largest of log(weight) - log(exponential number) is class i as likely as its weight (Gumbel 1954)
    waits = -log(uniform_real(step, shape=shape, key=key))
    return topk(input / waits, num_samples)[1]


# ---- an order ----


@op(
    ",->a",
    name="Randperm",
    attrs={"n": integer(1), "count": integer(1) | None, "key": KEY},
    sizes=lambda shapes, *, n, count, key: {"a": count or n},
    strategy_labels=lambda signature: (signature.out,),
    offset="a",
    part_size=lambda shapes, attrs: attrs["count"],
    localize=lambda attrs, parts: {**attrs, "count": (attrs["count"] or attrs["n"]) // parts["a"]},
    dtype="int64",
    flops=30,
    example=(case((), (), ints={0: 50, 1: 9}, n=16, key=5),),
)
def randperm_at(step, first, *, n, count=None, key=0, offset=0):
    """The numbers from `first` on in a random order.  step, first: () int -> (n,) int64.

    count  how many of them this slice holds; set by the compiler
    """
    order = np.argsort(hashed((n,), None, 0, key, step), kind="stable")
    return order[offset : offset + (count or n)].astype(np.int64) + int(first)


@function()
def randperm(n, seed=None, offset=0, dtype="int64"):
    """0, ..., n - 1 in a random order.  -> (n,) of `dtype`. Form: mindspore.ops.randperm."""
    step, key = moment("randperm", seed)
    made = randperm_at(step, tensor_operand("randperm", "offset", offset, number=True), n=n, key=key)
    wanted = a_dtype("randperm", "dtype", dtype, SHAPE_ERRORS)
    return made if wanted == np.int64 else cast(made, dtype=str(wanted))


@function()
def shuffle(x, seed=None):
    """The rows of x in a random order.  x: (n, ...) -> (n, ...). Form: mindspore.ops.shuffle."""
    shape = tuple(x.shape)
    return gather(x, randperm(shape[0], seed), 0) if shape else x


# ---- places in a mask ----


def _mask_labels(shapes, **_):
    return f",{letters(len(shapes[1]))}->yz,y"


def _check_mask(operands, **_):
    given = operands[1]
    if given.dtype.kind != "b" or not 1 <= len(given.shape) <= 5:
        return f"input_x is {given.dtype} of shape {given.shape}", "bool, with 1 to 5 dims"
    return None


@op(
    _mask_labels,
    name="RandomChoiceWithMask",
    attrs={"count": integer(1), "key": KEY},
    check=_check_mask,
    whole=lambda signature, **_: "".join(signature.labels),
    sizes=lambda shapes, *, count, key: {"y": count, "z": len(shapes[1])},
    strategy_labels=lambda signature: (signature.ins[1],),
    batch="",
    dtype=("int32", "bool"),
    flops=0,
    example=case((), (8, 4), ints={0: 50}, bools=(1,), count=6, key=5),
)
def random_choice_with_mask_at(step, input_x, *, count, key=0):
    """Some of the places where `input_x` is true, no place twice.  step: () int, input_x: (...) bool -> (count, dims)
    int32 coordinates, (count,) bool: which of them are places; the others are zeros. Nothing can be split.
    """
    places = np.argwhere(input_x)
    order = np.argsort(hashed((len(places),), None, 0, key, step), kind="stable")[:count]
    chosen = np.zeros((count, input_x.ndim), np.int32)
    chosen[: len(order)] = places[order]
    return chosen, np.arange(count) < len(order)


@function(also="random_choice_with_mask")
def choice_with_mask(input_x, count=256, seed=None):
    """Some places where `input_x` is true.  input_x: (...) bool -> (count, dims) int32, (count,) bool."""
    step, key = moment("choice_with_mask", seed)
    return random_choice_with_mask_at(
        step, tensor_operand("choice_with_mask", "input_x", input_x), count=count, key=key
    )


# ---- candidates ----


def _check_classes(operands, *, num_true, num_sampled, unique, range_max, **_):
    given = operands[1]
    if len(given.shape) != 2 or given.shape[1] != num_true:
        return f"true_classes of shape {given.shape} with num_true={num_true}", "(rows, num_true)"
    if unique and num_sampled > range_max:
        return f"num_sampled={num_sampled} different classes of range_max={range_max}", "At most as many as there are"
    return ints(given, "true_classes")


def _restrict_candidates(signature, cuts, sizes, *, remove_accidental_hits=False, **_):
    if remove_accidental_hits and max(cuts.values()) > 1:
        return "splits input 0 (the 2-dim true_classes), and remove_accidental_hits needs them all", "((1, 1),)"
    return None


_CANDIDATES = {
    "attrs": {"num_true": integer(1), "num_sampled": integer(1), "range_max": integer(1), "key": KEY},
    "check": _check_classes,
    "axes": "bt",
    "sizes": lambda shapes, *, num_sampled, **_: {"s": num_sampled},
    "strategy_labels": lambda signature: (signature.ins[1],),
    "restrict": _restrict_candidates,
    "localize": lambda attrs, parts: {**attrs, "num_true": attrs["num_true"] // parts["t"]},
    "batch": "",
    "reduce": "same",
    "dtype": lambda dtypes, **_: (dtypes[1], "float32", "float32"),
    "flops": 0,
}


def _candidates(draw, probability, true_classes, num_sampled, unique, exclude=()):
    """Samples, and how often each true class and each sample is expected among them."""
    samples, tries = [], 0
    taken = set(exclude)
    while len(samples) < num_sampled:
        for number in draw():
            tries += 1
            if number not in taken:
                samples.append(int(number))
                taken |= {int(number)} if unique else set()
            if len(samples) == num_sampled:
                break
    made = np.asarray(samples, true_classes.dtype)

    def expected(classes):
        chance = probability(classes)
        count = tries if unique and tries != num_sampled else 0
        return (-np.expm1(count * np.log1p(-chance)) if count else chance * num_sampled).astype(np.float32)

    return made, expected(true_classes), expected(made)


def _check_left(hits, range_max, wanted):
    left = range_max - sum(0 <= each < range_max for each in hits)
    if left < wanted:
        what = f"num_sampled={wanted} of {left} classes that are no true ones"
        raise ShapeError(what, where="UniformCandidateSampler", allowed="As many classes as samples are left")


@op(
    ",bt->s,bt,s",
    name="UniformCandidateSampler",
    example=(
        case((), (8, 4), ints={0: 50, 1: 9}, num_true=4, num_sampled=3, unique=True, range_max=9, key=5),
        case((), (16, 2), ints={0: 50, 1: 9}, num_true=2, num_sampled=5, unique=False, range_max=9, key=6),
    ),
    **_CANDIDATES,
)
def uniform_candidate_sampler_at(
    step, true_classes, *, num_true, num_sampled, unique, range_max, remove_accidental_hits=False, key=0
):
    """Classes below range_max, all equally likely, and how often classes are expected among them.

    step: () int, true_classes: (rows, num_true) int -> sampled (num_sampled,), expected counts of the true classes
    (rows, num_true) float32 and of the sampled (num_sampled,) float32.

    unique                  no class twice
    remove_accidental_hits  no true class; then nothing can be split
    """
    hits = set(true_classes.reshape(-1).tolist()) if remove_accidental_hits else ()
    _check_left(hits, range_max, num_sampled if unique else 1)
    words = Words((2 * num_sampled,), None, 0, key, step)
    return _candidates(
        lambda: np.floor(words() * range_max).astype(np.int64).tolist(),
        lambda classes: np.full(classes.shape, 1 / range_max),
        true_classes,
        num_sampled,
        unique,
        hits,
    )


@op(
    ",bt->s,bt,s",
    name="LogUniformCandidateSampler",
    example=case((), (8, 4), ints={0: 50, 1: 9}, num_true=4, num_sampled=3, unique=True, range_max=9, key=5),
    **_CANDIDATES,
)
def log_uniform_candidate_sampler_at(step, true_classes, *, num_true=1, num_sampled=5, unique=True, range_max=5, key=0):
    """As `uniform_candidate_sampler_at`, class c having the probability log((c + 2) / (c + 1)) / log(range_max + 1).

    step: () int, true_classes: (rows, num_true) int -> (num_sampled,), (rows, num_true) and (num_sampled,) float32.
    """
    words = Words((2 * num_sampled,), None, 0, key, step)
    span = np.log(range_max + 1)
    return _candidates(
        lambda: np.minimum(np.exp(words() * span).astype(np.int64) - 1, range_max - 1).tolist(),
        lambda classes: np.log((classes + 2.0) / (classes + 1.0)) / span,
        true_classes,
        num_sampled,
        unique,
    )


@function()
def uniform_candidate_sampler(
    true_classes, num_true, num_sampled, unique, range_max, seed=None, remove_accidental_hits=False
):
    """Classes below range_max, all equally likely.  true_classes: (rows, num_true) int -> three tensors, see
    `uniform_candidate_sampler_at`. Form: mindspore.ops.uniform_candidate_sampler.
    """
    step, key = moment("uniform_candidate_sampler", seed)
    facts = {"num_true": num_true, "num_sampled": num_sampled, "unique": unique, "range_max": range_max, "key": key}
    return uniform_candidate_sampler_at(step, true_classes, remove_accidental_hits=remove_accidental_hits, **facts)


@function()
def log_uniform_candidate_sampler(true_classes, num_true=1, num_sampled=5, unique=True, range_max=5, seed=None):
    """Classes below range_max, small ones likelier.  true_classes: (rows, num_true) int -> three tensors, see
    `log_uniform_candidate_sampler_at`. Form: mindspore.ops.log_uniform_candidate_sampler.
    """
    step, key = moment("log_uniform_candidate_sampler", seed)
    facts = {"num_true": num_true, "num_sampled": num_sampled, "unique": unique, "range_max": range_max, "key": key}
    return log_uniform_candidate_sampler_at(step, true_classes, **facts)
