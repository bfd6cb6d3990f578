"""What a plan looks like: pure functions from a plan (and an event log) to the plain data that views draw.

    entries = tensor_entries(plan)                      tensors one can look at
    picture, cards = tensor_picture(plan, entry, "forward")
    message_table(plan, rank, events)                   every message, with its reason
    rank_detail(plan, rank)                             what a rank holds, its groups, its memory

Colour is the slice, position is the rank: a card names its block and the number of the slice, or of the addend.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ...base.cluster import Cluster, get_cluster
from ...base.events import Event
from ...cost.memory import predict_memory
from ...cost.time import instr_time_s, message_bytes
from ...graph.instr import Value
from ...graph.ir import Node
from ...graph.kinds import class_name
from ...graph.plan import Plan
from ...layout.tensor_layout import TensorLayout, slice_text
from ...ops.machine.sharding import sharding_rule
from ...ops.machine.split_labels import strategy_operands
from .halo_view import halo_base, halo_chain, halo_facts, halo_strips

LOSS = "loss_fn."
COPIES = "copies"
NAMED = 4  # operators that a group's purpose names; a transformer's gradients would fill a page


@dataclass(frozen=True)
class TensorEntry:
    """A tensor one can look at.

    value   its name in the plan;  source: the graph value it is a form of ("matmul" for "matmul.for.relu")
    owner   the operator it belongs to, whose strategy gave it its layout; "" for data as it is fed
    base    the value whose layout says where it lies: itself, unless it is read with a halo;  placed_by: the
            operator that gave that layout
    """

    value: str
    label: str
    source: str
    owner: str
    note: str
    base: str
    placed_by: str


# ---- tensors ----


def tensor_entries(plan: Plan) -> tuple[TensorEntry, ...]:
    """Data, parameters and operators' tensors in the step's order, without single numbers and inner values."""
    entries: dict[str, TensorEntry] = {}
    roles = {i.name: i.role for i in plan.graph.inputs}

    def add(name: str, label: str, source: str, owner: str, note: str, base: str = "", placed_by: str = "") -> None:
        value = plan.value_table.get(base or name)
        if name not in entries and value is not None and value.layout is not None and value.shape:
            entries[name] = TensorEntry(name, label, source, owner, note, base or name, placed_by or owner)

    for fed in plan.data_inputs:
        add(fed.name, fed.name, fed.name, "", "as every rank is fed it")
    for instr, out in ((i, name) for _, i in plan.instructions("forward") for name in i.kept):
        source = form_of(plan, out)
        maker = plan.graph.maker(source)
        consumer = instr.name if instr.name != maker else ""
        spoken = source if source in roles else f"out of {source.removesuffix('.0')}"
        if instr.name.startswith(LOSS):
            if consumer and not source.startswith(LOSS) and out.startswith(f"{source}.for."):
                add(out, f"{spoken} for the loss", source, consumer, "as the loss function reads it")
            continue
        for name in instr.ins:
            if roles.get(name) == "parameter":
                add(name, name, name, instr.name, "as long as the training runs")
        if instr.kind == "halo_exchange":
            base = halo_base(plan, out)
            placed_by = consumer if ".for." in base else maker if source not in roles else ""
            note = f"as {consumer} reads it, with strips of the neighbours' slices; zeros beyond the edges"
            add(out, f"{spoken} for {consumer}, with halo", source, consumer, note, base, placed_by)
            if halo_chain(plan, instr.ins[0]):  # halos along two dims: the second value has both
                entries.pop(instr.ins[0], None)
        elif consumer == "":
            partial = out.endswith(".partial")
            combined = f"{source}.partial" in plan.value_table
            note = "after its all_reduce" if combined else "as it leaves the operator"
            note = f"as it leaves {source}, before its all_reduce" if partial else note
            add(out, spoken + (", partial sums" if partial else ""), source, maker, note)
        elif out.startswith(f"{source}.for."):
            add(out, f"{spoken} for {consumer}", source, consumer, f"as {consumer} reads it")
    return tuple(entries.values())


def form_of(plan: Plan, name: str) -> str:
    """The graph value that a forward value is a form of: "matmul" for "matmul.partial" and "matmul.for.relu"."""
    known = plan.graph.shapes()
    parts = name.split(".")
    candidates = (".".join(parts[:end]) for end in range(len(parts), 0, -1))
    return next((c for c in candidates if c in known), name)


def first_read(plan: Plan, node: Node) -> str:
    """The most telling result of an operator: if it has several, the first that anything reads."""
    return next((name for name in node.outs if name in plan.value_table), node.outs[0])


def axis_names(plan: Plan, entry: TensorEntry) -> list[str]:
    """Names of the device-matrix axes of an entry's layout, from the left: labels of the operator that wanted it."""
    layout = plan.value(entry.base).layout
    node = plan.graph.node(entry.placed_by) if entry.placed_by else None
    if node is None or node.strategy is None:
        names = ["rows" if i == 0 else f"dim {i}" for i in range(layout.ndim)]
        return [*names, COPIES][: len(layout.device_matrix)] if len(layout.device_matrix) > layout.ndim else names
    shapes = plan.graph.shapes()
    operand_shapes = tuple(shapes[i] for i in node.ins)
    rule = sharding_rule(node.opdef, operand_shapes, dict(node.attrs), node.strategy, plan.device_num)
    plain = [label_name(node, operand_shapes, label) for label in rule.labels]
    # a table's "dim 0" next to that of the numbers it is asked for
    return [
        label_name(node, operand_shapes, c, qualified=True) if plain.count(name) > 1 else name
        for c, name in zip(rule.labels, plain, strict=True)
    ]


