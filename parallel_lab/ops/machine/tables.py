"""Tables of declarations by name, which open the catalogue when they must.

    OPS["matmul"]        a taught operator: found at once
    OPS["flash_attention_score"], "igamma" in OPS, OPS.items()    first the catalogue adds its own

The taught operators are declared when `parallel_lab` is imported; those that nothing taught names lie in the catalogue
(`parallel_lab/catalog`), above this room. A search for a name that is not here, or a list of all names, covers both.
"""

from __future__ import annotations

from collections.abc import ItemsView, Iterator, KeysView, ValuesView
from typing import Any, TypeVar

from ...base.hooks import open_catalog

Entry = TypeVar("Entry")


class Table(dict[str, Entry]):
    """What is declared under each name. A lookup that succeeds is a dict's own; others open the catalogue first."""

    def __missing__(self, name: str) -> Entry:
        open_catalog()
        if not dict.__contains__(self, name):
            raise KeyError(name)
        return self[name]

    def __contains__(self, name: object) -> bool:
        if not dict.__contains__(self, name):
            open_catalog()
        return dict.__contains__(self, name)

    def get(self, name: str, default: Any = None) -> Any:
        """The entry of `name`, or `default`."""
        return super().get(name, default) if name in self else default

    def __iter__(self) -> Iterator[str]:
        open_catalog()
        return super().__iter__()

    def __len__(self) -> int:
        open_catalog()
        return super().__len__()

    def keys(self) -> KeysView[str]:  # type: ignore[override]  # the view that a dict gives has no public name
        """All names, the catalogue's too."""
        open_catalog()
        return super().keys()

    def values(self) -> ValuesView[Entry]:  # type: ignore[override]
        """All entries, the catalogue's too."""
        open_catalog()
        return super().values()

    def items(self) -> ItemsView[str, Entry]:  # type: ignore[override]
        """All names with their entries, the catalogue's too."""
        open_catalog()
        return super().items()
