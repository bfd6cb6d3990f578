"""Groups of ranks: answers by rank, failures that are reported, nothing left behind, and turns."""

import itertools
import json
import os
import signal
import subprocess
import sys
import time

import pytest

from tests.bench.collectives import BARE_OPS
from tests.bench.groups import LONGEST_BATCH, BenchError, RankGroup, interleaved_batches
from tests.bench.startup import cpu_seconds
from tests.crossed import each_of

ECHO = """
import argparse, os, sys
from tests.bench.groups import connect_rank, serve_rank

parser = argparse.ArgumentParser()
parser.add_argument("how", nargs="?")
parser.add_argument("--rank", type=int)
parser.add_argument("--ranks", type=int)
args = parser.parse_args()
if args.how == "mute":
    sys.exit("no such thing as a mute rank")
made = []

def make(order):
    made.append(order["op"])
    if order["op"] == "wrong" and args.rank == 1:
        raise ValueError("seven is not six")
    if order["op"] == "die" and args.rank == 1:
        os._exit(3)
    return lambda: {"rank": args.rank, "made": len(made), "pid": os.getpid()}

serve_rank(connect_rank(args.rank)[0], make, lambda: None)
"""


@pytest.fixture
def echo(tmp_path, monkeypatch):
    """A module whose ranks answer who they are, importable by children too; temporary files go to a known folder."""
    (tmp_path / "echo_rank.py").write_text(ECHO)
    (tmp_path / "tmp").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    yield "echo_rank"
    assert os.listdir(tmp_path / "tmp") == []


def test_every_rank_answers_and_a_case_is_made_once(echo):
    with RankGroup("echo", 3, echo) as group:
        first, again = group.ask({"op": "a", "iterations": 2}), group.ask({"op": "a", "iterations": 5})
        other = group.ask({"op": "b"})
    assert [a["rank"] for a in first] == [0, 1, 2] and all(a["seconds"] > 0 for a in first)
    assert [a["made"] for a in again] == [1, 1, 1] and [a["made"] for a in other] == [2, 2, 2]


@pytest.mark.exhaustive
def test_a_batch_takes_as_long_as_its_slowest_rank(echo, monkeypatch):
    with RankGroup("echo", 2, echo) as group:
        monkeypatch.setattr(group, "ask", lambda order: [{"seconds": 0.25}, {"seconds": float(order["iterations"])}])
        assert group.batch({"op": "a"}, 3) == 3.0


@pytest.mark.exhaustive
def test_parked_ranks_take_no_processor_time(echo):
    with RankGroup("echo", 2, echo) as group:
        pids = [a["pid"] for a in group.ask({"op": "a"})]
        time.sleep(0.2)  # the answer is sent before the rank goes back to its read
        before = [cpu_seconds(pid) for pid in pids]
        time.sleep(0.3)
        assert [cpu_seconds(pid) for pid in pids] == before  # not a single time slice


@pytest.mark.quick(1)
@each_of(
    "order, words",
    ({"op": "wrong"}, r"bench wrong: echo: rank 1: ValueError: seven is not six"),
    ({"op": "die"}, r"bench die: echo: ended"),
)
def test_a_rank_that_fails_ends_its_group_and_is_named(echo, order, words):
    with RankGroup("echo", 2, echo) as group:
        pids = [a["pid"] for a in group.ask({"op": "a"})]
        with pytest.raises(BenchError, match=words):
            group.ask(order)
        assert [cpu_seconds(pid) for pid in pids] == [None, None]
        with pytest.raises(BenchError, match="echo: has ended before"):  # the next case ended the whole benchmark
            group.batch({"op": "a"}, 1)


@pytest.mark.exhaustive
def test_bare_messages_bring_what_they_must():
    """Their ranks compare each case's result with the formula; an odd rank exchanges nothing."""
    with RankGroup("bare", 3, "tests.bench.peers", ["bare"]) as group:
        for op, size in itertools.product(BARE_OPS, (12, 3 << 20, 12)):
            assert group.batch({"op": op, "bytes": size, "ranks": 3}, 20) > 0


@pytest.mark.exhaustive
def test_a_group_that_does_not_start_tells_its_last_words(echo):
    with pytest.raises(BenchError, match=r"bench start: echo: ended while starting: no such thing as a mute rank"):
        RankGroup("echo", 2, echo, ["mute"])


@pytest.mark.exhaustive
@pytest.mark.faults("ranks at work")
def test_ranks_end_when_who_started_them_is_killed(echo):
    code = f"""
import json, sys, time
from tests.bench.groups import RankGroup
group = RankGroup("echo", 2, {echo!r})
print(json.dumps([[a["pid"] for a in group.ask({{"op": "a"}})], str(group.folder)]), flush=True)
time.sleep(60)
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, env=environment) as starter:
        pids, folder = json.loads(starter.stdout.readline())
        starter.send_signal(signal.SIGKILL)
        starter.wait()
    end = time.monotonic() + 5
    while any(cpu_seconds(pid) is not None for pid in pids) and time.monotonic() < end:
        time.sleep(0.02)
    assert [cpu_seconds(pid) for pid in pids] == [None, None]
    subprocess.run(["rm", "-r", folder], check=True)  # a process that is killed cannot remove it


class Recorded:
    """A competitor that answers from a list and keeps who was asked."""

    def __init__(self, name, asked, seconds, fails_at=None):
        self.name, self.asked, self.seconds, self.fails_at = name, asked, seconds, fails_at
        self.count = 0

    def batch(self, order, iterations):
        self.count += 1
        if self.count == self.fails_at:
            raise BenchError(f"{self.name} broke\nand more")
        self.asked.append((self.name, iterations))
        return self.seconds


@each_of(
    ("a_s", "b_s", "least", "counts"),
    (1e-3, 4e-3, 1, (20, 5)),  # batches last alike
    (9.0, 1e-9, 1, (1, LONGEST_BATCH)),  # one call at least, and a limit at most
    (9.0, 1e-3, 4, (4, 20)),  # as many as are asked for
)
def test_competitors_take_turns_and_batches_fill_their_time(a_s, b_s, least, counts):
    asked = []
    competitors = [Recorded("a", asked, a_s), Recorded("b", asked, b_s)]
    found, failed = interleaved_batches(competitors, {"op": "x"}, rounds=3, batch_s=0.02, least=least)
    assert found == {"a": [a_s] * 3, "b": [b_s] * 3} and failed == {}
    assert asked[4:] == [("a", counts[0]), ("b", counts[1])] * 3


@pytest.mark.parametrize("fails_at", [1, 2, 4])
def test_a_competitor_that_fails_is_left_out_and_the_others_go_on(fails_at):
    asked = []
    competitors = [Recorded("a", asked, 1e-3), Recorded("b", asked, 1e-3, fails_at)]
    found, failed = interleaved_batches(competitors, {"op": "x"}, rounds=3, batch_s=0.02)
    assert found == {"a": [1e-3] * 3} and failed == {"b": "b broke"}
