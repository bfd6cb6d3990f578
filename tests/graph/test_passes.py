"""The list of passes as data; strategies and dataset strategies that are taken or refused; gradient conventions.

Numbers are compared with the eager tape on one device (float64).
"""

from dataclasses import replace

import numpy as np
import pytest

from parallel_lab import ContextError, Parameter, StrategyError, compile, compile_steps, nn, ops
from parallel_lab.base.errors import ContextStrategyError, PlanError
from parallel_lab.base.settings.config import ParallelConfig
from parallel_lab.graph.passes import PASSES
from parallel_lab.graph.passes.dataset_strategy import dataset_splits
from parallel_lab.layout.named_layout import Layout, strategy_counts
from tests.crossed import each_of
from tests.graph.one_device import S, X, Y, alone, check_equal, draw, plan_of, quick, simulated
from tests.nets import cell
from tests.recorded.nets import SharedWeight
from tests.refusals import refused

# ---- passes as data ----


def test_steps_are_the_passes_in_order_and_each_leaves_a_note():
    net = quick(S)
    rule = nn.SGD(net.trainable_params(), 0.1)
    steps = compile_steps(net, X, Y, loss=nn.MSELoss(), optimizer=rule, device_num=8, dataset_strategy="full_batch")
    names = [n for n, _ in steps]
    assert names == ["trace", "strategies", "parallelize", "differentiate", "fuse", "update", "plan"]
    assert [n for n, _ in steps[-1][1].notes] == names[:-1]
    assert [len(draft.programs) for _, draft in steps[:-1]] == [0, 0, 1, 2, 2, 3]


def test_without_a_loss_nothing_is_differentiated():
    plan = plan_of(quick(S), X, loss=None)
    assert [p for p, _ in plan.stages[0].programs] == ["forward"]
    assert plan.gradients == ()


def test_dropping_differentiate_keeps_the_forward_program_as_it_was():
    others = [p for p in PASSES if p.name != "differentiate"]
    whole, part = plan_of(quick(S), X, Y), plan_of(quick(S), X, Y, passes=others)
    assert part.stages[0].program("forward") == whole.stages[0].program("forward")
    assert part.stages[0].program("backward") == ()
    assert [str(a) for a in part.stages[0].actions] == ["0F0"]


def test_a_pass_of_ones_own_can_change_strategies():
    """A lesson's pass: ReLU on rows only. The diff of the plans shows what it did."""

    def rows(draft):
        nodes = tuple(replace(n, strategy=((8, 1),)) if n.op == "relu" else n for n in draft.graph.nodes)
        return replace(draft, graph=replace(draft.graph, nodes=nodes)).noted("rows", "ReLU by rows")

    net = quick(S, ((2, 4),), S)
    before = plan_of(net, X, Y)
    at = [one.name for one in PASSES].index("parallelize")
    after = plan_of(net, X, Y, passes=[*PASSES[:at], ("rows", rows), *PASSES[at:]])
    assert [n for n, _ in after.notes] == ["trace", "strategies", "rows", "parallelize", "differentiate", "fuse"]
    assert "+" in before.diff(after) and "((8, 1),)" in before.diff(after)
    np.testing.assert_allclose(simulated(after, net, X, Y)[0], alone(net, X, Y)[0], rtol=1e-10)


def test_a_pass_that_a_list_leaves_out_is_named_in_the_notes():
    plan = plan_of(quick(S), X, Y, passes=[p for p in PASSES if p.name != "fuse"])
    assert dict(plan.notes)["passes"] == "without fuse"
    assert "# pass passes: without fuse" in plan.text()


@each_of(
    ("omitted", "match"),
    ("strategies", r"pass parallelize: before it ran no pass\. There must be strategies"),
    ("parallelize", r"pass differentiate: before it ran strategies\. There must be a program"),
)
def test_a_list_without_what_a_later_pass_starts_from_is_refused(omitted, match):
    with pytest.raises(PlanError, match=match):
        plan_of(quick(S), X, Y, passes=[p for p in PASSES if p.name != omitted])


ON = {"enable_parallel_optimizer": True}


