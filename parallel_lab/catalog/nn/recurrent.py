"""Recurrent layers: RNN, GRU and LSTM, as cells for one step and as layers for whole sequences.

    lstm = nn.LSTM(10, 16, num_layers=2, batch_first=True)
    out, (h, c) = lstm(x)                    # x: (n, l, 10) -> (n, l, 16); h and c: (2, n, 16)

A step adds what the input gives and what the state gives, and passes the sums through gates:

    RNN    h' = tanh(of_x + of_h)                                of_x = x w_ih^T + b_ih, of_h = h w_hh^T + b_hh
    GRU    r, z = sigmoid(of_x + of_h), n = tanh(of_x + r * of_h), h' = n + z * (h - n)
    LSTM   i, f, o = sigmoid(of_x + of_h), g = tanh(of_x + of_h), c' = f * c + i * g, h' = o * tanh(c')

A layer projects all its inputs in one product; the steps, one after the other, have a small one each, and a compiled
network has operators for every step. Inside, samples are the first dim: with a split batch nothing moves. Rules, names
and order of the gates: MindSpore, nn.LSTM, nn.GRU, nn.RNN (PyTorch's are the same).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ... import ops
from ...base.checks import COPIES, checked, choice, flag, integer, kept, probability
from ...base.errors import ShapeError
from ...nn.cell import Cell
from ...nn.initializer import Uniform, initializer
from ...nn.layers.dropout import Dropout
from ...nn.tensor.parameter import Parameter

State = tuple[Any, ...]
FORMS = {"num_layers": integer(1, COPIES), **dict.fromkeys(("has_bias", "batch_first", "bidirectional"), flag)}


class _Recurrent(Cell):
    """What cells and layers share: the gates of a step.

    gates  parts of a step's sums;  parts  tensors of a state: h, or h and c
    """

    gates, parts, activation = 1, 1, "tanh"

    def _weights(self, suffix: str, columns: int, dtype: Any) -> None:
        bound, rows = Uniform(1 / math.sqrt(self.hidden_size)), self.gates * self.hidden_size
        shapes = {"weight_ih": (rows, columns), "weight_hh": (rows, self.hidden_size)}
        shapes |= {"bias_ih": (rows,), "bias_hh": (rows,)} if self.has_bias else {}
        for name, shape in shapes.items():
            setattr(self, name + suffix, Parameter(initializer(bound, shape, dtype), name=name + suffix))
        self.matmul, self.bias_add = ops.MatMul(transpose_b=True), ops.BiasAdd()

    def _sums(self, x: Any, which: str, suffix: str) -> Any:
        """x: (n, columns) -> (n, gates * hidden_size)."""
        product = self.matmul(x, getattr(self, f"weight_{which}{suffix}"))
        return self.bias_add(product, getattr(self, f"bias_{which}{suffix}")) if self.has_bias else product

    def step(self, of_x: Any, of_h: Any, state: State) -> State:
        """The next state.  of_x, of_h: (n, gates * hidden_size), state: each (n, hidden_size)."""
        return ((ops.relu if self.activation == "relu" else ops.tanh)(of_x + of_h),)

    def _parts(self, sums: Any) -> tuple[Any, ...]:
        return ops.split_parts(sums, axis=1, output_num=self.gates)

    def _begin(self, hx: Any, shape: tuple[int, ...], dtype: Any) -> State:
        """The first state: what is given, or zeros. Raises ShapeError."""
        if hx is None:
            return (ops.zeros(shape, dtype),) * self.parts
        given = hx if isinstance(hx, (tuple, list)) else (hx,)
        found = [tuple(ops.shape(each)) for each in given]
        if found != [shape] * self.parts:
            allowed = f"A tensor of shape {shape}" if self.parts == 1 else f"A tuple (h, c), both of shape {shape}"
            raise ShapeError(f"hx of shapes {found}", where=self._where(), allowed=f"{allowed}, or None: zeros")
        return tuple(given)

    def _form(self, state: State) -> Any:
        return state if self.parts > 1 else state[0]


class _Gru(_Recurrent):
    gates = 3

    def step(self, of_x: Any, of_h: Any, state: State) -> State:
        """Reset and update gates, and the new values."""
        (x_reset, x_update, x_new), (h_reset, h_update, h_new) = self._parts(of_x), self._parts(of_h)
        new = ops.tanh(x_new + ops.sigmoid(x_reset + h_reset) * h_new)
        return (new + ops.sigmoid(x_update + h_update) * (state[0] - new),)


class _Lstm(_Recurrent):
    gates, parts = 4, 2

    def step(self, of_x: Any, of_h: Any, state: State) -> State:
        """Input, forget, cell and output gates."""
        into, keep, new, out = self._parts(of_x + of_h)
        memory = ops.sigmoid(keep) * state[1] + ops.sigmoid(into) * ops.tanh(new)
        return ops.sigmoid(out) * ops.tanh(memory), memory


# ---- one step ----


class _OneStep(_Recurrent):
    @kept(input_size=integer(1), hidden_size=integer(1), has_bias=flag)
    def __init__(self, input_size: int, hidden_size: int, has_bias: bool = True, dtype: Any = np.float32) -> None:
        super().__init__()
        self._weights("", input_size, dtype)

    def construct(self, x: Any, hx: Any = None) -> Any:
        shape = ops.shape(x)
        if len(shape) != 2 or shape[1] != self.input_size:
            raise ShapeError(f"x of shape {shape}", where=self._where(), allowed=f"(n, {self.input_size})")
        state = self._begin(hx, (shape[0], self.hidden_size), x.dtype)
        return self._form(self.step(self._sums(x, "ih", ""), self._sums(state[0], "hh", ""), state))


class RNNCell(_OneStep):
    """One step of an RNN.  x: (n, input_size), hx: (n, hidden_size) -> the next h.

    nonlinearity  "tanh" or "relu"

    Parameters: weight_ih, weight_hh, bias_ih, bias_hh. hx=None begins with zeros, also in the other cells.
    """

    @checked(nonlinearity=choice("tanh", "relu"))
    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        has_bias: bool = True,
        nonlinearity: str = "tanh",
        dtype: Any = np.float32,
    ) -> None:
        super().__init__(input_size, hidden_size, has_bias, dtype)
        self.activation = nonlinearity


class GRUCell(_Gru, _OneStep):
    """One step of a GRU.  x: (n, input_size), hx: (n, hidden_size) -> the next h."""


class LSTMCell(_Lstm, _OneStep):
    """One step of an LSTM.  x: (n, input_size), hx: (h, c), each (n, hidden_size) -> the next (h, c)."""


# ---- sequences ----


class _Sequence(_Recurrent):
    @checked(dropout=probability)
    @kept(input_size=integer(1), hidden_size=integer(1), **FORMS)
    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        has_bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        dtype: Any = np.float32,
    ) -> None:
        super().__init__()
        self.ways = ("", "_reverse") if bidirectional else ("",)
        for layer in range(num_layers):
            columns = hidden_size * len(self.ways) if layer else input_size
            for way in self.ways:
                self._weights(f"_l{layer}{way}", columns, dtype)
        self.dropout = Dropout(p=dropout)

    def construct(self, x: Any, hx: Any = None, seq_length: Any = None) -> tuple[Any, Any]:
        shape = ops.shape(x)
        if len(shape) != 3 or shape[2] != self.input_size or not shape[0 if not self.batch_first else 1]:
            form = f"(n, l, {self.input_size})" if self.batch_first else f"(l, n, {self.input_size})"
            raise ShapeError(f"x of shape {shape}", where=self._where(), allowed=f"{form}, l at least 1")
        x = x if self.batch_first else ops.transpose(x, (1, 0, 2))
        count, last = self.num_layers * len(self.ways), []
        rows, length = ops.shape(x)[:2]
        begin = self._begin(hx, (count, rows, self.hidden_size), x.dtype)
        begin = [ops.unstack(each, axis=0) for each in begin]
        counted = self._counted(seq_length, rows, length)
        for layer in range(self.num_layers):
            x = self.dropout(x) if layer else x
            found = []
            for at, way in enumerate(self.ways, layer * len(self.ways)):
                out, state = self._run(x, f"_l{layer}{way}", tuple(each[at] for each in begin), counted)
                found.append(out)
                last.append(state)
            x = ops.concat(found, axis=2) if len(found) > 1 else found[0]
        state = tuple(ops.stack(each, axis=0) for each in zip(*last, strict=True))
        return x if self.batch_first else ops.transpose(x, (1, 0, 2)), self._form(state)

    def _counted(self, seq_length: Any, rows: int, length: int) -> list[Any] | None:
        """For every step which samples it counts for, (n, 1) bools; None: for all."""
        if seq_length is None:
            return None
        if tuple(ops.shape(seq_length)) != (rows,):
            given = f"seq_length of shape {ops.shape(seq_length)}"
            raise ShapeError(given, where=self._where(), allowed=f"({rows},): one number per sample")
        return [ops.reshape(ops.greater(seq_length, at), (rows, 1)) for at in range(length)]

    def _run(self, x: Any, suffix: str, state: State, counted: list[Any] | None) -> tuple[Any, State]:
        """One way through the sequences.  x: (n, l, columns) -> (n, l, hidden_size), the last state."""
        rows, length, columns = ops.shape(x)
        of_x = self._sums(ops.reshape(x, (rows * length, columns)), "ih", suffix)
        of_x = ops.unstack(ops.reshape(of_x, (rows, length, self.gates * self.hidden_size)), axis=1)
        out = [None] * length
        for at in reversed(range(length)) if suffix.endswith("_reverse") else range(length):
            new = self.step(of_x[at], self._sums(state[0], "hh", suffix), state)
            out[at] = new[0]
            if counted is not None:
                new = tuple(ops.select(counted[at], a, b) for a, b in zip(new, state, strict=True))
                out[at] = ops.mul(out[at], ops.cast(counted[at], str(x.dtype)))
            state = new
        return ops.stack(out, axis=1), state


class RNN(_Sequence):
    """Sequences through an RNN.  x: (l, n, input_size) -> (l, n, d * hidden_size), h.

    num_layers     one upon the other;  dropout  of the results of all but the last, in training
    nonlinearity   "tanh" or "relu"
    batch_first    x: (n, l, input_size), and the result likewise
    bidirectional  a second one reads every sequence from its end, and results are joined: d = 2, else 1

    Called with (x, hx=None, seq_length=None). A state has the shape (num_layers * d, n, hidden_size); hx=None begins
    with zeros. seq_length, (n,) ints: results from there on are 0, and the last state is that of the last step counted.

    Parameters: weight_ih_l0, weight_hh_l0, bias_ih_l0, bias_hh_l0, then those that read backwards,
    weight_ih_l0_reverse, ..., then layer 1; operators `matmul` and `bias_add`. Names and defaults: MindSpore.
    """

    @checked(nonlinearity=choice("tanh", "relu"))
    def __init__(
        self, input_size: int, hidden_size: int, num_layers: int = 1, nonlinearity: str = "tanh", **options: Any
    ) -> None:
        super().__init__(input_size, hidden_size, num_layers, **options)
        self.activation = nonlinearity


class GRU(_Gru, _Sequence):
    """Sequences through a GRU, as RNN.  x: (l, n, input_size) -> (l, n, d * hidden_size), h."""


class LSTM(_Lstm, _Sequence):
    """Sequences through an LSTM, as RNN.  x: (l, n, input_size) -> (l, n, d * hidden_size), (h, c). hx: (h, c)."""
