"""A training step here and in PyTorch: equal networks, weights and numbers of threads, timed in turns.

    mlp          784-1024-1024-10, ReLU, batch 256
    transformer  4 blocks, 256 wide, 4 heads, 64 positions, batch 16, 256 tokens (models.GPT)
    conv         3-32-64 channels, 3x3, ReLU, 2x2 max pooling, dense 4096-10, 32x32 pictures, batch 64
    tiny         one product of 4 elements, forward and backward: what the tape itself costs

A step is forward, backward and plain gradient descent in float32, run at once (no compiled plan, one device). Next to
the times stand the largest difference of loss and gradients between the two (per tensor, relative to its largest
element) and the peak memory of our step over what it must have: parameters, gradients, states, the tape's activations.
"""

from __future__ import annotations

import gc
import os
import statistics
import tracemalloc
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np

from parallel_lab import nn, ops
from parallel_lab.base.errors import MissingPackage
from parallel_lab.base.seeds import temporary_seed
from parallel_lab.nn import models
from parallel_lab.nn.tensor.autograd import gradients, value_and_grad
from parallel_lab.nn.tensor.parameter import Parameter
from parallel_lab.nn.tensor.tensor import Tensor
from tests.bench.groups import (
    BATCH_S,
    BenchError,
    RankGroup,
    connect_rank,
    interleaved_batches,
    rank_arguments,
    serve_rank,
)
from tests.bench.page import tables_text
from tests.bench.peers import without_torch

# what the project promises, as ratios of our time to PyTorch's; and of peak memory to the necessary
LIMITS = {"mlp": (1.1, 1.5), "transformer": (1.6, 1.5), "conv": (3.0, 2.0), "tiny": (1.5, None)}
TINY_CHAIN = 500  # operators in the chain that measures the tape; the time shown is that of one
LEARNING_RATE = 0.01


class _Conv(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 32, 3, pad_mode="pad", padding=1, has_bias=True)
        self.conv2 = nn.Conv2d(32, 64, 3, pad_mode="pad", padding=1, has_bias=True)
        self.relu, self.pool, self.flatten = nn.ReLU(), nn.MaxPool2d(2, 2), nn.Flatten()
        self.fc = nn.Dense(4096, 10)

    def construct(self, x: Any) -> Any:
        x = self.pool(self.relu(self.conv1(x)))
        return self.fc(self.flatten(self.pool(self.relu(self.conv2(x)))))


def network(case: str) -> tuple[nn.Cell, nn.Cell, np.ndarray, np.ndarray]:
    """(network, loss, input, labels) of a case; weights and data do not depend on the global seed."""
    with temporary_seed(1):
        net, loss, x, labels = _network(case)
        for parameter in net.get_parameters():
            parameter.asnumpy()  # drawn when it is asked for
    return net, loss, x, labels


