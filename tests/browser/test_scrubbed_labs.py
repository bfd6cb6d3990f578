"""The run that a lab has recorded, stepped through on its page: what is drawn is what the recording says."""

from __future__ import annotations

import functools
import re

import numpy as np
import pytest

from parallel_lab.base.events import Event
from parallel_lab.base.units import bytes_text
from parallel_lab.cost.memory import MEMORY_KINDS
from parallel_lab.lab.fusion.lanes import event_lanes
from parallel_lab.lab.fusion.model import FusionLab
from parallel_lab.lab.memory.model import MemoryLab
from parallel_lab.lab.pipeline.model import PipelineLab
from parallel_lab.lab.pipeline.run import lanes_of
from parallel_lab.lab.shared.lab import Lab
from parallel_lab.lab.shared.lab_view import widget_of
from parallel_lab.lab.shared.recording import Ran, Recording
from tests.browser.lab_page import FEW, MARKS, axe_faults, browser, live, page_of, sync_api
from tests.browser.test_heights import LAB_PX, PLACES, answer, split_gpt
from tests.browser.test_lab_pages import all_has_room

__all__ = ["browser", "live", "page_of"]  # the fixtures

expect = sync_api.expect
pytestmark = MARKS
STEP, MOMENT = "step of the recorded run", "moment of the recorded step"


def slid(page, name: str, value: int) -> None:
    page.get_by_role("slider", name=name).fill(str(value))


def at_moment(found: Recording, step: int, moment: int) -> list[int]:
    """For each rank the number of the instruction that it has begun last, at so many thousandths of a step."""
    ends = np.cumsum([len(lane) for lane in found.lanes])
    times = [found.times[step, end - len(lane) : end] for lane, end in zip(found.lanes, ends, strict=True)]
    when = max(part[:, 1].max() for part in times) * moment / 1000
    return [max(0, len(np.flatnonzero(part[:, 0] <= when)) - 1) for part in times]


def instructions(found: Recording, step: int, moment: int) -> list[Ran]:
    return [lane[n] for lane, n in zip(found.lanes, at_moment(found, step, moment), strict=True)]


MAKE = {"memory": functools.partial(MemoryLab, "stack", devices=4), "pipeline": PipelineLab}
MAKE["fusion"] = functools.partial(FusionLab, "chain")


@functools.cache
def lab_that_ran(name: str) -> Lab:
    lab = MAKE[name]()
    lab.run_simulated(6)
    assert lab.wait(120)
    return lab


@pytest.mark.parametrize("moment", [100, 500, 900])
def test_the_bars_are_what_each_rank_was_counted_to_hold_at_the_moment(page_of, moment):
    lab = lab_that_ran("memory")
    page = page_of(lab.to_html(limits=FEW), width=848)
    slid(page, STEP, 2)
    slid(page, MOMENT, moment)
    expect(page.locator(".pl-status")).to_contain_text(f"Step 3: loss {lab.recording.losses[2, 0]:.3g} on every rank")
    titles = page.locator(".pl-mm-bar title").all_text_contents()
    for rank, n in enumerate(at_moment(lab.recording, 2, moment)):
        point = lab.ranks("simulated")[rank].timeline[n]
        assert titles[rank].startswith(f"rank {rank}, {bytes_text(point.total_bytes)}: ")
        for size in filter(None, point.live):
            assert bytes_text(size) in titles[rank]


def test_a_moment_of_the_present_leaves_the_recorded_run(page_of):
    page = page_of(lab_that_ran("memory").to_html(limits=FEW), width=848)
    before = page.locator(".pl-mm-figure").inner_html()
    slid(page, MOMENT, 300)  # of the last step
    expect(page.locator(".pl-status")).to_contain_text("Step 6: loss")
    page.locator("[data-command=show_moment][data-value=resident]").click()
    expect(page.locator(".pl-status")).not_to_contain_text("Step 6")
    page.locator("[data-command=show_moment][data-value=states]").click()
    assert page.locator(".pl-mm-figure").inner_html() == before


