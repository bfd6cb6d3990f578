"""mindspore.numpy against numpy: a row per function and form, with MindSpore's names and order of the arguments."""

import numpy as np
import parallel_lab.mindspore.numpy as mnp
import pytest

import parallel_lab.mindspore as ms
from parallel_lab.base.errors import ArgumentError, NotBuiltYet
from parallel_lab.mindspore import Tensor, nn, ops
from parallel_lab.train.compiled import CompiledFunction

X = np.random.default_rng(3).normal(size=(2, 3, 4)).astype(np.float32)
Y = np.random.default_rng(4).normal(size=(2, 3, 4)).astype(np.float32)
M = np.random.default_rng(5).normal(size=(3, 3)).astype(np.float32)
I = np.array([[5, 3, 8], [2, 9, 4]], np.int32)
B = np.array([[True, False, True], [False, False, True]])
GAPS = np.array([[1, np.nan, 3], [4, 5, np.nan]], np.float32)

UNARY = """
    absolute abs fabs square ceil floor trunc fix rint sign negative positive sin cos tan arctan sinh cosh tanh
    arcsinh exp exp2 expm1 deg2rad rad2deg radians isfinite isnan isinf isposinf isneginf signbit logical_not cbrt
    ravel flipud fliplr flip transpose squeeze atleast_1d atleast_2d atleast_3d ptp nansum mean sum std var amax
    amin max min argmax argmin cumsum cumprod diff nanmean ediff1d copy diagonal array_str
    """
BINARY = """
    add subtract multiply divide true_divide maximum minimum hypot logaddexp logaddexp2 arctan2 copysign fmod
    remainder mod floor_divide equal not_equal greater greater_equal less less_equal heaviside
    """

# name: [arguments, ...] that numpy takes in the same way
SAME = {
    **{name: [(X,)] for name in UNARY.split()},
    **{name: [(np.abs(X) + 0.5,)] for name in ["sqrt", "reciprocal", "log", "log2", "log10", "log1p"]},
    **{name: [(np.clip(X, -0.9, 0.9),)] for name in ["arcsin", "arccos", "arctanh"]},
    "arccosh": [(np.abs(X) + 1,)],
    "invert": [(I,), (B,)], "bitwise_not": [(I,)],
    **{name: [(X, Y), (X, 2.0)] for name in BINARY.split()},
    **{name: [(I, I[::-1].copy())] for name in ["gcd", "lcm", "bitwise_and", "bitwise_or", "bitwise_xor", "divmod"]},
    **{name: [(B, B[::-1].copy())] for name in ["logical_and", "logical_or", "logical_xor"]},
    "power": [(np.abs(X), 2.5), (X, 2)], "float_power": [(I, 0.5)], "matmul": [(X, Y.swapaxes(1, 2))],
    "dot": [(X, M[:, :1].repeat(4, 0).repeat(1, 1)[:4]), (X[0, 0], Y[0, 0])], "inner": [(X, Y), (X[0, 0], Y[0, 0])],
    "outer": [(X[0, 0], Y[0, 1])], "kron": [(M, M)],
    "cross": [(M, M[::-1].copy())],
    "tensordot": [(X, Y, ((1, 2), (1, 2))), (X, X.transpose(1, 2, 0).copy(), 2)], "multi_dot": [],
    "around": [(X, 2), (X,)], "round": [(X, 1)], "average": [(X, 1), (X, 2, np.arange(4, dtype=np.float32))],
    "count_nonzero": [(I, 1), (B,)], "trapz": [], "expand_dims": [(X, 1), (X, (0, 4))],
    "rollaxis": [(X, 2), (X, 0, 3), (X, 1, -1)],
    "swapaxes": [(X, 0, 2)], "moveaxis": [(X, 0, 2), (X, (0, 1), (2, 0))], "reshape": [(X, (4, 6)), (X, -1)],
    "concatenate": [((X, Y), 1), ((X, Y), None), ((X, Y),)], "stack": [((X, Y), 2)], "append": [(X, Y), (X, Y, 0)],
    "hstack": [((X, Y),), ((X[0, 0], Y[0, 0]),)], "vstack": [((X, Y),), ((X[0, 0], Y[0, 0]),)],
    "dstack": [((X, Y),), ((M, M),)],
    "column_stack": [((M, M),), ((X[0, 0], Y[0, 0]),)], "split": [(X, 3, 1), (X, [1, 2], 2)],
    "array_split": [(X, 3, 2), (X, (1, 3), 2)],
    "hsplit": [(M, 3)], "vsplit": [(M, [1])], "dsplit": [(X, 2)], "tile": [(X, (2, 1, 3)), (M, 2)],
    "repeat": [(X, 2, 1), (M, 3)],
    "broadcast_to": [(M, (2, 3, 3))], "broadcast_arrays": [(M, M[:1].copy())],
    "roll": [(X, 1, 1), (X, 5), (X, (1, 2), (0, 2)), (X, 1, (0, 1))],
    "rot90": [(M,), (X, 3, (0, 2))], "where": [(B,), (B, I, 7), (X > 0, X, 0.0)], "take": [],
    "take_along_axis": [(M, np.argsort(M, 1), 1)],
    "select": [([I > 4, I > 2], [I, -I], 9)], "choose": [(np.array([0, 1, 1]), (M[0], M[1]))],
    "trace": [(M, 1), (X, 0, 1, 2)],
    "diag": [(M,), (M[0], 1)], "diagflat": [(M[:2],)], "tril": [(M, 1), (X,)], "triu": [(M, -1)],
    "meshgrid": [(M[0], I[0]), (M[0], M[1], I[0, :2])],
    "isclose": [(X, X + 1e-9)], "array_equal": [(X, X), (X, Y), (X, M)], "array_equiv": [(M, M[:1])], "norm": [],
    **{name: [(GAPS, 1)] for name in ["nanmax", "nanmin", "nanmean", "nansum", "nanvar", "nanstd", "nancumsum"]},
    "arange": [(4,), (1, 9, 2), (0.0, 1.0, 0.25)], "linspace": [(0, 1, 5)], "logspace": [(0, 2, 3)],
    "geomspace": [(1, 8, 4)], "eye": [(3,), (2, 4, 1)],
    "identity": [(3,)], "tri": [(3, 4, 1)], "vander": [([1, 2, 3],)], "zeros": [((2, 3),), (2,)],
    "ones": [((2, 3),)], "full": [((2, 2), 7), (3, 0.5)],
    "zeros_like": [(X,)], "ones_like": [(I,)], "full_like": [(X, 3)], "array": [([1, 2],), ([[1.5]],)],
    "asarray": [((1, 2),)],
    **{name: [(5,)] for name in ["hamming", "hanning", "bartlett", "blackman"]}, "indices": [((2, 3),)],
    "tril_indices": [(3,)], "triu_indices": [(3, 1)], "diag_indices": [(3,)], "ix_": [([0, 1], [2, 3])],
    "bincount": [([0, 1, 1, 3],)],
    "digitize": [([0.5, 2.5], [0.0, 1.0, 2.0])], "histogram": [(M, 4)], "interp": [(0.5, [0.0, 1.0], [2.0, 4.0])],
    "convolve": [(M[0], M[1], "same")],
    "correlate": [(M[0], M[1])], "cov": [(M,)], "corrcoef": [(M,)], "gradient": [(M[0],)], "unwrap": [(M[0],)],
    "isin": [(I, [2, 5])],
    "unravel_index": [(5, (2, 3))], "ravel_multi_index": [((1, 2), (2, 3))], "searchsorted": [([1, 3, 5], [2, 4])],
    "polyadd": [([1, 2], [3])],
    "polyval": [([1, 2], 3.0)], "polyder": [([1, 2, 3],)], "polyint": [([1.0, 2],)], "polymul": [([1, 2], [3, 4])],
    "polysub": [([1, 2], [3])],
    "pad": [(M, 1), (M, ((1, 0), (2, 1))), (M, 1, "reflect"), (M, 1, "mean")], "unique": [([3, 1, 3],)],
    "size": [(X,), (X, 1)],
}  # fmt: skip


