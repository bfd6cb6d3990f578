"""Walls around a submission's process, and how grading's own processes start: nothing where learners write is imported.

    python -P walls.py '{"module": ..., "args": [...], "path": [...], "walls": {...}}'

Whatever this file does it does before numpy or anything else of the package is loaded, so it uses the standard library
alone. `find` says what this machine has; a process starts with exactly that or not at all:

    namespaces  users, processes, mounts, network (man 7 namespaces): only the files that Python and the package need
                exist, no other process, no network. Many containers, and Ubuntu since 23.10, do not allow them.
    landlock    the kernel's version of it (man 7 landlock), 0 without: files since Linux 5.13 (1), TCP since 6.7 (4),
                signals and abstract sockets since 6.12 (6)
    seccomp     a list of allowed system calls (man 2 seccomp), on x86_64 and arm64: pairs of sockets and no other, no
                signal to a process that was there before, no call that reaches into another one
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import importlib.util
import json
import os
import platform
import runpy
import struct
import sys
import sysconfig
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]  # the package
_PARTS = ("bin", "lib", "lib64", "libexec", "share", "ssl", "pyvenv.cfg")  # of an installation
_SYSTEM = (
    *(f"/{name}" for name in ("lib", "lib32", "lib64", "bin", "nix/store", "gnu/store")),
    *(f"{usr}/{name}" for usr in ("/usr", "/usr/local") for name in _PARTS),
    *(f"/etc/{name}" for name in ("ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime", "fonts", "mime.types")),
    *("/etc/alternatives", "/etc/ssl/openssl.cnf", "/sys/devices/system/cpu", "/sys/devices/system/node"),
)
_KEPT_NAMES = ("LC_", "OPENBLAS_", "MKL_", "BLIS_", "NPY_")  # of how products are computed: bits depend on it
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")


# ---- what is imported and read ----


def installed(entries: Iterable[str]) -> list[str]:
    """The entries of sys.path that are the standard library's or installed packages': never the current folder."""
    library = os.path.realpath(os.path.dirname(os.__file__))

    def is_installed(entry: str) -> bool:
        real = os.path.realpath(entry)
        inside = (real + os.sep).startswith(library + os.sep) or os.path.dirname(real) == os.path.dirname(library)
        of_packages = os.path.basename(real) in ("site-packages", "dist-packages")
        return bool(entry) and real != os.path.realpath(os.curdir) and (of_packages or inside)

    return [entry for entry in entries if is_installed(entry)]


def readable(path: Sequence[str]) -> list[str]:
    """The files and folders that Python, the package and what is installed need; `path`: installed packages."""
    prefixes = {sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix}
    found = [*path, *_SYSTEM, str(ROOT), *(os.path.join(prefix, part) for prefix in prefixes for part in _PARTS)]
    found += (
        [str(ROOT.parent / "data"), str(ROOT.parent / "pyproject.toml")] if not (ROOT / "_shipped").is_dir() else []
    )
    found += [entry for entry in os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep) if os.path.isabs(entry)]
    link = sys.executable
    while link:  # the links between a virtual environment's Python and the one it was made of
        found.append(link)
        link = os.path.join(os.path.dirname(link), os.readlink(link)) if os.path.islink(link) else ""
    found += [sysconfig.get_path(name) for name in ("stdlib", "platstdlib")]
    return [name for name in dict.fromkeys(map(os.path.abspath, found)) if os.path.exists(name) and name != os.sep]


def command(module: str, *args: str, **more: Any) -> list[str]:
    """That starts a module of the package in a process whose sys.path is what is installed, with more for `main`."""
    told = {"module": module, "args": args, "path": installed(sys.path), **more}
    return [sys.executable, "-P", __file__, json.dumps(told)]


def environment(few: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's without Python's own variables, which name files that it would run; or `few` names alone."""
    if few is None:
        return {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    kept = {n: v for n, v in os.environ.items() if n in ("LANG", "TZ", "LD_LIBRARY_PATH") or n.startswith(_KEPT_NAMES)}
    return kept | {"PATH": os.pathsep.join((f"{sys.prefix}/bin", "/usr/bin", "/bin")), **few}


# ---- the system's calls ----

if sys.platform == "linux":
    _libc = ctypes.CDLL(None, use_errno=True)


def _call(name: str, *args: Any) -> int:
    result = getattr(_libc, name)(*args)
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
    return result


def prctl(option: int, value: int = 0, more: Any = 0) -> None:
    """Raises OSError."""
    _call("prctl", option, ctypes.c_ulong(value), more, 0, 0)


# ---- namespaces ----

_NEW = {"NS": 0x20000, "UTS": 0x4000000, "IPC": 0x8000000, "USER": 0x10000000, "PID": 0x20000000, "NET": 0x40000000}
_BIND, _REC, _PRIVATE, _READ_ONLY, _NOSUID, _NODEV, _NOEXEC, _REMOUNT = 4096, 16384, 1 << 18, 1, 2, 4, 8, 32
_KEPT = _NOSUID | _NODEV | _NOEXEC | 1024 | 2048  # flags of a mount that only its owner may take off
_DETACH, _PR_SET_PDEATHSIG, _KILL = 2, 1, 9
_SET_ATTRIBUTES, _HERE, _RECURSIVE = 442, -100, 0x8000  # mount_setattr


def _mount(source: str, target: str, flags: int, kind: str | None = None, data: str = "") -> None:
    kind_data = (kind.encode() if kind else None), ctypes.c_ulong(flags), data.encode()
    _call("mount", os.fsencode(source), os.fsencode(target), *kind_data)


def enter(scratch: str, files: Sequence[str]) -> None:
    """Go on as the first process of namespaces in which nothing exists but `files`, read-only, and `scratch`; the
    process that called waits for its end. Raises OSError.
    """
    user, group = os.geteuid(), os.getegid()
    _call("unshare", sum(_NEW.values()))
    for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
        Path(f"/proc/self/{name}").write_text(text, encoding="ascii")
    if child := os.fork():
        os.closerange(3, 1 << 16)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        os._exit(status if status >= 0 else 128 - status)
    prctl(_PR_SET_PDEATHSIG, _KILL)
    root = os.path.join(scratch, ".root")
    os.mkdir(root)
    _mount("none", "/", _REC | _PRIVATE)
    _mount("none", root, _NOSUID | _NODEV, "tmpfs", "mode=755,size=1m")
    for name in (*files, *_DEVICES, scratch):
        for place in {name, os.path.realpath(name)}:
            if not os.path.lexists(root + place):  # else it lies in a folder that is there already
                _show(os.path.realpath(name), root + place, writable=name == scratch, device=name in _DEVICES)
    os.makedirs(root + "/proc")
    _mount("none", root + "/proc", _READ_ONLY | _NOSUID | _NODEV | _NOEXEC, "proc")
    os.symlink("/proc/self/fd", root + "/dev/fd")
    _mount("none", root, _BIND | _REMOUNT | _READ_ONLY | _NOSUID | _NODEV)
    os.chdir(root)
    _call("syscall", {"x86_64": 155, "aarch64": 41}[platform.machine()], b".", b".")  # pivot_root
    _call("umount2", b".", _DETACH)
    os.chdir(scratch)
    os.rmdir(".root")


def _show(source: str, place: str, *, writable: bool, device: bool) -> None:
    """Let `source` appear at `place`, with what is mounted in it; before Linux 5.12 without."""
    os.makedirs(os.path.dirname(place), exist_ok=True)
    os.mkdir(place) if os.path.isdir(source) else Path(place).touch()
    _mount(source, place, _BIND | (0 if writable else _REC))  # the scratch folder holds the new root
    flags = _NOSUID | (0 if device else _NODEV) | (0 if writable or device else _READ_ONLY)
    try:
        attributes = struct.pack("QQQQ", flags, 0, 0, 0)
        _call("syscall", _SET_ATTRIBUTES, _HERE, os.fsencode(place), _RECURSIVE, attributes, 32)
    except OSError as error:
        if error.errno != errno.ENOSYS:
            raise
        _call("umount2", os.fsencode(place), _DETACH)
        _mount(source, place, _BIND)
        _mount("none", place, _BIND | _REMOUNT | flags | os.statvfs(place).f_flag & _KEPT)


# ---- Landlock ----

_RULESET, _RULE, _RESTRICT = 444, 445, 446  # the same numbers on all architectures
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1, 2, 4, 8
_DEVICE_NODES, _REFER, _TRUNCATE = 1 << 6 | 1 << 11, 1 << 13, 1 << 14
_NO_TCP, _NO_SIGNAL_NO_ABSTRACT = 3, 3


def landlock(version: int, scratch: str, files: Sequence[str]) -> None:
    """Nothing but `files` can be read and nothing but `scratch` written from now on. Raises OSError."""
    rights = (1 << 13) - 1 | (_REFER if version >= 2 else 0) | (_TRUNCATE if version >= 3 else 0)
    scope = struct.pack("QQQ", rights, _NO_TCP if version >= 4 else 0, _NO_SIGNAL_NO_ABSTRACT if version >= 6 else 0)
    size = 24 if version >= 6 else 16 if version >= 4 else 8
    ruleset = _call("syscall", _RULESET, scope, ctypes.c_size_t(size), 0)
    try:
        rules = dict.fromkeys((*files, "/proc"), _EXECUTE | _READ_FILE | _READ_DIR)
        rules |= dict.fromkeys(_DEVICES, _READ_FILE | _WRITE_FILE) | {scratch: rights & ~_DEVICE_NODES}
        if str(ROOT.parent) not in rules:
            rules[str(ROOT.parent)] = _READ_DIR  # a rank that finds the package looks for its name there
        for name, allowed in rules.items():
            with contextlib.suppress(FileNotFoundError):
                at = os.open(name, os.O_PATH | os.O_CLOEXEC)
                allowed &= rights if os.path.isdir(name) else _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE & rights
                try:
                    _call("syscall", _RULE, ruleset, 1, struct.pack("=Qi", allowed, at), 0)
                finally:
                    os.close(at)
        _call("syscall", _RESTRICT, ruleset, 0)
    finally:
        os.close(ruleset)


# ---- seccomp ----

# numbers of calls that any process may make, and (in _RULED) of those that are looked at; all others are refused.
# Left out on purpose: System V and POSIX queues, keys, mounts, modules, clocks, tracing, io_uring, device nodes
_ALLOWED = {
    "x86_64": "0-15 17-28 32-40 43-48 51-52 54-55 57-61 63 73-100 102 104-128 130-132 137-138 140 143 145-152 157-158 "
    "160 162 186-199 201-204 213 217-219 221-226 228-233 235 237-239 247 252 257-258 260-271 273-278 280-293 295-296 "
    "299 306-307 309 315-316 318-319 322 324-332 334",
    "aarch64": "5-17 19-24 31-32 34-38 43-50 52-57 59 61-88 90-91 93-96 98-103 107-111 113-115 120-128 132-137 139 "
    "141 143-151 153-161 163-169 172-179 202 204-216 221-223 226-233 235-237 242-243 260 267 269 275-276 278-279 281 "
    "283-291 293",
}
_NEWER = "436-437 439 441 449-452 454-456"
_RULED = {  # x86_64, aarch64
    **{"ioctl": (16, 29), "socket": (41, 198), "connect": (42, 203), "bind": (49, 200), "listen": (50, 201)},
    **{"socketpair": (53, 199), "clone": (56, 220), "kill": (62, 129), "fcntl": (72, 25), "sigqueue": (129, 138)},
    **{"tkill": (200, 130), "tgkill": (234, 131), "tgsigqueue": (297, 240), "prlimit": (302, 261)},
    **{"setparam": (142, 118), "setscheduler": (144, 119), "setattr": (314, 274), "setpriority": (141, 140)},
}
_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_MINE = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451, 0x40049409)  # ioctl: sizes, blocking, close on exec, clone
_OWNER = (8, 10, 15)  # fcntl: F_SETOWN, F_SETSIG, F_SETOWN_EX send signals
_LOAD, _EQUAL, _OVER, _FROM, _BITS, _AND, _JUMP, _RETURN = 0x20, 0x15, 0x25, 0x35, 0x45, 0x54, 0x05, 0x06
_YES = 0x7FFF0000
_MOST_RANGES = 800  # of numbers of processes: three steps each, of 4096 that a filter may have
_Step = tuple[int, int, int, int]  # code, then to skip if it holds, if not, value


