"""Degrees of a run: groups against rank numbers, gradient rules against single tokens, states against their sums."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from parallel_lab.base.errors import ArgumentError
from parallel_lab.cost.planner import Degrees, axis_groups, get_decoder, loss_means
from tests.crossed import each_of
from tests.refusals import refused

RUNS = [
    Degrees(64, tensor=2, context=2, stages=2, expert=4),
    Degrees(48, tensor=2, context=3, stages=2, expert=4, expert_tensor=2),
    Degrees(16, tensor=4, expert=16),
    Degrees(12, tensor=2, context=3),
]


@pytest.mark.parametrize("run", RUNS, ids=repr)
def test_a_rank_stands_where_both_grids_say(run):
    """tp + TP (cp + CP (dp + DP pp)), and etp + ETP (ep + EP (edp + EDP pp))."""
    for sizes, names in ((run.axes, "tp cp dp pp"), (run.expert_axes, "etp ep edp pp")):
        (_, n0), (_, n1), (_, n2), (_, n3) = sizes
        rank = {(i, j, k, m): i + n0 * (j + n1 * (k + n2 * m)) for i, j, k, m in _places(n0, n1, n2, n3)}
        assert sorted(rank.values()) == list(range(run.world))
        for axis, name in enumerate(names.split()):
            lines: dict[tuple[int, ...], list[int]] = {}
            for place, number in rank.items():
                lines.setdefault(place[:axis] + place[axis + 1 :], []).append(number)
            assert run.groups(name) == tuple(sorted(map(tuple, lines.values())))


def _places(*sizes: int):
    return product(*map(range, sizes))


def test_groups_along_two_axes_hold_all_ranks_that_share_the_others():
    run = RUNS[0]
    assert run.groups("cp-dp")[0] == (0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30)
    assert all(len(group) == run.gradients.dense_group for group in run.groups("cp-dp"))
    assert all(len(group) == run.gradients.expert_group for group in run.groups("edp"))
    with pytest.raises(ArgumentError, match="axis='up'"):
        axis_groups([("tp", 2)], "up")


@pytest.mark.parametrize(
    "run", [Degrees(8, expert=4), Degrees(16, context=2, expert=8), Degrees(8, expert=1)], ids=repr
)
def test_expert_gradients_are_divided_by_all_copies_not_by_replicas(run):
    """Each rank's loss is the mean over its tokens; every token's gradient goes to one expert. The sum over replicas,
    divided by dp x cp, is the gradient of the mean over all tokens.
    """
    rng = np.random.default_rng(7)
    tokens, experts = 6, 8
    gradient, chosen = rng.normal(size=(run.world, tokens)), rng.integers(experts, size=(run.world, tokens))
    here = experts // run.expert
    received = np.zeros((run.world, experts))  # of the experts that a rank holds, from the ranks of its ep group
    for group in run.groups("ep"):
        for place, holder in enumerate(group):
            for expert in range(place * here, (place + 1) * here):
                mine = np.where(chosen[list(group)] == expert, gradient[list(group)] / tokens, 0)
                received[holder, expert] = mine.sum()
    rule = run.gradients
    one_device = np.array([gradient[chosen == e].sum() for e in range(experts)]) / gradient.size
    for group in run.groups("edp"):
        held = np.flatnonzero(np.any(received[list(group)] != 0, 0))
        summed = received[list(group)].sum(0)[held]
        assert summed / rule.divisor == pytest.approx(one_device[held], rel=1e-12)
        wrong = summed / len(group)
        assert wrong == pytest.approx(rule.expert_factor_if_divided_by_own_group * one_device[held], rel=1e-12)
        assert rule.expert_prescale * wrong == pytest.approx(one_device[held], rel=1e-12)


@pytest.mark.parametrize("level", range(4))
def test_states_of_all_ranks_hold_every_parameter_as_often_as_it_is_replicated(level):
    run, decoder = Degrees(256, tensor=2, context=2, stages=4, expert=8), get_decoder("mixtral_8x7b")
    states = run.states(decoder, level)
    experts = decoder.part("experts")
    assert states.dense_parameters * run.tensor * run.stages == decoder.parameters - experts
    assert states.expert_parameters * run.expert * run.stages == experts
    whole, cut = {0: (18, 0), 1: (6, 12), 2: (2, 16), 3: (0, 18)}[level]
    dense, own = states.dense_parameters, states.expert_parameters
    assert states.size_bytes == pytest.approx(dense * (whole + cut / 32) + own * (whole + cut / 8), rel=1e-12)


@each_of(
    ("run", "seq_length", "told"),
    (Degrees(8, tensor=8), 4096, ""),
    (Degrees(3, tensor=3), 4096, "32 heads on 3 ranks"),
    (Degrees(16, tensor=16), 4096, ""),
    (Degrees(16, tensor=2, context=8), 4104, "4104 tokens in 16 pieces"),
    (Degrees(16, expert=16), 4096, "8 experts on 16 ranks"),
    (Degrees(32, stages=32), 4096, ""),
    (Degrees(64, stages=64), 4096, "32 layers on 64 stages"),
)
def test_a_misfit_says_why(run, seq_length, told):
    assert run.misfit(get_decoder("mixtral_8x7b"), seq_length)[: len(told) or None] == told


def test_a_decoder_without_experts_has_no_expert_ranks():
    assert Degrees(8, expert=2).misfit(get_decoder("llama3_8b"), 64) == "0 experts on 2 ranks"


@each_of(
    ("degrees", "told"),
    ({"world": 8, "tensor": 3}, "world=8"),
    ({"world": 8, "stages": 2, "expert": 8}, "expert x expert_tensor = 8 on 4"),
    ({"world": 0}, "world=0"),
)
def test_degrees_that_do_not_divide_are_refused(degrees, told):
    with pytest.raises(ArgumentError, match=told):
        Degrees(**degrees)


def test_loss_means_are_those_of_single_tokens():
    counts, losses = [[5, 3], [0, 2], [4, 4]], [[0.5, 2.0], [9.0, 1.0], [3.0, 0.25]]
    tokens = [[np.full(n, x) for n, x in zip(*pair, strict=True)] for pair in zip(counts, losses, strict=True)]
    found = loss_means(counts, losses)
    ranks = [part for sample in tokens for part in sample]
    assert found.right == pytest.approx(np.concatenate(ranks).mean())
    assert found.mean_of_means == pytest.approx(np.mean([part.mean() if part.size else 0 for part in ranks]))
    of_samples = [sum(part.sum() for part in sample) / sum(map(len, sample)) for sample in tokens]
    averaged = np.mean([part.sum() / sum(map(len, sample)) for sample in tokens for part in sample])
    assert found.sample_sums_averaged_factor * np.mean(of_samples) == pytest.approx(averaged)


test_counts_without_a_mean_are_refused = refused([[0, 0]], [[1], [1, 2]], [[-1, 2]], by=loss_means, error=ArgumentError)
