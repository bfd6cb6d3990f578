"""The supervisor of ranks, every transition on a virtual clock: what it does when, whatever the transport."""

from __future__ import annotations

import math
import random

import pytest

from parallel_lab.processes.supervisor import (
    AskToEnd,
    Facts,
    Kill,
    Limits,
    RecordDeath,
    RefuseJobs,
    Release,
    Settle,
    Stall,
    StartJob,
    StopRun,
    Supervisor,
    Trim,
    Warn,
)

WARNINGS = {"warn_after_s": 2.0, "start_warn_s": 10.0}
GRACE = {"culprit_s": 5.0, "death_s": 0.25, "interrupt_s": 0.85, "polite_s": 0.25}
LIMITS = Limits(timeout_s=30.0, start_s=60.0, fault_s=3.0, loading_s=10.0, **WARNINGS, **GRACE)
ALL = range(3)
STEP_S = 0.05


def idle(limits: Limits = LIMITS) -> Supervisor:
    """A supervisor of three ranks that are ready for jobs."""
    supervisor = Supervisor(3, limits, takes_jobs=True)
    assert supervisor.tick(100.0, Facts(ready=ALL)) == []
    assert supervisor.state == "idle"
    return supervisor


def running(limits: Limits = LIMITS) -> Supervisor:
    """One whose ranks run a job since second 100."""
    supervisor = idle(limits)
    supervisor.begin_run(100.0)
    return supervisor


def acted(supervisor: Supervisor, start_s: float, end_s: float, **facts) -> list[tuple[float, object]]:
    """(seconds since start_s, action) of all looks until end_s with the same facts."""
    found, looks = [], round((end_s - start_s) / STEP_S)
    for look in range(looks + 1):
        at = look * STEP_S
        found += [(round(at, 2), action) for action in supervisor.tick(start_s + at, Facts(ready=ALL, **facts))]
    return found


# ---- idle ----

RESTS = Limits(timeout_s=30.0, start_s=60.0, trim_s=1.0, idle_s=120.0, **WARNINGS)


def rested(supervisor: Supervisor, start_s: float, looks: int, **facts) -> list[tuple[float, object]]:
    """(seconds since start_s, action), looked at whenever the supervisor asks for it."""
    found, now = [], start_s
    for _ in range(looks):
        within_s = supervisor.look_within_s(now)
        if within_s is None:
            return found
        now += within_s
        found += [(now - start_s, action) for action in supervisor.tick(now, Facts(ready=ALL, **facts))]
    raise AssertionError(f"still not at rest after {looks} looks: {found}")


def test_idle_ranks_give_memory_back_once_and_end_once():
    supervisor = idle(RESTS)
    assert rested(supervisor, 100.0, 9) == [(1.0, Trim()), (120.0, Release())]


def test_idle_ranks_that_keep_values_stay_and_are_not_looked_at_again():
    supervisor = idle(RESTS)
    assert rested(supervisor, 100.0, 9, kept=True) == [(1.0, Trim())]


def test_a_job_or_a_question_begins_the_rest_anew():
    supervisor = idle(RESTS)
    supervisor.rest(150.0)
    assert supervisor.tick(220.1, Facts(ready=ALL)) == [Trim()]  # of one that came late; 120 s are not over
    assert supervisor.tick(220.2, Facts(ready=ALL, queued=True)) == [StartJob()]
    supervisor.begin_run(220.2)
    assert supervisor.look_within_s(220.2) == STEP_S
    assert supervisor.tick(300.0, Facts(ready=ALL, reported=ALL)) == [Settle()]
    assert rested(supervisor, 300.0, 9) == [(1.0, Trim()), (120.0, Release())]


def test_ranks_without_limits_rest_for_ever():
    assert idle().look_within_s(100.0) is None


# ---- start ----


def test_ranks_are_ready_when_the_last_one_is():
    supervisor = Supervisor(3, LIMITS, takes_jobs=True)
    assert supervisor.tick(0.0, Facts(ready=[0, 2], queued=True)) == [] and supervisor.state == "starting"
    assert supervisor.tick(0.1, Facts(ready=[2, 0, 1])) == [] and supervisor.state == "idle"
    assert supervisor.tick(0.2, Facts(ready=ALL, queued=True)) == [StartJob()]


def test_a_program_runs_as_soon_as_all_are_ready_and_no_wait_counts_from_before():
    supervisor = Supervisor(3, LIMITS, takes_jobs=False)
    supervisor.tick(7.0, Facts(ready=ALL))
    assert (supervisor.state, supervisor.counting_since_s) == ("running", 7.0)


def test_a_rank_that_ends_before_it_is_ready_counts_as_ready():
    supervisor = Supervisor(3, LIMITS, takes_jobs=False)
    supervisor.tick(0.0, Facts(ready=[0, 1], reported=[2]))
    assert supervisor.state == "running"


