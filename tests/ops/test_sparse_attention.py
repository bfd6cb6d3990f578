"""Attention in blocks: MatmulDDS, DSDMatmul and FixedSparseAttention, against attention with a mask of the whole."""

import numpy as np
import pytest
from parallel_lab.mindspore.nn.transformer import FixedSparseAttention, OpParallelConfig

from parallel_lab import StrategyError, Tensor, compile, ops
from parallel_lab.base.errors import ArgumentError, ShapeError
from parallel_lab.nn.tensor.autograd import grad
from parallel_lab.run.simulator import Simulator
from tests.nets import cell

B, H, D, S = 2, 4, 32, 128
RNG = np.random.default_rng(17)
Q, K, V = (RNG.normal(size=(B, S, H * D)).astype(np.float32) for _ in range(3))
SAMPLES = np.ones((B, S), np.float32)
SAMPLES[1, 100:] = 0  # padding
LEGAL = [(1, 1), (2, 1), (1, 4), (2, 4), (2, 2), (1, 2)]


def seen(samples, heads):
    """(b, h, s, s) bool: one's block up to oneself without padding, and tile 3 - h % 4 of each earlier block."""
    i = np.arange(samples.shape[1])
    block, tile = i // 64, i // 16 % 4
    near = (block[:, None] == block) & (i[:, None] >= i) & (samples[:, :, None] * samples[:, None] > 0)
    far = [(tile == 3 - h % 4) & (block[:, None] > block) for h in range(heads)]
    return near[:, None] | np.stack(far)


def attention(q, k, v, samples, heads, scale):
    q, k, v = (np.swapaxes(x.astype(np.float64).reshape(*x.shape[:2], heads, -1), 1, 2) for x in (q, k, v))
    scores = np.where(seen(samples, heads), scale * q @ np.swapaxes(k, 2, 3), -np.inf)
    scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
    made = scores / scores.sum(axis=-1, keepdims=True) @ v
    return np.swapaxes(made, 1, 2).reshape(len(q), q.shape[2], -1)


