"""Programs of several files: what a script imports from its own folder is read with it, and nothing else is."""

import parallel_lab as pl
from parallel_lab.lab.explain.model import ExplainLab
from tests.crossed import each_of

MODEL = """import torch.nn as nn
import torch.distributed as dist
from .parts.layers import Block
from parts import width
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, width), Block(width)
    def forward(self, x):
        dist.all_reduce(x)
        return self.second(self.first(x))
"""
LAYERS = """import torch.nn as nn
class Block(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.inner = nn.Linear(n, n)
    def forward(self, x):
        return self.inner(x)
"""
TRAIN = """import torch
from torch.distributed.fsdp import fully_shard
IMPORTS
net = fully_shard(Net())
net(torch.ones(4, 8)).sum().backward()
"""


def test_files_next_to_the_program_are_read_as_one_text_with_it(tmp_path):
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "__init__.py").write_text("width = 16\n")
    (tmp_path / "parts" / "layers.py").write_text(LAYERS)
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "train.py").write_text(TRAIN.replace("IMPORTS", "import model, os\nNet = model.Net"))
    found = pl.explain(tmp_path / "train.py")
    lab = ExplainLab(tmp_path / "train.py")
    assert lab.found.text() == found.text()
    lab.set_program(lab.found.program)  # a text has no folder
    assert lab.found.unread != []
    # 8 ranks: (8 * 16 + 16) + (16 * 16 + 16) numbers, in one group
    assert found.unread == [] and found.forward == [["all_gather", "axis0", [416 // 8]], ["all_reduce", "", [4, 8]]]
    assert found.backward == [["reduce_scatter", "axis0", [416]]]
    assert [row.text for row in found.rows if "all_reduce" in row.message] == [
        "model.py:10:         dist.all_reduce(x)"
    ]
    alone = pl.explain((tmp_path / "train.py").read_text())  # a text has no folder
    assert alone.messages == [] and alone.unread


@each_of(
    ("text", "reason"),
    ("x = (", "model.py: "),
    ("y = nix()\n", "model.py:1: the name 'nix'"),
    ("#" * 200_000, "more than 200000"),
)
def test_a_file_next_to_the_program_that_is_not_read_is_named(tmp_path, text, reason):
    (tmp_path / "model.py").write_text(text)
    (tmp_path / "train.py").write_text("import torch\nimport model\n")
    assert reason in pl.explain(tmp_path / "train.py").unread[0][1]


def test_a_name_that_no_file_can_have_is_not_there(tmp_path):
    """Python 3.11's `Path.is_file` raises for names of more than 255 letters."""
    (tmp_path / "train.py").write_text(f"import torch\nimport {'o' * 300}\nx = torch.ones(4)\n")
    assert pl.explain(tmp_path / "train.py").messages == []


def test_what_lies_outside_of_the_folder_is_not_read(tmp_path):
    (tmp_path / "inner").mkdir()
    (tmp_path / "outside.py").write_text("width = 16\n")
    (tmp_path / "inner" / "linked.py").symlink_to(tmp_path / "outside.py")
    text = (
        "import torch\nfrom ..outside import width\nfrom linked import width as other\nx = torch.ones(width, other)\n"
    )
    (tmp_path / "inner" / "train.py").write_text(text)
    ((line, reason),) = pl.explain(tmp_path / "inner" / "train.py").unread
    assert line == 4 and "width" in reason
