"""Cells around a network: steps, gradients and micro-batches as written out by hand; reducers on real ranks."""

from __future__ import annotations

import numpy as np
import pytest

from parallel_lab import Parameter, Tensor, nn, ops, value_and_grad
from parallel_lab.base.errors import StageNameError, StrategyError, TracedCommunication
from parallel_lab.base.settings import context
from parallel_lab.catalog.nn.forms import HyperMap
from parallel_lab.graph.trace import trace_network
from parallel_lab.mindspore._derivatives import Map, MultitypeFuncGraph
from parallel_lab.nn.tensor.functional import GradOperation
from parallel_lab.processes.shm import WorkerPool
from parallel_lab.train import AutoParallel
from tests.crossed import each_of
from tests.nets import cell
from tests.ops.ranks import on_ranks
from tests.refusals import refused

pytestmark = pytest.mark.timeout(60)

N = 4
RNG = np.random.default_rng(20261121)
X, Y, W, B = map(RNG.standard_normal, ((12, 5), (12, 3), (3, 5), 3))


def new_net():
    """x @ w.T + b."""
    parts = {"weight": Parameter(Tensor(W.copy()), "w"), "bias": Parameter(Tensor(B.copy()), "b")}
    return cell(lambda net, x: net.matmul(x, net.weight) + net.bias, **parts, matmul=ops.MatMul(transpose_b=True))


def mean_square(x, y, w=W, b=B):
    """Loss and gradients of mean((x w^T + b - y)^2), written out."""
    off = x @ w.T + b - y
    return np.mean(off**2), 2 * off.T @ x / off.size, 2 * off.sum(axis=0) / off.size


def sgd_step(learning_rate, factor=1.0):
    _, of_w, of_b = mean_square(X, Y)
    return W - learning_rate * factor * of_w, B - learning_rate * factor * of_b


def with_loss(net):
    return nn.WithLossCell(net, nn.MSELoss())


@pytest.fixture(autouse=True)
def plain_context():
    context.reset_auto_parallel_context()
    yield
    context.reset_auto_parallel_context()


@pytest.fixture(scope="module")
def pool():
    with WorkerPool(N) as pool:
        yield pool


# ---- one step ----


@pytest.mark.parametrize("compiled", [False, True], ids=["at once", "compiled"])
@pytest.mark.parametrize(("sens", "loss_scale"), [(1.0, 1.0), (8.0, 1.0), (8.0, 8.0)])
def test_a_training_step_takes_the_sgd_step_of_the_scaled_loss(sens, loss_scale, compiled):
    net = new_net()
    step = nn.TrainOneStepCell(with_loss(net), nn.SGD(net.trainable_params(), 0.1, loss_scale=loss_scale), sens)
    loss = (AutoParallel(step) if compiled else step)(Tensor(X), Tensor(Y))
    assert loss.item() == pytest.approx(mean_square(X, Y)[0], rel=1e-12)
    weight, bias = sgd_step(0.1, sens / loss_scale)
    np.testing.assert_allclose(net.weight.asnumpy(), weight, rtol=1e-12)
    np.testing.assert_allclose(net.bias.asnumpy(), bias, rtol=1e-12)


def test_a_step_can_return_its_gradients_by_name():
    net = new_net()
    loss, grads = nn.TrainOneStepCell(with_loss(net), nn.SGD(net.trainable_params(), 0.1), return_grad=True)(
        Tensor(X), Tensor(Y)
    )
    expected, of_w, of_b = mean_square(X, Y)
    assert loss.item() == pytest.approx(expected)
    assert list(grads) == ["w", "b"]
    np.testing.assert_allclose(grads["w"].asnumpy(), of_w)
    np.testing.assert_allclose(grads["b"].asnumpy(), of_b)


def test_wrapping_a_network_changes_no_name():
    net = new_net()
    optimizer = nn.SGD(net.trainable_params(), 0.1)
    step = nn.TrainOneStepCell(nn.GradAccumulation(with_loss(net), 2), optimizer)
    assert [p.name for p in step.trainable_params()] == ["w", "b"]
    assert step.weights == optimizer.parameters


