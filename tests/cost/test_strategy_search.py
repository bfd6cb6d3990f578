"""Searches in seconds: the sum against the compiled plan's own time, the optimum against trying all, and what every
search must obey."""

import itertools
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from parallel_lab import Parameter, StrategyError, Tensor, compile, nn, ops
from parallel_lab.base.cluster import Link
from parallel_lab.base.errors import ArgumentError
from parallel_lab.cost import get_cluster, step_time_s
from parallel_lab.cost.search import branch_and_bound, eliminate, exact, integer_program, search, time_problem
from parallel_lab.cost.search.mindspore_model import MindSporeModel
from parallel_lab.cost.search.problem import Choice, Pair, Problem, Term
from parallel_lab.cost.search.time_model import TimeModel
from parallel_lab.graph.compiler import compile_steps
from parallel_lab.nn.tensor.autograd import gradients
from parallel_lab.run.simulator import Simulator
from tests.cost.test_search import all_plans, strategies
from tests.crossed import each_of
from tests.graph.random_nets import draw_net, unless_refused
from tests.recorded import nets

LAPTOP = get_cluster("laptop")


def ones(*shape):
    return np.ones(shape, "f")


class Tied(nn.Cell):
    """Rows of a table are looked up, and the same table makes what they become; one gradient is sent for both."""

    def __init__(self):
        super().__init__()
        self.table, self.places = Parameter(ones(64, 32), name="table"), Tensor(np.arange(32, dtype=np.int32))
        self.gather, self.mul, self.matmul = ops.Gather(), ops.Mul(), ops.MatMul(transpose_b=True)

    def construct(self, x):
        return self.matmul(self.mul(x, self.gather(self.table, self.places, 0)), self.table)


class ReadAgain(nn.Cell):
    """A value that two operators read, and one that an operator reads twice: their gradients are added."""

    def __init__(self):
        super().__init__()
        self.one, self.two = Parameter(ones(32, 32), name="one"), Parameter(ones(32, 32), name="two")
        self.first, self.second, self.add, self.mul = ops.MatMul(), ops.MatMul(), ops.Add(), ops.Mul()

    def construct(self, x):
        hidden = self.first(x, self.one)
        both = self.add(self.second(hidden, self.mul(self.two, self.two)), hidden)
        return self.mul(both, both)


NETS = {
    "quick": (lambda: nets.Quick(32, 16, 16), (16, 32), (16, 16)),
    "mlp": (lambda: nets.Mlp(512, 512, 512), (512, 512), (512, 512)),
    "megatron": (lambda: nets.MegatronMlp(64, 256, 2, 4), (16, 64), (16, 64)),
    "operator_parallel": (lambda: nets.OpPar(False), (32, 1, 28, 28), (32, 10)),
    "chain": (lambda: nets.Chain([64, 256, 32, 128], [None] * 3), (64, 64), (64, 128)),
    "tied": (Tied, (32, 32), (32, 64)),
    "read_again": (ReadAgain, (32, 32), (32, 32)),
}


def found(name, **settings):
    make, x, y = NETS[name]
    how = {"device_num": 8, "dataset_strategy": "full_batch", **settings}
    return search(make(), ones(*x), ones(*y), loss=nn.MSELoss(), **how)


def shares_a_redistribution(plan):
    """Whether something that was brought to a layout for one operator is read by another, too."""
    (stage,) = plan.stages
    forward = [i for action in stage.actions if action.program == "forward" for _, i in stage.part(action)]
    brought = {i.out: i.name for i in forward if ".for." in i.out}
    return any(brought.get(name, i.name) != i.name for i in forward for name in i.ins)


# ---- one number ----


