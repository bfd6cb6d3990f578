"""`parallel-lab bench`: how fast this machine is with this package and with others, now; ratios of medians of one run,
in turns.

parallel-lab bench collectives                    all_reduce and the others beside torch gloo and MPI; the goals, met or
not
parallel-lab bench training                       one training step on one device beside PyTorch
parallel-lab bench training --parallel            the data-parallel step of 2 and 4 ranks beside PyTorch's
DistributedDataParallel
parallel-lab bench startup                        from nothing to the first collective; what idle workers take
parallel-lab bench link                           the alpha-beta model of this machine, fitted, with its residuals

Each takes --json FILE (versioned, with the machine it ran on) and --quick, which measures little and says nothing about
speed.
"""

from __future__ import annotations

import argparse
import importlib.util
import signal
import statistics
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from ..base.files import check_writable, write_whole
from .bench.cases import OPS

CASES = (
    "mlp",
    "transformer",
    "conv",
    "tiny",
)  # those of bench/training.py, which a command that only prints its help does not import
_UNITS = {"": 1, "B": 1, "K": 1 << 10, "KIB": 1 << 10, "M": 1 << 20, "MIB": 1 << 20}


def add_parser(subparsers: Any) -> None:
    """Add `bench` to the command's subcommands."""
    bench = subparsers.add_parser(
        "bench",
        help="measure speed and memory on this machine, beside PyTorch and MPI",
        description="Measures speed and memory on this machine.",
    )
    kinds = bench.add_subparsers(title="benchmarks", metavar="BENCHMARK", required=True)
    collectives = _kind(
        kinds,
        "collectives",
        _collectives,
        "all_reduce and the others, beside torch gloo and MPI",
        "Times collectives of this package's workers, of torch gloo and of MPI (both optional) in turns, and the "
        "barrier on a quiet and on a busy "
        "machine. Prints times, ratios, the memory bound, and the project's goals with the values reached.",
        "  parallel-lab bench collectives\n  parallel-lab bench collectives --ops all_reduce --sizes 64K 1M --html "
        "speed.html\n",
    )
    collectives.add_argument("--ranks", type=_ranks, default=8, help="ranks of each library (default 8)")
    collectives.add_argument("--ops", nargs="+", choices=OPS, default=None, help="default: all")
    collectives.add_argument(
        "--sizes",
        nargs="+",
        type=_size,
        default=None,
        metavar="SIZE",
        help="bytes of the full tensor, as 4K or 16M (default 4K to 64M)",
    )
    collectives.add_argument(
        "--rounds",
        type=_positive,
        default=7,
        help="timings of each, in turns (default 7; barriers five times that)",
    )
    collectives.add_argument(
        "--busy", type=_count, default=2, help="unrelated busy processes during the second barrier (default 2; 0: none)"
    )
    collectives.add_argument(
        "--html", metavar="FILE", help="also write tables and figures to FILE, one self-contained page"
    )
    collectives.add_argument("--alone", action="store_true", help="only this package, without torch and MPI")
    training = _kind(
        kinds,
        "training",
        _training,
        "one training step: MLP, transformer, conv net, and the tape's own cost; or data parallel",
        "Times one training step (forward, backward, update) here and in PyTorch, in turns: medians and their ratio. "
        "Also shown: the largest difference of loss and gradients and, on one device, peak memory relative to what "
        "a step needs.",
        "  parallel-lab bench training\n  parallel-lab bench training --cases mlp conv --threads 2 --json speed.json\n"
        "  parallel-lab bench training --parallel\n",
    )
    training.add_argument("--cases", nargs="+", choices=CASES, default=None, help="on one device (default: all)")
    training.add_argument(
        "--parallel", action="store_true", help="the data-parallel MLP on worker processes, beside torch DDP"
    )
    training.add_argument("--ranks", nargs="+", type=_ranks, default=None, help="with --parallel (default 2 4)")
    training.add_argument("--rounds", type=_positive, default=9, help="timings of each, in turns (default 9)")
    training.add_argument(
        "--threads",
        type=_positive,
        default=None,
        help="threads for matrix products on one device, for both (default 1)",
    )
    training.add_argument("--alone", action="store_true", help="with --parallel: only this package, without torch")
    startup = _kind(
        kinds,
        "startup",
        _startup,
        "from nothing to the first collective of every rank",
        "Times the start of this package's workers (in a new process, and again), of torch.multiprocessing.spawn with "
        "gloo, and of mpirun.",
        "  parallel-lab bench startup\n  parallel-lab bench startup --ranks 4 --rounds 5\n",
    )
    startup.add_argument("--ranks", type=_ranks, default=8, help="ranks of each library (default 8)")
    startup.add_argument("--rounds", type=_positive, default=3, help="starts of each, in turns (default 3)")
    startup.add_argument("--alone", action="store_true", help="only this package, without torch and MPI")
    link = _kind(
        kinds,
        "link",
        _link,
        "alpha and beta of this machine's messages, fitted",
        "Measures messages between workers, fits t = alpha + beta m (alpha seconds per message, beta seconds per "
        "byte; MindSpore's cost model swaps "
        "the letters), and shows the residual of every size and the error on sizes the fit has not seen.",
        "  parallel-lab bench link\n  parallel-lab bench link --message all_reduce --ranks 8 --html link.html\n",
    )
    link.add_argument("--ranks", type=_ranks, default=2, help="workers (default 2)")
    link.add_argument(
        "--message",
        choices=("send", "all_reduce"),
        default="send",
        help="what is fitted (default send: half of a round trip)",
    )
    link.add_argument("--html", metavar="FILE", help="also write table and figure to FILE, one self-contained page")


