"""Lesson 17: from shard to DTensor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...layout.device_mesh import DeviceMesh
from ...layout.mesh_layout import MeshLayout
from ...layout.notations import written
from ...nn.tensor.dtensor import DTensor, dtensor_messages
from ...ops.linalg import matmul
from ...run.communicator import Request
from ..exercises import check, hint, par
from ..rosetta.model import MESHES, SHAPES
from ..rosetta.section import VIEWS, text_of
from ..shared.prediction import Comparison
from .predictions import Answers

__all__ = ["TORCH", "Request", "check", "compare", "hint", "network", "par", "sixteen", "table"]

DOES = ("R", "S0", "S1", "P")
TORCH = """# torchrun --nproc-per-node 8 train.py
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

mesh = init_device_mesh("cuda", (2, 4), mesh_dim_names=("dp", "tp"))
whole, rows = [Replicate(), Replicate()], [Shard(0), Replicate()]
x = distribute_tensor(torch.randn(16, 8), mesh, rows)
y = distribute_tensor(torch.randn(16, 4), mesh, rows)
w1 = distribute_tensor(torch.randn(8, 12), mesh, [Replicate(), Shard(1)]).requires_grad_()
w2 = distribute_tensor(torch.randn(12, 4), mesh, [Replicate(), Shard(0)]).requires_grad_()

h = torch.relu(x @ w1)
out = (h @ w2).redistribute(mesh, rows)
d = out - y
loss = (d * d).mean().redistribute(mesh, whole)
loss.backward()
g1 = w1.grad.redistribute(mesh, w1.placements)
g2 = w2.grad.redistribute(mesh, w2.placements)
"""


def table(mesh: DeviceMesh, dims: Sequence[Sequence[str]]) -> str:
    """A layout of a tensor (16, 32) in five notations, a line each; or that it has no form there.

    dims  per dim the axes that split it, outer first
    """
    forms = written(MeshLayout.from_dims(mesh, dims), SHAPES["16 x 32"])
    titles = {name: title for name, (title, _) in VIEWS.items()}
    width = max(map(len, titles.values()))
    return "\n".join(f"{title:{width}}  {text_of(name, forms[name]) or 'no form'}" for name, title in titles.items())


def sixteen() -> dict[tuple[str, str], tuple[str, list[str]]]:
    """By what one axis of four ranks does to x and to w: what it does to x @ w, and what is sent; run, not computed.

    x: (8, 8), w: (8, 8). What is split or pending is made of each rank's own part.
    """
    line, found = DeviceMesh((4,), ("tp",)), {}
    for left in DOES:
        for right in DOES:
            x, w = (_parts(MeshLayout.coded(line, code)) for code in (left, right))
            with dtensor_messages() as sent:
                y = matmul(x, w)
            found[left, right] = y.layout.code, [f"{each.kind} of {'xw'[int(each.reason[8])]}" for each in sent]
    return found


def _parts(layout: MeshLayout) -> DTensor:
    rng = np.random.default_rng(17)
    size = layout.local_shape((8, 8), 0)
    return DTensor.from_local({r: rng.normal(size=size) for r in layout.mesh.ranks}, layout.mesh, layout.placements)


def network(seed: int = 17) -> tuple[np.ndarray, ...]:
    """x (16, 8), y (16, 4), w1 (8, 12), w2 (12, 4), float32: relu(x @ w1) @ w2 is to come to y."""
    rng = np.random.default_rng(seed)
    return tuple(rng.normal(size=size).astype(np.float32) / 2 for size in ((16, 8), (16, 4), (8, 12), (12, 4)))


def compare(prediction: dict[str, Any], *, show: bool = False) -> Comparison:
    """The answers next to rules, and next to what is counted: slices, strategies of a layout, sixteen products."""
    mesh, shape = MESHES["2 x 4"], SHAPES["16 x 32"]
    turned = MeshLayout.from_dims(mesh, (("tp", "dp"), ()))
    columns = written(MeshLayout.from_dims(mesh, ((), ("tp",))), shape)["mindspore.strategy"].text
    row = {
        10: 'that is ("dp", "tp"): here tp cuts first, into 4 rows each',
        12: "that is the first row of dp 1 in a piece of 8 that nobody cuts",
        None: "tp cuts into four pieces of 4 rows, dp each of them into two of 2: 4 x 1 + 2 x 1",
    }
    strategy = {
        "((1, 4),)": "on 8 ranks that is a matrix (1, 4, 2): ranks 0 and 1 would hold the same columns",
        None: "copies lie along dp, the outer axis; a strategy repeats innermost",
    }
    free = {
        4: "copies can be cut for nothing, and addends can pass",
        12: "two splits of different labels, or addends next to anything but copies, cost",
        None: "four with copies of x, three more with copies of w, and both contracted dims split alike",
    }
    return Answers("17", prediction, show).next_to(
        row=(4 * 1 + 2 * 1, turned.slices(shape, 5)[0][0], row),
        strategy=("none", columns or "none", strategy),
        free=(4 + 3 + 1, sum(not sent for _, sent in sixteen().values()), free),
    )
