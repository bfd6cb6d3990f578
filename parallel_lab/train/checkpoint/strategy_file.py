"""The strategy file: how every parameter is split and with which strategy every operator was compiled, as JSON.

    save_strategy(plan, "strategy.json")                  of a plan, or of what `cost.search.search` found
    load_strategy("strategy.json").layouts                {"fc.weight": TensorLayout(...)}
    load_strategy("strategy.json").strategies             {"fc.matmul": ((2, 4), (4, 1))}

What MindSpore keeps in its strategy files is here under the same words: per parameter device_matrix, tensor_map,
slice_shape, field_size (0: split evenly), the steps of the optimizer shard, its stages; per operator its strategy; the
stages. The format is ours, with a version and a sha256; the name may end in .json, .ckpt or anything else. A folder
("./") stands for the file strategy.json in it. Reading has limits (base/plain_json.py), and what does not fit together
is refused.

Our checkpoints know their layouts; the file splits for a later run, or brings back operator strategies.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...base.errors import (
    CheckpointError,
    CheckpointFolderError,
    CheckpointTypeError,
    CheckpointWriteError,
    DataFileError,
    LayoutError,
    shorten,
)
from ...base.files import read_regular, write_whole
from ...base.plain_json import MAX_BYTES, dump_json, parse_json
from ...graph.plan import Plan
from ...layout.named_layout import Layout, LayoutStrategy
from ...layout.tensor_layout import TensorLayout
from .format import NO_SUM, sum_fits, with_sum

if TYPE_CHECKING:
    from ...cost.search import Found

FORMAT = "parallel_lab-strategy"
VERSION = 1
DEFAULT_NAME = "strategy.json"  # in a folder
MAX_RANKS = 1 << 20

Counts = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class ParameterStrategy:
    """How one parameter is split.

    shape           of the whole
    field_size      0: split evenly, as always here
    opt_shard_step, opt_shard_size   of the optimizer shard; 0: none
    stages          pipeline stages that hold it
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    layout: TensorLayout
    trainable: bool = True
    field_size: int = 0
    opt_shard_step: int = 0
    opt_shard_size: int = 0
    stages: tuple[int, ...] = (0,)

    @property
    def slice_shape(self) -> tuple[int, ...]:
        """Shape of one rank's part."""
        return self.layout.slice_shape(self.shape)


@dataclass(frozen=True)
class OperatorStrategy:
    """With which strategy (slices per dim of every input, layouts, or None) an operator was compiled, and who chose it
    ("user", "default", the search); `name`: of its value, unique in the plan; `op`: MindSpore's class name.
    """

    name: str
    op: str
    strategy: Counts | LayoutStrategy | None
    out_strategy: Counts | LayoutStrategy | None = None
    source: str = ""


@dataclass(frozen=True)
class StrategyFile:
    """A strategy file.  stages: (first rank, number of ranks) of each pipeline stage."""

    device_num: int
    parameters: tuple[ParameterStrategy, ...]
    operators: tuple[OperatorStrategy, ...] = ()
    stages: tuple[tuple[int, int], ...] = ()

    @cached_property
    def by_name(self) -> dict[str, ParameterStrategy]:
        """{parameter: how it is split}."""
        return {p.name: p for p in self.parameters}

    @property
    def layouts(self) -> dict[str, TensorLayout]:
        """{parameter: its layout}."""
        return {p.name: p.layout for p in self.parameters}

    @property
    def strategies(self) -> dict[str, Counts | LayoutStrategy]:
        """{operator: its strategy}, for operators that have one."""
        return {o.name: o.strategy for o in self.operators if o.strategy is not None}


# ---- writing ----


def strategy_path(path: str | os.PathLike[str]) -> Path:
    """The file that `path` stands for: strategy.json in a folder, which exists or ends with "/".

    Raises CheckpointTypeError for anything but a str or Path, CheckpointError for an empty one.

    >>> strategy_path("out/").as_posix(), strategy_path("train.ckpt").as_posix()
    ('out/strategy.json', 'train.ckpt')
    """
    if not isinstance(path, (str, os.PathLike)) or not isinstance(os.fspath(path), str):
        what, allowed = f"the strategy file is {shorten(path)}", "The name of a file, as str"
        raise CheckpointTypeError(what, where="strategy file", allowed=allowed)
    text = os.fspath(path)
    if not text or "\0" in text:
        what = f"the strategy file is {shorten(text)}"
        raise CheckpointError(what, where="strategy file", allowed="The name of a file")
    return Path(text) / DEFAULT_NAME if text.endswith("/") or os.path.isdir(text) else Path(text)


