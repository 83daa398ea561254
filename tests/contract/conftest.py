"""What tests of the backends share."""

from contextlib import ExitStack

import pytest


@pytest.fixture
def join(server, key):
    """Open one more worker of a shared queue; it leaves at the end."""
    from support.queues import UNPACED, Crawler

    with ExitStack() as workers:

        def join(default=UNPACED, **options):
            return workers.enter_context(Crawler(server.url, key, default=default, **options))

        yield join
