"""Clipping: the functions and the optimizer's setting against numpy's norms."""

import numpy as np
import pytest

from parallel_lab import Parameter, Tensor, nn, value_and_grad
from tests.crossed import each_of
from tests.refusals import refused

RNG = np.random.default_rng(12)
A, B = 2 * RNG.normal(size=(3, 4)), RNG.normal(size=5)
WHOLE = np.sqrt((A**2).sum() + (B**2).sum())


def shortened(array, limit):
    return array * min(1.0, limit / np.linalg.norm(array))


# ---- functions ----


@pytest.mark.parametrize("wrap", [np.asarray, Tensor], ids=["array", "tensor"])
def test_clip_by_value(wrap):
    np.testing.assert_array_equal(np.asarray(nn.clip_by_value(wrap(A), -0.5, 0.25)), np.clip(A, -0.5, 0.25))
    np.testing.assert_array_equal(np.asarray(nn.clip_by_value(wrap(A), clip_value_max=0.25)), np.minimum(A, 0.25))
    np.testing.assert_array_equal(np.asarray(nn.clip_by_value(wrap(A), Tensor(-0.5, np.float64))), np.maximum(A, -0.5))
    for found, given in zip(nn.clip_by_value([wrap(A), wrap(B)], -0.5, 0.25), (A, B), strict=True):
        np.testing.assert_array_equal(np.asarray(found), np.clip(given, -0.5, 0.25))


@pytest.mark.parametrize("limit", [0.5, 100.0])
def test_clip_by_norm(limit):
    np.testing.assert_allclose(nn.clip_by_norm(Tensor(A), limit).asnumpy(), shortened(A, limit), rtol=1e-14)
    for found, given in zip(nn.clip_by_norm((Tensor(A), Tensor(B)), limit), (A, B), strict=True):
        np.testing.assert_allclose(found.asnumpy(), given * min(1, limit / WHOLE), rtol=1e-14)


@pytest.mark.parametrize("p", [1, 1.5, 3, np.inf])
def test_clip_by_other_norms(p):
    found = nn.clip_by_norm([A, B], 0.25, norm_type=p)
    size = np.linalg.norm(np.concatenate([A.reshape(-1), B]), p)
    np.testing.assert_allclose(found[0], A * 0.25 / size, rtol=1e-13)
    np.testing.assert_allclose(found[1], B * 0.25 / size, rtol=1e-13)


def test_a_norm_that_is_not_finite_can_be_an_error():
    with pytest.raises(ValueError, match="the norm is not finite"):
        nn.clip_by_norm([A, np.array([np.nan])], 1.0, error_if_nonfinite=True)
    assert np.isnan(nn.clip_by_norm([A, np.array([np.nan])], 1.0)[0]).all()


@pytest.mark.parametrize("limit", [0.5, 100.0])
def test_clip_by_global_norm(limit):
    factor = min(1.0, limit / WHOLE)
    found = nn.clip_by_global_norm([Tensor(A), Tensor(B)], limit)
    np.testing.assert_allclose(found[0].asnumpy(), factor * A, rtol=1e-14)
    np.testing.assert_allclose(found[1].asnumpy(), factor * B, rtol=1e-14)


@pytest.mark.parametrize("use_norm", [10.0, 10, Tensor(10.0, np.float64)])
def test_clip_by_a_norm_that_is_known(use_norm):
    found = nn.clip_by_global_norm((A, B), 2.0, use_norm)
    np.testing.assert_allclose(found[1], B * 0.2, rtol=1e-14)


def test_the_example_of_mindspores_documentation():
    x = [Tensor([[2.0, 3.0], [1.0, 2.0]], np.float32), Tensor([[1.0, 4.0], [3.0, 1.0]], np.float32)]
    found = nn.clip_by_global_norm(x, 1.0)
    expected = [[2.98142403e-01, 4.47213590e-01], [1.49071202e-01, 2.98142403e-01]]
    np.testing.assert_allclose(found[0].asnumpy(), expected, rtol=1e-6)
    expected = [[1.49071202e-01, 5.96284807e-01], [4.47213590e-01, 1.49071202e-01]]
    np.testing.assert_allclose(found[1].asnumpy(), expected, rtol=1e-6)


def test_the_dtype_stays_and_float16_does_not_overflow_in_the_square():
    big = np.full(1000, 300.0, np.float16)  # the sum of squares is 9e7, float16 ends at 65504
    found = nn.clip_by_norm(Tensor(big), 1.0).asnumpy()
    assert found.dtype == np.float16
    np.testing.assert_allclose(found, 1 / np.sqrt(1000), rtol=1e-3)


def test_clipping_inside_a_loss_has_its_gradient():
    w = Parameter(Tensor(A), "w")
    _, (g,) = value_and_grad(lambda: (nn.clip_by_norm(w, 0.5) * A).sum(), None, [w])()
    n = np.linalg.norm(A)
    # d/dw of 0.5 w/|w| . A at w = A: zero
    np.testing.assert_allclose(g.asnumpy(), 0.5 * (A / n - A * (A * A).sum() / n**3), atol=1e-13)


