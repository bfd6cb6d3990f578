"""Normalising operators: all their results, digits under a large mean, refusals of strategies, dtypes."""

import numpy as np
import pytest

from parallel_lab import StrategyError, compile, nn, ops
from parallel_lab.nn.tensor.autograd import gradients
from parallel_lab.nn.tensor.parameter import Parameter
from parallel_lab.nn.tensor.tensor import Tensor
from parallel_lab.ops.machine.registry import OPS
from parallel_lab.ops.machine.sharding import sharding_rule
from tests.crossed import each_of
from tests.nets import cell
from tests.nn.one_device import messages

RNG = np.random.default_rng(17)


def rms(strategy):
    parts = {"gamma": Parameter(np.linspace(0.5, 2, 8), "gamma"), "shift": Parameter(np.ones((8, 8)), "shift")}
    norm = ops.RmsNorm(epsilon=0.1).shard(strategy)
    return cell(lambda net, x: net.norm(x + net.shift, net.gamma)[0], norm=norm, **parts)


SMALL = {"Square", "ReduceMean", "Add", "Rsqrt", "Mul"}


@each_of("strategy, operators, sent", (((8, 1), (1,)), {"RmsNorm"}, []), (((2, 4), (4,)), SMALL, [(4, (8, 1))]))
def test_rms_norm_sends_one_number_per_row_each_way_and_only_where_normalised_dims_are_split(strategy, operators, sent):
    rows = np.ones((8, 8))
    optimizer = nn.SGD((net := rms(strategy)).trainable_params(), 0.1)
    plan = compile(net, rows, rows, loss=nn.MSELoss(), optimizer=optimizer, device_num=8, dataset_strategy="full_batch")
    assert {n.op_class for n in plan.graph.nodes if n.name.startswith("norm")} == operators
    for phase in ("forward", "backward"):
        found = [(i.group_size, plan.value(i.out).shape) for i in messages(plan, phase)]
        assert [each for each in found if each[1] == (8, 1)] == sent


def test_how_results_of_an_operator_made_of_others_lie_may_be_said_if_it_is_what_follows():
    rows, strategy = np.ones((8, 8)), ((2, 4), (4,))
    net = rms(strategy)
    net.norm.shard(strategy, ((2, 4), (2, 1)))
    compile(net, rows, device_num=8, dataset_strategy="full_batch")
    net.norm.shard(strategy, ((2, 4), (8, 1)))
    with pytest.raises(StrategyError, match=r"RmsNorm 'norm'.*Its 2 results may be split \(\(2, 4\), \(2, 1\)\)\. Try"):
        compile(net, rows, device_num=8, dataset_strategy="full_batch")


@pytest.mark.parametrize("mean", [0.0, 1e2, 1e4])
def test_batch_norm_of_float32_keeps_its_digits_under_a_large_mean(mean):
    """E[x^2] - E[x]^2 in float32 would have no digit left of a variance of 1 around a mean of 10^4 (1e8 * 6e-8 = 6)."""
    x = (RNG.normal(size=(64, 2, 16)) + mean).astype(np.float32)
    ones, zeros = np.ones(2, np.float32), np.zeros(2, np.float32)
    y, found_mean, found_variance, *_ = ops.BatchNorm(is_training=True)(x, ones, zeros, zeros, ones)
    exact = x.astype(np.float64)
    np.testing.assert_allclose(found_variance, exact.var((0, 2)), rtol=1e-6)
    np.testing.assert_allclose(found_mean, exact.mean((0, 2)), rtol=1e-6, atol=1e-6)
    wanted = (exact - exact.mean((0, 2))[:, None]) / np.sqrt(exact.var((0, 2))[:, None] + 1e-5)
    # of y: a few roundings of x itself, divided by a deviation of 1
    assert np.abs(y - wanted).max() < 1e-6 + 3 * 6e-8 * mean
    assert y.dtype == np.float32


