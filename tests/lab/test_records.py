"""What has run, in a lab's file: it comes back, as a recorded run, and anything but a record is refused in words."""

from __future__ import annotations

import json
import math
import random
import re
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import pytest

import parallel_lab as pl
from parallel_lab.base.errors import ArgumentError, DataFileError
from parallel_lab.base.units import time_text
from parallel_lab.lab.shared.earlier import EarlierRun, earlier_written
from parallel_lab.lab.shared.records import losses_taken, losses_written, taken, written
from parallel_lab.lab.shared.replay import Limits, ready
from parallel_lab.processes.shm import close_all
from tests.crossed import each_of


def fusion():
    lab = pl.FusionLab("dense", 2)
    lab.set_mode("off")
    lab.run_simulated(1)
    lab.wait()
    lab.set_mode("auto")  # the first run is an earlier one now, here and below
    lab.run_simulated(3)
    lab.wait()
    lab.run_measured(3)
    lab.wait()
    return lab


def memory():
    lab = pl.MemoryLab("dense", 2)
    lab.set_level("level2")
    lab.run_simulated(1)
    lab.wait()
    lab.set_level("level1")
    lab.run_simulated(2)
    lab.wait()
    lab.run_measured(2)
    lab.wait()
    lab.select_rank(1)
    return lab


def pipeline():
    lab = pl.PipelineLab("stack", 2, 2, "gpipe")
    lab.run_simulated()
    lab.wait()
    lab.set_schedule("1f1b")
    lab.run_measured(3)
    lab.wait()
    return lab


def strategy():
    lab = pl.StrategyLab("quickstart", 2, steps=4)
    lab.run()
    lab.wait()
    lab.set_devices(4)
    lab.set_steps(6)
    lab.run()
    lab.wait()
    return lab


MAKE = {"fusion": fusion, "memory": memory, "pipeline": pipeline, "strategy": strategy}


@cache
def ran(name):
    """The state of a lab that has run, and its losses, if it has some."""
    lab = MAKE[name]()
    assert lab._run.error is None
    state = json.loads(json.dumps(lab.state() | {"recording": lab.kept_recording()}, allow_nan=False))
    shot = lab.snapshot()
    lab.close()
    close_all()
    return state, shot


def opened(name, record):
    return of({**ran(name)[0], "record": record})


def of(state):
    return getattr(pl, state["kind"]).of_state(state)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", MAKE)
def test_what_has_run_comes_back_from_the_file_with_the_settings(tmp_path, name):
    state, _ = ran(name)
    kind = getattr(pl, state["kind"])
    lab = kind.of_state(state)
    again = kind.open(lab.save(tmp_path / "lab.json"))
    assert lab.record() == state["record"] is not None
    assert again.state() == lab.state() == {part: value for part, value in state.items() if part != "recording"}
    now, shot, before = lab.snapshot(), ran(name)[1], lab.earlier[0]
    assert before.recorded and before.label == f"recorded: {before.settings}" and before.label in lab.to_text()
    for table in [shot["sections"]["earlier"]] if before.rows else []:  # it is the same but for that word
        [row] = table["rows"]
        assert now["sections"]["earlier"]["rows"] == [[f"recorded: {row[0]}", *row[1:]]] and row[1] == "simulated"
    assert (name == "strategy") == bool(before.losses)


@pytest.mark.quick(1)
@pytest.mark.parametrize("name", MAKE)
def test_a_recorded_run_is_called_so_in_the_text_and_on_the_page(name):
    state, _ = ran(name)
    lab = getattr(pl, state["kind"]).of_state(state)
    shot, text = lab.snapshot(), lab.to_text()
    assert shot["run"]["state"] == "recorded" and "recorded" in shot["run"]["text"]
    assert "recorded" in text
    for line in text.splitlines():  # a number that was measured says that it was another time
        if "(measured)" in line or line.startswith(("measured:", "  measured:")):
            pytest.fail(line)
    assert "recorded" in lab.to_html(limits=Limits(1))


