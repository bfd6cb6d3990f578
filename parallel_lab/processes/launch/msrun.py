"""What `parallel-lab msrun` does with the arguments of MindSpore's launcher (`run_command.py`), on this machine.

    parallel-lab msrun --worker_num 8 --local_worker_num 8 --master_port 8118 --log_dir logs --join True train.py
    --epochs 3

Workers are the ranks of one launch (processes.py), with the environment that msrun gives them. Logs: `worker_K.log` per
rank and `scheduler.log`, where the launcher's own lines go, since it does here what a scheduler does there. Without
`--join True` the command returns at once and the launch goes on in a process of its own. Names, defaults and ranges:
MindSpore, msrun Launching.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path
from typing import TextIO

from ...base.errors import NotBuiltYet, WorldArgumentError
from ...base.system import SYSTEM, processors
from ..world.cluster_env import check_host
from .console import Console
from .processes import LaunchSpec, end_by_signal, ending_on_signals, launch

WHERE = "parallel-lab msrun"
DETACHED = "PARALLEL_LAB_MSRUN_DETACHED"  # set for the process that stays when the command returns


def run_workers(args: argparse.Namespace, command: tuple[str, ...]) -> int:
    """Start the workers as `args` says; the exit code. Raises WorldArgumentError, NotBuiltYet."""
    _check(args)
    argv = ("-m", *command) if command[0] == "pytest" else command
    folder = Path(args.log_dir or ".")
    folder.mkdir(parents=True, exist_ok=True)
    if not args.join and not os.environ.get(DETACHED):
        return _detach(folder, args.worker_num)
    shown = _shown_workers(args) if args.join else set()
    name = args.worker_log_name or "worker"
    logs = [folder / f"{name}_{rank}.log" for rank in range(args.worker_num)]
    with open(folder / "scheduler.log", "w", encoding="utf-8", buffering=1) as log:
        console = _WorkerConsole(logs, [log, sys.stdout] if args.join else [log], shown)
        console.say(f"scheduler: {args.worker_num} workers are started: {' '.join(command)}")
        try:
            with ending_on_signals(end_by_signal):
                outcome = launch(_spec(args, argv), console)
        finally:
            console.close()
        console.say(f"scheduler: all workers have ended, exit code {outcome.exit_code}")
    return outcome.exit_code


def _spec(args: argparse.Namespace, argv: tuple[str, ...]) -> LaunchSpec:
    count = args.worker_num
    common = {"MS_WORKER_NUM": str(count), "MS_SCHED_HOST": args.master_addr, "MS_SCHED_PORT": str(args.master_port)}
    common |= {"MS_TOPO_TIMEOUT": str(args.cluster_time_out), "MS_ROLE": "MS_WORKER"}
    own = tuple({"MS_NODE_ID": str(rank)} for rank in range(count))
    variables = {"environment": common, "rank_environments": own}
    limits = {"start_limit_s": args.cluster_time_out, "cores": _cores(count) if args.bind_core else ()}
    return LaunchSpec(argv, count, as_mindspore=args.as_mindspore, launcher=WHERE, **variables, **limits)


def _cores(count: int) -> tuple[tuple[int, ...], ...]:
    """The processors this process may use, evenly; with fewer of them than workers, several workers share one."""
    mine = processors()
    each = len(mine) // count
    return tuple(tuple(mine[each * r : each * (r + 1)]) if each else (mine[r % len(mine)],) for r in range(count))


def _check(args: argparse.Namespace) -> None:
    if args.sim_level != -1 or args.sim_rank_id != -1:
        hint = "parallel_lab.compile(net, ..., device_num=N) compiles for any number of devices without processes"
        what = "--sim_level and --sim_rank_id: simulated compilation is not available yet"
        raise NotBuiltYet(what, where=WHERE, hint=hint)
    if args.bind_core and not SYSTEM.affinity:
        what = f"--bind_core: {SYSTEM.name} does not tie processes to processors"
        raise NotBuiltYet(what, where=WHERE, hint="Leave it out: only times depend on it")
    check_host(args.master_addr, "--master_addr")
    if args.local_worker_num > args.worker_num:
        what = f"--local_worker_num {args.local_worker_num} is more than --worker_num {args.worker_num}"
        raise WorldArgumentError(what, where=WHERE)
    if args.local_worker_num < args.worker_num:
        share = f"only {args.local_worker_num} of {args.worker_num} workers are to run here"
        what = f"{share}, and these ranks share the memory of one machine"
        hint = f"--local_worker_num {args.worker_num}; several hosts: mpirun -H host1:4,host2:4 python script.py"
        raise NotBuiltYet(what, where=WHERE, hint=hint)
    if args.rank_table_file:
        from ..world.rank_table import read_rank_table

        count = len(read_rank_table(args.rank_table_file).devices)
        if count != args.worker_num:
            what = f"--worker_num {args.worker_num}, and {args.rank_table_file} has {count} ranks"
            raise WorldArgumentError(what, where=WHERE)
    _shown_workers(args)


def _shown_workers(args: argparse.Namespace) -> set[int]:
    if args.tail_worker_log == "-1":
        return set(range(args.worker_num))
    parts = args.tail_worker_log.split(",")
    if not all(part.isascii() and part.isdigit() and int(part) < args.worker_num for part in parts):
        allowed = f"-1, or ranks from 0 to {args.worker_num - 1} such as 0,2"
        raise WorldArgumentError(f"--tail_worker_log {args.tail_worker_log!r}", where=WHERE, allowed=allowed)
    return {int(part) for part in parts}


def _detach(folder: Path, count: int) -> int:
    """Go on in a process of its own, which lives as long as the workers, and return."""
    with open(folder / "scheduler.log", "w", encoding="utf-8") as log:
        command = [sys.executable, "-m", __package__.partition(".")[0], *sys.argv[1:]]
        streams = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
        variables = {**os.environ, DETACHED: "1"}
        process = subprocess.Popen(command, **streams, start_new_session=True, env=variables)
    started = f"{count} workers are started in the background (process {process.pid})"
    print(f"msrun: {started}; logs in {folder}; --join True waits for them")
    return 0


class _WorkerConsole(Console):
    """The launcher's lines go to `notes`; the workers' to their logs, and those of `shown` to the terminal."""

    def __init__(self, logs: list[Path], notes: list[TextIO], shown: set[int]) -> None:
        super().__init__(len(logs), logs=logs, stream=sys.stdout if shown else None, only=shown)
        self._notes = notes

    def say(self, line: str) -> None:
        for stream in self._notes:
            stream.write(f"{line}\n")

    def note(self, text: str) -> None:
        self.flush(everything=True)
        self.say(f"parallel-lab: {text}")
