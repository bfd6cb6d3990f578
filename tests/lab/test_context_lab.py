"""The Context Lab: what it says of 32 tokens is what a mask of 32 x 32 pairs gives."""

from __future__ import annotations

import re

import numpy as np
import pytest

from parallel_lab.lab.context.model import KV_HEADS, LENGTHS, RANKS, TOKENS, ContextLab
from parallel_lab.lab.context.run import Ran
from parallel_lab.lab.context.ways import MASKS, WAYS, way_of

Q, K = np.indices((TOKENS, TOKENS))
SEEN = {
    "causal": Q >= K,
    "full": Q >= 0,
    "window": (Q >= K) & (Q - K < 8),
    "documents": (Q >= K) & ((Q < 8) == (K < 8)),
}


def share(way: str) -> float:
    lab = ContextLab(way)
    return float(re.search(r"([\d.]+) % useful", lab.snapshot()["status"])[1])


def test_the_lead_of_four_ranks_has_the_story():
    """Contiguous 33 / 57, zigzag 1, striped 33 / 36; the ring moves 3 x 2 x 8 x 16 numbers of four bytes."""
    text = ContextLab().to_text()
    assert "Rank 3 works 228 of 528 pairs; the others wait: 57.9 % useful. Zigzag: 100 %." in text
    assert "A ring sends 3,072 B per rank forward, Ulysses 2,304 B (predicted)." in text
    assert (share("zigzag"), share("striped"), share("ulysses"), share("hybrid")) == (100, 91.7, 100, 100)
    assert share("gathered") == share("contiguous")


@pytest.mark.quick(8)
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("way", WAYS)
def test_the_square_names_the_rank_of_every_visible_pair_once(way, ranks, mask):
    lab = ContextLab(way, ranks, mask)
    square, work = (lab.snapshot()["sections"][name] for name in ("square", "work"))
    groups, counted = len(square["names"]), np.zeros((TOKENS, TOKENS), int)
    for step in range(square["steps"]):
        lines = square["of"][str(step)]["text"].splitlines()
        signs = np.array([list(line[3:].ljust(TOKENS)) for line in lines])
        assert np.array_equal(signs != " ", SEEN[mask])
        here = np.char.isdigit(signs)
        counted += here
        for group in range(groups):
            own = signs == str(group)
            assert work["of"][str(step)]["rows"][group][1] == own.sum()
            assert {square["owners"][q] for q in np.flatnonzero(own.any(1))} <= {group}
            if square["steps"] > 1:  # the keys are those that a ring has brought by then
                assert {square["owners"][k] for k in np.flatnonzero(own.any(0))} <= {(group - step) % groups}
    assert np.array_equal(counted, SEEN[mask].astype(int))


@pytest.mark.parametrize("kv_heads", KV_HEADS)
@pytest.mark.parametrize("ranks", RANKS)
def test_the_table_compares_all_ways_and_marks_the_chosen_one(ranks, kv_heads):
    lab = ContextLab("striped", ranks, kv_heads=kv_heads)
    ways = lab.snapshot()["sections"]["ways"]
    rows = {row[0]: row[1:] for row in ways["rows"]}
    c, numbers = TOKENS // ranks, kv_heads * 4
    ring, gathered, ulysses = (rows[WAYS[name]] for name in ("striped", "gathered", "ulysses"))
    assert ring[0] == gathered[0] == 2 * (ranks - 1) * c * numbers * 4
    assert ring[1] == ring[0] + 2 * ranks * c * numbers * 4
    assert gathered[2] == 2 * TOKENS * numbers * 4 and gathered[1] == gathered[0]  # kept, and their gradients scattered
    assert ulysses[0] == (2 * 32 + 2 * max(kv_heads, ranks) * 4) * c * (ranks - 1) // ranks * 4
    assert ways["on"] == "striped ring" and len(rows) == len(WAYS)
    if ranks == 2:  # two ranks that exchange are all there are
        assert rows[WAYS["hybrid"]][0] == ulysses[0]