def test_a_subclass_writes_its_own_step_with_what_the_cell_has():
    """The form of MindSpore's tutorials: self.grad with sens, self.hyper_map over cloned gradients."""
    total = MultitypeFuncGraph("total")

    @total.register("Tensor", "Tensor")
    def _(kept, new):
        return ops.assign_add(kept, new)

    class Accumulating(nn.TrainOneStepCell):
        def __init__(self, network, optimizer):
            super().__init__(network, optimizer, 1.0)
            self.kept = self.weights.clone(prefix="kept", init="zeros")
            self.hyper_map = HyperMap()

        def construct(self, *inputs):
            loss = self.network(*inputs)
            sens = ops.full(tuple(loss.shape), self.sens, str(loss.dtype))
            grads = self.grad(self.network, self.weights)(*inputs, sens)
            self.hyper_map(total, self.kept, grads)
            return loss

    net = new_net()
    step = Accumulating(with_loss(net), nn.SGD(net.trainable_params(), 0.1))
    for part in (slice(0, 6), slice(6, 12)):
        step(Tensor(X[part]), Tensor(Y[part]))
    expected = sum(mean_square(X[part], Y[part])[1] for part in (slice(0, 6), slice(6, 12)))
    np.testing.assert_allclose(step.kept[0].asnumpy(), expected)
    assert [p.name for p in step.kept] == ["kept.w", "kept.b"]


# ---- gradients ----


def test_gradients_of_a_network_with_and_without_a_loss_function():
    net = new_net()
    _, of_w, of_b = mean_square(X, Y)
    for step, inputs in ((nn.WithGradCell(net, nn.MSELoss()), (X, Y)), (nn.WithGradCell(with_loss(net)), (X, Y))):
        for got, expected in zip(step(*map(Tensor, inputs)), (of_w, of_b), strict=True):
            np.testing.assert_allclose(got.asnumpy(), expected)
    halved = nn.WithGradCell(net, nn.MSELoss(), sens=Tensor(0.5, np.float64))(Tensor(X), Tensor(Y))
    np.testing.assert_allclose(halved[0].asnumpy(), of_w / 2)


def test_value_and_gradients_as_a_cell():
    net = new_net()
    loss, of_w, _ = mean_square(X, Y)
    value, grads = nn.ForwardValueAndGrad(with_loss(net), net.trainable_params(), get_by_list=True)(
        Tensor(X), Tensor(Y)
    )
    assert value.item() == pytest.approx(loss)
    np.testing.assert_allclose(grads[0].asnumpy(), of_w)
    value, of_x = nn.ForwardValueAndGrad(with_loss(net), sens_param=True)(Tensor(X), Tensor(Y), Tensor(3.0, np.float64))
    off = X @ W.T + B - Y
    np.testing.assert_allclose(of_x.asnumpy(), 3 * 2 * off @ W / off.size)
    assert value.item() == pytest.approx(loss)


def test_evaluation_gives_loss_outputs_and_label():
    net = new_net()
    loss, outputs, label = nn.WithEvalCell(net, nn.MSELoss())(Tensor(X), Tensor(Y))
    assert loss.item() == pytest.approx(mean_square(X, Y)[0])
    np.testing.assert_allclose(outputs.asnumpy(), X @ W.T + B)
    np.testing.assert_array_equal(label.asnumpy(), Y)
    half = nn.WithEvalCell(new_net().to_float(np.float16), nn.MSELoss(), add_cast_fp32=True)(Tensor(X), Tensor(Y))
    assert [str(t.dtype) for t in half] == ["float32", "float32", "float32"]


def of_x_and_y(x, y):
    return ops.reduce_sum(x * x * y)


def test_grad_operation_for_one_input_all_inputs_and_weights():
    x, y, w = Tensor(X), Tensor(X + 1), Parameter(Tensor(X - 1), "w")
    np.testing.assert_allclose(GradOperation()(of_x_and_y)(x, y).asnumpy(), 2 * X * (X + 1))
    for got, expected in zip(GradOperation(get_all=True)(of_x_and_y)(x, y), (2 * X * (X + 1), X**2), strict=True):
        np.testing.assert_allclose(got.asnumpy(), expected)
    (of_w,) = GradOperation(get_by_list=True)(lambda a: ops.reduce_sum(a * w), [w])(x)
    np.testing.assert_allclose(of_w.asnumpy(), X)
    (of_a,), (of_w,) = GradOperation(get_all=True, get_by_list=True)(lambda a: ops.reduce_sum(a * w), [w])(x)
    np.testing.assert_allclose(of_a.asnumpy(), X - 1)
    np.testing.assert_allclose(of_w.asnumpy(), X)


