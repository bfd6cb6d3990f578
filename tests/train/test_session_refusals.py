"""What a session refuses, and what Ctrl-C leaves of it."""

import os
import signal
import threading

import numpy as np
import pytest

from parallel_lab import PlanError, Session, ShapeError, compile, nn
from parallel_lab.lab.shared.networks import NETWORKS
from parallel_lab.lab.shared.problems import get_problem
from parallel_lab.processes.shm import WorkerPool
from tests.crossed import each_of


def job(device_num, optimizer=None):
    problem = get_problem("seed")
    net = NETWORKS["quickstart"].factory(problem)
    opt = problem.optimizer(net.trainable_params()) if optimizer is None else optimizer(net.trainable_params())
    how = {"loss": problem.loss(), "optimizer": opt, "dataset_strategy": "full_batch"}
    plan = compile(net, *problem.batches[0], device_num=device_num, **how)
    return plan, net, opt, problem.batches


@each_of(
    ("made_with", "run_with"),
    (lambda p: nn.Momentum(p, 0.1, 0.9), lambda p: nn.Momentum(p, 0.1, 0.0)),
    (lambda p: nn.Momentum(p, 0.1, 0.9), lambda p: nn.Adam(p, 0.1)),
    (lambda p: nn.Adam(p, 0.1), lambda p: nn.SGD(p, 0.1)),
    (lambda p: nn.SGD(p, 0.1), lambda p: nn.Adam(p, 0.1)),
)
def test_another_optimizer_than_the_plans_is_refused_with_both_rules(made_with, run_with):
    plan, net, opt, _ = job(2, made_with)
    other = run_with(net.trainable_params())
    with pytest.raises(PlanError) as caught:
        Session(plan, net, other)
    assert opt.rule in str(caught.value) and other.rule in str(caught.value)


def test_another_learning_rate_is_taken_from_the_session():
    plan, net, _, batches = job(2, lambda p: nn.Momentum(p, 0.1, 0.9))
    with Session(plan, net, nn.Momentum(net.trainable_params(), 0.0, 0.9)) as session:
        before = {n: p.asnumpy().copy() for n, p in net.parameters_dict().items()}
        session.train(batches, 3)
        assert all(np.array_equal(session.parameters()[n], before[n]) for n in before)


WRONG_STEPS = ({"steps": "3"}, {"steps": 1.5}, {"steps": -1}, {"steps": True})


@each_of("options", *WRONG_STEPS, {"steps": 1, "record": -1}, {"steps": 1, "phases": ("foo",)})
def test_wrong_counts_and_phases_are_refused(options):
    plan, net, opt, batches = job(2)
    with Session(plan, net, opt) as session, pytest.raises(ValueError, match=r"Session.train: (steps|record|phases)"):
        session.train(batches, **options)


@pytest.mark.parametrize("batches", [None, 3, [np.ones(3)]])
def test_anything_but_a_list_of_batches_is_refused(batches):
    plan, net, opt, _ = job(2)
    with Session(plan, net, opt) as session, pytest.raises(ShapeError, match=r"\[\(x, label\), ...\]"):
        session.train(batches, 1)


@pytest.mark.parametrize(("plan", "parameters"), [("plan", {}), (None, None)])
def test_anything_but_a_plan_is_refused(plan, parameters):
    with pytest.raises(ValueError, match="plan is"):
        Session(plan, parameters)


def test_a_plan_without_one_number_per_step_runs_forward_only():
    problem = get_problem("seed")
    net = NETWORKS["quickstart"].factory(problem)
    x = problem.batches[0][0]
    plan = compile(net, x, device_num=4, dataset_strategy="full_batch")
    want = net(x).asnumpy()
    with (
        WorkerPool(4) as pool,
        Session(plan, net) as simulated,
        Session(plan, net, executor="processes", pool=pool) as real,
    ):
        with pytest.raises(PlanError, match=r"first output has shape \(16, 16\).*outputs"):
            simulated.train([(x,)], 1)
        # sums of slices round otherwise
        np.testing.assert_allclose(simulated.outputs(x)[0], want, rtol=1e-5, atol=1e-6 * np.abs(want).max())
        assert np.array_equal(simulated.outputs(x)[0], real.outputs(x)[0])


def test_events_of_more_ranks_than_the_laptop_has_are_simulated_on_nodes():
    plan, net, opt, batches = job(16)
    with Session(plan, net, opt) as session:
        session.train(batches, 1, record=1)
        assert {e.rank for e in session.events} == set(range(16))


def test_a_cluster_that_is_unknown_or_too_small_is_refused_at_once():
    plan, net, opt, _ = job(16)
    with pytest.raises(ValueError, match="nope"):
        Session(plan, net, opt, cluster="nope")
    with pytest.raises(ValueError, match="16 ranks on 8 devices"):
        Session(plan, net, opt, cluster="laptop")


@pytest.mark.faults("ranks at work")
def test_ctrl_c_in_train_keeps_the_steps_taken_and_the_session_goes_on():
    """Guards against a run that went on in the background, with a session that did not know its steps."""
    plan, net, opt, batches = job(4)
    with WorkerPool(4) as pool:
        session = Session(plan, net, opt, executor="processes", pool=pool)
        started = threading.Event()

        def press() -> None:
            started.wait()
            os.kill(os.getpid(), signal.SIGINT)

        timer = threading.Timer(0.4, started.set)
        presser = threading.Thread(target=press)
        presser.start()
        timer.start()
        with pytest.raises(KeyboardInterrupt, match=r"of 1000000 steps; the session can go on") as pressed:
            session.train(batches, 1_000_000)
        presser.join()
        assert not pool.busy
        taken = session.step
        # one place of ours under the learner's line, no threads and locks
        assert len(pressed.traceback) == 2 and str(pressed.value).startswith(f"after {taken} ")
        assert 0 < taken < 1_000_000
        more = session.train(batches, 5)
        with Session(plan, net, opt) as whole:
            assert whole.train(batches, taken + 5)[-5:] == more
        session.close()
