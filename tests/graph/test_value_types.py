"""Types of distributed values: what a sum over ranks has to do with them, and what of a thousand plans they say.

The bars (0 of 1,000 right programs named, 95 % of 150 reductions found) run as a twentieth; the rest is exhaustive.
"""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

import parallel_lab as pl
from parallel_lab import nn, ops
from parallel_lab.base.errors import ParallelLabError
from parallel_lab.graph.type_rules import MESSAGE_RULES, Refused, dual, through_operator, through_reshape
from parallel_lab.graph.value_types import TypesError, check_types, infer_types, types_of_dtensor
from parallel_lab.lab.exercises.lesson_14 import job
from parallel_lab.lab.hunt.mutants import REDUCTIONS, VALUES, drawn, mutant, sites
from parallel_lab.lab.hunt.planted import Training, differences, plant, proved
from parallel_lab.lab.shared.mistakes import with_mistake
from tests.crossed import each_of, first
from tests.graph.typed_plans import lessons, many

PLAIN = (("transpose_a", False), ("transpose_b", False))


# ---- rules ----


@each_of(
    ("a", "b", "result"),
    ("R", "R", "R"),
    ("S0", "R", "S0"),  # rows
    ("R", "S1", "S1"),  # columns
    ("S1", "S0", "P"),  # the contracted dim: every rank has addends
    ("P", "R", "P"),  # linear in both
    ("R", "P", "P"),
)
def test_a_product_follows_its_labels(a, b, result):
    assert through_operator("matmul", ((4, 6), (6, 3)), ((4, 3),), PLAIN, (a, b)) == (result,)


@each_of(
    ("name", "ins", "says"),
    ("relu", ("P",), "as if they were sums"),  # relu(a + b) is not relu(a) + relu(b)
    ("mul", ("P", "P"), "as if they were sums"),  # (a + b)(c + d) has four terms
    ("add", ("P", "R"), "once per rank"),  # a bias that each rank adds is added four times
    ("matmul", ("P", "S0"), "as if they were sums"),
)
def test_what_is_not_linear_refuses_addends(name, ins, says):
    shapes = ((4, 4),) * len(ins)
    with pytest.raises(Refused, match=says):
        through_operator(name, shapes, ((4, 4),), PLAIN if name == "matmul" else (), ins)


@each_of(
    ("kind", "code", "attrs", "result"),
    ("all_reduce", "P", {"reduce": "sum"}, "R"),
    ("all_reduce", "Pmax", {"reduce": "max"}, "R"),
    ("all_reduce", "V", {"reduce": "sum"}, "R"),
    ("all_reduce", "R", {"reduce": "max"}, "R"),  # the largest of copies is the copy
    ("reduce_scatter", "P", {"reduce": "sum", "dim": 1}, "S1"),
    ("all_gather", "S0", {"dim": 0}, "R"),
    ("all_to_all", "S1", {"split_dim": 2, "concat_dim": 1}, "S2"),
    ("slice", "R", {"dim": 0}, "S0"),
)
def test_a_message_makes_its_type(kind, code, attrs, result):
    assert MESSAGE_RULES[kind](code, attrs) == result


@each_of(
    ("kind", "code", "attrs", "doubled"),
    ("all_reduce", "R", {"reduce": "sum"}, True),  # n times the value
    ("all_reduce", "C", {"reduce": "sum"}, True),  # n times what gradients start from
    ("all_reduce", "S0", {"reduce": "sum"}, True),
    ("all_reduce", "P", {"reduce": "max"}, False),
    ("all_gather", "P", {"dim": 0}, False),
    ("slice", "P", {"dim": 0}, False),
)
def test_a_message_refuses_what_it_would_spoil(kind, code, attrs, doubled):
    with pytest.raises(Refused) as wrong:
        MESSAGE_RULES[kind](code, attrs)
    assert wrong.value.doubled is doubled


