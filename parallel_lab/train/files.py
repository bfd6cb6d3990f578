"""What a rank writes once a program is compiled, if settings ask for it: the strategies that were chosen, and the IR files."""

from __future__ import annotations

from typing import Any

from ..compiler import Compiled
from ..context import get_context

__all__ = ["after_compiling"]


def after_compiling(compiled: Compiled, world: Any) -> None:
    """Write `strategy_ckpt_save_file` and the files of `save_graphs`."""
    path = compiled.plan.config.strategy_ckpt_save_file
    if path:
        from ..strategy_file import save_strategy

        save_strategy(compiled.plan, path)
    if get_context("save_graphs"):
        from ..graph_files import write_graph_files

        write_graph_files(compiled.steps, get_context("save_graphs_path"), world.rank if world is not None else 0)