def test_a_rank_that_starts_late_is_reported_once_and_stops_the_run_at_the_limit():
    supervisor, found = Supervisor(3, LIMITS, takes_jobs=False), []
    for second in range(62):
        late = (1,) if second < 20 else (1, 2)  # another set of late ranks is not told again
        facts = Facts(ready=[0], stall=Stall(late, "late", second), fault=second > 60)
        found += [(second, action) for action in supervisor.tick(float(second), facts)]
    assert found == [
        (10, Warn("late for 10.0 s; CollectiveTimeout follows at 60 s.")),
        (60, StopRun("CollectiveTimeout", "late for more than 60 s.", (1, 2))),
    ]


def test_a_death_while_the_ranks_start_stops_the_start():
    supervisor = Supervisor(3, LIMITS, takes_jobs=True)
    assert supervisor.tick(0.0, Facts(ready=[0], dead=[1])) == [RecordDeath(1)]
    assert supervisor.state == "stopping"


# ---- jobs ----


def test_jobs_start_one_after_the_other():
    supervisor = running()
    assert supervisor.tick(100.1, Facts(ready=ALL, queued=True, reported=[0, 1])) == []
    assert supervisor.tick(100.2, Facts(ready=ALL, queued=True, reported=ALL)) == [Settle()]
    assert supervisor.tick(100.2, Facts(ready=ALL, queued=True)) == [StartJob()]
    supervisor.begin_run(100.2)
    assert supervisor.tick(100.3, Facts(ready=ALL)) == []


def test_a_result_settles_the_run_also_while_it_stops():
    supervisor = running()
    supervisor.interrupt(101.0)
    assert supervisor.tick(101.1, Facts(ready=ALL, reported=ALL)) == [Settle()] and supervisor.state == "idle"


def test_jobs_are_refused_once_a_rank_died_while_idle():
    supervisor = idle()
    assert supervisor.tick(101.0, Facts(ready=ALL, dead=[2])) == []
    assert supervisor.tick(102.0, Facts(ready=ALL, dead=[2], queued=True)) == [RefuseJobs()]


# ---- faults ----


def test_after_a_fault_those_that_do_not_report_are_killed():
    assert acted(running(), 110.0, 120.0, fault=True, reported=[1]) == [(3.0, Kill((0, 2), "did not stop within 3 s"))]


def test_a_rank_that_loads_its_function_gets_longer_and_one_that_is_done_does_not_count():
    found = acted(running(), 110.0, 125.0, fault=True, reported=[1], loading=[2])
    assert found == [(10.0, Kill((0, 2), "did not stop within 10 s"))]
    assert acted(running(), 110.0, 125.0, fault=True, reported=[2], loading=[2])[0][0] == 3.0


def test_the_rank_at_fault_gets_longer_until_it_has_ended():
    assert acted(running(), 110.0, 125.0, fault=True, culprit=2)[0][0] == 5.0
    found = acted(running(), 110.0, 125.0, fault=True, culprit=2, dead=[2])
    assert found == [(0.0, RecordDeath(2)), (0.25, Kill((0, 1), "did not stop within 0.25 s"))]


def test_a_death_shortens_what_a_fault_has_left():
    supervisor = running()
    supervisor.tick(110.0, Facts(ready=ALL, fault=True))
    found = acted(supervisor, 111.0, 115.0, fault=True, dead=[0])[-1]
    assert found == (0.25, Kill((1, 2), "did not stop within 0.25 s"))
    supervisor = running()
    supervisor.tick(110.0, Facts(ready=ALL, fault=True))
    assert acted(supervisor, 112.9, 115.0, fault=True, dead=[0])[-1] == (0.1, Kill((1, 2), "did not stop within 3 s"))


def test_each_death_is_recorded_once_and_all_that_are_gone_settle_the_run():
    supervisor = running()
    assert supervisor.tick(101.0, Facts(ready=ALL, dead=[2, 0])) == [RecordDeath(2), RecordDeath(0)]
    assert supervisor.tick(101.1, Facts(ready=ALL, dead=[2, 0], fault=True)) == []
    assert supervisor.tick(101.2, Facts(ready=ALL, dead=[2, 0], fault=True, reported=[1])) == [Settle()]


def test_those_it_has_killed_are_not_recorded_as_deaths():
    supervisor = running()
    acted(supervisor, 101.0, 105.0, fault=True, reported=[0, 1])
    assert supervisor.killed == (2,)
    assert supervisor.tick(105.0, Facts(ready=ALL, reported=[0, 1], dead=[2], fault=True)) == [Settle()]


# ---- who keeps others waiting ----


def test_a_straggler_is_warned_of_then_stops_the_run():
    supervisor, found = running(), []
    for tenths in range(310):
        stall = Stall((1,), "rank 1 keeps rank 0 waiting", tenths / 10)
        fault = any(isinstance(action, StopRun) for _, action in found)
        found += [(tenths, a) for a in supervisor.tick(100 + tenths / 10, Facts(ready=ALL, stall=stall, fault=fault))]
    assert found == [
        (20, Warn("rank 1 keeps rank 0 waiting for 2.0 s; CollectiveTimeout follows at 30 s.")),
        (300, StopRun("CollectiveTimeout", "rank 1 keeps rank 0 waiting for more than timeout_s = 30 s.", (1,))),
    ]


