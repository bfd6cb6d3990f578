"""What a chip's products and attention reach (`clusters.Reached`), fitted on the published runs that it names.

    python -m tests.bench.fit_chips

Two shares of the peak for each chip, from two runs at most: those between 0.1 and 0.9, in
steps of 0.01, for which the sum of squared logarithms of predicted over measured seconds is least. Attention reaches at
most what products do, and where a chip names a run of attention alone, that sets its attention.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from parallel_lab.cost.planner.clusters import MACHINES, Machine, Reached
from parallel_lab.cost.planner.decoder_point import Columns
from parallel_lab.cost.planner.decoder_pricing import attention_alone, price
from parallel_lab.cost.planner.published import Run, published_run

SHARES = tuple(n / 100 for n in range(10, 91))


def seconds_of(run: Run, machine: Machine) -> float:
    """Predicted, with the shares of `machine`."""
    assert run.decoder is not None and run.point is not None and run.machine is not None
    whole = dataclasses.replace(run.machine, reached=machine.reached)
    if run.of_attention:
        return attention_alone(run.decoder, whole, run.point, backward=run.both_passes)[0]
    return float(price(run.decoder, whole, Columns.of_points([run.point])).step_s[0])


def fit(machine: Machine) -> Reached:
    """The shares of a machine, fitted again on the runs that it names."""
    assert machine.reached is not None
    runs = [published_run(name) for name in machine.reached.fitted]
    best, found = math.inf, machine.reached
    for products in SHARES if any(not run.of_attention for run in runs) else [machine.reached.products]:
        alone = any(run.of_attention for run in runs)
        for attention in SHARES:
            if attention > products and not alone:
                break
            shares = dataclasses.replace(machine.reached, products=products, attention=attention)
            pair = [(seconds_of(run, dataclasses.replace(machine, reached=shares)), run.step_s) for run in runs]
            far = sum(np.log(seconds / measured) ** 2 for seconds, measured in pair if measured)
            if far < best:
                best, found = far, shares
    return found


if __name__ == "__main__":
    for known in {m.reached: m for m in MACHINES if m.reached and m.reached.fitted}.values():
        print(f"{known.cluster.name:12} {known.reached}\n{'again':12} {fit(known)}")
