"""Sessions: the same plan gives the same bits in the simulator and on processes; runs that are paused, stopped, refused or lose a rank; events.

"Same bits" is `==` on every loss, gradient and parameter: both executors run one interpreter, one BLAS thread per rank, and combine in rank order.
"""

import itertools
import json
import os
import signal
import threading
import time
from collections import Counter

import numpy as np
import pytest

from parallel_lab import PlanError, RankDied, Session, ShapeError, compile, nn
from parallel_lab.cluster import cluster_for
from parallel_lab.cost import instr_time_s
from parallel_lab.errors import RankRaised, WorkersClosed
from parallel_lab.events import EventLog, save_chrome_trace
from parallel_lab.ops.registry import OPS
from parallel_lab.ops.sharding import legal_strategies
from parallel_lab.run.session import Run
from parallel_lab.run.shm import WorkerPool, close_all
from tests.recorded.nets import Quick

S = ((2, 4), (4, 1))
PLAIN = {"transpose_a": False, "transpose_b": False}
STEPS = 20


pytestmark = pytest.mark.timeout(60)  # nothing hangs: a wait without end fails here, with all stacks


@pytest.fixture(scope="module")
def pools():
    """One pool per number of ranks, for the whole module."""
    made = {n: WorkerPool(n) for n in (1, 2, 4, 8)}
    yield made
    for pool in made.values():
        pool.close()


def net_and_data(*triple, dims=(32, 16, 16), batch=16, batches=3, seed=5, dtype=np.float32):
    rng = np.random.default_rng(seed)
    net = Quick(*dims, *triple)
    for p in net.trainable_params():
        p._initial, p._data = None, (rng.normal(size=p.shape) / np.sqrt(p.shape[0])).astype(dtype)
    data = [(rng.normal(size=(batch, dims[0])).astype(dtype), rng.normal(size=(batch, dims[2])).astype(dtype)) for _ in range(batches)]
    return net, data


def plan_for(net, data, devices, optimizer=None, **settings):
    optimizer = optimizer or nn.Momentum(net.trainable_params(), 0.05, 0.9)
    plan = compile(net, *data[0], loss=nn.MSELoss(), optimizer=optimizer, device_num=devices, dataset_strategy="full_batch", **settings)
    return plan, optimizer


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


# ---- the same bits ----


