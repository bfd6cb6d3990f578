"""Which layers of a chain to recompute: the least extra work within a memory cap, exactly.

    layers = [Layer(forward_s=1, backward_s=2, inside_bytes=8, input_bytes=1), ...]
    best = choose_recompute(layers, cap_bytes=40)
    best.recompute, best.extra_s, best.peak_bytes       which layers, seconds of work done twice, bytes

A layer is a Cell of a chain: what it keeps for its backward takes `inside_bytes`, its input among it; recomputed it
keeps its input alone and runs its forward a second time, right before its backward. That is what `Cell.recompute` on
some Cells of a chain does. Three questions, from the most restricted to the freest:

    choose_recompute     each layer is kept or recomputed by itself                     (teaching: a lesson's puzzle)
    best_segments        n equal layers in k Cells: k + n / k results, at best 2 sqrt(n), for one more forward
    Moments              layers of a pipeline, or of any plan: many micro-batches hold what they keep at a time
    choose_checkpoints   any input of a layer may be kept until its layer has run backward, and forwards may run any
                         number of times: for equal layers revolve's optimum (Griewank, Walther 2000), in general that
                         of rotor (Beaumont, Eyraud-Dubois, Herrmann, Joly, Shilova 2019), but no layer's inside is kept
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from ..base.errors import ArgumentError


@dataclass(frozen=True)
class Layer:
    """A layer of a chain.

    inside_bytes  what its backward reads, with its input;  input_bytes: its input alone, what it keeps if recomputed
    """

    forward_s: float
    backward_s: float
    inside_bytes: int
    input_bytes: int

    def keeps(self, again: bool) -> int:
        """Bytes from its forward to its backward."""
        return self.input_bytes if again else self.inside_bytes


@dataclass(frozen=True)
class Choice:
    """Layers that are recomputed, with the time of a step, what of it is spent on recomputing, and the peak."""

    recompute: tuple[bool, ...]
    time_s: float
    extra_s: float
    peak_bytes: int


def predict_choice(layers: Sequence[Layer], recompute: Sequence[bool]) -> Choice:
    """Time and peak of a step that recomputes these layers."""
    live = peak = 0
    for layer, again in zip(layers, recompute, strict=True):
        peak = max(peak, live + layer.inside_bytes)
        live += layer.keeps(again)
    extra = sum(layer.forward_s for layer, again in zip(layers, recompute, strict=True) if again)
    whole = sum(layer.forward_s + layer.backward_s for layer in layers)
    return Choice(tuple(recompute), whole + extra, extra, peak)


def choose_recompute(layers: Sequence[Layer], cap_bytes: int) -> Choice:
    """The choice with the least extra time whose peak is within the cap. Raises ArgumentError if nothing fits.

    Exact. When a layer runs, in memory are what the layers before it keep, and its own inside; so the state is (layer,
    bytes that the layers up to it keep). Among two ways to the same layer the one with fewer bytes and less
    time is as good for all that follows, and the other one is dropped.
    """
    best: dict[int, tuple[float, tuple[bool, ...]]] = {0: (0.0, ())}  # bytes kept -> (extra time, choices)
    for layer in layers:
        found: dict[int, tuple[float, tuple[bool, ...]]] = {}
        for kept, (extra, chosen) in best.items():
            for again in (False, True):
                if kept + layer.inside_bytes > cap_bytes:
                    continue
                total = kept + layer.keeps(again)
                cost = extra + (layer.forward_s if again else 0.0)
                if total not in found or cost < found[total][0]:
                    found[total] = cost, (*chosen, again)
        best = _undominated(found)
    if not best:
        least = _least_peak(layers)
        what = f"cap_bytes={cap_bytes}, and recomputing brings the peak down to {least}"
        raise ArgumentError(what, where="choose_recompute", allowed=f"At least {least}")
    return predict_choice(layers, min(best.values(), key=lambda one: one[0])[1])


def _least_peak(layers: Sequence[Layer]) -> int:
    """The smallest peak of all choices: from the last layer back, in addition to what those before it keep."""
    least = 0  # of the layers behind
    for layer in reversed(layers):
        least = min(max(layer.inside_bytes, layer.keeps(again) + least) for again in (False, True))
    return least


def _undominated(found: dict[int, tuple[float, tuple[bool, ...]]]) -> dict[int, tuple[float, tuple[bool, ...]]]:
    """The ways to which no other one needs as few bytes in as little time."""
    left, least = {}, math.inf
    for kept in sorted(found):
        if found[kept][0] < least:
            left[kept], least = found[kept], found[kept][0]
    return left


# ---- many micro-batches on their way ----


@dataclass(frozen=True)
class Moments:
    """What the devices of a network's stages hold at each of t moments of a step, for n layers kept or recomputed.

    base      (t,) bytes that no layer holds;  held: (2, t, n) bytes that each layer holds, kept and recomputed
    only      (t,) the layer with whose recomputing a moment comes, -1: it always does
    extra_s   (n,) seconds of work that are done twice when it is recomputed;  work_s: of all of them, kept
    """

    base: np.ndarray
    held: np.ndarray
    only: np.ndarray
    extra_s: np.ndarray
    work_s: float

    def predict(self, recompute: Sequence[bool] | np.ndarray) -> Choice:
        """Time and peak of a step that recomputes these layers; the peak is that of the fullest stage."""
        chosen = np.array(recompute, bool)
        comes = (self.only < 0) | chosen[self.only]
        bytes_then = self.base + np.where(chosen, self.held[1], self.held[0]).sum(1)
        extra = float(self.extra_s[chosen].sum())
        return Choice(tuple(map(bool, recompute)), self.work_s + extra, extra, int(bytes_then[comes].max()))

    def choose(self, cap_bytes: int) -> Choice:
        """The choice with the least extra time whose peak is within the cap. Raises ArgumentError if nothing fits.

        Exact: layers are decided one after the other, and of two ways to decide the first ones, one that takes less
        time and holds less at every moment which can still matter is as good for all that follows.
        """
        best = self._within(cap_bytes)
        if best is None:
            low, high = 0, self.predict([False] * len(self.extra_s)).peak_bytes
            while low < high:
                middle = (low + high) // 2
                low, high = (low, middle) if self._within(middle) is not None else (middle + 1, high)
            what = f"cap_bytes={cap_bytes}, and recomputing brings the peak down to {low}"
            raise ArgumentError(what, where="choose_recompute", allowed=f"At least {low}")
        return self.predict(best)

    def _within(self, cap_bytes: int) -> np.ndarray | None:
        least, most = self.held.min(0), self.held.max(0)
        matter = self.base + most.sum(1) > cap_bytes
        rows = np.unique(np.column_stack([self.base, self.only, *self.held])[matter], axis=0)
        base, only, (kept, again) = rows[:, 0], rows[:, 1], np.split(rows[:, 2:], 2, axis=1)
        least, most = np.minimum(kept, again), np.maximum(kept, again)
        used, cost = base[None], np.zeros(1)
        chosen = np.zeros((1, len(self.extra_s)), bool)
        for n, extra in enumerate(self.extra_s):
            without = np.where(only == n, _FREE, used + kept[:, n])
            used, cost = np.concatenate([without, used + again[:, n]]), np.concatenate([cost, cost + extra])
            chosen = np.concatenate([chosen, chosen])
            chosen[len(without) :, n] = True
            still, at_most = (side[:, n + 1 :].sum(1) for side in (least, most))
            fits = ((used + still <= cap_bytes) | (only > n)).all(1)
            used = np.where(used + at_most <= cap_bytes, _FREE, used)  # a moment that cannot be too full any more
            order = [at for at in np.lexsort((used.sum(1), cost)) if fits[at]]
            best: list[int] = []
            for at in order:
                if not best or not (used[best] <= used[at]).all(1).any():
                    best.append(at)
            if not best:
                return None
            used, cost, chosen = used[best], cost[best], chosen[best]
        return chosen[np.argmin(cost)]


_FREE = -(2**60)  # bytes: less than any moment has, whatever is added


def best_segments(layers: int) -> tuple[int, int]:
    """(k, results in memory k + ceil(n / k)) of n equal layers in k recomputed Cells, the fewest results.

    >>> best_segments(64)
    (8, 16)
    """
    if layers < 1:
        raise ArgumentError(f"layers={layers}", where="best_segments", allowed="At least 1")
    return min(((k, k + math.ceil(layers / k)) for k in range(1, layers + 1)), key=lambda pair: pair[1])


# ---- checkpoints anywhere, any number of forwards ----


@dataclass(frozen=True)
class Checkpoints:
    """A chain's reversal: forwards in all (the layers' own included) in seconds, and what is done, in order.

    actions   ("keep", layer): keep its input; ("forward", layer); ("backward", layer): its forward with its inside
              kept, and its backward; ("drop", layer): its input is free
    """

    forward_s: float
    actions: tuple[tuple[str, int], ...]


def choose_checkpoints(layers: Sequence[Layer], cap_bytes: int) -> Checkpoints:
    """The least forward work with which every layer's backward can run within the cap. Raises ArgumentError if none.

    In memory: inputs that are kept, and the inside of the layer that runs backward, or the input and output of the one
    that runs forward. The chain's own input counts while it is needed. cost(i, j, m): layers i to j backward in m bytes
    in addition to the input of i. Either i is the only one, or the input of some k > i is kept, the rest is done, and
    then i to k - 1 in all of m:

        cost(i, j, m) = min over k of  forward(i .. k-1) + cost(k, j, m - input(k)) + cost(i, k-1, m)
    """
    layers = tuple(layers)
    time = [0.0]
    for layer in layers:
        time.append(time[-1] + layer.forward_s)

    def passing(i: int, k: int) -> int:
        """Bytes in addition to the input of i while layers i to k - 1 run forward: input and output of one of them."""
        inputs = [layers[n].input_bytes if n > i else 0 for n in range(i, k + 1)]
        return max(a + b for a, b in itertools.pairwise(inputs))

    @cache
    def cost(i: int, j: int, m: int) -> tuple[float, int]:
        """(seconds, the layer whose input is kept first; -1: layer i is the only one)."""
        if i == j:
            fits = layers[i].inside_bytes - layers[i].input_bytes <= m
            return (layers[i].forward_s if fits else math.inf), -1
        best = (math.inf, -1)
        for k in range(i + 1, j + 1):
            if passing(i, k) > m:
                break
            left = m - layers[k].input_bytes
            total = time[k] - time[i] + cost(k, j, left)[0] + cost(i, k - 1, m)[0]
            best = min(best, (total, k))
        return best

    def walk(i: int, j: int, m: int) -> list[tuple[str, int]]:
        k = cost(i, j, m)[1]
        if k < 0:
            return [("backward", i)]
        ran = [("forward", n) for n in range(i, k)]
        rest = walk(k, j, m - layers[k].input_bytes)
        return [*ran, ("keep", k), *rest, ("drop", k), *walk(i, k - 1, m)]

    if not layers:
        return Checkpoints(0.0, ())
    free, last = cap_bytes - layers[0].input_bytes, len(layers) - 1
    total = cost(0, last, free)[0] if free >= 0 else math.inf
    if total == math.inf:
        what, allowed = f"cap_bytes={cap_bytes} for {len(layers)} layers", "Bytes for an input and the largest inside"
        raise ArgumentError(what, where="choose_checkpoints", allowed=allowed)
    return Checkpoints(total, (("keep", 0), *walk(0, last, free), ("drop", 0)))