def test_grad_operation_with_the_gradient_of_the_result():
    sens = RNG.standard_normal(X.shape)
    got = GradOperation(sens_param=True)(lambda x: x * x)(Tensor(X), Tensor(sens))
    np.testing.assert_allclose(got.asnumpy(), 2 * X * sens)
    # without it every element of the result counts once, also of several results
    np.testing.assert_allclose(GradOperation()(lambda x: x * x)(Tensor(X)).asnumpy(), 2 * X)
    np.testing.assert_allclose(GradOperation()(lambda x: (x * x, 3 * x))(Tensor(X)).asnumpy(), 2 * X + 3)
    with pytest.raises(ValueError, match=r"gradient of shape \(2,\)"):
        GradOperation(sens_param=True)(lambda x: x * x)(Tensor(X), Tensor([1.0, 2.0]))


def test_grad_operation_takes_a_cells_own_weights():
    net = new_net()
    of_w, of_b = GradOperation(get_by_list=True)(with_loss(net))(Tensor(X), Tensor(Y))
    np.testing.assert_allclose(of_w.asnumpy(), mean_square(X, Y)[1])
    np.testing.assert_allclose(of_b.asnumpy(), mean_square(X, Y)[2])


def test_maps_over_tuples():
    assert HyperMap()(lambda a, b: a + b, (1, (2, 3)), (10, (20, 30))) == (11, (22, 33))
    assert HyperMap(lambda a: -a)([1, 2]) == (-1, -2)
    assert Map(len)(((1, 2), (3,))) == (2, 1)
    with pytest.raises(ValueError, match="2, 3 elements"):
        HyperMap()(lambda a, b: a, (1, 2), (1, 2, 3))


def test_a_function_of_several_types_says_which_it_knows():
    scale = MultitypeFuncGraph("scale")
    scale.register("Tensor", "Number")(lambda x, by: x * by)
    np.testing.assert_array_equal(scale(Tensor([1.0, 2.0]), 3).asnumpy(), [3.0, 6.0])
    with pytest.raises(TypeError, match=r"\(String, Number\).*Registered: Tensor, Number"):
        scale("a", 3)


def test_cloned_parameters_keep_values_or_take_new_ones():
    net = new_net()
    parameters = nn.ParameterTuple(net.trainable_params())
    same, zeros = parameters.clone("same"), parameters.clone("zero", init="zeros")
    assert [p.name for p in same] == ["same.w", "same.b"]
    np.testing.assert_array_equal(same[0].asnumpy(), W)
    np.testing.assert_array_equal(zeros[0].asnumpy(), np.zeros_like(W))
    net.weight.set_data(W + 1)
    np.testing.assert_array_equal(same[0].asnumpy(), W)


# ---- micro-batches ----


@pytest.mark.parametrize("compiled", [False, True], ids=["at once", "compiled"])
@each_of(
    "wrap",
    lambda net: nn.GradAccumulation(net, 3),
    lambda net: nn.MicroBatchInterleaved(net, 3),
    lambda net: nn.PipelineCell(net, 3),
    ids=["GradAccumulation", "MicroBatchInterleaved", "PipelineCell"],
)
def test_micro_batches_are_added_up(wrap, compiled):
    """Loss and gradients are sums over micro-batches of consecutive rows: 3 times those of the whole batch."""
    net = new_net()
    step = nn.TrainOneStepCell(wrap(with_loss(net)), nn.SGD(net.trainable_params(), 0.1))
    loss = (AutoParallel(step) if compiled else step)(Tensor(X), Tensor(Y))
    parts = [mean_square(X[i : i + 4], Y[i : i + 4]) for i in (0, 4, 8)]
    assert loss.item() == pytest.approx(sum(p[0] for p in parts), rel=1e-12)
    np.testing.assert_allclose(net.weight.asnumpy(), W - 0.1 * sum(p[1] for p in parts), rtol=1e-12)


