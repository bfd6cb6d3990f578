"""The Pipeline Lab in a real browser, offline: one screen, drawn by mouse and by keys, refusals at the cell, and a page
without a kernel that is stepped."""

from __future__ import annotations

import pytest

from parallel_lab.lab.pipeline.model import PipelineLab
from parallel_lab.lab.pipeline.run import Ran, RunResult
from parallel_lab.lab.shared.replay import Limits
from parallel_lab.lab.widgets import PipelineLabWidget
from tests.browser.lab_page import FAULTS, FEW, MARKS, boxes, browser, live, page_of, sync_api
from tests.crossed import each_of
from tests.lab.recorded_puzzles import solution

__all__ = ["browser", "live", "page_of"]  # the fixtures

expect = sync_api.expect

pytestmark = MARKS
KEYS = "(all) => all.map((e) => e.dataset.item)"
SCREEN = 692  # pixels that JupyterLab leaves of a screen of 800 for the notebook


def ran(lab: PipelineLab, stretched: float) -> PipelineLab:
    """The lab as if it had run: every action at its drawn time, in milliseconds, times `stretched`."""
    cells = [lane["cells"] for lane in lab.snapshot()["lanes"]]
    for source, by in (("simulated", 1.0), ("measured", stretched)):
        lanes = tuple(tuple(Ran(n, a * by / 1000, b * by / 1000, (b - a) / 1000) for n, a, b in lane) for lane in cells)
        lab._run.results[source] = RunResult(source, lanes, lab.makespan * by / 1000, 5, (1,) * len(lanes))
    return lab


def lane_text(page, rank: int) -> list[str]:
    """The actions of a lane in order of time, as the page has them."""
    names = page.locator(f'[data-item^="c{rank}-"]')
    found = zip((box["x"] for box in boxes(names)), names.evaluate_all(KEYS), strict=True)
    return [name.split("-")[1] for _, name in sorted(found)]


@pytest.mark.quick(1)
@pytest.mark.parametrize(("width", "scheme"), [(848, "dark"), (1280, "light"), (400, "light")])
@pytest.mark.parametrize("schedule", ["1f1b", "interleaved", "dualpipe"])
def test_eight_stages_and_sixteen_micro_batches_are_on_one_screen(page_of, live, schedule, width, scheme):
    lab = ran(PipelineLab(stages=8, micro_batches=16, schedule=schedule), 1.2)
    page, _ = live(PipelineLabWidget(lab), width=width, scheme=scheme)
    assert not page.evaluate("document.documentElement.scrollWidth > innerWidth")
    svg = page.locator(".pl-pi-lanes").bounding_box()
    texts = boxes(page.locator(".pl-pi-lanes text"))
    assert all(svg["x"] - 1 <= b["x"] and b["x"] + b["width"] <= svg["x"] + svg["width"] + 1 for b in texts)
    if width > 400:
        for shown in ("Run", "Clear all", "Search"):
            assert page.get_by_role("button", name=shown).bounding_box()["y"] < SCREEN
        for shown in (".pl-pi-figure", ".pl-loss canvas", ".pl-pi-numbers", ".pl-pi-settings", ".pl-tabs"):
            box = page.locator(shown).bounding_box()
            assert box["y"] + box["height"] <= SCREEN, shown


@pytest.mark.quick(1)
@pytest.mark.parametrize("net", ["stack", "gpt"])
@pytest.mark.parametrize("stages", [2, 4, 8])
def test_controls_are_one_line_and_settings_another(page_of, stages, net):
    """A page in a window of 848 leaves a lab 784 pixels: Run and Simulate had a line of their own there."""
    page = page_of(PipelineLab(net, stages=stages).to_html(limits=FEW), width=848)
    for line in (".pl-pi-head", ".pl-pi-settings"):
        middles = [box["y"] + box["height"] / 2 for box in boxes(page.locator(f"{line} > *"))]
        assert max(middles) - min(middles) < 8


