"""Notes for errors of scripts: what the line should have been.

    NameError: name 'AutoParallel' is not defined
    'AutoParallel' was never imported: add `from mindspore.parallel.auto_parallel import AutoParallel`.

Python's own errors say what is wrong; these lines, added to an error that ends a script, say what was meant. They look
at the exception and at the source of the script, which is read and parsed, never run.
"""

from __future__ import annotations

import ast
import linecache
import re
import sys
from collections.abc import Iterator

from ..base.errors import ArgumentTypeError, ShapeError
from ..base.origin import is_learners
from ._lookup import CORRECTIONS, home_of
from ._tables import OPTIMIZERS

# what documents call modules
ALIASES = {
    **{name: f"from mindspore import {name}" for name in ("nn", "ops", "mint", "train")},
    "ms": "import mindspore as ms",
    "mindspore": "import mindspore",
    "np": "import numpy as np",
    "ds": "import mindspore.dataset as ds",
    "mstype": "import mindspore.common.dtype as mstype",
    "rt": "import mindspore.runtime as rt",
    "vision": "import mindspore.dataset.vision as vision",
}
MISSING_ARGUMENTS = re.compile(r"(\w+): missing arguments? ('.*?')\.")


def explain(error: BaseException) -> None:
    """Add notes to an error and to those that led to it, where there is something to say; once."""
    for each in _chain(error):
        for note in _notes(each):
            if note not in getattr(each, "__notes__", ()):
                each.add_note(note)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def _notes(error: BaseException) -> list[str]:
    name = getattr(error, "name", None)
    if type(error) is NameError and isinstance(name, str):
        found = _missing_name(name, error)
    elif type(error) is ModuleNotFoundError and name in CORRECTIONS:
        found = f"{CORRECTIONS[name]}."
    elif isinstance(error, ArgumentTypeError):
        found = _missing_arguments(error)
    elif isinstance(error, ShapeError):
        found = _mixed_up_call(error)
    else:
        found = ""
    return [found] if found else []


# ---- names ----


def _missing_name(name: str, error: BaseException) -> str:
    for file, line in _places(error)[-1:]:
        tree = _parsed(file)
        below = next((at for at in _definitions(tree).get(name, ()) if at > line), 0) if tree is not None else 0
        if below:
            defined = f"{name!r} is defined in line {below}, which has not run when line {line} needs it"
            return f"{defined}: move the definition above line {line}."
    if name in ALIASES:
        return f"{name!r} was never imported: add `{ALIASES[name]}`."
    if where := home_of(name):
        return f"{name!r} was never imported: add `from {where} import {name}`."
    if name in sys.stdlib_module_names:
        return f"{name!r} was never imported: add `import {name}`."
    line = next((line for _, line in _places(error)[-1:]), None)
    return "" if line is None else f"Nothing above line {line} defines or imports {name!r}: define it there."


def _definitions(tree: ast.Module) -> dict[str, list[int]]:
    """{name: lines} of functions, classes and variables that the module itself defines."""
    found: dict[str, list[int]] = {}
    for node in tree.body:
        names = [node.name] if isinstance(node, (ast.FunctionDef, ast.ClassDef)) else []
        if isinstance(node, ast.Assign):
            names = [target.id for target in node.targets if isinstance(target, ast.Name)]
        for name in names:
            found.setdefault(name, []).append(node.lineno)
    return found


# ---- arguments ----


def _missing_arguments(error: BaseException) -> str:
    """For a class of this package that was made without what it needs."""
    found = MISSING_ARGUMENTS.match(str(error))
    if found is None or not home_of(found[1]):
        return ""
    name, wanted = found[1], re.findall(r"'(\w+)'", found[2])
    if name in OPTIMIZERS.split():
        wanted = ["net.trainable_params()" if one == "params" else one for one in wanted]
    return f"Give them: {name}({', '.join(wanted)})."


def _mixed_up_call(error: BaseException) -> str:
    """For shapes that do not fit: a call whose arguments are named as a function's parameters, in another order."""
    for file in dict.fromkeys(file for file, _ in _places(error)):
        tree = _parsed(file)
        if tree is None:
            continue
        functions = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
        known = [call for call in calls if call.func.id in functions and not call.keywords]
        notes = (_in_order(call, functions[call.func.id]) for call in known)
        if note := next(filter(None, notes), ""):
            return note
    return ""


def _in_order(call: ast.Call, function: ast.FunctionDef) -> str:
    """What to write instead of `call`; "" if its arguments are in order, or cannot be distinguished."""
    parameters = [argument.arg for argument in function.args.args]
    given = [argument.id if isinstance(argument, ast.Name) else "" for argument in call.args]
    if len(given) != len(parameters) or not all(given):
        return ""
    meant = [max((p for p in parameters if name == p or name.endswith(f"_{p}")), key=len, default="") for name in given]
    if sorted(meant) != sorted(parameters) or meant == parameters:
        return ""
    right = [given[meant.index(parameter)] for parameter in parameters]
    as_given, as_defined, as_meant = (f"{function.name}({', '.join(names)})" for names in (given, parameters, right))
    where = f"Line {call.lineno} calls {as_given}, but line {function.lineno} defines {as_defined}"
    return f"{where}: the arguments stand in another order. Write {as_meant}."


# ---- the script ----


def _places(error: BaseException) -> list[tuple[str, int]]:
    """(file, line) of the frames that are the learner's, innermost last."""
    found, trace = [], error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        file = code.co_filename
        if is_learners(file):
            found.append((file, trace.tb_lineno))
        trace = trace.tb_next
    return found


def _parsed(file: str) -> ast.Module | None:
    """The source as a tree; None if it cannot be had."""
    try:
        return ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return None
