"""Which pages wait for what is only in memory: only they can yield it again."""

from __future__ import annotations

from scrapy_bloom.crawl.page import Event, Page


class UnstoredPages:
    """By their marks, what is only in memory, until it is done, or eligible again."""

    def __init__(self) -> None:
        self._in_memory: dict[bytes, list[Page]] = {}

    def __bool__(self) -> bool:
        """Return whether a page may have to wait because its link is a duplicate."""
        return bool(self._in_memory)

    def record_duplicate(self, mark: bytes, pages: tuple[Page, ...]) -> None:
        """Let pages that may have yielded a duplicate wait for what it duplicates, if they must.

        Only the stored ones wait: those in memory wait for nothing but what they have yielded. But
        if it has failed already, these fail, too: a page that is done is never asked again what it
        led to.
        """
        for original in self._in_memory.get(mark, ()):
            if original.has_ended:
                for page in pages:
                    wait_for(page, original)
            for page in stored_among([*pages]) - original.roots:
                wait_for(page, original)
                original.roots |= {page}

    def add(self, page: Page) -> None:
        """Add a page that is only in memory."""
        page.roots = stored_among(page.waiters)
        if page.mark is not None:
            self._in_memory.setdefault(page.mark, []).append(page)

    def remove(self, mark: bytes, page: Page) -> None:
        """Remove a page that was only in memory."""
        self._in_memory[mark].remove(page)
        if not self._in_memory[mark]:
            del self._in_memory[mark]


def wait_for(page: Page, until: Page) -> None:
    """Let a page end only after another one, and fail with it, unless that waits for it.

    One that has ended waits no more. If that other one has, it fails at once if that has failed.
    """
    if until.has_ended:
        if until.has_failed:
            page.record(Event.FAILED, until.reason)
    elif page.awaits and until not in waiting_for(page):
        page.wait_for_one_more()
        until.waiters.append(page)


def waiting_for(page: Page) -> set[Page]:
    """Return a page with those that cannot end before it."""
    stack, found = [page], set[Page]()
    while stack:
        each = stack.pop()
        if each not in found:
            found.add(each)
            stack += each.waiters
    return found


def stored_among(pages: list[Page]) -> frozenset[Page]:
    """Return the stored pages among these, and the roots of the others.

    Those of a single one are shared and not copied, as a chain of pages in memory may be long.
    """
    if len(pages) == 1:
        (page,) = pages
        return page.roots if page.taken is None else frozenset(pages)
    return frozenset[Page]().union(*(stored_among([page]) for page in pages))
