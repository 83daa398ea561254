"""Which pages are in flight, and when one is done.

A page is over when the engine is through with its request: after callback or errback, items, a
retry or a redirect. What it led to was enqueued before. It is done when, too, no request is waiting
that came from it and that cannot be stored (one with a lambda as its callback, say): to be made
again, such a request needs its page.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scrapy import Request


class Visit:
    """One request on its way from a queue to being done.

    Attributes:
        row: what it is stored as; None if it could not be stored.
        marks: its marks, which the next run must not believe until it is done.
        parents: the pages that must not be done before it is.
        over: whether the engine is through with it.
        waits_for: how many others it must not be done before.
    """

    __slots__ = ("marks", "over", "parents", "row", "waits_for")

    def __init__(
        self,
        row: int | None,
        marks: tuple[bytes, ...] = (),
        parents: tuple[Visit, ...] = (),
    ) -> None:
        self.row = row
        self.marks = marks
        self.parents = parents
        self.over = False
        self.waits_for = 0


class InFlight:
    """The requests that were taken off the queues and are not done."""

    def __init__(self) -> None:
        self._visits: dict[Request, Visit] = {}
        self._held: dict[Request, deque[Visit]] = {}
        self._done: list[Visit] = []

    def __len__(self) -> int:
        """Return how many requests are in flight."""
        return len(self._visits)

    def start(self, request: Request, row: int) -> None:
        """Learn that the request of a row was taken."""
        self._visits[request] = Visit(row)

    def hold(self, request: Request, marks: tuple[bytes, ...], by: Request | None) -> None:
        """Learn of a request that is waiting and cannot be stored.

        :param marks: its marks.
        :param by: the request of the page that has yielded it. If that is not known, or not in
            flight, all that are in flight wait for it: one of them has led to it.
        """
        parent = None if by is None else self._visits.get(by)
        parents = tuple(self._visits.values()) if parent is None else (parent,)
        for each in parents:
            each.waits_for += 1
        self._held.setdefault(request, deque()).append(Visit(None, marks, parents))

    def start_held(self, request: Request) -> Request:
        """Learn that a request which cannot be stored was taken; return what to send.

        That is a copy if the very same object is in flight already: the engine keeps a set.
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
        """Learn that the engine is through with a request."""
        visit = self._visits.pop(request, None)
        if visit is not None:
            self._end(visit)

    def keep(self, request: Request) -> bool:
        """Never let a request be done: the next run sends it again. Return whether it was one."""
        return self._visits.pop(request, None) is not None

    def settle(self, has: Callable[[Request], bool] | None) -> list[Visit]:
        """Return the visits that are done and were not returned before.

        :param has: tells whether the engine still has a request; None if :meth:`finish` is called.
        """
        if has is not None:
            for request in [request for request in self._visits if not has(request)]:
                self._end(self._visits.pop(request))
        done, self._done = self._done, []
        return done

    def _end(self, visit: Visit) -> None:
        visit.over = True
        stack = [visit]
        while stack:
            visit = stack.pop()
            if visit.waits_for or not visit.over:
                continue
            self._done.append(visit)
            for parent in visit.parents:
                parent.waits_for -= 1
                if not parent.waits_for:
                    stack.append(parent)
