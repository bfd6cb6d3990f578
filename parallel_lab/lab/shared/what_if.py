"""What a choice would lead to, before it is made: the numbers of the bars in a list, and the picture it would give.

    lab.what_if("set_strategy", "matmul", "((8, 1), (1, 1))").snapshot()
    print(lab.compare("set_strategy", "matmul"))      # a line per strategy: its step, what it sends, its memory

Every number is predicted. A view asks for the rows of an open list one after the other, so nothing waits for all of
them, and for a picture only where one points; a page without a kernel takes both from the settings it replays.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

from ...base.errors import ParallelLabError
from .lab import Lab
from .page import LabOnPage
from .replay import WHOLE, Limits, call_text
from .sections import cell_text, open_question, section_text, table

Weight = dict[str, tuple[float, str]]  # {"step": (8.6e-4, "time")}: a value and its format (sections.py), by its name
MOST_KEPT = 500


class WeighsChoices(Lab):
    """A lab whose lists show what each choice would lead to.

    weighed   the commands of those lists
    """

    weighed: ClassVar[tuple[str, ...]] = ()
    _weights: dict[str, Weight | str] | None = None

    def weight(self) -> Weight:
        """What the present settings lead to, as predicted: the same names whatever is set."""
        raise NotImplementedError

    def refusal(self, call: Sequence[Any]) -> str:
        """Why a command that raises nothing has changed nothing; "" if it has."""
        return ""

    def stands(self, *more: Any) -> str:
        """A short text that changes with anything that weights depend on: the settings, and `more`."""
        return f"{zlib.crc32(f'{call_text(self.calls())}{more!r}'.encode()):08x}"

    def what_if(self, command: str, *arguments: Any) -> Self:
        """A lab of its own that has done this; the lab itself stays as it is. Raises what the command raises."""
        self.check_command(command, arguments, type(self).__name__)
        other = self.branch()
        getattr(other, command)(*arguments)
        if refused := other.refusal((command, *arguments)):
            raise ParallelLabError(refused)
        return other

    def weigh(self, command: str, *arguments: Any) -> Weight | str:
        """The `weight` after a command, or why that is refused; the last MOST_KEPT are kept."""
        kept = self._weights = {} if self._weights is None else self._weights
        key = f"{self.stands()} {call_text((command, *arguments))}"
        if key not in kept:
            try:
                kept[key] = self.what_if(command, *arguments).weight()
            except ParallelLabError as error:
                kept[key] = str(error)
            for old in list(kept)[:-MOST_KEPT]:
                del kept[old]
        return kept[key]

    def compare(self, command: str, *given: Any) -> str:
        """A line for each value that the command can take after the `given` ones: what it would lead to."""
        calls = [call for call in self.replays() if tuple(call[:-1]) == (command, *given)]
        return _compared((command, *given), {_word(call[-1]): self.weigh(*call) for call in calls})

    def on_page(
        self, title: str | None = None, *, controls: bool = True, limits: Limits = WHOLE, **how: Any
    ) -> LabOnPage:
        """The page says in words, too, what the choices it replays would lead to."""
        page = super().on_page(title, controls=controls, limits=limits, **how)
        if open_question(page.snapshot) or not page.replay.moves:
            return page
        found: dict[tuple[Any, ...], dict[str, Weight | str]] = {}
        for text, to in page.replay.moves[0].items():
            *start, choice = json.loads(text)
            if start and start[0] in self.weighed:
                weight = to if isinstance(to, str) else page.replay.states[to]["weight"]
                found.setdefault(tuple(start), {})[_word(choice)] = weight
        lists = (_compared(start, weights) for start, weights in found.items())
        return page._replace(words="\n\n".join([page.words.rstrip("\n"), *lists]) + "\n")


def _word(choice: Any) -> str:
    return "default" if choice is None else str(choice)


def _compared(start: Sequence[Any], weights: Mapping[str, Weight | str]) -> str:
    """Weights as a table of text; a refusal in words."""
    names = list(dict.fromkeys(name for found in weights.values() if not isinstance(found, str) for name in found))
    rows = []
    for choice, found in weights.items():
        cells = [found] if isinstance(found, str) else [cell_text(*found[name]) for name in names]
        rows.append([choice, *cells])
    title = f"What {' '.join(map(str, start)).replace('_', ' ')} would lead to"
    return "\n".join(section_text(table(title, dict.fromkeys(("", *names), "text"), rows, small="predicted"), {}))
