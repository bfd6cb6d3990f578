"""Which operators there are, and which of them PyTorch does not have. Recording refuses to leave out any other."""

import inspect

from parallel_lab import ops
from parallel_lab.ops import OPS

NOT_IN_PYTORCH = {
    "dropout_at": "its mask is a function of the element's place; PyTorch draws another",
    "dropout": "as dropout_at",
    "dropout_key": "names a mask",
    "assign": "statement, not a function",
    "training_step": "of a compiled network",
    "publish": "the door of the catalogue",
    "shape": "an attribute there",
    "scalar_to_array": "MindSpore's way to write a number",
    "zeros": "a case of full",
    "ones": "a case of full",
    "zeros_like": "a case of full_like",
    "ones_like": "a case of full_like",
    "clamp": "another name of clip",
    **dict.fromkeys(("assign", "assign_add", "assign_sub"), "a new value for a Parameter: `+` and `-` with a name"),
}


def public_operators() -> set[str]:
    """Names of all public operators and functions of `parallel_lab.ops`."""
    members = {n: f for n in dir(ops) if not n.startswith("_") and inspect.isfunction(f := getattr(ops, n))}
    return {n for n, op in OPS.items() if not op.internal} | {
        n for n, f in members.items() if f.__module__.startswith(("parallel_lab.ops", "parallel_lab.catalog.ops"))
    }
