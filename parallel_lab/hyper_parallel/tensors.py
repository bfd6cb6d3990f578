"""HyperParallel's `DTensor`, and functions of parts: this package's, in HyperParallel's forms.

    x = DTensor.from_local(local, mesh, (Shard(0), Replicate()))      or aliases: (("dp", "tp"), "None")
    y = x.redistribute(mesh, ("None", "tp")).reduce_partial()

No operator sends a message that nobody asked for: operands that would have to move are a LayoutError, with the call
that moves them. Placements may also be a `Layout` that was called.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np

from ..base.checks import fitting, fitting_class
from ..base.dtypes import as_dtype
from ..base.errors import ArgumentTypeError, LayoutError, shorten
from ..base.seeds import next_draw
from ..layout import mesh_layout
from ..nn.tensor import dtensor as ours
from ..nn.tensor.dtensor_calls import on_ranks
from ..nn.tensor.initial_slices import parameter_generator
from ..nn.tensor.tensor import Tensor
from .device_mesh import DeviceMesh
from .layout import DTensorLayout, Layout, as_ours, build_layout

_by_parts: ContextVar[bool] = ContextVar("parallel_lab_skip_dtensor_dispatch", default=False)


@contextmanager
def SkipDTensorDispatch() -> Iterator[None]:
    """Inside, operators run on what each rank has, and nothing is laid out: results are ranks' own parts."""
    token = _by_parts.set(True)
    try:
        yield
    finally:
        _by_parts.reset(token)


def mesh_layout_of(mesh: Any, placements: Any, ndim: int) -> mesh_layout.MeshLayout:
    """A mesh and placements, aliases or a Layout, as this package's layout of a tensor of `ndim` dims."""
    if isinstance(mesh, Layout):
        return mesh.mesh_layout(ndim)
    if isinstance(placements, Layout):
        return placements.mesh_layout(ndim)
    if isinstance(placements, mesh_layout.MeshLayout):
        return placements
    if len(placements) and not isinstance(placements[0], mesh_layout.AxisPlacement):
        return build_layout(mesh, placements, ndim).mesh_layout()
    return mesh_layout.MeshLayout(mesh.pivot, tuple(map(as_ours, placements))).on(ndim)


@fitting_class
class DTensor(ours.DTensor):
    """A tensor over a mesh.  local_shape: of this rank's part;  layout: has what a `Layout` has"""

    __slots__ = ()

    def __init__(self, parts: Any, layout: Any, shape: Sequence[int], requires_grad: bool = False) -> None:
        super().__init__(parts, DTensorLayout.on_dims(layout, len(shape)), shape, requires_grad)

    @staticmethod
    def from_local(local_tensor: Any, device_mesh: Any, placements: Any = None, **more: Any) -> DTensor:
        """The tensor whose parts the ranks have.  local_tensor: a rank's part, or a function of the rank where one
        process plays all;  placements: what each axis does, or aliases per dim.
        """
        first = local_tensor
        if callable(local_tensor):
            first = local_tensor(device_mesh.rank_list[0])
        elif isinstance(local_tensor, dict):
            first = next(iter(local_tensor.values()))
        to = mesh_layout_of(device_mesh, placements, first.ndim)
        return _theirs(ours.DTensor.from_local(local_tensor, to.mesh, to.placements, **more))

    @property
    def local_shape(self) -> tuple[int, ...]:
        """Shape of this rank's part."""
        return self.part_shapes()[0]

    def redistribute(self, device_mesh: Any = None, placements: Any = None, *, reason: str = "redistribute") -> Any:
        """The same value laid out otherwise, by a mesh with placements or aliases, or by a Layout."""
        return super().redistribute(mesh_layout_of(device_mesh, placements, self.ndim), reason=reason)

    def reduce_partial(self) -> DTensor:
        """The same value, with nothing pending: reduced over each axis that is, which splits nothing afterwards."""
        copies = (mesh_layout.Replicate() if isinstance(p, mesh_layout.Partial) else p for p in self.placements)
        whole = mesh_layout.MeshLayout(self.mesh, tuple(copies))
        return super().redistribute(whole, reason="reduce_partial")  # ty: ignore

    def is_partial(self) -> bool:
        """Whether anything is pending."""
        return bool(self.layout.pending)

    def __parallel_lab_op__(self, op: Any, operands: list[Any], attrs: dict[str, Any]) -> Any:
        if _by_parts.get():
            mine = [x.to_local() if isinstance(x, ours.DTensor) else x for x in operands]
            return self.to_local().__parallel_lab_op__(op, mine, attrs)
        with ours.dtensor_policy("explicit"):
            return super().__parallel_lab_op__(op, operands, attrs)


