"""The first notebook and the Strategy Lab as a learner meets them: a real JupyterLab, a real Chromium, real worker
processes.

Each test opens a notebook with a kernel of its own. Deadlines are generous, and no speed is asserted.
"""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from tests.browser.jupyterlab import MARKS, Notebook, descendants, living, opened, shared_files, sync_api, until, world

__all__ = ["opened", "world"]  # the fixtures

expect = sync_api.expect

pytestmark = MARKS
FIRST, *OTHERS = NOTEBOOKS = sorted(path.name for path in (Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))
PATIENCE_MS = 60_000
LAB = """from parallel_lab.lab.strategy.model import StrategyLab
from parallel_lab.lab.widgets import StrategyLabWidget
lab = StrategyLab(net="quickstart", devices={devices}, data="seed", steps={steps})
panel = StrategyLabWidget(lab)
panel"""
PIDS = "import os\nfrom parallel_lab.processes.shm import get_pool\nprint(os.getpid(), *get_pool({devices}).pids)"


class Lab:
    """The Strategy Lab on the page, as a reader and a hand see it."""

    def __init__(self, page) -> None:
        self.page = page
        self.root = page.locator(".pl-lab").first
        self.root.wait_for()
        self.root.scroll_into_view_if_needed()
        self.status = self.root.locator("[role=status]")
        self.cards = self.root.locator(".pl-cards [role=radio]")

    def button(self, name: str):
        return self.root.get_by_role("button", name=name, exact=True)

    def strategy(self, operator: str):
        return self.root.get_by_role("combobox", name=operator, exact=True)

    def picture(self) -> list[str]:
        """What the cards say, for a comparison of before and after."""
        return self.cards.evaluate_all("cards => cards.map(c => c.textContent + c.querySelector('svg').outerHTML)")

    def step(self) -> int:
        """How many were done: by the bar of a run, or the slider over what it has recorded, "step 3 of 3"."""
        bar = self.root.locator("[aria-label='training steps'], [aria-label='step of the recorded run']")
        return int(bar.get_attribute("aria-valuenow") or bar.get_attribute("aria-valuetext").split()[1])

    def ink(self) -> int:
        """Pixels of the loss picture that are not empty."""
        return self.root.locator("canvas").evaluate(
            """c => { const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;
                      let n = 0; for (let i = 3; i < d.length; i += 4) n += d[i] > 0; return n; }"""
        )

    def reach(self, step: int) -> None:
        assert until(lambda: self.step() >= step), f"still at step {self.step()}"

    def enabled(self) -> list[str]:
        return [
            name
            for name in ("Run", "Pause", "Resume", "Stop", "Reset")
            if self.button(name).count() and self.button(name).is_enabled()
        ]


# ---- the notebook ----


def all_went_well(book: Notebook, name: str) -> list[dict]:
    """The code cells: all ran, and only those failed that are there to fail."""
    stored = json.loads((Path(__file__).parents[2] / "notebooks" / name).read_text())["cells"]
    meant = [c["id"] for c in stored if "raises-exception" in c["metadata"].get("tags", ())]
    cells = book.cells()
    assert [c["id"] for c in cells if c["execution_count"] is None] == []
    assert [c["id"] for c in cells if any(o["output_type"] == "error" for o in c["outputs"])] == meant
    return cells


@pytest.mark.exhaustive
@pytest.mark.timeout(400)
@pytest.mark.parametrize("name", OTHERS)
def test_every_lesson_runs_in_jupyterlab_and_no_lab_of_it_is_red(opened, name):
    book = opened(name)
    book.page.set_default_timeout(300_000)
    book.run_all()
    assert until(lambda: all(c["execution_count"] is not None for c in book.cells()), 300), "a cell did not end"
    book.wait_idle()
    all_went_well(book, name)
    assert book.page.locator(".pl-lab .pl-notice").count() == 0


