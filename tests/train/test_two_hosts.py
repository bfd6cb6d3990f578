"""One script on two hosts that only a network joins: the same numbers as one device, and what breaks is named."""

import json
import re
import subprocess
import sys
import time
from functools import partial

import numpy as np
import pytest

from parallel_lab.processes.mpi import launch
from tests.crossed import each_of
from tests.processes.hosts import two_hosts
from tests.processes.launched import LAB, script, started
from tests.processes.pools import NEEDS_MPI
from tests.train.cases import networks, pipeline
from tests.train.test_resume import SCRIPT
from tests.train.worlds import Worlds, assert_equals_one_device, by_mpirun

pytestmark = [NEEDS_MPI, pytest.mark.exhaustive, pytest.mark.timeout(240)]
RANKS, LIMIT_S = 4, 20.0
NAMED_S = 5.0  # after the processes of a host are gone
# One of its ranks may have told its call before the cable was pulled, and a rank of the own host may not have: what
# ranks say of a call also comes by way of the other host.
THE_OTHER_HOST = r"ranks? [\d, -]*[23]"
AFTER_S = launch.LOST_HOST_S + 5.0  # for all to end where nothing tells them but silence; a daemon of Open MPI 4 stays


@pytest.fixture
def both(tmp_path):
    with two_hosts(tmp_path, RANKS // 2) as made:
        yield made


def on_both(both, size, words):
    return both.on_first(*by_mpirun(size, words, hosts=both.hosts))


@pytest.mark.parametrize("module", [networks, pipeline], ids=["networks", "pipeline stages"])
def test_ranks_on_two_hosts_equal_one_device(both, tmp_path, module):
    (tmp_path / "results").mkdir()
    worlds = Worlds(module, tmp_path / "results", partial(on_both, both))
    names = [n for n, f in vars(module).items() if RANKS in getattr(f, "sizes", ())]
    assert names
    for name in names:
        assert_equals_one_device(worlds, RANKS, name)


def test_slices_saved_by_ranks_of_two_hosts_go_on_there_under_another_strategy(both, tmp_path):
    """As test_resume.py; bound there."""

    def run(*words):
        command = [sys.executable, *words] if words[3] == "alone" else on_both(both, RANKS, words)
        with started(*command, cwd=tmp_path, PYTHONWARNINGS="") as process:
            status, output = process.wait(120)
        assert status == 0, output
        return json.loads(next(line for line in output.splitlines() if line.startswith("{")))["losses"]

    undivided = run(str(SCRIPT), "0", "6", "alone", "False", "-", "-")
    saved = str(tmp_path / "saved")
    found = run(str(SCRIPT), "0", "3", "((2, 2), (2, 1)), ((4, 1), (1, 1))", "False", "-", saved)
    found += run(str(SCRIPT), "3", "3", "((1, 2), (2, 2)), ((2, 2), (2, 1))", "False", saved, "-")
    np.testing.assert_allclose(found, undivided, rtol=1e-9)


LISTENING = """
import os, socket, sys
from parallel_lab.processes.mpi.keeper import _keep_to_loopback

bound, kept = sys.argv[1:]
with socket.create_server((bound, 0)) as listener:
    if kept == "kept":
        _keep_to_loopback(os.getpid(), os.pidfd_open(os.getpid()), set())
    print(listener.getsockname()[1], flush=True)
    sys.stdin.read()
"""
CALLING = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=1)"


@pytest.mark.parametrize("bound", ["all interfaces", "its own address"])
def test_what_mpirun_listens_on_is_reached_from_its_own_host_alone(both, bound):
    """Open MPI binds to all interfaces, PMIx of Debian 13 to this machine's address."""
    own = both.addresses[0]

    def python(host, *words, **more):
        return subprocess.Popen(["ip", "netns", "exec", both.spaces[host], sys.executable, "-c", *words], **more)

    def reached(kept, host, address):
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        place = own if bound == "its own address" else "0.0.0.0"
        with python(0, LISTENING, place, kept, **pipes) as server:
            port = server.stdout.readline().strip()
            code = python(host, CALLING, address, port, stderr=subprocess.DEVNULL).wait(30)
            server.stdin.close()
        return code == 0

    assert reached("kept", 0, own if bound == "its own address" else "127.0.0.1")
    assert reached("open", 1, own) and not reached("kept", 1, own)