@on_ranks()
def _theirs(made: ours.DTensor) -> DTensor:
    """A DTensor of this package as one that refuses messages nobody asked for, with its gradient."""
    strict = DTensor(made._locals, made.layout, made.shape, made._wanted)
    strict.node = made.node
    return strict


@fitting
def distribute_tensor(tensor: Any, device_mesh: Any, placements: Any = None) -> DTensor:
    """Cut a whole tensor, which every rank has: no message is sent."""
    array = tensor.asnumpy() if isinstance(tensor, Tensor) else tensor
    to = mesh_layout_of(device_mesh, placements, array.ndim)
    return _theirs(ours.distribute_tensor(tensor, to.mesh, to.placements))


def _made(name: str, draw: Callable[[tuple[int, ...]], np.ndarray]) -> Callable[..., DTensor]:
    def make(
        *size: Any, device_mesh: Any = None, placements: Any = None, dtype: Any = None, requires_grad: bool = False
    ) -> DTensor:
        shape = tuple(size[0]) if len(size) == 1 and isinstance(size[0], (tuple, list)) else size
        array = draw(shape).astype("float32" if dtype is None else as_dtype(dtype))
        made: DTensor = distribute_tensor(array, device_mesh, placements)
        return made.requires_grad_(requires_grad)

    make.__name__ = make.__qualname__ = name
    make.__doc__ = f"A DTensor: `{name}` of a shape.  size: ints, or a tuple of them;  placements: as in from_local"
    return fitting(make)


zeros, ones, empty = _made("zeros", np.zeros), _made("ones", np.ones), _made("empty", np.zeros)
randn = _made("randn", lambda shape: parameter_generator(f"randn {next_draw()}").standard_normal(shape))


@fitting
def full(size: Any, fill_value: Any, **where: Any) -> DTensor:
    """A DTensor of one value.  size, and device_mesh, placements, dtype, requires_grad: as for `ones`."""
    return _made("full", lambda shape: np.full(shape, fill_value))(size, **where)


@fitting
def custom_shard(
    func: Callable[..., Any],
    device_mesh: DeviceMesh,
    out_placements: Sequence[Any],
    in_placements: Sequence[Any] | None = None,
    redistribute_inputs: bool = True,
) -> Callable[..., Any]:
    """A function of ranks' own parts as one of DTensors.

    in_placements, out_placements  per argument and result; None: no DTensor
    redistribute_inputs            move arguments that lie otherwise

    Raises LayoutError: another number of arguments or results; ArgumentTypeError: a DTensor where None stands, or the
    other way round.
    """
    where = f"custom_shard of {getattr(func, '__name__', 'a function')}"

    def check(kind: str, values: Sequence[Any], placements: Sequence[Any], tensors: type) -> None:
        if len(values) != len(placements):
            raise LayoutError(f"{len(values)} {kind}s", where=where, allowed=f"{len(placements)}, as placements say")
        for place, (value, wanted) in enumerate(zip(values, placements, strict=True)):
            if isinstance(value, tensors) == (wanted is None):
                given = f"{kind} {place} is {shorten(value)}, its placements {wanted}"
                raise ArgumentTypeError(given, where=where, allowed="Placements for each DTensor, None for the others")

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        wanted = in_placements or [None] * len(args)
        check("argument", args, wanted, ours.DTensor)
        moved = [
            x if to is None or not redistribute_inputs else x.redistribute(device_mesh, to)
            for x, to in zip(args, wanted, strict=True)
        ]
        out = func(*(x.to_local() if isinstance(x, ours.DTensor) else x for x in moved), **kwargs)
        if not any(isinstance(x, ours.DTensor) for x in args):
            return out
        results = out if isinstance(out, tuple) else (out,)
        check("result", results, out_placements, Tensor)
        made = [
            x if to is None else DTensor.from_local(x, device_mesh, to)
            for x, to in zip(results, out_placements, strict=True)
        ]
        return tuple(made) if isinstance(out, tuple) else made[0]

    return fitting(wrapped, where)
