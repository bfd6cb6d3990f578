"""The process of one rank of a notebook's world on MPI: started by mpirun, it serves jobs from the notebook until the
socket between them ends.

    mpirun -n 8 python -m parallel_lab.processes.mpi.worker       # address and key of its socket: in the environment

Messages are tuples. From the notebook: ("job", run, whether communicators are to be fresh, control, function and
arguments), ("control", run, "run" / "pause" / "stop"), ("interrupt", run). To the notebook: ("ready", rank, pid),
("begun",), ("message", an object reported), ("warning", text), ("report", run, calls, fault, kind and body as
`outcome.load_report` takes them).
"""

from __future__ import annotations

import json
import os
import queue
import signal
import threading
from multiprocessing import connection
from typing import Any

import dill
import threadpoolctl

from ...ops.kernels.threads import keep_freed_memory, trim_memory
from ..faults import RunInterrupted, error_report, print_error, text_of
from ..jobs import unpacked
from . import load_mpi
from .comm import MpiCommunicator
from .launch import ADDRESS_VARIABLE


class _Served:
    """One rank and its socket."""

    def __init__(self) -> None:
        told = json.loads(os.environ.pop(ADDRESS_VARIABLE))
        self.sending = threading.Lock()
        self.jobs: queue.SimpleQueue[tuple[int, bool, Any, bytes]] = queue.SimpleQueue()
        self.lock = threading.Lock()
        self.early: list[tuple] = []  # what was asked of a run before it began
        address, key = told.pop("address"), bytes.fromhex(told.pop("key"))
        self.comm = MpiCommunicator(
            load_mpi(),
            warn=lambda text: self.send("warning", text),
            report=lambda obj: self.send("message", dill.dumps(obj, recurse=True)),
            **told,
        )
        self.pipe = connection.Client(address, "AF_UNIX", authkey=key)
        self.send("ready", self.comm.rank, os.getpid())
        threading.Thread(target=self.listen, daemon=True, name="notebook").start()

    def send(self, *message: Any) -> None:
        with self.sending:
            self.pipe.send(message)

    def listen(self) -> None:
        while True:
            try:
                message = self.pipe.recv()
            except (EOFError, OSError):  # the notebook has closed the world, or is gone; mpirun ends the other ranks
                os._exit(0)
            kind, run = message[:2]
            if kind == "job":
                self.jobs.put(message[1:])
                continue
            with self.lock:
                if run == self.comm._handshake.run:
                    self.apply(message)
                elif run > self.comm._handshake.run:
                    self.early.append(message)

    def apply(self, message: tuple) -> None:
        match message:
            case "control", _, word:
                self.comm.control = word
            case "interrupt", _:
                self.comm._handshake.interrupted = True
            case "trim", _:
                trim_memory()

    def serve(self) -> None:
        while True:
            run, fresh, control, payload = self.jobs.get()
            with self.lock:
                self.comm._begin_run(run, fresh=fresh)
                self.comm.control = control
                for message in self.early:
                    if message[1] == run:
                        self.apply(message)
                self.early.clear()
            kind, body = self.work(payload)
            if self.comm.caller.forked:  # by the program, and it has come out of it
                os._exit(0 if kind == b"D" else 1)
            del payload
            try:
                self.send("report", run, self.comm._past(), self.comm._handshake.fault, kind, body)
            except OSError:
                os._exit(0)

    def work(self, payload: bytearray) -> tuple[bytes, bytes]:
        """Run one job; returns (kind, body) of the report: b"D" result, b"S" stopped by an interrupt, b"E" error."""
        comm = self.comm
        try:
            function, args = unpacked(payload)
            self.send("begun")
            comm._handshake.look()
            comm._handshake.check()  # loading may import much; the others may have failed meanwhile
            result = function(comm, *args)
            if comm.caller.forked:
                return b"D", b""
            comm._end_run()
            return b"D", dill.dumps(result, recurse=True)
        except RunInterrupted:
            return b"S", b""
        except BaseException as error:  # everything is reported: SystemExit and KeyboardInterrupt of user code too
            if comm.caller.forked:
                print_error(error, error.__traceback__, False)
            elif getattr(error, "secondary", None) is None:
                text = f"rank {comm.rank} raised {type(error).__name__}: {text_of(error)[:500]}."
                comm._handshake.write_fault("RankRaised", text, ranks=[comm.rank])
                comm._handshake.look()  # lets the messages go
            return b"E", error_report(error)


def main() -> None:
    """Serve until the notebook's socket ends; never returns."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the notebook decides what Ctrl-C means
    threadpoolctl.threadpool_limits(1)
    keep_freed_memory()
    _Served().serve()


if __name__ == "__main__":
    main()
