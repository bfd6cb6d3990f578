"""The order in which sharding propagation decides, and its choice: nets for which MindSpore 2.10's answer is known.

Nothing is configured in most of them, so that everything grows from the dataset, given whole ("full_batch"). What is
expected was recorded with 2.10, or follows by the rule in the docstring of `propagate.py` from what was recorded.
"""

import time

import numpy as np
import pytest

from parallel_lab import nn, ops
from parallel_lab.base.settings.config import ParallelConfig
from parallel_lab.base.settings.context import reset_auto_parallel_context, set_compat
from parallel_lab.graph.passes.candidates import candidate_strategies
from parallel_lab.layout.redistribution_cost import practical, redistribution_cost
from parallel_lab.layout.tensor_layout import TensorLayout
from parallel_lab.ops.machine.registry import OPS
from tests.crossed import each_of
from tests.graph.propagated import S, array, propagated, strategies, why
from tests.nets import cell
from tests.recorded import nets

MSE = nn.MSELoss()
WHOLE, COLUMNS, ROWS = ((1, 1), (1, 1)), ((1, 1), (1, 8)), ((1, 8), (8, 1))


@pytest.fixture(autouse=True)
def compat_of_2_10():
    set_compat("2.10")
    yield
    set_compat("seeds")
    reset_auto_parallel_context()


def found(net, *inputs, **settings):
    return strategies(propagated(net, *inputs, **settings))


def weight(*shape, name="w"):
    return nets.new_parameter(list(shape), name)


# ---- nothing configured ----


@pytest.mark.parametrize("n", [2, 4, 8, 16])
def test_products_split_columns_then_the_contraction(n):
    """quick_noshard: x is taken whole, so the weight's columns save most; then the contraction lies split already."""
    product, relu, second, *loss = found(
        nets.Quick(32, 16, 16), array(16, 32), array(16, 16), loss=MSE, device_num=n
    ).values()
    assert (product, relu, second) == (((1, 1), (1, n)), ((1, n),), ((1, n), (n, 1)))
    assert loss == [((1, 1), (1, 1)), ((1, 1),), ((1, 1),)]


def test_a_product_of_two_inputs_and_what_divides_it_stay_whole():
    """Both operands are reached, so it does not wait: a split of either would have to be made (the seeds' rule for one
    reached operand splits columns)."""
    net = cell(lambda net, x, y, z: net.div(net.matmul(x, y), z), matmul=ops.MatMul(), div=ops.FloorDiv())
    data = array(16, 32), array(32, 16), array(16, 16)
    assert set(found(net, *data).values()) == {((1, 1), (1, 1))}


class Block(nn.Cell):
    """A transformer block of explicit operators: 2 samples of 8 tokens, 8 heads of 8."""

    def __init__(self):
        super().__init__()
        for name, shape in {**dict.fromkeys(("q", "k", "v", "o"), (64, 64)), "f1": (64, 256), "f2": (256, 64)}.items():
            setattr(self, f"w_{name}", weight(*shape, name=f"w_{name}"))
            setattr(self, name, ops.MatMul())
        self.ln1, self.ln2 = nn.LayerNorm((64,)), nn.LayerNorm((64,))
        self.add1, self.add2, self.gelu, self.softmax = ops.Add(), ops.Add(), ops.GeLU(), ops.Softmax()
        self.scores, self.values = ops.BatchMatMul(transpose_b=True), ops.BatchMatMul()

    def heads(self, name, x):
        return ops.transpose(getattr(self, name)(x, getattr(self, f"w_{name}")).reshape(2, 8, 8, 8), (0, 2, 1, 3))

    def construct(self, x):
        y = self.ln1(x)
        scores = self.softmax(self.scores(self.heads("q", y), self.heads("k", y)))
        y = ops.transpose(self.values(scores, self.heads("v", y)), (0, 2, 1, 3)).reshape(16, 64)
        x = self.add1(x, self.o(y, self.w_o))
        y = self.gelu(self.f1(self.ln2(x), self.w_f1))
        return self.add2(x, self.f2(y, self.w_f2))


def test_a_transformer_block_splits_its_heads_and_its_hidden_layer():
    """block_free: add1 and add2 wait for both operands, so that they find both whole; one all_reduce before each."""
    plan = propagated(Block(), array(16, 64))
    of = strategies(plan)
    assert of["q"] == of["k"] == of["v"] == of["f1"] == COLUMNS
    assert of["scores"] == of["values"] == ((1, 8, 1, 1), (1, 8, 1, 1)) and of["softmax"] == ((1, 8, 1, 1),)
    assert of["o"] == of["f2"] == ROWS and of["gelu"] == ((1, 8),)
    assert of["add1"] == of["add2"] == ((1, 1), (1, 1))
    assert [m["name"] for m in plan.to_dict(rank=0)["comm"] if m["kind"] != "slice"] == ["o", "f2"]


