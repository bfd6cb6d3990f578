"""Optimizer parallel with split operators: who holds what changes, no result does (against one device, and off)."""

import random
from collections import Counter

import numpy as np
import pytest

from parallel_lab import Parameter, Session, Simulator, Tensor, compile, nn, ops
from parallel_lab.base.settings.context import reset_auto_parallel_context, set_auto_parallel_context
from parallel_lab.graph.passes.optimizer_shard import is_parameter_gather
from tests.crossed import crossed, each_of, first
from tests.graph import random_nets, random_steps
from tests.graph.random_choices import Seeded
from tests.graph.random_programs import draw_program
from tests.graph.test_update_totals import LAYOUTS, OPTIMIZERS, eager, net_and_data, planned, trained
from tests.nets import cell

pytestmark = pytest.mark.timeout(120)

THREE_LAYOUTS = ("data parallel", "rows, copied twice", "one split, one not")
LEVELS = ("level1", "level2", "level3")
FUSED = {
    "comm_fusion": {kind: {"mode": "auto", "config": None} for kind in ("allreduce", "allgather", "reducescatter")}
}
ON = {"enable_parallel_optimizer": True, "parallel_optimizer_threshold": 0}


def shard_settings(rng, device_num):
    sizes = [s for s in (2, 4) if s <= device_num]
    return {"optimizer_level": rng.choice(LEVELS), "optimizer_weight_shard_size": rng.choice([-1, *sizes])}


def gathers(plan):
    return sum(is_parameter_gather(i) for _, i in plan.instructions())


# ---- random networks, random strategies ----


@pytest.fixture
def counted(monkeypatch):
    """How many parameters the compiled nets have split: a comparison of plans without any would prove nothing."""
    count = [0]

    def counting(compiled):
        def call(*args, **options):
            made = compiled(*args, **options)
            count[0] += gathers(getattr(made, "plan", made))
            return made

        return call

    monkeypatch.setattr(random_nets, "compile", counting(random_nets.compile))
    monkeypatch.setattr(random_steps, "compile_program", counting(random_steps.compile_program))
    return count


def compare_step(drawn, **settings):
    """The settings of a step that is compiled by itself are the context's."""
    size = settings.pop("optimizer_weight_shard_size")
    config = {"parallel_optimizer_threshold": 0, "optimizer_level": settings["optimizer_level"]}
    config |= {"optimizer_weight_shard_size": size} if size > 0 else {}
    set_auto_parallel_context(parallel_mode="semi_auto_parallel", parallel_optimizer_config=config)
    set_auto_parallel_context(enable_parallel_optimizer=True)
    try:
        random_steps.compare_step(drawn)
    finally:
        reset_auto_parallel_context()


DRAWN = {
    "net": (random_nets.draw_net, random_nets.compare),
    "program": (lambda seed, devices: draw_program(Seeded(seed), devices), random_nets.compare),
    "step": (random_steps.draw_step, compare_step),
}


def compare_some(what, seeds, counted):
    draw, compare = DRAWN[what]
    for seed in seeds:
        devices = random_nets.DEVICES[seed % 5]
        drawn, settings = draw(seed, devices), ON | shard_settings(random.Random(seed), devices)
        print(f"seed {seed}, {devices} ranks, {settings}\n{drawn.text}")
        compare(drawn, **settings)
    assert counted[0] > 0


@pytest.mark.exhaustive
@pytest.mark.parametrize("start", first(1, range(0, 100, 10)))
@pytest.mark.parametrize("what", DRAWN)
def test_what_is_drawn_equals_one_device_with_cut_parameters(what, start, counted):
    compare_some(what, range(start, start + 10), counted)


@pytest.mark.exhaustive
@pytest.mark.parametrize("start", range(1000, 1200, 100))
@pytest.mark.parametrize("what", DRAWN)
def test_more_of_what_is_drawn_equals_one_device(what, start, counted):
    compare_some(what, range(start, start + 100), counted)


# ---- every optimizer, 20 steps ----


