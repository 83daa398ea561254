"""Start requests that still wait from earlier runs: the same ones are not stored again.

``start()`` runs in full in each run, and Scrapy does not filter what it yields by default. So those
that still waited would be stored once more by each run. A request is the same if the bytes are in
which it would be stored: nothing that has changed is left out.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from hashlib import blake2b
from struct import Struct
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from scrapy import Request

    from scrapy_bloom.local.queue import Queues
    from scrapy_bloom.local.store import Store

_KEY: Final = "starts "
"""How the keys of the notes begin. A number follows: only the last one changes."""

_ENTRY: Final = Struct(">q16s")  # the row of a request, and its digest
_IN_ONE: Final = 200  # entries of a note

_MOST: Final = 10_000
"""How many are noted. More of them are stored once more by each run."""


class StoredStarts:
    """The start requests of a job that wait.

    :param store: of the job, as after opening.
    :param queues: serialize requests.
    """

    def __init__(self, store: Store, queues: Queues) -> None:
        self._meta, self._queues = store.meta, queues
        keys = [key for key in store.meta if key.startswith(_KEY)]
        noted = _ENTRY.iter_unpack(b"".join(store.meta[key] for key in keys))
        waiting = [(row, digest) for row, digest in noted if store.has(row)]
        self._waiting = Counter(digest for _, digest in waiting)
        self._meta |= dict.fromkeys(keys, b"")
        self._count = 0
        for row, digest in waiting:
            self.note(digest, row)

    def digest(self, request: Request) -> bytes:
        """Return what identifies a request; nothing if none waits and no more are noted."""
        if self._waiting or self._count < _MOST:
            with suppress(Exception):  # it cannot be stored
                return blake2b(self._queues.dumps(request), digest_size=16).digest()
        return b""

    def take(self, digest: bytes) -> bool:
        """Return whether the same request has waited since an earlier run; once for each."""
        if digest not in self._waiting:
            return False
        self._waiting[digest] -= 1
        if not self._waiting[digest]:
            del self._waiting[digest]
        return True

    def note(self, digest: bytes, row: int) -> None:
        """Note that a start request waits."""
        if self._count < _MOST:
            key = f"{_KEY}{self._count // _IN_ONE}"
            self._meta[key] = (self._meta.get(key) or b"") + _ENTRY.pack(row, digest)
            self._count += 1
