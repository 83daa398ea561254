"""Crawls by worker processes that share queue and filter in Redis."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from threading import Event, Lock, Thread
from time import perf_counter
from types import TracebackType
from typing import Any, Final

from support.localredis import LocalRedis
from support.localsite import Kind, LocalSite
from typing_extensions import Self

from bench.redis_server import busy

PATIENCE: Final = 60  # seconds without a sign of life


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
class Spent:
    """What a worker has spent so far.

    Attributes:
        cpu: seconds of processor time.
        trips: requests to Redis that it waited for, a pipeline being one.
    """

    cpu: float
    trips: int


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


class _Worker:
    """A process that crawls.

    :param pages: gets the moment of each page that was parsed, this, and what it has spent by then.
    """

    def __init__(self, pages: SimpleQueue[tuple[float, _Worker, Spent]]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.crawl_worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._pages = pages
        self._reports: SimpleQueue[tuple[str, Spent]] = SimpleQueue()
        Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            moment, report = perf_counter(), json.loads(line)
            spent = Spent(report["cpu"], report["trips"])
            if report["state"] == "page":
                self._pages.put((moment, self, spent))
            else:
                self._reports.put((report["state"], spent))

    def tell(self, line: str) -> None:
        """Write it a line."""
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def spent_when(self, state: str) -> Spent:
        """Wait until it reports a state; return what it has spent by then.

        :raises TimeoutError: if nothing comes for a long time.
        """
        while True:
            try:
                reported, spent = self._reports.get(timeout=PATIENCE)
            except Empty:
                raise TimeoutError(f"a worker has not been {state} for {PATIENCE} s") from None
            if reported == state:
                return spent

    def end(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()


class Workers:
    """Some workers, as a context manager: they start once and crawl often.

    :param count: how many.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._pages: SimpleQueue[tuple[float, _Worker, Spent]] = SimpleQueue()

    def __enter__(self) -> Self:
        self._workers = [_Worker(self._pages) for _ in range(self._count)]
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for worker in self._workers:
            worker.end()

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
            start, worker, spent = self._pages.get(timeout=PATIENCE)
            usage = _Usage(client)
            before[worker] = spent
            after = dict(before)
            for _ in range(pages):
                end, worker, spent = self._pages.get(timeout=PATIENCE)
                after[worker] = spent
            return usage.crawled(end - start, list(before.values()), list(after.values()))

    @contextmanager
    def _begun(
        self,
        site: GrowingSite,
        server: LocalRedis,
        url: str,
        settings: Mapping[str, object],
    ) -> Iterator[tuple[Any, list[Spent]]]:
        """Begin a crawl when all workers are ready; end it afterwards.

        Yields a client of the server, and what each worker had spent until then.
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
                stack.callback(worker.spent_when, "done")
                stack.callback(worker.tell, "halt")
            ready = [worker.spent_when("ready") for worker in self._workers]
            begun.set()
            yield client, ready


class _Usage:
    """Processor time of Redis, from now on."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._server = busy(client)

    def crawled(self, seconds: float, before: Sequence[Spent], after: Sequence[Spent]) -> Crawled:
        """Return what a crawl took, from what its workers had spent before and after it."""
        server = busy(self._client) - self._server
        return Crawled(
            seconds=seconds,
            cpu=sum(each.cpu for each in after) - sum(each.cpu for each in before),
            server=server,
            trips=sum(each.trips for each in after) - sum(each.trips for each in before),
        )
