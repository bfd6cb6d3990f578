"""One process per rank (`python rank_main.py script.py`, own process group and output pipe): started together, watched
until all have ended, ended together when one fails. What ends a run early: a rank that raises, dies or leaves with an
exit code; a collective that a rank does not reach; Ctrl-C, SIGTERM, SIGHUP. The reason goes into the arena, so that
ranks in a collective raise at once; the others are ended after a grace, and their own processes with them. A launcher
that is killed takes its ranks along (rank_main.py).
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import selectors
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ...base.errors import WorldError
from ...base.interrupts import blocked_at_birth, held
from ...base.system import SYSTEM, end_of_process, require_processes
from ..outcome import death_text
from ..shm.arena import ARENA_BYTES, Arena, ArenaMap
from ..shm.attach import VARIABLE, Place
from ..shm.shared_memory import SharedBlock
from ..shm.shared_world import SharedWorld
from ..shm.watch import ranks_text
from ..supervisor import LOOK_S, AskToEnd, Kill, Limits, Warn
from ..world.world import TIMEOUT_S, merge_events
from .console import Console
from .environment import hidden_packages, python_command, rank_environment

GRACES = {
    "start_warn_s": 10.0,  # a rank that comes to `init` this much later than another is worth a warning
    "fault_s": 1.0,  # for ranks that are stopped in a collective to say so
    "death_s": 1.0,
    "culprit_s": 3.0,
    "interrupt_s": 0.8,  # for `finally` blocks of the scripts
    "ask_s": 0.15,
}
DRAIN_S = 0.5  # for the last bytes of a rank whose pipe a process of its own still holds
CHUNK = 64 << 10


@dataclass(frozen=True)
class LaunchSpec:
    """What to start.

    argv           script and its arguments, or "-m", module and its arguments
    world_size     ranks
    timeout_s      a collective that some rank does not reach in this time raises CollectiveTimeout; the warning comes
                   after warn_after_s
    start_limit_s  the same for `init`, where the ranks meet for the first time; None: timeout_s
    as_mindspore   `import mindspore` finds this package's facade;  as_hyper_parallel: `import hyper_parallel`, too
    events         file that receives the communication of all ranks (processes/world/world.py)
    launcher       what the user typed, for messages
    cell           instead of argv: a notebook cell as (its name for tracebacks, its text)
    environment    further variables for all ranks;  rank_environments: per rank;  cores: processor numbers per rank
    """

    argv: tuple[str, ...]
    world_size: int
    timeout_s: float = TIMEOUT_S
    warn_after_s: float = 2.0
    start_limit_s: float | None = None
    as_mindspore: bool = False
    as_hyper_parallel: bool = False
    events: str | None = None
    launcher: str = "parallel-lab run"
    cell: tuple[str, str] | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    rank_environments: tuple[Mapping[str, str], ...] = ()
    cores: tuple[tuple[int, ...], ...] = ()

    @property
    def facades(self) -> tuple[str, ...]:
        """Names that stand for this package in the ranks."""
        either = self.as_mindspore or self.as_hyper_parallel
        return ("mindspore",) * either + ("hyper_parallel",) * self.as_hyper_parallel


@dataclass(frozen=True)
class Outcome:
    """How it ended: `exit_code` 0, that of the rank that failed first (128 + number for a signal), or 128 + the signal
    that ended the launcher; `reason` ("": nothing went wrong), `kind`: its error class's name; `failed_rank`, None if
    no single one; `lines`: the console's last.
    """

    exit_code: int
    reason: str = ""
    kind: str = ""
    failed_rank: int | None = None
    lines: tuple[str, ...] = ()

    def told(self, console: Console) -> Outcome:
        """The outcome, after its lines (without any: its reason) were written."""
        lines = self.lines or (self.reason,)
        for line in lines:
            console.note(line)
        return dataclasses.replace(self, lines=lines)


def interrupted(number: int) -> Outcome:
    """The outcome of a launch that this signal has ended."""
    name = "interrupted" if number == signal.SIGINT else f"ended by {signal.Signals(number).name}"
    return Outcome(128 + number, f"{name}; all ranks have ended", "Interrupted")


class Terminated(BaseException):
    """A signal that asks the launcher to end. No Exception: nothing on the way may take it for an error of its own."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


