"""`ParallelConfig`, the immutable settings that one compilation sees, and `Fusion`, the sum of `comm_fusion` calls.

    >>> config = ParallelConfig(device_num=8, comm_fusion={"allreduce": {"mode": "size", "config": 32}})
    >>> config.comm_fusion
    (('allreduce', 'size', 32),)

`context.py` keeps what was set and builds a config from it; passes, plans and runs read the config only.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from ..checks import Errors, choice
from ..errors import ContextError, ContextTypeError
from .checks import (
    COST_MODEL_NUMBERS,
    FUSED_MESSAGES,
    LOCAL_MODES,
    SETTING,
    SETTINGS,
    Check,
    boolean,
    check_comm_fusion,
    cost_model_numbers,
    refuse,
)
from .tables import ALGORITHM, PARALLEL, PARTS, RANGES_OF_2_10

FUSION_THRESHOLD_MB = 64  # of mode "auto" (MindSpore, set_auto_parallel_context)

FusionConfig = int | tuple[int, ...] | None


@dataclass(frozen=True)
class Fusion:
    """What the calls of `comm_fusion` have added up to.

    openstate    what the last call said, True if it said nothing
    modes        per kind of message its mode and config; ("auto", None) if it was never set
    enabled      the kinds that are fused: those that were set, until an openstate False
    switched_off an openstate False came

    After openstate False MindSpore 1.x ignores every later key until the reset; 2.10 fuses the kinds that are set
    later, in the same dict or in another call. openstate True switches nothing back on in either.
    """

    openstate: bool = True
    modes: tuple[tuple[str, str, FusionConfig], ...] = tuple((kind, "auto", None) for kind in FUSED_MESSAGES)
    enabled: frozenset[str] = frozenset()
    switched_off: bool = False

    def after(self, given: dict[str, Any], *, off_is_final: bool = True) -> Fusion:
        """This, after one more call with a checked dict. off_is_final: the rule of 1.x; False: that of 2.10."""
        modes = {kind: (mode, config) for kind, mode, config in self.modes}
        enabled, off = self.enabled, self.switched_off
        for key, value in given.items():
            if key == "openstate":
                if not value:
                    enabled, off = frozenset(), True
                continue
            config = value["config"]
            modes[key] = (value["mode"], tuple(config) if isinstance(config, list) else config)
            if not (off and off_is_final):
                enabled |= {key}
        listed = tuple((kind, *modes[kind]) for kind in FUSED_MESSAGES)
        return Fusion(given.get("openstate", True), listed, enabled, off)

    def as_dict(self) -> dict[str, Any]:
        """The form that `get_auto_parallel_context` returns: openstate and every kind of message."""
        parts: dict[str, Any] = {"openstate": self.openstate}
        for kind, mode, config in self.modes:
            parts[kind] = {"mode": mode, "config": list(config) if isinstance(config, tuple) else config}
        return parts

    def indices(self) -> list[int]:
        """The positions of `all_reduce_fusion_config`; [] in another mode."""
        _, mode, config = self.modes[0]
        return list(config) if mode == "index" and isinstance(config, tuple) else []

    def resolved(self) -> tuple[tuple[str, str, int | tuple[int, ...]], ...]:
        """(kind, mode, config) of what is fused, "auto" with its threshold."""
        fused = (one for one in self.modes if one[0] in self.enabled)
        return tuple((kind, mode, FUSION_THRESHOLD_MB if config is None else config) for kind, mode, config in fused)


@dataclass(frozen=True)
class ParallelConfig:
    """The settings one compilation sees. Meaning of each: MindSpore, set_auto_parallel_context and set_algo_parameters.

    device_num                   ranks of the program (1, 2, 4 or a multiple of 8)
    global_rank                  this rank, where a run needs it
    parallel_mode                one of PARALLEL_MODES
    dataset_strategy             "full_batch": inputs are global, and every rank gives the same ones: as in MindSpore
                                 nothing compares them, and with other data on each rank every slice of the network has
                                 seen another batch; "data_parallel": inputs are one rank's rows; tuple: counts or a
                                 Layout per input
    gradients_mean               multiply each synchronised gradient by 1 / (ranks that were summed)
    loss_repeated_mean           divide the seed gradient by the number of ranks that hold the same loss
    enable_alltoall              use AllToAll in redistributions
    redistribution               how tensors get from layout to layout: "allgather", "alltoall" (MindSpore's two
                                 manners) or "exact": one exchange in which no rank receives what it has or does not
                                 need; "": as enable_alltoall says
    gradient_fp32_sync           automatic modes: sum 16-bit gradients in float32
    search_mode                  who chooses strategies in auto_parallel
    recursive_most_devices       recursive_programming refuses more devices than this; MindSpore: 1024
    fully_use_devices            search only strategies that use every rank, or one
    parameter_broadcast          rank 0's initial weights are sent to all before step 1 (Model, automatic modes)
    parallel_optimizer_threshold KB; smaller parameters are not sharded by the optimizer parallel
    optimizer_weight_shard_size  ranks that share one slice; -1: all that hold the same slice
    comm_fusion                  (kind, mode, config) per fused kind of message: ("allreduce", "size", 32) in MB,
                                 ("allreduce", "index", (20, 35)); a dict as `set_auto_parallel_context` takes it is
                                 turned into this form
    fusion_index                 how positions of mode "index" are counted: "inclusive", each ends a message ([20, 35]:
                                 21, 15, the rest), as the real system does; "first_n", so many come first (20,
                                 15, the rest), as the seeds' text reads
    cost_model_fusion            all_reduces of the automatic modes by the cost model: ("times", times, tail_percent) or
                                 ("hiding", tail_time_s, inherent_time_s, time_s_per_element, computation_s_per_unit),
                                 see `fusion.cost_model_groups`; None: not
    memory_offload               forward values that backward reads wait for it in the memory of the host;
                                 offload_param "cpu": Parameters live there too

    Raises ContextError or a subclass for a value out of range.
    """

    device_num: int = 1
    global_rank: int = 0
    parallel_mode: str = "stand_alone"
    dataset_strategy: str | tuple[Any, ...] = "data_parallel"
    gradients_mean: bool = False
    loss_repeated_mean: bool = True
    enable_alltoall: bool = False
    redistribution: str = ""
    gradient_fp32_sync: bool = True
    search_mode: str = "dynamic_programming"
    recursive_most_devices: int = 1024
    fully_use_devices: bool = True
    elementwise_op_strategy_follow: bool = False
    tensor_slice_align_enable: bool = False
    tensor_slice_align_size: int = 16
    enable_algo_approxi: bool = False
    algo_approxi_epsilon: float = 0.1
    parameter_broadcast: bool = False
    enable_parallel_optimizer: bool = False
    gradient_accumulation_shard: bool = True
    parallel_optimizer_threshold: int = 64
    optimizer_level: str = "level1"
    optimizer_weight_shard_size: int = -1
    pipeline_stages: int = 1
    pipeline_interleave: bool = False
    pipeline_scheduler: str = "1f1b"
    pipeline_result_broadcast: bool = False
    grad_accumulation_step: int = 1
    comm_fusion: tuple[tuple[Any, ...], ...] = ()
    fusion_index: str = "inclusive"
    cost_model_fusion: tuple[Any, ...] | None = None
    strategy_ckpt_load_file: str = ""
    strategy_ckpt_save_file: str = ""
    group_ckpt_save_file: str = ""
    strategy_only_trainable_params: bool = True
    memory_offload: bool = False
    offload_param: str = ""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            checked = _FIELDS[field.name](SETTING, field.name, getattr(self, field.name), SETTINGS)
            object.__setattr__(self, field.name, checked)

    @property
    def local(self) -> bool:
        """Whether every rank runs the whole network on its own part of the batch: data_parallel, hybrid_parallel."""
        return self.parallel_mode in LOCAL_MODES

    @property
    def manner(self) -> dict[str, bool]:
        """How `plan_redistribution` is to plan."""
        return redistribution_manner(self.redistribution, self.enable_alltoall)

    def shared(self) -> ParallelConfig:
        """These settings without those in which ranks may differ (number, files): what plan hashes compare."""
        files = dict.fromkeys(("strategy_ckpt_load_file", "strategy_ckpt_save_file", "group_ckpt_save_file"), "")
        return dataclasses.replace(self, global_rank=0, **files)


def redistribution_manner(chosen: str, enable_alltoall: bool) -> dict[str, bool]:
    """The switches of `plan_redistribution` for two settings, `redistribution` and `enable_alltoall`."""
    alltoall = enable_alltoall if not chosen else chosen == "alltoall"
    return {"alltoall": alltoall, "exact": chosen == "exact"}


def resolved_fusion(where: str, key: str, given: object, *, off_is_final: bool = True) -> tuple[tuple[Any, ...], ...]:
    """`ParallelConfig.comm_fusion` of one dict after the reset. off_is_final: see `Fusion.after`."""
    return Fusion().after(check_comm_fusion(where, key, given), off_is_final=off_is_final).resolved()


def _resolved_fusion(where: str, key: str, value: Any, errors: Errors = SETTINGS) -> tuple[tuple[Any, ...], ...]:
    """A dict of `comm_fusion` resolved, or the resolved form checked."""
    if not issubclass(type(value), tuple):
        return resolved_fusion(where, key, value)
    parts = list(tuple.__iter__(value))
    if not all(type(part) is tuple and len(part) == 3 for part in parts):
        allowed = "A dict, or one (kind, mode, config) per fused kind of message"
        raise refuse(ContextTypeError, where, key, value, allowed)
    named = [part for part in parts if type(part[0]) is str]
    as_dict = {kind: {"mode": mode, "config": _as_given(mode, config)} for kind, mode, config in named}
    if len(as_dict) != len(parts):
        raise refuse(ContextTypeError, where, key, value, f"Each kind of message once: {', '.join(FUSED_MESSAGES)}")
    return resolved_fusion(where, key, as_dict)


def _cost_model_fusion(where: str, key: str, value: object, errors: Errors = SETTINGS) -> tuple[Any, ...] | None:
    """None, or the name of an algorithm and its numbers."""
    if value is None:
        return None
    if type(value) is not tuple or not value or type(value[0]) is not str:
        raise refuse(ContextTypeError, where, key, value, _COST_MODEL_FORMS)
    if value[0] not in COST_MODEL_NUMBERS or len(value) != 1 + len(COST_MODEL_NUMBERS[value[0]]):
        raise refuse(ContextError, where, key, value, _COST_MODEL_FORMS)
    return value[0], *cost_model_numbers(where, value[0], value[1:], key)


_TUPLES = (f"({name!r}, {', '.join(parts)})" for name, parts in COST_MODEL_NUMBERS.items())
_COST_MODEL_FORMS = "None, or a tuple: " + ", or ".join(_TUPLES)


def _as_given(mode: object, config: object) -> object:
    if type(mode) is str and mode == "auto" and config == FUSION_THRESHOLD_MB:
        return None
    return list(config) if type(config) is tuple else config


_PART_CHECKS: dict[str, Check] = {kept: check for parts in PARTS.values() for kept, check in parts.values()}
_FIELDS: dict[str, Check] = {
    **PARALLEL,
    **ALGORITHM,
    **RANGES_OF_2_10,  # `frozen` knows which ranges hold
    **_PART_CHECKS,  # after PARALLEL: an optimizer shard of 1 rank is legal in the dict form
    "comm_fusion": _resolved_fusion,
    "cost_model_fusion": _cost_model_fusion,
    "memory_offload": boolean,
    "offload_param": choice("", "cpu", "disk"),
}
