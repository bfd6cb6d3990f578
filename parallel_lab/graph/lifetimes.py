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

from .actions import OF_STEP, PROGRAMS, Action, Stage
from .instr import Instr

Pairs = tuple[tuple[str, str], ...]
Dead = dict[int, tuple[str, ...]]  # position in a program -> what nothing reads after it


def replacements(program: tuple[Instr, ...], assignments: Pairs) -> dict[int, Pairs]:
    """Position in the update program -> assignments (target, source) after it: source made, target's old value dead.

    A source made elsewhere, and a target that another assignment reads, wait for the end, when all that is left is
    replaced at once: two parameters may exchange their values.
    """
    makers = {name: position for position, instr in enumerate(program) for name in instr.kept}
    read = {name: position for position, instr in enumerate(program) for name in instr.reads}
    sources = {source for _, source in assignments}
    by_position: dict[int, Pairs] = {}
    for target, source in assignments:
        in_place = source in makers and target not in sources
        position = max(makers[source], read.get(target, 0)) if in_place else len(program) - 1
        by_position[position] = (*by_position.get(position, ()), (target, source))
    return by_position


def last_uses(
    order: Iterable[tuple[str, int, Instr]], replaced: Mapping[int, Pairs], keep: set[str]
) -> dict[str, Dead]:
    """Per phase: instruction position -> values that nothing reads afterwards, in this phase or a later one.

    order     (phase, position, instruction) of a whole step, as it runs;  keep: what stays after it
    replaced  table of `replacements`: a new value is needed under its own name until its target has taken it
    """
    last: dict[str, tuple[str, int]] = {}
    runs = list(order)
    ends = {i.loop: (phase, position) for phase, position, i in runs if i.loop}
    made_in: dict[str, list[str]] = {}
    for phase, position, instr in runs:
        loops = [name for name, _ in instr.when if name in ends] if ends else []
        made_in.update((name, loops[:-1] if instr.loop else loops) for name in instr.kept)
        for name in (*instr.reads, *instr.kept):
            # what a loop reads that it has not made is needed for its next turn
            around = next((loop for loop in loops if loop not in made_in.get(name, ())), None)
            last[name] = (phase, position) if around is None else ends[around]
    for position, pairs in replaced.items():
        for _, source in pairs:
            read_in, at = last.get(source, ("", 0))
            last[source] = ("update", max(at, position) if read_in == "update" else position)
    done: dict[str, Dead] = {phase: {} for phase in PROGRAMS.values()}
    for name, (phase, position) in last.items():
        if name not in keep:
            done[phase][position] = (*done[phase].get(position, ()), name)
    return done


def runs_in(instr: Instr, phase: str, part: int) -> bool:
    """Whether an action of `part` runs it: all of them what is done once all micro-batches are done."""
    return phase in OF_STEP or instr.stage == part


def dead_after(
    stage: Stage, of_micro_batch: frozenset[str], replaced: Mapping[int, Pairs], keep: set[str]
) -> dict[Action, Dead]:
    """`last_uses` for every action. A micro-batch's values follow its own actions, whose order may be another one for
    each where a rank has several parts; those of the step follow the last run of each part.
    """

    def table(runs: tuple[tuple[str, int], ...]) -> dict[str, Dead]:
        programs = ((phase, part, enumerate(stage.program(phase))) for phase, part in runs)
        of_part = ((phase, at, i) for phase, part, all_of in programs for at, i in all_of if runs_in(i, phase, part))
        return last_uses(of_part, replaced, keep)

    last = {(a.program, a.stage): at for at, a in enumerate(stage.actions)}
    of_step = table(tuple(sorted(last, key=last.__getitem__)))
    tables: dict[tuple[tuple[str, int], ...], dict[str, Dead]] = {}
    orders: dict[int, list[tuple[str, int]]] = {a.micro_batch: [] for a in stage.actions}
    for action in stage.actions:
        for number, runs in orders.items():
            if action.of_step or action.micro_batch == number:
                runs.append((action.program, action.stage))
    by_action: dict[Action, Dead] = {}
    by_part: dict[tuple[int, str, bool], Dead] = {}
    for action in stage.actions:
        runs, ends = tuple(orders[action.micro_batch]), stage.ends(action)
        own = tables[runs] if runs in tables else tables.setdefault(runs, table(runs))
        key = (id(own), action.program, ends)
        if key not in by_part:
            by_part[key] = _joined(own[action.program], of_step[action.program] if ends else {}, of_micro_batch)
        by_action[action] = by_part[key]
    return by_action


def _joined(own: Dead, of_step: Dead, of_micro_batch: frozenset[str]) -> Dead:
    of_both = {at: tuple(n for n in names if n in of_micro_batch) for at, names in own.items()}
    for at, names in of_step.items():
        of_both[at] = (*of_both.get(at, ()), *(n for n in names if n not in of_micro_batch))
    return {at: names for at, names in of_both.items() if names}
