"""How long a lab takes from a control to the new picture, in a real JupyterLab. Run by hand; not a test: nothing is
asserted.

    python -m tests.browser.measure_latency [repetitions]

Printed are the median and the 95th percentile, in milliseconds, of

- strategy    choosing from an operator's list until the cards and the status sentence of the new plan are drawn
- devices     pressing 4 or 8 until that many cards are drawn
- rank        an arrow key until the rank's panel is drawn
- gpt         pressing 4 or 8, and a rank, for the GPT: the largest network of the lab
- flight      a rank of the Redistribution Lab, in the middle of an animation; rest: the same where nothing moves
- stop        pressing Stop during a run with a live curve until Run can be pressed again: all ranks have ended, losses
              and times are shown

and the load of the machine before and after (the numbers mean little without it). The clock is the page's own: it
starts at the event that the control gets and ends in the first animation frame after which the page shows the expected
text.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.browser.jupyterlab import Notebook, Watch, chromium_page, jupyterlab, until, written

CELL = """from parallel_lab.lab.strategy.model import StrategyLab
from parallel_lab.lab.widgets import StrategyLabWidget
lab = StrategyLab(net="quickstart", devices=8, data="seed", steps=100_000_000)
panel = StrategyLabWidget(lab)
panel"""

GPT = CELL.replace('net="quickstart", devices=8, data="seed", steps=100_000_000', 'net="transformer", devices=8')
REDISTRIBUTION = """import parallel_lab as pl
pl.widgets.RedistributionLabWidget(pl.RedistributionLab(8, "8 x 1", "1 x 8"))"""

# Acts, then looks at every animation frame until the page says so; milliseconds. One frame more is waited for, so that
# it is painted.
TIMED = """async ([act, there]) => {
  const root = document.querySelector('.pl-lab');
  const doing = new Function('root', act), holds = new Function('root', 'return ' + there);
  const began = performance.now();
  doing(root);
  for (;;) {
    await new Promise(requestAnimationFrame);
    if (holds(root)) break;
    if (performance.now() - began > 20000) throw new Error('not seen within 20 s: ' + there);
  }
  await new Promise(requestAnimationFrame);
  return performance.now() - began;
}"""


def quantiles(times_ms: list[float]) -> str:
    ordered = sorted(times_ms)
    return (
        f"p50 {statistics.median(ordered):6.0f} ms   p95 "
        f"{ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))]:6.0f} ms   n {len(ordered)}"
    )


def measure(repetitions: int) -> dict[str, list[float]]:
    """{control: milliseconds of each repetition}."""
    names = ("strategy", "devices", "rank", "gpt devices", "gpt rank", "rest", "flight", "stop")
    found: dict[str, list[float]] = {name: [] for name in names}
    with tempfile.TemporaryDirectory() as folder, jupyterlab(Path(folder)) as url, chromium_page() as page:
        watch = Watch(page, url)
        written(Path(folder) / "latency.ipynb", CELL)
        book = Notebook(page, url, "latency.ipynb")
        book.run_cell(0)
        root = page.locator(".pl-lab").first
        root.wait_for()

        def timed(name: str, act: str, there: str) -> None:
            found[name].append(page.evaluate(TIMED, [act, there]))

        for i in range(repetitions):
            rows = (8, 4)[i % 2]
            page.locator("[data-drop=matmul]").click()
            choice = f"(({rows}, 1), (1, 1))"
            page.locator(f'[data-choose="{choice}"][data-operator=matmul]').wait_for()
            status = f"root.querySelector('[role=status]').textContent.includes('{rows} slices')"
            timed("strategy", f"root.querySelector('[data-choose=\"{choice}\"][data-operator=matmul]').click()", status)
        pressed(timed, "", repetitions)
        progress = root.get_by_role("progressbar", name="training steps")
        for _ in range(max(3, repetitions // 4)):
            page.get_by_role("button", name="Run", exact=True).click()
            if not until(
                lambda: (
                    int(progress.get_attribute("aria-valuenow")) > 50
                    and page.get_by_role("button", name="Stop").is_enabled()
                )
            ):
                raise SystemExit("the run did not get under way")
            time.sleep(0.5)
            timed(
                "stop",
                "root.querySelector('[data-command=stop]').click()",
                "!root.querySelector('[data-command=run]').disabled",
            )
        for name, cell in (("gpt", GPT), ("redistribution", REDISTRIBUTION)):
            written(Path(folder) / f"{name}.ipynb", cell)
            book = Notebook(page, url, f"{name}.ipynb")
            book.run_cell(0)
            page.locator(".pl-lab").first.wait_for()
            if name == "gpt":
                pressed(timed, "gpt ", repetitions)
        page.emulate_media(reduced_motion="no-preference")
        for i in range(repetitions):
            rank, card = 1 + i % 7, "root.querySelector('[data-side=after-%d]')"
            page.locator("[data-side=after-0]").click()
            page.locator("[data-side=after-0][aria-checked=true]").wait_for()
            for name in ("rest", "flight"):
                if name == "flight":
                    page.locator("[data-act=next]").click()
                    page.locator(".pl-ghost").first.wait_for()
                else:
                    page.evaluate("document.querySelector('[data-act=reset]').click()")  # off at the start
                    page.locator("[data-at='0']").wait_for()
                there = f"{card % (rank % 7 + 1 if name == 'flight' else rank)}"
                timed(name, f"{there}.click()", f"{there}.ariaChecked === 'true'")
        if book.errors() or watch.broken:
            raise SystemExit(f"{book.errors()} {watch.broken}")
    return found


def pressed(timed: Any, prefix: str, repetitions: int) -> None:
    """Other devices and other ranks of a Strategy Lab."""
    for i in range(repetitions):
        n = (4, 8)[i % 2]
        there = (
            f"root.querySelectorAll('.pl-card').length === {n} && root.querySelector('[aria-label=\"{n} "
            "devices\"]').ariaChecked === 'true'"
        )
        timed(f"{prefix}devices", f"root.querySelector('[aria-label=\"{n} devices\"]').click()", there)
    for i in range(repetitions):
        rank = i % 4
        timed(
            f"{prefix}rank",
            f"root.querySelectorAll('.pl-card')[{rank}].click()",
            f"root.querySelector('.pl-rank').ariaLabel === 'rank {rank}'",
        )


def main() -> None:
    repetitions = int(sys.argv[1]) if len(sys.argv) > 1 else 40
    before = os.getloadavg()[0]
    for name, times_ms in measure(repetitions).items():
        print(f"{name:12s} {quantiles(times_ms)}")
    print(f"load {before:.1f} before, {os.getloadavg()[0]:.1f} after, on {os.cpu_count()} cores")


if __name__ == "__main__":
    main()
