"""A measured machine whose ranks share cores: what is predicted on it, and what on a named profile."""

from dataclasses import replace

import pytest

from parallel_lab.base.cluster import Device, Link, get_cluster
from parallel_lab.cost import instr_time_s, predict_timeline, step_time_s
from parallel_lab.cost.shared_cores import SharedMachine
from parallel_lab.cost.simulated_clock import predicted_run, virtual_clock
from parallel_lab.processes.measure.measure import small_step

OVERHEAD_S, CALL_S = 1e-5, 3e-5
# so fast that only instructions and calls take time
TWO_CORES = SharedMachine("two", Device(1e30, 1 << 30, 1e30, OVERHEAD_S), Link(0.0, 0.0), 8, cores=2, call_s=CALL_S)


@pytest.mark.parametrize("ranks, share", [(2, 1), (4, 2), (8, 4)])
def test_instructions_and_messages_take_as_often_as_long_as_ranks_come_on_a_core(ranks, share):
    plan = small_step(ranks)
    instrs = [instr for _, instr in plan.instructions()]
    messages = [instr for instr in instrs if instr.is_communication]
    assert messages
    step_s = share * (CALL_S * len(messages) + OVERHEAD_S * (len(instrs) - len(messages)))
    assert predict_timeline(plan, TWO_CORES).end_s == pytest.approx(step_s)
    assert step_time_s(plan, TWO_CORES).total_s == pytest.approx(step_s)
    assert instr_time_s(plan, messages[0], TWO_CORES) == pytest.approx(share * CALL_S)
    # the clock on which ranks take turns agrees: every message waits for the last rank
    ran = virtual_clock(predicted_run(plan, TWO_CORES), TWO_CORES)
    assert max(end_s for mine in ran for _, _, _, end_s, _, _ in mine) == pytest.approx(step_s)


def test_on_a_core_for_each_rank_it_is_the_cluster_that_it_extends():
    """Calls that cost nothing, and eight cores: times are those of a plain Cluster, to the bit."""
    laptop, plan = get_cluster("laptop"), small_step(8)
    fields = {name: getattr(laptop, name) for name in ("name", "device", "link", "devices_per_node", "host")}
    same = SharedMachine(**fields, cores=8)
    assert predict_timeline(plan, same).log == predict_timeline(plan, laptop).log
    assert predict_timeline(plan, replace(same, cores=2)).end_s > predict_timeline(plan, laptop).end_s
