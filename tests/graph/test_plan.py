"""The plan: a rank's view as text and data, JSON round trip, differences, size independent of the number of devices."""

import hashlib
import json
from dataclasses import fields, is_dataclass

import numpy as np
import pytest

from parallel_lab import LayoutError, Plan, PlanError, compile, nn
from parallel_lab.base.settings.config import ParallelConfig
from tests.crossed import each_of
from tests.recorded.nets import Chain, MegatronMlp, Mlp, OpPar, Quick

S = ((2, 4), (4, 1))
X, Y = np.ones((16, 32), np.float32), np.ones((16, 16), np.float32)
RANKS = range(8)


def quick_plan(*triple, optimizer=None, **settings):
    net = Quick(32, 16, 16, *triple)
    settings = {"device_num": 8, "dataset_strategy": "full_batch"} | settings
    settings["optimizer"] = optimizer(net.trainable_params()) if optimizer else None
    return compile(net, X, Y, loss=nn.MSELoss(), **settings)


@pytest.fixture(scope="module")
def seed_plan():
    """The net and the strategies of the quickstart's printed IR."""
    return quick_plan(S, ((2, 4),), S)


# ---- what the quickstart prints ----


@pytest.mark.parametrize("rank", RANKS)
def test_slices_are_those_of_the_quickstart(seed_plan, rank):
    """x (16, 32) and w (32, 16) under ((2, 4), (4, 1)): (8, 8) x (8, 16) -> (8, 16); then (8, 4) x (4, 16)."""
    ops = {o["name"]: o for o in seed_plan.to_dict(rank=rank)["ops"] if o["phase"] == "forward"}
    assert ops["matmul"]["in_slice"] == [[8, 8], [8, 16]]
    assert ops["matmul"]["out_slice"] == [[8, 16]]
    assert ops["relu"]["in_slice"] == ops["relu"]["out_slice"] == [[8, 4]]
    assert ops["matmul2"]["in_slice"] == [[8, 4], [4, 16]]
    assert ops["matmul2"]["out_slice"] == [[8, 16]]
    assert ops["matmul"]["in_global"] == [[16, 32], [32, 16]]
    assert ops["matmul"]["strategy"] == [[2, 4], [4, 1]]


@pytest.mark.parametrize("rank", RANKS)
def test_messages_of_the_first_product_go_over_the_ranks_of_its_row(seed_plan, rank):
    row = list(range(0, 4)) if rank < 4 else list(range(4, 8))
    messages = [m for m in seed_plan.to_dict(rank=rank)["comm"] if m["phase"] == "forward"]
    sums = [m for m in messages if m["kind"] == "all_reduce" and m["in_shape"] == [8, 16]]
    assert [m["group"] for m in sums] == [row, row]
    for m in sums:
        assert (m["op"], m["reduce"], m["out_shape"], m["bytes"]) == ("AllReduce", "sum", [8, 16], 8 * 16 * 4)


def test_the_slice_between_product_and_relu_sends_nothing(seed_plan):
    """From (8, 16) on four ranks each to (8, 4): every rank already holds its columns."""
    first = next(m for m in seed_plan.to_dict(rank=0)["comm"] if m["kind"] == "slice" and m["in_shape"] == [8, 16])
    assert (first["out_shape"], first["group"], first["bytes"], first["phase"]) == ([8, 4], [], 0, "forward")
    assert "matmul" in first["reason"] and "relu" in first["reason"]


@each_of(
    "line",
    "= MatMul(",
    "{in_strategy: ((2, 4), (4, 1))}",
    "(<Tensor[Float32], (8, 8)>, <Tensor[Float32], (8, 16)>) -> (<Tensor[Float32], (8, 16)>)",
    "(<Tensor[Float32], (8, 4)>, <Tensor[Float32], (4, 16)>) -> (<Tensor[Float32], (8, 16)>)",
    "{group_ranks: 0-1-2-3, fusion: 0, op: sum}",
    "StridedSlice(",
    "(0, 0), (8, 4), (1, 1))",
    "{in_strategy: ((2, 4),)}",
    "# scope: (Default/network-WithLossCell/_backbone-Quick)",
    "# why: 'matmul' sums over 'k', split 4 ways",
    "nets.py(",
)
def test_text_reads_like_the_printed_ir(seed_plan, line):
    assert line in seed_plan.text(rank=0)