@pytest.mark.exhaustive
def test_the_notebook_runs_from_top_to_bottom_and_shows_what_it_promises(opened):
    book = opened(FIRST)
    book.run_all()
    cells = all_went_well(book, FIRST)
    assert "step 100/100" in book.printed("cell-07")
    assert "all_reduce" in book.printed("cell-11") and "ranks 4 5 6 7" in book.printed("cell-11")
    assert "equally" in book.printed("cell-14") and "((2, 4), (4, 1))" in book.printed("cell-14")
    assert (
        "weight1" in book.printed("cell-17") and "mul1" in book.printed("cell-17") and "mul2" in book.printed("cell-17")
    )
    assert "rank 3" in book.printed("cell-20") and "SIGKILL" in book.printed("cell-20")
    tables = {c["id"]: o["data"]["text/html"] for c in cells for o in c["outputs"] if "text/html" in o.get("data", {})}
    told = {c["id"]: o["data"]["text/plain"] for c in cells for o in c["outputs"] if "text/plain" in o.get("data", {})}
    assert "rank 5" in tables["cell-09"] and "<table" in tables["cell-09"]
    assert "EQUAL: 5 of 5 tensors" in "".join(told["cell-22"]) and "Equal: 5 of 5" in "".join(tables["cell-22"])
    assert cells[0]["id"] == "cell-01"  # the lesson opens on the lab
    book.scroll_to(1)
    lab = Lab(book.page)
    lab.root.get_by_role("checkbox", name="predict first").uncheck()  # until then what gives answers away is covered
    expect(lab.cards).to_have_count(8)
    expect(lab.root.locator(".pl-verdict", has_text="within the rounding bound")).to_have_count(1)
    assert lab.step() == 100 and lab.ink() > 1000


# ---- the lab ----


@pytest.mark.exhaustive
def test_choosing_in_the_lab_changes_the_picture(opened):
    book = opened("choose.ipynb", LAB.format(devices=8, steps=100))
    book.run_cell(0)
    lab = Lab(book.page)
    expect(lab.cards).to_have_count(8)

    # devices, by mouse
    lab.root.get_by_role("radio", name="4 devices").click()
    expect(lab.cards).to_have_count(4)
    expect(lab.status).to_contain_text("2 slices, each still 2 addends on different ranks")
    lab.root.get_by_role("radio", name="8 devices").click()
    expect(lab.cards).to_have_count(8)
    expect(lab.cards.nth(5)).to_have_accessible_name(
        "rank 5, at m1 k1: holds [8:16, :], slice 1, partial sum 2 of 4, no replica"
    )

    # a strategy from the list
    before = lab.picture()
    lab.root.locator("[data-drop=matmul]").click()
    options = lab.root.get_by_role("listbox", name="legal strategies of matmul").get_by_role("option")
    options.nth(5).wait_for()
    options.filter(has_text="((8, 1), (1, 1))").click()
    expect(lab.cards.nth(5)).to_have_accessible_name("rank 5, at m5: holds [10:12, :], slice 5, no replica")
    assert lab.picture() != before
    expect(lab.strategy("matmul")).to_have_value("((8, 1), (1, 1))")
    expect(lab.status).to_contain_text("8 slices, each held by 1 rank")

    # a wrong one, typed: the reason in place, the picture stays
    held = lab.picture()
    lab.strategy("matmul").fill("((2, 4), (2, 1))")
    book.page.keyboard.press("Enter")
    expect(lab.strategy("matmul")).to_have_attribute("aria-invalid", "true")
    refusal = lab.root.locator(".pl-operator", has_text="MatMul").first.locator(".pl-refused")
    expect(refusal).to_contain_text("Both inputs must split the contracted dim equally")
    expect(refusal).to_contain_text("Still in force: ((8, 1), (1, 1))")
    expect(lab.strategy("matmul")).to_have_value("((2, 4), (2, 1))")
    assert lab.picture() == held

    # a good one clears it
    lab.strategy("matmul").fill("((2,4),(4,1))")
    book.page.keyboard.press("Enter")
    expect(lab.root.locator(".pl-refused")).to_have_count(0)
    expect(lab.strategy("matmul")).to_have_value("((2, 4), (4, 1))")

    # a rank, by keyboard
    lab.root.locator('.pl-cards [aria-checked="true"]').focus()
    book.page.keyboard.press("ArrowRight")
    expect(lab.cards.nth(4)).to_have_attribute("aria-checked", "true")  # from 3, where 4 devices had brought it
    expect(lab.root.get_by_role("group", name="rank 4")).to_contain_text("Rank 4 of 8")
    expect(lab.status).to_contain_text("2.75 KiB from rank 4 (predicted)")

    # a tensor and its gradient
    lab.root.locator("select[data-key=tensor]").select_option("w")
    expect(lab.status).to_contain_text("w (32, 16): ")
    lab.root.locator("select[data-key=phase]").select_option("backward")
    expect(lab.status).to_contain_text("gradient of w (32, 16): ")
    expect(lab.root.locator(".pl-card.pl-team")).to_have_count(1)

    # digits
    lab.root.locator("select[data-key=data]").select_option("digits")
    expect(lab.root.locator(".pl-operators")).to_contain_text("(32, 784) × (784, 64) → (32, 64)")
    expect(lab.status).to_contain_text("(784, 64)")
    assert book.errors() == []


