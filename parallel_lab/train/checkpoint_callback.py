"""`ModelCheckpoint`: writes checkpoints while a Model trains.

    config = CheckpointConfig(save_checkpoint_steps=100, keep_checkpoint_max=3)
    model.train(5, dataset, callbacks=[ModelCheckpoint("net", directory=f"rank_{get_rank()}", config=config)])
    # rank_0/net-graph.meta, net-1_100.ckpt, net-2_44.ckpt, ...

A file `<prefix>-<epoch>_<step>.ckpt` holds the parameters and the optimizer's states, so that a training can go on from
it (`load_checkpoint`, `load_param_into_net`); `<prefix>-graph.meta` is a text in JSON about the network. If the folder
has files of that prefix already, those of this run are called `<prefix>_1`, `<prefix>_2`, ... A new file is written
whole before an old one is deleted: there is always one to go on from, whenever the program is killed.

On several ranks each needs a folder of its own; ranks that train together are refused one in common, all of them before
the first step. In semi_auto and auto_parallel, `integrated_save=True` gathers the tensors on every rank, which
all ranks do at the same moment, while False writes each rank's slices. Rules and names: MindSpore,
train.callback.ModelCheckpoint.
"""

from __future__ import annotations

import json
import os
import platform
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ..base.checks import Check, checked, choice, fitting_class, flag, function, instance, integer, path_text, text
from ..base.errors import ArgumentError, CollectiveMismatch, NotBuiltYet, shorten
from ..base.files import write_whole
from ..base.hooks import current_world
from ..base.settings.checks import SHARDED_MODES
from ..nn.cell import Cell
from ..nn.tensor.tensor import Tensor
from .agreement import groups_of, said_by_first, training_world
from .callbacks import Callback, RunContext, params_of
from .checkpoint.format import write_checkpoint
from .checkpoint.records import TensorRecord
from .checkpoint.serialization import ASYNC, TEXTS, SaveThread, refuse_encryption
from .checkpoint.values import network_records, optimizer_records, optimizers_of, record_of


def _read_append_info(info: Any) -> dict[str, Any]:
    """What to save besides, by name; 0 where the value is known only when it is saved."""
    texts, dicts = ([one for one in info if isinstance(one, kind)] for kind in (str, dict))
    if not isinstance(info, list) or len(texts) + len(dicts) < len(info) or len(dicts) > 1:
        raise TypeError
    if not {*texts} <= {"epoch_num", "step_num"}:
        raise ValueError
    named = dicts[0] if dicts else {}
    for name, value in named.items():
        if not isinstance(name, str) or not isinstance(value, (int, float, str, Tensor)):
            raise TypeError(f"It holds {shorten(name)}: {shorten(value)}")
    return {**dict.fromkeys(texts, 0), **named}


APPEND_INFO = Check(
    "A list of 'epoch_num', 'step_num' and at most one dict {name: number, text or Tensor}", _read_append_info
)
COUNTS = ("save_checkpoint_steps", "save_checkpoint_seconds", "keep_checkpoint_max", "keep_checkpoint_per_n_minutes")
FLAGS = ("integrated_save", "exception_save", "crc_check", "remove_redundancy")
CONFIG = {
    **dict.fromkeys(COUNTS, integer(0) | None),
    **dict.fromkeys(FLAGS, flag),
    "async_save": ASYNC,
    "saved_network": instance(Cell, "A Cell") | None,
    "append_info": APPEND_INFO | None,
    "enc_mode": text,
    "format": choice("ckpt", "safetensors"),
}


