"""Batch norm: channels normalised over the whole batch, wherever its samples lie.

    y = (x - mean of the channel) / sqrt(variance of the channel + epsilon) * scale + bias

In training the statistics are those of the batch. When the batch (or height, width) is split, every rank has a part of
the sums, so the operator is composed of two with one message between them:

    batch_norm_sums    x -> (2, c): sum and sum of squares of every channel            all_reduce of 2 c numbers, if n,
                       h or w is split
    batch_norm_apply   x, sums, scale, bias -> y                                       backward: another all_reduce of 2
                       c numbers

E[x^2] - E[x]^2 loses digits when the mean is large against the deviation: in float32 all of them at 3000 times. So a
rank takes its own mean off first, and adds sums in float64: sum = n m and sum of squares = (sum of (x - m)^2) + n m^2.
The variance is then as good as a two-pass one until the mean is 10^7 deviations, beyond what float32 data can hold, for
one message as before (of 16 c bytes instead of 8 c).

Gradients: with A = sum of g and B = sum of g * (x - mean) / deviation over a channel, bias has A, scale has B, and x
has scale / deviation * (g - A / N - normalised * B / N), whose A and B travel with the gradient of the sums.
"""

from __future__ import annotations

import math

import numpy as np

from ..base.checks import choice, is_int, number
from ..base.errors import StrategyError, shorten
from ..base.hooks import current_tracer, current_world
from ..base.settings.checks import SHARDED_MODES
from ..layout.tensor_layout import axes_of_groups
from .collectives.primitives import AllReduce
from .elementwise import POSITIVE, add, cast, mul, sub
from .join import unstack
from .machine.composed import composed
from .machine.primitive import Primitive
from .machine.registry import case, gradient, op
from .machine.signature import letters
from .normalization import EPSILON, parameters_fault, wide
from .reduce import reduce_mean
from .shape import reshape
from .unary import rsqrt, square
from .writes import assign

CHUNK = 1 << 16  # elements worked on at a time: the temporary stays in the cache (256 kB of float32)


def _planes(x):
    """x: (n, c, ...) -> (n, c, p), all positions in one dim."""
    return x.reshape(len(x), x.shape[1], -1)


