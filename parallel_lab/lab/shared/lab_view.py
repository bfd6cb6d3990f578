"""The widget of any lab: it shows `lab.snapshot()` and turns what the learner does into commands of the model.

    FusionLabWidget = widget_of(FusionLab)
    widget = FusionLabWidget(lab)       # `lab` works without a widget, and several widgets may show one lab
    widget                              # last line of a cell

What goes to the page: `snapshot` (all but the parts that change often or are sent apart), `progress` (the former),
`part_timeline` and the like (the latter, where they have changed), the loss curves of a training as float32 bytes, and,
during a run, binary messages with the losses that are new, at most 30 a second. Programs are sent once a page has asked
for them, {"want_code": true}: they are large, and change with every setting; what a choice would lead to (what_if.py),
for {"what_if": ["set_mode", "each"], "parts": [...]}. What comes back: messages {"command":
"move_cut", "arguments": [4, 6], "number": 7}, each answered by {"kind": "answered", "number": 7, "refused": False}.

Threads: the model may report changes from any thread. No lock is held while the model is called; one thread at a time
publishes, and a change reported meanwhile makes it publish once more, so what is shown is never older than the last
report.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import threading
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from ...base.driver import DRIVER
from ...base.errors import ParallelLabError, escape
from .lab import Lab
from .page import lab_page
from .replay import CURVES, WHOLE, limits_in_a_cell
from .running import RunsOneThing
from .what_if import WeighsChoices

try:
    import anywidget
    import traitlets
except ImportError as error:  # pragma: no cover - the environment file lists it
    from ...base.errors import MissingPackage

    what = f"The labs' widgets need {error.name}, which is not installed. Install the packages of environment.yml."
    raise MissingPackage(what) from error

INTERVAL_S = 1 / 30  # between two publications of progress and losses
CURVE_INTERVAL_S = 1.0  # between two copies of the whole curves into the kept state; messages carry what is newer


class LabView(anywidget.AnyWidget):
    """A view of a headless model; several may show one. `widget_of` makes a class of it for each lab.

    snapshot     what is shown, without what changes often or is sent apart; the page's copy
    apart        names of the parts that are sent apart, each in a trait of its own
    progress     what changes often: always the newest
    last_error   text of the last command that was refused, or None; cleared by the next command that succeeds

    `close()` ends the subscription; the model lives on.
    """

    model_type: ClassVar[type[Lab]]

    snapshot = traitlets.Dict().tag(sync=True)
    apart = traitlets.List().tag(sync=True)
    progress = traitlets.Dict().tag(sync=True)
    last_error = traitlets.Unicode(None, allow_none=True).tag(sync=True)
    loss_parallel = traitlets.Bytes(b"").tag(sync=True)
    loss_single = traitlets.Bytes(b"").tag(sync=True)

    def __init__(self, lab: Any = None, **kwargs: Any) -> None:
        super().__init__(apart=list(self.model_type.apart), **kwargs)
        self._lab = lab = self.model_type() if lab is None else lab
        self._has_losses = hasattr(lab, "loss_arrays")
        self._command_lock = threading.Lock()  # commands of several views, one after another; never held by a publisher
        self._state_lock = threading.Lock()  # guards the fields below, for a few instructions at a time
        self._publishing = self._again = self._whole = self._closed = self._commanding = False
        self._wants_code = False
        self._timer: Any = None
        self._published_at = self._curves_at = -float("inf")
        self._sent_steps = 0
        self.on_msg(self._on_message)
        self._unsubscribe: Callable[[], Any] | None = lab.on_change(self._on_change)
        self._publish(whole=True)

    @property
    def lab(self) -> Any:
        """The model behind this view."""
        return self._lab

    @property
    def shown(self) -> dict[str, Any]:
        """All that the page has, in one."""
        return {**self.snapshot, **{name: getattr(self, part_of(name)) for name in self.apart}, **self.progress}

    # ---- from the page to the model ----

    def _on_message(self, _widget: Any, content: Any, _buffers: Any) -> None:
        if not isinstance(content, Mapping):
            return
        if "want_code" in content:
            self._wants_code = True
            self._publish(whole=True)
            return
        if "what_if" in content:  # a row of an open list, or where one points in it
            self.send(self._what_if(content["what_if"], content.get("parts") or ()))
            return
        if "want_plotly" in content:
            self.send({"kind": "plotly"}, _plotly_script())
            return
        if "want_loss_since" in content:  # a view that joined late or missed a message
            self._send_losses(max(0, int(content["want_loss_since"])))
            return
        done = False
        try:
            done = self.command(content.get("command"), *content.get("arguments") or ())
        finally:
            if not self._closed:
                self.send({"kind": "answered", "number": content.get("number"), "refused": not done})

    def command(self, name: Any, *arguments: Any) -> bool:
        """Apply one command to the model, as a control does; whether it succeeded. A ParallelLabError's text becomes
        `last_error`. Any other exception is a defect: its text is shown too, and it is raised.
        """
        try:
            self.model_type.check_command(name, arguments, type(self).__name__)
            with self._command_lock:
                self._commanding = True
                try:
                    getattr(self._lab, name)(*arguments)
                finally:
                    self._commanding = False
        except ParallelLabError as error:
            self._refuse(str(error))
            return False
        except Exception as error:
            self._refuse(f"{name}: {type(error).__name__}: {error}")
            raise
        self.last_error = None
        self._publish(whole=True)
        return True

    def _what_if(self, call: Any, parts: Sequence[str]) -> dict[str, Any]:
        """What a choice would lead to: its weight and these parts of the snapshot, or {"refused": why}."""
        lab = self._lab
        found: dict[str, Any] = {"kind": "what_if", "call": call, "stands": "", "found": {"refused": "not weighed"}}
        if isinstance(lab, WeighsChoices) and isinstance(call, list) and call[:1] and call[0] in lab.weighed:
            found["stands"], weight = lab.stands(), lab.weigh(*call)
            shot = lab.what_if(*call).snapshot() if parts and not isinstance(weight, str) else {}
            known = {name: shot[name] for name in parts if name in shot}
            found["found"] = {"refused": weight} if isinstance(weight, str) else {"weight": weight, **known}
        return found

    def _refuse(self, text: str) -> None:
        self.last_error = text
        self._publish(whole=True)

    # ---- from the model to the page ----

    def _on_change(self, kind: str = "picture") -> None:
        """Called by the model in any thread. Pictures go out at once, losses every INTERVAL_S, the last ones always."""
        if self._commanding:  # the end of every command publishes everything, once
            return
        if kind != "loss":
            self._publish(whole=True)
            return
        with self._state_lock:
            if self._closed or self._timer is not None:
                return
            wait_s = self._published_at + INTERVAL_S - time.monotonic()
            if wait_s > 0:
                self._timer = DRIVER.later(wait_s, self._on_timer)
                return
        self._publish()

    def _on_timer(self) -> None:
        with self._state_lock:
            self._timer = None
        self._publish()

    def _publish(self, *, whole: bool = False) -> None:
        with self._state_lock:
            self._whole = self._whole or whole
            if self._closed or self._publishing or _kernel_ends():
                self._again = True
                return
            self._publishing = True
        try:
            while True:
                with self._state_lock:
                    self._again, whole, self._whole = False, self._whole, False
                    self._published_at = time.monotonic()
                self._show(whole)
                with self._state_lock:
                    if not self._again or self._closed:
                        self._publishing = False
                        return
        except BaseException:
            with self._state_lock:
                self._publishing = False
            raise

    def _show(self, whole: bool) -> None:
        """Bring traits and views to the model's present state; `whole` says that more than `often` may have changed."""
        often = self.model_type.often
        shot = self._lab.snapshot() if whole else self._lab.progress()
        now = {name: shot[name] for name in often}
        if "loss" in now:
            now["loss"] = {name: value for name, value in now["loss"].items() if name not in CURVES}
        with self.hold_sync():
            if whole:
                for name in self.apart:
                    setattr(self, part_of(name), shot[name])
                kept = {name: value for name, value in shot.items() if name not in often and name not in self.apart}
                if not self._wants_code and "sections" in kept:
                    kept["sections"] = _without_code(kept["sections"])
                stands = {"stands": self._lab.stands()} if isinstance(self._lab, WeighsChoices) else {}
                self.snapshot = {**kept, **self._lab.how_shown(), **stands}
            self.progress = now
        if self._has_losses:
            self._show_losses(whole, now["loss"]["steps"])

    def _show_losses(self, whole: bool, steps: int) -> None:
        now = time.monotonic()
        if whole or now - self._curves_at >= CURVE_INTERVAL_S:
            self._curves_at = now
            curves = self._losses(0)
            with self.hold_sync():
                self.loss_parallel, self.loss_single = (curves[name].tobytes() for name in CURVES)
        # A new run may have as many steps as the old one: where more than losses has changed, all of them are sent.
        self._send_losses(0 if whole or steps < self._sent_steps else self._sent_steps)

    def _losses(self, since: int) -> dict[str, np.ndarray]:
        losses = self._lab.loss_arrays(since)
        return {name: np.ascontiguousarray(losses[name], "<f4") for name in CURVES}

    def _send_losses(self, since: int) -> None:
        parts = self._losses(since)
        steps = since + min(len(part) for part in parts.values())
        if steps > self._sent_steps or since < self._sent_steps or (since == 0 and steps == 0 and self._sent_steps):
            self.send(
                {"kind": "loss", "since": since, "names": list(CURVES)}, [part.tobytes() for part in parts.values()]
            )
        self._sent_steps = steps

    # ---- other forms ----

    def to_text(self) -> str:
        """Everything shown, in words."""
        return self._lab.to_text()

    def to_html(self, path: str | os.PathLike[str] | None = None, title: str | None = None, **how: Any) -> str | Path:
        """Everything shown, as a page of its own that needs no kernel and no network: see `Lab.to_html`."""
        return self._lab.to_html(path, title, **how)

    def _repr_html_(self) -> str:
        """The page of its own in a frame, for front-ends that show no widgets. It is in the cell's output next to
        the widget, as the lab was when the cell ran, or where nobody waits as it is once it has run;
        `jupyter_nbconvert_config.json`, installed to etc/jupyter, makes nbconvert take it. Each frame carries its
        script, deflated: a cell may be run again, moved or deleted, and viewers keep frames apart from the page.
        """
        title = escape(self.snapshot["title"])
        lab, limits = self._lab, limits_in_a_cell()
        if limits == WHOLE and isinstance(lab, RunsOneThing):
            lab = lab.trained()
        page = escape(lab_page([lab.on_page(limits=limits)], packed=True))
        text = f'<iframe title="{title}" srcdoc="{page}" '
        # reveal.js says how high a slide is: what is below it could not be scrolled to
        slide = "max-height:calc(var(--slide-height, 9999px) - 30px)"
        return text + f'style="width:100%;height:{self.model_type.frame_height_px}px;{slide};border:0"></iframe>'

    def close(self) -> None:
        """End the subscription and the view; closing twice is fine."""
        with self._state_lock:
            self._closed = True
            timer, self._timer = self._timer, None
            unsubscribe, self._unsubscribe = self._unsubscribe, None
        if timer is not None:
            timer.cancel()
        if unsubscribe is not None:
            unsubscribe()
        super().close()
        self.layout.close()  # ipywidgets makes one per widget and leaves it


