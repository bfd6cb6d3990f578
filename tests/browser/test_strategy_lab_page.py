"""The Strategy Lab's page in a real browser, offline: what is drawn, no request, keyboard, both themes."""

from __future__ import annotations

import re

import pytest

from parallel_lab.lab.shared.replay import Limits
from parallel_lab.lab.strategy.model import StrategyLab
from tests.browser.lab_page import CUT, FAULTS, MARKS, boxes, browser, page_of, recorded, sync_api
from tests.lab.fake_lab import FakeLab

__all__ = ["browser", "page_of", "recorded"]  # the fixtures

expect = sync_api.expect

LONG = ["convnet", "transformer", "embedding"]
pytestmark = MARKS


@pytest.fixture
def show(page_of):
    """show(snapshot, scheme=..., width=...) -> page."""
    return lambda snapshot, *args, **options: page_of(StrategyLab.page(snapshot), *args, drawn=".pl-card", **options)


def trained(**devices) -> FakeLab:
    lab = FakeLab(**devices)
    lab.run()
    lab.step(37)
    return lab


def test_every_rank_is_a_card_in_order_with_its_slice_and_addend(show):
    page = show(trained().page_snapshot())
    cards = page.locator(".pl-cards [role=radio]")
    names = cards.locator(".pl-hidden").all_text_contents()
    expected = ["true" if r == 5 else "false" for r in range(8)]
    assert [cards.nth(i).get_attribute("aria-checked") for i in range(cards.count())] == expected
    assert names == [
        f"rank {r}, at m{r // 4} k{r % 4}: holds [{8 * (r // 4)}:{8 * (r // 4) + 8}, :], slice {r // 4}, partial sum "
        f"{r % 4 + 1} of 4, no replica"
        for r in range(8)
    ]


@pytest.mark.exhaustive
def test_the_tour_waits_for_the_reader_and_is_off_after_one_click(show):
    """On a page without a kernel: the steps that it can take, in order; a click on something else does not count."""
    lab = StrategyLab(tour=True)
    page = show({**lab.page_snapshot(), **lab.how_shown()})
    told = page.locator(".pl-story")
    expect(told).to_contain_text("1 of 2: Hatched slices")
    page.get_by_role("radio", name=re.compile("^rank 5,")).click()  # it is selected already
    expect(told).to_contain_text("1 of 2")
    page.get_by_role("radio", name=re.compile("^rank 2,")).click()
    expect(told).to_contain_text("2 of 2: Partial sums have to be added up")
    page.locator("[data-tab=messages]").click()
    expect(told).to_contain_text("2 of 2")
    page.locator("[data-command=select_message]").nth(0).click()  # a slice that a rank takes of what it has
    expect(told).to_contain_text("Message 1 adds up nothing")
    page.locator("[data-command=select_message]").nth(2).click()
    expect(told).to_contain_text("Done.")
    told.get_by_role("button", name="close").click()
    expect(told).to_have_count(0)
    page.reload()
    page.locator(".pl-card").first.wait_for()
    expect(told).to_have_count(0)
    assert "pl-story" not in show(StrategyLab().page_snapshot()).locator(".pl-lab").inner_html()


@pytest.mark.exhaustive
def test_partial_values_are_hatched_and_replicas_are_not(show):
    lab = trained()
    partial = show(lab.page_snapshot())
    expect(partial.locator('.pl-card [fill*="hatch"]')).to_have_count(8)
    assert "Σ" in partial.locator(".pl-card").first.inner_text()
    lab.select_tensor("w2")
    whole = show(lab.page_snapshot())
    expect(whole.locator('.pl-card [fill*="hatch"]')).to_have_count(0)
    assert "2 copies" in whole.locator(".pl-card").first.inner_text()


