"""How long a check may hold up a crawl, and what comes over a slow link."""

import threading

import pytest
from scrapy import Request
from support.contract import fingerprints
from support.crawling import KEPT, Follower, crawl
from support.proxy import Proxy
from support.queues import Crawler, mark_of
from support.sites import Pages

from scrapy_bloom import RedisFilter
from scrapy_bloom.redis import upkeep
from scrapy_bloom.redis.member import Entry
from scrapy_bloom.redis.wire import LARGEST

TIMEOUT = 2.0
END = {"CLOSESPIDER_TIMEOUT": 100}  # of a crawl that stands still


def test_a_server_that_falls_silent_blocks_one_check(server, key, monkeypatch):
    with Proxy(server.port) as proxy:
        seen = RedisFilter.from_url(proxy.url, key=key, timeout=TIMEOUT)
        assert seen.add_many(fingerprints(20)) == [False] * 20
        proxy.faults = dict.fromkeys(range(proxy.requests + 1, 10_000), "stall")
        run, waited = seen.link.run, []

        def counted(*arguments, **options):
            if seen.usable or options.get("probe"):
                waited.append(threading.current_thread())
            return run(*arguments, **options)

        monkeypatch.setattr(seen.link, "run", counted)
        assert seen.add_many(fingerprints(20, "b")) == [False] * 20
        assert seen.link.outages == 1
        assert all(item in seen for item in fingerprints(20))
        assert [seen.add(item) for item in fingerprints(50, "c")] == [False] * 50
        assert waited.count(threading.current_thread()) == 1
        seen.close()


def worker_over(link, key):
    """Return a worker whose calls take as long as in a crawl."""
    return Crawler(link.url, key, timeout=TIMEOUT, calls=upkeep.CALL)


def offer(worker, bodies):
    for number, body in enumerate(bodies):
        worker.queue.offer(Entry("f", mark_of(number), body, source=number))


@pytest.mark.long
def test_a_large_request_comes_over_a_slow_link_and_the_lease_is_kept(server, key, monkeypatch):
    """Others took the worker for dead, or it took itself for dead, by when the call was sent."""
    monkeypatch.setattr(upkeep, "LEASE", 8.0)
    with Proxy(server.port) as link, worker_over(link, key) as worker:
        with Crawler(server.url, key):  # it looks for the dead with each heartbeat
            link.rate = 200_000
            offer(worker, [bytes(4_000_000)])
            assert worker.exchange().verdicts[0][1] is False
            assert worker.queue.has_lease
            assert worker.queue.surprises == worker.queue.link.outages == 0
        link.rate = 4_000_000
        worker.say(1)
        assert len(worker.have) == 1


def test_a_failed_request_and_a_new_one_that_are_large_do_not_share_a_call(server, key):
    """Each may take the time of a call."""
    with Crawler(server.url, key) as worker:
        offer(worker, [bytes(LARGEST), bytes(LARGEST)])
        worker.exchange()
        worker.exchange()
        worker.exchange(1)
        worker.fail(*worker.have)
        offer(worker, [b"".join([bytes(2), bytes(LARGEST)])])
        assert not worker.exchange().verdicts
        assert len(worker.exchange().verdicts) == 1


def test_large_requests_are_taken_over_a_slow_link(server, key):
    """All at once they did not arrive in time, and the stored answer was repeated for ever."""
    bodies = [*(bytes(100_000) + b"%d" % number for number in range(100)), bytes(3_000_000)]
    with Crawler(server.url, key) as other, Proxy(server.port) as link:
        offer(other, bodies)
        other.say()
        link.rate = 4_000_000
        with worker_over(link, key) as worker:
            for _ in range(30):
                worker.exchange(100)
                if len(worker.have) == len(bodies):
                    break
            assert {taken.body for taken in worker.have.values()} == {*bodies}


async def test_no_crawl_stands_still_over_a_slow_link(server, key, caplog):
    """What could never be sent waits in memory, and is said."""

    class Heavy(Follower):
        def parse(self, response):
            self.parsed.append(response.url)
            for number in range(300 if response.url.endswith("/") else 0):
                url = response.urljoin(f"/{number}")
                yield Request(url, self.parse, meta={"heavy": "x" * 2_000})
                if number == 7:
                    heavy = {"heavy": "x" * (LARGEST + 1)}
                    yield Request(response.urljoin("/heavy"), self.parse, meta=heavy)

    pages = {"/": []} | {f"/{number}": [] for number in range(300)} | {"/heavy": []}
    with Proxy(server.port) as link, Pages(pages) as site:
        link.rate = 400_000
        own = KEPT | {"BLOOM_REDIS_URL": link.url, "BLOOM_REDIS_KEY": key} | END
        crawler = await crawl(Heavy, own, url=site.url + "/")
        assert len({*crawler.spider.parsed}) == 302
    assert crawler.stats.get_value("finish_reason") == "finished"
    assert caplog.text.count("and the most are 8,000,000. It waits in memory") == 1
