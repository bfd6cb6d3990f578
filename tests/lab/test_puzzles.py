"""Puzzles are solved by hand: no control, name, search, plan or par of the package reaches par on their own settings.

A learner may try everything once, from where the puzzle begins, in its lab and in an ordinary one. None of that
may reach the last points.
"""

from __future__ import annotations

import importlib
import inspect
import itertools
import pkgutil
from functools import lru_cache

import pytest

import parallel_lab as pl
import parallel_lab.cost.schedules as schedules
from parallel_lab.base.errors import ArgumentError, ParallelLabError
from parallel_lab.cost.schedules import Found, Schedule, Work, auto_schedule, best_schedule, make_schedule
from parallel_lab.cost.schedules.auto import candidates
from parallel_lab.cost.schedules.exact import _Search
from parallel_lab.lab.exercises import lesson_09, schedules_by_hand
from parallel_lab.lab.exercises.book import Desk
from parallel_lab.lab.pipeline import drawing, puzzles
from parallel_lab.lab.pipeline.model import PipelineLab
from tests.lab.recorded_puzzles import replies, solution
from tests.lab.verdicts import check

ALL = {
    one.name: one
    for number, table in (("09.2", puzzles.BY_HAND), ("09.3", puzzles.DIVIDED))
    for sizes in table
    for one in puzzles.puzzles_of(number, *sizes)
}
COMMON = [name for name in ALL if " 4x8 " in name]


# ---- pars ----


class OverBorders(_Search):
    """The package's exact search, with a latency for each border between ranks."""

    def __init__(self, work, borders):
        self.borders = borders
        super().__init__(work, 10**9, float("inf"))
        took, parts, hops = work.took, len(work.times), [*borders, 0.0]
        for k in range(1, parts):
            self.to[k] = self.to[k - 1] + took(k - 1, "F") + hops[k - 1]
            after = hops[k - 1] + took(k - 1, "B") + self.after[k - 1]
            self.after[k] = max(took(k, "W") if work.split else 0.0, after)
        for k in reversed(range(parts - 1)):
            self.turn[k] = 2 * hops[k] + took(k + 1, "F") + self.turn[k + 1] + took(k, "B")

    def _arrival(self, ends, part, source):
        return ends[0] + self.borders[min(part, source)] if ends else None


def work_of(puzzle, latency=0.0):
    how = {"times": puzzle.times, "split": puzzle.divided, "latency": latency}
    return Work.on(puzzle.stages, puzzle.micro_batches, puzzle.cap, **how)


QUICK = [name for name in ALL if name in COMMON or name.startswith("09.2")]


@pytest.mark.quick(2)
@pytest.mark.parametrize("name", QUICK + [pytest.param(n, marks=pytest.mark.exhaustive) for n in ALL if n not in QUICK])
@pytest.mark.timeout(300)
def test_a_recorded_schedule_is_at_par_and_none_is_shorter(name):
    puzzle = ALL[name]
    lab = PipelineLab(puzzle=name)
    assert lab.locked and not lab.faults and lab.complete
    lab.load(solution(name))
    assert lab.makespan == puzzle.par and not lab.locked and max(lab.peaks) <= puzzle.cap
    search = OverBorders(work_of(puzzle), puzzle.borders)
    search.best = puzzle.par  # only what is shorter would be offered
    search.go(search.start)
    assert search.complete and search.best == puzzle.par and search.lanes is None


@pytest.mark.quick(2)
@pytest.mark.parametrize("borders", [(0.0, 0.0), (1.0, 1.0)])
@pytest.mark.parametrize("split", [False, True])
def test_the_search_over_borders_is_the_packages_where_all_borders_are_alike(borders, split):
    work = Work.on(3, 4, 3, times=(1, 1, int(split)), split=split, latency=borders[0])
    search = OverBorders(Work.on(3, 4, 3, times=(1, 1, int(split)), split=split), borders)
    search.go(search.start)
    assert search.best == best_schedule(work).makespan


# ---- nothing solves them ----

AUTO = lru_cache(maxsize=None)(auto_schedule)  # most commands leave the search what it was


def of_lab(lab):
    """Schedules that one command gives, and one more where that opens a search: every value of every control."""
    typed = {
        "times": ("1:1:0", "1:1:1", "1:2:0", "2:1:1"),
        "latency": ("0", "0.5", "1", "2", "3"),
        "cap": ("none", "4"),
    }
    typed["cap"] += ("3", "5", "6", "8", "12")
    calls = [[one.command, value] for one in lab.declared.values() for value in known_to(one, lab)]
    calls += [["set_typed", field, text] for field, texts in typed.items() for text in texts]
    calls += [["toggle_recompute", 0], ["set_code", "net = nn.PipelineCell(net, micro_size=8)"], ["undo"], ["redo"]]
    for call in (["search"], *calls):
        one = lab.branch()
        for command in (call, ["search"]):
            try:
                getattr(one, command[0])(*command[1:])
            except ParallelLabError:
                break
            yield call, one.schedule


