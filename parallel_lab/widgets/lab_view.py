"""What the labs' widgets have in common: commands come from the page and reach the model, refusals are shown, changes are published.

    class FusionLabWidget(LabView):
        _esm, _css = fusion_front_end()
        commands = {"set_mode": ((str,),), "reset_line": ()}
        snapshot = traitlets.Dict().tag(sync=True)

        def _show(self):
            self.snapshot = self._lab.snapshot()

The page sends {"command": "move_cut", "arguments": [4, 6], "number": 7}; each is answered by {"kind": "answered", "number": 7, "refused": False}. The
model may report changes from any thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from ..errors import ParallelLabError, escape, message

try:  # the widgets take both from here: where one is missing, the same words say so
    import anywidget
    import traitlets
except ImportError as error:  # pragma: no cover - the environment file lists it
    from ..errors import MissingPackage

    raise MissingPackage(f"The labs' widgets need {error.name}, which is not installed. Install the packages of environment.yml.") from error

__all__ = ["Commands", "LabView", "check_command"]

Commands = Mapping[str, tuple[tuple[type, ...], ...]]  # what the page may ask of the model: per command, the types that each argument may have


def check_command(commands: Commands, name: Any, arguments: tuple[Any, ...], where: str) -> None:
    """Raise ParallelLabError for what is no command, and for arguments of other types. True and False are no numbers."""
    if not isinstance(name, str) or name not in commands:
        raise ParallelLabError(message(f"unknown command {name!r}", where=where, allowed=f"One of {', '.join(commands)}"))
    wanted = commands[name]
    fits = len(arguments) == len(wanted) and all(
        isinstance(given, types) and (bool in types or not isinstance(given, bool)) for given, types in zip(arguments, wanted, strict=True)
    )
    if not fits:
        kinds = ", ".join(" or ".join("None" if t is type(None) else t.__name__ for t in types) for types in wanted) or "no arguments"
        raise ParallelLabError(message(f"arguments {arguments!r}", where=f"{where}, {name}", allowed=f"Expected {kinds}"))


class LabView(anywidget.AnyWidget):
    """A view of a headless model; several may show one. A subclass names its `commands`, has traits for what is shown, and fills them in `_show`.

    lab          has `on_change`, `to_text`, `to_html` and a method for each command
    last_error   text of the last command that was refused, or None; cleared by the next command that succeeds

    `close()` ends the subscription; the model lives on.
    """

    commands: ClassVar[Commands] = {}
    frame_height_px: ClassVar[int] = 900  # of the page, where widgets are not shown

    last_error = traitlets.Unicode(None, allow_none=True).tag(sync=True)

    def __init__(self, lab: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._lab = lab
        self._turn = threading.RLock()  # one publication after the other, so that the last one shown is the newest
        self._closed = False
        self.on_msg(self._on_message)
        self._unsubscribe: Callable[[], Any] | None = lab.on_change(lambda *_: self._publish())
        self._publish()

    @property
    def lab(self) -> Any:
        """The model behind this view."""
        return self._lab

    def _show(self) -> None:
        """Bring the traits to the model's present state."""
        raise NotImplementedError

    def _publish(self) -> None:
        with self._turn:
            if not self._closed:
                self._show()

    # ---- from the page to the model ----

    def _on_message(self, _widget: Any, content: Any, _buffers: Any) -> None:
        if not isinstance(content, Mapping):
            return
        done = False
        try:
            done = self.command(content.get("command"), *content.get("arguments") or ())
        finally:
            if not self._closed:
                self.send({"kind": "answered", "number": content.get("number"), "refused": not done})

    def command(self, name: Any, *arguments: Any) -> bool:
        """Apply one command to the model, as a control does; returns whether it succeeded. A ParallelLabError is put in `last_error`.

        Any other exception is a defect: it is put there too, and raised.
        """
        try:
            check_command(self.commands, name, arguments, type(self).__name__)
            getattr(self._lab, name)(*arguments)
        except ParallelLabError as error:
            self.last_error = str(error)
            return False
        except Exception as error:
            self.last_error = f"{name}: {type(error).__name__}: {error}"
            raise
        self.last_error = None
        return True

    # ---- other forms ----

    def to_text(self) -> str:
        """Everything shown, in words."""
        return self._lab.to_text()

    def to_html(self, title: str | None = None) -> str:
        """Everything shown, as a page of its own that needs no kernel and no network."""
        return self._lab.to_html(title)

    def _repr_html_(self) -> str:
        """The page of its own in a frame, for front-ends that show no widgets."""
        title, page = escape(self._lab.snapshot()["title"]), escape(self.to_html())
        return f'<iframe title="{title}" srcdoc="{page}" style="width:100%;height:{self.frame_height_px}px;border:0"></iframe>'

    def close(self) -> None:
        """End the subscription and the view; closing twice is fine."""
        self._closed = True
        unsubscribe, self._unsubscribe = self._unsubscribe, None
        if unsubscribe is not None:
            unsubscribe()
        super().close()
        self.layout.close()  # ipywidgets makes one per widget and leaves it
