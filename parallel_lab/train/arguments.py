"""Checks of what `Model` and its methods are given: the value itself, or an error that says what was meant."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Collection
from typing import Any

import numpy as np

from ..context import GRAPH_MODE, get_context
from ..errors import ArgumentError, ArgumentTypeError, ModelError, NotBuiltYet, message, shorten
from ..nn.cell import Cell
from ..nn.checks import whole_number
from ..nn.optim import Optimizer
from ..origin import short_file
from ..tensor import Tensor
from .compiled import SHARDED_MODES

__all__ = [
    "check_boost",
    "check_construct",
    "check_full_batch",
    "check_input",
    "check_keywords",
    "check_layouts_wanted",
    "check_loss",
    "check_network",
    "check_optimizer",
    "checked_frequency",
    "checked_indexes",
    "checked_sink_size",
]

ARGUMENTS = ("network", "loss_fn", "optimizer", "metrics", "eval_network", "eval_indexes", "amp_level", "boost_level")
KEYWORDS = ("loss_scale_manager", "keep_batchnorm_fp32", "boost_config_dict")


def check_keywords(keywords: dict[str, Any]) -> None:
    """Refuse keywords `Model` does not have (ArgumentTypeError: a ValueError, as MindSpore, and a TypeError), and what only boosts accelerators."""
    for name in keywords:
        if name not in KEYWORDS:
            near = difflib.get_close_matches(name, (*ARGUMENTS, *KEYWORDS), 1)
            hint = f"Did you mean {near[0]}=?" if near else ""
            raise ArgumentTypeError(
                message(f"there is no argument {name!r}", where="Model", allowed=f"Arguments: {', '.join(ARGUMENTS + KEYWORDS)}", hint=hint)
            )
    if keywords.get("boost_config_dict"):
        raise NotBuiltYet(message("boost_config_dict is for MindSpore's accelerators", where="Model", hint="Leave it away"))


def check_network(name: str, value: Any) -> None:
    """A Cell (or what wraps one and is a Cell). Raises ArgumentTypeError."""
    if not isinstance(value, Cell):
        hint = f"Write {value.__name__}()" if isinstance(value, type) and issubclass(value, Cell) else ""
        raise ArgumentTypeError(message(f"{name}={shorten(value)}", where="Model", allowed="A Cell", hint=hint))


def check_loss(loss_fn: Any) -> None:
    """A Cell or function, or None. Raises ArgumentTypeError."""
    if loss_fn is None:
        return
    if isinstance(loss_fn, type):
        raise ArgumentTypeError(message(f"loss_fn is the class {loss_fn.__name__}", where="Model", hint=f"Write {loss_fn.__name__}()"))
    if not callable(loss_fn):
        raise ArgumentTypeError(message(f"loss_fn={shorten(loss_fn)}", where="Model", allowed="A Cell or function of (outputs, label)"))


def check_optimizer(optimizer: Any) -> None:
    """An Optimizer or None. Raises ArgumentTypeError."""
    if optimizer is None or isinstance(optimizer, Optimizer):
        return
    hint = f"Write {optimizer.__name__}(net.trainable_params(), ...)" if isinstance(optimizer, type) and issubclass(optimizer, Optimizer) else ""
    raise ArgumentTypeError(message(f"optimizer={shorten(optimizer)}", where="Model", allowed="An optimizer of nn, or None", hint=hint))


def check_boost(level: Any) -> None:
    """Only "O0". Raises ArgumentTypeError, ArgumentError, NotBuiltYet."""
    if not isinstance(level, str):
        raise ArgumentTypeError(message(f"boost_level={shorten(level)}", where="Model", allowed="'O0'"))
    if level in ("O1", "O2"):
        raise NotBuiltYet(message(f"boost_level={level!r} is for MindSpore's accelerators", where="Model", hint="Leave it away"))
    if level != "O0":
        raise ArgumentError(message(f"boost_level={level!r}", where="Model", allowed="'O0'"))


def checked_indexes(indexes: Any) -> tuple[int, int, int] | None:
    """eval_indexes: None, or three different positions. Raises ArgumentTypeError, ArgumentError."""
    if indexes is None:
        return None
    allowed = "None, or the positions of [loss, prediction, label] among the outputs of eval_network"
    if not isinstance(indexes, (list, tuple)):
        raise ArgumentTypeError(message(f"eval_indexes={shorten(indexes)}", where="Model", allowed=allowed))
    if len(indexes) != 3:
        raise ArgumentError(message(f"eval_indexes={shorten(indexes)}", where="Model", allowed=allowed))
    first, second, third = (whole_number(i, "Model", "eval_indexes", 0) for i in indexes)
    return first, second, third


def checked_sink_size(where: str, sink_size: Any) -> int:
    """-1 or at least 1. Raises ArgumentTypeError, ArgumentError."""
    size = whole_number(sink_size, where, "sink_size", -1)
    if size == 0:
        raise ArgumentError(message("sink_size=0", where=where, allowed="At least 1, or -1 for the whole dataset"))
    return size


def checked_frequency(frequency: Any) -> Callable[[int], bool]:
    """valid_frequency as a function of the epoch: after the first and every n-th, or those listed. Raises ArgumentTypeError, ArgumentError."""
    where, name = "Model.fit", "valid_frequency"
    if isinstance(frequency, Collection) and not isinstance(frequency, (str, bytes, dict)):
        wanted = {whole_number(epoch, where, name, 1) for epoch in frequency}
        return lambda epoch: epoch in wanted
    every = whole_number(frequency, where, name, 1)
    return lambda epoch: epoch == 1 or epoch % every == 0


def check_construct(where: str, network: Any) -> None:
    """With a loss_fn the network gets the data alone: refuse a construct that also wants the label. Raises ArgumentTypeError."""
    function = inspect.unwrap(getattr(type(network), "construct", network))
    try:
        parameters = inspect.signature(network.construct).parameters.values()
    except (TypeError, ValueError, AttributeError):  # no construct of its own, or one whose arguments cannot be read: the call will tell
        return
    needed = [p for p in parameters if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if len(needed) > 1:
        code = getattr(function, "__code__", None)
        place = f" ({short_file(code.co_filename)}:{code.co_firstlineno})" if code else ""
        names = ", ".join(p.name for p in needed)
        hint = f"Take {', '.join(p.name for p in needed[1:])} out of construct, or compute the loss in construct and leave loss_fn away"
        what = f"construct of {type(network).__name__}{place} needs ({names}), but with a loss_fn it gets the data alone"
        raise ArgumentTypeError(message(what, where=where, hint=hint))


def check_input(where: str, name: str, value: Any) -> None:
    """A Tensor, a number, or a tuple or list of them. Raises ArgumentTypeError (a TypeError and ValueError)."""
    if isinstance(value, (tuple, list)):
        for i, inner in enumerate(value):
            check_input(where, f"{name}[{i}]", inner)
    elif not isinstance(value, (Tensor, int, float)):
        hint = "Write Tensor(x)" if isinstance(value, np.ndarray) else ""
        raise ArgumentTypeError(message(f"{name} is {shorten(value)}", where=where, allowed="A Tensor", hint=hint))


def check_full_batch(where: str, mode: str, dataset_strategy: Any) -> None:
    """In semi_auto and auto_parallel a prediction is from inputs in full (or cut as a tuple says). Raises ModelError (a RuntimeError)."""
    if mode in SHARDED_MODES and dataset_strategy == "data_parallel":
        hint = "set_auto_parallel_context(full_batch=True), or dataset_strategy='full_batch'"
        allowed = "'full_batch' or a tuple: every rank gives the same inputs"
        raise ModelError(message(f"dataset_strategy={dataset_strategy!r}", where=where, allowed=allowed, hint=hint))


def check_layouts_wanted(where: str, mode: str) -> None:
    """Only semi_auto and auto_parallel in graph mode cut parameters. Raises ModelError (a RuntimeError)."""
    if mode not in SHARDED_MODES:
        raise ModelError(message(f"parallel_mode={mode!r} cuts no parameter", where=where, allowed=f"One of {', '.join(map(repr, SHARDED_MODES))}"))
    if get_context("mode") != GRAPH_MODE:
        raise ModelError(message("nothing is compiled in PyNative mode", where=where, hint="set_context(mode=GRAPH_MODE)"))