def _kind(kinds: Any, name: str, run: Any, short: str, text: str, examples: str) -> argparse.ArgumentParser:
    """One benchmark with what all of them take."""
    parser = kinds.add_parser(
        name,
        help=short,
        description=text,
        epilog=f"examples:\n{examples}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", metavar="FILE", help="also write the numbers to FILE")
    parser.add_argument("--quick", action="store_true", help="a few small cases once, to see that it works")
    parser.set_defaults(run=lambda args: _until_terminated(run, args), parser=parser)
    return parser


def _until_terminated(run: Callable[[argparse.Namespace], int], args: argparse.Namespace) -> int:
    """Run, and end in order when this process is told to end (timeout, a closed terminal's manager), as at Ctrl-C: no
    process and no file stays.
    """

    def end(number: int, frame: Any) -> None:
        raise SystemExit(128 + number)  # the shell's convention

    if threading.current_thread() is not threading.main_thread():
        return run(args)
    before = signal.signal(signal.SIGTERM, end)
    try:
        return run(args)
    finally:
        signal.signal(signal.SIGTERM, before)


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 on")
    return int(text)


def _count(text: str) -> int:
    if not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0 on")
    return int(text)


def _ranks(text: str) -> int:
    if not text.isdigit() or not 2 <= int(text) <= 64:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of ranks from 2 to 64")
    return int(text)


def _size(text: str) -> int:
    digits = text.rstrip("KMIBkmib")
    unit = _UNITS.get(text[len(digits) :].upper())
    if not digits.isdigit() or unit is None or int(digits) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size such as 4096, 64K or 16M")
    return int(digits) * unit


def measure_training(cases: list[str], rounds: int, threads: int) -> list[dict[str, Any]]:
    """One dict per case: seconds of every round of "ours" and "torch" (of a step; for "tiny" of one operator),
    `ratio` of the medians, `limit`, `difference`, `memory`.

    Without PyTorch only ours is measured, and ratio and difference are None.
    """
    from .bench.training import LIMITS, TINY_CHAIN, agreement, memory
    from .bench.workers import Competitor, interleaved

    with_torch = importlib.util.find_spec("torch") is not None
    found = []
    with ExitStack() as stack:
        names = ("ours", "torch") if with_torch else ("ours",)
        competitors = [
            stack.enter_context(Competitor(name, "parallel_lab.cli.bench.training", [name], threads=threads))
            for name in names
        ]
        for case in cases:
            seconds = interleaved(competitors, case, rounds)
            if case == "tiny":  # of one operator
                seconds = {name: [s / TINY_CHAIN for s in times] for name, times in seconds.items()}
            medians = {name: statistics.median(times) for name, times in seconds.items()}
            speed, peak = LIMITS[case]
            found.append(
                {
                    "case": case,
                    "threads": threads,
                    "seconds": seconds,
                    "median_s": medians,
                    "ratio": medians["ours"] / medians["torch"] if with_torch else None,
                    "limit": speed,
                    "difference": agreement(case) if with_torch and case != "tiny" else None,
                    "memory_bytes": memory(case) if case != "tiny" else None,
                    "memory_limit": peak,
                }
            )
    return found


def training_text(results: list[dict[str, Any]]) -> str:
    """The results as a table with its legend."""
    from .bench.page import aligned

    head = ("case", "ours", "PyTorch", "ratio", "at most", "difference", "peak memory", "over needed", "at most")
    rows = [head]
    for r in results:
        unit, scale = ("us per operator", 1e6) if r["case"] == "tiny" else ("ms", 1e3)
        shown = {name: f"{s * scale:.2f} {unit}" for name, s in r["median_s"].items()}
        memory = r["memory_bytes"]
        over = memory["peak"] / sum(v for k, v in memory.items() if k != "peak") if memory else None
        rows.append(
            (
                r["case"],
                shown["ours"],
                shown.get("torch", "not installed"),
                "" if r["ratio"] is None else f"{r['ratio']:.2f}",
                f"{r['limit']}",
                "" if r["difference"] is None else f"{r['difference']:.1e}",
                "" if memory is None else f"{memory['peak'] / 2**20:.1f} MiB",
                "" if over is None else f"{over:.2f}",
                "" if r["memory_limit"] is None else f"{r['memory_limit']}",
            )
        )
    lines = [
        aligned(rows, left=len(head)),
        "",
        f"measured: medians of {len(results[0]['seconds']['ours'])} rounds in turns, {results[0]['threads']} "
        "thread(s) each, float32, one device",
        "difference: largest of loss and gradients against PyTorch with the same weights, relative to each tensor's "
        "largest element",
        "over needed: peak of numpy's memory in a step over parameters, gradients, optimizer state and the "
        "activations that the tape holds",
    ]
    if results[0]["ratio"] is None:
        lines.append("PyTorch is not installed: pip install torch to compare")
    return "\n".join(lines)