def _no(number: int) -> _Step:
    return _RETURN, 0, 0, 0x50000 | number


def _any_of(argument: int, values: Sequence[int], then: _Step, otherwise: _Step, mask: int = 0xFFFFFFFF) -> list[_Step]:
    tests = [(_EQUAL, len(values) - at, 0, value) for at, value in enumerate(values)]
    return [(_LOAD, 0, 0, 16 + 8 * argument), (_AND, 0, 0, mask), *tests, otherwise, then]


def other_processes() -> list[int]:
    """The numbers of all processes but this one, and of their threads: a signal to a thread is one to its process."""
    found: list[int] = []
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            with contextlib.suppress(OSError):  # it has ended
                found += map(int, os.listdir(f"/proc/{name}/task"))
    return sorted(found)


def _ranges(numbers: Iterable[int], most: int) -> list[list[int]]:
    """[first, last] of neighbours among ascending numbers; to have few enough, numbers between them are taken in."""
    listed, apart = list(numbers), 1
    while True:
        found: list[list[int]] = []
        for number in listed:
            if found and number - found[-1][1] <= apart:
                found[-1][1] = number
            else:
                found.append([number, number])
        if len(found) <= most:
            return found
        apart *= 2


def _filter(alone: bool, machine: str, own: int, others: Iterable[int] = ()) -> list[_Step]:
    """The program.  alone: in namespaces, where sockets and numbers of processes lead nowhere;  others: ascending
    numbers of processes that get no signal

    Numbers begin anew at some point, 32768 on many machines: a process with a larger one can be older. So those that
    are there now are named.
    """
    yes, no = (_RETURN, 0, 0, _YES), _no(errno.EPERM)
    older = _ranges((number for number in others if number > own), _MOST_RANGES)
    to_own = [(_LOAD, 0, 0, 16), (_EQUAL, 0, 1, 0), yes, (_FROM, 1, 0, own), no, (_OVER, 0, 1, 0x7FFFFFFF), no]
    to_own += [step for first, last in older for step in ((_FROM, 0, 2, first), (_OVER, 1, 0, last), no)]
    mine = _any_of(0, (0, own), yes, no)
    ruled = {
        "ioctl": _any_of(1, _MINE, yes, _no(errno.ENOTTY)),
        "fcntl": _any_of(1, _OWNER, no, yes),
        "clone": [(_LOAD, 0, 0, 16), (_BITS, 0, 1, 0x7E020000), no, yes],
        "socket": _any_of(0, (1,), yes, no) if alone else [no],
        "socketpair": _any_of(0, (1,), yes, no) if alone else _any_of(1, (1, 5), yes, no, 0xF),
        "connect bind listen": [yes if alone else no],
        "kill tgkill sigqueue tgsigqueue": [yes] if alone else [*to_own, yes],
        "tkill": [yes if alone else no],  # names a thread and not its process; libraries have done without it for long
        "prlimit setparam setscheduler setattr": [yes] if alone else mine,
        "setpriority": [yes] if alone else _any_of(1, (0, own), yes, no),
    }
    steps: list[_Step] = [
        (_LOAD, 0, 0, 4),
        (_EQUAL, 1, 0, _ARCH[machine]),
        (_RETURN, 0, 0, 0x80000000),
        (_LOAD, 0, 0, 0),
    ]
    for names, rule in ruled.items():
        numbers = [_RULED[name][machine == "aarch64"] for name in names.split()]
        steps += [(_EQUAL, len(numbers) - at, 0, number) for at, number in enumerate(numbers)]
        steps += [(_JUMP, 0, 0, len(rule)), *rule]
    for text in f"{_ALLOWED[machine]} {_NEWER}".split():
        first, _, last = text.partition("-")
        steps += [(_FROM, 0, 2, int(first)), (_OVER, 1, 0, int(last or first)), yes]
    return [*steps, (_FROM, 0, 1, 424), _no(errno.ENOSYS), no]  # of a newer call libraries try the older one next