@pytest.mark.parametrize("compiled", [False, True], ids=["at once", "compiled"])
@each_of(
    "wrap",
    lambda net: nn.GradAccumulation(nn.PipelineCell(net, 2), 3),
    lambda net: nn.PipelineCell(nn.GradAccumulation(net, 3), 2),
    ids=["accumulated pipeline", "pipeline of accumulation"],
)
def test_micro_batches_of_micro_batches_are_added_up(wrap, compiled):
    """3 x 2 parts: loss and gradients are 6 times those of the whole batch. Compiled they were NotBuiltYet."""
    net = new_net()
    step = nn.TrainOneStepCell(wrap(with_loss(net)), nn.SGD(net.trainable_params(), 0.1))
    loss = (AutoParallel(step) if compiled else step)(Tensor(X), Tensor(Y))
    whole = mean_square(X, Y)
    assert loss.item() == pytest.approx(6 * whole[0], rel=1e-12)
    np.testing.assert_allclose(net.weight.asnumpy(), W - 0.6 * whole[1], rtol=1e-11)


def accumulate_cut(world, x, y):
    """One accumulated step of a network split among the ranks."""
    net = new_net()
    net.matmul.shard(((2, 1), (1, 1)))
    step = AutoParallel(
        nn.TrainOneStepCell(nn.GradAccumulation(with_loss(net), 3), nn.SGD(net.trainable_params(), 0.1))
    )
    step.dataset_strategy("full_batch")
    loss = step(Tensor(x), Tensor(y))
    return loss.full().item(), net.weight.full().asnumpy()


@pytest.mark.exhaustive
def test_micro_batches_of_a_network_that_is_cut_among_ranks(pool):
    parts = [mean_square(X[i : i + 4], Y[i : i + 4]) for i in (0, 4, 8)]
    for loss, weight in on_ranks(pool, accumulate_cut, X, Y):
        assert loss == pytest.approx(sum(p[0] for p in parts), rel=1e-12)
        np.testing.assert_allclose(weight, W - 0.1 * sum(p[1] for p in parts), rtol=1e-12)


def test_micro_batches_of_a_network_with_several_results():
    total, rows = nn.MicroBatchInterleaved(cell(lambda net, x: (x * 1.0, ops.reduce_sum(x))), 2)(Tensor(X))
    np.testing.assert_allclose(total.asnumpy(), X[:6] + X[6:])
    np.testing.assert_allclose(rows.asnumpy(), X.sum())


def test_one_micro_batch_is_the_network_itself():
    graph = trace_network(
        nn.GradAccumulation(with_loss(new_net()), 1), [("x", (4, 5), "float64"), ("y", (4, 3), "float64")]
    ).graph
    assert [n.op_class for n in graph.nodes] == ["MatMul", "Add", "Sub", "Square", "ReduceMean"]


def test_a_batch_that_does_not_divide_is_refused():
    with pytest.raises(
        ValueError, match=r"dim 0 of input 0 of shape \(12, 5\) cannot be split into 5 equal micro-batches"
    ):
        nn.PipelineCell(with_loss(new_net()), 5)(Tensor(X), Tensor(Y))


# ---- pipelines ----


def test_stages_are_set_by_name():
    net = nn.SequentialCell(nn.Dense(5, 4), nn.Dense(4, 3))
    pipeline = nn.PipelineCell(with_loss(net), 4, stage_config={"_backbone.0": 0, "_backbone.1": 1})
    assert ([cell.pipeline_stage for cell in net], pipeline.micro_size) == ([0, 1], 4)


@each_of(
    ("config", "kind", "text"),
    ({"fc": 0}, KeyError, "stage_config names 'fc'"),
    ({"0": 0}, KeyError, "_backbone"),
    ({"_backbone.0": "1"}, TypeError, r"stage_config\['_backbone.0'\]='1'"),
    ({"_backbone.0": -1}, ValueError, r"stage_config\['_backbone.0'\]=-1"),
)
def test_a_wrong_stage_config_is_refused_and_sets_nothing(config, kind, text):
    net = nn.SequentialCell(nn.Dense(5, 4), nn.Dense(4, 3))
    with pytest.raises(kind, match=text) as caught:
        nn.PipelineCell(with_loss(net), 4, stage_config=config)
    assert [cell.pipeline_stage for cell in net] == [None, None]
    assert kind is not KeyError or (isinstance(caught.value, StageNameError) and "\\n" not in str(caught.value))


