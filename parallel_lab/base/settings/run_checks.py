"""What is checked while ranks train: whether copies stay equal, and whether numbers stay finite.

set_run_checks(replicas="warning", replicas_every=200, finite=True)
"""

from __future__ import annotations

import functools
import os
import sys
from dataclasses import dataclass, replace
from typing import Any

from ..checks import checked, choice, flag, integer
from ..hooks import current_world

REPLICAS = ("error", "warning", "off")
EVERY = 50  # steps; a comparison took 13 % of a step of a small network on 4 ranks, so 0.3 % in all


@dataclass(frozen=True)
class RunChecks:
    """replicas        "error", "warning" or "off": what becomes of copies that differ between ranks; None: a warning
                    in a script that says `import mindspore`, else an error
    replicas_every  they are compared in the first two steps, and every so many
    finite          raise NonFinite for NaN and infinities in losses, gradients and parameters; None: in notebooks; a
                    rank of a script warns once and goes on, as a loss scale of its own may look for them
    told            that warning has been given
    """

    replicas: str | None = None
    replicas_every: int = EVERY
    finite: bool | None = None
    told: bool = False

    @property
    def on_difference(self) -> str:
        """What becomes of copies that differ."""
        return self.replicas or ("warning" if "mindspore" in sys.modules else "error")

    @property
    def check_finite(self) -> bool:
        """Whether numbers are looked at."""
        return self.on_nonfinite in ("error", "warning")

    @property
    def on_nonfinite(self) -> str:
        """What becomes of NaN and infinities: "error", "warning" or "off"; "told" after the warning."""
        if self.finite is None and not in_notebook():
            return "off" if current_world() is None else "told" if self.told else "warning"
        return "off" if self.finite is False else "error"


@functools.cache  # asked for every gradient
def in_notebook() -> bool:
    """Whether this process is a notebook's kernel, or a rank of one of its cells."""
    return "ipykernel" in sys.modules or '"%%ranks"' in os.environ.get("PARALLEL_LAB_WORLD", "")


_checks = RunChecks()


def run_checks() -> RunChecks:
    """The checks as they are now."""
    return _checks


@checked(replicas=choice(*REPLICAS) | None, replicas_every=integer(1), finite=flag | None)
def set_run_checks(
    *, replicas: str | None = None, replicas_every: int | None = None, finite: bool | None = None
) -> None:
    """Choose what is checked while ranks train; what is omitted stays as it is. On every rank alike.

    replicas        "error", "warning" or "off": of parameters and optimizer states that all ranks hold, and their
                    optimizer's settings, when they differ
    replicas_every  steps between two comparisons, at least 1
    finite          whether NaN and infinities are an error that names rank, step, parameter and index
    """
    global _checks
    settings: dict[str, Any] = {"replicas": replicas, "replicas_every": replicas_every, "finite": finite}
    _checks = replace(_checks, **{name: value for name, value in settings.items() if value is not None})


def note_told() -> None:
    """The warning of what is not finite has been given."""
    global _checks
    _checks = replace(_checks, told=True)


def reset_run_checks() -> None:
    """As at the start."""
    global _checks
    _checks = RunChecks()
