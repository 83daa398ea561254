"""Crawls by two worker processes that share queue and filter in Redis."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from threading import Event, Thread
from time import perf_counter
from types import TracebackType
from typing import Any, Final

from support.localredis import LocalRedis
from support.localsite import Answer, Kind, LocalSite
from typing_extensions import Self

from bench.redis_server import busy

WORKERS: Final = 2
PATIENCE: Final = 60  # seconds without a sign of life


class TimedSite(LocalSite):
    """A local site that knows when it delivered its last page."""

    last = 0.0

    def visit(self, target: str) -> Answer:
        """Answer, and note the time."""
        answer = super().visit(target)
        if answer.page is not None:
            self.last = perf_counter()
        return answer


class StraightSite(TimedSite):
    """A site without pages that redirect to themselves: all filters find the same work on it."""

    def kind(self, page: int) -> Kind:
        """Tell how the site treats a page."""
        return Kind.QUERY if page % 3 == 0 else Kind.PLAIN


@dataclass(frozen=True)
class Crawled:
    """What a crawl took, from the moment that both workers were ready to its last page.

    Attributes:
        seconds: time that went by.
        cpu: processor time of the workers in seconds.
        server: that of Redis.
        calls: commands that Redis was sent, by name; those in scripts count, too.
    """

    seconds: float
    cpu: float
    server: float
    calls: Mapping[str, int]


class _Worker:
    """A process that crawls."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.crawl_worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._reports: SimpleQueue[tuple[float, dict[str, Any]]] = SimpleQueue()
        Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._reports.put((perf_counter(), json.loads(line)))

    def tell(self, line: str) -> None:
        """Write it a line."""
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def cpu_when(self, state: str, after: float = 0.0) -> float:
        """Wait until it reports a state after a moment; return its processor time then.

        :raises TimeoutError: if nothing comes for a long time.
        """
        while True:
            try:
                moment, report = self._reports.get(timeout=PATIENCE)
            except Empty:
                raise TimeoutError(f"a worker has not been {state} for {PATIENCE} s") from None
            if report["state"] == state and moment > after:
                return float(report["cpu"])

    def end(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()


class Workers:
    """The two, as a context manager: they start once and crawl often."""

    def __enter__(self) -> Self:
        self._workers = [_Worker() for _ in range(WORKERS)]
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
        self, site: TimedSite, server: LocalRedis, url: str, settings: Mapping[str, object]
    ) -> Crawled:
        """Crawl a site.

        :param server: is emptied.
        :param url: of the server as the workers reach it.
        """
        job = json.dumps({"url": site.url, "settings": {**settings, "REDIS_URL": url}})
        with ExitStack() as stack:
            client: Any = stack.enter_context(server.client())
            client.flushall()
            # The first page is held back until both workers can fetch.
            begun = Event()
            site.when(1, lambda: begun.wait(PATIENCE))
            for worker in self._workers:
                worker.tell(job)
                stack.callback(worker.cpu_when, "done")
                stack.callback(worker.tell, "stop")
            cpu = -sum(worker.cpu_when("ready") for worker in self._workers)
            client.config_resetstat()
            server_cpu = -busy(client)
            start = perf_counter()
            begun.set()
            cpu += sum(self._finished(site))
            server_cpu += busy(client)
            calls = client.info("commandstats")
        return Crawled(
            seconds=site.last - start,
            cpu=cpu,
            server=server_cpu,
            calls={name[len("cmdstat_") :]: each["calls"] for name, each in calls.items()},
        )

    def _finished(self, site: TimedSite) -> list[float]:
        """Wait until nobody has anything to do; return the processor times of then."""
        while True:
            last = site.last
            cpu = [worker.cpu_when("idle", last) for worker in self._workers]
            # Once could be between two requests: what one has pushed the other takes.
            for worker in self._workers * (_SURE - 1):
                worker.cpu_when("idle", last)
            if site.last == last:
                return cpu


_SURE: Final = 3
