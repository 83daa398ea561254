"""Crawls for tests: in this process, and as `scrapy` in processes of their own."""

import logging
import os
from contextlib import contextmanager
from threading import Event
from zlib import crc32

import pytest
from scrapy import Request, Spider, signals
from scrapy.crawler import Crawler
from scrapy.utils.defer import maybe_deferred_to_future

from scrapy_bloom.crawl.scrapy.crawler import close_spider
from support.processes import CHOSEN, Run, environment
from support.sites import Pages
from support.waiting import PATIENCE, until

ADDONS = {"scrapy_bloom.Addon": 500}
RFP = "scrapy.dupefilters.RFPDupeFilter"
OURS = "scrapy_bloom.BloomDupeFilter"
SCRAPYS = "scrapy.core.scheduler.Scheduler"
KEPT = {"SCHEDULER": "scrapy_bloom.Scheduler"}

SETTINGS = """
from support import short_leases

short_leases.follow()
ADDONS = {"scrapy_bloom.Addon": 500}
SCHEDULER = "scrapy.core.scheduler.Scheduler"
SPIDER_MODULES = ["support.crawling", "support.spiders"]
TELNETCONSOLE_ENABLED = False
DOWNLOAD_DELAY = 0
CONCURRENT_REQUESTS_PER_DOMAIN = 8
"""


class Follower(Spider):
    """Follows every link and lists the pages that it parsed.

    If it is not `filtered`, its start request is as Scrapy's are. One of so many links as
    `unstorable` says has a callback that cannot be stored, the same ones in each run.
    """

    name = "follower"
    url = ""
    filtered = True
    unstorable = 0

    def __init__(self, **arguments):
        super().__init__(**arguments)
        self.parsed = []

    async def start(self):
        yield Request(self.url, dont_filter=not self.filtered)

    def parse(self, response):
        self.parsed.append(response.url)
        for href in response.css("a::attr(href)").getall():
            request = self.request(response, href)
            if self.unstorable and crc32(request.url.encode()) % int(self.unstorable) == 0:
                request = request.replace(callback=lambda page: self.parse(page))  # noqa: PLW0108
            yield request

    def request(self, response, href):
        return response.follow(href)


def close(crawler):
    """Close the spider of a crawl in this process, from one of its callbacks."""
    close_spider(crawler, "enough")


class Asked:
    """Mixed into a spider: calls its `idle` when it is idle."""

    @classmethod
    def from_crawler(cls, crawler, *arguments, **keywords):
        spider = super().from_crawler(crawler, *arguments, **keywords)
        crawler.signals.connect(spider.idle, signal=signals.spider_idle)
        return spider


class Leaves:
    """Mixed into a spider: follows the links of the first page only, and stops."""

    def parse(self, response, **carried):
        yield from super().parse(response, **carried)
        close(self.crawler)


class StartsNothing:
    """Mixed into a spider: makes no requests of its own."""

    async def start(self):
        for _ in ():
            yield


def kept(job, **settings):
    """Return the settings of a crawl that is kept in a job directory."""
    return {**KEPT, "JOBDIR": str(job), **settings}


def settings_at(place, request):
    """Return the settings of a crawl whose filter and requests are at a place.

    :param place: ``memory``; ``job`` or ``redis``, for a filter beside Scrapy's scheduler; ``kept
        job`` or ``shared``, for a crawl of ours.
    :param request: of the fixture or test that asks.
    """
    settings = dict(KEPT) if place in {"kept job", "shared"} else {}
    if "job" in place:
        settings["JOBDIR"] = str(request.getfixturevalue("job"))
    if place in {"redis", "shared"}:
        server, key = map(request.getfixturevalue, ("server", "key"))
        settings |= {"BLOOM_REDIS_URL": server.url, "BLOOM_REDIS_KEY": key}
    return settings | {"BLOOM_REDIS_TIMEOUT": 10}


def places(*names):
    """Return these places as parameters of tests; those in Redis are marked."""
    return [
        pytest.param(name, marks=[pytest.mark.redis] if name in {"redis", "shared"} else [])
        for name in names
    ]


def at(*names):
    """Run a test once for each of these places, whose settings the fixture `place` returns."""
    return pytest.mark.parametrize("place", places(*names), indirect=True)


def placed(*names):
    """Return a fixture: the settings of a crawl, for each of these places."""

    @pytest.fixture(params=places(*names))
    def place(request):
        return settings_at(request.param, request)

    return place


def target_of(settings):
    return settings.get("JOBDIR") or f"{settings['BLOOM_REDIS_URL']}#{settings['BLOOM_REDIS_KEY']}"


def make_crawler(spider, settings=None):
    """Return a crawler of the spider class with our filter, by default under Scrapy's scheduler."""
    quick = {"TELNETCONSOLE_ENABLED": False, "DOWNLOAD_DELAY": 0, "SCHEDULER": SCRAPYS}
    return Crawler(spider, {"ADDONS": ADDONS, **quick, **(settings or {})})


async def crawl(spider=Follower, settings=None, **arguments):
    """Crawl to the end in this process; return the crawler."""
    crawler = make_crawler(spider, settings)
    await crawler.crawl(**arguments)
    return crawler


async def visit(pages, spider=Follower, settings=None, **arguments):
    """Crawl a site of these pages to the end; return the crawler and what the site was."""
    with Pages(pages) as site:
        return await crawl(spider, settings, url=site.url + "/", **arguments), site


