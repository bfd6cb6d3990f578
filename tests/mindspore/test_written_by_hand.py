"""Steps, optimizers and checks that scripts for language models write themselves with MindSpore's parts."""

import numpy as np
import pytest
from parallel_lab.mindspore._checkparam import Rel, Validator
from parallel_lab.mindspore.ops import composite as C, functional as F, operations as P

import parallel_lab as pl
import parallel_lab.mindspore as ms
from parallel_lab.base.errors import ArgumentError, ArgumentTypeError, TraceError
from parallel_lab.graph.compiler import compile_program
from parallel_lab.mindspore import Parameter, Tensor, _checkparam as checks, nn, ops
from parallel_lab.run.simulator import Simulator
from parallel_lab.train.session import initial_values

BETA1, BETA2, EPS = 0.9, 0.95, 1e-6

rule = C.MultitypeFuncGraph("rule")


@rule.register(*["Tensor"] * 6, "Bool", "Bool")
def _(lr, decay, p, m, v, g, decays, counts):
    """AdamW without correction of the moments' bias."""
    if not counts:
        return g
    new_m, new_v = BETA1 * m + (1 - BETA1) * g, BETA2 * v + (1 - BETA2) * ops.square(g)
    step = new_m / (EPS + ops.sqrt(new_v))
    step = step + decay * p if decays else step
    new = p - lr * step
    return F.depend(new, (F.assign(p, new), F.assign(m, new_m), F.assign(v, new_v)))


class ByHand(nn.Optimizer):
    def __init__(self, params, learning_rate, weight_decay=0.0):
        super().__init__(learning_rate, params, weight_decay)
        self.m, self.v = (self.parameters.clone(prefix=name, init="zeros") for name in ("m", "v"))

    def construct(self, grads):
        each = (self.parameters, self.m, self.v, self.scale_grad(grads), self.decay_flags, self.optim_filter)
        rate, decay = self.get_lr(), self.get_weight_decay()
        if self.is_group_lr:
            return self.map_(rule, rate, decay, *each)
        if self.is_group:
            return self.hyper_map(F.partial(rule, rate), decay, *each)
        return self.map_reverse(F.partial(rule, rate, decay), *each)


class Schedule(nn.LearningRateSchedule):
    def construct(self, step):
        return 0.1 / (1.0 + step)


def pair():
    rng = np.random.default_rng(3)
    shapes = {"w": (3, 4), "norm.gamma": (4,)}
    return [Parameter(Tensor(rng.normal(size=s).astype(np.float32)), name=name) for name, s in shapes.items()]


FORMS = {
    "plain": lambda p: (p, 0.05, 0.1),
    "groups": lambda p: ([{"params": p[:1], "weight_decay": 0.2}, {"params": p[1:]}], 0.05, 0.1),
    "rates": lambda p: ([{"params": p[:1], "lr": 0.01}, {"params": p[1:], "weight_decay": 0.0}], Schedule(), 0.1),
}


@pytest.mark.parametrize("form", FORMS)
def test_an_optimizer_made_of_the_base_s_attributes_is_the_built_in_one(form):
    """Its formula is AdamWeightDecay's, which is tested against numpy."""
    mine, theirs = pair(), pair()
    params, rate, decay = FORMS[form](mine)
    by_hand = ByHand(params, rate, decay)
    params, rate, decay = FORMS[form](theirs)
    built_in = nn.AdamWeightDecay(params, rate, BETA1, BETA2, EPS, decay)
    for step in range(3):
        rng = np.random.default_rng(step)
        grads = [Tensor(rng.normal(size=p.shape).astype(np.float32)) for p in mine]
        by_hand(grads)
        built_in(grads)
    for a, b in zip(mine, theirs, strict=True):
        np.testing.assert_allclose(a.asnumpy(), b.asnumpy(), rtol=2e-6)
    assert by_hand.global_step.asnumpy() == 3


