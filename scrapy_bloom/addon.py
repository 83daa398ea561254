"""One line for users: ``ADDONS = {"scrapy_bloom.Addon": 500}``."""

from __future__ import annotations

import logging
from typing import Any, Final

from scrapy.settings import SETTINGS_PRIORITIES, BaseSettings
from scrapy.utils.misc import load_object

logger = logging.getLogger(__name__)

_OURS: Final = "scrapy_bloom.BloomDupeFilter"
# A Scrapy command, or whoever typed the command line, knows what it has chosen.
_WARNED_OF: Final = {SETTINGS_PRIORITIES[name] for name in ("addon", "project", "spider")}


class Addon:
    """Makes :class:`BloomDupeFilter` the duplicate filter of a project.

    A choice that the project, the spider, the command line or a Scrapy command has made stays:
    ``scrapy shell``, for one, works without any filter. If it is another filter, the log says so.
    """

    def update_settings(self, settings: BaseSettings) -> None:
        """Set ``DUPEFILTER_CLASS`` where nobody else has."""
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
    except Exception:  # noqa: BLE001 - whatever is wrong with it, Scrapy says it when it loads it
        return False
    return isinstance(chosen, type) and issubclass(chosen, BloomDupeFilter)
