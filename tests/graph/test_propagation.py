"""Sharding propagation: the strategies that MindSpore 2.10 gave the same nets (`tests/recorded/propagated.json`), those
that the tutorials print, and random nets in which some operators were given a strategy, against one device.
"""

import itertools
import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from parallel_lab import StrategyError, nn, ops
from parallel_lab.base.errors import ArgumentError, StrategyTypeError
from parallel_lab.base.settings.config import ParallelConfig
from parallel_lab.base.settings.context import reset_auto_parallel_context, set_compat
from parallel_lab.graph.passes.candidates import candidate_strategies, choose_from_inputs
from parallel_lab.layout.named_layout import Layout
from parallel_lab.layout.redistribution import plan_redistribution
from parallel_lab.layout.redistribution_cost import RedistributionCost, practical, redistribution_cost
from parallel_lab.layout.tensor_layout import TensorLayout
from parallel_lab.nn.sharded_cell import shard
from parallel_lab.nn.tensor.parameter import Parameter
from parallel_lab.ops.machine.legal_strategies import legal_strategies
from parallel_lab.ops.machine.registry import OPS
from parallel_lab.ops.machine.sharding import sharding_rule
from parallel_lab.run.simulator import Simulator
from tests.crossed import each_of
from tests.graph.propagated import AUTO, S, array, forgetful, propagated, strategies, why
from tests.graph.random_nets import compiled, draw_net
from tests.graph.test_recorded_strategies import CASES, assert_same_messages, assert_same_operators, assert_same_slices
from tests.nets import cell
from tests.recorded import nets

RECORDED = json.loads((Path(__file__).parents[1] / "recorded" / "propagated.json").read_text())


@pytest.fixture
def compat_of_2_10():
    set_compat("2.10")
    yield
    set_compat("seeds")
    reset_auto_parallel_context()


# ---- recorded ----


@pytest.fixture(params=[key.partition(":")[0] for key in RECORDED])
def compared(request, compat_of_2_10):
    """(the plan as rank 0 sees it, the recording)."""
    make, x, label, strategy = CASES[request.param]
    recorded = RECORDED[f"{request.param}:sharding_propagation"]
    assert recorded["context"]["device_num"] == 8 and recorded["context"]["dataset_strategy"] == strategy
    plan = propagated(
        make(), array(*x), array(*label), loss=nn.MSELoss(), dataset_strategy=strategy, fully_use_devices=False
    )
    return plan.to_dict(rank=0), recorded


def test_without_fully_use_devices_the_strategies_are_those_that_mindspore_2_10_gave(compared):
    assert_same_operators(*compared)


def test_parameters_and_messages_are_those_that_mindspore_2_10_made_of_them(compared):
    assert_same_slices(*compared)
    assert_same_messages(*compared, fusion=False)


# ---- what the tutorials print ----


def test_quickstart_gets_the_strategies_that_its_tutorial_prints():
    """Seed 003: `relu` ((2, 4)), `matmul2` ((2, 4), (4, 1)) follow from `matmul`; rank 0: ReLU (8, 4), w2 (4, 16)."""
    plan = propagated(
        nets.Quick(32, 16, 16, S), array(2, 32), array(2, 16), loss=nn.MSELoss(), dataset_strategy="data_parallel"
    )
    assert list(strategies(plan).values()) == [S, ((2, 4),), S, ((2, 4), (2, 4)), ((2, 4),), ((2, 4),)]
    view = plan.to_dict(rank=0)
    slices = {o["name"]: (o["in_slice"], o["out_slice"]) for o in view["ops"] if o["phase"] == "forward"}
    assert slices["relu"] == ([[8, 4]], [[8, 4]])
    assert slices["matmul2"] == ([[8, 4], [4, 16]], [[8, 16]])


def feed_forward(size, strategy):
    """Dense-ReLU-Dense of explicit operators; only the first product has a strategy."""

    def construct(net, x):
        x = net.relu(net.add1(net.matmul1(x, net.w1), net.b1))
        return net.add2(net.matmul2(x, net.w2), net.b2)

    parts = {name: nets.new_parameter([size, size], name) for name in ("w1", "w2")}
    parts |= {name: nets.new_parameter([size], name, "zeros") for name in ("b1", "b2")}
    parts |= {"matmul1": ops.MatMul().shard(strategy), "matmul2": ops.MatMul()}
    return cell(construct, add1=ops.Add(), add2=ops.Add(), relu=ops.ReLU(), **parts)


