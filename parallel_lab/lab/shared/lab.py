"""What every lab is made of: a model that tells its views when it changes, runs one thing at a time in a helper thread,
and declares how it is shown.

    class FusionLab(ComparesRuns):
        scripts, styles = ("fusion/fusion_lab.js",), ("fusion/fusion_lab.css",)
        commands = ("set_mode", "stop")

        def choices(self): return {"mode": Choice("fusion", self._mode, MODES)}
        def set_mode(self, mode: str) -> None: self._choose(mode=mode)
        def snapshot(self): return {"title": ..., "status": ..., **self.chosen(), "sections": {...}}

From the declaration follow the text (`to_text`), the page that needs no kernel and still has its choices (`to_html`),
the small file and the link (`save`, `open`, `link`), and the widget (`lab_view.widget_of`). The model itself knows
neither a notebook nor a browser.
"""

from __future__ import annotations

import copy
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from inspect import signature
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self, get_args, get_type_hints, overload

from ...base.checks import integer, number
from ...base.errors import ArgumentError, Interrupted, ParallelLabError, shorten
from ...base.files import write_whole
from ...base.system import without_processes
from ...ops.kernels.threads import trim_memory
from ..pictures.charts import Chart
from ..pictures.plotted import Plotted
from .earlier import EarlierRun, KeepsEarlier
from .page import LabOnPage, lab_page, read_front_end
from .questions import Asks
from .records import taken, written
from .replay import WHOLE, Limits, Replay, explore, ready
from .sections import snapshot_text
from .state import Kept

LISTEN_S = 0.1  # how long wait() may not hear an interrupt
EXECUTORS = {"simulated": "simulator", "measured": "processes"}  # of a Session, by the source of a run


def executor_of(source: str) -> str:
    """Of a Session; what cannot be measured is simulated, and the lab says so (`without_processes`)."""
    return EXECUTORS["simulated" if without_processes() else source]


class Choice(NamedTuple):
    """A thing that a learner chooses: its name for people, the choice, and the known values (with labels, if any)."""

    label: str
    value: Any
    known: Iterable[Any]

    def shown(self) -> dict[str, Any]:
        """As a snapshot has it: "label", "value" and "choices"."""
        labels = self.known if isinstance(self.known, Mapping) else {}
        labels = {name: getattr(label, "label", label) for name, label in labels.items()}
        choices = [{"value": k, "label": labels[k]} if isinstance(labels.get(k), str) else k for k in self.known]
        return {"label": self.label, "value": self.value, "choices": choices}


TYPE_WORDS = {int: "a whole number", float: "a number", str: "a text", bool: "True or False", type(None): "None"}


