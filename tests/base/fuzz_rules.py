"""The documented rule of every key of every settings function, once more and apart from the package's own checks.

A rule is a function of the value: None for a legal one, or the class of the refusal. Next to it stand words, one of
which the refusal contains.
"""

import math
import os

from parallel_lab.base.settings import context
from parallel_lab.layout.named_layout import Layout

TYPE, VALUE, KEY, RUNTIME, OS = TypeError, ValueError, KeyError, RuntimeError, OSError
LARGEST = 2**31 - 1


def kind(value, *classes):
    """isinstance, without asking the value."""
    return issubclass(type(value), classes)


def whole(low, high=LARGEST, also=()):
    def rule(value):
        if type(value) is bool or not kind(value, int):
            return TYPE
        return None if low <= int.__index__(value) <= high or int.__index__(value) in also else VALUE

    return rule, ("an int",)


def real(inside):
    def rule(value):
        if not kind(value, float):
            return TYPE
        number = float.__float__(value)
        return None if math.isfinite(number) and inside(number) else VALUE

    return rule, ("a finite float",)


def one_of(*known):
    def rule(value):
        if not kind(value, str):
            return TYPE
        return None if str.__str__(value) in known else VALUE

    return rule, known


def flag(value):
    return None if type(value) is bool else TYPE


def file_name(value):
    if not kind(value, str):
        return TYPE
    return VALUE if any(c == "\0" or "\ud800" <= c <= "\udc7f" for c in str.__str__(value)) else None


def file_name_in_new_folder(value):
    found = file_name(value)
    if found is None and any(len(os.fsencode(part)) > 255 for part in str.__str__(value).split("/")[:-1]):
        return OS
    return OS if found is None and str.__str__(value).startswith("/proc/") else found


def indices(value):
    if not kind(value, list):
        return TYPE
    parts = list(list.__iter__(value))
    if any(type(i) is bool or not kind(i, int) or int.__index__(i) < 0 for i in parts):
        return TYPE
    plain = [int.__index__(i) for i in parts]
    return None if plain and plain == sorted(set(plain)) and plain[-1] <= LARGEST else VALUE


def dataset(value):
    if kind(value, str):
        return None if str.__str__(value) in ("full_batch", "data_parallel") else VALUE
    if not kind(value, tuple):
        return TYPE
    parts = list(tuple.__iter__(value))
    if not parts:
        return VALUE
    if all(type(part) is Layout for part in parts):
        return None if all(part.dims is not None for part in parts) else VALUE
    for part in parts:  # the first fault is the one that is reported
        if not kind(part, tuple):
            return TYPE
        for n in tuple.__iter__(part):
            if type(n) is bool or not kind(n, int):
                return TYPE
            if int.__index__(n) < 1:
                return RUNTIME
    return None


def dict_of(**rules):
    def rule(value):
        if not kind(value, dict):
            return TYPE
        for name, part in dict.items(value):
            if not kind(name, str) or str.__str__(name) not in rules:
                return KEY
            found = rules[str.__str__(name)](part)
            if found:
                return found
        return None

    return rule, ("a dict", "Keys: ", "one of", "True or False", "an int", "path", "a text", "decimal")


def pipelined(value):
    """Without chunks there is one scheduler: another one is a TypeError, as MindSpore's."""
    parts = dict_of(pipeline_interleave=flag, pipeline_scheduler=one_of("1f1b", "gpipe", "zero_bubble_v")[0])[0]
    if parts(value):
        return parts(value)
    given = {str.__str__(name): part for name, part in dict.items(value)}
    scheduler = str.__str__(given.get("pipeline_scheduler", "1f1b"))
    return TYPE if scheduler != "1f1b" and not given.get("pipeline_interleave") else None


def fusion_of(*modes):
    def rule(value):
        if not kind(value, dict):
            return TYPE
        parts = {}
        for name, part in dict.items(value):
            if not kind(name, str) or str.__str__(name) not in ("mode", "config"):
                return KEY
            parts[str.__str__(name)] = part
        if len(parts) < 2 or not kind(parts["mode"], str) or str.__str__(parts["mode"]) not in modes:
            return KEY
        config = parts["config"]
        mode = str.__str__(parts["mode"])
        rule = {"size": whole(0)[0], "index": indices}.get(mode, lambda config: None if config is None else TYPE)
        return rule(config)

    return rule


