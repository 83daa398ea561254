"""How requests are serialized, and in which order they are taken: as in Scrapy's queue classes."""

from __future__ import annotations

import inspect
import marshal
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from scrapy import squeues
from scrapy.utils.request import request_from_dict

from scrapy_bloom.errors import SettingError, shown

if TYPE_CHECKING:
    from scrapy import Request, Spider

_PICKLE: Final = 0x80  # first byte of every pickle, never of a dict written by marshal


class Unstorable(Exception):  # noqa: N818 - nothing failed
    """A request is new, and cannot be serialized: it waits in memory. The text says why.

    :param why: what serializing it has raised.
    :param write: serializes a dict in the same way.

    Attributes:
        mark: that of its page; None if it is not filtered.
    """

    mark: bytes | None = None

    def __init__(
        self, why: Exception, request: Request, write: Callable[[dict[str, Any]], object]
    ) -> None:
        super().__init__(why)
        self._why, self._request, self._write = why, request, write

    def __str__(self) -> str:
        """Name the value, which is looked for only now: of all such requests one is logged."""
        for place in ("meta", "cb_kwargs"):
            for key, value in getattr(self._request, place).items():
                try:
                    self._write({"value": value})
                except Exception as error:  # of the value's own code, too
                    return f"{place}[{shown(key)}] is {_described(value, error)}"
        return str(self._why)


def _described(value: Any, error: Exception) -> str:
    """Return what a value is, and why it cannot be serialized.

    For a method pickle would name what it has met in the spider.
    """
    if inspect.ismethod(value):
        return f"the method {value.__qualname__}"
    if inspect.isfunction(value):
        return f"the function {value.__qualname__}"
    return f"a {type(value).__qualname__}: {error}"


@dataclass(frozen=True)
class QueueKind:
    """The order and serialization of one of Scrapy's disk queue classes.

    Attributes:
        newest_first: whether it returns the newest request first.
        dumps: serializes a request given as a dict.
    """

    newest_first: bool
    dumps: Callable[[dict[str, Any]], bytes]

    @classmethod
    def of(cls, setting: str, queue_class: type[Any]) -> QueueKind:
        """Return the kind of the queue class that a setting names.

        :raises SettingError: if it is neither one of Scrapy's nor derived from one.
        """
        for dumps, prefix in ((write_fields, "Pickle"), (marshal.dumps, "Marshal")):
            for end in ("FifoDiskQueue", "LifoDiskQueue", "FifoSQLiteQueue", "LifoSQLiteQueue"):
                known = getattr(squeues, prefix + end, None)  # SQLite: Scrapy 2.19 and later
                if known is not None and issubclass(queue_class, known):
                    return cls(end.startswith("Lifo"), dumps)
        name = f"{queue_class.__module__}.{queue_class.__qualname__}"
        raise SettingError(
            f"{setting} = {name!r}: scrapy_bloom.Scheduler stores the requests itself, in the order"
            f" and the form of one of Scrapy's disk queues. Use one of those, such as"
            f" 'scrapy.squeues.PickleLifoDiskQueue'."
        )

    @property
    def order(self) -> str:
        """The order alone, which is what counts in Redis: ``lifo`` or ``fifo``."""
        return "lifo" if self.newest_first else "fifo"


def read_request(body: bytes, spider: Spider) -> Request:
    """Deserialize a request of a job directory. Raises whatever its contents raise.

    As safe as Scrapy's own disk queues: anyone who can write there can run code.
    """
    return request_from_dict(read_fields(body), spider=spider)


def read_fields(body: bytes) -> dict[str, Any]:
    """Return a request of a job directory as a dict. Raises whatever its contents raise."""
    fields: dict[str, Any] = (pickle.loads if body[0] == _PICKLE else marshal.loads)(body)
    return fields


def write_fields(fields: dict[str, Any]) -> bytes:
    """Serialize a request for a job directory, as most of Scrapy's queues do."""
    return pickle.dumps(fields, protocol=4)