@pytest.mark.quick(1)
@pytest.mark.parametrize("width", [848, 1280])
def test_every_drawn_action_has_its_number(page_of, width):
    """1F1B of 8 stages and 16 micro-batches: cells are narrow, and each says its micro-batch."""
    page = page_of(PipelineLab(stages=8, micro_batches=16).to_html(limits=FEW), width=width)
    texts = page.locator(".pl-pi-item:not(.pl-pi-gap) text").all_text_contents()
    numbers = [int(text.lstrip("FB")) for text in texts]
    assert sorted(numbers) == sorted([*range(16)] * 2 * 8)


@pytest.mark.exhaustive
@each_of(
    ("schedule", "width", "scheme"),
    *((schedule, 400, scheme) for schedule in ("1f1b", "dualpipe", "zb_h1") for scheme in ("light", "dark")),
    *(("interleaved", width, "light") for width in (400, 700, 848, 1200)),
    ("interleaved", 848, "dark"),
)
def test_many_lanes_scroll_in_their_box_where_their_numbers_could_not_be_read(live, schedule, width, scheme):
    """They were squeezed into 4 pixels, and a third of the actions were missing. Chromium says how wide it has drawn
    each number.
    """
    lab = ran(PipelineLab(stages=8, micro_batches=16, schedule=schedule), 1.2)
    page, _ = live(PipelineLabWidget(lab), width=width, scheme=scheme)
    assert not page.evaluate("document.documentElement.scrollWidth > innerWidth")
    box = page.locator(".pl-pi-scroll")
    assert box.evaluate("(e) => e.scrollWidth > e.clientWidth && e.scrollHeight <= e.clientHeight")
    numbers = page.locator(".pl-pi-item:not(.pl-pi-gap) text")
    alone = [cell for rank in range(8) for cell in lab.schedule.cells(rank)]
    shown = sum(sum(a.kind != "W" or len(cell) == 1 for a in cell) for cell in alone)
    texts, widths = numbers.all_text_contents(), [each["width"] for each in boxes(numbers)]
    assert len(texts) == shown
    assert all(wide >= 4 * len(text) for text, wide in zip(texts, widths, strict=True))  # pixels of a digit
    assert (
        min(float(size) for size in numbers.evaluate_all("(all) => all.map((e) => e.getAttribute('font-size'))")) >= 9
    )
    cells = boxes(page.locator(".pl-pi-item:not(.pl-pi-gap) g > rect"))
    inside = zip(boxes(numbers), cells, strict=True)
    assert all(c["x"] - 1 <= n["x"] and n["x"] + n["width"] <= c["x"] + c["width"] + 1 for n, c in inside)
    names = page.locator(".pl-pi-rank")
    before = boxes(names)
    box.evaluate("(e) => { e.scrollLeft = e.scrollWidth; }")
    assert boxes(names) == before and len(before) == 8  # whose lane it is stays in sight
    kept = boxes(page.locator(".pl-pi-number"))
    assert all(each["x"] >= 0 and each["x"] + each["width"] <= width for each in kept) and len(kept) == 8
    assert page.evaluate(FAULTS) == []


@pytest.mark.exhaustive
def test_the_moment_that_is_stepped_to_and_a_dragged_action_are_brought_in_sight(live):
    """Lanes of 1612 px in a box of 784: the moment was stepped to out of sight."""
    lab = PipelineLab(stages=8, micro_batches=16, schedule="interleaved")
    page, _ = live(PipelineLabWidget(lab), width=848)
    box, slider = page.locator(".pl-pi-scroll"), page.locator("[data-step]")
    seen = box.bounding_box()
    for part in (0.9, 0.0, 0.5):
        slider.fill(str(round(part * int(slider.get_attribute("max")))))
        cursor = page.locator(".pl-pi-cursor").bounding_box()["x"]
        assert seen["x"] + 29 <= cursor <= seen["x"] + seen["width"]
    page.get_by_role("button", name="Whole").click()
    box.evaluate("(e) => { e.scrollLeft = 0; }")
    action = page.locator('[data-item="c0-0F1"]').bounding_box()
    page.mouse.move(action["x"] + 5, action["y"] + 10)
    page.mouse.down()
    for _ in range(4):  # at the end of the box every movement scrolls a little
        page.mouse.move(seen["x"] + seen["width"] - 2, action["y"] + 10)
        page.mouse.move(seen["x"] + seen["width"] - 1, action["y"] + 11)
    assert box.evaluate("(e) => e.scrollLeft") >= 30
    drop = page.locator(".pl-pi-drop").bounding_box()["x"]
    assert seen["x"] <= drop <= seen["x"] + seen["width"]
    page.mouse.up()


