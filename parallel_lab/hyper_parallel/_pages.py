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
_RULES, _TENSORS = "parallel_lab.hyper_parallel.rules", "parallel_lab.hyper_parallel.tensors"
_FAMILIES = "parallel_lab.hyper_parallel.families"
_NETWORKS = "parallel_lab.hyper_parallel.networks"

# a name: its file, or file:name there
NAMES: dict[str, str] = {}
for _file, _names in {
    _MESH: "DeviceMesh init_device_mesh get_platform init_process_group destroy_process_group split_group "
    "get_process_group_ranks",
    _LAYOUT: "Layout Shard Replicate Partial RaggedShard",
    _TENSORS: "DTensor distribute_tensor ones empty full zeros randn custom_shard SkipDTensorDispatch",
    _NETWORKS: "shard_module ShardingPlan parallelize_value_and_grad parallelize_module init_parameters "
    "init_empty_weights fully_shard HSDPModule hsdp hsdp_sync_stream",
    "parallel_lab.hyper_parallel.pipeline": "PipelineStage ScheduleGPipe Schedule1F1B ScheduleInterleaved1F1B "
    "MetaStep MetaStepType BatchDimSpec",
    "parallel_lab.nn.fully_shard": "MixedPrecisionPolicy",
    "parallel_lab.train.checkpoint": "save_checkpoint load_checkpoint",
    "parallel_lab.nn.parallel_styles": "ParallelStyle ColwiseParallel RowwiseParallel SequenceParallel "
    "PrepareModuleInput PrepareModuleOutput loss_parallel parallel_cross_entropy",
}.items():
    NAMES |= dict.fromkeys(_names.split(), _file)

# their path: the file that it is
FILES = {
    "core.device_mesh": _MESH,
    "core.dtensor.device_mesh": _MESH,
    "core.layout": _LAYOUT,
    "core.dtensor.layout": _LAYOUT,
    "core.placement_types": _LAYOUT,
    "core.dtensor.placement_types": _LAYOUT,
}
_TENSOR_NAMES = "DTensor distribute_tensor SkipDTensorDispatch ones empty full zeros randn _build_layout"
_SHARD, _HSDP = "custom_shard shard_module ShardingPlan parallelize_value_and_grad", "hsdp hsdp_sync_stream HSDPModule"
# their path: its names
PAGES: dict[str, str] = {
    "": " ".join(NAMES),
    "collectives": "",
    "collectives.cc": "init_process_group destroy_process_group split_group get_process_group_ranks",
    "core": "",
    "core.checkpoint": "save_checkpoint load_checkpoint",
    "core.dtensor": _TENSOR_NAMES,
    "core.dtensor.dtensor": _TENSOR_NAMES,
    "core.fully_shard": "fully_shard HSDPModule MixedPrecisionPolicy",
    "core.fully_shard.api": "fully_shard HSDPModule",
    "core.hsdp": _HSDP,
    "core.hsdp.api": _HSDP,
    "core.pipeline_parallel": "PipelineStage ScheduleGPipe Schedule1F1B ScheduleInterleaved1F1B MetaStep MetaStepType "
    "BatchDimSpec",
    "core.pipeline_parallel.utils": "BatchDimSpec",
    "core.parameter_init": "init_parameters init_empty_weights",
    "core.shard": _SHARD,
    "core.shard.api": _SHARD,
    "core.shard.custom_shard": "custom_shard",
    "core.shard.local_func": "custom_shard",
    "core.shard.sharding_plan": "ShardingPlan",
    "core.tensor_parallel": "parallelize_module ParallelStyle ColwiseParallel RowwiseParallel SequenceParallel "
    "PrepareModuleInput PrepareModuleOutput loss_parallel parallel_cross_entropy",
    OPS: "",
    f"{OPS}.parallel_ops": "DistributedOp",
    "platform": "get_platform",
    "platform.mindspore": "",
    "platform.mindspore.pipeline_parallel": "",
    "platform.mindspore.pipeline_parallel._utils": "BatchDimSpec _MicroBatch",
}
NAMES |= {"_build_layout": f"{_LAYOUT}:build_layout", "DistributedOp": _RULES}
NAMES |= {"_MicroBatch": "parallel_lab.hyper_parallel.pipeline"}


class Page(ModuleType):
    """A path of theirs: its names are those of the table; a module of rules has every class of its family."""

    def __getattr__(self, name: str) -> Any:
        path = self.__name__.removeprefix(OURS).removeprefix(".")
        if not name.startswith("__") or name == "__all__":
            if name == "__all__":
                return [n for n in sorted(PAGES.get(path, "").split()) if not n.startswith("_")]
            value = _found(path, name)
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
    return sorted({*PAGES.get(path, "").split(), *below} - {""})


def _found(path: str, name: str) -> Any:
    if name in PAGES.get(path, "").split():
        module, _, attribute = NAMES[name].partition(":")
        return getattr(importlib.import_module(module), attribute or name)
    below = f"{path}.{name}".removeprefix(".")
    if below in PAGES or below in FILES:
        return importlib.import_module(f"{OURS}.{below}")
    if path.startswith(f"{OPS}.parallel_") and "DistributedOp" in name:
        return _rules().operator_class(name, path.removeprefix(f"{OPS}.parallel_"))
    return None


def is_page(path: str) -> bool:
    """Whether this package has something of their module at `path`."""
    if path in PAGES or path in FILES:
        return True
    rules = path.removeprefix(f"{OPS}.parallel_")
    return rules != path and rules in _rules().FAMILIES


def _rules() -> Any:
    """The rules, with every family."""
    importlib.import_module(_FAMILIES)
    return importlib.import_module(_RULES)


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
            if prefix == THEIRS or page.partition(".")[0] in PAGES:
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
        for name in [n for n in tuple(sys.modules) if n == THEIRS or n.startswith(f"{THEIRS}.")]:
            del sys.modules[name]
        sys.modules[THEIRS] = module
