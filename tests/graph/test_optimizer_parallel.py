"""Optimizer parallel where operators are split: which parameters are shared among their replicas, how, and which
messages that takes.

Cases popt_* are recordings (tests/recorded/strategies.json). The tables below are further observations of MindSpore
2.10, compiled for 8 devices, and what its own unit tests pin (tests/ut/python/parallel/test_parallel_optimizer.py): the
shapes, the threshold that counts the whole parameter, the shard sizes that fit and those that do not.
"""

import itertools
import json
import math

import numpy as np
import pytest

from parallel_lab import Parameter, compile, nn, ops
from parallel_lab.base.errors import ContextConflictError, OptimizerParallelError
from parallel_lab.graph.compiler import compile_steps
from parallel_lab.graph.passes.optimizer_shard import choose_shards, shared_layout
from parallel_lab.graph.plan import Plan
from parallel_lab.layout.tensor_layout import TensorLayout
from parallel_lab.train.checkpoint.strategy_file import load_strategy, plan_strategy, save_strategy
from tests.crossed import each_of
from tests.graph.test_recorded_strategies import CHECKS, RECORDED, ROWS
from tests.nets import cell
from tests.recorded import nets

WORLD = tuple(range(8))


class Products(nn.Cell):
    """x @ w for one w per shape, each with its strategy; the results' sums are added."""

    def __init__(self, *weights, dtype=np.float32, **flags):
        super().__init__()
        self.products = []
        for number, (shape, strategy) in enumerate(weights):
            self.insert_param_to_cell(f"w{number}", Parameter(np.ones(shape, dtype), name=f"w{number}", **flags))
            self.products.append(ops.MatMul().shard(strategy) if strategy is not None else ops.MatMul())

    def construct(self, *inputs):
        total = None
        for number, (product, x) in enumerate(zip(self.products, inputs, strict=True)):
            made = ops.reduce_mean(product(x, getattr(self, f"w{number}")))
            total = made if total is None else total + made
        return total


# the network's own result is the loss
FIRST = cell(lambda net, out, label: out + 0.0 * ops.reduce_sum(label))


def planned(*weights, device_num=8, threshold=64, flags=None, **settings):
    net = Products(*weights, **(flags or {}))
    inputs = [*(np.ones((32, shape[0]), np.float32) for shape, _ in weights), np.ones((1,), np.float32)]
    settings = {"enable_parallel_optimizer": True, "parallel_optimizer_threshold": threshold, **settings}
    settings |= {"device_num": device_num, "dataset_strategy": "full_batch"}
    return compile(net, *inputs, loss=FIRST, optimizer=nn.Momentum(net.trainable_params(), 0.1, 0.9), **settings)


def carried(plan, name="w0"):
    """(phase, kind, group of rank 0) of the messages that carry a parameter or its gradient."""
    return [(phase, i.kind, i.group(0)) for phase, i in plan.instructions() if i.attr("parameter") == name]


def stored(plan, name="w0"):
    return plan.value(name).slice_shape


def why(plan, name="w0"):
    """What the notes say of a parameter that is not split."""
    said = [text for kind, text in plan.notes if kind == "optimizer_shard"]
    return next((text for text in said if text.startswith(f"{name} is not sharded: ")), "")


DP = ((8, 1), (1, 1))


# ---- recordings ----


@pytest.fixture(scope="module", params=["popt_dp", "popt_default_threshold"])
def compared(request):
    recorded = RECORDED[f"{request.param}:semi"]
    context = recorded["context"]
    kept = ("device_num", "dataset_strategy", "enable_parallel_optimizer")
    settings = {**context.get("parallel_optimizer_config", {}), **{key: context[key] for key in kept}}
    net, x = nets.Layers(3, 64, ROWS), np.ones((64, 64), "f")
    momentum = nn.Momentum(net.trainable_params(), 0.2, 0.1)
    plan = compile(net, x, x, loss=nn.MSELoss(), optimizer=momentum, **settings)
    return plan.to_dict(rank=0), recorded


@pytest.mark.parametrize("check", CHECKS)
def test_the_plan_is_the_recorded_one(compared, check):
    check(*compared)


# ---- observations of shapes and groups, 8 devices, float32 ----


