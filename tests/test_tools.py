"""Filters at rest, in files and in Redis: looked at, asked, marked, moved and checked."""

import itertools
import json
import os
import sqlite3
from math import inf

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scrapy import Request
from support.contract import fingerprints
from support.filters import bits_of, everything, everything_in, project
from support.frontiers import kept_job
from support.jobs import IDENTITY, open_job, stored_job

from scrapy_bloom import JobInUseError, RedisFilter, SettingError, StateError, tools
from scrapy_bloom.canonical.fingerprint import CanonicalFingerprinter
from scrapy_bloom.frontier.store import Store
from scrapy_bloom.layers.exact import NOTE, Noted
from scrapy_bloom.storage.exact_file import ExactKey, write_exact
from scrapy_bloom.storage.snapshot import read_snapshot

pytestmark = pytest.mark.server  # `make check` leaves all of them out

URLS = [f"http://example.com/{number}" for number in range(200)]
keys = (f"tools:{number}" for number in itertools.count())


@pytest.fixture
def redis_target(server):
    return f"{server.url}#{next(keys)}"


@pytest.fixture
def job(tmp_path):
    stored_job(tmp_path / "job", fingerprints(500), capacity=200)
    return tmp_path / "job"


@pytest.fixture(params=["job", "file", "redis"])
def target(request, tmp_path, job, redis_target):
    """The same filter in each kind of place."""
    if request.param == "job":
        return job
    if request.param == "file":
        tools.copy(job, tmp_path / "one.bloom")
        return tmp_path / "one.bloom"
    tools.copy(job, redis_target)
    return redis_target


# Looking


def test_a_target_is_asked(target):
    known, others = fingerprints(500), fingerprints(500, "b")
    assert tools.contains(target, fingerprints=known + others) == [True] * 500 + [False] * 500
    assert tools.contains(target, URLS[:2], project=project()) == [False, False]


def test_info_tells_what_is_known_but_never_the_secret(target):
    found = tools.info(target)
    assert (found.filter.items, found.filter.slices, found.shards) == (500, 3, 1)
    assert [slice_.items for slice_ in found.slices] == [200, 200, 100]
    assert (found.spider, found.fingerprinter) == (IDENTITY.spider, IDENTITY.fingerprinter)
    secret = tools.target_of(target).read().shards[0].secret
    assert secret.hex() not in repr(found)
    assert repr(secret)[2:-1] not in repr(found)


def test_looking_changes_nothing(target, tmp_path, server):
    before = everything(tmp_path), everything_in(server)
    tools.info(target)
    tools.contains(target, URLS)
    tools.check(target)
    tools.target_of(target).read()
    assert (everything(tmp_path), everything_in(server)) == before


def test_a_job_in_use_is_looked_at_and_not_changed(job):
    crawl = open_job(job)
    assert tools.info(job).crawl == "running"
    assert tools.info(job).process.startswith(str(os.getpid()))
    assert tools.contains(job, fingerprints=fingerprints(1)) == [True]
    before = everything(job)
    for change in (
        lambda: tools.add(job, URLS),
        lambda: tools.forget(job, fingerprints=fingerprints(1)),
        lambda: tools.delete(job),
    ):
        with pytest.raises(JobInUseError, match="is using this job directory"):
            change()
    assert everything(job) == before
    crawl.close()
    assert tools.info(job).crawl == "stopped cleanly"


def test_a_killed_run_is_told_from_one_that_is_on(job):
    crawl = open_job(job)
    crawl.release()
    marker = json.loads((job / "requests.bloom.running").read_text())
    marker["pid"] = 2**22 + 1  # more than any process has
    (job / "requests.bloom.running").write_text(json.dumps(marker))
    assert tools.info(job).crawl == "killed"


@pytest.mark.parametrize(
    "verb", [tools.info, tools.contains, tools.check, tools.forget, tools.delete]
)
def test_what_is_not_there_is_refused_and_not_made(verb, tmp_path, redis_target, server):
    before = everything(tmp_path), everything_in(server)
    for missing in (tmp_path / "nothing", tmp_path / "nothing.bloom", tmp_path, redis_target):
        with pytest.raises(StateError, match="found no"):
            verb(missing)
    assert (everything(tmp_path), everything_in(server)) == before


# Marking


