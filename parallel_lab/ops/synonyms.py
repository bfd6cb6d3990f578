"""Names of arguments that mean the same, in MindSpore's functions and classes and in this package's."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

# what MindSpore's functions, methods and classes, old and new, call the same argument
_SYNONYMS = [
    frozenset(names.split())
    for names in (
        "x input input_x tensor a",
        "y other input_y exponent mat2 b",
        "axis dim",
        "keep_dims keepdims keepdim",
        "multiples dims",
        "perm input_perm",
        "shift shifts",
        "logits input inputs",
        "label target",
        "gamma weight",
        "beta bias",
        "index indices",
        "size shape",
        "rate mean",
        "tensors inputs",
        "x A",
        "x logits",
        "x image",
        "x value",
        "x x1",
        "y x2",
        "y values",
        "x1 input",
        "x2 other",
        "first tensor1 x1",
        "second tensor2 x2",
        "start input",
        "input dividend",
        "other divisor",
        "mat input",
        "q other",
        "b bias",
        "labels target",
        "logits prediction",
        "pos_weight posWeight",
        "input_x data",
        "input_data input_x x",
        "box_index box_indices",
        "threshold thr",
        "axis dims",
        "perm dims",
        "split_sizes split_size",
        "reduction reduce",
        "tensors x",
        "type dtype",
        "shape dims",
        "num steps",
        "stop end",
    )
]


def own_names(given: dict[str, Any], known: Sequence[str], taken: Collection[str] = ()) -> dict[str, Any]:
    """`given`, with names of `known` for others that mean the same: {"input": x} is {"x": x} where there is an x."""

    def own(name: str) -> str:
        if name in known:
            return name
        alike = list({k for group in _SYNONYMS if name in group for k in group if k in known})
        return alike[0] if len(alike) == 1 and alike[0] not in given and alike[0] not in taken else name

    return {own(name): value for name, value in given.items()}
