"""What the Search Lab searches strategies for: the networks of the labs, and two chains of products.

    job = SUBJECTS["gap"].kept         # network, loss, optimizer, batches

"gap" is a chain whose first product, split by its columns, leads sharding propagation to a plan without any
redistribution that costs many times the least; "wide" a chain whose last product is so wide that its weight should not
lie whole on every device (theory: "one weird trick", Krizhevsky 2014).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache

from ... import nn
from ...base.settings.current import default_settings
from ...ops.machine.primitive import Strategy
from ..code.data import DATA, chain_of_search
from ..shared import jobs
from ..shared.jobs import JOBS, PRODUCTS, Job
from ..shared.networks import NETWORKS, apply_strategies
from ..shared.problems import problems_of

OWN = "data parallel"  # the preset that a chain has


@dataclass(frozen=True)
class Subject(jobs.Subject):
    """A network.  data: lines that make its batches in a program (`lab/code/data.py`)
    presets   {name for people: devices -> {operator: strategy}}: choices of one's own to begin with
    """

    presets: dict[str, Callable[[int], dict[str, Strategy]]] = field(default_factory=dict)

    @property
    def kept(self) -> Job:
        """The network with its first values and without strategies: training takes copies of its parameters."""
        return _kept(self.name)

    def with_strategies(self, strategies: dict[str, Strategy]) -> nn.Cell:
        """A network of its own, with these strategies."""
        with default_settings():
            return apply_strategies(JOBS[self.name]().net, strategies)


_kept = cache(lambda name: JOBS[name]())


def _network(name: str, note: str) -> Subject:
    """A network of the labs, with its first data."""
    network, data = NETWORKS[name], problems_of(NETWORKS[name].kind)[0]
    return Subject(name, network.label, note, JOBS[name], DATA[data], network.presets)


def _chain(name: str, label: str) -> Subject:
    rows, widths = PRODUCTS[name]
    note = f"{rows} rows, widths {', '.join(map(str, widths))}"
    data = chain_of_search(rows, widths[0], widths[-1])
    return Subject(name, label, note, JOBS[name], data, {OWN: lambda devices: {}})


_SUBJECTS = (
    _network("quickstart", "two products, relu between: the network of the automatic-parallel quickstart"),
    _network("megatron", "two products with bias, GeLU between"),
    _network("dense", "two Dense layers, ReLU between"),
    _chain("gap", "propagation gap"),
    _chain("wide", "wide last layer"),
    _network("embedding", "tables of features and two dense layers"),
    _network("convnet", "two convolutions with batch norm on colour digits"),
    _network("transformer", "a one-block GPT that learns to count in words"),
)
SUBJECTS = {subject.name: subject for subject in _SUBJECTS}
