"""The requests of one shard that a worker has taken or holds, and what it has to say about them."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final

from scrapy_bloom.redis.queue.calls import Request

_GENERATION: Final = struct.Struct(">I")


class Holdings:
    """What a worker has, by the names of its tickets, each as it is stored in Redis.

    A name is that in the shard, after the number of the registration under which the worker got the
    request. So a request that comes twice, as after others took the worker for dead, has two names.

    What is said about a request is remembered until an exchange has told the server.
    """

    def __init__(self) -> None:
        self._values: dict[bytes, bytes] = {}
        self._risky: set[bytes] = set()
        self._done: dict[bytes, None] = {}
        self._back: dict[bytes, None] = {}
        self._aside: dict[bytes, None] = {}

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, name: bytes) -> bool:
        return name in self._values

    @property
    def said(self) -> bool:
        """Whether the server has to be told something."""
        return bool(self._done or self._back or self._aside)

    def keep(self, generation: int, name: bytes, value: bytes, *, risky: bool = False) -> bytes:
        """Add a request; return its name.

        :param generation: number of the worker's registration.
        :param name: its name in the shard.
        :param value: the request as it is stored.
        :param risky: whether it is put aside if this worker dies with it, too.
        """
        full = _GENERATION.pack(generation) + name
        self._values[full] = value
        if risky:
            self._risky.add(full)
        return full

    def acknowledge(self, names: Iterable[bytes]) -> None:
        """Remember that requests are done."""
        self._done.update(dict.fromkeys(self._unsaid(names)))

    def give_back(self, names: Iterable[bytes]) -> int:
        """Remember that requests go back; return of how many nothing was said before."""
        news = self._unsaid(names)
        self._back.update(dict.fromkeys(news))
        return len(news)

    def put_aside(self, names: Iterable[bytes]) -> int:
        """Remember that nobody takes requests any more; return as :meth:`give_back`."""
        news = self._unsaid(names)
        self._aside.update(dict.fromkeys(news))
        return len(news)

    def request(self, most: int, risk: int) -> Request:
        """Return an exchange that takes so many requests, and tells all that is to be told."""
        said = (tuple(self._done), tuple(self._back), tuple(self._aside))
        return Request(most, risk, bool(self._unsaid(self._risky)), *said)

    def told(self, request: Request) -> None:
        """Note that the server knows what `request` says."""
        for name in (*request.done, *request.back, *request.failed):
            self._forget(name)

    def clear(self) -> None:
        """Forget everything: others have it."""
        for name in tuple(self._values):
            self._forget(name)

    def _unsaid(self, names: Iterable[bytes]) -> list[bytes]:
        said = (self._done, self._back, self._aside)
        return [
            name
            for name in dict.fromkeys(names)
            if name in self._values and not any(name in those for those in said)
        ]

    def _forget(self, name: bytes) -> None:
        self._values.pop(name, None)
        self._risky.discard(name)
        for names in (self._done, self._back, self._aside):
            names.pop(name, None)
