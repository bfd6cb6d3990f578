"""Files made to do harm: each is refused in one class, quickly, with little memory, and runs nothing."""

import hashlib
import json
import os
import pickle
import sys
import zlib

import numpy as np
import pytest

from parallel_lab.base.errors import CheckpointError, escape
from parallel_lab.train.checkpoint import read_checkpoint, read_manifest
from parallel_lab.train.checkpoint.folder import MANIFEST
from parallel_lab.train.checkpoint.format import with_sum
from tests.processes.launched import started

ZERO = "0" * 64


def file_bytes(header, elements=b"", length=None):
    text = header if isinstance(header, bytes) else json.dumps(header, separators=(",", ":")).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + elements


def signed(entries, table, meta="{}", elements=b"", version="1"):
    """A file with right sums around whatever content: what somebody who knows the format can make."""
    table = table if isinstance(table, str) else json.dumps(table)
    texts = {"format": "parallel_lab-checkpoint", "version": version, "sha256": ZERO, "tensors": table, "meta": meta}
    return file_bytes(
        with_sum(json.dumps({"__metadata__": texts, **entries}, separators=(",", ":")).encode()), elements
    )


def tensor(name="w", shape=(2,), dtype="F32", offsets=(0, 8), elements=b"\0" * 8, **table):
    entry = {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}
    known = {"crc32": zlib.crc32(elements), "global_shape": list(shape), "layout": None, "rank": 0, **table}
    return signed({name: entry}, {name: known}, elements=elements)


class Bomb:
    def __reduce__(self):
        return os.system, ("touch was-run",)


def layout(matrix, tensor_map):
    return {"device_matrix": matrix, "tensor_map": tensor_map}


