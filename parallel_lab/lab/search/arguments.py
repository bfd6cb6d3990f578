"""What a learner argues with a search, and what the search makes of it.

arguments = Arguments(Setting("quickstart", 8, "laptop", "time"), "exact", pins={"matmul": ((8, 1), (1, 1))})
arguments.argued.winner;  arguments.caps()
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from ...base.checks import number
from ...base.errors import ArgumentError
from ...base.units import bytes_text
from ..strategy.operators import parse_strategy
from .space import Argued, Candidate, Setting, Strategies, space_of

BANDWIDTHS = ("0.01", "0.1", "1", "10", "100")  # times as many bytes per second
LATENCIES = ("0", "0.1", "1", "10")
WEIGHTS = ("0", "0.5", "1", "2", "10")
KEPT = 64  # arguments
MOST_CAPS = 8  # on the list


@dataclass(frozen=True)
class Arguments:
    """The kind of search (`mode`), and what is argued: strategies that operators must have, bytes that a device has,
    and how many times a term of the costs counts.
    """

    setting: Setting
    mode: str
    pins: Strategies = field(default_factory=dict)
    capacity: int = 0
    weights: Mapping[str, float] = field(default_factory=dict)

    def other(self, **changes: Any) -> Arguments:
        """With other fields; bandwidth and latency are those of the setting."""
        links = {name: changes.pop(name) for name in ("bandwidth", "latency") if name in changes}
        return replace(self, setting=self.setting._replace(**links), **changes)

    @property
    def argued(self) -> Argued:
        """What the search makes of it. Raises StrategyError where nothing fits."""
        pins, weights = (tuple(sorted(of.items())) for of in (self.pins, self.weights))
        return _argued(self.setting, self.mode, pins, self.capacity, weights)

    def caps(self) -> dict[str, str]:
        """Caps at which the winner changes: what plans of the front need."""
        free = self.other(capacity=0).argued
        sizes = sorted({point.memory_bytes for point in free.front if point.memory_bytes < free.best.memory_bytes})
        every = -(-len(sizes) // MOST_CAPS) if sizes else 1
        known = {*sizes[::every], *([self.capacity] if self.capacity else [])}
        return {"": "any memory", **{str(size): bytes_text(size) for size in sorted(known, reverse=True)}}


@lru_cache(maxsize=KEPT)
def _argued(setting: Setting, mode: str, pins: tuple, capacity: int, weights: tuple) -> Argued:
    """Kept for all labs: only the arguments matter."""
    return Argued(space_of(setting), mode, dict(pins), capacity, dict(weights))


@lru_cache(maxsize=4 * KEPT)
def candidates_of(argued: Argued, operator: str) -> list[Candidate]:
    """The best plan with each candidate of an operator."""
    return argued.candidates(operator)


def factors(known: tuple[str, ...], now: float) -> dict[str, str]:
    """The known factors and the present one, in order, as "x 10"."""
    return {factor: f"× {factor}" for factor in sorted({*known, f"{now:g}"}, key=float)}


def checked_factor(what: str, value: int | float | str) -> float:
    """Bandwidth, latency or a weight as so many times what it is, from a number or its text. Raises ArgumentError."""
    with suppress(ValueError):  # other texts are for the check to refuse
        value = float(value) if isinstance(value, str) else value
    return number(0, 1e6, above=what == "bandwidth")("SearchLab", what, value)


def checked_pin(candidates: tuple[Any, ...], strategy: Any, operator: str) -> Any:
    """One of an operator's candidates. Raises ArgumentError."""
    pin = parse_strategy(strategy)
    if pin not in candidates:
        allowed = f"One of {', '.join(map(str, candidates))}"
        raise ArgumentError(f"{operator!r}: {pin}", where="SearchLab.set_pin", allowed=allowed)
    return pin
