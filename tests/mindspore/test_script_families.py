"""Scripts that compile a network without running it, in the forms of MindSpore's users, for every operator class.

A class is given a strategy, wrapped in a loss, in a gradient or in a training step, and compiled for 8 devices in
semi_auto or auto mode. Whatever the strategy: it compiles and tells its strategies, or a RuntimeError says why not.
"""

import math
import random

import numpy as np
import pytest
from parallel_lab.mindspore.common.api import _cell_graph_executor
from parallel_lab.mindspore.common.jit_config import JitConfig
from parallel_lab.mindspore.ops import composite as C, operations as P
from parallel_lab.mindspore.parallel._auto_parallel_context import auto_parallel_context
from parallel_lab.mindspore.parallel._cost_model_context import cost_model_context

from parallel_lab.base.errors import ParallelLabError
from parallel_lab.mindspore import Parameter, Tensor, context, nn
from parallel_lab.ops.machine.registry import PRIMITIVES

grad_all = C.GradOperation(get_all=True)
JUNK = [((),), ((1, 2, 3),), ((-1, 2), (2, 2)), ((0,),), ((2.0,),), "a", ((2, 2), 2), (None,), ((True, 2),), [(2, 2)]]


class Net(nn.Cell):
    def __init__(self, op, strategy, values):
        super().__init__()
        self.op = op if strategy is None else op.shard(strategy)
        self.values = values

    def construct(self, *inputs):
        return self.op(*inputs, *self.values)


class NetWithLoss(nn.Cell):
    def __init__(self, network):
        super().__init__()
        self.network, self.sum, self.cast = network, P.ReduceSum(), P.Cast()
        self.w = Parameter(Tensor(np.ones((8, 8), np.float32)), "w", parallel_optimizer=False)

    def construct(self, *inputs):
        out = self.network(*inputs)
        out = out[0] if isinstance(out, tuple) else out
        return self.sum(self.cast(out, "float32")) + self.sum(self.w)


class GradWrap(nn.Cell):
    def __init__(self, network):
        super().__init__()
        self.network = network

    def construct(self, *inputs):
        return grad_all(self.network)(*inputs)


def trained(network):
    loss = NetWithLoss(network)
    return nn.TrainOneStepCell(loss, nn.Momentum(loss.trainable_params(), 0.1, 0.9))


WRAPPED = [lambda net: net, NetWithLoss, lambda net: GradWrap(NetWithLoss(net)), trained]


@pytest.fixture(autouse=True)
def fresh_context():
    yield
    context.reset_auto_parallel_context()


def compiled(op, strategy, case, rng):
    mode = rng.choice(["semi_auto_parallel", "auto_parallel"])
    search = {"search_mode": "sharding_propagation"} if mode == "auto_parallel" else {}
    context.reset_auto_parallel_context()
    context.set_auto_parallel_context(parallel_mode=mode, device_num=8, global_rank=rng.choice([0, 7]), **search)
    context.set_auto_parallel_context(full_batch=rng.random() < 0.5, enable_parallel_optimizer=rng.random() < 0.5)
    values = [value for name, value in case.attrs if name in op.op.positional]
    net = rng.choice(WRAPPED)(Net(op, strategy, values))
    net.set_train()
    _cell_graph_executor.compile(net, *map(Tensor, case.arrays(np.random.default_rng(0), np.float32)), phase="train")
    return net


CLASSES = [name for name, c in PRIMITIVES.items() if hasattr(c, "op") and c.op.cases and not c.op.writes]


@pytest.mark.quick(4)
@pytest.mark.parametrize("name", CLASSES)
def test_every_operator_compiles_or_says_why_not(name):
    rng, cls = random.Random(name), PRIMITIVES[name]
    for _ in range(4):
        case = rng.choice(cls.op.cases)
        attrs = {key: value for key, value in case.attrs if key in cls.op.options}
        counts = tuple(tuple(rng.choice((1, 1, 2, 4, 8)) for _ in shape) for shape in case.shapes)
        strategy = rng.choice([counts, counts, counts, None, rng.choice(JUNK)])
        try:
            net = compiled(cls(**attrs), strategy, case, rng)
        except ParallelLabError as error:
            assert isinstance(error, (RuntimeError, ValueError, TypeError)), error
            continue
        too_many = any(math.prod(one) > 8 for one in counts)
        assert strategy is not counts or not too_many, f"{counts} is more than 8 devices"
        told = _cell_graph_executor._get_shard_strategy(net)
        assert all(key.startswith("Default/") and all(type(one) is list for one in told[key]) for key in told)
        assert _cell_graph_executor._get_num_parallel_ops(net) == len(told)
        assert all(len(form) == 6 for form in net.parameter_layout_dict.values())


OPS = {name: PRIMITIVES[name].op for name in CLASSES}
ELEMENT_WISE = [n for n, o in OPS.items() if o.signature == "...->..." and o.positional == o.tensors and not o.whole]


@pytest.mark.quick(2)
@pytest.mark.parametrize("name", ELEMENT_WISE)
def test_an_element_wise_operator_takes_what_divides_and_no_more(name):
    """MindSpore: RuntimeError for a cut that does not divide the dim, or for more pieces than devices."""
    case, rng = PRIMITIVES[name].op.cases[0], random.Random(name)
    attrs = dict(case.attrs)
    shape = case.shapes[0]
    for counts in [tuple(rng.choice((1, 2, 4, 8)) for _ in shape) for _ in range(3)]:
        fits = math.prod(counts) <= 8 and all(n % count == 0 for n, count in zip(shape, counts, strict=True))
        if fits:
            net = compiled(PRIMITIVES[name](**attrs), (counts,), case, rng)
            assert [list(counts)] in _cell_graph_executor._get_shard_strategy(net).values()
        else:
            with pytest.raises(RuntimeError):
                compiled(PRIMITIVES[name](**attrs), (counts,), case, rng)


def test_contexts_are_objects_too():
    auto_parallel_context().set_enable_all_reduce_fusion(True)
    assert auto_parallel_context().get_enable_all_reduce_fusion()
    with pytest.raises(TypeError, match="set_enable_all_reduce_fusion=1"):
        auto_parallel_context().set_enable_all_reduce_fusion(1)
    auto_parallel_context().set_enable_all_reduce_fusion(False)
    assert not auto_parallel_context().get_enable_all_reduce_fusion()
    cost_model_context().set_costmodel_alpha(2.0)
    assert cost_model_context().get_costmodel_alpha() == 2.0
    cost_model_context().reset_cost_model()
    assert cost_model_context().get_costmodel_alpha() == 1.0
    with pytest.raises(AttributeError, match=r"cost_model_context\(\) has no 'alpha'"):
        cost_model_context().alpha()


def test_settings_of_the_graph_compiler_are_checked():
    net = nn.Dense(4, 4)
    assert net.set_jit_config(JitConfig(jit_level="O0")) is net
    assert JitConfig(jit_level="O1", exc_mode="sink").jit_config_dict["exc_mode"] == "sink"
    with pytest.raises(ValueError, match="JitConfig: jit_level='O9'"):
        JitConfig(jit_level="O9")