def label_name(node: Node, shapes: tuple[tuple[int, ...], ...], label: str, qualified: bool = False) -> str:
    """A label in words: a declared one as it is, any other by its dim (`qualified`: and operand), none as "copies"."""
    if label == "":
        return COPIES
    if isinstance(node.opdef.axes, str) or isinstance(node.opdef.signature, str) and label in node.opdef.signature:
        return label
    operands = strategy_operands(node.opdef, node.opdef.signature_for(shapes, dict(node.attrs)))
    for name, labels in zip(node.opdef.tensors, operands, strict=False):
        if label in labels:
            return f"{name} dim {labels.index(label)}" if qualified else f"dim {labels.index(label)}"
    return label


def _axis_name(layout: TensorLayout, names: list[str], axis: int) -> str:
    """axis: counted from the right"""
    count = len(layout.device_matrix)
    return names[count - 1 - axis] if len(names) == count else f"axis {axis}"


def dim_names(layout: TensorLayout, names: list[str]) -> list[str]:
    """A name for every dim of a tensor: its number, and the axis that splits it where that has a letter."""
    texts = []
    for dim, axes in enumerate(layout.tensor_map):
        name = next((_axis_name(layout, names, a) for a in axes if layout.axis_size(a) > 1), "")
        named = name not in ("", "rows", COPIES) and "dim " not in name and "axis " not in name
        texts.append(f"dim {dim} ({name})" if named else f"dim {dim}")
    return texts


def drawn_dims(splits: tuple[int, ...], halo: Iterable[int] = ()) -> dict[str, int | None]:
    """Which dims of a tensor a flat picture shows: those read with a halo first, then those that are split, then the
    others in order.

    {"down", "across", "panels"}: a dim, or None; "panels" is a third dim that is split, drawn as pictures side by side,
    and "parts" how many. More than three split dims would need 16 ranks. With four dims the third runs down: the height
    of a picture (n, c, h, w).

    >>> drawn_dims((2, 1, 4, 1), [2]), drawn_dims((8,))
    ({'down': 2, 'across': 0, 'panels': None, 'parts': 1}, {'down': None, 'across': 0, 'panels': None, 'parts': 1})
    """
    if len(splits) < 2:
        return {"down": None, "across": 0 if splits else None, "panels": None, "parts": 1}
    wanted = set(halo)
    ranked = sorted(range(len(splits)), key=lambda d: -(2 * (d in wanted) + (splits[d] > 1)))
    down, across = sorted(ranked[:2])
    if len(splits) == 4 and across == 2:
        down, across = across, down
    panels = ranked[2] if len(splits) > 2 and splits[ranked[2]] > 1 else None
    return {"down": down, "across": across, "panels": panels, "parts": 1 if panels is None else splits[panels]}


