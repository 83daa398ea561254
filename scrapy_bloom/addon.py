"""One line for users: ``ADDONS = {"scrapy_bloom.Addon": 500}``."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

from scrapy.exceptions import NotConfigured
from scrapy.settings import SETTINGS_PRIORITIES, BaseSettings
from scrapy.utils.misc import load_object

if TYPE_CHECKING:
    from scrapy.crawler import Crawler
    from typing_extensions import Self

logger = logging.getLogger(__name__)

_FILTER: Final = "scrapy_bloom.BloomDupeFilter"
_SCHEDULER: Final = "scrapy_bloom.Scheduler"
_RETRY_AFTER: Final = "scrapy_bloom.RetryAfterMiddleware"
_SCRAPYS_FEEDS: Final = "scrapy.extensions.feedexport.FeedExporter"
_FEEDS: Final = "scrapy_bloom.FeedExporter"
_MIDDLEWARES: Final = "DOWNLOADER_MIDDLEWARES"


class Addon:
    """Enables the duplicate filter and the scheduler, and what they need.

    What the project, the spider or the command line has set stays. Without a job directory or
    Redis, so does Scrapy's own scheduler.

    Scrapy's commands that only inspect pages, such as ``fetch`` and ``shell``, run without a job
    directory and without this package.
    """

    _is_inspection_command = False

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Make the add-on of a crawl, or of a command."""
        # Imported only here: every Scrapy command imports this module.
        from scrapy_bloom.crawl.scrapy.crawler import is_inspection_command

        self = cls()
        self._is_inspection_command = is_inspection_command(crawler)
        return self

    def update_settings(self, settings: BaseSettings) -> None:
        """Set ``DUPEFILTER_CLASS`` and ``SCHEDULER``, and add a middleware for ``Retry-After``.

        :raises NotConfigured: if the filter cannot be used.
        """
        # Imported only here, as above.
        from scrapy_bloom.dupefilter import BloomDupeFilter
        from scrapy_bloom.settings import is_in_redis

        if self._is_inspection_command:
            settings.set("JOBDIR", None, priority="cmdline")
            return
        takes_filter = _is_default(settings, "DUPEFILTER_CLASS")
        chosen = settings["DUPEFILTER_CLASS"]
        if not takes_filter and not _is_a(chosen, BloomDupeFilter):
            raise NotConfigured(
                f"DUPEFILTER_CLASS is {chosen!r}, so this crawl runs without scrapy-bloom. Remove"
                f" that setting."
            )
        shared = is_in_redis(settings)
        folder = settings["JOBDIR"]
        takes_scheduler = (folder or shared) and _is_default(settings, "SCHEDULER")
        if (folder or shared) and not takes_scheduler:
            _warn_of_another_scheduler(settings["SCHEDULER"])
        if takes_scheduler:
            settings.set("SCHEDULER", _SCHEDULER, priority="addon")
        if takes_filter:
            settings.set("DUPEFILTER_CLASS", _FILTER, priority="addon")
        if folder or shared:
            _replace_feed_exporter(settings)
        _add_middlewares(settings)

    def __repr__(self) -> str:
        return "scrapy_bloom.Addon()"  # Scrapy lists its add-ons in the log


def _warn_of_another_scheduler(chosen: Any) -> None:
    """Warn that requests would not be stored with their marks."""
    from scrapy_bloom.scheduler import Scheduler

    try:
        kinds = load_object(chosen).__mro__  # Scrapy calls all with the right methods subclasses
    except Exception:  # as below
        return
    if Scheduler not in kinds:
        logger.warning(
            "SCHEDULER = %r: this run is not protected: after a kill it starts over, or loses the"
            " requests in this process's queue. Remove that setting, and the add-on sets %r.",
            chosen,
            _SCHEDULER,
        )


def _add_middlewares(settings: BaseSettings) -> None:
    """Add them by their paths: Scrapy's own method adds the classes, and logs them as such."""
    from scrapy_bloom.retry_after import RetryAfterMiddleware

    middlewares = settings.getdict(_MIDDLEWARES)
    if not any(_is_a(middleware, RetryAfterMiddleware) for middleware in middlewares):
        middlewares[_RETRY_AFTER] = 560
    settings.set(_MIDDLEWARES, middlewares, settings.getpriority(_MIDDLEWARES) or 0)


def _replace_feed_exporter(settings: BaseSettings) -> None:
    """Put ours in the place of Scrapy's, unless the project has one of its own."""
    name = "EXTENSIONS"
    if settings.getwithbase(name).get(_SCRAPYS_FEEDS) is not None:
        chosen = {**settings.getdict(name), _SCRAPYS_FEEDS: None, _FEEDS: 0}
        settings.set(name, chosen, settings.getpriority(name) or 0)


def _is_default(settings: BaseSettings, name: str) -> bool:
    return settings.getpriority(name) == SETTINGS_PRIORITIES["default"]


def _is_a(choice: Any, ours: type) -> bool:
    """Return whether a setting names a class of ours, or a subclass of it."""
    try:
        chosen = load_object(choice)
    except Exception:  # Scrapy says what is wrong with it when it loads it
        return False
    return isinstance(chosen, type) and issubclass(chosen, ours)
