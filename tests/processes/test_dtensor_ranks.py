"""A program of DTensors on real ranks: the bits and the messages of the process that plays them all."""

import textwrap

import numpy as np
import pytest

from tests.processes.launched import output_of
from tests.processes.test_mpi import NEEDS_MPI

pytestmark = pytest.mark.timeout(150)

PROGRAM = """
import numpy as np
import parallel_lab as pl
from parallel_lab import ops

mesh = pl.DeviceMesh((2, 2), ("dp", "tp"))
random = np.random.default_rng(0)

def tensor(shape, *placements):
    value = random.standard_normal(shape).astype("float32")
    return pl.distribute_tensor(value, mesh, placements, requires_grad=True)

x = tensor((8, 16), pl.Shard(0), pl.Replicate())
w = tensor((16, 12), pl.Replicate(), pl.Shard(1))
v = tensor((12, 6), pl.Replicate(), pl.Shard(0))
uneven = tensor((5, 6), pl.Shard(0), pl.Shard(0))
with pl.dtensor_messages() as sent:
    y = ops.relu(x @ w) @ v
    moved = y.redistribute([pl.Shard(1), pl.Shard(0)])
    whole = uneven.redistribute([pl.Replicate(), pl.Shard(1)]) * 2.0
    loss = ops.square(ops.softmax(moved, axis=1)).sum() + ops.reduce_max(whole, 0).sum() * 0.1
    loss.backward()
    gradient = w.grad.redistribute([pl.Replicate(), pl.Replicate()])
value, (dx, dw) = pl.jit(pl.value_and_grad(lambda x, w: ops.square(ops.softmax(x @ w, axis=1)).sum(), (0, 1)))(x, w)
made = {"y": y, "moved": moved, "whole": whole, "loss": loss, "gradient": gradient}
made |= {"jit value": value, "jit dx": dx, "jit dw": dw}
made |= {f"d{name}": value.grad for name, value in {"x": x, "w": w, "v": v, "uneven": uneven}.items()}
"""
SAVED = """
from parallel_lab.mindspore._communication import *
init()
{program}
import contextlib
with pl.dtensor_messages() if get_rank() == 0 else contextlib.nullcontext():  # who listens changes nothing
    (x @ w).full_tensor()
np.savez(f"rank{{get_rank()}}.npz", **{{name: value.local(get_rank()) for name, value in made.items()}})
print(*(f"{{m.kind}} {{m.axis}}" for m in sent), sep="; ")
"""


@pytest.mark.parametrize("options", [(), pytest.param(("--backend", "mpi"), marks=[NEEDS_MPI, pytest.mark.exhaustive])])
def test_real_ranks_hold_the_bits_of_the_one_process_that_plays_them_all(tmp_path, options):
    here: dict = {}
    exec(textwrap.dedent(PROGRAM), here)  # the same text, in this process
    output = output_of(tmp_path, 4, SAVED.format(program=PROGRAM), *options)
    messages = "; ".join(f"{m.kind} {m.axis}" for m in here["sent"])
    assert output.count(messages) == 4 and len(here["sent"]) > 5, (output, messages)
    for rank in range(4):
        with np.load(tmp_path / f"rank{rank}.npz") as saved:
            for name, value in here["made"].items():
                np.testing.assert_array_equal(saved[name], value.local(rank), err_msg=f"{name} on rank {rank}")
