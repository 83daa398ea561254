"""Disks that are full."""

import os
import resource
import subprocess
from contextlib import contextmanager, suppress
from functools import cache


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


class Small:
    """A disk of its own, on which something else takes all the room."""

    def __init__(self, folder):
        self._other = folder / "other"

    def fill(self, run):  # noqa: ARG002 - as above
        with suppress(OSError), self._other.open("ab", buffering=0) as file:
            while file.write(bytes(4096)):
                pass

    def make_room(self):
        self._other.unlink()


@contextmanager
def small_disk(kind, folder):
    """Make a folder on such a disk: a real one, or one that a limit makes small."""
    folder.mkdir()
    if kind == "limit":
        yield Limited(folder)
        return
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "none", folder], check=True)
    try:
        yield Small(folder)
    finally:
        subprocess.run(["umount", folder], check=True)


@cache
def kinds():
    """List the kinds of small disks that there are for this user: only some may mount one."""
    if os.geteuid():
        return ["limit"]
    line = ["unshare", "-m", "mount", "-t", "tmpfs", "none", "/mnt"]
    try:
        may = subprocess.run(line, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        may = False
    return ["limit", "disk"] if may else ["limit"]
