"""An audit of a filter in Redis: one sample for all workers, whose counts no fault makes wrong."""

import logging

import pytest
from hypothesis import settings
from hypothesis.stateful import invariant
from pytest_twisted import ensureDeferred
from support.contract import fingerprints
from support.crawling import crawl
from support.internals import clock_of_redis
from support.jobs import IDENTITY
from support.layouts import name_of_add
from support.localredis import keys
from support.lua54 import Lua54Target
from support.proxy import Proxy
from support.sites import Pages
from support.spiders import Walled
from support.windows import START, WINDOW, RedisMachine

from scrapy_bloom import BackendError, RedisFilter, RedisOptions, StateError, tools
from scrapy_bloom.redis.connection import Target
from scrapy_bloom.redis.queue.base import Entry
from scrapy_bloom.redis.queue.shared import SharedQueue

WINDOWS = [None, WINDOW]


@pytest.fixture
def clock(server):
    """What sets the time of the server, and the time that it has first."""
    with clock_of_redis(server.client(), START) as set_clock:
        yield set_clock


@pytest.fixture
def join(server, layout):
    """Open a filter with an audit of all pages as one more worker."""

    def join(key, **options):
        options = {"layout": layout, "cache": 0, "audit": 1, "error_rate": 1e-9, **options}
        join.filters.append(RedisFilter.from_url(server.url, key=key, **options))
        return join.filters[-1]

    join.filters = []
    yield join
    for seen in join.filters:
        seen.close()


def probe_of(seen, fingerprint):
    """Return a fingerprint as the scripts know it, and the key of the sample."""
    (shard,) = seen.shards
    header = shard.header
    make = header.layout.make_hash(header.secret, digests=header.plan.digests)
    return make(fingerprint), shard.place.prefix(header.epoch) + "sample"


def make_false_positives(server, seen, pages):
    """Let the filter call pages seen that nobody has asked about."""
    seen.add_many(pages)
    for page in pages:
        probe, sample = probe_of(seen, page)
        assert server.client().zrem(sample, probe) == 1


def counts(seen):
    found = seen.audited()
    return found.checked, found.observed


class AuditMachine(RedisMachine):
    """With an audit of all pages, of which nothing is ever called seen wrongly."""

    audit = 1

    @invariant()
    def no_mark_counts_as_an_error(self):
        found = self.filter.audited()
        assert (found.observed, found.ended) == (0, False)


def test_with_a_window_no_mark_counts_as_an_error(server, clock, layout):
    machine = type("Machine", (AuditMachine,), {"server": server, "layout": layout})
    machine.set_clock = staticmethod(clock)
    case = machine.TestCase
    case.settings = settings(deadline=None, max_examples=15, stateful_step_count=40)
    case("runTest").debug()


@pytest.mark.parametrize("window", WINDOWS)
def test_what_is_known_to_be_new_is_counted_and_let_through(server, join, window):
    one, two = (join(key, window=window) for key in [next(keys)] * 2)
    assert one.audited().checked == 0
    wrong, right = fingerprints(100, "wrong"), fingerprints(100, "right")
    make_false_positives(server, one, wrong)
    assert one.contains_many(wrong) == [True] * 100
    assert two.add_many(wrong[:50] + right) == [False] * 150
    assert one.add_many(wrong + right) == [True] * 50 + [False] * 50 + [True] * 100
    assert counts(one) == counts(two) == (300, 100)
    found = one.audited()
    assert found.low < 1 / 3 < found.high
    assert found.predicted < 1e-6


@pytest.mark.parametrize("layout", ["bitmap"])
@pytest.mark.parametrize(
    ("window", "error_rate", "capacity", "items"),
    [(None, 0.1, 15_000, 45_000), (WINDOW, 0.9, 40_000, 100_000)],
)
def test_the_prediction_is_met(join, clock, window, error_rate, capacity, items):
    """While it grows, and while generations come and go."""
    seen = join(next(keys), window=window, error_rate=error_rate, capacity=capacity, audit=0.3)
    for number in range(0, items, 500):
        clock(START + number / 50)
        seen.add_many(fingerprints(500, f"part {number}"))
    found = seen.audited()
    assert found.checked == pytest.approx(items * 0.3, abs=5 * (items * 0.21) ** 0.5)
    assert found.predicted > 100
    assert found.observed == pytest.approx(found.predicted, abs=5 * found.predicted**0.5)
    assert seen.info().slices > 2


