"""Lesson 04: fusion and overlap."""

from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from ... import nn
from ...base.cluster import Link
from ...base.files import shipped_folder
from ...base.units import table_lines
from ...cost.overlap import Gradient, best_bucket_count, equal_buckets_step_s, predict_overlap
from ...graph.compiler import compile_network
from ...graph.plan import Plan
from ...processes.measure import fit_link, measure_device, measured_cluster, median_s
from ...processes.shm import WorkerPool
from ...train.session import Session
from ..exercises import check, hint, par
from ..fusion.case import Settings
from ..fusion.model import FusionLab
from ..fusion.subjects import get_subject
from ..pictures.charts import bar_chart
from ..pictures.plotted import Plotted, plotted
from ..shared.equality import Equality, bits_of, compare_sessions
from ..shared.jobs import ChainNet
from ..shared.prediction import Comparison
from ..shared.step_times import step_times
from .predictions import Answers


def lanes_text(lab: FusionLab) -> str:
    """The two lanes of one step as text: a part of `lab.to_text()`."""
    return next(part for part in lab.to_text().split("\n\n") if part.startswith("Lanes"))


def split_into_messages(counts: Iterable[int]) -> Plotted:
    """How long two processes take to add up the same 256 KiB, in more and more messages."""

    def seconds(comm: Any, pieces: int) -> float:
        arrays = np.split(np.ones(65_536, np.float32), pieces)
        return median_s(comm, lambda: [comm.all_reduce(array) for array in arrays], repeats=30)

    with WorkerPool(2) as pool:
        pool.run(seconds, 4)  # the first messages of new workers are slow
        took_ms = {str(pieces): 1e3 * max(pool.run(seconds, pieces)) for pieces in counts}
    return plotted(bar_chart("256 KiB added up by two processes", "measured", took_ms, "time in ms", "messages"))


MB = 2**20


def _deep() -> tuple[nn.Cell, nn.Optimizer, np.ndarray]:
    """A network with 41 parameters of 4 x 4, its optimizer, a batch."""
    net = ChainNet((4,) * 42)
    return net, nn.SGD(net.trainable_params(), 0.1), np.ones((4, 4), np.float32)


def fused_plan(setting: dict[str, Any], deep: Any = None) -> Plan:
    """Data parallel on two ranks, the gradients of 41 parameters fused so."""
    net, optimizer, rows = deep or _deep()
    how = {"loss": nn.MSELoss(), "optimizer": optimizer, "device_num": 2, "parallel_mode": "data_parallel"}
    return compile_network(net, rows[:2], rows[:2], comm_fusion=setting, **how)


@cache
def _sizes(indices: tuple[int, ...]) -> list[int]:
    net, optimizer, rows = deep = _deep()
    plan = fused_plan({"allreduce": {"mode": "index", "config": list(indices)}}, deep)
    with Session(plan, net, optimizer) as session:
        session.train([(rows, rows)], 1, record=1)
        # a gradient has 4 x 4 elements of 4 bytes
        return [e.bytes // 64 for e in session.events if e.rank == 0 and e.overlapped]


def gradients_per_message(indices: Iterable[int]) -> list[int]:
    """Messages of a network with 41 parameters, fused by these indices: counted in a step, in the order of sending."""
    return list(_sizes(tuple(indices)))


def compare(prediction: dict[str, Any], *, show: bool = False) -> Comparison:
    """The answers next to the closed form for equal messages, and next to a count message by message."""
    line = Link(alpha_s=2e-3, beta_s_per_byte=0.25e-3 / MB)
    six = [Gradient(f"g{n}", 4 * MB, 2e-3) for n in range(6)]
    by_formula = {k: round(1e3 * equal_buckets_step_s(12e-3, 24 * MB, k, line), 3) for k in (6, 1, 3)}

    def counted(groups: Iterable[int], **how: Any) -> float:
        return round(1e3 * predict_overlap(six, groups, line, **how).step_s, 3)

    return Answers("04", prediction, show).next_to(
        after=(
            *(12 + 6 * 3, lambda: counted(range(6), after_backward=True)),
            "12 ms of backward, then six messages of 3 ms",
        ),
        unfused=(by_formula[6], lambda: counted(range(6)), "2 ms until the first is ready, then 6 x 3 ms"),
        one=(by_formula[1], lambda: counted([0] * 6), "12 ms of backward, then 2 + 6 ms: nothing is hidden"),
        three=(by_formula[3], lambda: counted([0, 0, 1, 1, 2, 2]), "4 ms until two are ready, then 3 x 4 ms"),
        first_message=(21, lambda: gradients_per_message([20, 35])[-1], "0 to 20: an index is inclusive, from 0"),
    )


def compare_numbers(prediction: dict[str, Any], proofs: Iterable[Equality], *, show: bool = False) -> Comparison:
    """The answer on numbers next to the tensors of these proofs, bit for bit."""
    row = ("same", bits_of(proofs), "every element is the same sum in the same order")
    return Answers("04", prediction, show).next_to(numbers=row)


def three_times(name: str, modes: Iterable[tuple[str, Settings]], cluster: Any, pool: Any) -> None:
    """Print a step's time of a network with each fusion mode: predicted, simulated and measured on the pool."""
    job = get_subject(name).job()
    count = len(job.net.trainable_params())
    rows = [("network", "fusion", "predicted", "simulated", "measured")]
    for mode, settings in modes:
        plan = job.compile(devices=2, parallel_mode="data_parallel", comm_fusion=settings.comm_fusion(mode, count))
        times = step_times(plan, job.net, job.optimizer, job.batches, cluster, steps=5, pool=pool)
        found = {}
        for source, time_s, spread, _ in times.rows:
            shown = f" ({spread[0] * 1e3:.1f} to {spread[1] * 1e3:.1f})" if spread else ""
            found[source] = f"{time_s * 1e3:.1f} ms{shown}"
        rows.append((name, mode, *(found[source] for source in rows[0][2:])))
    print("\n".join(table_lines(rows)))


def proof(name: str, mode: str, settings: Settings) -> Equality:
    """Ten steps of a network on two processes, fused and unfused, side by side."""
    job = get_subject(name).job()
    setting = settings.comm_fusion(mode, len(job.net.trainable_params()))
    plans = [job.compile(devices=2, parallel_mode="data_parallel", comm_fusion=fusion) for fusion in (setting, {})]
    fused, unfused = (Session(plan, job.net, job.optimizer, executor="processes") for plan in plans)
    with fused, unfused:
        table = compare_sessions(fused, unfused, job.batches, 10)
    return replace(table, title=f"{name}, fusion {mode}, against no fusion, on 2 worker processes")
