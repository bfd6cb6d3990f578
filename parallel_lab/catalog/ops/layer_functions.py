"""What layers do, as functions with the arguments of MindSpore's and PyTorch's: convolution, batch norm, dropout of
elements and of whole channels."""

from __future__ import annotations

import numpy as np

from ...base.errors import ShapeError
from ...base.hooks import current_tracer
from ...base.origin import caller
from ...base.seeds import get_seed, next_draw
from ...ops.batch_norm import batch_normalization
from ...ops.conv import convolution
from ...ops.dropout import dropout_at, dropout_key
from ...ops.elementwise import bias_add
from ...ops.machine.state import training_step
from ...ops.spellings import function
from .convolutions import convolution_3d


@function()
def dropout(x, p=0.5, training=True, seed=None, step=None):
    """x with a share p of its elements set to 0, the others divided by 1 - p; x if not training.  x: (...) -> (...).

    seed  what makes this dropout's masks differ from another's; None: the line that calls
    step  number of the step; None: the training step of a compiled network. Outside of one no step is counted: give it,
          or use `nn.Dropout`, which does

    Form: mindspore.ops.dropout.
    """
    if not training:
        return x
    step = training_step() if step is None else step
    if step is None:
        what = "no step is given outside a compiled network"
        allowed = "step=0, 1, 2, ..., so that every call has a mask of its own"
        raise ShapeError(what, where="dropout", allowed=allowed, hint="nn.Dropout counts its calls itself")
    key = dropout_key(get_seed(), caller().place if seed is None else seed)
    return dropout_at(x, step, p=p, key=key)


def _of_channels(ndim):
    """A function that drops whole channels of tensors with `ndim` dims."""

    def channels(x, p=0.5, training=True, seed=None):
        if len(x.shape) != ndim:
            raise ShapeError(f"a tensor of shape {tuple(x.shape)}", where=channels.__name__, allowed=f"{ndim} dims")
        if not training:
            return x
        tracer = current_tracer.get()
        step = np.asarray(next_draw(), np.int64) if tracer is None else training_step()
        place = caller().place if seed is None else seed
        key = dropout_key(get_seed(), channels.__name__, place, 0 if tracer is None else len(tracer.nodes))
        return dropout_at(x, step, p=p, key=key, dims=2)

    channels.__name__ = channels.__qualname__ = f"dropout{ndim - 2}d"
    channels.__doc__ = (
        "Whole channels set to 0 with probability p, the others divided by 1 - p.  x: (n, c, ...) -> same."
    )
    return function(mint="functional.dropout2d" if ndim == 4 else "")(channels)


dropout1d, dropout2d, dropout3d = (_of_channels(ndim) for ndim in (3, 4, 5))


@function()
def conv2d(input, weight, bias=None, stride=1, pad_mode="valid", padding=0, dilation=1, groups=1):
    """Convolution.  input: (n, i, h, w), weight: (o, i / groups, kh, kw), bias: (o,) -> (n, o, oh, ow).

    padding  for pad_mode="pad": an int, (height, width) or (top, bottom, left, right)
    """
    out = convolution(input, weight, stride=stride, pad_mode=pad_mode, pad=padding, dilation=dilation, group=groups)
    return out if bias is None else bias_add(out, bias)


@function()
def conv3d(input, weight, bias=None, stride=1, pad_mode="valid", padding=0, dilation=1, groups=1):
    """Convolution.  input: (n, i, d, h, w), weight: (o, i / groups, kd, kh, kw), bias: (o,) -> (n, o, od, oh, ow).

    padding  for pad_mode="pad": an int, (depth, height, width) or (head, tail, top, bottom, left, right)
    """
    settings = {"stride": stride, "pad_mode": pad_mode, "pad": padding, "dilation": dilation, "group": groups}
    out = convolution_3d(input, weight, **settings)
    return out if bias is None else bias_add(out, bias)


@function()
def batch_norm(x, running_mean, running_var, weight, bias, training=False, momentum=0.1, eps=1e-5):
    """`BatchNorm`'s first result.  x: (n, c, ...), the others: (c,) -> (n, c, ...). Form: mindspore.ops.batch_norm."""
    attrs = {"is_training": training, "momentum": momentum, "epsilon": eps}
    return batch_normalization(x, weight, bias, running_mean, running_var, **attrs)[0]