@pytest.mark.parametrize(("fully", "last"), [(True, ((2, 4), (4,))), (False, ((2, 1), (1,)))])
def test_feed_forward_net_gets_the_strategies_of_its_tutorial(fully, last):
    """Recorded with 2.10 in both settings: the last Add is split again only where every device must be used."""
    plan = propagated(feed_forward(64, ((2, 1), (1, 4))), array(64, 64), fully_use_devices=fully)
    assert list(strategies(plan).values()) == [((2, 1), (1, 4)), ((2, 4), (4,)), ((2, 4),), S, last]


def test_what_rank_0_runs_of_the_feed_forward_net_is_what_the_tutorial_prints():
    view = propagated(feed_forward(64, ((2, 1), (1, 4))), array(64, 64)).to_dict(rank=0)
    slices = {o["name"]: (o["in_slice"], o["out_slice"]) for o in view["ops"]}
    assert slices["matmul1"] == ([[32, 64], [64, 16]], [[32, 16]])
    assert slices["matmul2"] == ([[32, 16], [16, 64]], [[32, 64]])
    moved = [(m["kind"], m["group"], m["out_shape"]) for m in view["comm"] if m["name"] in ("matmul2", "add2")]
    assert moved == [("all_reduce", [0, 1, 2, 3], [32, 64]), ("slice", [], [32, 16])]


def test_two_given_neighbours_that_disagree_are_joined_by_a_redistribution():
    """MindSpore 2.10 compiles Mul (4, 4) followed by ReLU (8, 2) on 16 devices; early versions refused it."""
    parts = {"mul": ops.Mul().shard(((4, 4), (4, 4))), "relu": ops.ReLU().shard(((8, 2),))}
    net = cell(lambda net, x: net.relu(net.mul(x, net.w)), w=Parameter(np.full((64, 32), 0.5), name="w"), **parts)
    x = np.random.default_rng(3).normal(size=(64, 32))
    plan = propagated(net, x, device_num=16)
    assert strategies(plan) == {"mul": ((4, 4), (4, 4)), "relu": ((8, 2),)}
    assert any(m["name"] == "relu" for m in plan.to_dict(rank=0)["comm"])
    sim = Simulator(plan, {"w": net.w.asnumpy()})
    sim.run_step(x)
    np.testing.assert_array_equal(sim.full(plan.outputs[0]), np.maximum(x * 0.5, 0))


# ---- the choice ----


def test_a_tie_on_the_edge_goes_to_the_operator_that_communicates_least():
    """What a consumer wants whole, ((1, 1), (1, 1)) gives as well as ((1, 8), (8, 1)), but without the all_reduce."""
    parts = {"w": nets.new_parameter([16, 16], "w"), "matmul": ops.MatMul(), "relu": ops.ReLU().shard(((1, 1),))}
    net = cell(lambda net, x: net.relu(net.matmul(x, net.w)), **parts)
    assert strategies(propagated(net, array(16, 16), fully_use_devices=False))["matmul"] == ((1, 1), (1, 1))
    # a MatMul that must use all devices has only the contraction left to split
    assert strategies(propagated(net, array(16, 16)))["matmul"] == ((1, 8), (8, 1))


ADDED = (("add", ((64, 32), (64, 32))), ("add", ((32,), (64, 32))), ("add", ((64, 32), (32,))))


@each_of("op, shapes", *ADDED, ("add", ((64, 1), (1, 32))), ("relu", ((64, 32),)))
def test_operators_that_must_use_all_devices_have_these_candidates(op, shapes):
    """MindSpore, generate_strategy_test: 5 on 8 devices for these shapes, (1, 1) among them."""
    found = candidate_strategies(OPS[op], shapes, {}, 8, ParallelConfig(device_num=8))
    cuts = {tuple(max(c) for c in itertools.zip_longest(*(reversed(t) for t in s), fillvalue=1)) for s in found}
    assert len(found) == 5
    assert cuts == {(1, 8), (2, 4), (4, 2), (8, 1), (1, 1)}


