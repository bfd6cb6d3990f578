"""A network trained with its gradients fused and without: how long a step takes, and that the numbers are the same
bits.

result = trained("measured", job, plan, unfused_plan, cluster, steps=8)
result.step_s, result.unfused_s, result.equal
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ...base.cluster import Cluster
from ...base.events import EventLog
from ...graph.plan import Plan
from ...train.session import Session
from ..shared.recording import Keeper, Recording
from ..shared.records import require
from ..shared.running import Stopped, executor_of
from ..shared.step_times import WARM_UPS
from .lanes import Lanes, event_lanes
from .subjects import Job


@dataclass(frozen=True)
class RunResult:
    """Training steps with the chosen fusion, and the same without any.

    source          "simulated" or "measured"
    step_s, unfused_s   median of `steps` steps (of an even number the lower one), from the first start on any rank to
                        the last end
    equal           losses and parameters of the two are equal bit for bit after all steps;  compared: how many arrays
    differs         the first that is not equal, or ""
    sent            messages of gradients that rank 0 sent in one step
    lanes           of the step that step_s is of, on rank 0
    """

    source: str
    step_s: float
    unfused_s: float
    steps: int
    equal: bool
    compared: int
    differs: str
    sent: int
    lanes: Lanes

    @property
    def taken(self) -> int:
        """Steps that were taken before the comparison, warm-ups included."""
        return self.steps + WARM_UPS


def trained(
    source: str,
    job: Job,
    plan: Plan,
    unfused: Plan,
    cluster: Cluster,
    steps: int,
    stopped: Callable[[], bool] | None = None,
    count: Callable[[float, float], None] = lambda done, total: None,
    keep: Callable[[Recording | None], None] = lambda recording: None,
) -> RunResult:
    """Both plans trained from one start on equal batches.  cluster: for simulated times;  count: takes what is done and
    the whole; keep: the recording of the first one. Raises Stopped if told so.
    """
    whole = 2 * (WARM_UPS + steps)
    count(0, whole)
    options = {"cluster": cluster} if source == "simulated" else {}
    times, tensors, lanes = [], [], []
    for one in (plan, unfused):
        how = {"executor": executor_of(source), "check_finite": False}
        with Session(one, job.net, job.optimizer, **how, **options) as session:
            keeper = Keeper(session)  # both are watched: what that costs is the same
            losses = keeper.train(job.batches, WARM_UPS)
            count(whole / 2 * len(times) + WARM_UPS, whole)
            losses += keeper.train(job.batches, steps, record=steps, stopped=stopped)
            count(whole / 2 * (len(times) + 1), whole)
            if stopped is not None and stopped():
                raise Stopped
            if one is plan:
                keep(keeper.recording)
            durations = EventLog(keeper.events).step_times_s()
            usual = statistics.median_low(durations.values())
            times.append(usual)
            lanes.append(
                event_lanes(one, keeper.events, next(step for step, time_s in durations.items() if time_s == usual))
            )
            tensors.append({"losses": np.array(losses), **session.parameters()})
    differs = next((name for name, value in tensors[0].items() if value.tobytes() != tensors[1][name].tobytes()), "")
    return RunResult(
        source, times[0], times[1], steps, not differs, len(tensors[0]), differs, len(lanes[0].messages), lanes[0]
    )


def check_result(result: RunResult, names: Sequence[str]) -> None:
    """Raise ArgumentError where a recorded result is not about gradients with these names."""
    lanes = result.lanes
    members = [name for sent in lanes.messages for name in sent.members]
    times = [(box.start_s, box.end_s) for box in lanes.boxes] + [(m.start_s, m.end_s) for m in lanes.messages]
    require(
        result.source,
        (sorted(box.name for box in lanes.boxes) == sorted(names), "gradients", f"{', '.join(names)}, each once"),
        (sorted(members) == sorted(names), "members of messages", f"{', '.join(names)}, each once"),
        (all(sent.members for sent in lanes.messages), "a message", "One with a gradient in it"),
        (result.sent == len(lanes.messages), f"{result.sent} messages", f"{len(lanes.messages)}"),
        (all(start <= end for start, end in times), "times", "No end before its start"),
        (result.steps and result.step_s and lanes.step_s, "a step", "One that takes time"),
    )
