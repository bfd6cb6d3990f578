import dataclasses
import json
import os
from itertools import pairwise

import pytest

from parallel_lab.base.cluster import get_cluster
from parallel_lab.base.errors import ArgumentError, DataFileError
from parallel_lab.base.events import Event, EventLog, chrome_trace, from_dicts, save_chrome_trace, to_dicts
from parallel_lab.cost import predict_timeline
from tests.cost.nets import seed_plan
from tests.crossed import each_of

FIRST = Event(0, 3, "forward", "compute", "matmul", "MatMul", 1.0, 1.5)
LOG = EventLog(
    (
        FIRST,
        Event(0, 3, "forward", "communication", "sum", "all_reduce", 1.5, 2.0, (0, 1), 64),
        Event(1, 3, "forward", "wait", "sum", "all_reduce", 1.25, 1.5, (0, 1)),
        Event(1, 3, "forward", "compute", "matmul", "MatMul", 1.0, 1.25),
        Event(1, 3, "forward", "communication", "sum", "all_reduce", 1.5, 2.0, (0, 1), 64),
        Event(1, 4, "backward", "communication", "grad", "all_gather", 2.0, 2.125, (1, 5), 8),
    )
)


def predicted() -> EventLog:
    return predict_timeline(seed_plan(), get_cluster("laptop"), slowdown={3: 2.0}).log


# ---- the log ----


@each_of(
    ("fields", "text"),
    *(({"end_s": 0.5}, "ends no earlier"), ({"start_s": float("nan")}, "finite"), ({"end_s": float("inf")}, "finite")),
    *(({"rank": -1}, "rank -1"), ({"bytes": -4}, "-4 bytes"), ({"source": "guessed"}, "guessed")),
)
def test_events_that_make_no_sense_are_refused(fields, text):
    with pytest.raises(ArgumentError, match=text):
        dataclasses.replace(FIRST, **fields)


@each_of(
    ("wanted", "positions"),
    ({"rank": 0}, [0, 1]),
    ({"kind": ["compute", "wait"]}, [0, 2, 3]),
    ({"rank": range(1, 9), "step": 3}, [2, 3, 4]),
    ({"group": (1, 5)}, [5]),
    ({"name": "matmul", "rank": {1}}, [3]),
    ({"phase": "update"}, []),
    ({}, [0, 1, 2, 3, 4, 5]),
)
def test_filter_keeps_the_events_that_match_every_field(wanted, positions):
    assert LOG.filter(**wanted) == EventLog(tuple(LOG.events[i] for i in positions))


def test_filter_refuses_fields_that_events_do_not_have():
    with pytest.raises(ArgumentError, match="'ranks' is not known"):
        LOG.filter(ranks=0)


def test_a_step_lasts_from_its_first_start_on_any_rank_to_its_last_end_on_any():
    late = Event(1, 3, "forward", "compute", "late", "ReLU", 2.0, 2.75)
    assert EventLog((late, *LOG)).step_times_s() == {3: 2.75 - 1.0, 4: 0.0}  # step 4 ends before step 3 does


def test_what_two_steps_share_counts_once():
    """Rank 0 is through at 2 and begins step 1, rank 1 still has one second of step 0: 6 s in all, as steps are 3 s."""
    work = [(0, 0, 0.0, 2.0), (1, 0, 0.0, 3.0), (0, 1, 2.0, 5.0), (1, 1, 3.0, 6.0)]
    log = EventLog(tuple(Event(rank, step, "forward", "compute", "a", "Add", *at) for rank, step, *at in work))
    assert log.step_times_s() == {0: 3.0, 1: 3.0}
    assert log.bubbles() == {0: pytest.approx(1 / 6), 1: 0.0}
    anew = EventLog(
        tuple(dataclasses.replace(e, start_s=e.start_s - 2 * e.step, end_s=e.end_s - 2 * e.step) for e in log)
    )
    assert anew.step_times_s() == {0: 3.0, 1: 4.0}  # a simulated clock, which begins each step at 0


def test_steps_tell_the_events_of_each_training_step():
    late = Event(1, 3, "forward", "compute", "late", "ReLU", 2.0, 2.75)
    steps = EventLog((*LOG, late)).steps()
    assert list(steps) == [3, 4]
    assert steps[3] == EventLog((*LOG.events[:5], late)) and steps[4] == EventLog(LOG.events[5:])