class Lab(Asks, Kept):
    """A headless model. `__init__` must run before the first change.

    scripts, styles   files of lab/ that draw it; those that all labs share come before them. Unless told otherwise, its
                      choices and its sections, one below the other
    commands          what a page may ask: names of methods, whose annotations say what arguments may be
    looks             commands that only choose what is looked at, and which part of the snapshot each one sets
    replayed          names of choices that a page of its own keeps without a kernel, the most important one first;
                      None: all that have a command
    free              those of them that change nothing else: their command sets this choice, whatever the others are
    also_kept         commands without a choice of their name that `calls` uses
    often             parts of the snapshot that change at every step; a widget sends them apart from the others
    apart             parts that change seldom, or are large: a widget sends each one only where it has changed
    frame_height_px   of the page, where widgets are not shown
    scale             how much larger than usual its views draw everything (`set_scale`)
    words             a pure function: the text of a snapshot
    """

    scripts: ClassVar[tuple[str, ...]] = ("shared/plain_lab.js",)
    styles: ClassVar[tuple[str, ...]] = ()
    replayed: ClassVar[tuple[str, ...] | None] = None
    free: ClassVar[tuple[str, ...]] = ()
    often: ClassVar[tuple[str, ...]] = ()
    apart: ClassVar[tuple[str, ...]] = ()
    frame_height_px: ClassVar[int] = 900
    scale: float = 1.0
    is_branch: bool = False  # made by `branch`: a setting that a page is computed for
    words: ClassVar[Callable[[Mapping[str, Any]], str]] = staticmethod(snapshot_text)

    def __init__(self) -> None:
        super().__init__()
        self._listeners: list[Callable[..., None]] = []
        self._lock = threading.RLock()

    def __repr__(self) -> str:
        """What a cell shows that ends with the model, which is no view: how to see it."""
        name = type(self).__name__
        return f"<{name}: in a notebook parallel_lab.widgets.{name}Widget(lab); else lab.to_text(), lab.to_html(path)>"

    # ---- listeners ----

    def on_change(self, callback: Callable[..., None]) -> Callable[[], None]:
        """Call `callback` after every change, perhaps from a helper thread; returns a function that ends it.
        Some models add what changed: "picture", "run", or "loss" at every step of a training.
        """
        self._listeners.append(callback)

        def unsubscribe() -> None:
            with suppress(ValueError):  # called twice, or after the model has forgotten all
                self._listeners.remove(callback)

        return unsubscribe

    def _changed(self, *what: str) -> None:
        for callback in list(self._listeners):
            callback(*what)

    def close(self) -> None:
        """Forget the listeners."""
        self._listeners.clear()

    # ---- what is shown ----

    def snapshot(self) -> dict[str, Any]:
        """Everything the views show, as plain data with a "version" and a "title"."""
        raise NotImplementedError

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

    def to_text(self) -> str:
        """Everything shown, in words."""
        return type(self).words(self.snapshot())

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
    ) -> str | Path:
        """Everything shown, as one page that needs no kernel and no network: its text, or, with `path`, the file that
        was written (whole, or as it was before; DataFileError where it cannot be).

        title      in place of the snapshot's own
        controls   False: the picture alone, for a slide
        height     of the page in pixels, for a frame that must not grow; what does not fit scrolls
        limits     how many settings the page can show without a kernel, and how long they may take to compute
        """
        text = pages_of([self], title, controls=controls, height=height, limits=limits)
        return text if path is None else write_whole(path, text)

    def on_page(self, title: str | None = None, *, controls: bool = True, limits: Limits = WHOLE) -> LabOnPage:
        """What a page has of this lab."""
        found = explore(self, limits if controls else Limits(states=1))
        shown = found.states[0] if title is None else {**found.states[0], "title": title}
        return LabOnPage(type(self), shown, type(self).words(shown), found)

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

    # ---- what may be asked and chosen ----

    @classmethod
    def argument_types(cls, command: str) -> list[tuple[type, ...]]:
        """Per argument that a page gives a command (all but those that default to None) the types it may have."""
        method = getattr(cls, command)
        given = [name for name, p in signature(method).parameters.items() if name != "self" and p.default is not None]
        return [get_args(hint) or (hint,) for name, hint in get_type_hints(method).items() if name in given]

    @classmethod
    def check_command(cls, name: Any, arguments: tuple[Any, ...], where: str) -> None:
        """Raise ParallelLabError for unknown commands and other types of arguments. True and False are no numbers."""
        if not isinstance(name, str) or name not in cls.commands:
            known = ", ".join(cls.commands)
            raise ParallelLabError(f"unknown command {shorten(name)}", where=where, allowed=f"One of {known}")
        wanted = cls.argument_types(name)
        fits = len(arguments) == len(wanted) and all(
            isinstance(given, (*types, int) if float in types else types)
            and (bool in types or not isinstance(given, bool))
            for given, types in zip(arguments, wanted, strict=True)
        )
        if not fits:
            names = (" or ".join(TYPE_WORDS.get(t, t.__name__) for t in types) for types in wanted)
            allowed = f"Expected {', '.join(names) or 'no arguments'}"
            given = shorten(arguments[0]) if len(arguments) == len(wanted) == 1 else f"arguments {shorten(arguments)}"
            raise ParallelLabError(given, where=f"{where}, {name}", allowed=allowed)

    def choices(self) -> dict[str, Choice]:
        """What can be chosen now, by the name of the attribute that holds it (without its underscore)."""
        return {}

    def chosen(self) -> dict[str, Any]:
        """`choices` as a snapshot has them."""
        return {name: choice.shown() for name, choice in self.choices().items()}

    @classmethod
    def one_of(cls, value: Any, known: Any, what: str, where: str | None = None) -> Any:
        """`value`, if it is one of `known` ints and texts. Raises ArgumentError for others, and for True and False."""
        if isinstance(value, bool) or not isinstance(value, (int, str)) or value not in known:
            where = cls.__name__ if where is None else where
            allowed = f"One of {', '.join(map(str, known))}"
            raise ArgumentError(f"{what} {shorten(value)}", where=where, allowed=allowed)
        return value

    def _offered(self, **given: Any) -> dict[str, Any]:
        """The values, if they are among the `choices`. Raises ArgumentError."""
        known = self.choices()
        return {name: self.one_of(value, known[name].known, name) for name, value in given.items()}

    def _look(self, **given: Any) -> None:
        """Choose what is looked at: it changes nothing that is computed."""
        with self._lock:
            self._set(**self._offered(**given))
        self._changed("picture")

    def _choose(self, **given: Any) -> None:
        """Choose among what is offered; raises what `_update` raises, and changes nothing then."""
        with self._lock:
            self._take(**self._offered(**given))
        self._changed("picture")

    def _change(self, **changes: Any) -> None:
        """The same for values that were checked."""
        with self._lock:
            self._take(**changes)
        self._changed("picture")

    def _take(self, **changes: Any) -> None:
        before = dict(vars(self))
        try:
            self._set(**changes)
            self._update()
        except ParallelLabError:
            vars(self).update(before)
            raise

    def _set(self, **changes: Any) -> None:
        vars(self).update({f"_{name}": value for name, value in changes.items()})

    def _update(self) -> None:
        """Compute what follows from the choices."""


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
    shown = [lab.on_page(own, controls=controls, limits=limits) for lab in labs]
    return lab_page(shown, title, controls=controls, height=height)


