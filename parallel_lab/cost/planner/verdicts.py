"""What a search says of each of its points: a prediction, or why it is not among the best. Made when it is asked for.

found = judge_decoders(decoder, machine, columns, cap_bytes)
len(found), found.kinds[7], found[7].reason, found.places("slower")
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...base.units import bytes_text, time_text
from .clusters import Machine
from .decoder_point import Columns, DecoderPoint, decoder_misfit, misfits
from .decoder_pricing import DecoderPricing, Priced, price
from .decoders import Decoder
from .point import PlanPoint, Prediction


@dataclass(frozen=True)
class Verdict:
    """A point of the space: its prediction, or why it is not among the best.

    kind    "" where it is on the line of time against memory;  "misfit": it cannot be;  "states": parameters, gradients
            and optimizer states alone do not fit;  "memory": with activations they do not;  "slower": another point is
            at least as fast and needs no more memory
    least_s, memory_bytes   no schedule is faster;  of the rank that holds most: 0 where not looked at
    """

    point: PlanPoint | DecoderPoint
    kind: str
    reason: str
    least_s: float = 0.0
    memory_bytes: float = 0.0
    prediction: Prediction | None = None


class Verdicts(Sequence[Verdict]):
    """Verdicts of all points, in the order of the space.

    kinds, least_s, memory_bytes   of every point, as of Verdict
    reason                         of a place, where a point is not on the line
    predictions                    {place: of a point on the line}
    """

    def __init__(
        self,
        points: Sequence[Any],
        kinds: Sequence[str],
        least_s: Any,
        memory_bytes: Any,
        reason: Callable[[int], str],
        predictions: Mapping[int, Prediction],
    ) -> None:
        self.points, self.kinds, self.reason, self.predictions = points, np.array(kinds), reason, dict(predictions)
        self.least_s, self.memory_bytes = (np.asarray(values, dtype=float) for values in (least_s, memory_bytes))

    def __len__(self) -> int:
        return len(self.kinds)

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, slice):
            return [self[i] for i in range(*at.indices(len(self)))]
        at = range(len(self))[at]
        kind, sizes = str(self.kinds[at]), (float(self.least_s[at]), float(self.memory_bytes[at]))
        return Verdict(self.points[at], kind, self.reason(at) if kind else "", *sizes, self.predictions.get(at))

    def places(self, *kinds: str, by: str = "least_s", most: float = np.inf) -> np.ndarray:
        """Places of some kinds with at most so much of a number, the least first."""
        values = getattr(self, by)
        found = np.flatnonzero(np.isin(self.kinds, kinds) & (values <= most))
        return found[np.argsort(values[found], kind="stable")]

    def nearest(self, *kinds: str) -> Verdict | None:
        """The one of these kinds that is nearest to being taken."""
        found = self.places(*kinds, by="least_s" if kinds == ("slower",) else "memory_bytes")
        return self[int(found[0])] if len(found) else None


def over_text(size: float, cap: float) -> str:
    """How much of what there is."""
    return f"{bytes_text(size)}, of {bytes_text(cap)}"


def judge_decoders(decoder: Decoder, machine: Machine, columns: Columns, cap: float) -> Verdicts:
    """Every point priced in closed forms, all at once.  cap: bytes of a rank"""
    count = len(columns)
    kinds = np.full(count, "", dtype="<U6")
    wrong = misfits(decoder, columns, machine.cluster)
    if not machine.fp8_flops_per_s:
        wrong |= columns.named("numbers", "fp8")
    kinds[wrong] = "misfit"
    able = np.flatnonzero(~wrong)
    priced = price(decoder, machine, columns.where(able))
    least, size = np.zeros(count), np.zeros(count)
    least[able], size[able] = priced.step_s, priced.memory_bytes
    states = sum(priced.memory[kind] for kind in ("params", "grads", "optimizer")) if len(able) else np.zeros(0)
    kinds[able[size[able] > cap]] = "memory"
    kinds[able[states > cap]] = "states"
    fitting = np.flatnonzero(kinds == "")
    order = fitting[np.lexsort((fitting, size[fitting], least[fitting]))]
    before = np.minimum.accumulate(np.concatenate(([np.inf], size[order])))[:-1]
    on_line = size[order] < before
    line = order[on_line]
    kinds[order[~on_line]] = "slower"
    place_of = np.zeros(count, dtype=np.int64)
    place_of[able] = np.arange(len(able))

    def reason(at: int) -> str:
        point, here = columns[at], place_of[at]
        if kinds[at] == "misfit":
            return decoder_misfit(decoder, point, machine.cluster) or f"{machine.cluster.name} has no fp8"
        if kinds[at] in ("states", "memory"):
            held = {name: values[here] for name, values in priced.memory.items()}
            most = max(held, key=lambda name: held[name])
            alone = sum(held[name] for name in ("params", "grads", "optimizer"))
            text = f"states alone {over_text(alone, cap)}" if kinds[at] == "states" else over_text(size[at], cap)
            return f"{text}; most of it: {most}"
        # the fastest of the line that needs no more memory, whose sizes fall
        by = int(line[np.searchsorted(-size[line], -size[at])])
        this, other = (f"{time_text(s)} and {bytes_text(n)}" for s, n in ((least[at], size[at]), (least[by], size[by])))
        more = deciding_term(priced, here, int(place_of[by]))
        return f"{this}; {columns[by].text()} takes {other}{more}"

    predictions = {int(at): DecoderPricing(decoder, columns[int(at)], machine).predict() for at in line}
    return Verdicts(columns, kinds.tolist(), least, size, reason, predictions)


def deciding_term(priced: Priced, at: int, by: int) -> str:
    """The term by which a point loses most against another."""
    more = {name: float(values[at] - values[by]) for name, values in priced.seconds.items()}
    name = max(more, key=lambda term: more[term])
    return f"; {time_text(more[name])} more for {name.removesuffix('_s')}" if more[name] > 0 else ""
