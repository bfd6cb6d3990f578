"""Labs that record what they run: one recording of the present settings, which goes with them, and its text."""

from __future__ import annotations

import numpy as np
import pytest

from parallel_lab.lab.fusion.model import FusionLab
from parallel_lab.lab.memory.model import MemoryLab
from parallel_lab.lab.pipeline.model import PipelineLab
from parallel_lab.lab.shared.recording import OFTEN, Keeper, parts_of
from parallel_lab.lab.shared.running import Stopped
from parallel_lab.lab.strategy.model import StrategyLab
from parallel_lab.train.session import Session


def memory_lab() -> MemoryLab:
    lab = MemoryLab("stack", devices=2)
    lab.set_width(16)
    return lab


def ran(lab, steps: int = 3):
    lab.run_simulated(steps)
    assert lab.wait(120) and lab.snapshot()["run"]["error"] is None
    return lab


def test_the_memory_lab_records_the_training_that_it_compares():
    """Losses against a session of the same plan that nobody watches."""
    lab = ran(memory_lab())
    job, found = lab.job, lab.recording
    with Session(lab.plan, job.net, job.optimizer("Adam"), check_finite=False, unchecked=None) as session:
        assert found.losses[:, 0].tolist() == session.train(job.batches, 3)
    assert found.said == "simulated: steps 1 to 3 of 2 ranks, all kept, with the times of all"
    assert lab.snapshot()["recording"]["said"] == found.said and found.said in lab.to_text()


def test_what_a_rank_was_counted_to_hold_stands_at_each_instruction_of_the_recording():
    lab = ran(memory_lab())
    for lane, count in zip(lab.recording.lanes, lab.results["simulated"].ranks, strict=True):
        assert [(one.phase, one.name) for one in lane] == [(p.phase, p.name) for p in count.timeline]
        assert [one.live for one in lane] == [p.live for p in count.timeline]


def test_a_recording_ends_with_the_settings_it_is_of():
    lab = ran(memory_lab())
    first = lab.recording
    lab.show_moment("peak")
    assert lab.recording is first  # another look at the same run
    lab.set_level("level2")
    assert lab.recording is None and lab.snapshot()["recording"] is None and "Recorded run" not in lab.to_text()


@pytest.mark.parametrize(
    "how",
    [{}, {"schedule": "interleaved"}, {"schedule": "zb_h1"}, {"schedule": "dualpipe"}, {"strategy": "batch"}],
    ids=["1f1b", "interleaved", "zb_h1", "dualpipe", "two devices a stage"],
)
def test_each_instruction_of_a_pipeline_says_its_action_and_they_come_as_the_schedule_has_them(how):
    """On a rank that runs a forward and a backward as one they may take turns: there only which there are."""
    lab = ran(PipelineLab(stages=4, **how))
    found, wanted = lab.recording, lab.schedule.ranks
    each = found.ranks // len(wanted)
    for rank, lane in enumerate(found.lanes):
        actions = list(dict.fromkeys(one.action for one in lane if one.kind == "compute" and one.action))
        due = [str(action) for action in wanted[rank // each]]
        assert sorted(actions) == sorted(due) if how.get("schedule") == "dualpipe" else actions == due


def test_the_pipeline_lab_records_what_it_simulates_and_shows_it_until_another_schedule_is_chosen():
    lab = PipelineLab(stages=2, micro_batches=2)
    lab.run_simulated()
    assert lab.wait(120)
    said = lab.recording.said
    assert said == "simulated: steps 1 to 6 of 2 ranks, all kept, with the times of all" and said in lab.to_text()
    lab.set_rank(1)
    assert lab.recording is not None
    lab.set_schedule("gpipe")
    assert lab.recording is None and lab.snapshot()["recording"] is None


@pytest.mark.parametrize("mode", ["off", "each", "auto"])
def test_the_fusion_lab_records_its_run_and_knows_what_makes_each_box_and_message(mode):
    """What is named there is in the recording, and completes the gradients in the lanes' order."""
    lab = FusionLab("chain", devices=2)
    lab.set_mode(mode)
    ran(lab)
    found, made = lab.recording, lab.snapshot()["made_by"]
    assert found.said == "simulated: steps 1 to 5 of 2 ranks, all kept, with the times of all"  # two of them warm up
    names = [one.name for one in found.lanes[1] if one.phase == "backward" and one.kind != "wait"]
    assert [names.index(name) for name in made["boxes"]] == sorted(names.index(name) for name in made["boxes"])
    assert len(made["messages"]) == len(lab.lanes.messages) and set(made["messages"]) <= set(names)
    assert len(set(made["boxes"])) == len(lab.lanes.boxes)
    lab.set_devices(4)
    assert lab.recording is None and lab.snapshot()["made_by"] is None


def test_a_run_that_goes_on_shows_no_recording_and_one_that_is_stopped_leaves_none(monkeypatch):
    lab = ran(memory_lab())
    seen = []

    def stopped(*_) -> None:
        seen.append(lab.snapshot()["recording"])
        raise Stopped

    monkeypatch.setattr(type(lab), "_work_of", lambda self, source, steps: stopped)
    ran(lab)
    assert seen == [None] and lab.recording is None


@pytest.mark.parametrize("steps", [1, OFTEN, OFTEN + 1, 3 * OFTEN - 1])
def test_parts_are_all_steps_and_the_last_one_is_the_longest(steps):
    parts = parts_of(steps)
    assert sum(parts) == steps and max(parts) == parts[-1] <= OFTEN and min(parts) > 0


def test_a_keeper_trains_as_the_session_does_and_keeps_every_step_and_the_last_events(monkeypatch):
    """In parts of two steps: what was asked for last is there whole, though it lies in two of them."""
    monkeypatch.setattr("parallel_lab.lab.shared.recording.OFTEN", 2)
    plan, _, net, optimizer, batches = StrategyLab(devices=2)._prepared()
    with Session(plan, net, optimizer, check_finite=False) as session:
        keeper = Keeper(session)
        losses = keeper.train(batches, 5, record=3)
    with Session(plan, net, optimizer, check_finite=False) as alone:
        assert losses == alone.train(batches, 5)
    assert keeper.recording.losses.tolist() == [[loss, loss] for loss in losses]
    assert np.array_equal(keeper.recording.steps, [1, 2, 3, 4, 5])
    assert sorted({event.step for event in keeper.events}) == [2, 3, 4]
