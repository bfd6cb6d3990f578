"""One contract over all labs, without a widget: from a declaration follow choice, command, check, file and text; what
is refused changes nothing; listeners end; a file brings a lab back; pages are complete; runs stop.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import inspect
import json
import operator
import random
import re
import zlib

import pytest

import parallel_lab as pl
from parallel_lab.base.errors import ArgumentError, DataFileError, OptimizerParallelError, ParallelLabError
from parallel_lab.lab import widgets
from parallel_lab.lab.fusion.model import FusionLab
from parallel_lab.lab.shared.page import FRONT_END
from parallel_lab.lab.shared.replay import Limits, Replay, explore, pack
from parallel_lab.lab.shared.running import RunsOneThing
from parallel_lab.lab.shared.sections import FORMATS, PAGE_ONLY, section_text, table
from parallel_lab.processes.shm import close_all
from tests.crossed import each_of
from tests.lab.labs import KINDS, LABS, REFUSED, WALKS, another, shown, stack

FEW = Limits(3)  # settings of a page
SETTINGS = [(name, one) for name, kind in KINDS.items() for one in kind.declared]
# more than their lists offer: any number, and None for the default cluster
TYPED = {("search", which) for which in ("bandwidth", "latency", "capacity")}
TYPED |= {("fusion", "cluster"), ("stepper", "elements")}
JUNK = (None, True, -1, 10**9, 1.5, "", "no such value", float("nan"), ["x"])
each_lab = pytest.mark.parametrize("name", LABS)


def refused(lab, command, *arguments) -> str:
    """The reason why the lab refuses a command, after which it is as it was and nobody has heard of anything."""
    heard, before = [], shown(lab)
    end = lab.on_change(lambda *what: heard.append(what))
    with pytest.raises((ParallelLabError, TypeError)) as caught:
        getattr(lab, command)(*arguments)
    end()
    assert shown(lab) == before and not heard, arguments
    return str(caught.value)


# ---- settings and commands ----


@pytest.mark.quick(1)
@pytest.mark.parametrize(("name", "which"), SETTINGS)
def test_a_setting_takes_what_it_offers_keeps_it_and_refuses_junk(name, which):
    lab = LABS[name]()
    one, kind = lab.declared[which], type(lab)
    command = getattr(lab, one.command)
    assert one.command in lab.commands and (one.command in lab.looks) == one.look
    assert len(lab.argument_types(one.command)) <= 1
    for value in list(one.choice(lab).known)[:4] if one.label else []:
        try:
            command(value)
        except ParallelLabError:
            continue  # possible alone, and not with the others
        assert one.choice(lab).value == value and [one.command, value] in lab.calls()
        again = kind.of_state(lab.state())
        assert again.declared[which].choice(again).value == value
    for junk in JUNK if one.label and (name, which) not in TYPED else ():
        if isinstance(junk, bool) or junk not in list(one.choice(lab).known):
            refused(lab, one.command, junk)
            if name in ("redistribution", "costs") and not one.look:
                with pytest.raises(ArgumentError, match=which):
                    kind(**{which: junk})


@each_lab
def test_commands_are_methods_with_a_text_and_named_once(name):
    make = type(LABS[name]())
    assert len(set(make.commands)) == len(make.commands)
    assert all(inspect.getdoc(getattr(make, command)) for command in make.commands)
    assert set(make.looks) <= set(make.commands) and set(make.looks.values()) <= set(LABS[name]().snapshot())
    assert not issubclass(make, RunsOneThing) or make.runs in make.commands  # published pages run it


@pytest.mark.quick(25)
@pytest.mark.parametrize(
    ("name", "call", "words"), [(name, *case) for name, cases in REFUSED.items() for case in cases]
)
def test_what_is_refused_changes_nothing_and_says_why(name, call, words):
    assert words in refused(LABS[name](), *call)


@pytest.mark.quick(3)
@each_lab
def test_junk_for_an_argument_of_a_command_is_refused_or_possible(name):
    """An argument of each command that is possible is replaced: errors are of the family, and the lab stays."""
    lab = LABS[name]()
    for command, *arguments in WALKS[name]:
        before = shown(lab)
        for place, junk in [(place, junk) for place in range(len(arguments)) for junk in JUNK]:
            given = (*arguments[:place], junk, *arguments[place + 1 :])
            with contextlib.suppress(ParallelLabError):
                lab.check_command(command, given, "a page")
                getattr(lab.branch(), command)(*given)
        assert shown(lab) == before, command
        getattr(lab, command)(*arguments)


@each_of(
    ("name", "command", "argument", "error"),
    ("fusion", "set_size", -1, ValueError),
    ("fusion", "set_size", 1.5, TypeError),
    ("fusion", "set_index", [], ValueError),
    ("fusion", "set_index", [3, 3], ValueError),
    ("fusion", "set_ids", {"g99": 1}, ArgumentError),
    ("fusion", "set_ids", {"g1": -1}, ValueError),
    ("fusion", "set_cuts", [0], ArgumentError),
    ("fusion", "set_cuts", [10], ArgumentError),
    ("fusion", "set_cluster", 3, ParallelLabError),
    ("memory", "set_shard_size", 8, OptimizerParallelError),
    ("memory", "run_simulated", 0, ArgumentError),
    ("memory", "run_measured", True, ArgumentError),
    ("pipeline", "set_cap", 0, ArgumentError),
    ("pipeline", "set_cap", True, ArgumentError),
    ("pipeline", "set_latency", "long", ArgumentError),
    ("pipeline", "set_recompute", [4], ArgumentError),
    ("pipeline", "run_simulated", 1, ArgumentError),
    ("stepper", "to", True, TypeError),
    ("stepper", "to", 1.5, TypeError),
    ("stepper", "show", "ring", ParallelLabError),
)
def test_methods_without_a_control_refuse_alike(name, command, argument, error):
    lab = LABS[name]()
    assert refused(lab, command, argument)
    with pytest.raises(error):
        getattr(lab, command)(argument)


@each_lab
def test_listeners_hear_of_a_change_once_until_they_end(name):
    lab, heard = LABS[name](), []
    end = lab.on_change(lambda *what: heard.append(what))
    before = another(lab)
    getattr(lab, before[0])(*before[1:])
    assert len(heard) == 1
    end()
    end()
    command, value = another(lab)
    getattr(lab, command)(value)
    assert len(heard) == 1


@pytest.mark.quick(2)
@each_lab
def test_a_larger_scale_reaches_page_and_listeners_and_an_impossible_one_is_refused(name):
    lab, heard = LABS[name](), []
    lab.on_change(lambda *what: heard.append(what))
    lab.set_scale(2)
    assert (lab.scale, len(heard)) == (2.0, 1) and '"scale":2.0' in lab.to_html(limits=Limits(1))
    for scale in (0, -1, 5, float("nan"), True, "2"):
        assert "scale" in refused(lab, "set_scale", scale)


# ---- files and branches ----


def wander(lab, steps: int, seed: str) -> None:
    """So many commands, drawn from those that a page would do."""
    draw = random.Random(seed)
    for _ in range(steps):
        calls = [*lab.replays(), *([["toggle", draw.randrange(12)]] if "toggle" in lab.commands else [])]
        command, *arguments = draw.choice(calls)
        try:
            getattr(lab, command)(*arguments)
        except ParallelLabError:
            continue


def picture(lab) -> dict:
    shot = lab.snapshot()
    history = ("can_undo", "can_redo", "own", "tried", "notes")  # of what was there before
    return {name: part for name, part in shot.items() if name not in history}


def same_from_its_file(lab, path) -> None:
    again = pl.open_lab(lab.save(path))
    assert type(again) is type(lab) and again.state() == lab.state() and picture(again) == picture(lab)
    assert type(lab).open(path).state() == lab.state()


@pytest.mark.quick(1)
@pytest.mark.parametrize("seed", range(3))
@each_lab
def test_a_saved_lab_comes_back_as_it_was(tmp_path, name, seed):
    lab = LABS[name]()
    wander(lab, 4, f"{name} {seed}")
    same_from_its_file(lab, tmp_path / "lab.json")


@pytest.mark.quick(1)
@each_lab
def test_what_was_typed_comes_back_too(tmp_path, name):
    """What no list offers: sizes, cuts, drawn schedules, programs."""
    lab = LABS[name]()
    for command, *arguments in WALKS[name]:
        getattr(lab, command)(*arguments)
    same_from_its_file(lab, tmp_path / "lab.json")
    assert lab.link("page.html").startswith("page.html#state=")


@pytest.mark.quick(2)
@each_lab
def test_free_choices_change_nothing_but_themselves(name):
    """What a page relies on: after a free choice the calls are the old ones but for its own."""
    lab, draw = LABS[name](), random.Random(name)
    for _ in range(4):
        for choice in lab.free:
            call = [lab.command_of(choice), draw.choice(list(lab.choices()[choice].known))]
            before = [c for c in lab.calls() if c[0] not in lab.looks]
            try:
                getattr(lab, call[0])(call[1])
            except ParallelLabError:
                continue
            assert [c for c in lab.calls() if c[0] not in lab.looks] == [call if c[0] == call[0] else c for c in before]
        wander(lab, 1, name)


@pytest.mark.quick(1)
@each_lab
def test_a_branch_leaves_its_lab_as_it_is(name):
    lab, heard = LABS[name](), []
    lab.on_change(lambda *what: heard.append(what))
    before = json.dumps(lab.page_snapshot(), default=lambda x: x.tolist(), sort_keys=True)
    wander(lab.branch(), 5, name)
    assert json.dumps(lab.page_snapshot(), default=lambda x: x.tolist(), sort_keys=True) == before and not heard


# ---- runs ----


def small_fusion() -> FusionLab:
    return FusionLab("dense", devices=2)


@pytest.mark.quick(1)
@pytest.mark.parametrize("make", [small_fusion, lambda: stack(2)], ids=["fusion", "memory"])
def test_a_run_is_heard_when_it_begins_and_when_it_ends(make):
    lab, heard = make(), []
    lab.on_change(heard.append)
    lab.run_simulated(1)
    assert lab.wait(60) and heard == ["run", "run", "picture"]  # it began, it ended, its counts are shown


@pytest.mark.quick(1)
@pytest.mark.timeout(120)
@each_of(
    ("make", "work"),
    (small_fusion, "run_simulated"),
    (small_fusion, "run_measured"),
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

HOSTILE = '</script><script>document.title="taken"</script><img src=x onerror=alert(1)>&"\'\u2028'
# a text of each lab besides title and status
PLACES = {
    "strategy": (("operators", 0, "name"), ("messages", 0, "reason")),
    "stepper": (("algorithm", "value"),),
    **dict.fromkeys(("fusion", "memory", "pipeline"), (("notes", 0),)),
}


@pytest.mark.quick(1)
@each_lab
def test_a_page_is_complete_by_itself_small_and_the_file_that_is_saved(name, tmp_path):
    lab = LABS[name]()
    page = lab.to_html(title='a <title> & "more"', limits=FEW)
    assert not re.search(r"""(src|href)\s*=|@import|import\(|url\((?!#)|https?://""", page)
    assert "default-src 'none'" in page and "mountAll(kinds)" in page and len(page) < 400_000
    assert "a &lt;title&gt;" in page and "<title> &" not in page
    assert lab.to_html(tmp_path / "lab.html", 'a <title> & "more"', limits=FEW) == tmp_path / "lab.html"
    assert (tmp_path / "lab.html").read_text(encoding="utf-8") == page
    assert [file.name for file in tmp_path.iterdir()] == ["lab.html"]


@each_lab
def test_a_model_says_how_it_is_seen(name):
    lab = LABS[name]()
    assert repr(lab).startswith(f"<{type(lab).__name__}: ") and "lab.to_text()" in repr(lab)


def test_a_page_that_cannot_be_made_or_saved_leaves_no_part_of_it(tmp_path, monkeypatch):
    lab, old = LABS["fusion"](), tmp_path / "lab.html"
    old.write_text("old")
    with pytest.raises(DataFileError):
        lab.to_html(tmp_path / "missing" / "lab.html", limits=FEW)
    monkeypatch.setattr(lab, "page_snapshot", lambda: {**lab.snapshot(), "more": object()})
    with pytest.raises(TypeError, match="plain values only"):
        lab.to_html(old, limits=FEW)
    assert old.read_text() == "old" and [file.name for file in tmp_path.iterdir()] == ["lab.html"]


@pytest.mark.quick(2)
@each_lab
def test_names_cannot_leave_their_place_in_a_page(name):
    lab, places = LABS[name](), (("title",), ("status",), *PLACES.get(name, ()))
    shot = lab.page_snapshot()
    plain = lab.page(shot)
    for *path, last in places:
        functools.reduce(operator.getitem, path, shot)[last] = HOSTILE
    page = lab.page(shot)
    assert page.count("<script") == plain.count("<script") and page.count("</script") == plain.count("</script")
    assert "<img src" not in page
    data = json.loads(re.search(r'<script type="application/json" id="snapshot">(.*?)</script>', page, re.S).group(1))
    assert {functools.reduce(operator.getitem, place, data) for place in places} == {HOSTILE}


def test_hatching_is_the_pending_sum_and_nothing_else():
    """Which rules of the style sheets and which drawings use it, read from the files."""
    allowed = {".pl-token.pl-partial", ".pl-mv-sum", ".hatched", ".pl-type-P"}
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


def test_all_labs_are_here():
    assert {type(make()).__name__ for make in LABS.values()} == set(widgets.LABS)


@pytest.mark.parametrize("part", [0.3, 0.5, 0.9])
def test_a_page_replays_as_many_states_as_it_has_room_for(part):
    """At most the room, and nearly all of it, for the first states."""
    lab = pl.CollectiveStepper()
    found = explore(lab, Limits(150, 60.0))
    whole = pack(found, type(lab), 10**9)
    assert states_in(whole) == len(found.states) == 150
    room = int(part * len(whole))
    packed = pack(found, type(lab), room)
    first = states_in(packed)
    assert 0.85 * room < len(packed) <= room
    assert packed == pack(Replay(found.states[:first], found.moves[:first]), type(lab), 10**9)
    assert pack(found, type(lab), 100) == pack(Replay(found.states[:1], found.moves[:1]), type(lab), 10**9)


def states_in(packed: str) -> int:
    return len(json.loads(zlib.decompress(base64.b64decode(packed)))["states"])
