"""Results as aligned columns or as JSON, notes, and progress."""

from __future__ import annotations

import json
import sys
import time
from argparse import Namespace
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, TypeVar

from scrapy_bloom.values import visible

T = TypeVar("T")

_PATIENCE: Final = 2.0  # seconds before progress is shown, and between two times
_LARGE: Final = 1000  # from here on without decimals


def show(args: Namespace, value: object, lines: Iterable[str]) -> None:
    """Write a result to standard output: with --json the value, or else the lines."""
    if args.json:
        lines = json.dumps(value, indent=1).split("\n")
    write(lines)


def write(lines: Iterable[str]) -> None:
    """Write lines to standard output, in which nothing controls a terminal."""
    sys.stdout.writelines(f"{visible(line)}\n" for line in lines)


def note(text: str) -> None:
    """Write something beside the result, to standard error."""
    sys.stdout.flush()
    sys.stderr.write(f"{visible(text)}\n")


def table(rows: Iterable[Sequence[object]], header: Sequence[str] = ()) -> Iterator[str]:
    """Yield rows, at least one, as aligned columns. Numbers are aligned to the right.

    :param header: the names of the columns.
    """
    rows = [*rows]
    right = [isinstance(cell, (int, float)) for cell in rows[0]]
    cells = [[as_text(cell) for cell in row] for row in rows]
    if header:
        cells.insert(0, [*header])
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        aligned = (
            cell.rjust(width) if number else cell.ljust(width)
            for cell, width, number in zip(row, widths, right, strict=True)
        )
        yield "  ".join(aligned).rstrip()


def progress(things: Iterable[T], what: str) -> Iterator[T]:
    """Yield things; if it takes long, show on a terminal how many there were so far.

    :param what: their name in the plural.
    """
    due = time.monotonic() + _PATIENCE
    for count, thing in enumerate(things, 1):
        yield thing
        if time.monotonic() >= due and sys.stderr.isatty():
            due = time.monotonic() + _PATIENCE
            # What is written next takes its place.
            sys.stderr.write(f"{count:,} {what} ...\r")
            sys.stderr.flush()


def as_text(value: object) -> str:
    """Return a value as people read it."""
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.3g}" if value < _LARGE else f"{value:,.0f}"
    return str(value)


def moment(seconds: float) -> str:
    """Return a time, given in seconds since 1970, as people read it here."""
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
    except (OSError, OverflowError, ValueError):  # no calendar has it
        return f"{seconds:g} s"
