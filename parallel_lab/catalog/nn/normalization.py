"""Layers that normalise: RMS norm, group norm, instance norm, batch norm of volumes, and over several ranks."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...base.checks import Check, checked, fitting, flag, floating, integer, kept, number
from ...base.errors import ArgumentError, ShapeError, TracedCommunication, shorten
from ...base.hooks import current_tracer, current_world
from ...base.settings.checks import SHARDED_MODES
from ...base.settings.current import get_auto_parallel_context
from ...nn.cell import Cell
from ...nn.initializer import initializer
from ...nn.layers.normalization import DIMS, _batch_norm, _BatchNorm
from ...nn.tensor.parameter import Parameter
from ...ops.shape import shape as shape_of
from ..ops.normalization import group_norm, rms_normalization
from .forms import arguments_of


class RMSNorm(Cell):
    """gamma * x / root of its mean square in the last dims.  x: (..., *normalized_shape) -> like x. See `rms_norm`."""

    @kept(normalized_shape=DIMS, epsilon=floating(0, above=True))
    def __init__(
        self,
        normalized_shape: tuple[int, ...] | list[int],
        epsilon: float = 1e-6,
        gamma_init: Any = "ones",
        dtype: Any = np.float32,
    ) -> None:
        super().__init__()
        self.gamma = Parameter(initializer(gamma_init, normalized_shape, dtype), name="gamma")
        self.rms_norm = rms_normalization.primitive(epsilon=epsilon)

    def construct(self, x: Any) -> Any:
        return self.rms_norm(x, self.gamma)[0]


class GroupNorm(Cell):
    """Channels normalised in groups, every sample on its own.  x: (n, num_channels, ...) -> the same.

    num_groups  divides num_channels; affine=False: gamma and beta stay as they are

    Operator: `group_norm` (GroupNorm). Channels are split at the borders of groups only. Defaults: MindSpore.
    """

    @kept(num_groups=integer(1), num_channels=integer(1), eps=floating(0, above=True), affine=flag)
    def __init__(
        self,
        num_groups: int,
        num_channels: int,
        eps: float = 1e-5,
        affine: bool = True,
        gamma_init: Any = "ones",
        beta_init: Any = "zeros",
        dtype: Any = np.float32,
    ) -> None:
        super().__init__()
        if num_channels % num_groups:
            given = f"num_groups={num_groups} with num_channels={num_channels}"
            raise ArgumentError(given, where="GroupNorm", allowed="A count that divides the channels")
        self.gamma = Parameter(initializer(gamma_init, (num_channels,), dtype), name="gamma", requires_grad=affine)
        self.beta = Parameter(initializer(beta_init, (num_channels,), dtype), name="beta", requires_grad=affine)
        self.group_norm = group_norm.primitive(num_groups=num_groups, epsilon=eps)

    def construct(self, x: Any) -> Any:
        return self.group_norm(x, self.gamma, self.beta)


class _InstanceNorm(Cell):
    """What the instance norms share: a group norm with one channel in each group."""

    ndim, form = 0, ""

    @kept(num_features=integer(1), eps=floating(0, above=True), momentum=number(0, 1), affine=flag)
    @arguments_of(
        _BatchNorm.__init__, names="num_features eps momentum affine gamma_init beta_init dtype", momentum=0.1
    )
    def __init__(self, num_features: int, eps: float, dtype: Any, affine: bool, **inits: Any) -> None:
        super().__init__()
        for name in ("gamma", "beta"):
            values = initializer(inits[f"{name}_init"], (num_features,), dtype)
            setattr(self, name, Parameter(values, name=name, requires_grad=affine))
        self.group_norm = group_norm.primitive(num_groups=num_features, epsilon=eps)

    def construct(self, x: Any) -> Any:
        shape = shape_of(x)
        if len(shape) != self.ndim or shape[1] != self.num_features:
            allowed = f"{self.form} with c = {self.num_features}"
            raise ShapeError(f"an input of shape {shape}", where=self._where(), allowed=allowed)
        return self.group_norm(x, self.gamma, self.beta)


def _instance_norm(name: str, inputs: str, form: str) -> type[_InstanceNorm]:
    text = f"""Instance norm of {inputs}: every channel of every sample on its own.  x: {form} -> the same.

    num_features  channels, c;  affine=False: gamma and beta stay as they are
    momentum      accepted: there are no running statistics (MindSpore)

    Operator: `group_norm` (GroupNorm, a channel in each group); samples and channels may be split. Defaults: MindSpore.
    """
    inside = {"ndim": form.count(",") + 1, "form": form, "__doc__": text, "__module__": __name__}
    return type(name, (_InstanceNorm,), inside)


InstanceNorm1d = _instance_norm("InstanceNorm1d", "sequences", "(n, c, l)")
InstanceNorm2d = _instance_norm("InstanceNorm2d", "pictures", "(n, c, h, w)")
InstanceNorm3d = _instance_norm("InstanceNorm3d", "volumes", "(n, c, d, h, w)")


class _VolumeNorm(_BatchNorm):
    """A batch norm that takes no `data_format`."""

    @fitting
    @arguments_of(_BatchNorm.__init__, without="data_format")
    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)


BatchNorm3d = _batch_norm("BatchNorm3d", "volumes", (5,), "(n, c, d, h, w)", _VolumeNorm, __name__)


def _read_groups(value: Any) -> tuple[tuple[int, ...], ...]:
    if not isinstance(value, list) or not all(isinstance(group, list) for group in value):
        raise TypeError
    groups = tuple(tuple(sorted(integer(0).read(rank) for rank in group)) for group in value)
    if len(set(sum(groups, ()))) < sum(map(len, groups)):
        raise ValueError("Each rank is in one group")
    return groups


class SyncBatchNorm(_BatchNorm):
    """Batch norm whose statistics are those of the samples of several ranks, for data_parallel mode.  x: (n, c) or (n,
    c, h, w) -> the same.

    num_features, eps, momentum, affine, gamma_init, beta_init, moving_mean_init, moving_var_init, use_batch_statistics
                    as in BatchNorm2d
    process_groups  None: all ranks together; or a list of lists of ranks, each rank in one at most: those of a list
                    together. A rank in none of them, or alone in one, uses its own samples

    With all ranks training equals one device's on all samples. Semi_auto and auto_parallel refuse a layer that
    communicates by hand (TracedCommunication, a RuntimeError): use BatchNorm2d there, whose statistics are always those
    of the whole batch. Raises ArgumentTypeError and ArgumentError for wrong groups. Names and defaults: MindSpore.
    """

    dims, form = (2, 4), "(n, c) or (n, c, h, w)"

    @checked(process_groups=Check("A list of lists of ranks, each rank once, or None", _read_groups) | None)
    @arguments_of(
        _BatchNorm.__init__, without="data_format sync unbiased", after=("use_batch_statistics", "process_groups", None)
    )
    def __init__(self, process_groups: list[list[int]] | None, **settings: Any) -> None:
        super().__init__(**settings, sync=True)
        self.process_groups = process_groups
        if process_groups is None:
            return
        world = current_world()
        ranks = get_auto_parallel_context("device_num") if world is None else world.world_size
        highest = max((rank for group in process_groups for rank in group), default=0)
        if highest >= ranks and (world is not None or ranks > 1):
            given = f"process_groups={shorten([list(group) for group in process_groups])}"
            raise ArgumentError(given, where="SyncBatchNorm", allowed=f"Ranks from 0 to {ranks - 1}")
        self.batch_norm.add_prim_attr("sync", tuple(g for g in process_groups if len(g) > 1) or False)

    def construct(self, x: Any) -> Any:
        tracer, world = current_tracer.get(), current_world()
        if tracer is not None:
            mode = tracer.parallel_mode or get_auto_parallel_context("parallel_mode")
            if mode in SHARDED_MODES or (mode == "stand_alone" and world is not None):
                hint = "Use nn.BatchNorm2d: its statistics are always those of the whole batch"
                what = f"SyncBatchNorm communicates by hand, and the network is compiled for {mode} mode"
                raise TracedCommunication(what, where=self._where(), allowed="data_parallel mode", hint=hint)
        return super().construct(x)