def test_candidates_without_that_rule_are_all_products_that_fit():
    """[64, 32] on 8: pairs of powers of two with product 1, 2, 4 or 8; of a product those of three."""
    config = ParallelConfig(device_num=8, fully_use_devices=False)
    assert len(candidate_strategies(OPS["relu"], ((64, 32),), {}, 8, config)) == 1 + 2 + 3 + 4
    matmul = {"transpose_a": False, "transpose_b": False}
    assert len(candidate_strategies(OPS["matmul"], ((64, 32), (32, 64)), matmul, 8, config)) == 1 + 3 + 6 + 10
    full = candidate_strategies(OPS["matmul"], ((64, 32), (32, 64)), matmul, 8, ParallelConfig(device_num=8))
    assert len(full) == 10 and all(a * b * c == 8 for (a, b), (_, c) in full)


def test_an_operator_too_small_for_all_devices_may_use_some_and_says_so():
    weights = {"w": nets.new_parameter([6, 2], "w"), "v": nets.new_parameter([2, 3], "v")}
    products = {"first": ops.MatMul().shard(((2, 2), (2, 1))), "second": ops.MatMul()}
    net = cell(lambda net, x: net.second(net.first(x, net.w), net.v), **weights, **products)
    plan = propagated(net, array(2, 6))
    (a, b), (_, c) = strategies(plan)["second"]
    assert a * b * c < 8
    assert "no strategy of it splits over all 8 devices" in why(plan, "second")


UNARY = legal_strategies(OPS["relu"], ((16, 8),), {}, 8)


@pytest.mark.parametrize("fully", [True, False])
@pytest.mark.parametrize("strategy", UNARY)
def test_choose_from_inputs_takes_an_input_as_it_lies(strategy, fully):
    config = ParallelConfig(device_num=8, fully_use_devices=fully)
    layout = sharding_rule(OPS["relu"], ((16, 8),), {}, strategy, 8).ins[0]
    assert choose_from_inputs(OPS["relu"], ((16, 8),), {}, (layout,), 8, config) == strategy
    assert choose_from_inputs(OPS["mul"], ((16, 8), ()), {}, (layout, None), 8, config) == (*strategy, ())
    both = choose_from_inputs(OPS["mul"], ((16, 8), (16, 8)), {}, (layout, layout), 8, config)
    assert both == (strategy[0], strategy[0])


def test_choose_from_inputs_finds_a_legal_strategy_where_none_fits():
    """Columns by the outer axis: no strategy says so; it needs a message, and any legal strategy may be answered."""
    layout = TensorLayout((2, 4), (0, 1))
    chosen = choose_from_inputs(OPS["relu"], ((16, 8),), {}, (layout,), 8, ParallelConfig(device_num=8))
    assert chosen in legal_strategies(OPS["relu"], ((16, 8),), {}, 8)
    with pytest.raises(StrategyError, match="Reshape takes no strategy"):
        choose_from_inputs(OPS["reshape"], ((16, 8),), {"shape": (8, 16)}, (layout,), 8, ParallelConfig(device_num=8))


# ---- costs ----


def test_costs_of_redistribution_are_those_of_the_formulas():
    """[16, 16] over 2 x 4, slices of `held` elements. Factors: gather 1/2, exchange 2; reshapes: twice the first slice,
    once (MindSpore: ComputeCost)."""
    rows, blocks, eight = TensorLayout((2, 4), (1, -1)), TensorLayout((2, 4), (1, 0)), TensorLayout((8,), (0, -1))
    held = 8 * 16
    assert redistribution_cost(rows, blocks, (16, 16)) == RedistributionCost(0, 0, held)
    # rows split further: the same slicing, but on rows written as 2 x 8, so with a reshape before and behind
    assert redistribution_cost(rows, eight, (16, 16)) == RedistributionCost(0, 0, 2 * held + held)
    held = 8 * 4
    touched = held + 2 * held * 4 + held
    assert redistribution_cost(blocks, rows, (16, 16)) == RedistributionCost(held * 4 / 2, held / 2, touched)
    whole, held = TensorLayout.replicated(8, 2), 2 * 16
    assert redistribution_cost(eight, whole, (16, 16)) == RedistributionCost(held * 8 / 2, held / 2, 2 * held)
    columns = TensorLayout((8,), (-1, 0))
    exchanged = redistribution_cost(eight, columns, (16, 16), alltoall=True)
    assert exchanged == RedistributionCost(2 * held, 2 * held, 2 * held)
    touched = held + 2 * held * 8 + held
    exchanged = redistribution_cost(columns, eight, (16, 16), alltoall=True)
    assert exchanged == RedistributionCost(2 * held, 2 * held, touched)
    # without all_to_all it is gathered, then split
    gathered = redistribution_cost(columns, eight, (16, 16))
    assert gathered == RedistributionCost(held * 8 / 2, held / 2, touched + held * 8)


