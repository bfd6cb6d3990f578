"""The simulator's clock against the predicted timeline: equal local work gives equal times everywhere."""

from itertools import pairwise

import numpy as np
import pytest

from parallel_lab import compile, nn
from parallel_lab.base.cluster import Cluster, Link, cluster_for, get_cluster
from parallel_lab.base.events import EventLog, chrome_trace
from parallel_lab.cost import predict_timeline
from parallel_lab.cost.schedules import make_schedule
from parallel_lab.cost.simulated_clock import predicted_run, virtual_clock
from parallel_lab.lab.exercises.two_products import Chain
from parallel_lab.train.rank_steps import ran_events
from tests.crossed import first
from tests.graph.drawn_plans import compiled, draw
from tests.graph.test_pipeline import planned as planned_pipeline

FUSED = {"comm_fusion": {kind: {"mode": "size", "config": 1} for kind in ("allreduce", "allgather", "reducescatter")}}
SHARED = {**FUSED, "enable_parallel_optimizer": True, "parallel_optimizer_threshold": 0}
LOCAL = {"parallel_mode": "data_parallel", "dataset_strategy": "data_parallel"}

IN_TWOS = {"optimizer_level": "level3", "optimizer_weight_shard_size": 2}
PLANS = {
    "every message alone": {},
    "fused": FUSED,
    "by index": {"comm_fusion": {"allreduce": {"mode": "index", "config": [0, 2, 4]}}},
    "optimizer parallel": SHARED,
    "level3, in twos, two parts": {**SHARED, **IN_TWOS, "grad_accumulation_step": 2},
    "two parts": {**FUSED, "grad_accumulation_step": 2},
    "data parallel": {**FUSED, **LOCAL},
    "weight grouping": {**FUSED, **LOCAL, "enable_parallel_optimizer": True},
}


