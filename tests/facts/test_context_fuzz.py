"""Junk for every key of every settings function: accepted exactly when the documents' rule holds, else refused in words, and without a trace.

3,000 values; a failure prints its seed and value. The tables PARALLEL to RUNNING state the documented rule of every key once more, apart from the
package's own checks: a rule says None for a legal value, or the class that the refusal has.
"""

import collections
import decimal
import enum
import fractions
import math
import os
import random
import traceback
import types

import numpy as np
import pytest

from parallel_lab import context
from parallel_lab.errors import ContextError, ParallelLabError
from parallel_lab.named_layout import Layout

TYPE, VALUE, KEY, RUNTIME, OS = TypeError, ValueError, KeyError, RuntimeError, OSError
LARGEST = 2**31 - 1


# ---- the documented rules ----


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

    return rule, ("a float",)


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
    for part in parts:  # the first fault is the one that is told
        if not kind(part, tuple):
            return TYPE
        for n in tuple.__iter__(part):
            if type(n) is bool or not kind(n, int):
                return TYPE
            if int.__index__(n) not in [2**i for i in range(13)]:
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

    return rule, ("is a dict", "Keys: ", "is one of", "is True or False", "an int", "path", "a text", "decimal")


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
        return whole(0)[0](config) if mode == "size" else indices(config) if mode == "index" else None if config is None else TYPE

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
    "dataset_strategy": (dataset, ("'full_batch', 'data_parallel', or one tuple of ints", "power of two", "called")),
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
    "pipeline_config": dict_of(
        pipeline_interleave=flag, pipeline_scheduler=one_of("1f1b", "gpipe", "seqpipe", "seqvpp", "seqsmartvpp", "zero_bubble_v")[0]
    ),
    "auto_pipeline": BOOL,
    "all_reduce_fusion_config": (indices, ("a list of rising ints",)),
    "comm_fusion": (
        dict_of(
            openstate=flag, allreduce=fusion_of("auto", "size", "index"), allgather=fusion_of("auto", "size"), reducescatter=fusion_of("auto", "size")
        )[0],
        ("is a dict", "Keys: ", "True or False", "It is a dict", "is missing", "mode is one of", "config is None", "an int", "a list of rising ints"),
    ),
    "grad_accumulation_step": whole(1),
    "fusion_index": one_of("inclusive", "first_n"),
    "communi_parallel_mode": one_of("all_group_parallel", "same_server_group_parallel", "no_group_parallel"),
    "enable_alltoall": BOOL,
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
        conv_fprop_algo=one_of(
            "normal", "performance", "implicit_gemm", "precomp_gemm", "gemm", "direct", "fft", "fft_tiling", "winograd", "winograd_nonfused"
        )[0],
        conv_dgrad_algo=one_of("normal", "performance", "algo_0", "algo_1", "fft", "fft_tiling", "winograd", "winograd_nonfused")[0],
        conv_wgrad_algo=one_of("normal", "performance", "algo_0", "algo_1", "fft", "algo_3", "fft_tiling", "winograd_nonfused")[0],
    ),
}
FUNCTIONS = {
    "auto_parallel_context": (context.set_auto_parallel_context, context.get_auto_parallel_context, PARALLEL, {"gradients_mean": True}),
    "algo_parameters": (context.set_algo_parameters, context.get_algo_parameters, SEARCHING, {"fully_use_devices": False}),
    "cost_model_context": (context.set_cost_model_context, context.get_cost_model_context, COSTS, {"costmodel_simplify_cal": False}),
    "context": (context.set_context, context.get_context, RUNNING, {"precompile_only": True}),
}
PLACES = [(name, key) for name, (_, _, rules, _) in FUNCTIONS.items() for key in rules]


# ---- junk ----


def raising(self, *args, **kwargs):
    raise ZeroDivisionError("code of the value ran")


HOSTILE = (
    "__eq__",
    "__hash__",
    "__bool__",
    "__lt__",
    "__le__",
    "__gt__",
    "__ge__",
    "__len__",
    "__iter__",
    "__contains__",
    "__getitem__",
    "__index__",
)
HOSTILE += ("__int__", "__float__", "__str__", "__format__", "__getattr__", "keys", "items", "get", "encode", "startswith", "__add__", "__fspath__")


def hostile(base, name):
    return type(name, (base,), dict.fromkeys(HOSTILE, raising))


Thing, Int, Float, Text, List, Tuple, Dict = (hostile(b, f"Hostile{b.__name__.title()}") for b in (object, int, float, str, list, tuple, dict))
KeyText = type("KeyText", (str,), {name: raising for name in HOSTILE if name not in ("__hash__", "__eq__")})  # can be a key of a dict
Silent = type("Silent", (Thing,), {"__repr__": raising})
SilentText = type("SilentText", (Text,), {"__repr__": raising})
Liar = type("Liar", (), {"__class__": property(lambda self: int), "__index__": lambda self: 8, "__repr__": lambda self: "8"})
Loud = type("Loud", (), {"__repr__": lambda self: "loud " * 1000})
Eight = enum.IntEnum("Eight", {"EIGHT": 8})
Pair = collections.namedtuple("Pair", "a b")
LAYOUT = Layout((2, 4), ("dp", "mp"))

