"""What the sub-commands of ``scrapy bloom`` take for many pages, and Scrapy for having them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from importlib.metadata import distribution
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, Final

from bench import redis_server
from bench.commands import Took, bloom, often, python, urls, write_seen
from bench.harness import in_turn
from bench.part import Column, Part, Row, Rows, Scale, Table

LOCAL: Final = "`contains` of URLs, local, all seen"
SHARED: Final = "`contains` of URLs, Redis, all seen"
_LOAD: Final = """
import sys
from scrapy.dupefilters import RFPDupeFilter
RFPDupeFilter(sys.argv[1])
"""


def pages(folder: Path, scale: Scale) -> Iterator[Row]:
    """Yield what asking and importing URLs and fingerprints from a file takes."""
    count = scale.of(1_000_000, 20_000)
    (folder / "urls.txt").write_text("".join(f"{url}\n" for url in urls(count)))
    (folder / "hex.txt").write_text("".join(f"{number:040x}\n" for number in range(count)))
    with_hex = ("--fingerprint", "--file", "hex.txt")
    empty = often(lambda: bloom(folder, "plan", "1M"), 3)
    yield {"what": "nothing: `plan 1M`", **empty}

    def row(what: str, run: Callable[[], Took], server: Any = None) -> Row:
        before = redis_server.busy(server) if server else 0.0
        found = run()._asdict()
        cpu = found["cpu"] - empty["cpu"]
        row = {"what": what, "pages": count, **found}
        if server:
            row["server"] = redis_server.busy(server) - before
            cpu += row["server"]
        return {**row, "rate": count / cpu}

    def asked(*arguments: str) -> Took:
        output = folder / "answers.txt"
        took = bloom(folder, "contains", *arguments, output=output)
        assert len(output.read_bytes().splitlines()) == count
        return took

    jobs = (f"job{number}" for number in itertools.count(1))
    fill = lambda: bloom(folder, "import", next(jobs), "urls.txt", "--spider", "bench")  # noqa: E731
    yield row("`import` of URLs into a new job", fill)
    yield row(LOCAL, lambda: asked("job1", "--file", "urls.txt"))
    yield row("`contains` of fingerprints, local, all new", lambda: asked("job1", *with_hex))
    with redis_server.local_server() as server, server.client() as client:
        target = f"{server.url}#pages"
        bloom(folder, "copy", "job1", target)
        yield row(SHARED, lambda: asked(target, "--file", "urls.txt"), client)
        new = "`contains` of fingerprints, Redis, all new"
        yield row(new, lambda: asked(target, *with_hex), client)


def seen(folder: Path, scale: Scale) -> Iterator[Row]:
    """Yield what it takes to import requests.seen, and what Scrapy takes to load it."""
    count = scale.of(5_000_000, 50_000)
    write_seen(folder / "old" / "requests.seen", count, 2)
    options = ("--spider", "bench", "-s", f"BLOOM_CAPACITY={count}")
    took = bloom(folder, "import", "new", "old/requests.seen", *options)
    yield {"what": "`import` of requests.seen", "fingerprints": count, **took._asdict()}
    took = python(folder, "-c", _LOAD, str(folder / "old"))
    yield {"what": "Scrapy loading it", "fingerprints": count, **took._asdict()}


def start(folder: Path, scale: Scale) -> Iterator[Row]:
    """Yield what ``scrapy version`` takes with our package beside it and without, in pairs."""
    sites = {name: _site(folder / name, ours=name == "with") for name in ("with", "without")}
    taken: dict[str, list[Took]] = {name: [] for name in sites}
    for number in range(scale.of(30, 2) + 1):
        for name in in_turn([*sites], number):
            took = python(folder, "-m", "scrapy", "version", path=sites[name])
            if number:  # the first round compiles
                taken[name].append(took)
    pairs = list(zip(taken["with"], taken["without"], strict=True))
    differences = sorted(one.cpu - other.cpu for one, other in pairs)
    quarter = len(differences) // 4
    yield {
        "pairs": len(pairs),
        "without": median(one.cpu for one in taken["without"]),
        "least": min(one.cpu for one, _ in pairs) - min(one.cpu for _, one in pairs),
        "difference": median(differences),
        "difference_low": differences[quarter],
        "difference_high": differences[-1 - quarter],
    }


def _site(folder: Path, *, ours: bool) -> Path:
    """Make a folder with all packages of this environment, with our own one or without it."""
    import scrapy

    import scrapy_bloom

    folder.mkdir()
    for path in Path(scrapy.__file__).parents[1].iterdir():
        if not path.name.startswith(("scrapy_bloom", "__editable__")) and path.suffix != ".pth":
            (folder / path.name).symlink_to(path)
    if ours:
        (folder / "scrapy_bloom").symlink_to(Path(scrapy_bloom.__file__).parent)
        described = folder / "scrapy_bloom-0.dist-info"
        described.mkdir()
        for name in ("METADATA", "entry_points.txt"):
            (described / name).write_text(distribution("scrapy-bloom").read_text(name) or "")
    return folder


def run(scale: Scale) -> Rows:
    """Measure all."""
    with TemporaryDirectory() as folder:
        path = Path(folder)
        return {
            "pages": list(pages(path, scale)),
            "seen": list(seen(path, scale)),
            "start": list(start(path, scale)),
        }


def findings(rows: Rows) -> list[str]:
    """Say the rates, and what it costs to have the command."""
    rates = {row["what"]: row.get("rate") for row in rows["pages"]}
    ours, scrapys = rows["seen"]
    (first,) = rows["start"]
    return [
        (
            f"`contains` answers {rates[LOCAL]:,.0f} URLs from a file in a second of CPU time on a"
            f" local filter, and {rates[SHARED]:,.0f} in Redis, the server's time included."
        ),
        (
            f"The `import` of {ours['fingerprints']:,} fingerprints takes {ours['cpu']:.1f} s of"
            f" CPU and {ours['peak'] / 1e6:.0f} MB, once. Scrapy takes {scrapys['cpu']:.1f} s and"
            f" {scrapys['peak'] / 1e6:.0f} MB to load them at every start of the crawl."
        ),
        (
            f"`scrapy version` takes {first['difference'] * 1e3:.1f} ms more with the package"
            f" installed, of {first['without'] * 1e3:.0f}: the median of the pairs, half of which"
            f" lie between {first['difference_low'] * 1e3:.1f} and"
            f" {first['difference_high'] * 1e3:.1f}. The least of all runs differ by"
            f" {first['least'] * 1e3:.1f} ms."
        ),
    ]


_TAKEN = (
    Column("wall", "s", ".2f"),
    Column("cpu", "s of CPU", ".2f"),
    Column("peak", "MB at most", ".0f", 1e6),
)

PART = Part(
    name="commands",
    title="`scrapy bloom` on many pages",
    method="""\
