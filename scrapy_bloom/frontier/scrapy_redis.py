"""Where and how a crawl of scrapy-redis keeps its requests, by its own settings."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, Literal

from scrapy_bloom.errors import SettingError

if TYPE_CHECKING:
    from scrapy.settings import BaseSettings
    from typing_extensions import Self

_QUEUE: Final = "%(spider)s:requests"
_SEEN: Final = "%(spider)s:dupefilter"
_RANKED: Final = "scrapy_redis.queue.PriorityQueue"
_ORDERS: Final[Mapping[Literal["priority", "fifo", "lifo"], Sequence[str]]] = {
    "priority": ("PriorityQueue", "SpiderPriorityQueue"),
    "fifo": ("FifoQueue", "SpiderQueue"),
    "lifo": ("LifoQueue", "SpiderStack"),
}


@dataclass(frozen=True)
class ScrapyRedis:
    """What scrapy-redis's settings say of one spider's crawl.

    Attributes:
        queue: key of its requests.
        seen: key of its fingerprints.
        queue_class: import path of the class of its queue.
        loads: reads a request, as a dict.
        dumps: writes a request, as a dict; None if that is pickle.
    """

    queue: str
    seen: str
    queue_class: str
    loads: Callable[[bytes], dict[str, Any]]
    dumps: Callable[[dict[str, Any]], bytes | str] | None

    @property
    def order(self) -> Literal["priority", "fifo", "lifo"]:
        """In which order the queue gives its requests out.

        :raises SettingError: if its class is none of scrapy-redis's.
        """
        name = self.queue_class.rpartition(".")[2]
        for order, names in _ORDERS.items():
            if name in names:
                return order
        raise SettingError(
            f"SCHEDULER_QUEUE_CLASS = {self.queue_class!r}: requests can be written for"
            f" scrapy-redis's own queues only. Give one of those, such as {_RANKED!r}."
        )

    @classmethod
    def of(cls, settings: BaseSettings, spider: str) -> Self:
        """Read the settings.

        :raises SettingError: if the serializer cannot be imported.
        """
        names = {"spider": spider}
        serializer = settings.get("SCHEDULER_SERIALIZER")
        if isinstance(serializer, str):
            try:
                serializer = import_module(serializer)
            except ImportError as error:
                raise SettingError(
                    f"SCHEDULER_SERIALIZER = {serializer!r}: it cannot be imported ({error}). Give"
                    f" the module that scrapy-redis has used, or remove it."
                ) from error
        queue_class = settings.get("SCHEDULER_QUEUE_CLASS") or _RANKED
        return cls(
            str(settings.get("SCHEDULER_QUEUE_KEY") or _QUEUE) % names,
            str(settings.get("SCHEDULER_DUPEFILTER_KEY") or _SEEN) % names,
            queue_class if isinstance(queue_class, str) else queue_class.__name__,
            # As safe as scrapy-redis itself: who can write its queue can run code.
            serializer.loads if serializer else pickle.loads,
            serializer.dumps if serializer else None,
        )
