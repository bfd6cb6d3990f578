"""mindspore.mint where PyTorch's spelling differs from that of `ops` in more than a name: arguments, defaults, results.

mint.max(x)         one number;  mint.max(x, 1): (values, numbers);  mint.max(x, y): the larger elements
mint.cat(xs, dim=1), mint.softmax(x, dim=0), mint.std(x, 1, correction=0)
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from .. import nn, ops
from ..base.checks import checked, choice, flag, integer, misfit, number, text
from ..base.errors import NotBuiltYet, ShapeError, shorten
from ..nn.initializer import Normal
from ..nn.tensor.tensor import Tensor
from ..ops.spellings import comparable, tensor_operand
from ._forms import dropout as drop
from ._functions import in_place_is_refused, norm as typed_norm
from ._numpy_at_once import bincount as count_numbers


def _renamed(name: str, **words: str) -> Callable:
    """`ops.name` with PyTorch's names of arguments. words: theirs -> that of `ops`."""
    function = getattr(ops, name)

    def called(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **{words.get(word, word): value for word, value in kwargs.items()})

    called.__name__ = called.__qualname__ = name
    names = ", ".join(f"{theirs} for {own}" for theirs, own in words.items())
    called.__doc__ = f"`ops.{name}`, with {names}.\n\n    {function.__doc__}"
    return called


cat = concat = _renamed("concat", dim="axis")
stack = _renamed("stack", dim="axis")
split, chunk = _renamed("split", tensor="x", dim="axis"), _renamed("chunk", input="x", dim="axis")
squeeze = _renamed("squeeze", input="x", dim="axis")
flip, tile = _renamed("flip", input="x", dims="axis"), _renamed("tile", input="x", dims="multiples")
roll = _renamed("roll", input="x", shifts="shift", dims="axis")
repeat_interleave = _renamed("repeat_interleave", dim="axis")
cummax, cummin = (_renamed(name, input="x", dim="axis") for name in ("cummax", "cummin"))
scatter = _renamed("scatter", dim="axis")
diff = _renamed("diff", input="x", dim="axis")
glu, softmin = (_renamed(name, input="x", dim="axis") for name in ("glu", "softmin"))
norm = _renamed("norm", input="x", p="ord")
swapaxes = _renamed("swapaxes", input="x")
count_nonzero = _renamed("count_nonzero", input="x")
lerp, mv = _renamed("lerp", input="start"), _renamed("mv", input="mat")
broadcast_to, tensor_split = _renamed("broadcast_to", input="x", size="shape"), _renamed("tensor_split", dim="axis")
take = _renamed("take", input="x", index="indices")
binary_cross_entropy = _renamed("binary_cross_entropy", input="logits", target="labels")


@checked(
    compute_mode=choice("use_mm_for_euclid_dist_if_necessary", "use_mm_for_euclid_dist", "donot_use_mm_for_euclid_dist")
)
def cdist(x1: Any, x2: Any, p: float = 2.0, compute_mode: str = "use_mm_for_euclid_dist_if_necessary") -> Any:
    """`ops.cdist`. compute_mode: how sums of squares would be made; here from the differences, the exact way."""
    return ops.cdist(x1, x2, p)


# ---- dims ----


def meshgrid(*tensors: Any, indexing: str | None = "ij") -> tuple[Any, ...]:
    """Vectors broadcast to a grid.  tensors: (n_i,) each -> as many tensors (n_0, n_1, ...)."""
    return ops.meshgrid(*tensors, indexing="ij" if indexing is None else indexing)


def flatten(input: Any, start_dim: int = 0, end_dim: int = -1) -> Any:
    """The dims from start_dim to end_dim joined.  input: (...) -> (...)."""
    tensor = tensor_operand("flatten", "input", input)
    return (Tensor(tensor) if isinstance(tensor, (np.ndarray, np.generic)) else tensor).flatten(start_dim, end_dim)


