"""`ProgressBar`: how far a training or an evaluation is, in a terminal or a notebook.

    model.train(5, dataset, callbacks=[ProgressBar()])          # or progress=True
    epoch 2/5  [=========>          ]  12/25  loss 0.3457  8.1 steps/s  0:01 left

A terminal has one line that is rewritten, and what the program prints meanwhile appears above it. A notebook has a
widget; when it is done, or where ipywidgets is missing, a line of text. In a file or a pipe there is one line per
epoch. In a world only rank 0 shows anything.
"""

from __future__ import annotations

import importlib.util
import math
import shutil
import sys
import time
from collections.abc import Callable
from typing import Any, TextIO

from ..base.errors import ArgumentTypeError, shorten
from ..base.hooks import current_world
from .callbacks import Callback, RunContext, loss_value, params_of

REDRAW_S = 0.1  # a reader cannot follow more; drawing every tiny step would cost more than the step
BAR_CHARS = 20


class ProgressBar(Callback):
    """Shows progress of a Model on `stream` (default: sys.stdout at the begin); `clock`: growing seconds, for tests."""

    def __init__(self, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        if stream is not None and not hasattr(stream, "write"):
            what = f"stream={shorten(stream)}"
            raise ArgumentTypeError(what, where="ProgressBar", allowed="A text stream, or None for sys.stdout")
        self._given, self._clock = stream, clock
        self._show: Any = None
        self._start = self._epoch_start = self._drawn = 0.0

    # ---- life ----

    def __enter__(self) -> ProgressBar:
        world = current_world()
        if world is None or world.rank == 0:
            self._show = _display(self._given)
        self._start = self._clock()
        self._drawn = -math.inf
        return self

    def __exit__(self, *error: Any) -> None:
        if self._show is not None:
            self._show.close()
            self._show = None

    # ---- training ----

    def on_train_begin(self, run_context: RunContext) -> None:
        self._start = self._clock()

    def on_train_epoch_begin(self, run_context: RunContext) -> None:
        self._epoch_start = self._clock()

    def on_train_step_end(self, run_context: RunContext) -> None:
        params = params_of(run_context)
        self._draw(params, f"epoch {params.cur_epoch_num}/{params.epoch_num}", self._epoch_start)

    def on_train_epoch_end(self, run_context: RunContext) -> None:
        if self._show is not None:
            params = params_of(run_context)
            done = f"{params.batch_num} steps in {_time(self._clock() - self._epoch_start)}{_loss(params)}"
            results = _results(params.get("eval_results") or {})
            self._show.say(f"epoch {params.cur_epoch_num}/{params.epoch_num}  {done}{results}")

    def on_train_end(self, run_context: RunContext) -> None:
        if self._show is not None:
            params = params_of(run_context)
            self._show.say(f"trained {params.cur_step_num} steps in {_time(self._clock() - self._start)}")

    # ---- evaluation ----

    def on_eval_begin(self, run_context: RunContext) -> None:
        self._eval_start = self._clock()

    def on_eval_step_end(self, run_context: RunContext) -> None:
        self._draw(params_of(run_context), "evaluation", self._eval_start)

    def on_eval_end(self, run_context: RunContext) -> None:
        params = params_of(run_context)
        if self._show is not None and "epoch_num" not in params:  # in fit the line of the epoch says it
            done = f"{params.cur_step_num} steps in {_time(self._clock() - self._eval_start)}"
            self._show.say(f"evaluated {done}{_results(params.metrics)}")

    # ---- drawing ----

    def _draw(self, params: Any, title: str, start: float) -> None:
        now = self._clock()
        done, total = (params.cur_step_num - 1) % params.batch_num + 1, params.batch_num
        if self._show is None or (now - self._drawn < REDRAW_S and done < total):
            return
        self._drawn = now
        pace = done / max(now - start, 1e-9)
        left = f"  {_time((total - done) / pace)} left" if done < total else ""
        self._show.draw(title, done, total, f"{_loss(params)}  {pace:.1f} steps/s{left}")


def _loss(params: Any) -> str:
    value = loss_value(params.get("net_outputs")) if params.mode == "train" else None
    return f"  loss {value:.4g}" if isinstance(value, float) else ""


def _results(results: dict[str, Any]) -> str:
    texts = {name: f"{v:.4g}" if isinstance(v, (int, float)) else shorten(v, 40) for name, v in results.items()}
    return "".join(f"  {name} {text}" for name, text in texts.items())


def _time(seconds: float) -> str:
    """Seconds as m:ss or h:mm:ss; under ten seconds with a decimal."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


# ---- where it is shown ----


def _display(stream: TextIO | None) -> Any:
    """A display that fits the place: a widget in a notebook, a line in a terminal, plain lines elsewhere."""
    if stream is None and _in_notebook() and importlib.util.find_spec("ipywidgets") is not None:
        return _Widget()
    stream = sys.stdout if stream is None else stream
    is_terminal = getattr(stream, "isatty", None)
    return _Line(stream) if is_terminal is not None and is_terminal() else _Plain(stream)


def _in_notebook() -> bool:
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return shell is not None and type(shell).__name__ == "ZMQInteractiveShell"


class _Plain:
    """A file or pipe: whole lines only, and no bar."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def draw(self, title: str, done: int, total: int, rest: str) -> None:
        """Nothing: a file is not rewritten."""

    def say(self, line: str) -> None:
        """One line that stays."""
        self._stream.write(line + "\n")
        self._stream.flush()

    def close(self) -> None:
        """Nothing is held."""


class _Line(_Plain):
    """A terminal: the last line is the bar. While it is shown, sys.stdout puts what is printed above it."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self._bar = ""
        self._before: Any = None
        if stream is sys.stdout:
            self._before = stream
            sys.stdout = _Above(self, stream)  # type: ignore[assignment]

    def draw(self, title: str, done: int, total: int, rest: str) -> None:
        """The bar, instead of the one before."""
        filled = BAR_CHARS * done // total
        bar = "=" * filled + (">" if filled < BAR_CHARS else "") + " " * (BAR_CHARS - filled - 1)
        width = shutil.get_terminal_size().columns
        self._put(f"{title}  [{bar[:BAR_CHARS]}]  {done}/{total}{rest}"[: width - 1])

    def say(self, line: str) -> None:
        """A line that stays, instead of the bar."""
        self._put("")
        super().say(line)

    def write_above(self, text: str) -> None:
        """What others print: the bar makes room, and comes back when the line is complete."""
        bar = self._bar
        self._put("")
        self._stream.write(text)
        if text.endswith("\n"):
            self._put(bar)

    def _put(self, bar: str) -> None:
        if self._bar:
            self._stream.write("\r" + " " * len(self._bar) + "\r")
        self._bar = bar
        self._stream.write(bar)
        self._stream.flush()

    def close(self) -> None:
        """The bar goes, stdout is what it was."""
        self._put("")
        if self._before is not None and isinstance(sys.stdout, _Above):
            sys.stdout = self._before
        self._before = None


class _Above:
    """sys.stdout while a bar is shown."""

    def __init__(self, line: _Line, stream: TextIO) -> None:
        self._line, self._stream = line, stream

    def write(self, text: str) -> int:
        """Above the bar. Returns the number of characters, as streams do."""
        self._line.write_above(text)
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class _Widget:
    """A notebook: a bar with its numbers next to it. When it closes, the last line stays as text."""

    def __init__(self) -> None:
        import ipywidgets  # only here: importing the package must not load it
        from IPython.display import display

        self._bar = ipywidgets.IntProgress(min=0, max=1)
        self._title, self._text = ipywidgets.Label("training"), ipywidgets.Label("")
        self._box = ipywidgets.HBox([self._title, self._bar, self._text])
        self._last = ""
        display(self._box)

    def draw(self, title: str, done: int, total: int, rest: str) -> None:
        """The bar as it is now."""
        self._title.value, self._bar.max, self._bar.value = title, total, done
        self._text.value = f"{done}/{total}{rest}"

    def say(self, line: str) -> None:
        """A line: next to the bar, and as text when it closes."""
        self._text.value = self._last = line

    def close(self) -> None:
        """The widget goes, its last line stays."""
        for widget in (self._box, self._title, self._bar, self._text):
            widget.close()
        if self._last:
            print(self._last)