def test_text_of_another_rank_has_its_own_groups_and_offsets(seed_plan):
    text = seed_plan.text(rank=6)
    assert "rank 6 of 8" in text
    assert "{group_ranks: 4-5-6-7, fusion: 0, op: sum}" in text
    assert "(0, 8), (8, 12), (1, 1))" in text  # columns 8..12 of its (8, 16) for ReLU
    assert "group_ranks: 0-1-2-3," not in text


def test_text_names_every_phase_and_where_inputs_lie(seed_plan):
    text = quick_plan(S, optimizer=lambda p: nn.Momentum(p, 0.1, 0.9)).text(rank=5)
    where = "%w : <Tensor[Float32], (8, 16)> = [8:16, :] of (32, 16)"
    for expected in ("# forward (0F0)", "# backward (0B0)", "# update (0update0)", where, "%w <- "):
        assert expected in text
    assert "# backward" not in seed_plan.text(phases=("forward",))


# ---- the view of a rank as data ----


def test_view_has_the_fields_that_the_design_promises(seed_plan):
    view = seed_plan.to_dict(rank=3)
    assert {"rank", "device_num", "ops", "params", "inputs", "comm"} <= set(view)
    assert (view["rank"], view["device_num"]) == (3, 8)
    keys = {"name", "op", "strategy", "in_global", "out_global", "in_slice", "out_slice", "phase", "origin"}
    assert all(keys <= set(o) for o in view["ops"])
    keys = {"kind", "op", "group", "in_shape", "out_shape", "dtype", "bytes", "phase", "fusion", "reduce"}
    assert all({*keys, "reason", "origin"} <= set(m) for m in view["comm"])
    assert all({"name", "global", "slice", "layout", "index"} <= set(p) for p in view["params"] + view["inputs"])
    assert json.loads(json.dumps(view)) == view


@pytest.mark.parametrize("rank", RANKS)
def test_parameter_index_of_a_rank_follows_its_coordinates(seed_plan, rank):
    """w (32, 16) is split 4 ways in dim 0 along the columns of the 2 x 4 ranks."""
    column = rank % 4
    w, w2 = seed_plan.to_dict(rank=rank)["params"]
    assert (w["name"], w["slice"], w["index"]) == ("w", [8, 16], f"[{8 * column}:{8 * column + 8}, :]")
    assert (w2["name"], w2["slice"], w2["index"]) == ("w2", [4, 16], f"[{4 * column}:{4 * column + 4}, :]")


def test_mirror_sums_over_the_ranks_with_the_same_slice(seed_plan):
    for rank in RANKS:
        back = [m for m in seed_plan.to_dict(rank=rank)["comm"] if m["phase"] == "backward" and m["fusion"] == 1]
        mirrors = [m["group"] for m in back if m["in_shape"] in ([8, 16], [4, 16])]
        assert mirrors == [[rank % 4, rank % 4 + 4]] * 2


def test_every_message_says_why_and_from_which_line(seed_plan):
    for message in seed_plan.to_dict(rank=0)["comm"]:
        assert len(message["reason"]) > 20
        assert message["origin"]["made_by"] in ("parallelize", "differentiate")
        assert message["origin"]["line"] > 0


@pytest.mark.parametrize("rank", [-1, 8, 100])
def test_a_rank_that_does_not_exist_is_refused(seed_plan, rank):
    for call in (seed_plan.text, seed_plan.to_dict):
        with pytest.raises((PlanError, LayoutError), match=f"rank {rank} does not exist"):
            call(rank=rank)