test_what_cannot_be_is_refused = refused(
    (lambda: nn.clip_by_value(A), ValueError, "no bound is given"),
    (lambda: nn.clip_by_value(A, 1.0, -1.0), ValueError, "bounds 1.0 and -1.0.*The lower bound first"),
    (lambda: nn.clip_by_norm(A, 1.0, 0.5), ValueError, "norm_type=0.5"),
    (lambda: nn.clip_by_norm([], 1.0), TypeError, "At least one"),
    (lambda: nn.clip_by_norm(3, 1.0), TypeError, "x is 3"),
    (lambda: nn.clip_by_norm([A, None], 1.0), TypeError, "At least one Tensor"),
    (lambda: nn.clip_by_global_norm([1, 2]), TypeError, "at least one Tensor"),
    (lambda: nn.GradientClip(A, 1.0), ValueError, "kind="),
    (lambda: nn.clip_by_global_norm(A), TypeError, "A list or tuple"),
    (lambda: nn.clip_by_global_norm([]), TypeError, "at least one"),
    (lambda: nn.clip_by_global_norm([A], 1.0, -2.0), ValueError, "use_norm=-2.0"),
    (lambda: nn.GradientClip("norms", 1.0), ValueError, "kind='norms'.*'global_norm'"),
    (lambda: nn.GradientClip("norm", 0), ValueError, "limit=0"),
    (lambda: nn.GradientClip("norm", (0, 1)), TypeError, r"limit=\(0, 1\)"),
    (lambda: nn.GradientClip("value", (1, 0)), ValueError, "The lower bound first"),
    (lambda: nn.GradientClip("value", (1, 2, 3)), ValueError, "a pair"),
    (lambda: nn.GradientClip("value", (None, 2)), TypeError, "Two numbers"),
)


# ---- the optimizer's setting ----


def moved(clip, grads=(A, B), **settings):
    """How far SGD with rate 1 moves two parameters at 0: what is left of their gradients."""
    a, b = Parameter(Tensor(np.zeros_like(A)), "a"), Parameter(Tensor(np.zeros_like(B)), "b")
    nn.SGD([a, b], 1.0, clip=clip, **settings)(list(grads))
    return -a.asnumpy(), -b.asnumpy()


@each_of(
    ("clip", "expected"),
    (nn.GradientClip("value", 0.5), (np.clip(A, -0.5, 0.5), np.clip(B, -0.5, 0.5))),
    (nn.GradientClip("value", (-0.1, 2)), (np.clip(A, -0.1, 2), np.clip(B, -0.1, 2))),
    (nn.GradientClip("norm", 1.5), (shortened(A, 1.5), shortened(B, 1.5))),
    (nn.GradientClip("norm", 100), (A, B)),
    (nn.GradientClip("global_norm", 1.5), (A * 1.5 / WHOLE, B * 1.5 / WHOLE)),
    (nn.GradientClip("global_norm", 1.01 * WHOLE), (A, B)),
    ids=str,
)
def test_an_optimizer_clips(clip, expected):
    for found, want in zip(moved(clip), expected, strict=True):
        np.testing.assert_allclose(found, want, rtol=1e-14)


def test_the_loss_scale_is_divided_out_before_clipping():
    for settings, factor in (({"loss_scale": 8.0}, 8.0), ({"loss_scaler": nn.StaticLossScaler(1024)}, 1024.0)):
        found = moved(nn.GradientClip("global_norm", 1.5), (factor * A, factor * B), **settings)
        np.testing.assert_allclose(found[1], B * 1.5 / WHOLE, rtol=1e-14)


def test_weight_decay_comes_after_clipping():
    w = Parameter(Tensor(B), "w")
    nn.SGD([w], 1.0, weight_decay=0.5, clip=nn.GradientClip("norm", 0.25))([3 * np.ones(5)])
    direction = np.ones(5) / np.sqrt(5)
    np.testing.assert_allclose(w.asnumpy(), B - 0.25 * direction - 0.5 * B, rtol=1e-13)


def test_parameters_that_are_not_trained_do_not_count():
    a, b = Parameter(Tensor(np.zeros_like(A)), "a"), Parameter(Tensor(np.zeros_like(B)), "b")
    optimizer = nn.SGD([a, b], 1.0, clip=nn.GradientClip("global_norm", 0.5))
    a.requires_grad = False
    optimizer([A, B])
    np.testing.assert_array_equal(a.asnumpy(), 0)
    np.testing.assert_allclose(-b.asnumpy(), shortened(B, 0.5), rtol=1e-14)


@each_of("axis", None, 0, (1, 2))
def test_the_layer_clips_by_the_norm_over_dims(axis):
    x = np.random.default_rng(3).normal(size=(2, 3, 4))
    norm = np.sqrt(np.sum(x**2, axis=axis, keepdims=True))
    for limit in (0.5, Tensor(0.5, "float32"), Tensor([0.5], "float32")):
        np.testing.assert_allclose(nn.ClipByNorm(axis)(Tensor(x), limit).asnumpy(), x * 0.5 / np.maximum(norm, 0.5))
    np.testing.assert_allclose(nn.ClipByNorm(axis)(Tensor(x), 1e3).asnumpy(), x)
