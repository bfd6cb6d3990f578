"""Steps of searched plans on this machine, three times: predicted, simulated, measured; each net equal to one device.

    products and elementwise operators of drawn sizes, as a chain or as a tree whose branches are added or multiplied

What the predictions rest on is measured before, on other work: products, copies and messages of fixed sizes
(`processes/measure/`). Nothing is fitted to the nets. Messages are measured behind work, as in a step: a waiting rank
may lose the core to another process, which on a busy machine takes a hundred times as long as the message. With more
ranks than cores a plan is searched with what one rank computes while all share the cores; the clock of the prediction
knows the cores, and takes a core's own speed.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from parallel_lab import nn, ops
from parallel_lab.base.cluster import Cluster
from parallel_lab.base.errors import escape
from parallel_lab.base.log_chart import Series, log_chart
from parallel_lab.base.seeds import temporary_seed
from parallel_lab.base.system import cores
from parallel_lab.base.units import time_text
from parallel_lab.cli.results import bench_page, html_table
from parallel_lab.cost.search import search
from parallel_lab.graph.compiler import compile_network
from parallel_lab.lab.shared.equality import compare_sessions, nudge
from parallel_lab.lab.shared.step_times import step_times
from parallel_lab.nn.tensor.parameter import Parameter
from parallel_lab.processes.measure import fit_link, measure_device, measured_cluster
from parallel_lab.processes.shm import WorkerPool
from parallel_lab.train.session import Session
from tests.bench.goals import Goal, goal_rows
from tests.bench.page import ratio_text, tables_text

RATIO_LIMIT = 1.5  # of predicted and measured, whichever is larger: the median over nets
ROWS, WIDTHS = (128, 256, 512), (128, 256, 384, 512)  # of activations: a step takes some milliseconds
FUNCTIONS = {"relu": ops.ReLU, "tanh": ops.Tanh, "sigmoid": ops.Sigmoid}
JOINS = {"add": ops.Add, "mul": ops.Mul}
MOST_BRANCHES, MOST_LAYERS = 3, 3
EQUAL_STEPS = 2  # steps after which tensors are compared with those of one device
SIZES_BYTES = tuple(4**n for n in range(4, 12))  # 256 B to 4 MiB: what such nets send


@dataclass(frozen=True)
class DrawnNet:
    """A net.  rows, width_in: of its input;  branches: (width, function) of each layer of each branch, which all end in
    one width and are joined from the left;  trunk: the layers after that, likewise
    """

    rows: int
    width_in: int
    branches: tuple[tuple[tuple[int, str], ...], ...]
    joins: tuple[str, ...]
    trunk: tuple[tuple[int, str], ...]

    @property
    def text(self) -> str:
        """As `512x256: 384 tanh | 384 relu, add; 128 relu`."""

        def layers(some: Sequence[tuple[int, str]]) -> str:
            return " ".join(f"{width} {function}" for width, function in some)

        joined = " | ".join(map(layers, self.branches)) + "".join(f" {join}" for join in self.joins)
        return f"{self.rows}x{self.width_in}: {joined}; {layers(self.trunk)}"

    @property
    def width_out(self) -> int:
        return self.trunk[-1][0]


def draw_net(rng: np.random.Generator) -> DrawnNet:
    """A chain (one branch) or a tree of up to MOST_BRANCHES."""

    def layers() -> list[tuple[int, str]]:
        count = int(rng.integers(1, MOST_LAYERS + 1))
        return [(int(rng.choice(WIDTHS)), str(rng.choice(list(FUNCTIONS)))) for _ in range(count)]

    rows, width_in, joined = (int(rng.choice(of)) for of in (ROWS, WIDTHS, WIDTHS))
    branches = [layers() for _ in range(int(rng.integers(1, MOST_BRANCHES + 1)))]
    for branch in branches:
        branch[-1] = joined, branch[-1][1]
    joins = tuple(str(rng.choice(list(JOINS))) for _ in branches[1:])
    return DrawnNet(rows, width_in, tuple(map(tuple, branches)), joins, tuple(layers()))


class DrawnCell(nn.Cell):
    """The network of a `DrawnNet`. x: (rows, width_in) -> (rows, width_out)."""

    def __init__(self, drawn: DrawnNet) -> None:
        super().__init__()
        self.weights: list[Parameter] = []
        rng = np.random.default_rng(1)

        def chain(width: int, layers: Sequence[tuple[int, str]]) -> list[tuple[Any, Parameter, Any]]:
            found = []
            for wide, function in layers:
                values = rng.standard_normal((width, wide)).astype(np.float32) / np.float32(np.sqrt(width))
                weight = Parameter(values, name=f"w{len(self.weights)}")
                setattr(self, weight.name, weight)
                self.weights.append(weight)
                found.append((ops.MatMul(), weight, FUNCTIONS[function]()))
                width = wide
            return found

        self.branches = [chain(drawn.width_in, branch) for branch in drawn.branches]
        self.joins = [JOINS[join]() for join in drawn.joins]
        self.trunk = chain(drawn.branches[0][-1][0], drawn.trunk)

    def construct(self, x: Any) -> Any:
        def through(value: Any, layers: Any) -> Any:
            for product, weight, function in layers:
                value = function(product(value, weight))
            return value

        first, *others = (through(x, branch) for branch in self.branches)
        for join, other in zip(self.joins, others, strict=True):
            first = join(first, other)
        return through(first, self.trunk)


@dataclass(frozen=True)
class SearchedNet:
    """A net's step in seconds (median of the steps that count; predicted: one).  equal: whether every tensor is that of
    one device; tensors: how many were compared
    """

    net: str
    predicted_s: float
    simulated_s: float
    measured_s: float
    equal: bool
    tensors: int

    @property
    def ratio(self) -> float:
        """predicted / measured."""
        return self.predicted_s / self.measured_s

    @property
    def apart(self) -> float:
        """The ratio or its inverse, whichever is larger."""
        return max(self.ratio, 1 / self.ratio)


@dataclass(frozen=True)
class SearchedReport:
    """All nets.  seed: they were drawn with;  ranks, shared_cores: of the workers;  cluster: the fitted profile"""

    nets: tuple[SearchedNet, ...]
    seed: int
    ranks: int
    shared_cores: int
    steps: int
    cluster: Cluster

    @property
    def spread(self) -> dict[str, float]:
        """Of `SearchedNet.apart`: quartiles and worst; of the ratio: its median, which tells the direction."""
        apart = [one.apart for one in self.nets]
        low, median, high = (float(q) for q in np.quantile(apart, (0.25, 0.5, 0.75)))
        found = {"quartile_1": low, "median": median, "quartile_3": high, "worst": max(apart)}
        return {**found, "median_ratio": statistics.median(one.ratio for one in self.nets)}


def fitted_profiles(ranks: int) -> tuple[Cluster, Cluster]:
    """(of a rank on a core of its own, of one that shares the cores with all others), messages alike: of all ranks."""
    at_once = min(cores(), ranks)
    with WorkerPool(ranks) as pool:
        fit = fit_link(pool, "behind_work", sizes_bytes=SIZES_BYTES)
        sharing = measure_device(pool)
    alone = measure_device(at_once) if at_once < ranks else sharing
    own, shared = (measured_cluster(fit, device=device, world_size=ranks) for device in (alone, sharing))
    return own, shared


def measure_searched(
    nets: int = 50,
    ranks: int = 2,
    steps: int = 15,
    *,
    seed: int = 19,
    profiles: tuple[Cluster, Cluster] | None = None,
    tell: Callable[[str], object] = lambda text: None,
) -> SearchedReport:
    """Draw nets, search a plan for each, predict and measure its step.

    steps     that count, of each net
    profiles  as of `fitted_profiles`, which measures this machine (default)
    """
    tell("the profile of this machine")
    own, shared = profiles or fitted_profiles(ranks)
    rng, found = np.random.default_rng(seed), []
    with WorkerPool(ranks) as pool:
        for number in range(nets):
            drawn = draw_net(rng)
            tell(f"net {number + 1} of {nets}: {drawn.text}")
            found.append(measure_net(drawn, own, shared, pool, steps))
    return SearchedReport(tuple(found), seed, ranks, min(cores(), ranks), steps, own)


def measure_net(drawn: DrawnNet, own: Cluster, shared: Cluster, pool: Any, steps: int) -> SearchedNet:
    """One net: searched on `shared`, predicted on `own`, measured on the pool's workers, compared with one device."""
    ranks, rng = pool.world_size, np.random.default_rng(0)
    with temporary_seed(1):
        net = DrawnCell(drawn)
        optimizer = nn.Momentum(net.trainable_params(), 0.01, 0.9)
    x, label = (rng.standard_normal((drawn.rows, w)).astype(np.float32) for w in (drawn.width_in, drawn.width_out))
    common = {"loss": nn.MSELoss(), "optimizer": optimizer, "dataset_strategy": "full_batch"}
    plan = search(net, x, label, device_num=ranks, cluster=shared, **common).plan
    times = step_times(plan, net, optimizer, [(x, label)], own, steps=steps, pool=pool, cores=min(cores(), ranks))
    alone = compile_network(net, x, label, parallel_mode="stand_alone", **common)
    start = {name: p.asnumpy() for name, p in net.parameters_dict().items()}
    with (
        Session(plan, net, optimizer, executor="processes", pool=pool, check_finite=False) as session,
        Session(alone, net, optimizer, check_finite=False) as reference,
        Session(alone, nudge(alone, start), optimizer, check_finite=False) as nudged,
    ):
        proof = compare_sessions(session, reference, [(x, label)], EQUAL_STEPS, nudged)
    return SearchedNet(drawn.text, times.predicted_s, times.simulated_s, times.measured_s, proof.equal, len(proof.rows))


