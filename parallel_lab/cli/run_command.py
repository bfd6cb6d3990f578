"""`parallel-lab run`, `msrun` and `as-mindspore`: scripts on real ranks.

parallel-lab run -n 8 train.py --epochs 3          one process per rank, one console, log_output/1/rank.K/stdout
parallel-lab run -n 8 --as-mindspore train.py      the same; `import mindspore` is parallel_lab.mindspore
parallel-lab run -n 2 -m pytest test_train.py      a module instead of a script
parallel-lab msrun --worker_num 8 --local_worker_num 8 --join True train.py
PYTHONPATH=$(parallel-lab as-mindspore) python train.py

The launchers are imported when a command runs: `parallel-lab doctor` must also work where a package that they need is
missing.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..base.errors import WorldArgumentError
from ..base.settings.checks import MAX_DEVICES
from ..processes.world.world import TIMEOUT_S

_RUN_EXAMPLES = """\
examples:
  parallel-lab run -n 8 train.py --epochs 3     options of the script come after it
  parallel-lab run -n 4 --as-mindspore train.py
  parallel-lab run -n 2 -m pytest -s test_train.py
  parallel-lab run -n 8 --events run.json train.py   then open run.json in ui.perfetto.dev

exit code: 0, or that of the rank that failed first (128 + number if a signal ended it); 130 after Ctrl-C
"""


def add_parser(subparsers: Any) -> None:
    """Add the three to the command's subcommands."""
    raw = argparse.RawDescriptionHelpFormatter
    run = subparsers.add_parser(
        "run",
        help="run a script on N ranks, one process each",
        description="Starts one process per rank, prints their output with the rank before each line, and ends all of "
        "them when one fails.",
        usage="parallel-lab run -n N [options] (script.py | -m module) [arguments of the script ...]",
        epilog=_RUN_EXAMPLES,
        formatter_class=raw,
    )
    run.add_argument("-n", "--np", dest="world_size", type=_whole_number(1, MAX_DEVICES), metavar="N", help="ranks")
    run.add_argument(
        "--log-dir",
        default="log_output",
        metavar="DIR",
        help="log files DIR/1/rank.K/stdout, as mpirun's (default log_output)",
    )
    run.add_argument(
        "--backend",
        choices=("shared_memory", "mpi"),
        default="shared_memory",
        help="mpi: through mpirun (default shared_memory)",
    )
    run.add_argument("--as-mindspore", action="store_true", help="`import mindspore` finds parallel_lab.mindspore")
    waits = f"seconds a collective waits for a missing rank (default {TIMEOUT_S:g})"
    run.add_argument("--timeout", type=_seconds, default=TIMEOUT_S, metavar="S", help=waits)
    run.add_argument(
        "--events", metavar="FILE", help="record the communication of all ranks into FILE (a Chrome trace)"
    )
    run.add_argument("--no-tag", action="store_true", help="print lines as they are, without their rank")
    run.add_argument("--fold", action="store_true", help="equal lines of several ranks become one, tagged [0-7]")
    run.add_argument("-m", dest="module", action="store_true", help="what follows is a module and its arguments")
    run.add_argument(
        "command", nargs=argparse.REMAINDER, metavar="script.py", help="the script (or module) and its arguments"
    )
    run.set_defaults(run=_run, parser=run)

    msrun = subparsers.add_parser(
        "msrun",
        help="run a script with the arguments of MindSpore's launcher msrun",
        description="Takes msrun's arguments. All workers run on this machine.",
        usage="parallel-lab msrun [options] script.py [arguments of the script ...]",
        formatter_class=raw,
    )
    _add_msrun_arguments(msrun)
    msrun.add_argument("command", nargs=argparse.REMAINDER, metavar="script.py", help="the script and its arguments")
    msrun.set_defaults(run=_msrun, parser=msrun)

    folder = subparsers.add_parser(
        "as-mindspore",
        help="print the folder that makes `import mindspore` find parallel_lab",
        description="With this folder on PYTHONPATH, `import mindspore` finds parallel_lab.mindspore in any Python "
        "process: python, pytest, mpirun.",
        epilog="example:\n  PYTHONPATH=$(parallel-lab as-mindspore) python train.py\n",
        formatter_class=raw,
    )
    folder.set_defaults(run=_as_mindspore, parser=folder)