def _network(case: str) -> tuple[nn.Cell, nn.Cell, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    if case == "mlp":
        net = nn.SequentialCell(nn.Dense(784, 1024), nn.ReLU(), nn.Dense(1024, 1024), nn.ReLU(), nn.Dense(1024, 10))
        x, labels = rng.standard_normal((256, 784), np.float32), rng.integers(0, 10, 256)
    elif case == "transformer":
        net = models.GPT(256, hidden=256, layers=4, heads=4, seq_length=64)
        x, labels = rng.integers(0, 256, (16, 64)), rng.integers(0, 256, (16, 64))
    else:
        net = _Conv()
        x, labels = rng.standard_normal((64, 3, 32, 32), np.float32), rng.integers(0, 10, 64)
    loss = models.LanguageModelLoss() if case == "transformer" else nn.CrossEntropyLoss()
    return net, loss, x, labels.astype(np.int32)


def our_step(case: str) -> Callable[[], None]:
    """A function that takes one training step, as a user writes it."""
    if case == "tiny":
        w = Parameter(Tensor(np.ones(4, np.float32)), name="w")

        def tiny() -> None:
            x = w
            for _ in range(TINY_CHAIN):
                x = x * w
            gradients(ops.reduce_sum(x), [w])

        return tiny
    net, loss, x, labels = network(case)
    optimizer = nn.SGD(net.trainable_params(), LEARNING_RATE)
    forward = value_and_grad(nn.WithLossCell(net, loss), None, optimizer.parameters)
    inputs = Tensor(x), Tensor(labels)

    def step() -> None:
        _, grads = forward(*inputs)
        optimizer(grads)

    return step


# ---- PyTorch ----


def _torch() -> Any:
    try:
        import torch
    except ImportError as error:
        raise MissingPackage("PyTorch is not installed", where="bench", hint="pip install torch") from error
    return torch


def _torch_network(case: str, threads: int) -> tuple[Any, Any, Any, Any]:
    """(module, loss function, input, labels) with the weights of `network(case)`, each parameter under our name."""
    torch = _torch()
    torch.set_num_threads(threads)
    functional = torch.nn.functional
    net, _, x, labels = network(case)
    weights = {name: torch.tensor(p.asnumpy(), requires_grad=True) for name, p in net.parameters_dict().items()}

    def dense(name: str, value: Any) -> Any:
        return functional.linear(value, weights[f"{name}.weight"], weights[f"{name}.bias"])

    def norm(name: str, value: Any) -> Any:
        return functional.layer_norm(value, value.shape[-1:], weights[f"{name}.gamma"], weights[f"{name}.beta"], 1e-5)

    def mlp(value: Any) -> Any:
        return dense("4", functional.relu(dense("2", functional.relu(dense("0", value)))))

    def conv(value: Any) -> Any:
        for name in ("conv1", "conv2"):
            value = functional.conv2d(value, weights[f"{name}.weight"], weights[f"{name}.bias"], padding=1)
            value = functional.max_pool2d(functional.relu(value), 2)
        return dense("fc", value.flatten(1))

    def transformer(ids: Any) -> Any:
        n, s = ids.shape
        value = functional.embedding(ids, weights["token_table"]) + weights["position_table"]
        for i in range(4):
            block = f"blocks.{i}"
            inner = norm(f"{block}.norm1", value)
            projected = (dense(f"{block}.attention.{part}", inner) for part in ("query", "key", "value"))
            q, k, v = (x.view(n, s, 4, -1).transpose(1, 2) for x in projected)
            mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(n, s, -1)
            value = value + dense(f"{block}.attention.out", mixed)
            hidden = functional.gelu(dense(f"{block}.mlp.fc1", norm(f"{block}.norm2", value)), approximate="tanh")
            value = value + dense(f"{block}.mlp.fc2", hidden)
        return (norm("norm", value) @ weights["head"].T).flatten(0, 1)

    forward = {"mlp": mlp, "conv": conv, "transformer": transformer}[case]
    return weights, forward, torch.tensor(x), torch.tensor(labels.reshape(-1).astype(np.int64))


def torch_step(case: str, threads: int) -> Callable[[], None]:
    """As `our_step`, in PyTorch."""
    torch = _torch()
    torch.set_num_threads(threads)
    if case == "tiny":
        w = torch.ones(4, requires_grad=True)

        def tiny() -> None:
            x = w
            for _ in range(TINY_CHAIN):
                x = x * w
            x.sum().backward()

        return tiny
    weights, forward, x, labels = _torch_network(case, threads)
    optimizer = torch.optim.SGD(list(weights.values()), lr=LEARNING_RATE)

    def step() -> None:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(forward(x), labels).backward()
        optimizer.step()

    return step


# ---- what stands next to the times ----


def agreement(case: str) -> float:
    """Largest difference of loss and gradients from PyTorch's, relative to a tensor's top (at least 1/1000 of all)."""
    net, loss, x, labels = network(case)
    params = net.trainable_params()
    value, grads = value_and_grad(nn.WithLossCell(net, loss), None, params)(Tensor(x), Tensor(labels))
    weights, forward, torch_x, torch_labels = _torch_network(case, 1)
    theirs = _torch().nn.functional.cross_entropy(forward(torch_x), torch_labels)
    theirs.backward()
    pairs = [
        (value.asnumpy(), theirs.detach().numpy()),
        *((g.asnumpy(), weights[p.name].grad.numpy()) for p, g in zip(params, grads, strict=True)),
    ]
    # a key's bias moves all scores of a query alike: its gradient is 0 but for noise, without a scale of its own
    least = 1e-3 * max(float(np.abs(b).max()) for _, b in pairs[1:])
    return max(float(np.abs(a - b).max()) / max(float(np.abs(b).max()), least) for a, b in pairs)


def memory(case: str) -> dict[str, int]:
    """Bytes of our step: measured `peak` of numpy; computed `parameters`, `gradients`, `states`, `activations`."""
    tracemalloc.start()
    try:
        start = tracemalloc.get_traced_memory()[0]
        step = our_step(case)
        step()
        gc.collect()
        tracemalloc.reset_peak()
        step()
        peak = tracemalloc.get_traced_memory()[1] - start
    finally:
        tracemalloc.stop()
    net, loss, x, labels = network(case)
    out = nn.WithLossCell(net, loss)(Tensor(x), Tensor(labels))
    buffers: dict[int, int] = {}
    stack, seen = [out], set()
    while stack:
        tensor = stack.pop()
        if id(tensor) in seen or isinstance(tensor, Parameter):
            continue
        seen.add(id(tensor))
        array = tensor.asnumpy()
        while isinstance(array.base, np.ndarray):  # a reshaped value is the memory of another
            array = array.base
        buffers[id(array)] = array.nbytes
        stack.extend(tensor.node.operands if tensor.node is not None else ())
    parameters = sum(p.asnumpy().nbytes for p in net.trainable_params())
    needed = {"parameters": parameters, "gradients": parameters, "states": 0, "activations": sum(buffers.values())}
    return {"peak": peak, **needed}


# ---- in turns ----


def measure_training(cases: Sequence[str], rounds: int, threads: int) -> list[dict[str, Any]]:
    """Per case: seconds of each round ("ours", "torch"), `ratio` of medians, `limit`, `difference`, `memory`.
    Without PyTorch only ours: ratio and difference are None. Raises BenchError.
    """
    names = ("ours",) if without_torch() else ("ours", "torch")
    found = []
    with ExitStack() as stack:
        competitors = [stack.enter_context(RankGroup(name, 1, __name__, [name], threads=threads)) for name in names]
        for case in cases:
            seconds, failed = interleaved_batches(competitors, {"op": case}, rounds, BATCH_S)
            if failed:
                raise BenchError("; ".join(failed.values()))
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
                    "ratio": medians["ours"] / medians["torch"] if "torch" in medians else None,
                    "limit": speed,
                    "difference": agreement(case) if "torch" in medians and case != "tiny" else None,
                    "memory_bytes": memory(case) if case != "tiny" else None,
                    "memory_limit": peak,
                }
            )
    return found


