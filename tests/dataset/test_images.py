"""MNIST and CIFAR-10 files: what they hold, the shipped coloured digits, and files that are not what they should be."""

import gzip
import hashlib
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st

from parallel_lab import dataset as datasets
from parallel_lab.base.errors import DataFileError, ParallelLabError, ShapeError
from tests.crossed import each_of
from tests.dataset.files import module_of, raises_within, recorded_sums, takes_at_most

FOLDER = Path(__file__).resolve().parents[2] / "data" / "digits_cifar"
BATCHES = [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]
RECORD = 3073  # bytes: 1 label and 32 * 32 * 3 (Krizhevsky, "Binary version")


def records(rng, n):
    """Random pictures (n, 32, 32, 3), labels (n,), and the bytes of their file, written out byte by byte."""
    images, labels = rng.integers(0, 256, (n, 32, 32, 3)).astype(np.uint8), rng.integers(0, 10, n).astype(np.uint8)
    content = bytearray()
    for image, label in zip(images, labels, strict=True):
        content.append(label)
        for channel in range(3):
            for row in range(32):
                content += bytes(image[row, :, channel])
    return images, labels, bytes(content)


def cifar_folder(path, rng, sizes=(2, 3, 1, 2, 2, 4)):
    """A folder in CIFAR-10's layout with the given numbers of records; returns all (images, labels) in file order."""
    parts = []
    for name, n in zip(BATCHES, sizes, strict=True):
        images, labels, content = records(rng, n)
        (path / name).write_bytes(content)
        parts.append((images, labels))
    return [np.concatenate(column) for column in zip(*parts, strict=True)]


def read(dataset):
    rows = list(dataset.create_tuple_iterator(num_epochs=1, output_numpy=True))
    return [np.stack(column) for column in zip(*rows, strict=True)]


# ---- the format ----


@pytest.mark.parametrize("packed", [False, True])
def test_a_batch_file_is_read_as_the_format_says(tmp_path, rng, packed):
    images, labels, content = records(rng, 3)
    (tmp_path / "test_batch.bin").write_bytes(gzip.compress(content) if packed else content)
    found, found_labels = datasets.read_cifar10(tmp_path / "test_batch.bin")
    assert (found.dtype, found_labels.dtype) == (np.uint8, np.uint8)
    np.testing.assert_array_equal(found, images)
    np.testing.assert_array_equal(found_labels, labels)


@pytest.mark.parametrize("name", ["a.bin", "a.bin.gz"])
def test_what_is_written_follows_the_format(tmp_path, rng, name):
    images, labels, content = records(rng, 2)
    datasets.write_cifar10(tmp_path / name, images, labels)
    written = (tmp_path / name).read_bytes()
    assert (gzip.decompress(written) if name.endswith("gz") else written) == content
    np.testing.assert_array_equal(datasets.read_cifar10(tmp_path / name)[0], images)


@each_of(
    ("images", "labels"),
    (np.zeros((2, 32, 32, 3), np.float32), np.zeros(2, int)),
    (np.zeros((2, 3, 32, 32), np.uint8), np.zeros(2, int)),
    (np.zeros((2, 32, 32, 3), np.uint8), np.zeros(3, int)),
    (np.zeros((2, 32, 32, 3), np.uint8), np.array([0, 10])),
    (np.zeros((2, 32, 32, 3), np.uint8), np.array([0.0, 1.0])),
)
def test_what_the_format_cannot_hold_is_not_written(tmp_path, images, labels):
    with pytest.raises(ShapeError):
        datasets.write_cifar10(tmp_path / "a.bin", images, labels)
    assert not list(tmp_path.iterdir())


# ---- damaged files ----


@pytest.mark.parametrize("cut", [1, 100, RECORD - 1])
def test_a_file_cut_short_says_where_and_by_how_much(tmp_path, rng, cut):
    path = tmp_path / "data_batch_1.bin"
    path.write_bytes(records(rng, 3)[2][:-cut])
    found = f"the end of the file after {RECORD - cut:,} bytes"
    expected = f"{path}: at byte {2 * RECORD}: expected a record of 3,073 bytes, found {found}"
    with pytest.raises(DataFileError, match=re.escape(expected)):
        datasets.read_cifar10(path)


def test_a_label_above_nine_says_which_record(tmp_path, rng):
    path, content = tmp_path / "a.bin", bytearray(records(rng, 3)[2])
    content[RECORD] = 77
    path.write_bytes(content)
    with pytest.raises(
        DataFileError, match=re.escape(f"at byte {RECORD}: expected a label from 0 to 9 (record 1), found 77")
    ):
        datasets.read_cifar10(path)