def seconds(text: str) -> float:
    """A time as a page has it, to three digits."""
    number, unit = text.split()
    return float(number) * {"µs": 1e-6, "ms": 1e-3, "s": 1.0}[unit]


def events_of(found: Recording, step: int) -> list[Event]:
    """The recorded step as a session has it."""
    times, at, events = found.times[step] * 1e-7, 0, []
    for rank, lane in enumerate(found.lanes):
        for one, (start_s, end_s) in zip(lane, times[at : at + len(lane)].tolist(), strict=True):
            micro_batch = int(re.split("[A-Z]", one.action)[1]) if one.action else 0
            how = {"group": one.group, "bytes": one.bytes, "micro_batch": micro_batch, "overlapped": one.overlapped}
            events.append(Event(rank, step, one.phase, one.kind, one.name, one.op, start_s, end_s, **how))
        at += len(lane)
    return events


@pytest.mark.parametrize("moment", [150, 500, 850])
def test_the_lanes_and_the_words_are_what_each_rank_did_at_the_moment(page_of, moment):
    """Against the lanes that the model reads off the events of a step."""
    lab, step = lab_that_ran("pipeline"), 3
    found, lanes = lab.recording, lanes_of(lab.compiled(), events_of(lab.recording, step))
    page = page_of(lab.to_html(limits=FEW), width=848)
    slid(page, STEP, step)
    slid(page, MOMENT, moment)
    when = found.times[step].max() * 1e-7 * moment / 1000
    began = min(one.start_s for one in events_of(found, step) if one.kind == "compute")
    does = []
    for rank, lane in enumerate(lanes):
        titles = page.locator(f"[data-key=lane{rank}] [data-key=simulated] title").all_text_contents()
        shown = [title.removeprefix("simulated: ").split(", ") for title in titles]
        assert [name for name, _ in shown] == [one.name for one in lane]
        assert [seconds(text) for _, text in shown] == pytest.approx(
            [one.end_s - one.start_s for one in lane], rel=5e-3
        )
        now = [one.name for one in lane if one.start_s <= when - began < one.end_s]
        over = when - began >= lane[-1].end_s
        does.append(f"rank {rank} {now[0] if now else 'is done' if over else 'waits'}")
    expect(page.locator(".pl-status")).to_contain_text(f"Step 4: loss {found.losses[3, 0]:.3g} on every rank")
    said, words = page.locator(".pl-second").inner_text().removeprefix("At ").split(": ")
    assert seconds(said) == pytest.approx(when, rel=5e-3) and words == f"{', '.join(does)}."
    kept = page.locator("[data-key=kept] title").all_text_contents()
    for rank, one in enumerate(instructions(found, step, moment)):
        assert (
            kept[rank]
            == f"rank {rank} keeps {bytes_text(one.live[MEMORY_KINDS.index('activations')])} of activations then"
        )


@pytest.mark.parametrize("mode", ["off", "each", "auto"])
def test_the_messages_are_those_of_the_step_and_what_is_in_flight_is_said(page_of, mode):
    """Against the lanes that the model reads off the events of a step."""
    lab = FusionLab("chain", devices=2)
    lab.set_mode(mode)
    lab.run_simulated(3)
    assert lab.wait(120)
    page = page_of(lab.to_html(limits=FEW), width=848)
    for step in (3, 1):
        slid(page, STEP, step)
        events = events_of(lab.recording, step)
        lanes = event_lanes(lab.plan, events, step)
        titles = page.locator(".pl-fu-message title").all_text_contents()
        for title, sent in zip(titles, lanes.messages, strict=True):
            times = [seconds(text) for text in re.findall(r"[\d.e-]+ (?:µs|ms|s)\b", title)]
            began = (sent.ready_s, sent.start_s, sent.end_s)
            exposed = lanes.exposed(sent)
            wanted = [*(at - lanes.forward_s for at in began), sent.end_s - sent.start_s - exposed, exposed]
            assert times == pytest.approx(wanted, rel=6e-3, abs=2e-7)
        boxes = [seconds(text.split("until ")[1]) for text in page.locator(".pl-fu-box title").all_text_contents()]
        assert boxes == pytest.approx([box.end_s - lanes.forward_s for box in lanes.boxes], rel=6e-3)
        for moment in (300, 600, 900):
            slid(page, MOMENT, moment)
            at = max(event.end_s for event in events) * moment / 1000
            count = sum(sent.start_s <= at < sent.end_s for sent in lanes.messages)
            said = f"{count} message{'' if count == 1 else 's'} in flight (" if count else "no message in flight."
            expect(page.locator(".pl-second")).to_contain_text(said)


