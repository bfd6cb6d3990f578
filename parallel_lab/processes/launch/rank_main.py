"""The first lines of a rank's process: tie its life to the launcher's, then run the user's script.

    python .../rank_main.py script.py args        ... -m module args        ... --cell NAME FILE

Run as a file, with nothing of the package imported before the script asks for it: a script that never calls `init` runs
as plain as under python. Ways to end with the launcher: the parent-death signal, which also ends a stopped
process, and a thread that sees the end of the life pipe. Without that signal the thread looks after the parent, too: a
process that the launcher's has forked may hold a copy of the pipe.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import linecache
import os
import runpy
import select
import signal
import sys
import threading
from pathlib import Path
from types import ModuleType, TracebackType

VARIABLE = "PARALLEL_LAB_WORLD"  # processes/shm/attach.py says what it holds; not imported from there, see above
PR_SET_PDEATHSIG = 1  # linux/prctl.h
LOOK_S = 0.5
AGAIN_S = 0.01
asked_to_end: list[bool] = []  # holds something after Ctrl-C


def take_place() -> None:
    """Mark the place in the environment as this process's own, and end when the launcher does."""
    place = json.loads(os.environ.get(VARIABLE) or "{}")
    if not place:  # under mpirun, which looks after its processes; their output comes through a pipe of their own
        folder, names = os.environ.get("PARALLEL_LAB_OUTPUT"), ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK")
        ranks = [os.environ[name] for name in names if name in os.environ]
        if folder and ranks:
            pipe = os.open(os.path.join(folder, f"rank.{ranks[0]}"), os.O_WRONLY)
            os.dup2(pipe, 1)
            os.dup2(pipe, 2)
            os.close(pipe)
        return
    place["pid"] = os.getpid()
    os.environ[VARIABLE] = json.dumps(place)
    for descriptor in (place["block"], place["life"]):
        os.set_inheritable(descriptor, False)
    if not place["parent"]:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)

    def watch() -> None:
        # nothing is ever sent: readable means that the launcher is gone, also if that was before the call above
        while not select.select([place["life"]], [], [], LOOK_S if place["parent"] else None)[0]:
            if os.getppid() != place["parent"]:
                break
        os.killpg(0, signal.SIGKILL)  # with what the script has started: this process leads its group

    threading.Thread(target=watch, daemon=True, name="life-pipe").start()
    if os.environ.get("PARALLEL_LAB_CORES"):
        os.sched_setaffinity(0, {int(core) for core in os.environ["PARALLEL_LAB_CORES"].split(",")})


def note_interrupt(number: int, frame: object) -> None:
    """Ctrl-C, which the launcher passes on and tells of itself. A script that a collective has raised it in already may
    be cleaning up, and is not interrupted again.
    """
    asked_to_end.append(True)
    if not getattr(run_interrupted(), "raised_here", False):
        signal.default_int_handler(number, frame)


def run_interrupted() -> type[BaseException] | None:
    """What collectives raise for Ctrl-C, if the script has any."""
    return getattr(sys.modules.get("parallel_lab.processes.faults"), "RunInterrupted", None)


def unraisablehook(lost: sys.UnraisableHookArgs) -> None:
    """A Ctrl-C raised where Python lets nothing out (a finalizer, a callback of the import system) is raised again."""
    if asked_to_end and issubclass(lost.exc_type, KeyboardInterrupt):
        if (error := run_interrupted()) is not None:
            error.raised_here = False  # it has come to nobody
        threading.Timer(AGAIN_S, os.kill, (os.getpid(), signal.SIGINT)).start()  # not here: it would be lost, too
    else:
        sys.__unraisablehook__(lost)


def listen_to_interrupts() -> None:
    """From here on Ctrl-C is raised; what came since the process was born, blocked, is raised here."""
    sys.unraisablehook = unraisablehook
    signal.signal(signal.SIGINT, note_interrupt)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def tell_peers(error: BaseException) -> bool:
    """Let every rank know that this one ends with `error`; returns whether it only follows from another rank's."""
    explain(error)
    from parallel_lab.processes.shm.attach import note_uncaught

    return note_uncaught(error)


def as_mindspore() -> bool:
    """Whether `import mindspore` finds this package, also if the script has not come to it."""
    facade = str(Path(__file__).resolve().parents[2] / "mindspore" / "_path")
    return facade in map(os.path.realpath, sys.path)


