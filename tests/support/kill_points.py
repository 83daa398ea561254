"""A scheduler whose process kills itself at a chosen moment, and feeds on a full disk.

The environment says when: ``DIE=module:name.of.callable:before:3`` is before its third call.
"""

import errno
import io
import os
import signal
from functools import wraps
from importlib import import_module
from itertools import count
from operator import attrgetter
from pathlib import Path

from scrapy_bloom.crawl.scrapy.feeds import _LocalFile
from scrapy_bloom.local import backend, log, marks
from scrapy_bloom.scheduler import Scheduler as Ours
from support import vfs


class File(io.FileIO):
    """The file of a local feed. It takes a half first: if it is full then, it says so next."""

    halved = False

    def write(self, data):
        if self.halved:
            return super().write(data)
        self.halved = True
        about_to_append()
        count = super().write(data[: len(data) // 2])
        half_appended()
        return count


def _made(path):
    Path(path).parent.mkdir(exist_ok=True)
    return path


def about_to_append():
    """Do nothing, as below."""


def half_appended():
    """Do nothing: a process may die here."""


class Scheduler(Ours):
    """Has a pass for every 60 marks and a checkpoint for every 5 commits."""

    file = File

    @classmethod
    def from_crawler(cls, crawler):
        marks.LEAST_JOURNAL = 60
        marks.BLOCKS_AT_ONCE, log.CHECKPOINT_COMMITS = 2, 5
        if os.environ.pop("UNCUT", ""):
            backend.complete_feeds = lambda *_: None
        _LocalFile.open_file = lambda self: cls.file(_made(self.path), "ab")
        if "DIE" in os.environ:
            vfs.install()
            die_at(*os.environ.pop("DIE").split(":"))
        return super().from_crawler(crawler)


def die_at(module, name, when, number):
    owner, _, last = name.rpartition(".")
    holder = import_module(module)
    holder = attrgetter(owner)(holder) if owner else holder
    original, calls = getattr(holder, last), count(1)

    @wraps(original)
    def call(*arguments, **keywords):
        dies = next(calls) == int(number)
        result = None if dies and when == "before" else original(*arguments, **keywords)
        if dies:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(holder, last, call)


FAILS = {5, 9, 10, 40}
"""Which writes of a process to its feeds fail. Each has taken a half first, as a full disk does."""

writes = count(1)


class FullFile(io.FileIO):
    full = False

    def write(self, data):
        if FullFile.full:
            FullFile.full = False
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        FullFile.full = next(writes) in FAILS
        return super().write(bytes(data)[: len(data) // 2] if FullFile.full else data)


class OnFullDisk(Scheduler):
    file = FullFile
