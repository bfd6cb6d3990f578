"""HyperParallel's names and paths for this package: distributed tensors on a mesh, MindSpore's strict way.

    import parallel_lab.hyper_parallel as hp
    mesh = hp.init_device_mesh("npu", (2, 4), mesh_dim_names=("dp", "tp"))

Re-exports, and forms that HyperParallel has of its own: a `Layout` that can be changed, rules that refuse what would
need a message (`rules.py`). A script runs unmodified under `parallel-lab run --as-hyper-parallel`.
"""

from __future__ import annotations

import sys

from ._pages import install as _install

_install(sys.modules[__name__])
