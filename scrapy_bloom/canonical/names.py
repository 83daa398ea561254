"""Sets of parameter names, as the settings write them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Names(NamedTuple):
    """Parameter names, some given by how they begin; compared unquoted and with their case.

    Attributes:
        exact: whole names.
        prefixes: beginnings of names.
    """

    exact: frozenset[str] = frozenset()
    prefixes: tuple[str, ...] = ()

    @classmethod
    def of(cls, patterns: Iterable[str]) -> Names:
        """Read `patterns`: a name, or the beginning of names followed by ``*``."""
        patterns = frozenset(patterns)
        prefixes = frozenset(pattern for pattern in patterns if pattern.endswith("*"))
        return cls(patterns - prefixes, tuple(sorted(p[:-1] for p in prefixes)))

    def hold(self, name: str) -> bool:
        """Tell whether `name` is one of them."""
        return name in self.exact or name.startswith(self.prefixes)


class Params(NamedTuple):
    """What the settings say of parameters.

    Attributes:
        drop: dropped wherever they stand.
        keep: never dropped by any list, ours included.
        keep_only: if given, all others are dropped.
    """

    drop: Names = Names()
    keep: Names = Names()
    keep_only: Names | None = None