@pytest.mark.parametrize("name", MAKE)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_moves_when_a_run_is_stepped_through_and_all_of_it_is_within_reach(page_of, name, scheme):
    """From the page before the run on: heights and places of all parts, targets, keys, and what axe-core says."""
    lab = lab_that_ran(name)
    page = page_of(MAKE[name]().to_html(limits=FEW), width=848, scheme=scheme)
    expect(page.locator(".pl-scrubs input")).to_have_count(0)
    height, before = page.evaluate(PLACES)
    page = page_of(lab.to_html(limits=FEW), width=848, scheme=scheme)
    places = [page.evaluate(PLACES)]
    head, step = page.locator(".pl-status"), page.get_by_role("slider", name=STEP)
    step.focus()
    page.keyboard.press("Home")  # by keys alone
    expect(head).to_contain_text("tep 1: loss")
    page.keyboard.press("ArrowRight")
    expect(head).to_contain_text("tep 2: loss")
    page.keyboard.press("Tab")
    expect(page.get_by_role("slider", name=MOMENT)).to_be_focused()
    for key in ("PageUp", "PageUp", "PageUp", "End", "Home", "PageUp", "PageUp"):
        page.keyboard.press(key)
        places.append(page.evaluate(PLACES))
    assert {found[0] for found in places} == {height} and height <= LAB_PX
    assert all(found[1] == before for found in places)
    small = page.locator(".pl-scrubs :is(input, button, select)").evaluate_all(
        "(all) => all.map((e) => e.getBoundingClientRect()).filter((b) => Math.min(b.width, b.height) < 24).length"
    )
    assert small == 0 and axe_faults(page) == []
    all_has_room(page, 848)
    page.get_by_role("button", name="Present").click()
    expect(head).not_to_contain_text("tep 2: loss")


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["memory of a GPT", *MAKE])
def test_below_an_answer_nothing_moves_either(live, name):
    """The Memory Lab of a GPT was 671 pixels high, and the lanes of eight stages moved by a line."""
    lab = (MAKE | {"memory of a GPT": split_gpt, "pipeline": functools.partial(PipelineLab, stages=8)})[name]()
    page, _ = live(widget_of(type(lab))(lab), width=848)
    lab.set_predict(True)
    answer(lab)
    lab.run_simulated()
    assert lab.wait(120)
    page.evaluate("tellAll()")
    page.locator(".pl-told").wait_for()
    page.locator("[data-scrub=at]").wait_for()
    height, before = page.evaluate(PLACES)
    slid(page, STEP, 2)
    for moment in range(50, 1000, 150):
        slid(page, MOMENT, moment)
        assert page.evaluate(PLACES) == [height, before] and height <= LAB_PX
    lab.close()


@pytest.mark.parametrize("name", MAKE)
def test_a_page_without_a_run_stays_below_a_megabyte_and_one_with_a_run_says_what_it_has(name):
    assert len(MAKE[name]().to_html().encode()) < 1 << 20
    said = r"Recorded run, simulated: steps 1 to \d+ of \d ranks, all kept"
    assert re.search(said, lab_that_ran(name).to_html(limits=FEW))
