"""`shard(in_strategy, out_strategy)`: where a strategy leaves partial sums, an all_reduce or a reduce_scatter."""

import numpy as np
import pytest

from parallel_lab import Parameter, Session, StrategyError, Tensor, compile, nn, ops
from tests.crossed import each_of
from tests.nets import cell


def weight(*shape):
    return Parameter(Tensor(np.random.default_rng(0).normal(size=shape)), name="w")


def product(strategy, out):
    parts = {"w": weight(16, 4), "matmul": ops.MatMul().shard(strategy, out), "tanh": ops.Tanh()}
    return cell(lambda net, x: net.tanh(net.matmul(x, net.w)), **parts)


def look_up(strategy, out):
    return cell(lambda net, ids: net.gather(net.w, ids, 0), w=weight(64, 32), gather=ops.Gather().shard(strategy, out))


def trained(net, batch, **settings):
    optimizer = nn.SGD(net.trainable_params(), 0.1)
    plan = compile(net, *batch, loss=nn.MSELoss(), optimizer=optimizer, dataset_strategy="full_batch", **settings)
    with Session(plan, net, optimizer) as session:
        return session.train([batch], 3), session.parameters()["w"], plan


@pytest.mark.quick(2)
@each_of(
    ("strategy", "out", "kind"),
    (((2, 4), (4, 1)), None, "all_reduce"),
    (((2, 4), (4, 1)), ((2, 1),), "all_reduce"),
    (((2, 4), (4, 1)), ((8, 1),), "reduce_scatter"),  # MindSpore: (A * B, C) selects ReduceScatter on dim 0
    (((2, 2), (2, 2)), ((4, 2),), "reduce_scatter"),
    (((1, 4), (4, 1)), ((4, 1),), "reduce_scatter"),
)
def test_a_contraction_ends_in_the_message_that_the_result_asks_for(strategy, out, kind, rng):
    batch = rng.normal(size=(16, 16)), rng.normal(size=(16, 4))
    losses, w, _ = trained(product(None, None), batch, device_num=1)
    got, found, plan = trained(product(strategy, out), batch, device_num=8)
    first = next(i for _, i in plan.instructions("forward") if i.is_communication)
    assert first.kind == kind
    if out is not None:
        assert plan.value("matmul").layout.splits == out[0]
    assert got == pytest.approx(losses, rel=1e-10)
    np.testing.assert_allclose(found, w, rtol=1e-10)
    if kind == "reduce_scatter":
        back = [i.kind for _, i in plan.instructions("backward") if i.name == "matmul" and i.is_communication]
        assert back == ["all_gather"]


def test_a_row_split_table_scatters_what_it_looks_up(rng):
    """MindSpore 2.10: table [64, 32] split (8, 1), indices [16, 4]: ReduceScatter to [2, 4, 32], backward AllGather."""
    batch = rng.integers(0, 64, (16, 4)).astype(np.int32), rng.normal(size=(16, 4, 32))
    losses, w, _ = trained(look_up(None, None), batch, device_num=1)
    got, found, plan = trained(look_up(((8, 1), (1, 1)), ((8, 1, 1),)), batch, device_num=8)
    assert plan.value("gather").slice_shape == (2, 4, 32)
    kinds = [(phase, i.kind) for phase, i in plan.instructions() if i.is_communication and i.name == "gather"]
    assert kinds == [("forward", "reduce_scatter"), ("backward", "all_gather")]
    assert got == pytest.approx(losses, rel=1e-10)
    np.testing.assert_allclose(found, w, rtol=1e-10)


@each_of(
    ("strategy", "out", "words"),
    (((2, 4), (4, 1)), ((4, 1),), r"may be split \(\(2, 1\),\) or \(\(8, 1\),\). Try \(\(8, 1\),\)"),
    (((2, 1), (1, 4)), ((8, 1),), r"may be split \(\(2, 4\),\). Try \(\(2, 4\),\)"),
    (((2, 4), (4, 1)), ((2, 1), (1, 1)), "may be split"),
    (((2, 4), (4, 1)), ((2, 4),), "may be split"),
)
def test_another_result_is_refused_with_what_it_may_be(strategy, out, words):
    with pytest.raises(StrategyError, match=rf"MatMul 'matmul' \(test_out_strategy.py:\d+\): out_strategy .*{words}"):
        compile(product(strategy, out), np.zeros((16, 16)), device_num=8, dataset_strategy="full_batch")


def test_values_and_types_are_checked_at_once():
    with pytest.raises(StrategyError, match="out_strategy is given without in_strategy"):
        ops.MatMul().shard(None, ((8, 1),))
    with pytest.raises(StrategyError, match="splits dim 0 of input 0 0 ways"):
        ops.MatMul().shard(((1, 1), (1, 1)), ((0, 1),))
    with pytest.raises(TypeError, match=r"out_strategy .* is a list"):
        ops.MatMul().shard(((1, 1), (1, 1)), [[1, 1]])