def seccomp(alone: bool, others: Iterable[int] = ()) -> None:
    """Only the calls of `_filter` from now on. Raises OSError."""
    steps = _filter(alone, platform.machine(), os.getpid(), others)
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
    program = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", len(steps), ctypes.addressof(code)))
    prctl(22, 2, program)


# ---- all of them ----


def close(walls: Mapping[str, Any], scratch: str, files: Sequence[str]) -> None:
    """The walls that one process can build around itself, and no rights of a superuser. Raises OSError."""
    others = other_processes() if walls["seccomp"] and not walls["namespaces"] else []  # Landlock would hide them
    prctl(38, 1)  # no new privileges
    _call("capset", struct.pack("Ii", 0x20080522, 0), bytes(24))
    if walls["landlock"]:
        landlock(walls["landlock"], scratch, files)
    if walls["seccomp"]:
        seccomp(walls["namespaces"], others)


def _holds(scratch: str, build: Callable[[], None]) -> bool:
    """Whether it can be built, tried in a process of its own."""
    pid = os.fork()
    if pid == 0:
        with contextlib.suppress(BaseException):
            build()
            with open(f"{scratch}/tried", "w", encoding="ascii"):
                os._exit(0)
        os._exit(1)
    return os.waitpid(pid, 0)[1] == 0


