"""What a worker knows by itself: a table of fingerprints, of fixed size."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from typing import Final

_SIZE: Final = 20  # bytes of a fingerprint: SHA-1
_PAIR: Final = 2 * _SIZE
_BLANK: Final = bytes(_SIZE)


class Known:
    """A set of fingerprints in a fixed amount of memory: newer ones take the places of older ones.

    Each has two places. It is there in full, so no other one is taken for it: that would lose its
    page. Other fingerprints than 20 bytes are there as digests of as many bytes.

    :param places: how many there are; 20 bytes each, once one is used.
    """

    def __init__(self, places: int) -> None:
        self._pairs = max(1, places // 2)
        self._table = bytearray()
        self._remembers, self._times = places > 1, 0

    def clear(self) -> None:
        """Remove all. That takes no time: from now on each is looked for one place further on."""
        self._times += 1
        if self._times == self._pairs:
            self._times, self._table = 0, bytearray()

    def __contains__(self, fingerprint: bytes) -> bool:
        if len(fingerprint) != _SIZE:
            fingerprint = _digest(fingerprint)
        table, at = self._table, (hash(fingerprint) + self._times) % self._pairs * _PAIR
        found = table.startswith(fingerprint, at) or table.startswith(fingerprint, at + _SIZE)
        return found and fingerprint != _BLANK  # an unused place

    def update(self, fingerprints: Iterable[bytes]) -> None:
        """Add fingerprints."""
        if not self._remembers:
            return
        if not self._table:
            self._table = bytearray(_PAIR * self._pairs)
        table = self._table
        for fingerprint in fingerprints:
            if fingerprint not in self:
                mark = fingerprint if len(fingerprint) == _SIZE else _digest(fingerprint)
                at = (hash(mark) + self._times) % self._pairs * _PAIR
                table[at : at + _PAIR] = mark + table[at : at + _SIZE]


def _digest(fingerprint: bytes) -> bytes:
    return blake2b(fingerprint, digest_size=_SIZE).digest()
