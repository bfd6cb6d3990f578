"""Settings that are accepted, kept and returned, and that nothing in this package reads.
`set_context`, `set_auto_parallel_context`, `set_cost_model_context` look here for keys that are not their own.
`KEPT`, as in `base/settings/tables.py`: key -> (default or function giving it, check). Values: MindSpore's docs.
"""

from __future__ import annotations

from typing import Any

from ..base.checks import Check, choice, text
from ..base.settings.checks import boolean, integer, mapping, number, path
from ..base.settings.current import get_context


def gigabytes(*, zero: bool = False) -> Check:
    """An amount of memory, as text. zero: nothing is an amount too."""

    def read(value: Any) -> str:
        plain = text.read(value)
        digits = plain.removesuffix("GB")
        amount = digits.replace(".", "", 1)
        if digits == plain or not (amount.isascii() and amount.isdigit()) or len(digits) > 20:
            raise ValueError
        if not zero and not float(digits):
            raise ValueError
        return plain

    return Check("A positive number of gigabytes such as '3.5GB'", read)


def _read_texts(value: Any) -> dict[str, str]:
    if not issubclass(type(value), dict):
        raise TypeError
    return {text.read(name): text.read(part) for name, part in dict.items(value)}


def _words(words: str) -> Check:
    """One of the words, which have blanks between them."""
    return choice(*words.split())


def _beta() -> float:
    return 50.0 if get_context("device_target") == "GPU" else 400.0


_gigabytes = gigabytes()
_texts = Check("A dict of texts, each a text (str)", _read_texts)
_ON_OFF = choice("ON", "OFF")
_LEVEL = choice("O0", "O1", "O2")

_ASCEND = mapping(
    precision_mode=_words(
        "force_fp16 allow_fp32_to_fp16 allow_mix_precision must_keep_origin_dtype force_fp32 allow_fp32_to_bf16 "
        "allow_mix_precision_fp16 allow_mix_precision_bf16"
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
    conv_fprop_algo=_words(
        "normal performance implicit_gemm precomp_gemm gemm direct fft fft_tiling winograd winograd_nonfused"
    ),
    conv_dgrad_algo=_words("normal performance algo_0 algo_1 fft fft_tiling winograd winograd_nonfused"),
    conv_wgrad_algo=_words("normal performance algo_0 algo_1 fft algo_3 fft_tiling winograd_nonfused"),
    conv_allow_tf32=boolean,
    matmul_allow_tf32=boolean,
)
_JIT = mapping(
    jit_level=_LEVEL,
    infer_boost=choice("on", "off"),
    exc_mode=choice("auto", "sink", "no_sink"),
    jit_syntax_level=choice("STRICT", "LAX"),
)

# switches of set_context, by their default
OFF = (
    "pynative_synchronize enable_graph_kernel enable_auto_mixed_precision enable_compile_cache save_compile_cache "
    "load_compile_cache precompile_only disable_format_transform support_binary check_bprop grad_for_scalar "
    "enable_dump enable_sparse"
)
ON = (
    "enable_reduce_precision jit_enable_inplace_ops reserve_class_name_in_scope enable_mem_reuse enable_loop_sink "
    "enable_task_sink"
)

KEPT: dict[str, dict[str, tuple[Any, Any]]] = {
    "context": {
        **dict.fromkeys(OFF.split(), (False, boolean)),
        **dict.fromkeys(ON.split(), (True, boolean)),
        "deterministic": ("OFF", _ON_OFF),
        "max_call_depth": (1000, integer(1)),
        "max_device_memory": ("1024GB", _gigabytes),
        "variable_memory_max_size": ("30GB", _gigabytes),
        "mempool_block_size": ("1GB", _gigabytes),
        "memory_optimize_level": ("O0", choice("O0", "O1")),
        "graph_kernel_flags": ("", text),
        "compile_cache_path": (".", path),
        "jit_syntax_level": (2, integer(0, 2)),  # STRICT 0, COMPATIBLE 1, LAX 2
        "jit_level": ("O0", _LEVEL),
        "jit_config": ({}, _JIT),
        "debug_level": (0, integer(0, 1)),  # RELEASE 0, DEBUG 1
        "exec_order": ("bfs", choice("bfs", "dfs")),
        "runtime_num_threads": (30, integer(0)),
        "inter_op_parallel_num": (0, integer(0)),
        "op_timeout": (900, integer(0)),  # seconds
        "print_file_path": ("", path),
        "env_config_path": ("", path),
        "save_dump_path": (".", path),
        "auto_tune_mode": ("NO_TUNE", choice("NO_TUNE", "RL", "GA", "RL,GA", "GA,RL")),
        "aoe_tune_mode": ("", choice("online", "offline")),
        "aoe_config": ({}, mapping(job_type=choice("1", "2"))),
        "ascend_config": ({}, _ASCEND),
        "gpu_config": ({}, _GPU),
    },
    "auto_parallel_context": {
        "optimizer_weight_shard_aggregated_save": (False, boolean),
        "auto_pipeline": (False, boolean),
        "communi_parallel_mode": (
            "all_group_parallel",
            _words("all_group_parallel same_server_group_parallel no_group_parallel"),
        ),
        "force_fp32_communication": (False, boolean),
        "dump_local_norm": (False, boolean),
        "dump_local_norm_path": ("", path),
        "dump_device_local_norm": (False, boolean),
    },
    "offload_context": {
        "offload_path": ("./offload", path),
        "offload_cpu_size": ("512GB", _gigabytes),
        "offload_disk_size": ("1024GB", _gigabytes),
        "hbm_ratio": (1.0, number(0.0, 1.0, above=True)),
        "cpu_ratio": (1.0, number(0.0, 1.0, above=True)),
        "enable_pinned_mem": (True, boolean),
        "enable_aio": (True, boolean),
        "aio_block_size": ("1GB", _gigabytes),
        "aio_queue_depth": (8, integer(1)),
        "offload_checkpoint": ("", choice("", "cpu", "disk")),
        "auto_offload": (True, boolean),
        "host_mem_block_size": ("1GB", _gigabytes),
    },
    "cost_model_context": {
        "device_memory_capacity": (16.0 * 2**30, number(0.0, above=True)),  # bytes
        "costmodel_alpha": (1.0, number(0.0)),
        "costmodel_beta": (_beta, number(0.0)),
        "costmodel_gamma": (0.001, number(0.0)),
        "costmodel_communi_threshold": (2048.0, number(0.0)),
        "costmodel_communi_const": (3072.0, number(0.0)),
        "costmodel_communi_bias": (1024.0, number(0.0)),
        "costmodel_simplify_cal": (True, boolean),
        "is_multi_subgraphs": (False, boolean),
        "multi_subgraphs": (False, boolean),  # the same in other versions
        "run_phase": (0, integer(0, 1)),  # 0 training, 1 inference
        "dp_algo_triangle_star_strategy_overwrite": (True, boolean),
        "dp_algo_single_loop": (True, boolean),
        "rp_matmul_mem_coef": (0.1, number(0.0)),  # recursive_programming: of what a cut of rows costs
    },
}
