"""The Strategy Lab as a widget: an anywidget that shows `lab.snapshot()` and turns what the learner does into commands of the model.

    widget = StrategyLabWidget(lab)       # `lab` is the headless model; it works without a widget, and several widgets may show one lab
    widget                                # last line of a cell

What goes to the page: `snapshot` (all but the run's progress and the loss curves), `progress` (the small part that changes at every step), the
curves as float32 bytes, and, during a run, binary messages with the losses that are new, at most 30 a second. What comes back: messages
{"command": "set_strategy", "arguments": ["matmul", "((2, 4), (4, 1))"], "number": 7}, each answered by {"kind": "answered", "number": 7}.

Threads: the model may report changes from any thread. No lock is held while the model is called; one thread at a time publishes, and a change
reported meanwhile makes it publish once more, so what is shown is never older than the last report.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ..errors import ParallelLabError, escape
from ..lab.static_page import front_end, static_page
from ..lab.words import to_text
from .lab_view import Commands, anywidget, check_command, traitlets

__all__ = ["COMMANDS", "StrategyLabWidget"]

INTERVAL_S = 1 / 30  # between two publications of progress and losses
CURVE_INTERVAL_S = 1.0  # between two copies of the whole curves into the kept state; messages carry what is newer
CURVES = ("parallel", "single")
ACTIVE = ("starting", "running", "paused", "stopping")

# What the page may ask of the model, and the types of the arguments.
COMMANDS: Commands = {
    "set_net": ((str,),),
    "set_devices": ((int,),),
    "set_data": ((str,),),
    "set_preset": ((str,),),
    "set_strategy": ((str,), (str, type(None))),
    "select_tensor": ((str,),),
    "select_phase": ((str,),),
    "select_rank": ((int,),),
    "run": (),
    "pause": (),
    "resume": (),
    "stop": (),
    "reset": (),
}


class StrategyLabWidget(anywidget.AnyWidget):
    """A view of `lab`, the headless Strategy Lab (snapshot(), progress(), on_change(), loss_arrays(), and the commands in COMMANDS).

    snapshot     what is shown, without the loss curves; the page's copy
    progress     {"run": ..., "loss": ...} without curves: always the newest
    last_error   text of the last command that was refused, or None; cleared by the next command that succeeds

    `close()` ends the subscription; the lab lives on.
    """

    _esm, _css = front_end()

    snapshot = traitlets.Dict().tag(sync=True)
    progress = traitlets.Dict().tag(sync=True)
    last_error = traitlets.Unicode(None, allow_none=True).tag(sync=True)
    loss_parallel = traitlets.Bytes(b"").tag(sync=True)
    loss_single = traitlets.Bytes(b"").tag(sync=True)

    def __init__(self, lab: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._lab = lab
        self._command_lock = threading.Lock()  # commands of several views, one after another; never held by a publisher
        self._state_lock = threading.Lock()  # guards the fields below, for a few instructions at a time
        self._publishing = self._again = self._whole = self._closed = self._commanding = False
        self._timer: threading.Timer | None = None
        self._published_at = self._curves_at = -float("inf")
        self._sent_steps = 0
        self._was_active = False
        self.on_msg(self._on_message)
        self._unsubscribe: Callable[[], Any] | None = lab.on_change(self._on_change)
        self._publish(whole=True)

    @property
    def lab(self) -> Any:
        """The model behind this view."""
        return self._lab

    # ---- from the page to the model ----

    def _on_message(self, _widget: Any, content: Any, _buffers: Any) -> None:
        if not isinstance(content, Mapping):
            return
        if "want_loss_since" in content:  # a view that joined late or missed a message
            self._send_losses(max(0, int(content["want_loss_since"])))
            return
        try:
            self.command(content.get("command"), *content.get("arguments") or ())
        finally:
            if not self._closed:
                self.send({"kind": "answered", "number": content.get("number")})

    def command(self, name: Any, *arguments: Any) -> bool:
        """Apply one command to the model, as a control does; returns whether it succeeded. A ParallelLabError is put in `last_error`.

        Any other exception is a defect: it is put there too, and raised.
        """
        try:
            check_command(COMMANDS, name, arguments, "StrategyLabWidget")
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

    def _refuse(self, text: str) -> None:
        self.last_error = text
        self._publish(whole=True)

    # ---- from the model to the page ----

    def _on_change(self, kind: str) -> None:
        """Called by the model in any thread. A new picture is published at once; progress at most every INTERVAL_S, the last one always."""
        if self._commanding:  # the end of every command publishes everything, once
            return
        if kind == "picture":
            self._publish(whole=True)
            return
        with self._state_lock:
            if self._closed or self._timer is not None:
                return
            wait_s = self._published_at + INTERVAL_S - time.monotonic()
            if wait_s > 0:
                self._timer = threading.Timer(wait_s, self._on_timer)
                self._timer.daemon = True
                self._timer.start()
                return
        self._publish()

    def _on_timer(self) -> None:
        with self._state_lock:
            self._timer = None
        self._publish()

    def _publish(self, *, whole: bool = False) -> None:
        with self._state_lock:
            self._whole = self._whole or whole
            if self._closed or self._publishing:
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
        """Bring traits and views to the model's present state; `whole` says that more than the run's progress may have changed."""
        full = self._lab.snapshot() if whole else None
        now_shown = full or self._lab.progress()
        run, loss = now_shown["run"], {k: v for k, v in now_shown["loss"].items() if k not in CURVES}
        active = run["state"] in ACTIVE
        turned = active != self._was_active or run["state"] != (self.progress.get("run") or {}).get("state")
        # A new run may have as many steps as the old one: where one starts or ends, and where the picture changed, the curve is sent anew.
        anew = whole or active != self._was_active or loss["steps"] < self._sent_steps
        self._was_active = active
        with self.hold_sync():
            if whole or turned:
                full = full or self._lab.snapshot()
                self.snapshot = {**full, "run": run, "loss": loss, "last_error": self.last_error or full.get("last_error")}
            self.progress = {"run": run, "loss": loss}
        now = time.monotonic()
        if whole or turned or now - self._curves_at >= CURVE_INTERVAL_S:
            self._curves_at = now
            curves = self._losses(0)
            with self.hold_sync():
                self.loss_parallel, self.loss_single = (curves[name].tobytes() for name in CURVES)
        self._send_losses(0 if anew else self._sent_steps)

    def _losses(self, since: int) -> dict[str, np.ndarray]:
        found = self._lab.loss_arrays(since)
        return {name: np.ascontiguousarray(found[name], "<f4") for name in CURVES}

    def _send_losses(self, since: int) -> None:
        parts = self._losses(since)
        steps = since + min(len(part) for part in parts.values())
        if steps > self._sent_steps or since < self._sent_steps or (since == 0 and steps == 0 and self._sent_steps):
            self.send({"kind": "loss", "since": since, "names": list(CURVES)}, [part.tobytes() for part in parts.values()])
        self._sent_steps = steps

    # ---- other forms ----

    def to_text(self) -> str:
        """Everything shown, in words."""
        return to_text(self._lab.snapshot())

    def to_html(self, title: str | None = None) -> str:
        """Everything shown, as a page of its own that needs no kernel and no network."""
        return static_page(self._lab.snapshot(), title=title)

    def _repr_html_(self) -> str:
        """The page of its own in a frame, for front-ends that show no widgets."""
        title, page = escape(self.snapshot["title"]), escape(self.to_html())
        return f'<iframe title="{title}" srcdoc="{page}" style="width:100%;height:1180px;border:0"></iframe>'

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
