"""Bytes of divided sequences: against tensors that are cut and passed on, element by element."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest

from parallel_lab.base.cluster import Link
from parallel_lab.base.errors import ArgumentError, LayoutError
from parallel_lab.cost.planner import (
    AttentionMessages,
    different_places,
    dispatch_bytes,
    least_hidden_tokens,
    padded_exchange,
    sequence_parallel_messages,
)
from parallel_lab.layout.placements import Placement, attention_work
from tests.refusals import refused

SHAPES = [(2, 24, 8, 4, 3), (1, 32, 8, 2, 2), (3, 48, 16, 16, 5)]  # samples, tokens, heads, kv heads, head size


def shape_of(sizes: tuple[int, ...], ranks: int, number_bytes: int = 2) -> AttentionMessages:
    b, s, heads, kv_heads, d = sizes
    return AttentionMessages(b, s, heads, d, ranks, kv_heads, number_bytes)


def test_sequence_parallel_sends_five_quarters_of_what_tensor_parallel_sends():
    """b 2, s 8, h 16, t 4, float32, pass by pass: a gather and a scatter move t - 1 quarters of M = 1,024 bytes."""
    one, all_reduce = 3 * 1024 // 4, 2 * 3 * 1024 // 4
    again = sequence_parallel_messages(2, 8, 16, 4, 4)
    kept = sequence_parallel_messages(2, 8, 16, 4, 4, gathered_again=False)
    assert (again.sent_bytes, again.all_gather, again.reduce_scatter) == ((6 + 4) * one, 6, 4)
    assert (kept.sent_bytes, kept.all_gather) == ((4 + 4) * one, 4)
    assert again.tensor_parallel_bytes == 4 * all_reduce == kept.sent_bytes
    with pytest.raises(ArgumentError, match="9 tokens on 4 ranks"):
        sequence_parallel_messages(2, 9, 16, 4)


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("sizes", SHAPES, ids=str)
def test_a_ring_passes_keys_on_until_all_have_met_all(sizes, ranks):
    b, s, _, kv_heads, d = sizes
    chunk = np.zeros((2, b, kv_heads, s // ranks, d), np.float16)  # k and v
    at, sent, passes = list(range(ranks)), 0, 0
    met = [{rank} for rank in range(ranks)]
    while any(len(seen) < ranks for seen in met):
        at, sent, passes = at[-1:] + at[:-1], sent + chunk.nbytes, passes + 1
        for rank, owner in enumerate(at):
            met[rank].add(owner)
    home, back = 0, list(at)  # gradients travel until each is with its owner
    while back != list(range(ranks)):
        back, home = back[-1:] + back[:-1], home + 1
    found = shape_of(sizes, ranks).ring(gradient_bytes=4)
    assert (found.forward, found.forward_bytes) == (passes, sent)
    assert found.backward == passes + home
    assert found.backward_bytes == sent + (passes + home) * chunk.astype(np.float32).nbytes
    late = shape_of(sizes, ranks).ring(gradient_bytes=2, start_at_home=False)
    assert (late.backward, late.backward_bytes) == (passes, 2 * sent)
    gathered = shape_of(sizes, ranks).gathered()
    assert (gathered.forward_bytes, gathered.held_bytes) == (sent, ranks * chunk.nbytes)
    assert gathered.backward_bytes == 2 * sent and shape_of(sizes, ranks).gathered(kept=True).backward_bytes == sent


def leaving(shape: tuple[int, ...], dim: int, ranks: int) -> int:
    """Elements of a rank's tensor that belong to others once `dim` is cut among them."""
    kept = shape[dim] // ranks
    return math.prod(shape) - math.prod((*shape[:dim], kept, *shape[dim + 1 :]))