@fitting_class
@dataclass(eq=False)
class CheckpointConfig:
    """When to save, and what to keep.

    save_checkpoint_steps          save every so many steps
    save_checkpoint_seconds        or every so many seconds: only if steps is None or 0
    keep_checkpoint_max            keep so many files, the oldest are deleted
    keep_checkpoint_per_n_minutes  or one of so many minutes, and the last (max None or 0). Neither: one file
    integrated_save                semi_auto and auto_parallel: gather the slices, so that each file holds whole tensors
    async_save                     write in a thread; the file is complete when the next begins, or the run ends
    saved_network                  the Cell to save; default: the trained network
    append_info                    also: list of "epoch_num", "step_num", at most one dict {name: number, text, Tensor}
    exception_save                 when the training ends with an error, save `<prefix>-<epoch>_<step>_breakpoint.ckpt`
                                   (slices, where they are split)
    format                         "ckpt" or "safetensors": the end of the file name; the format is the same

    crc_check is accepted: checksums are always written and checked. enc_key and remove_redundancy raise NotBuiltYet.
    Raises ArgumentTypeError (a TypeError and ValueError), ArgumentError (a ValueError).
    """

    save_checkpoint_steps: int | None = 1
    save_checkpoint_seconds: int | None = 0
    keep_checkpoint_max: int | None = 5
    keep_checkpoint_per_n_minutes: int | None = 0
    integrated_save: bool = True
    async_save: bool | str = False
    saved_network: Cell | None = None
    append_info: list[Any] | None = None
    enc_key: bytes | None = None
    enc_mode: str = "AES-GCM"
    exception_save: bool = False
    crc_check: bool = False
    remove_redundancy: bool = False
    format: str = "ckpt"

    def __post_init__(self) -> None:
        where = "CheckpointConfig"
        for name, check in CONFIG.items():
            setattr(self, name, check(where, name, getattr(self, name)))
        refuse_encryption(self.enc_key, where)
        if self.remove_redundancy:
            hint = "Omit it: every rank's file then has all that the rank holds"
            raise NotBuiltYet("remove_redundancy=True is not available yet", where=where, hint=hint)
        if not self.save_checkpoint_steps and not self.save_checkpoint_seconds:
            what = "save_checkpoint_steps and save_checkpoint_seconds are both None or 0: nothing would be saved"
            raise ArgumentError(what, where=where, allowed="One of them above 0")
        if self.save_checkpoint_steps:
            self.save_checkpoint_seconds = None
        if self.keep_checkpoint_max:
            self.keep_checkpoint_per_n_minutes = None
        else:
            self.keep_checkpoint_max = None if self.keep_checkpoint_per_n_minutes else 1
        self.append_dict = self.append_info  # as the check has read it

    def get_checkpoint_policy(self) -> dict[str, Any]:
        """When to save and what to keep, as a dict."""
        return {name: getattr(self, name) for name in (*COUNTS, "saved_network")}


def _read_prefix(value: Any) -> str:
    plain = text.read(value)
    if not plain or "/" in plain or "\0" in plain:
        raise ValueError
    return plain


PREFIX = Check("A non-empty str without '/'", _read_prefix)
FOLDER = path_text("A non-empty str or path", empty=False, kinds=(str, os.PathLike))


