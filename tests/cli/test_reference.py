"""The reference: each public name is on a page, with a docstring; pages ask for nothing; without pdoc it is omitted."""

import inspect
import re
from functools import cached_property
from html import unescape

import pytest

from parallel_lab.base.errors import MissingPackage
from parallel_lab.cli import reference, site_command
from parallel_lab.cli.reference import as_markdown, doors, public_names, shown, write_reference
from parallel_lab.cli.site_command import write_site
from tests.crossed import each_of

# described in the class's docstring, or by the name and the type: fields, switches of MindSpore's, hooks of a callback
SHORT = 3  # lines of a method that its name may describe


@pytest.mark.parametrize("module", doors(), ids=lambda module: module.__name__)
def test_a_public_name_has_a_docstring(module):
    names = public_names(module)
    assert len(names) >= 2
    callables = {name: value for name in names if callable(value := getattr(module, name))}
    assert not [name for name, value in callables.items() if not (inspect.getdoc(value) or "").strip()]


@pytest.mark.parametrize("module", doors(), ids=lambda module: module.__name__)
def test_a_public_method_has_a_docstring_unless_it_is_as_short_as_its_name(module):
    bare = []
    for name, value in shown(module).items():
        for method, function in vars(value).items() if inspect.isclass(value) else ():
            if (
                inspect.isfunction(function)
                and not method.startswith("_")
                and not inspect.getdoc(getattr(value, method))
            ):
                lines, _ = inspect.getsourcelines(function)
                overrides = any(hasattr(base, method) for base in value.__mro__[1:])
                bare += [f"{name}.{method}"] if len(lines) > SHORT + 1 and not overrides else []
    assert not bare


FEW = ("base.errors", "base.units", "layout.tensor_layout", "lab.faults")


KERNEL = ("parallel_lab.graph.ir", "parallel_lab.ops.collectives.definitions")  # a class says what its properties are


@pytest.mark.parametrize("module", [d for d in doors() if d.__name__ not in KERNEL], ids=lambda module: module.__name__)
def test_a_property_of_a_public_class_has_a_docstring(module):
    bare = []
    for name, value in shown(module).items():
        for attribute, found in vars(value).items() if inspect.isclass(value) else ():
            if isinstance(found, property | cached_property) and not attribute.startswith("_"):
                bare += [] if inspect.getdoc(found) else [f"{name}.{attribute}"]
    assert not bare


@pytest.fixture(
    scope="module",
    params=[pytest.param(("", *FEW), id="few"), pytest.param(reference.DOORS, id="all", marks=pytest.mark.exhaustive)],
)
def pages(request, tmp_path_factory):
    """{path: text} of the reference, of a few doors or of all."""
    folder = tmp_path_factory.mktemp("reference")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reference, "DOORS", request.param)
        count = write_reference(folder)
        assert count == sum(len(shown(module)) for module in doors()) > 150
        names = {module.__name__: set(shown(module)) for module in doors()}
    found = {path.relative_to(folder).as_posix(): path.read_text(encoding="utf-8") for path in folder.rglob("*.*")}
    return names, found


def test_every_public_name_is_on_its_page(pages):
    for module, names in pages[0].items():
        sections = re.findall(r'<section id="([^".]+)">', pages[1][f"{module.replace('.', '/')}.html"])
        assert not names - set(sections)


def test_an_operator_is_a_function_with_its_operands(tmp_path, monkeypatch):
    monkeypatch.setattr(reference, "DOORS", ("nn.utils", "ops"))
    monkeypatch.setattr(reference, "public_names", lambda module: ["matmul"] if "ops" in module.__name__ else [])
    assert write_reference(tmp_path) == 1
    page = (tmp_path / "parallel_lab" / "ops.html").read_text(encoding="utf-8")
    words = unescape(re.sub(r"<[^>]+>", "", page.partition('<section id="matmul">')[2]))
    assert "def matmul(a, b, *, transpose_a=False, transpose_b=False)" in " ".join(words.split())
    assert "(..., m, k), b: (..., k, n) -> (..., m, n)" in words


def test_nothing_is_loaded_from_elsewhere(pages):
    texts = pages[1]
    for path, text in texts.items():
        assert not re.search(r"<(script|link|img|iframe)[^>]*https?:", text), path
        assert "cdn" not in text.lower() or path == "search.js", path
    assert "pdocSearch" in texts["search.js"] and 'href="../index.html"' in texts["parallel_lab.html"]


@each_of(
    ("docstring", "shown_as"),
    ("a * b of `x_y`", r"a \* b of `x_y`"),
    (">>> f(1)\n2", "```python\n>>> f(1)\n2\n```"),
    ("    drawn\n      so", "```\ndrawn\n  so\n```"),
    ("rank   which one\nlong   seconds", "```\nrank   which one\nlong   seconds\n```"),
    ("Add.  x: (a, b)", "Add.  x: (a, b)"),
)
def test_a_docstring_keeps_its_rows_and_drawings(docstring, shown_as):
    assert as_markdown(docstring) == shown_as


def test_without_pdoc_the_site_is_written_and_says_what_is_missing(tmp_path, monkeypatch):
    monkeypatch.setattr(reference, "has_pdoc", lambda: False)
    monkeypatch.setattr(site_command, "has_pdoc", lambda: False)
    lines = []
    out = write_site(tmp_path / "public", [], tell=lines.append, reference=True)
    assert [file.name for file in out.iterdir()] == ["index.html"]
    assert lines == ["without the reference: pdoc is not installed (pip install 'parallel-lab[docs]')"]
    with pytest.raises(MissingPackage, match="parallel-lab\\[docs\\]"):
        write_reference(tmp_path / "reference")
