"""The hunt: par is what surely suffices and not a point more, for 50 drawn hunts (most exhaustive); looks cost."""

import base64
import json
from dataclasses import replace
from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest

from parallel_lab.base.errors import ArgumentError
from parallel_lab.lab.hunt.cases import (
    ALIKE,
    LEVELS,
    Found,
    _answer,
    answer,
    culprit_of,
    held_alike,
    loss_row,
    new_case,
    right_run,
    suspects_of,
    training_of,
)
from parallel_lab.lab.hunt.game import Hunt
from parallel_lab.lab.hunt.model import COUNTS, SEEDS, HuntLab
from parallel_lab.lab.hunt.mutants import KINDS, mutant, sites
from parallel_lab.lab.hunt.par import Solver, Test as Look
from parallel_lab.lab.hunt.planted import Training, proved
from tests.crossed import each_of, first

Look.__test__ = False


# ---- par ----


def least(suspects, tests):
    """Par by trying every test at every set of suspects, with nothing left out."""

    @cache
    def of(suspects):
        if len(suspects) == 1:
            return 0
        worst = [
            test.cost + max(map(of, parts)) for test in tests if len(parts := list(test.parts(suspects).values())) > 1
        ]
        return min(worst, default=float("inf"))

    return of(frozenset(suspects))


def walked(solver, tests):
    """The most that following the solver's tree costs, over all suspects; the tree must end at the suspect."""
    costs = []
    for culprit in solver.among:
        left, cost = solver.among, 0
        while len(left) > 1:
            look = solver.best(left)[1]
            left, cost = look.parts(left)[look.answers[culprit]], cost + look.cost
        assert left == {culprit}
        costs.append(cost)
    return max(costs)


def test_par_of_three_suspects_by_hand():
    tests = [Look(("probe",), 1, ("equal", "equal", "4 times")), Look(("compare",), 2, ("a", "b", "b"))]
    assert Solver(3, tests).par == 3  # the probe; if it says "equal", the comparison


@pytest.mark.parametrize("count", [2, 5, 8, 16])
def test_halving_costs_the_logarithm(count):
    """A probe for each bit of a suspect's number: as many as 2 must be doubled to reach the count."""
    tests = [Look((bit,), 1, tuple(n >> bit & 1 for n in range(count))) for bit in range(5)]
    assert Solver(count, tests).par == (count - 1).bit_length()


def test_one_look_at_each_costs_all_but_one():
    tests = [Look((one,), 1, tuple(n == one for n in range(7))) for one in range(7)]
    assert Solver(7, tests).par == 6


@pytest.mark.parametrize("seed", first(10, range(60)))
def test_par_of_drawn_tests_is_the_least_of_all_trees(seed):
    rng = np.random.default_rng(seed)
    count = int(rng.integers(2, 10))
    tests = [
        Look((n,), int(rng.integers(1, 3)), tuple(rng.integers(0, rng.integers(2, 4), count).tolist()))
        for n in range(9)
    ]
    solver = Solver(count, tests)
    assert solver.par == least(range(count), tests)
    if solver.par < float("inf"):
        assert walked(solver, tests) == solver.par


LOUDNESS = [level for level in LEVELS if level != ALIKE]
DRAWN = [("mlp", count, level, seed) for seed in range(6) for count in (4, 8) for level in LOUDNESS]
DRAWN += [("mlp", 16, level, 40 + n) for n, level in enumerate(LOUDNESS)] + [
    ("tensor", 8, "quiet", n) for n in range(6)
]
DRAWN += [("gpt", 8, "silent", n) for n in range(5)]