class ModelCheckpoint(Callback):
    """Saves what is trained. See the text of this module.

    prefix     beginning of the file names, without "/"
    directory  folder of this rank, made if it is missing; default: where the program was started
    config     a CheckpointConfig; default: every step, the last five are kept
    clock      seconds, for the rules in seconds and minutes: for tests

    Raises ArgumentTypeError and ArgumentError (both ValueErrors).
    """

    @checked(prefix=PREFIX, directory=FOLDER | None, config=instance(CheckpointConfig, "A CheckpointConfig") | None)
    def __init__(
        self,
        prefix: str = "CKP",
        directory: str | os.PathLike[str] | None = None,
        config: CheckpointConfig | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._given_prefix = self._prefix = prefix
        self._directory = Path.cwd() if directory is None else Path(directory).absolute()
        self._config = CheckpointConfig() if config is None else config
        self._clock = function("A function that gives seconds")("ModelCheckpoint", "clock", clock)
        self._latest = ""
        # those this run has written and not deleted, the oldest first, and when
        self._files: list[tuple[Path, float]] = []
        self._thread: SaveThread | None = None
        self._params: Any = None
        self._forget()

    def _forget(self) -> None:
        self._last_step, self._last_time, self._graph_saved = 0, self._clock(), False

    @property
    def latest_ckpt_file_name(self) -> str:
        """Path of the file that was written last; "" before the first."""
        return self._latest

    def place(self) -> dict[str, Any]:
        """Where and when this rank saves, for the ranks to compare."""
        config = self._config
        rule = [config.save_checkpoint_steps, config.save_checkpoint_seconds]
        place = {"folder": f"{platform.node()}:{self._directory}", "prefix": self._given_prefix}
        return {**place, "integrated_save": config.integrated_save, "rule": rule}

    # ---- the run ----

    def on_train_begin(self, run_context: RunContext) -> None:
        super().on_train_begin(run_context)
        self._forget()
        self._params = params_of(run_context)
        self._directory.mkdir(parents=True, exist_ok=True)
        self._prefix = free_prefix(self._directory, self._given_prefix)
        self._files = []

    def step_end(self, run_context: RunContext) -> None:
        params = params_of(run_context)
        if params.mode == "train":
            self._save_graph(params)
            self._save_if_due(params, last=False)

    def on_train_end(self, run_context: RunContext) -> None:
        super().on_train_end(run_context)
        self._save_if_due(params_of(run_context), last=True)
        self._join()

    def __exit__(self, kind: Any = None, error: BaseException | None = None, trace: Any = None) -> None:
        params, self._params = self._params, None
        try:
            if error is not None and self._config.exception_save and params is not None and params.get("cur_step_num"):
                # slices only: the other ranks may be anywhere, nobody can be asked for theirs
                self._write(params, f"{self._prefix}-{_numbers(params)}_breakpoint", integrated=False, in_thread=False)
        finally:
            self._join(raising=error is None)

    def _save_if_due(self, params: Any, *, last: bool) -> None:
        if params.cur_step_num == self._last_step or not self._is_due(params, last):
            return
        self._last_step = params.cur_step_num
        name, config = f"{self._prefix}-{_numbers(params)}", self._config
        path = self._write(params, name, integrated=config.integrated_save, in_thread=config.async_save)
        self._files = [(kept, when) for kept, when in self._files if kept != path] + [(path, self._clock())]
        self._latest = str(path)
        if self._thread is None:
            self._delete_old()

    def _is_due(self, params: Any, last: bool) -> bool:
        config = self._config
        if config.save_checkpoint_steps:
            return last or params.cur_step_num >= self._last_step + config.save_checkpoint_steps
        if config.save_checkpoint_seconds:
            due = last or self._clock() - self._last_time > config.save_checkpoint_seconds
            world = training_world(params.parallel_mode)
            if world is not None and _gathers(params.parallel_mode, config.integrated_save):
                due = said_by_first(world, due)  # clocks differ, and saving is done together
            if due:
                self._last_time = self._clock()
            return due
        return False

    def _delete_old(self) -> None:
        config, kept = self._config, self._files[:1]
        if config.keep_checkpoint_max:
            kept = self._files[-config.keep_checkpoint_max :]
        else:
            for one in self._files[1:]:
                if one is self._files[-1] or one[1] - kept[-1][1] >= 60 * config.keep_checkpoint_per_n_minutes:
                    kept.append(one)
        for path, _ in (one for one in self._files if one not in kept):
            path.unlink(missing_ok=True)
        self._files = kept

    # ---- writing ----

    def _write(self, params: Any, name: str, *, integrated: bool, in_thread: bool) -> Path:
        """Write one file now, or begin to. What is saved is taken here and now: the training may go on."""
        path = self._directory / f"{name}.{self._config.format}"
        network = params.network if self._config.saved_network is None else self._config.saved_network
        records = training_records(network, params.optimizer, integrated=integrated)
        now = {"epoch_num": params.cur_epoch_num, "step_num": params.cur_step_num}
        added = {key: now.get(key, value) for key, value in (self._config.append_dict or {}).items()}
        self._join()
        if in_thread:
            kept = {key: replace(record, array=np.array(record.array)) for key, record in records.items()}
            self._thread = SaveThread(path, lambda: write_records(path, kept, added), is_awaited=True)
            self._thread.start()
        else:
            write_records(path, records, added)
        return path

    def _join(self, raising: bool = True) -> None:
        """Wait for the thread that writes; what it failed with is raised here."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        thread.join()
        if thread.error is None:
            self._delete_old()
        elif raising:
            raise thread.error

    def _save_graph(self, params: Any) -> None:
        if not self._graph_saved:
            self._graph_saved = True
            text = json.dumps(graph_facts(params), indent=1)
            write_whole(self._directory / f"{self._prefix}-graph.meta", text.encode())


# ---- names and folders ----


def free_prefix(directory: Path, prefix: str) -> str:
    """`prefix`, or `prefix_1`, `prefix_2`, ... above those that checkpoints in the folder are called."""
    pattern = re.compile(re.escape(prefix) + r"(?:_(\d+))?-\d+_\d+(?:_breakpoint)?\.(?:ckpt|safetensors)")
    taken = [int(found.group(1) or 0) for name in os.listdir(directory) if (found := pattern.fullmatch(name))]
    return f"{prefix}_{max(taken) + 1}" if taken else prefix


def _numbers(params: Any) -> str:
    """`<epoch>_<step in the epoch>` of the last step."""
    return f"{params.cur_epoch_num}_{(params.cur_step_num - 1) % params.batch_num + 1}"


def _gathers(parallel_mode: str, integrated_save: bool) -> bool:
    """Whether saving needs all ranks at the same moment."""
    return integrated_save and parallel_mode in SHARDED_MODES


def check_places(where: str, said: list[list[dict[str, Any]]], parallel_mode: str) -> None:
    """Refuse conflicts of the ranks' ModelCheckpoints; said: `place()` of each, by rank.

    Raises ArgumentError for a shared folder, CollectiveMismatch if only some ranks gather slices, or at other steps.
    """
    folders: dict[str, list[int]] = {}
    for rank, places in enumerate(said):
        for folder in {one["folder"] for one in places}:
            folders.setdefault(folder, []).append(rank)
    for folder, ranks in folders.items():
        if len(ranks) > 1:
            what = f"ranks {', '.join(map(str, ranks))} all save their checkpoints to {folder.partition(':')[2]}"
            hint = 'ModelCheckpoint(directory=f"rank_{get_rank()}")'
            raise ArgumentError(what, where=where, allowed="A folder of its own for each rank", hint=hint)
    together = []
    for places in said:
        gathered = [one for one in places if _gathers(parallel_mode, one["integrated_save"])]
        together.append([(one["prefix"], one["rule"]) for one in gathered])
    found = groups_of(together)
    if len(found) > 1:
        who = "; ".join(f"{rule} on rank {', '.join(map(str, ranks))}" for rule, ranks in found.items())
        allowed = "With integrated_save=True every rank saves at the same steps: they gather the slices"
        hint = "Give every rank the same ModelCheckpoint and CheckpointConfig, or set integrated_save=False"
        what = f"prefix and [steps, seconds] of the checkpoints are {who}"
        raise CollectiveMismatch(what, where=where, allowed=allowed, hint=hint)


# ---- what is saved ----


def training_records(network: Cell, optimizer: Any, *, integrated: bool) -> dict[str, TensorRecord]:
    """{name: record} of all that a training needs to go on. Collective where slices are gathered."""
    records = network_records(network, integrated=integrated)
    if optimizer is not None:
        for name, record in optimizer_records(optimizer, integrated=integrated).items():
            if name in records and all(held is not optimizer for held in optimizers_of(network)):
                what = f"the network has a parameter {name!r}, and so is a state of the optimizer called"
                raise ArgumentError(what, where="ModelCheckpoint", hint="Give the parameter another name")
            records[name] = record
    return records


def write_records(path: Path, records: dict[str, TensorRecord], added: dict[str, Any]) -> None:
    """Write one checkpoint file. added: numbers and Tensors become tensors of that name, texts go into its meta."""
    more = {name: record_of(value) for name, value in added.items() if not isinstance(value, str)}
    texts = {name: value for name, value in added.items() if isinstance(value, str)}
    write_checkpoint(path, {**records, **more}, meta={TEXTS: texts} if texts else {})


def graph_facts(params: Any) -> dict[str, Any]:
    """What `<prefix>-graph.meta` says: the network's cells and parameters, and the program of its plan."""
    plan, world = params.get("plan"), current_world()
    rank = 0 if world is None else world.rank
    network = params.network
    facts = {p.name: {"shape": list(p.full_shape), "dtype": str(p.dtype)} for p in network.get_parameters()}
    return {
        "format": "parallel_lab graph",
        "version": 1,
        "network": type(network).__name__,
        "parallel_mode": params.parallel_mode,
        "rank": rank,
        "cells": {path: type(cell).__name__ for path, cell in network.cells_and_names()},
        "parameters": facts,
        "program": plan.text(rank=rank).splitlines() if plan is not None else None,
    }