@pytest.mark.exhaustive
def test_colour_is_the_slice(show):
    lab = trained()
    lab.select_tensor("x.for.matmul")
    page = show(lab.page_snapshot())
    fills = page.eval_on_selector_all(
        ".pl-card", "cards => cards.map(c => [c.dataset.slice, getComputedStyle(c.querySelector('.pl-block')).fill])"
    )
    by_slice = {}
    for number, fill in fills:
        by_slice.setdefault(number, set()).add(fill)
    assert len(by_slice) == 8 and all(len(v) == 1 for v in by_slice.values())
    assert len(set.union(*by_slice.values())) == 8


@pytest.mark.exhaustive
def test_the_lit_block_lies_where_the_slice_lies(show):
    lab = trained()
    lab.select_tensor("x.for.matmul")
    page = show(lab.page_snapshot())
    drawn = page.eval_on_selector_all(
        ".pl-card svg",
        """all => all.map(svg => { const [b, o] = ['.pl-block', '.pl-outline'].map(q => svg.querySelector(q));
           const v = (e, n) => Number(e.getAttribute(n)); const [w, h] = [v(o, 'width'), v(o, 'height')];
           return [v(b, 'y') / h, (v(b, 'y') + v(b, 'height')) / h,
                   v(b, 'x') / w, (v(b, 'x') + v(b, 'width')) / w]; })""",
    )
    for card, (top, bottom, left, right) in zip(lab.snapshot()["cards"], drawn, strict=True):
        (r0, r1), (c0, c1) = card["block"]
        assert [top * 16, bottom * 16, left * 32, right * 32] == pytest.approx([r0, r1, c0, c1], abs=0.02)


@pytest.mark.exhaustive
def test_the_keyboard_selects_a_rank_and_the_page_says_so(show):
    lab = trained()
    page = show(lab.page_snapshot())
    lab.select_rank(1)
    page.locator('.pl-card[aria-checked="true"]').focus()
    page.keyboard.press("ArrowUp")
    page.wait_for_selector('.pl-card[data-value="1"][aria-checked="true"]')
    assert page.evaluate("document.activeElement.dataset.value") == "1"
    expect(page.locator(".pl-cards [tabindex='0']")).to_have_count(1)
    expect(page.locator("[role=status]")).to_have_text(lab.snapshot()["status"])
    page.keyboard.press("End")
    page.wait_for_selector('.pl-card[data-value="7"][aria-checked="true"]')
    expect(page.locator(".pl-card.pl-team")).to_have_count(3)  # 4, 5 and 6 hold the other addends


@pytest.mark.exhaustive
def test_tensors_can_be_selected_offline_where_the_page_has_them(show):
    lab = trained()
    base = lab.page_snapshot()
    known = base["looks"]["tensor|phase"]
    base["looks"]["tensor|phase"] = {name: known[name] for name in ("matmul.partial|forward", "relu|forward")}
    page = show(base)
    options = page.eval_on_selector_all(
        "select[data-key=tensor] option:not([disabled])", "all => all.map(o => o.value)"
    )
    assert options == ["matmul.partial", "relu"]
    page.select_option("select[data-key=tensor]", "relu")
    page.wait_for_selector('.pl-card[data-slice="7"]')
    page.locator('.pl-edge[data-value="matmul.partial"]').focus()
    page.keyboard.press("Enter")
    expect(page.locator("select[data-key=tensor] option:checked")).to_have_text("out of matmul, partial sums")


