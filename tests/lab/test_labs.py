"""What holds for every lab without a widget: harmless refusals, listeners that end, runs that stop, complete pages."""

from __future__ import annotations

import functools
import json
import operator
import re

import pytest

from parallel_lab.base.errors import ArgumentError, DataFileError, OptimizerParallelError, ParallelLabError
from parallel_lab.lab.collectives.model import CollectiveStepper
from parallel_lab.lab.fusion.model import FusionLab
from parallel_lab.lab.memory.model import MemoryLab
from parallel_lab.lab.pipeline.model import PipelineLab
from parallel_lab.lab.shared.page import FRONT_END
from parallel_lab.lab.shared.replay import Limits
from parallel_lab.lab.shared.sections import FORMATS, PAGE_ONLY, section_text, table
from parallel_lab.lab.strategy.model import StrategyLab
from parallel_lab.processes.shm import close_all
from tests.crossed import each_of

FEW = Limits(3)  # settings of a page
WIDTH = 64  # of the Memory Lab's stack: 8 weights of 16 KiB


def golf() -> FusionLab:
    lab = FusionLab("golf")
    lab.set_cuts([4, 6])
    return lab


def stack(devices: int = 4) -> MemoryLab:
    lab = MemoryLab("stack", devices)
    lab.set_width(WIDTH)
    return lab


# per lab (command, arguments, the error it raises; ArgumentError if nothing is said)
REFUSED = {
    golf: [
        ("set_subject", "gpt-4"),
        ("set_subject", ["golf"]),
        ("set_devices", 3),
        ("set_devices", True),
        ("set_parallel_mode", "stand_alone"),
        ("set_mode", "sizes"),
        ("set_size", -1, ValueError),
        ("set_size", 1.5, TypeError),
        ("set_index", [], ValueError),
        ("set_index", [3, 3], ValueError),
        ("set_ids", {"g99": 1}),
        ("set_ids", {"g1": -1}, ValueError),
        ("set_config", "1, two"),
        ("set_config", "2 1", ValueError),
        ("set_wording", "exclusive"),
        ("set_cluster", "cloud"),
        ("set_cluster", 3, ParallelLabError),
        ("set_line", -1.0, 0.0, ParallelLabError),
        ("set_cuts", [0]),
        ("set_cuts", [10]),
        ("move_cut", 9, 1),
        ("move_cut", 4, 0),
        ("remove_cut", 9),
        ("add_cut", True),
        ("show_source", "simulated"),
        ("run_simulated",),
        ("run_measured",),
    ],
    stack: [
        ("set_subject", "lenet"),
        ("set_width", 100),
        ("set_width", True),
        ("set_width", 2048),
        ("set_devices", 3),
        ("set_devices", [2]),
        ("set_parallel_mode", "hybrid_parallel"),
        ("set_optimizer", "AdaGrad"),
        ("set_level", "grouping"),
        ("set_threshold", -1, ValueError),
        ("set_threshold", "much", TypeError),
        ("set_shard_size", 3),
        ("set_shard_size", 8, OptimizerParallelError),
        ("set_accumulation", 3),
        ("set_accumulation_shard", 1),
        ("set_capacity", "a lot"),
        ("set_capacity", -5),
        ("set_capacity", "1e400 GiB"),
        ("select_rank", 4),
        ("show_moment", "later"),
        ("show_source", "measured"),
        ("set_zero", "7.5B", 0),
        ("set_zero", "7.5B", 64.5),
        ("set_zero", "7.5B", 64, -1),
        ("set_zero", "7.5B", 10**9),
        ("set_zero", "7.5B", 64, 1e99),
        ("set_zero", "7.5B", 64, float("nan")),
        ("run_simulated", 0),
        ("run_measured", True),
        ("show_best",),
    ],
    PipelineLab: [
        ("set_net", "resnet"),
        ("set_stages", 5),
        ("set_stages", True),
        ("set_micro_batches", 9),
        ("set_schedule", "seqpipe"),
        ("set_schedule", ["1f1b"]),
        ("set_chunks", 5),
        ("set_strategy", "both"),
        ("set_cores", 3),
        ("set_times", -1, 1, 1),
        ("set_times", float("nan"), 1, 1),
        ("set_times", 0, 0, 0),
        ("set_latency", "long"),
        ("set_cap", 0),
        ("set_cap", True),
        ("set_typed", "times", "1:1"),
        ("set_typed", "cap", "2.5"),
        ("set_typed", "depth", "2"),
        ("set_recompute", [4]),
        ("toggle_recompute", -1),
        ("set_rank", 4),
        ("put", 0, "F0"),
        ("put", 0, 3),
        ("put", True, "0F0"),
        ("put_next", 0, "X"),
        ("move", 0, 99, 0),
        ("move_onto", 0, 0, 1, 0),
        ("remove", 0, -1),
        ("clear_rank", 4),
        ("load", ""),
        ("load", 3),
        ("load", "0F0 " * 30_000),
        ("run_simulated", 1),
        ("run_measured", True),
    ],
    StrategyLab: [
        ("set_net", "resnet"),
        ("set_devices", 3),
        ("set_devices", True),
        ("set_data", "cifar"),
        ("set_data", "pictures"),
        ("set_preset", "pipeline"),
        ("set_strategy", "conv", "((1,),)"),
        ("select_tensor", "w9"),
        ("select_phase", "sideways"),
        ("select_rank", 8),
        ("select_rank", -1),
        ("select_rank", True),
        ("select_rank", "1"),
    ],
}


