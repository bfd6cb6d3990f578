"""In every Python of a portable run (PARALLEL_LAB_PORTABLE=1): whatever in the package needs a feature that only Linux
has ends with an error. Calls of the os module are gone, others are seen by an audit hook. Libraries may ask: on a Mac
they take ways of their own.
"""

import os
import sys

CALLS = ("memfd_create", "pidfd_open", "sched_getaffinity", "sched_setaffinity", "posix_fallocate", "waitid", "eventfd")
C_FUNCTIONS = ("prctl", "syscall", "process_vm_readv", "mallopt", "malloc_trim", "memfd_create", "gnu_get_libc_version")
FOLDERS = ("/proc", "/sys/fs/cgroup", "/dev/shm")
PACKAGE = f"{os.sep}parallel_lab{os.sep}"
LIBRARY = os.path.dirname(os.__file__) + os.sep  # Python's own
PASSED = (f"{os.sep}multiprocess{os.sep}", __file__)  # they ask for others


def _by_the_package() -> bool:
    """Whether it is the package that asks, by itself or by what it lets Python's own modules do."""
    frame = sys._getframe(2)
    while frame is not None:
        name = frame.f_code.co_filename
        own = name.startswith(LIBRARY) and "site-packages" not in name
        if not (own or name.startswith("<frozen") or any(part in name for part in PASSED)):
            return PACKAGE in name and "site-packages" not in name and f"{os.sep}tests{os.sep}" not in name
        frame = frame.f_back
    return False


def _of_linux(event: str, args: tuple) -> str:
    """What is asked for that only Linux has, or ""."""
    if event in ("open", "os.listdir", "os.scandir") and isinstance(args[0], (str, bytes, os.PathLike)):
        path = os.fsdecode(args[0])
        return path if path.startswith(FOLDERS) else ""
    if event == "ctypes.dlsym":
        return str(args[1]) if args[1] in C_FUNCTIONS else ""
    if event in ("socket.bind", "socket.connect") and isinstance(args[1], (str, bytes)):
        return f"an abstract socket {args[1]!r}" if os.fsencode(args[1]).startswith(b"\0") else ""
    return ""


def _hook(event: str, args: tuple) -> None:
    asked = _of_linux(event, args)
    if asked and _by_the_package():
        raise AssertionError(f"only Linux has {asked}")


if os.environ.get("PARALLEL_LAB_PORTABLE", "") not in ("", "0"):
    for call in CALLS:
        if hasattr(os, call):
            delattr(os, call)
    sys.addaudithook(_hook)
