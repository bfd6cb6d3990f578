"""Predict first: a lab asks, keeps the answer before it shows anything, and one switch turns it off."""

from __future__ import annotations

import pytest

from parallel_lab.base.errors import ArgumentError
from parallel_lab.lab.collectives.model import CollectiveStepper
from parallel_lab.lab.context.model import ContextLab
from parallel_lab.lab.costs.model import CostLab
from parallel_lab.lab.experts.model import ExpertLab
from parallel_lab.lab.explain.model import ExplainLab
from parallel_lab.lab.fusion.model import FusionLab
from parallel_lab.lab.memory.model import MemoryLab
from parallel_lab.lab.pipeline.model import PipelineLab
from parallel_lab.lab.recompute.model import RecomputeLab
from parallel_lab.lab.redistribution.model import RedistributionLab
from parallel_lab.lab.rosetta.model import RosettaLab
from parallel_lab.lab.runs.model import RunLab
from parallel_lab.lab.search.model import SearchLab
from parallel_lab.lab.shared.questions import VARIABLE, Question
from parallel_lab.lab.strategy.model import StrategyLab
from tests.crossed import each_of

LABS = {"strategy": StrategyLab, "stepper": CollectiveStepper}
LABS |= {"fusion": lambda: FusionLab("golf"), "memory": lambda: MemoryLab("stack", 4), "costs": CostLab}
LABS |= {"pipeline": PipelineLab, "recompute": RecomputeLab, "redistribution": RedistributionLab, "search": SearchLab}
LABS |= {"context": ContextLab, "experts": ExpertLab, "explain": ExplainLab, "rosetta": RosettaLab, "runs": RunLab}
each_lab = pytest.mark.parametrize("make", LABS.values(), ids=LABS)


def asking(make):
    lab = make()
    lab.set_predict(True)
    return lab, lab.question()


@pytest.mark.quick(2)
@each_lab
def test_nothing_is_said_before_the_answer_is_kept(make):
    lab, question = asking(make)
    title, asked, rest = lab.to_text().splitlines()
    assert question.text in asked and "answer or skip" in rest and title == lab.snapshot()["title"]
    told = []
    lab.on_change(lambda *what: told.append(dict(lab.answers)))
    given = question.choices[-1] if question.choices else "1" if isinstance(question.right[0], str) else 1
    lab.answer(question.key, given)
    assert told == [{question.key: given}]  # kept before the views hear of it
    text = lab.to_text()
    assert f"{question.why}." in text and f"you said {given}, " in text
    with pytest.raises(ArgumentError, match="is not open"):
        lab.answer(question.key, 2)
    assert lab.snapshot()["predict"]["answers"] == lab.answers


@pytest.mark.quick(4)
@each_lab
def test_one_switch_turns_it_off_and_another_turns_all_off(make, monkeypatch):
    lab, _ = asking(make)
    lab.set_predict(False)
    assert lab.question() is None and "Predict first" not in lab.to_text()
    monkeypatch.setenv(VARIABLE, "on")
    assert make().question() is not None
    monkeypatch.setenv(VARIABLE, "off")
    assert make().question() is None
    monkeypatch.setenv(VARIABLE, "perhaps")
    with pytest.raises(ArgumentError, match="on or off"):
        make()


@pytest.mark.quick(4)
@each_lab
def test_a_skipped_question_is_shown_and_never_asked_again(make):
    lab, question = asking(make)
    lab.skip(question.key)
    assert lab.question() is None and "(skipped)" in lab.to_text() and lab.answers == {question.key: None}
    lab.ask()  # the next one, if the lab has one
    assert lab.question() is None or lab.question().key != question.key
    assert lab.predictions().rows[0][1] is None


def test_the_stepper_asks_for_rounds_and_chunks_by_formula():
    """Ring all_reduce: 2 (n - 1) rounds, and as many chunks from every rank."""
    lab, rounds = asking(lambda: CollectiveStepper("all_reduce", "ring", 5))
    lab.answer(rounds.key, 2 * (5 - 1))
    assert lab.snapshot()["predict"]["last"]["verdict"] == "right" and lab.question() is None
    lab.ask()
    chunks = lab.question()
    assert chunks.right == (2 * (5 - 1),)
    lab.answer(chunks.key, 5)
    assert lab.snapshot()["predict"]["last"]["verdict"] == "not yet"
    assert [row[1:3] for row in lab.predictions().rows] == [(8, 8), (5, 8)]
    lab.choose_ranks(6)
    assert lab.question().right == (10,)


def test_the_strategy_lab_asks_for_bytes_an_edge_and_a_rank():
    lab, edge = asking(StrategyLab)
    # #3 and #10, and #5 and #9, carry (8, 16) float32 each; w's gradient (8, 16), w2's (4, 16)
    assert edge.by == "select_tensor" and set(edge.right) == {"matmul.partial", "matmul2.partial"}
    lab.skip(edge.key)
    lab.ask()
    part = lab.question()
    assert part.by == "select_rank" and part.right == (4, 6, 7)  # partial sums of the same rows
    lab.answer(part.key, 7)
    assert lab.snapshot()["predict"]["last"]["verdict"] == "right"
    lab.select_tensor("w2")  # rows over k: rank 1 holds the same quarter
    assert lab.question().right == (1,)
    lab.select_message(3)
    assert lab.question().right == (8 * 16 * 4,)
    lab.select_message(1)  # a slice is not a message: nothing is sent, so no question about it
    assert lab.question().by != ""


