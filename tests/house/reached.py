"""Which operators are reached: from the rooms above, by what functions, classes and tables of objects refer to.

Objects are walked, not texts: a function refers to the globals that its code loads, to attributes of modules among
them, to what it closes over and to its defaults; an operator to all functions of its declaration. Methods of a Tensor
that are called by name (`x.median()`) are not seen.
"""

import ast
import dis
import functools
import importlib
import json
import types
from collections.abc import Iterable, Iterator
from typing import Any

from parallel_lab.ops.machine.opdef import OpDef
from parallel_lab.ops.machine.primitive import Primitive
from parallel_lab.ops.machine.tables import Table
from parallel_lab.ops.spellings import NAMES, TensorMethods
from tests.house.source import ROOT, all_modules, files

FAMILIES = ("parallel_lab.ops.", "parallel_lab.catalog.ops.")
MACHINE = ("parallel_lab.ops.machine", "parallel_lab.ops.collectives", "parallel_lab.ops.kernels")
CONTAINERS = (list, tuple, set, frozenset)


def codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """A code object and those of the functions in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from codes(constant)


def loaded(function: types.FunctionType) -> Iterator[Any]:
    """What the code of a function loads: globals, attributes of modules, entries of tables whose names it writes."""
    for code in codes(function.__code__):
        current: Any = None
        for step in dis.get_instructions(code):
            if step.opname == "LOAD_GLOBAL":
                current = function.__globals__.get(step.argval)
                if isinstance(current, Table):
                    yield from (dict.get(current, name) for name in code.co_consts if isinstance(name, str))
            elif step.opname in ("LOAD_ATTR", "LOAD_METHOD") and isinstance(current, types.ModuleType):
                current = vars(current).get(step.argval)
            else:
                current = None
            if current is not None and not isinstance(current, types.ModuleType):
                yield current


def parts(thing: Any) -> Iterable[Any]:
    """What an object refers to; what the catalogue has put into a table of a room below is not that room's."""
    if isinstance(thing, types.FunctionType) and str(thing.__module__).startswith("parallel_lab.catalog"):
        return []
    if isinstance(thing, types.FunctionType):
        cells = [cell.cell_contents for cell in thing.__closure__ or () if cell != types.CellType()]
        return [*loaded(thing), *cells, *(thing.__defaults__ or ()), *(thing.__kwdefaults__ or {}).values()]
    if isinstance(thing, functools.partial):
        return [thing.func, *thing.args, *thing.keywords.values()]
    if isinstance(thing, OpDef):
        return [value for key, value in vars(thing).items() if key != "primitives"]
    if isinstance(thing, type):
        own = [value for key, value in vars(thing).items() if key != "__weakref__"]
        return [*own, *thing.__bases__] if ours(thing) and thing is not TensorMethods else []
    if isinstance(thing, property):
        return [thing.fget, thing.fset]
    if isinstance(thing, (staticmethod, classmethod)):
        return [thing.__func__]
    if isinstance(thing, functools.cached_property):
        return [thing.func]
    if isinstance(thing, dict):
        return [] if isinstance(thing, Table) else thing.values()
    if isinstance(thing, CONTAINERS):
        return thing
    return vars(thing).values() if ours(type(thing)) and "__dict__" in dir(type(thing)) else []


def ours(thing: Any) -> bool:
    return str(getattr(thing, "__module__", "")).startswith("parallel_lab")


def notebooks() -> Iterator[Any]:
    """What the code of notebooks names behind a dot: `ops.matmul`, `nn.Dense`; MindSpore's scripts use the facade."""
    faces = {name: importlib.import_module(f"parallel_lab.{name}") for name in ("ops", "nn")}
    for path in files(ROOT / "notebooks", ".ipynb"):
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
            lines = [line for line in cell["source"] if not line.lstrip().startswith(("%", "!"))]
            if cell["cell_type"] == "code" and "--as-mindspore" not in "".join(cell["source"][:1]):
                for node in ast.walk(ast.parse("".join(lines))):
                    if isinstance(node, ast.Attribute):
                        face = faces.get(ast.unparse(node.value).rpartition(".")[2])
                        yield getattr(face, node.attr, None)


def seeds(rooms: Iterable[str]) -> Iterator[Any]:
    """What the modules of rooms define, what notebooks name, Python's operators of Tensors, the machine."""
    yield from notebooks()
    yield from (value for name, value in vars(TensorMethods).items() if name.startswith("__"))
    for name in all_modules():
        if name.startswith(MACHINE) or name.split(".")[1:2] in [[room] for room in rooms]:
            if "__main__" in name or "_config" in name:
                continue
            module = importlib.import_module(name)
            if name in ("parallel_lab.nn", "parallel_lab.ops"):
                continue
            yield from vars(module).values()


def reached(rooms: Iterable[str]) -> set[int]:
    """The identities of all objects that are reached from `rooms`."""
    seen: dict[int, Any] = {}
    todo = list(seeds(rooms))
    while todo:
        thing = todo.pop()
        if thing is None or id(thing) in seen or isinstance(thing, (str, bytes, int, float, types.ModuleType)):
            continue
        seen[id(thing)] = thing
        if isinstance(thing, type) and issubclass(thing, Primitive) and hasattr(thing, "op"):
            todo += [thing.op, *vars(thing).values()]
            continue
        todo.extend(parts(thing))
        if isinstance(thing, OpDef):  # the function under its name may be another one, with more arguments
            todo.append(dict.get(NAMES, thing.name))
    return set(seen)
