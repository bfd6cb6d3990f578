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
    )
]


def own_names(given: dict[str, Any], known: Sequence[str], taken: Collection[str] = ()) -> dict[str, Any]:
    """`given`, with names of `known` for others that mean the same: {"input": x} is {"x": x} where there is an x."""

    def own(name: str) -> str:
        if name in known:
            return name
        alike = [k for group in _SYNONYMS if name in group for k in group if k in known]
        return alike[0] if len(alike) == 1 and alike[0] not in given and alike[0] not in taken else name

    return {own(name): value for name, value in given.items()}