def test_marks_are_added_and_let_through_once(target):
    fingerprinter = CanonicalFingerprinter()
    assert tools.add(target, URLS) == [False] * 200
    assert tools.add(target, URLS, fingerprints=fingerprints(1)) == [True] * 201
    made = [fingerprinter.fingerprint(Request(url)) for url in URLS]
    assert tools.contains(target, fingerprints=made) == [True] * 200


def test_a_page_that_is_forgotten_is_new_once_more(job):
    one, two, new = *fingerprints(2), *fingerprints(1, "b")
    assert tools.forget(job, fingerprints=[one, new]) == [True, False]
    assert tools.contains(job, fingerprints=[one, two, new]) == [False, True, False]
    assert tools.info(job).let_through == 1
    crawl = open_job(job)
    assert crawl.filter.forgotten == {one}
    crawl.close()
    assert tools.add(job, fingerprints=[one]) == [False]
    assert tools.contains(job, fingerprints=[one]) == [True]
    assert tools.info(job).let_through == 0


def test_a_mark_by_hand_does_not_make_a_killed_run_a_clean_one(job):
    open_job(job).release()
    tools.add(job, URLS)
    with pytest.raises(StateError, match="was killed"):
        open_job(job)


def test_it_uses_the_rules_that_the_filter_was_filled_with(tmp_path):
    usual = project(BLOOM_CANONICAL="usual")
    assert tools.add(tmp_path / "job", URLS[:1], project=usual) == [False]
    tracked = f"{URLS[0]}?utm_source=x"
    assert tools.contains(tmp_path / "job", [tracked], project=project()) == [True]
    safe = project(BLOOM_CANONICAL="safe")
    assert tools.contains(tmp_path / "job", [tracked], project=safe) == [False]
    with tools.asking(tmp_path / "job", project=safe) as question:
        assert "The filter was filled with the rules" in question.warning


def test_a_filter_of_another_fingerprinter_is_refused(job):
    other = project(REQUEST_FINGERPRINTER_CLASS="support.toy.Fingerprinter")
    with pytest.raises((SettingError, ImportError, AttributeError, NameError)):
        tools.contains(job, URLS, project=other)


# Moving


@given(
    sizes=st.lists(st.integers(0, 400), min_size=1, max_size=3),
    capacity=st.integers(1, 300),
    rate=st.sampled_from([1e-2, 1e-6, 1e-9]),
)
@settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_a_round_trip_gives_back_the_same_bits(tmp_path_factory, server, sizes, capacity, rate):
    folder = tmp_path_factory.mktemp("trip")
    known = list(itertools.chain(*(fingerprints(n, f"{i}") for i, n in enumerate(sizes))))
    stored_job(folder / "job", known, capacity=capacity, error_rate=rate)
    there, back = f"{server.url}#{next(keys)}", f"{server.url}#{next(keys)}"
    tools.copy(folder / "job", there)
    tools.copy(there, folder / "other")
    tools.copy(folder / "other", folder / "other.bloom")
    tools.copy(folder / "other.bloom", back)
    tools.copy(back, folder / "back.bloom")
    tools.copy(folder / "job", folder / "job.bloom")
    assert (folder / "back.bloom").read_bytes() == (folder / "job.bloom").read_bytes()
    assert bits_of(back) == bits_of(folder / "job") == bits_of(there)
    assert all(tools.contains(back, fingerprints=known))
    crawl = open_job(folder / "other", capacity=capacity, error_rate=rate)
    assert all(crawl.filter.contains_many(known))
    crawl.close()


def test_a_copy_in_redis_is_a_filter_like_those_of_crawls(server):
    """The same keys, byte for byte, that workers have made."""
    made, copied = next(keys), next(keys)
    known = fingerprints(900)
    with RedisFilter.from_url(server.url, key=made, capacity=300) as seen:
        seen.add_many(known)
    tools.copy(f"{server.url}#{made}", f"{server.url}#{copied}")
    client = server.client()
    theirs, ours = client.hgetall(made), client.hgetall(copied)
    differ = {name for name in theirs | ours if theirs.get(name) != ours.get(name)}
    assert differ == {b"epoch", b"signature"}
    for name in client.scan_iter(f"{made}:*"):
        copy = name.replace(made.encode(), copied.encode())
        copy = copy.replace(theirs[b"epoch"], ours[b"epoch"])
        assert client.get(copy) == client.get(name)
        assert client.ttl(copy) == -1
    with RedisFilter.from_url(server.url, key=copied, capacity=300) as seen:
        assert seen.add_many(known) == [True] * 900
        assert seen.add_many(fingerprints(9, "b")) == [False] * 9


