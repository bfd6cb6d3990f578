"""Runs of a session: pause, resume, stop; a rank that dies or raises; events."""

import itertools
import json
import os
import signal
import threading
import time
from collections import Counter

import numpy as np
import pytest

from parallel_lab import PlanError, RankDied, Session
from parallel_lab.base.cluster import cluster_for
from parallel_lab.base.errors import WorkersClosed
from parallel_lab.base.events import EventLog, save_chrome_trace
from parallel_lab.cost import instr_time_s
from parallel_lab.processes.shm import WorkerPool, close_all
from parallel_lab.train.rank_steps import Record, ran_events
from tests.graph.test_pipeline import planned as planned_pipeline
from tests.train.sessions import S, net_and_data, plan_for

pytestmark = pytest.mark.timeout(60)  # nothing hangs: a wait without end fails here, with all stacks


# ---- pause, resume, stop ----


class Progress:
    """Waits for a number of losses."""

    def __init__(self):
        self.count, self.changed = 0, threading.Condition()

    def __call__(self, first, losses):
        with self.changed:
            self.count = first + len(losses)
            self.changed.notify_all()

    def wait_for(self, count):
        with self.changed:
            assert self.changed.wait_for(lambda: self.count >= count, 20), (
                f"{self.count} losses came, waited for {count}"
            )


LONG = 100_000


@pytest.fixture(params=["processes", "simulator"])
def executor(request):
    """Where a run in the background goes on."""
    return request.param


def begun(make, data, count, steps=LONG, executor="processes"):
    """A session, its run after `count` losses, and what waits for more."""
    session, progress = make(executor), Progress()
    run = session.start(data, steps, on_losses=progress)
    progress.wait_for(count)
    return session, run, progress


@pytest.mark.exhaustive
def test_stop_ends_all_ranks_at_one_step_and_the_session_goes_on_as_if_uninterrupted(ready, executor):
    make, data = ready
    session, run, _ = begun(make, data, 5, executor=executor)
    run.stop()
    losses = run.result(timeout=60)
    assert 5 <= len(losses) < LONG
    assert session.step == len(losses)
    stopped = session.parameters()
    more = session.train(data, steps=7)
    whole = make("simulator")
    assert whole.train(data, steps=len(losses)) == losses
    for name, value in whole.parameters().items():
        np.testing.assert_array_equal(stopped[name], value)
    assert whole.train(data, steps=7) == more


@pytest.mark.exhaustive
def test_pause_holds_and_resume_goes_on_with_the_same_numbers(ready, executor):
    make, data = ready
    session, run, progress = begun(make, data, 3, steps=400, executor=executor)
    run.pause()
    assert run.state == "paused"
    # a step that had begun is finished, and its loss arrives; then nothing comes
    time.sleep(0.3)
    held = progress.count
    time.sleep(0.3)
    assert progress.count == held < 400
    assert not run.done()
    run.resume()
    losses = run.result(timeout=40)
    assert len(losses) == 400
    # the first ones against the simulator, the end against the session's own state
    assert make("simulator").train(data, steps=60) == losses[:60]
    assert session.step == 400


def test_while_paused_looking_or_starting_is_refused_and_not_a_hang(ready, executor):
    """`parameters()` used to wait for the paused ranks, for ever."""
    make, data = ready
    session, run, _ = begun(make, data, 1, executor=executor)
    run.pause()
    for call in (session.parameters, session.gradients, lambda: session.slices("w"), lambda: session.start(data, 1)):
        with pytest.raises(PlanError, match="paused"):
            call()
    run.stop()
    assert run.result(timeout=60)
    assert set(session.parameters()) == {"w", "w2"}


def test_starting_during_a_run_is_refused(ready, executor):
    make, data = ready
    session = make(executor)
    run = session.start(data, LONG)
    with pytest.raises(PlanError, match=r"a run is (running|queued)"):
        session.start(data, 1)
    run.stop()
    assert session.step == 0 or executor == "simulator"
    assert len(run.result(timeout=60)) == session.step


def test_a_run_that_is_stopped_before_its_turn_has_no_losses(ready):
    """`result()` used to fail with a TypeError."""
    make, data = ready
    other = make("processes")
    other.train(data, steps=1)
    _, first, _ = begun(make, data, 1)
    second = other.start(data, steps=5)  # waits behind the first
    assert second.state == "queued"
    second.stop()
    first.stop()
    assert second.result(timeout=60) == []
    assert len(first.result(timeout=60)) >= 1
    assert other.step == 1


@pytest.mark.quick(1)
def test_steps_count_even_if_nobody_asks_for_the_result(ready, executor):
    """The next run used to begin at the old step, and so with the wrong batch."""
    make, data = ready
    session, run, _ = begun(make, data, 4, steps=4, executor=executor)
    while not run.done():
        time.sleep(0.01)
    assert make("simulator").train(data, steps=6)[4:] == session.train(data, steps=2)
    assert session.step == 6