def _kernel_ends() -> bool:
    """Whether the kernel no longer sends in a thread of its own. ipykernel then sends from whichever thread asks, and
    the parts of two messages may mix: the page would get what it cannot read, from a kernel that is leaving.
    """
    module = sys.modules.get("ipykernel.kernelapp")
    if module is None or not module.IPKernelApp.initialized():
        return False
    sender = getattr(module.IPKernelApp.instance(), "iopub_thread", None)
    return sender is not None and not sender.thread.is_alive()


def part_of(name: str) -> str:
    """The trait of a part that is sent apart."""
    return f"part_{name}"


def _without_code(sections: Mapping[str, Any]) -> dict[str, Any]:
    """The sections; programs are None until they are asked for."""
    return {n: {**s, "text": None} if s["kind"] == "code" and "by" not in s else s for n, s in sections.items()}


@cache
def _plotly_script() -> list[bytes]:
    """plotly's own script, deflated; [] where the package is missing. Only its file is read."""
    found = importlib.util.find_spec("plotly")
    folders = (found.submodule_search_locations if found else None) or ()
    places = (Path(folder, "package_data", "plotly.min.js") for folder in folders)
    return [zlib.compress(place.read_bytes(), 6) for place in places if place.is_file()]


@cache
def widget_of(model_type: type[Lab]) -> type[LabView]:
    """The widget class of a lab, such as `FusionLabWidget` of `FusionLab`: it takes a lab, or makes one."""
    script, style = model_type.front_end()
    members = {"__doc__": f"A view of a `{model_type.__name__}`. {LabView.__doc__}", "model_type": model_type}
    members |= {part_of(name): traitlets.Any().tag(sync=True) for name in model_type.apart}
    return type(f"{model_type.__name__}Widget", (LabView,), {**members, "_esm": script, "_css": style})
