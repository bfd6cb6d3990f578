"""The numbers in a slice: those of the undivided computation, summed or cut, and shrunk by the rule that is stated."""

from __future__ import annotations

import numpy as np
import pytest

from parallel_lab.lab.pictures.numbers import CELLS, heat_map
from parallel_lab.lab.strategy.model import StrategyLab

FLAT = {"down": 0, "across": 1}


def shown(lab, tensor, phase="forward"):
    """Per rank the numbers that are shown, as arrays."""
    lab.show_numbers(True)
    lab.select_tensor(tensor)
    lab.select_phase(phase)
    found = []
    for rank in range(8):
        lab.select_rank(rank)
        found.append(lab.snapshot()["numbers"])
    return found


@pytest.fixture(scope="module")
def whole():
    """The quickstart's first step on one device, in float64: x, w, the product, and its gradient."""
    net, _, batches = StrategyLab()._job()
    x, label = (np.asarray(each, np.float64) for each in batches[0])
    w, w2 = (p.asnumpy().astype(np.float64) for p in net.trainable_params())
    product = x @ w
    relu = np.maximum(product, 0)
    slope = 2 * (relu @ w2 - label) / label.size
    return {"x": x, "w": w, "matmul": product, "matmul gradient": (slope @ w2.T) * (product > 0)}


def test_partial_sums_of_the_ranks_of_a_group_add_up_to_the_undivided_product(whole):
    found = shown(StrategyLab(), "matmul.partial")
    for half in (0, 1):  # ranks 0-3 hold the upper rows, 4-7 the lower ones
        total = np.sum([found[rank]["values"] for rank in range(4 * half, 4 * half + 4)], axis=0)
        assert found[4 * half]["rows"] == [[n, n + 1] for n in range(8 * half, 8 * half + 8)]
        np.testing.assert_allclose(total, whole["matmul"][8 * half : 8 * half + 8], rtol=1e-4, atol=1e-6)


def test_a_slice_shows_its_part_of_the_whole_and_its_gradient(whole):
    lab = StrategyLab()
    for rank, map_ in enumerate(shown(lab, "matmul.for.relu")):
        rows, columns = (slice(map_[side][0][0], map_[side][-1][1]) for side in ("rows", "columns"))
        assert (rows.start, columns.start) == (8 * (rank // 4), 4 * (rank % 4))
        np.testing.assert_allclose(map_["values"], whole["matmul"][rows, columns], rtol=1e-4, atol=1e-6)
    back = np.sum([map_["values"] for map_ in shown(lab, "matmul", "backward")[:4]], axis=0)
    np.testing.assert_allclose(back, whole["matmul gradient"][:8], rtol=1e-4, atol=1e-7)


def test_the_label_of_data_has_no_gradient_and_nothing_is_shown_unasked():
    lab = StrategyLab()
    assert lab.snapshot()["numbers"] is None and "Numbers of rank" not in lab.to_text()
    assert shown(lab, "label", "backward") == [None] * 8
    lab.select_phase("forward")
    assert (
        "Numbers of rank 7 in label, simulated: first step, before the update; each cell is one value" in lab.to_text()
    )


@pytest.mark.parametrize("shape", [(40, 33), (16, 16), (1, 17), (3, 100)])
def test_a_larger_slice_is_shrunk_to_means_of_blocks(shape):
    array = np.random.default_rng(3).normal(size=shape)
    found = heat_map(array, (5, 7), FLAT)
    assert len(found["rows"]) == min(CELLS, shape[0]) and len(found["columns"]) == min(CELLS, shape[1])
    for (r0, r1), values in zip(found["rows"], found["values"], strict=True):
        for (c0, c1), value in zip(found["columns"], values, strict=True):
            np.testing.assert_allclose(value, array[r0 - 5 : r1 - 5, c0 - 7 : c1 - 7].mean(), rtol=1e-5)
    assert [found["rows"][0][0], found["rows"][-1][1]] == [5, 5 + shape[0]]
    assert [found["columns"][0][0], found["columns"][-1][1]] == [7, 7 + shape[1]]
    cell = tuple(-(-n // min(CELLS, n)) for n in shape)
    one = "each cell is one value" if cell == (1, 1) else f"each cell is the mean of {cell[0]} x {cell[1]} values"
    assert found["rule"] == one


def test_two_of_four_dims_are_drawn_and_missing_numbers_are_named():
    array = np.arange(2 * 3 * 4 * 5, dtype=float).reshape(2, 3, 4, 5)
    array[1, 0, 3, 0] = np.inf
    found = heat_map(array, (0, 0, 0, 0), {"down": 2, "across": 0})
    expected = array[:, 0, :, 0].T.tolist()
    expected[3][1] = None
    assert found["values"] == expected
    assert found["rule"] == "each cell is one value; of dims 1, 3 the first index"
