"""mindspore.mint.nn: convolutions, pools and normalisations in PyTorch's words; the other layers are in `_mint.py`.

mint.nn.functional.layer_norm(x, (16,))              weight and bias are ones and zeros unless given
mint.nn.Conv2d(3, 8, 3, padding=1)                   padding is a number, or "same"
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import nn, ops
from ..base.checks import checked, flag, integer, number, sequence_of
from ..base.errors import ArgumentError, NotBuiltYet, shorten
from ..nn.tensor.parameter import Parameter
from ..nn.tensor.tensor import Tensor
from ..ops.spellings import tensor_operand

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


def conv2d(
    input: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1
) -> Any:
    """Convolution.  input: (n, i, h, w), weight: (o, i / groups, kh, kw), bias: (o,) -> (n, o, oh, ow).

    padding  an int, (height, width), "same" or "valid"
    """
    mode, padding = (padding, 0) if isinstance(padding, str) else ("pad", padding)
    return ops.conv2d(input, weight, bias, stride, mode, padding, dilation, groups)


def _only(where: str, **given: tuple[Any, Any]) -> None:
    """Arguments of PyTorch's that keep their default: name=(given, the default)."""
    for name, (value, default) in given.items():
        if value != default or isinstance(value, bool) != isinstance(default, bool):
            raise NotBuiltYet(f"{name}={shorten(value)}", where=where, allowed=repr(default), hint=f"Omit {name}")


def avg_pool2d(
    input: Any,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Any:
    """Means of windows; the stride is the kernel's size unless given.  input: (n, c, h, w) -> (n, c, oh, ow).

    ceil_mode  a last window that begins inside counts;  divisor_override: what sums are divided by instead of the
               window's size
    """
    stride = kernel_size if stride is None else stride
    divisor = 0 if divisor_override is None else integer(1)("avg_pool2d", "divisor_override", divisor_override)
    return ops.avg_pool2d(input, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor)


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
    _only("max_pool2d", dilation=(1 if dilation == (1, 1) else dilation, 1), return_indices=(return_indices, False))
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


class Conv2d(nn.Conv2d):
    """`nn.Conv2d` in PyTorch's words: padding is an int, (height, width), "same" or "valid"; groups, bias."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Any,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        dtype: Any = None,
    ) -> None:
        _only("Conv2d", padding_mode=(padding_mode, "zeros"))
        mode, padding = (padding, 0) if isinstance(padding, str) else ("pad", padding)
        if isinstance(padding, (tuple, list)) and len(padding) == 2:
            padding = (padding[0], padding[0], padding[1], padding[1])
        more = {} if dtype is None else {"dtype": dtype}
        pads = {"pad_mode": mode, "padding": padding}
        given = {"stride": stride, **pads, "dilation": dilation, "group": groups, "has_bias": bias, **more}
        super().__init__(in_channels, out_channels, kernel_size, **given)


class MaxPool2d(nn.MaxPool2d):
    """`nn.MaxPool2d`; the stride is the kernel's size unless given."""

    def __init__(
        self,
        kernel_size: Any = 1,
        stride: Any = None,
        padding: Any = 0,
        dilation: Any = 1,
        return_indices: bool = False,
        ceil_mode: bool = False,
    ) -> None:
        stride = kernel_size if stride is None else stride
        super().__init__(kernel_size, stride, "pad", padding, dilation, return_indices, ceil_mode)


class AvgPool2d(nn.AvgPool2d):
    """`nn.AvgPool2d`; the stride is the kernel's size unless given."""

    def __init__(
        self,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> None:
        stride = kernel_size if stride is None else stride
        super().__init__(kernel_size, stride, "pad", padding, ceil_mode, count_include_pad, divisor_override)


class BatchNorm2d(nn.BatchNorm2d):
    """`nn.BatchNorm2d`, whose momentum is here the share of the new batch: 0.1 for MindSpore's 0.9.

    track_running_stats  False: the statistics of the batch in evaluation, too
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        dtype: Any = None,
    ) -> None:
        share = number(0, 1)("BatchNorm2d", "momentum", momentum)
        tracked = None if flag("BatchNorm2d", "track_running_stats", track_running_stats) else True
        more = {"use_batch_statistics": tracked, "dtype": np.float32 if dtype is None else dtype}
        super().__init__(num_features, eps=eps, momentum=1 - share, affine=affine, **more)


class GroupNorm(nn.GroupNorm):
    """`nn.GroupNorm`, without its initial values."""

    def __init__(
        self, num_groups: int, num_channels: int, eps: float = 1e-5, affine: bool = True, dtype: Any = None
    ) -> None:
        super().__init__(num_groups, num_channels, eps, affine, dtype=np.float32 if dtype is None else dtype)


class Softplus(nn.Cell):
    """`softplus` as a layer.  input: (...) -> (...)."""

    @checked(beta=number(0, above=True), threshold=number(0))
    def __init__(self, beta: float = 1, threshold: float = 20) -> None:
        super().__init__()
        self.beta, self.threshold = beta, threshold

    def construct(self, input: Any) -> Any:
        return softplus(input, self.beta, self.threshold)
