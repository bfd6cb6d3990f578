"""The documented rule of every key of every settings function, once more and apart from the package's own tables.

A rule is the text of a check ("An int from 1 to 4096"), or a promise (`tests/junk.py`) with phrases, one of which every
refusal contains.
"""

import os

from parallel_lab.base.settings import context
from parallel_lab.layout.named_layout import Layout
from tests.junk import FLAG, LARGEST, PATH, List, Promise, Text, Tuple, dict_of, either, kind, one_of, plain, whole

BOOL, POSITIVE, COST = "True or False", "A finite float, above 0", "A finite float, at least 0"
RUNTIME, LAYOUT = RuntimeError, Layout((2, 4), ("dp", "mp"))
COUNT = whole(0, LARGEST)


def _new_file(value):
    found = PATH.rule(value)
    if found is None and any(len(os.fsencode(part)) > 255 for part in plain(value).split("/")[:-1]):
        return OSError
    return OSError if found is None and plain(value).startswith("/proc/") else found


def _indices(value):
    if not kind(value, list):
        return TypeError
    parts = list(list.__iter__(value))
    if any(type(i) is bool or not kind(i, int) or plain(i) < 0 for i in parts):
        return TypeError
    read = [plain(i) for i in parts]
    return None if read and read == sorted(set(read)) and read[-1] <= LARGEST else ValueError


def _dataset(value):
    if kind(value, str):
        return None if plain(value) in ("full_batch", "data_parallel") else ValueError
    if not kind(value, tuple):
        return TypeError
    parts = list(tuple.__iter__(value))
    if not parts:
        return ValueError
    if all(type(part) is Layout for part in parts):
        return None if all(part.dims is not None for part in parts) else ValueError
    for part in parts:  # the first fault is the one that is reported
        if not kind(part, tuple):
            return TypeError
        for n in tuple.__iter__(part):
            if type(n) is bool or not kind(n, int):
                return TypeError
            if plain(n) < 1:
                return RUNTIME
    return None


def _pipelined(value):
    """Without chunks there is one scheduler: another one is a TypeError, as MindSpore's."""
    parts = PIPELINED.rule(value)
    if parts:
        return parts
    given = {plain(name): part for name, part in dict.items(value)}
    return TypeError if plain(given.get("pipeline_scheduler", "1f1b")) != "1f1b" and not given.get(CHUNKS) else None


def fusion_of(*modes):
    def rule(value):
        if not kind(value, dict):
            return TypeError
        parts = {}
        for name, part in dict.items(value):
            if not kind(name, str) or plain(name) not in ("mode", "config"):
                return KeyError
            parts[plain(name)] = part
        if len(parts) < 2 or not kind(parts["mode"], str) or plain(parts["mode"]) not in modes:
            return KeyError
        return {"size": COUNT, "index": INDICES}.get(plain(parts["mode"]), NOTHING_ELSE).rule(parts["config"])

    configs = (*COUNT.edges, *INDICES.edges)
    edges = [{"mode": mode, "config": config} for mode in (*FUSION_MODES, Text("size"), 3) for config in configs]
    return Promise(rule, (*edges, {"mode": "auto"}, {"config": 3}, {"mode": "auto", "config": None, "size": 3}, [1, 2]))


def _memory(value):
    if not kind(value, str):
        return TypeError
    text = plain(value)
    if not text.endswith("GB") or not text.isascii() or text.count(".") > 1 or len(text) > 22:
        return ValueError
    digits = text[:-2].replace(".", "")
    return None if digits.isdigit() and int(digits) > 0 else ValueError


def algorithm(names):
    """The algorithms of a convolution on a GPU."""
    return one_of("normal", "performance", *names.split())


