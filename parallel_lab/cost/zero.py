"""Memory and traffic of optimizer parallel in closed form, after the ZeRO paper (Rajbhandari et al. 2020, "ZeRO: memory
optimizations toward training trillion parameter models", sections 3, 5 and 7).

P parameters on N ranks; K bytes of optimizer state per parameter. In mixed precision with Adam a parameter takes 2
bytes, its gradient 2, and K = 12: a float32 copy and two moments. Bytes per rank:

    stage 0   all ranks hold everything              2 P  +  2 P  +  12 P
    stage 1   optimizer states are split             2 P  +  2 P  +  12 P / N
    stage 2   gradients too                          2 P  + (2 P  +  12 P) / N
    stage 3   parameters too                        (2 P  +  2 P  +  12 P) / N

    >>> [zero_memory(7.5e9, 64, stage).total_bytes / 1e9 for stage in range(4)]
    [120.0, 31.40625, 16.640625, 1.875]

MindSpore's optimizer parallel in these words: weight grouping in data_parallel mode is stage 1, with whole parameters
given to one rank each. In the modes that split operators weights, gradients and states are stored as in stage 3; level1
and level2 keep the gathered weights from forward to backward (the peak has them whole), level3 gathers twice. Elements
per rank and step: `zero_traffic`.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..base.checks import Check, checked, choice, integer, number
from ..base.errors import ArgumentError

STAGES = {
    0: "nothing is sharded",
    1: "optimizer states",
    2: "optimizer states and gradients",
    3: "optimizer states, gradients and parameters",
}


@dataclass(frozen=True)
class ZeroMemory:
    """Bytes of model states on one rank."""

    params_bytes: float
    grads_bytes: float
    optimizer_bytes: float

    @property
    def total_bytes(self) -> float:
        """Bytes of parameters, gradients and optimizer states."""
        return self.params_bytes + self.grads_bytes + self.optimizer_bytes


STAGE = Check(", ".join(f"{n}: {what}" for n, what in STAGES.items()), choice(*STAGES).read)
SHARING = {"degree": integer(1), "stage": STAGE}
BYTES = dict.fromkeys(("param_bytes", "grad_bytes", "optimizer_bytes"), number(0))


@checked(parameters=number(0), **SHARING, **BYTES)
def zero_memory(
    parameters: float,
    degree: int,
    stage: int,
    *,
    param_bytes: float = 2,
    grad_bytes: float = 2,
    optimizer_bytes: float = 12,
) -> ZeroMemory:
    """Bytes of model states that one of `degree` ranks holds of a model with `parameters` parameters.

    stage    0 to 3, see STAGES
    param_bytes, grad_bytes, optimizer_bytes   bytes per parameter; float32 with Adam: 4, 4, 8

    Raises ArgumentError for an invalid stage or degree, and for negative amounts.
    """
    cut = [1 if stage < first else degree for first in (3, 2, 1)]
    each = zip((param_bytes, grad_bytes, optimizer_bytes), cut, strict=True)
    return ZeroMemory(*(parameters * size / ways for size, ways in each))


@checked(memory_bytes=number(0), **SHARING, model_parallel=number(0), **BYTES)
def zero_max_parameters(
    memory_bytes: float,
    degree: int,
    stage: int,
    *,
    model_parallel: int = 1,
    param_bytes: float = 2,
    grad_bytes: float = 2,
    optimizer_bytes: float = 12,
) -> float:
    """Parameters of a model whose states fit into `memory_bytes` per rank.  model_parallel: ranks that split it.

    >>> round(zero_max_parameters(32e9, 64, 1) / 1e9, 1), zero_max_parameters(32e9, 64, 3, model_parallel=16) / 1e12
    (7.6, 2.048)
    """
    sizes = {"param_bytes": param_bytes, "grad_bytes": grad_bytes, "optimizer_bytes": optimizer_bytes}
    each = zero_memory(1, degree, stage, **sizes).total_bytes
    if not each:
        allowed = "At least one number of bytes above 0"
        raise ArgumentError("a parameter takes no bytes", where="zero_max_parameters", allowed=allowed)
    return model_parallel * memory_bytes / each


@checked(parameters=number(0), **SHARING)
def zero_traffic(parameters: float, degree: int, stage: int) -> float:
    """Elements that one of `degree` ranks must send in a step, in the bandwidth-optimal form.

        stage 0   all_reduce of the gradients                                              2 (N - 1) / N  P
        stage 1   the same in two halves, or reduce_scatter and all_gather                 2 (N - 1) / N  P
        stage 2   reduce_scatter of gradients, all_gather of parameters                    2 (N - 1) / N  P
        stage 3   reduce_scatter, and all_gather in forward and again in backward          3 (N - 1) / N  P

    The paper's 2 P, 2 P and 3 P are these for many ranks. MindSpore's level1 and level2 gather once, as stage 2; level3
    twice, as stage 3.

    >>> zero_traffic(1024, 4, 2), zero_traffic(1024, 4, 3)
    (1536.0, 2304.0)
    """
    return (3 if stage == 3 else 2) * (degree - 1) / degree * parameters
