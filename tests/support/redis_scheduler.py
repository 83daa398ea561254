"""`scrapy_bloom.Scheduler` on the new Redis room, until the two are joined."""

from __future__ import annotations

import os

import scrapy_bloom
from scrapy_bloom.crawl.report import Report
from scrapy_bloom.local.queue import QueueKind
from scrapy_bloom.redis import worker
from scrapy_bloom.redis.frontier import open_shared

worker.LEASE = float(os.environ.get("REDIS2_LEASE", worker.LEASE))


class Scheduler(scrapy_bloom.Scheduler):
    def _open_shared(self):
        kind = QueueKind.of("SCHEDULER_DISK_QUEUE", self.dqclass)
        return open_shared(
            self.crawler,
            self.spider,
            Report(self.crawler),
            newest_first=kind.newest_first,
            dumps=kind.dumps,
            dropped=self._drop,
        )
