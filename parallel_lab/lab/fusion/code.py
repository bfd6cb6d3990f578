"""The Fusion Lab's settings as code: read from lines of MindSpore, and written as lines and as whole programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ...base.errors import ArgumentError, ParallelLabError, shorten
from ...base.settings.checks import check_comm_fusion, integer
from ...graph.plan import Plan
from ..code.data import DATA
from ..code.exports import code_of_fusion
from ..code.pasted import fault, read_code
from ..code.program import TARGETS, program_of
from ..shared.lab import Lab
from .case import Settings
from .compiled import Plans, Setup
from .sections import export_line

PARALLEL_MODES = ("data_parallel", "semi_auto_parallel")
LARGEST_TEXT = 2000  # characters of a typed list
SHORT_MODES = {"semi_auto": "semi_auto_parallel"}


def settings_in(text: str, names: Sequence[str]) -> dict[str, Any]:
    """Settings that these lines change.  names: of the parameters. Raises ArgumentError, with the line, for others."""
    lines = read_code(text)
    changes: dict[str, Any] = {}
    if mode := lines.value("parallel_mode"):
        mode = SHORT_MODES.get(mode, mode)
        changes["parallel_mode"] = Lab.one_of(mode, PARALLEL_MODES, "parallel_mode", "FusionLab")
    if "comm_fusion" in lines.settings:
        changes |= _of_config(*lines.settings["comm_fusion"])
    elif lines.ids:
        changes |= {"mode": "ids", "ids": _of_ids(lines.ids, names)}
    if not changes:
        raise lines.nothing_for("fusion")
    return changes


def _of_config(line: int, config: Any) -> dict[str, Any]:
    """Mode and settings of a `comm_fusion` dict."""
    try:
        check_comm_fusion("set_code", "comm_fusion", config)
    except ParallelLabError as error:
        raise fault(line, str(error)) from None
    if config.get("openstate") is False:
        return {"mode": "off"}
    part = config.get("allreduce")
    if part is None:
        what = f"comm_fusion {shorten(config)} is not about gradients"
        raise fault(line, what, "A key 'allreduce', or 'openstate'")
    mode = part["mode"]
    if mode == "size":
        return {"mode": mode, "size_mb": part["config"]}
    index = {"indices": tuple(part["config"]), "wording": "inclusive"} if mode == "index" else {}
    return {"mode": mode, **index}


def _of_ids(ids: Mapping[str, tuple[int, int]], names: Sequence[str]) -> dict[str, int]:
    """comm_fusion of every parameter: set for those that are named, or whose names begin so; the others keep 1."""
    chosen = dict.fromkeys(names, 1)
    for name, (line, number) in ids.items():
        mine = [n for n in chosen if n == name or n.startswith(f"{name}.")]
        if not mine:
            raise fault(line, f"there is no parameter {shorten(name)}", f"One of {', '.join(chosen)}")
        chosen |= dict.fromkeys(mine, integer(0)("set_code", f"comm_fusion of {name}, line {line}", number))
    return chosen


def numbers_in(text: str, mode: str, gradients: int) -> list[int]:
    """What a mode is set to, from what was typed. Raises ArgumentError."""
    takes = {
        "size": (1, "One whole number of MB, such as 8"),
        "index": (None, "Rising whole numbers, such as [0, 3, 5]"),
        "ids": (gradients, f"{gradients} whole numbers, one per gradient"),
    }
    count, allowed = takes.get(mode, (0, "Nothing: this mode has no setting"))
    what = f"setting {shorten(text)} of mode {mode!r}"
    if not isinstance(text, str) or len(text) > LARGEST_TEXT:
        raise ArgumentError(what, where="FusionLab", allowed=f"A text of at most {LARGEST_TEXT} characters")
    words = text.strip().removeprefix("[").removesuffix("]").replace(",", " ").split()
    fits = words and all(word.isascii() and word.isdigit() and len(word) < 11 for word in words)
    if not fits or count not in (None, len(words)):
        raise ArgumentError(what, where="FusionLab", allowed=allowed)
    return [int(word) for word in words]


def mindspore_setting(setup: Setup, plans: Plans, mode: str, settings: Settings) -> dict[str, Any]:
    """The `comm_fusion` that asks MindSpore for these messages; its positions are inclusive, whatever the wording."""
    if mode == "index" and settings.wording == "first_n":
        ends = [first - 1 for first in settings.indices if first] or [plans.last_position(setup)]
        return {"allreduce": {"mode": "index", "config": ends}}
    return plans.comm_fusion(setup, mode, settings)


def mindspore_lines(setup: Setup, plans: Plans, mode: str, settings: Settings) -> str:
    """The same as lines."""
    config = mindspore_setting(setup, plans, mode, settings)
    return export_line(mode, config, settings.ids, setup.parallel_mode)


def codes_of(setup: Setup, plans: Plans, mode: str, settings: Settings, plan: Plan | None) -> dict[str, str]:
    """Programs by target; the puzzle is on paper."""
    label = setup.subject.label
    if plan is None:
        lines = f"# {label} is on paper; the subject 'chain' is a network of these proportions\n"
        return dict.fromkeys(TARGETS, lines) | {"mindspore": mindspore_lines(setup, plans, mode, settings)}
    local = setup.parallel_mode == "data_parallel"
    title = f"{label}, gradients fused by {mode!r}, {setup.devices} ranks"
    program = program_of(plan, plans.job(setup).optimizer, DATA[setup.subject.data], title)
    whole = replace(plans.whole_program(setup), title=title) if local else program
    config = mindspore_setting(setup, plans, mode, settings)
    return code_of_fusion(program, whole, mode, config, settings.ids or {}, local)
