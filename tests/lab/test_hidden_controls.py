"""A teacher hides single controls of any lab, by an argument, a file or a link; the lab then refuses what they do."""

from __future__ import annotations

import pytest

import parallel_lab as pl
from parallel_lab.base.errors import ArgumentError, DataFileError
from parallel_lab.lab.shared.lab_view import widget_of
from parallel_lab.lab.shared.settings import control_of
from parallel_lab.lab.widgets import LABS
from tests.browser.lab_page import CHROMIUM

HIDDEN = {  # of each lab a setting, and one of its other commands with arguments of the right types
    "StrategyLab": ("preset", ["set_preset", "batch"], ["run"]),
    "CollectiveStepper": ("kind", ["choose_kind", "broadcast"], ["next"]),
    "FusionLab": ("mode", ["set_mode", "all"], ["show_best"]),
    "MemoryLab": ("level", ["set_level", "off"], ["find_par"]),
    "PipelineLab": ("schedule", ["set_schedule", "gpipe"], ["search"]),
    "RedistributionLab": ("want", ["set_want", "2 x 4"], ["back"]),
    "RecomputeLab": ("cap", ["set_cap", 30], ["toggle", 1]),
    "CostLab": ("ranks", ["set_ranks", 4], ["set_size", 1024]),
    "SearchLab": ("mode", ["set_mode", "beam"], ["run"]),
    "ExpertLab": ("ep", ["set_ep", 2], ["pick", 1]),
    "RunLab": ("run_id", ["set_run_id", "titan-8b-cp1"], ["set_links", "0.5"]),
    "RosettaLab": ("mesh", ["set_mesh", "8"], ["set_form", "alpa", "RR"]),
    "ExplainLab": ("example", ["set_example", "jax_jit"], ["set_program", "x = 1"]),
    "HuntLab": ("seed", ["set_seed", 2], ["probe"]),
    "ContextLab": ("way", ["set_way", "zigzag"], ["set_step", 1]),
}


def test_every_lab_has_a_row():
    assert HIDDEN.keys() == LABS.keys()


@pytest.mark.quick(3)
@pytest.mark.parametrize("name", HIDDEN)
def test_what_is_hidden_is_refused_and_stays_so_in_files_and_links(name, tmp_path):
    named, *calls = HIDDEN[name]
    controls = f"-{named},-{control_of(calls[1][0])}"
    lab = getattr(pl, name)(controls=controls)
    before = lab.calls()
    file = lab.save(tmp_path / "lab.json")
    for one in (lab, lab.branch(), pl.open_lab(file), pl.open_lab(lab.link("page.html")), type(lab).open(file)):
        assert one.controls == controls and set(one.hidden) >= {call[0] for call in calls}
        for command, *arguments in calls:
            with pytest.raises(ArgumentError, match="is hidden"):
                getattr(one, command)(*arguments)
        assert one.calls() == before
    view = widget_of(type(lab))(lab)
    assert not view.command(*calls[0]) and "is hidden" in view.last_error
    assert view.snapshot["hidden"] == lab.hidden
    view.close()
    assert f"Hidden here: {controls.replace('-', '').replace(',', ', ')}." in lab.to_text()
    whole = getattr(pl, name)()
    assert not whole.hidden and "controls" not in whole.state() and "controls" not in whole.link()


@pytest.mark.parametrize(
    "controls", ["preset", "-presets", "-preset;-run", "-", "-stop", "+preset", "-preset,,-run", 7]
)
def test_a_name_that_is_not_there_is_refused_with_those_that_are(controls):
    with pytest.raises(ArgumentError, match=r"controls=.*(preset, phase.*fit_machine|text)"):
        pl.StrategyLab(controls=controls)


def test_a_file_and_a_link_with_other_names_are_refused():
    lab = pl.CostLab()
    with pytest.raises(DataFileError, match="of kind, ranks"):
        pl.open_lab(lab.link() + "&controls=-preset")
    with pytest.raises(DataFileError):
        pl.CostLab.of_state({**lab.state(), "controls": ["-ranks"]})
    assert pl.open_lab(lab.link() + "&controls=-set_ranks&more=1").controls == "-ranks"


def test_others_go_on_by_the_way_that_is_left():
    lab = pl.CollectiveStepper(controls="-to")
    lab.next()
    assert lab.at == 1
    with pytest.raises(ArgumentError, match="to is hidden"):
        lab.to(3)


@pytest.mark.exhaustive
@pytest.mark.browser
@pytest.mark.skipif(not CHROMIUM, reason="no chromium")
def test_a_link_to_a_page_hides_controls_there(tmp_path):
    from playwright.sync_api import expect

    from tests.browser.jupyterlab import chromium_page

    page_of = pl.CostLab().to_html(tmp_path / "lab.html").as_uri()
    with chromium_page() as page:
        page.goto(page_of)
        expect(page.locator("[data-command=set_ranks]").first).to_be_visible()
        page.goto("about:blank")
        page.goto(f"{page_of}#controls=-ranks")
        expect(page.locator("[data-command=set_kind]").first).to_be_visible()
        expect(page.locator("[data-command=set_ranks]").first).to_be_hidden()
        page.locator("[data-command=set_kind]").nth(1).click()
        page.wait_for_url("**controls=-ranks*state=**")
        expect(page.locator("[data-command=set_ranks]").first).to_be_hidden()
        page.goto("about:blank")
        page.goto(f"{page_of}#controls=-rank")
        expect(page.locator(".pl-notice")).to_contain_text("no control -rank: -kind, -ranks")