@each_of(
    ("shape", "strategy", "settings", "local", "gathered", "summed"),
    ((512, 128), DP, {}, (64, 128), WORLD, None),
    ((128, 36), DP, {}, (128, 36), None, WORLD),  # 18 KB
    ((128, 36), DP, {"threshold": 0}, (16, 36), WORLD, None),
    ((36, 512), DP, {}, (36, 512), None, WORLD),  # 72 KB, but 36 rows
    ((512, 512), ((2, 4), (4, 1)), {}, (64, 512), (0, 4), None),
    ((512, 512), ((2, 1), (1, 4)), {}, (256, 128), (0, 4), None),
    ((512, 512), DP, {"optimizer_weight_shard_size": 4}, (128, 512), (0, 1, 2, 3), (0, 4)),
    ((512, 512), DP, {"optimizer_weight_shard_size": 3}, (512, 512), None, WORLD),
)
def test_shapes_and_groups_are_the_observed_ones(shape, strategy, settings, local, gathered, summed):
    plan = planned((shape, strategy), **settings)
    assert stored(plan) == local
    expected = [("forward", "all_gather", gathered), ("backward", "reduce_scatter", gathered)] if gathered else []
    assert carried(plan) == expected + ([("backward", "all_reduce", summed)] if summed else [])
    assert all(plan.value(s.name).slice_shape == local for s in plan.states if s.parameter == "w0")


NARROW = (((48, 64), ((4, 8), (8, 1))), ((64, 16), ((4, 4), (4, 2))))
WIDE = (((48, 1152), ((4, 8), (8, 1))), ((1152, 16), ((4, 4), (4, 2))))


@pytest.mark.quick(2)
@each_of(
    ("weights", "settings", "ways"),
    (NARROW, {"threshold": 1}, (1, 4)),  # 48 rows in 8 slices of 6, which 4 ranks cannot share
    (NARROW, {"threshold": 1, "optimizer_weight_shard_size": 2}, (2, 2)),
    (NARROW, {"threshold": 0, "optimizer_weight_shard_size": 3}, (1, 1)),
    (WIDE, {}, (1, 4)),  # the second has 72 KB, although a slice of it has 9
    (WIDE, {"threshold": 100}, (1, 1)),
)
def test_which_of_two_weights_are_cut_on_32_devices(weights, settings, ways):
    plan = planned(*weights, device_num=32, **settings)
    carrying = [i for _, i in plan.instructions("forward") if i.attr("parameter") is not None]
    shared = {i.attr("parameter"): i.group_size for i in carrying}
    assert tuple(shared.get(name, 1) for name in ("w0", "w1")) == ways


def test_a_shard_size_above_the_replicas_means_all_of_them():
    plan = planned(((64, 64), ((2, 1), (1, 8))), device_num=16, threshold=0, optimizer_weight_shard_size=4)
    assert stored(plan) == (32, 8) and carried(plan)[0] == ("forward", "all_gather", (0, 8))


def test_a_shard_size_above_the_devices_is_refused():
    with pytest.raises(OptimizerParallelError, match="optimizer_weight_shard_size=128 with 32 devices") as caught:
        planned(*NARROW, device_num=32, optimizer_weight_shard_size=128)
    assert isinstance(caught.value, (RuntimeError, ContextConflictError)) and isinstance(caught.value, ValueError)


@pytest.mark.quick(3)
@each_of(
    ("weight", "settings", "words"),
    (((128, 36), DP), {}, "its 18 KB are below parallel_optimizer_threshold=64"),
    (((36, 512), DP), {}, "dim 0 of its slice has 36 elements, which 8 ranks cannot share equally"),
    (((512, 512), DP), {"optimizer_weight_shard_size": 3}, "size=3 makes no equal groups of the 8 ranks"),
    (((512, 512), ((1, 8), (8, 1))), {}, "every rank holds a slice of its own"),
    (((512, 512), DP), {"flags": {"parallel_optimizer": False}}, "parallel_optimizer=False"),
    (((512, 512), DP), {"flags": {"layerwise_parallel": True}}, "layerwise_parallel=True"),
)
def test_a_parameter_that_is_not_cut_has_a_note_that_says_why_and_its_all_reduce(weight, settings, words):
    plan = planned(weight, **settings)
    assert words in why(plan)
    assert stored(plan) == planned(weight, enable_parallel_optimizer=False).value("w0").slice_shape
    assert [kind for _, kind, _ in carried(plan)] == ([] if "a slice of its own" in words else ["all_reduce"])


def test_the_summary_counts_what_is_cut():
    plan = planned(((512, 128), DP), ((128, 36), DP))
    assert ("optimizer_shard", "1 of 2 parameters are sharded over the ranks that hold copies: w0 8 ways") in plan.notes


