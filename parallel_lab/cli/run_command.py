"""`parallel-lab run`, `msrun` and `as-mindspore`: scripts on real ranks.

parallel-lab run -n 8 train.py --epochs 3          one process per rank, one console, log_output/1/rank.K/stdout
parallel-lab run -n 8 --as-mindspore train.py      the same; `import mindspore` is parallel_lab.mindspore
parallel-lab run -n 2 -m pytest test_train.py      a module instead of a script
parallel-lab msrun --worker_num 8 --local_worker_num 8 --join True train.py
PYTHONPATH=$(parallel-lab as-mindspore) python train.py

Launchers are imported when a command runs: `parallel-lab doctor` works where their packages are missing.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from pathlib import Path
from typing import Any

from ..base.errors import WorldArgumentError
from ..base.files import check_writable
from ..base.settings.checks import MAX_DEVICES
from ..processes.world.world import TIMEOUT_S
from .options import Option, option, seconds, subcommand, true_or_false, whole_number

_RUN_EXAMPLES = """\
examples:
  parallel-lab run -n 8 train.py --epochs 3     options of the script come after it
  parallel-lab run -n 4 --as-mindspore train.py
  parallel-lab run -n 2 -m pytest -s test_train.py
  parallel-lab run -n 8 --events run.json train.py   then open run.json in ui.perfetto.dev

exit code: 0, or that of the rank that failed first (128 + number if a signal ended it); 130 after Ctrl-C
"""


def launch_options(timeout_s: float, *, required: bool = False) -> tuple[Option, ...]:
    """What `parallel-lab run` and `%%ranks` both take.  required: the number of ranks"""
    ranks = whole_number(1, MAX_DEVICES)
    waits = f"seconds a collective waits for a missing rank (default {timeout_s:g})"
    backend = {"choices": ("shared_memory", "mpi"), "default": "shared_memory"}
    return (
        option("-n", "--np", dest="world_size", type=ranks, required=required, metavar="N", help="ranks"),
        option("--as-mindspore", action="store_true", help="`import mindspore` finds parallel_lab.mindspore"),
        option("--as-hyper-parallel", action="store_true", help="the same, and `import hyper_parallel`"),
        option("--backend", **backend, help="mpi: through mpirun (default shared_memory)"),
        option("--timeout", type=seconds, default=timeout_s, metavar="S", help=waits),
        option("--events", metavar="FILE", help="record the communication of all ranks into FILE (a Chrome trace)"),
        option("--no-tag", action="store_true", help="print lines as they are, without their rank"),
        option("--fold", action="store_true", help="equal lines of several ranks become one, tagged [0-7]"),
    )


def launched(args: argparse.Namespace, console: Any, argv: tuple[str, ...] = (), **more: Any) -> Any:
    """The outcome of a launch with the values of `launch_options`; closes the console.  more: fields of `LaunchSpec`"""
    from ..processes.launch import LaunchSpec, launch, launch_over_mpi

    more["events"] = os.path.abspath(args.events) if args.events else None
    more |= {"as_mindspore": args.as_mindspore, "as_hyper_parallel": args.as_hyper_parallel}
    spec = LaunchSpec(argv, args.world_size, timeout_s=args.timeout, **more)
    try:
        if args.events:
            with contextlib.suppress(OSError):  # the check says what is wrong
                Path(args.events).parent.mkdir(parents=True, exist_ok=True)
            check_writable(args.events)  # before the work, not after it
        return (launch_over_mpi if args.backend == "mpi" else launch)(spec, console)
    finally:
        console.close()


def _rest(what: str) -> Option:
    return option("command", nargs=argparse.REMAINDER, metavar="script.py", help=f"{what} and its arguments")


def _msrun_options() -> tuple[Option, ...]:
    workers, node = whole_number(1, MAX_DEVICES), whole_number(-1, MAX_DEVICES)
    level, simulated = whole_number(-1, 3), whole_number(-1, MAX_DEVICES - 1)
    port, wait_s = whole_number(1024, 65535), whole_number(1, 10**6)
    rows = (  # name, type, default, metavar, help
        ("worker_num", workers, 8, "N", "total number of workers (default 8)"),
        ("local_worker_num", workers, 8, "N", "workers on this machine, which are all of them (default 8)"),
        ("master_addr", str, "127.0.0.1", "HOST", "an address of this machine (default 127.0.0.1)"),
        ("master_port", port, 8118, "PORT", "1024 to 65535 (default 8118); not used"),
        ("node_rank", node, -1, "K", "accepted; no effect with all workers on one machine"),
        ("log_dir", str, "", "DIR", "folder for worker_K.log and scheduler.log (default: this one)"),
        ("join", true_or_false, False, "True", "wait for the workers, and report what went wrong (default False)"),
        ("cluster_time_out", wait_s, 600, "S", "seconds for all workers to meet (default 600)"),
        ("bind_core", true_or_false, False, "True", "give each worker its own cores (default False)"),
        ("tail_worker_log", str, "-1", "K", "workers shown on the console with --join True: 0,2 or -1 for all"),
        ("worker_log_name", str, "", "NAME", "log files NAME_K.log instead of worker_K.log"),
        ("rank_table_file", str, "", "FILE", "a rank table to check the number of workers against"),
        ("sim_level", level, -1, "L", "not available yet"),
        ("sim_rank_id", simulated, -1, "K", "not available yet"),
    )
    mindspore = "`import mindspore` finds parallel_lab.mindspore (not an option of msrun)"
    return (
        *(option(f"--{name}", type=kind, default=value, metavar=m, help=text) for name, kind, value, m, text in rows),
        option("--as-mindspore", action="store_true", help=mindspore),
    )


def add_parser(subparsers: Any) -> None:
    """Add the three to the command's subcommands."""
    logs = "log files DIR/1/rank.K/stdout, as mpirun's (default log_output)"
    options = (
        *launch_options(TIMEOUT_S),
        option("--log-dir", default="log_output", metavar="DIR", help=logs),
        option("-m", dest="module", action="store_true", help="what follows is a module and its arguments"),
        _rest("the script (or module)"),
    )
    subcommand(
        subparsers,
        "run",
        _run,
        options,
        help="run a script on N ranks, one process each",
        description="Starts one process per rank, prints their output with the rank before each line, and ends all of "
        "them when one fails.",
        usage="parallel-lab run -n N [options] (script.py | -m module) [arguments of the script ...]",
        epilog=_RUN_EXAMPLES,
    )
    subcommand(
        subparsers,
        "msrun",
        _msrun,
        (*_msrun_options(), _rest("the script")),
        help="run a script with the arguments of MindSpore's launcher msrun",
        description="Takes msrun's arguments. All workers run on this machine.",
        usage="parallel-lab msrun [options] script.py [arguments of the script ...]",
    )
    subcommand(
        subparsers,
        "as-mindspore",
        _as_mindspore,
        (),
        help="print the folder that makes `import mindspore` find parallel_lab",
        description="With this folder on PYTHONPATH, `import mindspore` finds parallel_lab.mindspore in any Python "
        "process: python, pytest, mpirun.",
        epilog="example:\n  PYTHONPATH=$(parallel-lab as-mindspore) python train.py\n",
    )


