"""Crawls of the local site by worker processes that share a Redis."""

from contextlib import contextmanager

from support.crawling import Project
from support.graceful_stop import hold
from support.waiting import PATIENCE, until


class Crawl(Project):
    """Workers on one site: its runs."""

    def __init__(self, site, server, folder, **settings):
        super().__init__(folder)
        self.site = site
        self.server = server
        self.settings = {"BLOOM_REDIS_TIMEOUT": 10} | settings  # a busy machine is no outage

    def join(self, spider="worker", **options):
        options = self.settings | options
        return self.crawl(self.site, spider=spider, keep=False, **options)

    @contextmanager
    def two(self, deliveries):
        """Start two workers, and yield the first: it has a page in flight until this ends.

        That is the last of so many that the site delivers. Then the second one starts.
        """
        reached, go_on = hold(self.site, deliveries, 1)
        first = self.join()
        try:
            assert reached.wait(PATIENCE)
            self.join().said("pages known")
            yield first
        finally:
            go_on.set()

    def kill_one_of_two(self, deliveries):
        """Kill a worker that has a page in flight, while another one works."""
        with self.two(deliveries) as victim:
            victim.kill()
            victim.end()

    def wait(self):
        """Wait for all workers; return the reasons for which they have ended."""
        for run in self.runs:
            run.end()
        return [run.reason for run in self.runs]

    def total(self, stat):
        """Return the sum of a number in the closing dumps of all workers."""
        return sum(run.stat(stat) for run in self.runs)

    def finish(self):
        """Let idle workers end once all have opened the filter; return why they have ended."""
        until(lambda: all("Bloom filter in" in run.log for run in self.runs))
        self.server.client().set("done", 1)
        return self.wait()


def reach(site, deliveries):
    until(lambda: site.delivered >= deliveries)
