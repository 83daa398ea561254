"""Crawls by real worker processes that share filter and queue in a real Redis."""

import os
import re
import signal

import pytest
from scrapy.settings import default_settings
from support.crawling import RFP
from support.localredis import LocalRedis
from support.localsite import LocalSite
from support.redis_crawls import Crawl, at
from support.stopping import KNOWS
from support.taken import pages_of, taken_by
from support.waiting import PATIENCE, until

from scrapy_bloom.redis.client import Target
from scrapy_bloom.redis.shard import delete
from scrapy_bloom.redis.worker import Worker

pytestmark = [pytest.mark.server, pytest.mark.usefixtures("short_leases")]


@pytest.fixture
def site(server):
    server.client().flushall()
    with LocalSite(pages=150, links=8) as site:
        yield site


RETRYING = "Retrying."  # ends the one line that says that Redis cannot be used
AT_ONCE = 3 * 32
"""At most so many requests of a worker are ready, under way, or done and not yet acknowledged."""


def shared(site, server, folder, **settings):
    """Return a crawl whose workers share everything."""
    ours = {"SCHEDULER": "scrapy_bloom.Scheduler", "BLOOM_REDIS_URL": server.url}
    return Crawl(site, server, folder, **(ours | {"CONCURRENT_REQUESTS_PER_DOMAIN": 16} | settings))


def queue_is_empty(server):
    """Return whether no request waits, and none is taken."""
    client = server.client()
    return not any(client.keys(f"*:{name}") for name in ("queue", "taken", "failed"))


@pytest.mark.parametrize(("layout", "shards"), [("bitmap", 1), ("sets", 3)])
def test_three_workers_fetch_each_page_once(site, server, tmp_path, layout, shards):
    chosen = {"BLOOM_REDIS_LAYOUT": layout, "BLOOM_REDIS_SHARDS": shards}
    with shared(site, server, tmp_path, **chosen) as crawl:
        third, two_thirds = at(site, 50), at(site, 100)
        crawl.start()
        assert third.wait(PATIENCE)
        crawl.start()
        assert two_thirds.wait(PATIENCE)
        crawl.start()
        stats = crawl.wait()
    assert [each["finish_reason"] for each in stats] == ["finished"] * 3
    assert site.missed == set()
    assert site.repeated == {}
    assert all(each.get("bloom/not_stored", 0) == 0 for each in stats)
    assert not any(each.get("log_count/ERROR") for each in stats)
    assert queue_is_empty(server)
    trips = sum(each["bloom/redis/round_trips"] for each in stats)
    seconds = sum(each["elapsed_time_seconds"] for each in stats)
    # Who waits for the pages of others looks for them, up to twenty times a second.
    assert trips < shards * (150 + 20 * seconds)


def test_ctrl_c_puts_everything_back(site, server, tmp_path):
    with shared(site, server, tmp_path) as crawl:
        begun = at(site, 40)
        crawl.start()
        assert begun.wait(PATIENCE)
        crawl.workers[0].send_signal(signal.SIGINT)
        stopped = crawl.wait()[0]
        assert stopped["finish_reason"] == "shutdown"
        assert stopped.get("bloom/not_stored", 0) == 0
        assert site.missed
        crawl.start()
        crawl.wait()
    assert site.missed == set()
    assert site.repeated == {}
    assert queue_is_empty(server)


def test_two_ctrl_c_end_a_worker_at_once(site, server, tmp_path):
    """While Redis does not answer. What it had comes back when its lease is over."""
    with shared(site, server, tmp_path) as crawl:
        begun = at(site, 40)
        crawl.start()
        assert begun.wait(PATIENCE)
        os.kill(server.pid, signal.SIGSTOP)  # until it has ended, however long that takes
        try:
            crawl.workers[0].send_signal(signal.SIGINT)
            until(lambda: any(line in crawl.log() for line in KNOWS))
            crawl.workers[0].send_signal(signal.SIGINT)
            crawl.workers[0].wait(PATIENCE)
        finally:
            os.kill(server.pid, signal.SIGCONT)
        crawl.start()
        last = crawl.wait()[1]
    assert site.missed == set()
    assert sum(hits - 1 for hits in site.repeated.values()) <= AT_ONCE
    assert last["finish_reason"] == "finished"
    assert queue_is_empty(server)


