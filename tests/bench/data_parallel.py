"""A data-parallel step here and in PyTorch's DDP on gloo: MLP 784-1024-1024-10, global batch of 256 rows.

    results = measure_data_parallel((2, 4))
    print(data_parallel_text(results))

Ours is a compiled plan in data_parallel mode on worker processes (`Session`): "ours" sends one all_reduce per
parameter, "ours fused" packs gradients into buckets that travel during the rest of the backward pass (comm_fusion
auto), which is what DDP does (buckets of 25 MiB). One thread per rank everywhere. All begin with the same weights and
the same data; loss and gradients of the first step are compared tensor by tensor before anything is timed.

    python -m tests.bench.data_parallel --rank 0 --ranks 2          a rank of DDP, started by `RankGroup`
"""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from parallel_lab import nn
from parallel_lab.base.errors import ArgumentError, ParallelLabError, message
from parallel_lab.base.system import cores
from parallel_lab.base.units import time_text
from parallel_lab.graph.compiler import compile_network
from parallel_lab.processes.measure.measure import load
from parallel_lab.processes.shm import WorkerPool
from parallel_lab.train.session import Session
from tests.bench import groups
from tests.bench.goals import Goal
from tests.bench.page import quotient, ratio_text, tables_text
from tests.bench.peers import without_torch
from tests.bench.training import LEARNING_RATE, network

OURS, FUSED, DDP = "ours", "ours fused", "torch DDP"
LIMITS = {2: 0.75, 4: 0.7}  # ours over DDP, by ranks
GLOBAL_ROWS = 256
FUSION = {OURS: None, FUSED: {"allreduce": {"mode": "auto", "config": None}}}


class OwnTraining:
    """A plan of the MLP in data_parallel mode on a pool of workers."""

    def __init__(self, pool: WorkerPool, name: str, rows: int) -> None:
        self.name = name
        net, loss, x, labels = network("mlp")
        self.batch_of = (x[:rows], labels[:rows])
        optimizer = nn.SGD(net.trainable_params(), LEARNING_RATE)
        mine = rows // pool.world_size
        settings = {} if FUSION[name] is None else {"comm_fusion": FUSION[name]}
        settings |= {"device_num": pool.world_size, "parallel_mode": "data_parallel", "gradients_mean": True}
        plan = compile_network(net, x[:mine], labels[:mine], loss=loss, optimizer=optimizer, **settings)
        self.session = Session(plan, net, optimizer, executor="processes", pool=pool)

    def first_step(self) -> tuple[float, dict[str, np.ndarray]]:
        """(loss, gradients by parameter) of the first step: the mean of the ranks' losses, the mean gradients."""
        self.session.train([self.batch_of], 1)
        return float(np.mean(self.session.slices(self.session.plan.outputs[0]))), self.session.gradients()

    def batch(self, order: Mapping[str, Any], iterations: int) -> float:
        """Seconds of one step, from the first instruction on any rank to the last. Raises BenchError."""
        try:
            self.session.train([self.batch_of], iterations, record=iterations)
        except ParallelLabError as error:
            text = message(f"{self.name}: {groups.first_line(error)}", where="bench training")
            raise groups.BenchError(text) from error
        events = self.session.events
        return (max(e.end_s for e in events) - min(e.start_s for e in events)) / iterations

    def close(self) -> None:
        """Free what the workers hold."""
        self.session.close()


def measure_data_parallel(
    ranks: Sequence[int] = (2, 4),
    rounds: int = 9,
    *,
    rows: int = GLOBAL_ROWS,
    batch_s: float = groups.BATCH_S,
    peers: bool = True,
) -> list[dict[str, Any]]:
    """Per number of ranks: `seconds` of each round's step by competitor, `failed`, `differences` from DDP (`peers`
    False: no PyTorch). `rows`: of the global batch, split equally; ArgumentError where ranks cannot share it.
    """
    wrong = [p for p in ranks if p < 2 or rows % p]
    if wrong or not ranks or rounds < 1:
        what = f"ranks={tuple(ranks)}, {rows} rows, {rounds} rounds"
        raise ArgumentError(what, where="bench training", allowed="Two ranks or more that divide the rows, and a round")
    return [_measure(p, rounds, rows, batch_s, peers) for p in ranks]