ADDING = """
import socket
from pathlib import Path

init()
rank, what, x = get_rank(), sys.argv[1], np.ones(1000, np.float32)
comm = hooks.current_world().comm
assert comm.all_gather(np.array([rank])).tolist() == [0, 1, 2, 3]
for step in range(100_000):
    if step == 20:
        Path(f"adding.{rank}").write_text(socket.gethostname())
        os.rename(f"adding.{rank}", f"adds.{rank}")  # whole, as soon as it is there
    if step == 200 and rank == 3 and what == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    if step == 200 and rank == 3 and what == "raises":
        raise ValueError("enough")
    comm.all_reduce(x[:10] if step == 200 and rank == 2 and what == "differs" else x)
    time.sleep(0.002)
"""


@each_of(
    ("what", "words", "limit_s"),
    ("dies", ("process rank 3 with PID", "on node 10.77.0.2", "signal 9"), None),
    ("raises", ("rank 3 raised ValueError", "enough"), None),
    ("differs", ("CollectiveMismatch", r"float32 \(1000,\)", "rank 2 called all_reduce", r"float32 \(10,\)"), None),
    ("host is killed", ("10.77.0.2",), NAMED_S),
    ("cable is pulled", (f"rank 0 has waited 2 s for {THE_OTHER_HOST} in all_reduce", "10.77.0.2"), AFTER_S),
)
def test_what_breaks_is_named_and_both_hosts_are_left_empty(both, tmp_path, what, words, limit_s):
    script(tmp_path, ADDING)
    command = on_both(both, RANKS, [str(tmp_path / "train.py"), what])
    extra = {"PARALLEL_LAB_TIMEOUT": f"{LIMIT_S:g}", "PYTHONWARNINGS": ""}
    with open(tmp_path / "console", "w+") as console, started(*command, cwd=tmp_path, stdout=console, **extra) as run:
        run.wait_for(*(tmp_path / f"adds.{rank}" for rank in range(RANKS)))
        assert [(tmp_path / f"adds.{rank}").read_text() for rank in range(RANKS)] == ["ada", "ada", "bob", "bob"]
        begun = time.monotonic()
        if what == "host is killed":
            both.kill_all(1)
        if what == "cable is pulled":
            both.cut()
        status = run.process.wait(60)
        took_s = time.monotonic() - begun
        console.seek(0)
        output = console.read()
        assert status != 0
        assert not [word for word in words if not re.search(word, output)], output
        assert limit_s is None or took_s < limit_s
        while left := [command for host in (0, 1) for command in both.commands(host) if "orted" not in command]:
            assert time.monotonic() - begun < 60, left
            time.sleep(0.05)


def test_a_collective_keeps_its_limit_when_the_cable_is_pulled(both, tmp_path):
    script(tmp_path, ADDING)
    command, log = on_both(both, RANKS, [str(tmp_path / "train.py"), "goes on"]), tmp_path / "console"
    extra = {"PARALLEL_LAB_TIMEOUT": "3", "PYTHONWARNINGS": ""}  # before Open MPI sees it, and ends the job
    with open(log, "w") as console, started(*command, cwd=tmp_path, stdout=console, **extra) as run:
        run.wait_for(*(tmp_path / f"adds.{rank}" for rank in range(RANKS)))
        both.cut()
        begun = time.monotonic()
        late = f"CollectiveTimeout: {THE_OTHER_HOST} did not come within 3 s; rank 0 waits in all_reduce"
        while not re.search(late, log.read_text()):
            assert time.monotonic() - begun < 3 + 5, log.read_text()
            time.sleep(0.05)


@pytest.mark.parametrize("what", ["both", "one is missing", "no file"])
def test_the_doctor_examines_the_hosts_of_a_file(both, tmp_path, what):
    if what == "one is missing":
        both.cut()
    if what == "no file":
        (tmp_path / "hostfile").unlink()
    words = ("doctor", "--hosts", both.hosts.file, "--interface", both.hosts.interface)
    with started(*both.on_first(*LAB, *words), cwd=tmp_path, PYTHONWARNINGS="") as run:
        status, output = run.wait(60)
    assert status == (what != "both")
    if what == "both":
        assert "ada 2 ranks; bob 2 ranks added and ended" in output
        assert f"--hostfile {both.hosts.file}" in output and "sbatch -N 2 -n 4" in output
    else:
        assert ("-> ssh must reach each host" if what == "one is missing" else "cannot be read") in output
