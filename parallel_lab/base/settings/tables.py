"""The keys of every settings function (KEYS), and what each accepts. Data only; `context.py` keeps the values.

PARALLEL   set_auto_parallel_context: a key whose value is kept under its own name, in a field of `ParallelConfig`,
           which has its default
COMPOSED   set_auto_parallel_context: a key that stands for several of the former, or for one under another name
ALGORITHM  set_algo_parameters, likewise
COST_MODEL set_cost_model_context, with defaults: the keys that passes read
EXECUTION  set_context, with defaults: the keys that something reads;  OFFLOAD: set_offload_context, likewise

The keys of MindSpore that nothing reads are the facade's (`mindspore/_settings.py`). Defaults are those of the seeds
(1.x documents); `DEFAULTS_OF_2_10` lists where MindSpore 2.10 differs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..checks import Check, choice
from . import checks

Checks = dict[str, Callable[..., Any]]  # key -> check
Table = dict[str, tuple[Any, Callable[..., Any]]]  # key -> (default, check)

GRAPH_MODE, PYNATIVE_MODE = 0, 1


# ---- set_auto_parallel_context ----

PARALLEL: Checks = {
    "device_num": checks.integer(1, checks.MAX_DEVICES),
    "global_rank": checks.integer(0, checks.MAX_DEVICES - 1),
    "parallel_mode": choice(*checks.PARALLEL_MODES),
    "dataset_strategy": checks.check_dataset_strategy,
    "gradients_mean": checks.boolean,
    "loss_repeated_mean": checks.boolean,
    "enable_alltoall": checks.boolean,
    "redistribution": choice("", "allgather", "alltoall", "exact"),  # not MindSpore's, which has the first two
    "gradient_fp32_sync": checks.boolean,
    "search_mode": choice(*checks.SEARCH_MODES),
    "recursive_most_devices": checks.integer(1),  # not MindSpore's, which has the limit and no name for it
    "parameter_broadcast": checks.boolean,
    "enable_parallel_optimizer": checks.boolean,
    "optimizer_weight_shard_size": checks.shard_size(2),
    "pipeline_stages": checks.integer(1, checks.MAX_DEVICES),
    "pipeline_result_broadcast": checks.boolean,
    "grad_accumulation_step": checks.integer(1),
    "fusion_index": choice(*checks.FUSION_WORDINGS),  # not MindSpore's: what its documents say and what it does differ
    "strategy_ckpt_load_file": checks.path,
    "strategy_ckpt_save_file": checks.path,
    "group_ckpt_save_file": checks.path,
}

# parts of a dict key: {composed key: {name in the dict: (name it is kept under, check)}}
PARTS: dict[str, dict[str, tuple[str, Callable[..., Any]]]] = {
    "parallel_optimizer_config": {
        "gradient_accumulation_shard": ("gradient_accumulation_shard", checks.boolean),
        "parallel_optimizer_threshold": ("parallel_optimizer_threshold", checks.integer(0)),  # KB
        "optimizer_weight_shard_size": ("optimizer_weight_shard_size", checks.shard_size(1)),
        "optimizer_level": ("optimizer_level", choice(*checks.OPTIMIZER_LEVELS)),
    },
    "strategy_ckpt_config": {
        "load_file": ("strategy_ckpt_load_file", checks.path),
        "save_file": ("strategy_ckpt_save_file", checks.path),
        "only_trainable_params": ("strategy_only_trainable_params", checks.boolean),
    },
    "pipeline_config": {
        "pipeline_interleave": ("pipeline_interleave", checks.boolean),
        "pipeline_scheduler": ("pipeline_scheduler", checks.scheduler),
    },
}

COMPOSED: Checks = {
    "full_batch": checks.boolean,
    "auto_parallel_search_mode": choice(*checks.SEARCH_MODES),
    "sharding_propagation": checks.boolean,
    "all_reduce_fusion_config": checks.check_fusion_indices,
    "comm_fusion": checks.check_comm_fusion,
    **{key: checks.mapping(**{name: check for name, (_, check) in parts.items()}) for key, parts in PARTS.items()},
    "pipeline_config": checks.check_pipeline_config,
}

# ---- set_algo_parameters ----

ALGORITHM: Checks = {
    "fully_use_devices": checks.boolean,
    "elementwise_op_strategy_follow": checks.boolean,
    "enable_algo_approxi": checks.boolean,
    "algo_approxi_epsilon": checks.number(0.0, 1.0, above=True),
    "tensor_slice_align_enable": checks.boolean,
    "tensor_slice_align_size": checks.integer(1, 1024),
}

DEFAULTS_OF_2_10: dict[str, Any] = {
    "search_mode": "recursive_programming",
    "fully_use_devices": False,
    "gradient_accumulation_shard": False,
}

# a range that the documents bound (1 to 4096), and 2.10 does not
RANGES_OF_2_10: Checks = {"device_num": checks.integer(1)}
CHECKS_OF_2_10: Checks = {**RANGES_OF_2_10, "comm_fusion": checks.comm_fusion_of_2_10}

# ---- set_cost_model_context ----

COST_MODEL: Table = {
    "costmodel_allreduce_fusion_algorithm": (0, checks.integer(0, 2)),
    "costmodel_allreduce_fusion_times": (0, checks.integer(0)),
    "costmodel_allreduce_fusion_tail_percent": (0.1, checks.number(0.0, 1.0, below=True)),
    "costmodel_allreduce_fusion_tail_time": (0.1, checks.number(0.0)),
    "costmodel_allreduce_fusion_allreduce_inherent_time": (0.1, checks.number(0.0)),
    "costmodel_allreduce_fusion_allreduce_bandwidth": (0.1, checks.number(0.0, above=True)),
    "costmodel_allreduce_fusion_computation_time_parameter": (0.1, checks.number(0.0)),
}
# other names of keys of ALGORITHM
DP_ALGO = {"dp_algo_enable_approxi": "enable_algo_approxi", "dp_algo_approxi_epsilon": "algo_approxi_epsilon"}

# ---- set_context ----


def _read_graphs(value: object) -> int:
    if value is True or value is False:
        return 2 if value else 0
    return checks.integer(0, 3).read(value)


EXECUTION: Table = {
    "mode": (GRAPH_MODE, checks.integer(GRAPH_MODE, PYNATIVE_MODE)),
    "device_target": ("CPU", choice("CPU", "GPU", "Ascend")),
    "device_id": (0, checks.integer(0, checks.MAX_DEVICES - 1)),
    "save_graphs": (0, Check("False, True, or an int from 0 to 3", _read_graphs)),
    "save_graphs_path": (".", checks.path),
    "memory_offload": ("OFF", choice("ON", "OFF")),
}

# ---- set_offload_context: read where memory_offload is "ON" ----

OFFLOAD: Table = {"offload_param": ("", choice("", "cpu", "disk"))}

# what follows set_ and get_ in a function's name -> its keys
KEYS: dict[str, Checks] = {
    "auto_parallel_context": {**PARALLEL, **COMPOSED},
    "algo_parameters": ALGORITHM,
    "cost_model_context": {
        **{key: check for key, (_, check) in COST_MODEL.items()},
        **{key: ALGORITHM[kept] for key, kept in DP_ALGO.items()},
    },
    "context": {key: check for key, (_, check) in EXECUTION.items()},
    "offload_context": {key: check for key, (_, check) in OFFLOAD.items()},
}

# what MindSpore calls the group of all ranks, by communication library
WORLD_GROUPS = {"hccl": "hccl_world_group", "nccl": "nccl_world_group", "mccl": "mccl_world_group"}
