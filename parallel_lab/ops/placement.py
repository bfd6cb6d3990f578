"""What a script may ask of one operator beside its strategy: where it runs, and whether its result is kept. Kept as attributes; not built yet."""

from __future__ import annotations

from typing import Any

from ..context import current_world, on_tape
from ..errors import ArgumentTypeError, DeviceError, NotBuiltYet, message, shorten

__all__ = ["DEVICE_TARGETS", "TARGET", "Placed", "check_target", "refuse_placement", "refuse_recompute"]

DEVICE_TARGETS = ("CPU", "GPU", "Ascend")
TARGET = "primitive_target"  # the attribute that MindSpore's older `add_prim_attr` form sets


def check_target(where: str, target: Any) -> str:
    """`target`, which must be one of DEVICE_TARGETS. Raises ArgumentTypeError, DeviceError (a ValueError and RuntimeError)."""
    allowed = f"One of {', '.join(map(repr, DEVICE_TARGETS))}"
    if not isinstance(target, str):
        raise ArgumentTypeError(message(f"device target {shorten(target)}", where=where, allowed=allowed))
    if target not in DEVICE_TARGETS:
        raise DeviceError(message(f"device target {target!r}", where=where, allowed=allowed))
    return target


def refuse_placement(where: str, target: str) -> None:
    """Raise NotBuiltYet for an operator or optimizer that was given a device and is to run."""
    what = f"it is placed on {target!r}, and placement on host or device is not built yet"
    raise NotBuiltYet(message(what, where=where, hint="Leave it out: everything runs on this machine's processors, with the same results"))


def refuse_recompute(where: str) -> None:
    """Raise NotBuiltYet where an operator or Cell that is to be recomputed is run for its gradient on a rank of a world.

    On one device, and without a gradient, the wish changes nothing: results are the same, and what is kept is this process's own affair.
    """
    if on_tape.get() and current_world() is not None:
        what = "recompute() was called on it, and recomputing is not built yet"
        raise NotBuiltYet(message(what, where=where, hint="Leave the call away: results are the same, activations are kept in memory"))


class Placed:
    """The part of a Primitive that is about where and when it is computed."""

    prim_attrs: dict[str, Any]
    name: str

    def set_device(self, device_target: str) -> Any:
        """Ask for this operator to run on "CPU", "GPU" or "Ascend". Returns self.

        Kept, and shown by `repr`. All ranks compute on this machine's processors; placement is not built yet, so a call raises NotBuiltYet.
        """
        self.prim_attrs[TARGET] = check_target(f"{self.name} set_device", device_target)
        return self

    def recompute(self, mode: bool = True) -> Any:
        """Ask the compiler to compute this operator's result again in the backward pass instead of keeping it. Returns self."""
        if not isinstance(mode, bool):
            raise ArgumentTypeError(message(f"mode={shorten(mode)}", where=f"{self.name} recompute", allowed="True or False"))
        self.prim_attrs["recompute"] = mode
        return self
