"""Python's statements as they are read: what a program sends depends on them, also where it leaves a body early."""

import parallel_lab as pl
from tests.crossed import each_of
from tests.lab.test_explain import MESH


@each_of(
("text", "sent"),
("def setup():\n    global x\n    x = whole(x)\nsetup()\ny = whole(x)", 1),
        ("def items():\n    for i in range(3):\n        yield i\nfor i in items():\n    whole(x)", 3),
        ("def items():\n    while True:\n        yield 1\nbatch = next(items())\nwhole(x)", 1),
        ("class Held:\n    def __enter__(self): pass\n    def __exit__(self, *a): whole(x)\nwith Held(): pass", 1),
        ("if {'%02d' % 1: 1, f'{2:02d}': 2, '{}'.format(3): 3} == {'01': 1, '02': 2, '3': 3}: whole(x)", 1),
        ("total = 0.0\ntotal += x.sum().item() + float(x.sum())", 0),
        ("y = x.sum() + x.sum().item()", 1),  # a number is added once, which takes the sum; a copy would be shared out
        ("y = x.sum()\nbest = 9.0\nfor i in range(3):\n    if y.item() < best: best = y.item()\n", 0),
        ("if x.dtype == torch.float and x.dtype in (torch.float32, torch.half) and len(x) == 16: whole(x)", 1),
        ("from dataclasses import dataclass, field\n@dataclass\nclass A:\n    n: int = 2\n    held: list = field("
         "default_factory=list)\n@dataclass\nclass B(A):\n    m: int = 3\n    def __post_init__(self): self.n += 3\n"
         "b, c = B(1, [], 4), B()\nb.held.append(1)\nif (b.n, b.m, c.n, len(c.held)) == (4, 4, 5, 0): whole(x)", 1),
        ("from dataclasses import dataclass as d\n@d\nclass A: x: int\n@d\nclass B(A): y: int\n@d\nclass C(A): z: int\n"
         "@d\nclass D(B, C): w: int\no = D(1, 2, 3, 4)\nif (o.x, o.z, o.y, o.w) == (1, 2, 3, 4): whole(x)", 1),
        ("class Rows:\n    def __len__(self): return 3\n    def __iter__(self): yield from (1, 2)\n"
         "    def __getitem__(self, i): return 2 * i\nr = Rows()\nfor i in r: whole(x)\nif len(r) + r[1] == 5: whole(x)"
         "\n", 3),
        ("from torch.distributed._symmetric_memory import enable_symm_mem_for_group\nenable_symm_mem_for_group("
         "mesh['tp'].get_group().group_name)\nwhole(x)", 1),
        ("class C: n = 1\nC.n = 2\nsetattr(C(), 'm', 3)\nif C.n == 2: whole(x)", 1),
        ("a = b = [1]\na += [2]\nif len(b) == 2: whole(x)", 1),
        ("names = {'a': 1, 'b': 2}\ndel names['a']\nfor n in names: whole(x)", 1),
        ("from torch import nn\nnet = nn.ModuleList([nn.ReLU()] * 5)\ndel net[1:4]\nfor n in net: whole(x)", 2),
)  # fmt: skip
def test_statements_do_what_python_does(text, sent):
    start = MESH + "x = distribute_tensor(torch.ones(16, 8), mesh, [Shard(0), Replicate()])\n"
    found = pl.explain(f"{start}def whole(x): return x.redistribute(mesh, [Replicate(), Replicate()])\n{text}\n")
    assert len(found.messages) == sent and found.unread == []


WRAPPED = """import torch
import torch.nn as nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
net = FSDP(nn.Linear(16, 16))
def step(): net(torch.ones(4, 16)).sum().backward()
class Held:
    def __enter__(self): pass
    def __exit__(self, *a): step()
"""
STEP = ["all_gather", "reduce_scatter"]  # of one layer, whose Parameters stay from forward to backward


@each_of(
    ("text", "sent"),
    ("def f():\n    with net.no_sync(): return 1\nf()\nstep()", STEP),
    ("for i in range(2):\n    with net.no_sync(): break\nstep()", STEP),
    ("with net.no_sync():\n    with net.no_sync(): pass\n    step()", STEP[:1]),
    ("def f():\n    with Held(): return 1\nf()", STEP),
    ("def f():\n    try: return 1\n    finally: step()\nf()", STEP),
    ("for i in range(2):\n    try: continue\n    finally: step()", 2 * STEP),
)
def test_what_ends_a_body_happens_also_where_it_is_left_early(text, sent):
    """Its messages were missing without a word, or those of the steps behind it."""
    found = pl.explain(f"{WRAPPED}{text}\n")
    assert [m.kind for m in found.messages] == sent and found.unread == []


def test_no_sync_of_a_layer_that_is_not_wrapped_is_reported():
    found = pl.explain(f"{WRAPPED}with nn.Linear(4, 4).no_sync(): pass\nstep()\n")
    assert [m.kind for m in found.messages] == STEP and "not wrapped" in found.unread[0][1]
