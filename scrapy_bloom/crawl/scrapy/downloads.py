"""Download slots: how the downloader paces each, and the queues that Scrapy keeps by slot."""

from __future__ import annotations

import sys
import time
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import urlsplit

from scrapy.pqueues import (
    DownloaderAwarePriorityQueue,
    DownloaderInterface,
    ScrapyPriorityQueue,
)

from scrapy_bloom.crawl.scrapy.crawler import engine_of

if TYPE_CHECKING:
    from scrapy import Request
    from scrapy.crawler import Crawler


class Pace(NamedTuple):
    """How the downloader spaces the requests of a slot.

    Attributes:
        delay: seconds between two requests.
        jitter: by how much each delay varies at random, as a share of it: 0.5 is from half to one
            and a half.
    """

    delay: float
    jitter: float


UNPACED: Final = Pace(0.0, 0.0)


class Downloads:
    """The slots of the downloader: how each is paced.

    :param crawler: the crawl, whose spider is being opened.

    Attributes:
        adjusts: whether AutoThrottle changes the delays of slots.
    """

    def __init__(self, crawler: Crawler) -> None:
        self._settings, self._engine = crawler.settings, engine_of(crawler)
        self._downloader = self._engine.downloader
        module = sys.modules[type(self._downloader).__module__]
        # By which a slot remembers when it last sent a request. Before Scrapy 2.16: the wall's.
        self._clock: Callable[[], float] = getattr(module, "monotonic", time.time)
        # Slots that wait longer: when they have sent the last request, and since when they wait.
        self._waiting: dict[str, tuple[float, float]] = {}
        self.adjusts = self._settings.getbool("AUTOTHROTTLE_ENABLED")

    @property
    def default(self) -> Pace:
        """The pace of slots that have no other."""
        downloader, jitter = self._downloader, _jitter_of(self._downloader)
        if hasattr(downloader, "_delay"):  # from Scrapy 2.18; AutoThrottle sets it
            return Pace(float(downloader._delay), jitter)
        delay = self._settings.getfloat("DOWNLOAD_DELAY")
        spider = getattr(self._engine, "spider", None)
        return Pace(float(getattr(spider, "download_delay", delay)), jitter)

    def is_configured(self, key: str) -> bool:
        """Return whether ``DOWNLOAD_SLOTS`` has a slot."""
        return key in self._downloader.per_slot_settings

    def pace_of(self, key: str) -> Pace:
        """Return the pace of a slot."""
        slot = self._downloader.slots.get(key)
        if slot is not None:
            return Pace(float(slot.delay), _jitter_of(slot))
        default, own = self.default, self._downloader.per_slot_settings.get(key, {})
        jitter = own.get("jitter", own.get("randomize_delay", default.jitter))
        jitter = 0.5 * jitter if isinstance(jitter, bool) else float(jitter)
        return Pace(float(own.get("delay", default.delay)), jitter)

    def has_enough(self, key: str, sent: int) -> bool:
        """Return whether a slot should get no more requests for now.

        What waits in it would not drain: it would get new ones as fast as it sends them.

        :param sent: how many requests of it are in flight.
        """
        slot = self._downloader.slots.get(key)
        return slot is not None and (0 < slot.concurrency <= sent or bool(slot.queue))

    def is_full(self, key: str) -> bool:
        """Return whether a request that reaches a slot waits until one that it has sent ends."""
        slot = self._downloader.slots.get(key)
        return slot is not None and not slot.queue and slot.free_transfer_slots() <= 0

    def set_delay(self, key: str, delay: float, *, is_first: bool = False) -> None:
        """Set the delay of a slot, if the downloader has it.

        :param is_first: whether to leave it if the slot has sent anything.
        """
        slot = self._downloader.slots.get(key)
        if slot is not None and not (is_first and slot.lastseen):
            slot.delay = delay

    def skip_wait(self, key: str, delay: float) -> bool:
        """Let a slot send its next request at once, which has waited for its turn before.

        Not if others wait in it: then it keeps its own pace.

        :param delay: seconds that must have passed since the last one, before jitter.
        :returns: False if it was more recent: nothing is sent at once.
        """
        slot = self._downloader.slots.get(key)
        if slot is None or slot.queue:
            return True
        if self._clock() - slot.lastseen < (1 - _jitter_of(slot)) * min(delay, slot.delay):
            return False
        self._clear(slot)
        return True

    def wait_longer(self, key: str) -> None:
        """Let a slot wait for a whole delay, as if it had just sent a request."""
        slot = self._downloader.slots.get(key)
        if slot is not None:
            last, since = self._waiting.get(key, (0.0, 0.0))
            last = last if slot.lastseen == since else slot.lastseen
            slot.lastseen = self._clock()
            self._waiting[key] = last, slot.lastseen

    def wait_no_longer(self, key: str) -> None:
        """Let a slot know again when it has sent a request."""
        slot, (last, since) = self._downloader.slots.get(key), self._waiting.pop(key, (0.0, 0.0))
        if slot is not None and slot.lastseen == since:
            slot.lastseen = last

    def _clear(self, slot: Any) -> None:
        slot.close()  # cancels its timer
        least = self._clock() - (1 + _jitter_of(slot)) * slot.delay
        slot.lastseen = min(slot.lastseen, least)


