"""MindSpore's operators that take one step of an optimizer: `P.Adam()(var, m, v, ...)` gives the Parameters new values.

Each is the class of a function in `catalog/nn/applied.py`: made with its keyword-only arguments, called with the rest.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from ..base.checks import misfit
from ..catalog.nn import applied
from ._forms import _Form

NAMES = {
    "Adam": applied.adam,
    "AdamNoUpdateParam": applied.adam_no_update_param,
    "AdamWeightDecay": applied.adam_weight_decay,
    "ApplyAdaMax": applied.apply_ada_max,
    "ApplyAdadelta": applied.apply_adadelta,
    "ApplyAdagrad": applied.apply_adagrad,
    "ApplyAdagradDA": applied.apply_adagrad_da,
    "ApplyAdagradV2": applied.apply_adagrad_v2,
    "ApplyAdamWithAmsgrad": applied.apply_adam_with_amsgrad,
    "ApplyAdamWithAmsgradV2": applied.apply_adam_with_amsgrad_v2,
    "ApplyAddSign": applied.apply_add_sign,
    "ApplyCenteredRMSProp": applied.apply_centered_rms_prop,
    "ApplyFtrl": applied.apply_ftrl,
    "ApplyGradientDescent": applied.apply_gradient_descent,
    "ApplyKerasMomentum": applied.apply_keras_momentum,
    "ApplyMomentum": applied.apply_momentum,
    "ApplyPowerSign": applied.apply_power_sign,
    "ApplyProximalAdagrad": applied.apply_proximal_adagrad,
    "ApplyProximalGradientDescent": applied.apply_proximal_gradient_descent,
    "ApplyRMSProp": applied.apply_rms_prop,
    "FusedSparseAdam": applied.fused_sparse_adam,
    "FusedSparseFtrl": applied.fused_sparse_ftrl,
    "FusedSparseLazyAdam": applied.fused_sparse_lazy_adam,
    "FusedSparseProximalAdagrad": applied.fused_sparse_proximal_adagrad,
    "FusedWeightScaleApplyMomentum": applied.fused_weight_scale_apply_momentum,
    "LARSUpdate": applied.lars_update,
    "SGD": applied.sgd,
    "SparseApplyAdagrad": applied.sparse_apply_adagrad,
    "SparseApplyAdagradV2": applied.sparse_apply_adagrad_v2,
    "SparseApplyFtrl": applied.sparse_apply_ftrl,
    "SparseApplyProximalAdagrad": applied.sparse_apply_proximal_adagrad,
}


def _class(name: str, function: Callable) -> type[_Form]:
    parameters = inspect.signature(function).parameters.values()
    named = [p.replace(kind=p.POSITIONAL_OR_KEYWORD) for p in parameters if p.kind == p.KEYWORD_ONLY]
    signature = inspect.Signature(named)

    class Applied(_Form):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            if fault := misfit(name, signature, args, kwargs):
                raise fault
            super().__init__()
            self.fn = functools.partial(function, **signature.bind(*args, **kwargs).arguments)

    Applied.__name__ = Applied.__qualname__ = name
    Applied.__doc__ = f"`{name}(...)(...)`: {function.__doc__}"
    return Applied


__all__ = [*NAMES]  # noqa: PLE0604  names of the table
globals().update({name: _class(name, function) for name, function in NAMES.items()})
