"""`pl.checkpoint`: that of `train/`, and files re-sliced without a network, for any strategy and number of ranks.

    transform_checkpoints("trained", "for_serving", "net", "train_strategy.ckpt", "serve_strategy.ckpt")

    trained/rank_0/net-3_100.ckpt ... rank_7/net-3_100.ckpt    ->    for_serving/rank_0/net0.ckpt ... rank_3/net3.ckpt

`rank_list_for_transform` says which source ranks a target rank needs, `transform_checkpoint_by_rank` makes one target
file: on a cluster each machine fetches only those. Optimizer states are split like their parameters. Names, folders and
errors: MindSpore (parallel/checkpoint_transform.py). A source without strategy file is what its files say. Further:

    merge_sliced_parameter([p0, p1], {"w": layout})      one Parameter from all slices
    build_searched_strategy("train_strategy.ckpt")       {name: layout} of a strategy file
"""

# ruff: noqa: F403 - imported for others: this is a public face

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..base.checks import checked, choice, instance, integer, is_int, text
from ..base.errors import (
    CheckpointError,
    CheckpointFolderError,
    CheckpointKeyError,
    CheckpointTypeError,
    CheckpointWriteError,
    shorten,
)
from ..base.plain_json import read_json
from ..base.settings.compat import get_compat
from ..layout.redistribution import plan_redistribution
from ..layout.tensor_layout import TensorLayout
from ..nn.tensor.parameter import Parameter
from ..nn.tensor.tensor import Tensor
from ..train.checkpoint import *
from ..train.checkpoint.distributed import GROUP_FORMAT, LAYOUTS, RankFiles, as_layout, strategy_of
from ..train.checkpoint.folder import MANIFEST, Manifest, read_manifest
from ..train.checkpoint.format import write_checkpoint
from ..train.checkpoint.records import CHECKPOINT, FILE, FOLDER, MAX_RANKS, TensorRecord, check_name
from ..train.checkpoint.reslice import needed_ranks, whole_array
from ..train.checkpoint.serialization import wait_for_saves
from ..train.checkpoint.strategy_file import (
    OperatorStrategy,
    ParameterStrategy,
    StrategyFile,
    load_strategy,
    save_strategy,
)

RANK = integer(0, kinds=int)
_RANK_FOLDER = re.compile(r"rank_(\d{1,7})")


@checked("", CHECKPOINT, rank_id=RANK, src_strategy_file=FILE | None, dst_strategy_file=FILE | None)
def rank_list_for_transform(
    rank_id: int,
    src_strategy_file: str | os.PathLike[str] | None = None,
    dst_strategy_file: str | os.PathLike[str] | None = None,
) -> list[int]:
    """Ranks of the source whose files are needed to make the file of rank `rank_id` of the target, ascending: of ranks
    with the same slice one that is needed anyway.

    With compat "2.10" all ranks whose parts MindSpore's operators would bring together, which gather in whole groups.

    Strategy file None: whole tensors; a whole source is read from rank 0. Raises CheckpointTypeError (a TypeError), and
    CheckpointError (a ValueError) for a missing strategy file, two that do not fit, or an unknown rank.
    """
    where = "rank_list_for_transform"
    source, target = _strategies(src_strategy_file, dst_strategy_file)
    _check_rank(rank_id, target, where)
    if source is None:
        return [0]
    if not source.parameters:
        what = f"{str(src_strategy_file)!r} has no parameters"
        raise CheckpointError(what, where=where, allowed="The strategy file of a network")
    ranks: set[int] = set()
    place = _place(target, rank_id)
    # those that few ranks hold first: what the others need is then often on one of these ranks
    for parameter in sorted(source.parameters, key=lambda one: one.layout.replica_count):
        target_strategy = strategy_of(parameter.name, target)
        if target_strategy is not None and target_strategy.shape != parameter.shape:
            shapes = f"shape {parameter.shape} in the source's strategy, and {target_strategy.shape} in the target's"
            raise CheckpointError(f"{parameter.name!r} has {shapes}", where=where, allowed="Strategies of one network")
        if target_strategy is not None and _stage(target, rank_id) not in target_strategy.stages:
            continue
        first, count = _stages(source)[parameter.stages[0]]
        ranks_of_stage = {rank - first for rank in ranks if first <= rank < first + count}
        move = parameter.layout, target_strategy.layout if target_strategy else None, parameter.shape, place
        needed = _gathered_ranks(*move) if get_compat() == "2.10" else needed_ranks(*move, ranks_of_stage)
        ranks.update(first + rank for rank in needed)
    return sorted(ranks)


