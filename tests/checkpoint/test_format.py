"""The checkpoint file: what goes in comes out, safetensors readers open it, a failed save leaves the old one."""

import errno
import json
import os
import signal
import stat
import sys
import zlib

import numpy as np
import pytest
import safetensors.numpy

from parallel_lab.base.errors import CheckpointCorrupt, CheckpointError, CheckpointWriteError, ParallelLabError
from parallel_lab.layout.tensor_layout import TensorLayout
from parallel_lab.train.checkpoint import TensorRecord, describe_checkpoint, read_checkpoint, write_checkpoint
from tests.checkpoint.drawn import DTYPES, draw_array, draw_layout, draw_shape, names, same_bits
from tests.processes.launched import started

# ---- round trips ----


@pytest.mark.quick(18)
@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 0, 5), (7,), (2, 3, 5)], ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_and_shape_comes_back_bit_for_bit(tmp_path, rng, dtype, shape):
    array = draw_array(rng, shape, dtype)
    write_checkpoint(tmp_path / "x.ckpt", {"a.b": TensorRecord(array), "c": TensorRecord(array)})
    found = read_checkpoint(tmp_path / "x.ckpt").tensors
    assert list(found) == ["a.b", "c"]
    assert all(
        same_bits(record.array, array) and record.is_whole and record.global_shape == shape for record in found.values()
    )
    assert all(record.array.flags.writeable for record in found.values())


def test_layouts_ranks_and_meta_come_back(tmp_path, rng):
    tensors = {}
    for i in range(50):
        layout = draw_layout(rng, int(rng.integers(1, 4)))
        rank = int(rng.integers(layout.device_num))
        full = draw_array(rng, draw_shape(rng, layout), str(rng.choice(DTYPES)))
        tensors[f"t{i}"] = TensorRecord(full[layout.slice_index(full.shape, rank)], full.shape, layout, rank)
    meta = {"epoch": 3, "loss": 0.1, "text": "ü", "list": [1, None, True], "deep": {"a": {"b": [1]}}}
    write_checkpoint(tmp_path / "x.ckpt", tensors, meta=meta)
    found = read_checkpoint(tmp_path / "x.ckpt")
    assert found.meta == meta
    for name, record in tensors.items():
        assert found.tensors[name].info == record.info
        assert same_bits(found.tensors[name].array, np.ascontiguousarray(record.array))


def test_arrays_of_any_memory_order_are_stored_row_major(tmp_path):
    base = np.arange(24, dtype=">i4").reshape(4, 6)  # big-endian
    given = {"turned": base.T, "steps": base[::2, ::-3], "fortran": np.asfortranarray(base), "big": base}
    write_checkpoint(tmp_path / "x.ckpt", {name: TensorRecord(array) for name, array in given.items()})
    for name, record in read_checkpoint(tmp_path / "x.ckpt").tensors.items():
        assert record.array.dtype == np.int32 and np.array_equal(record.array, given[name])


def test_no_tensors_at_all_are_a_checkpoint_too(tmp_path):
    write_checkpoint(tmp_path / "x.ckpt", {}, meta={"a": 1})
    assert (read_checkpoint(tmp_path / "x.ckpt").tensors, read_checkpoint(tmp_path / "x.ckpt").meta) == ({}, {"a": 1})


def test_some_tensors_can_be_read_alone(tmp_path, rng):
    write_checkpoint(tmp_path / "x.ckpt", {f"t{i}": TensorRecord(draw_array(rng, (i, 3))) for i in range(6)})
    whole = read_checkpoint(tmp_path / "x.ckpt").tensors
    some = read_checkpoint(tmp_path / "x.ckpt", ["t5", "t2"]).tensors
    assert list(some) == ["t2", "t5"]
    assert all(same_bits(some[name].array, whole[name].array) for name in some)
    with pytest.raises(CheckpointError, match=r"no tensor 't9'"):
        read_checkpoint(tmp_path / "x.ckpt", ["t9"])


