"""Parameters bring their names: calls from one line in a loop, in another order on one rank, are matched by them."""

from __future__ import annotations

import numpy as np
import pytest

from parallel_lab import Parameter, Tensor, nn, ops, value_and_grad
from parallel_lab.base.errors import CollectiveMismatch, RankRaised
from parallel_lab.base.settings import context
from parallel_lab.train.compiled import CompiledFunction
from tests.ops.ranks import on_ranks
from tests.processes.pools import BACKENDS, assert_usable, pool_of

pytestmark = pytest.mark.timeout(60)
RANKS = 4
KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce", "gather")


pool = pool_of(BACKENDS, RANKS)


def parameters(names):
    return [Parameter(Tensor(np.full((4, 4), i + 1.0, np.float32)), name=name) for i, name in enumerate(names)]


def in_a_loop(comm, kind, way, names, order, odd):
    """The same line for all parameters; the odd rank takes them in another order."""
    given = parameters(names)
    got = []
    for turn in range(3):
        for i in order if comm.rank == odd and turn == 2 else range(len(given)):
            if way == "started":
                fields = {"root": 0} if kind in ("broadcast", "reduce", "gather") else {}
                got.append(comm.start(kind, given[i], **fields).wait())
            else:
                got.append(getattr(comm, kind)(given[i]))
    return len(got)


@pytest.mark.quick(1)
@pytest.mark.parametrize("odd", range(RANKS))
@pytest.mark.parametrize("way", ["called", "started"])
@pytest.mark.parametrize("kind", KINDS)
def test_another_order_of_parameters_is_reported(pool, kind, way, odd):
    with pytest.raises(CollectiveMismatch, match=r"(first|second|third) at .*(first|second|third) at "):
        pool.run(in_a_loop, kind, way, ("first", "second", "third"), (0, 2, 1), odd)
    assert_usable(pool)


@pytest.mark.quick(1)
@pytest.mark.parametrize("way", ["called", "started"])
@pytest.mark.parametrize("kind", KINDS)
def test_one_order_is_not_a_fault(pool, kind, way):
    assert pool.run(in_a_loop, kind, way, ("first", "second"), (0, 1), -1) == [6] * RANKS


def some_arrays(comm):
    """Ranks without a Parameter there, and a tag, have nothing to compare."""
    (p,) = parameters(["w"])
    got = [comm.all_reduce(p if comm.rank == 0 else np.ones((4, 4), np.float32))[0, 0] for _ in range(3)]
    got.append(comm.broadcast(p if comm.rank == 0 else None)[0, 0])
    unnamed = Parameter(Tensor(np.ones((4, 4), np.float32)))
    got.append(comm.all_reduce(p if comm.rank == 0 else unnamed)[0, 0])
    got.append(comm.all_reduce(p if comm.rank == 0 else parameters(["v"])[0], tag="w or v")[0, 0])
    return [float(x) for x in got]


@pytest.mark.quick(1)
def test_arrays_unnamed_parameters_and_tags_have_no_name_to_compare(pool):
    assert pool.run(some_arrays) == [[4.0, 4.0, 4.0, 1.0, 4.0, 4.0]] * RANKS


# ---- operators ----

OPERATORS = {
    "AllReduce": lambda: ops.AllReduce(),
    "AllReduce max": lambda: ops.AllReduce(ops.ReduceOp.MAX),
    "AllGather": lambda: ops.AllGather(),
    "ReduceScatter": lambda: ops.ReduceScatter(),
    "AlltoAll": lambda: ops.AlltoAll(RANKS, 0, 1),
    "Broadcast": lambda: ops.Broadcast(1),
    "Reduce": lambda: ops.Reduce(1),
    "CollectiveGather": lambda: ops.CollectiveGather(1),
    "CollectiveScatter": lambda: ops.CollectiveScatter(1),
}
FUSED = ("AllReduce", "AllReduce max", "AllGather", "ReduceScatter")


