"""Random operators, first family: functions of elements, comparisons and choices, reductions, softmaxes."""

from __future__ import annotations

import math

import numpy as np

from parallel_lab import Tensor, ops
from tests.graph.random_drawer import CheckedDrawer, away, distinct, varied

SMOOTH = (
    *(("GeLU", {}), ("GeLU", {"approximate": "none"})),
    *(
        (name, {})
        for name in ("Tanh", "Sigmoid", "SiLU", "Softplus", "Elu", "Sin", "Cos", "Erf", "Neg", "StopGradient")
    ),
)
# (operator, attributes, where its slope jumps)
KINKED = (
    *(("ReLU", {}, (0,)), ("ReLU6", {}, (0, 6)), ("LeakyReLU", {}, (0,)), ("LeakyReLU", {"negative_slope": 0.2}, (0,))),
    *(("Elu", {"alpha": 0.5}, (0,)), ("HSigmoid", {}, (-3, 3)), ("HSwish", {}, (-3, 3)), ("Abs", {}, (0,))),
)
OF_POSITIVE = ("Exp", "Expm1", "Log", "Log1p", "Sqrt", "Rsqrt", "Reciprocal", "Square")
STEPS = ("Floor", "Ceil", "Round", "Sign")
COMPARISONS = ("Greater", "GreaterEqual", "Less", "LessEqual", "Equal", "NotEqual")
NORMS = (1, 2, 3, math.inf)


