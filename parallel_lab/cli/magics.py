"""`%%ranks`: a notebook cell as a script on real ranks.

    %load_ext parallel_lab

    %%ranks -n 4
    from parallel_lab.train.communication import init, get_rank
    init()
    print("hello from", get_rank())

The cell runs in processes of its own: it sees nothing of the notebook's variables and leaves none behind. Its output
comes as it is printed, each line with its rank; tracebacks show the cell's own line numbers. The interrupt button ends
all ranks within a second. `%%ranks --help`, above a line that says anything, lists the options.
"""

from __future__ import annotations

import argparse
import io
import shlex
import sys
from typing import Any

from ..base.errors import ArgumentError, RankRaised
from ..base.system import require_processes
from ..processes.faults import FAULT_ERRORS
from ..processes.launch import Console
from .options import add_options
from .run_command import launch_options, launched

TIMEOUT_S = 30.0  # a learner waits in front of the cell


class _Parser(argparse.ArgumentParser):
    """Raises instead of ending the process, which here is the notebook's kernel."""

    def error(self, message: str) -> Any:
        raise _quiet(ArgumentError(message, where="%%ranks", hint="%%ranks --help lists the options"))

    def exit(self, status: int = 0, message: str | None = None) -> Any:
        raise _Help


class _Help(Exception):
    """The help was asked for and printed."""


def run_cell(line: str, cell: str, name: str = "cell") -> None:
    """Run `cell` with the options of `line`; `name` stands for it in tracebacks.

    Raises KeyboardInterrupt, the first failed rank's error (RankRaised, RankDied, CollectiveMismatch), ArgumentError.
    """
    require_processes("%%ranks")
    parser = _Parser(prog="%%ranks", description="Run the cell as a script on N ranks, one process each.")
    add_options(parser, launch_options(TIMEOUT_S, required=True))
    try:
        words = shlex.split(line)
    except ValueError as error:  # a quotation mark without its other half
        parser.error(f"{line.strip()}: {error}")
    try:
        args = parser.parse_args(words)
    except _Help:
        return
    console = _CellConsole(args.world_size, stream=_Batched(), tag=not args.no_tag, fold=args.fold)
    # the line of the magic is the cell's first
    outcome = launched(args, console, launcher="%%ranks", cell=(name, f"\n{cell}"))
    if outcome.kind == "Interrupted":
        raise _quiet(KeyboardInterrupt(outcome.reason))
    if outcome.exit_code:
        error = FAULT_ERRORS.get(outcome.kind, RankRaised)("\n".join(outcome.lines))
        error.rank, error.exit_code = outcome.failed_rank, outcome.exit_code
        raise _quiet(error)


class _CellConsole(Console):
    """What the launcher says at the end becomes the error of the cell; only its warnings are lines of the output."""

    def note(self, text: str) -> None:
        self.flush(everything=True)
        if text.startswith("warning: "):
            super().note(text)


class _Batched(io.TextIOBase):
    """The notebook's standard output, written to once per look: a message per line would be slow."""

    def __init__(self) -> None:
        self._texts: list[str] = []

    def write(self, text: str) -> int:
        self._texts.append(text)
        return len(text)

    def flush(self) -> None:
        texts, self._texts = self._texts, []
        if texts:
            sys.stdout.write("".join(texts))
            sys.stdout.flush()


def _quiet(error: BaseException) -> BaseException:
    """Show the error alone: its traceback would be the launcher's, and the rank has printed its own above."""
    error._render_traceback_ = lambda: [f"{type(error).__name__}: {error}"]  # IPython asks for this
    return error


def ranks(line: str, cell: str) -> None:
    """%%ranks -n N [options]: run this cell as a script on N ranks. %%ranks --help lists the options."""
    from IPython import get_ipython

    shell = get_ipython()
    # the cell's number; execution_count is already the next one's in some versions of IPython
    run_cell(line, cell, f"In[{len(shell.user_ns['_ih']) - 1}]" if shell is not None else "cell")


def load(ipython: Any) -> None:
    """What `%load_ext parallel_lab` does."""
    ipython.register_magic_function(ranks, magic_kind="cell", magic_name="ranks")
