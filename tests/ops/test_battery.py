"""Every operator, every legal strategy on 8 simulated ranks, both ways, against numpy and the eager tape undivided."""

import functools
import itertools
import math

import numpy as np
import pytest

from parallel_lab import StrategyError, Tensor, compile, nn, ops
from parallel_lab.graph.passes import PASSES
from parallel_lab.nn.tensor.autograd import gradients
from parallel_lab.nn.tensor.parameter import Parameter
from parallel_lab.ops.machine.legal_strategies import legal_strategies
from parallel_lab.ops.machine.primitive import check_strategy_value
from parallel_lab.ops.machine.registry import OPS, PRIMITIVES
from parallel_lab.ops.machine.sharding import sharding_rule
from parallel_lab.ops.machine.split_labels import strategy_operands
from parallel_lab.run.simulator import Simulator
from tests.crossed import each_of

DEVICES = 8
# an internal operator is given no strategy; tests/nn/test_dtensor_operators.py draws layouts for all that have examples
CASES = [(name, i) for name, op in sorted(OPS.items()) if not op.internal for i, _ in enumerate(op.cases)]
IDS = [f"{name}-{i}" for name, i in CASES]


FEW = 4  # strategies per case in the quick run; the exhaustive one takes them all


class OneOperator(nn.Cell):
    """sum(op(operands) * weight), over all results: one number, to which every element contributes differently."""

    def __init__(self, op, case, arrays, strategy, weighted):
        super().__init__()
        attrs = dict(case.attrs)
        self.prim = PRIMITIVES[op.class_name](**{k: v for k, v in attrs.items() if k in op.options})
        if op.host_only:
            self.prim.set_device("CPU")
        if strategy is not None:
            self.prim.shard(strategy)
        self.positional = {k: v for k, v in attrs.items() if k not in op.options}
        self.op_def, self.weighted = op, weighted
        self.operands = [
            Parameter(a, name=f"operand{i}", requires_grad=a.dtype.kind == "f") for i, a in enumerate(arrays)
        ]
        for p in self.operands:
            self.insert_param_to_cell(p.name, p)

    def construct(self, *weights):
        arrays = iter(self.operands)
        given = [
            next(arrays) if n in self.op_def.tensors else self.positional.get(n, self.op_def.defaults.get(n))
            for n in self.op_def.positional
        ]
        out = self.prim(*arrays) if self.op_def.variadic else self.prim(*given)
        outs = out if isinstance(out, tuple) else (out,)
        if not self.weighted:
            return out
        parts = [ops.reduce_sum(ops.mul(o, w)) for o, w in zip(outs, weights, strict=True) if o.dtype.kind == "f"]
        return functools.reduce(ops.add, parts)


def results(op, case, arrays):
    """The undivided results, as a tuple."""
    given = {**op.defaults, **op.options, **dict(case.attrs)}
    made = op.compute(*arrays, **given)
    return made if isinstance(made, tuple) else (np.asarray(made),)


def has_rule(op):
    """Whether an operator has gradients; some refuse to, as in MindSpore."""
    return op.expand is not None or op.vjp_fn is not None and not hasattr(op.vjp_fn, "refuses")


