"""Initial values: distributions, defaults, fans, and what is refused."""

import math

import numpy as np
import pytest

from parallel_lab.base.errors import ArgumentTypeError, ShapeError
from parallel_lab.nn import initializer as initializers, initializer as module
from parallel_lab.nn.tensor.parameter import Parameter
from parallel_lab.nn.tensor.tensor import Initial, Tensor
from tests.crossed import each_of
from tests.refusals import refused

SHAPE = (300, 200)  # 60000 values: the deviation of an estimated standard deviation is 0.3 % or less


def values(init, shape=SHAPE):
    return Parameter(initializers.initializer(init, shape), "w").asnumpy()


# Standard deviation of a normal split at +-2, by integration: 1 - 2 * 2 * pdf(2) / (cdf(2) - cdf(-2))
CUT_AT_TWO = math.sqrt(1 - 4 * math.exp(-2) / math.sqrt(2 * math.pi) / math.erf(math.sqrt(2)))


@each_of(
    ("init", "deviation", "bound"),
    ("normal", 0.01, math.inf),
    (initializers.Normal(0.3, 0.0), 0.3, math.inf),
    ("uniform", 0.07 / math.sqrt(3), 0.07),
    (initializers.Uniform(0.5), 0.5 / math.sqrt(3), 0.5),
    ("xavier_uniform", math.sqrt(2 / 500), math.sqrt(6 / 500)),
    (initializers.XavierUniform(2.0), 2 * math.sqrt(2 / 500), 2 * math.sqrt(6 / 500)),
    ("he_normal", math.sqrt(2 / 200), math.inf),
    (initializers.HeNormal(mode="fan_out"), math.sqrt(2 / 300), math.inf),
    (initializers.HeNormal(0.5), math.sqrt(2 / 1.25 / 200), math.inf),
    (initializers.HeNormal(nonlinearity="tanh"), 5 / 3 / math.sqrt(200), math.inf),
    ("he_uniform", math.sqrt(2 / 200), math.sqrt(6 / 200)),
    (initializers.HeUniform(math.sqrt(5)), 1 / math.sqrt(3 * 200), 1 / math.sqrt(200)),
    (initializers.HeUniform(nonlinearity="linear"), 1 / math.sqrt(200), math.sqrt(3 / 200)),
    ("truncatednormal", 0.01 * CUT_AT_TWO, 0.02),
    (initializers.TruncatedNormal(0.5), 0.5 * CUT_AT_TWO, 1.0),
    ids=str,
)
def test_draws_have_the_stated_deviation_and_bound(init, deviation, bound):
    drawn = values(init)
    assert drawn.dtype == np.float32
    assert drawn.std() == pytest.approx(deviation, rel=0.02)
    assert abs(drawn.mean()) < 5 * deviation / math.sqrt(drawn.size)
    assert np.abs(drawn).max() <= bound * (1 + 1e-6)
    if math.isfinite(bound):
        assert np.abs(drawn).max() > 0.98 * bound


def test_a_mean_moves_the_draws():
    assert values(initializers.Normal(0.1, 3.0)).mean() == pytest.approx(3.0, abs=0.005)
    cut = values(initializers.TruncatedNormal(0.1, 3.0, -1.0, 0.5))
    assert cut.min() == pytest.approx(2.9, abs=1e-3)
    assert cut.max() == pytest.approx(3.05, abs=1e-3)


@pytest.mark.parametrize(
    ("init", "expected"),
    [
        ("zeros", 0),
        ("ones", 1),
        (initializers.Zero(), 0),
        (initializers.One(), 1),
        (2.5, 2.5),
        (3, 3),
        (initializers.Constant(-1), -1),
        ("ONES", 1),
    ],
    ids=str,
)
def test_constants(init, expected):
    np.testing.assert_array_equal(values(init, (2, 3)), np.full((2, 3), expected, np.float32))


@pytest.mark.parametrize("kind", [Tensor, np.array])
def test_values_can_be_given(kind):
    given = kind([[1.0, 2.0]])
    made = initializers.initializer(given)
    assert isinstance(made, Initial)
    assert made.shape == (1, 2)
    np.testing.assert_array_equal(Parameter(made, "w").asnumpy(), [[1.0, 2.0]])
    with pytest.raises(ShapeError, match=r"values of shape \(1, 2\)\. Shape \(2, 1\)"):
        initializers.initializer(given, [2, 1])


