"""Where local feeds end, in the file of a job.

A feed ends with the items of pages that are done at each commit, so after a kill it is cut back to
where it ended: the pages whose items are cut off are fetched again. What others have appended must
stay. So a file beside the job's has the size that each item has left its feed with: a kill leaves
that as it is. It is not synced; after a power failure all that follows is taken for the crawl's.
"""

from __future__ import annotations

import json
import logging
import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

from scrapy_bloom.crawl.scrapy.feed_ends import SHARED, WRITING, End, cut_back
from scrapy_bloom.errors import BloomError
from scrapy_bloom.local.notes import FEEDS
from scrapy_bloom.values import counted

if TYPE_CHECKING:
    from scrapy_bloom.local.store import Store

logger = logging.getLogger(__name__)

CUT: Final = "cut"
"""Name of a folder in a job directory: what was cut off from feeds, never deleted."""

LEFT: Final = "bloom.feeds"
"""Name of a file in a job directory: the size that a run has left each feed with, in JSON."""


class FeedNotes:
    """Where the local feeds of a crawl end: see :class:`~.feed_ends.Notes`.

    :param store: of the job, in which a run has begun.
    :param folder: the job directory.
    :param sync: whether where feeds end is synced to disk.
    """

    def __init__(self, store: Store, folder: Path, *, sync: bool) -> None:
        self._store, self._folder, self._sync = store, folder, sync
        self.ends: Mapping[str, End] = {}
        self._left: dict[str, int] = {}
        self._file: IO[bytes] | None = None  # has these
        self._closed = False

    def note_opened(self, path: str, end: End) -> None:
        """Write at once where a file ends to which items are about to be appended.

        The other ends stay those of the last commit: pages may be done since, and not committed.
        """
        if self._closed:
            return
        if self._file is None:
            self._file = (self._folder / LEFT).open("wb", buffering=0)
        self._left.pop(path, None)
        self.note_left(path, end.size, writing=True)
        ends = {**json.loads(self._store.stored_meta[FEEDS]), path: end}
        try:
            self._store.write_note(FEEDS, json.dumps(ends), sync=self._sync)
        except (sqlite3.Error, BloomError) as error:
            raise OSError(str(error)) from error
        self.ends = {**self.ends, path: end}

    def note_left(self, path: str, size: int, *, writing: bool = False) -> None:
        """Note at once which size a file has, before and after an item is written to it.

        If it is not what was left after the last one, somebody else writes to the file.
        """
        if self._file is None:
            return
        left = self._left.get(path, size)
        now = SHARED if left not in (size, WRITING) else WRITING if writing else size
        if now != self._left.get(path):
            self._left[path] = now
            self._file.seek(0)
            self._file.write(json.dumps(self._left).encode() + b"\n")  # what follows is older

    def close(self) -> None:
        """Note nothing more."""
        self._closed = True
        if self._file is not None:
            self._file.close()
            self._file = None

    def note(self) -> None:
        """Note where the feeds ended; the next commit writes it."""
        # Files of batches that are full are not looked at again: of thousands each item would tell.
        self._left = {path: size for path, size in self._left.items() if path in self.ends}
        self._store.meta[FEEDS] = json.dumps(self.ends)


def cut_feeds(folder: Path, noted: str) -> None:
    """Cut the feeds of a killed run back to its last commit, and log it.

    :param folder: the job directory.
    :param noted: what that commit has noted.
    """
    counts, saved, left = [], folder / CUT, _read_left(folder)
    for name, end in json.loads(noted).items():
        path = Path(name)
        try:
            counts.append(cut_back(path, End(*end), left.get(name, WRITING), saved / path.name))
        except (OSError, ValueError) as error:
            logger.warning(
                "The feed %s is not as the killed run left it (%s), so its end was not cut off:"
                " items of pages that are fetched again now may be in it, too.",
                path,
                error,
            )
    if any(counts):
        logger.info(
            "Cut off %s bytes of %s, with items of pages that were not done when the crawl was"
            " killed and are fetched again. They are in %s.",
            f"{sum(counts):,}",
            counted(sum(map(bool, counts)), "feed"),
            saved,
        )


def _read_left(folder: Path) -> dict[str, int]:
    """Return the size that the last run has left each feed with, as far as it is known."""
    try:
        first, *_ = (folder / LEFT).read_bytes().partition(b"\n")
        return dict(json.loads(first))
    except (OSError, ValueError, TypeError):
        return {}