def check_strategies(name, number, choose):
    """Run the operator under the strategies that `choose` picks; compare results and gradients with one device."""
    op = OPS[name]
    case = op.cases[number]
    attrs = {**op.default_attrs, **dict(case.attrs)}
    arrays = case.arrays(np.random.default_rng(0))
    expected = results(op, case, arrays)
    differentiable = has_rule(op) and any(e.dtype.kind == "f" for e in expected)
    weights = [np.random.default_rng(1).uniform(0.5, 1.5, e.shape) for e in expected]
    strategies = legal_strategies(op, case.shapes, attrs, DEVICES)
    signature = op.signature_for(case.shapes, attrs)
    cuttable = {*"".join(strategy_operands(op, signature))} - {"1", *op.whole_labels(signature, case.shapes, attrs)}
    assert len(strategies) > 1 or not cuttable, "the example's shapes leave nothing to split"
    if differentiable:
        cell = OneOperator(op, case, arrays, None, weighted=True)
        loss = cell(*map(Tensor, weights))
        wanted = gradients(loss, cell.operands)
    for strategy in choose(strategies):
        if not differentiable:
            cell = OneOperator(op, case, arrays, strategy, weighted=False)
            plan = compile(cell, *weights, device_num=DEVICES, dataset_strategy="full_batch")
            sim = Simulator(plan, {p.name: p.asnumpy() for p in cell.operands})
            sim.run_step(*weights)
            for out, want in zip(plan.outputs, expected, strict=True):
                np.testing.assert_allclose(sim.full(out), want, rtol=1e-12, err_msg=str(strategy))
            continue
        cell = OneOperator(op, case, arrays, strategy, weighted=True)
        plan = compile(cell, *weights, device_num=DEVICES, dataset_strategy="full_batch", passes=PASSES)
        sim = Simulator(plan, {p.name: p.asnumpy() for p in cell.operands})
        assert math.isclose(float(sim.run_step(*weights)), loss.item(), rel_tol=1e-10, abs_tol=1e-10), strategy
        for parameter, want in zip(cell.operands, wanted, strict=True):
            if parameter.requires_grad and parameter.name in dict(plan.gradients):
                got = sim.full(dict(plan.gradients)[parameter.name])
                np.testing.assert_allclose(got, want, rtol=1e-10, atol=1e-10, err_msg=f"{strategy} {parameter.name}")