def _measure(ranks: int, rounds: int, rows: int, batch_s: float, peers: bool) -> dict[str, Any]:
    before = load()
    with contextlib.ExitStack() as stack:
        pool = stack.enter_context(WorkerPool(ranks, timeout_s=120.0, warn_after_s=60.0))
        competitors: list[groups.Competing] = []
        first: dict[str, tuple[float, dict[str, np.ndarray]]] = {}
        failed: dict[str, str] = {}
        for name in (OURS, FUSED):
            ours = OwnTraining(pool, name, rows)
            stack.callback(ours.close)
            try:
                first[name] = ours.first_step()
                competitors.append(ours)
            except ParallelLabError as error:
                failed[name] = groups.first_line(error)
        missing = without_torch() if peers else "not asked for"
        if not missing:
            try:
                group = stack.enter_context(groups.RankGroup(DDP, ranks, __name__))
                first[DDP] = _first_of_ddp(group, rows)
                competitors.append(group)
            except groups.BenchError as error:
                missing = groups.first_line(error)
        seconds, more = groups.interleaved_batches(competitors, {"op": "step", "rows": rows}, rounds, batch_s)
    return {
        "ranks": ranks,
        "rows": rows,
        "rounds": rounds,
        "cores": cores(),
        "load": [before, load()],
        "seconds": seconds,
        "median_s": {name: statistics.median(times) for name, times in seconds.items()},
        "failed": {**failed, **more},
        "missing": {DDP: missing} if missing else {},
        "differences": {name: _differences(first[name], first[DDP]) for name in first if DDP in first and name != DDP},
        "fusion_changes_nothing": _bit_equal(first[OURS], first[FUSED]) if OURS in first and FUSED in first else None,
        "limit": LIMITS.get(ranks),
    }


def _first_of_ddp(group: groups.RankGroup, rows: int) -> tuple[float, dict[str, np.ndarray]]:
    answers = group.ask({"op": "gradients", "rows": rows})
    with np.load(group.folder / "gradients.npz") as stored:
        return float(np.mean([a["loss"] for a in answers])), {name: stored[name] for name in stored.files}


def _differences(
    ours: tuple[float, dict[str, np.ndarray]], theirs: tuple[float, dict[str, np.ndarray]]
) -> dict[str, float]:
    """Largest difference of the loss and of each gradient, relative to the largest element of theirs."""
    found = {"loss": abs(ours[0] - theirs[0]) / abs(theirs[0])}
    for name, gradient in ours[1].items():
        other = theirs[1][name]
        found[name] = float(np.abs(gradient - other).max() / np.abs(other).max())
    return found


def _bit_equal(a: tuple[float, dict[str, np.ndarray]], b: tuple[float, dict[str, np.ndarray]]) -> bool:
    return a[0] == b[0] and a[1].keys() == b[1].keys() and all(np.array_equal(a[1][n], b[1][n]) for n in a[1])


# ---- shown ----


