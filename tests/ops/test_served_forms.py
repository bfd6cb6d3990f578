"""Operators of models that answer, of experts and of recurrent attention: formulas in numpy, legal and other splits."""

import importlib

import numpy as np
import pytest

from parallel_lab import Parameter, StrategyError, Tensor, compile, ops
from parallel_lab.base.errors import NotBuiltYet, ShapeError
from parallel_lab.nn.tensor.autograd import grad
from parallel_lab.run.simulator import Simulator
from tests.nets import cell

RNG = np.random.default_rng(29)
NAMES = "ApplyRotaryPosEmb DecoderKVCache PromptKVCache DynamicQuantExt AddRmsNorm WKV GroupedMatmulV4 MoeInitRoutingV2"
PAGES = ("ops", "ops.operations", "ops.auto_generate", "ops.operations._inner_ops", "ops.operations.nn_ops")


def drawn(*shape):
    return RNG.normal(size=shape).astype(np.float32)


def on_ranks(call, *inputs, devices=8):
    """The whole results on simulated ranks."""
    net = cell(lambda self, *x: call(*x))
    plan = compile(net, *inputs, device_num=devices, dataset_strategy="full_batch")
    sim = Simulator(plan, {})
    sim.run_step(*inputs)
    made = tuple(sim.full(name) for name in plan.outputs)
    return made if len(made) > 1 else made[0]


@pytest.mark.parametrize("page", PAGES)
def test_scripts_find_the_names_where_mindspore_has_them(page):
    module = importlib.import_module(f"parallel_lab.mindspore.{page}")
    for name in (*NAMES.split(), "MoeTokenPermute", "MoeTokenUnpermute", "MatmulDDS", "DSDMatmul"):
        assert getattr(module, name) is getattr(ops, name)


# ---- positions ----


