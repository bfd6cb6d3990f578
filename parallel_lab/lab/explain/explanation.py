"""`explain`: what a program for several devices sends, read from its text and not run.

    print(pl.explain("train.py"))                        # a file, or the text itself, or a log of PyTorch's DebugMode
    pl.explain(text).messages                            # [Message, ...] in order
    pl.explain("train.py", run=True).differences         # PyTorch runs it, on a fake group; what is different

A program of PyTorch (DTensor, parallelize_module, fully_shard, pipelining), JAX (jit with shardings, shard_map) or
HyperParallel is read statement by statement (`reading.py`); tables say what its names mean; layouts, messages and
gradients are those of the distributed tensor (`world.py`). A network of MindSpore becomes a Cell, which is compiled
(`mindspore_front.py`). Lines that are not understood are listed, with the reason.
"""

from __future__ import annotations

import html
import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ...base.checks import fitting, flag, integer
from ...base.errors import ArgumentError, MissingPackage, shorten
from ...base.files import read_regular
from ...layout.device_mesh import DeviceMesh
from ..grading.confine import Limits
from ..grading.confined import run_confined
from .debug_log import LOG, read_log
from .hyper_names import HyperFront
from .jax_names import JaxFront
from .mindspore_names import MindSporeFront
from .modules import ModuleFront
from .reading import Reader
from .syntax import Files, bounded
from .values import LONGEST
from .world import Message, Step, World

RANKS = re.compile(r"(?:nproc[-_]per[-_]node|worker_num|device_count)[= ]+(\d{1,5})|run .*?-n[= ]*(\d{1,5})")
ROOTS = re.compile(r"^[ \t]*+(?:from|import)[ \t]++([\w.]+)", re.MULTILINE)
MOST_RANKS = 65_536
LIMITS = Limits(time_s=120, memory_bytes=4 << 30)  # of a program that is run
RIGHTS = "behind the walls of submissions"
FRONTS = {  # front, name, policy and planner of redistributions
    "jax": (JaxFront, "JAX", "gspmd", ""),
    "hyper_parallel": (HyperFront, "HyperParallel", "explicit", "by dims"),
}
COLUMNS = ("line", "program", "what", "layouts", "message", "bytes", "memory", "why")


@dataclass(frozen=True)
class Row:
    """A line of the explanation.

    line, text    of the program
    what          the operator, or what was placed;  layouts: of operands -> of the result, per axis of the mesh
    message       what rank 0 sends, "" for nothing;  size_bytes: that it gives
    memory_bytes  of the result, on rank 0;  reason: of the message;  times: that it happened
    """

    line: int
    text: str
    what: str
    layouts: str
    message: str
    size_bytes: int
    memory_bytes: int
    reason: str
    times: int = 1

    @property
    def cells(self) -> tuple[str, ...]:
        """As shown, in the order of COLUMNS."""
        sent = f"{self.size_bytes:,}" if self.message else ""
        times = f" (x {self.times})" if self.times > 1 else ""
        memory = f"{self.memory_bytes:,}" if self.memory_bytes else ""
        return str(self.line), self.text, self.what + times, self.layouts, self.message, sent, memory, self.reason


