"""What a notebook shows of an error of ours: the learner's lines and the text, not the calls inside the package."""

from __future__ import annotations

import re
import signal
import threading
from types import SimpleNamespace

import IPython
import pytest
from IPython.core.ultratb import AutoFormattedTB

from parallel_lab.base.errors import TRACEBACK_VARIABLE, StrategyError
from parallel_lab.lab.lessons.slicing import Product
from parallel_lab.processes.shm.pool import WorkerPool

REFUSED = ((2, 4), (2, 1))


@pytest.fixture
def rendered(monkeypatch):
    """rendered(error) -> the lines that IPython would show of it, without colours."""
    shell = SimpleNamespace(InteractiveTB=AutoFormattedTB(mode="Context", tb_offset=0))
    monkeypatch.setattr(IPython, "get_ipython", lambda: shell)
    return lambda error: re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(error._render_traceback_())).splitlines()


@pytest.fixture
def shown(rendered):
    """shown() -> the same of a refused product."""

    def lines() -> list[str]:
        with pytest.raises(StrategyError) as refused:
            Product(REFUSED)
        return rendered(refused.value)

    return lines


@pytest.mark.exhaustive
def test_an_interrupted_run_is_the_learners_line_and_the_text(rendered, monkeypatch):
    """Guards against the waiting loops of a pool, which are what was interrupted."""
    monkeypatch.delenv(TRACEBACK_VARIABLE, raising=False)
    with WorkerPool(2) as pool:
        pool.run(lambda comm: None)
        threading.Timer(0.3, signal.raise_signal, [signal.SIGINT]).start()
        with pytest.raises(KeyboardInterrupt) as stopped:
            pool.run(lambda comm: [comm.barrier() for _ in range(10**9)])
    found = rendered(stopped.value)
    files = [line for line in found if line.startswith("File ")]
    assert len(files) == 1 and "test_errors_in_notebooks.py" in files[0]
    assert found[-1] == "Interrupted: the run was interrupted"


def test_it_is_the_learners_line_and_the_text(shown, monkeypatch):
    """Guards against three screens of our own lines, and functools.py as the place of the operator."""
    monkeypatch.delenv(TRACEBACK_VARIABLE, raising=False)
    found = shown()
    files = [line for line in found if line.startswith("File ")]
    assert len(files) == 1 and "test_errors_in_notebooks.py" in files[0]
    assert re.fullmatch(rf"\(\d+ lines inside parallel_lab left out; {TRACEBACK_VARIABLE}=full shows all\)", found[-2])
    assert re.match(r"StrategyError: MatMul 'matmul' \(test_errors_in_notebooks\.py:\d+\): strategy", found[-1])


def test_all_lines_are_shown_on_request(shown, monkeypatch):
    monkeypatch.setenv(TRACEBACK_VARIABLE, "full")
    assert sum(line.startswith("File ") for line in shown()) > 5
