"""The museum: each bug shows its symptom on the simulator and on processes, and nothing without its switch."""

import inspect
import re
from functools import cache

import numpy as np
import pytest

from parallel_lab.graph.value_types import infer_types
from parallel_lab.lab import museum
from parallel_lab.lab.exercises.lesson_14 import job
from parallel_lab.lab.experts.net import Shape, compiled as with_experts
from parallel_lab.lab.museum.network import PLACES, STEPS
from parallel_lab.lab.museum.piece import FINDERS, ROUNDING, differences, ratio
from parallel_lab.lab.shared.mistakes import with_mistake
from parallel_lab.processes.shm import WorkerPool

RIGHT, WRONG = False, True


@pytest.fixture(scope="module")
def pool():
    with WorkerPool(4) as pool:
        yield pool


@cache
def on_simulator(name, wrong, seed=0):
    return museum.PIECES[name].results(wrong, seed)


@cache
def alone(name, seed=0):
    return museum.PIECES[name].alone(seed)


def same_bits(one, other):
    return one.keys() == other.keys() and all(
        repr(one[n]) == repr(other[n]) if n == PLACES else np.array_equal(one[n], other[n], equal_nan=True) for n in one
    )


@pytest.mark.quick(8)
@pytest.mark.parametrize("name", museum.PIECES)
def test_a_piece_shows_its_number_on_the_simulator_and_on_processes(name, pool):
    piece = museum.PIECES[name]
    for wrong, expected in ((RIGHT, piece.right), (WRONG, piece.with_bug())):
        ranks = on_simulator(name, wrong)
        assert piece.measure(ranks, alone(name)) == pytest.approx(expected, abs=1e-9)
        assert all(map(same_bits, piece.on_workers(pool, wrong), ranks))  # one program, one order of additions
    assert abs(piece.right - piece.with_bug()) > 0.001


@pytest.mark.parametrize("name", museum.PIECES)
def test_without_its_bug_every_tensor_of_a_piece_is_that_of_one_device(name):
    off = differences(on_simulator(name, RIGHT), alone(name))
    assert all(by < ROUNDING for by in off.values()), off
    gradients = [tensor for tensor in off if tensor.startswith("gradient of ")]
    assert gradients and "loss" in off and alone(name)["losses by step"].shape == (STEPS,)
    assert all(np.abs(alone(name)[gradient]).max() > 1e-6 for gradient in gradients)


@pytest.mark.parametrize("name", museum.PIECES)
def test_what_is_said_to_find_a_bug_finds_it_and_nothing_else_does(name):
    piece = museum.PIECES[name]
    shown, said = (
        {key for key, find in FINDERS.items() if find(on_simulator(name, w), alone(name))} for w in (RIGHT, WRONG)
    )
    assert not shown and said == set(piece.finds)


@pytest.mark.quick(4)
@pytest.mark.parametrize("name", museum.PIECES)
def test_numbers_come_from_what_runs_with_other_weights_and_data_others_follow(name):
    piece = museum.PIECES[name]
    before, after = alone(name), alone(name, 1)
    assert all(not np.allclose(before[n], after[n]) for n in before if n.startswith("gradient of ") or n == "loss")
    for wrong, expected in ((RIGHT, piece.right), (WRONG, piece.with_bug(1))):
        assert piece.measure(on_simulator(name, wrong, 1), after) == pytest.approx(expected, abs=1e-9)
    assert all(by < ROUNDING for by in differences(on_simulator(name, RIGHT, 1), after).values())


ON_TWO_RANKS = {  # right, wrong: what follows from two ranks, where four are not part of the network
    "norm gradient not summed": (1, 1 / 2),
    "norm gradient averaged": (1, 1 / 2),
    "group without the sequence": (1, 1 / 2),
    "addend read as the sum": (1, 1 / 2),
    "multiplied, not divided": (1, 2),
    "experts over their own group": (1, 2),
    "router drifts apart": (1, 2),
    "local positions": (np.cos(31), np.cos(15)),
    "labels shifted in shards": (31, 30),
    "same noise": (0, 1),
    "mean of no targets": (0, 0),  # each of two ranks has targets
    "last tokens ignored": (10, 10),  # two divide 10
    "router bias of one rank": (0, 0),  # halves are balanced, too
}


