"""How a redistribution moves: which part of the tensor goes from which rank to which, step by step.

    for frame in moves(plan_redistribution(have, want, (16, 32)), have, (16, 32)):
        print(frame.title, [f"{hop.source}->{hop.destination}" for hop in frame.hops])

Pure functions of the planned steps. Every element is followed by its number in the whole tensor, through whatever
shapes the steps give the slices, so a part is always named by where it lies in the tensor that the learner knows.

A message is drawn as direct exchange. A ring passes the same bytes along neighbours (`received_elements`). A step is
one frame, but an all_reduce is two: every rank adds up one part of the group's slice, then the sums go round.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...base.units import bytes_text
from ...layout.redistribution_steps import Step, apply
from ...layout.tensor_layout import Shape, TensorLayout, slice_text

Block = tuple[tuple[int, int], ...]  # (start, stop) per dim of the whole tensor
Pieces = tuple[Block, ...]


@dataclass(frozen=True)
class Hop:
    """What one rank gets from another in a frame; `adds`: to what it holds already."""

    source: int
    destination: int
    blocks: Pieces
    adds: bool = False

    @property
    def elements(self) -> int:
        return sum(map(_size, self.blocks))


@dataclass(frozen=True)
class Frame:
    """One thing that all ranks do at the same time.

    title    the step's kind, with which half of an all_reduce it is
    step     its number in the plan, from 1
    before   per rank the blocks it holds;  after: the same when it is done;  kept: those that stay where they are
    pending  whether what is held is only a partial sum: before and after
    held     elements on one rank while the step runs: its slice before and its slice after
    """

    title: str
    step: int
    before: tuple[Pieces, ...]
    after: tuple[Pieces, ...]
    kept: tuple[Pieces, ...]
    hops: tuple[Hop, ...]
    pending: tuple[bool, bool]
    held: int


def moves(steps: Iterable[Step], have: TensorLayout, shape: Shape) -> tuple[Frame, ...]:
    """The frames of a redistribution of a tensor of `shape` that lies as `have`.

    >>> from parallel_lab.layout.redistribution import plan_redistribution
    >>> rows, columns = TensorLayout((2,), (0, -1)), TensorLayout((2,), (-1, 0))
    >>> (frame,) = moves(plan_redistribution(rows, columns, (4, 6), alltoall=True), rows, (4, 6))
    >>> frame.hops[0]
    Hop(source=1, destination=0, blocks=(((2, 4), (0, 3)),), adds=False)
    """
    ranks = range(have.device_num)
    numbers = np.arange(math.prod(shape)).reshape(shape)
    ids = [numbers[have.slice_index(shape, rank)] for rank in ranks]
    layout, frames = have, []
    for number, step in enumerate(steps, 1):
        before, was = ids, layout.is_partial
        layout = apply(step, layout)
        held = before[0].size + (step.kind != "reshape") * math.prod(step.out_shape)
        if step.kind in ("all_reduce", "reduce_scatter"):
            parts = [_part(step, before[rank], rank) for rank in ranks]
            frames.append(_added(step, number, before, parts, (was, layout.is_partial), held, shape))
            if step.kind == "reduce_scatter":
                ids = parts
                continue
            came = [[_from(m, parts[m]) for m in step.group(rank)] for rank in ranks]
            title, before, was = "all_reduce, second half", parts, layout.is_partial
        else:
            ids, title = [step.on_rank(rank, before) for rank in ranks], step.kind
            origin = [step.on_rank(rank, [np.full(x.shape, m) for m, x in enumerate(before)]) for rank in ranks]
            came = [[_from(m, ids[r][origin[r] == m]) for m in np.unique(origin[r])] for r in ranks]
        frames.append(_moved(title, number, before, came, (was, was), held, shape))
    return tuple(frames)


def _from(rank: int, ids: np.ndarray) -> tuple[int, np.ndarray]:
    return int(rank), ids


def _moved(
    title: str,
    number: int,
    before: Sequence[np.ndarray],
    came: Sequence[Sequence[tuple[int, np.ndarray]]],
    pending: tuple[bool, bool],
    held: int,
    shape: Shape,
) -> Frame:
    """A frame in which parts are stored where they come. came: per rank (from whom, ids)."""
    kept, hops, after = [], [], []
    for rank, parts in enumerate(came):
        own = np.concatenate([ids.ravel() for m, ids in parts if m == rank] or [np.empty(0, int)])
        kept.append(blocks(own, shape))
        hops += [Hop(m, rank, blocks(ids, shape)) for m, ids in parts if m != rank]
        after.append(blocks(np.concatenate([ids.ravel() for _, ids in parts]), shape))
    held_before = tuple(blocks(ids, shape) for ids in before)
    return Frame(title, number, held_before, tuple(after), tuple(kept), tuple(hops), pending, held)


def _added(
    step: Step,
    number: int,
    before: Sequence[np.ndarray],
    parts: Sequence[np.ndarray],
    pending: tuple[bool, bool],
    held: int,
    shape: Shape,
) -> Frame:
    """The frame in which every rank of a group gets the others' values of its part, and adds them to its own."""
    title = "all_reduce, first half" if step.kind == "all_reduce" else step.kind
    own = tuple(blocks(part, shape) for part in parts)
    hops = [
        Hop(member, rank, own[rank], adds=True)
        for rank in range(len(parts))
        for member in step.group(rank)
        if member != rank and parts[rank].size
    ]
    return Frame(title, number, tuple(blocks(x, shape) for x in before), own, own, tuple(hops), pending, held)


