"""Copies between the memory of a device and that of its host: the two kinds of instruction, and who computes where.

    %table            lies on the host, which looks up there
    %rows.device = CopyToDevice(%rows)        what the device reads of it
    %rows.grad.host = CopyToHost(%rows.grad)  what the host reads of the device's

`passes/place.py` says what lies on the host; `insert_copies.py` puts copies where they are needed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .instr import Instr
from .instr_checks import Makers
from .instr_text import InstrText

TO_HOST, TO_DEVICE = "copy_to_host", "copy_to_device"
COPIES = {TO_HOST: "CopyToHost", TO_DEVICE: "CopyToDevice"}  # kind -> class name

# ---- the kinds ----


def copied(on: Any, instr: Instr) -> np.ndarray:
    """A copy of its own, as between two memories."""
    return np.array(on.env[instr.ins[0]], order="C")


def copy_fault(plan: Any, instr: Instr, makers: Makers, phase: str) -> str:
    """A copy has shape, dtype and layout of its operand."""
    a, b = plan.value(instr.ins[0]), plan.value(instr.out)
    if (a.shape, a.dtype, a.layout) == (b.shape, b.dtype, b.layout):
        return ""
    return f"%{instr.ins[0]} is {a.shape} {a.dtype} ({a.layout}), its copy {b.shape} {b.dtype} ({b.layout})"


def shown_copy(plan: Any, instr: Instr, rank: int) -> InstrText:
    """What it is for, and how many bytes."""
    return InstrText(facts=f" {{for: {instr.name}}} {{bytes: {plan.value(instr.out).slice_bytes}}}")


# ---- where values are read and made ----


def makes_on_host(instr: Instr, host: frozenset[str] | set[str]) -> bool:
    """Whether what an instruction makes lies on the host."""
    return not host.isdisjoint(instr.kept)


def runs_on_host(instr: Instr, host: frozenset[str] | set[str]) -> bool:
    """Whether the host computes it: local work that makes values there. Copies are done by neither."""
    return instr.kind not in COPIES and makes_on_host(instr, host)


def place_fault(instr: Instr, host: frozenset[str], numbers: Callable[[str], bool]) -> str:
    """What an instruction reads or makes in the wrong memory, or ""; `numbers`: what both have."""
    makes = makes_on_host(instr, host)
    reads = makes if instr.kind not in COPIES else not makes
    if instr.kind in COPIES and (instr.kind == TO_HOST) != makes:
        return f"{instr.kind} makes %{instr.out}, which lies on the {'host' if makes else 'device'}"
    if makes and (instr.is_communication or instr.kind in ("start", "wait")):
        return f"%{instr.out} lies on the host, and messages are between devices"
    if (mixed := next((n for n in instr.kept if (n in host) != makes), None)) is not None:
        return f"%{mixed} does not lie where the other results do"
    wrong = next((n for n in instr.ins if not numbers(n) and (n in host) != reads), None)
    if wrong is None:
        return ""
    lies, there = ("host", "device") if wrong in host else ("device", "host")
    return f"%{wrong} lies on the {lies}, and is read on the {there} without a copy"
