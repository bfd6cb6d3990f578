"""The keys of every settings function, and what each accepts. Data only; `context.py` keeps the values.

PARALLEL   set_auto_parallel_context: a key whose value is kept under its own name, in a field of `ParallelConfig`, which has its default
COMPOSED   set_auto_parallel_context: a key that stands for several of the former, or for one under another name
ALGORITHM  set_algo_parameters, likewise
COST_MODEL set_cost_model_context, with defaults
EXECUTION  set_context, with defaults

Defaults are those of the seeds (1.x documents); `DEFAULTS_OF_2_10` lists where MindSpore 2.10 differs.
"""

from __future__ import annotations

from typing import Any

from .errors import ContextError, ContextTypeError, shorten
from .settings import (
    FUSION_WORDINGS,
    MAX_DEVICES,
    OPTIMIZER_LEVELS,
    PARALLEL_MODES,
    SCHEDULERS,
    SEARCH_MODES,
    Check,
    boolean,
    check_comm_fusion,
    check_dataset_strategy,
    check_fusion_indices,
    choice,
    integer,
    mapping,
    number,
    path,
    refuse,
    shard_size,
    text,
)

__all__ = [
    "ALGORITHM",
    "COMPOSED",
    "COST_MODEL",
    "DEFAULTS_OF_2_10",
    "EXECUTION",
    "GRAPH_MODE",
    "PARALLEL",
    "PARTS",
    "PYNATIVE_MODE",
    "Checks",
    "Table",
]

Checks = dict[str, Check]
Table = dict[str, tuple[Any, Check]]  # key -> (default, check)

GRAPH_MODE, PYNATIVE_MODE = 0, 1


def _dataset_strategy(key: str, value: object, where: str) -> str | tuple[Any, ...]:
    return check_dataset_strategy(value, where, key)


def _comm_fusion(key: str, value: object, where: str) -> dict[str, Any]:
    return check_comm_fusion(value, where, key)


# ---- set_auto_parallel_context ----

PARALLEL: Checks = {
    "device_num": integer(1, MAX_DEVICES),
    "global_rank": integer(0, MAX_DEVICES - 1),
    "parallel_mode": choice(*PARALLEL_MODES),
    "dataset_strategy": _dataset_strategy,
    "gradients_mean": boolean,
    "loss_repeated_mean": boolean,
    "enable_alltoall": boolean,
    "gradient_fp32_sync": boolean,
    "search_mode": choice(*SEARCH_MODES),
    "parameter_broadcast": boolean,
    "enable_parallel_optimizer": boolean,
    "optimizer_weight_shard_size": shard_size(2),
    "optimizer_weight_shard_aggregated_save": boolean,
    "pipeline_stages": integer(1, MAX_DEVICES),
    "pipeline_result_broadcast": boolean,
    "auto_pipeline": boolean,
    "grad_accumulation_step": integer(1),
    "communi_parallel_mode": choice("all_group_parallel", "same_server_group_parallel", "no_group_parallel"),
    "force_fp32_communication": boolean,
    "fusion_index": choice(*FUSION_WORDINGS),  # not MindSpore's: what its documents say and what it does differ
    "strategy_ckpt_load_file": path,
    "strategy_ckpt_save_file": path,
    "group_ckpt_save_file": path,
    "dump_local_norm": boolean,
    "dump_local_norm_path": path,
    "dump_device_local_norm": boolean,
}