@pytest.mark.quick(1)
@pytest.mark.parametrize(("name", "layout", "level"), crossed(OPTIMIZERS, THREE_LAYOUTS, ["level1", "level3"]))
def test_every_optimizer_takes_20_steps_as_one_device(name, layout, level):
    net, data = net_and_data(LAYOUTS[layout])
    optimizer = OPTIMIZERS[name](net.trainable_params())
    plan = planned(net, data, optimizer, **ON, optimizer_level=level)
    assert gathers(plan)
    losses, found, states, scalars = trained(plan, net, optimizer, data, 20)
    alone, _ = net_and_data(LAYOUTS[layout])
    other = OPTIMIZERS[name](alone.trainable_params())
    want_losses, want = eager(alone, other, data, 20)
    np.testing.assert_allclose(losses, want_losses, rtol=1e-9)
    for parameter, value in want.items():
        np.testing.assert_allclose(found[parameter], value, rtol=1e-9, atol=1e-11, err_msg=parameter)
        for kind, state in other.states[parameter].items():
            label = next(s.name for s in plan.states if (s.parameter, s.kind) == (parameter, kind))
            np.testing.assert_allclose(states[label], state, rtol=1e-8, atol=1e-11, err_msg=label)
    if other.loss_scaler:
        assert scalars["loss_scale"] == other.loss_scaler.scale_value


@pytest.mark.quick(1)
@pytest.mark.parametrize("name", ["scaled", "all-together"])
def test_a_step_that_overflows_changes_nothing(name):
    found = []
    for settings in ({}, ON):
        net, data = net_and_data(LAYOUTS["data parallel"], spike=True)
        optimizer = OPTIMIZERS[name](net.trainable_params())
        plan = planned(net, data, optimizer, **settings)
        found.append((trained(plan, net, optimizer, data), gathers(plan)))
    (without, none), (with_it, some) = found
    assert (none, some > 0) == (0, True) and without[3] == pytest.approx(with_it[3], rel=1e-12)
    for parameter, value in without[1].items():
        np.testing.assert_allclose(with_it[1][parameter], value, rtol=1e-9, atol=1e-12)


# ---- the same bits as without it ----

ELEMENTWISE = ("sgd", "momentum", "adam", "rmsprop", "adagrad", "clip-value", "adam-weight-decay")


# Adam's eps is 0 in float16, and the others of its kind divide by roots that underflow there
BITS = [(name, np.float32) for name in ELEMENTWISE] + [
    (name, np.float16) for name in ("sgd", "momentum", "adagrad", "clip-value")
]


@pytest.mark.quick(1)
@pytest.mark.parametrize(("rule", "layout", "level"), crossed(BITS, THREE_LAYOUTS, LEVELS))
def test_sums_over_the_same_ranks_give_the_same_bits(rule, layout, level):
    """reduce_scatter adds up in rank order, as the all_reduce it replaces; element-wise rules then do the same."""
    found, (name, dtype) = [], rule
    for settings in ({}, {**ON, "optimizer_level": level}):
        net, data = net_and_data(LAYOUTS[layout], dtype)
        optimizer = OPTIMIZERS[name](net.trainable_params())
        found.append(trained(planned(net, data, optimizer, **settings), net, optimizer, data, 5))
    assert found[0][0] == found[1][0]
    for parameter, value in found[0][1].items():
        assert value.dtype == dtype and np.isfinite(value).all(), parameter
        assert np.array_equal(found[1][1][parameter], value), parameter


@pytest.mark.quick(1)
@pytest.mark.parametrize("size", [-1, 2, 4])
def test_gradients_mean_divides_by_all_that_held_the_slice(size):
    """MindSpore: 1 / (ranks that held the same slice), however many share one; seen in the first step's gradients."""
    found = []
    for settings in ({}, {**ON, "optimizer_weight_shard_size": size}):
        net, data = net_and_data(LAYOUTS["rows, copied twice" if size == 2 else "data parallel"])
        plan = planned(net, data, None, gradients_mean=True, **settings)
        with Session(plan, net) as session:
            session.train(data, 1)
            found.append(session.gradients())
    net, data = net_and_data(LAYOUTS["data parallel"])
    one = planned(net, data, None, parallel_mode="stand_alone", devices=None)
    with Session(one, net) as session:
        session.train(data, 1)
        whole = session.gradients()
    held = {"w": 2, "w2": 2} if size == 2 else {"w": 8, "w2": 8}
    for name, gradient in found[1].items():
        np.testing.assert_allclose(gradient, found[0][name], rtol=1e-12, atol=1e-15)
        np.testing.assert_allclose(gradient * held[name], whole[name], rtol=1e-10, atol=1e-14)


