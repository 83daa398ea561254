"""A strange value in a job or in Redis is refused and named; one strange request is skipped."""

import pickle
import sqlite3
import struct
from contextlib import closing, contextmanager

import pytest
import redis
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as some
from scrapy import Request
from support.contract import fingerprints
from support.jobs import NAME, SPIDER, kept_job, open_job, packed
from support.queues import Crawler, exchange
from testbed.localredis import keys

from scrapy_bloom import file
from scrapy_bloom.crawl.failed import FailedPage
from scrapy_bloom.errors import StateError
from scrapy_bloom.redis.client import beginning
from scrapy_bloom.redis.member import Entry
from scrapy_bloom.redis.wire import NewFailedRow

pytestmark = pytest.mark.server

URLS = [f"http://example.com/{number}" for number in range(3)]
VERBS = ("info", "info --json", "queue", "queue --failed", f"why {URLS[0]}", "top --once")

NUMBERS = -5, 10**18, 0, 1e308, float("inf"), float("-inf")
TEXTS = "x", "{}", "[]", "\0", '{"a": 1}', '{"a": [1, "x"]}', '{"a": [1e308, 1e308]}'
STRANGE = some.one_of(
    some.none(),
    some.sampled_from(NUMBERS),
    some.sampled_from(TEXTS),
    some.integers(-(2**63), 2**63 - 1),
    some.floats(allow_nan=False),
    some.text(max_size=20).filter(lambda text: not any("\ud800" <= c <= "\udfff" for c in text)),
    some.binary(max_size=20),
)
IN_REDIS = b"x", b"-5", b"1e308", b"inf", b"nan", b"1 2 3", b"9" * 400
NESTED = "[" * 100_000
"""Python cannot read it."""

quickly = settings(
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    max_examples=25,
)


def asked(verb, target):
    """Return a command for a target."""
    name, _, rest = verb.partition(" ")
    interval = "--interval 0.1" if name == "top" else ""
    return f"{name} {target} {rest} {interval}"


# In a job

NOTES = (
    *("kind", "identity", "pid", "queue", "runs", "in flight", "seen", "done"),
    *("not kept", "due", "paused 3", "spider.state", "secret", "capacity", "window"),
)


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    folder = tmp_path_factory.mktemp("strange") / "kept"
    kept_job(folder, known=fingerprints(9), urls=URLS, pauses=[("busy.test", 300)])
    return folder


@contextmanager
def noted(folder, key, value):
    """Let a job have a strange note, with its checksum."""
    with closing(sqlite3.connect(folder / NAME, isolation_level=None)) as database:
        before = [(name, held) for name, held in file.rows(database, "meta") if name == key]
        file.put(database, "meta", [(key, value)])
        try:
            yield
        finally:
            database.execute("DELETE FROM meta WHERE key = ?", (key,))
            file.put(database, "meta", before)


@quickly
@given(key=some.sampled_from(NOTES), value=STRANGE, verb=some.sampled_from(VERBS))
@example(key="identity", value=NESTED, verb="info")
@example(key="paused 3", value=NESTED, verb="top --once")
@example(key="paused 3", value='{"a": [1e308, 1e308]}', verb="info")
@example(key="done", value="x", verb="info")
@example(key="seen", value=b"x", verb="top --once")
def test_no_note_of_a_job_makes_a_command_fail_with_a_traceback(bloom, kept, key, value, verb):
    with noted(kept, key, value):
        code, _, errors = bloom(asked(verb, kept))
    assert code != 2 or str(kept) in errors[0] or key in errors[0]


@pytest.mark.parametrize("key", ["done", "seen", "identity", "paused 3", "runs"])
def test_a_job_with_a_strange_note_is_refused_with_one_error_that_names_it(bloom, kept, key):
    with noted(kept, key, 1.5):
        told = [bloom(asked(verb, kept)) for verb in VERBS]
        with pytest.raises(StateError, match=f"found damage .{key}: 1.5, which must be "):
            open_job(kept, requests=True)
    assert {(code, *lines) for code, lines, _ in told} == {(2,)}
    damage = f"found damage ({key}: 1.5, which must be "
    assert {sum(damage in error for error in errors) for *_, errors in told} == {1}
    open_job(kept, requests=True).close()


ROWS = {
    "a reason": ("failed", 2, b"x"),
    "a date": ("failed", 4, "x"),
    "marks": ("failed", 7, NESTED),
    "a queue": ("queues", 1, b"x"),
}


@pytest.mark.parametrize("name", ROWS)
def test_no_row_of_a_job_makes_a_command_fail_with_a_traceback(bloom, tmp_path, name):
    table, column, value = ROWS[name]
    kept_job(tmp_path / "kept", urls=URLS)
    job = open_job(tmp_path / "kept", requests=True)
    row = job.store.push(job.store.queue("0", None), b"")
    job.store.fail(row, FailedPage("503", "", 1.7e9, 1, "", unparsed=False, way=(), body=b"x"))
    job.close()
    with closing(sqlite3.connect(tmp_path / "kept" / NAME, isolation_level=None)) as database:
        ((*values, _),) = database.execute(f"SELECT * FROM {table}")
        values[column] = value
        file.put(database, table, [values])
        file.put(database, "counters", [(2, file.tally(database), 0, 0, 0)])
    told = {verb: bloom(asked(verb, tmp_path / "kept")) for verb in VERBS}
    if table == "queues":
        assert "found damage (queue 1: b'x' is no name)" in told["queue"][2][0]
    else:
        assert told["queue"][0] == 0
        assert any("unreadable" in line for line in told["queue --failed"][1])