def test_several_stages_are_for_compiled_steps():
    net = new_net()
    context.set_auto_parallel_context(pipeline_stages=2)
    with pytest.raises(ValueError, match=r"PipelineCell: it runs at once, with pipeline_stages=2.*jit"):
        nn.PipelineCell(with_loss(net), 4)(Tensor(X), Tensor(Y))
    with pytest.raises(ValueError, match=r"PipelineGradReducer: it runs at once, with pipeline_stages=2.*jit"):
        nn.PipelineGradReducer(net.trainable_params())([Tensor(W), Tensor(B)])
    with pytest.raises(
        StrategyError, match=r"micro_size=1 with pipeline_stages=2.*At least as many micro-batches as stages"
    ):
        nn.PipelineCell(with_loss(net), 1)(Tensor(X), Tensor(Y))


def test_the_gradients_of_a_pipeline_are_divided_by_the_scale():
    reducer = nn.PipelineGradReducer(new_net().trainable_params(), scale_sense=4.0)
    np.testing.assert_allclose(reducer((Tensor(W), Tensor(B)))[0].asnumpy(), W / 4)


# ---- gradients of all ranks ----


def reduced(world, settings, **options):
    """Gradients rank + 1 everywhere, through a reducer; "w" float32, "b" float16, "own" layerwise_parallel."""
    context.set_auto_parallel_context(**settings)
    if "group" in options:
        world.groups[options["group"]] = (1, 3)
        if world.rank not in (1, 3):
            return None
    parameters = [
        Parameter(Tensor(np.zeros((2, 3), np.float32)), "w"),
        Parameter(Tensor(np.zeros(4, np.float16)), "b"),
        Parameter(Tensor(np.zeros(2, np.float32)), "own", layerwise_parallel=True),
    ]
    grads = tuple(Tensor(np.full(p.shape, world.rank + 1, p.dtype)) for p in parameters)
    world.comm.recording = True
    out = nn.DistributedGradReducer(parameters, **options)(grads)
    return [(g.asnumpy().max(), g.asnumpy().min(), str(g.dtype)) for g in out], [
        record[4] for record in world.comm.records
    ]


def reduced_with(world, settings, options):
    return reduced(world, settings, **options)


@pytest.mark.quick(1)
@each_of(
    ("settings", "options", "expected"),
    ({}, {}, 10.0),
    ({}, {"mean": True}, 2.5),
    ({"gradients_mean": True}, {}, 2.5),
    ({"gradients_mean": True}, {"mean": False}, 10.0),
    ({}, {"mean": True, "degree": 10}, 1.0),
    ({"gradients_mean": True}, {"fusion_type": 0}, 2.5),
)
def test_gradients_are_added_up_over_the_ranks(pool, settings, options, expected):
    """1 + 2 + 3 + 4 = 10; a parameter with layerwise_parallel keeps its rank's own."""
    for rank, (found, _) in enumerate(on_ranks(pool, reduced_with, settings, options)):
        shared = [(expected, expected, dtype) for dtype in ("float32", "float16")]
        assert found == [*shared, (rank + 1, rank + 1, "float32")]


def test_gradients_are_added_up_in_a_group(pool):
    found = on_ranks(pool, reduced_with, {}, {"group": "some", "mean": True})
    assert found[0] is None and found[2] is None
    assert [g[0] for g in found[1][0]] == [3.0, 3.0, 2.0]
    assert [g[0] for g in found[3][0]] == [3.0, 3.0, 4.0]


