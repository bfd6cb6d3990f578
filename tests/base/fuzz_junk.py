"""Junk for settings: hostile objects, drawn values, and values near to what a setting takes."""

import collections
import decimal
import enum
import fractions
import math
import types

import numpy as np

from parallel_lab.layout.named_layout import Layout
from tests.base.fuzz_rules import FUNCTIONS, LARGEST, PARALLEL, RUNNING, file_name, file_name_in_new_folder, flag


def raising(self, *args, **kwargs):
    raise ZeroDivisionError("code of the value ran")


HOSTILE = (
    *("__eq__", "__hash__", "__bool__", "__lt__", "__le__", "__gt__", "__ge__", "__len__", "__iter__", "__contains__"),
    *("__getitem__", "__index__", "__int__", "__float__", "__str__", "__format__", "__getattr__", "__add__"),
    *("__fspath__", "keys", "items", "get", "encode", "startswith"),
)


def hostile(base, name):
    return type(name, (base,), dict.fromkeys(HOSTILE, raising))


Thing, Int, Float, Text, List, Tuple, Dict = (
    hostile(b, f"Hostile{b.__name__.title()}") for b in (object, int, float, str, list, tuple, dict)
)
KeyText = type(
    "KeyText", (str,), dict.fromkeys(HOSTILE[2:], raising)
)  # with str's own __eq__ and __hash__: a dict's key
Silent = type("Silent", (Thing,), {"__repr__": raising})
SilentText = type("SilentText", (Text,), {"__repr__": raising})
Liar = type(
    "Liar", (), {"__class__": property(lambda self: int), "__index__": lambda self: 8, "__repr__": lambda self: "8"}
)
Loud = type("Loud", (), {"__repr__": lambda self: "loud " * 1000})
Eight = enum.IntEnum("Eight", {"EIGHT": 8})
Pair = collections.namedtuple("Pair", "a b")
LAYOUT = Layout((2, 4), ("dp", "mp"))

WORDS = sorted({w for rules in (PARALLEL, RUNNING) for _, words in rules.values() for w in words if w.isidentifier()})
WORDS += ["full_batch", "data_parallel", "level1", "level2", "1f1b", "gpipe", "auto", "size", "index"]
WORDS += ["3GB", "0.5GB", "GB", "٣GB", "oom", "8", "True"]
OPTIMIZER = ["gradient_accumulation_shard", "parallel_optimizer_threshold"]
OPTIMIZER += ["optimizer_level", "optimizer_weight_shard_size"]
FILES = ["load_file", "save_file", "only_trainable_params"]
KEYS = ["openstate", "allreduce", "allgather", "reducescatter", "mode", "config", *FILES, "pipeline_scheduler"]
KEYS += [*OPTIMIZER, "jit_level", "job_type", "conv_allow_tf32", "conv_fprop_algo", "pipeline_interleave"]


def self_containing():
    loop = []
    loop.append(loop)
    return loop


def several(rng, draw):
    """Up to three values, as a tuple."""
    return tuple(draw() for _ in range(rng.randrange(0, 4)))


MODES, CONFIGS = ("auto", "size", "index"), (None, 3, 64, [1, 5], [5, 1], 2.5)


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
            lambda: several(rng, lambda: several(rng, lambda: 2 ** rng.randrange(0, 4))),
            lambda: tuple(tuple(rng.randrange(0, 9) for _ in range(2)) for _ in range(2)),
            lambda: rng.choice([(LAYOUT("dp", "None"),), (LAYOUT,), (LAYOUT("dp"), (8,)), LAYOUT("mp")]),
            lambda: {rng.choice(KEYS): plain(rng) for _ in range(rng.randrange(0, 3))},
            lambda: {rng.choice(KEYS[1:4]): {"mode": rng.choice(MODES), "config": rng.choice(CONFIGS)}},
            lambda: None,
        ]
    )()


