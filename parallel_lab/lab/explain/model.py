"""The Explain Lab: a program is pasted, and its own lines say what each of them sends, what it holds, and why.

    lab = ExplainLab("train.py")            # a file, the text itself, or the name of an example
    print(lab.to_text())
    lab.set_line(31)                        # what happens there
    lab.set_devices(4)                      # the same program on 4 ranks
    lab.set_program(text)                   # another one

What is pasted is data: it is read (`explanation.py`) and never run. Where a text is not Python it is refused with the
line, and the lab stays as it was; whatever else it holds, reading ends after a number of steps and says so.
`section.py` makes the tables; any lab can have them.
"""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

from ...base.errors import ArgumentError, shorten
from ...base.units import bytes_text, plural
from ..shared.lab import Lab, setting
from ..shared.questions import COMMANDS, Question
from ..shared.sections import code
from .explanation import Explanation, read_program, text_of
from .section import FOLDED, ByLine, program_sections

OWN, OWN_NAME = "own", "pasted"
EXAMPLES = {
    "torch_tp": "PyTorch, tensor parallel",
    "torch_fsdp": "PyTorch, fully_shard",
    "torch_dtensor": "PyTorch, DTensor",
    "torch_pipeline": "PyTorch, pipeline",
    "jax_jit": "JAX, jit with shardings",
    "jax_shard_map": "JAX, shard_map",
    "hyper_parallel": "HyperParallel, DTensor",
    "mindspore": "MindSpore, semi_auto",
}
DEVICES = {0: "its own"} | {n: str(n) for n in (4, 8, 16)}
PARTS = ("program", "line", "tables")  # of the view


def example(name: str) -> str:
    """The text of an example."""
    return (Path(__file__).parent / "programs" / f"{name}.txt").read_text(encoding="utf-8")


class ExplainLab(Lab):
    """A program for several devices, line by line.

    program  the name of an example, or what `explain` takes: a text or the path of a file, with what it imports from
             its folder
    devices  ranks that start it, one of DEVICES; 0: what its first comment says, else 8

    Raises ArgumentError: not Python, too long, or a number that is not offered.
    """

    title = "Explain Lab"
    scripts = ("explain/story.js", "explain/explain_lab.js")
    styles = ("explain/explain_lab.css",)
    commands = ("set_program", *COMMANDS)
    also_kept = ("set_program",)
    replayed = ("example",)
    frame_height_px = 700

    def __init__(self, program: Any = "torch_tp", devices: int = 0, *, controls: str = "", story: bool = False) -> None:
        super().__init__(controls=controls, story=story)
        self._begin(devices=devices, lines="busy")
        named = isinstance(program, str) and program in EXAMPLES
        text = example(program) if named else text_of(program)
        self._set(example=program if named else OWN, program=text, line=0)
        self._folder = None if named or text is program else Path(program).parent
        self._update()

    # ---- what is chosen ----

    @setting("program", lambda lab: EXAMPLES if lab._example in EXAMPLES else EXAMPLES | {OWN: OWN_NAME}, only_new=True)
    def set_example(self, example_: str) -> dict[str, Any]:
        """An example, such as "torch_fsdp"."""
        if example_ == OWN:
            return {}
        return {"program": example(example_), "line": 0, "folder": None}

    @setting("ranks", DEVICES)
    def set_devices(self, devices: int) -> dict[str, Any]:
        """So many ranks start it; 0: what its first comment says, else 8."""
        return {"line": 0}

    @setting("lines", FOLDED, look=True)
    def set_lines(self, lines: str) -> None:
        """Those that do something, "busy", or "all"."""

    @setting("line", lambda lab: lab._by.busy or [0], look=True)
    def set_line(self, line: int) -> None:
        """The line that is looked at."""

    def set_program(self, text: str) -> None:
        """Read a program, as text: never the name of a file. Raises ArgumentError, with the line, for another text."""
        if not isinstance(text, str) or not text.strip():
            raise ArgumentError(f"the program {shorten(text)}", where="ExplainLab", allowed="A text")
        self._change(example=OWN, program=text, line=0, folder=None)

    def _update(self) -> None:
        found = read_program(self._program, self._devices or None, self._folder)
        self._found, self._by = found, ByLine(found)
        self._kept = program_sections(found, self._by, command="set_line")
        known = self._by.busy or [0]
        self._line = self._line if self._line in known else self._by.heaviest

    @property
    def found(self) -> Explanation:
        """What was found in the program."""
        return self._found

    def calls(self) -> list[list[Any]]:
        """The choices; of a program that was pasted its text."""
        calls = [call for call in super().calls() if call != ["set_example", OWN]]
        return [["set_program", self._program], *calls] if self._example == OWN else calls

    # ---- what is shown ----

    def parts(self) -> dict[str, Any]:
        """What the views show, as plain data."""
        return {"status": self._status(), "sections": {**self._kept, "python": code("Code", self._code(), tab=True)}}

    def questions(self) -> list[Question]:
        """How many messages rank 0 sends; which line sends most."""
        found, about = (
            self._found,
            f"{self._example}, {self._found.ranks} ranks, {zlib.crc32(self._program.encode(errors='replace'))}",
        )
        text = f"How many messages does rank 0 send in this program, on {plural(found.ranks, 'rank')}?"
        kinds = self._counted("no message")
        asks = [Question(f"messages of {about}", text, (len(found.messages),), f"it sends {kinds}", hides=PARTS)]
        if found.messages:
            most = self._by.heaviest
            why = f"line {most} sends {bytes_text(self._by.sent[most])}"
            asks.append(Question(f"line of {about}", "Which line sends most bytes?", (most,), why, hides=PARTS[1:]))
        return asks

    def _counted(self, none: str) -> str:
        kinds: dict[str, int] = {}
        for message in self._found.messages:
            kinds[message.kind] = kinds.get(message.kind, 0) + 1
        return ", ".join(f"{n} {kind}" for kind, n in kinds.items()) or none

    def _status(self) -> str:
        found, unread = self._found, len(self._by.unread)
        where = "; ".join(map(str, found.meshes)) or plural(found.ranks, "rank")
        size = bytes_text(sum(m.size_bytes for m in found.messages))
        sent = f"rank 0 sends {self._counted('')}: {size}" if found.messages else "rank 0 sends nothing"
        read = "Every line was understood" if not unread else f"{plural(unread, 'line')} not understood"
        return f"{found.source} on {where}: {sent}. {read}. Nothing was run."

    def _code(self) -> str:
        devices = f", devices={self._devices}" if self._devices else ""
        return (
            f'found = pl.explain("train.py"{devices})      # a file, or the text itself\n'
            "print(found)                             # the lines with layouts, messages, bytes, memory and reasons\n"
            "found.messages, found.unread             # what rank 0 sends, in order; lines that were not understood"
        )
