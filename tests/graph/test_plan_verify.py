"""`Plan.verify` finds planted faults: one sound plan, one thing changed, and the rule that must bite."""

from dataclasses import replace

import numpy as np
import pytest

from parallel_lab import PlanError, compile, nn
from parallel_lab.graph.actions import Action
from parallel_lab.graph.instr import Value, attr_pairs
from parallel_lab.layout.tensor_layout import TensorLayout
from tests.crossed import each_of
from tests.recorded.nets import Quick

S = ((2, 4), (4, 1))


@pytest.fixture(scope="module")
def plan():
    net, x, y = Quick(32, 16, 16, S, ((2, 4),), ((8, 1), (1, 1))), np.ones((16, 32), "f"), np.ones((16, 16), "f")
    rule = nn.Momentum(net.trainable_params(), 0.1, 0.9)
    return compile(net, x, y, loss=nn.MSELoss(), optimizer=rule, device_num=8, dataset_strategy="full_batch")


def find(plan, phase, kind, **attrs):
    """The first instruction of a kind (and position) in a phase."""
    for position, instr in enumerate(plan.stages[0].program(phase)):
        if instr.kind == kind and all(instr.attr(k) == v for k, v in attrs.items()):
            return position, instr
    raise AssertionError(f"the plan has no {kind} in {phase}")


def with_program(plan, phase, program):
    stage = plan.stages[0]
    programs = tuple((p, tuple(program) if p == phase else i) for p, i in stage.programs)
    return replace(plan, stages=(replace(stage, programs=programs),))


def changed(plan, phase, position, **changes):
    program = list(plan.stages[0].program(phase))
    program[position] = replace(program[position], **changes)
    return with_program(plan, phase, program)


def with_value(plan, name, value):
    return replace(plan, values=tuple((n, value if n == name else v) for n, v in plan.values))


def verify_refuses(plan, match):
    with pytest.raises(PlanError, match=match) as caught:
        plan.verify()
    return str(caught.value)


def position_of(plan, phase, wanted):
    """(position, instruction) of the first of a phase for which `wanted` holds."""
    return next((at, i) for at, i in enumerate(plan.stages[0].program(phase)) if wanted(i))


def test_the_sound_plan_passes(plan):
    assert plan.verify() is plan


def test_an_unknown_kind_is_shown_where_it_stands(plan):
    position, _ = find(plan, "forward", "slice")
    text = verify_refuses(changed(plan, "forward", position, kind="teleport"), "kind 'teleport' is not known")
    assert "<-- here" in text


# ---- one instruction changed: (phase, kind, attributes by which it is found, what becomes of it, what is said) ----

SUM = {"reduce": "sum"}
CHANGES = {
    "unregistered operator": (
        "forward",
        "compute",
        {},
        lambda i: {"op": "magic"},
        "operator 'magic' is not registered",
    ),
    "two operands": ("forward", "all_reduce", {}, lambda i: {"ins": i.ins * 2}, "all_reduce has 2 operands"),
    "a parameter is made": ("forward", "compute", {}, lambda i: {"outs": ("w",)}, "%w is made twice"),
    "an axis that does not exist": ("forward", "all_reduce", {}, lambda i: {"axes": (7,)}, "axes"),
    "an axis named twice": ("forward", "all_reduce", {}, lambda i: {"axes": i.axes * 2}, "axes"),
    "a group of one rank": ("forward", "all_reduce", {}, lambda i: {"axes": ()}, "a group of one rank"),
    "a matrix of another size": (
        *("forward", "all_reduce", {}, lambda i: {"device_matrix": (2, 2, 1)}),
        "has 4 ranks, the stage has 8",
    ),
    "wrong reduction": (
        *("forward", "all_reduce", SUM, lambda i: {"attrs": attr_pairs(dict(i.attrs) | {"reduce": "max"})}),
        "max of a value whose parts combine by sum",
    ),
    "wrong dim": (*("forward", "slice", {}, lambda i: {"attrs": attr_pairs({"dim": 1 - i.attr("dim")})}), "slice"),
    # the operator's own ShapeError used to come through
    "operands that do not fit": (
        *("backward", "compute", {"transpose_a": True}),
        *(lambda i: {"attrs": attr_pairs(dict(i.attrs) | {"transpose_a": False})}, "MatMul|gives"),
    ),
}


