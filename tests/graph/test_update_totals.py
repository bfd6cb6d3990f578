"""Rules for whole parameters on ranks with slices: norms, clipping, loss scaling. Compared with one device."""

import json

import numpy as np
import pytest

from parallel_lab import Parameter, Session, Tensor, compile, nn, ops, value_and_grad
from parallel_lab.graph.plan import Plan
from parallel_lab.layout.tensor_layout import TensorLayout
from parallel_lab.processes.shm import WorkerPool
from tests.crossed import crossed, each_of
from tests.graph.drawn_plans import CLIP, OPTIMIZERS
from tests.graph.test_plan_verify import changed, position_of, verify_refuses
from tests.nets import cell
from tests.recorded.nets import Quick

pytestmark = pytest.mark.timeout(60)

# how the two matmuls split (16, 32) x (32, 16) x (16, 16) on 8 ranks
LAYOUTS = {
    "rows, copied twice": (((2, 4), (4, 1)), ((2, 4),), ((2, 4), (4, 1))),
    "data parallel": (((8, 1), (1, 1)), ((8, 1),), ((8, 1), (1, 1))),
    "columns then rows": (((1, 1), (1, 8)), ((1, 8),), ((1, 8), (8, 1))),
    "both dims, and one of each": (((1, 2), (2, 4)), ((1, 8),), ((2, 2), (2, 2))),
    "one split, one not": (((2, 1), (1, 4)), ((2, 4),), ((8, 1), (1, 1))),
}
each_layout = pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)

SPIKE = 2  # of three batches the last has a gradient that is infinite on one sample


def net_and_data(layout, dtype=np.float64, spike=False):
    rng = np.random.default_rng(41)
    net = Quick(32, 16, 16, *layout)
    for p in net.trainable_params():
        p._initial, p._data = None, (rng.normal(size=p.shape) / 5).astype(dtype)
    data = [(rng.normal(size=(16, 32)).astype(dtype), rng.normal(size=(16, 16)).astype(dtype)) for _ in range(3)]
    if spike:
        data[SPIKE][1][5, 3] = np.finfo(dtype).max
    return net, data


def planned(net, data, optimizer, devices=8, **settings):
    settings |= {"device_num": devices, "dataset_strategy": "full_batch"}
    return compile(net, *data[0], loss=nn.MSELoss(), optimizer=optimizer, **settings)


def trained(plan, net, optimizer, data, steps=6, **how):
    with Session(plan, net, optimizer, **how) as session:
        losses = session.train(data, steps)
        return losses, session.parameters(), session.values(s.name for s in plan.states), session.scalars()


def eager(net, optimizer, data, steps=6):
    """The same training with the tape, on whole arrays."""
    scaler, losses = optimizer.loss_scaler, []

    def forward(x, y):
        loss = nn.MSELoss()(net(x), y)
        losses.append(float(loss.asnumpy()))
        return scaler.scale(loss) if scaler else loss

    step = value_and_grad(forward, None, optimizer.parameters)
    with np.errstate(over="ignore", invalid="ignore"):
        for i in range(steps):
            optimizer(step(*map(Tensor, data[i % len(data)]))[1])
    return losses, {n: p.asnumpy() for n, p in net.parameters_dict().items()}


def check(layout, make, spike=False):
    net, data = net_and_data(layout, spike=spike)
    optimizer = make(net.trainable_params())
    plan = planned(net, data, optimizer)
    losses, found, _, scalars = trained(plan, net, optimizer, data)
    alone, _ = net_and_data(layout, spike=spike)
    other = make(alone.trainable_params())
    want_losses, want = eager(alone, other, data)
    np.testing.assert_allclose(losses, want_losses, rtol=1e-10)
    for name, value in want.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-9, atol=1e-12, err_msg=name)
    if other.loss_scaler:
        assert scalars["loss_scale"] == other.loss_scaler.scale_value
    return plan, optimizer


@pytest.mark.quick(1)
@pytest.mark.parametrize(("name", "layout"), crossed(OPTIMIZERS, LAYOUTS))  # most are exhaustive
def test_every_optimizer_moves_slices_as_one_device_moves_the_whole(name, layout):
    plan, optimizer = check(LAYOUTS[layout], OPTIMIZERS[name])
    assert plan.optimizer == optimizer.rule
    assert Plan.from_dict(json.loads(json.dumps(plan.to_dict()))) == plan


