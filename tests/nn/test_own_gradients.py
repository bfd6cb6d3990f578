"""Gradients of the user's own (a Cell's bprop, InsertGradientOf, HookBackward) and hooks around construct."""

import numpy as np
import pytest

from parallel_lab import Parameter, Session, Tensor, grad, nn, ops, value_and_grad
from parallel_lab.base.errors import ArgumentTypeError
from parallel_lab.catalog.nn.custom import HookBackward, InsertGradientOf
from parallel_lab.graph.compiler import compile_program
from parallel_lab.ops.machine.opdef import OPS
from tests.crossed import each_of
from tests.nets import cell

X = np.random.default_rng(5).normal(size=(8, 4))
W = np.random.default_rng(6).normal(size=(8, 4))


class Scaled(nn.Cell):
    """x * y * factor, with a gradient that is another one, and not linear in dout."""

    def construct(self, x, y, factor=2.0):
        return x * y * factor

    def bprop(self, x, y, factor, out, dout):
        return dout * dout * y, out * 0.5, 0


class Two(nn.Cell):
    def construct(self, x):
        return x + 1.0, x * x

    def bprop(self, x, out, dout):
        return (dout[0] * 3.0 + dout[1] * out[1],)


class Net(nn.Cell):
    def __init__(self, inner):
        super().__init__()
        self.inner, self.w, self.mul = inner, Parameter(Tensor(W), "w"), ops.Mul().shard(((2, 4), (2, 4)))

    def construct(self, x):
        return ops.reduce_sum(self.mul(self.inner(x, self.w, 2.0), x))


def of_scaled():
    """Gradients of sum(Scaled(x, w) * x) by the rule above: dout is x."""
    return X * X * W + 2 * X * W, X * W


def compiled(fn, *arrays, **options):
    """What a function gives on 8 ranks, split as its operators are."""
    made = compile_program(fn, *arrays, device_num=8, dataset_strategy="full_batch", **options)
    session = Session(made.plan, {name: p.asnumpy() for name, p in made.parameters.items()})
    session.train([arrays], steps=1)
    found = session.values(made.plan.outputs)
    return [found[name] for name in made.plan.outputs]


@each_of("on_ranks", False, True)
def test_the_gradient_of_a_cell_is_what_its_bprop_says(on_ranks):
    net = Net(Scaled())
    asked = value_and_grad(net, 0, [net.w])
    if on_ranks:
        value, of_x, of_w = compiled(asked, X)
    else:
        value, (of_x, (of_w,)) = asked(Tensor(X))
    np.testing.assert_allclose(np.asarray(value), 2 * (X * X * W).sum())
    for got, expected in zip((of_x, of_w), of_scaled(), strict=True):
        np.testing.assert_allclose(np.asarray(got), expected, rtol=1e-12)


@each_of("on_ranks", False, True)
def test_bprop_receives_the_gradients_of_all_results(on_ranks):
    """One that the loss does not read has a gradient of zeros."""
    both, first = Two(), Two()

    def loss(x):
        return ops.reduce_sum(both(x)[0] * 2.0 + both(x)[1]) + ops.reduce_sum(first(x)[0])

    found = compiled(value_and_grad(loss, 0), X)[1] if on_ranks else grad(loss, 0)(Tensor(X)).asnumpy()
    np.testing.assert_allclose(found, 6.0 + X * X + 3.0)


def test_a_bprop_with_too_few_gradients_is_refused():
    net = cell(lambda net, x, y: x * y)
    type(net).bprop = lambda net, x, y, out, dout: (dout, dout, dout)
    with pytest.raises(ArgumentTypeError, match=r"bprop gives 3 gradients. 2, one per input"):
        grad(lambda x: ops.reduce_sum(net(x, x)))(Tensor(X))


@each_of("on_ranks", False, True)
@pytest.mark.parametrize(
    ("rule", "given"),
    [
        (lambda g, out, x, y, **_: (g,), "gives 1"),
        (lambda g, out, x, y, **_: [g, g, g], "gives 3"),
        (lambda g, out, x, y, **_: g, "gives (ndarray|TracedValue)"),  # its rows would pass for gradients
    ],
)
def test_a_gradient_rule_gives_one_gradient_per_operand(on_ranks, rule, given, monkeypatch):
    monkeypatch.setattr(OPS["mul"], "vjp_fn", rule)
    loss = value_and_grad(lambda x: ops.reduce_sum(x * x), 0)
    with pytest.raises(
        ArgumentTypeError, match=rf"Mul: the gradient rule {given}\. A tuple of 2, one gradient per input"
    ):
        compiled(loss, X) if on_ranks else loss(Tensor(X))


@each_of("on_ranks", False, True)
def test_insert_gradient_of_gives_the_function_the_whole_gradient(on_ranks):
    """Ranks hold addends of it; each was clipped by itself."""
    clip = InsertGradientOf(lambda g: ops.clip_by_value(g, -1.0, 1.0))
    mul = ops.Mul().shard(((2, 2), (2, 2)))
    w = Parameter(Tensor(W), "w")

    def loss(x):
        return ops.reduce_sum(clip(mul(x, w)) * 5.0)

    found = compiled(value_and_grad(loss, 0), X)[1] if on_ranks else grad(loss)(Tensor(X)).asnumpy()
    np.testing.assert_allclose(found, W)


