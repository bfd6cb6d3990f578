"""Random numbers that are a function of their place, not of who draws them.

    normal((4, 6), 0, 1, seed=3)                            (4, 6) numbers; in a compiled network others in each step
    StandardNormal(shape=(8, 6)).shard(((4, 1),))(step)     every rank draws its slice, and nothing is sent

A number is made from words that the counter hash of `dropout.py` gives for (key, step, index of the element): a draw is
the same bit for bit on one device and under every strategy. MindSpore gives every rank a seed of its own instead
(RandomDistributeInfo, GammaInfo), so that there a split draw differs from that of one device. Strategies are its: one
tuple for the shape; tensors of parameters stay whole.

A distribution that no formula makes of one word (gamma, truncated normal, Poisson) draws one more word per element, by
another key, until every element has what it needs.
"""

from __future__ import annotations

import math

import numpy as np

from ...base.checks import SHAPE_ERRORS, integer, sequence_of
from ...base.errors import ShapeError, shorten
from ...base.hooks import current_tracer
from ...base.origin import caller
from ...base.seeds import get_seed, next_draw
from ...ops.dropout import KEY, dropout_key, hashed
from ...ops.elementwise import a_dtype, add, cast, mul, sub
from ...ops.logic import less
from ...ops.machine.registry import case, op
from ...ops.machine.signature import letters, more_letters
from ...ops.spellings import function, tensor_operand
from .special_functions import by_elements

_LGAMMA = by_elements(math.lgamma, math.inf)
SIZE = sequence_of(integer(0), "An int, or a tuple of ints, none below 0", one=True, empty=True)


class Words:
    """Uniform numbers for a slice, another one per element at every call.  -> (...) float64, between 0 and 1."""

    def __init__(self, part, parts, offset, key, step):
        self.place, self.key, self.step, self.drawn = (part, parts, offset), key, step, 0

    def __call__(self):
        # an odd 64-bit constant, as in linear congruential generators: the keys of two calls have no bits in common
        key = (self.key + self.drawn * 0xD1342543DE82EF95) & ((1 << 64) - 1)
        self.drawn += 1
        return (hashed(*self.place, key, self.step) + 0.5) / 2.0**32


def below_one(numbers):
    """float64 numbers below 1 as float32, none of them rounded up to 1."""
    return np.minimum(numbers.astype(np.float32), np.nextafter(np.float32(1), np.float32(0)))


def normals(words):
    """Normal numbers, mean 0 and standard deviation 1 (Box, Muller 1958).  -> (...) float64."""
    return np.sqrt(-2 * np.log(words())) * np.cos(2 * np.pi * words())


def exponentials(words):
    """Exponential numbers of mean 1.  -> (...) float64."""
    return -np.log(words())


# ---- of a shape alone ----


def _labels(shapes, *, shape, **_):
    numbers = more_letters(sum(map(len, shapes)))
    ins, start = [], 0
    for each in shapes:
        ins.append(numbers[start : start + len(each)])
        start += len(each)
    return f"{','.join(ins)}->{letters(len(shape))}"


