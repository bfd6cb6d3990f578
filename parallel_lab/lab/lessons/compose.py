"""Lesson 12: compose."""

from __future__ import annotations

from typing import Any

from ..exercises import check, hint, par
from ..exercises.composed import Composed, Layout, layouts_text, train
from ..shared.prediction import Comparison

__all__ = ["check", "compare", "hint", "layouts_text", "par", "train"]


def compare(prediction: dict[str, Any], *, show: bool = False) -> Comparison:
    """The answers next to what plans say, and what is counted on simulated ranks."""
    pairs = {(dp, 8 // dp): Composed(Layout(dp, 8 // dp)) for dp in (1, 2, 4, 8)}

    def of(composed: Composed, what: str, counted: bool = False) -> int:
        return max(getattr(count, what) for count in (composed.counted if counted else composed.predicted))

    fewest = min(pairs, key=lambda each: of(pairs[each], "sent_bytes"))
    least = min(pairs, key=lambda each: of(pairs[each], "peak_bytes"))
    sharded, plain = Composed(Layout(8, 1, "level1")), pairs[8, 1]

    def difference(counted: bool) -> str:
        more = of(sharded, "sent_bytes", counted) - of(plain, "sent_bytes", counted)
        return "the same" if more == 0 else "more" if more > 0 else "fewer"

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
            *("bytes sent with the optimizer parallel", difference(False), lambda: difference(True)),
            "a reduce_scatter and an all_gather send what one all_reduce sends",
        ),
    )
