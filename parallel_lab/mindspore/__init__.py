"""MindSpore's paths and spellings for this package: `mindspore.nn.Cell` is `parallel_lab.nn.Cell`.

    import parallel_lab.mindspore as ms
    from parallel_lab.mindspore import nn, ops
    from parallel_lab.mindspore.communication import init

Re-exports only: tables (`_tables.py`) and one `__getattr__` (`_modules.py`); what a script calls in another form than
ours is in `_forms.py`. From the 1.x forms (`context`, `dataset.vision.c_transforms`, `train.model`) to those of 2.6
(`mint`, `parallel.auto_parallel`, `runtime`). A script runs unmodified under `parallel-lab run --as-mindspore`, or with
the folder that `parallel-lab as-mindspore` prints on PYTHONPATH.
"""

from __future__ import annotations

import sys

from ._modules import install as _install

_install(sys.modules[__name__])
