"""Layers that pad, rearrange or compare, against numpy."""

import numpy as np
import pytest
from numpy.lib.stride_tricks import sliding_window_view

from parallel_lab import ShapeError, nn
from parallel_lab.nn.tensor.tensor import Tensor
from tests.nn.one_device import check_equals_one_device
from tests.refusals import refused

RNG = np.random.default_rng(8)
LINES, PICTURES, VOLUMES = RNG.normal(size=(8, 2, 5)), RNG.normal(size=(8, 4, 3, 5)), RNG.normal(size=(2, 2, 3, 4, 3))
KEPT = ((0, 0), (0, 0))
CASES = {
    "constant 1": (
        lambda: nn.ConstantPad1d((1, 2), 0.5),
        LINES,
        lambda x: np.pad(x, (*KEPT, (1, 2)), constant_values=0.5),
    ),
    "constant 2": (
        lambda: nn.ConstantPad2d((1, 2, 0, 1), -1.0),
        PICTURES,
        lambda x: np.pad(x, (*KEPT, (0, 1), (1, 2)), constant_values=-1),
    ),
    "constant 3": (
        lambda: nn.ConstantPad3d(1, 2),
        VOLUMES,
        lambda x: np.pad(x, (*KEPT, *[(1, 1)] * 3), constant_values=2),
    ),
    "zeros": (lambda: nn.ZeroPad2d(1), PICTURES, lambda x: np.pad(x, (*KEPT, (1, 1), (1, 1)))),
    "reflection 1": (lambda: nn.ReflectionPad1d(2), LINES, lambda x: np.pad(x, (*KEPT, (2, 2)), "reflect")),
    "reflection 2": (
        lambda: nn.ReflectionPad2d((1, 2, 2, 0)),
        PICTURES,
        lambda x: np.pad(x, (*KEPT, (2, 0), (1, 2)), "reflect"),
    ),
    "reflection 3": (lambda: nn.ReflectionPad3d(1), VOLUMES, lambda x: np.pad(x, (*KEPT, *[(1, 1)] * 3), "reflect")),
    "replication 1": (lambda: nn.ReplicationPad1d(3), LINES, lambda x: np.pad(x, (*KEPT, (3, 3)), "edge")),
    "replication 2": (lambda: nn.ReplicationPad2d(1), PICTURES, lambda x: np.pad(x, (*KEPT, (1, 1), (1, 1)), "edge")),
    "replication 3": (lambda: nn.ReplicationPad3d(1), VOLUMES, lambda x: np.pad(x, (*KEPT, *[(1, 1)] * 3), "edge")),
    "any dims": (
        lambda: nn.Pad(((1, 0), (0, 0), (2, 1)), "SYMMETRIC"),
        LINES,
        lambda x: np.pad(x, ((1, 0), (0, 0), (2, 1)), "symmetric"),
    ),
    "shuffle": (
        lambda: nn.PixelShuffle(2),
        PICTURES,
        lambda x: x.reshape(8, 1, 2, 2, 3, 5).transpose(0, 1, 4, 2, 5, 3).reshape(8, 1, 6, 10),
    ),
    "patches": (
        lambda: nn.Unfold((1, 2, 3, 1), (1, 1, 2, 1), [1, 1, 1, 1]),
        PICTURES,
        lambda x: sliding_window_view(x, (2, 3), (2, 3))[:, :, :, ::2].transpose(0, 4, 5, 1, 2, 3).reshape(8, 24, 2, 2),
    ),
    "patches of all places": (
        lambda: nn.Unfold((1, 3, 3, 1), (1, 2, 1, 1), (1, 1, 1, 1), "same"),
        PICTURES,
        lambda x: (
            sliding_window_view(np.pad(x, (*KEPT, (1, 1), (1, 1))), (3, 3), (2, 3))[:, :, ::2]
            .transpose(0, 4, 5, 1, 2, 3)
            .reshape(8, 36, 2, 5)
        ),
    ),
    "softmax": (lambda: nn.Softmax2d(), PICTURES, lambda x: np.exp(x) / np.exp(x).sum(1, keepdims=True)),
}


@pytest.mark.parametrize("name", CASES)
def test_layers_follow_numpy(name):
    make, x, expected = CASES[name]
    np.testing.assert_allclose(make()(Tensor(x)).asnumpy(), expected(x), rtol=1e-12)


def test_cosines_along_a_dim():
    other = RNG.normal(size=PICTURES.shape)
    expected = (PICTURES * other).sum(2) / np.sqrt((PICTURES**2).sum(2) * (other**2).sum(2))
    np.testing.assert_allclose(nn.CosineSimilarity(2)(Tensor(PICTURES), Tensor(other)).asnumpy(), expected, rtol=1e-12)


def padded():
    return nn.SequentialCell(nn.ReflectionPad2d(1), nn.Conv2d(4, 2, 3, pad_mode="valid", dtype=np.float64))


def test_training_on_8_ranks_is_that_of_one():
    check_equals_one_device(padded, nn.MSELoss(), (PICTURES, RNG.normal(size=(8, 2, 3, 5))), lambda net: None)


test_what_does_not_fit_is_refused = refused(
    (lambda: nn.ZeroPad2d((1, 2)), ValueError, r"ZeroPad2d.*padding=\(1, 2\).*4 ints"),
    (lambda: nn.ReflectionPad1d(-1), ValueError, "ReflectionPad1d.*padding"),
    (lambda: nn.ConstantPad1d("a", 0), TypeError, "ConstantPad1d.*padding"),
    (lambda: nn.ReflectionPad1d(1)(Tensor(PICTURES)), ShapeError, "ReflectionPad1d.*2 or 3 dims"),
    (lambda: nn.Unfold((1, 2, 2), (1, 1, 1, 1), (1, 1, 1, 1)), ValueError, r"Unfold.*\(1, height, width, 1\)"),
    (lambda: nn.Unfold(2, (1, 1, 1, 1), (1, 1, 1, 1)), TypeError, "Unfold.*ksizes"),
    (lambda: nn.Softmax2d()(Tensor(LINES[0])), ShapeError, r"\(c, h, w\)"),
)
