"""`parallel-lab msrun`: the arguments of MindSpore's launcher, on this machine.

    parallel-lab msrun --worker_num 8 --local_worker_num 8 --master_port 8118 --log_dir logs --join True train.py --epochs 3

Workers are the ranks of one launch (processes.py), with the environment that msrun gives them. Logs: `worker_K.log` per rank and `scheduler.log`,
where the launcher's own lines go, since it does here what a scheduler does there. Without `--join True` the command returns at once and the launch
goes on in a process of its own. Names, defaults and ranges: MindSpore, msrun Launching.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, TextIO

from ..errors import NotBuiltYet, WorldArgumentError, message
from ..run.cluster_env import check_host
from .console import Console
from .processes import LaunchSpec, ending_on_signals, launch

__all__ = ["add_arguments", "run_workers"]

WHERE = "parallel-lab msrun"
JOINED = "PARALLEL_LAB_MSRUN_DETACHED"  # set for the process that stays when the command returns


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """msrun's options."""
    number, switch = _whole_number, _true_or_false
    parser.add_argument("--worker_num", type=number(1, 4096), default=8, metavar="N", help="workers in all (default 8)")
    parser.add_argument("--local_worker_num", type=number(1, 4096), default=8, metavar="N", help="workers on this machine: all of them (default 8)")
    parser.add_argument("--master_addr", default="127.0.0.1", metavar="HOST", help="an address of this machine (default 127.0.0.1)")
    parser.add_argument("--master_port", type=number(1024, 65535), default=8118, metavar="PORT", help="1024 to 65535 (default 8118); nobody listens")
    parser.add_argument("--node_rank", type=number(-1, 4096), default=-1, metavar="K", help="with all workers on one machine: without effect")
    parser.add_argument("--log_dir", default="", metavar="DIR", help="folder for worker_K.log and scheduler.log (default: this one)")
    parser.add_argument("--join", type=switch, default=False, metavar="True", help="wait for the workers, and tell what went wrong (default False)")
    parser.add_argument("--cluster_time_out", type=number(1, 10**6), default=600, metavar="S", help="seconds for all workers to meet (default 600)")
    parser.add_argument("--bind_core", type=switch, default=False, metavar="True", help="give each worker cores of its own (default False)")
    parser.add_argument("--tail_worker_log", default="-1", metavar="K", help="workers shown on the console with --join True: 0,2 or -1 for all")
    parser.add_argument("--worker_log_name", default="", metavar="NAME", help="log files NAME_K.log instead of worker_K.log")
    parser.add_argument("--rank_table_file", default="", metavar="FILE", help="a rank table to check the number of workers against")
    parser.add_argument("--sim_level", type=number(-1, 3), default=-1, metavar="L", help="not built yet")
    parser.add_argument("--sim_rank_id", type=number(-1, 4095), default=-1, metavar="K", help="not built yet")
    parser.add_argument("--as-mindspore", action="store_true", help="`import mindspore` finds parallel_lab.mindspore (an option of ours)")


def _whole_number(low: int, high: int) -> Any:
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


def run_workers(args: argparse.Namespace, command: tuple[str, ...]) -> int:
    """Start the workers as `args` says; the exit code. Raises WorldArgumentError and NotBuiltYet for what cannot be done here."""
    _check(args)
    argv = ("-m", *command) if command[0] == "pytest" else command
    folder = Path(args.log_dir or ".")
    folder.mkdir(parents=True, exist_ok=True)
    if not args.join and not os.environ.get(JOINED):
        return _detach(folder, args.worker_num)
    shown = _shown_workers(args) if args.join else set()
    name = args.worker_log_name or "worker"
    with open(folder / "scheduler.log", "w", encoding="utf-8", buffering=1) as log:
        streams = _Both(log, sys.stdout) if args.join else log
        console = _WorkerConsole(args.worker_num, [folder / f"{name}_{rank}.log" for rank in range(args.worker_num)], streams, shown)
        streams.write(f"scheduler: {args.worker_num} workers are started: {' '.join(command)}\n")
        try:
            with ending_on_signals():
                outcome = launch(_spec(args, argv), console)
        finally:
            console.close()
        streams.write(f"scheduler: all workers have ended, exit code {outcome.exit_code}\n")
    return outcome.exit_code


