"""Lesson 17's exercises: their rules are those of slices, notations, products; wrong answers hear what they are."""

from __future__ import annotations

import ast
import contextlib
from itertools import permutations, product

import numpy as np
import pytest

from parallel_lab.base.errors import LayoutError
from parallel_lab.lab.exercises import full_memory, lesson_17
from parallel_lab.lab.exercises.lesson_17 import MESHES, SIXTEEN, holders, right_forms, strided
from parallel_lab.lab.explain.explanation import read_program
from parallel_lab.lab.lessons import from_shard_to_dtensor as lesson
from parallel_lab.layout.device_mesh import DeviceMesh
from parallel_lab.layout.mesh_layout import MeshLayout
from parallel_lab.layout.mesh_redistribution import MeshStep, redistribution
from parallel_lab.layout.notations import written
from parallel_lab.run.communicator import Request
from tests.crossed import each_of
from tests.lab.recorded_puzzles import fewest_bytes
from tests.lab.verdicts import check, failed, told


def layouts(shape=(24, 48)):
    """Every way in which the axes of each mesh split two dims, hold copies, or (the last one) addends."""
    for mesh in MESHES:
        for at in product((0, 1, None), repeat=len(mesh)):
            for names in permutations(mesh):
                where = dict(zip(mesh, at, strict=True))
                dims = tuple(tuple(name for name in names if where[name] == dim) for dim in range(2))
                for pending in ((), *((name,) for name in mesh if where[name] is None)):
                    yield mesh, shape, dims, pending


CASES = list({str(case): case for case in layouts()}.values())


def laid_out(mesh, dims, pending):
    return MeshLayout.from_dims(DeviceMesh(tuple(mesh.values()), tuple(mesh)), dims, dict.fromkeys(pending, "sum"))


def test_who_holds_a_row_is_what_the_slices_say():
    for mesh, (rows, _), (order, _), pending in CASES:
        if pending:
            continue
        layout = laid_out(mesh, (order,), ())
        for row in (0, 5, rows - 1):
            wanted = [rank for rank in layout.mesh.ranks if row in layout.indices((rows,), rank)[0]]
            assert holders(row, rows, mesh, order) == wanted


def test_forms_are_those_of_the_notations():
    for mesh, shape, dims, pending in CASES:
        layout, forms = laid_out(mesh, dims, pending), right_forms(*strided(mesh, shape, dims, pending))
        assert forms["spec"] == dims and " ".join(forms["placements"]) == layout.code
        text = written(layout, shape)["mindspore.strategy"].text
        if pending:
            assert text is None and forms["strategy"] == "pending"
        else:
            assert forms["strategy"] == ("order" if text is None else ast.literal_eval(text)[0])


def test_the_sixteen_cells_are_those_that_run():
    """Free ones with the same result; where PyTorch's choice sends, what it sends is among the messages of the rule."""
    word = {"R": ("R", "R"), "P": ("P", "P"), "S0": ("m", "k"), "S1": ("k", "n")}
    code = {"R": "R", "P": "P", "m": "S0", "n": "S1"}
    for (left, right), (result, sent) in lesson.sixteen().items():
        of = ("mk", "kn", "mn", word[left][0], word[right][1])
        free, ways = lesson_17.cell(*of)
        if not sent:
            assert code[free] == result and ways == []
        else:
            assert free == "" and {f"{'ab'['xw'.index(s[-1])]} {s.split()[0]}" for s in sent} <= {*ways}
    assert len(SIXTEEN) == 16 and sum(bool(lesson_17.free_result(*of)) for of in SIXTEEN) == 8


VALUES = {
    "scale": lambda x: 2 * x,
    "negative": np.negative,
    "transpose": np.transpose,
    "sum": lambda x: x.sum(keepdims=True),
    "times a copy": lambda x: x * np.arange(1, 10).reshape(3, 3),
    "relu": lambda x: np.maximum(x, 0),
    "exp": np.exp,
    "square": np.square,
    "max": lambda x: x.max(keepdims=True),
    "plus a copy": lambda x: x + 1.0,
}


@pytest.mark.parametrize("name", VALUES)
def test_an_operator_loses_addends_or_does_not(name):
    a, b = np.random.default_rng(1).normal(size=(2, 3, 3))
    f = VALUES[name]
    assert np.allclose(f(a) + f(b), f(a + b)) == (name in lesson_17.LINEAR) != (name in lesson_17.LOSING)


