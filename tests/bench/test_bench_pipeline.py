"""`parallel-lab bench pipeline`: bubbles predicted, simulated and measured, as text and numbers."""

import json

import pytest

from parallel_lab.base.cluster import get_cluster
from parallel_lab.cli import main as cli
from parallel_lab.processes.shm import WorkerPool
from parallel_lab.train.session import Session
from tests.bench.cases import PIPELINE_SCHEDULES
from tests.bench.pipeline import action_time_s, calibrated_rows, measure_pipeline, pipeline_goals, pipelined


def test_the_command_prints_and_writes_all_three(tmp_path, capsys):
    numbers = tmp_path / "pipeline.json"
    order = ["bench", "pipeline", "--quick", "--stages", "2", "--schedules", "1f1b", "--json", str(numbers)]
    assert cli.main(order) == 0
    told, written = capsys.readouterr().out, json.loads(numbers.read_text())
    found = written["pipeline"]["1f1b"]
    assert all(word in told for word in ("predicted", "simulated", "measured", "bubble"))
    (goal,) = written["goals"]
    assert goal["reached"] == pytest.approx(abs(found["measured_bubble"] - found["simulated_bubble"]))
    assert found["stages"] == found["device_num"] == 2 and found["shared_cores"] in (1, 2)


@pytest.mark.exhaustive
def test_rows_are_those_with_which_an_action_takes_its_time():
    """Ten times the time is more rows; how many times more is for the machine to say."""
    with WorkerPool(2) as pool:
        few, many = calibrated_rows(pool, 3e-4), calibrated_rows(pool, 1e-2)
        assert 1 <= few < many
        plan, net, optimizer, batch = pipelined(2, 2, many, "gpipe")
        with Session(plan, net, optimizer, executor="processes", pool=pool) as session:
            session.train([batch], 2, record=2)
            work = [e for e in session.events if e.kind == "compute" and e.phase in ("forward", "backward")]
    assert action_time_s(work) == pytest.approx(sum(e.busy_s for e in work) / (2 * 2 * 2 * 2))


@pytest.mark.exhaustive
def test_bubbles_are_shares_of_the_step_on_real_processes():
    found = measure_pipeline(4, 4, steps=2, action_s=2e-4, cluster=get_cluster("laptop"))
    assert list(found) == list(PIPELINE_SCHEDULES)
    for times in found.values():
        for bubble in (times.predicted_bubble, times.simulated_bubble, times.measured_bubble):
            assert 0 < bubble < 1
    assert {goal.limit for goal in pipeline_goals(found)} == {0.15}
