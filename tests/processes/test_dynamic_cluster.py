"""MindSpore's dynamic cluster by hand, and `parallel-lab msrun`."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import sys

import pytest

from parallel_lab.processes.world import cluster_env
from tests.crossed import each_of
from tests.processes.launched import LAB, lines_of, script, started

pytestmark = pytest.mark.timeout(150)

READY = "init()\nopen(f'ready.{get_rank()}', 'w').close()"
SCRIPT = "init()\nprint(get_rank(), hooks.current_world().comm.all_reduce(np.ones(2)).tolist())"


@pytest.fixture
def port():
    """A port that nothing else on this machine uses as the name of its cluster."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


@contextlib.contextmanager
def cluster(folder, port, workers, *, count, scheduler=True, **common):
    """A cluster's processes, one by one: {"sched": ..., 0: ...}.  workers: MS_NODE_ID of each, None: without"""
    shared = {"MS_WORKER_NUM": str(count), "MS_SCHED_HOST": "127.0.0.1", "MS_SCHED_PORT": port, **common}
    with contextlib.ExitStack() as stack:
        runs = {}
        for position, node in enumerate(workers):
            own = {"MS_ROLE": "MS_WORKER"} | ({} if node is None else {"MS_NODE_ID": node})
            runs[position] = stack.enter_context(started(sys.executable, "train.py", cwd=folder, **shared, **own))
        if scheduler:
            runs["sched"] = stack.enter_context(
                started(sys.executable, "train.py", cwd=folder, **shared, MS_ROLE="MS_SCHED")
            )
        yield runs


@pytest.mark.exhaustive
@pytest.mark.portable
def test_workers_meet_at_the_scheduler_which_trains_nothing(tmp_path, port):
    script(tmp_path, SCRIPT)
    with cluster(tmp_path, port, [None, None, "0"], count=3) as runs:
        found = {name: run.wait() for name, run in runs.items()}
    assert found["sched"] == (0, "scheduler: 3 workers have met\nscheduler: all workers have ended\n")
    assert found[2] == (0, "0 [3.0, 3.0]\n")  # MS_NODE_ID fixed its rank
    assert sorted(found[position][1] for position in (0, 1)) == ["1 [3.0, 3.0]\n", "2 [3.0, 3.0]\n"]


@pytest.mark.portable
@pytest.mark.exhaustive
def test_too_few_workers_fail_everywhere_in_time(tmp_path, port):
    script(tmp_path, SCRIPT)
    with cluster(tmp_path, port, [None], count=2, MS_TOPO_TIMEOUT="2") as runs:
        found = {name: run.wait() for name, run in runs.items()}
    for code, output in found.values():
        assert code == 1 and "WorldTimeout" in output
    assert "1 of 2 workers did not come within 2 s (MS_TOPO_TIMEOUT)" in found["sched"][1]


@pytest.mark.exhaustive
def test_workers_without_a_scheduler_say_so(tmp_path, port):
    script(tmp_path, SCRIPT)
    with cluster(tmp_path, port, ["0"], count=1, scheduler=False, MS_TOPO_TIMEOUT="1") as runs:
        code, output = runs[0].wait()
    assert code == 1 and "the scheduler did not come within 1 s (MS_TOPO_TIMEOUT)" in output


@pytest.mark.portable
@pytest.mark.exhaustive  # it waits for a moment: an earlier run of the same name may be about to end
def test_a_worker_too_many_is_turned_away(tmp_path, port):
    script(tmp_path, f"{READY}\nwhile not os.path.exists('go'): time.sleep(0.02)")
    with cluster(tmp_path, port, ["0", "1"], count=2) as runs:
        for rank in (0, 1):
            runs[rank].wait_for(tmp_path / f"ready.{rank}")
        with cluster(tmp_path, port, [None], count=2, scheduler=False) as late:
            code, output = late[0].wait()
        assert code == 1 and "all ranks have come already" in output
        (tmp_path / "go").touch()
        assert [runs[name].wait()[0] for name in (0, 1, "sched")] == [0, 0, 0]


@pytest.mark.exhaustive
@pytest.mark.portable
@pytest.mark.faults("ends of notebooks, launchers", cases=1)
@pytest.mark.parametrize("victim", [1, pytest.param("sched", marks=pytest.mark.exhaustive)])
def test_the_death_of_one_ends_all(tmp_path, port, victim):
    script(tmp_path, f"{READY}\nwhile True: hooks.current_world().comm.barrier()")
    with cluster(tmp_path, port, ["0", "1"], count=2) as runs:
        for rank in (0, 1):
            runs[rank].wait_for(tmp_path / f"ready.{rank}")
        os.kill(runs[victim].process.pid, signal.SIGKILL)
        found = {name: run.wait() for name, run in runs.items() if name != victim}
    who = "the scheduler" if victim == "sched" else "rank 1"
    for code, output in found.values():
        assert code == 1 and re.search(rf"{who} \(pid {runs[victim].process.pid}\) ended without", output)


@each_of(
    ("variables", "words"),
    ({"MS_ROLE": "MS_PSERVER"}, "parameter server"),
    ({"MS_ROLE": "WORKER"}, "MS_ROLE='WORKER'.*MS_SCHED or MS_WORKER"),
    ({"MS_WORKER_NUM": ""}, "MS_WORKER_NUM is not"),
    ({"MS_WORKER_NUM": "0"}, "1 to 4096"),
    ({"MS_SCHED_PORT": "80"}, "1024 to 65535"),
    ({"MS_SCHED_HOST": ""}, "MS_SCHED_HOST is not"),
    ({"MS_SCHED_HOST": "192.0.2.1"}, "another machine.*mpirun"),  # RFC 5737: for documentation, nobody's
    ({"MS_NODE_ID": "4"}, "MS_NODE_ID=4.*0 to 1"),
    ({"MS_TOPO_TIMEOUT": "-1"}, "MS_TOPO_TIMEOUT='-1'"),
)
def test_an_environment_that_makes_no_cluster_is_refused(monkeypatch, variables, words):
    place = {"MS_SCHED_HOST": "127.0.0.1", "MS_SCHED_PORT": "8118"}
    whole = {"MS_ROLE": "MS_WORKER", "MS_WORKER_NUM": "2", "MS_NODE_ID": "", **place, **variables}
    for name, value in whole.items():
        monkeypatch.setenv(name, value)
    with pytest.raises((ValueError, NotImplementedError), match=words):
        cluster_env.meet_in_cluster("hccl")


