"""A filter in Redis that forgets: by the clock of the server, for all workers alike."""

import time
from itertools import pairwise
from types import SimpleNamespace

import pytest
from hypothesis import settings
from scrapy.utils.test import get_crawler
from support.contract import FilterContract, fingerprints
from support.internals import clock_of_redis, forget_own_dates
from support.jobs import IDENTITY, open_job
from support.localredis import keys
from support.windows import LONGEST, START, WINDOW, Clock, RedisMachine

from scrapy_bloom import RedisFilter, RedisReader, StateError, tools
from scrapy_bloom.backends.base import Crawl
from scrapy_bloom.backends.redis import RedisBackend
from scrapy_bloom.options import MIN_ERROR_RATE
from scrapy_bloom.redis import shard as shards
from scrapy_bloom.redis.queue.base import Entry
from scrapy_bloom.redis.queue.shared import SharedQueue
from scrapy_bloom.session.reporter import Reporter
from scrapy_bloom.session.session import Session
from scrapy_bloom.settings import Settings
from scrapy_bloom.storage.snapshot import Identity

QUICK = settings(deadline=None, max_examples=25, stateful_step_count=40)


@pytest.fixture
def clock(server):
    """What sets the time of the server, and the time that it has first."""
    with clock_of_redis(server.client(), START) as set_clock:
        yield set_clock


@pytest.fixture
def opened():
    filters = []
    yield filters
    for seen in filters:
        seen.close()


@pytest.fixture
def join(server, opened, layout):
    """Open a filter with a window as one more worker."""

    def join(key, **options):
        options = {"layout": layout, "cache": 0, "window": WINDOW, **options}
        opened.append(RedisFilter.from_url(server.url, key=key, **options))
        return opened[-1]

    return join


class TestRedisFilterWithWindow(FilterContract):
    @pytest.fixture
    def make(self, join):
        return lambda **sizes: join(next(keys), **sizes)


def test_two_workers_see_what_the_model_allows(server, clock, layout):
    machine = type("Machine", (RedisMachine,), {})
    machine.server, machine.layout, machine.set_clock = server, layout, staticmethod(clock)
    case = machine.TestCase
    case.settings = QUICK
    case("runTest").debug()


def test_so_they_do_with_the_numbers_of_the_exact_mode(server, clock):
    machine = type("Machine", (RedisMachine,), {"error_rate": MIN_ERROR_RATE, "layout": "sets"})
    machine.server, machine.set_clock = server, staticmethod(clock)
    case = machine.TestCase
    case.settings = QUICK
    case("runTest").debug()


@pytest.mark.scrapy
def test_the_exact_mode_has_wide_numbers_in_each_generation(server, clock):
    settings = {
        "BLOOM_EXACT": True,
        "BLOOM_WINDOW": WINDOW,
        "BLOOM_CAPACITY": 100,
        "BLOOM_REDIS_LAYOUT": "sets",
        "BLOOM_REDIS_URL": server.url,
        "BLOOM_REDIS_KEY": next(keys),
    }
    crawler = get_crawler(settings_dict=settings)
    session = Session.open(crawler, Reporter(crawler))
    seen = session.opened.filter
    for part in range(9):
        clock(START + 100 * part)
        seen.add_many(fingerprints(300, f"part {part}"))
    info = seen.info()
    assert info.generations == 9
    assert info.slices > 9
    assert info.error_rate == MIN_ERROR_RATE
    assert info.estimated_fp_rate < MIN_ERROR_RATE
    session.close()


def test_a_page_is_granted_once_when_a_generation_begins_or_goes(join, clock):
    key = next(keys)
    one, two = join(key, capacity=50), join(key, capacity=50)
    now = START
    for part in range(40):
        pages = fingerprints(30, f"part {part}")
        first, second = one.add_many(pages[:20]), two.add_many(pages[10:])
        assert first + second == [False] * 20 + [True] * 10 + [False] * 10
        now += 60
        clock(now)
        assert all(two.contains_many(pages))