def few(strategies):
    """Some strategies of a case, always the same: those that split most dims first, then others."""
    rng = np.random.default_rng(len(strategies))
    order = sorted(
        rng.permutation(len(strategies)).tolist(), key=lambda i: -sum(c > 1 for t in strategies[i] for c in t)
    )
    spread = [order[i * len(order) // FEW] for i in range(min(FEW, len(order)))]
    return [strategies[i] for i in dict.fromkeys(spread)]


@pytest.mark.quick(1)
@pytest.mark.parametrize(("name", "number"), CASES, ids=IDS)
def test_strategies_equal_one_device(name, number):
    check_strategies(name, number, few)


@pytest.mark.exhaustive
@pytest.mark.parametrize(("name", "number"), CASES, ids=IDS)
def test_every_strategy_equals_one_device(name, number):
    check_strategies(name, number, tuple)


@pytest.mark.quick(25)
@pytest.mark.parametrize(("name", "number"), CASES, ids=IDS)
def test_illegal_strategies_are_refused_with_reason_and_a_legal_suggestion(name, number):
    op = OPS[name]
    case = op.cases[number]
    attrs = {**op.default_attrs, **dict(case.attrs)}
    signature = op.signature_for(case.shapes, attrs)
    sizes = op.label_sizes(signature, case.shapes, attrs)
    labels = strategy_operands(op, signature)
    ones = [[1] * len(t) for t in labels]
    legal = set(legal_strategies(op, case.shapes, attrs, DEVICES))

    def changed(position, dim, value):
        new = [list(t) for t in ones]
        new[position][dim] = value
        return tuple(tuple(t) for t in new)

    whole = op.whole_labels(signature, case.shapes, attrs)
    wrong = [((1,),) * (len(labels) + 1), tuple((1,) * (len(t) + 1) for t in labels)]
    for position, dim in ((p, d) for p, t in enumerate(labels) for d in range(len(t))):
        label = labels[position][dim]
        size = 1 if label == "1" else sizes[label]
        too_many = 2 << (size & -size).bit_length() - 1
        wrong.append(changed(position, dim, too_many))
        shared = sum(label in t for t in labels) > 1
        if label == "1" or label in whole or shared and size % 2 == 0:
            wrong.append(changed(position, dim, 2))
    for strategy in wrong:
        if strategy in legal:
            continue
        with pytest.raises(StrategyError) as caught:
            sharding_rule(op, case.shapes, attrs, strategy, DEVICES, "here.py:1")
        text = str(caught.value)
        assert text.startswith("here.py:1: strategy "), text
        assert "input" in text and any(ch.isdigit() for ch in text), text
        suggestion = eval(text.rpartition("Try ")[2].rstrip("."))
        assert suggestion in legal, text


@pytest.mark.parametrize("value", [0, -1, -(10**12)])
def test_counts_below_one_are_refused_in_shard(value):
    with pytest.raises(StrategyError, match=r"MatMul shard \(test_battery.py:\d+\).*dim 1 of input 0"):
        ops.MatMul().shard(((1, value), (1, 1)))


@pytest.mark.parametrize("value", [3, 6, 10**12])
def test_counts_that_are_not_powers_of_two_are_refused_where_the_number_of_devices_is_one(value):
    """The suggestion mends every tuple, so that it can be copied."""
    shapes, attrs = ((24, 48), (48, 24)), {"transpose_a": False, "transpose_b": False}
    with pytest.raises(StrategyError, match=r"dim 1 of input 0 .*powers of two.*Try") as caught:
        sharding_rule(OPS["matmul"], shapes, attrs, ((2, value), (value, 1)), 8)
    suggestion = eval(str(caught.value).rpartition("Try ")[2].rstrip("."))
    assert suggestion in legal_strategies(OPS["matmul"], shapes, attrs, 8)


@pytest.mark.parametrize("devices", [24, 48, 6])
def test_with_another_number_of_devices_every_divisor_is_a_count(devices):
    """MindSpore, CheckStrategyValue: the dims' divisors whose product divides the number of devices."""
    divisors = [n for n in range(1, devices + 1) if devices % n == 0 and 48 % n == 0]
    expected = {((a, b),) for a in divisors for b in divisors if devices % (a * b) == 0}
    assert set(legal_strategies(OPS["relu"], ((48, 48),), {}, devices)) == expected
    assert ((3, 2),) in expected
    with pytest.raises(StrategyError, match=f"there are {devices} devices"):
        sharding_rule(OPS["relu"], ((45, 45),), {}, ((9, 1),), devices)


@each_of("value", [[2, 4], [4, 1]], (2, 4), ((2.0, 4), (4, 1)), ((True, 4), (4, 1)), "((2,4),(4,1))", 3, {})
def test_wrong_types_are_refused_in_shard(value):
    with pytest.raises(TypeError, match="MatMul shard"):
        ops.MatMul().shard(value)


def test_more_slices_than_devices_is_refused_with_both_numbers():
    shapes, attrs = ((16, 32), (32, 16)), {"transpose_a": False, "transpose_b": False}
    with pytest.raises(StrategyError, match="makes 32 slices, but there are 8 devices"):
        sharding_rule(OPS["matmul"], shapes, attrs, ((8, 4), (4, 1)), 8)


def test_reshape_takes_no_strategy():
    with pytest.raises(StrategyError, match="Reshape takes no strategy"):
        ops.Reshape().shard(((2, 1),))


def test_every_public_operator_is_in_the_battery():
    missing = [o.name for o in OPS.values() if not o.internal and not o.cases and not o.view]
    assert not missing


def test_docstrings_give_shapes():
    for op in OPS.values():
        assert op.__doc__ and "->" in op.__doc__, op.name


def test_enumeration_matches_brute_force():
    """Every tuple of powers of two is either enumerated or refused."""
    op, shapes, attrs = OPS["matmul"], ((8, 4), (4, 2)), {"transpose_a": False, "transpose_b": False}
    legal = set(legal_strategies(op, shapes, attrs, 8))
    for a, b, c, d in itertools.product((1, 2, 4, 8), repeat=4):
        strategy = ((a, b), (c, d))
        try:
            check_strategy_value(strategy, "x")
            sharding_rule(op, shapes, attrs, strategy, 8)
            ok = True
        except StrategyError:
            ok = False
        assert ok == (strategy in legal), strategy
