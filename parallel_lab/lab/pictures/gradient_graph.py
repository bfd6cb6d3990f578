"""The autograd graph of a step: what forward computes, and below it what brings each gradient back.

    graph = gradient_graph(plan, rank=5, ranks=simulated_step(plan, net, optimizer, batch))
    graph                   in a notebook: an SVG; print(graph): the same as a table

Read off the program of a rank, messages included. Forward runs to the right, backward to the left; what belongs to one
operator stands in one column. A dotted line is a value of forward that backward reads again: it is why activations are
kept. With the simulated ranks of a first step (`numbers.py`) every value has its size, the root of the mean square.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from ...base.errors import ArgumentError, escape
from ...base.units import table_lines
from ...graph.instr import Instr
from ...graph.plan import Plan
from ...run.simulator import Simulator
from .numbers import number_text

WIDE, HIGH, GAP_X, GAP_Y, EDGE = 132, 40, 22, 26, 8  # px, of a node, between nodes, around all
LETTERS = 20  # of the small text in a node
MOST_NODES = 120  # that a picture shows; larger programs are for `print(plan.text(rank))`
KINDS = {  # of a node: what it is called, and how its border is drawn
    "data": ("input", 'rx="18"'),
    "parameter": ("parameter", 'rx="18" stroke-width="2.5"'),
    "forward": ("forward", 'rx="3"'),
    "backward": ("backward", 'rx="3" stroke-dasharray="6 3"'),
    "message": ("message", 'rx="3" stroke-width="2.5" fill="currentColor" fill-opacity=".12"'),
}
LINES = {  # of an edge: how it is drawn
    "value": 'stroke-opacity=".75"',
    "gradient": 'stroke-dasharray="6 3"',
    "kept": 'stroke-dasharray="1 4" stroke-width="1.6" stroke-opacity=".8"',
}


@dataclass(frozen=True)
class Node:
    """An input, or an instruction of a rank.

    makes   the value;  reads: those that it needs;  shape: of this rank's slice;  of: whose gradient it is, or ""
    kind    of KINDS;  phase: "forward" or "backward";  size: root of the mean square of the value's numbers, or None
    column, row   where it stands
    """

    makes: str
    label: str
    kind: str
    phase: str
    reads: tuple[str, ...]
    shape: tuple[int, ...]
    size: float | None
    column: int
    row: int
    of: str = ""


@dataclass(frozen=True)
class GradientGraph:
    """Nodes in the order in which they run, and edges (from, to, kind of LINES) by the values' names."""

    title: str
    nodes: tuple[Node, ...]
    edges: tuple[tuple[str, str, str], ...]

    def __str__(self) -> str:
        rows = [("phase", "what", "makes", "gradient of", "shape", "size", "reads")]
        for n in self.nodes:
            size = "" if n.size is None else number_text(n.size)
            kept = {at for at, to, kind in self.edges if to == n.makes and kind == "kept"}
            reads = ", ".join(f"{name} (kept)" if name in kept else name for name in n.reads)
            rows.append((n.phase, n.label, n.makes, n.of, str(n.shape), size, reads))
        return "\n".join([self.title, *table_lines(rows)])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        words = f"<details><summary>The graph in words</summary><pre>{escape(str(self))}</pre></details>"
        return f'<div style="overflow-x:auto" tabindex="0" aria-label="{escape(self.title)}">{self.svg()}</div>{words}'

    def svg(self) -> str:
        """One SVG element, without script; what a node says is its title, too."""
        at = {n.makes: n for n in self.nodes}
        lines = [_line(at[start], at[end], kind) for start, end, kind in self.edges]
        boxes = [_box(n) for n in self.nodes]
        width = 2 * EDGE + (1 + max(n.column for n in self.nodes)) * (WIDE + GAP_X) - GAP_X
        height = 2 * EDGE + (1 + max(n.row for n in self.nodes)) * (HIGH + GAP_Y) - GAP_Y
        head = (
            f'<svg viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" style="max-width: none" '
        )
        head += f'aria-label="{escape(self.title)}" font-family="system-ui, sans-serif" font-size="11" '
        arrow = '<defs><marker id="pl-gradient-arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
        arrow += 'markerHeight="7" markerUnits="userSpaceOnUse" orient="auto">'
        arrow += '<path d="M0 0L8 4L0 8z" fill="currentColor"/></marker></defs>'
        return f'{head}fill="currentColor" stroke="none">{arrow}{"".join(lines)}{"".join(boxes)}</svg>'