@each_of("settings", {"optimizer_level": "level2"}, {"optimizer_level": "level1", "gradient_accumulation_shard": False})
def test_levels_1_and_2_are_one_program_without_accumulation(settings):
    plans = [planned(((512, 128), DP), ((512, 512), ((2, 4), (4, 1))), **more) for more in ({}, settings)]
    assert plans[0].stages == plans[1].stages and plans[0].values == plans[1].values


def test_without_training_nothing_is_cut():
    net, x = Products(((512, 128), DP)), np.ones((32, 512), "f")
    plan = compile(net, x, device_num=8, dataset_strategy="full_batch", enable_parallel_optimizer=True)
    assert stored(plan) == (512, 128) and carried(plan) == []


def test_the_message_says_why_it_is_there_and_stands_before_the_first_use():
    plan = planned(((512, 128), DP))
    program = plan.stages[0].program("forward")
    at = next(n for n, i in enumerate(program) if i.kind == "all_gather")
    assert program[at].out in program[at + 1].ins and program[at + 1].op == "matmul"
    assert "the 8 ranks that would hold the same slice of 'w0' keep 1/8" in program[at].reason
    assert program[at].origin.made_by == "optimizer_shard" and program[at].origin.line == program[at + 1].origin.line
    assert "instance name: parallel_optimizer, for: w0" in plan.text()


def test_the_plan_survives_json():
    plan = planned(((512, 128), DP), ((512, 512), DP), optimizer_weight_shard_size=4, optimizer_level="level3")
    assert Plan.from_dict(json.loads(json.dumps(plan.to_dict()))) == plan


def test_decisions_can_be_asked_for():
    net, settings = Products(((512, 128), DP), ((36, 512), DP)), {"device_num": 8, "dataset_strategy": "full_batch"}
    inputs = [np.ones(shape, "f") for shape in ((32, 512), (32, 36), (1,))]
    steps = dict(compile_steps(net, *inputs, loss=FIRST, enable_parallel_optimizer=True, **settings))
    one, other = choose_shards(steps["parallelize"])
    assert (one.name, one.ways, one.replicas, one.why) == ("w0", 8, 8, "")
    assert (other.name, other.layout) == ("w1", None)


# ---- layouts ----


def layouts(shape, device_num):
    """Layouts of a tensor over a device matrix of three axes, whose first dim is split by none, one or two of them."""
    for matrix in ((2, 2, 2), (4, 2, 1), (2, 4), (8,), (1, 8), (2, 3, 4), (24,)):
        if math.prod(matrix) == device_num:
            axes = range(len(matrix))
            for count in range(len(matrix) + 1):
                for rows in itertools.permutations(axes, count):
                    for columns in [(), *((a,) for a in axes if a not in rows)]:
                        layout = TensorLayout(matrix, (rows, columns))
                        if shape[1] % layout.splits[1] == 0:
                            yield layout