def test_a_block_with_one_product_given_is_split_around_it():
    """Predicted from the recorded rule: f1 ((2, 1), (1, 4)); ln2 goes with it as its producer."""
    net = Block()
    net.f1.shard(((2, 1), (1, 4)))
    of = found(net, array(16, 64), fully_use_devices=False)
    assert (of["gelu"], of["f2"], of["add2"]) == (((2, 4),), S, ((2, 1), (2, 1)))
    assert next(s for name, s in of.items() if name.startswith("ln2")) == ((2, 1), (1,), (1,))


def test_a_convolution_is_not_split_by_its_output_channels():
    """conv_free: candidates that leave the pictures whole are only the one that splits nothing; behind a Reshape the
    product takes its first candidate with that layout."""

    def construct(net, x):
        x = net.pool(net.relu(net.conv(x)))
        return net.matmul(x.reshape(x.shape[0], -1), net.w)

    parts = {"conv": nn.Conv2d(3, 16, 3), "relu": ops.ReLU(), "pool": nn.MaxPool2d(2, 2), "matmul": ops.MatMul()}
    net = cell(construct, w=weight(256, 16), **parts)
    assert {n for s in found(net, array(16, 3, 8, 8)).values() for cuts in s for n in cuts} == {1}


def test_a_table_is_split_by_columns_and_the_product_behind_the_reshape_as_it_lies():
    """emb_free: the ids are whole; least of the table is read if its columns are split."""
    net = cell(lambda net, ids: net.matmul(net.gather(net.table, ids, 0).reshape(-1, 32), net.w), gather=ops.Gather())
    net.table, net.w, net.matmul = weight(64, 32, name="table"), weight(32, 16), ops.MatMul()
    assert found(net, np.zeros((16, 4), "int32")) == {"gather": ((1, 8), (1, 1)), "matmul": ROWS}


@each_of("given", None, COLUMNS)
def test_a_loss_behind_columns_gathers_them_once(given):
    """ce_free, ce_vocab_matmul: [32, 64] in 8 columns, 1024 bytes each. To (2, 1) the inner axis is gathered first,
    then the outer with slices that have grown: 10752; to (4, 1) 9216; all at once 8192."""
    net = cell(lambda net, x, y: net.loss(net.matmul(x, net.w), y), w=weight(32, 64), matmul=ops.MatMul())
    net.loss = ops.SoftmaxCrossEntropyWithLogits()
    if given:
        net.matmul.shard(given)
    of = found(net, array(32, 32), array(32, 64))
    assert of.popitem()[1] == ((1, 1), (1, 1))

    def price(cuts):
        cost = redistribution_cost(TensorLayout.from_strategy((1, 8), 8), TensorLayout.from_strategy(cuts, 8), (32, 64))
        return practical(4 * cost.forward) + practical(4 * cost.backward)

    assert [price(cuts) for cuts in ((1, 1), (2, 1), (4, 1))] == [8192, 10752, 9216]


def test_an_operator_without_rule_of_its_own_is_split_by_its_batch():
    """operator_parallel_noshard: Flatten has one candidate, and the rest follows."""
    of = list(found(nets.OpPar(False), array(32, 1, 28, 28), array(32, 10), loss=MSE).values())
    assert of[0] == ((8, 1, 1, 1),) and all(s[0] == (8, 1) for s in of[1:])


# ---- some configured ----


def test_a_repeat_axis_is_part_of_the_layout():
    """chain_middle_only: (4, 2) slices what lies in 4 rows; (1, 2) would have it gathered, (4, 1) repeats otherwise."""
    net = nets.Chain([64] * 4, [None, ((4, 1), (1, 2)), None])
    first, _, last = found(net, array(64, 64), fully_use_devices=False).values()
    assert last == ((4, 2), (2, 1)) and first[0][0] == 4


def test_a_reshape_in_a_redistribution_is_paid():
    """MatMul with 4 rows and its contraction split by 2, then Add, all devices used: (4, 2) slices, (8, 1) would have
    to split rows that lie in 4 again: a Reshape more, 1536 bytes against 512."""
    parts = {"matmul": ops.MatMul(transpose_b=True).shard(((4, 2), (1, 2))), "add": ops.Add()}
    net = cell(lambda net, x: net.add(net.matmul(x, net.w), net.b), **parts)
    net.w, net.b = weight(8, 32), weight(8, name="b")
    assert found(net, array(64, 32), fully_use_devices=True)["add"] == ((4, 2), (2,))
    rows = TensorLayout((4, 2), (1, -1))
    prices = [redistribution_cost(rows, TensorLayout.from_strategy(c, 8), (64, 8)) for c in ((4, 2), (8, 1))]
    assert [4 * cost.computation for cost in prices] == [512, 1536]


