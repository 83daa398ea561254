"""Crawls of the local site by worker processes that share a Redis."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from pathlib import Path

from support.processes import PROGRAMS
from support.starting import Program
from support.waiting import PATIENCE, until


class Crawl:
    """Workers on one site; as a context manager it leaves no process behind."""

    def __init__(self, site, server, folder, **settings):
        self.site = site
        self.server = server
        self.folder = Path(folder)
        self.settings = {"BLOOM_REDIS_TIMEOUT": 10} | settings  # a busy machine is no outage
        self.workers = []
        self.redis_url = server.url

    def start(self, url=None, **settings):
        """Start one more worker, at another page if need be; return its process."""
        number = len(self.workers)
        command = [PROGRAMS / "redis_worker.py"]
        command += [url or self.site.url, str(self.folder / f"{number}.json")]
        command += [json.dumps(self.settings | settings)]
        (self.folder / f"{number}.log").touch()  # it may be read at once
        worker = Program(command, stderr=self.folder / f"{number}.log")
        self.workers.append(worker)
        return worker

    @contextmanager
    def two(self, deliveries):
        """Start two workers, and yield the first: it has a page in flight until this ends.

        That is the last of so many that the site delivers. Then the second one starts.
        """
        reached, released = threading.Event(), threading.Event()

        def hold():
            reached.set()
            released.wait(PATIENCE)

        self.site.when(deliveries, hold)
        first = self.start()
        try:
            assert reached.wait(PATIENCE)
            self.start()
            until(lambda: "pages known" in self.log(1))
            yield first
        finally:
            released.set()

    def kill_one_of_two(self, deliveries):
        """Kill a worker that has a page in flight, while another one works."""
        with self.two(deliveries) as victim:
            victim.kill()
            victim.wait()

    def wait(self):
        """Wait for all workers; return their stats, None for one that was killed."""
        for worker in self.workers:
            worker.wait(PATIENCE)
        return [self.stats(number) for number in range(len(self.workers))]

    def finish(self):
        """Let idle workers end once all have opened the filter; return the stats of all."""
        until(lambda: all("Bloom filter in" in self.log(n) for n in range(len(self.workers))))
        self.server.client().set("done", 1)
        return self.wait()

    def stats(self, number):
        file = self.folder / f"{number}.json"
        return json.loads(file.read_text()) if file.exists() else None

    def log(self, number=0):
        return (self.folder / f"{number}.log").read_text()

    def __enter__(self):
        return self

    def __exit__(self, *exc_info):
        for worker in self.workers:
            worker.kill()
            worker.wait()


def at(site, deliveries):
    """Return an event that is set when the site has delivered so many pages."""
    reached = threading.Event()
    site.when(deliveries, reached.set)
    return reached


SCRAPY_REDIS = {
    "SCHEDULER": "scrapy_redis.scheduler.Scheduler",
    "SCHEDULER_QUEUE_CLASS": "scrapy_redis.queue.FifoQueue",
    "CONCURRENT_REQUESTS_PER_DOMAIN": 16,
}