def test_gradients_have_the_dual_type_and_the_dual_of_that_is_the_type_again():
    codes = "R", "P", "S0", "S2", "V"
    assert [dual(code) for code in codes] == ["P", "R", "S0", "S2", "V"]
    assert [dual(dual(code)) for code in codes] == list(codes)


@each_of(
    ("before", "after", "code", "result"),
    ((4, 6), (24,), "S0", "S0"),
    ((4, 6), (4, 2, 3), "S1", "S1"),
    ((2, 3, 5), (6, 5), "S2", "S1"),
    ((6,), (6, 1), "R", "R"),
)
def test_a_reshape_keeps_the_split(before, after, code, result):
    assert through_reshape(before, after, code) == result


# ---- one network by hand ----


class Two(nn.Cell):
    """Columns, then rows: the second product leaves a pending sum over the four ranks."""

    def __init__(self):
        super().__init__()
        pl.set_seed(0)
        self.fc1, self.fc2 = nn.Dense(8, 16, has_bias=False), nn.Dense(16, 4)
        self.relu, self.square = ops.ReLU(), ops.Square()
        self.fc1.matmul.shard(((1, 1), (4, 1)))
        self.relu.shard(((1, 4),))
        self.fc2.matmul.shard(((1, 4), (1, 4)))

    def construct(self, x):
        return self.square(self.fc2(self.relu(self.fc1(x))))


def two(**settings):
    net = Two()
    how = {"loss": nn.MSELoss(), "device_num": 4, "dataset_strategy": "full_batch", **settings}
    return pl.compile(net, np.zeros((6, 8), np.float32), np.zeros((6, 4), np.float32), **how)


def of(types, plan, text):
    """Types along the only axis of four of the one value whose name ends so."""
    (name,) = (n for n in types if n.endswith(text))
    return {types[name]}


def test_values_and_gradients_of_two_products():
    plan = two()
    types = check_types(plan)
    codes = {name.rpartition("backbone.")[2]: set(t) for name, t in types.items()}
    assert codes["fc1.matmul"] == {"S1"} and codes["fc2.matmul.partial"] == {"P"} and codes["fc2.matmul"] == {"R"}
    weight = next(n for n, _ in plan.gradients if n.endswith("fc2.bias"))
    assert set(types.of_gradient(weight)) == {"R"} and types.word(weight, 0) == "invariant"
    hidden = next(n for n, _ in plan.value_gradients if n.endswith("fc2.matmul"))
    assert set(types.of_gradient(hidden)) == {"P"} and types.word(hidden, 0) == "replicated"


def test_a_sum_that_is_not_taken_names_the_operator_its_line_and_the_message():
    plan = two()
    forgotten = with_mistake(plan, lambda i: replace(i, axes=()) if i.out.endswith("fc2.matmul") else i)
    with pytest.raises(TypesError) as wrong:
        check_types(forgotten)
    text = str(wrong.value)
    assert "fc2.matmul' (test_value_types.py:" in text and "a pending sum over ranks (0, 1, 2, 3)" in text
    assert "all_reduce (sum) of %" in text


def test_a_sum_of_what_gradients_start_from_is_named():
    """Every rank has the gradient of the mean whole; added up it is four times that."""
    plan = two()
    (backward,) = (p for phase, p in plan.stages[0].programs if phase == "backward")
    start = next(i for i in backward if i.op == "fill")
    (reader,) = (i for i in backward if start.out in i.ins)
    name = f"{start.out}.once"
    again = replace(start, kind="all_reduce", ins=(name,), axes=(0,), device_matrix=(4,), attrs=(("reduce", "sum"),))
    program = [j for i in backward for j in ((replace(i, outs=(name,)), again) if i is start else (i,))]
    programs = tuple((p, tuple(program) if p == "backward" else old) for p, old in plan.stages[0].programs)
    values = tuple(sorted({**plan.value_table, name: plan.value(start.out)}.items()))
    wrong = replace(plan, stages=(replace(plan.stages[0], programs=programs),), values=values)
    first_one = infer_types(wrong).faults[0]
    assert first_one.kind == "doubled" and first_one.value == name and reader.ins[0] == start.out
    assert first_one.mend == f"Take away the all_reduce that makes %{start.out}"