def test_a_crawl_that_was_finished_says_so_and_can_be_begun_anew(project, site, server):
    ours = {"SCHEDULER": "scrapy_bloom.Scheduler", "BLOOM_REDIS_URL": server.url}
    first = project.crawl(site, keep=False, **ours)
    assert first.end(PATIENCE) == 0, first.log
    assert not first.logged("WARNING")
    again = project.crawl(site, keep=False, **ours)
    assert again.end(PATIENCE) == 0, again.log
    (warning,) = again.logged("WARNING")
    assert re.search(r"key \S*follower:bloom.* \d+ (pages|fingerprints)", warning)
    assert "scrapy bloom delete" in warning
    assert site.repeated == {}
    options = [part for name, value in ours.items() for part in ("-s", f"{name}={value}")]
    delete = project.start("bloom", "delete", "--spider", "follower", "--yes", *options)
    assert delete.end(PATIENCE) == 0, delete.log
    assert server.client().keys("*") == [b"scrapybot:follower:bloom"]  # the note, for a day
    anew = project.crawl(site, keep=False, **ours)
    assert anew.end(PATIENCE) == 0, anew.log
    assert not anew.logged("WARNING")
    assert set(site.repeated.values()) == {2}
    assert len(site.repeated) == site.pages


@pytest.mark.each_scrapy
def test_what_a_killed_worker_had_is_fetched_by_another_one(site, server, tmp_path):
    with shared(site, server, tmp_path) as crawl:
        crawl.kill_one_of_two(75)
        stats = crawl.wait()[1]
    assert site.missed == set()
    assert sum(hits - 1 for hits in site.repeated.values()) <= AT_ONCE
    assert stats["finish_reason"] == "finished"
    back = stats["bloom/frontier/requeued"]
    assert f"{back} requests of workers that missed their lease are back" in crawl.log(1)
    assert queue_is_empty(server)


REACTORS = {
    "select": {"TWISTED_REACTOR": "twisted.internet.selectreactor.SelectReactor"},
}
if hasattr(default_settings, "TWISTED_REACTOR_ENABLED"):  # older ones need a reactor
    REACTORS["none"] = {"TWISTED_REACTOR_ENABLED": False}


@pytest.mark.parametrize("name", REACTORS)
def test_other_event_loops(project, site, server, name):
    ours = {"SCHEDULER": "scrapy_bloom.Scheduler", "BLOOM_REDIS_URL": server.url}
    runs = [project.crawl(site, keep=False, **ours, **REACTORS[name]) for _ in range(2)]
    for run in runs:
        assert run.end(PATIENCE) == 0, run.log
        assert run.reason == "finished", run.log
        assert "Traceback" not in run.log
    assert site.missed == set()
    assert site.repeated == {}
    assert queue_is_empty(server)


@pytest.mark.each_scrapy
def test_spiders_of_scrapy_redis(project, site, server):
    """They take start URLs from a list while they are idle, and end after `max_idle_time`."""
    pytest.importorskip("scrapy_redis")
    ours = {"SCHEDULER": "scrapy_bloom.Scheduler", "BLOOM_REDIS_URL": server.url}
    settings = {**ours, "REDIS_URL": server.url, "MAX_IDLE_TIME_BEFORE_CLOSE": 8}
    spider = "rules_from_redis"
    server.client().lpush(f"{spider}:start_urls", f'{{"url": "{site.url}"}}')
    run = project.crawl(site, spider=spider, keep=False, **settings)
    until(lambda: not site.missed)
    another = f"{site.url}go/149"  # taken while it is idle; redirects to a page that was seen
    server.client().lpush(f"{spider}:start_urls", f'{{"url": "{another}"}}')
    until(lambda: another in site.urls)
    assert run.end(PATIENCE) == 0, run.log
    assert run.reason == "finished", run.log
    assert site.missed == set()
    assert site.repeated == {0: 2, 149: 2}  # start requests, and redirects of them, have no filter
    assert queue_is_empty(server)


def test_a_worker_that_stands_still_gives_up_what_it_had(site, server, tmp_path):
    with shared(site, server, tmp_path) as crawl:
        third = at(site, 50)
        stopped = crawl.start()
        crawl.start()
        assert third.wait(PATIENCE)
        stopped.freeze()
        had = taken_by(server, stopped.pid)
        until(lambda: not taken_by(server, stopped.pid))
        stopped.send_signal(signal.SIGCONT)
        stats = crawl.wait()
    assert site.missed == set()
    assert set(site.repeated) <= pages_of(site, had)
    assert [each["finish_reason"] for each in stats] == ["finished"] * 2
    assert stats[1]["bloom/frontier/requeued"] == len(had)
    assert "starts over" not in crawl.log(0) + crawl.log(1)
    assert queue_is_empty(server)


