"""A sliding weighted sum over the last two dims, registered for a test only: the smallest operator with windows.

out[n, y, x] = sum over i, j of  k[i, j] * a[n, y * stride + i - before, x * stride + j - before]
"""

from __future__ import annotations

import numpy as np

from parallel_lab.ops.machine.legal_strategies import _legal
from parallel_lab.ops.machine.registry import OPS, PRIMITIVES, op
from parallel_lab.ops.machine.sharding import _rule

NAMES = ("stencil", "stencil_grad_a", "stencil_grad_k")


def _count(size, kernel, stride, pads):
    return (size + sum(pads) - kernel) // stride + 1


def _terms(a, k, stride, pads):
    """(i, j, view of the padded a that k[i, j] is multiplied with) and the padded a."""
    wide = np.pad(a, ((0, 0), *pads))
    height, width = (_count(a.shape[d + 1], k.shape[d], stride, pads[d]) for d in (0, 1))
    rows, cols = (height - 1) * stride + 1, (width - 1) * stride + 1
    return wide, [
        ((i, j), (slice(None), slice(i, i + rows, stride), slice(j, j + cols, stride)))
        for i in range(k.shape[0])
        for j in range(k.shape[1])
    ]


def register() -> None:
    """Declare the operators."""

    def windows(extents, parts, *, stride, pads):
        made = {}
        for label, kernel, (before, after) in (("h", extents["y"], pads[0]), ("w", extents["x"], pads[1])):
            count = _count(extents[label], kernel, stride, (before, after)) // parts[label]
            if parts[label] > 1 and (kernel > stride or before):
                made[label] = (count * stride, -before, (count - 1) * stride + kernel)
        return made

    def local(attrs, parts):
        return {
            **attrs,
            "pads": tuple((0, 0) if parts[label] > 1 else p for label, p in zip("hw", attrs["pads"], strict=True)),
        }

    def sizes(shapes, *, stride, pads):
        return {label: _count(shapes[0][d + 1], shapes[1][d], stride, pads[d]) for d, label in enumerate("hw")}

    @op("nhw,yx->nhw", name="Stencil", whole="yx", window=windows, localize=local, out_sizes=sizes)
    def stencil(a, k, *, stride=1, pads=((0, 0), (0, 0))):
        wide, terms = _terms(a, k, stride, pads)
        return sum(k[at] * wide[view] for at, view in terms)

    @op(result_shape=lambda shapes, *, stride, pads: shapes[1])
    def stencil_grad_a(g, a, k, *, stride, pads):
        wide, terms = _terms(a, k, stride, pads)
        grad = np.zeros_like(wide)
        for at, view in terms:
            grad[view] += g * k[at]
        (top, _), (left, _) = pads
        return grad[:, top : top + a.shape[1], left : left + a.shape[2]]

    @op(result_shape=lambda shapes, *, stride, pads: shapes[2])
    def stencil_grad_k(g, a, k, *, stride, pads):
        wide, terms = _terms(a, k, stride, pads)
        grad = np.zeros_like(k)
        for at, view in terms:
            grad[at] = (wide[view] * g).sum()
        return grad

    @stencil.vjp
    def _(g, out, a, k, *, stride, pads):
        return stencil_grad_a(g, a, k, stride=stride, pads=pads), stencil_grad_k(g, a, k, stride=stride, pads=pads)


def forget() -> None:
    """Leave the registry as it was."""
    for name in NAMES:
        OPS.pop(name, None)
    PRIMITIVES.pop("Stencil", None)
    _rule.cache_clear()
    _legal.cache_clear()