def test_a_product_that_nobody_adds_up_is_what_made_the_addends():
    """Its operands are slices: they are not the pending sum, nor did they make it."""
    plan = two()
    (forward,) = (p for phase, p in plan.stages[0].programs if phase == "forward")
    last = next(i for i in forward if i.out.endswith("fc2.matmul"))
    left = (replace(i, outs=last.outs) if i.out == last.ins[0] else i for i in forward if i is not last)
    programs = tuple((p, tuple(left) if p == "forward" else old) for p, old in plan.stages[0].programs)
    found = infer_types(replace(plan, stages=(replace(plan.stages[0], programs=programs),))).faults[0]
    assert found.value == last.out and found.maker.op == "matmul" and found.maker.outs == last.outs


@pytest.mark.parametrize(("axes", "given"), [((2, 1), (0, 1, 2, 3)), ((2,), (0, 2))])
@pytest.mark.parametrize("kind", ["all_reduce", "reduce_scatter"])
def test_a_sum_over_too_many_ranks_or_others_is_mended_by_its_own_group(kind, axes, given):
    """x (8, 4) in two halves of rows and two of columns, w in two of rows: addends on ranks 0 and 1, 2 and 3."""
    net = nn.Dense(4, 6, has_bias=False)
    net.matmul.shard(((2, 2), (1, 2)), **({"out_strategy": ((4, 1),)} if kind == "reduce_scatter" else {}))
    plan = pl.compile(net, np.zeros((8, 4), np.float32), device_num=4, dataset_strategy="full_batch")
    (own,) = [i for _, i in plan.instructions() if i.kind == kind]
    assert own.group(0) == (0, 1) and own.device_matrix == (2, 2, 1)
    wrong = with_mistake(plan, lambda i: replace(i, axes=axes) if i is own else i)
    found = next(f for f in infer_types(wrong).faults if f.kind == "doubled")
    assert replace(own, axes=axes).group(0) == given
    assert found.mend == f"{kind} (sum) of %{own.ins[0]} over ranks (0, 1) and their like, and no more"


def test_a_sum_is_named_before_a_copy_that_stands_first():
    """relu(w) + all_reduce(x @ w), added up once more: the all_reduce added it up, not ReLU."""
    mesh = pl.DeviceMesh((4,), ("tp",))
    ones = np.ones((4, 4), np.float32)
    w, x, y = (pl.distribute_tensor(ones, mesh, [p]) for p in (pl.Replicate(), pl.Shard(1), pl.Shard(0)))
    plan = pl.compile(lambda w, x, y: ops.relu(w) + (x @ y).redistribute([pl.Replicate()]), w, x, y)
    (add,) = [i for _, i in plan.instructions() if i.op == "add"]
    (own,) = [i for _, i in plan.instructions() if i.kind == "all_reduce"]
    assert add.ins[1] == own.out
    twice = replace(own, ins=add.outs, outs=("twice",))
    program = tuple(j for i in plan.stages[0].program("forward") for j in ((i, twice) if i is add else (i,)))
    programs = tuple((p, program if p == "forward" else old) for p, old in plan.stages[0].programs)
    values = tuple(sorted({**plan.value_table, "twice": plan.value(add.out)}.items()))
    wrong = replace(plan, stages=(replace(plan.stages[0], programs=programs),), values=values)
    found = infer_types(wrong).faults[0]
    assert found.kind == "doubled" and found.maker is not None and found.maker.out == own.out


def test_an_operator_that_is_not_checked_is_shown():
    plan = two()
    forgotten = with_mistake(plan, lambda i: replace(i, axes=()) if i.out.endswith("fc2.matmul") else i)
    name = next(i.name for _, i in plan.instructions() if i.out.endswith("fc2.matmul"))
    types = check_types(forgotten, unchecked=(name,))
    assert f"not checked: {name}" in types.text() == repr(types)


