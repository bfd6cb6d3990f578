"""The same launch through mpirun: its ranks talk over MPI, their output comes through one named pipe each.

mpirun mixes what its ranks print into one stream and cuts lines; the pipes, in a folder that is removed at the end,
keep them apart. mpirun belongs to a keeper process (processes/mpi/keeper.py), which ends all of it with this process.
Which rank failed, and why, is told by the ranks themselves (processes/mpi/ending.py) and by mpirun.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import secrets
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from ..mpi.launch import mpirun_command, rank_environment as without_mpi, require_mpi4py, session_folders
from ..supervisor import LOOK_S
from ..world.world import TIMEOUT_VARIABLE
from .console import Console
from .environment import python_command, rank_environment
from .processes import CHUNK, LaunchSpec, Outcome, Terminated

END_LIMIT_S = 5.0  # for the keeper to end everything
SHOWN_LINES = 12  # of mpirun's own words, where they are all there is
# what the ranks say (processes/mpi/ending.py), and what Open MPI says of one that was killed
_CAUSES = (
    re.compile(r"rank (?P<rank>\d+)(, thread '.*',)? (raised \w+|ended with exit code \d+)"),
    re.compile(r"process rank (?P<rank>\d+) with PID \d+ on node \S+ exited on signal \d+( \(\w+\))?"),
)


def launch_over_mpi(spec: LaunchSpec, console: Console) -> Outcome:
    """As `processes.launch`, through mpirun on this machine. Raises MissingPackage without mpirun or mpi4py."""
    require_mpi4py()
    name = f"parallel_lab-run-{os.getpid()}-{secrets.token_hex(4)}"
    folder = Path(tempfile.gettempdir(), name)
    segments = Path("/dev/shm", name) if os.access("/dev/shm", os.W_OK) else folder
    argv = spec.argv if spec.cell is None else ("--cell", spec.cell[0], str(folder / "cell.py"))
    command = mpirun_command(spec.world_size, python_command(argv))
    own = {
        "PARALLEL_LAB_OUTPUT": str(folder),
        TIMEOUT_VARIABLE: str(spec.timeout_s),
        **session_folders(str(folder), str(segments)),
    }
    environment = without_mpi(
        rank_environment(as_mindspore=spec.as_mindspore, events=spec.events, extra={**spec.environment, **own})
    )
    environment.pop("PARALLEL_LAB_WORLD", None)
    folders = [str(path) for path in dict.fromkeys((folder, segments))]
    order = json.dumps({"command": command, "folders": folders})
    words: list[str] = []  # mpirun's own
    causes: list[re.Match] = []
    ended_by = 0
    with contextlib.ExitStack() as stack:
        for path in folders:
            os.mkdir(path, 0o700)
            stack.callback(shutil.rmtree, path, ignore_errors=True)
        if spec.cell is not None:
            (folder / "cell.py").write_text(spec.cell[1], encoding="utf-8")
        keeper = subprocess.Popen(
            [sys.executable, "-m", "parallel_lab.processes.mpi.keeper", order],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,  # Ctrl-C is ours to pass on
        )
        stack.callback(_end, keeper)
        selector = stack.enter_context(selectors.DefaultSelector())
        pipes = []
        for rank in range(spec.world_size):
            os.mkfifo(folder / f"rank.{rank}", 0o600)
            pipe = os.open(
                folder / f"rank.{rank}", os.O_RDWR | os.O_NONBLOCK
            )  # also for writing: no end of file before the rank has opened it
            stack.callback(os.close, pipe)
            pipes.append(pipe)
            selector.register(pipe, selectors.EVENT_READ, rank)
        selector.register(keeper.stdout, selectors.EVENT_READ, None)
        try:
            while _pass_on(selector, keeper, console, words, causes):
                console.flush()
        except KeyboardInterrupt:
            ended_by = signal.SIGINT
        except Terminated as ended:
            ended_by = ended.number
        _end(keeper)
        for rank, pipe in enumerate(pipes):
            with contextlib.suppress(BlockingIOError):
                while data := os.read(pipe, CHUNK):
                    _feed(console, rank, data, causes)
            console.end_of(rank)
    return _tell(console, keeper.returncode, ended_by, words, causes)


def _pass_on(
    selector: selectors.BaseSelector,
    keeper: subprocess.Popen,
    console: Console,
    words: list[str],
    causes: list[re.Match],
) -> bool:
    """Show what has come; False once mpirun has ended."""
    for key, _ in selector.select(LOOK_S):
        if key.data is None:
            data = os.read(keeper.stdout.fileno(), CHUNK)
            if not data:
                return False
            words.extend(data.decode(errors="replace").splitlines())
            del words[:-200]
        else:
            with contextlib.suppress(BlockingIOError):
                _feed(console, key.data, os.read(key.fd, CHUNK), causes)
    return True


def _feed(console: Console, rank: int, data: bytes, causes: list[re.Match]) -> None:
    console.feed(rank, data)
    if not causes and (found := _CAUSES[0].search(data.decode(errors="replace"))) and int(found["rank"]) == rank:
        causes.append(found)


def _end(keeper: subprocess.Popen) -> None:
    """Closing its standard input tells the keeper to end everything."""
    with contextlib.suppress(OSError):
        keeper.stdin.close()
    try:
        keeper.wait(END_LIMIT_S)
    except subprocess.TimeoutExpired:
        keeper.kill()
        keeper.wait()
    keeper.stdout.close()


def _tell(console: Console, code: int, ended_by: int, words: list[str], causes: list[re.Match]) -> Outcome:
    if ended_by:
        name = "interrupted" if ended_by == signal.SIGINT else f"ended by {signal.Signals(ended_by).name}"
        outcome = Outcome(128 + ended_by, f"{name}; all ranks have ended", "Interrupted")
        lines = [outcome.reason]
    elif code == 0:
        return Outcome(0)
    else:
        killed = _CAUSES[1].search(" ".join(words))
        cause = causes[0] if causes else killed
        said = [line for line in words if line.strip() and not set(line.strip()) <= {"-", "="}]
        lines = [cause[0]] if cause else [f"mpirun: {line}" for line in said[:SHOWN_LINES]]
        lines.append(f"mpirun ended with exit code {code}")
        rank = int(cause["rank"]) if cause else None
        if console.logs:
            lines.append(
                f"log of rank {rank}: {console.logs[rank]}"
                if cause
                else f"logs of the ranks: {console.logs[0].parent.parent}"
            )
        outcome = Outcome(code, lines[0], "RankDied" if cause is killed and killed else "RankRaised", rank)
    for line in lines:
        console.note(line)
    return dataclasses.replace(outcome, lines=tuple(lines))
