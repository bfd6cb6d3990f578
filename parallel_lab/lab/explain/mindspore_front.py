"""What names of MindSpore mean: a network becomes a Cell of this package, and its plan says what is sent.

    front = MindFront(World(8), 8)
    front.reader = Reader(text, front, {})
    with front.reading():
        front.reader.read()
    front.world.messages            those of the plans that the program would have compiled

Classes of the program that inherit from a Cell become Cells whose construct is read (`ReadCell`); layers, operators,
losses and optimizers are the package's own, found as a script finds them (`mindspore/_modules.py`); tensors have a
shape, a dtype and zeros that take no memory. Where a script would run a Cell, an AutoParallel, a step of a Model or the
function of a gradient, it is compiled for the ranks by the settings that were read, and never run. Settings hold
inside `reading` alone; names that open files, start processes or take the values of tensors are not read.
"""

from __future__ import annotations

import inspect
import math
import operator
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, MappingView
from contextlib import contextmanager
from functools import partial
from itertools import groupby
from types import FunctionType, MethodType
from typing import Any, ClassVar

import numpy as np

from ...base.dtypes import as_dtype
from ...base.errors import ParallelLabError, shorten
from ...base.hooks import current_tracer, current_world, from_above, set_world
from ...base.settings.checks import LOCAL_MODES, SHARDED_MODES
from ...base.settings.context import reset_context, set_context
from ...base.settings.current import default_settings, frozen, get_context
from ...base.settings.tables import GRAPH_MODE
from ...graph.compiler import Compiled, compile_program
from ...graph.forms import fill_form, of_tensors, tensors_of
from ...graph.plan_text import rank_view
from ...graph.virtual_output import compile_forward
from ...layout.named_layout import Layout
from ...nn.cell import Cell
from ...nn.initializer import Initializer
from ...nn.optim.grad_reducer import DistributedGradReducer
from ...nn.optim.optimizer import Optimizer
from ...nn.tensor.arithmetic import Arithmetic
from ...nn.tensor.parameter import Parameter
from ...nn.tensor.tensor import Tensor
from ...nn.wrap import TrainOneStepCell
from ...ops.machine.opdef import OpDef
from ...ops.machine.primitive import Primitive
from ...train.auto_parallel import AutoParallel
from ...train.compiled import CompiledFunction, in_training, parts_named, positional
from ...train.compiled_program import still_holds
from .front import DTYPES, MISSING, SILENT, Front, entry_for, last, shape_of
from .reading import SECONDS, SEQUENCE
from .values import PLAIN, Bound, Class, Function, Instance, Name, NotRead, Stopped, needed
from .world import Message, Step

PROGRAM = "<program>"  # the file of the program's lines, in origins and errors
MOST = 2**22  # elements that are computed while reading, outside of networks: masks, tables
EVENTS = 100_000
RESUMED = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
OBJECTS = (Arithmetic, Cell, Primitive, Initializer, Layout)
LIBRARY = tuple(f"parallel_lab.{room}." for room in ("layout", "ops", "nn", "catalog", "train", "mindspore"))
# functions of MindSpore, by the rooms of their paths; by their names
ROOMS = ("ops.", "nn.", "mint.", "numpy.", "common.initializer.", "parallel.nn.", "transformer.")
FUNCTIONS = ("initializer", "shard", "GradOperation", "HyperMap", "Map", "Layout", "ParameterTuple", "Tensor")
CLOSED = ("Custom", "custom", "Print", "print_", "Morph", "dump", "Dump", "Summary", "load", "save", "export", "hook")
VALUES = ("item", "tolist", "tofile", "flush_from_cache", "init_data", "assign_value", "array")
SETTINGS = ("mode", "memory_offload")  # of set_context, that change messages
QUIET = (  # callbacks, checkpoints, what changes no message
    "LossMonitor", "TimeMonitor", "ModelCheckpoint", "CheckpointConfig", "SummaryCollector", "no_init_parameters",
    "save_checkpoint", "set_ps_context", "set_dump", "reset_algo_parameters", "release", "run_check", "EarlyStopping",
    "set_offload_context", "LearningRateScheduler", "SummaryRecord", "Profiler",
)  # fmt: skip


def _line_of(ask: Callable[[], Any]) -> Any:
    return ask()