# ---- reports ----


def searched_goals(report: SearchedReport) -> tuple[Goal, ...]:
    """The median over nets; and that none of them differs from one device."""
    spread, different = report.spread, sum(not one.equal for one in report.nets)
    quartiles = f"quartiles {spread['quartile_1']:.2f} to {spread['quartile_3']:.2f}, worst {spread['worst']:.2f}"
    what = f"predicted and measured step, larger over smaller, median of {len(report.nets)} nets"
    return (
        Goal(what, "each other", RATIO_LIMIT, spread["median"], quartiles),
        Goal("nets with a tensor that is not one device's", "all nets", 0.0, different / len(report.nets)),
    )


def _rows(report: SearchedReport) -> list[tuple[str, ...]]:
    rows = [("net", "predicted", "simulated", "measured", "predicted/measured", "tensors")]
    for one in report.nets:
        times = map(time_text, (one.predicted_s, one.simulated_s, one.measured_s))
        rows.append((one.net, *times, ratio_text(one.ratio), f"{one.tensors} {'equal' if one.equal else 'DIFFERENT'}"))
    return rows


def _notes(report: SearchedReport) -> list[str]:
    link, device = report.cluster.link, report.cluster.device
    return [
        f"{len(report.nets)} nets drawn with seed {report.seed}; {report.ranks} ranks on {report.shared_cores} cores; "
        f"medians of {report.steps} steps; predicted and simulated ranks share the cores as well",
        f"profile: alpha {link.alpha_s * 1e6:.3g} us, beta {link.beta_s_per_byte * 1e9:.3g} ns per byte; a rank alone "
        f"on a core: {device.flops_per_s / 1e9:.3g} Gflop/s, {device.memory_bandwidth_bytes_per_s / 1e9:.3g} GB/s, "
        f"{device.overhead_s * 1e6:.3g} us per instruction",
        f"median of predicted/measured itself: {report.spread['median_ratio']:.2f}",
    ]


