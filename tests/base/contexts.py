"""Defaults of the settings, as the seeds document them, and ways to set some."""

from parallel_lab.base import hooks
from parallel_lab.base.settings import context

DEFAULTS = {
    "device_num": 1,
    "global_rank": 0,
    "gradients_mean": False,
    "gradient_fp32_sync": True,
    "loss_repeated_mean": True,
    "parallel_mode": "stand_alone",
    "search_mode": "dynamic_programming",
    "auto_parallel_search_mode": "dynamic_programming",
    "sharding_propagation": False,
    "parameter_broadcast": False,
    "strategy_ckpt_load_file": "",
    "strategy_ckpt_save_file": "",
    "group_ckpt_save_file": "",
    "full_batch": False,
    "dataset_strategy": "data_parallel",
    "enable_parallel_optimizer": False,
    "parallel_optimizer_config": {
        "gradient_accumulation_shard": True,
        "parallel_optimizer_threshold": 64,
        "optimizer_weight_shard_size": -1,
        "optimizer_level": "level1",
    },
    "optimizer_weight_shard_size": -1,
    "optimizer_weight_shard_aggregated_save": False,
    "pipeline_stages": 1,
    "pipeline_result_broadcast": False,
    "pipeline_config": {"pipeline_interleave": False, "pipeline_scheduler": "1f1b"},
    "auto_pipeline": False,
    "all_reduce_fusion_config": [],
    "comm_fusion": {
        "openstate": True,
        **{kind: {"mode": "auto", "config": None} for kind in ("allreduce", "allgather", "reducescatter")},
    },
    "fusion_index": "inclusive",
    "grad_accumulation_step": 1,
    "communi_parallel_mode": "all_group_parallel",
    "enable_alltoall": False,
    "redistribution": "",
    "recursive_most_devices": 1024,
    "force_fp32_communication": False,
    "strategy_ckpt_config": {"load_file": "", "save_file": "", "only_trainable_params": True},
    "dump_local_norm": False,
    "dump_local_norm_path": "",
    "dump_device_local_norm": False,
}


def fuse(**kinds):
    return {kind: {"mode": mode, "config": config} for kind, (mode, config) in kinds.items()}


def reset() -> None:
    """Every setting at its default, and no world."""
    context.reset_auto_parallel_context()
    context.reset_algo_parameters()
    context.reset_cost_model_context()
    context.reset_context()
    context.set_compat("seeds")
    hooks.set_world(None)
