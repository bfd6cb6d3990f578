"""An operator with several results is one node: traced, split, run, costed and differentiated once."""

import json

import numpy as np
import pytest

from parallel_lab import Layout, StrategyError, Tensor, compile, nn, ops
from parallel_lab.base.cluster import LAPTOP
from parallel_lab.cost.memory import predict_memory
from parallel_lab.cost.time import instr_flops, step_time_s, touched_bytes
from parallel_lab.graph.passes import PASSES
from parallel_lab.graph.plan import Plan
from parallel_lab.graph.trace import trace_network
from parallel_lab.mindspore._ir_files import begin_text, program_text
from parallel_lab.nn.tensor.autograd import gradients
from parallel_lab.nn.tensor.parameter import Parameter
from parallel_lab.ops.machine.opdef import OpDef
from parallel_lab.ops.machine.registry import OPS, PRIMITIVES
from parallel_lab.run.simulator import Simulator
from tests.crossed import each_of
from tests.nets import cell
from tests.ops.test_battery import has_rule

X = np.random.default_rng(5).normal(size=(16, 8))
FULL = {"device_num": 8, "dataset_strategy": "full_batch"}


class Norm(nn.Cell):
    """A LayerNorm, and what is made of its results.  read: those that are returned."""

    def __init__(self, read=(0, 1, 2), strategy=None, then=None):
        super().__init__()
        self.gamma = Parameter(Tensor(np.linspace(0.5, 2, 8)), name="gamma")
        self.beta = Parameter(Tensor(np.linspace(-1, 1, 8)), name="beta")
        self.norm, self.read, self.then = ops.LayerNorm(), read, then
        if strategy is not None:
            self.norm.shard(*strategy)

    def construct(self, x):
        made = self.norm(x, self.gamma, self.beta)
        parts = [made[i] for i in self.read]
        return tuple(parts) if self.then is None else self.then(*parts)


def expected(x):
    mean, variance = x.mean(1, keepdims=True), x.var(1, keepdims=True)
    y = (x - mean) / np.sqrt(variance + 1e-7) * np.linspace(0.5, 2, 8) + np.linspace(-1, 1, 8)
    return y, mean, variance


def ran(net, *inputs, **options):
    plan = compile(net, *inputs, **FULL | options)
    sim = Simulator(plan, {p.name: p.data for p in net.get_parameters()})
    sim.run_step(*inputs)
    return plan, sim


# ---- one node ----


def test_a_call_is_one_node_with_a_name_for_each_result():
    (node,) = trace_network(Norm(), [("x", (16, 8), "float64")]).graph.nodes
    assert (node.name, node.outs) == ("norm", ("norm.0", "norm.1", "norm.2"))
    assert node.shapes == ((16, 8), (16, 1), (16, 1))
    graph = trace_network(lambda x: ops.TopK()(x, 3), [("x", (16, 8), "float32")]).graph
    assert graph.nodes[0].dtypes == ("float32", "int32")
    assert graph.node(graph.outputs[1]) is graph.nodes[0]


def test_results_that_are_read_are_made_by_one_instruction_on_slices():
    plan, sim = ran(Norm(strategy=(((4, 1), (1,), (1,)),)), X)
    (instr,) = (i for _, i in plan.instructions() if i.kind == "compute")
    assert instr.kept == plan.outputs and {plan.value(n).slice_shape[0] for n in plan.outputs} == {4}
    for name, want in zip(plan.outputs, expected(X), strict=True):
        np.testing.assert_allclose(sim.full(name), want, rtol=1e-9)


@each_of("read", (0,), (1,), (2,), (2, 0))
def test_results_that_nothing_reads_are_not_kept(read):
    plan, sim = ran(Norm(read), X)
    (instr,) = (i for _, i in plan.instructions() if i.kind == "compute")
    made = {f"norm.{i}" for i in read}
    assert len(instr.outs) == 3 and set(instr.kept) == made
    assert {n for n in plan.value_table if n.startswith("norm.")} == made
    assert {n for n in sim.envs[3] if n.startswith("norm.")} == made
    whole = compile(Norm(), X, **FULL)
    (full,) = (i for _, i in whole.instructions() if i.kind == "compute")
    dropped = sum(whole.value(n).slice_bytes for n in full.kept if n not in made)
    assert touched_bytes(whole, full) - touched_bytes(plan, instr) == dropped
    assert instr_flops(whole, full) == instr_flops(plan, instr) == 8 * X.size // 8
    assert predict_memory(whole).peak_bytes - predict_memory(plan).peak_bytes == dropped
    assert step_time_s(plan, LAPTOP).total_s <= step_time_s(whole, LAPTOP).total_s


def test_an_operator_that_nothing_reads_is_left_out_of_the_program():
    def net(x):
        ops.exp(ops.tanh(x))
        return ops.relu(x)

    assert [n.op for n in trace_network(net, [("x", (4,), "float32")]).graph.nodes] == ["relu"]


def test_text_files_and_stored_forms_name_every_result():
    plan, other = compile(Norm((0, 2)), X, **FULL), compile(Norm((0,)), X, **FULL)
    (line,) = (line for line in plan.text(0).splitlines() if " = LayerNorm(" in line)
    assert line.startswith("%1(norm.0), _, %2(norm.2) = LayerNorm(%0, %gamma, %beta)")
    assert "%norm.0, %norm.1, %norm.2 = LayerNorm(%x, %gamma, %beta)" in plan.graph.text()
    again = Plan.from_dict(json.loads(json.dumps(plan.to_dict())))
    assert again == plan and again.digest == plan.digest and plan.diff(again) == ""
    changed = [line for line in plan.diff(other).splitlines() if " = LayerNorm(" in line]
    assert [line.partition(" = ")[0] for line in changed] == ["-%norm.0, _, %norm.2", "+%norm.0, _, _"]
    (entry,) = plan.to_dict(rank=0)["ops"]
    assert entry["out_slice"] == [[2, 8], [2, 1]] and entry["out_global"] == [[16, 8], [16, 1]]
    assert begin_text(plan).endswith("Return(%1[0], %1[2])\n")
    assert program_text(plan, 0, ("forward",)).endswith("Return(%2[0], %2[2])\n")


