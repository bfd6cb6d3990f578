"""Recomputing where networks run at once: the same bits, with nothing kept but inputs."""

import numpy as np
import pytest

import parallel_lab as pl
from parallel_lab import mindspore as ms, nn, ops
from parallel_lab.base.errors import TraceError
from parallel_lab.nn.tensor.recompute import recompute


class Layer(nn.Cell):
    def __init__(self):
        super().__init__()
        self.fc, self.norm, self.drop = nn.Dense(6, 6), nn.BatchNorm1d(6), nn.Dropout(p=0.3)
        self.calls = 0

    def construct(self, x):
        self.calls += 1
        return self.drop(ops.tanh(self.norm(self.fc(x)))) * ops.dropout2d(ops.ones((2, 3, 1, 2), "float32")).sum()


class Net(nn.Cell):
    def __init__(self, how=""):
        super().__init__()
        pl.set_seed(3)
        self.how = how
        self.layers = nn.CellList([Layer() for _ in range(3)])
        for layer in self.layers if how == "cells" else ():
            layer.recompute()
        self.set_train()

    def construct(self, x):
        for layer in self.layers:
            x = recompute(layer, x) if self.how == "calls" else layer(x)
        return ops.reduce_mean(ops.square(x))


X = np.random.default_rng(0).standard_normal((4, 6)).astype(np.float32)


def steps(how, count=3):
    net = Net(how)
    optimizer = nn.Adam(net.trainable_params(), 0.01)
    found = []
    for _ in range(count):
        loss, (of_x, grads) = pl.value_and_grad(net, 0, optimizer.parameters)(pl.Tensor(X))
        optimizer(grads)
        found += [loss.asnumpy(), of_x.asnumpy(), *(g.asnumpy() for g in grads)]
    return net, [*found, *(p.asnumpy() for p in net.get_parameters())]


@pytest.mark.quick(1)
@pytest.mark.parametrize("how", ["cells", "calls"])
def test_training_has_the_bits_of_a_network_that_keeps_everything(how):
    (_, want), (net, got) = steps(""), steps(how)
    for one, other in zip(want, got, strict=True):
        np.testing.assert_array_equal(one, other)
    assert [layer.calls for layer in net.layers] == [6, 6, 6]  # forward, and once more for the gradient
    assert [layer.drop.calls for layer in net.layers] == [3, 3, 3]


def test_nothing_between_inputs_and_results_is_kept():
    layer, x = Layer(), pl.Parameter(pl.Tensor(X), name="x")
    y = recompute(layer, x)
    inputs = [p for p in y.node.operands if isinstance(p, pl.Parameter)]
    assert {p.name for p in inputs} == {"x", *(p.name for p in layer.trainable_params())}
    assert all(t.node is None for t in y.node.operands)


def test_several_results_and_what_a_function_reads_from_around_it():
    w, v = (pl.Parameter(pl.Tensor(X[:2]), name=name) for name in "wv")

    def gradients(run):
        def fn(x):
            a = ops.exp(w * x)
            b, c = run(lambda y: (ops.tanh(y * a) * v, ops.exp(y + w)), x)
            return ops.reduce_sum(b * c + ops.square(c))

        return pl.value_and_grad(fn, 0, [w, v])(pl.Tensor(X[2:]))

    (loss, (of_x, of_weights)), (same, (as_x, as_weights)) = (
        gradients(run) for run in (lambda f, *args: f(*args), recompute)
    )
    assert loss.asnumpy() == same.asnumpy()
    for one, other in zip([of_x, *of_weights], [as_x, *as_weights], strict=True):
        np.testing.assert_allclose(one.asnumpy(), other.asnumpy(), rtol=1e-6)


def test_a_function_in_a_function_runs_once_more_for_each():
    layer = Layer()
    layer.set_train()
    outer = lambda x: ops.tanh(recompute(layer, x))  # noqa: E731
    grad = pl.grad(lambda x: ops.reduce_sum(recompute(outer, x)), 0)(pl.Tensor(X))
    assert layer.calls == 3 and np.any(grad.asnumpy())


def test_mindspores_name_and_what_it_refuses():
    assert ms.recompute.__wrapped__ is recompute
    with pytest.raises(TypeError, match="fn=3"):
        recompute(3)
    with pytest.raises(TraceError, match="runs at once"):
        pl.compile(lambda x: recompute(ops.tanh, x), X, device_num=1)
