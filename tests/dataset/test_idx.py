"""`read_idx` and `write_idx`: what was written comes back, and no damaged file is believed."""

import gzip
import struct

import numpy as np
import pytest
from hypothesis import given, strategies as st
from hypothesis.extra import numpy as hnp

from parallel_lab.base.errors import DataFileError, ShapeError
from parallel_lab.train.dataset import read_idx, write_idx
from tests.crossed import each_of
from tests.dataset.files import raises_within, takes_at_most

GOOD = struct.pack(">HBB2I", 0, 0x08, 2, 2, 3) + bytes(range(6))  # uint8 (2, 3)


@pytest.mark.quick(16)
@pytest.mark.parametrize("dtype", ["u1", "i1", "i2", "i4", "f4", "f8"])
@pytest.mark.parametrize("shape", [(5,), (3, 4), (2, 3, 4), (0, 7)])
@pytest.mark.parametrize("name", ["a.idx", "a.idx.gz"])
def test_what_is_written_is_read_back(tmp_path, rng, dtype, shape, name):
    array = (rng.standard_normal(shape) * 100).astype(dtype)
    write_idx(tmp_path / name, array)
    found = read_idx(tmp_path / name)
    assert found.dtype == array.dtype
    assert found.dtype.isnative
    assert found.shape == shape
    np.testing.assert_array_equal(found, array)


@pytest.mark.exhaustive
@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_reading_takes_the_size_of_the_array_and_a_piece(tmp_path, pack):
    (tmp_path / "a.idx").write_bytes(pack(struct.pack(">HBBI", 0, 0x08, 1, 24 << 20) + bytes(24 << 20)))
    with takes_at_most((24 << 20) + (4 << 20)):
        assert read_idx(tmp_path / "a.idx").size == 24 << 20


def test_bytes_follow_the_published_format(tmp_path):
    write_idx(tmp_path / "a.idx", np.array([[1, -2], [300, 4]], np.int16))
    assert (tmp_path / "a.idx").read_bytes() == bytes.fromhex("00000b0200000002000000020001fffe012c0004")


def test_a_big_endian_file_is_read_as_numbers_not_as_bytes(tmp_path):
    (tmp_path / "a.idx").write_bytes(struct.pack(">HBBI3i", 0, 0x0C, 1, 3, 1, -2, 70_000))
    assert read_idx(tmp_path / "a.idx").tolist() == [1, -2, 70_000]


def test_gzip_is_recognised_by_its_content_not_by_its_name(tmp_path):
    (tmp_path / "a.idx").write_bytes(gzip.compress(GOOD))
    assert read_idx(tmp_path / "a.idx").tolist() == [[0, 1, 2], [3, 4, 5]]


def test_the_same_array_gives_the_same_gzip_bytes(tmp_path):
    for name in ("a.gz", "b.gz"):
        write_idx(tmp_path / name, np.arange(7, dtype=np.uint8))
    content = (tmp_path / "a.gz").read_bytes()
    assert content == (tmp_path / "b.gz").read_bytes()
    assert content[4:8] == bytes(4)  # the header's time


def test_the_array_can_be_written_to(tmp_path):
    (tmp_path / "a.idx").write_bytes(GOOD)
    array = read_idx(tmp_path / "a.idx")
    array += 1
    assert array.sum() == sum(range(1, 7))


@each_of(
    ("content", "offset", "words"),
    (b"", 0, ["magic number"]),
    (b"\0\0\x08", 3, ["magic number"]),
    (b"PK\x03\x04" + GOOD[4:], 0, ["0x504b0304"]),
    (b"\0\0\x07\x02" + GOOD[4:], 2, ["0x07"]),
    (b"\0\0\x08\0", 3, ["1 to 32 dims"]),
    (b"\0\0\x08\xff" + GOOD[4:], 3, ["1 to 32 dims", "255"]),
    (GOOD[:10], 10, ["2 sizes", "6 of 8"]),
    (GOOD[:-1], 17, ["6 bytes of data", "(2, 3)", "after 5 bytes"]),
    (GOOD + b"\0", 18, ["6 bytes of data", "more bytes"]),
    (struct.pack(">HBB2I", 0, 8, 2, 2**32 - 1, 2**32 - 1), 4, ["at most", "18,446,744,065,119,617,025"]),
    (struct.pack(">HBB1I", 0, 8, 1, 10**9) + b"x", 9, ["1,000,000,000 bytes", "after 1 bytes"]),
)
@pytest.mark.parametrize("packed", [False, True])
def test_a_damaged_file_is_named_with_offset_expected_and_found(tmp_path, content, offset, words, packed):
    path = tmp_path / "bad.idx"
    path.write_bytes(gzip.compress(content) if packed else content)
    with pytest.raises(DataFileError) as caught:
        read_idx(path)
    text = str(caught.value)
    assert text.startswith(f"{path}: at byte ")
    if (
        packed and "after 1 bytes" in words
    ):  # the .gz is too small to hold what it declares, which is seen before unpacking
        offset, words = 4, ["1,000,000,000 bytes", "cannot unpack to more than"]
    assert f"at byte {offset}:" in text
    assert [word for word in words if word not in text] == []