def _gathered_ranks(
    src: TensorLayout | None, dst: TensorLayout | None, shape: tuple[int, ...], rank: int
) -> Iterable[int]:
    """Ranks of `src` whose parts reach `rank` of `dst` by the messages of a redistribution without all_to_all."""
    if src is None or src.rows or (dst is not None and dst.rows):
        return needed_ranks(src, dst, shape, rank)
    dst = dst or TensorLayout.replicated(src.device_num, len(shape))
    many, found = math.lcm(src.device_num, dst.device_num), {rank}
    # a smaller number of devices is repeated
    both = (TensorLayout((many // one.device_num, *one.device_matrix), one.tensor_map) for one in (src, dst))
    for step in reversed(plan_redistribution(*both, shape)):
        if step.communicates:
            found = {member for each in found for member in step.group(each)}
    return {each % src.device_num for each in found}


@checked(
    "",
    CHECKPOINT,
    rank_id=RANK,
    checkpoint_files_map=instance(Mapping, "A dict {rank: file name}"),
    save_checkpoint_file_name=text,
    src_strategy_file=FILE | None,
    dst_strategy_file=FILE | None,
)
def transform_checkpoint_by_rank(
    rank_id: int,
    checkpoint_files_map: Mapping[int, str | os.PathLike[str]],
    save_checkpoint_file_name: str,
    src_strategy_file: str | os.PathLike[str] | None = None,
    dst_strategy_file: str | os.PathLike[str] | None = None,
) -> None:
    """Make the checkpoint file of rank `rank_id` of the target.

    checkpoint_files_map       {source rank: file}, at least of those that `rank_list_for_transform` names
    save_checkpoint_file_name  file to write, ending with ".ckpt"; its folder is made
    src_strategy_file          None: the files say how they are split
    dst_strategy_file          None: whole tensors

    Raises CheckpointTypeError (a TypeError) for other types, CheckpointError (a ValueError) for names, files and
    strategies that are missing or do not fit.
    """
    where = "transform_checkpoint_by_rank"
    if not save_checkpoint_file_name.endswith(".ckpt"):
        what = f"save_checkpoint_file_name={shorten(save_checkpoint_file_name)}"
        raise CheckpointError(what, where=where, allowed="A str that ends with '.ckpt'")
    source, target = _strategies(src_strategy_file, dst_strategy_file)
    _check_rank(rank_id, target, where)
    for rank, file in checkpoint_files_map.items():
        if not is_int(rank) or not isinstance(file, (str, os.PathLike)):
            what = f"checkpoint_files_map has {shorten(rank)}: {shorten(file)}"
            raise CheckpointTypeError(what, where=where, allowed="Ranks as int, file names as str")
        if rank < 0 or not os.path.isfile(file):
            fault = "not a rank" if rank < 0 else "missing"
            what = f"checkpoint_files_map has {rank}: {str(file)!r}, which is {fault}"
            raise CheckpointError(what, where=where, allowed="Existing files, of ranks from 0")
    if not checkpoint_files_map:
        what = "checkpoint_files_map is empty"
        raise CheckpointError(what, where=where, allowed="The files that rank_list_for_transform names")
    wait_for_saves()
    _write(RankFiles(checkpoint_files_map, source, where), target, rank_id, Path(save_checkpoint_file_name))


@checked(
    "",
    CHECKPOINT,
    src_checkpoints_dir=FOLDER,
    dst_checkpoints_dir=FOLDER,
    ckpt_prefix=text,
    src_strategy_file=FILE | None,
    dst_strategy_file=FILE | None,
    process_num=integer(1),
    output_format=choice("ckpt", "safetensors"),
)
def transform_checkpoints(
    src_checkpoints_dir: str | os.PathLike[str],
    dst_checkpoints_dir: str | os.PathLike[str],
    ckpt_prefix: str,
    src_strategy_file: str | os.PathLike[str] | None = None,
    dst_strategy_file: str | os.PathLike[str] | None = None,
    process_num: int = 1,
    output_format: str = "ckpt",
) -> None:
    """Make the checkpoint files of all ranks of the target.

    src_checkpoints_dir  folder with rank_0, rank_1, ...; of several .ckpt files in one of them the last is taken,
                         numbers compared as numbers:
                         x-1_10.ckpt after x-1_9.ckpt (not so in MindSpore). Or save_distributed's folder
    dst_checkpoints_dir  gets rank_<n>/<ckpt_prefix><n>.ckpt
    src_strategy_file    None: the files say how they are split
    dst_strategy_file    None: whole tensors, for rank 0
    process_num          without effect: files are made one after another, by this process
    output_format        "ckpt". "safetensors" is refused for .ckpt files, as MindSpore does

    Raises CheckpointFolderError (a NotADirectoryError) if the source is not a folder, CheckpointError (a ValueError) if
    files or strategies are missing or do not fit, CheckpointTypeError (a TypeError) for other types.
    """
    where = "transform_checkpoints"
    if output_format != "ckpt":
        allowed = "'ckpt', where the source has .ckpt files (which are safetensors files here)"
        raise CheckpointError(f"output_format={output_format!r}", where=where, allowed=allowed)
    check_name(ckpt_prefix, f"{where}, ckpt_prefix")
    if not os.path.isdir(src_checkpoints_dir):
        what = f"src_checkpoints_dir={str(src_checkpoints_dir)!r} is not a folder"
        raise CheckpointFolderError(what, where=where, allowed="A folder")
    source, target = _strategies(src_strategy_file, dst_strategy_file)
    wait_for_saves()
    has_manifest = os.path.exists(Path(src_checkpoints_dir) / MANIFEST)
    stored = read_manifest(src_checkpoints_dir) if has_manifest else _rank_files(src_checkpoints_dir, source)
    for rank in range(target.device_num if target else 1):
        _write(stored, target, rank, Path(dst_checkpoints_dir) / f"rank_{rank}" / f"{ckpt_prefix}{rank}.ckpt")


@checked("", CHECKPOINT, src_strategy_dirs=FOLDER, dst_strategy_file=FILE)
def merge_pipeline_strategys(
    src_strategy_dirs: str | os.PathLike[str], dst_strategy_file: str | os.PathLike[str]
) -> None:
    """Write one strategy file with what all those in a folder say.

    Raises CheckpointFolderError (a NotADirectoryError) if it is not a folder, CheckpointError (a ValueError) if it
    is empty, or if two contradict each other, CheckpointTypeError (a TypeError) for other types.
    """
    where = "merge_pipeline_strategys"
    if not os.path.isdir(src_strategy_dirs):
        what = f"src_strategy_dirs={str(src_strategy_dirs)!r} is not a folder"
        raise CheckpointFolderError(what, where=where, allowed="A folder of strategy files")
    files = sorted(path for path in Path(src_strategy_dirs).iterdir() if path.is_file())
    parameters: dict[str, ParameterStrategy] = {}
    operators: dict[str, OperatorStrategy] = {}
    numbers, stages = set(), set()
    for path in files:
        one = load_strategy(path)
        for merged_by_name, strategies in ((parameters, one.parameters), (operators, one.operators)):
            for each in strategies:
                if merged_by_name.setdefault(each.name, each) != each:
                    what = f"{path} says of {each.name!r} what another file does not"
                    raise CheckpointError(what, where=where, allowed="Files of one run")
        numbers.add(one.device_num)
        stages.update(one.stages)
    if len(numbers) != 1:
        what = f"{src_strategy_dirs} has strategies of {shorten(sorted(numbers))} devices" if numbers else "no file"
        raise CheckpointError(what, where=where, allowed="Strategy files of one run")
    merged = StrategyFile(*numbers, tuple(parameters.values()), tuple(operators.values()), tuple(sorted(stages)))
    save_strategy(merged, dst_strategy_file)


def _rank_files(folder: str | os.PathLike[str], strategy: StrategyFile | None) -> RankFiles:
    files = {}
    for entry in Path(folder).iterdir():
        match = _RANK_FOLDER.fullmatch(entry.name)
        if match and entry.is_dir():
            inside = sorted(entry.glob("*.ckpt"), key=_by_numbers)
            if not inside:
                what = "there is no .ckpt file in it"
                raise CheckpointError(what, where=str(entry), allowed="The checkpoint file of this rank")
            files[int(match[1])] = inside[-1]
    expected = range(strategy.device_num if strategy else len(files))
    if sorted(files) != list(expected) or not files:
        allowed = f"rank_0 to rank_{max(len(expected), 1) - 1}, with a .ckpt file in each"
        what = f"there are the folders of ranks {shorten(sorted(files))}"
        raise CheckpointError(what, where=str(folder), allowed=allowed)
    stored = RankFiles(files, strategy, str(folder))
    if len(files) % stored.device_num:
        what = f"there are {len(files)} files of {stored.device_num} ranks"
        raise CheckpointError(what, where=str(folder), allowed=f"rank_0 to rank_{stored.device_num - 1}")
    return stored


def _by_numbers(path: Path) -> list[tuple[int, int, str]]:
    """A key that compares the numbers in a name as numbers."""
    return [(1, int(part), "") if part.isdigit() else (0, 0, part) for part in re.split(r"(\d+)", path.name)]


def _write(stored: RankFiles | Manifest, target: StrategyFile | None, rank: int, path: Path) -> None:
    layouts: dict[str, TensorLayout | None] = {}
    names = set(stored.tensors)
    for name, one in stored.tensors.items():
        strategy = strategy_of(name, target)
        if strategy is not None and _stage(target, rank) not in strategy.stages:
            names.remove(name)  # another stage's
        elif strategy is not None and one.global_shape == strategy.shape:
            layouts[name] = strategy.layout
        elif strategy is not None and strategy.name == name:
            what = f"it has shape {one.global_shape}, and {strategy.shape} in the target's strategy"
            raise CheckpointError(what, where=f"{stored.where}, tensor {name!r}", allowed="Strategies of one network")
    records = stored.load(layouts, _place(target, rank), names)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CheckpointWriteError(f"the folder cannot be made: {error}", where=str(path.parent)) from error
    write_checkpoint(path, records)


def _strategies(src: Any, dst: Any) -> tuple[StrategyFile | None, StrategyFile | None]:
    source, target = (None if file is None else load_strategy(file) for file in (src, dst))
    return source, target


def _stages(strategy: StrategyFile) -> tuple[tuple[int, int], ...]:
    """(first rank, number of ranks) of each pipeline stage."""
    return strategy.stages or ((0, strategy.device_num),)


def _stage(strategy: StrategyFile, rank: int) -> int:
    """The pipeline stage of a rank."""
    return next(n for n, (first, count) in enumerate(_stages(strategy)) if first <= rank < first + count)


def _place(strategy: StrategyFile | None, rank: int) -> int:
    """The place of a rank in its pipeline stage, by which layouts count."""
    return rank if strategy is None else rank - _stages(strategy)[_stage(strategy, rank)][0]


def _check_rank(rank: int, target: StrategyFile | None, where: str) -> None:
    if target is not None and rank >= target.device_num:
        allowed = f"0 to {target.device_num - 1}, by the target's strategy"
        raise CheckpointError(f"rank_id={rank}", where=where, allowed=allowed)


# ---- strategies, slices and groups of a run ----


@checked("", CHECKPOINT, strategy_filename=FILE)
def build_searched_strategy(strategy_filename: str | os.PathLike[str]) -> dict[str, TensorLayout]:
    """{parameter name: layout} of a strategy file. Raises CheckpointError (a ValueError), CheckpointTypeError."""
    return load_strategy(strategy_filename).layouts


@checked(
    "",
    CHECKPOINT,
    sliced_parameters=instance(list, "A list of Parameters, in the order of the ranks"),
    strategy=LAYOUTS | None,
)
def merge_sliced_parameter(sliced_parameters: list[Parameter], strategy: Mapping[str, Any] | None = None) -> Parameter:
    """One whole Parameter from its slices.

    sliced_parameters  one Parameter per rank, in the order of the ranks, of one name, shape and dtype
    strategy           {name: layout}, of equal slices the last one counts. None: slices are joined along dim 0

    Raises CheckpointTypeError (a TypeError) for other types, CheckpointError (a ValueError) if slices do not fit
    together, CheckpointKeyError (a KeyError) if the strategy does not name the parameter.
    """
    where = "merge_sliced_parameter"
    if not sliced_parameters:
        raise CheckpointError("sliced_parameters is empty", where=where, allowed="One Parameter per rank")
    for i, one in enumerate(sliced_parameters):
        if not isinstance(one, Parameter):
            raise CheckpointTypeError(f"sliced_parameters[{i}] is {shorten(one)}", where=where, allowed="A Parameter")
    first = sliced_parameters[0]
    arrays = [p.asnumpy() for p in sliced_parameters]
    for i, one in enumerate(sliced_parameters):
        if (one.name, one.shape, one.dtype) != (first.name, first.shape, first.dtype):
            other = f"slice 0 {first.name!r}, {first.dtype} {first.shape}"
            what = f"slice {i} is {one.name!r}, {one.dtype} {one.shape}, and {other}"
            raise CheckpointError(what, where=where, allowed="Slices of one parameter, with one name, shape and dtype")
    if strategy is None:
        if not first.shape:
            what = f"{first.name!r} is a number and cannot be joined along dim 0"
            raise CheckpointError(what, where=where, hint="Give the strategy")
        full = np.concatenate(arrays)
    else:
        if first.name not in strategy:
            what = f"the strategy has no entry for {first.name!r}"
            raise CheckpointKeyError(what, where=where, allowed=f"It names {shorten(sorted(map(str, strategy)))}")
        layout = as_layout(strategy[first.name], f"{where}, strategy[{first.name!r}]")
        full = _merged(arrays, layout, f"{where}, {first.name!r}")
    flags = {"requires_grad": first.requires_grad, "layerwise_parallel": first.layerwise_parallel}
    return Parameter(Tensor(full), name=first.name, **flags)


def _merged(arrays: list[np.ndarray], layout: TensorLayout | None, where: str) -> np.ndarray:
    if layout is None:
        return np.array(arrays[-1])
    if layout.device_num != len(arrays):
        what = f"{len(arrays)} slices"
        raise CheckpointError(what, where=where, allowed=f"{layout.device_num}, one per rank of {layout}")
    if layout.ndim != arrays[0].ndim:
        what = f"slices of {arrays[0].ndim} dims"
        raise CheckpointError(what, where=where, allowed=f"{layout.ndim} dims, by {layout}")
    shape = tuple(size * cut for size, cut in zip(arrays[0].shape, layout.splits, strict=True))
    return whole_array([TensorRecord(array, shape, layout, rank) for rank, array in enumerate(arrays)], where)


def restore_group_info_list(group_info_file_name: str) -> list[int]:
    """The ranks whose checkpoints hold the same as that of the rank which wrote a `group_ckpt_save_file`.

    Raises CheckpointTypeError for anything but a str, CheckpointError for a file that is missing or another's.
    """
    if not isinstance(group_info_file_name, str):
        what = f"group_info_file_name={shorten(group_info_file_name)}"
        raise CheckpointTypeError(what, where="restore_group_info_list", allowed="The name of a file, as str")
    hint = "group_ckpt_save_file of the run that trained names it"
    content = read_json(group_info_file_name, CheckpointError, hint=hint)
    ranks = content.pop("ranks", None) if isinstance(content, dict) else None
    is_known = isinstance(ranks, list) and repr(content) == repr({"format": GROUP_FORMAT, "version": 1})
    if not is_known or not all(type(rank) is int and 0 <= rank < MAX_RANKS for rank in ranks):
        allowed = "A file that a run with group_ckpt_save_file wrote"
        raise CheckpointError("it is not a list of ranks", where=group_info_file_name, allowed=allowed)
    return ranks