@pytest.mark.quick(1)
@pytest.mark.parametrize("alltoall", [False, True])
@pytest.mark.parametrize("cluster", ["laptop", "gpu_node", "two_nodes"])
@pytest.mark.parametrize("name", NETS)
def test_the_sum_is_the_time_of_the_plan(name, cluster, alltoall):
    best = found(name, cluster=cluster, fully_use_devices=False, enable_alltoall=alltoall)
    assert best.best.cost == pytest.approx(step_time_s(best.plan, get_cluster(cluster)).total_s, rel=1e-12)


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(21))
def test_the_sum_is_the_time_of_any_plan_not_only_of_the_best(seed):
    rng = np.random.default_rng(seed)
    best = found(list(NETS)[seed % len(NETS)], fully_use_devices=bool(seed % 2))
    problem = best.problem
    for _ in range(500):
        way = [int(rng.integers(len(choice.candidates))) for choice in problem.choices]
        if np.isfinite(problem.cost(way)):
            plan = best.compile_with(problem.strategies(way), {})
            time_s = step_time_s(plan, LAPTOP).total_s
            if shares_a_redistribution(plan):
                assert problem.cost(way) > time_s  # it is counted for each of its readers
            else:
                assert problem.cost(way) == pytest.approx(time_s, rel=1e-12)
            break
    else:
        pytest.fail("no plan was drawn that can be")


@pytest.mark.quick(4)
@pytest.mark.parametrize("seed", range(40))
def test_the_sum_is_the_time_of_the_plan_of_a_drawn_net(seed):
    draw = draw_net(seed, (2, 4, 8)[seed % 3])
    best = unless_refused(search, draw, draw.net, method="dynamic_programming")
    if best is not None:
        time_s = step_time_s(best.plan, LAPTOP).total_s
        if shares_a_redistribution(best.plan):
            assert time_s < best.best.cost < 1.5 * time_s
        else:
            assert best.best.cost == pytest.approx(time_s, rel=1e-12)


@pytest.mark.quick(1)
@pytest.mark.parametrize("name", ["quick", "megatron", "operator_parallel", "chain"])
def test_a_found_plan_computes_what_one_device_does(name):
    make, x, y = NETS[name]
    net, rng = make(), np.random.default_rng(0)
    x, y = (rng.standard_normal(shape).astype("f") for shape in (x, y))
    for parameter in net.get_parameters():
        parameter.set_data(Tensor((rng.standard_normal(parameter.shape) / 8).astype("f")))
    settings = {"device_num": 8, "dataset_strategy": "full_batch", "cluster": "gpu_node"}
    plan = search(net, x, y, loss=nn.MSELoss(), **settings).plan
    assert {n.strategy_source for n in plan.graph.nodes} <= {"searched", "user"}
    sim = Simulator(plan, {name: p.asnumpy() for name, p in net.parameters_dict().items()})
    sim.begin(x, y)
    while sim.next_instruction() is not None:
        pass
    loss, parameters = nn.MSELoss()(net(Tensor(x)), Tensor(y)), list(net.trainable_params())
    np.testing.assert_allclose(sim.full(plan.outputs[0]), loss.asnumpy(), rtol=1e-5)
    for parameter, want in zip(parameters, gradients(loss, parameters), strict=True):
        got = sim.full(dict(plan.gradients)[parameter.name])
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-5 * max(1.0, np.abs(want).max()))


# ---- the optimum ----


