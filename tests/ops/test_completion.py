"""Strategies with empty tuples are completed by labels. Cases: MindSpore's infer_strategy_*_test.cc."""

import numpy as np
import pytest

from parallel_lab import Parameter, StrategyError, Tensor, compile, nn, ops
from parallel_lab.layout.named_layout import Layout
from parallel_lab.ops.machine.completion import completed
from parallel_lab.ops.machine.registry import OPS, PRIMITIVES
from tests.nets import cell

NORM, LAST = ((16, 32, 64, 8), (32, 64, 8), (32, 64, 8)), {"begin_norm_axis": -1}
PICTURE, KERNEL = ((32, 32, 16, 16), (64, 32, 3, 3)), {"out_channel": 64, "kernel_size": 3}
CASES = [
    ("Add", ((16, 32, 48), (16, 32, 48)), {}, ((2, 4, 4), ()), ((2, 4, 4), (2, 4, 4))),
    ("Add", ((16, 32, 48), (32, 48)), {}, ((2, 4, 4), ()), ((2, 4, 4), (4, 4))),
    ("Add", ((16, 32, 48), (32, 48)), {}, ((), (4, 4)), ((1, 4, 4), (4, 4))),
    ("LayerNorm", NORM, LAST, ((2, 4, 8, 1), (), ()), ((2, 4, 8, 1), (4, 8, 1), (4, 8, 1))),
    ("LayerNorm", NORM, LAST, ((), (4, 8, 1), (4, 8, 1)), ((1, 4, 8, 1), (4, 8, 1), (4, 8, 1))),
    ("BiasAdd", ((16, 32), (32,)), {}, ((4, 8), ()), ((4, 8), (8,))),
    ("BiasAdd", ((16, 32), (32,)), {}, ((), (8,)), ((1, 8), (8,))),
    ("BatchNorm", ((16, 32, 64, 64), *((32,),) * 4), {}, ((2, 4, 8, 16), *((),) * 4), ((2, 4, 8, 16), *((4,),) * 4)),
    ("BatchNorm", ((16, 32, 64, 64), *((32,),) * 4), {}, ((), *((4,),) * 4), ((1, 4, 1, 1), *((4,),) * 4)),
    ("Conv2D", PICTURE, KERNEL, ((8, 2, 1, 1), ()), ((8, 2, 1, 1), (1, 2, 1, 1))),
    ("Conv2D", PICTURE, KERNEL, ((), (1, 2, 1, 1)), ((1, 2, 1, 1), (1, 2, 1, 1))),
    ("OneHot", ((64,), (), ()), {"depth": 10}, ((), (), ()), ((1, 1), (), ())),
    ("OneHot", ((64,), (), ()), {"depth": 10}, ((8,), (), ()), ((8, 1), (), ())),
    ("OneHot", ((64,), (), ()), {"depth": 10, "axis": 0}, ((8,), (), ()), ((1, 8), (), ())),
    ("MatMul", ((8, 16), (16, 4)), {}, ((2, 4), ()), ((2, 4), (4, 1))),
]


@pytest.mark.parametrize(("name", "shapes", "attrs", "given", "full"), CASES)
def test_empty_tuples_follow_the_labels(name, shapes, attrs, given, full):
    op = PRIMITIVES[name].op
    assert completed(op, shapes, {**op.default_attrs, **attrs}, given) == full


def test_full_strategies_and_wrong_counts_are_left_as_they_are():
    op = PRIMITIVES["MatMul"].op
    for given in (((2, 4), (4, 1)), ((2, 4),), ((2, 4), (), ()), ((), (1, 2))):  # the last one left x whole in silence
        assert completed(op, ((8, 16), (16, 4)), op.default_attrs, given) == given


def test_a_strategy_for_some_inputs_but_not_the_first_is_refused():
    """MindSpore: half-given is an error. x was split as gamma said, and beta too."""
    norm = nn.LayerNorm((32, 64, 8), begin_norm_axis=-1, begin_params_axis=1)
    norm.layer_norm.shard(((), (4, 8, 1), ()))
    with pytest.raises(StrategyError, match="has 0 counts for input 0, which has 4 dims"):
        compile(norm, np.ones(NORM[0], np.float32), device_num=64, dataset_strategy="full_batch")


NOTHING_GIVEN = {
    "MatMul": ((8, 16), (16, 4)),
    "Add": ((8, 16), (8, 16)),
    "BiasAdd": ((8, 16), (16,)),
    "ReLU": ((8, 16),),
    "LayerNorm": NORM,
    "MaskedFill": ((8, 16), (8, 16), ()),
    "Mul": ((), (8, 16)),
}


@pytest.mark.parametrize("layouts", [False, True])
@pytest.mark.parametrize("name", NOTHING_GIVEN)
def test_a_strategy_that_says_nothing_is_refused(name, layouts):
    """It was taken for one that leaves all inputs whole."""
    shapes, op = NOTHING_GIVEN[name], PRIMITIVES[name].op
    first = next(i for i, shape in enumerate(shapes) if shape)
    empty = Layout((8,), ("x",))() if layouts else ()
    net = called(PRIMITIVES[name]().shard((empty,) * len(shapes)))
    inputs = [
        np.ones(shape, bool if op.class_name == "MaskedFill" and i == 1 else "f4") for i, shape in enumerate(shapes)
    ]
    told = f"has 0 (counts|entries) for input {first}, which has {len(shapes[first])} dims .*(?s:.)*Try"
    with pytest.raises(StrategyError, match=told):
        compile(net, *inputs, device_num=8, dataset_strategy="full_batch")


def called(primitive):
    return cell(lambda net, *inputs: net.primitive(*inputs), primitive=primitive)


def product(strategy):
    w = Parameter(Tensor(np.ones((16, 4))), name="w")
    return cell(lambda net, x: net.matmul(x, net.w), w=w, matmul=ops.MatMul().shard(strategy))


def test_the_plan_shows_the_completed_strategy():
    plan = compile(product(((2, 4), ())), np.ones((8, 16)), device_num=8, dataset_strategy="full_batch")
    assert plan.graph.node("matmul").strategy == ((2, 4), (4, 1))
    with pytest.raises(StrategyError, match=r"strategy \(\(3|has 8 elements|splits|makes"):
        compile(product(((16, 1), ())), np.ones((8, 16)), device_num=8, dataset_strategy="full_batch")


def test_an_operator_of_numbers_alone_has_an_empty_strategy():
    """Its strategy has no entry at all, which says nothing that could be missing."""
    op = OPS["binary_cross_entropy_values"]
    assert completed(op, ((), (), ()), {}, ()) == ()
