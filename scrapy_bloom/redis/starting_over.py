"""Running ``start()`` again after a surprise: the server has lost something.

What this worker had taken and not begun is offered again by ``backend``.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from scrapy import Request
from scrapy.utils.defer import deferred_from_coro
from twisted.internet.defer import Deferred, succeed

if TYPE_CHECKING:
    from scrapy import Spider

    from scrapy_bloom.crawl.scrapy.engine import Engine

logger = logging.getLogger(__name__)


class StartRunner:
    """Runs the spider's ``start()`` again.

    :param engine: which has run it for the first time, or is about to.

    Attributes:
        running: whether it is running again.
    """

    def __init__(self, engine: Engine, spider: Spider) -> None:
        self._engine, self._spider = engine, spider
        self.running = self._due = self._stopped = False

    def stop(self) -> None:
        """Run it no further: the crawl ends."""
        self._stopped = True

    def run(self) -> Deferred[None]:
        """Run it again, and once more if that is asked for meanwhile.

        :returns: a Deferred that fires when it has ended, never with an error.
        """
        self._due = True
        if self.running or self._stopped:
            return succeed(None)
        self.running = True
        # As the engine does: what the spider awaits may be asyncio's.
        return deferred_from_coro(self._run_while_due())

    async def _run_while_due(self) -> None:
        try:
            while self._due:
                self._due = False
                await self._run()
        except Exception as error:  # it is the spider's
            logger.error(  # noqa: TRY400 - as Scrapy logs it, without a traceback
                "start() failed when it ran again: %s", error, extra={"spider": self._spider}
            )
        finally:
            self.running = False

    async def _run(self) -> None:
        """Run it as the engine does, but without its items, which were scraped before."""
        requests = 0
        async for each in await self._engine.run_start(self._spider):
            if self._stopped or self._engine.closing:
                return
            if isinstance(each, Request):
                requests += 1
                self._engine.crawl(each)
        if not requests:
            logger.warning(
                "start() yielded nothing when it ran again: a page that only it leads to is lost if"
                " Redis has lost it. Make start() yield the same requests each time.",
                extra={"spider": self._spider},
            )
