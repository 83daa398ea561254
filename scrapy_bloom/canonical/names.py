"""Sets of parameter names, as settings and rules write them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Names:
    """A set of parameter names. Some entries are only the beginning of a name.

    Upper and lower case differ. A name is compared after its escapes are decoded, once.

    >>> "utm_source" in Names.of(["sid", "utm_*"])
    True

    Attributes:
        exact: whole names.
        prefixes: beginnings of names.
    """

    exact: frozenset[str] = frozenset()
    prefixes: tuple[str, ...] = ()

    @classmethod
    def of(cls, patterns: Iterable[str]) -> Names:
        """Return the set that `patterns` describe: names, or beginnings followed by ``*``."""
        patterns = frozenset(patterns)
        prefixes = frozenset(pattern for pattern in patterns if pattern.endswith("*"))
        return cls(patterns - prefixes, tuple(sorted(prefix[:-1] for prefix in prefixes)))

    def __contains__(self, name: str) -> bool:
        """Return whether an entry matches `name`."""
        return name in self.exact or name.startswith(self.prefixes)


@dataclass(frozen=True, slots=True)
class Params:
    """What settings and rules say about the parameters of one host.

    Attributes:
        drop: parameters that the step ``drop`` removes.
        keep: parameters that no step removes.
        keep_only: if given, the step ``keep_only`` removes all others.
    """

    drop: Names = Names()
    keep: Names = Names()
    keep_only: Names | None = None
