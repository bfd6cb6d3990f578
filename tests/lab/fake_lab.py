"""A stand-in for the headless Strategy Lab, for tests of its faces: the quick-start net of seed 003 on 1, 2, 4 or 8
ranks.

Slices, replicas and addends come from `TensorLayout`; the losses come from really training the net (numpy, float32),
once whole and once with the contracted dim added up in pieces, as ranks would. Costs are alpha-beta formulas with
made-up constants and counts are left empty: these tests look at how things are shown, not at what they cost.
"""

from __future__ import annotations

import ast
import itertools
import math
import threading

import numpy as np

from parallel_lab.base.errors import ParallelLabError, StrategyError
from parallel_lab.lab.strategy.model import StrategyLab
from parallel_lab.layout.tensor_layout import TensorLayout, slice_text

BATCH, IN_DIM, HIDDEN, OUT_DIM = 16, 32, 16, 16
STEPS = 60
ALPHA_S, BETA_S_PER_BYTE = 5e-6, 1e-9
SHAPES = {
    "x": (BATCH, IN_DIM),
    "w": (IN_DIM, HIDDEN),
    "matmul": (BATCH, HIDDEN),
    "relu": (BATCH, HIDDEN),
    "w2": (HIDDEN, OUT_DIM),
    "matmul2": (BATCH, OUT_DIM),
}
LABELS = {"x": "x", "w": "w", "matmul": "out of matmul", "relu": "out of relu", "w2": "w2", "matmul2": "out of matmul2"}
OPERATORS = {
    "matmul": ("MatMul", "mkn", ("x", "w"), "net.py:14"),
    "relu": ("ReLU", "ab", ("matmul",), "net.py:15"),
    "matmul2": ("MatMul", "mkn", ("relu", "w2"), "net.py:16"),
}
NODES = [
    ("x", "input", 0, 0),
    ("w", "parameter", 0, 1),
    ("matmul", "operator", 1, 0),
    ("relu", "operator", 2, 0),
    ("w2", "parameter", 2, 1),
]
NODES += [("matmul2", "operator", 3, 0), ("loss", "loss", 4, 0)]
EDGES = [
    ("x", "matmul", "x"),
    ("w", "matmul", "w"),
    ("matmul", "relu", "matmul"),
    ("relu", "matmul2", "relu"),
    ("w2", "matmul2", "w2"),
    ("matmul2", "loss", "matmul2"),
]


def train(pieces: int) -> np.ndarray:
    """Losses of STEPS steps of SGD on the seed's net, float32, the contracted dim of `x @ w` summed in `pieces`
    pieces.
    """
    rng = np.random.default_rng(1)
    x, y = rng.random((BATCH, IN_DIM), dtype=np.float32), rng.random((BATCH, OUT_DIM), dtype=np.float32)
    w, w2 = (rng.normal(0, 0.1, s).astype(np.float32) for s in ((IN_DIM, HIDDEN), (HIDDEN, OUT_DIM)))
    losses = []
    for _ in range(STEPS):
        parts = [a @ b for a, b in zip(np.split(x, pieces, 1), np.split(w, pieces, 0), strict=True)]
        h = parts[0]
        for part in parts[1:]:
            h = h + part
        r = np.maximum(h, 0)
        error = r @ w2 - y
        losses.append(float((error**2).mean()))
        g = (2 / error.size) * error
        w, w2 = w - np.float32(0.8) * (x.T @ ((g @ w2.T) * (h > 0))), w2 - np.float32(0.8) * (r.T @ g)
    return np.array(losses, np.float32)


