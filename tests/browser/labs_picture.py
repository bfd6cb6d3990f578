"""The README's picture of the labs: below the twelve that are there, a row of three, each cut from the lab's own page.

    python -m tests.browser.labs_picture         draws the last row of data/images/labs.png anew, in at most 256 colours

The first four rows are kept: they show their labs as they open.
"""

from __future__ import annotations

import base64
import os
import shutil
import struct
import zlib
from collections import Counter

import numpy as np
from playwright.sync_api import Page, sync_playwright

from parallel_lab.lab.explain.model import ExplainLab
from parallel_lab.lab.hunt.model import HuntLab
from parallel_lab.lab.runs.model import RunLab
from tests.house.source import ROOT

PICTURE = ROOT / "data" / "images" / "labs.png"
KEPT = 942  # px of the picture: four rows of cards, 232 px each
# title: lab, width of its page, what is cut from it (left, top of the table's head; width, height)
CARDS = {
    "13 Hunt": (HuntLab, 848, ".pl-section-graph thead", (0, 0, 340, 200)),
    "14 Run": (RunLab, 848, ".pl-section-waterfall thead", (0, 0, 340, 196)),
    "15 Explain": (ExplainLab, 520, ".pl-section-program thead", (0, 0, 456, 186)),
}
STYLE = """body { margin: 0; background: #fcfcfc; font: 13px "DejaVu Sans", sans-serif }
img.all { display: block; width: 1020px; height: 942px; object-fit: cover; object-position: top }
section { position: absolute; top: 942px; width: 320px; height: 216px; box-sizing: border-box;
  border: 1px solid #d0d4da; border-radius: 8px; background: #fcfcfc; overflow: hidden }
h2 { margin: 8px 10px 6px; font-size: 16px; line-height: 18px }
section img { display: block; width: 296px; margin: auto }"""
PIXELS = """async (data) => { const image = new Image();
  await new Promise((done, no) => { image.onload = done; image.onerror = no; image.src = data; });
  const pen = new OffscreenCanvas(image.width, image.height).getContext("2d"); pen.drawImage(image, 0, 0);
  const raw = pen.getImageData(0, 0, image.width, image.height).data; let text = "";
  for (let at = 0; at < raw.length; at += 32768) text += String.fromCharCode(...raw.subarray(at, at + 32768));
  return [image.width, image.height, btoa(text)]; }"""


def data_url(png: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"


def with_palette(pixels: np.ndarray) -> bytes:
    """A PNG of (height, width, 3) bytes: its 255 most frequent colours, others as the nearest of them."""
    height, width, _ = pixels.shape
    colours, numbers = np.unique(pixels.reshape(-1, 3), axis=0, return_inverse=True)
    most = [n for n, _ in Counter(numbers.ravel().tolist()).most_common(255)]
    table = colours[most].astype(int)
    nearest = np.array([np.abs(table - colour).sum(axis=1).argmin() for colour in colours.astype(int)], np.uint8)
    rows = np.pad(nearest[numbers].reshape(height, width), ((0, 0), (1, 0)))  # a filter of none before each row

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0))
    parts = head + chunk(b"PLTE", table.astype(np.uint8).tobytes()) + chunk(b"IDAT", zlib.compress(rows.tobytes(), 9))
    return b"\x89PNG\r\n\x1a\n" + parts + chunk(b"IEND", b"")


def cut(page: Page, title: str) -> bytes:
    """The part of a lab's page that stands for it."""
    lab, width, place, (left, top, wide, high) = CARDS[title]
    page.set_viewport_size({"width": width, "height": 1000})
    page.set_content(lab().to_html())
    box = page.locator(place).first.bounding_box()
    assert box is not None, place
    return page.screenshot(clip={"x": box["x"] + left, "y": box["y"] + top, "width": wide, "height": high})


def main() -> None:
    chromium = os.environ.get("PLAB_CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(device_scale_factor=1)
        cards = [
            f'<section style="left:{left}px"><h2>{title}</h2><img src="{data_url(cut(page, title))}"></section>'
            for title, left in zip(CARDS, (14, 349, 685), strict=True)
        ]
        page = browser.new_page(viewport={"width": 1020, "height": KEPT + 232})  # without the labs' policy
        page.set_content(
            f'<style>{STYLE}</style><img class="all" src="{data_url(PICTURE.read_bytes())}">{"".join(cards)}'
        )
        page.wait_for_function("[...document.images].every((image) => image.complete)")
        width, height, text = page.evaluate(PIXELS, data_url(page.screenshot()))
        browser.close()
    pixels = np.frombuffer(base64.b64decode(text), np.uint8).reshape(height, width, 4)[:, :, :3]
    PICTURE.write_bytes(with_palette(pixels))
    print(f"{PICTURE}: {width} x {height}, {PICTURE.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
