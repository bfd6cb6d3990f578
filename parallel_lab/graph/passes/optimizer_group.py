"""Pass `optimizer_group`: optimizer parallel in data_parallel mode (weight grouping, see `nn/optim/weight_groups.py`).

    update, on every rank     what all parameters share: learning rates, loss scale, clipping
    update, on the owner      the rule for its parameters; nobody else holds their states
    then                      one broadcast per parameter, from its owner, in the order of the owners

What nothing but an owner's update needs, only the owner runs (`Instr.owner`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ...nn.optim.weight_groups import update_owners
from ..draft import Draft, fresh_name
from ..instr import Instr, attr_pairs


def group_updates(draft: Draft) -> Draft:
    """Let each parameter be updated by its owner (`weight_groups.update_owners`)."""
    values, device_num = draft.value_table(), draft.config.device_num
    owners: dict[str, int] = {}
    for one in draft.training.optimizer.members:
        owners |= update_owners(one.parameters, device_num)
    if device_num == 1:
        return draft.noted("optimizer_group", "one rank updates all parameters")
    new = dict(draft.assignments)
    owned = {name: owner for name, owner in owners.items() if name in new}
    of_state = {label: owned[parameter] for label, parameter, _ in draft.states if parameter in owned}
    instrs = _with_owners(draft, {**owned, **of_state})
    sent: dict[str, Instr] = {}
    for name, owner in sorted(owned.items(), key=lambda item: item[1]):  # stable: the optimizer's order within an owner
        label = fresh_name(f"{name}.broadcast", values)
        values[label] = values[name]
        attrs = {"root": owner, "shape": values[name].shape, "dtype": values[name].dtype, "fusion": 0}
        fields: dict[str, Any] = {"attrs": attr_pairs(attrs), "axes": (0,), "device_matrix": (device_num,)}
        why = f"rank {owner} alone has updated {name!r}, and all ranks go on with its new value"
        origin = next(i.origin for i in instrs if new[name] in i.outs).made("optimizer_group")
        fields |= {"reason": f"optimizer parallel: {why}", "origin": origin}
        sent[name] = Instr("broadcast", (label,), (new[name],), name, **fields)
    changes: dict[str, Any] = {
        "assignments": tuple((t, sent[t].out if t in sent else source) for t, source in draft.assignments)
    }
    changes["owners"] = tuple(owned.items())
    done = draft.with_program("update", (*instrs, *sent.values()), values, **changes)
    most = max((list(owned.values()).count(rank) for rank in range(device_num)), default=0)
    groups = f"{len(owned)} parameters in {device_num} groups of at most {most}"
    return done.noted("optimizer_group", f"{groups}, {len(sent)} broadcasts")


def _with_owners(draft: Draft, owner_of: Mapping[str, int]) -> tuple[Instr, ...]:
    """The update program; what goes only into values of one owner ({parameter or state: rank}) is that owner's."""
    users: dict[str, set[int | None]] = {}
    for target, source in draft.assignments:
        users.setdefault(source, set()).add(owner_of.get(target))
    for name in (*draft.outputs, *(value for _, value in draft.gradients)):
        users.setdefault(name, set()).add(None)
    instrs = []
    for instr in reversed(draft.program("update")):
        owners_of_readers = set().union(*(users.get(name, ()) for name in instr.outs)) or {None}
        alone = len(owners_of_readers) == 1 and not instr.is_communication and instr.kind not in ("print", "wait")
        owner = next(iter(owners_of_readers)) if alone else None
        for name in instr.ins:
            users.setdefault(name, set()).add(owner)
        instrs.append(replace(instr, owner=owner))
    return tuple(reversed(instrs))