def test_a_filter_of_several_shards_goes_to_a_file_and_back(server, tmp_path):
    made, copied = next(keys), next(keys)
    known = fingerprints(900)
    with RedisFilter.from_url(server.url, key=made, capacity=300, shards=3) as seen:
        seen.add_many(known)
    path = tmp_path / "sharded.bloom"
    tools.copy(f"{server.url}#{made}", path)
    assert tools.info(path).shards == 3
    assert (
        tools.contains(path, fingerprints=known + fingerprints(9, "b"))
        == [True] * 900 + [False] * 9
    )
    tools.copy(path, f"{server.url}#{copied}")
    assert bits_of(f"{server.url}#{copied}") == bits_of(f"{server.url}#{made}")
    with pytest.raises(SettingError, match="shards cannot be kept in a job directory"):
        tools.copy(path, tmp_path / "job", project=project())
    assert not (tmp_path / "job").exists()
    with pytest.raises(StateError, match="found a filter of 3 shards, expected one"):
        read_snapshot(path)


def test_a_copy_is_not_made_over_another_filter(target, tmp_path):
    tools.copy(target, tmp_path / "new.bloom")
    before = everything(tmp_path)
    with pytest.raises(StateError, match="found a filter, expected none"):
        tools.copy(target, tmp_path / "new.bloom")
    assert everything(tmp_path) == before


def test_a_job_needs_a_spider(tmp_path, server):
    key = next(keys)
    with RedisFilter.from_url(server.url, key=key) as seen:
        seen.add_many(fingerprints(9))
    with pytest.raises(SettingError, match="give its name with --spider"):
        tools.copy(f"{server.url}#{key}", tmp_path / "job")
    assert not (tmp_path / "job").exists()
    tools.copy(f"{server.url}#{key}", tmp_path / "job", project=project("films"))
    assert tools.info(tmp_path / "job").spider == "films"


def test_the_waiting_requests_of_a_copy_are_told(tmp_path, job):
    (job / "requests.sqlite").touch()
    with pytest.raises(StateError, match=r"requests.sqlite: found"):
        tools.copy(job, tmp_path / "copy.bloom")


def test_it_is_deleted_with_all_that_belongs_to_it(target, tmp_path, server):
    before = everything_in(server)
    tools.delete(target)
    with pytest.raises(StateError, match="found no"):
        tools.info(target)
    assert target != tmp_path / "job" or [p.name for p in target.iterdir()] == [
        "requests.bloom.lock"
    ]
    tag = str(target).partition("#")[2]
    left = [name for name in everything_in(server) if tag and tag.encode() in name]
    assert left == []
    assert len(everything_in(server)) <= len(before)


def test_a_filter_under_workers_is_not_deleted_or_replaced(server, tmp_path):
    key = next(keys)
    target = f"{server.url}#{key}"
    with RedisFilter.from_url(server.url, key=key) as seen:
        seen.add_many(fingerprints(9))
        tools.copy(target, tmp_path / "copy.bloom")
        assert [worker.alive for worker in tools.info(target).workers] == [True]
        before = set(everything_in(server))
        for change in (
            lambda: tools.delete(target),
            lambda: tools.copy(tmp_path / "copy.bloom", target),
        ):
            with pytest.raises(StateError, match=r"a crawl uses this filter|expected none"):
                change()
        assert set(everything_in(server)) == before
        assert tools.add(target, URLS) == [False] * 200  # adding is for any number of workers
        assert seen.add_many(fingerprints(9)) == [True] * 9
    tools.delete(target)


@pytest.mark.parametrize("place", ["job", "file.bloom", "redis"])
def test_pages_are_added_to_a_new_filter(tmp_path, redis_target, place):
    """It is made as the settings say, for all of its life."""
    target = redis_target if place == "redis" else tmp_path / place
    made = project(BLOOM_CAPACITY=1000, BLOOM_WINDOW="8h")
    known = fingerprints(50)
    assert tools.add(target, URLS, fingerprints=known, project=made) == [False] * 250
    assert all(tools.contains(target, URLS, fingerprints=known))
    told = tools.info(target)
    assert (told.filter.capacity, told.filter.window, told.spider) == (1000, 8 * 3600, "books")
    assert tools.add(target, URLS, fingerprints=known, project=project()) == [True] * 250


# Checking


