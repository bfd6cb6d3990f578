"""Copies that drift apart are reported: parameter, ranks, first setting that differs. Cases: `cases/replicas.py`."""

from __future__ import annotations

import numpy as np
import pytest

from parallel_lab import Session
from parallel_lab.base.errors import ArgumentError, RankRaised, WorldError
from parallel_lab.base.settings.run_checks import RunChecks, reset_run_checks, run_checks, set_run_checks
from tests.crossed import first
from tests.train.cases import replicas as cases
from tests.train.sessions import S, net_and_data, plan_for
from tests.train.worlds import Worlds

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def worlds(tmp_path_factory):
    return Worlds(cases, tmp_path_factory.mktemp("worlds"))


@pytest.mark.quick(1)
@pytest.mark.parametrize("fault", cases.FAULTS)
# by first: the loops behind are exhaustive
@pytest.mark.parametrize("loop", first(cases.QUICK, cases.LOOPS))
def test_copies_that_drift_apart_are_reported_whatever_the_loop(worlds, loop, fault):
    """Each of four ranks is odd once. A mean that is taken by hand shows in the values only."""
    notes = worlds.notes(4, f"{loop}, {fault}")
    for odd in range(4):
        for (kinds, text), begun in (note[odd] for note in notes):
            if fault == "nothing":
                assert kinds == ("nothing",) and begun == cases.STEPS
                continue
            assert "WorldError" in kinds, (odd, text)
            if not (fault == "mean" and loop.startswith("AllReduce")):
                assert cases.FAULTS[fault] in text, (odd, text)
            others = ", ".join(str(rank) for rank in range(4) if rank != odd)
            assert f"on rank {odd}" in text and f"ranks {others}" in text
            steps = 5 + cases.EVERY if fault == "weights later" else 2
            assert begun <= steps, (odd, begun)


def test_a_warning_goes_to_rank_0_once(worlds):
    first, second = worlds.notes(2, "a_warning_is_enough")
    assert len(first) == 1 and "learning_rate is 0.1 on rank 0, and 1.1 on rank 1" in first[0]
    assert not second


def test_a_batch_of_another_dtype_is_reported_and_one_of_more_rows_is_not(worlds):
    for found in worlds.notes(2, "other_batches"):
        kinds, text = found["dtype"]
        assert "WorldError" in kinds
        assert "batch dtype is float32 and float32 on rank 0, and float16 and float16 on rank 1" in text
        assert found["rows"][0] == found["messages of its own"][0] == ("nothing",)


def test_what_is_a_ranks_own_may_differ(worlds):
    assert worlds.notes(2, "what_may_differ") == ["through"] * 2


def test_a_session_on_processes_compares_the_slices_that_several_ranks_hold(pools):
    def spoil(comm, key, name):
        if comm.rank == 1:
            comm.state[key].env[name] = comm.state[key].env[name] + np.float32(1e-3)

    net, data = net_and_data(S)
    plan, optimizer = plan_for(net, data, 8)
    held_once = []
    for given in plan.parameters:
        with Session(plan, net, optimizer, executor="processes", pool=pools[8]) as session:
            session.train(data, 1)
            pools[8].run(spoil, session._key, given.name)
            layout, shape = plan.value(given.name).layout, plan.value(given.name).shape
            parts = [str(layout.slice_index(shape, rank)) for rank in range(8)]
            if parts.count(parts[1]) == 1:
                held_once.append(given.name)
                continue
            with pytest.raises((WorldError, RankRaised), match=rf"parameter '{given.name}' has other values on rank"):
                session.train(data, 1)
    print(f"held once, and not compared: {held_once}")


def test_settings_of_checks():
    assert run_checks() == RunChecks()
    set_run_checks(replicas_every=3)
    set_run_checks(replicas="off")
    assert (run_checks().replicas_every, run_checks().replicas) == (3, "off")
    reset_run_checks()
    for wrong in ({"replicas": "loud"}, {"replicas_every": 0}, {"finite": "yes"}):
        with pytest.raises(ArgumentError):
            set_run_checks(**wrong)
    assert run_checks() == RunChecks()
