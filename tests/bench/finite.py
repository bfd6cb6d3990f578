"""What looking for NaN costs a step of a script (`train/finite.py`): steps with and without, in turns, on real ranks.

    parallel-lab run -n 2 tests/bench/finite.py --pairs 60

Medians over pairs of (a batch of steps with) / (as many without) - 1, of the time that passes and of the processor's
time on rank 0, for networks small to middling: compiled in data_parallel mode, and by hand with AllReduce.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Callable
from statistics import median, quantiles

import numpy as np

import parallel_lab as pl
from parallel_lab import Tensor, nn, ops, value_and_grad
from parallel_lab.base.settings.run_checks import reset_run_checks
from parallel_lab.base.system import cores
from parallel_lab.processes.measure.measure import load

NETS = {"small": (10, 32, 64, 64, 10), "middling": (1, 128, 784, 1024, 1024, 10)}  # steps, rows of a rank, widths


def network(rows: int, *widths: int) -> tuple[nn.Cell, Tensor, Tensor]:
    """(network with its loss, input, labels) of a rank."""
    layers: list[nn.Cell] = []
    for given, made in itertools.pairwise(widths):
        layers += [nn.Dense(given, made), nn.ReLU()]
    rng = np.random.default_rng(pl.get_rank())
    x, labels = rng.standard_normal((rows, widths[0]), np.float32), rng.integers(0, widths[-1], rows).astype(np.int32)
    return nn.WithLossCell(nn.SequentialCell(*layers[:-1]), nn.CrossEntropyLoss()), Tensor(x), Tensor(labels)


def compiled(*shape: int) -> Callable[[], object]:
    """A step of a plan."""
    net, *batch = network(*shape)
    step = nn.TrainOneStepCell(net, nn.SGD(net.trainable_params(), 1e-3))
    return lambda: step(*batch)


def by_hand(*shape: int) -> Callable[[], object]:
    """A step that adds up its gradients itself."""
    net, *batch = network(*shape)
    optimizer, total = nn.SGD(net.trainable_params(), 1e-3), ops.AllReduce()
    forward = value_and_grad(net, None, optimizer.parameters)
    return lambda: optimizer([total(gradient) for gradient in forward(*batch)[1]])


def seconds(step: Callable[[], object], count: int, *, finite: bool) -> tuple[float, float]:
    """(time that passes, the processor's time) of so many steps."""
    reset_run_checks()  # a script's own: it looks, and warns
    pl.set_run_checks(finite=None if finite else False)
    begin, used = time.perf_counter(), time.process_time()
    for _ in range(count):
        step()
    return time.perf_counter() - begin, time.process_time() - used


def main() -> None:
    """Measure and print, on rank 0."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--pairs", type=int, default=60)
    pairs = parser.parse_args().pairs
    pl.init()
    for way in (compiled, by_hand):
        pl.set_auto_parallel_context(parallel_mode="data_parallel" if way is compiled else "stand_alone")
        for name, (count, *shape) in NETS.items():
            step, before = way(*shape), load()
            seconds(step, 3, finite=True)
            found = []
            for at in range(pairs):
                told = {
                    finite: seconds(step, count, finite=finite)
                    for finite in ((True, False) if at % 2 else (False, True))
                }
                found.append([on / off - 1 for on, off in zip(told[True], told[False], strict=True)])
            if pl.get_rank() == 0:
                text = ", ".join(
                    f"{kind} {median(each):+.2%} ({low:+.2%} to {high:+.2%})"
                    for kind, each in zip(("passed", "processor"), zip(*found, strict=True), strict=True)
                    for low, _, high in [quantiles(each, n=4)]
                )
                print(f"{way.__name__}, {name}: {text}; {pairs} pairs of {count} steps, load {before:.0f}", flush=True)
    if pl.get_rank() == 0:
        print(f"measured: {cores()} cores; median and quartiles")


if __name__ == "__main__":
    main()
