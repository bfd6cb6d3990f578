"""Lesson 03: data parallel, sum or mean."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ... import nn
from ...graph.compiler import compile_network
from ...nn.tensor.parameter import Parameter
from ...processes.shm import WorkerPool
from ...run.communicator import Request
from ...train.session import Session
from ..exercises import check, hint
from ..exercises.descent import Line, LossCurves, Trained, TwoLayers, mixed_rows, prove, steady_rows, train
from ..shared.prediction import Comparison
from .predictions import Answers


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


def gradient_factors(
    net: nn.Cell, rows: tuple[np.ndarray, ...], parallel_mode: str, **settings: Any
) -> dict[str, float]:
    """By parameter, its gradient on eight simulated ranks as a multiple of that of one device."""
    alone, found = gradients_of(net, rows, "stand_alone"), gradients_of(net, rows, parallel_mode, **settings)
    return {name: float(np.vdot(g, alone[name]) / np.vdot(alone[name], alone[name])) for name, g in found.items()}


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


def compare(
    prediction: Mapping[str, Any],
    one: Trained,
    four: Trained,
    factors: Mapping[tuple[str, bool], Mapping[str, float]],
    own_losses: Any,
    *,
    show: bool = False,
) -> Comparison:
    """The answers next to what the lesson's cells computed.

    one, four   trained on one device, and on four ranks that sum
    factors     of w's gradient, by parallel mode and gradients_mean (`gradient_factors`)
    own_losses  of the four ranks, after one step
    """
    summed = float(np.linalg.norm(four.gradients["w"]) / np.linalg.norm(one.gradients["w"]))
    averaged, semi_auto = factors["data_parallel", True]["w"], factors["semi_auto_parallel", False]["w"]
    losses = "different" if np.ptp(own_losses) else "same"
    return Answers("03", prediction, show).next_to(
        summed=(4, round(summed, 3), "4 means over 4 rows each: 4 times the mean over 16"),
        averaged=(1, round(averaged, 3), "the mean of the means of equal parts is the mean"),
        semi_auto=(1, round(semi_auto, 3), "each rank has its share of one loss"),
        losses=("different", losses, "each rank has its own rows"),
    )


def compare_rest(
    prediction: Mapping[str, Any], ranks_mean: np.ndarray, all_rows: np.ndarray, means: Any, *, show: bool = False
) -> Comparison:
    """The last two answers next to the gradients of `short_last_batch`, and the running means of the four ranks."""
    equal, own = bool(np.allclose(ranks_mean, all_rows)), "different" if np.ptp(means) else "same"
    return Answers("03", prediction, show).next_to(
        short_batch=(False, equal, "rank 3's two rows count twice as much as the others"),
        batch_norm=("different", own, "each rank has the statistics of its own rows"),
    )
