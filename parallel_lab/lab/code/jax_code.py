"""Programs for JAX: a `Mesh`, a `NamedSharding` for every operand, and one jitted step (`templates/jax.jinja`).

    print(jax_code(program, steps=8))

Operands say how they are split (`with_sharding_constraint`); XLA adds the messages.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...layout.tensor_layout import TensorLayout
from .forms import FORMS
from .program import NoForm, Program
from .text import render

WHERE = "code for JAX"
AXES = "abcdefgh"  # names of the mesh's axes
OPTIMIZERS = ("SGD", "Momentum", "Adam", "AdamWeightDecay", "Lamb")
IMPORTS = (
    "import jax",
    "import jax.numpy as jnp",
    "import numpy as np",
    "from jax.sharding import Mesh, NamedSharding, PartitionSpec as P",
)


def spec(layout: TensorLayout) -> str:
    """A layout as the arguments of a PartitionSpec: per dim the mesh axes that split it.

    >>> spec(TensorLayout((2, 4), ((1,), ()))), spec(TensorLayout((2, 4), ((1, 0), -1)))
    ('"a"', '("a", "b")')
    """
    count, dims = len(layout.device_matrix), []
    for axes in layout.tensor_map:
        axes = [axes] if isinstance(axes, int) else list(axes)
        named = [f'"{AXES[count - 1 - axis]}"' for axis in axes if axis >= 0]
        dims.append("None" if not named else named[0] if len(named) == 1 else f"({', '.join(named)})")
    while dims and dims[-1] == "None":
        dims.pop()
    return ", ".join(dims)


def _steps(program: Program) -> tuple[list[str], str]:
    """The lines of `loss_of(p, ...)` with the sharding of every operand, and the expression that it returns."""
    names, lines = program.names, []
    _, moves = program.placements()
    known = {p.name: f'p["{p.name}"]' for p in program.parameters}
    for step, moved in zip(program.steps, moves, strict=True):
        for value, layout in moved.items():
            source = known.pop(value, names[value])
            arguments = ", ".join(filter(None, [source, spec(layout)]))
            lines.append(f"{names[value]} = split({arguments})")
        form = FORMS.get(step.op)
        if form is None:
            raise NoForm(f"operator {step.class_name} {step.name!r}", where=WHERE, hint="It is not written yet")
        args = [known.get(value, names.get(value, value)) for value in step.ins]
        lines.append(f"{names[step.out]} = {form.jax(args, step.attrs)}")
    return lines[:-1], lines[-1].split(" = ", 1)[1]


def jax_code(program: Program, steps: int, notes: Sequence[str] = (), *, parts: int = 1) -> str:
    """The whole program.  notes: what JAX has no setting for;  parts: micro-batches whose gradients are added up"""
    if program.optimizer not in OPTIMIZERS:
        raise NoForm(f"the optimizer {program.optimizer}", where=WHERE, allowed=f"One of {', '.join(OPTIMIZERS)}")
    start, _ = program.placements()
    axes = [f'"{AXES[n]}"' for n in range(len(program.device_matrix))]
    lines, result = _steps(program)
    return render(
        "jax",
        program,
        f'XLA_FLAGS="--xla_force_host_platform_device_count={program.devices}" python program.py',
        IMPORTS,
        notes,
        axes=f"{axes[0]}," if len(axes) == 1 else ", ".join(axes),
        specs={p.name: spec(start[p.name]) for p in program.parameters},
        arguments=[program.names[name] for name in program.inputs],
        lines=lines,
        result=result,
        parts=parts,
        rates={name: repr(program.rates.get(name)) for name in ("learning_rate", "momentum", "beta1", "beta2", "eps")},
        steps=steps,
        fed=[f"placed(batch[{n}], P({spec(start[name])}))" for n, name in enumerate(program.inputs)],
    )
