"""Buffers, which are not Parameters, and a network's state as a dict."""

import numpy as np
import pytest

from parallel_lab import ParallelLabError, Tensor, jit, nn
from tests.crossed import each_of


class Net(nn.Cell):
    def __init__(self, start=0.0):
        super().__init__()
        self.fc = nn.Dense(2, 2)
        self.register_buffer("positions", Tensor(np.arange(2, dtype=np.float32) + start))
        self.register_buffer("scratch", Tensor(np.zeros((), np.float32)), persistent=False)
        self.register_buffer("later", None)

    def construct(self, x):
        return self.fc(x) + self.positions


def test_a_state_has_parameters_and_persistent_buffers():
    outer = nn.SequentialCell(Net(), Net(5.0))
    assert set(outer[0].state_dict()) == {"fc.weight", "fc.bias", "positions"}
    names = [name for name, _ in outer.named_buffers()]
    assert names == ["0.positions", "0.scratch", "1.positions", "1.scratch"]
    assert outer.get_buffer("1.positions").asnumpy().tolist() == [5, 6] and list(outer.buffers(recurse=False)) == []
    assert set(outer.state_dict(prefix="net.")) == {f"net.{i}.{n}" for i in "01" for n in outer[0].state_dict()}
    assert "positions" not in dict(outer[0].parameters_and_names())


def test_a_loaded_state_computes_the_same_at_once_and_compiled():
    a, b = Net(3.0), Net()
    x = Tensor(np.ones((1, 2), np.float32))
    compiled = jit(b)
    compiled(x)
    assert b.load_state_dict(a.state_dict()) == ([], [])
    wanted = a(x).asnumpy()
    assert np.array_equal(b(x).asnumpy(), wanted) and np.array_equal(compiled(x).asnumpy(), wanted)
    a.positions[0] = 100.0
    assert b.positions.asnumpy().tolist() == [3, 4]  # values were copied


def test_a_state_that_does_not_fit_is_refused_whole():
    net = Net()
    before = net.positions.asnumpy().copy()
    part = {"positions": Tensor(np.ones(2, np.float32)), "other": Tensor(1.0)}
    with pytest.raises(RuntimeError, match=r"missing_keys: fc\.weight, fc\.bias; unexpected_keys: other") as raised:
        net.load_state_dict(part)
    assert isinstance(raised.value, ParallelLabError) and np.array_equal(net.positions.asnumpy(), before)
    assert net.load_state_dict(part, strict=False) == (["fc.weight", "fc.bias"], ["other"])
    assert net.positions.asnumpy().tolist() == [1, 1]
    with pytest.raises(ValueError, match="positions of shape"):
        net.load_state_dict({"positions": Tensor(np.ones(3, np.float32))}, strict=False)


@each_of(
    ("call", "error"),
    (lambda net: net.register_buffer("a.b", None), KeyError),
    (lambda net: net.register_buffer("fc", None), KeyError),
    (lambda net: net.register_buffer("x", 3), TypeError),
    (lambda net: net.get_buffer("fc.weight"), AttributeError),
)
def test_other_buffers_are_refused(call, error):
    with pytest.raises(error) as raised:
        call(Net())
    assert isinstance(raised.value, ParallelLabError)
