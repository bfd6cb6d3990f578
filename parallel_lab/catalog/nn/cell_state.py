"""Methods of Cell that came with MindSpore 2.5 to 2.10: buffers, and a network's state as a dict.

    self.register_buffer("positions", Tensor(np.arange(8)))      # in __init__: read as self.positions, no Parameter
    b.load_state_dict(a.state_dict())

They are put on `Cell` when the catalogue is opened, and a Cell opens it when one of them is asked for.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from ...base.checks import fitting, flag, instance, text
from ...base.errors import ArgumentError, CellError, CheckpointError, ShapeError
from ...nn.cell import Cell
from ...nn.tensor.parameter import Parameter
from ...nn.tensor.tensor import Tensor


class IncompatibleKeys(NamedTuple):
    """Names that a network has and a dict has not, and the other way round."""

    missing_keys: list[str]
    unexpected_keys: list[str]


class BufferNameError(ArgumentError, KeyError):
    """A name that a buffer of a Cell cannot have (MindSpore raises KeyError)."""

    __str__ = Exception.__str__  # a KeyError shows the repr of its text


def register_buffer(self: Cell, name: str, tensor: Tensor | None, persistent: bool = True) -> None:
    """Hold a Tensor, not a Parameter, under a free name without dots; None reserves the name. persistent: it belongs to
    `state_dict`. Raises BufferNameError, ArgumentTypeError.
    """
    where = self._where()
    held = self.__dict__.setdefault("_buffers", {})
    if not text(where, "name", name) or "." in name or (name not in held and hasattr(self, name)):
        raise BufferNameError(f"buffer {name!r}", where=where, allowed="A free, non-empty name without dots")
    (instance(Tensor, "A Tensor or None") | None)(where, "tensor", tensor)
    setattr(self, name, tensor)
    held[name] = flag(where, "persistent", persistent)


def named_buffers(
    self: Cell, name_prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
) -> Iterator[tuple[str, Tensor]]:
    """(path of attributes, buffer) here and below, or here alone; each once unless remove_duplicate=False."""
    seen: set[int] = set()
    for path, cell in self.cells_and_names(name_prefix) if recurse else [(name_prefix, self)]:
        for name in cell.__dict__.get("_buffers", ()):
            buffer = cell.__dict__.get(name)
            if buffer is not None and not (remove_duplicate and id(buffer) in seen):
                seen.add(id(buffer))
                yield (f"{path}.{name}" if path else name), buffer


def buffers(self: Cell, recurse: bool = True) -> Iterator[Tensor]:
    """The buffers here and below, each once."""
    return (buffer for _, buffer in self.named_buffers(recurse=recurse))


def get_buffer(self: Cell, target: str) -> Tensor:
    """The buffer at a path of attributes, "blocks.0.positions". Raises CellError (an AttributeError)."""
    found = dict(self.named_buffers(remove_duplicate=False))
    if text("get_buffer", "target", target) not in found:
        raise CellError(f"there is no buffer {target!r}", where=self._where(), allowed=f"Buffers: {', '.join(found)}")
    return found[target]


def state_dict(
    self: Cell, *, destination: dict[str, Tensor] | None = None, prefix: str = "", keep_vars: bool = False
) -> dict[str, Tensor]:
    """{path of attributes: Parameter or persistent buffer}, themselves and not copies.

    destination  a dict to fill;  prefix  before every name;  keep_vars  accepted: nothing here hangs on a gradient
    """
    flag("state_dict", "keep_vars", keep_vars)
    state = {} if destination is None else destination
    for path, cell in self.cells_and_names():
        start = prefix + (f"{path}." if path else "")
        state.update({start + name: parameter for name, parameter in cell._params.items()})
        kept = (name for name, persistent in cell.__dict__.get("_buffers", {}).items() if persistent)
        state.update({start + name: cell.__dict__[name] for name in kept if cell.__dict__.get(name) is not None})
    return state


def load_state_dict(self: Cell, state_dict: Mapping[str, Any], strict: bool = True) -> IncompatibleKeys:
    """Copy values from a dict into the Parameters and persistent buffers of these names; shapes must be equal, dtypes
    stay. strict: raise CheckpointError (a RuntimeError) for names that one of both lacks. Returns those names.
    """
    where = self._where()
    given = instance(Mapping, "A dict")(where, "state_dict", state_dict)
    own = self.state_dict()
    keys = IncompatibleKeys([n for n in own if n not in given], [n for n in given if n not in own])
    if flag(where, "strict", strict) and any(keys):
        what = "; ".join(f"{kind}: {', '.join(names)}" for kind, names in keys._asdict().items() if names)
        raise CheckpointError(what, where=f"load_state_dict of {where}", hint="strict=False takes the others")
    both = {name: (target, Tensor(given[name])) for name, target in own.items() if name in given}
    for name, (target, value) in both.items():
        if tuple(target.shape) != tuple(value.shape):
            raise ShapeError(f"{name} of shape {value.shape}", where="load_state_dict", allowed=f"{target.shape}")
    for target, value in both.values():
        if isinstance(target, Parameter):
            target.set_data(Tensor(value, target.dtype))
        else:
            target[...] = Tensor(value, target.dtype)
    return keys


def get_parameter(self: Cell, target: str) -> Parameter:
    """The Parameter at a path of attributes, "blocks.0.w". Raises ArgumentError naming the nearest."""
    return _at("get_parameter", target, dict(self._paths()))


def get_sub_cell(self: Cell, target: str) -> Any:
    """The Cell at a path of attributes; "": this one. Raises ArgumentError naming the nearest."""
    return _at("get_sub_cell", target, dict(self.cells_and_names()))


def _at(where: str, target: str, children: dict[str, Any]) -> Any:
    if text(where, "target", target) in children:
        return children[target]
    near = difflib.get_close_matches(target, children, 1)
    hint = f"Did you mean {near[0]!r}?" if near else ""
    raise ArgumentError(f"target={target!r}", where=where, allowed="A path of attributes", hint=hint)


_METHODS = get_parameter, get_sub_cell, register_buffer, named_buffers, buffers, get_buffer, state_dict, load_state_dict
for _method in _METHODS:
    globals()[_method.__name__] = fitting(_method, _method.__name__)
    setattr(Cell, _method.__name__, globals()[_method.__name__])
