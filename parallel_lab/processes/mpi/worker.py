"""The process of one rank of a notebook's world on MPI: started by mpirun, it serves jobs from the notebook until the
socket between them ends.

    mpirun -n 8 python -m parallel_lab.processes.mpi.worker       # address and key of the notebook's socket in the
    environment

Messages from the notebook, first byte first: J a job (number of the run, whether it is to begin with fresh
communicators, function and arguments), C run / pause / stop, I stop now. To the notebook: R ready, B begun, M an object
reported, W a warning, D / S / E the result, stopped, error.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import struct
import threading
from multiprocessing import connection

import dill
import threadpoolctl

from ...ops.kernels.threads import keep_freed_memory
from ..faults import RunInterrupted, error_report, text_of
from . import load_mpi
from .comm import MpiCommunicator

ADDRESS_VARIABLE = "PARALLEL_LAB_MPI_NOTEBOOK"  # JSON: address, key, timeout_s, warn_after_s, reproducible
JOB_HEAD = struct.Struct("<Q?")  # number of the run, fresh
REPORT_HEAD = struct.Struct("<QI")  # number of the run, bytes of what the rank remembers of it


class _Served:
    """One rank and its socket."""

    def __init__(self) -> None:
        told = json.loads(os.environ.pop(ADDRESS_VARIABLE))
        self.sending = threading.Lock()
        self.jobs: queue.SimpleQueue[tuple[int, bool, bytes]] = queue.SimpleQueue()
        self.lock = threading.Lock()
        self.early: list[tuple[bytes, int, bytes]] = []  # what was asked of a run before it began
        address, key = told.pop("address"), bytes.fromhex(told.pop("key"))
        self.comm = MpiCommunicator(
            load_mpi(),
            warn=lambda text: self.send(b"W", text.encode()),
            report=lambda obj: self.send(b"M", dill.dumps(obj, recurse=True)),
            **told,
        )
        address = address.replace("@", "\0", 1) if address.startswith("@") else address
        self.pipe = connection.Client(address, "AF_UNIX", authkey=key)
        self.send(b"R", json.dumps([self.comm.rank, os.getpid()]).encode())
        threading.Thread(target=self.listen, daemon=True, name="notebook").start()

    def send(self, kind: bytes, body: bytes = b"") -> None:
        with self.sending:
            self.pipe.send_bytes(kind + body)

    def listen(self) -> None:
        while True:
            try:
                data = self.pipe.recv_bytes()
            except (EOFError, OSError):  # the notebook has closed the world, or is gone; mpirun ends the other ranks
                os._exit(0)
            kind, body = data[:1], data[1:]
            if kind == b"J":
                run, fresh = JOB_HEAD.unpack_from(body)
                self.jobs.put((run, fresh, body[JOB_HEAD.size :]))
                continue
            (run,) = struct.unpack_from("<Q", body)
            with self.lock:
                if run == self.comm._handshake.run:
                    self.apply(kind, body[8:])
                elif run > self.comm._handshake.run:
                    self.early.append((kind, run, body[8:]))

    def apply(self, kind: bytes, body: bytes) -> None:
        if kind == b"C":
            self.comm.control = body.decode()
        else:
            self.comm._handshake.interrupted = True

    def serve(self) -> None:
        while True:
            run, fresh, payload = self.jobs.get()
            with self.lock:
                self.comm._begin_run(run, fresh=fresh)
                for kind, meant, body in self.early:
                    if meant == run:
                        self.apply(kind, body)
                self.early.clear()
            kind, body = self.work(payload)
            del payload
            past = dill.dumps((self.comm._past(), self.comm._handshake.fault))
            try:
                self.send(kind, REPORT_HEAD.pack(run, len(past)) + past + body)
            except OSError:
                os._exit(0)

    def work(self, payload: bytes) -> tuple[bytes, bytes]:
        """Run one job; returns (kind, body) of the report: b"D" result, b"S" stopped by an interrupt, b"E" error."""
        comm = self.comm
        try:
            function, args = dill.loads(payload)
            self.send(b"B")
            comm._handshake.look()
            comm._handshake.check()  # loading may import much; the others may have failed meanwhile
            result = function(comm, *args)
            comm._end_run()
            return b"D", dill.dumps(result, recurse=True)
        except RunInterrupted:
            return b"S", b""
        except BaseException as error:  # everything is reported: SystemExit and KeyboardInterrupt of user code too
            if getattr(error, "secondary", None) is None:
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
