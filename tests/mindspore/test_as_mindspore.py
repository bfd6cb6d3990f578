"""With the package's folder on PYTHONPATH, `import mindspore` is the facade, in any form and in any child process."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import parallel_lab
from tests.mindspore.imports import MODULES, SAMPLES, SEEDS

FOLDER = Path(parallel_lab.__file__).parent / "mindspore" / "_path"
ROOT = Path(parallel_lab.__file__).parents[1]

pytestmark = pytest.mark.timeout(60)


def run(*command, path=(FOLDER, ROOT), cwd=None):
    """What Python prints with these folders on PYTHONPATH; of a single word, which is code."""
    words = command if len(command) > 1 else ("-c", textwrap.dedent(command[0]))
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path))}
    return subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=50, cwd=cwd, env=env)


@pytest.mark.exhaustive
def test_every_import_of_the_tutorials_works_and_gives_the_same_modules():
    names = sorted({**SEEDS, **SAMPLES})
    lines = [f"from mindspore{'.' + path if path else ''} import {name}" for path, name in names]
    lines += [f"import mindspore{'.' + path if path else ''} as module" for path in MODULES]
    lines += [
        "import importlib, sys",
        f"for path in {[path for path, _ in names] + list(MODULES)!r}:",
        "    theirs = importlib.import_module('mindspore' + ('.' + path if path else ''))",
        "    ours = importlib.import_module('parallel_lab.mindspore' + ('.' + path if path else ''))",
        "    assert theirs is ours is sys.modules[ours.__name__], path",
        "    assert ours.__spec__.name == ours.__name__.removesuffix('.__init__'), (path, ours.__spec__)",
        "import mindspore, parallel_lab",
        "assert mindspore.nn.Cell is parallel_lab.nn.Cell",
        "print('same')",
    ]
    found = run("\n".join(lines))
    assert (found.stdout, found.stderr) == ("same\n", "")


@pytest.mark.exhaustive
def test_either_name_may_come_first():
    for first, second in (("mindspore", "parallel_lab.mindspore"), ("parallel_lab.mindspore", "mindspore")):
        code = f"""
            import {first}.nn.optim.momentum, {second}.nn.optim.momentum
            import mindspore, parallel_lab.mindspore as ms
            assert mindspore is ms and mindspore.nn.optim.momentum is ms.nn.optim.momentum
            print('same')
        """
        found = run(code)
        assert (found.stdout, found.stderr) == ("same\n", "")


def test_it_wins_over_an_installed_mindspore(tmp_path):
    real = tmp_path / "mindspore" / "nn"
    real.mkdir(parents=True)
    (real.parent / "__init__.py").write_text("raise SystemExit('the other one')")
    (real / "__init__.py").write_text("raise SystemExit('the other one')")
    found = run("import mindspore.nn as nn; print(nn.__name__)", path=(FOLDER, ROOT, tmp_path))
    assert (found.stdout, found.stderr) == ("parallel_lab.mindspore.nn\n", "")


def test_the_facade_alone_leaves_an_installed_mindspore_alone(tmp_path):
    """Who imports parallel_lab.mindspore asked for nothing under the name mindspore."""
    real = tmp_path / "mindspore"
    real.mkdir()
    (real / "__init__.py").write_text("__version__ = 'real'")
    (real / "nn.py").write_text("x = 'real'")
    code = "import parallel_lab.mindspore.nn, mindspore, mindspore.nn; print(mindspore.__version__, mindspore.nn.x)"
    found = run(code, path=(ROOT, tmp_path))
    assert (found.stdout, found.stderr) == ("real real\n", "")


@pytest.mark.exhaustive
def test_a_checkout_that_is_not_installed_is_found(tmp_path):
    """The folder alone on PYTHONPATH; -S omits an editable install, so numpy's folder is given by hand."""
    import numpy

    code, path = "import mindspore.nn as nn; print(nn.__name__)", (FOLDER, Path(numpy.__file__).parents[1])
    found = run("-S", "-c", code, path=path, cwd=tmp_path)
    assert (found.stdout, found.stderr) == ("parallel_lab.mindspore.nn\n", "")


@pytest.mark.exhaustive
def test_under_pytest_as_the_entry_point(tmp_path):
    """Seed 002's shell script starts pytest."""
    (tmp_path / "test_script.py").write_text(
        "from mindspore import context\n\ndef test_train():\n    print('mode', context.GRAPH_MODE)\n"
    )
    found = run("-m", "pytest", "-s", "-q", "-p", "no:cacheprovider", "test_script.py", cwd=tmp_path)
    assert found.returncode == 0, found.stdout + found.stderr
    assert "mode 0" in found.stdout


ERRORS = {
    "from context import set_auto_parallel_context": "there is no module 'context'. Write `from mindspore.context "
    "import ...`",
    "from resnet import resnet50": "there is no module 'resnet'. The tutorial's resnet.py lies beside its script",
    "from mindspore.nn import CTCLoss; CTCLoss(4, 4)": "mindspore.nn.CTCLoss is missing here. parallel_lab is not all "
    "of MindSpore",
    "import mindspore.numpi as np": "there is no module mindspore.numpi",
    "from mindspore.nn.optim import adamm": "mindspore.nn.optim has no 'adamm' here",
    "net = AutoParallel(3)": "'AutoParallel' was never imported: add `from mindspore.parallel.auto_parallel import "
    "AutoParallel`.",
    "with no_init_parameters(): pass": "'no_init_parameters' was never imported: add `from mindspore.nn.utils import "
    "no_init_parameters`.",
}


@pytest.mark.quick(0)
@pytest.mark.parametrize("line", ERRORS)
def test_what_a_script_gets_wrong_is_named_with_its_line(line, tmp_path):
    (tmp_path / "script.py").write_text(f"import mindspore as ms\n{line}\n")
    found = run("-X", "utf8", str(tmp_path / "script.py"))
    assert found.returncode == 1
    assert 'script.py", line 2' in found.stderr
    assert ERRORS[line] in found.stderr, found.stderr


@pytest.mark.exhaustive
def test_other_modules_are_found_as_ever(tmp_path):
    (tmp_path / "resnet.py").write_text("def resnet50(): return 50")
    (tmp_path / "context.py").write_text("x = 1")
    code = "import mindspore; from resnet import resnet50; import context; print(resnet50(), context.x)"
    found = run(code, path=(tmp_path, FOLDER, ROOT))
    assert (found.stdout, found.stderr) == ("50 1\n", "")
    found = run("import mindspore\nimport no_such_module_at_all")
    assert "ModuleNotFoundError: No module named 'no_such_module_at_all'" in found.stderr


def test_the_folder_is_part_of_the_package():
    assert [p.relative_to(FOLDER).as_posix() for p in sorted(FOLDER.rglob("*.py"))] == ["mindspore/__init__.py"]
