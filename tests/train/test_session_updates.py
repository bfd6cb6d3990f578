"""The update runs in place: what a session says and does when a step fails before its update, and in it."""

import numpy as np
import pytest

from parallel_lab import PlanError, Session, ShapeError, compile, nn
from parallel_lab.base.errors import RankRaised
from parallel_lab.run.simulator import Simulator
from parallel_lab.train.session import initial_values
from tests.train.sessions import S, net_and_data, plan_for

pytestmark = pytest.mark.timeout(60)
EXECUTORS = ["simulator", "processes"]


def session_of(executor, pools, devices=4):
    net, data = net_and_data(((2, 2), (2, 1)))
    plan, optimizer = plan_for(net, data, devices, nn.Adam(net.trainable_params(), 0.01))
    pool = {"pool": pools[devices]} if executor == "processes" else {}
    return plan, data, Session(plan, net, optimizer, executor=executor, **pool)


def updated(plan):
    """The parameters in the order in which the update gives them new values."""
    known = {p.name for p in plan.parameters}
    return [target for target, _ in plan.assignments if target in known]


def spoil(session, name, rank):
    """Give a state of one rank a shape that its update stumbles over."""

    def on_rank(comm, key):
        if comm.rank == rank:
            comm.state[key].env[name] = np.zeros(3, np.float32)

    if session.executor == "simulator":
        session._simulator.envs[rank][name] = np.zeros(3, np.float32)
    else:
        session._pool.run(on_rank, session._key)


@pytest.mark.quick(1)
@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_step_that_fails_in_its_update_says_what_it_has_changed_and_is_the_last(pools, executor):
    plan, data, session = session_of(executor, pools)
    parameters = updated(plan)
    with session:
        session.train(data, 2)
        spoil(session, f"moment2.{parameters[-1]}", rank=2)
        with pytest.raises((RankRaised, ShapeError)):
            session.train(data, 1)
        for go_on in (lambda: session.train(data, 1), session.parameters, lambda: session.outputs(*data[0])):
            with pytest.raises(PlanError, match="failed in the middle of step 2") as told:
                go_on()
            # the first parameter is through, the last one is not
            assert f"'{parameters[0]}'" in str(told.value) and f"'moment1.{parameters[0]}'" in str(told.value)
            assert "Make a new Session" in str(told.value)


@pytest.mark.quick(1)
@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_step_that_fails_before_its_update_has_changed_nothing(pools, executor):
    """Step 2 of three meets an invalid label: two steps are taken, and the third can be taken with other data."""
    rng = np.random.default_rng(9)
    net, x = nn.Dense(8, 4), rng.normal(size=(8, 8)).astype(np.float32)
    labels = rng.integers(0, 4, 8).astype(np.int32)
    wrong = labels.copy()
    wrong[5] = 4
    rule = nn.Adam(net.trainable_params(), 0.1)
    plan = compile(
        net, x, labels, loss=nn.CrossEntropyLoss(), optimizer=rule, device_num=4, dataset_strategy="full_batch"
    )
    pool = {"pool": pools[4]} if executor == "processes" else {}
    with Session(plan, net, rule, executor=executor, **pool) as session, Session(plan, net, rule) as alone:
        want = alone.train([(x, labels)], 2)
        # rows 4 and 5 of the batch are those of rank 2
        kind, rank = (ShapeError, "") if executor == "simulator" else (RankRaised, "rank 2")
        with pytest.raises(kind, match="a label is 4") as caught:
            session.train([(x, labels), (x, labels), (x, wrong)], 3)
        assert rank in str(caught.value)
        names = [p.name for p in plan.parameters] + [s.name for s in plan.states]
        found, expected = session.values(names), alone.values(names)
        assert all(np.array_equal(found[n], expected[n]) for n in names)
        assert session.step == 2
        assert want + session.train([(x, labels)], 1) == want + alone.train([(x, labels)], 1)


@pytest.mark.exhaustive
def test_a_run_that_failed_is_looked_after_even_if_nobody_asks_for_its_result(pools):
    plan, data, session = session_of("processes", pools)
    with session:
        session.train(data, 2)  # in these, copies are compared before a step, and the fault would show there
        spoil(session, f"moment1.{updated(plan)[-1]}", rank=0)
        run = session.start(data, 1)
        while not run.done():
            run.wait_for_change(1)
        with pytest.raises(PlanError, match="failed in the middle of step 2"):
            session.start(data, 1)


def test_a_step_that_is_stepped_through_and_given_up_has_changed_nothing():
    """All values stay to be looked at, old parameters too: new values take their names at the end of such a step."""
    net, data = net_and_data(S)
    plan, optimizer = plan_for(net, data, 8, nn.Adam(net.trainable_params(), 0.01))
    stepped = Simulator(plan, initial_values(plan, net, optimizer))
    whole = Simulator(plan, initial_values(plan, net, optimizer))
    stepped.begin(*data[0])
    for _ in range(sum(1 for _ in plan.instructions()) - 1):
        assert stepped.next_instruction().instr is not None
    assert stepped.run_step(*data[0]) == whole.run_step(*data[0])
    stepped.begin(*data[1])
    while stepped.next_instruction() is not None:
        pass
    whole.run_step(*data[1])
    for name in [p.name for p in plan.parameters] + [s.name for s in plan.states]:
        assert np.array_equal(stepped.full(name), whole.full(name)), name


def test_a_simulator_whose_step_failed_in_its_update_takes_no_other():
    net, data = net_and_data(S)
    plan, optimizer = plan_for(net, data, 8, nn.Adam(net.trainable_params(), 0.01))
    simulator = Simulator(plan, initial_values(plan, net, optimizer))
    simulator.envs[3][f"moment1.{updated(plan)[-1]}"] = np.zeros(3, np.float32)
    with pytest.raises(ShapeError):
        simulator.run_step(*data[0])
    for go_on in (lambda: simulator.run_step(*data[0]), lambda: simulator.begin(*data[0])):
        with pytest.raises(PlanError, match=f"in the middle of step 0, when .*'{updated(plan)[0]}'"):
            go_on()
