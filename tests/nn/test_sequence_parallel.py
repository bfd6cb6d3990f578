"""Sequence parallelism (Korthikanti et al. 2022): one device's numbers, the paper's messages, the paper's memory.

b samples, s tokens, h numbers per token, t ranks among which a layer is split; M = b s h numbers.
"""

from collections import Counter
from dataclasses import dataclass

import numpy as np
import pytest

from parallel_lab import Layout, Session, StrategyError, compile, nn, ops
from parallel_lab.base.errors import ArgumentError, ShapeError
from parallel_lab.cost import predict_memory
from parallel_lab.cost.memory import kept_blocks
from parallel_lab.cost.time import message_bytes
from parallel_lab.lab.memory.count import predicted_ranks, simulated_ranks
from parallel_lab.nn import models
from parallel_lab.ops.collectives.definitions import MESSAGES
from parallel_lab.processes.shm import WorkerPool
from parallel_lab.train.session import initial_values
from tests.refusals import refused

VOCAB, S, H, HEADS = 24, 8, 16, 8
BOUND = 1e-9  # float64; a missing or doubled addend is off by a tenth at least
FORMS = {"tp": {}, "sp": {"sequence": True}, "again": {"sequence": True, "gather_again": True}}
SEQUENCE = ("sp", "again")


def in_float64(net):
    for p in net.get_parameters():
        p._initial, p._data = None, p.asnumpy().astype(np.float64)
    return net


@dataclass
class Case:
    """A network with its loss and batches; `dtype` of its numbers."""

    kind: str = "gpt"
    samples: int = 8
    layers: int = 2
    dropout: float = 0.0
    dtype: str = "float64"

    def __post_init__(self):
        sizes = {"layers": self.layers, "heads": HEADS, "seq_length": S, "dropout": self.dropout}
        rng = np.random.default_rng(7)
        ids = rng.integers(0, VOCAB, (3, self.samples, S + 1)).astype(np.int32)
        if self.kind == "gpt":
            self.net, self.loss = models.GPT(VOCAB, H, **sizes), models.LanguageModelLoss()
            self.batches = [(i[:, :-1].copy(), i[:, 1:].copy()) for i in ids]
        else:
            norm_first = self.kind == "norm first"
            self.net = models.TransformerClassifier(VOCAB, 4, H, norm_first=norm_first, **sizes)
            self.loss = nn.CrossEntropyLoss()
            self.batches = [(i[:, :-1].copy(), rng.integers(0, 4, self.samples).astype(np.int32)) for i in ids]
        if self.dtype == "float64":
            in_float64(self.net)
        self.net.set_train()
        self.optimizer = nn.Momentum(self.net.trainable_params(), 0.1, 0.9)

    def plan(self, dp=1, mp=1, form="tp", **settings):
        models.tensor_parallel(self.net, dp, mp, **FORMS[form])
        how = {"device_num": dp * mp * settings.get("pipeline_stages", 1), "dataset_strategy": "full_batch", **settings}
        return compile(self.net, *self.batches[0], loss=self.loss, optimizer=self.optimizer, **how)

    def alone(self, **settings):
        return self.trained(self.plan(parallel_mode="stand_alone", **settings))

    def trained(self, plan, **session):
        """{"losses": of three steps, parameter: what it is then}: each step's gradients go into both."""
        with Session(plan, self.net, self.optimizer, **session) as running:
            losses = np.array(running.train(self.batches, len(self.batches)))
            return {"losses": losses, **running.parameters()}


def assert_equal(found, want):
    assert found.keys() == want.keys() and want["losses"][0] != want["losses"][-1]
    for name, value in want.items():
        far = np.abs(found[name] - value).max() / max(np.abs(value).max(), 1e-3)
        assert far <= BOUND, f"{name} is {far:.3g} off"


# ---- one device's numbers ----

SHARED = {"enable_parallel_optimizer": True, "parallel_optimizer_threshold": 0}
SETTINGS = [  # of the ranks alone
    {},
    *({**SHARED, "optimizer_level": f"level{level}"} for level in (1, 2, 3)),
    {"comm_fusion": {"allreduce": {"mode": "auto", "config": None}}},
    {"redistribution": "exact"},
]


