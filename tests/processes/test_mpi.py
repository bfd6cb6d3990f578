"""MPI gives what the simulator and shared memory give: the same bits, the same errors, and an end for every rank
whichever way one of them ends.

Needs mpirun and mpi4py: skipped, with the reason, where they are missing; on the build machine a skip is a failure
(tests/conftest.py).
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import parallel_lab
from parallel_lab import Session, compile, nn
from parallel_lab.base.errors import ArgumentError, MissingPackage
from parallel_lab.processes import mpi
from parallel_lab.processes.mpi import launch
from parallel_lab.processes.mpi.pool import MpiPool, close_mpi_pools
from tests.crossed import each_of, first
from tests.processes.pools import NEEDS_MPI
from tests.recorded.nets import Quick

ROOT = str(Path(parallel_lab.__file__).parents[1])
SCRIPT = str(Path(__file__).with_name("mpi_ranks.py"))

pytestmark = pytest.mark.timeout(120)  # nothing hangs: a wait without end fails here, with all stacks


def mpirun(n: int, *arguments: str, script: str = SCRIPT, limit_s: float = 100.0) -> subprocess.CompletedProcess:
    """Output and exit code of `arguments` on n ranks; ends within `limit_s` with all processes, or fails."""
    environment = {**launch.rank_environment(), "PYTHONPATH": ROOT, "OPENBLAS_NUM_THREADS": "1"}
    command = mpi.mpirun_command(n, [sys.executable, script, *arguments])
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen(command, env=environment, **pipes, text=True, start_new_session=True)
    try:
        out, err = process.communicate(timeout=limit_s)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    return subprocess.CompletedProcess(command, process.returncode, out, err)


# ---- under mpirun: the same answers ----


@pytest.mark.exhaustive
@NEEDS_MPI
@pytest.mark.parametrize(("n", "count"), first(1, [(2, 200), (4, 200), (8, 60)]))
def test_random_requests_give_the_bits_of_answer(n, count):
    found = mpirun(n, "compare", str(count))
    assert found.returncode == 0, found.stderr
    assert re.fullmatch(r"compared \d+ replies\n", found.stdout), found.stdout


@pytest.mark.exhaustive
@NEEDS_MPI
@pytest.mark.parametrize("n", [pytest.param(2, marks=pytest.mark.exhaustive), 4])
def test_sums_of_the_library_itself_match_to_rounding(n):
    found = mpirun(n, "native", "200")
    assert found.returncode == 0, found.stderr
    assert re.fullmatch(r"compared \d+ replies\n", found.stdout), found.stdout


@pytest.mark.quick(0)
@NEEDS_MPI
@each_of(
    ("n", "count", "how"),
    (3, 300, "mixed native"),
    (2, 300, "mixed"),
    pytest.param(4, 1000, "mixed", marks=pytest.mark.exhaustive),
    pytest.param(8, 120, "mixed", marks=pytest.mark.exhaustive),
    pytest.param(8, 600, "mixed", marks=pytest.mark.exhaustive),
)
def test_random_programs_of_blocking_and_started_collectives_give_the_bits_of_answer(n, count, how):
    """The comparison's control too: no false alarm in 3,000 matching calls. `native`: float sums to rounding."""
    found = mpirun(n, how, str(count))
    assert found.returncode == 0, found.stderr
    compared = re.fullmatch(r"compared (\d+) replies\n", found.stdout)
    assert compared and int(compared[1]) > count, found.stdout


@pytest.mark.exhaustive
@NEEDS_MPI
@pytest.mark.parametrize("n", [3, pytest.param(2, marks=pytest.mark.exhaustive)])
def test_a_reply_is_written_where_it_is_wanted_without_a_copy(n):
    found = mpirun(n, "memory")
    assert (found.returncode, found.stdout) == (0, "no copies\n"), found.stderr


@pytest.mark.exhaustive
@NEEDS_MPI
def test_large_values_give_the_bits_of_answer():
    found = mpirun(3, "large")
    assert (found.returncode, found.stdout) == (0, "equal\n"), found.stderr


@pytest.mark.exhaustive
@NEEDS_MPI
def test_init_of_the_communication_module_finds_mpi(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import os\n"
        "import numpy as np\n"
        "from parallel_lab.train.communication import get_group_size, get_rank, init\n"
        "from parallel_lab.base.hooks import current_world\n"
        "init()\n"
        "total = current_world().comm.all_reduce(np.array([get_rank()]))\n"
        "os.write(1, f'{get_rank()} {get_group_size()} {current_world().backend} {total[0]}\\n'.encode())\n"
    )
    found = mpirun(4, script=str(script))
    assert found.returncode == 0, found.stderr
    assert sorted(found.stdout.splitlines()) == [f"{rank} 4 mpi 6" for rank in range(4)]


# ---- under mpirun: every end ----

