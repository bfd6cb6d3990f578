"""How the Memory Lab's GPT is split, and what its block then keeps for backward and sends: counted in the plan, and in
closed form.

    block_of(plan)                      Block(kept_bytes=40960, sent_bytes=114688, messages=8)
    formulas("sequence", shape)         the same by Korthikanti et al. 2022

M are the bytes of a rank's samples, b s h numbers; t ranks split the block. Without dropout, and with the scores of
attention made again, a block keeps the inputs of two norms and of two products, M each; q, k, v and the result of
attention, M / t each; and twice the width f inside the MLP, M f / (h t) each.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from ... import nn
from ...base.units import bytes_text
from ...cost.memory import kept_blocks
from ...cost.time import message_bytes
from ...graph.plan import Plan
from ...nn.models import GPT, MoEGPT, data_parallel, expert_parallel, tensor_parallel
from ...ops.collectives.definitions import MESSAGES
from ..shared.sections import Section, table

SPLITS = {
    "batch": "batch: every rank has samples of its own, and the whole network",
    "tensor": "tensor parallel: heads and the MLP are split",
    "sequence": "sequence parallel: the rest of the block is split along the sequence",
    "again": "sequence parallel, and what products read is gathered again for backward",
}
FORMS: dict[str, dict[str, bool]] = {
    "tensor": {},
    "sequence": {"sequence": True},
    "again": {"sequence": True, "gather_again": True},
}
MOST_RANKS = 4  # that split a block: its heads
LAST = "blocks.0.add2"  # what it makes is kept by what reads it


class Block(NamedTuple):
    """What the block's results for backward take on a rank, and what a rank sends in it in a step."""

    kept_bytes: int
    sent_bytes: int
    messages: int


class Formula(NamedTuple):
    """Bytes, and the expression they are from."""

    text: str
    size_bytes: float


def grid(devices: int) -> tuple[int, int]:
    """(Copies of the network, ranks that split each)."""
    inner = min(MOST_RANKS, devices)
    return devices // inner, inner


def split(net: nn.Cell, how: str, devices: int) -> None:
    """Give the operators of a network the strategies of a split. Raises what `tensor_parallel` raises."""
    data_parallel(net)
    if isinstance(net, MoEGPT):
        expert_parallel(net, devices, devices)
    if how != "batch":
        tensor_parallel(net, *grid(devices), **FORMS[how])


def splits_of(net: nn.Cell, parallel_mode: str) -> dict[str, str]:
    """The splits that a network can have."""
    return SPLITS if isinstance(net, GPT) and parallel_mode == "semi_auto_parallel" else {"batch": SPLITS["batch"]}


def block_of(plan: Plan) -> Block:
    """What the only block keeps, with what its first norm reads, and its messages, without those of parameters."""
    makers = {name: instr.name for _, instr in plan.instructions("forward") for name in instr.outs}
    makers = {name: maker for name, maker in makers.items() if maker == "add" or maker.startswith("blocks.")}
    mine = [name for name in kept_blocks(plan, rank=0) if makers.get(name, LAST) != LAST]
    kept = sum(plan.value(name).slice_bytes for name in mine)
    parameters, sent, messages = {p.name for p in plan.parameters}, 0.0, 0
    for _, instr in plan.instructions():
        if instr.is_communication and instr.name.startswith("blocks.") and instr.name not in parameters:
            sent += MESSAGES[instr.message].payload_bytes(message_bytes(plan, instr), instr.group_size)
            messages += 1
    return Block(kept, round(sent), messages)


def formulas(how: str, net: GPT, samples: int, devices: int) -> tuple[Formula, Formula]:
    """(Kept, sent) of a block of a rank's samples, in float32."""
    copies, t = (devices, 1) if how == "batch" else grid(devices)
    hidden, inner = net.token_table.shape[1], net.blocks[0].mlp.fc1.out_channels
    m = samples // copies * net.seq_length * hidden * 4
    split = 4 + 2 * inner / hidden
    kinds = {"batch": (4 + split, 0.0), "tensor": (4, split), "sequence": (2, 2 + split), "again": (0, 4 + split)}
    whole, parts = kinds[how]
    times = {"batch": 0, "again": 10}.get(how, 8)
    kept = " + ".join(text for text, n in ((f"{whole:g} M", whole), (f"{parts:g} M / {t}", parts)) if n)
    sent = f"{times} x {t - 1}/{t} M" if times else "0"
    return Formula(kept, (whole + parts / t) * m), Formula(sent, times * (t - 1) / t * m)


def splits_section(found: Mapping[str, Block], how: str, net: GPT, samples: int, devices: int) -> Section:
    """Every split: what its block keeps and sends, next to the formulas."""
    columns = {"split": "name", "kept for backward": "bytes bar", "formula": "why", "sent": "bytes bar"}
    columns |= {"by formula": "why", "messages": "count", "": "verdict"}
    rows: list[list[Any]] = []
    for name, block in found.items():
        kept, sent = formulas(name, net, samples, devices)
        agrees = (kept.size_bytes, sent.size_bytes) == (block.kept_bytes, block.sent_bytes)
        verdict = ["as counted" if agrees else "not as counted", agrees]
        rows.append([name, block.kept_bytes, kept.text, block.sent_bytes, sent.text, block.messages, verdict])
    note = "M: the bytes of a rank's b s h numbers. A reduce_scatter and an all_gather send as much as an all_reduce."
    return table("The block under every split", columns, rows, small="one rank, predicted", on=how, notes=[note])


def split_text(found: Mapping[str, Block], how: str) -> str:
    """What the chosen split does to the block, against tensor parallel."""
    if how == "batch":
        return ""
    block, plain = found[how], found["tensor"]
    text = f"The block keeps {bytes_text(block.kept_bytes)} and sends {bytes_text(block.sent_bytes)}"
    if how == "tensor":
        return f"{text}: heads and the MLP are split."
    ratio = block.sent_bytes / plain.sent_bytes
    traffic = "as many bytes" if ratio == 1 else f"{ratio:.3g} times its bytes"
    return f"{text}: {block.kept_bytes / plain.kept_bytes:.0%} of tensor parallel's memory, {traffic}."
