"""The reference: every public name with its shapes, units and errors, as pages made by pdoc from the docstrings.

    write_reference(Path("public/reference"))       # index.html, a page for each door, search.js

A *door* is a module whose names a script may use. Its public names are those of its `__all__`, or else what is defined
in it. The pages work from a folder, without a network: the search is a script next to them.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import re
import textwrap
import types
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ..base.errors import MissingPackage
from ..base.files import version

DOORS = (
    "",
    *("nn", "nn.models", "nn.initializer", "ops"),
    *("train", "train.dataset", "train.checkpoint", "train.communication"),
    *("base.errors", "base.cluster", "base.units", "layout.tensor_layout"),
    *("graph.plan", "graph.ir", "graph.draft", "graph.passes", "run.communicator", "run.simulator", "processes.shm"),
    *("cost", "cost.search", "cost.planner", "cost.schedules"),
    *("lab.exercises", "lab.classroom", "lab.faults", "lab.shared.lab", "lab.shared.sections"),
    *("ops.machine.registry", "ops.collectives.definitions", "lab.collectives.algorithms.algorithm"),
)
STYLE = """pre { white-space: pre-wrap; } main.pdoc a { text-decoration: underline; }
.pdoc { --accent: #f4f6f8; --muted: #545b62; --def: #006b00; --annotation: #006018; } .pdoc .attr { overflow-x: clip; }
.pdoc.pdoc .pdoc-code { background: #f4f6f8; }"""
ROW = re.compile(r"[^.]{1,40}?(?<![.;:]) {2,}\S")  # "size_bytes  bytes of the result": a name, and what it is


def has_pdoc() -> bool:
    """Whether pdoc is installed (the extra `docs`)."""
    return importlib.util.find_spec("pdoc") is not None


def doors() -> list[types.ModuleType]:
    """The modules of the reference."""
    package = __package__.partition(".")[0]
    return [importlib.import_module(f"{package}.{name}".rstrip(".")) for name in DOORS]


def public_names(module: types.ModuleType) -> list[str]:
    """The names of a door: its `__all__`, or else what is defined in it, for a package also in its files."""
    listed = getattr(module, "__all__", None)
    if listed is not None:
        return list(listed)
    package = hasattr(module, "__path__")

    def is_own(value: Any) -> bool:
        place = getattr(value, "__module__", None) or ""
        return place == module.__name__ or (package and place.startswith(f"{module.__name__}."))

    return [name for name, value in vars(module).items() if not name.startswith("_") and is_own(value)]


def shown(module: types.ModuleType) -> dict[str, Any]:
    """The public functions, classes and plain constants of a door: neither modules nor tables."""
    values = {name: getattr(module, name) for name in public_names(module)}
    kept = {name: value for name, value in values.items() if callable(value) or isinstance(value, str | int | float)}
    plain = (types.FunctionType, types.BuiltinFunctionType, type, str, int, float)
    return {name: value if isinstance(value, plain) else _function(module, name, value) for name, value in kept.items()}


def _function(module: types.ModuleType, name: str, value: Callable) -> Callable:
    """A function that stands for an object that is called, as operators are: with its signature and its docstring."""

    def stand_in(*args: Any, **kwargs: Any) -> Any:
        return value(*args, **kwargs)

    stand_in.__name__ = stand_in.__qualname__ = name
    stand_in.__module__, stand_in.__doc__ = module.__name__, inspect.getdoc(value)
    stand_in.__signature__ = inspect.signature(getattr(value, "fn", value))  # type: ignore[attr-defined]
    return stand_in


def as_markdown(docstring: str) -> str:
    """A docstring of ours as Markdown: doctests, drawings and rows of names stay as they are, the rest flows.

    >>> print(as_markdown("Seconds of 2 * n.\\n\\nsize_bytes  of the result\\nlink        alpha and beta"))
    Seconds of 2 \\* n.
    <BLANKLINE>
    ```
    size_bytes  of the result
    link        alpha and beta
    ```
    """
    return "\n\n".join(_block(block) for block in re.split(r"\n\s*\n", docstring.strip("\n")) if block.strip())


def _block(block: str) -> str:
    lines = block.splitlines()
    if block.lstrip().startswith(">>>"):
        return f"```python\n{inspect.cleandoc(block)}\n```"
    if all(line.startswith("    ") for line in lines) or ROW.match(block):
        return f"```\n{textwrap.dedent(block)}\n```"
    parts = re.split(r"(`[^`\n]+`)", block)
    return "".join(part if i % 2 else re.sub(r"([*_<\[\]\\])", r"\\\1", part) for i, part in enumerate(parts))


def _walk(doc: Any) -> Iterator[Any]:
    """A page's entry with everything below it."""
    yield doc
    for member in getattr(doc, "members", {}).values():
        yield from _walk(member)


class _Dots:
    """A default value that is too long to show."""

    def __repr__(self) -> str:
        return "..."


def _short_defaults(signature: inspect.Signature) -> inspect.Signature:
    """The signature with `...` for defaults that are neither numbers nor short texts, classes or tuples."""
    plain = (str, int, float, type, types.FunctionType, type(None))

    def short(value: Any) -> Any:
        parts = value if isinstance(value, tuple) else (value,)
        return value if all(isinstance(part, plain) for part in parts) and len(repr(value)) < 60 else _Dots()

    kept = [p if p.default is p.empty else p.replace(default=short(p.default)) for p in signature.parameters.values()]
    return signature.replace(parameters=kept)


def _page(module: types.ModuleType) -> Any:
    """What pdoc knows of a door: its public names, and no others."""
    import pdoc.doc

    face = types.ModuleType(module.__name__, module.__doc__)
    face.__dict__.update(shown(module), __all__=list(shown(module)), __file__=None)
    page = pdoc.doc.Module(face)
    for doc in _walk(page):
        constant = doc.kind == "variable" and doc in page.members.values()
        doc.docstring = "A constant." if constant else as_markdown(doc.docstring)
        if isinstance(doc, pdoc.doc.Function):
            doc.signature = _short_defaults(doc.signature)
    return page


def code_colours(within: str, style: str = "xcode") -> str:
    """The style of highlighted code. Of Pygments' styles, xcode on a light and monokai on a dark ground reach the
    contrast of 4.5 to 1 (WCAG 1.4.3)."""
    from pygments.formatters import HtmlFormatter

    return HtmlFormatter(style=style).get_style_defs(within)


def write_reference(folder: Path) -> int:
    """Write the pages into `folder`, which is made. Returns how many names they have.

    Raises MissingPackage without pdoc, OSError where nothing can be written.
    """
    if not has_pdoc():
        raise MissingPackage("pdoc is not installed", hint="pip install 'parallel-lab[docs]'")
    import pdoc.render

    pdoc.render.configure(
        docformat="markdown", show_source=False, include_undocumented=False, footer_text=f"parallel_lab {version()}"
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # hints of types that are imported for a type checker alone
        pages = {module.__name__: _page(module) for module in doors()}
        first = next(iter(pages.values()))
        first.docstring = f"[All lessons](../index.html)\n\n{first.docstring}"
        texts = {f"{name.replace('.', '/')}.html": pdoc.render.html_module(page, pages) for name, page in pages.items()}
        texts["index.html"] = pdoc.render.html_index(pages)
        search = pdoc.render.search_index(pages)
    style = f"<style>{code_colours('.pdoc .pdoc-code')}\n{STYLE}</style></head>"
    for path, text in texts.items():
        text = re.sub(r'(class="headerlink" href="#([^"]*)")', r'\1 aria-label="link to \2"', text)
        text = text.replace("<h5>", "<h2>").replace("</h5>", "</h2>").replace("</head>", style, 1)
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")
    (folder / "search.js").write_text(search, encoding="utf-8")
    return sum(len(page.members) for page in pages.values())
