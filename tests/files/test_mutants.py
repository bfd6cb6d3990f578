"""Damaged and hostile files of every kind that is read: refused in one family of errors, or rightly read; within 2 s of
a processor and three times the file and 64 MiB of memory; and no damage passes a checksum.
"""

import gzip
import json
import mmap
import time
import zlib

import numpy as np
import pytest

from parallel_lab.base.errors import ParallelLabError
from parallel_lab.cost.schedules import Schedule
from tests.crossed import each_of
from tests.files.mutants import MOST_S, inflated, judged, misread, signed, tried, variant
from tests.files.readers import READERS, Reader, read_plain

SEED = 20261127
DRAWN = 720  # of each kind: 20,000 in all

pytestmark = pytest.mark.timeout(600)


def told(found) -> None:
    counts = ", ".join(f"{found[outcome]} {outcome}" for outcome in ("refused", "same", "taken"))
    print(f"{found['kind']}, seed {SEED}: {counts}; slowest {found['slowest_s']:.2f} s")
    assert not found["broken"], "\n".join(found["broken"][:5])


@pytest.mark.quick(8)
@pytest.mark.faults("files", cases=32)
@pytest.mark.parametrize("kind", READERS)
def test_a_few_variants_of_every_kind(tmp_path, kind):
    told(tried(kind, tmp_path, 12, SEED + 1))


@pytest.mark.faults("files", cases=3)
@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", READERS)
def test_hundreds_of_variants_of_every_kind(tmp_path, kind):
    told(tried(kind, tmp_path, DRAWN, SEED))


def closed(reader, path) -> bytes:
    """The good file, compact, without a checksum that would refuse any change."""
    reader.write(path)
    return signed(json.dumps(json.loads(path.read_bytes()), separators=(",", ":")).encode())


JSON = [kind for kind, reader in READERS.items() if reader.form == "json" and reader.is_file]


@pytest.mark.quick(7)
@pytest.mark.faults("files", cases=17)
@pytest.mark.parametrize("kind", JSON)
def test_what_two_readers_read_differently_is_refused(tmp_path, kind):
    reader, rng, taken = READERS[kind], np.random.default_rng([SEED, zlib.crc32(kind.encode())]), []
    path = tmp_path / reader.name
    good = closed(reader, path)
    for _ in range(16):
        what, data = misread(rng, good)
        path.write_bytes(signed(data))
        try:
            read_plain(reader, path)
            taken.append(what)
        except ParallelLabError:
            pass
    assert not taken


# files in which every key is known: one more is a misspelt one
CLOSED = ("manifest", "strategy", "group", "cluster", "class", "lab: CostLab")
WRONG = {  # kind: [(a part of the file, what stands there instead)]: a type, a sign or a number that nobody writes
    "manifest": [('"save":1', '"save":1.5'), ('"save":1', '"save":true'), ('"rank":0', '"rank":false')],
    "group": [('"version":1', '"version":"1"'), ('"ranks":[0,4]', '"ranks":[0,4.0]')],
    "cluster": [('"devices_per_node":8', '"devices_per_node":8.5'), ('"node_count":2', '"node_count":-2')],
    "class": [
        *(('"points":3', f'"points":{wrong}') for wrong in ("3.7", "6", "-1", "true", '"3"')),
        *(('"right":[6]', '"right":"6"'), ('"02.1"', "2.1")),
    ],
    "notebook": [('"source":["x = 1\\n","y"]', '"source":{"x = 1":0}'), ('"code"', '"cod"'), ('"test-x"', "null")],
    "request to end": [('"GracefulExit":1', '"GracefulExit":"1"'), ('"GracefulExit":1', '"GracefulExit":-1')],
    "lab: CostLab": [('"version":1', '"version":1.0')],
    "lab: MemoryLab": [('"set_zero",7500000000.0', f'"set_zero",{10**400}')],
}


