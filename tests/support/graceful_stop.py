"""Stopping crawls in the midst of their work, on a machine of any speed."""

from threading import Event

from scrapy_bloom.crawl.scrapy.crawler import close_spider
from support.crawling import Follower
from support.waiting import PATIENCE

AT_ONCE = 16
"""Requests of a crawl that are under way at most."""


KNOWS = ("shutting down gracefully", "reentrant call")
"""What Scrapy logs when it is to stop. In mid-write of another line its handler cannot."""


def stop(run):
    """Ask a run to stop cleanly, and wait until it knows."""
    run.interrupt()
    run.said(*KNOWS)


def hold(site, deliveries, answers=AT_ONCE):
    """Stop so many of the site's answers from one on; return when that is and what lets them go."""
    reached, go_on = Event(), Event()

    def stand_still():
        reached.set()
        go_on.wait(PATIENCE)

    for number in range(deliveries, deliveries + answers):
        site.when(number, stand_still)
    return reached, go_on


def resumes_well(site):
    """Return whether a crawl that was stopped has missed no page, and fetched few twice.

    A page that links to where a redirect leads waits for that. If it goes back to the queue at the
    stop, the page has not ended.
    """
    return not site.missed and len(site.repeated) <= AT_ONCE


def close(crawler):
    """Close the spider of a crawl in this process, from one of its callbacks."""
    close_spider(crawler, "enough")


class Stopping(Follower):
    """Stops after some pages, as Ctrl-C does, and resumes in the next run."""

    name = "follower"
    __module__, __qualname__ = Follower.__module__, Follower.__qualname__  # it is no other spider
    pages = 20

    def parse(self, response):
        last = len(self.parsed) + 1 == self.pages  # other pages may come while its links are read
        yield from super().parse(response)
        if last:
            close(self.crawler)