def same(found, expected):
    if isinstance(expected, (tuple, list)):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            same(one, other)
        return
    if isinstance(found, Tensor):
        assert found.dtype not in (np.float64,), "floats are float32"
        found = found.asnumpy()
    if isinstance(expected, str):
        assert found == expected
        return
    assert np.shape(found) == np.shape(expected)
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-6)


def as_tensors(value):
    if isinstance(value, (tuple, list)):
        return type(value)(as_tensors(v) for v in value)
    return Tensor(value) if isinstance(value, np.ndarray) else value


@pytest.mark.parametrize("name, arguments", [(name, given) for name, rows in SAME.items() for given in rows])
def test_what_numpy_gives(name, arguments):
    numpy_function = {"array": np.array, "identity": np.identity, "fix": np.trunc}.get(name) or getattr(np, name)
    with np.errstate(all="ignore"):
        same(getattr(mnp, name)(*as_tensors(arguments)), numpy_function(*arguments))


# forms whose arguments are MindSpore's own
OWN = {
    "mean": (lambda: mnp.mean(Tensor(I), 1, True), I.mean(1, keepdims=True)),
    "sum dtype": (lambda: mnp.sum(Tensor(I), 0, ms.float16, True), I.astype(np.float16).sum(0, keepdims=True)),
    "sum initial": (lambda: mnp.sum(Tensor(I), initial=10), I.sum() + 10),
    "std ddof": (lambda: mnp.std(Tensor(X), 1, 1), X.std(1, ddof=1)),
    "amax where": (lambda: mnp.amax(Tensor(X), 1, False, -9.0, Tensor(X < 0)), X.max(1, initial=-9, where=X < 0)),
    "clip": (lambda: mnp.clip(Tensor(X), -0.5, None), X.clip(-0.5)),
    "norm": (lambda: mnp.norm(Tensor(M), axis=1), np.linalg.norm(M, axis=1)),
    "cross of two": (lambda: mnp.cross([1.0, 2.0], [3.0, 5.0]), np.float32(-1)),
    "matrix_power": (lambda: mnp.matrix_power(Tensor(M), 3), M @ M @ M),
    "multi_dot": (lambda: mnp.multi_dot([Tensor(M), Tensor(M), Tensor(M)]), M @ M @ M),
    "trapz": (lambda: mnp.trapz(Tensor(M), dx=2.0), np.trapezoid(M, dx=2.0)),
    "take clips": (lambda: mnp.take(Tensor(M), Tensor([0, 7]), 1), M[:, [0, 2]]),
    "take wraps": (lambda: mnp.take(Tensor(M), Tensor([0, 4]), None, "wrap"), M.ravel()[[0, 4]]),
    "unique": (lambda: mnp.unique(Tensor([3, 1, 3]), return_inverse=True), (np.array([1, 3]), np.array([1, 0, 1]))),
    "in1d": (lambda: mnp.in1d(Tensor(I), [2, 5]), np.isin(I.ravel(), [2, 5])),
    "sometrue": (lambda: mnp.sometrue(Tensor(B), 1), B.any(1)),
    "mgrid": (lambda: mnp.mgrid[0:2, 0:3], np.mgrid[0:2, 0:3]),
    "empty": (lambda: mnp.empty((2,)).shape, (2,)),
    "apply_along_axis": (lambda: mnp.apply_along_axis(lambda row: row.sum(), 1, Tensor(X)), X.sum(1)),
    "piecewise": (lambda: mnp.piecewise(Tensor(M), [M < 0, M >= 0], [lambda x: -x, 2.0]), np.where(M < 0, -M, 2)),
    "randint": (lambda: mnp.randint(3, 4, (2, 2)), np.full((2, 2), 3)),
    "rand": (lambda: mnp.rand(2, 3).shape + mnp.randn((4,)).shape, (2, 3, 4)),
    "meshgrid": (lambda: mnp.meshgrid(Tensor(M[0]), Tensor(I[0]), sparse=True), np.meshgrid(M[0], I[0], sparse=True)),
    "meshgrid ij": (lambda: mnp.meshgrid([1, 2], [3, 4], indexing="ij"), np.meshgrid([1, 2], [3, 4], indexing="ij")),
}  # fmt: skip


