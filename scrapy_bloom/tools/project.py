"""A Scrapy project, or the lack of one: its settings choose filter, fingerprints and sizes."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

from scrapy import Spider
from scrapy.crawler import Crawler
from scrapy.settings import BaseSettings
from scrapy.settings import Settings as ScrapySettings
from scrapy.utils.misc import load_object
from scrapy.utils.project import get_project_settings, inside_project

from scrapy_bloom.backends.base import backend_name
from scrapy_bloom.canonical.fingerprint import CanonicalFingerprinter
from scrapy_bloom.canonical.provenance import difference, record, rules_of_record
from scrapy_bloom.errors import SettingError
from scrapy_bloom.options import (
    CANONICAL,
    DROP_PARAMS,
    KEEP_PARAMS,
    REDIS_KEY,
    REDIS_TIMEOUT,
    RULES,
    in_settings,
)
from scrapy_bloom.session.rules import rules_of
from scrapy_bloom.settings import Settings
from scrapy_bloom.storage.snapshot import Identity
from scrapy_bloom.tools.local_target import JobTarget
from scrapy_bloom.tools.target import Target

_CANONICAL = (CANONICAL, DROP_PARAMS, KEEP_PARAMS, RULES)


class Project:
    """What the settings of a project say of filters; outside of a project, Scrapy's defaults.

    :param settings: Scrapy's settings; None for those of the project around the working directory.
    :param spider: name of the spider whose filter is meant, or that a new filter is for.
    :raises SettingError: if there is no such spider in the project; in every method, if a setting
        cannot be used.
    """

    def __init__(self, settings: ScrapySettings | None = None, spider: str = "") -> None:
        self._scrapys = get_project_settings() if settings is None else settings
        self.spider = spider

    @property
    def scrapys(self) -> BaseSettings:
        """Scrapy's settings, as the crawl of the spider would read them."""
        return self._crawler.settings

    @cached_property
    def settings(self) -> Settings:
        """The options of this package, as the crawl of the spider would read them."""
        return Settings(self._crawler.settings)

    @property
    def timeout(self) -> float:
        """``BLOOM_REDIS_TIMEOUT``, whatever the spider may say of it."""
        given = self._scrapys.get(REDIS_TIMEOUT.setting, REDIS_TIMEOUT.default)
        return REDIS_TIMEOUT.read(in_settings(REDIS_TIMEOUT), given)

    @cached_property
    def fingerprinter(self) -> CanonicalFingerprinter:
        """What makes the fingerprints of the spider's crawl."""
        wrapped = self._crawler.request_fingerprinter
        assert wrapped is not None  # noqa: S101 - the crawler has applied its settings
        return CanonicalFingerprinter.wrapping(wrapped, rules_of(self.settings))

    @property
    def has_rules(self) -> bool:
        """Whether somebody has chosen what makes fingerprints here."""
        names = ["REQUEST_FINGERPRINTER_CLASS", *(option.setting for option in _CANONICAL)]
        return inside_project() or any(self._scrapys.getpriority(name) for name in names)

    @property
    def identity(self) -> Identity:
        """What a new filter for the spider belongs to."""
        fingerprinter = self.fingerprinter
        return Identity(self.spider, fingerprinter.wrapped, record(fingerprinter.rules))

    def target(self) -> Target:
        """Return where the settings keep the filter of the spider.

        :raises SettingError: if they do not say.
        """
        settings = self.settings
        shared = _is_shared_queue(self._crawler.settings)
        if backend_name(settings, shared_queue=shared) == "redis":
            if not self.spider and "%(spider)s" in settings[REDIS_KEY]:
                raise SettingError("give a TARGET, or the name of a spider with --spider")
            # Imported only here: redis is an extra.
            from scrapy_bloom.backends.redis import key_of, server_of  # noqa: PLC0415
            from scrapy_bloom.tools.redis_target import TIMEOUT, RedisTarget  # noqa: PLC0415

            key = key_of(settings[REDIS_KEY], self.spider)
            timeout = max(settings[REDIS_TIMEOUT], TIMEOUT)
            return RedisTarget(server_of(settings), key, timeout=timeout, words=in_settings)
        folder = self._crawler.settings["JOBDIR"]  # Scrapy's own function would make it
        if not folder:
            raise SettingError(
                "give a TARGET: a job directory, a file with a filter, or the URL of a Redis server"
                " with --key. The settings name none: they have no JOBDIR and no BLOOM_REDIS_URL"
            )
        return JobTarget(Path(folder))

    def fingerprinter_for(self, identity: Identity) -> tuple[CanonicalFingerprinter, str]:
        """Return what makes the fingerprints of a filter, and a warning where that is not sure.

        In a project, or where a setting chooses rules, it is what the next crawl would use; else
        the rules that the filter was filled with.

        :raises SettingError: if the filter was filled with fingerprints of another class.
        """
        own = self.fingerprinter
        if identity.fingerprinter and identity.fingerprinter != own.wrapped:
            raise SettingError(
                f"the fingerprints of this filter are made by {identity.fingerprinter}, and those"
                f" of these settings by {own.wrapped}. Run this in the project of the crawl, or"
                f" give -s REQUEST_FINGERPRINTER_CLASS={identity.fingerprinter}"
            )
        if not self.has_rules and (rules := rules_of_record(identity.canonical)):
            own = CanonicalFingerprinter(rules=rules, wrapped=self._crawler.request_fingerprinter)
        then = identity.canonical
        return own, difference(then, record(own.rules)) if then else ""

    @cached_property
    def _crawler(self) -> Crawler:
        """A crawler that was never started; add-ons and the spider may change its settings."""
        settings = self._scrapys.copy()
        for name in ("EXTENSIONS", "EXTENSIONS_BASE"):
            settings.set(name, {}, priority="cmdline")  # some make JOBDIR, or open files
        crawler = Crawler(self._spider_class(), settings, init_reactor=True)
        crawler._apply_settings()  # noqa: SLF001 - nothing else applies add-ons
        return crawler

    def _spider_class(self) -> type[Spider]:
        if not self.spider or not inside_project():
            return Spider
        try:
            loader = load_object(self._scrapys["SPIDER_LOADER_CLASS"])
            loaded: type[Spider] = loader.from_settings(self._scrapys.frozencopy()).load(
                self.spider
            )
        except KeyError:
            raise SettingError(
                f"there is no spider {self.spider!r} in this project: 'scrapy list' names them"
            ) from None
        return loaded


def _is_shared_queue(settings: Any) -> bool:
    """Return whether the crawl uses scrapy-redis's scheduler."""
    return "scrapy_redis" in str(settings.get("SCHEDULER"))