@pytest.mark.parametrize("mean", [0.0, 1e3])
def test_layer_norm_of_float32_keeps_its_digits_under_a_large_mean(mean):
    x = (RNG.normal(size=(16, 256)) + mean).astype(np.float32)
    y = ops.layer_norm(x, 256, np.ones(256, np.float32), np.zeros(256, np.float32))
    exact = x.astype(np.float64)
    wanted = (exact - exact.mean(1, keepdims=True)) / np.sqrt(exact.var(1, keepdims=True) + 1e-5)
    assert np.abs(y - wanted).max() < 2e-6 + 6 * 6e-8 * mean


LAST, GROUPS = {"begin_norm_axis": -1, "begin_params_axis": -1}, {"num_groups": 2}
GROUPED, BATCH = ((8, 8, 2), (8,), (8,)), ((8, 4), (4,), (4,), (4,), (4,))


@each_of(
    ("name", "shapes", "attrs", "strategy", "text"),
    ("layer_normalization", ((8, 4), (4,), (4,)), LAST, ((1, 2), (2,), (2,)), "works along that dim"),
    ("rms_norm_fused", ((8, 4), (4,)), {}, ((1, 4), (4,)), "works along that dim"),
    ("rms_normalization", ((8, 4), (4,)), {}, ((1, 4), (1,)), "All inputs must split it equally"),
    ("group_norm", GROUPED, GROUPS, ((1, 4, 1), (4,), (4,)), "there are 2 groups.*borders of groups"),
    ("group_norm", GROUPED, GROUPS, ((1, 1, 2), (1,), (1,)), "works along that dim"),
    ("batch_normalization", BATCH, {}, ((1, 2), (2,), (2,), (1,), (2,)), "All inputs must split it equally"),
)
def test_strategies_that_normalising_operators_refuse(name, shapes, attrs, strategy, text):
    op = OPS[name]
    with pytest.raises(StrategyError, match=text):
        sharding_rule(op, shapes, {**op.default_attrs, **attrs}, strategy, 8)


def test_parameters_may_have_dims_that_are_not_normalised():
    """MindSpore: gamma and beta are split as x is from begin_params_axis on, ((2, 4, 8, 1), (4, 8, 1), (4, 8, 1))."""
    op = OPS["layer_normalization"]
    attrs = {**op.default_attrs, "begin_norm_axis": -1, "begin_params_axis": 1}
    rule = sharding_rule(op, ((4, 8, 16, 6), (8, 16, 6), (8, 16, 6)), attrs, ((2, 4, 8, 1), (4, 8, 1), (4, 8, 1)), 64)
    assert rule.out.slice_shape((4, 8, 16, 6)) == (2, 2, 2, 6)


def test_batch_norm_of_float16_sums_beyond_its_range():
    """2 x 64 x 64 elements around 20: the sum of a channel is 163840, above 65504, and came out infinite."""
    x = RNG.normal(20, 5, (2, 3, 64, 64)).astype(np.float16)
    ones, zeros = np.ones(3, np.float16), np.zeros(3, np.float16)
    y, mean, *_ = ops.BatchNorm(is_training=True)(x, ones, zeros, zeros, ones)
    exact = x.astype(np.float64)
    exact = (exact - exact.mean((0, 2, 3), keepdims=True)) / exact.std((0, 2, 3), keepdims=True)
    assert y.dtype == mean.dtype == np.float16
    np.testing.assert_allclose(mean, x.mean((0, 2, 3), dtype=np.float64), rtol=2**-11)
    np.testing.assert_allclose(y, exact, rtol=2**-10, atol=2**-13)
    # the gradient for the bias is the sum of g
    bias = Parameter(Tensor(zeros))
    out = ops.BatchNorm(is_training=True)(Tensor(x), Tensor(ones), bias, Tensor(zeros), Tensor(ones))[0]
    found = gradients(out, [bias], np.full(x.shape, 4.0, np.float16))[0]
    np.testing.assert_array_equal(found, np.full(3, 2 * 64 * 64 * 4.0, np.float16))


def test_statistics_that_were_given_keep_their_dtype():
    """Inference said that of x, float64."""
    op, dtypes = OPS["batch_normalization"], ("float64", "float64", "float64", "float16", "float32")
    found = op.infer(((4, 6), *((6,),) * 4), dtypes, op.default_attrs)
    assert found.dtypes == ("float64", "float16", "float32", "float16", "float32")
