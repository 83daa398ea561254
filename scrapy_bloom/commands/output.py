"""Results as lines of columns, or as JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Final

_LARGE: Final = 1000  # has no digits behind the point


class Output:
    """Writes results to standard output and everything else to standard error.

    A row is a line with tabs between its columns, which stand in line on a terminal.

    :param as_json: whether results are to be JSON.
    """

    def __init__(self, *, as_json: bool) -> None:
        self.as_json = as_json

    def show(self, value: object, rows: Iterable[Sequence[object]]) -> None:
        """Write a result: the value as JSON, or else the rows."""
        if self.as_json:
            json.dump(value, sys.stdout, indent=1, default=_text)
            sys.stdout.write("\n")
            return
        lines = [[_text(cell) for cell in row] for row in rows]
        if sys.stdout.isatty():
            lines = [*_aligned(lines)]
        sys.stdout.writelines("\t".join(line) + "\n" for line in lines)

    def show_one(self, value: Mapping[str, object], row: Sequence[object]) -> None:
        """Write one of many results: a line each, also of JSON."""
        line = json.dumps(value) if self.as_json else "\t".join(map(_text, row))
        sys.stdout.write(f"{line}\n")

    def note(self, text: str) -> None:
        """Write something beside the result."""
        sys.stdout.flush()
        sys.stderr.write(f"{text}\n")


def _aligned(lines: Sequence[Sequence[str]]) -> Iterable[list[str]]:
    columns = max(map(len, lines), default=0)
    widths = [
        max((len(line[column]) for line in lines if len(line) > column + 1), default=0)
        for column in range(columns)
    ]
    for line in lines:
        yield ["  ".join(map(str.ljust, line, widths)).rstrip()]


def _text(value: object) -> str:
    if isinstance(value, datetime):
        return value.isoformat(timespec="seconds")
    if isinstance(value, Mapping):
        return json.dumps(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.3g}" if value < _LARGE else f"{value:.0f}"  # JSON has all digits
    return "" if value is None else str(value)
