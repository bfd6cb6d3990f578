"""What this operating system has of what only some have: read once, and asked for nowhere else (benchmarks aside).

Linux has all of it. Macs have few, and Windows too little for ranks that are processes. Whatever is missing has another
way, which is a little slower or sees an end a little later and gives the same bits. Few of us have three computers, so
with PARALLEL_LAB_PORTABLE=1 in the environment nothing that only Linux has is used, and the other ways can be tried on
Linux: it is what `pytest -m portable` does. A sandbox may refuse calls of memory files and descriptors: they are tried.

    missing here               what is done instead
    memory_files               an unlinked temporary file, its pages reserved when it is made
    sent_descriptors           a file with a name, in the user's own folder (processes/own_folder.py)
    abstract_sockets, peers    sockets in that folder, which nobody else may enter
    futex                      a rank that waits sleeps and looks, for longer and longer
    parent_signal              a rank looks twice a second whether its parent lives, besides the pipe that tells it
    process_ends, waits        the end of a process is looked for
    states                     `ps` tells what a process does, and nothing the load of the machine
    affinity, peer_memory      ranks run where the system lets them; large values go through the buffers
    fork_server                each rank is a Python of its own from the beginning (spawn)
    kept_memory                the C library does with freed memory what it likes
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from .errors import NoProcesses
from .interrupts import held

VARIABLE = "PARALLEL_LAB_PORTABLE"
IN_BROWSER = sys.platform == "emscripten"  # a page (Pyodide): no processes, threads or libraries with threads
PS_LIMIT_S = 5.0
# what a filter of system calls says (seccomp, a container's profile), and a kernel without the call
REFUSED = (errno.EPERM, errno.EACCES, errno.ENOSYS, errno.EOPNOTSUPP)
# letters of /proc/PID/stat, and of ps
STATES = {"R": "running", "S": "sleeping", "I": "sleeping", "D": "waiting for a disk", "U": "waiting for a disk"}
STATES |= {"T": "stopped by a signal", "t": "stopped by a debugger", "Z": "ended"}

# what has been run on each system, and what has not: the doctor says it, and the README
TRIED = {
    "Linux": "everything was run here",
    "macOS": "ranks do without the calls that only Linux has; this was run on Linux "
    f"({VARIABLE}=1), and never on a Mac",
    "Windows": "only designed: a Python on Linux without the calls that Windows lacks has run labs and simulated "
    "ranks; ranks as processes are refused, and labs simulate them",
    "Browser": "designed, run as far as numpy's import",
}


@dataclass(frozen=True)
class System:
    """`name`: "Linux", "macOS", "Windows" or another; `portable`: PARALLEL_LAB_PORTABLE is set; `processes`: ranks can
    be processes. The others say what there is:

    memory_files      memfd_create: memory that has a descriptor and no name
    sent_descriptors  a descriptor can be handed to a running process that does not answer
    abstract_sockets  Unix sockets whose names vanish with them;  peers: such a socket tells who is at its other end
    futex             sleeping until a word in shared memory changes
    parent_signal     prctl: a signal at the death of the parent, and what else that call sets
    process_ends      pidfd_open: a descriptor that tells the end of a process
    waits             waitid: whether a child has ended, its exit code left to be asked for
    states            /proc: what processes do, free memory, the load
    affinity          which processors a process may use
    peer_memory       process_vm_readv: reading another process's memory
    reserved_files    posix_fallocate: pages of a file that are surely there
    fork_server       workers as forks of a clean process
    kept_memory       mallopt, malloc_trim: what the C library does with freed memory
    """

    name: str
    portable: bool
    processes: bool
    memory_files: bool
    sent_descriptors: bool
    abstract_sockets: bool
    peers: bool
    futex: bool
    parent_signal: bool
    process_ends: bool
    waits: bool
    states: bool
    affinity: bool
    peer_memory: bool
    reserved_files: bool
    fork_server: bool
    kept_memory: bool

    @property
    def place(self) -> str:
        """Where this is, in a sentence."""
        return "in a browser" if self.name == "Browser" else f"on {self.name}"

    @property
    def missing(self) -> list[str]:
        """Names of what is not there."""
        return [field.name for field in fields(self)[3:] if not getattr(self, field.name)]


def _is_allowed(call: Callable[[], object]) -> bool:
    """Whether the system lets this process make the call; other faults are met where it is needed."""
    try:
        with held():  # cut off in Python's own socketpair, Ctrl-C would leave a socket open
            call()
    except OSError as error:
        return error.errno not in REFUSED
    return True


def _hand_descriptor_over() -> None:
    here, there = socket.socketpair()
    with here, there:
        socket.send_fds(here, [b"."], [here.fileno()])


def read_system(name: str, environment: Mapping[str, str]) -> System:
    """The system of this process.  name: `platform.system()`"""
    name = {"Darwin": "macOS", "Emscripten": "Browser"}.get(name, name)
    portable = environment.get(VARIABLE, "") not in ("", "0")
    linux = name == "Linux" and not portable
    sent_descriptors = linux and _is_allowed(_hand_descriptor_over)
    needed = ((os, "killpg"), (os, "setpgid"), (os, "register_at_fork"), (os, "getppid"), (os, "waitpid"))
    return System(
        name,
        portable,
        processes=name not in ("Windows", "Browser") and all(hasattr(module, call) for module, call in needed),
        memory_files=linux
        and hasattr(os, "memfd_create")
        and _is_allowed(lambda: os.close(os.memfd_create("parallel_lab"))),
        sent_descriptors=sent_descriptors,
        abstract_sockets=linux,
        peers=linux,
        futex=linux,
        parent_signal=linux,
        process_ends=linux and hasattr(os, "pidfd_open"),
        waits=linux and hasattr(os, "waitid"),
        states=linux and os.path.isdir("/proc/self"),
        affinity=linux and hasattr(os, "sched_setaffinity"),
        peer_memory=linux,
        reserved_files=linux and hasattr(os, "posix_fallocate"),
        fork_server=sent_descriptors,
        kept_memory=linux,
    )


SYSTEM = read_system(platform.system(), os.environ)


def without_processes() -> str:
    """Why ranks are simulated that were to be processes; "" where they can be."""
    return "" if SYSTEM.processes else f"ranks cannot be processes {SYSTEM.place}, so they are simulated"


def require_processes(where: str) -> None:
    """Raise NoProcesses where ranks cannot be processes."""
    if not SYSTEM.processes:
        what = f"ranks cannot be processes {SYSTEM.place}: process groups and Unix sockets are needed"
        other = "Python on a computer has them" if IN_BROWSER else "on Windows, WSL 2 is a Linux and has everything"
        hint = f'executor="simulator" gives the same numbers; {other}'
        raise NoProcesses(what, where=where, hint=hint)


# ---- asking for it ----


def c_function(name: str, *, use_errno: bool = False) -> Any:
    """A function of the C library of Linux, None elsewhere, or where the library lacks that name."""
    linux = SYSTEM.name == "Linux" and not SYSTEM.portable
    return getattr(ctypes.CDLL(None, use_errno=use_errno), name, None) if linux else None


def prctl(option: int, value: int) -> None:
    """Set an option of this process (linux/prctl.h), where there is such a call."""
    if SYSTEM.parent_signal:
        c_function("prctl")(option, ctypes.c_ulong(value), 0, 0, 0)


def processors() -> list[int]:
    """Numbers of the processors this process may use; where the system does not tell, those of the machine."""
    return sorted(os.sched_getaffinity(0)) if SYSTEM.affinity else list(range(os.cpu_count() or 1))


def cores() -> int:
    """How many processors this process may use."""
    return len(processors())


def end_of_process(pid: int) -> int:
    """A descriptor that becomes readable when the process ends, -1 where the system lacks them; ProcessLookupError."""
    if pid <= 0 or not SYSTEM.process_ends:
        return -1
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        raise
    except OSError:  # a kernel or sandbox without it
        return -1


def states_of(pids: Iterable[int]) -> dict[int, str]:
    """What processes do, in words (STATES); "gone" for those that are not there, "unknown" where nothing tells."""
    pids = list(pids)
    letters = {pid: _letter(pid) for pid in pids} if SYSTEM.states else _letters_of_ps(pids)
    return {pid: STATES.get(letter, letter) for pid, letter in letters.items()}


def _letter(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            return file.read().rsplit(")", 1)[1].split()[0]
    except OSError:
        return "gone"


def _letters_of_ps(pids: list[int]) -> dict[int, str]:
    command = ["ps", "-o", "pid=,stat=", "-p", ",".join(map(str, pids))]
    if not pids:
        return {}
    try:
        options = {"stdin": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "timeout": PS_LIMIT_S}
        lines = subprocess.run(command, stdout=subprocess.PIPE, **options).stdout.decode(errors="replace").splitlines()
    except (OSError, subprocess.TimeoutExpired):
        return dict.fromkeys(pids, "unknown")
    rows = [line.split() for line in lines]
    letters = {int(words[0]): words[1][0] for words in rows if len(words) == 2 and words[0].isdigit()}
    return {pid: letters.get(pid, "gone") for pid in pids}


def free_memory_bytes() -> int | None:
    """Bytes the system could give away now; None where it does not say."""
    if SYSTEM.states:
        try:
            with open("/proc/meminfo", encoding="ascii") as file:
                return next(int(line.split()[1]) * 1024 for line in file if line.startswith("MemAvailable:"))
        except (OSError, ValueError, StopIteration):
            pass
    return None


def resident_bytes() -> int | None:
    """Memory of this process that lies in RAM, by the system's count; None where it does not say."""
    if SYSTEM.states:
        try:
            with open("/proc/self/statm", encoding="ascii") as file:
                return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        except (OSError, ValueError, IndexError):
            pass
    return None
