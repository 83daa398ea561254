"""Feeds on a disk that is full at first: half of what should be written is."""

import errno
import io
import os
from itertools import count
from pathlib import Path

from scrapy.extensions.feedexport import FileFeedStorage

FAILS = {5, 9, 10, 40}
"""Which writes of a process."""

writes = count(1)


class FullFile(io.FileIO):
    def write(self, data):
        if next(writes) not in FAILS:
            return super().write(data)
        super().write(bytes(data)[: len(data) // 2])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class Storage(FileFeedStorage):
    def open(self, spider):  # noqa: ARG002 - Scrapy's signature
        Path(self.path).parent.mkdir(exist_ok=True)
        return io.BufferedWriter(FullFile(self.path, "ab"))