def test_lanes_are_in_order_of_time():
    lanes = LOG.lanes()
    assert list(lanes) == [0, 1]
    assert [e.kind for e in lanes[1]] == ["compute", "wait", "communication", "communication"]


def test_totals_add_up_each_message_over_ranks_and_steps():
    first, second = LOG.totals()
    assert (first.name, first.count, first.bytes, first.seconds, first.wait_s) == ("sum", 2, 128, 1.0, 0.25)
    assert (second.phase, second.op, second.count, second.bytes) == ("backward", "all_gather", 1, 8)
    assert (second.seconds, second.wait_s) == (0.125, 0.0)


def test_the_log_knows_its_ranks_its_span_and_its_seconds():
    assert (LOG.ranks, LOG.start_s, LOG.end_s, len(LOG)) == ((0, 1), 1.0, 2.125, 6)
    assert LOG.seconds(rank=1, kind="communication") == 0.625
    assert (EventLog().end_s, EventLog().totals()) == (0.0, ())
    assert len(LOG + LOG) == 12


# ---- plain data ----


def test_measured_work_counts_while_a_processor_was_at_it():
    """Two ranks on one core for 4 s: each works for 2 s, whenever they had the core."""
    work = [dataclasses.replace(FIRST, rank=rank, start_s=0.0, end_s=4.0, busy_s=2.0) for rank in (0, 1)]
    assert EventLog(tuple(work)).bubbles() == {3: 0.5}
    assert (FIRST.work_s, work[0].work_s, work[0].duration_s) == (0.5, 2.0, 4.0)


def test_a_log_comes_back_from_json_as_it_was():
    log = predicted() + LOG + EventLog((dataclasses.replace(FIRST, busy_s=0.25),))
    assert from_dicts(json.loads(json.dumps(to_dicts(log)))) == log


def test_a_log_is_loaded_from_the_file_of_a_run(tmp_path):
    path = tmp_path / "run.json"
    path.write_text(json.dumps({**chrome_trace(LOG), "events": to_dicts(LOG)}))
    assert EventLog.load(path) == LOG


@pytest.mark.parametrize("content", [None, "[]", "{", '{"traceEvents": []}', '{"events": 3}'])
def test_a_file_without_events_is_refused(tmp_path, content):
    path = tmp_path / "run.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(DataFileError, match=r"run.json.*--events"):
        EventLog.load(path)


@each_of(
    ("change", "text"),
    ({"rank": "0"}, "entry 1.*rank='0'"),
    ({"rank": True}, "entry 1.*rank=True"),
    ({"colour": "red"}, "entry 1.*'colour' is not known"),
    ({"group": [0, "1"]}, "entry 1.*group"),
    ({"source": "guessed"}, "guessed"),
)
def test_data_that_is_not_an_event_is_refused_by_entry_and_field(change, text):
    data = to_dicts(LOG)
    data[1] = {**data[1], **change}
    with pytest.raises(ArgumentError, match=text):
        from_dicts(data)


def test_a_missing_field_is_named():
    data = to_dicts(LOG)
    del data[0]["start_s"]
    with pytest.raises(ArgumentError, match=r"entry 0.*'start_s' is missing"):
        from_dicts(data)


# ---- Chrome trace ----


def test_the_trace_keeps_the_rules_of_the_format():
    log = predicted() + LOG
    trace = json.loads(json.dumps(chrome_trace(log), allow_nan=False))
    entries = trace["traceEvents"]
    assert trace["displayTimeUnit"] in ("ms", "ns")
    assert {e["ph"] for e in entries} == {"X", "M"}
    for entry in entries:
        assert isinstance(entry["name"], str) and isinstance(entry["pid"], int) and isinstance(entry["tid"], int)
    bars = [e for e in entries if e["ph"] == "X"]
    assert len(bars) == len(log)
    assert all(e["ts"] >= 0 and e["dur"] >= 0 and isinstance(e["cat"], str) for e in bars)
    assert [e["ts"] for e in bars] == sorted(e["ts"] for e in bars)
    named = {(e["pid"], e["tid"]): e["args"]["name"] for e in entries if e["name"] == "thread_name"}
    assert {(e["pid"], e["tid"]) for e in bars} == set(named)
    assert {e["pid"] for e in bars} == {e["pid"] for e in entries if e["name"] == "process_name"}