def tiles(x, order):
    """The rows of all samples in tiles: (b s / 16, 16, h d / 16, 16), its dims in `order`."""
    return np.ascontiguousarray(x.reshape(-1, 16, x.shape[-1] // 16, 16).transpose(order))


def masks(samples):
    i = np.arange(S)
    local = np.zeros((B, 64, S // 64, 64), np.float32)
    for n in range(S // 64):
        row = samples[:, 64 * n : 64 * n + 64]
        local[:, :, n] = -10000 * (1 - np.tril(row[:, :, None] * row[:, None]))
    wide = np.where(i[:, None] // 64 > np.arange(S // 4) // 16, 0, np.float32(-10000))
    wide = np.broadcast_to(wide.reshape(S // 16, 16, S // 64, 16).transpose(2, 0, 1, 3), (B, S // 64, S // 16, 16, 16))
    return tiles(local.reshape(B * 64, S), (2, 0, 1, 3)), wide.reshape(-1, S // 16, 16, 16).copy()


OPERANDS = (tiles(Q, (2, 0, 1, 3)), tiles(K, (2, 0, 1, 3)), *masks(SAMPLES), tiles(V, (0, 2, 3, 1)))


def net(dp, mp):
    scores = ops.MatmulDDS(B, H).shard(((mp, dp, 1, 1), (mp, dp, 1, 1), (1, dp, 1, 1), (dp, 1, 1, 1)))
    values = ops.DSDMatmul().shard(((dp, mp, 1, 1, 1, 1, 1), (dp, mp, 1, 1, 1, 1, 1), (dp, mp, 1, 1)))
    return cell(lambda self, q, k, near, far, v: values(*scores(q, k, near, far), v))


@pytest.mark.parametrize(("dp", "mp"), LEGAL)
def test_blocks_give_what_a_mask_of_the_whole_gives(dp, mp):
    plan = compile(net(dp, mp), *OPERANDS, device_num=8, dataset_strategy="full_batch")
    sim = Simulator(plan, {})
    sim.run_step(*OPERANDS)
    made = sim.full(plan.outputs[0])  # (b, h, d / 16, s / 16, row, column)
    assert made.shape == (B, H, D // 16, S // 16, 16, 16)
    made = made.transpose(0, 3, 4, 1, 2, 5).reshape(B, S, H * D)
    np.testing.assert_allclose(made, attention(Q, K, V, SAMPLES, H, 1.0), rtol=1e-4, atol=1e-5)
    kinds = {i.kind for i in plan.stages[0].program("forward")}
    # device matrices are (mp, dp) of scores and (dp, mp) of values, as in MindSpore: cut both ways, blocks change ranks
    assert ("all_gather" in kinds) == (dp > 1 < mp) and not kinds & {"all_reduce", "reduce_scatter"}


def test_both_results_of_the_scores_are_one_softmax():
    near, far = ops.MatmulDDS(bs=B, heads=H)(*map(Tensor, OPERANDS[:4]))
    assert near.shape == (B, H, S // 64, 4, 4, 16, 16) and far.shape == (B, H, S // 64, S // 64, 4, 16, 16)
    total = near.asnumpy().sum(axis=(3, 6)) + far.asnumpy().sum(axis=(3, 6))
    np.testing.assert_allclose(total, 1, rtol=1e-5)


LOCAL, WIDE = (1, 2, 1, 1), (2, 1, 1, 1)


@pytest.mark.parametrize(
    "strategy",
    [
        ((2, 2, 1, 1), (1, 2, 1, 1), LOCAL, WIDE),  # heads of q and k
        ((2, 2, 1, 1), (2, 2, 1, 1), LOCAL, (1, 1, 1, 1)),  # samples of the masks
        ((2, 2, 1, 1), (2, 2, 1, 1), (2, 2, 1, 1), WIDE),  # the queries
        ((2, 2, 2, 1), (2, 2, 2, 1), LOCAL, WIDE),  # a tile
        ((8, 1, 1, 1), (8, 1, 1, 1), (1, 1, 1, 1), (1, 1, 1, 1)),  # half a head
        ((2, 4, 1, 1), (2, 4, 1, 1), (1, 4, 1, 1), (4, 1, 1, 1)),  # half a sample
        ((2, 2), (2, 2), LOCAL, WIDE),
    ],
)
def test_only_samples_and_heads_of_scores_are_split(strategy):
    scores = ops.MatmulDDS(B, H).shard(strategy)
    with pytest.raises(StrategyError):
        compile(cell(lambda self, *x: scores(*x)), *OPERANDS[:4], device_num=8, dataset_strategy="full_batch")


def test_shapes_that_make_no_blocks_are_refused():
    with pytest.raises(ShapeError, match="bs=3"):
        ops.MatmulDDS(3, H)(*map(Tensor, OPERANDS[:4]))
    near, far = ops.MatmulDDS(B, H)(*map(Tensor, OPERANDS[:4]))
    with pytest.raises(ShapeError, match="b samples"):
        ops.DSDMatmul()(near, far, Tensor(OPERANDS[4][:7]))


def test_the_layer_of_1024_positions_on_4_ranks():
    """q and k are each divided by sqrt(d), as in MindSpore."""
    heads, width = 4, 256
    q, k, v = (RNG.normal(size=(B, 1024, width)).astype(np.float16) for _ in range(3))
    samples = np.ones((B, 1024), np.float32)
    samples[1, 900:] = 0
    mask = np.broadcast_to(samples[:, None], (B, 1024, 1024))
    layer = FixedSparseAttention(B, heads, 64, 64, parallel_config=OpParallelConfig(2, 2))
    plan = compile(layer, q, k, v, mask, device_num=4, dataset_strategy="full_batch")
    sim = Simulator(plan, {p.name: p.asnumpy() for p in layer.get_parameters()})
    sim.run_step(q, k, v, mask)
    made = sim.full(plan.outputs[0])
    assert made.dtype == np.float16
    np.testing.assert_allclose(made, attention(q, k, v, samples, heads, 1 / 64), atol=4e-3)


def test_the_layer_takes_only_what_mindspores_kernel_does():
    for wrong in ({"size_per_head": 32}, {"block_size": 32}, {"seq_length": 512}, {"batch_size": 3}):
        with pytest.raises(ArgumentError):
            given = {"batch_size": 2, "num_heads": 4, "size_per_head": 64, "block_size": 64, **wrong}
            FixedSparseAttention(**given, parallel_config=OpParallelConfig(2, 2))


def test_gradients_flow_through_scores_and_values():
    """Against the attention's gradient by differences, for one direction of all operands."""
    rng = np.random.default_rng(5)
    operands = [x.astype(np.float64) for x in OPERANDS]
    ways = [rng.normal(size=x.shape) for x in operands]
    weight = rng.normal(size=(B, H, D // 16, S // 16, 16, 16))
    scores, values = ops.MatmulDDS(B, H), ops.DSDMatmul()

    def total(*x):
        return ops.reduce_sum(ops.mul(values(*scores(*x[:4]), x[4]), Tensor(weight)))

    grads = grad(total, grad_position=(0, 1, 2, 3, 4))(*map(Tensor, operands))
    slope = sum(float((g.asnumpy() * w).sum()) for g, w in zip(grads, ways, strict=True))
    h = 1e-5
    up, down = (float(total(*(Tensor(x + s * h * w) for x, w in zip(operands, ways, strict=True)))) for s in (1, -1))
    assert slope == pytest.approx((up - down) / (2 * h), rel=1e-6)
