"""``spider.state``, kept with the requests that it belongs to.

Scrapy's extension writes it into the job directory when a spider closes, and reads it when one is
opened, after the scheduler.
"""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import TYPE_CHECKING, Final

from scrapy_bloom.frontier.store import Store
from scrapy_bloom.storage.files import open_regular, write_whole

if TYPE_CHECKING:
    from scrapy import Spider

NAME: Final = "spider.state"  # Scrapy's own file
_KEY: Final = "spider.state"
_EMPTY: Final = pickle.dumps({}, protocol=4)


class SpiderState:
    """Notes a spider's state in the store."""

    def __init__(self, store: Store, spider: Spider) -> None:
        self._store = store
        self._spider = spider
        self._noted = b""

    def note(self) -> None:
        """Note the state if it has changed. What cannot be pickled is left out, as ever."""
        state = getattr(self._spider, "state", None)
        if state is None or (not state and not self._noted):
            return
        try:
            pickled = pickle.dumps(state, protocol=4)
        except Exception:  # noqa: BLE001 - Scrapy says so when it stores the state itself
            return
        if pickled != self._noted:
            self._store.note(_KEY, pickled)
            self._noted = pickled


def restore(store: Store, folder: Path, *, killed: bool) -> None:
    """Put the noted state where Scrapy reads it: after a kill, or if its own file is cut off.

    :raises OSError: if it cannot be written.
    """
    path = folder / NAME
    noted = store.noted(_KEY)
    if isinstance(noted, bytes):
        if killed or not _is_whole(path):
            write_whole(path, [noted])
    elif path.exists() and not _is_whole(path):
        # A crawl that fails to open leaves an empty file. Scrapy cannot read it, and a spider
        # without a state would fail in its callbacks.
        write_whole(path, [_EMPTY])


def _is_whole(path: Path) -> bool:
    file = open_regular(path)
    if file is None:
        return False
    with file:
        try:
            pickle.load(file)  # noqa: S301 - as Scrapy does a moment later
        except Exception:  # noqa: BLE001 - a file that was cut off raises all sorts of things
            return False
    return True