def state(lab) -> dict:
    shot = lab.snapshot()
    shot.pop("run")
    return shot


@pytest.mark.quick(18)
@pytest.mark.parametrize(("make", "call"), [(make, call) for make, calls in REFUSED.items() for call in calls])
def test_what_is_refused_changes_nothing(make, call):
    command, *arguments = call
    error = arguments.pop() if arguments and isinstance(arguments[-1], type) else ArgumentError
    lab, heard = make(), []
    before = state(lab)
    lab.on_change(heard.append)
    with pytest.raises(error) as caught:
        getattr(lab, command)(*arguments)
    assert make is not StrategyLab or "One of" in str(caught.value)
    assert isinstance(caught.value, ParallelLabError) and state(lab) == before and not heard


@each_of(
    ("make", "commands"),
    (lambda: FusionLab("golf"), (("set_mode", "each"), ("remove_cut", 3), ("set_mode", "auto"))),
    (lambda: stack(2), (("set_level", "off"), ("set_capacity", "1 MiB"), ("set_level", "level1"))),
    (PipelineLab, (("move", 0, 4, 5), ("set_schedule", "gpipe"), ("undo",))),
    (StrategyLab, (("select_rank", 1), ("set_strategy", "relu", "((1, 1),)"), ("select_rank", 2))),
)
def test_listeners_hear_of_changes_until_they_end(make, commands):
    lab, heard = make(), []
    end = lab.on_change(heard.append)
    for command, *arguments in commands[:2]:
        getattr(lab, command)(*arguments)
    assert heard == ["picture", "picture"]
    end()
    end()
    command, *arguments = commands[2]
    getattr(lab, command)(*arguments)
    assert len(heard) == 2


def test_a_larger_scale_reaches_page_and_listeners_and_an_impossible_one_is_refused():
    lab, heard = stack(2), []
    lab.on_change(heard.append)
    lab.set_scale(2)
    assert (lab.scale, heard) == (2.0, ["picture"]) and '"scale":2.0' in lab.to_html(limits=FEW)
    for scale in (0, -1, 5, float("nan"), True, "2"):
        with pytest.raises(ParallelLabError, match="scale"):
            lab.set_scale(scale)
    assert lab.scale == 2.0


@pytest.mark.parametrize("make", [lambda: FusionLab("dense", devices=2), lambda: stack(2)], ids=["fusion", "memory"])
def test_a_run_is_heard_when_it_begins_and_when_it_ends(make):
    lab, heard = make(), []
    lab.on_change(heard.append)
    lab.run_simulated(1)
    assert lab.wait(60) and heard == ["run", "run", "picture"]  # it began, it ended, its counts are shown


@pytest.mark.timeout(120)
@each_of(
    ("make", "work"),
    (lambda: FusionLab("dense", devices=2), "run_simulated"),
    (lambda: FusionLab("dense", devices=2), "run_measured"),
    (lambda: stack(2), "run_simulated"),
    (lambda: stack(2), "run_measured"),
    (lambda: stack(2), "find_par"),
)
def test_a_run_can_be_stopped_and_keeps_nothing(make, work):
    lab = make()
    if work == "find_par":
        lab.set_capacity("1 GiB")
        lab.set_level("level1")
        lab.find_par()  # the search takes about a second
    else:
        getattr(lab, work)(10**7)
        assert not lab.wait(0.3)
    lab.stop()
    assert lab.wait(60)
    run = lab.snapshot()["run"]
    assert run["state"] == "stopped" and run["can"] and run["error"] is None and lab.results == {}
    assert work != "find_par" or lab.score.par is None
    lab.run_simulated(1)
    assert lab.wait(60) and list(lab.results) == ["simulated"]
    assert "equal bit for bit" in lab.to_text() or "EQUAL: " in lab.to_text()
    lab.close()
    close_all()


# ---- pages ----