def texts(value):
    if not kind(value, dict):
        return TYPE
    return None if all(kind(k, str) and kind(v, str) for k, v in dict.items(value)) else TYPE


def memory(value):
    if not kind(value, str):
        return TYPE
    text = str.__str__(value)
    if not text.endswith("GB") or not text.isascii() or text.count(".") > 1 or len(text) > 22:
        return VALUE
    digits = text[:-2].replace(".", "")
    return None if digits.isdigit() and int(digits) > 0 else VALUE


def saved(value):
    return None if type(value) is bool else whole(0, 3)[0](value)


def algorithm(names):
    """The algorithms of a convolution on a GPU."""
    return one_of("normal", "performance", *names.split())[0]


BOOL = (flag, ("True or False",))
PATH = (file_name, ("path",))
NEW_FILE = (file_name_in_new_folder, ("path", "can be made"))
SEARCH = one_of("dynamic_programming", "recursive_programming", "sharding_propagation")
MODES = one_of("stand_alone", "data_parallel", "hybrid_parallel", "semi_auto_parallel", "auto_parallel")
LEVEL = one_of("O0", "O1", "O2")
ON_OFF = one_of("ON", "OFF")
COST = real(lambda x: x >= 0)
POSITIVE = real(lambda x: x > 0)

PARALLEL = {
    "device_num": whole(1, 4096),
    "global_rank": whole(0, 4095),
    "gradient_fp32_sync": BOOL,
    "loss_repeated_mean": BOOL,
    "parallel_mode": MODES,
    "search_mode": SEARCH,
    "auto_parallel_search_mode": SEARCH,
    "sharding_propagation": BOOL,
    "parameter_broadcast": BOOL,
    "strategy_ckpt_load_file": PATH,
    "strategy_ckpt_save_file": NEW_FILE,
    "group_ckpt_save_file": NEW_FILE,
    "full_batch": BOOL,
    "dataset_strategy": (dataset, ("'full_batch', 'data_parallel', or one tuple of ints", "at least 1", "called")),
    "enable_parallel_optimizer": BOOL,
    "parallel_optimizer_config": dict_of(
        gradient_accumulation_shard=flag,
        parallel_optimizer_threshold=whole(0)[0],
        optimizer_weight_shard_size=whole(1, 4096, (-1,))[0],
        optimizer_level=one_of("level1", "level2", "level3")[0],
    ),
    "optimizer_weight_shard_size": whole(2, 4096, (-1,)),
    "optimizer_weight_shard_aggregated_save": BOOL,
    "pipeline_stages": whole(1, 4096),
    "pipeline_result_broadcast": BOOL,
    "pipeline_config": (pipelined, ("a dict", "Keys: ", "one of", "True or False", "'1f1b' without")),
    "auto_pipeline": BOOL,
    "all_reduce_fusion_config": (indices, ("a list of rising ints",)),
    "comm_fusion": (
        dict_of(
            openstate=flag,
            allreduce=fusion_of("auto", "size", "index"),
            allgather=fusion_of("auto", "size"),
            reducescatter=fusion_of("auto", "size"),
        )[0],
        (
            "a dict",
            "Keys: ",
            "True or False",
            "is missing",
            "mode is one of",
            "config is None",
            "an int",
            "rising ints",
        ),
    ),
    "grad_accumulation_step": whole(1),
    "fusion_index": one_of("inclusive", "first_n"),
    "communi_parallel_mode": one_of("all_group_parallel", "same_server_group_parallel", "no_group_parallel"),
    "enable_alltoall": BOOL,
    "redistribution": one_of("", "allgather", "alltoall", "exact"),
    "recursive_most_devices": whole(1),
    "force_fp32_communication": BOOL,
    "strategy_ckpt_config": dict_of(load_file=file_name, save_file=file_name_in_new_folder, only_trainable_params=flag),
    "dump_local_norm": BOOL,
    "dump_local_norm_path": PATH,
    "dump_device_local_norm": BOOL,
}
SEARCHING = {
    "elementwise_op_strategy_follow": BOOL,
    "enable_algo_approxi": BOOL,
    "algo_approxi_epsilon": real(lambda x: 0 < x <= 1),
    "tensor_slice_align_enable": BOOL,
    "tensor_slice_align_size": whole(1, 1024),
}
COSTS = {
    "device_memory_capacity": POSITIVE,
    "costmodel_alpha": COST,
    "costmodel_beta": COST,
    "costmodel_gamma": COST,
    "costmodel_communi_threshold": COST,
    "costmodel_communi_const": COST,
    "costmodel_communi_bias": COST,
    "is_multi_subgraphs": BOOL,
    "run_phase": whole(0, 1),
    "costmodel_allreduce_fusion_algorithm": whole(0, 2),
    "costmodel_allreduce_fusion_times": whole(0),
    "costmodel_allreduce_fusion_tail_percent": real(lambda x: 0 <= x < 1),
    "costmodel_allreduce_fusion_tail_time": COST,
    "costmodel_allreduce_fusion_allreduce_inherent_time": COST,
    "costmodel_allreduce_fusion_allreduce_bandwidth": POSITIVE,
    "costmodel_allreduce_fusion_computation_time_parameter": COST,
    "dp_algo_triangle_star_strategy_overwrite": BOOL,
    "dp_algo_enable_approxi": BOOL,
    "dp_algo_approxi_epsilon": real(lambda x: 0 < x <= 1),
    "dp_algo_single_loop": BOOL,
}
RUNNING = {
    "mode": whole(0, 1),
    "device_target": one_of("CPU", "GPU", "Ascend"),
    "device_id": whole(0, 4095),
    "save_graphs": (saved, ("an int",)),
    "save_graphs_path": PATH,
    "deterministic": ON_OFF,
    "max_call_depth": whole(1),
    "max_device_memory": (memory, ("gigabytes", "a text")),
    "variable_memory_max_size": (memory, ("gigabytes", "a text")),
    "mempool_block_size": (memory, ("gigabytes", "a text")),
    "memory_optimize_level": one_of("O0", "O1"),
    "pynative_synchronize": BOOL,
    "enable_graph_kernel": BOOL,
    "enable_compile_cache": BOOL,
    "compile_cache_path": PATH,
    "jit_level": LEVEL,
    "jit_config": dict_of(
        jit_level=LEVEL[0],
        infer_boost=one_of("on", "off")[0],
        exc_mode=one_of("auto", "sink", "no_sink")[0],
        jit_syntax_level=one_of("STRICT", "LAX")[0],
    ),
    "exec_order": one_of("bfs", "dfs"),
    "runtime_num_threads": whole(0),
    "op_timeout": whole(0),
    "jit_syntax_level": whole(0, 2),
    "aoe_config": dict_of(job_type=one_of("1", "2")[0]),
    "gpu_config": dict_of(
        conv_allow_tf32=flag,
        matmul_allow_tf32=flag,
        conv_fprop_algo=algorithm("implicit_gemm precomp_gemm gemm direct fft fft_tiling winograd winograd_nonfused"),
        conv_dgrad_algo=algorithm("algo_0 algo_1 fft fft_tiling winograd winograd_nonfused"),
        conv_wgrad_algo=algorithm("algo_0 algo_1 fft algo_3 fft_tiling winograd_nonfused"),
    ),
}
FUNCTIONS = {
    name: (getattr(context, f"set_{name}"), getattr(context, f"get_{name}"), rules, other)
    for name, rules, other in (
        ("auto_parallel_context", PARALLEL, {"gradients_mean": True}),
        ("algo_parameters", SEARCHING, {"fully_use_devices": False}),
        ("cost_model_context", COSTS, {"costmodel_simplify_cal": False}),
        ("context", RUNNING, {"precompile_only": True}),
    )
}
PLACES = [(name, key) for name, (_, _, rules, _) in FUNCTIONS.items() for key in rules]
