"""Labs alongside a notebook's settings, and their views of networks whose gradients share messages."""

from __future__ import annotations

import contextlib
import json
import statistics
from functools import partial
from itertools import pairwise

import pytest

from parallel_lab import Session
from parallel_lab.base.settings import context
from parallel_lab.cost.time import message_bytes
from parallel_lab.graph.compiler import compile_network
from parallel_lab.lab.fusion.model import FusionLab
from parallel_lab.lab.memory.model import MemoryLab
from parallel_lab.lab.pictures.graph_strip import graph_strip
from parallel_lab.lab.pictures.lanes import timeline_lanes
from parallel_lab.lab.pictures.picture import message_table
from parallel_lab.lab.quickstart.model import Quickstart
from parallel_lab.lab.quickstart.result import messages_of
from parallel_lab.lab.shared import jobs, networks
from parallel_lab.lab.strategy.model import StrategyLab
from parallel_lab.processes.shm import WorkerPool
from tests.lab.labs import LABS

FUSED = {kind: {"mode": "auto", "config": None} for kind in ("allreduce", "allgather", "reducescatter")}

# what a notebook may have set before it opens a lab
SETTINGS = [
    {"parallel_mode": "data_parallel"},
    {"gradients_mean": True, "loss_repeated_mean": False},
    {"comm_fusion": FUSED, "fusion_index": "first_n"},
    {
        "enable_parallel_optimizer": True,
        "parallel_optimizer_config": {"parallel_optimizer_threshold": 0},
        "comm_fusion": FUSED,
    },
    {"grad_accumulation_step": 2},
    {"pipeline_stages": 2},
    {"device_num": 2, "global_rank": 1},
]


@pytest.fixture
def clean():
    context.reset_auto_parallel_context()
    yield
    context.reset_auto_parallel_context()


def shown():
    """What all labs, a network with layers and the quickstart show."""
    labs = [make() for make in LABS.values()]
    labs += [StrategyLab("transformer", devices=4), FusionLab("chain", devices=4), MemoryLab("dense", 4)]
    try:
        return [json.dumps(lab.snapshot()) for lab in labs] + [Quickstart(devices=4, epochs=1).plan.digest]
    finally:
        for lab in labs:
            lab.close()


@pytest.fixture(scope="module")
def alone():
    """The same in a notebook that has set nothing."""
    return shown()


@pytest.mark.exhaustive
@pytest.mark.parametrize("settings", SETTINGS, ids=lambda s: " ".join(s))
def test_what_a_notebook_has_set_does_not_reach_into_a_lab(clean, alone, settings):
    """A StrategyLab once raised IndexError after grad_accumulation_step=2 and did not open under optimizer parallel."""
    context.set_auto_parallel_context(**settings)
    assert shown() == alone
    for key, value in settings.items():
        now = context.get_auto_parallel_context(key)
        assert now == value or (isinstance(value, dict) and value.items() <= now.items())


def test_default_settings_are_defaults_inside_and_come_back_after_an_error(clean):
    plain = context.frozen()
    context.set_auto_parallel_context(parallel_mode="data_parallel", device_num=4)
    context.set_algo_parameters(fully_use_devices=False)
    context.set_cost_model_context(costmodel_allreduce_fusion_algorithm=1, costmodel_allreduce_fusion_times=2)
    before = context.frozen()
    try:
        with pytest.raises(ZeroDivisionError), context.default_settings():
            assert context.frozen() == plain != before
            context.set_auto_parallel_context(gradients_mean=True)
            raise ZeroDivisionError
        assert context.frozen() == before
    finally:
        context.set_algo_parameters(fully_use_devices=True)
        context.set_cost_model_context(costmodel_allreduce_fusion_algorithm=0, costmodel_allreduce_fusion_times=0)


# ---- networks whose parameters carry ids ----