def test_a_whole_filter_is_good(target):
    assert {one.level for one in tools.check(target)} == {"good"}


def test_damage_is_found(job, tmp_path):
    path = job / "requests.bloom"
    data = bytearray(path.read_bytes())
    data[-50] ^= 1
    path.write_bytes(data)
    before = everything(job)
    (bad,) = (one for one in tools.check(job) if one.level == "bad")
    assert "do not match their checksum" in bad.found
    for look in (tools.info, tools.contains, lambda one: tools.copy(one, tmp_path / "x.bloom")):
        with pytest.raises(StateError, match="do not match their checksum"):
            look(job)
    assert everything(job) == before


def kept(folder):
    return kept_job(
        folder,
        stored=fingerprints(50),
        journal=fingerprints(50, "b"),
        withheld=fingerprints(2),
        urls=URLS[:20],
    )


def test_a_job_of_our_scheduler_is_read_whole(tmp_path):
    job = kept(tmp_path / "kept")
    before = everything(tmp_path)
    assert {one.level for one in tools.check(job)} == {"good", "note"}
    told = tools.info(job)
    assert (told.filter.items, told.waiting, told.journal, told.let_through) == (100, 20, 50, 2)
    assert [one.url for one in tools.queue(job).first] == URLS[19::-1]
    known = fingerprints(50)
    assert tools.contains(job, fingerprints=[*known[1:4], *fingerprints(50, "b")]) == [
        False,
        *[True] * 52,
    ]
    assert everything(tmp_path) == before


DAMAGE = {  # what a disk does to a row, and SQLite does not notice
    "meta": "UPDATE meta SET value = value || '0' WHERE key = 'generation'",
    "buckets": "UPDATE buckets SET size = size - 1",
    "marks": "UPDATE marks SET fingerprints = zeroblob(length(fingerprints))",
    "withheld": "UPDATE withheld SET checksum = checksum + 1",
    "ages": "INSERT INTO ages VALUES (x'61', 1.0, 0)",
    "requests": "DELETE FROM requests WHERE id = (SELECT min(id) FROM requests)",
}


@pytest.mark.parametrize("table", DAMAGE)
def test_damaged_rows_are_found(tmp_path, table):
    job = kept(tmp_path / "kept")
    hurt(job, DAMAGE[table])
    before = everything(tmp_path)
    (bad,) = (one for one in tools.check(job) if one.level == "bad")
    assert "requests.sqlite" in bad.what
    assert "checksum" in bad.found or "count 20" in bad.found
    if table != "requests":  # that row is not read, and all others are good
        for look in (tools.info, tools.contains, lambda one: tools.copy(one, tmp_path / "x")):
            with pytest.raises(StateError, match=r"requests.sqlite: found"):
                look(job)
    assert everything(tmp_path) == before


@pytest.mark.parametrize("damage", ["empty", "cut off", "gone"])
def test_a_damaged_exact_list_is_found(tmp_path, damage):
    """Without it the next run refuses the job, so it may not be called whole."""
    job = kept(tmp_path / "kept")
    state = read_snapshot(job / "requests.bloom").state
    path = job / "requests.exact.1"
    write_exact(path, ExactKey(state.secret, digests=state.digests), fingerprints(50))
    store = Store(job / "requests.sqlite")
    store.note(NOTE, str(Noted(0, [(1, inf)], None)))
    store.commit()
    store.close()
    found = {one.what: one for one in tools.check(job)}
    assert (found["exact list"].level, found["exact list"].found) == (
        "good",
        "whole: 50 fingerprints",
    )
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(b"" if damage == "empty" else path.read_bytes()[:-1])
    (bad,) = (one for one in tools.check(job) if one.level == "bad")
    assert bad.what == "exact list"
    assert str(path) in bad.found


def test_a_request_that_is_damaged_is_counted(tmp_path):
    job = kept(tmp_path / "kept")
    hurt(job, "UPDATE requests SET body = zeroblob(40) WHERE id = (SELECT min(id) FROM requests)")
    (bad,) = (one for one in tools.check(job) if one.level == "bad")
    assert "1 of 20 requests do not match their checksums" in bad.found
    assert len(tools.queue(job, failed=True).failed) == 1


def hurt(job, statement):
    database = sqlite3.connect(job / "requests.sqlite")
    with database:
        database.execute(statement)
    database.close()


