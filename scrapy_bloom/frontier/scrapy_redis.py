"""Where and how a crawl of scrapy-redis keeps its requests, by its own settings."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from scrapy_bloom.errors import SettingError

if TYPE_CHECKING:
    from scrapy.settings import BaseSettings
    from typing_extensions import Self

_QUEUE: Final = "%(spider)s:requests"
_SEEN: Final = "%(spider)s:dupefilter"


@dataclass(frozen=True)
class ScrapyRedis:
    """What scrapy-redis's settings say of one spider's crawl.

    Attributes:
        queue: key of its requests.
        seen: key of its fingerprints.
        loads: reads a request, as a dict.
    """

    queue: str
    seen: str
    loads: Callable[[bytes], dict[str, Any]]

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
        return cls(
            str(settings.get("SCHEDULER_QUEUE_KEY") or _QUEUE) % names,
            str(settings.get("SCHEDULER_DUPEFILTER_KEY") or _SEEN) % names,
            # As safe as scrapy-redis itself: who can write its queue can run code.
            serializer.loads if serializer else pickle.loads,
        )