def _script(command: list[str], where: str) -> tuple[str, ...]:
    if not command:
        raise WorldArgumentError("no script was named", where=where, allowed=f"{where} ... script.py [arguments]")
    if command[0].startswith("-"):
        raise WorldArgumentError(f"{command[0]!r} is not an option", where=where, hint=f"{where} --help lists them")
    if not Path(command[0]).is_file():
        raise WorldArgumentError(f"there is no file {command[0]!r} in {os.getcwd()}", where=where)
    return tuple(command)


def _run(args: argparse.Namespace) -> int:
    from ..processes.launch import Console, mpirun_logs
    from ..processes.launch.processes import end_by_signal, ending_on_signals

    where = "parallel-lab run"
    if args.world_size is None:
        late = any(word.startswith(("-n", "--np")) for word in args.command)
        hint = "Options stand before the script; what comes after it is the script's" if late else ""
        example = f"{where} -n 8 script.py"
        raise WorldArgumentError("the number of ranks is missing", where=where, allowed=example, hint=hint)
    if args.module:
        if not args.command:
            raise WorldArgumentError("no module was named", where=where, allowed=f"{where} -n N -m module [arguments]")
        argv = ("-m", *args.command)
    else:
        argv = _script(args.command, where)
    console = Console(
        args.world_size,
        logs=mpirun_logs(Path(args.log_dir), args.world_size),
        tag=not args.no_tag,
        fold=args.fold,
        colour=sys.stdout.isatty() and not os.environ.get("NO_COLOR"),
    )
    with ending_on_signals(end_by_signal):
        return launched(args, console, argv).exit_code


def _msrun(args: argparse.Namespace) -> int:
    from ..processes.launch.msrun import run_workers

    return run_workers(args, _script(args.command, "parallel-lab msrun"))


def _as_mindspore(_: argparse.Namespace) -> int:
    from ..processes.launch import as_mindspore_folder

    print(as_mindspore_folder())
    return 0