HOSTILE = {
    "empty": b"",
    "seven-bytes": b"1234567",
    "pickle": pickle.dumps(Bomb()),
    "pickle-protocol-0": pickle.dumps(Bomb(), 0),
    "pickle-behind-a-length": file_bytes(pickle.dumps(Bomb())),
    "zip": b"PK\x03\x04" + b"\0" * 100,
    "npy-of-objects": b"\x93NUMPY\x01\x00\x76\x00{'descr': '|O', 'fortran_order': False, 'shape': (1,), }".ljust(128)
    + pickle.dumps(Bomb()),
    "python": b"__import__('os').system('touch was-run')\n",
    "html": b"<script>alert(1)</script>" * 10,
    "header-of-8-exabytes": file_bytes(b"{}", length=2**63 - 1),
    "header-of-16-exabytes": file_bytes(b"{}", length=2**64 - 1),
    "header-one-byte-too-long": file_bytes(b"{}", length=3),
    "header-of-nothing": file_bytes(b"", length=0),
    "header-of-17-mib": file_bytes(b" " * (17 << 20)),
    "header-deep": file_bytes(b"[" * 100_000),
    "header-deep-objects": file_bytes(b'{"a":' * 100_000),
    "header-of-many-items": file_bytes(b"[" + b"0," * 2_000_000 + b"0]"),
    "header-of-many-objects": file_bytes(b"[" + b"{}," * 1_500_000 + b"0]"),
    "header-of-nan": file_bytes(b'{"__metadata__":NaN}'),
    "header-is-a-list": file_bytes([]),
    "header-is-a-number": file_bytes(b"17"),
    "header-not-utf-8": file_bytes(b'{"\xff\xfe":1}'),
    "no-metadata": file_bytes({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}, b"\0" * 8),
    "metadata-is-a-list": file_bytes({"__metadata__": []}),
    "metadata-of-numbers": file_bytes(
        {"__metadata__": {"format": "parallel_lab-checkpoint", "version": 1, "sha256": 2, "tensors": 3, "meta": 4}}
    ),
    "another-version": signed({}, {}, version="99"),
    "table-is-no-json": signed({}, "("),
    "table-is-a-list": signed({}, []),
    "table-deep": signed({}, "[" * 1000),
    "table-names-more": signed({}, {"w": {}}),
    "meta-is-a-list": signed({}, {}, meta="[]"),
    "meta-half-a-pair-of-surrogates": signed({}, {}, meta="\ud800"),
    "table-half-a-pair-of-surrogates": signed({}, '"\ud800"'),
    "meta-deep": signed({}, {}, meta='{"a":' * 1000),
    "meta-twice": signed({}, {}, meta='{"a":1,"a":2}'),
    "entry-is-a-list": signed({"w": []}, {"w": {}}),
    "entry-without-dtype": signed({"w": {"shape": [2], "data_offsets": [0, 8]}}, {"w": {}}),
    "name-of-the-root": tensor("/etc/passwd"),
    "name-above": tensor("../../x"),
    "name-with-nul": tensor("a\0b"),
    "name-with-control": tensor("a\x1b[31m"),
    "name-too-long": tensor("n" * 300),
    "name-empty": tensor(""),
    "name-reversed": tensor("\u202etpkc"),
    "name-lone-surrogate": tensor("\ud800"),
    "shape-of-8-terabytes": tensor(shape=(2**41,), offsets=(0, 2**43)),
    "shape-that-overflows": tensor(shape=(2**32, 2**32), offsets=(0, 0)),
    "shape-empty-and-huge": tensor(shape=(0, 2**62), offsets=(0, 0), elements=b""),
    "shape-negative": tensor(shape=(-2,)),
    "shape-of-text": tensor(shape=("2",)),
    "shape-of-bools": tensor(shape=(True, 2)),
    "shape-of-floats": tensor(shape=(2.0,)),
    "shape-of-100-dims": tensor(shape=(1,) * 100, offsets=(0, 4), elements=b"\0" * 4),
    "dtype-unknown": tensor(dtype="F128"),
    "dtype-of-objects": tensor(dtype="|O"),
    "dtype-a-list": tensor(dtype=["F32"]),
    "offsets-beyond-the-end": tensor(offsets=(8, 16)),
    "offsets-backwards": tensor(offsets=(8, 0)),
    "offsets-negative": tensor(offsets=(-8, 0)),
    "offsets-of-floats": tensor(offsets=(0, 8.0)),
    "offsets-three": tensor(offsets=(0, 8, 9)),
    "elements-left-over": tensor(elements=b"\0" * 16),
    "overlapping": signed(
        {n: {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]} for n in "ab"},
        {n: {"crc32": zlib.crc32(b"\0" * 8), "global_shape": [2], "layout": None, "rank": 0} for n in "ab"},
        elements=b"\0" * 8,
    ),
    "rank-negative": tensor(rank=-1),
    "rank-a-bool": tensor(rank=True),
    "rank-huge": tensor(rank=10**18),
    "crc-a-text": tensor(crc32="0"),
    "global-shape-other": tensor(global_shape=[4]),
    "layout-a-number": tensor(layout=3),
    "layout-unfit": tensor(layout=layout([2], [[0]])),
    "layout-axis-missing": tensor(layout=layout([2], [[5]]), global_shape=[4]),
    "layout-axis-twice": tensor(layout=layout([2], [[0, 0]]), global_shape=[8]),
    "layout-of-a-billion-ranks": tensor(layout=layout([10**9], [[0]]), global_shape=[2 * 10**9]),
    "layout-of-text": tensor(layout=layout("22", [[0]]), global_shape=[4]),
    "layout-of-zero": tensor(layout=layout([0], [[]])),
    "layout-of-100-axes": tensor(layout=layout([1] * 100, [[]])),
}


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_file_is_refused_in_one_class(tmp_path, monkeypatch, data):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.ckpt").write_bytes(data)
    with pytest.raises(CheckpointError) as caught:
        read_checkpoint("x.ckpt")
    assert str(caught.value).startswith("x.ckpt")
    assert str(caught.value).isprintable() and len(str(caught.value)) < 1500
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.ckpt"]


def test_the_same_maker_makes_a_good_file_when_it_does_no_harm(tmp_path):
    """So that the refusals above are for the harm, and not for the maker."""
    elements = np.arange(2, dtype="<f4").tobytes()
    (tmp_path / "x.ckpt").write_bytes(
        tensor("fc.w", elements=elements, layout=layout([2, 3], [[1]]), global_shape=[4], rank=3)
    )
    record = read_checkpoint(tmp_path / "x.ckpt").tensors["fc.w"]
    assert (record.array.tolist(), record.global_shape, record.rank) == ([0.0, 1.0], (4,), 3)


def test_a_name_with_markup_is_kept_as_text(tmp_path):
    """It may be a name; a page that shows it escapes it, and errors quote it on one line."""
    name = "<img src=x onerror=alert(1)>"
    (tmp_path / "x.ckpt").write_bytes(tensor(name))
    assert list(read_checkpoint(tmp_path / "x.ckpt").tensors) == [name]
    assert "<" not in escape(name)


# ---- manifests ----

FILE = {"name": "rank_0-1.ckpt", "rank": 0, "size_bytes": 8, "sha256": "a" * 64}
STORED = {"dtype": "float32", "global_shape": [2], "layout": None, "holders": "all"}


