"""How a page ends: a table of what it is, and of what it becomes by what happens to it.

Whoever sees something happen records it with :meth:`Page.record`; :mod:`.in_flight` says which
event it is. As what a page is listed also depends on earlier runs, see :mod:`.failed`.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import Any, Final

from scrapy_bloom.crawl.outcomes import Reason


class State(IntEnum):
    """What a page is; once nothing is left to wait for, how it ends."""

    SENT = 0
    """Nothing is known of it. Done: the engine did not take it."""
    ANSWERED = 1
    """No callback has its response, which is no failure: a 404, or it was ignored. Unparsed."""
    BAD = 2
    """Its download has failed, and its errback may yet deal with that. Failed."""
    REACHED = 3
    """A callback has its response, or it has not changed. Done."""
    FAILED = 4
    """Whatever comes, it has failed. The next run fetches it again."""
    REPLACED = 5
    """Another request stands for it: a retry, or where it was redirected. Counts as nothing."""
    REDIRECTED = 6
    """It was redirected to a page that was seen. Unparsed."""
    UNFINISHED = 7
    """It stays stored, as if it had never been sent: it never ends, nor does what waits for it."""


class Event(IntEnum):
    """What happens to a page."""

    ANSWERED = 0
    """The downloader has answered, and that is no failure."""
    BROKEN = 1
    """The downloader has answered, and that is a failure unless the spider deals with it."""
    REACHED = 2
    """Its callback gets the response."""
    UNREACHED = 3
    """An error keeps its callback from getting the response."""
    YIELDED = 4
    """Its callback or errback yields an item, or a request that is new."""
    FAILED = 5
    """Its callback raises, a pipeline fails on its item, what it waits for fails, or a request that
    it yields cannot be enqueued."""
    REPLACED = 6
    """What a middleware has made of it is stored, or waits in memory."""
    SEEN = 7
    """What a middleware has made of it was seen."""
    UNFINISHED = 8
    """It closed the spider before it gave an item, or failed during closing, and nothing dealt with
    that."""


_TABLE: Final = """
           ANSWERED   BROKEN     REACHED    UNREACHED  YIELDED    FAILED     REPLACED   SEEN       UNFINISHED
SENT       ANSWERED   BAD        REACHED    SENT       SENT       FAILED     REPLACED   REDIRECTED UNFINISHED
ANSWERED   ANSWERED   BAD        REACHED    BAD        REACHED    FAILED     REPLACED   REDIRECTED UNFINISHED
BAD        BAD        BAD        REACHED    BAD        REACHED    FAILED     BAD        BAD        UNFINISHED
REACHED    REACHED    REACHED    REACHED    REACHED    REACHED    FAILED     REPLACED   REDIRECTED UNFINISHED
FAILED     FAILED     FAILED     FAILED     FAILED     FAILED     FAILED     FAILED     FAILED     UNFINISHED
REPLACED   REPLACED   REPLACED   REPLACED   REPLACED   REPLACED   FAILED     REPLACED   REPLACED   UNFINISHED
REDIRECTED REDIRECTED REDIRECTED REDIRECTED REDIRECTED REDIRECTED FAILED     REPLACED   REDIRECTED UNFINISHED
UNFINISHED UNFINISHED UNFINISHED UNFINISHED UNFINISHED UNFINISHED UNFINISHED UNFINISHED UNFINISHED UNFINISHED
"""  # noqa: E501 - a table

_ROWS: Final = [row.split() for row in _TABLE.strip().splitlines()]
assert [*_ROWS[0]] == [*Event.__members__]
assert [row[0] for row in _ROWS[1:]] == [*State.__members__]
BECOMES: Final = tuple(tuple(State[name] for name in row[1:]) for row in _ROWS[1:])
"""What a page becomes, by what it is and what happens."""

# A global is faster to look up than an enum member.
BAD, REACHED, _FAILED, _UNFINISHED = State.BAD, State.REACHED, State.FAILED, State.UNFINISHED
_ANSWERED, _REDIRECTED = State.ANSWERED, State.REDIRECTED


class Page:
    """One request on its way from a queue to its end.

    It ends once the engine is finished with it, all that it led to is judged, and what it waits for
    has ended: a request that is only in memory, as only the page can yield that again. Its row goes
    once its items are handed over, too.

    Attributes:
        taken: what the backend has handed out; None if it is only in memory.
        mark: its own, if that is withheld from the next run, as it is only in memory.
        way: the marks of where redirects led: they are forgotten when it is to come again.
        roots: of one in memory, the stored pages that led to it, perhaps through others.
        awaits: how many must end first: the engine's work on it, and all else that it waits for.
        waiters: the pages that cannot end before it has, and fail with it.
        has_items: whether its callback or errback has yielded items.
        start: identifies the start request that it is, or was made of, if that is not filtered.
        state: what it is.
        reason: why it has failed, the first one, or is unparsed; None if it is neither.
    """

    __slots__ = (
        *("awaits", "has_items", "mark", "reason", "roots", "start", "state", "taken", "waiters"),
        "way",
    )

    def __init__(
        self, taken: Any = None, mark: bytes | None = None, waiters: Iterable[Page] = ()
    ) -> None:
        self.taken, self.mark, self.waiters = taken, mark, [*waiters]
        self.awaits, self.state = 1, State.SENT
        self.reason: Reason | None = None
        self.start, self.has_items = b"", False
        self.way: tuple[bytes, ...] = ()
        self.roots = frozenset[Page]()
        for waiter in self.waiters:
            waiter.wait_for_one_more()

    def record(self, event: Event, reason: Reason | None = None) -> None:
        """Record that something has happened to it.

        :param reason: why it fails or is unparsed by that, if so.
        """
        state = BECOMES[self.state][event]
        if state is self.state and state is not _ANSWERED:
            return
        is_new_failure = (state is BAD or state is _FAILED) and not self.has_failed
        if is_new_failure or state is _ANSWERED or state is _REDIRECTED:
            self.reason = reason
        elif state is REACHED or state is State.REPLACED:
            self.reason = None
        self.state = state

    @property
    def has_failed(self) -> bool:
        """Whether it fails if nothing more happens to it."""
        return self.state is BAD or self.state is _FAILED

    @property
    def has_ended(self) -> bool:
        """Whether nothing is left to wait for. Things may happen to it until it is let go of."""
        return not self.awaits and self.state is not _UNFINISHED

    def wait_for_one_more(self) -> None:
        """Let it end only after :meth:`end` was called once more."""
        self.awaits += 1

    def end(self, *, with_waiters: bool = True) -> list[Page]:
        """Record that something has ended for which it waits; return the pages that end with it.

        :param with_waiters: whether these fail with what has failed.
        """
        ended, stack = [], [self]
        while stack:
            page = stack.pop()
            page.awaits -= 1
            if page.state is BAD and not page.awaits and page.reason and page.reason.closing:
                page.record(Event.UNFINISHED)
            if page.has_ended:
                ended.append(page)
                stack += page.waiters
                if with_waiters and page.has_failed:
                    for waiter in page.waiters:  # only these can yield it again
                        waiter.record(Event.FAILED, page.reason)
        return ended
