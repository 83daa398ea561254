"""Spiders for single tests, found by name in a project's SPIDER_MODULES."""

import gc
import os

from support.crawling import Follower


class Forking(Follower):
    """Forks on every fiftieth page a child that ends as the worst of children do."""

    name = "forking"

    def parse(self, response):
        yield from super().parse(response)
        if len(self.parsed) % 50 == 0:
            child = os.fork()
            if not child:
                # Scrapy shows its scheduler to nobody, but a fork gets a copy of it.
                scheduler = self.crawler.engine._slot.scheduler
                scheduler.df.request_seen(response.request.replace(url="http://a.child/"))
                scheduler.df.close("finished")
                scheduler.df = None
                gc.collect()
                os._exit(0)
            os.waitpid(child, 0)


class Checked(Follower):
    """Has a contract for `scrapy check` on the page that the environment names."""

    name = "checked"

    def parse(self, response):
        yield from super().parse(response)

    parse.__doc__ = f"""
        @url {os.environ.get("CHECKED_URL")}
        @returns requests 8 8
    """