def test_weight_decay_of_groups_and_the_step_are_read_as_there():
    a, b = pair()
    grouped = ByHand([{"params": [a], "weight_decay": 0.5}, {"params": [b]}], 0.1, 0.25)
    assert [float(factor) for factor in grouped.weight_decay] == [0.5, 0.25] and grouped.exec_weight_decay
    assert [p.name for p in grouped.group_params] == ["w", "norm.gamma"] and not grouped.need_scale
    for _ in range(2):
        grouped.assignadd(grouped.global_step, grouped.global_step_increase_tensor)
    assert grouped.steps_taken == 2 and not grouped._is_dynamic_lr_or_weight_decay()
    with pytest.raises(AttributeError, match=r"no attribute 'hyper_mop'"):
        _ = grouped.hyper_mop


class ScaledStep(nn.TrainOneStepWithLossScaleCell):
    def construct(self, x):
        loss = self.network(x)
        status, scale = self.start_overflow_check(loss, self.scale_sense)
        grads = self.grad(self.network, self.weights)(x, F.cast(scale, ms.float32))
        grads = self.hyper_map(lambda g: g / scale, self.grad_reducer(F.identity(grads)))
        cond = self.get_overflow_status(status, grads)
        overflow = self.process_loss_scale(cond)
        if not overflow:
            self.optimizer(grads)
        return loss, cond, scale.value()


@pytest.mark.parametrize("finite", [True, False])
def test_callbacks_read_overflow_and_scale_as_tensors(finite):
    w = Parameter(Tensor(np.float32([2.0, 3.0])), name="w")

    class Net(nn.Cell):
        def __init__(self):
            super().__init__()
            self.w = w

        def construct(self, x):
            return ops.reduce_sum(self.w * x)

    update = nn.DynamicLossScaleUpdateCell(8.0, 2, 1000)
    step = ScaledStep(Net(), nn.SGD([w], 1.0), update)
    loss, overflow, scale = step(Tensor(np.float32([1.0, 4.0 if finite else np.inf])))
    assert isinstance(overflow, Tensor) and overflow.asnumpy() == (not finite) and scale.asnumpy() == 8.0
    assert w.asnumpy().tolist() == ([1.0, -1.0] if finite else [2.0, 3.0])
    assert step.scale_sense.asnumpy() == (8.0 if finite else 4.0) and np.isfinite(loss.asnumpy()) == finite


def test_identity_gives_back_whatever_it_is_given():
    given = (Tensor([1.0]), (Tensor([2.0]), None))
    assert F.identity(given) is given and P.identity()(None) is None
    assert F.identity(Tensor([3.0])).asnumpy() == 3.0 and Tensor([4.0]).value().asnumpy() == 4.0


def test_states_cloned_with_their_flags_and_names():
    """As optimizers with states of their own clone them from the Parameters' `param_info`."""
    old = Parameter(Tensor([1.0]), name="a.w", layerwise_parallel=True)
    old.comm_fusion = 3
    new = Parameter(Tensor([0.0]))
    new.param_info = old.param_info.clone()
    new.name = "adam_m." + new.name
    assert (new.name, new.comm_fusion, new.layerwise_parallel) == ("adam_m.a.w", 3, True) and old.name == "a.w"


