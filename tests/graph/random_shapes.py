"""Random operators, second family: those that rename, move, join, split, order and pick elements."""

from __future__ import annotations

import numpy as np

from parallel_lab import Tensor, ops
from tests.graph.random_drawer import MANY, CheckedDrawer, distinct


class ShapeKinds(CheckedDrawer):
    """Each method appends an operator or a few that belong together, or none if the values at hand do not allow it."""

    def axis_of(self, array):
        return self.choices.below(array.ndim) - (array.ndim if self.chance(0.3) else 0)

    def more_dims(self):
        x, array = self.some()
        if array.ndim < 4:
            self.add("ExpandDims", x, self.choices.below(array.ndim + 1))

    def fewer_dims(self):
        x, array = self.some()
        ones = [i for i, n in enumerate(array.shape) if n == 1]
        if ones:
            self.add("Squeeze", x, attrs={"axis": self.pick(((), (self.pick(ones),)))})

    def broadcast(self):
        x, array = self.some()
        if array.size > MANY // 4:
            return
        shape = tuple(self.pick((2, 4)) if n == 1 else -1 if self.chance(0.3) else n for n in array.shape)
        if array.ndim < 4 and self.chance(0.5):
            shape = (self.pick((2, 3, 4)), *shape)
        self.add("BroadcastTo", x, attrs={"shape": shape})

    def repeated(self):
        x, array = self.some()
        if array.ndim and array.size <= MANY // 4:
            multiples = [1] * array.ndim
            multiples[self.choices.below(array.ndim)] = self.pick((2, 3))
            self.add("Tile", x, (2, *multiples) if array.ndim < 4 and self.chance(0.2) else tuple(multiples))

    def joined(self):
        x, array = self.some()
        if not array.ndim or array.size > MANY // 2:
            return
        others = [r for r in self.refs() if self.shape_of(r) == array.shape]
        if self.chance(0.4) and array.ndim < 4:
            axis = self.choices.below(array.ndim + 1)
            other = self.pick(others) if self.chance(0.5) else self.parameter(array.shape)
            self.add("Stack", x, other, attrs={"axis": axis})
            return
        axis = self.axis_of(array)
        shape = list(array.shape)
        shape[axis] = self.pick((shape[axis], 1, 2, 4))
        inputs = [x, self.parameter(tuple(shape))]
        if self.chance(0.3):
            inputs.append(self.pick(others))
        self.add("Concat", *(inputs if self.chance(0.7) else inputs[::-1]), attrs={"axis": axis})

    def parted(self):
        """Split or unstack; the parts may be joined again."""
        x, array = self.some()
        axes = [i for i, n in enumerate(array.shape) if 1 < n <= 8]
        if not axes:
            return
        axis = self.pick(axes)
        n = array.shape[axis]
        if self.chance(0.3):
            parts = self.add("Unstack", x, attrs={"axis": axis})
        elif self.chance(0.4):
            first = 1 + self.choices.below(n - 1)
            parts = self.add("Split", x, attrs={"axis": axis, "sizes": (first, n - first)})
        else:
            count = self.pick([d for d in range(2, n + 1) if n % d == 0])
            parts = self.add("Split", x, attrs={"axis": axis, "output_num": count})
        if self.shape_of(parts[0]) == self.shape_of(parts[-1]) and self.chance(0.6):
            self.combined(parts[0], parts[-1])

    def padded(self):
        x, array = self.some()
        if not array.ndim or array.size > MANY // 4:
            return
        mode = self.pick(("constant", "constant", "reflect", "symmetric", "replicate", "circular"))
        axis = self.choices.below(array.ndim)
        most = min(3, array.shape[axis] - (mode == "reflect"))
        pads = [(0, 0)] * array.ndim
        pads[axis] = (self.choices.below(most + 1), self.choices.below(most + 1))
        attrs = {"paddings": tuple(pads), "mode": mode} | ({"value": 0.3} if mode == "constant" else {})
        self.add("Pad", x, attrs=attrs)

    def turned(self):
        x, array = self.some()
        if array.ndim and self.chance(0.5):
            axes = self.choices.order(array.ndim)[: 1 + self.choices.below(array.ndim)]
            self.add("ReverseV2", x, attrs={"axis": axes})
        elif array.ndim:
            self.add("Roll", x, attrs={"shift": self.choices.below(9) - 4, "axis": self.axis_of(array)})

    def slice(self):
        x, array = self.some()
        if not array.ndim:
            return
        begin, end, strides = [], [], []
        for n in array.shape:
            if self.chance(0.5):
                begin.append(0), end.append(n), strides.append(1)
            elif self.chance(0.3):
                begin.append(n - 1), end.append(-n - 1), strides.append(-self.pick((1, 2)))
            else:
                first = self.choices.below(n)
                begin.append(first), end.append(first + 1 + self.choices.below(n - first))
                strides.append(self.pick((1, 2)))
        self.add("StridedSlice", x, tuple(begin), tuple(end), tuple(strides))

    def indexed(self):
        """Python's x[...]."""
        x, array = self.some()
        if not array.ndim:
            return
        n, last = array.shape[0], array.shape[-1]
        rows = self.choices.ints(n, (self.pick((1, 2, 4)),))
        keys = [slice(None, None, -1), (..., None), -1, (slice(n // 2, None), ...), (..., last // 2)]
        keys += [rows, rows.tolist(), (rows, ...)]
        if array.ndim > 1:
            keys += [(rows, self.choices.ints(array.shape[1], rows.shape)), (slice(None), rows % array.shape[1])]
            keys += [(None, 0, slice(0, 1))]
        key = self.pick(keys)

        def taken(v):
            return np.array(ops.getitem(v, key), order="C") if isinstance(v, np.ndarray) else v[key]

        self.call(f"[{key!r}]", taken, x)

    def triangle(self):
        x, array = self.some()
        if array.ndim >= 2:
            self.add(self.pick(("Tril", "Triu")), x, attrs={"diagonal": self.choices.below(5) - 2})

    # ---- order and running sums ----

    def running_sum(self):
        x, array = self.some()
        if array.ndim:
            axis, exclusive, reverse = self.axis_of(array), self.chance(0.3), self.chance(0.3)
            self.add("CumSum", x, axis, attrs={"exclusive": exclusive, "reverse": reverse})

    def ordered(self):
        x, array = self.some()
        if not array.ndim or not distinct(array):
            return
        if self.chance(0.5):
            self.add("TopK", x, 1 + self.choices.below(array.shape[-1]))
        else:
            self.add("Sort", x, attrs={"axis": self.axis_of(array), "descending": self.chance(0.5)})

    # ---- by number ----

    def embedded(self):
        """x + rows of a table, one row per place of x."""
        x, array = self.some()
        if not array.ndim:
            return
        rows = self.pick((4, 8, 16))
        table = self.parameter((rows, array.shape[-1]))
        indices = self.numbers(rows, array.shape[:-1])
        if self.chance(0.3) and array.ndim > 1:
            found = self.add("EmbeddingLookup", table, indices, self.pick((0, 2)))
        else:
            found = self.add("Gather", table, indices, 0)
        self.add("Add", x, found)

    def gathered(self):
        x, array = self.some()
        if not array.ndim or array.size > MANY // 4:
            return
        axis = self.axis_of(array)
        if self.chance(0.3):
            shape = list(array.shape)
            shape[axis] = self.pick((1, 2, 4))
            self.add("GatherD", x, axis, self.numbers(array.shape[axis], tuple(shape)))
        elif array.ndim < 4:
            self.add("Gather", x, self.numbers(array.shape[axis], self.pick(((2,), (4,), (8,), (4, 2)))), axis)

    def summed_by_number(self):
        x, array = self.some()
        if array.ndim:
            segments = self.pick((2, 3, 5))
            # one number too many: those are left out
            ids = self.numbers(segments + 1, array.shape[: 1 + self.choices.below(array.ndim)])
            self.add("UnsortedSegmentSum", x, ids, segments)

    def hot(self):
        """One-hot rows as a factor."""
        x, array = self.some()
        if 0 < array.ndim < 4:
            on, off = Tensor(1.5, np.float64), Tensor(-0.5, np.float64)
            hot = self.add("OneHot", self.numbers(array.shape[-1], array.shape[:-1]), array.shape[-1], on, off)
            self.add("Mul", x, hot)
