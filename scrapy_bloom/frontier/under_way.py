"""Which requests are under way, and when one is done.

A request is over when the engine is through with it: after its callback or errback, its items, a
retry or a redirect. What it led to was scheduled before. It is done when, too, no request waits
that came from it and that cannot be stored: to be made again, such a request needs its page.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from scrapy.core.scheduler import BaseScheduler

from scrapy_bloom.errors import BackendError

if TYPE_CHECKING:
    from scrapy import Request

Alive = Callable[["Request"], bool]
"""Tells whether the engine still has a request."""


Row = TypeVar("Row")
Done_contra = TypeVar("Done_contra", contravariant=True)


class Keeper(Protocol[Done_contra]):
    """Keeps requests until they are done."""

    def done(self, row: Done_contra, /) -> None:
        """Let go of a request."""

    def mark(self, marks: tuple[bytes, ...], /) -> None:
        """Keep the marks of a request that was never kept, and is done."""

    def withhold(self, marks: tuple[bytes, ...], /) -> None:
        """Keep these marks for later."""


class Visit(Generic[Row]):
    """One request on its way from the queue to being done.

    Attributes:
        row: what it is kept as; None if it could not be stored.
        marks: its marks, if they are withheld until it is done.
        parents: those that must not be done before it is.
        over: whether the engine is through with it.
        waits_for: how many others it must not be done before.
    """

    __slots__ = ("marks", "over", "parents", "row", "waits_for")

    def __init__(
        self,
        row: Row | None,
        marks: tuple[bytes, ...] = (),
        parents: tuple[Visit[Row], ...] = (),
    ) -> None:
        self.row = row
        self.marks = marks
        self.parents = parents
        self.over = False
        self.waits_for = 0


class UnderWay(Generic[Row]):
    """The requests that were taken off the queues and are not done.

    :param keeper: is told when a request is done.
    :param alive: tells whether the engine still has a request; None if it calls :meth:`finish`.
    """

    def __init__(self, keeper: Keeper[Row], alive: Alive | None) -> None:
        self._keeper = keeper
        self._alive = alive
        self._visits: dict[Request, Visit[Row]] = {}
        self._held: dict[Request, deque[Visit[Row]]] = {}

    def __len__(self) -> int:
        return len(self._visits)

    @property
    def held(self) -> int:
        """How many requests wait that cannot be stored."""
        return sum(map(len, self._held.values()))

    def start(self, request: Request, row: Row) -> None:
        """Take note that the request of a row was taken."""
        self._visits[request] = Visit(row)

    def hold(self, request: Request, marks: tuple[bytes, ...]) -> Visit[Row]:
        """Take note of a request that waits and cannot be stored.

        One of the requests under way has led to it, and nobody says which: all of them wait for it.
        """
        self._keeper.withhold(marks)
        alive = self._alive
        parents = tuple(
            visit for other, visit in self._visits.items() if alive is None or alive(other)
        )
        for parent in parents:
            parent.waits_for += 1
        visit: Visit[Row] = Visit(None, marks, parents)
        self._held.setdefault(request, deque()).append(visit)
        return visit

    def drop_held(self, request: Request, visit: Visit[Row]) -> None:
        """Take note that a request which cannot be stored need not be taken."""
        waiting = self._held[request]
        waiting.remove(visit)
        if not waiting:
            del self._held[request]
        self._end(visit)

    def start_held(self, request: Request) -> Request:
        """Take note that a request which cannot be stored was taken; return what to send.

        That is a copy if the very same object is under way already: the engine keeps a set.
        """
        waiting = self._held[request]
        visit = waiting.popleft()
        if not waiting:
            del self._held[request]
        if request in self._visits:
            request = request.copy()
        self._visits[request] = visit
        return request

    def finish(self, request: Request) -> None:
        """Take note that the engine is through with a request."""
        visit = self._visits.pop(request, None)
        if visit is not None:
            self._end(visit)

    def keep(self, request: Request) -> bool:
        """Never let a request be done: the next run sends it again. Return whether it was one."""
        return self._visits.pop(request, None) is not None

    def settle(self) -> None:
        """Find out which requests the engine is through with."""
        alive = self._alive
        if alive is None:
            return
        for request in [request for request in self._visits if not alive(request)]:
            self._end(self._visits.pop(request))

    def _end(self, visit: Visit[Row]) -> None:
        visit.over = True
        stack = [visit]
        while stack:
            visit = stack.pop()
            if visit.waits_for or not visit.over:
                continue
            if visit.row is not None:
                self._keeper.done(visit.row)
            self._keeper.mark(visit.marks)
            for parent in visit.parents:
                parent.waits_for -= 1
                if not parent.waits_for:
                    stack.append(parent)


def watch_engine(engine: Any, version: str) -> Alive | None:
    """Return what tells whether the engine still has a request; None if it says so by itself.

    :param version: Scrapy's, for the error.
    :raises BackendError: if this Scrapy does not show it.
    """
    if hasattr(BaseScheduler, "finish_request"):
        return None
    in_progress = getattr(getattr(engine, "_slot", None), "inprogress", None)
    if not isinstance(in_progress, set):
        raise BackendError(
            f"SCHEDULER = 'scrapy_bloom.Scheduler' cannot see in Scrapy {version} which requests"
            f" are done. Use a version that it was tested with (the docs list them), or another"
            f" scheduler."
        )
    scraper = engine.scraper

    def alive(request: Request) -> bool:
        # A callback that downloads its own request again takes it out of the first set early.
        return request in in_progress or request in _being_parsed(scraper)

    return alive


def _being_parsed(scraper: Any) -> Container[Request]:
    active: object = getattr(scraper.slot, "active", None)  # no slot before the spider is open
    return active if isinstance(active, set) else ()