def test_a_value_that_does_not_exist_is_refused_with_near_names(seed_plan):
    with pytest.raises(PlanError, match=r"no value 'matmul3'.*matmul2"):
        seed_plan.value("matmul3")


# ---- JSON ----

PLANS = {
    "quick": lambda: quick_plan(S, ((2, 4),), S),
    "data_parallel": lambda: compile(
        Quick(32, 16, 16, S), X[:2], Y[:2], loss=nn.MSELoss(), device_num=8, dataset_strategy="data_parallel"
    ),
    "momentum": lambda: quick_plan(S, optimizer=lambda p: nn.Momentum(p, 0.1, 0.9)),
    "adam_alltoall": lambda: quick_plan(
        S, None, ((8, 1), (1, 1)), optimizer=lambda p: nn.Adam(p, 0.01), enable_alltoall=True
    ),
    "means": lambda: quick_plan(S, gradients_mean=True, loss_repeated_mean=False),
    "reshape": lambda: compile(
        OpPar(True), np.ones((32, 1, 28, 28), "f"), np.ones((32, 10), "f"), loss=nn.MSELoss(), device_num=8,
        dataset_strategy="full_batch",
    ),
    "megatron": lambda: compile(
        MegatronMlp(64, 256, 2, 4), np.ones((16, 64), "f"), np.ones((16, 64), "f"), loss=nn.MSELoss(), device_num=8
    ),
    "forward": lambda: compile(Mlp(8, 8, 8), np.ones((8, 4), "f"), device_num=4, dataset_strategy=((1, 2),)),
    "constants": lambda: compile(
        lambda x: x * np.arange(32.0) + float("-inf"), np.ones((16, 32)), device_num=8, dataset_strategy="full_batch"
    ),
}  # fmt: skip


@pytest.mark.quick(2)
@pytest.mark.parametrize("name", PLANS)
def test_json_round_trip_gives_an_equal_plan_with_the_same_digest(name):
    plan = PLANS[name]()
    back = Plan.from_dict(json.loads(json.dumps(plan.to_dict())))
    assert back == plan
    assert back.notes == plan.notes
    assert back.digest == plan.digest
    assert hash(back) == hash(plan)
    assert back.text(rank=1) == plan.text(rank=1)


def test_a_plan_is_frozen_all_the_way_down():
    plan = PLANS["momentum"]()

    def look(value):
        if is_dataclass(value):
            with pytest.raises(AttributeError):
                setattr(value, fields(value)[0].name, None)
            for f in fields(value):
                look(getattr(value, f.name))
        elif isinstance(value, tuple):
            for v in value:
                look(v)
        else:
            assert value is None or isinstance(value, (str, int, float, bool)), value

    look(plan)


def test_compiling_twice_gives_the_same_digest_and_another_strategy_another():
    assert quick_plan(S).digest == quick_plan(S).digest
    digests = {
        quick_plan(*t, **k).digest
        for t, k in [((S,), {}), ((), {}), ((S, ((2, 4),)), {}), ((S,), {"gradients_mean": True})]
    }
    assert len(digests) == 4


@each_of(
    "data",
    None,
    [],
    {},
    {"version": 2, "plan": {}},
    {"version": 1},
    *({"version": 1, "plan": p} for p in (None, {"is": "Plan"}, {"is": "Thing"}, {"no": 1}, [{"is": "Origin"}])),
)
def test_data_that_is_not_a_plan_is_refused(data):
    with pytest.raises(PlanError, match=r"Plan.from_dict"):
        Plan.from_dict(data)


def test_a_plan_changed_in_its_json_is_verified():
    data = quick_plan(S).to_dict()
    data["plan"]["outputs"] = ["nothing"]
    with pytest.raises(PlanError, match="checksum does not fit"):
        Plan.from_dict(data)
    whole = json.dumps({"plan": data["plan"], "version": data["version"]}, sort_keys=True)
    data["sha256"] = hashlib.sha256(whole.encode()).hexdigest()
    with pytest.raises(PlanError, match="'nothing' is never made"):
        Plan.from_dict(data)