def gradient_graph(plan: Plan, rank: int = 0, ranks: Simulator | None = None) -> GradientGraph:
    """The graph of forward and backward of one rank.

    ranks   after a step, with every value (`simulated_step`): the nodes then have the sizes of their values

    Raises ArgumentError for a plan of several stages, for a rank that is not there, and above MOST_NODES nodes.
    """
    where = "gradient_graph"
    if len(plan.stages) != 1:
        raise ArgumentError(f"a plan of {len(plan.stages)} stages", where=where, allowed="One stage")
    if rank not in range(plan.device_num):
        raise ArgumentError(f"rank {rank!r}", where=where, allowed=f"0 to {plan.device_num - 1}")
    forward, backward = (list(_running(plan, phase, rank)) for phase in ("forward", "backward"))
    if len(forward) + len(backward) > MOST_NODES:
        what, hint = f"{len(forward) + len(backward)} instructions", "print(plan.text(rank)) lists them"
        raise ArgumentError(what, where=where, allowed=f"At most {MOST_NODES}", hint=hint)
    column: dict[str, int] = {}  # of values of forward
    operator: dict[str, int] = {}
    for n, instr in enumerate(forward):
        column |= dict.fromkeys(instr.kept, n)
        operator |= {instr.name: n} if instr.kind == "compute" else {}
    values = {name for instr in (*forward, *backward) for name in instr.kept}
    of = {gradient: value for value, gradient in plan.value_gradients}
    inputs = {i.name: i.role for i in plan.graph.inputs if i.role in ("data", "parameter")}
    below: dict[tuple[int, str], int] = {}  # how many stand in a column, above and below

    def place(here: int, side: str) -> tuple[int, int]:
        below[here, side] = below.get((here, side), 0) + 1
        return here, below[here, side]

    def under(instr: Instr) -> int:
        """The column of what it is the backward of: of the value in its name, or of its operator."""
        at = column.get(instr.out.partition(".grad")[0])
        message = at is not None and forward[at].is_communication and not instr.is_communication
        return operator.get(instr.name, len(forward) - 1) if at is None or message else at

    def node(value: str, label: str, kind: str, phase: str, reads: tuple[str, ...], spot: tuple[int, int]) -> Node:
        held = ranks is not None and value in ranks.envs[rank]
        numbers = np.asarray(ranks.value(value, rank), np.float64) if held and ranks is not None else np.zeros(0)
        size = float(np.sqrt(np.square(numbers).mean())) if numbers.size else None
        shape = plan.value(value).slice_shape
        return Node(value, label, kind, phase, reads, shape, size, *spot, of.get(value, ""))

    nodes = []
    for name, role in inputs.items():
        reader = next((n for n, instr in enumerate(forward) if name in instr.ins), None)
        if reader is not None:
            column[name] = reader
            nodes.append(node(name, name, role, "forward", (), place(reader, "above")))
    above = max((row for (_, side), row in below.items() if side == "above"), default=0)
    nodes = [replace(n, row=above - n.row) for n in nodes]
    known = {*values, *(n.makes for n in nodes)}
    for phase, instrs in (("forward", forward), ("backward", backward)):
        for instr in instrs:
            kind, reads = "message" if instr.is_communication else phase, tuple(n for n in instr.ins if n in known)
            here, row = (column[instr.out], 0) if phase == "forward" else place(under(instr), "below")
            nodes.append(node(instr.out, instr.op or instr.kind, kind, phase, reads, (here, above + row)))
    phases = {n.makes: n.phase for n in nodes}
    edges = [(name, n.makes, _edge(phases[name], n.phase)) for n in nodes for name in n.reads if name in phases]
    kept = len({start for start, _, kind in edges if kind == "kept"})
    title = f"Autograd graph of rank {rank} of {plan.device_num}: {len(forward)} instructions forward, {len(backward)} "
    title += f"backward; {kept} values of forward are read again backward"
    return GradientGraph(
        f"{title}{'' if ranks is None else ' (sizes: simulated, first step)'}", tuple(nodes), tuple(edges)
    )


