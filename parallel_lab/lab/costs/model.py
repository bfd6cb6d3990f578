"""The Cost Lab: a collective can be made by several algorithms, and which one is the fastest depends on the size.

    lab = CostLab("all_reduce", ranks=8, alpha_us=5, gigabytes_per_s=10)
    print(lab.to_text())
    lab.fastest                     # by recursive_doubling up to 117 KiB, then by halving_doubling

This file is the whole lab: settings (`shared/settings.py`) and sections (`shared/sections.py`). Its numbers are in
`lines.py`; text, page, link, file and widget follow from the declaration.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from ...base.units import bytes_text
from ..shared.lab import Lab, offered, setting
from ..shared.questions import COMMANDS, Question
from ..shared.sections import code, curves, table
from .lines import Line, Part, fastest, line_at, lines_of

KINDS = ("all_reduce", "all_gather", "reduce_scatter")
RANKS = (2, 3, 4, 8, 16, 32, 64)
ALPHAS = {us: f"{us} us" for us in (1, 5, 25, 100)}
SPEEDS = {1: "1 GB/s", 10: "10 GB/s", 100: "100 GB/s"}
SIZES = {1 << power: bytes_text(1 << power) for power in (10, 14, 17, 20, 24, 28)}
DRAWN = [1 << power for power in range(8, 31)]  # bytes, from 256 B to 1 GiB


class CostLab(Lab):
    """The algorithms of one collective on one machine, with a link for every pair of ranks.

    kind     "all_reduce", "all_gather" or "reduce_scatter"; S is the whole value, all ranks' chunks together
    alpha_us, gigabytes_per_s   microseconds to start a message, and what a link carries
    size     bytes of S for which the algorithms are compared in a table

    Raises ArgumentError for values that are not offered.
    """

    title = "Cost Lab"
    scripts = ("shared/curves.js", "costs/story.js", "shared/plain_lab.js")
    commands = COMMANDS
    free = ("kind", "ranks", "alpha_us", "gigabytes_per_s")
    frame_height_px = 780

    def __init__(
        self,
        kind: str = "all_reduce",
        ranks: int = 8,
        alpha_us: int = 5,
        gigabytes_per_s: int = 10,
        size: int = 1 << 17,
        *,
        controls: str = "",
        story: bool = False,
    ) -> None:
        super().__init__(controls=controls, story=story)
        self._begin(kind=kind, ranks=ranks, alpha_us=alpha_us, gigabytes_per_s=gigabytes_per_s, size=size)

    set_kind = offered("collective", KINDS, "Another collective.", kind=str)
    set_ranks = offered("ranks", RANKS, "Another number of ranks.", ranks=int)
    set_alpha_us = offered("alpha", ALPHAS, "Microseconds to start a message: 1, 5, 25 or 100.", alpha_us=int)

    @setting("bandwidth", SPEEDS)
    def set_gigabytes_per_s(self, speed: int) -> None:
        """What a link carries, in 10^9 bytes per second: 1, 10 or 100."""

    set_size = offered("size S", SIZES, "Bytes of S in the table.", look=True, size=int)

    # ---- what there is ----

    @property
    def machine(self) -> tuple[float, float]:
        """Alpha in seconds, beta in seconds per byte."""
        return self._alpha_us / 1e6, 1e-9 / self._gigabytes_per_s

    @property
    def lines(self) -> list[Line]:
        """The algorithms, those with equal costs together."""
        return lines_of(self._kind, self._ranks)

    @property
    def fastest(self) -> list[Part]:
        """Which of them is the fastest from how many bytes on."""
        return fastest(self.lines, *self.machine)

    # ---- what is shown ----

    def parts(self) -> dict[str, Any]:
        """What the views show, as plain data."""
        lines, parts = self.lines, self.fastest
        return {
            "status": self._status(parts),
            "sections": {
                "times": self._curves(lines, parts),
                "table": self._table(lines, parts),
                "formulas": table(
                    "Formulas",
                    {"": "name", "time": "text", "costs the same": "why"},
                    [(line.name, line.formula, ", ".join(line.names[1:])) for line in lines],
                    notes=[
                        "alpha starts a message, beta is for each byte of S; gamma, the time to add, is not counted"
                    ],
                    tab=True,
                ),
                "python": code("In Python", "", tab=True, by=["size"], of=self._python(parts)),
            },
        }

    def questions(self) -> list[Question]:
        """Which algorithm is the fastest for 1 KiB; from what size on another one is, if there is one."""
        parts, about = self.fastest, f"{self._kind}, {self._ranks} ranks, {self.machine}"
        small, hides = line_at(parts, 1 << 10).name, ("sections",)
        text = f"Which algorithm is the fastest {self._kind} of 1 KiB on {self._ranks} ranks?"
        names, why = tuple(line.name for line in self.lines), "where bytes cost little, the fewest start-ups win"
        asks = [Question(f"{about}, 1 KiB", text, (small,), why, hides=hides, choices=names)] if len(names) > 1 else []
        if len(parts) > 1:
            last, size = parts[-1].line.name, parts[-1].from_bytes
            text, right = f"From how many KiB on is {last} the fastest?", (float(f"{size / 1024:.3g}"),)
            why = f"at {bytes_text(size)} its extra start-ups cost as much as the bytes that it saves"
            asks.append(Question(f"{about}, crossing", text, right, why, unit="KiB", within=0.25, hides=hides))
        return asks

    def _status(self, parts: list[Part]) -> str:
        turns = [f"{part.line.name} up to {bytes_text(after.from_bytes)}" for part, after in pairwise(parts)]
        last = parts[-1].line.name
        ranges = f"{', then '.join(turns)}, from there {last}" if turns else f"{last} for every size"
        return f"{self._kind} on {self._ranks} ranks is fastest by {ranges} (predicted)."

    def _curves(self, lines: list[Line], parts: list[Part]) -> dict[str, Any]:
        times_s = {line.name: [line.time_s(size, *self.machine) for size in DRAWN] for line in lines}
        marks = [(part.from_bytes, f"{bytes_text(part.from_bytes)}: {part.line.name}") for part in parts[1:]]
        best, worst = (min(ALPHAS) / 1e6, 1e-9 / max(SPEEDS)), (max(ALPHAS) / 1e6, 1e-9 / min(SPEEDS))
        least = min(line.time_s(DRAWN[0], *best) for line in lines)
        within = (least, max(line.time_s(DRAWN[-1], *worst) for line in lines))
        small = "predicted; a dot is a crossing, grey is what it was before the last change"
        return curves("Time over size", "S", DRAWN, times_s, within, marks=marks, small=small)

    def _table(self, lines: list[Line], parts: list[Part]) -> dict[str, Any]:
        columns = {"": "name", "time": "time bar", "to start": "time", "to send": "time", "sent": "bytes"}
        of = {}
        for size, label in SIZES.items():
            rows = []
            for line in lines:
                starts_s, sends_s = line.parts_s(size, *self.machine)
                rows.append([line.name, starts_s + sends_s, starts_s, sends_s, int(line.sent * size)])
            of[str(size)] = {
                "rows": rows,
                "on": line_at(parts, size).name,
                "small": f"S = {label}; of the busiest rank, predicted",
            }
        return table("For one size", columns, by=["size"], of=of)

    def _python(self, parts: list[Part]) -> dict[str, dict[str, str]]:
        alpha_s, beta_s_per_byte = self.machine
        head = (
            "from parallel_lab.base.cluster import Link\n"
            "from parallel_lab.lab.collectives.algorithms.algorithm import algorithm\n\n"
            f"link = Link(alpha_s={alpha_s:g}, beta_s_per_byte={beta_s_per_byte:g})\n"
        )
        calls = {size: f'algorithm("{self._kind}", "{line_at(parts, size).name}", {self._ranks})' for size in SIZES}
        return {str(size): {"text": f"{head}{call}.time_s({size}, link)"} for size, call in calls.items()}