@pytest.mark.parametrize("keep", [1, 5, 12, 20, -9, -4, -1])
def test_a_cut_gzip_file_is_a_data_file_error(tmp_path, keep):
    content = gzip.compress(GOOD, mtime=0)
    (tmp_path / "split.gz").write_bytes(content[:keep])
    with pytest.raises(DataFileError):
        read_idx(tmp_path / "split.gz")


def test_every_changed_byte_of_the_packed_data_is_noticed(tmp_path):
    content = bytearray(gzip.compress(GOOD, mtime=0))
    path = tmp_path / "changed.gz"
    believed = []
    for i in range(10, len(content)):  # after the gzip header: data, checksum, length
        damaged = bytearray(content)
        damaged[i] ^= 0x10
        path.write_bytes(damaged)
        try:
            believed.append((i, read_idx(path).tolist()))
        except DataFileError:
            continue
    # the last 4 bytes of the deflate stream may hold unused bits; whatever is read must still be the right data
    assert [wrong for wrong in believed if wrong[1] != [[0, 1, 2], [3, 4, 5]]] == []


@pytest.mark.exhaustive
@pytest.mark.parametrize("declared", [6, 10**9])
def test_a_gzip_bomb_is_refused_without_unpacking_it(tmp_path, declared):
    path = tmp_path / "bomb.gz"
    path.write_bytes(gzip.compress(struct.pack(">HBBI", 0, 8, 1, declared) + bytes(200 << 20), compresslevel=6))
    with raises_within(8 << 20, r"more bytes|cannot unpack"):  # 200 MiB packed in it
        read_idx(path)


def test_a_plain_file_is_checked_before_memory_is_taken(tmp_path):
    path = tmp_path / "huge.idx"
    path.write_bytes(struct.pack(">HBBI", 0, 8, 1, 2_000_000_000))
    with raises_within(1 << 20, "truncated"):
        read_idx(path)


def test_max_size_bytes_bounds_what_is_read(tmp_path):
    (tmp_path / "a.idx").write_bytes(GOOD)
    assert read_idx(tmp_path / "a.idx", max_size_bytes=6).shape == (2, 3)
    with pytest.raises(DataFileError, match="at most 5 bytes"):
        read_idx(tmp_path / "a.idx", max_size_bytes=5)


@pytest.mark.parametrize("name", ["missing.idx", "."])
def test_a_path_that_cannot_be_read_is_a_data_file_error(tmp_path, name):
    with pytest.raises(DataFileError, match="cannot be read"):
        read_idx(tmp_path / name)


@pytest.mark.parametrize(
    "array",
    [np.zeros(3, np.int64), np.zeros(3, bool), np.zeros(3, np.complex64), np.array(3, np.uint8)],
    ids=["int64", "bool", "complex", "no-dims"],
)
def test_what_idx_cannot_hold_is_refused(tmp_path, array):
    with pytest.raises(ShapeError, match="cannot be written as IDX"):
        write_idx(tmp_path / "a.idx", array)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.exhaustive
@given(hnp.arrays(st.sampled_from(["u1", ">i2", "<i4", "<f4", ">f8"]), hnp.array_shapes(max_dims=4, max_side=5)))
def test_any_array_survives_the_round_trip(tmp_path_factory, array):
    path = tmp_path_factory.mktemp("idx") / "a.gz"
    write_idx(path, array)
    found = read_idx(path)
    assert found.tobytes() == array.astype(array.dtype.newbyteorder("=")).tobytes()
    assert found.shape == array.shape


@given(st.binary(max_size=64))
def test_any_bytes_give_an_array_or_a_data_file_error(tmp_path_factory, content):
    path = tmp_path_factory.mktemp("idx") / "a.idx"
    path.write_bytes(content)
    try:
        array = read_idx(path)
    except DataFileError:
        return
    assert len(content) == 4 + 4 * array.ndim + array.nbytes  # only a file that fits its header is read
