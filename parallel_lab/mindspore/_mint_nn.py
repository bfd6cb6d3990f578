"""mindspore.mint.nn: convolutions, pools and normalisations in PyTorch's words; the other layers are in `_mint.py`.

mint.nn.functional.layer_norm(x, (16,))              weight and bias are ones and zeros unless given
mint.nn.Conv2d(3, 8, 3, padding=1)                   padding is a number, or "same"
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from .. import nn, ops
from ..base.checks import checked, flag, integer, misfit, number, sequence_of
from ..base.errors import ArgumentError, shorten
from ..catalog.nn.padding import _Pad, _pad
from ..nn.tensor.parameter import Parameter
from ..nn.tensor.tensor import Tensor
from ..ops.spellings import tensor_operand
from ._mint import kl_div, only

_SHAPE = sequence_of(integer(1), "An int, or a tuple of ints", one=True)


def _factors(weight: Any, bias: Any, shape: tuple[int, ...], like: Any) -> tuple[Any, Any]:
    """The weight and the bias of a normalisation: ones and zeros of `like`'s dtype where they are None."""
    ones = Tensor(np.ones(shape, str(like.dtype))) if weight is None else weight
    return ones, Tensor(np.zeros(shape, str(like.dtype))) if bias is None else bias


def _as_tuple(size: Any) -> tuple[int, ...]:
    return (size,) if isinstance(size, int) else tuple(size)


# ---- functions ----


