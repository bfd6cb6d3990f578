"""The time of a training step three times: predicted from a formula, simulated by the engine, measured on workers; and
how far they are apart.

with WorkerPool(2) as pool:
    cluster = measured_cluster(fit_link(pool, "all_reduce"), device=measure_device(pool))
    print(step_times(plan, net, optimizer, [(x, label)], cluster).text())

predicted   the plan on the cost model: shapes only, nothing runs (`cost.predict_timeline`)
simulated   the ranks' numpy work as timed here one after the other, on a clock where each has a core of its own;
            messages from the cost model
measured    one worker process per rank; ranks share the cores that there are

With cores=2 the first two share two cores as well, in turn (`cost/clock.py`). For a pipeline the bubble is given
too, each time from the events and in one way (`EventLog.bubbles`): the part of a step in which ranks are not on a core
computing, on average over the ranks.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ...base.checks import integer
from ...base.cluster import Cluster
from ...base.events import EventLog
from ...base.system import cores as cores_here, require_processes
from ...base.units import plural, time_text
from ...cost import predict_timeline
from ...cost.shared_cores import SharedMachine
from ...cost.simulated_clock import predicted_run, virtual_clock
from ...graph.plan import Plan
from ...train.rank_steps import ran_events
from ...train.session import Session

WARM_UPS = 2  # steps before the first that counts: the first touches memory for the first time
FAR = 2.0  # times that a measured step is longer or shorter than predicted: from here on views say why


class Term(NamedTuple):
    """A part of a step: its name, its measured seconds, and those that were predicted."""

    name: str
    measured_s: float
    predicted_s: float


def apart_text(
    predicted_s: float, measured_s: float, ranks: int, cores: int, profile: str, terms: Sequence[Term]
) -> str:
    """From FAR on, how far a measured step is from the predicted one, and the term that is off most; else "".

    >>> terms = (Term("computing", 2e-3, 1e-3), Term("messages and waits", 7e-3, 1e-3))
    >>> apart_text(2e-3, 9e-3, 8, 2, "laptop", terms)
    "4.5 times the predicted 2 ms: 8 Python processes share 2 cores; messages and waits take 7 ms, for which \
profile 'laptop' has 1 ms"
    """
    ratio = measured_s / predicted_s if min(predicted_s, measured_s) > 0 else 1.0
    if max(ratio, 1 / ratio) < FAR:
        return ""
    times = f"{ratio:.{ratio < 10:d}f} times" if ratio > 1 else f"1/{1 / ratio:.0f} of"
    here = f"{ranks} Python processes" + f" share {plural(cores, 'core')}" * (ranks > cores)
    off = max(terms, key=lambda term: abs(term.measured_s - term.predicted_s))
    text = f"{times} the predicted {time_text(predicted_s)}: {here}; {off.name} take{'s' * (off.name == 'computing')} "
    known = "nothing" if off.predicted_s <= 0 else time_text(off.predicted_s)
    return f"{text}{time_text(off.measured_s)}, for which profile {profile!r} has {known}"


@dataclass(frozen=True)
class StepTimes:
    """Seconds of one step of one plan, by source.

    predicted_s, simulated_s, measured_s   simulated, measured: median of `steps` steps
    simulated_range_s, measured_range_s    quickest and slowest of them
    predicted_bubble, ...                  the part of a step in which ranks do not compute (`EventLog.bubbles`); median
    device_num, cores                      ranks of the plan; processors they shared when they were measured
    shared_cores                           cores that predicted and simulated ranks share; None: each has its own
    stages                                 of a pipeline; 1: none
    cluster                                the profile behind predicted and simulated times
    """

    predicted_s: float
    simulated_s: float
    measured_s: float
    simulated_range_s: tuple[float, float]
    measured_range_s: tuple[float, float]
    predicted_bubble: float
    simulated_bubble: float
    measured_bubble: float
    steps: int
    device_num: int
    cores: int
    shared_cores: int | None
    stages: int
    cluster: Cluster

    @property
    def rows(self) -> tuple[tuple[str, float, tuple[float, float] | None, float], ...]:
        """(source, seconds, range or None, ratio to the measured time) of each."""
        times = (("predicted", self.predicted_s, None), ("simulated", self.simulated_s, self.simulated_range_s))
        times = (*times, ("measured", self.measured_s, self.measured_range_s))
        return tuple((source, time_s, spread, time_s / self.measured_s) for source, time_s, spread in times)

    def text(self) -> str:
        """The three as a table, each labelled with its source, and the numbers that the first two rest on."""
        bubbles = {"predicted": self.predicted_bubble, "simulated": self.simulated_bubble}
        bubbles |= {"measured": self.measured_bubble}
        head = f"  {'bubble':>6}" if self.stages > 1 else ""
        lines = [f"{'source':<10}  {'step':>9}{head}  {'quickest to slowest':>21}  {'to measured':>11}"]
        for source, time_s, spread, ratio in self.rows:
            shown = "" if spread is None else f"{time_text(spread[0])} to {time_text(spread[1])}"
            bubble = f"  {bubbles[source]:>6.1%}" if head else ""
            lines.append(f"{source:<10}  {time_text(time_s):>9}{bubble}  {shown:>21}  {ratio:>10.2f}x")
        link, device = self.cluster.link, self.cluster.device
        lines += [
            "",
            f"{self.device_num} ranks; medians of {self.steps} steps; measured on {self.cores} cores",
            f"profile {self.cluster.name!r}: alpha {link.alpha_s * 1e6:.3g} us per message, beta "
            f"{link.beta_s_per_byte * 1e9:.3g} ns per byte, "
            f"gamma {device.gamma_s_per_byte * 1e9:.3g} ns per byte added, {device.flops_per_s / 1e9:.3g} Gflop/s and "
            f"{device.memory_bandwidth_bytes_per_s / 1e9:.3g} GB/s per rank, {device.overhead_s * 1e6:.3g} us per "
            "instruction",
        ]
        if self.shared_cores is not None:
            lines.append(f"predicted and simulated ranks share {plural(self.shared_cores, 'core')}")
        elif self.device_num > self.cores:
            text = f"{self.device_num} ranks share {self.cores} cores: simulated ranks have one each, "
            lines.append(text + "so measured steps take longer")
        return "\n".join(lines)


def step_times(
    plan: Plan,
    net: Any,
    optimizer: Any,
    batches: Sequence[Sequence[Any]],
    cluster: Cluster,
    *,
    steps: int = 10,
    pool: Any = None,
    cores: int | None = None,
) -> StepTimes:
    """Predict, simulate and measure one training step of `plan`.

    net, optimizer  as for `Session`; nothing of them changes
    batches         global inputs of one step each, gone round
    cluster         for the first two: a named profile, or a measured one (`cost.measured_cluster`)
    steps           that count, after two that do not
    pool            workers to measure on; default: this process's shared pool of that size
    cores           processor cores that predicted and simulated ranks share; None: each has its own

    Raises ArgumentError for fewer than one step or a cluster that is too small, NoProcesses where nothing can be
    measured, and what `Session` raises.
    """
    integer(1)("step_times", "steps", steps)
    require_processes("step_times")
    predicted = predicted_events(plan, cluster, cores)
    times: dict[str, list[float]] = {}
    bubbles: dict[str, float] = {}
    for executor in ("simulator", "processes"):
        options = {"pool": pool} if executor == "processes" else {"cluster": cluster, "cores": cores}
        with Session(plan, net, optimizer, executor=executor, **options, check_finite=False) as session:
            session.train(batches, WARM_UPS)
            session.train(batches, steps, record=steps)
            log = EventLog(session.events)
        times[executor] = list(log.step_times_s().values())
        bubbles[executor] = statistics.median(log.bubbles().values())
    simulated, measured = times["simulator"], times["processes"]
    return StepTimes(
        predicted_s=predicted.end_s,
        simulated_s=statistics.median(simulated),
        measured_s=statistics.median(measured),
        simulated_range_s=(min(simulated), max(simulated)),
        measured_range_s=(min(measured), max(measured)),
        predicted_bubble=predicted.bubbles()[0],
        simulated_bubble=bubbles["simulator"],
        measured_bubble=bubbles["processes"],
        steps=steps,
        device_num=plan.device_num,
        cores=cores_here(),
        shared_cores=cores,
        stages=len(plan.stages),
        cluster=cluster,
    )


def predicted_events(plan: Plan, cluster: Cluster, cores: int | None = None) -> EventLog:
    """The predicted events of one step of all ranks, which share `cores` (None: each has its own)."""
    if cores is None and not (isinstance(cluster, SharedMachine) and len(plan.stages) > 1):
        return predict_timeline(plan, cluster).log
    cluster.check_device_num(plan.device_num)
    ran = virtual_clock(predicted_run(plan, cluster), cluster, cores)
    return EventLog(tuple(e for rank, mine in enumerate(ran) for e in ran_events(rank, 0, mine, "predicted")))
