"""Where the parts of a pipelined network lie, and the schedule that runs them.

    loop       part k on stage k % stages          V          0 1 1 0: down, and up again
    two-way    part k on two stages: one copy of the network goes 0 1, the other 1 0; half of the micro-batches each

A schedule is made by its name (`pipeline_scheduler`), or was given to `compile` as an object: a sequence of actions per
stage that knows its `parts`, `micro_batches`, and what is wrong with it, `check()` (`cost/schedules`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ..base.errors import ArgumentError, shorten
from ..base.hooks import from_above
from .actions import Action
from .draft import Draft


@dataclass(frozen=True)
class Placement:
    """Per copy of the network the stage of each of its parts: `ways[copy][part]`."""

    ways: tuple[tuple[int, ...], ...]

    def after(self, part: int, stage: int) -> int | None:
        """The first part from `part` on that lies on a stage, or None."""
        return next((k for k in range(part, len(self.ways[0])) if self.ways[0][k] == stage), None)


def placement_of(actions: Iterable[Iterable[Action]], parts: int) -> Placement:
    """Where parts lie as a schedule without faults runs them: micro-batch 0 goes the first way."""
    where = {(a.micro_batch, a.stage): at for at, mine in enumerate(actions) for a in mine if a.kind == "F"}
    numbers = sorted({n for n, _ in where})
    return Placement(tuple(dict.fromkeys(tuple(where[n, k] for k in range(parts)) for n in numbers)))


def stages_of(schedule: Any) -> int:
    """How many stages a schedule is for. Raises ArgumentError for anything that is not a schedule."""
    if all(hasattr(schedule, name) for name in ("name", "ranks", "parts", "micro_batches", "check")):
        return len(schedule)
    allowed = "A name out of schedule_names(), or a Schedule: make_schedule(...), Schedule.from_text(...)"
    raise ArgumentError(f"schedule={shorten(schedule)}", where="compile", allowed=allowed)


def given_schedule(draft: Draft) -> Any:
    """The schedule that `compile` was given. Raises ArgumentError if it is not legal, or made for other numbers."""
    schedule, stages, count = draft.schedule, draft.config.pipeline_stages, draft.graph.micro_batches
    where = f"schedule {schedule.name!r}"
    faults = schedule.check()
    if faults:
        more = f" ({len(faults) - 1} more: schedule.check() lists them)" if len(faults) > 1 else ""
        raise ArgumentError(f"{faults[0]}{more}", where=where)
    for what, has, expected in (("ranks", len(schedule), stages), ("micro-batches", schedule.micro_batches, count)):
        if has != expected:
            hint = f"Set pipeline_stages={len(schedule)}, and feed it by nn.PipelineCell(net, {schedule.micro_batches})"
            raise ArgumentError(f"it has {has} {what}", where=where, allowed=f"As the network: {expected}", hint=hint)
    return schedule


def named_placement(draft: Draft) -> Placement | None:
    """Where the schedule `pipeline_scheduler` has its parts; None: they go around, as many as the network has."""
    name, stages = draft.config.pipeline_scheduler, draft.config.pipeline_stages
    # every schedule is defined for so many micro-batches
    schedule = from_above("schedule_maker")(name, stages, 2 * stages, 1)
    parts = 1 + max(action.stage for mine in schedule for action in mine)
    if parts == stages and not draft.training.differentiated:
        return None  # one copy of a network is enough to predict
    placement = placement_of(schedule, parts)
    return None if placement.ways == (tuple(k % stages for k in range(parts)),) else placement


def named_schedule(draft: Draft, parts: int) -> Any:
    """The actions of each stage, by name. Without gradients every stage runs its parts one after the other."""
    stages, count = draft.config.pipeline_stages, draft.graph.micro_batches
    if draft.training.differentiated:
        return from_above("schedule_maker")(draft.config.pipeline_scheduler, stages, count, max(1, parts // stages))
    way = (named_placement(draft) or Placement((tuple(k % stages for k in range(parts)),))).ways[0]
    done = [Action(k, "F", n, "forward") for k in range(parts) for n in range(count)]
    return [[a for a in done if way[a.stage] == at] for at in range(stages)]
