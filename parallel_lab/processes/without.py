"""What can be had without starting processes: where a browser stands at the doors of this room, and names for others.

The packages that start processes are missing there. A class or function of theirs is `Absent`: a call says why.
"""

from __future__ import annotations

from typing import Any

from ..base.system import require_processes

BLAS_VARIABLES = tuple(f"{library}_NUM_THREADS" for library in ("OPENBLAS", "OMP", "MKL", "BLIS", "NUMEXPR"))


class Absent:
    """A class or function that needs processes: a call raises NoProcesses."""

    def __init__(self, *_: Any, **__: Any) -> None:
        require_processes(type(self).__name__)


def absent(*names: str) -> dict[str, Any]:
    """Such a one for each name."""
    return {name: type(name, (Absent,), {}) for name in names}


def nothing(*_: Any, **__: Any) -> None:
    """Lets go of no workers."""