@pytest.mark.parametrize(("shape", "expected"), [((3, 5), (5, 3)), ((3, 5, 2, 4), (40, 24)), ([3, 5], (5, 3))])
def test_fans_count_dims_after_the_second_on_both_sides(shape, expected):
    assert initializers.fans(tuple(shape)) == expected


@pytest.mark.parametrize("name", ["xavier_uniform", "he_normal", "he_uniform"])
def test_rules_with_fans_need_two_dims(name):
    with pytest.raises(ShapeError, match=r"shape \(4,\) has 1 dims. At least 2 dims"):
        initializers.initializer(name, [4])


@each_of(("shape", "expected"), (4, (4,)), ([2, 3], (2, 3)), ((2, 3), (2, 3)), ((), ()), ([np.int64(2)], (2,)))
def test_shapes_may_be_ints_lists_and_tuples(shape, expected):
    assert initializers.initializer("normal", shape).shape == expected


test_unfit_rules_and_shapes_are_refused = refused(
    (lambda: initializers.initializer("norml", [2]), ValueError, "'norml' is not known. Names: normal, zeros"),
    (lambda: initializers.initializer(None, [2]), TypeError, "init=None"),
    (lambda: initializers.initializer(True, [2]), TypeError, "init=True"),
    (lambda: initializers.initializer(initializers.Normal, [2]), TypeError, r"Write Normal\(\)"),
    (lambda: initializers.initializer("normal"), ValueError, "no shape is given"),
    (lambda: initializers.initializer("normal", [2, 0]), ValueError, "at least 1"),
    (lambda: initializers.initializer("normal", [-1]), ValueError, "at least 1"),
    (lambda: initializers.initializer("normal", [2.0]), TypeError, "An int, or a list or tuple of ints"),
    (lambda: initializers.initializer("normal", [True]), TypeError, "An int, or a list or tuple of ints"),
    (lambda: initializers.initializer("normal", "23"), TypeError, "An int, or a list or tuple of ints"),
    (lambda: initializers.TruncatedNormal(a=2.0, b=-2.0), ValueError, "with a < b"),
    (lambda: initializers.TruncatedNormal(a=6.0, b=8.0), ValueError, "At least 1 %"),
)


def test_an_initializer_of_ones_own_is_taken():
    class Counting(module.Initializer):
        """0, 1, 2, ..."""

        def draw(self, generator, shape):
            return np.arange(math.prod(shape)).reshape(shape)

    np.testing.assert_array_equal(values(Counting(), (2, 3)), [[0, 1, 2], [3, 4, 5]])


@pytest.mark.parametrize("dtype", [None, 5, [], "number", object])
def test_anything_but_a_dtype_of_numbers_is_refused(dtype):
    """None gave float64, [] an array of nothing, the others numpy's TypeError."""
    with pytest.raises(ArgumentTypeError, match=r"dtype=.*A dtype of numbers"):
        initializers.initializer("zeros", (3, 2), dtype)


def test_rarer_rules_hold_what_their_names_say():
    """Orthogonal rows, an identity through a convolution, shares of zeros, and deviations of 40,000 values to 3 %."""
    from parallel_lab.mindspore.common import initializer as rules

    def values(rule, *shape):
        return module.initializer(rule, shape, np.float64).asnumpy()

    wide = values(rules.Orthogonal(2.0), 3, 2, 4).reshape(3, 8)
    np.testing.assert_allclose(wide @ wide.T, 4 * np.eye(3), atol=1e-12)
    assert np.array_equal(values("identity", 2, 3), np.eye(2, 3))
    dirac = values(rules.Dirac(2), 4, 2, 3)
    assert np.argwhere(dirac).tolist() == [[0, 0, 1], [1, 1, 1], [2, 0, 1], [3, 1, 1]]
    assert (values(rules.Sparse(0.25), 10, 4) == 0).sum(0).tolist() == [3] * 4
    for rule, sigma in (
        ("xavier_normal", np.sqrt(2 / 500)),
        (rules.VarianceScaling(2.0, "fan_out"), np.sqrt(2 / 100)),
        (rules.VarianceScaling(2.0, "fan_avg", "uniform"), np.sqrt(2 / 250)),
    ):
        assert abs(values(rule, 100, 400).std() / sigma - 1) < 0.03
    with pytest.raises(ValueError, match="2 dims"):
        values("identity", 2, 2, 2)
