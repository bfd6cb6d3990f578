"""How long values live in a plan's programs: where a parameter takes its new value, and what may be dropped when.

The interpreter drops and replaces by these tables, and `cost/memory.py` counts by them, so that what is predicted is
what happens. The update runs in place, on the level of names: no array is ever written over.

    m.1 = m * beta          position 7: the last reader of m
    g.1 = g * (1 - beta)    position 8
    m.2 = m.1 + g.1         position 9: makes the new value; m is replaced here, and m's old array is free
    p.1 = descend(p, m.2)   position 10: reads the new value under its own name, m.2, which ends here
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from .actions import PROGRAMS
from .ir import Instr

Pairs = tuple[tuple[str, str], ...]


def replacements(program: tuple[Instr, ...], assignments: Pairs) -> dict[int, Pairs]:
    """Position in the update program -> assignments (target, source) after it: source made, target's old value dead.

    A source made elsewhere, and a target that another assignment reads, wait for the end, when all that is left is
    replaced at once: two parameters may exchange their values.
    """
    made = {name: position for position, instr in enumerate(program) for name in instr.kept}
    read = {name: position for position, instr in enumerate(program) for name in instr.ins}
    sources = {source for _, source in assignments}
    found: dict[int, Pairs] = {}
    for target, source in assignments:
        in_place = source in made and target not in sources
        position = max(made[source], read.get(target, 0)) if in_place else len(program) - 1
        found[position] = (*found.get(position, ()), (target, source))
    return found


def last_uses(
    order: Iterable[tuple[str, int, Instr]], replaced: Mapping[int, Pairs], keep: set[str]
) -> dict[str, dict[int, tuple[str, ...]]]:
    """Per phase: instruction position -> values that nothing reads afterwards, in this phase or a later one.

    order     (phase, position, instruction) of a whole step, as it runs;  keep: what stays after it
    replaced  table of `replacements`: a new value is needed under its own name until its target has taken it
    """
    last: dict[str, tuple[str, int]] = {}
    for phase, position, instr in order:
        last |= dict.fromkeys((*instr.ins, *instr.kept), (phase, position))
    for position, pairs in replaced.items():
        for _, source in pairs:
            read_in, at = last.get(source, ("", 0))
            last[source] = ("update", max(at, position) if read_in == "update" else position)
    done: dict[str, dict[int, tuple[str, ...]]] = {phase: {} for phase in PROGRAMS.values()}
    for name, (phase, position) in last.items():
        if name not in keep:
            done[phase][position] = (*done[phase].get(position, ()), name)
    return done
