"""Every lab's page in a real browser: names, focus, both themes, words without scripts, and a kernel that goes away."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import pytest

from parallel_lab.lab.collectives.model import CollectiveStepper
from parallel_lab.lab.context.model import ContextLab
from parallel_lab.lab.costs.model import CostLab
from parallel_lab.lab.experts.model import ExpertLab
from parallel_lab.lab.explain.model import ExplainLab
from parallel_lab.lab.fusion.model import FusionLab
from parallel_lab.lab.hunt.model import HuntLab
from parallel_lab.lab.memory.model import MemoryLab
from parallel_lab.lab.pipeline.model import PipelineLab
from parallel_lab.lab.recompute.model import RecomputeLab
from parallel_lab.lab.redistribution.model import RedistributionLab
from parallel_lab.lab.rosetta.model import RosettaLab
from parallel_lab.lab.runs.model import RunLab
from parallel_lab.lab.search.model import SearchLab
from parallel_lab.lab.search.subjects import SUBJECTS
from tests.browser.lab_page import CUT, FAULTS, FEW, MARKS, axe_faults, boxes, browser, page_of, recorded, sync_api
from tests.lab.fake_lab import FakeLab

__all__ = ["browser", "page_of", "recorded"]  # the fixtures

expect = sync_api.expect


def trained() -> FakeLab:
    lab = FakeLab()
    lab.run()
    lab.step(37)
    return lab


# per lab: a model, a control that needs a kernel, one that does not, and words of its text
LABS = {
    "strategy": (trained, ".pl-card", ".pl-card[tabindex='0']", "rank  coordinates"),
    "fusion": (lambda: FusionLab("golf"), "[data-value=size]", ".pl-fu-source", "b and B one gradient each"),
    "memory": (lambda: MemoryLab("stack", 4), "[data-value=level3]", ".pl-mm-bar[tabindex='0']", "Every level"),
    "stepper": (CollectiveStepper, "[aria-label='8 ranks']", "[data-act=next]", "COUNTED, AND BY FORMULA"),
    "pipeline": (lambda: PipelineLab(stages=2), ".pl-pi-toggle", "[data-do=back]", "waits n ticks"),
    "redistribution": (RedistributionLab, "[data-value=all_to_all]", "[data-key=set_rank]", "together with"),
    "runs": (RunLab, "[data-command=set_links][data-value='2']", "[data-key=set_term]", "Where a step goes"),
    "costs": (CostLab, "[data-command=set_kind][data-value=all_gather]", "[data-key=set_size]", "Time over size"),
    "experts": (
        ExpertLab,
        "[data-command=set_experts][data-value='4']",
        "[data-key=set_step-24]",
        "Rows of each expert",
    ),
    "explain": (ExplainLab, "[data-command=set_devices][data-value='8']", "[data-key=line-18]", "rank 0 sends"),
    "rosetta": (RosettaLab, "[data-key=set_dp-P]", ".pl-ro-card[tabindex='0']", "More notations"),
    "context": (ContextLab, "[data-command=set_ranks][data-value='8']", "[data-key=set_step-0]", "Rank of each pair"),
    "search": (
        lambda: SearchLab(devices=4),
        "[data-value=sharding_propagation]",
        ".pl-se-op[tabindex='0']",
        "Steps of the search",
    ),
    "hunt": (HuntLab, "[data-command=set_rank][data-value='2']", "[data-key=set_rank-0]", "a probe 1, a comparison 2"),
    "recompute": (RecomputeLab, "[data-key=set_cap-30]", "[data-key=layer3]", "Memory over the step"),
}
pytestmark = MARKS
each_lab = pytest.mark.parametrize("name", LABS)


@cache
def html_of(make: Callable[[], Any]) -> str:
    """The page of a lab, written once for all widths, themes and tests."""
    return make().to_html(limits=FEW)


@pytest.mark.quick(0)
@each_lab
def test_dark_mode_is_dark_and_light_mode_light(page_of, name):
    grounds = {}
    for scheme in ("light", "dark"):
        page = page_of(html_of(LABS[name][0]), scheme=scheme)
        colours = page.evaluate(
            "(s => [s.backgroundColor, s.color])(getComputedStyle(document.querySelector('.pl-lab')))"
        )
        grounds[scheme] = [sum(int(n) for n in c[c.index("(") + 1 : -1].split(",")[:3]) for c in colours]
    assert grounds["light"][0] > 700 and grounds["light"][1] < 150
    assert grounds["dark"][0] < 150 and grounds["dark"][1] > 600


@pytest.mark.quick(0)
@each_lab
def test_focus_is_visible(page_of, name):
    """As an outline, or as the stroke of the ground that it is drawn on."""
    make, _, control, _ = LABS[name]
    node = page_of(html_of(make)).locator(control).first
    drawn = "const [css, ground] = [e, e.querySelector('rect') ?? e].map((n) => getComputedStyle(n));"
    look = f"(e) => {{ {drawn} return e.nodeName === 'g' ? ground.stroke : css.outlineStyle; }}"
    before = node.evaluate(look)
    node.focus()
    node.press("Shift+Tab")
    node.page.keyboard.press("Tab")
    assert node.evaluate("e => e === document.activeElement")
    assert (before, node.evaluate(look) != "none") == ("none", True)


@pytest.mark.quick(1)
@each_lab
def test_every_control_and_picture_has_a_name(page_of, name):
    page = page_of(html_of(LABS[name][0]))
    nameless = page.evaluate(
        """() => [...document.querySelectorAll(
            '.pl-lab :is(button, select, input, canvas, [role=group], [role=img], [role=radio])')]
          .filter(e => !e.closest('[aria-hidden=true]')
            && !(e.getAttribute('aria-label') || e.textContent.trim() || e.labels?.length))
          .map(e => e.outerHTML.slice(0, 90))"""
    )
    assert nameless == []


@pytest.mark.quick(1)
@pytest.mark.parametrize("scheme", ["light", "dark"])
@each_lab
def test_axe_finds_no_fault(page_of, name, scheme):
    assert axe_faults(page_of(html_of(LABS[name][0]), scheme=scheme, width=868)) == []


def test_axe_finds_a_fault_that_was_planted(page_of):
    """A button whose name leaves out what is seen on it, and grey words on grey."""
    html = html_of(LABS["stepper"][0]).replace(
        "</h1>", '</h1><p style="color: #999">grey</p><button aria-label="Send" style="padding: 9px">Run</button>'
    )
    assert [fault.partition(":")[0] for fault in axe_faults(page_of(html))] == [
        "color-contrast",
        "label-content-name-mismatch",
    ]


@pytest.mark.quick(1)
@each_lab
def test_without_scripts_the_words_are_there(page_of, name):
    make, *_, words = LABS[name]
    assert words in page_of(html_of(make), java_script_enabled=False).locator("#words pre").inner_text()


@pytest.mark.quick(1)
@each_lab
def test_a_lost_kernel_is_reported_at_the_first_click(recorded, name):
    """JupyterLab leaves the page as it was, and sending raises."""
    make, control, *_ = LABS[name]
    page = recorded(make())
    page.evaluate("void (sent.push = () => { throw new Error('Cannot send'); })")
    page.locator(control).first.click()
    expect(page.get_by_role("alert")).to_contain_text("the kernel was restarted or has ended. Run the cell again.")
    chosen = page.locator(control).first  # a choice, or a switch
    assert "false" in (chosen.get_attribute("aria-checked"), chosen.get_attribute("aria-pressed"))


@pytest.mark.quick(1)
@each_lab
def test_a_lost_kernel_is_reported_at_once_and_its_controls_are_off(recorded, name):
    """JupyterLab marks the view, and tells its model; a kernel that comes back is told, too."""
    make, control, *_ = LABS[name]
    page = recorded(make())
    mark = "document.getElementById('lab').classList.toggle('jupyter-widgets-disconnected'); tell('comm_live_update')"
    page.evaluate(mark)
    expect(page.get_by_role("alert")).to_contain_text("No kernel here")
    expect(page.locator(".pl-lab select:enabled")).to_have_count(0)
    page.evaluate(mark)
    expect(page.get_by_role("alert")).not_to_contain_text("No kernel here")
    page.locator(control).first.click()
    assert page.evaluate("sent.filter((m) => m.command).length") == 1


@pytest.mark.quick(0)
@each_lab
def test_leaving_leaves_no_listener(recorded, name):
    page = recorded(LABS[name][0]())
    page.locator(LABS[name][1]).first.click()
    assert page.evaluate("sent.filter((m) => m.command).length") == 1 and page.evaluate("left()") > 0
    page.evaluate("leave()")
    assert page.evaluate("left()") == 0


@pytest.mark.quick(0)
@each_lab
def test_the_head_stays_in_sight_while_a_lab_is_scrolled(page_of, name):
    page = page_of(html_of(LABS[name][0]), width=1280)
    page.set_viewport_size({"width": 1280, "height": 300})
    tops = page.evaluate(
        """() => { const top = () => Math.round(document.querySelector('.pl-title').getBoundingClientRect().top);
        const before = top(); window.scrollTo(0, 250); return [before, top()]; }"""
    )
    assert tops[0] > 30 and 0 <= tops[1] < 20


@pytest.mark.quick(0)
@each_lab
def test_everything_grows_with_the_scale_and_with_the_text_size_of_jupyterlab(page_of, name):
    def high(page) -> float:  # what is written as 100 px
        probe = "(e) => { const p = document.createElement('p'); p.style.height = '100px'; e.append(p); return p; }"
        return page.locator(".pl-lab").evaluate_handle(probe).evaluate("(p) => p.getBoundingClientRect().height")

    assert high(page_of(html_of(LABS[name][0]))) == 100
    lab = LABS[name][0]()
    lab.set_scale(1.5)
    page = page_of(lab.to_html(limits=FEW))
    assert high(page) == pytest.approx(150)
    zooms = page.locator(".pl-alone, .pl-words").evaluate_all("(all) => all.map((e) => getComputedStyle(e).zoom)")
    assert zooms == ["1.5", "1.5"]
    assert page.evaluate(FAULTS) == []
    page.evaluate("document.documentElement.style.setProperty('--jp-ui-font-size1', '17px')")
    page.wait_for_function("document.querySelector('.pl-lab').style.zoom === '1.96'")  # 1.5 x 17 / 13
    assert high(page) == pytest.approx(196)


# ---- room ----

SCREEN_PX = 740  # of the 800 of a laptop's screen what a page leaves to the lab
LAB_PX = 655  # what JupyterLab leaves of it, with its side bar
SIZES_PX = {11, 12.5, 15}  # of type


def golf_and_others(subject: str) -> FusionLab:
    lab = FusionLab(subject, devices=8, parallel_mode="semi_auto_parallel")
    lab.set_mode("each")
    return lab


def whole_and_split(subject: str, mode: str) -> MemoryLab:
    lab = MemoryLab(subject, 8, parallel_mode=mode)
    lab.set_threshold(0)
    lab.set_accumulation(2)
    return lab


def stepped(kind: str, algorithm: str, ranks: int, at: int) -> CollectiveStepper:
    stepper = CollectiveStepper(kind, algorithm, ranks)
    stepper.to(at)
    return stepper


def of_eight(schedule: str) -> PipelineLab:
    return PipelineLab(stages=8, micro_batches=16, schedule=schedule)


STEPPED = [("all_reduce", "ring", 8, 5), ("all_reduce", "recursive_doubling", 8, 2), ("all_reduce", "direct", 8, 1)]
STEPPED += [("all_to_all", "ring", 8, 3), ("all_reduce", "halving_doubling", 6, 6), ("broadcast", "ring", 5, 4)]
STEPPED += [("reduce_scatter", "tree", 8, 5), ("gather", "tree", 6, 2)]
SEMI = "semi_auto_parallel"
WIDTHS = (1280, 848, 760, 662, 400)  # pixels; 848: what JupyterLab leaves of 1280 x 800
# (what it is, a lab, its height on a laptop in pixels, the widths of its page): the largest pictures of each lab
VIEWS = [(name, make, LAB_PX, WIDTHS) for name, (make, *_) in LABS.items() if name != "hunt"]
VIEWS += [("hunt", HuntLab, LAB_PX, WIDTHS[:-1])]  # a telephone cuts the names of two mends
VIEWS += [
    (f"fusion {net}", partial(golf_and_others, net), LAB_PX, WIDTHS) for net in ("golf", "transformer", "convnet")
]
VIEWS += [(f"memory {net}", partial(whole_and_split, net, SEMI), LAB_PX, WIDTHS) for net in ("stack", "transformer")]
VIEWS += [("memory embedding", partial(whole_and_split, "embedding", "data_parallel"), LAB_PX, WIDTHS)]
VIEWS += [("-".join(map(str, case)), partial(stepped, *case), 10**4, (1280, 848, 662)) for case in STEPPED]
VIEWS += [("all_reduce-ring-4", partial(stepped, "all_reduce", "ring", 4, 0), LAB_PX, WIDTHS)]
VIEWS += [(f"search {net}", partial(SearchLab, net, 8), LAB_PX, WIDTHS) for net in SUBJECTS]
VIEWS += [("redistribution addends", partial(RedistributionLab, 8, "2 x 2", "1 x 4", "addends"), 10**4, WIDTHS)]
VIEWS += [(f"pipeline {one}", partial(of_eight, one), SCREEN_PX, WIDTHS) for one in ("1f1b", "interleaved", "dualpipe")]
ROOMS = [
    pytest.param(make, most_px, width, id=f"{name}-{width}")
    for name, make, most_px, widths in VIEWS
    for width in widths
]
HELD = (  # what is never wider than its own box
    ".pl-card-text, .pl-card-sum, .pl-op-name, .pl-formula, .pl-lead-fact, .pl-button, .pl-memory-key, .pl-holds td, "
    ".pl-token, .pl-rank-head, .pl-meter-text, .pl-band figcaption, .pl-limit, .pl-counters td, .pl-counters th, "
    ".pl-compare th, .pl-keys dd, .pl-place, .pl-buttons button, .pl-head select, .pl-mv-card, .pl-mv-card > span, "
    ".pl-mv-held *"
)
# Labels that reach out of their picture.
OUTSIDE = """() => [...document.querySelectorAll('.pl-fu-figure > svg text, .pl-mm-figure > svg text')].filter((e) => {
  const own = e.getBoundingClientRect(), all = e.ownerSVGElement.getBoundingClientRect();
  return own.width && (own.left < all.left - 1 || own.right > all.right + 1 || own.top < all.top - 2);
}).map((e) => e.textContent)"""


TYPE = """() => [...document.querySelectorAll('.pl-lab, .pl-lab *')].filter((e) => e.getClientRects().length
  && [...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim()))
  .map((e) => parseFloat(getComputedStyle(e).fontSize))"""


def all_has_room(page, width: int) -> None:
    assert page.evaluate(FAULTS) == [] == page.evaluate(OUTSIDE)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert set(page.evaluate(TYPE)) <= SIZES_PX
    assert width < 640 or page.evaluate(CUT, HELD) == []
    assert width < 848 or page.evaluate(CUT, ".pl-scroll:not(.pl-long):not(.pl-pi-scroll)") == []


@pytest.mark.quick(1)
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("make", "most_px", "width"), ROOMS)
def test_no_text_is_cut_or_covered_and_a_laptop_shows_the_whole_lab(page_of, make, most_px, width, scheme):
    """Behind any tab."""
    page = page_of(html_of(make), width=width, scheme=scheme)
    all_has_room(page, width)
    tabs = page.locator("[data-tab]")
    if width >= 848:
        assert page.locator(".pl-lab").evaluate("(e) => e.getBoundingClientRect().height") <= most_px
        assert len({tab["y"] for tab in boxes(tabs)}) <= 1
    for tab in tabs.all():
        if tab.get_attribute("aria-selected") == "false":
            tab.click()
            all_has_room(page, width)