@pytest.mark.parametrize("before", ["ours", "theirs"])
def test_a_job_with_requests_or_marks_of_its_own_is_refused(project, site, server, before):
    if before == "ours":
        chosen = {"SCHEDULER": "scrapy_bloom.Scheduler"}
    else:
        chosen = {"SCHEDULER": "scrapy.core.scheduler.Scheduler", "DUPEFILTER_CLASS": RFP}
    assert project.crawl(site, **chosen, CLOSESPIDER_PAGECOUNT=20).end(PATIENCE) == 0
    delivered = site.delivered
    ours = {"SCHEDULER": "scrapy_bloom.Scheduler", "BLOOM_REDIS_URL": server.url}
    run = project.crawl(site, **ours)
    assert run.end(PATIENCE) == 1
    assert site.delivered == delivered
    assert "They were left as they are" in run.log
    assert server.client().keys("*") == []


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"BLOOM_ON_BACKEND_ERROR": "allow"}, "BLOOM_ON_BACKEND_ERROR = 'allow'"),
        ({"DUPEFILTER_CLASS": RFP}, "with the filter in Redis"),
        (
            {"SCHEDULER_DISK_QUEUE": "queuelib.queue.LifoDiskQueue"},
            "SCHEDULER_DISK_QUEUE = 'queuelib.queue.LifoDiskQueue'",
        ),
    ],
)
def test_settings_that_do_not_fit_are_refused(project, site, server, settings, text):
    ours = {"SCHEDULER": "scrapy_bloom.Scheduler", "BLOOM_REDIS_URL": server.url}
    run = project.crawl(site, keep=False, **ours, **settings)
    assert run.end(PATIENCE) == 1
    assert text in run.log
    assert site.delivered == 0


def test_two_projects_with_a_spider_of_one_name_do_not_mix(site, server, tmp_path):
    """By default their keys differ; with one key the second is refused."""
    with shared(site, server, tmp_path) as crawl:
        crawl.start(BOT_NAME="one")
        crawl.start(BOT_NAME="two")
        stats = crawl.wait()
        assert [each["finish_reason"] for each in stats] == ["finished"] * 2
        assert set(site.hits.values()) == {2}
        crawl.start(BOT_NAME="one", BLOOM_REDIS_KEY="crawl")
        until(lambda: "Crawl kept in Redis" in crawl.log(2))
        crawl.start(BOT_NAME="two", BLOOM_REDIS_KEY="crawl")
        stats = crawl.wait()
    assert stats[2]["finish_reason"] == "finished"
    assert stats[3]["finish_reason"] == "bloom_state"
    assert "project 'one', not 'two'" in crawl.log(3)
    assert set(site.hits.values()) == {3}


def test_what_a_worker_with_older_code_cannot_read_is_never_lost(site, server, tmp_path, bloom):
    """It does not know their callback. Others do, or a command brings them back."""
    with shared(site, server, tmp_path) as crawl:
        half = at(site, 60)
        crawl.start(newer=True)
        assert half.wait(PATIENCE)
        crawl.start()
        stats = crawl.wait()
        assert [each["finish_reason"] for each in stats] == ["finished"] * 2
        aside = sum(each.get("bloom/frontier/failed", 0) for each in stats)
        assert bool(site.missed) <= bool(aside)
        code, *_ = bloom(f"queue {server.url}#scrapybot:worker:bloom --retry")
        assert code == 0
        crawl.start(newer=True)
        crawl.wait()
    assert site.missed == set()
    assert queue_is_empty(server)


# Losses and outages


def start_again(server):
    """Start a server, and wait until it has read its log."""
    server.start()
    until(lambda: not server.client().info("persistence")["loading"])


