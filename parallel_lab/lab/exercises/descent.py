"""Two small problems for data parallel lessons, trained on one device or on several ranks, and compared.

one = train(TwoLayers, lambda p: nn.SGD(p, 0.1), mixed_rows(), ranks=1)
four = train(TwoLayers, lambda p: nn.SGD(p, 0.1), mixed_rows(), ranks=4, gradients_mean=True)
prove(four, one)                                         # a table: tensor, largest difference, rounding bound, verdict
LossCurves({"one device": one.losses, "4 ranks": four.losses})
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ... import nn
from ...base.errors import ArgumentError, escape
from ...base.log_chart import COLOURS
from ...graph.compiler import compile_network
from ...graph.plan import Plan
from ...nn.tensor.parameter import Parameter
from ...nn.tensor.tensor import Tensor
from ...ops.activation import tanh
from ...ops.linalg import matmul
from ...train.session import Session
from ..shared.equality import Equality, Values, equality_rows

ROWS = 16


class TwoLayers(nn.Cell):
    """x (rows, 8) -> tanh(x @ w1) @ w2 (rows, 3); the same start each time."""

    def __init__(self) -> None:
        super().__init__()
        rng = np.random.default_rng(3)
        self.w1 = Parameter(Tensor(rng.normal(0, 0.5, (8, 6)).astype(np.float32)), "w1")
        self.w2 = Parameter(Tensor(rng.normal(0, 0.5, (6, 3)).astype(np.float32)), "w2")
        self.matmul1, self.tanh, self.matmul2 = matmul.primitive(), tanh.primitive(), matmul.primitive()

    def construct(self, x: Tensor) -> Tensor:
        """x: (rows, 8) -> (rows, 3)."""
        return self.matmul2(self.tanh(self.matmul1(x, self.w1)), self.w2)


class Line(nn.Cell):
    """x (rows, 4) -> x @ w (rows, 1), w from 0."""

    def __init__(self) -> None:
        super().__init__()
        self.w = Parameter(Tensor(np.zeros((4, 1), np.float32)), "w")
        self.matmul = matmul.primitive()

    def construct(self, x: Tensor) -> Tensor:
        """x: (rows, 4) -> (rows, 1)."""
        return self.matmul(x, self.w)


def mixed_rows() -> tuple[np.ndarray, np.ndarray]:
    """(x (16, 8), label (16, 3)) for `TwoLayers`, float32; the same each time."""
    rng = np.random.default_rng(4)
    return rng.normal(size=(ROWS, 8)).astype(np.float32), rng.normal(size=(ROWS, 3)).astype(np.float32)


def steady_rows() -> tuple[np.ndarray, np.ndarray]:
    """(x (16, 4), label (16, 1)) for `Line`, float32: the mean squared error has curvature 1 in every direction.

    The second derivative of mean((x w - y)^2) is 2/16 x'x. Here it is the unit matrix, so a step w -= rate * gradient
    multiplies the error w - w* by 1 - rate, and the loss, which is quadratic and 0 at w*, by its square.
    """
    rng = np.random.default_rng(0)
    across, _ = np.linalg.qr(rng.normal(size=(ROWS, 4)))  # columns of length 1 at right angles
    x = (across * math.sqrt(ROWS / 2)).astype(np.float32)
    return x, x @ np.array([[1], [2], [-1], [0.5]], np.float32)


@dataclass(frozen=True)
class Trained:
    """What a training left: mean loss before each update, gradients of step 1 as the optimizer got them, parameters."""

    plan: Plan
    ranks: int
    losses: tuple[float, ...]
    gradients: Mapping[str, np.ndarray]
    parameters: Mapping[str, np.ndarray]


def train(
    network: Callable[[], nn.Cell],
    optimizer: Callable[[Any], Any],
    batch: tuple[np.ndarray, np.ndarray],
    *,
    ranks: int,
    gradients_mean: bool = False,
    steps: int = 20,
    executor: str = "simulator",
) -> Trained:
    """Train on one batch: with data_parallel on `ranks` that share its rows equally, or on one device (ranks=1).
    network makes the Cell, optimizer is made from its parameters; executor: "simulator" or "processes"
    """
    net = network()
    rule = optimizer(net.trainable_params())
    how: dict[str, Any] = {"parallel_mode": "stand_alone"}
    if ranks > 1:
        how = {"parallel_mode": "data_parallel", "device_num": ranks, "gradients_mean": gradients_mean}
    mine = [part[: len(part) // ranks] for part in batch]  # data_parallel compiles one rank's shapes
    plan = compile_network(net, *mine, loss=nn.MSELoss(), optimizer=rule, **how)
    losses, gradients = [], {}
    with Session(plan, net, rule, executor=executor, check_finite=False) as session:
        for step in range(steps):
            session.train([batch], 1)
            losses.append(float(np.mean(session.slices(plan.outputs[0]))))
            gradients = gradients if step else session.gradients()
        return Trained(plan, ranks, tuple(losses), gradients, session.parameters())


def prove(parallel: Trained, one: Trained, *, gradients: bool = True) -> Equality:
    """Gradients of the first step (if wanted), parameters after the last, and the mean of its losses, to rounding."""
    steps, dtype = len(one.losses), one.plan.value(one.plan.outputs[0]).dtype

    def values(trained: Trained) -> Values:
        tensors = {f"gradient of {n}, step 1": (g, 1) for n, g in trained.gradients.items()} if gradients else {}
        tensors |= {f"{n} after step {steps}": (p, steps) for n, p in trained.parameters.items()}
        return tensors | {f"mean loss, step {steps}": (np.array(trained.losses[-1:], dtype), steps)}

    title = f"{parallel.ranks} ranks with data_parallel against one device"
    return Equality(title, equality_rows(one.plan, values(parallel), values(one)))


class LossCurves:
    """Losses by name, each from step 1 on, on a logarithmic scale, told apart by dashes too. Prints as a table."""

    _WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 640, 300, 62, 170, 34, 40  # pixels
    _DASHES = ("", "7 4", "2 3", "9 3 2 3")
    _FLOOR, _CEILING = 1e-10, 1e12  # beyond them a curve lies on the border

    def __init__(self, curves: Mapping[str, Sequence[float]], title: str = "Loss of each step") -> None:
        self.curves, self.title = {name: tuple(map(float, losses)) for name, losses in curves.items()}, title
        if not self.curves or not all(self.curves.values()):
            what = f"{len(self.curves)} curves"
            raise ArgumentError(what, where="LossCurves", allowed="One or more, none of them empty")

    def to_text(self) -> str:
        """The losses as a table."""
        width = max(12, *map(len, self.curves))
        lines = [self.title, "step  " + "  ".join(name.rjust(width) for name in self.curves)]
        for step in range(max(map(len, self.curves.values()))):
            cells = (f"{losses[step]:.4g}" if step < len(losses) else "" for losses in self.curves.values())
            lines.append(f"{step + 1:>4}  " + "  ".join(cell.rjust(width) for cell in cells))
        return "\n".join(lines)

    __str__ = __repr__ = to_text

    def _clipped(self, loss: float) -> float:
        return self._CEILING if math.isnan(loss) else min(max(loss, self._FLOOR), self._CEILING)

    def _repr_html_(self) -> str:
        powers = [math.log10(self._clipped(loss)) for losses in self.curves.values() for loss in losses]
        low = math.floor(min(powers))
        high = max(math.ceil(max(powers)), low + 1)
        steps = max(map(len, self.curves.values()))
        right, bottom = self._WIDTH - self._RIGHT, self._HEIGHT - self._BOTTOM

        def at(step: int, loss: float) -> tuple[float, float]:
            across = step / max(steps - 1, 1)
            up = (math.log10(self._clipped(loss)) - low) / (high - low)
            return round(self._LEFT + (right - self._LEFT) * across, 1), round(bottom - (bottom - self._TOP) * up, 1)

        parts = [f'<text x="{self._LEFT}" y="16" font-weight="600" font-size="13">{escape(self.title)}</text>']
        for power in range(low, high + 1, max(1, -(-(high - low) // 7))):
            y = at(0, 10.0**power)[1]
            parts.append(f'<path d="M{self._LEFT} {y}H{right}" stroke="currentColor" stroke-opacity=".18"/>')
            parts.append(f'<text x="{self._LEFT - 6}" y="{y + 4}" text-anchor="end">{10.0**power:g}</text>')
        for step in range(0, steps, max(1, -(-steps // 8))):
            parts.append(f'<text x="{at(step, 1)[0]}" y="{bottom + 16}" text-anchor="middle">{step + 1}</text>')
        parts.append(f'<text x="{right}" y="{bottom + 32}" text-anchor="end" fill-opacity=".75">step</text>')
        taken: list[float] = []
        words = []
        for number, (name, losses) in enumerate(self.curves.items()):
            colour, dash = COLOURS[number % len(COLOURS)], self._DASHES[number % len(self._DASHES)]
            line = f'stroke="{colour}" stroke-width="2.2" stroke-dasharray="{dash}"'
            points = [at(step, loss) for step, loss in enumerate(losses)]
            parts.append(f'<path d="M{"L".join(f"{x} {y}" for x, y in points)}" fill="none" {line}/>')
            parts += [f'<circle cx="{x}" cy="{y}" r="2.6" fill="{colour}"/>' for x, y in points]
            taken.append(self._free(points[-1][1], taken, bottom))
            parts.append(f'<path d="M{right + 10} {taken[-1]}h22" {line}/>')
            parts.append(f'<text x="{right + 38}" y="{taken[-1] + 4}">{escape(name)}</text>')
            words.append(f"{name}: from {losses[0]:.3g} to {losses[-1]:.3g} in {len(losses)} steps")
        label = f"{self.title}. {'; '.join(words)}."
        return (
            f'<svg role="img" aria-label="{escape(label)}" '
            f'viewBox="0 0 {self._WIDTH} {self._HEIGHT}" width="{self._WIDTH}" style="max-width:100%;height:auto" '
            f'fill="currentColor" font-family="system-ui,sans-serif" font-size="12">{"".join(parts)}</svg>'
        )

    def _free(self, y: float, taken: Sequence[float], bottom: float) -> float:
        """A height for a name near `y`, 15 pixels from the others."""
        heights = [y + 15 * k * sign for k in range(20) for sign in (1, -1)]
        return next((h for h in heights if self._TOP <= h <= bottom and all(abs(h - t) >= 15 for t in taken)), y)
