"""Requests as the bytes of a row: as Scrapy's disk queues write them, with a checksum before it."""

from __future__ import annotations

import marshal
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from struct import Struct
from typing import TYPE_CHECKING, Any, Final
from zlib import crc32

from queuelib import queue as queuelib
from scrapy import squeues
from scrapy.utils.request import request_from_dict

from scrapy_bloom.errors import SettingError
from scrapy_bloom.frontier.buckets import Bucket, Fifo, Lifo
from scrapy_bloom.redis.queue.base import Form

if TYPE_CHECKING:
    from scrapy import Request, Spider

_CHECKSUM: Final = Struct(">I")
PICKLE: Final = 0x80  # the first byte of every pickle, and of no dict that marshal wrote
_FIFO: Final = ("FifoDiskQueue", "FifoSQLiteQueue")


@dataclass(frozen=True)
class QueueKind:
    """What one of Scrapy's classes of disk queues stands for.

    Attributes:
        order: the queue that gives requests out in the same order.
        dumps: how a request, as a dict, becomes bytes.
        files: the class that reads Scrapy's own files, from their path.
    """

    order: type[Bucket]
    dumps: Callable[[dict[str, Any]], bytes]
    files: type[Any]

    @property
    def form(self) -> Form:
        """What the workers of a shared queue must have in common."""
        return Form(
            "fifo" if self.order is Fifo else "lifo",
            "marshal" if self.dumps is marshal.dumps else "pickle",
        )

    @classmethod
    def of(cls, setting: str, queue_class: type[Any]) -> QueueKind:
        """Return the kind of a class that a setting names.

        :raises SettingError: if it is none of Scrapy's, nor derived from one.
        """
        for dumps, prefix in ((_pickle, "Pickle"), (marshal.dumps, "Marshal")):
            for end in ("FifoDiskQueue", "LifoDiskQueue", "FifoSQLiteQueue", "LifoSQLiteQueue"):
                known = getattr(squeues, prefix + end, None)  # those on SQLite from Scrapy 2.19
                if known is not None and issubclass(queue_class, known):
                    order = Fifo if end in _FIFO else Lifo
                    return cls(order, dumps, getattr(queuelib, end))
        name = f"{queue_class.__module__}.{queue_class.__qualname__}"
        raise SettingError(
            f"{setting} = {name!r}: scrapy_bloom.Scheduler stores the requests itself, in the order"
            f" and the form of one of Scrapy's disk queues. Give one of those, such as"
            f" 'scrapy.squeues.PickleLifoDiskQueue'."
        )


def encode(request: Request, spider: Spider, dumps: Callable[[dict[str, Any]], bytes]) -> bytes:
    """Return a request as the bytes of a row; raises whatever it will if that cannot be."""
    return frame(dumps(request.to_dict(spider=spider)))


def frame(payload: bytes) -> bytes:
    """Return the bytes of a row for a request as Scrapy's disk queues write it."""
    return _CHECKSUM.pack(crc32(payload)) + payload


def decode(body: bytes, spider: Spider) -> Request:
    """Return the request of a row.

    :raises ValueError: if the bytes are not those that were written. What the request itself is
        made of may raise anything.
    """
    payload = payload_in(body)
    # As safe as Scrapy's own disk queues: who can write the job directory can run code.
    loads = pickle.loads if payload[0] == PICKLE else marshal.loads
    return request_from_dict(loads(payload), spider=spider)


def payload_in(body: bytes) -> bytes:
    """Return the request of a row, in whichever form it was stored.

    :raises ValueError: if the bytes are not those that were written.
    """
    if not is_whole(body):
        raise ValueError("its bytes do not match their checksum")
    return body[_CHECKSUM.size :]


def is_whole(body: bytes) -> bool:
    """Return whether the bytes of a row are those that were written."""
    return _CHECKSUM.pack(crc32(body[_CHECKSUM.size :])) == body[: _CHECKSUM.size]


def _pickle(request: dict[str, Any]) -> bytes:
    return pickle.dumps(request, protocol=4)