WORDS = sorted({w for rules in (PARALLEL, RUNNING) for _, words in rules.values() for w in words if w.isidentifier()})
WORDS += [
    "full_batch",
    "data_parallel",
    "level1",
    "level2",
    "1f1b",
    "gpipe",
    "auto",
    "size",
    "index",
    "3GB",
    "0.5GB",
    "GB",
    "٣GB",
    "oom",
    "8",
    "True",
]
KEYS = [
    "openstate",
    "allreduce",
    "allgather",
    "reducescatter",
    "mode",
    "config",
    "load_file",
    "save_file",
    "only_trainable_params",
    "pipeline_scheduler",
]
KEYS += ["gradient_accumulation_shard", "parallel_optimizer_threshold", "optimizer_level", "optimizer_weight_shard_size", "jit_level", "job_type"]
KEYS += ["conv_allow_tf32", "conv_fprop_algo", "pipeline_interleave"]


def self_containing():
    loop = []
    loop.append(loop)
    return loop


def plain(rng):
    """A value that some key may well take."""
    return rng.choice(
        [
            lambda: rng.random() < 0.5,
            lambda: rng.choice([-1, 0, 1, 2, 3, 4, 8, 16, 1024, 1025, 4095, 4096, 4097, LARGEST, LARGEST + 1]),
            lambda: rng.randrange(-5, 20),
            lambda: rng.choice([0.0, -0.0, 0.1, 0.999, 1.0, 1.5, -1.0, 1e300, 5e-324]),
            lambda: rng.choice(WORDS),
            lambda: f"d{rng.randrange(4)}/s.ckpt",
            lambda: [rng.randrange(0, 40) for _ in range(rng.randrange(4))],
            lambda: sorted({rng.randrange(0, 400) for _ in range(rng.randrange(1, 6))}),
            lambda: tuple(tuple(2 ** rng.randrange(0, 4) for _ in range(rng.randrange(0, 4))) for _ in range(rng.randrange(0, 4))),
            lambda: tuple(tuple(rng.randrange(0, 9) for _ in range(2)) for _ in range(2)),
            lambda: rng.choice([(LAYOUT("dp", "None"),), (LAYOUT,), (LAYOUT("dp"), (8,)), LAYOUT("mp")]),
            lambda: {rng.choice(KEYS): plain(rng) for _ in range(rng.randrange(0, 3))},
            lambda: {
                rng.choice(KEYS[1:4]): {"mode": rng.choice(["auto", "size", "index"]), "config": rng.choice([None, 3, 64, [1, 5], [5, 1], 2.5])}
            },
            lambda: None,
        ]
    )()


def junk(rng, depth=0):
    """Any value at all."""
    if rng.random() < 0.45:
        return plain(rng)
    made = [
        lambda: rng.choice([math.nan, math.inf, -math.inf, 1j, 10**4000, 10**5000, -(10**30), 2**63, decimal.Decimal(8), fractions.Fraction(8)]),
        lambda: rng.choice(
            ["", " ", "x" * 5000, "a\0b", "\ud800", "\udc80", "/proc/nope/s.ckpt", "y" * 300 + "/s.ckpt", "💥", "a\nb\x1b[31m", "DATA_PARALLEL"]
        ),
        lambda: rng.choice([b"", b"data_parallel", bytearray(b"8"), memoryview(b"8")]),
        lambda: rng.choice([Thing(), Silent(), Liar(), Loud(), object(), NotImplemented, ..., int, str, len, types, lambda: 8, Eight.EIGHT]),
        lambda: rng.choice(
            [Int(8), Int(0), Float(0.5), Text("data_parallel"), Text("nonsense"), SilentText("x"), List([1, 2]), Tuple(((8, 1),)), Dict()]
        ),
        lambda: Dict({rng.choice(KEYS): junk(rng, depth + 1)}) if depth < 3 else {},
        lambda: rng.choice(
            [
                np.int64(8),
                np.int8(1),
                np.float64(0.5),
                np.float32(0.5),
                np.bool_(True),
                np.str_("data_parallel"),
                np.str_("x"),
                np.datetime64("2020-01-01"),
            ]
        ),
        lambda: rng.choice([np.zeros(0), np.arange(3), np.array(8), np.array([[8, 1]]), np.array(["a"], object), np.ones((200, 200))]),
        lambda: rng.choice(
            [{1, 2}, frozenset(), range(3), iter([1]), Pair(8, 1), collections.OrderedDict(), types.MappingProxyType({}), self_containing()]
        ),
        lambda: [junk(rng, depth + 1) for _ in range(rng.randrange(4))] if depth < 3 else [],
        lambda: tuple(junk(rng, depth + 1) for _ in range(rng.randrange(4))) if depth < 3 else (),
        lambda: tuple((junk(rng, depth + 1),) for _ in range(rng.randrange(1, 3))) if depth < 3 else ((),),
        lambda: {rng.choice([*KEYS, 3, None, KeyText("mode"), "é"]): junk(rng, depth + 1) for _ in range(rng.randrange(1, 4))} if depth < 3 else {},
        lambda: {rng.choice(KEYS[1:4]): {"mode": plain(rng), "config": junk(rng, depth + 1)}} if depth < 3 else {},
    ]
    return rng.choice(made)()


