"""Results for people on a terminal, for programs in a pipe, and as JSON.

On a terminal there are tables and progress bars, drawn by rich. In a pipe each row is a line with
tabs between its columns, numbers are plain, and nothing else is written. rich is imported only
where something is drawn.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, is_dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from rich.console import Console
Told = Callable[[int], object]
"""Called with how much was done since it was called last."""


class Fact(NamedTuple):
    """One thing that is known.

    Attributes:
        name: what it is, for people.
        value: as programs read it.
        shown: as people read it; empty for the value itself.
    """

    name: str
    value: object
    shown: str = ""


class Cell(NamedTuple):
    """What programs and people read differently in a table.

    Attributes:
        value: as programs read it.
        shown: as people read it.
    """

    value: object
    shown: str


class Output:
    """Writes results to standard output and everything else to standard error.

    :param as_json: whether results are to be JSON.
    """

    def __init__(self, *, as_json: bool) -> None:
        self.as_json = as_json
        self.on_terminal = sys.stdout.isatty() and not as_json

    def json(self, value: Any) -> None:
        """Write a value as JSON."""
        json.dump(value, sys.stdout, indent=1, default=_plain)
        sys.stdout.write("\n")

    def json_line(self, value: Mapping[str, Any]) -> None:
        """Write a value as JSON in one line, one of many."""
        sys.stdout.write(json.dumps(value) + "\n")

    def facts(self, title: str, facts: Sequence[Fact]) -> None:
        """Write what is known of one thing."""
        if not self.on_terminal:
            sys.stdout.writelines(f"{fact.name}\t{_plain_text(fact.value)}\n" for fact in facts)
            return
        from rich.table import Table  # noqa: PLC0415 - see the top of this file

        table = Table(title=title, title_justify="left", show_header=False, box=None)
        table.add_column(style="bold")
        table.add_column(overflow="fold")
        for fact in facts:
            table.add_row(fact.name, _escaped(fact.shown or _text(fact.value)))
        self._console().print(table)

    def table(
        self, title: str, columns: Sequence[str], rows: Sequence[Sequence[object]], mark: str = ""
    ) -> None:
        """Write a table; numbers go to the right.

        :param mark: what each line begins with in a pipe, where there are several tables.
        """
        if not self.on_terminal:
            begin = [mark] if mark else []
            sys.stdout.writelines("\t".join([*begin, *map(_text, row)]) + "\n" for row in rows)
            return
        from rich.table import Table  # noqa: PLC0415

        table = Table(title=title, title_justify="left")
        for number, column in enumerate(columns):
            right = bool(rows) and all(_is_number(row[number]) for row in rows)
            table.add_column(column, justify="right" if right else "left", overflow="fold")
        for row in rows:
            table.add_row(*(_escaped(_shown(cell)) for cell in row))
        self._console().print(table)

    def lines(self, text: str) -> None:
        """Write lines as they are."""
        sys.stdout.write(text)

    def done(self, text: str) -> None:
        """Tell people what was done."""
        if not self.as_json:
            sys.stdout.write(f"{text}\n")

    def note(self, text: str) -> None:
        """Tell something beside the result."""
        sys.stdout.flush()
        sys.stderr.write(f"{text}\n")

    @contextmanager
    def progress(
        self, what: str, total: int | None, unit: str, *, between: bool = False
    ) -> Iterator[Told]:
        """Show a bar with rate and time left, on a terminal only.

        :param between: whether results are written meanwhile; then only if they go elsewhere.
        """
        if not sys.stderr.isatty() or (between and sys.stdout.isatty()):
            yield lambda _: None
            return
        from rich.console import Console  # noqa: PLC0415
        from rich.progress import (  # noqa: PLC0415
            BarColumn,
            DownloadColumn,
            MofNCompleteColumn,
            Progress,
            ProgressColumn,
            TextColumn,
            TimeRemainingColumn,
            TransferSpeedColumn,
        )

        counts: list[ProgressColumn] = (
            [DownloadColumn(), TransferSpeedColumn()]
            if unit == "bytes"
            else [MofNCompleteColumn(), TextColumn(unit), TextColumn("{task.fields[rate]}")]
        )
        bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            *counts,
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
            redirect_stdout=False,  # which would draw every line of a result
            redirect_stderr=False,
        )
        with bar:
            task = bar.add_task(_escaped(what), total=total, rate="")

            def told(count: int) -> None:
                bar.advance(task, count)
                speed = bar.tasks[0].speed
                if unit != "bytes" and speed:
                    bar.update(task, rate=f"{speed:,.0f}/s")

            yield told

    def _console(self) -> Console:
        from rich.console import Console  # noqa: PLC0415

        return Console(highlight=False)


def _plain(value: object) -> object:
    """Return what JSON can write in the place of a value that it cannot."""
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    return value.isoformat() if isinstance(value, datetime) else str(value)


def _is_number(cell: object) -> bool:
    return isinstance(cell.value if isinstance(cell, Cell) else cell, (int, float))


def _text(value: object) -> str:
    if isinstance(value, Cell):
        return _text(value.value)
    if isinstance(value, datetime):
        return value.isoformat(timespec="seconds")
    if value is None:
        return ""
    return json.dumps(value) if isinstance(value, (Mapping, bool)) else str(value)


def _plain_text(value: object) -> str:
    """Return a fact for a pipe: people read it there, too. JSON has all digits of a number."""
    return f"{value:.3g}" if isinstance(value, float) else _text(value)


def _shown(value: object) -> str:
    if isinstance(value, Cell):
        return value.shown
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.3g}" if isinstance(value, float) else _text(value)


def _escaped(text: str) -> str:
    from rich.markup import escape  # noqa: PLC0415

    return escape(text)
