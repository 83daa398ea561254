"""Results as aligned columns or as JSON, and progress."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from typing_extensions import Self

_PATIENCE: Final = 2.0  # seconds before progress is shown, and between two times
_LARGE: Final = 1000  # has no digits behind the point


class Output:
    """Writes results to standard output, and notes and progress to standard error.

    :param as_json: whether results are to be JSON.
    """

    def __init__(self, *, as_json: bool) -> None:
        self.as_json = as_json

    def show(self, value: object, lines: Iterable[str]) -> None:
        """Write a result: the value as JSON, or else the lines."""
        if self.as_json:
            lines = [json.dumps(value, indent=1, default=as_text)]
        sys.stdout.writelines(f"{line}\n" for line in lines)

    def note(self, text: str) -> None:
        """Write something beside the result."""
        sys.stdout.flush()
        sys.stderr.write(f"{text}\n")


class Table:
    """Lines of aligned columns under a header. Numbers stand to the right.

    :param header: the names of the columns.
    """

    def __init__(self, *header: str) -> None:
        self._header: Sequence[str] = header
        self._widths = [0] * len(header)

    def lines(self, rows: Iterable[Sequence[object]]) -> Iterator[str]:
        """Yield the lines of some rows; the first time with the header above them."""
        found = [*rows]
        columns = zip(*found, strict=True) if found else [()] * len(self._widths)
        right = [bool(column) and all(map(_is_number, column)) for column in columns]
        cells = [[*self._header]] * bool(self._header)
        cells += [[as_text(cell) for cell in row] for row in found]
        self._header = ()
        for row in cells:
            self._widths = [
                max(len(cell), old) for cell, old in zip(row, self._widths, strict=True)
            ]
        for row in cells:
            aligned = (
                cell.rjust(width) if number else cell.ljust(width)
                for cell, width, number in zip(row, self._widths, right, strict=True)
            )
            yield "  ".join(aligned).rstrip()


def listed(pairs: Sequence[tuple[str, str]]) -> Iterator[str]:
    """Yield a line for each name and its value."""
    width = max(len(name) for name, _ in pairs)
    for name, value in pairs:
        yield f"{name:<{width}}  {value}".rstrip()


class Progress:
    """Shows on a terminal how far something is that takes longer than two seconds.

    :param what: what is counted.
    """

    def __init__(self, what: str) -> None:
        self._what, self._count, self._shown = what, 0, False
        self._next = time.monotonic() + _PATIENCE

    def __enter__(self) -> Self:
        return self

    def add(self, count: int) -> None:
        """Note that so many more are done."""
        self._count += count
        if time.monotonic() >= self._next and sys.stderr.isatty():
            self._next, self._shown = time.monotonic() + _PATIENCE, True
            sys.stderr.write(f"\r{self._count:,} {self._what} ...")
            sys.stderr.flush()

    def __exit__(self, *_: object) -> None:
        if self._shown:
            sys.stderr.write("\n")


def as_text(value: object) -> str:
    """Return a value as people read it."""
    if isinstance(value, datetime):
        return f"{value.astimezone():%Y-%m-%d %H:%M:%S}"
    if isinstance(value, Mapping):
        return json.dumps(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.3g}" if value < _LARGE else f"{value:,.0f}"
    return "" if value is None else str(value)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
