"""What pipelines are predicted to hold and to take: bytes as the interpreter finds them, times by the schedule."""

import numpy as np
import pytest

from parallel_lab import Simulator
from parallel_lab.base.cluster import get_cluster
from parallel_lab.cost import predict_memory, predict_timeline, step_time_s
from parallel_lab.train.session import Session, initial_values
from tests.graph.test_pipeline import LAYOUTS, SHARDED, batch, planned

CASES = {
    "two": (LAYOUTS["two"], 4, {}),
    "two, gpipe": (LAYOUTS["two"], 4, {"pipeline_scheduler": "gpipe"}),
    "chunks": (LAYOUTS["chunks"], 2, {}),
    "four, sharded": (LAYOUTS["four"], 8, SHARDED),
}


@pytest.mark.parametrize("case", CASES)
def test_every_instruction_finds_the_predicted_bytes_on_every_rank(case):
    (stages, how), devices, settings = CASES[case]
    plan, net, optimizer = planned(stages, devices, parts=8, **how, **settings)
    simulator, held = Simulator(plan, initial_values(plan, net, optimizer)), {r: [] for r in range(devices)}
    numbers = {i.name for i in plan.graph.inputs if i.is_number} | set(plan.scalars)

    def look(rank, action, instr, *_):
        found = {
            (n if isinstance(n, str) else n[0], n): a
            for n, a in simulator.envs[rank].items()
            if isinstance(a, np.ndarray)
        }
        arrays = {(a.ctypes.data, a.nbytes) for (name, _), a in found.items() if name not in numbers and a.nbytes}
        held[rank].append((action.program, instr.out, sum(size for _, size in arrays)))

    simulator.run_step(*batch(), observe=look)
    for rank in range(devices):
        predicted = predict_memory(plan, rank=rank).timeline
        assert [(p.phase, p.name, p.total_bytes) for p in predicted] == held[rank]


@pytest.mark.parametrize("parts", [4, 8])
def test_activations_are_those_of_the_micro_batches_in_flight(parts):
    """Stage s of S holds min(M, S - s) micro-batches with 1F1B and all M with GPipe (Narayanan et al. 2021)."""

    def held(scheduler, parts):
        plan = planned((0, 1, 2, 3), 4, parts=parts, pipeline_scheduler=scheduler, rows=8 * parts)[0]
        return [predict_memory(plan, rank=rank).parts["activations"] for rank in range(4)]

    gpipe, more = held("gpipe", parts), held("gpipe", 2 * parts)
    for stage, (now, then, ours) in enumerate(zip(gpipe, more, held("1f1b", parts), strict=True)):
        one = (then - now) // parts  # what a micro-batch adds; the rest is held once
        assert now - ours == (parts - min(parts, 4 - stage)) * one


def test_stages_work_at_the_same_time():
    """No stage ends before it has done its work and waited for the first micro-batch; sent messages take no time."""
    for scheduler in ("gpipe", "1f1b"):
        plan, cluster = planned((0, 1, 2, 3), 8, parts=8, pipeline_scheduler=scheduler)[0], get_cluster("laptop")
        timeline = predict_timeline(plan, cluster)
        work = [step_time_s(plan, cluster, rank=rank).compute_s for rank in (0, 2, 4, 6)]
        assert max(work) < timeline.end_s < sum(work)
        ends = {rank: max(e.end_s for e in timeline.log if e.rank == rank) for rank in range(8)}
        assert max(ends.values()) == timeline.end_s
        alone = predict_timeline(plan, cluster, ranks=())
        assert alone.end_s == pytest.approx(timeline.end_s, rel=1e-12) and not list(alone.log)


def test_a_recorded_step_has_every_action_of_every_rank():
    plan, net, optimizer = planned((0, 0, 1, 1), 4)
    with Session(plan, net, optimizer) as session:
        session.train([batch()], 1, record=1)
        events = list(session.events)
    want = predict_timeline(plan, get_cluster("laptop")).log
    seen, predicted = (
        {(e.rank, e.phase, e.micro_batch, e.name) for e in log if e.kind != "wait"} for log in (events, want)
    )
    assert seen == predicted and np.isfinite([e.end_s for e in events]).all()
