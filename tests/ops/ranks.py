"""Functions run on the ranks of a world of real processes, one after the other in one pool."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = str(Path(__file__).resolve().parents[2])


def on_ranks(pool: Any, fn: Callable, *args: Any) -> list[Any]:
    """fn(world, *args) on every rank; the results by rank. fn: top-level in a test file, which the ranks import."""
    assert "<" not in fn.__qualname__, (
        "a lambda or a function inside a function has no name by which a rank could import it"
    )

    def run(comm: Any, root: str, module: str, name: str, *given: Any) -> Any:
        import importlib
        import sys

        if root not in sys.path:
            sys.path.insert(0, root)
        from parallel_lab.base import hooks
        from parallel_lab.base.settings import context
        from parallel_lab.processes.world.world import World

        world = World(comm, backend="shared_memory", launcher="a test")
        hooks.set_world(world)
        try:
            return getattr(importlib.import_module(module), name)(world, *given)
        finally:
            world.close()
            context.reset_auto_parallel_context()

    return pool.run(run, ROOT, fn.__module__, fn.__name__, *args)