@pytest.mark.exhaustive
def test_where_lanes_scroll_an_action_is_dragged_to_where_the_pointer_is(live):
    lab = PipelineLab(stages=8, micro_batches=16)
    page, _ = live(PipelineLabWidget(lab), width=400)
    page.locator(".pl-pi-scroll").evaluate("(e) => { e.scrollLeft = 250; }")
    before = [str(a) for a in lab.schedule[0]]
    name, onto = before[9:11]
    source, target = (page.locator(f'[data-item="c0-{one}"]').bounding_box() for one in (name, onto))
    page.mouse.move(source["x"] + source["width"] / 2, source["y"] + 10)
    page.mouse.down()
    page.mouse.move(target["x"] + 0.9 * target["width"], target["y"] + 10, steps=4)
    page.mouse.up()
    expect(page.locator('[data-command="set_schedule"]')).to_have_value("drawn")
    assert [str(a) for a in lab.schedule[0]] == [*before[:9], onto, name, *before[11:]]
    page.keyboard.press("Home")  # the focus goes to the first action, and it is scrolled to
    first = page.locator('[data-item="c0-0F0"]')
    expect(first).to_be_focused()
    names = page.locator(".pl-pi-names").bounding_box()
    assert first.bounding_box()["x"] >= names["x"] + names["width"] - 3  # its ring is around it


@pytest.mark.exhaustive
def test_fill_is_the_kind_and_nothing_is_hatched(page_of):
    page = page_of(PipelineLab(schedule="zb_h1").to_html(limits=FEW))
    fills = {}
    for kind in "FBW":
        css = f".pl-pi-item .pl-pi-{kind}.pl-hue-2 rect"
        look = "(e) => [getComputedStyle(e).fill, getComputedStyle(e).fillOpacity, getComputedStyle(e).stroke]"
        fills[kind] = page.locator(css).first.evaluate(look)
    assert fills["F"][1:] == ["1", "none"] and float(fills["B"][1]) < 0.4 and fills["B"][2] == fills["F"][0]
    assert fills["W"][0].startswith("url(") and page.locator("pattern circle").count() == 8
    assert page.locator("[patternTransform]").count() == 0


@pytest.mark.quick(1)
@pytest.mark.parametrize(("schedule", "chunks"), [("1f1b", 1), ("interleaved", 3), ("dualpipe", 1)])
def test_cells_of_later_parts_have_dashes_at_their_foot(page_of, schedule, chunks):
    """None for the first part of a lane, one for the second: a lane has F0 once for each of its parts."""
    lab = PipelineLab(stages=4, micro_batches=8, schedule=schedule)
    lab.set_chunks(chunks)
    page = page_of(lab.to_html(limits=FEW), width=1280)
    drawn = page.locator(".pl-pi-item .pl-pi-part").evaluate_all("(all) => all.map((e) => e.getAttribute('d'))")
    cells = [(rank, cell) for rank in range(4) for cell in lab.schedule.cells(rank)]
    shown = [
        (rank, a) for rank, cell in cells for a in cell if a.kind != "W" or len(cell) == 1
    ]  # next to B it has no box
    later = [lab.schedule.holds[rank].index(a.stage) for rank, a in shown]
    assert sorted(d.count("M") for d in drawn) == sorted(n for n in later if n)


