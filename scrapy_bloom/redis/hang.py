"""A callback that never returns costs its page, not the crawl."""

from __future__ import annotations

import logging
import traceback
from math import inf
from typing import TYPE_CHECKING

from scrapy_bloom.crawl.outcomes import Reason
from scrapy_bloom.crawl.scrapy.loop import Pulse
from scrapy_bloom.redis import upkeep

if TYPE_CHECKING:
    from types import FrameType

    from scrapy_bloom.crawl.in_flight import InFlight
    from scrapy_bloom.redis.failed import FailedRows
    from scrapy_bloom.redis.link import Link
    from scrapy_bloom.redis.wire import NewFailedRow
    from scrapy_bloom.redis.worker import Worker

logger = logging.getLogger(__name__)


class Hang:
    """Renews the lease of a worker, or gives it up if its event loop stands still.

    Create it in the thread of the loop.

    :param worker: whose lease it is.
    :param in_flight: knows the page whose callback is running.
    :param failed_rows: says what to list of that.

    Attributes:
        pulse: of the event loop. If that is blocked for :data:`upkeep.BLOCKED`, this worker gives
            up its lease. None if it may be blocked for as long as it likes.
    """

    def __init__(
        self, link: Link, worker: Worker, in_flight: InFlight, failed_rows: FailedRows
    ) -> None:
        self._worker, self._in_flight, self._failed_rows = worker, in_flight, failed_rows
        self.pulse: Pulse | None = Pulse()
        link.start_heartbeats(self.keep_alive)

    def keep_alive(self) -> None:
        """Renew the lease, or give it up: what blocks the event loop may do so for ever.

        The page that blocks it has failed, if that is known, and the others go back. Else each of
        them may be the one.

        :raises BackendError: if there was no answer.
        """
        pulse = self.pulse  # the event loop may take it away meanwhile
        if pulse is None or (seconds := pulse.blocked()) < upkeep.BLOCKED:
            self._worker.keep_alive()
        elif self._worker.renewed > -inf:
            stack = pulse.stack()
            row = self._failed_row(stack)
            self._worker.resign(row)
            by = "an unknown page" if row is None else row.failed.kind
            where = "".join(traceback.format_stack(stack[0])) if stack else ""
            logger.warning(
                "%s: this worker gives up its lease, because its event loop has been blocked for"
                " %.0f s (%s). Other workers fetch what it had. It is blocked here:\n%s",
                *(self._worker.place, seconds, by, where),
            )

    def _failed_row(self, stack: list[FrameType]) -> NewFailedRow | None:
        """Return what to list of the page whose callback is on a stack; None if none is known."""
        found = self._in_flight.running(stack)
        if found is None or found[0].taken is None:  # only in memory: there is no row to list
            return None
        page, place = found
        reason = Reason(f"blocked for {upkeep.BLOCKED / 60:.0f} min in {place}")
        return self._failed_rows.row(page.taken, reason, page.way, page.start)