@pytest.mark.parametrize("case", CHANGES)
def test_a_changed_instruction_is_found(plan, case):
    phase, kind, attrs, change, words = CHANGES[case]
    position, instr = find(plan, phase, kind, **attrs)
    verify_refuses(changed(plan, phase, position, **change(instr)), words)


@pytest.mark.parametrize("phase", ["forward", "backward"])
def test_sum_over_the_wrong_group(plan, phase):
    position, instr = find(plan, phase, "all_reduce", reduce="sum")
    sizes = {a: instr.device_matrix[-1 - a] for a in range(len(instr.device_matrix))}
    other = next((a,) for a, size in sizes.items() if size > 1 and a not in instr.axes)
    verify_refuses(changed(plan, phase, position, axes=other), "combines|other elements|does not leave")


@pytest.mark.parametrize("phase", ["forward", "backward"])
def test_sum_over_more_ranks_than_hold_addends(plan, phase):
    """Adding replicas counts them twice."""
    position, instr = find(plan, phase, "all_reduce", reduce="sum")
    everyone = tuple(a for a in range(len(instr.device_matrix)) if instr.device_matrix[-1 - a] > 1)
    assert set(instr.axes) < set(everyone)
    verify_refuses(changed(plan, phase, position, axes=everyone), "combines|different slices")


def is_relu(instr):
    return instr.name == "relu" and instr.kind == "compute"


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"ins": ("matmul",)}, "wants|gives"), ({"strategy": ((8, 1),)}, "laid out")],
    ids=["operand before it was split into columns", "strategy that was not compiled"],
)
def test_relu_in_another_layout_than_its_strategy_wants(plan, changes, words):
    position, _ = position_of(plan, "forward", is_relu)
    verify_refuses(changed(plan, "forward", position, **changes), words)


# ---- a program changed ----

PHASES = ("forward", "backward", "update")


def swapped(program):
    later = next(i for i in range(1, len(program)) if program[i - 1].out in program[i].ins)
    return (*program[: later - 1], program[later], program[later - 1], *program[later + 1 :])


@pytest.mark.parametrize("phase", PHASES)
@each_of(
    ("change", "words"),
    (swapped, "is read before it is made"),
    (lambda program: (*program, program[-1]), "is made twice"),
    (lambda program: program[1:], "is read before it is made|is never made"),
    ids=["swapped", "twice", "removed"],
)
def test_a_changed_program_is_found(plan, phase, change, words):
    verify_refuses(with_program(plan, phase, change(plan.stages[0].program(phase))), words)


def read_instead(program, name, other):
    return [replace(i, ins=tuple(other if n == name else n for n in i.ins)) for i in program]


def test_mirror_left_out(plan):
    """A gradient that was not summed over its replicas."""
    _, mirror = position_of(plan, "backward", lambda i: i.out == "w.grad.mirror")
    half = replace(plan, gradients=tuple((p, mirror.ins[0] if p == "w" else g) for p, g in plan.gradients))
    verify_refuses(half, r"the gradient of 'w' is laid out as .* partial sum")


def test_update_with_the_gradient_of_one_replica(plan):
    _, mirror = position_of(plan, "backward", lambda i: i.out == "w.grad.mirror")
    program = read_instead(plan.stages[0].program("update"), mirror.out, mirror.ins[0])
    verify_refuses(with_program(plan, "update", program), "is a partial sum, and updates take whole gradients")


def test_partial_result_that_is_never_summed(plan):
    """ReLU of the addends of a product is not the ReLU of the product."""
    program = plan.stages[0].program("forward")
    at, _ = position_of(plan, "forward", lambda i: i.kind == "all_reduce" and i.out == "matmul")
    program = read_instead((*program[:at], *program[at + 1 :]), "matmul", "matmul.partial")
    verify_refuses(with_program(plan, "forward", program), "leave|wants|combines|partial sums")


# ---- the value table changed: (name of the value, what becomes of it, what is said) ----


def gathered(plan):
    return find(plan, "forward", "all_gather")[1].out