def test_dtensors_have_types_by_their_placements():
    mesh = pl.DeviceMesh((2, 4), ("dp", "tp"))
    x = pl.distribute_tensor(np.ones((4, 8), np.float32), mesh, [pl.Shard(0), pl.Shard(1)])
    w = pl.distribute_tensor(np.ones((8, 4), np.float32), mesh, [pl.Replicate(), pl.Shard(0)])
    assert types_of_dtensor(x @ w) == (("S0", "S0"), ("P", "R"))


# ---- right programs ----


@pytest.mark.quick(4)
@pytest.mark.parametrize("name", lessons())
def test_nothing_is_wrong_in_a_lesson(name):
    types = infer_types(lessons()[name]())
    assert not types.faults, types.faults[0]


@pytest.mark.parametrize(("start", "count"), first(1, [(0, 10), *((1_000 * n, 50) for n in range(1, 21))]))
def test_nothing_is_wrong_in_right_programs(start, count):
    named = [(seed, str(types.faults[0])) for seed, plan in many(start, count) if (types := infer_types(plan)).faults]
    assert not named


# ---- mutants ----


def trainings(start, count):
    return [training for _, plan in many(start, count) if runs(training := Training.drawn(plan))]


def plant_many(trainings, family, count, seed):
    """So many bugs, a drawn one in each training in turn, and what was dropped: {"without effect": 12}."""
    made, dropped, number = [], Counter(), 0
    while len(made) < count and number < 20 * count:
        training = trainings[number % len(trainings)]
        found = drawn(training.plan, family, seed + number)
        planted = proved(found, training)
        if planted is None:
            dropped["no site" if found is None else "without effect"] += 1
        else:
            made.append(planted)
        number += 1
    return made, dropped


def runs(training):
    """Whether drawn data are in the range of labels."""
    try:
        training.run()
    except ParallelLabError:
        return False
    return True


@pytest.mark.parametrize(("start", "count"), first(1, [(0, 8), *((5_000 * n, 30) for n in range(1, 6))]))
def test_nearly_all_reductions_are_found(start, count):
    made, dropped = plant_many(trainings(start, 16 if count > 8 else 6), "reduction", count, start)
    found = [bool(infer_types(one.mutant.plan).faults) for one in made]
    print(sum(found), "of", len(found), Counter(one.mutant.kind for one in made), dropped)
    assert len(found) == count and sum(found) >= 0.95 * count


@pytest.mark.parametrize(("start", "count"), first(1, [(0, 8), *((5_000 * n, 30) for n in range(1, 6))]))
def test_wrong_values_have_right_types(start, count):
    made, dropped = plant_many(trainings(start, 16 if count > 8 else 6), "value", count, start)
    print(Counter(one.mutant.kind for one in made), dropped)
    assert len(made) == count
    assert not [str(one) for one in made if infer_types(one.mutant.plan).faults]


def test_there_are_four_kinds_of_reductions_and_more_than_eight_of_values():
    assert len(REDUCTIONS) == 4 and len(VALUES) >= 8


