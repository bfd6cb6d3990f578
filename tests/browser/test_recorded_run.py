"""A recorded run on a lab's page and in its live view: a slider moves cards, messages, memory and loss of all ranks."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from parallel_lab.lab.shared.recording import recorded
from parallel_lab.lab.strategy.model import StrategyLab
from parallel_lab.lab.strategy.training import Training
from parallel_lab.lab.widgets import StrategyLabWidget
from parallel_lab.train.recorder import Recorder
from parallel_lab.train.session import Session
from tests.browser.lab_page import FEW, MARKS, axe_faults, browser, live, page_of, sync_api
from tests.browser.test_heights import PLACES
from tests.browser.test_lab_pages import LAB_PX, all_has_room

__all__ = ["browser", "live", "page_of"]  # the fixtures

expect = sync_api.expect
pytestmark = MARKS
STEPS, FAULT = 12, 7  # at step FAULT rank 3 has another value in w2 than its copies


@functools.cache
def trained_lab() -> StrategyLab:
    """As if it had trained: on simulated ranks, which need no processes."""
    lab = StrategyLab()
    plan, one, net, optimizer, batches = lab._prepared()
    session, single = Session(plan, net, optimizer), Session(one, net, optimizer)
    recorder, losses = Recorder(session), session.train(batches, FAULT - 1)
    session._simulator.envs[3]["w2"][0, 0] += np.float32(1e-3)
    losses += session.train(batches, STEPS - FAULT + 1)
    run = Training("done", steps=STEPS, parallel=losses, single=single.train(batches, STEPS), plan=plan)
    run.recording = recorded(plan, recorder.take())
    lab._run = run
    lab.select_tensor("w2")
    lab.select_rank(3)
    return lab


def slid(page, name: str, value: int) -> None:
    page.get_by_role("slider", name=name).fill(str(value))


def height(page) -> float:
    return page.locator(".pl-lab").evaluate("(e) => e.getBoundingClientRect().height")


@pytest.mark.quick(1)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_page_of_its_own_carries_the_run_and_steps_through_it(page_of, scheme):
    lab = trained_lab()
    found, w2 = lab.recording, lab.recording.tensors.index("w2")
    page = page_of(lab.to_html(limits=FEW), scheme=scheme, width=848)
    expect(page.get_by_text("Nothing was trained")).to_have_count(0)
    texts, head, before = (
        page.locator(".pl-card-text"),
        page.locator(".pl-status"),
        page.locator(".pl-cards").inner_text(),
    )
    slider = page.get_by_role("slider", name="step of the recorded run")
    expect(slider).to_have_attribute("aria-valuetext", "step 12 of 12")
    for at in (4, 9, 2):  # forwards and back
        slid(page, "step of the recorded run", at)
        expect(head).to_contain_text(f"Step {at + 1}: loss {found.losses[at, 3]:.3g}")
        assert texts.all_inner_texts() == [f"rms {float(f'{size:.3g}'):g}" for size in found.sizes[at, :, w2]]
        expect(page.locator(".pl-timeline h3")).to_contain_text(f"Step {at + 1}")
    slider.focus()
    page.keyboard.press("ArrowRight")
    expect(head).to_contain_text("Step 4:")
    assert height(page) <= LAB_PX
    slid(page, "moment of the recorded step", 0)
    memory = {page.locator(".pl-memory").get_attribute("aria-label")}
    for moment in range(100, 1001, 100):  # what the ranks do, and what they hold, at moments of one step
        slid(page, "moment of the recorded step", moment)
        memory.add(page.locator(".pl-memory").get_attribute("aria-label"))
        assert height(page) <= LAB_PX
    assert len(memory) > 3
    all_has_room(page, 848)
    slid(page, "step of the recorded run", STEPS - 1)  # the end is the present
    assert page.locator(".pl-cards").inner_text() == before


@pytest.mark.exhaustive
def test_axe_finds_nothing_while_a_run_is_stepped_through(page_of):
    page = page_of(trained_lab().to_html(limits=FEW), width=848)
    slid(page, "step of the recorded run", 8)
    slid(page, "moment of the recorded step", 500)
    assert axe_faults(page) == []


@pytest.mark.exhaustive
def test_what_is_done_at_a_moment_is_what_the_recording_says(page_of):
    """Each card against the rank's own instructions, computed here from the recording's times."""
    lab = trained_lab()
    found, step = lab.recording, 5
    page = page_of(lab.to_html(limits=FEW), width=848)
    slid(page, "step of the recorded run", step)
    ends = np.cumsum([len(lane) for lane in found.lanes])
    times = [found.times[step, end - len(lane) : end] for lane, end in zip(found.lanes, ends, strict=True)]
    whole = max(part[:, 1].max() for part in times)
    for moment in (150, 500, 850):
        slid(page, "moment of the recorded step", moment)
        shown = page.locator(".pl-card-sum").all_inner_texts()
        for lane, part, text in zip(found.lanes, times, shown, strict=True):
            begun = np.flatnonzero(part[:, 0] <= whole * moment / 1000)
            at = begun[-1] if len(begun) else 0
            said = text.removeprefix("✗ ")
            assert said in ("idle", "waits") or lane[at].op.startswith(said.removesuffix("…"))
            assert (said == "idle") == bool(whole * moment / 1000 > part[at, 1])


def test_the_first_step_at_which_the_rank_differs_is_one_click_away(page_of):
    lab = trained_lab()
    one = lab.recording.first_difference(3)
    assert (one.step, one.tensor) == (FAULT, "w2")
    page = page_of(lab.to_html(limits=FEW), width=848)
    found = page.locator("[data-differs]")
    expect(found).to_have_text(f"✗ differs at step {FAULT}")
    assert found.bounding_box()["height"] >= 24
    found.click()
    expect(page.locator(".pl-status")).to_contain_text(f"Step {FAULT}:")
    expect(page.locator(".pl-card[data-value='3'] .pl-card-sum")).to_contain_text("✗")
    slid(page, "step of the recorded run", FAULT - 2)
    expect(page.locator(".pl-card[data-value='3'] .pl-card-sum")).not_to_contain_text("✗")
    page.locator(".pl-card[data-value='1']").click()
    expect(found).to_have_count(0 if lab.recording.first_difference(1) is None else 1)
    assert f"step {FAULT} is the first at which rank 3's part of w2 differs" in lab.to_text()


@pytest.mark.parametrize("rank", [3, 5])
def test_nothing_moves_once_the_lab_has_run_and_while_it_is_stepped_through(page_of, rank):
    """That copies are equal took a line below the selected rank, and all below it moved by 11 pixels."""
    lab = StrategyLab()
    lab.select_rank(rank)
    opened = page_of(lab.to_html(limits=FEW), width=848).evaluate(PLACES)
    lab._run = trained_lab()._run
    page = page_of(lab.to_html(limits=FEW), width=848)
    assert page.evaluate(PLACES) == opened and opened[0] <= LAB_PX
    for step, moment in ((0, 0), (8, 500)):
        slid(page, "step of the recorded run", step)
        slid(page, "moment of the recorded step", moment)
        assert page.evaluate(PLACES) == opened
    assert page.get_by_text("moment", exact=True).is_visible()  # the word next to its slider


@pytest.mark.exhaustive
def test_the_live_view_steps_through_the_run_without_the_kernel(live):
    page, widget = live(StrategyLabWidget(trained_lab()), width=848)
    slid(page, "step of the recorded run", 3)
    expect(page.locator(".pl-status")).to_contain_text("Step 4: loss")
    page.get_by_role("radio", name="rank 6,").click()  # the step stays while something else is looked at
    expect(page.locator(".pl-status")).to_contain_text("Step 4: loss")
    assert widget.lab.snapshot()["rank"] == 6
    widget.lab.select_rank(3)


def test_a_page_without_a_run_says_so_and_has_no_slider(page_of):
    page = page_of(StrategyLab().to_html(limits=FEW))
    expect(page.get_by_text("Nothing was trained here.")).to_be_visible()
    expect(page.get_by_role("slider")).to_have_count(0)
    expect(page.locator("[role=progressbar]")).to_be_visible()