def by_mesh(i, n, mesh, order):
    return holders(i, n, mesh, [name for name in mesh if name in order])


def forms_with(key, change):
    return lambda *of: right_forms(*of) | {key: change(right_forms(*of)[key], *of)}


def cells_with(result=lambda r, *of: r, messages=lambda m, *of: m):
    def cell(*of):
        free, ways = lesson_17.cell(*of)
        return result(free, *of[3:]), messages(ways, *of[3:])

    return cell


@each_of(
    ("number", "answer", "part", "words"),
    ("17.1", by_mesh, "another order", "its first axis cuts first"),
    ("17.1", by_mesh, "another order", "the mesh orders the splits"),
    ("17.1", lambda *of: holders(*of)[:1], "as in the mesh", "hold copies"),
    ("17.1", lambda i, n, mesh, o: holders(i, n, mesh, o[::-1]), "as in the mesh", "on the left is the outer one"),
    ("17.1", lambda row, rows, mesh, order: [row], "as in the mesh", ""),
    ("17.2", forms_with("spec", lambda s, *of: [o[::-1] for o in s]), "spec", "longest stride"),
    (
        *("17.2", forms_with("placements", lambda p, *of: [c[1:].split(":")[0] if ":" in c else c for c in p])),
        *("placements", "the mesh orders the splits"),
    ),
    (
        *("17.2", forms_with("strategy", lambda s, *of: "pending" if of[3] else lesson_17.counts_of(*of))),
        *("strategy", "equal counts, equal layout"),
    ),
    (
        *("17.2", forms_with("strategy", lambda s, *of: lesson_17.strategy(*of[:3], ()))),
        *("strategy", "no word for a pending sum"),
    ),
    ("17.2", lambda *of: {}, "spec", "KeyError"),
    ("17.3", cells_with(lambda r, a, b: "R" if a == b == "k" else r), "results", "no message where shapes fit"),
    ("17.3", cells_with(lambda r, a, b: "P" if a == b == "P" else r), "results", "product of two sums"),
    ("17.3", cells_with(lambda r, a, b: "" if "P" in (a, b) else r), "results", "stay addends"),
    ("17.3", cells_with(lambda r, a, b: "" if {a, b} == {"R", "k"} else r), "results", "cut for nothing"),
    ("17.3", cells_with(lambda r, a, b: "m" if (a, b) == ("m", "n") else r), "results", "block of the diagonal"),
    ("17.3", cells_with(messages=lambda m, a, b: [w for w in m if "to_all" not in w]), "messages", "not the only way"),
    ("17.3", cells_with(messages=lambda m, a, b: [w for w in m if w[0] == "a"]), "messages", "Either operand may move"),
    ("17.4", lambda operators: None, "operator", "partial sums may wait"),
    ("17.4", lambda operators: 0, "operator", ""),
    (
        *("17.4", lambda names: next((n for n, name in enumerate(names) if name in VALUES), None)),
        *("operator", "linear may read addends"),
    ),
)
def test_a_wrong_answer_hears_what_it_is(number, answer, part, words):
    assert words in f"{told(number, answer, part)} {failed(check(number, answer))[part].idea}"


def total(ranks, value):
    return Request("all_reduce", tuple(range(ranks)), value)


def of_parts(rank, ranks, mine):
    x, up, bias, down = mine
    h = np.maximum(x @ up + bias, 0)
    return h, (yield total(ranks, h @ down))


def after_relu(rank, ranks, mine):
    x, up, bias, down = mine
    h = yield total(ranks, np.maximum(x @ up + bias, 0))
    return h, h @ down


def bias_on_each(rank, ranks, mine):
    x, up, bias, down = mine
    h = np.maximum((yield total(ranks, x @ up + bias)), 0)
    return h, h @ down


def twice(rank, ranks, mine):
    x, up, bias, down = mine
    h = np.maximum((yield total(ranks, x @ up)) + bias, 0)
    return h, (yield total(ranks, h @ down))


def one_sum_too_many(rank, ranks, mine):
    x, up, bias, down = mine
    h = np.maximum((yield total(ranks, x @ up)) + bias, 0)
    return h, (yield total(ranks, h @ down)) / ranks


