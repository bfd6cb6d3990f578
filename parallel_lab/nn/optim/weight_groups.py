"""Weight grouping: optimizer parallel in data_parallel mode. Each rank updates its share of the parameters, and hands
the new values to the others.

    4 ranks, 8 parameters       rank 0 updates 0 and 4, rank 1 updates 1 and 5, rank 2: 2 and 6, rank 3: 3 and 7

Every rank still holds all parameters, and gradients are summed as ever; only the owner computes the update and keeps
the optimizer's states. After it one broadcast per parameter makes the copies equal again. Rules and restrictions:
MindSpore, nn.Optimizer with enable_parallel_optimizer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ...base.errors import OptimizerParallelError
from ...base.settings.checks import LOCAL_MODES
from ..tensor.parameter import Parameter

GROUPED_OPTIMIZERS = ("Lamb", "AdamWeightDecay")


def update_owners(parameters: Sequence[Parameter], world_size: int) -> dict[str, int]:
    """{parameter i: rank i mod world_size, which updates it}; layerwise_parallel, each rank its own: no owner."""
    return {p.name: i % world_size for i, p in enumerate(parameters) if not p.layerwise_parallel}


class Grouped(Protocol):
    """What is needed of an optimizer here."""

    parameters: Sequence[Parameter]
    can_be_grouped: bool


def check_grouping(mode: str, optimizer: Grouped, world_size: int, where: str) -> None:
    """Raise OptimizerParallelError if enable_parallel_optimizer cannot work in `mode`; world_size 0: not known yet."""
    count, hint = len(optimizer.parameters), ""
    if mode in ("stand_alone", "hybrid_parallel"):
        what, allowed = f"parallel_mode={mode!r}", "data_parallel, semi_auto_parallel or auto_parallel"
        alone = "There is one device: nothing can be shared"
        hint = alone if mode == "stand_alone" else "Its parameters may differ from rank to rank"
    elif mode not in LOCAL_MODES:
        return
    elif not optimizer.can_be_grouped:
        what = f"{type(optimizer).__name__} in data_parallel mode"
        allowed = f"One of {', '.join(GROUPED_OPTIMIZERS)}, AdaFactor"
        hint = "The modes that split operators take any optimizer"
    elif count < world_size:
        what = f"{world_size} ranks and {count} parameters"
        allowed = "At most as many ranks as parameters: each rank updates at least one"
    else:
        return
    raise OptimizerParallelError(f"enable_parallel_optimizer=True with {what}", where=where, allowed=allowed, hint=hint)