def at_line(line: int, ask: Callable[[], Any]) -> Any:
    """What `ask` gives, called as if from a line of the program: operators find their line by the calls around them."""
    return FunctionType(_line_of.__code__.replace(co_filename=PROGRAM, co_firstlineno=max(line - 1, 1)), {})(ask)


@contextmanager
def ended_after(seconds: float) -> Iterator[None]:
    """Stopped, raised in whatever runs then, be it a layer's or the compiler's own loop; where that goes on, since it
    fell into a callback that may not fail or into an `except Exception`, it is raised again after as many seconds.
    Not in what puts things back, nor in a generator: one that is thrown away half read is called as well, to close.
    """
    latest, profile, trace = time.process_time() + seconds, sys.getprofile(), sys.gettrace()

    def look(frame: Any, event: str, arg: Any) -> None:
        nonlocal latest
        if event != "call" or time.process_time() <= latest:
            return
        if frame.f_code.co_name not in ("__exit__", "__del__") and not frame.f_code.co_flags & RESUMED:
            latest = time.process_time() + seconds  # in which what was begun is put back
            sys.settrace(again)
            raise Stopped(f"more than {seconds:g} s: the rest is not read")

    def again(frame: Any, event: str, arg: Any) -> Any:
        """At the next call: Python takes away a profile function that has raised."""
        sys.settrace(trace)
        sys.setprofile(look)
        return trace and trace(frame, event, arg)

    sys.setprofile(look)
    try:
        yield
    finally:
        sys.settrace(trace)
        sys.setprofile(profile)


class ReadCell(Instance):
    """A class of the program that inherits from a Cell of ours (`_base`), as a Cell"""

    _base: ClassVar[type]
    _front: ClassVar[Any]
    kind = "module"
    names = property(vars)  # type: ignore[assignment]

    def keep(self, name: str, value: Any) -> None:
        """self.name = value"""
        setattr(self, name, self._front.given(value))

    def begin(self, args: Any, kwargs: Any) -> None:
        """Without an __init__ of its own."""
        self._base.__init__(self, *self._front.given(args), **self._front.given(kwargs))


def signature_of(node: Any, defaults: Mapping[str, Any], skipped: int = 0) -> inspect.Signature:
    """The signature of a function of the program.  skipped: parameters that are bound"""
    given, kinds = node.args, inspect.Parameter
    made = [(a.arg, kinds.POSITIONAL_OR_KEYWORD) for a in (*given.posonlyargs, *given.args)][skipped:]
    made += [(given.vararg.arg, kinds.VAR_POSITIONAL)] if given.vararg else []
    made += [(a.arg, kinds.KEYWORD_ONLY) for a in given.kwonlyargs]
    made += [(given.kwarg.arg, kinds.VAR_KEYWORD)] if given.kwarg else []
    return inspect.Signature([kinds(n, kind, default=defaults.get(n, kinds.empty)) for n, kind in made])


def hollow(shape: Iterable[int], dtype: Any = "float32") -> Tensor:
    """A tensor of zeros that take no memory."""
    return Tensor(np.broadcast_to(np.zeros((), as_dtype(dtype)), shape_of([tuple(shape)])))