def test_a_lost_segment_is_found_and_its_bits_are_missed(job, server, redis_target):
    tools.copy(job, redis_target)
    key = redis_target.partition("#")[2]
    segment = next(iter(server.client().scan_iter(f"{key}:*")))
    server.client().delete(segment)
    found = {one.what: one for one in tools.check(redis_target)}
    assert found["segments"].level == "bad"
    assert "Marks are missing" in next(
        one.advice for one in found.values() if one.what.startswith("slice") and one.advice
    )


def test_leftovers_are_found_and_deleted(job, server, redis_target):
    tools.copy(job, redis_target)
    key = redis_target.partition("#")[2]
    orphan = f"{key}:{{{key}}}:0123456789abcdef:0.0"
    server.client().set(orphan, b"x")
    server.client().set(f"{key}:{{{key}}}:other", b"x")
    found = {one.what: one for one in tools.check(redis_target)}
    assert orphan in found["leftovers"].found
    assert tools.delete_leftovers(redis_target) == 1
    assert not server.client().exists(orphan)
    assert tools.info(redis_target).filter.items == 500
    assert server.client().exists(f"{key}:{{{key}}}:other")


def test_a_filter_of_sets_is_looked_at_marked_and_deleted(server, tmp_path):
    key = next(keys)
    target = f"{server.url}#{key}"
    known = fingerprints(900)
    with RedisFilter.from_url(server.url, key=key, capacity=300, layout="sets") as seen:
        seen.add_many(known)
    assert tools.info(target).filter.items == 900
    assert tools.info(target).layout == "sets"
    assert all(tools.contains(target, fingerprints=known))
    assert tools.forget(target, fingerprints=known[:2]) == [True, True]
    assert tools.contains(target, fingerprints=known[:3]) == [False, False, True]
    assert tools.add(target, fingerprints=known[:1]) == [False]
    assert {one.level for one in tools.check(target)} == {"good"}
    with pytest.raises(SettingError, match="the fingerprint cannot be recovered"):
        tools.copy(target, tmp_path / "job", project=project())
    assert not (tmp_path / "job").exists()
    tools.delete(target)
    assert not [name for name in everything_in(server) if key.encode() in name]