class Stopped(Exception):
    """Raised in a run, and never out of it: its result is no longer wanted."""


@dataclass
class LabRun:
    """One run beside the notebook, and how it goes.

    state   "idle", "starting", "running", "paused", "stopping", "done", "stopped" or "failed"; "recorded": read from a
            file, as another lab has run it
    stop    set when the result is no longer wanted: the work then raises Stopped when it next looks
    ended   set after the listeners were told of the end: who waits finds views that show it
    """

    state: str = "idle"
    text: str = ""
    error: str | None = None
    stop: threading.Event = field(default_factory=threading.Event)
    ended: threading.Event = field(default_factory=threading.Event)
    thread: threading.Thread | None = None

    @property
    def goes_on(self) -> bool:
        return self.state in ("starting", "running", "paused", "stopping")

    def to_dict(self) -> dict[str, Any]:
        """For a snapshot: state, text, error."""
        return {"state": self.state, "text": self.text, "error": self.error}


class RunsOneThing(KeepsEarlier, Lab):
    """Runs one thing at a time beside the notebook, and says how it went.

    _run       the present or last run
    """

    def __init__(self) -> None:
        super().__init__()
        self._run = LabRun()

    def idle_run(self) -> LabRun:
        """As there is before anything has run."""
        return LabRun()

    def branch(self) -> Self:
        other = super().branch()
        if other._run.goes_on:
            other._run = other.idle_run()
        return other

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until no run goes on; whether that is so. Not for widgets, nor for listeners in the run's own thread.
        Ctrl-C ends the waiting (Interrupted), not the run.
        """
        try:
            return self._wait(timeout)
        except KeyboardInterrupt:
            raise Interrupted("the waiting has ended, the run goes on; stop() ends it") from None

    def _wait(self, timeout: float | None) -> bool:
        end = None if timeout is None else time.monotonic() + timeout
        # Not thread.join: Python up to 3.12 takes a thread for dead once an interrupt fell into a join (bpo-46726). And
        # in short waits: a busy thread may take the interrupt's signal, and then it does not wake a main thread that
        # waits without limit; the notebook's interrupt went unheard.
        while (
            (run := self._run).thread not in (None, threading.current_thread())
            and not run.ended.is_set()
            and (end is None or time.monotonic() < end)
        ):
            run.ended.wait(LISTEN_S if end is None else max(0.0, min(LISTEN_S, end - time.monotonic())))
        return not self._run.goes_on

    def stop(self) -> None:
        """Ask the run, if any, to end: a training does after its present step. Returns at once; `wait()` waits."""
        self._run.stop.set()

    def close(self) -> None:
        """Forget the listeners, stop a run that goes on and wait for its end, and let workers go that nobody uses."""
        super().close()
        self.stop()
        self.wait()
        if self._run.thread is not None:
            from ...processes.shm import release_pools  # what has never run needs no processes

            release_pools()

    def _run_is_stopped(self) -> bool:
        """Whether the result of the present run is no longer wanted."""
        return self._run.stop.is_set()

    def _go_on(self) -> None:
        """Raise Stopped if it is not."""
        if self._run_is_stopped():
            raise Stopped

    def _start(
        self, text: str, work: Callable[[], str | None], failed: str = "the run failed", run: LabRun | None = None
    ) -> None:
        """Do `work` in a helper thread; it returns what to say of it, `failed` is said of an error. Nothing happens
        while a run goes on.

        run   one that knows more than a LabRun does
        """
        with self._lock:
            if self._run.goes_on:
                return
            run = self._run = LabRun("running") if run is None else run
            run.text = text
            run.thread = threading.Thread(
                target=self._work, args=(run, work, failed), name=type(self).__name__, daemon=True
            )
            run.thread.start()
        self._changed("run")

    def _work(self, run: LabRun, work: Callable[[], str | None], failed: str) -> None:
        end: tuple[str, str, str | None] = ("done", "", None)
        try:
            end = ("done", work() or "", None)
        except Stopped:
            end = ("stopped", "stopped; nothing was kept of it", None)
        except ParallelLabError as error:
            end = ("failed", failed, str(error))
        except BaseException as error:
            # a defect: the views must not say "running" for ever; whatever watches threads gets it too
            end = ("failed", failed, f"{type(error).__name__}: {error}")
            raise
        finally:
            trim_memory()  # of the computation on one device, too
            with self._lock:
                run.state, run.text, run.error = end
            try:
                self._tell(run, "run")
                self._tell(run, "picture")
            finally:
                run.ended.set()

    def _tell(self, run: LabRun, what: str) -> None:
        """What has changed, if the run is still the one that is shown."""
        if run is self._run:
            self._changed(what)


class ComparesRuns(RunsOneThing):
    """A model whose settings can be run, beside a run without its subject. `_source`: "predicted", or the shown run."""

    against: ClassVar[tuple[str, str]]  # what is compared: "with this fusion", "without"
    steps: ClassVar[int]  # of a run, unless told otherwise
    result_type: ClassVar[type]  # a frozen dataclass with a `source`

    def __init__(self) -> None:
        super().__init__()
        self._results: dict[str, Any] = {}
        self._ran_as = ""  # settings of the results, in words
        self._recorded: set[str] = set()  # sources whose results were read from a file
        self._source = "predicted"

    @property
    def results(self) -> dict[str, Any]:
        """What was run with the present settings: "simulated", "measured"."""
        return dict(self._results)

    def sources(self) -> Choice:
        """Whose numbers can be shown."""
        names = ("predicted", *self._results)
        return Choice("source", self._source, {n: self.said(n) for n in names} if self._recorded else names)

    def said(self, source: str) -> str:
        """A source as it is shown: what was read from a file is no measurement of here and now."""
        return f"{source} (recorded)" if source in self._recorded else source

    def show_source(self, source: str) -> None:
        """Whose numbers are shown: "predicted", or "simulated" or "measured" once that was run."""
        self._look(source=source)

    def run_simulated(self, steps: int | None = None) -> None:
        """Simulate the settings, and the network without what the lab is about. Returns at once; `wait()` waits."""
        self._start_run("simulated", steps)

    def run_measured(self, steps: int | None = None) -> None:
        """The same on worker processes, one per rank."""
        self._start_run("measured", steps)

    def record(self) -> Any:
        """The results by source; None: nothing has run."""
        return {source: written(result) for source, result in self._results.items()} or None

    def take_record(self, record: Any) -> None:
        """Show these results, as recorded ones. Raises ArgumentError for others than such a lab has."""
        if record is None:
            return
        where, found = type(self).__name__, {}
        if not isinstance(record, Mapping) or not record or not set(record) <= EXECUTORS.keys():
            raise ArgumentError("the record", where=where, allowed=f"Results of {' and '.join(EXECUTORS)}")
        with self._lock:
            for source in record:
                found[source] = taken(self.result_type, record[source], source)
                if found[source].source != source:
                    raise ArgumentError(f"a result of {shorten(found[source].source)}", where=source)
                self._check_result(found[source])
            self._results, self._recorded, self._ran_as = found, set(found), self._in_words()
            self._run = LabRun("recorded", f"recorded: {' and '.join(found)} numbers are of an earlier run")
        self._changed("picture")

    def _check_result(self, result: Any) -> None:
        """Raise ArgumentError for a result that cannot be of the present settings."""
        raise NotImplementedError

    def _forget_runs(self) -> None:
        """What was run before is not about the present settings: it is an earlier run from now on."""
        for recorded in (True, False):
            found = {name: result for name, result in self._results.items() if (name in self._recorded) is recorded}
            rows = tuple((name, self._told(result)) for name, result in found.items())
            self._keep_earlier(*([EarlierRun(self._ran_as, rows, recorded=recorded)] if rows else []))
        self._results, self._recorded, self._source = {}, set(), "predicted"
        if not self._run.goes_on:
            self._run = LabRun()

    def _in_words(self) -> str:
        """The present settings, as an earlier run is called."""
        raise NotImplementedError

    def _told(self, result: Any) -> str:
        """What a run has found, in words."""
        raise NotImplementedError

    def _work_of(self, source: str, steps: int) -> Callable[[], Any]:
        """What runs the present settings, and gives the result."""
        raise NotImplementedError

    def _settings_now(self) -> Any:
        """What a result is about; another one when it comes makes the result worthless."""
        raise NotImplementedError

    def _done(self, source: str, steps: int) -> str:
        """What is said of a run that has ended."""
        raise NotImplementedError

    def _start_run(self, source: str, steps: int | None) -> None:
        steps = self.steps if steps is None else integer(1)(f"{type(self).__name__}.run_{source}", "steps", steps)
        why = without_processes() if source == "measured" else ""
        source, note = ("simulated", f"; {why}") if why else (source, "")
        with self._lock:
            settings, work, words = self._settings_now(), self._work_of(source, steps), self._in_words()

        def run() -> str:
            result = work()
            with self._lock:
                if settings != self._settings_now():  # the lab shows something else by now
                    return f"{source}: the settings have changed since"
                self._results[source], self._ran_as = result, words
                self._recorded.discard(source)
            return self._done(source, steps) + note

        this, other = self.against
        self._start(f"{source}: {steps} steps {this} and {steps} {other}{note}", run, f"{source} failed")
