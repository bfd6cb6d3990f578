"""Initial values: distributions, defaults, fans, and what is refused."""

import math

import numpy as np
import pytest
from parallel_lab.mindspore.common import initializer as theirs
from parallel_lab.mindspore.nn.layer import rnn_cells as theirs_cells

from parallel_lab.base.errors import ArgumentTypeError, NotBuiltYet, ShapeError
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


@each_of(
    ("init", "expected"),
    ("zeros", 0),
    ("ones", 1),
    (initializers.Zero(), 0),
    (initializers.One(), 1),
    (2.5, 2.5),
    (3, 3),
    (initializers.Constant(-1), -1),
    ("ONES", 1),
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


# ---- MindSpore's form ----


class Scaled(theirs.Initializer):
    """As public models write it: `_initialize` fills an array, with numpy's global state."""

    def __init__(self, gain):
        super().__init__(gain=gain)
        self.gain = gain

    def _initialize(self, arr):
        fan_in = theirs._calculate_correct_fan(arr.shape, "fan_in")
        values = np.random.normal(0, theirs._calculate_gain("relu") / math.sqrt(fan_in), arr.shape)  # noqa: NPY002
        theirs._assignment(arr, self.gain * values)


def test_a_rule_that_fills_arrays_draws_alike_in_any_order_and_leaves_numpys_state():
    """Wrong would be: ranks that read their Parameters in another order have other values."""
    made = [Parameter(initializers.initializer(Scaled(3.0), SHAPE), name) for name in ("a", "b", "a")]
    before = np.random.get_state()[1]  # noqa: NPY002
    first, other, again = (each.asnumpy() for each in made)
    np.testing.assert_array_equal(before, np.random.get_state()[1])  # noqa: NPY002
    np.testing.assert_array_equal(first, again)
    assert (first != other).any() and first.std() == pytest.approx(3 * math.sqrt(2 / SHAPE[1]), rel=0.02)


def test_rules_are_called_with_what_they_fill():
    array, parameter = np.zeros(SHAPE, np.float32), Parameter(Tensor(np.ones((2, 3), np.float32)), "p")
    theirs.HeNormal(mode="fan_out")(array)
    assert array.std() == pytest.approx(math.sqrt(2 / SHAPE[0]), rel=0.02)
    theirs.Constant(2.5)(parameter)
    np.testing.assert_array_equal(parameter.asnumpy(), np.full((2, 3), 2.5))
    with pytest.raises(ArgumentTypeError, match=r"Constant: arr='w'.*An array or a Tensor"):
        theirs.Constant(1)("w")
    with pytest.raises(NotBuiltYet, match="Initializer has no draw"):
        initializers.initializer(theirs.Initializer(), (2,)).init_data()


def test_what_rules_are_made_of():
    assert theirs._calculate_fan_in_and_fan_out((4, 3, 2, 2)) == (12, 16)
    gains = [theirs._calculate_gain(*given) for given in (("tanh",), ("leaky_relu", 1), ("conv2d",), ("leaky_relu",))]
    np.testing.assert_allclose(gains, [5 / 3, 1, 1, math.sqrt(2 / 1.0001)])
    assert theirs._init_random_normal(2.0, 0.5, SHAPE).mean() == pytest.approx(2, abs=0.02)
    uniform, cut = theirs._init_random_uniform(-1.0, 3.0, SHAPE), theirs._init_truncated_normal(-1, 1, 0, 2.0, SHAPE)
    assert uniform.dtype == np.float32 and uniform.mean() == pytest.approx(1, abs=0.02) and uniform.min() >= -1
    assert np.abs(cut).max() <= 2 and cut.std() == pytest.approx(2 * 0.5396, rel=0.02)
    theirs._register("half")(
        type("Half", (theirs.Constant,), {"__init__": lambda rule: rule.__dict__.update(value=0.5)})
    )
    assert values("half", (2,)).tolist() == values("Half", (2,)).tolist() == [0.5, 0.5]
    del theirs._INITIALIZER_ALIAS["half"]


def test_a_recurrent_cell_of_ones_own_has_the_weights_of_so_many_gates():
    class Sum(theirs_cells.RNNCellBase):
        def construct(self, x, hx):
            return x @ self.weight_ih.T + self.bias_ih + hx @ self.weight_hh.T + self.bias_hh

    cell, x, h = Sum(4, 3, True, num_chunks=3), np.ones((2, 4), np.float32), np.ones((2, 3), np.float32)
    parts = [p.asnumpy() for p in (cell.weight_ih, cell.weight_hh, cell.bias_ih, cell.bias_hh)]
    assert [p.shape for p in parts] == [(9, 4), (9, 3), (9,), (9,)]
    assert all(0 < np.abs(p).max() <= 1 / math.sqrt(3) for p in parts)
    expected = parts[0].sum(1) + parts[1].sum(1) + parts[2] + parts[3]
    np.testing.assert_allclose(cell(Tensor(x), Tensor(h)).asnumpy(), np.tile(expected, (2, 1)), rtol=1e-5)
