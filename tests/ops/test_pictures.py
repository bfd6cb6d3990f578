"""Crops, regions, resized and sampled pictures: MindSpore's documented examples, loops written out, refusals.

Every legal strategy, and gradients against finite differences, are in the battery (test_battery.py, test_eager.py).
"""

import math

import numpy as np
import pytest
from numpy.lib.stride_tricks import sliding_window_view

from parallel_lab import ShapeError, ops
from tests.crossed import each_of
from tests.refusals import refused


def bilinear(picture, row, column):
    """The value between the elements of (h, w) at a place inside."""
    y, x = math.floor(row), math.floor(column)
    below, right = min(y + 1, picture.shape[0] - 1), min(x + 1, picture.shape[1] - 1)
    top = picture[y, x] * (1 - (column - x)) + picture[y, right] * (column - x)
    bottom = picture[below, x] * (1 - (column - x)) + picture[below, right] * (column - x)
    return top * (1 - (row - y)) + bottom * (row - y)


def test_a_crop_is_interpolated_between_the_corners_of_its_box(rng):
    x = rng.normal(size=(2, 5, 7, 1))
    y0, x0, y1, x1 = box = 0.1, 0.7, 0.8, 0.2  # from right to left
    found = ops.crop_and_resize(x, np.array([box]), np.array([1]), (3, 4))
    for r in range(3):
        for c in range(4):
            row, column = (y0 + (y1 - y0) * r / 2) * 4, (x0 + (x1 - x0) * c / 3) * 6
            assert found[0, r, c, 0] == pytest.approx(bilinear(x[1, :, :, 0], row, column))


def test_a_crop_of_one_row_is_of_the_middle_and_outside_stands_the_given_value(rng):
    x = rng.normal(size=(1, 5, 5, 2))
    boxes = np.array([[0.25, 0.0, 0.75, 2.0]])
    found = ops.crop_and_resize(x, boxes, np.array([0]), (1, 3), extrapolation_value=7.0)
    np.testing.assert_allclose(found[0, 0], [x[0, 2, 0], x[0, 2, 4], [7, 7]])


def test_the_nearest_element_is_taken_if_asked_for(rng):
    x = rng.normal(size=(1, 5, 5, 1))
    found = ops.crop_and_resize(x, np.array([[0.0, 0.1, 1.0, 0.6]]), np.array([0]), (2, 2), method="nearest")
    np.testing.assert_array_equal(found[0, :, :, 0], x[0, [0, 4]][:, [0, 2], 0])


def test_regions_are_mindspores_example():
    """ROIAlign(2, 2, 0.5, 2) of a 2 x 2 picture."""
    rois = np.array([[0, 0.2, 0.3, 0.2, 0.3]], np.float32)
    how = {"pooled_height": 2, "pooled_width": 2, "spatial_scale": 0.5, "sample_num": 2}
    found = ops.roi_align(np.array([[[[1.0, 2], [3, 4]]]], np.float32), rois, **how)
    np.testing.assert_allclose(found, [[[[1.775, 2.025], [2.275, 2.525]]]], rtol=1e-6)


def test_a_region_without_the_last_element_is_at_least_one_long(rng):
    """roi_end_mode 0; its samples are at a quarter and three quarters of each half."""
    x = rng.normal(size=(1, 1, 4, 4))
    how = {"pooled_height": 1, "pooled_width": 2, "spatial_scale": 1.0, "roi_end_mode": 0}
    found = ops.roi_align(x, np.array([[0, 1.0, 1, 1.5, 2]]), **how)
    for half in (0, 1):
        places = [(1 + r, 1 + 0.5 * half + c) for r in (0.25, 0.75) for c in (0.125, 0.375)]
        assert found[0, 0, 0, half] == pytest.approx(np.mean([bilinear(x[0, 0], *place) for place in places]))


def test_resized_pictures_are_mindspores_example():
    """Five columns and two rows to 5 x 5: the rows are equal."""
    found = ops.resize_bilinear(np.array([[[[1.0, 2, 3, 4, 5], [1, 2, 3, 4, 5]]]]), size=(5, 5))
    np.testing.assert_allclose(found[0, 0], [[1, 2, 3, 4, 5]] * 5)


HOW = {"corners": {"align_corners": True}, "middles": {"half_pixel_centers": True}, "plain": {}}


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("size", [(3, 4), (8, 14), (1, 5)], ids=str)
def test_a_resized_picture_is_interpolated(how, size, rng):
    x = rng.normal(size=(1, 1, 5, 7))
    found = ops.resize_bilinear(x, size=size, **HOW[how])

    def place(i, before, after):
        if how == "corners":
            return i * (before - 1) / max(after - 1, 1)
        return max((i + 0.5) * before / after - 0.5, 0) if how == "middles" else i * before / after

    for r in range(size[0]):
        for c in range(size[1]):
            row, column = min(place(r, 5, size[0]), 4), min(place(c, 7, size[1]), 6)
            assert found[0, 0, r, c] == pytest.approx(bilinear(x[0, 0], row, column))