@pytest.mark.parametrize(("net", "count", "level", "seed"), first(3, DRAWN))
def test_par_holds_for_a_drawn_hunt(net, count, level, seed):
    hunt = Hunt(net, count, level, seed)
    tests = list(hunt.case.tests())
    assert len({test.answers for test in tests}) > 1 and len(set(hunt.case.answers)) == count
    start = hunt.case.start
    # looks that split alike are one: the number of the first suspect who answers the same stands for the answer
    kinds = {(tuple(t.answers.index(t.answers[n]) for n in sorted(start)), t.cost): t for t in tests}
    assert hunt.par == least(start, list(kinds.values())) == walked(hunt.solver, tests)


def test_fifty_hunts_are_drawn():
    assert len(DRAWN) == 50


# ---- a hunt ----


HARDER = [("tensor", 4, 0), *(("tensor", 16, seed) for seed in range(6)), *(("gpt", 16, seed) for seed in range(6))]


@pytest.mark.parametrize(("net", "count", "seed"), first(1, HARDER))
def test_suspects_that_look_alike_cost_the_logarithm_of_their_number(net, count, seed):
    """Their losses say the same and so does every comparison: par of 16 is 4 at least, proved by following the tree."""
    hunt = Hunt(net, count, "alike", seed)
    case, tests = hunt.case, list(hunt.case.tests())
    assert case.start == frozenset(range(count)) and len(set(case.answers)) == count
    compared = [n for n, look in enumerate(case.looks) if look[0] == "compare"]
    assert len(compared) == 6 and len({tuple(said[n] for n in compared) for said in case.answers}) == 1
    assert 2**hunt.par >= count and walked(hunt.solver, tests) == hunt.par


@pytest.mark.parametrize(("net", "count"), first(1, [("experts", 8), ("mlp", 8), ("mlp", 4), ("mlp", 16)]))
def test_small_networks_have_suspects_that_look_alike(net, count):
    hunt = Hunt(net, count, ALIKE, 0)
    case = hunt.case
    said = {
        tuple(a for look, a in zip(case.looks, answers, strict=True) if look[0] == "compare")
        for answers in case.answers
    }
    assert case.start == frozenset(range(count)) and len(set(case.answers)) == count and len(said) == 1
    assert hunt.par == min(count.bit_length() - 1, 3) == walked(hunt.solver, list(case.tests()))


def every_bug(net):
    """All there are of a network: each kind at each site, whatever a seed draws there."""
    plan = training_of(net).plan
    made = [mutant(plan, kind, site, seed) for kind in KINDS for site in sites(plan, kind) for seed in range(12)]
    return [bug for bug in {one.plan: one for one in made if one is not None}.values() if bug is not None]


@pytest.mark.exhaustive
@pytest.mark.parametrize(("net", "most", "par"), [("mlp", 32, 3), ("experts", 12, 3)])
def test_a_small_network_has_no_harder_hunt(net, most, par):
    """Par of some is at most par of all: no 16 of the 32 of an MLP have more than 3; experts have 12, and no 16."""
    training, right, held = training_of(net), right_run(net), held_alike(training_of(net).plan)
    looks = [*(("probe", *where) for where in right.arrays), *(("compare", *pair) for pair in held)]
    groups = {}
    for bug in every_bug(net):
        found = Found(right.names)
        if (planted := proved(bug, training, found.watch)) is not None:
            said = tuple(_answer(held, right, found, look) for look in looks)
            groups.setdefault((loss_row(planted), said[-len(held) :]), {})[said] = planted
    alike = max(groups.values(), key=len)
    tests = [Look(look, 1 + (look[0] == "compare"), answers) for look, *answers in zip(looks, *alike, strict=True)]
    assert len(alike) == most and Solver(most, tests).par <= par
    assert HuntLab(net, 8, ALIKE).choices()["level"].known


def test_a_hunt_by_the_solvers_tree_ends_at_par_or_below():
    hunt = Hunt("mlp", 8, "quiet", 1)
    while len(hunt.left) > 1:
        look = hunt.solver.best(hunt.left)[1]
        kind, *where = look.name
        {"probe": hunt.probe, "compare": hunt.compare, "name": hunt.name}[kind](*where)
    assert hunt.left == {hunt.case.culprit} and 0 < hunt.spent <= hunt.par
    bug = hunt.case.suspects[hunt.case.culprit].mutant
    assert hunt.name(*hunt.labels[hunt.case.culprit], bug.mend) and f"par {hunt.par}" in hunt.verdict


