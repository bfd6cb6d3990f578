"""The same launch through mpirun: ranks talk over MPI, their output comes through one named pipe each, in a temporary
folder, since mpirun mixes and splits lines. A keeper (processes/mpi/keeper.py) ends mpirun with this process; ranks
(processes/mpi/ending.py) and mpirun tell which rank failed, and why.
"""

from __future__ import annotations

import contextlib
import os
import re
import selectors
import signal
import subprocess

from ..mpi.launch import KeptMpirun
from ..supervisor import LOOK_S
from ..world.world import TIMEOUT_VARIABLE
from .console import Console
from .environment import hidden_packages, python_command, rank_environment
from .processes import CHUNK, LaunchSpec, Outcome, Terminated, interrupted

KEPT_LINES, SHOWN_LINES = 200, 12  # of mpirun's own words; shown where they are all that is known
# what the ranks say (processes/mpi/ending.py), and what Open MPI says of one that was killed
_RAISED = re.compile(r"rank (?P<rank>\d+)(, thread '.*',)? (raised \w+|ended with exit code \d+)")
_KILLED = re.compile(r"process rank (?P<rank>\d+) with PID \d+ on node \S+ exited on signal \d+( \(\w+\))?")


def launch_over_mpi(spec: LaunchSpec, console: Console) -> Outcome:
    """As `processes.launch`, through mpirun on this machine. Raises MissingPackage without mpirun or mpi4py."""
    with KeptMpirun("parallel_lab-run-") as mpirun, contextlib.ExitStack() as stack:
        own = {"PARALLEL_LAB_OUTPUT": str(mpirun.folder), TIMEOUT_VARIABLE: str(spec.timeout_s)}
        argv = spec.argv
        if spec.cell is not None:
            name, text = spec.cell
            (mpirun.folder / "cell.py").write_text(text, encoding="utf-8")
            argv = ("--cell", name, str(mpirun.folder / "cell.py"))
        output = _Output(console)
        stack.callback(output.close)
        for rank in range(spec.world_size):
            output.add_pipe(rank, str(mpirun.folder / f"rank.{rank}"))
        extra = {**spec.environment, **own}
        environment = rank_environment(facades=spec.facades, events=spec.events, extra=extra)
        environment.pop("PARALLEL_LAB_WORLD", None)
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        # in a session of its own: Ctrl-C is ours to pass on
        keeper = mpirun.start(spec.world_size, python_command(argv), environment, **streams)
        stack.enter_context(keeper.stdout)
        output.selector.register(keeper.stdout, selectors.EVENT_READ, None)
        ended_by = 0
        try:
            while output.pass_on():
                console.flush()
        except KeyboardInterrupt:
            ended_by = signal.SIGINT
        except Terminated as ended:
            ended_by = ended.number
        mpirun.end()
        output.drain()
    return output.outcome(keeper.returncode, ended_by, argv)


class _Output:
    """The ranks' output, one named pipe each, and mpirun's `words`; `cause`: first line of a rank ending the run."""

    def __init__(self, console: Console) -> None:
        self.console, self.selector = console, selectors.DefaultSelector()
        self.pipes: list[int] = []
        self.words: list[str] = []
        self.cause: re.Match | None = None

    def add_pipe(self, rank: int, path: str) -> None:
        os.mkfifo(path, 0o600)
        # also for writing: no end of file before the rank has opened it
        self.pipes.append(os.open(path, os.O_RDWR | os.O_NONBLOCK))
        self.selector.register(self.pipes[-1], selectors.EVENT_READ, rank)

    def pass_on(self) -> bool:
        """Show what has come; False once mpirun has ended."""
        for key, _ in self.selector.select(LOOK_S):
            if key.data is not None:
                with contextlib.suppress(BlockingIOError):
                    self._feed(key.data, os.read(key.fd, CHUNK))
            elif data := os.read(key.fd, CHUNK):
                self.words += data.decode(errors="replace").splitlines()
                del self.words[:-KEPT_LINES]
            else:
                return False
        return True

    def _feed(self, rank: int, data: bytes) -> None:
        self.console.feed(rank, data)
        found = _RAISED.search(data.decode(errors="replace"))
        if self.cause is None and found and int(found["rank"]) == rank:
            self.cause = found

    def drain(self) -> None:
        """Show the rest."""
        for rank, pipe in enumerate(self.pipes):
            with contextlib.suppress(BlockingIOError):
                while data := os.read(pipe, CHUNK):
                    self._feed(rank, data)
            self.console.end_of(rank)

    def close(self) -> None:
        """Give the descriptors back."""
        self.selector.close()
        for pipe in self.pipes:
            os.close(pipe)

    def outcome(self, code: int, ended_by: int, argv: tuple[str, ...]) -> Outcome:
        """How it ended, told on the console.  code: mpirun's;  ended_by: the signal that ended the launcher, or 0;
        argv: what the ranks ran
        """
        if ended_by:
            return interrupted(ended_by).told(self.console)
        if code == 0:
            return Outcome(0)
        killed = _KILLED.search(" ".join(self.words))
        cause = self.cause or killed
        logs = self.console.logs
        if cause:
            rank, lines = int(cause["rank"]), [cause[0]]
            place = logs and f"log of rank {rank}: {logs[rank]}"
        else:
            rank, said = None, [line for line in self.words if line.strip(" -=")]
            lines = [f"mpirun: {line}" for line in said[:SHOWN_LINES]]
            place = logs and f"logs of the ranks: {logs[0].parent.parent}"
        lines += [f"mpirun ended with exit code {code}", *([place] if place else [])]
        lines += hidden_packages(argv, " ".join(self.words) if cause else "")
        kind = "RankDied" if killed and self.cause is None else "RankRaised"
        return Outcome(code, lines[0], kind, rank, tuple(lines)).told(self.console)
