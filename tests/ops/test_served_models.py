"""Operators of models that answer, and layers of experts: documented examples, and the formulas in numpy."""

import numpy as np
import pytest

from parallel_lab import Parameter, StrategyError, Tensor, compile, ops
from parallel_lab.base.errors import NotBuiltYet, ShapeError
from parallel_lab.graph.passes import PASSES
from parallel_lab.nn.tensor.autograd import grad
from parallel_lab.run.simulator import Simulator
from tests.nets import cell

RNG = np.random.default_rng(31)


def drawn(*shape):
    return RNG.normal(size=shape).astype(np.float32)


def softmax(x):
    raised = np.exp(x - x.max(axis=-1, keepdims=True))
    return raised / raised.sum(axis=-1, keepdims=True)


def attention(query, key, value, hidden, scale):
    """query: (b, n, s, d), key, value: (b, n or fewer, t, d), hidden: bool, broadcast to (b, n, s, t)."""
    times = query.shape[1] // key.shape[1]
    key, value = (np.repeat(x, times, axis=1) for x in (key, value))
    return softmax(np.where(hidden, -1e30, scale * query @ np.swapaxes(key, 2, 3))) @ value


def heads(x, n):
    return np.swapaxes(x.reshape(*x.shape[:2], n, -1), 1, 2)


def flat(x):
    return np.swapaxes(x, 1, 2).reshape(x.shape[0], x.shape[2], -1)


def make_net(call):
    return cell(lambda net, *inputs: net.call(*inputs), call=call)


def on_ranks(call, *inputs):
    """The whole result on 4 simulated ranks."""
    plan = compile(make_net(call), *inputs, device_num=4, dataset_strategy="full_batch")
    sim = Simulator(plan, {})
    sim.run_step(*inputs)
    return sim.full(plan.outputs[0])


Q, K, V = drawn(2, 4, 24), drawn(2, 6, 12), drawn(2, 6, 12)  # 4 query heads of 6, 2 key heads
CAUSAL = np.arange(6) > np.arange(4)[:, None]
CUTS = ((2, 1, 2),) * 3


def test_a_prompt_has_fewer_key_heads_and_hides_by_its_mask():
    prompt = ops.PromptFlashAttention(4, 0.5, input_layout="BSH", num_key_value_heads=2, next_tokens=2147483647)
    mask = np.broadcast_to(CAUSAL, (2, 1, 4, 6))
    expected = flat(attention(heads(Q, 4), heads(K, 2), heads(V, 2), mask, 0.5))
    np.testing.assert_allclose(prompt(Tensor(Q), Tensor(K), Tensor(V), Tensor(mask)).asnumpy(), expected, rtol=1e-5)
    split = prompt.shard(((2, 2, 1), (2, 1, 1), (2, 1, 1), (2, 1, 2, 1)))
    np.testing.assert_allclose(on_ranks(split, Q, K, V, mask), expected, rtol=1e-5)
    with pytest.raises(StrategyError, match="stays whole"):
        on_ranks(
            ops.PromptFlashAttention(4, 0.5, num_key_value_heads=2).shard(((1, 1, 2), (1, 2, 2), (1, 2, 2))), Q, K, V
        )


def test_without_a_mask_a_prompt_hides_nothing_though_next_tokens_is_0():
    expected = flat(attention(heads(Q, 4), heads(K, 2), heads(V, 2), False, 1.0))
    made = ops.PromptFlashAttention(num_heads=4, num_key_value_heads=2)(Tensor(Q), Tensor(K), Tensor(V))
    np.testing.assert_allclose(made.asnumpy(), expected, rtol=1e-5)


