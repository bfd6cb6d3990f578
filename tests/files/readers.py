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
import safetensors.numpy

import parallel_lab as pl
from parallel_lab import Plan, compile, nn
from parallel_lab.base.errors import ParallelLabError
from parallel_lab.base.events import Event, EventLog, chrome_trace, to_dicts
from parallel_lab.base.settings.context import reset_context
from parallel_lab.catalog.ops.flash_attention_rings import LOAD_BALANCE, _speeds_up
from parallel_lab.cli.doctor import read_slots
from parallel_lab.cli.script_doctor import script_needs
from parallel_lab.cost.planner.clusters import read_machine
from parallel_lab.cost.planner.hub_configs import read_decoder
from parallel_lab.cost.schedules import Schedule, make_schedule
from parallel_lab.lab.classroom.roll import read_class
from parallel_lab.lab.code.pasted import read_code
from parallel_lab.lab.exercises.book import RESULTS_FORMAT
from parallel_lab.lab.grading.submissions import read_cells, read_results
from parallel_lab.lab.lessons.predictions import FILE as PREDICTIONS, predict
from parallel_lab.lab.shared.recording import Recording, recorded
from parallel_lab.lab.strategy.model import StrategyLab
from parallel_lab.lab.widgets import LABS
from parallel_lab.layout.tensor_layout import TensorLayout
from parallel_lab.mindspore._checkpoint import restore_group_info_list
from parallel_lab.processes.world.rank_table import read_rank_table
from parallel_lab.train.checkpoint import TensorRecord, load_checkpoint, read_checkpoint, save_distributed
from parallel_lab.train.checkpoint.folder import MANIFEST, load_distributed
from parallel_lab.train.checkpoint.format import write_checkpoint
from parallel_lab.train.checkpoint.strategy_file import load_strategy
from parallel_lab.train.dataset.cifar import read_cifar10, write_cifar10
from parallel_lab.train.dataset.idx import read_idx, write_idx
from parallel_lab.train.recorder import Recorder
from parallel_lab.train.request_exit import OnRequestExit
from parallel_lab.train.session import Session
from tests.checkpoint.drawn import strategy_file
from tests.cost.test_hub_configs import QWEN3
from tests.processes.test_rank_table import table
from tests.recorded.nets import Quick


@dataclass(frozen=True)
class Reader:
    """write(path) makes a good file;  read(path) what it holds, comparable.  form: of its variants (mutants.py);  name:
    of the file;  sums: it carries checksums of all of it;  is_file: False for a text that is read by somebody else, and
    given as a text."""

    write: Callable[[Path], Any]
    read: Callable[[Path], Any]
    form: str
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
    """The folder of one rank: a reader reads the manifest and the rank's file."""
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


def _lab(kind: str, path: Path) -> None:
    getattr(pl, kind)().save(path)


@functools.cache
def _two_steps() -> Recording:
    """Of two ranks, simulated."""
    plan, _, net, optimizer, batches = StrategyLab(devices=2)._prepared()
    with Session(plan, net, optimizer, executor="simulator", check_finite=False) as session:
        recorder = Recorder(session)
        session.train(batches, 2)
        found = recorded(session.plan, recorder.take())
    assert found is not None
    return found


def _recording(path: Path) -> Any:
    return Recording.load(path).packed


def _predictions(path: Path) -> Any:
    return dict(predict("03", folder=path.parent))


def _sped_up(path: Path) -> bool:
    pl.set_context(ascend_config={"parallel_speed_up_json_path": str(path)})
    try:
        return _speeds_up(LOAD_BALANCE)
    finally:
        reset_context()


def _strategy(path: Path) -> None:
    strategy_file(path, {"fc.w": LAYOUT}, {"fc.w": (6, 4)}, 4)


def _plan(path: Path) -> None:
    layouts = {"device_num": 4, "dataset_strategy": "full_batch"}
    net = Quick(16, 8, 8, ((2, 2), (2, 1)), ((2, 2),), ((2, 2), (2, 1)))
    x, y = np.ones((8, 16), np.float32), np.ones((8, 8), np.float32)
    path.write_text(json.dumps(compile(net, x, y, loss=nn.MSELoss(), **layouts).to_dict()))


def _json(path: Path) -> Any:
    """What the user's own reader makes of it; where that refuses, so do we."""
    try:
        return json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ParallelLabError(str(error)) from None