def known_to(setting, lab):
    """All values, those that are not offered now among them."""
    every = {"schedule": schedules.schedule_names(), "stages": (2, 3, 4, 6, 8), "micro_batches": (4, 8, 16)}
    return every.get(setting.name) or (setting.known(lab) if callable(setting.known) else setting.known)


def schedules_in(value):
    """Whatever of an answer is one, or the text of one."""
    if isinstance(value, Found | Schedule):
        yield value.schedule if isinstance(value, Found) else value
    elif isinstance(value, pl.PipelineLab):
        yield value.schedule
    elif isinstance(value, str) and "0F0" in value:
        lines = [line for line in value.splitlines() if line[:3] in ("0F0", "1F0", "2F0", "3F0")]
        yield from ("\n".join(lines[at : at + 4]) for at in range(0, len(lines), 4))
    elif isinstance(value, list | tuple):
        yield from (one for each in value for one in schedules_in(each))


def of_functions(puzzle):
    """What public functions near the puzzle give for its own settings: with any of these arguments, or none."""
    sizes = lesson_09.Sizes(puzzle.stages, puzzle.micro_batches)
    given = (sizes, puzzle, puzzle.name, puzzle.number, puzzle.cap, work_of(puzzle, 2.0), puzzle.settings)
    near = [importlib.import_module(m.name) for m in pkgutil.iter_modules(schedules.__path__, f"{schedules.__name__}.")]
    for module in (puzzles, lesson_09, schedules_by_hand, *near):
        for name, make in vars(module).items():
            if name.startswith("_") or not inspect.isfunction(make) or name.startswith("train"):
                continue
            required = [p for p in inspect.signature(make).parameters.values() if p.default is p.empty]
            counts = {n for n in (0, 1, 2) if n in (len(required), 2) and n >= len(required)}
            for _, value in replies(make, given, counts):
                yield from schedules_in(value)


def of_searches(puzzle, whole=True):
    """Names, and searches with their own settings, over one latency for all borders."""
    for name, chunks in itertools.product(schedules.schedule_names(), (1, 2)):
        try:
            yield make_schedule(name, puzzle.stages, puzzle.micro_batches, chunks)
        except ArgumentError:
            continue
    mean = sum(puzzle.borders) / len(puzzle.borders)
    for latency in sorted({0.0, max(puzzle.borders), mean, 1.0} if whole else {mean}):
        work = work_of(puzzle, latency)
        yield from (AUTO(work), auto_schedule(work, minimise="span"))
        yield best_schedule(work, most_nodes=10_000).schedule
        yield from candidates(work)


def reached(puzzle, drawn):
    """The parts called par that a schedule passes."""
    answer = drawn if puzzle.number == "09.2" else {p.cap: drawn for p in ALL.values() if p.number == "09.3"}
    verdict = check(puzzle.number, answer)
    return {part.name for part in verdict.parts if part.name.startswith("par") and part.passed}


WHOLE = [(name, name.startswith("09.2")) for name in COMMON]  # in the others the searches of the labs take long
WHOLE += [pytest.param(name, True, marks=pytest.mark.exhaustive) for name in COMMON if name.startswith("09.3")]


@pytest.mark.quick(1)
@pytest.mark.parametrize(("name", "whole"), WHOLE)
@pytest.mark.timeout(120)
def test_nothing_but_an_own_schedule_reaches_par(name, whole, monkeypatch):
    """On the code before, with all borders alike, a drop-down gave all points of both (1f1b; zb_h1 and zb_h2)."""
    puzzle, mine = ALL[name], solution(name)
    monkeypatch.setattr(lesson_09, "_same_bits", lambda drawn: "trained elsewhere")
    monkeypatch.setattr(drawing, "auto_schedule", AUTO)
    how = {"times": puzzle.times, "cap": puzzle.cap}
    labs = {"the puzzle's": PipelineLab(puzzle=name), "an ordinary one": PipelineLab(**how, latency=puzzle.borders)}
    labs |= {f"latency {t}": PipelineLab(**how, latency=t) for t in (0.0, max(puzzle.borders)) if whole}
    tried = {}
    for where, lab in labs.items():
        for call, drawn in of_lab(lab):
            tried.setdefault(drawn if isinstance(drawn, str) else drawn.text(), f"{call} in the lab: {where}")
    for where, found in (("a search", of_searches(puzzle, whole)), ("a function", of_functions(puzzle))):
        for drawn in found:
            tried.setdefault(drawn if isinstance(drawn, str) else drawn.text(), where)
    assert len(tried) > 30
    solved = {where: parts for text, where in tried.items() if (parts := reached(puzzle, text))}
    assert reached(puzzle, mine) and not solved


@pytest.mark.quick(1)
@pytest.mark.parametrize("number", ["09.2", "09.3"])
def test_par_tells_nothing_before_it_is_reached(number):
    desk = Desk()
    desk.check(number, make_schedule("1f1b", 4, 8) if number == "09.2" else {4: make_schedule("zb_h1", 4, 8)})
    with pytest.raises(ArgumentError, match="no attempt of your own passes 'par' yet"):
        desk.par(number)


