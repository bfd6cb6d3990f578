"""Operations on pictures that no lesson uses: crop, flip, resize, patches. The others: `train/dataset/vision.py`.

The pipeline of the data-parallel tutorial:

    operations = [RandomCrop((32, 32), (4, 4, 4, 4)), RandomHorizontalFlip(), Resize((224, 224)),
                  Rescale(1 / 255, 0), Normalize((0.4465, 0.4822, 0.4914), (0.2010, 0.1994, 0.2023)), HWC2CHW()]
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from functools import lru_cache
from typing import Any

import numpy as np

from ..base.checks import Check, checked, flag, integer, number, sequence_of
from ..base.errors import ArgumentError, ShapeError, shorten
from ..train.dataset.checks import at_least, member
from ..train.dataset.transforms import RandomTransform, Transform
from ..train.dataset.vision import HWC2CHW, Normalize, Rescale, picture

__all__ = [
    "Border",
    "HWC2CHW",
    "Inter",
    "Normalize",
    "RandomCrop",
    "RandomHorizontalFlip",
    "Rescale",
    "Resize",
    "SliceMode",
    "SlicePatches",
]


class _Named(Enum):
    @classmethod
    def _missing_(cls, value: object) -> Any:
        names = ", ".join(f"{cls.__name__}.{each.name}" for each in cls)
        raise ArgumentError(f"{cls.__name__}({shorten(value)})", allowed=f"One of {names}")


class Inter(_Named):
    """How Resize fills in: the nearest pixel, or a straight line between neighbours (BILINEAR and LINEAR are one). It
    refuses the others.
    """

    NEAREST = 0
    ANTIALIAS = 1
    BILINEAR = 2
    LINEAR = 2
    BICUBIC = 3
    CUBIC = 3
    AREA = 4
    PILCUBIC = 5


class Border(_Named):
    """What surrounds a picture: one value, its edge, its mirror image without or with (SYMMETRIC) the edge twice."""

    CONSTANT = "constant"
    EDGE = "edge"
    REFLECT = "reflect"
    SYMMETRIC = "symmetric"


class SliceMode(_Named):
    """When patches do not divide the picture: fill up at the right and bottom, or drop the rest."""

    PAD = 0
    DROP = 1


def _read_size(size: Any) -> tuple[int, int]:
    values = (size, size) if isinstance(size, (int, np.integer)) else size
    if not isinstance(values, Sequence) or len(values) != 2:
        raise TypeError
    return at_least(1).read(values[0]), at_least(1).read(values[1])


def _read_padding(padding: Any) -> tuple[int, ...]:
    values = (padding,) * 4 if isinstance(padding, (int, np.integer)) else padding
    if not isinstance(values, Sequence) or len(values) not in (2, 4):
        raise TypeError
    return tuple(at_least(0).read(value) for value in values) * (4 // len(values))


SIZE = Check("An int, or (height, width), each at least 1", _read_size)
PADDING = Check(
    "An int, (left and right, top and bottom), or (left, top, right, bottom), each at least 0", _read_padding
)
FILL = sequence_of(integer(0, 255), "An int from 0 to 255, or one per channel", one=True)


class RandomCrop(RandomTransform):
    """A window of `size` at a random place.  (h, w[, c]) -> (size[0], size[1][, c]), any dtype.

    size           height and width, or one int for both
    padding        pixels put around first: one int, (left and right, top and bottom), or (left, top, right, bottom)
    pad_if_needed  a picture that is still smaller than `size` is padded evenly until it is not
    fill_value     an int from 0 to 255, or one per channel, for Border.CONSTANT
    padding_mode   a Border

    Raises ShapeError when the padded picture is smaller than `size`.
    """

    @checked(size=SIZE, padding=PADDING | None, pad_if_needed=flag, padding_mode=member(Border))
    def __init__(
        self,
        size: int | Sequence[int],
        padding: int | Sequence[int] | None = None,
        pad_if_needed: bool = False,
        fill_value: int | Sequence[int] = 0,
        padding_mode: Border | str = Border.CONSTANT,
    ) -> None:
        self.size, self.padding = size, padding or (0, 0, 0, 0)
        self.pad_if_needed, self.padding_mode = pad_if_needed, padding_mode
        self.fill_value = FILL("RandomCrop", "fill_value", fill_value)

    def apply(self, data: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        image = picture("RandomCrop", data)
        left, top, right, bottom = self.padding
        if self.pad_if_needed:
            missing_h = max(0, self.size[0] - image.shape[0] - top - bottom)
            missing_w = max(0, self.size[1] - image.shape[1] - left - right)
            top, bottom = top + missing_h // 2, bottom + missing_h - missing_h // 2
            left, right = left + missing_w // 2, right + missing_w - missing_w // 2
        if left or top or right or bottom:
            image = self._padded(image, ((top, bottom), (left, right)))
        rest_h, rest_w = image.shape[0] - self.size[0], image.shape[1] - self.size[1]
        if rest_h < 0 or rest_w < 0:
            what = f"the padded picture is {image.shape[0]}x{image.shape[1]}, smaller than size {self.size}"
            raise ShapeError(what, where="RandomCrop", hint="Use a smaller size, more padding, or pad_if_needed=True")
        y, x = int(rng.integers(rest_h + 1)), int(rng.integers(rest_w + 1))
        return image[y : y + self.size[0], x : x + self.size[1]]

    def _padded(self, image: np.ndarray, widths: tuple[tuple[int, int], tuple[int, int]]) -> np.ndarray:
        if self.padding_mode is not Border.CONSTANT:
            return np.pad(image, [*widths, *[(0, 0)] * (image.ndim - 2)], mode=self.padding_mode.value)
        channels = image.shape[2] if image.ndim == 3 else 1
        if len(self.fill_value) not in (1, channels):
            what = f"fill_value has {len(self.fill_value)} values, the picture has {channels} channels"
            raise ShapeError(what, where="RandomCrop", allowed="One value, or one per channel")
        (top, bottom), (left, right) = widths
        h, w = image.shape[:2]
        padded = np.empty((top + h + bottom, left + w + right, *image.shape[2:]), image.dtype)
        padded[...] = self.fill_value if image.ndim == 3 else self.fill_value[0]
        padded[top : top + h, left : left + w] = image
        return padded


class RandomHorizontalFlip(RandomTransform):
    """The mirror image, left for right, with probability `prob`.  (h, w[, c]) -> the same shape and dtype."""

    @checked(prob=number(0.0, 1.0))
    def __init__(self, prob: float = 0.5) -> None:
        self.prob = prob

    def apply(self, data: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        image = picture("RandomHorizontalFlip", data)
        return image[:, ::-1] if rng.random() < self.prob else image  # random() is below 1: prob 1 always flips


class Resize(Transform):
    """Another height and width.  (h, w[, c]) -> (size[0], size[1][, c]), same dtype.

    size           height and width; one int: the shorter side, proportions kept (the longer is rounded down)
    interpolation  Inter.BILINEAR (= LINEAR) or Inter.NEAREST

    Bilinear with half-pixel centres, the rule of OpenCV's INTER_LINEAR, which MindSpore's Resize calls for arrays:
    output pixel i lies at (i + 1/2) * h / size - 1/2, edge pixels go on beyond the edge, without smoothing when
    it shrinks (Pillow smooths then, and rounds twice). Integer pictures are computed exactly and rounded half up, so
    that every machine has the same bytes; OpenCV's fixed-point weights can differ from that by one grey level. NEAREST
    takes pixel floor(i * h / size), as OpenCV does.
    """

    @checked(interpolation=member(Inter))
    def __init__(self, size: int | Sequence[int], interpolation: Inter | str = Inter.LINEAR) -> None:
        if interpolation not in (Inter.NEAREST, Inter.LINEAR):
            raise ArgumentError(str(interpolation), where="Resize", allowed="Inter.NEAREST or Inter.LINEAR")
        one_side = isinstance(size, (int, np.integer))
        self.size = at_least(1)("Resize", "size", size) if one_side else SIZE("Resize", "size", size)
        self.interpolation = interpolation

    def apply(self, data: np.ndarray) -> np.ndarray:
        image = picture("Resize", data)
        h, w = image.shape[:2]
        if 0 in image.shape:
            raise ShapeError(f"an empty picture, shape {image.shape}", where="Resize", allowed="At least one pixel")
        if isinstance(self.size, tuple):
            size = self.size
        else:
            size = (self.size, max(1, w * self.size // h)) if h <= w else (max(1, h * self.size // w), self.size)
        if (h, w) == size:
            return image
        if self.interpolation is Inter.NEAREST:
            return image[np.arange(size[0]) * h // size[0]][:, np.arange(size[1]) * w // size[1]]
        if image.dtype.kind in "biu" and image.dtype.itemsize <= 4:
            # 255 * 4 * size[0] * size[1] has to fit; int32 halves the time
            work = np.dtype(np.int32 if image.dtype.itemsize == 1 and size[0] * size[1] < 2**20 else np.int64)
        elif image.dtype in (np.float16, np.float32, np.float64):
            work = np.promote_types(image.dtype, np.float32)
        else:
            what = f"a picture of dtype {image.dtype}"
            raise ShapeError(what, where="Resize", allowed="Integers of up to 32 bits, or floats")
        # each direction gives 2 * size times the interpolated value: exact in integers, and divided once
        sums, unit = _line(_line(image.astype(work), size[0], 0), size[1], 1), 4 * size[0] * size[1]
        return ((sums + unit // 2) // unit if work.kind == "i" else sums / work.type(unit)).astype(image.dtype)


class SlicePatches(Transform):
    """Split into num_height x num_width patches, by rows.  (h, w[, c]) -> a tuple of patches of equal shape.

    slice_mode  SliceMode.PAD: a patch has ceil(h / num_height) rows, `fill_value` fills up at the bottom and right;
                SliceMode.DROP: floor(h / num_height) rows, the rest is dropped; columns likewise;  fill_value: 0 to 255

    In `map` each patch is a column: `output_columns` names them. Raises ShapeError: more patches than pixels.
    """

    @checked(num_height=at_least(1), num_width=at_least(1), slice_mode=member(SliceMode), fill_value=integer(0, 255))
    def __init__(
        self, num_height: int = 1, num_width: int = 1, slice_mode: SliceMode | str = SliceMode.PAD, fill_value: int = 0
    ) -> None:
        self.num_height, self.num_width = num_height, num_width
        self.slice_mode, self.fill_value = slice_mode, fill_value

    def apply(self, data: np.ndarray) -> tuple[np.ndarray, ...]:
        image = picture("SlicePatches", data)
        h, w = image.shape[:2]
        if self.num_height > h or self.num_width > w:
            what = f"{self.num_height}x{self.num_width} patches of a picture {h}x{w}"
            raise ShapeError(what, where="SlicePatches", allowed="At most as many patches as pixels in each direction")
        patch_h, patch_w = h // self.num_height, w // self.num_width
        if self.slice_mode is SliceMode.PAD:
            patch_h, patch_w = -(-h // self.num_height), -(-w // self.num_width)
            full_h, full_w = patch_h * self.num_height, patch_w * self.num_width
            if (full_h, full_w) != (h, w):
                full = np.full((full_h, full_w, *image.shape[2:]), self.fill_value, image.dtype)
                full[:h, :w] = image
                image = full
        rows = [image[row * patch_h : (row + 1) * patch_h] for row in range(self.num_height)]
        return tuple(row[:, i * patch_w : (i + 1) * patch_w] for row in rows for i in range(self.num_width))


@lru_cache(maxsize=64)
def _taps(source: int, target: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Per output: the two inputs it lies between, and its distance from the first in units of 1/(2 * target) pixel."""
    # (i + 1/2) * source / target - 1/2
    place = np.clip((2 * np.arange(target) + 1) * source - target, 0, 2 * target * (source - 1))
    low = place // (2 * target)
    return low, np.minimum(low + 1, source - 1), place - low * (2 * target)


def _line(image: np.ndarray, target: int, axis: int) -> np.ndarray:
    """2 * target times the bilinear interpolation of `image` along `axis`, in its own dtype."""
    low, high, part = _taps(image.shape[axis], target)
    part = part.astype(image.dtype).reshape([-1 if dim == axis else 1 for dim in range(image.ndim)])
    return np.take(image, low, axis) * (image.dtype.type(2 * target) - part) + np.take(image, high, axis) * part
