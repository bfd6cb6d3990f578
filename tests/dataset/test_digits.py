"""The digits in data/digits, and the quickstart's batch: are they what their sources say?"""

import gzip
import hashlib
from pathlib import Path

import numpy as np
import pytest

from parallel_lab.base.errors import DataFileError, ShapeError
from parallel_lab.train.dataset import load_digits, read_digit_files, read_idx, seed_batch, write_idx
from tests.dataset.files import module_of, recorded_sums

FOLDER = Path(__file__).resolve().parents[2] / "data" / "digits"
FILES = sorted(path.name for path in FOLDER.glob("*.gz"))
# optdigits.names (UCI), class distribution of the test set, digits 0 to 9
UCI_COUNTS = [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
# optdigits.tes (UCI), first line: 64 values 0..16, then the label 0
# fmt: off
UCI_FIRST = [
    0, 0, 5, 13, 9, 1, 0, 0,
    0, 0, 13, 15, 10, 15, 5, 0,
    0, 3, 15, 2, 0, 11, 8, 0,
    0, 4, 12, 0, 0, 8, 8, 0,
    0, 5, 8, 0, 0, 9, 8, 0,
    0, 4, 11, 0, 1, 12, 7, 0,
    0, 2, 14, 5, 10, 12, 0, 0,
    0, 0, 6, 13, 10, 0, 0, 0,
]
# fmt: on


@pytest.mark.parametrize(("split", "count"), [("train", 1440), ("test", 357)])
def test_a_split_has_the_stated_shapes_and_types(split, count):
    images, labels = load_digits(split)
    assert (images.shape, images.dtype, labels.shape, labels.dtype) == ((count, 784), np.float32, (count,), np.int32)
    assert (images.min(), images.max()) == (0.0, 1.0)
    assert set(labels.tolist()) == set(range(10))


def test_both_splits_together_are_the_1797_digits_of_uci():
    labels = np.concatenate([load_digits(split)[1] for split in ("train", "test")])
    assert len(labels) == 1797
    assert np.bincount(labels).tolist() == UCI_COUNTS


def test_the_first_image_is_the_first_line_of_the_source_interpolated():
    small = np.array(UCI_FIRST).reshape(8, 8)
    # of an output pixel, in input pixels; edge values go on
    centre = np.clip((np.arange(28) + 0.5) * 8 / 28 - 0.5, 0, 7)
    rows = np.array([np.interp(centre, np.arange(8), line) for line in small])
    levels = np.floor(np.array([np.interp(centre, np.arange(8), column) for column in rows.T]).T + 0.5 + 1e-9)
    expected = np.floor(levels * 255 / 16 + 0.5)
    images, labels = read_digit_files(FOLDER, "train")
    assert labels[0] == 0
    np.testing.assert_array_equal(images[0], expected)
    recipe = module_of(FOLDER / "make_digits.py")
    np.testing.assert_array_equal(recipe.enlarge(small[None])[0], expected)


def test_images_hold_only_the_17_grey_levels_of_the_source():
    levels = np.floor(np.arange(17) * 255 / 16 + 0.5)
    for split in ("train", "test"):
        assert set(np.unique(read_digit_files(FOLDER, split)[0])) == set(levels)


def test_no_image_is_in_both_splits():
    train, test = ({image.tobytes() for image in read_digit_files(FOLDER, split)[0]} for split in ("train", "test"))
    assert not train & test


@pytest.mark.parametrize("name", FILES)
def test_a_file_has_the_checksum_that_source_md_records(name):
    found = hashlib.sha256(gzip.decompress((FOLDER / name).read_bytes())).hexdigest()
    assert recorded_sums(FOLDER / "SOURCE.md")[name.removesuffix(".gz")] == found


def test_the_folder_is_complete_and_small():
    wanted = [f"{part}-{kind}-ubyte.gz" for part in ("t10k", "train") for kind in ("images-idx3", "labels-idx1")]
    assert wanted == FILES
    assert sum((FOLDER / name).stat().st_size for name in FILES) < 500_000
    source = (FOLDER / "SOURCE.md").read_text()
    assert [word for word in ("Alpaydin", "Kaynak", "10.24432/C50P49", "CC BY 4.0") if word not in source] == []


def test_gzip_headers_carry_no_time_and_no_name():
    for name in FILES:
        header = (FOLDER / name).read_bytes()[:10]
        assert (header[3], header[4:8]) == (0, bytes(4))


@pytest.mark.parametrize("image_shape", [(784,), (28, 28), (1, 28, 28)])
def test_image_shape_arranges_the_same_pixels(image_shape):
    images, _ = load_digits("test", image_shape=image_shape)
    assert images.shape == (357, *image_shape)
    np.testing.assert_array_equal(
        images.reshape(357, 784), read_idx(FOLDER / "t10k-images-idx3-ubyte.gz").reshape(357, 784) / np.float32(255)
    )


@pytest.mark.parametrize("image_shape", [(783,), (28,), (-1, 28, -28), (0,)])
def test_an_image_shape_that_does_not_hold_784_pixels_is_refused(image_shape):
    with pytest.raises(ShapeError, match="784 pixels"):
        load_digits(image_shape=image_shape)


def test_an_unknown_split_names_the_known_ones():
    with pytest.raises(DataFileError, match="'train', 'test'"):
        load_digits("validation")


def test_images_and_labels_of_different_length_are_refused(tmp_path):
    write_idx(tmp_path / "train-images-idx3-ubyte", np.zeros((3, 28, 28), np.uint8))
    write_idx(tmp_path / "train-labels-idx1-ubyte", np.zeros(2, np.uint8))
    with pytest.raises(DataFileError, match="3 images but 2 labels"):
        read_digit_files(tmp_path, "train")


def test_labels_instead_of_images_are_refused(tmp_path):
    for kind in ("images-idx3", "labels-idx1"):
        write_idx(tmp_path / f"train-{kind}-ubyte.gz", np.zeros(2, np.uint8))
    with pytest.raises(DataFileError, match="Expected uint8 with 3 dims"):
        read_digit_files(tmp_path, "train")


def test_seed_batch_is_what_the_quickstart_draws():
    state = np.random.get_state()
    try:  # the quickstart's own lines (seed 003, get_dataset)
        np.random.seed(1)
        expected = np.random.rand(16, 32).astype(np.float32), np.random.rand(16, 16).astype(np.float32)
    finally:
        np.random.set_state(state)
    for found, wanted in zip(seed_batch(), expected, strict=True):
        assert found.dtype == np.float32
        np.testing.assert_array_equal(found, wanted)


def test_seed_batch_leaves_the_global_generator_alone():
    before = np.random.get_state()[1].copy()
    seed_batch()
    np.testing.assert_array_equal(np.random.get_state()[1], before)
