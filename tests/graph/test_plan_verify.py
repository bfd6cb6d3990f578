"""`Plan.verify` finds planted faults: one sound plan, one thing changed, and the rule that must bite."""

from dataclasses import replace

import numpy as np
import pytest

from parallel_lab import PlanError, compile, nn
from parallel_lab.graph.ir import Value, attr_pairs
from parallel_lab.graph.plan import Action
from parallel_lab.layout.tensor_layout import TensorLayout
from tests.recorded.nets import Quick

S = ((2, 4), (4, 1))


@pytest.fixture(scope="module")
def plan():
    net = Quick(32, 16, 16, S, ((2, 4),), ((8, 1), (1, 1)))
    rule = nn.Momentum(net.trainable_params(), 0.1, 0.9)
    return compile(
        net,
        np.ones((16, 32), "f"),
        np.ones((16, 16), "f"),
        loss=nn.MSELoss(),
        optimizer=rule,
        device_num=8,
        dataset_strategy="full_batch",
    )


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


def refused(plan, match):
    with pytest.raises(PlanError, match=match) as caught:
        plan.verify()
    return str(caught.value)


def test_the_sound_plan_passes(plan):
    assert plan.verify() is plan


# ---- kinds and operators ----


def test_unknown_kind(plan):
    position, _ = find(plan, "forward", "slice")
    text = refused(changed(plan, "forward", position, kind="teleport"), "kind 'teleport' is not known")
    assert "<-- here" in text


def test_unregistered_operator(plan):
    position, _ = find(plan, "forward", "compute")
    refused(changed(plan, "forward", position, op="magic"), "operator 'magic' is not registered")


def test_a_message_with_two_operands(plan):
    position, instr = find(plan, "forward", "all_reduce")
    refused(changed(plan, "forward", position, ins=instr.ins * 2), "all_reduce has 2 operands")


# ---- definitions ----


@pytest.mark.parametrize("phase", ["forward", "backward", "update"])
def test_read_before_made(plan, phase):
    program = list(plan.stages[0].program(phase))
    later = next(i for i in range(1, len(program)) if program[i - 1].out in program[i].ins)
    program[later - 1], program[later] = program[later], program[later - 1]
    refused(with_program(plan, phase, program), "is read before it is made")


@pytest.mark.parametrize("phase", ["forward", "backward", "update"])
def test_made_twice(plan, phase):
    program = list(plan.stages[0].program(phase))
    refused(with_program(plan, phase, [*program, program[-1]]), "is made twice")


def test_a_parameter_is_not_made_by_an_instruction(plan):
    position, _ = find(plan, "forward", "compute")
    refused(changed(plan, "forward", position, out="w"), "%w is made twice")


@pytest.mark.parametrize("phase", ["forward", "backward", "update"])
def test_removed_instruction_is_missed(plan, phase):
    program = list(plan.stages[0].program(phase))
    refused(with_program(plan, phase, program[1:]), "is read before it is made|is never made")


def test_value_without_an_entry(plan):
    _position, instr = find(plan, "backward", "compute")
    values = tuple((n, v) for n, v in plan.values if n != instr.out)
    refused(replace(plan, values=values), "has no entry in the value table")


# ---- groups ----


@pytest.mark.parametrize("phase", ["forward", "backward"])
def test_sum_over_the_wrong_group(plan, phase):
    position, instr = find(plan, phase, "all_reduce", reduce="sum")
    other = next(
        (a,)
        for a in range(len(instr.device_matrix))
        if (a,) != instr.axes and instr.device_matrix[-1 - a] > 1 and a not in instr.axes
    )
    refused(changed(plan, phase, position, axes=other), "combines|other elements|does not leave")


@pytest.mark.parametrize("phase", ["forward", "backward"])
def test_sum_over_more_ranks_than_hold_addends(plan, phase):
    """Adding replicas counts them twice."""
    position, instr = find(plan, phase, "all_reduce", reduce="sum")
    everyone = tuple(a for a in range(len(instr.device_matrix)) if instr.device_matrix[-1 - a] > 1)
    assert set(instr.axes) < set(everyone)
    refused(changed(plan, phase, position, axes=everyone), "combines|different slices")


