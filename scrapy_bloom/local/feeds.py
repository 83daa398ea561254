"""Where local feeds end, in the file of a job.

A feed ends with the items of pages that are done at each commit, so after a kill it is cut back to
where it ended: the pages whose items are cut off are fetched again.
"""

from __future__ import annotations

import json
import logging
import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from scrapy_bloom.crawl.scrapy.feed_ends import End, cut_back
from scrapy_bloom.errors import BloomError
from scrapy_bloom.local.notes import FEEDS
from scrapy_bloom.values import counted

if TYPE_CHECKING:
    from scrapy_bloom.local.store import Store

logger = logging.getLogger(__name__)

CUT: Final = "cut"
"""Name of a folder in a job directory: what was cut off from feeds, never deleted."""


class FeedNotes:
    """Where the local feeds of a crawl end: see :class:`~.feed_ends.Notes`.

    :param store: of the job, in which a run has begun.
    :param sync: whether what is written at once is synced to disk.

    Attributes:
        closed: whether nothing more may be written.
    """

    def __init__(self, store: Store, *, sync: bool) -> None:
        self._store, self._sync = store, sync
        self.ends: Mapping[str, End] = {}
        self.closed = False

    def note_opened(self, path: str, end: End) -> None:
        """Write at once where a file ends to which items are about to be appended.

        The other ends stay those of the last commit: pages may be done since, and not committed.
        """
        if self.closed:
            return
        ends = {**json.loads(self._store.stored_meta[FEEDS]), path: end}
        try:
            self._store.write_note(FEEDS, json.dumps(ends), sync=self._sync)
        except (sqlite3.Error, BloomError) as error:
            raise OSError(str(error)) from error
        self.ends = {**self.ends, path: end}

    def note(self) -> None:
        """Note where the feeds ended; the next commit writes it."""
        self._store.meta[FEEDS] = json.dumps(self.ends)


def cut_feeds(folder: Path, noted: str) -> None:
    """Cut the feeds of a killed run back to its last commit, and log it.

    :param folder: the job directory.
    :param noted: what that commit has noted.
    """
    counts, saved = [], folder / CUT
    for name, end in json.loads(noted).items():
        path = Path(name)
        try:
            counts.append(cut_back(path, End(*end), saved / path.name))
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
