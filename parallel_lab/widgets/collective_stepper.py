"""The Collective Stepper as a widget: an anywidget that shows `stepper.snapshot()` and turns what the learner does into commands of the model.

    widget = CollectiveStepperWidget(CollectiveStepper("all_reduce", "ring", ranks=8))
    widget                                # last line of a cell

What goes to the page: `story` (every round; sent anew when something else is chosen) and `place` (where the stepper stands). What comes back:
messages {"command": "to", "arguments": [3], "number": 7}, each answered by {"kind": "answered", "number": 7, "refused": False}. The page shows a
step at once and does not wait for the answer.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

from ..errors import ParallelLabError, escape, message
from ..lab.collective_stepper import CollectiveStepper, front_end

try:
    import anywidget
    import traitlets
except ImportError as error:  # pragma: no cover - the environment file lists it
    from ..errors import MissingPackage

    raise MissingPackage(
        f"The Collective Stepper's widget needs {error.name}, which is not installed. Install the packages of environment.yml."
    ) from error

__all__ = ["COMMANDS", "CollectiveStepperWidget"]

# What the page may ask of the model, and the types of the arguments.
COMMANDS: dict[str, tuple[tuple[type, ...], ...]] = {
    "to": ((int,),),
    "next": (),
    "back": (),
    "reset": (),
    "follow": ((int, type(None)),),
    "choose_kind": ((str,),),
    "choose_algorithm": ((str,),),
    "choose_ranks": ((int,),),
    "choose_elements": ((int,),),
    "choose_cluster": ((str,),),
    "choose_contention": ((str,),),
}
PLACE = ("at", "follow", "counters", "status")


class CollectiveStepperWidget(anywidget.AnyWidget):
    """A view of `stepper`; several may show one model.

    story        what is shown, all rounds;  place: where it stands
    last_error   text of the last command that was refused, or None; cleared by the next command that succeeds

    `close()` ends the subscription; the model lives on.
    """

    _esm, _css = front_end()

    story = traitlets.Dict().tag(sync=True)
    place = traitlets.Dict().tag(sync=True)
    last_error = traitlets.Unicode(None, allow_none=True).tag(sync=True)

    def __init__(self, stepper: CollectiveStepper | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._stepper = CollectiveStepper() if stepper is None else stepper
        self._lock = threading.RLock()  # commands and changes may come from any thread, one is shown after the other
        self._unsubscribe: Callable[[], Any] | None = self._stepper.on_change(self._show)
        self.on_msg(self._on_message)
        self._show()

    @property
    def stepper(self) -> CollectiveStepper:
        """The model behind this view."""
        return self._stepper

    def _on_message(self, _widget: Any, content: Any, _buffers: Any) -> None:
        if not isinstance(content, Mapping):
            return
        done = False
        try:
            done = self.command(content.get("command"), *content.get("arguments") or ())
        finally:
            if self._unsubscribe is not None:
                self.send({"kind": "answered", "number": content.get("number"), "refused": not done})

    def command(self, name: Any, *arguments: Any) -> bool:
        """Apply one command to the model, as a control does; returns whether it succeeded. A ParallelLabError is put in `last_error`.

        Any other exception is a defect: it is put there too, and raised.
        """
        try:
            self._check(name, arguments)
            getattr(self._stepper, name)(*arguments)
        except ParallelLabError as error:
            self.last_error = str(error)
            return False
        except Exception as error:
            self.last_error = f"{name}: {type(error).__name__}: {error}"
            raise
        self.last_error = None
        return True

    @staticmethod
    def _check(name: Any, arguments: tuple[Any, ...]) -> None:
        if not isinstance(name, str) or name not in COMMANDS:
            raise ParallelLabError(message(f"unknown command {name!r}", where="CollectiveStepperWidget", allowed=f"One of {', '.join(COMMANDS)}"))
        wanted = COMMANDS[name]
        fits = len(arguments) == len(wanted) and all(
            isinstance(given, types) and not isinstance(given, bool) for given, types in zip(arguments, wanted, strict=True)
        )
        if not fits:
            kinds = ", ".join(" or ".join("None" if t is type(None) else t.__name__ for t in types) for types in wanted) or "no arguments"
            raise ParallelLabError(message(f"arguments {arguments!r}", where=f"CollectiveStepperWidget, {name}", allowed=f"Expected {kinds}"))

    def _show(self) -> None:
        with self._lock:
            snapshot = self._stepper.snapshot()
            story = {name: value for name, value in snapshot.items() if name not in PLACE}
            with self.hold_sync():
                if story != self.story:
                    self.story = story
                self.place = {name: snapshot[name] for name in PLACE}

    def to_text(self) -> str:
        """Everything shown, in words."""
        return self._stepper.to_text()

    def to_html(self, title: str | None = None) -> str:
        """Everything shown, as a page of its own that needs no kernel and no network."""
        return self._stepper.to_html(title)

    def _repr_html_(self) -> str:
        """The page of its own in a frame, for front-ends that show no widgets."""
        title, page = escape(self.story["title"]), escape(self.to_html())
        return f'<iframe title="{title}" srcdoc="{page}" style="width:100%;height:860px;border:0"></iframe>'

    def close(self) -> None:
        """End the subscription and the view; closing twice is fine."""
        unsubscribe, self._unsubscribe = self._unsubscribe, None
        if unsubscribe is not None:
            unsubscribe()
        super().close()
        self.layout.close()  # ipywidgets makes one per widget and leaves it
