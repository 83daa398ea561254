"""How ``scrapy bloom top`` looks, on a terminal and in a pipe.

Names of workers and hosts are others' data: they are shown as they are, and never control anything.
"""

from __future__ import annotations

import io
import shutil
import signal
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from importlib.util import find_spec
from threading import Event
from typing import Any, Final

from scrapy_bloom.commands.info import owner, progress, status
from scrapy_bloom.commands.output import moment
from scrapy_bloom.errors import MissingLibraryError
from scrapy_bloom.values import counted, visible

if find_spec("rich") is None:  # an extra
    raise MissingLibraryError("'scrapy bloom top' needs the package rich", "top")

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

_WORKERS: Final = ("worker", "lease", "in flight", "pages/s", "")
_HOSTS: Final = ("host", "waiting", "next turn", "pace", "")
_BARS: Final = "▁▂▃▄▅▆▇█"
_LEAST: Final = 12  # columns of a name
_BESIDE: Final = 46  # columns of the others
_ROWS: Final = 20  # of a table, in a pipe
_AROUND: Final = 3  # lines around a table


def draw(looks: Iterable[tuple[dict[str, Any], str]]) -> None:
    """Show one view in the place of another until Ctrl-C; the last one stays.

    :param looks: facts, and why they are of an earlier time; empty if they are not.
    """
    console, last, interrupted = Console(highlight=False), Group(), Event()

    def interrupt(*_: object) -> None:
        interrupted.set()
        raise KeyboardInterrupt  # which is lost where Python cannot raise, in a destructor say

    before = signal.signal(signal.SIGINT, interrupt)
    with (
        suppress(KeyboardInterrupt),
        Live(console=console, screen=True, auto_refresh=False) as live,
    ):
        for facts, problem in looks:
            if interrupted.is_set():
                break
            last = view(facts, *console.size, problem)
            live.update(last, refresh=True)
    signal.signal(signal.SIGINT, before)
    console.print(last)


def as_plain_text(facts: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of a view."""
    width = shutil.get_terminal_size().columns
    console = Console(file=io.StringIO(), width=width, color_system=None, force_terminal=False)
    with console.capture() as capture:
        console.print(view(facts, width))
    return map(str.rstrip, capture.get().splitlines())


def view(facts: dict[str, Any], width: int, height: int = 0, problem: str = "") -> Group:
    """Return a view of a crawl.

    :param height: how many lines there is room for; 0 for any number.
    :param problem: as for :func:`draw`.
    """
    summary = Table.grid(padding=(0, 2))
    for name, value in _summary(facts, width):
        summary.add_row(Text(name, "dim"), value if isinstance(value, Text) else _text(value))
    parts: list[RenderableType] = [_cut(facts["target"], width, "bold")]
    if problem:
        parts.append(_text(f"{moment(time.time())[-8:]} {problem} Retrying.", "red"))
    parts.append(summary)
    workers, hosts = [*_workers(facts, width)], [*_hosts(facts, width)]
    tables = [(_WORKERS, workers, len(workers)), (_HOSTS, hosts, facts.get("hosts", 0))]
    tables = [each for each in tables if each[1]]
    room = height - summary.row_count - 2 - _AROUND * len(tables) if height else 2 * _ROWS
    for (header, rows, count), most in zip(tables, _rooms(room, tables), strict=True):
        shown = rows[:most]
        parts += ["", _table(header, shown)]
        if count > len(shown):
            parts.append(Text(f"and {counted(count - len(shown), 'other')}", "dim"))
    return Group(*parts)


def _rooms(room: int, tables: Sequence[tuple[Any, Sequence[Any], int]]) -> list[int]:
    """Return how many rows each table may show: what a short one leaves, a long one gets."""
    rooms = [0] * len(tables)
    shortest_first = sorted(range(len(tables)), key=lambda each: len(tables[each][1]))
    for done, each in enumerate(shortest_first):
        share = max(1, room // (len(tables) - done))
        rooms[each] = min(len(tables[each][1]), share)
        room -= rooms[each]
    return rooms


def _summary(facts: dict[str, Any], width: int) -> Iterator[tuple[str, str | Text]]:
    """Yield (label, value) rows."""
    change = ""
    yield from owner(facts)
    yield from status(facts)
    if "history" in facts:
        rate, history = f"{facts['pages_per_second']:,.1f}  ", facts["history"]
        bars = _sparkline(history[-max(1, width - 24) :]) if len(history) > 1 else ""
        yield "pages/s", Text.assemble((rate, "bold"), (bars, "green"))
        change = f" ({facts['waiting_per_minute']:+,.0f}/min)"
    for name, value in progress(facts if "slots" not in facts else facts | {"paused": {}}, change):
        yield name, _text(value, "red" if name == "failed" else "")


def _workers(facts: dict[str, Any], width: int) -> Iterator[tuple[Text, ...]]:
    """Yield a row for each worker: the silent, the dead with the last one first, the others."""
    rows = facts.get("workers", ())
    for row in sorted(rows, key=lambda row: (-row["silent"], -row["dead"], row["name"])):
        lease, rate, state = (
            f"{row['lease']:.0f} s",
            f"{row.get('pages_per_second', 0):,.1f}",
            Text(),
        )
        if row["dead"]:
            lease, rate, state = "", "", Text(f"DEAD since {moment(row['dead'])[-8:]}", "red")
        elif row["silent"]:
            state = Text(f"SILENT for {row['silent']:,.0f} s", "yellow")
        name = row["name"].rpartition(":")[0] or row["name"]  # what follows makes it unique
        cells = _cut(name, width - _BESIDE), lease, f"{row['in_flight']:,}", rate, state
        yield tuple(Text(cell) if isinstance(cell, str) else cell for cell in cells)


def _hosts(facts: dict[str, Any], width: int) -> Iterator[tuple[Text, ...]]:
    """Yield a row for each host, the one with most requests first."""
    for row in sorted(facts.get("slots", ()), key=lambda row: (-row["waiting"], row["name"])):
        turn = f"in {row['wait']:,.1f} s" if row["wait"] >= 0.1 else "now"  # noqa: PLR2004
        pace = f"{row['delay']:g} s" if row["delay"] else "none"
        until = f"paused until {moment(row['until'])[-8:]}" if row["until"] else ""
        name = _cut(row["name"] or "all hosts", width - _BESIDE)
        yield name, Text(f"{row['waiting']:,}"), Text(turn), Text(pace), Text(until, "yellow")


def _table(header: Sequence[str], rows: Sequence[tuple[Text, ...]]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for name in header:
        right = name not in (header[0], header[-1])
        table.add_column(name, no_wrap=True, justify="right" if right else "left")
    for row in rows:
        table.add_row(*row)
    return table


def _sparkline(values: Sequence[float]) -> str:
    most = max(*values, 0.0) or 1.0
    return "".join(_BARS[int(max(0.0, value) / most * (len(_BARS) - 1))] for value in values)


def _text(value: str, style: str = "") -> Text:
    """Return a text in which nothing is markup, moves the cursor or turns the direction."""
    return Text(visible(value), style)


def _cut(value: str, width: int, style: str = "") -> Text:
    text = _text(value, style)
    text.truncate(max(width, _LEAST), overflow="ellipsis")
    return text