@pytest.mark.exhaustive
def test_clipping_changes_the_training():
    """So that the comparison above is one of clipped steps."""
    for clip in (CLIP, nn.GradientClip("norm", 0.03), nn.GradientClip("value", (-0.002, 0.001))):
        results = []
        for setting in (clip, None):
            net, data = net_and_data(LAYOUTS["data parallel"])
            optimizer = nn.Momentum(net.trainable_params(), 0.1, 0.9, clip=setting)
            results.append(trained(planned(net, data, optimizer), net, optimizer, data)[1]["w"])
        assert np.abs(results[0] - results[1]).max() > 1e-3


# ---- messages ----


def update_messages(layout, make):
    net, data = net_and_data(layout)
    plan = planned(net, data, make(net.trainable_params()))
    return plan, [i for i in plan.stages[0].program("update") if i.is_communication]


def test_copies_need_no_message():
    _, messages = update_messages(LAYOUTS["data parallel"], OPTIMIZERS["all-together"])
    assert messages == []


@pytest.mark.exhaustive
def test_rules_without_norms_need_no_message():
    with_sums = {"lamb", "lars", "lars-groups", "adafactor", "clip-norm", "clip-global", "clipped-adam", "scaled"}
    for name in OPTIMIZERS.keys() - with_sums - {"all-together", "centralized", "all-centralized"}:
        assert update_messages(LAYOUTS["both dims, and one of each"], OPTIMIZERS[name])[1] == []


@each_of(
    ("layout", "groups"),
    # w and w2 are split alike: one message for both, among the ranks with different slices
    ("rows, copied twice", [(0, 1, 2, 3)]),
    ("columns then rows", [tuple(range(8))]),
    ("one split, one not", [(0, 1, 2, 3)]),  # w2 is whole everywhere
    ("both dims, and one of each", [tuple(range(8)), (0, 1, 2, 3)]),
)
def test_the_global_norm_is_summed_once_per_way_of_cutting(layout, groups):
    _, messages = update_messages(LAYOUTS[layout], OPTIMIZERS["clip-global"])
    assert sorted(m.group(0) for m in messages) == sorted(groups)
    for m in messages:
        assert (m.kind, m.attr("reduce")) == ("all_reduce", "sum")
        assert "the global norm, by which gradients are clipped, counts every element once" in m.reason
        assert f"each of {m.group_size} ranks holds another slice" in m.reason


def test_lamb_asks_for_two_norms_per_parameter_that_is_cut():
    plan, messages = update_messages(LAYOUTS["one split, one not"], OPTIMIZERS["lamb"])
    assert [m.name for m in messages] == ["w", "w"]
    assert all(plan.value(m.out).slice_shape == () for m in messages)


def test_adafactor_sums_a_mean_along_a_dim_among_the_ranks_that_split_it():
    """w is (32, 16) in 1 x 8 slices, then w2 (16, 16) in 8 x 1: rows whole in one, columns in the other."""
    plan, messages = update_messages(LAYOUTS["columns then rows"], OPTIMIZERS["adafactor"])
    sent = [(m.name, plan.value(m.out).slice_shape) for m in messages]
    # a mean along a dim that is split, and the rms of parameter and step; w2's mean of rows is a mean of a split dim
    assert sorted(sent) == sorted(
        [("w", ()), ("w", (32,)), ("w", ()), ("w2", ()), ("w2", (16,)), ("w2", ()), ("w2", ())]
    )
    states = {s.name: plan.value(s.name).slice_shape for s in plan.states if s.parameter}
    assert states == {
        **{"exp_avg_sq_row.w": (32,), "exp_avg_sq_col.w": (2,), "exp_avg.w": (32, 2)},
        **{"exp_avg_sq_row.w2": (2,), "exp_avg_sq_col.w2": (16,), "exp_avg.w2": (2, 16)},
    }


def test_the_messages_are_in_the_view_of_a_rank():
    plan, _ = update_messages(LAYOUTS["columns then rows"], OPTIMIZERS["lamb"])
    shown = [c for c in plan.to_dict(rank=3)["comm"] if c["phase"] == "update"]
    assert [(c["op"], c["group"], c["bytes"]) for c in shown] == [("AllReduce", list(range(8)), 8)] * 4
    assert "the norm of the step of 'w' for Lamb counts all elements" in plan.text()


# ---- the plan's own check ----


