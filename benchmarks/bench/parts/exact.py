"""What it costs to lose no page at all: the exact mode beside SQLite alone and a set."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from time import process_time
from typing import Final

from bench.apart import apart
from bench.fingerprints import resident, stream, take
from bench.part import Column, Part, Row, Rows, Scale, Table
from scrapy_bloom import LocalFilter
from scrapy_bloom.layers.exact import ExactFilter, ExactLists

ERROR_RATE: Final = 1e-4
JOURNAL: Final = 200_000
COMMIT: Final = 2_000

ALONE, EXACT = "the filter alone", "exact"
SQLITE, SET = "SQLite alone", "set, as Scrapy keeps it"


def run(scale: Scale) -> Rows:
    """Add the same fingerprints to each, then ask for some of them again.

    SQLite alone would take more than a quarter of an hour for as many as the others.
    """
    most, fewer = scale.of((10_000_000, 2_000_000), (100_000, 20_000))
    candidates = [(name, most) for name in (ALONE, EXACT, SET)]
    candidates += [(name, fewer) for name in (EXACT, SQLITE)]
    rows: list[Row] = [
        {"name": name, "items": items, **apart(measure, name, items)} for name, items in candidates
    ]
    return {"exact": rows}


def measure(name: str, items: int) -> Row:
    """Return what one of them loses, takes and needs."""
    before = resident()
    with TemporaryDirectory() as folder:
        add, finish, told = OPEN[name](Path(folder), items)
        source, lost, begin = stream(1), 0, process_time()
        make = 0.0
        for _ in range(0, items, COMMIT):
            start = process_time()
            some = take(source, COMMIT)
            make += process_time() - start
            lost += sum(add(some))
        finish()
        new = process_time() - begin - make
        again = take(stream(1), items // 20)
        begin = process_time()
        missed = 0
        for start in range(0, len(again), COMMIT):
            missed += sum(not seen for seen in add(again[start : start + COMMIT]))
        seen = process_time() - begin
        size = sum(path.stat().st_size for path in Path(folder).iterdir())
        return {
            "lost": lost,
            "missed": missed,
            "new": new / items,
            "seen": seen / len(again),
            "disk": size,
            "memory": resident() - before,
            **told(),
        }


Opened = tuple[Callable[[list[bytes]], Iterable[bool]], Callable[[], object], Callable[[], Row]]
"""Adds fingerprints, which returns what was seen; stores what is left; tells more."""


def open_alone(_: Path, items: int) -> Opened:
    """Open a filter in memory."""
    seen = LocalFilter(items, ERROR_RATE)
    return seen.add_many, lambda: None, lambda: {"predicted": seen.info().expected_lost}


def open_exact(folder: Path, items: int) -> Opened:
    """Open the filter with its lists; they are stored as often as in a crawl, in this thread."""
    exact = ExactFilter(LocalFilter(items, ERROR_RATE))
    lists = ExactLists(folder, exact)
    lists.begin()

    def store() -> None:
        frozen = lists.freeze()
        frozen.write()
        frozen.use()
        frozen.tidy_up()

    def add(fingerprints: list[bytes]) -> list[bool]:
        answers = exact.add_many(fingerprints)
        if exact.unlisted >= JOURNAL:
            store()
        return answers

    def told() -> Row:
        predicted = exact.info().expected_lost
        return {"caught": exact.false_positives, "predicted": predicted}

    return add, store, told


def open_sqlite(folder: Path, items: int) -> Opened:  # noqa: ARG001 - as the others
    """Open a table of fingerprints, with one transaction for each batch."""
    database = sqlite3.connect(folder / "seen.sqlite", isolation_level=None)
    database.execute("PRAGMA journal_mode = WAL")
    database.execute("PRAGMA synchronous = NORMAL")
    database.execute("PRAGMA cache_size = -16000")
    database.execute("CREATE TABLE seen (fingerprint BLOB PRIMARY KEY) WITHOUT ROWID")
    insert = "INSERT OR IGNORE INTO seen VALUES (?)"

    def add(fingerprints: list[bytes]) -> list[bool]:
        database.execute("BEGIN")
        answers = [not database.execute(insert, (one,)).rowcount for one in fingerprints]
        database.execute("COMMIT")
        return answers

    return add, lambda: database.execute("PRAGMA wal_checkpoint(TRUNCATE)"), dict


def open_set(_: Path, items: int) -> Opened:  # noqa: ARG001 - as the others
    """Open a set."""
    known: set[bytes] = set()

    def add(fingerprints: list[bytes]) -> list[bool]:
        answers = []
        for one in fingerprints:
            answers.append(one in known)
            known.add(one)
        return answers

    return add, lambda: None, dict


OPEN: dict[str, Callable[[Path, int], Opened]] = {
    ALONE: open_alone,
    EXACT: open_exact,
    SQLITE: open_sqlite,
    SET: open_set,
}


def findings(rows: Rows) -> list[str]:
    """Say what the exact mode saves, and what it costs."""
    most = max(row["items"] for row in rows["exact"])
    of = {(row["name"], row["items"] == most): row for row in rows["exact"]}
    alone, exact, whole = (of[name, True] for name in (ALONE, EXACT, SET))
    fewer, sqlite = of[EXACT, False], of[SQLITE, False]
    lost = (
        f"Of {most:,} new fingerprints the filter alone calls {alone['lost']:,} seen"
        f" ({alone['predicted']:,.0f} predicted), the exact mode {exact['lost']:,}: it has caught"
        f" {exact['caught']:,}."
    )
    room = (
        f"The exact mode takes {exact['disk'] / most:.1f} bytes of disk for each, and"
        f" {exact['memory'] / 1e6:.0f} MB of memory; a set takes {whole['memory'] / 1e6:,.0f} MB."
    )
    times = (
        f"At {sqlite['items']:,} a new one takes {fewer['new'] * 1e6:.1f} µs of processor time, and"
        f" one that is seen {fewer['seen'] * 1e6:.1f}; with SQLite alone {sqlite['new'] * 1e6:.1f}"
        f" and {sqlite['seen'] * 1e6:.1f}, and {sqlite['disk'] / sqlite['items']:.1f} bytes of disk"
        f" instead of {fewer['disk'] / fewer['items']:.1f}."
    )
    return [lost, room, times]


PART = Part(
    name="exact",
    title="Exact: no page lost",
    method=f"""\