def searched_text(report: SearchedReport) -> str:
    """Table, goals and notes."""
    return tables_text([(_rows(report), 1), (goal_rows(searched_goals(report)), 2)], _notes(report))


def searched_dict(report: SearchedReport) -> dict[str, Any]:
    """The numbers for JSON."""
    nets = [{**dataclasses.asdict(one), "ratio": one.ratio} for one in report.nets]
    return {**dataclasses.asdict(report), "nets": nets, "spread": report.spread}


def searched_page(report: SearchedReport, machine: Mapping[str, Any]) -> str:
    """The same as a page, with predicted over measured as a figure."""
    points = tuple(sorted((one.measured_s, one.predicted_s) for one in report.nets))
    ends = tuple((t, t) for t in (points[0][0], points[-1][0]))
    series = [Series("a net", points, line=False), Series("equal", ends, marks=False, dashed=True)]
    spread = report.spread
    alt = f"Predicted over measured seconds of {len(points)} nets; apart by {spread['median']:.2f} in the median, "
    chart = log_chart(
        "predicted step over measured step", series, x_name="measured", alt=f"{alt}{spread['worst']:.2f} at most."
    )
    notes = "".join(f"<p>{escape(line)}</p>" for line in _notes(report))
    tables = html_table(goal_rows(searched_goals(report)), left=2) + html_table(_rows(report))
    return bench_page("Steps of searched plans", machine, f"{chart}{tables}{notes}")