@each_of(
    ("layout", "matrix", "words"),
    ("rows, copied twice", (8,), "has its partial sums on ranks"),  # counts copies twice
    ("columns then rows", (2, 4), "does not leave"),  # over half of the slices
)
def test_a_norm_over_other_ranks_is_refused(layout, matrix, words):
    plan, (message,) = update_messages(LAYOUTS[layout], OPTIMIZERS["clip-global"])
    position = plan.stages[0].program("update").index(message)
    verify_refuses(changed(plan, "update", position, axes=(0,), device_matrix=matrix), words)


def test_a_norm_of_one_slice_only_is_refused():
    plan, (message,) = update_messages(LAYOUTS["rows, copied twice"], OPTIMIZERS["clip-global"])
    position, reader = position_of(plan, "update", lambda i: message.out in i.ins)
    forgotten = tuple(message.ins[0] if n == message.out else n for n in reader.ins)
    words = "is a partial sum, and updates take whole gradients"
    verify_refuses(changed(plan, "update", position, ins=forgotten), words)


# ---- overflow ----


@pytest.mark.quick(1)
@pytest.mark.parametrize(("layout", "name"), crossed(LAYOUTS, ["scaled", "all-together"]))
def test_an_overflow_on_one_sample_skips_the_step_on_every_rank(layout, name):
    """Batch 2 of 3 gives gradients that are infinite; parameters, states and beta powers stay, the scale halves."""
    check(LAYOUTS[layout], OPTIMIZERS[name], spike=True)


@pytest.mark.parametrize("column", [0, 3, 7])
def test_a_gradient_that_overflows_on_one_rank_only_stops_all(column):
    """x w, split in columns: a gradient in one column exists on one rank only."""
    w, matmul = Parameter(np.ones((4, 8)), name="w"), ops.MatMul().shard(((1, 1), (1, 8)))
    net, rng = cell(lambda net, x: net.matmul(x, net.w), w=w, matmul=matmul), np.random.default_rng(3)
    x, good = rng.normal(size=(8, 4)), rng.normal(size=(8, 8))
    bad = good.copy()
    bad[2, column] = np.finfo(np.float64).max
    optimizer = nn.Momentum(net.trainable_params(), 0.1, 0.9, loss_scaler=nn.DynamicLossScaler(64, 2, 10))
    plan = planned(net, [(x, good)], optimizer)
    assert plan.value("w").slice_shape == (4, 1)
    with Session(plan, net, optimizer) as session:
        session.train([(x, good)], 1)
        before = session.slices("w"), session.slices("moments.w")
        session.train([(x, bad)], 1)
        assert sum(not np.isfinite(part).all() for part in session.slices(dict(plan.gradients)["w"])) == 1
        np.testing.assert_array_equal(before, (session.slices("w"), session.slices("moments.w")))
        assert session.scalars()["loss_scale"] == 32
        session.train([(x, good)], 1)
        assert all((old != new).any() for old, new in zip(before[0], session.slices("w"), strict=True))


@pytest.mark.exhaustive
def test_a_scale_that_is_a_power_of_two_changes_no_bit():
    results = []
    for scaler in (None, nn.StaticLossScaler(1024)):
        net, data = net_and_data(LAYOUTS["rows, copied twice"], np.float32)
        optimizer = nn.Adam(net.trainable_params(), 0.01, loss_scaler=scaler)
        plan = planned(net, data, optimizer)
        results.append(trained(plan, net, optimizer, data))
        with Session(plan, net, optimizer) as session:
            session.train(data, 1)
            results[-1] += (session.gradients(),)
    assert results[0][0] == results[1][0]
    for name, value in results[0][1].items():
        np.testing.assert_array_equal(results[1][1][name], value)
        # the plan's gradients carry the scale
        np.testing.assert_array_equal(results[1][4][name], 1024 * results[0][4][name])


def test_without_drop_overflow_update_nothing_is_searched():
    make = lambda p: nn.SGD(p, 0.1, loss_scaler=nn.FixedLossScaleManager(8.0, drop_overflow_update=False))  # noqa: E731
    plan, messages = update_messages(LAYOUTS["columns then rows"], make)
    assert messages == []
    assert not any(i.op in ("count_nonfinite", "choose") for i in plan.stages[0].program("update"))
    check(LAYOUTS["columns then rows"], make)


def test_a_parameter_may_be_called_loss_scale():
    net, data = net_and_data(LAYOUTS["data parallel"])
    net.weight.name = "loss_scale"
    optimizer = OPTIMIZERS["scaled"](net.trainable_params())
    plan = planned(net, data, optimizer)
    alone, _ = net_and_data(LAYOUTS["data parallel"])
    want = eager(alone, OPTIMIZERS["scaled"](alone.trainable_params()), data)
    np.testing.assert_allclose(trained(plan, net, optimizer, data)[0], want[0], rtol=1e-10)


