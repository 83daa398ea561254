"""How a page has ended: it is done once a callback has it. Otherwise it has a reason of two kinds.

Failed is what the site or the project's code failed at, or may have: the next run fetches it.
Unparsed is what no callback got by somebody's decision: a 404, ``IgnoreRequest``, too large a body,
a redirect to a page that was seen. It comes again only if somebody says so. While the spider
closes, a download or a callback that fails leaves its page stored, to be fetched by the next run; a
pipeline's error still fails it.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum
from functools import lru_cache
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from scrapy import exceptions
from scrapy.exceptions import IgnoreRequest
from twisted.internet.defer import CancelledError
from twisted.python.failure import Failure

from scrapy_bloom.values import encodable

if TYPE_CHECKING:
    from types import FrameType

    from scrapy import Request
    from scrapy.spidermiddlewares.httperror import HttpError

MOST_MESSAGE: Final = 200
"""Characters of a failure's message that are stored."""

MOST_RUNS: Final = 3
"""A page that has failed in so many runs is unparsed: it is not fetched again by itself."""

APART: Final = 3600.0
"""Seconds between failures that count: a crawl that is started again and again in an outage would
give up all its pages within a minute."""


MOST_UNPARSED: Final = 100_000
"""Most unparsed requests that are stored, as nothing fetches them by itself: others are counted."""

REDIRECTED: Final = "redirected to seen pages"
"""The kind of reason of a page whose redirect leads to a page that was seen."""

_CANCELLED: Final = getattr(exceptions, "DownloadCancelledError", CancelledError)
"""Scrapy cancels only downloads above ``DOWNLOAD_MAXSIZE``; its older versions use Twisted's."""

_TOO_LARGE: Final = "too large"

_IGNORED: Final = {
    "Forbidden by robots.txt": "robots.txt",
    "exceeded DOWNLOAD_MAXSIZE": _TOO_LARGE,
}
"""The kinds of what Scrapy itself ignores, by a part of what it says."""

_CONDITIONS: Final = "If-None-Match", "If-Modified-Since"

ENDLESS: Final = "too many redirects"
"""The kind of reason of a page whose redirects never end."""

_NOT_OF_PROJECTS: Final = {"asyncio", "scrapy", "scrapy_bloom", "twisted"}


class Ended(Enum):
    """How a request that has not failed ended: what it counts as."""

    DONE = "done"
    REPLACED = "replaced"
    """Another request stands for its page, which counts when that one ends."""


class Reason(NamedTuple):
    """Why a page has failed, or is unparsed.

    Attributes:
        kind: a status; or the name of an exception, perhaps with where it was raised.
        message: the first characters of what the exception says.
        unparsed: whether that is no failure.
        to: the mark of the seen page that it was redirected to, if that is known: it is forgotten
            if somebody has the page fetched again.
        closing: whether the spider was closing: if it does not deal with that, the page stays
            stored.
    """

    kind: str
    message: str = ""
    unparsed: bool = False
    to: bytes | None = None
    closing: bool = False

    @classmethod
    def of(cls, error: BaseException | None, place: str = "") -> Reason:
        """Return the failure that is an exception."""
        try:
            message = str(error)
        except Exception:  # it is the project's
            message = ""
        name = type(error).__name__
        return cls(f"{name} in {place}" if place else name, encodable(message[:MOST_MESSAGE]))


def is_unchanged(error: HttpError, request: Request) -> bool:
    """Return whether the site has only said that a page is as the spider knows it."""
    is_conditional = any(name in request.headers for name in _CONDITIONS)
    return is_conditional and error.response.status == HTTPStatus.NOT_MODIFIED


def reason_of(answer: Any, request: Request, statuses: Collection[int]) -> Reason:
    """Return why a page has failed or is unparsed unless a callback gets its response.

    :param answer: the response, or the error.
    :param statuses: those that are failures.
    """
    if not isinstance(answer, Failure):
        status = getattr(answer, "status", None)
        return _of_status(status, unparsed=status not in statuses)
    error = answer.value
    if isinstance(error, _CANCELLED):
        return Reason(_TOO_LARGE, unparsed=True)
    if not isinstance(error, IgnoreRequest):
        return Reason.of(error)
    if request.meta.get("redirect_ttl") == 0:  # nobody has chosen to ignore an endless redirect
        return Reason(ENDLESS, request.url[:MOST_MESSAGE])
    for part, kind in _IGNORED.items():
        if part in str(error):
            return Reason(kind, unparsed=True)
    return Reason.of(error)._replace(unparsed=True)


@lru_cache
def _of_status(status: Any, *, unparsed: bool) -> Reason:
    return Reason(str(status), unparsed=unparsed)


def is_of_project(frame: FrameType) -> bool:
    """Return whether a function that runs is the project's, as far as its module tells."""
    module: str = frame.f_globals.get("__name__", "")
    return module.partition(".")[0] not in _NOT_OF_PROJECTS


def place_of(error: Failure) -> str:
    """Return the name of the project's function that raised an error, or called what did."""
    name, trace = "?", getattr(error.value, "__traceback__", None)
    while trace is not None:
        name = trace.tb_frame.f_code.co_name
        if is_of_project(trace.tb_frame):
            break
        trace = trace.tb_next
    return name
