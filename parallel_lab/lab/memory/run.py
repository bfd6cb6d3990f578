"""A network trained with optimizer parallel and without: what every rank really held and sent, and that the numbers are
the same.

result = counted("measured", job, settings, plan, off, steps=20)
result.ranks[0].peak_bytes, result.equality.equal
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from ...cost.memory import MEMORY_KINDS
from ...graph.plan import Plan
from ...ops.collectives.definitions import MESSAGES
from ...train.session import initial_values
from ..shared.equality import Equality, compare_plans
from ..shared.recording import Recording
from ..shared.records import require
from ..shared.running import executor_of
from .count import PHASES, PURPOSES, Count, measured_ranks, simulated_ranks
from .subjects import Job, Settings


@dataclass(frozen=True)
class RunResult:
    """Counts of step 1 per rank ("simulated" or "measured"), and equality with training without optimizer parallel."""

    source: str
    steps: int
    ranks: tuple[Count, ...]
    equality: Equality


def counted(
    source: str,
    job: Job,
    settings: Settings,
    plan: Plan,
    off: Plan,
    steps: int,
    stopped: Callable[[], bool] | None = None,
    count: Callable[[float, float], None] = lambda done, total: None,
    keep: Callable[[Recording | None], None] | None = None,
) -> RunResult:
    """Count `plan`'s first step, train it and `off` from one start on equal batches.  count: takes what is done and the
    whole; keep: the recording of the training with `plan`. Raises Stopped if told so.
    """
    count(0, 4)
    optimizer = job.optimizer(settings.optimizer)
    look = simulated_ranks if source == "simulated" else measured_ranks
    ranks = look(plan, initial_values(plan, job.net, optimizer), job.batches[0])
    executors = executor_of(source), executor_of(source)
    count(1, 4)
    how = {"executors": executors, "stopped": stopped, "count": lambda trained: count(1 + trained, 4), "keep": keep}
    equality = compare_plans(plan, off, job.net, optimizer, job.batches, steps, **how)
    where = {"simulated": "simulated ranks", "measured": "worker processes"}[source]
    title = f"{settings.level} on {settings.devices} {where} against the same ranks without optimizer parallel"
    return RunResult(source, steps, ranks, replace(equality, title=title))


def check_result(result: RunResult, devices: int) -> None:
    """Raise ArgumentError where a recorded result is not about so many ranks."""
    points = [point for count in result.ranks for point in count.timeline]
    kinds, traffic = len(MEMORY_KINDS), [key for count in result.ranks for key in count.traffic]
    require(
        result.source,
        ([count.rank for count in result.ranks] == list(range(devices)), "ranks", f"0 to {devices - 1}"),
        (all(count.timeline for count in result.ranks), "a rank", "One that ran an instruction"),
        (all(len(p.live) == len(p.host) == kinds for p in points), "an instruction", f"{kinds} kinds of memory"),
        (all(p.phase in PHASES for p in points), "a phase", f"One of {', '.join(PHASES)}"),
        (all(use in PURPOSES and sent in MESSAGES for use, sent in traffic), "a message", "Kind and purpose of one"),
        (result.steps and result.equality.rows, "a comparison", "At least one step and one tensor"),
    )