@pytest.mark.parametrize("strategy", [None, (*CUTS, (2,)), ((2, 1, 2), ((2, 1, 2),), ((2, 1, 2),), (2,))])
def test_a_new_query_sees_the_keys_that_its_sample_has(strategy):
    lengths = np.array([3, 5])
    hidden = (np.arange(6) >= lengths[:, None])[:, None, None]
    expected = flat(attention(heads(Q[:, :1], 4), heads(K, 2), heads(V, 2), hidden, 1.0))
    incre = ops.IncreFlashAttention(num_heads=4, num_key_value_heads=2)
    fused = ops.FusedInferAttentionScore(num_heads=4, num_key_value_heads=2)
    if strategy is not None:
        incre, fused = incre.shard(strategy), fused.shard(strategy)
    by_incre = on_ranks(lambda q, k, v, n: incre(q, [k], (v,), None, n), Q[:, :1], K, V, lengths)
    by_fused = on_ranks(lambda q, k, v, n: fused(q, [k], [v], actual_seq_lengths_kv=n)[0], Q[:, :1], K, V, lengths)
    np.testing.assert_allclose(by_incre, expected, rtol=1e-5)
    np.testing.assert_allclose(by_fused, expected, rtol=1e-5)


def test_keys_written_to_blocks_are_found_by_the_table():
    """Contiguous keys and the same keys in blocks, in any order, give one result."""
    keys, values, table, lengths = drawn(2, 6, 12), drawn(2, 6, 12), np.array([[3, 0, 4], [1, 5, 2]]), np.array([5, 3])
    caches = [Parameter(np.zeros((6, 2, 2, 6), np.float32), name=n) for n in ("keys", "values")]
    slots = (table[:, :, None] * 2 + np.arange(2)).reshape(-1)
    write = ops.ReshapeAndCache()
    assert write(Tensor(keys), Tensor(values), *caches, Tensor(slots)).shape == (2, 6, 12)
    expected = keys.reshape(12, 2, 6)
    np.testing.assert_array_equal(caches[0].asnumpy().reshape(12, 2, 6)[slots], expected)
    hidden = (np.arange(6) >= lengths[:, None])[:, None, None]
    wanted = flat(attention(heads(Q[:, :1], 4), heads(keys, 2), heads(values, 2), hidden, 0.5))
    paged = ops.PagedAttention(4, 0.5, 2)
    tensors = [Tensor(x) for x in (table, lengths)]
    np.testing.assert_allclose(paged(Tensor(Q[:, :1]), *caches, *tensors).asnumpy(), wanted, rtol=1e-5)
    cuts = ((2, 1, 2), (1, 1, 2, 1), (1, 1, 2, 1), (2, 1), (2,))
    split = ops.PagedAttention(4, 0.5, 2).shard(cuts)
    blocks = [c.asnumpy() for c in caches]
    np.testing.assert_allclose(on_ranks(split, Q[:, :1], *blocks, table, lengths), wanted, rtol=1e-5)
    with pytest.raises(StrategyError, match="between the first and the last"):
        on_ranks(ops.PagedAttention(4, 0.5, 2).shard(((2, 2, 1), *cuts[1:])), Q[:, :1], *blocks, table, lengths)


def test_alibi_is_added_and_negative_slots_are_skipped():
    query, cache, alibi = drawn(2, 1, 6), drawn(3, 2, 2, 3), drawn(2, 2, 1, 4)
    table, lengths = np.array([[0, 2], [1, 0]]), np.array([4, 3])
    kept = np.swapaxes(cache[table].reshape(2, 4, 2, 3), 1, 2)
    scores = np.where(
        np.arange(4) >= lengths[:, None, None, None], -1e30, heads(query, 2) @ np.swapaxes(kept, 2, 3) + alibi
    )
    blocks = Parameter(cache, name="cache")
    made = ops.PagedAttentionMask(2, 1.0, 2)(
        *(Tensor(query), blocks, blocks, Tensor(table), Tensor(lengths), None, None, Tensor(alibi))
    )
    np.testing.assert_allclose(made.asnumpy(), flat(softmax(scores) @ kept), rtol=1e-5)
    ops.ReshapeAndCache()(*[Tensor(np.ones((2, 6), np.float32))] * 2, blocks, blocks, Tensor(np.array([-1, 5])))
    cache[2, 1] = 1
    np.testing.assert_array_equal(blocks.asnumpy(), cache)


