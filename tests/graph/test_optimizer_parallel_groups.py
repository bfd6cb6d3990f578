"""Optimizer parallel in data_parallel mode: who updates what, the broadcasts, who holds states, restrictions.

Owners and restrictions: MindSpore, nn.Optimizer (parameter i belongs to rank i mod N; Lamb and AdamWeightDecay; no more
ranks than parameters; not in stand_alone and hybrid_parallel mode), and its unit test
tests/ut/python/parallel/test_parallel_optimizer.py.
"""

import json

import numpy as np
import pytest

from parallel_lab import ParallelLabError, Parameter, Session, compile, nn, ops
from parallel_lab.base.cluster import get_cluster
from parallel_lab.base.errors import OptimizerParallelError
from parallel_lab.base.settings.context import reset_auto_parallel_context, set_auto_parallel_context
from parallel_lab.cost import predict_memory, predict_timeline, step_time_s
from parallel_lab.graph.plan import Plan
from parallel_lab.nn.optim.weight_groups import update_owners
from parallel_lab.processes.shm import WorkerPool
from tests.crossed import crossed, each_of
from tests.graph.test_plan_verify import changed, find, verify_refuses

pytestmark = pytest.mark.timeout(60)


class Stack(nn.Cell):
    """`count` parameters: x * p0 + p1, tanh, * p2 + p3, ..."""

    def __init__(self, count=8, size=6, dtype=np.float64):
        super().__init__()
        rng = np.random.default_rng(3)
        self.count = count
        for name in (f"p{number}" for number in range(count)):
            self.insert_param_to_cell(name, Parameter(rng.normal(size=(size,)).astype(dtype), name=name))

    def construct(self, x):
        for number in range(self.count):
            x = ops.tanh(x * getattr(self, f"p{number}")) if number % 2 == 0 else x + getattr(self, f"p{number}")
        return x


CLIP = nn.GradientClip("global_norm", 0.01)
OPTIMIZERS = {
    "lamb": lambda p: nn.Lamb(p, 0.01, weight_decay=0.1),
    "adam-weight-decay": lambda p: nn.AdamWeightDecay(p, 0.01, weight_decay=0.1),
    "adafactor": lambda p: nn.AdaFactor(p, weight_decay=0.1, clip_threshold=0.5),
    "clipped": lambda p: nn.AdamWeightDecay(p, 0.01, clip=CLIP),
    "scaled": lambda p: nn.Lamb(p, nn.CosineDecayLR(0.001, 0.1, 20), loss_scaler=nn.DynamicLossScaler(64, 2, 2)),
    "groups": lambda p: nn.Lamb([{"params": p[:3], "lr": 0.02}, {"params": p[3:], "weight_decay": 0.2}], 0.01),
}
ON = {"enable_parallel_optimizer": True}


def planned(make, device_num=4, count=8, dtype=np.float64, **settings):
    net = Stack(count, dtype=dtype)
    optimizer = make(net.trainable_params())
    x = np.zeros((2, 6), dtype)
    settings = {"parallel_mode": "data_parallel", "gradients_mean": True, **settings}
    return compile(net, x, x, loss=nn.MSELoss(), optimizer=optimizer, device_num=device_num, **settings), net, optimizer


def batches(device_num, dtype=np.float64):
    rng, shape = np.random.default_rng(7), (2 * device_num, 6)
    return [tuple(rng.normal(size=shape).astype(dtype) for _ in range(2)) for _ in range(3)]


def trained(plan, net, optimizer, steps=20, dtype=np.float64, **how):
    with Session(plan, net, optimizer, **how) as session:
        losses = session.train(batches(plan.device_num, dtype), steps)
        return losses, session.parameters(), session.values(s.name for s in plan.states), session.scalars()


# ---- owners ----


def test_parameter_i_belongs_to_rank_i_mod_n():
    """Four ranks, eight parameters: {0, 4} {1, 5} {2, 6} {3, 7}."""
    plan, _, _ = planned(OPTIMIZERS["lamb"], **ON)
    groups = [[name for name, owner in plan.owners if owner == rank] for rank in range(4)]
    assert groups == [["p0", "p4"], ["p1", "p5"], ["p2", "p6"], ["p3", "p7"]]


def test_owners_follow_the_order_that_the_optimizer_was_given():
    net = Stack(3)
    backwards = list(reversed(net.trainable_params()))
    assert update_owners(nn.Lamb(backwards, 0.1).parameters, 2) == {"p2": 0, "p1": 1, "p0": 0}