def test_a_message_is_hidden_from_the_printed_length_on():
    """Zigzag with a quarter of the heads of keys and 300 GB/s: 520 tokens of a rank (c = e h_kv / h_q F / B)."""
    note = ContextLab("zigzag", kv_heads=2).snapshot()["sections"]["hides"]["notes"][0]
    assert "zigzag, with half the pairs, from 520" in note
    for tokens, hidden in ((8 * 512, False), (8 * 528, True)):
        way = way_of("zigzag", 8, tokens, "causal", 16, 64, 128, 2)
        assert (way.seconds(312e12, 300e9)[2] == 0) is hidden


@pytest.mark.parametrize("way", WAYS)
def test_what_shows_is_at_most_what_is_sent_and_all_of_it_where_nothing_hides(way):
    lab = ContextLab(way, 8, link=12)
    assert [row[1] for row in lab.snapshot()["sections"]["hides"]["rows"]] == [f"{n // 8:,}" for n in LENGTHS]
    for row in lab.snapshot()["sections"]["hides"]["rows"]:
        computes, sends, exposed = row[2:]
        assert 0 <= exposed <= sends * (1 + 1e-12) and computes > 0
        if way in ("gathered", "ulysses"):
            assert exposed == sends


def test_a_step_stays_among_those_of_the_way():
    lab = ContextLab("zigzag", 8)
    lab.set_step(7)
    lab.set_way("gathered")
    assert lab.snapshot()["step"] == {"label": "step", "value": 0, "choices": [{"value": 0, "label": "1"}]}
    lab.set_way("striped")
    assert lab.snapshot()["step"]["value"] == 7


@pytest.mark.parametrize(("ranks", "kv_heads", "right"), [(2, 4, "a ring"), (4, 4, "Ulysses"), (8, 1, "a ring")])
def test_it_asks_for_the_share_the_waiting_rank_and_the_bytes(ranks, kv_heads, right):
    """From P = 1 + h_q / h_kv ranks on Ulysses sends less, while there are heads of keys for them."""
    first, waits, sends = ContextLab("contiguous", ranks, kv_heads=kv_heads).questions()
    c = TOKENS // ranks
    assert first.right[0] == pytest.approx(100 * (TOKENS + 1) / ((2 * ranks - 1) * c + 1))
    assert waits.right == ("rank 0",)
    assert sends.right == (right,)


@pytest.mark.quick(1)
@pytest.mark.parametrize("kv_heads", KV_HEADS)
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("way", WAYS)
def test_a_run_on_simulated_ranks_equals_one_device_and_sends_what_was_predicted(way, mask, kv_heads):
    lab = ContextLab(way, 4, mask, kv_heads)
    lab.run_simulated()
    assert lab.wait(60) and lab.snapshot()["run"]["error"] is None
    assert (lab._run.progress.done, lab._run.progress.total) == (1, 2)  # drawn while one device trains
    rows = {row[0]: row for row in lab.snapshot()["sections"]["ran"]["rows"]}
    assert rows["largest difference"][3] == ["EQUAL to rounding", True]
    counted, predicted = (
        (lab.ran.forward_bytes, lab.ran.backward_bytes),
        (lab.now.forward_bytes, lab.now.backward_bytes),
    )
    if mask in ("causal", "full"):  # a window may end a ring early
        assert counted == predicted


@pytest.mark.exhaustive
def test_worker_processes_lose_nothing_against_the_simulator():
    lab = ContextLab("zigzag", 2)
    lab.run_measured()
    assert lab.wait(60)
    measured = lab.ran
    lab.run_simulated()
    assert lab.wait(60) and measured.losses == lab.ran.losses
    lab.set_way("striped")
    assert lab.ran is None and "ran" not in lab.snapshot()["sections"]
    lab.close()


def test_a_difference_is_said():
    lab = ContextLab("zigzag", 2)
    lab._ran[lab.key] = Ran("simulated", (1.0, 1.1), (1.0, 1.0), 10**6, 2)
    text = lab.to_text()
    assert all(said in text for said in ("DIFFERENT", "less: no key is in reach"))
