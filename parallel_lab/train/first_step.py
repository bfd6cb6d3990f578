"""What is done with a program once, when it is compiled and before its first step: `FIRST`, in this order.

Ranks compare their programs, and what they start with; then the files are written that settings ask for.
"""

from __future__ import annotations

import os
from typing import Any

from ..base.hooks import from_above
from ..base.settings.checks import SHARDED_MODES
from ..base.settings.config import ParallelConfig
from ..base.settings.current import get_context
from ..graph.compiler import Compiled
from .agreement import agree_on_start
from .checkpoint.distributed import save_group_info
from .checkpoint.strategy_file import save_strategy
from .comparison import compare_programs


def begin(compiled: Compiled, world: Any, config: ParallelConfig) -> None:
    """Do all of it.

    world   the ranks that run the program; None: this process alone, or nobody
    config  the settings of the call: those of the plan name the mode that the compiler has chosen where they name none

    Raises CollectiveMismatch, on all ranks, for different programs, WorldError for different values to start with.
    """
    for do in FIRST:
        do(compiled, world, config)


def _compare(compiled: Compiled, world: Any, config: ParallelConfig) -> None:
    if world is not None and world.world_size > 1:
        optimizer = compiled.optimizer
        compare_programs(compiled.plan, world, {} if optimizer is None else optimizer.rates(optimizer.steps_taken))


def _agree(compiled: Compiled, world: Any, config: ParallelConfig) -> None:
    if config.parallel_mode in SHARDED_MODES:
        agree_on_start(compiled.parameters.values(), world, broadcast=config.parameter_broadcast)


def _write_strategies(compiled: Compiled, world: Any, config: ParallelConfig) -> None:
    if path := compiled.plan.config.strategy_ckpt_save_file:
        save_strategy(compiled.plan, path)


def _write_group(compiled: Compiled, world: Any, config: ParallelConfig) -> None:
    """The ranks with the same slices."""
    plan = compiled.plan
    if path := os.environ.get("GROUP_INFO_FILE") or plan.config.group_ckpt_save_file:  # as MindSpore reads it
        save_group_info(plan, path, plan.config.global_rank if world is None else world.rank)


def _write_ir(compiled: Compiled, world: Any, config: ParallelConfig) -> None:
    if get_context("save_graphs"):
        rank = 0 if world is None else world.rank
        from_above("cell_executor")().write_graph_files(compiled.steps, get_context("save_graphs_path"), rank)


FIRST = (_compare, _agree, _write_strategies, _write_group, _write_ir)