def test_half_precision_is_added_up_in_single_precision_to_the_end():
    """Addends 2048, 1, 1, ...: float16 sums lose the ones, whether the ranks share in twos or all together."""
    total_of = cell(lambda net, out, label: net.sum(out), sum=ops.ReduceSum().shard(((8, 1),)))
    x = np.ones((8, 8), np.float16)
    x[0] = 2048
    for sync, size, total in ((True, -1, 2055), (True, 2, 2055), (False, -1, 2048), (False, 2, 2054)):
        # in twos: 2048 + 1 is 2048, then three times 1 + 1, and 2048 + 2 + 2 + 2; a float16 has 11 bits, so 2055 is
        # rounded to 2056
        w, product = Parameter(np.ones((8, 2), np.float16), name="w"), ops.MatMul().shard(((8, 1), (1, 1)))
        net = cell(lambda net, x: net.product(x, net.w), w=w, product=product)
        settings = {**ON, "optimizer_weight_shard_size": size, "gradient_fp32_sync": sync, "loss_repeated_mean": False}
        plan = compile(net, x, x[:, :2], loss=total_of, device_num=8, dataset_strategy="full_batch", **settings)
        with Session(plan, net) as session:
            session.train([(x, x[:, :2])], 1)
            found = session.gradients()["w"]
        want = np.full((8, 2), np.float16(total))
        assert found.dtype == np.float16 and np.array_equal(found / np.float16(8), want), (sync, size, found)


# ---- accumulation ----


class Parts(nn.Cell):
    """Two products and a bias; the loss is that of one micro-batch."""

    def __init__(self, micro):
        super().__init__()
        rng = np.random.default_rng(8)
        self.w = Parameter(rng.normal(size=(16, 8)) / 4, name="w")
        self.b = Parameter(rng.normal(size=(8,)), name="b")
        self.v = Parameter(rng.normal(size=(8, 16)) / 4, name="v")
        self.one, self.two = ops.MatMul().shard(((2, 1), (1, 1))), ops.MatMul().shard(((2, 2), (2, 1)))
        self.add = ops.Add().shard(((2, 1), (1,)))

    def construct(self, x, y):
        out = self.two(ops.tanh(self.add(self.one(x, self.w), self.b)), self.v)
        return ops.reduce_mean(ops.square(out - y))


def accumulated(micro, **settings):
    net = Parts(micro)
    rng = np.random.default_rng(9)
    x, y, none = rng.normal(size=(16, 16)), rng.normal(size=(16, 16)), np.zeros((1,))
    optimizer = nn.Adam(net.trainable_params(), 0.01)
    settings |= {"device_num": 8, "dataset_strategy": "full_batch", "optimizer": optimizer}
    given = cell(lambda net, out, label: out + 0.0 * ops.reduce_sum(label))
    plan = compile(nn.GradAccumulation(net, micro), x, y, none, loss=given, **settings)
    with Session(plan, net, optimizer) as session:
        return plan, session.train([(x, y, none)], 20), session.parameters()


@pytest.mark.quick(0)
@each_of(
    ("settings", "sums"),
    ({"gradient_accumulation_shard": False}, 1),
    ({"gradient_accumulation_shard": True}, 4),
    ({"gradient_accumulation_shard": False, "optimizer_level": "level2"}, 4),
    ({"gradient_accumulation_shard": False, "optimizer_level": "level3"}, 4),
)
def test_a_cut_buffer_gets_a_sum_per_micro_batch_and_a_whole_one_a_sum_per_step(settings, sums):
    plan, losses, found = accumulated(4, **ON, **settings)
    _, want_losses, want = accumulated(4)
    instrs = [i for _, i in plan.instructions()]
    counts = {name: Counter(i.kind for i in instrs if i.attr("parameter") == name) for name in ("w", "v")}
    # level3 gathers for every micro-batch, and again for its backward; but backward asks nothing of the input, for
    # which it would need w
    each = 4 if settings.get("optimizer_level") == "level3" else 1
    again = 4 if each > 1 else 0
    assert counts["w"] == {"all_gather": each, "reduce_scatter": sums}
    assert counts["v"] == {"all_gather": each + again, "reduce_scatter": sums}
    np.testing.assert_allclose(losses, want_losses, rtol=1e-10)
    for name, value in want.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-9, atol=1e-12, err_msg=name)