def test_looks_cost_one_and_two_and_a_wrong_name_two():
    hunt = Hunt("mlp", 4, "quiet", 2)
    look = next(look for look in hunt.case.looks if look[0] == "probe")
    hunt.probe(*look[1:])
    assert hunt.spent == 1
    hunt.compare(0, 1)
    assert hunt.spent == 3
    assert not hunt.name("%nothing (forward)", "missing", "") and hunt.spent == 5
    assert "the operator is another" in hunt.verdict


def test_a_class_shares_a_seed():
    one, other = Hunt("mlp", 8, "loud", 3), Hunt("mlp", 8, "loud", 3)
    assert one.labels == other.labels and one.case.culprit == other.case.culprit


def test_louder_levels_have_louder_bugs_and_exclude_nobody():
    """200 drawings among nine suspects whose losses say the same: the odds are 4 to 2 to 1, by distance from the level.

    By level: loud 4, 2, 1; quiet 2, 4, 2; silent 1, 2, 4 for the loudest third, the next and the last.
    """
    losses = [SimpleNamespace(losses=[1.0, 1.0], wrong_losses=[2.0 + n, 2.0]) for n in range(9)]
    shares = {}
    for level in LOUDNESS:
        found = [culprit_of(losses, level, seed) for seed in range(200)]
        assert set(found) == set(range(9))
        shares[level] = [sum(n // 3 == 2 - third for n in found) / 200 for third in range(3)]
    expected = {"loud": [4 / 7, 2 / 7, 1 / 7], "quiet": [1 / 4, 1 / 2, 1 / 4], "silent": [1 / 7, 2 / 7, 4 / 7]}
    for level, share in shares.items():  # 0.12 is more than three standard deviations of a share of 200
        np.testing.assert_allclose(share, expected[level], atol=0.12)


def test_the_loss_alone_betrays_no_bug_where_two_losses_say_the_same():
    rows = [([1.0, 1.0], [1.0, 2.0]), ([1.0, 1.0], [1.0000001, 3.0]), ([1.0, 1.0], [2.0, 2.0])]
    suspects = [SimpleNamespace(losses=right, wrong_losses=wrong) for right, wrong in rows]
    assert {culprit_of(suspects, level, seed) for level in LOUDNESS for seed in range(20)} == {0, 1}


@each_of(
    ("right", "wrong", "said"),
    ([1.0, 2.0], [1.0, 2.0], "equal"),
    ([1.0, 2.0], [0.25, 0.5], "0.25 times"),
    ([1.0, 2.0], [2.0, 1.0], "other numbers"),
    ([1.0, 2.0], [np.nan, 2.0], "not finite"),
    ([1.0, 2.0], None, "not there"),
)
def test_a_probe_says_how_a_value_compares(right, wrong, said):
    assert answer(np.array(right), None if wrong is None else np.array(wrong)) == said


@each_of(
    "wrong",
    lambda hunt: Hunt("net"),
    lambda hunt: Hunt(suspects=17),
    lambda hunt: Hunt(level="hard"),
    lambda hunt: hunt.probe("nothing", 0, 0),
    lambda hunt: hunt.compare(1, 1),
    lambda hunt: hunt.compare(0, 9),
)
def test_what_is_not_there_is_refused(wrong):
    hunt = Hunt("mlp", 4, "quiet", 2)
    with pytest.raises(ArgumentError):
        wrong(hunt)
    assert hunt.spent == 0


def test_the_lab_asks_names_and_shows_types(tmp_path):
    lab = HuntLab("mlp", 4, "quiet", 2)
    lab.probe()
    lab.compare()
    lab.set_suspect(lab.hunt.case.culprit)
    lab.set_mend(lab.hunt.case.suspects[lab.hunt.case.culprit].mutant.mend)
    lab.tell()
    shot = lab.snapshot()
    assert "Found" in shot["status"] and "3 points" in shot["status"] and len(shot["sections"]["asked"]["rows"]) == 3
    types = {code for row in shot["sections"]["graph"]["rows"] for code in row[1] + row[2]}
    assert {"R", "P", "S0"} <= types
    assert "a pending sum (hatched)" in lab.to_text()
    assert "pl-type" in lab.to_html(tmp_path / "hunt.html").read_text()


# ---- what is known costs: nothing is free that par does not count ----


@pytest.mark.parametrize("seed", first(2, range(6)))
def test_at_the_start_those_who_fit_the_loss_look_alike(seed):
    """The whole snapshot is the same for each of them as the bug, and another one for those who are struck off."""
    lab = HuntLab("mlp", 8, "quiet", seed)
    case, shown = lab.hunt.case, lab.snapshot()
    assert shown["status"].endswith(f"{len(case.start)} of 8 suspects fit the loss and all answers.")
    for other in range(8):
        lab.hunt.case = replace(case, culprit=other)
        assert (lab.snapshot() == shown) == (other in case.start)
    struck = [row[0] for row in shown["sections"]["suspects"]["rows"] if row[3].startswith("struck off; its loss")]
    assert struck == [str(n) for n in range(8) if n not in case.start]


def test_par_counts_names_too():
    """Four suspects that no look tells apart: a name costs 2, and what it says of the parts may leave one of two."""
    tests = [Look(("name", one), 2, tuple((n == one, n % 2 == one % 2) for n in range(4))) for one in range(4)]
    assert Solver(4, tests).par == 4  # no: two of the other parity are left, and one of them is named
    assert Solver(4, tests, among={0, 1}).par == 2


def right_name(lab):
    lab.set_suspect(lab.hunt.case.culprit)
    lab.set_mend(lab.hunt.case.suspects[lab.hunt.case.culprit].mutant.mend)
    lab.tell()
    return lab.snapshot()["status"]


@pytest.mark.parametrize("way", ["forget", "seed", "file", "branch", "seed and file"])
def test_points_stay_with_a_hunt(way, tmp_path):
    """Three probes, then the hunt is left and found again: three points more or less cannot be had."""
    lab = HuntLab("mlp", 4, "quiet", 1)
    asks = lab.branch() if way == "branch" else lab
    for rank in range(3):
        asks.set_rank(rank)
        asks.probe()
    assert lab.hunt.spent == 3 and "par" in lab.snapshot()["status"]
    if "seed" in way:
        lab.set_seed(2)
        assert lab.hunt.spent == 0
    if "file" in way:
        lab = HuntLab.open(lab.save(tmp_path / "hunt.json"))
    if "seed" in way:
        lab.set_seed(1)
    if way == "forget":
        lab.forget()
        assert not lab.hunt.asked
    assert lab.hunt.spent == 3
    status = right_name(lab)
    assert "Found" in status and "3 points" in status
    assert ("par" in status) == (way != "forget") and ("tried before" in status) == (way == "forget")


def test_a_found_bug_is_known_when_the_hunt_begins_again():
    lab = HuntLab("mlp", 4, "quiet", 1)
    right_name(lab)
    lab.forget()
    assert "tried before" in (status := right_name(lab)) and "par" not in status


@each_of(
    "rows",
    [{"hunt": ["mlp", 4, "quiet", 1]}],
    [{"hunt": ["mlp", 4, "quiet", 1], "before": -3, "tries": 1, "looks": []}],
    [{"hunt": ["mlp", 4, "quiet", 1], "before": 0, "tries": 1, "looks": [["probe", "nothing", 0, 0]]}],
    [{"hunt": ["mlp", 4, "quiet", 1], "before": 0, "tries": 1, "looks": [["spend", 1, 2, 3]]}],
    "hunts",
)
def test_a_record_of_something_else_is_refused(rows):
    with pytest.raises(ArgumentError):
        HuntLab("mlp", 4, "quiet", 1).take_record(rows)


def test_the_right_suspect_with_a_wrong_mend_is_not_struck_off():
    """What an answer says of each part is kept: the operator and the kind are right, so only the bug is left."""
    hunt = Hunt("mlp", 8, "quiet", 2)
    culprit = hunt.case.culprit
    assert len(hunt.left) > 1 and not hunt.name(*hunt.labels[culprit], "another mend")
    assert hunt.left == {culprit} and hunt.spent == 2


@pytest.mark.parametrize("part", [0, 1])
def test_a_part_that_is_right_narrows(part):
    hunt = Hunt("mlp", 8, "quiet", 2)
    right, start = hunt.labels[hunt.case.culprit], hunt.left
    given = [right[n] if n == part else "another" for n in range(2)]
    hunt.name(*given, "another mend")
    assert hunt.left == {n for n in start if hunt.labels[n][part] == right[part]}


def test_what_is_found_stays_found():
    lab = HuntLab("mlp", 4, "quiet", 2)
    right_name(lab)
    said, culprit = lab.hunt.verdict, lab.hunt.case.culprit
    lab.set_suspect((culprit + 1) % 4)
    lab.tell()
    lab.probe()
    assert lab.hunt.verdict == said and lab.hunt.spent == 0 and lab.hunt.left == {culprit}


# ---- what is offered ----


@pytest.mark.parametrize(("net", "seed"), first(1, [(net, seed) for net in ("experts", "mlp") for seed in SEEDS]))
def test_every_offered_hunt_can_be_drawn(net, seed):
    most = COUNTS[net][-1]
    assert len(new_case(net, most, "quiet", seed).suspects) == most


def test_another_network_has_as_many_suspects_as_it_can():
    lab = HuntLab("mlp", 16, "quiet", 0)
    lab.set_net("experts")
    assert len(lab.hunt.labels) == COUNTS["experts"][-1] == max(lab.choices()["suspects"].known)
    with pytest.raises(ArgumentError):
        HuntLab("experts", 16)


def test_the_right_training_runs_once(monkeypatch):
    training, runs, run = training_of("mlp"), [], Training.run
    vars(training).pop("right", None)

    def counted(self, plan=None, watch=None):
        runs.append(plan)
        return run(self, plan, watch)

    monkeypatch.setattr(Training, "run", counted)
    suspects_of.cache_clear()
    new_case("mlp", 4, "quiet", 1)
    assert runs.count(None) == 1 and len(runs) > 4


# ---- on a page ----


def test_what_a_page_holds_says_nothing_at_a_glance():
    """Its text names no culprit, and undone it answers as the hunt does."""
    lab = HuntLab("mlp", 8, "quiet", 1)
    lab.probe()
    sealed, case = lab.page_snapshot()["sealed"], lab.hunt.case
    bug = case.suspects[case.culprit].mutant
    assert "sealed" not in lab.snapshot()
    raw = base64.b64decode(sealed)
    assert not any(word.encode() in raw for word in ("culprit", "Found", bug.kind, bug.mend, bug.instr.out))
    held = json.loads(bytes(byte ^ (31 + 7 * at) % 256 for at, byte in enumerate(raw)))
    assert held["culprit"] == case.culprit and held["par"] == lab.hunt.par and len(held["asked"]) == 1
    for at, look in enumerate(case.looks):
        assert held["words"][held["said"][at]] == case.answer(look)
        alike = [said[at] == case.answer(look) for said in case.answers]
        assert [code == held["patterns"][at][case.culprit] for code in held["patterns"][at]] == alike
