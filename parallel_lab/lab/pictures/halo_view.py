"""What a rank reads beyond its own slice: the windows of an operator that slides along a split dim.

A convolution whose height is split reads a row or two of its neighbours' slices
(`ops/collectives/halo.py`). The value it reads lies on the ranks like the tensor it is made of, and overlaps: a card
shows the rank's own slice and, in their own colours, the strips of the neighbouring slices.
"""

from __future__ import annotations

from typing import Any

from ...graph.instr import Instr
from ...graph.plan import Plan
from ...layout.tensor_layout import slice_text


def halo_chain(plan: Plan, name: str) -> tuple[Instr, ...]:
    """The halo exchanges that end in the value `name`, last first; more than one where several dims are split."""
    exchanges = {i.out: i for _, i in plan.instructions("forward") if i.kind == "halo_exchange"}
    chain = []
    while name in exchanges:
        chain.append(exchanges[name])
        name = exchanges[name].ins[0]
    return tuple(chain)


def halo_base(plan: Plan, name: str) -> str:
    """The value with a layout that a halo exchange begins from; `name` itself for any other value."""
    chain = halo_chain(plan, name)
    return chain[-1].ins[0] if chain else name


def _windows(plan: Plan, chain: tuple[Instr, ...], rank: int) -> list[tuple[int, int]]:
    """Per dim, what `rank` reads of the whole tensor, as far as there is a tensor (outside are zeros)."""
    value = plan.value(chain[-1].ins[0])
    windows = [(s.start, s.stop) for s in value.layout.slice_index(value.shape, rank)]
    for instr in chain:
        start, stop = instr.halo.window(instr.position(rank))
        size = value.shape[instr.attr("dim")]
        windows[instr.attr("dim")] = (min(max(0, start), size), max(0, min(stop, size)))
    return windows


def halo_strips(plan: Plan, chain: tuple[Instr, ...], cards: list[dict[str, Any]]) -> None:
    """Add to every card of the base value what the rank reads (`window`, and as text) and from whom (`strips`)."""
    value = plan.value(chain[-1].ins[0])
    for card in cards:
        window = _windows(plan, chain, card["rank"])
        strips, seen = [], {card["slice"]}
        # of several ranks with the same slice, the neighbour differs from this rank in the fewest coordinates
        place = card["coordinates"]
        for other in sorted(cards, key=lambda o: sum(a != b for a, b in zip(o["coordinates"], place, strict=True))):
            block = [[max(a, c), min(b, d)] for (a, b), (c, d) in zip(window, other["block"], strict=True)]
            if other["slice"] in seen or any(a >= b for a, b in block):
                continue
            seen.add(other["slice"])
            strips.append(
                {"block": block, "slice": other["slice"], "rank": other["rank"], "text": _text(block, value.shape)}
            )
        card["window"] = [list(part) for part in window]
        card["strips"] = sorted(strips, key=lambda strip: strip["rank"])
        card["text"] = _text(window, value.shape)


def halo_facts(plan: Plan, chain: tuple[Instr, ...]) -> list[dict[str, Any]]:
    """Per dim with a halo: {"dim", "before", "after"}, the most elements read of the slice before and after."""
    dims = sorted((i.attr("dim"), *i.halo.reach()) for i in chain)
    return [dict(zip(("dim", "before", "after"), reach, strict=True)) for reach in dims]


def _text(block: Any, shape: tuple[int, ...]) -> str:
    return slice_text(tuple(slice(a, b) for a, b in block), shape)