@pytest.mark.exhaustive
def test_a_schedule_is_drawn_by_keys_alone(live):
    """1F1B of 2 stages, 2 micro-batches: clear, F and B, arrows between the lanes; z takes a step back."""
    lab = PipelineLab(stages=2, micro_batches=2)
    page, widget = live(PipelineLabWidget(lab))
    page.get_by_role("button", name="Clear all").press("Enter")
    expect(page.locator('[data-item="n0-0F0"]')).to_be_focused()
    for rank, made in enumerate((["0F0", "0F1", "0B0", "0B1"], ["1F0", "1B0", "1F1", "1B1"])):
        for name in made:
            page.keyboard.press(name[1].lower())
            expect(page.locator(f'[data-item="c{rank}-{name}"]')).to_be_focused()
        page.keyboard.press("ArrowDown")
    assert lab.schedule.text() == "0F0 0F1 0B0 0B1\n1F0 1B0 1F1 1B1" and lab.complete and widget.last_error is None
    page.keyboard.press("Shift+ArrowLeft")
    expect(page.locator(".pl-pi-refused")).to_contain_text("must come first")
    assert lab.complete
    page.keyboard.press("z")
    expect(page.locator('[data-item="n1-1B1"]')).to_have_count(1)


def test_an_action_is_dragged_and_a_refusal_stands_at_its_cell(live):
    lab = PipelineLab(stages=4, micro_batches=8)
    page, _ = live(PipelineLabWidget(lab), width=848)

    def drag(name, onto, part):
        source, target = (page.locator(f'[data-item="c{n[0]}-{n}"]').bounding_box() for n in (name, onto))
        page.mouse.move(source["x"] + source["width"] / 2, source["y"] + 10)
        page.mouse.down()
        page.mouse.move(target["x"] + part * target["width"], target["y"] + 12, steps=4)
        page.mouse.up()

    drag("0F4", "0B0", 0.2)
    expect(page.locator('[data-command="set_schedule"]')).to_have_value("drawn")
    assert lane_text(page, 0)[:6] == ["0F0", "0F1", "0F2", "0F3", "0F4", "0B0"] == [str(a) for a in lab.schedule[0][:6]]
    drag("0B1", "0F0", 0.1)
    refused = page.locator(".pl-pi-refused")
    expect(refused).to_contain_text("0B1 needs 0F1, which the rank does only at action 2: 0F1 must come first")
    cell, told = page.locator('[data-item="c0-0B1"]').bounding_box(), refused.bounding_box()
    assert abs(told["y"] - cell["y"] - cell["height"]) < 12 and told["x"] < cell["x"] < told["x"] + told["width"]
    page.locator('[data-item="c0-0F0"]').click()
    expect(refused).to_have_count(0)
    expect(page.locator(".pl-notice")).to_have_count(0)  # it was read: no banner that moves the picture down
    drag("0F5", "2F2", 0.1)
    expect(refused).to_contain_text("action 3 of rank 2: 0F5 cannot run here: part 0 lies on rank 0, rank 2 has 2")
    expect(refused).to_contain_text("choose another, or load one as text")
    lane, told = page.locator('[data-item="c2-2F2"]').bounding_box(), refused.bounding_box()
    assert abs(told["y"] - lane["y"] - lane["height"]) < 12 and told["x"] < lane["x"] < told["x"] + told["width"]
    page.locator('[data-item="c0-0F0"]').click()
    expect(refused).to_have_count(0)
    page.locator('[data-item="c3-3F1"]').click()
    page.keyboard.press("Shift+ArrowUp")
    expect(refused).to_contain_text("3F1 cannot run here: part 3 lies on rank 3, rank 2 has 2")
    page.get_by_role("button", name="Undo").click()
    expect(page.locator('[data-command="set_schedule"]')).to_have_value("1f1b")


