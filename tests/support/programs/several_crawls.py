"""Crawl a site several times at once in one process: each crawl has its own job and feed."""

import json
import sys
from pathlib import Path

from scrapy.crawler import CrawlerProcess
from scrapy.utils.project import get_project_settings
from support.kept_spiders import ItemSpider

url, job, given, *feeds = sys.argv[1:]
common = get_project_settings()
common.update(json.loads(given), priority="cmdline")
process = CrawlerProcess(common)
for number, feed in enumerate(feeds):
    own = {"JOBDIR": str(Path(job, str(number))), "FEEDS": {feed: {"format": "jsonlines"}}}
    process.crawl(type("Spider", (ItemSpider,), {"custom_settings": own}), url=url)
process.start()
