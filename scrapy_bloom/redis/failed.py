"""What to list in Redis of a page that no callback got."""

from __future__ import annotations

import time
from collections.abc import Collection
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from scrapy_bloom.crawl.failed import FailedPage
from scrapy_bloom.crawl.history import ORIGINAL
from scrapy_bloom.crawl.outcomes import APART, REDIRECTED, Reason
from scrapy_bloom.redis.wire import NewFailedRow

if TYPE_CHECKING:
    from scrapy import Spider

    from scrapy_bloom.crawl.identity import Identifier
    from scrapy_bloom.redis.member import Taken
    from scrapy_bloom.redis.packing import Packing
    from scrapy_bloom.redis.turns import Turns
    from scrapy_bloom.redis.worker import Worker


class FailedRows:
    """Makes new rows for the lists of failed and unparsed pages.

    :param worker: says so.
    :param packing: reads and writes requests.
    :param turns: knows their slots.
    :param identifier: knows their marks.
    """

    def __init__(
        self,
        worker: Worker,
        spider: Spider,
        packing: Packing,
        turns: Turns,
        identifier: Identifier,
    ) -> None:
        self._worker, self._spider, self._packing = worker, spider, packing
        self._turns, self._identifier = turns, identifier

    def once_more(self, body: bytes) -> bytes:
        """Return a request as one that has failed once more, more than an hour ago."""
        read, write, reason = self._packing.fields, self._packing.write, Reason(REDIRECTED)
        return FailedPage.of(body, reason, -APART, read=read, write=write).body

    def row(
        self, taken: Taken, reason: Reason, way: Collection[bytes], start: bytes = b""
    ) -> NewFailedRow:
        """Return what to list of a request: what the spider has yielded.

        :param way: marks of where its redirects led.
        :param start: identifies the start request that it stands for, if one that is not filtered.
        """
        read, write, name = self._packing.fields, self._packing.write, self._worker.name
        failed = FailedPage.of(taken.body, reason, time.time(), name, way, read=read, write=write)
        original = replace(taken, body=failed.body)
        if ORIGINAL in read(taken.body)["meta"]:  # what the spider yielded is another one
            with suppress(Exception):  # what is in the request, or the project's fingerprinter
                request = self._packing.request(failed.body, self._spider)
                original.priority, original.fingerprint = request.priority, None
                original.slot = self._turns.slot_for(request)
                if not request.dont_filter:
                    original.fingerprint = self._identifier.identify(request)
        return NewFailedRow(taken.id, start, failed, original, () if failed.unparsed else (*way,))
