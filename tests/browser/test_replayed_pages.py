"""Pages without a kernel, offline: choices that were computed beforehand show what the lab itself shows, the address
keeps them, and what was not computed is off and says why.
"""

from __future__ import annotations

import contextlib
import json
import random

import pytest

from parallel_lab.base.errors import ParallelLabError
from parallel_lab.lab.collectives.model import CollectiveStepper
from parallel_lab.lab.context.model import ContextLab
from parallel_lab.lab.costs.model import CostLab
from parallel_lab.lab.experts.model import ExpertLab
from parallel_lab.lab.fusion.model import FusionLab
from parallel_lab.lab.memory.model import MemoryLab
from parallel_lab.lab.pipeline.model import PipelineLab
from parallel_lab.lab.quickstart.model import Quickstart
from parallel_lab.lab.recompute.model import RecomputeLab
from parallel_lab.lab.redistribution.model import RedistributionLab
from parallel_lab.lab.rosetta.model import RosettaLab
from parallel_lab.lab.runs.model import RunLab
from parallel_lab.lab.search.model import SearchLab
from parallel_lab.lab.shared.lab import pages_of
from parallel_lab.lab.shared.page import LARGEST_PAGE
from parallel_lab.lab.shared.replay import Limits, explore, settings_of
from parallel_lab.lab.strategy.model import StrategyLab
from tests.browser.lab_page import FEW, MARKS, browser, page_of, sync_api
from tests.crossed import first

__all__ = ["browser", "page_of"]  # the fixtures

expect = sync_api.expect

pytestmark = MARKS
SOME = Limits(24, 20)

# per lab: a model; a command that the page replays, with a control for it; one that needs a kernel
LABS = {
    "strategy": (lambda: StrategyLab(devices=4), ["set_devices", 2], "[aria-label='training run'] button"),
    "golf": (lambda: FusionLab("golf"), ["set_mode", "each"], "[data-key=subject]"),
    "memory": (lambda: MemoryLab("dense", 2), ["set_level", "off"], "[data-key=capacity]"),
    "stepper": (CollectiveStepper, ["choose_algorithm", "tree"], None),
    "pipeline": (lambda: PipelineLab(stages=2), ["set_schedule", "gpipe"], "[data-command=run_measured]"),
    "costs": (CostLab, ["set_ranks", 16], None),
    "runs": (RunLab, ["set_links", "0.5"], None),
    "context": (ContextLab, ["set_way", "zigzag"], None),
    "experts": (ExpertLab, ["set_ep", 2], "[data-command=run_measured]"),
    "rosetta": (RosettaLab, ["set_tp", "P"], None),
    "search": (lambda: SearchLab(devices=2), ["set_mode", "recursive_programming"], "[data-key=run]"),
    "redistribution": (RedistributionLab, ["set_steps", "all_to_all"], None),
}
ALL_LABS = {name: make for name, (make, _, _) in LABS.items()} | {"recompute": RecomputeLab}


def choose(page, command, value):
    """As a reader does: an entry of a list, or a button."""
    lists = page.locator(f"select[data-command={command}]")
    if lists.count():
        lists.first.select_option(str(value))
    else:
        page.locator(
            f"[data-command={command}][data-value='{value}'], input[data-command={command}][value='{value}']"
        ).first.click()


def same_as(page, lab, page_of, tab) -> None:
    """The page shows what a fresh page of the lab shows."""
    same = page_of(lab.to_html(limits=Limits(1)))
    if tab:
        open_tab(same)
    expect(page.locator("#lab")).to_have_text(same.locator("#lab").text_content())
    assert "#state=" in page.url and "#" not in same.url


def open_tab(page):
    page.locator("[data-tab=compare]").click()
    expect(page.locator("[data-tab=compare]")).to_have_attribute("aria-selected", "true")


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", LABS)
def test_a_choice_shows_what_the_lab_shows_and_stays_when_the_page_is_reloaded(page_of, name):
    make, call, _ = LABS[name]
    lab, tab = make(), name == "stepper"  # its algorithms are chosen behind a tab
    page = page_of(lab.to_html(limits=SOME))
    if tab:
        open_tab(page)
    choose(page, *call)
    getattr(lab, call[0])(*call[1:])
    same_as(page, lab, page_of, tab)
    address = page.url
    page.reload()
    page.wait_for_selector(".pl-lab[data-painted]")
    if tab:
        open_tab(page)
    same_as(page, lab, page_of, tab)
    assert page.url == address
    assert not page.get_by_role("alert").all_inner_texts()[0].strip()


@pytest.mark.quick(0)
@pytest.mark.parametrize("name", LABS)
def test_a_link_opens_the_page_where_it_was_copied(page_of, name):
    """Also with what is looked at; the address that the page writes is the one that `link` gives."""
    make, call, _ = LABS[name]
    lab = make()
    html = lab.to_html(limits=SOME)
    getattr(lab, call[0])(*call[1:])
    look, part = list(lab.looks.items())[-1]
    value = {
        "rank": 1,
        "follow": 1,
        "source": "predicted",
        "at": 1,
        "size": 1024,
        "step": 1,
        "way": "back",
        "term": "moved",
    }[part]
    getattr(lab, look)(value)
    page = page_of(html)
    page.evaluate("(link) => { location.hash = link; }", lab.link())
    same_as(page, lab, page_of, False)
    kept = json.loads(page.evaluate("new URLSearchParams(location.hash.slice(1)).get('state')"))
    assert (kept["kind"], kept["version"]) == (type(lab).__name__, 1)
    assert sorted(map(json.dumps, kept["calls"])) == sorted(map(json.dumps, lab.calls()))


