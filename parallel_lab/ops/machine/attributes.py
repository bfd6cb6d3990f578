"""Attributes of an operator as an object: those of its constructor, those of `add_prim_attr`, and what MindSpore names.

mul = ops.MatMul(transpose_b=True).add_prim_attr("stage", 1)
mul.transpose_b, mul.stage, mul.attrs["stage"]      # True, 1, 1
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

from ...base.checks import Errors, choice, flag, integer, sequence_of, text
from ...base.errors import ArgumentTypeError, DeviceError, MissingName, message, shorten

SWITCHES = ("cross_batch", "enable_nd_tp", "self_define_shard")  # attributes that the compiler reads as True or False
DEVICE_TARGETS = ("CPU", "GPU", "Ascend")
NAMES = sequence_of(text, "A list or tuple of names", empty=True)
TARGET = "primitive_target"  # the attribute that MindSpore's older `add_prim_attr` form sets


def check_target(where: str, target: Any) -> str:
    """`target`, one of DEVICE_TARGETS. Raises ArgumentTypeError, DeviceError."""
    return choice(*DEVICE_TARGETS)(where, "device_target", target, Errors(ArgumentTypeError, DeviceError))


class Attributed:
    """The base of Primitives.

    given       attributes of its computation, as the constructor was given them
    prim_attrs  those that `add_prim_attr` attached: notes for the compiler
    """

    instance_name: str
    given: dict[str, Any]
    prim_attrs: dict[str, Any]

    @property
    def options(self) -> dict[str, Any]:
        """Attributes that the constructor takes, with their defaults."""
        raise NotImplementedError

    @property
    def name(self) -> str:
        """Class name, as the IR prints it."""
        return type(self).__name__

    @property
    def attrs(self) -> Mapping[str, Any]:
        """All attributes by name, with their defaults, to read."""
        defaults = {name: value for name, value in self.options.items() if value is not inspect.Parameter.empty}
        return MappingProxyType({**defaults, **self.given, **self.prim_attrs})

    init_attrs = attrs

    def get_attr_dict(self) -> dict[str, Any]:
        """A copy of `attrs`."""
        return dict(self.attrs)

    def __getattr__(self, name: str) -> Any:
        # only reached for names that are not attributes of the object: transpose_b, or what add_prim_attr attached
        if not name.startswith("_") and "prim_attrs" in self.__dict__ and name in (attrs := self.attrs):
            return attrs[name]
        allowed = f"Attributes: {', '.join(self.attrs) or 'none'}" if "prim_attrs" in self.__dict__ else ""
        raise MissingName(message(f"{type(self).__name__} has no {name!r}", allowed=allowed), name=name, obj=self)

    def add_prim_attr(self, name: str, value: Any) -> Any:
        """Attach a named attribute: `instance_name` names the operator in plans, `cross_batch` leaves the sums of a
        reduction with each rank, `enable_nd_tp` lets a matrix product gather and scatter, `recompute_comm_op` lets what
        messages brought it be brought again for backward, `forward_reduce_scatter` lets its sums wait for a reader that
        splits a dim of their reshaped rows, `self_define_shard` runs it on slices as the layouts of `shard` say;
        `primitive_target` is the older form of `set_device`; others are kept. Returns self. Raises ArgumentTypeError.
        """
        where = f"{self.name} add_prim_attr"
        if not isinstance(name, str):
            raise ArgumentTypeError(f"name={shorten(name)}", where=where, allowed="The name of an attribute, a str")
        if name in SWITCHES:
            flag(where, name, value)
        if name == TARGET:
            check_target(where, value)
        own = name.removesuffix("_with_offset")
        if own in self.options:  # also an attribute of the operator itself: manual_split
            self.given[own] = value
        self.prim_attrs[name] = value
        if name == "instance_name":
            self.instance_name = str(value)
        return self

    def del_prim_attr(self, name: str) -> Any:
        """Take an attribute of `add_prim_attr` away. Returns self."""
        self.prim_attrs.pop(text(f"{self.name} del_prim_attr", "name", name), None)
        return self

    def set_device(self, device_target: str) -> Any:
        """Run on "CPU", the host, in compiled networks: what it reads comes there and what it makes stays there. "GPU",
        "Ascend": on the device, as without it. "": not set. Results are the same. Returns self.
        """
        self.prim_attrs.pop(TARGET, None)
        if not isinstance(device_target, str) or device_target:
            self.prim_attrs[TARGET] = check_target(f"{self.name} set_device", device_target)
        return self

    def set_stage(self, stage: int) -> Any:
        """Say in which stage of a pipeline it lies (kept, shown). Returns self."""
        return self.add_prim_attr("stage", integer(0)(f"{self.name} set_stage", "stage", stage))

    def set_prim_instance_name(self, name: str) -> Any:
        """Name the operator in plans. Returns self."""
        return self.add_prim_attr("instance_name", name)

    def init_prim_io_names(self, inputs: Iterable[str], outputs: Iterable[str]) -> None:
        """Name inputs and outputs (kept as attributes)."""
        where = f"{self.name} init_prim_io_names"
        given = {"input_names": NAMES(where, "inputs", inputs), "output_names": NAMES(where, "outputs", outputs)}
        self.prim_attrs |= {key: list(names) for key, names in given.items()}

    def recompute(self, mode: bool = True) -> Any:
        """Ask for this operator's result to be computed again in backward instead of being kept. Returns self."""
        self.prim_attrs["recompute"] = flag(f"{self.name} recompute", "mode", mode)
        return self

    def clone(self) -> Any:
        """Another operator with the same attributes and strategy; `_clone` in MindSpore."""
        clone = copy.copy(self)
        clone.given, clone.prim_attrs = dict(self.given), dict(self.prim_attrs)
        return clone

    _clone = clone