def test_start_up_of_messages_is_added_as_mindspore_does():
    assert [practical(c) for c in (0, 1, 2048, 2049, 10_000)] == [0, 3072, 3072, 3073, 11_024]


@pytest.mark.exhaustive
def test_a_redistribution_costs_communication_exactly_if_its_plan_has_a_message():
    rng = np.random.default_rng(11)
    seen = Counter()
    for _ in range(400):
        shape = tuple(int(n) for n in rng.choice((2, 4, 8, 16), size=rng.integers(1, 4)))
        made = []
        for _ in range(2):
            left, cuts = 16, []
            for n in shape:
                cuts.append(int(rng.choice([c for c in (1, 2, 4, 8, 16) if n % c == 0 and c <= left])))
                left //= cuts[-1]
            made.append(TensorLayout.from_strategy(cuts, 16))
        cost = redistribution_cost(*made, shape)
        messages = any(step.communicates for step in plan_redistribution(*made, shape))
        assert (cost.communication > 0) == messages, (shape, made)
        seen[messages] += 1
    assert min(seen.values()) > 50


# ---- parameters, reshapes, casts ----


class Shared(nn.Cell):
    """Two products with one weight."""

    def __init__(self, first=None, second=None):
        super().__init__()
        self.w = Parameter(np.random.default_rng(0).normal(size=(64, 64)), name="w")
        self.mm1, self.relu, self.mm2 = ops.MatMul(), ops.ReLU(), ops.MatMul()
        for primitive, strategy in ((self.mm1, first), (self.mm2, second)):
            if strategy:
                primitive.shard(strategy)

    def construct(self, x):
        return self.mm2(self.relu(self.mm1(x, self.w)), self.w)


@pytest.mark.quick(20)
@pytest.mark.parametrize("fully", [True, False])
@pytest.mark.parametrize(
    "given", legal_strategies(OPS["matmul"], ((64, 64), (64, 64)), {"transpose_a": False, "transpose_b": False}, 8)
)
@pytest.mark.parametrize("second", [False, True])
def test_operators_that_share_a_parameter_cut_it_equally(given, second, fully):
    net = Shared(None, given) if second else Shared(given)
    plan = propagated(net, array(64, 64), fully_use_devices=fully)
    rules = [
        sharding_rule(OPS["matmul"], ((64, 64), (64, 64)), dict(plan.graph.node(n).attrs), strategies(plan)[n], 8)
        for n in ("mm1", "mm2")
    ]
    assert rules[0].ins[1].same_placement(rules[1].ins[1])


def test_given_strategies_that_disagree_about_a_parameter_are_refused():
    with pytest.raises(RuntimeError, match=r"'w'.*two layouts") as caught:
        propagated(Shared(((8, 1), (1, 1)), ((1, 8), (8, 1))), array(64, 64))
    assert isinstance(caught.value, StrategyError)


def test_an_operator_that_cannot_cut_a_parameter_as_another_does_is_refused_in_words():
    """The product was given rows of the weight to split; the softmax works along them."""
    parts = {"matmul": ops.MatMul().shard(((1, 8), (8, 1))), "softmax": ops.Softmax(axis=0), "add": ops.Add()}
    parts["w"] = nets.new_parameter([64, 64], "w")
    net = cell(lambda net, x: net.add(net.matmul(x, net.w), net.softmax(net.w)), **parts)
    words = r"'w'.*different sharding strategies.*'matmul' splits it into slices \(8, 64\).*consistent"
    with pytest.raises(RuntimeError, match=words) as caught:
        propagated(net, array(64, 64))
    assert isinstance(caught.value, StrategyError) and "Softmax 'softmax'" in str(caught.value)


