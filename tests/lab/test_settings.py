"""One contract over the settings of all labs: from a declaration follow choice, command, check, file and text."""

from __future__ import annotations

import inspect
import json

import pytest

import parallel_lab as pl
from parallel_lab.base.errors import ArgumentError, ParallelLabError
from parallel_lab.lab import widgets
from parallel_lab.lab.shared.lab import Lab, setting

MAKE = {name: getattr(pl, name) for name in widgets.LABS}
SETTINGS = [(name, one) for name, make in MAKE.items() for one in make.declared]
# more than their lists offer: any number, and None for the default cluster
TYPED = {("SearchLab", which) for which in ("bandwidth", "latency", "capacity")} | {("FusionLab", "cluster")}
JUNK = (None, -1, 10**9, 1.5, "", "no such value", float("nan"), ["x"])


def state(lab) -> str:
    shot = lab.snapshot()
    shot.pop("run", None)
    return json.dumps([shot, lab.calls()], default=str)


@pytest.mark.quick(12)
@pytest.mark.parametrize(("name", "which"), SETTINGS)
def test_a_setting_takes_what_it_offers_keeps_it_and_refuses_junk(name, which):
    lab, heard = MAKE[name](), []
    one = lab.declared[which]
    command = getattr(lab, one.command)
    assert one.command in lab.commands and (one.command in lab.looks) == one.look
    assert inspect.getdoc(command) and len(lab.argument_types(one.command)) <= 1
    for value in list(one.choice(lab).known)[:4] if one.label else []:
        try:
            command(value)
        except ParallelLabError:
            continue  # possible alone, and not with the others
        assert one.choice(lab).value == value and [one.command, value] in lab.calls()
        again = MAKE[name].of_state(lab.state())
        assert again.declared[which].choice(again).value == value
    before = state(lab)
    lab.on_change(lambda *what: heard.append(what))
    for junk in JUNK:
        if one.label and (name, which) not in TYPED and junk not in list(one.choice(lab).known):
            with pytest.raises((ParallelLabError, TypeError)):
                command(junk)
            assert state(lab) == before and not heard, junk


@pytest.mark.parametrize("name", MAKE)
def test_commands_are_methods_with_a_text_and_named_once(name):
    make = MAKE[name]
    assert len(set(make.commands)) == len(make.commands)
    assert all(inspect.getdoc(getattr(make, command)) for command in make.commands)


class Rows(Lab):
    """A lab of two settings.  ranks: 2, 4 or 8;  rows: typed, a multiple of ranks"""

    commands = ("forget",)

    def __init__(self, ranks: int = 4) -> None:
        super().__init__()
        self._rows = 8
        self._begin(ranks=ranks)

    @setting("ranks", (2, 4, 8))
    def set_ranks(self, ranks: int) -> dict[str, int]:
        """Another number of ranks; rows are rounded up."""
        return {"rows": -(-self._rows // ranks) * ranks}

    @setting(typed=True)
    def set_rows(self, rows: int) -> dict[str, int]:
        """Rows: a multiple of the ranks."""
        if rows % self._ranks:
            raise ArgumentError(f"{rows} rows", where="Rows", allowed=f"A multiple of {self._ranks}")
        return {"rows": rows}

    @setting("rank", lambda lab: range(lab._ranks), value=lambda lab: getattr(lab, "_rank", 0), look=True)
    def set_rank(self, rank: int) -> None:
        """The rank that is looked at."""

    def forget(self) -> None:
        """Not a setting."""


def test_what_a_declaration_says():
    lab, heard = Rows(), []
    lab.on_change(lambda *what: heard.append(what))
    lab.set_rows(12)
    lab.set_ranks(8)
    lab.set_rank(rank=7)
    assert lab.calls() == [["set_ranks", 8], ["set_rows", 16], ["set_rank", 7]] and len(heard) == 3
    assert Rows.commands == ("set_ranks", "set_rows", "set_rank", "forget") and Rows.looks == {"set_rank": "rank"}
    assert list(lab.chosen()) == ["ranks", "rank"] and Rows.set_ranks.__doc__.startswith("Another number")
    for wrong, value in ((lab.set_ranks, 3), (lab.set_ranks, True), (lab.set_rows, 3), (lab.set_rank, 8)):
        with pytest.raises(ArgumentError):
            wrong(value)
    with pytest.raises(TypeError, match="ranks"):
        lab.set_ranks(rank=2)
    with pytest.raises(ArgumentError, match="ranks 3"):
        Rows(3)
    assert lab.calls() == [["set_ranks", 8], ["set_rows", 16], ["set_rank", 7]] and len(heard) == 3
    again = Rows.of_state(lab.state())
    assert again.calls() == lab.calls()
