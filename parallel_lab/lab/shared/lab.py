"""What every lab is made of: a model that tells its views when it changes, and declares how it is shown.

    class CostLab(Lab):
        title, scripts = "Cost Lab", ("shared/curves.js", "shared/plain_lab.js")

        set_ranks = offered("ranks", (2, 4, 8), "Another number of ranks.", ranks=int)

        def parts(self): return {"status": ..., "sections": {...}}

A setting (settings.py) is a choice, its command, what is kept of it and its text; a lab can ask before it shows
(questions.py), and goes into a file and a link (state.py); one that is stepped through is `Stepped`, one that runs
something is in running.py. From the declaration follow the text (`to_text`), the page that needs no kernel and still
has its choices (`to_html`), and the widget (`lab_view.widget_of`). The model itself knows neither a notebook nor
a browser.
"""

from __future__ import annotations

import copy
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self, overload

from ...base.checks import integer, number
from ...base.collector import without_collector
from ...base.errors import ArgumentError, MissingPackage
from ...base.files import write_whole
from ...base.hooks import from_above
from ...base.progress import Progress, shown
from ..pictures.charts import Chart
from ..pictures.plotted import Plotted
from .page import LabOnPage, lab_page, read_front_end
from .replay import WHOLE, Limits, Replay, explore, ready
from .sections import snapshot_text
from .settings import Choice as Choice, offered as offered, setting as setting
from .state import ModelWithFile


