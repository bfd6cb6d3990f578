"""Who answers a row of the form of `data/published_runs/runs.json`: one function, which calls public names only.

python tests/recorded/ask_runs.py                     all rows of the file, with their errors
python tests/recorded/ask_runs.py rows.json           those of another file of the same form ("rows": [...])
ask_row({"id": "mine", "model": "llama3_8b", "hardware": "DGX H100", "devices": 8, ...})
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from parallel_lab.cost import planner


def ask_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """What is predicted of a row, next to what it prints; numbers that cannot be said are None.

    step_s, measured_s, error        predicted and printed seconds of a step (of one attention), their ratio less 1
    share, share_error               of attention's speed on one device, in parts of 1
    tokens_per_s_per_device, tflops_causal, tflops_all   of the prediction
    flops_per_token                  {"causal", "all"}: by the formula
    formula_error                    by the formula over what printed TFLOP/s and rate imply, less 1, as `counts` says
    memory_gib, memory_error         of the fullest rank
    plan, assumed, off, why          in words;  error_bar: of the chip
    """
    report = planner.report_run(row)
    run, found = report.run, report.prediction
    answer: dict[str, Any] = {"id": run.name, "step_s": report.seconds, "measured_s": run.step_s, "error": report.error}
    answer |= {"share": report.share, "counts": run.counts, "formula_error": run.formula_error}
    answer |= {"why": run.why, "off": report.off_text, "error_bar": report.error_bar_text, "assumed": run.assumed}
    measured = run.measured.get("share_of_flash_attention")
    answer["share_error"] = report.share - measured if measured and report.share is not None else None
    if run.decoder is not None and row.get("seq_length"):
        answer["parameters"] = run.decoder.parameters
        answer["flops_per_token"] = {kind: run.flops_per_token(kind) for kind in ("causal", "all")}
    if found is not None:
        rate = found.tokens_per_s / found.point.devices
        answer |= {"plan": found.point.text(), "tokens_per_s_per_device": rate}
        answer |= {f"tflops_{kind}": run.flops_per_token(kind) * rate / 1e12 for kind in ("causal", "all")}
        answer |= {"memory_gib": found.memory_bytes / 2**30, "memory_error": report.memory_error}
        answer["terms"] = {name: getattr(found, name) for name in found.terms}
    return answer


def table_of(rows: list[Mapping[str, Any]] | None = None) -> str:
    """Rows with their errors as text. rows: None for those of the file that comes with the package"""
    return planner.run_table(None if rows is None else [planner.report_run(row) for row in rows])


if __name__ == "__main__":
    given = None if len(sys.argv) < 2 else json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))["rows"]
    print(table_of(given))