def plan_strategy(plan: Plan, *, only_trainable_params: bool = True) -> StrategyFile:
    """The strategy file of a plan.  only_trainable_params  False: also parameters that are not trained."""
    parameters = []
    for one in plan.parameters:
        layout = plan.value(one.name).layout
        if layout is not None and (one.trainable or not only_trainable_params):
            stages = tuple(i for i, stage in enumerate(plan.stages) if plan.held_by(one.name, stage.first))
            size, step = _optimizer_shard(plan, one.name)
            held = {"opt_shard_step": step, "opt_shard_size": size, "stages": stages or (0,)}
            parameters.append(ParameterStrategy(one.name, tuple(one.shape), one.dtype, layout, one.trainable, **held))
    operators = tuple(
        OperatorStrategy(n.name, n.op_class, n.strategy, n.out_strategy, n.strategy_source) for n in plan.graph.nodes
    )
    ranks_of_stages = tuple((stage.first, stage.count) for stage in plan.stages)
    return StrategyFile(plan.device_num, tuple(parameters), operators, ranks_of_stages)


def _optimizer_shard(plan: Plan, name: str) -> tuple[int, int]:
    """(ranks that share a slice, distance from one to the next) in the optimizer parallel; (0, 0): not sharded."""
    for _, instr in plan.instructions("forward"):
        if name in instr.carried and instr.message == "all_gather":
            group = instr.group(0)
            return len(group), (group[-1] - group[0]) // (len(group) - 1)
    return 0, 0


def save_strategy(
    plan: Plan | StrategyFile | Found, path: str | os.PathLike[str], *, only_trainable_params: bool = True
) -> Path:
    """Write the strategy file of a plan, or of what a search found, atomically (ranks write the same); returns its
    path. Raises CheckpointWriteError.
    """
    real, strategy = strategy_path(path), plan
    if not isinstance(plan, StrategyFile):
        strategy = plan_strategy(getattr(plan, "plan", plan), only_trainable_params=only_trainable_params)
    data = with_sum((dump_json(_to_plain(strategy)) + "\n").encode())
    _read(data, str(real))  # what could not be read again is not written
    try:
        real.parent.mkdir(parents=True, exist_ok=True)
        return write_whole(real, data)
    except (DataFileError, OSError) as error:
        raise CheckpointWriteError(f"the strategy cannot be written: {error}", where=str(real)) from error


def _to_plain(strategy: StrategyFile) -> dict[str, Any]:
    """The file's content; tuples become lists in JSON."""
    parameters, operators = {}, {}
    for p in strategy.parameters:
        layout = {"device_matrix": p.layout.device_matrix, "tensor_map": p.layout.tensor_map}
        layout |= {"rows": p.layout.rows} if p.layout.rows else {}
        parameters[p.name] = {name: getattr(p, name) for name in _KEPT} | layout
    for o in strategy.operators:
        how = {"strategy": _strategy_to_plain(o.strategy), "out_strategy": _strategy_to_plain(o.out_strategy)}
        operators[o.name] = {"op": o.op, **how, "source": o.source}
    head = {"format": FORMAT, "version": VERSION, "sha256": NO_SUM.decode()}
    head |= {"device_num": strategy.device_num, "stages": strategy.stages}
    return {**head, "parameters": parameters, "operators": operators}


# attributes of a ParameterStrategy that stand in the file under their names, next to those of its layout
_KEPT = ("shape", "dtype", "slice_shape", "trainable", "field_size", "opt_shard_step", "opt_shard_size", "stages")


def _strategy_to_plain(strategy: Any) -> Any:
    """Counts as they are; layouts with named axes as objects, over one device matrix."""
    if strategy is None or not any(isinstance(entry, Layout) for entry in strategy):
        return strategy
    first, dims = strategy[0], [entry.dims for entry in strategy]
    named = {"device_matrix": first.device_matrix, "alias_name": first.alias_name, "dims": dims}
    return {**named, "nd_tp": bool(getattr(strategy, "nd_tp", False))}