# ---- float16 ----


@pytest.mark.exhaustive
@each_layout
def test_float16_compute_with_float32_parameters_follows_float32(layout):
    results = []
    for dtype in (None, np.float16):
        net, data = net_and_data(layout, np.float32)
        if dtype:
            net.to_float(dtype)
        optimizer = nn.Momentum(net.trainable_params(), 0.1, 0.9, loss_scaler=nn.DynamicLossScaler(2**10, 2, 100))
        plan = planned(net, data, optimizer)
        results.append(trained(plan, net, optimizer, data, 8))
    assert plan.value("matmul").dtype == "float16"
    assert {plan.value(n).dtype for pair in plan.gradients for n in pair} == {"float32"}
    # float16 rounds to 5e-4; eight steps of a net of two layers add a few of these
    np.testing.assert_allclose(results[1][0], results[0][0], rtol=5e-3)
    assert results[1][0] != results[0][0]
    assert results[1][3]["loss_scale"] == 2**10


def test_a_weight_is_cast_where_its_slice_lies():
    """No message for the cast: each rank casts what it holds."""
    net, data = net_and_data(LAYOUTS["columns then rows"], np.float32)
    plain = compile(net, data[0][0], device_num=8, dataset_strategy="full_batch")
    half = compile(net.to_float(np.float16), data[0][0], device_num=8, dataset_strategy="full_batch")
    casts = {i.ins[0]: half.value(i.out) for _, i in half.instructions() if i.op == "cast"}
    assert casts["w"].layout.same_placement(plain.value("w").layout)
    assert casts["w2"].layout.same_placement(plain.value("w2").layout)
    assert not [i for _, i in half.instructions() if i.is_communication and i.ins[0] in ("w", "w2")]
    assert half.value("w") == plain.value("w")


def test_a_cast_parameter_may_be_reshaped_and_returned():
    def construct(net, x):
        return ops.matmul(x, ops.reshape(net.w, (6, 4))), ops.cast(net.w, dtype="float64")

    net = cell(construct, w=Parameter(np.arange(24, dtype=np.float32) / 8, name="w")).to_float(np.float16)
    x = np.random.default_rng(0).normal(size=(8, 6)).astype(np.float32)
    plan = compile(net, x, device_num=8, dataset_strategy="full_batch")
    with Session(plan, net) as session:
        product, whole = session.outputs(x)
    np.testing.assert_allclose(product, x @ (np.arange(24).reshape(6, 4) / 8), rtol=1e-2, atol=1e-2)
    np.testing.assert_array_equal(whole, np.arange(24) / 8)


# ---- processes ----


@pytest.fixture(scope="module")
def pool():
    with WorkerPool(8) as workers:
        yield workers


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["lars", "clip-global", "all-together"])
def test_processes_and_simulator_agree_bit_for_bit(name, pool):
    """With clipping, a schedule, a loss scale, an overflow, and float16."""
    net, data = net_and_data(LAYOUTS["both dims, and one of each"], np.float32, spike=True)
    if name == "all-together":
        net.to_float(np.float16)
    else:
        data = data[:SPIKE]
    optimizer = OPTIMIZERS[name](net.trainable_params())
    plan = planned(net, data, optimizer)
    executors = ({"executor": "processes", "pool": pool}, {"executor": "simulator"})
    results = [trained(plan, net, optimizer, data, 7, **how) for how in executors]
    assert results[0][0] == results[1][0]
    for mine, theirs in zip(results[0][1:], results[1][1:], strict=True):
        assert mine.keys() == theirs.keys()
        for key in mine:
            np.testing.assert_array_equal(mine[key], theirs[key], err_msg=key)
    assert len(set(results[0][0])) > 3


@pytest.mark.exhaustive
def test_one_device_has_no_message_and_the_same_training():
    net, data = net_and_data(LAYOUTS["rows, copied twice"])
    optimizer = OPTIMIZERS["all-together"](net.trainable_params())
    plan = planned(net, data, optimizer, parallel_mode="stand_alone", devices=None)
    assert not [i for _, i in plan.instructions() if i.is_communication]
    losses, others = (trained(one, net, optimizer, data)[0] for one in (plan, planned(net, data, optimizer)))
    np.testing.assert_allclose(losses, others, rtol=1e-10)
    assert TensorLayout.replicated(1, 0).same_placement(plan.value("loss_scale").layout)
