"""A script in two pipeline stages, started in every way: losses and parameters of all ranks are one device's."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tests.cli.test_magics import Kernel
from tests.processes.launched import LAB, script, started
from tests.processes.pools import NEEDS_MPI
from tests.processes.test_dynamic_cluster import cluster, port
from tests.processes.test_rank_table import ranks_by_hand, table, write
from tests.train.cases.pipeline import by_model
from tests.train.worlds import Here, run_case

__all__ = ["port"]  # the fixture

pytestmark = [pytest.mark.timeout(150), pytest.mark.exhaustive]
SIZE = 4

BODY = """
import json
from parallel_lab.train.communication import get_group_size, get_rank, init
from tests.train.cases.pipeline import by_model
from tests.train.worlds import Here, run_case
init()
rank, size = get_rank(), get_group_size()
found, _ = run_case(by_model(), Here(rank, size, alone=False))
print(f"rank {rank} of {size}: " + json.dumps({name: value.tolist() for name, value in found.items()}))
"""


def assert_equals_one_device(output):
    """What all ranks have printed; every one prints the losses, and gathers every parameter."""
    found = dict(line.partition(f" of {SIZE}: ")[::2] for line in output.splitlines() if f" of {SIZE}: " in line)
    found = {name[name.index("rank") :]: json.loads(text) for name, text in found.items()}
    assert found.keys() == {f"rank {rank}" for rank in range(SIZE)}, output
    want, _ = run_case(by_model(), Here(0, SIZE, alone=True))
    assert len(want["losses"]) == 6 and want["losses"][-1] < want["losses"][0]
    for mine in found.values():
        assert mine.keys() == want.keys()
        for name, value in want.items():
            np.testing.assert_allclose(mine[name], value, rtol=0, atol=1e-10, err_msg=name)


def test_run(tmp_path):
    script(tmp_path, BODY)
    with started(*LAB, "run", "-n", str(SIZE), "train.py", cwd=tmp_path) as run:
        code, output = run.wait()
    assert code == 0, output
    assert_equals_one_device(output)


def test_msrun(tmp_path, port):
    script(tmp_path, BODY)
    options = f"--worker_num={SIZE} --local_worker_num={SIZE} --master_port={port} --log_dir=logs --join=True"
    with started(*LAB, "msrun", *options.split(), "train.py", cwd=tmp_path) as run:
        code, output = run.wait()
    assert code == 0, output
    assert_equals_one_device("\n".join((tmp_path / f"logs/worker_{n}.log").read_text() for n in range(SIZE)))


def test_a_rank_table(tmp_path):
    write(tmp_path, table(range(SIZE)))
    script(tmp_path, BODY)
    with ranks_by_hand(tmp_path, range(SIZE), RANK_SIZE=str(SIZE)) as runs:
        found = [run.wait() for run in runs.values()]
    assert [code for code, _ in found] == [0] * SIZE, found
    assert_equals_one_device("\n".join(output for _, output in found))


def test_a_cluster_by_hand(tmp_path, port):
    script(tmp_path, BODY)
    with cluster(tmp_path, port, [str(rank) for rank in range(SIZE)], count=SIZE) as runs:
        found = [run.wait() for run in runs.values()]
    assert [code for code, _ in found] == [0] * (SIZE + 1), found
    assert_equals_one_device("\n".join(output for _, output in found))


@pytest.mark.parametrize("backend", ["processes", pytest.param("mpi", marks=NEEDS_MPI)])
def test_a_cell_of_a_notebook(tmp_path, backend):
    pytest.importorskip("ipykernel")
    kernel = Kernel(tmp_path)
    try:
        options = "" if backend == "processes" else "--backend mpi"
        status, error, outputs = kernel.run(f"%%ranks -n {SIZE} {options}\n{BODY}")
    finally:
        kernel.close()
    assert status == "ok", error
    assert_equals_one_device("".join(text for _, text in outputs))
