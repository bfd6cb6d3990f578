"""`CellTree`: what a Cell holds, by the attributes it was assigned to, and the names that follow from that.

As in MindSpore (update_parameters_name) a Parameter of the outermost Cell keeps its name or takes its attribute's;
one in a Cell assigned to another is named by its path, "blocks.0.w".
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar

from ..base.checks import checked, fitting, flag, instance, text
from ..base.errors import ArgumentError, ArgumentTypeError, CellError, shorten
from ..base.hooks import open_catalog
from ..ops.machine.primitive import Primitive
from ..ops.writes import assign
from .tensor.arithmetic import Arithmetic
from .tensor.parameter import UNNAMED, Parameter, ParameterTuple

# what the catalogue puts on Cell (`catalog/nn/cell_state.py`), and on PipelineCell (`wrap.py` there)
STATE = ["register_buffer", "named_buffers", "buffers", "get_buffer", "state_dict", "load_state_dict", "micro_inputs"]
OWN_NAMES = "Give each its own name: Parameter(..., name='...')"


class CellTree:
    """The Parameters, Cells and Primitives assigned to a Cell: the half of `Cell` that is not about running."""

    # A Cell that is never called itself (CellList) is entered by its children, so that their scope names it.
    _is_called = True
    # Names by which scripts for MindSpore shard operators of a layer: the attribute here, or the class of an operator
    # that MindSpore's layer holds and this one does not run
    other_names: ClassVar[Mapping[str, str | type[Primitive]]] = {}

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        own = vars(cls).get("__init__")
        if own is not None and cls.__module__.startswith("parallel_lab.") and not hasattr(own, "__wrapped__"):
            cls.__init__ = fitting(own)  # type: ignore[method-assign]

    @fitting
    def __init__(self, auto_prefix: bool = True, flags: dict[str, Any] | None = None) -> None:
        self.__dict__.update(_cells={}, _params={}, _primitives={}, cell_name="", training=False)
        self.__dict__.update(
            _auto_prefix=flag(type(self).__name__, "auto_prefix", auto_prefix), _prefix="", _holder=None
        )
        if flags is not None:
            self.add_flags(**instance(dict, "A dict")(type(self).__name__, "flags", flags))

    # ---- attributes ----

    def _where(self) -> str:
        path = (self.__dict__.get("_prefix") or "").rstrip(".")
        return f"{type(self).__name__} {path!r}" if path else type(self).__name__

    def _registry(self, name: str) -> dict[str, Any]:
        """One of the three dicts of what was assigned; CellError if `Cell.__init__` has not run."""
        try:
            return self.__dict__[name]
        except KeyError:
            what = "the Cell is used before super().__init__()"
            hint = "Make super().__init__() the first line of __init__"
            raise CellError(what, where=type(self).__name__, hint=hint) from None

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, (CellTree, Parameter, ParameterTuple, Primitive)):
            self._registry("_cells")
            self._release(name, value)
            if isinstance(value, CellTree):
                self._add_cell(name, value)
            elif isinstance(value, Parameter):
                self._add_parameter(name, value)
            elif isinstance(value, ParameterTuple):
                self._add_parameter_tuple(name, value)
            else:
                self._primitives[name] = value
                value.instance_name = value.instance_name or name
        elif "_cells" in self.__dict__:
            held = self._params.get(name)
            number = isinstance(value, (bool, int, float)) and held is not None and not held.full_shape
            if held is not None and (number or isinstance(value, Arithmetic)):
                assign(held, value)  # `self.count += 1` in construct, as in MindSpore
                return
            self._release(name, value)
        object.__setattr__(self, name, value)

    def __delattr__(self, name: str) -> None:
        self._release(name, None)
        object.__delattr__(self, name)

    def __getattr__(self, name: str) -> Any:
        # Only reached when the attribute is missing.
        if "_cells" not in self.__dict__ and not name.startswith("__"):
            self._registry("_cells")
        other = self.other_names.get(name)
        if isinstance(other, str):
            return getattr(self, other)
        if other is not None:
            setattr(self, name, other())
            return self.__dict__[name]
        if name in STATE and not hasattr(type(self), name) and (open_catalog() or hasattr(type(self), name)):
            return getattr(self, name)
        near = difflib.get_close_matches(name, [n for n in dir(self) if not n.startswith("_")], 1)
        hint = f"Did you mean {near[0]!r}?" if near else "Assign it in __init__, after super().__init__()"
        raise CellError(f"there is no attribute {name!r}", where=self._where(), hint=hint, name=name, obj=self)

    def _release(self, name: str, value: Any) -> None:
        """Forget what was registered under `name`, so that `value` can take its place."""
        old = self.__dict__.get(name)
        for kind, registry in ((Parameter, self._params), (CellTree, self._cells), (Primitive, self._primitives)):
            if name not in registry or isinstance(value, kind):
                continue  # one of the same kind takes the place of the old one, at its position
            fits = value is None or kind is Primitive or (kind is CellTree and callable(value))
            if not fits:
                held = "Cell" if kind is CellTree else kind.__name__
                allowed = f"{name!r} is a {held}; it can be replaced by another one, or by None"
                hint = f"Change its values with {name}.set_data(...)" if kind is Parameter else ""
                what = f"{shorten(value)} assigned to {name!r}"
                raise ArgumentTypeError(what, where=self._where(), allowed=allowed, hint=hint)
            del registry[name]
        if isinstance(old, ParameterTuple):
            gone = {id(p) for p in old}
            for key in [k for k, p in self._params.items() if id(p) in gone]:
                del self._params[key]

    def _add_cell(self, name: str, cell: CellTree) -> None:
        cell._registry("_cells")
        if any(c is self for _, c in cell.cells_and_names()):
            what = f"the Cell assigned to {name!r} contains this Cell"
            raise ArgumentError(what, where=self._where(), hint="A Cell cannot be inside itself")
        others = {n: c for n, c in self._cells.items() if n != name}
        if cell not in others.values():
            cell.__dict__["cell_name"] = name
            cell.__dict__["_holder"] = None if self._is_called else self
        if self._auto_prefix:
            held = [*self._params.items(), *((f"{n}.{path}", p) for n, c in others.items() for path, p in c._paths())]
            first = {id(p): self._prefix + path for path, p in reversed(held)}
            prefix = f"{self._prefix}{name}."
            for path, part in list(cell.cells_and_names()):
                part.__dict__["_prefix"] = f"{prefix}{path}." if path else prefix
            for path, parameter in cell._paths():
                if id(parameter) not in first or parameter.name == path:  # a shared one is named by its first place
                    parameter.name = first.get(id(parameter), prefix + path)
        self._cells[name] = cell

    def _add_parameter(self, name: str, parameter: Parameter) -> None:
        if self.__dict__.get(name) is not self._params.get(name):  # the name was given by a ParameterTuple
            self._refuse_collision(name, parameter)
        # A Cell with a place gives new Parameters their path; a dot means that another Cell has named this one.
        if parameter.name == UNNAMED or (self._prefix and "." not in parameter.name):
            parameter.name = self._prefix + name
        self._params[name] = parameter

    def _add_parameter_tuple(self, name: str, parameters: ParameterTuple) -> None:
        for i, parameter in enumerate(parameters):
            if parameter.name == UNNAMED:
                parameter.name = f"{self._prefix}{name}.{i}"
                self._params[f"{name}.{i}"] = parameter
                continue
            key = parameter.name
            if any(p is parameter for p in self._params.values()):
                continue
            self._refuse_collision(key, parameter)
            if "." not in key:
                parameter.name = self._prefix + key
            self._params[key] = parameter

    def _refuse_collision(self, key: str, parameter: Parameter) -> None:
        if self._params.get(key, parameter) is not parameter:
            raise ArgumentError(f"two Parameters are registered as {key!r}", where=self._where(), hint=OWN_NAMES)

    def insert_child_to_cell(self, child_name: str, child_cell: CellTree) -> None:
        """Register a child Cell under a name, as assigning the attribute does: a free name without dots."""
        self._insert(child_name, child_cell, "insert_child_to_cell", CellTree, "A Cell")

    def insert_param_to_cell(self, param_name: str, param: Parameter) -> None:
        """Register a Parameter under a name, as assigning the attribute does: a free name without dots."""
        self._insert(param_name, param, "insert_param_to_cell", Parameter, "A Parameter")

    def _insert(self, name: str, value: Any, where: str, kind: type, allowed: str) -> None:
        text(where, "name", name)
        if not name or "." in name or hasattr(self, name):
            raise ArgumentError(f"name {name!r}", where=where, allowed="A free, non-empty name without dots")
        setattr(self, name, instance(kind, allowed)(where, name, value))

    # ---- what it holds ----

    def cells(self) -> Iterable[CellTree]:
        """The child Cells, each once, in order of assignment."""
        return self.name_cells().values()

    def name_cells(self) -> dict[str, CellTree]:
        """{attribute: child Cell}, each Cell once."""
        places: dict[int, tuple[str, CellTree]] = {}
        for name, cell in self._registry("_cells").items():
            places.setdefault(id(cell), (name, cell))
        return dict(places.values())

    def cells_and_names(self, name_prefix: str = "") -> Iterator[tuple[str, CellTree]]:
        """(path, Cell) for this Cell (path: `name_prefix`) and all below, each once, parents first."""
        seen: set[int] = set()
        stack: list[tuple[str, CellTree]] = [(name_prefix, self)]
        while stack:
            path, cell = stack.pop()
            if id(cell) in seen:
                continue
            seen.add(id(cell))
            yield path, cell
            children = cell._registry("_cells").items()
            stack.extend((f"{path}.{name}" if path else name, child) for name, child in reversed(children))

    def _paths(self, expand: bool = True) -> list[tuple[str, Parameter]]:
        """(path, Parameter), each Parameter once, names unchecked."""
        paths: dict[int, tuple[str, Parameter]] = {}
        flag(self._where(), "expand (or recurse)", expand)
        for path, cell in self.cells_and_names() if expand else [("", self)]:
            for name, parameter in cell._registry("_params").items():
                paths.setdefault(id(parameter), (f"{path}.{name}" if path else name, parameter))
        return list(paths.values())

    def parameters_and_names(self, name_prefix: str = "", expand: bool = True) -> Iterator[tuple[str, Parameter]]:
        """(path of attributes, Parameter), each once; expand=False: only this Cell's. ArgumentError for equal names."""
        name_prefix, paths = text(self._where(), "name_prefix", name_prefix), self._paths(expand)
        if elsewhere := self.__dict__.get("_elsewhere"):  # on other stages than that it was compiled for
            paths = [(path, parameter) for path, parameter in paths if parameter.name not in elsewhere]
        first: dict[str, str] = {}
        for path, parameter in paths:
            if parameter.name in first:
                what = f"two Parameters are named {parameter.name!r}: {first[parameter.name]!r} and {path!r}"
                raise ArgumentError(what, where=self._where(), hint=OWN_NAMES)
            first[parameter.name] = path
        return iter([(f"{name_prefix}.{path}" if name_prefix else path, parameter) for path, parameter in paths])

    def get_parameters(self, expand: bool = True) -> Iterator[Parameter]:
        """Every Parameter once; expand=False: those of this Cell alone."""
        return iter([parameter for _, parameter in self.parameters_and_names(expand=expand)])

    def trainable_params(self, recurse: bool = True) -> list[Parameter]:
        """The Parameters with requires_grad."""
        return [p for p in self.get_parameters(expand=recurse) if p.requires_grad]

    def untrainable_params(self, recurse: bool = True) -> list[Parameter]:
        """The Parameters without requires_grad."""
        return [p for p in self.get_parameters(expand=recurse) if not p.requires_grad]

    def parameters_dict(self, recurse: bool = True) -> dict[str, Parameter]:
        """{Parameter name: Parameter}."""
        return {p.name: p for p in self.get_parameters(expand=recurse)}

    def check_names(self) -> None:
        """Raise ArgumentError if two Parameters have one name."""
        self.parameters_and_names()

    @property
    def param_prefix(self) -> str:
        """Where the Cell stands in the outermost one, as the names of its Parameters begin: "blocks.0"."""
        return self.__dict__["_prefix"].rstrip(".")

    @property
    def cls_name(self) -> str:
        """The name of the class."""
        return type(self).__name__

    @checked("update_parameters_name", prefix=text)
    def update_parameters_name(self, prefix: str = "", recurse: bool = True) -> None:
        """Name every Parameter `prefix` + its path of attributes, instead of its own name (MindSpore's rule)."""
        for path, parameter in self._paths(recurse):
            parameter.name = prefix + path
        for path, cell in self.cells_and_names() if recurse else [("", self)]:
            cell.__dict__["_prefix"] = f"{prefix}{path}." if path else prefix

    @property
    def inlined_late(self) -> bool:
        """Whether its `__init__`, or that of a class it derives from, is decorated by mindspore.lazy_inline."""
        return any(hasattr(vars(kind).get("__init__"), "lazy_inline") for kind in type(self).__mro__)
