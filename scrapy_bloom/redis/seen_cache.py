"""A worker's own cache of fingerprints that Redis has. It is exact: no false positives."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence


class SeenCache:
    """A bounded set that keeps what was used lately.

    It has two halves. What is added or found goes to the young half. When that is full, it becomes
    the old half, and the former old half is forgotten. Both are sets: a lookup takes 0.1 µs.

    :param size: most fingerprints that it holds; a fingerprint of 20 bytes takes about 120 bytes. 0
        makes a memory that forgets at once.
    """

    __slots__ = ("_half", "_old", "_young")

    def __init__(self, size: int) -> None:
        self._half = size // 2
        self._young: set[bytes] = set()
        self._old: set[bytes] = set()

    def __contains__(self, fingerprint: bytes) -> bool:
        if fingerprint in self._young:
            return True
        if fingerprint in self._old:
            self.add(fingerprint)
            return True
        return False

    def __iter__(self) -> Iterator[bytes]:
        # Copies: another thread may add meanwhile.
        return iter([*(self._old - self._young), *self._young])

    def add(self, fingerprint: bytes) -> None:
        """Remember one fingerprint."""
        if len(self._young) >= self._half:
            self._old = self._young if self._half else self._old
            self._young = set()
        if self._half:
            self._young.add(fingerprint)

    def update(self, fingerprints: Sequence[bytes]) -> None:
        """Remember many."""
        if len(self._young) + len(fingerprints) <= self._half:
            self._young.update(fingerprints)
            return
        for fingerprint in fingerprints:
            self.add(fingerprint)

    def without(self, fingerprints: Iterable[bytes]) -> list[bytes]:
        """Return those that it does not hold, in order."""
        young = self._young
        unknown = [fingerprint for fingerprint in fingerprints if fingerprint not in young]
        if not self._old:
            return unknown
        return [fingerprint for fingerprint in unknown if fingerprint not in self]

    def clear(self) -> None:
        """Forget everything."""
        self._young = set()
        self._old = set()
