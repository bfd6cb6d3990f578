"""What all programs have: Python's own functions, math, numpy's shapes, tensors of our operators.

A front end is a `Front` with tables of its own: `calls` {ending of a dotted name: function}, `methods` and `attributes`
{kind of value: {name: function}}. An entry is a function of (front, arguments as in the program).
"""

from __future__ import annotations

import ast
import math
import operator
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any, ClassVar

from ...base.errors import shorten
from ...base.hooks import open_catalog
from ...layout.device_mesh import DeviceMesh
from ...layout.mesh_layout import MeshLayout
from ...nn.tensor.dtensor_parts import Parts, without_gradients
from ...ops.indexing import getitem
from ...ops.spellings import NAMES
from .reading import Reader
from .syntax import LIBRARIES
from .values import PLAIN, TOO_WIDE, UNKNOWN, Bound, Class, Endless, Function, Instance, Name, NotRead, needed
from .world import World, layout_of

Table = dict[str, Callable[..., Any]]
DTYPES = {
    **{"float": "float32", "half": "float16", "double": "float64", "long": "int64", "int": "int32", "bool_": "bool"},
    **{name: name for name in ("float32", "float16", "float64", "int64", "int32", "int8", "uint8", "bool", "bfloat16")},
}
LARGEST = 2**44  # elements of a tensor
# calls of these do nothing that could be seen here
SILENT = (
    "print", "manual_seed", "seed", "set_seed", "barrier", "destroy_process_group", "init_process_group",
    "set_device", "set_device_index", "device_index",
    "synchronize", "empty_cache", "enable_symm_mem_for_group", "getLogger", "basicConfig", "info", "warning", "debug",
    "set_float32_matmul_precision", "filterwarnings", "simplefilter", "collect", "init", "wait",
    "set_context", "initialize", "set_epoch", "enable_mindspore_backward_compat",
    "perf_counter", "time", "set_default_device", "use_deterministic_algorithms", "block_until_ready",
    "get_comm_counts", "get_total_counts", "visualize_sharding", "generate_comm_debug_tracing_table",
    "log_comm_debug_tracing_table_to_file", "visualize_array_sharding",
)  # fmt: skip
READ = ("item", "float", "int", "round", "str", "format", "RuntimeError", "ValueError")  # these make or read a number
# Python's own names that a program may hand on, and that are not read where it calls them
NO_MEANING = ["object", "super", "Exception", "ValueError", "RuntimeError", "open", "exec", "eval", "__import__", "id"]
MISSING = object()
WITHOUT_GRADIENTS = ("no gradients", "inference")  # contexts and decorators
OPERATORS = {
    "Add": "add", "Sub": "sub", "Mult": "mul", "Div": "div", "MatMult": "matmul", "Pow": "power", "Mod": "mod",
    "FloorDiv": "floor_div", "Gt": "greater", "Lt": "less", "GtE": "greater_equal", "LtE": "less_equal", "Eq": "equal",
    "NotEq": "not_equal",
}  # fmt: skip


def is_foreign(value: Any) -> bool:
    """Whether a value is a name of another file of the program's, or of a library that is not read."""
    root, dot, _ = value.path.partition(".") if isinstance(value, Name) else ("", "", "")
    return bool(dot) and root not in LIBRARIES and root not in sys.stdlib_module_names


def last(value: Any) -> Any:
    """The last part of an imported name; another value as it is."""
    return value.path.rpartition(".")[2] if isinstance(value, Name) else value


def dtype_of(value: Any, default: str = "float32") -> str:
    """The name of a dtype that a program gives: torch.bfloat16, "float32", float."""
    if value is not None and last(value) not in DTYPES:
        raise NotRead(f"the dtype {shorten(last(value))} is not known")
    return default if value is None else DTYPES[last(value)]


def is_same(left: Any, right: Any) -> bool:
    """left == right, where dtypes have several names."""
    return left == right or DTYPES.get(last(left) if isinstance(left, Name) else "", left) == DTYPES.get(
        last(right) if isinstance(right, Name) else "", right
    )


def shape_of(sizes: Sequence[Any]) -> tuple[int, ...]:
    """Sizes as separate arguments, or one tuple."""
    if len(sizes) == 1 and isinstance(sizes[0], (tuple, list)):
        sizes = sizes[0]
    if any(type(n) is not int or n < 0 for n in sizes) or math.prod(sizes) > LARGEST:
        raise NotRead(f"the shape {shorten(sizes)} is not read")
    return tuple(sizes)