@pytest.mark.quick(1)
@pytest.mark.parametrize("device_num", [8, 24])
def test_members_hold_in_group_order_the_pieces_of_the_slice_they_shared(device_num):
    """A rank's group: `ways` consecutive holders of its slice; member i holds piece i; nothing else changes."""
    shape, seen = (576, 24), 0
    numbers = np.arange(math.prod(shape)).reshape(shape)
    for layout in layouts(shape, device_num):
        replicas = layout.replica_count
        for ways in [w for w in range(2, replicas + 1) if replicas % w == 0]:
            found = shared_layout(layout, ways)
            if found is None:
                continue
            seen += 1
            stored, axes = found
            for rank in range(device_num):
                holders = layout.replicas(rank)
                at = holders.index(rank)
                group = holders[at // ways * ways : at // ways * ways + ways]
                assert stored.group(axes, rank) == group
                slices = [numbers[stored.slice_index(shape, member)] for member in group]
                assert np.array_equal(np.concatenate(slices), numbers[layout.slice_index(shape, rank)])
                assert stored.replicas(rank) == holders[at % ways :: ways]
    assert seen > 50


def test_layouts_that_axes_cannot_say_are_left_alone():
    # replicas 0..5 and 6..11 of a slice, 2 x (split) x 3: groups of 4 would straddle the outer axis
    assert shared_layout(TensorLayout((2, 2, 3), ((1,), ())), 4) is None
    assert shared_layout(TensorLayout((24,), ((), ())), 4) is not None


def test_the_model_s_cut_stays_outer():
    """MindSpore's checkpoints: matrix (4, 2, 2), map (2, 1, 0), shared 2 ways -> (2, 4, 2, 2), map ((2, 3), 1, 0)."""
    stored, axes = shared_layout(TensorLayout((2, 4, 2, 2), (2, 1, 0)), 2)
    assert stored == TensorLayout((2, 4, 2, 2), ((2, 3), (1,), (0,))) and axes == (3,)


# ---- several uses, other dtypes ----


def test_a_parameter_that_is_used_twice_is_gathered_and_scattered_once():
    """One weight in two places, as a tied embedding has it."""
    parts = {"one": ops.MatMul().shard(DP), "other": ops.MatMul(transpose_b=True).shard(DP)}
    parts["w"] = Parameter(np.ones((16, 16), np.float32), name="w")
    net, x = cell(lambda net, x: net.other(net.one(x, net.w), net.w), **parts), np.ones((16, 16), "f")
    settings = {"enable_parallel_optimizer": True, "parallel_optimizer_threshold": 0}
    plan = compile(net, x, x, loss=nn.MSELoss(), device_num=8, dataset_strategy="full_batch", **settings)
    assert carried(plan, "w") == [("forward", "all_gather", WORLD), ("backward", "reduce_scatter", WORLD)]


class Halved(nn.Cell):
    """The weight is float32 and used in float16, once or in two places."""

    def __init__(self, uses=1, also_wide=False):
        super().__init__()
        self.w, self.uses, self.also_wide = Parameter(np.ones((16, 16), np.float32), name="w"), uses, also_wide
        self.products = [ops.MatMul().shard(DP) for _ in range(uses)]
        self.sum = ops.ReduceSum().shard(((1, 1),))

    def construct(self, x):
        for product in self.products:
            x = ops.cast(product(ops.cast(x, "float16"), ops.cast(self.w, "float16")), "float32")
        return x + self.sum(self.w) if self.also_wide else x


def sent(plan, name="w"):
    """(kind, dtype) of what travels for a parameter."""
    return [(i.kind, plan.value(i.ins[0]).dtype) for _, i in plan.instructions() if i.attr("parameter") == name]


@pytest.mark.parametrize("uses", [1, 2])
def test_what_is_used_in_half_precision_travels_so_and_is_summed_in_float32(uses):
    """MindSpore's unit test of mixed precision: AllGather with float16, ReduceScatter with float32."""
    x = np.ones((16, 16), "f")
    settings = {"loss": nn.MSELoss(), "device_num": 8, "dataset_strategy": "full_batch"}
    settings |= {"enable_parallel_optimizer": True, "parallel_optimizer_threshold": 0}
    assert sent(compile(Halved(uses), x, x, **settings)) == [("all_gather", "float16"), ("reduce_scatter", "float32")]
    half = compile(Halved(uses), x, x, gradient_fp32_sync=False, **settings)
    assert sent(half) == [("all_gather", "float16"), ("reduce_scatter", "float16")]
    wide = compile(Halved(uses, also_wide=True), x, x, **settings)
    assert sent(wide) == [("all_gather", "float32"), ("reduce_scatter", "float32")]


# ---- the strategy file ----


def test_the_strategy_file_says_who_shares(tmp_path):
    """MindSpore's opt_shard_size: how many share a slice; opt_shard_step: how far their ranks are apart."""
    weights = ((64, 64), ((2, 1), (1, 8))), ((64, 64), ((16, 1), (1, 1))), ((36, 64), ((16, 1), (1, 1)))
    plan = planned(*weights, device_num=16, threshold=0, optimizer_weight_shard_size=4)
    found = load_strategy(save_strategy(plan, tmp_path / "strategy.json")).by_name
    assert [(found[n].opt_shard_size, found[n].opt_shard_step) for n in ("w0", "w1", "w2")] == [(2, 8), (4, 1), (4, 1)]
    assert found["w0"].layout == plan.value("w0").layout and found["w0"].slice_shape == (32, 8)
    fused = planned(*weights, device_num=16, threshold=0, comm_fusion={"allgather": {"mode": "auto", "config": None}})
    shared = plan_strategy(fused).by_name
    steps = [(shared[n].opt_shard_size, shared[n].opt_shard_step) for n in ("w0", "w1", "w2")]
    assert steps == [(2, 8), (16, 1), (0, 0)]
