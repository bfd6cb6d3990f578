"""The process between a notebook and mpirun: it owns all of a world on MPI and removes it, whichever dies first.

    notebook  --stdin: nothing, ever-->  keeper  -->  mpirun  -->  ranks  --socket-->  notebook

Measured without it: a notebook that is killed leaves mpirun and its ranks, and an mpirun that is killed leaves Open
MPI's segments in /dev/shm. The keeper ends everything when its standard input ends (the notebook closed it, or is gone)
or when mpirun has ended: it kills mpirun and all descendants, also stopped ones and those whose parents have died (it
is their subreaper), then removes the world's own folders, where mpirun and its ranks were asked to put whatever they
need. It lives in a session of its own, so that no signal to the notebook's group reaches it. If the keeper is killed,
mpirun dies with it (parent-death signal), ranks lose their sockets, the notebook removes folders.

Where a process cannot find its descendants, mpirun gets END_S to end its own before it is killed; and if the keeper is
killed there, mpirun goes on until the notebook ends its ranks.

    python -P .../keeper.py '{"command": [...], "folders": [...], "linux": true, "ends": true, "states": true}'

Run as a file, with nothing of the package imported: mpirun starts at once, not after the half second that takes. What
the system has (base/system.py) is therefore told by the notebook.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h
LOOK_S = 0.02  # how soon the end of mpirun is seen where the system cannot wait for it together with the standard input
SO_ATTACH_FILTER, SKF_NET_OFF = 26, 0xFFF00000  # asm-generic/socket.h, linux/filter.h
PIDFD_GETFD = 438  # number of the system call, on every processor (Linux 5.6)
SOCKETS_LOOK_S, SOCKETS_S = 0.01, 10.0  # how often, and how long, to look for new sockets of mpirun
END_S = 2.0  # for an mpirun that is asked to end, which gives its ranks a second
LAST_S = 2.0  # killed processes are gone long before; one stuck in the kernel must not keep the keeper


def main(order: str) -> int:
    """Run mpirun until it or the notebook ends; the exit code is mpirun's, 128 + signal if a signal ended it."""
    told = json.loads(order)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # only the end of the standard input counts
    prctl = ctypes.CDLL(None).prctl if told["linux"] else lambda *_: None
    prctl(PR_SET_CHILD_SUBREAPER, ctypes.c_ulong(1), 0, 0, 0)
    me = os.getpid()

    def in_mpirun() -> None:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        prctl(PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != me:  # the keeper died before the call
            os._exit(1)

    try:
        options = {"stdin": subprocess.DEVNULL, "preexec_fn": in_mpirun, "start_new_session": True}
        process = subprocess.Popen(told["command"], **options)
        _wait(process, told["ends"])
        code = process.poll()
        _end_all(process, told["states"])
    finally:
        for folder in told["folders"]:
            shutil.rmtree(folder, ignore_errors=True)
    return 0 if code is None else code if code >= 0 else 128 - code


def _wait(process: subprocess.Popen, has_ends: bool) -> None:
    """Return when mpirun has ended, or when nobody holds the other end of the standard input."""
    ended = -1
    with contextlib.suppress(OSError):  # a kernel or sandbox without it; our child is there until we ask for its end
        ended = os.pidfd_open(process.pid) if has_ends else -1
    watched = [0] if ended < 0 else [0, ended]
    known: set[str] = set()
    last = time.monotonic() + SOCKETS_S
    while process.poll() is None:
        looks = ended >= 0 and time.monotonic() < last
        if looks:
            _keep_to_loopback(process.pid, ended, known)
        limit_s = SOCKETS_LOOK_S if looks else LOOK_S if ended < 0 else None
        ready, _, _ = select.select(watched, [], [], limit_s)
        if 0 in ready and not os.read(0, 64):
            return
        if ended in ready:
            return


def _keep_to_loopback(pid: int, descriptor: int, known: set[str]) -> None:
    """Let other machines not reach the sockets on which mpirun listens. Open MPI binds them to all interfaces, and has
    no parameter that says otherwise (4.1, oob_tcp_listener.c; PRRTE of Open MPI 5: the same). Some versions of PMIx
    (Debian 13's) bind one to this machine's own address, where ranks, too, come from that address. Where the system
    does not let us, before Linux 5.7 and on Macs, they stay as they are; so does one on an own IPv6 address.

    descriptor  of the process;  known: sockets that need no other look
    """
    with contextlib.suppress(OSError):
        for number in os.listdir(f"/proc/{pid}/fd"):
            name = os.readlink(f"/proc/{pid}/fd/{number}")
            if not name.startswith("socket:") or name in known:
                continue
            copy = ctypes.CDLL(None).syscall(PIDFD_GETFD, descriptor, int(number), 0)
            if copy < 0:
                known.add(name)
                continue
            with socket.socket(fileno=copy) as found:
                is_tcp = found.family in (socket.AF_INET, socket.AF_INET6)
                if not is_tcp or found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                    known.add(name)
                    if is_tcp and found.getsockname()[0] in ("0.0.0.0", "::"):
                        found.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"lo\0")
                    elif found.family == socket.AF_INET:
                        _take_from_itself_alone(found)


def _take_from_itself_alone(listener: socket.socket) -> None:
    """Drop what comes to an IPv4 socket from another address than its own, by a filter of packets (linux/filter.h)."""
    own = int.from_bytes(socket.inet_aton(listener.getsockname()[0]))
    # load the sender's address, which lies 12 bytes behind the network header; take all of the packet if it is ours
    steps = (0x20, 0, 0, SKF_NET_OFF + 12), (0x15, 0, 1, own), (0x06, 0, 0, 0xFFFFFFFF), (0x06, 0, 0, 0)
    program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
    packed = struct.pack("HP", len(steps), ctypes.addressof(program))
    listener.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, packed)


def _children(pid: int) -> list[int]:
    found: list[int] = []
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found += map(int, file.read_bytes().split())
        except OSError:  # ended while we looked
            continue
    return found


def _end_all(process: subprocess.Popen, has_states: bool) -> None:
    """Kill mpirun, then every descendant; orphans become our children, so that looking again finds all."""
    if not has_states:  # it knows its ranks, and we could not find them
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(END_S)
    if process.poll() is None:
        process.kill()
    end = time.monotonic() + LAST_S
    while time.monotonic() < end:
        waiting, alive = [os.getpid()] if has_states else [], []
        while waiting:
            found = _children(waiting.pop())
            alive += found
            waiting += found
        for pid in alive:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                continue
        except ChildProcessError:
            return
        time.sleep(0.002)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