def test_broadcasts_come_in_the_order_of_the_owners_each_from_its_own():
    plan, _, _ = planned(OPTIMIZERS["adam-weight-decay"], **ON)
    sent = [i for _, i in plan.instructions("update") if i.kind == "broadcast"]
    assert [(i.name, i.attr("root")) for i in sent] == [(f"p{n}", n % 4) for n in (0, 4, 1, 5, 2, 6, 3, 7)]
    assert all(i.group(2) == (0, 1, 2, 3) and i.owner is None for i in sent)
    assert "rank 1 alone has updated 'p5'" in sent[3].reason


def test_gradients_are_summed_as_ever():
    with_it, without = (planned(OPTIMIZERS["lamb"], **settings)[0] for settings in (ON, {}))
    assert dict(with_it.stages[0].programs)["backward"] == dict(without.stages[0].programs)["backward"]


def test_an_owner_computes_its_own_updates_and_nobody_else_does():
    with_it, without = planned(OPTIMIZERS["lamb"], **ON)[0], planned(OPTIMIZERS["lamb"])[0]
    work = [i for _, i in with_it.instructions("update") if i.kind == "compute"]
    per_parameter = sum(i.name == "p0" for i in work)
    assert {i.owner for i in work if i.name.startswith("p")} == {0, 1, 2, 3}
    assert all(i.owner == int(i.name[1:]) % 4 for i in work if i.name.startswith("p"))
    shared = [i for i in work if i.owner is None]
    assert {i.name for i in shared} == {"optimizer"}  # the powers of beta, which all parameters use
    assert [i for _, i in without.instructions("update") if i.owner is not None] == [] and per_parameter > 10


def test_clipping_by_the_global_norm_stays_everybody_s():
    plan, _, _ = planned(OPTIMIZERS["clipped"], **ON)
    rules = [i for _, i in plan.instructions("update") if i.owner is not None]
    norm = [i for _, i in plan.instructions("update") if i.owner is None and i.kind == "compute"]
    assert {i.op for i in norm} >= {"square", "reduce_sum", "sqrt"} and all(i.op != "reduce_sum" for i in rules)


# ---- results ----


@pytest.mark.exhaustive
@pytest.mark.parametrize(("name", "device_num"), crossed(OPTIMIZERS, [2, 8, 4, 1]))  # most are exhaustive
def test_results_are_those_of_plain_data_parallel_to_the_bit(name, device_num):
    """The owner computes just what every rank would have computed."""
    found = [trained(*planned(OPTIMIZERS[name], device_num, **s)) for s in ({}, ON)]
    assert found[0][0] == found[1][0] and found[0][3] == found[1][3]
    for one, other in zip(found[0][1:3], found[1][1:3], strict=True):
        assert one.keys() == other.keys() and all(np.array_equal(one[n], other[n]) for n in one)


@pytest.mark.exhaustive
def test_20_steps_equal_one_device_on_the_whole_batch():
    _, found, _, _ = trained(*planned(OPTIMIZERS["lamb"], 4, **ON))
    net = Stack()
    optimizer = OPTIMIZERS["lamb"](net.trainable_params())
    x = np.zeros((8, 6))
    plan = compile(net, x, x, loss=nn.MSELoss(), optimizer=optimizer, parallel_mode="stand_alone")
    with Session(plan, net, optimizer) as session:
        session.train(batches(4), 20)
        for name, value in session.parameters().items():
            np.testing.assert_allclose(found[name], value, rtol=1e-9, atol=1e-12)


@pytest.mark.exhaustive
def test_processes_give_the_simulator_s_bits_and_hold_the_states_where_they_belong():
    plan, net, optimizer = planned(OPTIMIZERS["scaled"], 2, dtype=np.float32, **ON)
    want = trained(plan, net, optimizer, dtype=np.float32)
    with WorkerPool(2) as pool, Session(plan, net, optimizer, executor="processes", pool=pool) as session:
        losses = session.train(batches(2, np.float32), 20)
        assert losses == want[0] and session.scalars() == want[3]
        for name, value in {**session.parameters(), **session.values(s.name for s in plan.states)}.items():
            assert np.array_equal(value, {**want[1], **want[2]}[name]), name
        first, other = (next(s.name for s in plan.states if s.parameter == p) for p in ("p0", "p1"))
        assert [a is None for a in session.slices(first)] == [False, True]
        assert [a is None for a in session.slices(other)] == [True, False]