@pytest.mark.parametrize("axis", [-1, -2])
def test_a_cache_takes_updates_at_each_samples_index(axis):
    shape = (2, 2, 1, 3) if axis == -2 else (2, 2, 5, 1)
    start, update, places = drawn(2, 2, 5, 3), drawn(*shape), np.array([2, 0])
    expected = start.copy()
    for i, place in enumerate(places):
        where = (i, slice(None), place) if axis == -2 else (i, slice(None), slice(None), place)
        expected[where] = np.squeeze(update[i], axis)
    var = Parameter(start, name="var")
    ops.KVCacheScatterUpdate()(var, Tensor(places), Tensor(update), axis, "update")
    np.testing.assert_array_equal(var.asnumpy(), expected)
    if axis == -2:
        past = Parameter(start, name="past")
        ops.KVCacheMgr()(past, Tensor(update), Tensor(places))
        np.testing.assert_array_equal(past.asnumpy(), expected)


def test_what_is_not_trained_has_no_gradient_instead_of_zeros():
    attend = ops.PromptFlashAttention(num_heads=4, num_key_value_heads=2)
    with pytest.raises(NotBuiltYet, match=r"no gradient.*FlashAttentionScore"):
        grad(lambda q: attend(q, Tensor(K), Tensor(V)).sum())(Tensor(Q))
    weight = Parameter(drawn(24, 24), name="weight")
    net = make_net(
        lambda q, k, v: ops.reduce_sum(attend(ops.matmul(ops.reshape(q, (8, 24)), weight).reshape((2, 4, 24)), k, v))
    )
    net.insert_param_to_cell("weight", weight)
    with pytest.raises(NotBuiltYet, match="no gradient"):
        compile(net, Q, K, V, device_num=4, dataset_strategy="full_batch", passes=PASSES)


# ---- experts ----


def test_feed_forward_of_experts_takes_rows_in_turn():
    """MindSpore: fast gelu is x / (1 + exp(-1.702 |x|)) * exp(0.851 (x - |x|))."""
    x, w1, b1, w2, b2 = drawn(6, 4), drawn(3, 4, 8), drawn(3, 8), drawn(3, 8, 4), drawn(3, 4)
    expected = np.zeros((6, 4), np.float32)
    for row, e in zip(range(5), [0, 0, 2, 2, 2], strict=True):
        inner = x[row] @ w1[e] + b1[e]
        inner = inner / (1 + np.exp(-1.702 * abs(inner))) * np.exp(0.851 * (inner - abs(inner)))
        expected[row] = inner @ w2[e] + b2[e]
    inputs = (x, w1, w2, np.array([2, 0, 3]), b1, b2)
    cuts = ((1, 1), (1, 1, 4), (1, 4, 1), (1,), (1, 4), (1, 1))
    np.testing.assert_allclose(ops.FFN("fastgelu", 1)(*map(Tensor, inputs)).asnumpy(), expected, rtol=1e-4)
    np.testing.assert_allclose(on_ranks(ops.FFNExt().shard(cuts), *inputs), expected, rtol=1e-4)
    with pytest.raises(NotBuiltYet, match="deqScale1"):
        ops.FFNExt()(*map(Tensor, inputs), None, None, Tensor(b1))