def _class(path: Path) -> Any:
    """What a class's page says of the one file; a file that it refuses is listed there with the reason."""
    try:
        found = read_class(path.parent)
    except ParallelLabError as error:  # of the folder, which has nothing else in it
        raise ParallelLabError(f"{path.name}: {error}") from error
    if found.refused:
        raise ParallelLabError(*found.refused[0])
    return repr(found.answers), repr(found.right), found.ideas, found.points, found.to_text()


def _machine(path: Path) -> Any:
    return repr(read_machine(path, 16))


RECORDED = Path(__file__).parents[1] / "recorded"
PROGRAM_NAMES = ("torch_tp_mlp", "torch_pipeline_1f1b", "jax_tensor_parallel", "jax_shard_map_matmul")
PROGRAM_NAMES += ("hyper_tensor_parallel", "mindspore_strategies", "mindspore_by_hand")
ANSWERS = {"summed": 4, "losses": "same"}
CODE = """import mindspore.ops as ops
class Net(nn.Cell):
    def __init__(self):
        self.matmul = ops.MatMul().shard(((2, 4), (4, 1)))
        self.relu = ops.ReLU().shard(((8, 1),))
"""
PICTURES = np.arange(4 * 28 * 28, dtype=np.uint32).reshape(4, 28, 28) % 251
COLOURS = (np.arange(2 * 32 * 32 * 3, dtype=np.uint32).reshape(2, 32, 32, 3) % 249).astype(np.uint8)
_group = {"format": "parallel_lab-group", "version": 1, "ranks": [0, 4]}
_link = {"alpha_s": 1e-6, "beta_s_per_byte": 1e-9}
_cluster = {
    "name": "mine",
    "device": {"flops_per_s": 1e12, "memory_bytes": 1 << 34, "memory_bandwidth_bytes_per_s": 1e11},
    "link": _link,
    "node_link": _link,
    "devices_per_node": 8,
    "node_count": 2,
}
_check = {"exercise": "02.1", "points": 3, "max_points": 5, "parts": [{"part": "sums", "idea": "ring"}]}
_asked = {"key": "rounds 4", "text": "How many rounds?", "yours": 6, "right": [6]}
_handed_in = {"format": "parallel_lab.class", "version": 1, "learner": "Ada", "labs": [pl.CostLab(ranks=4).state()]}
_results = {"format": RESULTS_FORMAT, "version": 1, "learner": "Ada", "checks": [_check]}
_results |= {"cells": {"02": ["x = 1", 'check("02.1", x)']}}
_handed_in |= {"predictions": [_asked], "checks": [_check]}
_cell = {"cell_type": "code", "id": "a1", "metadata": {"nbgrader": {"grade_id": "test-x"}}, "source": ["x = 1\n", "y"]}
_text = {"cell_type": "markdown", "id": "a2", "metadata": {}, "source": "words"}
_notebook = {"cells": [_text, {**_cell, "execution_count": 2, "outputs": []}], "metadata": {}}
_notebook |= {"nbformat": 4, "nbformat_minor": 5}

PROGRAMS = {name: (RECORDED / "programs" / f"{name}.txt").read_text() for name in PROGRAM_NAMES}
PROGRAMS["log"] = """aten::matmul(dt: f32[32, 64]| S(0), dt: f32[64, 16]| S(0))
  redistribute_input [implicit] (1, S(0) -> R)
    redistribute_input(t: f32[16, 64], trace: S(0)->R)
      _c10d_functional::all_gather_into_tensor(t: f32[16, 64], 4, 0)  ->  t: f32[64, 64]
"""

