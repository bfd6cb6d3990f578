"""Lesson 08: optimizer parallel."""

from functools import cache
from typing import Any

import numpy as np

from ...cost.zero import STAGES, zero_memory, zero_traffic
from ...processes.shm import WorkerPool
from ...train.program import drive
from ...train.session import Session, initial_values
from ..exercises import check, hint, par
from ..memory.count import simulated_ranks
from ..memory.subjects import Settings, get_subject
from ..shared.prediction import Comparison
from .predictions import Answers


def moments_of_ranks(ranks: int) -> list[bytes]:
    """Adam's moments on every rank after three steps of plain data parallel: eight Dense layers, 256 x 256."""
    job = get_subject("stack").job(256)
    plan = job.compile(Settings(devices=ranks, level="off"))
    with Session(plan, job.net, job.optimizer("Adam"), executor="processes") as session:
        session.train(job.batches, 3)
        moments = [session.slices(state.name) for state in plan.states if plan.value(state.name).shape]
    return [b"".join(moment[rank].tobytes() for moment in moments) for rank in range(ranks)]


@cache
def _counted(**settings: Any) -> Any:
    """Rank 0 of eight simulated ranks, over one step."""
    job, found = get_subject("stack").job(256), Settings(devices=8, threshold_kb=0, **settings)
    plan = job.compile(found)
    return simulated_ranks(plan, initial_values(plan, job.net, job.optimizer(found.optimizer)), job.batches[0])[0]


def compare(prediction: dict[str, Any], *, show: bool = False) -> Comparison:
    """The answers next to the paper's formulas, and next to what is counted on simulated ranks."""
    each = {"param_bytes": 4, "grad_bytes": 4, "optimizer_bytes": 8}
    bars = [zero_memory(524_288, 8, stage, **each).total_bytes / 2**20 for stage in STAGES]
    times = [zero_traffic(524_288, 8, stage) / zero_traffic(524_288, 8, 0) for stage in STAGES]
    grouping = {"level": "grouping", "parallel_mode": "data_parallel", "optimizer": "AdamWeightDecay"}

    def states_mib(**settings: Any) -> float:
        count = _counted(**settings)
        stays = count.at("resident")
        return round((stays["params"] + stays["optimizer"] + count.most("grads")) / 2**20, 2)

    def ratio(level: str) -> float:
        return round(_counted(level=level).sent_bytes / _counted(level="off").sent_bytes, 2)

    def activations() -> str:
        return (
            "same" if len({_counted(level=n).most("activations") for n in ("off", "level1", "level3")}) == 1 else "less"
        )

    return Answers("08", prediction, show).next_to(
        stage_0=(bars[0], lambda: states_mib(level="off"), "2 + 2 + 4 on every rank"),
        stage_1=(bars[1], lambda: states_mib(**grouping), "2 + 2 + 4/8: only the states are sharded"),
        stage_2=(bars[2], None, "2 + 2/8 + 4/8"),
        stage_3=(bars[3], lambda: states_mib(level="level3"), "(2 + 2 + 4)/8: everything is sharded"),
        traffic_1=(times[1], lambda: ratio("level1"), "an all_reduce is these two halves"),
        traffic_3=(times[3], lambda: ratio("level3"), "weights are gathered twice"),
        activations=("same", activations, "each rank has those of its own rows in every stage"),
    )


def prove(zero1_step: Any) -> str:
    """Three steps of a ZeRO-1 step on four processes, next to plain data parallel."""
    gradients = np.random.default_rng(0).normal(size=(3, 4, 48))

    def mine(comm: Any, gradients: np.ndarray) -> np.ndarray:
        weights, velocity = np.ones(48), np.zeros(12)
        for gradient in gradients[:, comm.rank]:
            weights, velocity = drive(zero1_step(comm.rank, 4, weights, gradient, velocity), comm)
        return weights

    weights, velocity = np.ones(48), np.zeros(48)
    for gradient in gradients.mean(axis=1):
        velocity = 0.9 * velocity + gradient
        weights = weights - 0.1 * velocity
    with WorkerPool(4) as pool:
        equal = [np.allclose(got, weights, atol=1e-12) for got in pool.run(mine, gradients)]
    words = {True: "EQUAL to rounding", False: "not the weights of plain data parallel yet"}
    return "\n".join(f"rank {rank}: {words[bool(each)]}" for rank, each in enumerate(equal))