def test_the_header_tells_everything_but_the_elements(tmp_path):
    layout = TensorLayout((2, 4), (1, -1))
    write_checkpoint(
        tmp_path / "x.ckpt", {"w": TensorRecord(np.zeros((2, 6), "float16"), (4, 6), layout, 5)}, meta={"a": 1}
    )
    info = describe_checkpoint(tmp_path / "x.ckpt")
    one = info.tensors["w"]
    assert (one.dtype, one.shape, one.global_shape, one.layout, one.rank) == ("float16", (2, 6), (4, 6), layout, 5)
    assert (info.meta, info.size_bytes) == ({"a": 1}, (tmp_path / "x.ckpt").stat().st_size)


# ---- the format is safetensors ----


def test_the_safetensors_library_reads_our_files(tmp_path, rng):
    given = {f"t.{dtype}": draw_array(rng, (3, 5), dtype) for dtype in DTYPES} | {
        "empty": np.zeros((0, 4), "float32"),
        "number": np.float32(2.5),
    }
    write_checkpoint(tmp_path / "x.ckpt", {name: TensorRecord(array) for name, array in given.items()})
    found = safetensors.numpy.load_file(tmp_path / "x.ckpt")
    assert found.keys() == given.keys()
    assert all(same_bits(found[name], np.asarray(given[name])) for name in given)


def test_the_stored_sums_are_the_crc32_of_the_elements(tmp_path):
    """By hand from the format's description, not with our reader."""
    array = np.arange(5, dtype="<f4")
    write_checkpoint(tmp_path / "x.ckpt", {"w": TensorRecord(array)})
    data = (tmp_path / "x.ckpt").read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    assert json.loads(header["__metadata__"]["tensors"])["w"]["crc32"] == zlib.crc32(array.tobytes())
    begin, end = header["w"]["data_offsets"]
    assert data[8 + length :][begin:end] == array.tobytes()
    assert (8 + length) % 8 == 0


# ---- what cannot be stored ----

BAD_NAMES = [
    *("", "/abs", "a/b", "../x", "a..b", "a\\b", "__metadata__"),
    *("nul\0", "line\n", "bell\x07", "\ud800", "\u202egpj.exe", "n" * 256, "ü" * 128),
]


@pytest.mark.parametrize("name", BAD_NAMES, ids=ascii)
def test_names_that_lead_out_or_hide_something_are_refused(tmp_path, name):
    with pytest.raises(CheckpointError, match="not allowed"):
        write_checkpoint(tmp_path / "x.ckpt", {name: TensorRecord(np.zeros(1))})
    assert names(tmp_path) == []


@pytest.mark.parametrize(
    "array",
    [np.array(["a"]), np.array([None]), np.array([1j]), np.array(["2020-01-01"], "M8[D]"), np.zeros(2, [("a", int)])],
)
def test_dtypes_without_a_code_are_refused(tmp_path, array):
    with pytest.raises(CheckpointError, match="dtype"):
        write_checkpoint(tmp_path / "x.ckpt", {"w": TensorRecord(array)})
    assert names(tmp_path) == []


@pytest.mark.parametrize("meta", [{"a": float("nan")}, {"a": {1, 2}}, {"a": b"x"}, {"a": [[[[[[[[[1]]]]]]]]]}])
def test_meta_that_could_not_be_read_again_is_refused(tmp_path, meta):
    with pytest.raises(CheckpointError, match="meta"):
        write_checkpoint(tmp_path / "x.ckpt", {}, meta=meta)
    assert names(tmp_path) == []


LAYOUT = TensorLayout((2, 2), (1, -1))
UNFIT = [
    {"global_shape": (4, 4)},  # no layout
    {"global_shape": (4, 4), "layout": LAYOUT, "rank": 4},
    {"global_shape": (4, 4), "layout": LAYOUT, "rank": -1},
    {"global_shape": (8, 4), "layout": LAYOUT},
    {"global_shape": (4,), "layout": LAYOUT},
    {"global_shape": (2, 4), "layout": TensorLayout((2,), (-1, -1), (0,))},
]