READERS = {
    "checkpoint": Reader(_checkpoint, lambda path: read_checkpoint(path).tensors, "header", "x.ckpt", sums=True),
    "load_checkpoint": Reader(
        _checkpoint,
        lambda path: {name: one.asnumpy() for name, one in load_checkpoint(str(path)).items()},
        "header",
        "x.ckpt",
        sums=True,
    ),
    "safetensors of others": Reader(
        lambda path: safetensors.numpy.save_file({"w": PICTURES[0].astype("f4"), "b": np.arange(3)}, path),
        lambda path: {name: one.asnumpy() for name, one in load_checkpoint(str(path), format="safetensors").items()},
        "header",
        "x.safetensors",
    ),
    "manifest": Reader(_folder, _read_folder, "json", MANIFEST, sums=True),
    "rank file": Reader(_rank_file, _read_folder, "header", "rank_0-1.ckpt", sums=True),
    "strategy": Reader(_strategy, load_strategy, "json", "strategy.json", sums=True),
    "group": Reader(
        lambda path: path.write_text(json.dumps(_group)), lambda path: restore_group_info_list(str(path)), "json"
    ),
    "idx": Reader(lambda path: write_idx(path, PICTURES.astype(np.uint8)), read_idx, "sizes", "images-idx3-ubyte"),
    "idx of floats": Reader(lambda path: write_idx(path, PICTURES.astype(np.float64)), read_idx, "sizes"),
    "idx, packed": Reader(
        lambda path: write_idx(path, PICTURES.astype(np.uint8)), read_idx, "packed", "images.gz", sums=True
    ),
    "cifar": Reader(
        lambda path: write_cifar10(path, COLOURS, np.array([7, 1])), read_cifar10, "sizes", "test_batch.bin"
    ),
    "cifar, packed": Reader(
        lambda path: write_cifar10(path, COLOURS, np.array([7, 1])),
        read_cifar10,
        "packed",
        "test_batch.bin.gz",
        sums=True,
    ),
    "events": Reader(_events, lambda path: to_dicts(EventLog.load(path)), "json", "run.json"),
    "rank table": Reader(lambda path: path.write_text(json.dumps(table((0, 1)))), read_rank_table, "json", "hccl.json"),
    "request to end": Reader(lambda path: path.write_text('{"GracefulExit": 1}'), _asked_to_end, "json", "exit.json"),
    "model": Reader(lambda path: path.write_text(json.dumps(QWEN3)), read_decoder, "json", "model.json"),
    "cluster": Reader(lambda path: path.write_text(json.dumps(_cluster)), _machine, "json", "cluster.json"),
    "class": Reader(lambda path: path.write_text(json.dumps(_handed_in)), _class, "json", "ada.json"),
    "results": Reader(lambda path: path.write_text(json.dumps(_results)), _class, "json", "checks.json"),
    "page's results": Reader(
        lambda path: path.write_text(json.dumps(_results)), lambda path: repr(read_results(path)), "json", "checks.json"
    ),
    "predictions": Reader(lambda path: predict("03", folder=path.parent, **ANSWERS), _predictions, "json", PREDICTIONS),
    "recording": Reader(
        lambda path: _two_steps().save(path), lambda path: Recording.load(path).packed, "json", "run.json"
    ),
    "what is sped up": Reader(
        lambda path: path.write_text(json.dumps({LOAD_BALANCE: True})), _sped_up, "json", "speed_up.json"
    ),
    "notebook": Reader(lambda path: path.write_text(json.dumps(_notebook)), read_cells, "json", "mine.ipynb"),
    "hostfile": Reader(lambda path: path.write_text("# two\none slots=2\ntwo slots=3\n"), read_slots, "words", "hosts"),
    "script for doctor": Reader(
        lambda path: path.write_text(CODE), lambda path: repr(script_needs(str(path))), "words", "train.py"
    ),
    "plan": Reader(_plan, lambda path: Plan.from_dict(_json(path)).to_dict(), "json", sums=True, is_file=False),
    "schedule": Reader(
        lambda path: path.write_text(make_schedule("1f1b", 4, 8).text()),
        _schedule(functools.partial(Schedule.from_text, name="mine")),
        "words",
        is_file=False,
    ),
    "schedule of PyTorch": Reader(
        lambda path: path.write_text(make_schedule("1f1b", 4, 8).to_csv()),
        _schedule(functools.partial(Schedule.from_csv, name="mine")),
        "words",
        is_file=False,
    ),
    "notebook's program": Reader(lambda path: path.write_text(CODE), _code, "words", is_file=False),
}
READERS |= {
    f"program: {name}": Reader(
        functools.partial(Path.write_text, data=text), lambda path: pl.explain(path).text(), "words", "program.txt"
    )
    for name, text in PROGRAMS.items()
}
READERS |= {
    f"lab: {kind}": Reader(functools.partial(_lab, kind), lambda path: pl.open_lab(path).state(), "json", "lab.json")
    for kind in LABS
}
FILES = {kind: reader for kind, reader in READERS.items() if reader.is_file}


def read_plain(reader: Reader, path: Path) -> Any:
    """What the reader makes of the file, comparable."""
    return _plain(reader.read(path))