def transpose(input: Any, dim0: int, dim1: int) -> Any:
    """Two dims exchanged.  input: (...) -> (...)."""
    return ops.swapaxes(input, dim0, dim1)


def permute(input: Any, dims: Any) -> Any:
    """The dims in another order.  input: (...) -> (...). dims: a tuple of ints."""
    return ops.permute(input, dims)


def select(input: Any, dim: int, index: int) -> Any:
    """What stands at one place of a dim, without that dim.  input: (..., n, ...) -> (...)."""
    return ops.squeeze(ops.narrow(input, dim, index, 1), dim)


def expand_as(input: Any, other: Any) -> Any:
    """`input` stretched to the shape of `other`.  input, other: (...) -> like other."""
    return ops.broadcast_to(input, tuple(tensor_operand("expand_as", "other", other).shape))


def index_add(input: Any, dim: int, index: Any, source: Any, *, alpha: float = 1) -> Any:
    """alpha * source added to the rows (columns, ...) with these numbers.  input: (..., n, ...) -> (..., n, ...)."""
    return ops.index_add(input, index, source if type(alpha) is int and alpha == 1 else ops.mul(source, alpha), dim)


def item(input: Any) -> Any:
    """The single element as a Python number.  input: () or (1, ...)."""
    return Tensor(tensor_operand("item", "input", input)).item()


def empty(*size: Any, dtype: Any = None, device: str | None = None) -> Any:
    """A tensor whose elements may be anything: zeros.  -> `size`, ints or a tuple. device: without effect."""
    shape = size[0] if len(size) == 1 and isinstance(size[0], (tuple, list)) else size
    return ops.zeros(tuple(shape), np.float32 if dtype is None else dtype)


@checked("empty_like", device=text | None, pin_memory=flag)
def empty_like(input: Any, *, dtype: Any = None, device: str | None = None, pin_memory: bool = False) -> Any:
    """`empty` in the shape of a tensor.  input: (...) -> (...). device, pin_memory: without effect."""
    x = tensor_operand("empty_like", "input", input)
    return Tensor(empty(tuple(x.shape), dtype=str(x.dtype) if dtype is None else dtype))


# ---- sums ----


def add(input: Any, other: Any, *, alpha: float = 1) -> Any:
    """input + alpha * other, broadcast."""
    return ops.add(input, other) if type(alpha) is int and alpha == 1 else ops.add_ext(input, other, alpha)


def sub(input: Any, other: Any, *, alpha: float = 1) -> Any:
    """input - alpha * other, broadcast."""
    return ops.sub(input, other) if type(alpha) is int and alpha == 1 else ops.sub_ext(input, other, alpha)


def _cast(input: Any, dtype: Any) -> Any:
    return input if dtype is None else ops.cast(input, dtype)


def cumsum(input: Any, dim: int, dtype: Any = None) -> Any:
    """Sums along `dim` up to each element.  input: (...) -> (...). dtype: that of the sums."""
    return ops.cumsum(_cast(input, dtype), dim)


def _softmax_dim(input: Any, dim: int | None) -> int:
    """`dim`; None: the first of 0, 1 or 3 dims, else the second, as PyTorch's old rule has it."""
    return (0 if len(tensor_operand("softmax", "input", input).shape) in (0, 1, 3) else 1) if dim is None else dim


def softmax(input: Any, dim: int | None = None, dtype: Any = None) -> Any:
    """exp(x) / sum of exp(x) along `dim` (None: 0 of 0, 1 or 3 dims, else 1).  input: (...) -> (...).

    dtype  that of the result
    """
    return ops.softmax(_cast(input, dtype), axis=_softmax_dim(input, dim))


def log_softmax(input: Any, dim: int | None = None, *, dtype: Any = None) -> Any:
    """log(softmax(x)), with `dim` and `dtype` as there.  input: (...) -> (...)."""
    return ops.log_softmax(_cast(input, dtype), axis=_softmax_dim(input, dim))