ENDS = {
    "raise": (1, "rank 1 raised ValueError; all ranks are ended", "ValueError: rank one is broken"),
    "raise while handling": (1, "rank 1 raised ValueError; all ranks are ended", "ValueError: rank one is broken"),
    "thread": (1, "rank 1, thread 'loader', raised ZeroDivisionError", "ZeroDivisionError: division by zero"),
    "sys.exit": (3, "rank 1 ended with exit code 3; all ranks are ended", ""),
    "sys.exit text": (1, "no data here", "rank 1 ended with exit code 1"),
    "SystemExit": (None, "rank 1 has returned while rank", "its last call was barrier #0"),
    "return": (None, "rank 1 has returned while rank", "its last call was barrier #0"),
    "os._exit": (7, "", ""),
    "kill": (128 + signal.SIGKILL, "", ""),
    "kill while others wait for a handle": (128 + signal.SIGKILL, "", ""),
    "not waited for": (1, "rank 1 has started all_reduce", "never waited for it"),
    "started mismatch": (1, "they differ in shape", "raised CollectiveMismatch; all ranks are ended"),
    "unread": (1, "rank 1 sent 1 message to rank 0, which received 0", ""),
    "mismatch": (1, "they differ in shape", "raised CollectiveMismatch; all ranks are ended"),
}

OFTEN = ("raise", "return", "kill")


@pytest.mark.quick(0)
@NEEDS_MPI
@pytest.mark.faults("ranks at work", cases=1)
@pytest.mark.parametrize(
    "how", [how if how in OFTEN else pytest.param(how, marks=pytest.mark.exhaustive) for how in ENDS]
)
def test_all_ranks_end_when_one_does(how):
    """Guards against: the others wait for ever in MPI_Finalize or in their next collective."""
    code, *texts = ENDS[how]
    start = time.monotonic()
    found = mpirun(3, how, limit_s=60)
    print(f"{how}: {time.monotonic() - start:.1f} s with start")
    assert found.returncode == code if code is not None else found.returncode != 0, found.stderr
    assert "is through" not in found.stdout
    assert [text for text in texts if text not in found.stderr] == [], found.stderr


@NEEDS_MPI
@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("how", "printed"),
    [(how, "is through") for how in ("sys.exit caught", "thread exits", "forked child ends")]
    + [("exit while others work", "worked on")],
)
def test_harmless_endings_end_nobody(how, printed):
    found = mpirun(3, how)
    assert found.returncode == 0, found.stderr
    assert found.stdout.count(printed) == {"is through": 3, "worked on": 2}[printed]
    assert "all ranks are ended" not in found.stderr


@pytest.mark.exhaustive
@NEEDS_MPI
@pytest.mark.parametrize("how", ["caught", "caught_late"])
def test_a_caught_mismatch_is_raised_on_every_rank_and_again_by_later_calls(how):
    found = mpirun(4, how)
    assert found.returncode == 0, found.stderr
    assert sorted(found.stdout.splitlines()) == [f"rank {rank} caught it" for rank in range(4)]


@pytest.mark.exhaustive
@NEEDS_MPI
@pytest.mark.faults("ranks at work")
def test_a_time_limit_names_the_rank_that_is_missing_also_through_others():
    start = time.monotonic()
    found = mpirun(3, "timeout")
    assert time.monotonic() - start < 25  # rank 1 sleeps for 30 s
    assert found.returncode == 1
    told = re.findall(r"rank (\d): rank 1 did not come within 1.5 s", found.stdout)
    assert told and set(told) <= {"0", "2"}, found.stdout + found.stderr


@NEEDS_MPI
@pytest.mark.exhaustive
def test_ranks_that_wait_for_each_other_are_a_deadlock_on_each_of_them():
    found = mpirun(3, "deadlock")
    assert found.returncode == 0, found.stderr
    lines = sorted(found.stdout.splitlines())
    assert [line[:7] for line in lines] == ["rank 0:", "rank 1:", "rank 2:"]
    assert all(
        "rank 0 waits for rank 1 in recv" in line and "rank 2 waits for rank 0 in recv" in line for line in lines
    ), lines


# ---- the command line, and machines without MPI ----


@pytest.fixture
def fake_launcher(tmp_path):
    def make(version: str) -> str:
        path = tmp_path / "mpirun"
        path.write_text(f"#!/bin/sh\necho '{version}'\n")
        path.chmod(0o755)
        return str(path)

    launch._version_text.cache_clear()
    yield make
    launch._version_text.cache_clear()