RIGHT = {
    "above 0": (3, lambda: Validator.check_positive_int(3, "n", "Layer")),
    "float range": (0.5, lambda: Validator.check_float_range(0.5, 0.0, 1.0, Rel.INC_NEITHER, "p", "Layer")),
    "left end": (0, lambda: checks.check_int_range(0, 0, 3, checks.INC_LEFT)),
    "numpy's float": (np.float32(0.5), lambda: checks.check_float_range(np.float32(0.5), 0.0, 1.0, checks.INC_BOTH)),
    "kind": (True, lambda: checks.check_value_type("x", True, [bool, int], "Layer")),
    "related": (4, lambda: Validator.check("a", 4, "b", 4, Rel.EQ, "Layer")),
    "text": ("sum", lambda: checks.check_string("sum", ["sum", "mean"], "reduction")),
    "dtype": (ms.float16, lambda: checks.check_type_name("x", ms.float16, [ms.float16, ms.float32], "Layer")),
    "dtypes": (
        None,
        lambda: checks.check_tensors_dtypes_same_and_valid({"a": ms.int8, "b": ms.int8}, ms.number_type, "L"),
    ),
    "axis": (2, lambda: checks.check_axis_in_range(-1, 3)),
    "ints": ([1, 2], lambda: checks.check_positive_int_sequence([1, 2], "sizes")),
    "number": (0.5, lambda: checks.check_number("clip", 0.5, 0.0, Rel.GT, "Layer")),
}
WRONG = {
    "0 above 0": (ArgumentError, r"Layer: n=0\. > 0", lambda: checks.check_positive_int(0, "n", "Layer")),
    "bool above 0": (ArgumentTypeError, "int > 0", lambda: checks.check_positive_int(True, "n")),
    "nan": (ArgumentError, "p=nan", lambda: checks.check_non_negative_float(float("nan"), "p")),
    "right end": (ArgumentError, r"in \[0, 3\)", lambda: checks.check_int_range(3, 0, 3, Rel.INC_LEFT, "n")),
    "bool": (ArgumentTypeError, "bool", lambda: Validator.check_bool(1, "switch")),
    "no bool": (ArgumentTypeError, "x=True", lambda: checks.check_value_type("x", True, [int], "Layer")),
    "related": (ArgumentTypeError, "a=1 should be > 2", lambda: checks.check("a", 1, "b", 2, Rel.GT, "L", TypeError)),
    "text": (ArgumentError, "sum", lambda: checks.check_string("max", ["sum", "mean"])),
    "dtypes": (
        ArgumentTypeError,
        "b=",
        lambda: checks.check_tensors_dtypes_same_and_valid({"a": ms.int8, "b": ms.int16}, ms.int_type, "L"),
    ),
}


@pytest.mark.parametrize("case", RIGHT)
def test_checks_of_arguments_return_the_value(case):
    value, call = RIGHT[case]
    assert call() == value


@pytest.mark.parametrize("case", WRONG)
def test_checks_of_arguments_name_what_is_wrong(case):
    kind, text, call = WRONG[case]
    with pytest.raises(kind, match=text):
        call()


class Reading(nn.Cell):
    """Uses a Parameter's `value()`, and adds 1 to the Parameter afterwards."""

    def __init__(self):
        super().__init__()
        self.p = Parameter(Tensor(np.ones((2, 2), np.float32)), name="p")

    def construct(self, x):
        before = self.p.value()
        y = ops.reduce_sum(before * x)
        ops.assign(self.p, self.p + 1)
        return y, before


@pytest.mark.parametrize("compiled", [False, True])
def test_a_value_is_that_of_the_call_and_has_the_parameter_s_gradient(compiled):
    """It was a constant of the first call in compiled networks, and hid the Parameter from gradients in others."""
    net, x = Reading(), Tensor(np.full((2, 2), 3, np.float32))
    run = ms.jit(net.construct) if compiled else net
    for times in (1, 2):
        y, before = run(x)
        assert y.asnumpy() == 12 * times and (before.asnumpy() == times).all()
    step = ms.value_and_grad(lambda x: net(x)[0], None, [net.p])
    if compiled:
        ms.set_auto_parallel_context(parallel_mode="semi_auto_parallel")
        step = ms.jit(step)
    for times in (3, 4):
        y, (slope,) = step(x)
        assert y.asnumpy() == 12 * times and (slope.asnumpy() == 3).all()


READS = [float, Tensor, np.asarray, lambda p: p.item(), lambda p: p.asnumpy(), lambda p: p.clone()]


@pytest.mark.parametrize("read", READS, ids=range(len(READS)))
def test_a_trained_parameter_s_numbers_are_not_read_while_a_network_is_traced(read):
    """They were constants of the first call in later ones."""
    p = Parameter(Tensor(np.float32(2.0)), name="p")
    with pytest.raises(TraceError, match=r"'p' is read while .* value\(\)"):
        pl.compile(lambda x: x * Tensor(read(p)), Tensor(np.ones(4, np.float32)), device_num=1)


def test_a_branch_on_a_parameter_s_value_belongs_to_the_plan():
    p = Parameter(Tensor(np.float32(2.0)), name="p")

    def chosen(x):
        if p.value():
            return x * 1
        return x * -1

    plan = pl.compile(chosen, Tensor(np.ones(4, np.float32)), device_num=1)
    kinds = {instr.kind for stage in plan.stages for _, program in stage.programs for instr in program}
    assert "branch" in kinds