@pytest.mark.exhaustive
def test_training_is_seen_and_steered_and_does_not_block_the_kernel(opened):
    state = "print(6 * 7, lab.progress()['run']['state'])"
    book = opened("train.ipynb", LAB.format(devices=2, steps=1_000_000), state, "import threading")
    book.run_cell(0)
    lab = Lab(book.page)
    expect(lab.button("Run")).to_be_enabled(timeout=PATIENCE_MS)
    assert lab.enabled() == ["Run"]
    expect(lab.root.locator(".pl-empty")).to_contain_text("Press Run")
    empty = lab.ink()

    lab.button("Run").click()
    lab.reach(5)
    expect(lab.button("Pause")).to_be_enabled()
    assert lab.enabled() == ["Pause", "Stop", "Reset"]
    lab.reach(lab.step() + 50)
    assert lab.ink() > empty + 500
    book.run_cell(1)
    assert book.printed("c1") == "42 running\n"

    lab.button("Pause").click()
    expect(lab.button("Resume")).to_be_enabled()
    book.page.wait_for_timeout(500)  # steps under way when it was pressed may still come in
    held = lab.step()
    book.page.wait_for_timeout(500)
    assert lab.step() == held

    lab.button("Resume").click()
    expect(lab.button("Pause")).to_be_enabled()
    lab.reach(held + 50)

    lab.button("Stop").click()
    expect(lab.button("Run")).to_be_enabled(timeout=PATIENCE_MS)
    stopped = lab.step()
    assert stopped >= held + 50
    expect(lab.root.locator(".pl-verdict").first).to_contain_text("within the rounding bound")
    expect(lab.root.locator(".pl-timeline h3")).to_contain_text("measured")
    lab.root.get_by_role("tab", name="Messages").click()
    counted = lab.root.locator(".pl-messages tfoot td").nth(1)
    expect(counted).to_have_text(lab.root.locator(".pl-messages tfoot td").nth(0).inner_text())

    lab.button("Reset").click()
    expect(lab.root.locator(".pl-empty")).to_contain_text("Press Run")
    expect(lab.root.get_by_role("progressbar", name="training steps")).to_have_attribute("aria-valuenow", "0")
    expect(lab.button("Run")).to_be_enabled()
    assert lab.enabled() == ["Run"] and book.errors() == []


# ---- interrupt and restart in the middle ----


