"""A training that goes on with another plan: the same losses as one that was left alone, and nothing lost."""

import os
import threading
import time
from functools import lru_cache

import numpy as np
import pytest

from parallel_lab import PlanError, RankDied, Session, StrategyError, compile, nn
from parallel_lab.lab.shared.equality import nudge, rounding_bound
from parallel_lab.lab.shared.networks import NETWORKS, apply_strategies, operator_primitives
from parallel_lab.lab.shared.problems import get_problem, problems_of
from parallel_lab.ops.machine.legal_strategies import legal_strategies
from parallel_lab.processes.shm import WorkerPool
from tests.train.sessions import S, net_and_data, plan_for

pytestmark = pytest.mark.timeout(120)
FUSIONS = ({}, {"allreduce": {"mode": "auto", "config": None}}, {"allreduce": {"mode": "size", "config": 1}})
EVERY_SLICE = {"enable_parallel_optimizer": True, "parallel_optimizer_threshold": 0}


class Training:
    """One network with its data; compiled again and again, always from the same initial parameters."""

    def __init__(self, name):
        self.network, self.problem = NETWORKS[name], get_problem(problems_of(NETWORKS[name].kind)[-1])
        self.batches = list(self.problem.batches)
        self.net = self.network.factory(self.problem)
        self.optimizer = self.problem.optimizer(self.net.trainable_params())
        self.start = {name: p.asnumpy().copy() for name, p in self.net.parameters_dict().items()}

    def plan(self, strategies, devices, **settings):
        every = dict.fromkeys(operator_primitives(self.net))
        apply_strategies(self.net, {**every, **strategies})
        how = {"device_num": devices, "dataset_strategy": "full_batch", **settings}
        return compile(self.net, *self.batches[0], loss=self.problem.loss(), optimizer=self.optimizer, **how)

    def drawn(self, rng):
        """A random plan: (plan, what it is)."""
        while True:
            devices = int(rng.choice([1, 2, 4, 8]))
            presets = list(self.network.presets.values())
            strategies = dict(presets[rng.integers(len(presets))](devices))
            nodes = {n.name: n for n in self.one_device.graph.nodes if n.name in operator_primitives(self.net)}
            shapes = self.one_device.graph.shapes()
            for name in rng.choice(list(nodes), size=rng.integers(0, 3), replace=False):
                node = nodes[str(name)]
                legal = legal_strategies(node.opdef, tuple(shapes[i] for i in node.ins), dict(node.attrs), devices)
                strategies[str(name)] = legal[rng.integers(len(legal))]
            settings = {"comm_fusion": FUSIONS[rng.integers(len(FUSIONS))]}
            if rng.integers(2):
                settings |= EVERY_SLICE
            try:
                return self.plan(strategies, devices, **settings), (devices, strategies, settings)
            except StrategyError:
                continue

    @property
    def one_device(self):
        if not hasattr(self, "_one"):
            self._one = self.plan({}, 1)
        return self._one

    def unchanged(self, steps):
        """(losses, parameters) of one device, left alone, and how far rounding moves a nudged copy's."""
        with Session(self.one_device, self.start, self.optimizer) as alone:
            losses, parameters = alone.train(self.batches, steps), alone.parameters()
        moved = 0.0
        if self.problem.sensitive:
            with Session(self.one_device, nudge(self.one_device, self.start), self.optimizer) as nudged:
                moved = 2 * np.abs(np.subtract(nudged.train(self.batches, steps), losses)).max()
        return losses, parameters, moved


@lru_cache
def training(name):
    return Training(name)


def check_unbent(task, session, losses, steps):
    want, parameters, moved = task.unchanged(steps)
    bound = rounding_bound(task.one_device, np.asarray(want, np.float32), steps) + moved
    assert len(losses) == steps == session.step
    assert np.abs(np.subtract(losses, want)).max() <= bound
    assert session.parameters().keys() == parameters.keys()


@pytest.mark.quick(1)
@pytest.mark.parametrize("seed", range(3))
def test_simulated_losses_do_not_bend_at_random_changes(seed):
    task, rng = training(("quickstart", "transformer", "megatron")[seed]), np.random.default_rng(seed)
    with Session(task.drawn(rng)[0], task.start, task.optimizer) as session:
        losses = session.train(task.batches, 3)
        for _ in range(3):
            session.switch(task.drawn(rng)[0])
            losses += session.train(task.batches, 2)
        check_unbent(task, session, losses, 9)