def logsumexp(input: Any, dim: Any, keepdim: bool = False) -> Any:
    """log of the sum of exp(x) over `dim`.  input: (...) -> (...) without those dims, or with size 1 there."""
    return ops.logsumexp(input, dim, keep_dims=keepdim)


def std(input: Any, dim: Any = None, *, correction: int = 1, keepdim: bool = False) -> Any:
    """Standard deviation; squares are divided by the count less `correction`.  input: (...) -> (...)."""
    return ops.std(input, dim, ddof=correction, keep_dims=keepdim)


def var(input: Any, dim: Any = None, *, correction: int = 1, keepdim: bool = False) -> Any:
    """Variance; squares are divided by the count less `correction`.  input: (...) -> (...)."""
    return ops.var(input, dim, ddof=correction, keep_dims=keepdim)


def std_mean(input: Any, dim: Any = None, *, correction: int = 1, keepdim: bool = False) -> tuple[Any, Any]:
    """Standard deviation, squares divided by the count less `correction`, and mean.  input: (...) -> two (...)."""
    return ops.std_mean(input, dim, correction, keepdim)


def var_mean(input: Any, dim: Any = None, *, correction: int = 1, keepdim: bool = False) -> tuple[Any, Any]:
    """Variance, squares divided by the count less `correction`, and mean.  input: (...) -> two (...)."""
    return ops.var_mean(input, dim, correction, keepdim)


# ---- order ----


def _extreme(name: str, pairs: Callable, along: Callable, all_of: Callable) -> Callable:
    def extreme(input: Any, dim: Any = None, keepdim: bool = False, *, other: Any = None) -> Any:
        flag(f"mint.{name}", "keepdim", keepdim)
        if other is None and (isinstance(dim, (list, np.ndarray)) or hasattr(dim, "dtype")) and comparable(dim):
            other = dim
        if other is not None:
            return pairs(input, other)
        return all_of(input) if dim is None else along(input, integer()(f"mint.{name}", "dim", dim), keepdim)

    extreme.__name__ = extreme.__qualname__ = name
    extreme.__doc__ = f"""Without `dim` the {name} of all elements; along `dim` values and their numbers; of two tensors
    elements, as `{pairs.name}`.  input: (...) -> (), or two (...) without that dim (size 1 if keepdim), or (...).
    """
    return extreme


max = _extreme("max", ops.maximum, ops.max_dim, ops.reduce_max)
min = _extreme("min", ops.minimum, ops.min_dim, ops.reduce_min)


def _place(name: str) -> Callable:
    place = getattr(ops, name)

    def called(input: Any, dim: Any = None, keepdim: bool = False) -> Any:
        flag(f"mint.{name}", "keepdim", keepdim)
        flat = ops.reshape(tensor_operand(name, "input", input), (-1,)) if dim is None else input
        return place(flat, axis=0 if dim is None else dim, output_type="int64", keep_dims=keepdim and dim is not None)

    called.__name__ = called.__qualname__ = name
    called.__doc__ = f"`ops.{name}` along `dim`; None: of all elements, row by row.  input: (...) -> (...) int64."
    return called


argmax, argmin = _place("argmax"), _place("argmin")


def sort(input: Any, *, dim: int = -1, descending: bool = False, stable: bool = False) -> Any:
    """Elements along `dim` in order, equal ones always in theirs, and their numbers.  input: (...) -> two (...)."""
    return ops.sort(input, axis=dim, descending=descending)


def argsort(input: Any, dim: int = -1, descending: bool = False, stable: bool = False) -> Any:
    """The numbers that elements along `dim` have, in order.  input: (...) -> (...)."""
    return ops.argsort(input, dim, descending)


