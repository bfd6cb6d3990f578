"""Classes of operators that MindSpore calls in another way: for pictures, elements, dropout, parts of several sizes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import ops
from ..base import seeds
from ..base.checks import checked, choice, fitting, function, instance, integer, number, text
from ..base.errors import ArgumentError, ArgumentTypeError, ShapeError, StrategyError, shorten
from ..base.hooks import current_tracer
from ..base.settings.checks import SHARDED_MODES
from ..layout.named_layout import Layout
from ..nn.cell import Cell
from ..nn.tensor.tensor import Tensor
from ..ops.machine.primitive import WithoutStrategy, check_strategy_value
from ..ops.spellings import tensor_operand
from ..train.communication import get_group_size, get_rank
from ..train.reshard import reshard
from ._comm_func import _SUM, _tensor
from ._forms import AlltoAllV, Dropout
from ._functions import scatter_nd

_MAYBE = function("A function") | None

# ---- pictures ----


class ResizeBilinear(ops.ResizeBilinear):
    """`ResizeBilinear(size, align_corners, half_pixel_centers)(x)`.  x: (n, c, h, w) -> (n, c, *size). The width may be
    split: ranks borrow columns of their neighbours.
    """

    @fitting
    def __init__(self, size: Any, align_corners: bool = False, half_pixel_centers: bool = False) -> None:
        super().__init__(size=size, align_corners=align_corners, half_pixel_centers=half_pixel_centers)

    def __call__(self, x: Any) -> Any:
        self.given["width"] = (tensor_operand(self.name, "x", x).shape or (None,))[-1]
        return super().__call__(x)


class ResizeBilinearV2(ResizeBilinear):
    """`ResizeBilinearV2(align_corners, half_pixel_centers)(image, size)`.  image: (n, c, h, w) -> (n, c, *size)."""

    @fitting
    def __init__(self, align_corners: bool = False, half_pixel_centers: bool = False) -> None:
        super().__init__((1, 1), align_corners, half_pixel_centers)

    def __call__(self, image: Any, size: Any) -> Any:
        self.given["size"] = tuple(size.asnumpy().tolist()) if hasattr(size, "asnumpy") else size
        return super().__call__(image)


# ---- elements of a vector ----


class Unique(ops.Unique):
    """`Unique()(x)`: the different elements of x as they first appear, and the number of each.  x: (n,) -> (m,), (n,).

    In a compiled network m is n, and the last different element fills it.
    """

    @fitting
    def __init__(self) -> None:
        super().__init__()

    def __call__(self, x: Any) -> Any:
        self.given["filled"] = current_tracer.get() is not None
        return super().__call__(x)


class ScatterNd(WithoutStrategy):
    """`ScatterNd()(indices, updates, shape)`: zeros of `shape` with `updates` added at `indices`."""

    why = "it makes its zeros from a shape; a TensorScatterAdd of zeros takes a strategy"

    def __call__(self, indices: Any, updates: Any, shape: Any) -> Any:
        return scatter_nd(indices, updates, shape)


class InvertPermutation(ops.InvertPermutation):
    """`InvertPermutation()(input_x)`: where each number stands in a tuple of ints.  (n ints) -> (n ints)."""

    def __call__(self, input_x: Any) -> Any:
        if not isinstance(input_x, (tuple, list)):
            return super().__call__(input_x)
        given = np.asarray([integer()(self.name, "input_x", each) for each in input_x])
        return tuple(ops.OPS["invert_permutation"](given).tolist())


# ---- numbers ----

FIRST_OF_THREE = -65530  # MindSpore's number for "the first dim with 3 elements"


class Cross(ops.Cross):
    """`Cross(dim)(input, other)`: vector products along `dim`; -65530: the first dim with 3 elements.

    input, other: (..., 3, ...) -> (..., 3, ...)
    """

    @fitting
    def __init__(self, dim: int = FIRST_OF_THREE) -> None:
        super().__init__(dim=dim)

    def __call__(self, *args: Any, **named: Any) -> Any:
        whole = {**self.given}
        shape = tuple(getattr(next(iter((*args, *named.values())), None), "shape", ()))
        if whole["dim"] == FIRST_OF_THREE:
            self.given = {"dim": shape.index(3) if 3 in shape else -1}
        try:
            return super().__call__(*args, **named)
        finally:
            self.given = whole


class Round(ops.Round):
    """`Round()(input, decimals)`: the nearest number with so many decimals, halves to the even one."""

    def __call__(self, input: Any, decimals: int = 0) -> Any:
        if not integer()("Round", "decimals", decimals):
            return super().__call__(input)
        return ops.div(super().__call__(ops.mul(input, 10.0**decimals)), 10.0**decimals)


class GroupNorm(ops.GroupNorm):
    """`GroupNorm()(input, num_groups, weight, bias, eps)`: see `mint.nn.functional.group_norm`."""

    @fitting
    def __init__(self) -> None:
        super().__init__()

    def __call__(self, input: Any, num_groups: int, weight: Any, bias: Any, eps: float = 1e-5) -> Any:
        self.given = {"num_groups": num_groups, "epsilon": eps}
        return super().__call__(input, weight, bias)


class Morph(WithoutStrategy):
    """`Morph(fn, infer_shape, infer_dtype)(*args)`: fn(*args); in a compiled network its operators stand where it is
    called. infer_shape, infer_dtype: functions of shapes and dtypes, which say what fn gives.

    bprop_fn  its gradients: bprop_fn(*args, out, dout) -> one per argument

    With `add_prim_attr("self_define_shard", True)` it takes layouts: its tensors are brought there before and behind
    it, and fn is traced on whole tensors.
    """

    why = "the operators of its function take strategies; it takes layouts with self_define_shard"

    @checked(**dict.fromkeys(("fn", "infer_shape", "infer_dtype"), function("A function")), bprop_fn=_MAYBE)
    def __init__(self, fn: Any, infer_shape: Any, infer_dtype: Any, bprop_fn: Any = None) -> None:
        super().__init__()
        self.fn, self.infer_shape = fn, infer_shape
        if bprop_fn is not None:
            parts = {"construct": lambda _, *args: fn(*args), "bprop": lambda _, *args: bprop_fn(*args)}
            self.fn = type(self.name, (Cell,), parts)()

    def shard(self, in_strategy: Any = None, out_strategy: Any = None) -> Morph:
        """Layouts of its tensors and of what it gives, with `self_define_shard`. Returns self."""
        if self.prim_attrs.get("self_define_shard") is not True:
            super().shard(in_strategy, out_strategy)
            return self
        for name, given in (("strategy", in_strategy), ("out_strategy", out_strategy)):
            layouts = check_strategy_value(given, f"{self.name} shard", name)
            if not all(isinstance(layout, Layout) for layout in layouts):
                allowed = "Layouts: one per tensor it is given, and one per tensor it gives"
                raise StrategyError(f"{name} {shorten(given)}", where=f"{self.name} shard", allowed=allowed)
        self.in_strategy, self.out_strategy = in_strategy, out_strategy
        return self

    def _placed(self, tensors: tuple[Any, ...], layouts: tuple[Any, ...] | None, what: str) -> tuple[Any, ...]:
        split = getattr(current_tracer.get(), "parallel_mode", "stand_alone") in (None, *SHARDED_MODES)
        if layouts is None or not split:
            return tensors
        count = sum(hasattr(x, "shape") for x in tensors)
        if count != len(layouts):
            raise StrategyError(f"{len(layouts)} layouts for {count} {what}", where=self.name, allowed="One for each")
        rest = iter(layouts)
        return tuple(reshard(x, next(rest)) if hasattr(x, "shape") else x for x in tensors)

    def __call__(self, *args: Any) -> Any:
        made = self.fn(*self._placed(args, self.in_strategy, "tensors it is given"))
        said = self.infer_shape(*[list(getattr(x, "shape", ())) for x in args])
        if hasattr(made, "shape") and tuple(made.shape) != tuple(said):
            raise ShapeError(
                f"fn gives shape {tuple(made.shape)}", where=self.name, allowed=f"{tuple(said)}, as inferred"
            )
        several = isinstance(made, tuple)
        placed = self._placed(made if several else (made,), self.out_strategy, "tensors it gives")
        return placed if several else placed[0]


# ---- summaries ----


class ScalarSummary(WithoutStrategy):
    """`ScalarSummary()(name, value)`: a value of a network by name, for files that MindInsight shows. Its arguments are
    checked; nothing is written here. `train.SummaryCollector` writes the loss.
    """

    why = "it reads the tensor as it is"
    dims, allowed = (0, 1), "No dim, or one of a single element"

    @fitting
    def __init__(self) -> None:
        super().__init__()

    def __call__(self, name: str, value: Any) -> None:
        text(self.name, "name", name)
        shape = tuple(tensor_operand(self.name, "value", value).shape)
        if len(shape) not in self.dims or self.dims == (0, 1) and shape not in ((), (1,)):
            raise ShapeError(f"value of shape {shape}", where=self.name, allowed=self.allowed)


class ImageSummary(ScalarSummary):
    """`ImageSummary()(name, value)`.  value: (n, c, h, w). See `ScalarSummary`."""

    dims, allowed = (4,), "4 dims: (n, c, h, w)"


class TensorSummary(ScalarSummary):
    """`TensorSummary()(name, value)`.  value: at least one dim. See `ScalarSummary`."""

    dims, allowed = range(1, 9), "1 to 8 dims"


class HistogramSummary(TensorSummary):
    """`HistogramSummary()(name, value)`.  value: at least one dim. See `ScalarSummary`."""


class TensorDump(WithoutStrategy):
    """`TensorDump()(file, input_x)`: a tensor that is computed at once is saved as FILE_DTYPE_N.npy, N from 0 on.

    A compiled network saves nothing: `ops.Print` shows the slices of every rank. input_output: accepted.
    """

    why = "it saves the tensor as it is"

    @checked(input_output=choice("in", "out", "all"))
    def __init__(self, input_output: str = "out") -> None:
        super().__init__()
        self._saved = 0

    def __call__(self, file: str, input_x: Any) -> None:
        x, name = tensor_operand(self.name, "input_x", input_x), text(self.name, "file", file).removesuffix(".npy")
        if current_tracer.get() is None:
            np.save(f"{name}_{x.dtype}_{self._saved}.npy", x.asnumpy())
            self._saved += 1


# ---- dropout ----


class _Channels(Dropout):
    """Whole channels, which are dims 0 and 1, are kept or dropped."""

    @fitting
    def __init__(self, keep_prob: float = 0.5) -> None:
        super().__init__(keep_prob)
        self.given["dims"] = 2


class Dropout2D(_Channels):
    """`Dropout2D(keep_prob)(x)`: (x with whole channels set to 0, None).  x: (n, c, h, w). See `Dropout`."""


class Dropout3D(_Channels):
    """`Dropout3D(keep_prob)(x)`: (x with whole channels set to 0, None).  x: (n, c, d, h, w). See `Dropout`."""


@dataclass(frozen=True)
class DropoutMask:
    """What a DropoutGenMask gives: not the bits, but what DropoutDoMask makes them from."""

    shape: tuple[int, ...]
    keep_prob: float
    key: int
    step: Any


def _keep_prob(where: str, value: Any) -> float:
    given = float(value.asnumpy()) if hasattr(value, "asnumpy") and not hasattr(value, "tracer") else value
    return number(0, 1, above=True)(where, "keep_prob", given)


class DropoutGenMask(WithoutStrategy):
    """`DropoutGenMask(Seed0, Seed1)(shape, keep_prob)`: the mask for a DropoutDoMask. It takes no strategy: every rank
    makes the bits of its own slice.
    """

    why = "the strategy is that of the DropoutDoMask behind it"

    @checked(Seed0=integer(0), Seed1=integer(0))
    def __init__(self, Seed0: int = 0, Seed1: int = 0) -> None:
        super().__init__({"Seed0": Seed0, "Seed1": Seed1})
        self._seeds, self._number, self._calls = (Seed0, Seed1), seeds.next_draw(), ops.StepCalls()

    def __call__(self, shape: Any, keep_prob: Any) -> DropoutMask:
        step, again = self._calls.next()
        key = ops.dropout_key(seeds.get_seed(), self.name, self._number, *self._seeds, again)
        return DropoutMask(tuple(shape), _keep_prob(self.name, keep_prob), key, step)


class DropoutDoMask(ops.Dropout):
    """`DropoutDoMask()(x, mask, keep_prob)`: x over keep_prob where a DropoutGenMask keeps it, else 0.

    x: (...) -> (...). The strategy has one tuple, for x.
    """

    @fitting
    def __init__(self) -> None:
        super().__init__()

    def __call__(self, x: Any, mask: Any, keep_prob: Any) -> Any:
        if not isinstance(mask, DropoutMask):
            allowed = "What a DropoutGenMask gives, for the shape of x"
            raise ArgumentTypeError(f"mask is {shorten(mask)}", where=self.name, allowed=allowed)
        keep = _keep_prob(self.name, keep_prob)
        if keep == 1:
            return x
        self.given.update(p=1 - keep, key=mask.key)
        return super().__call__(x, mask.step)


def print_(*input_x: Any) -> Any:
    """Print texts and tensors, one line each. Returns the last."""
    return ops.Print()(*input_x)


# ---- parts of different sizes, as operators ----


class AllGatherV(WithoutStrategy):
    """`AllGatherV(group)(x, output_split_sizes)`: the elements of all ranks.  x: (k,), of each rank another count."""

    @fitting
    def __init__(self, group: str | None = None) -> None:
        super().__init__()
        self.group = group

    def __call__(self, x: Any, output_split_sizes: Any) -> Any:
        sizes = _sizes(self.name, "output_split_sizes", output_split_sizes, get_group_size(self.group))
        own = int(_tensor(self.name, x).size)
        if sizes[get_rank(self.group)] != own or len(x.shape) != 1:
            what = f"x of shape {tuple(x.shape)} with output_split_sizes={sizes}"
            raise ShapeError(what, where=self.name, allowed="(k,), with the count at this rank's place")
        return AlltoAllV(self.group)(ops.concat([x] * len(sizes), 0), [own] * len(sizes), sizes)


class ReduceScatterV(WithoutStrategy):
    """`ReduceScatterV(op, group)(x, input_split_sizes)`: this rank's part of the combination.  x: (sum of sizes,)."""

    @fitting
    def __init__(self, op: str = _SUM, group: str | None = None) -> None:
        super().__init__()
        self.op, self.group = op, group

    def __call__(self, x: Any, input_split_sizes: Any) -> Any:
        sizes = _sizes(self.name, "input_split_sizes", input_split_sizes, get_group_size(self.group))
        if tuple(_tensor(self.name, x).shape) != (sum(sizes),):
            what = f"x of shape {tuple(x.shape)} with input_split_sizes={sizes}"
            raise ShapeError(what, where=self.name, allowed=f"({sum(sizes)},)")
        rank = get_rank(self.group)
        return ops.AllReduce(self.op, self.group)(x)[sum(sizes[:rank]) : sum(sizes[: rank + 1])]


def _sizes(where: str, name: str, sizes: Any, ranks: int) -> list[int]:
    sizes = sizes.asnumpy().tolist() if isinstance(sizes, Tensor) else sizes
    sizes = [integer(0)(where, name, n) for n in instance((list, tuple), "A list of ints")(where, name, sizes)]
    if len(sizes) != ranks:
        raise ArgumentError(f"{name}={sizes}", where=where, allowed=f"{ranks} ints, one per rank of the group")
    return sizes
