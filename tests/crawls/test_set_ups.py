"""Set-ups that do less than they seem to: each is said in one line, with the way out."""

import logging
import re
from contextlib import suppress

import pytest
from scrapy import Request
from scrapy.exceptions import CloseSpider
from support.crawling import (
    KEPT,
    SCRAPYS,
    Follower,
    StartsNothing,
    at,
    close,
    crawl,
    placed,
    settings_at,
)
from support.jobs import identity_of, kept_job, open_job
from support.sites import Pages, fan
from support.waiting import until

from scrapy_bloom import JobInUseError, StateError
from scrapy_bloom.crawl.scrapy.loop import call_later
from scrapy_bloom.local.job import Job
from scrapy_bloom.local.notes import REQUESTS

pytestmark = pytest.mark.server


@pytest.fixture
def warned(caplog):
    """Return what finds our warnings since its last call that have these words."""

    def warned(words, level=logging.WARNING):
        ours = [r for r in caplog.records if r.name.startswith("scrapy_bloom")]
        found = [r.getMessage() for r in ours if r.levelno == level and words in r.getMessage()]
        caplog.clear()
        return found

    caplog.set_level(logging.INFO)
    return warned


storage = placed("memory", "kept job", "shared", "redis")


# Settings and meta keys


async def test_what_nobody_reads_is_named_once(storage, warned):
    class Mistyping(Follower):
        def request(self, response, href):
            mistyped = {"bloom_maxage": "1h", "bloom_x": 1, "own": 2, "bloom_delay": 0}
            return response.follow(href, meta=mistyped)

    left = {"SCHEDULER_PERSIST": True, "SCHEDULER_FLUSH_ON_START": False}
    with Pages(fan(*range(5))) as pages:
        await crawl(Mistyping, {**storage, **left}, url=pages.url + "/")
        *settings, one, other = warned("has no effect")
        await crawl(Follower, storage, url=pages.url + "/")
        assert warned("has no effect") == []
    assert [text.split()[0] for text in settings] == [*left]  # which are scrapy-redis's
    end = " It has no effect. This is logged once."
    assert sorted((one, other)) == [
        f"There is no meta key bloom_maxage; did you mean bloom_max_age?{end}",
        f"There is no meta key bloom_x.{end}",
    ]


class RedisMixin:
    __module__ = "scrapy_redis.spiders"


class Fed(Follower, RedisMixin):
    """Takes its start URLs from Redis, and shares nothing else."""


@pytest.mark.parametrize("name", ["REDIS_URL", "REDIS_HOST", "SCHEDULER_QUEUE_CLASS", "Fed"])
@at("memory", "shared")
async def test_workers_that_no_longer_share_a_crawl_are_warned(place, warned, name):
    """Each of them fetched the whole site without a word."""
    left = {name: "scrapy_redis.queue.FifoQueue" if "QUEUE" in name else "redis://127.0.0.1:1"}
    spider = Fed if name == "Fed" else Follower
    with Pages(fan("a")) as pages:
        await crawl(spider, {**place, **left}, url=pages.url + "/")
        said = warned(f"{name} is of scrapy-redis, but no pages are shared")
        assert len(said) == ("BLOOM_REDIS_URL" not in place)
        if said and spider is Follower:
            await crawl(spider, {**place, **left, "BLOOM_BACKEND": "local"}, url=pages.url + "/")
            assert warned("no pages are shared") == []


# Schedulers


async def test_a_scheduler_that_keeps_nothing_through_a_kill_is_warned_of(job, warned):
    with Pages(fan("a")) as pages:
        for settings, count in (
            ({"SCHEDULER": SCRAPYS, "JOBDIR": str(job / "1")}, 1),
            ({"SCHEDULER": SCRAPYS}, 0),
            ({**KEPT, "JOBDIR": str(job / "2")}, 0),
        ):
            await crawl(Follower, settings, url=pages.url + "/")
            said = warned("is not protected: after a kill it starts over")
            assert len(said) == count
            assert count == sum(text.startswith(f"SCHEDULER = {SCRAPYS!r}") for text in said)


# Several spiders


@pytest.mark.redis
async def test_one_filter_for_several_spiders_is_refused_with_the_way_to_it(request, warned):
    class Another(Follower):
        name = "another"

    storage = settings_at("shared", request)
    with Pages(fan("a")) as pages:
        await crawl(Follower, storage, url=pages.url + "/")
        with suppress(CloseSpider):  # Scrapy 2.13 hands it on
            await crawl(Another, storage, url=pages.url + "/")
    [said] = warned("spider 'follower', not 'another'", logging.ERROR)
    assert "make the spiders one, with arguments; or set Scrapy's own SCHEDULER" in said
    assert "delete" not in said


