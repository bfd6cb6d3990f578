"""Run our side of a row on the recorded inputs and compare with what was recorded. See `torch_table.py`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from parallel_lab.nn.tensor.autograd import gradients
from parallel_lab.nn.tensor.parameter import Parameter
from parallel_lab.nn.tensor.tensor import Tensor
from tests.recorded.torch_table import Recording, Row, weights

# largest difference over largest element (at least 1): float64 and float32 with room for a few roundings
BOUNDS = {"float64": 1e-12, "float32": 2e-6}


def check_close(what: str, got: Any, want: Any, bound: float) -> None:
    """AssertionError unless shapes agree and no element is further away than `bound` times the largest."""
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    assert got.shape == want.shape, f"{what} has shape {got.shape}, PyTorch's {want.shape}"
    largest = max(1.0, float(np.abs(want[np.isfinite(want)]).max(initial=0)))
    np.testing.assert_allclose(got, want, rtol=0, atol=bound * largest, err_msg=what)


def check_row(row: Row, recorded: dict[str, list[np.ndarray]], call: Callable[[Sequence[Tensor]], Any]) -> None:
    """Compare the outputs and the gradients of `call(inputs)` with the recorded ones."""
    bound, arrays = row.bound or BOUNDS[row.dtype], row.recorded_inputs(recorded["in"])
    wanted = row.wanted(arrays)
    tensors = [Parameter(a) if i in wanted else Tensor(a) for i, a in enumerate(arrays)]
    made = call(tensors)
    outs = tuple(made) if isinstance(made, (tuple, list)) else (made,)
    assert len(outs) == len(recorded["out"]), f"{len(outs)} outputs, PyTorch gave {len(recorded['out'])}"
    for i, (out, want) in enumerate(zip(outs, recorded["out"], strict=True)):
        check_close(f"output {i}", out, want, bound)
    parameters = [tensors[i] for i in wanted]
    found = zeros = [np.zeros(p.shape) for p in parameters]
    for out in outs:
        if isinstance(out, Tensor) and out.requires_grad:
            found = [
                f + g for f, g in zip(found, gradients(out, parameters, weights(out.shape, out.dtype)), strict=True)
            ]
    # PyTorch gave none where nothing that it returned depends on an input by more than steps
    for i, (got, want) in enumerate(zip(found, recorded["grad"] or zeros, strict=True)):
        check_close(f"gradient {i}", got, want, bound)


def check_table(rows: Sequence[Row], recording: Recording) -> None:
    """The file holds exactly the table's rows: if this fails, the table was changed without recording again."""
    assert {row.key for row in rows} == recording.keys()
    assert len({row.key for row in rows}) == len(rows)
    for row in rows:
        assert [a.shape for a in recording[row.key]["in"]] == [spec.shape for spec in row.inputs], row.key
