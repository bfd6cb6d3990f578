"""`reshard`: redistribution as a call: the same tensor in another layout.

    layout = Layout((2, 4), ("dp", "mp"))
    x = reshard(x, layout("dp", "mp"))            # inside a network that is compiled, or on a rank's tensors at once

In a compiled network it is an Identity with this layout: the tensor is brought there, and on from there to what its
readers want; a search starts from it; gradients go the same way back. At once it runs the messages of
`plan_redistribution` between the ranks. (MindSpore, parallel.function.reshard.)
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..base.errors import ArgumentError, ArgumentTypeError, shorten
from ..base.hooks import current_tracer, current_world
from ..base.origin import caller
from ..base.settings.config import redistribution_manner
from ..base.settings.current import get_auto_parallel_context
from ..graph.instr import Instr, attr_pairs
from ..graph.kinds import KINDS, OnRank
from ..graph.passes.parallelize import step_attrs
from ..layout.named_layout import Layout
from ..layout.redistribution import plan_redistribution
from ..layout.tensor_layout import TensorLayout
from ..nn.tensor.arithmetic import Arithmetic
from ..nn.tensor.tensor import RankTensor
from ..ops.elementwise import identity
from ..ops.machine.primitive import check_strategy_value
from ..run.interpreter import request_of
from .run_cell import refuse_on_tape

WHERE = "reshard"


def reshard(tensor: Any, layout: Layout) -> Any:
    """`tensor` with its values unchanged, split as `layout` says.  tensor: (...) -> (...).

    tensor  in a network that is compiled any tensor of it; on a rank a RankTensor or a Parameter that holds a slice, or
            a Tensor that every rank holds whole
    layout  a `Layout` of as many devices as there are, called with one entry per dim

    On a rank, outside of a compiled network, all ranks call it: -> a RankTensor with this rank's slice. With one device
    it returns `tensor`. Raises ArgumentTypeError (a TypeError) for other types, StrategyError, ShapeError or
    LayoutError for a layout that does not fit.
    """
    if not isinstance(tensor, Arithmetic):
        raise ArgumentTypeError(f"tensor={shorten(tensor)}", where=WHERE, allowed="A Tensor")
    if not isinstance(layout, Layout):
        hint = "For example Layout((2, 4), ('dp', 'mp'))('dp', 'mp')"
        raise ArgumentTypeError(f"layout={shorten(layout)}", where=WHERE, allowed="A Layout", hint=hint)
    check_strategy_value((layout,), WHERE, "layout")
    tracer, world = current_tracer.get(), current_world()
    devices = tracer.device_num if tracer is not None else 1 if world is None else world.world_size
    if devices == 1:
        return tensor
    if tracer is not None:
        return identity.primitive().add_prim_attr("instance_name", WHERE).shard((layout,))(tensor)
    refuse_on_tape(WHERE)
    return _moved(tensor, layout, world)


def _moved(tensor: Any, layout: Layout, world: Any) -> RankTensor:
    """This rank's slice of `tensor` in `layout`, by messages between the ranks."""
    shape, want = tuple(getattr(tensor, "full_shape", tensor.shape)), layout.tensor_layout()
    if layout.device_num != world.world_size or len(layout.dims) != len(shape):
        what = f"{layout!r} places {len(layout.dims)} dims on {layout.device_num} devices"
        allowed = f"The {len(shape)} dims of a tensor of shape {shape}, on {world.world_size} devices"
        raise ArgumentError(what, where=WHERE, allowed=allowed)
    if isinstance(tensor, RankTensor) and tensor.layout is None:
        what = f"a tensor of shape {shape} that every rank has for itself"
        raise ArgumentError(what, where=WHERE, allowed="Slices of one tensor, or the whole of it on every rank")
    have = getattr(tensor, "layout", None) or TensorLayout.replicated(world.world_size, len(shape))
    want.slice_shape(shape)
    array = np.ascontiguousarray(tensor.asnumpy()).reshape(tensor.shape)
    manner = redistribution_manner(*map(get_auto_parallel_context, ("redistribution", "enable_alltoall")))
    for step in plan_redistribution(have, want, shape, **manner):
        fields = {"axes": step.axes, "device_matrix": step.device_matrix, "attrs": attr_pairs(step_attrs(step))}
        instr = Instr(step.kind, WHERE, (WHERE,), WHERE, origin=caller(), **fields)
        env, kind = {WHERE: array}, KINDS[step.kind]
        if kind.asks:
            array = world.comm.answer(request_of(instr, world.rank, env))
        else:
            array = kind.run(OnRank(None, world.rank, env), instr)
    return RankTensor(array, shape, want)