@each_of(
    ("block", "words"),
    (of_parts, "lost to the sum"),
    (after_relu, "partial sums may wait"),
    (bias_on_each, "as often as there are ranks"),
    (twice, "the sum has it 4 times"),
    (one_sum_too_many, "needs no message"),
    (None, "no program yet"),
    (lambda rank, ranks, mine: 3, "3"),
)
def test_a_wrong_program_hears_at_which_tensor_and_why(block, words):
    part = failed(check("17.4", lesson_17.first_loss, block=block))["tensors"]
    assert words in f"{part.found} {part.note} {part.idea}"


def test_predictions_are_compared_with_counts():
    rows = lesson.compare({"row": 10, "strategy": "((1, 4),)", "free": 8})._cells()
    assert [row[2:5] for row in rows] == [("6", "6", "not yet"), ("none", "none", "not yet"), ("8", "8", "right")]
    assert rows[0][-1].startswith('that is ("dp", "tp")') and rows[1][-1].startswith("on 8 ranks")


def test_the_pytorch_program_of_the_lesson_is_read_and_sends_what_the_explicit_step_sends():
    """A sum over tp for the product, over dp one for the mean and one for each gradient, of the slices' shapes."""
    found = read_program(lesson.TORCH)
    sent = [(m.kind, m.axis, m.shape) for m in found.messages]
    gradients = [("all_reduce", "dp", (8, 12 // 4)), ("all_reduce", "dp", (12 // 4, 4))]
    assert sent == [("all_reduce", "tp", (16 // 2, 4)), ("all_reduce", "dp", ()), *gradients] and not found.unread


# ---- 17.5 ----


@pytest.mark.quick(4)
@pytest.mark.parametrize("puzzle", full_memory.PUZZLES, ids=lambda puzzle: full_memory.text_of(puzzle.target))
def test_no_way_through_all_layouts_sends_less_than_par_and_no_planner_keeps_to_a_part(puzzle):
    """Bellman-Ford over all layouts, by the steps of a redistribution: they are all_to_all, and sent numbers theirs."""
    mesh, names = DeviceMesh(tuple(puzzle.sizes.values()), tuple(puzzle.sizes)), list(puzzle.sizes)

    def layout(dims):
        return MeshLayout.from_dims(mesh, dims)

    sent, least = {}, {puzzle.source: 0.0}
    for at in product(range(3), repeat=3):
        for order in permutations(names):
            dims = tuple(tuple(a for a in order if at[names.index(a)] == dim) for dim in range(3))
            for axis, to in product(names, range(3)):
                with contextlib.suppress(LayoutError):
                    after = puzzle.after(dims, axis, to)
                    step = MeshStep(layout(dims), names.index(axis), layout(after).placements[names.index(axis)])
                    assert step.kind == "all_to_all"
                    sent[dims, after] = step.sent_elements(puzzle.shape)
    for _ in range(60):
        for (before, after), more in sent.items():
            least[after] = min(least.get(after, np.inf), least.get(before, np.inf) + more)
    assert puzzle.par * puzzle.part == least[puzzle.target] and len(fewest_bytes(puzzle)) >= 5
    for planner in ("torch", "cheapest", "by dims", "gspmd"):
        with contextlib.suppress(LayoutError):  # the last two know no dim whose axes cut in another order
            steps = redistribution(layout(puzzle.source), layout(puzzle.target), puzzle.shape, planner)
            assert max(np.prod(step.after.local_shape(puzzle.shape, 0)) for step in steps) > puzzle.part


@each_of(
    ("answer", "part", "words"),
    ([("tp", None), ("dp", 0)], "arrives", "Park it on another dim"),
    ([("dp", 0), ("tp", 1)], "arrives", "dp first"),  # tp lies below it
    ([("tp", 2)], "arrives", "of 2 in 8: Equal slices"),  # cp 2 times tp 4
    ([], "arrives", "after 0 moves"),
    ([("dp", 1.5)], "arrives", "A list of (axis, dim)"),
    ([("dp", True)], "arrives", "A list of (axis, dim)"),
    ([("pp", 1)], "arrives", "A list of (axis, dim)"),
)
def test_moves_that_do_not_arrive_say_why(answer, part, words):
    assert words.replace(": ", ". ") in told("17.5", answer, part).replace(": ", ". ")


def test_a_way_round_arrives_and_is_not_at_par():
    best = fewest_bytes(full_memory.PUZZLES[0])
    (axis, to), home = best[0], ("tp", "dp", "cp").index(best[0][0])
    there_and_back = [(axis, to), (axis, home), *best]
    passed = {part.name: part.passed for part in check("17.5", there_and_back).parts}
    assert passed["arrives"] and not passed["par"] and check("17.5", best).passed
