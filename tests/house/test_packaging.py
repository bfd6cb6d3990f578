"""The project file, the conda file, the README and the build script agree."""

import ast
import os
import re
import subprocess
import sys
import tomllib

from tests.crossed import each_of
from tests.house.source import PACKAGE, ROOT, files, nodes

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
TEST_COMMAND = 'pip install -e ".[test]" && pytest'


def conda_packages(text: str) -> set[str]:
    """The requirements of an environment file, such as "numpy>=2.0", those that pip installs included."""
    lines = (line.split("#")[0].strip() for line in text.split("\ndependencies:\n", 1)[1].splitlines())
    return {line.removeprefix("- ") for line in lines if line.startswith("- ") and not line.endswith((":", "-e ."))}


def test_environment_yml_lists_the_packages_and_limits_of_pyproject():
    listed = conda_packages((ROOT / "environment.yml").read_text(encoding="utf-8"))
    wanted = {line.partition(";")[0] for line in (*PROJECT["dependencies"], *EXTRAS["jupyter"], *EXTRAS["test"])}
    assert listed == wanted | {f"python{PROJECT['requires-python']}", "pip"}


def test_in_a_browser_all_but_numpy_is_pure_python():
    """Pure: their wheels on PyPI end in py3-none-any. MarkupSafe, which jinja2 brings, is in Pyodide's own list."""
    pure = {"ipywidgets", "plotly", "jinja2", "pygments", "anywidget", "dill", "tqdm", "diastatic-malt"}
    needed = {line.split(">=")[0] for line in PROJECT["dependencies"] if "emscripten" not in line}
    assert needed == pure | {"numpy"}
    others = [line.partition(";")[2] for line in PROJECT["dependencies"] if "emscripten" in line]
    assert others == [" sys_platform != 'emscripten'"] * 4


def test_the_parity_check_sees_a_missing_line_and_a_changed_limit():
    text = (
        "name: x\ndependencies:\n  - python>=3.11\n  - numpy>=2.0 # why\n  - pip: # x\n      - axe>=1\n      - -e .\n"
    )
    assert conda_packages(text) == {"python>=3.11", "numpy>=2.0", "axe>=1"}


@each_of("requirement", *PROJECT["dependencies"], *(line for extra in EXTRAS.values() for line in extra))
def test_a_requirement_has_one_lower_limit_and_nothing_else(requirement):
    """The doctor and the parity test read them without a requirements parser."""
    assert re.fullmatch(r"[a-z][a-z0-9_-]*>=\d+(\.\d+)*(; sys_platform != 'emscripten')?", requirement)


def imported_packages() -> set[str]:
    """Top-level names of everything the package imports, lazily or not."""
    found = set()
    for path in files(PACKAGE, ".py"):
        for node in nodes(path):
            if isinstance(node, ast.Import):
                found |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                found.add(node.module.split(".")[0])
    return found


def test_every_foreign_package_that_is_imported_is_declared():
    with_jupyterlab = {
        "IPython",
        "ipykernel",
        "jupyter_client",
        "nbconvert",
        "nbformat",
        "traitlets",
    }  # and with ipywidgets
    under_another_name = {"malt", "pyodide"}  # diastatic-malt; and what a page is
    declared = {
        line.split(">=")[0]
        for line in [
            *PROJECT["dependencies"],
            *(
                line
                for extra in ("jupyter", "mpi", "oracle", "search", "classroom", "docs", "live")
                for line in EXTRAS[extra]
            ),
        ]
    }
    foreign = imported_packages() - set(sys.stdlib_module_names) - {"parallel_lab"}
    assert foreign - declared - with_jupyterlab - under_another_name == set()


def test_the_licence_is_apache_2_in_full():
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert PROJECT["license"] == "Apache-2.0"
    assert "Version 2.0, January 2004" in text
    assert "END OF TERMS AND CONDITIONS" in text
    assert all(f"\n   {number}. " in text for number in range(1, 10))


def test_the_readme_and_the_build_script_name_the_same_test_command():
    assert TEST_COMMAND in (ROOT / "README.md").read_text(encoding="utf-8")
    assert TEST_COMMAND in (ROOT / ".ci" / "run").read_text(encoding="utf-8")


def test_the_build_script_is_executable_bash_without_errors():
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    assert subprocess.run(["bash", "-n", str(script)], capture_output=True, timeout=30).returncode == 0


def test_an_installation_tells_nbconvert_to_show_pages():
    """Jupyter reads etc/jupyter of its environment; the file's name says whom it is for."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    placed = tomllib.loads(text)["tool"]["hatch"]["build"]["targets"]["wheel"]["shared-data"]
    assert list(placed.values()) == ["etc/jupyter/jupyter_nbconvert_config.json"]
    assert all((ROOT / source).is_file() for source in placed)


def test_the_workflows_call_the_build_script_over_the_supported_pythons():
    """Nobody has run them: the file says so, and what they name is here."""
    folder = ROOT / ".github" / "workflows"
    tests, wheel = (
        " ".join((folder / name).read_text(encoding="utf-8").split()) for name in ("tests.yml", "wheel.yml")
    )
    lowest = PROJECT["requires-python"].removeprefix(">=")
    assert f'python: ["{lowest}", "3.12", "3.13", "3.14"]' in tests and "run: .ci/run env: PARALLEL_LAB_PYTHON" in tests
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert "PARALLEL_LAB_PYTHON" in script and script.index("ruff check") < script.index("pytest || exit")
    for text in (tests, wheel):
        assert "Nobody has ever run" in text
    shipped = re.findall(r"(notebooks/\S+|data/\w+)", wheel.partition("for part in ")[2].partition("; do")[0])
    assert len(shipped) == 6 and all((ROOT / path).exists() for path in shipped)
