"""How fast a recorded run is stepped through, in Chromium: python -m tests.browser.measure_scrubbing [steps]

Each lab gets a run of 8 ranks whose recording has 1,000 steps (`stretched`: its own steps, again and again, with times
that differ). The slider is moved once per frame for two seconds, forwards and back; what is counted are the frames in
which the lab has drawn another step, and the main thread's own time for each of them: with other work on the machine
that is the number to read, 33 ms are 30 frames a second.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from parallel_lab.base.units import bytes_text
from parallel_lab.lab.fusion.model import FusionLab
from parallel_lab.lab.memory.model import MemoryLab
from parallel_lab.lab.pipeline.model import PipelineLab
from parallel_lab.lab.shared.lab import Lab
from parallel_lab.lab.shared.recording import Recording
from parallel_lab.lab.shared.replay import Limits
from parallel_lab.lab.strategy.model import StrategyLab
from tests.browser.lab_page import CHROMIUM, FLAGS, sync_api

LABS: dict[str, Callable[[], Lab]] = {
    "strategy": partial(StrategyLab, devices=8),
    "memory": partial(MemoryLab, "stack", 8),
    "fusion": partial(FusionLab, "chain", 8),
    "pipeline": partial(PipelineLab, stages=8, micro_batches=16),
}
# Move the slider once per frame, forwards and back, for two seconds: [frames with another picture in a second, in all]
MOVED = """async (name) => {
  const root = document.querySelector(".pl-lab"), slider = root.querySelector(`[data-scrub=${name}]`);
  const frame = () => new Promise(requestAnimationFrame), last = Number(slider.max), each = name === "at" ? 7 : 15;
  let at = 0, way = each, drawn = 0, before = Number(root.dataset.painted);
  const begun = performance.now();
  while (performance.now() - begun < 2000) {
    at += way;
    if (at > last || at < 0) { way = -way; at += 2 * way; }
    const input = root.querySelector(`[data-scrub=${name}]`);
    input.value = at;
    input.dispatchEvent(new Event("input", { bubbles: true }));
    await frame();
    const now = Number(root.dataset.painted);
    if (now !== before) drawn += 1;
    before = now;
  }
  return [drawn / ((performance.now() - begun) / 1000), drawn];
}"""


def stretched(found: Recording, steps: int) -> Recording:
    """As long a recording, of the same program: its steps, their last bits drawn anew."""
    rng, parts = np.random.default_rng(5), None
    for first in range(1, steps + 1, 100):
        count = min(100, steps + 1 - first)
        places = rng.integers(0, len(found.timed), count)
        kept = {n: getattr(found, n)[found.timed[places]] for n in ("losses", "sent", "held", "sums", "sizes", "took")}
        kept["sizes"] = kept["sizes"] * (1 + 1e-3 * rng.random(kept["sizes"].shape))
        kept["losses"] = kept["losses"] * (1 + 1e-3 * rng.random(kept["losses"].shape))
        kept["sums"] = np.repeat(rng.integers(0, 2**32, (count, 1, kept["sums"].shape[2])), found.ranks, 1)
        times = np.sort(found.times[places] + rng.integers(0, 64, (count, 1, 1)), axis=2)
        part = replace(
            found, first=first, taken=count, every=1, every_times=1, steps=np.arange(first, first + count),
            timed=np.arange(count), times=times, differs=(), **kept,
        )  # fmt: skip
        parts = part if parts is None else parts.followed_by(part)
    return parts


def busy_s(tools: Any) -> float:
    """What the page's main thread has worked so far."""
    return next(
        one["value"] for one in tools.send("Performance.getMetrics")["metrics"] if one["name"] == "TaskDuration"
    )


def measured(steps: int = 1000) -> None:
    with sync_api.sync_playwright() as play, tempfile.TemporaryDirectory() as folder:
        browser = play.chromium.launch(executable_path=CHROMIUM, headless=True, args=FLAGS)
        for name, make in LABS.items():
            lab = make()
            getattr(lab, "run_simulated", getattr(lab, "run", None))()
            if not lab.wait(120):
                lab.stop()
                lab.wait()
            lab._run.recording = found = stretched(lab.recording, steps)
            size = len(json.dumps(found.packed, separators=(",", ":")))
            page = browser.new_context(viewport={"width": 848, "height": 900}).new_page()
            page.goto(lab.to_html(Path(folder, f"{name}.html"), limits=Limits(2)).as_uri())
            page.locator("[data-scrub=at]").wait_for()
            page.locator("[data-scrub=at]").fill("3")
            tools = page.context.new_cdp_session(page)
            tools.send("Performance.enable", {"timeDomain": "threadTicks"})
            for slider, what in (("at", "steps"), ("moment", "moments")):
                before = busy_s(tools)
                rate, drawn = page.evaluate(MOVED, slider)
                each = 1000 * (busy_s(tools) - before) / drawn
                print(f"{name}, over {what}: {rate:.0f} frames/s, {each:.1f} ms of its thread for each", flush=True)
            print(f"{name}: log {bytes_text(size)}, {found.said}", flush=True)
            lab.close()
        browser.close()


if __name__ == "__main__":
    measured(*map(int, sys.argv[1:2]))