def nested(depth):
    """Return a pickled request with a key of so many tuples, each in the next."""
    fields = pickle.dumps({"url": URLS[0], "meta": {1.5: 0}}, protocol=2)
    key = pickle.BINFLOAT + struct.pack(">d", 1.5)
    assert fields.count(key) == 1
    return fields.replace(key, pickle.EMPTY_TUPLE + pickle.TUPLE1 * depth)


def test_a_key_that_is_nested_too_deeply_is_shown_as_unreadable(bloom, tmp_path):
    """Python's own hash of it ends the process."""
    kept_job(tmp_path / "deep", urls=URLS[:1], bodies=[nested(1_000_000)])
    code, lines, _ = bloom(f"queue {tmp_path / 'deep'} --peek 2")
    assert code == 0
    assert any("1,000,000 tuples, expected at most 10,000" in line for line in lines)
    assert any(URLS[0] in line for line in lines)
    assert bloom(f"why {tmp_path / 'deep'} {URLS[0]}")[0] in (0, 1)


@pytest.fixture(scope="module")
def shared(server):
    """A crawl with requests in each state; its target, and all its keys that have fields."""
    key = next(keys)
    options = {"order": "lifo", "spider": SPIDER, "project": "shop"}
    with Crawler(server.url, key, **options) as worker:
        for url in URLS:
            worker.queue.offer(Entry("p", None, packed(Request(url))))
        taken = exchange(worker.queue, 2, look=True, default=worker.default, through=False).taken
        why = FailedPage("503", "", 1.7e9, 1, "", unparsed=False, way=(), body=taken[0].body)
        worker.queue.fail(taken[0], NewFailedRow(taken[0].id, b"", why, taken[0], ()))
        exchange(worker.queue, 0, default=worker.default, through=False)
    with closing(redis.Redis.from_url(server.url)) as client:
        base = beginning(key)
        names = [key, *(base + name for name in ("failed", "reasons", "bodies"))]
        yield f"{server.url}#{key}", client, {name: client.hgetall(name) for name in names}


@contextmanager
def held(shared, name, fields):
    """Let fields of a hash be strange."""
    _, client, hashes = shared
    client.hset(name, mapping=fields)
    try:
        yield
    finally:
        client.hdel(name, *fields)
        client.hset(name, mapping=hashes[name])


@pytest.mark.redis
@quickly
@given(
    at=some.integers(0, 100),
    value=some.one_of(some.binary(max_size=60), some.sampled_from(IN_REDIS)),
    verb=some.sampled_from(VERBS),
)
@example(at=0, value=NESTED.encode(), verb="info")
def test_no_field_in_redis_makes_a_command_fail_with_a_traceback(bloom, shared, at, value, verb):
    target, _, hashes = shared
    fields = [(name, field) for name, found in hashes.items() for field in found]
    name, field = fields[at % len(fields)]
    with held(shared, name, {field: value}):
        code, _, errors = bloom(asked(verb, target))
    assert code != 2 or "Redis at" in errors[0]


@pytest.mark.redis
@pytest.mark.parametrize("name", ["failed", "bodies"])
def test_a_strange_request_in_redis_is_skipped_and_named(bloom, shared, name):
    target, _, hashes = shared
    (key,) = (key for key in hashes if key.endswith(name))
    field = next(iter(hashes[key]))
    with held(shared, key, {field: b"x"}):
        told = [bloom(f"{verb} {target}") for verb in ("info", "queue", "queue --failed")]
        why = bloom(f"why {target} {' '.join(URLS)}")
    assert {code for code, _, _ in (*told, why)} <= {0, 1}
    assert f"skipped request {field.hex()}: " in "".join(text for *_, said in told for text in said)
    assert len(why[1]) == 1 + len(URLS)


HEADER = "slices", "plan", "epoch", "waiting", "seq", "last_contact", "w:x"
DAMAGE = {field: rf"found a damaged header ({field}: b'\xff'; " for field in HEADER}
NO_NUMBER = {
    "skew": r"found skew: b'\xff', expected a number",
    "503": r"found reasons, 503: b'\xff', expected a number",
}


@pytest.mark.redis
@pytest.mark.parametrize("field", [*DAMAGE, *NO_NUMBER])
def test_a_crawl_with_a_strange_number_is_refused_with_one_error_that_names_it(
    bloom, shared, field
):
    target, _, hashes = shared
    name = next(name for name in hashes if name.endswith("reasons") == (field == "503"))
    with held(shared, name, {field: b"\xff"}):
        told = [bloom(asked(verb, target)) for verb in ("info", "info --json", "queue", "top")]
        if field in DAMAGE:
            told += [bloom(f"{verb} {target} {URLS[0]}") for verb in ("why", "forget")]
            told.append(bloom(f"delete {target} --yes"))
            assert "scrapy bloom delete'" not in "".join(told[-1][2])  # it has refused that itself
    assert {(code, *lines) for code, lines, _ in told} == {(2,)}
    damage = {**DAMAGE, **NO_NUMBER}[field]
    assert {sum(damage in error for error in errors) for *_, errors in told} == {1}
