"""Looking at filters, asking them, filling, copying and deleting them, without a crawl.

Each function is what a sub-command of ``scrapy bloom`` does. A filter is named by a target: a job
directory, a file by itself, or the URL of a Redis server with the key of a filter.

>>> from scrapy_bloom import tools
>>> tools.plan("10M").sized.bytes
43450368
>>> tools.info("job").filter.items  # doctest: +SKIP
527
>>> tools.contains("redis://localhost", ["http://example.com/"], key="a:bloom")  # doctest: +SKIP
[True]

Every function raises :class:`BloomError` if something cannot be used. Those that look create, lock
and change nothing, and may be called while a crawl uses the filter.
"""

from scrapy_bloom.tools.asking import asking, contains
from scrapy_bloom.tools.checking import Finding, check
from scrapy_bloom.tools.contents import Contents
from scrapy_bloom.tools.information import Information, info
from scrapy_bloom.tools.marking import add, adding, forget
from scrapy_bloom.tools.moving import Moved, copy, delete, delete_leftovers
from scrapy_bloom.tools.planning import Plan, Size, plan, size
from scrapy_bloom.tools.progress import Progress
from scrapy_bloom.tools.project import Project
from scrapy_bloom.tools.resolve import target_of
from scrapy_bloom.tools.target import Target
from scrapy_bloom.tools.waiting import Waiting, queue

__all__ = [
    "Contents",
    "Finding",
    "Information",
    "Moved",
    "Plan",
    "Progress",
    "Project",
    "Size",
    "Target",
    "Waiting",
    "add",
    "adding",
    "asking",
    "check",
    "contains",
    "copy",
    "delete",
    "delete_leftovers",
    "forget",
    "info",
    "plan",
    "queue",
    "size",
    "target_of",
]
