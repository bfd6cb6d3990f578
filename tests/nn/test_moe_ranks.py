"""nn.MoE on simulated ranks: losses, gradients and choices of one device, messages and bytes of the formulas."""

from collections import Counter

import numpy as np
import pytest

from parallel_lab import Parameter, Tensor, compile, nn, ops
from parallel_lab.base.errors import ArgumentError, ShapeError, StrategyError
from parallel_lab.cost.time import sent_bytes
from parallel_lab.graph.passes import PASSES
from parallel_lab.nn import models
from parallel_lab.ops.expert_capacity import ORDERS, ROUTERS_TO_ROOM, capacity
from parallel_lab.ops.routing import ROUTERS
from parallel_lab.run.simulator import Simulator
from tests.nets import cell
from tests.refusals import refused

SEED = 20261129
HIDDEN, NEAREST = 8, 1e-9  # scores that differ by less are drawn again


class Net(nn.Cell):
    """A layer of experts behind a shift, and a number of what it gives: every element contributes differently."""

    def __init__(self, moe):
        super().__init__()
        self.moe, self.mul, self.sum, self.add, self.move = moe, ops.Mul(), ops.ReduceSum(), ops.Add(), ops.Add()
        self.shift = Parameter(np.zeros(HIDDEN), name="shift")

    def construct(self, x, weight):
        y, loss = self.moe(self.move(x, self.shift))
        return self.add(self.sum(self.mul(y, weight)), loss)