@pytest.mark.exhaustive
def test_a_bubble_tells_what_it_waits_for_and_shows_the_chain(page_of):
    page = page_of(PipelineLab(stages=4, micro_batches=8).to_html(limits=FEW))
    page.locator('[data-item="g3-0"]').click()
    expect(page.locator(".pl-status")).to_contain_text("Rank 3 waits 3, from 0 to 3, before 3F0, for 2F0 of rank 2")
    chain = page.locator(".pl-pi-chain").evaluate_all(KEYS)
    assert sorted(chain) == ["c0-0F0", "c1-1F0", "c2-2F0"]
    ring = page.locator('[data-item="g3-0"] .pl-pi-ring')
    assert ring.evaluate("(e) => getComputedStyle(e).stroke") != "none"
    page.keyboard.press("ArrowRight")
    expect(page.locator(".pl-pi-item:focus")).to_have_attribute("data-item", "c3-3F0")
    page.keyboard.press("ArrowUp")
    expect(page.locator(".pl-status")).to_contain_text("Rank 2")


@pytest.mark.exhaustive
def test_a_page_without_a_kernel_is_stepped_and_shows_other_schedules(page_of):
    page = page_of(PipelineLab(stages=4, micro_batches=8).to_html(limits=Limits(20, 60)))  # all its schedules
    page.locator("[data-command=set_schedule]").select_option("zb_h1")
    expect(page.locator(".pl-status")).to_contain_text("A step of 27 ticks")
    page.locator("[data-step]").fill("0")
    expect(page.locator(".pl-status")).to_contain_text("From 0 on (predicted): rank 0 0F0, rank 1 waits")
    page.get_by_role("button", name="▶").click()
    expect(page.locator(".pl-status")).to_contain_text("rank 0 0F1, rank 1 1F0, rank 2 waits")
    expect(page.locator(".pl-pi-now")).to_have_count(2)
    page.get_by_role("button", name="Whole").click()
    expect(page.locator(".pl-pi-later")).to_have_count(0)
    page.get_by_role("tab", name="Code out").click()
    expect(page.get_by_role("tabpanel")).to_contain_text('make_schedule("zb_h1"')
    said = page.locator(".pl-pi-below .pl-pi-verdict")
    expect(said).to_contain_text("◀ and ▶ step through the drawn order")


@pytest.mark.quick(1)
@pytest.mark.parametrize("width", [340, 400, 700])  # 700: what a sidebar leaves of a window of 848
def test_a_narrow_page_shows_lanes_and_the_numbers_of_a_step_whole(page_of, width):
    page = page_of(PipelineLab(stages=4, micro_batches=8).to_html(limits=FEW), width=width)
    assert not page.evaluate("document.documentElement.scrollWidth > innerWidth")
    svg, figure = (page.locator(css).bounding_box() for css in (".pl-pi-lanes", ".pl-pi-figure"))
    assert svg["x"] + svg["width"] <= figure["x"] + figure["width"] + 1
    cells = page.locator(".pl-pi-numbers td").filter(has_text="the schedule's clock")
    box, numbers = cells.bounding_box(), page.locator(".pl-pi-numbers .pl-scroll").bounding_box()
    assert box["x"] + box["width"] <= numbers["x"] + numbers["width"] + 1


@pytest.mark.exhaustive
def test_the_picture_stays_in_place_while_a_run_says_how_it_goes(live):
    """Guards against a line that pushed the lanes down when a run began, and back when it ended."""
    tops = []
    for said in ("", "step 7 of 20"):
        lab = PipelineLab()
        lab._run.state, lab._run.text = ("running" if said else "idle"), said
        page, _ = live(PipelineLabWidget(lab), width=848)
        assert page.locator(".pl-pi-going").all_text_contents() == [said] * bool(said)
        tops.append(page.locator(".pl-pi-figure").bounding_box()["y"])
    assert tops[0] == tops[1]


