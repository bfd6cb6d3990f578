"""Pipelines on processes that fail: a typed error that says who, in time, and nothing is left; or the run goes on."""

import os
import signal
import time

import numpy as np
import pytest

import parallel_lab as pl
from parallel_lab import nn
from parallel_lab.base.errors import RankDied
from parallel_lab.train.session import Session
from tests.graph.test_pipeline_together import PARTS, Stack, data, momentum

RANKS, LIMIT_S = 4, 5.0


def planned(stages=2):
    net = Stack(stages)
    optimizer = momentum(net)
    how = {"pipeline_stages": stages, "grad_accumulation_step": PARTS, "dataset_strategy": "full_batch"}
    return pl.compile(net, *data(0), loss=nn.MSELoss(), optimizer=optimizer, device_num=RANKS, **how), net, optimizer


def begun(session):
    """A run without an end, after some steps."""
    run, end = session.start([data(0)], steps=10**6), time.monotonic() + 60
    while len(run.losses) < 3 and time.monotonic() < end:
        run.wait_for_change(1.0)
    assert len(run.losses) >= 3
    return run


@pytest.mark.quick(1)
@pytest.mark.faults("ranks at work")
@pytest.mark.parametrize(("stages", "victim"), [(2, 3), (2, 0), (4, 1), (4, 2)])
def test_a_rank_of_any_stage_that_dies_ends_the_run(stages, victim):
    """Its own stage waits for it in collectives, the others in messages: all get the error, and the session is over."""
    with pl.WorkerPool(RANKS) as pool:
        session = Session(*planned(stages), executor="processes", pool=pool)
        run, pids = begun(session), pool.pids
        os.kill(pids[victim], signal.SIGKILL)
        killed = time.monotonic()
        with pytest.raises(RankDied, match=rf"rank {victim} \(pid {pids[victim]}\) was killed by SIGKILL"):
            run.result(LIMIT_S)
        assert time.monotonic() - killed < LIMIT_S
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_an_interrupt_in_the_middle_leaves_workers_that_can_be_used():
    with pl.WorkerPool(RANKS) as pool:
        plan, net, optimizer = planned()
        with Session(plan, net, optimizer, executor="processes", pool=pool) as session:
            run, start = begun(session), time.monotonic()
            run.interrupt()
            assert time.monotonic() - start < LIMIT_S
            steps = session.step
            assert len(run.losses) == steps >= 3
        with Session(plan, net, optimizer, executor="processes", pool=pool) as again:
            found = again.train([data(0)], 2)
        with Session(plan, net, optimizer) as simulated:
            np.testing.assert_array_equal(found, simulated.train([data(0)], 2))
