"""How a page has ended, and why it has failed.

Failed is what the site or the project's code failed at, in doubt yes. A 404, ``IgnoreRequest`` and
``DropItem`` are decisions, and no failures. While the spider closes, a download or a callback that
fails leaves its page stored, to be fetched by the next run; a pipeline's error still fails it.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from scrapy.exceptions import IgnoreRequest
from twisted.python.failure import Failure

from scrapy_bloom.values import encodable

if TYPE_CHECKING:
    from scrapy import Request

MOST_MESSAGE: Final = 200
"""Characters of a failure's message that are stored."""

MOST_RUNS: Final = 3
"""A page that has failed in so many runs is not fetched again by itself."""

APART: Final = 3600.0
"""Seconds between failures that count: a crawl that is started again and again in an outage would
give up all its pages within a minute."""


_NOT_OF_PROJECTS: Final = {"asyncio", "scrapy", "scrapy_bloom", "twisted"}


class Ended(Enum):
    """How a request that has not failed ended: what it counts as."""

    DONE = "done"
    REDIRECTED = "redirected"
    """It was redirected to a page that was seen."""
    REPLACED = "replaced"
    """Another request stands for its page, which counts when that one ends."""


class Reason(NamedTuple):
    """Why a page has failed.

    Attributes:
        kind: a status; or the name of an exception, perhaps with where it was raised.
        message: the first characters of what the exception says.
    """

    kind: str
    message: str = ""

    @classmethod
    def of(cls, error: BaseException | None, place: str = "") -> Reason:
        """Return the failure that is an exception."""
        try:
            message = str(error)
        except Exception:  # it is the project's
            message = ""
        name = type(error).__name__
        return cls(f"{name} in {place}" if place else name, encodable(message[:MOST_MESSAGE]))


def reason_of(answer: Any, request: Request, statuses: Collection[int]) -> Reason | None:
    """Return why a download has failed; None if it has not.

    :param answer: the response, or the error.
    :param statuses: those that are failures.
    """
    if not isinstance(answer, Failure):
        status = getattr(answer, "status", None)
        return Reason(str(status)) if status in statuses else None
    error = answer.value
    if isinstance(error, IgnoreRequest):  # nobody has chosen to ignore an endless redirect
        endless = request.meta.get("redirect_ttl") == 0
        return Reason("too many redirects", request.url[:MOST_MESSAGE]) if endless else None
    return Reason.of(error)


def place_of(error: Failure) -> str:
    """Return the name of the project's function that raised an error, or called what did."""
    name, trace = "?", getattr(error.value, "__traceback__", None)
    while trace is not None:
        name, module = trace.tb_frame.f_code.co_name, trace.tb_frame.f_globals.get("__name__", "")
        if module.partition(".")[0] not in _NOT_OF_PROJECTS:
            break
        trace = trace.tb_next
    return name
