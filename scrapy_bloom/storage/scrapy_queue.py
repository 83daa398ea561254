"""Scrapy's request queue in the job directory, as far as the filter beside it must know it.

Scrapy keeps the requests in one file for each slot and priority, and writes which of them to read
again, ``active.json``, when a spider closes.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Final

NAME: Final = "requests.queue"
SAVED: Final = "active.json"


def is_saved(folder: Path) -> bool:
    """Return whether a run in this job directory has ever stored its queue."""
    return (folder / NAME / SAVED).exists()


def is_gone(folder: Path) -> bool:
    """Return whether somebody has taken the stored queue away: Scrapy has made the folder anew."""
    return (folder / NAME).is_dir() and not is_saved(folder)


def has_leftovers(folder: Path) -> bool:
    """Return whether there are files in the queue that Scrapy is not going to read."""
    return not _to_be_read(folder) and any(
        path.is_file() for path in (folder / NAME).rglob("*") if path.name != SAVED
    )


def remove_leftovers(folder: Path) -> None:
    """Remove what a killed run left of a queue that Scrapy is not going to read.

    It would add to these files all the same, and where the kill has cut one short it fails to: each
    request of that priority would be lost.

    :raises OSError: if something cannot be removed.
    """
    if _to_be_read(folder) or not (folder / NAME).is_dir():
        return
    for path in (folder / NAME).iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.name != SAVED:
            path.unlink()


def _to_be_read(folder: Path) -> bool:
    try:
        return bool(json.loads((folder / NAME / SAVED).read_bytes()))
    except FileNotFoundError:
        return False
    except ValueError:  # Scrapy will say what it thinks of it
        return True
