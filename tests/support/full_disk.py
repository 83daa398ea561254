"""Full disks, as far as a limit on the size of files is one: it needs no rights."""

import resource
from contextlib import suppress


class Limited:
    """A folder in which no file of a process gets larger than the log of its crawl is now."""

    def __init__(self, folder):
        self._log = folder / "bloom.sqlite-wal"

    def fill(self, run):
        self._run = run
        self._limit(max(self._log.stat().st_size, 4096))

    def make_room(self):
        with suppress(ProcessLookupError):  # it has ended
            self._limit(resource.RLIM_INFINITY)

    def _limit(self, size):
        resource.prlimit(self._run.pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