@pytest.mark.exhaustive
@pytest.mark.parametrize("net", ["quickstart", "dense", "convnet", "transformer", "embedding"])
def test_the_labs_own_frames_show_offline_what_the_lab_would_show(show, net):
    """Rank, tensor, phase in any order: each shows `snapshot()` after the same commands. Long networks: every fifth."""
    lab = StrategyLab(net, devices=4)
    page = show(lab.page_snapshot())
    tensors = [t["id"] for t in lab.snapshot()["tensors"]][:: 5 if net in LONG else 1]
    for i, tensor in enumerate(tensors):
        phase, rank = ("forward", "backward")[i % 2], (i * 3) % 4
        page.select_option("select[data-key=tensor]", tensor)
        page.select_option("select[data-key=phase]", phase)
        page.locator(f'.pl-card[data-value="{rank}"]').click()
        lab.select_tensor(tensor)
        lab.select_phase(phase)
        lab.select_rank(rank)
        shot = lab.snapshot()
        expect(page.locator("[role=status]")).to_have_text(shot["status"])
        expect(page.locator(f'.pl-card[data-value="{rank}"]')).to_have_attribute("aria-checked", "true")
        assert page.locator(".pl-card-text").all_inner_texts() == [c["text"] for c in shot["cards"]]
        open_tab(page, "rank")
        layer = {t["label"]: t["layer"] for t in shot["tensors"]}
        shown = [
            h["text"]
            for h in shot["rank_detail"]["holds"]
            if not shot["graph"].get("layers") or layer[h["tensor"]] == layer_of(shot)
        ]
        assert page.locator(".pl-holds td:nth-child(2) code").all_inner_texts() == shown
        open_tab(page, "messages")
        groups = [" ".join(map(str, m["group"])) or "none: local" for m in shot["messages"]]
        assert page.locator(".pl-messages tbody td:nth-child(5)").all_inner_texts() == groups


def open_tab(page, name: str) -> None:
    tab = page.locator(f'[data-tab="{name}"]')
    if tab.get_attribute("aria-selected") != "true":
        tab.click()
    expect(tab).to_have_attribute("aria-selected", "true")


def layer_of(shot) -> str:
    return next(t["layer"] for t in shot["tensors"] if t["id"] == shot["tensor"])


@pytest.mark.quick(1)
@pytest.mark.parametrize("net", ["dense", "convnet", "transformer"])
def test_a_page_with_all_frames_is_small_enough_to_send(net):
    """Each picture once and each rank once, not each pair: under 1 MB for the largest labs."""
    assert len(StrategyLab.page(StrategyLab(net, 8).page_snapshot()).encode()) < 1_000_000


# ---- long networks ----


HELD = (  # what is never wider than its own box
    ".pl-card-text, .pl-card-sum, .pl-op-name, .pl-formula, .pl-lead-fact, .pl-button, .pl-memory-key, .pl-fold-head, "
    ".pl-chip, .pl-rank, .pl-rank h3, .pl-groups dd, .pl-holds td, .pl-graph"
)
# Labels, badges and nodes of the graph that lie on each other; names that are wider than their node.
CLASHES = """() => { const box = (e) => e.getBoundingClientRect(), found = [];
  const nodes = [...document.querySelectorAll('.pl-node')];
  const across = (a, b) => Math.min(a.right, b.right) - Math.max(a.left, b.left);
  const down = (a, b) => Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
  const meet = (a, b) => across(a, b) > 1 && down(a, b) > 1;
  for (const e of document.querySelectorAll('.pl-badge, .pl-edge-shape')) for (const n of nodes) {
    const a = box(e), b = box(n.querySelector('rect'));
    if (!n.contains(e) && across(a, b) > 6 && down(a, b) > 2) found.push(`${e.textContent} on ${n.textContent}`); }
  nodes.forEach((n, i) => {
    const own = box(n.querySelector('rect')), badge = n.querySelector('.pl-badge');
    for (const t of n.querySelectorAll(':scope > text'))
      if (box(t).width > own.width) found.push(`${t.textContent} wider than its node`);
    const splits = n.querySelector('.pl-splits');
    if (badge && splits && meet(box(badge), box(splits))) found.push(`${n.textContent}: badge on its splits`);
    nodes.slice(i + 1).forEach((m) => {
      if (meet(box(n), box(m))) found.push(`${n.textContent} on ${m.textContent}`); });
  });
  return found; }"""


