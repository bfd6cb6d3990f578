import dataclasses

import numpy as np
import pytest

from parallel_lab import nn, ops
from parallel_lab.base.cluster import get_cluster
from parallel_lab.cost import MEMORY_KINDS, predict_memory
from parallel_lab.graph.compiler import compile_network
from parallel_lab.nn.tensor.parameter import Parameter
from parallel_lab.run.simulator import Simulator
from parallel_lab.train.session import initial_values
from tests.cost.nets import F32, OPTIMIZERS, SeedNet, product_plan, seed_inputs, seed_plan
from tests.crossed import each_of

W, W2 = 32 * 16 * F32 // 4, 16 * 16 * F32 // 4  # the contracted dim is split 4 ways
LEARNING_RATE = F32


@pytest.mark.parametrize(
    ("optimizer", "states"),
    [("none", 0), ("momentum", W + W2 + LEARNING_RATE), ("adam_weight_decay", 2 * (W + W2) + LEARNING_RATE)],
)
def test_the_seed_network_by_formula(optimizer, states):
    # backward needs: x's slice (8, 8) for the gradient of w, relu's result (8, 4) for its own and w2's, the difference
    # (2, 16) for the square's
    saved = (8 * 8 + 8 * 4 + 2 * 16) * F32
    report = predict_memory(seed_plan(optimizer))
    assert report.parts == {"params": W + W2, "grads": W + W2, "optimizer": states, "activations": saved}
    assert report.inputs_bytes == (16 * 32 + 16 * 16) * F32