def median(input: Any, dim: Any = None, keepdim: bool = False) -> Any:
    """The middle element, the smaller of two; along `dim` with its number.  input: (...) -> (), or two (...)."""
    x = tensor_operand("median", "input", input)
    keeps, along = flag("mint.median", "keepdim", keepdim), 0 if dim is None else dim
    ordered = ops.sort(ops.reshape(x, (-1,)) if dim is None else x, axis=along)
    size = ordered[0].shape[along] if not isinstance(along, bool) and isinstance(along, int) else 1
    found = [select(part, along, (size - 1) // 2) for part in ordered]
    if dim is None:
        return found[0]
    return tuple(ops.expand_dims(part, along) for part in found) if keeps else tuple(found)


def round(input: Any, *, decimals: int = 0) -> Any:
    """The nearest number with so many decimals, halves to the even one.  input: (...) -> (...)."""
    if not integer()("mint.round", "decimals", decimals):
        return ops.round(input)
    return ops.div(ops.round(ops.mul(input, 10.0**decimals)), 10.0**decimals)


def unique(
    input: Any, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None
) -> Any:
    """The different elements, in order; where each stands, and how many there are.  input: (...) -> (k,), (...), (k,).

    At once only: in a compiled network their count is not known. dim: the different rows (columns, ...) along it
    """
    flags = [("sorted", sorted), ("return_inverse", return_inverse), ("return_counts", return_counts)]
    _, inverse, counts = (flag("mint.unique", name, value) for name, value in flags)
    x = np.asarray(tensor_operand("unique", "input", input))
    axis = None if dim is None else integer(-x.ndim, x.ndim - 1)("mint.unique", "dim", dim)
    found, places, numbers = np.unique(x, return_inverse=True, return_counts=True, axis=axis)
    places = places.reshape(x.shape if axis is None else -1)
    kept = [found, *([places.astype(np.int64)] if inverse else []), *([numbers.astype(np.int64)] if counts else [])]
    return Tensor(found) if len(kept) == 1 else tuple(map(Tensor, kept))


def bincount(input: Any, weights: Any = None, minlength: int = 0) -> Any:
    """How often each number occurs, or the sum of its weights; at once only.  input: (n,) ints -> (largest + 1,)."""
    return count_numbers(input, weights, minlength)


def vector_norm(x: Any, ord: Any = 2, dim: int | None = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    """The norm of vectors along `dim`, None: of all elements.  x: (...) -> (...) without `dim`."""
    only("linalg.vector_norm", dim=(dim, dim if dim is None or isinstance(dim, int) else None))
    given = tensor_operand("vector_norm", "x", x)
    if dim is not None:
        return typed_norm(given, ord, dim, keepdim, dtype=dtype)
    found = typed_norm(ops.reshape(given, (-1,)), ord, 0, dtype=dtype)
    return ops.reshape(found, (1,) * len(given.shape)) if flag("vector_norm", "keepdim", keepdim) else found


def matrix_norm(A: Any, ord: Any = "fro", dim: Any = (-2, -1), keepdim: bool = False, *, dtype: Any = None) -> Any:
    """The norm of matrices, whose dims are `dim`.  A: (...) -> (...) without them."""
    return typed_norm(A, ord, dim, keepdim, dtype=dtype)


# ---- functions of layers ----


def pad(input: Any, pad: Any, mode: str = "constant", value: Any = None) -> Any:
    """`ops.pad`.  input: (...) -> (...). pad: (before, after) of the last dim, then of the one before it, and so on."""
    return ops.pad(input, pad, mode, 0.0 if value is None else value)


def dropout(input: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
    """A share p of the elements set to 0, the others divided by 1 - p.  input: (...) -> (...). inplace: False."""
    in_place_is_refused("mint.nn.functional.dropout", inplace)
    return drop(input, p, training)


def signature_of(**defaults: Any) -> inspect.Signature:
    """The signature of a function with these arguments: `...` stands for no default."""
    kind = inspect.Parameter
    place, none = kind.POSITIONAL_OR_KEYWORD, kind.empty
    return inspect.Signature([kind(n, place, default=none if d is ... else d) for n, d in defaults.items()])


def _with_in_place(name: str, **settings: Any) -> Callable:
    """`ops.name` with a last argument `inplace`, which stays False. settings: its others with their defaults, `...` for
    none.
    """
    function, signature = getattr(ops, name), signature_of(input=..., **settings, inplace=False)

    def called(*args: Any, **kwargs: Any) -> Any:
        try:
            given = signature.bind(*args, **kwargs)
        except TypeError:
            raise misfit(name, signature, args, kwargs) from None  # type: ignore[misc]
        given.apply_defaults()
        in_place_is_refused(f"mint.nn.functional.{name}", given.arguments.pop("inplace"))
        return function(given.arguments.pop("input"), *given.arguments.values())

    called.__name__ = called.__qualname__ = name
    called.__signature__ = signature  # type: ignore[attr-defined]
    called.__doc__ = f"`ops.{name}`; inplace: False.\n\n    {function.__doc__}"
    return called


elu, hardtanh = _with_in_place("elu", alpha=1.0), _with_in_place("hardtanh", min_val=-1.0, max_val=1.0)
relu, relu6, silu = _with_in_place("relu"), _with_in_place("relu6"), _with_in_place("silu")
threshold = _with_in_place("threshold", threshold=..., value=...)


def gelu(input: Any, *, approximate: str = "none") -> Any:
    """`ops.gelu`, by default by the normal distribution itself.  input: (...) -> (...). approximate: "none", "tanh"."""
    return ops.gelu(input, approximate=approximate)


def one_hot(tensor: Any, num_classes: int = -1) -> Any:
    """1 at each class number, 0 elsewhere.  tensor: (...) int -> (..., num_classes) int64; -1: the largest plus 1."""
    found = tensor_operand("one_hot", "tensor", tensor)
    if np.dtype(str(found.dtype)).kind not in "iu":
        raise ShapeError(f"tensor of dtype {found.dtype}", where="one_hot", allowed="Numbers of classes: ints")
    depth = int(np.asarray(found).max(initial=0)) + 1 if type(num_classes) is int and num_classes == -1 else num_classes
    return ops.one_hot(found, depth, np.int64(1), np.int64(0))


def smooth_l1_loss(input: Any, target: Any, reduction: str = "mean", beta: float = 1.0) -> Any:
    """`ops.smooth_l1_loss`, by default its mean.  input, target: (...) -> (), or (...) for reduction="none"."""
    return ops.smooth_l1_loss(input, target, beta, reduction)


def binary_cross_entropy_with_logits(
    input: Any, target: Any, weight: Any = None, reduction: str = "mean", pos_weight: Any = None
) -> Any:
    """`ops.binary_cross_entropy_with_logits`.  input, target: (...) -> (), or (...) for reduction="none"."""
    return ops.binary_cross_entropy_with_logits(input, target, weight, pos_weight, reduction)


def kl_div(input: Any, target: Any, reduction: str = "mean", log_target: bool = False) -> Any:
    """`ops.kl_div`.  input (logarithms), target: (...) -> () or (...). log_target: the targets are logarithms, too."""
    logarithms = flag("mint.nn.functional.kl_div", "log_target", log_target)
    return ops.kl_div(input, ops.exp(target) if logarithms else target, reduction)


# ---- layers ----


class ELU(nn.Cell):
    """x where x > 0, alpha * (exp(x) - 1) elsewhere: operator `elu`.  input: (...) -> (...). inplace: False."""

    @checked(alpha=number())
    def __init__(self, alpha: float = 1.0, inplace: bool = False) -> None:
        super().__init__()
        in_place_is_refused("mint.nn.ELU", inplace)
        self.elu = ops.Elu(alpha=alpha)

    def construct(self, input: Any) -> Any:
        return self.elu(input)


# PyTorch's words of layers -> those of nn
_WORDS = {
    **{"bias": "has_bias", "dim": "axis", "groups": "group", "negative_slope": "alpha"},
    **{"in_features": "in_channels", "out_features": "out_channels"},
}


def only(where: str, **given: tuple[Any, Any]) -> None:
    """Arguments of PyTorch's that keep their default: name=(given, the default)."""
    for name, (value, default) in given.items():
        if value != default or isinstance(value, bool) != isinstance(default, bool):
            raise NotBuiltYet(f"{name}={shorten(value)}", where=where, allowed=repr(default), hint=f"Omit {name}")


def _in_words_of_nn(where: str, given: dict[str, Any]) -> dict[str, Any]:
    """The arguments of nn's layer for those of PyTorch's.

    padding      an int, one per dim, "same" or "valid";  stride: None is the kernel's size;  inplace: False
    momentum     the share of the new batch: 0.1 for MindSpore's 0.9;  track_running_stats: False: the statistics of the
                 batch in evaluation, too
    """
    in_place_is_refused(f"mint.nn.{where}", given.pop("inplace", False))
    only(where, padding_mode=(given.pop("padding_mode", "zeros"), "zeros"))
    only(where, process_group=(given.pop("process_group", None), None))
    if given.get("dtype", ...) is None:
        given["dtype"] = np.float32
    if given.get("stride", ...) is None:
        given["stride"] = given["kernel_size"]
    if "approximate" in given:
        given["approximate"] = choice("none", "tanh")(where, "approximate", given["approximate"]) == "tanh"
    if "momentum" in given:
        given["momentum"] = 1 - number(0, 1)(where, "momentum", given["momentum"])
        tracked = flag(where, "track_running_stats", given.pop("track_running_stats"))
        given["use_batch_statistics"] = None if tracked else True
    if isinstance(padding := given.get("padding"), str):
        given |= {"pad_mode": padding, "padding": 0}
    elif padding is not None:
        sides = "groups" in given and isinstance(padding, (tuple, list))  # convolutions take two numbers per dim
        given |= {"pad_mode": "pad", "padding": tuple(p for p in padding for _ in range(2)) if sides else padding}
    return {_WORDS.get(name, name): value for name, value in given.items()}


def layer(base: type[nn.Cell], name: str = "", /, **defaults: Any) -> type[nn.Cell]:
    """`base` in PyTorch's words. defaults: its arguments in order, `...` for those without."""
    name, signature = name or base.__name__, signature_of(**defaults)

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        if fault := misfit(name, signature, args, kwargs):
            raise fault
        given = signature.bind(*args, **kwargs)
        given.apply_defaults()
        base.__init__(self, **_in_words_of_nn(name, given.arguments))

    __init__.__signature__ = signature_of(self=..., **defaults)  # type: ignore[attr-defined]
    doc = f"`nn.{base.__name__}` in PyTorch's words: {', '.join(defaults)}.\n\n    {base.__doc__}"
    return type(name, (base,), {"__init__": __init__, "__doc__": doc, "__module__": __name__})


GELU = layer(nn.GELU, approximate="none")
LeakyReLU, GLU = layer(nn.LeakyReLU, negative_slope=0.01), layer(nn.GLU, dim=-1)
SmoothL1Loss = layer(nn.SmoothL1Loss, reduction="mean", beta=1.0)
BCEWithLogitsLoss = layer(nn.BCEWithLogitsLoss, weight=None, reduction="mean", pos_weight=None)
_INIT = {"weight_init": None, "bias_init": None, "dtype": None}
Linear = layer(nn.Dense, "Linear", in_features=..., out_features=..., bias=True, **_INIT)
Dropout, ReLU6, SiLU = layer(nn.Dropout, p=0.5, inplace=False), *(layer(n, inplace=False) for n in (nn.ReLU6, nn.SiLU))
Hardtanh = layer(nn.Hardtanh, min_val=-1, max_val=1, inplace=False)
Threshold = layer(nn.Threshold, threshold=..., value=..., inplace=False)
_SIZES = {"in_channels": ..., "out_channels": ..., "kernel_size": ..., "stride": 1, "padding": 0}
_KERNELS = {**_SIZES, "dilation": 1, "groups": 1, "bias": True, "padding_mode": "zeros", "dtype": None}
Conv2d, Conv3d = layer(nn.Conv2d, **_KERNELS), layer(nn.Conv3d, **_KERNELS)
_BACK = {
    **_SIZES,
    "output_padding": 0,
    "groups": 1,
    "bias": True,
    "dilation": 1,
    "padding_mode": "zeros",
    "dtype": None,
}
ConvTranspose2d = layer(nn.Conv2dTranspose, "ConvTranspose2d", **_BACK)
_WINDOW = {"stride": None, "padding": 0}
MaxPool2d = layer(nn.MaxPool2d, kernel_size=1, **_WINDOW, dilation=1, return_indices=False, ceil_mode=False)
_MEANS = {"kernel_size": ..., **_WINDOW, "ceil_mode": False, "count_include_pad": True, "divisor_override": None}
AvgPool2d, AvgPool3d = layer(nn.AvgPool2d, **_MEANS), layer(nn.AvgPool3d, **_MEANS)
_NORM = {"num_features": ..., "eps": 1e-5, "momentum": 0.1, "affine": True, "track_running_stats": True}
BatchNorm1d, BatchNorm2d, BatchNorm3d = (
    layer(base, **_NORM, dtype=None) for base in (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
)
SyncBatchNorm = layer(nn.SyncBatchNorm, **_NORM, process_group=None, dtype=None)
GroupNorm = layer(nn.GroupNorm, num_groups=..., num_channels=..., eps=1e-5, affine=True, dtype=None)


class Embedding(nn.Cell):
    """Rows of a trained table `weight`, in PyTorch's words.  input: (...) int -> (..., embedding_dim).

    padding_idx  number of a row that begins as zeros and gets no gradient
    _weight      first values; None: N(0, 1);  _freeze: the table is not trained;  sparse: kept, gradients are dense
    max_norm, norm_type, scale_grad_by_freq   stay at their defaults, as `ops.embedding` says

    Operator: `embedding` (Embedding), strategy ((one count per dim of input), (rows, columns)).
    """

    @checked(
        num_embeddings=integer(1),
        embedding_dim=integer(1),
        max_norm=number(0, above=True) | None,
        norm_type=number(),
        **dict.fromkeys(("scale_grad_by_freq", "sparse", "_freeze"), flag),
    )
    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
        _weight: Any = None,
        _freeze: bool = False,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        check = (integer(-num_embeddings, num_embeddings - 1) | None)("Embedding", "padding_idx", padding_idx)
        zeros = None if check is None or _weight is not None else check % num_embeddings
        first, dtype = Normal(1.0) if _weight is None else _weight, np.float32 if dtype is None else dtype
        table = nn.Embedding(num_embeddings, embedding_dim, False, first, dtype, zeros).embedding_table
        table.name, table.requires_grad = "weight", not _freeze
        self.weight, self.embedding = table, ops.Embedding()
        self.arguments = (padding_idx, max_norm, norm_type, scale_grad_by_freq)

    def construct(self, input: Any) -> Any:
        return self.embedding(input, self.weight, *self.arguments)


class _Softmax(nn.Softmax):
    @checked(dim=integer() | None)
    def __init__(self, dim: int | None = None) -> None:
        super().__init__(-1 if dim is None else dim)
        self.dim = dim

    def construct(self, x: Any) -> Any:
        getattr(self, self.operator.op.name).given["axis"] = _softmax_dim(x, self.dim)
        return super().construct(x)


class Softmax(_Softmax):
    """`mint.nn.functional.softmax` as a layer: operator `softmax`.  x: (...) -> (...)."""


class LogSoftmax(_Softmax):
    """`mint.nn.functional.log_softmax` as a layer: operator `log_softmax`.  x: (...) -> (...)."""

    operator = ops.LogSoftmax
