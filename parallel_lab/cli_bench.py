"""`parallel-lab bench training`: how long a training step takes here and in PyTorch, on this machine, now.

parallel-lab bench training                       all cases, one thread
parallel-lab bench training --cases mlp --threads 2 --json speed.json
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from .files import check_writable, write_whole

__all__ = ["add_parser", "measure_training", "training_text"]


def add_parser(subparsers: Any) -> None:
    """Add `bench` to the command's subcommands."""
    bench = subparsers.add_parser("bench", help="measure speed and memory on this machine, beside PyTorch", description="Benchmarks.")
    kinds = bench.add_subparsers(title="benchmarks", metavar="BENCHMARK", required=True)
    training = kinds.add_parser(
        "training",
        help="one training step: MLP, transformer, conv net, and the tape's own cost",
        description="Times one training step (forward, backward, update) here and in PyTorch, in turns: medians and their ratio. "
        "Beside each: the largest difference of loss and gradients, and peak memory over what a step needs.",
        epilog="examples:\n  parallel-lab bench training\n  parallel-lab bench training --cases mlp conv --threads 2 --json speed.json\n",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    training.add_argument("--cases", nargs="+", choices=("mlp", "transformer", "conv", "tiny"), default=None, help="default: all")
    training.add_argument("--rounds", type=_positive, default=9, help="how often each is timed, in turns (default 9)")
    training.add_argument("--threads", type=_positive, default=1, help="threads for matrix products, for both (default 1)")
    training.add_argument("--json", metavar="FILE", help="also write the numbers to FILE")
    training.set_defaults(run=_training, parser=training)


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 on")
    return int(text)


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
        competitors = [stack.enter_context(Competitor(name, "parallel_lab.bench.training", [name], threads=threads)) for name in names]
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
    widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    lines += [
        "",
        f"measured: medians of {len(results[0]['seconds']['ours'])} rounds in turns, {results[0]['threads']} thread(s) each, float32, one device",
        "difference: largest of loss and gradients against PyTorch with the same weights, relative to each tensor's largest element",
        "over needed: peak of numpy's memory in a step over parameters, gradients, optimizer state and the activations that the tape holds",
    ]
    if results[0]["ratio"] is None:
        lines.append("PyTorch is not installed: pip install torch to compare")
    return "\n".join(lines)


def _training(args: argparse.Namespace) -> int:
    from .bench.training import CASES

    if args.json:
        check_writable(Path(args.json))
    results = measure_training(args.cases or list(CASES), args.rounds, args.threads)
    print(training_text(results))
    if args.json:
        write_whole(Path(args.json), json.dumps({"training": results}, indent=1) + "\n")
    return 0
