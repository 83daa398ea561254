"""What requests carry through Redis: data in, data out, and nothing that runs."""

from datetime import datetime, timezone

import pytest
from lxml.html import fromstring
from msgpack import ExtType, packb
from scrapy import Request
from support import kinds
from support.crawling import Follower, Leaves, StartsNothing, crawl, messages, settings_at
from support.kinds import RAN, Color
from support.queues import left
from support.sites import Pages, fan

from scrapy_bloom.redis.client import beginning

pytestmark = [pytest.mark.redis, pytest.mark.server]

DATA = {
    "item": kinds.Book(title="x"),
    "dataclass": kinds.Page([kinds.Point(2)]),
    "attrs": kinds.Author("y"),
    "enum": Color.RED,
    "named_tuple": kinds.Pair(1, kinds.Single("z")),
    "text": fromstring("<a>of a link</a>").xpath("string()"),  # as rules note it, a class of lxml's
    "when": datetime(2026, 1, 2, tzinfo=timezone.utc),
}
PLAIN = "support.kinds.Plain"


@pytest.fixture
def shared(request):
    """The settings of a worker."""
    RAN.clear()
    return settings_at("shared", request) | {"CONCURRENT_REQUESTS": 1}


class Carrying(Follower):
    """Gives each link what is in `data`."""

    data = DATA

    def __init__(self, **arguments):
        super().__init__(**arguments)
        self.came = []

    def parse(self, response, **carried):
        if carried:
            self.came.append(carried)
        yield from super().parse(response)

    def request(self, response, href):
        return kinds.Form(response.urljoin(href), cb_kwargs=self.data)


class Leaving(Leaves, Carrying):
    pass


class Nothing(StartsNothing, Carrying):
    pass


@pytest.mark.each_scrapy
@pytest.mark.parametrize("form", ["Pickle", "Marshal"])
async def test_another_worker_gets_all_kinds_of_data_whatever_scrapys_queue_is(
    shared, server, key, form, caplog
):
    shared["SCHEDULER_DISK_QUEUE"] = f"scrapy.squeues.{form}FifoDiskQueue"
    with Pages(fan("a", "b")) as pages:
        await crawl(Leaving, shared, url=pages.url + "/")
        assert left(server, key) == (2, 0, 0)
        second = await crawl(Nothing, shared)
    assert second.spider.came == [DATA, DATA]
    assert left(server, key) == (0, 0, 0)
    (said,) = messages(caplog)
    assert "Leaving', this run is" in said  # and nothing of the data


class Plainly(Carrying):
    """What it gives to its links is no data to a stranger."""

    data = {"plain": kinds.Plain(1)}  # noqa: RUF012


async def test_what_could_not_be_read_again_waits_in_memory_unless_its_class_is_listed(
    shared, caplog
):
    for listed, where in ((), "memory"), ([PLAIN], "redis"):
        with Pages(fan("a", "b")) as pages:
            settings = shared | {"BLOOM_REDIS_KEY": f"{where}:bloom", "BLOOM_REDIS_CLASSES": listed}
            crawler = await crawl(Plainly, settings, url=pages.url + "/")
            assert pages.hits == {"/": 1, "/a": 1, "/b": 1}
        assert crawler.spider.came == [Plainly.data] * 2
        assert crawler.stats.get_value(f"scheduler/enqueued/{where}") >= 2
        said = messages(caplog)
        assert [PLAIN in line and "BLOOM_REDIS_CLASSES" in line for line in said] == (
            [] if listed else [True]
        )


async def test_a_class_that_cannot_be_imported_is_refused_when_the_crawl_opens(shared, caplog):
    crawler = await crawl(Nothing, shared | {"BLOOM_REDIS_CLASSES": "support.kinds.Missing"})
    assert crawler.stats.get_value("finish_reason") == "bloom_invalid_setting"
    assert "BLOOM_REDIS_CLASSES has 'support.kinds.Missing'" in caplog.text


async def test_what_a_stranger_has_written_is_not_run_and_said_once(shared, server, key, caplog):
    """His requests are on the failed list in the end, and all others are fetched."""
    with Pages(fan("a", "b", "c")) as pages:
        await crawl(Leaving, shared, url=pages.url + "/")
        client, bodies = server.client(), beginning(key) + "bodies"
        for number, (id_, stored) in enumerate([*client.hgetall(bodies).items()][:2]):
            mark, found, _ = stored.partition(b"\x8e\xa3url")
            assert found
            hostile = {ExtType(0, b""): "support.kinds:run"} if number else 1
            body = Request(pages.url, meta={"x": hostile}).to_dict()
            if not number:
                body["_class"] = "support.kinds.run"
            client.hset(bodies, id_, mark + packb(body))
        caplog.clear()
        crawler = await crawl(Nothing, shared)
        assert left(server, key) == (0, 0, 2)
        assert sum(pages.hits.values()) == 2
    assert RAN == []
    assert crawler.stats.get_value("finish_reason") == "finished"
    said = [line for line in messages(caplog) if "is more than data" in line]
    assert len(said) == 1
    assert "support.kinds.run" in said[0]