def _localize(attrs, parts):
    counts = tuple(parts[c] for c in letters(len(attrs["shape"])))
    return {**attrs, "shape": tuple(n // p for n, p in zip(attrs["shape"], counts, strict=True)), "parts": counts}


def _check_numbers(operands, **_):
    for name, each in zip(("step", "minval", "maxval"), operands, strict=False):
        if each.shape:
            return f"{name} has shape {each.shape}", "A number: shape ()"
    return None


_DRAWN = {
    "attrs": {"shape": sequence_of(integer(0), "A tuple of ints, none below 0", empty=True), "key": KEY},
    "sizes": lambda shapes, *, shape, **_: dict(zip(letters(len(shape)), shape, strict=True)),
    "axes": lambda signature: signature.out,
    "whole": lambda signature, **_: "".join(signature.ins),
    "offset": lambda signature: signature.out,
    "part_size": lambda shapes, attrs: attrs["shape"],
    "localize": _localize,
    "flops": 30,
}
_ALONE = {
    **_DRAWN,
    "check": _check_numbers,
    "strategy_labels": lambda signature: (signature.out,),
    "dtype": "float32",
    "example": (case((), ints={0: 50}, shape=(16, 8), key=5), case((), ints={0: 50}, shape=(4, 2, 8), key=6)),
}


@op(_labels, name="UniformReal", **_ALONE)
def uniform_real(step, *, shape=(1,), key=0, parts=None, offset=0):
    """Numbers from 0 to below 1, all equally likely.  step: () int -> `shape` float32.

    key    64 bits that name this draw (`dropout_key`)
    parts  in how many slices each dim is split; set by the compiler
    """
    return below_one(Words(shape, parts, offset, key, step)())


@op(_labels, name="StandardNormal", **_ALONE)
def standard_normal_at(step, *, shape=(1,), key=0, parts=None, offset=0):
    """Normal numbers of mean 0 and standard deviation 1.  step: () int -> `shape` float32. See `uniform_real`."""
    return normals(Words(shape, parts, offset, key, step)).astype(np.float32)


@op(_labels, name="StandardLaplace", **_ALONE)
def standard_laplace_at(step, *, shape=(1,), key=0, parts=None, offset=0):
    """Numbers with density exp(-|x|) / 2.  step: () int -> `shape` float32. See `uniform_real`."""
    centred = Words(shape, parts, offset, key, step)() - 0.5
    return (-np.sign(centred) * np.log1p(-2 * np.abs(centred))).astype(np.float32)


@op(_labels, name="TruncatedNormal", **_ALONE)
def truncated_normal(step, *, shape=(1,), key=0, parts=None, offset=0):
    """Normal numbers of mean 0 and deviation 1 between -2 and 2.  step: () int -> `shape` float32. See `uniform_real`.

    What lies outside is drawn again.
    """
    words = Words(shape, parts, offset, key, step)
    made = normals(words)
    while (outside := np.abs(made) > 2).any():
        made = np.where(outside, normals(words), made)
    return made.astype(np.float32)


@op(
    _labels,
    name="UniformInt",
    **_ALONE
    | {
        "dtype": "int32",
        "example": (
            case((), (), (), ints={0: 50, 1: 1, 2: 50}, shape=(16, 8), key=5),
            case((), (), (), ints={0: 50, 1: 1, 2: 50}, shape=(32,), key=6),
        ),
    },
)
def uniform_int(step, minval, maxval, *, shape=(1,), key=0, parts=None, offset=0):
    """Ints from minval to below maxval, all equally likely.  step, minval, maxval: () int -> `shape` int32."""
    places = np.floor(Words(shape, parts, offset, key, step)() * (float(maxval) - float(minval)))
    return (places + float(minval)).astype(np.int32)


# ---- with parameters for every element ----


def _check_parameters(operands, *, shape, **_):
    shape = (shape,) if isinstance(shape, int) else shape
    for each in operands[1:]:
        try:
            fits = np.broadcast_shapes(each.shape, shape) == tuple(shape)
        except ValueError:
            fits = False
        if not fits:
            return f"a parameter of shape {each.shape} for a result of shape {tuple(shape)}", "What broadcasts to it"
    return _check_numbers(operands[:1])


def _own(value, shape, parts, offset):
    """This slice's part of a parameter, broadcast to the whole shape."""
    whole = tuple(n * p for n, p in zip(shape, parts or (1,) * len(shape), strict=True))
    first = offset if isinstance(offset, tuple) else (offset,) * len(shape)
    part = tuple(slice(i, i + n) for i, n in zip(first, shape, strict=True))
    return np.broadcast_to(np.asarray(value, np.float64), whole)[part]


_PARAMETRIC = {**_DRAWN, "check": _check_parameters}


@op(
    _labels,
    name="Gamma",
    strategy_labels=lambda signature: (signature.out, *signature.ins[1:]),
    dtype="float32",
    example=(
        case((), (8, 2), (1,), low=0.2, high=3.0, ints={0: 50}, shape=(4, 8, 2), key=5),
        case((), (), (8,), low=0.2, high=3.0, ints={0: 50}, shape=(16, 8), key=6),
    ),
    **_PARAMETRIC,
)
def gamma_at(step, alpha, beta, *, shape=(1,), key=0, parts=None, offset=0):
    """Numbers with density beta^alpha x^(alpha-1) exp(-beta x) / Gamma(alpha).  step: () int, alpha, beta: broadcast to
    `shape` -> `shape` float32. See `uniform_real`.

    By Marsaglia, Tsang 2000 ("A simple method for generating gamma variables"), with alpha + 1 where alpha is below 1.
    """
    words = Words(shape, parts, offset, key, step)
    alpha, beta = (_own(each, shape, parts, offset) for each in (alpha, beta))
    boost = np.where(alpha < 1, words() ** (1 / np.minimum(alpha, 1)), 1.0)
    d = np.where(alpha < 1, alpha + 1, alpha) - 1 / 3
    made, open_ = np.zeros(shape), np.ones(shape, bool)
    while open_.any():
        x = normals(words)
        v = np.maximum(1 + x / (3 * np.sqrt(d)), 0) ** 3
        safe = np.where(v > 0, v, 1.0)
        taken = (v > 0) & (np.log(words()) < 0.5 * x * x + d - d * v + d * np.log(safe))
        made, open_ = np.where(open_ & taken, d * v, made), open_ & ~taken
    return (made * boost / beta).astype(np.float32)


@op(
    _labels,
    name="Poisson",
    strategy_labels=lambda signature: (signature.out, *signature.ins[1:]),
    dtype="int32",
    example=(
        case((), (8, 1), low=0.2, high=3.0, ints={0: 50}, shape=(4, 8, 2), key=5),
        case((), (16, 8), low=5.0, high=15.0, ints={0: 50}, shape=(16, 8), key=6),
    ),
    **_PARAMETRIC,
)
def poisson_at(step, mean, *, shape=(1,), key=0, parts=None, offset=0):
    """Counts k with probability mean^k exp(-mean) / k!.  step: () int, mean: broadcast to `shape` -> `shape` int32.

    For a mean below 10: how many exponential numbers have a sum below it (Knuth 1969), as many words as the largest
    count; of a larger one a rejection that takes two words and keeps most (`_poisson_of_many`). At most 2^31 - 1.
    """
    words, mean = Words(shape, parts, offset, key, step), _own(mean, shape, parts, offset)
    few = np.where(mean < 10, mean, 0)
    made, total = np.zeros(shape, np.int32), exponentials(words)
    while (below := total < few).any():
        made += below
        total += exponentials(words)
    words.drawn = 1 << 16  # however many words the counts of this slice took
    return _poisson_of_many(words, np.clip(mean, 10, 2.0**31 - 1), made, mean >= 10)


def _poisson_of_many(words, mean, made, wanted):
    """`made` with counts in the places `wanted`, of means from 10 on: transformed rejection (Hoermann 1993, PTRS)."""
    b = 0.931 + 2.53 * np.sqrt(mean)
    a, top = 0.02483 * b - 0.059, 0.9277 - 3.6224 / (b - 2)
    while wanted.any():
        u, v = words() - 0.5, words()
        near = 0.5 - np.abs(u)
        count = np.clip(np.floor((2 * a / near + b) * u + mean + 0.43), -1, 2.0**31 - 1)
        height = np.log(v * (1.1239 + 1.1328 / (b - 3.4)) / (a / near**2 + b))
        probable = count * np.log(mean) - mean - _LGAMMA(np.maximum(count, 0) + 1)
        kept = ((near >= 0.07) & (v <= top)) | ((count >= 0) & ((near >= 0.013) | (v <= near)) & (height <= probable))
        made = np.where(wanted & kept, count, made).astype(np.int32)
        wanted = wanted & ~kept
    return made


# ---- functions ----


def moment(where, seed=None):
    """(step, key) for a draw of `where` that is called here: what tells it from all other draws.

    seed  None: the line that calls. In a compiled network a draw repeats with the step; outside every call differs
    """
    tracer = current_tracer.get()
    step = np.asarray(next_draw(), np.int64) if tracer is None else tracer.step()
    place = caller().place if seed is None else _SEED(where, "seed", seed, SHAPE_ERRORS)
    # a line of a loop draws anew: how many lines the trace has so far tells its rounds apart
    return step, dropout_key(get_seed(), where, place, 0 if tracer is None else len(tracer.nodes))


_SEED = integer(0, 2**64 - 1)


def _drawn(of, where, shape, seed, *operands):
    step, key = moment(where, seed)
    return of(step, *operands, shape=SIZE(where, "shape", shape, SHAPE_ERRORS), key=key)


def _of_dtype(x, dtype, where):
    if dtype is None or (wanted := a_dtype(where, "dtype", dtype, SHAPE_ERRORS)) == np.float32:
        return x
    return cast(x, dtype=str(wanted))


@function()
def standard_normal(shape, seed=None):
    """Normal numbers of mean 0 and standard deviation 1.  -> `shape` float32. Form: mindspore.ops.standard_normal."""
    return _drawn(standard_normal_at, "standard_normal", shape, seed)


@function()
def standard_laplace(shape, seed=None):
    """Numbers with density exp(-|x|) / 2.  -> `shape` float32. Form: mindspore.ops.standard_laplace."""
    return _drawn(standard_laplace_at, "standard_laplace", shape, seed)


def _with(where, shape, *parameters, number=False):
    """The shape of a draw with these parameters, which broadcast it, and the parameters. number: or Python's numbers"""
    size = SIZE(where, "shape", shape, SHAPE_ERRORS)
    given = [np.float32(p) if number and type(p) in (int, float) else p for p in parameters]
    given = [tensor_operand(where, "a parameter", p, number=number) for p in given]
    try:
        return np.broadcast_shapes(size, *(tuple(each.shape) for each in given)), given
    except ValueError:
        shapes = ", ".join(str(tuple(each.shape)) for each in given)
        raise ShapeError(f"shape {size} and parameters of shape {shapes}", where=where) from None


@function()
def normal(shape, mean, stddev, seed=None):
    """Normal numbers.  mean, stddev: broadcast with `shape` -> that shape, float32. Form: mindspore.ops.normal."""
    size, (mean, stddev) = _with("normal", shape, mean, stddev, number=True)
    return add(mul(_drawn(standard_normal_at, "normal", size, seed), stddev), mean)


@function()
def laplace(shape, mean, lambda_param, seed=None):
    """Numbers with density exp(-|x - mean| / lambda) / (2 lambda).  mean, lambda_param: broadcast -> that shape."""
    size, (mean, width) = _with("laplace", shape, mean, lambda_param)
    return add(mul(_drawn(standard_laplace_at, "laplace", size, seed), width), mean)


@function()
def uniform(shape, minval, maxval, seed=None, dtype="float32"):
    """Numbers from minval to below maxval.  minval, maxval: broadcast with `shape` -> that shape of `dtype`.

    Ints are drawn where dtype is one, of numbers for minval and maxval. Form: mindspore.ops.uniform.
    """
    size, (low, high) = _with("uniform", shape, minval, maxval)
    if a_dtype("uniform", "dtype", dtype, SHAPE_ERRORS).kind in "iu":
        low, high = (cast(each, dtype="int32") for each in (low, high))
        return _of_ints("uniform", size, seed, low, high, dtype)
    made = add(mul(_drawn(uniform_real, "uniform", size, seed), sub(high, low)), low)
    return _of_dtype(made, dtype, "uniform")


def _of_ints(where, shape, seed, low, high, dtype):
    made = _drawn(uniform_int, where, shape, seed, low, high)
    wanted = a_dtype(where, "dtype", dtype, SHAPE_ERRORS)
    return made if wanted == np.int32 else cast(made, dtype=str(wanted))


@function()
def gamma(shape, alpha, beta, seed=None):
    """Numbers of gamma distributions.  alpha, beta: (...) -> `shape` + their broadcast shape, float32.

    Form: mindspore.ops.gamma.
    """
    inner, (alpha, beta) = _with("gamma", (), alpha, beta)
    outer = SIZE("gamma", "shape", shape, SHAPE_ERRORS)
    return _drawn(gamma_at, "gamma", (*outer, *inner), seed, alpha, beta)


@function()
def random_gamma(shape, alpha, seed=None):
    """Numbers of gamma distributions with beta 1.  alpha: (...) -> `shape` + alpha's, of its dtype."""
    made = gamma(shape, alpha, np.ones((), np.float32), seed)
    return _of_dtype(made, tensor_operand("random_gamma", "alpha", alpha).dtype, "random_gamma")


@function(also="poisson")
def random_poisson(shape, rate, seed=None, dtype="float32"):
    """Counts of Poisson distributions of mean `rate`.  rate: (...) -> `shape` + rate's, of `dtype`."""
    rate = tensor_operand("random_poisson", "rate", rate)
    outer = SIZE("random_poisson", "shape", shape, SHAPE_ERRORS)
    made = _drawn(poisson_at, "random_poisson", (*outer, *rate.shape), seed, rate)
    return cast(made, dtype=str(a_dtype("random_poisson", "dtype", dtype, SHAPE_ERRORS)))


def _sizes(where, size):
    return size[0] if len(size) == 1 and isinstance(size[0], (tuple, list)) else size


@function()
def rand(*size, dtype=None, seed=None):
    """Numbers from 0 to below 1.  -> `size` of `dtype` (float32). Form: mindspore.ops.rand."""
    return _of_dtype(_drawn(uniform_real, "rand", _sizes("rand", size), seed), dtype, "rand")


@function()
def randn(*size, dtype=None, seed=None):
    """Normal numbers of mean 0 and deviation 1.  -> `size` of `dtype` (float32). Form: mindspore.ops.randn."""
    return _of_dtype(_drawn(standard_normal_at, "randn", _sizes("randn", size), seed), dtype, "randn")


@function()
def randint(low, high, size, seed=None, *, dtype="int64"):
    """Ints from low to below high.  -> `size` of `dtype`. Form: mindspore.ops.randint."""
    for name, value in (("low", low), ("high", high)):
        integer(-(2**31), 2**31 - 1)("randint", name, value, SHAPE_ERRORS)
    if high <= low:
        raise ShapeError(f"low={low} and high={high}", where="randint", allowed="low below high")
    dtype = "int64" if dtype is None else dtype
    return _of_ints("randint", size, seed, np.asarray(low, np.int32), np.asarray(high, np.int32), dtype)


@function()
def rand_like(input, seed=None, *, dtype=None):
    """Numbers from 0 to below 1 in the shape of input.  input: (...) -> (...)."""
    made = _drawn(uniform_real, "rand_like", tuple(input.shape), seed)
    return _of_dtype(made, input.dtype if dtype is None else dtype, "rand_like")


@function()
def randn_like(input, seed=None, *, dtype=None):
    """Normal numbers in the shape of input.  input: (...) -> (...)."""
    made = _drawn(standard_normal_at, "randn_like", tuple(input.shape), seed)
    return _of_dtype(made, input.dtype if dtype is None else dtype, "randn_like")


@function()
def randint_like(input, low, high, seed=None, *, dtype=None):
    """Ints from low to below high in the shape of input.  input: (...) -> (...)."""
    return randint(low, high, tuple(input.shape), seed, dtype=input.dtype if dtype is None else dtype)


@function()
def bernoulli(input, p=0.5, seed=None):
    """1 with probability p, else 0.  input: (...), p: a number or broadcast to (...) -> (...) of input's dtype.

    Form: mindspore.ops.bernoulli.
    """
    if isinstance(p, (int, float)) and not 0 <= p <= 1:
        raise ShapeError(f"p={shorten(p)}", where="bernoulli", allowed="From 0 to 1")
    drawn = _drawn(uniform_real, "bernoulli", tuple(input.shape), seed)
    return cast(less(drawn, p), dtype=str(input.dtype))
