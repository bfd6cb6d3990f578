"""The frame of the museum's networks: a Cell on one of several ranks, its training, and what is kept of it.

    class Head(Network):
        def __init__(self, **place):
            super().__init__(**place)
            self.rows = self.drawn(16, 3)[self.mine(16)]            # this rank's rows
            self.head = self.weight(3, 4)                           # whole on every rank

        def construct(self):                                        # this rank's share of the loss
            return (tanh(Tensor(self.rows) @ self.head) ** 2).sum() / 16

        def summed(self, name, gradient):                           # what becomes of gradients before the update
            return gradient if self.wrong else super().summed(name, gradient)

The loss is the sum of the ranks' shares, so every message passes gradients back by its transpose. On one device the
same Cell has all rows and all slices, and sends nothing: the undivided run, next to which that of the ranks is held.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...base.hooks import current_world
from ...base.settings.run_checks import reset_run_checks, set_run_checks
from ...nn.cell import Cell
from ...nn.tensor.autograd import value_and_grad
from ...nn.tensor.parameter import Parameter
from ...nn.tensor.tensor import Tensor
from ...ops.collectives.primitives import AllGather, AllReduce, AlltoAll, ReduceScatter
from ...processes.world.connect import played_rank
from ...train.communication import create_group, get_group_size, get_rank, init

STEPS, RATE = 2, 0.1
Array = np.ndarray
Held = dict[str, Any]  # what a rank keeps of its training, by name; PLACES: which part of one device's it is
PLACES = "places"


class Network(Cell):
    """A network on rank `rank` of `ranks`; wrong: with its bug; seed: of weights and data."""

    def __init__(self, *, rank: int = 0, ranks: int = 1, wrong: bool = False, seed: int = 0) -> None:
        super().__init__()
        self.rank, self.ranks, self.wrong = rank, ranks, wrong
        self.numbers = np.random.default_rng(seed)
        self.held: Held = {}
        self.places: dict[str, Any] = {}
        self._parts: list[tuple[Parameter, Any]] = []

    # ---- parts ----

    def sharing(self) -> tuple[int, ...]:
        """The ranks that share the rows."""
        return tuple(range(self.ranks))

    def mine(self, count: int) -> slice:
        """This rank's share of so many rows."""
        at, parts = self.sharing().index(self.rank), len(self.sharing())
        return slice(at * count // parts, (at + 1) * count // parts)

    def drawn(self, *shape: int) -> Array:
        """Numbers that are the same on every rank."""
        return self.numbers.normal(size=shape)

    def weight(self, *shape: int, part: Any = ...) -> Parameter:
        """A Parameter, drawn whole, and cut to this rank's part."""
        made = Parameter(Tensor(np.array(self.drawn(*shape)[part])))
        self._parts.append((made, part))
        return made

    def whole(self, name: str) -> bool:
        """Whether every rank has all of a Parameter."""
        return self.places[name] is ...

    def watch(self, name: str, value: Any, part: Any = ...) -> Any:
        """The value, kept when it is first made; part: which of one device's."""
        if name not in self.held:
            self.held[name], self.places[name] = (np.array(getattr(value, "array", value)), part)
        return value

    # ---- messages, among those that share the rows: one device sends nothing ----

    def all_reduce(self, value: Any, op: str = "sum", group: Sequence[int] | None = None) -> Any:
        """The sum over ranks (or over those of another group), on each of them."""
        return self._sent(value, group, lambda name: AllReduce(op, name))

    def all_gather(self, rows: Any) -> Any:
        """All ranks' rows, one below the other."""
        return self._sent(rows, None, AllGather)

    def reduce_scatter(self, rows: Any) -> Any:
        """This rank's rows of the sum over ranks."""
        return self._sent(rows, None, lambda name: ReduceScatter(group=name))

    def all_to_all(self, x: Any, split_dim: int, concat_dim: int) -> Any:
        """Pieces along one dim are sent out, received ones join along the other."""
        return self._sent(x, None, lambda name: AlltoAll(self.ranks, split_dim, concat_dim, name))

    def _sent(self, value: Any, group: Sequence[int] | None, message: Callable[[str], Any]) -> Any:
        members = list(self.sharing() if group is None else group)
        value = value if isinstance(value, Tensor) else Tensor(np.asarray(value))
        if len(members) == 1:
            return value
        create_group(f"ranks {members}", members)
        return message(f"ranks {members}")(value)

    # ---- what a training does with shares and gradients ----

    def shown(self, share: Any) -> Any:
        """The loss that is displayed."""
        return self.all_reduce(share)

    def summed(self, name: str, gradient: Any) -> Any:
        """The gradient that is applied: each rank has its share of what is whole, and all there is of its part."""
        return self.all_reduce(gradient) if self.whole(name) else gradient

    def ready(self, gradients: dict[str, Array]) -> dict[str, Array]:
        """What is done with all gradients before the update."""
        return gradients

    def train_steps(self) -> Held:
        """What it holds after STEPS steps: watched values and loss, gradients of the first step, its Parameters."""
        weights, losses, first = self.trainable_params(), [], {}
        self.places |= {made.name: part for made, part in self._parts}
        share = value_and_grad(self, None, weights)
        with np.errstate(all="ignore"):
            for _ in range(STEPS):
                loss, found = share()
                losses.append(np.array(self.shown(loss).array))
                pairs = zip(weights, found, strict=True)
                by_name = self.ready({w.name: self.summed(w.name, g).array for w, g in pairs})
                first = first or by_name
                for weight in weights:
                    weight.set_data(Tensor(weight.array - RATE * by_name[weight.name]))
        made = {"loss": losses[0], "losses by step": np.array(losses)}
        self.places |= dict.fromkeys(made, ...) | {f"gradient of {name}": self.places[name] for name in first}
        made |= {f"gradient of {name}": gradient for name, gradient in first.items()}
        return self.held | made | {w.name: np.array(w.array) for w in weights} | {PLACES: self.places}


def train(network: type[Network], wrong: bool, seed: int = 0) -> Held:
    """The training on this rank of a world, which it joins and leaves."""
    init()
    set_run_checks(finite=False)  # a bug may make nan, and goes on
    try:
        return network(rank=get_rank(), ranks=get_group_size(), wrong=wrong, seed=seed).train_steps()
    finally:
        reset_run_checks()
        current_world().close()


def train_worker(comm: Any, network: type[Network], wrong: bool, seed: int = 0) -> Held:
    """The same on a worker of a pool."""
    token = played_rank.set(comm)
    try:
        return train(network, wrong, seed)
    finally:
        played_rank.reset(token)
