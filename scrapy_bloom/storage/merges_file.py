"""The sample of merged URLs in the job directory: people can read it, and the next run goes on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from scrapy_bloom.canonical.merges import SAMPLE, Merge, Merges
from scrapy_bloom.errors import StateError
from scrapy_bloom.storage import fields
from scrapy_bloom.storage.files import open_regular, write_whole

NAME: Final = "requests.bloom.merges.json"
_FORMAT: Final = "scrapy-bloom merges 1"


def write_merges(folder: Path, merges: Merges) -> None:
    """Write the sample, whole or not at all. If there is no merge, nothing is written.

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
            stored = fields.read_object(file.read())
            if fields.text(stored, "format") != _FORMAT:
                raise ValueError(f"format {stored['format']!r}")
            sample = [_merge(merge) for merge in fields.objects(stored, "sample", SAMPLE)]
            merges.resume_from(fields.integer(stored, "merged", 0, 1 << 63), sample)
        except ValueError as error:
            raise StateError(
                f"{folder / NAME}: found no sample of merged URLs ({error}), expected"
                f" {_FORMAT!r}. It was left as it is: move it away; the filter does not need it."
            ) from error


def _merge(merge: Mapping[str, Any]) -> Merge:
    return Merge(
        fields.text(merge, "url"),
        fields.text(merge, "canonical"),
        tuple(fields.texts(merge, "steps")),
    )