def test_a_damaged_number_in_a_saved_plan_is_reported():
    """No rule of plans tells one number from another: here what the loss is divided by."""
    text = json.dumps(quick_plan(S).to_dict())
    assert '"value", 0.125' in text
    with pytest.raises(PlanError, match="checksum does not fit"):
        Plan.from_dict(json.loads(text.replace('"value", 0.125', '"value", 0.625')))


# ---- differences ----


def test_diff_of_equal_plans_is_empty():
    assert quick_plan(S).diff(quick_plan(S)) == ""


def test_diff_shows_the_changed_strategy_and_the_message_it_saves():
    before, after = quick_plan(S, ((2, 4),), S), quick_plan(((2, 1), (1, 4)), ((2, 4),), S)
    lines = before.diff(after).splitlines()
    assert any(line.startswith("-") and "in_strategy: ((2, 4), (4, 1))" in line for line in lines)
    assert any(line.startswith("+") and "in_strategy: ((2, 1), (1, 4))" in line for line in lines)
    assert any(line.startswith("-") and "AllReduce" in line for line in lines)


def test_diff_of_a_fused_plan_shows_its_buckets_and_nothing_that_is_only_numbered_anew():
    """Everything behind the first bucket once differed, because its number did."""
    x = np.ones((8, 4), np.float32)

    def plan(**settings):
        net = nn.SequentialCell([nn.Dense(4, 4), nn.ReLU(), nn.Dense(4, 4)])  # names of parameters begin with a number
        settings |= {"optimizer": nn.Momentum(net.trainable_params(), 0.1, 0.9), "device_num": 4}
        return compile(net, x, x, loss=nn.MSELoss(), dataset_strategy="full_batch", **settings)

    before, after = plan(), plan(comm_fusion={"allreduce": {"mode": "auto", "config": None}})
    lines = [line for line in before.diff(after).splitlines() if not line[1:].lstrip().startswith(("#", ":", "-", "+"))]
    changed = [line for line in lines if line[0] in "+-"]
    assert sum(line.startswith("+%") and " = Split(%bucket1.done" in line for line in changed) == 4
    assert sum(line.startswith("-%") and " = AllReduce(" in line for line in changed) == 4
    # 4 messages leave; a concat, a start, a wait and 4 splits come
    assert len(changed) == 4 + 3 + 4, changed


# ---- size ----


def size(plan):
    """Instructions, values, and characters of one rank's JSON."""
    return sum(1 for _ in plan.instructions()), len(plan.values)


def test_a_plan_for_4096_devices_has_as_many_instructions_as_one_for_8():
    def chain(devices, batch):
        x = np.ones((batch, 64), "f")
        rows, columns = devices // 4, ((devices // 4, 1), (1, 4))
        net = Chain([64, 64, 64], [columns, ((rows, 4), (4, 1))])
        optimizer, settings = nn.Momentum(net.trainable_params(), 0.1, 0.9), {"dataset_strategy": "full_batch"}
        return compile(net, x, x, loss=nn.MSELoss(), optimizer=optimizer, device_num=devices, **settings)

    small, large = chain(8, 8), chain(4096, 4096)
    assert size(small) == size(large)
    few, many = (len(json.dumps(plan.to_dict())) for plan in (small, large))
    assert abs(few - many) < 0.05 * few
    groups = {tuple(m["group"]) for m in large.to_dict(rank=4095)["comm"] if len(m["group"]) == 4}
    assert groups == {(4092, 4093, 4094, 4095)}


def test_config_is_part_of_the_plan():
    plan = quick_plan(S, gradients_mean=True)
    assert plan.config == ParallelConfig(8, 0, "semi_auto_parallel", "full_batch", True, True, False)
