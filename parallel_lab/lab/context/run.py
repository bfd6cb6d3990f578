"""A way of the Context Lab on ranks: a small GPT with one attention trains on them, and on one device.

What its attention sends is counted in the compiled plan, message by message.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ... import nn
from ...base.seeds import set_seed
from ...base.settings.current import default_settings
from ...cost.time import sent_bytes
from ...graph.compiler import compile_network
from ...graph.plan import Plan
from ...nn.models.context import ContextGPT, context_parallel, placed
from ...train.session import Session
from ..shared.running import RanOnRanks
from .ways import HEAD_SIZE, HEADS, TOKENS, visible_of, way_of

VOCABULARY, HIDDEN = 12, HEADS * HEAD_SIZE
STEPS, RATE = 3, 0.3
Key = tuple[str, int, str, int]  # way, ranks, mask, heads of keys


@dataclass(frozen=True)
class Ran(RanOnRanks):
    """What a run has found: bytes that a rank sends for its attention in a step, too, counted in the plan."""

    forward_bytes: int
    backward_bytes: int


def run_on_ranks(key: Key, executor: str, source: str, go_on: Callable[[], None]) -> Ran:
    """Train on ranks, then on one device.  go_on: raises once nobody wants the result any longer"""
    plan, net, optimizer, inputs = compiled(key, True)
    losses = _trained(plan, net, optimizer, inputs, executor)
    go_on()
    single = _trained(*compiled(key, False), "simulator")
    return Ran(source, losses, single, *(attention_bytes(plan, phase) for phase in ("forward", "backward")))


def attention_bytes(plan: Plan, phase: str) -> int:
    """Bytes that rank 0 sends in a phase, those of parameters and of the loss left out."""
    found = [i for i in plan.stages[0].program(phase) if i.message and i.attr("parameter") is None]
    return round(sum(sent_bytes(plan, i) for i in found if plan.value(i.out).shape))


def compiled(key: Key, on_ranks: bool) -> tuple[Plan, Any, nn.Optimizer, tuple[np.ndarray, ...]]:
    """Plan, network, optimizer and inputs, placed."""
    name, ranks, mask, kv_heads = key
    way, visible = way_of(name, ranks, TOKENS, mask, kv_heads), visible_of(mask, TOKENS)
    with default_settings():
        set_seed(1)
        where = {"placement": way.placement.kind, "ranks": way.groups}
        seen = {"causal": visible.causal, "window": visible.window, "documents": visible.documents}
        method = "gather" if name == "gathered" else "ring"
        net = ContextGPT(VOCABULARY, HIDDEN, 1, HEADS, kv_heads=kv_heads, method=method, **where, **seen)
        net.set_train()
        loss, optimizer = nn.CrossEntropyLoss(), nn.SGD(net.trainable_params(), RATE)
        if on_ranks:
            context_parallel(net, loss, cp=ranks, ulysses=way.together)
        drawn = np.random.default_rng(0).integers(0, VOCABULARY, (1, TOKENS + 1)).astype(np.int32)
        inputs = placed(drawn[:, :-1], drawn[:, 1:], **where)
        how = {"loss": loss, "optimizer": optimizer, "dataset_strategy": "full_batch", "enable_alltoall": True}
        return compile_network(net, *inputs, device_num=ranks if on_ranks else 1, **how), net, optimizer, inputs


def _trained(
    plan: Plan, net: Any, optimizer: nn.Optimizer, inputs: tuple[np.ndarray, ...], executor: str
) -> tuple[float, ...]:
    with Session(plan, net, optimizer, executor=executor) as session:
        return tuple(map(float, session.train([inputs], STEPS)))