class Lab(ModelWithFile):
    """A headless model. `__init__` must run before the first change.

    title             its name for people
    scripts, styles   files of lab/ that draw it; those that all labs share come before them. Unless told otherwise, its
                      choices and its sections, one below the other
    replayed          names of settings that a page of its own keeps without a kernel, the most important one first;
                      None: all
    free              those of them that change nothing else: their command sets this one, whatever the others are
    often             parts of the snapshot that change at every step; a widget sends them apart from the others
    apart             parts that change seldom, or are large: a widget sends each one only where it has changed
    frame_height_px   of the page, where widgets are not shown
    scale             how much larger than usual its views draw everything (`set_scale`)
    words             a pure function: the text of a snapshot

    Every lab takes controls="-preset,-run": what a teacher hides in it (`hide`); and story=True: it begins with a few
    steps that a reader takes, one after the other, and ends for ever with one click (`shared/story.js`).
    """

    title: ClassVar[str] = ""
    scripts: ClassVar[tuple[str, ...]] = ("shared/plain_lab.js",)
    styles: ClassVar[tuple[str, ...]] = ()
    replayed: ClassVar[tuple[str, ...] | None] = None
    free: ClassVar[tuple[str, ...]] = ()
    often: ClassVar[tuple[str, ...]] = ()
    apart: ClassVar[tuple[str, ...]] = ()
    frame_height_px: ClassVar[int] = 900
    scale: float = 1.0
    words: ClassVar[Callable[[Mapping[str, Any]], str]] = staticmethod(snapshot_text)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: a cell that ends with it shows it; else lab.to_text(), lab.to_html(path)>"

    def _repr_mimebundle_(self, **how: Any) -> Any:
        """A cell that ends with a lab shows it: its widget; viewers that know none show its page in a frame."""
        try:
            view = from_above("lab_widget")(type(self))(self)
        except MissingPackage:
            return {"text/plain": repr(self)}
        shown, *about = view._repr_mimebundle_(**how)
        return {**shown, "text/plain": repr(self), "text/html": view._repr_html_()}, *about

    # ---- what is shown ----

    def snapshot(self) -> dict[str, Any]:
        """Everything the views show, as plain data: what all labs have, and its own `parts`."""
        with self._lock:
            parts = self.parts()
            shown = {"version": 1, "title": self.title, **self.chosen(), "predict": self.asked()}
            return {**shown, "run": self.run_shown(), **parts}

    def parts(self) -> dict[str, Any]:
        """Its own parts, which win over those of all labs: "status", "sections", what its script draws."""
        raise NotImplementedError

    def run_shown(self) -> dict[str, Any]:
        """How a run goes, as the snapshot has it: nothing runs."""
        return LabRun().to_dict()

    def progress(self) -> dict[str, Any]:
        """The parts of the snapshot that change at every step (`often`)."""
        shot = self.snapshot()
        return {name: shot[name] for name in self.often}

    def page_snapshot(self) -> dict[str, Any]:
        """What a page of its own is made from: the snapshot, and in "looks" what others of them show (replay.py)."""
        return self.snapshot()

    def set_scale(self, scale: float) -> None:
        """Draw all texts and pictures `scale` times as large, 0.5 to 4: 1.6 suits a projector. Views grow with the text
        size that JupyterLab is set to in any case. Raises ArgumentError.
        """
        self.scale = number(0.5, 4)(type(self).__name__, "scale", scale)
        self._changed("picture")

    def how_shown(self) -> dict[str, Any]:
        """What views get in addition to the snapshot."""
        shown: dict[str, Any] = {"scale": self.scale} | ({"story": True} if self.story else {})
        return shown | ({"hidden": self.hidden} if self.hidden else {})

    def to_text(self) -> str:
        """Everything shown, in words."""
        hidden = f"Hidden here: {self.controls.replace('-', '').replace(',', ', ')}.\n" if self.hidden else ""
        return type(self).words(self.snapshot()) + hidden

    @overload
    def to_html(self, path: None = None, title: str | None = None, **how: Any) -> str: ...
    @overload
    def to_html(self, path: str | os.PathLike[str], title: str | None = None, **how: Any) -> Path: ...
    def to_html(
        self,
        path: str | os.PathLike[str] | None = None,
        title: str | None = None,
        *,
        controls: bool = True,
        height: int | None = None,
        limits: Limits = WHOLE,
        live: str | bool = False,
    ) -> str | Path:
        """Everything shown, as one page that needs no kernel and no network: its text, or, with `path`, the file that
        was written (whole, or as it was before; DataFileError where it cannot be).

        title      instead of the snapshot's own
        controls   False: the picture alone, for a slide
        height     of the page in pixels, for a frame that must not grow; what does not fit scrolls
        limits     how many settings the page can show without a kernel, and how long they may take to compute
        live       the page also computes, with Python from a live site (live.py): its address, or True in its folder
        """
        text = pages_of([self], title, controls=controls, height=height, limits=limits)
        text = from_above("live_page")(text, [self], live) if live else text
        return text if path is None else write_whole(path, text)

    def on_page(
        self,
        title: str | None = None,
        *,
        controls: bool = True,
        limits: Limits = WHOLE,
        progress: Progress | None = None,
    ) -> LabOnPage:
        """What a page has of this lab."""
        replay = explore(self, limits if controls else Limits(states=1), progress)
        shown = replay.states[0] if title is None else {**replay.states[0], "title": title}
        return LabOnPage(type(self), shown, type(self).words(shown), replay)

    def charts(self) -> dict[str, Callable[[], Chart]]:
        """What can be looked into with `figure`, by name."""
        return {}

    def figure(self, name: str) -> Plotted:
        """A chart with hover and zoom in a notebook, and its static picture elsewhere. Raises ArgumentError."""
        return Plotted(self.charts()[self.one_of(name, self.charts(), "figure")]())

    @classmethod
    def page(cls, snapshot: Mapping[str, Any], title: str | None = None) -> str:
        """The page of any `page_snapshot` of such a lab."""
        shown = dict(snapshot) if title is None else {**snapshot, "title": title}
        return lab_page([LabOnPage(cls, shown, cls.words(shown), Replay([{**ready(shown), "calls": []}]))])

    @classmethod
    def front_end(cls) -> tuple[str, str]:
        """Script and style sheet that draw it."""
        return read_front_end(cls.scripts, cls.styles)

    # ---- on a page, what can be done without a kernel ----

    def replays(self) -> Iterable[list[Any]]:
        """The commands that a page of its own does without a kernel, from here on."""
        choices, looked = self.choices(), self.looks
        for name in choices if self.replayed is None else self.replayed:
            command = self.command_of(name)
            if command is not None and command not in looked:
                yield from ([command, value] for value in choices[name].known)

    def branch(self) -> Self:
        """A lab with the same settings that nobody listens to and in which nothing runs: what is done with it leaves
        this one as it is.
        """
        with self._lock:
            other = copy.copy(self)
            for name, value in vars(self).items():
                if type(value) in (list, dict, set):
                    setattr(other, name, copy.copy(value))
        other._listeners, other._lock, other.is_branch = [], threading.RLock(), True
        return other