@pytest.mark.parametrize("window", WINDOWS)
def test_what_was_wrongly_seen_is_kept_as_long_as_other_pages(server, join, clock, window):
    seen = join(next(keys), window=window)
    (page,) = fingerprints(1)
    make_false_positives(server, seen, [page])
    clock(START + 0.9 * WINDOW)
    assert not seen.add(page)
    clock(START + 1.8 * WINDOW)
    assert seen.add(page)
    clock(START + 4 * WINDOW)
    assert seen.add(page) is (window is None)
    assert counts(seen) == (2, 1), "it is not counted again while it is in the sample"


def test_the_sample_forgets_what_the_filter_has_forgotten(server, join, clock):
    seen = join(next(keys), window=WINDOW)
    sizes = []
    for part in range(60):
        clock(START + 100 * part)
        seen.add_many(fingerprints(100, f"part {part}"))
        _, sample = probe_of(seen, b"")
        sizes.append(server.client().zcard(sample))
    assert sizes[-1] == sizes[-10] < 3100
    assert counts(seen) == (6000, 0)


def test_pages_with_an_age_or_forgotten_are_no_errors_and_the_first_are_not_counted(join):
    seen = join(next(keys))
    pages = fingerprints(50)
    assert not any(seen.add_aged(page, 60) for page in pages)
    assert seen.add_many(pages) == [True] * 50
    assert counts(seen) == (0, 0)
    more = fingerprints(50, "more")
    seen.add_many(more)
    assert seen.forget_many(more) == [True] * 50
    assert seen.add_many(more) == [False] * 50
    assert counts(seen) == (50, 0)


def test_a_changed_window_makes_no_page_an_error(join, clock):
    key, pages = next(keys), fingerprints(100)
    for number, window in enumerate((None, WINDOW * 4, WINDOW)):
        clock(START + 10 * number * WINDOW)
        seen = join(key, window=window)
        assert seen.add_many(pages) == [number > 0] * 100
        if window != WINDOW:
            seen.close()
    for part in range(9):
        clock(START + 20 * WINDOW + 90 * part)
        seen.add_many(fingerprints(10, f"part {part}"))
        assert seen.add_many(pages) == [True] * 100
    assert counts(seen) == (190, 0)


@pytest.mark.parametrize("fault", ["drop reply", "twice", "late"])
def test_a_call_that_is_repeated_counts_once(server, join, layout, fault):
    pages, wrong = fingerprints(40), fingerprints(10, "wrong")
    for call in (1, 2):
        key = next(keys)
        sound = join(key, capacity=20)
        make_false_positives(server, sound, wrong)
        with Proxy(server.port, counted=name_of_add(layout, 1e-9, audited=True)) as proxy:
            faulty = RedisFilter.from_url(
                proxy.url,
                key=key,
                layout=layout,
                cache=0,
                audit=1,
                error_rate=1e-9,
                timeout=2.0,
            )
            proxy.faults = {call: fault}
            faulty.add_many(pages)  # in several calls, because the filter grows
            assert proxy.requests >= 3
            proxy.deliver()
            assert sound.add_many(pages) == [True] * 40
            faulty.add_many(wrong)
            assert sound.add_many(wrong) == [True] * 10
            assert counts(sound) == (60, 10)
            faulty.close()


def test_a_call_that_breaks_half_way_counts_nothing_wrong(server, key, join):
    seen = join(key, on_error="close")
    seen.add(b"first")
    client, (_, sample) = server.client(), probe_of(seen, b"")
    client.rename(sample, key + "backup")
    client.rpush(sample, "foreign")
    pages = fingerprints(20)
    with pytest.raises(BackendError, match="something else than"):
        seen.add_many(pages)
    client.delete(sample)
    client.rename(key + "backup", sample)
    seen.shards[0].breaker.allow_try()
    assert seen.add_many(pages) == [False] * 20
    assert counts(seen) == (21, 0)


