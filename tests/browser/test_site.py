"""`parallel-lab site`: lessons as pages, clicked through from file:// without a network."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import nbformat
import pytest

from parallel_lab.base.errors import DataFileError
from parallel_lab.cli.main import main
from parallel_lab.cli.site_command import AT_ONCE, _lesson_page, _together, chosen_lessons, write_site
from tests.browser.lab_page import MARKS, axe_faults, browser, sync_api

__all__ = ["browser"]  # the fixture

expect = sync_api.expect

pytestmark = MARKS

CODE = """# every kind of word
@wraps(f)
def total(x: list, *, by=None) -> "text":
    \"\"\"Docstring.\"\"\"
    assert x is not None and 1 in x or 2.5, f"{by!r:>4} \\n"
    return print(sum(i for i in range(0x10)))
"""
TABLE = "|  | a |\n|---|---|\n| b | 1 |\n\n<details><summary>more</summary>text</details>"


@pytest.mark.exhaustive
@pytest.mark.timeout(600)
def test_a_site_is_clicked_through_offline(browser, tmp_path):
    """From the index to a lesson, in whose lab a choice that was computed changes the picture; nothing is asked for."""
    out = tmp_path / "public"
    assert main(["site", str(out), "--lesson", "01", "06"]) == 0
    assert sorted(file.name for file in out.iterdir()) == [
        "01_quickstart.html",
        "06_chains.html",
        "index.html",
        "reference",
    ]
    assert [file.name for file in tmp_path.iterdir()] == ["public"]
    context, asked, broken = browser.new_context(offline=True), [], []
    page = context.new_page()
    page.on("request", lambda r: asked.append(r.url) if not r.url.startswith(("file:", "about:")) else None)
    page.on("pageerror", lambda e: broken.append(str(e)))
    page.on("console", lambda m: broken.append(m.text) if m.type == "error" else None)
    page.goto((out / "index.html").as_uri())
    assert axe_faults(page) == []
    page.get_by_role("link").nth(1).click()
    frame = page.frame_locator("iframe").nth(1)  # the first is the form of predictions
    expect(frame.get_by_text("No kernel here")).to_be_visible()
    frame.get_by_role("checkbox", name="predict first").uncheck()
    head = frame.locator(".pl-status")
    before = head.inner_text()
    frame.locator("[data-value=all_to_all]").click()
    expect(head).not_to_have_text(before)
    page.get_by_role("link", name="All lessons").click()
    page.get_by_role("link").first.click()
    frame = page.frame_locator("iframe").first
    frame.locator(".pl-lab[data-painted]").wait_for()
    while (skip := frame.get_by_role("button", name="show me")).count():  # it asks first
        skip.click()
    slider = frame.get_by_role("slider", name="step of the recorded run")  # the lab has trained
    slider.fill("2")
    expect(frame.locator(".pl-status")).to_contain_text("Step 3: loss")
    frame.locator("[data-command=set_devices][data-value='4']").click()
    expect(frame.locator(".pl-cards [role=radio]")).to_have_count(4)
    page.get_by_role("link", name="All lessons").click()
    page.get_by_role("link", name="The reference").click()
    page.wait_for_url("**/parallel_lab.html")  # loaded: what is typed earlier is lost
    page.get_by_role("searchbox").fill("squared_difference")
    first = page.locator(".search-result").first
    expect(first).to_contain_text("parallel_lab.ops.squared_difference", timeout=30_000)  # the index is large
    first.get_by_role("link").first.click()
    expect(page.locator("#squared_difference")).to_contain_text("(...) -> broadcast (...)")
    for path in ("01_quickstart.html", "reference/parallel_lab/graph/plan.html"):
        page.goto((out / path).as_uri())
        assert axe_faults(page) == []
    page.goto((out / "reference" / "parallel_lab.html").as_uri())
    page.get_by_role("link", name="All lessons").click()
    expect(page.get_by_role("heading", name="parallel_lab")).to_be_visible()
    context.close()
    assert not asked and not broken


@pytest.mark.quick(1)
@pytest.mark.parametrize(("own", "shown"), [({}, "needs a kernel"), ({"text/html": "<b>its page</b>"}, "its page")])
def test_a_widget_is_shown_as_its_page_or_says_that_it_needs_a_kernel(own, shown):
    """Once a widget without a page left a script behind that failed, and nothing to be seen."""
    view = {"application/vnd.jupyter.widget-view+json": {"model_id": "m"}, "text/plain": "IntSlider()", **own}
    cell = nbformat.v4.new_code_cell("w", outputs=[nbformat.v4.new_output("display_data", view)])
    page = _lesson_page(nbformat.v4.new_notebook(cells=[cell]))
    assert shown in page and "<script" not in page and "IntSlider" not in page


@pytest.mark.quick(1)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_fault_on_a_lesson(browser, tmp_path, scheme):
    """Names and brackets were black on black once; the empty head of a table's corner and lines that only a mouse could
    scroll were faults."""
    long = nbformat.v4.new_output("stream", text=f"{'a word ' * 80}\n")
    cells = [nbformat.v4.new_markdown_cell(f"# Lesson\n\n{TABLE}"), nbformat.v4.new_code_cell(CODE, outputs=[long])]
    file = tmp_path / "lesson.html"
    file.write_text(_lesson_page(nbformat.v4.new_notebook(cells=cells)), encoding="utf-8")
    context = browser.new_context(color_scheme=scheme)
    page = context.new_page()
    page.goto(file.as_uri())
    assert page.locator(".highlight span").count() > 30
    found = axe_faults(page)
    context.close()
    assert found == []


def test_a_folder_that_is_not_a_site_is_left_alone(tmp_path):
    (tmp_path / "public").mkdir()
    (tmp_path / "public" / "mine.txt").write_text("mine")
    with pytest.raises(DataFileError, match="was not made by parallel-lab site"):
        write_site(tmp_path / "public", [])
    assert [file.name for file in tmp_path.rglob("*.txt")] == ["mine.txt"] and len(list(tmp_path.iterdir())) == 1


def test_a_lesson_that_fails_leaves_the_old_site_and_no_part_of_the_new_one(tmp_path, monkeypatch):
    out = write_site(tmp_path / "public", [])
    old = (out / "index.html").read_text()

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("parallel_lab.cli.site_command._execute", fail)
    with pytest.raises(DataFileError, match="No space left"):
        write_site(out, chosen_lessons(["01"]))
    assert (out / "index.html").read_text() == old and [file.name for file in tmp_path.iterdir()] == ["public"]


def test_lessons_with_most_cells_begin_first_and_an_error_ends_the_others():
    """Also where a loop is running already, as in a notebook."""
    going, most, begun, ended = [0], [0], [], []

    def job(number, fails=False):
        async def run():
            begun.append(number)
            going[0] += 1
            most[0] = max(most[0], going[0])
            try:
                await asyncio.sleep(0.01 if fails else 0.02 * (6 - number))
                if fails:
                    raise OSError(28, "No space left on device")
                return number
            finally:
                going[0] -= 1
                ended.append(number)

        return run

    async def called_there():
        return _together([(cells, job(n)) for n, cells in enumerate((3, 40, 7, 40, 20))])

    with ThreadPoolExecutor(1) as other:
        assert other.submit(asyncio.run, called_there()).result() == [0, 1, 2, 3, 4]
    assert begun == [1, 3, 4, 2, 0] and most == [AT_ONCE] and going == [0]
    ended.clear()
    with pytest.raises(OSError, match="No space left"):
        _together([(9, job(-100)), (8, job(1, fails=True)), (7, job(2))])
    assert ended[0] == 1 and -100 in ended and going == [0]


def test_an_unknown_lesson_is_named(tmp_path, capsys):
    assert main(["site", str(tmp_path / "public"), "--lesson", "99"]) == 2
    assert "lesson '99'" in capsys.readouterr().err and not list(tmp_path.iterdir())