def test_what_is_forgotten_takes_no_room_on_the_server(server, join, clock):
    key = next(keys)
    seen = join(key, capacity=1000)
    client = server.client()
    now, sizes = START, []
    for part in range(60):
        seen.add_many(fingerprints(200, f"part {part}"))
        seen.add_aged(b"list %d" % part, 10)
        now += 100
        clock(now)
        sizes.append(len(client.keys(f"{key}*")))
        assert len(client.hkeys(key)) < 100
    assert max(sizes[20:]) <= max(sizes[10:20])
    info = seen.info()
    assert (info.generations, info.window) == (8, WINDOW)  # the ninth is over just now
    assert 1500 < info.items < 2000
    assert info.newest == START + 5900
    assert seen.clear()
    assert client.keys(f"{key}*") == [key.encode()]


def test_a_large_generation_is_deleted_in_parts(server, join, clock, layout):
    key = next(keys)
    seen = join(key, capacity=3_000_000 if layout == "bitmap" else 300_000)
    seen.add_many(fingerprints(20_000))
    client = server.client()
    left = [len(client.keys(f"{key}*:0.*"))]
    clock(START + 10 * WINDOW)
    while left[-1]:
        seen.add(b"page %d" % len(left))
        left.append(len(client.keys(f"{key}*:0.*")))
        assert len(left) < 100
    assert left[0] > (600 if layout == "sets" else 3)
    assert max(before - after for before, after in pairwise(left)) <= 501


@pytest.mark.parametrize(("made", "asked"), [(None, WINDOW), (WINDOW, None), (WINDOW, WINDOW / 4)])
def test_a_filter_made_with_another_window_is_refused_and_left_as_it_is(server, join, made, asked):
    key = next(keys)
    pages = fingerprints(150)
    seen = join(key, window=made, capacity=40)
    seen.add_many(pages)
    seen.close()
    client = server.client()
    before = {name: client.dump(name) for name in client.keys(f"{key}*")}
    with pytest.raises(StateError) as error:
        join(key, window=asked)
    assert f"a window, in seconds, of {float(made or 0)}, expected {float(asked or 0)}" in str(
        error.value
    )
    assert "window" in str(error.value).partition("Change ")[2]
    assert "Nothing was changed." in str(error.value)
    assert {name: client.dump(name) for name in client.keys(f"{key}*")} == before
    assert all(join(key, window=made).contains_many(pages))


def test_a_worker_forgets_what_it_remembers_itself(join, clock, monkeypatch):
    passed = [0.0]
    monkeypatch.setattr(
        shards, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + passed[0])
    )
    seen = join(next(keys), cache=1000)
    assert not seen.add(b"page")
    for seconds in (0, 100, 799):
        passed[0] = seconds
        clock(START + seconds)
        calls = seen.counters.round_trips
        assert seen.add(b"page")
        assert seen.counters.round_trips == calls, "it is remembered here"
    passed[0] = LONGEST + 1
    clock(START + LONGEST + 1)
    assert not seen.add(b"page")


def test_an_age_is_exact_and_the_same_for_all_workers(join, clock):
    key = next(keys)
    workers = [join(key), join(key, cache=100)]

    def ask(worker, seconds, age=60):
        clock(START + seconds)
        forget_own_dates(worker)
        return worker.add_aged(b"list", age)

    one, two = workers
    assert [ask(one, 0), ask(two, 1), ask(one, 59.9)] == [False, True, True]
    assert [ask(two, 60), ask(one, 60), ask(two, 61, 0), ask(two, 61, 1)] == [False, True] * 2
    assert [ask(two, -500), ask(one, -441), ask(two, -440)] == [True, True, False]  # set back
    assert not ask(one, -441, 0)
    assert one.add(b"list")
    assert two.add_aged(b"list", 3600), "by its own memory"
    assert not one.add(b"page")
    assert not ask(two, 62, 0)


def test_a_page_let_through_for_its_age_is_kept_for_the_window(join, clock):
    seen = join(next(keys))
    for seconds in (0, 500, 1000):
        clock(START + seconds)
        forget_own_dates(seen)
        assert not seen.add_aged(b"list", 100)
    clock(START + 1000 + WINDOW - 1)
    assert seen.add(b"list")
    clock(START + 1000 + LONGEST)
    assert not seen.add(b"list")