def test_bars_of_one_rank_do_not_overlap_in_the_trace():
    bars = [e for e in chrome_trace(predicted())["traceEvents"] if e["ph"] == "X"]
    for tid in range(8):
        lane = [e for e in bars if e["tid"] == tid]
        # times are whole nanoseconds, so half of one is what adding two decimal fractions may be off
        assert all(a["ts"] + a["dur"] <= b["ts"] + 0.0005 for a, b in pairwise(lane))


def test_messages_that_were_started_are_drawn_one_after_the_other():
    """The second is handed over while the first travels; on one thread the two bars once overlapped."""
    sent = {"rank": 0, "step": 0, "phase": "backward", "kind": "communication", "op": "all_reduce"}
    sent |= {"group": (0, 1), "bytes": 8, "overlapped": True}
    events = [
        Event(name="first", start_s=0.0, end_s=3.0, **sent),
        Event(name="second", start_s=1.0, end_s=5.0, **sent),
        Event(name="third", start_s=6.0, end_s=7.0, **sent),
        Event(name="other rank", start_s=1.0, end_s=2.0, **{**sent, "rank": 1}),
    ]
    bars = {e["name"]: (e["ts"], e["dur"]) for e in chrome_trace(events)["traceEvents"] if e["ph"] == "X"}
    assert bars == {"first": (0, 3e6), "second": (3e6, 2e6), "third": (6e6, 1e6), "other rank": (1e6, 1e6)}


def test_times_are_microseconds_from_the_start_of_the_source():
    bars = [e for e in chrome_trace(LOG)["traceEvents"] if e["ph"] == "X"]
    assert [(e["name"], e["tid"], e["ts"], e["dur"]) for e in bars] == [
        ("matmul", 0, 0, 500_000),
        ("matmul", 1, 0, 250_000),
        ("sum", 1, 250_000, 250_000),
        ("sum", 0, 500_000, 500_000),
        ("sum", 1, 500_000, 500_000),
        ("grad", 1, 1_000_000, 125_000),
    ]
    said = {"step": 3, "phase": "forward", "op": "all_reduce", "source": "measured"}
    assert bars[3]["args"] == {**said, "group": [0, 1], "bytes": 64}


def test_each_source_is_a_process_of_its_own():
    other = dataclasses.replace(FIRST, source="predicted", start_s=50.0, end_s=50.5)
    trace = chrome_trace([FIRST, other])["traceEvents"]
    processes = {e["args"]["name"]: e["pid"] for e in trace if e["name"] == "process_name"}
    assert set(processes) == {"predicted", "measured"}
    assert {(e["pid"], e["ts"]) for e in trace if e["ph"] == "X"} == {(pid, 0) for pid in processes.values()}


def test_an_empty_log_is_a_valid_trace():
    assert chrome_trace([]) == {"traceEvents": [], "displayTimeUnit": "ms"}


def test_a_saved_trace_is_the_trace_and_leaves_nothing_else(tmp_path):
    path = save_chrome_trace(LOG, tmp_path / "step.json")
    assert json.loads(path.read_text(encoding="utf-8")) == chrome_trace(LOG)
    assert os.listdir(tmp_path) == ["step.json"]


def test_a_failed_save_leaves_the_old_file_and_no_other(tmp_path, monkeypatch):
    path = save_chrome_trace(LOG, tmp_path / "step.json")
    before = path.read_bytes()

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DataFileError, match="No space left"):
        save_chrome_trace(predicted(), path)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["step.json"]


def test_the_new_file_replaces_the_old_one_only_when_it_is_on_disk(tmp_path, monkeypatch):
    path, done = tmp_path / "step.json", []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda fd: (done.append("fsync"), fsync(fd)))
    monkeypatch.setattr(os, "replace", lambda a, b: (done.append(("replace", os.path.dirname(a))), replace(a, b)))
    save_chrome_trace(LOG, path)
    assert done == ["fsync", ("replace", str(tmp_path)), "fsync"]  # the file, and the folder that now names it


def test_a_folder_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(DataFileError, match="cannot be written"):
        save_chrome_trace(LOG, tmp_path / "nowhere" / "step.json")
