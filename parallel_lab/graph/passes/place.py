"""Pass `place`: which values lie in the memory of the host, and not of the device.

What runs on the host, and reads and makes its values there:
- an operator with the target "CPU" (`Primitive.set_device`, `add_prim_attr("primitive_target", "CPU")`), and its
  gradient;
- the update of an optimizer whose `target` is "CPU", but for its messages, which are between devices; of one with
  `use_offload` what its states take part in, but for the last step, which gives Parameters their new values;
- a conversion of a Parameter that lies there to a smaller dtype, or of a gradient that only the host reads to a larger
  one, so that the smaller one is copied; that of a Parameter once in a step, for all micro-batches.

Parameters and states that the host reads live there; so do inputs and constants that nothing else reads. With
`offload_param="cpu"` all Parameters do. Copies come into the finished programs (`graph/copies.py`).
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import Any

from ...base.dtypes import as_dtype
from ..draft import Draft
from ..instr import Instr
from ..recomputed import offloads

LOCAL = ("compute", "reshape", "slice")  # what a host can run


def place(draft: Draft) -> Draft:
    """Note what lies on the host (`Draft.host`)."""
    config, optimizer = draft.config, draft.training.optimizer
    instrs = list(draft.instructions())
    targets = {(node.phase != "forward", node.name) for node in draft.graph.nodes if node.target}
    updated, all_updated = _updated_on_host(optimizer)
    parameters = {i.name for i in draft.graph.inputs if i.role == "parameter"}
    offloaded = _of_states(draft, parameters)
    on_host = []
    for phase, instr in instrs:
        # the optimizer's own rule, and not what the function itself does with gradients
        rule = phase == "update" and instr.origin.made_by == "update"
        mine = all_updated or instr.name in updated or not offloaded.isdisjoint(instr.kept)
        on_host.append(instr.kind in LOCAL and ((phase == "update", instr.name) in targets or (rule and mine)))
    lasting = parameters | {name for name, _, _ in draft.states}
    host = parameters if config.memory_offload and config.offload_param else set()
    host |= {name for (_, i), there in zip(instrs, on_host, strict=True) if there for name in i.ins if name in lasting}
    readers: dict[str, list[int]] = defaultdict(list)
    for at, (_, instr) in enumerate(instrs):
        for name in instr.ins:
            readers[name].append(at)
    sizes = {name: as_dtype(value.dtype).itemsize for name, value in draft.values}
    for at in reversed(range(len(instrs))):  # a gradient's readers come after it
        instr = instrs[at][1]
        if instr.op == "cast" and not on_host[at] and instrs[at][0] != "update":
            smaller = instr.ins[0] in host and sizes[instr.out] < sizes[instr.ins[0]]
            there = bool(readers[instr.out]) and all(on_host[n] for n in readers[instr.out])
            on_host[at] = smaller or (there and sizes[instr.out] > sizes[instr.ins[0]])
    host |= {name for (_, instr), there in zip(instrs, on_host, strict=True) if there for name in instr.kept}
    for source in draft.graph.inputs:
        if source.role in ("data", "constant") and readers[source.name]:
            host |= {source.name} if all(on_host[n] for n in readers[source.name]) else set()
    if draft.graph.micro_batches > 1:
        draft = _cast_once(draft, parameters & host, host)
    if not host:
        return draft.noted("place", "kept forward values go to the host until backward")
    also = "; kept forward values go there until backward" if config.memory_offload else ""
    text = f"{sum(on_host)} instructions run on the host, {len(host & lasting)} parameters and states live there{also}"
    return replace(draft, host=tuple(sorted(host))).noted("place", text)


def _cast_once(draft: Draft, parameters: set[str], host: set[str]) -> Draft:
    """Parameters are the same for all micro-batches: what the host converts of them it converts for the first."""

    def once(instr: Instr) -> Instr:
        cast = instr.op == "cast" and instr.ins[0] in parameters and instr.out in host
        return replace(instr, once="first") if cast else instr

    programs = ((p, tuple(map(once, i)) if p == "forward" else i) for p, i in draft.programs)
    return replace(draft, programs=tuple(programs))


def _offloading(optimizer: Any) -> set[str]:
    """The parameters whose states lie on the host, while they themselves stay on the device."""
    members = () if optimizer is None else optimizer.members
    return {p.name for one in members if one.use_offload and one.target != "CPU" for p in one.parameters}


def _of_states(draft: Draft, parameters: set[str]) -> set[str]:
    """What is made of such parameters' states, but for their new values, and these values in another dtype."""
    mine = _offloading(draft.training.optimizer)
    program, names = draft.program("update"), {name for name, parameter, _ in draft.states if parameter in mine}
    new = {source for target, source in draft.assignments if target in parameters}
    new |= {i.ins[0] for i in program if i.op == "cast" and i.out in new}
    for instr in program:
        if not names.isdisjoint(instr.ins) and new.isdisjoint(instr.kept):
            names.update(instr.kept)
    return names


def _updated_on_host(optimizer: Any) -> tuple[set[str], bool]:
    """The parameters whose update runs on the host, and whether it is that of all."""
    members = () if optimizer is None else optimizer.members
    there = [one.target == "CPU" for one in members]
    names = {p.name for one, is_there in zip(members, there, strict=True) if is_there for p in one.parameters}
    return names, bool(there) and all(there)


def places(draft: Draft) -> bool:
    """Whether anything asks for the host."""
    optimizer = draft.training.optimizer
    on_host = bool(_updated_on_host(optimizer)[0] or _offloading(optimizer)) or draft.config.memory_offload
    return on_host or any(node.target or offloads(node.recompute) for node in draft.graph.nodes)