Random fingerprints, added {COMMIT:,} at a time, and then the first twentieth of them once more. The
filter has an error rate of {ERROR_RATE:g}, so that it has something to lose. The exact mode stores
its lists after every {JOURNAL:,} marks, as in a crawl, but in the thread that adds; the journal and
the snapshots of `scrapy_bloom.Scheduler` are not in it. SQLite
has a table without row ids, a cache of 16 MB, and one transaction for each batch. It gets fewer
fingerprints: each goes to a random place, and once the table is larger than the cache, each takes a
page to be read and written. Times are processor time of the process, without making the
fingerprints; memory is what the process has grown by.
""",
    packages=(),
    run=run,
    tables=(
        Table(
            "exact",
            "Without a lost page",
            (
                Column("name", "what"),
                Column("items", "fingerprints", ","),
                Column("lost", "new ones called seen", ","),
                Column("predicted", "predicted for the filter", ",.0f"),
                Column("caught", "caught", ","),
                Column("missed", "seen ones called new", ","),
                Column("new", "µs per new one", ".2f", 1e-6),
                Column("seen", "µs per seen one", ".2f", 1e-6),
                Column("disk", "MB of disk", ",.0f", 1e6),
                Column("memory", "MB of memory", ",.0f", 1e6),
            ),
        ),
    ),
    findings=findings,
)
