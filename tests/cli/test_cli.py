"""The command as a learner types it."""

import json
import os
import pty
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
import tomllib
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from parallel_lab.base.errors import MissingPackage, StrategyError
from parallel_lab.cli import main as cli
from tests.crossed import each_of

ROOT = Path(__file__).resolve().parents[2]
SUBCOMMANDS = ([], ["doctor"])


@pytest.fixture
def lessons(tmp_path, monkeypatch):
    """A package of two notebooks, started from an empty folder without JupyterLab: what would start is recorded."""
    source = tmp_path / "shipped"
    source.mkdir()
    for name in ("02_layouts.ipynb", "01_ranks.ipynb"):
        (source / name).write_text('{"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}')
    place = tmp_path / "place"
    place.mkdir()
    monkeypatch.chdir(place)
    monkeypatch.setattr(cli, "shipped_folder", lambda name: source)
    monkeypatch.setattr(cli, "checkout_folder", lambda: None)
    started = []

    class Server:
        def __init__(self, command, env):
            started.append(command)
            assert env["JUPYTER_CONFIG_PATH"].endswith("shared")

        def wait(self):
            return 0

    monkeypatch.setattr(cli.subprocess, "Popen", Server)
    return source, place, started


def option(command, name):
    """The value of --name=value in a command line; the last one counts."""
    return [word.partition("=")[2] for word in command if word.startswith(f"--{name}=")][-1]


def test_without_a_subcommand_jupyterlab_opens_copies_in_a_working_folder(lessons, capsys):
    _, place, started = lessons
    assert cli.main([]) == 0
    work = place / "parallel_lab_notebooks"
    assert (work / "01_ranks.ipynb").is_file()
    assert started[0][:3] == [sys.executable, "-m", "jupyterlab"]
    assert option(started[0], "ServerApp.root_dir") == str(work)
    assert option(started[0], "LabApp.default_url") == "/lab/tree/01_ranks.ipynb"
    assert "--no-browser" not in started[0]
    assert str(work) in capsys.readouterr().out


def test_in_a_checkout_its_own_notebooks_open(lessons, monkeypatch, capsys):
    source, place, started = lessons
    monkeypatch.setattr(cli, "checkout_folder", lambda: source.parent)
    assert cli.main(["--no-browser"]) == 0
    assert option(started[0], "ServerApp.root_dir") == str(source)
    assert list(place.iterdir()) == []
    assert str(source) in capsys.readouterr().out


def test_options_reach_jupyterlab(lessons, tmp_path):
    _, _, started = lessons
    folder = tmp_path / "my lessons"
    assert cli.main(["--no-browser", "--port", "8899", "--folder", str(folder), "--", "--ip=0.0.0.0", "--debug"]) == 0
    assert (folder / "02_layouts.ipynb").is_file()
    assert "--no-browser" in started[0]
    assert option(started[0], "port") == "8899"
    assert started[0][-2:] == ["--ip=0.0.0.0", "--debug"]


def test_an_edited_notebook_is_kept_and_said_aloud(lessons, capsys):
    source, place, _ = lessons
    cli.main([])
    edited = place / "parallel_lab_notebooks" / "01_ranks.ipynb"
    edited.write_text("my answers")
    (source / "01_ranks.ipynb").write_text("second edition")
    capsys.readouterr()
    assert cli.main([]) == 0
    assert edited.read_text() == "my answers"
    assert "kept     01_ranks.ipynb" in capsys.readouterr().out


@pytest.mark.parametrize(("given", "expected"), [(0, 0), (1, 1), (-15, 143)])
def test_the_exit_code_is_that_of_jupyterlab(lessons, monkeypatch, given, expected):
    monkeypatch.setattr(cli.subprocess.Popen, "wait", lambda self: given)
    assert cli.main([]) == expected


def test_an_error_of_ours_is_one_line_and_exit_code_2(lessons, monkeypatch, capsys):
    def refuse(*_, **__):
        raise StrategyError("strategy ((3, 1),) has a 3.")

    monkeypatch.setattr(cli, "jupyterlab_command", refuse)
    assert cli.main([]) == 2
    assert capsys.readouterr().err == "parallel-lab: StrategyError: strategy ((3, 1),) has a 3.\n"


