"""Lesson 12: compose."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..exercises import check, hint, par
from ..exercises.capstone import Composed, Layout, layouts_text, train
from ..shared.prediction import Comparison
from .predictions import Answers

__all__ = ["check", "compare", "hint", "layouts_text", "par", "train"]


def compare(prediction: dict[str, Any], *, show: bool = False) -> Comparison:
    """The answers next to what plans say, and what is counted on simulated ranks; those of earlier editions, too."""
    earlier = isinstance(prediction, Mapping) and "least" in prediction
    return (_earlier if earlier else _asked)(prediction, show)


def _of(composed: Composed, what: str, counted: bool = False) -> int:
    return max(getattr(count, what) for count in (composed.counted if counted else composed.predicted))


def _sends(after: Composed, before: Composed, counted: bool = False) -> str:
    more = _of(after, "sent_bytes", counted) - _of(before, "sent_bytes", counted)
    return "the same" if more == 0 else "more" if more > 0 else "fewer"


def _asked(prediction: Mapping[str, Any], show: bool) -> Comparison:
    ways = [(8, 1, 1), (1, 8, 1), (1, 1, 8), (2, 2, 2)]  # stages, dp, tp
    each = {way: Composed(Layout(way[1], way[2], "off", (), way[0], 8)) for way in ways}
    eight, (plain, again) = each[8, 1, 1], (Composed(Layout(2, 2, "off", of, 2, 2)) for of in ((), tuple(range(8))))

    def fullest(counted: bool) -> int:
        held = [count.peak_bytes for count in (eight.counted if counted else eight.predicted)]
        return held.index(max(held))

    return Answers("12", prediction, show).next_to(
        fewest=(
            *(min(ways, key=lambda way: _of(each[way], "sent_bytes")), None),
            "a stage hands on the activations of its last block, and nothing of its weights",
        ),
        fullest=(
            *(fullest(False), lambda: fullest(True)),
            "with 1F1B the first stage has the most micro-batches in flight, the last one a single one",
        ),
        again=(
            *(_sends(again, plain), lambda: _sends(again, plain, True)),
            "the forward of a block adds up its activations among the slices, once more when it is recomputed",
        ),
    )


def _earlier(prediction: Mapping[str, Any], show: bool) -> Comparison:
    """The questions on one block."""
    pairs = {(dp, 8 // dp): Composed(Layout(dp, 8 // dp), True) for dp in (1, 2, 4, 8)}
    fewest = min(pairs, key=lambda pair: _of(pairs[pair], "sent_bytes"))
    least = min(pairs, key=lambda pair: _of(pairs[pair], "peak_bytes"))
    sharded, plain = Composed(Layout(8, 1, "level1"), True), pairs[8, 1]

    return Comparison.of(
        prediction,
        show=show,
        lesson="12",
        fewest=(
            *("sends the fewest bytes", fewest, None),
            "tensor parallel sends sums of activations, data parallel gradients of weights: here they balance",
        ),
        least=(
            *("least memory, plain", least, None),
            "many slices of the network leave a rank few weights, but all rows of the batch: activations grow",
        ),
        sharded=(
            *("bytes sent with the optimizer parallel", _sends(sharded, plain), lambda: _sends(sharded, plain, True)),
            "a reduce_scatter and an all_gather send what one all_reduce sends",
        ),
    )
