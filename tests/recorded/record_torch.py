"""Record what PyTorch gives for the rows of `torch_*.py`, `layer_rows.py` and `loss_rows.py`: run by hand, with
`pip install -e ".[oracle]"`.

    python tests/recorded/record_torch.py          # all rows
    python tests/recorded/record_torch.py --new    # those that are not in the files yet; the others stay as they are

Writes torch_operators.npz and torch_layers.npz next to this file.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1]))  # run as a script: the repository is where `tests` is found

from tests.recorded import layer_rows, loss_rows, torch_elements, torch_layered, torch_shapes, torch_table  # noqa: E402
from tests.recorded.public_operators import NOT_IN_PYTORCH, public_operators  # noqa: E402
from tests.recorded.torch_table import Row, weights  # noqa: E402

OPERATORS = torch_elements.ROWS + torch_shapes.ROWS + torch_layered.ROWS


def record(torch: Any, row: Row) -> dict[str, list[np.ndarray]]:
    """Inputs, outputs and gradients of one row."""
    arrays = row.draw()
    wanted = row.wanted(arrays)
    tensors = [torch.from_numpy(np.array(a)).requires_grad_(i in wanted) for i, a in enumerate(arrays)]
    made = row.theirs(torch, *tensors)
    outs = list(made) if isinstance(made, (tuple, list)) else [made]
    total = sum(
        ((o * torch.from_numpy(weights(o.shape)).to(o.dtype)).sum() for o in outs if o.requires_grad),
        start=torch.zeros(()),
    )
    grads = []
    if wanted and total.requires_grad:
        found = torch.autograd.grad(total, [tensors[i] for i in wanted], allow_unused=True)
        grads = [np.zeros(arrays[i].shape) if g is None else g.numpy() for i, g in zip(wanted, found, strict=True)]
    return {"in": arrays, "out": [o.detach().numpy() for o in outs], "grad": grads}


def write(torch: Any, name: str, rows: Sequence[Row], *, only_new: bool, **recipe: str) -> None:
    """Record rows into one file. only_new: keep what it holds of rows that were recorded before."""
    before = torch_table.Recording(name) if only_new else None
    kept = {} if before is None else {key: before[key] for key in before.keys()}  # noqa: SIM118 - it is not a dict
    results = {row.key: kept.get(row.key) or record(torch, row) for row in rows}
    assert len(results) == len(rows), "two rows have one name: give them labels"
    path = HERE / name
    made = {"torch": torch.__version__, "numpy": np.__version__}
    if before is not None:
        made = {what: ", ".join(dict.fromkeys([*before.recipe[what].split(", "), made[what]])) for what in made}
    torch_table.save(path, results, {**made, **recipe})
    print(f"{name}: {len(rows)} rows, {path.stat().st_size} bytes")


if __name__ == "__main__":
    import torch

    torch.set_num_threads(1)
    public = public_operators()
    left_out = public - {row.name for row in OPERATORS} - set(NOT_IN_PYTORCH)
    only_new = "--new" in sys.argv[1:]
    if only_new:
        public -= left_out  # complete for these
    elif left_out:
        raise SystemExit(f"no row, and no reason for it in public_operators.py: {', '.join(sorted(left_out))}")
    write(torch, "torch_operators.npz", OPERATORS, only_new=only_new, operators=" ".join(sorted(public)))
    write(torch, "torch_layers.npz", layer_rows.ROWS + loss_rows.ROWS, only_new=only_new)