@pytest.mark.parametrize(
    ("kind", "old", "new"),
    [(kind, "{", '{"misspelt":1,') for kind in CLOSED] + [(kind, *pair) for kind in WRONG for pair in WRONG[kind]],
)
def test_nothing_in_a_file_is_passed_over_or_rounded(tmp_path, kind, old, new):
    """1.5 saves were 1 save, "points": 3.7 were 3, and a misspelt key was as if it was not there."""
    reader = READERS[kind]
    path = tmp_path / reader.name
    good = closed(reader, path).decode()
    assert old in good
    path.write_bytes(signed(good.replace(old, new, 1).encode()))
    with pytest.raises(ParallelLabError):
        read_plain(reader, path)


# ---- that the judge sees what it is to see ----


def unsummed(path):
    """A reader that compares no checksum, has errors of its own, and takes all the memory that a file asks for."""
    data = path.read_bytes()
    if data.startswith(b"large"):
        with mmap.mmap(-1, 200 << 20) as pages:  # new ones: an array may take what was freed before
            pages[:: mmap.PAGESIZE] = bytes(len(pages) // mmap.PAGESIZE)
            return len(pages)
    if data.startswith(b"slow"):
        end = time.process_time() + MOST_S + 0.1
        while time.process_time() < end:
            pass
    return json.loads(data)["a"]


@pytest.mark.quick(1)
@each_of(
    ("data", "rule"),
    (b'{"a": 2}', "taken although"),
    (b"{", "another family: JSONDecodeError"),
    (b"{}", "another family: KeyError"),
    (b"large", "MiB for 5 bytes"),
    pytest.param(b"slow", "s for 4 bytes", marks=pytest.mark.exhaustive),
)
def test_the_judge_sees_every_rule_that_is_broken(tmp_path, data, rule):
    reader = Reader(lambda path: path.write_text('{"a": 1}'), unsummed, "json", sums=True)
    assert rule in judged(reader, tmp_path / "x", data, 1, True)[1]
    assert judged(reader, tmp_path / "x", b'{"a": 1}', 1, True)[:2] == ("same", "")


@pytest.mark.quick(1)
@pytest.mark.parametrize("kind", ["checkpoint", "manifest", "strategy"])
def test_a_file_signed_anew_is_judged_by_its_content(tmp_path, kind):
    """Otherwise all edits would end at the checksum, and nothing behind it would be tried."""
    reader, rng, said = READERS[kind], np.random.default_rng(SEED), set()
    path = tmp_path / reader.name
    reader.write(path)
    good = path.read_bytes()
    for _ in range(60):
        path.write_bytes(variant(rng, good, reader.form)[1])
        try:
            read_plain(reader, path)
        except ParallelLabError as error:
            said.add("sha256" in str(error))
    assert said == {True, False}
    assert reader.form == "header" or signed(good) == good


@pytest.mark.exhaustive
def test_packed_variants_are_unpacked_and_packed_again(tmp_path):
    reader, rng, inner = READERS["idx, packed"], np.random.default_rng(SEED), 0
    reader.write(tmp_path / "x.gz")
    good = (tmp_path / "x.gz").read_bytes()
    for _ in range(40):
        data = variant(rng, good, "packed")[1]
        try:
            inner += gzip.decompress(data) != gzip.decompress(good)
        except (OSError, EOFError, zlib.error):
            continue
    assert inner > 5


# ---- what once took long, or ended in an error of another family ----


@pytest.mark.parametrize("read", [Schedule.from_text, Schedule.from_csv], ids=["text", "csv"])
@each_of(
    ("text", "said"),
    ("0F99999999", "100,000,000 micro-batches"),
    ("99999999F0", "100,000,000 parts"),
    ("0F" + "9" * 5000, "is no action"),
    ("٣F٣", "is no action"),
    ("0F0 " * 300_000, "characters"),
    ids=["a late micro-batch", "a late part", "digits", "digits of another script", "long"],
)
def test_a_short_schedule_does_not_ask_for_a_hundred_million_actions(read, text, said):
    """Its check names each action that is missing."""
    with pytest.raises(ParallelLabError, match=said) as caught:
        read(text)
    assert len(str(caught.value)) < 7000


@pytest.mark.exhaustive
def test_a_filled_up_file_is_as_long_as_it_is_said_to_be():
    rng = np.random.default_rng(SEED)
    for _ in range(5):
        what, data = inflated(rng, b'{"a": [1], "b": {"c": "x"}}')
        assert len(data) > 0.2 * int(what.partition(" ")[0].replace(",", ""))
