"""The keys of every settings function (KEYS), and what each accepts. Data only; `context.py` keeps the values.

PARALLEL   set_auto_parallel_context: a key whose value is kept under its own name, in a field of `ParallelConfig`,
           which has its default
COMPOSED   set_auto_parallel_context: a key that stands for several of the former, or for one under another name
ALGORITHM  set_algo_parameters, likewise
COST_MODEL set_cost_model_context, with defaults: the keys that passes read
EXECUTION  set_context, with defaults: the keys that something reads

The keys of MindSpore that nothing reads are the facade's (`mindspore/_settings.py`). Defaults are those of the seeds
(1.x documents); `DEFAULTS_OF_2_10` lists where MindSpore 2.10 differs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..checks import Check, choice
from .checks import (
    FUSION_WORDINGS,
    MAX_DEVICES,
    OPTIMIZER_LEVELS,
    PARALLEL_MODES,
    SCHEDULERS,
    SEARCH_MODES,
    boolean,
    check_comm_fusion,
    check_dataset_strategy,
    check_fusion_indices,
    integer,
    mapping,
    number,
    path,
    shard_size,
)

Checks = dict[str, Callable[..., Any]]  # key -> check
Table = dict[str, tuple[Any, Callable[..., Any]]]  # key -> (default, check)

GRAPH_MODE, PYNATIVE_MODE = 0, 1


# ---- set_auto_parallel_context ----

PARALLEL: Checks = {
    "device_num": integer(1, MAX_DEVICES),
    "global_rank": integer(0, MAX_DEVICES - 1),
    "parallel_mode": choice(*PARALLEL_MODES),
    "dataset_strategy": check_dataset_strategy,
    "gradients_mean": boolean,
    "loss_repeated_mean": boolean,
    "enable_alltoall": boolean,
    "gradient_fp32_sync": boolean,
    "search_mode": choice(*SEARCH_MODES),
    "parameter_broadcast": boolean,
    "enable_parallel_optimizer": boolean,
    "optimizer_weight_shard_size": shard_size(2),
    "pipeline_stages": integer(1, MAX_DEVICES),
    "grad_accumulation_step": integer(1),
    "fusion_index": choice(*FUSION_WORDINGS),  # not MindSpore's: what its documents say and what it does differ
    "strategy_ckpt_load_file": path,
    "strategy_ckpt_save_file": path,
}

# parts of a dict key: {composed key: {name in the dict: (name it is kept under, check)}}
PARTS: dict[str, dict[str, tuple[str, Callable[..., Any]]]] = {
    "parallel_optimizer_config": {
        "gradient_accumulation_shard": ("gradient_accumulation_shard", boolean),
        "parallel_optimizer_threshold": ("parallel_optimizer_threshold", integer(0)),  # KB
        "optimizer_weight_shard_size": ("optimizer_weight_shard_size", shard_size(1)),
        "optimizer_level": ("optimizer_level", choice(*OPTIMIZER_LEVELS)),
    },
    "strategy_ckpt_config": {
        "load_file": ("strategy_ckpt_load_file", path),
        "save_file": ("strategy_ckpt_save_file", path),
        "only_trainable_params": ("strategy_only_trainable_params", boolean),
    },
    "pipeline_config": {
        "pipeline_interleave": ("pipeline_interleave", boolean),
        "pipeline_scheduler": ("pipeline_scheduler", choice(*SCHEDULERS)),
    },
}

COMPOSED: Checks = {
    "full_batch": boolean,
    "auto_parallel_search_mode": choice(*SEARCH_MODES),
    "sharding_propagation": boolean,
    "all_reduce_fusion_config": check_fusion_indices,
    "comm_fusion": check_comm_fusion,
    **{key: mapping(**{name: check for name, (_, check) in parts.items()}) for key, parts in PARTS.items()},
}

# ---- set_algo_parameters ----

ALGORITHM: Checks = {
    "fully_use_devices": boolean,
    "elementwise_op_strategy_follow": boolean,
    "enable_algo_approxi": boolean,
    "algo_approxi_epsilon": number(0.0, 1.0, above=True),
    "tensor_slice_align_enable": boolean,
    "tensor_slice_align_size": integer(1, 1024),
}

DEFAULTS_OF_2_10: dict[str, Any] = {
    "search_mode": "recursive_programming",
    "fully_use_devices": False,
    "gradient_accumulation_shard": False,
}

# ---- set_cost_model_context ----

COST_MODEL: Table = {
    "costmodel_allreduce_fusion_algorithm": (0, integer(0, 2)),
    "costmodel_allreduce_fusion_times": (0, integer(0)),
    "costmodel_allreduce_fusion_tail_percent": (0.1, number(0.0, 1.0, below=True)),
    "costmodel_allreduce_fusion_tail_time": (0.1, number(0.0)),
    "costmodel_allreduce_fusion_allreduce_inherent_time": (0.1, number(0.0)),
    "costmodel_allreduce_fusion_allreduce_bandwidth": (0.1, number(0.0, above=True)),
    "costmodel_allreduce_fusion_computation_time_parameter": (0.1, number(0.0)),
}
# other names of keys of ALGORITHM
DP_ALGO = {"dp_algo_enable_approxi": "enable_algo_approxi", "dp_algo_approxi_epsilon": "algo_approxi_epsilon"}

# ---- set_context ----


def _read_graphs(value: object) -> int:
    if value is True or value is False:
        return 2 if value else 0
    return integer(0, 3).read(value)


EXECUTION: Table = {
    "mode": (GRAPH_MODE, integer(GRAPH_MODE, PYNATIVE_MODE)),
    "device_target": ("CPU", choice("CPU", "GPU", "Ascend")),
    "device_id": (0, integer(0, MAX_DEVICES - 1)),
    "save_graphs": (0, Check("False, True, or an int from 0 to 3", _read_graphs)),
    "save_graphs_path": (".", path),
}

# what follows set_ and get_ in a function's name -> its keys
KEYS: dict[str, Checks] = {
    "auto_parallel_context": {**PARALLEL, **COMPOSED},
    "algo_parameters": ALGORITHM,
    "cost_model_context": {
        **{key: check for key, (_, check) in COST_MODEL.items()},
        **{key: ALGORITHM[kept] for key, kept in DP_ALGO.items()},
    },
    "context": {key: check for key, (_, check) in EXECUTION.items()},
}