@each_of(("relu", "first", "add"), ((2, 1), S, (2, 4)), ((1, 1), COLUMNS, (1, 1)), ((8, 1), ((8, 1), (1, 1)), (8, 1)))
def test_a_residual_sum_takes_a_layout_that_both_operands_reach_without_a_message(relu, first, add):
    """x + second(first(x)), decided when both are known: behind S the second product has (2, 4), and x is sliced."""

    def construct(net, x):
        x = net.relu(x)
        return net.add(x, net.second(net.first(x, net.w), net.v))

    net = cell(construct, relu=ops.ReLU().shard((relu,)), first=ops.MatMul().shard(first), add=ops.Add())
    net.second, net.w, net.v = ops.MatMul(), weight(16, 16), weight(16, 16, name="v")
    plan = propagated(net, array(16, 16), fully_use_devices=False)
    mine = [m for m in plan.to_dict(rank=0)["comm"] if m["name"] == "add" and m["kind"] != "slice"]
    assert strategies(plan)["add"] == (add, add) and not mine


def test_the_next_given_operator_comes_before_what_waits_behind_it():
    """`add` is reached from `relu` first, but stands behind `exp`, whose walk settles both of its operands' ways."""
    parts = {"relu": ops.ReLU().shard(((8, 1),)), "exp": ops.Exp().shard(((1, 8),)), "tanh": ops.Tanh()}
    net = cell(lambda net, x: net.add(net.relu(x), net.tanh(net.exp(x))), add=ops.Add(), **parts)
    plan = propagated(net, array(16, 16), fully_use_devices=False)
    assert strategies(plan)["tanh"] == ((1, 8),)
    assert "'relu'" in why(plan, "add") and "'tanh'" in why(plan, "add")


def test_a_given_out_strategy_leads_to_the_first_candidate_with_these_counts():
    """Columns behind it would save more; the rows that the product scatters are wanted before anything is compared."""
    parts = {"first": ops.MatMul().shard(S, ((8, 1),)), "second": ops.MatMul()}
    net = cell(lambda net, x: net.second(net.first(x, net.w), net.v), w=weight(16, 16), v=weight(16, 8, name="v"))
    net.first, net.second = parts.values()
    assert found(net, array(16, 16), fully_use_devices=False)["second"] == ((8, 1), (1, 1))


def test_an_operator_that_no_walk_reaches_takes_its_first_candidate():
    """A parameter of one reader joins nothing; with all devices used the first candidate is still to split nothing."""
    parts = {"relu": ops.ReLU().shard(((2, 4),)), "exp": ops.Exp(), "w": weight(16, 16)}
    net = cell(lambda net, x: (net.relu(x), net.exp(net.w)), **parts)
    for fully in (True, False):
        assert found(net, array(16, 16), fully_use_devices=fully)["exp"] == ((1, 1),)


# ---- devices that are no power of two ----


def test_with_24_devices_one_dim_is_split_three_times_further():
    config = ParallelConfig(device_num=24, fully_use_devices=False)
    mine = {s[0] for s in candidate_strategies(OPS["relu"], ((48, 24),), {}, 24, config)}
    powers = [(a, b) for a in (1, 2, 4, 8) for b in (1, 2, 4, 8) if a * b <= 8]
    assert mine == {(3 * a, b) for a, b in powers} | {(a, 3 * b) for a, b in powers} | {(1, 1)}


# ---- time ----


class Residual(nn.Cell):
    """A bottleneck of ResNet-50: 1x1, 3x3, 1x1, each with batch norm, and the way around."""

    def __init__(self, channels, out, stride):
        super().__init__()
        mid = out // 4
        self.convs = nn.CellList(
            [nn.Conv2d(channels, mid, 1), nn.Conv2d(mid, mid, 3, stride=stride), nn.Conv2d(mid, out, 1)]
        )
        self.norms = nn.CellList([nn.BatchNorm2d(n) for n in (mid, mid, out)])
        self.around = nn.Conv2d(channels, out, 1, stride=stride) if channels != out else None
        self.relu = nn.ReLU()

    def construct(self, x):
        y = x
        for conv, norm in zip(self.convs, self.norms, strict=True):
            y = self.relu(norm(conv(y)))
        return self.relu(y + (x if self.around is None else self.around(x)))


class ResNet50(nn.Cell):
    def __init__(self):
        super().__init__()
        blocks, channels = [], 64
        for count, out in ((3, 256), (4, 512), (6, 1024), (3, 2048)):
            for i in range(count):
                blocks.append(Residual(channels, out, 2 if i == 0 and out > 256 else 1))
                channels = out
        self.begin, self.blocks, self.end = nn.Conv2d(3, 64, 7, stride=2), nn.CellList(blocks), nn.Dense(2048, 10)

    def construct(self, x):
        x = self.begin(x)
        for block in self.blocks:
            x = block(x)
        return self.end(x.mean((2, 3)))


@pytest.mark.exhaustive
def test_resnet_50_is_propagated_within_seconds():
    started = time.process_time()
    plan = propagated(ResNet50(), array(32, 3, 64, 64), dataset_strategy="data_parallel")
    assert time.process_time() - started < 20  # half a second where this was written
    assert {s[0][0] for s in strategies(plan).values()} == {8}
