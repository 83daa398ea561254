"""Where a page is: what a target says of its requests, and how that reads."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from scrapy_bloom.commands.output import moment
from scrapy_bloom.commands.requests import Read
from scrapy_bloom.crawl.failed import FailedPage
from scrapy_bloom.crawl.outcomes import MOST_RUNS
from scrapy_bloom.errors import StateError
from scrapy_bloom.local.job import Identity
from scrapy_bloom.values import counted


def no_requests(name: str) -> StateError:
    """Return the error for a filter whose requests are not beside it."""
    return StateError(
        f"{name}: found a filter without requests, expected those of scrapy_bloom.Scheduler. The"
        f" queues of other schedulers are not read."
    )


class Place(NamedTuple):
    """Where a page is. Times are in seconds since 1970.

    Attributes:
        state: ``not seen``, ``waiting``, ``in flight``, ``waiting or in flight``, ``failed``,
            ``unparsed``, ``done``; or ``seen`` if the requests of a filter are not beside it.
        not_before: when it may be sent; 0 if it need not wait for a time.
        worker: which one has it in flight.
        failed: its row on the failed list, if it is there.
    """

    state: str
    not_before: float = 0.0
    worker: str = ""
    failed: FailedPage | None = None

    @classmethod
    def of_failed(cls, failed: FailedPage) -> Place:
        """Return the place of a request on the failed list."""
        state = "unparsed" if failed.unparsed else "failed"
        return cls(state, worker=failed.worker, failed=failed)

    def facts(self) -> dict[str, Any]:
        """Return what is known, for JSON."""
        facts = {name: value for name, value in self._asdict().items() if value}
        if failed := facts.pop("failed", None):
            why = {"reason": failed.kind, "message": failed.message, "date": failed.date}
            facts |= {**why, "tries": failed.tries}
        return {"is": facts.pop("state"), **facts}

    def __str__(self) -> str:
        """Return it as a phrase."""
        name = self.worker.rpartition(":")[0] or self.worker  # what follows makes it unique
        worker = f" at worker {name}" if name else ""
        if failed := self.failed:
            message = f": {failed.message}" if failed.message else ""
            date = f" {moment(failed.date)}" if failed.date else ""
            when = f"{self.state}{date}{worker}"
            return f"{when}: {failed.kind}{message}; {_what_next(failed)}"
        if self.not_before > time.time():
            return f"{self.state}, not before {moment(self.not_before)}"
        return f"{self.state}{worker}"


def _what_next(failed: FailedPage) -> str:
    """Say when a page that no callback got is fetched again, or that it is not by itself."""
    if failed.unparsed:
        put_back = "all such pages are put back by: scrapy bloom queue TARGET --retry"
        if failed.is_given_up:
            return f"given up after {counted(failed.tries, 'run')}, {put_back} --given-up"
        return f"{put_back} --reason {shlex.quote(failed.kind)}"
    left = MOST_RUNS - failed.tries
    apart = f"{'each ' if left > 1 else ''}at least an hour after the last"
    return (
        f"the next run fetches it again; it is given up after {counted(left, 'more failed run')},"
        f" {apart}"
    )


class Found(NamedTuple):
    """A stored request.

    Attributes:
        body: as it is stored.
        mark: its own, if it is stored beside it.
        place: where it is.
    """

    body: bytes
    mark: bytes | None
    place: Place


@dataclass(frozen=True)
class View:
    """What a target says of pages.

    Attributes:
        identity: what its marks belong to.
        knows: returns for each of some marks whether it is there.
        requests: yields the requests that are not done; None if they are not here.
        starts: how the ids of the start requests begin that are done and were not filtered.
        read: makes a dict of a request.
    """

    identity: Identity
    knows: Callable[[Sequence[bytes]], list[bool]]
    requests: Callable[[], Iterator[Found]] | None
    starts: Collection[bytes]
    read: Read
