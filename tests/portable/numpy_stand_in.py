"""A numpy that only records what is asked of it: with it every room can be imported where numpy cannot.

    become_numpy()
    import_rooms()        # {"count": modules imported, "faults": {module: why not}, "asked": names of numpy's}

This file alone is copied into Pyodide: it imports nothing of the tests.
"""

from __future__ import annotations

import importlib.machinery
import operator
import pkgutil
import sys
import types

ASKED: set[str] = set()
OPERATORS = [
    "add",
    "sub",
    "mul",
    "truediv",
    "floordiv",
    "mod",
    "pow",
    "neg",
    "abs",
    "and",
    "or",
    "xor",
    "invert",
    "lshift",
    "rshift",
    "matmul",
    "lt",
    "le",
    "gt",
    "ge",
]
OF_RANKS = (".rank_main", ".keeper", ".worker", ".server_preload", ".__main__", ".nbgrader_config")


class Recorded(type):
    """What any name of numpy is: a class that can be called, indexed, computed with and inherited from."""

    def __getattr__(cls, name: str) -> Recorded:
        if name.startswith("__"):
            raise AttributeError(name)
        ASKED.add(name)
        return named(name)

    def __call__(cls, *_: object, **__: object) -> Recorded:
        return cls

    def __getitem__(cls, _: object) -> Recorded:
        return cls

    def __iter__(cls):
        return iter(())

    def __len__(cls) -> int:
        return 0

    def __float__(cls) -> float:
        return 1.0

    def __int__(cls) -> int:
        return 1

    __index__ = __int__

    def __format__(cls, _: str) -> str:
        return cls.__name__


def named(name: str) -> Recorded:
    """The stand-in of that name, always the same."""
    if name not in MADE:
        MADE[name] = Recorded(name, (), {"__module__": "numpy"})
    return MADE[name]


MADE: dict[str, Recorded] = {}
for word in OPERATORS:
    if hasattr(operator, f"__{word}__"):
        setattr(Recorded, f"__{word}__", lambda cls, *_: cls)
        setattr(Recorded, f"__r{word}__", lambda cls, *_: cls)


class Stand(types.ModuleType):
    """A module of numpy's."""

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        ASKED.add(name)
        return sys.modules.get(f"{self.__name__}.{name}") or named(name)


def become_numpy() -> None:
    """Put it where `import numpy` looks."""
    for name in ("numpy", "numpy.lib", "numpy.lib.stride_tricks", "numpy.random", "numpy.linalg", "numpy.typing"):
        module = sys.modules[name] = Stand(name)
        module.__path__, module.__version__, module.__file__ = [], "2.4.6", "/numpy/__init__.py"
        module.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)


def import_rooms() -> dict[str, object]:
    """Import every module that a page may need."""
    faults: dict[str, str] = {}
    count = 0
    package = importlib.import_module("parallel_lab")
    for found in pkgutil.walk_packages(package.__path__, "parallel_lab.", onerror=lambda name: None):
        if not found.name.endswith(OF_RANKS) and "._path" not in found.name:
            try:
                importlib.import_module(found.name)
                count += 1
            except Exception as error:
                faults[found.name] = f"{type(error).__name__}: {error}"
    return {"count": count, "faults": faults, "asked": sorted(ASKED)}