def test_losses_step_time_and_earlier_curves_of_a_training_are_those_that_were_saved():
    state, shot = ran("strategy")
    lab = pl.StrategyLab.of_state(state)
    again = lab.snapshot()
    for name in ("parallel", "single"):
        assert np.array_equal(np.float32(again["loss"][name]), np.float32(shot["loss"][name]))
    assert again["loss"]["bound"] == pytest.approx(shot["loss"]["bound"])
    assert [(e["steps"], len(e["losses"])) for e in again["earlier"]] == [(4, 4)]
    assert again["earlier"][0]["label"] == f"recorded: {shot['earlier'][0]['label']}"
    assert "2 ranks" in again["earlier"][0]["label"] and "a step" in again["run"]["text"]
    assert "4 processes (recorded)" in lab.to_text()


def test_what_was_measured_of_the_last_step_of_a_training_comes_back_and_says_that_it_is_recorded():
    state, shot = ran("strategy")
    lab = pl.StrategyLab.of_state(state)
    again, lanes = lab.snapshot(), shot["timeline"]["lanes"]
    assert shot["timeline"]["source"] == "measured" and again["timeline"]["source"] == "measured (recorded)"
    assert [m["bytes_counted"] for m in again["messages"]] == [m["bytes_counted"] for m in shot["messages"]]
    assert again["message_totals"]["bytes_counted"] == again["message_totals"]["bytes_predicted"] > 0
    assert again["timeline"]["end"] == pytest.approx(shot["timeline"]["end"], abs=0.11)  # us: kept to a tenth
    assert [lane["rank"] for lane in again["timeline"]["lanes"]] == [lane["rank"] for lane in lanes]
    times = [
        (m["time_measured_s"], one["time_measured_s"])
        for m, one in zip(again["messages"], shot["messages"], strict=True)
    ]
    assert all(a == pytest.approx(b, abs=2.1e-7) for a, b in times)
    assert again["gap"] is None  # it was not measured on this machine, now
    lab.set_strategy("matmul", "((4, 1), (1, 1))")
    assert lab.snapshot()["timeline"]["source"] == "predicted" and lab.events == ()


@pytest.mark.exhaustive
def test_a_recorded_training_becomes_an_earlier_one_when_settings_change_and_can_be_run_anew():
    lab = pl.StrategyLab.of_state(ran("strategy")[0])
    lab.set_data("digits")
    labels = [one["label"] for one in lab.snapshot()["earlier"]]
    assert len(labels) == 2 and all(label.startswith("recorded: ") for label in labels)
    lab.set_steps(2)
    lab.run()
    lab.wait()
    assert "processes (measured)" in lab.to_text()
    lab.close()
    close_all()


@pytest.mark.quick(1)
@pytest.mark.parametrize("name", ["fusion", "memory"])
def test_a_new_run_takes_the_place_of_the_recorded_one_of_its_source_only(name):
    lab = getattr(pl, ran(name)[0]["kind"]).of_state(ran(name)[0])
    lab.run_simulated(2)
    lab.wait()
    assert (lab.said("simulated"), lab.said("measured")) == ("simulated", "measured (recorded)")
    lab.set_devices(4)
    assert lab.record() is None and lab.sources().known == ("predicted",)


@pytest.mark.exhaustive
def test_results_of_a_pipeline_are_those_that_were_saved():
    state, shot = ran("pipeline")
    lab = pl.PipelineLab.of_state(state)
    again = lab.snapshot()
    assert again["ran"] == shot["ran"]
    assert again["loss"]["largest_difference"] == shot["loss"]["largest_difference"] == 0 == again["loss"]["bound"]
    assert lab.results["measured"].equality.equal