def training_text(results: Sequence[Mapping[str, Any]]) -> str:
    """The results as a table with its legend."""
    head = ("case", "ours", "PyTorch", "ratio", "at most", "difference", "peak memory", "over needed", "at most")
    rows = [head]
    for r in results:
        unit, scale = ("us per operator", 1e6) if r["case"] == "tiny" else ("ms", 1e3)
        shown = {name: f"{s * scale:.2f} {unit}" for name, s in r["median_s"].items()}
        memory = r["memory_bytes"]
        peak, over = "", ""
        if memory:
            peak = f"{memory['peak'] / 2**20:.1f} MiB"
            over = f"{memory['peak'] / sum(v for k, v in memory.items() if k != 'peak'):.2f}"
        ratio = "" if r["ratio"] is None else f"{r['ratio']:.2f}"
        difference = "" if r["difference"] is None else f"{r['difference']:.1e}"
        theirs, limit = shown.get("torch", "not installed"), r["memory_limit"] or ""
        rows.append((r["case"], shown["ours"], theirs, ratio, str(r["limit"]), difference, peak, over, str(limit)))
    lines = [
        f"measured: medians of {len(results[0]['seconds']['ours'])} rounds in turns, {results[0]['threads']} "
        "thread(s) each, float32, one device",
        "difference: largest of loss and gradients against PyTorch with the same weights, relative to each tensor's "
        "largest element",
        "over needed: peak of numpy's memory in a step over parameters, gradients, optimizer state and the "
        "activations that the tape holds",
    ]
    if results[0]["ratio"] is None:
        lines.append("PyTorch is not installed: pip install torch to compare")
    return tables_text([(rows, len(head))], lines)


# ---- a competitor ----


def _main() -> None:
    args = rank_arguments("ours", "torch")
    pipe, _ = connect_rank(args.rank)
    threads = int(os.environ["OMP_NUM_THREADS"])
    steps = {"ours": our_step, "torch": lambda case: torch_step(case, threads)}
    serve_rank(pipe, lambda order: steps[args.who](order["op"]), lambda: None)


if __name__ == "__main__":
    _main()
