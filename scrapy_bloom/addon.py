"""One line for users: ``ADDONS = {"scrapy_bloom.Addon": 500}``."""

from __future__ import annotations

from scrapy.settings import SETTINGS_PRIORITIES, BaseSettings


class Addon:
    """Makes :class:`BloomDupeFilter` the duplicate filter of a project.

    A choice that the project, the spider, the command line or a Scrapy command has made stays:
    ``scrapy shell``, for one, works without any filter.
    """

    def update_settings(self, settings: BaseSettings) -> None:
        """Set ``DUPEFILTER_CLASS`` where nobody else has."""
        if settings.getpriority("DUPEFILTER_CLASS") == SETTINGS_PRIORITIES["default"]:
            settings.set("DUPEFILTER_CLASS", "scrapy_bloom.BloomDupeFilter", priority="addon")