def test_grouped_products_of_lists_and_of_rows():
    x, w, ends, bias = drawn(8, 4), drawn(3, 4, 2), np.array([3, 3, 7]), drawn(3, 2)
    expected = np.concatenate([x[:3] @ w[0] + bias[0], x[3:7] @ w[2] + bias[2], np.zeros((1, 2), np.float32)])
    rows = ops.GroupedMatmul(3, 0).shard((((2, 2),), ((1, 2, 1),), ((1, 1),), (1,)))
    made = on_ranks(lambda x, w, b, g: rows([x], [w], [b], group_list=g)[0], x, w, bias, ends)
    np.testing.assert_allclose(made, expected, rtol=1e-5)
    pairs = ops.GroupedMatmul(0, -1).shard((((1, 2), (2, 1)), ((2, 2), (1, 2))))
    net = make_net(lambda a, b, v, w: pairs([a, b], [v, w]))
    a, b, v, u = drawn(2, 4), drawn(4, 6), drawn(4, 2), drawn(6, 2)
    plan = compile(net, a, b, v, u, device_num=4, dataset_strategy="full_batch")
    sim = Simulator(plan, {})
    sim.run_step(a, b, v, u)
    for out, want in zip(plan.outputs, (a @ v, b @ u), strict=True):
        np.testing.assert_allclose(sim.full(out), want, rtol=1e-5)


def test_routing_there_and_back_is_the_weighted_sum_of_the_experts():
    """MindSpore's examples of MoeGatingTopKSoftmax (in float16) and of MoeComputeExpertTokens (its first three)."""
    x = np.array([[0.1, 0.2, 0.1, 0.1], [0.2, 0.2, 0.4, 0.2], [0.3, 0.3, 0.1, 0.3], [0.1, 0.7, 0.1, 0.1]], np.float32)
    scores, experts, rows = (t.asnumpy() for t in ops.MoeGatingTopKSoftmax()(Tensor(x), k=4))
    documented = [
        *([0.2693, 0.2437, 0.2437, 0.2437], [0.2893, 0.2369, 0.2369, 0.2369]),
        *([0.262, 0.262, 0.262, 0.2144], [0.378, 0.2074, 0.2074, 0.2074]),
    ]
    np.testing.assert_allclose(scores, documented, atol=3e-4)
    assert rows[1].tolist() == [1, 5, 9, 13] and experts[0, 0] == 1
    tokens = ops.MoeComputeExpertTokens()(Tensor(np.array([0, 0, 1, 2, 2], np.int32)), 5)
    assert tokens.asnumpy().tolist() == [2, 3, 5, 5, 5]

    scores, experts, rows = ops.MoeGatingTopKSoftmax()(Tensor(x), k=2)
    moved, places, sorted_experts = ops.MoeInitRouting()(Tensor(x), rows, experts, 4)
    assert sorted_experts.asnumpy().tolist() == sorted(experts.asnumpy().reshape(-1).tolist())
    given, bias, skip = moved.asnumpy() * (1 + sorted_experts.asnumpy()[:, None]), drawn(4, 4), drawn(4, 4)
    e, s = experts.asnumpy(), scores.asnumpy()
    expected = skip + (s[..., None] * ((1 + e[..., None]) * x[:, None] + bias[e])).sum(axis=1)
    tensors = (Tensor(given.astype(np.float32)), Tensor(skip), None, Tensor(bias), scores, places, experts)
    np.testing.assert_allclose(ops.MoeFinalizeRouting()(*tensors).asnumpy(), expected, rtol=1e-5)


@pytest.mark.parametrize("cut", [None, 7, 1])
def test_tokens_are_sorted_by_expert_and_come_back_with_their_gradients(cut):
    tokens, experts, weights = drawn(6, 4), RNG.integers(0, 3, (6, 2)), RNG.random((6, 2)).astype(np.float32)
    pairs = [(token, choice) for token in range(6) for choice in range(2)]
    copies = sorted(pairs, key=lambda pair: experts[pair])  # stably
    rows, places = ops.moe_token_permute(Tensor(tokens), Tensor(experts), cut)
    np.testing.assert_array_equal(rows.asnumpy(), tokens[[token for token, _ in copies[:cut]]])
    assert [copies[row] for row in places.asnumpy()] == pairs
    stays = np.zeros((6, 2))
    for token, choice in copies[:cut]:
        stays[token, choice] = 1

    def there_and_back(x, probs):
        rows, places = ops.moe_token_permute(x, Tensor(experts), cut)
        return ops.moe_token_unpermute(rows, places, probs)

    back = there_and_back(Tensor(tokens), Tensor(weights))
    np.testing.assert_allclose(back.asnumpy(), tokens * (weights * stays).sum(1, keepdims=True), rtol=1e-5)
    total = grad(lambda x, probs: ops.reduce_sum(there_and_back(x, probs)), (0, 1))
    of_tokens, of_weights = total(Tensor(tokens), Tensor(weights))
    np.testing.assert_allclose(of_tokens.asnumpy(), np.tile((weights * stays).sum(1, keepdims=True), 4), rtol=1e-5)
    np.testing.assert_allclose(of_weights.asnumpy(), stays * tokens.sum(1, keepdims=True), rtol=1e-5, atol=1e-6)