@pytest.mark.quick(0)
@pytest.mark.parametrize("name", [name for name, (_, _, control) in LABS.items() if control])
def test_what_was_not_computed_is_off_and_says_why(page_of, name):
    make, _, control = LABS[name]
    node = page_of(make().to_html(limits=FEW)).locator(control).first
    expect(node).to_be_disabled()
    assert node.get_attribute("title").startswith("needs a kernel: ")


@pytest.mark.quick(3)
@pytest.mark.parametrize(
    "state",
    ["", "{", "[]", '{"kind":"MemoryLab","version":1,"calls":[]}', '{"kind":"FusionLab","version":1,"calls":3}'],
)
def test_a_hostile_or_foreign_address_is_refused_in_words(page_of, state):
    page = page_of(FusionLab("golf").to_html(limits=FEW))
    before = page.locator(".pl-fu-below").inner_text()
    page.evaluate("(state) => { location.hash = `state=${encodeURIComponent(state)}`; }", state)
    expect(page.get_by_role("alert")).to_contain_text("has no settings of a FusionLab")
    assert page.locator(".pl-fu-below").inner_text() == before


def test_what_a_link_asks_for_and_the_page_does_not_have_is_named(page_of):
    lab = FusionLab("golf")
    html = lab.to_html(limits=FEW)
    lab.set_line(0.5, 0.25)
    page = page_of(html)
    page.evaluate("(link) => { location.hash = link; }", lab.link())
    expect(page.get_by_role("alert")).to_contain_text("set line 0.5 0.25")


@pytest.mark.exhaustive
def test_a_refusal_is_replayed_with_the_labs_words(page_of):
    lab = PipelineLab(stages=3, micro_batches=2)
    found = explore(lab, SOME)
    call, why = next((json.loads(c), to) for c, to in found.moves[0].items() if isinstance(to, str))
    page = page_of(lab.to_html(limits=SOME))
    choose(page, *call)
    expect(page.get_by_role("alert")).to_contain_text(why[:60])


@pytest.mark.exhaustive
def test_several_labs_share_a_page_and_its_script(page_of):
    labs = [FusionLab("golf"), RedistributionLab(), FusionLab("golf")]
    html = pages_of(labs, "three labs", limits=FEW)
    assert html.count("function mount(") == 1 and html.count("kinds.FusionLab =") == 1
    page = page_of(html)
    expect(page.locator(".pl-lab[data-painted]")).to_have_count(3)
    page.locator("#lab3 [data-command=set_mode][data-value=each]").click()
    expect(page.locator("#lab3 [data-value=each]")).to_have_attribute("aria-checked", "true")
    expect(page.locator("#lab [data-value=each]")).to_have_attribute("aria-checked", "false")
    assert "state3=" in page.url and "state=" not in page.url


REPORT = "report of the quickstart"


@pytest.mark.quick(1)
@pytest.mark.parametrize("name", first(2, [REPORT, *sorted(ALL_LABS, key="costs".__ne__)]))
def test_the_whole_page_of_a_lab_is_small_and_asks_for_nothing(page_of, name):
    """With every setting that it can replay; `page_of` fails for a request, an exception or a line in the console."""
    shown = Quickstart(epochs=1, executor="simulator").run() if name == REPORT else ALL_LABS[name]()
    html = shown.to_html()
    assert len(html.encode()) <= LARGEST_PAGE
    page = page_of(html, drawn="main h1" if name == REPORT else ".pl-lab[data-painted]")
    assert page.locator("script[src], link, img").count() == 0


def test_a_page_without_controls_is_the_picture_in_a_fixed_frame(page_of):
    page = page_of(FusionLab("golf").to_html(limits=FEW, controls=False, height=300))
    assert page.evaluate("document.body.clientHeight") == 300
    assert page.locator(".pl-lab :is(select, input, .pl-button):visible").count() == 0
    assert page.locator(".pl-lab svg:visible").count() > 0


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", LABS)
def test_any_walk_over_a_page_shows_what_the_lab_shows_after_the_same_commands(page_of, name):
    """As far as the page leads: commands at random, each the page's own, done by the lab too."""
    make = LABS[name][0]
    lab, draw = make(), random.Random(name)
    page = page_of(lab.to_html(limits=Limits(60, 30)))
    for _ in range(6):
        calls = list(lab.replays())
        done = 0
        for call in draw.sample(calls, len(calls)):
            if len(call) != 2:
                continue
            node = page.locator(f"[data-command={call[0]}]:enabled")
            options = page.locator(f"select[data-command={call[0]}]:enabled option:enabled[value='{call[1]}']")
            on = page.locator(f"button[data-command={call[0]}][data-value='{call[1]}']:enabled")
            if not node.count() or not (options.count() or on.count()):
                continue
            choose(page, *call)
            with contextlib.suppress(ParallelLabError):
                getattr(lab, call[0])(*call[1:])
            done += 1
            break
        if not done:
            break
        seen = json.loads(page.evaluate("new URLSearchParams(location.hash.slice(1)).get('state')"))["calls"]
        assert [c for c in seen if c[0] not in lab.looks] == settings_of(lab)