def op(name: str) -> Callable[..., Any]:
    """An operator or function of ours by its name in `ops`."""
    open_catalog()
    return NAMES[name]


def ours(name: str) -> Callable[..., Any]:
    """An entry that is an operator of ours with the same arguments; of a number, math's function: np.sqrt(16)."""

    def run(front: Front, *args: Any, **kw: Any) -> Any:
        if args and isinstance(args[0], (int, float)) and not any(isinstance(a, Parts) for a in args):
            return getattr(math, name, float)(args[0])
        return op(name)(*args, **{k: v for k, v in kw.items() if k not in ("inplace", "approximate", "out")})

    return run


def entry_for(tables: dict[type, Table], value: Any, name: str) -> Any:
    """The entry of a kind's table; None."""
    return next((table[name] for kind, table in tables.items() if isinstance(value, kind) and name in table), None)


def own_method(value: Any, name: str) -> Any:
    """The method of this name of an object's class in the program; None."""
    found = value.of.find(name) if isinstance(value, Instance) and value.of is not None else None
    return found if isinstance(found, Function) else None


IN_PLACE = {"Add": operator.iadd, "Sub": operator.isub, "Mult": operator.imul, "Div": operator.itruediv}


class Front:
    """Answers what a `Reader` asks about everything but plain Python."""

    calls: ClassVar[Table] = {}
    constants: ClassVar[dict[str, Any]] = {
        "math.pi": math.pi, "math.inf": math.inf, "np.newaxis": None, "TYPE_CHECKING": False,
    }  # fmt: skip
    methods: ClassVar[dict[type, Table]] = {}
    attributes: ClassVar[dict[type, Table]] = {}
    operators: ClassVar[Table] = {}  # "Pow": what ** is, where it is more than an operator of ours

    def __init__(self, world: World, devices: int) -> None:
        self.world, self.devices = world, devices
        self.reader: Reader = None  # type: ignore[assignment]
        self.meshes: list[DeviceMesh] = []
        self.largest = 0  # ranks of a mesh that more than `devices` were needed for
        self.numbers: dict[int, Any] = {}  # that are not known: not tensors, which an operator would treat as copies
        self.splits_loss = False  # loss_parallel is on

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Inside, a program can be read."""
        self.world.in_time = self.reader.in_time
        with self.world.reading():
            yield

    def made(self, of: Class) -> Instance:
        """An object of a class of the program, before its __init__."""
        return Instance(of)

    def known(self, value: Any) -> bool:
        """Whether it is known if a value is true: a tensor's numbers are not, nor what other files hold."""
        sized = own_method(value, "__bool__") or own_method(value, "__len__")
        return not isinstance(value, Parts) and not is_foreign(value) and sized is None

    def is_a(self, value: Any, kind: Any) -> bool:
        """isinstance(value, kind)"""
        if isinstance(kind, Class):
            return isinstance(value, Instance) and value.of is not None and value.of.inherits(kind)
        name = {"Dense": "Linear", "SequentialCell": "Sequential", "CellList": "ModuleList"}.get(last(kind), last(kind))
        if isinstance(value, Instance):
            return (
                name in (value.kind, *value.names.get("marks", ())) or name in ("Module", "Cell") and value.kind != ""
            )
        if isinstance(value, Parts):
            return name in (("DTensor", "Tensor", "Parameter") if layout_of(value) else ("Tensor", "Parameter"))
        return type(value).__name__ == name

    def number(self) -> Any:
        """A number that is not known."""
        made = self.world.tensor(())
        self.numbers[id(made)] = made
        return made

    def is_silent(self, name: str) -> bool:
        """Whether a call of this name only prints, or reads a number."""
        return name in (*SILENT, *READ)

    def happened(self) -> int:
        """A number that grows with what is computed and sent."""
        return len(self.world.events)

    def found(self, table: dict[str, Any], path: str) -> Any:
        """The entry of the longest ending of a dotted name; MISSING."""
        parts = path.split(".")
        return next((table[key] for at in range(len(parts)) if (key := ".".join(parts[at:])) in table), MISSING)

    def knows(self, path: str) -> bool:
        """Whether the tables have a name, or Python."""
        name = path.rpartition(".")[2]
        python = path.startswith("builtins.") and name in NO_MEANING
        known = self.found(self.calls, path) is not MISSING or any(key.startswith(f"{name}.") for key in self.calls)
        return python or name in SILENT or known

    def constant(self, path: str) -> Any:
        """A dotted name, or what it stands for: math.pi."""
        held = self.found(self.constants, path)
        return Name(path) if held is MISSING else held

    def call(self, of: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """Call something else than a function of the program."""
        self.world.at(self.reader.line)
        if isinstance(of, Instance):
            return self.invoke(of, args, kwargs)
        if isinstance(of, Bound):
            entry = entry_for(self.methods, of.of, of.what)
            if entry is None:
                raise NotRead(f"the method {shorten(of.what)} is not read")
            return entry(self, of.of, *args, **kwargs)
        if callable(of) and not isinstance(of, Name):
            return of(*args, **kwargs)  # made by an entry of a table, never by the program
        if isinstance(of, Name) and of.path in WITHOUT_GRADIENTS:  # as a decorator
            return lambda *given, **kw: self._within(of, args[0], given, kw)
        entry = self.found(self.calls, of.path) if isinstance(of, Name) else MISSING
        if entry is not MISSING:
            for value in () if entry is is_instance else (*args, *kwargs.values()):
                if is_foreign(needed(value)):
                    raise NotRead(f"what {value.path} holds is not known")
            return entry(self, *args, **kwargs)
        if not isinstance(of, Name) or last(of) not in SILENT and ".init." not in of.path:
            raise NotRead(f"{getattr(of, 'path', 'a call of this').removeprefix('builtins.')} is not read")
        return Name("logging") if last(of) == "getLogger" else None

    def _within(self, context: Name, of: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        with self.within([context]):
            return self.reader.call(of, list(args), kwargs)

    def invoke(self, of: Instance, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """obj(...)"""
        if of.of is not None and (method := of.of.find("__call__")) is not None:
            return self.reader.run(method, [of, *args], kwargs)
        raise NotRead("a call of this object is not read")

    def attribute(self, holder: Any, name: str) -> Any:
        """holder.name of a value of ours."""
        if type(holder) is Instance and holder.of is not None:
            raise NotRead(f".{name} of an object of {holder.of.name} is not read")
        if (entry := entry_for(self.attributes, holder, name)) is not None:
            return self.reader.checked(lambda: entry(self, holder))
        if entry_for(self.methods, holder, name) is None:
            raise NotRead(f".{name} is not read")
        return Bound(holder, name)

    def set_attribute(self, holder: Any, name: str, value: Any) -> None:
        """holder.name = value"""
        if isinstance(holder, Parts) and name in ("grad", "requires_grad"):
            setattr(holder, "grad" if name == "grad" else "_wanted", needed(value))
        elif isinstance(holder, Parts) and name == "data":
            if layout_of(needed(value)) != layout_of(holder) or value.shape != holder.shape:
                raise NotRead(".data = ... of another shape or layout is not read")
        elif isinstance(holder, Class):
            holder.names[name] = value
        elif not isinstance(holder, Name):
            raise NotRead(f".{name} = ... is not read")

    def item(self, holder: Any, key: Any) -> Any:
        """holder[key]"""
        if isinstance(holder, Name):  # os.environ["RANK"], or a type: list[int]
            return environment(self, key) if last(holder) == "environ" else holder
        if isinstance(holder, Parts):
            return self.reader.checked(lambda: getitem(holder, key))
        if (own := own_method(holder, "__getitem__")) is not None:
            return self.reader.run(own, [holder, key], {})
        if (entry := entry_for(self.methods, holder, "[]")) is None:
            raise NotRead("an item of this is not read")
        return self.reader.checked(lambda: entry(self, holder, key))

    def items(self, value: Any) -> list[Any]:
        """What a loop over a value of ours goes through."""
        if (own := own_method(value, "__iter__")) is not None:
            made = self.reader.run(own, [value], {})
            if made is value:
                raise NotRead("a loop over an object that is its own iterator is not read")
            return self.reader.items(made)
        entry = entry_for(self.methods, value, "iter")
        if entry is None or type(value) is Instance and value.of is not None:
            raise NotRead("a loop over this is not read")
        return entry(self, value)

    def operate(self, name: str, left: Any, right: Any) -> Any:
        """left (operator) right, one of them no plain Python."""
        self.world.at(self.reader.line)
        if id(left) in self.numbers or id(right) in self.numbers:
            left, right = (1.0 if id(x) in self.numbers else x for x in (left, right))
            if not isinstance(left, Parts) and not isinstance(right, Parts):
                return self.number()
        if isinstance(left, Parts) or isinstance(right, Parts):
            if name not in OPERATORS or not all(isinstance(x, (Parts, int, float)) for x in (left, right)):
                raise NotRead(f"{name} of a tensor and {shorten(right)} is not read")
            if not isinstance(left, Parts) and name in ("Add", "Mult"):
                left, right = right, left
            entry = self.operators.get(name, ours(OPERATORS[name]))
            return self.reader.checked(lambda: entry(self, left, right))
        if type(left) is Instance and left is not right:
            raise NotRead("whether two objects are equal is not read")
        if name in ("Eq", "NotEq"):
            return is_same(left, right) is (name == "Eq")
        if name in ("In", "NotIn"):
            return any(is_same(left, one) for one in self.reader.items(right)) is (name == "In")
        if name == "BitOr":  # of types
            return left
        raise NotRead(f"{name} is not read here")

    def in_place(self, holder: Any, name: str, value: Any) -> Any:
        """x += y of a tensor that keeps its layout; None: not a tensor."""
        if not isinstance(holder, Parts):
            return None
        self.world.at(self.reader.line)
        if id(holder) in self.numbers:
            return self.operate(name, holder, value)
        value = 1.0 if id(value) in self.numbers else value
        if name in IN_PLACE:
            return self.reader.checked(lambda: IN_PLACE[name](holder, value))
        return self.operate(name, holder, value)

    @contextmanager
    def within(self, entered: Sequence[Any]) -> Iterator[None]:
        """The body of `with a, b:`."""
        marks = {getattr(x, "path", "") for x in entered}
        before = self.splits_loss, self.world.inference
        self.splits_loss, self.world.inference = before[0] or "split loss" in marks, before[1] or "inference" in marks
        try:
            with ExitStack() as stack:
                for each in entered:
                    stack.enter_context(each) if isinstance(each, AbstractContextManager) else None
                stack.enter_context(without_gradients() if marks & set(WITHOUT_GRADIENTS) else nullcontext())
                yield
        finally:
            self.splits_loss, self.world.inference = before


# ---- Python's own ----


def environment(front: Front, name: Any, default: Any = None) -> Any:
    """What a launcher sets."""
    known = {"WORLD_SIZE": front.devices, "LOCAL_WORLD_SIZE": front.devices, "RANK": 0, "LOCAL_RANK": 0}
    return str(known[name]) if name in known else default


def is_instance(front: Front, value: Any, kinds: Any) -> bool:
    """isinstance"""
    return any(front.is_a(value, kind) for kind in (kinds if isinstance(kinds, tuple) else (kinds,)))


def _plain(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of Python on numbers, texts, tuples and lists of the program."""

    def run(front: Front, *args: Any, **kwargs: Any) -> Any:
        if not all(isinstance(a, PLAIN) for a in (*args, *kwargs.values())):
            raise NotRead(f"{function.__name__} of this is not read")
        return function(*args, **kwargs)

    return run


def _number(function: Callable[..., Any]) -> Callable[..., Any]:
    """int, float; of a tensor what this rank reads of it"""
    return lambda front, *args: number(front, *args) if isinstance(args[0], Parts) else _plain(function)(front, *args)


def number(front: Front, x: Parts) -> Any:
    """x.item(): what rank 0 has, without a message, be it an addend alone."""
    if x.size != 1:
        raise NotRead("a number of a tensor of several")
    return front.number()


def _len(front: Front, value: Any) -> Any:
    if isinstance(value, Parts):
        return value.shape[0]
    if (own := own_method(value, "__len__")) is not None:
        return front.reader.run(own, [value], {})
    return len(value if isinstance(value, PLAIN) and not isinstance(value, Endless) else front.reader.items(value))


def _next(front: Front, value: Any, *default: Any) -> Any:
    if not isinstance(value, list):
        return (front.reader.items(value) or list(default))[0]
    if isinstance(value, Endless):
        return value[0]
    return value.pop(0) if value else default[0]


def _listed(function: Callable[..., Any]) -> Callable[..., Any]:
    """zip, reversed, ...: of sequences the list of what they give."""
    return lambda front, *seqs, **kw: list(function(*[front.reader.items(s) for s in seqs], **kw))


def _range(front: Front, *args: Any) -> Any:
    made = range(*args)
    if len(made) > 2**20:
        raise NotRead("a range that is too long")
    return made


def _getattr(front: Front, holder: Any, name: Any, *default: Any) -> Any:
    try:
        return front.reader.attribute(holder, name)
    except NotRead:
        if not default:
            raise
        return default[0]


def _partial(front: Front, of: Any, *args: Any, **kwargs: Any) -> Any:
    return lambda *more, **kw: front.reader.call(of, [*args, *more], kwargs | kw)


def _sum(front: Front, values: Any, start: Any = 0) -> Any:
    total = start
    for value in front.reader.items(values):
        total = value if isinstance(total, int) and total == 0 else front.reader.operate(ast.Add, total, value)
    return total


def _append(front: Front, held: list[Any], *values: Any) -> None:
    if len(held) >= 4096:
        raise NotRead("a list that is too long")
    held.extend(values)


def _text(name: str) -> Callable[..., Any]:
    return lambda front, held, *args: getattr(held, name)(*args)


def _format(front: Front, held: str, *args: Any, **kw: Any) -> str:
    """ "{}, {name:>8}".format(...): fields by number and name alone."""
    plain = all(isinstance(a, (str, int, float)) for a in (*args, *kw.values()))
    if not plain or TOO_WIDE.search(held) or not re.fullmatch(r"([^{}]|\{\w*(:[^{}]*)?\})*", held):
        return UNKNOWN
    return held.format(*args, **kw)


def _join(front: Front, held: str, parts: Any) -> str:
    parts = front.reader.items(parts)
    return held.join(parts) if all(isinstance(p, str) for p in parts) else UNKNOWN


TEXT = (
    "startswith", "endswith", "split", "rsplit", "partition", "rpartition", "lower", "upper", "strip", "lstrip",
    "rstrip", "removeprefix", "removesuffix", "isdigit", "find", "count", "index",
)  # fmt: skip
_MATH = (math.sqrt, math.ceil, math.floor, math.prod, math.log, math.log2, math.exp)
PYTHON: Table = {
    "builtins.isinstance": is_instance,
    "builtins.range": _range,
    "builtins.len": _len,
    "builtins.enumerate": lambda front, value, start=0: list(enumerate(front.reader.items(value), start)),
    "builtins.map": lambda front, of, *seqs: [
        front.reader.call(of, list(a), {}) for a in zip(*map(front.reader.items, seqs), strict=False)
    ],
    "builtins.getattr": _getattr,
    "builtins.hasattr": lambda front, holder, name: _getattr(front, holder, name, MISSING) is not MISSING,
    "builtins.setattr": lambda front, holder, name, value: holder.keep(name, value),
    "builtins.sum": _sum,
    "builtins.type": lambda front, value: Name(f"builtins.{type(value).__name__}"),
    "builtins.next": _next,
    "builtins.callable": lambda front, value: isinstance(value, Function),
    **{f"builtins.{name}": lambda front, of: of for name in ("staticmethod", "classmethod", "property")},
    **{f"builtins.{f.__name__}": _plain(f) for f in (bool, min, max, abs, all, any, round, divmod)},
    **{f"builtins.{f.__name__}": _number(f) for f in (int, float)},
    "builtins.str": lambda front, value="", *args: str(value) if isinstance(value, (str, int, float)) else UNKNOWN,
    **{f"builtins.{f.__name__}": _listed(f) for f in (zip, list, reversed, sorted, iter)},
    "builtins.tuple": lambda front, value=(): tuple(front.reader.items(value)),
    "builtins.set": lambda front, value=(): tuple(dict.fromkeys(front.reader.items(value))),
    "builtins.dict": lambda front, value=(), **kwargs: dict(value, **kwargs),
    "ArgumentParser": lambda front, *args, **kw: Instance(None, {"options": {}}),
    "partial": _partial,
    **{f"{room}.save": lambda front, *args, **kw: None for room in ("torch", "numpy", "np")},
    "nullcontext": lambda front, value=None: value,
    **{f"path.{name}": lambda front, path: False for name in ("exists", "isfile")},  # no file of an earlier run
    "errors.record": lambda front, of: of,
    "functools.wraps": lambda front, of: lambda made: made,
    "dataclass": lambda front, of=None, **kw: of if of is not None else (lambda made: made),
    "field": lambda front, default=None, default_factory=None, **kw: (
        default if default_factory is None else front.reader.call(default_factory, [], {})
    ),
    **dict.fromkeys(("os.getenv", "environ.get", "environ.setdefault"), environment),
    **{f"math.{f.__name__}": _plain(f) for f in _MATH},
}


def _option(
    front: Front, of: Instance, *names: str, default: Any = None, action: str = "", dest: str = "", **kw: Any
) -> None:
    """parser.add_argument: a program is read as if it were started without options."""
    name = dest or max(names, key=len).lstrip("-").replace("-", "_")
    of.names["options"][name] = action == "store_false" if action[:6] == "store_" and default is None else default


METHODS: dict[type, Table] = {
    Instance: {
        "add_argument": _option,
        "parse_args": lambda front, of, *args: Instance(None, dict(of.names["options"])),
    },
    dict: {
        "get": lambda front, held, key, default=None: held.get(key, default),
        "items": lambda front, held: list(held.items()),
        "values": lambda front, held: list(held.values()),
        "keys": lambda front, held: list(held),
        "update": lambda front, held, other=(), **kw: held.update(other, **kw),
        "pop": lambda front, held, key, *default: held.pop(key, *default),
        "setdefault": lambda front, held, key, default=None: held.setdefault(key, default),
        "copy": lambda front, held: dict(held),
    },
    list: {
        "append": _append,
        "extend": lambda front, held, more: _append(front, held, *front.reader.items(more)),
        "pop": lambda front, held, at=-1: held.pop(at),
        "copy": lambda front, held: list(held),
    },
    tuple: {"numel": lambda front, held: math.prod(held)},
    str: {**{name: _text(name) for name in TEXT}, "format": _format, "join": _join},
}


# ---- tensors ----


def filled(front: Front, *sizes: Any, dtype: Any = None, requires_grad: bool = False, **kw: Any) -> Any:
    """ones, zeros, randn, ...: a tensor of this shape."""
    sizes = sizes or (kw["size"] if "size" in kw else kw["shape"],)
    if dtype is None and isinstance(sizes[-1], Name):  # JAX, MindSpore: ones(shape, dtype)
        *sizes, dtype = sizes
    return front.world.tensor(shape_of(sizes), dtype_of(dtype), requires_grad=requires_grad)


def from_list(front: Front, value: Any, dtype: Any = None, requires_grad: bool = False, **kw: Any) -> Any:
    """tensor([[1.0, 2.0]])"""
    shape: list[int] = []
    while isinstance(value, (list, tuple)) and value:
        shape, value = [*shape, len(value)], value[0]
    kind = "bool" if isinstance(value, bool) else "int64" if isinstance(value, int) else "float32"
    shape, kind = (list(value.shape), str(value.dtype)) if isinstance(value, Parts) else (shape, kind)
    return front.world.tensor(shape, dtype_of(dtype, kind), requires_grad=requires_grad)


def arange(front: Front, *args: Any, dtype: Any = None, **kw: Any) -> Any:
    """arange(stop), arange(start, stop, step)"""
    kind = "int64" if all(isinstance(a, int) for a in args) else "float32"
    return front.world.tensor(shape_of((len(range(*map(int, args))),)), dtype_of(dtype, kind))


def like(front: Front, value: Parts, dtype: Any = None, requires_grad: bool = False, **kw: Any) -> Any:
    """ones_like(x), in x's layout."""
    return front.world.tensor(value.shape, dtype_of(dtype, str(value.dtype)), layout_of(value), requires_grad)


def one_hot(front: Front, x: Parts, num_classes: int, dtype: Any = None, **kw: Any) -> Any:
    """A row for each number, whole where x is split."""
    layout = None if x.alone else MeshLayout.from_dims(x.mesh, (*x.layout.dims(x.ndim), ()))
    return front.world.tensor((*x.shape, num_classes), dtype_of(dtype, "int64"), layout)


def cast_to(front: Front, x: Parts, *args: Any, dtype: Any = None, **kw: Any) -> Any:
    """x.to(device, dtype)"""
    dtype = next(
        (str(a.dtype) if isinstance(a, Parts) else a for a in args if isinstance(a, Parts) or last(a) in DTYPES), dtype
    )
    wanted = dtype_of(dtype, str(x.dtype))
    return x if wanted == str(x.dtype) else op("cast")(x, wanted)


NUMPY_LIKE: Table = {
    **{f"{room}.{name}": filled for room in ("numpy", "np") for name in ("ones", "zeros", "empty")},
    **{f"numpy.random.{name}": filled for name in ("randn", "rand")},
    "numpy.arange": arange,
    "numpy.array": from_list,
}
