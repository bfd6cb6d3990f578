"""What the Strategy Lab shows of a plan: seen from a tensor, a rank, a message, or over time. Each is drawn once.

pictures = Pictures(Plans())
pictures.rank(plan, 5, events, profile)["messages"]
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...base.cluster import Cluster
from ...base.events import Event
from ...base.settings.current import default_settings
from ...graph.plan import Plan
from ...graph.value_types import ValueTypes, infer_types
from ..pictures import picture
from ..pictures.duals import redistribution_of, with_duals
from ..pictures.graph_strip import graph_strip
from ..pictures.lanes import timeline_lanes
from ..pictures.layers import flow_graph, plan_layers
from ..pictures.numbers import simulated_step, slice_numbers
from .operators import layer_of_entries, types_along
from .plans import Plans, own_copy
from .sections import pair_status, rank_status, tensor_status

PHASES = ("forward", "backward")
Entry = picture.TensorEntry
Events = tuple[Event, ...]


class Pictures:
    """Parts of snapshots; what is drawn of a plan is kept with it. A lab and its branches share one."""

    def __init__(self, plans: Plans) -> None:
        self._plans = plans
        self._ranks: tuple[Plan, Any] | None = None  # a plan, and its simulated first step
        self._lanes: tuple[Events, dict[str, Any]] | None = None  # of a measured step

    def entries(self, plan: Plan) -> tuple[Entry, ...]:
        """The tensors that one can look at."""
        return self._plans.drawn(plan, "entries", lambda: picture.tensor_entries(plan))

    def entry(self, plan: Plan, tensor: str) -> Entry:
        """One of them."""
        return next(entry for entry in self.entries(plan) if entry.value == tensor)

    def tensors(self, plan: Plan, layers: dict[str, str]) -> list[dict[str, Any]]:
        """All of them, as the snapshot lists them."""
        layer_of = layer_of_entries(plan, layers)
        return [
            {
                "id": entry.value,
                "label": entry.label,
                "shape": list(plan.value(entry.base).shape),
                "dtype": plan.value(entry.base).dtype,
                "layer": layer_of(entry),
            }
            for entry in self.entries(plan)
        ]

    def types(self, plan: Plan) -> ValueTypes:
        """The types of its values."""
        return self._plans.drawn(plan, "types", lambda: (infer_types(plan),))[0]

    def tensor(self, plan: Plan, entry: Entry, phase: str) -> dict[str, Any]:
        """What depends on the tensor and the phase that are looked at."""
        key = entry.value, phase
        shown, cards = self._plans.drawn(plan, key, lambda: list(picture.tensor_picture(plan, entry, phase)))
        named = zip(picture.axis_names(plan, entry), plan.value(entry.base).layout.device_matrix, strict=False)
        axes, codes = [name for name, size in named if size > 1], types_along(self.types(plan), entry.value, entry.base)
        shown["types"] = [[name, *pair] for name, pair in zip(axes, codes, strict=False)]
        return {"picture": shown, "cards": cards, "status_tensor": tensor_status(shown, plan.device_num)}

    def rank(self, plan: Plan, rank: int, events: Events, profile: Cluster) -> dict[str, Any]:
        """What depends on the rank that is looked at."""

        def messages() -> list[dict[str, Any]]:
            return with_duals(plan, picture.message_table(plan, rank, events, profile))

        table = messages() if events else self._plans.drawn(plan, ("messages", rank, profile), messages)
        detail = self._plans.drawn(plan, ("rank", rank), lambda: picture.rank_detail(plan, rank))
        step_s = self._plans.drawn(plan, ("step", profile), lambda: 1e-6 * self.timeline(plan, (), profile)["end"])
        sent = sum(m["bytes_predicted"] for m in table if m["group"])
        sums = {"messages": table, "message_totals": picture.totals(table)}
        sums["weight"] = {
            "step": [step_s, "time"],
            "sent": [sent, "bytes"],
            "memory": [detail["memory_total"], "bytes"],
        }
        return {"rank_detail": detail, **sums, "status_rank": rank_status(rank, table, plan.device_num)}

    def moves(self, plan: Plan, number: int) -> dict[str, Any] | None:
        """What moves in a message that is part of a redistribution."""
        return self._plans.drawn(plan, ("moves", number), lambda: redistribution_of(plan, number))

    def graph(self, plan: Plan, messages: list[dict[str, Any]], layers: dict[str, str]) -> dict[str, Any]:
        """The graph, of a large network layer by layer."""
        layer_of = plan_layers(plan, layers) if layers else {}
        return flow_graph(plan, messages, layer_of) if layer_of else graph_strip(plan, messages)

    def timeline(self, plan: Plan, events: Events, profile: Cluster) -> dict[str, Any]:
        """The lanes, kept until plan or events change: to predict them takes as long as the rest of a snapshot."""
        if not events:
            return self._plans.drawn(plan, ("lanes", profile), lambda: timeline_lanes(plan, (), profile))
        kept = self._lanes
        if kept is None or kept[0] is not events:
            self._lanes = kept = events, timeline_lanes(plan, events)
        return own_copy(kept[1])

    def numbers(
        self, plan: Plan, entry: Entry, phase: str, rank: int, drawn: dict[str, Any], job: Callable[[], tuple]
    ) -> dict[str, Any] | None:
        """Those of a rank's slice in the first step.  job: the network with its first values, optimizer, batches"""
        kept = self._ranks
        if kept is None or kept[0] is not plan:
            net, optimizer, batches = job()
            with default_settings():
                self._ranks = kept = plan, simulated_step(plan, net, optimizer, batches[0])
        numbers = slice_numbers(plan, kept[1], entry, phase, rank, drawn)
        return None if numbers is None else {**numbers, "source": "simulated: first step, before the update"}

    def all_looks(
        self, plan: Plan, messages: list[dict[str, Any]], events: Events, profile: Cluster
    ) -> dict[str, dict[str, Any]]:
        """For a page: what a snapshot has of every tensor and phase, every rank, and every message."""
        of_message = {"null": {"moves": None, "status_message": ""}}
        for m in messages:
            there = {} if m["tensor"] is None else {"tensor": m["tensor"], "phase": m["phase"]}
            shown = {"moves": self.moves(plan, m["number"]), "status_message": pair_status(m)}
            of_message[str(m["number"])] = {**shown, **there, "at": 0}
        pairs = [(entry, phase) for entry in self.entries(plan) for phase in PHASES]
        of_tensor = {f"{entry.value}|{phase}": self.tensor(plan, entry, phase) for entry, phase in pairs}
        of_rank = {str(n): self.rank(plan, n, events, profile) for n in range(plan.device_num)}
        return {"message": of_message, "tensor|phase": of_tensor, "rank": of_rank}
