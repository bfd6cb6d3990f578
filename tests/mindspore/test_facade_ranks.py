"""The facade on ranks: what receives gives Tensors, and a script under the launcher finds it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import parallel_lab
import parallel_lab.mindspore as ms
from parallel_lab.processes.shm import WorkerPool
from tests.ops.ranks import on_ranks

ROOT = Path(parallel_lab.__file__).parents[1]

pytestmark = pytest.mark.timeout(90)


@pytest.fixture(scope="module")
def pool():
    with WorkerPool(2) as pool:
        yield pool


def exchange(world):
    other = 1 - world.rank
    (got,) = ms.ops.NeighborExchange([other], [other], [(2,)], [(2,)], ms.float32)((ms.Tensor([world.rank, 1.0]),))
    if world.rank == 0:
        ms.ops.Send(0, 1)(ms.Tensor([3.0, 4.0]))
        return type(got) is ms.Tensor, got.asnumpy()
    received = ms.ops.Receive(0, 0, [2], ms.float32)()
    return type(got) is type(received) is ms.Tensor, got.asnumpy(), received.asnumpy()


def test_what_arrives_is_a_tensor(pool):
    first, second = on_ranks(pool, exchange)
    assert first[0] and second[0]
    np.testing.assert_array_equal(first[1], [1.0, 1.0])
    np.testing.assert_array_equal(second[1], [0.0, 1.0])
    np.testing.assert_array_equal(second[2], [3.0, 4.0])


SCRIPT = """
import numpy as np
import mindspore as ms
from mindspore import ops, Tensor
from mindspore.communication import init, get_rank, get_group_size

init()
total = ops.AllReduce()(Tensor(np.full((2,), get_rank() + 1), ms.float32))
print("rank %s of %s has %s" % (get_rank(), get_group_size(), total))
"""


@pytest.mark.exhaustive
def test_a_script_under_the_launcher_imports_mindspore(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [
        sys.executable,
        "-m",
        "parallel_lab",
        "run",
        "-n",
        "3",
        "--as-mindspore",
        "--timeout",
        "30",
        "--log-dir",
        str(tmp_path / "log"),
        "script.py",
    ]
    found = subprocess.run(
        command, capture_output=True, text=True, timeout=80, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    assert found.returncode == 0, found.stdout + found.stderr
    lines = {line.partition("] ")[2] for line in found.stdout.splitlines() if line.startswith("[")}
    assert lines == {f"rank {rank} of 3 has [6. 6.]" for rank in range(3)}