@pytest.mark.quick(2)
@pytest.mark.parametrize("name", MAKE)
def test_the_recording_of_a_run_comes_back_and_goes_with_the_settings_it_is_of(tmp_path, name):
    state, shot = ran(name)
    first = of(state)
    lab = type(first).open(first.save(tmp_path / "lab.json"))
    assert lab.snapshot()["recording"] == shot["recording"] is not None
    assert lab.recording.said in lab.to_text() and lab.recording.said in lab.to_html(limits=Limits(1))
    assert "recording" not in lab.state() and of(lab.state()).recording is None  # links and what is handed in
    if name == "pipeline":
        lab.set_schedule("gpipe")
    else:
        lab.set_devices(8)
    assert lab.recording is None and lab.kept_recording() is None


@pytest.mark.parametrize(("factor", "said"), [(1.9, None), (2.5, "waits"), (0.4, "waits")])
def test_a_measured_pipeline_far_from_the_simulated_one_says_what_makes_it_so(factor, said):
    """A step that is longer or shorter with the same work is so by its waits."""
    lab = pl.PipelineLab.of_state(ran("pipeline")[0])
    found = lab._run.results
    known = replace(found["simulated"], step_s=10 * found["simulated"].work_s)
    found["simulated"] = known
    found["measured"] = replace(found["measured"], lanes=known.lanes, step_s=factor * known.step_s)
    notes = lab.snapshot()["sections"]["equality"]["notes"][1:]
    assert len(notes) == (said is not None)
    for note in notes:
        here, there = (time_text(of.bubble * of.step_s) for of in (found["measured"], known))
        assert note == f"A step takes {factor:.2g} x the simulated one: a rank's {said} take {here}, simulated {there}."


# ---- anything but a record ----


def places(value, path=()):
    """Paths of everything in a record."""
    yield path
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in parts:
        yield from places(part, (*path, key))


def put(value, path, junk):
    if not path:
        return junk
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = put(value[path[0]], path[1:], junk)
    return copy


JUNK = (
    None,
    True,
    -1,
    0,
    10**30,
    1e308,
    float("nan"),
    float("inf"),
    "",
    "x" * 5000,
    [],
    {},
    [[]],
    [None] * 3,
    {"a": 1},
)


@pytest.mark.quick(1)
@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("name", MAKE)
def test_junk_in_a_record_is_refused_or_shown_without_harm(name, seed):
    draw = random.Random(f"{name} {seed}")
    record = ran(name)[0]["record"]
    known = list(places(record))
    shallow = [path for path in known if len(path) < 4]
    for _ in range(6):
        path, junk = draw.choice(draw.choice((known, shallow))), draw.choice(JUNK)
        broken = put(record, path, junk)
        try:
            lab = opened(name, broken)
        except DataFileError as error:
            assert len(str(error)) < 1500
            continue
        lab.to_text()
        json.dumps(ready(lab.page_snapshot()), allow_nan=False)


@pytest.mark.quick(3)
@each_of(
    ("name", "path", "junk"),
    ("strategy", ("parallel",), [1.0] * 7),  # more than its 6 steps
    ("strategy", ("parallel",), []),
    ("strategy", ("steps",), 10**9),
    ("strategy", ("step_s",), float("inf")),
    ("strategy", ("events", "rows"), []),  # no rank has measured anything
    ("strategy", ("events", "rows", 0, 0), 4),  # of 4 ranks
    ("strategy", ("events", "rows", 0, 1), 10**6),
    ("strategy", ("events", "rows", 0, 3), -1),
    ("strategy", ("events", "groups"), [[0, 9]]),
    ("fusion", ("measured", "source"), "simulated"),
    ("fusion", ("measured", "lanes", "boxes"), []),
    ("fusion", ("simulated", "sent"), 77),
    ("fusion", ("simulated", "step_s"), 0),
    ("memory", ("simulated", "ranks"), []),
    ("memory", ("measured", "ranks", 1, 0), 0),
    ("memory", ("measured", "ranks", 0, 1, 0, 3), [1, 2]),
    ("pipeline", ("parallel",), [1.0]),
    ("pipeline", ("results", 0, 0), "measured"),
    ("pipeline", ("results", 0, 1, 0), []),
    ("pipeline", ("results", 0, 1, 0, 0, 0), "9F9"),
    ("pipeline", ("results", 0, 4), [1, 2, 3]),
)
def test_a_record_of_other_lengths_or_numbers_is_refused(name, path, junk):
    with pytest.raises(DataFileError, match="record"):
        opened(name, put(ran(name)[0]["record"], path, junk))