def test_an_empty_or_missing_file_is_an_error(tmp_path):
    (tmp_path / "a.bin").write_bytes(b"")
    with pytest.raises(DataFileError, match="at byte 0: expected a record of 3,073 bytes, found an empty file"):
        datasets.read_cifar10(tmp_path / "a.bin")
    with pytest.raises(DataFileError, match=r"b\.bin: cannot be read: No such file"):
        datasets.read_cifar10(tmp_path / "b.bin")
    with pytest.raises(DataFileError, match="cannot be read: it is a folder"):
        datasets.read_cifar10(tmp_path)


def test_damaged_gzip_data_is_an_error(tmp_path, rng):
    packed = gzip.compress(records(rng, 2)[2])
    for name, content in (
        ("cut", packed[:-9]),
        ("flipped", packed[:2000] + bytes([packed[2000] ^ 255]) + packed[2001:]),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(DataFileError, match=r"of the \.gz file: expected whole gzip data"):
            datasets.read_cifar10(tmp_path / name)


@pytest.mark.quick(1)
@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_reading_takes_the_size_of_the_pictures_and_a_piece(tmp_path, pack):
    (tmp_path / "a.bin").write_bytes(pack(bytes(8000 * RECORD)))
    with takes_at_most(8000 * RECORD + (5 << 20)):
        images, labels = datasets.read_cifar10(tmp_path / "a.bin")
    assert len(images) == len(labels) == 8000 and not images.any()


@pytest.mark.exhaustive
def test_a_gzip_file_that_unpacks_without_end_is_stopped(tmp_path):
    (tmp_path / "bomb.gz").write_bytes(gzip.compress(bytes(64 << 20)))  # 64 MiB from 64 kB
    with raises_within(8 << 20, "expected at most 1,000,000 bytes"):
        datasets.read_cifar10(tmp_path / "bomb.gz", max_size_bytes=1_000_000)


@given(st.binary(max_size=40), st.integers(0, 2), st.integers(-1, 1))
def test_any_bytes_give_pictures_or_a_data_file_error(tmp_path_factory, start, count, more):
    path = tmp_path_factory.mktemp("cifar") / "a.bin"
    content = (start + bytes(count * RECORD))[: max(0, count * RECORD + more)]
    path.write_bytes(content)
    try:
        images, labels = datasets.read_cifar10(path)
    except DataFileError:
        return
    assert len(content) == RECORD * len(images) == RECORD * len(labels)
    assert labels.max() <= 9


# ---- Cifar10Dataset ----


@each_of("usage, part", ("train", slice(0, 10)), ("test", slice(10, 14)), ("all", slice(0, 14)), (None, slice(0, 14)))
def test_usage_chooses_the_files(tmp_path, rng, usage, part):
    images, labels = cifar_folder(tmp_path, rng)
    dataset = datasets.Cifar10Dataset(tmp_path, usage, shuffle=False)
    found, found_labels = read(dataset)
    assert dataset.get_col_names() == ["image", "label"]
    assert (found.dtype, found_labels.dtype) == (np.uint8, np.uint32)
    np.testing.assert_array_equal(found, images[part])
    np.testing.assert_array_equal(found_labels, labels[part])


def test_pictures_are_shuffled_unless_told_otherwise(tmp_path, rng):
    images, _ = cifar_folder(tmp_path, rng)
    found, _ = read(datasets.Cifar10Dataset(str(tmp_path)))
    assert not np.array_equal(found, images)
    assert sorted(image.tobytes() for image in found) == sorted(image.tobytes() for image in images)


def test_a_missing_batch_is_named(tmp_path, rng):
    cifar_folder(tmp_path, rng)
    (tmp_path / "data_batch_4.bin").unlink()
    with pytest.raises(DataFileError, match=r"data_batch_4\.bin: cannot be read"):
        datasets.Cifar10Dataset(tmp_path, "train")
    assert len(datasets.Cifar10Dataset(tmp_path, "test")) == 4


def test_changing_a_picture_does_not_change_the_dataset(tmp_path, rng):
    images, _ = cifar_folder(tmp_path, rng)
    dataset = datasets.Cifar10Dataset(tmp_path, shuffle=False)
    for image, _ in dataset.create_tuple_iterator(num_epochs=1, output_numpy=True):
        image[:] = 0
    np.testing.assert_array_equal(read(dataset)[0], images)


@pytest.mark.parametrize("kind", [datasets.Cifar10Dataset, datasets.MnistDataset])
@each_of(
    ("arguments", "error", "match"),
    (("{folder}/nowhere",), DataFileError, "does not exist"),
    (("{folder}/file",), DataFileError, "is not a folder"),
    (("{folder}",), DataFileError, "folder|cannot be read|none of"),
    ((3,), ValueError, "dataset_dir=3"),
    (("{folder}", "validation"), ValueError, "'train', 'test' or 'all'"),
    (("{folder}", None, -1), ValueError, "num_samples=-1|none of|cannot be read"),
)
def test_folders_and_arguments_that_do_not_fit_are_refused(tmp_path, kind, arguments, error, match):
    (tmp_path / "file").write_bytes(b"")
    arguments = [str(a).format(folder=tmp_path) if isinstance(a, str) else a for a in arguments]
    with pytest.raises(error, match=match) as caught:
        kind(*arguments)
    assert isinstance(caught.value, ParallelLabError)


def test_the_pipeline_of_the_data_parallel_tutorial_runs(tmp_path, rng):
    """Seed 002, with its arguments and its order, on 8 ranks: floor(ceil(14 / 8) / 2) * 3 steps each."""
    cifar_folder(tmp_path, rng)
    for rank in (0, 7):
        dataset = datasets.Cifar10Dataset(str(tmp_path), num_shards=8, shard_id=rank)
        operations = [datasets.vision.RandomCrop((32, 32), (4, 4, 4, 4)), datasets.vision.RandomHorizontalFlip()]
        operations += [datasets.vision.Resize((224, 224)), datasets.vision.Rescale(1.0 / 255.0, 0.0)]
        operations += [
            datasets.vision.Normalize((0.4465, 0.4822, 0.4914), (0.2010, 0.1994, 0.2023)),
            datasets.vision.HWC2CHW(),
        ]
        dataset = dataset.map(operations=datasets.transforms.TypeCast("int32"), input_columns="label")
        dataset = dataset.map(operations=operations, input_columns="image")
        dataset = dataset.shuffle(buffer_size=10).batch(batch_size=2, drop_remainder=True).repeat(3)
        assert dataset.get_dataset_size() == 3
        steps = [(image.shape, image.dtype, label.shape, label.dtype) for image, label in dataset]
        assert steps == [((2, 3, 224, 224), np.float32, (2,), np.int32)] * 3


# ---- MnistDataset ----


@each_of(
    "usage, splits", ("train", ["train"]), ("test", ["test"]), ("all", ["test", "train"]), (None, ["test", "train"])
)
def test_mnist_pictures_have_one_channel(usage, splits):
    parts = [datasets.read_digit_files(datasets.digits_folder(), split) for split in splits]
    images, labels = read(datasets.MnistDataset(datasets.digits_folder(), usage, shuffle=False))
    assert (images.dtype, labels.dtype) == (np.uint8, np.uint32)
    assert images.shape[1:] == (28, 28, 1)
    np.testing.assert_array_equal(images[..., 0], np.concatenate([part[0] for part in parts]))
    np.testing.assert_array_equal(labels, np.concatenate([part[1] for part in parts]))


def test_a_folder_with_training_files_only_is_enough(tmp_path):
    """Seed 004 points at MNIST's train folder and names no usage."""
    datasets.write_idx(tmp_path / "train-images-idx3-ubyte", np.zeros((3, 28, 28), np.uint8))
    datasets.write_idx(tmp_path / "train-labels-idx1-ubyte", np.arange(3, dtype=np.uint8))
    assert len(datasets.MnistDataset(tmp_path)) == 3
    with pytest.raises(DataFileError, match="t10k-images"):
        datasets.MnistDataset(tmp_path, "test")


def test_the_pipeline_of_the_fusion_tutorial_gives_normalised_digits():
    """Seed 004: Rescale, Normalize, HWC2CHW, labels as int32, batches of 32."""
    operations = [
        datasets.vision.Rescale(1.0 / 255.0, 0),
        datasets.vision.Normalize(mean=(0.1307,), std=(0.3081,)),
        datasets.vision.HWC2CHW(),
    ]
    dataset = datasets.MnistDataset(datasets.digits_folder(), "train", shuffle=False).map(operations, "image")
    dataset = dataset.map(datasets.transforms.TypeCast("int32"), "label").batch(32)
    image, label = next(iter(dataset))
    pixels, digits = datasets.load_digits("train", image_shape=(1, 28, 28))
    assert (image.shape, label.dtype) == ((32, 1, 28, 28), np.int32)
    np.testing.assert_allclose(image.asnumpy(), (pixels[:32] - 0.1307) / 0.3081, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(label.asnumpy(), digits[:32])


def test_pictures_of_another_size_are_not_mnist(tmp_path):
    datasets.write_idx(tmp_path / "train-images-idx3-ubyte", np.zeros((3, 8, 9), np.uint8))
    datasets.write_idx(tmp_path / "train-labels-idx1-ubyte", np.zeros(3, np.uint8))
    with pytest.raises(
        DataFileError, match="at byte 8 of the train images: expected 28 rows and 28 columns, found 8 and 9"
    ):
        datasets.MnistDataset(tmp_path, "train")


def test_a_cut_mnist_file_says_where(tmp_path):
    for name in ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"):
        (tmp_path / name).write_bytes(gzip.decompress((datasets.digits_folder() / f"{name}.gz").read_bytes())[:-7])
    with pytest.raises(DataFileError, match=r"train-images-idx3-ubyte: at byte \d+: expected 1,128,960 bytes"):
        datasets.MnistDataset(tmp_path)


# ---- the coloured digits ----


def test_the_shipped_files_are_what_the_recipe_makes():
    made = module_of(FOLDER / "make_digits_cifar.py").contents(FOLDER.parent / "digits")
    assert list(made) == BATCHES
    for name, content in made.items():
        assert gzip.decompress((FOLDER / f"{name}.gz").read_bytes()) == content, name


@pytest.mark.parametrize("name", BATCHES)
def test_a_file_has_the_checksum_that_the_readme_records(name):
    found = hashlib.sha256(gzip.decompress((FOLDER / f"{name}.gz").read_bytes())).hexdigest()
    assert recorded_sums(FOLDER / "README.md")[name] == found


def test_the_folder_is_complete_and_small():
    found = sorted(path.name for path in FOLDER.iterdir() if path.name != "__pycache__")
    others = ["README.md", "batches.meta.txt", "make_digits_cifar.py"]
    assert found == sorted([*(f"{name}.gz" for name in BATCHES), *others])
    assert sum(path.stat().st_size for path in FOLDER.glob("*.gz")) < 1_500_000
    readme = (FOLDER / "README.md").read_text()
    said = ("Alpaydin", "Kaynak", "10.24432/C50P49", "CC BY 4.0", "make_digits_cifar.py")
    assert [word for word in said if word not in readme] == []
    names = (FOLDER / "batches.meta.txt").read_text().split()
    assert " ".join(names) == "zero one two three four five six seven eight nine"


@pytest.mark.parametrize(("split", "count"), [("train", 1440), ("test", 357)])
def test_each_coloured_picture_is_its_digit_in_two_colours(split, count):
    """Paper and ink are each channel's two ends; every pixel of the 32x32 lies between them by its grey level."""
    grey, digits = datasets.read_digit_files(datasets.digits_folder(), split)
    images, labels = read(datasets.Cifar10Dataset(datasets.digits_cifar_folder(), split, shuffle=False))
    assert len(images) == count
    np.testing.assert_array_equal(labels, digits)
    for image, digit in zip(images[::37], grey[::37], strict=True):
        corners = [corner for corner in (image[0, 0], image[-1, -1]) if (image == corner).all(2).sum() > 100]
        paper = corners[0].astype(float)
        dark_paper = paper.max() <= 95
        assert dark_paper or paper.min() >= 160
        matches = []
        for row in range(5):
            for column in range(5):
                level = np.zeros((32, 32, 1))
                level[row : row + 28, column : column + 28, 0] = digit / 255
                full = level.max()  # a few digits stay a little below full ink
                ink = paper + (image[level[..., 0] == full][0] - paper) / full
                # pixel and ink are rounded: half a level each, the second seen through 1 / full
                if np.abs(paper + (ink - paper) * level - image).max() <= 0.5 + 0.5 / full:
                    matches.append(np.round(ink))
        assert len(matches) == 1
        assert matches[0].min() >= 160 if dark_paper else matches[0].max() <= 95


def test_place_and_colours_say_nothing_about_the_label():
    """The mean brightness of a class is that of all, within four standard errors."""
    images, labels = datasets.load_digits_cifar()
    corner = images[:, :, 0, 0].mean(1)
    for digit in range(10):
        of_class = corner[labels == digit]
        assert abs(of_class.mean() - corner.mean()) < 4 * corner.std() / len(of_class) ** 0.5


@pytest.mark.quick(1)
@pytest.mark.parametrize(("split", "count"), [("train", 1440), ("test", 357)])
def test_load_digits_cifar_gives_what_networks_take(split, count):
    images, labels = datasets.load_digits_cifar(split)
    assert (images.shape, images.dtype) == ((count, 3, 32, 32), np.float32)
    assert (labels.shape, labels.dtype) == ((count,), np.int32)
    assert 0 <= images.min() <= images.max() <= 1
    raw, _ = read(datasets.Cifar10Dataset(datasets.digits_cifar_folder(), split, shuffle=False))
    np.testing.assert_array_equal(images, raw.transpose(0, 3, 1, 2) / np.float32(255))
    np.testing.assert_array_equal(labels, datasets.load_digits(split)[1])


def test_an_unknown_split_names_the_known_ones():
    with pytest.raises(DataFileError, match="'train', 'test'"):
        datasets.load_digits_cifar("validation")
