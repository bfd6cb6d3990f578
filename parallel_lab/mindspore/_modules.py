"""Modules made from the tables in `_tables.py`: MindSpore's paths, holding the objects of this package.

    import parallel_lab.mindspore.nn as nn          # nn.Cell is parallel_lab.nn.Cell
    import parallel_lab.mindspore as ms             # ms.nn is that module

Each page of the tables is a module whose names are looked up when they are first asked for, so that importing one page
loads no other. A finder gives them to Python's import; after `stand_in()` it gives the same objects under the names
`mindspore` and `mindspore.nn` too. Modules that MindSpore does not document give what they are asked for from wherever
it is, as theirs do by what they import. A name of MindSpore's that is missing here is a `Missing`; what MindSpore never
had raises MissingName (an AttributeError), MissingImport (an ImportError) or MissingModule (a ModuleNotFoundError),
which name the nearest thing. A plain function comes with `fitting` around it, which refuses arguments that fit none of
its parameters in our words.
"""

from __future__ import annotations

import builtins
import functools
import importlib
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import FunctionType, ModuleType, TracebackType
from typing import Any

from ..base.checks import fitting
from ..base.errors import MissingModule
from . import _lookup as lookup
from ._lookup import OURS, THEIRS, home_of, joined, names_of, page_of, path_of
from ._missing import Missing, borrows, is_theirs, missing, missing_module
from ._names import MODULES
from ._tables import PAGES, Page

# ---- modules ----


class FacadeModule(ModuleType):
    """One module of MindSpore's: its names are those of a page of the tables."""

    def __getattr__(self, name: str) -> Any:
        # only reached when the name was not asked for before
        path = path_of(self)
        page = page_of(path)
        if name.startswith("__") and name not in page.names:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}", name=name, obj=self)
        value = _found(path, page, name)
        if value is _MISSING:
            if not is_theirs(path, name):
                # `from mindspore.nn import X` asks with hasattr, and would make an ImportError of it without our words
                asked_by = sys._getframe(1).f_code
                imported = asked_by.co_name == "_handle_fromlist" and "importlib" in asked_by.co_filename
                raise missing(path, name, imported=imported)
            value = Missing(path, name)
        ours = type(value) is FunctionType and value.__module__.startswith("parallel_lab.")
        value = self.__dict__[name] = _fitting(value) if ours and not hasattr(value, "__wrapped__") else value
        return value

    def __setattr__(self, name: str, value: Any) -> None:
        # Python's import sets submodules on their parent; where MindSpore has a function so named, the function stays
        if not (isinstance(value, FacadeModule) and name in page_of(path_of(self)).names):
            super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return sorted({*self.__dict__, *names_of(path_of(self))})

    @property
    def __all__(self) -> list[str]:
        """What `from mindspore.nn import *` takes: names of things, not of modules; sum and range stay Python's."""
        path = path_of(self)
        things = (name for name in names_of(path) if joined(path, name) not in PAGES or name in page_of(path).names)
        return [name for name in things if not hasattr(builtins, name)]


_fitting = functools.cache(fitting)  # one object for a function, on whatever page it stands
_MISSING = object()  # None may be the value of a name


def _found(path: str, page: Page, name: str) -> Any:
    """What a page has under a name: its own, a module below it, what it re-exports; else _MISSING."""
    if name in page.names:
        return _target(page.names[name])
    if joined(path, name) in PAGES or joined(path, name) in MODULES.split():
        return importlib.import_module(f"{OURS}.{joined(path, name)}")
    value = _from_sources(page, name)
    # an operator's module has no layers and no optimizers: ops' Dense is an operator, not nn.Dense
    lent = not path.startswith("ops")
    if value is _MISSING and borrows(path) and (home := home_of(name)) and (lent or ".nn" not in home):
        return getattr(importlib.import_module(OURS + home.removeprefix(THEIRS)), name)
    return value


def _target(where: str) -> Any:
    """ "module:attribute" of this package, or "@path" for a page."""
    if where.startswith("@"):
        return importlib.import_module(f"{OURS}.{where[1:]}")
    module, _, attribute = where.partition(":")
    found: Any = importlib.import_module(module)
    for part in attribute.split(".") if attribute else ():
        found = getattr(found, part)
    return found


def _from_sources(page: Page, name: str) -> Any:
    """The public name of one of the modules that a page re-exports whole."""
    for source in page.sources:
        module = importlib.import_module(source)
        if lookup.is_further(module, name) or name in lookup.public(module):
            return getattr(module, name)
    return _MISSING


def named(path: str) -> Any:
    """What a script finds at a dotted path below `mindspore`: "nn.Cell". Raises AttributeError, ImportError."""
    return functools.reduce(getattr, path.split("."), importlib.import_module(OURS))


# ---- Python's import ----


class _Loader(Loader):
    """Gives a page's module: one object, whichever of the two names it is imported under."""

    def __init__(self, path: str) -> None:
        self.path = path

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        if spec.name.startswith(OURS):
            return FacadeModule(spec.name, page_of(self.path).doc)
        module = importlib.import_module(f"{OURS}.{self.path}")
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        # importing it as mindspore.nn must not change who it is
        if module.__spec__ is not None and module.__spec__.loader_state is not None:
            module.__spec__ = module.__spec__.loader_state


class _Finder(MetaPathFinder):
    """Finds the pages; asked before Python's own finders, and silent about everything else."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        for prefix in (OURS, THEIRS):
            if not fullname.startswith(f"{prefix}.") or (
                prefix == THEIRS and sys.modules.get(THEIRS) is not sys.modules.get(OURS)
            ):
                continue
            page = fullname[len(prefix) + 1 :]
            if lookup.is_file(page):
                return None
            if not lookup.is_module(page):
                raise missing_module(page)
            return ModuleSpec(fullname, _Loader(page), is_package=True)
        return None


class _Corrections(MetaPathFinder):
    """Asked last: for a module that nobody has and that a tutorial misprints, says what was meant."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if fullname in lookup.CORRECTIONS:
            raise MissingModule(f"there is no module {fullname!r}", hint=lookup.CORRECTIONS[fullname], name=fullname)
        return None


def install(module: ModuleType) -> None:
    """Make `module` (parallel_lab.mindspore) the page "", and its pages importable."""
    module.__class__ = FacadeModule
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def stand_in() -> None:
    """From now on `import mindspore` is the facade; for the folder of `parallel-lab as-mindspore`. Once is enough."""
    module = importlib.import_module(OURS)
    if sys.modules.get(THEIRS) is module:
        return
    for name in [n for n in tuple(sys.modules) if n == THEIRS or n.startswith(f"{THEIRS}.")]:
        del sys.modules[name]
    sys.modules[THEIRS] = module
    if not any(isinstance(finder, _Corrections) for finder in sys.meta_path):
        sys.meta_path.append(_Corrections())
        sys.excepthook = _Hook(sys.excepthook)


class _Hook:
    """An excepthook that adds to an error of the script what its line should have been."""

    def __init__(self, before: Any) -> None:
        self.before = before

    def __call__(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        self.explain(error)
        self.before(kind, error, trace)

    def explain(self, error: BaseException) -> None:
        """Add the notes and print nothing: for hooks that come before this one."""
        from ._notes import explain

        explain(error)
