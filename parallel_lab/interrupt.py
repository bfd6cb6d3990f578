"""Ctrl-C while the command is still loading.

The entry point imports the package before any line of `cli.main` runs, and numpy takes a moment: a KeyboardInterrupt there would be a traceback
through imports that no `try` of ours is around. So the first line of the package asks for a quiet end, and `main`, which tells it better, takes over.
Outside the command (a notebook, a script, a worker) nothing is touched.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from types import FrameType

__all__ = ["EXIT_CODE", "TEXT", "end_quietly_while_loading", "loaded"]

EXIT_CODE = 128 + signal.SIGINT  # the shell's convention
TEXT = "parallel-lab: interrupted"


def _is_the_command() -> bool:
    """Whether this process was started as `parallel-lab` or `python -m parallel_lab`.

    sys.orig_argv, not sys.argv: a worker gets the arguments of the process that started it.
    """
    words = sys.orig_argv
    if not 0 < len(sys.argv) < len(words):
        return False
    program = words[-len(sys.argv)]
    if sys.argv[0] == "-m":  # what it is while the package of the module is imported
        return program == "parallel_lab"
    return program == sys.argv[0] and os.path.basename(program).removesuffix(".exe") == "parallel-lab"


def _end(number: int, frame: FrameType | None) -> None:
    """Nothing runs yet that would have to be ended, and an exception could be swallowed by the import it meets."""
    os.write(2, f"{TEXT}\n".encode())
    os._exit(EXIT_CODE)


def end_quietly_while_loading() -> None:
    """From now on Ctrl-C ends the process with one line, if it is the command; until `loaded()`."""
    if not (_is_the_command() and threading.current_thread() is threading.main_thread()):
        return
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # a shell that started us in the background has it ignored
        signal.signal(signal.SIGINT, _end)


def loaded() -> None:
    """Ctrl-C raises KeyboardInterrupt again."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)
