"""The Explain Lab in a browser: a program is pasted, its lines answer; what is refused says why; a page alone."""

from __future__ import annotations

from parallel_lab.lab.explain.model import ExplainLab
from parallel_lab.lab.shared.lab_view import widget_of
from parallel_lab.lab.shared.replay import Limits
from tests.browser.lab_page import MARKS, axe_faults, browser, live, page_of, sync_api

__all__ = ["browser", "live", "page_of"]  # the fixtures

expect = sync_api.expect
pytestmark = MARKS
PROGRAM = """import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

mesh = init_device_mesh("cuda", (4,), mesh_dim_names=("tp",))
x = distribute_tensor(torch.ones(8, 16), mesh, [Shard(1)])
whole = x.redistribute(mesh, [Replicate()])
y = torch.fancy(whole)
"""


def test_a_program_is_pasted_and_its_lines_are_looked_at(live):
    lab = ExplainLab()
    page, view = live(widget_of(ExplainLab)(lab), width=848)
    field = page.locator("textarea[data-key=paste]")
    field.fill(PROGRAM)
    page.locator("[data-key=take]").click()
    expect(page.locator(".pl-status")).to_contain_text("rank 0 sends 1 all_gather: 128 B. 1 line not understood")
    expect(page.locator("select[data-key=set_example]")).to_have_value("own")
    expect(page.locator(".pl-section-program tr.pl-on")).to_contain_text("1 all_gather")
    page.locator("[data-key=line-8]").click()
    expect(page.locator(".pl-section-line")).to_contain_text("fancy")
    assert not axe_faults(page, ".pl-lab")
    assert page.evaluate("document.querySelector('.pl-lab').getBoundingClientRect().height") <= 655
    field.fill("x = (")
    field.press("Control+Enter")
    expect(page.locator(".pl-notice")).to_contain_text("line 1: 'x = (' is not Python")
    assert lab.found.program == PROGRAM and "not Python" in view.last_error
    lab.close()


def test_a_page_without_a_kernel_shows_its_program_and_follows_lines_and_examples(page_of):
    page = page_of(ExplainLab("torch_tp").to_html(limits=Limits(3, 20)), width=848)
    assert page.locator("textarea[data-key=paste]").is_disabled()
    page.locator("[data-key=line-18]").click()
    expect(page.locator(".pl-section-line")).to_contain_text("all_reduce over tp of float32 [32, 64]")
    page.locator("select[data-key=set_example]").select_option("torch_fsdp")
    expect(page.locator(".pl-status")).to_contain_text("7 all_gather, 4 reduce_scatter")
    assert not axe_faults(page, ".pl-lab")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
