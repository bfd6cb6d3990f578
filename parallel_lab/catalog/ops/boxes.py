"""Boxes in pictures: (x0, y0, x1, y1) with both corners inside.

    iou(anchors (n, 4), truth (m, 4)) -> (m, n)              bounding_box_encode(anchors (n, 4), truth (n, 4)) -> (n, 4)

Boxes may be split, their four numbers not (MindSpore: IOU, BoundingBoxEncode). Crops of pictures are in `crops.py`.
"""

from __future__ import annotations

import numpy as np

from ...base.checks import choice, integer, number, sequence_of
from ...ops.elementwise import float_result
from ...ops.machine.operand_checks import floats
from ...ops.machine.registry import case, op


def _check_boxes(operands, count=4, **_):
    for each in operands:
        if len(each.shape) != 2 or each.shape[1] != count:
            return f"boxes of shape {each.shape}", f"(n, {count}): x0, y0, x1, y1" + ", score" * (count - 4)


def _check_encoded(operands, *, means, stds):
    if len(means) != 4 or len(stds) != 4 or 0 in stds:
        return f"means {means} and stds {stds}", "4 numbers each, stds other than 0"
    return _check_boxes(operands)


def _spans(boxes):
    """Middles and sizes.  boxes: (n, 4) -> two (n, 2). A box from 2 to 2 has the size 1."""
    first, last = boxes[:, :2], boxes[:, 2:]
    return (first + last) / 2, last - first + 1


_FOUR = sequence_of(number(), "4 numbers")


@op(
    "nz,nz->nz",
    name="BoundingBoxEncode",
    whole="z",
    attrs={"means": _FOUR, "stds": _FOUR},
    check=_check_encoded,
    dtype=float_result,
    flops=6,
    example=(case((16, 4), (16, 4), low=0.0, high=0.5, means=(0.1, 0.0, 0.2, 0.0), stds=(0.5, 1.0, 2.0, 1.0)),),
)
def bounding_box_encode(anchor_box, groundtruth_box, *, means=(0.0, 0.0, 0.0, 0.0), stds=(1.0, 1.0, 1.0, 1.0)):
    """Offsets of the true boxes from anchors: of the middles in anchor sizes, logarithms of the sizes' ratios; less the
    means, over the stds.  anchor_box, groundtruth_box: (n, 4) -> (n, 4). No gradient.
    """
    (middle, size), (wanted, true_size) = _spans(anchor_box), _spans(groundtruth_box)
    offsets = np.concatenate([(wanted - middle) / size, np.log(true_size / size)], axis=1)
    dtype = float_result((anchor_box.dtype, groundtruth_box.dtype))
    return ((offsets - np.asarray(means)) / np.asarray(stds)).astype(dtype)


def _check_decoded(operands, *, max_shape, means, stds, wh_ratio_clip):
    if max_shape is None or len(max_shape) != 2:
        return f"max_shape={max_shape}", "(height, width) of the picture"
    return _check_encoded(operands, means=means, stds=stds)


@op(
    "nz,nz->nz",
    name="BoundingBoxDecode",
    whole="z",
    attrs={
        "max_shape": sequence_of(integer(1), "(height, width)") | None,
        "means": _FOUR,
        "stds": _FOUR,
        "wh_ratio_clip": number(0, above=True),
    },
    check=_check_decoded,
    dtype=float_result,
    flops=8,
    example=(case((16, 4), (16, 4), low=0.0, high=0.9, max_shape=(20, 30), stds=(0.5, 1.0, 2.0, 1.0)),),
)
def bounding_box_decode(
    anchor_box, deltas, *, max_shape=None, means=(0.0, 0.0, 0.0, 0.0), stds=(1.0, 1.0, 1.0, 1.0), wh_ratio_clip=0.016
):
    """The boxes whose offsets from anchors are `deltas`, within a picture of max_shape; undoes `bounding_box_encode`.

    anchor_box, deltas: (n, 4) -> (n, 4). Sizes change by a factor of wh_ratio_clip at most. No gradient.
    """
    (middle, size), most = _spans(anchor_box), abs(np.log(wh_ratio_clip))
    offsets = deltas * np.asarray(stds) + np.asarray(means)
    middle = middle + size * offsets[:, :2]
    reach = size * np.exp(np.clip(offsets[:, 2:], -most, most)) / 2 - 0.5
    limits = np.asarray(max_shape[::-1] * 2) - 1
    made = np.clip(np.concatenate([middle - reach, middle + reach], axis=1), 0, limits)
    return made.astype(float_result((anchor_box.dtype, deltas.dtype)))