def find(scratch: str, files: Sequence[str]) -> dict[str, Any]:
    """What this machine has: {"namespaces", "landlock", "seccomp"}; to be called where there are no threads."""
    if sys.platform != "linux":
        return {"namespaces": False, "landlock": 0, "seccomp": False}
    os.chdir(scratch)
    known = platform.machine() in _ARCH
    version = max(0, _libc.syscall(_RULESET, None, 0, 1))
    found = {"namespaces": False, "landlock": version, "seccomp": known}

    def all_of(walls: Mapping[str, Any]) -> None:
        if walls["namespaces"]:
            enter(scratch, files)
        close(walls, scratch, files)

    walls = [found | {"namespaces": True}] if known else []
    for tried in (*walls, found, found | {"seccomp": False}, found | {"seccomp": False, "landlock": 0}):
        if _holds(scratch, lambda tried=tried: all_of(tried)):
            return tried
        with contextlib.suppress(OSError):
            os.rmdir(f"{scratch}/.root")
    return found | {"seccomp": False, "landlock": 0}


def is_open(walls: Mapping[str, Any]) -> bool:
    """Whether a program could read files or use the network, as far as `walls` keep it."""
    alone, version, calls = walls["namespaces"], walls["landlock"], walls["seccomp"]
    return not (alone or (version >= 1 and calls))


