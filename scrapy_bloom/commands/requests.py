"""Decode stored requests for display without executing project code."""

from __future__ import annotations

import io
import marshal
import pickle
from collections.abc import Callable
from pickletools import genops
from typing import Any, Final, NamedTuple, TypeAlias
from urllib.parse import urlsplit

from scrapy import Request

from scrapy_bloom.crawl.history import CHAIN, ORIGINAL, START

_MOST_TUPLES: Final = 10_000  # in a request

Read: TypeAlias = Callable[[bytes], dict[str, Any]]


class StoredRequest(NamedTuple):
    """A request as it is stored.

    Attributes:
        slot: the download slot of its queue, if that is for one.
        priority: Scrapy's priority, the highest first.
        body: the request as Scrapy's disk queues write it.
        date: when it may be sent, in seconds since 1970; 0 if it need not wait for a time.
        damaged: whether its checksum is wrong; it has no body then.
    """

    slot: str | None
    priority: int
    body: bytes
    date: float = 0.0
    damaged: bool = False


class Decoded(NamedTuple):
    """A stored request, as far as it can be decoded without executing project code.

    Attributes:
        priority: Scrapy's priority, the highest first.
        method: its HTTP method.
        url: its URL; empty if the request cannot be decoded.
        depth: ``meta["depth"]``, how many links from a start request.
        callback: name of the spider's method for the response; empty for `parse`.
        problem: why it cannot be decoded; empty if it can.
        not_before: when it may be sent, in seconds since 1970; 0 if it need not wait for a time.
        slot: its download slot if it has chosen one, else its host.
    """

    priority: int = 0
    method: str = ""
    url: str = ""
    depth: int = 0
    callback: str = ""
    problem: str = ""
    not_before: float = 0.0
    slot: str = ""


def matches(kind: str, reason: str) -> bool:
    """Return whether a request failed for a reason: ``ValueError`` is one in any callback, too."""
    return not reason or kind == reason or kind.startswith(f"{reason} ")


def read(body: bytes) -> dict[str, Any]:
    """Return a request of a job directory as a dict, with dummies for other than plain values.

    :raises ValueError: if it has very many tuples: Python crashes if a key is nested so deeply.
    """
    if len(body) > _MOST_TUPLES and body[:1] == pickle.PROTO:
        tuples = sum(code.name.startswith("TUPLE") for code, _, _ in genops(body))
        if tuples > _MOST_TUPLES:
            raise ValueError(f"it has {tuples:,} tuples, expected at most {_MOST_TUPLES:,}")
    fields: dict[str, Any] = (
        _PlainUnpickler(io.BytesIO(body)).load()
        if body[:1] == pickle.PROTO
        else marshal.loads(body)  # noqa: S302 - it makes plain values only
    )
    return fields


def decoded(body: bytes | None, not_before: float = 0.0, *, read: Read = read) -> Decoded:
    """Decode a stored request; if that fails, return one with a problem.

    :param body: the request as it is stored; None if its checksum is wrong.
    :param read: makes a dict of it.
    """
    request = Decoded(not_before=not_before)
    try:
        if body is None:
            raise ValueError("its bytes do not match their checksum")
        fields = read(body)
        meta = fields.get("meta") or {}
        depth, url = meta.get("depth"), str(fields["url"])
        return request._replace(
            priority=int(fields.get("priority", 0)),
            method=str(fields.get("method", "GET")),
            url=url,
            slot=str(meta.get("download_slot") or urlsplit(url).hostname or ""),
            depth=depth if isinstance(depth, int) else 0,
            callback=str(fields.get("callback") or ""),
        )
    except Exception as error:  # whatever it contains, it is shown as unreadable
        return request._replace(problem=f"{type(error).__name__}: {error}")


def marks_in(body: bytes, fingerprint: Callable[[Request], bytes], read: Read) -> list[bytes]:
    """Return the marks of the pages that a stored request stands for.

    It may be a redirect or a retry: then they are also those of the requests before it. There are
    none if it cannot be decoded.

    :param read: makes a dict of it.
    """
    marks, original = _marks_in(body, fingerprint, read)
    if original:
        marks += _marks_in(original, fingerprint, read)[0]
    return marks


def _marks_in(
    body: bytes, fingerprint: Callable[[Request], bytes], read: Read
) -> tuple[list[bytes], bytes]:
    """Return the marks of a request and of its chain, and the original that it carries along."""
    try:
        fields = read(body)
        meta = fields.get("meta") or {}
        request = Request(
            str(fields["url"]),
            method=str(fields.get("method", "GET")),
            headers=fields.get("headers"),
            body=fields.get("body"),
            meta=meta,
            encoding=str(fields.get("encoding", "utf-8")),
        )
        chain = map(bytes.fromhex, meta.get(CHAIN, ()))
        return [fingerprint(request), *chain], bytes(meta.get(ORIGINAL, b""))
    except Exception:  # whatever it is made of, the crawl reads it
        return [], b""


def start_in(body: bytes) -> bytes:
    """Return which start request a stored request stands for: nothing if none, or not decoded."""
    try:
        return bytes((read(body).get("meta") or {}).get(START, b""))
    except Exception:  # whatever it is made of, the crawl reads it
        return b""


class _Unknown:
    """Stands in for an object whose class is not imported, and ignores what is done to it."""

    def __init__(self, *_: object, **__: object) -> None:
        pass

    __setstate__ = __setitem__ = append = extend = add = __init__


class _PlainUnpickler(pickle.Unpickler):
    """Unpickles plain values, and replaces every other object with a dummy."""

    def find_class(self, module: str, name: str) -> Any:  # noqa: ARG002 - no class is imported
        return _Unknown
