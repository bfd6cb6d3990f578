"""The story of each lab: it frames what is next, waits for the reader's own action, says what changed, and ends for
ever with one click. A lab fits a laptop with it at every step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import parallel_lab as pl
from parallel_lab.lab.shared.lab_view import widget_of
from parallel_lab.lab.widgets import LABS
from tests.browser.lab_page import FEW, MARKS, axe_faults, browser, live, page_of, sync_api

__all__ = ["browser", "live", "page_of"]  # the fixtures

expect = sync_api.expect
pytestmark = [*MARKS, pytest.mark.exhaustive]
LAB_PX, STRIP_PX = 655, 42
Act = Callable[[Any], None]
# What is framed and in sight, and text that its strip cuts off.
FRAMED = """() => [...document.querySelectorAll(".pl-lab *")].filter((e) => e.getClientRects().length
  && getComputedStyle(e).outlineStyle === "dashed" && getComputedStyle(e).outlineWidth === "2px").length"""


def click(css: str, n: int = 0) -> Act:
    return lambda page: page.locator(css).nth(n).click()


def take(command: str, value: str) -> Act:
    return lambda page: page.locator(f"select[data-command={command}]").select_option(value)


def press(command: str, value: str) -> Act:
    return click(f'[data-command="{command}"][data-value="{value}"]')


def typed(field: str, text: str) -> Act:
    def act(page: Any) -> None:
        page.locator(f"[data-field={field}]").fill(text)
        page.locator(f"[data-field={field}]").press("Enter")

    return act


def under_the_line(page: Any) -> None:
    for layer in range(4, 9):
        page.locator(f'[data-command=toggle][data-value="{layer}"]').click()


def to_the_end(page: Any) -> None:
    page.locator("[data-key=rail]").fill("6")


# Per lab what a reader does, and what the story says of it. Memory: 256 x 256 x 8 parameters of 4 bytes, as many bytes
# of gradients, twice as many of Adam's states, over 8 ranks. Pipeline, F + B = 3 ticks: 3 / (m + 3) of a step wait.
# Fusion, 1 ms of backward each, 1 ms + 0.25 ms per MiB: halves of 32 and 36 MiB, the first ready after 7 ms. Context,
# 32 tokens on 4 ranks: (P c + 1) / ((2 P - 1) c + 1) = 33/57; 2 (P - 1) c n_kv d e = 6 x 8 x 8 x 4 x 4 bytes.
STEPS: dict[str, list[tuple[Act, str]]] = {
    "MemoryLab": [
        (press("set_level", "level2"), "before 1 MiB."),
        (press("show_moment", "peak"), "of them model states."),
        (take("set_optimizer", "SGD"), "of model states on a rank"),
        (click("[data-tab=traffic]"), ""),
    ],
    "PipelineLab": [
        (take("set_schedule", "gpipe"), "27 % of the step (before 27 %) and keep at most 8 results (before 4)."),
        (take("set_micro_batches", "16"), "With 16 micro-batches ranks wait 16 %, before 27 %."),
        (click("[data-item]", 1), ""),
        (click("[data-command=run_measured]"), "Their lanes are measured"),
    ],
    "FusionLab": [
        (click("[data-split]"), "2 messages: a step of "),
        (press("set_mode", "each"), "10 messages: a step of 28 ms"),
        (click("[data-tab=cost]"), ""),
        (typed("alpha", "0.1"), "before 28 ms."),
    ],
    "RedistributionLab": [
        (click("[data-act=next]"), "They have landed"),
        (click(".pl-mv-card", 3), ""),
        (press("set_steps", "exact"), "A rank receives at most 224 B, before 1.75 KiB."),
        (click("[data-tab=compare]"), ""),
    ],
    "SearchLab": [
        (click('[data-command=select_point][data-value="yours"]'), "This plan takes"),
        (press("select_operator", "matmul2"), "matmul2 has"),
        (click("[data-pin]", 1), "With the pin the best plan takes"),
        (click("[data-tab=flips]"), ""),
    ],
    "CostLab": [
        (press("set_alpha_us", "25"), "The first crossing lies at 586 KiB, before at 117 KiB."),
        (take("set_size", "1024"), "For 1 KiB on 8 ranks recursive_doubling is the fastest."),
        (take("set_ranks", "16"), "on 16 ranks"),
        (click("[data-tab=formulas]"), ""),
    ],
    "RecomputeLab": [
        (press("toggle", "3"), "before 72."),
        (under_the_line, "computed twice."),
        (press("set_cap", "20"), "are too many for 20."),
        (click("[data-command=count]"), ""),
    ],
    "ContextLab": [
        (press("set_step", "1"), "In step 2 a rank works on the keys of the rank 1 before it."),
        (take("set_way", "zigzag"), "100 % of the time is useful, before 57.9 %."),
        (press("set_kv_heads", "8"), "A ring sends 6 KiB forward, before 3 KiB."),
        (click("[data-tab=hides]"), ""),
    ],
    "ExpertLab": [
        (press("set_step", "0"), "after 24 steps: nobody has asked for balance."),
        (press("set_balance_factor", "1"), "It takes "),
        (take("set_factor", "1"), "dropped: no expert sees them."),
        (click("[data-tab=messages]"), ""),
    ],
    "RunLab": [
        (take("set_run_id", "titan-405b-cp1"), "titan-405b-cp1"),
        (press("set_links", "0.5"), "decided by tensor"),
        (take("set_change", "cp 2"), "decided by waiting"),
        (click("[data-tab=numbers]"), ""),
    ],
    "RosettaLab": [
        (press("set_tp", "S1"), "JAX writes PartitionSpec('dp', 'tp')."),
        (press("set_tp", "P"), "they reduce at once"),
        (typed('"form-jax.PartitionSpec"', "P(('tp', 'dp'), None)"), "[_StridedShard(0, split_factor=4), Shard(0)]"),
        (click("[data-tab=more]"), ""),
    ],
    "ExplainLab": [
        (click("[data-key=line-18]"), ""),
        (take("set_example", "torch_fsdp"), "7 all_gather, 4 reduce_scatter"),
        (press("set_devices", "4"), "mesh (dp=4)"),
        (click("[data-tab=messages]"), ""),
    ],
    "HuntLab": [
        (take("set_tensor", "2.matmul"), ""),
        (click("[data-command=probe]"), "It says: equal."),
        (click("[data-command=compare]"), "It says: copies are equal."),
        (press("set_step", "1"), ""),
    ],
    "CollectiveStepper": [
        (click("[data-act=next]"), ""),
        (click("[data-chunk]", 1), ""),
        (to_the_end, "All 6 rounds are done"),
        (lambda page: (click("[data-tab=compare]")(page), click('[value="tree"]')(page)), "before 6"),
    ],
}  # fmt: skip


ELSEWHERE = {"StrategyLab"}  # walked through in JupyterLab: test_tour_notebook.py


def test_every_lab_has_a_story():
    assert STEPS.keys() | ELSEWHERE == LABS.keys()


@pytest.fixture
def told(live, monkeypatch):
    """The live page of a lab with its story; a run only says that it goes on."""

    def shown(name: str) -> Any:
        lab = getattr(pl, name)(story=True)

        def going() -> None:
            lab._run.state = "running"

        monkeypatch.setattr(lab, "run_measured", going, raising=False)
        return live(widget_of(type(lab))(lab), width=848)

    return shown


@pytest.mark.parametrize("name", STEPS)
def test_four_steps_each_taken_by_the_reader_and_then_no_story_any_more(told, name):
    page, view = told(name)
    strip, lab, tab = page.locator(".pl-story"), page.locator(".pl-lab"), page.locator("[role=tab][aria-selected=true]")
    opened = tab.all_inner_texts()
    for n, (act, said) in enumerate(STEPS[name], 1):
        expect(strip).to_contain_text(f"{n} of 4:")
        assert page.evaluate(FRAMED) >= 1
        assert lab.bounding_box()["height"] <= LAB_PX or tab.all_inner_texts() != opened
        assert strip.bounding_box()["height"] == STRIP_PX
        act(page)
        if name == "RecomputeLab" and n == 4:
            assert view.lab.wait(60)
            page.evaluate("tellAll()")
        expect(strip).to_contain_text(f"{n + 1} of 4:" if n < 4 else "Done.")
        expect(strip).to_contain_text(said)
        assert view.last_error is None
        print(strip.inner_text())
    assert page.evaluate(FRAMED) == 0 and strip.bounding_box()["height"] == STRIP_PX
    assert not axe_faults(page, ".pl-lab")
    strip.get_by_role("button", name="close").click()
    expect(strip).to_have_count(0)
    page.reload()
    page.wait_for_selector("[data-painted]")
    expect(strip).to_have_count(0)


@pytest.mark.parametrize("name", STEPS)
def test_one_click_ends_it_and_what_is_asked_comes_first(told, name):
    page, view = told(name)
    strip = page.locator(".pl-story")
    view.command("set_predict", True)
    page.evaluate("tellAll()")
    expect(page.get_by_role("group", name="predict first")).to_contain_text("Predict:")
    expect(strip).to_have_count(0)
    assert page.evaluate(FRAMED) == 0
    view.command("set_predict", False)
    page.evaluate("tellAll()")
    strip.get_by_role("button", name="skip the story").click()
    expect(strip).to_have_count(0)
    assert page.evaluate(FRAMED) == 0
    assert view.snapshot["story"]
    view.lab.story = False
    page.evaluate("tellAll()")
    assert view.command("set_predict", False) and "story" not in view.snapshot


@pytest.mark.parametrize("name", STEPS)
def test_a_page_without_a_kernel_tells_what_it_can_do(page_of, name):
    page = page_of(getattr(pl, name)(story=True).to_html(limits=FEW), width=848)
    strip = page.locator(".pl-story")
    expect(strip).to_contain_text("1 of ")
    assert 2 <= int(strip.inner_text().split(" of ")[1].split(":")[0]) <= 4
    assert page.evaluate(FRAMED) >= 1 and not axe_faults(page)