def _running(plan: Plan, phase: str, rank: int) -> Iterator[Instr]:
    """What computes or sends on this rank; constants are no nodes."""
    for _, instr in plan.instructions(phase):
        if instr.kind != "free" and instr.owner in (None, rank) and instr.kept:
            yield instr


def _edge(start: str, end: str) -> str:
    return "value" if (start, end) == ("forward", "forward") else "kept" if start == "forward" else "gradient"


def _corner(node: Node) -> tuple[int, int]:
    return EDGE + node.column * (WIDE + GAP_X), EDGE + node.row * (HIGH + GAP_Y)


def _line(start: Node, end: Node, kind: str) -> str:
    """From the side of one box to the facing side of the other."""
    (x, y), (to_x, to_y) = _corner(start), _corner(end)
    if start.row == end.row and abs(start.column - end.column) > 1:  # over the boxes between
        x, to_x, top = x + WIDE // 2, to_x + WIDE // 2, y - GAP_Y
        path = f"M{x} {y}C{x} {top} {to_x} {top} {to_x} {to_y}"
    elif start.column == end.column:
        down = end.row > start.row
        x, to_x, y, to_y = x + WIDE // 2, to_x + WIDE // 2, y + (HIGH if down else 0), to_y + (0 if down else HIGH)
        if abs(end.row - start.row) > 1:  # around the boxes between
            side = x + WIDE // 2 + GAP_X // 3
            path = f"M{x + WIDE // 2} {y - HIGH // 2 if down else y + HIGH // 2}H{side}V"
            path += f"{to_y + HIGH // 2 if down else to_y - HIGH // 2}H{to_x + WIDE // 2}"
        else:
            path = f"M{x} {y}V{to_y}"
    else:
        right = end.column > start.column
        x, to_x = x + (WIDE if right else 0), to_x + (0 if right else WIDE)
        y, to_y, bend = y + HIGH // 2, to_y + HIGH // 2, GAP_X if right else -GAP_X
        path = f"M{x} {y}C{x + bend} {y} {to_x - bend} {to_y} {to_x} {to_y}"
    return f'<path d="{path}" fill="none" stroke="currentColor" {LINES[kind]} marker-end="url(#pl-gradient-arrow)"/>'


def _box(node: Node) -> str:
    x, y = _corner(node)
    size = "" if node.size is None else f", size {number_text(node.size)}"
    of = f", the gradient of {node.of}" if node.of else ""
    title = f"{KINDS[node.kind][0]}: {node.makes}{of}, {node.shape}{size}; reads {', '.join(node.reads) or 'nothing'}"
    style = KINDS[node.kind][1]
    fill = "" if "fill=" in style else 'fill="none" '
    box = f'<rect x="{x}" y="{y}" width="{WIDE}" height="{HIGH}" {fill}stroke="currentColor" {style}/>'
    middle = f'x="{x + WIDE // 2}" text-anchor="middle"'
    shape = " x ".join(map(str, node.shape)) or "a number"
    small = f"{shape}{'' if node.size is None else f'; {number_text(node.size)}'}"
    small = f"of {node.of}: {small}" if node.of and len(small) + len(node.of) <= LETTERS else small
    text = f'<text {middle} y="{y + 17}" font-weight="600">{escape(node.label)}</text>'
    text += f'<text {middle} y="{y + 31}" font-size="11">{escape(small)}</text>'
    return f"<g><title>{escape(title)}</title>{box}{text}</g>"