def manifest(**fields):
    content = {"format": "parallel_lab-manifest", "version": 1, "sha256": ZERO, "save": 1}
    content |= {"files": [FILE], "tensors": {"w": STORED}, "meta": {}}
    data = json.dumps({**content, **fields}).encode()
    return data.replace(ZERO.encode(), hashlib.sha256(data).hexdigest().encode(), 1)


MANIFESTS = {
    "empty": b"",
    "pickle": pickle.dumps(Bomb()),
    "deep": b"[" * 100_000,
    "huge": b'"' + b"x" * (17 << 20) + b'"',
    "a-list": b"[]",
    "twice": manifest()[:-1] + b', "save": 2}',
    "file-above": manifest(files=[{**FILE, "name": "../x.ckpt"}]),
    "file-of-the-root": manifest(files=[{**FILE, "name": "/etc/passwd"}]),
    "file-of-another-name": manifest(files=[{**FILE, "name": "x.ckpt"}]),
    "file-with-more-fields": manifest(files=[{**FILE, "run": "x"}]),
    "files-none": manifest(files=[]),
    "files-a-text": manifest(files="rank_0-1.ckpt"),
    "tensor-name": manifest(tensors={"../w": STORED}),
    "tensor-dtype": manifest(tensors={"w": {**STORED, "dtype": "O"}}),
    "tensor-dtype-code": manifest(tensors={"w": {**STORED, "dtype": "__import__('os')"}}),
    "tensor-shape": manifest(tensors={"w": {**STORED, "global_shape": [2**60]}}),
    "tensor-holders": manifest(tensors={"w": {**STORED, "holders": [[0, 7]]}}),
    "tensor-holders-of-text": manifest(tensors={"w": {**STORED, "holders": ["ab"]}}),
    "tensor-rank": manifest(tensors={"w": {**STORED, "layout": layout([2], [[0]]), "holders": [[5, 0]]}}),
    "save-a-text": manifest(save="one"),
    "meta-a-number": manifest(meta=3),
    "version": manifest(version=99),
}


@pytest.mark.parametrize("data", MANIFESTS.values(), ids=MANIFESTS)
def test_a_hostile_manifest_is_refused_in_one_class(tmp_path, data):
    (tmp_path / MANIFEST).write_bytes(data)
    with pytest.raises(CheckpointError):
        read_manifest(tmp_path)


def test_the_maker_of_manifests_makes_good_ones_too(tmp_path):
    (tmp_path / MANIFEST).write_bytes(manifest())
    assert read_manifest(tmp_path).tensors["w"].global_shape == (2,)


# ---- what loading does besides ----


def test_loading_hostile_files_runs_nothing_and_takes_little_memory(tmp_path):
    """An audit hook sees unpickling, exec, processes, connections; the largest file bounds the largest resident set."""
    for i, data in enumerate([*HOSTILE.values(), tensor("good")]):
        (tmp_path / f"{i:03}.ckpt").write_bytes(data)
    code = """
import os, resource, sys, time
from parallel_lab.train.checkpoint import load_checkpoint, read_checkpoint
from parallel_lab.base.errors import CheckpointError
from parallel_lab.train.checkpoint.strategy_file import load_strategy
names = sorted(os.listdir())
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
seen, slowest = [], 0.0
watched = ("pickle.", "marshal.", "exec", "compile", "import", "subprocess.", "socket.")
watched += ("os.system", "os.exec", "os.posix_spawn", "os.fork")
sys.addaudithook(lambda event, args: seen.append(event) if event.startswith(watched) else None)
refused = 0
for name in names:
    for load in (read_checkpoint, load_checkpoint, load_strategy):
        start = time.perf_counter()
        try:
            load(name)
        except CheckpointError:
            refused += 1
        slowest = max(slowest, time.perf_counter() - start)
grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024
print(refused, len(names), grown, sorted(set(seen)), f"{slowest:.2f}", sep="|")
"""
    with started(sys.executable, "-c", code, cwd=tmp_path) as run:
        status, output = run.wait(120)
    assert status == 0, output
    refused, count, grown, events, slowest = output.strip().split("|")
    print(f"resident set +{grown} MiB, slowest {slowest} s")
    assert int(refused) == 3 * (int(count) - 1) + 1  # the good file is not a strategy file
    assert events == "[]"
    largest = max(path.stat().st_size for path in tmp_path.iterdir()) >> 20
    assert int(grown) <= 3 * largest + 64
