"""A script of ours that runs a stranger's program, behind the walls that submissions have (`confine.py`, `walls.py`).

    said = run_confined(script, ["program.py"], {"program.py": text}, Limits(time_s=60), where="explain")

Three processes. The notebook's asks and waits. A supervisor (`supervise`, whose standard input the notebook keeps
open) inherits all that the program starts, looks at time, memory and files, and ends everything when one of them
is too much, or when its input ends: with the notebook. In the third, the walls stand before the script begins.
"""

from __future__ import annotations

import contextlib
import json
import os
import runpy
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...base.errors import WorldError, shorten
from ...processes.without import BLAS_VARIABLES
from . import walls
from .confine import Limits, Watch, confine, end_all, guard, remove

MOST_BYTES = 16 << 20  # that a script prints
LATE_S = 20.0  # for a supervisor to begin and to end


def found_walls(scratch: str, files: Sequence[str], where: str) -> dict[str, Any]:
    """What `walls.find` tells, in a process without threads. Raises WorldError."""
    command, pipe = walls.command("", scratch, files), subprocess.PIPE
    try:
        done = subprocess.run(command, env=walls.environment(), cwd=scratch, stdout=pipe, check=True, timeout=60)
        return json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise WorldError(f"what protects here cannot be found out: {error}", where=where) from error


def run_confined(script: str, argv: Sequence[str], files: Mapping[str, str], limits: Limits, where: str) -> str:
    """What a script prints that runs as a submission does: in a folder of its own, which alone it can write; it can
    read that and what is installed; without network; within limits.

    script  its text;  argv: its arguments;  files: {name: text} in its folder

    Raises WorldError: this machine has no walls, or the program was ended, with the reason.
    """
    folder = tempfile.mkdtemp(prefix="parallel-lab-confined-")
    readable = walls.readable(walls.installed(sys.path))
    try:
        found = found_walls(folder, readable, where)
        if walls.is_open(found):
            hint = "Start the program yourself under PyTorch's DebugMode, and paste its log"
            raise WorldError(walls.told(found).partition(": a submission")[0], where=where, hint=hint)
        task = {"script": script, "argv": [*argv], "files": {**files}, "limits": limits.to_dict()}
        told = _ask({**task, "walls": found, "readable": readable, "folder": folder}, limits)
    finally:
        remove(Path(folder))
    if told["reason"]:
        raise WorldError(f"the program was {told['reason']}", where=where)
    return told["said"]


def _ask(task: dict[str, Any], limits: Limits) -> dict[str, Any]:
    """What the supervisor answers."""
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        walls.command(__name__), stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, env=walls.environment()
    )
    assert process.stdin is not None and process.stdout is not None
    late = threading.Timer(limits.time_s + LATE_S, process.kill)
    late.start()
    try:
        process.stdin.write(json.dumps(task).encode() + b"\n")
        process.stdin.flush()
        return json.loads(process.stdout.read())
    except (OSError, ValueError) as error:
        return {"reason": f"not watched any more: {shorten(str(error))}", "said": ""}
    finally:  # also when the notebook is interrupted: the supervisor ends with its input
        late.cancel()
        for stream in (process.stdin, process.stdout):
            with contextlib.suppress(OSError):
                stream.close()
        process.wait()


# ---- the supervisor ----


def supervise() -> None:
    """Carry out the task in the first line of standard input, and end with that."""
    guard()
    task = json.loads(sys.stdin.buffer.readline())

    def with_the_notebook() -> None:
        sys.stdin.buffer.read()
        end_all(os.getpid())
        remove(Path(task["folder"]))
        os._exit(1)

    threading.Thread(target=with_the_notebook, daemon=True).start()
    limits, scratch = Limits(**task["limits"]), Path(task["folder"]) / "own"
    scratch.mkdir()
    for name, text in task["files"].items():
        (scratch / name).write_text(text, encoding="utf-8", errors="replace")
    few = {**dict.fromkeys(BLAS_VARIABLES, "1"), **dict.fromkeys(("HOME", "TMPDIR"), str(scratch))}
    few |= {"PYTHONDONTWRITEBYTECODE": "1", "USER": "learner", "LOGNAME": "learner"}
    watch = Watch(limits, scratch)
    with watch.ending:
        command = walls.command(
            f"{__package__}.confined", "child", walls=task["walls"], enter=(str(scratch), task["readable"])
        )
        process = subprocess.Popen(
            command,
            cwd=scratch,
            env=walls.environment(few),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    assert process.stdin is not None and process.stdout is not None
    with contextlib.suppress(OSError):  # it has ended already
        process.stdin.write(json.dumps({**task, "scratch": str(scratch)}).encode())
        process.stdin.close()
    said = process.stdout.read(MOST_BYTES)
    end = time.monotonic() + watch.left_s
    while process.poll() is None and not watch.reason and time.monotonic() < end and not process.stdout.read(1 << 16):
        time.sleep(0.01)  # it has closed what it prints to, or prints more than is read
    watch.close()
    end_all(os.getpid())
    answer = json.dumps({"said": said.decode(errors="replace"), "reason": watch.reason})
    sys.stdout.write(answer)
    sys.stdout.flush()
    os._exit(0)


def _child() -> None:
    """Build the walls, then run the script."""
    task = json.loads(sys.stdin.buffer.read())
    confine(Limits(**task["limits"]), task["scratch"], task["walls"], task["readable"])
    script = Path(task["scratch"], "script.py")
    script.write_text(task["script"], encoding="utf-8")
    sys.argv = [script.name, *task["argv"]]
    runpy.run_path(str(script), run_name="__main__")


if __name__ == "__main__":
    _child() if sys.argv[1:] == ["child"] else supervise()
