"""Where something came from: the learner's file and line, the Cell path, and the pass that made it."""

from __future__ import annotations

import functools
import linecache
import os
import re
import sys
from dataclasses import dataclass
from types import FrameType

import numpy as np

_NUMPY = os.path.dirname(os.path.abspath(np.__file__)) + os.sep  # np.sum(x) reaches x through numpy's own Python files
PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep  # parallel_lab/
_NAME = __name__.partition(".")[0] + "."
# Networks that ship with the package are user code for this purpose: their lines are what a learner wants to see.
_USER_FILES = (os.path.join(PACKAGE, "lab", "shared", "networks.py"), os.path.join(PACKAGE, "nn", "models") + os.sep)
_MACHINERY = (PACKAGE, _NUMPY, functools.__file__)  # a cached_property is reached through functools
_PYTHON = os.path.dirname(os.path.abspath(os.__file__)) + os.sep
_NOBODYS = (PACKAGE, _PYTHON, "<frozen", "<string>")  # "<string>": what dataclasses generate
_INSTALLED = re.compile(r"[\\/](site|dist)-packages[\\/]")
# files whose lines this package calls: an error from another one is a learner's, or another library's
CALLED = re.compile(rf"<(frozen|str)|.*(\.pyx$|[\\/](numpy|ml_dtypes|dill)[\\/])|{re.escape(_PYTHON)}(?!site-|dist-)")


@dataclass(frozen=True)
class Origin:
    """Where a node or an instruction came from.

    file, line, text   the learner's source line ("" and 0 if unknown)
    scope              Cell path in MindSpore's form, such as "Default/network-WithLossCell/_backbone-Net"
    made_by            name of the pass that made it; "" for instructions that the learner wrote
    """

    file: str = ""
    line: int = 0
    text: str = ""
    scope: str = ""
    made_by: str = ""

    @property
    def place(self) -> str:
        """`file:line` with the folder left out."""
        return f"{short_file(self.file)}:{self.line}" if self.file else ""

    def made(self, made_by: str) -> Origin:
        """The same place, as the origin of something a pass adds there."""
        return Origin(self.file, self.line, self.text, self.scope, made_by)


def short_file(file: str) -> str:
    """File name without its folder; notebook cells, which have machine-made names, become 'cell'."""
    if file.startswith("<ipython") or os.sep + "ipykernel_" in file:
        return "cell"
    return os.path.basename(file)


def is_learners(file: str) -> bool:
    """Whether the lines of a file are a learner's: not this package's, Python's own, or an installed one's (.pyx)."""
    return not (file.startswith(_NOBODYS) or file.endswith(".pyx") or _INSTALLED.search(file))


def caller(scope: str = "") -> Origin:
    """Origin of the innermost frame that is the learner's: outside this package's machinery.

    In a trace, an operator inside a loss or a layer that `compile` was given has the line of that layer's construct.
    """
    frame, layer = sys._getframe(1), None
    while frame is not None:
        code, file = frame.f_code, frame.f_code.co_filename
        if not (file.startswith(_MACHINERY) or _is_generated(frame)) or file.startswith(_USER_FILES):
            return _origin(frame, scope)
        if code.co_name == "construct" and layer is None:
            layer = frame
        if code.co_name == "trace_network" and layer is not None:
            return _origin(layer, scope)
        frame = frame.f_back
    return Origin(scope=scope)


def _is_generated(frame: FrameType) -> bool:
    """Whether a frame is that of an `__init__` which a dataclass of this package has been given."""
    return frame.f_code.co_filename == "<string>" and str(frame.f_globals.get("__name__")).startswith(_NAME)


def _origin(frame: FrameType, scope: str) -> Origin:
    file = frame.f_code.co_filename
    return Origin(file, frame.f_lineno, linecache.getline(file, frame.f_lineno).strip(), scope)
