"""Which crawl has which session, for those who know only the crawler."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol
from weakref import ReferenceType, WeakKeyDictionary, ref

from scrapy.crawler import Crawler

if TYPE_CHECKING:
    from scrapy import Request


class Forgets(Protocol):
    """What makes pages of a crawl new once more; a :class:`Session`."""

    def forget(self, request: Request) -> None:
        """Make the page of a request new once more."""

    def forget_failed(self, request: Request) -> None:
        """Make the page of a request that has failed new for the next run."""


_SESSIONS: Final[WeakKeyDictionary[Crawler, ReferenceType[Forgets]]] = WeakKeyDictionary()
"""Those of this process, for as long as somebody else holds both."""


def note_session(crawler: Crawler, session: Forgets) -> None:
    """Note that a crawl has this session from now on."""
    _SESSIONS[crawler] = ref(session)


def session_of(crawler: Crawler) -> Forgets | None:
    """Return the open session of a crawl, None if it has none."""
    known = _SESSIONS.get(crawler)
    return known() if known else None