@dataclass
class Explanation:
    """What was found.

    source    "PyTorch", "JAX", "HyperParallel", "MindSpore", "DebugMode log";  ranks, meshes: that the program makes
    events    what was computed, placed and sent, in order;  unread: [(line, reason)]
    ran       with run=True, the messages that PyTorch sent: [[kind, axis, shape, reduction?], ...]
    files     the program and those next to it that it imports, whose lines are numbered on after its own
    """

    source: str
    program: str
    ranks: int
    meshes: Sequence[DeviceMesh] = ()
    events: Sequence[Message | Step] = ()
    unread: list[tuple[int, str]] = field(default_factory=list)
    ran: list[list[Any]] | None = None
    files: Files | None = None

    @property
    def lines(self) -> list[str]:
        """The lines of the program, and of the files next to it that it imports."""
        return self.program.splitlines() if self.files is None else self.files.lines

    @property
    def messages(self) -> list[Message]:
        """What rank 0 sends, in order."""
        return [e for e in self.events if isinstance(e, Message)]

    @property
    def forward(self) -> list[list[Any]]:
        """[kind, axis, shape given by a rank, reduction unless it is a sum] of all but what autograd sends."""
        return [m.row() for m in self.messages if m.phase != "backward"]

    @property
    def backward(self) -> list[list[Any]]:
        """The same of what is sent while gradients are computed."""
        return [m.row() for m in self.messages if m.phase == "backward"]

    @property
    def differences(self) -> list[str]:
        """Where what was run and what was read differ. Raises ArgumentError: nothing was run."""
        if self.ran is None:
            raise ArgumentError("nothing was run", where="explain", allowed="explain(program, run=True)")
        read = [m.row() for m in self.messages]
        pairs = [*zip(read, self.ran, strict=False)]
        found = [f"message {i}: read {a}, run {b}" for i, (a, b) in enumerate(pairs) if a != b]
        more = read[len(pairs) :] or self.ran[len(pairs) :]
        return found + [f"{'read' if len(read) > len(pairs) else 'run'} alone: {one}" for one in more]

    @cached_property
    def rows(self) -> list[Row]:
        """One per line and thing that happens there; what repeats is counted."""
        lines, found = self.lines, {}
        for event in self.events:
            text = lines[event.line - 1].strip() if 0 < event.line <= len(lines) else ""
            if isinstance(event, Message):
                reduce = f" ({event.reduce})" if event.reduce not in ("", "sum") else ""
                over = f" over {event.over}" if event.over else ""
                message = f"{event.kind}{reduce}{over} of {event.dtype} {list(event.shape)}"
                row = Row(event.line, text, event.phase, "", message, event.size_bytes, 0, event.reason)
            else:
                row = Row(event.line, text, event.what, event.layouts, "", 0, event.memory_bytes, event.reason)
            found[row] = found.get(row, 0) + 1
        return [Row(*(getattr(row, name) for name in Row.__match_args__[:-1]), times) for row, times in found.items()]

    @property
    def summary(self) -> str:
        """Ranks, meshes, messages and bytes in a line."""
        kinds: dict[str, list[int]] = {}
        for m in self.messages:
            kinds.setdefault(m.kind, []).append(m.size_bytes)
        sent = ", ".join(f"{len(sizes)} {kind} ({sum(sizes):,} bytes)" for kind, sizes in kinds.items()) or "no message"
        meshes = "; ".join(map(str, self.meshes)) or "no mesh"
        read = "all lines read" if not self.unread else f"{len(self.unread)} lines not read"
        return f"{self.source}, {self.ranks} ranks, {meshes}. Rank 0 sends: {sent}. {read}."

    def __repr__(self) -> str:
        """A cell that ends with it shows its text."""
        return self.text()

    def text(self) -> str:
        """The table as text, and what was not read."""
        shown = [row.cells for row in self.rows]
        cells = [tuple(shorten(c) if len(c) > 60 else c for c in row) for row in (COLUMNS, *shown)]
        widths = [max(len(row[i]) for row in cells) for i in range(len(COLUMNS))]
        table = ["  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in cells]
        lines = [self.summary, "", *(table if shown else [])]
        lines += [f"not read: line {line}: {reason}" for line, reason in self.unread]
        if self.ran is not None:
            lines += [
                f"run by PyTorch, {RIGHTS}: {'' if self.differences else 'the same messages'}".rstrip(),
                *self.differences,
            ]
        return "\n".join(lines)

    __str__ = text

    def to_html(self) -> str:
        """The same as a table that needs no script and no network."""
        head = "".join(f'<th scope="col">{name}</th>' for name in COLUMNS)
        body = "".join(
            f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row.cells)}</tr>" for row in self.rows
        )
        unread = "".join(f"<li>line {line}: {html.escape(reason)}</li>" for line, reason in self.unread)
        more = f"<p>Not read:</p><ul>{unread}</ul>" if unread else ""
        if self.ran is not None:
            lines = "".join(f"<li>{html.escape(d)}</li>" for d in self.differences)
            said = "other messages" if lines else "the same messages"
            more += f"<p>Run by PyTorch, {RIGHTS}: {said}</p><ul>{lines}</ul>"
        caption = html.escape(self.summary)
        return f"<table><caption>{caption}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}"

    _repr_html_ = to_html