def _part(step: Step, ids: np.ndarray, rank: int) -> np.ndarray:
    """The part of the group's slice that `rank` adds up."""
    group = step.group(rank)
    dim = getattr(step, "dim", None)
    if dim is None:  # of an all_reduce: the first dim that can be divided; else parts are as equal as they can be
        dim = next((d for d, n in enumerate(ids.shape) if n % len(group) == 0), int(np.argmax(ids.shape)))
    return np.array_split(ids, len(group), axis=dim)[group.index(rank)]


# ---- blocks of the tensor ----


def _size(block: Block) -> int:
    return math.prod(stop - start for start, stop in block)


def blocks(ids: np.ndarray, shape: Shape) -> Pieces:
    """The blocks that elements make, given by their numbers in a tensor of `shape`.

    >>> blocks(np.array([0, 1, 4, 5, 10]), (3, 4))
    (((0, 2), (0, 2)), ((2, 3), (2, 3)))
    """
    if not ids.size:
        return ()
    at = np.stack(np.unravel_index(np.sort(ids.ravel()), shape))
    return tuple(_blocks_at(at))


def _blocks_at(at: np.ndarray) -> Iterator[Block]:
    box = tuple((int(low), int(high) + 1) for low, high in zip(at.min(1), at.max(1), strict=True))
    if _size(box) == at.shape[1]:
        yield box
        return
    # parts along the first dim in which they differ: rows with equal columns go together
    for dim in range(len(box)):
        rows = np.unique(at[dim])
        rest = {row: np.delete(at[:, at[dim] == row], dim, 0).tobytes() for row in rows}
        cuts = [i for i in range(1, len(rows)) if rows[i] != rows[i - 1] + 1 or rest[rows[i]] != rest[rows[i - 1]]]
        if cuts:
            for run in np.split(rows, cuts):
                yield from _blocks_at(at[:, np.isin(at[dim], run)])
            return


def crossed(block: Block, other: Block) -> Block | None:
    """What two blocks share, or None."""
    both = tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(block, other, strict=True))
    return both if all(start < stop for start, stop in both) else None


# ---- as plain data, and in words ----


def moves_view(
    steps: Sequence[Step], have: TensorLayout, want: TensorLayout, shape: Shape, item: int
) -> dict[str, Any]:
    """What a view draws: `frames`, with a colour per slice of the layout that has more of them, so that a part keeps
    its colour when it moves.  item: bytes of an element
    """
    finer = max(have, want, key=lambda layout: math.prod(layout.splits))
    slices = [tuple((s.start, s.stop) for s in finer.index_of(n, shape)) for n in finer.distinct_slices()]

    def tokens(pieces: Pieces) -> list[dict[str, Any]]:
        cut = ((crossed(piece, one), hue) for piece in pieces for hue, one in enumerate(slices))
        return [{"block": [list(span) for span in block], "slice": hue} for block, hue in cut if block]

    frames = []
    for frame in moves(steps, have, shape):
        hops = [
            {
                "source": hop.source,
                "destination": hop.destination,
                "tokens": tokens(hop.blocks),
                "bytes": item * hop.elements,
                "adds": hop.adds,
            }
            for hop in frame.hops
        ]
        shown = {"title": frame.title, "step": frame.step, "hops": hops, "held_bytes": item * frame.held}
        shown |= {name: [tokens(one) for one in getattr(frame, name)] for name in ("before", "after", "kept")}
        shown |= {"pending": list(frame.pending)}
        frames.append({**shown, "text": frame_text(frame, item), "lines": rank_lines(frame, shape, item)})
    return {"shape": list(shape), "frames": frames, "devices": have.device_num}


def frame_text(frame: Frame, item: int) -> str:
    """What every rank does in a frame, in a sentence."""
    if frame.title == "reshape":
        return "reshape: every rank reads what it holds in another shape; nothing is sent."
    if not frame.hops:
        return f"{frame.title}: every rank keeps its part of what it holds; nothing is sent."
    count = max(sum(hop.destination == rank for hop in frame.hops) for rank in range(len(frame.before)))
    sizes = sorted({item * hop.elements for hop in frame.hops})
    each = " to ".join(bytes_text(size) for size in dict.fromkeys((sizes[0], sizes[-1])))
    if frame.title == "exchange":
        return f"exchange: a rank receives at most {count} x {each}, each from one rank that has what it lacks."
    does = "receives and adds" if frame.hops[0].adds else "receives"
    return f"{frame.title}: every rank {does} {count} x {each}, one message from each rank of its group."


def rank_lines(frame: Frame, shape: Shape, item: int) -> list[str]:
    """A line per rank: what it keeps, and what it gets from whom."""

    def text(pieces: Pieces) -> str:
        return " and ".join(slice_text(tuple(slice(*span) for span in block), shape) for block in pieces)

    lines = []
    for rank, kept in enumerate(frame.kept):
        into = [hop for hop in frame.hops if hop.destination == rank]
        got = [f"{text(hop.blocks)} from {hop.source} ({bytes_text(item * hop.elements)})" for hop in into]
        what = "adds" if into and into[0].adds else "gets"
        parts = [f"keeps {text(kept)}"] * bool(kept) + [f"{what} {', '.join(got)}"] * bool(got)
        lines.append(f"rank {rank} {'; '.join(parts)}")
    return lines


def move_lines(view: Mapping[str, Any]) -> list[str]:
    """All frames as lines: the text form, and the list of steps where nothing may move on a screen."""
    lines = []
    for frame in view["frames"]:
        lines.append(f"{frame['step']}. {frame['text']} Held at once: {bytes_text(frame['held_bytes'])} per rank.")
        lines += [f"   {line}" for line in frame["lines"] if frame["title"] != "reshape"]
    return lines