class Small(nn.Cell):
    """At most four operators, drawn: products, sums, activations, over values made before."""

    def __init__(self, rng):
        super().__init__()
        self.steps, shapes = [], [(8, int(rng.choice([4, 8, 16])))]
        self.first = shapes[0]
        for _ in range(int(rng.integers(1, 5))):
            at = int(rng.integers(len(shapes)))
            rows, columns = shapes[at]
            kind = rng.choice(["product", "relu", "softmax", "add", "transpose"])
            alike = [n for n, shape in enumerate(shapes) if shape == shapes[at]]
            if kind == "product":
                wide = int(rng.choice([4, 8, 16]))
                name = f"w{len(self.steps)}"
                weight = Parameter(np.zeros((wide, columns), "f"), name=name)
                setattr(self, name, weight)
                self.steps.append((ops.MatMul(transpose_b=True), at, weight))
                shapes.append((rows, wide))
            elif kind == "add":
                self.steps.append((ops.Add(), at, int(rng.choice(alike))))
                shapes.append(shapes[at])
            elif kind == "transpose":
                self.steps.append((lambda x: ops.transpose(x, (1, 0)), at, None))
                shapes.append((columns, rows))
            else:
                self.steps.append((ops.ReLU() if kind == "relu" else ops.Softmax(), at, None))
                shapes.append(shapes[at])

    def construct(self, x):
        made = [x]
        for call, at, other in self.steps:
            operands = [made[at]] + ([] if other is None else [made[other] if isinstance(other, int) else other])
            made.append(call(*operands))
        return made[-1]


def small_problem(seed):
    """A drawn network of at most four operators on 2 to 8 devices, in seconds."""
    rng = np.random.default_rng(seed)
    net, devices = Small(rng), int(rng.choice([2, 4, 8]))
    how = {"parallel_mode": "semi_auto_parallel", "device_num": devices, "dataset_strategy": "full_batch"}
    how |= {"fully_use_devices": bool(rng.random() < 0.3), "enable_alltoall": bool(rng.random() < 0.5)}
    draft = compile_steps(net, ones(*net.first), **how)[0][1]
    print(f"seed {seed}, {devices} devices: {[n.op_class for n in draft.graph.nodes]}")
    return time_problem(draft.graph, draft.config, LAPTOP)


@pytest.mark.quick(0)
@pytest.mark.parametrize("hundred", range(20))
def test_drawn_networks_of_four_operators(hundred):
    """100 of 2,000 networks: exact, dynamic programming and trying all agree."""
    for seed in range(100 * hundred, 100 * hundred + 100):
        problem = small_problem(seed)
        least = np.array([0.0])
        axes = {n: axis for axis, n in enumerate(range(len(problem.choices)))}
        total = np.zeros([len(choice.candidates) for choice in problem.choices])
        for n, own in enumerate(problem.own):
            total += own.reshape([-1 if axis == axes[n] else 1 for axis in range(total.ndim)])
        for pair, table in zip(problem.pairs, problem.between, strict=True):
            a, b = sorted((pair.source, pair.target))
            table = table if pair.source == a else table.T
            total += table.reshape(
                [table.shape[0] if n == a else table.shape[1] if n == b else 1 for n in range(total.ndim)]
            )
        least = float(total.min())
        for best in (eliminate(problem), branch_and_bound(problem)):
            assert best.cost == pytest.approx(least, rel=1e-12) and best.proved


@pytest.mark.exhaustive
def test_larger_networks_are_integer_programs():
    best = found("mlp", fully_use_devices=False)
    assert best.problem.plans > 10**10 and exact(best.problem).method == "integer_program"
    assert exact(best.problem).cost == pytest.approx(eliminate(best.problem).cost, rel=1e-9)
    sizes = [eliminate(best.problem, limit).memory_bytes for limit in (3_400_000, 2_600_000)]
    for limit, size in zip((3_400_000, 2_600_000), sizes, strict=True):
        assert size <= limit
        assert exact(best.problem, limit).cost == pytest.approx(eliminate(best.problem, limit).cost, rel=1e-9)


# ---- what every search must obey (theory: metamorphic checks) ----


@pytest.mark.quick(4)
@pytest.mark.parametrize("name", [name for name in NETS if name != "megatron"])  # which is for eight
def test_one_device_communicates_nothing(name):
    sums = found(name, device_num=1).problem
    terms = sums.by_term([0] * len(sums.choices))
    assert terms["compute"] > 0 and terms["partial sums"] == terms["gradients"] == terms["redistribution"] == 0


