"""Damaged files: each is noticed, in one class, by its name; and the tooth: without sums half of them would pass."""

import json
import zlib
from dataclasses import replace

import numpy as np
import pytest
import safetensors
import safetensors.numpy

from parallel_lab.base.errors import CheckpointCorrupt, CheckpointError
from parallel_lab.layout.tensor_layout import TensorLayout
from parallel_lab.train.checkpoint import TensorRecord, read_checkpoint, save_distributed, write_checkpoint
from parallel_lab.train.checkpoint.folder import MANIFEST, load_distributed
from tests.checkpoint.drawn import draw_array, parts_of, same_bits
from tests.checkpoint.ranks import run_ranks
from tests.files.mutants import damaged

MUTANTS = 1000


@pytest.fixture
def small(tmp_path, rng):
    layout = TensorLayout((2, 2), (0, -1))
    part = draw_array(rng, (3, 4))
    tensors = {
        "w": TensorRecord(part, (6, 4), layout, 1),
        "v": TensorRecord(draw_array(rng, (3, 4))),
        "moments.w": TensorRecord(np.array(part), (6, 4), layout, 1),
        "half": TensorRecord(draw_array(rng, (5,), "float16")),
        "step": TensorRecord(np.int64(7)),
    }
    write_checkpoint(tmp_path / "x.ckpt", tensors, meta={"epoch": 3})
    return tmp_path / "x.ckpt"


@pytest.mark.exhaustive
def test_a_thousand_damaged_files_are_all_noticed(small, rng):
    data, path = small.read_bytes(), small.with_name("mutant.ckpt")
    silent, wrong_class = [], []
    for _ in range(MUTANTS):
        what, mutant = damaged(rng, data)
        path.write_bytes(mutant)
        try:
            read_checkpoint(path)
            silent.append(what)
        except CheckpointCorrupt as error:
            if not str(error).startswith(str(path)):
                wrong_class.append(f"{what}: {error}")
        except Exception as error:
            wrong_class.append(f"{what}: {error!r}")
    assert (silent, wrong_class) == ([], [])


def test_without_the_sums_many_of_them_would_pass(small, rng):
    """The tooth: what the safetensors library, which has no checksums, makes of the same damages."""
    data, path, passed = small.read_bytes(), small.with_name("mutant.ckpt"), 0
    for _ in range(300):
        path.write_bytes(damaged(rng, data)[1])
        try:
            safetensors.numpy.load_file(path)
            passed += 1
        except (safetensors.SafetensorError, OSError, KeyError, TypeError, ValueError):
            continue
    assert passed > 50


@pytest.mark.exhaustive
def test_every_single_bit_of_a_file_counts(small):
    """Not drawn: all bits of the first 64 bytes and of the last 64, which are elements."""
    data, path = small.read_bytes(), small.with_name("mutant.ckpt")
    places = [*range(64), *range(len(data) - 64, len(data))]
    silent = []
    for place in places:
        for bit in range(8):
            mutant = bytearray(data)
            mutant[place] ^= 1 << bit
            path.write_bytes(mutant)
            try:
                read_checkpoint(path)
                silent.append((place, bit))
            except CheckpointCorrupt:
                continue
    assert silent == []


def test_the_tensor_with_the_damage_is_named(small):
    data = bytearray(small.read_bytes())
    data[-1] ^= 1  # the last element of the last tensor
    small.write_bytes(data)
    with pytest.raises(CheckpointCorrupt, match=r"x\.ckpt, tensor 'step': the crc32 of its 8 bytes"):
        read_checkpoint(small)


# ---- edits by someone who knows the format, but not the sums ----


def edited(path, change):
    """The file with its header as `change` leaves it: (header, table of tensors) are changed in place."""
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    table = json.loads(header["__metadata__"]["tensors"])
    change(header, table)
    header["__metadata__"]["tensors"] = json.dumps(table, separators=(",", ":"))
    text = json.dumps(header, separators=(",", ":")).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + length :])


