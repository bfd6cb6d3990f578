"""The Memory Lab's settings as code: read from lines of MindSpore, and written as whole programs."""

from __future__ import annotations

from functools import partial
from typing import Any

from ...base.checks import flag
from ...base.settings.checks import integer
from ..code.data import DATA, stack_of_memory
from ..code.exports import code_of_memory, code_of_strategies
from ..code.pasted import read_code
from ..code.program import program_of
from ..shared.lab import Lab
from .compiled import compiled, job_of
from .sections import export_line
from .subjects import ACCUMULATIONS, LEVELS, OPTIMIZERS, SHARD_SIZES, Settings, get_subject

NAMES = {"threshold": "parallel_optimizer_threshold", "shard_size": "optimizer_weight_shard_size"}
SHORT_MODES = {"semi_auto": "semi_auto_parallel"}
ABOUT = {"parallel_mode", "enable_parallel_optimizer", "optimizer", "GradAccumulation"}


one_of = partial(Lab.one_of, where="MemoryLab")


def settings_in(text: str, now: Settings) -> dict[str, Any]:
    """Fields of the settings that these lines change. Raises ArgumentError, with the line, where they cannot be."""
    lines = read_code(text)
    config = dict(lines.value("parallel_optimizer_config") or {})
    config |= {NAMES.get(n, n): lines.value(n) for n in (*NAMES, "optimizer_level") if n in lines.settings}
    mode = lines.value("parallel_mode", now.parallel_mode)
    mode = one_of(SHORT_MODES.get(mode, mode), LEVELS, "parallel_mode")
    changes: dict[str, Any] = {"parallel_mode": mode}
    on = lines.value("enable_parallel_optimizer", bool(config) or now.level != "off")
    level = "grouping" if mode == "data_parallel" else config.get("optimizer_level", "level1")
    changes["level"] = one_of(level if on else "off", LEVELS[mode], "optimizer_level")
    if (kb := config.get("parallel_optimizer_threshold", ...)) is not ...:
        changes["threshold_kb"] = integer(0)("set_code", "parallel_optimizer_threshold", kb)
    if (size := config.get("optimizer_weight_shard_size", ...)) is not ...:
        changes["shard_size"] = one_of(size, SHARD_SIZES, "shard_size")
    if (shard := config.get("gradient_accumulation_shard", ...)) is not ...:
        changes["accumulation_shard"] = flag("set_code", "accumulation_shard", shard)
    if "optimizer" in lines.settings:
        changes["optimizer"] = one_of(lines.value("optimizer"), OPTIMIZERS, "optimizer")
    if "GradAccumulation" in lines.settings:
        changes["accumulation"] = one_of(lines.value("GradAccumulation"), ACCUMULATIONS, "micro_size")
    if not config and not ABOUT & set(lines.settings):
        raise lines.nothing_for("setting of memory")
    return changes


def codes_of(name: str, width: int, settings: Settings) -> dict[str, str]:
    """Programs by target.  name: of the subject"""
    subject, s, job = get_subject(name), settings, job_of(name, width)
    data = DATA[subject.data] if subject.data else stack_of_memory(width)
    title = f"{subject.label}, {s.optimizer}, optimizer parallel {s.level!r}, {s.devices} ranks"

    def program(settings: Settings) -> Any:
        return program_of(compiled(name, width, settings)[0], job.optimizer(s.optimizer), data, title)

    of_ranks = program(s)
    if s.split != "batch":
        return code_of_strategies(of_ranks, sliced=s.level != "off")
    plain = s.parallel_mode == "data_parallel" and s.level == "off"
    whole = program(s.replaced(parallel_mode="semi_auto_parallel")) if plain else of_ranks
    return code_of_memory(of_ranks, whole, s, export_line(s))
