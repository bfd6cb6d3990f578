"""HyperParallel's module paths, as a table; a finder that gives them to Python's import.

    from hyper_parallel.core.shard.ops.parallel_matmul import MatMulExtDistributedOp

A path is a file of this room, under its name and theirs (one object), or holds names that the table gives.
"""

from __future__ import annotations

import importlib
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from ..base.errors import MissingModule, MissingName

OURS, THEIRS = __name__.rpartition(".")[0], "hyper_parallel"
OPS = "core.shard.ops"
_MESH, _LAYOUT = "parallel_lab.hyper_parallel.device_mesh", "parallel_lab.hyper_parallel.layout"
_RULES, _TENSORS = "parallel_lab.hyper_parallel.view_rules", "parallel_lab.hyper_parallel.tensors"
_STYLES = "parallel_lab.nn.parallel_styles"

# their path: the file that it is
FILES = {
    "core.device_mesh": _MESH,
    "core.dtensor.device_mesh": _MESH,
    "core.layout": _LAYOUT,
    "core.dtensor.layout": _LAYOUT,
    "core.placement_types": _LAYOUT,
    "core.dtensor.placement_types": _LAYOUT,
}
DTENSOR = ("DTensor", "distribute_tensor")
SHARD = ("custom_shard", "shard_module", "ShardingPlan", "parallelize_value_and_grad")
STYLES = ("ParallelStyle", "ColwiseParallel", "RowwiseParallel", "SequenceParallel")
STYLES += ("PrepareModuleInput", "PrepareModuleOutput")
# their path: {name: "module:name"}
PAGES: dict[str, dict[str, str]] = {
    "": {
        "DeviceMesh": f"{_MESH}:DeviceMesh",
        "init_device_mesh": f"{_MESH}:init_device_mesh",
        **{name: f"{_LAYOUT}:{name}" for name in ("Layout", "Shard", "Replicate", "Partial")},
        **{name: f"{_TENSORS}:{name}" for name in (*DTENSOR, *SHARD, "parallelize_module", "fully_shard")},
        **{name: f"{_STYLES}:{name}" for name in STYLES},
    },
    "core": {},
    "core.dtensor": {"_build_layout": f"{_LAYOUT}:build_layout", **{n: f"{_TENSORS}:{n}" for n in DTENSOR}},
    "core.dtensor.dtensor": {"_build_layout": f"{_LAYOUT}:build_layout", **{n: f"{_TENSORS}:{n}" for n in DTENSOR}},
    "core.shard": {},
    "core.shard.api": {n: f"{_TENSORS}:{n}" for n in ("shard_module", "parallelize_value_and_grad")},
    "core.shard.custom_shard": {"custom_shard": f"{_TENSORS}:custom_shard"},
    "core.shard.sharding_plan": {"ShardingPlan": f"{_TENSORS}:ShardingPlan"},
    "core.tensor_parallel": {
        "parallelize_module": f"{_TENSORS}:parallelize_module",
        **{name: f"{_STYLES}:{name}" for name in STYLES},
    },
    "core.fully_shard": {"fully_shard": f"{_TENSORS}:fully_shard"},
    OPS: {},
    f"{OPS}.parallel_ops": {"DistributedOp": f"{_RULES}:DistributedOp"},
}


class Page(ModuleType):
    """A path of theirs: its names are those of the table; a module of rules has every class of its family."""

    def __getattr__(self, name: str) -> Any:
        path = self.__name__.removeprefix(OURS).removeprefix(".")
        if not name.startswith("__") or name == "__all__":
            names = PAGES.get(path, {})
            if name == "__all__":
                return sorted(n for n in names if not n.startswith("_"))
            value = _found(path, names, name)
            if value is not None:
                self.__dict__[name] = value
                return value
        allowed = ", ".join(names_of(path)) or "Nothing of it"
        raise MissingName(f"no {name!r} in {THEIRS}{path and '.'}{path}", allowed=allowed, name=name, obj=self)

    def __dir__(self) -> list[str]:
        return sorted({*self.__dict__, *names_of(self.__name__.removeprefix(OURS).removeprefix("."))})


def names_of(path: str) -> list[str]:
    """The names of a page, and of the pages below it."""
    start = f"{path}." if path else ""
    below = {p[len(start) :].partition(".")[0] for p in (*PAGES, *FILES) if p.startswith(start) and p != path}
    return sorted({*PAGES.get(path, {}), *below} - {""})


def _found(path: str, names: dict[str, str], name: str) -> Any:
    if name in names:
        module, _, attribute = names[name].partition(":")
        return getattr(importlib.import_module(module), attribute)
    below = f"{path}.{name}".removeprefix(".")
    if below in PAGES or below in FILES:
        return importlib.import_module(f"{OURS}.{below}")
    if path.startswith(f"{OPS}.parallel_") and "DistributedOp" in name:
        return importlib.import_module(_RULES).operator_class(name, path.removeprefix(f"{OPS}.parallel_"))
    return None


def is_page(path: str) -> bool:
    """Whether this package has something of their module at `path`."""
    if path in PAGES or path in FILES:
        return True
    rules = path.removeprefix(f"{OPS}.parallel_")
    return rules != path and rules in importlib.import_module(_RULES).FAMILIES


class _Loader(Loader):
    """Gives a page's module: one object under both names."""

    def __init__(self, path: str) -> None:
        self.path = path

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        if self.path in FILES:
            module = importlib.import_module(FILES[self.path])
        elif spec.name.startswith(OURS):
            return Page(spec.name, f"Names of {THEIRS}.{self.path}.")
        else:
            module = importlib.import_module(f"{OURS}.{self.path}")
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        # importing it under another name must not change who it is
        if module.__spec__ is not None and module.__spec__.loader_state is not None:
            module.__spec__ = module.__spec__.loader_state


class _Finder(MetaPathFinder):
    """Finds the pages; silent about everything else."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        for prefix in (OURS, THEIRS):
            if not fullname.startswith(f"{prefix}.") or (
                prefix == THEIRS and sys.modules.get(THEIRS) is not sys.modules.get(OURS)
            ):
                continue
            page = fullname[len(prefix) + 1 :]
            if is_page(page):
                return ModuleSpec(fullname, _Loader(page), is_package=True)
            if prefix == THEIRS or page.startswith("core"):
                hint = f"HyperParallel's modules in this package: {', '.join(FILES)}, {OPS}.parallel_..."
                raise MissingModule(f"no module {THEIRS}.{page}", hint=hint, name=fullname)
        return None


def install(module: ModuleType) -> None:
    """Make `module` (parallel_lab.hyper_parallel) the page "", and its pages importable."""
    module.__class__ = Page
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def stand_in() -> None:
    """From now on `import hyper_parallel` is the facade."""
    module = importlib.import_module(OURS)
    if sys.modules.get(THEIRS) is not module:
        for name in [n for n in sys.modules if n == THEIRS or n.startswith(f"{THEIRS}.")]:
            del sys.modules[name]
        sys.modules[THEIRS] = module