def drawn(number):
    """(network, form, grid, micro-batches, stages, whether attention is recomputed, settings) of one training."""
    rng = np.random.default_rng(number)

    def pick(*values):
        return values[int(rng.integers(len(values)))]

    stages = pick(1, 1, 2)
    grid = pick(*((dp, mp) for dp in (1, 2, 4) for mp in (2, 4, 8) if dp * mp * stages <= 8))
    kind = pick("gpt", "classifier", "norm first") if stages == 1 else "gpt"
    return kind, pick(*SEQUENCE), grid, pick(1, 2) if stages == 1 else 4, stages, pick(False, True), pick(*SETTINGS)


@pytest.mark.quick(2)
@pytest.mark.parametrize("number", range(60))
def test_a_split_sequence_trains_as_one_device_does_with_everything_that_may_be_around_it(number):
    """With dropout: each rank drops what one device drops of its tokens, not what its neighbour drops."""
    kind, form, grid, micro, stages, again, settings = drawn(number)
    print(f"number {number}: {kind}, {form}, {grid}, {micro} micro-batches, {stages} stages, {again}, {settings}")
    case = Case(kind, dropout=0.2)
    for at, block in enumerate(case.net.blocks if kind == "gpt" else ()):
        block.pipeline_stage = at if stages > 1 else None
        if again:
            block.attention.recompute()
    parts = {"grad_accumulation_step": micro} if micro > 1 else {}
    want = case.alone(**parts)
    assert_equal(case.trained(case.plan(*grid, form, pipeline_stages=stages, **parts, **settings)), want)


@pytest.mark.exhaustive
@pytest.mark.parametrize("form", SEQUENCE)
def test_processes_give_the_bits_of_the_simulator(form):
    case = Case(dtype="float32", dropout=0.2)
    plan = case.plan(2, 2, form)
    simulated = case.trained(plan)
    with WorkerPool(4) as pool:
        measured = case.trained(plan, executor="processes", pool=pool)
    for name, value in simulated.items():
        np.testing.assert_array_equal(measured[name], value, err_msg=name)