def junk(rng, depth=0):
    """Any value at all."""
    if rng.random() < 0.45:
        return plain(rng)
    numbers = [math.nan, math.inf, -math.inf, 1j, 10**4000, 10**5000, -(10**30), 2**63]
    numbers += [decimal.Decimal(8), fractions.Fraction(8)]
    texts = ["", " ", "x" * 5000, "a\0b", "\ud800", "\udc80", "/proc/nope/s.ckpt", "y" * 300 + "/s.ckpt"]
    texts += ["💥", "a\nb\x1b[31m", "DATA_PARALLEL"]
    objects = [Thing(), Silent(), Liar(), Loud(), object(), NotImplemented, ..., int, str, len, types, lambda: 8]
    subclasses = [Int(8), Int(0), Float(0.5), Text("data_parallel"), Text("nonsense"), SilentText("x")]
    subclasses += [List([1, 2]), Tuple(((8, 1),)), Dict(), Eight.EIGHT]
    of_numpy = [np.int64(8), np.int8(1), np.float64(0.5), np.float32(0.5), np.bool_(True)]
    of_numpy += [np.str_("data_parallel"), np.str_("x"), np.datetime64("2020-01-01")]
    arrays = [np.zeros(0), np.arange(3), np.array(8), np.array([[8, 1]]), np.array(["a"], object), np.ones((200, 200))]
    others = [{1, 2}, frozenset(), range(3), iter([1]), Pair(8, 1), collections.OrderedDict()]
    others += [types.MappingProxyType({}), self_containing()]
    shallow, inner = depth < 3, lambda: junk(rng, depth + 1)
    odd_keys = [*KEYS, 3, None, KeyText("mode"), "é"]
    made = [
        *(
            lambda some=some: rng.choice(some)
            for some in (numbers, texts, objects, subclasses, of_numpy, arrays, others)
        ),
        lambda: rng.choice([b"", b"data_parallel", bytearray(b"8"), memoryview(b"8")]),
        lambda: Dict({rng.choice(KEYS): inner()}) if shallow else {},
        lambda: list(several(rng, inner)) if shallow else [],
        lambda: several(rng, inner) if shallow else (),
        lambda: tuple((inner(),) for _ in range(rng.randrange(1, 3))) if shallow else ((),),
        lambda: {rng.choice(odd_keys): inner() for _ in range(rng.randrange(1, 4))} if shallow else {},
        lambda: {rng.choice(KEYS[1:4]): {"mode": plain(rng), "config": inner()}} if shallow else {},
    ]
    return rng.choice(made)()


def near(rng, key):
    """A value of the shape that the key takes, right or only just wrong."""
    ints = [-1, 0, 1, 2, 3, 4, 7, 8, 1024, 1025, 4095, 4096, 4097, LARGEST, LARGEST + 1]
    ints += [True, 8.0, Int(8), Int(-1), Eight.EIGHT, np.int64(8), "8"]
    files = ["", "s.ckpt", "d/e/s.json", "a\0b", "a\ud800", "\udc80", "/proc/nope/s.ckpt", "y" * 300 + "/s.ckpt"]
    files += [Text("s.ckpt"), b"s.ckpt", None]
    rising = lambda: [rng.choice([rng.randrange(-1, 40), rng.randrange(40)]) for _ in range(rng.randrange(4))]  # noqa: E731
    lists = [rising, lambda: sorted(rising()), lambda: List(sorted(set(rising()))), lambda: tuple(rising())]
    lists += [lambda: [1, True], lambda: [1, 2.0]]
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
        made = several(rng, lambda: several(rng, lambda: rng.choice(cuts)))
        layouts = [(LAYOUT("dp", "mp"),), (LAYOUT("dp"), (8,))]
        return rng.choice([made, made, Tuple(made), list(made), *layouts, "full_batch", "half"])
    rule = next(rules[key][0] for _, _, rules, _ in FUNCTIONS.values() if key in rules)
    if rule in (file_name, file_name_in_new_folder):
        return rng.choice(files)
    if rule is flag:
        return rng.choice([True, False, 0, 1, "True", None, np.bool_(True), Thing()])
    words = [*PARALLEL.get(key, RUNNING.get(key, ((), ())))[1]]
    near_words = [*words, *map(Text, words), *(w.upper() for w in words)]
    return rng.choice([*ints, *near_words, 0.5, Float(0.5), math.nan, math.inf, 1.0, 0.0])


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
    "parallel_optimizer_config": OPTIMIZER,
    "strategy_ckpt_config": FILES,
    "pipeline_config": ["pipeline_interleave", "pipeline_scheduler"],
    "jit_config": ["jit_level"],
    "aoe_config": ["job_type"],
    "gpu_config": ["conv_allow_tf32", "conv_fprop_algo"],
}
