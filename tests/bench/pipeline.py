"""Bubbles of pipelines on this machine, three times: predicted, simulated (told the number of cores), measured.

    stages x LAYERS, each a Dense of WIDTH and a tanh; rows of a micro-batch so many that an action takes ACTION_S

Four ranks on two cores compute two at a time and wait in turn (`cost/shared_cores.py`): then at least half of their
time is a bubble, also where no core is ever idle. What is predicted for cores of their own says little here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from parallel_lab import nn, ops
from parallel_lab.base.cluster import Cluster
from parallel_lab.base.events import EventLog
from parallel_lab.base.seeds import temporary_seed
from parallel_lab.base.system import cores
from parallel_lab.graph.compiler import compile_network
from parallel_lab.graph.plan import Plan
from parallel_lab.lab.pipeline.settings import Settings
from parallel_lab.lab.shared.step_times import StepTimes, step_times
from parallel_lab.processes.measure import fit_link, measure_device, measured_cluster
from parallel_lab.processes.shm import WorkerPool
from parallel_lab.train.session import Session
from tests.bench.cases import PIPELINE_SCHEDULES
from tests.bench.goals import Goal, goal_rows
from tests.bench.page import tables_text

ACTION_S = 5e-3  # computing of one action, on average over forwards and backwards
WIDTH, LAYERS, FIRST_ROWS, MOST_ROWS = 256, 2, 64, 1 << 16  # layers of each stage
BUBBLE_LIMIT = 0.15  # how far measured and simulated bubble may be apart


class _Block(nn.Cell):
    def __init__(self, stage: int) -> None:
        super().__init__()
        self.dense = nn.Dense(WIDTH, WIDTH)
        self.pipeline_stage = stage

    def construct(self, x: Any) -> Any:
        return ops.tanh(self.dense(x))


def pipelined(stages: int, micro_batches: int, rows: int, name: str) -> tuple[Plan, nn.Cell, Any, Any]:
    """(plan, network, optimizer, batch) of a stack of LAYERS per rank, in equal parts; `rows` in a micro-batch."""
    schedule = Settings(stages=stages, micro_batches=micro_batches).with_name(name).schedule
    rank_of = {part: rank for rank, parts in enumerate(schedule.holds) for part in parts}
    layers = LAYERS * stages
    with temporary_seed(1):
        net = nn.SequentialCell([_Block(rank_of[n * schedule.parts // layers]) for n in range(layers)])
        optimizer = nn.Momentum(net.trainable_params(), 0.01, 0.9)
        x = np.random.default_rng(0).standard_normal((rows * micro_batches, WIDTH)).astype(np.float32)
        settings = {"pipeline_stages": stages, "grad_accumulation_step": micro_batches, "device_num": stages}
        settings |= {"schedule": schedule, "dataset_strategy": "full_batch"}
        plan = compile_network(net, x, x, loss=nn.MSELoss(), optimizer=optimizer, **settings)
    return plan, net, optimizer, (x, x)


def action_time_s(events: Sequence[Any]) -> float:
    """Seconds on a core of one action of the forwards and backwards in `events`, on average."""
    work = EventLog(tuple(events)).filter(kind="compute", phase=["forward", "backward"])
    return math.fsum(e.work_s for e in work) / len({(e.step, e.rank, e.phase, e.micro_batch) for e in work})


def calibrated_rows(pool: WorkerPool, action_s: float = ACTION_S) -> int:
    """Rows of a micro-batch with which an action of `pipelined` takes about `action_s` on a core, on these workers."""
    rows, stages = FIRST_ROWS, pool.world_size
    for _ in range(2):  # the first time small operators count
        plan, net, optimizer, batch = pipelined(stages, stages, rows, "gpipe")
        with Session(plan, net, optimizer, executor="processes", pool=pool) as session:
            session.train([batch], 4, record=3)
            took_s = action_time_s(session.events)
        rows = int(min(max(rows * action_s / took_s, 1), MOST_ROWS))
    return rows


def measure_pipeline(
    stages: int = 4,
    micro_batches: int = 8,
    schedules: Sequence[str] = PIPELINE_SCHEDULES,
    steps: int = 10,
    *,
    action_s: float = ACTION_S,
    cluster: Cluster | None = None,
    tell: Callable[[str], object] = lambda text: None,
) -> dict[str, StepTimes]:
    """{schedule: step and bubble predicted, simulated and measured}, all three on the cores that there are.

    action_s  what an action computes, about;  cluster: for predicted and simulated times, default: this machine's
    """
    with WorkerPool(stages) as pool:
        tell("the profile of this machine")
        if cluster is None:
            cluster = measured_cluster(fit_link(pool, "send"), device=measure_device(pool), world_size=stages)
        rows = calibrated_rows(pool, action_s)
        found = {}
        for schedule in schedules:
            tell(f"{schedule}, {rows} rows")
            plan, net, optimizer, batch = pipelined(stages, micro_batches, rows, schedule)
            found[schedule] = step_times(
                plan, net, optimizer, [batch], cluster, steps=steps, pool=pool, cores=min(cores(), stages)
            )
    return found


def pipeline_goals(found: dict[str, StepTimes]) -> tuple[Goal, ...]:
    """How far apart simulated and measured bubble are, as a share of the step."""
    return tuple(
        Goal(
            f"{name}, measured - simulated bubble",
            "the step",
            BUBBLE_LIMIT,
            abs(t.measured_bubble - t.simulated_bubble),
        )
        for name, t in found.items()
    )


def pipeline_text(found: dict[str, StepTimes]) -> str:
    """Tables and goals."""
    tables = "\n\n".join(f"{name}\n{times.text()}" for name, times in found.items())
    return f"{tables}\n\n{tables_text([(goal_rows(pipeline_goals(found)), 2)], [])}"