def test_mirror_left_out(plan):
    """A gradient that was not summed over its replicas."""
    _position, instr = next(
        (i, x) for i, x in enumerate(plan.stages[0].program("backward")) if x.out == "w.grad.mirror"
    )
    half = replace(plan, gradients=tuple((p, instr.ins[0] if p == "w" else g) for p, g in plan.gradients))
    refused(half, r"the gradient of 'w' is laid out as .* partial sum")


def test_update_with_the_gradient_of_one_replica(plan):
    _, mirror = next((i, x) for i, x in enumerate(plan.stages[0].program("backward")) if x.out == "w.grad.mirror")
    program = [
        replace(x, ins=tuple(mirror.ins[0] if n == mirror.out else n for n in x.ins))
        for x in plan.stages[0].program("update")
    ]
    refused(with_program(plan, "update", program), "is a partial sum, and updates take whole gradients")


def test_axis_that_does_not_exist(plan):
    position, _ = find(plan, "forward", "all_reduce")
    refused(changed(plan, "forward", position, axes=(7,)), "axes")


def test_axis_named_twice(plan):
    position, instr = find(plan, "forward", "all_reduce")
    refused(changed(plan, "forward", position, axes=instr.axes * 2), "axes")


def test_group_of_one_rank(plan):
    position, _ = find(plan, "forward", "all_reduce")
    refused(changed(plan, "forward", position, axes=()), "a group of one rank")


def test_device_matrix_of_another_size(plan):
    position, _ = find(plan, "forward", "all_reduce")
    refused(changed(plan, "forward", position, device_matrix=(2, 2, 1)), "has 4 ranks, the plan has 8")


def test_wrong_reduction(plan):
    position, instr = find(plan, "forward", "all_reduce", reduce="sum")
    refused(
        changed(plan, "forward", position, attrs=attr_pairs(dict(instr.attrs) | {"reduce": "max"})),
        "max of a value whose parts combine by sum",
    )


# ---- shapes ----


def test_wrong_shape_of_an_operators_result(plan):
    value = plan.value("relu")
    refused(with_value(plan, "relu", replace(value, shape=(16, 32))), r"the table says|gives")


def test_wrong_dtype_of_an_operators_result(plan):
    refused(with_value(plan, "relu", replace(plan.value("relu"), dtype="float16")), "float16")


def test_operands_that_do_not_fit_are_a_plan_error_too(plan):
    """The operator's own ShapeError used to come through."""
    position, instr = find(plan, "backward", "compute", transpose_a=True)
    refused(
        changed(plan, "backward", position, attrs=attr_pairs(dict(instr.attrs) | {"transpose_a": False})),
        "MatMul|gives",
    )


def test_slice_of_the_wrong_dim(plan):
    position, instr = find(plan, "forward", "slice")
    refused(changed(plan, "forward", position, attrs=attr_pairs({"dim": 1 - instr.attr("dim")})), "slice")


def test_gather_that_does_not_give_its_size(plan):
    _position, instr = find(plan, "forward", "all_gather")
    value = plan.value(instr.out)
    refused(
        with_value(plan, instr.out, Value((value.shape[0] * 2, *value.shape[1:]), value.dtype, value.layout)), "gives"
    )


# ---- layouts ----


def test_right_shape_but_the_wrong_part(plan):
    """A slice that takes another rank's rows has the right shape, and every number wrong."""
    _position, instr = find(plan, "forward", "slice")
    value = plan.value(instr.out)
    n = len(value.layout.device_matrix)
    mirrored = TensorLayout(
        value.layout.device_matrix[::-1], tuple(tuple(n - 1 - a for a in axes) for axes in value.layout.tensor_map)
    )
    assert mirrored.slice_shape(value.shape) == value.slice_shape
    assert not mirrored.same_placement(value.layout)
    refused(with_value(plan, instr.out, replace(value, layout=mirrored)), "other elements|wants|laid out")


