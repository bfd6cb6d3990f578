"""What a lesson imports: one module of its own, with what its notebook uses and nothing else."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from pathlib import Path
from types import ModuleType

import nbformat
import numpy as np
import pytest

import parallel_lab as pl
from parallel_lab import nn
from parallel_lab.graph.compiler import compile_steps
from parallel_lab.lab import lessons
from parallel_lab.lab.exercises import all_exercises
from parallel_lab.lab.lessons.fusion import lanes_text
from parallel_lab.lab.lessons.mindspore_scripts import by_rank_table, chosen_strategies, rank_program
from parallel_lab.lab.lessons.quickstart import QuickNet
from parallel_lab.mindspore._ir_files import write_graph_files
from parallel_lab.processes.measure import median_s

ROOT = Path(__file__).resolve().parents[2]
# the evening with the kernel is not a lesson: it imports what it reads (tests/notebooks/test_inside.py)
PATHS = sorted(path for path in (ROOT / "notebooks").glob("*.ipynb") if path.name != "20_inside.ipynb")


def lesson_of(path: Path) -> str:
    return path.stem.partition("_")[2]


def offered_by(module: ModuleType) -> set[str]:
    """What a lesson's module imports from the package, its own functions and its constants."""
    body = ast.parse(inspect.getsource(module)).body
    imported = {alias.name for node in body if isinstance(node, ast.ImportFrom) and node.level for alias in node.names}
    assigned = [target for node in body if isinstance(node, ast.Assign) for target in node.targets]
    constants = {name.id for target in assigned for name in ast.walk(target) if isinstance(name, ast.Name)}
    return imported | constants - {"__all__"} | {node.name for node in body if isinstance(node, ast.FunctionDef)}


@pytest.mark.quick(4)
@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.name)
def test_a_lesson_imports_from_parallel_lab_and_from_its_own_module(path):
    cells = [c.source for c in nbformat.read(path, as_version=4).cells if c.cell_type == "code"]
    own = f"parallel_lab.lab.lessons.{lesson_of(path)}"
    used = set()
    for source in cells:
        for node in ast.walk(ast.parse(re.sub(r"(?m)^%.*$", "", source))):
            if isinstance(node, ast.ImportFrom) and node.module.startswith("parallel_lab"):
                assert node.module in ("parallel_lab", "parallel_lab.lab.lessons.predictions", own)
                used |= {alias.name for alias in node.names} if node.module == own else set()
    text = "\n".join(c.source for c in nbformat.read(path, as_version=4).cells) + (ROOT / "README.md").read_text()
    offered = offered_by(importlib.import_module(own))
    assert used <= offered
    text += inspect.getsource(importlib.import_module(own)).partition("\n\n\n")[2]  # its own functions use names, too
    assert {name for name in offered if not re.search(rf"\b{name}\b", text)} == set()


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.name)
def test_a_lesson_has_one_number_and_names_only_lessons_there_are(path):
    number = path.name[:2]
    own = importlib.import_module(f"parallel_lab.lab.lessons.{lesson_of(path)}")
    assert own.__doc__.startswith(f"Lesson {number}: ")
    assert f" {number} " in " ".join(lessons.__doc__.split())  # the course's list
    text = "\n".join(c.source for c in nbformat.read(path, as_version=4).cells)
    assert set(re.findall(r"[\w/]+\.ipynb", text)) <= {p.name for p in PATHS}
    assert set(re.findall(r"[Ll]essons? (\d\d)\b", text)) <= {p.name[:2] for p in PATHS}


def test_exercises_stand_under_the_number_of_their_lesson():
    for exercise in all_exercises():
        module = importlib.import_module(f"parallel_lab.lab.exercises.lesson_{exercise.number[:2]}")
        assert exercise in module.EXERCISES and module.__doc__.startswith(f"Lesson {exercise.number[:2]}, ")


def test_the_lanes_of_the_fusion_lab_are_a_part_of_its_text():
    lab = pl.FusionLab("golf")
    lab.set_cuts([3, 6])
    text = lanes_text(lab)
    assert text in lab.to_text() and text.startswith("Lanes") and "exposed" in text.splitlines()[-1]
    assert lab.lanes.groups == (("g0", "g1", "g2"), ("g3", "g4", "g5"), ("g6", "g7", "g8", "g9"))


def test_what_happens_to_a_parameter_is_one_line():
    lab = pl.MemoryLab("dense", devices=8, level="level1")
    lab.set_threshold(0)
    lines = [fact.text for fact in lab.facts]
    assert any(line.endswith("shared by 8") for line in lines) and any("whole: " in line for line in lines)


def test_most_of_a_kind_is_its_largest_count_in_the_step():
    count = pl.MemoryLab("stack", devices=4, level="level1").ranks()[0]
    for kind in ("params", "grads", "activations"):
        assert count.most(kind) == max(point.by_kind[kind] for point in count.timeline) > 0


def test_the_ir_files_tell_strategies_and_program(tmp_path):
    net = QuickNet(in_dim=32, hidden_dim=16, out_dim=16)
    net.matmul.shard(((2, 2), (2, 1)))
    net.relu.shard(((2, 2),))
    x, label = np.ones((16, 32), np.float32), np.ones((16, 16), np.float32)
    steps = compile_steps(net, x, label, loss=nn.MSELoss(), device_num=4, dataset_strategy="full_batch")
    write_graph_files(steps, str(tmp_path), 0)
    write_graph_files(steps, str(tmp_path), 0)  # the later files count
    strategies = chosen_strategies(tmp_path / "rank_0")
    assert strategies["matmul"] == ("MatMul", ((2, 2), (2, 1)))
    assert strategies["relu"] == ("ReLU", ((2, 2),))
    lines = rank_program(tmp_path / "rank_0", lines=6).splitlines()
    assert len(lines) == 6 and lines[0].startswith("%1(equivout) = ")
    assert not any("scope" in line or "In file" in line or "{instance" in line for line in lines)


@pytest.mark.exhaustive
def test_a_rank_table_says_who_runs_where_and_is_refused_where_the_real_server_refuses_it(tmp_path, monkeypatch):
    """Cards 0 to 3 and 4 to 7 of a server are wired to different networks (HCCL)."""
    monkeypatch.chdir(tmp_path)
    script = "import os\nfrom mindspore.communication import get_rank, init\ninit()\n"
    (tmp_path / "hello.py").write_text(f"{script}print(get_rank(), os.environ['DEVICE_ID'])\n")
    assert by_rank_table((3, 2), "hello.py") == "0 3\n1 2"
    assert by_rank_table((0, 4), "hello.py").count("straddle the two sides") == 2


def test_the_median_time_of_a_call_waits_for_all_ranks():
    class Comm:
        def __init__(self):
            self.log = []

        def barrier(self):
            self.log.append("barrier")

    comm = Comm()
    assert median_s(comm, lambda: comm.log.append("call"), repeats=3) >= 0
    assert comm.log == ["barrier", "call"] * 3