def test_layerwise_parameters_are_everybody_s_own():
    net = Stack(4)
    net.p1.layerwise_parallel = True
    optimizer = nn.Lamb(net.trainable_params(), 0.01)
    x = np.zeros((2, 6))
    plan = compile(net, x, x, loss=nn.MSELoss(), optimizer=optimizer, device_num=2, parallel_mode="data_parallel", **ON)
    assert dict(plan.owners) == {"p0": 0, "p2": 0, "p3": 1}
    assert {i.owner for _, i in plan.instructions("update") if i.name == "p1"} == {None}
    with Session(plan, net, optimizer) as session:
        session.train(batches(2), 3)
        one, other = session.slices("p1")
        assert not np.array_equal(one, other)  # each has its own gradient: that is what the flag is for
        one, other = session.slices("p0")
        assert np.array_equal(one, other)


# ---- what is held, what is sent ----


def test_memory_is_counted_per_rank():
    """Moments of two parameters of 6 float64 on 4 ranks, a learning rate in each rank's copy, two powers of beta."""
    plan, without = planned(OPTIMIZERS["lamb"], **ON)[0], planned(OPTIMIZERS["lamb"])[0]
    scalars = 3 * 8
    assert predict_memory(without).optimizer_bytes == 8 * 2 * 6 * 8 + scalars
    for rank in range(4):
        report = predict_memory(plan, rank=rank)
        assert report.optimizer_bytes == 2 * 2 * 6 * 8 + scalars and report.params_bytes == 8 * 6 * 8
    uneven, moments = planned(OPTIMIZERS["lamb"], 4, 6, **ON)[0], 2 * 6 * 8
    held = [predict_memory(uneven, rank=r).optimizer_bytes - scalars for r in range(4)]
    assert held == [2 * moments, 2 * moments, moments, moments]


def test_traffic_is_one_broadcast_per_parameter_more():
    plan, without = planned(OPTIMIZERS["lamb"], **ON)[0], planned(OPTIMIZERS["lamb"])[0]
    cluster = get_cluster("laptop")
    for rank in range(4):
        more, less = step_time_s(plan, cluster, rank=rank), step_time_s(without, cluster, rank=rank)
        assert more.messages - less.messages == 8
        assert more.sent_bytes - less.sent_bytes == 2 * 6 * 8  # its own two parameters
        assert more.phase("update").flops < less.phase("update").flops / 3


def test_the_timeline_shows_an_update_on_its_owner_s_lane():
    plan, _, _ = planned(OPTIMIZERS["adam-weight-decay"], 2, 2, **ON)
    timeline = predict_timeline(plan, get_cluster("laptop"))
    updates = {(e.rank, e.name.split(".")[0]) for e in timeline.log.filter(phase="update", kind="compute")}
    assert updates == {(0, "p0"), (1, "p1")} and not timeline.symmetric


def test_a_rank_s_view_has_its_own_updates_only():
    plan, _, _ = planned(OPTIMIZERS["lamb"], **ON)
    view = plan.to_dict(rank=2)
    assert {o["name"] for o in view["ops"] if o["phase"] == "update"} == {"optimizer", "p2", "p6"}
    handed = {m["name"]: m["bytes"] for m in view["comm"] if m["kind"] == "broadcast"}
    assert handed == {f"p{n}": (6 * 8 if n in (2, 6) else 0) for n in range(8)}
    text = plan.text(rank=2)
    assert "lamb_m.p6" in text and "lamb_m.p5" not in text and "fusion: 0, root: 1}" in text
    assert Plan.from_dict(json.loads(json.dumps(plan.to_dict()))) == plan


def test_a_plan_that_reads_what_another_rank_holds_is_refused():
    plan, _, _ = planned(OPTIMIZERS["lamb"], **ON)
    program = plan.stages[0].program("update")
    at = next(n for n, i in enumerate(program) if i.owner == 1)

    broadcast, sent = find(plan, "update", "broadcast")
    attrs = tuple((k, 3 if k == "root" else v) for k, v in sent.attrs)
    verify_refuses(changed(plan, "update", at, owner=2), "held by rank 1 alone, and read by")
    verify_refuses(changed(plan, "update", at, owner=9), "there is no rank 9")
    verify_refuses(changed(plan, "update", broadcast, attrs=attrs), "held by rank 0 alone, and read by 3")


