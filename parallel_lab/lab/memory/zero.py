"""The table of the ZeRO paper for a model of any size: what one of N ranks holds of parameters, gradients and optimizer
states (`cost/zero.py`).

zero_table(parse_count("7.5B"), 64, 12)        a plain dict, for views
"""

from __future__ import annotations

from typing import Any

from ...base.errors import ArgumentError, shorten
from ...cost.zero import STAGES, zero_max_parameters, zero_memory, zero_traffic

DEGREES = (1, 4, 16, 64, 256, 1024)  # the rows of the paper's table 1
DEVICE_GB = 32  # the device of its table 2
GB = 1e9  # as the paper counts
LONGEST = 40  # characters of a typed number
MOST_RANKS, MOST_BYTES = 2**20, 1024  # beyond them a table of figures stops being readable
SUFFIXES = {"": 1.0, "K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}


def parse_count(given: Any) -> float:
    """A number of parameters: 7.5e9, or a text such as "7.5B", "350 M", "1e12". Raises ArgumentError."""
    allowed = "A number above 0 and below 1e18, such as 7.5e9, '7.5B' or '350M'"
    fault = ArgumentError(f"parameters={shorten(given)}", where="MemoryLab", allowed=allowed)
    if isinstance(given, bool) or not isinstance(given, (int, float, str)):
        raise fault
    factor = 1.0
    if isinstance(given, str):
        text = given.strip().upper()[:LONGEST].replace(",", ".")
        if text and text[-1] in SUFFIXES:
            factor, text = SUFFIXES[text[-1]], text[:-1]
        given = text
    try:
        value = float(given) * factor
    except (ValueError, OverflowError):  # of a whole number of hundreds of digits
        raise fault from None
    if not 0 < value < 1e18:
        raise fault
    return value


def count_text(count: float) -> str:
    """A number of parameters for people.

    >>> count_text(7.5e9), count_text(524288), count_text(12)
    ('7.5 B', '524 K', '12')
    """
    for suffix in ("T", "B", "M", "K"):
        if count >= SUFFIXES[suffix]:
            return f"{count / SUFFIXES[suffix]:.3g} {suffix}"
    return f"{count:g}"


def zero_table(parameters: float, degree: int, optimizer_bytes: float) -> dict[str, Any]:
    """The paper's table for this model.  parameters: of the model;  degree: ranks that share;  optimizer_bytes: K, per
                                          parameter.

    rows     per number of ranks the GB one rank holds, stage 0 to 3
    stages   for `degree` ranks per stage: GB of each part, elements a rank sends per step, the largest model for a
             device of 32 GB

    Raises ArgumentError unless they are numbers of ranks and bytes, and not very large.
    """
    for what, value, most in (("degree", degree, MOST_RANKS), ("optimizer_bytes", optimizer_bytes, MOST_BYTES)):
        if isinstance(value, (int, float)) and not value <= most:
            raise ArgumentError(f"{what}={shorten(value)}", where="MemoryLab", allowed=f"At most {most}")
    rows = []
    for ranks in sorted({*DEGREES, degree} if isinstance(degree, int) else {degree}):
        totals = [
            zero_memory(parameters, ranks, stage, optimizer_bytes=optimizer_bytes).total_bytes / GB for stage in STAGES
        ]
        rows.append({"ranks": ranks, "chosen": ranks == degree, "gb": totals})
    stages = []
    for stage, cut in STAGES.items():
        held = zero_memory(parameters, degree, stage, optimizer_bytes=optimizer_bytes)
        largest = zero_max_parameters(DEVICE_GB * GB, degree, stage, optimizer_bytes=optimizer_bytes)
        stages.append(
            {
                "stage": stage,
                "cut": cut,
                "params_gb": held.params_bytes / GB,
                "grads_gb": held.grads_bytes / GB,
                "optimizer_gb": held.optimizer_bytes / GB,
                "total_gb": held.total_bytes / GB,
                "sent_elements": zero_traffic(parameters, degree, stage),
                "largest": largest,
                "largest_text": count_text(largest),
            }
        )
    facts = {"parameters": parameters, "parameters_text": count_text(parameters), "degree": degree}
    facts |= {"optimizer_bytes": optimizer_bytes, "device_gb": DEVICE_GB}
    return {**facts, "rows": rows, "stages": stages}