def test_operand_in_another_layout_than_the_strategy_wants(plan):
    """ReLU reads the product before it was cut into columns: same data, another layout."""
    position, _instr = next(
        (i, x) for i, x in enumerate(plan.stages[0].program("forward")) if x.name == "relu" and x.kind == "compute"
    )
    refused(changed(plan, "forward", position, ins=("matmul",)), "wants|gives")


def test_result_without_a_layout(plan):
    value = plan.value("matmul.partial")
    refused(with_value(plan, "matmul.partial", Value(value.slice_shape, value.dtype, None)), "no layout")


def test_strategy_that_was_not_the_one_compiled(plan):
    position, _ = next(
        (i, x) for i, x in enumerate(plan.stages[0].program("forward")) if x.name == "relu" and x.kind == "compute"
    )
    refused(changed(plan, "forward", position, strategy=((8, 1),)), "laid out")


def test_partial_result_that_is_never_summed(plan):
    """ReLU of the addends of a product is not the ReLU of the product."""
    stage = plan.stages[0]
    _position, instr = next(
        (i, x) for i, x in enumerate(stage.program("forward")) if x.kind == "all_reduce" and x.out == "matmul"
    )
    program = [
        replace(x, ins=tuple("matmul.partial" if n == "matmul" else n for n in x.ins))
        for x in stage.program("forward")
        if x is not instr
    ]
    refused(with_program(plan, "forward", program), "leave|wants|combines|addends")


# ---- state, schedule, stages ----


def test_assignment_from_nothing(plan):
    target, _ = plan.assignments[0]
    refused(
        replace(plan, assignments=((target, "nowhere"), *plan.assignments[1:])),
        "'nowhere', is never made|no value 'nowhere'",
    )


def test_assignment_from_a_value_that_is_in_the_table_but_not_made(plan):
    _target, source = plan.assignments[0]
    program = [i for i in plan.stages[0].program("update") if i.out != source]
    refused(with_program(plan, "update", program), f"{source}.*(is never made|is read before it is made)")


def test_assignment_of_another_shape(plan):
    (target, _), *rest = plan.assignments
    other = next(s for t, s in rest if plan.value(s).slice_shape != plan.value(target).slice_shape)
    refused(replace(plan, assignments=((target, other), *rest)), "takes the value of")


def test_output_that_is_never_made(plan):
    refused(replace(plan, outputs=("nothing",)), "'nothing' is never made")


def test_gradient_that_is_never_made(plan):
    refused(replace(plan, gradients=(("w", "nothing"),)), "the gradient of w, 'nothing', is never made")


def test_backward_before_forward(plan):
    stage = plan.stages[0]
    refused(replace(plan, stages=(replace(stage, actions=stage.actions[::-1]),)), "is read before it is made")


@pytest.mark.parametrize("change", ["missing", "unknown", "twice"])
def test_actions_that_do_not_run_the_programs(plan, change):
    stage = plan.stages[0]
    actions = {
        "missing": stage.actions[:-1],
        "unknown": (*stage.actions, Action(0, "F", 1, "sideways")),
        "twice": stage.actions * 2,
    }[change]
    refused(replace(plan, stages=(replace(stage, actions=actions),)), "do not run the programs")


@pytest.mark.parametrize(("first", "count"), [(0, 4), (1, 8), (0, 16)])
def test_stages_that_do_not_cover_the_ranks(plan, first, count):
    refused(replace(plan, stages=(replace(plan.stages[0], first=first, count=count),)), "the stages have")


def test_every_instruction_is_needed_by_some_rule(plan):
    """Leaving out any one instruction is noticed: each makes something that a later one, an output, a gradient or an
    assignment reads.
    """
    unnoticed = []
    for phase, program in plan.stages[0].programs:
        for position in range(len(program)):
            try:
                with_program(plan, phase, program[:position] + program[position + 1 :]).verify()
                unnoticed.append((phase, program[position].out))
            except PlanError:
                continue
    assert not unnoticed
