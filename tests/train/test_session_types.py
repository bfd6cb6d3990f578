"""A plan that was changed is checked before it runs: no sum over ranks is missing, none is taken twice."""

from dataclasses import replace

import numpy as np
import pytest

import parallel_lab as pl
from parallel_lab import nn
from parallel_lab.graph.plan import Plan
from parallel_lab.graph.value_types import TypesError
from parallel_lab.lab.shared.mistakes import with_mistake

X = np.arange(24, dtype=np.float32).reshape(4, 6)


@pytest.fixture
def parts():
    """A product whose contracted dim is split four ways, and the instruction that adds it up."""
    pl.set_seed(0)
    net = nn.Dense(6, 2, has_bias=False)
    net.matmul.shard(((1, 2), (1, 2)))
    plan = pl.compile(net, X, device_num=2, dataset_strategy="full_batch")
    return net, plan, next(i for _, i in plan.instructions() if i.kind == "all_reduce")


def forgotten(plan, own):
    return with_mistake(plan, lambda i: replace(i, axes=()) if i is own else i)


def test_a_missing_sum_is_an_error_before_anything_runs(parts):
    net, plan, own = parts
    with pytest.raises(TypesError, match=r"a pending sum over ranks \(0, 1\), made by MatMul 'matmul'") as wrong:
        pl.Session(forgotten(plan, own), net)
    assert f"all_reduce (sum) of %{own.ins[0]}" in str(wrong.value)


@pytest.mark.parametrize("unchecked", [None, ("matmul",)])
def test_who_does_not_want_it_checked_says_so(parts, unchecked):
    """Then every rank has its addend: on the two ranks together the product."""
    net, plan, own = parts
    with pl.Session(forgotten(plan, own), net, unchecked=unchecked) as session:
        session.outputs(X)
        held = session.slices(own.out)
    np.testing.assert_allclose(sum(held), X @ net.weight.asnumpy().T, rtol=1e-5)
    assert not np.allclose(held[0], held[1])


def test_a_plan_as_it_was_compiled_is_not_checked_again(parts, monkeypatch):
    net, plan, own = parts
    asked = []
    monkeypatch.setattr("parallel_lab.train.session.from_above", lambda name: lambda plan, **how: asked.append(plan))
    copied, loaded = replace(plan), Plan.from_dict(plan.to_dict())
    for one in (plan, copied, loaded):
        with pl.Session(one, net):
            pass
    assert plan.as_compiled and asked == [copied, loaded] == [plan, plan]
    assert pl.check_types(plan)[own.ins[0]] == ("P",)