def test_close_during_a_run_stops_it(ready, executor):
    make, data = ready
    session, run, _ = begun(make, data, 1, executor=executor)
    session.close()
    assert len(run.result(timeout=60)) < LONG


@pytest.mark.exhaustive
def test_losses_arrive_while_it_runs_in_order_and_complete(ready, executor):
    make, data = ready
    session, seen = make(executor), []
    run = session.start(data, 800, on_losses=lambda first, losses: seen.append((first, losses)))
    losses = run.result(timeout=40)
    assert [loss for _, part in seen for loss in part] == losses
    assert [first for first, _ in seen] == list(np.cumsum([0] + [len(p) for _, p in seen])[:-1])
    assert run.losses == losses
    assert run.result() == losses


# ---- a rank that dies; one that raises is in `test_session_updates.py` ----


@pytest.mark.faults("ranks at work")
def test_killed_worker_is_rank_died_naming_the_collective():
    net, data = net_and_data(S)
    plan, optimizer = plan_for(net, data, 8)
    with WorkerPool(8) as pool, Session(plan, net, optimizer, executor="processes", pool=pool) as session:
        _, run, _ = begun(lambda _: session, data, 2)
        start = time.monotonic()
        os.kill(pool.pids[5], signal.SIGKILL)
        with pytest.raises(
            RankDied,
            match=r"rank 5 \(pid \d+\) was killed by SIGKILL \(signal 9\) (in|after) "
            r"(all_reduce|broadcast|all_gather) #\d+",
        ) as caught:
            run.result(timeout=60)
        taken = time.monotonic() - start
        assert taken < 5  # promised: 1 s
        print(f"RankDied after {taken * 1e3:.0f} ms: {caught.value}")
        with pytest.raises((WorkersClosed, RankDied)):
            session.train(data, steps=1)


# ---- events ----


@pytest.mark.quick(1)
@pytest.mark.parametrize(("executor", "source"), [("processes", "measured"), ("simulator", "simulated")])
def test_events_are_the_plans_instructions_with_the_plans_bytes(ready, executor, source):
    make, data = ready
    session = make(executor)
    session.train(data, steps=5, record=2)
    plan, log = session.plan, EventLog(tuple(session.events))
    program = [(p, i) for p, instrs in plan.stages[0].programs for i in instrs]
    assert {e.source for e in log} == {source}
    assert {e.step for e in log} == {3, 4}
    assert len(log) == 2 * 8 * len(program)
    for rank in range(8):
        mine = sorted(log.filter(rank=rank, step=4), key=lambda e: (e.start_s, e.end_s))
        assert Counter((e.phase, e.name) for e in mine) == Counter((p, i.out) for p, i in program)
    for phase, instr in program:
        for event in log.filter(phase=phase, name=instr.out):
            if instr.is_communication:
                assert (event.kind, event.op, event.group) == ("communication", instr.kind, instr.group(event.rank))
                assert event.bytes == plan.value(instr.ins[0]).slice_bytes
            else:
                assert (event.kind, event.group, event.bytes) == ("compute", (), 0)
    totals = {(t.phase, t.name): t for t in log.totals()}
    messages = [(p, i) for p, i in program if i.is_communication]
    found = {k: (t.count, t.bytes) for k, t in totals.items()}
    assert found == {(p, i.out): (16, 16 * plan.value(i.ins[0]).slice_bytes) for p, i in messages}


@pytest.mark.quick(1)
@pytest.mark.parametrize("executor", ["processes", "simulator"])
def test_a_rank_does_one_thing_at_a_time_in_program_order(ready, executor):
    make, data = ready
    session = make(executor)
    session.train(data, steps=3, record=1)
    names = [i.out for _, program in session.plan.stages[0].programs for i in program]
    for rank, lane in EventLog(tuple(session.events)).lanes().items():
        assert sorted(e.name for e in lane) == sorted(names), rank
        by_name = {e.name: e for e in lane}
        ordered = [by_name[n] for n in names]
        assert all(a.end_s <= b.start_s for a, b in itertools.pairwise(ordered)), rank


