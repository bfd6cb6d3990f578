"""From networks and optimizers to records, and back.

A Parameter of a network on a running rank holds a slice or the whole tensor; a record of it is one or the other.
Optimizer states are named as in MindSpore, "moments.fc.weight" for the state "moments" of parameter "fc.weight", and
lie like their parameter; and scalars: "global_step", "learning_rate" (if a number), "beta1_power", ...

Loading checks everything first: a checkpoint that does not fit leaves network and optimizer as they were.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from ...base.dtypes import kind_of, plain_array, scalar_dtype
from ...base.errors import CheckpointError, CheckpointTypeError, shorten
from ...base.hooks import current_world
from ...base.settings.current import get_auto_parallel_context
from ...layout.slices import cut, is_split
from ...layout.tensor_layout import TensorLayout
from ...nn.cell import Cell
from ...nn.optim.optimizer import Optimizer
from ...nn.optim.state_shapes import dims_of_state, layout_of_state, shape_of_state
from ...nn.tensor.dtensor_parameter import DTensorParameter
from ...nn.tensor.initial_slices import is_on_another_stage
from ...nn.tensor.parameter import Parameter
from ...nn.tensor.tensor import RankTensor, Tensor
from .records import TensorRecord, place_in
from .reslice import whole

# names of optimizer states, ours and MindSpore's: "moments.w" is a state of "w", never a parameter of a Cell "moments"
STATE_NAMES = (
    *("moments", "accum", "stat", "moment", "moment1", "moment2", "vhat", "mean_square", "mean_grad", "mean_gradient"),
    *("adam_m", "adam_v", "lamb_m", "lamb_v", "linear", "max_grad", "delta", "exp_avg", "exp_inf"),
    *("exp_avg_sq", "exp_avg_sq_row", "exp_avg_sq_col"),
)
GLOBAL_STEP = "global_step"


def parameter_of_state(name: str) -> str | None:
    """The parameter whose optimizer state `name` is, or None for another name.

    >>> parameter_of_state("moment1.fc.weight"), parameter_of_state("fc.weight")
    ('fc.weight', None)
    """
    state, dot, parameter = name.partition(".")
    return parameter if dot and state in STATE_NAMES else None


def _rank() -> int:
    world = current_world()
    return world.rank if world else 0


def is_own(parameter: Parameter) -> bool:
    """Whether each rank may have values of its own: layerwise_parallel, or not trained (batch statistics)."""
    return parameter.layerwise_parallel or not parameter.requires_grad


# ---- to records ----


def record_of(
    value: Any, *, integrated: bool = False, rank: int | None = None, where: str = "save_checkpoint"
) -> TensorRecord:
    """The record of a Parameter, Tensor, array or number.  integrated: gather the slices first, on all ranks.

    rank  whose slice it is; default: this process's
    Raises CheckpointTypeError for anything else, CheckpointError for a slice of an unknown rank.
    """
    if isinstance(value, (Parameter, RankTensor)) and is_split(value.layout):
        if integrated:
            return TensorRecord(value.full().asnumpy(), rank=_rank())
        if rank is None and current_world() is None:
            what = f"it is a slice of {value.full_shape}, and this process is not a rank"
            raise CheckpointError(what, where=where, hint="Save the dict that load_checkpoint gave: it knows the ranks")
        rank = place_in(value.layout, _rank()) if rank is None else rank
        return TensorRecord(value.asnumpy(), value.full_shape, value.layout, rank)
    if isinstance(value, (Tensor, np.ndarray, np.generic, bool, int, float)):
        array = value.asnumpy() if isinstance(value, Tensor) else plain_array(value, where=where)
        return TensorRecord(array, rank=_rank(), own=isinstance(value, Parameter) and is_own(value))
    what = f"{shorten(value)} of type {type(value).__name__}"
    raise CheckpointTypeError(what, where=where, allowed="A Parameter, Tensor, array or number")


def optimizers_of(network: Cell) -> Iterator[Optimizer]:
    """The optimizers that a Cell is or holds, as one that trains does; without one that is part of another (LARS)."""
    optimizers = [cell for _, cell in network.cells_and_names() if isinstance(cell, Optimizer)]
    parts = {id(part) for whole in optimizers for part in whole.cells()}
    yield from (optimizer for optimizer in optimizers if id(optimizer) not in parts)


def network_records(
    network: Cell, *, integrated: bool = True, choose: Callable[[str], bool] | None = None
) -> dict[str, TensorRecord]:
    """{name: record} of parameters of a network and its optimizers that `choose` accepts; integrated: collective.

    What lies on other pipeline stages is not among them: the files of all stages together hold the network.
    """
    records = {}
    for parameter in network.get_parameters():
        if (choose is None or choose(parameter.name)) and not is_on_another_stage(parameter):
            records[parameter.name] = record_of(parameter, integrated=integrated, where=f"parameter {parameter.name!r}")
    for optimizer in optimizers_of(network):
        records.update(optimizer_records(optimizer, integrated=integrated, choose=choose))
    return records


def optimizer_records(
    optimizer: Optimizer, *, integrated: bool = True, choose: Callable[[str], bool] | None = None
) -> dict[str, TensorRecord]:
    """{name: record} of an optimizer's states and scalars, as `network_records`. A rank's own: whole if integrated."""
    records, rank = {}, _rank()
    for parameter in optimizer.parameters:
        if is_on_another_stage(parameter):
            continue
        name, shape = parameter.name, parameter.full_shape
        held = optimizer.state_layouts.get(name) or parameter.layout
        layout = whole(len(shape)) if integrated or held is None else held
        if not is_split(layout):
            layout = whole(len(shape))
        place, owners = place_in(layout, rank), {} if integrated else optimizer.state_owners
        for state, array in optimizer.take_states({name: (shape, layout)}, place, owners).get(name, {}).items():
            held = layout_of_state(state, layout)
            full = shape_of_state(state, shape)
            is_part = is_split(held)
            record = TensorRecord(array, full, held if is_part else None, place if is_part else rank)
            records[f"{state}.{name}"] = record
    records.update({name: TensorRecord(array, rank=rank) for name, array in _scalars(optimizer).items()})
    return {name: record for name, record in records.items() if choose is None or choose(name)}


def optimizer_values(optimizer: Optimizer) -> dict[str, np.ndarray]:
    """{name: array} of an optimizer's states, as this process holds them, and scalars."""
    return {name: record.array for name, record in optimizer_records(optimizer, integrated=False).items()}


