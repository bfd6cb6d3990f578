"""Programs for JAX: a `Mesh`, a `NamedSharding` for every operand, and one jitted step.

    print(jax_code(program, steps=8))

What is split how is said at the operands (`with_sharding_constraint`); XLA adds the messages.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...layout.tensor_layout import TensorLayout
from .forms import FORMS
from .program import NoForm, Program
from .text import beginning, block, initial_lines

WHERE = "code for JAX"
AXES = "abcdefgh"  # names of the mesh's axes

_TWO = "(jnp.zeros_like(p), jnp.zeros_like(p))"
_MEANS = [
    "mean, square = state",
    "mean = mean + (1 - {beta1!r}) * (g - mean)",
    "square = square + (1 - {beta2!r}) * (g * g - square)",
]
# per optimizer: the states it begins with, and the lines that give (p, state) of (p, g, state)
RULES = {
    "SGD": ("()", ["return p - {learning_rate!r} * g, state"]),
    "Momentum": (
        "jnp.zeros_like(p)",
        ["state = {momentum!r} * state + g", "return p - {learning_rate!r} * state, state"],
    ),
    "Adam": (
        _TWO,
        [
            *_MEANS,
            "rate = {learning_rate!r} * jnp.sqrt(1 - {beta2!r} ** t) / (1 - {beta1!r} ** t)",
            "return p - rate * mean / (jnp.sqrt(square) + {eps!r}), (mean, square)",
        ],
    ),
    "AdamWeightDecay": (
        _TWO,
        [*_MEANS, "return p - {learning_rate!r} * mean / (jnp.sqrt(square) + {eps!r}), (mean, square)"],
    ),
    "Lamb": (
        _TWO,
        [
            *_MEANS,
            "step = mean / (1 - {beta1!r} ** t) / (jnp.sqrt(square / (1 - {beta2!r} ** t)) + {eps!r})",
            "long, short = (jnp.sqrt((x * x).sum()) for x in (p, step))",
            "ratio = jnp.where((long > 0) & (short > 0), long / short, 1.0)",
            "return p - {learning_rate!r} * ratio * step, (mean, square)",
        ],
    ),
}


def spec(layout: TensorLayout) -> str:
    """A layout as the arguments of a PartitionSpec: per dim the mesh axes that split it.

    >>> spec(TensorLayout((2, 4), ((1,), ()))), spec(TensorLayout((2, 4), ((1, 0), -1)))
    ('"a"', '("a", "b")')
    """
    count, found = len(layout.device_matrix), []
    for axes in layout.tensor_map:
        axes = [axes] if isinstance(axes, int) else list(axes)
        named = [f'"{AXES[count - 1 - axis]}"' for axis in axes if axis >= 0]
        found.append("None" if not named else named[0] if len(named) == 1 else f"({', '.join(named)})")
    while found and found[-1] == "None":
        found.pop()
    return ", ".join(found)


def loss_function(program: Program) -> list[str]:
    """`loss_of(p, ...)` with the sharding of every operand."""
    names, run = program.names, []
    _, moves = program.placements()
    known = {p.name: f'p["{p.name}"]' for p in program.parameters}
    for step, moved in zip(program.steps, moves, strict=True):
        for value, layout in moved.items():
            source = known.pop(value, names[value])
            given = ", ".join(filter(None, [source, spec(layout)]))
            run.append(f"{names[value]} = split({given})")
        form = FORMS.get(step.op)
        if form is None:
            raise NoForm(f"operator {step.class_name} {step.name!r}", where=WHERE, hint="It is not written yet")
        args = [known.get(value, names.get(value, value)) for value in step.ins]
        run.append(f"{names[step.out]} = {form.jax(args, step.attrs)}")
    run[-1] = f"return {run[-1].split(' = ', 1)[1]}"
    arguments = ", ".join(["p", *(names[value] for value in program.inputs)])
    return [f"def loss_of({arguments}):", *block(run)]


def _in_parts(parts: int) -> list[str]:
    """`summed`, the losses of micro-batches added up: their rows are taken in turn, so that each rank has some."""
    text = f"sum(loss_of(p, *(rows[k::{parts}] for rows in batch)) for k in range({parts}))"
    return ["def summed(p, *batch):  # as MindSpore adds up micro-batches", f"    return {text}", "", ""]


def jax_code(program: Program, steps: int, notes: Sequence[str] = (), *, parts: int = 1) -> str:
    """The whole program.  notes: what JAX has no setting for;  parts: micro-batches whose gradients are added up"""
    if program.optimizer not in RULES:
        raise NoForm(f"the optimizer {program.optimizer}", where=WHERE, allowed=f"One of {', '.join(RULES)}")
    start, _ = program.placements()
    state, rule = RULES[program.optimizer]
    matrix = program.device_matrix
    axes = ", ".join(f'"{AXES[n]}"' for n in range(len(matrix)))
    where = [f'    "{p.name}": P({spec(start[p.name])}),' for p in program.parameters]
    fed = [f"placed(batch[{n}], P({spec(start[name])}))" for n, name in enumerate(program.inputs)]
    lines = [
        *initial_lines(program),
        "",
        f"mesh = Mesh(np.array(jax.devices()[:{program.devices}]).reshape{matrix}, ({axes}{',' * (len(matrix) == 1)}))",
        "where = {",
        *where,
        "}",
        "",
        "",
        "def placed(values, spec):",
        *block(["return jax.device_put(values, NamedSharding(mesh, spec))"]),
        "",
        "",
        "def split(value, *axes):",
        *block(["return jax.lax.with_sharding_constraint(value, NamedSharding(mesh, P(*axes)))"]),
        "",
        "",
        *loss_function(program),
        "",
        "",
        *(_in_parts(parts) if parts > 1 else []),
        f"def update(p, g, state, t):  # {program.optimizer}, as MindSpore has it",
        *block([line.format(**program.rates) for line in rule]),
        "",
        "",
        "@jax.jit",
        "def train(p, states, t, *batch):",
        *block(
            [
                "loss, gradients = jax.value_and_grad(LOSS)(p, *batch)".replace(
                    "LOSS", "loss_of" if parts == 1 else "summed"
                ),
                "made = {name: update(p[name], gradients[name], states[name], t) for name in p}",
                "p = {name: split(new, *where[name]) for name, (new, _) in made.items()}",
                "return loss, p, {name: state for name, (_, state) in made.items()}",
            ]
        ),
        "",
        "",
        "p = {name: placed(values, where[name]) for name, values in initial.items()}",
        f"states = {{name: {state.replace('(p)', '(values)')} for name, values in p.items()}}",
        f"for number in range({steps}):",
        *block(
            [
                "batch = batches[number % len(batches)]",
                f"loss, p, states = train(p, states, number + 1.0, {', '.join(fed)})",
                'print(f"step {number + 1}: loss {float(loss):.8g}")',
            ]
        ),
        "",
    ]
    imports = ["import jax", "import jax.numpy as jnp", "import numpy as np"]
    imports += ["from jax.sharding import Mesh, NamedSharding, PartitionSpec as P"]
    how = f'XLA_FLAGS="--xla_force_host_platform_device_count={program.devices}" python program.py'
    return beginning(program, how, imports, notes) + "\n".join(lines)