class ElementKinds(CheckedDrawer):
    """Each method appends an operator or a few that belong together, or none if the values at hand do not allow it."""

    def activation(self):
        x, array = self.some()
        name, attrs = self.pick([*SMOOTH, *((n, a) for n, a, points in KINKED if away(array, *points))])
        self.add(name, x, attrs=attrs)

    def function_of_positive(self):
        x, _ = self.some()
        name = self.pick(OF_POSITIVE)
        self.add(name, self.add("Add", self.add("Sigmoid", x), 0.5))

    def step_function(self):
        """No gradient flows through it, so the value also goes on without it."""
        x, array = self.some()
        if away(2 * array, *range(-61, 62)):
            self.combined(x, self.add(self.pick(STEPS), x))

    def channel_activation(self):
        x, array = self.some()
        if array.ndim and away(array, 0):
            per_channel = array.ndim > 1 and self.chance(0.7)
            self.add("PReLU", x, self.fresh(array.shape[1:2] if per_channel else (1,)))

    def other_for(self, array):
        """A Parameter, a value or a number that broadcasts with an array of this shape."""
        same = [r for r in self.refs() if self.shape_of(r) == array.shape]
        if self.chance(0.3):
            return self.pick(same)
        if self.chance(0.1):
            return 0.5
        cut = self.choices.below(array.ndim + 1)
        return self.parameter(tuple(1 if self.chance(0.25) else n for n in array.shape[cut:]))

    def pair(self):
        x, array = self.some()
        operands = [x, self.other_for(array)]
        if self.chance(0.3):
            operands.reverse()
        names = ["Add", "Sub", "Mul"]
        if away(np.subtract(self.array(operands[0]), self.array(operands[1])), 0):
            names += ["Maximum", "Minimum"]
        self.add(self.pick(names), *operands)

    def quotient(self):
        """Div, Pow, FloorMod and FloorDiv by numbers from 0.5 to 1.5."""
        x, array = self.some()
        other = self.fresh(array.shape[self.choices.below(array.ndim + 1) :], 0.5, 1.5)
        name = self.pick(("Div", "Pow", "FloorMod", "FloorDiv"))
        if name == "Pow":
            x = self.add("Add", self.add("Sigmoid", x), 0.5)
        remainder = np.mod(array, self.array(other))
        if name in ("Div", "Pow"):
            self.add(name, x, other)
        elif away(remainder, 0) and away(remainder - self.array(other), 0):
            self.combined(x, self.add(name, x, other))

    def sum_of_several(self):
        x, array = self.some()
        self.add("AddN", x, *(self.parameter(array.shape) for _ in range(1 + self.choices.below(2))))

    def clipped(self):
        x, array = self.some()
        if away(array, -0.4, 0.6):
            low, high = self.pick(((-0.4, 0.6), (None, 0.6), (-0.4, None)))
            self.call(f"clip {low} {high}", lambda v: ops.clip(v, low, high), x)

    # ---- comparisons ----

    def comparison(self):
        """Bits and the value they came from; (None, None) where an element is too near to what it is compared with."""
        x, array = self.some()
        if self.chance(0.1):
            return x, self.add(self.pick(("IsFinite", "IsNan", "IsInf")), x)
        other = self.parameter(array.shape[self.choices.below(array.ndim + 1) :])
        if not away(array - other.asnumpy(), 0):
            return None, None
        bits = self.add(self.pick(COMPARISONS), x, other)
        if self.chance(0.3):
            if self.chance(0.3):
                bits = self.add("LogicalNot", bits)
            elif away(array, 0.1):
                bits = self.add(self.pick(("LogicalAnd", "LogicalOr", "LogicalXor")), bits, self.add("Less", x, 0.1))
        return x, bits

    def masked(self):
        x, bits = self.comparison()
        if bits is not None:
            for dtype in self.pick((("float64",), ("int32", "float64"))):
                bits = self.add("Cast", bits, dtype)
            self.add("Mul", x, bits)

    def chosen(self):
        x, bits = self.comparison()
        if bits is None:
            return
        if self.chance(0.5):
            self.add("MaskedFill", x, bits, 0.25)
        else:
            operands = [x, self.other_for(self.array(x))]
            self.add("Select", bits, *(operands if self.chance(0.5) else operands[::-1]))

    def any_or_all(self):
        x, bits = self.comparison()
        if bits is None or not self.shape_of(x):
            return
        axis = self.axes(len(self.shape_of(x)))
        found = self.add(self.pick(("ReduceAny", "ReduceAll")), bits, axis, attrs={"keep_dims": True})
        self.add("Mul", x, self.add("Cast", found, "float64"))

    # ---- reductions ----

    def axes(self, ndim):
        """None, one axis or several."""
        if ndim == 0 or self.chance(0.2):
            return None
        if self.chance(0.7):
            return self.choices.below(ndim) - (ndim if self.chance(0.3) else 0)
        return tuple(sorted(self.choices.order(ndim)[: 1 + self.choices.below(ndim)]))

    def reduction(self):
        x, array = self.some()
        axis, keep = self.axes(array.ndim), self.chance(0.6)
        over = tuple(range(array.ndim)) if axis is None else axis if isinstance(axis, tuple) else (axis,)
        count, attrs = math.prod(array.shape[a] for a in over), {"keep_dims": keep}
        names = ["ReduceSum", "ReduceMean", "LogSumExp", "Var"]
        if distinct(array):
            names += ["ReduceMax", "ReduceMin"]
        if count <= 32 and np.abs(array).max() < 2 and np.abs(array).min() > 1e-3:
            names.append("ReduceProd")
        if varied(array, over):
            names.append("Std")
        if away(array, 0) and distinct(np.abs(array)):
            names.append("LpNorm")
        name = self.pick(names)
        if name in ("Var", "Std") and count > 1 and self.chance(0.4):
            attrs["ddof"] = 1
        if name == "LpNorm":
            out = self.add(name, x, attrs={**attrs, "axis": axis, "p": self.pick(NORMS)})
        elif name in ("Var", "Std", "LogSumExp") or not keep or self.chance(0.8):
            out = self.add(name, x, axis, attrs=attrs)
        else:
            out = self.add(name, x, axis if isinstance(axis, tuple) else over, attrs=attrs)
        if keep and self.chance(0.7):
            self.combined(x, out)

    def normalised_exponential(self):
        x, array = self.some()
        if array.ndim:
            name = self.pick(("Softmax", "LogSoftmax", "SoftmaxExpand"))
            self.add(name, x, attrs={"axis": self.choices.below(array.ndim) - array.ndim})

    def largest_as_one_hot(self):
        """argmax, which has no gradient, turned into numbers that choose."""
        x, array = self.some()
        if array.ndim and distinct(array):
            axis = self.choices.below(array.ndim)
            place = self.add(self.pick(("Argmax", "Argmin")), x, attrs={"axis": axis})
            on, off = Tensor(1.0, np.float64), Tensor(0.1, np.float64)
            hot = self.add("OneHot", place, array.shape[axis], on, off, attrs={"axis": axis})
            self.add("Mul", x, hot)