@each_of(
    ("settings", "loss_scaler", "names"),
    ({}, False, "strategies parallelize differentiate fuse update"),
    ({}, True, "strategies parallelize loss_scale differentiate fuse update"),
    (ON, False, "strategies parallelize optimizer_shard differentiate fuse update"),
    (
        {**ON, "optimizer_level": "level3"},
        True,
        "strategies parallelize optimizer_shard loss_scale differentiate regather fuse update",
    ),
    (
        {**ON, "parallel_mode": "data_parallel"},
        True,
        "strategies replicate loss_scale differentiate fuse update optimizer_group",
    ),
)
def test_the_list_that_is_printed_is_the_list_that_ran(settings, loss_scaler, names):
    names = names.split()
    net = quick(S)
    scaler = nn.DynamicLossScaler(8.0, 2, 10) if loss_scaler else None
    rule = nn.AdamWeightDecay(net.trainable_params(), 0.1, loss_scaler=scaler)
    options = {"device_num": 2 if "parallel_mode" in settings else 8, "dataset_strategy": "full_batch", **settings}
    steps = compile_steps(net, X, Y, loss=nn.MSELoss(), optimizer=rule, **options)
    assert [name for name, _ in steps] == ["trace", *names, "plan"]
    noted = [name for name, _ in steps[-1][1].notes]  # one note or several of each, in the order they ran
    assert list(dict.fromkeys(noted)) == ["trace", *names]
    assert [p.name for p in PASSES if p.name in names] == names  # one list, in one order, for every mode


def test_passes_are_pure():
    steps = compile_steps(quick(S), X, Y, loss=nn.MSELoss(), device_num=8, dataset_strategy="full_batch")
    draft = dict(steps)["strategies"]
    apply = {one.name: one.run for one in PASSES}["parallelize"]
    once, again = apply(draft), apply(draft)
    assert once == again
    assert draft.programs == ()


# ---- device counts ----


@pytest.mark.parametrize(("devices", "near"), [(3, 2), (5, 4), (6, 4), (7, 4), (12, 8), (20, 16)])
def test_device_counts_that_are_refused(devices, near):
    """With the class that MindSpore 2.10 raises for device_num 6."""
    words = rf"device_num={devices}.*1, 2, 4 or a multiple of 8. Try {near}, or start {near} ranks\."
    with pytest.raises(RuntimeError, match=words):
        plan_of(quick(), X, Y, devices=devices)


@pytest.mark.parametrize("devices", [0, -1, 4097])
def test_device_counts_out_of_range_are_refused(devices):
    with pytest.raises(ContextError):
        plan_of(quick(), X, Y, devices=devices)


@pytest.mark.parametrize("devices", [1, 2, 4, 8, 16, 24])
def test_device_counts_that_are_taken_give_the_right_numbers(devices):
    """On 24, (2, 4) leaves a repeat axis of 3; rows of 16 are not split by default."""
    check_equal(quick(S if devices >= 8 else None), X, Y, devices=devices)


def test_48_ranks_with_a_cut_of_the_loss():
    x, y = draw(48, 32), draw(48, 16)
    plan = check_equal(quick(S), x, y, devices=48)
    assert plan.graph.nodes[1].strategy == ((48, 1),)


# ---- default strategies ----


def test_a_batch_that_does_not_divide_compiles_with_whole_operators():
    net, x, y = quick(), X[:12], Y[:12]
    plan = check_equal(net, x, y)
    assert all(n.strategy == tuple((1,) * len(t) for t in n.strategy) for n in plan.graph.nodes)
    assert not [i for _, i in plan.instructions("forward") if i.is_communication]


def test_default_is_batch_parallel():
    plan = check_equal(quick(), X, Y)
    assert [n.strategy for n in plan.graph.nodes][:3] == [((8, 1), (1, 1)), ((8, 1),), ((8, 1), (1, 1))]
    assert {n.strategy_source for n in plan.graph.nodes} == {"default"}


def test_default_cuts_the_batch_whichever_operand_has_it():
    """bias + x: the first operand has no batch dim; its columns used to be split instead of x's rows."""
    bias = Parameter(draw(8), name="b")
    plan = compile(lambda x: bias + x, draw(16, 8), device_num=8, dataset_strategy="full_batch")
    assert plan.graph.nodes[0].strategy == ((1,), (8, 1))


@pytest.mark.parametrize("swapped", [False, True])
def test_device_matrix_of_a_broadcast_follows_the_dims_of_the_result(swapped):
    """MindSpore, arithmetic: device matrix = the splits of the larger shape in its order, whichever comes first."""
    bias, turn = Parameter(draw(8), name="b"), -1 if swapped else 1
    add = ops.Add().shard(((4, 2), (2,))[::turn])
    plan = compile(lambda x: add(*(x, bias)[::turn]), draw(16, 8), device_num=8, dataset_strategy="full_batch")
    layout = plan.value("add").layout
    assert (layout.device_matrix, layout.tensor_map) == ((4, 2), ((1,), (0,)))


# ---- dataset strategies ----


def test_full_batch_inputs_are_whole_on_every_rank():
    plan = plan_of(quick(S), X, Y)
    assert all(plan.value(i.name).slice_shape == i.shape for i in plan.data_inputs)