def turned(x, positions, d, interleaved):
    """x with each pair as a complex number, times exp(i angle).  x: (b, s, heads d), positions: (b, s)."""
    angle = positions[:, :, None, None] / 10 ** np.arange(d // 2)
    pairs = x.reshape(*x.shape[:2], -1, *((d // 2, 2) if interleaved else (2, d // 2)))
    pairs = pairs if interleaved else np.swapaxes(pairs, -1, -2)
    number = (pairs[..., 0] + 1j * pairs[..., 1]) * np.exp(1j * angle)
    made = np.stack([number.real, number.imag], axis=-1 if interleaved else -2)
    return made.reshape(x.shape)


def table(rows, d, interleaved):
    angle = np.arange(rows)[:, None] / 10 ** np.arange(d // 2)
    angle = np.repeat(angle, 2, axis=1) if interleaved else np.tile(angle, 2)
    return np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)


ROTARY = ((2, 1, 4), (2, 1, 4), (1, 1), (1, 1), (2,))


@pytest.mark.parametrize("cos_format", range(4))
@pytest.mark.parametrize("length", [1, 6])
@pytest.mark.parametrize("key_heads", [8, 4])
def test_query_and_key_are_turned_by_their_positions(cos_format, length, key_heads):
    b, d, interleaved = 4, 6, cos_format % 2 == 1
    query, key = drawn(b, length, 8 * d), drawn(b, length, key_heads * d)
    ids = np.array([5, 0, 7, 2]) if length == 1 else np.arange(length)
    positions = ids[:, None] if length == 1 else np.broadcast_to(ids, (b, length))
    cos, sin = table(9, d, interleaved)
    if cos_format >= 2:
        cos, sin = cos[positions.reshape(-1)], sin[positions.reshape(-1)]
    cuts = ROTARY if length == 1 else (*ROTARY[:4], (2,))
    made = on_ranks(ops.ApplyRotaryPosEmb(cos_format).shard(cuts), query, key, cos, sin, ids)
    for x, y in zip((query, key), made, strict=True):
        np.testing.assert_allclose(y, turned(x, positions, d, interleaved), atol=1e-5)


@pytest.mark.parametrize(
    "strategy",
    [
        ((2, 1, 4), (2, 1, 4), (2, 1), (1, 1), (2,)),
        ((2, 1, 4), (2, 1, 2), (1, 1), (1, 1), (2,)),
        ((2, 1, 4), (4, 1, 4), (1, 1), (1, 1), (2,)),
        ((2, 1, 4), (2, 1, 4), (1, 1), (1, 1), (1,)),
        ((1, 2, 4), (1, 2, 4), (1, 1), (1, 1), (1,)),
        ((1, 1, 8), (1, 1, 8), (1, 1), (1, 1), (1,)),  # half a head
        ((2, 1, 4), (2, 1, 4)),
    ],
)
def test_samples_and_heads_of_query_and_key_are_split_alike(strategy):
    x, (cos, sin) = drawn(4, 2, 24), table(2, 6, False)
    with pytest.raises(StrategyError):
        on_ranks(ops.ApplyRotaryPosEmb().shard(strategy), x, x, cos, sin, np.arange(2))


# ---- caches ----

ONES = ((1,),) * 4


@pytest.mark.parametrize(
    ("shape", "cuts"), [((4, 2, 6, 8), (2, 2, 1, 2)), ((4, 6, 8), (4, 1, 2)), ((4, 2, 6, 8), (1, 1, 1, 8))]
)
def test_a_step_writes_at_each_samples_length(shape, cuts):
    cache, update, lengths = drawn(*shape), drawn(*shape[:-2], 1, 8), np.array([3, -1, 5, 0])
    expected = cache.copy()
    for i, place in enumerate(lengths):
        if place >= 0:
            expected[i, ..., place, :] = update[i, ..., 0, :]
    further = (np.array([1]), np.array([2]), np.array([6]), np.array([6]))
    step = ops.DecoderKVCache().shard((cuts, cuts, cuts[:1], *ONES))
    np.testing.assert_array_equal(on_ranks(step, cache, update, lengths, *further), expected)
    kept = Parameter(cache, name="cache")
    ops.DecoderKVCache()(kept, *(Tensor(x) for x in (update, lengths, *further)))
    np.testing.assert_array_equal(kept.asnumpy(), expected)
    with pytest.raises(StrategyError):
        split = (*cuts[:-2], 2, cuts[-1])
        on_ranks(ops.DecoderKVCache().shard((split, split, cuts[:1], *ONES)), cache, update, lengths, *further)
    with pytest.raises(StrategyError):
        on_ranks(ops.DecoderKVCache().shard((cuts, cuts, cuts[:1], (2,), *ONES[1:])), cache, update, lengths, *further)
    with pytest.raises(ShapeError, match="valid_seq_len 6"):
        ops.DecoderKVCache()(*(Tensor(x) for x in (cache, update, np.array([6, 0, 0, 0]), *further)))


def test_a_prompt_fills_the_samples_that_it_names():
    cache, update, samples = drawn(4, 2, 6, 8), drawn(2, 2, 4, 8), np.array([3, 1])
    expected = cache.copy()
    expected[[3, 1]] = 0
    expected[[3, 1], :, :4] = update
    inputs = (cache, update, np.array([4, 4]), samples, np.array([2]), np.array([6]), np.array([6]))
    cuts = (1, 2, 1, 4)
    made = on_ranks(ops.PromptKVCache("right").shard((cuts, cuts, (1,), *ONES)), *inputs)
    np.testing.assert_array_equal(made, expected)
    inputs = (cache, cache[::-1, :, :4].copy(), np.full(4, 4), np.array([0, 1, 2, 3]), *inputs[4:])
    cuts = (4, 1, 1, 2)
    made = on_ranks(ops.PromptKVCache().shard((cuts, cuts, (4,), *ONES)), *inputs)
    np.testing.assert_array_equal(made[:, :, :4], inputs[1])
    elsewhere = (*inputs[:3], np.array([3, 2, 1, 0]), *inputs[4:])
    with pytest.raises(ShapeError, match="this rank's slice"):
        on_ranks(ops.PromptKVCache().shard((cuts, cuts, (4,), *ONES)), *elsewhere)


# ---- numbers in 8 bits, and the norm of a sum ----


def test_each_row_has_a_scale_of_its_own():
    x, smooth = drawn(4, 2, 6), np.abs(drawn(6)) + 0.1
    x[0, 0] = 0
    for given in ((), (smooth,)):
        wide = (x * smooth if given else x).astype(np.float64)
        scale = np.abs(wide).max(axis=-1) / 127
        whole = np.where(scale > 0, scale, 1)[..., None]
        op = ops.DynamicQuantExt().shard(((4, 2, 1), (1,))[: 1 + len(given)])
        made, scales = on_ranks(op, x, *given)
        assert made.dtype == np.int8 and scales.dtype == np.float32
        np.testing.assert_allclose(scales, scale, rtol=1e-6)
        assert np.abs(made - wide / whole).max() <= 0.5 + 1e-4
    with pytest.raises(StrategyError):
        on_ranks(ops.DynamicQuantExt().shard(((2, 2, 2), (2,))), x, smooth)


def test_a_norm_of_a_sum_gives_the_sum_as_well():
    a, b, gamma = drawn(8, 4), drawn(8, 4), drawn(4)
    both = (a + b).astype(np.float64)
    root = 1 / np.sqrt((both**2).mean(axis=-1, keepdims=True) + 1e-6)
    made = on_ranks(ops.AddRmsNorm().shard(((8, 1), (8, 1), (1,))), a, b, gamma)
    for x, y in zip(made, (both * root * gamma, root, both), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5)
    with pytest.raises(StrategyError):
        on_ranks(ops.AddRmsNorm().shard(((4, 2), (4, 2), (2,))), a, b, gamma)


# ---- recurrent attention ----


def test_wkv_is_the_weighted_mean_of_what_came_before():
    b, t, h = 4, 5, 8
    w, u, k, v = -np.abs(drawn(h)), drawn(h), drawn(b, t, h), drawn(b, t, h)
    zeros, low = np.zeros((b, h), np.float32), np.full((b, h), -1e38, np.float32)
    expected = np.empty((b, t, h))
    for i in range(t):
        weight = [np.exp((i - 1 - j) * w + k[:, j]) for j in range(i)] + [np.exp(u + k[:, i])]
        expected[:, i] = sum(x * v[:, j] for j, x in enumerate(weight)) / sum(weight)
    cuts = ((2,), (2,), (4, 1, 2), (4, 1, 2), (4, 2), (4, 2), (4, 2))
    made, m, p, q = on_ranks(ops.WKV().shard(cuts), w, u, k, v, low, zeros, zeros)
    np.testing.assert_allclose(made, expected, rtol=1e-4, atol=1e-5)
    last = [np.exp((t - 1 - j) * w + k[:, j]) for j in range(t)]
    np.testing.assert_allclose(np.exp(m) * q, sum(last), rtol=1e-4)
    np.testing.assert_allclose(np.exp(m) * p, sum(x * v[:, j] for j, x in enumerate(last)), rtol=1e-4, atol=1e-5)
    half = ops.WKV()(*map(Tensor, (w, u, k[:, :2], v[:, :2], low, zeros, zeros)))
    rest = ops.WKV()(Tensor(w), Tensor(u), Tensor(k[:, 2:]), Tensor(v[:, 2:]), *half[1:])
    np.testing.assert_allclose(rest[0].asnumpy(), expected[:, 2:], rtol=1e-4, atol=1e-5)
    for position, wrong in ((2, (2, 2, 2)), (4, (2, 2)), (0, (1,)), (3, (8, 1, 1))):
        with pytest.raises(StrategyError):
            on_ranks(ops.WKV().shard((*cuts[:position], wrong, *cuts[position + 1 :])), w, u, k, v, low, zeros, zeros)


# ---- experts ----


def test_groups_are_given_by_their_ends_or_by_their_rows():
    x, weight, rows = drawn(8, 4), drawn(3, 4, 6), np.array([3, 0, 4])
    expected = np.zeros((8, 6))
    expected[:3], expected[3:7] = x[:3] @ weight[0], x[3:7] @ weight[2]
    product = ops.GroupedMatmulV4().shard((((1, 2),), ((1, 2, 2),), (1,)))
    for ends, kind in ((np.cumsum(rows), 0), (rows, 1)):

        def call(a, b, c, kind=kind):
            return product([a], [b], group_list=c, split_item=3, group_type=0, group_list_type=kind)[0]

        np.testing.assert_allclose(on_ranks(call, x, weight, ends), expected, rtol=1e-5, atol=1e-6)
    with pytest.raises(StrategyError):
        wrong = ops.GroupedMatmulV4().shard((((1, 2),), ((1, 1, 2),), (1,)))
        on_ranks(lambda a, b, c: wrong([a], [b], group_list=c, split_item=3, group_type=0)[0], x, weight, rows)
    with pytest.raises(NotBuiltYet, match="pre_token_scale"):
        product([Tensor(x)], [Tensor(weight)], pre_token_scale=Tensor(rows))


def test_rows_go_to_their_experts_with_room_and_without():
    x, experts = drawn(6, 8), RNG.integers(0, 4, (6, 2))
    pairs = sorted((int(experts[i, j]), i * 2 + j) for i in range(6) for j in range(2))  # expert, copy
    load = [sum(e == n for e, _ in pairs) for n in range(4)]
    route = ops.MoeInitRoutingV2().shard(((1, 8), (1, 1)))
    made, places, ends, none = on_ranks(lambda a, b: route(a, b, 7, 0, 4, 0, 1, False), x, experts)
    np.testing.assert_array_equal(made, x[[copy // 2 for _, copy in pairs[:7]]])
    np.testing.assert_array_equal(places, np.argsort([copy for _, copy in pairs]))
    np.testing.assert_array_equal(ends, np.cumsum(load))
    assert not none.any()
    made, places, none, before = on_ranks(lambda a, b: route(a, b, 0, 2, 4, 1, 0, True), x, experts)
    expected, where = np.zeros((4, 2, 8), np.float32), np.full(12, -1)
    for n in range(4):
        for place, copy in enumerate([c for e, c in pairs if e == n][:2]):
            expected[n, place], where[copy] = x[copy // 2], 2 * n + place
    np.testing.assert_array_equal(made, expected)
    np.testing.assert_array_equal(places, where)
    np.testing.assert_array_equal(before, load)
    with pytest.raises(StrategyError):
        on_ranks(ops.MoeInitRoutingV2().shard(((2, 1), (2, 1))), x, experts)
    with pytest.raises(ShapeError, match="expert_capacity"):
        ops.MoeInitRoutingV2()(Tensor(x), Tensor(experts), drop_pad_mode=1)


def test_tokens_come_back_from_their_experts_with_gradients():
    tokens, experts = drawn(4, 6), np.array([[1, 0], [0, 2], [1, 2], [2, 0]])
    permute, back = ops.MoeTokenPermute().shard(((1, 1), (1, 1))), ops.MoeTokenUnpermute()
    probs = np.full((4, 2), 0.5, np.float32)
    rows, places = permute(Tensor(tokens), Tensor(experts))
    np.testing.assert_array_equal(places.asnumpy(), [3, 0, 1, 5, 4, 6, 7, 2])
    np.testing.assert_allclose(back(rows, places, Tensor(probs)).asnumpy(), tokens, rtol=1e-6)
    weight = drawn(4, 6)

    def total(x):
        rows, places = permute(x, Tensor(experts))
        return ops.reduce_sum(ops.mul(back(rows, places, Tensor(probs)), Tensor(weight)))

    np.testing.assert_allclose(grad(total)(Tensor(tokens)).asnumpy(), weight, rtol=1e-5)
    with pytest.raises(StrategyError):
        ops.MoeTokenPermute().shard(((2, 1), (2, 1)))(Tensor(tokens), Tensor(experts))
