"""Open a filter in Redis where the client library is not installed."""

import sys

sys.modules["redis"] = None
from scrapy_bloom.backends.base import Crawl
from scrapy_bloom.backends.redis import RedisBackend
from scrapy_bloom.settings import Settings
from scrapy_bloom.storage.snapshot import Identity

crawl = Crawl(Identity("s", "f"), digests=True, job_dir=None, shared_queue=True)
RedisBackend().open(Settings({}), crawl)