@pytest.mark.quick(3)
@pytest.mark.parametrize(
    ("name", "path", "junk"),
    [
        ("fusion", (), "pickle"),
        ("fusion", ("version",), 3),
        ("fusion", ("counts",), [10**9, 1]),
        ("fusion", ("arrays", "times"), "AAAA"),
        ("fusion", ("lanes",), [[0]] * 65),
        ("fusion", ("rows", 0, 2), "another"),  # no instruction of this program
        ("memory", ("lanes", 1), []),
        ("memory", ("rows", 0, 8), [1]),
        ("memory", ("tensors", 0), "another"),
        ("pipeline", ("holders", 0, 0), 2),
        ("pipeline", ("rows", 0, 7), 99),  # no message of this program
        ("strategy", ("source",), "guessed"),
        ("strategy", ("taken",), 10**6),
    ],
)
def test_a_damaged_recording_is_refused_in_words(name, path, junk):
    state, _ = ran(name)
    with pytest.raises(DataFileError, match="recording"):
        of(state | {"recording": put(state["recording"], path, junk)})


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("name", MAKE)
def test_junk_in_a_recording_is_refused_or_shown_without_harm(name, seed):
    draw, (state, _) = random.Random(f"{name} {seed}"), ran(name)
    known = list(places(state["recording"]))
    for _ in range(6):
        packed = put(state["recording"], draw.choice(known), draw.choice(JUNK))
        try:
            lab = of(state | {"recording": packed})
        except DataFileError as error:
            assert len(str(error)) < 1500
            continue
        lab.to_text()
        json.dumps(ready(lab.page_snapshot()), allow_nan=False)


def test_a_recording_needs_its_run_and_a_lab_that_records():
    packed = ran("fusion")[0]["recording"]
    for lab in (pl.FusionLab("dense", 2), pl.CollectiveStepper(), pl.FusionLab("golf")):
        with pytest.raises(DataFileError, match="recording"):
            of(lab.state() | {"recording": packed})


ROWS = [["simulated", "1 ms"]]


@pytest.mark.quick(3)
@each_of(
    ("name", "earlier"),
    ("fusion", None),
    ("fusion", [["a", ROWS, 0, []]] * 4),
    ("fusion", [["a", [], 0, []]]),  # it has found nothing
    ("fusion", [["a", ROWS * 5, 0, []]]),
    ("fusion", [["a", [["simulated"]], 0, []]]),  # the table has two columns behind the settings
    ("fusion", [["a", [["simulated", 3]], 0, []]]),
    ("fusion", [["a" * 1001, ROWS, 0, []]]),
    ("pipeline", [["a", ROWS, 0, []]]),
    ("strategy", [["a", [], 500, [1.0] * 201]]),
    ("strategy", [["a", [], 1, [1.0, 2.0]]]),
    ("strategy", [["a", [], 2, []]]),
    ("strategy", [["a", [], 10**6, [1.0]]]),
)
def test_earlier_runs_of_another_form_are_refused(name, earlier):
    with pytest.raises(DataFileError, match="earlier"):
        of({**ran(name)[0], "earlier": earlier})


def test_a_lab_that_runs_nothing_has_no_earlier_runs():
    with pytest.raises(DataFileError, match="earlier runs"):
        pl.CollectiveStepper.of_state({**pl.CollectiveStepper().state(), "earlier": [["a", ROWS, 0, []]]})


@pytest.mark.quick(2)
@pytest.mark.parametrize("name", MAKE)
def test_a_file_without_a_list_of_earlier_runs_still_opens(name):
    state, _ = ran(name)
    lab = of({part: value for part, value in state.items() if part != "earlier"})
    assert lab.record() == state["record"] and lab.earlier == []