def test_a_job_of_another_spider_is_refused_and_never_to_be_deleted(job):
    kept_job(job)
    with pytest.raises(StateError) as refused:
        Job(job, identity_of("age"), REQUESTS)
    assert 'custom_settings = {"JOBDIR": "job-age"}' in str(refused.value)
    assert "delete" not in str(refused.value)


def test_two_spiders_of_one_process_are_told_so(job):
    first = open_job(job)
    with pytest.raises(JobInUseError, match="another spider of this process is using this job"):
        open_job(job)
    first.close()


# Nothing to fetch


class Entry(Follower):
    """Has an entry page that is filtered."""

    name = "entry"

    async def start(self):
        for path in ("", "a"):
            yield Request(self.url + path)


async def test_the_last_line_says_how_many_pages_this_run_fetched(storage, warned, caplog):
    """A run that fetches nothing warns of nothing: a daily sitemap has such days."""
    keeps = storage.get("SCHEDULER") == KEPT["SCHEDULER"]
    robots = {"ROBOTSTXT_OBEY": True}
    with Pages({**fan("a"), "/robots.txt": []}) as pages:
        for count in (2, 0 if keeps else 2):
            await crawl(Entry, {**storage, **robots}, url=pages.url + "/")
            assert "othing" not in caplog.text.replace("nothing is kept after", "")
            deleted = "deleted, because this was the last worker" in caplog.text
            assert deleted is ("BLOOM_REDIS_URL" in storage and not keeps)
            [said] = warned("Crawl finished: ", logging.INFO)
            assert f"; this run fetched {count} pages; " in said


class Idle(StartsNothing, Follower):
    """Yields nothing at all."""


async def test_the_last_line_is_always_there_and_says_whether_the_crawl_is_finished(
    storage, warned
):
    class Closed(Idle):
        async def start(self):
            close(self.crawler)
            async for nothing in super().start():
                yield nothing

    for spider, ended in ((Idle, "Crawl finished: 0 pages"), (Closed, "Crawl stopped: 0 pages")):
        await crawl(spider, storage)
        [said] = warned("Crawl ", logging.INFO)[-1:]
        assert said.startswith(ended)
        assert said.endswith("; expected loss 0.0 pages.")


# Ctrl-C


@at("kept job", "shared")
async def test_a_spider_that_closes_says_what_it_waits_for(warned, caplog, place):
    class Closing(Follower):
        def parse(self, response):
            if response.url.endswith("/a"):
                close(self.crawler)
            yield from super().parse(response)

    def answer_when_it_is_said(*_):
        until(lambda: "Closing: finishing" in caplog.text)
        return []

    with Pages(fan("a", b=answer_when_it_is_said)) as pages:
        await crawl(Closing, place, url=pages.url + "/")
    (said,) = warned("Closing: ", logging.INFO)
    assert re.fullmatch(
        r"Closing: finishing (1 page|2 pages) in flight\. To kill the crawl now is safe, too: the"
        r" next run fetches whatever is unfinished\.",
        said,  # the page that closes it may be through or not
    )


@pytest.mark.each_scrapy
async def test_what_was_not_sent_goes_back_at_once_when_the_spider_closes(job):
    """Scrapy sends all that waits in its downloader first, at the pace of each host."""

    class Closing(Follower):
        name = "follower"
        __module__, __qualname__ = Follower.__module__, Follower.__qualname__

        def parse(self, response):
            self.slot = self.crawler.engine.downloader.slots["127.0.0.1"]
            self.slot.delay = 900.0
            yield from super().parse(response)
            self.close_when_some_wait()

        def close_when_some_wait(self):
            if len(self.slot.queue) > 8:
                close(self.crawler)
            else:
                call_later(0.01, self.close_when_some_wait)

    with Pages(fan(*range(20))) as pages:
        await crawl(Closing, {**KEPT, "JOBDIR": str(job)}, url=pages.url + "/")
        assert sum(pages.hits.values()) == 1
        crawler = await crawl(Follower, {**KEPT, "JOBDIR": str(job)}, url=pages.url + "/")
        assert pages.hits == {"/": 1, **{f"/{leaf}": 1 for leaf in range(20)}}
    assert crawler.stats.get_value("bloom/queue/recovered") is None
