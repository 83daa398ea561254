"""One line for users: ``ADDONS = {"scrapy_bloom.Addon": 500}``."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

from scrapy.settings import SETTINGS_PRIORITIES, BaseSettings
from scrapy.utils.misc import load_object

if TYPE_CHECKING:
    from scrapy.crawler import Crawler
    from typing_extensions import Self

logger = logging.getLogger(__name__)

_OURS: Final = "scrapy_bloom.BloomDupeFilter"
_FORGETS: Final = "scrapy_bloom.ForgetFailed"
# Choices of the command line and of Scrapy's commands are left out: they are made on purpose.
_WARNED_OF: Final = {SETTINGS_PRIORITIES[name] for name in ("addon", "project", "spider")}


class Addon:
    """Makes :class:`BloomDupeFilter` the duplicate filter of a project.

    If the project, the spider, the command line or a Scrapy command has chosen a filter, that
    choice stays: ``scrapy shell``, for example, works without any filter. If a project or a spider
    has chosen another filter than ours, the log says so.

    Commands of Scrapy that only look at pages, such as ``fetch`` and ``shell``, get no job
    directory.

    :param looks: whether this is such a command.
    """

    def __init__(self, *, looks: bool = False) -> None:
        self._looks = looks

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Make the add-on of a crawl, or of a command."""
        from scrapy_bloom.crawl.engine import only_looks  # noqa: PLC0415 - not in every command

        return cls(looks=only_looks(crawler))

    def update_settings(self, settings: BaseSettings) -> None:
        """Set ``DUPEFILTER_CLASS``, unless somebody else has set it.

        With ``BLOOM_FORGET_FAILED`` add the middleware that sees failures, nearest to the engine.
        """
        if self._looks:
            settings.set("JOBDIR", None, priority="cmdline")
            return
        if settings["BLOOM_FORGET_FAILED"]:
            settings["DOWNLOADER_MIDDLEWARES"].set(_FORGETS, 0, priority="addon")
        priority = settings.getpriority("DUPEFILTER_CLASS")
        if priority == SETTINGS_PRIORITIES["default"]:
            settings.set("DUPEFILTER_CLASS", _OURS, priority="addon")
        elif priority in _WARNED_OF and not _is_ours(settings["DUPEFILTER_CLASS"]):
            logger.warning(
                "The add-on scrapy_bloom.Addon does nothing, because DUPEFILTER_CLASS is %r."
                " Remove that setting to filter with %s, or remove the add-on.",
                settings["DUPEFILTER_CLASS"],
                _OURS,
            )

    def __repr__(self) -> str:
        return "scrapy_bloom.Addon()"  # Scrapy lists its add-ons in the log


def _is_ours(choice: Any) -> bool:
    """Return whether a ``DUPEFILTER_CLASS`` is our filter or a subclass of it."""
    from scrapy_bloom.dupefilter import BloomDupeFilter  # noqa: PLC0415 - not in every command

    try:
        chosen = load_object(choice)
    except Exception:  # noqa: BLE001 - Scrapy says what is wrong with it when it loads it
        return False
    return isinstance(chosen, type) and issubclass(chosen, BloomDupeFilter)
