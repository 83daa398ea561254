"""What holds for all tests."""

import asyncio
import atexit
import gc
import inspect
import io
import os
import shlex
import sys
import time
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, given, settings, strategies
from pytest_twisted import ensureDeferred
from support.clusters import LocalCluster
from testbed.localredis import LocalRedis, keys

# Scrapy notes each crawl below the user's home. A test must not, and may run without a home.
_state = TemporaryDirectory(prefix="scrapy-bloom-tests-")
atexit.register(_state.cleanup)
os.environ["XDG_STATE_HOME"] = _state.name

# Twisted 25 takes the current event loop, which Python 3.14 no longer makes; later ones make one.
_loop = asyncio.new_event_loop()
atexit.register(_loop.close)
asyncio.set_event_loop(_loop)

# A machine that does other things, too, is slow at times, and no test is about that. The examples
# of each day are the same each time: what fails was changed. The weekly ones look for news.
patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
for name, examples in {"patient": 50, "quick": 10, "thorough": 500}.items():  # quick: make check
    options = {"max_examples": examples, "derandomize": name != "thorough"}
    settings.register_profile(name, patient, **options)
settings.load_profile("patient")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Let coroutines be tests; mark those with a fixture that starts a server or serves a site.

    Those that do so themselves say it by `pytestmark`.
    """
    for item in items:
        if inspect.iscoroutinefunction(item.obj):
            ensureDeferred(item.function)
        asked = {*item.fixturenames}
        if asked & {"server", "own_server", "cluster"}:
            item.add_marker("redis")
            item.add_marker("server")
        if "site" in asked:
            item.add_marker("server")
    if int(os.environ.get("KILLS", "1")) == 1:
        kills = [item for item in items if item.get_closest_marker("kills")]
        items[:] = [item for item in items if item not in kills]
        config.hook.pytest_deselected(items=kills)


@pytest.fixture
def job(tmp_path):
    """The path of a job directory."""
    return tmp_path / "job"


@pytest.fixture
def clock(monkeypatch):
    """The time of day, which a test sets."""
    now = [time.time()]
    monkeypatch.setattr(time, "time", lambda: now[0])
    return now


@pytest.fixture
def place(request):
    """The settings of a crawl, for a place of its filter and its requests: see `at`."""
    from support.crawling import settings_at

    return settings_at(request.param, request)


@pytest.fixture
def project(tmp_path):
    """A Scrapy project in an empty folder; what it has started is cleared away after the test."""
    from support.crawling import Project

    with Project(tmp_path) as project:
        yield project


@pytest.fixture
def bloom(capsys, monkeypatch):
    """Return what runs a sub-command in this process: exit code, lines, lines of errors."""
    from scrapy.settings import Settings

    from scrapy_bloom.commands.runner import call

    def bloom(line, stdin=b"", **settings):
        name, *args = shlex.split(line)
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        # A busy machine is no outage.
        code = call(name, args, Settings({"BLOOM_REDIS_TIMEOUT": 10, **settings}))
        out, err = capsys.readouterr()
        return code, out.splitlines(), err.splitlines()

    return bloom


# Redis for the tests


@pytest.fixture(scope="module")
def short_leases():
    """Leases are over sooner for all tests of a file, also in the processes that they start."""
    from support import short_leases

    with pytest.MonkeyPatch.context() as patch:
        short_leases.shorten(patch)
        yield


@pytest.fixture(scope="module")
def server():
    """A Redis server for all tests of a file."""
    with LocalRedis() as server:
        yield server


@pytest.fixture
def own_server():
    """A Redis server for one test."""
    with LocalRedis() as server:
        yield server


@pytest.fixture(scope="module")
def cluster():
    """A Redis Cluster of three nodes for all tests of a file."""
    with LocalCluster() as cluster:
        yield cluster


@pytest.fixture
def key():
    """A key that no other test uses."""
    return next(keys)


@pytest.hookimpl(trylast=True)
def pytest_collection_finish():
    """Keep what was imported out of each walk of the garbage collector: it stays anyhow.

    Before that, Hypothesis registers its random numbers: it looks for what holds them, and does not
    see what is kept out.
    """
    given(strategies.none())(lambda _: None)()
    gc.collect()
    gc.freeze()