@pytest.mark.parametrize("window", WINDOWS)
def test_a_sample_that_is_lost_ends_the_audit(server, key, join, window, bloom):
    seen = join(key, window=window)
    pages, wrong = fingerprints(300), fingerprints(10, "wrong")
    make_false_positives(server, seen, wrong)
    seen.add_many(pages + wrong)
    before = seen.audited()
    assert (before.checked, before.observed, before.ended) == (320, 10, False)
    assert server.client().delete(probe_of(seen, b"")[1]) == 1
    assert seen.add_many(pages) == [True] * 300
    assert seen.add_many(fingerprints(300, "more")) == [False] * 300
    found = seen.audited()
    assert (found.checked, found.observed, found.ended) == (320, 10, True)
    assert seen.counters.losses == 1
    assert not server.client().exists(probe_of(seen, b"")[1])
    _, out, _ = bloom(f"info {server.url} --key {key}")
    assert any("; ended, because its sample was lost" in line for line in out)
    assert "audit" in {one.what for one in tools.check(server.url, key=key)}


def test_what_the_server_loses_or_goes_back_to_counts_nothing_wrong(server, key, join):
    seen = join(key, cache=1000)
    pages = fingerprints(100)
    client = server.client()
    seen.add_many(pages[:50])
    before = {name: client.dump(name) for name in client.keys(f"{key}*")}
    seen.add_many(pages[50:])
    for name, value in before.items():
        client.restore(name, 0, value, replace=True)
    seen.add(b"next")
    assert seen.add_many(pages) == [True] * 100
    client.delete(key)
    seen.add(b"and next")
    assert [*client.keys(f"{key}*:sample")] == [probe_of(seen, b"")[1].encode()]
    assert seen.add_many(pages) == [True] * 100
    assert seen.audited().observed == 0


def test_it_works_with_shards(join):
    key = next(keys)
    one, two = join(key, shards=3), join(key, shards=3)
    assert one.add_many(fingerprints(300)) == [False] * 300
    assert two.add_many(fingerprints(300)) == [True] * 300
    assert counts(one) == counts(two) == (300, 0)


@pytest.mark.parametrize("window", WINDOWS)
def test_requests_of_wrongly_seen_pages_go_into_the_queue(server, clock, layout, window):
    options = {"audit": 1, "window": window}
    chosen = RedisOptions(key=next(keys), layout=layout, shared_queue=True, cache=0)
    with RedisFilter(Target(server.url), capacity=20, options=chosen, **options) as shared:
        queue = SharedQueue(shared)
        pages = fingerprints(60)
        make_false_positives(server, shared, pages[:20])
        for seconds, expected in (0, False), (WINDOW - 1, True):
            clock(START + seconds)
            entries = [Entry(page, 0, page) for page in pages]
            entries += [Entry(b"aged", 0, b"aged", 3600)]
            assert list(queue.offer(entries).seen) == [expected] * 61
        assert counts(shared) == (80, 20)
        assert len(queue.take(100)) == 61
        queue.close()


def test_a_filter_with_marks_gets_no_audit_and_an_empty_one_does(server, key, join, layout):
    plain = {"audit": None}
    seen = join(key, **plain)
    with pytest.raises(StateError, match=r"an audit \(0 is none\) of 0.0, expected 1.0"):
        join(key)
    seen.close()
    seen = join(key)
    seen.close()
    seen = join(key, audit=0.5)
    pages = fingerprints(50)
    assert not any(seen.add_many(pages))
    for other in (1, None):
        with pytest.raises(StateError, match=r"an audit \(0 is none\) of 0.5.*Change audit"):
            join(key, audit=other)
    seen.close()
    with pytest.raises(StateError, match=r"an audit \(0 is none\) of 0.5"):
        join(key, audit=1)
    assert all(join(key, audit=0.5).add_many(pages))
    assert server.client().keys(f"{key}*:sample")
    join.filters.pop().close()
    seen = join(key, **plain)
    assert all(seen.add_many(pages))
    assert not server.client().keys(f"{key}*:sample")
    assert server.client().hget(key, "format") == (b"1" if layout == "bitmap" else b"2")
    seen.close()
    with pytest.raises(StateError, match="found a filter that has marks and no audit"):
        join(key)


def test_marks_whose_window_is_over_are_marks(key, join, clock):
    seen = join(key, audit=None, window=WINDOW)
    seen.add_many(fingerprints(50))
    clock(START + 2 * WINDOW)
    assert seen.info().items == 0
    seen.close()
    with pytest.raises(StateError, match=r"began\. Marks count also when their window is over\."):
        join(key, window=WINDOW)


@pytest.mark.parametrize(("window", "format_"), [(None, b"4"), (WINDOW, b"5")])
def test_versions_that_know_no_audit_refuse_it(server, key, join, window, format_):
    """They would mark pages without the sample: each would count as an error."""
    join(key, window=window)
    assert server.client().hget(key, "format") == format_


