"""The modes that make no sum least: what they take is what compiling takes, what they compared decides, and what is
said to flip a choice does."""

import numpy as np
import pytest

from parallel_lab import StrategyError, compile, nn
from parallel_lab.base.errors import ArgumentError
from parallel_lab.cost.search import eliminate, search
from tests.cost.test_search import strategies
from tests.recorded import nets


def ones(*shape):
    return np.ones(shape, "f")


# a net, its inputs, and the operator that is given
NETS = {
    "quick": (lambda: nets.Quick(32, 16, 16), (16, 32), (16, 16), "matmul", ((2, 4), (4, 1))),
    "chain": (lambda: nets.Chain([64, 256, 32, 128], [None] * 3), (64, 64), (64, 128), "matmul", ((1, 1), (1, 8))),
    "mlp": (lambda: nets.Mlp(64, 64, 64), (64, 64), (64, 64), "d1.matmul", ((1, 8), (1, 8))),
    "operator_parallel": (lambda: nets.OpPar(), (32, 1, 28, 28), (32, 10), "", None),
}
HOW = {"device_num": 8, "dataset_strategy": "full_batch", "fully_use_devices": False}


def found(name, method="sharding_propagation"):
    make, x, y, operator, strategy = NETS[name]
    net = make()
    if operator:
        given(net, name).shard(strategy)
    return search(net, ones(*x), ones(*y), loss=nn.MSELoss(), method=method, **HOW)


def given(net, name):
    return {"quick": lambda: net.matmul, "chain": lambda: net.mms[0], "mlp": lambda: net.d1.matmul}[name]()


@pytest.mark.quick(1)
@pytest.mark.parametrize("mode", ["sharding_propagation", "recursive_programming"])
@pytest.mark.parametrize("name", NETS)
def test_a_walk_takes_what_the_mode_takes_and_knows_what_it_could_have_saved(name, mode):
    make, x, y, operator, strategy = NETS[name]
    net = make()
    if operator:
        given(net, name).shard(strategy)
    how = {"parallel_mode": "auto_parallel", "search_mode": mode, **HOW}
    plan = compile(net, ones(*x), ones(*y), loss=nn.MSELoss(), **how)
    walked = found(name, mode)
    assert strategies(walked.plan) == strategies(plan)
    best = eliminate(walked.problem).cost
    assert walked.best.cost >= walked.best.lower_bound == best
    if not walked.best.proved:
        assert f"{walked.best.cost / best:.3g} times less" in walked.text()
    assert len(walked.steps_text().splitlines()) == len(walked.best.steps)


@pytest.mark.quick(1)
@pytest.mark.parametrize("name", NETS)
def test_what_was_compared_decides(name):
    walked = found(name)
    for operator, strategy in walked.strategies.items():
        first, *others = walked.compared(operator)
        assert first.chosen and first.strategy == strategy
        assert all(first.numbers < other.numbers and other.reason and not other.chosen for other in others)
        assert len({one.strategy for one in (first, *others)}) == len(others) + 1


@pytest.mark.exhaustive  # one by hand is quick
@pytest.mark.parametrize("name", ["quick", "chain"])
def test_what_flips_a_choice_does(name):
    walked, flipped = found(name), 0
    for operator in walked.strategies:
        for one in walked.compared(operator)[1:]:
            other = walked.flips(operator, one.strategy)
            if other is not None:
                assert walked.again(pinned=dict([other])).strategies[operator] == one.strategy
                flipped += 1
            assert walked.again(pinned={operator: one.strategy}).strategies[operator] == one.strategy
    assert flipped > 10


def test_the_reasons_of_the_seed_s_network_by_hand():
    """matmul ((2, 4), (4, 1)) of (16, 32) x (32, 16) leaves slices (8, 16): ((2, 1),) of relu takes them as they lie.

    ((1, 1),) needs the other half gathered, one message of 2 * 512 B forward and none back; each message costs as much
    as 3072 B at least, and so does the counterpart of a slice.
    """
    walked = found("quick")
    text = walked.candidates_text("relu")
    assert "follows 'matmul', whose result has slices (8, 16)" in text
    lines = {one.strategy: one for one in walked.compared("relu")}
    assert lines[((2, 1),)].chosen
    assert lines[((2, 4),)].reason == "512 bytes more touched by redistribution"
    assert lines[((1, 1),)].reason.endswith("bytes more of redistribution")
    assert walked.flips("matmul2", ((2, 4), (4, 1))) == ("relu", ((2, 4),))
    assert "taken if 'relu' is given ((2, 4),)" in walked.compared_text("matmul2")
    assert walked.compared_text("matmul") == "matmul: given\n  ((2, 4), (4, 1))  chosen"


@pytest.mark.exhaustive
def test_a_walk_and_the_optimum_are_one_search():
    walked = found("chain")
    best = walked.again(method="exact")
    assert best.best.proved and best.best.cost == pytest.approx(walked.best.lower_bound, rel=1e-9)
    assert "does not compare" in best.compared_text("matmul")
    with pytest.raises(ArgumentError, match="sharding_propagation"):
        best.flips("matmul", ((1, 1), (1, 1)))
    with pytest.raises(StrategyError, match="looks at no memory"):
        walked.again(memory_limit=1)
    better = [one for name in walked.strategies for one in walked.candidates(name) if one.cost < walked.best.cost]
    assert better and all(" less" in one.why("s") and not one.chosen for one in better)