@pytest.mark.exhaustive
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", [name for name in ALL if name not in COMMON])
def test_no_name_and_no_search_solves_a_learners_own(name):
    puzzle = ALL[name]
    for drawn in of_searches(puzzle):
        if drawn.parts == puzzle.stages and not drawn.check(puzzle.cap) and drawn.splits_backward == puzzle.divided:
            assert drawn.together or puzzle.length(drawn) > puzzle.par or drawn.holds[0] != (0,)


# ---- the puzzle's lab ----

LOCKED = (["set_schedule", "1f1b"], ["search"], ["set_cap", 9], ["set_latency", 0.0], ["set_times", 1, 1, 1])
LOCKED += (["set_typed", "latency", "0"], ["set_stages", 2], ["set_micro_batches", 4], ["toggle_recompute", 0])
LOCKED += (["set_code", "net = nn.PipelineCell(net, micro_size=4)"], ["load", make_schedule("gpipe", 4, 8, 2).text()])


def test_a_puzzles_lab_refuses_what_would_solve_it_until_par_is_reached():
    lab = PipelineLab(puzzle="09.2 4x8 cap 4")
    for command, *arguments in LOCKED:
        with pytest.raises(ArgumentError, match=r"before par is reached\. It opens at par, a step of 30"):
            getattr(lab, command)(*arguments)
    shown = lab.snapshot()
    assert shown["schedule"]["choices"] == ["drawn"] and shown["puzzle"]["locked"] and "Par is 30" in lab.to_text()
    lab.load(make_schedule("1f1b", 4, 8).text())
    assert lab.locked and "This is 1F1B" in lab.snapshot()["status"] and lab.makespan == 38
    lab.load(solution("09.2 4x8 cap 4"))
    for command, *arguments in LOCKED[:2]:
        lab.set_latency(0.0)
        getattr(lab, command)(*arguments)
    assert not lab.locked and len(lab.snapshot()["schedule"]["choices"]) > 10


@pytest.mark.parametrize("form", ["file", "link"])
def test_a_file_or_a_link_brings_nothing_back(form, tmp_path):
    lab = PipelineLab(puzzle="09.2 4x8 cap 4", net="gpt")
    lab.load(make_schedule("eager_1f1b", 4, 8).text())
    again = pl.open_lab(lab.save(tmp_path / "mine.json") if form == "file" else "https://a.b/page.html" + lab.link())
    assert again.locked and again.settings == lab.settings
    state = {**lab.state(), "calls": [["set_schedule", "1f1b"]]}
    with pytest.raises(pl.ParallelLabError, match="before par is reached"):
        PipelineLab.of_state(state)
    lab.load(solution("09.2 4x8 cap 4"))
    lab.set_schedule("gpipe")  # an ordinary lab from here on
    assert PipelineLab.of_state(lab.state()).settings == lab.settings


@pytest.mark.parametrize("link", ["#state=", "#state=[]", "#state=%7B%22calls%22", "#state=" + "%5B" * 50])
def test_another_text_than_a_link_is_refused(link):
    with pytest.raises(pl.ParallelLabError, match="link"):
        pl.open_lab(link)


def test_a_puzzle_gives_its_numbers_itself():
    for how in ({"stages": 2}, {"cap": 9}, {"times": (1, 2, 3)}, {"latency": 1.0}, {"schedule": "gpipe"}):
        with pytest.raises(ArgumentError, match="net and strategy"):
            PipelineLab(puzzle="09.2 4x8 cap 4", **how)
    with pytest.raises(ArgumentError, match=r"puzzle '09\.9'"):
        PipelineLab(puzzle="09.9")
    with pytest.raises(ArgumentError, match="cap 5"):
        Desk().puzzle_lab("09.3", 5)
    with pytest.raises(ArgumentError, match=r"no lab. One of 09.2, 09.3"):
        Desk().puzzle_lab("09.1")
    assert Desk().puzzle_lab("09.3", 8).settings.cap == 8


@pytest.mark.parametrize(
    ("name", "said"), [("1f1b", "1F1B"), ("zb_h2", "ZB-H2"), ("gpipe", "GPipe"), ("v_half", "V-Half")]
)
def test_what_was_built_is_recognised(name, said):
    lab = PipelineLab(schedule=name)
    lab.load(lab.schedule.text())
    assert f"This is {said} ({name}). " in lab.snapshot()["status"]
    lab.remove(0, 0)
    assert "This is" not in lab.snapshot()["status"]


def test_messages_wait_for_the_slowest_border_on_their_way():
    lab = PipelineLab(stages=3, micro_batches=2, schedule="interleaved", latency=(0, 2))
    assert [lab.settings.delay(*pair) for pair in ((0, 1), (1, 0), (1, 2), (2, 0), (1, 1))] == [0, 0, 2, 2, 0]
    assert lab.snapshot()["typed"]["latency"] == "0,2" and PipelineLab.of_state(lab.state()).settings == lab.settings
    with pytest.raises(ArgumentError, match="latency of 2 borders"):
        lab.set_stages(4)
    with pytest.raises(ArgumentError, match="the search knows no borders"):
        lab.search()
    assert "{(0, 1): 0.0" in lab.to_text()