@pytest.mark.exhaustive
def test_another_schedule_leaves_what_has_run_in_sight(live):
    """It was gone without a word: numbers, lanes and curve."""
    lab = ran(PipelineLab(), 1.2)
    lab._run.label, lab._run.parallel, lab._run.single = lab.settings.label, [0.5, 0.25, 0.125], [0.5, 0.25, 0.125]
    page, _ = live(PipelineLabWidget(lab), width=848)
    expect(page.get_by_role("tab", name="Earlier runs")).to_have_count(0)
    page.locator("[data-command=set_schedule]").select_option("gpipe")
    expect(page.locator(".pl-loss .pl-legend")).to_contain_text("1f1b, stack, 4 stages, 8 micro-batches (3 steps)")
    expect(page.locator(".pl-loss .pl-empty")).to_have_count(0)  # its words lay over the curve
    page.get_by_role("tab", name="Earlier runs").click()
    rows = page.get_by_role("tabpanel").locator("tbody tr")
    expect(rows).to_have_count(2)
    expect(rows.last).to_contain_text("measured")
    expect(rows.last).to_contain_text("0.125 at step 3")
    assert page.evaluate(FAULTS) == []


@pytest.mark.exhaustive
def test_a_text_is_loaded_and_the_cap_is_typed(live):
    lab = PipelineLab(stages=2, micro_batches=2)
    page, _ = live(PipelineLabWidget(lab))
    page.get_by_role("tab", name="Schedule as text").click()
    page.locator("textarea").fill("0F0 0F1 0B0 0B1\n1F0 1F1 1B0 1B1")
    page.get_by_role("button", name="Load").click()
    expect(page.locator("[data-command=set_schedule]")).to_have_value("drawn")
    assert lab.schedule.text().splitlines()[1] == "1F0 1F1 1B0 1B1"
    cap = page.locator("[data-field=cap]")
    cap.fill("1")
    cap.press("Enter")
    expect(page.locator(".pl-pi-fault")).to_have_count(2)
    expect(page.locator(".pl-status")).to_contain_text("no memory for 0F1")
    cap.fill("1.5")
    cap.press("Enter")
    expect(page.locator(".pl-notice")).to_contain_text("cap 1.5. A whole number")
    cap.fill("much")
    cap.press("Enter")
    expect(page.locator(".pl-notice")).to_contain_text("A whole number")
    page.locator("textarea").fill("0F0 what")
    page.get_by_role("button", name="Load").click()
    expect(page.locator(".pl-notice")).to_contain_text("line 1, column 5")
    expect(page.get_by_role("tabpanel")).to_contain_text("'what' is no action")  # where it was typed


@pytest.mark.exhaustive
def test_a_puzzles_lab_has_no_schedules_and_no_search_until_par_is_reached(live):
    lab = PipelineLab(puzzle="09.2 4x8 cap 4")
    page, _ = live(PipelineLabWidget(lab), width=848)
    locked = (page.get_by_role("button", name="Search"), page.get_by_label("schedule"), page.get_by_label("latency"))
    for gone in (*locked, page.get_by_label("predict first")):  # which would ask nothing
        expect(gone).to_have_count(0)
    expect(page.locator(".pl-pi-puzzle")).to_contain_text("A message takes 2 between ranks 1 and 2")
    page.get_by_role("button", name="Clear all").click()
    expect(page.get_by_role("button", name="+W")).to_be_disabled()
    page.get_by_role("button", name="+B").click()
    expect(page.locator(".pl-pi-refused")).to_contain_text("0B0 needs 0F0, which rank 0 has not done yet")
    page.get_by_role("button", name="+F").click()
    assert lane_text(page, 0) == ["0F0"]
    lab.load(solution("09.2 4x8 cap 4"))
    page, _ = live(PipelineLabWidget(lab), width=848)
    locked = (page.get_by_role("button", name="Search"), page.get_by_label("schedule"), page.get_by_label("latency"))
    for open_again in locked:
        expect(open_again.first).to_be_visible()
    expect(page.locator(".pl-pi-puzzle")).to_contain_text("Puzzle 09.2 is solved")
    box = page.locator(".pl-tabs").bounding_box()
    assert box["y"] + box["height"] <= SCREEN
