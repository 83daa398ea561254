"""What it takes to move a filter of ten million pages, in seconds and in memory."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final, NamedTuple

from bench import redis_server
from bench.commands import Took, bloom, often, write_seen
from bench.fingerprints import stream
from bench.part import Column, Part, Row, Rows, Scale, Table
from scrapy_bloom import BloomError, RedisFilter, tools

if TYPE_CHECKING:
    from support.localredis import LocalRedis

BITS: Final = "bitmap"
NUMBERS: Final = "sets"
_BATCH: Final = 20_000


class Way(NamedTuple):
    """A filter that is moved.

    Attributes:
        layout: its layout in Redis.
        what: from where to where.
        verb: the sub-command.
        source: where it is.
        target: where it goes.
        filters: how many filters are in memory at once.
    """

    layout: str
    what: str
    verb: str
    source: str
    target: str
    filters: int = 1


def ways(url: str) -> list[Way]:
    """Return what is moved, in this order, with a server at that URL."""
    bits, more, sets = f"{url}#bits", f"{url}#more", f"{url}#sets"
    return [
        Way(BITS, "job to Redis", "copy", "job", bits),
        Way(BITS, "Redis to job", "copy", bits, "other"),
        Way(BITS, "Redis to file", "export", bits, "bits.bloom"),
        Way(BITS, "job to file", "export", "other", "job.bloom"),
        Way(BITS, "file to Redis", "import", "bits.bloom", more),
        Way(BITS, "file into a filter in Redis", "merge", "job.bloom", bits, filters=3),
        Way(NUMBERS, "Redis to file", "export", sets, "sets.bloom"),
        Way(NUMBERS, "file to Redis", "import", "sets.bloom", f"{url}#third"),
        Way(NUMBERS, "Redis to Redis", "copy", sets, f"{url}#fourth"),
    ]


def moves(folder: Path, scale: Scale) -> Iterator[Row]:
    """Yield what each move takes, and look whether nothing was changed on the way."""
    count = scale.of(10_000_000, 100_000)
    empty = often(lambda: bloom(folder, "plan", "1M"), 3)["peak"]
    write_seen(folder / "old" / "requests.seen", count, 3)
    options = ("--spider", "bench", "-s", f"BLOOM_CAPACITY={count}")
    bloom(folder, "import", "job", "old/requests.seen", *options)
    with redis_server.local_server() as server:
        _fill_sets(server, NUMBERS, count)
        sizes = {
            BITS: tools.target_of(folder / "job").read().bytes,
            NUMBERS: tools.target_of(f"{server.url}#{NUMBERS}").read().bytes,
        }
        for way in ways(server.url):
            found = _move(folder, way)
            size = sizes[way.layout]
            yield {
                "layout": way.layout,
                "what": way.what,
                "items": count,
                "size": size,
                **found._asdict(),
                "above": found.peak - empty - way.filters * size,
            }
        bloom(folder, "export", f"{server.url}#third", "third.bloom")
    for one, other in (("job.bloom", "bits.bloom"), ("third.bloom", "sets.bloom")):
        assert (folder / one).read_bytes() == (folder / other).read_bytes()


def _move(folder: Path, way: Way) -> Took:
    if way.verb != "merge":
        _make_room(folder, way.target)
    places = (way.target, way.source) if way.verb == "import" else (way.source, way.target)
    return bloom(folder, way.verb, *places)


def _make_room(folder: Path, target: str) -> None:
    if "://" not in target:
        shutil.rmtree(folder / target, ignore_errors=True)
        return
    with suppress(BloomError):  # nothing is there yet
        tools.delete(target)


def _fill_sets(server: LocalRedis, key: str, count: int) -> None:
    """Fill a filter of the layout `sets`."""
    known = islice(stream(3), count)
    with RedisFilter.from_url(
        server.url, key=key, capacity=count, layout=NUMBERS, cache=0, timeout=60
    ) as seen:
        while some := list(islice(known, _BATCH)):
            seen.add_many(some)


def run(scale: Scale) -> Rows:
    """Measure all."""
    with TemporaryDirectory() as folder:
        return {"moves": list(moves(Path(folder), scale))}


def findings(rows: Rows) -> list[str]:
    """Say how long it takes at most, and how much memory."""
    by_layout = {
        layout: [row for row in rows["moves"] if row["layout"] == layout]
        for layout in (BITS, NUMBERS)
    }
    bits, numbers = by_layout[BITS], by_layout[NUMBERS]
    return [
        (
            f"{bits[0]['items']:,} pages go anywhere in {max(row['cpu'] for row in bits):.1f} s of"
            f" CPU at most, {max(row['cpu'] for row in numbers):.1f} in the layout `sets`."
        ),
        (
            f"That takes at most {max(row['above'] for row in bits) / 1e6:.0f} MB above the filter"
            f" itself, {max(row['above'] for row in numbers) / 1e6:.0f} in `sets`."
        ),
        "The files are the same bytes whichever way the filter has gone.",
    ]


PART = Part(
    name="moving",
    title="Moving a filter",
    method="""\
A filter of 10,000,000 random fingerprints at 1e-6, sized for as many, goes from place to place by
`scrapy bloom copy`, `export`, `import` and `merge`, each once and in a process of its own, which
takes most of a second to start. The job is made of a `requests.seen`. Memory is the largest
resident size of the process; "above" leaves out that of one that does nothing (`plan`) and the
filter itself, three filters for a merge: the two and their union. In the layout `sets` a filter
cannot go to a job.
""",
    packages=("Scrapy", *redis_server.PACKAGES[:1]),
    run=run,
    tables=(
        Table(
            "moves",
            "From place to place",
            (
                Column("layout", "layout"),
                Column("what", "way"),
                Column("items", "items", ",d"),
                Column("size", "MB of filter", ".1f", 1e6),
                Column("wall", "s", ".2f"),
                Column("cpu", "s of CPU", ".2f"),
                Column("peak", "MB at most", ".0f", 1e6),
                Column("above", "MB above", ".0f", 1e6),
            ),
        ),
    ),
    findings=findings,
)