def planned(devices, settings):
    widths = (64, 512, 512, 64)
    net = nn.SequentialCell([nn.Dense(i, o) for i, o in pairwise(widths)])
    x = np.zeros((32 if settings.get("parallel_mode") != "data_parallel" else 32 // devices, 64), np.float32)
    optimizer = nn.AdamWeightDecay(net.trainable_params(), 0.01)
    settings = {"device_num": devices, "dataset_strategy": "full_batch", **settings}
    return compile(net, x, x, loss=nn.MSELoss(), optimizer=optimizer, **settings)


# 16: two nodes, joined by a slower link; weight grouping wants as many parameters as ranks
@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("name", "devices"), [(name, n) for name in PLANS for n in (4, 16) if (name, n) != ("weight grouping", 16)]
)
def test_simulated_times_are_the_predicted_ones(name, devices):
    plan, cluster = planned(devices, PLANS[name]), cluster_for(devices)
    predicted = predict_timeline(plan, cluster)
    clock = virtual_clock(predicted_run(plan, cluster), cluster)
    events = [e for rank, mine in enumerate(clock) for e in ran_events(rank, 0, mine, "simulated") if e.kind != "wait"]
    ends = {
        (e.rank, e.phase, e.micro_batch, e.kind, e.name): (e.end_s, e.bytes) for e in predicted.log if e.kind != "wait"
    }
    assert len(events) == len(ends)
    for e in events:
        end_s, size = ends[e.rank, e.phase, e.micro_batch, e.kind, e.name]
        assert e.end_s == pytest.approx(end_s, rel=1e-9) and e.bytes == size, e
    assert max(e.end_s for e in events) == pytest.approx(predicted.end_s, rel=1e-9)
    bars: dict[tuple[int, int], float] = {}
    for bar in chrome_trace(events)["traceEvents"]:
        if bar["ph"] == "X":
            lane = bar["pid"], bar["tid"]
            assert bar["ts"] >= bars.get(lane, 0) - 0.002, bar  # whole nanoseconds
            bars[lane] = bar["ts"] + bar["dur"]


ONE_NODE = Cluster("one node", get_cluster("laptop").device, Link(3e-6, 2e-9), devices_per_node=8)
TWO_LINKS = Cluster("two links", ONE_NODE.device, ONE_NODE.link, 3, node_count=3, node_link=Link(1e-4, 1e-8))


@pytest.mark.quick(1)
@pytest.mark.parametrize("cluster", [ONE_NODE, TWO_LINKS], ids=lambda cluster: cluster.name)
@pytest.mark.parametrize("seed", first(3, [n for n in range(36) if n % 3 < 2]))  # the others have one stage
def test_work_of_drawn_pipelines_is_simulated_when_it_is_predicted_to_the_bit(seed, cluster):
    """All messages show in when work begins: one that waited for a line that it does not need came too late."""
    plan = compiled(draw(seed).on_device)[0]
    clock = virtual_clock(predicted_run(plan, cluster), cluster)
    simulated = [e for rank, mine in enumerate(clock) for e in ran_events(rank, 0, mine, "simulated")]
    times = [
        [(e.rank, e.phase, e.micro_batch, e.name, e.start_s, e.end_s) for e in events if e.kind == "compute"]
        for events in (simulated, predict_timeline(plan, cluster).log)
    ]
    assert times[0] == times[1] != []


def test_an_exact_exchange_has_its_time_on_the_simulators_clock():
    """It was refused there: an exchange without its pieces."""
    strategies = {"matmul": ((8, 1), (1, 1)), "relu": ((8, 1),), "matmul2": ((1, 1), (1, 8))}
    plan, cluster = Chain(strategies, "exact").plan, cluster_for(8)
    assert any(instr.kind == "exchange" for _, instr in plan.instructions())
    clock = virtual_clock(predicted_run(plan, cluster), cluster)
    ends = [e.end_s for rank, mine in enumerate(clock) for e in ran_events(rank, 0, mine, "simulated")]
    assert max(ends) == pytest.approx(predict_timeline(plan, cluster).end_s, rel=1e-9)


# ---- ranks that share cores ----

FREE = Cluster("free", get_cluster("laptop").device, Link(0.0, 0.0), devices_per_node=8)


def scheduled(name, stages, parts, forward=1.0, backward=2.0, pieces=1):
    """What the ranks of a pipeline run if an action takes `forward` or `backward`, as soon as its input is there; all
    of it in its first local instruction, or a share in each of the first `pieces`.
    """
    plan = planned_pipeline(tuple(range(stages)), stages, parts=parts, pipeline_scheduler=name, rows=2 * parts)[0]
    found = []
    for stage in plan.stages:
        mine = []
        for action in stage.actions:
            part = [i for _, i in stage.part(action)]
            takes = [n for n, i in enumerate(part) if i.kind == "wait" and i.attr("message") == "recv"]
            local = [n for n in range(takes[-1] if takes else 0, len(part)) if works(part[n])][:pieces]
            time_s = {"F": forward, "B": backward}.get(action.kind, 0.0) / max(len(local), 1)
            mine += [(action, i, 0.0, time_s if n in local else 0.0, 0, None) for n, i in enumerate(part)]
        found.append(mine)
    return found


def works(instr):
    return not instr.is_communication and instr.kind != "wait"


def ends(clock):
    """Per rank when its forwards and backwards are over."""
    found = [{} for _ in clock]
    for rank, mine in enumerate(clock):
        for action, instr, _, end_s, *_ in mine:
            if action.kind in "FB" and works(instr):
                found[rank][action] = end_s
    return [list(of.values()) for of in found]


@pytest.mark.quick(1)
@pytest.mark.parametrize("pieces", [1, 2])
@pytest.mark.parametrize("cores", [1, 2, 3, None])
@pytest.mark.parametrize("name", ["gpipe", "1f1b"])
def test_actions_of_a_plan_end_when_those_of_its_schedule_do(name, cores, pieces):
    """Also those of several instructions: between them an action keeps its core."""
    timing = make_schedule(name, 4, 8).clock(1, 2, 0, cores=cores)
    found = ends(virtual_clock(scheduled(name, 4, 8, pieces=pieces), FREE, cores))
    for mine, wanted in zip(found, timing.ends, strict=True):
        assert mine == pytest.approx(wanted, rel=1e-9)


def test_one_core_takes_as_long_as_all_work_and_as_many_as_ranks_are_their_own():
    run = scheduled("1f1b", 4, 8)
    times = [max(map(max, ends(virtual_clock(run, FREE, cores)))) for cores in (1, 2, 3, 4, None)]
    assert times[0] == pytest.approx(4 * 8 * 3) and times == sorted(times, reverse=True) and times[3] == times[4]


def test_the_bubble_of_a_recorded_schedule_is_the_formulas():
    """(p - 1) / (m + p - 1) of equal stages with cores of their own, GPipe and 1F1B alike."""
    for name in ("gpipe", "1f1b"):
        clock = virtual_clock(scheduled(name, 4, 8), FREE)
        log = EventLog(tuple(e for r, mine in enumerate(clock) for e in ran_events(r, 7, mine, "simulated")))
        assert log.bubbles() == {7: pytest.approx(3 / (8 + 3))}
        assert log.step_times_s()[7] == pytest.approx((8 + 3) * 3)  # what was started ends on this clock too


@pytest.mark.quick(1)
@pytest.mark.parametrize("cores", [1, 2])
def test_a_rank_that_waits_for_a_core_is_idle(cores):
    """On one core a step takes as long as all work, so 4 ranks are idle for 3/4 of it; on two for more than a half."""
    clock = virtual_clock(scheduled("gpipe", 4, 8), FREE, cores)
    log = EventLog(tuple(e for r, mine in enumerate(clock) for e in ran_events(r, 7, mine, "simulated")))
    work_s, step_s = 4 * 8 * 3, log.step_times_s()[7]
    assert log.filter(kind="compute").seconds() == pytest.approx(work_s)
    assert log.bubbles() == {7: pytest.approx(1 - work_s / (4 * step_s))}
    assert step_s == pytest.approx(work_s) if cores == 1 else work_s / 2 < step_s < work_s


def test_a_message_delays_who_needs_it_and_nobody_else():
    """The first stage goes on; the second begins 5 s after its first input was made, and then has the next one."""
    run = [[r for r in mine if r[0].kind == "F"] for mine in scheduled("1f1b", 2, 2)]
    clock = virtual_clock(run, Cluster("slow", FREE.device, Link(5.0, 0.0), devices_per_node=8))
    assert ends(clock) == [pytest.approx([1, 2]), pytest.approx([7, 8])]