def test_hook_backward_sees_a_gradient_and_may_change_it():
    seen = []
    look, triple = HookBackward(seen.append), HookBackward(lambda g: g[0] * 3.0)
    np.testing.assert_allclose(grad(lambda x: ops.reduce_sum(triple(look(x) * 2.0)))(Tensor(X)).asnumpy(), 6 + 0 * X)
    np.testing.assert_allclose(seen[0][0].asnumpy(), 6 + 0 * X)
    assert [float(v) for v in compiled(lambda x: ops.reduce_sum(triple(x)), X)] == pytest.approx([X.sum()])
    with pytest.raises(TypeError, match="hook_fn"):
        HookBackward(3)


def test_hooks_are_called_around_construct_until_they_are_removed():
    net, log = nn.SequentialCell(nn.Dense(4, 3), nn.ReLU()), []
    relu = net[1]
    handles = [
        relu.register_forward_pre_hook(lambda cell, inputs: log.append(("pre", len(inputs)))),
        relu.register_forward_hook(lambda cell, inputs, output: log.append(("forward", output.shape))),
        relu.register_backward_pre_hook(lambda cell, back: log.append(("backward pre", back[0].shape))),
        relu.register_backward_hook(lambda cell, of_input, back: log.append((type(cell), len(of_input), len(back)))),
    ]
    asked = value_and_grad(lambda x: ops.reduce_sum(net(x)), None, net.trainable_params())
    asked(Tensor(X, "float32"))
    assert log == [("pre", 1), ("forward", (8, 3)), ("backward pre", (8, 3)), (nn.ReLU, 1, 1)]
    for handle in handles:
        handle.remove()
        handle.remove()
    asked(Tensor(X, "float32"))
    assert len(log) == 4


def test_hooks_may_change_inputs_outputs_and_gradients():
    net = cell(lambda net, x: x * 2.0)
    net.register_forward_pre_hook(lambda cell, inputs: inputs[0] + 1.0)
    net.register_forward_hook(lambda cell, inputs, output: output * inputs[0])
    net.register_backward_pre_hook(lambda cell, back: (back[0] * 5.0,))
    net.register_backward_hook(lambda cell, of_input, back: of_input[0] + back[0])
    x = Tensor(X)
    np.testing.assert_allclose(net(x).asnumpy(), 2 * (X + 1) ** 2)
    np.testing.assert_allclose(grad(lambda x: ops.reduce_sum(net(x)))(x).asnumpy(), 5 * 4 * (X + 1) + 5)
    with pytest.raises(TypeError, match="hook_fn"):
        net.register_forward_hook("no function")


def test_a_tensors_hook_sees_its_gradient_and_may_change_it():
    """x -> y = 2 x -> sum(y y): y's gradient is 2 y, ten times that after its hook, and x's one more."""
    seen = []

    def f(x, hooked=True):
        y = x * 2.0
        first, second = y.split(2) if hooked else (y, y)
        if hooked:
            handles = [y.register_hook(lambda g: g * 10.0), x.register_hook(lambda g: g + 1.0)]
            first.register_hook(lambda g: seen.append(g.asnumpy().copy()))
            removed = y.register_hook(lambda g: g * 0.0)
            removed.remove()
            assert len(handles) == 2
        return (first * first).sum() + ((second * second).sum() if hooked else 0.0)

    found = grad(f)(Tensor(X[:4])).asnumpy()
    np.testing.assert_allclose(found, 80 * X[:4] + 1, rtol=1e-12)
    np.testing.assert_allclose(seen, [4 * X[:2]], rtol=1e-12)
    np.testing.assert_allclose(grad(lambda x: f(x, False))(Tensor(X)).asnumpy(), 8 * X, rtol=1e-12)
    Tensor(X).register_hook(print).remove()  # no gradient is asked for
    with pytest.raises(RuntimeError, match=r"Parameter 'w'.*a hook of a Parameter"):
        Parameter(Tensor(W), name="w").register_hook(print)
    with pytest.raises(ValueError, match=r"shape \(8, 4\) gives a gradient of shape \(4,\)"):
        grad(hooked_wrong)(Tensor(X))


def hooked_wrong(x):
    y = x * x
    y.register_hook(lambda g: g[0])
    return y.sum()


def test_a_bprop_with_other_arguments_is_refused_in_words():
    """It takes the inputs, the result and the result's gradient; Python's own words spoke of one argument too many."""

    class Product(nn.Cell):
        def construct(self, x, y):
            return x * y

        def bprop(self, x, out, dout):
            return (dout,)

    inputs = Tensor(np.ones(2)), Tensor(np.ones(2))
    with pytest.raises(ArgumentTypeError, match=r"bprop of Product: .*It takes \(x, out, dout\)"):
        value_and_grad(Product(), (0, 1))(*inputs)
