"""Leaving hosts alone that ask for it: ``Retry-After`` on 429 and 503."""

from __future__ import annotations

import logging
import time
from contextlib import suppress
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Final

from scrapy import signals
from scrapy.exceptions import NotConfigured

from scrapy_bloom import stats
from scrapy_bloom.crawl.engine import copy_to_go_back, leave_first_slot, scheduler_of, slot_of
from scrapy_bloom.crawl.later import DELAY
from scrapy_bloom.errors import SettingError
from scrapy_bloom.settings import RETRY_AFTER, Settings
from scrapy_bloom.signals import hold_slot
from scrapy_bloom.values import write_span

if TYPE_CHECKING:
    from scrapy import Request, Spider
    from scrapy.crawler import Crawler
    from scrapy.http import Response
    from typing_extensions import Self

logger = logging.getLogger(__name__)

_STATUSES: Final = frozenset({429, 503})

_BUDGET: Final = 3
"""A host that never answers well is left alone for about so many times the longest time, in all."""

_MOST_HOSTS: Final = 10_000
"""How many hosts are remembered that have asked to be left alone and not answered well since."""


class RetryAfter:
    """A downloader middleware that grants the wish of a host to be left alone.

    It is nearer to the downloader than Scrapy's ``RetryMiddleware``: the retry of the request
    waits, and no other request of its download slot is sent meanwhile. The add-on installs it. It
    acts only with ``scrapy_bloom.Scheduler``, in a job directory or in Redis.

    :param longest: seconds that are granted at most.
    """

    def __init__(self, crawler: Crawler, longest: float) -> None:
        self._crawler, self._longest = crawler, longest
        # Until when slots are left alone, by time.monotonic(), and for how many seconds in all
        # since they last answered well.
        self._hosts: dict[str, tuple[float, float]] = {}
        crawler.signals.connect(self._not_retried, signal=signals.response_received)

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Make the middleware of a crawl.

        :raises NotConfigured: if no wish is to be granted.
        """
        try:
            longest = Settings.of(crawler)[RETRY_AFTER]
        except SettingError as error:  # the filter says so when it is opened
            raise NotConfigured from error
        if not longest:
            raise NotConfigured
        return cls(crawler, longest)

    def process_request(
        self,
        request: Request,
        spider: Spider | None = None,  # noqa: ARG002 - Scrapy 2.13 gives it
    ) -> Request | None:
        """Put a request back whose host began to be left alone while a middleware held it up.

        One that awaited ``robots.txt``, say. If it cannot be copied, it is sent.
        """
        held_until = getattr(scheduler_of(self._crawler), "held_until", None)
        if held_until is None or not (until := held_until(request)):  # another scheduler has none
            return None
        return copy_to_go_back(request, **{DELAY: max(0.0, until - time.monotonic())})

    def process_response(
        self,
        request: Request,
        response: Response,
        spider: Spider | None = None,  # noqa: ARG002 - Scrapy 2.13 gives it
    ) -> Response:
        """Look at a response before others do; those out of a cache do not count."""
        if "cached" in response.flags:
            return response
        leave_first_slot(request)  # it may not have passed the scheduler
        if response.status not in _STATUSES:
            if self._hosts:
                self._hosts.pop(slot_of(self._crawler, request), None)
            return response
        wish = read_wish(response.headers.get("Retry-After"), response.headers.get("Date"))
        if wish > 0 and self._hold(request, min(wish, self._longest)):
            request.meta[DELAY] = min(wish, self._longest)  # for the retry, which copies it
        return response

    def _hold(self, request: Request, seconds: float) -> bool:
        """Have the slot of a request left alone, unless its budget is spent; return whether it is.

        Only what makes a hold longer is spent: eight such answers at once are one hold.
        """
        slot, now = slot_of(self._crawler, request), time.monotonic()
        until, spent = self._hosts.get(slot, (0.0, 0.0))
        if spent >= _BUDGET * self._longest:
            return False
        send = self._crawler.signals.send_catch_log
        if not any(done is True for _, done in send(hold_slot, request=request, seconds=seconds)):
            return False  # another scheduler
        if until <= now:
            self._log(slot, seconds)
        longer = max(0.0, now + seconds - max(now, until))
        self._hosts[slot] = max(now + seconds, until), spent + longer
        if len(self._hosts) > _MOST_HOSTS:
            del self._hosts[next(iter(self._hosts))]
        return True

    def _log(self, slot: str, seconds: float) -> None:
        if self._crawler.stats is not None:
            self._crawler.stats.inc_value(stats.HOLDS.key)
        logger.info(
            "%s asks to be left alone: no request is sent to it for %s.",
            slot,
            write_span(round(seconds)),
            extra={"spider": self._crawler.spider},
        )

    def _not_retried(self, request: Request) -> None:
        """Remove the delay of a request whose response goes to the spider: links may inherit it."""
        request.meta.pop(DELAY, None)


def read_wish(header: bytes | None, date: bytes | None = None) -> float:
    """Return the seconds for which a ``Retry-After`` asks, as a number or a date; 0 if for none.

    :param date: the answer's own, by the clock of the host; without one it is now.
    """
    text = (header or b"").decode("latin-1").strip()
    with suppress(Exception):  # whatever it says
        if text.isdecimal():
            return float(text)
        return _read_date(text) - _date_or_now(date)
    return 0.0


def _date_or_now(header: bytes | None) -> float:
    with suppress(Exception):
        return _read_date((header or b"").decode("latin-1"))
    return time.time()


def _read_date(text: str) -> float:
    return parsedate_to_datetime(text).timestamp()
