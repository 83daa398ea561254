"""One request on its way from a queue to being done, and which pages wait for it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from scrapy_bloom.crawl.outcomes import Ended, Reason


class Visit:
    """One request on its way from a queue to being done.

    It has ended once the engine is through with it and nothing that came from it is left to wait
    for: a request that is only in memory (its callback is a lambda, say), which only the page can
    yield again; or the page to which it was redirected, if that is in flight for another page. It
    is done, or has failed, once its items are written, too.

    Attributes:
        taken: what the backend has handed out; None if it could not be stored, or nobody has taken
            it yet.
        marks: its marks, which the next run must ignore until it is done.
        parents: the pages that cannot end before it has, and fail with it.
        roots: the stored pages that led to it, perhaps through others that are not stored.
        waits_for: how many must end first: the engine's work on it, and each request that has it
            as a parent.
        ended: how it counts if it has not failed.
        reason: why it has failed; None if it has not.
        may_deal: whether the spider may yet deal with its failed download.
        status: the status of a response that no callback got, 0 if one did.
        start: identifies the start request that it is, or was made of, if that is not filtered.
        mark: of the page that it stands for by now, if it is a retry or a redirect.
        way: the marks of where redirects led: if it fails they are forgotten.
    """

    __slots__ = (
        *("ended", "mark", "marks", "may_deal", "parents", "reason", "roots"),
        *("start", "status", "taken", "waits_for", "way"),
    )

    def __init__(
        self, taken: Any = None, marks: tuple[bytes, ...] = (), parents: Iterable[Visit] = ()
    ) -> None:
        self.taken = taken
        self.marks = marks
        self.parents = [*parents]
        self.roots = stored_among(self.parents)
        self.waits_for = 1
        self.ended = Ended.DONE
        self.reason: Reason | None = None
        self.may_deal = False
        self.status, self.start = 0, b""
        self.mark: bytes | None = None
        self.way: tuple[bytes, ...] = ()
        for parent in self.parents:
            parent.waits_for += 1

    def hold_up(self, page: Visit) -> bool:
        """Let a page end only after this one, unless this one waits for it, and fail with it.

        :returns: whether it waits now: not if either has ended.
        """
        if not self.waits_for:
            page.reason = page.reason or self.reason
        if not (self.waits_for and page.waits_for) or self in page.waiting():
            return False
        page.waits_for += 1
        self.parents.append(page)
        return True

    def waiting(self) -> set[Visit]:
        """Return this page with those that cannot end before it."""
        stack, found = [self], set[Visit]()
        while stack:
            each = stack.pop()
            if each not in found:
                found.add(each)
                stack += each.parents
        return found

    def end(self) -> list[Visit]:
        """Note that something has ended for which it waits; return the pages that end with it."""
        ended, stack = [], [self]
        while stack:
            visit = stack.pop()
            visit.waits_for -= 1
            if not visit.waits_for:
                ended.append(visit)
                stack += visit.parents
                for parent in visit.parents:  # only these can yield it again
                    parent.reason = parent.reason or visit.reason
        return ended


def stored_among(visits: list[Visit]) -> frozenset[Visit]:
    """Return the stored visits among these, and the roots of the others.

    Those of a single one are shared and not copied, as a chain of pages in memory may be long.
    """
    if len(visits) == 1:
        (visit,) = visits
        return visit.roots if visit.taken is None else frozenset(visits)
    return frozenset[Visit]().union(*(stored_among([visit]) for visit in visits))
