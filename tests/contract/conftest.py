"""What tests of the backends share."""

from contextlib import ExitStack

import pytest
from pytest_twisted import async_yield_fixture


@pytest.fixture
def join(server, key):
    """Open one more worker of a shared queue; it leaves at the end."""
    from support.queues import UNPACED, Crawler

    with ExitStack() as workers:

        def join(default=UNPACED, **options):
            return workers.enter_context(Crawler(server.url, key, default=default, **options))

        yield join


@async_yield_fixture
async def in_job(request):
    """A crawl in a job directory; what is open at the end is closed."""
    from support.backends import JobDirectory

    place = JobDirectory(request)
    yield place
    await place.close()
