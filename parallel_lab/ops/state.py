"""What a network keeps from step to step beside trained parameters: values written into Parameters, and the number of the step."""

from __future__ import annotations

from typing import Any

from ..context import current_tracer
from ..errors import ShapeError, message, shorten

__all__ = ["assign", "training_step"]


def assign(parameter: Any, value: Any) -> Any:
    """Give a Parameter a new value, as running statistics need.  value: shape and dtype of the parameter. Returns the parameter.

    At once outside a trace. In a compiled network: at the end of the forward program, so that everything in `construct` still reads the old value;
    the parameter must not be a trained one. Raises TraceError, ShapeError.
    """
    tracer = current_tracer.get()
    if tracer is not None:
        tracer.assign(parameter, value)
    elif not hasattr(parameter, "set_data"):
        raise ShapeError(message(f"{shorten(parameter)} is given a value", where="assign", allowed="A Parameter"))
    else:
        parameter.set_data(value)
    return parameter


def training_step() -> Any:
    """How many steps were taken before this one, as a value of the compiled network: () int64. None outside a trace, where nobody counts."""
    tracer = current_tracer.get()
    return tracer.step() if tracer is not None else None
