"""Requests that wait, as they are shown to people: read without running code of the crawl."""

from __future__ import annotations

import io
import marshal
import pickle
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from typing_extensions import Self


@dataclass(frozen=True)
class WaitingRequest:
    """A request that waits, as far as it can be told without running code of the crawl.

    Attributes:
        url: its URL; empty if the request cannot be read.
        method: its HTTP method.
        priority: Scrapy's priority, the highest first.
        callback: name of the spider's method that is to get the response; empty for `parse`.
        depth: ``meta["depth"]``, how many links from a start request.
        dont_filter: whether it passes the duplicate filter.
        retries: how often it was fetched in vain, as far as the retry middleware counts.
        problem: why it cannot be read; empty if it can.
    """

    url: str
    method: str = "GET"
    priority: int = 0
    callback: str = ""
    depth: int = 0
    dont_filter: bool = False
    retries: int = 0
    problem: str = ""

    @property
    def host(self) -> str:
        """The host of its URL, empty if there is none."""
        try:
            return urlsplit(self.url).hostname or ""
        except ValueError:
            return ""


@dataclass(frozen=True)
class Waiting:
    """What waits.

    Attributes:
        target: where.
        total: how many requests are not done; in Redis, how many are not taken either.
        under_way: how many are in flight; in a file, at the last commit.
        by_priority: how many have each priority, the highest first, among those that were read.
        by_host: how many are for each host, the most first, likewise.
        read: how many were read for that.
        first: the first ones, in the order in which they will be fetched.
        failed: those on the failed list, or those that cannot be read.
    """

    target: str
    total: int
    under_way: int
    by_priority: Mapping[int, int]
    by_host: Mapping[str, int]
    read: int
    first: Sequence[WaitingRequest]
    failed: Sequence[WaitingRequest]


def summed(
    target: str,
    total: int,
    under_way: int,
    requests: Iterable[WaitingRequest],
    peek: int,
) -> Waiting:
    """Return what requests come to that are read in their order.

    :param peek: how many of the first ones to keep, and of those that cannot be read.
    """
    hosts: Counter[str] = Counter()
    priorities: Counter[int] = Counter()
    first: list[WaitingRequest] = []
    problems: list[WaitingRequest] = []
    for request in requests:
        hosts[request.host] += 1
        priorities[request.priority] += 1
        if len(first) < peek:
            first.append(request)
        if request.problem and len(problems) < peek:
            problems.append(request)
    by_priority = dict(sorted(priorities.items(), reverse=True))
    by_host = dict(hosts.most_common())
    read = sum(priorities.values())
    return Waiting(target, total, under_way, by_priority, by_host, read, first, problems)


def readable(body: bytes | None, priority: int) -> WaitingRequest:
    """Return what a stored request tells; one with a problem, if it cannot be read.

    :param body: the request as Scrapy's disk queues write it; None if its checksum is wrong.
    """
    try:
        if body is None:
            raise ValueError("its bytes do not match their checksum")
        fields = _plain(body)
        meta = fields.get("meta") or {}
        return WaitingRequest(
            str(fields["url"]),
            str(fields.get("method", "GET")),
            priority,
            str(fields.get("callback") or ""),
            _whole(meta.get("depth")),
            bool(fields.get("dont_filter")),
            _whole(meta.get("retry_times")),
        )
    except Exception as error:  # noqa: BLE001 - whatever it is made of, it is shown as unreadable
        return WaitingRequest("", priority=priority, problem=f"{type(error).__name__}: {error}")


def _plain(body: bytes) -> dict[str, Any]:
    """Return Scrapy's dict of a request, with dummies in the place of objects."""
    if body[:1] == b"\x80":
        fields: dict[str, Any] = _PlainUnpickler(io.BytesIO(body)).load()
    else:
        fields = marshal.loads(body)  # noqa: S302 - it makes plain values only
    return fields


def _whole(value: object) -> int:
    return value if isinstance(value, int) else 0


class _Unknown:
    """Stands for an object of a class that is not looked for."""

    def __new__(cls, *_: object, **__: object) -> Self:
        return super().__new__(cls)

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def __setstate__(self, state: object) -> None:
        pass

    def append(self, value: object) -> None:
        """Take in a part of a list."""

    def extend(self, values: object) -> None:
        """Take in parts of a list."""

    def add(self, value: object) -> None:
        """Take in a part of a set."""

    def __setitem__(self, key: object, value: object) -> None:
        pass


class _PlainUnpickler(pickle.Unpickler):
    """Reads what is made of plain values, and puts a dummy in the place of every other object."""

    def find_class(self, module: str, name: str) -> Any:  # noqa: ARG002 - no class is looked for
        return _Unknown
