"""A scheduler whose process kills itself at a chosen moment.

The environment says when: ``DIE=module:name.of.callable:before:3`` is before its third call.
"""

import os
import signal
from functools import wraps
from importlib import import_module
from itertools import count

from scrapy_bloom.local import backend, log, marks, store
from scrapy_bloom.scheduler import Scheduler as Ours
from support import vfs


class Scheduler(Ours):
    """Has a pass for every 60 marks, a checkpoint for every 5 commits, and writes much ahead."""

    @classmethod
    def from_crawler(cls, crawler):
        marks.LEAST_JOURNAL = 60
        marks.BLOCKS_AT_ONCE, log.CHECKPOINT_COMMITS = 2, 5
        marks.FORGOTTEN_AT_ONCE, store.ROWS_AT_ONCE = 1, 2
        if os.environ.pop("UNCUT", ""):
            backend.cut_feeds = lambda *_: None
        if "DIE" in os.environ:
            vfs.install()
            die_at(*os.environ.pop("DIE").split(":"))
        return super().from_crawler(crawler)


def die_at(module, name, when, number):
    *owner, last = name.split(".")
    holder = import_module(module)
    for part in owner:
        holder = getattr(holder, part)
    original = getattr(holder, last)
    calls = count(1)

    @wraps(original)
    def call(*arguments, **keywords):
        dies = next(calls) == int(number)
        if dies and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        result = original(*arguments, **keywords)
        if dies:
            if when == "within":  # the first piece of what it yields
                result = iter(result)
                next(result)
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(holder, last, call)
