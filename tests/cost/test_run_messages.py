"""What a rank of a run sends, axis by axis, against tensors of a small decoder."""

from __future__ import annotations

import pytest

from parallel_lab.base.errors import ArgumentError
from parallel_lab.cost.planner import Decoder, Degrees, LatentAttention, get_decoder, run_messages

B, S, H = 3, 96, 24
PLAIN = Decoder("plain", H, 4, 6, 50, kv_heads=2, head_size=4, mlp_width=40)
MIXED = Decoder("mixed", H, 4, 6, 50, 2, 4, 40, experts=8, chosen=3, expert_width=16, dense_layers=1)


def sent_of(decoder: Decoder, run: Degrees, **how):
    return run_messages(decoder, run, B, S, **how)


def test_a_dense_layer_sends_slices_and_keys():
    """Two ranks split a layer, three the sequence: M of 32 tokens, rings of one head of keys."""
    found = sent_of(PLAIN, Degrees(24, tensor=2, context=3, stages=2))
    tokens = B * S // 3
    half = tokens * H * 2 // 2  # (t - 1) / t M
    assert found.tensor_bytes == 10 * half
    assert sent_of(PLAIN, Degrees(24, 2, 3, 2), gathered_again=False).tensor_bytes == 8 * half
    assert sent_of(PLAIN, Degrees(24, 2, 3, 2), sequence_parallel=False).tensor_bytes == 8 * half
    chunk = 2 * tokens * 1 * 4  # k and v of one head of four numbers
    assert found.context_bytes == 2 * chunk * 2 + 2 * chunk * 2 + 3 * chunk * 4
    assert found.border_bytes == tokens // 2 * H * 2
    assert (found.expert_bytes, found.expert_tensor_bytes, found.expert_gradient_bytes) == (0, 0, 0)


@pytest.mark.parametrize("expert_tensor", [1, 2])
def test_a_layer_with_experts_sends_rows_there_and_back_twice(expert_tensor):
    run = Degrees(16, tensor=2, expert=4, expert_tensor=expert_tensor)
    found = sent_of(MIXED, run)
    rows = [H * 2] * (B * S // 2 * 3)  # of the tokens of one of two ranks, a row for each of three choices
    assert found.expert_bytes == 4 * sum(rows) * 3 // 4
    assert found.expert_tensor_bytes == 4 * sum(rows) * (expert_tensor - 1)
    dense = sent_of(MIXED, run, dense=True)
    assert (dense.expert_bytes, dense.tensor_bytes) == (0, 2 * found.tensor_bytes)


def test_gradients_are_reduced_among_their_own_replicas():
    run = Degrees(32, tensor=2, context=2, stages=2, expert=4)  # 4 copies of the data, 8 replicas; 4 of each expert
    found = sent_of(MIXED, run)
    experts = 3 * 8 * 3 * H * 16
    dense = (MIXED.parameters - experts) / 4
    assert found.dense_gradient_bytes == pytest.approx(2 * 7 / 8 * dense * 4)
    assert found.expert_gradient_bytes == pytest.approx(2 * 3 / 4 * experts / 8 * 4)


def test_expanded_latent_keys_are_wider_than_values():
    latent = Decoder("latent", H, 2, 6, 50, mlp_width=40, latent=LatentAttention(8, 4, nope=6, rope=2, v=4))
    found = sent_of(latent, Degrees(4, context=4), way="gathered")
    tokens = B * S // 4
    assert found.context_bytes == 3 * 3 * tokens * 6 * (8 + 4) * 2  # gathered, again, and scattered; k and v


def test_the_first_rule_that_a_run_breaks_is_named():
    with pytest.raises(ArgumentError, match="8 experts on 16 ranks"):
        sent_of(MIXED, Degrees(16, expert=16))
    with pytest.raises(ArgumentError, match="without sequence parallelism"):
        sent_of(MIXED, Degrees(2, tensor=2), sequence_parallel=False)
    assert sent_of(MIXED, Degrees(2), sequence_parallel=False).tensor_bytes == 0  # one rank has all tokens
    with pytest.raises(ArgumentError, match="way='rings'"):
        sent_of(PLAIN, Degrees(2, context=2), way="rings")


def test_rows_of_deepseek_take_four_times_as_long_as_its_experts():
    """4 k h of two bytes, 63 of 64 leave, at 50 GB/s; 18 k h f operations of both passes at 989e12 per second."""
    v3 = get_decoder("deepseek_v3")
    found = run_messages(v3, Degrees(2048, stages=16, expert=64), 1, 4096)
    assert found.expert_bytes == 4 * 4096 * 8 * 7168 * 2 * 63 // 64
    computing_s = 3 * 6 * 8 * 7168 * 2048 * 4096 / 989e12
    longer = 4 * 2 * 63 / 64 * 989e12 / (18 * 2048 * 50e9)
    assert found.expert_bytes / 50e9 / computing_s == pytest.approx(longer) and 4 < longer < 4.5