@each_of(
    ("version", "user", "oversubscribe", "options"),
    ("mpirun (Open MPI) 4.1.4", 1000, True, ["--oversubscribe", "--bind-to", "none"]),
    ("mpirun (Open MPI) 5.0.3", 0, True, ["--oversubscribe", "--bind-to", "none", "--allow-run-as-root"]),
    ("mpirun (Open MPI) 4.1.4", 0, False, ["--allow-run-as-root"]),
    ("HYDRA build details: Version: 4.2.0", 0, True, []),
)
def test_the_command_fits_the_mpi_that_is_there(monkeypatch, fake_launcher, version, user, oversubscribe, options):
    monkeypatch.setattr(launch.os, "geteuid", lambda: user)
    launcher = fake_launcher(version)
    found = mpi.mpirun_command(8, ["python", "script.py"], oversubscribe=oversubscribe, launcher=launcher)
    assert found == [launcher, *options, "-n", "8", "python", "script.py"]


@pytest.mark.parametrize("n", [0, -1, True, 2.0, "2"])
def test_an_invalid_number_of_ranks_is_refused(n):
    with pytest.raises(ArgumentError, match=r"mpirun_command: n=.*\. An int, at least 1"):
        mpi.mpirun_command(n, ["python"], launcher="mpirun")


LAUNCHERS = (({"OMPI_COMM_WORLD_SIZE": "8"}, True), ({"PMI_SIZE": "8"}, True), ({"PMIX_RANK": "0"}, True))


@each_of("environment, expected", *LAUNCHERS, ({"RANK_ID": "0"}, False), ({}, False))
def test_a_launcher_is_recognised_by_what_it_leaves_in_the_environment(environment, expected):
    assert mpi.launched_by_mpi(environment) is expected
    assert not mpi.launched_by_mpi(launch.rank_environment(environment))


def test_without_mpirun_or_mpi4py_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setattr(launch.shutil, "which", lambda name, **how: None)
    with pytest.raises(MissingPackage, match=r"mpirun was not found.*apt-get install openmpi-bin"):
        MpiPool(2)
    with pytest.raises(MissingPackage, match="mpirun was not found"):
        mpi.mpirun_command(2, ["python"])
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    with pytest.raises(MissingPackage, match=r"mpi4py.*pip install 'mpi4py>=4.1'"):
        mpi.load_mpi()


def test_a_wrong_word_for_reproducible_is_refused(monkeypatch):
    monkeypatch.setenv("PARALLEL_LAB_MPI_REPRODUCIBLE", "yes")
    with pytest.raises(ArgumentError, match=r"PARALLEL_LAB_MPI_REPRODUCIBLE='yes'. 1 or 0"):
        mpi.connect()


# ---- a plan at work ----


@NEEDS_MPI
@each_of("large", pytest.param(False, id="small"), pytest.param(True, marks=pytest.mark.exhaustive, id="large"))
def test_training_on_mpi_equals_the_simulator_bit_for_bit(large):
    """`large`: messages beyond what travels with the comparison."""
    rng = np.random.default_rng(7)
    dims, batch = ((128, 64, 64), 64) if large else ((32, 16, 16), 16)
    net = Quick(*dims, ((2, 2), (2, 1)), ((2, 2),), ((2, 2), (2, 1)))
    for p in net.trainable_params():
        p._initial, p._data = None, (rng.normal(size=p.shape) / np.sqrt(p.shape[0])).astype("f4")
    data = [
        (rng.normal(size=(batch, dims[0])).astype("f4"), rng.normal(size=(batch, dims[2])).astype("f4"))
        for _ in range(3)
    ]
    optimizer = nn.Momentum(net.trainable_params(), 0.05, 0.9)
    plan = compile(net, *data[0], loss=nn.MSELoss(), optimizer=optimizer, device_num=4, dataset_strategy="full_batch")
    found = {}
    try:
        for executor in ("simulator", "mpi"):
            with Session(plan, net, optimizer, executor=executor) as session:
                found[executor] = session.train(data, steps=5, record=1), session.gradients(), session.parameters()
                expected = {"simulated" if executor == "simulator" else "measured"}
                assert {event.source for event in session.events} == expected
    finally:
        close_mpi_pools()
    assert len(set(found["mpi"][0])) == 5, "the losses do not change: nothing was trained"
    assert found["mpi"][0] == found["simulator"][0]
    for mine, theirs in zip(found["mpi"][1:], found["simulator"][1:], strict=True):
        for name in theirs:
            np.testing.assert_array_equal(mine[name], theirs[name], err_msg=name)


@pytest.mark.exhaustive
@NEEDS_MPI
def test_mpi_s_own_sums_of_ranks_in_place_and_others():
    """MPI's IN_PLACE is for all ranks or none: Open MPI crashed or waited for ever."""

    def program(comm):
        x = np.full(8192, 1.0 + comm.rank)
        return comm.all_reduce(x, out=x if comm.rank == 0 else None)[[0, -1]].tolist()

    with MpiPool(4, reproducible=False, timeout_s=20) as pool:
        assert pool.run(program) == [[10.0, 10.0]] * 4