VALUES = {
    "shape": (lambda plan: "relu", lambda v: replace(v, shape=(16, 32)), "the table says|gives"),
    "dtype": (lambda plan: "relu", lambda v: replace(v, dtype="float16"), "float16"),
    "size of a gather": (gathered, lambda v: replace(v, shape=(v.shape[0] * 2, *v.shape[1:])), "gives"),
    "no layout": (lambda plan: "matmul.partial", lambda v: Value(v.slice_shape, v.dtype, None), "no layout"),
}


@pytest.mark.parametrize("case", VALUES)
def test_a_changed_value_is_found(plan, case):
    name, change, words = VALUES[case]
    verify_refuses(with_value(plan, name(plan), change(plan.value(name(plan)))), words)


def test_value_without_an_entry(plan):
    _, instr = find(plan, "backward", "compute")
    values = tuple((n, v) for n, v in plan.values if n != instr.out)
    verify_refuses(replace(plan, values=values), "has no entry in the value table")


def test_right_shape_but_the_wrong_part(plan):
    """A slice that takes another rank's rows has the right shape, and every number wrong."""
    _, instr = find(plan, "forward", "slice")
    value = plan.value(instr.out)
    n = len(value.layout.device_matrix)
    entries = tuple(tuple(n - 1 - a for a in axes) for axes in value.layout.tensor_map)
    mirrored = TensorLayout(value.layout.device_matrix[::-1], entries)
    assert mirrored.slice_shape(value.shape) == value.slice_shape
    assert not mirrored.same_placement(value.layout)
    verify_refuses(with_value(plan, instr.out, replace(value, layout=mirrored)), "other elements|wants|laid out")


# ---- state, schedule, stages ----


def other_shape(plan):
    """The first target takes a value of another shape."""
    (target, _), *rest = plan.assignments
    other = next(s for t, s in rest if plan.value(s).slice_shape != plan.value(target).slice_shape)
    return {"assignments": ((target, other), *rest)}


def from_nothing(plan):
    return {"assignments": ((plan.assignments[0][0], "nowhere"), *plan.assignments[1:])}


def with_actions(change):
    return lambda plan: {"stages": (replace(plan.stages[0], actions=change(plan.stages[0].actions)),)}


def with_ranks(first, count):
    return lambda plan: {"stages": (replace(plan.stages[0], first=first, count=count),)}


WHOLE = {
    "assignment from nothing": (from_nothing, "'nowhere', is never made|no value 'nowhere'"),
    "assignment of another shape": (other_shape, "takes the value of"),
    "output": (lambda plan: {"outputs": ("nothing",)}, "'nothing' is never made"),
    "gradient": (lambda plan: {"gradients": (("w", "nothing"),)}, "the gradient of w, 'nothing', is never made"),
    "backward before forward": (with_actions(lambda actions: actions[::-1]), "is read before it is made"),
    "missing action": (with_actions(lambda actions: actions[:-1]), "do not run the programs"),
    "unknown action": (with_actions(lambda a: (*a, Action(0, "F", 1, "sideways"))), "do not run the programs"),
    "action twice": (with_actions(lambda actions: actions * 2), "do not run the programs"),
    **{f"stage {at}": (with_ranks(*at), "the stages have") for at in ((0, 4), (1, 8), (0, 16))},
}


@pytest.mark.parametrize("case", WHOLE)
def test_a_changed_plan_is_found(plan, case):
    change, words = WHOLE[case]
    verify_refuses(replace(plan, **change(plan)), words)


def test_assignment_from_a_value_that_is_in_the_table_but_not_made(plan):
    _target, source = plan.assignments[0]
    program = [i for i in plan.stages[0].program("update") if i.out != source]
    verify_refuses(with_program(plan, "update", program), f"{source}.*(is never made|is read before it is made)")


def test_every_instruction_is_needed_by_some_rule(plan):
    """Leaving out any one instruction is noticed: a later one, an output, gradient or assignment reads its result."""
    unnoticed = []
    for phase, program in plan.stages[0].programs:
        for position in range(len(program)):
            try:
                with_program(plan, phase, program[:position] + program[position + 1 :]).verify()
                unnoticed.append((phase, program[position].out))
            except PlanError:
                continue
    assert not unnoticed
