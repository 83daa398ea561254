"""Requests that wait, as they are shown to people: read without running code of the crawl."""

from __future__ import annotations

import io
import marshal
import pickle
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from scrapy_bloom.frontier.requests import PICKLE, payload_in

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


def readable(body: bytes, priority: int) -> WaitingRequest:
    """Return what the bytes of a row tell; a request with a problem, if they cannot be read."""
    try:
        return read_request(payload_in(body), priority)
    except Exception as error:  # noqa: BLE001 - whatever it is made of, it is shown as unreadable
        return WaitingRequest("", priority=priority, problem=f"{type(error).__name__}: {error}")


def read_request(payload: bytes, priority: int) -> WaitingRequest:
    """Return what a stored request tells. No code of the crawl is imported or run.

    :param payload: the request as Scrapy's disk queues write it.
    :raises Exception: of any class, if it cannot be read.
    """
    told = read_plain(payload)
    meta = told.get("meta") or {}
    return WaitingRequest(
        str(told["url"]),
        str(told.get("method", "GET")),
        priority,
        str(told.get("callback") or ""),
        _whole(meta.get("depth")),
        bool(told.get("dont_filter")),
        _whole(meta.get("retry_times")),
    )


def read_plain(payload: bytes) -> dict[str, Any]:
    """Return a stored request as Scrapy's dict of it, with dummies in the place of objects.

    :param payload: as for :func:`read_request`, which raises the same.
    """
    if payload[0] == PICKLE:
        told: dict[str, Any] = _PlainUnpickler(io.BytesIO(payload)).load()
    else:
        told = marshal.loads(payload)  # noqa: S302 - it makes plain values only
    return told


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
