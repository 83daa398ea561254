"""Workers killed at any moment: no page is lost, and only what they had is fetched twice."""

import random

import pytest
from support.crawling import sharing
from support.kills import FIFO, KILLS, kill_each
from support.queues import account
from support.waiting import until
from testbed.in_flight import pages_of, taken_by
from testbed.localredis import LocalRedis
from testbed.localsite import LocalSite, StormySite

from scrapy_bloom.crawl.outcomes import REDIRECTED

pytestmark = [
    pytest.mark.redis,
    pytest.mark.server,
    pytest.mark.long,
    pytest.mark.usefixtures("short_leases"),
]

SERIES = {
    "plain": {},
    "breadth first, retries": FIFO,
    "failures": {"RETRY_ENABLED": False},
}


@pytest.mark.parametrize("name", SERIES)
def test_nothing_is_lost_however_often_workers_are_killed(tmp_path, name):
    dice = random.Random(name)
    kind = LocalSite if name == "plain" else StormySite
    under_way, kills = set(), 0
    with (
        LocalRedis() as server,
        kind(pages=60 + 60 * KILLS, links=6, seed=len(name)) as site,
        sharing(site, server, tmp_path, **SERIES[name]) as crawl,
    ):
        for victim in kill_each(site, crawl.join, KILLS, dice, workers=3, most=60):
            kills += 1
            under_way |= pages_of(site, taken_by(server, victim.pid))
        crawl.wait()
        if name == "failures":
            until(lambda: leases_are_over(server))  # a worker that was killed counts
            failed = fetch_again(crawl, server)
            assert failed >= len(site.hits) // 8
        assert site.missed == set(), "\n".join(run.log for run in crawl.runs)[-5000:]
        if name == "plain":  # what is tried again is not filtered, nor what it redirects to
            assert set(site.repeated) <= under_way
        assert not any(server.client().keys("*:queue") + server.client().keys("*:taken"))
    again = sum(hits - 1 for hits in site.repeated.values())
    print(f"{name}: {kills} kills, {len(under_way)} under way, {again} again")  # noqa: T201 - `make kills` shows it


def leases_are_over(server):
    client = server.client()
    (key,) = client.keys("*:bloom")
    leases = [lease.split()[1] for name, lease in client.hgetall(key).items() if name[:2] == b"w:"]
    return all(ends == b"dead" or float(ends) < client.time()[0] for ends in leases)


def fetch_again(crawl, server):
    """Run until nothing is on the failed list; return how many were on it at first.

    But what leads to a page that was parsed meanwhile is there for two more runs, an hour apart.
    """
    counts = []
    while not counts or counts[-1]:
        (key,) = server.client().keys("*:bloom")
        told = account(server, key.decode())
        assert (told.waiting, told.in_flight) == (0, 0)
        counts.append(told.failed - told.failures.get(REDIRECTED, 0))
        assert len(counts) < 20
        crawl.join()
        crawl.wait()
    return counts[0]