def _check_valid(operands, **_):
    if operands[1].shape != (3,):
        return f"img_metas of shape {operands[1].shape}", "(3,): height, width, ratio"
    return _check_boxes(operands[:1])


@op(
    "nz,k->n",
    name="CheckValid",
    whole="zk",
    check=_check_valid,
    dtype="bool",
    reduce="same",
    flops=4,
    example=(case((16, 4), (3,), low=0.0, high=2.0),),
)
def check_valid(bboxes, img_metas):
    """Which boxes lie within a picture.  bboxes: (n, 4), img_metas: (3,) height, width, ratio of both -> (n,) bool."""
    height, width, ratio = img_metas
    last = np.array([width * ratio - 1, height * ratio - 1])
    return ((bboxes[:, :2] >= 0) & (bboxes[:, 2:] <= last)).all(axis=1)


@op(
    "nz,mz->mn",
    name="IOU",
    whole="z",
    attrs={"mode": choice("iou", "iof")},
    check=_check_boxes,
    dtype=float_result,
    flops=4,
    example=(case((16, 4), (8, 4), low=0.0, high=5.0), case((8, 4), (16, 4), low=0.0, high=5.0, mode="iof")),
)
def iou(anchor_boxes, gt_boxes, *, mode="iou"):
    """Overlap of every true box with every anchor, over the area of both together ("iof": over that of the true box).

    anchor_boxes: (n, 4), gt_boxes: (m, 4) -> (m, n). No gradient.
    """
    first = np.maximum(gt_boxes[:, None, :2], anchor_boxes[None, :, :2])
    last = np.minimum(gt_boxes[:, None, 2:], anchor_boxes[None, :, 2:])
    overlap = np.maximum(last - first + 1, 0).prod(axis=-1)
    true, anchor = (_spans(boxes)[1].prod(axis=1) for boxes in (gt_boxes, anchor_boxes))
    total = true[:, None] + anchor - overlap if mode == "iou" else np.broadcast_to(true[:, None], overlap.shape)
    return (overlap / total).astype(float_result((anchor_boxes.dtype, gt_boxes.dtype)))


@op(
    "nz->nz,n,n",
    name="NMSWithMask",
    whole="nz",
    attrs={"iou_threshold": number()},
    check=lambda operands, **_: _check_boxes(operands, 5) or floats(operands[0], "bboxes"),
    dtype=(0, "int32", "bool"),
    flops=lambda s: 8 * s.n * s.n,
    example=case((16, 5), low=0.0, high=4.0, iou_threshold=0.1),
)
def nms_with_mask(bboxes, *, iou_threshold=0.5):
    """Boxes by falling score, and which of them no better one that is kept overlaps by more than iou_threshold.

    bboxes: (n, 5), with scores -> (n, 5), (n,) int32: 0 to n - 1, (n,) bool. From 2 to 2 is empty here. No gradient.
    """
    boxes = bboxes[np.argsort(-bboxes[:, 4], kind="stable")]
    first, last, kept = boxes[:, :2], boxes[:, 2:4], np.ones(len(boxes), bool)
    areas = (last - first).prod(axis=1)
    for i in range(len(boxes) - 1):
        if kept[i]:
            sides = np.minimum(last[i], last[i + 1 :]) - np.maximum(first[i], first[i + 1 :])
            overlap = np.maximum(sides, 0).prod(axis=1)
            with np.errstate(invalid="ignore", divide="ignore"):  # empty boxes: not a number is not above
                kept[i + 1 :] &= ~(overlap / (areas[i] + areas[i + 1 :] - overlap) > iou_threshold)
    return boxes, np.arange(len(boxes), dtype=np.int32), kept
