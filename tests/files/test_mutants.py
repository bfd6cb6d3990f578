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
from tests.files.mutants import MOST_S, inflated, judged, signed, tried, variant
from tests.files.readers import READERS, Reader, read_plain

SEED = 20261127
DRAWN = 720  # of each kind: 20,000 in all

pytestmark = pytest.mark.timeout(600)


def told(found) -> None:
    counts = ", ".join(f"{found[outcome]} {outcome}" for outcome in ("refused", "same", "taken"))
    print(f"{found['kind']}, seed {SEED}: {counts}; slowest {found['slowest_s']:.2f} s")
    assert not found["broken"], "\n".join(found["broken"][:5])


@pytest.mark.faults("files")
@pytest.mark.parametrize("kind", READERS)
def test_a_few_variants_of_every_kind(tmp_path, kind):
    told(tried(kind, tmp_path, 12, SEED + 1))


@pytest.mark.faults("files", cases=3)
@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", READERS)
def test_hundreds_of_variants_of_every_kind(tmp_path, kind):
    told(tried(kind, tmp_path, DRAWN, SEED))


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


@pytest.mark.parametrize(
    ("data", "rule"),
    [
        (b'{"a": 2}', "taken although"),
        (b"{", "another family: JSONDecodeError"),
        (b"{}", "another family: KeyError"),
        (b"large", "MiB for 5 bytes"),
        pytest.param(b"slow", "s for 4 bytes", marks=pytest.mark.exhaustive),
    ],
)
def test_the_judge_sees_every_rule_that_is_broken(tmp_path, data, rule):
    reader = Reader(lambda path: path.write_text('{"a": 1}'), unsummed, "json", sums=True)
    assert rule in judged(reader, tmp_path / "x", data, 1, True)[1]
    assert judged(reader, tmp_path / "x", b'{"a": 1}', 1, True)[:2] == ("same", "")


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
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("0F99999999", "100,000,000 micro-batches"),
        ("99999999F0", "100,000,000 parts"),
        ("0F" + "9" * 5000, "is no action"),
        ("٣F٣", "is no action"),
        ("0F0 " * 300_000, "characters"),
    ],
    ids=["a late micro-batch", "a late part", "digits", "digits of another script", "long"],
)
def test_a_short_schedule_does_not_ask_for_a_hundred_million_actions(read, text, said):
    """Its check names each action that is missing."""
    with pytest.raises(ParallelLabError, match=said) as caught:
        read(text)
    assert len(str(caught.value)) < 7000


def test_a_filled_up_file_is_as_long_as_it_is_said_to_be():
    rng = np.random.default_rng(SEED)
    for _ in range(5):
        what, data = inflated(rng, b'{"a": [1], "b": {"c": "x"}}')
        assert len(data) > 0.2 * int(what.partition(" ")[0].replace(",", ""))