@pytest.mark.parametrize(("ulysses", "ring"), [(1, 4), (2, 2), (4, 1), (8, 1), (4, 2), (2, 4)])
@pytest.mark.parametrize("sizes", SHAPES, ids=str)
def test_exchanges_send_what_is_cut_off_and_hybrids_ring_the_rest(sizes, ulysses, ring):
    b, s, heads, kv_heads, d = sizes
    kv = max(kv_heads, ulysses)  # repeated where there are fewer
    c = s // (ulysses * ring)
    there = leaving((b, heads, c, d), 1, ulysses) + 2 * leaving((b, kv, c, d), 1, ulysses)
    result = leaving((b, heads // ulysses, c * ulysses, d), 2, ulysses)
    shape = AttentionMessages.of_degrees(b, s, ulysses, ring, heads=heads, kv_heads=kv_heads, head_size=d)
    found = shape.hybrid(ulysses)
    assert found.exchange_bytes == 2 * (there + result)
    assert found.ring_bytes == (ring - 1) * np.zeros((2, b, kv // ulysses, c * ulysses, d), np.float16).nbytes
    if ring == 1:
        alone = shape.exchanged()
        assert (alone.forward_bytes, alone.kv_heads, alone.forward) == (found.sum_bytes, kv, 4)
        assert alone.backward_bytes == alone.forward_bytes


@pytest.mark.parametrize("ranks", [2, 4, 6, 8])
def test_the_balanced_ring_is_what_pairs_of_chunks_add_up_to(ranks):
    b, c, heads, kv_heads, d = 2, 6, 4, 2, 5
    kv_halves, queries, results = np.zeros(ranks, int), np.zeros(ranks, int), np.zeros(ranks, int)
    blocks = np.zeros(ranks, int)
    for i in range(ranks):
        for j in range(i):
            if i - j < ranks // 2:
                kv_halves[j] += 2
                blocks[i] += 2
            elif i - j > ranks // 2:
                queries[i] += 1
                results[j] += 1
                blocks[j] += 2
            else:
                kv_halves[j] += 1
                queries[i] += 1
                results[j] += 1
                blocks[i] += 1
                blocks[j] += 1
    half, query = 2 * b * kv_heads * (c // 2) * d * 2, b * heads * c * d * 2
    result = b * heads * c * (d + 8 + 8) * 4
    for rank in range(ranks):
        shape = AttentionMessages.of_rank_tokens(b, c, ranks, heads=heads, kv_heads=kv_heads, head_size=d)
        found = shape.balanced_ring(rank)
        assert (found.kv_halves, found.queries, found.results) == (kv_halves[rank], queries[rank], results[rank])
        assert found.half_blocks == blocks[rank] == ranks - 1
        assert found.sent_bytes == kv_halves[rank] * half + queries[rank] * query + results[rank] * result


def test_head_tail_sends_half_the_queries_and_half_the_results():
    shape = AttentionMessages(2, 24, 4, 3, 4)
    half = np.zeros((2, 4, 3, 3), np.float16).nbytes
    assert [shape.head_tail_bytes(rank) for rank in range(4)] == [2 * half] * 4
    assert AttentionMessages(2, 24, 4, 3, 3).head_tail_bytes(1) == 0  # its own mirror


@pytest.mark.parametrize(
    ("direction", "share", "moved"), [("forward", 1, 4), ("forward_zigzag", 0.5, 4), ("backward", 2.5, 12)]
)
def test_at_the_least_tokens_a_block_takes_as_long_as_its_message(direction, share, moved):
    """4 d operations a pair and head, of them so many times as many; k and v of two bytes, dk and dv of four."""
    rate, link, heads, kv_heads, d = 312e12, 300e9, 32, 8, 128
    c = least_hidden_tokens(rate, link, heads, kv_heads, direction=direction)
    assert share * 4 * c * c * heads * d / rate == pytest.approx(moved * c * kv_heads * d / link, rel=1e-12)


def test_steps_of_a_ring_expose_what_computing_does_not_hide():
    shape = AttentionMessages(1, 32, 8, 4, 4, 4, 4)
    work = attention_work(Placement("contiguous", 32, 4))
    link = Link(1e-6, 1e-9)
    message = 1e-6 + 1e-9 * 2 * 8 * 4 * 4 * 4
    steps = shape.ring_steps(work, 1e9, link)
    assert [step.compute_s for step in steps] == pytest.approx([4 * 8 * 4 * n / 1e9 for n in (36, 64, 64, 64)])
    assert [step.transfer_s for step in steps] == pytest.approx([message] * 3 + [0])
    slow = shape.ring_steps(work, 1e15, link)
    assert slow[0].exposed_s == pytest.approx(message - 4 * 8 * 4 * 36 / 1e15) and slow[-1].exposed_s == 0
    with pytest.raises(ArgumentError, match="pairs of 4 tokens on each of 8"):
        shape.ring_steps(attention_work(Placement("zigzag", 32, 8)), 1e9, link)


test_what_cannot_be_divided_is_refused_with_its_reason = refused(
    (lambda: AttentionMessages(1, 10, 4, 8, 4), "10 tokens on 4 ranks"),
    (lambda: AttentionMessages(1, 12, 4, 8, 4, 3), "4 heads with 3 of keys"),
    (lambda: AttentionMessages(1, 12, 4, 8, 6).exchanged(), "4 heads on 6 ranks"),
    (lambda: AttentionMessages(1, 12, 12, 8, 4, 6).exchanged(), "6 heads of keys on 4 ranks"),
    (lambda: AttentionMessages(1, 12, 4, 8, 4).hybrid(3), "ulysses=3 of 4 ranks"),
    (lambda: AttentionMessages(1, 15, 4, 8, 3).balanced_ring(0), "even number of ranks"),
    (lambda: AttentionMessages(1, 12, 4, 8, 4).balanced_ring(4), "rank=4"),
    error=ArgumentError,
)


def test_halves_need_an_even_chunk():
    with pytest.raises(LayoutError, match="multiple of 8 = 2 P"):
        AttentionMessages(1, 12, 4, 8, 4).head_tail_bytes(0)


# ---- rows of experts ----


@pytest.mark.parametrize(("experts", "chosen", "places"), [(8, 2, 4), (8, 3, 2), (12, 5, 3), (6, 6, 6), (6, 1, 1)])
def test_different_places_are_the_mean_over_all_choices(experts, chosen, places):
    each = experts // places
    counted = [len({expert // each for expert in choice}) for choice in combinations(range(experts), chosen)]
    assert different_places(experts, chosen, places) == pytest.approx(np.mean(counted), rel=1e-12)
    assert dispatch_bytes(10, 256, experts, chosen, places, row="fp8", copies="rank") == pytest.approx(
        10 * np.mean(counted) * (256 + 2 * 4), rel=1e-12
    )
    assert dispatch_bytes(10, 256, experts, chosen, places) == 10 * chosen * 512


@pytest.mark.parametrize(("ranks", "tensor"), [(2, 1), (4, 2), (8, 4)])
def test_a_padded_exchange_sends_the_rows_of_other_ranks_experts(ranks, tensor):
    tokens, h, experts, chosen = 30, 6, 8, 2
    found = padded_exchange(tokens, h, experts, chosen, ranks, 1.1, tensor=tensor, number_bytes=4)
    capacity = next(c for c in range(0, 100, tensor) if c >= 1.1 * tokens * chosen / experts)
    whole = np.zeros((experts, capacity, h), np.float32)
    assert found.capacity == capacity
    assert found.sent_bytes == whole.nbytes - whole[: experts // ranks].nbytes == found.cut_bytes * tensor
    assert found.padding_share == pytest.approx(1 - tokens * chosen / (experts * capacity))


def test_experts_that_do_not_divide_and_too_many_choices_are_refused():
    with pytest.raises(ArgumentError, match="8 experts on 3 ranks"):
        different_places(8, 2, 3)
    with pytest.raises(ArgumentError, match="chosen=9 of 8 experts"):
        dispatch_bytes(1, 8, 8, 9, 2)