CHUNKS, FUSION_MODES = "pipeline_interleave", ("auto", "size", "index", "sizes")
NEW_FILE = Promise(_new_file, (*PATH.edges, "/proc/nope/s.ckpt", "y" * 300 + "/s.ckpt"))
LISTS = ([20, 35], [0], [], [3, 2], [2, 2], [-1, 2], [-1], [1, True], [1, 2.0], [LARGEST], [LARGEST + 1], [None])
INDICES = Promise(_indices, (*LISTS, (20, 35), List([1, 2]), {1: 2}))
NOTHING_ELSE = Promise(lambda value: None if value is None else TypeError, ())
PIPELINED = dict_of(pipeline_interleave=FLAG, pipeline_scheduler=one_of("1f1b", "gpipe", "zero_bubble_v"))
CUTS = (((8, 1), (8, 1)), ((8, 1), ()), ((3, 1),), ((1, 4096, 8192),), ((0,),), ((2, 0), (8.0,)), ((8.0, 1), (0,)))
CUTS += (
    ((True,),),
    ([8, 1],),
    [(8, 1)],
    (),
    "full_batch",
    "data_parallel",
    "half",
    Text("full_batch"),
    Tuple(((8, 1),)),
)
CUTS += ((LAYOUT("dp", "None"),), (LAYOUT("dp"), LAYOUT("mp")), (LAYOUT,), (LAYOUT("dp"), (8,)), LAYOUT("mp"))
GIGABYTES = (
    "3.5GB",
    "1GB",
    "3GB ",
    "3.5",
    "0GB",
    "0.0GB",
    "-1GB",
    "1e3GB",
    ".GB",
    "GB",
    "٣GB",
    "1.2.3GB",
    "3gb",
    3,
    None,
)
GIGABYTES += ("1" * 20 + "GB", "1" * 21 + "GB", Text("2GB"), b"2GB")
MEMORY = (Promise(_memory, GIGABYTES), ("gigabytes",))
OF_DICT = ("A dict", "Keys: ", "One of", "True or False", "An int", "path", "can be made", "finite")


def _dict(**parts):
    return dict_of(**parts), OF_DICT


