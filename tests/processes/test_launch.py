"""`parallel-lab run`: a script on real ranks, what they print, and how a run ends."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import signal
import statistics
import subprocess
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest

from parallel_lab.base.events import from_dicts
from parallel_lab.cli.main import main
from parallel_lab.processes.launch import Console, LaunchSpec, launch
from parallel_lab.processes.launch.processes import GRACES
from tests.crossed import each_of
from tests.processes.launched import LAB, ROOT, lines_of, notes, output_of, run_ranks, script, started
from tests.processes.processes import PROMISE_BOUND_S, stop

pytestmark = pytest.mark.timeout(150)

LOOP = """
    init()
    comm = hooks.current_world().comm
    comm.barrier()
    open(f"ready.{get_rank()}", "w").close()
    while True:
        comm.all_reduce(np.ones(1000))
"""


# ---- a run that goes well ----


@pytest.mark.portable
@pytest.mark.quick(0)
@pytest.mark.parametrize("count", [1, 3, pytest.param(8, marks=pytest.mark.exhaustive)])
def test_every_rank_takes_part_and_its_lines_bear_its_number(tmp_path, count):
    body = """
        init("nccl")
        total = hooks.current_world().comm.all_reduce(np.arange(3.0) + get_rank())
        print("rank", get_rank(), "of", get_group_size(), total.tolist(), sys.argv[1:])
    """
    output = output_of(tmp_path, count, body, arguments=("--epochs", "3", "--", "-n", "x"))
    ranks_sum = count * (count - 1) / 2
    expected = [x * count + ranks_sum for x in range(3)]
    for rank in range(count):
        line = f"rank {rank} of {count} {expected} ['--epochs', '3', '--', '-n', 'x']"
        assert lines_of(output, rank) == [line]
        assert (tmp_path / f"log_output/1/rank.{rank}/stdout").read_text() == line + "\n"


def test_a_script_that_never_calls_init_just_runs_n_times(tmp_path):
    (tmp_path / "plain.py").write_text(
        "import os, sys\nprint(os.environ['RANK_ID'], os.environ['RANK_SIZE'], 'parallel_lab' in sys.modules, "
        "__name__)\n"
    )
    with started(*LAB, "run", "-n", "3", "--no-tag", "--log-dir", "logs", "plain.py", cwd=tmp_path) as run:
        code, output = run.wait()
    assert code == 0
    assert sorted(output.splitlines()) == [f"{rank} 3 False __main__" for rank in range(3)]
    assert (tmp_path / "logs/1/rank.2/stdout").read_text() == "2 3 False __main__\n"


@pytest.mark.exhaustive
def test_a_module_runs_as_with_python_m(tmp_path):
    (tmp_path / "work").mkdir()
    (tmp_path / "work/__init__.py").write_text("")
    (tmp_path / "work/job.py").write_text(
        "import sys\nfrom . import __name__ as package\nprint(package, __name__, sys.argv[1:])\n"
    )
    with started(*LAB, "run", "-n", "2", "-m", "work.job", "-s", cwd=tmp_path) as run:
        code, output = run.wait()
    assert code == 0, output
    assert lines_of(output, 1) == ["work __main__ ['-s']"]


@pytest.mark.exhaustive
def test_a_script_finds_the_modules_next_to_it_and_itself_as_main(tmp_path):
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep/resnet.py").write_text("name = 'beside'\n")
    script(
        tmp_path / "deep",
        "import resnet, pickle\nclass Thing: pass\nprint(resnet.name, "
        "type(pickle.loads(pickle.dumps(Thing()))).__module__)",
    )
    with started(*LAB, "run", "-n", "2", "deep/train.py", cwd=tmp_path) as run:
        code, output = run.wait()
    assert code == 0, output
    assert lines_of(output, 0) == ["beside __main__"]


@pytest.mark.exhaustive
def test_rank_0_s_seed_becomes_everybody_s_and_products_run_in_one_thread(tmp_path):
    body = """
        import threadpoolctl
        seeds.set_seed(5 + int(os.environ["RANK_ID"]))
        init()
        libraries = threadpoolctl.threadpool_info()
        threads = {library["num_threads"] for library in libraries if library["user_api"] == "blas"}
        print(seeds.get_seed(), threads)
        init()  # a second one does nothing
    """
    output = output_of(tmp_path, 2, body)
    assert lines_of(output, 0) == lines_of(output, 1) == ["5 {1}"]


@pytest.mark.portable
@pytest.mark.exhaustive
def test_a_child_of_a_rank_is_not_a_rank(tmp_path):
    body = """
        import subprocess
        if len(sys.argv) > 1:
            try:
                init()
            except RuntimeError as error:
                print("child:", error)
        else:
            init()
            subprocess.run([sys.executable, "train.py", "child"], check=True)
    """
    output = output_of(tmp_path, 2, body)
    assert "started alone" in lines_of(output, 1)[0]


@pytest.mark.portable
@pytest.mark.exhaustive
def test_what_a_rank_has_started_ends_with_it(tmp_path):
    body = """
        import subprocess
        subprocess.Popen(["sleep", "1000"]).returncode = 0  # Python is not to warn that it still runs
        print("left a child")
    """
    code, output = run_ranks(tmp_path, 2, body)  # looks for processes that are left
    assert code == 0 and len(lines_of(output, 0)) == 1


@pytest.mark.portable
@pytest.mark.exhaustive
def test_events_of_all_ranks_come_into_one_file(tmp_path):
    body = """
        init()
        comm = hooks.current_world().comm
        for _ in range(2):
            comm.all_reduce(np.ones(1000))
        comm.all_gather(np.ones(10, "f4"))
    """
    output_of(tmp_path, 4, body, "--events", "out/run.json")
    whole = json.loads((tmp_path / "out/run.json").read_text())
    log = from_dicts(whole["events"])
    assert log.ranks == (0, 1, 2, 3) and len(log) == 4 * 3
    # ring formulas: all_reduce 2 (n - 1) / n of its bytes, all_gather (n - 1) times its own
    assert {e.bytes for e in log.filter(op="all_reduce")} == {2 * 3 * 8000 // 4}
    assert {e.bytes for e in log.filter(op="all_gather")} == {3 * 40}
    assert {e.group for e in log} == {(0, 1, 2, 3)} and all("train.py:" in e.name for e in log)
    assert sum(bar["ph"] == "X" for bar in whole["traceEvents"]) == 12
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["run.json"]


@pytest.mark.exhaustive
def test_as_mindspore_prints_a_folder_and_run_uses_it(tmp_path):
    with started(*LAB, "as-mindspore", cwd=tmp_path) as run:
        code, folder = run.wait()
    assert code == 0 and (Path(folder.strip()) / "mindspore").is_dir()
    body = "import mindspore\nfrom mindspore.communication import init, get_rank\ninit('nccl')\nprint(get_rank())"
    output = output_of(tmp_path, 2, body, "--as-mindspore")
    assert lines_of(output, 1) == ["1"]


# ---- a run that fails ----


@pytest.mark.portable
@pytest.mark.exhaustive
def test_the_rank_that_raised_is_named_with_its_error_its_last_call_and_its_log(tmp_path):
    body = """
        init()
        comm = hooks.current_world().comm
        comm.all_reduce(np.ones(4, "f4"))
        if get_rank() == 2:
            raise ValueError("bad layer")
        comm.barrier()
    """
    output = output_of(tmp_path, 3, body, code=1)
    told = notes(output)
    assert re.fullmatch(
        r"rank 2 raised ValueError: bad layer \(train\.py:11\); its last call: all_reduce #1 float32 \(4,\) sum of .* "
        r"at train\.py:9",
        told[0],
    )
    assert told[-1] == "log of rank 2: log_output/1/rank.2/stdout"
    assert output.count("Traceback") == 1 and "rank_main" not in output and "frozen" not in output
    assert lines_of(output, 2)[-1] == "ValueError: bad layer"
    for rank in (0, 1):
        assert len(lines_of(output, rank)) == 1
        assert lines_of(output, rank)[0].startswith("RankRaised: rank 2 raised ValueError: bad layer")


@pytest.mark.exhaustive
@pytest.mark.portable
@each_of(
    ("end", "code", "words"),
    pytest.param("sys.exit(3)", 3, r"rank 1 left by sys\.exit\(3\)", marks=pytest.mark.exhaustive),
    pytest.param(
        "os._exit(7)", 7, r"rank 1 \(pid \d+\) ended with exit code 7 after barrier #1", marks=pytest.mark.exhaustive
    ),
    ("os.kill(os.getpid(), 9)", 128 + 9, r"rank 1 \(pid \d+\) was killed by SIGKILL \(signal 9\) after barrier #1"),
)
def test_every_bad_end_of_a_rank_ends_the_others_with_its_exit_code(tmp_path, end, code, words):
    body = f"""
        init()
        comm = hooks.current_world().comm
        comm.barrier()
        if get_rank() == 1:
            {end}
        if get_rank() == 0:
            comm.barrier()  # raises there
        time.sleep(1000)  # asks for nothing any more: ended by the launcher
    """
    began = time.monotonic()
    found, output = run_ranks(tmp_path, 3, body)
    assert found == code, output
    assert re.match(words, notes(output)[0])
    # who has told an error may take longer to end than it is given on a busy machine: rank 0, and a rank 1 that leaves
    late = "(0, |1, |0-)?2" if end.startswith("sys.exit") else "(0, )?2"
    ended = re.compile(f"ranks? {late} did not end in time and had to be ended")
    assert any(ended.fullmatch(note) for note in notes(output))
    assert re.match(r"Rank(Died|Raised): rank 1", lines_of(output, 0)[0])
    assert time.monotonic() - began < 30


@pytest.mark.portable
@pytest.mark.exhaustive
def test_a_rank_that_leaves_early_raises_in_those_that_wait_for_it(tmp_path):
    body = """
        init()
        if get_rank() != 1:
            hooks.current_world().comm.all_reduce(np.ones(2))
    """
    output = output_of(tmp_path, 3, body, code=1)
    assert "rank 1 has returned while rank" in notes(output)[0]
    assert "CollectiveMismatch" in output and "shm/barrier.py" not in output


@pytest.mark.exhaustive
def test_a_message_nobody_received_is_reported_at_the_end(tmp_path):
    body = """
        init()
        if get_rank() == 0:
            hooks.current_world().comm.send(np.ones(2), to=1)
    """
    output = output_of(tmp_path, 2, body, code=1)
    assert notes(output) == ["rank 0 sent 1 message to rank 1, which received 0. Every send needs its recv"]


@pytest.mark.portable
@pytest.mark.exhaustive
def test_a_straggler_is_named_by_a_warning_and_then_by_the_time_limit(tmp_path):
    body = """
        init()
        comm = hooks.current_world().comm
        comm.barrier()
        if get_rank() == 1:
            time.sleep(1000)
        comm.all_reduce(np.ones(2))
    """
    output = output_of(tmp_path, 3, body, "--timeout", "8", code=1)
    warnings = [note for note in notes(output) if note.startswith("warning: ")]
    assert len(warnings) == 1 and re.match(
        r"warning: rank 1 \(pid \d+, sleeping; last call barrier #1 .*answered\)\) keeps ranks 0, 2 waiting",
        warnings[0],
    )
    assert "CollectiveTimeout" in output and "timeout_s = 8 s" in output
    # on a busy machine others are too slow as well
    assert any(re.fullmatch(r"ranks? [\d, -]+ did not end in time and had to be ended", note) for note in notes(output))


@pytest.mark.exhaustive
@pytest.mark.parametrize("end_s", [1.2, 100])  # within the time that they are given, and beyond it
def test_ranks_that_raise_at_once_are_no_second_fault(tmp_path, end_s):
    """On a busy machine those that raised a moment after the first were said to have been ended by force."""
    body = f"""
        import atexit
        init()
        atexit.register(time.sleep, {end_s})
        hooks.current_world().comm.barrier()
        raise ValueError("all at once")
    """
    output = output_of(tmp_path, 4, body, code=1)
    assert notes(output)[0].startswith("rank") and "raised ValueError: all at once" in notes(output)[0]
    assert not [note for note in notes(output) if "had to be ended" in note]


@pytest.mark.exhaustive
@pytest.mark.parametrize(("end", "code"), [("raise ValueError('on purpose')", 1), ("sys.exit(3)", 3)])
def test_the_exit_code_is_that_of_the_end_also_of_ranks_that_are_too_slow_to_end(tmp_path, end, code):
    """It was 143, that of the signal by which they were ended. Both are late; only the silent one is said to be."""
    late = "atexit.register(time.sleep, 1000)\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)"
    waits = "hooks.current_world().comm.barrier()\nif get_rank() == 1:\n    time.sleep(1000)"
    output = output_of(tmp_path, 2, f"import atexit, signal\ninit()\n{late}\n{waits}\n{end}", code=code)
    assert "rank 1 did not end in time and had to be ended" in notes(output)
    assert re.match(r"rank 0 (raised ValueError: on purpose|left by sys\.exit\(3\))", notes(output)[0])


@pytest.mark.portable
@pytest.mark.exhaustive
def test_a_rank_that_does_not_call_init_is_named(tmp_path):
    body = """
        if os.environ["RANK_ID"] == "1":
            time.sleep(1000)
        init()
    """
    output = output_of(tmp_path, 2, body, "--timeout", "2", code=1)
    assert re.match(
        r"rank 1 \(pid \d+, sleeping\): init\(\) not called, rank 0 waiting in it for more than 2 s", notes(output)[0]
    )


@pytest.mark.exhaustive
def test_an_exception_before_init_ends_all(tmp_path):
    body = """
        if os.environ["RANK_ID"] == "1":
            raise KeyError("data")
        init()
    """
    output = output_of(tmp_path, 2, body, code=1)
    assert notes(output)[0].startswith("rank 1 raised KeyError: 'data' (train.py:8); it had called no collective")


def test_a_machine_without_room_for_the_ranks_says_so_and_nothing_stays(tmp_path):
    (tmp_path / "train.py").write_text("import time\ntime.sleep(60)\n")
    few_files = ("sh", "-c", 'ulimit -n 40; exec "$0" "$@"')
    with started(*few_files, *LAB, "run", "-n", "16", "train.py", cwd=tmp_path) as run:
        code, output = run.wait()
        assert code == 2
        assert re.search(r"WorldError: parallel-lab run: process \d+ of 16 cannot be started: .*ulimit -n", output), (
            output
        )
        assert "Traceback" not in output
        assert run.gone_after() is not None


@pytest.mark.portable
@pytest.mark.exhaustive
def test_a_mismatch_names_the_script_s_line_of_every_operator(tmp_path):
    body = """
        from parallel_lab import Tensor, ops
        init()
        if get_rank() == 0:
            ops.Broadcast(0)((Tensor([1.0]),))
        else:
            ops.AllReduce()(Tensor([1.0]))
    """
    output = output_of(tmp_path, 2, body, code=1)
    assert re.search(
        r"rank 0 called broadcast #1 .* at train\.py:\d+ and rank 1 called all_reduce #1 .* at AllReduce at "
        r"train\.py:\d+",
        output,
    ), output


@pytest.mark.exhaustive
def test_root_and_others_may_broadcast_on_lines_of_their_own(tmp_path):
    body = """
        from parallel_lab import Tensor, ops
        init()
        if get_rank() == 0:
            (got,) = ops.Broadcast(0)((Tensor([1.0]),))
        else:
            (got,) = ops.Broadcast(0)((Tensor([2.0]),))
        print("got", got.asnumpy().tolist())
    """
    output = output_of(tmp_path, 2, body)
    assert [lines_of(output, rank) for rank in (0, 1)] == [["got [1.0]"], ["got [1.0]"]]


@each_of(
    ("arguments", "words"),
    (("-n", "2", "nowhere.py"), "there is no file 'nowhere.py'"),
    (("-n", "0", "x.py"), "'0' is not a whole number"),
    (("-n", "2"), "no script was named"),
    (("-n", "2", "-m"), "no module was named"),
    (("-n", "2", "--timeout", "-1", "x.py"), "not a number of seconds"),
    (("x.py",), "-n"),
    (("-n", "2", "--bogus", "x.py"), "parallel-lab run: error: unrecognized arguments: --bogus"),
)
def test_wrong_arguments_start_nothing(tmp_path, monkeypatch, capsys, arguments, words):
    monkeypatch.chdir(tmp_path)
    try:
        code = main(["run", *arguments])
    except SystemExit as ended:  # argparse's own
        code = ended.code
    assert code == 2 and words in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


# ---- a run that is ended from outside ----


@pytest.mark.exhaustive
@pytest.mark.portable
@pytest.mark.faults("ends of notebooks, launchers", cases=1)
@each_of(
    ("number", "code"),
    (signal.SIGINT, 130),
    pytest.param(signal.SIGTERM, 143, marks=pytest.mark.exhaustive),
    pytest.param(signal.SIGHUP, 129, marks=pytest.mark.exhaustive),
)
def test_a_signal_to_the_launcher_ends_all_ranks_and_lets_them_clean_up(tmp_path, number, code):
    body = """
        init()
        comm = hooks.current_world().comm
        comm.barrier()
        try:
            open(f"ready.{get_rank()}", "w").close()
            while True:
                comm.barrier() if get_rank() else time.sleep(1000)
        finally:
            open(f"cleaned.{get_rank()}", "w").close()
    """
    script(tmp_path, body)
    with started(*LAB, "run", "-n", "2", "train.py", cwd=tmp_path) as run:
        run.wait_for(*(tmp_path / f"ready.{rank}" for rank in range(2)))
        start = time.monotonic()
        run.process.send_signal(number)
        found, output = run.wait()
        taken_s = time.monotonic() - start
        assert run.gone_after() is not None
    print(f"ended {taken_s * 1e3:.0f} ms after {number.name}")
    assert found == code and taken_s < PROMISE_BOUND_S
    cleaned = [rank for rank in range(2) if (tmp_path / f"cleaned.{rank}").exists()]
    assert cleaned == [0, 1] or taken_s > GRACES["interrupt_s"]  # who is later than that may be ended
    assert len(output.splitlines()) <= 5 and "Traceback" not in output


@pytest.mark.exhaustive
@pytest.mark.portable
def test_a_signal_does_not_break_into_the_clean_up_of_what_a_collective_has_raised_for_it(tmp_path):
    """The launcher writes why all must stop, then signals: here the order that it takes in one run of many."""
    body = """
        init()
        comm = hooks.current_world().comm
        comm.barrier()
        if get_rank() == 0:
            comm._loop.arena.write_fault(2, "Interrupted", "The run was interrupted.")  # 2: the launcher
        try:
            while True:
                comm.barrier()
        finally:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.01)
            open(f"cleaned.{get_rank()}", "w").close()
    """
    script(tmp_path, body)
    with started(*LAB, "run", "-n", "2", "train.py", cwd=tmp_path) as run:
        _, output = run.wait()
    assert all((tmp_path / f"cleaned.{rank}").exists() for rank in range(2)) and "Traceback" not in output


@pytest.mark.portable
@pytest.mark.faults("ends of notebooks, launchers")
@pytest.mark.exhaustive
def test_ranks_that_ignore_ctrl_c_are_ended_all_the_same(tmp_path):
    body = """
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        open(f"ready.{os.environ['RANK_ID']}", "w").close()
        time.sleep(1000)
    """
    script(tmp_path, body)
    with started(*LAB, "run", "-n", "2", "train.py", cwd=tmp_path) as run:
        run.wait_for(*(tmp_path / f"ready.{rank}" for rank in range(2)))
        start = time.monotonic()
        run.process.send_signal(signal.SIGINT)
        assert run.wait()[0] == 130
        assert time.monotonic() - start < PROMISE_BOUND_S
        assert run.gone_after() is not None


@pytest.mark.exhaustive
@pytest.mark.portable
@pytest.mark.faults("ends of notebooks, launchers", cases=1)
@each_of("stopped", pytest.param(False, marks=pytest.mark.exhaustive), True, ids=["running", "one rank stopped"])
def test_no_rank_outlives_a_launcher_that_is_killed(tmp_path, stopped):
    script(tmp_path, LOOP)
    with started(*LAB, "run", "-n", "3", "train.py", cwd=tmp_path) as run:
        run.wait_for(*(tmp_path / f"ready.{rank}" for rank in range(3)))
        if stopped:
            stop(next(iter(run.ranks())))
        os.kill(run.process.pid, signal.SIGKILL)
        taken_s = run.gone_after()
    assert taken_s is not None and taken_s < PROMISE_BOUND_S
    print(f"gone {taken_s * 1e3:.0f} ms after the launcher")


def kill_one_rank(folder: Path, rng: np.random.Generator, count: int) -> float:
    """Kill a random rank at a random moment; seconds until the launcher has ended everything and said so."""
    for old in folder.glob("ready.*"):
        old.unlink()
    victim = int(rng.integers(count))
    with started(*LAB, "run", "-n", str(count), "train.py", cwd=folder) as run:
        run.wait_for(*(folder / f"ready.{rank}" for rank in range(count)))
        pids = {rank: pid for pid, rank in run.ranks().items()}
        time.sleep(float(rng.uniform(0, 0.05)))
        start = time.monotonic()
        os.kill(pids[victim], signal.SIGKILL)
        code, output = run.wait()
        taken_s = time.monotonic() - start
        assert run.gone_after(2.0) is not None
    assert code == 128 + 9
    assert re.match(
        rf"rank {victim} \(pid {pids[victim]}\) was killed by SIGKILL \(signal 9\) (in|after) "
        r"(all_reduce|barrier) #\d+",
        notes(output)[0],
    )
    for rank in set(range(count)) - {victim}:
        assert lines_of(output, rank)[0].startswith(f"RankDied: rank {victim} ")
    return taken_s


@pytest.mark.portable
@pytest.mark.faults("ends of notebooks, launchers")
def test_all_report_a_rank_that_is_killed(tmp_path, rng):
    script(tmp_path, LOOP)
    taken_s = kill_one_rank(tmp_path, rng, 3)
    print(f"all over after {taken_s * 1e3:.0f} ms")
    assert taken_s < PROMISE_BOUND_S


@pytest.mark.faults("ends of notebooks, launchers")
@pytest.mark.exhaustive
@pytest.mark.timeout(600)
def test_twenty_random_kills(tmp_path, rng):
    script(tmp_path, LOOP)
    taken = [kill_one_rank(tmp_path, rng, int(rng.integers(2, 5))) for _ in range(20)]
    print(f"all over after median {statistics.median(taken) * 1e3:.0f} ms, max {max(taken) * 1e3:.0f} ms, n=20")
    assert max(taken) < PROMISE_BOUND_S


@pytest.mark.faults("ends of notebooks, launchers")
@pytest.mark.exhaustive
def test_a_reader_that_goes_away_ends_the_run(tmp_path):
    script(tmp_path, "while True:\n    print('line', flush=True)\n    time.sleep(0.01)")
    with started("sh", "-c", f"{' '.join(LAB)} run -n 2 train.py | head -2", cwd=tmp_path) as run:
        _, output = run.wait()
        assert run.gone_after() is not None
    assert [line.split("] ")[1] for line in output.splitlines()[:2]] == ["line", "line"] and "Traceback" not in output


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="the open descriptors are counted there")
def test_a_console_that_fails_again_at_the_end_leaves_nothing_open(tmp_path):
    """Rank 1's line finds no reader, and when the launcher ends the ranks, rank 0's unended line finds none either."""
    failed = []

    class Failing(Console):
        def _show(self, ranks, text):
            failed.append(text)
            raise BrokenPipeError("nobody reads")

    body = """
        import os, time
        if os.environ["RANK_ID"] == "0":
            print("unended", end="", flush=True)
            open("ready", "w").close()
        else:
            while not os.path.exists("ready"):
                time.sleep(0.01)
            time.sleep(0.2)
            print("line", flush=True)
        time.sleep(60)
    """
    environment = {"PYTHONPATH": str(ROOT)}
    (tmp_path / "train.py").write_text(textwrap.dedent(body))
    spec = LaunchSpec((str(tmp_path / "train.py"),), 2, environment=environment)
    before = sorted(os.listdir("/proc/self/fd"))
    with contextlib.chdir(tmp_path), pytest.raises(BrokenPipeError):
        launch(spec, Failing(2, stream=io.StringIO()))
    assert failed == ["line", "unended"]
    assert sorted(os.listdir("/proc/self/fd")) == before


@pytest.mark.exhaustive
def test_the_command_explains_itself():
    found = subprocess.run([*LAB, "run", "--help"], capture_output=True, text=True, timeout=60)
    assert found.returncode == 0 and "exit code" in found.stdout and "--as-mindspore" in found.stdout
