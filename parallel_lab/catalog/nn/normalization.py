"""Layers that normalise: RMS norm, group norm, instance norm."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...base.checks import flag, floating, integer, kept, number
from ...base.errors import ArgumentError, ShapeError
from ...nn.cell import Cell
from ...nn.initializer import initializer
from ...nn.layers.normalization import DIMS
from ...nn.tensor.parameter import Parameter
from ...ops.shape import shape as shape_of
from ..ops.normalization import group_norm, rms_normalization


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
    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float = 0.1,
        affine: bool = True,
        gamma_init: Any = "ones",
        beta_init: Any = "zeros",
        dtype: Any = np.float32,
    ) -> None:
        super().__init__()
        for name, init in (("gamma", gamma_init), ("beta", beta_init)):
            values = initializer(init, (num_features,), dtype)
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
