"""Notebooks and data are found in a checkout and in an installed wheel."""

from pathlib import Path

import pytest

from parallel_lab.base import files as shipped
from parallel_lab.base.errors import DataFileError

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Pretends that the package lies in `tmp_path/parallel_lab`."""
    package = tmp_path / "parallel_lab"
    package.mkdir()
    monkeypatch.setattr(shipped, "_PACKAGE", package)
    return package


def test_a_checkout_uses_its_own_folders():
    assert shipped.checkout_folder() == ROOT
    assert shipped.shipped_folder("data") == ROOT / "data"


def test_a_wheel_uses_what_it_carries_whatever_lies_next_to_it(installed):
    (installed / "_shipped" / "data").mkdir(parents=True)
    (installed.parent / "data").mkdir()  # some other package's, in site-packages
    (installed.parent / "pyproject.toml").write_text('[project]\nname = "parallel-lab"\n')
    assert shipped.checkout_folder() is None
    assert shipped.shipped_folder("data") == installed / "_shipped" / "data"


@pytest.mark.parametrize("project", [None, '[project]\nname = "something-else"\n'])
def test_a_folder_is_not_mistaken_for_our_checkout(installed, project):
    (installed.parent / "data").mkdir()
    if project:
        (installed.parent / "pyproject.toml").write_text(project)
    assert shipped.checkout_folder() is None
    with pytest.raises(DataFileError, match="data/ that comes with parallel_lab is missing"):
        shipped.shipped_folder("data")