def operators_in_a_loop(world, name, way, order, odd):
    """One line; the odd rank takes the Parameters in another order."""
    operator, given = OPERATORS[name](), parameters(("first", "second", "third"))
    if way == "fused":
        operator.add_prim_attr("fusion", 1)

    class Net(nn.Cell):
        def construct(self, *inputs):
            return [operator(p) for p in inputs]

    call = Net() if way == "fused" else operator
    got = []
    for turn in range(3):
        listed = [given[i] for i in (order if world.rank == odd and turn == 2 else range(len(given)))]
        if way == "fused":
            got += call(*listed)
        elif way == "gradient":
            got += [value_and_grad(lambda p=p: ops.reduce_sum(call(p)), None, [p])()[0] for p in listed]
        else:
            got += [call(p) for p in listed]
    return [x.asnumpy().sum() for x in got]


WAYS = [(n, way) for n in OPERATORS for way in ("called", "gradient", "fused") if way != "fused" or n in FUSED]


@pytest.mark.quick(1)
@pytest.mark.parametrize("odd", range(RANKS))
@pytest.mark.parametrize(("name", "way"), [w for w in WAYS if w != ("AllReduce max", "gradient")])
def test_operators_compare_the_names_of_parameters(pool, name, way, odd):
    """ops.AllReduce()(w) added unlike Parameters in silence."""
    with pytest.raises(CollectiveMismatch, match=r"(first|second|third).* at .*(first|second|third).* at "):
        on_ranks(pool, operators_in_a_loop, name, way, (0, 2, 1), odd)
    assert_usable(pool)


@pytest.mark.quick(2)
@pytest.mark.parametrize(("name", "way"), [w for w in WAYS if w != ("AllReduce max", "gradient")])
def test_operators_that_agree_are_not_a_fault(pool, name, way):
    assert len(on_ranks(pool, operators_in_a_loop, name, way, (), -1)[0]) == 9


def some_tensors(world):
    """As `some_arrays`, with operators."""
    (p,) = parameters(["w"])
    zeros, operator = Tensor(np.ones((4, 4), np.float32)), ops.AllReduce()
    fused = ops.AllReduce().add_prim_attr("fusion", 1)
    cell = type("Net", (nn.Cell,), {"construct": lambda self, *inputs: [fused(x) for x in inputs]})()
    got = [operator(p if world.rank == 0 else zeros) for _ in range(2)]
    got += cell(*((p, zeros) if world.rank == 0 else (zeros, p)))
    got += cell(*((p, p) if world.rank == 0 else (zeros, p)))
    got.append(ops.Broadcast(2)(p if world.rank != 2 else zeros))
    got.append(operator(p if world.rank == 0 else parameters(["v"])[0].value()))
    return [float(x.asnumpy()[0, 0]) for x in got]


def test_tensors_next_to_parameters_have_no_name_to_compare(pool):
    assert on_ranks(pool, some_tensors) == [[4.0] * 6 + [1.0, 4.0]] * RANKS


class Traced(nn.Cell):
    """The Parameters, added up over the ranks from one line, in the order given."""

    def __init__(self, name, order):
        super().__init__()
        self.first, self.second, self.third = parameters(("first", "second", "third"))
        self.operator, self.order = OPERATORS[name](), order

    def construct(self, x):
        for name in self.order:
            x = x + ops.reduce_sum(self.operator(getattr(self, name)))
        return x


def traced(world, name, order, odd):
    context.set_auto_parallel_context(parallel_mode="data_parallel")
    net = Traced(name, order if world.rank == odd else ("first", "second", "third"))
    step = CompiledFunction(net, {})
    got = step(Tensor(np.ones(2, np.float32))).asnumpy().tolist()
    assert any(i.is_communication for _, i in step.plan.instructions())
    return got


@pytest.mark.quick(1)
@pytest.mark.parametrize("odd", range(RANKS))
@pytest.mark.parametrize("name", OPERATORS)
def test_compiled_networks_compare_the_names_of_parameters(pool, name, odd):
    parameter = "parameter '(second|third)'"
    with pytest.raises(RankRaised, match=f"CollectiveMismatch: before step 1: .*{parameter}.*{parameter}"):
        on_ranks(pool, traced, name, ("first", "third", "second"), odd)
    assert_usable(pool)


@pytest.mark.quick(1)
@pytest.mark.parametrize("name", OPERATORS)
def test_compiled_networks_that_agree_are_not_a_fault(pool, name):
    assert len(on_ranks(pool, traced, name, (), -1)) == RANKS