def test_an_older_file_of_a_training_has_its_earlier_curves_in_the_record():
    state, _ = ran("strategy")
    old = {"run": state["record"], "earlier": [["quickstart, 2 ranks", 3, [1.0, 0.5, None]]]}
    lab = of({**{part: value for part, value in state.items() if part != "earlier"}, "record": old})
    assert lab.record() == state["record"]
    assert earlier_written(lab.earlier) == [["quickstart, 2 ranks", [], 3, [1.0, 0.5, None]]]
    old["run"] = None  # only earlier ones
    assert of({**state, "record": old, "recording": None}).record() is None


def test_the_puzzle_on_paper_has_no_record():
    state = {**pl.FusionLab("golf").state(), "record": ran("fusion")[0]["record"]}
    with pytest.raises(DataFileError, match="paper"):
        pl.FusionLab.of_state(state)


# ---- forms ----


@dataclass(frozen=True)
class Part:
    name: str
    size: int


@dataclass(frozen=True)
class Whole:
    source: str
    parts: tuple[Part, ...]
    pair: tuple[int, float]
    table: dict[tuple[str, str], tuple[int, int]]
    bound: float
    maybe: int | None = None


WHOLE = Whole("here", (Part("a", 1), Part("b", 2)), (3, 0.5), {("x", "y"): (1, 2)}, math.nan)
PLAIN = {"source": "here", "parts": [["a", 1], ["b", 2]], "pair": [3, 0.5], "table": [[["x", "y"], [1, 2]]]}
PLAIN |= {"bound": None, "maybe": None}


def test_a_dataclass_is_written_by_its_fields_and_read_by_their_types():
    assert written(WHOLE) == PLAIN
    again = taken(Whole, PLAIN, "record")
    assert math.isnan(again.bound) and written(again) == PLAIN and again.table == WHOLE.table


@each_of(
    ("change", "where"),
    ({"source": 3}, r"record\.source"),
    ({"parts": [["a", 1.5]]}, r"record\.parts\[0\]\.size"),
    ({"parts": [["a"]]}, r"record\.parts\[0\]"),
    ({"pair": [3]}, r"record\.pair"),
    ({"pair": [True, 1.0]}, r"record\.pair"),
    ({"table": PLAIN["table"] * 2}, r"record\.table"),
    ({"maybe": -1}, r"record\.maybe"),
    ({"more": 1}, r"record"),
)
def test_a_field_of_another_type_is_named(change, where):
    with pytest.raises(ArgumentError, match=where):
        taken(Whole, {**PLAIN, **change}, "record")


def test_losses_are_float32_and_a_gap_is_null():
    losses = [float(np.float32(x)) for x in (0.1, 1 / 3, 3e38)] + [math.nan, math.inf]
    again = losses_taken(json.loads(json.dumps(losses_written(losses))), "losses")
    assert again[:3] == losses[:3] and all(map(math.isnan, again[3:]))


def test_nan_is_a_gap_wherever_it_stands_in_a_snapshot():
    shot = {
        "earlier": [{"losses": [1.0, math.nan]}],
        "x": (math.inf, {"y": np.float32("nan")}),
        "z": np.array([1, np.nan]),
    }
    assert ready(shot) == {"earlier": [{"losses": [1.0, None]}], "x": [None, {"y": None}], "z": [1.0, None]}


def test_a_page_of_a_training_that_became_nan_shows_gaps():
    lab = pl.StrategyLab("quickstart", 2, steps=3)
    lab._run = pl.StrategyLab.of_state(ran("strategy")[0])._run
    lab._run.parallel[-1] = lab._run.single[-1] = math.nan
    lab._earlier = [EarlierRun("a", (), 2, (1.0, math.nan))]
    page = lab.to_html(limits=Limits(1))
    snapshot = page.split('id="snapshot"')[1].split("</script>")[0]
    assert '"losses":[1.0,null]' in page and not re.search(r"[\[:,]NaN\b", snapshot)  # these letters may be data, too
    assert "no number" in lab.to_text()
