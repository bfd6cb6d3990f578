"""Two plans of one network on worker processes: how long a step takes, predicted, simulated and measured, and that both
train as one device does.

    result = run_both(job, {"winner": plan, "yours": other}, cluster)
    result.plans[0].measured_s, result.plans[0].equality.equal
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from ...base.cluster import Cluster
from ...base.events import EventLog
from ...base.settings.current import default_settings
from ...base.system import cores
from ...cost.timeline import predict_timeline
from ...graph.compiler import compile_network
from ...graph.plan import Plan
from ...train.session import Session
from ..shared.equality import Equality, compare_plans
from ..shared.jobs import Job
from ..shared.records import require
from ..shared.running import Stopped, executor_of, possible
from ..shared.step_times import WARM_UPS

STEPS = 10  # of a run, after those that warm up, and of the comparison


@dataclass(frozen=True)
class PlanRun:
    """One plan.

    predicted_s, simulated_s, measured_s   of a step, the latter two medians
    quickest_s, slowest_s                  of the measured ones
    equality                               with one device, tensor by tensor
    """

    name: str
    predicted_s: float
    simulated_s: float
    measured_s: float
    quickest_s: float
    slowest_s: float
    equality: Equality


@dataclass(frozen=True)
class RunResult:
    """source: "measured"; "simulated" where no processes can be started, then its measured times are simulated ones.
    profile   the cluster that predicted and simulated times are for;  cores: that the workers shared
    """

    source: str
    profile: str
    cores: int
    steps: int
    plans: tuple[PlanRun, ...]


def run_both(
    job: Job,
    plans: Mapping[str, Plan],
    cluster: Cluster,
    stopped: Callable[[], bool] | None = None,
    count: Callable[[float, float], None] = lambda done, total: None,
) -> RunResult:
    """Each plan trained from the network's first values.  count: takes what is done and the whole. Raises Stopped if
    told so.
    """
    with default_settings():
        how = {"loss": job.loss, "optimizer": job.optimizer, "parallel_mode": "stand_alone"}
        one_device = compile_network(job.net, *job.batches[0], **how)
    source, _ = possible("measured")
    runs = []
    for done, (name, plan) in enumerate(plans.items()):
        runs.append(
            _ran(name, plan, one_device, job, cluster, stopped, lambda part, at=done: count(at + part, len(plans)))
        )
    return RunResult(source, cluster.name, cores(), STEPS, tuple(runs))


def _ran(
    name: str,
    plan: Plan,
    one_device: Plan,
    job: Job,
    cluster: Cluster,
    stopped: Callable[[], bool] | None,
    count: Callable[[float], None],
) -> PlanRun:
    times: dict[str, list[float]] = {}
    workers = executor_of("measured")  # the simulator, too, where no processes can be started
    for executor in dict.fromkeys(("simulator", workers)):
        options = {"cluster": cluster} if executor == "simulator" else {}
        with Session(plan, job.net, job.optimizer, executor=executor, check_finite=False, **options) as session:
            session.train(job.batches, WARM_UPS)
            session.train(job.batches, STEPS, record=STEPS, stopped=stopped)
            if stopped is not None and stopped():
                raise Stopped
            times[executor] = list(EventLog(session.events).step_times_s().values())
        count(len(times) / 5)
    how = {"executors": (workers, "simulator"), "stopped": stopped, "count": lambda trained: count((2 + trained) / 5)}
    equality = compare_plans(plan, one_device, job.net, job.optimizer, job.batches, STEPS, **how)
    measured = times[workers]
    return PlanRun(
        name,
        predict_timeline(plan, cluster).log.end_s,
        statistics.median(times["simulator"]),
        statistics.median(measured),
        min(measured),
        max(measured),
        replace(equality, title=f"{name}: {equality.title}"),
    )


def check_result(result: RunResult) -> None:
    """Raise ArgumentError where a recorded result is not about two plans."""
    times = [(p.predicted_s, p.simulated_s, p.quickest_s, p.measured_s, p.slowest_s) for p in result.plans]
    require(
        "run",
        ([p.name for p in result.plans] == ["winner", "yours"], "plans", "winner and yours"),
        (result.source in ("measured", "simulated"), f"source {result.source!r}", "measured or simulated"),
        (all(min(each) > 0 and each[2] <= each[3] <= each[4] for each in times), "times", "Above 0, in order"),
        (result.steps and all(p.equality.rows for p in result.plans), "a comparison", "At least one step and tensor"),
    )
