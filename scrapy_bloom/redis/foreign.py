"""Keys in Redis that other programs have written: those of scrapy-redis."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from typing import Any, Final

from scrapy_bloom.redis.connection import Target
from scrapy_bloom.redis.deadline import Within

_AT_ONCE: Final = 1_000


class ForeignKey:
    """Reads what is under a key, and changes nothing.

    :param target: the server.
    :param key: the key.
    :param timeout: most seconds that Redis may hold up one call.
    :raises BackendError: if the server cannot be used, here and in every method.
    """

    def __init__(self, target: Target, key: str, *, timeout: float) -> None:
        self._target = target
        self._client = target.connect(timeout / 2)
        self._timeout = timeout
        self._explained = target.explained
        self.key = key

    def kind(self) -> str:
        """Return what Redis calls the kind of value: ``set``, ``zset``, ``list`` or ``none``."""
        kind: bytes = self._call("TYPE", self.key)
        return kind.decode() if isinstance(kind, bytes) else str(kind)

    def size(self) -> int:
        """Return how many members there are."""
        commands = {"set": "SCARD", "zset": "ZCARD", "list": "LLEN"}
        kind = self.kind()
        return 0 if kind == "none" else int(self._call(commands[kind], self.key))

    def members(self) -> Iterator[bytes]:
        """Yield the members, in no order; those of a set or sorted set may come twice."""
        read: dict[str, Callable[[], Iterator[bytes]]] = {
            "set": lambda: self._scan("SSCAN"),
            "zset": lambda: self._scan("ZSCAN"),
            "list": self._list,
        }
        return read[self.kind()]()

    def oldest(self, count: int, after: int = 0) -> list[bytes]:
        """Return requests: of a list the oldest ones, of a sorted set those with the lowest score.

        New requests of a list are put at its beginning. So the oldest one is the last.

        :param count: how many, at most.
        :param after: how many to leave out before them.
        """
        if self.kind() == "zset":
            return list(self._call("ZRANGE", self.key, after, after + count - 1))
        found = self._call("LRANGE", self.key, -after - count, -after - 1)
        return list(reversed(found))

    def digest(self) -> str:
        """Return what a worker that runs would change in requests."""
        size = self.size()
        ends = (self.oldest(1), self.oldest(1, max(size - 1, 0)))
        return hashlib.sha1(
            repr((self.key, size, ends)).encode(), usedforsecurity=False
        ).hexdigest()

    def has(self, member: str) -> bool:
        """Return whether a set has this member."""
        return bool(self._call("SISMEMBER", self.key, member))

    def beside(self, key: str) -> ForeignKey:
        """Return another key of the same server; it has a connection of its own."""
        return ForeignKey(self._target, key, timeout=self._timeout)

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def _scan(self, command: str) -> Iterator[bytes]:
        cursor: Any = 0
        while True:
            cursor, found = self._call(command, self.key, cursor, "COUNT", _AT_ONCE)
            if found and isinstance(found[0], tuple):
                found = [member for member, _ in found]
            elif command == "ZSCAN":
                found = found[::2]
            yield from found
            if not int(cursor):
                return

    def _list(self) -> Iterator[bytes]:
        start = 0
        while found := self._call("LRANGE", self.key, start, start + _AT_ONCE - 1):
            yield from found
            start += len(found)

    def _call(self, *command: Any) -> Any:
        with self._explained(), Within(self._timeout):
            return self._client.execute_command(*command)
