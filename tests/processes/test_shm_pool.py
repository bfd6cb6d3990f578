"""The notebook's side of worker processes: state, jobs, control, messages, and that nothing stays behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import parallel_lab
from parallel_lab.base.errors import RankDied, RankRaised, SharedMemoryTooSmall, WorkersClosed
from parallel_lab.processes import job_pool, jobs
from parallel_lab.processes.mpi.pool import MpiPool
from parallel_lab.processes.shm import WorkerPool, close_all, get_pool, shared_memory
from tests.crossed import each_of
from tests.processes.pools import BACKENDS, SHARED_MEMORY, lent, noted
from tests.processes.processes import gone

ROOT = str(Path(parallel_lab.__file__).parents[1])


pytestmark = pytest.mark.timeout(40)  # nothing hangs: a wait without end fails here, with all stacks


@pytest.fixture(scope="module", params=[SHARED_MEMORY])
def pool(request):
    with lent(MpiPool, 4) if request.param is MpiPool else request.param(4) as pool:
        yield noted(pool)


over_mpi_too = pytest.mark.parametrize("pool", BACKENDS, indirect=True)


def cpu_ticks(pid: int) -> int:
    """Processor time a process has used, in clock ticks."""
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(words[11]) + int(words[12])


# ---- state and functions ----


@pytest.mark.portable
def test_state_lives_from_run_to_run(pool):
    def add(comm, amount):
        comm.state["total"] = comm.state.get("total", 0) + amount * (comm.rank + 1)
        return comm.state["total"]

    assert pool.run(add, 1) == [1, 2, 3, 4]
    assert pool.run(add, 10) == [11, 22, 33, 44]
    with WorkerPool(2) as other:
        assert other.run(add, 5) == [5, 10]


@pytest.mark.portable
def test_run_each_gives_every_rank_its_own_arguments(pool):
    found = pool.run_each(lambda comm, a, b: (comm.rank, a * b), [(r, 10) for r in range(4)])
    assert found == [(r, 10 * r) for r in range(4)]
    with pytest.raises(ValueError, match="3 tuples of arguments for 4 ranks"):
        pool.run_each(lambda comm: None, [()] * 3)


@pytest.mark.portable
def test_functions_and_classes_of_main_travel_and_main_is_not_run_again(tmp_path):
    """A script without a main guard: its workers must not run it again, and find its helpers."""
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(f"""
        import sys; sys.path.insert(0, {ROOT!r})
        print("MAIN RUNS")
        import numpy as np
        from parallel_lab.processes.shm import WorkerPool
        def helper(x): return float(np.tanh(x).sum())
        class Model:
            def step(self, x): return helper(x)
        class Wide(Model):
            def step(self, x): return 2 * super().step(x)
        pool = WorkerPool(2)
        print(pool.run(lambda comm: Wide().step(np.zeros(3)) + comm.rank))
        """)
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=30)
    assert (done.stdout.split("\n")[:2], done.stderr) == (["MAIN RUNS", "[0.0, 1.0]"], "")


def test_workers_use_one_blas_thread(pool):
    def threads(comm):
        import threadpoolctl

        np.ones((4, 4)) @ np.ones((4, 4))
        return {info["num_threads"] for info in threadpoolctl.threadpool_info()}, os.environ["OMP_NUM_THREADS"]

    assert pool.run(threads) == [({1}, "1")] * 4


@pytest.mark.exhaustive
@pytest.mark.portable
def test_environment_of_the_notebook_is_not_changed():
    code = (
        f"import sys, os; sys.path.insert(0, {ROOT!r}); from parallel_lab.processes.shm import WorkerPool; "
        "b = dict(os.environ); WorkerPool(1).close(); print(b == dict(os.environ))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30).stdout == "True\n"


@pytest.mark.exhaustive
@pytest.mark.portable
def test_large_arguments_and_results(pool):
    x = np.arange(3_000_000.0)
    for got in pool.run(lambda comm, v: v * 2, x):
        np.testing.assert_array_equal(got, x * 2)


def test_a_plan_and_arrays_are_packed_without_dill_and_arrive_equal(monkeypatch):
    """dill, in Python, took a tenth of a second for the plan of a small network, at each start of a training."""
    monkeypatch.setattr(jobs, "_Packer", None)
    plan = parallel_lab.compile(parallel_lab.nn.Dense(8, 8), np.ones((8, 8)), device_num=2)
    large, small = np.arange(2000.0), np.arange(3)
    got = jobs.unpacked(jobs.packed((parallel_lab.compile, (plan, large, {"same": large}, small))))
    function, (other, first, named, last) = got
    assert function is parallel_lab.compile and other == plan and first is named["same"]
    assert first.tolist() == large.tolist() and last.tolist() == [0, 1, 2]


# ---- jobs ----


def train(comm, steps, nap_s=0.0):
    done = 0
    for step in range(steps):
        if not comm.agree_to_continue(step):
            break
        time.sleep(nap_s * (1 + comm.rank))  # ranks at different speeds
        done += 1
        if step == 0:
            comm.report("first step")
    comm.state["done"] = done
    return done


def wait_for_messages(job, count: int) -> None:
    """Workers import this file for its first function that they run: a message tells that they are at work."""
    end = time.monotonic() + 10
    while len(job.messages) < count and time.monotonic() < end:
        job.wait_for_change(0.1)
    assert len(job.messages) >= count, job


@pytest.fixture
def submit(pool):
    """`pool.submit`, with the job stopped when the test is over, however it ends."""
    jobs = []

    def start(*args, **options):
        jobs.append(pool.submit(*args, **options))
        return jobs[-1]

    yield start
    for job in jobs:
        job.stop()


@pytest.mark.portable
@pytest.mark.quick(1)
@over_mpi_too
def test_stop_is_taken_by_all_ranks_at_the_same_step(submit):
    job = submit(train, 10**9, 0.001)
    wait_for_messages(job, 4)
    time.sleep(0.1)
    job.stop()
    results = job.result(timeout=60)
    assert len(set(results)) == 1 and 1 < results[0] < 10**9
    assert job.state == "done"


@pytest.mark.quick(1)
@pytest.mark.portable
@over_mpi_too
def test_pause_holds_all_ranks_and_resume_goes_on(submit):
    def count(comm):
        step = 0
        while comm.agree_to_continue(step):
            step += 1
            if comm.rank == 3:
                comm.report(step)
            time.sleep(0.002)
        return step

    job = submit(count)
    wait_for_messages(job, 5)
    job.pause()
    assert job.state == "paused"
    time.sleep(0.15)
    held = len(job.messages)
    time.sleep(0.2)
    assert len(job.messages) == held > 0
    job.resume()
    time.sleep(0.2)
    assert len(job.messages) > held
    job.stop()
    assert len(set(job.result(timeout=60))) == 1


@pytest.mark.quick(1)
@over_mpi_too
def test_a_job_submitted_paused_takes_no_step_before_it_is_resumed(submit):
    def count(comm):
        for step in range(3):
            comm.wait_if_paused()
            comm.report(step)

    job = submit(count, paused=True)
    time.sleep(0.2)
    assert job.state == "paused" and not job.messages
    job.resume()
    job.result(timeout=60)
    assert len(job.messages) == 12


@pytest.mark.exhaustive
def test_pause_does_not_count_as_waiting():
    with WorkerPool(2, timeout_s=1.5, warn_after_s=1.0) as pool:
        job = pool.submit(train, 10**9, 0.001)
        wait_for_messages(job, 2)
        job.pause()
        time.sleep(1.8)
        job.resume()
        time.sleep(0.1)
        job.stop()
        assert len(set(job.result(timeout=60))) == 1


@pytest.mark.portable
def test_messages_reach_callback_and_list_in_order(pool):
    seen, threads = [], set()

    def talk(comm):
        for i in range(20):
            comm.report({"step": i, "x": np.full(3, comm.rank)})

    def listen(item):
        threads.add(threading.current_thread() is threading.main_thread())
        seen.append(item)

    job = pool.submit(talk, on_message=listen)
    job.result(timeout=60)
    assert threads == {False}
    for rank in range(4):
        assert [m["step"] for r, m in seen if r == rank] == list(range(20))
        assert all((m["x"] == rank).all() for r, m in seen if r == rank)
    assert len(job.messages) == 80


def test_faulty_callback_does_not_stop_the_job(pool):
    def broken(item):
        raise ZeroDivisionError

    job = pool.submit(lambda comm: comm.report(1), on_message=broken)
    with pytest.warns(RuntimeWarning, match="on_message raised ZeroDivisionError"):
        job.result(timeout=60)
    assert len(job.callback_errors) == 4


def test_jobs_queue_up_and_a_queued_one_can_be_withdrawn(pool):
    first = pool.submit(lambda comm: time.sleep(0.2) or "first")
    second = pool.submit(lambda comm: "second")
    third = pool.submit(lambda comm: 1 / 0)
    third.stop()
    with pytest.raises(TimeoutError, match="still"):
        second.result(timeout=0.01)
    assert second.result(timeout=60) == ["second"] * 4
    assert first.done() and third.result(timeout=60) == [None] * 4


# ---- interrupts ----


@contextlib.contextmanager
def child_at_work(script):
    """A process of a session of its own, which is at work."""
    command, pipe = [sys.executable, "-c", script], subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, start_new_session=True) as child:
        try:
            assert child.stdout.readline() == "READY\n"
            time.sleep(0.3)
            yield child
        finally:
            child.kill()


@pytest.mark.portable
@pytest.mark.exhaustive
@each_of(
    ("body", "keeps"),
    ("i = 0\n    while comm.agree_to_continue(i): i += 1", True),
    ("while True: comm.all_reduce(np.ones(2))", True),
    ("if comm.rank == 0: time.sleep(0.4)\n    comm.barrier()\n    while True: comm.barrier()", True),
    ("while True: pass", False),
    ids=["agree point", "collectives", "late to a barrier", "never communicates"],
)
def test_interrupt_gives_keyboard_interrupt_within_a_second(tmp_path, body, keeps):
    script = f"""
