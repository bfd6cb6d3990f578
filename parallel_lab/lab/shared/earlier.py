"""Earlier runs: what was run with other settings stays as a row, and as a pale curve where losses were seen.

    run = EarlierRun("dense, 2 devices, fusion off", (("measured", "1.2 ms a step"),))
    earlier_written([run])      [["dense, 2 devices, fusion off", [["measured", "1.2 ms a step"]], 0, []]]

A lab keeps the newest few, shows them (`earlier_runs`), writes them into its file and takes them back from there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .records import LONGEST, MOST_LOSSES, Plain, losses_taken, losses_written, require, taken
from .sections import Section, table

EARLIER = 3  # runs with other settings that are still shown
MOST_ROWS = 4  # of one of them
CURVE = 200  # points of its curve
COLUMNS = {"settings": "name", "source": "text", "found": "text"}


@dataclass(frozen=True)
class EarlierRun:
    """One run.

    settings   in words
    rows       what it found: the cells behind the settings in the table of earlier runs, one row for each source
    steps      of its training;  losses: at most CURVE of them, evenly, as `thinned` leaves them
    recorded   read from a file
    """

    settings: str
    rows: tuple[tuple[str | None, ...], ...] = ()
    steps: int = 0
    losses: tuple[float, ...] = ()
    recorded: bool = False

    @property
    def label(self) -> str:
        """The settings as they are shown."""
        return f"{'recorded: ' if self.recorded else ''}{self.settings}"

    def curve(self) -> dict[str, Any]:
        """As the "earlier" of a snapshot has it: "label", "steps", "losses"."""
        return {"label": self.label, "steps": self.steps, "losses": list(self.losses)}


def newest(runs: Iterable[EarlierRun]) -> list[EarlierRun]:
    """The last few of them: older ones are forgotten."""
    return list(runs)[-EARLIER:]


def thinned(losses: Sequence[float]) -> tuple[float, ...]:
    """At most CURVE of the losses, evenly, the first one among them."""
    return tuple(losses[:: -(-len(losses) // CURVE) or 1])


def earlier_runs(runs: Iterable[EarlierRun], columns: Mapping[str, str] = COLUMNS) -> dict[str, Section]:
    """The section "earlier", if there are any."""
    rows = [[run.label, *row] for run in runs for row in run.rows]
    return {"earlier": table("Earlier runs", columns, rows)} if rows else {}


def earlier_written(runs: Iterable[EarlierRun]) -> list[list[Any]]:
    """The runs in a lab's file: settings, rows, steps, losses."""
    return [
        [run.settings[:LONGEST], [list(row) for row in run.rows], run.steps, losses_written(run.losses)] for run in runs
    ]


def earlier_taken(value: Any, columns: Mapping[str, str] = COLUMNS) -> list[EarlierRun]:
    """The runs again, as recorded ones. Raises ArgumentError.  columns: that their rows fill, settings included"""
    kind = tuple[tuple[str, tuple[tuple[str | None, ...], ...], int, Plain], ...]
    runs = []
    for n, (settings, rows, steps, losses) in enumerate(taken(kind, value, "earlier")):
        where, curve = f"earlier[{n}]", losses_taken(losses, f"earlier[{n}]", CURVE)
        require(
            where,
            (rows or curve, "neither rows nor losses", "A run that has found something"),
            (len(rows) <= MOST_ROWS, f"{len(rows)} rows", f"At most {MOST_ROWS}"),
            (all(len(row) == len(columns) - 1 for row in rows), "a row", f"{len(columns) - 1} cells"),
            (
                len(curve) <= steps <= MOST_LOSSES and bool(curve) == bool(steps),
                f"{len(curve)} losses of {steps} steps",
                f"Some of those of at most {MOST_LOSSES} steps",
            ),
        )
        runs.append(EarlierRun(settings, rows, steps, tuple(curve), True))
    require("earlier", (len(runs) <= EARLIER, f"{len(runs)} earlier runs", f"At most {EARLIER}"))
    return runs