def triples(devices, count, seed):
    """Random triples in which every strategy of each operator appears at least once (`count` more where that leaves room)."""
    rng = np.random.default_rng(seed)
    pools = [
        legal_strategies(OPS["matmul"], ((16, 32), (32, 16)), PLAIN, devices),
        legal_strategies(OPS["relu"], ((16, 16),), {}, devices),
        legal_strategies(OPS["matmul"], ((16, 16), (16, 16)), PLAIN, devices),
    ]
    length = max(count, *map(len, pools))
    columns = [[pool[i] for i in np.concatenate([rng.permutation(len(pool)) for _ in range(-(-length // len(pool)))])[:length]] for pool in pools]
    return list(zip(*columns, strict=True))


@pytest.mark.exhaustive
@pytest.mark.parametrize(("devices", "triple"), [(d, t) for d in (1, 2, 4, 8) for t in triples(d, 4, seed=31)])
def test_processes_and_simulator_agree_bit_for_bit(pools, devices, triple):
    net, data = net_and_data(*triple)
    plan, optimizer = plan_for(net, data, devices)
    assert_same_bits(trained(plan, net, optimizer, data, "processes", pool=pools[devices]), trained(plan, net, optimizer, data, "simulator"))


@pytest.mark.exhaustive
@pytest.mark.parametrize("triple", [(S, ((2, 4),), S), (((1, 1), (1, 4)), ((1, 4),), ((1, 4), (4, 1)))], ids=["blocks", "columns_rows"])
def test_large_products_agree_bit_for_bit(pools, triple):
    """256 x 1024 x 1024, where the number of BLAS threads changes bits."""
    net, data = net_and_data(*triple, dims=(1024, 1024, 1024), batch=256, batches=1)
    plan, optimizer = plan_for(net, data, 8)
    results = [trained(plan, net, optimizer, data, e, steps=STEPS, pool=pools[8] if e == "processes" else None) for e in ("processes", "simulator")]
    assert_same_bits(*results)


@pytest.mark.parametrize("make", [nn.SGD, nn.Adam, nn.AdamWeightDecay])
def test_optimizers_agree_bit_for_bit(pools, make):
    net, data = net_and_data(S, ((2, 4),), S)
    plan, optimizer = plan_for(net, data, 8, make(net.trainable_params(), 0.01))
    assert_same_bits(trained(plan, net, optimizer, data, "processes", pool=pools[8]), trained(plan, net, optimizer, data, "simulator"))


def test_alltoall_and_data_parallel_agree_bit_for_bit(pools):
    net, data = net_and_data(((8, 1), (1, 1)), ((1, 8),), ((1, 8), (8, 1)))
    plan, optimizer = plan_for(net, data, 8, enable_alltoall=True)
    assert any(i.kind == "all_to_all" for _, i in plan.instructions())
    assert_same_bits(trained(plan, net, optimizer, data, "processes", pool=pools[8]), trained(plan, net, optimizer, data, "simulator"))


@pytest.mark.parametrize("executor", ["processes", "simulator"])
def test_training_in_pieces_is_training_at_once(pools, executor):
    net, data = net_and_data(S)
    plan, optimizer = plan_for(net, data, 8)
    whole = trained(plan, net, optimizer, data, executor, pool=pools[8])
    with Session(plan, net, optimizer, executor=executor, pool=pools[8]) as session:
        losses = [loss for steps in (1, 4, 0, 15) for loss in session.train(data, steps=steps)]
        assert session.step == STEPS
        assert_same_bits(whole, (losses, session.gradients(), session.parameters(), session.values(s.name for s in plan.states)))


@pytest.mark.parametrize("executor", ["processes", "simulator"])
def test_training_ends_after_the_present_step_when_it_is_told_to(pools, executor):
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


@pytest.fixture
def ready(pools):
    """(make a Session, data) for the quickstart on 8 ranks."""
    net, data = net_and_data(S)
    plan, optimizer = plan_for(net, data, 8)
    made = []

    def make(executor, **changes):
        options = {"parameters": net, "optimizer": optimizer, "pool": pools[8]} | changes
        made.append(Session(plan, options.pop("parameters"), options.pop("optimizer"), executor=executor, **options))
        return made[-1]

    yield make, data
    for session in made:
        session.close()


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
    for call in (lambda: session.train(data, steps=1), session.parameters, session.gradients, lambda: session.slices("w")):
        with pytest.raises(PlanError, match="the session was closed"):
            call()


@EXECUTORS
def test_missing_parameter_is_named(ready, executor):
    make, _ = ready
    with pytest.raises(PlanError, match=r"parameter 'w2' is missing.*Parameters given: w"):
        make(executor, parameters={"w": np.ones((32, 16))})


@EXECUTORS
def test_parameter_of_another_shape_is_refused(ready, executor):
    make, _ = ready
    with pytest.raises(ShapeError, match=r"'w' has shape \(16, 32\).*\(32, 16\)"):
        make(executor, parameters={"w": np.ones((16, 32)), "w2": np.ones((16, 16))})


@EXECUTORS
def test_missing_optimizer_is_refused(ready, executor):
    make, _ = ready
    with pytest.raises(PlanError, match="no optimizer is given"):
        make(executor, optimizer=None)


@EXECUTORS
def test_gradients_before_the_first_step_are_refused(ready, executor):
    make, _ = ready
    with pytest.raises((PlanError, RankRaised), match=r"does not hold '.*grad.*' now"):
        make(executor).gradients()


@EXECUTORS
def test_value_that_is_not_in_the_plan_is_refused(ready, executor):
    make, _ = ready
    with pytest.raises((PlanError, RankRaised), match="'nothing'"):
        make(executor).values(["nothing"])


def test_pool_of_another_size_is_refused(ready, pools):
    make, _ = ready
    with pytest.raises(PlanError, match=r"the pool has 4 workers.*needs 8"):
        make("processes", pool=pools[4])


def test_unknown_executor_is_refused(ready):
    make, _ = ready
    with pytest.raises(PlanError, match=r"'threads'.*\('simulator', 'processes', 'mpi'\)"):
        make("threads")


def test_simulated_session_cannot_run_in_the_background(ready):
    make, data = ready
    with pytest.raises(PlanError, match="cannot run in the background"):
        make("simulator").start(data, steps=1)


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
            assert self.changed.wait_for(lambda: self.count >= count, 20), f"{self.count} losses came, waited for {count}"


LONG = 100_000


def test_stop_ends_all_ranks_at_one_step_and_the_session_goes_on_as_if_uninterrupted(ready):
    make, data = ready
    session, progress = make("processes"), Progress()
    run = session.start(data, LONG, on_losses=progress)
    progress.wait_for(5)
    run.stop()
    losses = run.result(timeout=20)
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
def test_pause_holds_and_resume_goes_on_with_the_same_numbers(ready):
    make, data = ready
    session, progress = make("processes"), Progress()
    run = session.start(data, 400, on_losses=progress)
    progress.wait_for(3)
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


def test_while_paused_looking_or_starting_is_refused_and_not_a_hang(ready):
    """`parameters()` used to wait for the paused ranks, for ever."""
    make, data = ready
    session, progress = make("processes"), Progress()
    run = session.start(data, LONG, on_losses=progress)
    progress.wait_for(1)
    run.pause()
    for call in (session.parameters, session.gradients, lambda: session.slices("w"), lambda: session.start(data, 1)):
        with pytest.raises(PlanError, match="paused"):
            call()
    run.stop()
    assert run.result(timeout=20)
    assert set(session.parameters()) == {"w", "w2"}


def test_starting_during_a_run_is_refused(ready):
    make, data = ready
    session = make("processes")
    run = session.start(data, LONG)
    with pytest.raises(PlanError, match=r"a run is (running|queued)"):
        session.start(data, 1)
    run.stop()
    assert session.step == 0
    assert len(run.result(timeout=20)) == session.step


def test_a_run_that_is_stopped_before_its_turn_has_no_losses(ready):
    """`result()` used to fail with a TypeError."""
    make, data = ready
    session, other, progress = make("processes"), make("processes"), Progress()
    other.train(data, steps=1)  # its batches are on the ranks, so that its next run can wait behind the first
    first = session.start(data, LONG, on_losses=progress)
    progress.wait_for(1)
    second = Run(other, 5, 0, None, None)
    assert second.state == "queued"
    second.stop()
    first.stop()
    assert second.result(timeout=20) == []
    assert len(first.result(timeout=20)) >= 1
    assert other.step == 1


def test_steps_count_even_if_nobody_asks_for_the_result(ready):
    """The next run used to begin at the old step, and so with the wrong batch."""
    make, data = ready
    session, progress = make("processes"), Progress()
    run = session.start(data, 4, on_losses=progress)
    progress.wait_for(4)
    while not run.done():
        time.sleep(0.01)
    assert make("simulator").train(data, steps=6)[4:] == session.train(data, steps=2)
    assert session.step == 6


def test_close_during_a_run_stops_it(ready):
    make, data = ready
    session, progress = make("processes"), Progress()
    run = session.start(data, LONG, on_losses=progress)
    progress.wait_for(1)
    session.close()
    assert len(run.result(timeout=20)) < LONG


@pytest.mark.exhaustive
def test_losses_arrive_while_it_runs_in_order_and_complete(ready):
    make, data = ready
    session, seen = make("processes"), []
    run = session.start(data, 800, on_losses=lambda first, losses: seen.append((first, losses)))
    losses = run.result(timeout=40)
    assert [loss for _, part in seen for loss in part] == losses
    assert [first for first, _ in seen] == list(np.cumsum([0] + [len(p) for _, p in seen])[:-1])
    assert run.losses == losses
    assert run.result() == losses


# ---- a rank that dies or raises ----


@pytest.mark.faults
def test_killed_worker_is_rank_died_naming_the_collective():
    net, data = net_and_data(S)
    plan, optimizer = plan_for(net, data, 8)
    with WorkerPool(8) as pool, Session(plan, net, optimizer, executor="processes", pool=pool) as session:
        progress = Progress()
        run = session.start(data, LONG, on_losses=progress)
        progress.wait_for(2)
        start = time.monotonic()
        os.kill(pool.pids[5], signal.SIGKILL)
        with pytest.raises(
            RankDied, match=r"rank 5 \(pid \d+\) was killed by SIGKILL \(signal 9\) (in|after) (all_reduce|broadcast|all_gather) #\d+"
        ) as caught:
            run.result(timeout=20)
        taken = time.monotonic() - start
        assert taken < 5  # promised: 1 s
        print(f"RankDied after {taken * 1e3:.0f} ms: {caught.value}")
        with pytest.raises((WorkersClosed, RankDied)):
            session.train(data, steps=1)


def test_error_in_an_operator_is_told_and_the_session_goes_on(pools):
    """A label that is no class is found by the operator on the rank that has it."""

    class Classifier(nn.Cell):
        def __init__(self):
            super().__init__()
            self.dense = nn.Dense(8, 4)

        def construct(self, x):
            return self.dense(x)

    rng = np.random.default_rng(9)
    net, x, labels = Classifier(), rng.normal(size=(8, 8)).astype(np.float32), rng.integers(0, 4, 8).astype(np.int32)
    wrong = labels.copy()
    wrong[5] = 4
    rule = nn.SGD(net.trainable_params(), 0.1)
    plan = compile(net, x, labels, loss=nn.CrossEntropyLoss(), optimizer=rule, device_num=4, dataset_strategy="full_batch")
    with Session(plan, net, rule, executor="processes", pool=pools[4]) as session, Session(plan, net, rule) as alone:
        with pytest.raises(RankRaised, match="a label is 4") as caught:
            session.train([(x, wrong)], steps=1)
        assert "rank 2" in str(caught.value)  # rows 4 and 5
        with pytest.raises(ShapeError, match="a label is 4"):
            alone.train([(x, wrong)], steps=1)
        assert session.train([(x, labels)], steps=3) == alone.train([(x, labels)], steps=3)


# ---- events ----


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
    assert {k: (t.count, t.bytes) for k, t in totals.items()} == {(p, i.out): (16, 16 * plan.value(i.ins[0]).slice_bytes) for p, i in messages}


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


def test_no_rank_works_on_its_report_before_all_have_ended_the_recorded_steps(ready, pools):
    """Guards against: the ranks that are through first take the cores, and the last message of the others seems to take ten times as long."""

    def note_when(comm):
        from parallel_lab.run import session

        comm.state["as it was"] = session.to_dicts

        def noted(events):
            comm.state["began_s"] = time.perf_counter()
            return comm.state["as it was"](events)

        session.to_dicts = noted

    def noted_s(comm):
        from parallel_lab.run import session

        session.to_dicts = comm.state.pop("as it was")
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


def test_recording_does_not_change_the_numbers(ready):
    make, data = ready
    for executor in ("processes", "simulator"):
        assert make(executor).train(data, steps=4, record=4) == make(executor).train(data, steps=4)


def test_the_shared_pool_is_used_when_none_is_given():
    net, data = net_and_data(((2, 1), (1, 1)))
    plan, optimizer = plan_for(net, data, 2)
    try:
        with Session(plan, net, optimizer, executor="processes") as first, Session(plan, net, optimizer, executor="processes") as second:
            assert first.train(data, steps=2) == second.train(data, steps=2)
    finally:
        close_all()