def _training(args: argparse.Namespace) -> int:
    from .bench.machine import machine_facts

    others = (
        {"--cases": args.cases, "--threads": args.threads}
        if args.parallel
        else {"--ranks": args.ranks, "--alone": args.alone}
    )
    useless = [name for name, given in others.items() if given]
    if useless:
        args.parser.error(f"{' and '.join(useless)}: {'not' if args.parallel else 'only'} with --parallel")
    _check_files(args)
    machine = machine_facts()
    if args.parallel:
        from .bench.data_parallel import data_parallel_goals, data_parallel_text, measure_data_parallel

        quick = {"rounds": 1, "batch_s": 0.01} if args.quick else {"rounds": args.rounds}
        found = measure_data_parallel(args.ranks or ((2,) if args.quick else (2, 4)), peers=not args.alone, **quick)
        print(data_parallel_text(found))
        _write_json(
            args,
            "training",
            machine,
            {"data_parallel": found, "goals": [goal.to_dict() for goal in data_parallel_goals(found)]},
        )
        return 0
    results = measure_training(
        args.cases or list(("tiny",) if args.quick else CASES), 1 if args.quick else args.rounds, args.threads or 1
    )
    print(training_text(results))
    _write_json(args, "training", machine, {"training": results})
    return 0


def _collectives(args: argparse.Namespace) -> int:
    from .bench.collectives import SIZES_BYTES, measure_collectives
    from .bench.collectives_text import collectives_dict, collectives_page, collectives_text
    from .bench.machine import machine_facts

    _check_files(args)
    machine = machine_facts()
    if args.quick:
        ops, sizes = args.ops or ("all_reduce", "broadcast"), args.sizes or (4 << 10, 1 << 20)
        options = {"rounds": 1, "batch_s": 0.002, "busy": min(args.busy, 1)}
    else:
        ops, sizes = args.ops or OPS, args.sizes or SIZES_BYTES
        options = {"rounds": args.rounds, "busy": args.busy}
    report = measure_collectives(args.ranks, ops, sizes, peers=not args.alone, tell=_tell, **options)
    print(collectives_text(report))
    _write_json(args, "collectives", machine, collectives_dict(report))
    if args.html:
        write_whole(args.html, collectives_page(report, machine))
    return 0


def _startup(args: argparse.Namespace) -> int:
    from .bench.machine import machine_facts
    from .bench.startup import measure_startup, startup_goals, startup_text

    _check_files(args)
    machine = machine_facts()
    options = {"rounds": 1, "idle_s": 0.2} if args.quick else {"rounds": args.rounds}
    found = measure_startup(args.ranks, peers=not args.alone, tell=_tell, **options)
    print(startup_text(found))
    _write_json(
        args, "startup", machine, {"startup": found, "goals": [goal.to_dict() for goal in startup_goals(found)]}
    )
    return 0


def _link(args: argparse.Namespace) -> int:
    import dataclasses

    from ..processes.measure.fit import fit_link
    from .bench.machine import machine_facts
    from .bench.page import bench_page

    _check_files(args)
    machine = machine_facts()
    quick = (
        {"sizes_bytes": tuple(1 << power for power in range(6, 19, 2)), "repeats": 5, "warm_ups": 1}
        if args.quick
        else {}
    )
    fit = fit_link(args.ranks, args.message, **quick)
    print(fit.text())
    _write_json(
        args,
        "link",
        machine,
        {"fit": {**dataclasses.asdict(fit), "residuals": fit.residuals, "accepted": fit.accepted}},
    )
    if args.html:
        write_whole(args.html, bench_page("alpha and beta of this machine", machine, fit._repr_html_()))
    return 0


def _check_files(args: argparse.Namespace) -> None:
    """Raise DataFileError for a file that cannot be written, before minutes of work."""
    for file in (args.json, getattr(args, "html", None)):
        if file:
            check_writable(Path(file))


def _write_json(args: argparse.Namespace, kind: str, machine: Mapping[str, Any], results: Mapping[str, Any]) -> None:
    if args.json:
        from .bench.machine import results_json

        write_whole(Path(args.json), results_json(kind, machine, results))


def _tell(text: str) -> None:
    """Where a long measurement is, on a terminal's standard error only."""
    if sys.stderr.isatty():
        print(f"  {text}", file=sys.stderr, flush=True)
