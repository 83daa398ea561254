"""`scrapy bloom why`: where a page is, in a job and in Redis."""

import json
import marshal
import pickle
import time
from contextlib import contextmanager
from math import ceil
from pathlib import Path

import pytest
from scrapy import Request
from support.crawling import Follower, Leaves, StartsNothing, at, crawl, target_of
from support.jobs import (
    SharedCrawl,
    kept_job,
    list_failed,
    mark_of,
    open_job,
    packed,
    stored,
    stored_job,
)
from support.sites import Pages

from scrapy_bloom.commands import info, pages, places, queue, why
from scrapy_bloom.commands.local_target import LocalTarget
from scrapy_bloom.commands.pages import read
from scrapy_bloom.crawl.history import CHAIN, ORIGINAL
from scrapy_bloom.crawl.identity import start_page
from scrapy_bloom.crawl.outcomes import MOST_RUNS, Reason
from scrapy_bloom.redis.member import Entry
from scrapy_bloom.redis.wire import Call

pytestmark = pytest.mark.server

SITE = "http://books.test"

AGAIN = (
    "the next run fetches it again; it is given up after 2 more failed runs, each at least an hour"
    " after the last"
)
GIVEN_UP = (
    "given up after 3 runs, all such pages are put back by: scrapy bloom queue TARGET --retry"
    " --given-up"
)


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for module in info, places, queue:
        monkeypatch.setattr(module, "moment", when)


def when(date):
    """Return how many seconds that is from now, without the few that a test takes."""
    return f"@{300 * ceil((date - time.time()) / 300)}"


def request(path, **fields):
    return Request(f"{SITE}/{path}", **fields)


@pytest.fixture
def redis(server):
    redis = SharedCrawl(server, "fifo")
    yield redis
    redis.close()


def told(bloom, target, *paths):
    """Return what is said of pages, each as a phrase."""
    _, lines, errors = bloom(f"why {target} {' '.join(f'{SITE}/{path}' for path in paths)}")
    assert not errors
    at = lines[0].index("is")
    return [line[at:] for line in lines[1:]]


def test_a_job_says_where_each_page_is(bloom):
    urls = *(f"{SITE}/{n}" for n in range(3)), "http://busy.test/"
    waits = [(f"{SITE}/{9 + number}", 900 * number) for number in range(3)]  # one is due
    folder = kept_job(Path("kept"), urls=urls, waits=waits, pauses=[("busy.test", 300)])
    job = open_job(folder, requests=True)
    store = job.store
    bug = "ValueError in parse", "no price", MOST_RUNS
    for path, reason in ("out", ["503"]), ("bug", bug):
        list_failed(store, request(path), *reason)
        store.filter.add(mark_of(request(path)))
    store.filter.add(mark_of(request("done")))
    store.starts[start_page(mark_of(request("start"))) + bytes(8)] = 1
    job.close()
    paths = "1", "9", "10", "out", "bug", "done", "start", "never"
    assert told(bloom, "kept", *paths) == [
        *("waiting", "waiting", "waiting, not before @900"),
        f"failed @0: 503; {AGAIN}",
        f"unparsed @0: ValueError in parse: no price; {GIVEN_UP}",
        *("done", "done", "not seen"),
    ]
    shown = {line[:14].strip(): line[14:].strip() for line in bloom("info kept")[1]}
    assert (shown["waiting"], shown["in flight"]) == ("7", "0")
    assert shown["delayed"].startswith("2 requests, the next @900")
    assert shown["paused"].startswith("busy.test until @300")
    _, lines, _ = bloom("queue kept")
    assert lines[1].startswith("2 of them delayed; the next is due at @900")
    assert [line.split()[-2] for line in lines[-2:]] == ["@900", "@1800"]


def test_redis_says_where_each_page_is(bloom, redis):
    redis.offer(*map(request, ("flying", "out", "done")))
    _flying, out, _done = redis.take(3)
    redis.fail(out, Reason("503"))
    redis.offer(*map(request, "abc"), request("login", dont_filter=True))
    redis.offer(request("later"), due=time.monotonic() + 900)
    name, *_ = redis.worker.name.rpartition(":")
    flew, *others = told(bloom, redis.target, "flying", "out", "a", "c", "login", "later", "never")
    assert flew.startswith(f"in flight at worker {name}")
    assert others == [
        f"failed @0 at worker {name}: 503; {AGAIN}",
        *["waiting"] * 3,
        "waiting, not before @900",
        "not seen",
    ]
    redis.worker.call(Call(pauses={b"books.test": time.monotonic() + 300}))
    (held,) = told(bloom, redis.target, "b")
    assert held == "waiting"