def test_a_grid_of_the_elements_themselves_gives_the_picture(rng):
    x = rng.normal(size=(2, 3, 4, 5))
    rows, columns = np.meshgrid(np.linspace(-1, 1, 4), np.linspace(-1, 1, 5), indexing="ij")
    grid = np.tile(np.stack([columns, rows], axis=-1), (2, 1, 1, 1))
    for padding in ("zeros", "border", "reflection"):
        np.testing.assert_allclose(ops.grid_sample(x, grid, "bilinear", padding, True), x, atol=1e-12)


@each_of(
    ("padding", "expected"),
    ("zeros", [2, 0, 0.5]),  # half of the last element; too far away; half of the first
    ("border", [4, 4, 1]),
    ("reflection", [4, 3, 1]),
)
def test_what_lies_outside_of_a_sampled_picture(padding, expected):
    """In a row 1, 2, 3, 4: its two borders, and 1.5 elements beyond the last, which is 1.5 before it if reflected."""
    grid = np.stack([[1.0, 1.75, -1.0], np.zeros(3)], axis=-1).reshape(1, 1, 3, 2)
    found = ops.grid_sample(np.array([[[[1.0, 2, 3, 4]]]]), grid, "bilinear", padding)
    assert found[0, 0, 0].tolist() == pytest.approx(expected)


def test_boxes_are_decoded_as_in_mindspores_example_and_undo_their_encoding(rng):
    anchors, deltas = np.array([[4.0, 1, 2, 1], [2, 2, 2, 3]]), np.array([[3.0, 1, 2, 2], [1, 2, 1, 4]])
    found = ops.bounding_box_decode(anchors, deltas, max_shape=(768, 1280))
    expected = [[4.1953125, 0, 0, 5.1953125], [2.140625, 0, 3.859375, 60.59375]]  # of float16
    np.testing.assert_allclose(found, expected, rtol=1e-3)
    corners = np.sort(rng.uniform(1, 40, (6, 2, 2)), axis=1).reshape(6, 4)
    truth = corners + rng.uniform(0, 1, (6, 4))
    encoded = ops.bounding_box_encode(corners, truth)
    np.testing.assert_allclose(ops.bounding_box_decode(corners, encoded, max_shape=(99, 99)), truth)


def test_boxes_within_a_picture_are_those_of_mindspores_example():
    boxes = np.linspace(0, 6, 12).reshape(3, 4)
    assert ops.check_valid(boxes, np.array([2.0, 1, 3])).tolist() == [True, False, False]


test_what_does_not_fit_is_refused_in_words = refused(
    (lambda: ops.crop_and_resize(np.ones((1, 2, 2, 1)), np.ones((1, 4)), np.zeros(1), (2, 2)), "must be ints"),
    (lambda: ops.crop_and_resize(np.ones((1, 2, 2, 1)), np.ones((1, 3)), np.zeros(1, int), (2, 2)), "boxes"),
    (
        lambda: ops.roi_align(
            np.ones((1, 1, 2, 2)), np.ones((1, 4)), pooled_height=1, pooled_width=1, spatial_scale=1.0
        ),
        "5",
    ),
    (
        lambda: ops.resize_bilinear(np.ones((1, 1, 2, 2)), size=(2, 2), align_corners=True, half_pixel_centers=True),
        "One",
    ),
    (lambda: ops.grid_sample(np.ones((1, 1, 2, 2)), np.ones((2, 1, 1, 2))), "grid of shape"),
    (lambda: ops.bounding_box_decode(np.ones((1, 4)), np.ones((1, 4))), "max_shape"),
    (lambda: ops.check_valid(np.ones((1, 4)), np.ones(2)), "img_metas"),
    error=ShapeError,
)


def test_channels_dealt_out_to_blocks_are_taken_back(rng):
    """MindSpore's DepthToSpace: channels 0, 3, 6 and 9 of 12 become one block; a pixel shuffle's are 0, 1, 2 and 3."""
    x = np.arange(12.0).reshape(1, 12, 1, 1)
    assert ops.depth_to_space(x, block_size=2)[0, 0].tolist() == [[0, 3], [6, 9]]
    assert ops.pixel_shuffle(x, 2)[0, 0].tolist() == [[0, 1], [2, 3]]
    y = rng.normal(size=(2, 8, 3, 5))
    assert (ops.space_to_depth(ops.depth_to_space(y, block_size=2), block_size=2) == y).all()
    assert (ops.pixel_unshuffle(ops.pixel_shuffle(y, 2), 2) == y).all()
    assert ops.channel_shuffle(y, 2)[:, :4, 0, 0].tolist() == y[:, [0, 4, 1, 5], 0, 0].tolist()


def test_interpolation_is_that_of_the_two_resizers(rng):
    x = rng.normal(size=(1, 2, 4, 6))
    np.testing.assert_array_equal(ops.interpolate(x, scale_factor=2), ops.resize_nearest_neighbor(x, size=(8, 12)))
    found = ops.interpolate(x, (3, 5), mode="bilinear", align_corners=True)
    np.testing.assert_allclose(found[..., 0, 0], x[..., 0, 0])
    np.testing.assert_allclose(found[..., 2, 4], x[..., 3, 5])
    with pytest.raises(ShapeError, match="one of size and scale_factor"):
        ops.interpolate(x)