def data_parallel_text(results: Sequence[Mapping[str, Any]]) -> str:
    """Times and ratios, then the differences by tensor."""
    rows = [("ranks", OURS, FUSED, DDP, "ours/DDP", "fused/DDP", "at most", "")]
    goals = {goal.what: goal for goal in data_parallel_goals(results)}
    for r in results:
        times = tuple(r["median_s"].get(name) for name in (OURS, FUSED, DDP))
        ratios = tuple(quotient(t, times[2]) for t in times[:2])
        limit = "" if r["limit"] is None else ratio_text(r["limit"])
        verdict = goals[_what(r)].verdict if _what(r) in goals else ""
        rows.append((str(r["ranks"]), *map(time_text, times), *map(ratio_text, ratios), limit, verdict))
    tables, lines = [(rows, 1)], []
    compared = [(r, name, found) for r in results for name, found in r["differences"].items()]
    if compared:
        tensors = list(compared[0][2])
        table = [("difference from torch DDP", *tensors)]
        table += [(f"{name}, {r['ranks']} ranks", *(f"{found[t]:.1e}" for t in tensors)) for r, name, found in compared]
        tables.append((table, 1))
        lines.append("largest difference of the first step, relative to the largest element of each tensor")
    first = results[0]
    lines += [
        f"measured: MLP 784-1024-1024-10, {first['rows']} rows in all, medians of {first['rounds']} rounds in turns, "
        f"one thread per rank, {first['cores']} cores, load {first['load'][0]:.1f} before, "
        f"{results[-1]['load'][1]:.1f} after",
        "goals are judged on 'ours fused': DDP packs gradients too",
    ]
    for r in results:
        if r["fusion_changes_nothing"] is not None:
            same = "equal bit for bit" if r["fusion_changes_nothing"] else "DIFFERENT"
            lines.append(f"{r['ranks']} ranks: loss and gradients with and without fusion are {same}")
        lines += [f"{r['ranks']} ranks: {name}: {words}" for name, words in {**r["failed"], **r["missing"]}.items()]
    return tables_text(tables, lines)


def data_parallel_goals(results: Sequence[Mapping[str, Any]]) -> tuple[Goal, ...]:
    """The goals of the numbers of ranks that have one."""
    found = []
    for r in results:
        if r["limit"] is not None:
            ours, plain, theirs = (r["median_s"].get(name) for name in (FUSED, OURS, DDP))
            reached, allocated = quotient(ours, theirs), quotient(plain, theirs)
            found.append(Goal(_what(r), DDP, r["limit"], reached, "beside: without fusion", allocated))
    return tuple(found)


def _what(result: Mapping[str, Any]) -> str:
    return f"data-parallel MLP step, {result['ranks']} ranks"


# ---- a rank of DDP ----


def _ddp(rank: int, ranks: int) -> None:
    pipe, folder = groups.connect_rank(rank)
    import torch
    from torch import distributed
    from torch.nn.parallel import DistributedDataParallel

    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{folder}/gloo", rank=rank, world_size=ranks)
    linear, relu = torch.nn.Linear, torch.nn.ReLU

    def make(order: Mapping[str, Any]) -> Callable[[], object]:
        net, _, x, labels = network("mlp")
        module = torch.nn.Sequential(linear(784, 1024), relu(), linear(1024, 1024), relu(), linear(1024, 10))
        weights = {name: torch.tensor(p.asnumpy()) for name, p in net.parameters_dict().items()}
        module.load_state_dict(weights)  # the names are those of a SequentialCell
        model = DistributedDataParallel(module)
        optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
        mine = order["rows"] // ranks
        part = slice(rank * mine, (rank + 1) * mine)
        tx, ty = torch.tensor(x[part]), torch.tensor(labels[part].astype(np.int64))

        def backward() -> Any:
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(tx), ty)
            loss.backward()
            return loss

        def gradients() -> dict[str, Any]:
            loss = backward()
            if rank == 0:
                np.savez(folder / "gradients.npz", **{name: p.grad.numpy() for name, p in module.named_parameters()})
            return {"loss": loss.item()}

        def step() -> None:
            backward()
            optimizer.step()

        return gradients if order["op"] == "gradients" else step

    distributed.barrier()
    groups.serve_rank(pipe, make, distributed.barrier)


def _main() -> None:
    args = groups.rank_arguments()
    _ddp(args.rank, args.ranks)


if __name__ == "__main__":
    _main()
