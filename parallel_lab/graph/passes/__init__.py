"""The passes, in order, as data: each is named, pure, `Draft -> Draft`, and leaves a note.

    for one in PASSES: print(one.name, one.when)

One list serves every mode: a pass whose condition does not hold for a draft does not run. What the list says is what
runs, and `compile_steps` returns a draft for each pass that ran. A lesson gives a list of its own with `passes=`: a
part of this one, with its own passes between, as (name, function); a pass that it left out although its condition holds
is named in the plan's notes. A choice that needs costs, which lie above this room, is a pass that is handed in so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from ...base.errors import PlanError
from ...base.hooks import breathe
from ...base.settings.checks import SHARDED_MODES
from ..draft import Draft
from ..recomputed import asks_to_recompute
from .differentiate import differentiate
from .follow import follow_gradients, follow_updates
from .fuse import fuse_messages
from .local_recorder import unfold
from .optimizer_group import group_updates
from .optimizer_shard import shard_parameters
from .parallelize import parallelize
from .place import place, places
from .recompute import recompute, regather_parameters
from .replicate import replicate
from .stages import assign_stages, cross_borders
from .strategies import choose_strategies, with_saved_strategies
from .update import scale_loss, update_parameters

__all__ = ["CONDITIONS", "PASSES", "Pass", "run_passes"]


def _shards_optimizer(draft: Draft) -> bool:
    return draft.config.enable_parallel_optimizer and draft.training.differentiated


# what a pass may depend on: words -> whether it holds for the draft as it was traced
CONDITIONS: dict[str, Callable[[Draft], bool]] = {
    "always": lambda d: True,
    "operators are split": lambda d: not d.config.local,
    "every rank runs the whole network": lambda d: d.config.local,
    "a strategy file is named": lambda d: (
        d.config.parallel_mode in SHARDED_MODES and bool(d.config.strategy_ckpt_load_file)
    ),
    "there are pipeline stages": lambda d: d.config.pipeline_stages > 1 or d.schedule is not None,
    "gradients are asked for": lambda d: d.training.differentiated,
    "the function makes a training step itself": lambda d: bool(d.graph.seeds or d.graph.updates),
    "updated parameters are read": lambda d: bool(d.graph.updated),
    "gradients are asked for, and something is recomputed": lambda d: (
        d.training.differentiated and any(asks_to_recompute(n.recompute) for n in d.graph.nodes)
    ),
    "there is an optimizer": lambda d: d.training.optimizer is not None,
    "the optimizer has a loss scaler": lambda d: getattr(d.training.optimizer, "loss_scaler", None) is not None,
    "parallel optimizer, operators are split": lambda d: not d.config.local and _shards_optimizer(d),
    "parallel optimizer at level3, operators are split": lambda d: (
        not d.config.local and _shards_optimizer(d) and d.config.optimizer_level == "level3"
    ),
    "parallel optimizer, every rank runs the whole network": lambda d: (
        d.config.local and _shards_optimizer(d) and d.training.optimizer is not None
    ),
    "an operator sends messages itself": lambda d: any(n.opdef.unfold for n in d.graph.nodes),
    "something lies on the host": places,
}


# what must be there when a pass begins: words -> (whether it is, the passes that see to it)
STARTS: dict[str, tuple[Callable[[Draft], bool], str]] = {
    "strategies": (lambda d: None not in [n.follows or n.strategy for n in d.graph.of_phase("forward")], "strategies"),
    "a program": (lambda d: bool(d.programs), "parallelize, replicate"),
}


class Pass(NamedTuple):
    """One pass.  when: one of CONDITIONS; start: one of STARTS; what else it needs lies in `Draft.training`."""

    name: str
    run: Callable[[Draft], Draft]
    when: str = "always"
    start: str = ""


PASSES: tuple[Pass, ...] = (
    Pass("stages", assign_stages, "there are pipeline stages"),
    Pass("strategy file", with_saved_strategies, "a strategy file is named"),
    Pass("strategies", choose_strategies),
    Pass("parallelize", parallelize, "operators are split", "strategies"),
    Pass("replicate", replicate, "every rank runs the whole network"),
    Pass("optimizer_shard", shard_parameters, "parallel optimizer, operators are split", "a program"),
    Pass("borders", cross_borders, "there are pipeline stages", "a program"),
    Pass("loss_scale", scale_loss, "the optimizer has a loss scaler", "a program"),
    Pass("differentiate", differentiate, "gradients are asked for", "a program"),
    Pass("recompute", recompute, "gradients are asked for, and something is recomputed", "a program"),
    Pass("regather", regather_parameters, "parallel optimizer at level3, operators are split", "a program"),
    Pass("unfold", unfold, "an operator sends messages itself", "a program"),
    Pass("fuse", fuse_messages, start="a program"),
    Pass("follow", follow_gradients, "the function makes a training step itself", "a program"),
    Pass("update", update_parameters, "there is an optimizer", "a program"),
    Pass("optimizer_group", group_updates, "parallel optimizer, every rank runs the whole network", "a program"),
    Pass("follow_updates", follow_updates, "updated parameters are read", "a program"),
    Pass("place", place, "something lies on the host", "a program"),
)


def run_passes(draft: Draft, passes: Iterable[Pass | tuple[Any, ...]] = PASSES) -> tuple[tuple[str, Draft], ...]:
    """(name, draft after it) of every pass whose condition holds, in order: what a step-through view shows."""
    listed = [one if isinstance(one, Pass) else Pass(*one) for one in passes]
    names = {one.name for one in listed}
    omitted = [one.name for one in PASSES if one.name not in names and CONDITIONS[one.when](draft)]
    chosen, steps = [one for one in listed if CONDITIONS[one.when](draft)], []
    if omitted:
        draft = draft.noted("passes", f"without {', '.join(omitted)}")
    for one in chosen:
        if one.start and not STARTS[one.start][0](draft):
            allowed = f"There must be {one.start}, from a pass such as {STARTS[one.start][1]}"
            hint = "A list of passes is a part of graph.passes.PASSES, in its order, with passes of one's own between"
            earlier = ", ".join(name for name, _ in steps) or "no pass"
            raise PlanError(f"before it ran {earlier}", where=f"pass {one.name}", allowed=allowed, hint=hint)
        draft = one.run(draft)
        steps.append((one.name, draft))
        breathe()
    return tuple(steps)