@pytest.mark.exhaustive
@pytest.mark.parametrize("width", [1280, 904, 848, 662, 400])
@pytest.mark.parametrize("net", ["quickstart", "megatron", "dense", *LONG])
def test_graph_cards_and_panels_have_room_whatever_is_looked_at(show, net, width):
    """662, 904: a JupyterLab of 850, and of 1280 with its file browser. Only a narrow page's table scrolls sideways;
    the graph of a long network shows the layer that is looked at."""
    lab = StrategyLab(net, 8, None if net in LONG else "digits")
    page = show(lab.page_snapshot(), width=width)
    assert page.evaluate(FAULTS) == []
    open_tab(page, "rank")
    layers = lab.snapshot()["graph"].get("layers")
    for tensor in page.eval_on_selector_all("select[data-key=tensor] option", "all => all.map(o => o.value)")[::5]:
        page.select_option("select[data-key=tensor]", tensor)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, tensor
        if width > 640:
            assert page.evaluate(CUT, HELD + (", .pl-scroll, .pl-why" if width > 850 else "")) == [], tensor
        graph, node = page.locator(".pl-graph"), page.locator(".pl-node.pl-on > rect")
        if layers and node.count():
            (around,), (inside,) = boxes(graph), boxes(node)
            assert around["y"] - 1 <= inside["y"]
            assert inside["y"] + inside["height"] <= around["y"] + around["height"] + 1
    assert width < 662 or page.evaluate(CLASHES) == []
    open_tab(page, "messages")
    assert width < 850 or page.evaluate(CUT, ".pl-scroll") == []


@pytest.mark.exhaustive
def test_a_halo_s_strips_have_the_colour_of_the_slice_they_come_from(show):
    shot = StrategyLab("convnet").page_snapshot()
    page = show(shot)
    fill = "e => getComputedStyle(e).fill"
    own = page.eval_on_selector_all(".pl-card", f"cards => cards.map(c => ({fill})(c.querySelector('.pl-block')))")
    strips = page.eval_on_selector_all(
        ".pl-card", f"cards => cards.map(c => [...c.querySelectorAll('.pl-strip')].map({fill}))"
    )
    assert strips == [[own[strip["rank"]] for strip in card["strips"]] for card in shot["cards"]]
    name = page.locator('.pl-card[data-value="5"] .pl-hidden').inner_text()
    assert "[16:32, :, 7:8, :] of it from rank 4; [16:32, :, 16:17, :] of it from rank 6" in name
    open_tab(page, "key")
    assert "read from the neighbours" in page.locator(".pl-key").inner_text()


@pytest.mark.exhaustive
def test_the_layers_are_walked_by_keyboard_and_the_walked_to_unfolds(show):
    page = show(StrategyLab("transformer").page_snapshot())
    page.locator('.pl-flow[role=radio][tabindex="0"]').focus()
    expect(page.locator(".pl-flow[role=radio][tabindex='0']")).to_have_count(1)
    page.keyboard.press("ArrowRight")
    page.wait_for_selector('.pl-fold.pl-on[data-key="blocks.0.add1"] .pl-combo')
    expect(page.locator(".pl-fold .pl-combo")).to_have_count(1)  # the one that was open has folded
    page.locator('.pl-fold[data-key="blocks.0.mlp.fc1"] .pl-fold-head').press("Enter")
    page.wait_for_selector('.pl-fold.pl-on[data-key="blocks.0.mlp.fc1"]')
    assert page.locator(".pl-fold.pl-on .pl-op-name").all_inner_texts() == ["matmul", "bias_add", "activation.gelu"]
    page.locator(".pl-fold.pl-on .pl-chip", has_text="weight").click()
    chosen = page.locator("select[data-key=tensor] option:checked")
    expect(chosen).to_have_text("weight")  # in the group of its layer
    expect(chosen).to_have_attribute("title", "blocks.0.mlp.fc1.weight")