@pytest.mark.exhaustive
def test_accumulated_gradients_equal_one_device():
    _, losses, found = accumulated(4, **ON, gradient_accumulation_shard=True)
    _, want_losses, want = accumulated(4, parallel_mode="stand_alone")
    np.testing.assert_allclose(losses, want_losses, rtol=1e-9)
    for name, value in want.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-8, atol=1e-11, err_msg=name)


# ---- fusion, real processes ----


@pytest.mark.quick(1)
@pytest.mark.parametrize("level", LEVELS)
def test_messages_that_travel_in_buckets_change_no_bit(level):
    found = []
    for settings in ({}, FUSED):
        net, data = net_and_data(LAYOUTS["data parallel"], np.float32)
        optimizer = nn.Adam(net.trainable_params(), 0.01)
        plan = planned(net, data, optimizer, **ON, optimizer_level=level, **settings)
        found.append((trained(plan, net, optimizer, data), [i for _, i in plan.instructions() if i.kind == "start"]))
    (alone, none), (together, started) = found
    assert none == [] and {i.message for i in started} == {"all_gather", "reduce_scatter"}
    assert any(len(i.attr("members") or ()) == 2 for i in started)
    assert alone[0] == together[0]
    for name, value in alone[1].items():
        assert np.array_equal(value, together[1][name]), name


def test_the_step_can_be_looked_at_instruction_by_instruction():
    net, data = net_and_data(LAYOUTS["data parallel"])
    plan = planned(net, data, None, **ON)
    simulator = Simulator(plan, {n: p.asnumpy() for n, p in net.parameters_dict().items()})
    simulator.begin(*data[0])
    seen = []
    while (tick := simulator.next_instruction()) is not None:
        seen.append(tick.instr.kind)
        if is_parameter_gather(tick.instr):
            whole = net.parameters_dict()[tick.instr.attr("parameter")].asnumpy()
            assert all(np.array_equal(simulator.value(tick.instr.out, rank), whole) for rank in range(8))
    assert seen.count("all_gather") == 2 and seen.count("reduce_scatter") == 2


def test_eager_tensors_are_untouched():
    """A plan is made from a network; its Parameters hold whole tensors as before."""
    net, data = net_and_data(LAYOUTS["data parallel"])
    planned(net, data, None, **ON)
    assert net(Tensor(data[0][0])).shape == (16, 16) and all(p.layout is None for p in net.get_parameters())


@pytest.mark.exhaustive
@pytest.mark.parametrize(("level", "shard", "fused"), crossed(LEVELS, [False, True], [False, True]))
def test_a_batch_that_the_context_cuts_in_four_gives_the_same_steps(level, shard, fused):
    found, fusion = [], FUSED if fused else {}
    for settings in ({}, {**ON, **fusion, "optimizer_level": level, "gradient_accumulation_shard": shard}):
        net, _ = net_and_data(LAYOUTS["data parallel"])
        rng = np.random.default_rng(3)
        x, y = rng.normal(size=(32, 32)), rng.normal(size=(32, 16))
        optimizer = nn.Adam(net.trainable_params(), 0.01)
        how = {"device_num": 8, "dataset_strategy": "full_batch", "grad_accumulation_step": 4}
        plan = compile(net, x, y, loss=nn.MSELoss(), optimizer=optimizer, **how, **settings)
        with Session(plan, net, optimizer) as session:
            found.append((session.train([(x, y)], 20), session.parameters()))
    np.testing.assert_allclose(found[1][0], found[0][0], rtol=1e-10)
    for name, value in found[0][1].items():
        np.testing.assert_allclose(found[1][1][name], value, rtol=1e-9, atol=1e-12, err_msg=name)
