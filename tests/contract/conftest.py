"""What tests of the backends share."""

import pytest
from pytest_twisted import async_yield_fixture
from support.backends import JobDirectory
from support.internals import clock_of_redis
from support.queues import Shared
from support.windows import START


@pytest.fixture
def crawl(server, key):
    """A crawl in Redis whose workers a test leads step by step."""
    with Shared(server, key) as crawl:
        yield crawl


@pytest.fixture
def worker(crawl):
    """The first worker of a crawl in Redis."""
    return crawl.join()


@pytest.fixture
def set_clock(server):
    """Return what sets the clock of the server, which stands still: no worker was there before."""
    with clock_of_redis(server.client(), START) as set_clock:
        yield set_clock


@async_yield_fixture
async def in_job(request):
    """A crawl in a job directory; what is open at the end is closed."""
    place = JobDirectory(request)
    yield place
    await place.close()