def _jitter_of(paced: Any) -> float:
    """Return the jitter of a slot, or that of the downloader."""
    jitter = getattr(paced, "jitter", getattr(paced, "_jitter", None))  # from Scrapy 2.19
    return 0.5 * bool(paced.randomize_delay) if jitter is None else float(jitter)


def slot_of(crawler: Crawler, request: Request) -> str:
    """Return the download slot of a request."""
    throttler: Any = getattr(crawler, "throttler", None)  # scrapy#6931
    if throttler is not None:
        return str(throttler.get_scopes_key(request))
    return str(engine_of(crawler).downloader.get_slot_key(request))


def leave_first_slot(request: Request) -> None:
    """Remove the download slot that Scrapy has left in the meta of a redirected request.

    It is that of the host from which it was redirected: the pace and the pauses of its own host
    would not count.
    """
    meta = request.meta
    if "redirect_urls" in meta and "download_slot" in meta:
        with suppress(Exception):  # they may be anything
            if meta["download_slot"] in {urlsplit(url).hostname for url in meta["redirect_urls"]}:
                del meta["download_slot"]


def has_queues_by_slot(priority_queue: type[Any]) -> bool | None:
    """Return whether a priority queue has separate queues for each download slot.

    None if it is not derived from one of Scrapy's that keep all requests in their queues.
    """
    if issubclass(priority_queue, DownloaderAwarePriorityQueue):
        return True
    return False if issubclass(priority_queue, ScrapyPriorityQueue) else None


class _BySlot(dict[str, Any]):
    """The queues of slots, with their names in order."""

    def __init__(self, queues: dict[str, Any]) -> None:
        super().__init__(queues)
        self.names = sorted(queues)

    def __setitem__(self, slot: str, queue: Any) -> None:
        if slot not in self:
            insort(self.names, slot)
        super().__setitem__(slot, queue)

    def __delitem__(self, slot: str) -> None:
        super().__delitem__(slot)
        del self.names[bisect_left(self.names, slot)]


class _Candidates(DownloaderInterface):
    """Tells Scrapy's priority queue only of slots that it may choose.

    It takes the least busy slot, of equal ones the first whose name follows that of the last one
    it took, else the first of all. So while some slot is idle, the first idle one from either
    place is all that it needs to see. Few are busy: no more than there are requests in flight.

    :param hidden: slots that it may not choose.
    """

    def __init__(self, queue: DownloaderAwarePriorityQueue, hidden: Container[str]) -> None:
        super().__init__(queue.crawler)
        self._queue, self._hidden = queue, hidden

    def stats(self, possible_slots: Iterable[str]) -> list[tuple[int, str]]:
        assert isinstance(possible_slots, _BySlot)
        names = possible_slots.names
        last = getattr(self._queue, "_last_selected_slot", None)  # from Scrapy 2.19
        after = 0 if last is None else bisect_right(names, last)
        idle = {*self._first_idle(names, 0), *self._first_idle(names, after)}
        if idle:
            return [(0, slot) for slot in idle]
        return super().stats(name for name in names if name not in self._hidden)

    def _first_idle(self, names: list[str], start: int) -> Iterator[str]:
        idle = (
            name
            for name in islice(names, start, None)
            if name not in self._hidden and not self._active_downloads(name)
        )
        return islice(idle, 1)


def order_slots(queue: Any, hidden: Container[str]) -> bool:
    """Have Scrapy's own queue by slots choose without a look at each, in the same order.

    With 1,000 slots that was three quarters of what it takes to take a request. A subclass may
    choose in another way, and is left alone.

    :param hidden: slots that it does not choose as long as they are there.
    :returns: whether it does so.
    """
    if is_own := type(queue) is DownloaderAwarePriorityQueue:
        queue.pqueues = _BySlot(queue.pqueues)
        queue._downloader_interface = _Candidates(queue, hidden)
    return is_own
