"""The Expert Lab's page: a token's numbers without a kernel, experts that change places with one."""

from __future__ import annotations

import pytest

from parallel_lab.lab.experts.model import ExpertLab
from parallel_lab.lab.shared.lab_view import widget_of
from tests.browser.lab_page import FEW, MARKS, browser, live, page_of, sync_api

__all__ = ["browser", "live", "page_of"]  # the fixtures

expect = sync_api.expect
pytestmark = MARKS


@pytest.mark.quick(1)
@pytest.mark.parametrize("factor", ["dropless", "0.5"])
def test_a_page_without_a_kernel_shows_the_numbers_of_every_token_at_every_step(page_of, factor):
    lab = ExpertLab(factor=factor, bias_rate="0.05")
    page = page_of(lab.to_html(limits=FEW))
    page.locator("[data-tab=router]").click()
    for token, step in ((9, 24), (31, 0)):
        page.locator(f"[data-command=set_token][data-value='{token}']").click()
        page.locator(f"[data-command=set_step][data-value='{step}']").click()
        lab.set_token(token)
        rows = lab.snapshot()["sections"]["router"]["of"][str(step)]["rows"]
        expect(page.locator(".pl-section-router h3")).to_contain_text(f"token {token} of rank {token // 8}")
        shown = page.locator(".pl-section-router tbody tr").evaluate_all(
            "(all) => all.map((row) => [...row.cells].map((cell) => cell.textContent.trim()))"
        )
        for mine, cells in zip(rows, shown, strict=True):
            assert [mine[0], *mine[4:5]] == [cells[0], cells[4]]
            numbers = [(float(a), float(b)) for a, b in zip(mine[1:], cells[1:], strict=True) if a and "." in a]
            assert all(abs(a - b) < 2e-3 for a, b in numbers) and len(numbers) >= 3
    expect(page.locator("[data-command=pick]").first).to_be_disabled()


def test_two_clicks_swap_two_experts_and_dropped_rows_are_hatched(live):
    lab = ExpertLab(factor="0.5")
    page, _ = live(widget_of(ExpertLab)(lab), width=848)
    dropped = int((~lab.routing(24).kept).sum())
    assert page.locator(".pl-ex-hatched").count() == dropped > 0
    page.locator("[data-command=pick][data-value='7']").click()
    expect(page.locator("[data-command=pick][aria-pressed=true]")).to_have_text("expert 7")
    page.locator("[data-command=pick][data-value='0']").click()
    assert lab.order(24)[0] == 7 and lab.order(24)[7] == 0
    expect(page.locator("[data-command=pick]").first).to_have_text("expert 7")
    expect(page.locator("select[data-command=set_placement]")).to_have_value("hand")