# parts of a dict key: {composed key: {name in the dict: (name it is kept under, check)}}
PARTS: dict[str, dict[str, tuple[str, Check]]] = {
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
    "comm_fusion": _comm_fusion,
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

DEFAULTS_OF_2_10: dict[str, Any] = {"search_mode": "recursive_programming", "fully_use_devices": False, "gradient_accumulation_shard": False}

# ---- set_cost_model_context ----

COST_MODEL: Table = {
    "device_memory_capacity": (16.0 * 2**30, number(0.0, above=True)),  # bytes
    "costmodel_alpha": (1.0, number(0.0)),
    "costmodel_beta": (400.0, number(0.0)),  # 50 with device_target "GPU", see context.get_cost_model_context
    "costmodel_gamma": (0.001, number(0.0)),
    "costmodel_communi_threshold": (2048.0, number(0.0)),
    "costmodel_communi_const": (3072.0, number(0.0)),
    "costmodel_communi_bias": (1024.0, number(0.0)),
    "costmodel_simplify_cal": (True, boolean),
    "is_multi_subgraphs": (False, boolean),
    "run_phase": (0, integer(0, 1)),  # 0 training, 1 inference
    "costmodel_allreduce_fusion_algorithm": (0, integer(0, 2)),
    "costmodel_allreduce_fusion_times": (0, integer(0)),
    "costmodel_allreduce_fusion_tail_percent": (0.1, number(0.0, 1.0, below=True)),
    "costmodel_allreduce_fusion_tail_time": (0.1, number(0.0)),
    "costmodel_allreduce_fusion_allreduce_inherent_time": (0.1, number(0.0)),
    "costmodel_allreduce_fusion_allreduce_bandwidth": (0.1, number(0.0, above=True)),
    "costmodel_allreduce_fusion_computation_time_parameter": (0.1, number(0.0)),
    "dp_algo_triangle_star_strategy_overwrite": (True, boolean),
    "dp_algo_single_loop": (True, boolean),
}

# ---- set_context ----


def _gigabytes(key: str, value: object, where: str) -> str:
    """A memory size such as "3.5GB"."""
    plain = text(key, value, where)
    digits = plain.removesuffix("GB")
    amount = digits.replace(".", "", 1)
    if digits == plain or not (amount.isascii() and amount.isdigit()) or not float(digits) > 0 or len(digits) > 20:
        raise refuse(ContextError, key, value, f"{key} is a positive number of gigabytes such as '3.5GB'", where)
    return plain


def _save_graphs(key: str, value: object, where: str) -> int:
    """False 0, True 2, or a level from 0 to 3."""
    if value is True or value is False:
        return 2 if value else 0
    return integer(0, 3)(key, value, where)


def _texts(key: str, value: object, where: str) -> dict[str, str]:
    """A dict of texts: options of a layer that is not here, kept as given."""
    if not issubclass(type(value), dict):
        raise refuse(ContextTypeError, key, value, f"{key} is a dict of texts", where)
    return {text(f"a key of {key}", name, where): text(f"{key}[{shorten(name)}]", part, where) for name, part in dict.items(value)}


_ON_OFF = choice("ON", "OFF")
_LEVEL = choice("O0", "O1", "O2")

_ASCEND = mapping(
    precision_mode=choice(
        "force_fp16",
        "allow_fp32_to_fp16",
        "allow_mix_precision",
        "must_keep_origin_dtype",
        "force_fp32",
        "allow_fp32_to_bf16",
        "allow_mix_precision_fp16",
        "allow_mix_precision_bf16",
    ),
    jit_compile=boolean,
    atomic_clean_policy=integer(0, 1),
    matmul_allow_hf32=boolean,
    conv_allow_hf32=boolean,
    op_precision_mode=path,
    op_debug_option=choice("oom"),
    ge_options=mapping(**{"global": _texts, "session": _texts}),
    parallel_speed_up_json_path=path,
    host_scheduling_max_threshold=integer(0),
    hccl_watchdog=boolean,
)
_GPU = mapping(
    conv_fprop_algo=choice(
        "normal", "performance", "implicit_gemm", "precomp_gemm", "gemm", "direct", "fft", "fft_tiling", "winograd", "winograd_nonfused"
    ),
    conv_dgrad_algo=choice("normal", "performance", "algo_0", "algo_1", "fft", "fft_tiling", "winograd", "winograd_nonfused"),
    conv_wgrad_algo=choice("normal", "performance", "algo_0", "algo_1", "fft", "algo_3", "fft_tiling", "winograd_nonfused"),
    conv_allow_tf32=boolean,
    matmul_allow_tf32=boolean,
)
_JIT = mapping(
    jit_level=_LEVEL, infer_boost=choice("on", "off"), exc_mode=choice("auto", "sink", "no_sink"), jit_syntax_level=choice("STRICT", "LAX")
)

EXECUTION: Table = {
    # what this package reads
    "mode": (GRAPH_MODE, integer(GRAPH_MODE, PYNATIVE_MODE)),
    "device_target": ("CPU", choice("CPU", "GPU", "Ascend")),
    "device_id": (0, integer(0, MAX_DEVICES - 1)),
    "save_graphs": (0, _save_graphs),
    "save_graphs_path": (".", path),
    # what is kept for scripts that set it and read it back
    "deterministic": ("OFF", _ON_OFF),
    "max_call_depth": (1000, integer(1)),
    "max_device_memory": ("1024GB", _gigabytes),
    "variable_memory_max_size": ("30GB", _gigabytes),
    "mempool_block_size": ("1GB", _gigabytes),
    "memory_optimize_level": ("O0", choice("O0", "O1")),
    "memory_offload": ("OFF", _ON_OFF),
    "pynative_synchronize": (False, boolean),
    "enable_graph_kernel": (False, boolean),
    "graph_kernel_flags": ("", text),
    "enable_reduce_precision": (True, boolean),
    "enable_auto_mixed_precision": (False, boolean),
    "enable_compile_cache": (False, boolean),
    "compile_cache_path": (".", path),
    "save_compile_cache": (False, boolean),
    "load_compile_cache": (False, boolean),
    "precompile_only": (False, boolean),
    "jit_syntax_level": (2, integer(0, 2)),  # STRICT 0, COMPATIBLE 1, LAX 2
    "jit_level": ("O0", _LEVEL),
    "jit_config": ({}, _JIT),
    "jit_enable_inplace_ops": (True, boolean),
    "debug_level": (0, integer(0, 1)),  # RELEASE 0, DEBUG 1
    "exec_order": ("bfs", choice("bfs", "dfs")),
    "runtime_num_threads": (30, integer(0)),
    "inter_op_parallel_num": (0, integer(0)),
    "op_timeout": (900, integer(0)),  # seconds
    "disable_format_transform": (False, boolean),
    "support_binary": (False, boolean),
    "check_bprop": (False, boolean),
    "grad_for_scalar": (False, boolean),
    "reserve_class_name_in_scope": (True, boolean),
    "print_file_path": ("", path),
    "env_config_path": ("", path),
    "enable_dump": (False, boolean),
    "save_dump_path": (".", path),
    "enable_sparse": (False, boolean),
    "enable_mem_reuse": (True, boolean),
    "enable_loop_sink": (True, boolean),
    "enable_task_sink": (True, boolean),
    "auto_tune_mode": ("NO_TUNE", choice("NO_TUNE", "RL", "GA", "RL,GA", "GA,RL")),
    "aoe_tune_mode": ("", choice("online", "offline")),
    "aoe_config": ({}, mapping(job_type=choice("1", "2"))),
    "ascend_config": ({}, _ASCEND),
    "gpu_config": ({}, _GPU),
}