def tensor_picture(plan: Plan, entry: TensorEntry, phase: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The picture of one tensor (or, in phase "backward", of its gradient) and one card per rank."""
    value, label, note = plan.value(entry.base), entry.label, entry.note
    chain = halo_chain(plan, entry.value)
    if phase == "backward":
        value, label, note = _gradient_of(plan, entry, bool(chain))
    layout, names = value.layout, axis_names(plan, entry)
    partial = None
    if layout.is_partial:
        axes = [_axis_name(layout, names, a) for a in layout.partial if layout.axis_size(a) > 1]
        partial = {"axes": axes, "count": len(layout.partial_group(0)), "reduce": layout.reduce}
    order = {numbers: i for i, numbers in enumerate(layout.distinct_slices())}
    cards = []
    for rank in range(plan.device_num):
        index, group = layout.slice_index(value.shape, rank), layout.partial_group(rank)
        card = {
            "rank": rank,
            "coordinates": list(layout.coordinates(rank)),
            "block": [[s.start, s.stop] for s in index],
            "slice": order[layout.slice_numbers(rank)],
            "addend": group.index(rank) + 1 if partial else None,
            "addends": len(group) if partial else 1,
            "text": slice_text(index, value.shape),
            "replicas": list(layout.replicas(rank)),
        }
        cards.append(card)
    if chain:
        halo_strips(plan, chain, cards)
    picture = {
        "shape": list(value.shape),
        "device_matrix": list(layout.device_matrix),
        "axis_names": names,
        "dim_names": dim_names(layout, names),
        "drawn": drawn_dims(layout.splits, [i.attr("dim") for i in chain]),
        "halo": halo_facts(plan, chain),
        "partial": partial,
        "slices": len(order),
        "label": label,
        "note": note,
    }
    return picture, cards


def _gradient_of(plan: Plan, entry: TensorEntry, has_halo: bool) -> tuple[Value, str, str]:
    """What is shown of a tensor in backward: the value, its label and a note."""
    gradient = dict(plan.value_gradients).get(entry.value)
    here, label = plan.value(entry.base), f"gradient of {entry.label}"
    if gradient is None:
        return here, entry.label, "nothing is trained through it, so it has no gradient; shown as in forward"
    if has_halo:
        return here, label, "every rank has gradients for all it read; where strips overlap, a HaloReduce adds them up"
    value = plan.value(gradient)
    if value.layout is None:
        return here, label, "every rank computes its own part"
    addends = "its partial sums lie on the ranks that hold the same slice"
    return value, label, addends if value.layout.is_partial else "complete on every rank"


# ---- messages ----


def message_table(
    plan: Plan, rank: int, events: Iterable[Event] = (), cluster: str | Cluster = "laptop"
) -> list[dict[str, Any]]:
    """Messages of one step as `rank` sees them, and the slices the compiler inserted, in the order in which they run.

    events  what was measured: bytes and times of this rank's instructions are taken from it where it has them

    `source` is the graph value that is moved. `carries`: of a bucket, the parameters whose gradients or slices move.
    """
    profile = get_cluster(cluster)
    # waiting for a message bears its name
    measured = {(e.phase, e.name): e for e in events if e.rank == rank and e.kind != "wait"}
    entries = {e.value for e in tensor_entries(plan)}
    rows = []
    for phase, instr in plan.instructions():
        if not (instr.is_communication or instr.kind == "slice"):
            continue
        event = measured.get((phase, instr.out))
        carries = instr.attr("members") or ()
        # the graph value that the instruction, forward or backward, moves (a form of)
        source = carries[0] if carries else form_of(plan, instr.out.split(".grad")[0])
        # of a halo: what the operator reads
        read = (instr.out.split(".grad")[0],) if instr.attr("window") is not None else ()
        tensor = next((n for n in (*read, instr.ins[0], source, f"{source}.partial") if n in entries), None)
        rows.append(
            {
                "number": len(rows) + 1,
                "phase": phase,
                "operator": instr.name,
                "kind": instr.message or instr.kind,
                "collective": class_name(instr),
                "group": list(instr.group(rank)) if instr.is_communication else [],
                "bytes_predicted": message_bytes(plan, instr, rank),
                "bytes_counted": event.bytes if event is not None else None,
                "time_predicted_s": instr_time_s(plan, instr, profile, rank=rank),
                "time_measured_s": event.duration_s if event is not None else None,
                "reason": instr.reason,
                "origin": instr.origin.place,
                "tensor": tensor,
                "source": source,
                "carries": list(carries),
            }
        )
    return rows


def totals(messages: list[dict[str, Any]]) -> dict[str, Any]:
    """Sums of the message table's numbers; None where a column has no numbers."""

    sums = {}
    for key in ("bytes_predicted", "bytes_counted", "time_predicted_s", "time_measured_s"):
        known = [m[key] for m in messages if m[key] is not None]
        sums[key] = sum(known) if known else None
    return sums


# ---- a rank ----


def rank_detail(plan: Plan, rank: int) -> dict[str, Any]:
    """What a rank holds, the groups it communicates in, and its memory (predicted)."""
    holds = []
    for entry in tensor_entries(plan):
        if ".for." in entry.value or entry.base != entry.value:
            continue
        value = plan.value(entry.value)
        text = slice_text(value.layout.slice_index(value.shape, rank), value.shape)
        size = {"shape": list(value.slice_shape), "bytes": value.slice_bytes}
        holds.append({"tensor": entry.label, "text": text, **size, "note": _holding(value)})
    report = predict_memory(plan)
    memory = [{"kind": kind, "bytes": size} for kind, size in report.parts.items()]
    total = sum(report.parts.values())
    return {"holds": holds, "groups": _groups(plan, rank), "memory": memory, "memory_total": total}


def _holding(value: Value) -> str:
    layout: TensorLayout = value.layout
    if layout.is_partial:
        return f"1 of {len(layout.partial_group(0))} partial sums"
    return f"{layout.replica_count} copies" if layout.replica_count > 1 else ""


def _groups(plan: Plan, rank: int) -> list[dict[str, Any]]:
    """Each group once, with what it is for: the kinds of its messages, their names and phases."""
    uses_of: dict[tuple[int, ...], dict[str, dict[str, list[str]]]] = {}
    for phase, instr in plan.instructions():
        if instr.is_communication:
            when = "gradients" if phase == "backward" and instr.carried else phase
            names = uses_of.setdefault(instr.group(rank), {}).setdefault(class_name(instr), {}).setdefault(when, [])
            names += [name for name in instr.carried or (instr.name,) if name not in names]
    groups = []
    for ranks, kinds in uses_of.items():
        label = "all ranks" if len(ranks) == plan.device_num else f"{len(ranks)} ranks"
        uses = (f"{kind}: {'; '.join(_use(*part) for part in parts.items())}" for kind, parts in kinds.items())
        groups.append({"label": label, "ranks": list(ranks), "use": "; ".join(uses)})
    return groups


def _use(when: str, names: list[str]) -> str:
    listed = ", ".join(names)
    if len(names) > NAMED + 1:
        listed = f"{', '.join(names[:NAMED])} and {len(names) - NAMED} more"
    return f"gradient{'s' if len(names) > 1 else ''} of {listed}" if when == "gradients" else f"{when} {listed}"