SEARCH = "One of 'dynamic_programming', 'recursive_programming', 'sharding_propagation'"
LEVEL, ON_OFF, FILE = "One of 'O0', 'O1', 'O2'", "One of 'ON', 'OFF'", (PATH, ("path",))
NEW = (NEW_FILE, ("path", "can be made"))
OPTIMIZER = {
    "gradient_accumulation_shard": FLAG,
    "parallel_optimizer_threshold": COUNT,
    "optimizer_weight_shard_size": whole(1, 4096, (-1,)),
    "optimizer_level": one_of("level1", "level2", "level3"),
}
FUSION = {
    "openstate": FLAG,
    "allreduce": fusion_of("auto", "size", "index"),
    "allgather": fusion_of("auto", "size"),
    "reducescatter": fusion_of("auto", "size"),
}
PARALLEL = {
    "device_num": "An int from 1 to 4096",
    "global_rank": "An int from 0 to 4095",
    "gradient_fp32_sync": BOOL,
    "loss_repeated_mean": BOOL,
    "parallel_mode": "One of 'stand_alone', 'data_parallel', 'hybrid_parallel', 'semi_auto_parallel', 'auto_parallel'",
    "search_mode": SEARCH,
    "auto_parallel_search_mode": SEARCH,
    "sharding_propagation": BOOL,
    "parameter_broadcast": BOOL,
    "strategy_ckpt_load_file": FILE,
    "strategy_ckpt_save_file": NEW,
    "group_ckpt_save_file": NEW,
    "full_batch": BOOL,
    "dataset_strategy": (Promise(_dataset, CUTS), ("or one tuple of ints", "at least 1", "called")),
    "enable_parallel_optimizer": BOOL,
    "parallel_optimizer_config": _dict(**OPTIMIZER),
    "optimizer_weight_shard_size": "-1, or an int from 2 to 4096",
    "optimizer_weight_shard_aggregated_save": BOOL,
    "pipeline_stages": "An int from 1 to 4096",
    "pipeline_result_broadcast": BOOL,
    "pipeline_config": (Promise(_pipelined, PIPELINED.edges), (*OF_DICT, "'1f1b' without")),
    "auto_pipeline": BOOL,
    "all_reduce_fusion_config": (INDICES, ("a list of rising ints",)),
    "comm_fusion": (dict_of(**FUSION), (*OF_DICT, "is missing", "mode is one of", "config is None", "rising ints")),
    "grad_accumulation_step": "An int, at least 1",
    "fusion_index": "One of 'inclusive', 'first_n'",
    "communi_parallel_mode": "One of 'all_group_parallel', 'same_server_group_parallel', 'no_group_parallel'",
    "enable_alltoall": BOOL,
    "redistribution": "One of '', 'allgather', 'alltoall', 'exact'",
    "recursive_most_devices": "An int, at least 1",
    "force_fp32_communication": BOOL,
    "strategy_ckpt_config": _dict(load_file=PATH, save_file=NEW_FILE, only_trainable_params=FLAG),
    "dump_local_norm": BOOL,
    "dump_local_norm_path": FILE,
    "dump_device_local_norm": BOOL,
}
SEARCHING = {
    "elementwise_op_strategy_follow": BOOL,
    "enable_algo_approxi": BOOL,
    "algo_approxi_epsilon": "A finite float, above 0, at most 1",
    "tensor_slice_align_enable": BOOL,
    "tensor_slice_align_size": "An int from 1 to 1024",
}
OF_FUSION = "costmodel_allreduce_fusion_"
COSTS = {
    "device_memory_capacity": POSITIVE,
    **dict.fromkeys((f"costmodel_{name}" for name in ("alpha", "beta", "gamma")), COST),
    **dict.fromkeys((f"costmodel_communi_{name}" for name in ("threshold", "const", "bias")), COST),
    "is_multi_subgraphs": BOOL,
    "run_phase": "An int from 0 to 1",
    f"{OF_FUSION}algorithm": "An int from 0 to 2",
    f"{OF_FUSION}times": "An int, at least 0",
    f"{OF_FUSION}tail_percent": "A finite float, at least 0, below 1",
    f"{OF_FUSION}tail_time": COST,
    f"{OF_FUSION}allreduce_inherent_time": COST,
    f"{OF_FUSION}allreduce_bandwidth": POSITIVE,
    f"{OF_FUSION}computation_time_parameter": COST,
    "dp_algo_triangle_star_strategy_overwrite": BOOL,
    "dp_algo_enable_approxi": BOOL,
    "dp_algo_approxi_epsilon": "A finite float, above 0, at most 1",
    "dp_algo_single_loop": BOOL,
}
JIT = {
    "jit_level": one_of("O0", "O1", "O2"),
    "infer_boost": one_of("on", "off"),
    "exc_mode": one_of("auto", "sink", "no_sink"),
    "jit_syntax_level": one_of("STRICT", "LAX"),
}
GPU = {
    "conv_allow_tf32": FLAG,
    "matmul_allow_tf32": FLAG,
    "conv_fprop_algo": algorithm("implicit_gemm precomp_gemm gemm direct fft fft_tiling winograd winograd_nonfused"),
    "conv_dgrad_algo": algorithm("algo_0 algo_1 fft fft_tiling winograd winograd_nonfused"),
    "conv_wgrad_algo": algorithm("algo_0 algo_1 fft algo_3 fft_tiling winograd_nonfused"),
}
RUNNING = {
    "mode": "An int from 0 to 1",
    "device_target": "One of 'CPU', 'GPU', 'Ascend'",
    "device_id": "An int from 0 to 4095",
    "save_graphs": (either(FLAG, whole(0, 3)), ("False, True, or an int from 0 to 3",)),
    "save_graphs_path": FILE,
    "deterministic": ON_OFF,
    "max_call_depth": "An int, at least 1",
    **dict.fromkeys(("max_device_memory", "variable_memory_max_size", "mempool_block_size"), MEMORY),
    "memory_optimize_level": "One of 'O0', 'O1'",
    **dict.fromkeys(("pynative_synchronize", "enable_graph_kernel", "enable_compile_cache"), BOOL),
    "compile_cache_path": FILE,
    "jit_level": LEVEL,
    "jit_config": _dict(**JIT),
    "exec_order": "One of 'bfs', 'dfs'",
    "runtime_num_threads": "An int, at least 0",
    "op_timeout": "An int, at least 0",
    "jit_syntax_level": "An int from 0 to 2",
    "aoe_config": _dict(job_type=one_of("1", "2")),
    "gpu_config": _dict(**GPU),
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
