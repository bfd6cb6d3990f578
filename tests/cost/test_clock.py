"""The simulator's clock against the predicted timeline: equal local work gives equal times everywhere."""

from itertools import pairwise

import numpy as np
import pytest

from parallel_lab import compile, nn
from parallel_lab.base.cluster import cluster_for
from parallel_lab.base.events import chrome_trace
from parallel_lab.cost import predict_timeline
from parallel_lab.cost.simulated_clock import virtual_clock
from parallel_lab.cost.time import local_time_s, message_bytes
from parallel_lab.train.rank_steps import ran_events

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


def ran(plan, rank, cluster):
    """A rank's run if its work took what is predicted: (action, instruction, start, end, bytes, noticed)."""
    stage = plan.stage_of(rank)
    found = []
    for action in stage.actions:
        for _, i in stage.part(action):
            if i.runs_on(rank):
                works = not i.is_communication and i.kind != "wait"
                time_s = local_time_s(plan, i, cluster.device) if works else 0.0
                found.append((action, i, 0.0, time_s, message_bytes(plan, i, rank), None))
    return found


# 16: two nodes, joined by a slower link; weight grouping wants as many parameters as ranks
@pytest.mark.parametrize(
    ("name", "devices"), [(name, n) for name in PLANS for n in (4, 16) if (name, n) != ("weight grouping", 16)]
)
def test_simulated_times_are_the_predicted_ones(name, devices):
    plan, cluster = planned(devices, PLANS[name]), cluster_for(devices)
    predicted = predict_timeline(plan, cluster)
    clock = virtual_clock([ran(plan, rank, cluster) for rank in range(devices)], cluster)
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
