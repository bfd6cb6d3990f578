"""Backward in two programs, for schedules that ask for it (zero bubble, Qi et al. 2023).

    backward   B   gradients of activations, which the stage before waits for
    weights    W   gradients of parameters and their sums, which nobody waits for until the update

What only leads to gradients of parameters is moved into the program "weights", in its order; it reads what backward
has left of the same micro-batch.
"""

from __future__ import annotations

from ..ir import Draft, Instr

Programs = dict[str, tuple[Instr, ...]]


def divided(programs: Programs, draft: Draft) -> Programs:
    """A stage's programs with those gradients of parameters apart that no gradient of an activation is made from."""
    program = programs.get("backward", ())
    made = {name for i in draft.program("forward") if not i.once for name in i.outs}
    wanted = {gradient for value, gradient in draft.value_gradients if value in made}
    first: set[int] = set()
    for at in reversed(range(len(program))):
        instr = program[at]
        if (instr.attr("message") == "send" and not instr.once) or wanted.intersection(instr.outs):
            first.add(at)
            wanted.update(instr.ins)
    # what runs once with the last micro-batch waits for all gradients
    first -= {at for at in first if program[at].once == "last"}
    parts = {"backward": [], "weights": []}  # type: dict[str, list[Instr]]
    for at, instr in enumerate(program):
        parts["backward" if at in first else "weights"].append(instr)
    return programs | {name: tuple(part) for name, part in parts.items()}