import sys, os, time; sys.path.insert(0, {ROOT!r})
import numpy as np
from parallel_lab.processes.shm import get_pool
def work(comm):
    {body}
pool = get_pool(4)
pool.run(lambda comm: comm.state.update(kept=True))
print("READY", flush=True)
try:
    pool.run(work)
except KeyboardInterrupt as e:
    print("INTERRUPTED", time.monotonic(), flush=True)
    print("TEXT", e, flush=True)
kept_and_summed = lambda comm: (comm.state.get("kept", False), bool(comm.all_reduce(np.ones(1))[0] == 4))
print(get_pool(4).run(kept_and_summed), flush=True)
"""
    with child_at_work(script) as child:
        sent = time.monotonic()
        os.killpg(child.pid, signal.SIGINT)  # to the whole group, as from a terminal or Jupyter
        out, err = child.communicate(timeout=60)
    assert "INTERRUPTED" in out, err
    took = float(out.split()[1]) - sent
    print(f"KeyboardInterrupt after {took * 1e3:.0f} ms")
    assert took < 5.0
    after = out.strip().splitlines()[-1]
    assert after.count(f"({keeps}") == 4 and after.count("True)") == 4, (after, err)
    assert ("did not stop" in out) == (not keeps)
    assert len(err.splitlines()) <= 5


def test_workers_that_force_has_not_ended_in_time_are_not_left_to_the_next_cell(monkeypatch):
    """On a busy machine force may come late: the interrupt itself ends them then, and the next pool is a new one."""
    monkeypatch.setattr(job_pool, "INTERRUPT_S", 0.3)  # before force is used

    def work(comm):
        comm.report("at work")
        while True:
            pass

    pool = get_pool(2)
    job = pool.submit(work)
    while len(job.messages) < 2:
        job.wait_for_change(0.1)
    told = pool.interrupt(job)
    assert job.done() and not pool.alive
    assert told == ": an interrupted run that did not end in time; all workers were ended and their state is lost"
    with pytest.raises(KeyboardInterrupt, match="the run was interrupted"):
        job.result()
    try:
        assert get_pool(2).run(lambda comm: comm.rank) == [0, 1]
    finally:
        close_all()


@pytest.mark.portable
@pytest.mark.exhaustive
def test_second_interrupt_does_not_wait_for_a_stuck_worker():
    script = f"""
