"""What the ranks print: one log file each, and one console on which every line says whose it is.

    [0] epoch: 1 step: 4, loss is 0.3673
    [3] epoch: 1 step: 4, loss is 0.3673

Lines stay whole, and a rank's lines stay in its order. Equal tracebacks of several ranks become one, tagged `[0-7]`;
with `fold` so do all equal lines that come at about the same time. The log files hold every byte as it was written.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, TextIO

from ..shm.watch import ranges_text

FOLD_S = 0.3  # how long a line waits for its like from other ranks
TRACE_S = 1.0  # a traceback, and what came after it: at most; a run usually ends with them
_TRACES = "Traceback (most recent call last):", '  File "'  # a SyntaxError has no first line
LONGEST_LINE = 64 << 10  # bytes; a longer line is shown in pieces
COLOURS = (32, 33, 34, 35, 36, 92, 93, 94, 95, 96)  # of the tags, rank by rank; red is left to errors (ECMA-48, SGR)


def mpirun_logs(folder: Path, world_size: int) -> list[Path]:
    """The log file per rank, where `mpirun --output-filename folder` puts it: the number has as many digits as the
    largest one.

    >>> [str(path) for path in mpirun_logs(Path("log_output"), 2)]
    ['log_output/1/rank.0/stdout', 'log_output/1/rank.1/stdout']
    """
    digits = len(str(world_size - 1))
    return [folder / "1" / f"rank.{rank:0{digits}d}" / "stdout" for rank in range(world_size)]


@dataclass
class _Line:
    text: str
    due_s: float
    ranks: list[int] = field(default_factory=list)
    is_trace: bool = False  # all that its rank has written since it began


class Console:
    """Takes the bytes of each rank. `logs`: file per rank (None: no files); `stream`: where lines go (None: only
    files); `tag`: the rank before each line; `fold`: equal lines of ranks become one; `colour` the tags; `only` these
    ranks.
    """

    def __init__(
        self,
        world_size: int,
        *,
        logs: list[Path] | None = None,
        stream: TextIO | None = sys.stdout,
        tag: bool = True,
        fold: bool = False,
        colour: bool = False,
        only: set[int] | None = None,
    ) -> None:
        self.world_size, self.logs, self.stream = world_size, logs, stream
        self._tag, self._fold, self._colour, self._only = tag, fold and tag, colour, only
        self._rest = [b""] * world_size
        self._waiting: list[_Line] = []
        self._living = set(range(world_size)) if only is None else set(only)
        self._files: list[BinaryIO] = []
        self._unsaid = ""  # what the next `flush` tells
        try:
            for path in logs or ():
                path.parent.mkdir(parents=True, exist_ok=True)
                self._files.append(open(path, "wb", buffering=0))  # noqa: SIM115 - closed by close(); unbuffered: it can be read while the rank runs
        except OSError as error:
            self._lose_logs(error)

    def feed(self, rank: int, data: bytes) -> None:
        """Bytes that `rank` has written."""
        if self._files:
            try:
                self._files[rank].write(data)
            except OSError as error:  # a full disk is not a reason to lose the run as well
                self._lose_logs(error)
        *lines, rest = (self._rest[rank] + data).split(b"\n")
        if len(rest) > LONGEST_LINE:
            lines, rest = [*lines, rest], b""
        self._rest[rank] = rest
        for line in lines:
            self._line(rank, line)
        self.flush()

    def end_of(self, rank: int) -> None:
        """Nothing more comes from `rank`: a last line without an end is one too."""
        rest, self._rest[rank] = self._rest[rank], b""
        if rest:
            self._line(rank, rest)
        self._living.discard(rank)
        self.flush()

    def note(self, text: str) -> None:
        """A line of the launcher's own, after everything that came before it."""
        self.flush(everything=True)
        self._write(f"parallel-lab: {text}\n")

    def flush(self, *, everything: bool = False) -> None:
        """Show the lines that wait for nothing any more."""
        if self._unsaid:
            text, self._unsaid = self._unsaid, ""
            self.note(text)
        now = time.monotonic()
        while self._waiting:
            line = self._waiting[0]
            may_come = self._living if line.is_trace else self._living.difference(line.ranks)
            if not everything and now < line.due_s and may_come:
                break
            self._waiting.pop(0)
            equal = [one for one in self._waiting if line.is_trace and (one.is_trace, one.text) == (True, line.text)]
            if equal:  # the last one stands for all: what its rank wrote before has been shown then
                equal[-1].ranks += line.ranks
                continue
            for text in line.text.split("\n"):
                self._show(line.ranks, text)
        with self._reader_may_go():
            if self.stream is not None:
                self.stream.flush()

    def close(self) -> None:
        """Show what is left and close the files."""
        try:
            for rank in range(self.world_size):
                self.end_of(rank)
            self.flush(everything=True)
        finally:
            self._close_files()

    def _lose_logs(self, error: OSError) -> None:
        """Go on without log files."""
        self._close_files()
        where = f" ({error.filename})" if error.filename else ""
        self._unsaid = f"warning: log files cannot be written{where}: {error.strerror}; the run goes on without them"
        self.logs = None

    def _close_files(self) -> None:
        files, self._files = self._files, []
        for file in files:
            with contextlib.suppress(OSError):
                file.close()

    def _line(self, rank: int, line: bytes) -> None:
        if self.stream is None or (self._only is not None and rank not in self._only):
            return
        # a progress bar returns to the start of its line again and again: what stands there in the end is the line
        text = line.decode(errors="replace").rstrip("\r").rpartition("\r")[2]
        if not self._fold:
            trace = next((one for one in self._waiting if one.is_trace and rank in one.ranks), None)
            begins = self._tag and text.startswith(_TRACES)
            if trace is not None:
                trace.text += f"\n{text}"
            elif begins or self._waiting:
                self._waiting.append(_Line(text, time.monotonic() + TRACE_S * begins, [rank], begins))
            else:
                self._show([rank], text)
            return
        latest = max((i for i, other in enumerate(self._waiting) if rank in other.ranks), default=-1)
        for other in self._waiting[latest + 1 :]:
            if other.text == text:
                other.ranks.append(rank)
                return
        self._waiting.append(_Line(text, time.monotonic() + FOLD_S, [rank]))

    def _show(self, ranks: list[int], text: str) -> None:
        tag = ""
        if self._tag:
            tag = f"[{ranges_text(ranks).replace(', ', ',')}] "
            if self._colour and len(ranks) == 1:
                tag = f"\x1b[{COLOURS[ranks[0] % len(COLOURS)]}m{tag}\x1b[0m"
        self._write(f"{tag}{text}\n")

    def _write(self, text: str) -> None:
        with self._reader_may_go():
            if self.stream is None:
                return
            try:
                self.stream.write(text)
            except UnicodeEncodeError:  # a terminal of another alphabet: shown as \u03b1, not lost
                code = self.stream.encoding
                self.stream.write(text.encode(code, "backslashreplace").decode(code))

    @contextlib.contextmanager
    def _reader_may_go(self) -> Iterator[None]:
        """A reader that has gone (`| head -2`) is reported once: what ends the run must not fail on every line."""
        try:
            yield
        except OSError:
            self.stream = None
            raise