@pytest.mark.parametrize("fields", UNFIT, ids=range(len(UNFIT)))
def test_a_record_whose_fields_do_not_fit_is_refused(fields):
    with pytest.raises(CheckpointError):
        TensorRecord(np.zeros((2, 4)), **fields)


# ---- writing ----


def test_the_umask_decides_who_may_read(tmp_path):
    before = os.umask(0o027)
    try:
        write_checkpoint(tmp_path / "x.ckpt", {})
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "x.ckpt").stat().st_mode) == 0o640


@pytest.mark.parametrize("step", ["fsync", "replace"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_a_full_or_broken_disk_leaves_the_old_checkpoint(tmp_path, monkeypatch, step, number):
    write_checkpoint(tmp_path / "x.ckpt", {"w": TensorRecord(np.arange(3.0))})

    def fails(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(f"parallel_lab.base.files.os.{step}", fails)
    with pytest.raises(CheckpointWriteError, match=os.strerror(number)) as caught:
        write_checkpoint(tmp_path / "x.ckpt", {"w": TensorRecord(np.zeros(3))})
    assert isinstance(caught.value, OSError) and isinstance(caught.value, ParallelLabError)
    assert names(tmp_path) == ["x.ckpt"]
    assert read_checkpoint(tmp_path / "x.ckpt").tensors["w"].array.tolist() == [0.0, 1.0, 2.0]


def test_a_disk_that_is_full_in_the_middle_leaves_the_old_checkpoint(tmp_path):
    """A process that may write files of 64 KiB only (RLIMIT_FSIZE) saves 1 MiB."""
    code = f"""
import resource, signal, numpy as np
from parallel_lab.train.checkpoint import TensorRecord, write_checkpoint
from parallel_lab.base.errors import CheckpointWriteError
write_checkpoint("x.ckpt", {{"w": TensorRecord(np.arange(10))}})
signal.signal(signal.{signal.Signals(signal.SIGXFSZ).name}, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536))
try:
    write_checkpoint("x.ckpt", {{"w": TensorRecord(np.zeros(1 << 17))}})
except CheckpointWriteError as error:
    print("refused:", error)
"""
    with started(sys.executable, "-c", code, cwd=tmp_path) as run:
        _, output = run.wait()
    assert output.startswith("refused: x.ckpt: cannot be written: File too large"), output
    assert names(tmp_path) == ["x.ckpt"]
    assert read_checkpoint(tmp_path / "x.ckpt").tensors["w"].array.tolist() == list(range(10))


def test_parts_of_dead_writers_are_removed_and_those_of_living_ones_stay(tmp_path):
    import fcntl

    dead, living, other = (
        tmp_path / f".parallel_lab-{digit * 16}{end}" for digit, end in (("a", ".part"), ("b", ".part"), ("c", ".txt"))
    )
    for path in (dead, living, other):
        path.write_bytes(b"half")
    with living.open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        write_checkpoint(tmp_path / "x.ckpt", {})
        assert names(tmp_path) == sorted([living.name, other.name, "x.ckpt"])
    write_checkpoint(tmp_path / "x.ckpt", {})
    assert names(tmp_path) == sorted([other.name, "x.ckpt"])


# ---- files that are not checkpoints ----


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(CheckpointError, match=r"none\.ckpt: there is no such file"):
        read_checkpoint(tmp_path / "none.ckpt")


def test_a_pipe_is_refused_without_waiting(tmp_path):
    os.mkfifo(tmp_path / "x.ckpt")
    with pytest.raises(CheckpointError, match="not a regular file"):
        read_checkpoint(tmp_path / "x.ckpt")


def test_a_safetensors_file_without_our_sums_is_refused(tmp_path):
    safetensors.numpy.save_file({"w": np.zeros(3)}, tmp_path / "x.ckpt", metadata={"format": "pt"})
    with pytest.raises(CheckpointCorrupt, match="no checksums of ours"):
        read_checkpoint(tmp_path / "x.ckpt")
