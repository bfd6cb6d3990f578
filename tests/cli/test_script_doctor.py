"""The doctor reads a MindSpore script and lists what it uses and this package lacks; the script is never run."""

import json

from parallel_lab.cli.main import main
from parallel_lab.cli.script_doctor import needs
from tests.crossed import each_of

SCRIPT = """
import os
import numpy as np
import mindspore as ms
import mindspore.numpy as mnp
import mindspore.common.dtype as mstype
from mindspore import nn, ops, RowTensor, lazy_inline
from mindspore.nn.wrap.cell_wrapper import Cell, TrainOneStepCell
from mindspore.common.api import _cell_graph_executor
from mindspore.nn import CTCLoss, Sofmax
from mindspore.nosuch import anything

raise SystemExit("a script is not run")

class Net(Cell):
    @lazy_inline
    def __init__(self):
        self.lstm = CTCLoss(3, 4)
        self.rnn = nn.TimeDistributed(2, 2)
        self.dense = nn.Dense(2, 3)

    def construct(self, x):
        y = mnp.ones((2,)) + np.ones(2)
        return ops.MatMul()(x, y), CTCLoss, mstype.float32, os.path.sep, ms.ops.operations.Einsum
"""


def test_what_is_used_and_missing_is_listed_with_its_lines():
    found = {need.name: need.lines for need in needs(SCRIPT)}
    assert found == {
        "mindspore.nn.Sofmax": (10,),  # what never was fails where it is imported
        "mindspore.nosuch.anything": (11,),
        "mindspore.nn.CTCLoss": (18, 24),
        "mindspore.nn.TimeDistributed": (19,),
        "mindspore.ops.operations.Einsum": (24,),
    }
    hints = {need.name: need.hint for need in needs(SCRIPT)}
    assert "Softmax" in hints["mindspore.nn.Sofmax"]


@each_of(
    "source",
    "import parallel_lab.mindspore as ms\nms.nn.TimeDistributed()",
    "from parallel_lab import mindspore as ms\nms.nn.TimeDistributed()",
    "from parallel_lab.mindspore.nn import TimeDistributed as Own\nOwn()",
    "import mindspore.nn\nmindspore.nn.TimeDistributed()",
)
def test_every_form_of_import_is_followed(source):
    (need,) = needs(source)
    assert (need.name, need.lines) == ("mindspore.nn.TimeDistributed", (2,))


def test_the_command_tells_lines_and_ends_with_1(tmp_path, capsys):
    script, clean = tmp_path / "train.py", tmp_path / "clean.py"
    script.write_text(SCRIPT)
    clean.write_text("from mindspore import nn, RowTensor\nnet = nn.Dense(2, 3)\n")
    assert main(["doctor", str(script)]) == 1
    out = capsys.readouterr().out
    assert f"{script}:18: mindspore.nn.CTCLoss (and line 24). " in out and out.endswith(
        "5 names of MindSpore's missing here.\n"
    )
    assert main(["doctor", str(clean)]) == 0
    assert capsys.readouterr().out == "Nothing is missing here.\n"
    assert main(["doctor", "--json", str(script), str(clean)]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told[str(clean)] == [] and told[str(script)][0]["lines"] == [10]
    clean.write_text("def (:\n")
    assert main(["doctor", str(clean)]) == 2 and "is no Python: invalid syntax, line 1." in capsys.readouterr().err
    book = tmp_path / "book.ipynb"
    book.write_text('{"cells": []}')
    assert main(["doctor", str(book)]) == 2 and "is a notebook" in capsys.readouterr().err
    assert main(["doctor", str(tmp_path / "no.py")]) == 2 and "cannot be read" in capsys.readouterr().err


@each_of(
    ("name", "hint"),
    ("nn.Linear", "Use nn.Dense(in_channels, out_channels)."),
    ("nn.Relu", "The nearest here: ReLU."),
    ("nn.MultiHeadAttention", "The nearest here: MultiheadAttention."),
    ("nn.Droput", "The nearest here: Dropout or"),
    ("nn.MultilabelMarginLoss", "dir(mindspore.nn) lists"),  # the nearest is another loss
    ("ops.Svd", "dir(mindspore.ops) lists"),  # was: Std,
)
def test_what_is_named_as_near_is_a_slip_of_the_pen_and_no_other_thing(name, hint):
    (need,) = needs(f"from mindspore import nn, ops\n{name}()")
    assert need.hint.startswith(hint)


def test_a_file_that_cannot_be_read_does_not_end_the_report(tmp_path, capsys):
    (tmp_path / "deep" / ".hidden").mkdir(parents=True)
    for name, text in {
        "a.py": "x =\n",
        "b.py": "x = '\xa0'\ny =\xa01\n",
        "deep/c.py": "from mindspore import RowTensor\n",
    }.items():
        (tmp_path / name).write_text(text + "RowTensor(1)\n" * name.startswith("deep"))
    (tmp_path / "deep" / ".hidden" / "d.py").write_text("x =\n")
    (tmp_path / "deep" / "e.py").write_bytes(b"\xff")
    assert main(["doctor", str(tmp_path), str(tmp_path / "none.py")]) == 2
    told = capsys.readouterr()
    assert "c.py:2: mindspore.RowTensor" in told.out and "4 files could not be read." in told.out
    assert [name for name in ("a.py", "b.py", "e.py", "none.py", "d.py") if name in told.err] == [
        "a.py",
        "b.py",
        "e.py",
        "none.py",
    ]


def test_files_next_to_a_script_that_hide_a_package_are_named(tmp_path, capsys):
    for name in ("numpy.py", "mindspore/__init__.py", "random.py", "turtle.py", "own/__init__.py", "own/random.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    for name in ("train.py", "own/layers.py"):
        (tmp_path / name).write_text("import mindspore\n")
    assert main(["doctor", str(tmp_path / "train.py"), str(tmp_path / "own" / "layers.py")]) == 1
    lines = [line for line in capsys.readouterr().out.splitlines() if "rename it" in line]
    assert [line.split("'")[1] for line in lines] == ["mindspore", "numpy", "random"]
    assert main(["doctor", "--json", str(tmp_path / "train.py")]) == 1
    assert json.loads(capsys.readouterr().out)["hiding"] == lines