def test_measured_work_tells_how_long_a_processor_was_at_it(monkeypatch):
    """Work of 3 s and then 1 s, on a core for 0.5 s and for 1.25 s (0.25 s before it began); waits do not count."""
    plan, clock = planned_pipeline((0, 1), 2, parts=2)[0], iter([10.0, 10.5, 11.75, 11.75])
    monkeypatch.setattr("parallel_lab.train.rank_steps.time.thread_time", lambda: next(clock))
    action = next(a for a in plan.stages[1].actions if a.kind == "F")
    part = [i for _, i in plan.stages[1].part(action)]
    local = [i for i in part if i.kind == "compute"]
    wait = next(i for i in part if i.kind == "wait")
    seen = Record()
    for instr, start_s, end_s in ((local[0], 1.0, 4.0), (local[1], 5.0, 6.0), (wait, 6.0, 7.0)):
        seen(action, instr, start_s, end_s, 0, None)
    found = ran_events(1, 0, *seen.ran, "measured", *seen.busy_s)
    assert [e.busy_s for e in found] == [0.5, 1.0, None] and [e.duration_s for e in found] == [3.0, 1.0, 1.0]
    assert [e.busy_s for e in ran_events(1, 0, *seen.ran, "simulated")] == [None] * 3
    assert [end_s - start_s for _, _, start_s, end_s, *_ in seen.on_cores()[0]] == [0.5, 1.0, 0.0]


def test_no_rank_works_on_its_report_before_all_have_ended_the_recorded_steps(ready, pools):
    """Guards against ranks whose reports take the cores, so that the others' last message seems ten times as long."""

    def note_when(comm):
        from parallel_lab.train import rank_steps

        comm.state["as it was"] = rank_steps.to_dicts

        def noted(events):
            comm.state["began_s"] = time.perf_counter()
            return comm.state["as it was"](events)

        rank_steps.to_dicts = noted

    def noted_s(comm):
        from parallel_lab.train import rank_steps

        rank_steps.to_dicts = comm.state.pop("as it was")
        return comm.state.pop("began_s")

    make, data = ready
    session = make("processes")
    pools[8].run(note_when)
    session.train(data, steps=4, record=2)
    assert min(pools[8].run(noted_s)) >= max(e.end_s for e in session.events)


def test_simulated_messages_end_together_and_start_with_the_last_arrival(ready):
    make, data = ready
    session = make("simulator")
    session.train(data, steps=1, record=1)
    log = EventLog(tuple(session.events))
    messages = {(e.phase, e.name, e.group) for e in log if e.kind == "communication"}
    assert messages
    for phase, name, group in messages:
        members = list(log.filter(phase=phase, name=name, rank=list(group)))
        assert len(members) == len(group)
        assert len({e.end_s for e in members}) == 1
        assert min(e.end_s for e in members) > max(e.start_s for e in members)


def test_simulated_messages_take_what_the_cost_model_says(ready):
    """Guards against a clock that forgot gamma, the adding: an all_reduce was quicker simulated than predicted."""
    make, data = ready
    session = make("simulator")
    session.train(data, steps=1, record=1)
    cluster, log = cluster_for(8), EventLog(tuple(session.events))
    for phase, instr in session.plan.instructions():
        if instr.is_communication:
            for rank in range(8):
                members = log.filter(phase=phase, name=instr.out, rank=list(instr.group(rank)))
                taken_s = max(e.end_s for e in members) - max(e.start_s for e in members)
                assert taken_s == pytest.approx(instr_time_s(session.plan, instr, cluster, rank=rank), rel=1e-6)


@pytest.mark.parametrize("executor", ["processes", "simulator"])
def test_chrome_trace_of_a_session_loads(ready, executor, tmp_path):
    make, data = ready
    session = make(executor)
    session.train(data, steps=2, record=2)
    trace = json.loads(save_chrome_trace(session.events, tmp_path / "steps.json").read_text())
    bars = [e for e in trace["traceEvents"] if e["ph"] == "X"]
    assert len(bars) == len(session.events)
    assert {b["tid"] for b in bars} == set(range(8))
    assert all(b["dur"] >= 0 and b["ts"] >= 0 and {"name", "cat", "pid", "args"} <= set(b) for b in bars)
    lanes = [e["args"]["name"] for e in trace["traceEvents"] if e["ph"] == "M" and e["name"] == "thread_name"]
    assert lanes == [f"rank {r}" for r in range(8)]


def test_without_record_there_are_no_events(ready):
    make, data = ready
    session = make("simulator")
    session.train(data, steps=2)
    assert session.events == []


@pytest.mark.exhaustive
def test_recording_does_not_change_the_numbers(ready):
    make, data = ready
    for executor in ("processes", "simulator"):
        assert make(executor).train(data, steps=4, record=4) == make(executor).train(data, steps=4)


def test_the_shared_pool_is_used_when_none_is_given():
    net, data = net_and_data(((2, 1), (1, 1)))
    plan, optimizer = plan_for(net, data, 2)
    try:
        with (
            Session(plan, net, optimizer, executor="processes") as first,
            Session(plan, net, optimizer, executor="processes") as second,
        ):
            assert first.train(data, steps=2) == second.train(data, steps=2)
    finally:
        close_all()