def started(opened, name: str, *more: str) -> tuple[Notebook, Lab, list[int]]:
    """A notebook whose lab trains without end on two ranks: (notebook, lab, [kernel, workers...])."""
    book = opened(name, LAB.format(devices=2, steps=100_000_000), PIDS.format(devices=2), *more)
    book.run_cell(0)
    lab = Lab(book.page)
    lab.button("Run").click()
    lab.reach(5)
    book.run_cell(1)
    kernel, *workers = map(int, book.printed("c1").split())
    assert len(workers) == 2 and living(workers) == workers
    return book, lab, [kernel, *workers]


@pytest.mark.exhaustive
def test_a_restart_in_the_middle_leaves_no_worker_and_no_shared_memory(opened):
    before = shared_files()
    book, _, (kernel, *workers) = started(opened, "restart.ipynb", "print('alive')")
    below = descendants(kernel)
    assert set(workers) <= set(below)
    book.page.evaluate("() => window.jupyterapp.shell.currentWidget.context.sessionContext.restartKernel()")
    assert until(lambda: not living([kernel, *below])), f"still there: {living([kernel, *below])}"
    assert until(lambda: shared_files() <= before), shared_files() - before
    book.wait_idle()
    book.run_cell(2)
    assert book.printed("c2") == "alive\n"


ENDS = {
    "restarted": "() => window.jupyterapp.shell.currentWidget.context.sessionContext.restartKernel()",
    "shut down": "() => window.jupyterapp.shell.currentWidget.context.sessionContext.shutdown()",
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("how", [*ENDS, "killed"])
def test_a_paused_lab_says_without_a_click_that_its_kernel_is_gone(opened, how):
    book, lab, (kernel, *_) = started(opened, f"{how}.ipynb")
    lab.button("Pause").click()
    expect(lab.button("Resume")).to_be_enabled()
    book.page.wait_for_timeout(500)  # steps that were on their way to the page
    at = lab.step()
    if how in ENDS:
        book.page.evaluate(ENDS[how])
    else:
        os.kill(kernel, signal.SIGKILL)
    alert = lab.root.get_by_role("alert")
    expect(alert).to_contain_text("No kernel here", timeout=PATIENCE_MS)
    expect(alert).to_contain_text("Run the cell again")
    expect(lab.root.locator("[data-command]:enabled")).to_have_count(0)
    assert lab.enabled() == [] and lab.step() == at
    expect(lab.cards).to_have_count(2)  # the picture stays
    if how == "restarted":
        book.run_cell(0)  # a new view of a new lab
        expect(lab.root.get_by_role("alert")).not_to_contain_text("No kernel here", timeout=PATIENCE_MS)
        expect(lab.button("Run")).to_be_enabled()
        assert lab.enabled() == ["Run"]


@pytest.mark.exhaustive
def test_an_interrupt_in_the_middle_ends_the_cell_and_the_lab_goes_on(opened):
    before = shared_files()
    stop = "lab.stop()\nprint(lab.wait(60), lab.progress()['run']['state'])"
    book, lab, (_, *workers) = started(opened, "interrupt.ipynb", "print('waiting')\nlab.wait()", stop)
    book.run_cell(2, wait=False)
    assert until(lambda: book.printed("c2") == "waiting\n")
    book.command("notebook:interrupt-kernel")
    book.wait_idle()
    assert book.errors() == ["Interrupted: the waiting has ended, the run goes on; stop() ends it"]
    at = lab.step()
    lab.reach(at + 20)
    assert living(workers) == workers
    book.run_cell(3)
    assert book.printed("c3") == "True done\n"
    assert until(lambda: shared_files() <= before), shared_files() - before


@pytest.mark.exhaustive
def test_a_kernel_that_is_shut_down_in_the_middle_takes_its_workers_along(opened):
    before = shared_files()
    book, _, (kernel, *workers) = started(opened, "shutdown.ipynb")
    below = descendants(kernel)
    book.page.evaluate("() => window.jupyterapp.shell.currentWidget.context.sessionContext.shutdown()")
    assert until(lambda: not living([kernel, *below, *workers])), f"still there: {living([kernel, *below])}"
    assert until(lambda: shared_files() <= before), shared_files() - before
