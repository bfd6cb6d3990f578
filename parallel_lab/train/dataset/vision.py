"""Operations on pictures, with MindSpore's names: rescale, normalize, change of layout.

A picture is an array (height, width) or (height, width, channels), usually uint8; HWC2CHW gives the layout networks
take. The pipeline of the lessons:

    operations = [Rescale(1 / 255, 0), Normalize((0.1307,), (0.3081,)), HWC2CHW()]

Every one can be called by hand as well. Crop, flip, resize and patches: `mindspore/_vision.py`.

    >>> HWC2CHW()(np.zeros((32, 30, 3), np.uint8)).shape
    (3, 32, 30)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...base.checks import Check, checked, fitting, flag, instance, number
from ...base.errors import ArgumentError, ShapeError, shorten
from .transforms import Transform

__all__ = ["HWC2CHW", "Normalize", "Rescale"]


def _read_numbers(values: Any) -> tuple[float, ...]:
    if not isinstance(values, (Sequence, np.ndarray)) or isinstance(values, str) or len(values) == 0:
        raise TypeError
    return tuple(number().read(value) for value in values)


PER_CHANNEL = Check("One number per channel, such as (0.1307,)", _read_numbers)


class Rescale(Transform):
    """data * rescale + shift, as float32.  Any shape -> the same shape.

    >>> Rescale(1 / 255, 0)(np.array([[0, 255]], np.uint8)).tolist()
    [[0.0, 1.0]]
    """

    @checked(rescale=number(), shift=number())
    def __init__(self, rescale: float, shift: float) -> None:
        self.rescale, self.shift = rescale, shift

    def apply(self, data: np.ndarray) -> np.ndarray:
        return numbers("Rescale", data).astype(np.float32) * np.float32(self.rescale) + np.float32(self.shift)


class Normalize(Transform):
    """(data - mean) / std per channel, as float32.  (..., h, w, c) -> the same shape; (h, w) counts as one channel.

    mean, std  one value per channel, or one for all; std above 0
    is_hwc     False: (c, h, w). Raises ShapeError when the channels do not fit.
    """

    @checked(mean=PER_CHANNEL, std=PER_CHANNEL, is_hwc=flag)
    def __init__(self, mean: Sequence[float], std: Sequence[float], is_hwc: bool = True) -> None:
        self.mean, self.std, self.is_hwc = mean, std, is_hwc
        if len(self.mean) != len(self.std):
            what = f"{len(self.mean)} means but {len(self.std)} stds"
            raise ArgumentError(what, where="Normalize", allowed="One of each per channel")
        if min(self.std) <= 0:
            raise ArgumentError(f"std={shorten(std)}", where="Normalize", allowed="Every std is above 0")

    def apply(self, data: np.ndarray) -> np.ndarray:
        if numbers("Normalize", data).ndim < 2:
            what = f"shape {data.shape}"
            raise ShapeError(what, where="Normalize", allowed="A picture: (height, width) or (height, width, channels)")
        channels = 1 if data.ndim == 2 else data.shape[-1 if self.is_hwc else -3]
        if len(self.mean) not in (1, channels):
            what = f"{len(self.mean)} means for {channels} channels (shape {data.shape})"
            layout = "(height, width, channels)" if self.is_hwc else "(channels, height, width)"
            raise ShapeError(what, where="Normalize", allowed=f"The picture is read as {layout}", hint="See is_hwc")
        mean, std = np.float32(self.mean), np.float32(self.std)
        if data.ndim == 2 or not self.is_hwc:
            mean, std = (mean[:, None, None], std[:, None, None]) if data.ndim > 2 else (mean[0], std[0])
        return (data.astype(np.float32) - mean) / std


class HWC2CHW(Transform):
    """Channels first.  (h, w, c) -> (c, h, w), same dtype; (h, w) stays as it is."""

    @fitting
    def __init__(self) -> None:
        super().__init__()

    def apply(self, data: np.ndarray) -> np.ndarray:
        image = picture("HWC2CHW", data)
        return image if image.ndim == 2 else np.ascontiguousarray(image.transpose(2, 0, 1))


def numbers(where: str, data: np.ndarray) -> np.ndarray:
    """An array of numbers. Raises ArgumentTypeError, ShapeError for another dtype."""
    data = instance(np.ndarray, "A numpy array")(where, "data", data)
    if data.dtype.kind not in "biuf":
        raise ShapeError(f"data of dtype {data.dtype}", where=where, allowed="Numbers")
    return data


def picture(where: str, data: np.ndarray) -> np.ndarray:
    """An array of two or three dims. Raises ArgumentTypeError, ShapeError."""
    if numbers(where, data).ndim not in (2, 3):
        hint = "Map pictures before batch()" if data.ndim == 4 else ""
        allowed = "A picture: (height, width) or (height, width, channels)"
        raise ShapeError(f"shape {data.shape}", where=where, allowed=allowed, hint=hint)
    return data
