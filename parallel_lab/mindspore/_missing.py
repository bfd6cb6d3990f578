"""What MindSpore has and this package has not: names that can be imported, and that say what is missing when used.

    from mindspore import RowTensor, nn   # no error: a script may import what it never uses
    RowTensor(...)                        # NotBuiltYet: mindspore.RowTensor is missing here. Gradients are dense ...
    class Own(RowTensor): ...             # no error either before one is made: public packages define such by import

`_names.py` lists these names. What MindSpore never had is refused by the import itself, with the nearest name.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any

from ..base.errors import MissingImport, MissingModule, MissingName, NotBuiltYet, message
from ..base.origin import caller
from ._lookup import HINTS, THEIRS, home_of, is_open, is_private, joined, names_of
from ._names import NAMES
from ._tables import PAGES


class Missing:
    """A name of MindSpore's that this package lacks. It can be imported, passed on and derived from; nothing is an
    instance of it.

    Calling it or a class derived from it, or taking an element, raises NotBuiltYet, reading an attribute MissingName.
    """

    def __init__(self, path: str, name: str) -> None:
        self.__dict__.update(_path=path, __name__=name)

    def _text(self, what: str = "") -> str:
        path, name = self.__dict__["_path"], self.__dict__["__name__"]
        given = f"{joined(shown(path), name)} is missing here{what}"
        return message(given, where=caller().place, allowed=PARTIAL, hint=hint_for(path, name))

    def _refuse(self, *args: Any, **kwargs: Any) -> Any:
        raise NotBuiltYet(self._text())

    __call__ = __getitem__ = __iter__ = __enter__ = _refuse

    def __mro_entries__(self, bases: tuple) -> tuple[type]:
        return (type(self.__name__, (), {"__new__": lambda kind, *args, **kwargs: self._refuse()}),)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"{self!r} has no attribute {name!r}", name=name, obj=self)
        raise MissingName(self._text(f", and so is its {name!r}"), name=name, obj=self)

    def __instancecheck__(self, value: Any) -> bool:
        return False

    def __subclasscheck__(self, kind: Any) -> bool:
        return False

    def __or__(self, other: Any) -> Any:
        return Any  # in annotations: CTCLoss | None

    __ror__ = __or__

    def __repr__(self) -> str:
        return f"<{joined(shown(self.__dict__['_path']), self.__dict__['__name__'])}, which is missing here>"


PARTIAL = "parallel_lab is not all of MindSpore"


def shown(path: str) -> str:
    """A page as scripts import it: "mindspore.nn"."""
    return joined(THEIRS, path) if path else THEIRS


def borrows(path: str) -> bool:
    """Whether a module gives what other modules have: those that MindSpore does not document import what they use, but
    the names of a library of its own (numpy, mint, experimental, ...) mean something else there.
    """
    return path not in NAMES and not f"{path}.".startswith(LIBRARIES)


LIBRARIES = ("numpy.", "scipy.", "mint.", "experimental.", "boost.", "dataset.", "nn.probability.", "rewrite.", "hal.")


def is_theirs(path: str, name: str) -> bool:
    """Whether MindSpore's module at `path` has, or may have, this name.

    Documented modules have what is documented. Nobody knows what the others import: they may have any name that
    is documented, and those that this package lacks any name. What has an underscore is never documented.
    """
    if name.startswith("_") or is_private(path) or is_open(path) or name in NAMES.get(path, "").split():
        return True
    return path not in NAMES and (bool(home_of(name)) or any(name in names.split() for names in NAMES.values()))


# ---- errors ----


def missing(path: str, name: str, *, imported: bool) -> MissingName | MissingImport:
    """The error for a name that MindSpore's module never had."""
    where = shown(path)
    text = message(f"{where} has no {name!r} here", allowed=PARTIAL, hint=hint_for(path, name))
    return MissingImport(text, name=where) if imported else MissingName(text, name=name)


def missing_module(path: str) -> MissingModule:
    """The error for a module that MindSpore never had."""
    hint = HINTS.get(path) or HINTS.get(path.rpartition(".")[2])
    if not hint:
        near = nearest(path, [p for p in PAGES if p])
        hint = f"The nearest here: {' or '.join(map(shown, near))}" if near else "dir(mindspore) lists what there is"
    what = f"there is no module {shown(path)} here"
    return MissingModule(what, allowed=PARTIAL, hint=hint, name=shown(path))


def hint_for(path: str, name: str) -> str:
    """What to use instead of a name."""
    known = HINTS.get(joined(path, name)) or HINTS.get(name)
    while not known and path and is_open(path):
        known = HINTS.get(path) or HINTS.get(path.rpartition(".")[2])
        path = path.rpartition(".")[0]
    if known:
        return known
    if alike := same_letters(name, names_of(path)):
        return f"The nearest here: {' or '.join(alike)}"
    if home := home_of(name):
        return f"It is in {home}: from {home} import {name}"
    if any(name in names.split() for names in NAMES.values()):
        return f"dir({shown(path)}) lists what there is"  # no slip of the pen: what is spelled alike is another thing
    near = nearest(name, names_of(path))
    everywhere = dict.fromkeys(n for page in PAGES for n in names_of(page) if joined(page, n) not in PAGES)
    close = difflib.get_close_matches(name, everywhere, 1, 0.85)
    if close and close[0] not in near:
        return f"The nearest is {close[0]}: from {home_of(close[0])} import {close[0]}"
    if near:
        return f"The nearest here: {' or '.join(near)}"
    return f"dir({shown(path)}) lists what there is"


def same_letters(name: str, names: Sequence[str]) -> list[str]:
    """At most three of `names` that differ from `name` in capitals and underscores only."""
    wanted = name.replace("_", "").lower()
    return [n for n in names if n != name and n.replace("_", "").lower() == wanted][:3]


def nearest(name: str, names: Sequence[str]) -> list[str]:
    """At most three of `names` that look like `name`."""
    if same := same_letters(name, names):
        return same
    plain = {n: n.replace("_", "").lower() for n in names}
    wanted = name.replace("_", "").lower()
    close = difflib.get_close_matches(name, names, 3, 0.7)
    return close or [n for n, p in plain.items() if len(p) > 3 and (p in wanted or wanted in p)][:3]