def optimizer_names(optimizer: Optimizer) -> set[str]:
    """Names of all states and scalars, without looking at one."""
    states = {f"{kind}.{p.name}" for p in optimizer.parameters for kind in _kinds(optimizer, p)}
    return states | _scalars(optimizer).keys()


def _kinds(optimizer: Optimizer, parameter: Parameter) -> tuple[str, ...]:
    return tuple(optimizer.initial_state(np.empty((0,) * len(parameter.full_shape), parameter.dtype)))


def _scalars(optimizer: Optimizer) -> dict[str, np.ndarray]:
    """{name: 0-d array}: rates that are numbers, shared states, the loss scaler's values, the steps taken."""
    scalars = {name: np.asarray(rate, np.float64) for name, rate in _constant_rates(optimizer).items()}
    for i, dtype in enumerate(_dtypes(optimizer)):
        # each dtype has its own: a power of beta2 rounds differently in float16
        for name, value in optimizer.shared_state(dtype).items():
            scalars[f"{name}.{dtype}" if i else name] = np.asarray(value)
    if optimizer.loss_scaler is not None:
        for name, value in optimizer.loss_scaler.scalar_state().items():
            scalars[name] = np.asarray(value, np.float32)
    scalars[GLOBAL_STEP] = np.asarray(optimizer.steps_taken, np.int64)
    return scalars


def _constant_rates(optimizer: Optimizer) -> dict[str, float]:
    return {} if optimizer.dynamic_lr else optimizer.learning_rates(0)


def _dtypes(optimizer: Optimizer) -> list[np.dtype]:
    return list(dict.fromkeys(scalar_dtype(p.dtype) for p in optimizer.parameters))


# ---- from records ----

Change = Callable[[], None]


def load_records(
    target: Cell, records: Mapping[str, TensorRecord], *, strict: bool = False
) -> tuple[list[str], list[str]]:
    """Load by name into a network (with its optimizers) or an optimizer: (names not loaded, records not used).

    strict  False: floats and ints are cast to the dtype they are loaded into, and if the names differ by what stands
            before them ("network.fc.weight" for "fc.weight"), the rest of the name counts

    Raises CheckpointError (also a RuntimeError), and changes nothing, if a shape or dtype does not fit.
    """
    used: set[str] = set()
    not_loaded: list[str] = []
    changes: list[Change] = []
    parameters = {p.name: p for p in target.get_parameters()}
    by_name = _matched(list(parameters), records, strict)
    for name, parameter in parameters.items():
        if is_on_another_stage(parameter):
            used.update(by_name.get(name, ()) and [by_name[name]])  # another stage's: its ranks take it
        elif name in by_name:
            changes.append(_parameter_change(parameter, records[by_name[name]], strict))
            used.add(by_name[name])
        else:
            not_loaded.append(name)
    for optimizer in optimizers_of(target):
        missing, found, change = _optimizer_change(optimizer, records, strict)
        not_loaded += missing
        used |= found
        changes.append(change)
    for change in changes:
        change()
    return not_loaded, [name for name in records if name not in used]