def test_ages_work_without_a_window(server, join, clock):
    key = next(keys)
    seen = join(key, window=None, capacity=10)
    assert not seen.add_aged(b"list", 60)
    seen.add_many(fingerprints(100))
    forget_own_dates(seen)
    assert seen.add_aged(b"list", 60)
    clock(START + 60)
    forget_own_dates(seen)
    assert not seen.add_aged(b"list", 60)
    assert seen.forget(b"list")
    assert not seen.add_aged(b"list", 60)
    assert seen.delete()
    assert not server.client().keys(f"{key}*")


def test_requests_with_an_age_go_into_the_shared_queue_when_their_page_is_old(
    server, opened, clock, layout
):
    from scrapy_bloom.redis.connection import Target
    from scrapy_bloom.redis.options import RedisOptions

    shared = RedisFilter(
        Target(server.url),
        window=WINDOW,
        options=RedisOptions(key=next(keys), layout=layout, shared_queue=True),
    )
    opened.append(shared)
    queue = SharedQueue(shared)

    def offer(seconds, *ages):
        clock(START + seconds)
        entries = [
            Entry(b"%d" % place, 0, b"list" if age is not None else b"article", age)
            for place, age in enumerate(ages)
        ]
        return list(queue.offer(entries).seen)

    assert offer(0, 60, None, 60, None) == [False, False, True, True]
    assert offer(59, 60, None, 59) == [True, True, False]
    assert offer(60, None, 60, 0) == [True, True, False]
    assert len(queue.take(10)) == 4
    queue.close()


def test_a_copy_of_a_job_keeps_the_dates(server, opened, clock, tmp_path):
    key, now = next(keys), Clock()
    job = open_job(tmp_path / "job", capacity=100, window=WINDOW, clock=now)
    parts = [fingerprints(60, f"part {part}") for part in range(12)]
    for pages in parts:
        job.filter.add_many(pages)
        now.now += 75
    job.filter.forget_many(parts[-1][:5])
    job.close()
    clock(now.now)
    tools.copy(tmp_path / "job", server.url, target_key=key)
    copied = tools.info(server.url, key=key).filter
    before = open_job(tmp_path / "job", capacity=100, window=WINDOW, clock=now)
    assert (copied.window, copied.items) == (WINDOW, before.filter.info().items)
    shared = RedisFilter.from_url(
        server.url, key=key, cache=0, window=WINDOW, fingerprinter=IDENTITY.fingerprinter
    )
    opened.append(shared)
    asked = [page for pages in parts for page in pages]
    same = 0
    for part in range(14):
        if part == 5:
            new = fingerprints(200, "new")
            assert shared.add_many(new) == before.filter.add_many(new)
        found = before.filter.contains_many(asked)
        assert shared.contains_many(asked) == found
        same += 0 < sum(found) < len(asked)
        now.now += 75
        clock(now.now)
    assert same > 8
    before.release()


def test_what_is_over_counts_for_nobody_before_anybody_marks(server, join, clock):
    key = next(keys)
    seen = join(key, capacity=50)

    def counts():
        (whole, *_) = tools.check(server.url, key=key)
        with RedisReader.from_url(server.url, key=key) as reader:
            told = reader.info().items
        worker = join(key)
        found = worker.restored, worker.info().items
        worker.close()
        return [told, *found, tools.info(server.url, key=key).filter.items, whole.found.split()[1]]

    seen.add_many(fingerprints(100))
    clock(START + 300)
    seen.add_many(fingerprints(20, "later"))
    seen.close()
    assert counts() == [120, 120, 120, 120, "120"]
    clock(START + LONGEST)
    assert counts() == [20, 20, 20, 20, "20"]
    clock(START + LONGEST + 300)
    assert counts() == [0, 0, 0, 0, "0"]
    seen = join(key)
    assert not seen.was_empty, "what a clock that goes back would bring back"
    assert seen.add_many(fingerprints(5)) == [False] * 5
    assert seen.info().items == 5


