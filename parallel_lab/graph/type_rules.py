"""What operators and messages do to the types of distributed values, along one axis of the ranks.

    through_operator(matmul, ((8, 4), (4, 6)), {}, ("S1", "S0"), ...)     ("P",)      k is contracted: addends
    through_operator(relu, ((8, 6),), {}, ("P",), ...)                    Refused: it reads addends as if they were sums
    MESSAGE_RULES["all_reduce"]("P", {"reduce": "sum"})                   "R"

A type says how the values of ranks that differ along the axis belong together:

    R      replicated: copies
    S0     varying: slices of dim 0;   V: varying, and nothing says how
    P      partial: addends of a sum that is still to be taken;   Pmax, Pmin, Pprod: candidates, factors
    C      one number on all ranks, which may stand for any of these: what gradients start from
    ?      not known: a group that follows none of the axes, an operator that is not checked

What goes round a ring has types of its own (`ring_types.py`): slices that were handed on, sums on their way.

The rules follow from tables: labels of operators (`signature=`), what they are linear in (`linear=`), an entry for each
kind of message. JAX's shard_map (replicated, varying, unreduced) and PyTorch's DTensor have the same types.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import combinations
from typing import Any

from ..base.errors import ParallelLabError
from ..ops.machine.axis_rules import _labels, _linear, new_labels
from ..ops.machine.opdef import OPS, OpDef
from ..ops.machine.signature import Shape, Signature

WORDS = {"R": "replicated", "S": "varying", "V": "varying", "P": "partial", "C": "one number", "?": "not known"}
WORDS |= {"T": "varying", "A": "partial", "B": "partial"}  # of a ring
# operators that are linear in these operands and do not say so, as PyTorch's tables for DTensor do not
LINEAR_IN = {"divide_by": "x", "reduce_mean": "x", "quarter_turn": "x", "batch_norm_apply_sums_grad": "both"}
OF_DIMS = ("micro_batch_rows", "micro_batch_rows_grad", "strided_slice")  # each rank takes its part of its own slice
OF_GRADIENT = "g"  # rules of gradients are linear in the operand of this name


class Refused(Exception):
    """What an operator or a message may not do to a type.

    doubled    what it adds up was added up before;  of_result: what it makes is used as something else
    mend       what makes it right, where that is not the sum over the ranks
    """

    def __init__(self, what: str, doubled: bool = False, of_result: bool = False, mend: str = "") -> None:
        super().__init__(what)
        self.what, self.doubled, self.of_result, self.mend = what, doubled, of_result, mend


def dual(code: str) -> str:
    """The type of the gradient of a value, while nothing has added it up: copies have addends, addends have copies.

    >>> [dual(code) for code in ("R", "S0", "P", "V")]
    ['P', 'S0', 'R', 'V']
    """
    return "P" if code == "R" else "R" if code.startswith("P") else code


# ---- messages ----


SUMS = ("sum", "mean", "avg")


def _all_reduce(code: str, attrs: dict[str, Any]) -> str:
    reduce = attrs.get("reduce", "sum")
    if code.startswith("P"):
        wants = code[1:] or "sum"
        if reduce not in (SUMS if wants in SUMS else (wants,)):
            raise Refused(f"takes the {reduce} of what must be combined by {wants}")
        return "R"
    if code in ("R", "C") and reduce == "sum":  # what gradients start from is never added up before an operator
        raise Refused("adds up copies", doubled=True)
    if code.startswith("S") and reduce in ("sum", "mean"):
        raise Refused("adds up different slices", doubled=True)
    return "R"


def _reduce_scatter(code: str, attrs: dict[str, Any]) -> str:
    _all_reduce(code, attrs)
    return f"S{attrs['dim']}"


def _all_gather(code: str, attrs: dict[str, Any]) -> str:
    if code.startswith("P"):
        raise Refused("gathers addends")
    return "R"


def _moved(code: str, attrs: dict[str, Any]) -> str:
    if code.startswith("P"):
        raise Refused("moves pieces of addends as if they were sums")
    return f"S{attrs['split_dim']}" if "split_dim" in attrs and code.startswith("S") else code


def _sliced(code: str, attrs: dict[str, Any]) -> str:
    if code.startswith("P"):
        raise Refused("keeps a slice of addends as if they were sums")
    return f"S{attrs['dim']}" if code in ("R", "C") else code


MessageRule = Callable[[str, dict[str, Any]], str]
MESSAGE_RULES: dict[str, MessageRule] = {
    "all_reduce": _all_reduce,
    "reduce_scatter": _reduce_scatter,
    "all_gather": _all_gather,
    "all_to_all": _moved,
    "all_to_all_v": _moved,
    "exchange": _moved,
    "exchange_reduce": lambda code, attrs: "?",  # copies that were given out come back, as addends
    "halo_exchange": _moved,
    "neighbor_exchange": _moved,
    # addends at the borders of slices, which neighbours hold: then the value is split
    "halo_reduce": lambda code, attrs: f"S{attrs['dim']}",
    "broadcast": lambda code, attrs: "R",
    "reduce": lambda code, attrs: "V",
    "gather": lambda code, attrs: "V",
    "scatter": lambda code, attrs: "V",
    "slice": _sliced,
}


# ---- operators ----


@lru_cache(maxsize=65536)
def through_operator(
    name: str,
    shapes: tuple[Shape, ...],
    outs: tuple[Shape, ...],
    items: tuple[Any, ...],
    ins: tuple[str, ...],
    of_rule: bool = False,
) -> tuple[str, ...]:
    """Types of the results of operator `name`.

    shapes, outs   of one rank's operands and results;  items: attributes;  ins: types of the operands
    of_rule        whether a rule of a gradient calls it: those are linear in the gradient, whatever they are made of

    Raises Refused.
    """
    op, attrs = OPS[name], dict(items)
    held = set(ins) - {"R", "C"}
    if "?" in held:
        return ("?",) * len(outs)
    if not held:
        return ("C" if "C" in ins and op.name != "fill" and _keeps_number(op, ins) else "R",) * len(outs)
    pending = {i for i, code in enumerate(ins) if code.startswith("P")}
    if pending:
        return (_through_linear(op, ins, pending, of_rule),) * len(outs)
    if "V" in held:
        return ("V",) * len(outs)
    return _through_labels(op, shapes, outs, attrs, ins)


def _keeps_number(op: OpDef, ins: Sequence[str]) -> bool:
    """Whether what may stand for addends may still do so: the operator is linear in it."""
    numbers = {i for i, code in enumerate(ins) if code == "C"}
    return any(numbers <= chosen for chosen, _, _ in _alternatives(op, len(ins)))


def _alternatives(op: OpDef, count: int) -> Iterator[tuple[set[int], str, str]]:
    """(operands that may be pending together, by which reduction, how the result is then)."""
    yield from _linear(op, (False,) * count)
    names = LINEAR_IN.get(op.name, "").split() or [OF_GRADIENT]
    if op.name in LINEAR_IN or OF_GRADIENT in op.tensors:
        yield set(map(op.tensors.index, names)), "sum", "sum"
    elif op.variadic and op.name.endswith("_grad"):  # some of its operands are there on demand
        yield set(range(count)), "sum", "sum"


def _through_linear(op: OpDef, ins: Sequence[str], pending: set[int], of_rule: bool) -> str:
    (code, *others) = {ins[i] for i in pending}
    before = code[1:] or "sum"
    rest = {ins[i] for i in range(len(ins)) if i not in pending} - {"R"}
    if not others and not rest - {"C"}:
        for chosen, reduction, after in _alternatives(op, len(ins)):
            with_numbers = chosen == pending or (pending < chosen and all(ins[i] == "C" for i in chosen - pending))
            if reduction == before and (with_numbers or (op.variadic and pending <= chosen)):
                return "P" if after == "sum" else f"P{after}"
    alone = len(pending) == 1 and any(chosen > pending for chosen, _, _ in _alternatives(op, len(ins)))
    if alone and not others and not rest - {"C"}:
        raise Refused("adds what every rank has whole to addends: it is counted once per rank")
    if of_rule and len(pending) == 1 and code == "P" and rest <= {"C", "V"}:
        return "V" if "V" in rest else code  # a rule of a table's rows may give addends, too, and not say so
    raise Refused("reads addends as if they were sums")


def _through_labels(
    op: OpDef, shapes: tuple[Shape, ...], outs: tuple[Shape, ...], attrs: dict[str, Any], ins: Sequence[str]
) -> tuple[str, ...]:
    if op.name in OF_DIMS and len(shapes[0]) == len(outs[0]):
        return (ins[0],) * len(outs)
    if op.name in OF_DIMS or (signature := _signature(op, shapes, attrs)) is None:
        return tuple(_by_shape(shapes, out, ins) for out in outs)
    found = set()
    for labels, code in zip(signature.ins, ins, strict=True):
        if code.startswith("S"):
            dim = int(code[1:])
            found.add(labels[dim] if dim < len(labels) else "")
    if len(found) > 1 or not found - {"", "1"}:
        return ("V",) * len(outs)
    (label,) = found
    if new_labels(signature) and label not in "".join(signature.outs):  # it may be one of the new ones
        return ("V",) * len(outs)
    addends = "R" if op.reduce == "same" else "P" if op.reduce == "sum" or op.mean else f"P{op.reduce}"
    return tuple(f"S{labels.index(label)}" if label in labels else addends for labels in signature.outs)


def _signature(op: OpDef, shapes: tuple[Shape, ...], attrs: dict[str, Any]) -> Signature | None:
    """The labels of operands and results of one rank; None: there are no labels."""
    try:
        found = op.signature_for(shapes, attrs) if op.signature is not None else _labels(op, shapes, attrs).signature
    except (ParallelLabError, TypeError, KeyError):
        return None
    fits = len(found.ins) == len(shapes) and all(len(a) == len(s) for a, s in zip(found.ins, shapes, strict=True))
    return found if fits else None


def _by_shape(shapes: tuple[Shape, ...], out: Shape, ins: Sequence[str]) -> str:
    """The type of a result without labels: its dims are the operand's with these extents, summed over the others."""
    for shape, code in zip(shapes, ins, strict=True):
        if code.startswith("S"):
            ways = [dims for dims in combinations(range(len(shape)), len(out)) if tuple(shape[d] for d in dims) == out]
            types = {f"S{dims.index(dim)}" if (dim := int(code[1:])) in dims else "P" for dims in ways}
            if len(types) == 1:
                return types.pop()
    return "V"


def through_reshape(before: Shape, after: Shape, code: str) -> str:
    """The type of a reshaped slice: the split dim is the first of those that are joined or divided, or it varies."""
    if not code.startswith("S"):
        return code
    dim = int(code[1:])
    lead = math.prod(before[:dim])
    at = next(
        (d for d in range(len(after) + 1) if math.prod(after[:d]) == lead and math.prod(after[d : d + 1]) > 1), None
    )
    if at is None:
        group = next((d for d in range(len(after)) if math.prod(after[: d + 1]) > lead), None)
        return "V" if group is None else f"S{group}"
    return f"S{at}"