@pytest.mark.exhaustive
def test_three_cut_dims_are_drawn_in_panels(show):
    """n, c and h split in two each: eight slices, none on another."""
    lab = StrategyLab("convnet")
    lab.set_strategy("relu2.relu", "((2, 2, 2, 1),)")
    lab.select_tensor("relu2.relu")
    page = show(lab.page_snapshot())
    boxes = page.eval_on_selector_all(
        ".pl-whole .pl-block", "all => all.map(b => ['x', 'y', 'width', 'height'].map(n => Number(b.getAttribute(n))))"
    )
    assert len(boxes) == 8
    for i, (x, y, w, h) in enumerate(boxes):
        for u, v, p, q in boxes[i + 1 :]:
            assert min(x + w, u + p) - max(x, u) < 0.05 or min(y + h, v + q) - max(y, v) < 0.05
    expect(page.locator(".pl-lead-fact", has_text="dim 2 in panels")).to_have_count(1)


def test_a_refused_strategy_is_marked_and_explained_in_place(show):
    lab = trained()
    lab.set_strategy("matmul", "((2, 4), (2, 1))")
    page = show(lab.page_snapshot())
    box = page.locator(".pl-operator input").first
    assert box.input_value() == "((2, 4), (2, 1))" and box.get_attribute("aria-invalid") == "true"
    told = page.locator(f"#{box.get_attribute('aria-describedby')}").inner_text()
    assert "equally" in told and "((2, 4), (4, 1))" in told


def test_names_are_text_not_markup(show):
    snapshot = trained().snapshot()
    hostile = '<img src=x onerror="document.title=1"></script>'
    snapshot["title"] = snapshot["status_tensor"] = snapshot["operators"][0]["name"] = hostile
    snapshot["messages"][0]["reason"] = snapshot["cards"][0]["text"] = hostile
    page = show(snapshot)
    assert page.locator("img").count() == 0 and hostile in page.locator("[role=status]").inner_text()


@pytest.mark.quick(0)
@pytest.mark.parametrize("net", ["quickstart", "megatron", "dense", *LONG])
def test_cause_and_effect_stand_on_one_screen(show, net):
    """848 px, as in a JupyterLab of 1280 x 800, which leaves about 700 px to a cell's output: what can be set, the
    picture, loss and timeline; of a long network the graph scrolls in its own box."""
    page = show(StrategyLab(net).page_snapshot(), width=848 + 56)  # the margins of a page of its own
    lab = page.locator(".pl-lab").bounding_box()
    for shown in (".pl-run", ".pl-operators", ".pl-cards", ".pl-loss canvas", ".pl-timeline svg", ".pl-tabs"):
        box = page.locator(shown).bounding_box()
        assert box["y"] + box["height"] - lab["y"] <= (760 if net in LONG else 660), shown


@pytest.mark.exhaustive
def test_a_simple_lab_shows_one_operator_the_picture_and_the_loss(show):
    page = show(StrategyLab(simple=True).page_snapshot(), width=904)
    expect(page.locator(".pl-operator")).to_have_count(1)
    expect(page.locator(".pl-card")).to_have_count(8)
    expect(page.locator(".pl-loss canvas")).to_be_visible()
    for left_out in (".pl-graph", ".pl-timeline", ".pl-rank", ".pl-tabs", ".pl-preset", "select[data-key=data]"):
        expect(page.locator(left_out)).to_have_count(0)


@pytest.mark.exhaustive
def test_the_loss_is_drawn(show):
    page = show(trained().page_snapshot())
    expect(page.locator(".pl-lab[data-painted]")).to_have_count(1)
    inked = """(() => { const c = document.querySelector('canvas');
      const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;
      let n = 0; for (let i = 3; i < d.length; i += 4) n += d[i] > 0; return n; })()"""
    assert page.evaluate(inked) > 1500


@pytest.mark.exhaustive
def test_motion_stops_where_the_reader_asks_for_it(show):
    moving = show(trained().page_snapshot())
    still = show(trained().page_snapshot(), reduced_motion="reduce")
    duration = "getComputedStyle(document.querySelector('.pl-block')).transitionDuration"
    assert "0.18s" in moving.evaluate(duration) and "0.18s" not in still.evaluate(duration)


