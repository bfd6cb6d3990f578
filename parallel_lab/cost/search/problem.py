"""What a search has to decide, in numbers: the candidates of every operator, their costs, and those of every pair.

    Choice    an operator and its candidate strategies:       costs[candidate, term]
    Pair      a producer and a consumer:                      costs[candidate of one, candidate of the other, term]
    Problem   all of them, what the terms are called, and what each weighs in the sum that a search makes least

Which numbers these are a model says: MindSpore's (`mindspore_model.py`) or seconds and bytes (`time_model.py`). A
search sees nothing else, so each of them works with either.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from ...base.checks import number
from ...base.errors import ArgumentError, shorten
from ...base.units import time_text
from ...layout.named_layout import AnyStrategy

NEVER = np.inf  # the cost of a pair that cannot be


@dataclass(frozen=True)
class Term:
    """One kind of cost.  unit: of its numbers;  weight: what it counts in the sum;  formula: how it is made."""

    name: str
    unit: str
    weight: float
    formula: str

    def text(self, value: float) -> str:
        """A number of it, with its unit."""
        return amount_text(value, self.unit)


@dataclass(frozen=True)
class Choice:
    """An operator (or the dataset, "") and its candidates.

    costs   float64 (candidates, terms);  memory_bytes  int64 (candidates,), of a device, all that it holds in a step
    where   the operator with its source line
    """

    name: str
    op_class: str
    candidates: tuple[AnyStrategy, ...]
    costs: np.ndarray
    memory_bytes: np.ndarray
    where: str = ""
    fixed: str = ""  # why there is one candidate only: "given", ...


@dataclass(frozen=True)
class Pair:
    """What lies between two choices, by number: bringing a tensor from one's layout to the other's.

    costs  float64 (candidates of the source, of the target, terms); NEVER where the two cannot stand together
    """

    source: int
    target: int
    costs: np.ndarray


@dataclass(frozen=True)
class Problem:
    """All choices of a network.  model: whose numbers they are;  device_num: ranks that operators are split over."""

    model: str
    device_num: int
    terms: tuple[Term, ...]
    choices: tuple[Choice, ...]
    pairs: tuple[Pair, ...]

    @cached_property
    def weights(self) -> np.ndarray:
        """The weight of each term."""
        return np.array([term.weight for term in self.terms])

    @cached_property
    def numbers(self) -> dict[str, int]:
        """Which choice an operator is."""
        return {choice.name: number for number, choice in enumerate(self.choices)}

    @cached_property
    def own(self) -> tuple[np.ndarray, ...]:
        """Weighed cost of every candidate of every choice."""
        weighed = {id(choice.costs): choice.costs @ self.weights for choice in _each(self.choices)}
        return tuple(weighed[id(choice.costs)] for choice in self.choices)

    @cached_property
    def between(self) -> tuple[np.ndarray, ...]:
        """Weighed cost of every pair of candidates of every pair."""
        weighed = {id(pair.costs): _weighed(pair.costs, self.weights) for pair in _each(self.pairs)}
        return tuple(weighed[id(pair.costs)] for pair in self.pairs)

    @cached_property
    def plans(self) -> int:
        """How many ways there are to choose."""
        count = 1
        for choice in self.choices:
            count *= len(choice.candidates)
        return count

    def cost(self, chosen: Sequence[int]) -> float:
        """The sum that a search makes least, of one candidate per choice."""
        total = sum(float(own[c]) for own, c in zip(self.own, chosen, strict=True))
        return total + sum(
            float(table[chosen[pair.source], chosen[pair.target]])
            for pair, table in zip(self.pairs, self.between, strict=True)
        )

    def memory_bytes(self, chosen: Sequence[int]) -> int:
        """Bytes of a device."""
        return sum(int(choice.memory_bytes[c]) for choice, c in zip(self.choices, chosen, strict=True))

    def by_term(self, chosen: Sequence[int]) -> dict[str, float]:
        """{term: its sum, in its unit, not weighed}."""
        total = np.zeros(len(self.terms))
        for choice, c in zip(self.choices, chosen, strict=True):
            total += choice.costs[c]
        for pair in self.pairs:
            total += pair.costs[chosen[pair.source], chosen[pair.target]]
        return {term.name: float(sum_) for term, sum_ in zip(self.terms, total, strict=True)}

    def strategies(self, chosen: Sequence[int]) -> dict[str, AnyStrategy]:
        """{operator: the candidate chosen for it}."""
        return {choice.name: choice.candidates[c] for choice, c in zip(self.choices, chosen, strict=True)}

    def chosen(self, strategies: Mapping[str, AnyStrategy]) -> tuple[int, ...]:
        """The other way round. Raises ArgumentError for an operator whose strategy is missing or not a candidate."""
        return tuple(self._candidate(choice, strategies) for choice in self.choices)

    def _candidate(self, choice: Choice, strategies: Mapping[str, AnyStrategy]) -> int:
        if choice.name not in strategies and len(choice.candidates) == 1:
            return 0
        strategy = strategies.get(choice.name)
        if strategy not in choice.candidates:
            what = f"{choice.name!r}: {shorten(strategy)}"
            allowed = f"One of its {len(choice.candidates)} candidates, as {choice.candidates[0]}"
            raise ArgumentError(what, where="strategies of a search", allowed=allowed)
        return choice.candidates.index(strategy)

    def pinned(self, strategies: Mapping[str, AnyStrategy]) -> Problem:
        """This problem with these operators' candidates given. Raises ArgumentError: unknown operator or candidate."""
        unknown = sorted(set(strategies) - set(self.numbers))
        if unknown:
            allowed = f"Operators of the network: {', '.join(filter(None, self.numbers))}"
            raise ArgumentError(f"operators {unknown}", where="strategies of a search", allowed=allowed)
        keep = {
            self.numbers[name]: self._candidate(self.choices[self.numbers[name]], strategies) for name in strategies
        }

        def rows(table: np.ndarray, number: int, axis: int) -> np.ndarray:
            return table.take([keep[number]], axis) if number in keep else table

        choices = tuple(
            replace(
                choice,
                candidates=tuple(choice.candidates[i] for i in _only(keep, n, len(choice.candidates))),
                costs=rows(choice.costs, n, 0),
                memory_bytes=rows(choice.memory_bytes, n, 0),
                fixed=choice.fixed or ("pinned" if n in keep else ""),
            )
            for n, choice in enumerate(self.choices)
        )
        pairs = tuple(
            replace(pair, costs=rows(rows(pair.costs, pair.source, 0), pair.target, 1)) for pair in self.pairs
        )
        return replace(self, choices=choices, pairs=pairs)

    def weighed(self, **weights: float) -> Problem:
        """This problem with other weights of terms, by name. Raises ArgumentError for an unknown term, and for a
        weight that is not a finite number of at least 0.
        """
        names = {term.name for term in self.terms}
        if not set(weights) <= names:
            what = f"terms {sorted(set(weights) - names)}"
            raise ArgumentError(what, where="weights of a search", allowed=f"Some of {', '.join(sorted(names))}")
        for name, weight in weights.items():
            number(0)("weights of a search", name, weight)
        terms = tuple(replace(term, weight=float(weights.get(term.name, term.weight))) for term in self.terms)
        return replace(self, terms=terms)

    def to_dict(self) -> dict[str, Any]:
        """Sizes and terms, for a text or a view."""
        return {
            "model": self.model,
            "devices": self.device_num,
            "terms": [(term.name, term.unit, term.weight, term.formula) for term in self.terms],
            "operators": [(choice.name, choice.op_class, len(choice.candidates)) for choice in self.choices],
            "plans": self.plans,
        }


def amount_text(value: float, unit: str) -> str:
    """A sum of terms in words: seconds as a view writes them, others as whole numbers.

    >>> amount_text(3.5e-4, "s"), amount_text(12_345.0, "bytes")
    ('350 us', '12,345 bytes')
    """
    return time_text(value) if unit == "s" else f"{value:,.0f} {unit}".rstrip()


def _each(parts: Sequence[Any]) -> Iterable[Any]:
    """Choices or pairs, one per table: equal layers have the same."""
    return {id(part.costs): part for part in parts}.values()


def _only(keep: Mapping[int, int], number: int, count: int) -> Iterator[int]:
    return iter((keep[number],) if number in keep else range(count))


def _weighed(costs: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """costs @ weights, where a pair that cannot be stays so whatever its terms weigh."""
    impossible: Any = np.isinf(costs).any(axis=-1)
    return np.where(impossible, NEVER, np.where(impossible[..., None], 0.0, costs) @ weights)