@pytest.mark.parametrize("gone", ["cleared", "deleted", "by a command", "replaced"])
def test_nothing_of_it_is_left(server, key, join, gone, tmp_path):
    seen = join(key, fingerprinter="x")
    pages = fingerprints(100)
    seen.add_many(pages)
    client = server.client()
    assert client.keys(f"{key}*:sample")
    if gone == "cleared":
        assert seen.clear()
        assert client.keys(f"{key}*") == [key.encode()]
        assert seen.add_many(pages) == [False] * 100
        assert counts(seen) == (100, 0)
        return
    if gone == "deleted":
        assert seen.delete()
    seen.close()
    if gone == "by a command":
        tools.delete(server.url, key=key)
    if gone == "replaced":
        tools.export(server.url, tmp_path / "copy", key=key)
        tools.merge([tmp_path / "copy"], server.url, target_key=key)
        assert not client.keys(f"{key}*:sample")
        assert tools.info(server.url, key=key).audit is None, "a copy has none"
        assert not tools.delete_leftovers(server.url, key=key)
    else:
        assert not client.keys(f"{key}*")


def test_a_sample_without_a_filter_is_a_leftover(server, key, join):
    seen = join(key)
    seen.add_many(fingerprints(10))
    client = server.client()
    seen.close()
    client.delete(key)
    left = client.keys(f"{key}*")
    assert any(name.endswith(b":sample") for name in left)
    assert tools.delete_leftovers(server.url, key=key) == len(left)
    assert not client.keys(f"{key}*")


def test_the_commands_keep_the_sample_and_show_it(server, key, join, bloom):
    seen = join(key, fingerprinter=IDENTITY.fingerprinter)
    seen.add_many(fingerprints(100))
    assert tools.add(server.url, ["http://example.com/"], key=key)
    assert counts(seen) == (101, 0)
    assert tools.info(server.url, key=key).audit == seen.audited()
    _, out, _ = bloom(f"info {server.url} --key {key}")
    assert any("0 of 101 new pages called seen" in line for line in out)


def test_all_variants_work_on_lua54(server, key, layout):
    """With a window and without, with ages, a slice that is added, and wrongly seen pages."""
    for window in WINDOWS:
        options = RedisOptions(key=f"{key}{window}", layout=layout, cache=0, timeout=60)
        target = Lua54Target(server.url)
        with RedisFilter(target, capacity=10, audit=1, window=window, options=options) as seen:
            pages = fingerprints(50)
            make_false_positives(server, seen, pages[:5])
            assert seen.add_many(pages) == [False] * 50
            assert not seen.add_aged(b"list", 60)
            assert seen.add_many(pages) == [True] * 50
            assert counts(seen) == (55, 5)


@pytest.mark.scrapy
@pytest.mark.parametrize("settings", [{"JOBDIR": "job"}, {"SCHEDULER": "scrapy_bloom.Scheduler"}])
@ensureDeferred
async def test_workers_tell_at_their_end_what_all_have_found(
    server, layout, tmp_path, monkeypatch, caplog, settings
):
    monkeypatch.chdir(tmp_path)
    caplog.set_level(logging.INFO)
    chosen = {
        "BLOOM_AUDIT": 1,
        "BLOOM_REDIS_URL": server.url,
        "BLOOM_REDIS_KEY": next(keys),
        "BLOOM_REDIS_LAYOUT": layout,
        **settings,
    }
    links = ["/a", "/b"]
    with Pages({"/": lambda *_: links, **dict.fromkeys(["/a", "/b", "/c"], lambda *_: [])}) as site:
        for count, link in ((2, "/a"), (3, "/c")):
            links.append(link)
            crawler = await crawl(Walled, chosen, url=site.url + "/")
            stats = crawler.stats.get_stats()
            assert (stats["bloom/audit/checked"], stats["bloom/audit/observed"]) == (count, 0)
            assert 0 == stats["bloom/audit/low"] < stats["bloom/audit/high"] < 1
            assert (
                f"Audit: of {count} new pages in the sample the filter called 0 seen" in caplog.text
            )
        caplog.clear()
        server.client().delete(*server.client().keys(f"{chosen['BLOOM_REDIS_KEY']}*:sample"))
        links.append("/c")
        await crawl(Walled, chosen, url=site.url + "/")
        assert "Redis has lost its sample" in caplog.text
    assert site.hits["/c"] == 1
