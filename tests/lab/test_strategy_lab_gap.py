"""Predicted and measured steps of the Strategy Lab: why they differ, and the profile of the machine itself."""

import pytest

from parallel_lab.base import progress
from parallel_lab.base.cluster import get_cluster
from parallel_lab.lab.shared.step_times import FAR, Term, apart_text
from parallel_lab.lab.strategy.machine import gap_of
from parallel_lab.lab.strategy.model import StrategyLab
from parallel_lab.processes.shm import close_all

MESSAGES = [{"group": [0, 1], "time_predicted_s": 1e-5}, {"group": [0, 1], "time_predicted_s": 3e-5}]
MESSAGES.append({"group": [], "time_predicted_s": 1.0})  # a slice is not a message


def lanes(end_us, in_messages_us, source="measured"):
    bars = [
        {"kind": "compute", "start": 0, "end": 1},
        {"kind": "communication", "start": 1, "end": 1 + in_messages_us},
        {"kind": "wait", "start": 1 + in_messages_us, "end": end_us},
    ]
    return {"source": source, "end": end_us, "unit": "us", "lanes": [{"rank": r, "bars": bars} for r in (0, 1)]}


def test_far_apart_one_line_says_how_many_share_how_few_cores_and_which_term_is_off():
    """10 ms against 0.1 ms: 100 times; 1 us is computing (predicted 100 - 40 us), the rest messages (40 us)."""
    found = gap_of(1e-4, lanes(10_000, 8_000), MESSAGES, 1, get_cluster("laptop"), 1)
    assert found["ratio"] == pytest.approx(100)
    assert found["text"] == (
        "100 times the predicted 100 us: 2 Python processes share 1 core; messages and waits take 10 ms, "
        "for which profile 'laptop' has 40 us"
    )
    assert "share" not in gap_of(1e-4, lanes(10_000, 8_000), MESSAGES, 1, get_cluster("laptop"), 2)["text"]
    text = gap_of(0.5, lanes(10_000, 8_000), MESSAGES, 1, get_cluster("laptop"), 2)["text"]
    assert (
        "1/50 of the predicted 500 ms" in text and "computing takes 1 us, for which profile 'laptop' has 500 ms" in text
    )


def test_a_term_that_the_profile_does_not_count_is_said_to_be_nothing():
    terms = (Term("computing", 1e-3, 1e-3), Term("messages and waits", 9e-3, 0.0))
    assert apart_text(1e-3, 1e-2, 2, 2, "laptop", terms).endswith("take 9 ms, for which profile 'laptop' has nothing")


def test_near_each_other_and_before_anything_was_measured_nothing_is_said():
    near = gap_of(10e-3 / FAR * 1.01, lanes(10_000, 8_000), MESSAGES, 0, get_cluster("laptop"), 2)
    assert near["text"] == "" and near["ratio"] < FAR
    assert gap_of(1e-4, lanes(10, 8, "predicted"), MESSAGES, 0, get_cluster("laptop"), 2) is None


@pytest.mark.exhaustive
def test_fitting_the_machine_changes_what_is_predicted_and_not_what_was_measured(monkeypatch):
    for silence in ("SILENT_S", "LEAST_S"):  # a fast machine is fitted before a view would hear of it
        monkeypatch.setattr(progress, silence, 0.0)
    lab = StrategyLab(devices=2, steps=3)
    try:
        lab.run()
        assert lab.wait(60)
        before, shares = lab.snapshot(), []
        end = lab.on_change(lambda *_: shares.append(lab.snapshot()["fit"]["share"]))
        lab.fit_machine()
        assert lab.snapshot()["fit"]["state"] in ("running", "done")
        assert lab.wait(60)
        end()
        assert any(share and share < 1 for share in shares)  # the views have drawn how far it is
        after = lab.snapshot()
        assert after["fit"] == {**after["fit"], "state": "done", "error": None, "profile": "this machine"}
        assert "2 ranks on this machine" in lab.to_text()
        machine = lab._machine.profile
        assert machine.cores in (1, 2) and machine.device_num >= 8 and machine.link.alpha_s == 0
        assert machine.call_s >= machine.device.overhead_s > 0
        assert after["gap"]["measured_s"] == before["gap"]["measured_s"]
        assert after["gap"]["predicted_s"] != before["gap"]["predicted_s"]
        for one, other in zip(before["messages"], after["messages"], strict=True):
            assert one["time_measured_s"] == other["time_measured_s"]
    finally:
        lab.close()
        close_all()
