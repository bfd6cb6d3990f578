"""The Recompute Lab and its chain: what the formula says is what a simulated rank holds and does, for every choice."""

from __future__ import annotations

import itertools
import re
from functools import cache

import numpy as np
import pytest

from parallel_lab.base.errors import ArgumentError
from parallel_lab.cost.recompute import predict_choice
from parallel_lab.lab.recompute.chain import LAYERS, count, moments
from parallel_lab.lab.recompute.model import CAPS, RecomputeLab


def drawn(seed):
    return tuple(bool(on) for on in np.random.default_rng([10, seed]).integers(0, 2, len(LAYERS)))


@pytest.mark.quick(1)
@pytest.mark.parametrize("again", [(False,) * 12, (True,) * 12, *map(drawn, range(20))])
def test_formula_and_count_agree(again):
    want, found = predict_choice(LAYERS, again), count(again)
    assert (found.peak, found.extra) == (want.peak_bytes, want.extra_s)
    assert found.equal


def test_the_layers_are_those_of_the_puzzle():
    """teaching.md, P7: results 4 4 6 6 8 8 8 8 6 6 4 4, work 1 1 2 2 3 3 3 3 2 2 1 1."""
    assert [layer.inside_bytes for layer in LAYERS] == [4, 4, 6, 6, 8, 8, 8, 8, 6, 6, 4, 4]
    assert [layer.forward_s for layer in LAYERS] == [1, 1, 2, 2, 3, 3, 3, 3, 2, 2, 1, 1]


@pytest.mark.parametrize("seed", range(5))
def test_the_fullest_moment_is_the_peak(seed):
    again = drawn(seed)
    step = moments(again)
    assert [m.name for m in step] == [f"F{n}" for n in range(12)] + [f"B{n}" for n in reversed(range(12))]
    assert max(m.live for m in step) == predict_choice(LAYERS, again).peak_bytes
    assert step[-1].live == LAYERS[0].inside_bytes  # whatever is chosen: the first layer alone is left


def test_a_choice_is_described_in_words_and_as_lines_to_copy():
    lab = RecomputeLab(cap=50)
    for layer in (0, 1, 2, 3):
        lab.toggle(layer)
    assert lab.recomputed == [0, 1, 2, 3] and lab.predicted.peak_bytes == 72 - 3 - 3 - 5 - 5
    text = lab.to_text()
    assert "keeps 56 results (predicted), and only 50 fit; 6 of 24 products recomputed" in text
    assert re.findall(r"net\.layers\[(\d)\]\.recompute\(\)", text) == ["0", "1", "2", "3"]
    assert "Par is shown once a choice of your own fits" in text


@cache
def every_choice():
    """(results at the peak, products recomputed) of all choices of layers."""
    found = (predict_choice(LAYERS, again) for again in itertools.product((False, True), repeat=len(LAYERS)))
    return [(one.peak_bytes, one.extra_s) for one in found]


@pytest.mark.parametrize("cap", CAPS)
def test_par_is_shown_after_an_own_choice_under_the_same_cap(cap):
    lab = RecomputeLab(cap)
    with pytest.raises(ArgumentError, match=f"no choice of your own under the cap {cap}"):
        lab.show_par()
    lab.recompute_all()
    assert lab.snapshot()["own"]
    lab.show_par()
    best = min(extra for peak, extra in every_choice() if peak <= cap)
    assert (lab.predicted.extra_s, lab.predicted.peak_bytes <= cap) == (best, True)
    assert f"{best:g} products, by exact search. Your best choice: 24" in lab.to_text()


def test_another_cap_asks_again():
    lab = RecomputeLab(40)
    lab.recompute_all()
    lab.show_par()
    lab.set_cap(30)
    with pytest.raises(ArgumentError, match="under the cap 30"):
        lab.show_par()


def test_a_page_that_is_published_shows_the_chain_once_it_was_counted():
    shown = RecomputeLab().trained()
    assert shown.counted == count(shown.again)


def test_counting_trains_the_chain():
    lab = RecomputeLab()
    lab.recompute_all()
    assert lab.counted is None
    lab.count()
    assert lab.wait(60)
    assert (lab.counted.peak, lab.counted.extra, lab.counted.equal) == (15, 24, True)
    assert "bit for bit those of a training that keeps everything" in lab.to_text()
    lab.toggle(0)
    assert lab.counted is None and lab.snapshot()["run"]["text"] == ""  # that was about another choice
