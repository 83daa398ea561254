"""A Scrapy project, or the lack of one: its settings choose filter, fingerprints and sizes."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from scrapy import Spider
from scrapy.crawler import Crawler
from scrapy.settings import BaseSettings
from scrapy.settings import Settings as ScrapySettings
from scrapy.utils.misc import load_object
from scrapy.utils.project import inside_project

from scrapy_bloom.canonical.fingerprint import CanonicalFingerprinter
from scrapy_bloom.commands.local_target import LocalTarget
from scrapy_bloom.commands.target import NewFilter, Owner, Target
from scrapy_bloom.crawl.provenance import difference, record, rules_of_record
from scrapy_bloom.crawl.rules import rules_of
from scrapy_bloom.crawl.serialize import QueueKind
from scrapy_bloom.errors import SettingError
from scrapy_bloom.local.job import Identity
from scrapy_bloom.options import (
    CANONICAL,
    DROP_PARAMS,
    KEEP_PARAMS,
    REDIS_KEY,
    REDIS_TIMEOUT,
    REDIS_URL,
    RULES,
    Option,
    in_settings,
)
from scrapy_bloom.scheduler import Scheduler
from scrapy_bloom.settings import Settings

if TYPE_CHECKING:
    from scrapy_bloom.commands.redis_target import RedisTarget
    from scrapy_bloom.options import Words

SCHEMES: Final = ("redis://", "rediss://", "unix://", "sentinel://")

_CANONICAL = (CANONICAL, DROP_PARAMS, KEEP_PARAMS, RULES)
_TIMEOUT: Final = 10.0  # seconds for a call, at least: nobody waits for a page meanwhile


class Project:
    """What the settings of a project say of filters; outside of a project, Scrapy's defaults.

    :param settings: Scrapy's settings.
    :param spider: name of the spider whose filter is meant, or that a new filter is for.
    :raises SettingError: in every method, if a setting cannot be used, or if there is no such
        spider.
    """

    def __init__(self, settings: ScrapySettings, spider: str = "") -> None:
        self._scrapys = settings
        self.spider = spider

    @property
    def scrapys(self) -> BaseSettings:
        """Scrapy's settings, as the crawl of the spider would read them."""
        return self._crawler.settings

    @cached_property
    def settings(self) -> Settings:
        """The options of this package, as the crawl of the spider would read them."""
        return Settings(self._crawler.settings)

    @cached_property
    def fingerprinter(self) -> CanonicalFingerprinter:
        """What makes the fingerprints of the spider's crawl."""
        wrapped = self._crawler.request_fingerprinter
        assert wrapped is not None  # noqa: S101 - the crawler has applied its settings
        return CanonicalFingerprinter.wrapping(wrapped, rules_of(self.settings))

    @property
    def identity(self) -> Identity:
        """What a new filter for the spider belongs to."""
        fingerprinter = self.fingerprinter
        return Identity(self.spider, fingerprinter.wrapped, record(fingerprinter.rules))

    @property
    def new(self) -> NewFilter:
        """What a new filter for the spider is like."""
        return NewFilter(self.settings, self.identity, self.fingerprinter.digests, self.owner)

    @property
    def owner(self) -> Owner:
        """What the plan of a filter in Redis says of requests beside it, for this project."""
        scrapys = self.scrapys
        if not (self.spider and issubclass(load_object(scrapys["SCHEDULER"]), Scheduler)):
            return Owner()
        return self.owner_of_requests()

    def owner_of_requests(self) -> Owner:
        """Return the same for a crawl with ``scrapy_bloom.Scheduler``."""
        name = str(self.scrapys.get("BOT_NAME") or "")
        return Owner(name, self.spider, str(self.queue_kind))

    @property
    def queue_kind(self) -> QueueKind:
        """What ``SCHEDULER_DISK_QUEUE`` stands for."""
        disk = load_object(self.scrapys["SCHEDULER_DISK_QUEUE"])
        return QueueKind.of("SCHEDULER_DISK_QUEUE", disk)

    def target(self, where: str | None, key: str = "") -> Target:
        """Return the place that a user means.

        :param where: a job directory; ``bloom.sqlite`` in one; a file with a filter; the URL of a
            Redis server with ``#`` and the key of the filter behind it perhaps; or None for where
            the settings keep the filter of the spider. What is not there is a file if its name has
            a suffix, such as ``.bloom``, else a job directory.
        :param key: the key of the filter, for a Redis server whose URL does not have it.
        :raises SettingError: if no place is meant, or a key is missing.
        """
        if not where:
            return self._own_target()
        if where.startswith(SCHEMES):
            url, _, own = where.partition("#")
            if not (own or key):
                raise SettingError(
                    "a filter in Redis has a key: give it with --key, as in --key books:bloom"
                )
            return self.in_redis(url, {}, own or key, _in_commands)
        if "://" in where:
            raise SettingError(f"{where} is no target: of URLs only those of Redis servers are")
        if key:
            raise SettingError(f"--key is for the URL of a Redis server, not for {where}")
        return LocalTarget.at(Path(where))

    def in_redis(self, url: str, params: dict[str, Any], key: str, words: Words) -> RedisTarget:
        """Return a place in Redis; the arguments are those of :class:`redis.client.Target`."""
        try:
            # Imported only here: redis is an extra.
            from scrapy_bloom.commands.redis_target import RedisTarget  # noqa: PLC0415
            from scrapy_bloom.redis.client import Target as Server  # noqa: PLC0415
        except ModuleNotFoundError as error:
            raise SettingError(
                f"a filter in Redis needs the package {error.name}: pip install"
                f" 'scrapy-bloom[redis]'"
            ) from error
        given = self._scrapys.get(REDIS_TIMEOUT.setting, REDIS_TIMEOUT.default)
        timeout = max(_TIMEOUT, REDIS_TIMEOUT.read(REDIS_TIMEOUT.setting, given))
        return RedisTarget(Server(url, params, words), key, timeout)

    def _own_target(self) -> Target:
        settings = self.settings
        shared = "scrapy_redis" in str(self.scrapys.get("SCHEDULER"))
        if settings.backend(shared_queue=shared) == "redis":
            if not self.spider and "%(spider)s" in settings[REDIS_KEY]:
                raise SettingError("give a TARGET, or the name of a spider with --spider")
            project = str(self.scrapys.get("BOT_NAME") or "")
            key = settings[REDIS_KEY] % {"spider": self.spider, "project": project}
            params = dict(settings.redis_params)
            url = settings[REDIS_URL] or str(params.pop("url", ""))
            if not url and not params:
                url = "redis://localhost:6379/0"
            return self.in_redis(url, params, key, in_settings)
        folder = self.scrapys["JOBDIR"]  # Scrapy's own function would make it
        if not folder:
            raise SettingError(
                "give a TARGET: a job directory, a file with a filter, or the URL of a Redis server"
                " with --key. The settings name none: they have no JOBDIR and no BLOOM_REDIS_URL"
            )
        return LocalTarget.at(Path(folder))

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
        if not self._has_rules and (rules := rules_of_record(identity.made_by)):
            own = CanonicalFingerprinter(rules=rules, wrapped=self._crawler.request_fingerprinter)
        then = identity.made_by
        return own, difference(then, record(own.rules)) if then else ""

    @property
    def _has_rules(self) -> bool:
        """Whether somebody has chosen what makes fingerprints here."""
        names = ["REQUEST_FINGERPRINTER_CLASS", *(option.setting for option in _CANONICAL)]
        return inside_project() or any(self._scrapys.getpriority(name) for name in names)

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


def _in_commands(option: Option[Any]) -> str:
    """Name an option as those know it who give a command the URL of a server."""
    given = {REDIS_URL.setting: "the URL", REDIS_KEY.setting: "--key"}
    return given.get(option.setting, option.setting)