CHANGES, STOP_PROMISE_S = 10, 5.0
NAMES = ("quickstart", "dense", "megatron", "transformer", "embedding", "convnet")


@pytest.mark.exhaustive
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", range(20))
def test_running_trainings_on_processes_do_not_bend_at_random_changes(pools, seed):
    """20 trainings of 10 changes each while the run goes on."""
    task, rng = training(NAMES[seed % len(NAMES)]), np.random.default_rng(seed)
    # compiled before, so that few steps lie between two changes: rounding grows with every step
    (plan, _), *changes = [task.drawn(rng) for _ in range(CHANGES + 1)]
    with Session(plan, task.start, task.optimizer, executor="processes", pool=pools[plan.device_num]) as session:
        came = threading.Condition()
        got = []

        def on_losses(first, losses):
            with came:
                got[first:] = losses
                came.notify_all()

        run = session.start(task.batches, 100_000, on_losses=on_losses)
        for plan, what in changes:
            before = session.plan
            switched = session.switch(plan, pool=pools[plan.device_num])
            print(seed, what, switched)
            assert not run.done()
            assert session.plan is plan
            assert switched.same_workers == (before.device_num == plan.device_num)
            after = switched.step
            with came:
                assert came.wait_for(lambda after=after: len(got) >= after + 2, 30)
        asked_s = time.perf_counter()
        run.stop()
        losses = run.result()
        stopped_s = time.perf_counter() - asked_s
        print(f"Stop took {stopped_s:.3f} s (promise 0.3 s)")
        assert stopped_s < STOP_PROMISE_S
        assert got == losses
        check_unbent(task, session, losses, len(losses))


# ---- what is moved, and what is refused ----


def two_plans(fc1=((1, 8), (8, 1)), optimizer=None, **settings):
    """(net, data, optimizer, a plan with the quickstart's strategy S, one with another for the same product)."""
    net, data = net_and_data(S)
    plan, optimizer = plan_for(net, data, 8, optimizer and optimizer(net))
    apply_strategies(net, {next(iter(operator_primitives(net))): fc1})
    changed, _ = plan_for(net, data, 8, optimizer, **settings)
    assert changed != plan
    return net, data, optimizer, plan, changed


def schedule_and_adam(net):
    return nn.AdamWeightDecay(net.trainable_params(), learning_rate=nn.CosineDecayLR(0.0, 0.05, 12), weight_decay=0.1)


@pytest.mark.exhaustive
def test_states_rates_and_the_order_of_batches_go_on():
    check_states_rates_and_order({})


@pytest.mark.exhaustive
def test_on_processes_they_go_on_too(pools):
    check_states_rates_and_order({"executor": "processes", "pool": pools[8]})


def check_states_rates_and_order(where):
    """Adam's two moments move with their parameter, the learning rate follows its rule; three batches in turn."""
    net, data, optimizer, plan, changed = two_plans(optimizer=schedule_and_adam)
    with Session(plan, net, optimizer) as alone:
        want, left = alone.train(data, 9), alone.parameters()
    with Session(plan, net, optimizer, **where) as session:
        losses = session.train(data, 4)
        before = session.values(s.name for s in plan.states)
        switched = session.switch(changed)
        after = session.values(s.name for s in changed.states)
        assert before.keys() == after.keys() and all((before[n] == after[n]).all() for n in before)
        losses += session.train(data, 5)
        np.testing.assert_allclose(losses, want, rtol=2e-6)
        for name, value in session.parameters().items():
            np.testing.assert_allclose(value, left[name], rtol=2e-4, atol=1e-6)
    assert switched.step == 4 and switched.same_workers


def test_only_what_a_rank_lacks_is_sent_and_it_is_counted():
    check_what_is_sent({})


@pytest.mark.exhaustive
def test_on_processes_only_what_a_rank_lacks_is_sent_too(pools):
    check_what_is_sent({"executor": "processes", "pool": pools[8]})