@pytest.mark.parametrize("form", OWN)
def test_what_mindspore_gives(form):
    make, expected = OWN[form]
    same(make(), expected)


def test_dtypes_are_those_of_mindspore():
    assert mnp.arange(4).dtype == mnp.array([1, 2]).dtype == mnp.int32 and mnp.array([1.0]).dtype == mnp.float32
    assert mnp.arange(4, dtype=ms.float16).dtype == ms.float16 and mnp.array(np.zeros(2)).dtype == mnp.float64
    assert mnp.sqrt(Tensor(I)).dtype == mnp.float32 and mnp.divide(Tensor(I), Tensor(I)).dtype == mnp.float32
    assert mnp.add(Tensor(I), 1, dtype=ms.float32).dtype == mnp.float32 == mnp.result_type("int16", Tensor(X))
    assert (mnp.pi, mnp.inf) == (np.pi, np.inf) and mnp.isscalar(3) and not mnp.isscalar(Tensor(I))


class Windows(nn.Cell):
    """Shifted windows and masks, as vision transformers write them."""

    def construct(self, x):
        shifted = mnp.roll(x, (-1, -1), axis=(1, 2))
        rows = mnp.split(shifted, 2, axis=0)
        joined = mnp.concatenate((rows[1], mnp.tile(rows[0], (1, 1, 1))), axis=0)
        mask = mnp.where(mnp.greater(joined, 0), joined, mnp.zeros_like(joined))
        return mnp.sum(mnp.expand_dims(mask, 0) * mnp.arange(4), axis=(0, 2))


def test_it_is_usable_in_networks_that_are_compiled_and_gradients_flow():
    shifted = np.roll(X, (-1, -1), (1, 2))
    joined = np.concatenate((shifted[1:], shifted[:1]))
    expected = (np.where(joined > 0, joined, 0)[None] * np.arange(4)).sum((0, 2))
    same(Windows()(Tensor(X)), expected)
    compiled = CompiledFunction(Windows(), {"parallel_mode": "stand_alone"})
    same(compiled(Tensor(X)), expected)
    gradient = ms.grad(lambda x: ops.reduce_sum(mnp.sqrt(mnp.sum(mnp.square(x)))))(Tensor(X))
    same(gradient, X / np.sqrt((X**2).sum()))
    with pytest.raises(NotBuiltYet, match="a gradient through it"):
        ms.grad(lambda x: mnp.convolve(x, Tensor(M[0])).sum())(Tensor(M[1]))
    with pytest.raises(ArgumentError, match="array_split"):
        mnp.split(Tensor(X), 2, 1)


def test_every_documented_name_is_there():
    documented = set(ms.numpy.array_ops.__dir__()) | set(dir(mnp))
    missing = {row for row in SAME if not hasattr(mnp, row)} | {"promote_types", "histogramdd", "PINF"} - documented
    assert not missing
