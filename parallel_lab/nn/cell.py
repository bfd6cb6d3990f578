"""`Cell`: a network or a part of one, with the Parameters, Cells and Primitives that were assigned to it.

    class Net(Cell):
        def __init__(self):
            super().__init__()
            self.weight = Parameter(initializer("normal", [32, 16]), "w")
            self.matmul = ops.MatMul().shard(((2, 4), (4, 1)))

        def construct(self, x):
            return self.matmul(x, self.weight)

Calling a Cell runs `construct` at once. While a network is traced, the tracer is told of every Cell that is entered and left, which gives operators
their scope ("_backbone-Net/d1-Dense").

Names follow MindSpore (nn.Cell, update_parameters_name): a Parameter of the outermost Cell keeps its own name, or takes its attribute's if it has
none; one in a Cell that was assigned to another Cell is named by its path of attributes, "blocks.0.w".
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from .. import ops
from ..context import cell_runner, current_tracer, current_world, held_messages
from ..errors import ArgumentError, ArgumentTypeError, CellError, message, shorten
from ..ops.placement import refuse_recompute
from ..ops.registry import Primitive
from ..ops.together import holding_messages
from ..tensor import Parameter, ParameterTuple
from .checks import whole_number

__all__ = ["Cell"]

UNNAMED = "Parameter"  # the name of a Parameter that was given none


class Cell:
    """Base of every network and layer. Override `construct`.

    auto_prefix  give Parameters of child Cells the path of attributes as their name

    Attributes: `cell_name` (the attribute under which the parent holds this Cell, "" for the outermost), `training` (set by `set_train`),
    `pipeline_stage` (int, or None: as its inputs), `recompute_options` (dict once `recompute` was called, else None), `compute_dtype` (set by
    `to_float`; None: as its inputs).
    """

    _pipeline_stage: int | None = None
    compute_dtype: str | None = None
    # Parameters that `to_float` leaves as they are: running statistics, which the Cell itself changes
    keep_dtype: tuple[str, ...] = ("moving_mean", "moving_variance")
    recompute_options: dict[str, bool] | None = None
    # A Cell that is never called itself (CellList) is entered by its children, so that their scope names it.
    _is_called = True

    def __init__(self, auto_prefix: bool = True) -> None:
        self.__dict__.update(
            _cells={}, _params={}, _primitives={}, _auto_prefix=bool(auto_prefix), _prefix="", _holder=None, cell_name="", training=False
        )

    # ---- running ----

    def construct(self, *args: Any, **kwargs: Any) -> Any:
        """The computation; every subclass defines its own."""
        raise CellError(
            message(
                f"{type(self).__name__} has no construct",
                where=self._where(),
                hint="Define `def construct(self, x): ...` with what the Cell computes",
            )
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self._registry("_cells")
        tracer = current_tracer.get()
        construct = self.construct if self.compute_dtype is None else self._construct_in_dtype
        if tracer is None:
            if self.recompute_options is not None:
                refuse_recompute(type(self).__name__)
            compiled = cell_runner()(self, args, kwargs)
            if compiled is not NotImplemented:
                return compiled
            if current_world() is None or held_messages.get() is not None:
                return construct(*args, **kwargs)
            with holding_messages():  # the outermost Cell: operators with a fusion number may wait for others until it ends
                return construct(*args, **kwargs)
        entered = self._entered()
        for cell in entered:
            tracer.enter(cell)
        try:
            return construct(*args, **kwargs)
        finally:
            for _ in entered:
                tracer.leave()

    def _construct_in_dtype(self, *args: Any, **kwargs: Any) -> Any:
        """`construct` on inputs in `compute_dtype`, and with `self.weight` reading as the Parameter in that dtype."""
        # Taken out of __dict__, a Parameter is asked for through __getattr__, which casts it when, and only if, construct reads it.
        hidden = {n: p for n, p in self._params.items() if self.__dict__.get(n) is p and p.dtype.kind == "f" and n not in self.keep_dtype}
        outer = self.__dict__.get("_casts")
        for name in hidden:
            del self.__dict__[name]
        self.__dict__["_casts"] = {}
        try:
            return self.construct(*(self._in_dtype(a) for a in args), **{k: self._in_dtype(a) for k, a in kwargs.items()})
        finally:
            self.__dict__.update(hidden, _casts=outer)

    def _in_dtype(self, value: Any) -> Any:
        """A float tensor, also inside lists and tuples, cast to `compute_dtype`; anything else as it is."""
        if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
            return type(value)(self._in_dtype(v) for v in value)
        dtype = str(getattr(value, "dtype", ""))
        return ops.cast(value, dtype=self.compute_dtype) if dtype.startswith("float") and dtype != self.compute_dtype else value

    def _entered(self) -> list[Cell]:
        """The Cells whose border a call crosses, outermost first: this one, after the lists that hold it."""
        found: list[Cell] = [self]
        while found[0]._holder is not None:
            found.insert(0, found[0]._holder)
        return found

    # ---- attributes ----

    def _where(self) -> str:
        path = (self.__dict__.get("_prefix") or "").rstrip(".")
        return f"{type(self).__name__} {path!r}" if path else type(self).__name__

    def _registry(self, name: str) -> dict[str, Any]:
        """One of the three dicts of what was assigned; CellError if `Cell.__init__` has not run."""
        try:
            return self.__dict__[name]
        except KeyError:
            raise CellError(
                message(
                    "the Cell is used before super().__init__()", where=type(self).__name__, hint="Make super().__init__() the first line of __init__"
                )
            ) from None

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, (Cell, Parameter, ParameterTuple, Primitive)):
            self._registry("_cells")
            self._release(name, value)
            if isinstance(value, Cell):
                self._add_cell(name, value)
            elif isinstance(value, Parameter):
                self._add_parameter(name, value)
            elif isinstance(value, ParameterTuple):
                self._add_parameter_tuple(name, value)
            else:
                self._primitives[name] = value
                value.instance_name = value.instance_name or name
        elif "_cells" in self.__dict__:
            self._release(name, value)
        object.__setattr__(self, name, value)

    def __delattr__(self, name: str) -> None:
        self._release(name, None)
        object.__delattr__(self, name)

    def __getattr__(self, name: str) -> Any:
        # Only reached when the attribute is missing.
        casts = self.__dict__.get("_casts")
        if casts is not None and name in self._params:
            if name not in casts:
                casts[name] = self._in_dtype(self._params[name])
            return casts[name]
        if "_cells" not in self.__dict__ and not name.startswith("__"):
            self._registry("_cells")
        near = difflib.get_close_matches(name, [n for n in dir(self) if not n.startswith("_")], 1)
        raise CellError(
            message(
                f"there is no attribute {name!r}",
                where=self._where(),
                hint=f"Did you mean {near[0]!r}?" if near else "Assign it in __init__, after super().__init__()",
            ),
            name=name,
            obj=self,
        )

    def _release(self, name: str, value: Any) -> None:
        """Forget what was registered under `name`, so that `value` can take its place."""
        old = self.__dict__.get(name)
        for kind, registry in ((Parameter, self._params), (Cell, self._cells), (Primitive, self._primitives)):
            if name not in registry or isinstance(value, kind):
                continue  # one of the same kind takes the place of the old one, at its position
            fits = value is None or kind is Primitive or (kind is Cell and callable(value))
            if not fits:
                allowed = f"{name!r} is a {kind.__name__}; it can be replaced by another one, or by None"
                hint = f"Change its values with {name}.set_data(...)" if kind is Parameter else ""
                raise ArgumentTypeError(message(f"{shorten(value)} assigned to {name!r}", where=self._where(), allowed=allowed, hint=hint))
            del registry[name]
        if isinstance(old, ParameterTuple):
            gone = {id(p) for p in old}
            for key in [k for k, p in self._params.items() if id(p) in gone]:
                del self._params[key]

    def _add_cell(self, name: str, cell: Cell) -> None:
        cell._registry("_cells")
        if any(c is self for _, c in cell.cells_and_names()):
            raise ArgumentError(
                message(f"the Cell assigned to {name!r} contains this Cell", where=self._where(), hint="A Cell cannot be inside itself")
            )
        others = [c for n, c in self._cells.items() if n != name]
        if not any(c is cell for c in others):
            cell.__dict__["cell_name"] = name
            cell.__dict__["_holder"] = None if self._is_called else self
        if self._auto_prefix:
            owned = {id(p) for p in self._params.values()} | {id(p) for c in others for _, p in c._paths()}
            prefix = f"{self._prefix}{name}."
            for path, part in list(cell.cells_and_names()):
                part.__dict__["_prefix"] = f"{prefix}{path}." if path else prefix
            for path, parameter in cell._paths():
                if id(parameter) not in owned:
                    parameter.name = prefix + path
        self._cells[name] = cell

    def _add_parameter(self, name: str, parameter: Parameter) -> None:
        if self.__dict__.get(name) is not self._params.get(name):  # the name was given by a ParameterTuple
            self._refuse_collision(name, parameter)
        # A Cell that already has its place gives new Parameters their path; a dot means that another Cell has named this one.
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
            raise ArgumentError(
                message(f"two Parameters are registered as {key!r}", where=self._where(), hint="Give each its own name: Parameter(..., name='...')")
            )

    def insert_child_to_cell(self, child_name: str, child_cell: Cell) -> None:
        """Register a child Cell under a name, as assigning the attribute does. The name must be free and without dots."""
        self._check_name(child_name, "insert_child_to_cell")
        if not isinstance(child_cell, Cell):
            raise ArgumentTypeError(message(f"child {shorten(child_cell)}", where="insert_child_to_cell", allowed="A Cell"))
        setattr(self, child_name, child_cell)

    def insert_param_to_cell(self, param_name: str, param: Parameter) -> None:
        """Register a Parameter under a name, as assigning the attribute does. The name must be free and without dots."""
        self._check_name(param_name, "insert_param_to_cell")
        if not isinstance(param, Parameter):
            raise ArgumentTypeError(message(f"parameter {shorten(param)}", where="insert_param_to_cell", allowed="A Parameter"))
        setattr(self, param_name, param)

    def _check_name(self, name: Any, where: str) -> None:
        if not isinstance(name, str):
            raise ArgumentTypeError(message(f"name {shorten(name)}", where=where, allowed="A str"))
        if not name or "." in name or hasattr(self, name):
            raise ArgumentError(message(f"name {name!r}", where=where, allowed="A free, non-empty name without dots"))

    # ---- what it holds ----

    def cells(self) -> Iterable[Cell]:
        """The child Cells, each once, in order of assignment."""
        return self.name_cells().values()

    def name_cells(self) -> dict[str, Cell]:
        """{attribute: child Cell}, each Cell once."""
        found: dict[int, tuple[str, Cell]] = {}
        for name, cell in self._registry("_cells").items():
            found.setdefault(id(cell), (name, cell))
        return dict(found.values())

    def cells_and_names(self, name_prefix: str = "") -> Iterator[tuple[str, Cell]]:
        """(path, Cell) for this Cell (path: `name_prefix`) and all below, each once, parents first."""
        seen: set[int] = set()
        stack: list[tuple[str, Cell]] = [(name_prefix, self)]
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
        found: dict[int, tuple[str, Parameter]] = {}
        for path, cell in self.cells_and_names() if expand else [("", self)]:
            for name, parameter in cell._registry("_params").items():
                found.setdefault(id(parameter), (f"{path}.{name}" if path else name, parameter))
        return list(found.values())

    def parameters_and_names(self, name_prefix: str = "", expand: bool = True) -> Iterator[tuple[str, Parameter]]:
        """(path of attributes, Parameter), each Parameter once; expand=False: those of this Cell alone.

        Raises ArgumentError (a ValueError) if two different Parameters have the same name.
        """
        paths = self._paths(expand)
        first: dict[str, str] = {}
        for path, parameter in paths:
            if parameter.name in first:
                raise ArgumentError(
                    message(
                        f"two Parameters are named {parameter.name!r}: {first[parameter.name]!r} and {path!r}",
                        where=self._where(),
                        hint="Give each its own name: Parameter(..., name='...')",
                    )
                )
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

    def update_parameters_name(self, prefix: str = "", recurse: bool = True) -> None:
        """Name every Parameter `prefix` + its path of attributes (MindSpore's rule: the own name of a Parameter is replaced)."""
        if not isinstance(prefix, str):
            raise ArgumentTypeError(message(f"prefix {shorten(prefix)}", where="update_parameters_name", allowed="A str such as 'backbone.'"))
        for path, parameter in self._paths(recurse):
            parameter.name = prefix + path
        for path, cell in self.cells_and_names() if recurse else [("", self)]:
            cell.__dict__["_prefix"] = f"{prefix}{path}." if path else prefix

    # ---- settings ----

    def set_train(self, mode: bool = True) -> Cell:
        """Set `training` here and below. Returns self."""
        if not isinstance(mode, bool):
            raise ArgumentTypeError(message(f"mode={shorten(mode)}", where="set_train", allowed="True or False"))
        for _, cell in self.cells_and_names():
            cell.training = mode
        return self

    def set_grad(self, requires_grad: bool = True) -> Cell:
        """Accepted for scripts that call it: gradients are asked for by function (`value_and_grad`), a Cell needs no preparation. Returns self."""
        if not isinstance(requires_grad, bool):
            raise ArgumentTypeError(message(f"requires_grad={shorten(requires_grad)}", where="set_grad", allowed="True or False"))
        return self

    def add_flags(self, **flags: Any) -> Cell:
        """Accepted for scripts that speak to MindSpore's graph compiler (defer_inline, ...): each becomes an attribute. Returns self."""
        for name, value in flags.items():
            setattr(self, name, value)
        return self

    @property
    def pipeline_stage(self) -> int | None:
        return self._pipeline_stage

    @pipeline_stage.setter
    def pipeline_stage(self, value: int | None) -> None:
        self.__dict__["_pipeline_stage"] = None if value is None else whole_number(value, self._where(), "pipeline_stage", 0)

    def set_comm_fusion(self, fusion_type: int, recurse: bool = True) -> Cell:
        """Give every trainable Parameter here (and below) this fusion id: gradients with equal ids travel in one message, 0 alone. Returns self."""
        fusion_type = whole_number(fusion_type, "set_comm_fusion", "fusion_type", 0)
        for parameter in self.trainable_params(recurse):
            parameter.comm_fusion = fusion_type
        return self

    def to_float(self, dst_type: Any) -> Cell:
        """Compute in float16, float32 or float64 here and below: inputs and Parameters are cast where they are used. Returns self.

        Parameters keep their own dtype, and so do their gradients and updates. Loss scaling (`amp.py`) belongs to float16.
        """
        try:
            dtype = str(np.dtype(dst_type)) if dst_type is not None else ""
        except TypeError:
            dtype = ""
        if dtype not in ("float16", "float32", "float64"):
            raise ArgumentError(message(f"dst_type={shorten(dst_type)}", where="to_float", allowed="float16, float32 or float64"))
        for _, cell in self.cells_and_names():
            cell.compute_dtype = dtype
        return self

    def recompute(self, **options: bool) -> None:
        """Ask the compiler to recompute this Cell's operators in the backward pass instead of keeping their results.

        mp_comm_recompute (default True), parallel_optimizer_comm_recompute, recompute_slice_activation (default False): bools.
        Recorded as `recompute_options`. Recomputing is not built yet: on one device the Cell runs as ever, a compiled step and a gradient on a rank
        raise NotBuiltYet. Unknown options raise ArgumentError, non-bools ArgumentTypeError.
        """
        known = {"mp_comm_recompute": True, "parallel_optimizer_comm_recompute": False, "recompute_slice_activation": False}
        for key, value in options.items():
            if key not in known:
                raise ArgumentError(message(f"option {key!r} is not known", where="recompute", allowed=f"Options: {', '.join(known)}"))
            if not isinstance(value, bool):
                raise ArgumentTypeError(message(f"{key}={shorten(value)}", where="recompute", allowed="True or False"))
        self.recompute_options = {**known, **options}

    def shard(
        self,
        in_strategy: tuple[Any, ...],
        out_strategy: tuple[Any, ...] | None = None,
        parameter_plan: dict[str, Any] | None = None,
        device: str = "Ascend",
        level: int = 0,
    ) -> Cell:
        """This Cell with its inputs cut as told, to be called in its place; see `nn.shard`."""
        from .sharded import shard  # a ShardedCell is a Cell

        return shard(self, in_strategy, out_strategy, parameter_plan, device, level)

    # ---- text ----

    def extend_repr(self) -> str:
        """What `repr` shows between the brackets before the children; layers override it."""
        return ""

    def __repr__(self) -> str:
        own = self.extend_repr()
        if not self._registry("_cells"):
            return f"{type(self).__name__}({own})"
        lines = [own] if own else []
        lines += [f"({name}): " + repr(child).replace("\n", "\n  ") for name, child in self._cells.items()]
        return f"{type(self).__name__}(\n  " + "\n  ".join(lines) + "\n)"
