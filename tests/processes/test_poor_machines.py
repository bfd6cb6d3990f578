"""Launchers and pools where something is missing or stands still: no room for logs, another alphabet, a stopped rank,
Ctrl-C before the script has begun.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import time

import numpy as np
import pytest

from parallel_lab.base.errors import CollectiveTimeout
from parallel_lab.processes.shm import WorkerPool
from parallel_lab.processes.supervisor import Facts, Kill, Limits, Stall, StopRun, Supervisor
from tests.crossed import first
from tests.processes.launched import LAB, run_ranks, script, started

# `first` marks the later cases exhaustive
pytestmark = [pytest.mark.faults("poor machines", cases=2), pytest.mark.timeout(120)]

TRAIN = "init(); print(float(hooks.current_world().comm.all_reduce(np.ones(2))[0]) == 2.0, flush=True)"


# ---- log files ----


def no_folder(folder):
    (folder / "log_output").write_text("a file has the name")


def no_file(folder):
    (folder / "log_output" / "1" / "rank.1" / "stdout").mkdir(parents=True)


def full_disk(folder):
    (folder / "log_output" / "1" / "rank.1").mkdir(parents=True)
    (folder / "log_output" / "1" / "rank.1" / "stdout").symlink_to("/dev/full")


@pytest.mark.exhaustive
@pytest.mark.parametrize("spoil", first(1, [full_disk, no_folder, no_file]))
def test_a_run_goes_on_without_log_files(tmp_path, spoil):
    """It once ended in a traceback, or with the first line that a rank printed."""
    spoil(tmp_path)
    code, output = run_ranks(tmp_path, 2, TRAIN)
    assert code == 0, output
    lines = output.splitlines()
    assert sorted(line for line in lines if line.startswith("[")) == ["[0] True", "[1] True"]
    (said,) = [line for line in lines if not line.startswith("[")]
    assert said.startswith("parallel-lab: warning: log files cannot be written") and "goes on without them" in said


@pytest.mark.exhaustive
def test_a_failure_without_log_files_names_none(tmp_path):
    no_folder(tmp_path)
    code, output = run_ranks(tmp_path, 2, "init(); raise ValueError('on purpose')")
    assert code == 1 and "on purpose" in output and "log of rank" not in output


def test_events_that_cannot_be_written_are_refused_before_the_run(tmp_path):
    code, output = run_ranks(tmp_path, 2, TRAIN, "--events", "/proc/run.json")
    assert code == 2 and output.startswith("parallel-lab: DataFileError: ") and len(output.splitlines()) == 1


# ---- a console of another alphabet ----


@pytest.mark.exhaustive
@pytest.mark.parametrize("encoding", first(1, ["ascii", "latin-1"]))
def test_the_launcher_itself_prints_on_any_console(tmp_path, encoding):
    """Ranks whose own output is UTF-8, a console that is not."""
    body = "init(); sys.stdout.buffer.write('α → β\\n'.encode()); sys.stdout.flush()"
    code, output = run_ranks(tmp_path, 2, body, PYTHONIOENCODING=encoding)
    assert code == 0 and sorted(output.splitlines()) == [r"[0] \u03b1 \u2192 \u03b2", r"[1] \u03b1 \u2192 \u03b2"]


# ---- a rank that a signal has stopped ----


def test_a_halted_rank_is_given_no_time_to_report():
    """On a virtual clock: at the limit the run stops, and at the next look the rank is ended; others have theirs."""
    supervisor = Supervisor(3, Limits(1.0, 0.5, 60.0, fault_s=3.0), takes_jobs=False)
    supervisor.tick(0.0, Facts(ready=range(3)))
    stall = Stall((1,), "rank 1 keeps ranks 0, 2 waiting", 1.0)
    (stop,) = supervisor.tick(1.0, Facts(ready=range(3), stall=stall))
    assert isinstance(stop, StopRun) and stop.kind == "CollectiveTimeout"
    assert supervisor.tick(1.01, Facts(fault=True, halted=[1])) == [Kill((1,), "is stopped by a signal")]
    assert supervisor.tick(1.02, Facts(fault=True, halted=[1])) == []
    assert supervisor.tick(3.9, Facts(fault=True, dead=[1])) == []
    (kill,) = supervisor.tick(4.1, Facts(fault=True, dead=[1], reported=[0]))
    assert kill == Kill((2,), "did not stop within 3 s") and supervisor.killed == (1, 2)


def test_a_rank_that_goes_on_before_the_limit_is_left_alone():
    supervisor = Supervisor(2, Limits(1.0, 0.5, 60.0, fault_s=3.0), takes_jobs=False)
    supervisor.tick(0.0, Facts(ready=range(2)))
    assert not any(isinstance(a, Kill) for a in supervisor.tick(0.9, Facts(ready=range(2), halted=[1])))


@pytest.mark.parametrize("ranks", first(1, [2, 4, 8]))
def test_a_stopped_rank_is_reported_at_the_limit(ranks):
    """Once 3 s after it: the grace of ranks that can still report."""

    def endless(comm):
        comm.barrier()
        comm.report("at work")
        while True:
            comm.all_reduce(np.ones(5))

    with WorkerPool(ranks, timeout_s=1.0, warn_after_s=0.5) as pool:
        job = pool.submit(endless)
        while len(job.messages) < ranks:  # they may be there before anybody waits
            job.wait_for_change(1.0)
        time.sleep(0.1)
        os.kill(pool.pids[1], signal.SIGSTOP)
        start = time.monotonic()
        with pytest.warns(RuntimeWarning, match="rank 1"), pytest.raises(CollectiveTimeout, match=r"rank 1 .*stopped"):
            job.result()
        took_s = time.monotonic() - start
    print(f"told after {took_s:.2f} s, limit 1 s")
    assert took_s < 3.0


# ---- Ctrl-C while ranks are born ----

SLOW = "init(); open(f'begun.{get_rank()}', 'w').close(); time.sleep(30)"


@pytest.mark.quick(1)
@pytest.mark.parametrize("seed", first(2, range(40)))
def test_an_interrupt_of_a_run_at_any_moment_is_one_line(tmp_path, seed):
    draw = random.Random(seed)
    moment_s, ranks = draw.uniform(0.3, 1.6), draw.choice([2, 4, 8])
    script(tmp_path, SLOW)
    # files that an import was just reading are closed by the garbage collector: no reason to print a warning
    with started(*LAB, "run", "-n", str(ranks), "train.py", cwd=tmp_path, PYTHONWARNINGS="") as run:
        time.sleep(moment_s)
        sent = time.monotonic()
        (os.killpg if draw.random() < 0.5 else os.kill)(run.process.pid, signal.SIGINT)
        code, output = run.wait(30)
        took_s = time.monotonic() - sent
        assert run.gone_after(2.0) is not None, output
    print(f"{moment_s:.2f} s, {ranks} ranks: ended after {took_s:.2f} s\n{output}")
    if "log_output" not in os.listdir(tmp_path):  # Python itself was still starting, and none of ours had begun
        return
    assert code == 130 and len(output.splitlines()) <= 5 and "Traceback" not in output, output
    assert took_s < 5.0  # promised: 2 s


LOST = """
import signal, time, weakref
class Thing: pass
thing = Thing()
kept = weakref.ref(thing, lambda _: signal.raise_signal(signal.SIGINT))
del thing
time.sleep(600)
"""


@pytest.mark.exhaustive
def test_an_interrupt_that_a_callback_swallows_is_raised_again(tmp_path):
    """As in the import system, whose locks have such callbacks."""
    script(tmp_path, "init()\n" + LOST)
    with started(*LAB, "run", "-n", "1", "train.py", cwd=tmp_path, PYTHONWARNINGS="") as run:
        code, output = run.wait(90)  # far less than the script sleeps
    assert code != 0 and "Exception ignored" not in output and "Traceback" not in output, output


WRAPPED = """
import signal
class Name:
    def __set_name__(self, owner, name):
        signal.raise_signal(signal.SIGINT)