def _chunks(planes):
    step = max(1, CHUNK // max(1, planes[0].size))
    return (slice(i, i + step) for i in range(0, len(planes), step))


def _channel_sum(planes, other=None):
    """Sum over samples and positions of x, or of x * other, in float64.  (n, c, p) -> (c,)."""
    if planes.shape[2] == 1:
        rows = planes[:, :, 0]
        return np.einsum(
            "nc->c" if other is None else "nc,nc->c", *((rows,) if other is None else (rows, other[:, :, 0]))
        ).astype(np.float64)
    if other is None:
        # a product with ones is a third of the time of numpy's sum
        sums = planes.reshape(-1, planes.shape[2]) @ np.ones(planes.shape[2], planes.dtype)
        return sums.reshape(planes.shape[:2]).sum(axis=0, dtype=np.float64)
    return np.vecdot(planes, other).sum(axis=0, dtype=np.float64)


def _moments(sums, count, epsilon):
    """Mean, variance and 1 / deviation in float64.  sums: (2, c) -> three times (c,)."""
    mean = sums[0] / count
    variance = np.maximum(sums[1] / count - mean * mean, 0)
    return mean, variance, 1 / np.sqrt(variance + epsilon)


def _channelled(values, dtype):
    """(c,) as it multiplies (n, c, p)."""
    return np.asarray(values, dtype)[:, None]


def _affine(x, factor, offset):
    planes = _planes(wide(x))
    y = planes * _channelled(factor, planes.dtype)
    y += _channelled(offset, planes.dtype)
    return y.reshape(x.shape).astype(x.dtype, copy=False)


# ---- the parts in training ----


@op(lambda shapes: f"{letters(len(shapes[0]))}->sb", sizes=lambda shapes: {"s": 2}, whole="s", dtype="float64", flops=4)
def batch_norm_sums(x):
    """Sum and sum of squares of every channel.  x: (n, c, ...) -> (2, c) float64."""
    planes = _planes(wide(x))  # sums of float16 leave its range
    count = planes.shape[0] * planes.shape[2]
    mean = _channel_sum(planes) / count
    # the mean as x can hold it: the sums below are exact for whatever is taken off
    shift = mean.astype(planes.dtype)
    rest, squares = np.zeros(len(mean)), np.zeros(len(mean))
    for part in _chunks(planes):
        centered = planes[part] - shift[:, None]
        rest += _channel_sum(centered)
        squares += _channel_sum(centered, centered)
    shift = shift.astype(np.float64)
    return np.stack([rest + count * shift, squares + shift * (2 * rest + count * shift)])


@gradient(batch_norm_sums, dtype=1)
def batch_norm_sums_grad(g, x):
    """Gradient of the sums.  g: (2, c), x: (n, c, ...) -> (n, c, ...)."""
    return _affine(x, 2 * g[1], g[0])


def _apply_labels(shapes, *, count, epsilon):
    names = letters(len(shapes[0]))
    return f"{names},sb,b,b->{names}"


@op(_apply_labels, shown="BatchNorm", whole="s", dtype=0, flops=2)
def batch_norm_apply(x, sums, scale, bias, *, count, epsilon):
    """x normalised with `sums`; count: elements of a channel.  x: (n, c, ...), sums: (2, c), others: (c,) -> like x."""
    mean, _, inverse = _moments(sums, count, epsilon)
    factor = scale * inverse
    return _affine(x, factor, bias - mean * factor)


@op(result_shape=lambda shapes, **_: (2, shapes[1][1]), dtype="float64")
def batch_norm_grad_sums(g, x, mean, inverse):
    """Sums of g and of g times the normalised x.  g, x: (n, c, ...), mean, inverse: (c,) -> (2, c), all float64."""
    g, planes = _planes(wide(g)), _planes(wide(x))
    shift = mean.astype(planes.dtype)
    of_g, of_product = np.zeros(len(mean)), np.zeros(len(mean))
    for part in _chunks(planes):
        of_g += _channel_sum(g[part])
        of_product += _channel_sum(g[part], planes[part] - shift[:, None])
    return np.stack([of_g, (of_product - (mean - shift) * of_g) * inverse])


@op(result_shape=lambda shapes, **_: shapes[0][1:], dtype="float64")
def batch_norm_mean(sums, *, count):
    """Mean of every channel.  sums: (2, c) -> (c,) float64."""
    return sums[0] / count


@op(result_shape=lambda shapes, **_: shapes[0][1:], dtype="float64")
def batch_norm_inverse(sums, *, count, epsilon):
    """1 / sqrt(variance + epsilon) of every channel.  sums: (2, c) -> (c,) float64."""
    return _moments(sums, count, epsilon)[2]


@op(result_shape=0, dtype="float64")
def batch_norm_apply_sums_grad(both, sums, scale, *, count, epsilon):
    """Gradient for the sums.  both: (2, c) of `batch_norm_grad_sums`, sums: (2, c), scale: (c,) -> (2, c)."""
    mean, _, inverse = _moments(sums, count, epsilon)
    of_variance = -0.5 * scale * inverse**2 * both[1]
    return np.stack([-scale * inverse * both[0] - 2 * mean * of_variance, of_variance]) / count


@op(result_shape=0, dtype=0)
def scale_channels(g, scale, inverse):
    """g times scale / deviation.  g: (n, c, ...), scale, inverse: (c,) -> (n, c, ...)."""
    planes = _planes(wide(g))
    return (planes * _channelled(scale * inverse, planes.dtype)).reshape(g.shape).astype(g.dtype, copy=False)


def _rows(both, like):
    """Both rows of (2, c) in the dtype of `like`."""
    return tuple(cast(row, dtype=str(like.dtype)) for row in unstack(both))


@batch_norm_apply.vjp
def _(g, out, x, sums, scale, bias, *, count, epsilon):
    inverse = batch_norm_inverse(sums, count=count, epsilon=epsilon)
    both = batch_norm_grad_sums(g, x, batch_norm_mean(sums, count=count), inverse)
    of_bias, of_scale = _rows(both, scale)
    of_x = scale_channels(g, scale, inverse)
    return of_x, batch_norm_apply_sums_grad(both, sums, scale, count=count, epsilon=epsilon), of_scale, of_bias


# Every rank computes what follows for its channels. x, unread, is an operand so that channels lie as elsewhere: by the
# shape (c,) alone, split in 4 on 8 ranks, they would lie otherwise, and be sent around.
def _channel_labels(shapes, **_):
    return f"{letters(len(shapes[0]))},sb,b->b"


@op(_channel_labels, whole="s", reduce="same", dtype=2, flops=lambda s: 4 * s.b)
def batch_norm_statistic(x, sums, like, *, count, variance):
    """Mean, or population variance, of every channel.  x: (n, c, ...), sums: (2, c), like: (c,) -> (c,)."""
    return _moments(sums, count, 1.0)[int(variance)].astype(like.dtype)


@gradient(batch_norm_statistic, "sums", dtype="float64")
def batch_norm_statistic_grad(g, sums, *, count, variance):
    """Gradient for the sums.  g: (c,), sums: (2, c) -> (2, c)."""
    if not variance:
        return np.stack([g / count, np.zeros(g.shape)]).astype(np.float64)
    return np.stack([-2 * sums[0] / count * g, g]) / count


@op(_channel_labels, whole="s", reduce="same", dtype=2, flops=lambda s: 6 * s.b)
def moving_statistic(x, sums, old, *, count, variance, share, factor):
    """(1 - share) * old + share * factor * the batch's statistic.  x: (n, c, ...), sums: (2, c), old: (c,) -> (c,)."""
    return ((1 - share) * old + share * factor * _moments(sums, count, 1.0)[int(variance)]).astype(old.dtype)


# ---- with moving statistics ----


def _infer_labels(shapes, *, epsilon):
    names = letters(len(shapes[0]))
    return f"{names},b,b,b,b->{names}"


@op(_infer_labels, shown="BatchNorm", dtype=0, flops=2)
def batch_norm_infer(x, scale, bias, mean, variance, *, epsilon):
    """x normalised with given statistics.  x: (n, c, ...), the others: (c,) -> (n, c, ...)."""
    factor = scale / np.sqrt(variance.astype(np.float64) + epsilon)
    return _affine(x, factor, bias - mean * factor)


@op(result_shape=0, dtype="float64")
def inverse_deviation(variance, *, epsilon):
    """1 / sqrt(variance + epsilon).  variance: (c,) -> (c,) float64."""
    return 1 / np.sqrt(variance.astype(np.float64) + epsilon)


@batch_norm_infer.vjp
def _(g, out, x, scale, bias, mean, variance, *, epsilon, needs):
    inverse = inverse_deviation(variance, epsilon=epsilon)
    of_x = scale_channels(g, scale, inverse)
    if not any(needs[1:]):
        return of_x, None, None, None, None
    both = batch_norm_grad_sums(g, x, cast(mean, dtype="float64"), inverse)
    of_bias, of_scale = _rows(both, scale)
    if not any(needs[3:]):
        return of_x, of_scale, of_bias, None, None
    slope = scale * cast(inverse, dtype=str(scale.dtype))
    of_variance = cast(inverse * inverse, dtype=str(scale.dtype)) * scale * of_scale * -0.5
    return of_x, of_scale, of_bias, -(slope * of_bias), of_variance


@op(lambda shapes: f"{letters(len(shapes[0]))},b->b", reduce="same", dtype=1, flops=0)
def given_statistic(x, given):
    """The mean or variance that was given, as a result of its own.  x: (n, c, ...), given: (c,) -> (c,)."""
    return given.copy()


@given_statistic.vjp
def _(g, out, x, given):
    return None, g


# ---- the operator ----


def _group_count(part, x):
    """In how many groups the ranks normalise their samples apart: by the attribute `group_size`, in modes that split
    operators. 1: all samples together. Raises StrategyError.
    """
    size = None if part.primitive is None else part.primitive.prim_attrs.get("group_size")
    tracer = current_tracer.get()
    if size is None or getattr(tracer, "parallel_mode", None) not in SHARDED_MODES:
        return 1
    count, where = tracer.device_num, tracer.where("BatchNorm", part.primitive)
    if not is_int(size, 1) or size & (size - 1) or count % size:
        allowed = f"A power of two that divides the {count} devices"
        raise StrategyError(f"group_size={shorten(size)}", where=where, allowed=allowed)
    parts = count if part.rule is None else dict(part.rule.cuts)[letters(1)]
    if size < count and (parts != count or x.shape[0] % count):
        what = f"group_size={size} with {x.shape[0]} samples split {parts} ways"
        raise StrategyError(what, where=where, allowed=f"An equal part of the samples for each of {count} devices")
    return count // size


def _blocks(shapes, **_):
    names = letters(len(shapes[0]))
    return f"{names},c,c->{names},c,c"


@composed(_blocks, shown="BatchNorm", dtype=(0, 1, 1), flops=6)
def batch_norm_of_blocks(part, x, scale, bias, *, epsilon):
    """Batch norm of every block of samples, and the means over the blocks of their means and variances.

    x: (blocks, n, c, ...), scale, bias: (c,) -> like x, (c,), (c,)
    """
    names = letters(len(x.shape))
    beyond = "1" * (len(names) - 3)
    of_block, axes = f"a1c{beyond}", (1, *range(3, len(names)))
    mean = part(reduce_mean, x, labels=names, axis=axes, keep_dims=True)
    centered = part(sub, x, mean, labels=f"{names},{of_block}")
    squares = part(square, centered, labels=names)
    variance = part(reduce_mean, squares, labels=names, axis=axes, keep_dims=True)
    inverse = part(rsqrt, part(add, variance, epsilon, labels=f"{of_block},"), labels=of_block)
    y = part(mul, centered, inverse, labels=f"{names},{of_block}")
    for apply, given in ((mul, scale), (add, bias)):
        factor = part(reshape, given, shape=(1, 1, x.shape[2], *[1] * len(beyond)))
        y = part(apply, y, factor, labels=f"{names},11c{beyond}")
    axes = tuple(i for i in range(len(names)) if i != 2)
    return y, *(part(reduce_mean, each, labels=of_block, axis=axes) for each in (mean, variance))


def _in_groups(part, x, scale, bias, groups, epsilon):
    """`batch_norm_of_blocks`: (n, c, ...) is taken as (groups, n / groups, c, ...), both dims split by all devices."""
    shape, size = tuple(x.shape), current_tracer.get().device_num // groups
    blocks = part(reshape, x, shape=(groups, shape[0] // groups, *shape[1:]))
    inner = type("BatchNorm", (Primitive,), {"op": batch_norm_of_blocks})(epsilon=epsilon)
    inner.shard(((groups, size, *[1] * (len(shape) - 1)), (1,), (1,)))
    inner.instance_name, inner.strategy_origin = part.primitive.instance_name, part.primitive.strategy_origin
    y, *statistics = batch_norm_of_blocks.call((blocks, scale, bias), {"epsilon": epsilon}, inner)
    return part(reshape, y, shape=shape), *statistics


def _sums(part, x, names):
    """Sums of x; the attribute `sync` says whether they include other ranks': their mean.

    The pass `replicate` exchanges them where all ranks run one plan. Where operators run at once, or the groups are
    none of a device matrix, this rank does: each has a program of its own.
    """
    world, synchronised = current_world(), part.primitive is not None and part.primitive.prim_attrs.get("sync")
    planned = current_tracer.get() is not None
    if planned and isinstance(synchronised, tuple) and world is not None:
        matrix = axes_of_groups(synchronised)
        planned = matrix is not None and math.prod(matrix[0]) == world.world_size
    by_hand = bool(synchronised) and world is not None and not planned
    sums = part(batch_norm_sums, x, labels=f"{names}->sb", keep=() if by_hand else ("sync",))
    groups = (tuple(range(world.world_size)),) if by_hand and synchronised is True else synchronised
    members = next((group for group in groups if world.rank in group), ()) if by_hand else ()
    if len(members) < 2:
        return sums
    name = f"sync_batch_norm {members}"
    world.groups.setdefault(name, members)
    return AllReduce(group=name)(sums) * (1 / len(members))


def _labels(shapes, **_):
    names = letters(len(shapes[0]))
    return f"{names},b,b,b,b->{names},b,b,b,b"


def _check(operands, *, is_training, **_):
    shape = operands[0].shape
    if len(shape) < 2:
        return f"x has shape {shape}", "At least 2 dims: (n, c, ...)"
    if is_training and math.prod(shape[:1] + shape[2:]) < 2:
        return f"x of shape {shape} has one element per channel", "At least 2, to have a variance in training"
    names = ("scale", "bias", "mean", "variance")
    return parameters_fault(operands, names, shape[1:2], "one per channel of x")


@composed(
    _labels,
    name="BatchNorm",
    attrs={"epsilon": EPSILON, "momentum": number(0, 1), "data_format": choice("NCHW")},
    check=_check,
    # outside training the statistics that were given are results too: mean, variance, and both again
    dtype=(0, 3, 4, 3, 4),
    flops=6,
    example=(
        case((8, 4, 2, 2), (4,), (4,), (4,), (4,), is_training=True, **POSITIVE),
        case((16, 4), (4,), (4,), (4,), (4,), is_training=True, **POSITIVE),
        case((8, 4, 2, 2), (4,), (4,), (4,), (4,), **POSITIVE),
        case((16, 4), (4,), (4,), (4,), (4,), **POSITIVE),
    ),
)
def batch_normalization(
    part,
    x,
    scale,
    bias,
    mean,
    variance,
    *,
    is_training=False,
    epsilon=1e-5,
    momentum=0.1,
    data_format="NCHW",
    unbiased=False,
):
    """Batch norm over n and all dims after c.

    x: (n, c, ...), the others: (c,) -> y: (n, c, ...), and four times (c,): mean, variance, both again
    is_training  normalise with the statistics of the batch; else with `mean` and `variance`, which are then the second
                 and third result
    momentum     in training, `mean` and `variance` that are Parameters without gradient become (1 - momentum) * old +
                 momentum * new
    group_size   an attribute (`add_prim_attr`) of modes that split operators: samples are normalised in blocks of as
                 many devices' parts; the moving statistics take the mean of the blocks' (MindSpore: each its own)
    unbiased     variance takes n / (n - 1) times the batch's population variance (PyTorch, cuDNN); default: that
                 variance itself (MindSpore, CPU)

    c may be split without a message, n and the other dims with one all_reduce forward and one backward. Results and
    defaults: MindSpore, ops.BatchNorm.
    """
    names, statistics = letters(len(x.shape)), (mean, variance)
    if is_training:
        count, groups = math.prod(x.shape) // x.shape[1], _group_count(part, x)
        if groups > 1:
            count //= groups
            y, *of_batch = _in_groups(part, x, scale, bias, groups, epsilon)
            for i, (kept, new) in enumerate(zip(statistics, of_batch, strict=True)):
                if hasattr(kept, "set_data") and not kept.requires_grad:
                    factor = momentum * (count / (count - 1) if unbiased and i == 1 else 1.0)
                    aged = part(mul, kept, 1 - momentum, labels="b,")
                    new = part(add, aged, part(mul, new, factor, labels="b,"), labels="b,b")
                    part(assign, kept, new)
            return y, *of_batch, *of_batch
        sums = _sums(part, x, names)
        channels = f"{names},sb,b->b"
        for i, kept in enumerate(statistics):
            if hasattr(kept, "set_data") and not kept.requires_grad:
                factor = count / (count - 1) if unbiased and i == 1 else 1.0
                rule = {"count": count, "variance": i == 1, "share": float(momentum), "factor": factor}
                new = part(moving_statistic, x, sums, kept, labels=channels, **rule)
                part(assign, kept, new)
        statistics = [
            part(batch_norm_statistic, x, sums, like, labels=channels, count=count, variance=i == 1)
            for i, like in enumerate(statistics)
        ]
        labels = f"{names},sb,b,b->{names}"
        y = part(batch_norm_apply, x, sums, scale, bias, labels=labels, count=count, epsilon=epsilon)
    else:
        labels = f"{names},b,b,b,b->{names}"
        y = part(batch_norm_infer, x, scale, bias, mean, variance, labels=labels, epsilon=epsilon)
        statistics = [part(given_statistic, x, s, labels=f"{names},b->b") for s in statistics]
    return y, *statistics, *statistics