def test_the_parts_of_a_pipeline_s_inputs_are_cells():
    net = nn.PipelineCell(nn.Dense(2, 2), 3)
    x, y = np.arange(12).reshape(6, 2), np.arange(6)
    parts = [cell(i, Tensor(x), Tensor(y)) for i, cell in enumerate(net.micro_inputs)]
    assert [part[1].asnumpy().tolist() for part in parts] == [[0, 1], [2, 3], [4, 5]] and net.micro_size == 3
    assert (parts[2][0].asnumpy() == x[4:]).all() and net.micro_inputs[0].strided_slice.name == "StridedSlice"


def test_a_loss_scaler_of_amp_is_a_value_of_the_step_that_is_compiled():
    """`scale_value` was a number, and `all_finite` could not be compiled: 2 good steps double, an overflow halves."""
    w = Parameter(Tensor(np.ones((4, 2), np.float32)), name="w")
    optimizer, scaler = nn.SGD([w], 0.5), ms.amp.DynamicLossScaler(1024, 2, 2)
    product = ops.MatMul().shard(((2, 1), (1, 2)))
    gradient = ms.value_and_grad(lambda x: scaler.scale(product(x, w).mean()), None, [w])

    def step(x):
        loss, grads = gradient(x)
        grads = scaler.unscale(grads)
        finite = ms.amp.all_finite(grads)
        scaler.adjust(finite)
        if finite:
            optimizer(grads)
        return loss, finite

    good, bad, settings = np.ones((2, 4), np.float32), np.full((2, 4), np.inf, np.float32), {"device_num": 4}
    made = compile_program(step, good, parallel_mode="semi_auto_parallel", dataset_strategy="full_batch", **settings)
    simulator = Simulator(made.plan, initial_values(made.plan, made.parameters, optimizer))
    seen = []
    for number, x in enumerate((good, good, bad, good)):
        with np.errstate(all="ignore"):
            simulator.run_step(x, step=number)
        seen.append((*(simulator.full(name).item() for name in ("scale_value", "counter")), simulator.full("w")[0, 0]))
    assert seen == [(1024, 1, 0.75), (2048, 0, 0.5), (1024, 0, 0.5), (1024, 1, 0.25)]
    assert isinstance(scaler.scale_value, Parameter) and ms.amp.all_finite((Tensor([1.0]),)).dtype == ms.bool_
    assert [scaler.adjust(ok) for ok in (True, Tensor(True), False)] == [True] * 3
    assert (scaler.scale_value.asnumpy(), scaler.counter.asnumpy(), repr(scaler)) == (
        *(1024, 0),
        "DynamicLossScaler(scale_value=1024, scale_factor=2, scale_window=2)",
    )
    assert not ms.amp.StaticLossScaler(8.0).adjust(True)


class Rising(nn.learning_rate_schedule.LearningRateSchedule):
    """0.5, 1.0, 1.5, ..., made of operators and a list."""

    def construct(self, global_step):
        return ops.cast(global_step + 1, ms.float32) * ([0.5] * 9)[global_step]


class Counting(nn.Optimizer):
    """w -= rate * gradient, and the step is counted by hand, as in MindSpore's own optimizers."""

    def construct(self, grads):
        rate = self.get_lr()
        self.assignadd(self.global_step, self.global_step_increase_tensor)
        return self.hyper_map(lambda p, g: F.assign(p, p - rate * g), self.parameters, grads)


@pytest.mark.parametrize("mode", ["stand_alone", "semi_auto_parallel"])
def test_a_schedule_and_a_count_of_ones_own_advance_once_per_step(mode):
    """Compiled, the schedule was called with a value of the trace, and a step that counts itself counted twice."""
    pl.set_auto_parallel_context(parallel_mode=mode, device_num=1)
    w = Parameter(Tensor([0.0]), name="w")
    optimizer = Counting(Rising(), [w])
    gradient = ms.value_and_grad(lambda x: (x * w).sum(), None, [w])

    @ms.jit
    def step(x):
        loss, grads = gradient(x)
        return F.depend(loss, optimizer(grads))

    for _ in range(3):
        step(Tensor([1.0]))
    assert w.asnumpy() == -(0.5 + 1.0 + 1.5) and optimizer.global_step.asnumpy() == [3]
    assert optimizer.get_lr().asnumpy() == 2.0
