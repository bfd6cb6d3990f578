"""The notebook ends: all its workers end with it, whichever way it ended, and nothing stays behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import parallel_lab
from tests.processes.processes import PROMISE_BOUND_S, descendants, gone, state_of, stop

ROOT = str(Path(parallel_lab.__file__).parents[1])
SEED = 20261121


# nothing hangs: a wait without end fails here, with all stacks
pytestmark = [pytest.mark.faults("ends of notebooks, launchers"), pytest.mark.timeout(90)]


# ---- the notebook is gone ----

CHILD = f"""
import sys, time, os; sys.path.insert(0, {ROOT!r})
import numpy as np
from parallel_lab.processes.shm import WorkerPool
pools = [WorkerPool(3), WorkerPool(2)]
def work(comm, how):
    comm.report("at work")
    if how == "stuck": pow(3, 10**9)  # in C, holding the GIL
    while how == "busy": comm.all_reduce(np.ones(10))
jobs = [p.submit(work, sys.argv[1]) for p in pools] if sys.argv[1] != "idle" else []
for job in jobs:
    while len(job.messages) < job._pool.world_size: job.wait_for_change(1)
print("PIDS", *[pid for p in pools for pid in p.pids], flush=True)
time.sleep(60)
"""


@pytest.mark.exhaustive
@pytest.mark.parametrize("whole_group", [False, True], ids=["alone", "with its group"])
@pytest.mark.parametrize("how", [*(pytest.param(how, marks=pytest.mark.portable) for how in ("idle", "busy")), "stuck"])
def test_kill_of_the_notebook_ends_all_workers_the_stopped_one_too(tmp_path, how, whole_group):
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, how], stdout=subprocess.PIPE, text=True, start_new_session=True, env=environment
    )
    try:
        line = child.stdout.readline()
        assert line.startswith("PIDS"), line
        pids = [int(w) for w in line.split()[1:]]
        everything = descendants(child.pid)
        assert set(pids) <= set(everything)
        stop(pids[1])
        (os.killpg if whole_group else os.kill)(child.pid, signal.SIGKILL)
        took, helpers = gone(pids, PROMISE_BOUND_S), gone(everything, PROMISE_BOUND_S)
    finally:
        child.kill()
        child.wait()
        child.stdout.close()
        for pid in descendants(child.pid):
            os.kill(pid, signal.SIGKILL)
    assert took is not None and helpers is not None
    print(f"{how}: workers gone after {took * 1e3:.0f} ms, helpers after {helpers * 1e3:.0f} ms")
    assert list(tmp_path.iterdir()) == []  # and of /dev/shm `nothing_left_behind` of conftest.py says it


@pytest.mark.portable
def test_orderly_end_of_the_notebook_with_a_running_job(tmp_path):
    code = CHILD.replace("time.sleep(60)", "sys.exit(0)")
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code, "busy"], capture_output=True, text=True, timeout=60, env=env)
    assert (done.returncode, done.stderr) == (0, "")
    assert gone([int(w) for w in done.stdout.split()[1:]], PROMISE_BOUND_S) is not None
    assert list(tmp_path.iterdir()) == []


# ---- in a real kernel ----


@pytest.mark.portable
@pytest.mark.exhaustive
def test_in_a_kernel_interrupt_keeps_the_workers_and_kill_ends_them():
    from jupyter_client.manager import start_new_kernel

    manager, client = start_new_kernel(kernel_name="python3", stderr=subprocess.DEVNULL)

    def run(code: str) -> str:
        out = []

        def hook(m):
            content = m["content"]
            if m["msg_type"] == "stream":
                out.append(content["text"])
            elif m["msg_type"] == "error":
                out.append(f"{content['ename']}: {content['evalue']}\n")

        client.execute_interactive(code, output_hook=hook, timeout=20, stop_on_error=False)
        return "".join(out)

    try:
        setup = f"""
import sys; sys.path.insert(0, {ROOT!r})
import numpy as np
from parallel_lab.processes.shm import get_pool
def helper(x): return float(np.tanh(x).sum())
class Model:
    def step(self): return helper(np.zeros(2))
def train(comm, steps):
    for step in range(steps):
        if not comm.agree_to_continue(step): break
        Model().step()
    return comm.rank
def broken(comm):
    if comm.rank == 1:
        return 1 / 0
    comm.barrier()
pool = get_pool(4)
print(pool.run(train, 3)); print("PIDS", *pool.pids)"""
        first = run(setup)
        assert "[0, 1, 2, 3]" in first, first
        pids = [int(w) for w in first.split("PIDS")[1].split()]
        failed = run("pool.run(broken)")
        assert "RankRaised" in failed and "return 1 / 0" in failed and "In[" in failed, failed
        client.execute("pool.run(train, 10**9)", stop_on_error=False)
        time.sleep(0.7)
        start = time.monotonic()
        manager.interrupt_kernel()
        again = run("print('again', pool.run(train, 5))")
        print(f"next cell done {time.monotonic() - start:.2f} s after the interrupt")
        assert "again [0, 1, 2, 3]" in again, again
        assert time.monotonic() - start < PROMISE_BOUND_S and all(state_of(pid) != "Z" for pid in pids)
        client.execute("pool.run(train, 10**9)", stop_on_error=False)
        time.sleep(0.3)
        stop(pids[2])
        manager.autorestart = False
        kernel = manager.provisioner.process.pid
        everything = descendants(kernel)
        os.kill(kernel, signal.SIGKILL)
        took = gone(everything, PROMISE_BOUND_S)
        assert took is not None
        print(f"all gone {took * 1e3:.0f} ms after kill -9 of the kernel")
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


@pytest.mark.exhaustive
@pytest.mark.parametrize("end", ["shutdown", "restart"])
def test_a_kernel_that_had_workers_ends_in_time_to_remove_what_it_made(end, tmp_path):
    from jupyter_client.manager import start_new_kernel

    manager, client = start_new_kernel(
        kernel_name="python3", stderr=subprocess.DEVNULL, env={**os.environ, "TMPDIR": str(tmp_path)}
    )
    try:
        setup = f"""
import sys, tempfile; sys.path.insert(0, {ROOT!r})
from parallel_lab.processes.shm import WorkerPool
scratch = tempfile.TemporaryDirectory(prefix="learner-")
with WorkerPool(2) as pool: pool.run(lambda comm: comm.barrier())
pool = WorkerPool(2)"""
        client.execute_interactive(setup, timeout=30)
        assert [p.name for p in tmp_path.glob("learner-*")]
        if end == "restart":
            manager.restart_kernel()
    finally:
        client.stop_channels()
        manager.shutdown_kernel()
    assert not list(tmp_path.glob("learner-*"))
