"""Checkpoints of many ranks, loaded into networks of other layouts.

    load_distributed_checkpoint(net, ["rank_0/x.ckpt", "rank_1/x.ckpt"])   into a network, whatever its layouts

Rules and errors: MindSpore (train/serialization.py). Our files know their layouts; where a strategy file is given it
must agree with them, and it explains files that hold bare slices.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...base.checks import checked, instance, integer
from ...base.errors import (
    CheckpointError,
    CheckpointTypeError,
    CheckpointWriteError,
    DataFileError,
    LayoutError,
    NotBuiltYet,
    message,
    shorten,
)
from ...base.files import write_whole
from ...base.hooks import current_world
from ...base.plain_json import dump_json
from ...base.settings.current import get_auto_parallel_context
from ...graph.plan import Plan
from ...layout.named_layout import Layout
from ...layout.slices import is_split, same_slices
from ...layout.tensor_layout import TensorLayout
from ...nn.cell import Cell
from ...nn.optim.state_shapes import layout_of_state, shape_of_state
from .format import Checkpoint, describe_checkpoint, read_checkpoint
from .records import CHECKPOINT, TensorInfo, TensorRecord
from .serialization import FILE, refuse_encryption, wait_for_saves
from .stored import StoredTensor, load_parts
from .strategy_file import ParameterStrategy, StrategyFile, load_strategy
from .values import load_records, optimizer_names, optimizers_of, parameter_of_state

GROUP_FORMAT = "parallel_lab-group"
LAYOUTS = instance(Mapping, "A dict {name: layout}")


def strategy_of(name: str, strategy: StrategyFile | None) -> ParameterStrategy | None:
    """How a strategy file splits tensor `name`, optimizer states like their parameter. None: it does not say."""
    if strategy is None:
        return None
    own = strategy.by_name.get(name)
    of = strategy.by_name.get(parameter_of_state(name) or "")
    if own is not None or of is None:
        return own
    kind = name.partition(".")[0]
    return replace(of, shape=shape_of_state(kind, of.shape), layout=layout_of_state(kind, of.layout))


# ---- a list of files ----


class RankFiles:
    """The checkpoint files of some or all ranks, read as one.

    files     {rank: file}
    strategy  how tensors are split, for files that do not say it; None: as they say;  where: for errors

    `tensors` is {name: StoredTensor}. Headers are read at once, elements when `load` needs them.
    """

    def __init__(self, files: Mapping[int, str | os.PathLike[str]], strategy: StrategyFile | None, where: str) -> None:
        self.files, self.where = {rank: Path(file) for rank, file in sorted(files.items())}, where
        self._infos: dict[int, dict[str, TensorInfo]] = {}
        held: dict[str, tuple[TensorInfo, dict[int, int]]] = {}
        for rank, file in self.files.items():
            own = self._infos[rank] = {}
            for name, info_in_file in describe_checkpoint(file).tensors.items():
                info = _explained(info_in_file, strategy_of(name, strategy), rank, f"{file}, tensor {name!r}")
                own[name] = info
                first, holders = held.setdefault(name, (info, {}))
                is_same = (first.dtype, first.global_shape) == (info.dtype, info.global_shape)
                if not is_same or not same_slices(first.layout, info.layout):
                    what = f"{file} holds {name!r} as {_text(info)}, an earlier file as {_text(first)}"
                    raise CheckpointError(what, where=where, allowed="Files of one save")
                if is_split(info.layout) and holders.get(info.rank, rank) != rank:
                    both = f"{file} and {self.files[holders[info.rank]]}"
                    what = f"{both} both hold the part of rank {info.rank} of {name!r}"
                    raise CheckpointError(what, where=where, allowed="Each rank's file once, in the order of the ranks")
                holders[info.rank if info.layout is not None else rank] = rank
        self.tensors: dict[str, StoredTensor] = {}
        for name, (info, holders) in held.items():
            self.tensors[name] = StoredTensor(info.dtype, info.global_shape, info.layout, tuple(holders.items()))

    @property
    def device_num(self) -> int:
        """Ranks of the run that wrote the files; 1 if nothing is split."""
        return max((t.layout.device_num for t in self.tensors.values() if is_split(t.layout)), default=1)

    def load(
        self, layouts: Mapping[str, TensorLayout | None], rank: int, names: Collection[str] | None = None
    ) -> dict[str, TensorRecord]:
        """{name: what `rank` holds under `layouts`}, from the files that are needed for it."""
        return load_parts(self.tensors, self._read, layouts, rank, names, self.where)

    def _read(self, rank: int, names: set[str]) -> Checkpoint:
        checkpoint = read_checkpoint(self.files[rank], names)
        parts = [(name, record.array, self._infos[rank][name]) for name, record in checkpoint.tensors.items()]
        tensors = {name: TensorRecord(a, info.global_shape, info.layout, info.rank) for name, a, info in parts}
        return replace(checkpoint, tensors=tensors)


def _text(info: TensorInfo) -> str:
    return f"{info.dtype} {info.global_shape} by {info.layout}"


def _explained(info: TensorInfo, strategy: ParameterStrategy | None, rank: int, where: str) -> TensorInfo:
    """What a file says of a tensor, completed by the strategy: a bare slice becomes the part of a whole."""
    if strategy is None:
        return info
    if info.layout is not None:
        if is_split(info.layout) and not same_slices(info.layout, strategy.layout):
            what = f"it is split by {info.layout}, and the strategy says {strategy.layout}"
            raise CheckpointError(what, where=where, allowed="The strategy file of the run that wrote it")
        return info
    if info.shape == strategy.shape:
        return info
    if info.shape == strategy.slice_shape:
        rank = rank % strategy.layout.device_num
        return replace(info, global_shape=strategy.shape, layout=strategy.layout, rank=rank)
    allowed = f"{strategy.shape}, or a slice of {strategy.slice_shape}, by the strategy"
    raise CheckpointError(f"it has shape {info.shape}", where=where, allowed=allowed)


# ---- MindSpore's functions ----


@checked(
    "",
    CHECKPOINT,
    network=instance(Cell, "A Cell"),
    checkpoint_filenames=instance(Sequence, "A list of file names, one per rank, in the order of the ranks"),
    predict_strategy=LAYOUTS | None,
    max_process_num=integer(1),
)
def load_distributed_checkpoint(
    network: Cell,
    checkpoint_filenames: Sequence[str | os.PathLike[str]] = (),
    predict_strategy: Mapping[str, Any] | None = None,
    train_strategy_filename: str | os.PathLike[str] | None = None,
    strict_load: bool = False,
    dec_key: bytes | None = None,
    dec_mode: str = "AES-GCM",
    format: str = "ckpt",
    unified_safetensors_dir: None = None,
    dst_safetensors_dir: None = None,
    rank_id: None = None,
    output_format: str = "safetensors",
    name_map: None = None,
    max_process_num: int = 64,
    return_param_dict: bool = False,
) -> None:
    """Load the files of all ranks into a network, whatever the numbers of ranks and layouts on both sides.

    network                  slices, or whole tensors, as its parameters hold; its optimizers get their states
    checkpoint_filenames     one .ckpt file per rank of the run that wrote them, in the order of the ranks
    predict_strategy         {name: layout} of this run, as `Model.infer_predict_layout` gives; None: whole tensors
    train_strategy_filename  strategy file of the run that wrote them; None: the context's strategy_ckpt_load_file if
                             that is set. Files of `save_checkpoint` say themselves how they are split

    max_process_num          without effect: each rank reads what it needs, by itself
    format to return_param_dict   stay at their defaults: they are for whole .safetensors files on a common disk, where
                             `load_checkpoint` and `load_param_into_net` do here

    A rank reads the elements of those files only that hold something of its own: under an unchanged strategy its own
    file. Parameters that are in none of the files keep their values, with a warning. Raises CheckpointTypeError (a
    TypeError) for other types; CheckpointError (a ValueError) for missing files, not one per rank, or that do not fit.
    """
    where = "load_distributed_checkpoint"
    refuse_encryption(dec_key, where)
    others = {"format": format, "output_format": output_format, "return_param_dict": return_param_dict}
    others |= {"unified_safetensors_dir": unified_safetensors_dir, "dst_safetensors_dir": dst_safetensors_dir}
    for name, value in {**others, "rank_id": rank_id, "name_map": name_map}.items():
        usual = {"format": "ckpt", "output_format": "safetensors", "return_param_dict": False}.get(name)
        if value is not usual and (type(value) is not type(usual) or value != usual):
            hint = "Use load_checkpoint and load_param_into_net for a .safetensors file"
            raise NotBuiltYet(f"{name}={shorten(value)}", where=where, allowed=repr(usual), hint=hint)
    files = _checked_files(checkpoint_filenames, where)
    wait_for_saves()
    strategy_file = train_strategy_filename or get_auto_parallel_context("strategy_ckpt_load_file")
    strategy = load_strategy(strategy_file) if strategy_file else None
    stored = RankFiles(dict(enumerate(files)), strategy, where)
    expected = strategy.device_num if strategy else stored.device_num
    # the layouts of a pipeline's stages count the ranks of a stage: there are files of several stages
    fits = len(files) == expected if strategy else len(files) % expected == 0
    if not fits:
        what = f"{len(files)} files"
        raise CheckpointError(what, where=where, allowed=f"{expected}, one per rank of the run that wrote them")
    world = current_world()
    layouts = _wanted_layouts(network, stored, parameter_layouts(predict_strategy or {}), world)
    own_names = {p.name for p in network.get_parameters()}.union(*map(optimizer_names, optimizers_of(network)))
    # names that differ by a prefix are matched when all are known
    names = own_names if own_names <= stored.tensors.keys() else None
    missing, _ = load_records(network, stored.load(layouts, world.rank if world else 0, names), strict=strict_load)
    if missing:
        what = f"{len(missing)} parameters are in none of the files and keep their values: {shorten(missing)}"
        warnings.warn(message(what, where=where, hint="Check that the network is the one that was saved"), stacklevel=2)


def _checked_files(files: Any, where: str) -> list[Path]:
    if isinstance(files, (str, os.PathLike)):
        allowed = "A list of file names, one per rank, in the order of the ranks"
        raise CheckpointTypeError(f"checkpoint_filenames={shorten(files)}", where=where, allowed=allowed)
    paths = []
    for i, file in enumerate(files):
        path = Path(FILE(where, f"checkpoint_filenames[{i}]", file, CHECKPOINT))
        if not path.is_file() or path.suffix != ".ckpt":
            fault = "does not end with '.ckpt'" if path.is_file() else "does not exist"
            what = f"checkpoint_filenames[{i}], {str(file)!r}, {fault}"
            raise CheckpointError(what, where=where, allowed="An existing .ckpt file")
        paths.append(path)
    if not paths:
        raise CheckpointError("checkpoint_filenames is empty", where=where, allowed="One file per rank")
    return paths


def _wanted_layouts(
    network: Cell, stored: RankFiles, predict: Mapping[str, TensorLayout | None], world: Any
) -> dict[str, TensorLayout | None]:
    """How this process is to hold each stored tensor: as the network does; a whole one, as the strategy says."""
    held: dict[str, TensorLayout | None] = {p.name: p.layout for p in network.get_parameters()}
    for optimizer in optimizers_of(network):
        for name, layout in optimizer.state_layouts.items():
            held.update({f"{state}.{name}": layout_of_state(state, layout) for state in optimizer.states[name]})
    layouts = {}
    for name in stored.tensors:
        layout = held.get(name)
        planned = predict.get(name)
        if parameter := parameter_of_state(name):
            planned = planned or layout_of_state(name.partition(".")[0], predict.get(parameter))
        if (
            not is_split(layout)
            and is_split(planned)
            and world is not None
            and not world.world_size % planned.device_num
        ):
            layout = planned
        if is_split(layout):
            layouts[name] = layout
    return layouts


# ---- layouts as they are written ----


def parameter_layouts(strategy: Mapping[str, Any]) -> dict[str, TensorLayout | None]:
    """{name: TensorLayout or None} of a dict of TensorLayouts, layouts with named axes, ParameterStrategies, None, or
    MindSpore's lists (device matrix, tensor map, ...). Raises CheckpointError (a ValueError) naming the entry.
    """
    return {name: as_layout(value, f"strategy[{shorten(name)}]") for name, value in strategy.items()}


def as_layout(value: Any, where: str) -> TensorLayout | None:
    """One value of such a dict as a TensorLayout; None: whole. Raises CheckpointError (a ValueError)."""
    allowed = "A TensorLayout, a Layout, or a list of a device matrix and a tensor map"
    try:
        if value is None or isinstance(value, TensorLayout):
            return value
        if isinstance(value, ParameterStrategy):
            return value.layout
        if isinstance(value, Layout):
            return value.tensor_layout()
        if isinstance(value, (list, tuple)) and len(value) >= 2:
            matrix, entries = value[:2]
            return TensorLayout(tuple(matrix), tuple(tuple(e) if isinstance(e, list) else e for e in entries))
    except (LayoutError, TypeError) as error:
        raise CheckpointError(f"it is {shorten(value)}: {error}", where=where, allowed=allowed) from None
    raise CheckpointError(f"it is {shorten(value)}", where=where, allowed=allowed)


# ---- which ranks hold the same ----


def save_group_info(plan: Plan, path: str, rank: int) -> None:
    """Write which ranks hold the same slice of every parameter as `rank`: their checkpoints can take its place."""
    stage = plan.stage_of(rank)  # whose ranks its layouts count
    layouts = [plan.value(one.name).layout for one in plan.parameters if plan.held_by(one.name, rank)]
    same = [layout.replicas(rank - stage.first) for layout in layouts if layout is not None]
    ranks = [stage.first + place for place in sorted(set(range(stage.count)).intersection(*same))]
    try:
        write_whole(Path(path), dump_json({"format": GROUP_FORMAT, "version": 1, "ranks": ranks}) + "\n")
    except (DataFileError, OSError) as error:
        raise CheckpointWriteError(f"the group cannot be written: {error}", where=path) from error
