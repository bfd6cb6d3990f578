"""A setting of a lab, declared once: what follows from the declaration of a small lab. All labs: test_labs.py."""

from __future__ import annotations

import pytest

from parallel_lab.base.errors import ArgumentError
from parallel_lab.lab.shared.lab import Lab, setting


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