Each sub-command runs as a user runs it, in a process of its own, which takes most of a second to
start, and is run once. Lines and answers are files. A rate is that of CPU time, beyond what `plan`
takes, which does nothing; in Redis the server's CPU time is added, as if the two took turns, while
they do overlap. The URLs are of 256 hosts, a third of them with a query; the level is `safe`, the
default. `requests.seen` is in the binary form of Scrapy 2.19; Scrapy loads it by making its filter.
For the start, `scrapy version` runs 30 times with each of two folders of packages that differ in
ours only, in turns: the difference of CPU time is taken within each pair, and between the least of
all runs, which other programs disturb less.
""",
    packages=("Scrapy", *redis_server.PACKAGES[:1]),
    run=run,
    tables=(
        Table(
            "pages",
            "Pages from a file",
            (
                Column("what", "what"),
                Column("pages", "pages", ",d"),
                *_TAKEN,
                Column("server", "s of the server", ".2f"),
                Column("rate", "pages a second of CPU", ",.0f"),
            ),
        ),
        Table(
            "seen",
            "Coming from Scrapy's own filter",
            (Column("what", "what"), Column("fingerprints", "fingerprints", ",d"), *_TAKEN),
        ),
        Table(
            "start",
            "The start of `scrapy` with the package installed",
            (
                Column("pairs", "pairs", "d"),
                Column("without", "ms of CPU without", ".0f", 1e-3),
                Column("difference", "ms more with it (quartiles)", ".1f", 1e-3, spread=True),
                Column("least", "ms more, least of each", ".1f", 1e-3),
            ),
        ),
    ),
    findings=findings,
)
