"""Crawls by worker processes that share queue and filter in Redis."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from queue import SimpleQueue
from threading import Event, Lock
from time import perf_counter
from typing import Any

from support.localredis import LocalRedis
from support.localsite import Kind, LocalSite
from typing_extensions import Self

from bench.process import PATIENCE, Process, Report, wait_for
from bench.redis_server import busy


class GrowingSite(LocalSite):
    """A site without end, where each page has as many links to pages not shown before.

    What a page links to is decided when it is visited first. So every crawl finds the same, in
    whatever order it goes. The front page leads to so many new pages that later ones have enough
    known pages to link to.

    :param links: of a page on average. Each has half as many to half as many again.
    :param new: how many of these lead to pages not shown before.
    """

    def __init__(self, links: int = 80, new: int = 10) -> None:
        super().__init__(pages=10**9, links=links)
        self._new = new
        self._shown = 1
        self._links: dict[int, list[str]] = {}
        self._growing = Lock()

    def kind(self, page: int) -> Kind:  # noqa: ARG002 - they are all alike
        """Tell how the site treats a page."""
        return Kind.PLAIN

    def hrefs(self, page: int) -> list[str]:
        """List the links on a page."""
        with self._growing:
            if page not in self._links:
                self._links[page] = self._make(len(self._links))
            return self._links[page]

    def _make(self, visits: int) -> list[str]:
        """Make the links of the page that is visited after so many others."""
        # Any two pages in a row have twice the average together: few pages are like many.
        more = 17 * ((visits + 1) // 2) % (self.links // 2 + 1) * (1 if visits % 2 else -1)
        most = self.links + self.links // 2
        links, new = (self.links + more, self._new) if visits else (most, most)
        chance = random.Random(visits)
        shown = self._shown
        self._shown += new
        found = [*chance.sample(range(shown), links - new), *range(shown, self._shown)]
        chance.shuffle(found)
        return [self.address(each) for each in found]


@dataclass(frozen=True)
class Crawled:
    """What a crawl took.

    Attributes:
        seconds: time that went by.
        cpu: processor time of the workers in seconds.
        server: that of Redis.
        trips: requests to Redis that the workers waited for, a pipeline being one.
    """

    seconds: float
    cpu: float
    server: float
    trips: int


class _Worker(Process):
    """A process that crawls.

    :param pages: gets the moment of each page that was parsed, this, and its report.
    """

    def __init__(self, pages: SimpleQueue[tuple[float, _Worker, Report]]) -> None:
        self._pages = pages
        super().__init__("bench.crawl_worker")

    def hear(self, report: Report) -> None:
        """Keep a report."""
        if report["state"] == "page":
            self._pages.put((perf_counter(), self, report))
        else:
            super().hear(report)

    def wait_until(self, state: str) -> Report:
        """Wait for the report of a state."""
        while (report := self.next_report())["state"] != state:
            pass
        return report


class Workers:
    """Some workers, as a context manager: they start once and crawl often.

    :param count: how many.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._pages: SimpleQueue[tuple[float, _Worker, Report]] = SimpleQueue()

    def __enter__(self) -> Self:
        self._workers = [_Worker(self._pages) for _ in range(self._count)]
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.kill()

    def crawl(
        self,
        site: GrowingSite,
        server: LocalRedis,
        url: str,
        settings: Mapping[str, object],
        pages: int,
    ) -> Crawled:
        """Crawl so many pages of a site, from the moment that the front page is parsed.

        A page counts when it is parsed and the scheduler has all its links.

        :param server: is emptied.
        :param url: of the server as the workers reach it.
        """
        while not self._pages.empty():  # of the last crawl
            self._pages.get()
        with self._begun(site, server, url, settings) as (client, ready):
            before = dict(zip(self._workers, ready, strict=True))
            start, worker, report = wait_for(self._pages)
            used = busy(client)
            before[worker] = report
            after = dict(before)
            for _ in range(pages):
                end, worker, report = wait_for(self._pages)
                after[worker] = report
            used = busy(client) - used
            cpu, trips = (
                sum(after[worker][key] - before[worker][key] for worker in self._workers)
                for key in ("cpu", "trips")
            )
            return Crawled(end - start, cpu, used, trips)

    @contextmanager
    def _begun(
        self,
        site: GrowingSite,
        server: LocalRedis,
        url: str,
        settings: Mapping[str, object],
    ) -> Iterator[tuple[Any, list[Report]]]:
        """Begin a crawl when all workers are ready; end it afterwards.

        Yields a client of the server, and the report of each worker.
        """
        reached = {"REDIS_URL": url, "BLOOM_REDIS_URL": url}
        job = json.dumps({"url": site.url, "settings": {**settings, **reached}})
        with ExitStack() as stack:
            client: Any = stack.enter_context(server.client())
            client.flushall()
            # The first page is held back until all workers can fetch.
            begun = Event()
            site.when(1, lambda: begun.wait(PATIENCE))
            for worker in self._workers:
                worker.tell(job)
                stack.callback(worker.wait_until, "done")
                stack.callback(worker.tell, "halt")
            ready = [worker.wait_until("ready") for worker in self._workers]
            begun.set()
            yield client, ready