def _spec(args: argparse.Namespace, argv: tuple[str, ...]) -> LaunchSpec:
    count = args.worker_num
    common = {
        "MS_WORKER_NUM": str(count),
        "MS_SCHED_HOST": args.master_addr,
        "MS_SCHED_PORT": str(args.master_port),
        "MS_TOPO_TIMEOUT": str(args.cluster_time_out),
        "MS_ROLE": "MS_WORKER",
    }
    own = tuple({"MS_NODE_ID": str(rank)} for rank in range(count))
    return LaunchSpec(
        argv,
        count,
        start_limit_s=args.cluster_time_out,
        as_mindspore=args.as_mindspore,
        launcher=WHERE,
        environment=common,
        rank_environments=own,
        cores=_cores(count) if args.bind_core else (),
    )


def _cores(count: int) -> tuple[tuple[int, ...], ...]:
    """The processors this process may use, evenly; with fewer of them than workers, several workers share one."""
    if not hasattr(os, "sched_getaffinity"):
        raise NotBuiltYet(message("--bind_core True: this system cannot bind processes to cores", where=WHERE))
    cores = sorted(os.sched_getaffinity(0))
    each = len(cores) // count
    return tuple(tuple(cores[each * r : each * (r + 1)]) if each else (cores[r % len(cores)],) for r in range(count))


def _check(args: argparse.Namespace) -> None:
    if args.sim_level != -1 or args.sim_rank_id != -1:
        hint = "parallel_lab.compile(net, ..., device_num=N) compiles for any number of devices without processes"
        raise NotBuiltYet(message("--sim_level and --sim_rank_id: simulated compilation is not built yet", where=WHERE, hint=hint))
    check_host(args.master_addr, "--master_addr")
    if args.local_worker_num > args.worker_num:
        what = f"--local_worker_num {args.local_worker_num} is more than --worker_num {args.worker_num}"
        raise WorldArgumentError(message(what, where=WHERE))
    if args.local_worker_num < args.worker_num:
        what = f"only {args.local_worker_num} of {args.worker_num} workers are to run here, and these ranks share the memory of one machine"
        hint = f"--local_worker_num {args.worker_num}; several hosts: mpirun -H host1:4,host2:4 python script.py"
        raise NotBuiltYet(message(what, where=WHERE, hint=hint))
    if args.rank_table_file:
        from ..run.rank_table import read_rank_table

        count = len(read_rank_table(args.rank_table_file).devices)
        if count != args.worker_num:
            raise WorldArgumentError(message(f"--worker_num {args.worker_num}, and {args.rank_table_file} has {count} ranks", where=WHERE))
    _shown_workers(args)


def _shown_workers(args: argparse.Namespace) -> set[int]:
    if args.tail_worker_log == "-1":
        return set(range(args.worker_num))
    parts = args.tail_worker_log.split(",")
    if not all(part.isascii() and part.isdigit() and int(part) < args.worker_num for part in parts):
        allowed = f"-1, or ranks from 0 to {args.worker_num - 1} such as 0,2"
        raise WorldArgumentError(message(f"--tail_worker_log {args.tail_worker_log!r}", where=WHERE, allowed=allowed))
    return {int(part) for part in parts}


def _detach(folder: Path, count: int) -> int:
    """Go on in a process of its own, which lives as long as the workers, and return."""
    with open(folder / "scheduler.log", "w", encoding="utf-8") as log:
        command = [sys.executable, "-m", __package__.partition(".")[0], *sys.argv[1:]]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, env={**os.environ, JOINED: "1"})
    print(f"msrun: {count} workers are started in the background (process {process.pid}); logs in {folder}; --join True waits for them")
    return 0


class _Both:
    """Writes to two streams."""

    def __init__(self, *streams: TextIO) -> None:
        self._streams = streams

    def write(self, text: str) -> None:
        for stream in self._streams:
            stream.write(text)

    def flush(self) -> None:
        for stream in self._streams:
            stream.flush()


class _WorkerConsole(Console):
    """The launcher's lines go to scheduler.log as well; the workers' lines only to their logs, and those of `shown` to the terminal."""

    def __init__(self, world_size: int, logs: list[Path], notes: Any, shown: set[int]) -> None:
        super().__init__(world_size, logs=logs, stream=sys.stdout if shown else None, only=shown)
        self._notes = notes

    def note(self, text: str) -> None:
        self.flush(everything=True)
        self._notes.write(f"parallel-lab: {text}\n")
