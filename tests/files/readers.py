"""Every kind of file that the package reads: how a good one is made, and how it is read.

A kind that is added to the package is added here, and stands in the tests of special, hostile and mutated files.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import parallel_lab as pl
from parallel_lab.base.events import Event, EventLog, chrome_trace, to_dicts
from parallel_lab.cost.schedules import Schedule, make_schedule
from parallel_lab.lab.code.pasted import read_code
from parallel_lab.layout.tensor_layout import TensorLayout
from parallel_lab.processes.world.rank_table import read_rank_table
from parallel_lab.train.checkpoint import TensorRecord, load_checkpoint, read_checkpoint, save_distributed
from parallel_lab.train.checkpoint.distributed import restore_group_info_list
from parallel_lab.train.checkpoint.folder import MANIFEST, load_distributed
from parallel_lab.train.checkpoint.format import write_checkpoint
from parallel_lab.train.checkpoint.strategy_file import load_strategy
from parallel_lab.train.dataset.cifar import read_cifar10, write_cifar10
from parallel_lab.train.dataset.idx import read_idx, write_idx
from parallel_lab.train.request_exit import OnRequestExit
from tests.checkpoint.drawn import strategy_file
from tests.processes.test_rank_table import table


@dataclass(frozen=True)
class Reader:
    """write(path) makes a good file;  read(path) what it holds, comparable.  name: of the file;  sums: it carries
    checksums of all of it;  is_file: False for a text that is read by somebody else, and given as a text."""

    write: Callable[[Path], Any]
    read: Callable[[Path], Any]
    name: str = "file"
    sums: bool = False
    is_file: bool = True


def _plain(value: Any) -> Any:
    """Arrays as dtype, shape and bytes."""
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tobytes()
    if isinstance(value, TensorRecord):
        return _plain(value.array), value.global_shape, value.layout, value.rank
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    return value


LAYOUT = TensorLayout((2, 2), (1, -1))


def _checkpoint(path: Path) -> None:
    values = np.arange(12, dtype=np.float32).reshape(3, 4)
    tensors = {"fc.w": TensorRecord(values, (6, 4), LAYOUT, 1), "fc.b": TensorRecord(values[0].copy())}
    write_checkpoint(path, tensors, meta={"epoch": 3, "note": "é"})


def _folder(path: Path) -> None:
    """Of one rank: who reads it reads the manifest and the rank's file."""
    values = {"w": TensorRecord(np.arange(6, dtype=np.float32)), "v": TensorRecord(np.float64(3))}
    save_distributed(path.parent, values, rank=0, world_size=1, barrier=lambda: None, meta={"step": 1})


def _rank_file(path: Path) -> None:
    _folder(path)
    (found,) = path.parent.glob("*.ckpt")
    assert found.name == path.name


def _read_folder(path: Path) -> Any:
    return load_distributed(path.parent, rank=0)


def _events(path: Path) -> None:
    found = [Event(r, 0, "run", "communication", "sum", "all_reduce", 0.5 * r, 1.0, (0, 1), 64) for r in (0, 1)]
    path.write_text(json.dumps({**chrome_trace(found), "schema": "parallel_lab events 1", "events": to_dicts(found)}))


def _asked_to_end(path: Path) -> bool:
    return OnRequestExit(config_file=str(path))._told_by_file()


def _schedule(read: Callable[..., Schedule]) -> Callable[[Path], Any]:
    return lambda path: read(path.read_text(encoding="utf-8", errors="replace"))


def _code(path: Path) -> Any:
    return repr(read_code(path.read_text(encoding="utf-8", errors="replace")))


CODE = """import mindspore.ops as ops
class Net(nn.Cell):
    def __init__(self):
        self.matmul = ops.MatMul().shard(((2, 4), (4, 1)))
        self.relu = ops.ReLU().shard(((8, 1),))
"""
PICTURES = np.arange(4 * 28 * 28, dtype=np.uint32).reshape(4, 28, 28) % 251
COLOURS = (np.arange(2 * 32 * 32 * 3, dtype=np.uint32).reshape(2, 32, 32, 3) % 249).astype(np.uint8)
_group = {"format": "parallel_lab-group", "version": 1, "ranks": [0, 4]}

READERS = {
    "checkpoint": Reader(_checkpoint, lambda path: read_checkpoint(path).tensors, "x.ckpt", sums=True),
    "load_checkpoint": Reader(
        _checkpoint,
        lambda path: {name: one.asnumpy() for name, one in load_checkpoint(str(path)).items()},
        "x.ckpt",
        sums=True,
    ),
    "manifest": Reader(_folder, _read_folder, MANIFEST, sums=True),
    "rank file": Reader(_rank_file, _read_folder, "rank_0-1.ckpt", sums=True),
    "strategy": Reader(
        lambda path: strategy_file(path, {"fc.w": LAYOUT}, {"fc.w": (6, 4)}, 4), load_strategy, "strategy.json"
    ),
    "group": Reader(lambda path: path.write_text(json.dumps(_group)), lambda path: restore_group_info_list(str(path))),
    "idx": Reader(lambda path: write_idx(path, PICTURES.astype(np.uint8)), read_idx, "images-idx3-ubyte"),
    "idx of floats": Reader(lambda path: write_idx(path, PICTURES.astype(np.float64)), read_idx),
    "idx, packed": Reader(lambda path: write_idx(path, PICTURES.astype(np.uint8)), read_idx, "images.gz", sums=True),
    "cifar": Reader(lambda path: write_cifar10(path, COLOURS, np.array([7, 1])), read_cifar10, "test_batch.bin"),
    "cifar, packed": Reader(
        lambda path: write_cifar10(path, COLOURS, np.array([7, 1])), read_cifar10, "test_batch.bin.gz", sums=True
    ),
    "fusion lab": Reader(lambda path: pl.FusionLab().save(path), lambda path: pl.open_lab(path).state(), "lab.json"),
    "pipeline lab": Reader(
        lambda path: pl.PipelineLab().save(path), lambda path: pl.open_lab(path).state(), "lab.json"
    ),
    "events": Reader(_events, lambda path: to_dicts(EventLog.load(path)), "run.json"),
    "rank table": Reader(lambda path: path.write_text(json.dumps(table((0, 1)))), read_rank_table, "hccl.json"),
    "request to end": Reader(lambda path: path.write_text('{"GracefulExit": 1}'), _asked_to_end, "exit.json"),
    "schedule": Reader(
        lambda path: path.write_text(make_schedule("1f1b", 4, 8).text()),
        _schedule(functools.partial(Schedule.from_text, name="mine")),
        is_file=False,
    ),
    "schedule of PyTorch": Reader(
        lambda path: path.write_text(make_schedule("1f1b", 4, 8).to_csv()),
        _schedule(functools.partial(Schedule.from_csv, name="mine")),
        is_file=False,
    ),
    "notebook's program": Reader(lambda path: path.write_text(CODE), _code, is_file=False),
}
FILES = {kind: reader for kind, reader in READERS.items() if reader.is_file}


def read_plain(reader: Reader, path: Path) -> Any:
    """What the reader makes of the file, comparable."""
    return _plain(reader.read(path))
