"""The Search Lab without a browser: the winner is the least by trying all, arguments flip it, and the words say why."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import parallel_lab as pl
from parallel_lab.base.errors import StrategyError
from parallel_lab.cost import step_time_s
from parallel_lab.cost.search.problem import amount_text
from parallel_lab.graph.compiler import compile_network
from parallel_lab.lab.code.exports import STEPS
from parallel_lab.lab.search.model import SearchLab
from parallel_lab.lab.search.space import MODES
from parallel_lab.lab.search.subjects import SUBJECTS
from parallel_lab.processes.shm import close_all
from parallel_lab.train.session import Session
from tests.crossed import each_of
from tests.lab.test_lab_programs import by_launcher, match


def every_plan(lab):
    """(cost, bytes) of every way to choose, by the costs of the lab."""
    problem = lab.argued.whole
    ways = itertools.product(*(range(len(choice.candidates)) for choice in problem.choices))
    return [(problem.cost(way), problem.memory_bytes(way)) for way in ways]


# ---- what is found ----


@each_of("mode", "exact", "dynamic_programming")
def test_the_winner_costs_least_and_the_front_is_what_nothing_beats(mode):
    lab = SearchLab(devices=2, mode=mode)
    plans = every_plan(lab)
    assert lab.winner.cost == pytest.approx(min(cost for cost, _ in plans), rel=1e-12)
    least: dict[int, float] = {}
    for cost, size in plans:
        least[size] = min(cost, least.get(size, np.inf))
    front, best = [], np.inf
    for size in sorted(least):
        if least[size] < best * (1 - 1e-12):
            best = least[size]
            front.append((best, size))
    found = [(p.cost, p.memory_bytes) for p in lab.argued.front]
    assert found == [(pytest.approx(cost, rel=1e-12), size) for cost, size in reversed(front)]


def test_the_seconds_are_those_of_the_compiled_plan():
    """But for the optimizer's update, which no strategy changes the form of."""
    lab = SearchLab(devices=4)
    for point in (lab.winner, lab.own, lab.argued.front[-1]):
        told = step_time_s(lab.space.plan(point.strategies), lab.space.profile)
        update_s = next(p.total_s for p in told.phases if p.phase == "update")
        assert point.cost == pytest.approx(told.total_s - update_s, rel=1e-9)
        assert point.cost == pytest.approx(sum(point.terms.values()), rel=1e-12)


def test_the_best_plan_with_a_candidate_is_the_least_of_all_that_have_it():
    lab = SearchLab(devices=2)
    problem, operator = lab.argued.whole, "matmul"
    number = problem.numbers[operator]
    for one in lab.candidates(operator):
        pinned = problem.pinned({operator: one.strategy})
        ways = itertools.product(*(range(len(choice.candidates)) for choice in pinned.choices))
        assert one.point.cost == pytest.approx(min(map(pinned.cost, ways)), rel=1e-12)
        assert one.point.cost - lab.winner.cost == pytest.approx(sum(one.more.values()), abs=1e-12)
        own = problem.choices[number].costs[problem.choices[number].candidates.index(one.strategy)]
        assert one.own["gradients"] == pytest.approx(own[2])


# ---- arguing ----


def test_a_pin_holds_and_the_words_say_what_would_win_without_it():
    lab = SearchLab(devices=2)
    free = lab.winner
    strategy = next(c.strategy for c in lab.candidates("matmul") if not c.chosen)
    lab.set_pin("matmul", str(strategy))
    assert lab.winner.strategies["matmul"] == strategy and lab.winner.cost >= free.cost
    status = lab.snapshot()["status"]
    assert f"Without the pin of matmul the winner would be matmul {free.strategies['matmul']}" in status
    lab.set_pin("matmul", None)
    assert lab.winner == free and "Without" not in lab.snapshot()["status"]


def test_a_cap_takes_the_least_that_fits_and_one_too_small_changes_nothing():
    lab = SearchLab(devices=2)
    plans, cap = every_plan(lab), lab.argued.front[-1].memory_bytes
    lab.set_capacity(cap)
    assert lab.winner.cost == pytest.approx(min(cost for cost, size in plans if size <= cap), rel=1e-12)
    assert f"Without the cap of {pl.base.units.bytes_text(cap)}" in lab.to_text()
    before = lab.state()
    with pytest.raises(StrategyError, match="no choice of strategies needs at most"):
        lab.set_capacity(min(size for _, size in plans) - 1)
    assert lab.state() == before


def test_where_messages_count_nothing_the_plan_wins_that_computes_least():
    lab = SearchLab(devices=2)
    for term in ("partial sums", "gradients", "redistribution"):
        lab.set_weight(term, 0)
    problem = lab.space.problem
    ways = itertools.product(*(range(len(choice.candidates)) for choice in problem.choices))
    assert lab.winner.cost == pytest.approx(min(problem.by_term(way)["compute"] for way in ways), rel=1e-12)


@pytest.mark.exhaustive
def test_propagation_keeps_every_edge_free_and_costs_many_times_the_least():
    """8 devices, batch 1024, widths 64, 64, 1024, 64, the first product's columns split: what halving and the exact
    search avoid.
    """
    lab = SearchLab("gap", mode="sharding_propagation")
    lab.set_pin("matmul1", "((1, 1), (1, 8))")
    assert lab.winner.strategies["matmul2"] == ((1, 8), (8, 1))
    ratio = lab.winner.cost / lab.argued.best.cost
    assert ratio > 2 and f"{ratio:.3g} times as much" in lab.snapshot()["status"]
    assert "partial sums" in lab.snapshot()["status"]
    lab.set_mode("exact")
    assert lab.winner.cost == lab.argued.best.cost