@pytest.mark.quick(1)
@pytest.mark.parametrize("name", NETS)
def test_messages_twice_as_slow_cost_twice_as_much_and_change_no_choice(name):
    free = replace(LAPTOP.device, overhead_s=0.0, flops_per_s=1e30, memory_bandwidth_bytes_per_s=1e30)
    costs = []
    for beta in (1e-9, 2e-9):
        link = replace(LAPTOP.link, alpha_s=0.0, beta_s_per_byte=beta)
        costs.append(found(name, cluster=replace(LAPTOP, device=free, link=link), method="dynamic_programming").best)
    assert costs[1].cost == pytest.approx(2 * costs[0].cost, rel=1e-6, abs=1e-15)


@pytest.mark.quick(1)
@pytest.mark.parametrize("name", NETS)
def test_a_larger_space_is_never_worse_and_less_memory_never_better(name):
    wide, narrow = (found(name, fully_use_devices=fully, method="dynamic_programming") for fully in (False, True))
    assert wide.best.cost <= narrow.best.cost * (1 + 1e-12)
    problem, last = wide.problem, wide.best.cost
    for share in (0.9, 0.8, 0.6):
        try:
            now = eliminate(problem, int(wide.best.memory_bytes * share)).cost
        except StrategyError:
            break
        assert now >= last * (1 - 1e-12)
        last = now


@pytest.mark.quick(1)
@pytest.mark.parametrize("name", ["quick", "chain", "mlp"])
def test_propagation_is_never_better_than_the_best_with_the_same_operator_given(name):
    make, x, y = NETS[name]
    given = ((1, 1), (1, 8)) if name != "mlp" else ((1, 1), (8, 1))
    settings = {"device_num": 8, "dataset_strategy": "full_batch", "fully_use_devices": False}
    net = make()
    first = next(n.name for n in compile(net, ones(*x), parallel_mode="semi_auto_parallel", device_num=8).graph.nodes)
    best = found(name, fully_use_devices=False).again(pinned={first: given})
    matmul = net.matmul if name == "quick" else net.mms[0] if name == "chain" else net.d1.matmul
    matmul.shard(given)
    how = {"parallel_mode": "auto_parallel", "search_mode": "sharding_propagation", **settings}
    spread = compile(net, ones(*x), ones(*y), loss=nn.MSELoss(), **how)
    taken = best.problem.chosen({n: s for n, s in strategies(spread).items() if n in best.problem.numbers})
    assert best.best.cost <= best.problem.cost(taken) * (1 + 1e-12)


# ---- the published model of a chain of products (bytes alone) ----