@fitting
def explain(text_or_file: Any, run: bool = False, *, devices: int | None = None) -> Explanation:
    """Read a program for several devices, or a log of PyTorch's DebugMode.

    text_or_file  the text, or the path of a file; at most 200,000 characters, with what it imports from its folder
    run           PyTorch runs it too, in a process of its own, as rank 0 of a fake group: `Explanation.ran`
    devices       ranks that start it; None: what its first comment says (`torchrun --nproc-per-node 4`), else 8

    Nothing of the program is executed, unless `run` is True. Then all of it is, as a submission is that is graded
    (`lab/grading/confined.py`): it can read what is installed and its own folder alone, write that folder, and send
    nothing; it is ended after 120 s, above 4 GiB, and with the notebook. Raises ArgumentError: no text, too long, no
    Python, an error of the program that is run; MissingPackage: PyTorch, for run=True; WorldError: this machine has no
    walls, or the program was ended.
    """
    flag("explain", "run", run)
    text = text_of(text_or_file)
    made = read_program(text, devices, None if text is text_or_file else Path(text_or_file).parent)
    if run:
        made.ran = _run(made)
    return made


def read_program(text: str, devices: int | None = None, folder: Path | None = None) -> Explanation:
    """`explain` of a text, which is read as data, whatever it is.  folder: of its file, where others may lie"""
    bounded(text)
    files = Files(text, folder)
    found = RANKS.search(text[:4000])
    ranks = integer(1, MOST_RANKS)("explain", "devices", devices or (int(found[1] or found[2]) if found else 8))
    if LOG.search(text) and "import " not in text:
        return Explanation("DebugMode log", text, ranks, (), read_log(text))
    roots = {part.partition(".")[0] for part in ROOTS.findall(text)}
    if "mindspore" in roots and "hyper_parallel" not in roots or "parallel_lab.mindspore" in text:
        name, front = "MindSpore", MindSporeFront(World(ranks), ranks, bool(devices or found))
    else:
        given = (FRONTS[root] for root in FRONTS if root in roots)
        kind, name, policy, planner = next(given, (ModuleFront, "PyTorch", "torch", ""))
        front = kind(World(ranks, policy, planner, implicit=kind is JaxFront), ranks)
    reader = front.reader = Reader(files, front)
    with front.reading():
        reader.read()
    if not (devices or found) and ranks < front.largest <= MOST_RANKS:  # nobody has said how many there are
        return read_program(text, front.largest, folder)
    unread = [(line, files.place(line) + reason) for line, reason in sorted(reader.unread.items())]
    return Explanation(name, text, front.devices, tuple(front.meshes), tuple(front.world.events), unread, files=files)


def text_of(given: Any) -> str:
    """The program: the text itself, or what a file holds. Raises ArgumentError: the file cannot be read."""
    is_path = (
        isinstance(given, os.PathLike)
        or isinstance(given, str)
        and "\n" not in given
        and given.endswith((".py", ".txt"))
    )
    if not is_path:
        return given if isinstance(given, str) else str(given if given is not None else "")
    try:
        return read_regular(given, 4 * LONGEST).decode("utf-8")
    except (OSError, ValueError) as error:
        raise ArgumentError(
            f"the file {shorten(str(given))}: {error}", where="explain", allowed="A file of text"
        ) from None


def _run(found: Explanation) -> list[list[Any]]:
    """The messages that PyTorch sends. Raises ArgumentError: the program is another library's, or raises an error."""
    where = "explain(run=True)"
    if found.source != "PyTorch":
        raise ArgumentError(f"a program of {found.source}", where=where, allowed="One of PyTorch: others are only read")
    if find_spec("torch") is None:
        raise MissingPackage("torch", where=where, hint='pip install -e ".[oracle]"')
    script = Path(__file__).with_name("run_torch.py").read_text(encoding="utf-8")
    name, more = "program.py", found.files.read if found.files else {}
    printed = run_confined(script, [name, str(found.ranks)], {**more, name: found.program}, LIMITS, where)
    try:
        said = json.loads(printed.splitlines()[-1])
        error, messages = said["error"], [[*m[:3], m[3], m[5]] for m in said["messages"]]
    except (IndexError, ValueError, KeyError, TypeError) as fault:
        raise ArgumentError(f"the program gave no messages: {shorten(str(fault))}", where=where) from None
    if error:
        raise ArgumentError(f"the program raises {shorten(error, 300)}", where=where)
    return [[*m[:3], *([m[3]] if m[3] not in ("", "sum") else [])] for m in messages if m[4] != "setup"]
