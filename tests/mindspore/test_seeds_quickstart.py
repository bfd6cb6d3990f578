"""MindSpore's quickstart on 8 processes: printed losses, graphs and checkpoints, against one device."""

from __future__ import annotations

import numpy as np
import pytest

from parallel_lab.nn.initializer import initializer
from parallel_lab.nn.tensor.parameter import Parameter
from parallel_lab.train.checkpoint import load_checkpoint
from tests.mindspore.runs import MONITORED, NEEDS_BASH, NEEDS_MPI, WAYS, by_shell, copied, losses

RANKS, BATCH, STEPS, IN, HIDDEN, OUT, EPOCHS = 8, 2, 4, 32, 16, 16, 5
RATE, MOMENTUM = 0.2, 0.1
# float32 products of at most 32 terms, 20 steps of momentum, losses below 1
BOUND = 2e-6


def one_device():
    """The losses of 20 steps and the weights after them, written out in numpy, on the rows of all ranks."""
    np.random.seed(1)  # noqa: NPY002 - the tutorial's data
    x, y = (np.random.rand(BATCH, n).astype(np.float32) for n in (IN, OUT))  # noqa: NPY002
    x, y = (np.concatenate([rows] * RANKS).astype(np.float64) for rows in (x, y))
    weights = [
        Parameter(initializer("normal", shape), name).asnumpy().astype(np.float64)
        for name, shape in (("w", [IN, HIDDEN]), ("w2", [HIDDEN, OUT]))
    ]
    speeds = [np.zeros_like(w) for w in weights]
    found = []
    for _ in range(EPOCHS * STEPS):
        w, w2 = weights
        hidden = x @ w
        active = np.maximum(hidden, 0)
        far = active @ w2 - y
        found.append(np.mean(far**2))
        g = 2 * far / far.size
        grads = [x.T @ ((g @ w2.T) * (hidden > 0)), active.T @ g]
        speeds = [MOMENTUM * v + grad for v, grad in zip(speeds, grads, strict=True)]
        weights = [w - RATE * v for w, v in zip(weights, speeds, strict=True)]
    return found, weights


def check_losses(per_rank):
    """20 lines per rank in the seed's form, the same on all ranks, falling, and those of one device."""
    expected, _ = one_device()
    for lines in per_rank:
        assert lines == per_rank[0]
        printed = losses(lines, MONITORED)
        found = [one[:2] for one in printed]
        assert found == [(epoch, step) for epoch in range(1, EPOCHS + 1) for step in range(1, STEPS + 1)]
        np.testing.assert_allclose([loss for _, _, loss in printed], expected, rtol=0, atol=BOUND)
    assert expected[-1] < 0.8 * expected[0]


def check_files(folder):
    """What the page says lies below device/ and saved_graph/."""
    _, (w, w2) = one_device()
    for rank in range(RANKS):
        saved = load_checkpoint(str(folder / f"device/{rank}/CKP-{EPOCHS}_{STEPS}.ckpt"))
        np.testing.assert_allclose(saved["w"].asnumpy(), w, rtol=0, atol=BOUND)
        np.testing.assert_allclose(saved["w2"].asnumpy(), w2, rtol=0, atol=BOUND)
        kept = sorted(path.name for path in (folder / f"device/{rank}").glob("*.ckpt"))
        assert kept == ["CKP-4_4.ckpt", *(f"CKP-5_{step}.ckpt" for step in range(1, 5))]  # keep_checkpoint_max is 5
        graphs = folder / f"saved_graph/rank_{rank}"
        (begin,), (execute,) = graphs.glob("step_parallel_begin_*.ir"), graphs.glob("18_execute_*.ir")
        text = begin.read_text()
        # the strategies that the page shows as found for ReLU and the second product
        for operator, strategy in (
            ("matmul", "((2, 4), (4, 1))"),
            ("relu", "((2, 4))"),
            ("matmul2", "((2, 4), (4, 1))"),
        ):
            line = next(line for line in text.splitlines() if f"instance name: {operator}}}" in line)
            assert f"{{in_strategy: {strategy}}}" in line, line
        assert "(<Tensor[Float32], (16, 32)>, <Tensor[Float32], (32, 16)>) -> (<Tensor[Float32], (16, 16)>)" in text
        text = execute.read_text()
        first = 4 * (rank // 4)
        assert "(<Tensor[Float32], (8, 8)>, <Tensor[Float32], (8, 16)>) -> (<Tensor[Float32], (8, 16)>)" in text
        assert f"rank_list: ({first}, {first + 1}, {first + 2}, {first + 3})" in text and "StridedSlice" in text
        assert "quickstart.py(" in text


@pytest.mark.exhaustive
@pytest.mark.timeout(300)
@pytest.mark.parametrize("way", WAYS)
def test_losses_graphs_and_checkpoints_of_eight_ranks(tmp_path, way):
    check_losses(way(copied(tmp_path / "device", "quickstart.py"), RANKS, "quickstart.py"))
    check_files(tmp_path)


@NEEDS_BASH
@NEEDS_MPI
@pytest.mark.exhaustive
@pytest.mark.timeout(300)
def test_its_shell_script_trains_in_the_background(tmp_path):
    by_shell(tmp_path, "run_with_mpi.sh")
    lines = (tmp_path / "device/train.log").read_text().splitlines()
    assert len(lines) == RANKS * EPOCHS * STEPS
    # every line is there 8 times, once per rank; a rank's own come in their order, and ranks wait for each other in
    # every step
    check_losses([list(dict.fromkeys(lines))])
    assert all(lines.count(line) == RANKS for line in set(lines))
    check_files(tmp_path)