def drawn(rng):
    """(ranks of tokens, of experts, inside experts), tokens (b, s), arguments of the layer."""
    mp = int(rng.choice([1, 1, 2]))
    dp = int(rng.choice([2, 4, 8])) // mp
    ep = int(rng.choice([n for n in (1, 2, 4, 8) if n <= dp]))
    experts = ep * int(rng.integers(1, 4))
    options = {
        "experts": experts,
        "k": int(rng.integers(1, min(experts, 4) + 1)),
        "router": str(rng.choice(["softmax_topk", "softmax_topk_norm", "topk_softmax", "sigmoid", "sigmoid_norm"])),
        "activation": str(rng.choice(["gelu", "relu"])),
        "balance_factor": float(rng.choice([0, 0.1])),
        "z_factor": float(rng.choice([0, 0.01])),
        "per_sequence": bool(rng.integers(2)),
        "scale": float(rng.choice([1, 2.5])),
    }
    if rng.integers(2):
        options["capacity_factor"] = float(rng.choice([0.75, 1.0, 1.5]))
        options["convention"] = str(rng.choice(["megatron", "mindspore", "deepspeed", "switch"]))
        options["drop_order"] = str(rng.choice(ORDERS))
    if options.get("drop_order") == "mindspore_v1":
        options["router"] = str(rng.choice(ROUTERS_TO_ROOM))
    elif experts % 4 == 0 and rng.integers(2):
        options |= {"route_groups": 2, "best_groups": 1 if options["k"] <= experts // 2 else 2}
    return (dp, ep, mp), (dp * int(rng.integers(1, 3)), int(rng.integers(1, 5))), options


def stepped(layout, options, values, x, weight, ranks=True, **how):
    """(A simulator after a step, which keeps all values; its plan), on ranks or on one device with the same groups."""
    dp, ep, mp = layout
    net = Net(nn.MoE(HIDDEN, 12, dtype=np.float64, expert_parallel=ep if ranks else 1, groups=dp, **options))
    if ranks:
        models.expert_parallel(net, dp, ep, mp)
        net.mul.shard(((dp, 1, 1), (dp, 1, 1)))
        net.move.shard(((dp, 1, 1), (1,)))
        net.sum.shard(((dp, 1, 1),))
    for name, value in values.items():
        getattr(net.moe, name).set_data(Tensor(value))
    device_num = dp * mp if ranks else 1
    plan = compile(net, x, weight, device_num=device_num, dataset_strategy="full_batch", passes=PASSES, **how)
    sim = Simulator(plan, {p.name: p.asnumpy() for p in net.get_parameters()})
    sim.begin(x, weight)
    while sim.next_instruction() is not None:
        pass
    return sim, plan


def parameters(rng, options):
    experts = options["experts"]
    shapes = {"gate": (experts, HIDDEN), "up": (experts, HIDDEN, 12), "down": (experts, 12, HIDDEN), "bias": (experts,)}
    return {name: rng.normal(size=shape) * (0.1 if name == "bias" else 1) for name, shape in shapes.items()}


def close_call(values, options, x):
    """Whether the k-th and the next score of a token are so near each other that rounding may decide."""
    logits = x.reshape(-1, HIDDEN) @ values["gate"].T
    rule = ROUTERS[options["router"]]
    ordered = -np.sort(-(rule.of_all(logits) + values["bias"]), axis=-1)
    return (-np.diff(ordered, axis=-1) < NEAREST).any()


def check_drawn(number):
    """One drawn net against one device."""
    for again in range(10):
        rng = np.random.default_rng([SEED, number, again])
        layout, (b, s), options = drawn(rng)
        values, x = parameters(rng, options), rng.normal(size=(b, s, HIDDEN))
        if not close_call(values, options, x):
            break
    print(f"seed {[SEED, number, again]}: dp, ep, mp {layout}, tokens {(b, s)}, {options}")
    weight = rng.uniform(0.5, 1.5, x.shape)
    one, plan_of_one = stepped(layout, options, values, x, weight, ranks=False)
    many, plan = stepped(layout, options, values, x, weight)
    for out in ("moe.route.0", "moe.route.1"):
        same = np.testing.assert_array_equal if out.endswith("0") else np.testing.assert_allclose
        same(many.full(out).reshape(-1), one.full(out).reshape(-1))
    wanted = float(one.full(plan_of_one.outputs[0]))
    assert float(many.full(plan.outputs[0])) == pytest.approx(wanted, rel=1e-10, abs=1e-10)
    gradients = dict(plan_of_one.gradients)
    assert set(gradients) == set(dict(plan.gradients)) == {"shift", "moe.gate", "moe.up", "moe.down"}
    for name, gradient in plan.gradients:
        np.testing.assert_allclose(many.full(gradient), one.full(gradients[name]), rtol=1e-10, atol=1e-10, err_msg=name)
    check_messages(plan, layout, options, b * s // layout[0])


def check_messages(plan, layout, options, n):
    """The rows' messages, how many and how long: of alike choices where their number follows from the router."""
    _, ep, mp = layout
    kinds = Counter(i.kind for _, i in plan.instructions())
    dropless = "capacity_factor" not in options
    assert kinds["all_to_all_v"] == (4 if dropless and ep > 1 else 0)
    for _, instr in plan.instructions():
        if instr.kind == "all_to_all_v":
            rows = min(n * options["k"], ep * n * min(options["k"], options["experts"] // ep)) // ep
            assert sent_bytes(plan, instr, 0) == (ep - 1) * rows * HIDDEN * 8
            assert instr.group(0) == tuple(range(0, ep * mp, mp))
    plan.verify()


@pytest.mark.quick(4)
@pytest.mark.parametrize("number", range(300))
def test_a_drawn_net_equals_one_device_with_the_same_groups(number):
    check_drawn(number)


@pytest.mark.parametrize("ep", [2, 4])
def test_slots_travel_as_an_all_to_all_of_equal_pieces(ep):
    """Two ways forward and two backward, (ep - 1) / ep of experts * room * hidden numbers each."""
    rng = np.random.default_rng(SEED)
    options = {"experts": 8, "k": 2, "capacity_factor": 1.25}
    values, x = parameters(rng, options), rng.normal(size=(4, 6, HIDDEN))
    _, plan = stepped((4, ep, 1), options, values, x, np.ones_like(x), redistribution="alltoall")
    moved = [i for _, i in plan.instructions() if i.kind == "all_to_all"]
    room = capacity(6, 8, 2, 1.25)
    assert len(moved) == 4
    for instr in moved:
        assert sent_bytes(plan, instr, 0) == (ep - 1) * 8 * room * HIDDEN * 8 // ep


def test_a_rank_that_gets_no_row_takes_part_and_its_experts_have_gradients_of_zeros():
    rng = np.random.default_rng(SEED)
    options = {"experts": 4, "k": 1, "router": "softmax_topk"}
    values, x = parameters(rng, options), rng.normal(size=(4, 6, HIDDEN))
    values["bias"] = np.array([0.0, 0.0, -9.0, 0.0])  # no token for rank 2
    sim, plan = stepped((4, 4, 1), options, values, x, np.ones_like(x))
    up = sim.full(dict(plan.gradients)["moe.up"])
    assert not up[2].any() and all(up[e].any() for e in (0, 1, 3))
    loads = sim.full("moe.place.1").sum(axis=(0, 1))
    assert loads[2] == 0 and loads.sum() == 24


def test_experts_copied_on_ranks_get_the_sum_of_all_tokens_gradients():
    """The loss is that of the global batch: summed over the copies and divided by nothing; no message over ep."""
    rng = np.random.default_rng(SEED)
    options = {"experts": 4, "k": 2}
    values, x = parameters(rng, options), rng.normal(size=(8, 2, HIDDEN))
    _, plan = stepped((8, 2, 1), options, values, x, np.ones_like(x))
    groups = {i.carried: i.group(0) for _, i in plan.instructions() if i.kind == "all_reduce" and i.carried}
    of = {name: group for names, group in groups.items() for name in names}
    assert of["moe.gate"] == tuple(range(8)) and of["moe.up"] == of["moe.down"] == (0, 2, 4, 6)


# ---- refusals ----


test_what_cannot_be_is_refused_in_words = refused(
    (lambda: models.expert_parallel(nn.Dense(2, 2), 2, 2), ArgumentError, "A network with an"),
    (lambda: models.expert_parallel(experts_of(4), 2, 2, sequence=True), ArgumentError, "of a ContextGPT"),
    (lambda: models.expert_parallel(experts_of(4), 2, 2, 8), StrategyError, "mp=8 with inner=12"),
    (lambda: models.expert_parallel(experts_of(4), 8, 8), StrategyError, "ep=8 with 4 experts"),
    (lambda: models.expert_parallel(experts_of(8), 2, 4, 2), StrategyError, "ep=4 with tokens split 2 x 1 ways"),
    (lambda: models.expert_parallel(experts_of(8), 2, 4, 2, expert_mp=4), StrategyError, "expert_mp=4 with mp=2"),
    (
        lambda: models.expert_parallel(models.MoEGPT(8), 2, 2, 32, sequence=True),
        StrategyError,
        "mp=32 with seq_length=16",
    ),
)


def experts_of(count, **options):
    return Net(nn.MoE(HIDDEN, 12, count, 2, **options))


def test_groups_with_capacity_are_those_that_the_layer_was_made_for():
    """More ranks than groups: a rank would have a part of one, and other choices would be dropped."""
    net = models.expert_parallel(experts_of(4, capacity_factor=1.0, groups=2), 4, 2)
    net.mul.shard(((4, 1, 1),) * 2)
    x = np.ones((4, 4, HIDDEN), np.float32)
    with pytest.raises(ShapeError, match=r"2 x 1 groups of tokens on 4 x 1 ranks.*groups=\(4, 1\)"):
        compile(net, x, x, device_num=4, dataset_strategy="full_batch")


def test_groups_that_are_split_by_halves_are_refused():
    exchange = ops.ExchangeRows(rows=4).shard(((1, 2, 1, 1), (1, 1, 1)))

    def alone():
        return cell(lambda net, x, counts: net.exchange(x, counts), exchange=exchange)

    with pytest.raises(StrategyError, match="1 x 4 groups of tokens 1 x 2 ways"):
        compile(
            alone(), np.ones((1, 4, 2, 3)), np.zeros((1, 4, 4), np.int32), device_num=2, dataset_strategy="full_batch"
        )
