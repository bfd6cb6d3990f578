"""The Collective Stepper in a real browser, offline: order of cards, tokens, keyboard, both themes, nothing cut off."""

from __future__ import annotations

import pytest

from parallel_lab.lab.collectives.algorithms.algorithm import custom_algorithm
from parallel_lab.lab.collectives.model import CollectiveStepper
from tests.browser.lab_page import FEW, MARKS, browser, page_of, recorded, sync_api, traits

__all__ = ["browser", "page_of", "recorded"]  # the fixtures

expect = sync_api.expect

pytestmark = MARKS


@pytest.fixture
def show(page_of):
    """show(stepper, scheme=..., width=...) -> page."""
    return lambda stepper, *args, **options: page_of(
        stepper.to_html(limits=FEW), *args, drawn=".pl-rank-card", **options
    )


def at(page, number):
    """Wait until the page has drawn the state after `number` rounds, and everything has landed."""
    page.wait_for_selector(f".pl-stepper[data-at='{number}']")
    expect(page.locator(".pl-ghost")).to_have_count(0)


def test_cards_stand_in_order_and_say_what_they_hold(show):
    stepper = CollectiveStepper("all_reduce", "ring", 4)
    stepper.to(2)
    page = show(stepper)
    frame = stepper.snapshot()["frames"][2]
    names = page.eval_on_selector_all(".pl-rank-card", "cards => cards.map(c => c.getAttribute('aria-label'))")
    assert names == [f"rank {c['rank']}: {c['text']}; has sent 32 KiB" for c in frame["cards"]]
    lefts = page.eval_on_selector_all(".pl-rank-card", "cards => cards.map(c => c.getBoundingClientRect().left)")
    assert lefts == sorted(lefts)


@pytest.mark.exhaustive
def test_a_partial_sum_is_hatched_and_shows_who_is_in_it(show):
    stepper = CollectiveStepper("all_reduce", "ring", 4)
    stepper.to(3)
    page = show(stepper)
    for rank, card in enumerate(stepper.snapshot()["frames"][3]["cards"]):
        for chunk, cell in enumerate(card["cells"]):
            drawn = page.locator(f'[data-cell="{rank}-{chunk}"] .pl-token')
            tall = drawn.locator(".pl-who i").evaluate_all(
                "all => all.map((e, i) => [i, e.getBoundingClientRect().height]).filter(x => x[1] > 5).map(x => x[0])"
            )
            assert tall == cell["who"]
            hatched = "gradient" in drawn.evaluate("e => getComputedStyle(e).backgroundImage")
            assert hatched == (len(cell["who"]) < 4)


@pytest.mark.exhaustive
def test_colour_is_the_chunk_and_every_chunk_has_its_own(show):
    page = show(CollectiveStepper("all_reduce", "ring", 8))
    fills = page.eval_on_selector_all(
        ".pl-cell .pl-token", "all => all.map(t => [t.dataset.chunk, getComputedStyle(t).backgroundColor])"
    )
    by_chunk = {}
    for chunk, fill in fills:
        by_chunk.setdefault(chunk, set()).add(fill)
    assert len(fills) == 64 and all(len(v) == 1 for v in by_chunk.values()) and len(set.union(*by_chunk.values())) == 8


@pytest.mark.exhaustive
def test_arrow_keys_step_and_the_page_says_so(show):
    stepper = CollectiveStepper("all_reduce", "ring", 4)
    frames = stepper.snapshot()["frames"]
    page = show(stepper)
    page.get_by_role("button", name="one round on").focus()
    for number in range(1, 7):
        page.keyboard.press("ArrowRight")
        at(page, number)
        expect(page.get_by_role("status")).to_have_text(frames[number]["text"])
        names = page.eval_on_selector_all(".pl-rank-card", "cards => cards.map(c => c.getAttribute('aria-label'))")
        assert all(c["text"] in name for c, name in zip(frames[number]["cards"], names, strict=True))
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowLeft")
    at(page, 5)
    page.keyboard.press("Home")
    at(page, 0)
    page.keyboard.press("End")
    at(page, 6)
    rail = page.get_by_role("slider", name="rounds done")
    assert rail.input_value() == "6" and rail.get_attribute("aria-valuetext") == frames[6]["text"]
    rail.focus()
    page.keyboard.press("ArrowLeft")
    at(page, 5)