def layer_norm(input: Any, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    """Normalised over the last dims.  input: (..., *normalized_shape), weight, bias: normalized_shape -> like input."""
    shape = _as_tuple(_SHAPE("layer_norm", "normalized_shape", normalized_shape))
    x = tensor_operand("layer_norm", "input", input)
    if tuple(x.shape[-len(shape) :]) != shape:  # said before ones of that shape are made
        given = f"normalized_shape {shorten(shape)}, input of shape {tuple(x.shape)}"
        raise ArgumentError(given, where="layer_norm", allowed="The input's last sizes")
    return ops.layer_norm(x, shape, *_factors(weight, bias, shape, x), eps)


def group_norm(input: Any, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    """Channels normalised in groups.  input: (n, c, ...), weight, bias: (c,) -> like input."""
    x = tensor_operand("group_norm", "input", input)
    factors = _factors(weight, bias, tuple(x.shape[1:2]), x)
    return ops.group_norm(x, *factors, num_groups=num_groups, epsilon=eps)


def rms_norm(input: Any, normalized_shape: Any, weight: Any, eps: float | None = None) -> Any:
    """input / sqrt(mean of its squares + eps) * weight over the last dims.  weight: normalized_shape -> like input."""
    x, shape = tensor_operand("rms_norm", "input", input), _as_tuple(_SHAPE("rms_norm", "shape", normalized_shape))
    if (given := tuple(tensor_operand("rms_norm", "weight", weight).shape)) != shape:
        what = f"a weight of shape {given}"
        raise ArgumentError(what, where="rms_norm", allowed=f"normalized_shape, {shape}")
    return ops.rms_norm(x, weight, float(np.finfo(str(x.dtype)).eps) if eps is None else eps)[0]


def batch_norm(
    input: Any,
    running_mean: Any,
    running_var: Any,
    weight: Any = None,
    bias: Any = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Any:
    """Channels normalised over the batch.  input: (n, c, ...), the others: (c,) -> like input."""
    x = tensor_operand("batch_norm", "input", input)
    factors = _factors(weight, bias, tuple(x.shape[1:2]), x)
    return ops.batch_norm(x, running_mean, running_var, *factors, training, momentum, eps)


def _convolution(name: str, form: str) -> Callable:
    def called(
        input: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1
    ) -> Any:
        mode, padding = (padding, 0) if isinstance(padding, str) else ("pad", padding)
        return getattr(ops, name)(input, weight, bias, stride, mode, padding, dilation, groups)

    called.__name__ = called.__qualname__ = name
    called.__doc__ = f"Convolution.  {form}. padding: an int, one per dim, 'same' or 'valid'."
    return called


conv2d = _convolution("conv2d", "input: (n, i, h, w), weight: (o, i / groups, kh, kw), bias: (o,) -> (n, o, oh, ow)")
conv3d = _convolution("conv3d", "input: (n, i, d, h, w), weight: (o, i / groups, kd, kh, kw) -> (n, o, od, oh, ow)")


def _behind(first: int, given: Any) -> tuple[int, ...]:
    """What holds for rows as pictures of height 1: (first, given), or (first, *given)."""
    return (first, *given) if isinstance(given, (tuple, list)) else (first, given)


def _pictures(where: str, **rows: Any) -> list[Any]:
    return [ops.expand_dims(tensor_operand(where, name, each), 2) for name, each in rows.items()]


def conv1d(
    input: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1
) -> Any:
    """Convolution of rows.  input: (n, i, l), weight: (o, i / groups, k), bias: (o,) -> (n, o, ol)."""
    sides = padding if isinstance(padding, str) else _behind(0, padding)
    step, holes = _behind(1, stride), _behind(1, dilation)
    return ops.squeeze(conv2d(*_pictures("conv1d", input=input, weight=weight), bias, step, sides, holes, groups), 2)


def _means(name: str, form: str) -> Callable:
    def called(
        input: Any,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Any:
        stride = kernel_size if stride is None else stride
        divisor = 0 if divisor_override is None else integer(1)(name, "divisor_override", divisor_override)
        return getattr(ops, name)(input, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor)

    called.__name__ = called.__qualname__ = name
    called.__doc__ = f"""Means of windows; the stride is the kernel's size unless given.  {form}.

    ceil_mode  a last window that begins inside counts;  divisor_override: what sums are divided by instead of the
               window's size
    """
    return called


avg_pool2d = _means("avg_pool2d", "input: (n, c, h, w) -> (n, c, oh, ow)")
avg_pool3d = _means("avg_pool3d", "input: (n, c, d, h, w) -> (n, c, od, oh, ow)")


def avg_pool1d(
    input: Any,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Any:
    """Means of windows of rows; the stride is the kernel's size unless given.  input: (n, c, l) -> (n, c, ol)."""
    step = _behind(1, kernel_size if stride is None else stride)
    window = _behind(1, kernel_size), step, _behind(0, padding), ceil_mode, count_include_pad
    return ops.squeeze(avg_pool2d(*_pictures("avg_pool1d", input=input), *window), 2)


def max_pool2d(
    input: Any,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """Largest elements of windows; the stride is the kernel's size unless given.  input: (n, c, h, w) -> the same dims.

    ceil_mode  a last window that begins inside counts;  dilation, return_indices: stay at their defaults
    """
    only("max_pool2d", dilation=(1 if dilation == (1, 1) else dilation, 1), return_indices=(return_indices, False))
    return ops.max_pool2d(input, kernel_size, stride, padding, ceil_mode=ceil_mode)


@checked("softplus", beta=number(0, above=True), threshold=number(0))
def softplus(input: Any, beta: float = 1, threshold: float = 20) -> Any:
    """log(1 + exp(beta * x)) / beta; x itself where beta * x is above the threshold.  input: (...) -> (...)."""
    scaled = input if beta == 1 else ops.mul(input, beta)
    smooth = ops.softplus(scaled) if beta == 1 else ops.div(ops.softplus(scaled), beta)
    # above 20 what is added to x is less than a float32 of that size can hold
    return smooth if threshold >= 20 else ops.select(ops.greater(scaled, threshold), input, smooth)


# ---- layers ----


class LayerNorm(nn.Cell):
    """Every sample normalised over its last dims.  input: (..., *normalized_shape) -> the same.

    elementwise_affine  whether there are a weight and, with `bias`, a bias that are trained

    Operator: `layer_norm` (LayerNorm).
    """

    @checked(normalized_shape=_SHAPE, eps=number(0, above=True), elementwise_affine=flag, bias=flag)
    def __init__(
        self,
        normalized_shape: Any,
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        shape, dtype = _as_tuple(normalized_shape), np.float32 if dtype is None else dtype
        self.weight = Parameter(Tensor(np.ones(shape), dtype), "weight", requires_grad=elementwise_affine)
        self.bias = Parameter(Tensor(np.zeros(shape), dtype), "bias", requires_grad=elementwise_affine and bias)
        self.layer_norm = ops.LayerNorm(-len(shape), -len(shape), eps)

    def construct(self, input: Any) -> Any:
        return self.layer_norm(input, self.weight, self.bias)[0]


def _layer(name: str, function: Callable, operands: int = 1) -> type[nn.Cell]:
    """`function` as a layer, which has its arguments behind the operands."""
    signature = inspect.signature(function)
    own = signature.replace(parameters=list(signature.parameters.values())[operands:])

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        nn.Cell.__init__(self)
        if fault := misfit(name, own, args, kwargs):
            raise fault
        self.settings = own.bind(*args, **kwargs).arguments

    def construct(self: Any, *inputs: Any) -> Any:
        return function(*inputs, **self.settings)

    members = {"__init__": __init__, "construct": construct, "__doc__": function.__doc__, "__module__": __name__}
    return type(name, (nn.Cell,), members)


AdaptiveAvgPool3d, Fold = _layer("AdaptiveAvgPool3d", ops.adaptive_avg_pool3d), _layer("Fold", ops.fold)
Softplus = _layer("Softplus", softplus)
KLDivLoss, Unfold = _layer("KLDivLoss", kl_div, 2), _layer("Unfold", ops.unfold)
ZeroPad1d, ZeroPad3d = (_pad(f"ZeroPad{d}d", _Pad, d, "constant", "zeros") for d in (1, 3))
