"""The training of the Expert Lab on 4 ranks, next to the same on one device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ...base.settings.current import default_settings
from ...graph.compiler import compile_network
from ...train.session import Session
from .net import RANKS, STEPS, Choices, Order, Shape, compiled, tokens, trained

Key = tuple[Shape, int, Order]  # the training, ranks that share the experts, experts in the order of their places


@dataclass(frozen=True)
class Ran:
    """What a run has found.

    source          "simulated" or "measured"
    losses, single  of each step, on ranks and on one device
    experts         what the ranks' routers choose after the last step, (4, 8, k): by the experts' own numbers
    same            how many of these choices one device makes, too
    """

    source: str
    losses: tuple[float, ...]
    single: tuple[float, ...]
    experts: np.ndarray
    same: int

    @property
    def apart(self) -> float:
        """The largest difference of two losses, as a share."""
        return max(abs(a - b) / abs(b) for a, b in zip(self.losses, self.single, strict=True))

    @property
    def bound(self) -> float:
        """What rounding may make of it: a thousand units in the last place of float32."""
        return 1000 * float(np.finfo(np.float32).eps)


def run_on_ranks(key: Key, executor: str, source: str, go_on: Callable[[], None]) -> Ran:
    """Train on ranks, then on one device.  go_on: raises once nobody wants the result any longer"""
    shape, ep, order = key
    with default_settings():
        plan, net, optimizer = compiled(shape, ep, order)
        x, wanted = tokens(shape.skew)
        with Session(plan, net, optimizer, executor=executor) as session:
            losses = tuple(map(float, session.train([(x, wanted)], STEPS)))
            parameters = session.parameters()
        routed = compile_network(Choices(net.moe), x, device_num=RANKS, dataset_strategy="full_batch")
        needed = {p.name: parameters[p.name] for p in routed.parameters}
        with Session(routed, needed, executor=executor) as session:
            experts = np.array(order)[session.outputs(x)[0]]
    go_on()
    single, steps = trained(shape)
    return Ran(source, losses, single, experts, int((experts == steps[-1].experts).sum()))
