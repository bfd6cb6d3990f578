"""Lesson 05: slicing one product."""

from __future__ import annotations

from typing import Any

import numpy as np

from ... import nn
from ...cost.time import sent_bytes
from ...graph.compiler import compile_network
from ...layout.named_layout import Layout
from ...run.communicator import Request
from ..exercises import check, hint, par
from ..exercises.lesson_05 import LARGE, STRATEGIES
from ..exercises.one_product import Product, arrays, counts, pair, side_by_side
from ..shared.prediction import Comparison
from .predictions import Answers

__all__ = ["LARGE", "STRATEGIES", "Product", "Request", "check", "compare", "hint", "in_three_dims", "par", "prove"]
__all__ += ["side_by_side"]


def compare(prediction: dict[str, Any], *, show: bool = False) -> Comparison:
    """The answers next to the compiled product, and next to arrays on eight simulated ranks."""
    found = Product(pair(2, 4, 1))
    return Answers("05", prediction, show).next_to(
        x=(found.slices[0], lambda: found.held_arrays()["x"][5].shape, "16 rows by 2, 32 columns by 4"),
        result=(
            *(found.slices[2], lambda: found.held_arrays()["result"][5].shape),
            "k is gone: splitting it makes the result no smaller",
        ),
        group=(found.group(5), None, "k is the last axis, so neighbours split it: ranks 4 to 7 have the same rows"),
        sent=(2 * 3 * 8 * 16 // 4, found.sent_elements, "an all_reduce sends 2 (p - 1)/p of the array: 2 x 3/4 x 128"),
    )


def prove() -> str:
    """Every strategy on 8 simulated ranks, and one on real processes, next to numpy's product, bit for bit."""
    x, w = arrays()
    tried = [pair(*each) for each in counts()]
    equal = sum(bool((Product(strategy).run() == x @ w).all()) for strategy in tried)
    real = bool((Product(pair(2, 4, 1)).run("processes") == x @ w).all())
    text = f"{equal} of {len(tried)} strategies on 8 simulated ranks give the bits of x @ w"
    return f"{text}; on 8 real processes ((2, 4), (4, 1)) {'does' if real else 'does NOT'}."


def in_three_dims(m: int, k: int, n: int, p: int, q: int, r: int) -> list[tuple[str, int, int]]:
    """(kind, ranks of a group, bytes that a rank sends) of the messages of x (m, k) times w (k, n), forward, where all
    axes of a device matrix (r, p, q) split both; by the compiled plan.
    """
    layout, net = Layout((r, p, q), ("r", "p", "q")), nn.Dense(k, n, "zeros", has_bias=False)  # its weight is (n, k)
    net.matmul.shard((layout(("r", "q"), "p"), layout("q", ("p", "r")))).add_prim_attr("enable_nd_tp", True)
    x = np.zeros((m, k), np.float32)
    plan = compile_network(net, x, device_num=p * q * r, dataset_strategy="full_batch")
    own = [i for _, i in plan.instructions("forward") if i.is_communication and i.name.startswith("matmul")]
    return [(i.kind, len(i.group(0)), round(sent_bytes(plan, i))) for i in own]