def test_strategies_pass_through_reshapes():
    """(16, 8, 4) becomes (16, 32): rows stay rows."""
    parts = {"relu": ops.ReLU().shard(((4, 2, 1),)), "reshape": ops.Reshape(), "tanh": ops.Tanh()}
    net = cell(lambda net, x: net.tanh(net.reshape(net.reshape(net.relu(x), (128, 4)), (16, 32))), **parts)
    plan = propagated(net, array(16, 8, 4))
    assert strategies(plan) == {"relu": ((4, 2, 1),), "tanh": ((4, 2),)}
    assert not [m for m in plan.to_dict(rank=0)["comm"] if m["name"] != "relu"]  # the input is sliced for it
    assert "'relu'" in why(plan, "tanh")


def test_strategies_pass_back_to_producers_and_on_to_their_other_consumers():
    def construct(net, x):
        shared = net.relu(x)
        return net.tanh(shared), net.exp(shared)

    net = cell(construct, relu=ops.ReLU(), exp=ops.Exp(), tanh=ops.Tanh().shard(((2, 4),)))
    plan = propagated(net, array(16, 16))
    assert set(strategies(plan).values()) == {((2, 4),)}
    assert why(plan, "relu").startswith("feeds 'tanh', which wants slices (8, 4)")
    assert why(plan, "exp").startswith("follows 'relu', whose result has slices (8, 4)")


def test_an_operator_with_two_operands_waits_for_both():
    """From the product alone `add` would split rows in 2, as that lies, and `tanh` would have to be gathered for it."""

    def construct(net, x):
        x = net.relu(x)
        return net.add(net.matmul(x, net.w), net.tanh(net.exp(x)))

    parts = {"relu": ops.ReLU().shard(((2, 4),)), "matmul": ops.MatMul(), "exp": ops.Exp(), "tanh": ops.Tanh()}
    net = cell(construct, w=nets.new_parameter([16, 16], "w"), add=ops.Add(), **parts)
    found = strategies(propagated(net, array(16, 16), fully_use_devices=False))
    assert found == {"relu": ((2, 4),), "matmul": S, "exp": ((2, 4),), "tanh": ((2, 4),), "add": ((2, 4), (2, 4))}


def test_a_shared_parameter_leads_to_its_other_operators_and_earlier_dims_are_cut_first():
    """Only the weight joins the products: four ways on 8 devices leave it whole; dim 0 first, inputs not asked."""

    parts = {"first": ops.MatMul().shard(((8, 1), (1, 1))), "second": ops.MatMul()}
    parts["w"] = nets.new_parameter([16, 16], "w")
    net = cell(lambda net, x, y: (net.first(x, net.w), net.second(y, net.w)), **parts)
    plan = propagated(net, array(16, 16), array(8, 1, 16), dataset_strategy=((1, 1), (1, 8, 1)))
    assert strategies(plan)["second"] == ((8, 1, 1), (1, 1))
    assert why(plan, "second").startswith("reads parameter 'w', which 'first' splits too")


def test_operators_that_no_given_one_reaches_start_from_their_inputs():
    parts = {"relu": ops.ReLU().shard(((2, 4),)), "tanh": ops.Tanh(), "exp": ops.Exp()}
    net = cell(lambda net, x, y: (net.relu(x), net.exp(net.tanh(y))), **parts)
    layout = Layout((2, 4), ("dp", "mp"))
    fed = layout("None", "None"), layout("dp", "mp")
    plan = propagated(net, array(16, 16), array(8, 2), dataset_strategy=fed)
    assert strategies(plan) == {"relu": ((2, 4),), "tanh": ((2, 4),), "exp": ((2, 4),)}
    assert why(plan, "tanh").startswith("reads input 'y'")


def test_a_half_precision_copy_of_a_parameter_is_cut_where_it_is_used():
    def construct(net, x):
        return net.relu(net.matmul(ops.cast(x, "float16"), ops.cast(net.w, "float16")))

    parts = {"w": nets.new_parameter([32, 16], "w"), "matmul": ops.MatMul(), "relu": ops.ReLU().shard(((2, 4),))}
    plan = propagated(cell(construct, **parts), array(16, 32))
    (a, b), (_, c) = strategies(plan)["matmul"]
    assert (a, b, c) == (2, 1, 4)  # the one whose result lies as ReLU wants it and uses all devices
    assert plan.to_dict(rank=0)["params"][0]["slice"] == [32, 4]
    assert not plan.to_dict(rank=0)["comm"] or all(m["kind"] == "slice" for m in plan.to_dict(rank=0)["comm"])


