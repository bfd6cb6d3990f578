"""The Strategy Lab's settings as code: strategies read from lines of MindSpore, and whole programs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ...graph.plan import Plan
from ..code.data import DATA
from ..code.exports import code_of_strategies
from ..code.lab_code import shard_line
from ..code.pasted import check_strategies, named_strategies, read_code
from ..code.program import program_of
from ..shared.networks import NETWORKS
from ..shared.problems import get_problem
from .operators import Operators
from .plans import Setting


def strategies_in(
    text: str, operators: Operators, devices: int, compiled: Callable[[Mapping[str, Any], int], Plan]
) -> tuple[dict[str, Any], int]:
    """(strategies by operator, device_num) of these lines.  compiled: refuses strategies on so many devices, the others
    as they are by default. Raises ArgumentError naming the line.
    """
    lines = read_code(text)
    if not lines.strategies and "device_num" not in lines.settings:
        raise lines.nothing_for("strategy")
    devices = lines.value("device_num", devices)
    named = named_strategies(lines, {o["name"]: o["op"] for o in operators.shown(set())})
    check_strategies(named, lambda some: compiled(some, devices))
    return {name: one.strategy for name, one in named.items()}, devices


def example_line(operators: Operators) -> str:
    """The first operator that has a choice, with the last one of its strategies."""
    shown = operators.shown(set())
    one = next((o for o in shown if len(o["choices"]) > 1), shown[0])
    return shard_line(one["name"], one["choices"][-1])


def codes_of(plan: Plan, setting: Setting, optimizer: Any) -> dict[str, str]:
    """Programs by target."""
    title = f"{NETWORKS[setting.net].label} on {get_problem(setting.data).label}, {setting.devices} devices"
    program = program_of(plan, optimizer, DATA[setting.data], title)
    return code_of_strategies(program, fused=setting.fused, sliced=setting.sliced)
