"""vjp, jvp, jacobians, vmap, grad with further results, `Partial` and the helpers of ops.functional."""

import importlib
import inspect

import numpy as np
import pytest
from parallel_lab.mindspore.common._grad_function import _Function
from parallel_lab.mindspore.ops import functional

import parallel_lab as pl
import parallel_lab.mindspore as ms
from parallel_lab.base.errors import ArgumentError, ShapeError, TraceError
from parallel_lab.mindspore import Tensor, nn, ops
from parallel_lab.mindspore._missing import Missing
from parallel_lab.mindspore._tables import PAGES
from tests.crossed import each_of

A, B = np.array([[1.0, 2.0], [3.0, 4.0]], np.float32), np.array([[5.0, -1.0], [0.5, 2.0]], np.float32)
V, W = np.array([[1.0, 0.5], [0.0, 2.0]], np.float32), np.array([[0.0, 1.0], [3.0, 0.0]], np.float32)


def same(found, expected):
    if isinstance(expected, tuple):
        assert isinstance(found, tuple) and len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            same(one, other)
    else:
        assert isinstance(found, Tensor) and found.shape == np.shape(expected)
        np.testing.assert_allclose(found.asnumpy(), expected, rtol=1e-5)


def product(x, y):
    return ops.matmul(x, y)


def both(x, y):
    return x * y, (x**2).sum()


EYE = np.eye(2)
JACOBIAN = np.einsum("ik,jl->ijkl", EYE, np.ones((2, 2))) * B.T[None, :, None, :]  # d (x @ y)[i, j] / d x[k, l]
DIAGONAL = np.eye(4).reshape(2, 2, 2, 2)  # of what is element by element

ROWS = {
    "grad has_aux": (lambda x, y: ms.grad(lambda x: ((x**2).sum(), x + 1), has_aux=True)(x), (2 * A, (A + 1,))),
    "grad has_aux of two": (
        lambda x, y: ms.grad(lambda x: (x.sum(), x + 1, x), has_aux=True)(x),
        (0 * A + 1, (A + 1, A)),
    ),
    "vjp": (lambda x, y: ms.vjp(product, x, y)[1](Tensor(V)), (V @ B.T, A.T @ V)),
    "vjp of one input": (lambda x, y: ms.vjp(lambda x: x**2, x)[1](Tensor(V)), 2 * A * V),
    "vjp of two results": (lambda x, y: ms.vjp(both, x, y)[1](Tensor(V), Tensor(3.0)), (V * B + 6 * A, V * A)),
    "vjp has_aux": (lambda x, y: ms.vjp(lambda x: (x * 2, x + 1), x, has_aux=True)[::2], (2 * A, (A + 1,))),
    "jvp": (lambda x, y: ms.jvp(product, (x, y), (Tensor(V), Tensor(W))), (A @ B, V @ B + A @ W)),
    "jvp of two results": (
        lambda x, y: ms.jvp(both, (x, y), (Tensor(V), Tensor(W)))[1],
        (V * B + A * W, (2 * A * V).sum()),
    ),
    "jvp has_aux": (
        lambda x, y: ms.jvp(lambda x: (x * 3, x + 1), x, Tensor(V), has_aux=True),
        (3 * A, 3 * V, (A + 1,)),
    ),
    "jacrev": (lambda x, y: ms.jacrev(product)(x, y), JACOBIAN),
    "jacfwd of two": (lambda x, y: ms.jacfwd(lambda x, y: x * y, (0, 1))(x, y), (DIAGONAL * B, DIAGONAL * A)),
    "jacrev has_aux": (lambda x, y: ms.jacrev(lambda x: (x * 2, x), has_aux=True)(x), (2 * DIAGONAL, A)),
    "vmap": (lambda x, y: ms.vmap(lambda a, b: (a * b).sum())(x, y), (A * B).sum(1)),
    "vmap axes": (lambda x, y: ms.vmap(lambda a, b: a * b, (1, None), 1)(x, Tensor(B[0])), A * B[0][:, None]),
    "vmap nested": (
        lambda x, y: ms.vmap(lambda p, c: p[0] + p[1] * c, ((0, 1), None))((x, y), Tensor(2.0)),
        A + 2 * B.T,
    ),
    "vmap of two results": (lambda x, y: ms.vmap(lambda a: (a, a.sum()))(x), (A, A.sum(1))),
    "vmap of vmap": (lambda x, y: ms.vmap(ms.vmap(lambda a, b: a + b))(x, y), A + B),
    "partial": (lambda x, y: ops.Partial()(product, x)(y), A @ B),
    "partial as a function": (lambda x, y: ops.partial(product, x)(y), A @ B),
    "tuple_to_array": (lambda x, y: functional.tuple_to_array(functional.make_range(4)), np.arange(4)),
    "scalar_to_array": (lambda x, y: functional.scalar_to_array(2.5), np.float32(2.5)),
    "ScalarToArray": (lambda x, y: ops.ScalarToArray()(3), np.array(3)),
    "mixed_precision_cast": (lambda x, y: functional.mixed_precision_cast(ms.float16, (x, y))[1], B),
    "control_depend": (lambda x, y: functional.control_depend(x, y), B),
}


