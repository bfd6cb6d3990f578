"""A network trained with optimizer parallel and without: what every rank really held and sent, and that the numbers are
the same.

result = counted("measured", job, settings, plan, off, steps=20)
result.ranks[0].peak_bytes, result.equality.equal
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from ...graph.plan import Plan
from ...train.session import Session, initial_values
from ..shared.equality import Equality, compare_sessions, nudge
from ..shared.lab import EXECUTORS
from .count import Count, measured_ranks, simulated_ranks
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
) -> RunResult:
    """Count `plan`'s first step, train it and `off` from one start on equal batches. Raises Stopped if told so."""
    optimizer, executor = job.optimizer(settings.optimizer), EXECUTORS[source]
    count = simulated_ranks if source == "simulated" else measured_ranks
    ranks = count(plan, initial_values(plan, job.net, optimizer), job.batches[0])
    start = {name: p.asnumpy() for name, p in job.net.parameters_dict().items()}
    with (
        Session(plan, job.net, optimizer, executor=executor) as session,
        Session(off, job.net, optimizer, executor=executor) as reference,
        # how much of a difference rounding alone makes: some rules (Adam) make much of a small one
        Session(off, start | nudge(off, start), optimizer) as nudged,
    ):
        equality = compare_sessions(session, reference, job.batches, steps, nudged, stopped)
    where = {"simulated": "simulated ranks", "measured": "worker processes"}[source]
    title = f"{settings.level} on {settings.devices} {where} against the same ranks without optimizer parallel"
    return RunResult(source, steps, ranks, replace(equality, title=title))
