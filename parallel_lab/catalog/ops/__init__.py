"""Families of operators: declarations only. Importing a file registers its operators, so every file is imported."""

from importlib import import_module as _import_module
from pkgutil import iter_modules as _iter_modules

for _file in _iter_modules(__path__):
    _import_module(f"{__name__}.{_file.name}")