# ---- restrictions ----


@pytest.fixture
def context():
    reset_auto_parallel_context()
    yield set_auto_parallel_context
    reset_auto_parallel_context()


@pytest.mark.parametrize("mode", ["stand_alone", "hybrid_parallel"])
def test_other_modes_are_refused_when_the_optimizer_is_made(context, mode):
    context(parallel_mode=mode, enable_parallel_optimizer=True)
    with pytest.raises(RuntimeError, match=f"enable_parallel_optimizer=True with parallel_mode='{mode}'") as caught:
        nn.Lamb(Stack().trainable_params(), 0.1)
    assert isinstance(caught.value, OptimizerParallelError) and isinstance(caught.value, (ParallelLabError, ValueError))


@pytest.mark.parametrize("make", [lambda p: nn.Adam(p), lambda p: nn.Momentum(p, 0.1, 0.9), lambda p: nn.SGD(p, 0.1)])
def test_other_optimizers_are_refused_in_data_parallel(context, make):
    context(parallel_mode="data_parallel", enable_parallel_optimizer=True)
    with pytest.raises(RuntimeError, match=r"in data_parallel mode\. One of Lamb, AdamWeightDecay"):
        make(Stack().trainable_params())


def test_lars_around_lamb_is_not_lamb(context):
    lamb = nn.Lamb(Stack().trainable_params(), 0.1)
    context(parallel_mode="data_parallel", enable_parallel_optimizer=True)
    with pytest.raises(RuntimeError, match="with LARS in data_parallel mode"):
        nn.LARS(lamb)


def test_more_ranks_than_parameters_are_refused_and_as_many_are_not(context):
    context(parallel_mode="data_parallel", enable_parallel_optimizer=True, device_num=16)
    with pytest.raises(RuntimeError, match="16 ranks and 8 parameters"):
        nn.Lamb(Stack(8).trainable_params(), 0.1)
    assert len(nn.Lamb(Stack(16).trainable_params(), 0.1).parameters) == 16


def test_modes_that_cut_operators_take_any_optimizer(context):
    for mode in ("semi_auto_parallel", "auto_parallel"):
        context(parallel_mode=mode, enable_parallel_optimizer=True)
        assert nn.Momentum(Stack().trainable_params(), 0.1, 0.9)


@each_of(
    ("make", "settings", "words"),
    (lambda p: nn.Adam(p), {}, "with Adam in data_parallel mode"),
    (OPTIMIZERS["lamb"], {"device_num": 16}, "16 ranks and 8 parameters"),
    (OPTIMIZERS["lamb"], {"parallel_mode": "hybrid_parallel"}, "'hybrid_parallel'"),
    (OPTIMIZERS["lamb"], {"parallel_mode": "stand_alone", "device_num": 1}, "'stand_alone'"),
)
def test_the_same_is_refused_when_a_plan_is_made(make, settings, words):
    with pytest.raises(OptimizerParallelError, match=words):
        planned(make, **{**ON, **settings})


def test_one_device_to_compare_with_is_compiled_whatever_the_context_says(context):
    context(parallel_mode="data_parallel", enable_parallel_optimizer=True)
    net, x = Stack(), np.zeros((2, 6))
    lamb = nn.Lamb(net.trainable_params(), 0.1)
    plan = compile(net, x, x, loss=nn.MSELoss(), optimizer=lamb, parallel_mode="stand_alone")
    assert plan.owners == () and plan.device_num == 1


def test_recorded_events_show_each_rank_its_own_updates_and_all_broadcasts():
    plan, net, optimizer = planned(OPTIMIZERS["adam-weight-decay"], 2, 4, **ON)
    with Session(plan, net, optimizer) as session:
        session.train(batches(2), 2, record=1)
        for rank in range(2):
            mine = [e for e in session.events if e.rank == rank and e.phase == "update"]
            assert {e.name.split(".")[0] for e in mine if e.kind == "compute"} == {f"p{n}" for n in (rank, rank + 2)}
            sent = {e.name.split(".")[0]: e.bytes for e in mine if e.op == "broadcast"}
            assert sent == {f"p{n}": (6 * 8 if n % 2 == rank else 0) for n in range(4)}
        ends = [[e.end_s for e in session.events if e.rank == rank and e.op == "broadcast"] for rank in range(2)]
        assert ends[0] == ends[1]
