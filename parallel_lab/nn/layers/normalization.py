"""Layers that normalise: batch norm with its running statistics, layer norm.

bn = nn.BatchNorm2d(32)
bn.batch_norm.shard(((2, 4, 1, 1), (4,), (4,), (4,), (4,)))      # samples, channels: statistics of the whole batch
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from ...base.checks import checked, choice, flag, floating, integer, kept, number, sequence_of
from ...base.errors import ArgumentError, ShapeError
from ...ops.batch_norm import batch_normalization
from ...ops.normalization import layer_normalization
from ...ops.shape import shape as shape_of
from ..cell import Cell
from ..initializer import initializer
from ..tensor.parameter import Parameter

_BATCH_NORM = """

    Every channel is normalised over the batch in training, with running statistics otherwise.

    num_features  channels, c
    eps           added to the variance
    momentum      running = momentum * running + (1 - momentum) * batch, after every training step; the attribute is
                  1 - momentum
    affine        False: gamma and beta stay as they are
    gamma_init, beta_init, moving_mean_init, moving_var_init  what `initializer` takes
    use_batch_statistics  None: in training only; True: always; False: never. Running statistics change whenever those
                  of the batch are used
    sync          in data_parallel mode, where each rank normalises with its own samples: use the statistics of all
                  ranks. In semi_auto_parallel mode they are always those of the whole batch
    unbiased      running variance takes n / (n - 1) times the batch's (PyTorch, cuDNN); default: the batch's as it is
                  (MindSpore on CPU)

    Parameters: gamma, beta, and without gradient moving_mean, moving_variance, each (num_features,). Operator in both
    forms: `batch_norm` (BatchNorm) takes (x, gamma, beta, mean, variance). Names and defaults: MindSpore.
    """


class _BatchNorm(Cell):
    """What the batch norms share."""

    dims: tuple[int, ...] = ()  # how many dims x may have
    other_names: ClassVar = {"bn_train": "batch_norm", "bn_infer": "batch_norm"}
    form = ""

    @checked(data_format=choice("NCHW"))
    @kept(
        num_features=integer(1),
        eps=floating(0, above=True),
        momentum=number(0, 1),
        use_batch_statistics=choice(None, True, False),
        **dict.fromkeys(("affine", "sync", "unbiased"), flag),
    )
    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float = 0.9,
        affine: bool = True,
        gamma_init: Any = "ones",
        beta_init: Any = "zeros",
        moving_mean_init: Any = "zeros",
        moving_var_init: Any = "ones",
        use_batch_statistics: bool | None = None,
        data_format: str = "NCHW",
        dtype: Any = np.float32,
        *,
        sync: bool = False,
        unbiased: bool = False,
    ) -> None:
        super().__init__()
        trained = {"gamma": gamma_init, "beta": beta_init}
        for name, init in {**trained, "moving_mean": moving_mean_init, "moving_variance": moving_var_init}.items():
            values = initializer(init, (num_features,), dtype)
            setattr(self, name, Parameter(values, name=name, requires_grad=affine and name in trained))
        # One operator for both forms, so that one strategy serves both; `is_training` is set when it is called.
        self.batch_norm = batch_normalization.primitive(
            is_training=True, epsilon=eps, momentum=1 - momentum, unbiased=unbiased
        )
        self.batch_norm.add_prim_attr("sync", sync)
        self.momentum = 1 - momentum  # as scripts read it: what a batch adds (MindSpore)

    def construct(self, x: Any) -> Any:
        shape = shape_of(x)
        if len(shape) not in self.dims or shape[1] != self.num_features:
            allowed = f"{self.form} with c = {self.num_features}"
            raise ShapeError(f"an input of shape {shape}", where=self._where(), allowed=allowed)
        training = self.training if self.use_batch_statistics is None else self.use_batch_statistics
        self.batch_norm.given["is_training"] = training
        return self.batch_norm(x, self.gamma, self.beta, self.moving_mean, self.moving_variance)[0]


def _batch_norm(
    name: str,
    inputs: str,
    dims: tuple[int, ...],
    form: str,
    base: type[_BatchNorm] = _BatchNorm,
    module: str = __name__,
) -> type[_BatchNorm]:
    """The class for inputs of these counts of dims; help() of each shows all arguments."""
    text = f"Batch norm of {inputs}.  x: {form} -> the same.{_BATCH_NORM}"
    return type(name, (base,), {"dims": dims, "form": form, "__doc__": text, "__module__": module})


BatchNorm1d = _batch_norm("BatchNorm1d", "vectors", (2, 3), "(n, c) or (n, c, l)")
BatchNorm2d = _batch_norm("BatchNorm2d", "pictures", (4,), "(n, c, h, w)")


DIMS = sequence_of(integer(1), "A list or tuple of ints, each at least 1")


class LayerNorm(Cell):
    """Every sample normalised over its last dims.  x: (..., *normalized_shape) -> the same.

    normalized_shape   list or tuple: the dims that gamma and beta have
    begin_norm_axis    first dim that is normalised;  begin_params_axis  first dim that gamma and beta have
    epsilon            added to the variance

    Operator: `layer_norm` (LayerNorm), whose strategy has three tuples. The normalised dims stay whole. Defaults:
    MindSpore.
    """

    @kept(
        normalized_shape=DIMS, begin_norm_axis=integer(), begin_params_axis=integer(), epsilon=floating(0, above=True)
    )
    def __init__(
        self,
        normalized_shape: tuple[int, ...] | list[int],
        begin_norm_axis: int = -1,
        begin_params_axis: int = -1,
        gamma_init: Any = "ones",
        beta_init: Any = "zeros",
        epsilon: float = 1e-7,
        dtype: Any = np.float32,
    ) -> None:
        super().__init__()
        if begin_params_axis < 0 and -begin_params_axis != len(normalized_shape):
            given = f"normalized_shape={normalized_shape} with begin_params_axis={begin_params_axis}"
            allowed, hint = "gamma and beta have the dims from begin_params_axis on", -len(normalized_shape)
            raise ArgumentError(given, where="LayerNorm", allowed=allowed, hint=f"Give begin_params_axis={hint}")
        self.gamma = Parameter(initializer(gamma_init, normalized_shape, dtype), name="gamma")
        self.beta = Parameter(initializer(beta_init, normalized_shape, dtype), name="beta")
        axes = {"begin_norm_axis": begin_norm_axis, "begin_params_axis": begin_params_axis}
        self.layer_norm = layer_normalization.primitive(**axes, epsilon=epsilon)

    def construct(self, x: Any) -> Any:
        return self.layer_norm(x, self.gamma, self.beta)[0]
