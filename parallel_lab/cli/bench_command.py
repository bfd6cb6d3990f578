"""`parallel-lab bench`: how fast this machine is with this package and with others, now.

parallel-lab bench link                   the alpha-beta model of this machine, fitted, with its residuals

The other benchmarks compare the package with PyTorch and MPI. They are a developers' tool: tests/bench/command.py of a
checkout lists them in the same form, and the command shows them where that file is.

Each takes --json FILE (versioned, with the machine it ran on) and --quick, which says nothing about speed.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..base.errors import MissingPackage
from ..base.files import check_writable, checkout_folder, write_whole
from .options import Option, option, subcommand, whole_number

RANKS = whole_number(2, 64)
EVERY = (
    option("--json", metavar="FILE", help="also write the numbers to FILE"),
    option("--quick", action="store_true", help="a few small cases once, to see that it works"),
)
HTML = option("--html", metavar="FILE", help="also write tables and figures to FILE, one self-contained page")
DEVELOPERS = (
    "collectives",
    "training",
    "startup",
    "pipeline",
    "context",
    "dtensor",
    "search",
    "labs",
    "live",
)  # as in tests/bench/command.py
_FITTED = "what is fitted (default send: half of a round trip)"


@dataclass(frozen=True)
class Measured:
    """A benchmark's `text` for the terminal, `numbers` for JSON and `page`: from the machine's facts to HTML."""

    text: str
    numbers: Mapping[str, Any]
    page: Callable[[Mapping[str, Any]], str] | None = None


@dataclass(frozen=True)
class Benchmark:
    """One row of the table: what its help says, what it takes, and what it measures with that."""

    name: str
    measure: Callable[[argparse.Namespace], Measured]
    options: tuple[Option, ...]
    short: str
    text: str
    examples: str

    def run(self, args: argparse.Namespace) -> int:
        """Measure, print and write. At SIGTERM (timeout) and SIGHUP (closed terminal), as at Ctrl-C, nothing stays."""
        from ..processes.launch.processes import ending_on_signals

        with ending_on_signals(_end):
            return self._run(args)

    def _run(self, args: argparse.Namespace) -> int:
        from .results import machine_facts, results_json

        html = getattr(args, "html", None)
        for file in (args.json, html):
            if file:
                check_writable(Path(file))  # before minutes of work
        machine = machine_facts()
        measured = self.measure(args)
        print(measured.text)
        if args.json:
            write_whole(Path(args.json), results_json(self.name, machine, measured.numbers))
        if html:
            write_whole(html, measured.page(machine))
        return 0


def _end(number: int, _frame: Any) -> None:
    raise SystemExit(128 + number)  # the shell's convention


def _link(args: argparse.Namespace) -> Measured:
    from ..processes.measure.fit import fit_link
    from .results import bench_page

    quick = {"sizes_bytes": tuple(1 << power for power in range(6, 19, 2)), "repeats": 5, "warm_ups": 1}
    fit = fit_link(args.ranks, args.message, **(quick if args.quick else {}))
    numbers = {**dataclasses.asdict(fit), "residuals": fit.residuals, "accepted": fit.accepted}
    title = "alpha and beta of this machine"
    return Measured(fit.text(), {"fit": numbers}, lambda machine: bench_page(title, machine, fit._repr_html_()))


LINK = Benchmark(
    "link",
    _link,
    (
        option("--ranks", type=RANKS, default=2, help="workers (default 2)"),
        option("--message", choices=("send", "all_reduce", "behind_work"), default="send", help=_FITTED),
        HTML,
    ),
    "alpha and beta of this machine's messages, fitted",
    "Measures messages between workers, fits t = alpha + beta m (alpha seconds per message, beta seconds per "
    "byte; MindSpore's cost model swaps the letters), and shows the residual of every size and the error on sizes "
    "the fit has not seen.",
    "  parallel-lab bench link\n  parallel-lab bench link --message all_reduce --ranks 8 --html link.html\n",
)


def developers_benchmarks() -> tuple[Benchmark, ...]:
    """Those of a checkout, in the order of its table; () where the package was installed from a wheel."""
    folder = checkout_folder()
    if folder is None or not (folder / "tests" / "bench" / "command.py").is_file():
        return ()
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
    try:
        return importlib.import_module("tests.bench.command").BENCHMARKS
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("tests"):
            raise
        return ()  # another package of the environment is called tests


def _say_where(args: argparse.Namespace) -> int:
    what = f"bench {args.benchmark} lies in tests/bench of a checkout, not in the installed package"
    raise MissingPackage(what, hint="in a checkout: pip install -e . && parallel-lab bench")


def add_parser(subparsers: Any) -> None:
    """Add `bench` to the command's subcommands."""
    texts = {"help": "measure speed and memory on this machine, next to PyTorch and MPI"}
    bench = subparsers.add_parser("bench", description="Measures speed and memory on this machine.", **texts)
    kinds = bench.add_subparsers(title="benchmarks", metavar="BENCHMARK", dest="benchmark", required=True)
    benchmarks = developers_benchmarks()
    for name in () if benchmarks else DEVELOPERS:
        words = option("words", nargs="*")  # with prefix_chars that nobody types, options are words, too
        texts = {"help": "for developers, in tests/bench of a checkout", "prefix_chars": "\0", "add_help": False}
        subcommand(kinds, name, _say_where, (words,), **texts)
    for one in (*benchmarks, LINK):
        texts = {"help": one.short, "description": one.text, "epilog": f"examples:\n{one.examples}"}
        subcommand(kinds, one.name, one.run, (*one.options, *EVERY), **texts)