def load_optimizer_values(optimizer: Optimizer, values: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Load states and scalars by name: (names not loaded, values not used). CheckpointError: a misfit; none loaded."""
    records = {}
    for name, value in values.items():
        is_record, where = isinstance(value, TensorRecord), f"load_optimizer_values, {name!r}"
        records[name] = value if is_record else record_of(value, where=where)
    return load_records(optimizer, records)


def _matched(names: list[str], records: Mapping[str, TensorRecord], strict: bool) -> dict[str, str]:
    """{name in the network: name of its record}. If not strict, the rest take the prefix under which most are found."""
    record_of_parameter = {name: name for name in names if name in records}
    rest = [name for name in names if name not in records]
    if strict or not rest:
        return record_of_parameter
    prefixes: dict[str, int] = {}
    for name in rest:
        for other in records:
            # a whole word of the path, and never an optimizer state, which has the shape of the parameter and would be
            # taken for it in silence
            if other.endswith(f".{name}") and parameter_of_state(other) is None:
                prefix = other[: -len(name)]
                prefixes[prefix] = prefixes.get(prefix, 0) + 1
    if prefixes:
        best = max(prefixes, key=lambda prefix: (prefixes[prefix], -len(prefix)))
        record_of_parameter.update({name: best + name for name in rest if best + name in records})
    return record_of_parameter


def _cast(array: np.ndarray, dtype: np.dtype, strict: bool, where: str) -> np.ndarray:
    if array.dtype == dtype:
        return array
    what = f"its dtype is {array.dtype}"
    if strict:
        raise CheckpointError(what, where=where, allowed=f"{dtype}, as strict_load=True asks for")
    kinds = "f" if kind_of(dtype) == "f" else "iu"
    if kind_of(array.dtype) not in kinds or kind_of(dtype) not in kinds:
        raise CheckpointError(what, where=where, allowed=f"{dtype}, or another dtype of that kind")
    with np.errstate(over="ignore"):  # a float too large for float16 becomes inf, as any cast of it does
        cast = array.astype(dtype)
    if kinds == "iu" and not np.array_equal(cast, array):
        raise CheckpointError(f"{what}, with numbers that do not fit into {dtype}", where=where)
    return cast


def _placed(
    record: TensorRecord, shape: tuple[int, ...], layout: TensorLayout | None, where: str
) -> tuple[np.ndarray, TensorLayout | None]:
    """(what this rank is to hold of a tensor of `shape`, its layout), from a record; `layout`: how it is held now."""
    world = current_world()
    if not record.is_whole:
        if record.global_shape != shape:
            what = f"it is a slice of a tensor of shape {record.global_shape}"
            raise CheckpointError(what, where=where, allowed=f"Shape {shape}")
        here = "this process is not a rank" if world is None else f"this is rank {world.rank} of {world.world_size}"
        devices = record.layout.device_num
        staged = world is not None and (
            get_auto_parallel_context("pipeline_stages") * devices == world.world_size
            or (is_split(layout) and layout.device_num == devices)
        )
        place = world.rank % devices if staged else None if world is None else world.rank
        if world is None or place != record.rank or (world.world_size != devices and not staged):
            what = f"it is the slice of rank {record.rank} of {devices}, and {here}"
            hint = "Give all files of the save to load_distributed_checkpoint, which re-slices them"
            raise CheckpointError(what, where=where, allowed="A whole tensor, or this rank's own slice", hint=hint)
        return record.array, record.layout
    array = record.array
    if array.shape != shape and {array.shape, shape} == {(), (1,)}:
        array = array.reshape(shape)  # MindSpore keeps its scalars in either form
    if array.shape == shape:
        if not is_split(layout):
            return array, None
        if world is None or world.world_size % layout.device_num:
            what = f"it would have to be split for {layout.device_num} ranks, and this process is not one of them"
            hint = "Load it in the run that compiled the network, or before it is compiled"
            raise CheckpointError(what, where=where, hint=hint)
        return cut(array, layout, place_in(layout, world.rank)), layout
    if is_split(layout) and array.shape == layout.slice_shape(shape):
        return array, layout
    own_slice = f", or that of this rank's slice, {layout.slice_shape(shape)}" if is_split(layout) else ""
    raise CheckpointError(f"it has shape {array.shape}", where=where, allowed=f"Shape {shape}{own_slice}")


def _parameter_change(parameter: Parameter, record: TensorRecord, strict: bool) -> Change:
    where = f"parameter {parameter.name!r}"
    over_mesh = isinstance(parameter, DTensorParameter)  # which cuts whole tensors itself
    array, layout = _placed(record, parameter.full_shape, None if over_mesh else parameter.layout, where)
    array = _cast(array, parameter.dtype, strict, where)
    if layout is None:
        return lambda: parameter.set_data(array)
    return lambda: parameter.hold(np.array(array, order="C"), layout)


def _layout_of_all(layouts: dict[str, TensorLayout | None], ndim: int, where: str) -> TensorLayout | None:
    """The layout of a parameter with these layouts of its states (None: whole). CheckpointError: they do not agree."""
    entries: dict[int, tuple[int, ...]] = {}
    matrices = {layout.device_matrix for layout in layouts.values() if layout is not None}
    for kind, layout in layouts.items():
        dims = dims_of_state(kind, ndim)
        for dim, axes in zip(dims, ((),) * len(dims) if layout is None else layout.tensor_map, strict=True):
            if entries.setdefault(dim, axes) != axes or len(matrices) > 1:
                lie = ", ".join(f"{kind}: {layout}" for kind, layout in layouts.items())
                raise CheckpointError(f"its states lie differently: {lie}", where=where)
    rows = next((layout.rows for layout in layouts.values() if layout is not None and layout.rows), ())
    return TensorLayout(matrices.pop(), tuple(entries[d] for d in range(ndim)), rows=rows) if matrices else None


def _optimizer_change(
    optimizer: Optimizer, records: Mapping[str, TensorRecord], strict: bool
) -> tuple[list[str], set[str], Change]:
    """(names not found, records used, what to do)."""
    missing, used = [], set()
    states: dict[str, dict[str, np.ndarray]] = {}
    layouts: dict[str, TensorLayout | None] = {}
    for parameter in optimizer.parameters:
        name, shape = parameter.name, parameter.full_shape
        held = optimizer.state_layouts.get(name)
        kinds = _kinds(optimizer, parameter)
        record_names = {kind: f"{kind}.{name}" for kind in kinds if f"{kind}.{name}" in records}
        if is_on_another_stage(parameter):
            used |= set(record_names.values())
            continue
        missing += [f"{kind}.{name}" for kind in kinds if kind not in record_names]
        used |= set(record_names.values())
        if len(record_names) < len(kinds):
            if record_names:
                absent = ", ".join(k for k in kinds if k not in record_names)
                what = f"{', '.join(record_names.values())} without {absent}"
                where = f"states of parameter {name!r}"
                raise CheckpointError(what, where=where, allowed="All states of a parameter, or none")
            continue
        placed = {
            kind: _placed(records[full], shape_of_state(kind, shape), layout_of_state(kind, held), f"state {full!r}")
            for kind, full in record_names.items()
        }
        if placed:
            states[name] = {}
            for kind, (array, _) in placed.items():
                cast = _cast(array, parameter.dtype, strict, f"state {record_names[kind]!r}")
                states[name][kind] = np.array(cast, order="C")
            found = {kind: layout for kind, (_, layout) in placed.items()}
            layouts[name] = _layout_of_all(found, len(shape), f"states of parameter {name!r}")
    shared: dict[np.dtype, dict[str, np.ndarray]] = {}
    numbers = _scalars(optimizer)
    for name, old in numbers.items():
        if name not in records:
            missing.append(name)
            continue
        array, _ = _placed(records[name], (), None, f"scalar {name!r}")
        numbers[name] = _cast(array, old.dtype, False, f"scalar {name!r}")
        used.add(name)
    for i, dtype in enumerate(_dtypes(optimizer)):
        shared[dtype] = {name: numbers[name if not i else f"{name}.{dtype}"] for name in optimizer.shared_state(dtype)}
    rates = {name: float(numbers[name]) for name in _constant_rates(optimizer)}
    for name, rate in rates.items():
        if not 0 <= rate < math.inf:
            where = f"scalar {name!r}"
            raise CheckpointError(f"it is {rate}", where=where, allowed="A learning rate: a finite number, at least 0")

    def change() -> None:
        for p in optimizer.parameters:
            # a parameter without states in the checkpoint keeps those it has, or starts with those of the first step;
            # what another rank alone holds stays where it is
            if p.name not in states and p.name not in optimizer.state_owners and not is_on_another_stage(p):
                layouts[p.name] = optimizer.state_layouts.get(p.name) or whole(len(p.full_shape))
                place = place_in(layouts[p.name], _rank())
                taken = optimizer.take_states({p.name: (p.full_shape, layouts[p.name])}, place)
                states[p.name] = taken.get(p.name, {})
        optimizer.keep_states(states, layouts, shared)
        optimizer.steps_taken = int(numbers[GLOBAL_STEP])
        for name, rate in rates.items():
            optimizer.set_rate(name, rate)
        if optimizer.loss_scaler is not None:
            optimizer.loss_scaler.take({name: numbers[name] for name in optimizer.loss_scaler.scalar_state()})

    return missing, used, change
