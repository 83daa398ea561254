"""Pausing hosts that ask for it: ``Retry-After`` on 429 and 503, and 429 by itself."""

from __future__ import annotations

import logging
import time
from contextlib import suppress
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from math import inf
from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary

from scrapy import Request, signals
from scrapy.exceptions import NotConfigured

from scrapy_bloom import stats
from scrapy_bloom.crawl.later import DELAY
from scrapy_bloom.crawl.scrapy.crawler import scheduler_of
from scrapy_bloom.crawl.scrapy.downloads import leave_first_slot, slot_of
from scrapy_bloom.crawl.scrapy.engine import copy_to_go_back
from scrapy_bloom.errors import SettingError
from scrapy_bloom.settings import RETRY_AFTER, Settings
from scrapy_bloom.signals import hold_slot
from scrapy_bloom.values import write_span

if TYPE_CHECKING:
    from scrapy import Spider
    from scrapy.crawler import Crawler
    from scrapy.http import Response
    from typing_extensions import Self

logger = logging.getLogger(__name__)

_TOO_MANY: Final = 429

_STATUSES: Final = frozenset({_TOO_MANY, 503})

_FIRST: Final = 10.0
"""Seconds for which a host is paused that does not say for how long; then twice as long."""

_BUDGET: Final = 3
"""A host that never answers well is paused for about so many times the longest time, in all."""

_MOST_HOSTS: Final = 10_000
"""How many hosts are remembered that have asked to be paused and not answered well since."""


@dataclass
class _Host:
    """A host that has asked to be paused, and not answered well since.

    Attributes:
        began: when it did so last, by ``time.monotonic()``.
        until: until when it is paused; likewise.
        spent: for how many seconds it was, in all.
        pause: how long it was paused when it last did not say for how long; 0 if it always did.
    """

    began: float = 0.0
    until: float = 0.0
    spent: float = 0.0
    pause: float = 0.0


class RetryAfterMiddleware:
    """A downloader middleware that honours ``Retry-After``, and 429 without it.

    It is nearer to the downloader than Scrapy's ``RetryMiddleware``: the retry of the request
    waits, and no other request of its download slot is sent meanwhile. The add-on installs it. It
    acts only with ``scrapy_bloom.Scheduler``, in a job directory or in Redis.

    :param longest: the longest pause of a host, in seconds.
    """

    def __init__(self, crawler: Crawler, longest: float) -> None:
        self._crawler, self._longest = crawler, longest
        self._hosts: dict[str, _Host] = {}
        # When requests came by, and the slot in their meta: a middleware nearer to the downloader
        # may set another one, under which none of them can be kept back here or in the queue.
        self._passed: WeakKeyDictionary[Request, tuple[float, str | None]] = WeakKeyDictionary()
        crawler.signals.connect(self._not_retried, signal=signals.response_received)

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Make the middleware of a crawl.

        :raises NotConfigured: if it is switched off.
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
        """Put a request back whose host began to be paused while a middleware delayed it.

        One that awaited ``robots.txt``, say. If it cannot be copied, it is sent.
        """
        self._passed[request] = time.monotonic(), request.meta.get("download_slot")
        paused_until = getattr(scheduler_of(self._crawler), "paused_until", None)
        if paused_until is None or not (
            until := paused_until(request)
        ):  # another scheduler has none
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
                self._record_answer(request)
            return response
        wish = read_wish(response.headers.get("Retry-After"), response.headers.get("Date"))
        if wish <= 0 and response.status != _TOO_MANY:
            return response
        if seconds := self._pause_host(request, response.status, min(wish, self._longest)):
            request.meta[DELAY] = seconds  # for the retry, which copies it
        return response

    def _record_answer(self, request: Request) -> None:
        """Forget what a host has asked for if it answers well what was sent after that."""
        sent, as_passed = self._as_passed(request)
        slot = slot_of(self._crawler, as_passed)
        host = self._hosts.get(slot)
        if host is not None and sent >= host.began:
            del self._hosts[slot]

    def _as_passed(self, request: Request) -> tuple[float, Request]:
        """Return when a request came by, and a request with the slot that it had then.

        If a proxy has got a slot of its own since, that is paused, and the host goes on elsewhere.
        """
        sent, slot = self._passed.get(request, (inf, ""))
        if slot == "" or request.meta.get("download_slot") == slot or "proxy" in request.meta:
            return sent, request
        return sent, Request(request.url, meta={} if slot is None else {"download_slot": slot})

    def _pause_host(self, request: Request, status: int, wish: float) -> float:
        """Have the slot of a request paused, unless its budget is spent; return for how long.

        Only what makes a pause longer is spent: eight such answers at once are one pause.

        :param wish: for how long; 0 if the host does not say.
        """
        now, (sent, as_passed) = time.monotonic(), self._as_passed(request)
        slot = slot_of(self._crawler, as_passed)
        host = self._hosts.get(slot) or _Host()
        if host.spent >= _BUDGET * self._longest:
            return 0.0
        # What was in flight when a pause began says nothing about whether it was long enough.
        pause = host.pause * (2 if sent >= host.until else 1)
        seconds = wish if wish > 0 else min(max(_FIRST, pause), self._longest)
        if not self._send(request, as_passed, seconds):
            return 0.0  # another scheduler
        if host.until <= now:
            host.began = now
            self._log(slot, f"{status} with Retry-After" if wish > 0 else str(status), seconds)
        if wish <= 0:
            host.pause = seconds
        host.spent += max(0.0, now + seconds - max(now, host.until))
        host.until = max(now + seconds, host.until)
        self._hosts[slot] = host
        if len(self._hosts) > _MOST_HOSTS:
            del self._hosts[next(iter(self._hosts))]
        return seconds

    def _send(self, request: Request, as_passed: Request, seconds: float) -> bool:
        """Have the slots of these requests paused; return whether a scheduler does."""
        send, received = self._crawler.signals.send_catch_log, []
        for each in {slot_of(self._crawler, one): one for one in (as_passed, request)}.values():
            received += send(hold_slot, request=each, seconds=seconds)
        return any(done is True for _, done in received)

    def _log(self, slot: str, answer: str, seconds: float) -> None:
        if self._crawler.stats is not None:
            self._crawler.stats.inc_value(stats.PAUSES.key)
        logger.info(
            "%s answered %s: pausing requests to it for %s.",
            slot,
            answer,
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