# ---- the page of a kernel that only records ----


@pytest.fixture
def live(recorded):
    """A live view of a fake lab that runs, and the fake: (page, lab)."""
    lab = trained()
    return recorded(lab), lab


def last_command(page):
    message = page.evaluate("sent.filter(m => m.command).at(-1)")
    return message and (message["command"], message["arguments"])


@pytest.mark.exhaustive
def test_a_strategy_is_chosen_from_the_list_by_keyboard(live):
    page, lab = live
    box = page.get_by_role("combobox", name="relu")
    box.focus()
    page.keyboard.press("ArrowDown")
    expect(box).to_have_attribute("aria-expanded", "true")
    options = page.locator(f"#{box.get_attribute('aria-controls')} [role=option]")
    choices = lab.snapshot()["operators"][1]["choices"]
    following = choices[choices.index("((2, 4),)") + 1]
    assert options.all_inner_texts() == choices
    page.keyboard.press("ArrowDown")  # from ((2, 4),), which is in force, to the next
    active = options.nth(choices.index(following)).get_attribute("id")
    expect(box).to_have_attribute("aria-activedescendant", active)
    page.keyboard.press("Enter")
    assert last_command(page) == ("set_strategy", ["relu", following])
    expect(box).to_have_attribute("aria-expanded", "false")


def test_an_open_list_stays_where_it_is_when_the_pointer_comes(live):
    """Else the pointer is over another strategy when the button goes down, and a click chooses that one."""
    page, _ = live
    page.locator("[data-drop=relu]").click()
    shown = page.locator(".pl-list:not([hidden])")
    expect(shown).to_have_count(1)
    before = shown.bounding_box()
    page.mouse.move(before["x"] + 20, before["y"] + 90)
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    page.evaluate("(snapshot) => put('snapshot', { ...snapshot })", live[1].snapshot())  # drawn anew
    page.wait_for_timeout(200)
    assert shown.bounding_box() == before


@pytest.mark.quick(1)
@pytest.mark.parametrize("n", [1, 2, 3])  # the first is out of sight: the list shows the one in force
def test_an_open_list_keeps_its_place_while_the_lab_below_it_gets_shorter(page_of, n):
    """A preview may make the lab shorter than the list needs: placed anew, it would jump above its field."""
    page = page_of(StrategyLab(devices=4).to_html(limits=Limits(18, 60)), width=904)
    page.locator("[data-drop=matmul]").click()
    shown, lab = page.locator(".pl-list:not([hidden])"), page.locator(".pl-lab")
    expect(page.locator(".pl-list [role=option]:nth-child(3) .pl-weights i:visible")).to_have_count(3)
    before, height = shown.bounding_box(), lab.bounding_box()["height"]
    box = page.locator(".pl-list [role=option]").nth(n).bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    expect(page.locator(".pl-previewing")).to_have_count(1)
    assert lab.bounding_box()["height"] != height
    after = shown.bounding_box()
    assert (after["x"], after["y"]) == (before["x"], before["y"])


@pytest.mark.exhaustive
def test_a_typed_strategy_is_sent_once_and_escape_takes_it_back(live):
    page, _ = live
    box = page.get_by_role("combobox", name="matmul", exact=True)
    box.fill("((2, 4), (2, 1))")
    page.keyboard.press("Escape")
    expect(box).to_have_value("((2, 4), (4, 1))")
    assert last_command(page) is None
    box.fill("((2, 4), (2, 1))")
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    assert page.evaluate("sent.filter(m => m.command).map(m => m.arguments)") == [["matmul", "((2, 4), (2, 1))"]]


@pytest.mark.exhaustive
def test_typing_survives_a_step_of_training(live):
    page, lab = live
    box = page.get_by_role("combobox", name="matmul2")
    box.fill("((8")
    lab.step()
    snapshot = lab.snapshot()
    page.evaluate("(p) => put('progress', p)", {"run": snapshot["run"], "loss": snapshot["loss"]})
    expect(page.get_by_role("progressbar")).to_have_attribute("aria-valuenow", "38")
    expect(box).to_have_value("((8")
    expect(box).to_be_focused()