@pytest.mark.parametrize("policy", ["wait", "close"])
def test_a_server_that_is_killed_and_comes_back_costs_nothing(site, tmp_path, policy):
    """It keeps a log of its writes. Under `close` the next run goes on."""
    with (
        LocalRedis(persist=True) as server,
        shared(site, server, tmp_path, BLOOM_ON_BACKEND_ERROR=policy) as crawl,
    ):
        reached = at(site, 90)
        crawl.start()
        crawl.start()
        assert reached.wait(PATIENCE)
        server.kill()
        had = set()
        if policy == "close":
            stats = crawl.wait()
            assert [each["finish_reason"] for each in stats] == ["bloom_backend"] * 2
            assert [each["bloom/not_stored"] for each in stats] == [1] * 2
            start_again(server)
            for worker in crawl.workers:
                had |= pages_of(site, taken_by(server, worker.pid))
            crawl.start()
            stats = crawl.wait()[2:]
        else:
            until(lambda: RETRYING in crawl.log() + crawl.log(1))
            start_again(server)
            stats = crawl.wait()
            assert crawl.log().count(RETRYING) <= 1
        assert [each["finish_reason"] for each in stats] == ["finished"] * len(stats)
        assert site.missed == set()
        assert set(site.repeated) <= had
        assert queue_is_empty(server)


def older_rdb(server, site):
    """Kill the server and start it from a snapshot that it made before."""
    server.client().save()
    saved = site.delivered
    until(lambda: site.delivered > saved + 15)
    server.kill()
    server.start()


LOSSES = {
    "flush": lambda server, _: server.client().flushall(),
    "header of one shard": lambda server, _: server.client().delete("scrapybot:worker:bloom:1"),
    "queue": lambda server, _: server.client().delete(
        "scrapybot:worker:bloom:{scrapybot:worker:bloom}:queue"
    ),
    "older RDB": older_rdb,
}


@pytest.mark.parametrize(
    ("loss", "order"), list(zip(LOSSES, ("Lifo", "Lifo", "Fifo", "Fifo"), strict=True)), ids=LOSSES
)
def test_after_a_loss_the_crawl_starts_over_by_itself(site, tmp_path, loss, order):
    chosen = {"SCHEDULER_DISK_QUEUE": f"scrapy.squeues.Pickle{order}DiskQueue"}
    if "shard" in loss:
        chosen["BLOOM_REDIS_SHARDS"] = 3
    chosen["DOWNLOAD_DELAY"] = 0.05  # so that pages are left to both
    with LocalRedis() as server, shared(site, server, tmp_path, **chosen) as crawl:
        for _ in range(2):
            crawl.start()
        until(lambda: all("Crawl kept in Redis" in crawl.log(number) for number in range(2)))
        reached = at(site, site.delivered + 20)
        assert reached.wait(PATIENCE)
        LOSSES[loss](server, site)
        stats = crawl.wait()
        assert [each["finish_reason"] for each in stats] == ["finished"] * 2
        assert site.missed == set()
        assert queue_is_empty(server)
    logs = [crawl.log(number) for number in range(2)]
    told = [log.count("starts over: it runs start() again") for log in logs]
    if loss == "older RDB":  # only who has said something since is betrayed by its number
        assert max(told) == 1
    else:
        assert told == [1, 1]
    assert "Traceback" not in "".join(logs)
    again = sum(hits - 1 for hits in site.repeated.values())
    print(f"{loss}, {order}: {again} pages fetched again")  # noqa: T201 - to be read


def test_a_worker_whose_crawl_is_deleted_ends_and_creates_nothing(site, server, tmp_path):
    with shared(site, server, tmp_path) as crawl:
        reached = at(site, 60)
        worker = crawl.start()
        assert reached.wait(PATIENCE)
        worker.freeze()
        key = "scrapybot:worker:bloom"
        own = Worker(Target(server.url), 10.0)
        own.connect()
        until(lambda: delete(own, key) == {})  # its lease ends
        own.close()
        assert server.client().keys("*") == [key.encode()]
        worker.send_signal(signal.SIGCONT)
        stats = crawl.wait()[0]
    assert stats["finish_reason"] == "bloom_filter_lost"
    assert "deleted" in crawl.log()
    assert server.client().keys("*") == [key.encode()]
    assert "starts over" not in crawl.log()


def test_a_server_and_a_worker_that_are_killed_together_lose_nothing(site, tmp_path):
    with LocalRedis(persist=True) as server, shared(site, server, tmp_path) as crawl:
        begun = at(site, 80)
        victim = crawl.start()
        crawl.start()
        assert begun.wait(PATIENCE)
        victim.kill()
        server.kill()
        victim.wait()
        until(lambda: RETRYING in crawl.log(1))
        start_again(server)
        had = pages_of(site, taken_by(server, victim.pid))
        stats = crawl.wait()[1]
        assert stats["finish_reason"] == "finished"
        assert site.missed == set()
        assert set(site.repeated) <= had
        assert queue_is_empty(server)