def test_a_folder_that_is_a_file_is_one_line_and_exit_code_2(lessons, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert cli.main(["--folder", str(tmp_path / "file")]) == 2
    found = capsys.readouterr().err
    assert "--folder" in found
    assert found.count("\n") == 1


def test_a_course_in_a_file_and_marks_in_no_folder_are_one_line_and_nothing_is_graded(tmp_path, capsys):
    """Guards against tracebacks, the second after all the grading."""
    (tmp_path / "file").write_text("")
    (tmp_path / "submitted" / "ada").mkdir(parents=True)
    (tmp_path / "submitted" / "ada" / "x.ipynb").write_text("{}")
    marks = ["grade", str(tmp_path / "submitted"), "--out", str(tmp_path / "none" / "marks.csv")]
    for command in (["course", str(tmp_path / "file")], marks):
        assert cli.main(command) == 2
        said = capsys.readouterr()
        assert said.err.startswith("parallel-lab: ") and said.err.count("\n") == 1 and said.out == ""


def test_a_missing_jupyterlab_is_named_with_what_mends_it(tmp_path, monkeypatch):
    monkeypatch.setattr(cli.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingPackage, match="pip install jupyterlab"):
        cli.jupyterlab_command(tmp_path)


@each_of("arguments", "--port 0", "--port 65536", "--port eighty", "--unknown", "nonsense", "doctor -- --debug")
def test_wrong_arguments_end_with_exit_code_2(arguments, capsys):
    with pytest.raises(SystemExit) as caught:
        cli.main(arguments.split())
    assert caught.value.code == 2
    assert "usage:" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", SUBCOMMANDS, ids=["main", "doctor"])
def test_help_shows_examples(arguments, capsys):
    with pytest.raises(SystemExit) as caught:
        cli.main([*arguments, "--help"])
    assert caught.value.code == 0
    assert "examples:\n  parallel-lab" in capsys.readouterr().out


def test_version_is_that_of_the_project_file(capsys):
    with pytest.raises(SystemExit) as caught:
        cli.main(["--version"])
    assert caught.value.code == 0
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert capsys.readouterr().out == f"parallel-lab {version}\n"


def test_python_m_parallel_lab_is_the_command():
    found = run_python(os.environ, "-m", "parallel_lab", "--version")
    assert (found.returncode, found.stderr) == (0, "")
    assert found.stdout.startswith("parallel-lab ")


SUBCOMMANDS = ["doctor", "quickstart", "plan", "bench", "run", "msrun", "as-mindspore", "site", "grade"]
SUBCOMMANDS += ["course", "wall"]


@pytest.mark.parametrize("word", ["foo", "--folder=x foo"])
def test_an_unknown_subcommand_is_named_with_those_there_are(capsys, word):
    with pytest.raises(SystemExit):
        cli.main(word.split())
    names = ", ".join(f"'?{name}'?" for name in SUBCOMMANDS)
    assert re.search(rf"argument SUBCOMMAND: invalid choice: 'foo' \(choose from {names}\)", capsys.readouterr().err)


def test_help_has_no_line_that_says_nothing(capsys):
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    lines = capsys.readouterr().out.splitlines()
    title = lines.index("subcommands:")
    listed = lines[title + 1 : lines.index("", title)]
    assert all(line.strip() for line in listed)
    assert [line.split()[0] for line in listed if re.match(r"    \w", line)] == SUBCOMMANDS
    # in brackets: it may be left out
    assert lines[0].startswith("usage: parallel-lab ") and lines[0].endswith("[SUBCOMMAND ...]")


@pytest.mark.parametrize("subcommand", ["doctor", "quickstart", "plan", "bench"])
def test_the_usage_of_a_subcommand_names_it(capsys, subcommand):
    with pytest.raises(SystemExit):
        cli.main([subcommand, "--help"])
    assert capsys.readouterr().out.startswith(f"usage: parallel-lab {subcommand} [-h]")


@pytest.mark.parametrize(
    ("statuses", "said"),
    [((), "0 problems, 0 warnings."), (("warning",), "0 problems, 1 warning."), (("problem",) * 2, "2 problems,")],
)
def test_the_doctor_counts_in_good_grammar(monkeypatch, capsys, statuses, said):
    from parallel_lab.cli import doctor

    findings = [doctor.Finding("x", status, "found", "mend") for status in statuses]
    monkeypatch.setattr(doctor, "examine", lambda: findings)
    cli.main(["doctor"])
    assert said in capsys.readouterr().out


# ---- Ctrl-C ----

INTERRUPTED = "parallel-lab: interrupted\n"


def run_python(environment, *words):
    options = {"cwd": ROOT, "capture_output": True, "text": True, "timeout": 60}
    return subprocess.run([sys.executable, *words], env=environment, **options)


@pytest.fixture
def entry_point(tmp_path):
    """What pip makes of [project.scripts]."""
    script = tmp_path / "bin" / "parallel-lab"
    script.parent.mkdir()
    script.write_text(
        "import sys\nfrom parallel_lab.cli.main import main\nif __name__ == '__main__':\n    sys.exit(main())\n"
    )
    return str(script)


def interrupt_at_import(folder, module, before=""):
    """An environment where Ctrl-C comes once, when `module` is about to be imported; `before` runs just before it."""
    (folder / "sitecustomize.py").write_text(
        "import os, signal, sys\n"
        "class Finder:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name == {module!r}:\n"
        "            sys.meta_path.remove(self)\n"
        f"            {before or 'pass'}\n"
        "            os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Finder())\n"
    )
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)])}