@each_of(
    "wide, fusion_type, sizes_bytes", (True, 0, [24, 16]), (False, 0, [24, 8]), (True, 1, [40]), (False, 1, [24, 8])
)
def test_float16_gradients_travel_in_float32_unless_told_otherwise(pool, wide, fusion_type, sizes_bytes):
    """6 and 4 elements; of a message 2 (n - 1) / n of its bytes leave a rank, for n = 4 six quarters."""
    for _, sent in on_ranks(pool, reduced_with, {"gradient_fp32_sync": wide}, {"fusion_type": fusion_type}):
        assert sent == [size * 6 // 4 for size in sizes_bytes]


def train_step(world, x, y, settings):
    """One step of TrainOneStepCell on this rank's rows."""
    context.set_auto_parallel_context(**settings)
    net = new_net()
    step = nn.TrainOneStepCell(with_loss(net), nn.SGD(net.trainable_params(), 0.1))
    mine = slice(3 * world.rank, 3 * world.rank + 3)
    step(Tensor(x[mine]), Tensor(y[mine]))
    return net.weight.asnumpy(), type(step.grad_reducer).__name__


def test_a_data_parallel_step_is_one_device_on_all_rows(pool):
    for weight, reducer in on_ranks(pool, train_step, X, Y, {"parallel_mode": "data_parallel", "gradients_mean": True}):
        assert reducer == "DistributedGradReducer"
        np.testing.assert_allclose(weight, sgd_step(0.1)[0], rtol=1e-12)


def test_a_stand_alone_step_looks_at_its_own_rows_only(pool):
    for rank, (weight, reducer) in enumerate(on_ranks(pool, train_step, X, Y, {})):
        assert reducer == "Identity"
        mine = slice(3 * rank, 3 * rank + 3)
        np.testing.assert_allclose(weight, W - 0.1 * mean_square(X[mine], Y[mine])[1], rtol=1e-12)


def test_without_a_world_gradients_pass_through():
    grads = (Tensor(W), Tensor(B))
    got = nn.DistributedGradReducer(new_net().trainable_params(), mean=True)(list(grads))
    assert got[0] is grads[0] and got[1] is grads[1]


def traced_reduction(world, mode):
    context.set_auto_parallel_context(parallel_mode=mode)
    net = new_net()
    reducer = nn.DistributedGradReducer(net.trainable_params())

    def step(x, y):
        loss, grads = value_and_grad(with_loss(net), None, net.trainable_params())(x, y)
        reduced = reducer(grads)
        assert all(a is b for a, b in zip(reduced, grads, strict=True))
        return loss, *reduced

    try:
        trace_network(step, [("x", (4, 5), "float64"), ("y", (4, 3), "float64")])
    except TracedCommunication:
        return "runs at once"
    return "compiled"


@pytest.mark.parametrize(
    ("mode", "expected"),
    [("semi_auto_parallel", "compiled"), ("auto_parallel", "compiled"), ("data_parallel", "runs at once")],
)
def test_a_traced_reducer_leaves_the_sum_to_the_compiler(pool, mode, expected):
    assert on_ranks(pool, traced_reduction, mode) == [expected] * N


test_a_reducer_refuses_wrong_arguments = refused(
    ({"fusion_type": -1}, ValueError),
    ({"fusion_type": "1"}, TypeError),
    ({"parameters": 3}, TypeError),
    ({"parameters": [1]}, TypeError),
    by=lambda options: nn.DistributedGradReducer(**{"parameters": new_net().trainable_params(), **options}),
)


def test_a_reducer_wants_one_gradient_per_parameter():
    reducer = nn.DistributedGradReducer(new_net().trainable_params())
    with pytest.raises(ValueError, match="2, one per parameter"):
        reducer((Tensor(W),))
    with pytest.raises(TypeError, match="A list or tuple"):
        reducer(Tensor(W))


@each_of(
    "make",
    lambda net, opt: nn.TrainOneStepCell(net, opt, sens="1"),
    lambda net, opt: GradOperation(get_all=1),
    lambda net, opt: GradOperation(get_by_list=True)(lambda x: x),
    lambda net, opt: nn.PipelineGradReducer(opt.parameters, scale_sense=True),
)
def test_wrong_types_are_type_errors(make):
    net = new_net()
    with pytest.raises(TypeError):
        make(net, nn.SGD(net.trainable_params(), 0.1))


def test_a_parameter_is_given_a_value_by_a_cell():
    p = Parameter(Tensor(B.copy()), "p", requires_grad=False)
    nn.ParameterUpdate(p)(Tensor(B + 1))
    np.testing.assert_array_equal(p.asnumpy(), B + 1)
