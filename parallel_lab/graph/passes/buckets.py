"""Which messages of gradients and parameters share a bucket, by the settings and by what the parameters say.

    never                           different group, reduction, kind or dtype; the id 0, which travels alone
    size, auto, semi/auto modes     counted in elements, in the order in which the network uses the parameters
    size, auto, data_parallel       counted in bytes, in the order of the optimizer's parameters
    index, data_parallel            positions among the optimizer's parameters;  semi/auto: among sent messages
    cost model (semi/auto)          parameters of like distance from the loss, by costmodel_allreduce_fusion_algorithm
    otherwise                       equal `comm_fusion` of their parameters, where somebody has chosen one
    what a network itself calls     equal numbers of `add_prim_attr("fusion", 1)`

The counting itself is in `parallel_lab/base/settings/fusion_rules.py`. Sources: MindSpore,
set_auto_parallel_context(comm_fusion=...), Parameter.comm_fusion, nn.DistributedGradReducer.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...base.errors import PlanError
from ...base.settings import fusion_rules
from ...layout.tensor_layout import canonical_axes
from ..draft import Draft
from ..instr import Instr, Value, attr_pairs
from ..ir import GraphInput

# what comm_fusion calls them
_FUSED = {"all_reduce": "allreduce", "all_gather": "allgather", "reduce_scatter": "reducescatter"}
FIRST_POSITION = 1024  # where nn.DistributedGradReducer begins to count


@dataclass(frozen=True)
class Member:
    """A message that may share a bucket: `instr` sends `value`, `place` messages before it. given: the parameter; None
    for one that the network itself calls.
    """

    instr: Instr
    given: GraphInput | None
    value: Value
    place: int

    @property
    def key(self) -> tuple[Any, ...]:
        """What messages that are to be one must have in common."""
        i = self.instr
        return i.kind, i.by_hand or canonical_axes(i.device_matrix, i.axes), i.attr("reduce"), self.value.dtype

    @property
    def parameter(self) -> GraphInput:
        """The parameter. Raises PlanError for a message that the network itself calls."""
        if self.given is None:
            raise PlanError("it carries no parameter", where=f"message {self.instr.out!r}")
        return self.given

    @property
    def name(self) -> str:
        """The name of what it carries: the parameter, or the network's own operator."""
        return self.instr.name if self.given is None else self.given.name

    @property
    def elements(self) -> int:
        """Elements that a rank hands over."""
        return math.prod(self.value.slice_shape)


def members_of(draft: Draft, program: tuple[Instr, ...], values: dict[str, Value]) -> list[Member]:
    """The messages of a program that carry a parameter's gradient or slice, in the order they are sent."""
    messages = [i for i in program if i.kind in _FUSED and i.carried]
    return [Member(i, draft.graph.input(i.attr("parameter")), values[i.ins[0]], n) for n, i in enumerate(messages)]


def called_together(program: tuple[Instr, ...], values: dict[str, Value]) -> list[list[Member]]:
    """Buckets of messages that the network itself calls with one number `fusion` above 0, group, reduction and dtype,
    and none of them needs another's result. (MindSpore, attribute `fusion` of communication operators.)
    """
    buckets: dict[tuple[Any, ...], list[list[Member]]] = {}
    needs: dict[str, set[str]] = {}  # value -> messages it is made from
    for place, instr in enumerate(program):
        before = set().union(*(needs.get(name, ()) for name in instr.ins))
        if instr.kind in _FUSED and instr.by_hand and instr.attr("fusion") and not instr.when:
            member = Member(instr, None, values[instr.ins[0]], place)
            alike = buckets.setdefault((member.key, instr.attr("fusion")), [])
            if not alike or before.intersection(m.instr.out for m in alike[-1]):
                alike.append([])
            alike[-1].append(member)
            before = {*before, instr.out}
        needs.update(dict.fromkeys(instr.outs, before))
    return [bucket for alike in buckets.values() for bucket in alike if len(bucket) > 1]


def shared_buckets(draft: Draft, members: list[Member]) -> list[list[Member]] | None:
    """All members of one kind in buckets, in sending order; alone: a bucket of one. None: nobody asked for fusion.

    What a rule counts is what their messages show as `fusion`, from 1 by size or cost, from 1024 by position in
    data_parallel mode; elsewhere it stays the parameter's comm_fusion (recorded with MindSpore 2.10).
    """
    bucket_numbers = _numbers(draft, members)
    if bucket_numbers is None:
        return None
    numbers, first = bucket_numbers
    buckets: dict[tuple[Any, ...], list[Member]] = {}
    for member, number in zip(members, numbers, strict=True):
        alone = member.parameter.fusion_given and member.parameter.comm_fusion == 0
        if first is not None and not alone:
            attrs = attr_pairs({**dict(member.instr.attrs), "fusion": first + number})
            member = replace(member, instr=replace(member.instr, attrs=attrs))
        buckets.setdefault((member.place,) if alone else (member.key, number), []).append(member)
    return sorted(buckets.values(), key=lambda bucket: bucket[-1].place)


