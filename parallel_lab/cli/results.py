"""What a result was measured on, the versioned form in which results are written, and the frame of a result's page: one
HTML file without network or script.
"""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..base.errors import escape
from ..base.system import cores, free_memory_bytes
from ..lab.quickstart.report_page import page
from ..processes.measure.measure import load
from ..processes.mpi.launch import find_mpirun

SCHEMA = "parallel_lab bench 1"
CHARTS = ".charts { display: flex; flex-wrap: wrap; gap: 18px 28px; }"
Row = Sequence[str]
_PACKAGES = ("parallel-lab", "numpy", "torch", "mpi4py")


def installed_version(package: str) -> str | None:
    """Version of an installed package, or None. It is not imported."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def machine_facts() -> dict[str, Any]:
    """Cores, processor, memory, versions, 1-minute load average and time, now."""
    return {
        "cores": cores(),
        "cores_of_the_machine": os.cpu_count(),
        "processor": _processor(),
        "free_memory_bytes": free_memory_bytes(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "versions": {name: installed_version(name) for name in _PACKAGES},
        "mpirun": find_mpirun(),
        "load": load(),
        "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def machine_text(facts: Mapping[str, Any]) -> str:
    """The facts in one line."""
    versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items() if version)
    return (
        f"{facts['cores']} cores ({facts['processor']}), Python {facts['python']}, {versions}, load {facts['load']:.1f}"
    )


def results_json(kind: str, machine: Mapping[str, Any], results: Mapping[str, Any]) -> str:
    """One JSON object: schema, benchmark, machine, load afterwards, and the results. NaN and infinity are refused."""
    whole = {"schema": SCHEMA, "benchmark": kind, "machine": dict(machine), "load_after": load(), **results}
    return json.dumps(whole, indent=1, allow_nan=False) + "\n"


def bench_page(title: str, machine: Mapping[str, Any], body: str) -> str:
    """A page of this package's benchmarks around `body` (HTML)."""
    machine_line = f'<p class="muted">{escape(machine_text(machine))}</p>'
    return page(title, f"<h1>{escape(title)}</h1>\n{machine_line}\n{body}", CHARTS)


def html_table(rows: Sequence[Row], *, left: int = 1) -> str:
    """Rows of equal length as an HTML table: the first row its head, columns after the first `left` numbers. Texts are
    escaped.
    """

    def cells(row: Row, tag: str) -> str:
        scope, number = (' scope="col"' if tag == "th" else ""), ' class="n"'
        return "".join(
            f"<{tag}{scope}{number if i >= left else ''}>{escape(cell)}</{tag}>" for i, cell in enumerate(row)
        )

    head, *body = rows
    lines = "".join(f"<tr>{cells(row, 'td')}</tr>" for row in body)
    return f'<div class="scroll"><table><thead><tr>{cells(head, "th")}</tr></thead><tbody>{lines}</tbody></table></div>'