@given(
    sizes=st.lists(st.integers(0, 900), min_size=1, max_size=3),
    capacity=st.integers(1, 3000),
    rate=st.sampled_from([1e-2, 1e-6, 1e-9]),  # the last one needs numbers of 64 bits
    shards=st.integers(1, 2),
    digests=st.booleans(),
)
@settings(
    max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_a_filter_of_sets_makes_a_round_trip(
    tmp_path_factory, server, sizes, capacity, rate, shards, digests
):
    folder, key = tmp_path_factory.mktemp("trip"), next(keys)
    known = list(itertools.chain(*(fingerprints(n, f"{i}") for i, n in enumerate(sizes))))
    target, back, third = (f"{server.url}#{one}" for one in (key, next(keys), next(keys)))
    options = {
        "capacity": capacity, "error_rate": rate, "shards": shards, "layout": "sets",
        "digests": digests,
    }  # fmt: skip
    with RedisFilter.from_url(server.url, key=key, **options) as seen:
        seen.add_many(known)
        count = seen.info().items  # some may be called seen by mistake
        tools.copy(target, folder / "one.bloom")
        forgotten = seen.forget_many(known[:3]).count(True)
    gone = tools.contains(target, fingerprints=known)
    tools.copy(target, folder / "two.bloom")
    tools.copy(folder / "two.bloom", back)
    tools.copy(back, folder / "three.bloom")
    assert (folder / "three.bloom").read_bytes() == (folder / "two.bloom").read_bytes()
    assert bits_of(back) == bits_of(target)
    tools.copy(folder / "one.bloom", third)
    for place in (folder / "one.bloom", third):
        assert all(tools.contains(place, fingerprints=known))
        assert tools.info(place).filter.items == count
        assert tools.info(place).layout == "sets"
        assert {one.level for one in tools.check(place)} == {"good"}
    for place in (folder / "two.bloom", back):
        assert tools.contains(place, fingerprints=known) == gone
        assert count - 2 * forgotten <= tools.info(place).filter.items <= count - forgotten
    with RedisFilter.from_url(server.url, key=back.partition("#")[2], **options) as seen:
        assert seen.contains_many(known) == gone
        seen.add_many(fingerprints(9, "b"))
    tools.delete(back)
    assert [name for name in everything_in(server) if name.startswith(back.encode())] == []


def test_a_lost_bucket_is_found_and_its_numbers_are_missed(server, tmp_path):
    key = next(keys)
    target = f"{server.url}#{key}"
    with RedisFilter.from_url(server.url, key=key, layout="sets") as seen:
        seen.add_many(fingerprints(5000))
    assert {one.level for one in tools.check(target)} == {"good"}
    client = server.client()
    client.delete(next(client.scan_iter(f"{key}:*")))
    found = {one.what: one for one in tools.check(target) if one.level == "bad"}
    assert set(found) == {"numbers", "segments"}
    done = tools.copy(target, tmp_path / "x.bloom")
    assert "Redis has lost 1 parts" in done.warnings[0]
    client.sadd(next(client.scan_iter(f"{key}:*")), "no number")
    before = everything(tmp_path)
    with pytest.raises(StateError, match="found something else than numbers"):
        tools.copy(target, tmp_path / "y.bloom")
    assert everything(tmp_path) == before


def test_what_is_forgotten_stays_so_wherever_the_filter_goes(server, tmp_path, job):
    known, new = fingerprints(9), fingerprints(1, "b")
    assert tools.forget(job, fingerprints=known[:5]) == [True] * 5
    target, back = (f"{server.url}#{next(keys)}" for _ in range(2))
    tools.copy(job, target)
    tools.copy(target, tmp_path / "one.bloom")
    tools.copy(tmp_path / "one.bloom", tmp_path / "other")
    tools.copy(tmp_path / "one.bloom", back)
    for place in (target, tmp_path / "one.bloom", tmp_path / "other", back):
        assert tools.contains(place, fingerprints=known) == [False] * 5 + [True] * 4, place
        assert tools.info(place).let_through == 5
    for place in (target, tmp_path / "other", back):
        assert tools.add(place, fingerprints=[*known, *new]) == [False] * 5 + [True] * 4 + [False]
        assert tools.contains(place, fingerprints=known) == [True] * 9
        assert tools.info(place).let_through == 0
    tools.forget(target, fingerprints=known[:2])
    tools.delete(target)
    key = target.partition("#")[2].encode()
    assert not [name for name in everything_in(server) if name.startswith(key)]


def test_pages_that_are_to_be_let_through_are_no_part_of_a_copied_set(server):
    """As they are beside the requests of `scrapy_bloom.Scheduler`."""
    key, known = next(keys), fingerprints(100)
    with RedisFilter.from_url(server.url, key=key, layout="sets") as seen:
        seen.add_many(known)
    state = tools.target_of(f"{server.url}#{key}").read().shards[0]
    find = state.without(known[:2]).finder()
    assert [*map(find, known)] == [False, False, *[True] * 98]


def test_a_job_with_a_file_of_sets_is_refused(server, tmp_path):
    key = next(keys)
    with RedisFilter.from_url(server.url, key=key, layout="sets") as seen:
        seen.add_many(fingerprints(9))
    (tmp_path / "job").mkdir()
    path = tmp_path / "x.bloom"
    tools.copy(f"{server.url}#{key}", path)
    (tmp_path / "job" / "requests.bloom").write_bytes(path.read_bytes())
    with pytest.raises(StateError, match=r"found a filter of the Redis layout 'sets'.*copy"):
        open_job(tmp_path / "job")
    with pytest.raises(SettingError, match="the fingerprint cannot be recovered"):
        tools.add(path, URLS)


def test_damage_in_a_file_of_sets_is_found(server, tmp_path):
    key = next(keys)
    with RedisFilter.from_url(server.url, key=key, layout="sets") as seen:
        seen.add_many(fingerprints(900))
    path = tmp_path / "x.bloom"
    tools.copy(f"{server.url}#{key}", path)
    whole = path.read_bytes()
    for place in (5, 17, 20, 60, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(StateError, match="expected"):
            tools.info(path)
        path.write_bytes(whole[:place])
        with pytest.raises(StateError, match="expected"):
            tools.info(path)
    path.write_bytes(whole + b"x")
    with pytest.raises(StateError, match="1 bytes too many"):
        tools.info(path)


def test_sets_are_planned():
    sized = tools.plan("10M", layout="sets").sized
    assert 40_000_000 < sized.bytes < 70_000_000
    assert sized.lost < 1
    back = tools.plan(None, 1e-6, sized.bytes, layout="sets").sized
    assert back.items == pytest.approx(10_000_000, rel=0.01)