def test_parameters_cost_the_sum_of_their_slices_on_any_number_of_devices():
    plan = seed_plan(device_num=16)
    expected = sum(np.prod(p.shape) * F32 // np.prod(plan.value(p.name).layout.splits) for p in plan.parameters)
    assert predict_memory(plan).params_bytes == expected == W + W2


def test_the_peak_of_a_lone_product_is_everything_at_once():
    # x (16, 32) and its column slice (16, 4), w (4, 24), the addend (16, 24) and the sum of the addends
    report = predict_memory(product_plan(((1, 8), (8, 1))))
    x, part, w, y = 16 * 32 * F32, 16 * 4 * F32, 4 * 24 * F32, 16 * 24 * F32
    assert [p.total_bytes for p in report.timeline] == [x + w + part, x + w + part + y, x + w + y + y]
    assert report.peak_bytes == x + w + 2 * y
    assert report.peak.name == "matmul"
    assert report.activations_bytes == 0  # nothing is differentiated


def test_the_timeline_has_every_instruction_and_its_kinds_add_up():
    plan = seed_plan()
    report = predict_memory(plan)
    assert [(p.phase, p.name) for p in report.timeline] == [(phase, i.out) for phase, i in plan.instructions()]
    assert all(sum(p.by_kind.values()) == p.total_bytes and tuple(p.by_kind) == MEMORY_KINDS for p in report.timeline)
    assert all(
        p.by_kind["params"] == report.params_bytes and p.by_kind["optimizer"] == report.optimizer_bytes
        for p in report.timeline
    )


def test_activations_are_all_there_when_backward_starts_and_gone_when_it_ends():
    timeline = predict_memory(seed_plan()).timeline
    backward = [p.by_kind["activations"] for p in timeline if p.phase == "backward"]
    update = [p.by_kind["activations"] for p in timeline if p.phase == "update"]
    assert backward[0] == max(p.by_kind["activations"] for p in timeline) > 0
    assert backward == sorted(backward, reverse=True)
    assert set(update) == {0}


def test_a_plan_fits_when_its_peak_does():
    report = predict_memory(seed_plan())
    laptop = get_cluster("laptop")
    exact = dataclasses.replace(laptop, device=dataclasses.replace(laptop.device, memory_bytes=report.peak_bytes))
    small = dataclasses.replace(laptop, device=dataclasses.replace(laptop.device, memory_bytes=report.peak_bytes - 1))
    assert report.fits(exact) and not report.fits(small)


# ---- the update, in place ----

WHOLE = nn.GradientClip("global_norm", 0.5)
UPDATES = {
    "SGD with decay": lambda p: nn.SGD(p, 0.1, 0.9, dampening=0.5, weight_decay=0.1),
    "Momentum": lambda p: nn.Momentum(p, 0.1, 0.9, use_nesterov=True),
    "Adam": lambda p: nn.Adam(p, 0.1),
    "Adam, clipped": lambda p: nn.Adam(p, 0.1, clip=WHOLE),
    "Adam, scaled": lambda p: nn.Adam(p, 0.1, loss_scale=8.0, weight_decay=0.1),
    "AdamWeightDecay": lambda p: nn.AdamWeightDecay(p, 0.1, weight_decay=0.1),
    "Lamb, clipped": lambda p: nn.Lamb(p, 0.1, weight_decay=0.1, clip=WHOLE),
    "RMSProp": lambda p: nn.RMSProp(p, 0.1, centered=True),
    "Adagrad": lambda p: nn.Adagrad(p),
}
ALONE = "Momentum", "Adam", "AdamWeightDecay", "RMSProp", "Adagrad"


@pytest.mark.quick(4)
@each_of(("name", "layers"), *((name, 8) for name in UPDATES), *((name, 1) for name in ALONE))
def test_the_update_needs_what_stays_and_little_more(name, layers):
    """Eight weights of one size: gradients that are clipped or without their loss scale, new states and new parameters
    are there for one weight at a time. All at once, they would take as much as what stays. One weight that is nearly
    all of the memory: the rule holds nothing next to it but the new value it is making.
    """
    width = 32
    net = nn.SequentialCell(*[nn.Dense(width, width, has_bias=False) for _ in range(layers)])
    x, optimizer = np.ones((4, width), np.float32), UPDATES[name](net.trainable_params())
    plan = compile_network(net, x, x, loss=nn.MSELoss(), optimizer=optimizer, dataset_strategy="full_batch")
    one = width * width * F32
    states = sum(len(optimizer.initial_state(p)) for p in net.trainable_params()) * one
    scalars = sum(plan.value(s.name).slice_bytes for s in plan.states if not s.parameter)
    stays = 2 * layers * one + states + scalars + 2 * x.nbytes  # parameters, gradients, states, data
    update = [p.total_bytes for p in predict_memory(plan).timeline if p.phase == "update"]
    assert stays < max(update) <= 1.1 * (stays + one)

    values, most = initial_values(plan, net, optimizer), 0
    simulator = Simulator(plan, values)

    def look(rank, action, instr, *_):
        nonlocal most
        arrays = {(a.ctypes.data, a.nbytes) for n, a in simulator.envs[0].items() if n not in plan.scalars}
        most = max(most, sum(size for _, size in arrays)) if action.program == "update" else most

    simulator.run_step(x, x, observe=look)
    assert most == max(update)


# ---- against what the interpreter really holds ----


class Pictures(nn.Cell):
    """Flatten (a view of the input), Dense, ReLU, Dense."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.SequentialCell(nn.Flatten(), nn.Dense(24, 16, activation="relu"), nn.Dense(16, 8))

    def construct(self, x):
        return self.layers(x)


class Folded(nn.Cell):
    """A product, its result in another shape, a sum over the new dim."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = Parameter(np.full((8, 16), 0.1, np.float32), name="w")
        self.matmul = ops.MatMul().shard(((2, 1), (1, 4)))

    def construct(self, x):
        return ops.reduce_sum(ops.reshape(self.matmul(x, self.weight), (16, 4, 4)), 1)


def _case(net, inputs, loss, optimizer, device_num, dataset_strategy, parts=1):
    made = OPTIMIZERS[optimizer](net.trainable_params())
    settings = {"device_num": device_num, "dataset_strategy": dataset_strategy, "grad_accumulation_step": parts}
    plan = compile_network(net, *inputs, loss=loss, optimizer=made, **settings)
    rows = plan.data_inputs[0].shape[0] // len(inputs[0])
    return plan, initial_values(plan, net, made), [np.concatenate([x] * rows) for x in inputs]


def _pictures():
    return np.ones((16, 4, 6), np.float32), np.arange(16, dtype=np.int32) % 8


def _folded():
    return np.ones((16, 8), np.float32), np.zeros((16, 4), np.float32)


CASES = {
    "seed, no optimizer": lambda: _case(SeedNet(), seed_inputs(), nn.MSELoss(), "none", 8, "full_batch"),
    "seed, momentum": lambda: _case(SeedNet(), seed_inputs(), nn.MSELoss(), "momentum", 8, "full_batch"),
    "seed, adam": lambda: _case(SeedNet(), seed_inputs(), nn.MSELoss(), "adam_weight_decay", 8, "full_batch"),
    "seed, rows per rank": lambda: _case(SeedNet(), seed_inputs(), nn.MSELoss(), "momentum", 8, "data_parallel"),
    "pictures, one rank": lambda: _case(Pictures(), _pictures(), nn.CrossEntropyLoss(), "momentum", 1, "full_batch"),
    "pictures, four ranks": lambda: _case(
        Pictures(), _pictures(), nn.CrossEntropyLoss(), "adam_weight_decay", 4, "full_batch"
    ),
    "pictures, two parts": lambda: _case(
        Pictures(), _pictures(), nn.CrossEntropyLoss(), "adam_weight_decay", 4, "full_batch", parts=2
    ),
    "expanded loss": lambda: _case(
        Pictures(), _pictures(), nn.SoftmaxCrossEntropyExpand(sparse=True), "momentum", 8, "full_batch"
    ),
    "reshape": lambda: _case(Folded(), _folded(), nn.MSELoss(), "momentum", 8, "full_batch"),
}


@pytest.mark.parametrize("name", CASES)
def test_every_instruction_finds_the_predicted_bytes_on_the_rank(name):
    plan, values, inputs = CASES[name]()
    simulator = Simulator(plan, values)
    held = []

    def look(rank, action, instr, *_):
        if rank == 0:
            # two names of one array (a reshape, a parameter and its new value) are one piece of memory
            env = {n if isinstance(n, str) else n[0]: a for n, a in simulator.envs[0].items()}
            numbers = {i.name for i in plan.graph.inputs if i.is_number} | set(plan.scalars)
            arrays = {(a.ctypes.data, a.nbytes) for n, a in env.items() if n not in numbers}
            held.append((action.program, instr.out, sum(size for _, size in arrays)))

    simulator.run_step(*inputs, observe=look)
    assert [(p.phase, p.name, p.total_bytes) for p in predict_memory(plan).timeline] == held
