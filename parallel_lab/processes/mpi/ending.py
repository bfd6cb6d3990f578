"""All ranks of an mpirun end together, whichever way the first of them ends.

Measured without this: a rank that raises prints its traceback, blocks in MPI_Finalize, and all others wait for ever.

    an exception nobody caught, in any thread   its traceback with the rank, then MPI_Abort: mpirun ends the others
    sys.exit with a code that is not 0          one line, then MPI_Abort with that code
    a normal end while others still wait        they hear of it, and raise; a rank that still computes is waited for, as
                                                MPI_Finalize does
    a normal end of all                         each says that it is through; MPI is finished when all are
    death by a signal, os._exit                 mpirun sees it and ends the others

A rank that was stopped by another's fault says so in one line and leaves that one a moment to print.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn

from ..faults import exit_code, follows_fault, text_of, traceback_text

if TYPE_CHECKING:
    from .comm import MpiCommunicator

SECONDARY_GRACE_S = 1.0  # for the rank with the first cause to print it and abort
SENT_GRACE_S = 5.0  # for others to read what was sent to them; a large message that nobody receives never goes
DRAIN_LOOK_S = 2e-3
STILL_WORKING_S = 30.0  # after this long at the end, a line says for whom a rank waits


class _Exit(SystemExit):
    """SystemExit that knows whether it ended the process: then `code` is read with no Python frame below."""

    ended: Any = None

    def __init__(self, code: Any = None) -> None:
        super().__init__(code)
        self._code = code

    @property
    def code(self) -> Any:
        try:
            sys._getframe(1)
        except ValueError:
            _Exit.ended = self._code
        return self._code

    @code.setter
    def code(self, value: Any) -> None:
        self._code = value


def _exit(code: Any = None, /) -> NoReturn:  # sys.exit, observed
    raise _Exit(code)


def end_together(comm: MpiCommunicator) -> None:
    """From now on this process takes all ranks along when it fails. Called once, by `connect`."""
    mpi, pid = comm._mpi, os.getpid()
    before, before_in_threads = sys.excepthook, threading.excepthook
    sys.exit = _exit

    def no_rank() -> bool:  # a child that the rank has forked, or a rank that has finished MPI
        return os.getpid() != pid or mpi.Is_finalized()

    def tell(kind: type, error: BaseException | None, trace: TracebackType | None, where: str = "") -> None:
        if error is not None and follows_fault(error):
            _say(f"rank {comm.rank}{where} stopped: {kind.__name__}: {text_of(error)}")
            time.sleep(SECONDARY_GRACE_S)
            return
        lines = traceback_text(error, trace) if error is not None else kind.__name__
        _say(f"rank {comm.rank}{where} raised {kind.__name__}; all ranks are ended\n{lines.rstrip()}")

    def on_exception(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if no_rank():
            before(kind, error, trace)
            return
        if hasattr(before, "explain"):  # such as the facade's, which knows what a script forgot to import
            before.explain(error)
        tell(kind, error, trace)
        _abort(mpi, 1)

    def on_thread_exception(args: Any) -> None:
        if issubclass(args.exc_type, SystemExit):  # ends the thread and nothing else, as everywhere
            return
        if no_rank():
            before_in_threads(args)
            return
        tell(args.exc_type, args.exc_value, args.exc_traceback, f", thread {getattr(args.thread, 'name', '?')!r},")
        _abort(mpi, 1)

    sys.excepthook, threading.excepthook = on_exception, on_thread_exception
    atexit.register(_leave, comm, pid)


def _leave(comm: MpiCommunicator, pid: int) -> None:
    """The normal end of a rank: meet the others at the end, so that MPI can be finished; or abort, where it cannot."""
    mpi, handshake = comm._mpi, comm._handshake
    if os.getpid() != pid or mpi.Is_finalized():
        return
    code = exit_code(_Exit.ended)
    if code:
        _say(f"rank {comm.rank} ended with exit code {code}; all ranks are ended")
        _abort(mpi, code)
    caught = handshake.fault is not None  # the program has seen it, and went on to its end
    try:
        if caught:
            handshake.leave(comm._messages.sent)
            _look_until(comm, lambda: len(handshake.left) == len(handshake.others))
            _until_sent(comm)
        else:
            _meet_at_the_end(comm)
        if handshake.untidy:
            _say(f"rank {comm.rank} ends with transfers that were given up; all ranks are ended")
            _abort(mpi, 1)
        _all_through(comm, caught)
    except BaseException as error:
        follows = follows_fault(error)
        _say(f"rank {comm.rank}, at its end{', stopped' if follows else ''}: {type(error).__name__}: {error}")
        time.sleep(SECONDARY_GRACE_S if follows else 0.0)
        _abort(mpi, 1)
    mpi.Finalize()


def _meet_at_the_end(comm: MpiCommunicator) -> None:
    handshake = comm._handshake
    comm._lane.check_waited()
    handshake.leave(comm._messages.sent)
    start, told = time.monotonic(), False

    def together() -> bool:
        nonlocal told
        if not told and time.monotonic() - start > STILL_WORKING_S:
            told = True
            working = [r for r in handshake.others if r not in handshake.left]
            _say(f"rank {comm.rank} has ended and waits for ranks {working}, which still work")
        return len(handshake.left) == len(handshake.others)

    handshake.until_settled(together)
    comm._check_unread()
    handshake.until_settled(handshake.sent_all)


def _all_through(comm: MpiCommunicator, caught: bool) -> None:
    """Wait for all: mpirun (Open MPI 4.1) crashes or hangs if one aborts while another is in MPI_Finalize."""
    handshake = comm._handshake
    handshake.tell_through()

    def through() -> bool:
        return len(handshake.through) == len(handshake.others)

    if caught:
        _look_until(comm, through)
    else:
        handshake.until_settled(through)
    _until_sent(comm)


def _look_until(comm: MpiCommunicator, done: Callable[[], bool]) -> None:
    """Read what comes until done(), whatever stopped the run."""
    while not done():
        comm._handshake.look()
        time.sleep(DRAIN_LOOK_S)


def _until_sent(comm: MpiCommunicator) -> None:
    """Wait until the others have read all that was sent to them, SENT_GRACE_S at most."""
    limit_s = time.monotonic() + SENT_GRACE_S
    while not comm._handshake.sent_all() and time.monotonic() < limit_s:
        time.sleep(DRAIN_LOOK_S)


def _abort(mpi: Any, code: int) -> NoReturn:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # nobody reads any more
            stream.flush()
    mpi.COMM_WORLD.Abort(code)
    os._exit(code)  # Abort does not return; if a library's does, this ends us all the same


def _say(text: str) -> None:
    """One write, so that lines of different ranks do not mix."""
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(text + "\n")
        sys.stderr.flush()