@pytest.mark.parametrize("kind", REDUCTIONS)
def test_a_fault_names_the_planted_place_or_what_reads_it(kind):
    """At every reduction of the GPT of lesson 14, whose norms' gradients are partial."""
    plan, known = job("sequence")[0], sites(job("sequence")[0], kind)
    for site in known[:: max(1, len(known) // 4)]:
        if (wrong := mutant(plan, kind, site)) is None:
            continue
        types = infer_types(wrong.plan)
        assert types.faults, str(wrong)
        first_one = types.faults[0]
        near = {first_one.value, *(first_one.instr.outs if first_one.instr else ()), *(first_one.instr.ins or ())}
        near |= set(first_one.maker.outs) if first_one.maker else set()
        touched = {*wrong.instr.outs, *wrong.instr.ins}
        reached = {o for _, i in plan.instructions() if touched & set(i.reads) for o in i.outs}
        assert near & (touched | reached | {f"{n}.once" for n in touched}), (str(wrong), str(first_one))


@pytest.mark.parametrize("name", ["tensor", "experts 2"])
def test_a_missing_sum_is_mended_by_the_group_that_was_left_out(name):
    """Groups of two and of all four ranks; types know the four as two axes, and the mend is one message."""
    plan, groups = lessons()[name](), set()
    for site in sites(plan, "missing"):
        if (wrong := mutant(plan, "missing", site)) is not None:
            found, group = infer_types(wrong.plan).faults[0], wrong.instr.group(0)
            assert found.kind == "missing" and f"over ranks {group} and their like" in found.mend, str(wrong)
            groups.add(group)
    assert (0, 1, 2, 3) in groups and (name == "tensor" or (0, 2) in groups)


def test_what_changes_no_gradient_is_dropped():
    """The division of a result that nobody differentiates: dropped; a missing sum of gradients: kept."""
    plan = two()
    training = Training.drawn(plan)
    assert proved(None, training) is None
    found = plant(plan, "missing", 0, training=training)
    assert found is not None and found.changed
    losses, gradients = training.run()
    assert not differences(gradients, training.run()[1]) and losses == training.run()[0]


def test_without_a_sum_each_rank_has_the_addend_of_its_own_rows():
    net = nn.Dense(3, 2)
    how = {"loss": nn.MSELoss(), "device_num": 4, "dataset_strategy": "full_batch"}
    plan = pl.compile(net, np.zeros((4, 3), np.float32), np.zeros((4, 2), np.float32), **how)
    training = Training.drawn(plan, 1)
    bias = next(s for s in sites(plan, "missing") if "bias" in plan.stages[0].program(s.phase)[s.position].name)
    found = plant(plan, "missing", bias, training=training)
    right, wrong = training.run()[1][0], training.run(found.mutant.plan)[1][0]
    (name,) = found.changed
    assert np.allclose(sum(wrong[name]), right[name][0], rtol=1e-6) and not np.allclose(wrong[name][0], right[name][0])


# ---- what looks wrong and is not ----


def test_what_looks_across_a_ranks_own_samples_is_its_own():
    """BatchNorm in data_parallel mode: statistics of each rank's rows, on purpose."""
    net = nn.SequentialCell([nn.Dense(8, 8), nn.BatchNorm1d(8), nn.Dense(8, 4)])
    how = {"loss": nn.MSELoss(), "device_num": 4, "parallel_mode": "data_parallel", "gradients_mean": True}
    plan = pl.compile(net, np.zeros((4, 8), np.float32), np.zeros((4, 4), np.float32), **how)
    check_types(plan)
    bias = next(s for s in sites(plan, "missing"))
    assert infer_types(mutant(plan, "missing", bias).plan).faults


def test_a_copy_becomes_addends_by_its_share_and_only_by_that():
    """x / 4 on four ranks is an addend of x; x / 2 is not."""
    mesh = pl.DeviceMesh((4,), ("tp",))
    ones = np.ones((4, 4), np.float32)
    x, y, z = (pl.distribute_tensor(ones, mesh, [p]) for p in (pl.Replicate(), pl.Shard(1), pl.Shard(0)))
    plan = pl.compile(lambda x, y, z: x + y @ z, x, y, z)
    check_types(plan)
    (div,) = [i for _, i in plan.instructions() if i.op == "div"]
    two = f"{2.0!r}:float32"
    values = tuple(sorted({**plan.value_table, two: plan.value(div.ins[1])}.items()))
    wrong = with_mistake(replace(plan, values=values), lambda i: replace(i, ins=(i.ins[0], two)) if i is div else i)
    assert "copies for addends" in str(infer_types(wrong).faults[0])


def test_an_operator_that_leaves_a_sum_out_on_purpose_is_listed():
    net = ops.ReduceSum().shard(((4, 1),)).add_prim_attr("cross_batch", True)
    plan = pl.compile(lambda x: net(x, 0), np.ones((8, 4), np.float32), device_num=4, dataset_strategy="full_batch")
    types = check_types(plan)
    assert types.unchecked and "not checked: " in types.text()