@pytest.mark.quick(1)
@pytest.mark.parametrize("start", ["module", "script"])
def test_ctrl_c_while_a_command_works_is_one_line(tmp_path, entry_point, start):
    """Work that has begun must be asked to end, not be cut off: what `finally` closes is closed."""
    before = "print(signal.getsignal(signal.SIGINT) is signal.default_int_handler, flush=True)"
    environment = interrupt_at_import(tmp_path, "parallel_lab.cli.doctor", before)
    found = run_python(environment, *(["-m", "parallel_lab"] if start == "module" else [entry_point]), "doctor")
    assert (found.returncode, found.stdout, found.stderr) == (130, "True\n", INTERRUPTED)


@pytest.mark.exhaustive
@pytest.mark.skipif(os.name != "posix", reason="a shell's >&-")
def test_a_closed_output_is_the_null_device(tmp_path):
    """It ended in "'NoneType' object has no attribute 'isatty'", or wrote into the first file that was opened."""
    (tmp_path / "train.py").write_text("print('said')\n", encoding="utf-8")
    line = f"{shlex.quote(sys.executable)} -m parallel_lab run -n 1 --log-dir logs train.py >&- 2>&-"
    assert subprocess.run(["/bin/sh", "-c", line], cwd=tmp_path, check=False, timeout=60).returncode == 0
    (log,) = (tmp_path / "logs").rglob("stdout")
    assert log.read_text(encoding="utf-8") == "said\n"


@pytest.mark.exhaustive
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="a device that is always full")
@pytest.mark.parametrize("command", ["run -n 1 train.py", "doctor train.py"])
def test_an_output_that_is_full_is_said_in_one_line(tmp_path, command):
    """It ended in a traceback of the console."""
    (tmp_path / "train.py").write_text("print('said')\n", encoding="utf-8")
    line = f"{shlex.quote(sys.executable)} -m parallel_lab {command} > /dev/full"
    run = ["/bin/sh", "-c", line]
    found = subprocess.run(run, cwd=tmp_path, check=False, timeout=60, capture_output=True, text=True)
    said = "parallel-lab: the output cannot be written: No space left on device\n"
    assert (found.returncode, found.stderr) == (2, said)


@pytest.mark.exhaustive
def test_a_reader_that_goes_away_ends_the_doctor_quietly():
    """`parallel-lab doctor | head -1`: an unguarded BrokenPipeError would print a traceback."""
    command = [sys.executable, "-m", "parallel_lab", "doctor"]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, cwd=ROOT, text=True, **streams) as process:
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait(timeout=120) == 141


def ask(address):
    """The JSON at an address; the server prints it a moment before it listens."""
    end = time.monotonic() + 30
    while True:
        try:
            with urllib.request.urlopen(address, timeout=30) as reply:
                return json.load(reply)
        except urllib.error.HTTPError as error:
            error.close()
            raise
        except urllib.error.URLError:
            if time.monotonic() > end:
                raise
            time.sleep(0.05)


@pytest.mark.exhaustive
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["terminate", "ctrl-c"])
def test_the_real_server_answers_and_ends_when_asked(tmp_path, number):
    """Starts JupyterLab, asks it for the notebook, ends it; the check after each test sees that no process stays."""
    notebooks = tmp_path / "notebooks"
    notebooks.mkdir()
    (notebooks / "01_ranks.ipynb").write_text('{"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}')
    code = (
        "import sys; from pathlib import Path; from parallel_lab.cli import main as cli; "
        f"cli.checkout_folder = lambda: None; cli.shipped_folder = lambda name: Path({str(notebooks)!r}); "
        "sys.exit(cli.main(sys.argv[1:]))"
    )
    folders = "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR"
    home = {name: str(tmp_path / name) for name in folders}
    arguments = ["--no-browser", "--folder", str(tmp_path / "work"), "--", "--IdentityProvider.token=lesson"]
    keyboard, terminal = pty.openpty()  # on a terminal the server asks back after Ctrl-C
    command, env = [sys.executable, "-c", code, *arguments], {**os.environ, **home}
    pipes = {"stdin": terminal, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    process = subprocess.Popen(command, cwd=ROOT, env=env, **pipes, text=True, start_new_session=True)
    timer = threading.Timer(60, lambda: os.killpg(process.pid, signal.SIGKILL))
    timer.start()
    seen = []
    try:
        for line in process.stdout:
            seen.append(line)
            if hit := re.search(r"(http://(?:localhost|127\.0\.0\.1):\d+)/lab", line):
                address = hit.group(1)
                break
        else:
            pytest.fail("no address was printed:\n" + "".join(seen))
        assert ask(f"{address}/api/contents/01_ranks.ipynb?token=lesson")["name"] == "01_ranks.ipynb"
        if number == signal.SIGINT:
            os.killpg(process.pid, number)  # a terminal sends it to the whole group
            os.write(keyboard, b"y\n")
        else:
            process.send_signal(number)
        seen += list(process.stdout)
        assert process.wait() in (0, 143), "".join(seen)
        assert not any("Traceback" in line for line in seen), "".join(seen)
    finally:
        timer.cancel()
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        process.stdout.close()
        os.close(keyboard)
        os.close(terminal)
    assert (tmp_path / "work" / "01_ranks.ipynb").is_file()