def check_what_is_sent(where):
    """To slices of what each rank has nothing moves; back from there every rank lacks all but its slice."""
    net, data, optimizer, whole, sliced = two_plans(S, enable_parallel_optimizer=True, parallel_optimizer_threshold=0)
    held = {p.name: whole.value(p.name) for p in whole.parameters}
    with Session(whole, net, optimizer, **where) as session:
        session.train(data, 1)
        down = session.switch(sliced)
        up = session.switch(whole)
    assert down.moved_bytes == down.messages == 0 and "nothing had to move" in str(down)
    # each rank gets the rest of its slice, of the parameter and of its one moment
    lacks = 0
    for name, value in held.items():
        part, own = np.prod(value.slice_shape), np.prod(sliced.value(name).slice_shape)
        lacks += 8 * int(part - own) * 4 * 2
    assert up.moved_bytes == lacks > 0


def test_a_plan_of_other_parameters_optimizer_or_inputs_is_refused_and_the_session_goes_on():
    net, data, optimizer, plan, _ = two_plans()
    other, other_data = net_and_data(S, dims=(32, 32, 16))
    larger, larger_data = net_and_data(S, batch=32)
    refused = [
        (plan_for(other, other_data, 8)[0], "allowed|as in the training"),
        (plan_for(net, data, 8, nn.SGD(net.trainable_params(), 0.1))[0], "optimizer"),
        (plan_for(larger, larger_data, 8)[0], "Those of the training"),
        ("plan", "What parallel_lab.compile returns"),
    ]
    with Session(plan, net, optimizer) as session, Session(plan, net, optimizer) as alone:
        session.train(data, 1)
        for wrong, why in refused:
            with pytest.raises(PlanError, match=why):
                session.switch(wrong)
        assert session.plan is plan
        assert session.train(data, 2) == alone.train(data, 3)[1:]


@pytest.mark.exhaustive
def test_a_paused_run_switches_and_stays_paused_until_it_resumes(pools):
    net, data, optimizer, plan, changed = two_plans()
    with Session(plan, net, optimizer, executor="processes", pool=pools[8]) as session:
        run = session.start(data, 20_000)
        run.wait_for_change(5)
        run.pause()
        before = session.switch(changed).step
        time.sleep(0.3)
        assert run.state == "paused" and len(run.losses) == before
        run.resume()
        while len(run.losses) <= before:
            run.wait_for_change(5)
        run.stop()
        assert len(run.result()) == session.step > before


@pytest.mark.exhaustive
def test_a_run_whose_workers_die_in_a_switch_ends_with_that(monkeypatch):
    """Not with the losses of the steps before it, as if they were all."""
    net, data, optimizer, plan, changed = two_plans()
    with WorkerPool(8) as pool, Session(plan, net, optimizer, executor="processes", pool=pool) as session:
        run = session.start(data, 20_000)
        run.wait_for_change(5)
        monkeypatch.setattr("parallel_lab.train.rank_steps.switch_values", die_on_rank_3)
        with pytest.raises(RankDied, match="rank 3"):
            session.switch(changed)
        assert run.state == "failed" and run.done()
        with pytest.raises(RankDied, match="rank 3"):
            run.result(5)


def die_on_rank_3(comm, key, plan, moves, step):
    if comm.rank == 3:
        os._exit(3)
    comm.barrier()


@pytest.mark.exhaustive
def test_waiting_for_change_keeps_its_limit_in_a_switch(pools):
    net, data, optimizer, plan, _ = two_plans()
    with Session(plan, net, optimizer, executor="processes", pool=pools[8]) as session:
        run = session.start(data, 20_000)
        with run.halted():
            waited = []
            waiter = threading.Thread(target=lambda: waited.append(run.wait_for_change(0.1)))
            waiter.start()
            waiter.join(10)
            assert waited == [False] and run.state == "running"
        run.stop()
        run.result(30)


@pytest.mark.exhaustive
def test_a_run_that_has_taken_all_its_steps_stays_as_it_is(pools):
    net, data, optimizer, plan, changed = two_plans()
    with Session(plan, net, optimizer, executor="processes", pool=pools[8]) as session:
        run = session.start(data, 5, record=1)
        while not run.done():
            run.wait_for_change(1)
        session.switch(changed)
        assert len(run.result()) == 5 == session.step
        assert len(session.train(data, 2)) == 2 and session.step == 7