def unreached(draft: Draft, members: list[Member]) -> str:
    """What to say of positions of mode "index" behind the last message, or "" (MindSpore logs a warning)."""
    mode, setting = _setting(draft, members)
    if draft.config.local:
        count = sum(draft.graph.source(name).trainable for name in draft.order)
    else:  # counted among those that could share a message
        count = max(Counter((m.key, m.parameter.comm_fusion) for m in members).values())
    behind = [position for position in setting if position >= count] if mode == "index" else []
    if not behind:
        return ""
    ends = f"index {', '.join(map(str, behind))} split{'s' if len(behind) == 1 else ''} nothing"
    return f" ({ends}: the last is {count - 1})"


def _setting(draft: Draft, members: list[Member]) -> tuple[str, Any]:
    """(mode, config) of comm_fusion for the members' kind of message; ("", 0) where it is not set."""
    set_ = {kind: (mode, config) for kind, mode, config in draft.config.comm_fusion}
    return set_.get(_FUSED[members[0].instr.kind], ("", 0))


def _numbers(draft: Draft, members: list[Member]) -> tuple[list[Any], int | None] | None:
    """(what members of one bucket have in common besides their key, what the rule calls its number 0, None where they
    keep their ids); None: nobody asked for fusion.
    """
    config = draft.config
    mode, setting = _setting(draft, members)
    ids = [m.parameter.comm_fusion for m in members]
    chosen_by_learner = any(i.fusion_given for i in draft.graph.inputs if i.role == "parameter")
    if mode in ("auto", "size") and config.local:

        def by_bytes(mine: list[Member]) -> fusion_rules.Groups:
            return fusion_rules.size_groups_by_bytes([m.value.slice_bytes for m in mine], setting)

        return _within(members, ids, draft.order, by_bytes), None
    if mode in ("auto", "size"):
        # MindSpore (SetFusionBySize) numbers all of them anew, in one walk
        used = tuple(i.name for i in draft.graph.inputs)
        numbers = _counted(
            members, used, lambda mine: fusion_rules.size_groups_by_elements([m.elements for m in mine], setting)
        )
        return numbers, 1 if mode == "size" else None
    if mode == "index" and config.local:
        trained = [name for name in draft.order if draft.graph.source(name).trainable]
        if len({draft.graph.source(name).comm_fusion for name in trained}) > 1:
            return list(ids), None  # nn.DistributedGradReducer: ids that differ come before positions
        numbers = dict(zip(trained, fusion_rules.index_groups(len(trained), setting, config.fusion_index), strict=True))
        return [numbers[m.parameter.name] for m in members], FIRST_POSITION
    if mode == "index":
        groups = _within(
            members, ids, (), lambda mine: fusion_rules.index_groups(len(mine), setting, config.fusion_index)
        )
        return groups, None
    if config.cost_model_fusion is not None and members[0].instr.kind == "all_reduce" and not config.local:
        distances = _distances(draft)
        away, elements = [distances[m.parameter.name] for m in members], [m.elements for m in members]
        return list(fusion_rules.cost_model_groups(config.cost_model_fusion, away, elements)), 1
    return (list(ids), None) if chosen_by_learner else None


def _distances(draft: Draft) -> dict[str, float]:
    """Bytes read between each input (parameter, data) and the loss: the cost by which MindSpore's model orders them."""
    program, values = draft.program("forward"), draft.value_table()
    place = {name: n for n, instr in enumerate(program) for name in instr.outs}
    works = [i.kind == "compute" and not i.opdef.view for i in program]
    costs = [sum(values[n].slice_bytes for n in i.ins) if work else 0 for i, work in zip(program, works, strict=True)]
    readers: list[list[int]] = [[] for _ in program]
    for n, instr in enumerate(program):
        for name in instr.ins:
            if name in place:
                readers[place[name]].append(n)
    away = fusion_rules.distances_from_loss(costs, readers)
    distances = {source.name: 0.0 for source in draft.graph.inputs}
    for n, instr in enumerate(program):
        distances |= {name: max(distances[name], away[n]) for name in instr.ins if name in distances}
    return distances


def _counted(
    members: list[Member], names: Sequence[str], count: Callable[[list[Member]], fusion_rules.Groups]
) -> list[object]:
    """`count` of the members in the order of `names` (or as they are sent), as positions in the sent order."""
    rank = {name: n for n, name in enumerate(names)}
    ordered = sorted(members, key=lambda m: (rank.get(m.parameter.name, len(rank)), m.place))
    numbers = {m.place: number for m, number in zip(ordered, count(ordered), strict=True)}
    return [numbers[m.place] for m in members]


def _within(
    members: list[Member], ids: list[int], names: Sequence[str], count: Callable[[list[Member]], fusion_rules.Groups]
) -> list[object]:
    """As `_counted`, among the members that could share a message and have the same id."""
    together: dict[tuple[Any, ...], list[Member]] = {}
    for member, number in zip(members, ids, strict=True):
        together.setdefault((member.key, number), []).append(member)
    numbers = {}
    for (_, number), mine in together.items():
        numbers |= {m.place: (number, n) for m, n in zip(mine, _counted(mine, names, count), strict=True)}
    return [numbers[m.place] for m in members]