def near(rng, key):
    """A value of the shape that the key takes, right or just beside it."""
    ints = [-1, 0, 1, 2, 3, 4, 7, 8, 1024, 1025, 4095, 4096, 4097, LARGEST, LARGEST + 1, True, 8.0, Int(8), Int(-1), Eight.EIGHT, np.int64(8), "8"]
    files = ["", "s.ckpt", "d/e/s.json", "a\0b", "a\ud800", "\udc80", "/proc/nope/s.ckpt", "y" * 300 + "/s.ckpt", Text("s.ckpt"), b"s.ckpt", None]
    rising = lambda: [rng.choice([rng.randrange(-1, 40), rng.randrange(40)]) for _ in range(rng.randrange(4))]  # noqa: E731
    lists = [rising, lambda: sorted(rising()), lambda: List(sorted(set(rising()))), lambda: tuple(rising()), lambda: [1, True], lambda: [1, 2.0]]
    if key in ("comm_fusion", *DICTS):
        pairs = {}
        for _ in range(rng.randrange(1, 4)):
            name = rng.choice([*DICTS.get(key, KEYS[:4]), KeyText("openstate")] if rng.random() < 0.9 else KEYS)
            pairs[name] = part_of(rng, name, lists, ints, files)
        return Dict(pairs) if rng.random() < 0.1 else pairs
    if key == "all_reduce_fusion_config":
        return rng.choice(lists)()
    if key == "dataset_strategy":
        cuts = rng.choice([[1, 2, 4, 8], [1, 2, 3, 4], [1, 2, 4096, 8192], [0, 1], ints])
        made = tuple(tuple(rng.choice(cuts) for _ in range(rng.randrange(4))) for _ in range(rng.randrange(4)))
        return rng.choice([made, made, Tuple(made), list(made), (LAYOUT("dp", "mp"),), (LAYOUT("dp"), (8,)), "full_batch", "half"])
    rule = next(rules[key][0] for _, _, rules, _ in FUNCTIONS.values() if key in rules)
    if rule in (file_name, file_name_in_new_folder):
        return rng.choice(files)
    if rule is flag:
        return rng.choice([True, False, 0, 1, "True", None, np.bool_(True), Thing()])
    words = [*PARALLEL.get(key, RUNNING.get(key, ((), ())))[1]]
    return rng.choice(
        [*ints, *(w for w in words), *(Text(w) for w in words), *(w.upper() for w in words), 0.5, Float(0.5), math.nan, math.inf, 1.0, 0.0]
    )


def part_of(rng, name, lists, ints, files):
    """A value for one key of a dict."""
    if name in ("allreduce", "allgather", "reducescatter"):
        config = rng.choice([lambda: None, lambda: rng.choice(ints), *lists])()
        made = {"mode": rng.choice(["auto", "size", "index", "index", Text("size"), "sizes", None]), "config": config}
        if rng.random() < 0.1:
            made.pop(rng.choice(["mode", "config"]))
        return made
    return rng.choice([True, False, rng.choice(ints), rng.choice(files), rng.choice(WORDS), rng.choice(WORDS)])


DICTS = {
    "parallel_optimizer_config": KEYS[10:14],
    "strategy_ckpt_config": KEYS[6:9],
    "pipeline_config": ["pipeline_interleave", "pipeline_scheduler"],
    "jit_config": ["jit_level"],
    "aoe_config": ["job_type"],
    "gpu_config": ["conv_allow_tf32", "conv_fprop_algo"],
}


# ---- what a refusal has to say ----


def shown(value, limit=80):
    try:
        text = repr(value)
    except Exception as error:
        text = f"<{type(value).__name__} whose repr raises {type(error).__name__}>"
    return text if len(text) <= limit else text[: limit - 3] + "..."


def parts_of(value, depth=0):
    """The value and what is inside it, to a small depth."""
    yield value
    if depth < 4:
        for base in (list, tuple, dict):
            if kind(value, base):
                for inner in base.__iter__(value):
                    yield from parts_of(inner, depth + 1)
        if kind(value, dict):
            for inner in dict.values(value):
                yield from parts_of(inner, depth + 1)


