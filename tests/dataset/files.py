"""What the tests of data files share: recipes of the shipped folders, recorded sums, memory that reading takes."""

from __future__ import annotations

import contextlib
import importlib.util
import re
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from parallel_lab.base.errors import DataFileError


def module_of(path: Path) -> ModuleType:
    """A Python file that is not on the path, as a module."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def recorded_sums(page: Path) -> dict[str, str]:
    """{file: sha256 of what it unpacks to}, as the folder's page records them."""
    return dict(reversed(line.split("  ")) for line in re.findall(r"^[0-9a-f]{64}  .*$", page.read_text(), re.M))


@contextlib.contextmanager
def raises_within(size_bytes: int, match: str) -> Iterator[None]:
    """That the block raises DataFileError with this text, and takes less memory than `size_bytes`."""
    tracemalloc.start()
    try:
        with pytest.raises(DataFileError, match=match):
            yield
        assert tracemalloc.get_traced_memory()[1] < size_bytes
    finally:
        tracemalloc.stop()


@contextlib.contextmanager
def takes_at_most(size_bytes: int) -> Iterator[None]:
    """What is done inside never holds more memory at once than this."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] <= size_bytes
    finally:
        tracemalloc.stop()