import sys, os, time; sys.path.insert(0, {ROOT!r})
from parallel_lab.processes.shm import WorkerPool
pool = WorkerPool(2)
def stuck(comm):
    comm.report(0)
    while True: pass
print("READY", flush=True)
try:
    pool.run(stuck)
except KeyboardInterrupt as e:
    print("INTERRUPTED", e, pool.alive, flush=True)
"""
    with child_at_work(script) as child:
        child.send_signal(signal.SIGINT)
        time.sleep(0.1)
        child.send_signal(signal.SIGINT)
        out, err = child.communicate(timeout=60)
    told = "INTERRUPTED the run was interrupted: a second interrupt; all workers were ended"
    assert out.startswith(told) and out.endswith("False\n"), (out, err)


# ---- ends ----


@pytest.mark.portable
def test_start_and_close_leave_no_process_and_no_descriptor():
    with WorkerPool(2):
        pass  # the fork server and its tracker stay for the life of the process
    before = len(os.listdir("/proc/self/fd"))
    threads = threading.active_count()
    for _ in range(3):
        pool = WorkerPool(3)
        pids = pool.pids
        pool.run(lambda comm: comm.all_reduce(np.ones(3)))
        pool.close()
        pool.close()
        assert gone(pids, 5) is not None
    import gc

    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before
    assert threading.active_count() == threads
    with pytest.raises(WorkersClosed):
        pool.run(lambda comm: None)


@pytest.mark.portable
def test_idle_workers_use_no_processor_time(pool):
    def at_rest(seconds: float) -> bool:
        used = [cpu_ticks(pid) for pid in pool.pids]
        time.sleep(seconds)
        return [cpu_ticks(pid) for pid in pool.pids] == used

    pool.run(lambda comm: comm.barrier())
    assert any(at_rest(0.1) for _ in range(30))  # the last report is on its way, for longer on a busy machine
    assert at_rest(0.5)


@pytest.mark.portable
def test_get_pool_keeps_healthy_pools_and_replaces_lost_ones():
    try:
        first = get_pool(2)
        assert get_pool(2) is first
        three = get_pool(3)
        assert get_pool(2) is first and three.alive
        os.kill(first.pids[1], signal.SIGKILL)
        end = time.monotonic() + 5
        while first.alive and time.monotonic() < end:
            time.sleep(0.005)
        with pytest.raises(RankDied, match=r"rank 1 \(pid \d+\) was killed by SIGKILL \(signal 9\) while idle"):
            first.run(lambda comm: None)
        second = get_pool(2)
        assert second is not first and second.run(lambda comm: comm.rank) == [0, 1]
        assert first.closed
    finally:
        close_all()
    assert three.closed and second.closed


def test_two_pools_at_once():
    with WorkerPool(2) as a, WorkerPool(3) as b:
        ja = a.submit(lambda comm: [comm.all_reduce(np.ones(5))[0] for _ in range(200)][-1])
        jb = b.submit(lambda comm: [comm.all_reduce(np.ones(5))[0] for _ in range(200)][-1])
        assert ja.result(timeout=60) == [2.0] * 2
        assert jb.result(timeout=60) == [3.0] * 3


@pytest.mark.portable
def test_pool_started_in_a_short_lived_thread_lives_on():
    """The parent-death signal follows the thread that starts a process: workers must not be children of that thread."""
    made = []
    thread = threading.Thread(target=lambda: made.append(WorkerPool(2)))
    thread.start()
    thread.join()
    with made[0] as pool:
        time.sleep(0.1)
        assert pool.run(lambda comm: comm.rank) == [0, 1]


@pytest.mark.portable
def test_fork_of_the_notebook_does_not_close_its_pool(pool):
    pid = os.fork()
    if pid == 0:
        pool.close()
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    assert pool.run(lambda comm: comm.rank) == [0, 1, 2, 3]


def test_shared_memory_has_no_name(pool):
    def names(comm):
        with open("/proc/self/maps") as file:
            return [line for line in file if line.split()[-1].startswith("/dev/shm") or "psm_" in line]

    assert pool.run(names) == [[]] * 4
    # of a `run` command over MPI, in a test that goes on alongside this one; no pool makes such a name
    left = [n for n in os.listdir("/dev/shm") if n.startswith(("psm_", "parallel_lab", "sem.mp"))]
    assert [n for n in left if not n.startswith("parallel_lab-run-")] == []


@pytest.mark.exhaustive
@pytest.mark.portable
def test_memory_that_cannot_be_given_is_a_named_error():
    with pytest.raises(SharedMemoryTooSmall, match="arena_bytes"):
        code = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))"
        # in a child, because the limit of this process could not be raised again
        script = (
            f"import sys; sys.path.insert(0, {ROOT!r}); {code}\nfrom parallel_lab.processes.shm import "
            "WorkerPool\nWorkerPool(4)"
        )
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=30)
        assert "SharedMemoryTooSmall" in done.stderr, done.stderr
        raise SharedMemoryTooSmall(done.stderr)


def test_one_rank_alone_answers_itself():
    def program(comm):
        going, sums = comm.agree_to_continue(0), comm.all_reduce(np.arange(3.0)).tolist()
        return going, sums, comm.all_gather(np.ones(2)).shape, comm.broadcast(np.ones(1)).shape, comm.barrier()

    with WorkerPool(1) as pool:
        assert pool.run(program) == [(True, [0.0, 1.0, 2.0], (2,), (1,), None)]


def test_fence_for_machines_with_weak_memory_order_can_be_called_again_and_again():
    """x86 needs none, so the tests would never run it: at least it must not block."""
    fence = shared_memory._make_fence(True)
    assert [fence() for _ in range(3)] == [None] * 3


@pytest.mark.parametrize("bad", [0, -1, 2.0, True, "4"])
def test_world_size_that_is_not_a_count_is_refused(bad):
    with pytest.raises(ValueError, match="world_size"):
        WorkerPool(bad)


@pytest.mark.portable
def test_raising_rank_does_not_cost_the_pool(pool):
    with pytest.raises(RankRaised):
        pool.run(lambda comm: 1 / 0)
    assert pool.alive and pool.run(lambda comm: comm.all_reduce(np.ones(1))[0]) == [4.0] * 4


def test_functions_that_use_modules_of_the_package_find_them_on_the_worker(pool):
    """In an editable install dill took the package's modules for the user's own, and failed on what is in them."""
    from parallel_lab import ops
    from parallel_lab.base import seeds

    def on_rank(comm):
        seeds.set_seed(7 + comm.rank)
        return seeds.get_seed(), np.asarray(ops.relu(np.array([-1.0, 2.0]))).tolist()

    assert pool.run(on_rank) == [(7 + rank, [0.0, 2.0]) for rank in range(4)]
