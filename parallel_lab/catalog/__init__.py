"""Inventory: operators, layers, losses and optimizer rules that neither lessons, labs, models nor passes name.

Nobody has to read it, and no lower room imports it. It is loaded when a name of `ops`, of `nn` or of a Tensor is not
found among the taught ones, when names are listed, and when a plan contains one of its operators (`open_catalog` in
`base/hooks.py`); from then on all of it is as public as the rest. What the names above call is taught, too:
`tests/house/test_catalog.py` computes which names belong here.
"""

from .. import nn as _nn, ops as _ops
from ..base.hooks import set_catalog
from . import nn, ops  # noqa: F401

_ops.publish()
_nn.publish(nn.LAYERS)
set_catalog(lambda: None)  # all of it is there: names are looked up thousands of times
