"""Other code joins a crawl that runs, as in a rolling deploy, and is taken back again."""

import os

import pytest
from support.crawling import KEPT, Crawl, hold
from support.queues import left
from support.waiting import PATIENCE
from testbed.localsite import LocalSite

pytestmark = [pytest.mark.server, pytest.mark.usefixtures("short_leases")]

UNREADABLE = "cannot be read by this worker"

OLD = """
from pathlib import Path
from scrapy import Request, Spider

class Shop(Spider):
    name = "shop"

    async def start(self):
        yield Request(self.url)

    def parse(self, response, **found):
        with Path("parsed").open("a") as file:
            print(response.url, file=file)
        for number, link in enumerate(response.css("a::attr(href)").getall()):
            yield self.follow(response, link) if number % 2 else response.follow(link)

    def follow(self, response, link):
        return response.follow(link, self.page)

    def page(self, response):
        yield from self.parse(response)
"""

NEW = (
    OLD.replace("self.page", "self.parse_page, cb_kwargs={'book': Book(link)}")
    .replace("def page(self, response)", "def parse_page(self, response, book)")
    .replace("class Shop", "@dataclass\nclass Book:\n    link: str\n\nclass Shop")
    .replace("from pathlib", "from dataclasses import dataclass\nfrom pathlib")
)


class Deploys(Crawl):
    """Workers of either version of the code."""

    def deploy(self, code):
        """Start a worker with this code, and wait until it has joined."""
        folder = self.folder / f"code-{len(self.runs)}"
        folder.mkdir()
        (folder / "shop.py").write_text(code)
        path = os.pathsep.join((str(folder), self._environment["PYTHONPATH"]))
        run = self.join(spider="shop", environment={"PYTHONPATH": path})
        run.said("Crawl state in", "New crawl, stored in")
        return run


def test_a_renamed_callback_and_a_new_item_class_are_deployed_and_taken_back(server, tmp_path):
    server.client().flushall()
    one = {"CONCURRENT_REQUESTS": 1, "SPIDER_MODULES": "shop", "BLOOM_REDIS_URL": server.url}
    one["SCHEDULER_DISK_QUEUE"] = "scrapy.squeues.PickleFifoDiskQueue"  # each meets all kinds
    with (
        LocalSite(pages=60, links=6) as site,
        Deploys(site, server, tmp_path, **KEPT, **one) as its,
    ):
        reached, go_on = hold(site, 10, 1)
        first = its.deploy(OLD)
        assert reached.wait(PATIENCE)
        reached, new_goes_on = hold(site, 25, 1)
        new = its.deploy(NEW)
        assert reached.wait(PATIENCE)
        back = its.deploy(OLD)
        back.said(UNREADABLE)
        first.interrupt()
        go_on.set()
        new_goes_on.set()
        assert its.wait() == ["shutdown", "finished", "finished"]
        for code in (NEW, OLD):  # each run fetches what it can read
            its.deploy(code)
            its.wait()
    assert site.missed == set()
    assert len({*(tmp_path / "parsed").read_text().split()}) == site.pages
    assert left(server, "scrapybot:shop:bloom") == (0, 0, 0)
    assert UNREADABLE in new.log
