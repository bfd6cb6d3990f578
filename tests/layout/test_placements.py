"""Where tokens lie under context parallelism, and pairs of each rank, against whole masks and the closed forms."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from parallel_lab.base.errors import LayoutError, LayoutTypeError
from parallel_lab.layout.placements import PLACEMENTS, Placement, VisibleKeys, attention_work, padded_documents
from tests.crossed import each_of

DOCUMENTS = (8, 24, 16)  # each in 2 P chunks for 2 and 4 ranks, of different sizes
SIZES = [(2, 4), (3, 2), (4, 6), (8, 2), (5, 8)]  # ranks, tokens of each


def placement_of(kind: str, ranks: int, rank_tokens: int) -> Placement:
    if kind == "per_document":
        return Placement.packed(
            kind, (2 * ranks, ranks * (rank_tokens - 2)) if rank_tokens > 2 else (2 * ranks,), ranks
        )
    return Placement.of_rank_tokens(kind, rank_tokens, ranks)


def mask_of(visible: VisibleKeys, tokens: int) -> np.ndarray:
    """[query, key], by its definition, pair by pair."""
    document = np.repeat(np.arange(len(visible.documents or (1,))), visible.documents or (tokens,))
    far = np.subtract.outer(np.arange(tokens), np.arange(tokens))
    seen = document[:, None] == document[None, :]
    if visible.causal:
        seen &= far >= 0
    return seen if visible.window is None else seen & (abs(far) < visible.window)


# ---- where tokens lie ----


@pytest.mark.parametrize(
    ("kind", "parts"),
    {
        "contiguous": ([0, 1, 2, 3], [4, 5, 6, 7]),
        "zigzag": ([0, 1, 6, 7], [2, 3, 4, 5]),
        "striped": ([0, 2, 4, 6], [1, 3, 5, 7]),
        "head_tail": ([0, 1, 6, 7], [4, 5, 2, 3]),
    }.items(),
)
def test_positions_are_the_drawn_ones(kind, parts):
    placement = Placement(kind, 8, 2)
    assert [placement.positions(rank).tolist() for rank in range(2)] == list(parts)


def test_per_document_is_zigzag_inside_each_document():
    placement = Placement.packed("per_document", (4, 8), 2)
    assert placement.positions(0).tolist() == [0, 3, 4, 5, 10, 11]
    assert placement.positions(1).tolist() == [1, 2, 6, 7, 8, 9]


@pytest.mark.parametrize(("ranks", "rank_tokens"), SIZES)
@pytest.mark.parametrize("kind", PLACEMENTS)
def test_the_order_holds_every_position_once_and_its_inverse_undoes_it(kind, ranks, rank_tokens):
    placement = placement_of(kind, ranks, rank_tokens)
    tokens = np.arange(100, 100 + placement.tokens)
    assert sorted(placement.order) == list(range(placement.tokens))
    assert np.array_equal(tokens[placement.order][placement.inverse], tokens)
    for rank in range(ranks):
        assert set(placement.owners()[placement.positions(rank)]) == {rank}


@each_of(
    ("kind", "tokens", "ranks", "documents", "told"),
    ("contiguous", 10, 4, (), "Pad it to 12"),
    ("striped", 9, 2, (), "multiple of 2 = P"),
    ("zigzag", 12, 4, (), "multiple of 8 = 2 P"),
    ("head_tail", 12, 4, (), "Pad it to 16"),
    ("per_document", 22, 2, (8, 14), "a document of 14 tokens on 2 ranks"),
    ("per_document", 16, 2, (8,), "documents of 8 tokens in a sequence of 16"),
    ("per_document", 16, 2, (), "lengths of the documents"),
    ("zigzag", 16, 2, (8, 8), "VisibleKeys"),
    ("zig_zag", 16, 2, (), "nearest is 'zigzag'"),
    ("zigzag", 0, 2, (), "at least 1"),
)
def test_what_does_not_divide_is_refused_with_its_reason(kind, tokens, ranks, documents, told):
    with pytest.raises(LayoutError, match=told):
        Placement(kind, tokens, ranks, documents)


def test_wrong_types_are_refused():
    with pytest.raises(LayoutTypeError, match=r"tokens=8\.0"):
        Placement("zigzag", 8.0, 2)
    with pytest.raises(LayoutError, match="rank=2"):
        Placement("zigzag", 8, 2).positions(2)
    with pytest.raises(LayoutError, match="window=0"):
        VisibleKeys(window=0)
    with pytest.raises(LayoutError, match="documents of 6 tokens in a sequence of 8"):
        attention_work(Placement("zigzag", 8, 2), VisibleKeys(documents=(2, 4)))


def test_padded_documents_can_be_placed():
    padded = padded_documents((5, 16, 17), 4)
    assert padded == (8, 16, 24) and Placement.packed("per_document", padded, 4).tokens == 48


# ---- pairs ----


@each_of(
    "visible",
    VisibleKeys(),
    VisibleKeys(causal=False),
    VisibleKeys(window=5),
    VisibleKeys(causal=False, window=3),
    VisibleKeys(documents=DOCUMENTS),
    VisibleKeys(causal=False, documents=(1, 40, 7)),
    VisibleKeys(window=6, documents=(30, 18)),
    ids=lambda v: f"causal={v.causal}-window={v.window}-documents={len(v.documents)}",
)
@pytest.mark.parametrize("kind", PLACEMENTS)
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_pairs_are_those_of_the_whole_mask(kind, ranks, visible):
    placement = Placement.packed(kind, DOCUMENTS, ranks)
    mask, parts = mask_of(visible, placement.tokens), [placement.positions(rank) for rank in range(ranks)]
    counted = [[int(mask[np.ix_(queries, keys)].sum()) for keys in parts] for queries in parts]
    work = attention_work(placement, visible, gathered=False)
    assert [list(row) for row in work.pairs] == counted
    steps = [[counted[r][(r - i) % ranks] for r in range(ranks)] for i in range(ranks)]
    lockstep = sum(map(max, steps))
    assert [list(step) for step in work.per_step] == steps
    assert (work.time, work.useful) == (lockstep, mask.sum())
    assert work.useful_share == Fraction(int(mask.sum()), ranks * lockstep)
    for rank in range(ranks):
        for step in range(ranks):
            block = mask[np.ix_(parts[rank], parts[(rank - step) % ranks])]
            assert work.block(rank, step) == ("full" if block.all() else "masked" if block.any() else "hidden")


@pytest.mark.parametrize("c", [2, 6, 64])
@pytest.mark.parametrize("p", [1, 2, 3, 8, 16])
def test_causal_shares_are_the_closed_forms(p, c):
    contiguous, zigzag, striped, exchanged = (
        attention_work(Placement.of_rank_tokens(kind, c, p))
        for kind in ("contiguous", "zigzag", "striped", "head_tail")
    )
    assert contiguous.useful_share == Fraction(p * c + 1, (2 * p - 1) * c + 1)
    assert contiguous.per_rank == tuple(c * c * r + c * (c + 1) // 2 for r in range(p))
    assert contiguous.computed_share == Fraction(p * c + 1, 2 * p * c)
    assert zigzag.useful_share == 1 and zigzag.time == p * c * c // 2 + c // 2
    assert striped.useful_share == Fraction(p * c + 1, p * (c + 1))
    down, up = c * (c - 1) // 2, c * (c + 1) // 2  # a triangle without and with its diagonal
    assert striped.per_rank == tuple((r + 1) * up + (p - 1 - r) * down for r in range(p))
    assert exchanged.useful_share == 1 and exchanged.longest_per_step == (p * c * c // 2 + c // 2,)


@pytest.mark.parametrize("window", [1, 2, 7, 16, 17, 18, 200])
def test_a_contiguous_ring_needs_only_the_steps_that_a_window_reaches(window):
    work = attention_work(Placement("contiguous", 128, 8), VisibleKeys(window=window))
    assert work.steps_with_work == min(8, -(-(window - 1) // 16) + 1)


def test_a_long_sequence_is_counted_exactly():
    """2^17 tokens on 64 ranks: more pairs than 32 bits count, and a mask of them would take 17 GB."""
    p, c = 64, 2048
    work = attention_work(Placement.of_rank_tokens("striped", c, p))
    assert work.useful == p * c * (p * c + 1) // 2 and work.useful_share == Fraction(p * c + 1, p * (c + 1))
