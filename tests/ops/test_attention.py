"""Attention against the formula, loop by loop; the forms agree; messages of the split ones."""

import math
import sys

import numpy as np
import pytest

from parallel_lab import ShapeError, compile, nn, ops
from parallel_lab.nn.tensor.parameter import Parameter
from parallel_lab.nn.tensor.tensor import Tensor
from tests.crossed import each_of

RNG = np.random.default_rng(8)
B, H, S, T, D, E = 2, 3, 5, 7, 4, 6
Q, K, V = RNG.normal(size=(B, H, S, D)), RNG.normal(size=(B, H, T, D)), RNG.normal(size=(B, H, T, E))


def formula(q, k, v, *, scale=None, causal=False, mask=None):
    """Every output row by its own."""
    out = np.zeros((*q.shape[:3], v.shape[3]))
    scale = 1 / math.sqrt(q.shape[3]) if scale is None else scale
    mask = np.zeros((1, 1, 1, 1)) if mask is None else mask
    mask = np.broadcast_to(mask, (*q.shape[:3], k.shape[2]))
    for b, h, i in np.ndindex(*q.shape[:3]):
        keys = [j for j in range(k.shape[2]) if not causal or j <= i]
        weights = np.array([math.exp(scale * (q[b, h, i] @ k[b, h, j]) + mask[b, h, i, j]) for j in keys])
        out[b, h, i] = sum(w * v[b, h, j] for w, j in zip(weights / weights.sum(), keys, strict=True))
    return out


def swap(x):
    return np.ascontiguousarray(x.swapaxes(1, 2))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("scale", [None, 0.7])
@pytest.mark.parametrize("layout", ["BNSD", "BSND"])
def test_fused_attention_follows_the_formula(causal, scale, layout):
    turn = swap if layout == "BSND" else np.asarray
    found = ops.scaled_dot_product_attention(
        turn(Q), turn(K), turn(V), is_causal=causal, scale=scale, input_layout=layout
    )
    np.testing.assert_allclose(turn(found), formula(Q, K, V, scale=scale, causal=causal), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("shape", [(S, T), (B, H, S, T), (B, 1, 1, T), (1, H, S, 1)])
def test_a_mask_is_added_to_the_scores(shape):
    mask = RNG.normal(size=shape)
    aligned = mask.reshape((1,) * (4 - mask.ndim) + shape)
    found = ops.scaled_dot_product_attention_with_mask(Q, K, V, mask)
    np.testing.assert_allclose(found, formula(Q, K, V, mask=aligned), rtol=1e-12, atol=1e-13)


def test_minus_infinity_hides_a_key():
    mask = np.where(np.arange(T) >= 4, -np.inf, 0.0)[None]
    expected = formula(Q, K[:, :, :4], V[:, :, :4])
    found = ops.scaled_dot_product_attention_with_mask(Q, K, V, np.repeat(mask, S, 0))
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("causal", [False, True])
def test_the_expanded_form_equals_the_fused_one(causal):
    found = ops.attention_expand(Q, K, V, is_causal=causal)
    np.testing.assert_allclose(
        found, ops.scaled_dot_product_attention(Q, K, V, is_causal=causal), rtol=1e-12, atol=1e-13
    )


def test_large_scores_do_not_overflow():
    found = ops.scaled_dot_product_attention(
        Q.astype(np.float32) * 1e3, K.astype(np.float32) * 1e3, V.astype(np.float32)
    )
    assert np.isfinite(found).all()
    assert found.dtype == np.float32


def test_many_samples_are_worked_on_in_parts_with_the_same_result(monkeypatch):
    whole = ops.scaled_dot_product_attention(Q, K, V)
    monkeypatch.setattr(sys.modules["parallel_lab.ops.attention"], "CHUNK_BYTES", 1)
    np.testing.assert_allclose(ops.scaled_dot_product_attention(Q, K, V), whole, rtol=1e-14)


class Attend(nn.Cell):
    """Sum of attention over three parameters."""

    def __init__(self, primitive, strategy):
        super().__init__()
        rng = np.random.default_rng(0)
        self.q, self.k, self.v = (Parameter(rng.normal(size=(4, 4, 8, 8)), name=n) for n in "qkv")
        self.attention = primitive.shard(strategy)
        self.mul, self.sum = ops.Mul(), ops.ReduceSum()

    def construct(self, weight):
        return self.sum(self.mul(self.attention(self.q, self.k, self.v), weight))


def forward_kinds(primitive, strategy):
    plan = compile(Attend(primitive, strategy), np.ones((4, 4, 8, 8)), device_num=8, dataset_strategy="full_batch")
    return [i.kind for i in plan.stages[0].program("forward") if i.is_communication and i.name.startswith("attention")]


@pytest.mark.parametrize("cuts", [(2, 4, 1), (1, 2, 4), (4, 1, 2)])
def test_samples_heads_and_rows_of_queries_are_cut_without_a_message(cuts):
    b, h, s = cuts
    found = forward_kinds(ops.ScaledDotProductAttention(is_causal=True), ((b, h, s, 1), (b, h, 1, 1), (b, h, 1, 1)))
    assert found == []


def test_cut_keys_cost_three_all_reduces_in_the_expanded_form():
    kinds = forward_kinds(ops.AttentionExpand(is_causal=True), ((1, 2, 1, 1), (1, 2, 4, 1), (1, 2, 4, 1)))
    assert kinds == ["all_reduce"] * 3


NO_FLOATS = np.ones((S, T), bool)


@each_of(
    ("call", "text"),
    (lambda: ops.scaled_dot_product_attention(Q, K, V, input_layout="BSH"), "input_layout='BSH'"),
    (lambda: ops.scaled_dot_product_attention(Q, K, V, scale="a"), "scale='a'"),
    (lambda: ops.scaled_dot_product_attention(Q[0], K, V), "q is float64 of shape"),
    (
        lambda: ops.scaled_dot_product_attention(*map(Tensor, (Q, K[..., :3], V))),
        "3 elements in dim 3 .'d'.*is already 4",
    ),
    (lambda: ops.scaled_dot_product_attention_with_mask(Q, K, V, NO_FLOATS), "mask is bool.*ops.select"),
)
def test_what_attention_refuses(call, text):
    with pytest.raises(ShapeError, match=text):
        call()