@each_of("make", golf, stack, StrategyLab)
def test_a_saved_page_is_the_page(make, tmp_path):
    lab = make()
    assert lab.to_html(tmp_path / "lab.html", "mine", limits=FEW) == tmp_path / "lab.html"
    assert (tmp_path / "lab.html").read_text(encoding="utf-8") == lab.to_html(title="mine", limits=FEW)
    assert [file.name for file in tmp_path.iterdir()] == ["lab.html"]


def test_a_model_says_how_it_is_seen():
    assert "widgets.PipelineLabWidget(lab)" in repr(PipelineLab(stages=2))


def test_a_page_that_cannot_be_made_or_saved_leaves_no_part_of_it(tmp_path, monkeypatch):
    lab, old = golf(), tmp_path / "lab.html"
    old.write_text("old")
    with pytest.raises(DataFileError):
        lab.to_html(tmp_path / "missing" / "lab.html", limits=FEW)
    monkeypatch.setattr(lab, "page_snapshot", lambda: {**lab.snapshot(), "more": object()})
    with pytest.raises(TypeError, match="plain values only"):
        lab.to_html(old)
    assert old.read_text() == "old" and [file.name for file in tmp_path.iterdir()] == ["lab.html"]


HOSTILE = '</script><script>document.title="taken"</script><img src=x onerror=alert(1)>&"\'\u2028'


@each_of(
    ("make", "most"),
    (StrategyLab, 400 * 1024),
    (lambda: FusionLab("golf"), 110_000),
    (lambda: MemoryLab("dense", 2), 150_000),
    (lambda: CollectiveStepper("all_reduce", "ring", 8), 400_000),
    (lambda: PipelineLab(stages=8, micro_batches=16), 600_000),
)
def test_a_page_is_complete_by_itself_and_small(make, most):
    page = make().to_html(title='a <title> & "more"', limits=FEW)
    assert not re.search(r"""(src|href)\s*=|@import|import\(|url\((?!#)|https?://""", page)
    assert "default-src 'none'" in page and "mountAll(kinds)" in page and len(page) < most
    assert "a &lt;title&gt;" in page and "<title> &" not in page


@each_of(
    ("make", "place"),
    (StrategyLab, ("operators", 0, "name")),
    (StrategyLab, ("messages", 0, "reason")),
    (golf, ("notes", 0)),
    (stack, ("notes", 0)),
    (PipelineLab, ("notes", 0)),
    (CollectiveStepper, ("algorithm", "value")),
)
def test_names_cannot_leave_their_place_in_a_page(make, place):
    lab = make()
    shot, (*path, last) = lab.page_snapshot(), place
    plain = lab.page(shot)
    functools.reduce(operator.getitem, path, shot)[last] = shot["title"] = shot["status"] = HOSTILE
    page = lab.page(shot)
    assert page.count("<script") == plain.count("<script") and page.count("</script") == plain.count("</script")
    assert "<img src" not in page
    data = re.search(r'<script type="application/json" id="snapshot">(.*?)</script>', page, re.S).group(1)
    assert json.loads(data)["title"] == HOSTILE == functools.reduce(operator.getitem, place, json.loads(data))


def test_hatching_is_the_pending_sum_and_nothing_else():
    """Which rules of the style sheets and which drawings use it, read from the files."""
    allowed = {".pl-token.pl-partial", ".pl-mv-sum", ".hatched"}
    for path in FRONT_END.rglob("*"):
        if path.suffix == ".css" or path.name == "report_page.py":
            for rule in path.read_text(encoding="utf-8").split("}"):
                if "repeating-linear-gradient(135deg" in rule or "url(#hatch)" in rule:
                    assert any(name in rule.split("{")[0] for name in allowed), (path.name, rule)
        if path.suffix == ".js":  # drawn where `partial` is asked for, in the key of the picture, and as its pattern
            for line in path.read_text(encoding="utf-8").splitlines():
                if '-hatch)"' in line or 'over("hatch")' in line:
                    assert path.name in ("slices.js", "moves.js") or "const hatch" in line, (path.name, line)


def test_text_and_page_know_the_same_formats_of_columns():
    scripts = [path.read_text(encoding="utf-8") for path in FRONT_END.rglob("*.js")]
    (shared,) = (found for text in scripts for found in re.findall(r"(?ms)^const CELLS = \{$(.*?)^\};$", text))
    own = [name for text in scripts for name in re.findall(r"(?m)^CELLS\.(\w+) = ", text)]
    assert {*re.findall(r"(?m)^  (\w+)[:,]", shared), *own} == {*FORMATS, *PAGE_ONLY}


def test_a_value_that_a_page_could_not_draw_is_refused():
    odd = table("Odd", {"": "name", "share": "percent"}, [("ring", "a text"), ("tree", 0.5)])
    with pytest.raises(
        ArgumentError, match=r"table: 0\.5 in a column of format 'percent'\. bytes, time, .*Make it a text"
    ):
        list(section_text(odd, {}))
