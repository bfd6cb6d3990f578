"""The log of PyTorch's DebugMode, read into the same steps and messages.

    aten::relu(dt: f32[32, 64]| S(0)P(sum))
      redistribute_input [implicit] (0, S(0)P(sum) -> S(0)R)
        redistribute_input(t: f32[16, 64], trace: S(0)P(sum)->S(0)R)
          _c10d_functional::all_reduce(t: f32[16, 64], sum, 4)  ->  t: f32[16, 64]

An operator's line names the placements of its operands; a trace says which axis of the mesh changes with each message
(axis0, axis1: a log has no names).
"""

from __future__ import annotations

import itertools
import re

from ...base.errors import ArgumentError, shorten
from ...layout.mesh_redistribution import KINDS
from .world import Message, Step

# `++` and `*+` give nothing back: a line of 200,000 characters is read in time linear in them
LOG = re.compile(r"^[ \t]*+(aten|_c10d_functional)::\w++.*\((dt|t)(\$\d++)?: [a-z]\w*+\[", re.MULTILINE)
_CALL = re.compile(r"\s*+(?P<room>aten|_c10d_functional|_dtensor|c10d)::(?P<name>\w++)(\.\w++)?\((?P<rest>.*)")
_VALUE = re.compile(r"(?P<kind>dt|t)(\$\d++)?: (?P<dtype>[a-z]\w*+)\[(?P<shape>[\d, ]*+)\](\| (?P<placements>[^,]*+))?")
_PLACEMENT = re.compile(r"_?S\((?:dim=)?(\d++)[^()]*+\)(?:\[\d++\])?|R|\w{0,20}P(?:artial)?\((\w++)[^()]*+\)")
_WHY = re.compile(r"redistribute_input \[(implicit|explicit)\] \((\d+)?")
_TRACE = "trace: "  # up to the bracket that ends the line
MOST_DIMS, MOST_DIGITS = 32, 15  # of a shape
_MESSAGES = {
    "all_gather_into_tensor": "all_gather", "all_reduce": "all_reduce", "reduce_scatter_tensor": "reduce_scatter",
    "all_to_all_single": "all_to_all", "shard_dim_alltoall": "all_to_all",
}  # fmt: skip
_DTYPES = {
    "f32": "float32", "f16": "float16", "bf16": "bfloat16", "f64": "float64", "i64": "int64", "i32": "int32",
    "b8": "bool",
}  # fmt: skip


def read_log(text: str) -> list[Message | Step]:
    """What the log says, in its order; a line is that of the log."""
    events: list[Message | Step] = []
    op, why, changed = "", "", []
    for number, line in enumerate(text.splitlines(), 1):
        if found := _WHY.search(line):
            why = f"implicit, operand {found[2]} of {op}" if found[1] == "implicit" else "asked for"
        if _TRACE in line and line.endswith(")"):
            changed = _axes(line.partition(_TRACE)[2][:-1])
        if not (call := _CALL.match(line)):
            continue
        values = list(_VALUE.finditer(call["rest"].split("  ->  ")[0]))
        if call["name"] in _MESSAGES and values:
            kind, shape = _MESSAGES[call["name"]], _shape(values[0]["shape"], number)
            axis = next((a for a, k in changed if k == kind or {k, kind} == {"all_to_all", "all_gather"}), "")
            changed = changed[1:]
            reduce = re.search(r", '?(sum|avg|max|min|product)'?,", call["rest"])
            dtype = _DTYPES.get(values[0]["dtype"], "float32")
            events.append(Message(kind, axis, shape, reduce[1] if reduce else "", dtype, "forward", number, why))
        elif values and values[0]["kind"] == "dt":
            op = call["name"]
            codes = ", ".join(" ".join(_codes(v["placements"] or "")) for v in values if v["kind"] == "dt")
            events.append(Step(op, codes, 0, "forward", number))
    return events


def _shape(text: str, line: int) -> tuple[int, ...]:
    """The sizes of "32, 64". Raises ArgumentError, with the line."""
    sizes = [n.strip() for n in text.split(",") if n.strip()]
    if len(sizes) > MOST_DIMS or not all(n.isdecimal() and len(n) <= MOST_DIGITS for n in sizes):
        allowed = f"At most {MOST_DIMS} sizes of {MOST_DIGITS} digits"
        raise ArgumentError(f"line {line}: the shape {shorten(text)}", where="explain", allowed=allowed)
    return tuple(map(int, sizes))


def _codes(text: str) -> list[str]:
    """Short forms of "S(0)P(sum)": S0, P."""
    found = []
    for part in _PLACEMENT.finditer(text):
        reduce = part[2] or "sum"
        found.append("R" if part[0] == "R" else f"S{part[1]}" if part[1] else "P" if reduce == "sum" else f"P{reduce}")
    return found


def _axes(trace: str) -> list[tuple[str, str]]:
    """(axis, kind of message) of each step of a trace that sends something."""
    states, made = [_codes(part) for part in trace.split("->")], []
    for before, after in itertools.pairwise(states):
        for axis, (here, there) in enumerate(zip(before, after, strict=False)):
            kind = KINDS.get((here[0], there[0]), "")
            if here != there and kind not in ("", "slice", "addends"):
                made.append((f"axis{axis}", kind))
    return made