def test_a_weight_is_so_many_times_what_the_model_counts():
    """MindSpore's own sum counts a byte of communication 400 times."""
    lab = SearchLab(devices=2, costs="mindspore")
    assert [(t.name, t.weight) for t in lab.argued.whole.terms][1] == ("communication", 400.0)
    lab.set_weight("communication", 2)
    assert lab.argued.whole.terms[1].weight == 800.0
    lab.set_weight("communication", 1)
    assert lab.arguments == 0 and lab.argued.whole.terms[1].weight == 400.0


@pytest.mark.exhaustive
def test_slower_links_never_cost_less():
    lab, costs = SearchLab(devices=4), []
    for times in (10, 1, 0.1, 0.01):
        lab.set_bandwidth(times)
        costs.append(lab.winner.cost)
    assert costs == sorted(costs) and costs[0] < costs[-1]


# ---- taking over, looking ----


@pytest.mark.exhaustive
def test_what_is_taken_is_the_own_choice_and_lines_of_mindspore_set_it():
    lab = SearchLab(devices=4)
    lab.take("winner")
    assert lab.own == lab.winner and "which is your choice" in lab.snapshot()["status"]
    lab.set_own("data parallel")
    assert lab.own.strategies["matmul"] == ((4, 1), (1, 1))
    lab.set_code("self.matmul = ops.MatMul().shard(((2, 1), (1, 2)))")
    assert lab.own.strategies["matmul"] == ((2, 1), (1, 2)) and lab.own_name == "data parallel, but for matmul"


def test_the_program_gives_the_winners_strategies():
    lab = SearchLab(devices=4)
    for name in ("matmul", "relu", "matmul2"):
        assert f"self.{name} = ops." in lab.code() and f"shard({lab.winner.strategies[name]})" in lab.code()


def test_a_step_says_what_is_dealt_with():
    lab = SearchLab(devices=2, mode="dynamic_programming")
    steps = lab.argued.steps
    count = len(lab.space.operators)
    assert len([s for s in steps if s.text.startswith("back: ")]) == count and steps[-1].done == ()
    assert max(len(s.done) for s in steps) == count


@pytest.mark.exhaustive
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("net", SUBJECTS)
def test_every_net_is_searched_in_every_mode(net, mode):
    lab = SearchLab(net, 4, mode)
    best = lab.argued.best
    assert best.cost <= lab.winner.cost * (1 + 1e-12) and best.cost <= lab.own.cost * (1 + 1e-12)
    costs = [one.point.cost for one in lab.candidates()]
    assert costs[1:] == sorted(costs[1:]) and min(costs) == pytest.approx(best.cost)
    assert lab.space.subject.label in lab.to_text()


@pytest.mark.exhaustive
@pytest.mark.parametrize("net", SUBJECTS)
def test_mindspores_costs_are_searched_too(net):
    lab = SearchLab(net, 8, costs="mindspore")
    assert lab.winner.cost <= lab.own.cost * (1 + 1e-12) and "bytes" in lab.snapshot()["status"]


@pytest.mark.exhaustive
@pytest.mark.parametrize("net", ["quickstart", "gap", "megatron", "transformer"])
def test_the_winners_program_gives_the_losses_of_one_device_on_processes(net, tmp_path):
    lab = SearchLab(net, 4)
    job = lab.space.subject.kept
    plan = compile_network(job.net, *job.batches[0], loss=job.loss, optimizer=job.optimizer, device_num=1)
    with Session(plan, job.net, job.optimizer) as session:
        wanted = np.asarray(session.train(job.batches, STEPS), np.float64)
    name = lab.save_code(tmp_path).name
    for lines in by_launcher(tmp_path, 4, name):
        assert [float(loss) for _, loss in map(match, lines)] == pytest.approx(wanted, rel=1e-5)


# ---- both trained ----


@pytest.mark.exhaustive
@pytest.mark.timeout(300)
@pytest.mark.parametrize("net", ["quickstart", "dense", "gap", "transformer"])
def test_both_train_as_one_device_does(net, tmp_path):
    lab = SearchLab(net, 4)
    lab.run()
    assert lab.wait(250) and lab.snapshot()["run"]["state"] == "done"
    assert [p.equality.equal for p in lab.result.plans] == [True, True]
    assert all(p.predicted_s > 0 and p.quickest_s <= p.measured_s <= p.slowest_s for p in lab.result.plans)
    again = pl.open_lab(lab.save(tmp_path / "lab.json"))
    assert again.result == lab.result and "(recorded)" in again.to_text()
    other = next(one.strategy for one in lab.candidates() if not one.chosen)
    lab.set_pin(lab.snapshot()["operator"], other)
    assert lab.result is None  # it was about another winner
    assert [run.settings for run in lab.earlier] == [f"{net}, 4 devices, laptop, exact"]
    assert [found.partition(":")[0] for _, found in lab.earlier[0].rows] == ["winner", "yours"]
    assert amount_text(again.result.plans[0].measured_s, "s") in lab.earlier[0].rows[0][1]
    again = pl.open_lab(lab.save(tmp_path / "lab.json"))
    assert again.state() == lab.state() and again.earlier[0].rows == lab.earlier[0].rows
    assert f"recorded: {lab.earlier[0].settings}" in again.to_text()
    lab.close()
    close_all()


@pytest.mark.exhaustive
def test_a_run_that_is_stopped_keeps_nothing():
    lab = SearchLab("transformer", 2)
    lab.run()
    lab.stop()
    assert lab.wait(60) and lab.result is None and lab.snapshot()["run"]["state"] == "stopped"
    lab.close()
    close_all()
