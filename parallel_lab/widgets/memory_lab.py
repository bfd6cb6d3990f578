"""The Memory Lab as a widget: an anywidget that shows `lab.snapshot()` and turns what the learner does into commands of the model.

    widget = MemoryLabWidget(lab)       # `lab` is the headless model; it works without a widget, and several widgets may show one lab
    widget                              # last line of a cell

What goes to the page: the trait `snapshot`. What comes back: messages {"command": "set_level", "arguments": ["level3"], "number": 7}, each
answered by {"kind": "answered", "number": 7}. The model may report changes from any thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

from ..errors import ParallelLabError, escape, message
from ..lab.memory_page import memory_front_end, memory_page
from ..lab.memory_words import memory_text

try:
    import anywidget
    import traitlets
except ImportError as error:  # pragma: no cover - the environment file lists it
    from ..errors import MissingPackage

    raise MissingPackage(f"The Memory Lab's widget needs {error.name}, which is not installed. Install the packages of environment.yml.") from error

__all__ = ["COMMANDS", "MemoryLabWidget"]

# What the page may ask of the model, and the types of the arguments.
COMMANDS: dict[str, tuple[tuple[type, ...], ...]] = {
    "set_subject": ((str,),),
    "set_width": ((int,),),
    "set_devices": ((int,),),
    "set_parallel_mode": ((str,),),
    "set_optimizer": ((str,),),
    "set_level": ((str,),),
    "set_threshold": ((int,),),
    "set_shard_size": ((int,),),
    "set_accumulation": ((int,),),
    "set_accumulation_shard": ((bool,),),
    "set_capacity": ((str,),),
    "select_rank": ((int,),),
    "show_moment": ((str,),),
    "show_source": ((str,),),
    "set_zero": ((str,), (int,), (int, float)),
    "run_simulated": (),
    "run_measured": (),
    "find_par": (),
    "show_best": (),
}


class MemoryLabWidget(anywidget.AnyWidget):
    """A view of `lab`, the headless Memory Lab.

    snapshot     what is shown; the page's copy
    last_error   text of the last command that was refused, or None; cleared by the next command that succeeds

    `close()` ends the subscription; the lab lives on.
    """

    _esm, _css = memory_front_end()

    snapshot = traitlets.Dict().tag(sync=True)
    last_error = traitlets.Unicode(None, allow_none=True).tag(sync=True)

    def __init__(self, lab: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._lab = lab
        self._turn = threading.Lock()  # one publication after the other, so that the last one shown is the newest
        self._closed = False
        self.on_msg(self._on_message)
        self._unsubscribe: Callable[[], Any] | None = lab.on_change(lambda _kind: self._publish())
        self._publish()

    @property
    def lab(self) -> Any:
        """The model behind this view."""
        return self._lab

    def _on_message(self, _widget: Any, content: Any, _buffers: Any) -> None:
        if not isinstance(content, Mapping):
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
            self._check(name, arguments)
            getattr(self._lab, name)(*arguments)
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
            raise ParallelLabError(message(f"unknown command {name!r}", where="MemoryLabWidget", allowed=f"One of {', '.join(COMMANDS)}"))
        wanted = COMMANDS[name]
        fits = len(arguments) == len(wanted) and all(
            isinstance(given, types) and (bool in types or not isinstance(given, bool)) for given, types in zip(arguments, wanted, strict=True)
        )
        if not fits:
            kinds = ", ".join(" or ".join(t.__name__ for t in types) for types in wanted) or "no arguments"
            raise ParallelLabError(message(f"arguments {arguments!r}", where=f"MemoryLabWidget, {name}", allowed=f"Expected {kinds}"))

    def _publish(self) -> None:
        with self._turn:
            if not self._closed:
                self.snapshot = self._lab.snapshot()

    # ---- other forms ----

    def to_text(self) -> str:
        """Everything shown, in words."""
        return memory_text(self._lab.snapshot())

    def to_html(self, title: str | None = None) -> str:
        """Everything shown, as a page of its own that needs no kernel and no network."""
        return memory_page(self._lab.snapshot(), title)

    def _repr_html_(self) -> str:
        """The page of its own in a frame, for front-ends that show no widgets."""
        title, page = escape(self.snapshot["title"]), escape(self.to_html())
        return f'<iframe title="{title}" srcdoc="{page}" style="width:100%;height:900px;border:0"></iframe>'

    def close(self) -> None:
        """End the subscription and the view; closing twice is fine."""
        self._closed = True
        unsubscribe, self._unsubscribe = self._unsubscribe, None
        if unsubscribe is not None:
            unsubscribe()
        super().close()
        self.layout.close()  # ipywidgets makes one per widget and leaves it