def test_sorted_tokens_without_weights_are_put_back_and_padding_is_refused():
    tokens, experts = drawn(5, 2), np.array([2, 0, 1, 0, 2])
    rows, places = ops.moe_token_permute(Tensor(tokens), Tensor(experts))
    np.testing.assert_array_equal(ops.moe_token_unpermute(rows, places).asnumpy(), tokens)
    with pytest.raises(ShapeError, match="padded_mode=True"):
        ops.moe_token_permute(Tensor(tokens), Tensor(experts), padded_mode=True)
    with pytest.raises(ShapeError, match="restore_shape"):
        ops.moe_token_unpermute(rows, places, restore_shape=(5, 2))
    with pytest.raises(ShapeError, match=r"indices \(5,\)"):
        ops.moe_token_unpermute(rows, places, Tensor(np.ones((5, 2), np.float32)))
    with pytest.raises(ShapeError, match="must be ints"):
        ops.moe_token_permute(Tensor(tokens), Tensor(drawn(5)))


# ---- 8 bits ----


def test_quantized_numbers_are_mindspores_examples():
    """Quant: round(scale x + offset), kept within int8; AntiQuant: scale (x + offset); Dequant: scale scale x."""
    x = Tensor(np.array([100.0, 150.0, -0.5], np.float32))
    assert ops.Quant(80.0, 0.0)(x).asnumpy().tolist() == [127, 127, -40]
    small, given = np.array([0.1, 0.26], np.float32), [Tensor(np.array(x, np.float32)) for x in ([8, 4], [0, 2])]
    assert ops.QuantV2()(Tensor(small), *given).asnumpy().tolist() == [1, 3]
    assert ops.Quant(2.0, 0.5, True, "Floor")(Tensor(small)).asnumpy().tolist() == [0, 1]
    x = Tensor(np.array([50, 20], np.int8))
    two, one = (Tensor(np.array(n, np.float32)) for n in (2.0, 1.0))
    assert ops.AntiQuant()(x, two, one).asnumpy().tolist() == [102, 42]
    assert ops.Dequant(True, True)(Tensor(np.array([-3, 5], np.int32)), two).asnumpy().tolist() == [0, 20]


@pytest.mark.parametrize("bits", [False, True])
def test_products_of_int8_add_a_bias_of_ints_before_they_are_scaled(bits):
    a, b = (RNG.integers(-5, 5, shape).astype(np.int8) for shape in ((4, 8), (8, 6)))
    scale, bias = np.array([0.5, 1.5, 2, 3, 4, 0.25], np.float32), np.arange(6, dtype=np.int32)
    expected = (a.astype(int) @ b + bias) * scale
    given = scale.view(np.int32).astype(np.int64) if bits else scale
    product = ops.QuantBatchMatmul(dtype=np.float32).shard(((2, 2), (2, 1), (1,), (1,)))
    made = on_ranks(lambda a, b, s, c: product(a, b, s, bias=c), a, b, given, bias)
    np.testing.assert_allclose(made, expected, rtol=1e-6)
    with pytest.raises(NotBuiltYet, match="offset"):
        product(Tensor(a), Tensor(b), Tensor(scale), Tensor(scale))


