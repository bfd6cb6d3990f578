"""Sessions: the same plan gives the same bits in the simulator and on processes; runs that are paused, stopped, refused
or lose a rank; events.

"Same bits" is `==` on every loss, gradient and parameter: both executors run one interpreter, one BLAS thread per rank,
and combine in rank order.
"""

import numpy as np
import pytest

from parallel_lab import PlanError, Session, ShapeError, nn
from parallel_lab.base.errors import RankRaised
from parallel_lab.ops.machine.legal_strategies import legal_strategies
from parallel_lab.ops.machine.registry import OPS
from parallel_lab.processes.shm import WorkerPool
from tests.crossed import each_of
from tests.train.sessions import S, net_and_data, plan_for

PLAIN = {"transpose_a": False, "transpose_b": False}
STEPS = 20


pytestmark = pytest.mark.timeout(60)  # nothing hangs: a wait without end fails here, with all stacks


def trained(plan, net, optimizer, data, executor, steps=STEPS, pool=None):
    with Session(plan, net, optimizer, executor=executor, pool=pool) as session:
        losses = session.train(data, steps=steps)
        return losses, session.gradients(), session.parameters(), session.values(s.name for s in plan.states)


def assert_same_bits(one, other):
    assert one[0] == other[0]
    assert len(set(one[0])) == len(one[0]), "the losses do not change: nothing was trained"
    for mine, theirs in zip(one[1:], other[1:], strict=True):
        assert set(mine) == set(theirs)
        for name in mine:
            np.testing.assert_array_equal(mine[name], theirs[name], err_msg=name)


def assert_executors_agree(plan, net, optimizer, data, pool):
    on_processes = trained(plan, net, optimizer, data, "processes", pool=pool)
    assert_same_bits(on_processes, trained(plan, net, optimizer, data, "simulator"))


# ---- the same bits ----