@pytest.mark.parametrize("row", ROWS)
def test_values_and_forms(row):
    call, expected = ROWS[row]
    same(call(Tensor(A), Tensor(B)), expected)


def test_vjp_with_weights_gives_both_gradients():
    net = nn.Dense(2, 1, weight_init="ones", bias_init="zeros")
    output, vjp_fn = ms.vjp(net, Tensor(A), weights=net.trainable_params())
    same(output, A.sum(1, keepdims=True))
    of_input, of_weights = vjp_fn(Tensor(V[:, :1]))
    same(of_input, np.tile(V[:, :1], 2))
    same(tuple(of_weights), (V[:, :1].T @ A, V[:, 0].sum(keepdims=True)))


def test_helpers_of_tuples():
    f = functional
    assert f.make_range(1, 7, 2) == (1, 3, 5) and f.tuple_len((1, 2)) == 2 and f.make_tuple(1, 2) == (1, 2)
    assert f.tuple_setitem((1, 2, 3), -1, 9) == (1, 2, 9) and f.shape_mul((2, 3)) == 6 and f.scalar_add(1, 2) == 3
    with pytest.raises(ArgumentError, match="elements along in_axes"):
        ms.vmap(product)(Tensor(A), Tensor(V[:1]))
    with pytest.raises(ShapeError, match="vectors for"):
        ms.jvp(product, (Tensor(A), Tensor(B)), Tensor(V))


@each_of("path", *PAGES)
def test_capital_names_are_classes_and_small_names_are_not(path):
    """ops.Partial was the function ops.partial."""
    module = importlib.import_module(f"parallel_lab.mindspore.{path}".rstrip("."))
    values = {name: getattr(module, name) for name in dir(module) if name[0] != "_"}
    there = {n: v for n, v in values.items() if not (isinstance(v, Missing) or inspect.ismodule(v) or n.isupper())}
    wrong = [name for name, value in there.items() if name[0].isupper() != isinstance(value, type)]
    assert not wrong


# ---- _no_grad ----


@ms._no_grad()
def tripled(x):
    return x * 3


def scaled(x):
    with ms._no_grad():
        scale = x * x + ops.exp(x)
    return (scale * x).sum()


def test_what_is_computed_under_no_grad_is_a_constant():
    x = Tensor(A)
    same(ms.grad(scaled)(x), A**2 + np.exp(A))
    same(ms.grad(lambda x: (tripled(x) * x).sum())(x), 3 * A)
    # c y y with the constant c = 3 y: its gradient is 2 c y, and that one's 2 c
    same(ms.grad(lambda x: ms.grad(lambda y: (tripled(y) * y * y).sum())(x).sum())(x), 6 * A)
    with ms._no_grad():
        same(tripled(x), 3 * A)
        same(nn.ReLU()(Tensor(B)), np.maximum(B, 0))
    same(ms.grad(lambda x: (x * x).sum())(x), 2 * A)


def test_no_grad_in_a_trace_names_stop_gradient():
    with pytest.raises(TraceError, match=r"_no_grad.*ops\.stop_gradient"):
        pl.compile(scaled, Tensor(A), device_num=2, parallel_mode="semi_auto_parallel")


class Power(_Function):
    """x ** n * y; what it says is its gradient is ten times as much for y."""

    @staticmethod
    def forward(ctx, x, n, y):
        ctx.save_for_backward(x, y)
        ctx.n = n
        return x**n * y

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        assert ctx.needs_input_grad == (True, False, True)
        return g * ctx.n * x ** (ctx.n - 1) * y, None, 10 * g * x**ctx.n


class Copied(_Function):
    """Its argument, with a gradient of three times as much."""

    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, g):
        return 3 * g


def test_a_function_with_forward_and_backward_has_the_gradient_that_it_says():
    x, y = np.array([1.0, 2.0, 3.0], np.float32), np.array([0.5, 1.0, 2.0], np.float32)
    value, (dx, dy) = ms.value_and_grad(lambda x, y: Power.apply(Copied.apply(x), 3, y).sum(), (0, 1))(
        Tensor(x), Tensor(y)
    )
    assert float(value) == (x**3 * y).sum()
    np.testing.assert_allclose(dx.asnumpy(), 3 * 3 * x**2 * y, rtol=1e-6)
    np.testing.assert_allclose(dy.asnumpy(), 10 * x**3, rtol=1e-6)

    class Short(Power):
        @staticmethod
        def backward(ctx, g):
            return g, None

    with pytest.raises(TypeError, match=r"2 gradients.*3, one per argument"):
        ms.grad(lambda x: Short.apply(x, 2, x).sum())(Tensor(x))
    with pytest.raises(TraceError, match="in what is compiled"):
        pl.compile(lambda x: Copied.apply(x), Tensor(x), device_num=2)
