"""`Cell`: a network or a part of one, with the Parameters, Cells and Primitives that were assigned to it.

    class Net(Cell):
        def __init__(self):
            super().__init__()
            self.weight = Parameter(initializer("normal", [32, 16]), "w")
            self.matmul = ops.MatMul().shard(((2, 4), (4, 1)))

        def construct(self, x):
            return self.matmul(x, self.weight)

Calling a Cell runs `construct` at once. While a network is traced, the tracer notes every Cell that is entered and
left, which gives operators their scope ("_backbone-Net/d1-Dense").

What it holds and how that is named is in `cell_tree.py`; a Cell whose inputs are split as told in `sharded_cell.py`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from ..base.checks import checked, flag, function, instance, integer, refusal, text
from ..base.dtypes import COMPUTE, as_dtype, kind_of
from ..base.errors import STUMBLES, ArgumentError, CellError, shorten
from ..base.hooks import cell_runner, current_tracer, current_world, from_above, held_messages, on_tape
from ..base.settings.current import frozen_for_run
from ..ops.collectives.deferred import holding_messages
from ..ops.elementwise import cast
from .hooks import Hooks
from .tensor.dynamic_shapes import check_inputs_fit
from .tensor.parameter import Parameter
from .tensor.recompute import run_again


class Cell(Hooks):
    """Base of every network and layer. Override `construct`.

    auto_prefix  give Parameters of child Cells the path of attributes as their name
    flags        given to `add_flags`

    Attributes: `cell_name` (the attribute under which the parent holds this Cell, "" for the outermost), `training`
    (set by `set_train`), `pipeline_stage` (int, or None: as its inputs), `recompute_options` (dict once `recompute` was
    called, else None), `compute_dtype` (set by `to_float`; None: as its inputs).
    """

    _pipeline_stage: int | None = None
    compute_dtype: str | None = None
    # Parameters that `to_float` leaves as they are: running statistics, which the Cell itself changes
    keep_dtype: tuple[str, ...] = ("moving_mean", "moving_variance")
    recompute_options: dict[str, bool] | None = None
    offload_prefetch: int | None = None
    _data_parallel = False
    _sharded: Callable[..., Cell]  # `sharded_cell.py`
    _laid_out: Callable | None = None  # likewise: how `shard` lays out what construct takes and gives
    _hooks: Mapping[str, list[Callable]] = MappingProxyType({})  # `hooks.py`

    # ---- running ----

    def construct(self, *args: Any, **kwargs: Any) -> Any:
        """The computation; every subclass defines its own."""
        hint = "Define `def construct(self, x): ...` with what the Cell computes"
        raise CellError(f"{type(self).__name__} has no construct", where=self._where(), hint=hint)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self._registry("_cells")
        tracer = current_tracer.get()
        try:
            construct = self._written() if self.compute_dtype is None else self._construct_in_dtype
            if hasattr(type(self), "bprop"):
                construct = self._around(self._with_bprop, construct)
            if self.recompute_options is not None and tracer is None and on_tape.get():
                construct = self._around(run_again, construct)
            if self._hooks and (tracer is None or hasattr(tracer, "parts_of")):  # one of DTensors runs them
                construct = self._around(self._with_hooks, construct)
            if tracer is not None and self._laid_out is not None:
                construct = self._around(self._laid_out, construct)
            if tracer is None:
                self.check_inputs(args, kwargs)
                compiled = cell_runner()(self, args, kwargs)
                if compiled is not NotImplemented:
                    return compiled
                if current_world() is None or held_messages.get() is not None:
                    return construct(*args, **kwargs)
                with holding_messages():  # the outermost Cell: operators with a fusion number may wait until it ends
                    return construct(*args, **kwargs)
            entered = self._entered()
            for cell in entered:
                tracer.enter(cell)
            try:
                return construct(*args, **kwargs)
            finally:
                for _ in entered:
                    tracer.leave()
        except STUMBLES as error:
            if fault := refusal(error, f"construct of {self._where()}", self.construct, args, kwargs):
                raise fault from fault.__cause__
            raise

    def _written(self) -> Callable[..., Any]:
        """`construct` as its author wrote it; while a network is traced, as the tracer runs it."""
        tracer = current_tracer.get()
        return self.construct if tracer is None else tracer.staged(self.construct)

    @staticmethod
    def _around(how: Callable, construct: Callable) -> Callable:
        return lambda *args, **kwargs: how(construct, args, kwargs)

    def _construct_in_dtype(self, *args: Any, **kwargs: Any) -> Any:
        """`construct` on inputs in `compute_dtype`, and with `self.weight` reading as the Parameter in that dtype."""
        # Not in __dict__, a Parameter is read through __getattr__, which casts it when construct first reads it, at
        # that place of a trace. Casting all of them here would record casts that nobody reads, and in another order.
        floats = {n: p for n, p in self._params.items() if kind_of(p.dtype) == "f" and n not in self.keep_dtype}
        hidden = {n: p for n, p in floats.items() if self.__dict__.get(n) is p}
        outer = self.__dict__.get("_casts")
        for name in hidden:
            del self.__dict__[name]
        self.__dict__["_casts"] = {}
        try:
            return self._written()(*map(self._in_dtype, args), **{k: self._in_dtype(a) for k, a in kwargs.items()})
        finally:
            self.__dict__.update(hidden, _casts=outer)

    def __getattr__(self, name: str) -> Any:
        # only reached when the attribute is missing: `_construct_in_dtype` has taken it away
        casts = self.__dict__.get("_casts")
        if casts is None or name not in self._params:
            return super().__getattr__(name)
        if name not in casts:
            casts[name] = self._in_dtype(self._params[name])
        return casts[name]

    def _in_dtype(self, value: Any) -> Any:
        """A float tensor, also inside lists and tuples, cast to `compute_dtype`; anything else as it is."""
        if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
            return type(value)(self._in_dtype(v) for v in value)
        dtype = getattr(value, "dtype", None)
        is_other_float = dtype is not None and kind_of(dtype) == "f" and str(dtype) != self.compute_dtype
        return cast(value, dtype=self.compute_dtype) if is_other_float else value

    def _entered(self) -> list[Cell]:
        """The Cells whose border a call crosses, outermost first: this one, after the lists that hold it."""
        cells: list[Cell] = [self]
        while cells[0]._holder is not None:
            cells.insert(0, cells[0]._holder)
        return cells

    # ---- settings ----

    @checked("set_train", mode=flag)
    def set_train(self, mode: bool = True) -> Cell:
        """Set `training` here and below. Returns self."""
        for _, cell in self.cells_and_names():
            cell.training = mode
        return self

    @checked("set_grad", requires_grad=flag)
    def set_grad(self, requires_grad: bool = True) -> Cell:
        """Set the attribute `requires_grad`, which nothing needs: `value_and_grad` asks for gradients. Returns self."""
        self.__dict__["requires_grad"] = requires_grad
        return self

    requires_grad = False

    @property
    def parameter_layout_dict(self) -> dict[str, Any]:
        """{input or parameter: its layout in MindSpore's form}, by `compile` (`mindspore/_compiled_forms.py`)."""
        return self.__dict__.get("_layout_forms", {})

    @parameter_layout_dict.setter
    def parameter_layout_dict(self, value: dict[str, Any]) -> None:
        self.__dict__["_layout_forms"] = instance(dict, "A dict")(self._where(), "parameter_layout_dict", value)

    def set_inputs(self, *inputs: Any, **named: Any) -> Cell:
        """Keep inputs, for `get_inputs` and for a `compile` that is given none; calls with others are refused where
        these are Tensors: shape and dtype must fit, and the number of inputs, unless some were given by name. Returns
        self. Raises ArgumentError.
        """
        if inputs and named:
            raise ArgumentError("inputs by position and by name", where="set_inputs", allowed="One of both")
        names = list(inspect.signature(self.construct).parameters) if named else []
        if unknown := next((name for name in named if name not in names), None):
            allowed = f"Those of construct: {', '.join(names)}"
            raise ArgumentError(f"input {unknown!r}", where="set_inputs", allowed=allowed)
        self.__dict__["_inputs"] = {name: named[name] for name in names if name in named} if named else inputs
        return self

    def get_inputs(self) -> tuple[Any, ...] | None:
        """What `set_inputs` was given; None before."""
        inputs = self.__dict__.get("_inputs")
        return tuple(inputs.values()) if isinstance(inputs, dict) else inputs

    def check_inputs(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Raise ShapeError, ArgumentTypeError or ArgumentError unless inputs fit those of `set_inputs`."""
        if inputs := self.__dict__.get("_inputs"):
            check_inputs_fit(self._where(), self.construct, inputs, args, kwargs)

    def compile(self, *inputs: Any, **named: Any) -> None:
        """Compile for these inputs by the parallel context, without running (`mindspore/_executor.py`)."""
        from_above("cell_executor")().compile(self, *inputs, phase=self.phase, **named)

    def compile_and_run(self, *inputs: Any, **named: Any) -> Any:
        """`compile`, and then a call."""
        self.compile(*inputs, **named)
        return self(*inputs, **named)

    def add_flags(self, **flags: Any) -> Cell:
        """Accepted for MindSpore's graph compiler (defer_inline, ...): each becomes an attribute. Returns self."""
        for name, value in flags.items():
            setattr(self, name, value)
        self.__dict__["_flags"] = {**self.get_flags(), **flags}
        return self

    def add_flags_recursive(self, **flags: Any) -> Cell:
        """`add_flags` here and below. Returns self."""
        for _, cell in self.cells_and_names():
            cell.add_flags(**flags)
        return self

    def get_flags(self) -> dict[str, Any]:
        """What `add_flags` was given."""
        return dict(self.__dict__.get("_flags", {}))

    @checked(fn=function("A function of a Cell"))
    def apply(self, fn: Callable[[Cell], Any]) -> Cell:
        """Call fn(cell) for every Cell below, then for this one: to set initial values, for instance. Returns self."""
        for _, cell in reversed(list(self.cells_and_names())):
            fn(cell)
        return self

    def _accept(self, *args: Any, **kwargs: Any) -> Cell:
        """Accepted for scripts that call it: a setting of MindSpore's compiler without a counterpart. Returns self."""
        return self

    set_jit_config = set_boost = set_acc = set_auto_parallel = set_broadcast_flag = _accept
    set_parallel_input_with_inputs = flatten_weights = _accept

    def parameters_broadcast_dict(self, recurse: bool = True) -> dict[str, Parameter]:
        """{name: Parameter} of what all ranks hold alike: without those with layerwise_parallel."""
        return {p.name: p for p in self.get_parameters(expand=recurse) if not p.layerwise_parallel}

    def set_data_parallel(self) -> None:
        """Split the batch alone in operators here and below that have no strategy, where auto_parallel would choose."""
        self.__dict__["_data_parallel"] = True

    @property
    def phase(self) -> str:
        """ "train" or "predict", as `set_train` says, unless it was set."""
        return self.__dict__.get("_phase") or ("train" if self.training else "predict")

    @phase.setter
    def phase(self, value: str) -> None:
        self.__dict__["_phase"] = text(self._where(), "phase", value)

    @property
    def current_phase(self) -> str:
        """What `_cell_graph_executor.compile` called its last program; before that, `phase`."""
        return self.__dict__.get("_compiled_phase", self.phase)

    def init_parameters_data(self, auto_parallel_mode: bool = False) -> dict[Parameter, Parameter]:
        """Draw the values of all Parameters now. Returns {Parameter: the one in its place}, each in its own."""
        flag(self._where(), "auto_parallel_mode", auto_parallel_mode)
        return {parameter: parameter.init_data() for parameter in self.get_parameters()}

    @property
    def pipeline_stage(self) -> int | None:
        """The pipeline stage that runs this Cell, counted from 0; None: that of the Cell around it."""
        return self._pipeline_stage

    @pipeline_stage.setter
    def pipeline_stage(self, value: int | None) -> None:
        self.__dict__["_pipeline_stage"] = None if value is None else integer(0)(self._where(), "pipeline_stage", value)

    def infer_param_pipeline_stage(self) -> list[Parameter]:
        """The trainable Parameters of the stage of global_rank: those in a Cell with that `pipeline_stage`. In a run
        of ranks all: one program trains all stages, and a rank holds and updates those of its own.

        Raises CellError for one that no Cell with a stage holds (MindSpore: RuntimeError).
        """
        placed: dict[int, int] = {}
        for _, cell in self.cells_and_names():  # parents first
            if cell.pipeline_stage is not None:
                placed |= {id(p): cell.pipeline_stage for p in cell.get_parameters()}
        for one in self.trainable_params():
            if id(one) not in placed:
                hint = "Set pipeline_stage of the Cell that holds it"
                raise CellError(f"parameter {one.name!r} lies on no stage", where=self._where(), hint=hint)
        if current_world() is not None:
            return self.trainable_params()
        config = frozen_for_run()
        stage = config.global_rank // (config.device_num // config.pipeline_stages)
        return [one for one in self.trainable_params() if placed[id(one)] == stage]

    @checked("set_comm_fusion", fusion_type=integer(0))
    def set_comm_fusion(self, fusion_type: int, recurse: bool = True) -> Cell:
        """Give trainable Parameters here and below a fusion id: equal ids share a message, 0 is alone. Returns self."""
        for parameter in self.trainable_params(recurse):
            parameter.comm_fusion = fusion_type
        return self

    def to_float(self, dst_type: Any) -> Cell:
        """Compute in float16, bfloat16, float32 or float64 here and below: inputs and Parameters are cast at use.

        Parameters, gradients and updates keep their dtype. Loss scaling (`optim/amp.py`) belongs to float16; bfloat16
        has the range of float32. Returns self.
        """
        try:
            dtype = str(as_dtype(dst_type)) if dst_type is not None else ""
        except TypeError:
            dtype = ""
        if dtype not in COMPUTE:
            allowed = "float16, bfloat16, float32 or float64"
            raise ArgumentError(f"dst_type={shorten(dst_type)}", where="to_float", allowed=allowed)
        for _, cell in self.cells_and_names():
            cell.compute_dtype = dtype
        return self

    def recompute(self, **options: bool) -> None:
        """Ask the compiler to recompute this Cell's operators in the backward pass instead of keeping their results.

        mp_comm_recompute (default True): messages that operators need are sent again too. Default False:
        parallel_optimizer_comm_recompute (parameters that the optimizer parallel shards are gathered again),
        recompute_slice_activation (what is kept is shared by the ranks that hold it). What makes the Cell's outputs is
        kept. No number changes; where Cells run at once, its inputs are kept and it runs again, whatever the options.
        Kept as `recompute_options`. Raises ArgumentError, ArgumentTypeError.
        """
        attrs = {"mp_comm_recompute": True}
        attrs.update(dict.fromkeys(("parallel_optimizer_comm_recompute", "recompute_slice_activation"), False))
        for key, value in options.items():
            if key not in attrs:
                allowed = f"Options: {', '.join(attrs)}"
                raise ArgumentError(f"option {key!r} is not known", where="recompute", allowed=allowed)
            flag("recompute", key, value)
        if self.offload_prefetch is not None:
            raise ArgumentError("it is offloaded", where="recompute", allowed="One of recompute and offload")
        self.recompute_options = {**attrs, **options}

    def offload(self, backward_prefetch: str | int = "Auto") -> None:
        """Ask the compiler to let what backward reads of this Cell's results wait in the memory of the host.

        backward_prefetch  how many operators before backward reads it a result comes back, at least 1; "Auto": 1. The
                           earlier, the more of the copy is hidden by work, and the more is in memory

        No number changes; where Cells run at once, it has no effect. Kept as `offload_prefetch`. Raises ArgumentError,
        also for a Cell that is recomputed, and ArgumentTypeError.
        """
        ahead = 1 if isinstance(backward_prefetch, str) and backward_prefetch == "Auto" else backward_prefetch
        if self.recompute_options is not None:
            raise ArgumentError("it is recomputed", where="offload", allowed="One of recompute and offload")
        self.offload_prefetch = integer(1)("offload", "backward_prefetch", ahead)

    def shard(
        self,
        in_strategy: tuple[Any, ...],
        out_strategy: tuple[Any, ...] | None = None,
        parameter_plan: dict[str, Any] | None = None,
        device: str = "Ascend",
        level: int = 0,
    ) -> Cell:
        """Split inputs and results of this Cell as told, wherever a compiled network calls it, until the next `shard`.
        Returns what the function `shard` does: in PyNative mode, call that.
        """
        return self._sharded(in_strategy, out_strategy, parameter_plan, device, level)

    # ---- text ----

    def extend_repr(self) -> str:
        """What `repr` shows between the brackets before the children: the settings that were `kept`."""
        return ", ".join(f"{name}={getattr(self, name)!r}" for name in self.__dict__.get("_kept", ()))

    def __repr__(self) -> str:
        own = self.extend_repr()
        if not self._registry("_cells"):
            return f"{type(self).__name__}({own})"
        lines = [own] if own else []
        lines += [f"({name}): " + repr(child).replace("\n", "\n  ") for name, child in self._cells.items()]
        return f"{type(self).__name__}(\n  " + "\n  ".join(lines) + "\n)"