def triples(devices, count, seed):
    """Random triples in which every strategy of each operator appears; `count` of them where that leaves room."""
    rng = np.random.default_rng(seed)
    pools = [
        legal_strategies(OPS["matmul"], ((16, 32), (32, 16)), PLAIN, devices),
        legal_strategies(OPS["relu"], ((16, 16),), {}, devices),
        legal_strategies(OPS["matmul"], ((16, 16), (16, 16)), PLAIN, devices),
    ]
    length = max(count, *map(len, pools))
    columns = [
        [pool[i] for i in np.concatenate([rng.permutation(len(pool)) for _ in range(-(-length // len(pool)))])[:length]]
        for pool in pools
    ]
    return list(zip(*columns, strict=True))


@pytest.mark.exhaustive
@pytest.mark.parametrize(("devices", "triple"), [(d, t) for d in (1, 2, 4, 8) for t in triples(d, 4, seed=31)])
def test_processes_and_simulator_agree_bit_for_bit(pools, devices, triple):
    net, data = net_and_data(*triple)
    plan, optimizer = plan_for(net, data, devices)
    assert_executors_agree(plan, net, optimizer, data, pools[devices])


@pytest.mark.exhaustive
@each_of("triple", (S, ((2, 4),), S), (((1, 1), (1, 4)), ((1, 4),), ((1, 4), (4, 1))), ids=["blocks", "columns_rows"])
def test_large_products_agree_bit_for_bit(pools, triple):
    """256 x 1024 x 1024, where the number of BLAS threads changes bits."""
    net, data = net_and_data(*triple, dims=(1024, 1024, 1024), batch=256, batches=1)
    plan, optimizer = plan_for(net, data, 8)
    assert_executors_agree(plan, net, optimizer, data, pools[8])


@pytest.mark.quick(0)
@pytest.mark.parametrize("make", [nn.SGD, nn.Adam, nn.AdamWeightDecay])
def test_optimizers_agree_bit_for_bit(pools, make):
    net, data = net_and_data(S, ((2, 4),), S)
    plan, optimizer = plan_for(net, data, 8, make(net.trainable_params(), 0.01))
    assert_executors_agree(plan, net, optimizer, data, pools[8])


@pytest.mark.exhaustive
@pytest.mark.parametrize("fast", [True, False], ids=["fast", "plain"])
def test_alltoall_and_data_parallel_agree_bit_for_bit(fast):
    net, data = net_and_data(((8, 1), (1, 1)), ((1, 8),), ((1, 8), (8, 1)))
    plan, optimizer = plan_for(net, data, 8, enable_alltoall=True)
    assert any(i.kind == "all_to_all" for _, i in plan.instructions())
    with WorkerPool(8, fast=fast) as pool:
        assert_executors_agree(plan, net, optimizer, data, pool)


@pytest.mark.quick(1)
@pytest.mark.parametrize("executor", ["processes", "simulator"])
def test_training_in_pieces_is_training_at_once(pools, executor):
    net, data = net_and_data(S)
    plan, optimizer = plan_for(net, data, 8)
    whole = trained(plan, net, optimizer, data, executor, pool=pools[8])
    with Session(plan, net, optimizer, executor=executor, pool=pools[8]) as session:
        losses = [loss for steps in (1, 4, 0, 15) for loss in session.train(data, steps=steps)]
        assert session.step == STEPS and repr(session).endswith(f", 8 ranks, {executor}, step {STEPS})")
        assert_same_bits(
            whole, (losses, session.gradients(), session.parameters(), session.values(s.name for s in plan.states))
        )


@pytest.mark.quick(1)
@pytest.mark.parametrize("executor", ["processes", "simulator"])
def test_training_ends_after_the_present_step_if_asked(pools, executor):
    """The steps taken are those of a training that was not stopped, and the session goes on from there."""
    net, data = net_and_data(S)
    plan, optimizer = plan_for(net, data, 8)
    asked = []
    with Session(plan, net, optimizer, executor=executor, pool=pools[8]) as session:
        first = session.train(data, steps=10**6, record=2, stopped=lambda: asked.append(1) or len(asked) > 3)
        assert 0 < len(first) == session.step < 10**6
        assert {e.step for e in session.events} == set(range(max(0, session.step - 2), session.step))
        again = session.train(data, steps=10**6, stopped=lambda: True)  # worker processes may be in a step already
        assert len(again) < 10**6 and (again == [] or executor == "processes")
        losses = [*first, *again, *session.train(data, steps=2)]
    assert losses == trained(plan, net, optimizer, data, "simulator", steps=len(losses))[0]


@pytest.mark.exhaustive
def test_two_sessions_on_one_pool_do_not_meet(pools):
    net, data = net_and_data(S)
    plan, optimizer = plan_for(net, data, 8)
    alone = trained(plan, net, optimizer, data, "simulator", steps=6)
    with (
        Session(plan, net, optimizer, executor="processes", pool=pools[8]) as a,
        Session(plan, net, optimizer, executor="processes", pool=pools[8]) as b,
    ):
        losses = ([], [])
        for _ in range(3):
            losses[0].extend(a.train(data, steps=2))
            losses[1].extend(b.train(data, steps=2))
    assert losses == (alone[0], alone[0])


def test_training_leaves_the_networks_own_parameters_alone(pools):
    net, data = net_and_data(S)
    before = {n: p.asnumpy().copy() for n, p in net.parameters_dict().items()}
    plan, optimizer = plan_for(net, data, 8)
    _, _, after, _ = trained(plan, net, optimizer, data, "simulator", steps=1)
    for name, value in before.items():
        np.testing.assert_array_equal(net.parameters_dict()[name].asnumpy(), value)
        assert np.any(after[name] != value)


def test_slices_are_those_of_the_plan(pools):
    net, data = net_and_data(S)
    plan, optimizer = plan_for(net, data, 8)
    w = net.weight.asnumpy()
    for executor in ("processes", "simulator"):
        with Session(plan, net, optimizer, executor=executor, pool=pools[8]) as session:
            for rank, part in enumerate(session.slices("w")):
                np.testing.assert_array_equal(part, w[8 * (rank % 4) : 8 * (rank % 4) + 8])


# ---- what is refused ----

EXECUTORS = pytest.mark.parametrize("executor", ["processes", "simulator"])


@EXECUTORS
def test_batch_of_another_shape_is_refused_and_the_session_goes_on(ready, executor):
    make, data = ready
    session = make(executor)
    x, y = data[0]
    with pytest.raises(ShapeError, match=r"'x' has shape \(8, 32\).*\(16, 32\)"):
        session.train([(x[:8], y)], steps=1)
    with pytest.raises(ShapeError, match="got 1 inputs"):
        session.train([(x,)], steps=1)
    with pytest.raises(ShapeError, match="no batches"):
        session.train([], steps=1)
    assert len(session.train(data, steps=2)) == 2


@EXECUTORS
def test_closed_session_is_refused_everywhere(ready, executor):
    """The simulator used to go on training after close()."""
    make, data = ready
    session = make(executor)
    session.train(data, steps=1)
    session.close()
    session.close()
    for call in (
        lambda: session.train(data, steps=1),
        session.parameters,
        session.gradients,
        lambda: session.slices("w"),
    ):
        with pytest.raises(PlanError, match="the session was closed"):
            call()


LACKING, TURNED = {"w": np.ones((32, 16))}, {"w": np.ones((16, 32)), "w2": np.ones((16, 16))}


@EXECUTORS
@each_of(
    ("given", "call", "kind", "text"),
    ({"parameters": LACKING}, None, PlanError, r"parameter 'w2' is missing.*Parameters given: w"),
    ({"parameters": TURNED}, None, ShapeError, r"'w' has shape \(16, 32\).*\(32, 16\)"),
    ({"optimizer": None}, None, PlanError, "no optimizer is given"),
    ({}, lambda session: session.gradients(), (PlanError, RankRaised), r"does not hold '.*grad.*' now"),
    ({}, lambda session: session.values(["nothing"]), (PlanError, RankRaised), "'nothing'"),
    ids=["parameter missing", "parameter of another shape", "optimizer missing", "gradients before a step", "value"],
)
def test_what_a_plan_does_not_have_is_named(ready, executor, given, call, kind, text):
    make, _ = ready
    with pytest.raises(kind, match=text):
        call(make(executor, **given))


def test_pool_of_another_size_is_refused(ready, pools):
    make, _ = ready
    with pytest.raises(PlanError, match=r"the pool has 4 workers.*needs 8"):
        make("processes", pool=pools[4])


def test_unknown_executor_is_refused(ready):
    make, _ = ready
    with pytest.raises(PlanError, match=r"'threads'.*\('simulator', 'processes', 'mpi'\)"):
        make("threads")
