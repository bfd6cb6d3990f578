"""The Strategy Lab as text and page, read as strings: complete, escaped, offline; the palette's promise."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path

import numpy as np
import pytest

import parallel_lab
from parallel_lab.lab.strategy.model import StrategyLab
from parallel_lab.lab.strategy.sections import strategy_text

from .fake_lab import TENSORS, FakeLab

CSS = (Path(parallel_lab.__file__).parent / "lab" / "shared" / "lab.css").read_text(encoding="utf-8")


@pytest.mark.quick(9)
@pytest.mark.parametrize("devices", [1, 2, 4, 8])
@pytest.mark.parametrize("tensor", [None, *TENSORS])
def test_the_text_names_every_rank_with_its_slice(devices, tensor):
    lab = FakeLab(devices)
    if tensor:  # else the addends of the first product, where there are any
        lab.select_tensor(tensor)
    snapshot = lab.snapshot()
    rows = strategy_text(snapshot).split("\nSlices of ")[1].split("\n\n")[0].splitlines()[2 : 2 + devices]
    assert len(rows) == devices
    for row, card in zip(rows, snapshot["cards"], strict=True):
        assert row.split()[0] == str(card["rank"]) and card["text"] in row
        assert (f"partial sum {card['addend']} of {card['addends']}" in row) == bool(card["addend"])


def test_the_text_has_every_message_with_its_reason_and_says_what_is_predicted():
    snapshot = FakeLab().snapshot()
    part = strategy_text(snapshot).split("\nMessages and slices")[1].split("\n\n")[0]
    assert snapshot["messages"]
    for m in snapshot["messages"]:
        assert re.search(
            rf"#{m['number']} +{m['phase']} +{m['operator']} +{m['collective']} "
            rf"+{' '.join(map(str, m['group'])) or 'none'}",
            part,
        )
        assert f"#{m['number']} is here because {m['reason']} ({m['origin']})." in part
    assert "bytes predicted" in part and "time measured" in part


def test_the_text_tells_why_a_strategy_is_refused_and_which_is_in_force():
    lab = FakeLab()
    lab.set_strategy("matmul", "((2, 4), (2, 1))")
    text = strategy_text(lab.snapshot())
    assert "Refused for matmul: ((2, 4), (2, 1)). MatMul 'matmul' (networks.py:" in text
    assert "Still in force: ((2, 4), (4, 1))." in text


def test_the_text_compares_the_losses_with_the_bound():
    lab = FakeLab()
    lab.run()
    lab.step(37)
    snapshot = lab.snapshot()
    assert f"within the rounding bound {snapshot['loss']['bound']:.2g}" in strategy_text(snapshot)
    snapshot["loss"]["largest_difference"] = 0.25
    assert "largest difference 0.25" in strategy_text(snapshot)
    assert "BEYOND the rounding bound" in strategy_text(snapshot)


def test_a_page_carries_losses_that_are_not_numbers_as_gaps():
    lab = FakeLab()
    lab.run()
    lab.step(5)
    snapshot = lab.snapshot()
    snapshot["loss"]["parallel"][3] = float("nan")
    data = re.search(r'id="snapshot">(.*?)</script>', StrategyLab.page(snapshot), re.S).group(1)
    carried = json.loads(data)["loss"]["parallel"]
    assert carried[3] is None
    np.testing.assert_array_equal(np.float32(carried[:3]), lab.parallel[:3])


# ---- the palette, computed ----

# Linear RGB to OKLab in two steps (Ottosson 2020).
TO_LMS = np.array(
    [
        [0.4122214708, 0.5363325363, 0.0514459929],
        [0.2119034982, 0.6806995451, 0.1073969566],
        [0.0883024619, 0.2817188376, 0.6299787005],
    ]
)
TO_LAB = np.array(
    [
        [0.2104542553, 0.793617785, -0.0040720468],
        [1.9779984951, -2.428592205, 0.4505937099],
        [0.0259040371, 0.7827717662, -0.808675766],
    ]
)
# Machado, Oliveira, Fernandes 2009, severity 1.0, on linear RGB.
SIGHT = {
    "normal": np.eye(3),
    "protan": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deutan": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "tritan": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}


def linear(colour: str) -> np.ndarray:
    c = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)


def hues() -> list[str]:
    found = re.findall(r"\.pl-hue-(\d) \{ --hue: (#\w{6}); \}", CSS)
    assert [int(n) for n, _ in found] == list(range(8))
    return [colour for _, colour in found]


@pytest.mark.parametrize("sight", SIGHT)
def test_every_two_slice_hues_stay_apart(sight):
    """At least 0.08 in OKLab, four times the 0.02 that is just noticeable (Ottosson 2020)."""
    seen = [TO_LAB @ np.cbrt(TO_LMS @ np.clip(SIGHT[sight] @ linear(c), 0, 1)) for c in hues()]
    assert min(np.linalg.norm(a - b) for a, b in itertools.combinations(seen, 2)) > 0.08


def contrast(a: str, b: str) -> float:
    """WCAG 2.2, contrast ratio."""
    low, high = sorted(float(linear(c) @ (0.2126, 0.7152, 0.0722)) for c in (a, b))
    return (high + 0.05) / (low + 0.05)


def variables(theme: str) -> dict[str, str]:
    block = CSS.split('.pl-lab[data-theme="dark"] {' if theme == "dark" else ".pl-lab {")[1].split("}")[0]
    return dict(re.findall(r"--pl-([\w-]+): (?:var\([\w-]+, )?(#\w{6})", block))


@pytest.mark.parametrize("hue", range(8))
def test_the_index_printed_on_a_slice_is_readable(hue):
    assert contrast(variables("light")["ink"], hues()[hue]) >= 4.5


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("name", ["fg", "muted", "accent", "bad", "good"])
def test_text_is_readable_on_the_page_and_in_jupyterlab(theme, name):
    colours = variables(theme)
    jupyterlab = {"light": "#ffffff", "dark": "#212121"}[theme]  # --jp-layout-color1 of its two themes
    assert min(contrast(colours[name], colours["bg"]), contrast(colours[name], jupyterlab)) >= 4.5


def test_buttons_in_the_accent_colour_are_readable():
    for theme in ("light", "dark"):
        colours = variables(theme)
        assert contrast(colours["accent"], colours["on-accent"]) >= 4.5
