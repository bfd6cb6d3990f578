"""A lab's page that computes: Python in a worker of the page, and the view that notebooks have.

    lab.to_html("OUT/strategy.html", live=True)          # in the folder that `parallel-lab site --live OUT` wrote
    lab.to_html("lab.html", live="https://school.example/lab/")

The page replays, as every page does. What it cannot replay it computes once its reader wants that: `live.js` starts a
worker with Pyodide and this package from the site, and hands over the settings that the page shows; `Live` answers.
Requests go to the site and to nothing else.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import urlsplit

from ..base.errors import ArgumentError, shorten
from .shared.lab_view import LabView, part_of, widget_of
from .shared.page import FRONT_END, LIVE, _json_in_html
from .shared.replay import plain, ready
from .widgets import lab_of_state

QUIET = "script-src 'unsafe-inline'; base-uri"

END = "</script>\n</body>"


def live_page(text: str, labs: Sequence[Any], address: str | bool) -> str:
    """A page of these labs that also computes.  address: of a live site, True: the folder of the page.

    Raises ArgumentError for anything else.
    """
    address = "./" if address is True else address
    found = urlsplit(address) if isinstance(address, str) else None
    fits = found is not None and found.scheme in ("", "http", "https") and address.endswith("/")
    if not fits or set(address) & set("'\";, "):
        raise ArgumentError(f"live={shorten(address)}", where="to_html", allowed='True, or "https://.../", a live site')
    place = f"{found.scheme}://{found.netloc}" if found.netloc else "'self'"
    allowed = f"'unsafe-inline' 'wasm-unsafe-eval' blob: {place}"
    script = f"script-src {allowed}; worker-src blob:; connect-src {place}; base-uri"
    states = [{**lab.state(), "record": None, "earlier": []} for lab in labs]
    by_place = {f"lab{n if n > 1 else ''}": state for n, state in enumerate(states, 1)}
    given = _json_in_html({"address": address, "states": by_place})
    parts = [(FRONT_END / "shared" / name).read_text(encoding="utf-8") for name in (*LIVE, "live.js")]
    begin, _, end = text.replace(QUIET, script).rpartition(END)
    data = f'<script type="application/json" id="live">{given}</script>\n'
    at = begin.rindex('<script type="module">')
    return f"{begin[:at]}{data}{begin[at:]}{chr(10).join(parts)}\n{END}{end}"


class Live:
    """A lab in a worker: what its view sends to a notebook goes to the page as JSON, bytes as base64.

    post   takes such a text;  state: of the lab, as JSON (`Lab.state`)
    """

    def __init__(self, post: Callable[[str], object], state: str) -> None:
        self._post = post
        self.lab = lab_of_state(json.loads(state), "page")
        self.view: LabView = widget_of(type(self.lab))(self.lab)
        kept = ("snapshot", "apart", "progress", "last_error", "loss_parallel", "loss_single")
        self._kept = (*kept, *map(part_of, self.view.apart))
        self.view.send = self._send
        self.view.observe(self._changed, names=list(self._kept))
        self._tell(traits={name: getattr(self.view, name) for name in self._kept})

    def receive(self, text: str) -> None:
        """A message of the page's: a command, or what it wants to know."""
        self.view._on_message(self.view, json.loads(text), [])

    def _changed(self, change: Any) -> None:
        self._tell(traits={change["name"]: change["new"]})

    def _send(self, content: Any, buffers: Sequence[bytes] | None = None) -> None:
        self._tell(message=content, buffers=list(buffers or ()))

    def _tell(self, **what: Any) -> None:
        self._post(json.dumps(ready(what), default=_plain, allow_nan=False))


def _plain(value: Any) -> Any:
    return base64.b64encode(value).decode() if isinstance(value, bytes) else plain(value)
