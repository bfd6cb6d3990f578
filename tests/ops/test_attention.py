"""Attention: hidden keys, large scores, parts; messages of the split forms. Values: `test_recorded_torch.py`."""

import sys

import numpy as np
import pytest

from parallel_lab import ShapeError, compile, ops
from parallel_lab.nn.tensor.parameter import Parameter
from parallel_lab.nn.tensor.tensor import Tensor
from tests.nets import cell
from tests.refusals import refused

RNG = np.random.default_rng(8)
B, H, S, T, D, E = 2, 3, 5, 7, 4, 6
Q, K, V = RNG.normal(size=(B, H, S, D)), RNG.normal(size=(B, H, T, D)), RNG.normal(size=(B, H, T, E))


def test_minus_infinity_hides_a_key():
    mask = np.repeat(np.where(np.arange(T) >= 4, -np.inf, 0.0)[None], S, 0)
    found = ops.scaled_dot_product_attention_with_mask(Q, K, V, mask)
    expected = ops.scaled_dot_product_attention(Q, K[:, :, :4], V[:, :, :4])
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-13)


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


def attending(primitive, strategy):
    """Sum of attention over three parameters."""
    rng = np.random.default_rng(0)
    qkv = {name: Parameter(rng.normal(size=(4, 4, 8, 8)), name=name) for name in "qkv"}
    attention = primitive.shard(strategy)
    return cell(lambda net, w: ops.reduce_sum(net.attention(net.q, net.k, net.v) * w), attention=attention, **qkv)


def forward_kinds(primitive, strategy):
    plan = compile(attending(primitive, strategy), np.ones((4, 4, 8, 8)), device_num=8, dataset_strategy="full_batch")
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


test_what_attention_refuses = refused(
    (lambda: ops.scaled_dot_product_attention(Q[0], K, V), "q is float64 of shape"),
    (
        lambda: ops.scaled_dot_product_attention(*map(Tensor, (Q, K[..., :3], V))),
        "3 elements in dim 3 .'d'.*is already 4",
    ),
    (lambda: ops.scaled_dot_product_attention_with_mask(Q, K, V, NO_FLOATS), "mask is bool.*ops.select"),
    error=ShapeError,
)