class FakeLab:
    """The commands and the snapshot of the model, with a run that moves only when the test says `step()`."""

    def __init__(self, devices: int = 8) -> None:
        self.lock = threading.RLock()
        self.calls: list[tuple] = []
        self.listeners: list = []
        self.devices, self.net, self.data = devices, "quickstart", "seed"
        self.strategies: dict[str, str | None] = {
            "matmul": "((2, 4), (4, 1))" if devices == 8 else None,
            "relu": None,
            "matmul2": None,
        }
        self.refused: dict[str, tuple[str, str]] = {}
        self.tensor, self.phase, self.rank = "matmul", "forward", min(5, devices - 1)
        self.state, self.done_steps = "idle", 0
        self.single, self.parallel = train(1), train(4)

    # ---- the contract ----

    def to_text(self):
        return StrategyLab.words(self.snapshot())

    def to_html(self, title=None):
        return StrategyLab.page(self.snapshot(), title)

    def on_change(self, callback):
        self.listeners.append(callback)
        return lambda: self.listeners.remove(callback)

    def changed(self, kind: str) -> None:
        for callback in list(self.listeners):
            callback(kind)

    def _command(self, kind: str, *call) -> None:
        self.calls.append(call)
        self.changed(kind)

    def set_net(self, name):
        if name not in ("quickstart", "dense3"):
            raise ParallelLabError(f"there is no net {name!r}. Choose quickstart or dense3.")
        self.net = name
        self._command("picture", "set_net", name)

    def set_devices(self, n):
        if n not in (1, 2, 4, 8):
            raise ParallelLabError(f"{n} devices: choose 1, 2, 4 or 8.")
        self.devices, self.rank, self.refused = n, min(self.rank, n - 1), {}
        self.strategies = dict.fromkeys(self.strategies)
        self._command("picture", "set_devices", n)

    def set_data(self, name):
        self.data = name
        self._command("picture", "set_data", name)

    def set_strategy(self, operator, text):
        self.refused.pop(operator, None)
        try:
            self.strategies[operator] = None if text is None else self.check(operator, text)
        except StrategyError as error:
            self.refused[operator] = (text, str(error))
        self._command("picture", "set_strategy", operator, text)

    def select_tensor(self, tensor):
        if tensor not in SHAPES:
            raise ParallelLabError(f"there is no tensor {tensor!r}.")
        self.tensor = tensor
        self._command("picture", "select_tensor", tensor)

    def select_phase(self, phase):
        self.phase = phase
        self._command("picture", "select_phase", phase)

    def select_rank(self, rank):
        if not 0 <= rank < self.devices:
            raise ParallelLabError(f"rank {rank} does not exist. Ranks run from 0 to {self.devices - 1}.")
        self.rank = rank
        self._command("picture", "select_rank", rank)

    def _run_state(self, name, state):
        self.state = state
        self._command("run", name)

    def run(self):
        self.done_steps = 0
        self._run_state("run", "running")

    def pause(self):
        self._run_state("pause", "paused")

    def resume(self):
        self._run_state("resume", "running")

    def stop(self):
        self._run_state("stop", "done")

    def reset(self):
        self.done_steps = 0
        self._run_state("reset", "idle")

    def step(self, count: int = 1) -> None:
        self.done_steps = min(STEPS, self.done_steps + count)
        if self.done_steps == STEPS:
            self.state = "done"
            self.changed("run")
        self.changed("loss")

    def loss_arrays(self, since: int):
        return {"parallel": self.parallel[since : self.done_steps], "single": self.single[since : self.done_steps]}

    # ---- layouts ----

    def check(self, operator: str, text: str) -> str:
        op, _, inputs, where = OPERATORS[operator]
        try:
            strategy = ast.literal_eval(text)
            assert (
                isinstance(strategy, tuple)
                and all(isinstance(part, tuple) for part in strategy)
                and len(strategy) == len(inputs)
            )
            assert all(isinstance(n, int) and n > 0 for part in strategy for n in part)
        except (ValueError, SyntaxError, AssertionError):
            raise StrategyError(
                f"{op} '{operator}' ({where}): {text!r} is not {len(inputs)} tuples of positive counts. Try "
                f"{self.choices(operator)[0]}."
            ) from None
        if str(strategy) in self.choices(operator):
            return str(strategy)
        if op == "MatMul" and strategy[0][1] != strategy[1][0]:
            raise StrategyError(
                f"{op} '{operator}' ({where}): strategy {strategy} splits dim 0 of input 1 ('k') {strategy[1][0]} "
                "ways, but input 0 splits 'k' "
                f"{strategy[0][1]} ways. Both inputs must split the contracted dim "
                f"equally: try (({strategy[0][0]}, {strategy[0][1]}), ({strategy[0][1]}, 1))."
            )
        raise StrategyError(
            f"{op} '{operator}' ({where}): strategy {strategy} does not fit {self.devices} devices. Try "
            f"{self.choices(operator)[0]}."
        )

    def choices(self, operator: str) -> list[str]:
        op = OPERATORS[operator][0]
        counts = [2**i for i in range(4) if 2**i <= self.devices]
        if op == "ReLU":
            return [str((pair,)) for pair in itertools.product(counts, repeat=2) if math.prod(pair) == self.devices]
        return [str(((m, k), (k, n))) for m, k, n in itertools.product(counts, repeat=3) if m * k * n == self.devices]

    def strategy(self, operator: str) -> str:
        own = self.strategies[operator]
        if own:
            return own
        if self.devices == 8:
            return "((2, 4),)" if operator == "relu" else "((2, 4), (4, 1))"
        return f"(({self.devices}, 1),)" if operator == "relu" else f"(({self.devices}, 1), (1, 1))"

    def layouts(self, operator: str) -> list[TensorLayout]:
        """Layouts of the inputs and, last, of the output as it leaves the operator."""
        strategy = ast.literal_eval(self.strategy(operator))
        if len(strategy) == 1:
            layout = TensorLayout(strategy[0], (1, 0))
            return [layout, layout]
        (m, k), (_, n) = strategy
        matrix = (m, k, n)
        return [
            TensorLayout(matrix, (2, 1)),
            TensorLayout(matrix, (1, 0)),
            TensorLayout(matrix, (2, 0), (1,) if k > 1 else ()),
        ]

    def layout(self, tensor: str) -> tuple[TensorLayout, str]:
        for operator, (_, axes, inputs, _) in OPERATORS.items():
            if tensor == operator:
                return self.layouts(operator)[-1], axes
            if tensor in inputs and tensor not in OPERATORS:
                return self.layouts(operator)[inputs.index(tensor)], axes
        raise KeyError(tensor)

    # ---- the snapshot ----

    def messages(self) -> list[dict]:
        found: list[dict] = []
        names = list(OPERATORS)
        rank = self.rank

        def add(phase, operator, kind, collective, group, size, reason, tensor):
            time_s = None if len(group) < 2 else 2 * (len(group) - 1) * (ALPHA_S + BETA_S_PER_BYTE * size / len(group))
            found.append(
                {
                    "number": len(found) + 1,
                    "phase": phase,
                    "operator": operator,
                    "kind": kind,
                    "collective": collective,
                    "group": list(group),
                    "bytes_predicted": 0 if len(group) < 2 else size,
                    "bytes_counted": None,
                    "time_predicted_s": time_s,
                    "time_measured_s": None,
                    "reason": reason,
                    "origin": OPERATORS[operator][3],
                    "tensor": tensor,
                }
            )

        for i, name in enumerate(names):
            out = self.layouts(name)[-1]
            part = 4 * math.prod(out.slice_shape(SHAPES[name]))
            if out.is_partial:
                count = len(out.partial_group(rank))
                add(
                    "forward",
                    name,
                    "all_reduce",
                    "AllReduce",
                    out.partial_group(rank),
                    part,
                    f"k is split {count} ways, so each rank holds one of {count} addends",
                    name,
                )
            if i + 1 < len(names):
                follower = names[i + 1]
                wanted = self.layouts(follower)[0]
                if not out.whole().same_placement(wanted):
                    finer = math.prod(wanted.splits) > math.prod(out.splits)
                    group = () if finer else tuple(range(self.devices))
                    why = f"{follower} wants its input split {wanted.splits}, {name} leaves it split {out.splits}"
                    if finer:
                        add(
                            "forward",
                            follower,
                            "slice",
                            "StridedSlice",
                            (),
                            0,
                            why + "; every rank already holds its part",
                            name,
                        )
                    else:
                        add("forward", follower, "all_gather", "AllGather", group, part, why, name)
        for name, weight in (("matmul2", "w2"), ("matmul", "w")):
            layout = self.layouts(name)[1]
            group = layout.replicas(rank)
            if len(group) > 1:
                size = 4 * math.prod(layout.slice_shape(SHAPES[weight]))
                add(
                    "backward",
                    name,
                    "all_reduce",
                    "AllReduce",
                    group,
                    size,
                    f"{weight} is replicated {len(group)} times: each rank saw other rows of the batch",
                    weight,
                )
        return found

    def cards(self) -> list[dict]:
        layout, _ = self.layout(self.tensor)
        shape = SHAPES[self.tensor]
        order = list(layout.distinct_slices())
        found = []
        for rank in range(self.devices):
            index = layout.slice_index(shape, rank)
            group = layout.partial_group(rank)
            partial = layout.is_partial
            found.append(
                {
                    "rank": rank,
                    "coordinates": list(layout.coordinates(rank)),
                    "block": [[s.start, s.stop] for s in index],
                    "slice": order.index(layout.slice_numbers(rank)),
                    "addend": group.index(rank) + 1 if partial else None,
                    "addends": len(group) if partial else 1,
                    "text": slice_text(index, shape),
                    "replicas": list(layout.replicas(rank)),
                }
            )
        return found

    def detail(self) -> dict:
        holds = []
        for tensor, shape in SHAPES.items():
            layout, _ = self.layout(tensor)
            part = layout.slice_shape(shape)
            note = (
                f"1 of {len(layout.partial_group(self.rank))} addends"
                if layout.is_partial
                else f"{layout.replica_count} copies"
                if layout.replica_count > 1
                else ""
            )
            holds.append(
                {
                    "tensor": LABELS[tensor],
                    "text": slice_text(layout.slice_index(shape, self.rank), shape),
                    "shape": list(part),
                    "bytes": 4 * math.prod(part),
                    "note": note,
                }
            )
        size = {h["tensor"]: h["bytes"] for h in holds}
        params = size["w"] + size["w2"]
        activations = sum(size.values()) - params
        memory = {"params": params, "grads": params, "optimizer": params, "activations": activations}
        layout, _ = self.layout(self.tensor)
        groups = []
        if layout.is_partial:
            groups.append(
                {"label": "k", "ranks": list(layout.partial_group(self.rank)), "use": "adds up the addends of out"}
            )
        if layout.replica_count > 1:
            groups.append(
                {"label": "replicas", "ranks": list(layout.replicas(self.rank)), "use": "hold the same slice"}
            )
        return {
            "holds": holds,
            "groups": groups,
            "memory": [{"kind": k, "bytes": v} for k, v in memory.items()],
            "memory_total": sum(memory.values()),
        }

    def progress(self) -> dict:
        shot = self.snapshot()
        return {"run": shot["run"], "loss": shot["loss"]}

    def snapshot(self) -> dict:
        layout, axes = self.layout(self.tensor)
        cards, messages, n = self.cards(), self.messages(), self.done_steps
        operators = []
        for name, (op, _, inputs, _) in OPERATORS.items():
            typed, error = self.refused.get(name, (None, None))
            formula = f"{' x '.join(str(SHAPES[i]) for i in inputs)} -> {SHAPES[name]}"
            operators.append(
                {
                    "name": name,
                    "op": op,
                    "strategy": self.strategy(name),
                    "source": "user" if self.strategies[name] else "default",
                    "choices": self.choices(name),
                    "error": error,
                    "typed": typed,
                    "formula": formula,
                    "tensor": name,
                }
            )
        count = len(layout.partial_group(0))
        partial = {"axes": ["k"], "count": count, "reduce": "sum"} if layout.is_partial else None
        slices = math.prod(layout.splits)
        label = LABELS[self.tensor] + (", before its all_reduce" if partial else "")
        sent = [m for m in messages if len(m["group"]) > 1]
        difference = np.abs(self.parallel[:n] - self.single[:n])
        bars = []
        for rank in range(self.devices):
            at, lane = 0.0, []
            for name in OPERATORS:
                lane.append({"start": at, "end": at + 18, "kind": "compute", "label": name})
                at += 18
                for m in (m for m in sent if m["operator"] == name and m["phase"] == "forward"):
                    lane.append(
                        {
                            "start": at,
                            "end": at + m["time_predicted_s"] * 1e6,
                            "kind": "communication",
                            "label": f"#{m['number']} {m['collective']}",
                        }
                    )
                    at = lane[-1]["end"]
            lane.append({"start": at, "end": at + 60, "kind": "compute", "label": "backward"})
            at += 60
            for m in (m for m in sent if m["phase"] == "backward"):
                lane.append(
                    {
                        "start": at,
                        "end": at + m["time_predicted_s"] * 1e6,
                        "kind": "communication",
                        "label": f"#{m['number']} {m['collective']}",
                    }
                )
                at = lane[-1]["end"]
            bars.append({"rank": rank, "bars": lane})
        active = self.state in ("running", "paused", "starting")
        copies = layout.replica_count
        parts = f"{slices} slice{'s' if slices > 1 else ''}"
        status = f"{label}: {SHAPES[self.tensor]} split into {parts} on {self.devices} ranks"
        status += (
            f"; every rank holds one of {count} addends, which an AllReduce over k adds up."
            if partial
            else f"; each slice is held by {copies} rank{'s' if copies > 1 else ''}."
        )
        return {
            "version": 1,
            "title": "Strategy Lab",
            "net": {
                "value": self.net,
                "choices": [
                    {"value": "quickstart", "label": "quickstart"},
                    {"value": "dense3", "label": "three dense layers"},
                ],
            },
            "devices": {"value": self.devices, "choices": [1, 2, 4, 8]},
            "data": {
                "value": self.data,
                "choices": [{"value": "seed", "label": "seed"}, {"value": "digits", "label": "digits"}],
            },
            "operators": operators,
            "graph": {
                "nodes": [{"id": i, "label": i, "kind": k, "column": c, "row": r} for i, k, c, r in NODES],
                "edges": [
                    {"from": a, "to": b, "tensor": t, "messages": [m["number"] for m in messages if m["tensor"] == t]}
                    for a, b, t in EDGES
                ],
            },
            "tensors": [{"id": t, "label": LABELS[t], "shape": list(s), "dtype": "float32"} for t, s in SHAPES.items()],
            "tensor": self.tensor,
            "phase": self.phase,
            "phases": ["forward", "backward"],
            "picture": {
                "shape": list(SHAPES[self.tensor]),
                "device_matrix": list(layout.device_matrix),
                "axis_names": list(axes),
                "partial": partial,
                "slices": slices,
                "label": label,
                "note": "as it leaves the operator" if self.tensor in OPERATORS else "as the operator reads it",
            },
            "cards": cards,
            "rank": self.rank,
            "rank_detail": self.detail(),
            "messages": messages,
            "message_totals": {
                "bytes_predicted": sum(m["bytes_predicted"] for m in messages),
                "bytes_counted": None,
                "time_predicted_s": sum(m["time_predicted_s"] for m in sent),
                "time_measured_s": None,
            },
            "run": {
                "state": self.state,
                "step": n,
                "steps": STEPS,
                "seconds_left": (STEPS - n) * 0.3 if active else None,
                "can": {"run": not active, "pause": active, "stop": active, "reset": n > 0},
                "text": f"step {n}/{STEPS}" + (f", {(STEPS - n) * 0.3:.0f} s left" if active else ""),
                "error": None,
            },
            "loss": {
                "steps": n,
                "parallel": self.parallel[:n].tolist(),
                "single": self.single[:n].tolist(),
                "largest_difference": float(difference.max()) if n else None,
                "at_step": int(difference.argmax()) + 1 if n else None,
                "bound": 1e-6,
                "label_parallel": f"{self.devices} processes (measured)",
                "label_single": "one device (measured)",
            },
            "timeline": {
                "source": "predicted",
                "unit": "us",
                "end": max(b["bars"][-1]["end"] for b in bars),
                "lanes": bars,
            },
            "status": status,
        }