@pytest.mark.exhaustive
def test_the_counters_and_the_bars_meet_the_formula_at_the_last_step(show):
    stepper = CollectiveStepper("all_reduce", "recursive_doubling", 6)
    page = show(stepper)
    expect(page.locator(".pl-verdict.pl-met")).to_have_count(0)
    page.get_by_role("button", name="one round on").focus()
    page.keyboard.press("End")
    at(page, stepper.rounds)
    expect(page.locator(".pl-verdict.pl-met")).to_have_count(4)
    page.wait_for_timeout(400)  # the bars' transition
    shares = page.eval_on_selector_all(
        ".pl-meter-bar", "all => all.map(b => b.firstElementChild.getBoundingClientRect().width / (b.clientWidth))"
    )
    sent = stepper.snapshot()["frames"][-1]["sent"]
    assert shares == pytest.approx([s / max(sent) for s in sent], abs=0.03)
    assert max(shares) == pytest.approx(1, abs=0.03)


FLIGHTS = """() => { window.flown = []; new MutationObserver((all) => all.forEach((m) => m.addedNodes.forEach((n) => {
  if (n.classList?.contains('pl-ghost')) flown.push(n.dataset.chunk); })))
  .observe(document.querySelector('.pl-sky'), { childList: true }); }"""


def test_tokens_fly_from_card_to_card_one_per_chunk_of_a_message(show):
    stepper = CollectiveStepper("all_reduce", "tree", 4)
    page = show(stepper)
    page.evaluate(FLIGHTS)
    page.get_by_role("button", name="one round on").click()
    at(page, 1)
    messages = stepper.snapshot()["frames"][1]["messages"]
    assert page.evaluate("flown.length") == sum(len(m["chunks"]) for m in messages) == 8
    page.keyboard.press("ArrowLeft")
    at(page, 0)
    assert page.evaluate("flown.length") == 8  # nothing flies on the way back


@pytest.mark.exhaustive
def test_pressing_on_does_not_wait_for_the_flight(show):
    page = show(CollectiveStepper("all_reduce", "ring", 8))
    page.get_by_role("button", name="one round on").focus()
    for _ in range(14):
        page.keyboard.press("ArrowRight")
    at(page, 14)
    expect(page.locator(".pl-cell .pl-done")).to_have_count(64)


def test_nothing_flies_where_the_reader_asks_for_less_motion(show):
    page = show(CollectiveStepper("all_reduce", "tree", 4), reduced_motion="reduce")
    page.evaluate(FLIGHTS)
    page.get_by_role("button", name="one round on").click()
    at(page, 1)
    assert page.evaluate("flown.length") == 0
    expect(page.locator(".pl-cell .pl-fresh")).to_have_count(8)  # what came is ringed all the same


@pytest.mark.exhaustive
def test_play_goes_to_the_end_and_can_be_stopped(show):
    page = show(CollectiveStepper("all_gather", "bruck", 3), reduced_motion="reduce")
    page.get_by_role("button", name="play the rounds").click()
    at(page, 2)
    expect(page.get_by_role("button", name="play the rounds")).to_have_attribute("aria-disabled", "true")
    longer = show(CollectiveStepper("all_reduce", "ring", 8), reduced_motion="reduce")
    longer.get_by_role("button", name="play the rounds").click()
    at(longer, 1)
    longer.get_by_role("button", name="stop playing").click()
    longer.wait_for_timeout(1700)
    assert longer.locator(".pl-stepper").get_attribute("data-at") == "1"


def test_one_chunk_can_be_followed(show):
    page = show(CollectiveStepper("all_reduce", "ring", 4))
    page.locator("[data-command=follow]").select_option("2")
    expect(page.locator(".pl-cell .pl-token:not(.pl-faded)")).to_have_count(4)
    page.locator('.pl-cell [data-chunk="1"]').first.click()
    expect(page.locator("[data-command=follow]")).to_have_value("1")
    page.locator('.pl-cell [data-chunk="1"]').first.click()
    expect(page.locator(".pl-cell .pl-faded")).to_have_count(0)


