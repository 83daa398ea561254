"""Brings the requests that a crawl of scrapy-redis has left in Redis into a shared queue.

One worker does so at a time, beside the crawl. A request is taken out of the old queue when ours
has it. So a kill in between loses none: whoever goes on finds it seen, or it is fetched twice.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

from scrapy.utils.request import request_from_dict

from scrapy_bloom import stats
from scrapy_bloom.frontier.caller import Call
from scrapy_bloom.frontier.requests import encode
from scrapy_bloom.redis.queue.base import Claim, Queue

if TYPE_CHECKING:
    from scrapy import Request, Spider
    from scrapy.statscollectors import StatsCollector

logger = logging.getLogger(__name__)

AT_ONCE: Final = 100
"""Requests that are brought in one step; reading them takes some 20 ms of the event loop."""

_ASKING: Final = 1.0  # seconds between two looks whether the worker that does it still lives
_TELLING: Final = 10.0  # seconds between two lines in the log

FILTERED, UNFILTERED = "filtered", "unfiltered"


class OldQueue(Protocol):
    """The queue that the other crawl has left. Every method may raise :class:`BackendError`."""

    key: str

    def size(self) -> int:
        """Return how many requests there are."""

    def oldest(self, count: int, after: int) -> list[bytes]:
        """Return the first requests after some others."""

    def remove(self, requests: Sequence[bytes]) -> None:
        """Take requests out."""

    def close(self) -> None:
        """Close the connection."""


class Bring(Protocol):
    """Lets a request wait for its verdict; returns how many have come before it, and itself."""

    def __call__(self, request: Request, body: bytes, *, filtered: bool) -> int:
        """Let it wait; without a fingerprint if it is not to be filtered."""


class ComingOver:
    """Brings requests from an old queue into ours, some at a time.

    If the filter had marks of an earlier run, they are those of the old queue's requests, made by
    our filter beside scrapy-redis's scheduler. Then no request is filtered on its way: each would
    be found seen.

    :param old: the old queue.
    :param loads: reads one of its requests, as a dict.
    :param queue: where they go.
    :param dumps: writes a request, as a dict.
    :param bring: lets a request wait.
    :param fresh: whether the filter was empty when this worker opened it.
    :raises BloomError: if the server cannot be used.

    Attributes:
        over: whether nothing is left to be brought.
        under_way: whether this worker is bringing requests.
    """

    def __init__(  # noqa: PLR0913 - the parts of a crawl
        self,
        old: OldQueue,
        queue: Queue,
        spider: Spider,
        collector: StatsCollector,
        *,
        loads: Callable[[bytes], dict[str, Any]],
        dumps: Callable[[dict[str, Any]], bytes],
        bring: Bring,
        fresh: bool,
    ) -> None:
        self._old = old
        self._queue = queue
        self._spider = spider
        self._stats = collector
        self._loads = loads
        self._dumps = dumps
        self._bring = bring
        self._word = FILTERED if fresh else UNFILTERED
        self._total = old.size()
        self._brought = self._left_out = 0
        self._batch: list[bytes] = []  # read, and not removed from the old queue yet
        self._number = 0  # how many requests must have their verdict before that
        self._ask_at = self._tell_at = 0.0
        self.over = self.under_way = self._empty = False
        self._claimed(queue.claim(old.key, self._word))

    def call(self, settled: int, now: float, *, closing: bool, full: bool) -> Call | None:
        """Return the call that is due; None if none is.

        :param settled: how many requests, from the first one on, have their verdict.
        :param closing: whether no more requests may be brought.
        :param full: whether too many wait for their verdict.
        """
        if self._batch:
            batch = self._batch
            answered = self._number <= settled
            return Call(lambda: self._old.remove(batch), self._removed) if answered else None
        if self.over or closing:
            return None
        if not self.under_way:
            return Call(self._ask, self._asked) if now >= self._ask_at else None
        if self._empty:
            return Call(self._end, self._ended)
        return None if full else Call(self._read_some, self._read)

    def due(self, now: float) -> float:
        """Return when the next call is due; never, if that takes more than time."""
        if self.over or self._batch:
            return math.inf
        return now if self.under_way else self._ask_at

    def close(self) -> None:
        """Close the connection to the old queue."""
        self._old.close()

    def _ask(self) -> tuple[int, Claim | None]:
        left = self._old.size()
        return left, self._queue.claim(self._old.key, self._word) if left else None

    def _asked(self, answer: tuple[int, Claim | None]) -> None:
        left, claim = answer
        if claim is None:
            self.over = True
        else:
            self._total = left
            self._claimed(claim)

    def _claimed(self, claim: Claim) -> None:
        now = time.monotonic()
        self._ask_at = now + _ASKING
        if claim.granted:
            self._word = claim.word
            self.under_way = True
            self._tell_at = now + _TELLING
            text = f"{self._total:,} requests of scrapy-redis wait there: they are taken over."
            self._log(logging.INFO, text)

    def _read(self, found: list[bytes]) -> None:
        self._empty = not found
        brought = []
        for payload in found:
            try:
                request = request_from_dict(self._loads(payload), spider=self._spider)
                body = encode(request, self._spider, self._dumps)
            except Exception as error:  # noqa: BLE001 - its parts may raise anything
                self._leave_out(error)
                continue
            filtered = self._word == FILTERED and not request.dont_filter
            self._number = self._bring(request, body, filtered=filtered)
            brought.append(payload)
        self._batch = brought

    def _removed(self, _: object) -> None:
        self._brought += len(self._batch)
        self._stats.inc_value(stats.IMPORTED.key, len(self._batch))
        self._batch = []
        if time.monotonic() >= self._tell_at:
            self._tell_at = time.monotonic() + _TELLING
            text = f"{self._brought:,} of {self._total:,} requests are taken over."
            self._log(logging.INFO, text)

    def _leave_out(self, error: Exception) -> None:
        if not self._left_out:
            self._log(
                logging.ERROR,
                f"a request cannot be read ({error!r}), and stays there. Its page is not fetched,"
                " nor any page that only it leads to. Is SCHEDULER_SERIALIZER as it was, and has"
                " the spider all its callbacks?",
            )
        self._left_out += 1

    def _read_some(self) -> list[bytes]:
        return self._old.oldest(AT_ONCE, self._left_out)

    def _end(self) -> None:
        self._queue.claim(self._old.key, self._word, over=True)

    def _ended(self, _: object) -> None:
        self.over, self.under_way = True, False
        text = f"{self._brought:,} requests are taken over"
        if self._left_out:
            self._log(logging.WARNING, f"{text}, {self._left_out:,} cannot be read and stay there.")
        else:
            self._log(logging.INFO, f"{text}, which is all of them.")

    def _log(self, level: int, text: str) -> None:
        logger.log(level, "Key %s: %s", self._old.key, text, extra={"spider": self._spider})