def _add_msrun_arguments(parser: argparse.ArgumentParser) -> None:
    """msrun's options."""
    number, switch = _whole_number, _true_or_false
    parser.add_argument(
        "--worker_num", type=number(1, MAX_DEVICES), default=8, metavar="N", help="total number of workers (default 8)"
    )
    parser.add_argument(
        "--local_worker_num",
        type=number(1, MAX_DEVICES),
        default=8,
        metavar="N",
        help="workers on this machine, which are all of them (default 8)",
    )
    parser.add_argument(
        "--master_addr", default="127.0.0.1", metavar="HOST", help="an address of this machine (default 127.0.0.1)"
    )
    parser.add_argument(
        "--master_port",
        type=number(1024, 65535),
        default=8118,
        metavar="PORT",
        help="1024 to 65535 (default 8118); not used",
    )
    parser.add_argument(
        "--node_rank",
        type=number(-1, MAX_DEVICES),
        default=-1,
        metavar="K",
        help="accepted; no effect with all workers on one machine",
    )
    parser.add_argument(
        "--log_dir", default="", metavar="DIR", help="folder for worker_K.log and scheduler.log (default: this one)"
    )
    parser.add_argument(
        "--join",
        type=switch,
        default=False,
        metavar="True",
        help="wait for the workers, and report what went wrong (default False)",
    )
    parser.add_argument(
        "--cluster_time_out",
        type=number(1, 10**6),
        default=600,
        metavar="S",
        help="seconds for all workers to meet (default 600)",
    )
    parser.add_argument(
        "--bind_core",
        type=switch,
        default=False,
        metavar="True",
        help="give each worker its own cores (default False)",
    )
    parser.add_argument(
        "--tail_worker_log",
        default="-1",
        metavar="K",
        help="workers shown on the console with --join True: 0,2 or -1 for all",
    )
    parser.add_argument(
        "--worker_log_name", default="", metavar="NAME", help="log files NAME_K.log instead of worker_K.log"
    )
    parser.add_argument(
        "--rank_table_file", default="", metavar="FILE", help="a rank table to check the number of workers against"
    )
    parser.add_argument("--sim_level", type=number(-1, 3), default=-1, metavar="L", help="not available yet")
    parser.add_argument(
        "--sim_rank_id", type=number(-1, MAX_DEVICES - 1), default=-1, metavar="K", help="not available yet"
    )
    parser.add_argument(
        "--as-mindspore",
        action="store_true",
        help="`import mindspore` finds parallel_lab.mindspore (not an option of msrun)",
    )


def _whole_number(low: int, high: int) -> Callable[[str], int]:
    """A type for argparse: a whole number from `low` to `high`."""

    def parse(text: str) -> int:
        digits = text[1:] if text[:1] == "-" else text
        if not (digits.isascii() and digits.isdigit() and low <= int(text) <= high):
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {low} to {high}")
        return int(text)

    return parse


def _true_or_false(text: str) -> bool:
    if text not in ("True", "False", "true", "false"):
        raise argparse.ArgumentTypeError(f"{text!r} is neither True nor False")
    return text.lower() == "true"


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e6:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return value


def _script(command: list[str], where: str) -> tuple[str, ...]:
    if not command:
        raise WorldArgumentError("no script was named", where=where, allowed=f"{where} ... script.py [arguments]")
    if command[0].startswith("-"):
        raise WorldArgumentError(f"{command[0]!r} is not an option", where=where, hint=f"{where} --help lists them")
    if not Path(command[0]).is_file():
        raise WorldArgumentError(f"there is no file {command[0]!r} in {os.getcwd()}", where=where)
    return tuple(command)


def _run(args: argparse.Namespace) -> int:
    from ..processes.launch import Console, LaunchSpec, launch, launch_over_mpi, mpirun_logs
    from ..processes.launch.processes import ending_on_signals

    where = "parallel-lab run"
    if args.world_size is None:
        late = any(word.startswith(("-n", "--np")) for word in args.command)
        hint = "Options stand before the script; what comes after it is the script's" if late else ""
        raise WorldArgumentError(
            "the number of ranks is missing", where=where, allowed=f"{where} -n 8 script.py", hint=hint
        )
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
    events = os.path.abspath(args.events) if args.events else None
    spec = LaunchSpec(argv, args.world_size, timeout_s=args.timeout, as_mindspore=args.as_mindspore, events=events)
    try:
        with ending_on_signals():
            return (launch_over_mpi if args.backend == "mpi" else launch)(spec, console).exit_code
    finally:
        console.close()


def _msrun(args: argparse.Namespace) -> int:
    from ..processes.launch.msrun import run_workers

    return run_workers(args, _script(args.command, "parallel-lab msrun"))


def _as_mindspore(_: argparse.Namespace) -> int:
    from ..processes.launch import as_mindspore_folder

    print(as_mindspore_folder())
    return 0