def test_a_list_that_goes_wrong_says_so(show):
    stepper = CollectiveStepper(
        algorithm=custom_algorithm("all_reduce", [[(0, 1, 0, "add"), (1, 0, 1, "add")], [(1, 0, 0, "add")]], ranks=2)
    )
    page = show(stepper)
    expect(page.get_by_role("alert")).to_contain_text(
        "This list of sends is not an all_reduce. Round 2: rank 0 adds v0 to chunk 0 a second time."
    )
    expect(page.locator(".pl-verdict")).to_have_count(0)


# ---- the page of a kernel that only records ----


@pytest.fixture
def live(recorded):
    """A live view and its model: (page, stepper)."""
    stepper = CollectiveStepper("all_reduce", "ring", 4)
    return recorded(stepper), stepper


def asked(page):
    return page.evaluate("sent.map(m => [m.command, m.arguments])")


@pytest.mark.exhaustive
def test_a_step_is_shown_at_once_and_an_old_answer_does_not_pull_it_back(live):
    page, stepper = live
    page.get_by_role("button", name="one round on").focus()
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    assert asked(page) == [["to", [1]], ["to", [2]], ["to", [3]]]
    at(page, 3)
    stepper.to(1)
    page.evaluate(
        "([p]) => { put('progress', p); tell('msg:custom', {kind: 'answered', number: 1, refused: false}, []); }",
        [traits(stepper)["progress"]],
    )
    page.wait_for_timeout(100)
    assert page.locator(".pl-stepper").get_attribute("data-at") == "3"
    stepper.to(3)
    page.evaluate(
        "([p]) => { put('progress', p); tell('msg:custom', {kind: 'answered', number: 3, refused: false}, []); }",
        [traits(stepper)["progress"]],
    )
    at(page, 3)
    stepper.to(5)  # by a method call in a cell
    page.evaluate("([p]) => put('progress', p)", [traits(stepper)["progress"]])
    at(page, 5)


def test_choices_are_commands_and_a_refused_one_goes_back(live):
    page, _ = live
    page.select_option("select[data-command=choose_kind]", "broadcast")
    page.get_by_role("radio", name="8 ranks").click()
    page.locator("[data-tab=compare]").click()
    page.locator(".pl-compare input[value=tree]").check()
    page.select_option("select[data-command=choose_elements]", "64")
    page.locator("[data-command=follow]").select_option("1")
    page.locator("[data-command=follow]").select_option("")
    choices = [["choose_kind", ["broadcast"]], ["choose_ranks", [8]], ["choose_algorithm", ["tree"]]]
    assert asked(page) == [*choices, ["choose_elements", [64]], ["follow", [1]], ["follow", [None]]]
    page.evaluate(
        "put('last_error', 'no <b>such</b> thing'); tell('msg:custom', {kind: 'answered', number: 6, refused: "
        "true}, [])"
    )
    expect(page.get_by_role("alert")).to_contain_text("no <b>such</b> thing")
    expect(page.locator("select[data-command=choose_kind]")).to_have_value("all_reduce")
    expect(page.locator(".pl-compare input[value=ring]")).to_be_checked()


@pytest.mark.exhaustive
def test_another_story_replaces_the_first(live):
    page, stepper = live
    stepper.choose_ranks(8)
    page.evaluate("([t]) => { put('progress', t.progress); put('snapshot', t.snapshot); }", [traits(stepper)])
    expect(page.locator(".pl-rank-card")).to_have_count(8)
    expect(page.locator(".pl-title")).to_have_text("all_reduce by ring, 8 ranks")


def test_a_number_is_asked_for_first_and_kept_as_it_was_typed(show):
    stepper = CollectiveStepper("all_reduce", "ring", 4)
    stepper.set_predict(True)
    page = show(stepper)
    expect(page.locator(".pl-transport")).to_have_count(0)
    page.get_by_label("your answer").fill("7")
    page.get_by_role("button", name="Keep").click()
    expect(page.locator(".pl-predict")).to_contain_text("You: 7 rounds, not yet. 6 rounds: 6 rounds = 2(n-1).")
    expect(page.locator(".pl-transport")).to_have_count(1)
