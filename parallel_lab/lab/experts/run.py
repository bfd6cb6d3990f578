"""The training of the Expert Lab on 4 ranks, next to the same on one device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ...base.events import Event
from ...base.settings.current import default_settings
from ...graph.compiler import compile_network
from ...ops.collectives.definitions import MESSAGES
from ...train.session import Session
from ..shared.running import RanOnRanks
from .net import RANKS, STEPS, Choices, Order, Shape, compiled, tokens, trained

Key = tuple[Shape, int, Order]  # the training, ranks that share the experts, experts in the order of their places


@dataclass(frozen=True)
class Ran(RanOnRanks):
    """What a run has found.

    experts  what the ranks' routers choose after the last step, (4, 8, k): by the experts' own numbers
    same     how many of these choices one device makes, too
    sent     bytes that each rank sends others for dispatch and combine, in one more step
    """

    experts: np.ndarray
    same: int
    sent: tuple[int, ...]
    ulps: ClassVar[int] = 1000  # 24 steps of Adam


def run_on_ranks(key: Key, executor: str, source: str, go_on: Callable[[], None]) -> Ran:
    """Train on ranks, then on one device.  go_on: raises once nobody wants the result any longer"""
    shape, ep, order = key
    with default_settings():
        plan, net, optimizer = compiled(shape, ep, order)
        batch = tokens(shape.skew)
        with Session(plan, net, optimizer, executor=executor) as session:
            losses = tuple(map(float, session.train([batch], STEPS)))
            parameters = session.parameters()
            session.train([batch], 1, record=1)
            sent = tuple(sum(_sent(e) for e in session.events if e.rank == rank) for rank in range(RANKS))
        routed = compile_network(Choices(net.moe), batch[0], device_num=RANKS, dataset_strategy="full_batch")
        needed = {p.name: parameters[p.name] for p in routed.parameters}
        with Session(routed, needed, executor=executor) as session:
            experts = np.array(order)[session.outputs(batch[0])[0]]
    go_on()
    single, steps = trained(shape)
    return Ran(source, losses, single, experts, int((experts == steps[-1].experts).sum()), sent)


def _sent(event: Event) -> int:
    """Bytes that a rank sends others for rows on their way forward, to experts or back."""
    if event.phase != "forward" or not event.op.startswith("all_to_all"):
        return 0
    message = MESSAGES[event.op]
    return event.bytes if message.piecewise else message.payload_bytes(event.bytes, len(event.group))
