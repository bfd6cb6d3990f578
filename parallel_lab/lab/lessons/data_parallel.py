"""Lesson 03: data parallel, sum or mean."""

from collections.abc import Callable
from typing import Any

import numpy as np

from ... import nn
from ...graph.compiler import compile_network
from ...nn.tensor.tensor import Parameter
from ...processes.shm import WorkerPool
from ...run.communicator import Request
from ...train.session import Session
from ..exercises import check, hint
from ..exercises.descent import Line, LossCurves, TwoLayers, compare, mixed_rows, steady_rows, train
from ..shared.prediction import Comparison


def sgd(rate: float) -> Callable[[list[Parameter]], nn.Optimizer]:
    """Makes SGD with this learning rate."""
    return lambda parameters: nn.SGD(parameters, rate)


def random(*shape: int) -> np.ndarray:
    """Normal numbers, float32, the same for the same shape."""
    return np.random.default_rng(shape).normal(size=shape).astype(np.float32)


def sum_or_mean(x: np.ndarray, label: np.ndarray) -> Any:
    """Loss curves of one device and of several ranks, summed and averaged; controls for learning rate and ranks."""
    from ipywidgets import HTML, Dropdown, FloatSlider, VBox

    wide = {"description_width": "initial"}
    rate = FloatSlider(0.6, min=0.05, max=1, step=0.05, description="learning rate", style=wide)
    ranks, picture = Dropdown(options=[2, 4, 8], value=4, description="ranks"), HTML()

    def draw(change: Any = None) -> None:
        how = {"batch": (x, label), "steps": 12}
        found = {"one device": train(Line, sgd(rate.value), ranks=1, **how).losses}
        for word, mean in (("sum", False), ("mean", True)):
            curve = train(Line, sgd(rate.value), ranks=ranks.value, gradients_mean=mean, **how)
            found[f"{ranks.value} ranks, {word}"] = curve.losses
        picture.value = LossCurves(found, f"Learning rate {rate.value:g}")._repr_html_()

    draw()
    for control in (rate, ranks):
        control.observe(draw, "value")
    return VBox([rate, ranks, picture])


def gradients_of(
    net: nn.Cell, rows: tuple[np.ndarray, ...], parallel_mode: str, **settings: Any
) -> dict[str, np.ndarray]:
    """Gradients of one step on the global rows (x, label): on eight simulated ranks, or on one device."""
    part = [each[:2] if parallel_mode == "data_parallel" else each for each in rows]
    if parallel_mode != "stand_alone":
        settings |= {"device_num": 8}
    if parallel_mode == "semi_auto_parallel":
        settings |= {"dataset_strategy": "full_batch"}
    plan = compile_network(net, *part, loss=nn.MSELoss(), parallel_mode=parallel_mode, **settings)
    with Session(plan, net) as session:
        session.train([rows], 1)
        return session.gradients()


def short_last_batch() -> tuple[np.ndarray, np.ndarray]:
    """(mean of the gradients of four processes with 4, 4, 4 and 2 rows, gradient of all 14 rows)."""

    def on_ranks(comm: Any, x: np.ndarray, y: np.ndarray, w: np.ndarray, ends: list[int]) -> np.ndarray:
        own_x, own_y = np.split(x, ends)[comm.rank], np.split(y, ends)[comm.rank]
        return comm.all_reduce(2 * own_x.T @ (own_x @ w - own_y) / len(own_x), reduce="mean")

    rng = np.random.default_rng(2)
    x, y, w = rng.normal(size=(14, 5)), rng.normal(size=(14, 1)), rng.normal(size=(5, 1))
    with WorkerPool(4) as pool:
        mean = pool.run(on_ranks, x, y, w, [4, 8, 12])[0]
    return mean, 2 * x.T @ (x @ w - y) / 14
