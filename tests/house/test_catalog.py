"""The catalogue: what lies in it, and that every request by name finds it, in this process or another."""

import subprocess
import sys

import pytest

from parallel_lab.ops.machine.opdef import OPS
from parallel_lab.ops.spellings import NAMES
from tests.house.reached import reached
from tests.house.source import ROOT

# rooms whose files teach or need an operator; notebooks count, too
USERS = ("nn", "graph", "cost", "run", "processes", "train", "lab", "cli")
# what stays in ops/ though nothing taught names it, with the reason
STAYS = {
    "methods of Tensors in lessons, labs and models, x.sum() and x.mean() first; one table declares them": (
        *("sum", "mean", "prod", "all", "any", "amax", "amin"),
        *("reduce_prod", "reduce_prod_grad", "reduce_all", "reduce_any"),
    ),
    "declared by the loop that declares tensor_scatter_update, which is x[key] = value": [
        f"tensor_scatter_{how}" for how in ("add", "sub", "mul", "div", "max", "min")
    ],
}

# imports the package alone, once, and runs each code in a fork of itself
NURSERY = """
import os, sys
import numpy as np
import parallel_lab
for line in sys.stdin:
    if not (child := os.fork()):
        exec(eval(line), {"np": np})
        print("parallel_lab.catalog" in sys.modules, flush=True)
        os._exit(0)
    print("END", os.waitpid(child, 0)[1], flush=True)
"""


@pytest.fixture(scope="module")
def nursery():
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", NURSERY], text=True, cwd=ROOT, **pipes) as process:
        yield process
        process.stdin.close()


@pytest.fixture
def in_a_fresh_process(nursery):
    """in_a_fresh_process(code): the lines that it prints in a new Python, last whether the catalogue is loaded then."""

    def lines(code):
        print(repr(code), file=nursery.stdin, flush=True)
        printed = []
        for line in map(str.strip, nursery.stdout):
            if line.startswith("END "):
                assert line == "END 0", printed
                return printed
            printed.append(line)
        pytest.fail(f"the process has ended after {printed}")

    return lines


TAUGHT = {
    "import": "import parallel_lab",
    "names": "from parallel_lab import nn, ops\nops.matmul, ops.MatMul, nn.Dense, ops.OPS['relu'], ops.OPS.get('add')",
    "private names": "from parallel_lab import nn, ops\nprint(hasattr(ops, '__wrapped__'), hasattr(nn, '_repr_html_'))",
    "a step": """
import parallel_lab as pl
net, x = pl.nn.SequentialCell(pl.nn.Dense(4, 8), pl.nn.ReLU()), np.ones((8, 4), np.float32)
plan = pl.compile(net, x, device_num=2, dataset_strategy="full_batch")
plan.verify()
pl.Plan.from_dict(plan.to_dict())
pl.Simulator(plan, {p.name: p.asnumpy() for p in net.get_parameters()}).run_step(x)""",
}


@pytest.mark.quick(1)
@pytest.mark.parametrize("what", TAUGHT)
def test_what_is_taught_does_not_load_it(in_a_fresh_process, what):
    assert in_a_fresh_process(TAUGHT[what])[-1] == "False"


FINDS = {
    "function": "from parallel_lab import ops\nprint(ops.igamma.name)",
    "class": "from parallel_lab.ops import FlashAttentionScore\nprint(FlashAttentionScore.op.name)",
    "table": "from parallel_lab.ops.machine.registry import OPS\nprint('igamma' in OPS, OPS['zeta'].name)",
    "list of operators": "from parallel_lab import ops\nprint('zeta' in {*ops.OPS}, 'Zeta' in {*ops.PRIMITIVES})",
    "dict of operators": "from parallel_lab import ops\nprint('igamma' in list({**ops.OPS}))",
    "dir of ops": "from parallel_lab import ops\nprint('igamma' in dir(ops))",
    "star import": "from parallel_lab.ops import *\nprint(igamma.name)",
    "method": "import parallel_lab as pl\nprint(pl.Tensor([1.0, 2.0]).igamma(pl.Tensor([1.0, 2.0])).shape)",
    "method of the class": "import parallel_lab as pl\nprint('igamma' in dir(pl.Tensor), pl.Tensor.igamma.__name__)",
    "help": "import pydoc\nprint('igammac' in pydoc.plain(pydoc.render_doc('parallel_lab.ops')))",
    "facade": "from parallel_lab.mindspore import ops\nprint(ops.Zeta.__name__)",
}


@pytest.mark.quick(1)
@pytest.mark.parametrize("how", FINDS)
def test_a_name_of_it_is_found(in_a_fresh_process, how):
    printed, loaded = in_a_fresh_process(FINDS[how])
    assert loaded == "True" and "False" not in printed


def test_it_adds_no_name_to_a_tensor_that_a_tensor_did_not_list(in_a_fresh_process):
    listed = "sorted(dir(pl.Tensor))"
    code = f"import parallel_lab as pl\nbefore = {listed}\nimport parallel_lab.catalog\nprint(before == {listed})"
    assert in_a_fresh_process(code) == ["True", "True"]
    missing = "[n for n in dir(pl.Tensor) if not n.startswith('_') and not hasattr(pl.Tensor, n)]"
    assert in_a_fresh_process(f"import parallel_lab as pl\nprint({missing})") == ["[]", "True"]


@pytest.mark.exhaustive
def test_a_name_that_nobody_has_is_refused_as_before(in_a_fresh_process):
    code = "import parallel_lab as pl\ntry: pl.ops.igama\nexcept AttributeError as error: print(error)"
    assert "Did you mean 'igamma'" in in_a_fresh_process(code)[0]
    code = "from parallel_lab import ops\ntry: ops.OPS['igama']\nexcept KeyError as error: print(error)"
    assert in_a_fresh_process(code) == ["'igama'", "True"]


@pytest.mark.exhaustive
def test_a_name_leaves_it_when_somebody_uses_it_and_goes_there_when_nobody_does(in_a_fresh_process):
    tables = "from parallel_lab.ops.machine.opdef import OPS\nfrom parallel_lab.ops.spellings import NAMES\n"
    taught = set(in_a_fresh_process(f"{tables}print(*dict.keys(OPS), *dict.keys(NAMES))")[0].split())
    seen = reached(USERS)
    declared = [*NAMES.items(), *OPS.items()]
    used = {name for name, called in declared if id(called) in seen}
    assert {"matmul", "relu", "layer_normalization"} <= used and len(declared) > 700
    assert used <= taught, f"leave the catalogue: {sorted(used - taught)}"
    unused = {getattr(called, "name", name) for name, called in declared if name in taught and id(called) not in seen}
    stays = {name for names in STAYS.values() for name in names}
    assert not unused - stays, f"to catalog/ops, or name them in a lesson, lab or model: {sorted(unused - stays)}"
    assert not stays - unused, f"need no exception any more: {sorted(stays - unused)}"
