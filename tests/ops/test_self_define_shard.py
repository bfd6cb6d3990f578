"""`self_define_shard`: layouts of inputs and results are the learner's, and the operator computes on slices.

MindSpore (self_define_shard_info): layouts only, one per input and per result, one device matrix among each of both.
"""

import json

import numpy as np
import pytest

from parallel_lab import Layout, Parameter, StrategyError, Tensor, compile, mindspore as ms, nn, ops
from parallel_lab.graph.plan import Plan
from parallel_lab.run.simulator import Simulator

GRID = Layout((2, 2, 2), ("dp", "cp", "mp"))
ROWS = GRID("dp", "cp", "None")
OPTIONS = {"device_num": 8, "dataset_strategy": "full_batch"}


class Rotary(nn.Cell):
    """Part of the elements of each row, gathered and chosen from, as a rotary embedding takes them."""

    def __init__(self, own):
        super().__init__()
        self.mul = ops.Mul().shard((GRID("dp", "cp", "mp"), GRID("mp")))
        self.w = Parameter(Tensor(np.linspace(0.5, 2, 8)), name="w")
        self.cut, self.pick, self.select = ops.StridedSlice(), ms.ops.GatherD(), ms.ops.Select()
        self.sin = ops.Sin()
        if own:
            one, heads = (ROWS,), (GRID("cp", "None", "None"),)
            self.cut.add_prim_attr("self_define_shard", True).shard(one, one)
            self.pick.add_prim_attr("self_define_shard", True).shard(one * 2, one)
            self.select.add_prim_attr("self_define_shard", True).shard(heads * 3, heads)

    def construct(self, x, index):
        y = self.cut(self.mul(x, self.w), (0, 0, 0), (4, 4, 4), (1, 1, 1))
        y = self.pick(y, 2, index)
        return self.sin(self.select(y > 0, y, y * y))


def test_numbers_and_gradients_are_those_of_one_device(rng):
    batch = (
        rng.normal(size=(4, 4, 8)),
        rng.integers(0, 4, size=(4, 4, 6)).astype(np.int32),
        rng.normal(size=(4, 4, 6)),
    )
    found = []
    for own, settings in ((True, OPTIONS), (False, {"parallel_mode": "stand_alone"})):
        net = Rotary(own)
        plan = compile(net, *batch, loss=nn.MSELoss(), **settings)
        sim = Simulator(plan, {"w": net.w.asnumpy()})
        found.append((float(sim.run_step(*batch)), sim.full(dict(plan.gradients)["w"])))
        plan.verify()
    for got, want in zip(*found, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-10)


class One(nn.Cell):
    """An operator of one input and one result."""

    def __init__(self, primitive, strategy=None, out=None):
        super().__init__()
        self.primitive = primitive.add_prim_attr("self_define_shard", True)
        if strategy is not None:
            self.primitive.shard(strategy, out)

    def construct(self, x):
        return self.primitive(x)


def test_a_softmax_over_a_split_dim_is_each_slice_s_own(rng):
    x, layout = rng.normal(size=(4, 16)), GRID("dp", ("cp", "mp"))
    plan = compile(One(ops.Softmax(), (layout,), (layout,)), x, **OPTIONS)
    assert not [i for _, i in plan.instructions("forward") if i.is_communication]
    sim = Simulator(plan, {})
    sim.run_step(x)
    blocks = np.exp(x).reshape(4, 4, 4)
    own = (blocks / blocks.sum(-1, keepdims=True)).reshape(4, 16)
    np.testing.assert_allclose(sim.full(plan.outputs[0]), own, rtol=1e-10)


WRONG = {
    "counts": (((2, 4),), None, "with strategy .*A Layout per input and per result"),
    "nothing": (None, None, "with no strategy"),
    "no results": ((GRID("dp", "cp"),), None, "with no out_strategy"),
    "two inputs": ((GRID("dp", "cp"),) * 2, (GRID("dp", "cp"),), "2 layouts, but ReLU has 1 inputs"),
    "two results": ((GRID("dp", "cp"),), (GRID("dp", "cp"),) * 2, "2 layouts of results, but there are 1"),
    "one dim": ((GRID("dp"),), (GRID("dp", "cp"),), r"input 0 of shape \(4, 16\)"),
    "unequal slices": ((GRID(("dp", "cp", "mp"), "None"),), (GRID("dp", "cp"),), r"input 0 of shape \(4, 16\)"),
    "four devices": ((GRID("dp", "cp"),), (Layout((4,), ("dp",))("dp", "None"),), r"\(4,\) at result 0"),
    "another slice": ((GRID("dp", "cp"),), (GRID("dp", "None"),), r"gives slices \[\(2, 16\)\].*gives \[\(2, 8\)\]"),
}


@pytest.mark.parametrize("strategy, out, words", WRONG.values(), ids=WRONG)
def test_other_forms_are_refused_with_what_is_allowed(strategy, out, words):
    with pytest.raises(StrategyError, match=words):
        compile(One(ops.ReLU(), strategy, out), np.zeros((4, 16)), **OPTIONS)


def test_an_operator_made_of_others_refuses_it():
    layout = GRID("dp", "cp")
    with pytest.raises(StrategyError, match=r"self_define_shard.*is made of operators"):
        compile(One(ms.ops.SoftmaxExpand(), (layout,), (layout,)), np.zeros((4, 16)), **OPTIONS)


def test_it_is_a_bool():
    with pytest.raises(TypeError, match="self_define_shard"):
        ops.ReLU().add_prim_attr("self_define_shard", 1)


def test_a_saved_plan_and_a_search_keep_the_layouts(rng):
    x, layout = rng.normal(size=(4, 16)), GRID("dp", ("cp", "mp"))
    plan = compile(One(ops.Softmax(), (layout,), (layout,)), x, **OPTIONS)
    again = Plan.from_dict(json.loads(json.dumps(plan.to_dict())))
    assert again.to_dict() == plan.to_dict() and again.verify()
    for mode in ("dynamic_programming", "sharding_propagation", "recursive_programming"):
        searched = {"parallel_mode": "auto_parallel", "search_mode": mode}
        found = compile(One(ops.Softmax(), (layout,), (layout,)), x, **searched, **OPTIONS)
        assert found.value(found.outputs[0]).layout.same_placement(layout.tensor_layout()), mode
