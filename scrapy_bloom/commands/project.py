"""A Scrapy project, or the lack of one: its settings choose filter, fingerprints and sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, TypeAlias

from scrapy import Spider
from scrapy.crawler import Crawler
from scrapy.settings import BaseSettings
from scrapy.settings import Settings as ScrapySettings
from scrapy.utils.misc import load_object
from scrapy.utils.project import inside_project

from scrapy_bloom.canonical.rules import difference
from scrapy_bloom.crawl.scrapy.crawler import apply_settings
from scrapy_bloom.crawl.serialize import QueueKind
from scrapy_bloom.errors import SettingError
from scrapy_bloom.fingerprinter import CanonicalRequestFingerprinter
from scrapy_bloom.local.job import Identity
from scrapy_bloom.scheduler import Scheduler
from scrapy_bloom.settings import Settings

Marks: TypeAlias = tuple[Identity, Callable[[Sequence[bytes]], list[bool]]]
"""A filter's identity, and a function that carries out a verb for a batch of fingerprints.

It returns for each, in order, whether the filter had it.
"""


class Project:
    """What the settings of a project say about filters; outside of a project, Scrapy's defaults.

    :param settings: Scrapy's settings.
    :param spider: name of the spider whose filter is meant, or that a new filter is for.
    :raises SettingError: in every method, if a setting cannot be used, or if there is no such
        spider.
    :raises ImportError: likewise, if a class that a setting names cannot be loaded.
    :raises NameError: likewise.

    Attributes:
        spider: as given.
        given: the settings as given, without those of the spider and of add-ons.
    """

    def __init__(self, settings: ScrapySettings, spider: str = "") -> None:
        self.given = settings
        self.spider = spider

    @cached_property
    def _crawler(self) -> Crawler:
        """A crawler that was never started; add-ons and the spider may change its settings."""
        settings = self.given.copy()
        for name in ("EXTENSIONS", "EXTENSIONS_BASE"):
            settings.set(name, {}, priority="cmdline")  # some make JOBDIR, or open files
        spider = Spider
        if self.spider and inside_project():
            loader: Any = load_object(self.given["SPIDER_LOADER_CLASS"])
            try:
                spider = loader.from_settings(self.given.frozencopy()).load(self.spider)
            except KeyError:
                raise SettingError(
                    f"there is no spider {self.spider!r} here: 'scrapy list' names them."
                ) from None
        crawler = Crawler(spider, settings, init_reactor=True)
        apply_settings(crawler)
        return crawler

    @property
    def scrapys(self) -> BaseSettings:
        """Scrapy's settings, as the crawl of the spider would read them."""
        return self._crawler.settings

    @cached_property
    def settings(self) -> Settings:
        """The options of this package, as the crawl of the spider would read them."""
        return Settings.of(self._crawler)

    @cached_property
    def fingerprinter(self) -> CanonicalRequestFingerprinter:
        """The fingerprinter of the spider's crawl."""
        wrapped = self._crawler.request_fingerprinter
        assert wrapped is not None  # the crawler has applied its settings
        return CanonicalRequestFingerprinter.wrapping(wrapped, self.settings.rules)

    @property
    def identity(self) -> Identity:
        """The identity of a new filter for the spider."""
        fingerprinter = self.fingerprinter
        return Identity(self.spider, fingerprinter.wrapped, fingerprinter.rules.record())

    @property
    def name(self) -> str:
        """Its ``BOT_NAME``."""
        return str(self.scrapys.get("BOT_NAME") or "")

    @property
    def queue_kind(self) -> QueueKind:
        """What ``SCHEDULER_DISK_QUEUE`` stands for."""
        setting = "SCHEDULER_DISK_QUEUE"
        return QueueKind.of(setting, load_object(self.scrapys[setting]))

    @property
    def start_kind(self) -> QueueKind | None:
        """What ``SCHEDULER_START_DISK_QUEUE`` stands for, if it is set."""
        setting = "SCHEDULER_START_DISK_QUEUE"
        chosen = self.scrapys[setting]
        return QueueKind.of(setting, load_object(chosen)) if chosen else None

    def newest_first(self, queue: str) -> bool:
        """Return whether the newest request of a queue in a job directory is sent first.

        The names of those for start requests end with an s.
        """
        kind = self.start_kind if queue.endswith("s") else self.queue_kind
        return kind is not None and kind.newest_first

    @property
    def owner(self) -> dict[str, Any]:
        """The fields of a plan in Redis that tell whose requests are beside the filter."""
        return {"project": self.name, "spider": self.spider, "order": self.queue_kind.order}

    @property
    def stores_requests(self) -> bool:
        """Whether the spider's requests wait beside its filter."""
        # Scrapy calls every class with the right methods a subclass.
        return bool(self.spider) and Scheduler in load_object(self.scrapys["SCHEDULER"]).__mro__

    def fingerprinter_for(self, identity: Identity) -> tuple[CanonicalRequestFingerprinter, str]:
        """Return the fingerprinter for a filter, and a warning if its rules differ.

        :raises SettingError: if the filter was filled with fingerprints of another class.
        """
        own, then = self.fingerprinter, identity.made_by
        if identity.fingerprinter and identity.fingerprinter != own.wrapped:
            raise SettingError(
                f"the fingerprints of this filter are made by {identity.fingerprinter}, and those"
                f" of these settings by {own.wrapped}. Run this in the project of the crawl, or"
                f" give -s REQUEST_FINGERPRINTER_CLASS={identity.fingerprinter}."
            )
        return own, difference(then, own.rules.record()) if then else ""