def test_a_page_is_found_by_what_redirects_and_retries_have_made_of_it(bloom, redis):
    first = request("first", dont_filter=True)
    made, there = (
        request("there", meta={CHAIN: [mark_of(request("way")).hex()], ORIGINAL: form(first)})
        for form in (stored, packed)
    )
    job = open_job(Path("kept"), requests=True)
    job.store.push(job.store.queue("0", None), stored(made))
    job.close()
    redis.offer(there)
    for target in ("kept", redis.target):
        found = told(bloom, target, "first", "way", "there")
        assert {*found} <= {"waiting", "waiting or in flight"}


def test_many_pages_are_read_from_a_file_and_each_is_one_object_with_json(bloom, monkeypatch):
    monkeypatch.setattr(why, "_AT_ONCE", 3)
    kept_job(Path("kept"), urls=[f"{SITE}/{number}" for number in range(8)])
    urls = "\n".join(f"HTTP://books.test:80/{number}" for number in range(8)).encode()
    code, lines, _ = bloom("why kept - --json", stdin=urls)
    assert (code, len(lines)) == (0, 8)
    assert json.loads(lines[7]) == {
        "text": "HTTP://books.test:80/7",
        "fingerprint": mark_of(request("7")).hex(),
        "canonical": f"{SITE}/7",
        "is": "waiting",
    }
    code, lines, _ = bloom("why kept -", stdin=urls + b"\nhttp://never.test/")
    assert (code, len(lines)) == (1, 1 + 9)
    assert lines[1].split("  ")[1].strip() == f"{SITE}/0"  # what it stands as


def test_what_is_in_redis_is_neither_unpickled_nor_unmarshalled(bloom, redis, monkeypatch):
    """A stranger may have written it."""
    decoded = []
    bloom(f"why {redis.target} {SITE}/there")  # imports all that it needs: by marshal
    monkeypatch.setattr(marshal, "loads", decoded.append)
    monkeypatch.setattr(pickle, "Unpickler", decoded.append)
    there = stored(request("there"))
    bodies = [b"{ marshalled", there, packed(request("here", meta={ORIGINAL: there}))]
    entries = [Entry("p", None, body, slot=slot) for body in bodies for slot in (b"", b"slot")]
    redis.worker.call(Call(entries))
    redis.take(2)
    assert bloom(f"why {redis.target} {SITE}/there {SITE}/here")[0] == 1
    assert decoded == []


def test_no_view_is_open_while_lines_are_awaited(bloom, monkeypatch):
    """It kept SQLite's log from being written back, so that grew for as long as stdin was open."""
    stored_job(Path("job"), [])
    views, views_at_lines, reading = [], [], LocalTarget.reading

    @contextmanager
    def counted(target):
        with reading(target) as store:
            views.append(store)
            yield store
            views.pop()

    def lines(given, fingerprinter):
        for page in read(given, fingerprinter):
            views_at_lines.append(len(views))
            yield page

    monkeypatch.setattr(LocalTarget, "reading", counted)
    monkeypatch.setattr(pages, "read", lines)
    bloom("why job -", stdin=b"http://a/1\nhttp://a/2\n")
    assert views_at_lines == [0, 0]


class Lists(Leaves, Follower):
    """Starts with a list of pages, each of which has two links; stops after the first."""

    async def start(self):
        for number in range(9):
            yield Request(f"{self.url}/{number}")


class Resumes(StartsNothing, Follower):
    """Fetches what another run has left."""


@at("kept job", "shared")
async def test_the_queue_is_shown_in_the_order_in_which_the_next_run_fetches_it(bloom, place):
    target = target_of(place)
    pages = {f"/{number}": [f"/{number}/{link}" for link in "ab"] for number in range(9)}
    leaves = {path: [] for links in pages.values() for path in links}
    settings = place | {"CONCURRENT_REQUESTS": 1}
    with Pages(pages | leaves) as site:
        await crawl(Lists, settings, url=site.url)
        # Links of what is fetched meanwhile would come first.
        site.pages = leaves | {path: [] for path in pages}
        shown = json.loads("".join(bloom(f"queue {target} --peek 99 --json")[1]))["first"]
        resumed = await crawl(Resumes, settings)
    assert len(shown) > 5
    assert [request["url"] for request in shown] == resumed.spider.parsed