def test_a_host_that_cannot_be_found_is_named(monkeypatch):
    def unknown(host):
        raise socket.gaierror("unknown")

    monkeypatch.setattr(cluster_env.socket, "gethostbyname", unknown)
    with pytest.raises(ValueError, match="'nowhere' cannot be found"):
        cluster_env.check_host("nowhere", "MS_SCHED_HOST")
    with pytest.raises(ValueError, match="cannot be found"):
        cluster_env.check_host("127.0.0.1", "--master_addr")


# ---- msrun ----


@pytest.mark.exhaustive
def test_msrun_starts_workers_with_their_environment_and_logs(tmp_path):
    variables = "[os.environ[name] for name in ('MS_ROLE', 'MS_NODE_ID', 'RANK_SIZE', 'MS_WORKER_NUM')]"
    script(tmp_path, f"{SCRIPT}\nprint({variables}, len(os.sched_getaffinity(0)), sys.argv[1:])")
    options = "--worker_num 3 --local_worker_num=3 --master_port 8118 --log_dir logs/deep --join True --bind_core True"
    with started(*LAB, "msrun", *options.split(), "train.py", "--lr", "0.1", cwd=tmp_path) as run:
        code, output = run.wait()
    assert code == 0, output
    cores = max(1, len(os.sched_getaffinity(0)) // 3)
    for rank in range(3):
        text = f"{rank} [3.0, 3.0]\n['MS_WORKER', '{rank}', '3', '3'] {cores} ['--lr', '0.1']\n"
        assert (tmp_path / f"logs/deep/worker_{rank}.log").read_text() == text
        assert lines_of(output, rank) == text.splitlines()
    said = (tmp_path / "logs/deep/scheduler.log").read_text()
    expected = "scheduler: 3 workers are started: train.py --lr 0.1\nscheduler: all workers have ended, exit code 0\n"
    assert said == expected


@pytest.mark.exhaustive
def test_msrun_tells_what_went_wrong_and_shows_the_workers_asked_for(tmp_path):
    script(
        tmp_path,
        "init()\nprint('hello')\nif get_rank() == 1: raise ValueError('bad')\nhooks.current_world().comm.barrier()",
    )
    options = "--worker_num 2 --local_worker_num 2 --log_dir logs --join True --tail_worker_log 0"
    with started(*LAB, "msrun", *options.split(), "train.py", cwd=tmp_path) as run:
        code, output = run.wait()
    assert code == 1
    assert lines_of(output, 1) == [] and lines_of(output, 0)[0] == "hello"
    assert "ValueError: bad" in (tmp_path / "logs/worker_1.log").read_text()
    for told in (output, (tmp_path / "logs/scheduler.log").read_text()):
        assert "rank 1 raised ValueError: bad" in told and "log of rank 1: logs/worker_1.log" in told


@pytest.mark.exhaustive
def test_msrun_without_join_returns_while_the_workers_go_on(tmp_path):
    script(tmp_path, f"{READY}\nwhile not os.path.exists('go'): time.sleep(0.02)\nprint('done')")
    options = "--worker_num 2 --local_worker_num 2 --log_dir logs"
    with started(*LAB, "msrun", *options.split(), "train.py", cwd=tmp_path) as run:
        code, output = run.wait()
        assert code == 0 and "2 workers are started in the background" in output
        run.process.poll = lambda: None  # the workers are what is waited for
        run.wait_for(tmp_path / "ready.0", tmp_path / "ready.1")
        (tmp_path / "go").touch()
        assert run.gone_after(20) is not None
    assert [(tmp_path / f"logs/worker_{rank}.log").read_text() for rank in range(2)] == ["done\n"] * 2
    assert (tmp_path / "logs/scheduler.log").read_text().endswith("exit code 0\n")


@pytest.mark.quick(5)
@each_of(
    ("arguments", "words"),
    (("--worker_num", "0"), "whole number"),
    (("--master_port", "80"), "1024 to 65535"),
    (("--join", "perhaps"), "neither True nor False"),
    (("--cluster_time_out", "0"), "whole number"),
    (("--sim_level", "1"), "NotBuiltYet"),
    (("--worker_num", "8", "--local_worker_num", "4"), "NotBuiltYet.*one machine.*mpirun"),
    (("--worker_num", "2", "--local_worker_num", "4"), "is more than"),
    (("--master_addr", "192.0.2.1"), "NotBuiltYet.*another machine"),
    (("--tail_worker_log", "9"), "tail_worker_log"),
    (("--rank_table_file", "none.json"), "none.json: .*No such file"),
)
def test_msrun_refuses_what_it_cannot_do(tmp_path, capsys, monkeypatch, arguments, words):
    from parallel_lab.cli.main import main

    monkeypatch.chdir(tmp_path)
    script(tmp_path, "")
    try:
        code = main(["msrun", *arguments, "train.py"])
    except SystemExit as ended:
        code = ended.code
    assert code == 2
    assert re.search(words, capsys.readouterr().err.replace("\n", " "))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["train.py"]
