"""What this machine does, measured on its own ranks, sharing cores, caches and memory as in a training: messages (for
`fit_link(pool, "all_reduce")`) and the device one rank is while all compute (`measure_device(pool)`).
"""

from __future__ import annotations

import contextlib
import math
import os
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ...base.checks import choice, integer, is_int
from ...base.cluster import Device, get_cluster
from ...base.errors import ArgumentError, shorten
from ...base.system import free_memory_bytes

FIT_KIND = choice("send", "all_reduce", "behind_work")  # what a link is fitted by
PRODUCT = 512  # rows and columns of the matrix product: large enough for full speed, 1 MiB per float32 operand
COPY_BYTES = 16 << 20  # beyond the caches, where gradients and activations of a training step lie
THIN = 8  # rows that a matrix of COPY_BYTES is multiplied with: a rank's share of a batch; reading takes the time then
LAYER = 256  # rows and columns of the product that messages are measured behind: half a millisecond, a small layer
LAYERS, ROWS = 4, 4  # of a small training step, in which nothing takes its time for its size
ROUNDS, STEPS = 21, 3  # of such steps, in turns: on a busy machine they take longer at one time than at another
PAIRS = 4  # of messages in a row, so that ranks wait for each other as in a step
SHORTEST_S = 1e-7  # that a difference of two times may be: a message takes time
LEAST_S = 0.2  # a timed piece of work lasts at least this long: some time slices of every rank that shares the core


def load() -> float:
    """1-minute load average."""
    return os.getloadavg()[0]


@contextlib.contextmanager
def pool_of(ranks: Any, least: int) -> Iterator[Any]:
    """The pool that was given, or one of that many workers for as long as it is needed."""
    if not is_int(ranks) and not hasattr(ranks, "world_size"):
        raise ArgumentError(f"ranks={shorten(ranks)}", where="measuring", allowed="A number of workers, or a pool")
    world_size = ranks if is_int(ranks) else ranks.world_size
    if world_size < least:
        raise ArgumentError(f"{world_size} ranks", where="measuring", allowed=f"{least} or more")
    if not is_int(ranks):
        yield ranks
        return
    from ..shm import WorkerPool  # reading a fit needs no processes

    with WorkerPool(world_size) as pool:
        yield pool


def message_samples(
    ranks: Any, kind: str, sizes_bytes: tuple[int, ...], repeats: int, warm_ups: int
) -> tuple[list[list[float]], int]:
    """Seconds of every repeat by size, and the number of ranks; see `fit_link`."""
    FIT_KIND("fit_link", "kind", kind)
    if not sizes_bytes or not all(is_int(m, 4) and m % 4 == 0 for m in sizes_bytes):
        allowed = "Multiples of 4, from 4 on: float32 is sent"
        raise ArgumentError(f"sizes_bytes={shorten(sizes_bytes)}", where="fit_link", allowed=allowed)
    integer(1)("fit_link", "repeats", repeats)
    integer(0)("fit_link", "warm_ups", warm_ups)
    with pool_of(ranks, 2) as pool:
        if kind == "behind_work" and any(m % (4 * pool.world_size) for m in sizes_bytes):
            what, allowed = f"sizes_bytes={shorten(sizes_bytes)}", f"Multiples of {4 * pool.world_size}: 4 per rank"
            raise ArgumentError(what, where="fit_link", allowed=allowed)
        by_rank = pool.run(_time_messages, kind, sizes_bytes, repeats, warm_ups)
        world_size = pool.world_size
    # the slowest rank's time of each repeat is the message's; of a round trip only rank 0 knows it
    timed, pairs = by_rank[:1] if kind == "send" else by_rank, PAIRS if kind == "behind_work" else 1
    samples = [[max(times) / pairs for times in zip(*rows, strict=True)] for rows in zip(*timed, strict=True)]
    return samples, world_size