def test_layouts_with_named_axes_are_passed_on_too():
    """The product splits its rows by `dp` and its columns by `mp`; ReLU takes them so."""
    layout = Layout((2, 4), ("dp", "mp"))
    net = nets.Quick(32, 16, 16)
    net.matmul.shard((layout("dp", "None"), layout("None", "mp")))
    plan = propagated(net, array(16, 32))
    assert strategies(plan)["relu"] == ((2, 4),)
    assert strategies(plan)["matmul2"] == S
    assert not [m for m in plan.to_dict(rank=0)["comm"] if m["name"] == "relu"]


# ---- a Cell that is sharded as a whole ----

GRID = Layout((2, 4), ("dp", "sp"))  # rows of x over dp, columns of v over sp
TALL = {"in_strategy": (GRID("dp", "None"),), "parameter_plan": {"v": GRID("None", "sp")}}


def of_block(**how):
    """A net around a block of two products, and the block. how: to `shard` it"""

    def construct(net, x):
        return net.second(net.relu(net.first(x, net.v)), net.w)

    parts = {"v": nets.new_parameter([32, 16], "v"), "w": nets.new_parameter([16, 16], "w")}
    parts |= {"first": ops.MatMul(), "relu": ops.ReLU(), "second": ops.MatMul()}
    block = cell(construct, **parts)
    net = cell(lambda net, x: net.tanh(net.block(x)), block=block, tanh=ops.Tanh())
    if how:
        block.shard(**how)
    return net, block


def laid_out(net):
    """(class, strategy) of its operators, (kind, group) of its messages on rank 0."""
    plan = propagated(net, array(16, 32), fully_use_devices=False)  # as MindSpore does where `shard` is called
    sent = [(m["kind"], m.get("group")) for m in plan.to_dict(rank=0)["comm"]]
    return [(node.op, node.strategy) for node in plan.graph.nodes], sent


def test_a_cell_that_is_sharded_in_place_is_laid_out_as_what_shard_returns():
    """The column cut of v makes the second product one of sums over the 4 ranks of a row (MindSpore's own test)."""
    in_place = laid_out(of_block(**TALL)[0])
    whole, inner = of_block()
    returned = shard(inner, **TALL)
    whole.__dict__["block"] = returned
    assert in_place == laid_out(whole)
    strategy = dict(in_place[0])
    assert ("matmul", ((2, 1), (1, 4))) in in_place[0] and ("matmul", ((2, 4), (4, 1))) in in_place[0]
    assert strategy["relu"] == ((2, 4),) and ("all_reduce", [0, 1, 2, 3]) in in_place[1]


def test_the_last_shard_of_a_cell_counts():
    net, block = of_block(in_strategy=((1, 8),))
    block.shard(**TALL)
    assert laid_out(net) == laid_out(of_block(**TALL)[0])


@pytest.mark.parametrize("out", [(2, 1), (8, 1), (1, 8), GRID("dp", "None"), GRID(("dp", "sp"), "None")], ids=str)
def test_what_a_sharded_cell_gives_lies_as_told(out):
    net, _ = of_block(**TALL, out_strategy=(out,))
    plan = propagated(net, array(16, 32), fully_use_devices=False)
    (given,) = [node for node in plan.graph.nodes if node.op == "identity" and node.ins[0].endswith("second")]
    assert tuple(getattr(given.strategy[0], "splits", given.strategy[0])) == getattr(out, "splits", out)
    values = {p.name: p.asnumpy() for p in net.get_parameters()}
    x = np.random.default_rng(0).normal(size=(16, 32)).astype(np.float32)
    wanted = np.tanh(np.maximum(x @ values["block.v"], 0) @ values["block.w"])
    np.testing.assert_allclose(Simulator(plan, values).run_step(x), wanted, rtol=1e-5, atol=1e-6)