def test_marks_are_there_though_as_many_were_forgotten_before_them(server, join, clock, layout):
    key = next(keys)
    seen = join(key)
    pages = fingerprints(100)
    seen.add_many(pages)
    seen.forget_many(pages)
    clock(START + LONGEST)
    seen.add_many(fingerprints(50, "later"))
    seen.close()
    again = join(key)
    assert (again.marked, again.was_empty) == (True, False)
    assert all(again.contains_many(fingerprints(50, "later")))
    empty = join(next(keys))
    assert (empty.marked, empty.was_empty) == (False, True)

    def opened(key):
        names = {"URL": server.url, "KEY": key, "LAYOUT": layout}
        chosen = {f"BLOOM_REDIS_{name}": value for name, value in names.items()}
        crawl = Crawl(Identity("books", "", {}), digests=True, job_dir=None, shared_queue=True)
        found = RedisBackend().open(Settings(chosen | {"BLOOM_WINDOW": WINDOW}), crawl)
        found.close()
        return found

    again.close()
    assert opened(key).marked
    assert not opened(next(keys)).marked


def test_growth_is_told_once_and_of_all_that_is_there(join, clock, caplog):
    seen = join(next(keys), capacity=800)
    seen.add_many(fingerprints(50))
    clock(START + LONGEST)
    seen.add_many(fingerprints(700, "a"))
    assert "as many as it was sized for" not in caplog.text
    seen.add_many(fingerprints(300, "b"))
    clock(START + 3 * LONGEST)
    seen.add_many(fingerprints(2000, "c"))
    assert caplog.text.count("as many as it was sized for") == 1


def test_a_copy_in_a_file_has_the_window(server, join, clock, tmp_path, monkeypatch):
    monkeypatch.setattr(time, "time", lambda: START + 300)
    key = next(keys)
    seen = join(key, capacity=50)
    pages = fingerprints(200)
    seen.add_many(pages)
    clock(START + 300)
    seen.add_many(fingerprints(50, "b"))
    with RedisReader.from_url(server.url, key=key) as reader:
        assert all(reader.contains_many(pages))
        assert reader.info().generations == 2
    told = tools.info(server.url, key=key)
    assert (told.filter.window, told.filter.generations) == (WINDOW, 2)
    tools.copy(server.url, tmp_path / "copy.bloom", key=key)
    copied = tools.info(tmp_path / "copy.bloom")
    assert (copied.filter.window, copied.filter.generations) == (WINDOW, 2)
    again = next(keys)
    tools.copy(tmp_path / "copy.bloom", server.url, target_key=again)
    (whole, *_) = tools.check(server.url, key=again)
    assert whole.found.startswith("whole: 250 items")
    copy = join(again)
    assert copy.info().items == 250
    clock(START + LONGEST - 1)
    assert all(copy.contains_many([*pages, *fingerprints(50, "b")]))
    clock(START + LONGEST)
    assert not any(copy.contains_many(pages))
    assert all(copy.add_many(fingerprints(50, "b")))
    clock(START + 300 + LONGEST)
    assert not any(copy.contains_many(fingerprints(50, "b")))


@pytest.mark.parametrize("window", [WINDOW, None])
def test_a_copy_of_a_job_brings_its_ages(server, opened, clock, tmp_path, window):
    key, now = next(keys), Clock()
    job = open_job(tmp_path / "job", capacity=20, window=window, clock=now)
    job.filter.add_many(fingerprints(50))  # so that there is more than one slice
    for page in (b"list", b"feed"):
        assert not job.filter.add_aged(page, 60)
        now.now += 30
    job.close()
    clock(now.now)
    tools.copy(tmp_path / "job", server.url, target_key=key)
    client = server.client()
    assert all(client.ttl(name) == -1 for name in client.keys(f"{key}*"))
    shared = RedisFilter.from_url(
        server.url, key=key, cache=0, window=window, fingerprinter=IDENTITY.fingerprinter
    )
    opened.append(shared)
    assert [shared.add_aged(page, 60) for page in (b"feed", b"list")] == [True, False]