def end_by_signal(number: int, _frame: object) -> None:
    """The handler for `ending_on_signals` around a launch."""
    raise Terminated(number)


@contextlib.contextmanager
def ending_on_signals(end: Callable[[int, object], object]) -> Iterator[None]:
    """Within, SIGTERM and SIGHUP call `end`, and Ctrl-C is raised, for a command that ends what it has started. As
    mpirun does, it takes SIGINT also where that was ignored at the start (a job in the background of a script, cron):
    it is sent on purpose. A SIGHUP that was ignored stays ignored: nohup is to outlive the terminal. In the main
    thread; elsewhere without effect.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers = {signal.SIGTERM: end}
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        handlers[signal.SIGHUP] = end
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        handlers[signal.SIGINT] = signal.default_int_handler
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def launch(spec: LaunchSpec, console: Console) -> Outcome:
    """Run the script on all ranks until they end. Call it in a thread that outlives them (the main thread).
    Ctrl-C and Terminated end the ranks within a second: exit code 128 + signal. Raises WorldError where the system has
    no more processes, NoProcesses, SharedMemoryTooSmall, OSError.
    """
    require_processes(spec.launcher)
    ranks = _Ranks(spec, console)
    try:
        ranks.run()
    finally:
        ranks.close()
    return ranks.outcome


class _Ranks:
    def __init__(self, spec: LaunchSpec, console: Console) -> None:
        self.spec, self.console = spec, console
        layout = ArenaMap.for_budget(spec.world_size, ARENA_BYTES)
        self.arena = Arena(SharedBlock(layout.size_bytes), layout)
        start_s = spec.timeout_s if spec.start_limit_s is None else spec.start_limit_s
        self.world = SharedWorld(self.arena, Limits(spec.timeout_s, spec.warn_after_s, start_s, **GRACES))
        self.processes: list[subprocess.Popen] = []
        self.pipes: dict[int, int] = {}  # rank -> our end of its output
        self.codes: dict[int, int] = {}  # rank -> exit code, in order of their ends
        self.ended_by_us: set[int] = set()
        self.signal: int | None = None
        self.outcome = Outcome(1, "the launcher failed")
        self.selector = selectors.DefaultSelector()
        self.life_read, self.life_write = os.pipe()
        self.cell_file = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close(); it has no name, so it cannot stay behind

    # start

    def start(self) -> None:
        spec = self.spec
        variables = rank_environment(facades=spec.facades, events=spec.events, extra=spec.environment)
        if spec.events:
            for parts in _event_parts(spec.events):
                shutil.rmtree(parts, ignore_errors=True)
        passed = [self.arena.block.fd, self.life_read]
        argv = spec.argv
        if spec.cell is not None:
            self.cell_file.write(spec.cell[1].encode())
            self.cell_file.flush()
            passed.append(self.cell_file.fileno())
            argv = ("--cell", spec.cell[0], f"fd:{self.cell_file.fileno()}")
        for rank in range(spec.world_size):
            try:
                with held():  # a process is either not started, or noted
                    self._start_rank(rank, python_command(argv), variables, passed)
            except OSError as error:
                what = f"process {rank + 1} of {spec.world_size} cannot be started: {error.strerror}"
                hint = "Start fewer ranks, or allow more processes (ulimit -u) and open files (ulimit -n)"
                raise WorldError(what, where=spec.launcher, hint=hint) from error

    def _start_rank(self, rank: int, command: list[str], variables: dict[str, str], passed: list[int]) -> None:
        spec, layout, number = self.spec, self.arena.map, str(rank)
        where = (layout.buffer_bytes, layout.ring_bytes, self.arena.block.fd, self.life_read)
        parent = 0 if SYSTEM.parent_signal else os.getpid()
        place = Place(rank, spec.world_size, *where, launcher=spec.launcher, parent=parent)
        own = {VARIABLE: place.text(), "RANK_ID": number, "RANK_SIZE": str(spec.world_size), "DEVICE_ID": number}
        if spec.cores:
            own["PARALLEL_LAB_CORES"] = ",".join(map(str, spec.cores[rank]))
        if spec.rank_environments:
            own |= spec.rank_environments[rank]
        ours, theirs = os.pipe()
        self.pipes[rank] = ours
        os.set_blocking(ours, False)
        streams = {"stdin": subprocess.DEVNULL, "stdout": theirs, "stderr": theirs}
        try:
            # a group of its own: Ctrl-C is the launcher's to pass on, and what the rank starts can be ended with it
            with blocked_at_birth():  # rank_main.py lets Ctrl-C through when it can end without a word
                process = subprocess.Popen(
                    command, **streams, pass_fds=passed, process_group=0, env={**variables, **own}
                )
        finally:
            os.close(theirs)
        self.processes.append(process)
        self.world.pids[rank] = process.pid
        self.selector.register(ours, selectors.EVENT_READ, rank)
        ended = end_of_process(process.pid)
        if ended >= 0:  # otherwise the ends are seen at the next look
            self.selector.register(ended, selectors.EVENT_READ, None)

    # running

    def run(self) -> None:
        started = False
        while not started or len(self.codes) < len(self.processes):
            try:
                if started:
                    self._step()
                else:
                    started = True
                    self.start()
            except KeyboardInterrupt:
                self._interrupted(signal.SIGINT)
            except Terminated as ended:
                self._interrupted(ended.number)
        outcome = self._judged()
        self.outcome = outcome.told(self.console) if outcome.exit_code else outcome

    def _interrupted(self, number: int) -> None:
        everybody = range(len(self.processes))
        if self.signal is not None:  # asked again
            self._end(everybody, signal.SIGKILL)
            return
        self.signal = number
        self.world.supervisor.interrupt(time.monotonic())
        self._look()
        # scripts that compute or sleep see a KeyboardInterrupt too, and their `finally` runs
        self._signal(everybody, signal.SIGINT)

    def _step(self) -> None:
        for key, _ in self.selector.select(LOOK_S):
            if key.data is not None:
                self._read(key.data)
        self._note_ends()
        self._look()
        self.console.flush()

    def _look(self) -> None:
        for action in self.world.look():
            match action:
                case Warn(text):
                    self.console.note(f"warning: {text}")
                case AskToEnd(ranks):
                    self._end(ranks, signal.SIGTERM)
                case Kill(ranks):
                    self._end(ranks, signal.SIGKILL)

    def _read(self, rank: int) -> bool:
        """Take what has come from `rank`; False when nothing more will."""
        pipe = self.pipes.get(rank)
        if pipe is None:
            return False
        try:
            data = os.read(pipe, CHUNK)
        except BlockingIOError:
            return True
        if data:
            self.console.feed(rank, data)
            return True
        self._drop_pipe(rank)
        return False

    def _drop_pipe(self, rank: int) -> None:
        pipe = self.pipes.pop(rank, None)
        if pipe is not None:
            with contextlib.suppress(KeyError):  # that of a process that could not be started
                self.selector.unregister(pipe)
            os.close(pipe)
            self.console.end_of(rank)

    def _note_ends(self) -> None:
        for rank, process in enumerate(self.processes):
            if rank not in self.codes and _has_ended(process):
                # while nobody has asked for the exit code, the group's number cannot belong to others; where the system
                # tells of an end only with its code (`waits`), this is the moment after
                self._kill_group(process)
                code = self.codes[rank] = process.wait()
                end = time.monotonic() + DRAIN_S
                while self._read(rank) and time.monotonic() < end:
                    if not _readable(self.pipes.get(rank), 0.02):
                        break
                self._drop_pipe(rank)
                if code == 0:
                    self.world.left(rank)
                else:
                    text = death_text(rank, process.pid, code, self.world.last_entry(rank)) + "."
                    self.world.died(rank, text, exit_code=code)

    def _end(self, ranks: Iterable[int], number: int) -> None:
        left = [rank for rank in ranks if rank < len(self.processes) and rank not in self.codes]
        self.ended_by_us.update(left)
        self._signal(left, number)

    def _signal(self, ranks: Iterable[int], number: int) -> None:
        for rank in ranks:
            if rank not in self.codes:
                with contextlib.suppress(OSError):
                    os.killpg(self.processes[rank].pid, number)

    @staticmethod
    def _kill_group(process: subprocess.Popen) -> None:
        with contextlib.suppress(OSError):  # nobody else was in it
            os.killpg(process.pid, signal.SIGKILL)

    # the end

    def _judged(self) -> Outcome:
        world, fault = self.world, self.world.fault()
        if self.signal is not None:
            return interrupted(self.signal)
        if fault is None:
            unread = self.arena.unread().rstrip(".")
            return Outcome(1, unread, "CollectiveMismatch") if unread else Outcome(0)
        kind, text, culprit = fault["kind"], fault["text"].rstrip("."), fault.get("rank")
        first_bad = next((rank for rank, code in self.codes.items() if code and rank not in self.ended_by_us), None)
        blamed = culprit if culprit is not None else first_bad
        by_force = [rank for rank in sorted(self.ended_by_us) if self.codes[rank] in (-signal.SIGTERM, -signal.SIGKILL)]
        # a signal of ours says nothing of what it did
        code = fault.get("exit_code", 1) if blamed in by_force else self.codes.get(blamed, 1)
        lines = [text]
        if kind == "RankRaised" and culprit is not None:
            entry = world.last_entry(culprit)
            lines[0] += f"; its last call: {entry}" if entry else "; it had called no collective"
        if any(world.last_entry(rank) for rank in range(self.spec.world_size)):
            others = world.stopped_places({culprit} if culprit is not None else set())
            lines += [f"when the run stopped: {others}"] if others else []
        # after an error of its own that it has told, a rank was only slow to end: not a second fault
        if silent := [rank for rank in by_force if not world.raised(rank)]:
            lines.append(f"{ranks_text(silent)} did not end in time and had to be ended")
        if self.console.logs and blamed is not None:
            lines.append(f"log of rank {blamed}: {self.console.logs[blamed]}")
        lines += hidden_packages(("--cell",) if self.spec.cell else self.spec.argv, text)
        return Outcome(128 - code if code < 0 else code or 1, text, kind, culprit, tuple(lines))

    def close(self) -> None:
        """End what is left, and give everything back, also when the last lines find no reader any more."""
        with contextlib.ExitStack() as stack:  # from the last one up
            if self.spec.events:
                stack.callback(self._merge_events)
            stack.callback(self.arena.close)
            stack.callback(os.close, self.life_write)
            stack.callback(os.close, self.life_read)
            stack.callback(self.cell_file.close)
            stack.callback(self.selector.close)
            for key in list(self.selector.get_map().values()):
                if key.data is None:  # of a process; the pipes are dropped one by one
                    stack.callback(os.close, key.fd)
            for rank in list(self.pipes):
                stack.callback(self._drop_pipe, rank)
            for process in self.processes:
                if process.returncode is None:
                    self._kill_group(process)
                    process.wait()

    def _merge_events(self) -> None:
        for parts in _event_parts(self.spec.events):
            merge_events(parts, self.spec.events)


def _event_parts(target: str) -> list[Path]:
    path = Path(target)
    return sorted(path.parent.glob(f"{path.name}.parts-*"))


def _has_ended(process: subprocess.Popen) -> bool:
    """Whether the process has ended; its exit code is left to be asked for, where that can be."""
    if not SYSTEM.waits:
        return process.poll() is not None
    return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _readable(descriptor: int | None, wait_s: float) -> bool:
    """Whether something can be read from the descriptor within `wait_s`."""
    if descriptor is None:
        return False
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        return bool(selector.select(wait_s))
