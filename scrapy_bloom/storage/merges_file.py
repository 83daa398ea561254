"""The sample of merged URLs in the job directory: for people to read, and to go on with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from scrapy_bloom.canonical.merges import Merge, Merges
from scrapy_bloom.errors import StateError
from scrapy_bloom.storage.files import open_regular, write_whole

NAME: Final = "requests.bloom.merges.json"
_FORMAT: Final = "scrapy-bloom merges 1"


def write_merges(folder: Path, merges: Merges) -> None:
    """Write the sample, whole or not at all; nothing if there is no merge.

    :raises StateError: if it cannot be written.
    """
    if not merges.count:
        return
    sample = [merge._asdict() for merge in merges.sample]
    text = json.dumps({"format": _FORMAT, "merged": merges.count, "sample": sample}, indent=1)
    try:
        write_whole(folder / NAME, [text.encode()])
    except OSError as error:
        raise StateError(
            f"{folder / NAME}: the sample of merged URLs could not be stored ({error.strerror})."
            f" The filter does not need it."
        ) from error


def read_merges(folder: Path, merges: Merges) -> None:
    """Let `merges` go on from the sample in the folder, if there is one.

    :raises StateError: if the file is not one of ours. It is not touched.
    """
    file = open_regular(folder / NAME)
    if file is None:
        return
    with file:
        try:
            stored = json.load(file)
            if stored["format"] != _FORMAT:
                raise ValueError(f"format {stored['format']!r}")
            sample = [Merge(m["url"], m["canonical"], tuple(m["steps"])) for m in stored["sample"]]
            merges.go_on_from(int(stored["merged"]), sample)
        except (KeyError, TypeError, ValueError) as error:
            raise StateError(
                f"{folder / NAME}: found no sample of merged URLs ({error!r}), expected"
                f" {_FORMAT!r}. It was left as it is: move it away; the filter does not need it."
            ) from error
