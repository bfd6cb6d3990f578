"""Where a parameter takes its new value, and what may be dropped when: the tables that interpreter and memory read."""

from dataclasses import replace

import pytest

from parallel_lab.graph.instr import Instr
from parallel_lab.graph.lifetimes import last_uses, replacements
from parallel_lab.lab.memory.subjects import LEVELS, OPTIMIZERS, Settings, get_subject


def program(*lines):
    """ "c = a b" is an instruction that makes c of a and b."""
    return tuple(
        Instr("compute", (out,), tuple(ins.split()), out) for out, ins in (line.split(" = ") for line in lines)
    )


def test_a_parameter_is_replaced_when_its_value_is_made_and_its_last_reader_has_run():
    update = program("m.2 = m g", "p.2 = p m.2", "norm = p")
    assert replacements(update, (("p", "p.2"), ("m", "m.2"))) == {0: (("m", "m.2"),), 2: (("p", "p.2"),)}


def test_a_value_that_several_take_and_one_that_the_update_does_not_make():
    update = program("a.2 = a", "b.2 = b a.2")
    assert replacements(update, (("a", "a.2"), ("c", "a.2"))) == {0: (("a", "a.2"), ("c", "a.2"))}
    assert replacements(update, (("a", "made.forward"),)) == {1: (("a", "made.forward"),)}


def test_parameters_that_exchange_their_values_are_replaced_together_at_the_end():
    update = program("x = a", "y = b")
    assert replacements(update, (("a", "b"), ("b", "a"))) == {1: (("a", "b"), ("b", "a"))}


def test_a_new_value_keeps_its_own_name_until_it_is_taken_and_nothing_reads_it():
    update = program("m.2 = m", "t = m", "p.2 = p m.2", "s = t")
    replaced = replacements(update, (("m", "m.2"), ("p", "p.2")))
    order = [("update", at, instr) for at, instr in enumerate(update)]
    assert replaced == {1: (("m", "m.2"),), 2: (("p", "p.2"),)}
    assert last_uses(order, replaced, keep={"m", "p"})["update"] == {2: ("m.2", "p.2"), 3: ("t", "s")}


@pytest.mark.quick(2)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize(("mode", "level"), [(mode, level) for mode, levels in LEVELS.items() for level in levels])
def test_no_instruction_reads_a_value_that_was_replaced_or_dropped(mode, level, optimizer):
    """Walked with version numbers: every read of a parameter or state in the update finds its old value."""
    if level == "grouping" and optimizer in ("SGD", "Momentum", "Adam"):
        optimizer = "Lamb"  # weight grouping takes this one
    plan = get_subject("stack").job(32).compile(replace(Settings(4, mode, optimizer, level), threshold_kb=0))
    targets, there, taken = {t for t, _ in plan.assignments}, set(plan.scalars), set()
    there |= {i.name for i in plan.graph.inputs} | {s.name for s in plan.states}
    at = dict.fromkeys(("forward", "backward", "update"), -1)
    for phase, instr in plan.instructions():
        at[phase] += 1
        assert set(instr.ins) <= there, f"{instr.out} reads what was dropped"
        assert not set(instr.ins) & taken, f"{instr.out} reads a new value under an old name"
        there.add(instr.out)
        if phase == "update":
            for target, source in plan.replacements(0).get(at[phase], ()):
                assert source in there and target not in taken
                taken.add(target)
        action = next(a for a in plan.stage_of(0).actions if a.program == phase)
        there -= set(plan.last_uses(0)[action].get(at[phase], ()))
    assert taken == targets
    assert there >= {g for _, g in plan.gradients} | set(plan.outputs)