async def crawl_refused(settings, caplog, **arguments):
    caplog.clear()
    with Pages({"/": []}) as pages:
        await crawl(settings=settings, url=pages.url + "/", **arguments)
        assert sum(pages.hits.values()) == 0
    ours = (each for each in caplog.records if each.name.startswith("scrapy_bloom"))
    (error,) = (each.getMessage() for each in ours if each.levelno >= logging.ERROR)
    return error


def messages(caplog):
    """Return our warnings and errors, or what else is captured, since the last call.

    Not that a test has chosen Scrapy's scheduler.
    """
    found = [r.getMessage() for r in caplog.records if r.name.startswith("scrapy_bloom")]
    caplog.clear()
    return [text for text in found if not text.startswith(CHOSEN)]


async def download(crawler, request):
    """Download a request past the scheduler; return the response."""
    if hasattr(crawler.engine, "download_async"):  # from Scrapy 2.14
        return await crawler.engine.download_async(request)
    return await maybe_deferred_to_future(crawler.engine.download(request))


class Project:
    """A Scrapy project in a folder, whose commands run as processes of their own.

    As a context manager it leaves none of them behind.
    """

    def __init__(self, folder):
        self.folder, self.runs = folder, []
        folder.mkdir(exist_ok=True)
        (folder / "scrapy.cfg").write_text("[settings]\ndefault = project_settings\n")
        (folder / "project_settings.py").write_text(SETTINGS)
        ours = environment()
        self.environment = {**ours, "PYTHONPATH": f"{folder}{os.pathsep}{ours['PYTHONPATH']}"}

    def __enter__(self):
        return self

    def __exit__(self, *exc_info):
        for run in self.runs:
            run.kill()
            run.end()

    @property
    def job(self):
        return self.folder / "job"

    def start(self, *command, **environment):
        """Start a `scrapy` command, with more in its environment if need be."""
        run = Run(self.folder, ("scrapy", *command), self.environment | environment)
        self.runs.append(run)
        return run

    def crawl(
        self, site, *, spider="follower", keep=True, environment=None, arguments=None, **settings
    ):
        """Start a crawl of a site, by default with the project's job directory."""
        command = ["crawl", spider]
        for name, value in ({"url": site.url} | (arguments or {})).items():
            command += ["-a", f"{name}={value}"]
        settings = {**({"JOBDIR": self.job} if keep else {}), **settings}
        for name, value in settings.items():
            command += ["-s", f"{name}={value}"]
        return self.start(*command, **(environment or {}))

    def finish(self, site, **options):
        """Crawl a site to the end without a mishap; return the run."""
        run = self.crawl(site, **options)
        run.complete()
        return run

    def kill_at(self, deliveries, site, **options):
        """Crawl a site until it has delivered so many pages; return the run, which was killed."""
        run = self.crawl(site, **options)
        site.when(deliveries, run.kill)
        run.end()
        return run


class Crawl(Project):
    """Workers on one site: its runs."""

    def __init__(self, site, server, folder, **settings):
        super().__init__(folder)
        self.site, self.server = site, server
        self.settings = {"BLOOM_REDIS_TIMEOUT": 10} | settings  # a busy machine is no outage

    def join(self, spider="worker", **options):
        return self.crawl(self.site, spider=spider, keep=False, **(self.settings | options))

    @contextmanager
    def two(self, deliveries):
        """Start two workers, and yield the first: it has a page in flight until this ends.

        That is the last of so many that the site delivers. Then the second one starts.
        """
        reached, go_on = hold(self.site, deliveries, 1)
        first = self.join()
        try:
            assert reached.wait(PATIENCE)
            self.join().said(" marks, ")
            yield first
        finally:
            go_on.set()

    def kill_one_of_two(self, deliveries):
        """Kill a worker that has a page in flight, while another one works."""
        with self.two(deliveries) as victim:
            victim.kill()
            victim.end()

    def wait(self):
        """Wait for all workers; return the reasons for which they have ended."""
        for run in self.runs:
            run.end()
        return [run.reason for run in self.runs]

    def total(self, stat):
        """Return the sum of a number in the closing dumps of all workers."""
        return sum(run.stat(stat) for run in self.runs)

    def finish(self):
        """Let idle workers end once all have opened the filter; return why they have ended."""
        until(lambda: all("Bloom filter in" in run.log for run in self.runs))
        self.server.client().set("done", 1)
        return self.wait()


# Sites

AT_ONCE = 16
"""Requests of a crawl that are under way at most."""

KNOWS = ("shutting down gracefully", "reentrant call")
"""What Scrapy logs when it is to stop. In mid-write of another line its handler cannot."""


def stop(run):
    """Ask a run to stop cleanly, and wait until it knows."""
    run.interrupt()
    run.said(*KNOWS)


def hold(site, deliveries, answers=AT_ONCE):
    """Stop so many of the site's answers from one on; return when that is and what lets them go."""
    reached, go_on = Event(), Event()

    def stand_still():
        reached.set()
        go_on.wait(PATIENCE)

    for number in range(deliveries, deliveries + answers):
        site.when(number, stand_still)
    return reached, go_on


def resumes_well(site):
    """Return whether a crawl that was stopped has missed no page, and fetched few twice.

    A page that links to where a redirect leads waits for that. If it goes back to the queue at the
    stop, the page has not ended.
    """
    return not site.missed and len(site.repeated) <= AT_ONCE


def sharing(site, server, folder, **settings):
    """Return a crawl whose workers share everything."""
    ours = KEPT | {"BLOOM_REDIS_URL": server.url, "CONCURRENT_REQUESTS_PER_DOMAIN": 16}
    return Crawl(site, server, folder, **(ours | settings))


def reach(site, deliveries):
    until(lambda: site.delivered >= deliveries)
