"""What a launcher's ranks say when a script is wrong: the script's own lines, the reason, and what to do."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from parallel_lab.base.errors import TRACEBACK_VARIABLE, ArgumentError
from parallel_lab.cli import magics
from parallel_lab.cli.main import main
from parallel_lab.processes.faults import traceback_text
from parallel_lab.processes.launch.environment import hidden_packages
from parallel_lab.processes.learners_files import same_names
from tests.crossed import each_of
from tests.processes.launched import LAB, LIMIT_S


def run(folder, source: str, *options: str, ranks: int = 1, **environment: str) -> str:
    """What `parallel-lab run <options>` of a script prints; the run has to fail."""
    (folder / "train.py").write_text(source, encoding="utf-8")
    own = {k: v for k, v in os.environ.items() if k != TRACEBACK_VARIABLE}
    command = [*LAB, "run", "-n", str(ranks), *options, "train.py"]
    done = subprocess.run(
        command, cwd=folder, env={**own, **environment}, capture_output=True, text=True, timeout=LIMIT_S
    )
    assert done.returncode == 1, done.stdout + done.stderr
    return done.stdout + done.stderr


def last_lines(output: str) -> str:
    return "\n".join(line for line in output.splitlines() if line.startswith("parallel-lab: "))


REFUSED = "from parallel_lab import nn\n\ndef make():\n    return nn.Dense(4, 0)\n\nmake()\n"


@pytest.mark.exhaustive
def test_a_refusal_shows_the_script_s_lines_and_not_the_package_s(tmp_path):
    output = run(tmp_path, REFUSED, ranks=2)
    own = [line for line in output.splitlines() if line.startswith("[0,1]")]  # both ranks raise the same
    assert '[0,1]   File "train.py", line 6, in <module>' in own and '[0,1]   File "train.py", line 4, in make' in own
    assert not re.search(r"File .*parallel_lab", "\n".join(own))
    assert re.search(
        rf"^\[0,1\] \(\d+ lines? inside parallel_lab left out; {TRACEBACK_VARIABLE}=full shows all\)$",
        output,
        re.MULTILINE,
    )


def caught(call) -> BaseException:
    try:
        call()
    except Exception as error:
        return error
    raise AssertionError("nothing was raised")


def test_the_package_s_lines_are_there_on_request(monkeypatch):
    from parallel_lab import nn

    error = caught(lambda: nn.Dense(4, 0))
    assert "left out" in traceback_text(error, error.__traceback__)
    monkeypatch.setenv(TRACEBACK_VARIABLE, "full")
    text = traceback_text(error, error.__traceback__)
    assert re.search(r"File .*parallel_lab.base.checks\.py", text) and "left out" not in text


def test_an_error_of_another_kind_inside_the_package_keeps_all_its_lines():
    from parallel_lab.processes.launch.console import mpirun_logs

    error = caught(lambda: mpirun_logs(None, 2))
    text = traceback_text(error, error.__traceback__)
    assert isinstance(error, TypeError) and "console.py" in text and "left out" not in text


def test_an_error_in_the_user_s_own_code_leaves_out_what_called_it():
    from parallel_lab import nn

    class Net(nn.Cell):
        def construct(self, x):
            return x / 0

    error = caught(lambda: Net()(1))
    text = traceback_text(error, error.__traceback__)
    assert "in construct" in text and "x / 0" in text and "left out" in text and "cell.py" not in text


def test_a_cause_keeps_its_own_lines_where_it_lacks_the_user_s():
    def read():
        try:
            int("x")
        except ValueError as cause:
            raise ArgumentError("no number") from cause

    error = caught(read)
    text = traceback_text(error, error.__traceback__)
    assert 'int("x")' in text and "direct cause" in text and text.rstrip().endswith("ArgumentError: no number")


@pytest.mark.exhaustive
def test_importing_mindspore_without_the_option_names_the_option(tmp_path):
    output = run(tmp_path, "import mindspore.nn as nn\n")
    assert output.count("With --as-mindspore, before the script, `import mindspore` finds parallel_lab instead") == 2
    assert "--as-mindspore" in last_lines(output)


@pytest.mark.exhaustive
def test_a_rank_that_asks_for_input_hears_that_it_has_no_keyboard(tmp_path):
    assert "A rank has no keyboard" in last_lines(run(tmp_path, "input('learning rate? ')\n"))


@pytest.mark.quick(0)
@pytest.mark.parametrize("option", [(), ("--as-mindspore",)])
def test_a_missing_module_of_another_name_says_nothing_of_mindspore(tmp_path, option):
    assert "With --as-mindspore" not in run(tmp_path, "import mindspores\n", *option)


@pytest.mark.exhaustive
def test_asking_for_the_rank_before_init_says_call_init_and_not_how_to_start_ranks(tmp_path):
    output = run(tmp_path, "from parallel_lab.train.communication import get_rank\nget_rank()\n")
    assert "Call init() first" in output and "mpirun" not in output
    alone = subprocess.run(
        [sys.executable, str(tmp_path / "train.py")],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        env={**os.environ, "PYTHONPATH": os.getcwd()},
    )
    assert (
        "Call init() first" in alone.stderr and "mpirun" in alone.stderr
    )  # started alone: the ways to start ranks are what is missing


@each_of(("arguments", "late"), (["train.py"], False), (["train.py", "-n", "2"], True), (["train.py", "--np=2"], True))
def test_the_number_of_ranks_is_asked_for_and_options_stand_before_the_script(
    tmp_path, monkeypatch, capsys, arguments, late
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("", encoding="utf-8")
    assert main(["run", *arguments]) == 2
    said = capsys.readouterr().err
    assert "number of ranks is missing" in said and ("Options stand before the script" in said) is late


# ---- cells ----


@pytest.mark.parametrize("line", ['-n 2 "', "-n 0", "-n two", "", "-n 2 --nonsense"])
def test_a_wrong_line_of_a_cell_shows_its_reason_without_a_traceback(line):
    with pytest.raises(ArgumentError, match=r"^%%ranks: ") as caught:
        magics.run_cell(line, "raise SystemExit(9)")
    (shown,) = caught.value._render_traceback_()
    assert shown.startswith("ArgumentError: %%ranks: ")


def test_a_cell_that_wants_the_notebook_s_variables_hears_that_they_are_missing(capfd):
    with pytest.raises(Exception, match=r"name 'net' is not defined\. The cell runs in processes of its own") as caught:
        magics.run_cell("-n 1", "print(net)", "In[7]")
    assert "In[7]:2" in str(caught.value)
    assert "none of the notebook's variables" in capfd.readouterr().out


@pytest.mark.exhaustive
def test_in_a_cell_the_reason_stands_once_and_stopped_ranks_say_where_they_were(capfd):
    cell = (
        "import numpy as np\nfrom parallel_lab import Tensor, ops\nfrom parallel_lab.train.communication import "
        "get_rank, init\ninit()\n"
    )
    cell += "ops.AllReduce()(Tensor(np.ones([3 if get_rank() == 1 else 4, 8])))"
    with pytest.raises(Exception, match="they differ in shape") as caught:
        magics.run_cell("-n 4", cell, "In[7]")
    assert "rank 1 called all_reduce #1 float32 (3, 8)" in str(caught.value) or "float64 (3, 8)" in str(caught.value)
    printed = capfd.readouterr().out
    assert printed.count("they differ in shape") == 1  # of the rank that saw it first
    # on a busy machine a rank may be ended before it says it
    told = re.findall(r"^\[\d\] (CollectiveMismatch.*)$", printed, re.MULTILINE)
    assert told and all(
        re.match(r"CollectiveMismatch, see below: stopped (in all_reduce #1|after broadcast #0) ", line)
        for line in told
    ), printed


@each_of(
    ("files", "said", "hidden"),
    (("numpy.py",), "rank 1 (pid 7) ended with exit code 1", ["numpy"]),
    (
        ("random.py", "mindspore/__init__.py", "mine.py"),
        "rank 1 (pid 7) ended with exit code 1",
        ["mindspore", "random"],
    ),
    (("mindspore.py",), "rank 0 raised ModuleNotFoundError: No module named 'mindspore.nn'", ["mindspore"]),
    (("queue.py",), "rank 0 raised AttributeError: module 'queue' has no attribute 'Queue'", ["queue"]),
    (("test/__init__.py", "code.py"), "rank 0 raised ValueError: a test of the code", []),
    (("numpy.txt", "numpy/data.csv"), "rank 1 (pid 7) ended with exit code 1", []),
)
def test_files_that_hide_a_package_are_named(tmp_path, files, said, hidden):
    """The last line was "module 'numpy' has no attribute 'dtype'", inside this package."""
    for name in files:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    lines = hidden_packages((str(tmp_path / "train.py"), "3"), said)
    assert [line.split("'")[1] for line in lines] == hidden and all("rename it" in line for line in lines)
    said_of_all = same_names(tmp_path, said, first=False)  # ranks of a cell look there last
    assert len(said_of_all) == (len(hidden) if " raised " in said else 0)