# ---- strategies ----


@each_of("read", (0,), (1,), (2,))
def test_every_result_may_be_redistributed(read):
    then = ops.Mul().shard(((1, 1), ()))
    net = Norm(read, (((8, 1), (1,), (1,)),), lambda part: then(part, 2.0))
    plan, sim = ran(net, X)
    assert [i.kind for _, i in plan.instructions() if i.is_communication] == ["all_gather"]
    np.testing.assert_allclose(sim.full(plan.outputs[0]), 2 * expected(X)[read[0]], rtol=1e-9)


@each_of("reader", 0, 1)
def test_propagation_gives_one_strategy_from_whichever_result_is_configured(reader):
    """The copies of a LayerNorm had a strategy each."""
    scale = ops.Mul().shard((((4, 1), ()), ((4, 1), ()))[reader])
    net = Norm((0, 1), then=lambda y, mean: (scale(y, 2.0), mean) if reader == 0 else (y, scale(mean, 2.0)))
    auto = {"parallel_mode": "auto_parallel", "search_mode": "sharding_propagation", "fully_use_devices": False}
    plan, sim = ran(net, X, **auto)
    node = next(n for n in plan.graph.nodes if n.op_class == "LayerNorm")
    assert node.strategy == ((4, 1), (1,), (1,)) and not [i for _, i in plan.instructions() if i.is_communication]
    y, mean, _ = expected(X)
    for name, want in zip(plan.outputs, (2 * y, mean) if reader == 0 else (y, 2 * mean), strict=True):
        np.testing.assert_allclose(sim.full(name), want, rtol=1e-9)


LAYOUT = Layout((4, 2), ("dp", "mp"))
ROWS, WHOLE = LAYOUT("dp", "None"), LAYOUT("None")


def test_layouts_may_be_given_for_all_results():
    ins = (ROWS, WHOLE, WHOLE)
    plan, _ = ran(Norm(strategy=(ins, (ROWS, ROWS, ROWS))), X)
    assert {plan.value(name).layout.splits for name in plan.outputs} == {(4, 1)}
    for outs in ((ROWS,), (ROWS, ROWS, LAYOUT("None", "None"))):
        with pytest.raises(StrategyError, match="Its 3 results may be split"):
            compile(Norm(strategy=(ins, outs)), X, **FULL)


# ---- gradients ----


def cases_of_several():
    for name, op in sorted(OPS.items()):
        for number, case in enumerate(op.cases):
            attrs = {**op.default_attrs, **dict(case.attrs)}
            found = op.infer(case.shapes, ("float64",) * len(case.shapes), attrs)
            if found.several and len(found.shapes) > 1 and has_rule(op):
                yield pytest.param(op, case, id=f"{name}-{number}")


def call(op, case, operands):
    given = {k: v for k, v in case.attrs if k in op.options}
    primitive, rest = PRIMITIVES[op.class_name](**given), [v for k, v in case.attrs if k not in op.options]
    return primitive(*operands) if op.variadic or not rest else primitive(*operands, *rest)


@pytest.mark.quick(1)
@pytest.mark.parametrize(("op", "case"), list(cases_of_several()))
def test_the_gradient_of_one_result_alone_is_that_of_all_with_the_others_weighted_0(op, case, rng):
    """On the tape and in a plan, whose rule is given None for results that the loss does not read."""
    arrays = case.arrays(rng)
    given = [Parameter(Tensor(a), name=f"p{i}") if a.dtype.kind == "f" else Tensor(a) for i, a in enumerate(arrays)]
    trained = [p for p in given if isinstance(p, Parameter)]
    results = call(op, case, given)
    floats = [i for i, r in enumerate(results) if r.dtype.kind == "f"]
    weights = {i: rng.uniform(0.5, 1.5, results[i].shape) for i in floats}
    for alone in floats:
        parts = [ops.reduce_sum(results[i] * (weights[i] * (i == alone))) for i in floats]
        together = gradients(ops.addn(parts) if len(parts) > 1 else parts[0], trained)
        by_itself = gradients(ops.reduce_sum(results[alone] * weights[alone]), trained)
        net = cell(lambda net, w, alone=alone: ops.reduce_sum(call(op, case, given)[alone] * w))
        for parameter in trained:
            net.insert_param_to_cell(parameter.name, parameter)
        plan, sim = ran(net, weights[alone], passes=PASSES)
        for parameter, want, got in zip(trained, together, by_itself, strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-12)
            if parameter.name in dict(plan.gradients):
                planned = sim.full(dict(plan.gradients)[parameter.name])
                np.testing.assert_allclose(planned, want, rtol=1e-9, atol=1e-12)
            else:
                np.testing.assert_array_equal(want, 0)


def test_the_tape_computes_once_and_differentiates_once(monkeypatch):
    ran_once = []
    compute = OpDef.compute
    monkeypatch.setattr(OpDef, "compute", lambda self, *a, **k: (ran_once.append(self.name), compute(self, *a, **k))[1])
    x = Parameter(Tensor(X), name="x")
    y, mean, variance = ops.LayerNorm()(x, Tensor(np.ones(8)), Tensor(np.zeros(8)))
    loss = ops.reduce_sum(y * y + mean * variance)
    gradients(loss, [x])
    assert ran_once.count("layer_normalization") == 1 and ran_once.count("layer_norm_grad") == 1