class Thing:
    name = Name()
"""


@pytest.mark.exhaustive
def test_an_interrupt_that_python_wraps_in_another_error_is_still_one(tmp_path):
    """Before Python 3.12 `__set_name__` lets nothing out but a RuntimeError; a dataclass has it in each field."""
    script(tmp_path, "init()\n" + WRAPPED)
    with started(*LAB, "run", "-n", "1", "train.py", cwd=tmp_path, PYTHONWARNINGS="") as run:
        code, output = run.wait(90)
    assert code != 0 and "Traceback" not in output and "RuntimeError" not in output, output


# ---- MPI on one machine ----


@pytest.mark.exhaustive
@pytest.mark.skipif(shutil.which("mpirun") is None, reason="no mpirun")
def test_neither_ranks_nor_mpirun_on_one_machine_are_reached_from_others(tmp_path):
    """Open MPI lets every rank listen on all interfaces unless told otherwise, and binds mpirun's sockets to all. A
    connection to this machine's own address comes over that interface.
    """
    body = """
    import socket
    from pathlib import Path
    init()

    def ports_of(pid):
        own = {os.readlink(path) for path in Path(f"/proc/{pid}/fd").iterdir() if path.is_symlink()}
        lines = [line for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]]
        listening = [line.split() for line in lines if line.split()[3] == "0A"]
        return [int(words[1].rpartition(":")[2], 16) for words in listening if f"socket:[{words[9]}]" in own]

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("198.51.100.1", 9))  # sends nothing
            address = probe.getsockname()[0]
        except OSError:  # this machine has no other address
            address = None
    reached = []
    for port in ports_of(os.getppid()) if address else ():
        try:
            socket.create_connection((address, port), timeout=1).close()
            reached.append(port)
        except OSError:
            pass
    right = float(hooks.current_world().comm.all_reduce(np.ones(2))[0]) == 2.0
    print(f"{right}: {len(ports_of(os.getpid()))} ports, mpirun {len(ports_of(os.getppid()))}, {reached}", flush=True)
    """
    code, output = run_ranks(tmp_path, 2, body, "--backend", "mpi")
    assert code == 0 and len(re.findall(r"True: 0 ports, mpirun [1-9]\d*, \[\]", output)) == 2, output
