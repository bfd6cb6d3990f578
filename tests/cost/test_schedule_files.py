"""Schedules written and read: text, PyTorch's CSV in both forms, and PyTorch's orders on a grid."""

import json
import re
from pathlib import Path

import pytest

from parallel_lab.base.errors import ArgumentError
from parallel_lab.cost.schedules import Schedule, make_schedule, schedule_names
from tests.crossed import each_of

RECORDED = json.loads((Path(__file__).parents[1] / "recorded" / "torch_schedules.json").read_text())
CASES = sorted(RECORDED["orders"])


def made(case):
    """The schedule of a case "interleaved 4 8 2": name, stages, micro-batches, chunks."""
    name, *numbers = case.split()
    return make_schedule(name, *map(int, numbers))


def same_place(schedule):
    what = ("name", "parts", "micro_batches", "holds")
    return {word: getattr(schedule, word) for word in what}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.quick(24)
def test_the_order_is_pytorchs(case):
    wanted = RECORDED["orders"][case]
    if wanted is None:
        if case.startswith("zb_h1") and case.endswith(" 1"):  # without rounds ours is H1 for any number
            assert made(case).check() == []
            return
        with pytest.raises(ArgumentError):
            made(case)
        return
    found = made(case).to_csv().splitlines()
    if case.startswith("1f1b"):  # their table counts the last rank's forwards from 1; what they run begins at 0
        found[-1] = re.sub(r"F(\d+)", lambda f: f"F{int(f[1]) + 1}", found[-1])
    assert found == [row.replace(" ", ",") for row in wanted]


@pytest.mark.parametrize("case", sorted(RECORDED["lowered"]))
@pytest.mark.quick(12)
def test_the_lowered_form_is_pytorchs_and_reads_back(case):
    schedule, text = made(case), "\n".join(RECORDED["lowered"][case]) + "\n"
    assert schedule.to_csv(lowered=True) == text
    assert Schedule.from_csv(text, **same_place(schedule)) == schedule


@pytest.mark.parametrize("name", schedule_names())
def test_a_schedule_survives_its_text_and_its_csv(name):
    schedule = make_schedule(name, 4, 8)
    again = Schedule.from_text(schedule.text(), **same_place(schedule))
    assert again == schedule and again.check() == []
    if name in ("chimera", "dualpipe"):
        with pytest.raises(ArgumentError, match="part 0 lies on 2 ranks"):
            schedule.to_csv()
    else:
        assert Schedule.from_csv(schedule.to_csv(), **same_place(schedule)) == schedule
        assert Schedule.from_csv(schedule.to_csv(lowered=True), **same_place(schedule)) == schedule


def test_a_schedule_is_shown_as_its_text():
    made = make_schedule("1f1b", 2, 2)
    assert repr(made).splitlines() == [
        "schedule '1f1b', 2 parts, 2 micro-batches",
        "0F0 0F1 0B0 0B1",
        "1F0 1B0 1F1 1B1",
    ]


def test_a_drawn_schedule_knows_what_it_runs():
    """Empty lines, comments and empty cells are nothing; parts and micro-batches are those that are named."""
    drawn = Schedule.from_text("# two ranks\n0F0 0F1 0B0 0B1  # the first\n\n1F0 1B0 1F1 1B1\n")
    assert (drawn.parts, drawn.micro_batches, drawn.holds) == (2, 2, ((0,), (1,)))
    assert drawn.ranks == Schedule.from_csv("0F0,0F1,,,0B0,0B1\r\n,1F0,1B0,1F1,1B1\r\n").ranks
    assert [str(a) for a in drawn[1]] == ["1F0", "1B0", "1F1", "1B1"] and len(drawn) == 2
    both = Schedule.from_csv("(0F1;1B0)OVERLAP_F_B,0I1,0W1\n", parts=2, micro_batches=2)
    assert both.text() == "0F1+1B0+1W0 0B1 0W1"


@each_of(
    ("read", "text", "words"),
    (Schedule.from_text, "0F0 0B0\n1F0 1X0", r"line 2, column 5 \(rank 1\).*'1X0' is of kind 'X'"),
    (Schedule.from_text, "0F0 F1", r"line 1, column 5 \(rank 0\).*'F1' is no action"),
    (Schedule.from_text, "0F0+0B", "'0B' is no action"),
    (Schedule.from_text, " \n# nothing", "the text has no actions"),
    (Schedule.from_csv, "0F0,0B0\n1F0,,1Q0\n", "line 2, cell 3.*'1Q0' is no action.*0SEND_F0"),
    (Schedule.from_csv, "0F", "line 1, cell 1.*'0F' is no action"),
    (Schedule.from_csv, "0UNSHARD3", "'0UNSHARD3' is no action"),
    (Schedule.from_csv, "\n\n", "the file has no actions"),
)
def test_an_invalid_schedule_says_where(read, text, words):
    with pytest.raises(ArgumentError, match=words):
        read(text)
