"""Operations on pictures against formulas written out pixel by pixel."""

import math
from fractions import Fraction

import numpy as np
import pytest

import parallel_lab.mindspore._vision as vision
from parallel_lab.base.errors import ArgumentError, ArgumentTypeError, ShapeError
from parallel_lab.mindspore._vision import (
    HWC2CHW,
    Border,
    Inter,
    Normalize,
    RandomCrop,
    RandomHorizontalFlip,
    Rescale,
    Resize,
    SliceMode,
    SlicePatches,
)
from parallel_lab.nn.tensor.tensor import Tensor
from parallel_lab.train.dataset import NumpySlicesDataset
from parallel_lab.train.dataset.transforms import Compose, RandomTransform, TypeCast, keyed_generator
from tests.crossed import each_of
from tests.refusals import refused


def picture(rng, *shape):
    return rng.integers(0, 256, shape).astype(np.uint8)


# ---- Resize ----


def bilinear(image, size):
    """The definition per output pixel: half-pixel centres, repeated edges, no smoothing. Integers: exact fractions."""
    h, w = image.shape[:2]
    image = image.astype(object)

    def neighbours(i, source, target):
        place = min(max(Fraction(2 * i + 1, 2) * source / target - Fraction(1, 2), Fraction(0)), Fraction(source - 1))
        low = math.floor(place)
        return low, min(low + 1, source - 1), place - low

    out = np.zeros((*size, *image.shape[2:]), object)
    for i in range(size[0]):
        top, bottom, y = neighbours(i, h, size[0])
        for j in range(size[1]):
            left, right, x = neighbours(j, w, size[1])
            upper = image[top, left] * (1 - x) + image[top, right] * x
            lower = image[bottom, left] * (1 - x) + image[bottom, right] * x
            out[i, j] = upper * (1 - y) + lower * y
    return out


SIZES = [((6, 5), (12, 15)), ((6, 5), (3, 2)), ((6, 5), (9, 3)), ((1, 4), (3, 1)), ((7, 9), (7, 9)), ((8, 8), (28, 28))]


@pytest.mark.quick(2)
@pytest.mark.parametrize(("source", "size"), SIZES)
@pytest.mark.parametrize("channels", [(), (3,)])
def test_resize_of_floats_is_the_formula(rng, source, size, channels):
    image = rng.uniform(-1, 1, (*source, *channels))
    np.testing.assert_allclose(Resize(size)(image), bilinear(image, size).astype(float), rtol=0, atol=1e-14)
    single = Resize(size)(image.astype(np.float32))
    assert single.dtype == np.float32
    # values below 1, a few roundings of 6e-8
    np.testing.assert_allclose(single, bilinear(image.astype(np.float32), size).astype(float), rtol=0, atol=4e-7)
    half = Resize(size)(image.astype(np.float16))
    assert half.dtype == np.float16
    # 2**-11, one rounding below 1
    np.testing.assert_allclose(half, bilinear(image.astype(np.float16), size).astype(float), rtol=0, atol=5e-4)


@pytest.mark.quick(4)
@pytest.mark.parametrize(("source", "size"), SIZES)
@pytest.mark.parametrize("dtype", ["u1", "i1", "u2", "i4"])
def test_resize_of_integers_is_the_formula_rounded_half_up(rng, source, size, dtype):
    info = np.iinfo(dtype)
    image = rng.integers(info.min, info.max, (*source, 3), endpoint=True).astype(dtype)
    expected = np.vectorize(lambda value: math.floor(value + Fraction(1, 2)))(bilinear(image, size))
    found = Resize(size)(image)
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, expected)


def test_doubling_two_pixels_gives_quarters():
    """Outputs lie at -1/4, 1/4, 3/4 and 5/4: 0, 25, 75, 100 of 0 and 100."""
    assert Resize((1, 4))(np.array([[0, 100]], np.uint8)).tolist() == [[0, 25, 75, 100]]
    assert Resize((1, 4))(np.array([[0, 2]], np.uint8)).tolist() == [[0, 1, 2, 2]]  # 0.5 and 1.5 round up


