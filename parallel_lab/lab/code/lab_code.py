"""What a lab that writes programs has: `code(target)`, `save_code(folder, target)`, and the tabs that show them.

class FusionLab(ComparesRuns, WritesCode):
    def _codes(self): return code_of_fusion(...)
    def _code_key(self): return self._key()
"""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import numpy as np

from ...base.errors import ArgumentError, DataFileError, shorten
from ...base.files import write_whole
from ..shared.lab import Lab
from ..shared.problems import get_problem
from ..shared.sections import Section, code
from .data import FILES
from .program import LABELS, TARGETS


class WritesCode(Lab):
    """A lab whose setting can be had as programs. What it shows of them is kept until the setting changes.

    paste_example   a line of MindSpore that sets the lab (`set_code`), shown in the empty field
    """

    paste_example: str

    _kept_codes: tuple[Any, dict[str, str]] | None = None

    def _codes(self) -> dict[str, str]:
        """The programs by target."""
        raise NotImplementedError

    def _code_key(self) -> Any:
        """What the programs depend on."""
        raise NotImplementedError

    def codes(self) -> dict[str, str]:
        """All programs; where a library has no form of the setting, the reason as a comment."""
        key = self._code_key()
        if self._kept_codes is None or self._kept_codes[0] != key:
            self._kept_codes = key, self._codes()
        return self._kept_codes[1]

    def code(self, target: str = "mindspore") -> str:
        """The setting as a program for "mindspore", "torch" or "jax", or in words why it has no program there."""
        if target not in TARGETS:
            where = f"{type(self).__name__}.code"
            raise ArgumentError(f"target {shorten(target)}", where=where, allowed=f"One of {', '.join(TARGETS)}")
        return self.codes()[target]

    def save_code(self, folder: str | os.PathLike[str], target: str = "mindspore") -> Path:
        """Write the program into a folder as lab_mindspore.py (lab_torch.py, lab_jax.py), and next to it the arrays
        that it reads, if any. Returns the program's path; raises DataFileError if they cannot be written.
        """
        text, folder = self.code(target), Path(folder)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DataFileError(error.strerror or str(error), where=str(folder)) from error
        for name, count in FILES.items():
            if f'np.load("{name}.npz")' in text:
                arrays = [np.array([batch[k] for batch in get_problem(name).batches]) for k in range(count)]
                data = io.BytesIO()
                np.savez(data, *arrays)
                write_whole(folder / f"{name}.npz", data.getvalue())
        return write_whole(folder / f"lab_{target}.py", text)

    def code_sections(self) -> dict[str, Section]:
        """A section per target. A page is computed for many settings, but only the lab's own has its programs:
        those of all settings would take up the whole page.
        """
        texts = {t: f'# with these settings, in a notebook: lab.code("{t}")\n' for t in TARGETS}
        if not self.is_branch:
            texts = {target: _shown(target, text) for target, text in self.codes().items()}
        sections = {f"code_{target}": code(f"In {LABELS[target]}", text) for target, text in texts.items()}
        sections["code_mindspore"]["paste_example"] = self.paste_example
        return sections


def shard_line(operator: str, strategy: Any) -> str:
    """The line that gives an operator a strategy, as `paste_example`.

    >>> shard_line("dense1.matmul", ((2, 1), (1, 1)))
    'self.dense1.matmul.shard(((2, 1), (1, 1)))'
    """
    return f"self.{operator}.shard({strategy})"


LONGEST = 20_000  # characters in a tab; longer ones are for a file


def _shown(target: str, text: str) -> str:
    if len(text) <= LONGEST:
        return text
    lines = text.count("\n")
    return f'# {lines} lines: lab.save_code("folder", "{target}") writes them, lab.code("{target}") is the text\n'