class Stepped(Lab):
    """A lab with something to step through: `at` of its `last` steps are done.  step: what one is called"""

    commands: ClassVar[tuple[str, ...]] = ("to", "next", "back", "reset")
    looks: ClassVar[Mapping[str, str]] = {"to": "at"}
    step: ClassVar[str] = "round"

    def __init__(self, **shown: Any) -> None:
        super().__init__(**shown)
        self._at = 0

    @property
    def at(self) -> int:
        """Steps that are done: 0 is the start."""
        return self._at

    @property
    def last(self) -> int:
        """All steps there are."""
        raise NotImplementedError

    def to(self, number: int) -> None:
        """To where `number` steps are done. Raises ArgumentError outside 0 ... `last`."""
        with self._lock:
            number = integer(0, self.last)(type(self).__name__, self.step, number)
            moved, self._at = self._at != number, number
        if moved:
            self._changed("picture")

    def next(self) -> None:
        """One step on; stays at the end."""
        Stepped.to(self, min(self._at + 1, self.last))

    def back(self) -> None:
        """One step back; stays at the start."""
        Stepped.to(self, max(self._at - 1, 0))

    def reset(self) -> None:
        """To the start."""
        Stepped.to(self, 0)

    def calls(self) -> list[list[Any]]:
        """Those of the settings, and the place."""
        return [*super().calls(), ["to", self._at]]


@without_collector
def pages_of(
    labs: Sequence[Lab],
    title: str | None = None,
    *,
    controls: bool = True,
    height: int | None = None,
    limits: Limits = WHOLE,
) -> str:
    """Several labs on one page, with one script between them: see `Lab.to_html`. title: of the page."""
    if not labs:
        raise ArgumentError("no lab", where="pages_of", allowed="At least one")
    height = None if height is None else integer(1, 100_000)("to_html", "height", height)
    own = title if len(labs) == 1 else None
    with shown("computing what the page can show", limits.seconds * len(labs)) as progress:
        parts = [lab.on_page(own, controls=controls, limits=limits, progress=progress) for lab in labs]
    return lab_page(parts, title, controls=controls, height=height)


@dataclass
class LabRun:
    """One run in the background, and how it goes.

    state   "idle", "starting", "running", "paused", "stopping", "done", "stopped" or "failed"; "recorded": read from a
            file, as another lab has run it
    progress   of what is done, counted by the work
    stop    set when the result is no longer wanted: the work then raises Stopped when it next looks
    ended   set after the listeners have heard of the end: views show it when `wait()` returns
    recording   what it did, step by step and rank by rank (recording.py); None: it recorded nothing
    """

    state: str = "idle"
    text: str = ""
    error: str | None = None
    stop: threading.Event = field(default_factory=threading.Event)
    ended: threading.Event = field(default_factory=threading.Event)
    thread: Any = None
    progress: Progress = field(default_factory=Progress)
    recording: Any = None

    @property
    def goes_on(self) -> bool:
        """Whether it has begun and not ended."""
        return self.state in ("starting", "running", "paused", "stopping")

    def to_dict(self) -> dict[str, Any]:
        """For a snapshot: state, text, error; "share" of what is to be done, where that is known."""
        share, counted = (self.progress.share, self.progress.text()) if self.goes_on else (None, "")
        text = f"{self.text} ({counted})" if counted else self.text
        return {"state": self.state, "text": text, "error": self.error, "share": share}