# ---- reading ----


def load_strategy(path: str | os.PathLike[str]) -> StrategyFile:
    """Read a strategy file. Raises CheckpointError naming the field, or if the file is missing, damaged or not one."""
    real = strategy_path(path)
    where = str(real)
    try:
        return _read(read_regular(real, MAX_BYTES), where)
    except IsADirectoryError:
        raise CheckpointFolderError("it is a folder", where=where, allowed="A strategy file") from None
    except FileNotFoundError:
        what, hint = "there is no such strategy file", "strategy_ckpt_save_file of the run that trained names it"
        raise CheckpointError(what, where=where, allowed="A file that save_strategy wrote", hint=hint) from None
    except OSError as error:
        raise CheckpointError(f"it cannot be read: {error.strerror}", where=where) from error


def _read(data: bytes, where: str) -> StrategyFile:
    content = parse_json(data, where, CheckpointError)
    strategy = _from_plain(content, where)
    if "sha256" in content and not sum_fits(data, content["sha256"]):
        hint = "Save it again; from a file that was changed on purpose take out the entry sha256"
        raise CheckpointError("its sha256 does not fit its content", where=where, hint=hint)
    return strategy


class _Field:
    """Takes fields out of JSON objects, and says which one is wrong."""

    def __init__(self, where: str) -> None:
        self.where = where

    def check(self, fits: bool, at: str, value: Any, allowed: str) -> None:
        """Raise CheckpointError about the field `at` unless it fits."""
        if not fits:
            raise CheckpointError(f"{at} is {shorten(value)}", where=self.where, allowed=allowed)

    def table(self, at: str, value: Any, keys: set[str] | None = None) -> dict[str, Any]:
        allowed = "An object" + (f" with {', '.join(sorted(keys))}" if keys else "")
        self.check(isinstance(value, dict) and keys in (None, set(value)), at, value, allowed)
        return value

    def number(self, at: str, value: Any, least: int = 0, most: int = 1 << 40) -> int:
        self.check(type(value) is int and least <= value <= most, at, value, f"An int from {least} to {most}")
        return value

    def text(self, at: str, value: Any, *, may_be_empty: bool = False) -> str:
        fits = isinstance(value, str) and (value.isprintable() if value else may_be_empty)
        self.check(fits, at, value, "Printable text")
        return value

    def numbers(self, at: str, value: Any, least: int = 0) -> tuple[int, ...]:
        self.check(isinstance(value, list), at, value, "A list of ints")
        return tuple(self.number(at, n, least) for n in value)

    def lists(self, at: str, value: Any, least: int = 0) -> tuple[tuple[int, ...], ...]:
        self.check(isinstance(value, list), at, value, "A list of lists of ints")
        return tuple(self.numbers(at, n, least) for n in value)


def _from_plain(content: Any, where: str) -> StrategyFile:
    field = _Field(where)
    keys = {"format", "version", "device_num", "stages", "parameters", "operators"}
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise CheckpointError("it is not a strategy file", where=where, allowed="JSON that save_strategy wrote")
    if content.get("version") != VERSION:
        raise CheckpointError(f"version {shorten(content.get('version'))}", where=where, allowed=f"Version {VERSION}")
    field.table("the content", content, keys | ({"sha256"} & set(content)))  # older files lack it
    device_num = field.number("device_num", content["device_num"], 1, MAX_RANKS)
    stages = field.lists("stages", content["stages"])
    fits = all(len(stage) == 2 and stage[1] >= 1 and sum(stage) <= device_num for stage in stages)
    covered = 0
    for first, count in sorted(stages) if fits else ():  # several may lie on the same ranks
        covered = max(covered, first + count) if first <= covered else covered
    allowed = f"Pairs of first rank and number of ranks, together all {device_num}"
    field.check(fits and (covered == device_num or not stages), "stages", content["stages"], allowed)
    given = field.table("parameters", content["parameters"]).items()
    parameters = tuple(_parameter(field, name, p, device_num, stages) for name, p in given)
    given = field.table("operators", content["operators"]).items()
    return StrategyFile(device_num, parameters, tuple(_operator(field, n, o, device_num) for n, o in given), stages)