EDITS = {
    "swapped-tensors": lambda h, t: h.update(w=h["v"], v=h["w"]),
    "renamed": lambda h, t: (h.update(u=h.pop("v")), t.update(u=t.pop("v"))),
    "left-out": lambda h, t: (h.pop("step"), t.pop("step")),
    "other-rank": lambda h, t: t["w"].update(rank=2),
    "other-layout": lambda h, t: t["w"]["layout"].update(device_matrix=[4, 1]),
    "other-global-shape": lambda h, t: t["w"].update(global_shape=[3, 4], layout=None),
    "other-dtype": lambda h, t: h["w"].update(dtype="I32"),
    "turned": lambda h, t: h["v"].update(shape=[4, 3]),
    "other-meta": lambda h, t: h["__metadata__"].update(meta='{"epoch":4}'),
    "more-metadata": lambda h, t: h["__metadata__"].update(more="x"),
    "no-metadata": lambda h, t: h["__metadata__"].pop("sha256"),
    "no-sums-of-elements": lambda h, t: t["v"].update(crc32=zlib.crc32(b"")),
}


@pytest.mark.parametrize("change", EDITS.values(), ids=EDITS)
def test_an_edited_header_is_noticed(small, change):
    edited(small, change)
    with pytest.raises(CheckpointCorrupt, match="header"):
        read_checkpoint(small)


def test_a_key_that_stands_twice_is_noticed(small):
    data = small.read_bytes()
    length = int.from_bytes(data[:8], "little")
    text = data[8 : 8 + length].rstrip()[:-1] + b',"v":{"dtype":"F32","shape":[3,4],"data_offsets":[0,48]}}'
    small.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + length :])
    with pytest.raises(CheckpointCorrupt, match="'v' stands twice"):
        read_checkpoint(small)


# ---- folders ----


@pytest.fixture
def folder(tmp_path, rng):
    layout, full = TensorLayout((2, 2), (1, -1)), draw_array(rng, (4, 6))
    records = [{"w": part, "s": TensorRecord(np.float32(1))} for part in parts_of(full, layout, 4)]
    run_ranks(4, lambda r, b: save_distributed(tmp_path / "d", records[r], rank=r, world_size=4, barrier=b))
    return tmp_path / "d", full


@pytest.mark.exhaustive
def test_damage_to_any_file_of_a_folder_is_noticed_or_harmless(folder, rng):
    """A file that the reader does not need (a replica's) may be damaged; nothing wrong is ever returned."""
    path, full = folder
    files = sorted(path.iterdir())
    originals = {file: file.read_bytes() for file in files}
    silent, noticed = [], 0
    for _ in range(400):
        file = files[int(rng.integers(len(files)))]
        what, mutant = damaged(rng, originals[file])
        file.write_bytes(mutant)
        try:
            if not same_bits(load_distributed(path)["w"].array, full):
                silent.append(f"{file.name}: {what}")
        except CheckpointError:
            noticed += 1
        file.write_bytes(originals[file])
    assert silent == []
    assert noticed > 150  # the manifest and two of the four rank files are needed


@pytest.mark.parametrize("kind", ["swapped", "missing", "older", "foreign"])
def test_a_file_that_the_manifest_does_not_mean_is_noticed(folder, rng, kind):
    path, _ = folder
    one, two = path / "rank_0-1.ckpt", path / "rank_2-1.ckpt"
    if kind == "swapped":
        a, b = one.read_bytes(), two.read_bytes()
        one.write_bytes(b), two.write_bytes(a)
    elif kind == "missing":
        two.unlink()
    elif kind == "older":  # whole and valid, with other values
        record = read_checkpoint(two).tensors["w"]
        write_checkpoint(two, {"w": replace(record, array=record.array + 1), "s": TensorRecord(np.float32(1))})
    else:
        manifest = json.loads((path / MANIFEST).read_text())
        manifest["files"][0]["name"] = "../../etc/passwd"
        (path / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(CheckpointError, match=r"manifest|no such file"):
        load_distributed(path)