def told(walls: Mapping[str, Any]) -> str:
    """What the walls keep a submission from, and what not, in a line."""
    alone, version, calls = walls["namespaces"], walls["landlock"], walls["seccomp"]
    kept = {
        "see which programs run": alone,
        "read your files": alone or version >= 1,
        "write your files": alone or version >= 1,
        "send over TCP": alone or calls or version >= 4,
        "send over UDP, DNS and the sockets of agents": alone or calls,
        "send signals to other programs": alone or calls or version >= 6,
    }
    names = [*(["namespaces"] if alone else []), *([f"Landlock {version}"] if version else [])]
    by = ", ".join([*names, *(["seccomp"] if calls else [])]) or "limits of time and memory alone"
    open_ways = [way for way, is_kept in kept.items() if not is_kept]
    if open_ways == ["see which programs run"]:
        return (
            f"protection: {by}: a submission can see which programs run, read and write its own folder, send nothing."
        )
    if not open_ways:
        return f"protection: {by}: a submission can read and write its own scratch folder alone, and send nothing."
    return f"PROTECTION IS INCOMPLETE on this machine ({by}): a submission can {', '.join(open_ways)}."


def main() -> None:
    """Start what `command` says."""
    told = json.loads(sys.argv[1])
    sys.path[:] = told["path"]
    if told["module"] == "":
        json.dump(find(*told["args"]), sys.stdout)
        return
    if told.get("walls", {}).get("namespaces"):
        enter(*told["enter"])
    sys.argv[1:] = told["args"]
    name = told["module"].partition(".")[0]
    spec = importlib.util.spec_from_file_location(name, ROOT / "__init__.py", submodule_search_locations=[str(ROOT)])
    assert spec is not None and spec.loader is not None
    sys.modules[name] = package = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(package)
    runpy.run_module(told["module"], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
