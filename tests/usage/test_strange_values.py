"""A strange value in a job: commands say which it is and show the rest, or refuse it."""

import sqlite3
from contextlib import closing

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as some
from support.contract import fingerprints
from support.jobs import NAME, kept_job, open_job

from scrapy_bloom import file
from scrapy_bloom.errors import StateError

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
NESTED = "[" * 100_000
"""Python cannot read it."""

quickly = settings(
    deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25
)


def asked(verb, target):
    """Return a command for a target."""
    name, _, rest = verb.partition(" ")
    interval = "--interval 0.1" if name == "top" else ""
    return f"{name} {target} {rest} {interval}"


# In a job

NOTES = (
    *("kind", "identity", "pid", "queue", "runs", "through", "in flight", "seen", "done"),
    *("not kept", "feeds", "holds 3", "spider.state", "secret", "capacity", "window"),
)


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    folder = tmp_path_factory.mktemp("strange") / "kept"
    kept_job(folder, known=fingerprints(9), urls=URLS, holds=[("busy.test", 300)])
    return folder


def put(folder, key, value):
    """Write a note with its checksum, or delete it; return what was there."""
    with closing(sqlite3.connect(folder / NAME, isolation_level=None)) as database:
        before = dict(file.rows(database, "meta")).get(key, ...)
        if value is ...:
            database.execute("DELETE FROM meta WHERE key = ?", (key,))
        else:
            file.put(database, "meta", [(key, value)])
    return before


@quickly
@given(key=some.sampled_from(NOTES), value=STRANGE, verb=some.sampled_from(VERBS))
@example(key="identity", value=NESTED, verb="info")
@example(key="holds 3", value=NESTED, verb="top --once")
@example(key="holds 3", value='{"a": [1e308, 1e308]}', verb="info")
@example(key="done", value="x", verb="info")
@example(key="seen", value=b"x", verb="top --once")
def test_no_note_of_a_job_makes_a_command_fail_with_a_traceback(bloom, kept, key, value, verb):
    before = put(kept, key, value)
    try:
        code, _, errors = bloom(asked(verb, kept))
    finally:
        put(kept, key, before)
    assert code != 2 or str(kept) in errors[0] or key in errors[0]


@pytest.mark.parametrize("key", ["done", "seen", "identity", "holds 3", "runs"])
def test_info_says_which_note_is_strange_and_shows_the_rest(bloom, kept, key):
    before = put(kept, key, 1.5)
    try:
        code, lines, errors = bloom(f"info {kept}")
        assert bloom(f"queue {kept}")[0] == bloom(f"top {kept} --once --interval 0.1")[0] == 0
        with pytest.raises(StateError, match=f"found damage .{key}: 1.5, which must be "):
            open_job(kept, requests=True)
    finally:
        put(kept, key, before)
    assert (code, errors) == (0, [])
    assert any(line.startswith(f"unusable       {key}: found 1.5, expected ") for line in lines)
    assert any(line.split() == ["waiting", "3"] for line in lines)
    open_job(kept, requests=True).close()
