"""The puzzle "all-reduce menu": choose an algorithm for each size of message, and pay as little time as possible.

    menu = AllReduceMenu()
    print(menu.to_text())
    print(menu.score(["ring", "ring", "ring", "ring"]).text)

Eight ranks stand in a ring; a message occupies every link on its way, so what goes far costs more. Times are predicted
from the lists of sends (`algorithms/algorithm.py`), and the par is found by trying every choice of the menu.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from ...base.cluster import Link
from ...base.errors import ArgumentError, shorten
from ...base.units import table_lines, time_text
from .algorithms.algorithm import algorithm
from .algorithms.table import algorithm_names


@dataclass(frozen=True)
class Order:
    """`count` all_reduces of `size_bytes` each, one after the other."""

    count: int
    size_bytes: int

    @property
    def label(self) -> str:
        """Such as `500 x 1 kB`."""
        size, unit = next(
            (self.size_bytes / f, u) for f, u in ((1e6, "MB"), (1e3, "kB"), (1, "B")) if self.size_bytes >= f
        )
        return f"{self.count} x {size:g} {unit}"


@dataclass(frozen=True)
class MenuScore:
    """A choice (an algorithm per order): predicted seconds of each order, of the whole menu, and of the best choice."""

    choices: tuple[str, ...]
    parts_s: tuple[float, ...]
    time_s: float
    par_s: float

    @property
    def ratio(self) -> float:
        """How many times the par; 1 is best."""
        return self.time_s / self.par_s

    @property
    def reached_par(self) -> bool:
        """Whether no choice of the menu is faster."""
        return self.time_s <= self.par_s * (1 + 1e-9)

    @property
    def text(self) -> str:
        """The score in a sentence."""
        verdict = f"{self.ratio:.2f} times par ({self.par_s * 1e6:.0f} us)"
        verdict = "par: no choice of this menu is faster" if self.reached_par else verdict
        return f"{self.time_s * 1e6:.0f} us predicted, {verdict}."


class AllReduceMenu:
    """The puzzle. The standard one is P1: alpha 5 us, 10 GB/s per link, eight ranks in a ring.

    orders   what must be sent
    ranks, link   the machine;  contention: "hops" (a ring) or "none" (a link for every pair)
    """

    ORDERS = (Order(500, 1_000), Order(100, 64_000), Order(10, 1_000_000), Order(1, 64_000_000))
    LINK = Link(alpha_s=5e-6, beta_s_per_byte=1e-10)

    def __init__(
        self, orders: Sequence[Order] = ORDERS, ranks: int = 8, link: Link = LINK, contention: str = "hops"
    ) -> None:
        self.orders, self.ranks, self.link, self.contention = tuple(orders), ranks, link, contention
        self.names = algorithm_names("all_reduce", ranks)

    @cached_property
    def prices_s(self) -> tuple[Mapping[str, float], ...]:
        """Per order, the predicted seconds of one all_reduce by each algorithm of the menu."""
        menu = {name: algorithm("all_reduce", name, self.ranks) for name in self.names}
        how = {"link": self.link, "contention": self.contention}
        return tuple({name: a.time_s(o.size_bytes, **how) for name, a in menu.items()} for o in self.orders)

    @cached_property
    def par(self) -> tuple[str, ...]:
        """The cheapest choice, found by trying all; of equally cheap ones the first in the menu's order."""
        choices = itertools.product(self.names, repeat=len(self.orders))
        # twelve digits: rounds in another order cost the same
        return min(choices, key=lambda choice: float(f"{self._time_s(choice):.12g}"))

    def score(self, choices: Sequence[str] | Mapping[int, str]) -> MenuScore:
        """The cost of an algorithm per order (in their order, or by bytes). ArgumentError: unknown or missing."""
        chosen = [choices.get(o.size_bytes) for o in self.orders] if isinstance(choices, Mapping) else list(choices)
        if isinstance(choices, str) or len(chosen) != len(self.orders):
            allowed = f"{len(self.orders)} names, one per order"
            raise ArgumentError(f"choices {shorten(choices)}", where="AllReduceMenu", allowed=allowed)
        for order, name in zip(self.orders, chosen, strict=True):
            if name not in self.names:
                what, allowed = f"{shorten(name)} for {order.label}", f"One of {', '.join(self.names)}"
                raise ArgumentError(what, where="AllReduceMenu", allowed=allowed)
        parts = tuple(o.count * price[name] for o, price, name in zip(self.orders, self.prices_s, chosen, strict=True))
        return MenuScore(tuple(chosen), parts, self._time_s(chosen), self._time_s(self.par))

    def to_text(self) -> str:
        """The menu: predicted time of one all_reduce, per order and algorithm."""
        rows = [("order", *self.names)]
        rows += [(o.label, *(time_text(price[name]) for name in self.names)) for o, price in self._lines()]
        ring = " in a ring" if self.contention == "hops" else ""
        machine = f"{self.ranks} ranks{ring}, alpha {time_text(self.link.alpha_s)} per message"
        bandwidth = f", {1e-9 / self.link.beta_s_per_byte:g} GB/s per link" if self.link.beta_s_per_byte else ""
        head = f"All-reduce menu: {machine}{bandwidth}; predicted time of one all_reduce"
        return "\n".join([head, *table_lines(rows, right=range(1, len(rows[0])))])

    def _lines(self) -> list[tuple[Order, Mapping[str, float]]]:
        return list(zip(self.orders, self.prices_s, strict=True))

    def _time_s(self, choices: Sequence[str]) -> float:
        return sum(order.count * price[name] for (order, price), name in zip(self._lines(), choices, strict=True))