def test_another_set_of_stragglers_is_warned_of_anew_and_a_new_run_forgets():
    supervisor = running()
    late = [Facts(ready=ALL, stall=Stall(ranks, "late", 3.0)) for ranks in ((1,), (1,), (1, 2), (1,))]
    assert [len(supervisor.tick(103.0, facts)) for facts in late] == [1, 0, 1, 0]
    supervisor.begin_run(110.0)
    assert len(supervisor.tick(113.0, late[0])) == 1


@pytest.mark.parametrize("kind", ["DeadlockError", "CollectiveMismatch"])
def test_a_circle_stops_the_run_at_once(kind):
    stall = Stall((0, 1), "a circle", 0.2, kind)
    supervisor = running()
    assert supervisor.tick(101.0, Facts(ready=ALL, stall=stall)) == [StopRun(kind, "a circle", (0, 1))]
    found = acted(supervisor, 101.0, 110.0, fault=True, stall=stall)
    assert found == [(3.0, Kill((0, 1, 2), "did not stop within 3 s"))]


def test_a_pause_starts_the_count_anew():
    supervisor = running()
    supervisor.resume(150.0)
    assert supervisor.counting_since_s == 150.0


# ---- interrupt ----


def test_an_interrupt_is_polite_then_raises_then_kills():
    supervisor = running()
    supervisor.interrupt(110.0)
    found = acted(supervisor, 110.0, 115.0, reported=[0])
    assert found == [(0.25, StopRun("Interrupted", "The run was interrupted.")), (0.85, Kill((1, 2), "did not stop"))]


def test_an_interrupt_overtakes_the_time_after_a_fault_and_needs_no_record_of_deaths():
    supervisor = running()
    supervisor.tick(109.9, Facts(ready=ALL, fault=True))
    supervisor.interrupt(110.0)
    assert acted(supervisor, 110.0, 115.0, fault=True, dead=[1])[-1] == (0.85, Kill((0, 2), "did not stop"))
    assert not any(isinstance(a, RecordDeath) for _, a in acted(supervisor, 115.0, 116.0, dead=[0, 1], fault=True))


def test_an_interrupt_while_nothing_runs_does_nothing():
    supervisor = idle()
    supervisor.interrupt(110.0)
    assert acted(supervisor, 110.0, 112.0) == [] and supervisor.state == "idle"


def test_ranks_are_asked_before_they_are_killed_where_the_limits_say_so():
    limits = Limits(30.0, 2.0, 60.0, fault_s=1.0, ask_s=0.17)
    found = acted(running(limits), 110.0, 115.0, fault=True, reported=[2])
    assert found == [(0.85, AskToEnd((0, 1))), (1.0, Kill((0, 1), "did not stop within 1 s"))]


def test_a_hub_never_kills():
    limits = Limits(30.0, 2.0, 60.0)
    assert acted(running(limits), 110.0, 300.0, fault=True, dead=[1]) == [(0.0, RecordDeath(1))]
    assert limits.fault_s == math.inf


# ---- the end ----


def test_nothing_follows_once_it_is_closed():
    supervisor = running()
    supervisor.close()
    assert acted(supervisor, 110.0, 120.0, fault=True, dead=[0], queued=True) == []


@pytest.mark.quick(20)
@pytest.mark.parametrize("seed", range(200))
def test_every_run_is_settled_once_whatever_happens(seed):
    """Ranks that end, die, fail, hang in any order: the run is settled within the longest limit, and only then."""
    draw = random.Random(seed)
    supervisor, now = running(), 100.0
    reported: set[int] = set()
    dead: list[int] = []
    stuck = {rank for rank in ALL if draw.random() < 0.3}
    fault, actions = False, []
    while Settle() not in actions and now < 200.0:
        now += STEP_S
        waited = now - 100.0
        actions = supervisor.tick(
            now, Facts(ready=ALL, reported=reported, dead=dead, fault=fault, stall=Stall(tuple(stuck), "stuck", waited))
        )
        for action in actions:
            fault = fault or isinstance(action, StopRun | RecordDeath)
            if isinstance(action, Kill):
                assert not set(action.ranks) & {*reported, *dead}
                dead += action.ranks
        left = [rank for rank in ALL if rank not in reported and rank not in dead]
        for rank in left:
            if draw.random() < 0.02:
                dead.append(rank)
            elif rank not in stuck and (fault or draw.random() < 0.05):
                reported.add(rank)
        if draw.random() < 0.01:
            supervisor.interrupt(now)
    assert Settle() in actions and {*reported, *dead} == set(ALL)
    assert now <= 100.0 + LIMITS.timeout_s + LIMITS.loading_s
    assert supervisor.tick(now + 1, Facts(ready=ALL, reported=reported, dead=dead)) == []