@pytest.mark.parametrize("form", SEQUENCE)
def test_gradients_of_what_only_tokens_of_a_rank_reach_are_summed_over_its_group_once(form):
    """Norms and biases of row layers: each rank saw s / t tokens. A query's bias is split, and is not summed there."""
    plan = Case().plan(2, 4, form)
    sums = {i.name: i.group_size for _, i in plan.instructions("backward") if i.kind == "all_reduce"}
    for layer in (f"blocks.{at}" for at in range(2)):
        for name in ("norm1.gamma", "norm1.beta", "norm2.gamma", "attention.out.bias", "mlp.fc2.bias"):
            assert sums[f"{layer}.{name}"] == 8
        for name in ("attention.query.bias", "attention.query.weight", "attention.out.weight", "mlp.fc1.bias"):
            assert sums[f"{layer}.{name}"] == 2
    # the table of positions is split as the sequence is
    assert sums["position_table"] == 2 and plan.value("position_table").slice_shape == (S // 4, H)


@pytest.mark.exhaustive
def test_two_steps_of_a_training_go_on_under_another_split():
    case = Case()
    want = case.alone()["losses"]
    plans = [case.plan(1, 8, "again"), case.plan(2, 4, "sp"), case.plan(2, 4, "tp")]
    # nothing is left of the form before
    assert [layer_messages(plan, 2)[0] for plan in plans] == [MESSAGES_OF_A_LAYER[f] for f in ("again", "sp", "tp")]
    losses = []
    with Session(plans[0], case.net, case.optimizer) as running:
        for at, batch in enumerate(case.batches):
            if at:
                running.switch(plans[at])
            losses += running.train([batch], 1)
    np.testing.assert_allclose(losses, want, rtol=BOUND)


MESHES = [  # of 8 ranks: copies, ranks that split a layer, stages, optimizer level
    (2, 2, 2, 1),
    (1, 4, 2, 0),
    (2, 4, 1, 3),
    (1, 2, 4, 2),
    (4, 2, 1, 2),
    (1, 8, 1, 0),
    (2, 2, 2, 3),
]


def mesh_plan(case, mesh, form):
    dp, mp, stages, level = mesh
    for at, block in enumerate(case.net.blocks):
        block.pipeline_stage = at * stages // len(case.net.blocks) if stages > 1 else None
    settings = {"pipeline_stages": stages, "grad_accumulation_step": 4}
    if level:
        settings |= {**SHARED, "optimizer_level": f"level{level}"}
    return case.plan(dp, mp, form, **settings)


@pytest.mark.exhaustive
@pytest.mark.parametrize("first_mesh", range(len(MESHES)))
def test_one_training_goes_through_all_meshes(first_mesh):
    """Each of eight steps runs on another mesh, into which parameters and states are moved while it goes on."""
    case = Case(samples=16, layers=4)
    steps = 8
    with Session(case.plan(parallel_mode="stand_alone", grad_accumulation_step=4), case.net, case.optimizer) as alone:
        want = {"losses": np.array(alone.train(case.batches, steps)), **alone.parameters()}
    order = [(first_mesh + step) % len(MESHES) for step in range(steps)]
    plans = [mesh_plan(case, MESHES[at], SEQUENCE[step % 2]) for step, at in enumerate(order)]
    with Session(plans[0], case.net, case.optimizer) as running:
        losses = []
        for step, plan in enumerate(plans):
            if step:
                running.switch(plan)
            losses += running.train([case.batches[step % 3]], 1)
        assert_equal({"losses": np.array(losses), **running.parameters()}, want)


# ---- messages ----


def layer_messages(plan, layers):
    """(phase, kind) of the messages of one layer, and the bytes that a rank sends in it."""
    parameters = {p.name for p in plan.parameters}
    found, sent = Counter(), 0
    for phase, instr in plan.instructions():
        if instr.is_communication and instr.name.startswith("blocks") and instr.name not in parameters:
            found[phase, instr.kind] += 1
            sent += MESSAGES[instr.kind].payload_bytes(message_bytes(plan, instr), instr.group_size)
    return {key: count / layers for key, count in found.items()}, sent / layers


GATHER, SCATTER, REDUCE = "all_gather", "reduce_scatter", "all_reduce"
MESSAGES_OF_A_LAYER = {  # g and g-bar of the paper; gathered again: section 4.2.2 keeps a part of what was gathered
    "tp": {("forward", REDUCE): 2, ("backward", REDUCE): 2},
    "sp": {("forward", GATHER): 2, ("forward", SCATTER): 2, ("backward", GATHER): 2, ("backward", SCATTER): 2},
    "again": {("forward", GATHER): 2, ("forward", SCATTER): 2, ("backward", GATHER): 4, ("backward", SCATTER): 2},
}
SENT = {"tp": 8, "sp": 8, "again": 10}  # times (t - 1) / t M


@pytest.mark.quick(3)
@pytest.mark.parametrize("samples", [8, 2])
@pytest.mark.parametrize("t", [4, 2, 8])
@pytest.mark.parametrize("form", FORMS)
def test_a_layer_sends_what_the_paper_says(form, t, samples):
    case = Case(samples=samples, dtype="float32")
    found, sent = layer_messages(case.plan(1, t, form), layers=2)
    assert found == MESSAGES_OF_A_LAYER[form]
    assert sent == SENT[form] * (t - 1) / t * samples * S * H * 4


def test_the_bytes_of_the_example_of_four_ranks():
    """b 2, s 8, h 16, t 4 in float32: M is 1,024 bytes."""
    sent = {form: layer_messages(Case(samples=2, dtype="float32").plan(1, 4, form), 2)[1] for form in FORMS}
    assert sent == {"tp": 6_144, "sp": 6_144, "again": 7_680}


def test_stages_send_each_other_the_parts_that_ranks_hold():
    """A border between stages carries 1 / t of what it carries without."""
    case = Case()
    for at, block in enumerate(case.net.blocks):
        block.pipeline_stage = at
    how = {"pipeline_stages": 2, "grad_accumulation_step": 4}
    sizes = {}
    for form in FORMS:
        plan = case.plan(1, 4, form, **how)
        sizes[form] = max(message_bytes(plan, i) for _, i in plan.instructions() if i.attr("shift") is not None)
    micro = 8 // 4 * S * H * 8
    assert sizes == {"tp": micro, "sp": micro // 4, "again": micro // 4}


# ---- memory ----


def kept_bytes(case, t, form):
    plan = case.plan(1, t, form)
    return sum(plan.value(name).slice_bytes for name in kept_blocks(plan, rank=0))


@pytest.mark.quick(1)
@pytest.mark.parametrize("t", [4, 2, 8])
@pytest.mark.parametrize("form", FORMS)
def test_a_layer_keeps_what_the_paper_says(form, t):
    """Without dropout and scores: inputs of two norms, of qkv and of fc1; split: q, k, v, the result, twice 4 h."""
    numbers = {"tp": 4 + 12 / t, "sp": 2 + 2 / t + 12 / t, "again": 16 / t}[form]
    layer = kept_bytes(Case(layers=3, dtype="float32"), t, form) - kept_bytes(Case(layers=2, dtype="float32"), t, form)
    assert layer == numbers * 8 * S * H * 4


@pytest.mark.quick(1)
@pytest.mark.parametrize("form", FORMS)
def test_ranks_hold_what_the_plan_predicts(form):
    case = Case(dtype="float32")
    plan = case.plan(2, 2, form)
    simulated = simulated_ranks(plan, initial_values(plan, case.net, case.optimizer), case.batches[0])
    for rank, predicted in zip(simulated, predicted_ranks(plan), strict=True):
        assert rank.peak_bytes == predicted.peak_bytes
        assert rank.most("activations") == predicted.most("activations")
    assert predict_memory(plan).peak_bytes == simulated[0].peak_bytes


# ---- written by hand ----


class Block(nn.Cell):
    """A norm, two dense layers and what they were given."""

    def __init__(self):
        super().__init__()
        self.norm, self.add = nn.LayerNorm((H,)), ops.Add()
        self.fc1, self.fc2 = nn.Dense(H, 2 * H, activation="gelu"), nn.Dense(2 * H, H)

    def construct(self, x):
        return self.add(x, self.fc2(self.fc1(self.norm(x))))


def by_layouts(net, dp, mp):
    grid = Layout((dp, mp), ("dp", "mp"))
    tokens, one = grid("dp", "mp", "None"), grid("None")
    net.norm.layer_norm.shard((tokens, one, one))
    net.fc1.matmul.shard((grid("dp", "None"), grid("mp", "None")))
    net.fc1.bias_add.shard((grid("dp", "mp"), grid("mp")))
    net.fc1.activation.gelu.shard((grid("dp", "mp"),))
    net.fc2.matmul.shard((grid("dp", "mp"), grid("None", "mp"))).add_prim_attr("forward_reduce_scatter", True)
    net.fc2.bias_add.shard((tokens, one))
    net.add.shard((tokens, tokens))


def by_counts(net, dp, mp):
    tokens = (dp, mp, 1)
    net.norm.layer_norm.shard((tokens, (1,), (1,)))
    net.fc1.matmul.shard(((dp, 1), (mp, 1)))
    net.fc1.bias_add.shard(((dp, mp), (mp,)))
    net.fc1.activation.gelu.shard(((dp, mp),))
    net.fc2.matmul.shard(((dp, mp), (1, mp))).add_prim_attr("forward_reduce_scatter", True)
    net.fc2.bias_add.shard((tokens, (1,)))
    net.add.shard((tokens, tokens))


@pytest.mark.parametrize("split", [by_layouts, by_counts])
def test_a_learner_writes_it_with_shard(split):
    net = in_float64(Block())
    optimizer = nn.SGD(net.trainable_params(), 0.1)
    x, y = np.random.default_rng(3).normal(size=(2, 4, S, H))
    results = []
    for devices in (1, 8):
        if devices > 1:
            split(net, 2, 4)
        how = {"loss": nn.MSELoss(), "optimizer": optimizer, "dataset_strategy": "full_batch"}
        plan = compile(net, x, y, device_num=devices, **how)
        with Session(plan, net, optimizer) as running:
            results.append({"loss": np.array(running.train([(x, y)], 2)), **running.parameters()})
    for name, value in results[0].items():
        np.testing.assert_allclose(results[1][name], value, rtol=BOUND, atol=1e-12, err_msg=name)
    # x has no gradient: its norm's gradient stops there, and so the gathered dX is not sent
    kinds = Counter((phase, i.kind) for phase, i in plan.instructions() if i.is_communication and "fc" in i.name)
    assert kinds[("forward", GATHER)] == kinds[("forward", SCATTER)] == 1 and kinds[("forward", REDUCE)] == 0


class Twice(Block):
    """What the second layer makes is read by two operators."""

    def construct(self, x):
        y = self.fc2(self.fc1(x))
        return self.add(y, ops.tanh(y))


class Whole(nn.Cell):
    """A product whose result is reshaped, and whole where it is read."""

    def __init__(self):
        super().__init__()
        self.product, self.reshape, self.tanh = ops.MatMul(), ops.Reshape(), ops.Tanh()
        self.weight = nn.Parameter(np.ones((H, H), np.float32), name="weight")

    def construct(self, x):
        return self.tanh(self.reshape(self.product(x, self.weight), (4, S, H)))


@pytest.mark.parametrize(
    ("make", "kinds"), [(lambda: Whole(), [REDUCE]), (lambda: Twice(), [REDUCE]), (lambda: Block(), [])]
)
def test_sums_that_all_need_whole_are_reduced(make, kinds):
    net = make()
    if isinstance(net, Whole):
        net.product.shard(((2, 4), (4, 1))).add_prim_attr("forward_reduce_scatter", True)
        net.tanh.shard(((2, 1, 1),))
    else:
        by_counts(net, 2, 4)
        net.fc2.bias_add.shard(((2, 1), (1,)) if isinstance(net, Twice) else ((2, 4, 1), (1,)))
    x = np.zeros((4 * S, H) if isinstance(net, Whole) else (4, S, H), np.float32)
    plan = compile(net, x, device_num=8, dataset_strategy="full_batch")
    assert [i.kind for _, i in plan.instructions("forward") if i.kind == REDUCE] == kinds


def test_as_in_mindspore_nothing_waits_unasked():
    net = Block()
    by_counts(net, 2, 4)
    net.fc2.matmul.del_prim_attr("forward_reduce_scatter")
    plan = compile(net, np.zeros((4, S, H), np.float32), device_num=8, dataset_strategy="full_batch")
    kinds = [i.kind for _, i in plan.instructions("forward") if i.message]
    assert REDUCE in kinds and "reduce_scatter" not in kinds


# ---- refusals ----

SHORT = {"heads": 8, "seq_length": 12}

test_what_cannot_be_is_refused_in_words = refused(
    (
        lambda: models.tensor_parallel(models.GPT(VOCAB, H, **SHORT), 1, 8, sequence=True),
        StrategyError,
        "mp=8 with seq_length=12. mp divides the length of the sequence",
    ),
    (lambda: models.tensor_parallel(models.LeNet5(), 2, 2, sequence=True), ArgumentError, "has a sequence"),
    (
        lambda: models.tensor_parallel(models.GPT(VOCAB, H, heads=8), 1, 8, gather_again=True),
        ArgumentError,
        "sequence=True: without it nothing is gathered",
    ),
    (
        lambda: models.tensor_parallel(models.GPT(VOCAB, H, heads=4), 1, 8, sequence=True),
        StrategyError,
        "mp=8 with 4 heads",
    ),
)


def test_a_shorter_sequence_that_its_ranks_do_not_divide_is_refused_when_it_is_compiled():
    case = Case()
    ids = np.zeros((8, 6), np.int32)
    models.tensor_parallel(case.net, 1, 4, sequence=True)
    with pytest.raises((StrategyError, ShapeError), match=r"embed.*4 ways, but it has 6 elements"):
        compile(case.net, ids, ids, loss=case.loss, device_num=4, dataset_strategy="full_batch")