def test_a_refused_choice_goes_back_to_what_is_in_force(live):
    page, _ = live
    page.select_option("select[data-key=net]", "dense")
    assert last_command(page) == ("set_net", ["dense"])
    page.evaluate("put('last_error', 'no such net <b>here</b>'); tell('msg:custom', {kind: 'answered', number: 1}, [])")
    expect(page.locator("select[data-key=net]")).to_have_value("quickstart")
    expect(page.get_by_role("alert")).to_contain_text("no such net <b>here</b>")


def test_losses_that_went_missing_are_asked_for(live):
    page, _ = live
    page.evaluate(
        "tell('msg:custom', {kind: 'loss', since: 40, names: ['parallel', 'single']}, [1, 2].map(() => new "
        "DataView(new ArrayBuffer(9), 1, 8)))"
    )
    assert page.evaluate("sent.at(-1)") == {"want_loss_since": 0}


def test_stop_is_one_press_away(live):
    page, _ = live
    page.get_by_role("button", name="Stop").press("Enter")
    assert last_command(page) == ("stop", [])


@pytest.mark.exhaustive
def test_a_message_and_its_backward_are_drawn_as_a_pair_and_named(show):
    lab = FakeLab()
    page = show(lab.page_snapshot())
    page.locator("[data-tab=messages]").click()
    page.get_by_role("button", name="message 3: select it").click()
    expect(page.locator(".pl-messages tr.pl-picked td").first).to_have_text("#3")
    expect(page.locator(".pl-messages tr.pl-dual td").first).to_have_text("#10")
    expect(page.locator(".pl-badge .pl-picked")).to_have_text("#3")
    expect(page.get_by_role("status").first).to_contain_text("its backward is #10, the AllReduce of the gradient")
    drawn = page.locator(".pl-pair .pl-pair-way text")
    assert drawn.all_text_contents() == ["#3 AllReduce, 512 B", "#10 AllReduce, 512 B"]


@pytest.mark.exhaustive
def test_the_numbers_of_a_slice_are_said_on_hover_and_with_the_arrow_keys(show):
    lab = StrategyLab()
    lab.show_numbers(True)
    page, numbers = show(lab.page_snapshot()), lab.snapshot()["numbers"]["values"]
    page.locator("[data-tab=numbers]").click()
    cells, said = page.locator("[data-heat]"), page.locator("[data-heat-said]")
    expect(cells).to_have_count(8 * 16)
    cells.nth(17).hover()  # row 1, column 1; rank 5 holds rows 8 to 15
    expect(said).to_have_text(re.compile(r"\[9, 1\] = "))
    assert float(said.inner_text().split(" = ")[1]) == pytest.approx(numbers[1][1], rel=6e-3)
    cells.nth(0).focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    expect(said).to_have_text(re.compile(r"\[10, 1\] = "))
    assert page.evaluate("document.activeElement.ariaLabel").startswith("[10, 1]: ")


@pytest.mark.exhaustive
def test_a_prediction_is_asked_for_before_the_answer_is_shown_and_a_click_gives_it(show):
    lab = FakeLab()
    lab.set_predict(True)
    page = show(lab.page_snapshot())
    expect(page.locator(".pl-predict")).to_contain_text("Click its edge in the graph")
    expect(page.locator(".pl-tabs")).to_have_count(0)  # covered
    page.locator(".pl-edge").filter(has_text="#3").locator(".pl-reach").click(force=True)
    expect(page.locator(".pl-predict .pl-good")).to_have_text("You: out of matmul, partial sums, right.")
    expect(page.locator(".pl-tabs")).to_have_count(1)
    page.get_by_role("checkbox", name="predict first").uncheck()
    expect(page.locator(".pl-predict")).to_have_count(0)
