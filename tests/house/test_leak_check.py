"""The check that runs after every test (tests/conftest.py) sees what it is there to see."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.crossed import each_of

pytestmark = pytest.mark.exhaustive  # every test starts a pytest of its own

CONFTEST = Path(__file__).resolve().parents[1] / "conftest.py"


def run_pytest(folder, body, named: str = "", **environment):
    """Run one test file under our conftest in a process of its own; returns exit code and output."""
    (folder / "conftest.py").write_text(CONFTEST.read_text().replace("GRACE_S = 3.0", "GRACE_S = 0.3"))
    (folder / "test_it.py").write_text(textwrap.dedent(body))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(folder)]
    command += ["-c", os.devnull, str(folder)]
    # says to tests that run alongside these that the file is looked after
    command += [f"--junit-prefix={named}"] if named else []
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "PARALLEL_LAB"))}
    found = subprocess.run(command, capture_output=True, text=True, timeout=120, env={**env, **environment}, cwd=folder)
    return found.returncode, found.stdout + found.stderr


def test_a_clean_test_passes(tmp_path):
    body = """
        import subprocess, sys
        def test_it():
            assert subprocess.run([sys.executable, "-c", "print(1)"], capture_output=True).stdout == b"1\\n"
    """
    assert run_pytest(tmp_path, body)[0] == 0


def test_a_process_left_running_is_named(tmp_path):
    body = """
        import subprocess, sys, pytest
        @pytest.fixture(autouse=True, scope="session")
        def cleaner():
            started = []
            yield started
            for process in started: process.kill(); process.wait()
        def test_it(cleaner):
            cleaner.append(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)  # forgotten"]))
    """
    code, output = run_pytest(tmp_path, body)
    assert code == 1
    assert "left behind by this test" in output
    assert "# forgotten" in output


def test_a_fork_server_may_stay_but_its_worker_may_not(tmp_path):
    body = """
        import multiprocess, time
        context = multiprocess.get_context("forkserver")
        kept = []
        def test_ended():
            process = context.Process(target=time.sleep, args=(0,)); process.start(); process.join()
        def test_kept():
            process = context.Process(target=time.sleep, args=(60,)); process.start(); kept.append(process)
        def test_end_of_it():
            kept[0].kill(); kept[0].join()
    """
    code, output = run_pytest(tmp_path, body)
    assert code == 1
    assert "1 error" in output
    assert "ERROR test_it.py::test_kept" in output


def test_what_a_wider_fixture_holds_is_not_counted(tmp_path):
    body = """
        import subprocess, sys, pytest
        @pytest.fixture(scope="module")
        def server():
            process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
            yield process
            process.kill(); process.wait()
        def test_one(server): assert server.poll() is None
        def test_two(server): assert server.poll() is None
    """
    code, output = run_pytest(tmp_path, body)
    assert code == 0, output


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="this system has no /dev/shm")
def test_a_name_in_dev_shm_is_named(tmp_path):
    name = f"parallel-lab-test-{os.getpid()}"
    body = f"""
        def test_it():
            open("/dev/shm/{name}", "wb").close()
    """
    try:
        code, output = run_pytest(tmp_path, body, named=f"/dev/shm/{name}")
    finally:
        Path("/dev/shm", name).unlink(missing_ok=True)
    assert code == 1
    assert f"/dev/shm/{name}" in output


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="this system has no /dev/shm")
@pytest.mark.parametrize("of", ["mpich_shm_", "sm_segment.here.0."])
def test_a_segment_of_another_mpi_program_blames_no_test(tmp_path, of):
    """Between two looks such a program made it, and was over: nobody has it open, and the test was blamed."""
    name = f"{of}{os.getpid()}"
    body = f"""
        def test_it():
            open("/dev/shm/{name}", "wb").close()
    """
    try:
        assert run_pytest(tmp_path, body)[0] == 0
    finally:
        Path("/dev/shm", name).unlink(missing_ok=True)


def test_an_open_widget_is_named_and_a_closed_one_is_not(tmp_path):
    body = """
        import ipywidgets
        def test_closed():
            ipywidgets.IntSlider().close()
        def test_open():
            ipywidgets.IntSlider()
    """
    code, output = run_pytest(tmp_path, body)
    assert code == 1
    assert "open widget IntSlider" in output
    assert "ERROR test_it.py::test_open" in output
    assert "ERROR test_it.py::test_closed" not in output


SKIPS = """
    import pytest
    def test_it(): pytest.skip("mpirun is missing")
"""


def test_a_skip_is_a_skip_at_home(tmp_path):
    assert run_pytest(tmp_path, SKIPS)[0] == 0


@each_of(
    "body",
    SKIPS,
    "import pytest\nno = pytest.importorskip('no_such_package_at_all')\n",
    "import pytest\n@pytest.mark.skip(reason='later')\ndef test_it(): pass\n",
    ids=["in the test", "whole file", "mark"],
)
def test_a_skip_fails_on_the_build_machine(tmp_path, body):
    code, output = run_pytest(tmp_path, body, PARALLEL_LAB_CI="1")
    assert code != 0
    assert "PARALLEL_LAB_CI=1 allows no skip" in output


def test_an_expected_failure_is_not_a_skip(tmp_path):
    body = """
        import pytest
        @pytest.mark.xfail
        def test_it(): assert 1 == 2
    """
    assert run_pytest(tmp_path, body, PARALLEL_LAB_CI="1")[0] == 0


def test_rng_prints_a_seed_that_draws_the_same_again(tmp_path):
    body = """
        def test_it(rng):
            assert rng.integers(10**9) == -1
    """
    draws = []
    for environment in ({}, {}, {"PARALLEL_LAB_TEST_SEED": "7"}):
        _, output = run_pytest(tmp_path, body, **environment)
        draws.append(next(line for line in output.splitlines() if line.startswith("E ") and "== -1" in line))
        assert "rng seed" in output
    assert draws[0] == draws[1] != draws[2]
