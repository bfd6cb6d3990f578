"""Checks of what `Model` and its methods are given: the value itself, or an error that says what was meant."""

from __future__ import annotations

import difflib
import inspect
import logging
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np

from ..base.checks import Check, function, instance, integer
from ..base.errors import ArgumentTypeError, ModelError, NotBuiltYet, shorten
from ..base.origin import short_file
from ..base.settings.checks import SHARDED_MODES
from ..base.settings.current import get_context
from ..base.settings.tables import GRAPH_MODE
from ..nn.cell import Cell
from ..nn.optim.optimizer import Optimizer
from ..nn.tensor.tensor import Tensor

ARGUMENTS = ("network", "loss_fn", "optimizer", "metrics", "eval_network", "eval_indexes", "amp_level", "boost_level")
KEYWORDS = ("loss_scale_manager", "keep_batchnorm_fp32", "boost_config_dict")


def check_keywords(keywords: dict[str, Any]) -> None:
    """Refuse keywords `Model` does not have (ArgumentTypeError, as MindSpore), and what only boosts accelerators."""
    for name in keywords:
        if name not in KEYWORDS:
            near = difflib.get_close_matches(name, (*ARGUMENTS, *KEYWORDS), 1)
            hint = f"Did you mean {near[0]}=?" if near else ""
            allowed = f"Arguments: {', '.join(ARGUMENTS + KEYWORDS)}"
            raise ArgumentTypeError(f"there is no argument {name!r}", where="Model", allowed=allowed, hint=hint)
    if keywords.get("boost_config_dict"):
        raise NotBuiltYet("boost_config_dict is for MindSpore's accelerators", where="Model", hint="Omit it")


NETWORK = instance(Cell, "A Cell")
LOSS = function("A Cell or function of (outputs, label)")
OPTIMIZER = instance(Optimizer, "An optimizer of nn", "net.trainable_params(), ...")


def check_boost(level: str) -> None:
    """Only "O0". Raises NotBuiltYet."""
    if level != "O0":
        raise NotBuiltYet(f"boost_level={level!r} is for MindSpore's accelerators", where="Model", hint="Omit it")


def _read_indexes(indexes: Any) -> tuple[int, int, int]:
    if not isinstance(indexes, (list, tuple)):
        raise TypeError
    if len(indexes) != 3:
        raise ValueError
    first, second, third = (integer(0).read(i) for i in indexes)
    return first, second, third


def _read_sink_size(size: Any) -> int:
    if integer(-1).read(size) == 0:
        raise ValueError
    return int(size)


INDEXES = Check("The positions of [loss, prediction, label] among the outputs of eval_network", _read_indexes)
SINK_SIZE = Check("An int, at least 1, or -1 for the whole dataset", _read_sink_size)


def checked_frequency(frequency: Any) -> Callable[[int], bool]:
    """valid_frequency as a function of the epoch: the first and every n-th, or those listed."""
    where, name = "Model.fit", "valid_frequency"
    if isinstance(frequency, Collection) and not isinstance(frequency, (str, bytes, dict)):
        wanted = {integer(1)(where, name, epoch) for epoch in frequency}
        return lambda epoch: epoch in wanted
    every = integer(1)(where, name, frequency)
    return lambda epoch: epoch == 1 or epoch % every == 0


def check_construct(where: str, network: Any) -> None:
    """Refuse a construct that wants the label too: with a loss_fn it gets the data alone. Raises ArgumentTypeError."""
    function = inspect.unwrap(getattr(type(network), "construct", network))
    try:
        parameters = inspect.signature(network.construct).parameters.values()
    except (TypeError, ValueError, AttributeError):
        return  # no construct of its own, or one whose arguments cannot be read: the call will tell
    needed = [p for p in parameters if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if len(needed) > 1:
        code = getattr(function, "__code__", None)
        place = f" ({short_file(code.co_filename)}:{code.co_firstlineno})" if code else ""
        names, labels = ", ".join(p.name for p in needed), ", ".join(p.name for p in needed[1:])
        hint = f"Take {labels} out of construct, or compute the loss in construct and omit loss_fn"
        construct = f"construct of {type(network).__name__}{place}"
        what = f"{construct} needs ({names}), but with a loss_fn it gets the data alone"
        raise ArgumentTypeError(what, where=where, hint=hint)


def check_inputs(where: str, values: Sequence[Any], name: str = "input {}") -> None:
    """Tensors, numbers, or tuples or lists of them. Raises ArgumentTypeError (a TypeError and ValueError)."""
    for i, value in enumerate(values):
        _check_input(where, name.format(i), value)


def _check_input(where: str, name: str, value: Any) -> None:
    if isinstance(value, (tuple, list)):
        check_inputs(where, value, f"{name}[{{}}]")
    elif not isinstance(value, (Tensor, int, float)):
        hint = "Write Tensor(x)" if isinstance(value, np.ndarray) else ""
        raise ArgumentTypeError(f"{name} is {shorten(value)}", where=where, allowed="A Tensor", hint=hint)


def tell_of_parts(where: str, mode: str, dataset_strategy: Any) -> None:
    """In modes that split operators under "data_parallel" a prediction is for the inputs of all ranks, one after the
    other. The logger "parallel_lab" says so, as MindSpore warns.
    """
    if mode in SHARDED_MODES and dataset_strategy == "data_parallel":
        text = "%s: dataset_strategy='data_parallel': the inputs of all ranks, one after the other, are one batch. %s"
        hint = "For the same inputs on every rank: set_auto_parallel_context(dataset_strategy='full_batch')."
        logging.getLogger("parallel_lab").warning(text, where, hint)


def check_layouts_wanted(where: str, mode: str) -> None:
    """Only semi_auto and auto_parallel in graph mode split parameters. Raises ModelError (a RuntimeError)."""
    if mode not in SHARDED_MODES:
        what = f"parallel_mode={mode!r} splits no parameter"
        raise ModelError(what, where=where, allowed=f"One of {', '.join(map(repr, SHARDED_MODES))}")
    if get_context("mode") != GRAPH_MODE:
        raise ModelError("nothing is compiled in PyNative mode", where=where, hint="set_context(mode=GRAPH_MODE)")
