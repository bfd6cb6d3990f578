"""The Hunt Lab on a page without a kernel: it answers, costs and judges as the hunt itself does."""

import pytest

from parallel_lab.lab.hunt.model import HuntLab
from tests.browser.lab_page import MARKS, browser, page_of

__all__ = ["browser", "page_of"]  # the fixtures

pytestmark = [*MARKS, pytest.mark.exhaustive]


def rows(page):
    """What was asked, as the page shows it."""
    found = page.locator(".pl-hunt-rest table").first.locator("tbody tr").all()
    return [[cell.inner_text() for cell in row.locator("th, td").all()] for row in found]


def test_a_page_is_played_as_the_lab_is(page_of):
    """A probe, a comparison, a wrong name, the right one, once more from the start: rows and words are the lab's."""
    lab = HuntLab("mlp", 8, "quiet", 0)
    page = page_of(HuntLab.page(lab.page_snapshot()), drawn=".pl-hunt-value")
    culprit, case = lab.hunt.case.culprit, lab.hunt.case
    mend = case.suspects[culprit].mutant.mend
    for suspect in ((culprit + 1) % 8, culprit):
        for command in ("probe", "compare", "tell"):
            if command == "tell":
                page.select_option("select[data-command=set_suspect]", str(suspect))
                page.select_option("select[data-command=set_mend]", mend)
                lab.set_suspect(suspect)
                lab.set_mend(mend)
            page.click(f"[data-command={command}]")
            getattr(lab, command)()
            shown = lab.snapshot()
            expected = [[str(cell) for cell in row] for row in shown["sections"]["asked"]["rows"]]
            assert rows(page) == expected and page.locator(".pl-status").inner_text() == shown["status"]
    page.click("[data-command=forget]")
    lab.forget()
    assert not rows(page) and page.locator(".pl-status").inner_text() == lab.snapshot()["status"]
    assert "all answers are in this page, scrambled, not locked" in page.locator(".pl-hunt-note").inner_text()


def test_a_look_that_there_is_not_cannot_be_asked_for(page_of):
    page = page_of(HuntLab.page(HuntLab("mlp", 4, "quiet", 2).page_snapshot()), drawn=".pl-hunt-value")
    assert page.locator("[data-command=compare]").is_enabled()
    page.click('[data-command=set_other][data-value="0"]')
    assert page.locator("[data-command=compare]").is_disabled() and page.locator("[data-command=probe]").is_enabled()
