"""`parallel-lab quickstart`: the quickstart in the terminal.

Exit codes: 0 the parallel run equals one device; 1 it does not; 2 an argument or a strategy was refused. The job,
`lab/quickstart/model.py`, is loaded when it runs: `--help` and the doctor do not wait for it.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any, TextIO

from ..base.errors import ArgumentError, shorten
from ..base.files import check_writable
from .options import option, subcommand

_EXAMPLES = """\
examples:
  parallel-lab quickstart
  parallel-lab quickstart --devices 4 --data digits --net megatron
  parallel-lab quickstart --net convnet
  parallel-lab quickstart --strategy "matmul=((1,8),(8,1))" --strategy "relu=((8,1),)"
  parallel-lab quickstart --report report.html --trace trace.json

exit codes: 0 the ranks computed what one device computes; 1 they did not; 2 an argument or a strategy was refused
"""


_NETS = "quickstart (default), megatron, dense; convnet: convolutions; transformer: a small GPT; embedding: Wide & Deep"
_DATA = (
    "seed: one fixed random batch (default); digits: handwritten ones; the last three networks have data of their own"
)
_EXECUTORS = "processes: one worker per rank (default); simulator: all ranks in this process; mpi: under mpirun"
_STRATEGY = "slices per dim of each input of an operator; once for each operator"
_OPTIONS = (
    option("--devices", type=int, default=8, help="ranks: 1, 2, 4 or 8 (default: 8)"),
    option("--net", default="quickstart", help=_NETS),
    option("--data", help=_DATA),
    option("--epochs", type=int, help="default: 5 of the seed's 4 steps, 2 of the digits' 45 steps"),
    option("--strategy", action="append", default=[], metavar="OP=STRATEGY", help=_STRATEGY),
    option("--executor", default="processes", help=_EXECUTORS),
    option("--report", type=Path, metavar="FILE.html", help="write the run as one self-contained web page"),
    option("--trace", type=Path, metavar="FILE.json", help="write the last steps as a Chrome trace (ui.perfetto.dev)"),
    option("--full-text", action="store_true", help="print every step of a long log, and the program of rank 0"),
)


def add_parser(subparsers: Any) -> None:
    """Add the subcommand `quickstart` to the command's parser."""
    subcommand(
        subparsers,
        "quickstart",
        _quickstart,
        _OPTIONS,
        help="train a small network on several ranks and see what each holds and sends",
        description="Splits a small network over ranks, trains it on real processes, and compares every tensor with "
        "one device.",
        epilog=_EXAMPLES,
    )


class Progress:
    """Steps done: a rewritten line on a terminal, else one every few s. Any thread; time is from the first call."""

    QUIET_S, TERMINAL_S, LINE_S = 1.0, 0.2, 5.0

    def __init__(self, stream: TextIO, clock: Any = time.monotonic) -> None:
        self.stream, self.clock = stream, clock
        self.terminal = stream.isatty()
        self.first: tuple[float, int] | None = None
        self.shown_s = -float("inf")

    def __call__(self, done: int, steps: int) -> None:
        now = self.clock()
        first_s, first_done = self.first = self.first or (now, done)
        pause_s = self.TERMINAL_S if self.terminal else self.LINE_S
        if done == first_done or now - first_s < self.QUIET_S or now - self.shown_s < pause_s:
            return
        self.shown_s = now
        left_s = (now - first_s) / (done - first_done) * (steps - done)
        text = f"step {done} of {steps}, about {left_s:.0f} s left"
        self.stream.write(f"\r{text:<60}" if self.terminal else text + "\n")
        self.stream.flush()

    def end(self) -> None:
        """Clear the line on a terminal."""
        if self.shown_s > 0 and self.terminal:
            self.stream.write("\r" + " " * 60 + "\r")
            self.stream.flush()


def _check_files(report: Path | None, trace: Path | None) -> None:
    """Refuse files that cannot be written before the training. Raises DataFileError, ArgumentError."""
    files = [check_writable(path) for path in (report, trace) if path is not None]
    both_exist = len(files) == 2 and files[0].exists() and files[1].exists()
    if len(files) == 2 and (files[0] == files[1] or both_exist and files[0].samefile(files[1])):
        what = f"--report and --trace both name {files[0]}"
        raise ArgumentError(what, where="quickstart", hint="Give each a file of its own")


def _strategies(texts: list[str]) -> dict[str, Any]:
    """{operator: strategy} from the words of --strategy. Raises ArgumentError."""
    from ..lab.quickstart.model import parse_strategy

    strategies: dict[str, Any] = {}
    for text in texts:
        name, strategy = parse_strategy(text)
        if name in strategies:
            what = f"two strategies for {name!r}: {shorten(strategies[name])} and {shorten(strategy)}"
            raise ArgumentError(what, where="--strategy", allowed="One for each operator", hint="Leave one of them out")
        strategies[name] = strategy
    return strategies


def _quickstart(args: argparse.Namespace) -> int:
    from ..base.events import save_chrome_trace
    from ..lab.quickstart.model import Quickstart
    from ..train.session import EXECUTORS

    _check_files(args.report, args.trace)
    if args.executor not in EXECUTORS:
        raise ArgumentError(f"executor {args.executor!r}", where="quickstart", allowed=f"One of {', '.join(EXECUTORS)}")
    options = {name: getattr(args, name) for name in ("devices", "data", "net", "epochs", "executor")}
    job = Quickstart(**options, strategies=_strategies(args.strategy))
    print(job.text(), end="\n\n", flush=True)
    progress = Progress(sys.stderr)
    try:
        result = job.run(progress)
    finally:
        progress.end()
        if args.executor == "processes":
            from ..processes.shm import close_all

            close_all()  # the command started these workers and nobody will use them again
        elif args.executor == "mpi":
            from ..processes.mpi.pool import close_mpi_pools

            close_mpi_pools()
    print(result.text(full=args.full_text))
    if args.trace is not None:
        print(f"Trace: {save_chrome_trace(result.events, args.trace)}")
    if args.report is not None:
        print(f"Report: {result.to_html(args.report)}")
    return 0 if result.equal else 1