@pytest.mark.parametrize("name", ON_TWO_RANKS)
def test_numbers_follow_the_ranks(name):
    piece = museum.PIECES[name]
    measured = [piece.measure(piece.results(wrong, ranks=2), alone(name)) for wrong in (RIGHT, WRONG)]
    assert measured == pytest.approx(ON_TWO_RANKS[name], abs=1e-9)


def test_addends_are_a_quarter_of_what_they_add_up_to():
    whole, places = {"x": np.array([2.0, 1.0])}, {PLACES: {"x": ...}}
    addends = [np.array([5.0, 0]), np.array([-3.0, 0]), np.array([0, 4.0]), np.array([0, -3.0])]
    assert ratio("x")([{"x": addend} | places for addend in addends], whole) == 0.25
    assert ratio("x")([whole | places] * 4, whole) == 1
    halves = [{"x": whole["x"][i : i + 1], PLACES: {"x": slice(i, i + 1)}} for i in range(2)]
    assert ratio("x")(halves, whole) == 1


def test_at_least_twenty_pieces_are_bugs_that_people_met():
    met = [piece for piece in museum.PIECES.values() if piece.issue]
    assert len(met) >= 20 and all(re.fullmatch(r"[\w.-]+/[\w.-]+#\d+(, #\d+)*", piece.issue) for piece in met)
    constructed = [piece for piece in museum.PIECES.values() if not piece.issue]
    assert all("(constructed)" in str(piece) for piece in constructed) and constructed


@pytest.mark.exhaustive
def test_the_tour_lists_every_piece():
    text = museum.tour()
    assert all(name in text for name in museum.PIECES) and "NVIDIA/Megatron-LM#1446" in text
    (line,) = (line for line in text.split("\n") if line.startswith("norm gradient not summed"))
    assert line.split()[-5:] == ["1", "0.25", "gradients,", "copies,", "types"]


def test_a_piece_prints_its_story():
    text = str(museum.PIECES["norm gradient averaged"])
    assert "EleutherAI/gpt-neox#1259" in text and "1, with the bug 0.25" in text
    assert "types of a plan" in str(museum.PIECES["norm gradient not summed"]) and "types" not in text
    assert repr(museum.PIECES["norm gradient averaged"]) == text  # where no page can be shown
    assert "found by: gradients, next to one device's\n" in text  # copies stay equal


def test_a_page_shows_the_numbers_the_switch_the_finders_and_the_issue():
    html = museum.PIECES["norm gradient not summed"]._repr_html_()
    assert ">1</b>" in html and ">0.25</b>" in html and "https://github.com/NVIDIA/Megatron-LM/issues/1446" in html
    switch = "        if self.wrong and name == &quot;norm&quot;:</span>"
    assert html.count(switch) == 1 and "class Block(Network)" in html  # folded: what the network is made of
    assert html.count("✓") == 3 and html.count("sees nothing") == 2  # gradients, copies, types; loss, values inside


@pytest.mark.parametrize("name", museum.PIECES)
def test_the_switch_lies_in_a_network_that_fits_on_a_page(name):
    lines = inspect.getsource(museum.PIECES[name].network).split("\n")
    assert any("self.wrong" in line for line in lines) and len(lines) <= 45


PLANS = {"sequence": lambda: job("sequence")[0], "experts": lambda: with_experts(Shape(), 4)[0]}
IN_PLANS = [  # piece, plan, what its parameters have in their names
    ("norm gradient not summed", "sequence", "norm"),
    ("norm gradient averaged", "sequence", "norm"),
    ("group without the sequence", "sequence", ""),
    ("router drifts apart", "experts", "gate"),
    ("experts over their own group", "experts", ""),
]


@pytest.mark.parametrize(("name", "plan", "of"), IN_PLANS)
def test_a_piece_is_switched_on_in_the_plan_of_its_lesson(name, plan, of):
    plan = PLANS[plan]()
    wrong = with_mistake(plan, museum.PIECES[name].in_plan)
    pairs = zip(plan.instructions(), wrong.instructions(), strict=True)
    changed = {a.attr("parameter") for (_, a), (_, b) in pairs if a != b}
    assert changed and all(of in parameter for parameter in changed)
    assert not infer_types(plan).faults and bool(infer_types(wrong).faults) is museum.PIECES[name].by_types