def test_weights_of_int8_are_scaled_by_column():
    x, w = drawn(4, 8), RNG.integers(-5, 5, (6, 8)).astype(np.int8)
    scale, offset, bias = drawn(6), drawn(6), drawn(6)
    expected = x @ ((w.T + offset) * scale) + bias
    product = ops.WeightQuantBatchMatmul(transpose_weight=True).shard(((1, 2), (2, 2), (2,), (2,), (2,)))
    made = on_ranks(lambda x, w, s, o, c: product(x, w, s, o, bias=c), x, w, scale, offset, bias)
    np.testing.assert_allclose(made, expected, rtol=1e-4, atol=1e-5)


# ---- classes of auto_generate that were missing ----

X, Y = np.array([[-5.0, 7.0, 3.5], [2.0, -1.0, 9.0]]), np.array([3.0, 2.0, -2.0])
WRITTEN = {
    "InplaceAddExt": ((Y, 2), X + 2 * Y),
    "InplaceAddsExt": ((1.5, 2), X + 3),
    "InplaceSubExt": ((Y,), X - Y),
    "InplaceSubScalar": ((1.5, -1), X + 1.5),
    "InplaceMul": ((Y,), X * Y),
    "InplaceMuls": ((4,), X * 4),
    "InplaceDiv": ((Y,), X / Y),
    "InplaceDivs": ((4,), X / 4),
    "InplaceFloorDivide": ((Y,), np.floor(X / Y)),
    "InplaceFloorDivides": ((4,), np.floor(X / 4)),
    "InplaceCopy": ((Y,), np.broadcast_to(Y, X.shape)),
}
MADE = {
    "FmodTensor": ((X, Y), np.fmod(X, Y)),
    "FmodScalar": ((X, 3), np.fmod(X, 3)),
    "RemainderTensorTensor": ((X, Y), np.mod(X, Y)),
    "RemainderTensorScalar": ((X, -3), np.mod(X, -3)),
    "RemainderScalarTensor": ((7, X), np.mod(7, X)),
    "Muls": ((X, 3), X * 3),
    "ClampScalar": ((X, -1, 5), np.clip(X, -1, 5)),
    "RepeatInterleaveInt": ((X, 2, 1), np.repeat(X, 2, 1)),
    "RepeatInterleaveTensor": ((X, np.array([2, 0, 1]), 1), np.repeat(X, [2, 0, 1], 1)),
}


def tensors(given):
    return [Tensor(x) if isinstance(x, np.ndarray) else x for x in given]


@pytest.mark.parametrize("name", WRITTEN)
def test_a_parameter_takes_the_result_in_place(name):
    given, expected = WRITTEN[name]
    parameter = Parameter(X, name="x")
    getattr(ops, name)()(parameter, *tensors(given))
    np.testing.assert_allclose(parameter.asnumpy(), expected, rtol=1e-12)


@pytest.mark.parametrize("name", MADE)
def test_another_class_computes_what_numpy_does(name):
    given, expected = MADE[name]
    np.testing.assert_allclose(getattr(ops, name)()(*tensors(given)).asnumpy(), expected, rtol=1e-12)


def test_an_operator_with_a_number_has_one_tuple_in_its_strategy():
    remainder = ops.RemainderScalarTensor().shard(((2, 1),))
    np.testing.assert_allclose(on_ranks(lambda x: remainder(7, x), X), np.mod(7, X), rtol=1e-12)


def test_layer_norm_v3_gives_one_over_the_deviation():
    y, mean, inverse = ops.LayerNormV3(-1, -1)(Tensor(X), Tensor(np.ones(3)), Tensor(np.zeros(3)))
    np.testing.assert_allclose(inverse.asnumpy(), 1 / np.sqrt(X.var(axis=1, keepdims=True) + 1e-7), rtol=1e-12)
    np.testing.assert_allclose(y.asnumpy(), (X - X.mean(axis=1, keepdims=True)) * inverse.asnumpy(), rtol=1e-10)
    assert mean.shape == (2, 1)