def test_strategies_that_do_not_fit_a_sharded_cell_are_refused():
    with pytest.raises(ArgumentError, match="1 results and 2 strategies in out_strategy"):
        laid_out(of_block(**TALL, out_strategy=((2, 1), (2, 1)))[0])
    with pytest.raises(StrategyTypeError, match=r"shard, result 0: strategy \(\(2, 'x'\),\)"):
        of_block(**TALL, out_strategy=((2, "x"),))


# ---- settings ----


def test_elementwise_operators_copy_their_producers_strategy_if_asked():
    plan = propagated(nets.Quick(32, 16, 16, S), array(16, 32), elementwise_op_strategy_follow=True)
    assert strategies(plan)["relu"] == ((2, 1),)
    assert strategies(propagated(nets.Quick(32, 16, 16, S), array(16, 32)))["relu"] == ((2, 4),)


def test_an_elementwise_operator_that_was_reached_from_behind_is_cut_as_its_producer_in_the_end():
    """`exp` is reached from `relu`, which is split along the dim that the softmax before it keeps whole."""

    def net():
        parts = {"softmax": ops.Softmax(axis=-1), "exp": ops.Exp(), "relu": ops.ReLU().shard(((1, 8),))}
        return cell(lambda net, x: net.relu(net.exp(net.softmax(x))), **parts)

    free = strategies(propagated(net(), array(16, 16)))
    follows = strategies(propagated(net(), array(16, 16), elementwise_op_strategy_follow=True))
    assert (free["exp"], follows["exp"]) == (((1, 8),), ((1, 1),))
    assert free["softmax"] == follows["softmax"] == ((1, 1),)


@pytest.mark.quick(16)
@pytest.mark.parametrize("seed", range(40))
def test_every_elementwise_operator_follows_its_producer_if_asked(seed):
    drawn = forgetful(draw_net(seed, 8), seed)
    plan = compiled(drawn, **AUTO, elementwise_op_strategy_follow=True) if drawn else None
    if plan is None:
        return
    nodes = {n.name: n for n in plan.graph.nodes}
    shared = Counter(i for n in plan.graph.nodes for i in n.ins if (g := plan.graph.input(i)) and g.role == "parameter")
    for node in nodes.values():
        reads = [i for i in node.ins if i in nodes and not nodes[i].opdef.view and nodes[i].shape == node.shape]
        unary = node.op in ("relu", "tanh", "sigmoid", "square", "neg", "exp", "abs", "gelu")
        if node.strategy_source != "propagated" or not unary or not reads:
            continue
        assert not any(shared[i] > 1 for i in node.ins)
        producer = nodes[reads[0]]
        shapes, attrs = plan.graph.operand_shapes(producer), dict(producer.attrs)
        rule = sharding_rule(producer.opdef, shapes, attrs, producer.strategy, 8)
        assert node.strategy[0] == rule.out.splits


def test_slices_of_a_product_are_aligned_if_that_is_asked_for():
    """[64, 64] x [64, 64] on 8 devices with a multiple of 32: k and n may be split two ways at most."""
    net = nets.Chain([64] * 3, [((1, 1), (1, 1)), None])
    _, free = strategies(propagated(net, array(64, 64), fully_use_devices=False)).values()
    assert free == ((1, 1), (1, 8))
    settings = {"tensor_slice_align_enable": True, "tensor_slice_align_size": 32}
    aligned = propagated(net, array(64, 64), fully_use_devices=False, **settings)
    assert list(strategies(aligned).values())[1] == ((1, 1), (1, 2))
    with pytest.raises(StrategyError, match=r"multiple of 48.*tensor_slice_align_size"):
        propagated(net, array(64, 64), tensor_slice_align_enable=True, tensor_slice_align_size=48)


def test_a_net_without_any_strategy_starts_from_its_inputs():
    """As MindSpore 2.10 compiles it; older versions refused it."""
    plan = propagated(nets.Quick(32, 16, 16), array(2, 32), dataset_strategy="data_parallel")
    assert set(strategies(plan).values()) == {((8, 1), (1, 1)), ((8, 1),)}


def test_a_wrong_given_strategy_is_refused_as_in_semi_auto():
    with pytest.raises(StrategyError, match=r"\('k'\) 2 ways.*4 ways"):
        propagated(nets.Quick(32, 16, 16, ((2, 4), (2, 1))), array(16, 32))