def test_fusion_and_memory_take_answers_within_a_tenth():
    """Golf, all in one message: 10 ms of backward, then 1 ms + 68 MB x 0.25 ms = 18 ms with nothing left to compute."""
    lab, exposed = asking(lambda: FusionLab("golf"))
    assert exposed.right == (1 + 68 * 0.25,)
    lab.answer(exposed.key, 17)
    assert lab.snapshot()["predict"]["last"]["verdict"] == "right"
    memory, peak = asking(lambda: MemoryLab("stack", 4))
    most = max(rank.peak_bytes for rank in memory.ranks())
    assert peak.right[0] == pytest.approx(most / 1024, rel=1e-3)
    memory.answer(peak.key, 1.2 * most / 1024)
    assert memory.snapshot()["predict"]["last"]["verdict"] == "not yet"


def asked_of(lab) -> list[Question]:
    return list(lab.questions())


def test_the_pipeline_lab_asks_for_the_step_and_what_is_kept_but_not_of_a_drawing_or_a_puzzle():
    """1F1B: (p - 1) + m times F + B + W long, and the first rank keeps p micro-batches."""
    lab = PipelineLab(stages=4, micro_batches=8, times=(1, 2, 3))
    step, kept = asked_of(lab)
    assert step.right == ((3 + 8) * (1 + 2 + 3),) and kept.right == (4,)
    lab.clear()
    assert not asked_of(lab) and not asked_of(PipelineLab(puzzle="09.2 4x8 cap 4"))


def test_the_recompute_lab_asks_which_layer_frees_most_by_a_click_and_one_number_of_an_own_choice():
    lab, layer = asking(RecomputeLab)
    peaks = {}
    for n in range(12):
        lab.branch().toggle(n)
        other = RecomputeLab()
        other.toggle(n)
        peaks[n] = other.predicted.peak_bytes
    assert layer.by == "toggle" and set(layer.right) == {n for n in peaks if peaks[n] == min(peaks.values())}
    lab.answer(layer.key, layer.right[0])
    assert lab.recomputed == []  # a click on an answer chooses nothing
    lab.toggle(4)
    assert lab.question().right == (peaks[4],)
    lab.skip(lab.question().key)
    lab.toggle(5)
    assert lab.question() is None  # one number, not one after every click


def test_the_redistribution_lab_asks_for_bytes_and_for_a_rank_that_has_what_is_lacking():
    """(16, 32) float32 from 2 x 1 to 1 x 2 on 2 ranks: 8 x 16 elements come from the other one."""
    received, giver = asked_of(RedistributionLab(2, "2 x 1", "1 x 2", steps="exact"))
    assert received.right == (8 * 16 * 4,) and giver.right == (1,) and giver.by == "set_rank"
    (ring, _) = asked_of(RedistributionLab(4, "4 x 1", "1 x 1"))
    assert ring.right == (3 * 4 * 32 * 4,)
    assert not asked_of(RedistributionLab(4, "4 x 1", "4 x 1"))


def test_the_search_lab_asks_how_far_the_own_choice_is_and_which_operator_has_most_strategies():
    lab = SearchLab("quickstart", devices=8)
    ratio, most = asked_of(lab)
    assert ratio.right[0] == pytest.approx(lab.own.cost / lab.winner.cost, rel=0.01) and ratio.right[0] > 1
    assert set(most.right) <= {"matmul", "matmul2"} and most.by == "select_operator"
    lab.take("winner")
    assert [question.by for question in asked_of(lab)] == ["select_operator"]


def test_the_cost_lab_asks_by_choices_and_for_the_crossing():
    """8 ranks, alpha 5 us, 10 GB/s: halving and doubling take over where 3 alpha = (3 - 7/4) beta S."""
    lab, small = asking(CostLab)
    assert small.right == ("recursive_doubling",) and set(small.choices) >= {"ring", "halving_doubling"}
    with pytest.raises(ArgumentError, match="halving_doubling"):
        lab.answer(small.key, "rings")
    lab.answer(small.key, "ring")
    lab.ask()
    assert lab.question().right[0] == pytest.approx(3 * 5e-6 / (1.25 * 1e-10) / 1024, rel=0.01)


def test_several_numbers_are_an_answer_however_they_are_written():
    ranks = Question("k", "?", ("(4, 5, 6, 7)",), "", listed=True)
    for given in ("4 5 6 7", (4, 5, 6, 7), "[4,5,6,7]", [4, 5, 6, 7]):
        assert ranks.is_right(ranks.read(given, ""))
    assert not ranks.is_right(ranks.read("4 5", ""))
    with pytest.raises(ArgumentError, match="Whole numbers"):
        ranks.read("all of them", "")


@each_of("given", "six", True, None, float("nan"))
def test_what_can_be_no_answer_is_refused_and_asked_again(given):
    lab, question = asking(CollectiveStepper)
    with pytest.raises(ArgumentError):
        lab.answer(question.key, given)
    assert lab.question() == question and not lab.answers


def test_an_answer_is_right_as_it_is_or_within_its_share():
    exact, near = Question("k", "?", (6, 7), ""), Question("k", "?", (100.0,), "", within=0.1)
    assert exact.is_right(7) and not exact.is_right(6.1) and not exact.is_right(None)
    assert near.is_right(91) and not near.is_right(89)


def test_a_clicked_tensor_goes_by_its_name_in_the_lab():
    lab, question = asking(StrategyLab)
    assert question.by == "select_tensor" and "matmul.partial" in question.right
    labels = {t["id"]: t["label"] for t in lab.snapshot()["tensors"]}
    lab.answer(question.key, "x.for.matmul")
    ((_, yours, right, *_),) = lab.predictions().rows
    assert (
        (yours, right)
        == (labels["x.for.matmul"], labels["matmul.partial"])
        == ("x for matmul", "out of matmul, partial sums")
    )
    assert "out of matmul, partial sums or out of matmul2, partial sums (you said x for matmul" in lab.to_text()
