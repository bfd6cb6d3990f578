"""How far a piece of work is: written by the work, read by a view, shown in a terminal or under a cell.

    with shown("plans", len(points)) as progress:       # tqdm's bar, once a second is over
        for point in points:
            price(point)
            progress.step()
    progress.text()                                     # "37 of 120, 4 s left"

The work knows nothing of who looks; without a reader a `Progress()` counts for nobody.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

SILENT_S = 1.0  # what is over by then needs no bar
UNATTENDED = "PARALLEL_LAB_WHOLE_PAGES"  # set while notebooks are run to be published: nobody waits
LEAST_S = 0.25  # between two readings of a counter: a view is drawn anew for each


class Progress:
    """Counts what is done of `total` (0: nobody knows) and estimates what is left, as if the rest went on alike.

    what    in words;  heard: called after a change, not within the first SILENT_S and at most every LEAST_S
    clock   growing seconds, for tests
    """

    def __init__(
        self,
        what: str = "",
        total: float = 0,
        heard: Callable[[], Any] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.what, self.total, self.heard, self.done = what, total, heard, 0.0
        self.say: Callable[[str], Any] = lambda text: print(text, flush=True)  # a line that stays, above the bar
        self._clock, self._begun = clock, clock()
        self._told, self._silent = self._begun, self._begun + SILENT_S

    def begin(self, total: float, what: str = "") -> None:
        """Count anew."""
        self.what, self.total, self.done, self._begun = what or self.what, total, 0.0, self._clock()
        self._tell(always=True)

    def step(self, count: float = 1, what: str = "") -> None:
        """So much more is done; what: done from now on."""
        self.done, self.what = self.done + count, what or self.what
        self._tell(always=bool(what))

    def _tell(self, *, always: bool) -> None:
        now = self._clock()
        if self.heard is not None and now >= self._silent and (always or now - self._told >= LEAST_S):
            self._told = now
            self.heard()

    @property
    def share(self) -> float | None:
        """From 0 to 1; None where the total is not known."""
        return min(1.0, self.done / self.total) if self.total else None

    @property
    def left_s(self) -> float | None:
        """Seconds, estimated; None before anything is done."""
        if not self.total or not self.done:
            return None
        return max(0.0, (self.total - self.done) * (self._clock() - self._begun) / self.done)

    def text(self) -> str:
        """ "37 of 120, 4 s left"; "" where nothing is counted."""
        if not self.total:
            return ""
        done, left = f"{self.done:.0f} of {self.total:.0f}", self.left_s
        if left is None or self.done >= self.total:
            return done
        return f"{done}, {f'{left:.0f} s' if left >= 1 else 'under 1 s'} left"


@contextmanager
def shown(what: str, total: float = 0) -> Iterator[Progress]:
    """A counter with tqdm's bar: on standard error where that is a terminal, under the cell in a notebook. Nothing is
    written within the first second, into a file or a pipe, or without tqdm.
    """
    progress = Progress(what, total)
    bar = bar_of(progress)
    if bar is None:
        yield progress
        return
    progress.heard, progress.say = (lambda: follow(bar, progress)), bar.write
    try:
        yield progress
    finally:
        bar.close()


def bar_of(progress: Progress) -> Any:
    """tqdm's bar of a counter, not drawn for a second; None where nobody would see it."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    in_notebook = type(shell).__name__ == "ZMQInteractiveShell"
    if os.environ.get(UNATTENDED) or not (in_notebook or sys.stderr.isatty()):
        return None
    try:
        from tqdm.auto import tqdm
    except ImportError:  # the work goes on without its bar
        return None
    if not hasattr(tqdm, "_lock"):  # its usual one: from Python 3.14 on, a semaphore in /dev/shm until Python ends
        tqdm.set_lock(threading.RLock())
    form = "{l_bar}{bar}| {elapsed}, {remaining} left"
    how = {"delay": SILENT_S, "leave": False, "bar_format": form, "mininterval": LEAST_S}
    return tqdm(total=progress.total or 1, desc=progress.what, **how)


def follow(bar: Any, progress: Progress) -> None:
    """Draw the bar of `bar_of` as the counter stands."""
    bar.total = progress.total or 1
    if bar.desc != f"{progress.what}: ":
        bar.set_description(progress.what, refresh=False)
    bar.update(progress.done - bar.n)
