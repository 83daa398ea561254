"""A project's settings: every option, read and checked."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final, TypeVar
from weakref import WeakKeyDictionary

from scrapy_bloom.canonical.rules import Rules
from scrapy_bloom.errors import SettingError
from scrapy_bloom.options import (
    BACKEND,
    CANONICAL,
    DROP_PARAMS,
    KEEP_PARAMS,
    OPTIONS,
    REDIS_URL,
    RULES,
    Option,
)

if TYPE_CHECKING:
    from scrapy.crawler import Crawler

logger = logging.getLogger(__name__)

T = TypeVar("T")

_SCRAPY_REDIS: Final = {
    "REDIS_URL": "url",
    "REDIS_HOST": "host",
    "REDIS_PORT": "port",
    "REDIS_DB": "db",
}
_PREFIX: Final = "BLOOM_"


class Settings:
    """The value of every option in a project: ``settings[CAPACITY]``.

    Unknown ``BLOOM_`` settings are logged. A crawl reads its settings once, with :meth:`of`.

    :param written: Scrapy's settings, or any mapping from their names.
    :raises SettingError: naming the setting, its value and what it must be.

    Attributes:
        redis_params: the arguments that scrapy-redis would give to its client.
    """

    def __init__(self, written: Mapping[str, Any]) -> None:
        self._values = {option: option.read_from(written) for option in OPTIONS}
        self.redis_params = _scrapy_redis_params(written)
        _warn_of_unknown(written)

    @classmethod
    def of(cls, crawler: Crawler) -> Settings:
        """Return the settings of a crawl, which are read when they are first asked for."""
        settings = _of_crawls.get(crawler)
        if settings is None:
            settings = _of_crawls[crawler] = cls(crawler.settings)
        return settings

    def __getitem__(self, option: Option[T]) -> T:
        value: T = self._values[option]
        return value

    @property
    def rules(self) -> Rules:
        """What the project says of canonical URLs."""
        return Rules.of(self[CANONICAL], self[DROP_PARAMS], self[KEEP_PARAMS], self[RULES])

    def backend(self, *, shared_queue: bool) -> str:
        """Return where the filter is kept: ``local`` or ``redis``.

        :param shared_queue: whether the requests wait in Redis as well, for any worker.
        """
        name = self[BACKEND]
        if name == "auto":
            return "redis" if self[REDIS_URL] or shared_queue else "local"
        return name


_of_crawls: WeakKeyDictionary[Crawler, Settings] = WeakKeyDictionary()


@contextmanager
def client_library() -> Iterator[None]:
    """Tell the user how to install redis-py if an import in this block needs it.

    :raises SettingError: if it is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name != "redis":
            raise
        raise SettingError(
            "A filter in Redis needs the package redis: pip install 'scrapy-bloom[redis]'."
        ) from error


def _scrapy_redis_params(written: Mapping[str, Any]) -> dict[str, Any]:
    """Return scrapy-redis's settings as arguments. REDIS_URL and the like win over REDIS_PARAMS."""
    params = written.get("REDIS_PARAMS") or {}
    if not isinstance(params, Mapping):  # not shown: there may be a password in it
        raise SettingError(
            f"REDIS_PARAMS is a {type(params).__name__}: must be a dict of arguments for redis-py."
        )
    params = dict(params)
    for name, parameter in _SCRAPY_REDIS.items():
        if written.get(name):
            params[parameter] = written[name]
    return params


def _warn_of_unknown(written: Mapping[str, Any]) -> None:
    known = {option.setting.removeprefix(_PREFIX) for option in OPTIONS}
    for name in written:
        own = name.removeprefix(_PREFIX)
        if own != name and own not in known:
            close = get_close_matches(own, known, n=1)
            hint = f"; did you mean {_PREFIX}{close[0]}?" if close else "."
            logger.warning("There is no setting %s%s", name, hint)