def test_the_digits_that_come_with_the_package_were_enlarged_by_this_rule(rng):
    """data/digits/make_digits.py says the same rule in 14ths, for 8x8 to 28x28."""
    level = rng.integers(0, 17, (8, 8)).astype(np.uint8)
    place = np.clip((4 * np.arange(28) - 5) / 14, 0, 7)
    rows = np.array([np.interp(place, np.arange(8), line) for line in level])
    expected = np.array([np.interp(place, np.arange(8), line) for line in rows.T]).T
    np.testing.assert_allclose(Resize((28, 28))(level.astype(float)), expected, atol=1e-13)


def test_a_large_picture_does_not_overflow(rng):
    image = np.full((3, 3), 255, np.uint8)
    assert Resize((2000, 1500))(image).min() == 255


def test_nearest_takes_the_pixel_below(rng):
    image = picture(rng, 5, 7, 3)
    found = Resize((8, 4), Inter.NEAREST)(image)
    assert all(np.array_equal(found[i, j], image[i * 5 // 8, j * 7 // 4]) for i in range(8) for j in range(4))


@each_of(
    "shape, size", ((10, 20), (4, 8)), ((20, 10), (8, 4)), ((10, 10), (4, 4)), ((9, 20), (4, 8)), ((1, 3), (4, 12))
)
def test_one_int_is_the_shorter_side(rng, shape, size):
    assert Resize(4)(picture(rng, *shape, 3)).shape == (*size, 3)


def test_linear_and_bilinear_are_one_and_names_work_too():
    assert Inter.LINEAR is Inter.BILINEAR
    assert Resize(2, "nearest").interpolation is Inter.NEAREST


# ---- RandomCrop, RandomHorizontalFlip ----


def windows(padded, size):
    """Every window of a picture, as bytes."""
    h, w = padded.shape[0] - size[0], padded.shape[1] - size[1]
    return {padded[y : y + size[0], x : x + size[1]].tobytes() for y in range(h + 1) for x in range(w + 1)}


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("padding", "left", "top", "right", "bottom"),
    [(None, 0, 0, 0, 0), (2, 2, 2, 2, 2), ((1, 2), 1, 2, 1, 2), ((1, 2, 3, 0), 1, 2, 3, 0)],
)
def test_a_crop_is_one_of_the_windows_of_the_padded_picture_and_each_comes(rng, padding, left, top, right, bottom):
    image = picture(rng, 6, 7, 3)
    padded = np.zeros((6 + top + bottom, 7 + left + right, 3), np.uint8)
    padded[top : top + 6, left : left + 7] = image
    crop = RandomCrop((5, 4), padding)
    found = {crop(image, keyed_generator(seed)).tobytes() for seed in range(1200)}
    # at most 54 windows: one is missed with a chance of 54 * (53/54)**1200 = 1e-8
    assert found == windows(padded, (5, 4))


def test_a_grey_picture_is_cropped_as_well(rng):
    image = picture(rng, 4, 4)
    assert RandomCrop(3)(image).tobytes() in windows(image, (3, 3))


@each_of(
    ("mode", "expected"),
    (Border.EDGE, [1, 1, 1, 2, 3, 3, 3]),
    (Border.REFLECT, [3, 2, 1, 2, 3, 2, 1]),
    ("symmetric", [2, 1, 1, 2, 3, 3, 2]),
)
def test_a_border_continues_the_picture(mode, expected):
    image = np.array([[1, 2, 3]], np.uint8)
    assert RandomCrop((1, 7), (2, 0), padding_mode=mode)(image).tolist() == [expected]


def test_the_fill_value_may_be_one_per_channel():
    image = np.zeros((1, 1, 3), np.uint8)
    assert RandomCrop((1, 2), (1, 0, 0, 0), fill_value=(7, 8, 9))(image).tolist() == [[[7, 8, 9], [0, 0, 0]]]
    with pytest.raises(ShapeError, match="fill_value has 2 values, the picture has 3 channels"):
        RandomCrop((1, 2), 1, fill_value=(7, 8))(image)


def test_a_small_picture_is_refused_or_padded_evenly(rng):
    image = picture(rng, 2, 9)
    with pytest.raises(ShapeError, match=r"2x9, smaller than size \(5, 5\)"):
        RandomCrop(5)(image)
    found = RandomCrop(5, pad_if_needed=True)(image)
    assert found.shape == (5, 5)
    assert not found[0].any()
    assert not found[3:].any()
    assert found[1:3].tobytes() in windows(image, (2, 5))


@pytest.mark.quick(1)
@pytest.mark.parametrize(("prob", "low", "high"), [(0.0, 0, 0), (1.0, 1000, 1000), (0.5, 420, 580), (0.25, 180, 320)])
def test_a_flip_mirrors_left_and_right_as_often_as_it_should(rng, prob, low, high):
    """1000 draws: five standard deviations are 79 for 0.5, 68 for 0.25."""
    image = picture(rng, 3, 4, 3)
    flip = RandomHorizontalFlip(prob)
    flipped = 0
    for seed in range(1000):
        found = flip(image, keyed_generator(seed))
        assert np.array_equal(found, image) or np.array_equal(found, image[:, ::-1])
        flipped += np.array_equal(found, image[:, ::-1])
    assert low <= flipped <= high


def test_called_by_hand_an_operation_draws_anew_each_time_and_the_same_again(rng):
    image = picture(rng, 20, 20)
    first, second = RandomCrop(4), RandomCrop(4)
    crops = [first(image).tobytes() for _ in range(8)]
    assert crops == [second(image).tobytes() for _ in range(8)]
    assert len(set(crops)) > 4


# ---- the others ----


def test_rescale_and_normalize_are_their_formulas(rng):
    image = picture(rng, 4, 5, 3)
    scaled = Rescale(1 / 255, 0.5)(image)
    assert scaled.dtype == np.float32
    np.testing.assert_allclose(scaled, image / 255 + 0.5, rtol=1e-6)
    mean, std = (0.4465, 0.4822, 0.4914), (0.2010, 0.1994, 0.2023)
    found = Normalize(mean, std)(scaled)
    assert found.dtype == np.float32
    for channel in range(3):
        np.testing.assert_allclose(
            found[..., channel], (scaled[..., channel] - mean[channel]) / std[channel], rtol=1e-5, atol=1e-6
        )
    np.testing.assert_array_equal(Normalize(mean, std, is_hwc=False)(HWC2CHW()(scaled)), HWC2CHW()(found))
    # after batch
    np.testing.assert_array_equal(Normalize(mean, std)(np.stack([scaled, scaled])), np.stack([found, found]))


def test_one_mean_serves_every_channel_and_grey_pictures(rng):
    image = picture(rng, 4, 5).astype(np.float32)
    expected = (image - np.float32(0.1307)) / np.float32(0.3081)
    np.testing.assert_array_equal(Normalize((0.1307,), (0.3081,))(image), expected)
    np.testing.assert_array_equal(Normalize([0.1307], [0.3081])(image[..., None]), expected[..., None])
    np.testing.assert_array_equal(Normalize((0.1307,), (0.3081,), is_hwc=False)(image), expected)


def test_channels_move_to_the_front(rng):
    image = picture(rng, 4, 5, 3)
    found = HWC2CHW()(image)
    assert found.shape == (3, 4, 5)
    assert all(found[c, i, j] == image[i, j, c] for i in range(4) for j in range(5) for c in range(3))
    np.testing.assert_array_equal(HWC2CHW()(image[..., 0]), image[..., 0])


@each_of(("dtype", "name"), ("int32", "int32"), (np.float16, "float16"), (np.dtype("f8"), "float64"), (bool, "bool"))
def test_type_cast_takes_dtypes_and_their_names(dtype, name):
    assert TypeCast(dtype)(np.array([0, 3], np.uint32)).dtype.name == name


@pytest.mark.parametrize("dtype", ["integer", None, 3])
def test_type_cast_refuses_anything_but_a_dtype(dtype):
    with pytest.raises(ArgumentTypeError, match="data_type="):
        TypeCast(dtype)


@pytest.mark.parametrize("mode", [SliceMode.PAD, "drop"])
@pytest.mark.parametrize("shape", [(6, 8), (7, 9, 3), (5, 11, 1)])
def test_patches_are_the_parts_row_by_row(rng, shape, mode):
    image = picture(rng, *shape)
    patches = SlicePatches(2, 4, mode, fill_value=9)(image)
    pad = mode is SliceMode.PAD
    h, w = (math.ceil(shape[0] / 2), math.ceil(shape[1] / 4)) if pad else (shape[0] // 2, shape[1] // 4)
    full = np.full((2 * h, 4 * w, *shape[2:]), 9, np.uint8)
    full[: shape[0], : shape[1]] = image[: 2 * h, : 4 * w]
    assert len(patches) == 8
    for number, patch in enumerate(patches):
        row, column = divmod(number, 4)
        np.testing.assert_array_equal(patch, full[row * h : (row + 1) * h, column * w : (column + 1) * w])


def test_patches_become_columns(rng):
    images = picture(rng, 3, 6, 8, 3)
    names = ["upper left", "upper right", "lower left", "lower right"]
    dataset = NumpySlicesDataset({"image": images, "label": [1, 2, 3]}, shuffle=False).map(
        SlicePatches(2, 2), "image", names
    )
    assert dataset.get_col_names() == [*names, "label"]
    for row, image, label in zip(
        dataset.create_dict_iterator(num_epochs=1, output_numpy=True), images, [1, 2, 3], strict=True
    ):
        np.testing.assert_array_equal(row["lower left"], image[3:, :4])
        assert row["label"] == label


def test_operations_take_tensors(rng):
    image = picture(rng, 4, 5, 3)
    np.testing.assert_array_equal(HWC2CHW()(Tensor(image)), HWC2CHW()(image))
    assert RandomCrop(3)(Tensor(image)).shape == (3, 3, 3)


def test_your_own_random_operation_is_keyed_by_sample():
    class Jitter(RandomTransform):
        def apply(self, data, rng):
            return data + rng.random()

    whole = NumpySlicesDataset((np.arange(8), np.zeros(8)), shuffle=False).map(Jitter(), "column_1")
    shard = NumpySlicesDataset((np.arange(8), np.zeros(8)), num_shards=4, shard_id=3).map(Jitter(), "column_1")
    drawn, on_one = ({int(index): float(value) for index, value in dataset} for dataset in (shard, whole))
    assert (len(drawn), len(on_one), len(set(on_one.values()))) == (2, 8, 8)
    assert drawn.items() <= on_one.items()


# ---- refusals ----


@each_of(
    "make",
    lambda: RandomCrop(0),
    lambda: RandomCrop((4, 4), -1),
    lambda: RandomCrop(4, fill_value=256),
    lambda: RandomCrop(4, padding_mode="mirror"),
    lambda: Resize((0, 3)),
    lambda: Resize(3, "cubic"),
    lambda: Normalize((0.5,), (0.0,)),
    lambda: Normalize((0.5, 0.5), (1.0,)),
    lambda: Compose([]),
)
def test_values_out_of_range_are_value_errors(make):
    with pytest.raises(ValueError) as caught:
        make()
    assert isinstance(caught.value, ArgumentError)
    assert not isinstance(caught.value, TypeError)


test_values_of_the_wrong_type_are_type_errors = refused(
    lambda: RandomCrop("32"),
    lambda: RandomCrop((4, 4, 4)),
    lambda: RandomCrop(4.0),
    lambda: RandomCrop(4, (1, 2, 3)),
    lambda: Resize((4.0, 4)),
    lambda: Resize(3, 2),
    lambda: Normalize(0.5, 0.5),
    lambda: SlicePatches(1, 1, 1),
    lambda: Compose(TypeCast("int32")),
    lambda: Compose([3]),
    error=TypeError,
)


@pytest.mark.parametrize("operation", [RandomCrop(2), RandomHorizontalFlip(), Resize(2), HWC2CHW(), SlicePatches(2, 2)])
@pytest.mark.parametrize("shape", [(4,), (2, 4, 4, 3)])
def test_anything_but_a_picture_is_refused(operation, shape):
    hint = "before batch" if len(shape) == 4 else "height, width"
    with pytest.raises(ShapeError, match=hint):
        operation(np.zeros(shape, np.uint8))


@each_of(
    ("operation", "data", "match"),
    (SlicePatches(5, 1), np.zeros((4, 4)), "5x1 patches of a picture 4x4"),
    (Normalize((0.5, 0.5), (1.0, 1.0)), np.zeros((4, 4, 3)), "2 means for 3 channels"),
    (Normalize((0.5,), (1.0,)), np.zeros(4), "shape"),
    (Resize(1), np.zeros((0, 4)), "an empty picture"),
    (Resize(2), np.zeros((4, 4), np.int64), "dtype int64"),
)
def test_pictures_that_do_not_fit_are_refused(operation, data, match):
    with pytest.raises(ShapeError, match=match):
        operation(data)


def test_the_module_names_what_it_offers():
    assert all(hasattr(vision, name) for name in vision.__all__)