class MindFront(Front):
    """MindSpore, by the facade's rules.  fixed: the number of ranks is given, and not the program's to choose"""

    def __init__(self, world: Any, devices: int, fixed: bool = True) -> None:
        super().__init__(world, devices)
        self.fixed, self.started = fixed, False
        self.made_of: dict[int, type] = {}
        self.functions: dict[int, tuple[Any, CompiledFunction]] = {}
        self.alone: dict[int, CompiledFunction] = {}  # training steps whose reducer adds up gradients
        self.at_once: list[CompiledFunction] = []  # jitted functions, which are read where no mode splits operators
        self.plans: dict[Any, tuple[Compiled, list[Message | Step]]] = {}

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Inside, settings are the program's, and this process is not a rank; reading takes `SECONDS` at most."""
        world, kept = current_world(), {key: get_context(key) for key in SETTINGS}
        set_world(None)
        try:
            with default_settings(), ended_after(SECONDS):
                reset_context()
                yield
        finally:
            set_world(world)
            reset_context()
            set_context(**kept)

    # ---- between the program's values and ours ----

    def given(self, value: Any) -> Any:
        """A value of the program, as our objects take it."""
        if isinstance(needed(value), Name):
            return self.named(value)
        if isinstance(value, (Function, Bound)):
            return self._callable(value)
        if isinstance(value, CompiledFunction):
            return value.fn
        if isinstance(value, (tuple, list)) and type(value) in (tuple, list):
            return type(value)(map(self.given, value))
        if isinstance(value, dict):
            return {key: self.given(held) for key, held in value.items()}
        if isinstance(value, Class) or isinstance(value, Instance) and not isinstance(value, ReadCell):
            raise NotRead("an object of this class is not read here")
        return value

    def got(self, value: Any) -> Any:
        """What one of our objects gives, as the program's value."""
        if isinstance(value, np.ndarray):
            return Tensor(value) if value.ndim else value.item()
        if isinstance(value, np.generic):
            return value.item()
        if isinstance(value, (tuple, list)) and type(value) in (tuple, list):
            return type(value)(map(self.got, value))
        if isinstance(value, dict):
            return {key: self.got(held) for key, held in value.items()}
        if isinstance(value, (Iterator, MappingView)):
            return [self.got(each) for each, _ in zip(value, range(SEQUENCE), strict=False)]
        if not (isinstance(value, (*PLAIN, np.dtype)) or is_ours(value)):
            raise NotRead(f"what {shorten(type(value).__name__)} holds is not read")
        return value

    def _callable(self, of: Any) -> Callable[..., Any]:
        """A function or method of the program, as ours can call it."""

        def run(*args: Any, **kwargs: Any) -> Any:
            return self.given(self.reader.call(of, [self.got(a) for a in args], kwargs))

        what = of.what if isinstance(of, Bound) else of
        if isinstance(what, Function):
            run.__signature__ = signature_of(what.node, what.defaults, int(isinstance(of, Bound)))  # type: ignore[attr-defined]
            run.__name__ = getattr(what.node, "name", "function")
        return run

    def named(self, name: Name) -> Any:
        """What a dotted name of MindSpore or numpy is. Raises NotRead where it is not read."""
        root, _, path = name.path.removeprefix("parallel_lab.").partition(".")
        if root in ("numpy", "builtins") and path in DTYPES:
            return np.dtype(DTYPES[path])
        if root != "mindspore" or not path or path.startswith("_") or "._" in path:
            raise NotRead(f"{name.path.removeprefix('builtins.')} is not read")
        found = looked_up(path)
        known = isinstance(found, (*PLAIN, np.dtype, OpDef)) or path.startswith(ROOMS) or last(name) in FUNCTIONS
        known |= isinstance(found, type) and issubclass(found, (*OBJECTS, np.generic, tuple))
        if not known or inspect.ismodule(found) or last(name).startswith(CLOSED):
            raise NotRead(f"{name.path} is not read")
        return found

    def constant(self, path: str) -> Any:
        """A dotted name, or the text or number that it stands for: ParallelMode.AUTO_PARALLEL, GRAPH_MODE."""
        held = super().constant(path)
        if isinstance(held, Name) and "mindspore" in path and re.fullmatch(r"[A-Z][A-Z_]+", last(held)):
            found = self.named(held)
            return found if isinstance(found, (str, int)) else held
        return held

    def knows(self, path: str) -> bool:
        """Whether a name of a module all of whose names are imported is one."""
        if path.startswith("builtins."):
            return super().knows(path)
        try:
            return self.found(self.calls, path) is not MISSING or self.named(Name(path)) is not None
        except NotRead:
            return False

    def made(self, of: Class) -> Instance:
        """An object of a class of the program, before its __init__."""
        base = self._base_of(of)
        if base is None:
            return Instance(of)
        if id(of) not in self.made_of:
            names = {"of": of, "_base": base, "_front": self, "__module__": "program"}
            for name in ("construct", "bprop"):
                if isinstance(method := of.find(name), Function):
                    names[name] = self._construct(method)
            self.made_of[id(of)] = type(of.name, (ReadCell, base), names)
        return self.made_of[id(of)].__new__(self.made_of[id(of)])

    def _construct(self, method: Function) -> Callable[..., Any]:
        def construct(cell: Any, *args: Any, **kwargs: Any) -> Any:
            return self.given(self.reader.run(method, [cell, *map(self.got, args)], kwargs))

        construct.__signature__ = signature_of(method.node, method.defaults)  # type: ignore[attr-defined]
        return construct

    def known(self, value: Any) -> bool:
        """Whether it is known if a value is true."""
        return not isinstance(value, Arithmetic)

    def is_a(self, value: Any, kind: Any) -> bool:
        """isinstance(value, kind)"""
        if isinstance(kind, Name) and not kind.path.startswith("builtins."):
            return isinstance(value, self.named(kind))
        return super().is_a(value, kind)

    def number(self) -> Any:
        """A number that is not known."""
        return hollow(())

    def _base_of(self, of: Class) -> type | None:
        """The first Cell of ours that a class of the program inherits from; None."""
        for each in of.lineage():
            if isinstance(each, Name) and "mindspore" in each.path:
                try:
                    found = self.named(each)
                except NotRead:
                    continue
                if isinstance(found, type) and issubclass(found, Cell):
                    return found
        return None

    # ---- what a program asks for ----

    def call(self, of: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """Call something else than a function of the program."""
        own = isinstance(of, Bound) and entry_for(self.methods, of.of, of.what) is None
        if own and isinstance(of.of, ReadCell) and isinstance(of.what, str):  # super().f(...)
            if of.what.startswith("_") and of.what != "__init__":
                raise NotRead(f"{of.what} is not read")
            return self.ask(getattr(of.of._base, of.what), [of.of, *args], kwargs)
        own = isinstance(of, (Bound, Instance)) and not isinstance(of, ReadCell)
        if own or getattr(of, "__module__", "").startswith(__package__ or "") and not isinstance(of, (Name, Cell)):
            return super().call(of, args, kwargs)
        if isinstance(of, Name):
            if self.found(self.calls, of.path) is not MISSING or of.path.startswith("builtins."):
                return super().call(of, args, kwargs)
            if last(of) in SILENT or last(of) in QUIET:
                return None
            of = self.named(of)
        return self.ask(of, args, kwargs)

    def ask(self, of: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """Call an object of ours: it is compiled, where a script would run a network; else it answers at once."""
        line, args, kwargs = self.reader.line, self.given(args), self.given(kwargs)
        traced = current_tracer.get() is not None
        splits = frozen().parallel_mode in SHARDED_MODES
        if isinstance(of, CompiledFunction) and (traced or not splits and of in self.at_once):
            of = of.fn
        if not traced and (compiled := self._compiles(of, args)) is not None:
            inner = getattr(compiled.fn, "construct", compiled.fn)
            result = self.compiled(compiled, positional(inner, tuple(args), kwargs))
            if isinstance(of, TrainOneStepCell) and compiled is self.alone.get(id(of)):
                self.reduced(of.grad_reducer, [hollow(p.full_shape, p.dtype) for p in of.weights])
            return result
        if isinstance(of, Optimizer) and not traced:
            return None  # gradients that are there already: nothing is sent
        if isinstance(of, DistributedGradReducer) and not traced:
            return args[0] if splits else self.reduced(of, args[0])
        parts = [*_leaves((args, kwargs, getattr(of, "__self__", None)))]
        sizes = [int(part.size) for part in parts if isinstance(part, Arithmetic) and not isinstance(part, Parameter)]
        numbers = [abs(part) for part in parts if type(part) is int and part]
        read = isinstance(of, FunctionType) and of.__module__ == __name__  # a function of the program
        computed = not (isinstance(of, (type, Cell)) or read or traced and sizes)
        if max(numbers, default=0) > MOST**2 or computed and max(sizes, default=1) * math.prod(numbers) > MOST:
            raise NotRead("a computation outside of networks that is too large")
        if getattr(of, "__name__", "") == "shard" and isinstance(getattr(of, "__self__", None), Primitive):
            self.world.events.append(
                Step(f"{of.__self__.name}.shard", str((*args, *kwargs.values())[0]), 0, "forward", line)
            )
        return self.got(at_line(line, lambda: of(*args, **kwargs)))

    def _compiles(self, of: Any, args: list[Any]) -> CompiledFunction | None:
        """What a script would run on its ranks when it calls this outside of a network; None."""
        if isinstance(of, (CompiledFunction, AutoParallel)):
            return of if isinstance(of, CompiledFunction) else of._compiled
        if isinstance(of, (Optimizer, DistributedGradReducer)):
            return None
        if not isinstance(of, Cell) or not any(a.ndim for a in tensors_of(tuple(args))[1]):
            by_hand = isinstance(of, Primitive) and of.op.message
            return self.compiling(of, of, settings={"parallel_mode": "data_parallel"}) if by_hand else None
        if get_context("mode") != GRAPH_MODE and frozen().parallel_mode in SHARDED_MODES:
            raise NotRead("PyNative mode, in which only what shard is given is split, is not read")
        own = type(of).construct is TrainOneStepCell.construct and isinstance(of.grad_reducer, DistributedGradReducer)
        if own and frozen().parallel_mode in LOCAL_MODES:  # runs where it stands, and adds up gradients by its reducer
            return self.alone.setdefault(id(of), self.compiling(of, of, settings={"parallel_mode": "stand_alone"}))
        return self.compiling(of, of)

    def reduced(self, of: DistributedGradReducer, grads: Any) -> Any:
        """What a training step sends that adds up gradients itself: which of them travel together."""
        if of.group is not None:
            raise NotRead("a reducer of some of the ranks is not read")
        places = [i for i, p in enumerate(of.parameters) if not p.layerwise_parallel]
        arrays = [grads[i].asnumpy() for i in places]
        for numbers in of._shared(places, arrays, [a.dtype for a in arrays]) if self.devices > 1 else ():
            whole = hollow((sum(arrays[n].size for n in numbers),), arrays[numbers[0]].dtype)
            why = f"nn.DistributedGradReducer: {of._names([places[n] for n in numbers])}"
            self.sent("all_reduce", whole, why, "sum", "backward")
        return grads

    def sent(self, kind: str, x: Any, why: str, reduce: str = "", phase: str = "forward") -> None:
        """Note a message of all ranks that no plan has."""
        about = tuple(x.shape), reduce, str(x.dtype), phase, self.reader.line, why, tuple(range(self.devices))
        self.world.events.append(Message(kind, "", *about))

    def compiling(self, key: Any, of: Any, **how: Any) -> CompiledFunction:
        """The function that compiles this; one for a Cell, however often it is called."""
        if id(key) not in self.functions:
            self.functions[id(key)] = key, CompiledFunction(of, **{"returns": "as fed", **how})
        return self.functions[id(key)][1]

    def compiled(self, function: CompiledFunction, args: tuple[Any, ...]) -> Any:
        """Note what a function would send that is called with these; tensors of the whole results' shapes."""
        line, (options, config) = self.reader.line, function._options(None)
        form, tensors = tensors_of(args)
        key = id(function), repr(form), tuple((t.shape, str(t.dtype)) for t in tensors), config
        if key not in self.plans or not still_holds(self.plans[key][0]):
            if config.parallel_mode == "stand_alone":
                options = {"parallel_mode": "stand_alone", **options}
            whole = function.returns == "as fed" and not in_training(function.fn)
            compile_ = compile_forward if whole else compile_program
            try:
                with parts_named(tensors, config):
                    made = at_line(line, lambda: compile_(of_tensors(function.fn, form), *tensors, **options))
            except ParallelLabError as error:
                if at := re.search(rf"{PROGRAM}:(\d+)", str(error)):
                    self.reader.note(int(at[1]), f"refused: {error}")
                raise
            self.plans[key] = made, events_of(made.plan, line)
        made, events = self.plans[key]
        if len(self.world.events) + len(events) > EVENTS:
            raise Stopped(f"more than {EVENTS} messages and operators: the rest is not read")
        self.world.events += events
        results = [made.plan.value(name) for name in made.plan.outputs]
        return self.got(fill_form(made.form, [hollow(v.shape, v.dtype) for v in results]))

    def invoke(self, of: Instance, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """obj(...) of an object of another class than Cell."""
        return self.ask(of, args, kwargs) if isinstance(of, ReadCell) else super().invoke(of, args, kwargs)

    def attribute(self, holder: Any, name: str) -> Any:
        """holder.name of one of our objects."""
        if entry_for(self.methods, holder, name) is not None:
            return Bound(holder, name)
        if name.startswith("_") or not is_ours(holder) or isinstance(holder, (FunctionType, MethodType)):
            raise NotRead(f".{name} is not read")
        if isinstance(holder, Arithmetic) and name in VALUES:
            raise NotRead(f"the values of a tensor (.{name}) are not read")
        return self.reader.checked(lambda: self.got(at_line(self.reader.line, lambda: getattr(holder, name))))

    def set_attribute(self, holder: Any, name: str, value: Any) -> None:
        """holder.name = value"""
        if isinstance(holder, (Cell, Parameter, Primitive)) and not name.startswith("_"):
            self.reader.checked(lambda: setattr(holder, name, self.given(value)))
        else:
            raise NotRead(f".{name} = ... is not read")

    def item(self, holder: Any, key: Any) -> Any:
        """holder[key]"""
        if isinstance(holder, (Arithmetic, Cell)):
            line, key = self.reader.line, self.given(key)
            return self.reader.checked(lambda: self.got(at_line(line, lambda: holder[key])))
        return super().item(holder, key)

    def items(self, value: Any) -> list[Any]:
        """What a loop goes through."""
        if isinstance(value, Cell) and hasattr(type(value), "__iter__"):
            return list(value)
        return super().items(value)

    def operate(self, name: str, left: Any, right: Any) -> Any:
        """left (operator) right"""
        if name in ("In", "NotIn") and isinstance(right, (tuple, list)):
            return any(left is one for one in right) is (name == "In")
        if isinstance(left, Arithmetic) or isinstance(right, Arithmetic):
            if name not in PAIRS:
                raise NotRead(f"{name} of a tensor is not read")
            return self.ask(PAIRS[name], [left, right], {})
        return super().operate(name, left, right)

    def in_place(self, holder: Any, name: str, value: Any) -> Any:
        """x += y is x = x + y."""
        return None


PAIRS = {
    "Add": operator.add, "Sub": operator.sub, "Mult": operator.mul, "Div": operator.truediv, "Mod": operator.mod,
    "FloorDiv": operator.floordiv, "Pow": operator.pow, "MatMult": operator.matmul, "Gt": operator.gt,
    "Lt": operator.lt, "GtE": operator.ge, "LtE": operator.le, "Eq": operator.eq, "NotEq": operator.ne,
    "BitAnd": operator.and_, "BitOr": operator.or_,
}  # fmt: skip


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, (tuple, list, dict)):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _leaves(part)
    else:
        yield value


def is_ours(value: Any) -> bool:
    """Whether a value is an object of a class of ours, or a function or method of ours."""
    if isinstance(value, MethodType):
        value = value.__self__
    if isinstance(value, (FunctionType, partial)):
        return isinstance(value, partial) or str(value.__module__).startswith("parallel_lab.")
    return isinstance(value, OBJECTS) or str(type(value).__module__).startswith(LIBRARY)


def looked_up(path: str) -> Any:
    """What the facade has at a path. Raises NotRead: nothing."""
    try:
        found = from_above("mindspore_name")(path)
    except (AttributeError, ImportError) as error:
        raise NotRead(shorten(str(error), 200)) from None
    if type(found).__name__ == "Missing":
        raise NotRead(f"{path} is not available here")
    return found


def events_of(plan: Any, called: int) -> list[Message | Step]:
    """What rank 0 computes and sends in a step of a plan.  called: the line of what no line of a network asked for"""
    view, found = rank_view(plan, 0), []

    def line(entry: Any) -> int:
        origin = entry["origin"]
        return origin["line"] if origin["file"] == PROGRAM else called

    for op in view["ops"]:
        if op["phase"] == "forward":
            value = plan.value_table.get(op["name"])
            parts = ", ".join(map(str, op["in_slice"] or ()))
            how = f"{tuple(map(tuple, op['strategy']))}: " if op["strategy"] is not None else ""
            layouts = f"{how}{parts} -> {', '.join(map(str, op['out_slice'] or ()))}"
            size = 0 if value is None else value.slice_bytes
            found.append(Step(f"{op['op']} {op['name']}", layouts, size, "forward", line(op), op.get("reason", "")))
    for bucket, several in groupby(view["comm"], lambda sent: sent["bucket"]):
        for sent in _together([*several]) if bucket else several:
            if group := tuple(sent["group"]):
                some = group if len(group) < 9 else (*group[:3], "...", group[-1])
                axis = "" if len(group) == plan.device_num else f"ranks {', '.join(map(str, some))}"
                arrives = sent["kind"] == "recv"
                shape = tuple(sent["out_shape" if arrives else "in_shape"])
                what = sent["kind"], axis, shape, sent["reduce"] or "", sent["dtype"], sent["phase"]
                found.append(Message(*what, line(sent), sent["reason"], group, None if arrives else sent["bytes"]))
    return found


def _together(members: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Parts that travel together, as one message."""
    size, names = sum(m["bytes"] for m in members), ", ".join(m["parameter"] for m in members)
    shape = [size // as_dtype(members[0]["dtype"]).itemsize]
    return [members[0] | {"bytes": size, "in_shape": shape, "reason": f"{members[0]['reason']}; together: {names}"}]