def chain_problem(devices, batch, sizes, held=None):
    """A chain of products (batch, K0) x (K0, K1) x ..., operator i split (b, k, n): bytes that a device sends.

    Device d lies at (d // (k n), d // n % k, d % n). An operator: all_reduce of its partial sums, of its input's
    gradient and of its weight's; an edge: blocks that a device wants and has not, both ways.
    """
    ways = [
        (b, k, devices // b // k)
        for b, k in itertools.product([2**i for i in range(12)], repeat=2)
        if devices % (b * k) == 0 and b * k <= devices
    ]
    choices = [Choice("", "dataset", ((),), np.zeros((1, 1)), np.zeros(1, np.int64))]
    for i, (inner, outer) in enumerate(itertools.pairwise(sizes), 1):
        costs = [
            8 * (k - 1) / k * batch * outer / (b * n)
            + (8 * (n - 1) / n * batch * inner / (b * k) if i > 1 else 0)
            + 8 * (b - 1) / b * inner * outer / (k * n)
            for b, k, n in ways
        ]
        held_bytes = np.array([4 * inner * outer // (k * n) for _, k, n in ways])
        choices.append(Choice(f"matmul{i}", "MatMul", tuple(ways), np.array(costs)[:, None], held_bytes))

    def block(way, d, columns_by, rows, columns):
        b, k, n = way
        at, parts = (d % n, n) if columns_by == "n" else (d // n % k, k)
        row = d // (k * n)
        return row * rows // b, (row + 1) * rows // b, at * columns // parts, (at + 1) * columns // parts

    def missing(wanted, had):
        inside = max(0, min(wanted[1], had[1]) - max(wanted[0], had[0]))
        inside *= max(0, min(wanted[3], had[3]) - max(wanted[2], had[2]))
        return (wanted[1] - wanted[0]) * (wanted[3] - wanted[2]) - inside

    pairs = []
    for i in range(1, len(sizes) - 1):
        table = np.zeros((len(ways), len(ways), 1))
        for s, before in enumerate(ways):
            for t, after in enumerate(ways):
                blocks = [
                    (block(after, d, "k", batch, sizes[i]), block(before, d, "n", batch, sizes[i]))
                    for d in range(devices)
                ]
                there, back = (max(missing(*pair) for pair in side) for side in (blocks, [p[::-1] for p in blocks]))
                table[s, t] = 4 * (there + back)
        pairs.append(Pair(i, i + 1, table))
    return Problem("SCM-1", devices, (Term("bytes", "bytes", 1.0, ""),), tuple(choices), tuple(pairs))


# devices, batch, sizes, least bytes, plans that reach it
CHAINS = [
    (4, 1024, (128, 128, 128), 196_608, [((4, 1, 1), (4, 1, 1))]),
    (4, 128, (1024, 1024, 1024), 655_360, [((1, 1, 4), (1, 2, 2))]),
    (8, 2048, (64, 64, 512, 4096), None, [((8, 1, 1), (8, 1, 1), (2, 1, 4))]),
]


@pytest.mark.parametrize(("devices", "batch", "sizes", "least", "plans"), CHAINS)
def test_chains_of_products_have_the_published_optimum(devices, batch, sizes, least, plans):
    problem = chain_problem(devices, batch, sizes)
    for method in (eliminate, branch_and_bound, integer_program):
        best = method(problem)
        assert least is None or best.cost == least
        assert tuple(problem.strategies(best.chosen).values())[1:] in plans


def test_a_chain_can_have_two_optima():
    problem = chain_problem(8, 512, (256, 1024, 256))
    costs = [cost for cost, _ in all_plans(problem)]
    assert costs.count(min(costs)) == 2


def test_what_propagation_leaves_costs_24_times_the_optimum():
    """8 devices, batch 1024, sizes 64, 64, 1024, 64, the first product's columns split: no edge costs anything."""
    problem = chain_problem(8, 1024, (64, 64, 1024, 64))
    pinned = problem.pinned({"matmul1": (1, 1, 8)})
    spread = {"matmul1": (1, 1, 8)}
    for number in (2, 3):  # neighbour by neighbour: the way whose edge costs least, of these that with most work spared
        pair = next(p for p in problem.pairs if p.target == number)
        before = problem.choices[number - 1].candidates.index(spread[f"matmul{number - 1}"])
        edges = pair.costs[before, :, 0]
        assert edges.min() == 0
        spread[f"matmul{number}"] = problem.choices[number].candidates[int(np.flatnonzero(edges == 0)[0])]
    assert problem.cost(problem.chosen(spread)) / eliminate(pinned).cost == pytest.approx(24.2, abs=0.05)
    assert eliminate(problem).cost < eliminate(pinned).cost


# ---- equal layers ----


@pytest.mark.quick(1)
@pytest.mark.parametrize("costs", ["time", "mindspore"])
def test_equal_layers_are_priced_once(costs, monkeypatch):
    """Four more layers of a chain ask for no price of a redistribution or operator that two have not asked for."""

    def asked(layers):
        count, model = Counter(), TimeModel if costs == "time" else MindSporeModel
        for name in ("between", "rules_of"):
            own = getattr(model, name)
            monkeypatch.setattr(model, name, lambda *a, own=own, name=name: count.update([name]) or own(*a))
        net = nets.Chain([64] * (layers + 1), [None] * layers)
        best = search(net, ones(64, 64), ones(64, 64), costs=costs, loss=nn.MSELoss(), method="dynamic_programming")
        monkeypatch.undo()
        least = branch_and_bound(best.problem).cost
        return count, len({id(pair.costs) for pair in best.problem.pairs}), best.best.cost, least

    few, many = asked(3), asked(7)
    assert few[:2] == many[:2]
    assert many[2] == pytest.approx(many[3], rel=1e-12) and few[2] == pytest.approx(few[3], rel=1e-12)


# ---- what a learner sees, and gets wrong ----


def test_what_a_search_says():
    best = found("quick", fully_use_devices=True)
    why = best.plan.graph.node("matmul").strategy_reason  # in the seconds of the operator and of what brings its inputs
    assert " us of compute" in why and "candidates" in why
    text = repr(best)
    assert text == best.text()
    assert "costs 'time'" in text and "no plan costs less" in text and "matmul2" in text
    told = best.candidates("matmul")
    assert told[0].chosen and all(one.cost >= told[0].cost for one in told)
    assert len(told) == len(best.problem.choices[best.problem.numbers["matmul"]].candidates)
    lines = best.candidates_text("matmul").splitlines()
    assert len(lines) == 1 + len(told) and "chosen" in lines[1] and " more of " in lines[-1]
    assert best.steps_text().startswith("1. ")


def test_a_choice_flips_when_a_term_weighs_more():
    best = found("quick", fully_use_devices=True)
    dear = best.again(weights={"redistribution": 100.0})
    assert dear.strategies != best.strategies
    assert (
        dear.problem.by_term(dear.best.chosen)["redistribution"]
        < best.problem.by_term(best.best.chosen)["redistribution"]
    )


@each_of(
    ("wrong", "words"),
    ({"method": "genetic"}, "dynamic_programming"),
    ({"costs": "money"}, "mindspore"),
    ({"cluster": "cloud"}, "laptop"),
    ({"device_num": 16}, "16"),
    ({"memory_limit": 10}, "no choice of strategies needs at most 10 bytes"),
)
def test_wrong_settings_are_refused(wrong, words):
    with pytest.raises((ArgumentError, StrategyError, ValueError), match=words):
        found("quick", **wrong)


def test_wrong_arguments_of_a_result():
    best = found("quick")
    for call in (lambda: best.candidates("matmul9"), lambda: best.again(pinned={"relu": ((3, 1),)})):
        with pytest.raises(ArgumentError):
            call()
    with pytest.raises(ArgumentError, match="heat"):
        best.again(weights={"heat": 2.0})
    for seconds in (0, -1.0, float("nan"), True, "1"):
        with pytest.raises(ArgumentError, match="time_limit_s"):
            exact(best.problem, time_limit_s=seconds)


@pytest.mark.parametrize("limit", [0, -5, float("nan"), float("inf"), "1GB", True])
def test_a_limit_is_a_number_of_bytes(limit):
    """Once nan was no limit, and a text a TypeError of Python's."""
    with pytest.raises(ArgumentError, match=r"search: memory_limit=.*above 0"):
        found("quick", memory_limit=limit)


@pytest.mark.quick(1)
@pytest.mark.parametrize("weight", [float("nan"), float("inf"), -1.0, "a", None])
def test_a_weight_is_a_number_of_at_least_0(weight):
    with pytest.raises(ArgumentError, match=r"weights of a search: compute=.*at least 0"):
        found("quick").again(weights={"compute": weight})


def test_costs_that_are_too_large_to_be_added_are_named():
    """Once they were said to be a Parameter that is split in two ways."""
    slow = replace(LAPTOP, link=Link(1e308, 1e308))
    with pytest.raises(ArgumentError, match=r"no finite number.*links"):
        found("quick", cluster=slow)