# ---- boxes, nearest elements ----


def test_boxes_are_encoded_as_mindspores_documents_show():
    """The example of mindspore.ops.BoundingBoxEncode: a box from 2 to 2 has the size 1."""
    anchor, truth = np.array([[2.0, 2, 2, 3]] * 2), np.array([[1.0, 2, 1, 4]] * 2)
    np.testing.assert_allclose(ops.BoundingBoxEncode()(anchor, truth), [[-1, 0.25, 0, np.log(1.5)]] * 2)
    scaled = ops.BoundingBoxEncode(means=(1.0, 0.25, 0.0, 0.0), stds=(2.0, 1.0, 1.0, 0.5))(anchor, truth)
    np.testing.assert_allclose(scaled, [[-1, 0, 0, 2 * np.log(1.5)]] * 2)


def test_overlap_of_boxes():
    """3 x 3 pixels and 2 x 2 that share 4, 1 and none."""
    anchors = np.array([[1.0, 1, 2, 2], [2, 2, 3, 3], [7, 7, 8, 8]])
    np.testing.assert_allclose(ops.IOU()(anchors, np.array([[0.0, 0, 2, 2]])), [[4 / 9, 1 / 12, 0]])
    np.testing.assert_allclose(ops.IOU("iof")(anchors, np.array([[0.0, 0, 2, 2]])), [[4 / 9, 1 / 9, 0]])


def test_boxes_that_better_ones_overlap_are_masked():
    """MindSpore's example; equal scores stay in order, an empty box overlaps none."""
    boxes = np.array([[100, 100, 150, 168, 0.63], [150, 75, 315, 190, 0.55], [12, 190, 300, 390, 0.9]])
    boxes = np.append(boxes, [[28, 130, 134, 302, 0.3], [28, 130, 28, 302, 0.3], [28, 130, 28, 302, 0.3]], axis=0)
    found, numbers, kept = ops.NMSWithMask(0.1)(boxes)
    np.testing.assert_array_equal(found, boxes[[2, 0, 1, 3, 4, 5]])
    assert (numbers.tolist(), kept.tolist()) == ([*range(6)], [True, True, True, False, True, True])
    assert ops.NMSWithMask(0.2)(boxes)[2].all()  # 106 x 112 of both, which are 63,960


def test_pictures_of_another_size():
    x = np.arange(6.0).reshape(1, 1, 2, 3)
    grown = ops.ResizeNearestNeighbor((4, 6))(x)
    np.testing.assert_array_equal(grown, x.repeat(2, 2).repeat(2, 3))
    corners = ops.ResizeNearestNeighbor((3, 2), align_corners=True)(x)
    np.testing.assert_array_equal(corners[0, 0], [[0, 2], [3, 5], [3, 5]])
    with pytest.raises(ShapeError, match=r"ResizeNearestNeighbor: size \(4,\)"):
        ops.ResizeNearestNeighbor((4,))(x)


def test_patches_are_columns_in_the_order_of_channels_rows_and_columns(rng):
    """PyTorch's order, which is MindSpore's of ops.unfold; `fold` adds up what windows share."""
    x = rng.normal(size=(2, 3, 5, 6))
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (2, 2)))
    under = sliding_window_view(padded, (3, 3), (2, 3))[:, :, ::2, ::3, ::2, :]  # rows 2 apart, columns 1
    columns = under.transpose(0, 1, 4, 5, 2, 3).reshape(2, 18, -1)
    window = {"kernel_size": [2, 3], "dilation": (2, 1), "padding": (1, 2), "stride": (2, 3)}
    np.testing.assert_array_equal(ops.unfold(x, **window), columns)
    times = np.zeros_like(padded)
    for row in range(0, under.shape[2] * 2, 2):
        for column in range(0, under.shape[3] * 3, 3):
            times[:, :, row : row + 3 : 2, column : column + 3] += 1
    for size in ((5, 6), [5, 6], np.array([5, 6])):
        np.testing.assert_allclose(ops.fold(columns, size, **window), x * times[:, :, 1:-1, 2:-2], rtol=1e-12)


test_patches_that_do_not_fit_are_refused = refused(
    (lambda: ops.unfold(np.ones((2, 3, 4)), 2), ShapeError, r"Im2Col.*\(n, c, h, w\)"),
    (lambda: ops.unfold(np.ones((1, 1, 2, 2)), 3), ShapeError, "Im2Col.*covers 3 x 3"),
    (lambda: ops.unfold(np.ones((1, 1, 2, 2)), 0), ShapeError, "ksizes=0.*at least 1"),
    (lambda: ops.fold(np.ones((1, 5, 4)), (3, 3), 2), ShapeError, r"fold.*\(n, c \* 4, windows\)"),
    (lambda: ops.fold(np.ones((1, 4, 5)), (3, 3), 2), ShapeError, r"Col2Im.*\(n, c, 4, 4\) for pictures of \(3, 3\)"),
)