def everything():
    known = [(get, key) for _, get, rules, extra in FUNCTIONS.values() for key in (*rules, *extra)]
    return [get(key) for get, key in known], context.frozen()


def check(function, key, value):
    """One junk value for one key: accepted by the rule, or refused as it should be."""
    set_, get, rules, other = FUNCTIONS[function]
    rule, phrases = rules[key]
    expected = rule(value)
    before = everything()
    try:
        set_(**other, **{key: value})
    except Exception as error:
        assert expected is not None, f"refused, though the rule allows it: {error}"
        assert isinstance(error, ParallelLabError) and isinstance(error, ContextError), f"{type(error).__name__} came through: {error}"
        assert isinstance(error, expected), f"{type(error).__name__} instead of {expected.__name__}: {error}"
        assert expected is TypeError or not isinstance(error, TypeError), f"a TypeError instead of {expected.__name__}: {error}"
        text = str(error)
        assert set_.__name__ in text and len(text) < 1500, text
        assert key in text or key == "strategy_ckpt_config" and "strategy_ckpt_save_file" in text, text
        assert any(shown(part, limit) in text for part in parts_of(value) for limit in (80, 40)), text
        assert any(phrase in text for phrase in phrases) or "can be made" in text and expected is OSError, text
        frame = traceback.extract_tb(error.__traceback__)[-1]
        assert os.path.basename(frame.filename) in ("settings.py", "context.py", "context_tables.py"), f"raised in {frame.filename}:{frame.lineno}"
        assert everything() == before, "a refused call changed a setting"
        return False
    assert expected is None, f"accepted, and should be a {expected.__name__}"
    hash(context.frozen())
    kept = get(key)
    assert type(kept) in (bool, int, float, str, tuple, list, dict), f"kept as {type(kept).__name__}"
    if type(kept) in (int, float, str) and key != "save_graphs":
        assert kept == type(kept).__mro__[0].__new__(type(kept), _plain(value)), f"{kept!r} is read back"
    return True


def _plain(value):
    for base, read in ((int, int.__index__), (float, float.__float__), (str, str.__str__)):
        if kind(value, base):
            return read(value)
    return value


@pytest.fixture(autouse=True)
def clean(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # folders of strategy files are made
    _reset()
    yield
    _reset()


def _reset():
    context.reset_auto_parallel_context()
    context.reset_algo_parameters()
    context.reset_cost_model_context()
    context.reset_context()


BLOCKS, PER_BLOCK = 20, 150


@pytest.mark.parametrize("block", range(BLOCKS))
def test_junk_is_accepted_by_the_rule_or_refused_in_words(block):
    """3,000 values in all."""
    rng = random.Random(20_000 + block)
    accepted = 0
    for count in range(PER_BLOCK):
        function, key = PLACES[(block * PER_BLOCK + count) % len(PLACES)]
        value = near(rng, key) if rng.random() < 0.5 else junk(rng)
        try:
            accepted += check(function, key, value)
        except AssertionError as failure:
            raise AssertionError(f"block {block}, value {count}: {key}={shown(value, 300)}: {failure}") from failure
        finally:
            _reset()
    assert 0 < accepted < PER_BLOCK / 2, "the draw reaches neither side well"


@pytest.mark.parametrize("place", PLACES, ids=lambda place: place[1])
def test_every_key_accepts_its_own_default(place):
    """The rules of this file and the defaults of the package agree."""
    function, key = place
    value = FUNCTIONS[function][1](key)
    assert FUNCTIONS[function][2][key][0](value) is None or key == "all_reduce_fusion_config" and value == []


def test_the_rules_cover_every_parallel_key():
    with pytest.raises(ContextError) as caught:
        context.set_auto_parallel_context(qqq=1)
    listed = set(str(caught.value).partition("Keys: ")[2].rstrip(".").split(", "))
    assert listed == {*PARALLEL, "gradients_mean"}


@pytest.mark.parametrize("function", FUNCTIONS)
def test_unknown_keys_are_refused(function):
    set_, get, rules, _ = FUNCTIONS[function]
    rng = random.Random(7)
    names = ["".join(rng.choice("abcdeé_ \n\0'\"{}") for _ in range(rng.choice([1, 5, 300]))) for _ in range(50)]
    names += [rng.choice(list(rules))[:-1] for _ in range(20)] + [KeyText("nonsense"), "__class__", "self"]
    for name in names:
        for call in (lambda name=name: set_(**{name: 1}), lambda name=name: get(name)):
            with pytest.raises(ContextError) as caught:
                call()
            assert "is not known" in str(caught.value) and shown(str.__str__(name)) in str(caught.value)
            assert not isinstance(caught.value, TypeError)