def explain(error: BaseException) -> None:
    """Add what the script should have said, where that is known, to the error."""
    package = str(Path(__file__).resolve().parents[3])
    if package not in sys.path:
        sys.path.append(package)
    if as_mindspore() and isinstance(error, Exception):  # an interrupt needs no notes, and has no time for imports
        importlib.import_module("mindspore")  # whose hook knows its scripts, if the script has not come to it
        if hasattr(sys.excepthook, "explain"):
            sys.excepthook.explain(error)
    cell = '"%%ranks"' in os.environ.get(VARIABLE, "")
    missing = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    if missing == "mindspore" and not as_mindspore():
        where = "in the line of %%ranks" if cell else "before the script"
        error.add_note(f"With --as-mindspore, {where}, `import mindspore` finds parallel_lab instead")
    if isinstance(error, EOFError) and "reading a line" in str(error):
        error.add_note("A rank has no keyboard: give it values as arguments, in the environment or in a file")
    if type(error) is NameError and cell:
        own = "The cell runs in processes of its own, which see none of the notebook's variables"
        error.add_note(f"{own}: define it in this cell, or import it")


def comes_from_interrupt(error: BaseException | None) -> bool:
    """Whether it is a Ctrl-C, or what Python made of one: it wraps errors raised while it sets up a class."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__
    return error is not None


def excepthook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Tell the peers, then print; in one line what only follows from another rank's error. About a Ctrl-C the launcher
    has told everybody, and what it has cut off may be the import of what would be needed here.
    """
    if asked_to_end and (isinstance(error, ImportError) or comes_from_interrupt(error)):
        return
    follows = tell_peers(error)
    from parallel_lab.processes.faults import print_error

    print_error(error, trace, follows)


def end_by(error: BaseException) -> int:
    """Let the excepthook of the day see what nobody caught, without our own frames; the exit code."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename in (__file__, "<frozen runpy>"):
        trace = trace.tb_next
    sys.excepthook(type(error), error, trace)
    return 128 + signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1


def run_script(path: str) -> None:
    """The file as `__main__`."""
    with open(path, "rb") as file:
        source = file.read()
    run_source(source, path, {"__file__": path})


def run_cell(name: str, path: str) -> None:
    """A notebook's cell as `__main__`, under its name in tracebacks. path: of a file, or "fd:7", a descriptor."""
    if path.startswith("fd:"):
        descriptor = int(path[3:])
        source = os.pread(descriptor, os.fstat(descriptor).st_size, 0)  # all ranks share the file, and its position
        os.close(descriptor)
    else:
        source = Path(path).read_bytes()
    text = source.decode()
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    run_source(source, name, {})


def run_source(source: bytes, name: str, names: dict[str, str]) -> None:
    """Run `source` as the module `__main__` that it stays until the end."""
    module = ModuleType("__main__")
    module.__dict__.update(names, __builtins__=__builtins__, __cached__=None)
    sys.modules["__main__"] = module
    exec(compile(source, name, "exec", dont_inherit=True), module.__dict__)


def search_in(folder: str, *, first: bool = True) -> None:
    """Search modules in `folder` where Python put the folder of this file (with -P or PYTHONSAFEPATH it puts none), or
    behind what is installed.
    """
    if sys.path and os.path.realpath(sys.path[0]) == os.path.dirname(os.path.realpath(__file__)):
        del sys.path[0]
        sys.path.insert(0 if first else len(sys.path), folder)


def main() -> None:
    """Run what the command line names."""
    arguments = sys.argv[1:]
    take_place()
    sys.excepthook = excepthook
    if os.environ.get(VARIABLE):  # under mpirun nobody has blocked it
        listen_to_interrupts()
    if arguments[0] == "-m":
        sys.argv = arguments[1:]
        search_in(os.getcwd())
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        return
    if arguments[0] == "--cell":
        sys.argv = arguments[1:2]
        search_in(os.getcwd(), first=False)
        run_cell(arguments[1], arguments[2])
        return
    sys.argv = arguments
    search_in(os.path.dirname(os.path.abspath(arguments[0])))
    run_script(arguments[0])


if __name__ == "__main__":
    try:
        main()
    except SystemExit as ended:
        if ended.code not in (None, 0):
            # a test runner keeps the exception of the test that failed here
            tell_peers(getattr(sys, "last_value", None) or ended)
        raise
    except BaseException as error:
        raise SystemExit(end_by(error)) from None
    finally:
        # a second Ctrl-C must not break into what Python does at the end; the launcher ends a rank that does not end
        signal.signal(signal.SIGINT, signal.SIG_IGN)