def measure_device(ranks: Any) -> Device:
    """What one rank computes with while all of `ranks` (a number of workers, or a pool) compute. Takes about two
    seconds.

    flops_per_s                   a float32 product of 512 x 512 matrices
    memory_bandwidth_bytes_per_s  a copy of 16 MiB, a byte read and written, and a product of 8 rows with a matrix of
                                  16 MiB, together
    overhead_s                    one instruction of a training step on tiny tensors
    memory_bytes                  free memory per rank (the laptop profile's if unknown)

    Raises ArgumentError unless it is a number of workers or a pool.
    """
    with pool_of(ranks, 1) as pool:
        by_rank, world_size = pool.run(_time_device), pool.world_size
        plan = small_step(1)
        (step_s,) = measure_steps(pool, (plan,))
    product_s, copy_s, thin_s = (statistics.median(times) for times in zip(*by_rank, strict=True))
    memory = free_memory_bytes()
    return Device(
        flops_per_s=2 * PRODUCT**3 / product_s,
        memory_bytes=get_cluster("laptop").device.memory_bytes if memory is None else max(1, memory // world_size),
        memory_bandwidth_bytes_per_s=3 * COPY_BYTES / (copy_s + thin_s),
        overhead_s=step_s / len(list(plan.instructions())),
    )


def measure_call(pool: Any) -> tuple[float, float]:
    """Seconds of an instruction, and of a message of a few bytes with all waiting, in training steps of tiny tensors
    while all ranks of the pool take such steps: without messages, and with products that are split along their inner
    dim. A message is an instruction as well, and takes at least as long as one. Raises ArgumentError for a number of
    ranks that no plan is for.
    """
    plans = small_step(1), small_step(pool.world_size)
    alone_s, together_s = measure_steps(pool, plans)
    alone, together = ([instr.is_communication for _, instr in plan.instructions()] for plan in plans)
    overhead_s, messages = alone_s / len(alone), sum(together)
    return overhead_s, max((together_s - (len(together) - messages) * overhead_s) / messages, overhead_s)


def measure_steps(pool: Any, plans: tuple[Any, ...]) -> list[float]:
    """Seconds of a step of each plan on all ranks of the pool: of one device alone, while the others do the same."""
    # a step is over when the last rank is through; the first round touches memory for the first time
    rounds = np.max(pool.run(_time_steps, plans), axis=0)[1:]
    return [float(seconds) for seconds in np.median(rounds, axis=0)]


def small_step(ranks: int) -> Any:
    """The plan of a training step of LAYERS layers of common operators on ROWS x (ROWS ranks), on so many ranks: a
    product, which is split along its inner dim, a bias, a LayerNorm and a ReLU; cross-entropy; Adam.
    """
    from ... import nn
    from ...graph.compiler import compile_network
    from ...ops.activation import relu

    class Layers(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.CellList([nn.Dense(width, width, "ones") for _ in range(LAYERS)])
            self.norms = nn.CellList([nn.LayerNorm((width,)) for _ in range(LAYERS)])
            for layer in self.layers:
                layer.matmul.shard(((1, ranks), (1, ranks)))

        def construct(self, x: Any) -> Any:
            for layer, norm in zip(self.layers, self.norms, strict=True):
                x = relu(norm(layer(x)))
            return x

    width = ROWS * ranks
    net, x, labels = Layers(), np.ones((ROWS, width), np.float32), np.zeros(ROWS, np.int32)
    how = {"parallel_mode": "semi_auto_parallel", "dataset_strategy": "full_batch"} if ranks > 1 else {}
    loss, optimizer = nn.CrossEntropyLoss(), nn.Adam(net.trainable_params())
    return compile_network(net, x, labels, loss=loss, optimizer=optimizer, device_num=ranks, **how)


def median_s(comm: Any, call: Callable[[], object], repeats: int = 10) -> float:
    """Seconds that `call` takes on this rank: the median of `repeats` calls, each after a barrier of all ranks."""
    return statistics.median(_times(call, repeats, before=comm.barrier))


# ---- what the workers run ----


def _time_messages(
    comm: Any, kind: str, sizes_bytes: tuple[int, ...], repeats: int, warm_ups: int
) -> list[list[float]]:
    rows, layer = [], np.full((LAYER, LAYER), 0.5, np.float32)
    product = np.empty_like(layer)
    for size_bytes in sizes_bytes:
        x = np.zeros(size_bytes // 4, np.float32)
        x.fill(0)  # pages that nothing was written to are all one page of zeros, which would be read from the cache
        if kind == "send":
            times = _times(_round_trip(comm, x), warm_ups + repeats)
            rows.append([t / 2 for t in times[warm_ups:]])
        elif kind == "behind_work":
            calls = _behind_work(comm, x, lambda: np.matmul(layer, layer, out=product))
            # in turns: on a busy machine work takes longer at one time than at another
            found = [[_times(call, 1, before=comm.barrier)[0] for call in calls] for _ in range(warm_ups + repeats)]
            alone_s = statistics.fmean(alone for _, alone in found[warm_ups:])
            rows.append([max(whole - alone_s, SHORTEST_S) for whole, _ in found[warm_ups:]])
        else:
            times = _times(lambda x=x: comm.all_reduce(x), warm_ups + repeats, before=comm.barrier)
            rows.append(times[warm_ups:])
    return rows


def _times(call: Callable[[], object], repeats: int, before: Callable[[], object] = lambda: None) -> list[float]:
    """Seconds of each call."""
    times = []
    for _ in range(repeats):
        before()
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return times


def _round_trip(comm: Any, x: np.ndarray) -> Callable[[], None]:
    """To the other and back; ranks beyond the first two have nothing to do."""

    def first() -> None:
        comm.send(x, 1)
        comm.recv(1)

    def second() -> None:
        comm.recv(0)
        comm.send(x, 0)

    return (first, second, lambda: None)[min(comm.rank, 2)]


def _behind_work(comm: Any, x: np.ndarray, work: Callable[[], object]) -> tuple[Callable[[], None], Callable[[], None]]:
    """PAIRS of work, reduce_scatter, work, all_gather; the work alone."""
    part = x[: x.size // comm.world_size]

    def messages() -> None:
        for _ in range(PAIRS):
            work()
            comm.reduce_scatter(x)
            work()
            comm.all_gather(part)

    def alone() -> None:
        for _ in range(2 * PAIRS):
            work()

    return messages, alone


def _time_device(comm: Any) -> tuple[float, ...]:
    a, width = np.full((PRODUCT, PRODUCT), 0.5, np.float32), math.isqrt(COPY_BYTES // 4)
    out = np.empty_like(a)
    source, target = np.ones((width, width), np.float32), np.zeros((width, width), np.float32)
    target.fill(0)
    rows, thin = source[:THIN].copy(), target[:THIN].copy()
    works = (
        lambda: np.matmul(a, a, out=out),
        lambda: np.copyto(target, source),
        lambda: np.matmul(rows, source, out=thin),
    )
    found = []
    for work in works:
        work()
        comm.barrier()  # all ranks do the same at the same time
        found.append(_seconds_of(work))
    return tuple(found)


def _time_steps(comm: Any, plans: tuple[Any, ...]) -> list[list[float]]:
    """Seconds of one step of each plan, by round: of all ranks together, or alone while the others do the same."""
    from ...run.computing import computing

    rounds = []
    for _ in range(ROUNDS):
        rounds.append([])
        for plan in plans:
            with computing(plan):
                rounds[-1] += _times(_steps(comm, plan), 1, before=comm.barrier)
    return [[seconds / STEPS for seconds in one] for one in rounds]


def _steps(comm: Any, plan: Any) -> Callable[[], None]:
    from ...run.full_values import held_slices
    from ...run.interpreter import rank_step

    names = [i.name for i in plan.graph.inputs] + [state.name for state in plan.states]
    values = {name: np.zeros(plan.value(name).shape, plan.value(name).dtype) for name in names}
    rank = comm.rank if plan.device_num > 1 else 0
    env = held_slices(plan, rank, values | plan.constant_arrays)
    inputs = {i.name: env[i.name] for i in plan.data_inputs}

    def steps() -> None:
        for _ in range(STEPS):
            program, reply = rank_step(plan, rank, env | inputs, empty=comm.empty), None
            with contextlib.suppress(StopIteration):
                while True:
                    reply = comm.answer(program.send(reply))

    return steps


def _seconds_of(work: Callable[[], object]) -> float:
    """Seconds of one call: all that passed over the calls; a median would not see time slices of other ranks."""
    count, begin = 0, time.perf_counter()
    while count < 5 or time.perf_counter() - begin < LEAST_S:
        work()
        count += 1
    return (time.perf_counter() - begin) / count