@pytest.fixture
def numbered(monkeypatch):
    """The Megatron network with one id for all but a bias, and the transformer with one id, as networks of the labs."""

    def megatron(problem):
        net = networks.NETWORKS["megatron"].factory(problem).set_comm_fusion(2)
        net.b1.comm_fusion = 0
        return net

    for name, factory in (
        ("megatron", megatron),
        ("transformer", lambda p: networks.NETWORKS["transformer"].factory(p).set_comm_fusion(3)),
    ):
        numbered_name = f"numbered {name}"
        monkeypatch.setitem(networks.NETWORKS, numbered_name, networks.NETWORKS[name]._replace(factory=factory))
        monkeypatch.setitem(jobs.JOBS, numbered_name, partial(jobs._network, numbered_name))


def test_a_bucket_lies_at_every_parameter_whose_gradient_it_carries(numbered):
    """b1 travels alone, b2 in a group of its own; w1 and w2, with the same holders, share a message."""
    lab = StrategyLab("numbered megatron", devices=4)
    try:
        table, edges = message_table(lab.plan, 0), graph_strip(lab.plan, message_table(lab.plan, 0))["edges"]
    finally:
        lab.close()
    shared = [m for m in table if m["carries"]]
    assert [set(m["carries"]) for m in shared] == [{"w1", "w2"}]
    at = {edge["from"]: edge["messages"] for edge in edges}
    assert at["w1"] == at["w2"] == [shared[0]["number"]] and len(at["b1"]) == len(at["b2"]) == 1
    assert len({at["w1"][0], at["b1"][0], at["b2"][0]}) == 3


@pytest.mark.exhaustive
def test_a_bucket_lies_at_every_layer_whose_gradients_it_carries(numbered):
    numbers = {}
    for name in ("transformer", "numbered transformer"):
        lab = StrategyLab(name, devices=8)
        try:
            shot = lab.snapshot()
        finally:
            lab.close()
        gradients = {
            m["number"]
            for m in shot["messages"]
            if m["phase"] == "backward" and (m["carries"] or m["reason"].find("hold the same slice") > 0)
        }
        numbers[name] = {n["id"]: len(gradients & set(n["messages"])) for n in shot["graph"]["nodes"]}, gradients
    (apart, _), (together, buckets) = numbers.values()
    assert {layer for layer, count in apart.items() if count} == {layer for layer, count in together.items() if count}
    assert all(count <= len(buckets) for count in together.values())


@pytest.mark.quick(1)
@pytest.mark.parametrize("executor", ["simulator", "processes"])
def test_bytes_and_times_of_started_messages_are_those_of_the_messages(executor):
    """The wait for a message bears its name; its 0 bytes and its seconds once stood in the message's place."""
    problem = networks.get_problem("seed")
    net = networks.NETWORKS["megatron"].factory(problem)
    loss, optimizer = problem.loss(), problem.optimizer(net.trainable_params())
    how = {"device_num": 2, "dataset_strategy": "full_batch", "comm_fusion": {"allreduce": FUSED["allreduce"]}}
    plan = compile_network(net, *problem.batches[0], loss=loss, optimizer=optimizer, **how)
    with contextlib.ExitStack() as stack:
        workers = {"pool": stack.enter_context(WorkerPool(2))} if executor == "processes" else {}
        session = stack.enter_context(Session(plan, net, optimizer, executor=executor, **workers))
        session.train(list(problem.batches), 2, record=1)
        events = session.events
    messages = [i for _, i in plan.instructions() if i.is_communication]
    started = {i.out for i in messages if i.kind == "start"}
    took = {e.name: e.duration_s for e in events if e.rank == 0 and e.kind == "communication"}
    table = [m for m in message_table(plan, 0, events) if m["group"]]
    assert started and [m["bytes_counted"] for m in table] == [message_bytes(plan, i, 0) for i in messages]
    assert [m["time_measured_s"] for m in table] == [took[i.out] for i in messages]
    medians = [
        statistics.median(e.duration_s for e in events if e.kind == "communication" and e.name == i.out)
        for i in messages
    ]
    assert [m.time_measured_s for m in messages_of(plan, events) if m.group] == medians
    for lane in timeline_lanes(plan, events)["lanes"]:
        assert all(a["end"] <= b["start"] + 1e-6 for a, b in pairwise(lane["meanwhile"]))
