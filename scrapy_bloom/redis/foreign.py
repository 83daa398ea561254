"""Keys in Redis that other programs have written: those of scrapy-redis."""

from __future__ import annotations

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
        return int(self._call(commands[self.kind()], self.key))

    def members(self) -> Iterator[bytes]:
        """Yield the members, in no order; those of a set or sorted set may come twice."""
        read: dict[str, Callable[[], Iterator[bytes]]] = {
            "set": lambda: self._scan("SSCAN"),
            "zset": lambda: self._scan("ZSCAN"),
            "list": self._list,
        }
        return read[self.kind()]()

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