def test_data_parallel_shapes_are_one_ranks():
    net = quick(S)
    plan = plan_of(net, X[:2], Y[:2], cuts="data_parallel")
    shapes = [(i.shape, plan.value(i.name).slice_shape) for i in plan.data_inputs]
    assert shapes == [((16, 32), (2, 32)), ((16, 16), (2, 16))]
    np.testing.assert_allclose(simulated(plan, net, X, Y)[0], alone(net, X, Y)[0], rtol=1e-10)


GRID = Layout((2, 4), ("a", "b"))
FED = [((8, 1), (1, 8)), ((1, 1), (2, 1)), (GRID("a", "b"), GRID("b", "a")), (GRID("b", "a"), GRID("None", "None"))]


@pytest.mark.parametrize("cuts", FED, ids=["rows and columns", "labels only", "blocks", "blocks of x"])
def test_tuple_shapes_are_one_ranks(cuts):
    net = quick(S)
    given = zip((X, Y), strategy_counts(cuts), strict=True)
    local = [np.empty([n // c for n, c in zip(x.shape, cut, strict=True)]) for x, cut in given]
    plan = plan_of(net, *local, cuts=cuts)
    assert [i.shape for i in plan.data_inputs] == [(16, 32), (16, 16)]
    loss, grads = simulated(plan, net, X, Y)
    want_loss, want = alone(net, X, Y)
    np.testing.assert_allclose(loss, want_loss, rtol=1e-10)
    for name in want:
        np.testing.assert_allclose(grads[name], want[name], rtol=1e-10, atol=1e-10)


test_dataset_strategies_that_are_refused = refused(
    (((2, 4),), ContextStrategyError, "has 1 tuples.*2 inputs"),
    (((2, 4), (2, 4), (1,)), ContextStrategyError, "has 3 tuples.*2 inputs"),
    (((2,), (2, 4)), ContextStrategyError, r"has 1 counts for input 0"),
    (((16, 1), (1, 1)), ContextStrategyError, "16 slices of input 0, but there are 8 devices"),
    (((2, 4), (1, 1)), ContextStrategyError, "several dims of input 0.*One dim.*A Layout per input"),
    (((3, 1), (1, 1)), ContextError, "3 slices of input 0, but there are 8 devices"),
    (((0, 1), (1, 1)), ContextError, "at least 1"),
    ([[2, 4], [1, 1]], ContextError, "tuple of ints"),
    (((2.0, 4), (1, 1)), ContextError, "tuple of ints"),
    ("rows", ContextError, "'full_batch', 'data_parallel'"),
    by=lambda cuts: plan_of(quick(S), X, Y, cuts=cuts),
)


@each_of(
    ("cuts", "taken"),
    (((1, 1, 1, 8), (8,)), True),
    (((1, 1, 1, 8), (1,)), True),
    (((1, 1, 1, 1), (1,)), True),
    (((1, 1, 4, 2), (1,)), False),
    (((1, 1, 1, 1), (8,)), False),
)
def test_counts_of_a_dataset_are_those_of_the_tutorial(cuts, taken):
    """MindSpore, tutorial dataset_slice: its valid and its invalid examples."""
    config = ParallelConfig(device_num=8, dataset_strategy=cuts)
    if taken:
        assert dataset_splits(config, ((8, 8, 8, 8), (8,))) == cuts
    else:
        with pytest.raises(ContextStrategyError, match="dataset_strategy"):
            dataset_splits(config, ((8, 8, 8, 8), (8,)))


# ---- gradient conventions (MindSpore, semi-automatic mode) ----


@pytest.mark.parametrize(
    "triple",
    [(S, ((2, 4),), S), (((2, 1), (1, 2)), None, ((1, 4), (4, 2))), (None, None, None)],
    ids=["seed", "repeat", "batch"],
)
def test_gradients_mean_divides_by_the_replicas_of_each_parameter(triple):
    """gradients_mean=True: 1/(the parameter's replica-group size) of the true gradient; parameters may differ in it."""
    net = quick(*triple)
    plan = plan_of(net, X, Y, gradients_mean=True)
    _, want = alone(net, X, Y)
    _, grads = simulated(plan, net, X, Y)
    for name in want:
        mean = want[name] / plan.value(name).layout.replica_count
        np.testing.assert_allclose(grads[name], mean, rtol=1e-10, atol=1e-12)
    if triple[0] == ((2, 1), (1, 2)):  # recorded: group {0, 1, 4, 5}, then a Mul by 0.25
        mirror = next(i for _, i in plan.instructions("backward") if i.out == "w.grad.mirror")
        assert mirror.group(0) == (0, 1, 4, 5)


@pytest.mark.parametrize("devices", [2, 8, 16])
def test_without_loss_repeated_mean_gradients_are_device_num_times_too_large(devices):
    net = quick()
    _, want = alone(net, X, Y)
    _, grads = simulated(plan_of(net, X, Y, devices=devices, loss_repeated_mean=False), net, X, Y)
    for name in want:
        np.testing.assert_allclose(grads[name], devices * want[name], rtol=1e-10, atol=1e-10)


def test_both_together_give_the_product_of_the_factors():
    net = quick(S, ((2, 4),), S)
    _, want = alone(net, X, Y)
    plan = plan_of(net, X, Y, loss_repeated_mean=False, gradients_mean=True)
    _, grads = simulated(plan, net, X, Y)
    for name in want:
        np.testing.assert_allclose(grads[name], want[name] * 8 / 2, rtol=1e-10, atol=1e-10)


# ---- alltoall ----

ALLTOALL = [
    (((1, 1), (1, 8)), ((8, 1),), S),
    (((2, 4), (4, 1)), ((4, 2),), ((1, 8), (8, 1))),
    (((8, 1), (1, 1)), ((1, 8),), ((8, 1), (1, 1))),
]


@pytest.mark.quick(2)
@pytest.mark.parametrize("triple", ALLTOALL)
def test_alltoall_sends_less_and_gives_the_same_numbers(triple):
    net = quick(*triple)
    plain, moved = check_equal(net, X, Y), check_equal(net, X, Y, enable_alltoall=True)
    kinds = [{i.kind for _, i in p.instructions()} for p in (plain, moved)]
    assert "all_to_all" not in kinds[0] and "all_to_all" in kinds[1]
    one, other = simulated(plain, net, X, Y), simulated(moved, net, X, Y)
    np.testing.assert_array_equal(one[0], other[0])


# ---- parameters used twice ----


def test_shared_parameter_with_one_layout():
    net = SharedWeight(16, ((1, 8), (8, 1)), ((1, 8), (8, 1)))
    net.w._initial, net.w._data = None, draw(16, 16)
    plan = check_equal(net, draw(8, 16), draw(8, 16, seed=3))
    assert len([g for g, _ in plan.gradients]) == 1


def test_shared_parameter_with_two_layouts_is_refused_naming_both():
    with pytest.raises(StrategyError) as caught:
        plan_of(SharedWeight(16, ((1, 8), (8, 1)), ((8, 1), (1, 1))), draw(8, 16), draw(8, 16))
    text = str(caught.value)
    assert "Parameter 'w', shape (16, 16), has two layouts" in text
    for expected in ("MatMul 'mm1'", "MatMul 'mm2'", "slices (2, 16)", "slices (16, 16)", "nets.py:"):
        assert expected in text, text


def muls(first, second):
    """Two products with one weight, as in MindSpore's introduction to semi-automatic parallelism."""
    parts = {"mul1": ops.Mul().shard(first), "mul2": ops.Mul().shard(second)}
    parts["weight"] = Parameter(draw(16, 32), name="weight")
    return cell(lambda net, x: net.mul2(net.mul1(x, net.weight), net.weight), **parts)


def test_rows_and_columns_of_one_weight_are_refused_with_both_slices():
    """((8, 1), (8, 1)) gives row blocks (2, 32), ((1, 8), (1, 8)) column blocks (16, 4)."""
    with pytest.raises(RuntimeError, match=r"(?s)'weight'.*'mul1'.*\(2, 32\).*'mul2'.*\(16, 4\)"):
        plan_of(muls(((8, 1), (8, 1)), ((1, 8), (1, 8))), draw(16, 32), loss=None)


def test_the_same_cut_of_one_weight_is_taken():
    check_equal(muls(((8, 1), (8, 1)), ((8, 1), (8, 1))), draw(16, 32), draw(16, 32, seed=4))


# ---- strategies that depend on shapes ----


@each_of(
    ("strategy", "match"),
    (((2, 4), (2, 1)), r"'k'.*2 ways.*4 ways.*Try \(\(2, 4\), \(4, 1\)\)"),
    (((4, 4), (4, 1)), "makes 16 slices, but there are 8 devices"),
    (((2, 4),), "has 1 tuples"),
    (((2, 4, 1), (4, 1)), "has 3 counts for input 0"),
    (((1, 1), (1, 64)), "64 ways"),
)
def test_refused_strategies_name_operator_and_the_line_of_shard(strategy, match):
    with pytest.raises(StrategyError, match=rf"MatMul 'matmul' \(nets.py:\d+\): .*{match}"):
        plan_of(quick(strategy), X, Y)