def _parameter(
    field: _Field, name: str, entry: Any, device_num: int, stages: tuple[tuple[int, ...], ...]
) -> ParameterStrategy:
    at = f"parameters[{shorten(name)}]"
    field.text(f"the name in {at}", name)
    uneven = {"rows"} & set(entry if isinstance(entry, dict) else ())
    field.table(at, entry, {*_KEPT, "device_matrix", "tensor_map", *uneven})

    def check(name: str, fits: bool, allowed: str) -> None:
        field.check(fits, f"{at}.{name}", entry[name], allowed)

    shape, slice_shape = (field.numbers(f"{at}.{name}", entry[name]) for name in ("shape", "slice_shape"))
    matrix = field.numbers(f"{at}.device_matrix", entry["device_matrix"], 1)
    entries = field.lists(f"{at}.tensor_map", entry["tensor_map"])
    try:
        layout = TensorLayout(matrix, entries, rows=field.numbers(f"{at}.rows", entry.get("rows", [])))
        shape_of_slice = layout.slice_shape(shape)
    except LayoutError as error:
        raise CheckpointError(f"{at}: {error}", where=field.where) from None
    check("slice_shape", shape_of_slice == slice_shape, f"{list(shape_of_slice)}, by the layout")
    check("device_matrix", device_num % math.prod(matrix) == 0, f"A product that divides the {device_num} devices")
    check("trainable", isinstance(entry["trainable"], bool), "true or false")
    check("field_size", field.number(f"{at}.field_size", entry["field_size"]) == 0, "0: parameters are split evenly")
    held, count = field.numbers(f"{at}.stages", entry["stages"]), max(len(stages), 1)
    check("stages", all(stage < count for stage in held), f"Numbers below {count}")
    ranks = [stages[stage][1] for stage in held] if stages else []
    fits = all(number % math.prod(matrix) == 0 for number in ranks)
    check("device_matrix", fits, f"A product that divides the numbers of ranks of its stages: {ranks}")
    shard = [field.number(f"{at}.{key}", entry[key], -1, MAX_RANKS) for key in ("opt_shard_step", "opt_shard_size")]
    dtype = field.text(f"{at}.dtype", entry["dtype"])
    return ParameterStrategy(name, shape, dtype, layout, entry["trainable"], 0, *shard, held)


def _operator(field: _Field, name: str, entry: Any, device_num: int) -> OperatorStrategy:
    at = f"operators[{shorten(name)}]"
    field.text(f"the name in {at}", name)
    field.table(at, entry, {"op", "strategy", "out_strategy", "source"})
    strategy, out_strategy = (
        _strategy_from_plain(field, f"{at}.{key}", entry[key], device_num) for key in ("strategy", "out_strategy")
    )
    source = field.text(f"{at}.source", entry["source"], may_be_empty=True)
    return OperatorStrategy(name, field.text(f"{at}.op", entry["op"]), strategy, out_strategy, source)


def _strategy_from_plain(field: _Field, at: str, entry: Any, device_num: int) -> Counts | LayoutStrategy | None:
    if entry is None:
        return None
    if isinstance(entry, dict):
        field.table(at, entry, {"device_matrix", "alias_name", "dims", "nd_tp"})
        kinds = [type(entry[name]) for name in ("dims", "alias_name", "nd_tp")]
        field.check(
            kinds == [list, list, bool], at, entry, "Lists under alias_name and dims, true or false under nd_tp"
        )
        matrix = f"{at}.device_matrix"
        try:
            layout = Layout(field.numbers(matrix, entry["device_matrix"], 1), tuple(entry["alias_name"]))
            field.check(layout.device_num <= MAX_RANKS, matrix, entry["device_matrix"], f"At most {MAX_RANKS} ranks")
            return LayoutStrategy(tuple(_called(layout, dims) for dims in entry["dims"]), entry["nd_tp"])
        except (LayoutError, TypeError) as error:
            raise CheckpointError(f"{at}: {error}", where=field.where) from None
    counts = field.lists(at, entry, 1)
    fits = all(math.prod(one) <= device_num for one in counts)
    field.check(fits, at, entry, f"At most {device_num} slices per input")
    return counts


def _called(layout: Layout, dims: Any) -> Layout:
    return layout if dims is None else layout(*(tuple(d) if isinstance(d, list) else d for d in dims))
